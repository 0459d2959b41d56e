//! Allocations under way: what is left to do once their pages are there.

use kvtide_core::arena::{CopyBatch, LeaseId, Prepare};
use kvtide_core::chain::Chain;
use kvtide_core::demand::{AnyDemand, Demand};
use kvtide_core::tree::{Detached, Lock, Match, Namespace};
use kvtide_core::unit::{Bytes, Pages, PoolId, Token, Tokens, VirtId};
use tokio::time::Instant;

use crate::device::CopyTicket;
use crate::error::AllocError;
use crate::message::{
    AppendItem, Appended, Opened, Receipt, Reply, ReservationId, Reserved, SequenceId,
};

/// Names a job for ever.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct JobId(pub(super) u64);

/// One request that needs pages, from its first attempt to its answer.
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) work: Work,
    pub(super) deadline: Option<Instant>,
    /// What its last attempt asked for.
    pub(super) demand: Demand,
    pub(super) priority: Priority,
    /// When it first had to wait for what it asks for now.
    pub(super) since: Option<Instant>,
    pub(super) timer: Option<Timer>,
    pub(super) receipt: Receipt,
    /// A page under way that it may not write, to be copied first.
    pub(super) copy: Option<PageCopy>,
}

/// A page that a sequence is to write to and may not, and its copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageCopy {
    pub(super) id: SequenceId,
    pub(super) from: VirtId,
    /// Once there are pages for it: a full page, and one of every window.
    pub(super) to: Option<VirtId>,
}

impl PageCopy {
    /// The pages of the copy, window pages before the full page that they are bound under.
    pub(super) fn pages(&self, chain: &Chain) -> Vec<(PoolId, VirtId)> {
        let pools = chain.windows().iter().copied().chain(chain.full());
        self.to.iter().flat_map(|&to| pools.clone().map(move |pool| (pool, to))).collect()
    }
}

/// Says when a job's deadline passes, unless the job has ended before.
pub(super) struct Timer(tokio::task::AbortHandle);

impl Timer {
    pub(super) fn new(task: &tokio::task::JoinHandle<()>) -> Self {
        Timer(task.abort_handle())
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whether a job stands behind the queue of those that wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Priority {
    Newcomer,
    /// It waited, and it is its turn.
    Served,
}

/// What the pages are for.
pub(super) enum Work {
    Open(OpenWork),
    Fork(ForkWork),
    Extend(ExtendWork),
    Append(AppendWork),
    Checkpoint(CheckpointWork),
    Reserve(ReserveWork),
}

/// A sequence to be opened: matched and locked, its running state to be allocated.
pub(super) struct OpenWork {
    pub(super) id: SequenceId,
    pub(super) namespace: Namespace,
    pub(super) tokens: Vec<Token>,
    pub(super) matched: Match,
    pub(super) lock: Lock,
    pub(super) running: Vec<VirtId>,
    pub(super) reply: Reply<Opened>,
}

/// A second continuation of a sequence, its running state to be allocated.
pub(super) struct ForkWork {
    pub(super) parent: SequenceId,
    pub(super) child: SequenceId,
    pub(super) running: Vec<VirtId>,
    pub(super) reply: Reply<Receipt>,
}

/// A sequence to be extended to `target` computed tokens.
pub(super) struct ExtendWork {
    pub(super) id: SequenceId,
    pub(super) before: Tokens,
    pub(super) target: Tokens,
    /// Still to be met.
    pub(super) demand: Option<AnyDemand>,
    pub(super) reply: Reply<Receipt>,
}

/// Decode steps, sequence by sequence.
pub(super) struct AppendWork {
    pub(super) items: std::vec::IntoIter<AppendItem>,
    pub(super) current: Option<Appending>,
    pub(super) done: Vec<Appended>,
    pub(super) reply: Reply<Vec<Appended>>,
}

/// The sequence that an append works on.
pub(super) struct Appending {
    pub(super) item: AppendItem,
    pub(super) appended: u32,
    pub(super) claim: Claim,
}

/// Whether an append works on a sequence, or only wants to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Claim {
    Wanted,
    Held,
}

/// A state to be copied and published with the pages computed so far.
pub(super) struct CheckpointWork {
    pub(super) id: SequenceId,
    pub(super) slots: Vec<VirtId>,
    pub(super) reply: Reply<Receipt>,
}

/// A raw demand to be held.
pub(super) struct ReserveWork {
    pub(super) id: ReservationId,
    /// Still to be met.
    pub(super) demand: Option<AnyDemand>,
    pub(super) held: Option<Reserved>,
    pub(super) reply: Reply<Receipt>,
}

/// The prepare under way.
pub(super) struct Moving {
    pub(super) ticket: CopyTicket,
    pub(super) prepare: Prepare,
    pub(super) batches: Vec<CopyBatch>,
    pub(super) moved: Moved,
    pub(super) detached: Option<Detached>,
    pub(super) purpose: Purpose,
}

/// What a prepare moves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub(super) pages: Pages,
    pub(super) bytes: Bytes,
}

/// Whom a prepare is for.
pub(super) enum Purpose {
    /// An allocation.
    Job(Box<Job>),
    /// A pass that was asked for.
    Compact(Reply<Receipt>),
    /// Eager packing.
    Pack,
}

/// A copy of states under way, its pages held by a lease so that nothing moves them.
pub(super) struct Copying {
    pub(super) job: Job,
    pub(super) lease: LeaseId,
    pub(super) pairs: Vec<(PoolId, VirtId, VirtId)>,
}

impl Work {
    /// Whether nobody waits for the answer any more.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Work::Open(work) => work.reply.is_closed(),
            Work::Fork(work) => work.reply.is_closed(),
            Work::Extend(work) => work.reply.is_closed(),
            Work::Append(work) => work.reply.is_closed(),
            Work::Checkpoint(work) => work.reply.is_closed(),
            Work::Reserve(work) => work.reply.is_closed(),
        }
    }
}

impl Job {
    /// What it asked for is met: what it asks for next stands behind the queue again.
    pub(super) fn served(&mut self) {
        self.priority = Priority::Newcomer;
        self.since = None;
    }

    /// Pages that it holds and has not handed over yet (I4).
    pub(super) fn owned(&self, chain: &Chain) -> Vec<(PoolId, VirtId)> {
        let copy = self.copy.iter().flat_map(|copy| copy.pages(chain));
        let slots = match &self.work {
            Work::Open(work) => &work.running,
            Work::Fork(work) => &work.running,
            Work::Checkpoint(work) => &work.slots,
            Work::Reserve(work) => {
                return work.held.as_ref().map(|held| held.pages(chain)).unwrap_or_default();
            }
            Work::Extend(_) | Work::Append(_) => return copy.collect(),
        };
        chain.states().iter().copied().zip(slots.iter().copied()).collect()
    }
}

impl AppendWork {
    /// Ends the current sequence's part.
    pub(super) fn end_item(&mut self, stopped: Option<AllocError>, receipt: Receipt) {
        if let Some(appending) = self.current.take() {
            self.done.push(Appended { appended: Tokens(appending.appended), stopped, receipt });
        }
    }
}
