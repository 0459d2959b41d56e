//! What the service keeps through copies that fail or hang, windows that move on, and prefixes that come again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so")]

mod rig;

use kvtide::config::Config;
use kvtide::device::Fault;
use kvtide::error::AllocError;
use kvtide::handle::{Reservation, Sequence};
use kvtide::message::Publishing;
use kvtide::report::Stats;
use kvtide_core::chain::Grow;
use kvtide_core::unit::{Pages, Tokens};
use rig::{LONG, Rig, config, full, on_both, run, state, swa, times, tokens, with};

const FAIL_ONE: fn() -> Fault = || Fault::FailCopies { times: times(1), after_batches: 0 };

/// Thirty full pages of a token below, states of three pages each above.
fn thirty() -> Config {
    config(1056, 1, vec![full(Grow::Up, 32), state(Grow::Down, 96)])
}

/// A prefix of ten tokens, cached without a state, below fifteen held pages, and a held state: one more state takes a
/// victim's page, and the uppermost held page has to move there.
async fn one_page_in_the_way(config: Config) -> (Rig, Vec<Reservation>) {
    let rig = Rig::start(config).await;
    let mut sequence = rig.open(tokens(0, 10)).await.unwrap();
    sequence.extend(None, None).await.unwrap();
    sequence.finish(Publishing::Pages).await.unwrap();
    let mut held = vec![rig.reserve(&[("state", 1)], None).await.unwrap()];
    for _ in 0..15 {
        held.push(rig.reserve(&[("full", 1)], None).await.unwrap());
    }
    rig.handle.settle().await.unwrap();
    (rig, held)
}

#[test]
fn a_copy_that_fails_leaves_cache_and_content_as_they_were() {
    for compaction in ["lazy", "eager"] {
        on_both(|| async {
            let (rig, held) = one_page_in_the_way(with(thirty(), "compaction", compaction)).await;
            let before = rig.stats().await;
            rig.fault(FAIL_ONE()).await;
            let failed = rig.reserve(&[("state", 1)], None).await.err();
            assert!(matches!(failed, Some(AllocError::CopyFailed(_))), "{failed:?}");
            rig.handle.settle().await.unwrap();
            let after = rig.stats().await;
            assert_eq!(after.pools, before.pools);
            assert_eq!(after.totals.evicted, before.totals.evicted);
            assert_eq!(rig.matched_full(tokens(0, 11)).await, 10);
            assert_eq!(rig.handle.verify().await.unwrap().compared, 26);
            let granted = rig.reserve(&[("state", 1)], None).await.unwrap();
            let receipt = granted.receipt();
            assert_eq!((receipt.moved_pages, receipt.prepares), (1, 1));
            assert_eq!(receipt.evicted.0[..2], [Pages(1), Pages(0)]);
            assert_eq!(rig.matched_full(tokens(0, 11)).await, 9);
            rig.handle.verify().await.unwrap();
            drop((held, granted));
            rig.rests().await;
        });
    }
}

#[test]
fn a_state_copy_that_fails_opens_nothing() {
    on_both(|| async {
        let rig = Rig::start(thirty()).await;
        rig.insert(tokens(0, 4)).await;
        rig.fault(FAIL_ONE()).await;
        let failed = rig.open(tokens(0, 6)).await.err();
        assert!(matches!(failed, Some(AllocError::CopyFailed(_))), "{failed:?}");
        let stats = rig.stats().await;
        assert_eq!(
            (stats.sequences, stats.pools[0].locked, stats.pools[1].counts.live),
            (0, Pages(0), Pages(1))
        );
        let sequence = rig.open(tokens(0, 6)).await.unwrap();
        assert_eq!(sequence.matched().tokens, Tokens(4));
        drop(sequence);
        rig.rests().await;
    });
}

#[test]
fn a_checkpoint_whose_copy_fails_publishes_nothing_and_can_be_made_again() {
    on_both(|| async {
        let rig = Rig::start(thirty()).await;
        let mut sequence = rig.open(tokens(0, 4)).await.unwrap();
        sequence.extend(None, None).await.unwrap();
        rig.fault(FAIL_ONE()).await;
        let failed = sequence.checkpoint(Publishing::PagesAndState, None).await.err();
        assert!(matches!(failed, Some(AllocError::CopyFailed(_))), "{failed:?}");
        assert_eq!(rig.matched(tokens(0, 5)).await, 0);
        sequence.checkpoint(Publishing::PagesAndState, None).await.unwrap();
        assert_eq!(rig.matched(tokens(0, 5)).await, 4);
        drop(sequence);
        rig.rests().await;
    });
}

#[test]
fn others_are_served_while_copies_hang() {
    on_both(|| async {
        let (rig, held) = one_page_in_the_way(thirty()).await;
        rig.fault(Fault::DelayCopies { times: times(1) }).await;
        let moving = rig.reserve_in_background(&[("state", 1)], None);
        rig.until(|stats| stats.totals.prepares == 1).await;
        assert_eq!(rig.matched_full(tokens(0, 11)).await, 9, "a victim serves nobody");
        rig.handle.explain(rig.demand(&[("full", 1)])).await.unwrap();
        rig.handle.verify().await.unwrap();
        // Pages given back meanwhile are really back.
        let mut held = held;
        held.remove(3).release_all().await.unwrap();
        assert_eq!(rig.stats().await.totals.prepares, 1);
        assert!(!moving.is_finished());
        rig.fault(Fault::ReleaseCopies).await;
        let granted = moving.await.unwrap().unwrap();
        assert_eq!(granted.receipt().prepares, 1);
        drop((held, granted));
        rig.rests().await;
    });
}

#[test]
fn a_copy_that_hangs_too_long_counts_as_failed() {
    on_both(|| async {
        let mut config = thirty();
        config.sections.device.copy_timeout = std::time::Duration::from_millis(1);
        let (rig, held) = one_page_in_the_way(config).await;
        let before = rig.stats().await;
        rig.fault(Fault::DelayCopies { times: times(1) }).await;
        let failed = rig.reserve(&[("state", 1)], None).await.err();
        assert!(matches!(failed, Some(AllocError::CopyFailed(_))), "{failed:?}");
        rig.handle.settle().await.unwrap();
        assert_eq!(rig.stats().await.pools, before.pools);
        assert_eq!(rig.matched_full(tokens(0, 11)).await, 10);
        drop((held, rig.reserve(&[("state", 1)], None).await.unwrap()));
        rig.rests().await;
    });
}

#[test]
fn a_wait_that_is_woken_while_pages_move_keeps_its_place() {
    on_both(|| async {
        let (rig, mut held) = one_page_in_the_way(thirty()).await;
        // 27 full pages go beside one state; fifteen are held.
        let first = rig.reserve_later(&[("full", 15)]).await;
        let second = rig.reserve_later(&[("full", 15)]).await;
        // A hole, to be closed by a pass that hangs.
        held.remove(1).release_all().await.unwrap();
        rig.fault(Fault::DelayCopies { times: times(1) }).await;
        let handle = rig.handle.clone();
        let budget = kvtide_core::unit::Bytes(u64::MAX);
        let pass = tokio::spawn(async move { handle.compact(budget).await });
        rig.until(|stats| stats.totals.prepares == 1).await;
        held.remove(1).release_all().await.unwrap();
        rig.fault(Fault::ReleaseCopies).await;
        assert_eq!(pass.await.unwrap().unwrap().moved_pages, 1);
        rig.handle.settle().await.unwrap();
        assert_eq!(rig.stats().await.waiting, 2);
        // Now enough for one.
        held.remove(1).release_all().await.unwrap();
        let first = first.await.unwrap().unwrap();
        assert_eq!(rig.stats().await.waiting, 1);
        drop(first);
        drop((held, second.await.unwrap().unwrap()));
        rig.rests().await;
    });
}

#[test]
fn eager_compaction_leaves_no_holes() {
    on_both(|| async {
        let rig = Rig::start(with(thirty(), "compaction", "eager")).await;
        let mut held = Vec::new();
        for _ in 0..20 {
            held.push(rig.reserve(&[("full", 1)], None).await.unwrap());
        }
        for _ in 0..2 {
            held.push(rig.reserve(&[("state", 1)], None).await.unwrap());
        }
        for place in [20, 13, 4, 4, 0, 9] {
            held.remove(place).release_all().await.unwrap();
            rig.handle.settle().await.unwrap();
            let stats = rig.stats().await;
            assert!(stats.pools.iter().all(|pool| pool.counts.holes == Pages(0)), "{stats:?}");
            rig.handle.verify().await.unwrap();
        }
        assert!(rig.stats().await.totals.moved_pages >= 4);
        drop(held);
        rig.rests().await;
    });
}

#[test]
fn eager_compaction_that_fails_is_tried_again_at_the_next_free_only() {
    on_both(|| async {
        let rig = Rig::start(with(thirty(), "compaction", "eager")).await;
        let mut held = Vec::new();
        for _ in 0..9 {
            held.push(rig.reserve(&[("full", 1)], None).await.unwrap());
        }
        rig.fault(Fault::FailCopies { times: times(2), after_batches: 0 }).await;
        for (holes, prepares) in [(1, 1), (2, 2), (0, 3)] {
            held.remove(2).release_all().await.unwrap();
            rig.handle.settle().await.unwrap();
            let stats = rig.stats().await;
            assert_eq!((stats.pools[0].counts.holes.0, stats.totals.prepares), (holes, prepares));
            rig.handle.verify().await.unwrap();
        }
        drop(held);
        rig.rests().await;
    });
}

/// Pages of two tokens, a window of two pages.
fn windowed() -> Config {
    config(2048, 2, vec![full(Grow::Up, 32), swa(4, Grow::Down, 32)])
}

#[test]
fn decode_gives_window_pages_back_as_the_window_moves_on() {
    on_both(|| async {
        let rig = Rig::start(windowed()).await;
        let mut sequence = rig.open(tokens(0, 8)).await.unwrap();
        sequence.extend(None, None).await.unwrap();
        assert_eq!((rig.live(0).await, rig.live(1).await), (4, 4));
        for token in 8..30 {
            sequence.append(vec![token], None).await.unwrap();
            let computed = token + 1;
            let pages = computed.div_ceil(2);
            // At a boundary the two pages of the window are left; the page under way comes on top.
            let windows = if computed == 9 { 5 } else { 2 + computed % 2 };
            assert_eq!((rig.live(0).await, rig.live(1).await), (pages, windows), "{computed}");
            rig.handle.verify().await.unwrap();
        }
        let step = rig.handle.begin_step(&[&sequence]).await.unwrap();
        let (_, table) = &step.tables()[0];
        assert_eq!(
            (table.full.len(), table.windows[0].0, table.windows[0].1.len()),
            (15, Pages(13), 2)
        );
        drop(step);
        sequence.finish(Publishing::PagesAndState).await.unwrap();
        assert_eq!(rig.matched(tokens(0, 31)).await, 30);
        // Only the trailing window is there: no boundary before the end can be served.
        assert_eq!(rig.matched(tokens(0, 29)).await, 0);
        rig.rests().await;
    });
}

#[test]
fn decode_lets_go_of_the_prefix_windows_that_it_left_behind() {
    on_both(|| async {
        for chunk in [2, 12] {
            let rig = Rig::start(windowed()).await;
            rig.insert(tokens(0, 4)).await;
            let mut sequence = rig.open(tokens(0, 16)).await.unwrap();
            assert_eq!(sequence.matched().tokens, Tokens(4));
            let locked = async || rig.stats().await.pools[1].locked.0;
            assert_eq!(locked().await, 2);
            for _ in (4..16).step_by(chunk as usize) {
                sequence.extend(Some(Tokens(chunk)), None).await.unwrap();
            }
            sequence.append(tokens(16, 2), None).await.unwrap();
            assert_eq!(locked().await, 0, "computed in chunks of {chunk}");
            assert_eq!(rig.stats().await.pools[0].locked.0, 2);
            drop(sequence);
            rig.rests().await;
        }
    });
}

#[test]
fn a_prefix_computed_again_heals_its_tombstones() {
    on_both(|| async {
        let mut pools = vec![full(Grow::Up, 32), swa(4, Grow::Down, 32)];
        pools[1].pages_max = Some(Pages(4));
        let rig = Rig::start(config(2048, 2, pools)).await;
        rig.insert(tokens(0, 8)).await;
        assert_eq!(rig.matched(tokens(0, 9)).await, 8);
        // All window pages have to go, and no full page.
        let held = rig.reserve(&[("full", 4), ("swa", 4)], None).await.unwrap();
        assert_eq!(held.receipt().evicted.0[..2], [Pages(0), Pages(4)]);
        let found = rig.handle.cached(Default::default(), tokens(0, 9)).await.unwrap();
        assert_eq!((found.tokens, found.full_tokens), (Tokens(0), Tokens(8)));
        drop(held);
        let mut sequence = rig.open(tokens(0, 8)).await.unwrap();
        sequence.extend(None, None).await.unwrap();
        assert_eq!((rig.live(0).await, rig.live(1).await), (8, 4));
        sequence.finish(Publishing::PagesAndState).await.unwrap();
        assert_eq!((rig.live(0).await, rig.live(1).await), (4, 4));
        assert_eq!(rig.matched(tokens(0, 9)).await, 8);
        let verified = rig.handle.verify().await.unwrap();
        assert_eq!((verified.pages, verified.compared), (8, 8));
        rig.rests().await;
    });
}

/// A few hundred operations, decided by a seed alone; what each of them came to, and the state at the end.
async fn adventure(config: Config, seed: u64) -> (Vec<String>, Stats) {
    let rig = Rig::start(config).await;
    let mut random = seed;
    let mut below = |bound: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    let mut log = Vec::new();
    let mut sequences: Vec<Sequence> = Vec::new();
    let mut held: Vec<Reservation> = Vec::new();
    for _ in 0..300 {
        let said = match below(8) {
            0 | 1 => {
                let prompt = tokens(1_000 * below(4) as u32, 1 + below(24) as u32);
                let opened = rig.open(prompt).await;
                let said = opened
                    .as_ref()
                    .map(|sequence| (sequence.matched(), sequence.id()))
                    .map_err(Clone::clone);
                sequences.extend(opened);
                format!("{said:?}")
            }
            2 | 3 if !sequences.is_empty() => {
                let place = below(sequences.len() as u64) as usize;
                let mut receipt = sequences[place].extend(None, None).await;
                if let Ok(receipt) = &mut receipt {
                    receipt.waited = Default::default();
                }
                format!("{receipt:?}")
            }
            4 if !sequences.is_empty() => {
                let place = below(sequences.len() as u64) as usize;
                let more = tokens(500, 1 + below(6) as u32);
                format!("{:?}", sequences[place].append(more, None).await)
            }
            5 if !sequences.is_empty() => {
                let sequence = sequences.remove(below(sequences.len() as u64) as usize);
                format!("{:?}", sequence.finish(Publishing::PagesAndState).await)
            }
            6 => {
                let pages = below(5) as u32;
                let got =
                    rig.reserve(&[("full", pages + 1), ("swa", pages), ("state", 1)], None).await;
                let said = got.as_ref().map(Reservation::receipt).map_err(Clone::clone);
                held.extend(got);
                format!("{said:?}")
            }
            _ if !held.is_empty() => {
                let place = below(held.len() as u64) as usize;
                format!("{:?}", held.remove(place).release_all().await)
            }
            _ => "nothing".to_owned(),
        };
        log.push(said);
        rig.handle.settle().await.unwrap();
        rig.handle.verify().await.unwrap();
    }
    let mut stats = rig.stats().await;
    (stats.totals.copy_nanos, stats.totals.wait_nanos) = (0, 0);
    drop((sequences, held));
    rig.rests().await;
    (log, stats)
}

#[test]
fn the_same_operations_come_to_the_same_on_every_runtime() {
    for compaction in ["lazy", "eager"] {
        for (seed, policy) in [(1, "full"), (2, "window"), (3, "full")] {
            let pools = vec![full(Grow::Up, 64), state(Grow::Float, 96), swa(4, Grow::Down, 32)];
            let config =
                with(with(config(3_200, 2, pools), "compaction", compaction), "prefer", policy);
            let first = run(adventure(config.clone(), seed));
            let mut two = tokio::runtime::Builder::new_multi_thread();
            let two = two.worker_threads(2).enable_all().build().unwrap();
            let second = two.block_on(adventure(config, seed));
            assert_eq!(first, second);
            let totals = first.1.totals;
            assert!(
                totals.plans > 0 && totals.moved_pages > 0 && totals.hit_tokens > 0,
                "{totals:?}"
            );
        }
    }
}

#[test]
fn a_wait_is_served_in_the_middle_of_an_append() {
    on_both(|| async {
        let rig = Rig::start(rig::ten_pages()).await;
        let held = rig.reserve(&[("full", 6)], None).await.unwrap();
        let mut sequence = rig.open(tokens(0, 2)).await.unwrap();
        sequence.extend(None, None).await.unwrap();
        let appending = tokio::spawn(async move {
            let appended = sequence.append(tokens(2, 5), LONG).await.unwrap();
            (sequence, appended)
        });
        rig.until(|stats| stats.waiting == 1).await;
        assert_eq!(rig.live(0).await, 10);
        drop(held);
        let (sequence, appended) = appending.await.unwrap();
        assert_eq!((appended.appended, appended.stopped), (Tokens(5), None));
        drop(sequence);
        rig.rests().await;
    });
}
