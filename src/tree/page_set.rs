//! Which pages of an edge are present in one window pool.

/// A set of page indices within one edge. All scans are word by word.
#[derive(Clone, Debug, Default)]
pub(super) struct PageSet {
    words: Vec<u64>,
}

impl PageSet {
    pub(super) fn contains(&self, page: u32) -> bool {
        self.words.get(word(page)).is_some_and(|bits| bits >> (page % 64) & 1 == 1)
    }

    pub(super) fn insert(&mut self, page: u32) {
        if self.words.len() <= word(page) {
            self.words.resize(word(page) + 1, 0);
        }
        self.words[word(page)] |= 1 << (page % 64);
    }

    pub(super) fn remove(&mut self, page: u32) {
        if let Some(bits) = self.words.get_mut(word(page)) {
            *bits &= !(1 << (page % 64));
        }
    }

    /// Lowest member that is at least `from`.
    pub(super) fn first_from(&self, from: u32) -> Option<u32> {
        let mut at = word(from);
        let mut bits = self.words.get(at)? & (u64::MAX << (from % 64));
        while bits == 0 {
            at += 1;
            bits = *self.words.get(at)?;
        }
        Some(at as u32 * 64 + bits.trailing_zeros())
    }

    /// Highest page below `end` that is not a member.
    pub(super) fn last_gap_before(&self, end: u32) -> Option<u32> {
        let last = end.checked_sub(1)?;
        let mut at = word(last);
        let mut gaps = !self.words.get(at).copied().unwrap_or(0) & (u64::MAX >> (63 - last % 64));
        while gaps == 0 {
            at = at.checked_sub(1)?;
            gaps = !self.words.get(at).copied().unwrap_or(0);
        }
        Some(at as u32 * 64 + 63 - gaps.leading_zeros())
    }

    /// Members that are at least `from`.
    pub(super) fn count_from(&self, from: u32) -> u32 {
        let Some((first, rest)) = self.words.get(word(from)..).and_then(<[u64]>::split_first)
        else {
            return 0;
        };
        let first = (first & (u64::MAX << (from % 64))).count_ones();
        first + rest.iter().map(|bits| bits.count_ones()).sum::<u32>()
    }

    /// Takes the members from `at` on out, and counts them from there.
    pub(super) fn split_off(&mut self, at: u32) -> PageSet {
        let mut upper = PageSet::default();
        let mut next = self.first_from(at);
        while let Some(page) = next {
            upper.insert(page - at);
            self.remove(page);
            next = self.first_from(page + 1);
        }
        upper
    }

    /// Members in rising order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.first_from(0), |&page| self.first_from(page + 1))
    }
}

const fn word(page: u32) -> usize {
    (page / 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn scans_agree_with_a_plain_list(
            pages in prop::collection::btree_set(0u32..200, 0..120),
            at in 0u32..210,
        ) {
            let mut set = PageSet::default();
            pages.iter().for_each(|&page| set.insert(page));
            prop_assert_eq!(set.first_from(at), pages.range(at..).next().copied());
            prop_assert_eq!(set.last_gap_before(at), (0..at).rev().find(|page| !pages.contains(page)));
            prop_assert_eq!(set.count_from(at) as usize, pages.range(at..).count());
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), pages.iter().copied().collect::<Vec<_>>());
            let upper = set.split_off(at);
            prop_assert_eq!(
                upper.iter().map(|page| page + at).collect::<Vec<_>>(),
                pages.range(at..).copied().collect::<Vec<_>>()
            );
            prop_assert_eq!(set.count_from(0) as usize, pages.range(..at).count());
        }
    }
}
