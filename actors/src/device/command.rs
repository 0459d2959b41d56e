//! What the worker can be told to do, and what it answers.

use std::time::Duration;

use kvtide_core::unit::{Bytes, PoolId};

use super::{
    AccessError, CopyError, Fault, Launched, PageCheck, PageMove, PageWrite, Reply, Verified,
    VerifyError,
};

/// Names one copy; chosen by its sender, who should use it once.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CopyTicket(pub u64);

/// Copies of one pool that may run in any order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Batch {
    /// The pool.
    pub pool: PoolId,
    /// Its moves; no target is another's target or source.
    pub moves: Vec<PageMove>,
}

/// Pages of one pool to be filled.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PoolWrites {
    /// The pool.
    pub pool: PoolId,
    /// Its pages.
    pub pages: Vec<PageWrite>,
}

/// What the worker does.
#[derive(Debug)]
pub enum Command {
    /// Fill pages: all of them, or none if any is out of range.
    Write {
        /// The pages, pool by pool.
        writes: Vec<PoolWrites>,
        /// When they are filled.
        done: Reply<Result<(), AccessError>>,
    },
    /// Copy pages, batch after batch: a later batch may read what an earlier one wrote, or write what it read.
    Copy {
        /// Comes back with the outcome.
        ticket: CopyTicket,
        /// The batches in order.
        batches: Vec<Batch>,
        /// When all are copied, or the first failed.
        done: Reply<Result<CopyDone, CopyFailed>>,
    },
    /// Compare pages.
    Verify {
        /// The pages.
        pages: Vec<PageCheck>,
        /// What the comparison found.
        done: Reply<Result<Verified, VerifyError>>,
    },
    /// Arm a fault, or release what one holds.
    Fault {
        /// The fault.
        fault: Fault,
        /// When it is armed; for a release, when the released copies have run.
        done: Reply<()>,
    },
    /// Panic, as a broken invariant in an engine would.
    Panic,
    /// Cancel what is parked and end the thread.
    Stop {
        /// When nothing more will touch the arena.
        done: Reply<()>,
    },
}

/// All batches of a copy have landed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CopyDone {
    /// The copy.
    pub ticket: CopyTicket,
    /// Pages that moved.
    pub pages: u64,
    /// Their bytes.
    pub bytes: Bytes,
    /// Time in the engine, without any time in the queue.
    pub elapsed: Duration,
}

/// A copy stopped at a batch. The batches before it have landed, those after it were not launched.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("copy {} failed after {batches_done} batches: {cause}", ticket.0)]
pub struct CopyFailed {
    /// The copy.
    pub ticket: CopyTicket,
    /// Batches that landed; also the index of the one that failed.
    pub batches_done: u32,
    /// Whether the failed batch may have written to its targets.
    pub launched: Launched,
    /// What stopped it.
    #[source]
    pub cause: CopyError,
}
