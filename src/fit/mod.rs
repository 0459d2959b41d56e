//! Feasibility: one pure function over a small copyable value (design section 4).
//!
//! *Can every pool hold its live pages and the demand, in chain order on its own page grid, while its pins stay where
//! they are?* The answer is exact: `tests/exhaustive_fit.rs` compares it with a search over all placements.

use crate::chain::{Chain, Grow};
use crate::demand::Demand;
use crate::unit::{Bytes, POOLS_MAX, PageId, Pages, PoolId};

/// The lowest and the highest page of a pool that may not move.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pins {
    /// Lowest pinned page.
    pub lo: PageId,
    /// Highest pinned page, the same one perhaps.
    pub hi: PageId,
}

/// A few numbers that say all about one pool that feasibility depends on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PoolFit {
    /// Bytes of one page.
    pub page_bytes: Bytes,
    /// Pages on the grid, those under the sink included.
    pub grid: Pages,
    /// First page wholly above the sink.
    pub first: Pages,
    /// The most pages that may be live at once (grid, cap and ids together).
    pub ids: Pages,
    /// Pages bound to a virtual id.
    pub live: Pages,
    /// Pages freed, but something may still touch them.
    pub pending: Pages,
    /// Pages promised to a prepare under way.
    pub reserved: Pages,
    /// Virtual ids promised to a prepare under way.
    pub promised: Pages,
    /// Pages that may not move, if any.
    pub pins: Option<Pins>,
    /// Whether the pool grows from the top.
    pub grow: Grow,
}

/// All about an arena that feasibility depends on. Plain numbers: copied into plans, changed there at will.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    pools: [PoolFit; POOLS_MAX],
    count: u8,
}

/// The bound that refuses a demand.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Bound {
    /// More pages than the pool may have live at once.
    #[error("pool {pool:?} would have {wanted} live, its ids and cap allow {ids}")]
    Ids {
        /// The pool.
        pool: PoolId,
        /// Live pages after the demand.
        wanted: Pages,
        /// Live pages allowed.
        ids: Pages,
    },
    /// The pools, packed from below, do not fit under the top, or under a page that may not move.
    #[error("packed as tightly as grid and pins allow, pool {pool:?} is {missing} short")]
    Bytes {
        /// The first pool, from below, without room.
        pool: PoolId,
        /// Bytes short, on that pool's grid.
        missing: Bytes,
    },
}

impl Bound {
    /// The pool that the bound is about.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        match self {
            Bound::Ids { pool, .. } | Bound::Bytes { pool, .. } => *pool,
        }
    }
}

impl PoolFit {
    /// Pages that must have a place once `demand` more are wanted.
    fn pages_after(&self, demand: Pages) -> u64 {
        [self.live, self.pending, self.reserved, demand]
            .iter()
            .map(|pages| u64::from(pages.0))
            .sum()
    }
}

impl Geometry {
    /// The empty arena of `chain`: nothing live, nothing pinned.
    #[must_use]
    pub fn empty(chain: &Chain) -> Self {
        let unused = PoolFit {
            page_bytes: Bytes(1),
            grid: Pages(0),
            first: Pages(0),
            ids: Pages(0),
            live: Pages(0),
            pending: Pages(0),
            reserved: Pages(0),
            promised: Pages(0),
            pins: None,
            grow: Grow::Float,
        };
        let mut pools = [unused; POOLS_MAX];
        for pool in chain.pool_ids() {
            pools[pool.index()] = PoolFit {
                page_bytes: chain.pool(pool).page_bytes,
                grid: chain.grid_pages(pool),
                first: chain.first_page(pool),
                ids: chain.pages_max(pool),
                grow: chain.pool(pool).grow,
                ..unused
            };
        }
        Geometry { pools, count: chain.pool_ids().len() as u8 }
    }

    /// One pool's numbers.
    #[must_use]
    pub fn pool(&self, pool: PoolId) -> &PoolFit {
        &self.pools[..usize::from(self.count)][pool.index()]
    }

    /// One pool's numbers, to be changed.
    pub fn pool_mut(&mut self, pool: PoolId) -> &mut PoolFit {
        &mut self.pools[..usize::from(self.count)][pool.index()]
    }

    /// Every pool, in byte order.
    pub fn pools(&self) -> impl Iterator<Item = (PoolId, &PoolFit)> {
        (0..).map(PoolId).zip(&self.pools[..usize::from(self.count)])
    }

    /// Whether `demand` can be met: live pages and demand have places while pins stay. Exact, O(pools).
    ///
    /// # Errors
    /// The first bound that refuses: ids before bytes, then from below.
    pub fn fits(&self, demand: &Demand) -> Result<(), Bound> {
        for (pool, fit) in self.pools() {
            let wanted = fit.live.0.saturating_add(fit.promised.0).saturating_add(demand.0[pool].0);
            if wanted > fit.ids.0 {
                return Err(Bound::Ids { pool, wanted: Pages(wanted), ids: fit.ids });
            }
        }
        let mut prev = 0;
        for (pool, fit) in self.pools() {
            prev = pack(fit, fit.pages_after(demand.0[pool]), prev)
                .map_err(|missing| Bound::Bytes { pool, missing })?;
        }
        Ok(())
    }

    /// Bytes by which the pools and `demand`, packed from below as tightly as grids and pins allow, overrun the arena.
    ///
    /// Grows with every page of any pool; 0 whenever [`Geometry::fits`] and only ids or pins refuse otherwise. O(pools).
    #[must_use]
    pub fn overrun(&self, demand: &Demand) -> Bytes {
        let (mut prev, mut over) = (0_u64, 0_u64);
        for (pool, fit) in self.pools() {
            let n = fit.pages_after(demand.0[pool]);
            if n == 0 {
                continue;
            }
            let page_bytes = fit.page_bytes.0;
            let start = u64::from(fit.first.0).max(prev.div_ceil(page_bytes));
            let hi = fit.pins.map_or(0, |pins| u64::from(pins.hi.0) + 1);
            let end = if fit.grow == Grow::Down { start + n } else { (start + n).max(hi) };
            prev = end.saturating_mul(page_bytes);
            let top = u64::from(fit.grid.0) * page_bytes;
            over = over.max(prev.saturating_sub(top));
        }
        Bytes(over)
    }

    /// Whether `demand` could be met by this chain with nothing live and nothing pinned.
    ///
    /// # Errors
    /// The bound that makes it impossible.
    pub fn fits_empty(&self, demand: &Demand) -> Result<(), Bound> {
        let mut empty = *self;
        for fit in &mut empty.pools {
            (fit.live, fit.pending, fit.reserved, fit.promised) = Default::default();
            fit.pins = None;
        }
        empty.fits(demand)
    }
}

/// The smallest byte that `n` pages of one pool can end at, when all below it ends at `prev`; or the bytes missing.
fn pack(fit: &PoolFit, n: u64, prev: u64) -> Result<u64, Bytes> {
    if n == 0 {
        return Ok(prev);
    }
    let page_bytes = fit.page_bytes.0;
    let (grid, first) = (u64::from(fit.grid.0), u64::from(fit.first.0));
    let pinned = |page: PageId| u64::from(page.0);
    if fit.grow == Grow::Down {
        let low = fit.pins.map_or(grid, |pins| pinned(pins.lo)).min(grid.saturating_sub(n));
        let floor = first.max(prev.div_ceil(page_bytes));
        let missing = (floor + n).saturating_sub(grid).max(floor.saturating_sub(low));
        return if missing == 0 { Ok(grid * page_bytes) } else { Err(Bytes(missing * page_bytes)) };
    }
    let start = first.max(prev.div_ceil(page_bytes));
    let (lo, hi) = fit.pins.map_or((start, 0), |pins| (pinned(pins.lo), pinned(pins.hi) + 1));
    let end = (start + n).max(hi);
    let missing = start.saturating_sub(lo).max(end.saturating_sub(grid));
    if missing == 0 { Ok(end * page_bytes) } else { Err(Bytes(missing * page_bytes)) }
}
