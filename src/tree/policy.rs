//! The one seam that eviction policies stand behind: from a node's use to its rank.

/// The order in which prefixes are given up.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PolicyKind {
    /// Least recently used first.
    #[default]
    Lru,
}

/// A place in the policy's order: the lowest goes first.
pub(super) type Rank = u64;

/// When one aspect of a node was last used, in ticks of the tree's logical clock.
pub(super) type Stamp = u64;

/// When each kind of page of a node was last used.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Used {
    /// As part of a matched path.
    pub full: Stamp,
    /// As part of a trailing window.
    pub window: Stamp,
    /// As the state that a sequence started from.
    pub state: Stamp,
}

impl PolicyKind {
    /// Rank of pages last used at `stamp`.
    pub(super) fn rank(self, stamp: Stamp) -> Rank {
        match self {
            PolicyKind::Lru => stamp,
        }
    }
}
