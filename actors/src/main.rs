//! The `kvtide` command.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use kvtide::cli::{CliError, config, plan, replay, scenario};
use kvtide::telemetry::{self, LogFormat};

/// Cache memory for LLM serving: replay workloads, run scenarios, plan allocations, check configurations.
///
/// Without a command it replays the embedded workload with embedded defaults.
#[derive(Debug, Parser)]
#[command(name = "kvtide", version, args_conflicts_with_subcommands = true)]
struct Cli {
    /// How log lines on stderr are written; what is logged is up to RUST_LOG.
    #[arg(long, global = true, value_enum, default_value_t)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    replay: replay::ReplayArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replay a workload against the service.
    Replay(replay::ReplayArgs),
    /// Run scenario files: exit code 0 when every expectation holds, 1 when one fails, 2 for a file that is no scenario.
    Scenario(scenario::ScenarioArgs),
    /// Say what an allocation would need in the state that a scenario leaves.
    Plan(plan::PlanArgs),
    /// Check a configuration and print what follows from it.
    Config(config::ConfigArgs),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(refusal) if refusal.use_stderr() => {
            // Nothing is left to tell if even stderr is closed.
            let _ = writeln!(std::io::stderr(), "kvtide: {}", one_line(&refusal));
            return ExitCode::from(2);
        }
        // What was asked for is the help or the version.
        Err(help) => help.exit(),
    };
    let result = telemetry::log(cli.log_format).map_err(CliError::input).and_then(|()| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.map_err(CliError::service)?.block_on(run(cli))
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = error.exit_code();
            if code != 0 {
                // Nothing is left to tell if even stderr is closed.
                let _ = writeln!(std::io::stderr(), "kvtide: {error}");
            }
            ExitCode::from(code)
        }
    }
}

async fn run(cli: Cli) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    match cli.command {
        None => replay::run(&cli.replay, &mut out).await,
        Some(Command::Replay(args)) => replay::run(&args, &mut out).await,
        Some(Command::Scenario(args)) => scenario::run(&args, &mut out).await,
        Some(Command::Plan(args)) => plan::run(&args, &mut out).await,
        Some(Command::Config(args)) => config::run(&args, &mut out),
    }
}

/// The first paragraph of what the parser says, on one line: what was given, and what was expected.
fn one_line(refusal: &clap::Error) -> String {
    let text = refusal.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    let line = words.join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}
