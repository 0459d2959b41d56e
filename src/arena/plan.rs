//! Plans for making room: which pages move where, which go, and where a demand's pages will lie.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::Arena;
use super::pool::{Pool, Span};
use super::target::{self, Ask};
use super::victims::{Leaving, Victims};
use crate::chain::Grow;
use crate::demand::Demand;
use crate::fit::Bound;
use crate::unit::{Bytes, PageId, Pages, PerPool, PoolId};

/// One page of one pool that moves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Move {
    /// The pool.
    pub pool: PoolId,
    /// Where the page is.
    pub from: PageId,
    /// Where it will be.
    pub to: PageId,
}

/// Moves, victims and places worked out against one epoch of an arena; nothing has changed yet.
#[derive(Clone, Debug)]
pub struct PreparePlan {
    pub(super) epoch: u64,
    pub(super) demand: Demand,
    /// Pool by pool, so that no destination is bytes that a later move still reads.
    pub(super) moves: Vec<Move>,
    /// Places of the demand.
    pub(super) pages: PerPool<Vec<PageId>>,
    pub(super) leaving: Leaving,
    /// Bytes that each pool may use so that the final layout stays in order.
    pub(super) limits: PerPool<(u64, u64)>,
    /// Bit `j` of pool `i`: the moves of `j` must land before those of `i` start.
    pub(super) after: PerPool<u8>,
    pub(super) bytes: Bytes,
}

impl PreparePlan {
    /// Whether there is nothing to do: no move, no victim, no demand.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty() && self.demand.is_empty() && self.leaving.ids == PerPool::default()
    }

    /// The moves in the order in which they may be executed.
    #[must_use]
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// Pages that move, of all pools together.
    #[must_use]
    pub fn moved_pages(&self) -> Pages {
        Pages(self.moves.len() as u32)
    }

    /// Pages of one pool that move.
    #[must_use]
    pub fn moved_pages_of(&self, pool: PoolId) -> Pages {
        Pages(self.moves.iter().filter(|step| step.pool == pool).count() as u32)
    }

    /// Bytes that move.
    #[must_use]
    pub fn moved_bytes(&self) -> Bytes {
        self.bytes
    }

    /// What goes: the victims as given, with the window pages under full pages, without ids that are not bound.
    #[must_use]
    pub fn victims(&self) -> Victims {
        self.leaving.victims()
    }

    /// What will be bound at the commit.
    #[must_use]
    pub fn demand(&self) -> &Demand {
        &self.demand
    }
}

impl Arena {
    /// Whether a plan still speaks of this arena as it is.
    #[must_use]
    pub fn is_current(&self, plan: &PreparePlan) -> bool {
        plan.epoch == self.epoch
    }

    /// Works out how to make room for `demand` when `victims` go: the fewest bytes moved, exactly.
    ///
    /// Changes nothing. Destinations are free pages before those of victims, so that a failed copy ruins few.
    /// O(slack pages + moves × log n).
    ///
    /// # Errors
    /// The bound that refuses even with all moves that gates, leases and pending pages allow.
    pub fn plan_prepare(&self, demand: &Demand, victims: &Victims) -> Result<PreparePlan, Bound> {
        self.check_windows(demand)?;
        let leaving = self.leaving(victims);
        let geometry = self.geometry_without(&leaving);
        geometry.fits(demand)?;
        let mut seated = Vec::new();
        let mut asks = Vec::new();
        for (pool, fit) in geometry.pools() {
            // A pool's pages fit its grid, which 32 bits count, or `fits` had refused.
            let pages = fit.live.0 + fit.pending.0 + fit.reserved.0 + demand.0[pool].0;
            if pages > 0 {
                seated.push(pool);
                let (tables, leaving) = (&self.pools[pool.index()], &leaving.pages[pool]);
                asks.push(Ask { pool: tables, pages, pins: fit.pins, leaving });
            }
        }
        let spans = target::solve(&asks, self.chain.total().0)
            .expect("I2: the spans exist, since `fits` has packed these pools under the same pins");
        let mut targets = PerPool::default();
        let mut moves = PerPool::default();
        let mut pages = PerPool::default();
        for ((&pool, ask), &span) in seated.iter().zip(&asks).zip(&spans) {
            targets[pool] = Some(span);
            let sources = ask.sources(span);
            let wanted = sources.len() + demand.0[pool].index();
            let mut places = self.destinations(pool, span, &leaving, wanted);
            pages[pool] = places.split_off(sources.len().min(places.len()));
            moves[pool] = pair(pool, &sources, &places);
        }
        Ok(self.assemble(*demand, leaving, &targets, moves, pages))
    }

    /// A plan that only moves pages inside the spans of their pools.
    pub(super) fn plan_inside(&self, moves: PerPool<Vec<Move>>) -> Option<PreparePlan> {
        let none = PerPool::default();
        let plan =
            self.assemble(Demand::default(), Leaving::default(), &none, moves, PerPool::default());
        (!plan.moves.is_empty()).then_some(plan)
    }

    fn assemble(
        &self,
        demand: Demand,
        leaving: Leaving,
        targets: &PerPool<Option<Span>>,
        moves: PerPool<Vec<Move>>,
        pages: PerPool<Vec<PageId>>,
    ) -> PreparePlan {
        let after = self.dependencies(targets, &moves);
        let moves = in_order(self.chain.pool_ids().map(|pool| (after[pool], &moves[pool])));
        let bytes = moves.iter().map(|step| self.pools[step.pool.index()].page_bytes).sum();
        PreparePlan {
            epoch: self.epoch,
            demand,
            moves,
            pages,
            leaving,
            limits: self.limits_of(targets),
            after,
            bytes: Bytes(bytes),
        }
    }

    /// Free pages inside `span`, best first: free of victims, then inside the present span, then nearest the side from
    /// which the pool grows.
    fn destinations(
        &self,
        pool: PoolId,
        span: Span,
        leaving: &Leaving,
        wanted: usize,
    ) -> Vec<PageId> {
        if wanted == 0 {
            return Vec::new();
        }
        let tables = &self.pools[pool.index()];
        let now = tables.span();
        let key = |&page: &u32| {
            let outside = now.is_none_or(|now| !now.contains(page));
            let place = match (tables.grow, now) {
                (Grow::Down, _) => tables.grid - page,
                (Grow::Float, Some(now)) if page < now.start => now.start - page,
                (Grow::Float, Some(now)) if page >= now.end => page - now.end,
                _ => page,
            };
            (self.ruins(tables, page, leaving), outside, place, page)
        };
        let gone = leaving.pages[pool].range(span.start..span.end).copied();
        let mut places: Vec<_> = tables.free.range(span.start, span.end).chain(gone).collect();
        places.sort_by_cached_key(key);
        places.truncate(wanted);
        places.into_iter().map(PageId).collect()
    }

    /// How many victims a half-written page would ruin.
    fn ruins(&self, tables: &Pool, page: u32, leaving: &Leaving) -> usize {
        let (start, end) = tables.bytes(Span { start: page, end: page + 1 });
        self.pools
            .iter()
            .zip(&leaving.pages.0)
            .map(|(p, gone)| overlapped(p, gone, start, end))
            .sum()
    }

    /// Which pools' moves must land before which others' start: where one's new span reaches into or beyond another's
    /// present one.
    ///
    /// These relations have no cycle: one that crosses the border between two neighbours upwards means that the border
    /// moves down, and one that crosses it downwards that it moves up.
    fn dependencies(
        &self,
        targets: &PerPool<Option<Span>>,
        moves: &PerPool<Vec<Move>>,
    ) -> PerPool<u8> {
        let mut after = PerPool::default();
        for pool in self.chain.pool_ids() {
            let Some(target) = targets[pool] else { continue };
            let (start, end) = self.pools[pool.index()].bytes(target);
            for other in self.chain.pool_ids() {
                let now = self.pools[other.index()].span_bytes();
                let is_in_the_way = now.is_some_and(|now| match other.cmp(&pool) {
                    Ordering::Less => start < now.1,
                    Ordering::Equal => false,
                    Ordering::Greater => end > now.0,
                });
                if is_in_the_way && !moves[other].is_empty() {
                    after[pool] |= 1 << other.0;
                }
            }
        }
        after
    }

    /// From the end of the new spans below each pool to the start of those above it.
    fn limits_of(&self, targets: &PerPool<Option<Span>>) -> PerPool<(u64, u64)> {
        let mut limits = PerPool([(0, self.chain.total().0); crate::unit::POOLS_MAX]);
        for pool in self.chain.pool_ids() {
            let Some(target) = targets[pool] else { continue };
            let (start, end) = self.pools[pool.index()].bytes(target);
            for other in self.chain.pool_ids() {
                let limit = &mut limits[other];
                if other > pool {
                    limit.0 = limit.0.max(end);
                } else if other < pool {
                    limit.1 = limit.1.min(start);
                }
            }
        }
        limits
    }

    /// A window page needs an id of the same demand.
    fn check_windows(&self, demand: &Demand) -> Result<(), Bound> {
        let full = self.chain.full().map_or(Pages(0), |full| demand.0[full]);
        let window = self.chain.windows().iter().find(|&&pool| demand.0[pool] > full);
        window.map_or(Ok(()), |&pool| Err(Bound::Ids { pool, wanted: demand.0[pool], ids: full }))
    }
}

/// Pages of `gone` that share a byte with `start..end`.
pub(super) fn overlapped(pool: &Pool, gone: &BTreeSet<u32>, start: u64, end: u64) -> usize {
    if gone.is_empty() {
        return 0;
    }
    let (first, last) = (start / pool.page_bytes, end.div_ceil(pool.page_bytes));
    let grid = u64::from(pool.grid);
    gone.range(first.min(grid) as u32..last.min(grid) as u32).count()
}

pub(super) fn pair(pool: PoolId, from: &[u32], to: &[PageId]) -> Vec<Move> {
    from.iter().zip(to).map(|(&from, &to)| Move { pool, from: PageId(from), to }).collect()
}

/// The moves of all pools, each pool's after those that it waits for, else in byte order.
fn in_order<'a>(pools: impl Iterator<Item = (u8, &'a Vec<Move>)>) -> Vec<Move> {
    let mut waiting: Vec<_> = pools.enumerate().collect();
    let mut done = 0_u8;
    let mut order = Vec::new();
    let with_moves: u8 =
        waiting.iter().filter(|(_, (_, moves))| !moves.is_empty()).map(|(i, _)| 1 << i).sum();
    while !waiting.is_empty() {
        let ready = waiting.iter().position(|(_, (after, _))| after & with_moves & !done == 0);
        let ready = ready.expect("I2: relations between ordered spans have no cycle");
        let (index, (_, moves)) = waiting.remove(ready);
        done |= 1 << index;
        order.extend_from_slice(moves);
    }
    order
}
