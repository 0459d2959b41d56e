//! What the service says of itself: totals, states, explanations.

use std::sync::Arc;

use kvtide_core::arena::Counts;
use kvtide_core::unit::{Bytes, Pages, PerPool, Tokens};

use crate::error::AllocError;

/// Sums since the service started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Totals {
    /// Sequences opened.
    pub opened: u64,
    /// Tokens that matches spared, counted once, when the sequence is opened.
    pub hit_tokens: u64,
    /// Prompt tokens that had to be computed.
    pub miss_tokens: u64,
    /// Allocations granted.
    pub granted: u64,
    /// Allocations refused or failed, by variant: see [`OUTCOMES`].
    pub refused: [u64; OUTCOMES.len()],
    /// Reclaim plans made.
    pub plans: u64,
    /// Pages evicted, per pool.
    pub evicted: PerPool<u64>,
    /// Matchable tokens that evictions cost.
    pub matchable_lost: u64,
    /// Prepare phases.
    pub prepares: u64,
    /// Pages moved.
    pub moved_pages: u64,
    /// Bytes moved.
    pub moved_bytes: Bytes,
    /// Nanoseconds from the launch of copies to their completion.
    pub copy_nanos: u64,
    /// Allocations that had to wait.
    pub waits: u64,
    /// Nanoseconds waited.
    pub wait_nanos: u64,
}

/// Names of the ways in which an allocation can be refused, in the order of [`Totals::refused`].
pub const OUTCOMES: [&str; 8] = [
    "impossible",
    "exhausted",
    "moves_gated",
    "timed_out",
    "busy",
    "copy_failed",
    "invalid",
    "service",
];

/// One pool at one moment. Pages; slots, of a state pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PoolStats {
    /// The pool's name.
    pub name: Arc<str>,
    /// Tokens that one page counts for at the API's edge: 1 for a state pool.
    pub page_tokens: Tokens,
    /// Bytes of one page.
    pub page_bytes: Bytes,
    /// The most pages that can be live at once.
    pub capacity: Pages,
    /// Pages by state.
    pub counts: Counts,
    /// What the pool alone could take now, moving and evicting nothing.
    pub free: Pages,
    /// In the tree, locked or not.
    pub cached: Pages,
    /// In the tree and in use.
    pub locked: Pages,
    /// In the tree and kept by a pin; what is in use too counts in both.
    pub pinned: Pages,
    /// In the tree only.
    pub evictable: Pages,
}

/// The service at one moment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stats {
    /// The arena's bytes.
    pub total: Bytes,
    /// The sink's bytes.
    pub sink: Bytes,
    /// Pools in byte order.
    pub pools: Vec<PoolStats>,
    /// Cached tokens that some prompt could still be served, by a recount.
    pub matchable: Tokens,
    /// Open sequences.
    pub sequences: u64,
    /// Allocations waiting for memory.
    pub waiting: u64,
    /// Open leases.
    pub leases: u64,
    /// Closed gates.
    pub gates: u64,
    /// Sums since the start.
    pub totals: Totals,
}

/// What an allocation of some demand would do now.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Explanation {
    /// Whether it fits with nothing moved.
    pub fits_now: bool,
    /// Whether it fits once pages are moved, under gates and leases as they are.
    pub fits_after_moves: bool,
    /// What would have to go, and move; or why it would be refused.
    pub verdict: Result<Plan, AllocError>,
}

/// What an allocation would cost.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// Pages to evict, per pool.
    pub evicted: PerPool<Pages>,
    /// Matchable tokens lost.
    pub matchable_lost: u64,
    /// Bytes to move.
    pub moved_bytes: Bytes,
}

/// What a verification covered.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Verified {
    /// Live pages.
    pub pages: u64,
    /// Pages whose content was read and compared; none by an engine without bytes.
    pub compared: u64,
}
