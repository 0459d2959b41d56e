//! A prepare under way: from its beginning to its commit.

use std::collections::BTreeSet;

use super::plan::{Move, PreparePlan};
use super::{Arena, Grant};
use crate::demand::Demand;
use crate::unit::{PageId, Pages, PerPool, PoolId, VirtId};

/// The right to end the prepare under way, by [`Arena::commit`] or by [`Arena::abort`].
#[derive(Debug)]
#[must_use = "a prepare holds reserved pages until it is committed or aborted"]
pub struct Prepare {
    ticket: u64,
    moves: Vec<Move>,
}

/// Page copies of one pool that may run in any order, or at once: no source is another one's destination.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CopyBatch {
    /// The pool, whose page bytes say how much a pair copies.
    pub pool: PoolId,
    /// From, to.
    pub pairs: Vec<(PageId, PageId)>,
}

/// What the arena must know of a prepare until it ends.
#[derive(Clone, Debug)]
pub(super) struct UnderWay {
    pub(super) ticket: u64,
    pub(super) plan: PreparePlan,
    pub(super) sources: PerPool<BTreeSet<u32>>,
    /// Destinations and the demand's places.
    wanted: PerPool<BTreeSet<u32>>,
}

impl Prepare {
    /// The copies in an order in which they may run one after the other on one stream, at most `pages_max` (at least
    /// one) pages each.
    ///
    /// A batch may overwrite what an earlier one has read: never launch one where an earlier one may have failed.
    #[must_use]
    pub fn batches(&self, pages_max: Pages) -> Vec<CopyBatch> {
        let most = pages_max.index().max(1);
        self.moves
            .chunk_by(|one, next| one.pool == next.pool)
            .flat_map(|moves| moves.chunks(most))
            .map(|moves| CopyBatch {
                pool: moves[0].pool,
                pairs: moves.iter().map(|step| (step.from, step.to)).collect(),
            })
            .collect()
    }

    /// Pages that move.
    #[must_use]
    pub fn moved_pages(&self) -> Pages {
        Pages(self.moves.len() as u32)
    }
}

impl Arena {
    /// Starts a prepare: its destinations and the places of its demand are set aside, nothing else changes yet.
    ///
    /// Sources and victims stay live where they are until the commit. Their bytes may be overwritten before it, a
    /// source's once it was copied: no lease may begin on them ([`Arena::is_moving`]).
    ///
    /// # Panics
    /// If a prepare is under way already, or the plan is stale ([`Arena::is_current`]).
    pub fn begin(&mut self, plan: PreparePlan) -> Prepare {
        assert!(self.under_way.is_none(), "a prepare is under way");
        assert!(self.is_current(&plan), "the plan is stale");
        let mut sources: PerPool<BTreeSet<u32>> = PerPool::default();
        let mut wanted: PerPool<BTreeSet<u32>> = PerPool::default();
        for step in &plan.moves {
            sources[step.pool].insert(step.from.0);
            wanted[step.pool].insert(step.to.0);
        }
        for pool in self.chain.pool_ids() {
            wanted[pool].extend(plan.pages[pool].iter().map(|page| page.0));
        }
        // Against the spans as they are before any of these marks: the new spans are in order, so marks of two pools
        // in one gap are too.
        let rooms: Vec<_> = self.chain.pool_ids().map(|pool| self.room(pool)).collect();
        for (tables, ((low, high), pages)) in
            self.pools.iter_mut().zip(rooms.into_iter().zip(&wanted.0))
        {
            for &page in pages {
                let start = u64::from(page) * tables.page_bytes;
                if tables.occupied.contains(page) {
                    // A victim's page: it is handed over at the commit, or when its owner frees it.
                } else if start >= low && start + tables.page_bytes <= high {
                    tables.reserve(page);
                } else {
                    tables.promise(page);
                }
            }
        }
        self.tickets += 1;
        let prepare = Prepare { ticket: self.tickets, moves: plan.moves.clone() };
        self.under_way = Some(UnderWay { ticket: self.tickets, plan, sources, wanted });
        self.touch();
        self.debug_check();
        prepare
    }

    /// Ends a prepare whose copies have all landed: victims are freed, moves shown in the tables, the demand bound.
    ///
    /// A move whose source was freed meanwhile is dropped.
    ///
    /// # Panics
    /// If `prepare` is not this arena's.
    pub fn commit(&mut self, prepare: Prepare) -> Grant {
        let UnderWay { plan, sources, .. } = self.end(prepare);
        for pool in self.chain.pool_ids() {
            for &virt in &plan.leaving.ids[pool] {
                // A window page may have gone with its full page just now.
                if self.is_bound(pool, VirtId(virt)) {
                    _ = self.unbind(pool, VirtId(virt));
                }
            }
        }
        self.clear_marks(&sources);
        self.relocate(&plan.moves);
        let grant = self.bind_pages(&plan.pages);
        self.touch();
        self.debug_check();
        grant
    }

    /// Whether a prepare is under way.
    #[must_use]
    pub fn is_preparing(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether the page of an id is a source or a victim of the prepare under way: no lease may begin on it.
    #[must_use]
    pub fn is_moving(&self, pool: PoolId, virt: VirtId) -> bool {
        self.is_victim(pool, virt)
            || self.locate(pool, virt).is_some_and(|page| self.is_source(pool, page))
    }

    /// Whether the prepare under way moves pages of `pool`: no gate may close on it.
    #[must_use]
    pub fn is_moving_pool(&self, pool: PoolId) -> bool {
        self.under_way
            .as_ref()
            .is_some_and(|way| pool.index() < way.sources.0.len() && !way.sources[pool].is_empty())
    }

    /// Takes the record of the prepare out, so that frees from here on are real.
    pub(super) fn end(&mut self, prepare: Prepare) -> UnderWay {
        let way = self.under_way.take().filter(|way| way.ticket == prepare.ticket);
        way.expect("I6: a prepare is spent once, on the arena that began it")
    }

    /// Gives up what the ended prepare had set aside, and sources that were freed while it ran.
    pub(super) fn clear_marks(&mut self, sources: &PerPool<BTreeSet<u32>>) {
        for (tables, sources) in self.pools.iter_mut().zip(&sources.0) {
            tables.clear_marks();
            for &page in sources {
                tables.settle(page);
            }
        }
    }

    /// Shows moves that have landed in the tables, but those whose source was freed.
    pub(super) fn relocate<'a>(&mut self, moves: impl IntoIterator<Item = &'a Move>) {
        for step in moves {
            let tables = &mut self.pools[step.pool.index()];
            if tables.live.contains(step.from.0) {
                tables.relocate(step.from.0, step.to.0);
            }
        }
    }

    pub(super) fn is_source(&self, pool: PoolId, page: PageId) -> bool {
        self.under_way.as_ref().is_some_and(|way| way.sources[pool].contains(&page.0))
    }

    pub(super) fn is_wanted(&self, pool: PoolId, page: PageId) -> bool {
        self.under_way.as_ref().is_some_and(|way| way.wanted[pool].contains(&page.0))
    }

    pub(super) fn is_victim(&self, pool: PoolId, virt: VirtId) -> bool {
        self.under_way.as_ref().is_some_and(|way| way.plan.leaving.ids[pool].contains(&virt.0))
    }

    /// A victim that its owner freed before the commit: its id may be someone else's by then.
    pub(super) fn forget_victim(&mut self, pool: PoolId, virt: VirtId) {
        if let Some(way) = &mut self.under_way {
            way.plan.leaving.ids[pool].remove(&virt.0);
        }
    }

    /// Ids that the prepare under way will need beyond those that its victims give.
    pub(super) fn promised_ids(&self, pool: PoolId) -> Pages {
        let (gone, come) = self.under_way_pages(pool);
        Pages(come.0.saturating_sub(gone.0))
    }

    /// Pages that the prepare under way will evict, and bind.
    pub(super) fn under_way_pages(&self, pool: PoolId) -> (Pages, Pages) {
        self.under_way.as_ref().map_or_else(Default::default, |way| {
            (Pages(way.plan.leaving.ids[pool].len() as u32), way.plan.demand.0[pool])
        })
    }

    /// The bytes that a pool may use so that the layout promised to the prepare under way stays within reach.
    pub(super) fn limits(&self, pool: PoolId) -> (u64, u64) {
        let all = (0, self.chain.total().0);
        self.under_way.as_ref().map_or(all, |way| way.plan.limits[pool])
    }

    /// The demand of the prepare under way, if there is one.
    #[must_use]
    pub fn preparing_demand(&self) -> Option<&Demand> {
        self.under_way.as_ref().map(|way| &way.plan.demand)
    }
}
