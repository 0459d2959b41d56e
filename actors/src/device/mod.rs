//! The memory that pages lie in, and the one thread that touches it.
//!
//! An [`Engine`] owns one arena and does three things with whole pages: fill them, copy them, compare them. It is
//! synchronous and knows neither virtual ids nor who holds a page. [`GpuWorker`] gives an engine a thread of its
//! own, a bounded queue, and a watchdog; everybody else holds a [`WorkerHandle`].
//!
//! - [`HostEngine`]: the arena in host memory. The default.
//! - [`AccountingEngine`]: no bytes at all, for arenas larger than the machine.
//! - [`Faulty`]: any engine, with copies that can be made to fail or to hang. Every worker has one around its engine.
//!
//! Where pages lie is [`Grids`]; what they are filled with, and how a wrong word is read, is [`pattern`].

mod accounting;
mod command;
mod fault;
mod grid;
mod handle;
mod host;
pub mod pattern;
mod reply;
mod worker;

use std::fmt;
use std::str::FromStr;

use kvtide_core::unit::{Bytes, PageId, PoolId};

pub use accounting::AccountingEngine;
pub use command::{Batch, Command, CopyDone, CopyFailed, CopyTicket, PoolWrites};
pub use fault::{Admission, Fault, Faulty};
pub use grid::{AccessError, Grids};
pub use handle::{ReserveError, Slot, WorkerHandle};
pub use host::HostEngine;
pub use pattern::{Content, Mismatch, Tag};
pub use reply::{DeviceLost, Reply};
pub use worker::{ExitCause, GpuWorker, WorkerExit, WorkerThread};

/// Whole-page access to one arena.
///
/// A call returns when its bytes are in place, not before. A call that refuses (an [`AccessError`]) has touched nothing.
pub trait Engine: Send {
    /// Where the pages of every pool lie.
    fn grids(&self) -> &Grids;

    /// Fills pages of one pool with what their tags make them (see [`pattern`]).
    ///
    /// # Errors
    /// [`AccessError`] if any page is out of range; then none was written.
    fn write(&mut self, pool: PoolId, pages: &[PageWrite]) -> Result<(), AccessError>;

    /// Copies pages of one pool, in any order or all at once.
    ///
    /// # Errors
    /// [`CopyError::Access`] if the batch is out of range or overlaps itself; then nothing was copied.
    /// After [`CopyError::Device`] the targets may be half written.
    fn copy(&mut self, pool: PoolId, moves: &[PageMove]) -> Result<(), CopyError>;

    /// Compares pages with what their tags make them.
    ///
    /// # Errors
    /// [`VerifyError::Access`] if any page is out of range, else the first [`VerifyError::Mismatch`] in the order given.
    fn verify(&mut self, pages: &[PageCheck]) -> Result<Verified, VerifyError>;
}

/// One page to be filled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PageWrite {
    /// The page.
    pub page: PageId,
    /// What it will hold.
    pub tag: Tag,
}

/// One page to be copied onto another of the same pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PageMove {
    /// Where the bytes are.
    pub from: PageId,
    /// Where they go.
    pub to: PageId,
}

/// One page to be compared.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PageCheck {
    /// The page's pool.
    pub pool: PoolId,
    /// The page.
    pub page: PageId,
    /// What it should hold.
    pub tag: Tag,
}

/// How much of a verify was more than a check of ranges.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Verified {
    /// Pages whose every byte was compared.
    pub verified: u64,
    /// Pages that were only found in range, because the engine keeps no bytes.
    pub in_range: u64,
}

/// Why a batch of copies did not happen as asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CopyError {
    /// The batch made no sense. Nothing was copied.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// An injected fault refused the copy before its launch. Nothing was copied.
    #[error("an injected fault refused the copy")]
    Refused,
    /// The watchdog gave the copy up before it was launched. Nothing was copied.
    #[error("the copy did not run within {waited_ms} ms")]
    TimedOut {
        /// How long it was parked.
        waited_ms: u64,
    },
    /// The worker was stopped before the copy was launched. Nothing was copied.
    #[error("the device worker stopped before the copy ran")]
    Cancelled,
    /// The device reported an error after the launch. The targets may be half written.
    #[error("the device failed the copy with status {status}")]
    Device {
        /// The driver's number for it.
        status: i32,
    },
}

/// Whether a failed batch may have written to its targets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Launched {
    /// Refused before its launch: the targets are as they were.
    No,
    /// Launched: the targets are unknown until they are rewritten.
    Maybe,
}

/// Why pages could not be compared, or how they differ.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum VerifyError {
    /// A page is out of range.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A page does not hold what it should.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
}

/// The engines by name.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum EngineKind {
    /// Host memory.
    #[default]
    Host,
    /// No memory.
    Accounting,
    /// A CUDA device's memory.
    Cuda,
}

/// Why an engine or its worker could not be started. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum DeviceUnavailable {
    /// This build has no such engine.
    #[error("this build has no `{0}` engine")]
    NotBuilt(EngineKind),
    /// The arena's memory cannot be had.
    #[error("an arena of {asked} cannot be allocated")]
    Allocation {
        /// Bytes asked for.
        asked: Bytes,
    },
    /// The caller's memory is not as large as the arena.
    #[error("an arena of {arena} does not fit {given} of memory")]
    SmallMemory {
        /// Bytes of the arena.
        arena: Bytes,
        /// Bytes of the memory given.
        given: Bytes,
    },
    /// The worker's thread could not be started.
    #[error("the device worker's thread could not be started")]
    Thread(#[source] std::io::Error),
}

/// An engine of a kind, with memory of its own, by name.
///
/// # Errors
/// [`DeviceUnavailable`].
pub fn open(kind: EngineKind, grids: Grids) -> Result<Box<dyn Engine>, DeviceUnavailable> {
    match kind {
        EngineKind::Host => Ok(Box::new(HostEngine::new(grids)?)),
        EngineKind::Accounting => Ok(Box::new(AccountingEngine::new(grids))),
        EngineKind::Cuda => Err(DeviceUnavailable::NotBuilt(kind)),
    }
}

impl CopyError {
    /// Whether the failed batch may have written to its targets.
    #[must_use]
    pub const fn launched(&self) -> Launched {
        match self {
            CopyError::Device { .. } => Launched::Maybe,
            CopyError::Access(_)
            | CopyError::Refused
            | CopyError::TimedOut { .. }
            | CopyError::Cancelled => Launched::No,
        }
    }
}

impl EngineKind {
    /// Every kind, in the order in which messages list them.
    pub const ALL: [EngineKind; 3] = [EngineKind::Host, EngineKind::Accounting, EngineKind::Cuda];

    /// The name in configurations and scenarios.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            EngineKind::Host => "host",
            EngineKind::Accounting => "accounting",
            EngineKind::Cuda => "cuda",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// No engine has this name.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("an engine is `host`, `accounting` or `cuda`")]
pub struct UnknownEngine;

impl FromStr for EngineKind {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        EngineKind::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or(UnknownEngine)
    }
}

impl<E: Engine + ?Sized> Engine for Box<E> {
    fn grids(&self) -> &Grids {
        (**self).grids()
    }

    fn write(&mut self, pool: PoolId, pages: &[PageWrite]) -> Result<(), AccessError> {
        (**self).write(pool, pages)
    }

    fn copy(&mut self, pool: PoolId, moves: &[PageMove]) -> Result<(), CopyError> {
        (**self).copy(pool, moves)
    }

    fn verify(&mut self, pages: &[PageCheck]) -> Result<Verified, VerifyError> {
        (**self).verify(pages)
    }
}
