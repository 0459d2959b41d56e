//! Cached pages that a prepare evicts.

use std::collections::BTreeSet;

use super::gate::join;
use super::pool::hull;
use super::{Arena, Question};
use crate::fit::Geometry;
use crate::unit::{Pages, PerPool, PoolId, VirtId};

/// Cached pages that a plan evicts, by pool.
///
/// A full page cannot go alone: the window pages under its id go with it, listed or not.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Victims {
    /// Ids whose page in that pool goes.
    pub pages: PerPool<Vec<VirtId>>,
}

/// Victims with their places, completed and without repeats.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaving {
    /// Ids that lose their page.
    pub(super) ids: PerPool<BTreeSet<u32>>,
    /// The pages that this frees at once.
    pub(super) pages: PerPool<BTreeSet<u32>>,
    /// How many more only become pending, because a lease holds them.
    pub(super) held: PerPool<u32>,
}

impl Victims {
    /// Whether nothing goes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.0.iter().all(Vec::is_empty)
    }

    /// Pages that go, of all pools together.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pages.0.iter().map(Vec::len).sum()
    }
}

impl Leaving {
    /// As a list again, ids ascending.
    pub(super) fn victims(&self) -> Victims {
        let mut victims = Victims::default();
        for (list, ids) in victims.pages.0.iter_mut().zip(&self.ids.0) {
            list.extend(ids.iter().copied().map(VirtId));
        }
        victims
    }
}

impl Arena {
    /// Completes `victims` by the window pages under full pages, and leaves out what is not bound.
    pub(super) fn leaving(&self, victims: &Victims) -> Leaving {
        let mut leaving = Leaving::default();
        for pool in self.chain.pool_ids() {
            let with_full = self.chain.full().filter(|_| self.chain.windows().contains(&pool));
            let under_full = with_full.iter().flat_map(|&full| &victims.pages[full]);
            for &virt in victims.pages[pool].iter().chain(under_full) {
                let Some(page) = self.locate(pool, virt) else { continue };
                if !leaving.ids[pool].insert(virt.0) {
                    continue;
                }
                if self.pools[pool.index()].held.contains(page.0) {
                    leaving.held[pool] += 1;
                } else {
                    leaving.pages[pool].insert(page.0);
                }
            }
        }
        leaving
    }

    /// The numbers after moves, with those pages gone.
    pub(super) fn geometry_without(&self, leaving: &Leaving) -> Geometry {
        let mut geometry = self.geometry(Question::AfterMoves);
        for (pool, tables) in (0..).map(PoolId).zip(&self.pools) {
            let fit = geometry.pool_mut(pool);
            fit.live = Pages(fit.live.0 - leaving.ids[pool].len() as u32);
            fit.pending = Pages(fit.pending.0 + leaving.held[pool]);
            if tables.is_gated() {
                let gone = &leaving.pages[pool];
                let low = tables.live.iter().find(|page| !gone.contains(page));
                let mut high = tables.live.last();
                while let Some(page) = high.filter(|page| gone.contains(page)) {
                    high = page.checked_sub(1).and_then(|at| tables.live.prev_at_or_before(at));
                }
                fit.pins = join(tables.pins_but_gates(), hull(low.into_iter().chain(high)));
            }
        }
        geometry
    }
}
