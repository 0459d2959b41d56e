//! Ways in which other managers of a shared arena go wrong, each as numbers that it must not come to here.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use kvtide::config::{Config, Engine};
use kvtide::error::AllocError;
use kvtide::handle::{CacheHandle, OpenOptions, Reservation};
use kvtide::message::Publishing;
use kvtide::service::CacheService;
use kvtide_core::chain::{Grow, PoolKind, PoolSpec};
use kvtide_core::demand::{Demand, ExactDemand};
use kvtide_core::unit::{Bytes, Pages, PoolId, Tokens};

const WINDOW: PoolKind = PoolKind::Window { window: Tokens(128) };

fn spec(name: &str, kind: PoolKind, grow: Grow, page_bytes: u64) -> PoolSpec {
    PoolSpec { name: name.into(), kind, grow, page_bytes: Bytes(page_bytes), pages_max: None }
}

/// Pools in byte order: states of 48 bytes, window pages of 128, full pages of 32.
fn three_pools() -> Vec<PoolSpec> {
    vec![
        spec("state", PoolKind::State, Grow::Up, 48),
        spec("swa", WINDOW, Grow::Float, 128),
        spec("full", PoolKind::Full, Grow::Down, 32),
    ]
}

async fn start(total: u64, page_tokens: u32, pools: Vec<PoolSpec>) -> CacheService {
    let config =
        Config::from_pools("peers", Bytes(total), Tokens(page_tokens), None, pools).unwrap();
    CacheService::start(config.with_engine(Engine::Accounting)).await.unwrap()
}

async fn insert(cache: &CacheHandle, start: u32, count: u32) {
    let prompt = (start..start + count).collect();
    let mut sequence = cache.open(prompt, OpenOptions::default()).await.unwrap();
    sequence.extend(None, None).await.unwrap();
    sequence.finish(Publishing::PagesAndState).await.unwrap();
}

/// A demand of pages per pool, in byte order.
fn demand(pages: &[u32]) -> Demand {
    let mut demand = Demand::default();
    for (pool, &count) in pages.iter().enumerate() {
        demand.0.0[pool] = Pages(count);
    }
    demand
}

async fn reserve(cache: &CacheHandle, pages: &[u32]) -> Result<Reservation, AllocError> {
    cache.reserve(ExactDemand::raw(cache.chain(), demand(pages)).unwrap(), None).await
}

/// Matchable tokens, and cached pages per pool.
async fn cached(cache: &CacheHandle) -> (u32, Vec<u32>) {
    let stats = cache.stats().await.unwrap();
    (stats.matchable.0, stats.pools.iter().map(|pool| pool.cached.0).collect())
}

#[tokio::test]
async fn holes_inside_a_float_count_at_every_scale() {
    for holes in [20, 100, 400, 800_u32] {
        // For each hole five pairs and four states, above a sink of 128 bytes; 128 bytes are spare.
        let total = 128 + u64::from(holes) * (5 * 160 + 4 * 48) + 128;
        let service = start(total, 1, three_pools()).await;
        let cache = service.handle();
        let mut held = Vec::new();
        for index in 0..holes {
            held.push(reserve(&cache, &[0, 1, 1]).await.unwrap());
            for prompt in 0..4 {
                insert(&cache, 1_000 * (4 * index + prompt + 1), 1).await;
            }
        }
        let (before, _) = cached(&cache).await;
        assert_eq!(before, 4 * holes);
        for reservation in &mut held {
            reservation.release(&[PoolId(1)]).await.unwrap();
        }
        let taken = reserve(&cache, &[0, holes, holes]).await.unwrap();
        // The window side has its holes: 32 bytes a page are short, 128 spare, and a prefix gives 208; where three page
        // grids meet, one prefix more may have to lose its match.
        let needed = (32 * holes - 128).div_ceil(208);
        let evicted = taken.receipt().evicted;
        assert!(evicted.0[2].0 <= needed, "{holes}: {evicted:?}");
        let (after, _) = cached(&cache).await;
        assert!(after >= before - needed - 1, "{holes}: {before} became {after}");
        cache.verify().await.unwrap();
        service.stop().await;
    }
}

#[tokio::test]
async fn window_pages_that_no_match_needs_pay_before_any_prefix() {
    for pairs in 1..=32 {
        let window = PoolKind::Window { window: Tokens(4) };
        let pools =
            vec![spec("swa", window, Grow::Up, 128), spec("full", PoolKind::Full, Grow::Down, 32)];
        let service = start(128 + 45 * 160, 1, pools).await;
        let cache = service.handle();
        insert(&cache, 0, 30).await;
        insert(&cache, 0, 45).await;
        let taken = reserve(&cache, &[pairs, pairs]).await.unwrap();
        assert_eq!(taken.receipt().evicted.0[1], Pages(0), "{pairs} pairs");
        let found = cache.cached(Default::default(), (0..46).collect()).await.unwrap();
        assert_eq!(found.tokens, Tokens(45), "{pairs} pairs");
        service.stop().await;
    }
}

#[tokio::test]
async fn a_refusal_costs_nothing_and_a_smaller_demand_is_still_met() {
    let service = start(128 + 4_000, 1, three_pools()).await;
    let cache = service.handle();
    let _held = reserve(&cache, &[3, 5, 9]).await.unwrap();
    for prompt in 0..6 {
        insert(&cache, 1_000 * prompt, 1 + prompt % 3).await;
    }
    let before = cached(&cache).await;
    let mut largest = 0;
    for pairs in (1..60).rev() {
        match reserve(&cache, &[0, pairs, pairs]).await {
            Ok(_) => {
                largest = pairs;
                break;
            }
            Err(AllocError::Exhausted { .. } | AllocError::Impossible { .. }) => {
                assert_eq!(cached(&cache).await, before, "{pairs} pairs");
            }
            Err(error) => panic!("{pairs} pairs: {error}"),
        }
    }
    // Three states end at byte 288, so window pages start at 384; full pages end at 4,128:
    // (3,744 - 5 x 128 - 9 x 32) / 160 = 17.6.
    assert_eq!(largest, 17);
    service.stop().await;
}

#[tokio::test]
async fn what_fits_once_pages_move_evicts_nothing() {
    let pools = vec![
        spec("full", PoolKind::Full, Grow::Up, 32),
        spec("state", PoolKind::State, Grow::Down, 96),
    ];
    let service = start(1_056, 1, pools).await;
    let cache = service.handle();
    let mut held = Vec::new();
    for _ in 0..15 {
        held.push(reserve(&cache, &[1]).await.unwrap());
    }
    insert(&cache, 0, 10).await;
    let before = cached(&cache).await;
    for index in [12, 9, 6, 3, 0] {
        held.remove(index).release_all().await.unwrap();
    }
    let taken = reserve(&cache, &[0, 1]).await.unwrap();
    assert_eq!((taken.receipt().evicted.0[0], taken.receipt().moved_pages), (Pages(0), 1));
    assert_eq!(cached(&cache).await, before);
    service.stop().await;
}

#[tokio::test]
async fn a_demand_that_fails_on_page_grids_alone_evicts_nothing() {
    let pools =
        vec![spec("full", PoolKind::Full, Grow::Up, 32), spec("swa", WINDOW, Grow::Down, 48)];
    let service = start(318, 1, pools).await;
    let cache = service.handle();
    insert(&cache, 0, 2).await;
    let before = cached(&cache).await;
    // The sink's 48 bytes and three pairs are 288 of 318; but full pages start at 64, and window pages end at 288.
    let refused = reserve(&cache, &[3, 3]).await.err().unwrap();
    assert_eq!(refused.name(), "impossible");
    assert_eq!(cached(&cache).await, before);
    assert!(reserve(&cache, &[2, 2]).await.is_ok());
    service.stop().await;
}

#[tokio::test]
async fn the_same_question_has_the_same_answer() {
    let service = start(128 + 6_000, 1, three_pools()).await;
    let cache = service.handle();
    let _held = reserve(&cache, &[4, 7, 7]).await.unwrap();
    for prompt in 0..8 {
        insert(&cache, 1_000 * prompt, 1 + prompt % 4).await;
    }
    let mut number = 1_u64;
    let mut below = |bound: u64| {
        number =
            number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((number >> 33) % bound) as u32
    };
    for _ in 0..1_500 {
        let full = below(60);
        let question = demand(&[below(40), below(u64::from(full) + 1), full]);
        let first = cache.explain(question).await.unwrap();
        assert_eq!(first, cache.explain(question).await.unwrap());
    }
    service.stop().await;
}

#[tokio::test]
async fn eight_states_at_once_where_eight_fit_and_not_nine() {
    let pools = vec![
        spec("state", PoolKind::State, Grow::Up, 176),
        spec("swa", WINDOW, Grow::Float, 32),
        spec("full", PoolKind::Full, Grow::Down, 32),
    ];
    let service = start(7_808, 1, pools).await;
    let cache = service.handle();
    let _pairs = reserve(&cache, &[0, 96, 96]).await.unwrap();
    assert!(reserve(&cache, &[9]).await.is_err());
    assert!(reserve(&cache, &[8]).await.is_ok());
    service.stop().await;
}

#[tokio::test]
async fn a_leaf_gives_one_page_where_one_page_is_short() {
    let pools = vec![spec("full", PoolKind::Full, Grow::Up, 64)];
    let service = start(64 * 65, 16, pools).await;
    let cache = service.handle();
    insert(&cache, 0, 512).await;
    insert(&cache, 10_000, 512).await;
    let taken = reserve(&cache, &[1]).await.unwrap();
    assert_eq!(taken.receipt().evicted.0[0], Pages(1));
    assert_eq!(cached(&cache).await, (1_024 - 16, vec![63]));
    service.stop().await;
}
