//! Runs a scenario against the real service, actors and all.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use kvtide_core::chain::Chain;
use kvtide_core::demand::Demand;
use kvtide_core::tree;
use kvtide_core::unit::{Bytes, PoolId};
use tokio::task::JoinHandle;

use super::ended::{Ended, Restored, State, detail};
use super::{
    DemandByName, FaultWish, Mode, Namespace, Operation, Outcome, Publish, Scenario, ScenarioError,
    StateWish, Step,
};
use crate::device::Fault;
use crate::error::{AllocError, StartError};
use crate::handle::{CacheHandle, MoveGate, Reservation, Sequence, StepLease};
use crate::message::{Left, Publishing};
use crate::report::{Explanation, Totals};
use crate::service::CacheService;

/// Why a scenario could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The file asks for what cannot be.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The service did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The service is gone.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// An operation on its way; boxed, for it may be left to run while the scenario goes on.
pub(super) type Doing = Pin<Box<dyn Future<Output = Ended> + Send>>;

/// A service under a scenario, and everything that the scenario has named.
pub struct Runner {
    service: CacheService,
    pub(super) handle: CacheHandle,
    pub(super) sequences: BTreeMap<String, Sequence>,
    pub(super) reservations: BTreeMap<String, Reservation>,
    steps: BTreeMap<String, StepLease>,
    gates: BTreeMap<String, MoveGate>,
    /// Operations started with `async`, by line.
    started: BTreeMap<u32, JoinHandle<Ended>>,
    /// Names that operations under way will give, by their lines.
    claimed: BTreeMap<u32, String>,
    delays: Delays,
}

/// Whether copies may hang: then nothing waits for the service to settle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Delays {
    None,
    Possible,
}

impl Runner {
    /// Starts the service that a scenario's header describes.
    ///
    /// # Errors
    /// [`RunError`] for a key or an arena that cannot be, or an engine that is not there.
    pub async fn start(scenario: &Scenario) -> Result<Self, RunError> {
        let config = super::setup::configure(scenario)?;
        let service = CacheService::start(config).await?;
        let handle = service.handle();
        Ok(Runner {
            service,
            handle,
            sequences: BTreeMap::new(),
            reservations: BTreeMap::new(),
            steps: BTreeMap::new(),
            gates: BTreeMap::new(),
            started: BTreeMap::new(),
            claimed: BTreeMap::new(),
            delays: Delays::None,
        })
    }

    /// A handle to the service.
    #[must_use]
    pub fn handle(&self) -> &CacheHandle {
        &self.handle
    }

    /// Runs one operation; its outcome.
    ///
    /// # Errors
    /// [`RunError::Alloc`] if the service is gone.
    pub async fn run(&mut self, step: &Step) -> Result<Outcome, RunError> {
        let name = step.operation.name();
        let before = self.handle.stats().await?;
        let alone = self.started.is_empty();
        let ended = if step.waiting.mode == Mode::Async {
            let begun = self.begin(step).await;
            if let Some(name) = new_name(&step.operation) {
                self.claimed.insert(step.line, name);
            }
            match begun {
                Poll::Pending => return Ok(Outcome::pending(step.line, name)),
                Poll::Ready(ended) => {
                    // Done already: its outcome is kept for a `wait`, as if it had taken long.
                    self.started.insert(step.line, tokio::spawn(async { ended }));
                    return Ok(Outcome::pending(step.line, name));
                }
            }
        } else {
            self.execute(step).await
        };
        let mut outcome = match &ended.result {
            Ok(()) => Outcome::success(step.line, name),
            Err(error) => Outcome::failure(step.line, name, error.name(), &error.to_string())
                .with("detail", detail(error)),
        };
        if self.delays == Delays::None {
            self.handle.settle().await?;
        }
        let after = self.handle.stats().await?;
        let since: Option<(&Totals, &Totals)> = alone.then_some((&before.totals, &after.totals));
        State { stats: &after, since }.describe(&ended, &mut outcome);
        for (field, value) in &ended.fields {
            outcome.set(field, value.clone());
        }
        self.restore(ended.restored);
        Ok(outcome)
    }

    /// Ends everything that still runs, and stops the service.
    pub async fn stop(self) {
        for task in self.started.values() {
            task.abort();
        }
        drop((self.sequences, self.reservations, self.steps, self.gates));
        if self.delays == Delays::Possible {
            // Stopping waits for copies under way. A service that is gone has none.
            let _ = self.handle.fault(Fault::ReleaseCopies).await;
        }
        self.service.stop().await;
    }

    fn restore(&mut self, restored: Restored) {
        match restored {
            Restored::None => {}
            Restored::Sequence(name, sequence) => drop(self.sequences.insert(name, sequence)),
            Restored::Fork(both) => self.sequences.extend(both),
            Restored::Reservation(name, held) => drop(self.reservations.insert(name, held)),
        }
    }

    /// Starts an operation that the scenario does not wait for: its request is sent before the next line's.
    async fn begin(&mut self, step: &Step) -> Poll<Ended> {
        let mut doing = match self.allocating(&step.operation, step.waiting) {
            Ok(doing) => doing,
            Err(error) => return Poll::Ready(Ended::failed(error)),
        };
        match std::future::poll_fn(|context| Poll::Ready(doing.as_mut().poll(context))).await {
            Poll::Ready(ended) => Poll::Ready(ended),
            Poll::Pending => {
                self.started.insert(step.line, tokio::spawn(doing));
                Poll::Pending
            }
        }
    }

    async fn execute(&mut self, step: &Step) -> Ended {
        let result = match &step.operation {
            Operation::Open { .. }
            | Operation::Extend { .. }
            | Operation::Append { .. }
            | Operation::Checkpoint { .. }
            | Operation::Insert { .. }
            | Operation::Resume { .. }
            | Operation::Fork { .. }
            | Operation::Reserve { .. } => match self.allocating(&step.operation, step.waiting) {
                Ok(doing) => return doing.await,
                Err(error) => Err(error),
            },
            Operation::Wait { op_line, deadline_ms } => {
                return self.wait(*op_line, *deadline_ms).await;
            }
            Operation::Cached { tokens, namespace } => {
                match self.handle.cached(namespace_of(namespace), tokens.to_vec()).await {
                    Ok(matched) => return Ended::matched(matched),
                    Err(error) => Err(error),
                }
            }
            Operation::Probe { demand } => match self.probe(demand).await {
                Ok(explanation) => return Ended::explained(self.handle.chain(), &explanation),
                Err(error) => Err(error),
            },
            Operation::Compact { budget } => {
                match self.handle.compact(budget.unwrap_or(Bytes(u64::MAX))).await {
                    Ok(receipt) => return Ended::receipt(receipt),
                    Err(error) => Err(error),
                }
            }
            Operation::Flush => match self.handle.flush().await {
                Ok(receipt) => return Ended::receipt(receipt),
                Err(error) => Err(error),
            },
            Operation::Stats => match self.handle.stats().await {
                Ok(stats) => return Ended::stats(&stats),
                Err(error) => Err(error),
            },
            Operation::Verify => match self.handle.verify().await {
                Ok(verified) => return Ended::verified(verified),
                Err(error) => Err(error),
            },
            other => self.hold(other).await,
        };
        match result {
            Ok(()) => Ended::done(),
            Err(error) => Ended::failed(error),
        }
    }

    /// Operations on things that the scenario names, other than allocations.
    async fn hold(&mut self, operation: &Operation) -> Result<(), AllocError> {
        match operation {
            Operation::Finish { seq, cache, state } => {
                let sequence = self.take_sequence(seq)?;
                let publishing = match cache {
                    Publish::Publish => publishing(*state),
                    Publish::Discard => Publishing::Nothing,
                };
                sequence.finish(publishing).await
            }
            Operation::Park { seq, cache } => {
                let found = self.sequences.get_mut(seq).ok_or_else(|| unknown("sequence", seq))?;
                found
                    .park(match cache {
                        Publish::Publish => Publishing::PagesAndState,
                        Publish::Discard => Publishing::Nothing,
                    })
                    .await
            }
            Operation::Truncate { seq, count } => {
                let found = self.sequences.get_mut(seq).ok_or_else(|| unknown("sequence", seq))?;
                found.truncate(kvtide_core::unit::Tokens(*count)).await
            }
            Operation::Drop { seq } => self.take_sequence(seq)?.close().await,
            Operation::Release { reservation, pools } => {
                self.release(reservation, pools.as_deref()).await
            }
            Operation::StepBegin { step, seqs } => {
                vacant(&self.steps, "step", step)?;
                let sequences: Result<Vec<&Sequence>, AllocError> = seqs
                    .iter()
                    .map(|seq| self.sequences.get(seq).ok_or_else(|| unknown("sequence", seq)))
                    .collect();
                let lease = self.handle.begin_step(&sequences?).await?;
                self.steps.insert(step.clone(), lease);
                Ok(())
            }
            Operation::StepEnd { step } => {
                let lease = self.steps.remove(step).ok_or_else(|| unknown("step", step))?;
                lease.end().await
            }
            Operation::Gate { gate, pools } => {
                vacant(&self.gates, "gate", gate)?;
                let pools = self.pools(pools.as_deref())?;
                let closed = self.handle.close_moves(gate, &pools).await?;
                self.gates.insert(gate.clone(), closed);
                Ok(())
            }
            Operation::CloseSession { session, namespace } => {
                let (namespace, session) = (namespace_of(namespace), session.as_str().into());
                self.handle.close_session(namespace, session).await
            }
            Operation::Ungate { gate } => {
                let closed = self.gates.remove(gate).ok_or_else(|| unknown("gate", gate))?;
                closed.open().await
            }
            Operation::Fault(FaultWish::Copy(fault)) => {
                self.delays = match fault {
                    Fault::DelayCopies { .. } => Delays::Possible,
                    Fault::ReleaseCopies => Delays::None,
                    Fault::FailCopies { .. } => self.delays,
                };
                self.handle.fault(*fault).await
            }
            other => Err(AllocError::Unsupported(format!("`{}` is not built yet", other.name()))),
        }
    }

    async fn wait(&mut self, line: u32, deadline_ms: u64) -> Ended {
        let Some(mut task) = self.started.remove(&line) else {
            return Ended::failed(unknown("operation started on line", &line.to_string()));
        };
        let deadline = Duration::from_millis(deadline_ms);
        match tokio::time::timeout(deadline, &mut task).await {
            Ok(Ok(ended)) => {
                self.claimed.remove(&line);
                ended
            }
            Ok(Err(_)) => Ended::failed(AllocError::Service(crate::error::ServiceError::Reset)),
            Err(_) => {
                self.started.insert(line, task);
                Ended::failed(AllocError::TimedOut { waited: deadline })
            }
        }
    }

    async fn probe(&self, demand: &DemandByName) -> Result<Explanation, AllocError> {
        self.handle.explain(self.demand(demand)?).await
    }

    async fn release(&mut self, name: &str, pools: Option<&[String]>) -> Result<(), AllocError> {
        let Some(pools) = pools else {
            let held = self.reservations.remove(name);
            return held.ok_or_else(|| unknown("reservation", name))?.release_all().await;
        };
        let pools = self.pools(Some(pools))?;
        let held = self.reservations.get_mut(name).ok_or_else(|| unknown("reservation", name))?;
        if held.release(&pools).await? == Left::Nothing {
            self.reservations.remove(name);
        }
        Ok(())
    }

    /// Whether a name is free: neither given nor claimed by an operation under way.
    pub(super) fn vacant<T>(
        &self,
        taken: &BTreeMap<String, T>,
        what: &str,
        name: &str,
    ) -> Result<(), AllocError> {
        let claim = format!("{what} {name}");
        if self.claimed.values().any(|claimed| *claimed == claim) {
            return Err(AllocError::InvalidOperation(format!(
                "a {what} called `{name}` is on its way already"
            )));
        }
        vacant(taken, what, name)
    }

    fn take_sequence(&mut self, name: &str) -> Result<Sequence, AllocError> {
        self.sequences.remove(name).ok_or_else(|| unknown("sequence", name))
    }

    pub(super) fn claim_sequence(&mut self, name: &str) -> Result<(String, Sequence), AllocError> {
        Ok((name.to_owned(), self.take_sequence(name)?))
    }

    fn pools(&self, names: Option<&[String]>) -> Result<Vec<PoolId>, AllocError> {
        let chain = self.handle.chain();
        match names {
            None => Ok(chain.pool_ids().collect()),
            Some(names) => names
                .iter()
                .map(|name| chain.named(name).ok_or_else(|| unknown("pool", name)))
                .collect(),
        }
    }

    pub(super) fn demand(&self, amounts: &DemandByName) -> Result<Demand, AllocError> {
        demand(self.handle.chain(), amounts)
    }
}

/// A demand by pool names, in pages.
///
/// # Errors
/// [`AllocError::UnknownName`] for a pool that the chain does not have.
pub fn demand(chain: &Chain, amounts: &DemandByName) -> Result<Demand, AllocError> {
    let mut demand = Demand::default();
    for (name, amount) in &amounts.0 {
        let pool = chain.named(name).ok_or_else(|| unknown("pool", name))?;
        demand = demand.with(pool, kvtide_core::sequence::pages_of(chain, pool, *amount))?;
    }
    Ok(demand)
}

pub(super) fn namespace_of(namespace: &Namespace) -> tree::Namespace {
    tree::Namespace {
        salt: namespace.salt.as_deref().map(Into::into),
        adapter: namespace.adapter.as_deref().map(Into::into),
    }
}

pub(super) fn publishing(state: StateWish) -> Publishing {
    match state {
        StateWish::Default | StateWish::Store => Publishing::PagesAndState,
        StateWish::Skip => Publishing::Pages,
    }
}

fn unknown(what: &str, name: &str) -> AllocError {
    AllocError::UnknownName(format!("no {what} is called `{name}`"))
}

/// What an operation calls what it makes, by kind and name.
fn new_name(operation: &Operation) -> Option<String> {
    match operation {
        Operation::Open { seq, .. } | Operation::Fork { child: seq, .. } => {
            Some(format!("sequence {seq}"))
        }
        Operation::Reserve { reservation, .. } => Some(format!("reservation {reservation}")),
        _ => None,
    }
}

fn vacant<T>(taken: &BTreeMap<String, T>, what: &str, name: &str) -> Result<(), AllocError> {
    if taken.contains_key(name) {
        return Err(AllocError::InvalidOperation(format!(
            "a {what} called `{name}` is there already"
        )));
    }
    Ok(())
}
