//! What fits, by a search over where every pool's pages could lie. Shares nothing with what it judges.

use super::case::{Case, Kind};
use kvtide_core::chain::Grow;
use std::collections::HashMap;

/// Lowest and highest page of each pool that may not move.
pub type Pins = [Option<(u64, u64)>; 4];

/// Pages of each pool.
pub type Counts = [u64; 4];

/// The arena's numbers, worked out once more, and answers given before.
pub struct Oracle {
    pools: Vec<Grid>,
    known: HashMap<(Counts, Pins), bool>,
}

struct Grid {
    page_bytes: u64,
    /// First page above the sink.
    first: u64,
    /// Just past the last page.
    end: u64,
    /// Most pages live at once.
    most: u64,
    /// A span must start at the first usable page, or end at the last one.
    grow: Grow,
}

impl Oracle {
    pub fn new(case: &Case) -> Self {
        let largest = case.pools.iter().map(|pool| pool.page_bytes).max().unwrap_or(1);
        let sink = case.sink.unwrap_or(largest);
        let mut pools: Vec<Grid> = Vec::new();
        for pool in &case.pools {
            let mut first = 0;
            while first * pool.page_bytes < sink {
                first += 1;
            }
            let mut end = first;
            while (end + 1) * pool.page_bytes <= case.total {
                end += 1;
            }
            let most = pool.cap.map_or(end - first, |cap| u64::from(cap).min(end - first));
            pools.push(Grid { page_bytes: pool.page_bytes, first, end, most, grow: pool.grow });
        }
        let ids = pools[case.full()].most;
        for (grid, pool) in pools.iter_mut().zip(&case.pools) {
            if matches!(pool.kind, Kind::Window(_)) {
                grid.most = grid.most.min(ids);
            }
        }
        Oracle { pools, known: HashMap::new() }
    }

    /// Whether so many `live` pages are allowed, and they and `stuck` ones (freed, not yet to be used) have places.
    pub fn fits(&mut self, live: Counts, stuck: Counts, pins: Pins) -> bool {
        if self.pools.iter().zip(live).any(|(pool, live)| live > pool.most) {
            return false;
        }
        let pages: Counts = std::array::from_fn(|pool| live[pool] + stuck[pool]);
        let Oracle { pools, known } = self;
        *known.entry((pages, pins)).or_insert_with(|| has_place(pools, &pages, &pins))
    }
}

/// Tries every span of every pool, from below.
fn has_place(pools: &[Grid], pages: &Counts, pins: &Pins) -> bool {
    // Bytes at which what was placed so far can end.
    let mut ends: Vec<u64> = vec![0];
    for (index, pool) in pools.iter().enumerate() {
        let count = pages[index];
        if count == 0 {
            continue;
        }
        let mut next = Vec::new();
        for start in pool.first..pool.end {
            if !ends.iter().any(|&end| end <= start * pool.page_bytes) {
                continue;
            }
            if pool.grow == Grow::Up && start != pool.first {
                break;
            }
            for end in start + count..=pool.end {
                let holds = pins[index].is_none_or(|(low, high)| start <= low && high < end);
                let anchored = pool.grow != Grow::Down || end == pool.end;
                if holds && anchored && !next.contains(&(end * pool.page_bytes)) {
                    next.push(end * pool.page_bytes);
                }
            }
        }
        if next.is_empty() {
            return false;
        }
        ends = next;
    }
    true
}
