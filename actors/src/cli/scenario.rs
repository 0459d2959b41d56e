//! `kvtide scenario`: runs scenario files against the real service.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use crate::scenario::{RunError, Runner, Scenario, Totals};

/// Run scenario files; one JSON line per operation.
#[derive(Args, Clone, Debug)]
pub struct ScenarioArgs {
    /// Scenario files, version 1.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// Runs the command: every file is read before any is run.
///
/// # Errors
/// [`CliError::Input`] for a file that is no scenario, [`CliError::Expectations`] if an expectation does not hold.
pub async fn run(args: &ScenarioArgs, out: &mut impl Write) -> Result<(), CliError> {
    let read: Result<Vec<Scenario>, _> =
        args.files.iter().map(|file| Scenario::read(file)).collect();
    let (mut failed, mut checked) = (0, 0);
    for scenario in read.map_err(CliError::input)? {
        let (failures, of) = run_one(&scenario, out).await?;
        failed += failures;
        checked += of;
    }
    if failed == 0 { Ok(()) } else { Err(CliError::Expectations { failed, checked }) }
}

/// Runs one file; how many of how many expected fields do not hold. Each failure is a line on stderr.
async fn run_one(scenario: &Scenario, out: &mut impl Write) -> Result<(u64, u64), CliError> {
    let mut runner = Runner::start(scenario).await.map_err(failed_start)?;
    let mut totals = Totals::default();
    let (mut failed, mut checked) = (0, 0);
    for step in &scenario.steps {
        let outcome = runner.run(step).await.map_err(CliError::service)?;
        let line = serde_json::to_string(&outcome).map_err(CliError::service)?;
        writeln!(out, "{line}")?;
        totals.add(&outcome);
        checked += step.expectations.iter().map(|expect| expect.fields.len() as u64).sum::<u64>();
        for failure in scenario.check(step, &outcome, &totals) {
            failed += 1;
            // A closed stderr hides the message, not the exit code.
            let _ = writeln!(std::io::stderr(), "{failure}");
        }
    }
    runner.stop().await;
    Ok((failed, checked))
}

/// A scenario that cannot be started is no scenario for this machine.
pub(super) fn failed_start(error: RunError) -> CliError {
    match error {
        RunError::Alloc(_) => CliError::service(error),
        RunError::Scenario(_) | RunError::Start(_) => CliError::input(error),
    }
}
