//! The future of any call may be dropped at any point: nothing leaks, nothing stays locked.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so")]

mod rig;

use std::sync::Arc;

use kvtide::config::Config;
use kvtide::device::Fault;
use kvtide::handle::{OpenOptions, Reservation, Sequence};
use kvtide::message::Publishing;
use kvtide_core::chain::Grow;
use kvtide_core::unit::Tokens;
use rig::{LONG, Rig, SHORT, config, full, on_both, poll_then_drop, state, times, tokens, with};

/// A call to be given up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Call {
    Open,
    Extend,
    Append,
    Checkpoint,
    Finish,
    Reserve,
    BeginStep,
    CloseMoves,
    Compact,
    Truncate,
    Park,
    Resume,
    Fork,
    Overwrite,
}

const CALLS: [Call; 14] = [
    Call::Open,
    Call::Extend,
    Call::Append,
    Call::Checkpoint,
    Call::Finish,
    Call::Reserve,
    Call::BeginStep,
    Call::CloseMoves,
    Call::Compact,
    Call::Truncate,
    Call::Park,
    Call::Resume,
    Call::Fork,
    Call::Overwrite,
];

/// What becomes of copies while the call is under way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Copies {
    Prompt,
    /// They hang until the call was given up.
    Parked,
    Fail,
}

/// Full pages of two tokens below, states of three pages each above: 21 pages, or seven states, or any mix.
fn cramped() -> Config {
    config(768, 2, vec![full(Grow::Up, 32), state(Grow::Down, 96)])
}

struct Cramped {
    rig: Rig,
    /// Its prompt is computed to a page boundary that has no state yet.
    sequence: Sequence,
    held: Vec<Reservation>,
}

impl Cramped {
    /// Two full pages are free, and a hole among the states: for more full pages than that, a state has to move.
    async fn start(config: Config) -> Self {
        let rig = Rig::start(config).await;
        let mut held = Vec::new();
        for _ in 0..2 {
            held.push(rig.reserve(&[("state", 1)], None).await.unwrap());
        }
        rig.insert(tokens(0, 4)).await;
        let mut sequence = rig.open(tokens(0, 8)).await.unwrap();
        sequence.extend(None, None).await.unwrap();
        held.push(rig.reserve(&[("full", 3)], None).await.unwrap());
        held.remove(0).release_all().await.unwrap();
        rig.handle.settle().await.unwrap();
        Cramped { rig, sequence, held }
    }

    /// Polls a call so often, then drops it; whether it was done by then.
    async fn give_up(&mut self, call: Call, polls: u32) -> bool {
        let (handle, sequence) = (self.rig.handle.clone(), &mut self.sequence);
        match call {
            Call::Open => {
                let options = OpenOptions { wait: LONG, ..OpenOptions::default() };
                poll_then_drop(handle.open(tokens(0, 6), options), polls).await.is_some()
            }
            Call::Extend => {
                let mut other = self.rig.open(tokens(0, 12)).await.unwrap();
                poll_then_drop(other.extend(None, LONG), polls).await.is_some()
            }
            Call::Append => {
                poll_then_drop(sequence.append(tokens(90, 9), LONG), polls).await.is_some()
            }
            Call::Truncate => poll_then_drop(sequence.truncate(Tokens(3)), polls).await.is_some(),
            Call::Park => {
                poll_then_drop(sequence.park(Publishing::PagesAndState), polls).await.is_some()
            }
            Call::Resume => {
                sequence.park(Publishing::Nothing).await.unwrap();
                poll_then_drop(sequence.resume(LONG), polls).await.is_some()
            }
            Call::Fork => poll_then_drop(sequence.fork(LONG), polls).await.is_some(),
            Call::Overwrite => {
                // Its page under way is the cache's: it has to be copied.
                sequence.checkpoint(Publishing::Pages, None).await.unwrap();
                sequence.truncate(Tokens(5)).await.unwrap();
                poll_then_drop(sequence.extend(None, LONG), polls).await.is_some()
            }
            Call::Checkpoint => {
                let checkpoint = sequence.checkpoint(Publishing::PagesAndState, LONG);
                poll_then_drop(checkpoint, polls).await.is_some()
            }
            Call::Finish => {
                let other = self.rig.open(tokens(0, 9)).await.unwrap();
                poll_then_drop(other.finish(Publishing::PagesAndState), polls).await.is_some()
            }
            Call::Reserve => {
                poll_then_drop(self.rig.reserve(&[("full", 4)], LONG), polls).await.is_some()
            }
            Call::BeginStep => {
                poll_then_drop(handle.begin_step(&[sequence]), polls).await.is_some()
            }
            Call::CloseMoves => {
                let pools: Vec<_> = handle.chain().pool_ids().collect();
                poll_then_drop(handle.close_moves("transfer", &pools), polls).await.is_some()
            }
            Call::Compact => {
                let budget = kvtide_core::unit::Bytes(u64::MAX);
                poll_then_drop(handle.compact(budget), polls).await.is_some()
            }
        }
    }
}

/// Gives a call up after each number of polls, and lets it end at last where it can.
async fn give_up_everywhere(config: Config, call: Call, copies: Copies) {
    if copies != Copies::Prompt && matches!(call, Call::Extend | Call::Finish) {
        // These open a sequence first, which a copy that hangs or fails would keep them from.
        return;
    }
    let last = (copies != Copies::Parked).then_some(u32::MAX);
    for polls in (0..=8).chain(last) {
        let mut cramped = Cramped::start(config.clone()).await;
        match copies {
            Copies::Prompt => {}
            Copies::Parked => cramped.rig.fault(Fault::DelayCopies { times: times(99) }).await,
            Copies::Fail => {
                let fault = Fault::FailCopies { times: times(1), after_batches: 0 };
                cramped.rig.fault(fault).await;
            }
        }
        // What waits for memory waits until it is given up.
        let waits = matches!(call, Call::Extend | Call::Append);
        let done = cramped.give_up(call, if waits { polls.min(50) } else { polls }).await;
        assert!(done || waits || polls < u32::MAX, "{call:?} does not end");
        assert!(!done || polls > 0, "{call:?} ends before it begins");
        if copies == Copies::Parked {
            cramped.rig.handle.verify().await.unwrap_or_else(|e| panic!("{call:?} {polls}: {e}"));
            cramped.rig.fault(Fault::ReleaseCopies).await;
        }
        let Cramped { rig, sequence, held } = cramped;
        rig.handle.settle().await.unwrap();
        rig.handle.verify().await.unwrap_or_else(|e| panic!("{call:?} {copies:?} {polls}: {e}"));
        drop((sequence, held));
        rig.rests().await;
    }
}

#[test]
fn the_arena_is_so_cramped_that_pages_have_to_move() {
    on_both(|| async {
        let Cramped { rig, sequence, held } = Cramped::start(cramped()).await;
        let granted = rig.reserve(&[("full", 4)], None).await.unwrap();
        assert_eq!(
            (granted.receipt().moved_pages, granted.receipt().evicted),
            (1, Default::default())
        );
        drop((granted, sequence, held));
        rig.rests().await;
    });
}

#[test]
fn a_call_given_up_after_any_number_of_polls_leaks_nothing() {
    for call in CALLS {
        on_both(|| give_up_everywhere(cramped(), call, Copies::Prompt));
    }
}

#[test]
fn a_call_given_up_while_mailboxes_are_full_leaks_nothing() {
    for call in CALLS {
        let mut config = cramped();
        config.sections.service.mailbox = 1;
        config.sections.device.queue_depth = 1;
        on_both(|| give_up_everywhere(config.clone(), call, Copies::Prompt));
    }
}

#[test]
fn a_call_given_up_while_its_copies_hang_leaks_nothing() {
    for call in CALLS {
        on_both(|| give_up_everywhere(cramped(), call, Copies::Parked));
    }
}

#[test]
fn a_call_given_up_while_its_copies_fail_leaks_nothing() {
    for call in CALLS {
        on_both(|| give_up_everywhere(cramped(), call, Copies::Fail));
    }
}

#[test]
fn a_call_given_up_under_eager_compaction_leaks_nothing() {
    for call in CALLS {
        for copies in [Copies::Prompt, Copies::Parked, Copies::Fail] {
            let config = with(cramped(), "compaction", "eager");
            on_both(|| give_up_everywhere(config.clone(), call, copies));
        }
    }
}

#[test]
fn a_hold_given_up_while_another_call_moves_pages_leaks_nothing() {
    for call in [Call::BeginStep, Call::CloseMoves, Call::Compact, Call::Append] {
        on_both(|| async {
            for polls in 0..4 {
                let mut cramped = Cramped::start(cramped()).await;
                cramped.rig.fault(Fault::DelayCopies { times: times(1) }).await;
                let before = cramped.rig.stats().await.totals.prepares;
                let moving = cramped.rig.reserve_in_background(&[("full", 4)], None);
                cramped.rig.until(|stats| stats.totals.prepares > before).await;
                let done = cramped.give_up(call, polls).await;
                assert!(!done, "{call:?} went ahead of the copies");
                cramped.rig.handle.verify().await.unwrap();
                cramped.rig.fault(Fault::ReleaseCopies).await;
                let granted = moving.await.unwrap().unwrap();
                let Cramped { rig, sequence, held } = cramped;
                rig.handle.settle().await.unwrap();
                rig.handle.verify().await.unwrap();
                drop((sequence, held, granted));
                rig.rests().await;
            }
        });
    }
}

/// What one of many tasks does: some hundred operations, each given up after a few polls or not.
async fn come_and_go(rig: Arc<Rig>, seed: u32) {
    let mut random = u64::from(seed);
    let mut below = move |bound: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((random >> 33) % bound) as u32
    };
    let mut sequences: Vec<Sequence> = Vec::new();
    let mut held = Vec::new();
    for _ in 0..400 {
        // Many calls are given up early, some after their time.
        let polls = [below(5), below(20), 200, 1_000][below(4) as usize];
        let prompt = tokens(1_000 * below(3), 1 + below(14));
        let place = below(sequences.len().max(1) as u64) as usize;
        match below(9) {
            0 | 1 if sequences.len() < 3 => {
                let options = OpenOptions { wait: SHORT, ..OpenOptions::default() };
                let opened = poll_then_drop(rig.handle.open(prompt, options), polls).await;
                sequences.extend(opened.into_iter().flatten());
            }
            2 if !sequences.is_empty() => {
                poll_then_drop(sequences[place].extend(None, SHORT), polls).await;
            }
            3 if !sequences.is_empty() => {
                let more = tokens(50, 1 + below(5));
                poll_then_drop(sequences[place].append(more, SHORT), polls).await;
            }
            4 if !sequences.is_empty() => {
                let checkpoint = sequences[place].checkpoint(Publishing::PagesAndState, SHORT);
                poll_then_drop(checkpoint, polls).await;
            }
            5 if !sequences.is_empty() => {
                let finish = sequences.remove(place).finish(Publishing::PagesAndState);
                poll_then_drop(finish, polls).await;
            }
            6 if held.len() < 3 => {
                let demand = [("full", 1 + below(3)), ("state", below(2))];
                let reserved = poll_then_drop(rig.reserve(&demand, SHORT), polls).await;
                held.extend(reserved.into_iter().flatten());
            }
            7 => {
                let all: Vec<&Sequence> = sequences.iter().collect();
                let lease = poll_then_drop(rig.handle.begin_step(&all), polls).await;
                let pools: Vec<_> = rig.handle.chain().pool_ids().collect();
                let gate = poll_then_drop(rig.handle.close_moves("transfer", &pools), polls).await;
                drop((lease, gate));
            }
            _ => {
                held.pop();
                let fault = Fault::FailCopies { times: times(1), after_batches: below(2) };
                if below(24) == 0 {
                    rig.fault(fault).await;
                }
            }
        }
    }
}

#[test]
fn many_tasks_that_come_and_go_leave_nothing_behind() {
    for (compaction, seed) in [("lazy", 0), ("eager", 100), ("lazy", 200), ("eager", 300)] {
        on_both(|| async {
            let config = with(with(cramped(), "compaction", compaction), "queue.max_bypass_ms", 1);
            let rig = Arc::new(Rig::start(config).await);
            let tasks: Vec<_> = (0..6)
                .map(|task| tokio::spawn(come_and_go(Arc::clone(&rig), seed + task)))
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            let totals = rig.stats().await.totals;
            assert!(totals.opened > 0 && totals.granted > totals.opened, "{totals:?}");
            Arc::into_inner(rig).unwrap().rests().await;
        });
    }
}
