//! `kvtide replay`: drives a workload through the service and reports what came of it.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use kvtide_core::chain::Chain;
use kvtide_core::unit::Tokens;

use super::error::{CliError, bad_size};
use crate::config::{Config, Engine, Size, Windows, joint_pages};
use crate::replay::episodes::{self, EpisodeStates};
use crate::replay::joint;
use crate::replay::report::Report;
use crate::replay::scheduler::{Decode, Drive, Pace, Scheduler};
use crate::replay::tally::Tally;
use crate::service::CacheService;
use crate::telemetry;
use crate::workload::{Generator, Workload};

/// Replay a workload against the service.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// A trace: Mooncake JSON Lines or agentic-session JSON, told apart by content.
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    pub trace: Option<PathBuf>,
    /// What to replay without a trace.
    #[arg(long, value_enum, default_value_t)]
    pub workload: Embedded,
    /// A model preset, or a configuration file.
    #[arg(long, value_name = "PRESET|FILE", default_value = "inkling-reduced")]
    pub model: String,
    /// Arena size in place of the configuration's, such as "64 GiB".
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<String>,
    /// Tokens per page, in place of the configuration's.
    #[arg(long, value_name = "TOKENS")]
    pub page_tokens: Option<u32>,
    /// What holds the bytes, in place of the configuration's.
    #[arg(long, value_enum)]
    pub engine: Option<EngineArg>,
    /// Replay this many requests only.
    #[arg(long, value_name = "N")]
    pub requests: Option<usize>,
    /// `max`, or how many times as fast as recorded.
    #[arg(long, value_name = "X|max", default_value = "max", value_parser = pace, allow_negative_numbers = true)]
    pub speed: Pace,
    /// The most requests that run at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub concurrency: u32,
    /// Prompt tokens computed per request and step.
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = at_least_one)]
    pub chunk: u32,
    /// Prompt tokens computed per step, all requests together.
    #[arg(long, value_name = "TOKENS", default_value_t = 8_192, value_parser = at_least_one)]
    pub step_tokens: u32,
    /// Compute prompts only; decode nothing.
    #[arg(long)]
    pub prompts_only: bool,
    /// Seed of the embedded workload.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Where the episodes store states.
    #[arg(long, value_enum, default_value_t)]
    pub episode_states: EpisodeStates,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Serve Prometheus metrics at this address while the replay runs.
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1:9464")]
    pub metrics: Option<SocketAddr>,
}

/// Workloads that need no file.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Embedded {
    /// Multi-turn conversations with shared system prompts.
    #[default]
    Conversations,
    /// The published pressure experiment.
    Episodes,
    /// The published joint-allocation cases.
    Joint,
}

/// Engines by name.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum EngineArg {
    /// Host memory, every page written, copied and verified.
    Host,
    /// No bytes.
    Accounting,
}

/// Runs the command.
///
/// # Errors
/// [`CliError`] with exit code 2 for input that cannot be used, 1 for a service that fails.
pub async fn run(args: &ReplayArgs, out: &mut impl Write) -> Result<(), CliError> {
    match args.workload {
        Embedded::Conversations => {}
        Embedded::Episodes => return run_episodes(args, out).await,
        Embedded::Joint => return run_joint(args, out).await,
    }
    let config = configure(args)?;
    let mut workload = match &args.trace {
        Some(path) => Workload::read(path)?,
        None => Generator { seed: args.seed, ..Generator::default() }.generate()?,
    };
    workload.truncate(args.requests.unwrap_or(usize::MAX));
    let count = workload.requests().len();
    let source = workload.name().to_owned();
    let service = CacheService::start(config.clone()).await.map_err(CliError::input)?;
    let handle = service.handle();
    if let Some(address) = args.metrics {
        telemetry::serve_metrics(address).map_err(CliError::input)?;
        tokio::spawn(telemetry::publish_every(handle.clone(), Duration::from_secs(1)));
    }
    let progress = progress_bar(count as u64);
    let mut tally = Tally::default();
    let started = std::time::Instant::now();
    let mut scheduler = Scheduler::new(&handle, drive(args, handle.chain()), &mut tally);
    let ran = scheduler.run(workload.requests(), |ended| progress.inc(ended)).await;
    ran.map_err(CliError::service)?;
    let wall = started.elapsed();
    progress.finish_and_clear();
    handle.settle().await.map_err(CliError::service)?;
    let verified = handle.verify().await.map_err(CliError::service)?;
    let stats = handle.stats().await.map_err(CliError::service)?;
    service.stop().await;
    let report = Report::new(&source, &config, &tally, &stats, verified, wall);
    if args.json {
        let text = serde_json::to_string_pretty(&report).map_err(CliError::service)?;
        writeln!(out, "{text}")?;
    } else {
        write!(out, "{report}")?;
    }
    Ok(())
}

async fn run_episodes(args: &ReplayArgs, out: &mut impl Write) -> Result<(), CliError> {
    let rows = episodes::rows().map_err(CliError::input)?;
    let progress = progress_bar(rows.len() as u64);
    let episodes =
        episodes::run(args.episode_states, || progress.inc(1)).await.map_err(CliError::service)?;
    progress.finish_and_clear();
    if args.json {
        let text = serde_json::to_string(&episodes).map_err(CliError::service)?;
        writeln!(out, "{text}")?;
    } else {
        write!(out, "{}", episodes.table())?;
    }
    Ok(())
}

async fn run_joint(args: &ReplayArgs, out: &mut impl Write) -> Result<(), CliError> {
    let cases = joint::run().await.map_err(CliError::service)?;
    if args.json {
        let text = serde_json::to_string(&cases).map_err(CliError::service)?;
        writeln!(out, "{text}")?;
    } else {
        write!(out, "{}", joint::table(&cases))?;
    }
    Ok(())
}

fn configure(args: &ReplayArgs) -> Result<Config, CliError> {
    let mut config = Config::from_model_arg(&args.model)?;
    if let Some(page_tokens) = args.page_tokens {
        config = config.with_page_tokens(Tokens(page_tokens))?;
    }
    if let Some(capacity) = &args.capacity {
        let total = Size::parse(capacity).map_err(bad_size("--capacity"))?;
        config = config.with_capacity(total.bytes())?;
    }
    if let Some(engine) = args.engine {
        config = config.with_engine(match engine {
            EngineArg::Host => Engine::Host,
            EngineArg::Accounting => Engine::Accounting,
        });
    }
    Ok(config)
}

fn drive(args: &ReplayArgs, chain: &Chain) -> Drive {
    let pages = joint_pages(chain, Windows::Every);
    Drive {
        concurrency: args.concurrency as usize,
        running_tokens: u64::from(pages.0) * u64::from(chain.page_tokens().0),
        chunk: Tokens(args.chunk),
        step_tokens: Tokens(args.step_tokens),
        pace: args.speed,
        decode: if args.prompts_only { Decode::PromptsOnly } else { Decode::Answers },
    }
}

/// A bar on a terminal; nothing otherwise.
fn progress_bar(length: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    let template = "{bar:40} {pos}/{len} requests, {per_sec}, {eta} left";
    ProgressStyle::with_template(template).map(|style| bar.clone().with_style(style)).unwrap_or(bar)
}

fn pace(text: &str) -> Result<Pace, String> {
    if text == "max" {
        return Ok(Pace::Max);
    }
    match text.parse::<f64>() {
        Ok(times) if times.is_finite() && times > 0.0 => Ok(Pace::Times(times)),
        _ => Err(format!("`{text}` is neither `max` nor a number above 0")),
    }
}

fn at_least_one(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("`{text}` is not a whole number of at least 1")),
    }
}
