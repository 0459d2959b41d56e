//! Giving a prepare up after a copy failed, or nobody wants it any more.

use std::collections::BTreeSet;

use super::plan::{Move, overlapped};
use super::prepare::{CopyBatch, Prepare, UnderWay};
use super::victims::Victims;
use super::{Arena, PageSet};
use crate::unit::{Bytes, Pages, PerPool, PoolId, VirtId};

/// How far the copies of a prepare got, in pages of its batches in their order.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CopiedBatches {
    /// Pages of the batches that have landed.
    pub landed: Pages,
    /// Pages of the batches that may have written anything, those that landed included.
    pub launched: Pages,
}

/// What an abort could not keep as it was.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Aborted {
    /// Victims that were freed, because a copy may have written over them, or because a page that cannot go back now
    /// lies beyond them. The other victims are live as before.
    pub lost: Victims,
    /// Pages whose move stays.
    pub moved: Pages,
    /// Their bytes.
    pub moved_bytes: Bytes,
}

impl CopiedBatches {
    /// The first `landed` of `batches` have landed, the first `launched` (no fewer) may have written.
    #[must_use]
    pub fn of(batches: &[CopyBatch], landed: usize, launched: usize) -> Self {
        let pages = |count: usize| {
            Pages(batches.iter().take(count).map(|batch| batch.pairs.len() as u32).sum())
        };
        CopiedBatches { landed: pages(landed), launched: pages(launched.max(landed)) }
    }
}

impl Arena {
    /// Ends a prepare without its demand. Nothing is lost but victims whose page a copy may have overwritten.
    ///
    /// Moves that have landed stay where that leaves the spans in order: those that fill holes of their own pool, and
    /// those of pools whose old places another pool's copies have overwritten. The rest are undone.
    ///
    /// The caller has launched no batch before all earlier ones had landed, or on a stream that stops at the first
    /// failure: copies that nobody launched must not have written.
    ///
    /// # Panics
    /// If `prepare` is not this arena's.
    pub fn abort(&mut self, prepare: Prepare, copied: CopiedBatches) -> Aborted {
        let way = self.end(prepare);
        let moves = &way.plan.moves;
        let launched = &moves[..copied.launched.index().min(moves.len())];
        let landed = &launched[..copied.landed.index().min(launched.len())];
        let forced = self.forced(&way, landed, launched);
        let spans: Vec<_> = self.pools.iter().map(|pool| pool.span()).collect();
        let stays = |step: &&Move| {
            let inside = spans[step.pool.index()].is_some_and(|span| span.contains(step.to.0));
            let still_live = self.pools[step.pool.index()].live.contains(step.from.0);
            still_live && (inside || forced >> step.pool.0 & 1 == 1)
        };
        let kept: Vec<Move> = landed.iter().filter(stays).copied().collect();
        let lost = self.lost(&way, launched, &kept);
        for pool in self.chain.pool_ids() {
            for &virt in &lost.pages[pool] {
                // A window page may have gone with its full page just now.
                if self.is_bound(pool, virt) {
                    _ = self.unbind(pool, virt);
                }
            }
        }
        self.clear_marks(&way.sources);
        self.relocate(&kept);
        self.touch();
        self.debug_check();
        let page_bytes = |step: &Move| self.pools[step.pool.index()].page_bytes;
        let moved_bytes = Bytes(kept.iter().map(page_bytes).sum());
        Aborted { lost, moved: Pages(kept.len() as u32), moved_bytes }
    }

    /// Pools that cannot go back, as bits: another pool's copies may have written over their old places; and with them
    /// the pools that had to make way for these.
    fn forced(&self, way: &UnderWay, landed: &[Move], launched: &[Move]) -> u8 {
        let mut forced = 0_u8;
        let mut sources: PerPool<BTreeSet<u32>> = PerPool::default();
        for step in landed {
            sources[step.pool].insert(step.from.0);
        }
        for step in launched {
            let (start, end) = self.bytes_of(step);
            for (pool, tables) in (0..).map(PoolId).zip(&self.pools) {
                if pool != step.pool && overlapped(tables, &sources[pool], start, end) > 0 {
                    forced |= 1 << pool.0;
                }
            }
        }
        // At most one round for each pool, since every round adds one.
        for _ in &self.pools {
            for pool in self.chain.pool_ids() {
                if forced >> pool.0 & 1 == 1 {
                    forced |= way.plan.after[pool];
                }
            }
        }
        forced
    }

    /// Victims under bytes that a copy may have written, or out of order once the `kept` moves stay.
    fn lost(&self, way: &UnderWay, launched: &[Move], kept: &[Move]) -> Victims {
        let mut lost: PerPool<BTreeSet<u32>> = PerPool::default();
        for (pool, tables) in (0..).map(PoolId).zip(&self.pools) {
            let (floor, ceiling) = self.neighbours(way, kept, pool);
            for &virt in &way.plan.leaving.ids[pool] {
                let Some(page) = tables.page_of(VirtId(virt)) else { continue };
                let start = u64::from(page) * tables.page_bytes;
                let end = start + tables.page_bytes;
                let written = launched.iter().any(|step| {
                    let (from, to) = self.bytes_of(step);
                    from < end && start < to
                });
                if written || start < floor || end > ceiling {
                    lost[pool].insert(virt);
                }
            }
        }
        self.with_windows(way, lost)
    }

    /// A full page takes the window pages under it along.
    fn with_windows(&self, way: &UnderWay, mut lost: PerPool<BTreeSet<u32>>) -> Victims {
        if let Some(full) = self.chain.full() {
            for &window in self.chain.windows() {
                let under = &way.plan.leaving.ids[window] & &lost[full];
                lost[window].extend(under);
            }
        }
        let mut victims = Victims::default();
        for (list, ids) in victims.pages.0.iter_mut().zip(lost.0) {
            list.extend(ids.into_iter().map(VirtId));
        }
        victims
    }

    /// Where the pools below end and those above start, victims apart, once the `kept` moves stay.
    fn neighbours(&self, way: &UnderWay, kept: &[Move], pool: PoolId) -> (u64, u64) {
        let (mut floor, mut ceiling) = (0, self.chain.total().0);
        for (other, tables) in (0..).map(PoolId).zip(&self.pools).filter(|(id, _)| *id != pool) {
            let mut stays = PageSet::new(tables.grid);
            for page in tables.live.iter().chain(tables.pending.iter()) {
                let virt = tables.owner[page as usize];
                let settles = tables.pending.contains(page) && !tables.held.contains(page);
                if !settles && !way.plan.leaving.ids[other].contains(&virt) {
                    stays.insert(page);
                }
            }
            for step in kept.iter().filter(|step| step.pool == other) {
                stays.remove(step.from.0);
                stays.insert(step.to.0);
            }
            let Some((low, high)) = stays.first().zip(stays.last()) else { continue };
            if other < pool {
                floor = floor.max((u64::from(high) + 1) * tables.page_bytes);
            } else {
                ceiling = ceiling.min(u64::from(low) * tables.page_bytes);
            }
        }
        (floor, ceiling)
    }

    fn bytes_of(&self, step: &Move) -> (u64, u64) {
        let page_bytes = self.pools[step.pool.index()].page_bytes;
        let start = u64::from(step.to.0) * page_bytes;
        (start, start + page_bytes)
    }
}
