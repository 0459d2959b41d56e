//! Exactness through the real service: random operations on small arenas, every allocation judged by a search.
//!
//! An allocation is refused only where no placement exists: with everything evictable given back, or on an empty arena,
//! or with gates open. One that is granted evicts nothing locked, nothing where moving is enough, and no page too many;
//! one that is refused changes nothing. What an explanation foretells is what happens. `KVTIDE_SEEDS=n` runs `n` seeds.

#![allow(clippy::unwrap_used, reason = "a test may panic, and says where")]

mod exact;

use exact::case::{Case, Op, Rng, Taste};
use exact::run::{End, Run, Watch};

/// Seeds run unless `KVTIDE_SEEDS` says otherwise.
const SEEDS: u64 = 2500;

/// What a seed's run came to.
#[derive(Default)]
struct Sums {
    ops: u64,
    judged: u64,
    refused: u64,
    evicted: u64,
    gated: u64,
}

/// A case and its operations.
fn plan(seed: u64) -> (Case, Vec<Op>) {
    let mut rng = Rng(seed);
    let case = Case::random(&mut rng);
    let count = rng.range(60, 150);
    let taste = rng.pick(&[Taste::Held, Taste::Cached]);
    let ops = (0..count).map(|_| Op::random(&mut rng, taste)).collect();
    (case, ops)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// What a run came to: how many allocations of each operation were granted, the last operation that was refused under
/// gates, and what there is to see at the end.
struct Told {
    granted: Vec<u32>,
    gated: Option<usize>,
    end: End,
}

async fn run(case: &Case, ops: &[Op], sums: &mut Sums) -> Result<Told, String> {
    let mut run = Run::start(case, Watch::Judge).await;
    let (mut granted, mut gated) = (Vec::with_capacity(ops.len()), None);
    for (index, op) in ops.iter().enumerate() {
        let done = run.step(op, u32::MAX).await;
        granted.push(done.map_err(|wrong| format!("operation {index}, {op:?}: {wrong}"))?);
        let alone = matches!(op, Op::Reserve { .. } | Op::Extend { .. });
        if run.gated && alone {
            gated = Some(index);
        }
        if index % 16 == 15 {
            run.verify().await.map_err(|wrong| format!("after operation {index}: {wrong}"))?;
        }
    }
    let end = run.end().await?;
    sums.ops += ops.len() as u64;
    sums.judged += run.judged;
    sums.refused += run.refused;
    sums.evicted += run.evicted;
    sums.gated += u64::from(gated.is_some());
    run.tear_down().await?;
    Ok(Told { granted, gated, end })
}

/// Runs only what was granted, unwatched: refusals and questions have left no trace if it ends alike (I10).
async fn replay<'a>(case: &'a Case, ops: &[Op], granted: &[u32]) -> Result<Run<'a>, String> {
    let mut run = Run::start(case, Watch::Replay).await;
    for (op, &limit) in ops.iter().zip(granted) {
        run.step(op, limit).await?;
    }
    Ok(run)
}

fn check(case: &Case, ops: &[Op], sums: &mut Sums) -> Result<(), String> {
    block_on(async {
        let Told { granted, gated, end } = run(case, ops, sums).await?;
        let again = replay(case, ops, &granted).await?;
        let without = again.end().await?;
        again.tear_down().await?;
        if end != without {
            return Err(format!(
                "refusals or questions left a trace: {end:?}\nwithout: {without:?}"
            ));
        }
        let Some(index) = gated else { return Ok(()) };
        // What was refused under gates has no place there, even with everything evictable gone in earnest.
        let mut emptied = replay(case, ops, &granted[..index]).await?;
        emptied.step(&Op::Flush, 1).await?;
        match emptied.step(&ops[index], 1).await? {
            0 => emptied.tear_down().await,
            _ => Err(format!("operation {index}, {:?}: fits once all is flushed", ops[index])),
        }
    })
}

/// Leaves out operations as long as the case still fails.
fn shorten(case: &Case, mut ops: Vec<Op>) -> (Vec<Op>, String) {
    let fails = |ops: &[Op]| check(case, ops, &mut Sums::default()).err();
    let mut wrong = fails(&ops).unwrap_or_else(|| "it does not fail again".to_owned());
    let mut size = ops.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + size).min(ops.len()));
            match fails(&fewer) {
                Some(still) => (ops, wrong) = (fewer, still),
                None => at += size,
            }
        }
        size /= 2;
    }
    (ops, wrong)
}

#[test]
fn every_allocation_is_granted_exactly_where_a_search_finds_a_placement() {
    let seeds = std::env::var("KVTIDE_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    let first = std::env::var("KVTIDE_SEED").map_or(0, |seed| seed.parse().unwrap());
    let mut sums = Sums::default();
    for seed in first..first + seeds {
        let (case, ops) = plan(seed);
        if let Err(wrong) = check(&case, &ops, &mut sums) {
            let (short, still) = shorten(&case, ops);
            panic!("seed {seed}: {wrong}\n{case:#?}\nshortest: {short:#?}\n{still}");
        }
    }
    let Sums { ops, judged, refused, evicted, gated } = sums;
    println!(
        "{seeds} seeds, {ops} operations, {judged} allocations: {refused} refused, {evicted} evicting; {gated} seeds with refusals under gates"
    );
    // Else the cases are too tame to show anything.
    assert!(refused * 20 > judged && evicted * 20 > judged, "{refused} and {evicted} of {judged}");
    assert!(gated * 20 > seeds, "{gated} of {seeds}");
}
