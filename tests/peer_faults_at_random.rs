//! Random arenas of two and three pools on which other managers evict, refuse or answer wrongly now and then: judged
//! by a search for a placement, each at the first try.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[allow(dead_code, reason = "shared with a test that uses all of it")]
mod exact;

use exact::case::{Case, Kind, Pool, Rng};
use exact::judge::demand_of;
use exact::oracle::{Counts, Oracle};
use kvtide::config::{Compaction, Engine, Prefer};
use kvtide::error::AllocError;
use kvtide::handle::{CacheHandle, OpenOptions, Reservation};
use kvtide::message::Publishing;
use kvtide::report::PoolStats;
use kvtide::service::CacheService;
use kvtide_core::chain::Grow;
use kvtide_core::demand::ExactDemand;
use kvtide_core::unit::{PoolId, Token};

/// A case's service, and what judges it.
struct Bench<'a> {
    case: &'a Case,
    cache: CacheHandle,
    oracle: Oracle,
}

/// Pools with pages of random sizes in random order, one of them a window's, and with three one of states.
fn random_case(rng: &mut Rng, pools: usize) -> Case {
    let bytes = [8, 16, 24, 32, 40, 56, 88];
    let kinds = [Kind::Full, Kind::Window(rng.pick(&[1, 4, 99])), Kind::State];
    let mut parts: Vec<Pool> = kinds[..pools]
        .iter()
        .map(|&kind| Pool { kind, grow: Grow::Float, page_bytes: rng.pick(&bytes), cap: None })
        .collect();
    parts.rotate_left(rng.below(pools as u64) as usize);
    (parts[0].grow, parts[pools - 1].grow) = (Grow::Up, Grow::Down);
    let largest = parts.iter().map(|part| part.page_bytes).max().unwrap();
    let content: u64 = parts.iter().map(|part| part.page_bytes * rng.range(6, 16)).sum();
    Case {
        total: largest + content.max(2 * largest) + rng.below(largest),
        sink: None,
        page_tokens: 1,
        pools: parts,
        compaction: Compaction::Lazy,
        prefer: Prefer::Full,
        engine: Engine::Accounting,
    }
}

/// A valid demand of at most `most` pages a pool.
fn random_demand(rng: &mut Rng, case: &Case, most: u64) -> Counts {
    let mut demand = [0; 4];
    demand.iter_mut().take(case.pools.len()).for_each(|pages| *pages = rng.below(most + 1));
    for (pool, spec) in case.pools.iter().enumerate() {
        if matches!(spec.kind, Kind::Window(_)) {
            demand[pool] = demand[pool].min(demand[case.full()]);
        }
    }
    demand
}

/// Runs `test` against a service over `case`, which must be whole afterwards.
fn with(case: &Case, test: impl AsyncFnOnce(&mut Bench<'_>)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let service = CacheService::start(case.config()).await.unwrap();
        let mut bench = Bench { case, cache: service.handle(), oracle: Oracle::new(case) };
        test(&mut bench).await;
        bench.cache.verify().await.unwrap();
        service.stop().await;
    });
}

fn evicted(reservation: &Reservation) -> Counts {
    std::array::from_fn(|pool| u64::from(reservation.receipt().evicted.0[pool].0))
}

impl Bench<'_> {
    async fn insert(&self, start: Token, count: u32) -> Result<(), AllocError> {
        let prompt = (start..start + count).collect();
        let mut sequence = self.cache.open(prompt, OpenOptions::default()).await?;
        sequence.extend(None, None).await?;
        sequence.finish(Publishing::PagesAndState).await
    }

    async fn reserve(&self, demand: Counts) -> Result<Reservation, AllocError> {
        let demand = ExactDemand::raw(self.cache.chain(), demand_of(demand)).unwrap();
        self.cache.reserve(demand, None).await
    }

    /// Holds and caches this and that, and gives some of it back, in part or whole.
    async fn fill(&self, rng: &mut Rng) -> Vec<Reservation> {
        let mut held = Vec::new();
        for _ in 0..rng.range(4, 14) {
            if rng.chance(2) {
                held.extend(self.reserve(random_demand(rng, self.case, 2)).await);
            } else {
                // What does not fit is not cached.
                let _ = self.insert(100 * rng.small(5), 1 + rng.small(5)).await;
            }
        }
        let other = self.case.pools.iter().position(|pool| pool.kind != Kind::Full).unwrap();
        for reservation in &mut held {
            if rng.chance(3) {
                reservation.release(&[PoolId(other as u8)]).await.unwrap();
            }
        }
        held.retain(|_| rng.below(4) > 0);
        self.cache.settle().await.unwrap();
        held
    }

    async fn counts(&self, of: impl Fn(&PoolStats) -> u32) -> Counts {
        let stats = self.cache.stats().await.unwrap();
        std::array::from_fn(|pool| stats.pools.get(pool).map_or(0, |pool| u64::from(of(pool))))
    }

    async fn matchable(&self) -> u64 {
        u64::from(self.cache.stats().await.unwrap().matchable.0)
    }

    /// Whether there is a placement for `demand` with `gone` pages given back.
    async fn fits(&mut self, gone: Counts, demand: Counts) -> bool {
        let live = self.counts(|pool| pool.counts.live.0).await;
        let pages = std::array::from_fn(|pool| live[pool] - gone[pool] + demand[pool]);
        self.oracle.fits(pages, [0; 4], [None; 4])
    }

    /// Whether the bytes alone, grids aside, would hold `demand` with `gone` given back.
    async fn fits_in_bytes(&self, gone: Counts, demand: Counts) -> bool {
        let live = self.counts(|pool| pool.counts.live.0).await;
        let pools = self.case.pools.iter().enumerate();
        let bytes: u64 = pools
            .map(|(pool, spec)| (live[pool] - gone[pool] + demand[pool]) * spec.page_bytes)
            .sum();
        bytes + self.cache.chain().sink().0 <= self.case.total
    }
}

/// How often each kind of case came up.
#[derive(Debug, Default)]
struct Seen {
    moved: u32,
    evicting: u32,
    refused: u32,
    by_grids: u32,
}

async fn judge_demand(bench: &mut Bench<'_>, demand: Counts, seen: &mut Seen) {
    let all = bench.counts(|pool| pool.evictable.0).await;
    let cached = bench.counts(|pool| pool.cached.0).await;
    let after_moves = bench.fits([0; 4], demand).await;
    let emptied = bench.fits(all, demand).await;
    let in_bytes = bench.fits_in_bytes(all, demand).await;
    let explained = bench.cache.explain(demand_of(demand)).await.unwrap();
    assert_eq!(explained, bench.cache.explain(demand_of(demand)).await.unwrap());
    assert_eq!(explained.fits_after_moves, after_moves);
    assert_eq!(explained.verdict.is_ok(), emptied);
    match bench.reserve(demand).await {
        Ok(reserved) => {
            assert!(emptied);
            assert_eq!(evicted(&reserved) == [0; 4], after_moves);
            seen.moved += u32::from(after_moves && reserved.receipt().moved_pages > 0);
            seen.evicting += u32::from(!after_moves);
            // Where it just was there is room for it.
            reserved.release_all().await.unwrap();
            let again = bench.reserve(demand).await.unwrap();
            assert_eq!(evicted(&again), [0; 4]);
        }
        Err(error) => {
            assert!(!emptied, "{error}");
            assert_eq!(bench.counts(|pool| pool.cached.0).await, cached);
            seen.refused += 1;
            seen.by_grids += u32::from(in_bytes && cached != [0; 4]);
        }
    }
}

#[test]
fn what_fits_is_granted_at_the_first_try_and_what_does_not_costs_nothing() {
    let mut seen = Seen::default();
    for seed in 0..1_500 {
        let mut rng = Rng(seed);
        let case = random_case(&mut rng, 3);
        with(&case, async |bench| {
            let _held = bench.fill(&mut rng).await;
            let most = rng.range(2, 16);
            judge_demand(bench, random_demand(&mut rng, &case, most), &mut seen).await;
        });
    }
    // Each kind must have come up, or nothing was shown.
    let Seen { moved, evicting, refused, by_grids } = seen;
    assert!(moved > 30 && evicting > 100 && refused > 100 && by_grids > 10, "{seen:?}");
}

#[test]
fn the_largest_demand_that_fits_is_granted_at_the_first_try_and_no_larger_one() {
    for seed in 10_000..10_545 {
        let mut rng = Rng(seed);
        let case = random_case(&mut rng, 3);
        with(&case, async |bench| {
            let _held = bench.fill(&mut rng).await;
            let all = bench.counts(|pool| pool.evictable.0).await;
            let mut demand = [0; 4];
            // Page by page, full pages first, as long as anything fits.
            let mut order = [0, 1, 2];
            order.rotate_left(case.full());
            let mut grew = true;
            while grew {
                grew = false;
                for pool in order {
                    let mut more = demand;
                    more[pool] += 1;
                    let window = matches!(case.pools[pool].kind, Kind::Window(_));
                    let valid = !window || more[pool] <= more[case.full()];
                    if valid && bench.fits(all, more).await {
                        (demand, grew) = (more, true);
                    }
                }
            }
            let mut beyond = demand;
            beyond[case.full()] += 1;
            assert!(bench.reserve(beyond).await.is_err(), "seed {seed}: {beyond:?}");
            if let Err(error) = bench.reserve(demand).await {
                panic!("seed {seed}: {demand:?} fits, yet {error}");
            }
        });
    }
}

#[test]
fn two_pools_of_independent_prefixes_lose_the_fewest_tokens_possible() {
    let mut losing = 0;
    for seed in 20_000..21_500 {
        let mut rng = Rng(seed);
        let case = random_case(&mut rng, 2);
        with(&case, async |bench| {
            for prefix in 0..rng.small(14) {
                // Without evictions so far, so that each page and its window page still serve a token.
                if !bench.fits([0; 4], [1, 1, 0, 0]).await {
                    break;
                }
                bench.insert(100 * prefix, 1).await.unwrap();
            }
            let most = rng.range(1, 9);
            let demand = random_demand(&mut rng, &case, most);
            let cached = bench.matchable().await;
            let mut least = 0;
            while least <= cached && !bench.fits([least, least, 0, 0], demand).await {
                least += 1;
            }
            let outcome = bench.reserve(demand).await;
            assert_eq!(outcome.is_ok(), least <= cached, "seed {seed}: {demand:?}");
            let lost = if outcome.is_ok() { least } else { 0 };
            assert_eq!(cached - bench.matchable().await, lost, "seed {seed}: {demand:?}");
            losing += u32::from(lost > 0);
        });
    }
    assert!(losing > 300, "{losing} of 1500");
}
