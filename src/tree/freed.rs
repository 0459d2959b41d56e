//! The feasibility question while pages are given back and taken back.

use crate::demand::Demand;
use crate::fit::{Bound, Geometry, Pins};
use crate::unit::{PageId, PoolId, VirtId};
use std::collections::BTreeSet;

/// What a plan must know of pools whose live pages may not move: a page given back at an edge of what is pinned moves
/// that edge, one inside is only a hole.
pub trait PinnedPages {
    /// The page bound to `virt`, if the pool's live pages may not move; `None` for every other pool.
    fn page(&self, pool: PoolId, virt: VirtId) -> Option<PageId>;

    /// The nearest pinned page above `page`.
    fn above(&self, pool: PoolId, page: PageId) -> Option<PageId>;

    /// The nearest pinned page below `page`.
    fn below(&self, pool: PoolId, page: PageId) -> Option<PageId>;
}

/// A geometry with pages given back.
#[derive(Clone)]
pub(super) struct Freed<'a> {
    geometry: Geometry,
    demand: Demand,
    pinned: Option<&'a dyn PinnedPages>,
    /// Pages given back in pools that may not move.
    gone: BTreeSet<(PoolId, PageId)>,
    asked: u64,
}

impl<'a> Freed<'a> {
    pub(super) fn new(
        geometry: Geometry,
        demand: Demand,
        pinned: Option<&'a dyn PinnedPages>,
    ) -> Self {
        Freed { geometry, demand, pinned, gone: BTreeSet::new(), asked: 0 }
    }

    /// Whether the demand fits by now. O(pools).
    pub(super) fn fits(&mut self) -> Result<(), Bound> {
        self.asked += 1;
        self.geometry.fits(&self.demand)
    }

    /// How often that was asked.
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    /// Gives a page back. O(log n), and O(holes passed) where an edge moves.
    pub(super) fn free(&mut self, pool: PoolId, virt: VirtId) {
        let fit = self.geometry.pool_mut(pool);
        fit.live.0 = fit.live.0.saturating_sub(1);
        let Some(pinned) = self.pinned else { return };
        let Some(page) = pinned.page(pool, virt) else { return };
        self.gone.insert((pool, page));
        let Some(Pins { lo, hi }) = fit.pins else { return };
        let gone = |page: &PageId| self.gone.contains(&(pool, *page));
        let lo = std::iter::successors(Some(lo), |&page| pinned.above(pool, page))
            .find(|page| !gone(page));
        let hi = std::iter::successors(Some(hi), |&page| pinned.below(pool, page))
            .find(|page| !gone(page));
        fit.pins = lo.zip(hi).map(|(lo, hi)| Pins { lo, hi });
    }

    /// Takes a page back that was given back.
    pub(super) fn restore(&mut self, pool: PoolId, virt: VirtId) {
        let fit = self.geometry.pool_mut(pool);
        fit.live.0 += 1;
        let Some(page) = self.pinned.and_then(|pinned| pinned.page(pool, virt)) else { return };
        self.gone.remove(&(pool, page));
        fit.pins = Some(match fit.pins {
            Some(Pins { lo, hi }) => Pins { lo: lo.min(page), hi: hi.max(page) },
            None => Pins { lo: page, hi: page },
        });
    }
}
