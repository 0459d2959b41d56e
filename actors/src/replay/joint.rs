//! The published joint-allocation cases: what a demand of two or three pools evicts.
//!
//! Two pools share 6,400 bytes and cache 96 tokens; each alone has room for seven more, together there is room for three.
//! Three pools hold 96 tokens of three prefixes and eight states; a demand of 4 pages of both token pools is reachable at
//! the price of one token, a demand of 200 never. Source of the published figures: the change to SGLang that kvtide
//! starts from, before and after.

use std::fmt::Write;

use kvtide_core::chain::{Grow, PoolKind, PoolSpec};
use kvtide_core::demand::{Demand, ExactDemand};
use kvtide_core::unit::{Bytes, Pages, Token, Tokens};
use serde::Serialize;

use super::episodes::EpisodeError;
use crate::config::{Compaction, Config};
use crate::error::AllocError;
use crate::handle::{CacheHandle, OpenOptions};
use crate::message::Publishing;
use crate::service::CacheService;

/// One case in one mode of compaction, published and ours.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct JointCase {
    /// What is asked of how many pools.
    pub case: &'static str,
    /// `lazy` or `eager`.
    pub compaction: &'static str,
    /// Published, before the change.
    pub published_before: &'static str,
    /// Published, after it.
    pub published_after: &'static str,
    /// Whether the demand was met.
    pub met: bool,
    /// Full tokens evicted.
    pub evicted_full: u32,
    /// Window tokens evicted.
    pub evicted_window: u32,
    /// States evicted.
    pub evicted_states: u32,
    /// Cached tokens that some prompt can still be served.
    pub matchable: u32,
}

/// A case's shape.
struct Case {
    name: &'static str,
    before: &'static str,
    after: &'static str,
    pools: Pools,
    demand: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Pools {
    Two,
    Three,
}

const CASES: [Case; 3] = [
    Case {
        name: "two pools, demand 6",
        before: "met, evicts 5",
        after: "met, evicts 3",
        pools: Pools::Two,
        demand: 6,
    },
    Case {
        name: "three pools, demand 4",
        before: "fails",
        after: "met, evicts 1",
        pools: Pools::Three,
        demand: 4,
    },
    Case {
        name: "three pools, demand 200",
        before: "fails, evicts all 96",
        after: "fails, keeps all 96",
        pools: Pools::Three,
        demand: 200,
    },
];

/// Runs every case, lazily and eagerly compacted, against a service of its own with real bytes.
///
/// # Errors
/// [`EpisodeError`].
pub async fn run() -> Result<Vec<JointCase>, EpisodeError> {
    let mut outcomes = Vec::new();
    for case in &CASES {
        for compaction in [Compaction::Lazy, Compaction::Eager] {
            outcomes.push(run_case(case, compaction).await?);
        }
    }
    Ok(outcomes)
}

async fn run_case(case: &Case, compaction: Compaction) -> Result<JointCase, EpisodeError> {
    let mut config = config(case.pools)?;
    config.sections.cache.compaction = compaction;
    let service = CacheService::start(config).await?;
    let handle = service.handle();
    let held = fill(&handle, case.pools).await?;
    let chain = handle.chain();
    let mut demand = Demand::default();
    for pool in chain.full().into_iter().chain(chain.windows().iter().copied()) {
        demand.0[pool] = Pages(case.demand);
    }
    let demand = ExactDemand::raw(chain, demand).map_err(AllocError::from)?;
    let result = handle.reserve(demand, None).await;
    let met = match &result {
        Ok(_) => true,
        Err(AllocError::Impossible { .. } | AllocError::Exhausted { .. }) => false,
        Err(error) => return Err(error.clone().into()),
    };
    handle.settle().await?;
    handle.verify().await?;
    let stats = handle.stats().await?;
    let evicted = |pool: Option<kvtide_core::unit::PoolId>| {
        pool.map_or(0, |pool| stats.totals.evicted[pool] as u32)
    };
    let outcome = JointCase {
        case: case.name,
        compaction: compaction.word(),
        published_before: case.before,
        published_after: case.after,
        met,
        evicted_full: evicted(chain.full()),
        evicted_window: evicted(chain.windows().first().copied()),
        evicted_states: evicted(chain.states().first().copied()),
        matchable: stats.matchable.0,
    };
    drop((result, held));
    service.stop().await;
    Ok(outcome)
}

fn config(pools: Pools) -> Result<Config, EpisodeError> {
    let spec = |name: &str, kind, grow, bytes| PoolSpec {
        name: name.to_owned(),
        kind,
        grow,
        page_bytes: Bytes(bytes),
        pages_max: None,
    };
    let window = PoolKind::Window { window: Tokens(128) };
    let (total, pools) = match pools {
        Pools::Two => (
            6_400,
            vec![spec("full", PoolKind::Full, Grow::Up, 32), spec("swa", window, Grow::Down, 32)],
        ),
        Pools::Three => (
            7_808,
            vec![
                spec("state", PoolKind::State, Grow::Up, 176),
                spec("swa", window, Grow::Float, 32),
                spec("full", PoolKind::Full, Grow::Down, 32),
            ],
        ),
    };
    Ok(Config::from_pools("joint", Bytes(total), Tokens(1), None, pools)?)
}

/// Caches 96 tokens; of three pools also five states that stay held.
async fn fill(
    handle: &CacheHandle,
    pools: Pools,
) -> Result<Option<crate::handle::Reservation>, EpisodeError> {
    let prompts: Vec<Vec<Token>> = match pools {
        Pools::Two => (0..96).map(|index| vec![index * 1_000]).collect(),
        Pools::Three => vec![vec![0], vec![10_000], (20_000..20_094).collect()],
    };
    let mut held = None;
    if let Some(&states) = handle.chain().states().first() {
        let five = Demand::default().with(states, Pages(5)).map_err(AllocError::from)?;
        let five = ExactDemand::raw(handle.chain(), five).map_err(AllocError::from)?;
        held = Some(handle.reserve(five, None).await?);
    }
    for prompt in prompts {
        let mut sequence = handle.open(prompt, OpenOptions::default()).await?;
        sequence.extend(None, None).await?;
        sequence.finish(Publishing::PagesAndState).await?;
    }
    Ok(held)
}

/// The cases as a table.
#[must_use]
pub fn table(cases: &[JointCase]) -> String {
    let mut text = String::from(
        "case                      compaction  published before      published after      kvtide\n",
    );
    for case in cases {
        let verdict = if case.met { "met" } else { "fails" };
        let _ = writeln!(
            text,
            "{:<25} {:<11} {:<21} {:<20} {verdict}, evicts {} full, {} window, {} state; {} of 96 matchable",
            case.case,
            case.compaction,
            case.published_before,
            case.published_after,
            case.evicted_full,
            case.evicted_window,
            case.evicted_states,
            case.matchable,
        );
    }
    text
}
