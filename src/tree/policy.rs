//! The one seam that eviction policies stand behind: from what is known of a page's use to its rank.
//!
//! A rank says where a page stands among others of its class ([`VictimClass`](super::VictimClass)): the least goes
//! first. It is made of whole numbers alone, so that equal pasts give equal orders. Pages of equal rank go by their
//! place on the path, then by node.

use super::lock::User;
use crate::unit::Tokens;
use std::fmt::Debug;
use std::sync::Arc;

/// The order in which prefixes are given up.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PolicyKind {
    /// [`Lru`].
    #[default]
    Lru,
    /// [`Lfu`].
    Lfu,
    /// [`Fifo`].
    Fifo,
    /// [`Mru`].
    Mru,
    /// [`Filo`].
    Filo,
    /// [`ByPriority`].
    Priority,
    /// [`Slru`].
    Slru,
    /// [`Tlru`].
    Tlru,
}

/// How a tree behaves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TreeSettings {
    /// The order in which prefixes are given up.
    pub policy: PolicyKind,
    /// Of [`Slru`]: matches from which on a prefix is protected.
    pub slru_protected_hits: u32,
    /// Of [`Tlru`]: tokens that can be computed within the latency budget.
    pub tlru_latency: Tokens,
    /// Of [`Tlru`]: tokens expected to be new in a conversation's next prompt.
    pub tlru_next_prompt: Tokens,
    /// Sessions whose last path is held; beyond so many, the one that published longest ago is not.
    pub max_sessions: u32,
}

/// A moment: a tick of the tree's logical clock.
pub(super) type Stamp = u64;

/// A place in the policy's order: the least goes first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Rank {
    /// What the policy looks at before `order`; the lowest goes first.
    pub group: i64,
    /// Order within a group; the lowest goes first.
    pub order: u64,
}

/// A place among others of a class: what sessions hold comes after the rest.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Standing {
    pub held: bool,
    pub rank: Rank,
}

/// What is recorded of the use of one kind of page of a node.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Record {
    /// When it was last matched or published, in ticks of the tree's logical clock.
    pub last: u64,
    /// When it was put in the tree, in the same ticks.
    pub inserted: u64,
    /// Matches that used it since.
    pub hits: u32,
}

/// A page that may go, as a policy sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Candidate {
    /// Its use.
    pub record: Record,
    /// The highest priority among the sequences that published or matched it.
    pub priority: i64,
    /// Length of the conversation that used it last, when it did.
    pub conversation: Tokens,
    /// Tokens before it on its path.
    pub position: Tokens,
}

/// An eviction policy. See [`PolicyKind`] for those there are.
pub trait EvictionPolicy: Debug + Send + Sync {
    /// Where a page stands among others of its class. Pure. O(1).
    fn rank(&self, candidate: &Candidate) -> Rank;
}

/// Least recently used first.
#[derive(Clone, Copy, Debug)]
pub struct Lru;

/// Fewest matches first; of as many, the least recently used.
#[derive(Clone, Copy, Debug)]
pub struct Lfu;

/// First put in the tree first, however often it was used since.
#[derive(Clone, Copy, Debug)]
pub struct Fifo;

/// Most recently used first.
#[derive(Clone, Copy, Debug)]
pub struct Mru;

/// Last put in the tree first.
#[derive(Clone, Copy, Debug)]
pub struct Filo;

/// Lowest priority first; of the same, the least recently used.
#[derive(Clone, Copy, Debug)]
pub struct ByPriority;

/// Segmented LRU: what was matched less often than `protected_hits` times first, the least recently used of it first;
/// then the rest, in the same order.
#[derive(Clone, Copy, Debug)]
pub struct Slru {
    /// Matches from which on a prefix is protected.
    pub protected_hits: u32,
}

/// Tail-optimised LRU (arXiv 2510.15152): what a conversation's next prompt can do without within a latency budget
/// goes first, the least recently used of it first; then the rest, in the same order.
///
/// With L the conversation's length when it was last used, Q the tokens that its next prompt is expected to add, and ξ
/// those that can be computed within the budget, a page that starts after p tokens is surplus if p + ξ >= L + Q: all
/// that is left to compute without it, and without what follows it, is L + Q - p <= ξ.
#[derive(Clone, Copy, Debug)]
pub struct Tlru {
    /// ξ.
    pub latency: Tokens,
    /// Q.
    pub next_prompt: Tokens,
}

impl Default for TreeSettings {
    fn default() -> Self {
        TreeSettings {
            policy: PolicyKind::Lru,
            slru_protected_hits: 2,
            tlru_latency: Tokens(2048),
            tlru_next_prompt: Tokens(512),
            max_sessions: 65_536,
        }
    }
}

impl TreeSettings {
    /// The policy that these settings choose.
    #[must_use]
    pub fn eviction_policy(&self) -> Arc<dyn EvictionPolicy> {
        match self.policy {
            PolicyKind::Lru => Arc::new(Lru),
            PolicyKind::Lfu => Arc::new(Lfu),
            PolicyKind::Fifo => Arc::new(Fifo),
            PolicyKind::Mru => Arc::new(Mru),
            PolicyKind::Filo => Arc::new(Filo),
            PolicyKind::Priority => Arc::new(ByPriority),
            PolicyKind::Slru => Arc::new(Slru { protected_hits: self.slru_protected_hits }),
            PolicyKind::Tlru => {
                Arc::new(Tlru { latency: self.tlru_latency, next_prompt: self.tlru_next_prompt })
            }
        }
    }
}

impl EvictionPolicy for Lru {
    fn rank(&self, candidate: &Candidate) -> Rank {
        Rank { group: 0, order: candidate.record.last }
    }
}

impl EvictionPolicy for Lfu {
    fn rank(&self, candidate: &Candidate) -> Rank {
        Rank { group: i64::from(candidate.record.hits), order: candidate.record.last }
    }
}

impl EvictionPolicy for Fifo {
    fn rank(&self, candidate: &Candidate) -> Rank {
        Rank { group: 0, order: candidate.record.inserted }
    }
}

impl EvictionPolicy for Mru {
    fn rank(&self, candidate: &Candidate) -> Rank {
        Rank { group: 0, order: u64::MAX - candidate.record.last }
    }
}

impl EvictionPolicy for Filo {
    fn rank(&self, candidate: &Candidate) -> Rank {
        Rank { group: 0, order: u64::MAX - candidate.record.inserted }
    }
}

impl EvictionPolicy for ByPriority {
    fn rank(&self, candidate: &Candidate) -> Rank {
        Rank { group: candidate.priority, order: candidate.record.last }
    }
}

impl EvictionPolicy for Slru {
    fn rank(&self, candidate: &Candidate) -> Rank {
        let protected = candidate.record.hits >= self.protected_hits;
        Rank { group: i64::from(protected), order: candidate.record.last }
    }
}

impl EvictionPolicy for Tlru {
    fn rank(&self, candidate: &Candidate) -> Rank {
        let without = u64::from(candidate.position.0) + u64::from(self.latency.0);
        let next = u64::from(candidate.conversation.0) + u64::from(self.next_prompt.0);
        Rank { group: i64::from(without < next), order: candidate.record.last }
    }
}

/// What is recorded of a node's use.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(super) struct Used {
    /// As part of a matched path.
    pub full: Record,
    /// As part of a trailing window.
    pub window: Record,
    /// As the state that a sequence started from.
    pub state: Record,
    /// The highest priority of those who used it.
    pub priority: i64,
    /// Length of the conversation that used it last.
    pub conversation: Tokens,
}

/// Why a path is used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Occasion {
    /// A prompt was matched there: counts as a hit.
    Match,
    /// Pages were published there.
    Publication,
}

impl Record {
    /// Put in the tree at `now`.
    pub(super) fn new(now: Stamp) -> Self {
        Record { last: now, inserted: now, hits: 0 }
    }

    pub(super) fn touch(&mut self, now: Stamp, occasion: Occasion) {
        self.last = now;
        if occasion == Occasion::Match {
            self.hits = self.hits.saturating_add(1);
        }
    }
}

impl Used {
    /// Put in the tree at `now` by `user`.
    pub(super) fn new(now: Stamp, user: &User) -> Self {
        let record = Record::new(now);
        let (priority, conversation) = (user.priority, Tokens(0));
        Used { full: record, window: record, state: record, priority, conversation }
    }
}
