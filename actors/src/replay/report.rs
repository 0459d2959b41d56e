//! What a replay says at its end.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::tally::{Latency, Tally};
use crate::config::Config;
use crate::report::{Stats, Verified};

/// The report of one replay. Counts depend on the inputs only; times and rates on the machine too.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was replayed.
    pub workload: String,
    /// Against which model.
    pub model: String,
    /// By which engine.
    pub engine: String,
    /// Over how many bytes.
    pub arena_bytes: u64,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// What the inputs decide.
    pub counts: Counts,
    /// Latency of `open` and `extend`.
    pub allocation_latency: Latency,
    /// Latency of one decode step of all running requests.
    pub step_latency: Latency,
    /// Seconds that it took.
    pub wall_seconds: f64,
    /// Tokens in and out per second.
    pub tokens_per_second: f64,
    /// Allocations and decode steps per second.
    pub operations_per_second: f64,
}

/// Counts of one replay: the same for the same inputs, whatever the machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counts {
    /// Requests taken in: the sum of the next three.
    pub requests: u64,
    /// Served to their end.
    pub finished: u64,
    /// Refused: they can never fit.
    pub rejected: u64,
    /// Ended early: alone, and still no room.
    pub cut_short: u64,
    /// Prompt tokens.
    pub tokens_in: u64,
    /// Decoded tokens.
    pub tokens_out: u64,
    /// Prompt tokens that were cached.
    pub hit_tokens: u64,
    /// Hit tokens over prompt tokens.
    pub hit_rate: f64,
    /// Tokens (slots) evicted, per pool.
    pub evicted: BTreeMap<String, u64>,
    /// Matchable tokens that evictions cost.
    pub matchable_lost: u64,
    /// Allocations granted.
    pub allocations: u64,
    /// Reclaim plans.
    pub reclaim_plans: u64,
    /// Prepare phases.
    pub prepares: u64,
    /// Pages moved.
    pub moved_pages: u64,
    /// Bytes moved.
    pub moved_bytes: u64,
    /// Allocations that waited in the service's queue.
    pub waits: u64,
    /// Times that memory was short and asked for again in a later step.
    pub retries: u64,
    /// Requests that gave their memory back to let others go on.
    pub retractions: u64,
    /// State checkpoints left out for want of memory.
    pub checkpoints_skipped: u64,
    /// Live pages at the end, every invariant checked.
    pub live_pages_checked: u64,
    /// Of them, read and compared with what was written.
    pub live_pages_compared: u64,
}

impl Report {
    /// Puts a replay's numbers together.
    #[must_use]
    pub fn new(
        workload: &str,
        config: &Config,
        tally: &Tally,
        stats: &Stats,
        verified: Verified,
        wall: Duration,
    ) -> Self {
        let counts = Counts::new(tally, stats, verified);
        let (allocations, steps) = (tally.allocation_latency(), tally.step_latency());
        let seconds = wall.as_secs_f64().max(1e-9);
        Report {
            workload: workload.to_owned(),
            model: config.model.clone(),
            engine: config.sections.device.engine.word().to_owned(),
            arena_bytes: stats.total.0,
            page_tokens: config.chain.page_tokens().0,
            allocation_latency: allocations,
            step_latency: steps,
            wall_seconds: seconds,
            tokens_per_second: (counts.tokens_in + counts.tokens_out) as f64 / seconds,
            operations_per_second: (allocations.count + counts.tokens_out) as f64 / seconds,
            counts,
        }
    }
}

impl Counts {
    fn new(tally: &Tally, stats: &Stats, verified: Verified) -> Self {
        let totals = &stats.totals;
        let evicted = stats.pools.iter().enumerate().map(|(place, pool)| {
            let tokens = totals.evicted.0[place] * u64::from(pool.page_tokens.0);
            (pool.name.to_string(), tokens)
        });
        Counts {
            requests: tally.requests,
            finished: tally.finished,
            rejected: tally.rejected,
            cut_short: tally.cut_short,
            tokens_in: tally.tokens_in,
            tokens_out: tally.tokens_out,
            hit_tokens: tally.hit_tokens,
            hit_rate: tally.hit_tokens as f64 / tally.tokens_in.max(1) as f64,
            evicted: evicted.collect(),
            matchable_lost: totals.matchable_lost,
            allocations: totals.granted,
            reclaim_plans: totals.plans,
            prepares: totals.prepares,
            moved_pages: totals.moved_pages,
            moved_bytes: totals.moved_bytes.0,
            waits: totals.waits,
            retries: tally.retries,
            retractions: tally.retractions,
            checkpoints_skipped: tally.checkpoints_skipped,
            live_pages_checked: verified.pages,
            live_pages_compared: verified.compared,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = &self.counts;
        writeln!(f, "workload          {}", self.workload)?;
        writeln!(
            f,
            "model             {}, pages of {} tokens, arena of {} bytes, engine {}",
            self.model, self.page_tokens, self.arena_bytes, self.engine
        )?;
        writeln!(
            f,
            "requests          {}: {} finished, {} rejected, {} cut short",
            counts.requests, counts.finished, counts.rejected, counts.cut_short
        )?;
        writeln!(f, "tokens            {} in, {} out", counts.tokens_in, counts.tokens_out)?;
        writeln!(
            f,
            "hits              {} tokens, {:.2} %",
            counts.hit_tokens,
            100.0 * counts.hit_rate
        )?;
        for (pool, tokens) in &counts.evicted {
            writeln!(f, "evicted           {tokens} of pool {pool}")?;
        }
        writeln!(
            f,
            "reclaim           {} plans, {} matchable tokens lost",
            counts.reclaim_plans, counts.matchable_lost
        )?;
        writeln!(
            f,
            "moves             {} prepares, {} pages, {} bytes",
            counts.prepares, counts.moved_pages, counts.moved_bytes
        )?;
        writeln!(
            f,
            "memory short      {} waits, {} retries, {} retractions, {} checkpoints skipped",
            counts.waits, counts.retries, counts.retractions, counts.checkpoints_skipped
        )?;
        latency(f, "open and extend", &self.allocation_latency)?;
        latency(f, "decode step", &self.step_latency)?;
        writeln!(
            f,
            "rate              {:.2} s, {:.0} tokens/s, {:.0} operations/s",
            self.wall_seconds, self.tokens_per_second, self.operations_per_second
        )?;
        writeln!(
            f,
            "checked           invariants I1-I9 hold; {} live pages, {} of them read and compared",
            counts.live_pages_checked, counts.live_pages_compared
        )
    }
}

fn latency(f: &mut fmt::Formatter<'_>, what: &str, latency: &Latency) -> fmt::Result {
    let Latency { count, p50_us, p90_us, p99_us, max_us } = latency;
    writeln!(
        f,
        "{what:<17} {count} times; p50 {p50_us:.1}, p90 {p90_us:.1}, p99 {p99_us:.1}, max {max_us:.1} us"
    )
}
