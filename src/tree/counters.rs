//! What the tree holds, counted.

use super::hold::Held;
use super::shape::Shape;
use crate::unit::{Pages, PerPool, PoolId, Tokens};

/// Pages (slots, of a state pool) that the tree holds, and the tokens they can serve.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// In the tree, locked or not.
    pub cached: PerPool<Pages>,
    /// In the tree and in use by an open sequence.
    pub locked: PerPool<Pages>,
    /// In the tree and kept by a pin; what is locked too counts in both.
    pub pinned: PerPool<Pages>,
    /// In the tree and locked or pinned.
    pub held: PerPool<Pages>,
    /// Cached full pages at or before a serviceable boundary on some path.
    pub matchable_pages: u64,
    /// Tokens of a page.
    pub page_tokens: Tokens,
}

impl Counters {
    pub(super) fn new(shape: &Shape) -> Self {
        Counters { page_tokens: Tokens(shape.page_tokens), ..Counters::default() }
    }

    /// Held by the tree only.
    #[must_use]
    pub fn evictable(&self, pool: PoolId) -> Pages {
        Pages(self.cached[pool].0.saturating_sub(self.held[pool].0))
    }

    /// Held by the tree only, of every pool.
    #[must_use]
    pub fn all_evictable(&self) -> PerPool<Pages> {
        let mut all = PerPool::default();
        for pool in (0..).map(PoolId).take(all.0.len()) {
            all[pool] = self.evictable(pool);
        }
        all
    }

    /// Tokens that some prompt could still be served.
    #[must_use]
    pub fn matchable(&self) -> Tokens {
        tokens(self.matchable_pages, self.page_tokens.0)
    }

    pub(super) fn add_cached(&mut self, pool: PoolId, pages: u32) {
        self.cached[pool].0 += pages;
    }

    pub(super) fn remove_cached(&mut self, pool: PoolId, pages: u32) {
        self.cached[pool].0 -= pages;
    }

    /// The held pages of one place went from `was` to `now`.
    pub(super) fn held_changed(&mut self, pool: PoolId, was: Held, now: Held) {
        self.locked[pool].0 = self.locked[pool].0 + now.locked - was.locked;
        self.pinned[pool].0 = self.pinned[pool].0 + now.pinned - was.pinned;
        self.held[pool].0 = self.held[pool].0 + now.any - was.any;
    }
}

/// Tokens of `pages` pages, capped at what [`Tokens`] can count.
pub(super) fn tokens(pages: u64, page_tokens: u32) -> Tokens {
    Tokens(pages.saturating_mul(u64::from(page_tokens)).try_into().unwrap_or(u32::MAX))
}
