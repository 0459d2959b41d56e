//! A set of page numbers that finds its neighbours fast.

/// A bitmap with summaries: a bit of level `l + 1` says whether a 64-bit word of level `l` has any bit set.
///
/// A million pages take four levels and about 130 KB. Every query but [`PageSet::count_below`] is O(log64 n) with n
/// the numbers that the set is made for; numbers beyond these are in no set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PageSet {
    levels: Vec<Vec<u64>>,
    capacity: u32,
    count: u32,
}

impl PageSet {
    /// An empty set for the numbers below `capacity`.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        let mut levels = Vec::new();
        let mut bits = capacity as usize;
        loop {
            let words = bits.div_ceil(64).max(1);
            levels.push(vec![0; words]);
            if words == 1 {
                return PageSet { levels, capacity, count: 0 };
            }
            bits = words;
        }
    }

    /// The set of `from..capacity`. O(n).
    #[must_use]
    pub fn filled(from: u32, capacity: u32) -> Self {
        let mut set = PageSet::new(capacity);
        for page in from..capacity {
            set.insert(page);
        }
        set
    }

    /// Adds `page`; says whether that changed the set, which a number at or beyond the capacity never does.
    pub fn insert(&mut self, page: u32) -> bool {
        if page >= self.capacity || self.contains(page) {
            return false;
        }
        self.count += 1;
        let mut index = page as usize;
        for level in &mut self.levels {
            let word = &mut level[index >> 6];
            let was_empty = *word == 0;
            *word |= 1 << (index & 63);
            if !was_empty {
                break;
            }
            index >>= 6;
        }
        true
    }

    /// Takes `page` out; says whether it was in.
    pub fn remove(&mut self, page: u32) -> bool {
        if !self.contains(page) {
            return false;
        }
        self.count -= 1;
        let mut index = page as usize;
        for level in &mut self.levels {
            let word = &mut level[index >> 6];
            *word &= !(1 << (index & 63));
            if *word != 0 {
                break;
            }
            index >>= 6;
        }
        true
    }

    /// Whether `page` is in the set. O(1).
    #[must_use]
    pub fn contains(&self, page: u32) -> bool {
        page < self.capacity && self.levels[0][page as usize >> 6] >> (page & 63) & 1 == 1
    }

    /// How many numbers are in the set. O(1).
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether nothing is in the set. O(1).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The lowest member.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.next_at_or_after(0)
    }

    /// The highest member.
    #[must_use]
    pub fn last(&self) -> Option<u32> {
        self.prev_at_or_before(u32::MAX)
    }

    /// The lowest member that is not below `page`.
    #[must_use]
    pub fn next_at_or_after(&self, page: u32) -> Option<u32> {
        let mut index = page as usize;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get(index >> 6)? & (!0 << (index & 63));
            if word != 0 {
                let found = (index >> 6) << 6 | word.trailing_zeros() as usize;
                return Some(self.descend(found, height, u64::trailing_zeros));
            }
            index = (index >> 6) + 1;
        }
        None
    }

    /// The highest member that is not above `page`.
    #[must_use]
    pub fn prev_at_or_before(&self, page: u32) -> Option<u32> {
        let mut index = page.min(self.capacity.checked_sub(1)?) as usize;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level[index >> 6] & (!0 >> (63 - (index & 63)));
            if word != 0 {
                let found = (index >> 6) << 6 | (63 - word.leading_zeros() as usize);
                return Some(self.descend(found, height, |word| 63 - word.leading_zeros()));
            }
            index = (index >> 6).checked_sub(1)?;
        }
        None
    }

    /// The members of `from..to`, ascending. O(log64 n) a member.
    pub fn range(&self, from: u32, to: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = from;
        std::iter::from_fn(move || {
            let found = self.next_at_or_after(at).filter(|&page| page < to)?;
            at = found + 1;
            Some(found)
        })
    }

    /// Every member, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.range(0, self.capacity)
    }

    /// How many members are below `page`. O(n / 64).
    #[must_use]
    pub fn count_below(&self, page: u32) -> u32 {
        let page = page.min(self.capacity) as usize;
        let whole: u32 = self.levels[0][..page >> 6].iter().map(|word| word.count_ones()).sum();
        match page & 63 {
            0 => whole,
            bits => whole + (self.levels[0][page >> 6] & !(!0 << bits)).count_ones(),
        }
    }

    /// From the bit `index` of a level down to the member that `pick` chooses below it.
    fn descend(&self, mut index: usize, height: usize, pick: fn(u64) -> u32) -> u32 {
        for level in self.levels[..height].iter().rev() {
            index = index << 6 | pick(level[index]) as usize;
        }
        index as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::PageSet;

    #[track_caller]
    fn check_same(set: &PageSet, model: &BTreeSet<u32>, at: u32) {
        assert_eq!(set.count() as usize, model.len());
        assert_eq!(set.is_empty(), model.is_empty());
        assert_eq!(set.first(), model.first().copied());
        assert_eq!(set.last(), model.last().copied());
        assert_eq!(set.contains(at), model.contains(&at));
        assert_eq!(set.next_at_or_after(at), model.range(at..).next().copied());
        assert_eq!(set.prev_at_or_before(at), model.range(..=at).next_back().copied());
        assert_eq!(set.count_below(at) as usize, model.range(..at).count());
    }

    proptest! {
        #[test]
        fn answers_like_an_ordered_set(
            capacity in prop_oneof![0_u32..70, 4_000_u32..4_200, 262_000_u32..263_000],
            steps in prop::collection::vec((any::<u32>(), 0_u32..3), 0..200),
        ) {
            let (mut set, mut model) = (PageSet::new(capacity), BTreeSet::new());
            for (number, kind) in steps {
                // Numbers a little beyond the capacity too: they are in no set.
                let page = number % (capacity + 3);
                match kind {
                    0 | 1 => prop_assert_eq!(
                        set.insert(page),
                        page < capacity && model.insert(page)
                    ),
                    _ => prop_assert_eq!(set.remove(page), model.remove(&page)),
                }
                check_same(&set, &model, page);
                check_same(&set, &model, number % (capacity + 1));
            }
            prop_assert!(set.iter().eq(model.iter().copied()));
        }
    }

    #[test]
    fn a_million_pages_have_four_levels_and_both_ends() {
        let mut set = PageSet::filled(7, 1_000_000);
        assert_eq!(set.levels.len(), 4);
        assert_eq!((set.first(), set.last(), set.count()), (Some(7), Some(999_999), 999_993));
        for page in 8..999_999 {
            assert!(set.remove(page));
        }
        assert_eq!(set.next_at_or_after(8), Some(999_999));
        assert_eq!(set.prev_at_or_before(999_998), Some(7));
        assert_eq!(set.range(7, 999_999).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn the_largest_number_is_no_trap() {
        let set = PageSet::filled(0, 64);
        assert_eq!(set.next_at_or_after(u32::MAX), None);
        assert_eq!(set.prev_at_or_before(u32::MAX), Some(63));
        assert_eq!(PageSet::new(0).last(), None);
    }
}
