//! Starting and stopping the actors.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kameo::actor::{ActorRef, Spawn};
use kameo::mailbox;
use kvtide_core::chain::Chain;
use kvtide_core::tree::{PolicyKind, Prefer, Quota, Tree, TreeSettings};
use kvtide_core::unit::{Pages, Tokens};
use tokio::sync::{mpsc, oneshot};

use crate::allocator::{Allocator, Content, Packing, Parts, Policy};
use crate::compactor::Compactor;
use crate::config::{self, CacheConfig, Compaction, Config, Engine, Sections};
use crate::device::{self, DeviceUnavailable, EngineKind, GpuWorker, Grids, WorkerHandle};
use crate::error::StartError;
use crate::handle::CacheHandle;
use crate::message::Request;
use crate::radix::Radix;

/// The running actors. Dropping it stops them.
///
/// Messages go allocator → radix and allocator → compactor → GPU worker, and never back by asking.
pub struct CacheService {
    handle: CacheHandle,
    shared: Arc<Shared>,
    allocator: ActorRef<Allocator>,
    radix: ActorRef<Radix>,
    compactor: ActorRef<Compactor>,
    worker: WorkerHandle,
}

/// What handles share.
pub(crate) struct Shared {
    pub(crate) chain: Arc<Chain>,
    pub(crate) allocator: ActorRef<Allocator>,
    pub(crate) returns: crate::message::ReturnPath,
    next: AtomicU64,
    /// Set once, when the service stops taking requests.
    stopping: AtomicBool,
}

impl Shared {
    /// Whether the service has stopped, or is about to.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// A number never given before by this service.
    pub(crate) fn fresh(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl CacheService {
    /// Starts the device worker and the actors, and waits until each is up.
    ///
    /// # Errors
    /// [`StartError::DeviceUnavailable`] if the engine cannot be had: its memory, for one.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let chain = Arc::new(config.chain.clone());
        let worker = start_worker(&config, &chain)?;
        let depth = config.sections.service.mailbox as usize;
        let tree = Tree::new(&chain, tree_settings(&config.sections.cache));
        let radix = Radix::spawn_with_mailbox(Radix { tree }, mailbox::bounded(depth));
        let compactor =
            Compactor::spawn_with_mailbox(Compactor::new(worker.clone()), mailbox::bounded(depth));
        let (returns, returned) = mpsc::unbounded_channel();
        let parts = Parts {
            chain: Arc::clone(&chain),
            policy: policy(&config.sections),
            radix: radix.clone(),
            compactor: compactor.clone(),
            worker: worker.clone(),
            returned,
        };
        let allocator = Allocator::spawn_with_mailbox(parts, mailbox::bounded(depth));
        radix.wait_for_startup_result().await.map_err(|_| StartError::NotStarted("radix"))?;
        let started = compactor.wait_for_startup_result().await;
        started.map_err(|_| StartError::NotStarted("compactor"))?;
        let started = allocator.wait_for_startup_result().await;
        started.map_err(|_| StartError::NotStarted("allocator"))?;
        let (next, stopping) = (AtomicU64::new(1), AtomicBool::new(false));
        let shared =
            Arc::new(Shared { chain, allocator: allocator.clone(), returns, next, stopping });
        let handle = CacheHandle::new(Arc::clone(&shared));
        Ok(CacheService { handle, shared, allocator, radix, compactor, worker })
    }

    /// A handle to the service: cheap to clone, usable from any task.
    #[must_use]
    pub fn handle(&self) -> CacheHandle {
        self.handle.clone()
    }

    /// Stops the service: requests already accepted are answered and copies under way are awaited (for ten seconds
    /// at most); what waits for memory and what comes later gets `Stopped`.
    pub async fn stop(self) {
        self.shared.stopping.store(true, Ordering::Release);
        let _ = tokio::time::timeout(STOP_MAX, self.drain()).await;
        // An actor that is gone already needs no stopping.
        let _ = self.allocator.stop_gracefully().await;
        let _ = tokio::time::timeout(STOP_MAX, self.allocator.wait_for_shutdown()).await;
        let _ = self.compactor.stop_gracefully().await;
        let _ = self.radix.stop_gracefully().await;
        // A worker that is gone already needs no stopping.
        let _ = self.worker.stop().await;
    }

    /// Returns once everything accepted before is answered and nothing moves any more.
    async fn drain(&self) {
        let (reply, settled) = oneshot::channel();
        if self.allocator.tell(Request::Settle { reply }).send().await.is_ok() {
            let _ = settled.await;
        }
    }
}

impl Drop for CacheService {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.allocator.kill();
        self.compactor.kill();
        self.radix.kill();
    }
}

/// The longest that stopping waits for the allocator to answer what it has accepted.
const STOP_MAX: Duration = Duration::from_secs(10);

fn start_worker(config: &Config, chain: &Chain) -> Result<WorkerHandle, StartError> {
    let device = &config.sections.device;
    let kind = match device.engine {
        Engine::Host => EngineKind::Host,
        Engine::Accounting => EngineKind::Accounting,
    };
    let unavailable = |error: DeviceUnavailable| StartError::DeviceUnavailable(error.to_string());
    let engine = device::open(kind, Grids::of(chain)).map_err(unavailable)?;
    let depth = NonZeroUsize::new(device.queue_depth as usize).unwrap_or(NonZeroUsize::MIN);
    let started = GpuWorker::spawn(engine, depth, device.copy_timeout).map_err(unavailable)?;
    Ok(started.0)
}

fn tree_settings(cache: &CacheConfig) -> TreeSettings {
    TreeSettings {
        policy: match cache.policy {
            config::Policy::Lru => PolicyKind::Lru,
            config::Policy::Lfu => PolicyKind::Lfu,
            config::Policy::Fifo => PolicyKind::Fifo,
            config::Policy::Mru => PolicyKind::Mru,
            config::Policy::Filo => PolicyKind::Filo,
            config::Policy::Priority => PolicyKind::Priority,
            config::Policy::Slru => PolicyKind::Slru,
            config::Policy::Tlru => PolicyKind::Tlru,
        },
        slru_protected_hits: cache.slru_protected_hits,
        tlru_latency: Tokens(cache.tlru_latency_tokens),
        tlru_next_prompt: Tokens(cache.tlru_next_prompt_tokens),
        max_sessions: cache.max_sessions,
    }
}

fn policy(sections: &Sections) -> Policy {
    Policy {
        prefer: match sections.reclaim.prefer {
            config::Prefer::Full => Prefer::Full,
            config::Prefer::Window => Prefer::Window,
        },
        quota: match sections.reclaim.quota {
            config::Quota::None => Quota::None,
            config::Quota::Demand => Quota::Demand,
            config::Quota::Bytes(bytes) => Quota::Bytes(bytes),
        },
        packing: match sections.cache.compaction {
            Compaction::Lazy => Packing::Lazy,
            Compaction::Eager => Packing::Eager,
        },
        content: match sections.device.engine {
            Engine::Host => Content::Written,
            Engine::Accounting => Content::None,
        },
        queue_max: sections.queue.capacity as usize,
        bypass_max: sections.queue.max_bypass,
        pages_per_launch: Pages(sections.device.max_pages_per_launch),
    }
}
