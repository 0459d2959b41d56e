//! Plans to make room against a search over all final layouts, and their copies on bytes.
//!
//! On every small arena that operations lead to, with victims, gates and leases: a plan exists exactly when some layout
//! does, and moves exactly as many bytes as the best layout (ratio 1.0). Its batches, executed one after the other on an
//! array of bytes, keep every page's content (I7). `KVTIDE_EXHAUSTIVE=full` takes larger arenas and all four page sizes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod small;

use kvtide_core::arena::{Arena, ContentTag, CopiedBatches, CopyBatch, Move, PreparePlan, Victims};
use kvtide_core::chain::{Chain, Grow};
use kvtide_core::demand::Demand;
use kvtide_core::unit::{Bytes, PageId, Pages, PoolId, VirtId};
use small::{chains, demand_of, live_masks, mix, reachable};

/// What all cases of one test came to.
#[derive(Debug, Default)]
struct Tally {
    arenas: u64,
    cases: u64,
    refused: u64,
    with_moves: u64,
    /// Moves of more than one pool.
    across: u64,
    /// A destination is bytes that another pool's moves vacate.
    over_others: u64,
    bytes: u64,
    best_bytes: u64,
    aborts: u64,
    /// Victims that an abort could not keep.
    lost: u64,
    /// Of these, victims that no copy had touched.
    in_the_way: u64,
}

#[test]
fn plans_of_chains_with_at_most_one_float_move_the_fewest_bytes() {
    let (totals, most, share) = match is_full() {
        true => (3..=12, 400, 40),
        false => (3..=9, 120, 24),
    };
    let mut tally = Tally::default();
    for total in totals {
        for pools in 1..=3 {
            for chain in chains(pools, &[1, 2, 3], total) {
                check_chain(&chain, most, share, &mut tally);
            }
        }
    }
    tally.check_that_everything_happened();
}

#[test]
fn plans_of_chains_with_two_floats_move_the_fewest_bytes() {
    let (totals, sizes, most, share) = match is_full() {
        true => (6..=11, &[1, 2, 3, 5][..], 100, 20),
        false => (6..=9, &[1, 2, 3][..], 50, 16),
    };
    let mut tally = Tally::default();
    for total in totals {
        for chain in chains(4, sizes, total) {
            check_chain(&chain, most, share, &mut tally);
        }
    }
    tally.check_that_everything_happened();
}

#[test]
fn compaction_stays_in_its_budget_and_is_never_undone() {
    let mut plans = 0;
    for total in 4..=10 {
        for pools in 1..=3 {
            for chain in chains(pools, &[1, 2, 3], total) {
                for (index, arena) in (0..).zip(reachable(&chain, 150)) {
                    plans += check_compaction(arena, 1 + index % 5);
                }
            }
        }
    }
    println!("{plans} compaction plans");
    assert!(plans > 1_000);
}

#[test]
fn packing_leaves_the_shortest_spans_with_the_fewest_moves() {
    let (mut packed, mut pinned) = (0, 0);
    for total in 6..=12 {
        for pools in 1..=2 {
            for chain in chains(pools, &[1, 2, 3], total) {
                for (number, mut arena) in (0..).zip(reachable(&chain, 200)) {
                    let live: Vec<_> = arena.live_pages().collect();
                    let held = live.iter().enumerate().filter(|(index, _)| {
                        mix(number * 64 + *index as u64).is_multiple_of(5) && number % 3 > 0
                    });
                    let held: Vec<_> = held.map(|(_, live)| (live.0, live.1)).collect();
                    arena.begin_lease(&held).unwrap();
                    pinned += u64::from(!held.is_empty());
                    packed += u64::from(check_packing(arena, &held));
                }
            }
        }
    }
    println!("{packed} packings, {pinned} arenas with pins");
    assert!(packed > 1_000 && pinned > 1_000);
}

fn is_full() -> bool {
    std::env::var("KVTIDE_EXHAUSTIVE").is_ok_and(|value| value == "full")
}

impl Tally {
    fn check_that_everything_happened(&self) {
        println!("{self:?}");
        assert_eq!(self.bytes, self.best_bytes, "the worst ratio is 1.0");
        let rare = self.cases / 500;
        assert!(self.refused > rare && self.with_moves > rare, "{self:?}");
        assert!(self.across > 20 && self.over_others > 20 && self.lost > 20, "{self:?}");
    }
}

fn check_chain(chain: &Chain, most: usize, share: u64, tally: &mut Tally) {
    // Larger demands are refused nearly always.
    let wanted_max = if chain.pool_ids().len() < 3 { 4 } else { 3 };
    let bases: Vec<u64> = chain
        .pool_ids()
        .map(|pool| (u64::from(chain.pages_max(pool).0) + 2).min(wanted_max))
        .collect();
    let all: u64 = bases.iter().product();
    for (number, arena) in (0..).zip(reachable(chain, most)) {
        tally.arenas += 1;
        for index in 0..share {
            let dice = mix(number * 1_000 + index);
            let demand = demand_of(if index < all { index * 7 % all } else { dice % all }, &bases);
            check_case(arena.clone(), dice, &demand, tally);
        }
    }
}

/// One demand on one arena, with pins and victims drawn from `dice`.
fn check_case(mut arena: Arena, dice: u64, demand: &Demand, tally: &mut Tally) {
    let keys: Vec<(PoolId, VirtId)> =
        arena.live_pages().map(|(pool, virt, ..)| (pool, virt)).collect();
    let drawn = |index: usize, salt: u64, one_in: u64| {
        mix(dice ^ mix(index as u64 ^ salt << 32)).is_multiple_of(one_in)
    };
    let gated: Vec<PoolId> =
        arena.chain().pool_ids().filter(|pool| drawn(pool.index(), 1, 5)).collect();
    let held: Vec<_> = (0..).zip(&keys).filter(|(i, _)| drawn(*i, 2, 9)).map(|(_, k)| *k).collect();
    let one_in = 1 + dice % 4;
    let mut victims = Victims::default();
    for (index, key) in keys.iter().enumerate() {
        if one_in > 1 && drawn(index, 3, one_in) && !held.contains(key) {
            victims.pages[key.0].push(key.1);
        }
    }
    arena.close_gate(&gated).unwrap();
    arena.begin_lease(&held).unwrap();
    let best = best_bytes(&arena, &gated, &held, &victims, demand);
    let plan = arena.plan_prepare(demand, &victims);
    let chain = arena.chain();
    let case =
        || format!("{chain:?} {:x?} {gated:?} {held:?} {victims:?} {demand:?}", live_masks(&arena));
    tally.cases += 1;
    assert_eq!(plan.is_ok(), best.is_some(), "{}: {plan:?}", case());
    let Some((plan, best)) = plan.ok().zip(best) else {
        tally.refused += 1;
        return;
    };
    assert_eq!(plan.moved_bytes(), Bytes(best), "{}: {:?}", case(), plan.moves());
    tally.bytes += plan.moved_bytes().0;
    tally.best_bytes += best;
    tally.with_moves += u64::from(!plan.moves().is_empty());
    let pools: std::collections::BTreeSet<_> = plan.moves().iter().map(|m| m.pool).collect();
    tally.across += u64::from(pools.len() > 1);
    tally.over_others += u64::from(is_over_others(&arena, plan.moves()));
    if !plan.moves().is_empty() {
        check_aborts(&arena, &plan, &victims, tally);
    }
    execute(arena, plan, demand, &victims);
}

/// Whether a destination shares bytes with another pool's source.
fn is_over_others(arena: &Arena, moves: &[Move]) -> bool {
    moves.iter().any(|to| {
        let written = range(arena, to.pool, to.to);
        moves.iter().filter(|from| from.pool != to.pool).any(|from| {
            let read = range(arena, from.pool, from.from);
            read.start < written.end && written.start < read.end
        })
    })
}

/// The arena's bytes, each of which says whose it is.
#[derive(Clone)]
struct Image(Vec<Option<u64>>);

impl Image {
    fn of(arena: &Arena) -> Self {
        let mut image = Image(vec![None; arena.chain().total().0 as usize]);
        for (pool, _, page, tag) in arena.live_pages() {
            let range = range(arena, pool, page);
            let content = content(tag, range.len());
            image.0[range].copy_from_slice(&content);
        }
        image
    }

    /// Written in reverse: within a batch the order must not matter.
    fn copy(&mut self, arena: &Arena, batch: &CopyBatch) {
        for &(from, to) in batch.pairs.iter().rev() {
            let to = range(arena, batch.pool, to);
            self.0.copy_within(range(arena, batch.pool, from), to.start);
        }
    }

    /// The first byte of every destination is written, and wrong.
    fn fail(&mut self, arena: &Arena, batch: &CopyBatch) {
        for &(_, to) in &batch.pairs {
            self.0[range(arena, batch.pool, to).start] = None;
        }
    }

    fn reads(&self, arena: &Arena, pool: PoolId, virt: VirtId, tag: ContentTag) -> bool {
        let page = arena.locate(pool, virt).expect("a live id has a page");
        let range = range(arena, pool, page);
        self.0[range.clone()] == content(tag, range.len())
    }
}

fn range(arena: &Arena, pool: PoolId, page: PageId) -> std::ops::Range<usize> {
    let e = arena.chain().pool(pool).page_bytes;
    page.offset(e).0 as usize..(page.offset(e).0 + e.0) as usize
}

fn content(tag: ContentTag, len: usize) -> Vec<Option<u64>> {
    (0..len as u64).map(|offset| Some(tag.0.wrapping_add(offset))).collect()
}

/// Runs the batches on bytes and commits; every page that stays reads as before, and the demand has its pages.
fn execute(mut arena: Arena, plan: PreparePlan, demand: &Demand, victims: &Victims) {
    let before: Vec<_> = arena.live_pages().collect();
    let mut image = Image::of(&arena);
    let prepare = arena.begin(plan);
    for batch in prepare.batches(Pages(2)) {
        image.copy(&arena, &batch);
    }
    let grant = arena.commit(prepare);
    arena.check().unwrap();
    for pool in arena.chain().pool_ids() {
        assert_eq!(grant.states[pool].len(), demand.0[pool].index());
    }
    for (pool, virt, _, tag) in before {
        if victims.pages[pool].contains(&virt) {
            assert_ne!(arena.content(pool, virt), Some(tag), "an evicted page is gone");
        } else {
            assert!(image.reads(&arena, pool, virt, tag), "I7: {pool:?} {virt:?}");
        }
    }
}

/// Gives the prepare up after every number of batches, with and without one more that failed half-way: every page reads
/// as before but victims that the abort names, and these only if a copy was launched.
fn check_aborts(start: &Arena, plan: &PreparePlan, victims: &Victims, tally: &mut Tally) {
    let before: Vec<_> = start.live_pages().collect();
    let count = plan.moves().len();
    for (landed, failed) in (0..=count).flat_map(|landed| [(landed, 0), (landed, 1)]) {
        let mut arena = start.clone();
        let mut image = Image::of(&arena);
        let prepare = arena.begin(plan.clone());
        let batches = prepare.batches(Pages(1));
        let launched = (landed + failed).min(count);
        batches[..landed].iter().for_each(|batch| image.copy(&arena, batch));
        batches[landed..launched].iter().for_each(|batch| image.fail(&arena, batch));
        let aborted = arena.abort(prepare, CopiedBatches::of(&batches, landed, launched));
        arena.check().unwrap();
        assert!(aborted.moved.index() <= landed);
        for &(pool, virt, page, tag) in &before {
            if aborted.lost.pages[pool].contains(&virt) {
                assert!(victims.pages[pool].contains(&virt) && launched > 0);
                assert!(!arena.is_bound(pool, virt));
                let place = range(&arena, pool, page);
                let is_written = batches[..launched].iter().any(|batch| {
                    let to = range(&arena, batch.pool, batch.pairs[0].1);
                    to.start < place.end && place.start < to.end
                });
                // Beyond those written over only victims in the way of pages that cannot go back.
                assert!(is_written || aborted.moved > Pages(0));
                tally.lost += 1;
                tally.in_the_way += u64::from(!is_written);
                continue;
            }
            assert!(image.reads(&arena, pool, virt, tag), "I7: {pool:?} {virt:?} {plan:?}");
            if landed == 0 {
                assert_eq!(arena.locate(pool, virt), Some(page));
            }
        }
        tally.aborts += 1;
    }
}

/// The fewest bytes that any final layout moves; nothing if there is none. Tries every set of places of every pool, and
/// every byte at which the pools below may end.
fn best_bytes(
    arena: &Arena,
    gated: &[PoolId],
    held: &[(PoolId, VirtId)],
    victims: &Victims,
    demand: &Demand,
) -> Option<u64> {
    let chain = arena.chain();
    let total = chain.total().0 as usize;
    // By the byte at which the pools so far end.
    let mut best: Vec<Option<u64>> = vec![None; total + 1];
    best[0] = Some(0);
    for pool in chain.pool_ids() {
        let (mut stay, mut pinned) = (0_u32, 0_u32);
        for (of, virt, page, _) in arena.live_pages().filter(|live| live.0 == pool) {
            if !victims.pages[of].contains(&virt) {
                stay |= 1 << page.0;
                let is_pinned = gated.contains(&of) || held.contains(&(of, virt));
                pinned |= u32::from(is_pinned) << page.0;
            }
        }
        let count = stay.count_ones() + demand.0[pool].0;
        if count > 0 {
            best = after_pool(chain, pool, (stay, pinned, count), &best);
        }
    }
    best.into_iter().flatten().min()
}

fn after_pool(
    chain: &Chain,
    pool: PoolId,
    (stay, pinned, count): (u32, u32, u32),
    below: &[Option<u64>],
) -> Vec<Option<u64>> {
    let e = chain.pool(pool).page_bytes.0;
    let (first, grid) = (chain.first_page(pool).0, chain.grid_pages(pool).0);
    let mut best: Vec<Option<u64>> = vec![None; below.len()];
    for set in (0..1_u32 << (grid - first)).map(|set| set << first) {
        if set.count_ones() != count || pinned & !set != 0 {
            continue;
        }
        let start = u64::from(set.trailing_zeros()) * e;
        let end = u64::from(32 - set.leading_zeros()) * e;
        // A page of the demand may take any place of the set, so pages that stay inside it need not move.
        let moved = u64::from((stay & !set).count_ones()) * e;
        let so_far = below[..=start as usize].iter().flatten().min();
        if let Some(cost) = so_far.map(|cost| cost + moved) {
            let slot = &mut best[end as usize];
            *slot = Some(slot.map_or(cost, |old| old.min(cost)));
        }
    }
    best
}

/// Passes of a small budget until nothing is left to do: no page moves twice, and packing has nothing to add. Gives the
/// number of plans.
fn check_compaction(mut arena: Arena, budget: u64) -> u64 {
    let mut moved = std::collections::BTreeSet::new();
    let mut plans = 0;
    let whole = arena.plan_packing().map_or(Bytes(0), |plan| plan.moved_bytes());
    let mut sum = 0;
    while let Some(plan) = arena.plan_compaction(Bytes(budget)) {
        assert!(plan.moved_bytes() <= Bytes(budget));
        for step in plan.moves() {
            let (_, virt, ..) = arena
                .live_pages()
                .find(|&(pool, _, page, _)| (pool, page) == (step.pool, step.from))
                .expect("a source is live");
            assert!(moved.insert((step.pool, virt)), "{virt:?} moves twice: {:?}", arena.chain());
        }
        sum += plan.moved_bytes().0;
        plans += 1;
        let prepare = arena.begin(plan);
        arena.commit(prepare);
        arena.check().unwrap();
    }
    assert!(sum <= whole.0, "passes move no more than packing at once");
    let most = arena.chain().pool_ids().map(|pool| arena.chain().pool(pool).page_bytes).max();
    if most.is_some_and(|most| Bytes(budget) >= most) {
        assert_eq!(Bytes(sum), whole);
        for pool in arena.chain().pool_ids() {
            assert_eq!(arena.counts(pool).holes, Pages(0));
        }
    }
    plans
}

/// Packs, and compares every pool with the best of all shorter spans inside its old one. Says whether anything moved.
fn check_packing(mut arena: Arena, held: &[(PoolId, VirtId)]) -> bool {
    let plan = arena.plan_packing();
    let mut wanted = Vec::new();
    for pool in arena.chain().pool_ids() {
        let pages: Vec<_> =
            arena.live_pages().filter(|live| live.0 == pool).map(|live| live.2).collect();
        let pins: Vec<_> = held
            .iter()
            .filter(|held| held.0 == pool)
            .map(|&(pool, virt)| arena.locate(pool, virt).unwrap())
            .collect();
        let Some((PageId(low), PageId(high))) = arena.span(pool) else { continue };
        let spans = (low..=high).flat_map(|start| (start..=high).map(move |end| start..=end));
        let best = spans
            .filter(|span| match arena.chain().pool(pool).grow {
                Grow::Up => *span.start() == low,
                Grow::Float => true,
                Grow::Down => *span.end() == high,
            })
            .filter(|span| span.clone().count() >= pages.len())
            .filter(|span| pins.iter().all(|pin| span.contains(&pin.0)))
            .map(|span| {
                let moves = pages.iter().filter(|page| !span.contains(&page.0)).count();
                (span.count(), moves)
            })
            .min();
        wanted.push((pool, best.expect("the old span is one of them")));
    }
    for &(pool, (_, moves)) in &wanted {
        let planned = plan.as_ref().map_or(Pages(0), |plan| plan.moved_pages_of(pool));
        assert_eq!(planned.index(), moves, "{:?} {held:?}", arena.chain());
    }
    let Some(plan) = plan else { return false };
    let prepare = arena.begin(plan);
    arena.commit(prepare);
    for (pool, (length, _)) in wanted {
        let (PageId(low), PageId(high)) = arena.span(pool).expect("it has pages");
        assert_eq!((high - low + 1) as usize, length, "{:?} {held:?}", arena.chain());
    }
    true
}
