//! What the allocator is asked, and what it answers.

use std::time::Duration;

use kvtide_core::chain::Chain;
use kvtide_core::demand::{AnyDemand, Demand, WindowDemand};
use kvtide_core::tree::{Namespace, SessionId, User};
use kvtide_core::unit::{Bytes, PageId, Pages, PerPool, PoolId, Token, Tokens, VirtId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::device::Fault;
use crate::error::AllocError;
use crate::report::{Explanation, Stats, Verified};

/// Where an answer goes. An asker that is gone gets nothing, and keeps nothing.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, AllocError>>;

/// Names a sequence for ever.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SequenceId(pub u64);

/// Names a reservation for ever.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct ReservationId(pub(crate) u64);

/// Names a lease for ever.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct StepId(pub(crate) u64);

/// Names a closed gate for ever.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct GateKey(pub(crate) u64);

/// Something given back by a handle that was dropped.
#[derive(Debug)]
pub(crate) enum Returned {
    Sequence(SequenceId),
    Reservation(ReservationId),
    Step(StepId),
    Gate(GateKey),
    /// A call whose answer nobody waits for any more.
    Call,
}

/// The way back for dropped handles and calls: unbounded by type, bounded by the number of those that live.
pub(crate) type ReturnPath = mpsc::UnboundedSender<Returned>;

/// What one allocation did to get its pages.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Receipt {
    /// Pages evicted from the tree, per pool.
    pub evicted: PerPool<Pages>,
    /// Pages moved.
    pub moved_pages: u64,
    /// Bytes moved.
    pub moved_bytes: Bytes,
    /// Prepare phases: at most two per allocation.
    pub prepares: u64,
    /// How long it waited for memory.
    pub waited: Duration,
}

impl Receipt {
    /// Adds what another allocation of the same request did.
    pub(crate) fn add(&mut self, other: &Receipt) {
        for (evicted, more) in self.evicted.0.iter_mut().zip(other.evicted.0) {
            evicted.0 += more.0;
        }
        self.moved_pages += other.moved_pages;
        self.moved_bytes.0 += other.moved_bytes.0;
        self.prepares += other.prepares;
        self.waited += other.waited;
    }
}

/// What a match gives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Matched {
    /// Tokens that every pool can serve.
    pub tokens: Tokens,
    /// How far full pages alone went: up to there a state checkpoint would pay.
    pub full_tokens: Tokens,
}

/// How a decode step, or several, went.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Appended {
    /// Tokens appended.
    pub appended: Tokens,
    /// Why the next one was not.
    pub stopped: Option<AllocError>,
    /// What it took.
    pub receipt: Receipt,
}

/// Whether a closing sequence leaves its pages in the cache.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Publishing {
    /// Its pages and, at a page boundary, its running state.
    #[default]
    PagesAndState,
    /// Its pages only.
    Pages,
    /// Nothing.
    Nothing,
}

/// Whether anything of a reservation is still held.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Left {
    /// Pages of some pools.
    Pages,
    /// Nothing.
    Nothing,
}

/// One sequence's part in an append of many.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct AppendItem {
    pub(crate) id: SequenceId,
    pub(crate) tokens: Vec<Token>,
    pub(crate) windows: Shedding,
}

/// Whether window pages that an append leaves behind are given back at once.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Shedding {
    #[default]
    Now,
    /// Not before the next append or truncation: the tokens may be taken back.
    Later,
}

/// The pages of one sequence in a step, by position.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PageTable {
    /// Physical pages of the full pool, in order.
    pub full: Vec<PageId>,
    /// Per window ordinal: the first position that has one, and the pages from there on.
    pub windows: Vec<(Pages, Vec<PageId>)>,
    /// Running slots, by state ordinal.
    pub states: Vec<PageId>,
}

pub(crate) struct Opened {
    pub(crate) id: SequenceId,
    pub(crate) matched: Matched,
    pub(crate) receipt: Receipt,
}

pub(crate) struct Begun {
    pub(crate) epoch: u64,
    pub(crate) tables: Vec<(SequenceId, PageTable)>,
}

/// A request to the allocator.
pub(crate) enum Request {
    Open {
        id: SequenceId,
        namespace: Namespace,
        user: User,
        tokens: Vec<Token>,
        deadline: Option<Instant>,
        reply: Reply<Opened>,
    },
    Extend {
        id: SequenceId,
        count: Option<Tokens>,
        windows: WindowDemand,
        deadline: Option<Instant>,
        reply: Reply<Receipt>,
    },
    Append {
        items: Vec<AppendItem>,
        deadline: Option<Instant>,
        reply: Reply<Vec<Appended>>,
    },
    Fork {
        id: SequenceId,
        child: SequenceId,
        deadline: Option<Instant>,
        reply: Reply<Receipt>,
    },
    Park {
        id: SequenceId,
        publishing: Publishing,
        reply: Reply<()>,
    },
    Resume {
        id: SequenceId,
        deadline: Option<Instant>,
        reply: Reply<Opened>,
    },
    Truncate {
        id: SequenceId,
        count: Tokens,
        reply: Reply<()>,
    },
    Checkpoint {
        id: SequenceId,
        publishing: Publishing,
        deadline: Option<Instant>,
        reply: Reply<Receipt>,
    },
    Finish {
        id: SequenceId,
        publishing: Publishing,
        reply: Reply<()>,
    },
    Cached {
        namespace: Namespace,
        tokens: Vec<Token>,
        reply: Reply<Matched>,
    },
    CloseSession {
        namespace: Namespace,
        session: SessionId,
        reply: Reply<()>,
    },
    Reserve {
        id: ReservationId,
        demand: AnyDemand,
        deadline: Option<Instant>,
        reply: Reply<Receipt>,
    },
    Release {
        id: ReservationId,
        pools: Vec<PoolId>,
        reply: Reply<Left>,
    },
    Explain {
        demand: Demand,
        reply: Reply<Explanation>,
    },
    BeginStep {
        id: StepId,
        sequences: Vec<SequenceId>,
        reply: Reply<Begun>,
    },
    CloseMoves {
        key: GateKey,
        reason: String,
        pools: Vec<PoolId>,
        reply: Reply<()>,
    },
    Compact {
        budget: Bytes,
        reply: Reply<Receipt>,
    },
    Flush {
        reply: Reply<Receipt>,
    },
    Stats {
        reply: Reply<Stats>,
    },
    Verify {
        reply: Reply<Verified>,
    },
    /// Answered once no move is under way and nothing that could run is left to do.
    Settle {
        reply: Reply<()>,
    },
    Fault {
        fault: Fault,
        reply: Reply<()>,
    },
    /// Something lies on the return path; answered once it is taken back.
    Collect {
        reply: Option<Reply<()>>,
    },
    /// A waiting allocation's deadline passed.
    Expire(super::allocator::JobId),
}

impl Request {
    /// What is asked, for spans.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Request::Open { .. } => "open",
            Request::Extend { .. } => "extend",
            Request::Append { .. } => "append",
            Request::Fork { .. } => "fork",
            Request::Park { .. } => "park",
            Request::Resume { .. } => "resume",
            Request::Truncate { .. } => "truncate",
            Request::Checkpoint { .. } => "checkpoint",
            Request::Finish { .. } => "finish",
            Request::Cached { .. } => "cached",
            Request::CloseSession { .. } => "close_session",
            Request::Reserve { .. } => "reserve",
            Request::Release { .. } => "release",
            Request::Explain { .. } => "explain",
            Request::BeginStep { .. } => "begin_step",
            Request::CloseMoves { .. } => "close_moves",
            Request::Compact { .. } => "compact",
            Request::Flush { .. } => "flush",
            Request::Stats { .. } => "stats",
            Request::Verify { .. } => "verify",
            Request::Settle { .. } => "settle",
            Request::Fault { .. } => "fault",
            Request::Collect { .. } => "collect",
            Request::Expire(_) => "expire",
        }
    }

    /// The one sequence that it is about.
    pub(crate) fn sequence(&self) -> Option<SequenceId> {
        match self {
            Request::Open { id, .. }
            | Request::Extend { id, .. }
            | Request::Fork { id, .. }
            | Request::Park { id, .. }
            | Request::Resume { id, .. }
            | Request::Truncate { id, .. }
            | Request::Checkpoint { id, .. }
            | Request::Finish { id, .. } => Some(*id),
            _ => None,
        }
    }
}

/// What a reservation holds.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    pub(crate) full: Vec<VirtId>,
    pub(crate) windows: PerPool<Pages>,
    pub(crate) states: PerPool<Vec<VirtId>>,
    pub(crate) released: PerPool<Gone>,
}

impl Reserved {
    /// Every page still held, window pages before the full pages that they are bound under.
    pub(crate) fn pages(&self, chain: &Chain) -> Vec<(PoolId, VirtId)> {
        let mut pages = Vec::new();
        for &pool in chain.windows() {
            let bare = self.full.len() - self.windows[pool].index();
            pages.extend(self.full[bare..].iter().map(|&virt| (pool, virt)));
        }
        pages.extend(
            chain.full().into_iter().flat_map(|full| self.full.iter().map(move |&v| (full, v))),
        );
        for &pool in chain.states() {
            pages.extend(self.states[pool].iter().map(|&virt| (pool, virt)));
        }
        pages
    }
}

/// Whether a reservation's pages of one pool were given back.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Gone {
    #[default]
    Held,
    Released,
}
