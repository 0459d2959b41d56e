//! A small service under test, and what must hold once everybody has let go.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use kvtide::config::Config;
use kvtide::device::Fault;
use kvtide::error::AllocError;
use kvtide::handle::{CacheHandle, OpenOptions, Reservation, Sequence};
use kvtide::report::Stats;
use kvtide::service::CacheService;
use kvtide_core::chain::{Grow, PoolKind, PoolSpec};
use kvtide_core::demand::{Demand, ExactDemand};
use kvtide_core::unit::{Bytes, Pages, Token, Tokens};
use tokio::task::JoinHandle;

/// Longer than any test takes.
pub const LONG: Option<Duration> = Some(Duration::from_secs(3_600));
/// Over before it is looked at.
pub const SHORT: Option<Duration> = Some(Duration::from_millis(1));

pub fn pool(name: &str, kind: PoolKind, grow: Grow, page_bytes: u64) -> PoolSpec {
    let name = name.to_owned();
    PoolSpec { name, kind, grow, page_bytes: Bytes(page_bytes), pages_max: None }
}

pub fn full(grow: Grow, page_bytes: u64) -> PoolSpec {
    pool("full", PoolKind::Full, grow, page_bytes)
}

pub fn swa(window: u32, grow: Grow, page_bytes: u64) -> PoolSpec {
    pool("swa", PoolKind::Window { window: Tokens(window) }, grow, page_bytes)
}

pub fn state(grow: Grow, page_bytes: u64) -> PoolSpec {
    pool("state", PoolKind::State, grow, page_bytes)
}

pub fn config(total: u64, page_tokens: u32, pools: Vec<PoolSpec>) -> Config {
    Config::from_pools("small", Bytes(total), Tokens(page_tokens), None, pools).unwrap()
}

/// One pool of ten pages of one token.
pub fn ten_pages() -> Config {
    config(11 * 32, 1, vec![full(Grow::Up, 32)])
}

pub fn with(mut config: Config, key: &str, value: impl Into<serde_json::Value>) -> Config {
    config.apply_flat_key(key, &value.into()).unwrap();
    config
}

/// Runs a test on a runtime of one thread, then on one of two.
pub fn on_both<F: Future<Output = ()>>(test: impl Fn() -> F) {
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    one.block_on(test());
    let mut two = tokio::runtime::Builder::new_multi_thread();
    two.worker_threads(2).enable_all().build().unwrap().block_on(test());
}

pub fn run<T>(test: impl Future<Output = T>) -> T {
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    one.block_on(test)
}

/// A running service.
pub struct Rig {
    pub service: CacheService,
    pub handle: CacheHandle,
}

impl Rig {
    pub async fn start(config: Config) -> Self {
        let service = CacheService::start(config).await.unwrap();
        let handle = service.handle();
        Rig { service, handle }
    }

    /// A demand by pool names, in pages.
    pub fn demand(&self, pages: &[(&str, u32)]) -> Demand {
        let chain = self.handle.chain();
        pages.iter().fold(Demand::default(), |demand, (name, pages)| {
            demand.with(chain.named(name).unwrap(), Pages(*pages)).unwrap()
        })
    }

    pub async fn reserve(
        &self,
        pages: &[(&str, u32)],
        wait: Option<Duration>,
    ) -> Result<Reservation, AllocError> {
        let demand = ExactDemand::raw(self.handle.chain(), self.demand(pages)).unwrap();
        self.handle.reserve(demand, wait).await
    }

    pub fn reserve_in_background(
        &self,
        pages: &[(&str, u32)],
        wait: Option<Duration>,
    ) -> JoinHandle<Result<Reservation, AllocError>> {
        let handle = self.handle.clone();
        let demand = ExactDemand::raw(handle.chain(), self.demand(pages)).unwrap();
        tokio::spawn(async move { handle.reserve(demand, wait).await })
    }

    /// A reservation that waits for memory.
    pub async fn reserve_later(
        &self,
        pages: &[(&str, u32)],
    ) -> JoinHandle<Result<Reservation, AllocError>> {
        let before = self.stats().await.waiting;
        let task = self.reserve_in_background(pages, LONG);
        self.until(|stats| stats.waiting > before).await;
        task
    }

    pub async fn open(&self, tokens: Vec<Token>) -> Result<Sequence, AllocError> {
        self.handle.open(tokens, OpenOptions::default()).await
    }

    /// Opens, computes and publishes.
    pub async fn insert(&self, tokens: Vec<Token>) {
        let mut sequence = self.open(tokens).await.unwrap();
        sequence.extend(None, None).await.unwrap();
        sequence.finish(Default::default()).await.unwrap();
    }

    pub async fn matched(&self, tokens: Vec<Token>) -> u32 {
        self.handle.cached(Default::default(), tokens).await.unwrap().tokens.0
    }

    pub async fn matched_full(&self, tokens: Vec<Token>) -> u32 {
        self.handle.cached(Default::default(), tokens).await.unwrap().full_tokens.0
    }

    pub async fn fault(&self, fault: Fault) {
        self.handle.fault(fault).await.unwrap();
    }

    pub async fn stats(&self) -> Stats {
        self.handle.stats().await.unwrap()
    }

    pub async fn live(&self, pool: usize) -> u32 {
        self.stats().await.pools[pool].counts.live.0
    }

    /// Returns once the service is in some state.
    pub async fn until(&self, reached: impl Fn(&Stats) -> bool) {
        while !reached(&self.stats().await) {
            tokio::task::yield_now().await;
        }
    }

    /// Once everything was dropped: nobody holds anything, all content is right, and all of every pool can be had.
    #[track_caller]
    pub fn rests(self) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            self.handle.settle().await.unwrap();
            self.handle.verify().await.unwrap_or_else(|error| panic!("{caller}: {error}"));
            let stats = self.stats().await;
            let open = (stats.sequences, stats.waiting, stats.leases, stats.gates);
            assert_eq!(open, (0, 0, 0, 0), "{caller}: {stats:?}");
            for pool in &stats.pools {
                let counts = pool.counts;
                assert_eq!(counts.live, pool.cached, "{caller}: {pool:?}");
                assert_eq!((pool.locked, counts.pending, counts.reserved), Default::default());
            }
            self.handle.flush().await.unwrap();
            self.handle.settle().await.unwrap();
            assert_eq!(self.handle.verify().await.unwrap().pages, 0, "{caller}");
            for pool in self.stats().await.pools {
                let mut everything = vec![(&*pool.name, pool.capacity.0)];
                if self
                    .handle
                    .chain()
                    .windows()
                    .iter()
                    .any(|id| self.handle.chain().pool(*id).name == *pool.name)
                {
                    let pair = self.handle.chain().full().unwrap();
                    let pair = self.handle.chain().pool(pair);
                    // A window page needs a full page, and the two share the arena.
                    let half = pool.capacity.0
                        / (1 + pair.page_bytes.0.div_ceil(pool.page_bytes.0)) as u32;
                    everything = vec![(&*pool.name, half), (&*pair.name, half)];
                }
                drop(
                    self.reserve(&everything, None)
                        .await
                        .unwrap_or_else(|e| panic!("{caller}: {e}")),
                );
            }
            self.service.stop().await;
        }
    }
}

/// Polls a future so many times, letting everything else run in between; then drops it, if it is not done.
pub async fn poll_then_drop<T>(future: impl Future<Output = T>, polls: u32) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return Some(done);
        }
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    }
    None
}

pub fn times(times: u32) -> NonZeroU32 {
    NonZeroU32::new(times).unwrap()
}

/// `count` tokens from `start` on.
pub fn tokens(start: Token, count: u32) -> Vec<Token> {
    (start..start + count).collect()
}
