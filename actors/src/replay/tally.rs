//! What a replay counts.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Counts of one replay; latencies in nanoseconds.
#[derive(Debug)]
pub struct Tally {
    /// Requests admitted or turned away, each once.
    pub requests: u64,
    /// Prompt tokens of admitted requests.
    pub tokens_in: u64,
    /// Tokens decoded.
    pub tokens_out: u64,
    /// Prompt tokens that the cache had, counted when a request is first admitted.
    pub hit_tokens: u64,
    /// Times that memory was short and asked for again in a later step.
    pub retries: u64,
    /// Requests that gave their memory back to let others go on.
    pub retractions: u64,
    /// State checkpoints left out for want of memory.
    pub checkpoints_skipped: u64,
    /// Requests that can never fit, refused.
    pub rejected: u64,
    /// Requests that ran alone and still found no room for their end.
    pub cut_short: u64,
    /// Requests served to their end.
    pub finished: u64,
    allocations: Histogram<u64>,
    steps: Histogram<u64>,
}

/// Percentiles of a latency, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    /// Half were at most this long.
    pub p50_us: f64,
    /// Nine in ten.
    pub p90_us: f64,
    /// Ninety-nine in a hundred.
    pub p99_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Default for Tally {
    fn default() -> Self {
        // Three figures, growing as needed: `Histogram` refuses more than five only.
        let histogram = || Histogram::new(3).expect("three significant figures are accepted");
        Tally {
            requests: 0,
            tokens_in: 0,
            tokens_out: 0,
            hit_tokens: 0,
            retries: 0,
            retractions: 0,
            checkpoints_skipped: 0,
            rejected: 0,
            cut_short: 0,
            finished: 0,
            allocations: histogram(),
            steps: histogram(),
        }
    }
}

impl Tally {
    /// Requests that ended, one way or the other.
    #[must_use]
    pub fn requests_ended(&self) -> u64 {
        self.finished + self.rejected + self.cut_short
    }

    pub(super) fn admitted(&mut self, tokens: u64, hits: u64) {
        self.requests += 1;
        self.tokens_in += tokens;
        self.hit_tokens += hits;
    }

    /// A request was turned away; `new` is 1 if it was not counted before.
    pub(super) fn rejected(&mut self, new: u64) {
        self.requests += new;
        self.rejected += 1;
    }

    pub(super) fn allocation(&mut self, took: Duration) {
        // A histogram that grows refuses nothing.
        let _ = self.allocations.record(took.as_nanos() as u64);
    }

    pub(super) fn step(&mut self, took: Duration) {
        let _ = self.steps.record(took.as_nanos() as u64);
    }

    /// Latency of `open` and `extend`, through the handle.
    #[must_use]
    pub fn allocation_latency(&self) -> Latency {
        latency(&self.allocations)
    }

    /// Latency of one decode step of all running requests, one message.
    #[must_use]
    pub fn step_latency(&self) -> Latency {
        latency(&self.steps)
    }
}

fn latency(histogram: &Histogram<u64>) -> Latency {
    let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Latency {
        count: histogram.len(),
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        max_us: histogram.max() as f64 / 1e3,
    }
}
