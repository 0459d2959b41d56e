//! Small sets of window or state ordinals.

use crate::unit::POOLS_MAX;

/// A set of window ordinals, or of state ordinals: places in [`Chain::windows`](crate::chain::Chain::windows) or
/// [`Chain::states`](crate::chain::Chain::states).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Ordinals(u8);

impl Ordinals {
    /// The empty set.
    pub const NONE: Ordinals = Ordinals(0);

    /// The first `count` ordinals.
    #[must_use]
    pub fn first(count: usize) -> Self {
        (0..count.min(POOLS_MAX)).collect()
    }

    /// Those of either.
    #[must_use]
    pub fn union(self, other: Ordinals) -> Ordinals {
        Ordinals(self.0 | other.0)
    }

    /// Whether nothing is in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many are in it.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether `ordinal` is in it.
    #[must_use]
    pub const fn contains(self, ordinal: usize) -> bool {
        ordinal < POOLS_MAX && self.0 >> ordinal & 1 == 1
    }

    /// Puts `ordinal` in; one that no chain can have is ignored.
    pub fn insert(&mut self, ordinal: usize) {
        if ordinal < POOLS_MAX {
            self.0 |= 1 << ordinal;
        }
    }

    /// Takes `ordinal` out.
    pub fn remove(&mut self, ordinal: usize) {
        if ordinal < POOLS_MAX {
            self.0 &= !(1 << ordinal);
        }
    }

    /// What is in this one and not in `other`.
    #[must_use]
    pub const fn without(self, other: Ordinals) -> Self {
        Ordinals(self.0 & !other.0)
    }

    /// Members in rising order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = usize> {
        (0..POOLS_MAX).filter(move |&ordinal| self.contains(ordinal))
    }
}

impl FromIterator<usize> for Ordinals {
    fn from_iter<I: IntoIterator<Item = usize>>(ordinals: I) -> Self {
        let mut set = Ordinals::NONE;
        ordinals.into_iter().for_each(|ordinal| set.insert(ordinal));
        set
    }
}
