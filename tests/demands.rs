//! Demands that know less, or need less, than a plain extend: window tails and conservative bounds, through the service.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use kvtide::config::Config;
use kvtide::handle::{CacheHandle, OpenOptions};
use kvtide::message::Publishing;
use kvtide::service::CacheService;
use kvtide_core::chain::{Grow, PoolKind, PoolSpec};
use kvtide_core::demand::{ConservativeDemand, DemandError, Extend, WindowDemand};
use kvtide_core::unit::{Bytes, Pages, Tokens};

async fn start() -> CacheService {
    let spec = |name: &str, kind, grow| PoolSpec {
        name: name.to_owned(),
        kind,
        grow,
        page_bytes: Bytes(64),
        pages_max: None,
    };
    let window = PoolKind::Window { window: Tokens(8) };
    let pools = vec![spec("full", PoolKind::Full, Grow::Up), spec("window", window, Grow::Down)];
    let config = Config::from_pools("demands", Bytes(64 * 64), Tokens(4), None, pools).unwrap();
    CacheService::start(config).await.unwrap()
}

async fn live(handle: &CacheHandle) -> Vec<u32> {
    let stats = handle.stats().await.unwrap();
    stats.pools.iter().map(|pool| pool.counts.live.0).collect()
}

#[tokio::test]
async fn a_fetched_prefix_takes_window_pages_for_its_tail_only_and_is_matched_whole() {
    let service = start().await;
    let handle = service.handle();
    let mut sequence = handle.open((0..40).collect(), OpenOptions::default()).await.unwrap();
    sequence.extend_fetched(None, None).await.unwrap();
    assert_eq!(live(&handle).await, [10, 2]);
    sequence.finish(Publishing::Pages).await.unwrap();
    let matched = handle.cached(Default::default(), (0..41).collect()).await.unwrap();
    assert_eq!(matched.tokens, Tokens(40));
    handle.verify().await.unwrap();
    service.stop().await;
}

#[tokio::test]
async fn window_pages_computed_before_a_fetched_part_are_given_back_as_decode_goes_on() {
    let service = start().await;
    let handle = service.handle();
    let mut sequence = handle.open((0..40).collect(), OpenOptions::default()).await.unwrap();
    sequence.extend(Some(Tokens(12)), None).await.unwrap();
    sequence.extend_fetched(None, None).await.unwrap();
    assert_eq!(live(&handle).await, [10, 5]);
    sequence.append((100..108).collect(), None).await.unwrap();
    // 48 tokens computed: the window covers pages 10 and 11 only.
    assert_eq!(live(&handle).await, [12, 2]);
    drop(sequence);
    handle.verify().await.unwrap();
    assert_eq!(live(&handle).await, [0, 0]);
    service.stop().await;
}

#[tokio::test]
async fn a_shard_may_reserve_the_most_that_it_could_need() {
    let service = start().await;
    let handle = service.handle();
    let extend = Extend { old: Tokens(0), new: Tokens(40), windows: WindowDemand::Every };
    let bound = |ranks| ConservativeDemand::for_shards(handle.chain(), &[extend], ranks);
    // Ten pages dealt out to four ranks: at most three, and one more where a share is cut at both ends.
    let held = handle.reserve(bound(4).unwrap(), None).await.unwrap();
    assert_eq!(live(&handle).await, [4, 4]);
    assert_eq!(held.receipt().evicted.0, [Pages(0); 8]);
    assert_eq!(bound(0).unwrap_err(), DemandError::NoRanks);
    drop(held);
    handle.settle().await.unwrap();
    assert_eq!(live(&handle).await, [0, 0]);
    service.stop().await;
}
