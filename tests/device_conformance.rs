//! What every engine must do, for each of them, and what its worker must do around it.

#![allow(clippy::unwrap_used)]

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use kvtide::device::{
    self, AccessError, Batch, Content, CopyDone, CopyError, CopyFailed, CopyTicket, DeviceLost,
    Engine, EngineKind, ExitCause, Fault, GpuWorker, Grids, Launched, PageCheck, PageMove,
    PageWrite, PoolWrites, ReserveError, Tag, VerifyError, WorkerHandle, WorkerThread,
};
use kvtide::device::{Command, Reply};
use kvtide_core::unit::{Bytes, PageId, PoolId};
use tokio::sync::oneshot;

const SMALL: PoolId = PoolId(0);
const ODD: PoolId = PoolId(1);
/// Far beyond what any test takes.
const NEVER: Duration = Duration::from_secs(3600);

/// 400 bytes under a sink of 24: pages of 24 bytes (1 to 15), and of 21, not whole words (2 to 18).
fn grids() -> Grids {
    Grids::new(Bytes(400), Bytes(24), vec![Bytes(24), Bytes(21)])
}

fn write(page: u32, tag: u64) -> PageWrite {
    PageWrite { page: PageId(page), tag: Tag(tag) }
}

fn moves(pairs: &[(u32, u32)]) -> Vec<PageMove> {
    pairs.iter().map(|&(from, to)| PageMove { from: PageId(from), to: PageId(to) }).collect()
}

fn batch(pool: PoolId, pairs: &[(u32, u32)]) -> Batch {
    Batch { pool, moves: moves(pairs) }
}

fn checks(pool: PoolId, pages: &[(u32, u64)]) -> Vec<PageCheck> {
    pages.iter().map(|&(page, tag)| PageCheck { pool, page: PageId(page), tag: Tag(tag) }).collect()
}

/// The pages hold these tags, as far as the engine can tell.
#[track_caller]
fn holds(engine: &mut dyn Engine, pool: PoolId, pages: &[(u32, u64)]) {
    let verified = engine.verify(&checks(pool, pages)).unwrap();
    assert_eq!(verified.verified + verified.in_range, pages.len() as u64);
}

fn copies_land(engine: &mut dyn Engine) {
    for pool in [SMALL, ODD] {
        engine.write(pool, &[write(2, 20), write(3, 30), write(4, 40)]).unwrap();
        engine.copy(pool, &moves(&[(2, 9), (4, 7), (4, 11)])).unwrap();
        holds(engine, pool, &[(2, 20), (3, 30), (4, 40), (9, 20), (7, 40), (11, 40)]);
    }
}

fn the_first_and_the_last_page_are_usable(engine: &mut dyn Engine) {
    for (pool, first, last) in [(SMALL, 1, 15), (ODD, 2, 18)] {
        engine.write(pool, &[write(first, 1)]).unwrap();
        engine.copy(pool, &moves(&[(first, last)])).unwrap();
        holds(engine, pool, &[(first, 1), (last, 1)]);
    }
}

fn neighbours_are_untouched(engine: &mut dyn Engine) {
    engine.write(ODD, &[write(5, 5), write(6, 6), write(7, 7), write(12, 12)]).unwrap();
    engine.copy(ODD, &moves(&[(12, 6)])).unwrap();
    holds(engine, ODD, &[(5, 5), (6, 12), (7, 7), (12, 12)]);
}

fn overlapping_copies_are_refused_whole(engine: &mut dyn Engine) {
    engine.write(SMALL, &[write(2, 2), write(3, 3), write(4, 4)]).unwrap();
    for (pairs, page) in [
        (&[(2, 5), (3, 4), (4, 6)][..], 4), // a shift: 4 is read and written
        (&[(2, 5), (3, 5)], 5),             // one target for two
        (&[(2, 5), (3, 3)], 3),             // onto itself
    ] {
        let refused = engine.copy(SMALL, &moves(pairs)).unwrap_err();
        let overlap = AccessError::Overlap { pool: SMALL, page: PageId(page) };
        assert_eq!(refused, CopyError::Access(overlap));
        assert_eq!(refused.launched(), Launched::No);
    }
    holds(engine, SMALL, &[(2, 2), (3, 3), (4, 4)]);
}

fn what_is_out_of_range_is_refused_whole(engine: &mut dyn Engine) {
    for (pool, outside) in [(SMALL, [0, 16, u32::MAX]), (ODD, [1, 19, u32::MAX])] {
        for page in outside {
            let is_range = |refused: AccessError| match refused {
                AccessError::OutOfRange { page: named, .. } => assert_eq!(named, PageId(page)),
                other => panic!("{other}"),
            };
            engine.write(pool, &[write(5, 5)]).unwrap();
            is_range(engine.write(pool, &[write(5, 6), write(page, 1)]).unwrap_err());
            for pairs in [[(6, 5), (5, page)], [(6, 5), (page, 7)]] {
                match engine.copy(pool, &moves(&pairs)).unwrap_err() {
                    CopyError::Access(refused) => is_range(refused),
                    other => panic!("{other}"),
                }
            }
            match engine.verify(&checks(pool, &[(5, 5), (page, 1)])).unwrap_err() {
                VerifyError::Access(refused) => is_range(refused),
                VerifyError::Mismatch(other) => panic!("{other}"),
            }
            holds(engine, pool, &[(5, 5)]);
        }
    }
}

fn an_unknown_pool_is_refused(engine: &mut dyn Engine) {
    let pool = PoolId(2);
    let refused = AccessError::NoPool { pool, pools: 2 };
    assert_eq!(engine.write(pool, &[write(5, 5)]), Err(refused));
    assert_eq!(engine.copy(pool, &moves(&[(5, 6)])), Err(CopyError::Access(refused)));
    assert_eq!(engine.verify(&checks(pool, &[(5, 5)])), Err(VerifyError::Access(refused)));
}

fn nothing_to_do_is_done(engine: &mut dyn Engine) {
    engine.write(SMALL, &[]).unwrap();
    engine.copy(SMALL, &[]).unwrap();
    holds(engine, SMALL, &[]);
}

/// The tests of engines, and those of a worker that hold for any engine, once for every engine.
macro_rules! conformance {
    ($($engine:ident: $kind:expr;)*) => { $(
        mod $engine {
            use super::*;

            conformance!(@engine $kind;
                copies_land the_first_and_the_last_page_are_usable neighbours_are_untouched
                overlapping_copies_are_refused_whole what_is_out_of_range_is_refused_whole
                an_unknown_pool_is_refused nothing_to_do_is_done);
            conformance!(@worker $kind;
                a_chain_of_batches_runs_in_order the_first_bad_batch_ends_a_copy
                a_failed_copy_is_refused_before_its_launch a_fault_can_let_batches_pass_first
                a_parked_copy_lets_everything_else_by_until_released
                the_watchdog_gives_a_parked_copy_up stopping_cancels_what_is_parked
                a_panic_loses_what_is_in_flight_and_keeps_the_engine
                a_worker_without_handles_ends a_full_queue_is_busy_not_blocking
                whoever_waits_for_room_hears_of_a_lost_worker a_write_is_all_or_nothing);
        }
    )* };
    (@engine $kind:expr; $($test:ident)*) => { $(
        #[test]
        fn $test() {
            super::$test(&mut *device::open($kind, grids()).unwrap());
        }
    )* };
    (@worker $kind:expr; $($test:ident)*) => { $(
        #[tokio::test]
        async fn $test() {
            super::$test($kind).await;
        }
    )* };
}

conformance! {
    host: EngineKind::Host;
    accounting: EngineKind::Accounting;
}

fn spawn(kind: EngineKind, depth: usize, timeout: Duration) -> (WorkerHandle, WorkerThread) {
    let engine = device::open(kind, grids()).unwrap();
    GpuWorker::spawn(engine, NonZeroUsize::new(depth).unwrap(), timeout).unwrap()
}

async fn fill(worker: &WorkerHandle, pool: PoolId, pages: &[(u32, u64)]) {
    let pages = pages.iter().map(|&(page, tag)| write(page, tag)).collect();
    worker.write(vec![PoolWrites { pool, pages }]).await.unwrap().unwrap();
}

async fn shows(worker: &WorkerHandle, pool: PoolId, pages: &[(u32, u64)]) {
    let verified = worker.verify(checks(pool, pages)).await.unwrap().unwrap();
    assert_eq!(verified.verified + verified.in_range, pages.len() as u64);
}

/// Sends a copy without waiting for its outcome.
async fn start_copy(
    worker: &WorkerHandle,
    ticket: u64,
    batches: Vec<Batch>,
) -> oneshot::Receiver<Result<Result<CopyDone, CopyFailed>, DeviceLost>> {
    let (done, outcome) = Reply::channel();
    let slot = worker.reserve().await.unwrap();
    slot.send(Command::Copy { ticket: CopyTicket(ticket), batches, done });
    outcome
}

fn times(times: u32) -> NonZeroU32 {
    NonZeroU32::new(times).unwrap()
}

async fn a_chain_of_batches_runs_in_order(kind: EngineKind) {
    let (worker, _thread) = spawn(kind, 4, NEVER);
    fill(&worker, SMALL, &[(2, 2), (3, 3)]).await;
    fill(&worker, ODD, &[(16, 16)]).await;
    // Bytes that one pool vacates are another's target: small page 3 is bytes 72 to 96, odd page 4 is 84 to 105.
    let chain = vec![
        batch(SMALL, &[(3, 8), (2, 9)]),
        batch(ODD, &[(16, 4)]),
        batch(SMALL, &[(8, 2)]),
        batch(SMALL, &[(9, 8)]),
    ];
    let done = worker.copy(CopyTicket(7), chain).await.unwrap().unwrap();
    assert_eq!(done.ticket, CopyTicket(7));
    assert_eq!((done.pages, done.bytes), (5, Bytes(4 * 24 + 21)));
    shows(&worker, SMALL, &[(2, 3), (8, 2), (9, 2)]).await;
    shows(&worker, ODD, &[(4, 16), (16, 16)]).await;
}

async fn the_first_bad_batch_ends_a_copy(kind: EngineKind) {
    let (worker, _thread) = spawn(kind, 4, NEVER);
    fill(&worker, SMALL, &[(2, 2), (3, 3), (9, 9)]).await;
    let batches = vec![batch(SMALL, &[(2, 5)]), batch(SMALL, &[(3, 99)]), batch(SMALL, &[(2, 9)])];
    let failed = worker.copy(CopyTicket(1), batches).await.unwrap().unwrap_err();
    assert_eq!((failed.batches_done, failed.launched), (1, Launched::No));
    assert!(matches!(failed.cause, CopyError::Access(AccessError::OutOfRange { .. })));
    shows(&worker, SMALL, &[(5, 2), (3, 3), (9, 9)]).await;
}

async fn a_failed_copy_is_refused_before_its_launch(kind: EngineKind) {
    let (worker, _thread) = spawn(kind, 4, NEVER);
    fill(&worker, SMALL, &[(2, 2), (5, 5)]).await;
    worker.fault(Fault::FailCopies { times: times(2), after_batches: 0 }).await.unwrap();
    for ticket in 0..2 {
        let batches = vec![batch(SMALL, &[(2, 5)]), batch(SMALL, &[(2, 6)])];
        let failed = worker.copy(CopyTicket(ticket), batches).await.unwrap().unwrap_err();
        let (launched, cause) = (Launched::No, CopyError::Refused);
        let ticket = CopyTicket(ticket);
        assert_eq!(failed, CopyFailed { ticket, batches_done: 0, launched, cause });
    }
    shows(&worker, SMALL, &[(2, 2), (5, 5)]).await;
    worker.copy(CopyTicket(2), vec![batch(SMALL, &[(2, 5)])]).await.unwrap().unwrap();
    shows(&worker, SMALL, &[(5, 2)]).await;
}

async fn a_fault_can_let_batches_pass_first(kind: EngineKind) {
    let (worker, _thread) = spawn(kind, 4, NEVER);
    fill(&worker, SMALL, &[(2, 2), (6, 6)]).await;
    worker.fault(Fault::FailCopies { times: times(2), after_batches: 1 }).await.unwrap();
    let batches = vec![batch(SMALL, &[(2, 5)]), batch(SMALL, &[(2, 6)]), batch(SMALL, &[(2, 7)])];
    let failed = worker.copy(CopyTicket(0), batches).await.unwrap().unwrap_err();
    assert_eq!((failed.batches_done, failed.cause), (1, CopyError::Refused));
    let failed = worker.copy(CopyTicket(1), vec![batch(SMALL, &[(2, 6)])]).await.unwrap();
    assert_eq!(failed.unwrap_err().batches_done, 0, "a short copy fails at its last batch");
    shows(&worker, SMALL, &[(5, 2), (6, 6)]).await;
}

async fn a_parked_copy_lets_everything_else_by_until_released(kind: EngineKind) {
    let (worker, _thread) = spawn(kind, 4, NEVER);
    fill(&worker, SMALL, &[(2, 2), (3, 3), (8, 8), (9, 9)]).await;
    worker.fault(Fault::DelayCopies { times: times(2) }).await.unwrap();
    let mut first = start_copy(&worker, 1, vec![batch(SMALL, &[(2, 8)])]).await;
    let mut second = start_copy(&worker, 2, vec![batch(SMALL, &[(8, 9)])]).await;

    worker.copy(CopyTicket(3), vec![batch(SMALL, &[(3, 4)])]).await.unwrap().unwrap();
    fill(&worker, SMALL, &[(5, 5)]).await;
    shows(&worker, SMALL, &[(2, 2), (4, 3), (5, 5), (8, 8), (9, 9)]).await;
    assert!(first.try_recv().is_err() && second.try_recv().is_err(), "both are parked");

    worker.fault(Fault::ReleaseCopies).await.unwrap();
    assert_eq!(first.await.unwrap().unwrap().unwrap().ticket, CopyTicket(1));
    assert_eq!(second.await.unwrap().unwrap().unwrap().ticket, CopyTicket(2));
    shows(&worker, SMALL, &[(8, 2), (9, 2)]).await; // the second ran after the first

    worker.fault(Fault::DelayCopies { times: times(5) }).await.unwrap();
    worker.fault(Fault::ReleaseCopies).await.unwrap();
    worker.copy(CopyTicket(4), vec![batch(SMALL, &[(3, 9)])]).await.unwrap().unwrap();
}

async fn the_watchdog_gives_a_parked_copy_up(kind: EngineKind) {
    let (worker, _thread) = spawn(kind, 4, Duration::from_millis(1));
    fill(&worker, SMALL, &[(2, 2), (8, 8)]).await;
    worker.fault(Fault::DelayCopies { times: times(1) }).await.unwrap();
    let batches = vec![batch(SMALL, &[(2, 8)])];
    let failed = worker.copy(CopyTicket(1), batches.clone()).await.unwrap().unwrap_err();
    assert!(matches!(failed.cause, CopyError::TimedOut { waited_ms: 1.. }), "{failed}");
    assert_eq!((failed.batches_done, failed.launched), (0, Launched::No));
    worker.fault(Fault::ReleaseCopies).await.unwrap();
    shows(&worker, SMALL, &[(8, 8)]).await; // given up for good
    worker.copy(CopyTicket(2), batches).await.unwrap().unwrap();
}

async fn stopping_cancels_what_is_parked(kind: EngineKind) {
    let (worker, thread) = spawn(kind, 4, NEVER);
    worker.fault(Fault::DelayCopies { times: times(1) }).await.unwrap();
    let parked = start_copy(&worker, 1, vec![batch(SMALL, &[(2, 8)])]).await;
    worker.stop().await.unwrap();
    assert_eq!(parked.await.unwrap().unwrap().unwrap_err().cause, CopyError::Cancelled);
    assert_eq!(thread.join().unwrap().cause, ExitCause::Stopped);
    assert_eq!(worker.verify(vec![]).await, Err(DeviceLost));
    assert_eq!(worker.stop().await, Err(DeviceLost));
    assert_eq!(worker.try_reserve().unwrap_err(), ReserveError::Lost(DeviceLost));
}

async fn a_panic_loses_what_is_in_flight_and_keeps_the_engine(kind: EngineKind) {
    let (worker, thread) = spawn(kind, 4, NEVER);
    fill(&worker, SMALL, &[(2, 2)]).await;
    let secured = worker.reserve().await.unwrap();
    worker.fault(Fault::DelayCopies { times: times(1) }).await.unwrap();
    let parked = start_copy(&worker, 1, vec![batch(SMALL, &[(2, 8)])]).await;
    worker.panic().await.unwrap();
    assert_eq!(parked.await.unwrap(), Err(DeviceLost));
    let exit = thread.join().unwrap();
    assert!(matches!(exit.cause, ExitCause::Panicked(message) if message.contains("injected")));
    let (done, outcome) = Reply::channel();
    secured.send(Command::Verify { pages: vec![], done });
    assert_eq!(outcome.await.unwrap(), Err(DeviceLost), "room secured before is of no use");

    let again = GpuWorker::spawn(exit.engine, NonZeroUsize::MIN, NEVER).unwrap();
    shows(&again.0, SMALL, &[(2, 2)]).await;
    let done = again.0.copy(CopyTicket(2), vec![batch(SMALL, &[(2, 8)])]).await.unwrap();
    assert!(done.is_ok(), "faults end with their worker");
}

async fn a_worker_without_handles_ends(kind: EngineKind) {
    let (worker, thread) = spawn(kind, 4, NEVER);
    worker.fault(Fault::DelayCopies { times: times(1) }).await.unwrap();
    let parked = start_copy(&worker, 1, vec![batch(SMALL, &[(2, 8)])]).await;
    drop(worker);
    assert_eq!(parked.await.unwrap().unwrap().unwrap_err().cause, CopyError::Cancelled);
    assert_eq!(thread.join().unwrap().cause, ExitCause::Abandoned);
}

/// Keeps the worker inside a command until the returned end is dropped.
async fn occupy(worker: &WorkerHandle) -> std::sync::mpsc::Sender<()> {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let (begun, begins) = oneshot::channel();
    let done = Reply::call(move |_| {
        begun.send(()).unwrap();
        assert!(held.recv().is_err());
    });
    worker.reserve().await.unwrap().send(Command::Verify { pages: vec![], done });
    begins.await.unwrap();
    hold
}

async fn a_full_queue_is_busy_not_blocking(kind: EngineKind) {
    let (worker, _thread) = spawn(kind, 2, NEVER);
    let hold = occupy(&worker).await;
    let unused = worker.reserve().await.unwrap();
    let first = start_copy(&worker, 1, vec![batch(SMALL, &[(2, 8)])]).await;
    assert_eq!(worker.try_reserve().unwrap_err(), ReserveError::Busy);
    drop(unused);
    let second = start_copy(&worker, 2, vec![batch(SMALL, &[(2, 9)])]).await;
    assert_eq!(worker.try_reserve().unwrap_err(), ReserveError::Busy);
    let waiting = worker.verify(vec![]);
    tokio::pin!(waiting);
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("there is no room"),
        () = std::future::ready(()) => {}
    }
    drop(hold);
    waiting.await.unwrap().unwrap();
    assert!(first.await.unwrap().unwrap().is_ok() && second.await.unwrap().unwrap().is_ok());
}

async fn whoever_waits_for_room_hears_of_a_lost_worker(kind: EngineKind) {
    let (worker, thread) = spawn(kind, 1, NEVER);
    let hold = occupy(&worker).await;
    worker.reserve().await.unwrap().send(Command::Panic);
    let waiting: Vec<_> = (0..8)
        .map(|ticket| {
            let worker = worker.clone();
            tokio::spawn(async move { worker.copy(CopyTicket(ticket), vec![]).await })
        })
        .collect();
    tokio::task::yield_now().await;
    drop(hold);
    for copy in waiting {
        assert_eq!(copy.await.unwrap(), Err(DeviceLost));
    }
    assert!(matches!(thread.join().unwrap().cause, ExitCause::Panicked(_)));
}

async fn a_write_is_all_or_nothing(kind: EngineKind) {
    let (worker, _thread) = spawn(kind, 4, NEVER);
    fill(&worker, SMALL, &[(4, 4)]).await;
    let refused = worker.write(vec![
        PoolWrites { pool: SMALL, pages: vec![write(4, 9)] },
        PoolWrites { pool: ODD, pages: vec![write(19, 1)] },
    ]);
    assert!(matches!(refused.await.unwrap(), Err(AccessError::OutOfRange { pool: ODD, .. })));
    shows(&worker, SMALL, &[(4, 4)]).await;
}

#[test]
fn host_finds_a_swapped_page_and_reads_its_tag() {
    let mut engine = device::open(EngineKind::Host, grids()).unwrap();
    engine.write(ODD, &[write(5, 50), write(6, 60), write(7, 70)]).unwrap();
    match engine.verify(&checks(ODD, &[(7, 70), (5, 60), (6, 50)])).unwrap_err() {
        VerifyError::Mismatch(found) => {
            assert_eq!((found.pool, found.page, found.wanted), (ODD, PageId(5), Tag(60)));
            assert_eq!((found.word, found.looks_like), (0, Content::Tagged(Tag(50))));
        }
        VerifyError::Access(other) => panic!("{other}"),
    }
}

#[test]
fn host_finds_a_page_that_another_pool_has_written_into() {
    let mut engine = device::open(EngineKind::Host, grids()).unwrap();
    engine.write(SMALL, &[write(3, 3)]).unwrap(); // bytes 72 to 96
    engine.write(ODD, &[write(4, 4)]).unwrap(); // bytes 84 to 105: word 1 from its middle on
    match engine.verify(&checks(SMALL, &[(3, 3)])).unwrap_err() {
        VerifyError::Mismatch(found) => assert_eq!(found.word, 1),
        VerifyError::Access(other) => panic!("{other}"),
    }
}

#[test]
fn host_says_that_a_page_was_never_written() {
    let mut engine = device::open(EngineKind::Host, grids()).unwrap();
    match engine.verify(&checks(SMALL, &[(3, 3)])).unwrap_err() {
        VerifyError::Mismatch(found) => assert_eq!(found.looks_like, Content::Zero),
        VerifyError::Access(other) => panic!("{other}"),
    }
}

#[test]
fn host_compares_every_page_and_accounting_says_that_it_cannot() {
    let pages = checks(SMALL, &[(3, 3), (4, 4)]);
    let mut host = device::open(EngineKind::Host, grids()).unwrap();
    host.write(SMALL, &[write(3, 3), write(4, 4)]).unwrap();
    let verified = host.verify(&pages).unwrap();
    assert_eq!((verified.verified, verified.in_range), (2, 0));
    let mut accounting = device::open(EngineKind::Accounting, grids()).unwrap();
    let verified = accounting.verify(&pages).unwrap();
    assert_eq!((verified.verified, verified.in_range), (0, 2));
}

#[test]
fn an_engine_that_is_not_built_in_is_a_clear_error() {
    let refused = device::open(EngineKind::Cuda, grids()).err().unwrap();
    assert_eq!(refused.to_string(), "this build has no `cuda` engine");
}

#[test]
fn accounting_needs_no_memory_for_an_arena_of_any_size() {
    let grids = Grids::new(Bytes(u64::MAX), Bytes(1 << 40), vec![Bytes(1 << 40)]);
    let mut engine = device::open(EngineKind::Accounting, grids).unwrap();
    engine.copy(SMALL, &moves(&[(1, 16_777_214)])).unwrap();
    assert!(engine.copy(SMALL, &moves(&[(1, 16_777_215)])).is_err());
}
