//! The allocator actor: sole owner of the arena, and of every sequence, reservation, lease and gate.
//!
//! The life of an allocation: what fits now is bound at once. Otherwise the radix actor plans what has to go, the victims
//! are detached, and the arena plans what has to move. With nothing to move, that is committed at once; else the prepare
//! is a transaction: its job is set aside, the compactor copies, and the commit comes with the completion. Meanwhile
//! whatever does not touch the promised layout is served; what needs a prepare of its own is deferred.
//!
//! It asks the radix actor and tells the compactor; neither ever asks back, so no two actors wait for each other. What it
//! does *not* know: which prefixes are cached, and what bytes lie in a page.

mod allocate;
mod append;
mod copies;
mod fork;
mod holds;
mod inspect;
mod job;
mod park;
mod publish;
mod queue;
mod sequences;
mod truncate;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kameo::Actor;
use kameo::actor::ActorRef;
use kameo::error::Infallible;
use kameo::message::{Context, Message};
use kvtide_core::arena::{Arena, GateId, LeaseId};
use kvtide_core::chain::Chain;
use kvtide_core::sequence::Sequence;
use kvtide_core::tree::{Lock, Prefer, Quota};
use kvtide_core::unit::{Pages, PoolId, VirtId};
use tokio::sync::mpsc;
use tracing::Instrument;

use crate::compactor::{Compactor, CopyEnded};
use crate::device::{CopyTicket, WorkerHandle};
use crate::error::{AllocError, ServiceError};
use crate::message::{
    GateKey, Reply, Request, ReservationId, Reserved, Returned, SequenceId, StepId,
};
use crate::radix::Radix;
use crate::report::Totals;

pub(crate) use job::JobId;
use job::{Copying, Job, Moving};
use queue::Waiting;

/// How the allocator behaves, from the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) prefer: Prefer,
    pub(crate) quota: Quota,
    pub(crate) packing: Packing,
    pub(crate) content: Content,
    pub(crate) queue_max: usize,
    pub(crate) bypass_max: std::time::Duration,
    pub(crate) pages_per_launch: Pages,
}

/// When holes are closed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Packing {
    /// When a demand needs the bytes, or on request.
    Lazy,
    /// As soon as a free left them.
    Eager,
}

/// Whether the engine keeps bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Content {
    /// Every page handed out is written, so that a verification has something to read.
    Written,
    /// There are none.
    None,
}

/// Owns the arena and everything that holds its pages.
pub(crate) struct Allocator {
    chain: Arc<Chain>,
    names: Arc<[Arc<str>]>,
    policy: Policy,
    arena: Arena,
    sequences: BTreeMap<SequenceId, Slot>,
    /// Pages that forks share: how many sequences more than one.
    shares: BTreeMap<(PoolId, VirtId), u32>,
    reservations: BTreeMap<ReservationId, Reserved>,
    steps: BTreeMap<StepId, Step>,
    gates: BTreeMap<GateKey, Gate>,
    /// The one prepare under way.
    moving: Option<Moving>,
    /// Copies of states under way.
    copying: BTreeMap<CopyTicket, Copying>,
    /// Jobs that need a prepare while another is under way.
    deferred: VecDeque<Job>,
    /// Jobs that wait for memory, first come first.
    waiting: VecDeque<Waiting>,
    /// Requests to be answered once nothing moves.
    settling: Vec<Reply<()>>,
    /// Steps, gates and passes that a prepare under way holds up.
    held_up: VecDeque<Request>,
    /// Steps over a state that is being copied.
    after_copies: VecDeque<Request>,
    /// Requests that can be served now.
    ready: VecDeque<Request>,
    /// For those who wait.
    progress: Progress,
    /// For eager packing.
    packing_due: Progress,
    next: u64,
    epoch: u64,
    totals: Totals,
    radix: ActorRef<Radix>,
    compactor: ActorRef<Compactor>,
    worker: WorkerHandle,
    returned: mpsc::UnboundedReceiver<Returned>,
}

/// What an [`Allocator`] is made of.
pub(crate) struct Parts {
    pub(crate) chain: Arc<Chain>,
    pub(crate) policy: Policy,
    pub(crate) radix: ActorRef<Radix>,
    pub(crate) compactor: ActorRef<Compactor>,
    pub(crate) worker: WorkerHandle,
    pub(crate) returned: mpsc::UnboundedReceiver<Returned>,
}

/// An open sequence, and what is being done with it.
struct Slot {
    sequence: Sequence,
    activity: Activity,
    /// Requests of an owner that gave up on an earlier one.
    queued: VecDeque<Request>,
}

/// Whether a job works on a sequence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Activity {
    Idle,
    Working,
    /// A job works on it, and nobody wants it any more.
    Doomed,
}

/// A lease: pages held in the arena, prefixes locked in the tree.
struct Step {
    lease: LeaseId,
    locks: Vec<Hold>,
}

/// A lease's hold on the tree.
struct Hold {
    /// Whose hold it follows; nobody's once that has gone back to where it came from.
    sequence: Option<SequenceId>,
    /// Pages that were nobody's but sequences' when the lease began: it follows them when they are published.
    own: Vec<VirtId>,
    lock: Lock,
}

/// A closed gate.
struct Gate {
    id: GateId,
    reason: String,
    pools: Vec<PoolId>,
}

/// Whether something happened that a waiting allocation could use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Progress {
    None,
    /// What stood in the way has ended, and freed nothing.
    Ended,
    Memory,
}

impl Actor for Allocator {
    type Args = Parts;
    type Error = Infallible;

    async fn on_start(parts: Parts, _: ActorRef<Self>) -> Result<Self, Self::Error> {
        Ok(Allocator::new(parts))
    }
}

impl Message<Request> for Allocator {
    type Reply = ();

    async fn handle(&mut self, request: Request, ctx: &mut Context<Self, Self::Reply>) {
        let me = ctx.actor_ref().clone();
        self.collect().await;
        let (name, sequence) = (request.name(), request.sequence().map(|id| id.0));
        let span = tracing::debug_span!("serve", request = name, sequence);
        self.serve(request, &me).instrument(span).await;
        self.pump(&me).await;
    }
}

impl Message<CopyEnded> for Allocator {
    type Reply = ();

    async fn handle(&mut self, done: CopyEnded, ctx: &mut Context<Self, Self::Reply>) {
        let me = ctx.actor_ref().clone();
        self.collect().await;
        self.totals.copy_nanos += (done.seconds * 1e9) as u64;
        if self.moving.as_ref().is_some_and(|moving| moving.ticket == done.ticket) {
            self.end_prepare(done.outcome).await;
        } else if let Some(copying) = self.copying.remove(&done.ticket) {
            self.end_copying(copying, done.outcome).await;
        }
        self.pump(&me).await;
    }
}

impl Allocator {
    fn new(parts: Parts) -> Self {
        let Parts { chain, policy, radix, compactor, worker, returned } = parts;
        let names =
            chain.pool_ids().map(|pool| Arc::from(chain.pool(pool).name.as_str())).collect();
        Allocator {
            arena: Arena::new((*chain).clone()),
            names,
            chain,
            policy,
            sequences: BTreeMap::new(),
            shares: BTreeMap::new(),
            reservations: BTreeMap::new(),
            steps: BTreeMap::new(),
            gates: BTreeMap::new(),
            moving: None,
            copying: BTreeMap::new(),
            deferred: VecDeque::new(),
            waiting: VecDeque::new(),
            settling: Vec::new(),
            held_up: VecDeque::new(),
            after_copies: VecDeque::new(),
            ready: VecDeque::new(),
            progress: Progress::None,
            packing_due: Progress::None,
            next: 0,
            epoch: 0,
            totals: Totals::default(),
            radix,
            compactor,
            worker,
            returned,
        }
    }

    async fn serve(&mut self, request: Request, me: &ActorRef<Self>) {
        match request {
            Request::Open { id, namespace, user, tokens, deadline, reply } => {
                self.open(id, (namespace, user), tokens, deadline, reply, me).await;
            }
            Request::Extend { .. }
            | Request::Append { .. }
            | Request::Fork { .. }
            | Request::Park { .. }
            | Request::Resume { .. }
            | Request::Truncate { .. }
            | Request::Checkpoint { .. }
            | Request::Finish { .. } => self.serve_sequence(request, me).await,
            Request::Reserve { id, demand, deadline, reply } => {
                self.reserve(id, demand, deadline, reply, me).await;
            }
            Request::Release { id, pools, reply } => {
                let _ = reply.send(self.release(id, &pools));
            }
            Request::BeginStep { id, sequences, reply } => {
                self.begin_step(id, sequences, reply).await;
            }
            Request::CloseMoves { key, reason, pools, reply } => {
                self.close_moves(key, reason, pools, reply);
            }
            Request::Compact { budget, reply } => self.compact(budget, reply, me).await,
            Request::Settle { reply } => self.settling.push(reply),
            Request::Fault { fault, reply } => {
                let sent = self.worker.fault(fault).await;
                let lost =
                    |lost: crate::device::DeviceLost| ServiceError::DeviceLost(lost.to_string());
                let _ = reply.send(sent.map_err(|error| lost(error).into()));
            }
            Request::Collect { reply } => {
                if let Some(reply) = reply {
                    let _ = reply.send(Ok(()));
                }
            }
            Request::Expire(job) => self.expire(job).await,
            Request::Cached { .. }
            | Request::CloseSession { .. }
            | Request::Explain { .. }
            | Request::Flush { .. }
            | Request::Stats { .. }
            | Request::Verify { .. } => self.inspect(request).await,
        }
    }

    /// A number never given before.
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Frees pages, and notes that somebody may have waited for them. What forks share is free once the last gives it up.
    fn free(&mut self, pages: impl IntoIterator<Item = (PoolId, VirtId)>) {
        for (pool, virt) in pages {
            if self.gives_up_share(pool, virt) {
                continue;
            }
            let freed = self.arena.free(pool, virt);
            debug_assert!(freed.is_ok(), "I4: only an owner frees a page");
            self.progress = Progress::Memory;
        }
    }
}

/// The error of an actor that no longer answers: it panicked, or the service is stopping.
fn gone<T>(_: T) -> AllocError {
    AllocError::Service(ServiceError::Reset)
}
