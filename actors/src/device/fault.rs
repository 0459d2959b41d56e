//! Copies that fail or hang on request.

use std::num::NonZeroU32;

use kvtide_core::unit::PoolId;

use super::{
    AccessError, CopyError, Engine, Grids, PageCheck, PageMove, PageWrite, Verified, VerifyError,
};

/// What to make of the next copies. A copy is one command to the worker, however many batches it has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// The next `times` copies are refused before they are launched.
    FailCopies {
        /// How many copies.
        times: NonZeroU32,
        /// Batches that still run first; a copy of no more batches fails at its last one.
        after_batches: u32,
    },
    /// The next `times` copies are parked: not run, not failed, until released or given up by the watchdog.
    DelayCopies {
        /// How many copies.
        times: NonZeroU32,
    },
    /// Parked copies run, in the order in which they came, and no more are parked.
    ReleaseCopies,
}

/// What is to become of one copy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Admission {
    /// It runs.
    Run,
    /// It is refused before the batch of this index.
    Refuse {
        /// Index of the batch that is not launched.
        batch: u32,
    },
    /// It is put aside.
    Park,
}

/// Any engine, with faults that can be switched on.
///
/// Each fault adds to what is left of the last of its sort; a copy that is due for both fails.
#[derive(Debug)]
pub struct Faulty<E> {
    engine: E,
    fail: u32,
    after_batches: u32,
    delay: u32,
}

impl<E: Engine> Faulty<E> {
    /// An engine without faults so far.
    pub fn new(engine: E) -> Self {
        Faulty { engine, fail: 0, after_batches: 0, delay: 0 }
    }

    /// Arms a fault. [`Fault::ReleaseCopies`] disarms delays; letting parked copies go is the worker's part.
    pub fn arm(&mut self, fault: Fault) {
        match fault {
            Fault::FailCopies { times, after_batches } => {
                self.fail = self.fail.saturating_add(times.get());
                self.after_batches = after_batches;
            }
            Fault::DelayCopies { times } => self.delay = self.delay.saturating_add(times.get()),
            Fault::ReleaseCopies => self.delay = 0,
        }
    }

    /// Decides what becomes of the next copy, and counts it. A copy of nothing always runs.
    pub fn admit(&mut self, batches: u32) -> Admission {
        let Some(last) = batches.checked_sub(1) else { return Admission::Run };
        if self.fail > 0 {
            self.fail -= 1;
            return Admission::Refuse { batch: self.after_batches.min(last) };
        }
        if self.delay > 0 {
            self.delay -= 1;
            return Admission::Park;
        }
        Admission::Run
    }

    /// The engine inside.
    pub fn into_inner(self) -> E {
        self.engine
    }
}

impl<E: Engine> Engine for Faulty<E> {
    fn grids(&self) -> &Grids {
        self.engine.grids()
    }

    fn write(&mut self, pool: PoolId, pages: &[PageWrite]) -> Result<(), AccessError> {
        self.engine.write(pool, pages)
    }

    fn copy(&mut self, pool: PoolId, moves: &[PageMove]) -> Result<(), CopyError> {
        self.engine.copy(pool, moves)
    }

    fn verify(&mut self, pages: &[PageCheck]) -> Result<Verified, VerifyError> {
        self.engine.verify(pages)
    }
}
