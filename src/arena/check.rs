//! Every invariant of the arena, checked both ways.

use super::pool::{NONE, Pool};
use super::{Arena, PageSet};
use crate::unit::{PageId, PerPool, PoolId, VirtId};

/// A broken invariant, by number and short name.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Violation {
    /// A page is not exactly one of free, live, pending, reserved and promised.
    #[error("I1 page-states: page {page:?} of pool {pool:?} is in {states} states")]
    PageStates {
        /// The pool.
        pool: PoolId,
        /// The page.
        page: PageId,
        /// In how many sets it is.
        states: usize,
    },
    /// Live, holes, pending and reserved do not add up to the span.
    #[error("I1 span-adds-up: pool {pool:?} counts {counted} pages in a span of {span}")]
    SpanSum {
        /// The pool.
        pool: PoolId,
        /// The four counts together.
        counted: u32,
        /// Pages of the span.
        span: u32,
    },
    /// A pool starts before a lower one ends, or leaves the arena.
    #[error("I2 span-order: pool {pool:?} starts at byte {start}, what is below ends at {floor}")]
    SpanOrder {
        /// The pool.
        pool: PoolId,
        /// Its first byte.
        start: u64,
        /// The end of what is below, the sink included.
        floor: u64,
    },
    /// An id and a page do not point at each other.
    #[error("I3 tables-inverse: id {virt:?} and page {page:?} of pool {pool:?} disagree")]
    Tables {
        /// The pool.
        pool: PoolId,
        /// The id.
        virt: VirtId,
        /// The page.
        page: PageId,
    },
    /// An id is both bound and free, or neither.
    #[error("I5 ids-add-up: id {virt:?} of pool {pool:?} is not either bound or free")]
    Ids {
        /// The pool.
        pool: PoolId,
        /// The id.
        virt: VirtId,
    },
    /// A window page under an id without a full page.
    #[error("I5 window-under-full: id {virt:?} has a page in pool {pool:?} but no full page")]
    WindowAlone {
        /// The window pool.
        pool: PoolId,
        /// The id.
        virt: VirtId,
    },
    /// A page's holds are not those of the open leases, or it is held though free.
    #[error(
        "I6 holds-add-up: page {page:?} of pool {pool:?} has {holds} holds, leases give {leases}"
    )]
    Holds {
        /// The pool.
        pool: PoolId,
        /// The page.
        page: PageId,
        /// Counted on the page.
        holds: u32,
        /// Counted over the leases.
        leases: u32,
    },
    /// A page is pending, but nothing can touch it any more.
    #[error("I6 pending-is-touched: page {page:?} of pool {pool:?} waits for nothing")]
    Idle {
        /// The pool.
        pool: PoolId,
        /// The page.
        page: PageId,
    },
    /// A pool counts other gates than are closed, or pages of a gated pool, or held ones, are to move.
    #[error(
        "I6 gates-hold: pool {pool:?} counts {counted} gates, {closed} are closed, {moving} pages are to move"
    )]
    Gates {
        /// The pool.
        pool: PoolId,
        /// Counted on the pool.
        counted: u32,
        /// Counted over the gates.
        closed: u32,
        /// Gated or held pages that the prepare under way would move.
        moving: usize,
    },
}

impl Arena {
    /// Checks every invariant and names the first that is broken.
    ///
    /// - I1 `page-states`, `span-adds-up`: a usable page is in one state; the states add up to the span.
    /// - I2 `span-order`: spans follow the chain and stay above the sink.
    /// - I3 `tables-inverse`: id to page and page to id are inverse on live pages, and map nothing else.
    /// - I5 `ids-add-up`, `window-under-full`: an id is bound or free; a bound window id is a bound full id.
    /// - I6 `holds-add-up`, `pending-is-touched`, `gates-hold`: recounts of leases and gates.
    ///
    /// O(pages + ids).
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self) -> Result<(), Violation> {
        let mut floor = self.chain.sink().0;
        for (pool, tables) in (0..).map(PoolId).zip(&self.pools) {
            check_states(pool, tables)?;
            if let Some((start, end)) = tables.span_bytes() {
                if start < floor || end > self.chain.total().0 {
                    return Err(Violation::SpanOrder { pool, start, floor });
                }
                floor = end;
            }
            check_tables(pool, tables)?;
            self.check_ids(pool, tables)?;
            self.check_gates(pool, tables)?;
        }
        self.check_holds()
    }

    fn check_ids(&self, pool: PoolId, tables: &Pool) -> Result<(), Violation> {
        let owner = self.owner_of_ids(pool);
        for virt in (0..tables.place.len() as u32).map(VirtId) {
            let bound = tables.page_of(virt).is_some();
            let free = self.free_ids[owner].as_ref().is_some_and(|ids| ids.contains(virt.0));
            if owner == pool && bound == free {
                return Err(Violation::Ids { pool, virt });
            }
            if owner != pool && bound && self.pools[owner.index()].page_of(virt).is_none() {
                return Err(Violation::WindowAlone { pool, virt });
            }
        }
        Ok(())
    }

    fn check_gates(&self, pool: PoolId, tables: &Pool) -> Result<(), Violation> {
        let closed = self.gates.values().filter(|pools| pools.contains(&pool)).count() as u32;
        let sources = self.under_way.iter().flat_map(|way| &way.sources[pool]);
        let moving =
            sources.filter(|&&page| tables.is_gated() || tables.held.contains(page)).count();
        if closed == tables.gates && moving == 0 {
            return Ok(());
        }
        Err(Violation::Gates { pool, counted: tables.gates, closed, moving })
    }

    fn check_holds(&self) -> Result<(), Violation> {
        let mut leases: PerPool<std::collections::BTreeMap<u32, u32>> = PerPool::default();
        for &(pool, page) in self.leases.values().flatten() {
            *leases[pool].entry(page.0).or_default() += 1;
        }
        for (pool, tables) in (0..).map(PoolId).zip(&self.pools) {
            let leases = &leases[pool];
            for &page in tables.holds.keys().chain(leases.keys()) {
                let counted = tables.holds.get(&page).copied().unwrap_or(0);
                let given = leases.get(&page).copied().unwrap_or(0);
                let is_there = tables.live.contains(page) || tables.pending.contains(page);
                if counted != given || !is_there || !tables.held.contains(page) {
                    let page = PageId(page);
                    return Err(Violation::Holds { pool, page, holds: counted, leases: given });
                }
            }
            let idle =
                |&page: &u32| !leases.contains_key(&page) && !self.is_source(pool, PageId(page));
            if let Some(page) = tables.pending.iter().find(idle).map(PageId) {
                return Err(Violation::Idle { pool, page });
            }
            if tables.held.count() as usize != leases.len() {
                let page = PageId(tables.held.first().unwrap_or(0));
                let holds = tables.held.count();
                return Err(Violation::Holds { pool, page, holds, leases: leases.len() as u32 });
            }
        }
        Ok(())
    }
}

fn check_states(pool: PoolId, tables: &Pool) -> Result<(), Violation> {
    let sets: [&PageSet; 5] =
        [&tables.free, &tables.live, &tables.pending, &tables.reserved, &tables.promised];
    for page in 0..tables.grid {
        let states = sets.iter().filter(|set| set.contains(page)).count();
        let occupied = sets[1..4].iter().any(|set| set.contains(page));
        let wanted = usize::from(page >= tables.first);
        if states != wanted || occupied != tables.occupied.contains(page) {
            return Err(Violation::PageStates { pool, page: PageId(page), states });
        }
    }
    let counts = tables.counts();
    let counted = counts.live.0 + counts.holes.0 + counts.pending.0 + counts.reserved.0;
    let span = tables.span().map_or(0, |span| span.len());
    let free_inside = tables.span().map_or(0, |span| {
        let free = [&tables.free, &tables.promised];
        free.iter().map(|set| set.range(span.start, span.end).count() as u32).sum()
    });
    if counted != span || counts.holes.0 != free_inside {
        return Err(Violation::SpanSum { pool, counted, span });
    }
    Ok(())
}

fn check_tables(pool: PoolId, tables: &Pool) -> Result<(), Violation> {
    for (virt, &page) in (0..).map(VirtId).zip(&tables.place) {
        if page != NONE && tables.owner[page as usize] != virt.0 {
            return Err(Violation::Tables { pool, virt, page: PageId(page) });
        }
    }
    for (page, &virt) in (0..).map(PageId).zip(&tables.owner) {
        let live = tables.live.contains(page.0);
        let mapped = virt != NONE && tables.place.get(virt as usize) == Some(&page.0);
        if live != mapped || (virt != NONE) != live {
            return Err(Violation::Tables { pool, virt: VirtId(virt), page });
        }
    }
    Ok(())
}
