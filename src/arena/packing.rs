//! Plans that close holes when nothing presses: all at once, or a few at a time.

use std::collections::BTreeSet;

use super::Arena;
use super::plan::{Move, PreparePlan, pair};
use super::pool::Span;
use super::target::Ask;
use crate::chain::Grow;
use crate::unit::{Bytes, PageId, PerPool, PoolId};

impl Arena {
    /// Closes every hole that pins leave to be closed, with the fewest bytes moved; nothing if there is none.
    ///
    /// A pool shrinks inside its present span: towards its fixed edge, or for a float towards the place that most of
    /// it occupies. Gated pools stay. O(pages of the spans).
    #[must_use]
    pub fn plan_packing(&self) -> Option<PreparePlan> {
        self.plan_compaction(Bytes(u64::MAX))
    }

    /// As [`Arena::plan_packing`], but stops before more than `budget` bytes move; the farthest pages go first.
    ///
    /// What it moves, the next pass does not move back: a move of a page into the best span lowers the cost of that
    /// span by a page, and of no other by more. Pools take from the budget in byte order.
    #[must_use]
    pub fn plan_compaction(&self, budget: Bytes) -> Option<PreparePlan> {
        let mut left = budget.0;
        let mut moves: PerPool<Vec<Move>> = PerPool::default();
        for pool in self.chain.pool_ids() {
            let page_bytes = self.pools[pool.index()].page_bytes;
            let mut steps = self.pack(pool);
            let most = usize::try_from(left / page_bytes).unwrap_or(usize::MAX);
            steps.truncate(most);
            left -= steps.len() as u64 * page_bytes;
            moves[pool] = steps;
        }
        self.plan_inside(moves)
    }

    /// The moves that shrink one pool's span to the least that its pages and pins need.
    fn pack(&self, pool: PoolId) -> Vec<Move> {
        let tables = &self.pools[pool.index()];
        let Some(now) = tables.span().filter(|_| !tables.is_gated()) else { return Vec::new() };
        let pages = tables.occupied.count();
        if now.len() == pages {
            return Vec::new();
        }
        let nothing = BTreeSet::new();
        let pins = tables.pins_but_gates();
        let ask = Ask { pool: tables, pages, pins, leaving: &nothing };
        let target = match tables.grow {
            Grow::Up => Span {
                start: now.start,
                end: (now.start + pages).max(pins.map_or(0, |pins| pins.hi.0 + 1)),
            },
            Grow::Down => Span {
                start: (now.end - pages).min(pins.map_or(u32::MAX, |pins| pins.lo.0)),
                end: now.end,
            },
            Grow::Float => best_window(&ask, now),
        };
        let sources = ask.sources(target);
        let holes = tables.free.range(target.start, target.end);
        let places: Vec<_> = holes.take(sources.len()).map(PageId).collect();
        pair(pool, &sources, &places)
    }
}

/// The span inside `now`, as short as pages and pins allow, with the most pages in it; the lowest of equals.
fn best_window(ask: &Ask<'_>, now: Span) -> Span {
    let pinned = ask.pins.map_or(0, |pins| pins.hi.0 + 1 - pins.lo.0);
    let len = ask.pages.max(pinned);
    let least = ask.pins.map_or(0, |pins| (pins.hi.0 + 1).saturating_sub(len)).max(now.start);
    let most = ask.pins.map_or(u32::MAX, |pins| pins.lo.0).min(now.end - len);
    let live = |page: u32| i64::from(ask.is_movable(page));
    let mut inside: i64 = (least..least + len).map(live).sum();
    let mut best = (inside, least);
    for start in least + 1..=most {
        inside += live(start + len - 1) - live(start - 1);
        if inside > best.0 {
            best = (inside, start);
        }
    }
    Span { start: best.1, end: best.1 + len }
}
