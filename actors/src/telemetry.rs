//! Metrics and logs: what the service counts, published for Prometheus, and what it says, for people or machines.
//!
//! Counting costs nothing here: the allocator keeps plain integers, and [`Publisher::publish`] copies them into the
//! `metrics` registry on a timer. Names carry their unit, and each metric has its help text.

use std::net::SocketAddr;
use std::time::Duration;

use kvtide_core::unit::{Bytes, Pages};
use metrics::{Counter, Gauge, Unit, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::PrometheusBuilder;
use tracing_subscriber::EnvFilter;

use crate::error::AllocError;
use crate::handle::CacheHandle;
use crate::report::{OUTCOMES, PoolStats, Stats};

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Why telemetry could not be set up.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TelemetryError {
    /// The endpoint could not be opened.
    #[error("metrics at {address}: {reason}")]
    Metrics {
        /// Where it was to listen.
        address: SocketAddr,
        /// What the exporter says.
        reason: String,
    },
    /// `RUST_LOG` cannot be read.
    #[error("RUST_LOG={value}: {reason}")]
    Filter {
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Sends log lines to stderr, filtered by `RUST_LOG` (`warn` if unset).
///
/// # Errors
/// [`TelemetryError::Filter`] if `RUST_LOG` cannot be read.
pub fn log(format: LogFormat) -> Result<(), TelemetryError> {
    let value = std::env::var("RUST_LOG").unwrap_or_else(|_| "warn".into());
    let filter = EnvFilter::try_new(&value)
        .map_err(|error| TelemetryError::Filter { value, reason: error.to_string() })?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second subscriber is refused: whoever embeds the crate may have set one already.
    let _ = match format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    Ok(())
}

/// Opens the Prometheus endpoint `http://ADDRESS/metrics`.
///
/// # Errors
/// [`TelemetryError::Metrics`] if the address cannot be listened on.
pub fn serve_metrics(address: SocketAddr) -> Result<(), TelemetryError> {
    let failed = |reason: String| TelemetryError::Metrics { address, reason };
    let builder = PrometheusBuilder::new().with_http_listener(address);
    builder.install().map_err(|error| failed(error.to_string()))?;
    describe();
    Ok(())
}

/// Publishes a service's counters every `every` until the service is gone.
pub async fn publish_every(handle: CacheHandle, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    let mut publisher: Option<Publisher> = None;
    loop {
        ticks.tick().await;
        match handle.stats().await {
            Ok(stats) => {
                publisher.get_or_insert_with(|| Publisher::new(&stats)).publish(&stats);
            }
            Err(AllocError::Service(_)) => return,
            Err(_) => {}
        }
    }
}

/// Handles to every metric of one service.
pub struct Publisher {
    pools: Vec<PoolMetrics>,
    sink: Gauge,
    arena: Gauge,
    totals: TotalMetrics,
    refused: Vec<Counter>,
    sequences: Gauge,
    waiting: Gauge,
    leases: Gauge,
    gates: Gauge,
    matchable: Gauge,
}

struct PoolMetrics {
    live: Gauge,
    holes: Gauge,
    pending: Gauge,
    reserved: Gauge,
    free: Gauge,
    capacity: Gauge,
    cached: Gauge,
    locked: Gauge,
    pinned: Gauge,
    evictable: Gauge,
    evicted: Counter,
}

struct TotalMetrics {
    opened: Counter,
    hits: Counter,
    misses: Counter,
    granted: Counter,
    plans: Counter,
    matchable_lost: Counter,
    prepares: Counter,
    moved_pages: Counter,
    moved_bytes: Counter,
    copy_micros: Counter,
    waits: Counter,
    wait_micros: Counter,
}

impl Publisher {
    /// Registers every metric, labelled by pool where it has one.
    #[must_use]
    pub fn new(stats: &Stats) -> Self {
        Publisher {
            pools: stats.pools.iter().map(PoolMetrics::new).collect(),
            sink: gauge!("kvtide_sink_bytes"),
            arena: gauge!("kvtide_arena_bytes"),
            totals: TotalMetrics {
                opened: counter!("kvtide_sequences_opened_total"),
                hits: counter!("kvtide_hit_tokens_total"),
                misses: counter!("kvtide_miss_tokens_total"),
                granted: counter!("kvtide_allocations_total", "outcome" => "granted"),
                plans: counter!("kvtide_reclaim_plans_total"),
                matchable_lost: counter!("kvtide_matchable_tokens_lost_total"),
                prepares: counter!("kvtide_prepares_total"),
                moved_pages: counter!("kvtide_moved_pages_total"),
                moved_bytes: counter!("kvtide_moved_bytes_total"),
                copy_micros: counter!("kvtide_copy_microseconds_total"),
                waits: counter!("kvtide_waits_total"),
                wait_micros: counter!("kvtide_wait_microseconds_total"),
            },
            refused: OUTCOMES
                .iter()
                .map(|outcome| counter!("kvtide_allocations_total", "outcome" => *outcome))
                .collect(),
            sequences: gauge!("kvtide_sequences"),
            waiting: gauge!("kvtide_queue_depth"),
            leases: gauge!("kvtide_leases"),
            gates: gauge!("kvtide_gates_closed"),
            matchable: gauge!("kvtide_matchable_tokens"),
        }
    }

    /// Copies one moment's numbers into the registry.
    pub fn publish(&self, stats: &Stats) {
        self.arena.set(stats.total.0 as f64);
        self.sink.set(stats.sink.0 as f64);
        for (place, (metrics, pool)) in self.pools.iter().zip(&stats.pools).enumerate() {
            metrics.publish(pool, stats.totals.evicted.0[place]);
        }
        let totals = &stats.totals;
        let metrics = &self.totals;
        metrics.opened.absolute(totals.opened);
        metrics.hits.absolute(totals.hit_tokens);
        metrics.misses.absolute(totals.miss_tokens);
        metrics.granted.absolute(totals.granted);
        metrics.plans.absolute(totals.plans);
        metrics.matchable_lost.absolute(totals.matchable_lost);
        metrics.prepares.absolute(totals.prepares);
        metrics.moved_pages.absolute(totals.moved_pages);
        metrics.moved_bytes.absolute(totals.moved_bytes.0);
        metrics.copy_micros.absolute(totals.copy_nanos / 1_000);
        metrics.waits.absolute(totals.waits);
        metrics.wait_micros.absolute(totals.wait_nanos / 1_000);
        for (metric, count) in self.refused.iter().zip(totals.refused) {
            metric.absolute(count);
        }
        self.sequences.set(stats.sequences as f64);
        self.waiting.set(stats.waiting as f64);
        self.leases.set(stats.leases as f64);
        self.gates.set(stats.gates as f64);
        self.matchable.set(f64::from(stats.matchable.0));
    }
}

impl PoolMetrics {
    fn new(pool: &PoolStats) -> Self {
        let name = || pool.name.to_string();
        let bytes =
            |state: &'static str| gauge!("kvtide_pool_bytes", "pool" => name(), "state" => state);
        let tokens =
            |state: &'static str| gauge!("kvtide_pool_tokens", "pool" => name(), "state" => state);
        PoolMetrics {
            live: bytes("live"),
            holes: bytes("hole"),
            pending: bytes("pending"),
            reserved: bytes("reserved"),
            free: gauge!("kvtide_pool_free_bytes", "pool" => name()),
            capacity: gauge!("kvtide_pool_capacity_bytes", "pool" => name()),
            cached: tokens("cached"),
            locked: tokens("locked"),
            pinned: tokens("pinned"),
            evictable: tokens("evictable"),
            evicted: counter!("kvtide_evicted_tokens_total", "pool" => name()),
        }
    }

    fn publish(&self, pool: &PoolStats, evicted: u64) {
        let bytes = |pages: Pages| {
            let Bytes(bytes) = pages.bytes(pool.page_bytes);
            bytes as f64
        };
        let tokens = |pages: Pages| f64::from(pages.0) * f64::from(pool.page_tokens.0);
        self.live.set(bytes(pool.counts.live));
        self.holes.set(bytes(pool.counts.holes));
        self.pending.set(bytes(pool.counts.pending));
        self.reserved.set(bytes(pool.counts.reserved));
        self.free.set(bytes(pool.free));
        self.capacity.set(bytes(pool.capacity));
        self.cached.set(tokens(pool.cached));
        self.locked.set(tokens(pool.locked));
        self.pinned.set(tokens(pool.pinned));
        self.evictable.set(tokens(pool.evictable));
        self.evicted.absolute(evicted * u64::from(pool.page_tokens.0));
    }
}

/// Gives every metric its help text and unit.
fn describe() {
    describe_gauge!("kvtide_arena_bytes", Unit::Bytes, "The arena, sink included");
    describe_gauge!("kvtide_sink_bytes", Unit::Bytes, "Bytes at the bottom that no page uses");
    describe_gauge!(
        "kvtide_pool_bytes",
        Unit::Bytes,
        "Bytes of a pool's pages by state: live, hole, pending, reserved"
    );
    describe_gauge!(
        "kvtide_pool_free_bytes",
        Unit::Bytes,
        "Bytes that a pool alone could be given now, moving and evicting nothing"
    );
    describe_gauge!(
        "kvtide_pool_capacity_bytes",
        Unit::Bytes,
        "The most bytes of a pool that can be live at once, were it alone"
    );
    describe_gauge!(
        "kvtide_pool_tokens",
        "Tokens (slots, of a state pool) in the tree: cached, locked, pinned, evictable"
    );
    describe_gauge!("kvtide_matchable_tokens", "Cached tokens that some prompt could be served");
    describe_gauge!("kvtide_sequences", "Open sequences");
    describe_gauge!("kvtide_queue_depth", "Allocations waiting for memory");
    describe_gauge!("kvtide_leases", "Open step leases");
    describe_gauge!("kvtide_gates_closed", "Closed move gates");
    describe_counter!("kvtide_sequences_opened_total", "Sequences opened");
    describe_counter!("kvtide_hit_tokens_total", "Prompt tokens that the cache had");
    describe_counter!("kvtide_miss_tokens_total", "Prompt tokens left to compute");
    describe_counter!("kvtide_allocations_total", "Allocations by outcome");
    describe_counter!("kvtide_evicted_tokens_total", "Tokens (slots) evicted, per pool");
    describe_counter!("kvtide_reclaim_plans_total", "Reclaim plans made");
    describe_counter!(
        "kvtide_matchable_tokens_lost_total",
        "Tokens that evictions made unmatchable"
    );
    describe_counter!("kvtide_prepares_total", "Prepare phases");
    describe_counter!("kvtide_moved_pages_total", "Pages moved");
    describe_counter!("kvtide_moved_bytes_total", Unit::Bytes, "Bytes moved");
    describe_counter!(
        "kvtide_copy_microseconds_total",
        Unit::Microseconds,
        "From the launch of copies to their completion"
    );
    describe_counter!("kvtide_waits_total", "Allocations that waited for memory");
    describe_counter!("kvtide_wait_microseconds_total", Unit::Microseconds, "Waited for memory");
}
