//! What an engine holds: the handle to the service, and guards that give everything back when dropped.

mod sequence;

use std::sync::Arc;
use std::time::Duration;

use kvtide_core::chain::Chain;
use kvtide_core::demand::{AnyDemand, Demand};
use kvtide_core::tree::{Namespace, SessionId, User};
use kvtide_core::unit::{Bytes, PoolId, Token};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::device::Fault;
use crate::error::{AllocError, ServiceError};
use crate::message::{
    AppendItem, Appended, Begun, GateKey, Left, Matched, PageTable, Receipt, Reply, Request,
    ReservationId, ReturnPath, Returned, SequenceId, StepId,
};
use crate::report::{Explanation, Stats, Verified};
use crate::service::Shared;

pub use sequence::Sequence;

/// A handle to a running service. Cheap to clone; every call is one message to the allocator.
///
/// Dropping the future of a call at any point loses nothing: what it was about to get is given back. Only tokens that an
/// append has appended by then stay with their sequence.
#[derive(Clone)]
pub struct CacheHandle {
    shared: Arc<Shared>,
}

/// How a sequence is opened.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Prefixes are shared within one namespace only.
    pub namespace: Namespace,
    /// How long to wait for memory that others give back; not at all, if `None`.
    pub wait: Option<Duration>,
    /// Under the `priority` policy, prefixes of a higher priority are kept longer.
    pub priority: i64,
    /// The session that it belongs to, within its namespace. The path that a session published last is evicted after
    /// what no session holds, until [`CacheHandle::close_session`].
    pub session: Option<SessionId>,
}

/// Pages held by number only. Dropped, it gives them back.
#[must_use = "a reservation that is dropped gives its pages back"]
pub struct Reservation {
    id: ReservationId,
    receipt: Receipt,
    shared: Arc<Shared>,
    _back: GiveBack,
}

/// An engine step's hold on the pages that its kernels read and write. Ended when dropped.
#[must_use = "a lease that is dropped ends"]
pub struct StepLease {
    epoch: u64,
    tables: Vec<(SequenceId, PageTable)>,
    back: GiveBack,
}

/// Forbids moves of some pools while it lives.
#[must_use = "a gate opens when it is dropped"]
pub struct MoveGate {
    back: GiveBack,
}

/// Sends something back when dropped, and wakes the allocator to it.
struct GiveBack {
    returned: Option<Returned>,
    returns: ReturnPath,
    shared: Arc<Shared>,
}

impl CacheHandle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        CacheHandle { shared }
    }

    /// The chain that the service runs on: pools by name, page sizes, capacities.
    #[must_use]
    pub fn chain(&self) -> &Chain {
        &self.shared.chain
    }

    /// Opens a sequence: matches its prompt, locks what matched, and copies the state there.
    ///
    /// A match never covers the prompt's last token: one is left to compute.
    ///
    /// # Errors
    /// An [`AllocError`] if the running state does not fit, or `tokens` is empty. Nothing stays locked then.
    pub async fn open(
        &self,
        tokens: Vec<Token>,
        options: OpenOptions,
    ) -> Result<Sequence, AllocError> {
        let id = SequenceId(self.shared.fresh());
        let back = self.shared.giveback(Returned::Sequence(id));
        let OpenOptions { namespace, wait, priority, session } = options;
        let (deadline, user) = (deadline(wait), User { priority, session });
        let opened = self
            .shared
            .ask(|reply| Request::Open { id, namespace, user, tokens, deadline, reply })
            .await?;
        debug_assert_eq!(opened.id, id);
        Ok(Sequence {
            id,
            matched: opened.matched,
            receipt: opened.receipt,
            shared: Arc::clone(&self.shared),
            back,
        })
    }

    /// What a match would give now; touches nothing.
    ///
    /// # Errors
    /// [`AllocError::Service`].
    pub async fn cached(
        &self,
        namespace: Namespace,
        tokens: Vec<Token>,
    ) -> Result<Matched, AllocError> {
        self.shared.ask(|reply| Request::Cached { namespace, tokens, reply }).await
    }

    /// Ends a session: what it published last has no preference any more. Sequences that belong to it go on, and hold
    /// again what they publish.
    ///
    /// # Errors
    /// [`AllocError::UnknownName`] if the session holds nothing: it published nothing, or all of that was evicted, or
    /// `cache.max_sessions` others have published since.
    pub async fn close_session(
        &self,
        namespace: Namespace,
        session: SessionId,
    ) -> Result<(), AllocError> {
        self.shared.ask(|reply| Request::CloseSession { namespace, session, reply }).await
    }

    /// Allocates a raw demand, held until the reservation is released or dropped.
    ///
    /// # Errors
    /// Any [`AllocError`] of an allocation.
    pub async fn reserve(
        &self,
        demand: impl Into<AnyDemand>,
        wait: Option<Duration>,
    ) -> Result<Reservation, AllocError> {
        let id = ReservationId(self.shared.fresh());
        let back = self.shared.giveback(Returned::Reservation(id));
        let demand = demand.into();
        let deadline = deadline(wait);
        let receipt =
            self.shared.ask(|reply| Request::Reserve { id, demand, deadline, reply }).await?;
        Ok(Reservation { id, receipt, shared: Arc::clone(&self.shared), _back: back })
    }

    /// One decode step (or several) of many sequences, in order, in one message. An item that fails leaves the others
    /// alone.
    ///
    /// # Errors
    /// [`AllocError::Service`]; an item's own failure is in its [`Appended::stopped`].
    pub async fn append_many(
        &self,
        items: Vec<(&mut Sequence, Vec<Token>)>,
        wait: Option<Duration>,
    ) -> Result<Vec<Appended>, AllocError> {
        self.check_own(items.iter().map(|(sequence, _)| &**sequence))?;
        let items = items.into_iter().map(|(sequence, tokens)| AppendItem {
            id: sequence.id,
            tokens,
            windows: Default::default(),
        });
        let items = items.collect();
        let deadline = deadline(wait);
        self.shared.ask(|reply| Request::Append { items, deadline, reply }).await
    }

    /// Sequences of another service have numbers of their own.
    fn check_own<'a>(
        &self,
        sequences: impl IntoIterator<Item = &'a Sequence>,
    ) -> Result<(), AllocError> {
        let mut sequences = sequences.into_iter();
        match sequences.find(|sequence| !Arc::ptr_eq(&sequence.shared, &self.shared)) {
            Some(other) => Err(AllocError::UnknownName(format!(
                "sequence {} is another service's",
                other.id.0
            ))),
            None => Ok(()),
        }
    }

    /// What an allocation of `demand` would do now: what fits, what would have to go and move, or why not. Changes
    /// nothing.
    ///
    /// # Errors
    /// [`AllocError::InvalidDemand`] and [`AllocError::Service`].
    pub async fn explain(&self, demand: Demand) -> Result<Explanation, AllocError> {
        self.shared.ask(|reply| Request::Explain { demand, reply }).await
    }

    /// Holds the pages of a step over `sequences` in place, and says where they lie.
    ///
    /// # Errors
    /// [`AllocError::UnknownName`] for a sequence that is gone.
    pub async fn begin_step(&self, sequences: &[&Sequence]) -> Result<StepLease, AllocError> {
        self.check_own(sequences.iter().copied())?;
        let sequences = sequences.iter().map(|sequence| sequence.id).collect();
        let id = StepId(self.shared.fresh());
        let back = self.shared.giveback(Returned::Step(id));
        let begun: Begun =
            self.shared.ask(|reply| Request::BeginStep { id, sequences, reply }).await?;
        Ok(StepLease { epoch: begun.epoch, tables: begun.tables, back })
    }

    /// Forbids moves of `pools` until the gate is dropped; returns once no copy that it forbids is in flight.
    ///
    /// # Errors
    /// [`AllocError::Service`].
    pub async fn close_moves(
        &self,
        reason: &str,
        pools: &[PoolId],
    ) -> Result<MoveGate, AllocError> {
        let key = GateKey(self.shared.fresh());
        let back = self.shared.giveback(Returned::Gate(key));
        let (reason, pools) = (reason.to_owned(), pools.to_vec());
        self.shared.ask(|reply| Request::CloseMoves { key, reason, pools, reply }).await?;
        Ok(MoveGate { back })
    }

    /// One pass of compaction that moves at most `budget`.
    ///
    /// # Errors
    /// [`AllocError::CopyFailed`], after which moves already made stay.
    pub async fn compact(&self, budget: Bytes) -> Result<Receipt, AllocError> {
        self.shared.ask(|reply| Request::Compact { budget, reply }).await
    }

    /// Drops everything cached that is not locked.
    ///
    /// # Errors
    /// [`AllocError::Service`].
    pub async fn flush(&self) -> Result<Receipt, AllocError> {
        self.shared.ask(|reply| Request::Flush { reply }).await
    }

    /// Counters, and the state of every pool. O(pools).
    ///
    /// # Errors
    /// [`AllocError::Service`].
    pub async fn stats(&self) -> Result<Stats, AllocError> {
        self.shared.ask(|reply| Request::Stats { reply }).await
    }

    /// Checks every invariant and reads every live page's content. O(all).
    ///
    /// # Errors
    /// [`ServiceError::Corrupt`] names the first that does not hold.
    pub async fn verify(&self) -> Result<Verified, AllocError> {
        self.shared.ask(|reply| Request::Verify { reply }).await
    }

    /// Returns once no page is being moved and nothing that can run is left undone.
    ///
    /// # Errors
    /// [`AllocError::Service`].
    pub async fn settle(&self) -> Result<(), AllocError> {
        self.shared.ask(|reply| Request::Settle { reply }).await
    }

    /// Makes the device fail on purpose, for tests and scenarios.
    ///
    /// # Errors
    /// [`AllocError::Service`].
    pub async fn fault(&self, fault: Fault) -> Result<(), AllocError> {
        self.shared.ask(|reply| Request::Fault { fault, reply }).await
    }
}

impl Reservation {
    /// What it took.
    #[must_use]
    pub fn receipt(&self) -> Receipt {
        self.receipt
    }

    /// Gives back the pages of some pools only.
    ///
    /// # Errors
    /// [`AllocError::UnknownName`] for a pool given back already; [`AllocError::InvalidOperation`] for full pages that
    /// window pages are bound under.
    pub async fn release(&mut self, pools: &[PoolId]) -> Result<Left, AllocError> {
        let (id, pools) = (self.id, pools.to_vec());
        self.shared.ask(|reply| Request::Release { id, pools, reply }).await
    }

    /// Gives everything back. Unlike a drop, it is done when this returns.
    ///
    /// # Errors
    /// [`AllocError::Service`].
    pub async fn release_all(self) -> Result<(), AllocError> {
        let shared = Arc::clone(&self.shared);
        drop(self);
        shared.collected().await
    }
}

impl StepLease {
    /// Counts layouts: a table made under another epoch may be stale.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Where each sequence's pages lie while the lease lasts.
    #[must_use]
    pub fn tables(&self) -> &[(SequenceId, PageTable)] {
        &self.tables
    }

    /// Ends it. Unlike a drop, it is done when this returns.
    ///
    /// # Errors
    /// [`AllocError::Service`].
    pub async fn end(self) -> Result<(), AllocError> {
        let shared = Arc::clone(&self.back.shared);
        drop(self);
        shared.collected().await
    }
}

impl MoveGate {
    /// Opens it. Unlike a drop, it is done when this returns.
    ///
    /// # Errors
    /// [`AllocError::Service`].
    pub async fn open(self) -> Result<(), AllocError> {
        let shared = Arc::clone(&self.back.shared);
        drop(self);
        shared.collected().await
    }
}

impl Shared {
    /// Returns once everything dropped before is taken back.
    async fn collected(self: &Arc<Self>) -> Result<(), AllocError> {
        self.ask(|reply| Request::Collect { reply: Some(reply) }).await
    }

    /// Sends one request and waits for its answer.
    ///
    /// Given up midway, it tells the allocator, so that nobody waits behind it.
    pub(crate) async fn ask<T>(
        self: &Arc<Self>,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<T, AllocError> {
        if self.is_stopping() {
            return Err(ServiceError::Stopped.into());
        }
        // Declared before the channel, so dropped after it: the allocator then finds the answer's way closed.
        let mut call = self.giveback(Returned::Call);
        let (reply, answer) = oneshot::channel();
        let answer = match self.allocator.tell(request(reply)).send().await {
            Ok(()) => answer.await.map_err(|_| self.lost()),
            Err(_) => Err(ServiceError::Stopped),
        };
        call.defuse();
        answer?
    }

    /// Why an accepted request was not answered.
    fn lost(&self) -> ServiceError {
        if self.is_stopping() { ServiceError::Stopped } else { ServiceError::Reset }
    }

    fn giveback(self: &Arc<Self>, returned: Returned) -> GiveBack {
        GiveBack {
            returned: Some(returned),
            returns: self.returns.clone(),
            shared: Arc::clone(self),
        }
    }
}

impl GiveBack {
    /// Nothing is left to give back.
    fn defuse(&mut self) {
        self.returned = None;
    }
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        let Some(returned) = self.returned.take() else { return };
        // A service that is gone needs nothing back.
        if self.returns.send(returned).is_ok() {
            // A full mailbox needs no nudge: every message served collects what lies on the return path.
            let _ = self.shared.allocator.tell(Request::Collect { reply: None }).try_send();
        }
    }
}

fn deadline(wait: Option<Duration>) -> Option<Instant> {
    // A wait too long to be a point in time is one without end, as near as makes no difference.
    const LONGEST: Duration = Duration::from_secs(60 * 60 * 24 * 365);
    wait.map(|wait| Instant::now() + wait.min(LONGEST))
}
