//! What an operation ended with, and how that becomes an outcome.

use kvtide_core::chain::Chain;
use kvtide_core::unit::{Pages, PerPool, PoolId};
use serde_json::{Value, json};

use super::{Field, Outcome, Table};
use crate::error::{AllocError, Amounts, Refusal};
use crate::handle::{Reservation, Sequence};
use crate::message::{Appended, Matched, Receipt};
use crate::report::{Explanation, PoolStats, Stats, Totals, Verified};

/// What an operation ended with.
pub(super) struct Ended {
    pub(super) result: Result<(), AllocError>,
    pub(super) receipt: Receipt,
    pub(super) fields: Vec<(&'static str, Field)>,
    pub(super) restored: Restored,
}

/// What goes back under its name.
pub(super) enum Restored {
    None,
    Sequence(String, Sequence),
    Fork([(String, Sequence); 2]),
    Reservation(String, Reservation),
}

/// The service after an operation.
pub(super) struct State<'a> {
    pub(super) stats: &'a Stats,
    /// Totals before and after, if nothing else ran meanwhile.
    pub(super) since: Option<(&'a Totals, &'a Totals)>,
}

impl Ended {
    pub(super) fn done() -> Self {
        Ended {
            result: Ok(()),
            receipt: Receipt::default(),
            fields: Vec::new(),
            restored: Restored::None,
        }
    }

    pub(super) fn failed(error: AllocError) -> Self {
        Ended { result: Err(error), ..Ended::done() }
    }

    pub(super) fn receipt(receipt: Receipt) -> Self {
        Ended { receipt, ..Ended::done() }
    }

    /// An operation that failed after part of it had its pages.
    pub(super) fn after(self, receipt: Receipt) -> Self {
        Ended { receipt, ..self }
    }

    pub(super) fn with(self, restored: Restored) -> Self {
        Ended { restored, ..self }
    }

    pub(super) fn matched(matched: Matched) -> Self {
        let fields = vec![
            ("matched", Field::from(matched.tokens.0)),
            ("matched_full", Field::from(matched.full_tokens.0)),
        ];
        Ended { fields, ..Ended::done() }
    }

    pub(super) fn opened(name: String, result: Result<Sequence, AllocError>) -> Self {
        match result {
            Ok(sequence) => {
                let ended = Ended::matched(sequence.matched()).after(sequence.receipt());
                ended.with(Restored::Sequence(name, sequence))
            }
            Err(error) => Ended::failed(error),
        }
    }

    pub(super) fn reserved(name: String, result: Result<Reservation, AllocError>) -> Self {
        match result {
            Ok(held) => Ended::receipt(held.receipt()).with(Restored::Reservation(name, held)),
            Err(error) => Ended::failed(error),
        }
    }

    pub(super) fn inserted(matched: Matched, opened: Receipt, extended: Receipt) -> Self {
        let mut receipt = extended;
        for (evicted, more) in receipt.evicted.0.iter_mut().zip(opened.evicted.0) {
            evicted.0 += more.0;
        }
        receipt.moved_pages += opened.moved_pages;
        receipt.moved_bytes.0 += opened.moved_bytes.0;
        receipt.prepares += opened.prepares;
        Ended::matched(matched).after(receipt)
    }

    pub(super) fn appended(result: Result<Appended, AllocError>) -> Self {
        match result {
            Ok(Appended { appended, stopped, receipt }) => Ended {
                result: stopped.map_or(Ok(()), Err),
                receipt,
                fields: vec![("appended", appended.0.into())],
                restored: Restored::None,
            },
            Err(error) => Ended::failed(error),
        }
    }

    pub(super) fn verified(verified: Verified) -> Self {
        let fields = vec![
            ("pages", Field::from(verified.pages)),
            ("compared", Field::from(verified.compared)),
        ];
        Ended { fields, ..Ended::done() }
    }

    pub(super) fn stats(stats: &Stats) -> Self {
        let per_pool = |count: fn(&PoolStats) -> Pages| table(stats, |_, pool| count(pool));
        let totals = Table::new()
            .with("evicted", evicted_since_start(stats))
            .with("moved_pages", stats.totals.moved_pages)
            .with("moved_bytes", stats.totals.moved_bytes.0)
            .with("prepares", stats.totals.prepares)
            .with("reclaim_plans", stats.totals.plans)
            .with("hit_tokens", stats.totals.hit_tokens)
            .with("miss_tokens", stats.totals.miss_tokens)
            .with("waits", stats.totals.waits);
        let fields = vec![
            ("matchable", Field::from(u64::from(stats.matchable.0))),
            ("evictable", per_pool(|pool| pool.evictable).into()),
            ("pending", per_pool(|pool| pool.counts.pending).into()),
            ("capacity", per_pool(|pool| pool.capacity).into()),
            ("sequences", stats.sequences.into()),
            ("waiting", stats.waiting.into()),
            ("leases", stats.leases.into()),
            ("gates", stats.gates.into()),
            ("totals", totals.into()),
        ];
        Ended { fields, ..Ended::done() }
    }

    pub(super) fn explained(chain: &Chain, explanation: &Explanation) -> Self {
        let mut fields = vec![
            ("fits_now", Field::from(explanation.fits_now)),
            ("fits_after_moves", explanation.fits_after_moves.into()),
        ];
        match &explanation.verdict {
            Ok(plan) => {
                let evicted: Table = chain
                    .pool_ids()
                    .map(|pool| {
                        let tokens = kvtide_core::sequence::tokens_of_page(chain, pool);
                        let amount = u64::from(plan.evicted[pool].0) * u64::from(tokens.0);
                        (chain.pool(pool).name.clone(), amount)
                    })
                    .collect();
                let plan = Table::new()
                    .with("evicted", evicted)
                    .with("matchable_lost", plan.matchable_lost)
                    .with("moved_bytes", plan.moved_bytes.0);
                fields.push(("plan", plan.into()));
            }
            Err(error) => {
                fields.push(("plan", Value::Null.into()));
                let refusal = Table::new()
                    .with("error", error.name())
                    .with("message", error.to_string())
                    .with("detail", detail(error));
                fields.push(("refusal", refusal.into()));
            }
        }
        Ended { fields, ..Ended::done() }
    }
}

impl From<Result<Receipt, AllocError>> for Ended {
    fn from(result: Result<Receipt, AllocError>) -> Self {
        match result {
            Ok(receipt) => Ended::receipt(receipt),
            Err(error) => Ended::failed(error),
        }
    }
}

impl State<'_> {
    /// Adds what every outcome says: what the operation evicted and moved, and the state after it.
    pub(super) fn describe(&self, ended: &Ended, outcome: &mut Outcome) {
        let receipt = self.since.map_or(ended.receipt, |(before, after)| difference(before, after));
        let stats = self.stats;
        outcome.set("evicted", table(stats, |pool, _| receipt.evicted[pool]));
        outcome.set("cached", table(stats, |_, pool| pool.cached));
        outcome.set("locked", table(stats, |_, pool| pool.locked));
        outcome.set("live", table(stats, |_, pool| pool.counts.live));
        outcome.set("holes", table(stats, |_, pool| pool.counts.holes));
        outcome.set("moved_pages", receipt.moved_pages);
        outcome.set("moved_bytes", receipt.moved_bytes.0);
        outcome.set("prepares", receipt.prepares);
    }
}

fn difference(before: &Totals, after: &Totals) -> Receipt {
    let mut evicted = PerPool::default();
    let pools = evicted.0.iter_mut().zip(before.evicted.0).zip(after.evicted.0);
    for ((evicted, before), after) in pools {
        *evicted = Pages(after.saturating_sub(before) as u32);
    }
    Receipt {
        evicted,
        moved_pages: after.moved_pages - before.moved_pages,
        moved_bytes: kvtide_core::unit::Bytes(after.moved_bytes.0 - before.moved_bytes.0),
        prepares: after.prepares - before.prepares,
        waited: std::time::Duration::ZERO,
    }
}

/// What was evicted since the service started, by pool name, as tokens or slots.
fn evicted_since_start(stats: &Stats) -> Table {
    let pools = stats.pools.iter().zip(stats.totals.evicted.0);
    pools
        .map(|(pool, pages)| (pool.name.to_string(), pages * u64::from(pool.page_tokens.0)))
        .collect()
}

/// Pages by pool name, as tokens or slots.
fn table(stats: &Stats, pages: impl Fn(PoolId, &PoolStats) -> Pages) -> Table {
    let ids = (0..).map(PoolId).zip(&stats.pools);
    ids.map(|(id, pool)| {
        let amount = u64::from(pages(id, pool).0) * u64::from(pool.page_tokens.0);
        (pool.name.to_string(), amount)
    })
    .collect()
}

/// The numbers that decided a failure, by name.
pub(super) fn detail(error: &AllocError) -> Value {
    match error {
        AllocError::Impossible { demand, capacity, bound } => json!({
            "demand": amounts(demand),
            "capacity": amounts(capacity),
            "bound": refusal(bound),
        }),
        AllocError::Exhausted { demand, free, evictable, locked, bound } => json!({
            "demand": amounts(demand),
            "free": amounts(free),
            "evictable": amounts(evictable),
            "locked": amounts(locked),
            "bound": refusal(bound),
        }),
        AllocError::MovesGated { gates } => json!({ "gates": gates }),
        AllocError::TimedOut { waited } => json!({ "waited_ms": waited.as_millis() as u64 }),
        AllocError::Busy { waiting, limit } => json!({ "waiting": waiting, "limit": limit }),
        _ => json!({}),
    }
}

fn amounts(amounts: &Amounts) -> Value {
    amounts.0.iter().map(|(pool, amount)| (pool.to_string(), json!(amount))).collect()
}

fn refusal(bound: &Refusal) -> Value {
    use kvtide_core::fit::Bound;
    match bound {
        Refusal::Fit { pool, bound: Bound::Ids { wanted, ids, .. } } => {
            json!({ "pool": **pool, "wanted_pages": wanted.0, "ids": ids.0 })
        }
        Refusal::Fit { pool, bound: Bound::Bytes { missing, .. } } => {
            json!({ "pool": **pool, "missing_bytes": missing.0 })
        }
        Refusal::Quota(what) => json!({ "quota": what }),
        Refusal::Queue => json!({ "queue": "an earlier allocation waits" }),
    }
}

/// An explanation as a `probe` operation's outcome shows it.
#[must_use]
pub fn probe_outcome(chain: &Chain, explanation: &Explanation) -> Table {
    Ended::explained(chain, explanation).fields.into_iter().collect()
}
