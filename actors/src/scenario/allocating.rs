//! Operations that may wait for memory: each owns what it works on until it has ended.

use std::time::Duration;

use kvtide_core::unit::Tokens;

use super::ended::{Ended, Restored};
use super::run::{Doing, Runner, namespace_of, publishing};
use super::{Draft, Namespace, Operation, Waiting};
use crate::error::AllocError;
use crate::handle::{CacheHandle, OpenOptions};
use crate::message::Publishing;

impl Runner {
    /// An allocating operation, ready to be run; it owns what it works on until it has ended.
    pub(super) fn allocating(
        &mut self,
        operation: &Operation,
        waiting: Waiting,
    ) -> Result<Doing, AllocError> {
        let wait = waiting.deadline_ms.map(Duration::from_millis);
        let handle = self.handle.clone();
        Ok(match operation {
            Operation::Open { seq, tokens, namespace, priority, session } => {
                self.vacant(&self.sequences, "sequence", seq)?;
                let (seq, tokens) = (seq.clone(), tokens.to_vec());
                let options = open_options(namespace, *priority, session.as_deref(), wait);
                Box::pin(async move { Ended::opened(seq, handle.open(tokens, options).await) })
            }
            Operation::Extend { seq, count } => {
                let (seq, mut sequence) = self.claim_sequence(seq)?;
                let count = count.map(Tokens);
                Box::pin(async move {
                    let result = sequence.extend(count, wait).await;
                    Ended::from(result).with(Restored::Sequence(seq, sequence))
                })
            }
            Operation::Fork { seq, child } => {
                self.vacant(&self.sequences, "sequence", child)?;
                let (seq, mut sequence) = self.claim_sequence(seq)?;
                let child = child.clone();
                Box::pin(async move {
                    match sequence.fork(wait).await {
                        Ok(forked) => Ended::receipt(forked.receipt())
                            .with(Restored::Fork([(seq, sequence), (child, forked)])),
                        Err(error) => Ended::failed(error).with(Restored::Sequence(seq, sequence)),
                    }
                })
            }
            Operation::Resume { seq } => {
                let (seq, mut sequence) = self.claim_sequence(seq)?;
                Box::pin(async move {
                    let ended = match sequence.resume(wait).await {
                        Ok(receipt) => Ended::matched(sequence.matched()).after(receipt),
                        Err(error) => Ended::failed(error),
                    };
                    ended.with(Restored::Sequence(seq, sequence))
                })
            }
            Operation::Append { seq, tokens, draft } => {
                let (seq, mut sequence) = self.claim_sequence(seq)?;
                let (tokens, draft) = (tokens.to_vec(), *draft);
                Box::pin(async move {
                    let result = match draft {
                        Draft::Final => sequence.append(tokens, wait).await,
                        Draft::Draft => sequence.draft(tokens, wait).await,
                    };
                    Ended::appended(result).with(Restored::Sequence(seq, sequence))
                })
            }
            Operation::Checkpoint { seq, state } => {
                let (seq, mut sequence) = self.claim_sequence(seq)?;
                let publishing = publishing(*state);
                Box::pin(async move {
                    let result = sequence.checkpoint(publishing, wait).await;
                    Ended::from(result).with(Restored::Sequence(seq, sequence))
                })
            }
            Operation::Insert { tokens, state, namespace, priority, session } => {
                let options = open_options(namespace, *priority, session.as_deref(), wait);
                let (tokens, publishing) = (tokens.to_vec(), publishing(*state));
                Box::pin(async move { insert(&handle, tokens, options, publishing).await })
            }
            Operation::Reserve { reservation, demand } => {
                self.vacant(&self.reservations, "reservation", reservation)?;
                let demand = self.demand(demand)?;
                let exact = kvtide_core::demand::ExactDemand::raw(handle.chain(), demand)?;
                let name = reservation.clone();
                Box::pin(async move { Ended::reserved(name, handle.reserve(exact, wait).await) })
            }
            other => {
                return Err(AllocError::Unsupported(format!(
                    "`{}` is not built yet",
                    other.name()
                )));
            }
        })
    }
}

async fn insert(
    handle: &CacheHandle,
    tokens: Vec<kvtide_core::unit::Token>,
    options: OpenOptions,
    publishing: Publishing,
) -> Ended {
    let wait = options.wait;
    let mut sequence = match handle.open(tokens, options).await {
        Ok(sequence) => sequence,
        Err(error) => return Ended::failed(error),
    };
    let matched = sequence.matched();
    let opened = sequence.receipt();
    match sequence.extend(None, wait).await {
        Ok(extended) => match sequence.finish(publishing).await {
            Ok(()) => Ended::inserted(matched, opened, extended),
            Err(error) => Ended::failed(error),
        },
        Err(error) => {
            let closed = sequence.close().await;
            Ended::failed(closed.err().unwrap_or(error)).after(opened)
        }
    }
}

fn open_options(
    namespace: &Namespace,
    priority: Option<i64>,
    session: Option<&str>,
    wait: Option<Duration>,
) -> OpenOptions {
    let (priority, session) = (priority.unwrap_or_default(), session.map(Into::into));
    OpenOptions { namespace: namespace_of(namespace), wait, priority, session }
}
