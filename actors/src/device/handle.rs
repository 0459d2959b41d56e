//! The way into a worker's queue.

use std::sync::Arc;

use crossbeam_channel::Sender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use super::{
    AccessError, Batch, Command, CopyDone, CopyFailed, CopyTicket, DeviceLost, Fault, Grids,
    PageCheck, PoolWrites, Reply, Verified, VerifyError,
};

/// Sends commands to a worker; cheap to clone. When the last one goes the worker ends.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    pub(super) commands: Sender<Command>,
    pub(super) room: Arc<Semaphore>,
    pub(super) grids: Arc<Grids>,
}

/// Room for one command, secured. Given back when dropped.
#[derive(Debug)]
#[must_use = "room in the queue is for a command to be sent"]
pub struct Slot {
    commands: Sender<Command>,
    permit: OwnedSemaphorePermit,
}

/// Why there is no room for a command. Nothing was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ReserveError {
    /// The queue is full; it will have room again.
    #[error("the device worker's queue is full")]
    Busy,
    /// The worker is gone.
    #[error(transparent)]
    Lost(#[from] DeviceLost),
}

impl WorkerHandle {
    /// Waits for room for one command.
    ///
    /// # Errors
    /// [`DeviceLost`].
    pub async fn reserve(&self) -> Result<Slot, DeviceLost> {
        let permit = Arc::clone(&self.room).acquire_owned().await.map_err(|_| DeviceLost)?;
        Ok(Slot { commands: self.commands.clone(), permit })
    }

    /// Takes room for one command if there is any now.
    ///
    /// # Errors
    /// [`ReserveError`].
    pub fn try_reserve(&self) -> Result<Slot, ReserveError> {
        match Arc::clone(&self.room).try_acquire_owned() {
            Ok(permit) => Ok(Slot { commands: self.commands.clone(), permit }),
            Err(TryAcquireError::NoPermits) => Err(ReserveError::Busy),
            Err(TryAcquireError::Closed) => Err(ReserveError::Lost(DeviceLost)),
        }
    }

    /// Fills pages and waits until they are filled.
    ///
    /// # Errors
    /// [`DeviceLost`] outside, [`AccessError`] inside.
    pub async fn write(
        &self,
        writes: Vec<PoolWrites>,
    ) -> Result<Result<(), AccessError>, DeviceLost> {
        self.ask(|done| Command::Write { writes, done }).await
    }

    /// Copies pages, batch after batch, and waits for the last or the first that fails.
    ///
    /// # Errors
    /// [`DeviceLost`] outside, [`CopyFailed`] inside.
    pub async fn copy(
        &self,
        ticket: CopyTicket,
        batches: Vec<Batch>,
    ) -> Result<Result<CopyDone, CopyFailed>, DeviceLost> {
        self.ask(|done| Command::Copy { ticket, batches, done }).await
    }

    /// Compares pages.
    ///
    /// # Errors
    /// [`DeviceLost`] outside, [`VerifyError`] inside.
    pub async fn verify(
        &self,
        pages: Vec<PageCheck>,
    ) -> Result<Result<Verified, VerifyError>, DeviceLost> {
        self.ask(|done| Command::Verify { pages, done }).await
    }

    /// Arms a fault, or releases what one holds.
    ///
    /// # Errors
    /// [`DeviceLost`].
    pub async fn fault(&self, fault: Fault) -> Result<(), DeviceLost> {
        self.ask(|done| Command::Fault { fault, done }).await
    }

    /// Makes the worker panic.
    ///
    /// # Errors
    /// [`DeviceLost`] if it is gone already.
    pub async fn panic(&self) -> Result<(), DeviceLost> {
        self.reserve().await?.send(Command::Panic);
        Ok(())
    }

    /// Runs what was sent before, cancels what is parked, and ends the worker.
    ///
    /// # Errors
    /// [`DeviceLost`] if it is gone already.
    pub async fn stop(&self) -> Result<(), DeviceLost> {
        self.ask(|done| Command::Stop { done }).await
    }

    /// Where the pages of every pool lie.
    #[must_use]
    pub fn grids(&self) -> &Grids {
        &self.grids
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, DeviceLost> {
        let slot = self.reserve().await?;
        let (done, outcome) = Reply::channel();
        slot.send(command(done));
        outcome.await.map_err(|_| DeviceLost)?
    }
}

impl Slot {
    /// Sends a command. If the worker is gone, the command's reply says so.
    pub fn send(self, command: Command) {
        self.permit.forget(); // the worker gives it back when it takes the command out
        if let Err(unsent) = self.commands.try_send(command) {
            // Disconnected: never full, for permits and places in the channel are equally many.
            debug_assert!(unsent.is_disconnected(), "a permit is a place in the channel");
            drop(unsent);
        }
    }
}
