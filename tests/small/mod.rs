//! All small chains, and all arenas that operations can lead to.

use std::collections::HashSet;

use kvtide_core::arena::Arena;
use kvtide_core::chain::{Chain, Grow, PoolKind, PoolSpec};
use kvtide_core::demand::Demand;
use kvtide_core::unit::{Bytes, PageId, Pages, PoolId, Tokens};

/// Every chain of `count` pools with pages of `sizes` bytes over `total` bytes, with and without an up and a down end.
///
/// State pools only: their ids are their own, so that nothing but bytes decides.
pub fn chains(count: usize, sizes: &[u64], total: u64) -> Vec<Chain> {
    let mut chains = Vec::new();
    let ends: &[(Grow, Grow)] = match count {
        1 => &[(Grow::Up, Grow::Up), (Grow::Float, Grow::Float), (Grow::Down, Grow::Down)],
        _ => &[
            (Grow::Up, Grow::Down),
            (Grow::Up, Grow::Float),
            (Grow::Float, Grow::Down),
            (Grow::Float, Grow::Float),
        ],
    };
    for code in 0..sizes.len().pow(count as u32) {
        for &(low, high) in ends {
            let pool = |index: usize| PoolSpec {
                name: format!("pool{index}"),
                kind: PoolKind::State,
                grow: match index {
                    0 => low,
                    _ if index + 1 == count => high,
                    _ => Grow::Float,
                },
                page_bytes: Bytes(sizes[code / sizes.len().pow(index as u32) % sizes.len()]),
                pages_max: None,
            };
            let pools = (0..count).map(pool).collect();
            // Chains with a pool that has no usable page do not exist.
            chains.extend(Chain::new(Bytes(total), Tokens(1), None, pools));
        }
    }
    chains
}

/// Which pages of each pool are live, a bit a page.
pub fn live_masks(arena: &Arena) -> Vec<u32> {
    let mut masks = vec![0; arena.chain().pool_ids().len()];
    for (pool, _, PageId(page), _) in arena.live_pages() {
        masks[pool.index()] |= 1 << page;
    }
    masks
}

/// Arenas with every set of live pages that allocating up to two pages of a pool, freeing and packing lead to, breadth
/// first, at most `most`.
pub fn reachable(chain: &Chain, most: usize) -> Vec<Arena> {
    let mut seen = HashSet::new();
    let mut arenas = vec![Arena::new(chain.clone())];
    seen.insert(live_masks(&arenas[0]));
    let mut next = 0;
    while next < arenas.len() && arenas.len() < most {
        for arena in neighbours(&arenas[next]) {
            if arenas.len() < most && seen.insert(live_masks(&arena)) {
                arenas.push(arena);
            }
        }
        next += 1;
    }
    arenas
}

fn neighbours(arena: &Arena) -> Vec<Arena> {
    let mut found = Vec::new();
    for pool in arena.chain().pool_ids() {
        for pages in 1..=2 {
            if let Some(placement) = arena.place(&wanting(pool, pages)) {
                let mut next = arena.clone();
                next.bind(placement);
                found.push(next);
            }
        }
    }
    for (pool, virt, ..) in arena.live_pages() {
        let mut next = arena.clone();
        next.free(pool, virt).unwrap();
        found.push(next);
    }
    if let Some(plan) = arena.plan_packing() {
        let mut next = arena.clone();
        let prepare = next.begin(plan);
        next.commit(prepare);
        found.push(next);
    }
    found
}

fn wanting(pool: PoolId, pages: u32) -> Demand {
    Demand::default().with(pool, Pages(pages)).unwrap()
}

/// The demand whose pages are the digits of `code`, with bases `bases`.
pub fn demand_of(mut code: u64, bases: &[u64]) -> Demand {
    let mut demand = Demand::default();
    for (pool, base) in (0..).map(PoolId).zip(bases) {
        demand.0[pool] = Pages((code % base) as u32);
        code /= base;
    }
    demand
}

/// Spreads the bits of a case's number.
pub fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
