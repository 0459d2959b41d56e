//! The service through its handle: what is dropped is given back, who waits is served in order, and gates and leases
//! hold pages where they are.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so")]

mod rig;

use kvtide::error::{AllocError, Bounded, Refusal, ServiceError};
use kvtide::handle::OpenOptions;
use kvtide::message::{Left, Publishing};
use kvtide_core::chain::Grow;
use kvtide_core::tree::Namespace;
use kvtide_core::unit::{Bytes, Tokens};
use rig::{
    LONG, Rig, SHORT, config, full, on_both, poll_then_drop, run, state, swa, ten_pages, tokens,
    with,
};

#[test]
fn whatever_is_dropped_is_given_back() {
    on_both(|| async {
        let pools = vec![full(Grow::Up, 32), state(Grow::Float, 96), swa(4, Grow::Down, 64)];
        let rig = Rig::start(config(4096, 2, pools)).await;
        let mut sequence = rig.open(tokens(0, 9)).await.unwrap();
        sequence.extend(None, None).await.unwrap();
        let held = rig.reserve(&[("full", 3), ("swa", 2), ("state", 1)], None).await.unwrap();
        let step = rig.handle.begin_step(&[&sequence]).await.unwrap();
        let pools: Vec<_> = rig.handle.chain().pool_ids().collect();
        let gate = rig.handle.close_moves("transfer", &pools).await.unwrap();
        let stats = rig.stats().await;
        assert_eq!((stats.sequences, stats.leases, stats.gates), (1, 1, 1));
        let live: Vec<u32> = stats.pools.iter().map(|pool| pool.counts.live.0).collect();
        assert_eq!(live, [8, 2, 7]);
        drop(sequence);
        // What the step may still read is not free yet.
        let stats = rig.stats().await;
        assert_eq!(stats.pools[0].counts.pending.0, 5);
        assert_eq!(stats.pools[0].counts.live.0, 3);
        drop((held, gate));
        drop(step);
        let stats = rig.stats().await;
        assert!(stats.pools.iter().all(|pool| pool.counts.live.0 + pool.counts.pending.0 == 0));
        rig.rests().await;
    });
}

#[test]
fn what_is_given_back_by_name_is_there_when_the_call_returns() {
    on_both(|| async {
        let rig = Rig::start(ten_pages()).await;
        let held = rig.reserve(&[("full", 10)], None).await.unwrap();
        held.release_all().await.unwrap();
        let mut sequence = rig.open(tokens(0, 10)).await.unwrap();
        sequence.extend(None, None).await.unwrap();
        let step = rig.handle.begin_step(&[&sequence]).await.unwrap();
        sequence.close().await.unwrap();
        let refused = rig.reserve(&[("full", 1)], None).await;
        assert!(matches!(refused, Err(AllocError::Exhausted { .. })));
        step.end().await.unwrap();
        let mut held = rig.reserve(&[("full", 10)], None).await.unwrap();
        let full = rig.handle.chain().full().unwrap();
        assert_eq!(held.release(&[full]).await.unwrap(), Left::Nothing);
        assert!(matches!(held.release(&[full]).await, Err(AllocError::UnknownName(_))));
        drop(held);
        rig.rests().await;
    });
}

#[test]
fn full_pages_are_not_given_back_from_under_their_window_pages() {
    run(async {
        let rig =
            Rig::start(config(2048, 1, vec![full(Grow::Up, 32), swa(4, Grow::Down, 32)])).await;
        let chain = rig.handle.chain();
        let (full, swa) = (chain.named("full").unwrap(), chain.named("swa").unwrap());
        let mut held = rig.reserve(&[("full", 4), ("swa", 2)], None).await.unwrap();
        let refused = held.release(&[full]).await;
        assert!(matches!(refused, Err(AllocError::InvalidOperation(_))), "{refused:?}");
        assert_eq!((rig.live(0).await, rig.live(1).await), (4, 2));
        assert_eq!(held.release(&[swa]).await.unwrap(), Left::Pages);
        assert_eq!((rig.live(0).await, rig.live(1).await), (4, 0));
        assert_eq!(held.release(&[full]).await.unwrap(), Left::Nothing);
        drop(held);
        rig.rests().await;
    });
}

#[test]
fn operations_out_of_order_are_refused_and_change_nothing() {
    on_both(|| async {
        let rig = Rig::start(ten_pages()).await;
        assert!(matches!(rig.open(Vec::new()).await, Err(AllocError::InvalidOperation(_))));
        let mut sequence = rig.open(tokens(0, 4)).await.unwrap();
        let early = sequence.append(vec![9], None).await.unwrap();
        assert!(matches!(early.stopped, Some(AllocError::InvalidOperation(_))), "{early:?}");
        assert_eq!(early.appended, Tokens(0));
        let past = sequence.extend(Some(Tokens(5)), None).await;
        assert!(matches!(past, Err(AllocError::InvalidOperation(_))), "{past:?}");
        sequence.extend(Some(Tokens(4)), None).await.unwrap();
        let none = sequence.append(Vec::new(), None).await.unwrap();
        assert!(matches!(none.stopped, Some(AllocError::InvalidOperation(_))), "{none:?}");
        assert_eq!(rig.live(0).await, 4);
        drop(sequence);
        rig.rests().await;
    });
}

#[test]
fn states_alone_hold_no_sequences() {
    run(async {
        let rig = Rig::start(config(960, 1, vec![state(Grow::Up, 96)])).await;
        assert!(matches!(rig.open(tokens(0, 3)).await, Err(AllocError::Unsupported(_))));
        let held = rig.reserve(&[("state", 9)], None).await.unwrap();
        assert!(matches!(
            rig.reserve(&[("state", 1)], None).await,
            Err(AllocError::Exhausted { .. })
        ));
        drop(held);
        rig.rests().await;
    });
}

#[test]
fn who_waits_is_granted_what_another_gives_back() {
    on_both(|| async {
        let rig = Rig::start(ten_pages()).await;
        let held = rig.reserve(&[("full", 8)], None).await.unwrap();
        let waiting = rig.reserve_later(&[("full", 5)]).await;
        drop(held);
        let granted = waiting.await.unwrap().unwrap();
        assert!(granted.receipt().waited > std::time::Duration::ZERO);
        assert_eq!((rig.live(0).await, rig.stats().await.totals.waits), (5, 1));
        drop(granted);
        rig.rests().await;
    });
}

#[test]
fn who_waits_is_granted_what_another_publishes() {
    on_both(|| async {
        let rig = Rig::start(ten_pages()).await;
        let mut sequence = rig.open(tokens(0, 8)).await.unwrap();
        sequence.extend(None, None).await.unwrap();
        let waiting = rig.reserve_later(&[("full", 5)]).await;
        sequence.finish(Publishing::PagesAndState).await.unwrap();
        let granted = waiting.await.unwrap().unwrap();
        // Two pages are free; three of the eight published have to go.
        assert_eq!(granted.receipt().evicted.0[0].0, 3);
        assert_eq!(rig.matched(tokens(0, 9)).await, 5);
        drop(granted);
        rig.rests().await;
    });
}

#[test]
fn who_waits_too_long_times_out_and_changes_nothing() {
    on_both(|| async {
        let rig = Rig::start(ten_pages()).await;
        let held = rig.reserve(&[("full", 8)], None).await.unwrap();
        let late = rig.reserve(&[("full", 5)], SHORT).await;
        assert!(matches!(late, Err(AllocError::TimedOut { .. })), "{:?}", late.err());
        let options = OpenOptions { wait: SHORT, ..OpenOptions::default() };
        let mut sequence = rig.handle.open(tokens(0, 5), options).await.unwrap();
        let late = sequence.extend(None, SHORT).await;
        assert!(matches!(late, Err(AllocError::TimedOut { .. })), "{late:?}");
        // It can still do with less.
        sequence.extend(Some(Tokens(2)), SHORT).await.unwrap();
        assert_eq!((rig.live(0).await, rig.stats().await.waiting), (10, 0));
        drop((held, sequence));
        rig.rests().await;
    });
}

#[test]
fn nobody_waits_for_what_can_never_be() {
    run(async {
        let rig = Rig::start(ten_pages()).await;
        let refused = rig.reserve(&[("full", 11)], LONG).await;
        assert!(matches!(refused, Err(AllocError::Impossible { .. })));
        rig.rests().await;
    });
}

#[test]
fn a_small_newcomer_does_not_starve_the_head() {
    on_both(|| async {
        let rig = Rig::start(with(ten_pages(), "queue.max_bypass_ms", 3_600_000)).await;
        let first = rig.reserve(&[("full", 4)], None).await.unwrap();
        let second = rig.reserve(&[("full", 4)], None).await.unwrap();
        let head = rig.reserve_later(&[("full", 9)]).await;
        // Two pages are free, but the head would be further from what it needs.
        let refused = rig.reserve(&[("full", 1)], None).await;
        let Err(AllocError::Exhausted { bound, .. }) = refused else { panic!("granted") };
        assert_eq!(bound, Refusal::Queue);
        let behind = rig.reserve_later(&[("full", 1)]).await;
        drop(first);
        rig.handle.settle().await.unwrap();
        assert_eq!(rig.stats().await.waiting, 2, "six pages are free, the head needs nine");
        drop(second);
        let (head, behind) = (head.await.unwrap().unwrap(), behind.await.unwrap().unwrap());
        assert_eq!(rig.live(0).await, 10);
        drop((head, behind));
        rig.rests().await;
    });
}

/// Full pages and at most two states, with room for both.
async fn capped_states(bypass_ms: u32) -> Rig {
    let mut states = state(Grow::Down, 32);
    states.pages_max = Some(kvtide_core::unit::Pages(2));
    let config = config(100 * 32, 1, vec![full(Grow::Up, 32), states]);
    Rig::start(with(config, "queue.max_bypass_ms", bypass_ms)).await
}

#[test]
fn a_newcomer_that_takes_nothing_from_the_head_goes_ahead() {
    on_both(|| async {
        let rig = capped_states(3_600_000).await;
        let held = rig.reserve(&[("state", 2)], None).await.unwrap();
        let head = rig.reserve_later(&[("state", 1)]).await;
        let ahead = rig.reserve(&[("full", 5)], None).await.unwrap();
        assert_eq!(rig.stats().await.waiting, 1);
        drop(held);
        drop((head.await.unwrap().unwrap(), ahead));
        rig.rests().await;
    });
}

#[test]
fn nobody_goes_ahead_of_a_head_that_has_waited_long_enough() {
    on_both(|| async {
        let rig = capped_states(0).await;
        let held = rig.reserve(&[("state", 2)], None).await.unwrap();
        let head = rig.reserve_later(&[("state", 1)]).await;
        let refused = rig.reserve(&[("full", 5)], None).await;
        assert!(matches!(refused, Err(AllocError::Exhausted { bound: Refusal::Queue, .. })));
        drop(held);
        drop(head.await.unwrap().unwrap());
        rig.rests().await;
    });
}

#[test]
fn a_full_queue_is_busy() {
    on_both(|| async {
        let rig = Rig::start(with(ten_pages(), "queue.capacity", 1)).await;
        let held = rig.reserve(&[("full", 8)], None).await.unwrap();
        let head = rig.reserve_later(&[("full", 5)]).await;
        let busy = rig.reserve(&[("full", 5)], LONG).await.err();
        assert_eq!(busy, Some(AllocError::Busy { what: Bounded::Waiting, taken: 1, limit: 1 }));
        // Who does not want to wait is told what is short.
        let refused = rig.reserve(&[("full", 5)], None).await;
        assert!(matches!(refused, Err(AllocError::Exhausted { .. })));
        drop(held);
        drop(head.await.unwrap().unwrap());
        rig.rests().await;
    });
}

#[test]
fn an_abandoned_wait_holds_nobody_up() {
    on_both(|| async {
        let rig = Rig::start(with(ten_pages(), "queue.capacity", 1)).await;
        let held = rig.reserve(&[("full", 8)], None).await.unwrap();
        let mut sequence = rig.open(tokens(0, 9)).await.unwrap();
        for polls in 1..4 {
            let given_up = poll_then_drop(sequence.extend(None, LONG), polls).await;
            assert!(given_up.is_none());
            rig.handle.settle().await.unwrap();
            assert_eq!(rig.stats().await.waiting, 0);
            drop(rig.reserve(&[("full", 2)], None).await.unwrap());
        }
        // Nor is the sequence itself held up.
        sequence.extend(Some(Tokens(2)), None).await.unwrap();
        drop((held, sequence));
        rig.rests().await;
    });
}

/// A full pool with holes at its bottom, and states: one more state fits only if a full page moves.
async fn holes_in_the_way() -> (Rig, Vec<kvtide::handle::Reservation>) {
    let rig = Rig::start(config(1056, 1, vec![full(Grow::Up, 32), state(Grow::Down, 96)])).await;
    let mut held = Vec::new();
    for _ in 0..25 {
        held.push(rig.reserve(&[("full", 1)], None).await.unwrap());
    }
    held.push(rig.reserve(&[("state", 1)], None).await.unwrap());
    held.remove(4).release_all().await.unwrap();
    held.remove(1).release_all().await.unwrap();
    (rig, held)
}

#[test]
fn a_gate_refuses_moves_until_it_is_dropped() {
    on_both(|| async {
        let (rig, held) = holes_in_the_way().await;
        let full = rig.handle.chain().full().unwrap();
        let gate = rig.handle.close_moves("rdma", &[full]).await.unwrap();
        let refused = rig.reserve(&[("state", 1)], None).await.err();
        assert_eq!(refused, Some(AllocError::MovesGated { gates: vec!["rdma".to_owned()] }));
        let waiting = rig.reserve_later(&[("state", 1)]).await;
        drop(gate);
        let granted = waiting.await.unwrap().unwrap();
        assert_eq!((granted.receipt().moved_pages, granted.receipt().prepares), (1, 1));
        drop((held, granted));
        rig.rests().await;
    });
}

#[test]
fn two_gates_open_when_both_are_dropped() {
    on_both(|| async {
        let (rig, held) = holes_in_the_way().await;
        let full = rig.handle.chain().full().unwrap();
        let first = rig.handle.close_moves("rdma", &[full]).await.unwrap();
        let second = rig.handle.close_moves("host", &[full]).await.unwrap();
        first.open().await.unwrap();
        let refused = rig.reserve(&[("state", 1)], None).await.err();
        assert_eq!(refused, Some(AllocError::MovesGated { gates: vec!["host".to_owned()] }));
        second.open().await.unwrap();
        drop((held, rig.reserve(&[("state", 1)], None).await.unwrap()));
        rig.rests().await;
    });
}

#[test]
fn a_lease_keeps_pages_in_their_place() {
    on_both(|| async {
        let (rig, held) = holes_in_the_way().await;
        // It takes a hole, the lower one, and the only state that is left.
        drop(held);
        let rig2 = rig;
        let mut below = rig2.open(tokens(0, 3)).await.unwrap();
        below.extend(None, None).await.unwrap();
        let mut above = rig2.open(tokens(100, 3)).await.unwrap();
        above.extend(None, None).await.unwrap();
        let step = rig2.handle.begin_step(&[&above]).await.unwrap();
        let before = step.tables().to_vec();
        below.close().await.unwrap();
        let compacted = rig2.handle.compact(Bytes(u64::MAX)).await.unwrap();
        assert_eq!(compacted.moved_pages, 0, "everything that lives is leased");
        let again = rig2.handle.begin_step(&[&above]).await.unwrap();
        assert_eq!(again.tables(), before);
        drop((step, again));
        let compacted = rig2.handle.compact(Bytes(u64::MAX)).await.unwrap();
        assert!(compacted.moved_pages > 0);
        let after = rig2.handle.begin_step(&[&above]).await.unwrap();
        assert_ne!(after.tables(), before);
        drop((after, above));
        rig2.rests().await;
    });
}

#[test]
fn a_stopped_service_refuses_everything() {
    on_both(|| async {
        let rig = Rig::start(ten_pages()).await;
        let handle = rig.handle.clone();
        let mut sequence = rig.open(tokens(0, 3)).await.unwrap();
        let held = rig.reserve(&[("full", 8)], None).await.unwrap();
        let waiting = rig.reserve_later(&[("full", 5)]).await;
        rig.service.stop().await;
        let stopped = Some(AllocError::Service(ServiceError::Stopped));
        assert_eq!(waiting.await.unwrap().err(), stopped);
        assert_eq!(sequence.extend(None, None).await.err(), stopped);
        assert_eq!(handle.stats().await.err(), stopped);
        assert_eq!(handle.begin_step(&[&sequence]).await.err(), stopped);
        assert_eq!(sequence.finish(Publishing::Pages).await.err(), stopped);
        assert_eq!(held.release_all().await.err(), stopped);
    });
}

#[test]
fn a_dropped_service_refuses_everything() {
    on_both(|| async {
        let rig = Rig::start(ten_pages()).await;
        let handle = rig.handle.clone();
        let held = rig.reserve(&[("full", 8)], None).await.unwrap();
        let waiting = rig.reserve_later(&[("full", 5)]).await;
        drop(rig.service);
        let stopped = Some(AllocError::Service(ServiceError::Stopped));
        assert_eq!(waiting.await.unwrap().err(), stopped);
        assert_eq!(handle.verify().await.err(), stopped);
        drop(held);
    });
}

#[test]
fn a_pin_that_is_dropped_lets_its_prefix_go() {
    on_both(|| async {
        let rig = Rig::start(ten_pages()).await;
        let mut sequence = rig.open(tokens(0, 6)).await.unwrap();
        sequence.extend(None, None).await.unwrap();
        sequence.finish(Publishing::Pages).await.unwrap();
        let namespace = Namespace::default();
        let pin = rig.handle.pin(namespace.clone(), tokens(0, 6)).await.unwrap();
        assert_eq!(pin.matched().tokens, Tokens(6));
        let refused = rig.reserve(&[("full", 10)], None).await;
        assert!(matches!(refused, Err(AllocError::Exhausted { .. })));
        // One who waits is served once the pin is gone.
        let waiting = rig.reserve_later(&[("full", 10)]).await;
        drop(pin);
        drop(waiting.await.unwrap().unwrap());
        assert_eq!(rig.stats().await.pools[0].pinned.0, 0);
        // Given up at its first poll, it pins nothing.
        poll_then_drop(rig.handle.pin(namespace, tokens(0, 6)), 1).await;
        assert_eq!(rig.stats().await.pools[0].pinned.0, 0);
        rig.rests().await;
    });
}
