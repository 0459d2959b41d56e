//! The spans that a prepare leads to: those that move the fewest bytes.
//!
//! Moving pages of one pool is free of order, so a new span `[a, b)` costs the movable pages outside it, and these
//! split into `low(a)`, those below, and `high(b)`, those above. With pools in byte order and
//! `f_k(b)` the least cost of the pools up to `k` when `k` ends at page `b`,
//!
//! ```text
//! f_k(b) = high_k(b) + min over a <= b - n_k of ( low_k(a) + min over b' with b' * e' <= a * e_k of f_{k-1}(b') )
//! ```
//!
//! where `a` does not exceed the lowest pin and `b` is above the highest. Both inner minima are running ones, so that a
//! pool takes time and memory linear in the places where its edges may lie: the slack that the other pools leave it.

use std::collections::BTreeSet;

use super::pool::{Pool, Span};
use crate::chain::Grow;
use crate::fit::Pins;

/// One pool that must have a place.
pub(super) struct Ask<'a> {
    pub(super) pool: &'a Pool,
    /// Pages that the span must hold; at least one.
    pub(super) pages: u32,
    pub(super) pins: Option<Pins>,
    /// Pages that will be free.
    pub(super) leaving: &'a BTreeSet<u32>,
}

/// Bytes moved, then bytes by which edges of spans shift: of two layouts that move as much, the nearer one.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
struct Cost {
    moved: u64,
    shifted: u64,
}

/// Where the edges of one pool's span may lie, both ends included.
#[derive(Clone, Copy, Debug)]
struct Range {
    starts: (u32, u32),
    ends: (u32, u32),
}

/// What is known of one pool for each end of its span.
struct Layer {
    page_bytes: u64,
    first_end: u32,
    /// For each end: the start that costs least.
    starts: Vec<u32>,
    /// For each end: the least cost at this end or a lower one, and that end.
    best: Vec<(Cost, u32)>,
}

/// The spans of the pools asked for, low to high, that move the fewest bytes; nothing if they cannot all fit.
///
/// O(pages between the extreme places of each span, summed over the pools).
pub(super) fn solve(asks: &[Ask<'_>], total: u64) -> Option<Vec<Span>> {
    let ranges = ranges(asks, total)?;
    let mut layers: Vec<Layer> = Vec::with_capacity(asks.len());
    for (ask, range) in asks.iter().zip(&ranges) {
        let layer = layer(ask, range, layers.last())?;
        layers.push(layer);
    }
    let mut spans = Vec::with_capacity(asks.len());
    let mut ceiling = total;
    for layer in layers.iter().rev() {
        let end = layer.best_at_or_below(ceiling)?.1;
        let start = layer.starts[(end - layer.first_end) as usize];
        spans.push(Span { start, end });
        ceiling = u64::from(start) * layer.page_bytes;
    }
    spans.reverse();
    Some(spans)
}

/// The extreme edges of each span: packed from below, and packed from above.
fn ranges(asks: &[Ask<'_>], total: u64) -> Option<Vec<Range>> {
    let mut ranges = Vec::with_capacity(asks.len());
    let mut floor = 0_u64;
    for ask in asks {
        let pool = ask.pool;
        let least = u64::from(pool.first).max(floor.div_ceil(pool.page_bytes));
        let above_pins = ask.pins.map_or(0, |pins| u64::from(pins.hi.0) + 1);
        let end = (least + u64::from(ask.pages)).max(above_pins);
        if end > u64::from(pool.grid) {
            return None;
        }
        floor = end * pool.page_bytes;
        ranges.push(Range { starts: (least as u32, 0), ends: (end as u32, 0) });
    }
    let mut ceiling = total;
    for (ask, range) in asks.iter().zip(&mut ranges).rev() {
        let pool = ask.pool;
        let most = (ceiling / pool.page_bytes).min(u64::from(pool.grid)) as u32;
        let pin = ask.pins.map_or(u32::MAX, |pins| pins.lo.0);
        range.ends.1 = most;
        range.starts.1 = most.checked_sub(ask.pages)?.min(pin);
        match pool.grow {
            Grow::Up => range.starts.1 = range.starts.0,
            Grow::Down => range.ends.0 = most,
            Grow::Float => {}
        }
        if range.starts.0 > range.starts.1 || range.ends.0 > range.ends.1 {
            return None;
        }
        ceiling = u64::from(range.starts.1) * pool.page_bytes;
    }
    Some(ranges)
}

fn layer(ask: &Ask<'_>, range: &Range, below: Option<&Layer>) -> Option<Layer> {
    let by_start = costs_by_start(ask, range, below);
    let page_bytes = ask.pool.page_bytes;
    let (first_end, last_end) = range.ends;
    let mut layer = Layer { page_bytes, first_end, starts: Vec::new(), best: Vec::new() };
    let mut high = ask.movable_from(first_end);
    for end in first_end..=last_end {
        let last = (end - ask.pages).min(range.starts.1) - range.starts.0;
        let (cost, start) = by_start[last as usize]?;
        let cost = Cost {
            moved: cost.moved + u64::from(high) * page_bytes,
            shifted: cost.shifted + ask.shift(end, |span| span.end),
        };
        layer.starts.push(start);
        let best = layer.best.last().copied().filter(|best| best.0 <= cost);
        layer.best.push(best.unwrap_or((cost, end)));
        high -= u32::from(ask.is_movable(end));
    }
    Some(layer)
}

/// For each start: the least cost at this start or a lower one, and that start; nothing if what lies below cannot end
/// there.
fn costs_by_start(ask: &Ask<'_>, range: &Range, below: Option<&Layer>) -> Vec<Option<(Cost, u32)>> {
    let page_bytes = ask.pool.page_bytes;
    let mut low = ask.movable_below(range.starts.0);
    let mut best: Option<(Cost, u32)> = None;
    let mut costs = Vec::with_capacity((range.starts.1 - range.starts.0) as usize + 1);
    for start in range.starts.0..=range.starts.1 {
        let so_far = match below {
            None => Some(Cost::default()),
            Some(below) => below.best_at_or_below(u64::from(start) * page_bytes).map(|b| b.0),
        };
        if let Some(so_far) = so_far {
            let cost = Cost {
                moved: so_far.moved + u64::from(low) * page_bytes,
                shifted: so_far.shifted + ask.shift(start, |span| span.start),
            };
            if best.is_none_or(|best| cost < best.0) {
                best = Some((cost, start));
            }
        }
        costs.push(best);
        low += u32::from(ask.is_movable(start));
    }
    costs
}

impl Layer {
    /// The least cost of an end that is not above the byte `ceiling`, and that end. O(1).
    fn best_at_or_below(&self, ceiling: u64) -> Option<(Cost, u32)> {
        let page = ceiling / self.page_bytes;
        let index = page.checked_sub(u64::from(self.first_end))?;
        self.best.get(index as usize).or(self.best.last()).copied()
    }
}

impl Ask<'_> {
    /// Whether `page` is live, stays, and may move.
    pub(super) fn is_movable(&self, page: u32) -> bool {
        !self.pool.is_gated()
            && self.pool.live.contains(page)
            && !self.pool.held.contains(page)
            && !self.leaving.contains(&page)
    }

    /// Movable pages below `page`, which is not above a pin.
    fn movable_below(&self, page: u32) -> u32 {
        if self.pool.is_gated() {
            return 0;
        }
        self.pool.live.count_below(page) - self.leaving.range(..page).count() as u32
    }

    /// Movable pages from `page` on, which is above all pins.
    fn movable_from(&self, page: u32) -> u32 {
        if self.pool.is_gated() {
            return 0;
        }
        let live = self.pool.live.count() - self.pool.live.count_below(page);
        live - self.leaving.range(page..).count() as u32
    }

    /// The movable pages outside `span`, farthest first.
    pub(super) fn sources(&self, span: Span) -> Vec<u32> {
        let (below, above) =
            (self.pool.live.range(0, span.start), self.pool.live.range(span.end, self.pool.grid));
        let mut pages: Vec<_> = below.chain(above).filter(|&page| self.is_movable(page)).collect();
        let distance = |page: u32| match page < span.start {
            true => span.start - page,
            false => page - span.end + 1,
        };
        pages.sort_by_key(|&page| (std::cmp::Reverse(distance(page)), page));
        pages
    }

    /// Bytes by which an edge at `page` lies off the span's present edge; an end's fixed edge never does.
    fn shift(&self, page: u32, edge: fn(Span) -> u32) -> u64 {
        self.pool
            .span()
            .map_or(0, |span| u64::from(edge(span).abs_diff(page)) * self.pool.page_bytes)
    }
}
