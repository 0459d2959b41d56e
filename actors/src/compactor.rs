//! The compactor actor: every copy on its way to the device, from launch to completion.
//!
//! It hands batches to the GPU worker in the order in which they may run and reports back once the last is done. It does
//! not know why pages move, and waits for nothing inside a handler but room in the worker's queue, which the worker
//! makes without asking anybody.

use std::time::Instant;

use kameo::Actor;
use kameo::actor::ActorRef;
use kameo::message::{Context, Message};
use kvtide_core::arena::CopyBatch;

use crate::allocator::Allocator;
use crate::device::{
    Batch, Command, CopyDone, CopyFailed, CopyTicket, DeviceLost, Launched, PageMove, Reply,
    WorkerHandle,
};
use crate::error::{AllocError, ServiceError};

/// Owns the copies under way.
#[derive(Actor)]
pub(crate) struct Compactor {
    worker: WorkerHandle,
}

/// Copy these batches, one after the other.
pub(crate) struct CopyPages {
    pub(crate) ticket: CopyTicket,
    pub(crate) batches: Vec<CopyBatch>,
    pub(crate) allocator: ActorRef<Allocator>,
}

/// A ticket's copies have ended.
pub(crate) struct CopyEnded {
    pub(crate) ticket: CopyTicket,
    pub(crate) outcome: CopyOutcome,
    pub(crate) seconds: f64,
}

/// What became of a ticket's copies.
pub(crate) struct CopyOutcome(Result<Result<CopyDone, CopyFailed>, DeviceLost>);

/// Copies that did not all happen.
pub(crate) struct CopyFailure {
    /// Batches that landed.
    pub(crate) landed: usize,
    /// Batches that may have written anything.
    pub(crate) launched: usize,
    pub(crate) error: AllocError,
}

impl CopyOutcome {
    /// The outcome of copies that nobody is left to make.
    pub(crate) fn lost() -> Self {
        CopyOutcome(Err(DeviceLost))
    }

    /// How far the copies came and why no further, if they failed.
    pub(crate) fn failure(self) -> Option<CopyFailure> {
        match self.0 {
            Ok(Ok(_)) => None,
            Ok(Err(failed)) => Some(CopyFailure {
                landed: failed.batches_done as usize,
                launched: match failed.launched {
                    Launched::No => failed.batches_done as usize,
                    Launched::Maybe => failed.batches_done as usize + 1,
                },
                error: AllocError::CopyFailed(failed.cause.to_string()),
            }),
            Err(lost) => Some(CopyFailure {
                landed: 0,
                launched: usize::MAX,
                error: ServiceError::DeviceLost(lost.to_string()).into(),
            }),
        }
    }
}

impl Compactor {
    pub(crate) fn new(worker: WorkerHandle) -> Self {
        Compactor { worker }
    }
}

impl Message<CopyPages> for Compactor {
    type Reply = ();

    async fn handle(&mut self, msg: CopyPages, _: &mut Context<Self, Self::Reply>) {
        let CopyPages { ticket, batches, allocator } = msg;
        let launched = Instant::now();
        let batches = batches.into_iter().map(|batch| Batch {
            pool: batch.pool,
            moves: batch.pairs.into_iter().map(|(from, to)| PageMove { from, to }).collect(),
        });
        let batches = batches.collect();
        let (done, completion) = Reply::channel();
        // Queued here, in the order of the messages; only the completion is awaited elsewhere.
        if let Ok(room) = self.worker.reserve().await {
            room.send(Command::Copy { ticket, batches, done });
        }
        tokio::spawn(async move {
            let outcome = CopyOutcome(completion.await.unwrap_or(Err(DeviceLost)));
            let seconds = launched.elapsed().as_secs_f64();
            // An allocator that is gone has nobody left to tell.
            let _ = allocator.tell(CopyEnded { ticket, outcome, seconds }).send().await;
        });
    }
}
