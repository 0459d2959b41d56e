//! The thread that owns an engine.
//!
//! Commands run one after the other in the order in which they were sent, except for copies that a fault has parked:
//! whatever comes later goes ahead of them. That is safe because a copy's targets are reserved until it is done
//! (I1), so nothing else names them, and because its sources stay mapped until its commit: what is written to a
//! source meanwhile is copied with it.
//!
//! Life of a command: room in the queue is secured ([`WorkerHandle::reserve`]), the command is sent, which cannot
//! fail or block ([`Slot::send`](super::Slot::send)), and its [`Reply`] fires exactly once, with [`DeviceLost`](super::DeviceLost) if the thread went
//! away first. The queue is a bounded crossbeam channel behind a semaphore of as many permits; the thread gives a
//! permit back for every command that it takes out, so the channel is never full and no tokio thread blocks on it.
//!
//! The thread ends by [`WorkerHandle::stop`], with its last handle, or by a panic. It hands its engine back in
//! every case, so that a new worker can go on with the same memory.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use kvtide_core::unit::Bytes;
use tokio::sync::Semaphore;

use super::{
    AccessError, Admission, Batch, Command, CopyDone, CopyError, CopyFailed, CopyTicket,
    DeviceUnavailable, Engine, Fault, Faulty, PoolWrites, Reply, WorkerHandle,
};

/// Starts workers.
#[derive(Debug)]
pub struct GpuWorker;

/// The worker's thread, to be joined for its engine. It catches its panics, so joining it does not fail.
pub type WorkerThread = JoinHandle<WorkerExit>;

/// What is left of a worker.
pub struct WorkerExit {
    /// The engine with all its memory. After a panic the command under way may have been half done.
    pub engine: Box<dyn Engine>,
    /// Why the thread ended.
    pub cause: ExitCause,
}

/// Why a worker's thread ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ExitCause {
    /// It was told to.
    Stopped,
    /// Nobody held a handle any more.
    Abandoned,
    /// It panicked, with this message.
    Panicked(String),
}

impl GpuWorker {
    /// Gives `engine` a thread of its own, fed by a queue of `depth` commands (65,536 at most).
    ///
    /// A copy that has been parked for `copy_timeout` is given up as [`CopyError::TimedOut`].
    ///
    /// # Errors
    /// [`DeviceUnavailable::Thread`].
    pub fn spawn(
        engine: Box<dyn Engine>,
        depth: NonZeroUsize,
        copy_timeout: Duration,
    ) -> Result<(WorkerHandle, WorkerThread), DeviceUnavailable> {
        let depth = depth.get().min(DEPTH_MAX);
        let (sender, commands) = crossbeam_channel::bounded(depth);
        let room = Arc::new(Semaphore::new(depth));
        let grids = Arc::new(engine.grids().clone());
        let worker = Worker {
            engine: Faulty::new(engine),
            commands,
            room: Arc::clone(&room),
            parked: VecDeque::new(),
            copy_timeout,
        };
        let thread = thread::Builder::new()
            .name("kvtide-gpu".to_owned())
            .spawn(|| worker.run())
            .map_err(DeviceUnavailable::Thread)?;
        Ok((WorkerHandle { commands: sender, room, grids }, thread))
    }
}

/// A copy that waits for its release.
struct Parked {
    copy: CopyJob,
    since: Instant,
    /// When the watchdog gives it up; never, if that is too far for the clock.
    deadline: Option<Instant>,
}

struct CopyJob {
    ticket: CopyTicket,
    batches: Vec<Batch>,
    done: Reply<Result<CopyDone, CopyFailed>>,
}

struct Worker {
    engine: Faulty<Box<dyn Engine>>,
    commands: Receiver<Command>,
    room: Arc<Semaphore>,
    /// In the order in which they were sent, so the first has the first deadline.
    parked: VecDeque<Parked>,
    copy_timeout: Duration,
}

/// What the loop does after a command.
enum Next {
    Serve,
    End,
}

impl Worker {
    fn run(mut self) -> WorkerExit {
        // Nothing that a panic can leave half done is used again but the engine, whose bytes are the caller's concern.
        let served = panic::catch_unwind(AssertUnwindSafe(|| self.serve()));
        self.room.close(); // wakes whoever waits for room
        // What is parked or queued now says `DeviceLost` as it is dropped.
        self.parked.clear();
        while let Ok(command) = self.commands.try_recv() {
            drop(command);
        }
        let cause = served.unwrap_or_else(|payload| ExitCause::Panicked(message(&*payload)));
        WorkerExit { engine: self.engine.into_inner(), cause }
    }

    fn serve(&mut self) -> ExitCause {
        loop {
            self.expire();
            let received = match self.parked.front().and_then(|parked| parked.deadline) {
                Some(deadline) => self.commands.recv_deadline(deadline),
                None => self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let command = match received {
                Ok(command) => command,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => {
                    self.cancel();
                    return ExitCause::Abandoned;
                }
            };
            self.room.add_permits(1);
            if let Next::End = self.execute(command) {
                return ExitCause::Stopped;
            }
        }
    }

    fn execute(&mut self, command: Command) -> Next {
        match command {
            Command::Write { writes, done } => done.send(self.write(&writes)),
            Command::Copy { ticket, batches, done } => {
                self.admit(CopyJob { ticket, batches, done });
            }
            Command::Verify { pages, done } => done.send(self.engine.verify(&pages)),
            Command::Fault { fault, done } => {
                self.engine.arm(fault);
                if fault == Fault::ReleaseCopies {
                    while let Some(parked) = self.parked.pop_front() {
                        self.copy(parked.copy, None);
                    }
                }
                done.send(());
            }
            Command::Panic => panic!("injected panic in the device worker"),
            Command::Stop { done } => {
                self.cancel();
                done.send(());
                return Next::End;
            }
        }
        Next::Serve
    }

    fn write(&mut self, writes: &[PoolWrites]) -> Result<(), AccessError> {
        for PoolWrites { pool, pages } in writes {
            pages
                .iter()
                .try_for_each(|write| self.engine.grids().range(*pool, write.page).map(drop))?;
        }
        writes.iter().try_for_each(|writes| self.engine.write(writes.pool, &writes.pages))
    }

    fn admit(&mut self, copy: CopyJob) {
        match self.engine.admit(copy.batches.len() as u32) {
            Admission::Run => self.copy(copy, None),
            Admission::Refuse { batch } => self.copy(copy, Some(batch)),
            Admission::Park => {
                let since = Instant::now();
                let deadline = since.checked_add(self.copy_timeout);
                self.parked.push_back(Parked { copy, since, deadline });
            }
        }
    }

    /// Runs the batches in order, as far as the one to refuse if there is one.
    fn copy(&mut self, copy: CopyJob, refuse: Option<u32>) {
        let CopyJob { ticket, batches, done } = copy;
        let start = Instant::now();
        let (mut pages, mut bytes) = (0, 0);
        for (index, batch) in (0..).zip(&batches) {
            let copied = match refuse {
                Some(refused) if refused == index => Err(CopyError::Refused),
                _ => self.engine.copy(batch.pool, &batch.moves),
            };
            if let Err(cause) = copied {
                let launched = cause.launched();
                return done.send(Err(CopyFailed { ticket, batches_done: index, launched, cause }));
            }
            let page_bytes = self.engine.grids().page_bytes(batch.pool).unwrap_or_default();
            pages += batch.moves.len() as u64;
            bytes += batch.moves.len() as u64 * page_bytes.0;
        }
        done.send(Ok(CopyDone { ticket, pages, bytes: Bytes(bytes), elapsed: start.elapsed() }));
    }

    /// Gives up what has been parked for too long.
    fn expire(&mut self) {
        let now = Instant::now();
        let due = |parked: &Parked| parked.deadline.is_some_and(|deadline| deadline <= now);
        while let Some(parked) = self.parked.pop_front_if(|parked| due(parked)) {
            let waited = now.saturating_duration_since(parked.since).as_millis();
            let waited_ms = u64::try_from(waited).unwrap_or(u64::MAX);
            parked.copy.give_up(CopyError::TimedOut { waited_ms });
        }
    }

    fn cancel(&mut self) {
        for parked in self.parked.drain(..) {
            parked.copy.give_up(CopyError::Cancelled);
        }
    }
}

impl CopyJob {
    /// Reports a copy that never ran.
    fn give_up(self, cause: CopyError) {
        let launched = cause.launched();
        self.done.send(Err(CopyFailed { ticket: self.ticket, batches_done: 0, launched, cause }));
    }
}

impl fmt::Debug for WorkerExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerExit").field("cause", &self.cause).finish_non_exhaustive()
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

/// 65,536 commands x about 80 bytes = 5 MiB, allocated at once.
const DEPTH_MAX: usize = 65_536;
