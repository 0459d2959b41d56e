//! Sequences in full, through the service: truncation, parking, forks.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so")]

mod rig;

use kvtide::config::Config;
use kvtide::error::AllocError;
use kvtide::handle::Sequence;
use kvtide::message::Publishing;
use kvtide_core::chain::Grow;
use kvtide_core::unit::Tokens;
use rig::{LONG, Rig, config, full, on_both, run, state, swa, tokens, with};

/// Full pages below, a window of `window` tokens in the middle, states above; room enough.
fn roomy(page: u32, window: u32) -> Config {
    let bytes = 32 * u64::from(page);
    let pools = vec![full(Grow::Up, bytes), swa(window, Grow::Float, bytes), state(Grow::Down, 64)];
    config(64 * 1024, page, pools)
}

async fn lives(rig: &Rig) -> Vec<u32> {
    rig.stats().await.pools.iter().map(|pool| pool.counts.live.0).collect()
}

/// Live pages after a prompt of `prompt` tokens and `more` appended ones, nothing cached.
async fn fresh(page: u32, window: u32, prompt: u32, more: u32) -> Vec<u32> {
    let rig = Rig::start(roomy(page, window)).await;
    let mut sequence = rig.open(tokens(0, prompt)).await.unwrap();
    sequence.extend(None, None).await.unwrap();
    if more > 0 {
        sequence.append(tokens(500, more), None).await.unwrap();
    }
    lives(&rig).await
}

#[test]
fn a_truncated_sequence_holds_what_a_fresh_one_would() {
    run(async {
        for (page, window, prompt, most) in [(1, 3, 2, 8), (4, 6, 3, 14), (16, 20, 5, 30)] {
            let mut holding = Vec::new();
            for more in 0..=most {
                holding.push(fresh(page, window, prompt, more).await);
            }
            for appended in 1..=most {
                for kept in 0..=appended {
                    let rig = Rig::start(roomy(page, window)).await;
                    let mut sequence = rig.open(tokens(0, prompt)).await.unwrap();
                    sequence.extend(None, None).await.unwrap();
                    let done = sequence.draft(tokens(500, appended), None).await.unwrap();
                    assert_eq!((done.appended, done.stopped), (Tokens(appended), None));
                    sequence.truncate(Tokens(prompt + kept)).await.unwrap();
                    rig.handle.verify().await.unwrap();
                    let (live, wanted) = (lives(&rig).await, &holding[kept as usize]);
                    let case = format!("page {page}: {appended} appended, {kept} kept");
                    if kept < appended {
                        assert_eq!(live, *wanted, "{case}");
                    }
                    let left = appended.abs_diff(kept) + 1;
                    sequence.append(tokens(900, left), None).await.unwrap();
                    rig.handle.verify().await.unwrap();
                    drop(sequence);
                    rig.rests().await;
                }
            }
        }
    });
}

#[test]
fn truncation_inside_what_is_cached_copies_on_write() {
    on_both(|| async {
        for page in [1_u32, 4, 16] {
            for kept in 0..=3 * page {
                let rig = Rig::start(roomy(page, 2 * page)).await;
                let mut sequence = rig.open(tokens(0, 3 * page)).await.unwrap();
                sequence.extend(None, None).await.unwrap();
                sequence.checkpoint(Default::default(), None).await.unwrap();
                let step = rig.handle.begin_step(&[&sequence]).await.unwrap();
                sequence.truncate(Tokens(kept)).await.unwrap();
                rig.handle.verify().await.unwrap();
                let before = lives(&rig).await;
                sequence.extend(None, None).await.unwrap();
                rig.handle.verify().await.unwrap();
                let more = lives(&rig).await;
                // Whole pages are computed again, and the partly kept one is the sequence's own now.
                let computed = (3 * page - kept).div_ceil(page);
                assert_eq!(more[0] - before[0], computed, "page {page}, {kept} kept");
                sequence.append(tokens(700, 1), None).await.unwrap();
                sequence.finish(Default::default()).await.unwrap();
                step.end().await.unwrap();
                assert_eq!(rig.matched_full(tokens(0, 3 * page + 1)).await, 3 * page);
                rig.rests().await;
            }
        }
    });
}

#[test]
fn a_refused_resume_stays_parked_and_steps_keep_what_was_parked() {
    on_both(|| async {
        let rig =
            Rig::start(config(11 * 64, 1, vec![full(Grow::Up, 64), state(Grow::Down, 64)])).await;
        let mut sequence = rig.open(tokens(0, 3)).await.unwrap();
        sequence.extend(None, None).await.unwrap();
        let step = rig.handle.begin_step(&[&sequence]).await.unwrap();
        sequence.park(Publishing::PagesAndState).await.unwrap();
        rig.handle.flush().await.unwrap();
        rig.handle.verify().await.unwrap();
        step.end().await.unwrap();
        rig.handle.flush().await.unwrap();
        assert_eq!(lives(&rig).await, [0, 0]);
        let held = rig.reserve(&[("full", 10)], None).await.unwrap();
        let refused = sequence.resume(None).await.unwrap_err();
        assert!(matches!(refused, AllocError::Exhausted { .. }), "{refused}");
        assert!(sequence.extend(None, None).await.is_err());
        drop(held);
        sequence.resume(LONG).await.unwrap();
        assert_eq!(sequence.matched().tokens, Tokens(0));
        sequence.extend(None, None).await.unwrap();
        rig.handle.verify().await.unwrap();
        drop(sequence);
        rig.rests().await;
    });
}

#[test]
fn a_window_given_back_is_not_to_be_had_again() {
    on_both(|| async {
        let rig = Rig::start(roomy(1, 2)).await;
        let mut sequence = rig.open(tokens(0, 1)).await.unwrap();
        sequence.extend(None, None).await.unwrap();
        sequence.append(tokens(10, 5), None).await.unwrap();
        let before = lives(&rig).await;
        let refused = sequence.truncate(Tokens(3)).await.unwrap_err();
        assert!(
            matches!(&refused, AllocError::InvalidOperation(why)
            if why.contains("position 1")),
            "{refused}"
        );
        let refused = sequence.truncate(Tokens(7)).await.unwrap_err();
        assert!(
            matches!(&refused, AllocError::InvalidOperation(why)
            if why.contains('7') && why.contains('6')),
            "{refused}"
        );
        assert_eq!(lives(&rig).await, before);
        sequence.truncate(Tokens(6)).await.unwrap();
        drop(sequence);
        rig.rests().await;
    });
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(bound)) as u32
    }
}

/// Everything that a scheduler does with sequences, in an arena that is short of memory, checked after every step.
async fn muddle(config: Config, seed: u64) {
    let rig = Rig::start(config).await;
    let mut random = Random(seed);
    let (mut sequences, mut held, mut steps): (Vec<Sequence>, Vec<_>, Vec<_>) = Default::default();
    for _ in 0..60 {
        let open = sequences.len();
        let place = random.below(open.max(1) as u32) as usize;
        let (action, count) = (random.below(15), random.below(7));
        let publishing = [Publishing::PagesAndState, Publishing::Pages, Publishing::Nothing]
            [random.below(3) as usize];
        match (action, sequences.get_mut(place)) {
            (0 | 1, _) if open < 5 => {
                let opened = rig.open(tokens(100 * random.below(2), 1 + 2 * count)).await;
                sequences.extend(opened);
            }
            (2, Some(sequence)) => drop(sequence.extend(None, None).await),
            (3, Some(sequence)) => drop(sequence.extend(Some(Tokens(1)), None).await),
            (4, Some(sequence)) => drop(sequence.append(tokens(30, 1 + count), None).await),
            (5, Some(sequence)) => drop(sequence.draft(tokens(40, 1 + count), None).await),
            (6 | 7, Some(sequence)) => {
                let forked = sequence.fork(None).await;
                if let (Ok(forked), true) = (forked, open < 6) {
                    sequences.push(forked);
                }
            }
            (8, Some(sequence)) => drop(sequence.truncate(Tokens(2 * count)).await),
            (9, Some(sequence)) => drop(sequence.park(publishing).await),
            (10, Some(sequence)) => drop(sequence.resume(None).await),
            (11, Some(sequence)) => drop(sequence.checkpoint(publishing, None).await),
            (12, Some(_)) => {
                let sequence = sequences.swap_remove(place);
                if count > 2 {
                    sequence.finish(publishing).await.unwrap();
                } else {
                    sequence.close().await.unwrap();
                }
            }
            (13, Some(sequence)) if steps.len() < 2 => {
                steps.extend(rig.handle.begin_step(&[&*sequence]).await);
            }
            _ if count == 0 => drop(rig.handle.flush().await.unwrap()),
            _ if count == 1 => steps.clear(),
            _ if count < 4 => held.clear(),
            _ => held.extend(rig.reserve(&[("full", count)], None).await),
        }
        rig.handle.settle().await.unwrap();
        rig.handle.verify().await.unwrap_or_else(|e| panic!("seed {seed}, action {action}: {e}"));
    }
    drop((sequences, held, steps));
    rig.rests().await;
}

#[test]
fn any_muddle_of_operations_keeps_every_invariant() {
    let three = || {
        let pools = vec![full(Grow::Up, 64), swa(3, Grow::Float, 32), state(Grow::Down, 96)];
        config(1_600, 2, pools)
    };
    let one = || config(20 * 32, 1, vec![full(Grow::Up, 32)]);
    let window = || config(1_024, 4, vec![full(Grow::Up, 64), swa(5, Grow::Down, 32)]);
    run(async {
        for seed in 0..60 {
            muddle(three(), seed).await;
            muddle(with(three(), "compaction", "eager"), seed).await;
            muddle(one(), seed).await;
            muddle(window(), seed).await;
        }
    });
}
