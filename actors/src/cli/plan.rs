//! `kvtide plan`: what an allocation would need in the state that a scenario leaves.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use kvtide_core::chain::Chain;

use super::error::CliError;
use super::scenario::failed_start;
use crate::error::AllocError;
use crate::report::{Explanation, Plan};
use crate::scenario::{DemandByName, Runner, Scenario, demand};

/// Say what an allocation would evict and move, or which bound refuses it; changes nothing.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// A scenario file whose operations make the state; its expectations are not checked.
    #[arg(long, value_name = "FILE")]
    pub scenario: PathBuf,
    /// What to allocate: tokens of token pools, slots of state pools.
    #[arg(long, value_name = "POOL=N,POOL=N", value_parser = parse_demand)]
    pub demand: DemandByName,
    /// Print JSON, as a `probe` operation does.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
///
/// # Errors
/// [`CliError::Input`] for a file that is no scenario or a pool that it does not have.
pub async fn run(args: &PlanArgs, out: &mut impl Write) -> Result<(), CliError> {
    let scenario = Scenario::read(&args.scenario).map_err(CliError::input)?;
    let mut runner = Runner::start(&scenario).await.map_err(failed_start)?;
    for step in &scenario.steps {
        runner.run(step).await.map_err(CliError::service)?;
    }
    let handle = runner.handle().clone();
    let pages = demand(handle.chain(), &args.demand).map_err(CliError::input)?;
    let explanation = handle.explain(pages).await.map_err(|error| match error {
        AllocError::Service(_) => CliError::service(error),
        _ => CliError::input(error),
    })?;
    if args.json {
        let text =
            serde_json::to_string(&crate::scenario::probe_outcome(handle.chain(), &explanation))
                .map_err(CliError::service)?;
        writeln!(out, "{text}")?;
    } else {
        describe(handle.chain(), &explanation, out)?;
    }
    runner.stop().await;
    Ok(())
}

fn describe(
    chain: &Chain,
    explanation: &Explanation,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let answer = |yes: bool| if yes { "yes" } else { "no" };
    writeln!(out, "fits now          {}", answer(explanation.fits_now))?;
    writeln!(out, "fits after moves  {}", answer(explanation.fits_after_moves))?;
    match &explanation.verdict {
        Ok(Plan { evicted, matchable_lost, moved_bytes }) => {
            for pool in chain.pool_ids() {
                let page = kvtide_core::sequence::tokens_of_page(chain, pool);
                let tokens = u64::from(evicted[pool].0) * u64::from(page.0);
                writeln!(out, "evicts            {tokens} of pool {}", chain.pool(pool).name)?;
            }
            writeln!(out, "costs             {matchable_lost} matchable tokens")?;
            writeln!(out, "moves             {} bytes", moved_bytes.0)?;
        }
        Err(error) => writeln!(out, "refused           {error}")?,
    }
    Ok(())
}

fn parse_demand(text: &str) -> Result<DemandByName, String> {
    let mut demand = Vec::new();
    for part in text.split(',') {
        let amount = part.split_once('=').and_then(|(pool, amount)| {
            let pool = pool.trim();
            let amount = amount.trim().parse::<u64>().ok()?;
            (!pool.is_empty()).then(|| (pool.to_owned(), amount))
        });
        match amount {
            Some((pool, _)) if demand.iter().any(|(named, _)| *named == pool) => {
                return Err(format!("pool `{pool}` is named twice"));
            }
            Some(amount) => demand.push(amount),
            None => return Err(format!("`{part}` is not POOL=N with a whole number N")),
        }
    }
    Ok(DemandByName(demand))
}
