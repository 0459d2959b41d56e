//! Reclaim plans on every small tree, against a search over all sets of pages that could go.
//!
//! Every tree of up to six pages of one token: every shape, every set of pages with a window page, with a state, and
//! under a lock, in two orders of use; every small demand on a few arenas. `KVTIDE_EXHAUSTIVE=full` runs them all (for
//! the chain of three pools at six pages, one in 97); otherwise a slice runs whose numbers are compared with a snapshot.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod config;
mod question;

use config::{Config, PAGES_MAX, Pools, Set, WINDOW, shapes};
use kvtide_core::chain::{Chain, Grow, PoolKind, PoolSpec};
use kvtide_core::demand::Demand;
use kvtide_core::tree::{Prefer, Quota};
use kvtide_core::unit::{Bytes, Pages, PoolId, Tokens};
use question::{Question, layout};

/// What a run saw.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Tally {
    configs: u64,
    questions: u64,
    exhausted: u64,
    free: u64,
    /// Plans that cost something.
    paid: u64,
    /// Among those, plans that cost as little as any set of pages could.
    cheapest: u64,
    /// Pages lost by those, and by the cheapest sets.
    lost: u64,
    least: u64,
    /// The worst plan: pages it loses, and pages that would do.
    worst: (u64, u64),
    /// Demands that fit with something evicted within a quota, and those of them that were refused.
    within_quota: u64,
    refused: u64,
}

fn chain(pools: Pools, total: u64) -> Chain {
    let spec = |name: &str, kind, grow, bytes| PoolSpec {
        name: name.to_owned(),
        kind,
        grow,
        page_bytes: Bytes(bytes),
        pages_max: None,
    };
    let mut specs = vec![spec("full", PoolKind::Full, Grow::Up, 2)];
    if pools.window {
        let window = PoolKind::Window { window: Tokens(WINDOW as u32) };
        specs.push(spec("window", window, Grow::Float, 3));
    }
    if pools.state {
        specs.push(spec("state", PoolKind::State, Grow::Down, 5));
    }
    Chain::new(Bytes(total), Tokens(1), None, specs).unwrap()
}

/// The chain's pools in the order of [`Freed`].
fn kinds(chain: &Chain) -> [Option<PoolId>; 3] {
    [chain.full(), chain.windows().first().copied(), chain.states().first().copied()]
}

fn run_config(config: &Config, pools: Pools, gates: Set, tally: &mut Tally) {
    tally.configs += 1;
    // Bytes do not matter to the tree.
    let (mut tree, locks) = config.tree(&chain(pools, 1_000), pools);
    tree.check().unwrap();
    let before = tree.fingerprint();
    let costs = config.costs(pools, gates != 0);
    let arena = |total: u64| {
        let chain = chain(pools, total);
        let layout = layout(&chain, config);
        Question { config, pools, tree: &tree, chain, layout, gates, costs: &costs }
    };
    // The least that holds what is cached, and a little more. Below 10, some pool has no page at all.
    let holds = |&total: &u64| arena(total).fits(&Demand::default(), config.all());
    let least = (10..).find(holds).unwrap();
    for total in [least, least + 3] {
        let question = arena(total);
        for full in 0..=3 {
            for window in 0..=if pools.window { full } else { 0 } {
                for state in 0..=if pools.state { 2 } else { 0 } {
                    let mut demand = Demand::default();
                    let counts = [full, window, state];
                    for (pool, count) in kinds(&question.chain).into_iter().zip(counts) {
                        if let Some(pool) = pool {
                            demand.0[pool] = Pages(count);
                        }
                    }
                    let prefer = if (full + window + state) % 2 == 0 {
                        Prefer::Full
                    } else {
                        Prefer::Window
                    };
                    question.ask(demand, prefer, tally);
                    // Every fifth, for time.
                    if gates == 0 && tally.configs.is_multiple_of(5) {
                        question.ask_within(demand, Quota::Demand, tally);
                        question.ask_within(demand, Quota::Bytes(Bytes(5)), tally);
                    }
                }
            }
        }
    }
    assert_eq!(tree.fingerprint(), before, "planning changed something: {config:?}");
    locks.into_iter().for_each(|lock| tree.unlock(lock));
    tree.check().unwrap();
}

/// Every `stride`-th configuration of `count` pages.
fn run(pools: Pools, gates: Set, count: usize, stride: usize) -> Tally {
    let mut tally = Tally::default();
    let sets = 1_usize << count;
    let (windows, states) =
        (if pools.window { sets } else { 1 }, if pools.state { sets } else { 1 });
    let mut number = 0_usize;
    for parents in shapes(count) {
        for choice in 0..windows * states * sets * 2 {
            number += 1;
            if !number.is_multiple_of(stride) {
                continue;
            }
            let (rest, reversed) = (choice / 2, choice % 2 == 1);
            let config = Config {
                parents: parents.clone(),
                locks: (rest % sets) as Set,
                windows: (rest / sets % windows) as Set,
                states: (rest / sets / windows) as Set,
                reversed,
            };
            run_config(&config, pools, gates, &mut tally);
        }
    }
    tally
}

/// Runs every count of pages, the six-page trees with `stride`, or all with the stride of a full run.
fn run_all(pools: Pools, strides: [usize; PAGES_MAX], full_stride: usize) -> Vec<Tally> {
    let full = std::env::var("KVTIDE_EXHAUSTIVE").is_ok_and(|value| value == "full");
    let mut tallies = Vec::new();
    for (count, stride) in (1..).zip(strides) {
        let full_stride = if count == PAGES_MAX { full_stride } else { 1 };
        let tally = run(pools, 0, count, if full { full_stride } else { stride });
        println!("{pools:?}, {count} pages: {tally:?}");
        tallies.push(tally);
    }
    tallies
}

fn sum(tallies: &[Tally]) -> Tally {
    let mut sum = Tally::default();
    for tally in tallies {
        sum.configs += tally.configs;
        sum.questions += tally.questions;
        sum.exhausted += tally.exhausted;
        sum.free += tally.free;
        sum.paid += tally.paid;
        sum.cheapest += tally.cheapest;
        sum.lost += tally.lost;
        sum.least += tally.least;
        sum.within_quota += tally.within_quota;
        sum.refused += tally.refused;
        if tally.worst.0 * sum.worst.1 > sum.worst.0 * tally.worst.1 || sum.worst.1 == 0 {
            sum.worst = tally.worst;
        }
    }
    sum
}

#[track_caller]
fn check(pools: Pools, strides: [usize; PAGES_MAX], full_stride: usize, want: &str) {
    let sum = sum(&run_all(pools, strides, full_stride));
    let got = format!(
        "{} questions, {} exhausted, {} free, {} paid of which {} cheapest, {} lost for {}, worst {}/{}, \
         {} within quota of which {} refused",
        sum.questions,
        sum.exhausted,
        sum.free,
        sum.paid,
        sum.cheapest,
        sum.lost,
        sum.least,
        sum.worst.0,
        sum.worst.1,
        sum.within_quota,
        sum.refused
    );
    println!("{pools:?}: {got}");
    if std::env::var_os("KVTIDE_EXHAUSTIVE").is_none() {
        assert_eq!(got, want);
    }
}

#[test]
fn every_shape_is_tried_once() {
    let counts: Vec<usize> = (1..=PAGES_MAX).map(|count| shapes(count).len()).collect();
    assert_eq!(counts, [1, 2, 4, 9, 20, 48]);
}

#[test]
fn plans_are_right_where_pages_are_full_only() {
    check(
        Pools { window: false, state: false },
        [1; PAGES_MAX],
        1,
        "62368 questions, 13890 exhausted, 23600 free, 24878 paid of which 24878 cheapest, 38684 lost for 38684, \
         worst 1/1, 9447 within quota of which 0 refused",
    );
}

#[test]
fn plans_are_right_with_a_window() {
    check(
        Pools { window: true, state: false },
        [1, 1, 1, 1, 7, 41],
        1,
        "412660 questions, 147715 exhausted, 193277 free, 71668 paid of which 70673 cheapest, 108026 lost for 106387, \
         worst 6/1, 48804 within quota of which 188 refused",
    );
}

#[test]
fn plans_are_right_with_a_state() {
    check(
        Pools { window: false, state: true },
        [1, 1, 1, 1, 7, 41],
        1,
        "495192 questions, 146275 exhausted, 195899 free, 153018 paid of which 145590 cheapest, 240940 lost for 232234, \
         worst 4/1, 76256 within quota of which 92 refused",
    );
}

#[test]
fn plans_are_right_with_a_window_and_a_state() {
    check(
        Pools { window: true, state: true },
        [1, 1, 1, 5, 151, 3_001],
        97,
        "2170680 questions, 953035 exhausted, 937204 free, 280441 paid of which 276189 cheapest, 430821 lost for 424915, \
         worst 5/1, 252991 within quota of which 1602 refused",
    );
}

#[test]
fn plans_are_right_where_gated_pools_cannot_move() {
    let pools = Pools { window: true, state: true };
    let mut tallies = Vec::new();
    for gates in 1..8 {
        for (count, stride) in [(1, 1), (2, 1), (3, 11), (4, 301), (5, 10_007), (6, 300_007)] {
            tallies.push(run(pools, gates, count, stride));
        }
    }
    let sum = sum(&tallies);
    println!("{sum:?}");
    assert!(sum.exhausted > 1_000 && sum.free > 1_000 && sum.paid > 1_000, "{sum:?}");
}
