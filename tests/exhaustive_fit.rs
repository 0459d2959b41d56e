//! The feasibility question against a search over all placements, on all small arenas.
//!
//! Chains of one to four pools with pages of 1, 2, 3 or 5 units over arenas of up to 12 units; every set of live pages
//! by position; each pool free to move, pinned by a gate, or pinned in part by leases; every demand. Where a chain has
//! more cases than its share, they are thinned evenly and the same way every time. With all pools gated the question is
//! `Now`. `KVTIDE_EXHAUSTIVE=full` gives every chain a far larger share:
//!
//! ```text
//! KVTIDE_EXHAUSTIVE=full cargo test --release --test exhaustive_fit -- --nocapture
//! ```

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod small;

use std::collections::BTreeMap;

use kvtide_core::arena::Question;
use kvtide_core::chain::Chain;
use kvtide_core::demand::Demand;
use kvtide_core::fit::{Geometry, Pins};
use kvtide_core::unit::{PageId, Pages, PoolId};
use small::{chains, demand_of, live_masks, mix, reachable};

const SIZES: [u64; 4] = [1, 2, 3, 5];
const TOTAL_MAX: u64 = 12;

fn is_full() -> bool {
    std::env::var("KVTIDE_EXHAUSTIVE").is_ok_and(|value| value == "full")
}

#[test]
fn fits_agrees_with_a_search_over_all_placements() {
    // Cases a chain, by its number of pools.
    let shares: [u64; 4] = match is_full() {
        true => [u64::MAX, 6_000_000, 500_000, 60_000],
        false => [u64::MAX, 4_000, 800, 150],
    };
    let mut searches = BTreeMap::new();
    let (mut cases, mut fitting, mut thinned, mut count) = (0, 0, 0, 0);
    for total in 2..=TOTAL_MAX {
        for (pools, share) in (1..).zip(shares) {
            for chain in chains(pools, &SIZES, total) {
                let run = check_chain(&chain, share, &mut searches);
                cases += run.cases;
                fitting += run.fitting;
                thinned += u64::from(run.cases < run.all);
                count += 1;
            }
        }
    }
    println!("{cases} cases on {count} chains ({thinned} of them thinned), {fitting} of them fit");
    assert!(cases >= 1_000_000);
    assert!(fitting > cases / 20 && fitting < cases / 20 * 19, "both answers are common");
}

#[test]
fn a_placement_exists_exactly_when_the_demand_fits_now() {
    let (share, most) = if is_full() { (u64::MAX, 20_000) } else { (400, 70) };
    let sizes: &[u64] = if is_full() { &SIZES } else { &[1, 2, 3] };
    let mut searches = BTreeMap::new();
    let (mut cases, mut arenas, mut placed) = (0, 0, 0);
    for total in 3..=9 {
        for pools in 1..=if is_full() && total > 8 { 3 } else { 4 } {
            for chain in chains(pools, sizes, total) {
                // Larger demands hardly ever fit: the other test asks them.
                let wanted_max = if is_full() { u64::MAX } else { 4 };
                let base = |pool| (u64::from(chain.pages_max(pool).0) + 2).min(wanted_max);
                let bases: Vec<u64> = chain.pool_ids().map(base).collect();
                let all: u64 = bases.iter().product();
                for arena in reachable(&chain, most) {
                    arenas += 1;
                    let masks = live_masks(&arena);
                    for index in 0..all.min(share) {
                        let demand = demand_of(spread(index, all, share), &bases);
                        let wanted = search(&chain, &masks, &masks, &demand.0.0, &mut searches);
                        let fits = arena.geometry(Question::Now).fits(&demand).is_ok();
                        let found = arena.place(&demand);
                        assert_eq!(fits, wanted, "{chain:?} {masks:x?} {demand:?}");
                        assert_eq!(found.is_some(), wanted, "{chain:?} {masks:x?} {demand:?}");
                        cases += 1;
                        if let Some(placement) = found {
                            placed += 1;
                            // The checks of debug builds see to it that the spans stay in order.
                            if index % 16 == 0 {
                                arena.clone().bind(placement);
                            }
                        }
                    }
                }
            }
        }
    }
    println!("{cases} cases on {arenas} arenas, {placed} of them placed");
    assert!(cases >= 1_000_000 && placed > 100_000);
}

struct Run {
    cases: u64,
    all: u64,
    fitting: u64,
}

fn check_chain(chain: &Chain, share: u64, searches: &mut Searches) -> Run {
    let ids: Vec<PoolId> = chain.pool_ids().collect();
    let occupancies = occupancies(chain);
    let wanted = demands(chain);
    let demands = wanted.len() as u64;
    let pinnings = 3_u64.pow(ids.len() as u32);
    let all = occupancies.len() as u64 * demands * pinnings;
    let mut run = Run { cases: all.min(share), all, fitting: 0 };
    let mut geometry = Geometry::empty(chain);
    for index in 0..run.cases {
        let code = spread(index, all, share);
        let demand = wanted[(code % demands) as usize];
        let (mut pinning, live) =
            (code / demands % pinnings, &occupancies[(code / demands / pinnings) as usize]);
        let mut pinned = Vec::with_capacity(ids.len());
        for (&pool, &mask) in ids.iter().zip(live) {
            // Not pinned, all pinned, or some pages.
            let pins = [0, mask, mask & mix(code) as u32][(pinning % 3) as usize];
            pinning /= 3;
            pinned.push(pins);
            let fit = geometry.pool_mut(pool);
            fit.live = Pages(mask.count_ones());
            fit.pins = (pins != 0).then(|| Pins {
                lo: PageId(pins.trailing_zeros()),
                hi: PageId(31 - pins.leading_zeros()),
            });
        }
        let fits = geometry.fits(&demand).is_ok();
        let found = search(chain, live, &pinned, &demand.0.0, searches);
        assert_eq!(fits, found, "{chain:?} live {live:x?} pinned {pinned:x?} {demand:?}");
        run.fitting += u64::from(fits);
    }
    run
}

/// Every demand whose bytes an empty arena could hold but for one page: beyond these all are refused by their sum.
fn demands(chain: &Chain) -> Vec<Demand> {
    let bases: Vec<u64> =
        chain.pool_ids().map(|pool| u64::from(chain.pages_max(pool).0) + 2).collect();
    let bytes = |demand: &Demand| -> u64 {
        chain.pool_ids().map(|pool| demand.0[pool].bytes(chain.pool(pool).page_bytes).0).sum()
    };
    // The sink is as large as the largest page.
    let room = chain.total().0;
    let all = (0..bases.iter().product()).map(|code| demand_of(code, &bases));
    all.filter(|demand| bytes(demand) <= room).collect()
}

/// The number of the `index`th case of `share` out of `all`: one in each of `share` equal parts.
fn spread(index: u64, all: u64, share: u64) -> u64 {
    if all <= share {
        return index;
    }
    let part = all / share;
    index * part + mix(index) % part
}

/// Every set of live pages by position whose spans are in order, as bits of pages.
fn occupancies(chain: &Chain) -> Vec<Vec<u32>> {
    let mut partial: Vec<(Vec<u32>, u64)> = vec![(Vec::new(), 0)];
    for pool in chain.pool_ids() {
        let e = chain.pool(pool).page_bytes.0;
        let (first, grid) = (chain.first_page(pool).0, chain.grid_pages(pool).0);
        let mut longer = Vec::new();
        for (masks, floor) in partial {
            for mask in (0..1_u32 << (grid - first)).map(|bits| bits << first) {
                let start = u64::from(mask.trailing_zeros()) * e;
                if mask == 0 || start >= floor {
                    let end = u64::from(32 - mask.leading_zeros()) * e;
                    let mut masks = masks.clone();
                    masks.push(mask);
                    longer.push((masks, floor.max(end)));
                }
            }
        }
        partial = longer;
    }
    partial.into_iter().map(|(masks, _)| masks).collect()
}

/// For one grid: where sets of pages can end.
type Searches = BTreeMap<(u64, u32, u32), Ends>;

/// `ends[pinned][count][floor]`: the bytes, as bits, at which some set of `count` pages can end that contains all
/// `pinned` ones (bits, from the first usable page) and starts at byte `floor` or above.
struct Ends(Vec<Vec<[u16; TOTAL_MAX as usize + 1]>>);

/// Whether some placement of all pages is in order: pinned pages where they are, the others and the demand anywhere.
/// Tries every set of pages of every pool, after every byte at which the pools below can end.
fn search(
    chain: &Chain,
    live: &[u32],
    pinned: &[u32],
    demand: &[Pages],
    searches: &mut Searches,
) -> bool {
    let mut reached: u16 = 1;
    for (pool, ((live, pinned), demand)) in
        chain.pool_ids().zip(live.iter().zip(pinned).zip(demand))
    {
        let e = chain.pool(pool).page_bytes.0;
        let (first, grid) = (chain.first_page(pool).0, chain.grid_pages(pool).0);
        let count = live.count_ones() + demand.0;
        if count == 0 {
            continue;
        }
        if count > grid - first {
            return false;
        }
        let ends =
            searches.entry((e, first, grid)).or_insert_with(|| enumerate_sets(e, first, grid));
        let by_floor = &ends.0[(pinned >> first) as usize][count as usize];
        let floors = (0..by_floor.len()).filter(|floor| reached >> floor & 1 == 1);
        reached = floors.fold(0, |ends, floor| ends | by_floor[floor]);
    }
    reached != 0
}

fn enumerate_sets(e: u64, first: u32, grid: u32) -> Ends {
    let usable = grid - first;
    let none = [0_u16; TOTAL_MAX as usize + 1];
    let mut ends = vec![vec![none; usable as usize + 1]; 1 << usable];
    for set in 1_u32..1 << usable {
        let start = u64::from(set.trailing_zeros() + first) * e;
        let end = u64::from(32 - set.leading_zeros() + first) * e;
        let mut pinned = set;
        loop {
            let by_floor = &mut ends[pinned as usize][set.count_ones() as usize];
            by_floor[..=start as usize].iter_mut().for_each(|ends| *ends |= 1 << end);
            if pinned == 0 {
                break;
            }
            pinned = (pinned - 1) & set;
        }
    }
    Ends(ends)
}
