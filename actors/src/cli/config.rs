//! `kvtide config`: checks a configuration and prints what follows from it.

use std::io::Write;

use clap::Args;
use kvtide_core::chain::{Chain, Grow, PoolKind};
use kvtide_core::unit::{Bytes, Pages, PoolId};
use serde::Serialize;

use super::error::{CliError, bad_size};
use crate::config::{Config, Sections, Size, Windows, joint_pages};

/// Check a configuration and print it with its derived geometry.
#[derive(Args, Clone, Debug)]
pub struct ConfigArgs {
    /// A TOML file, or a preset: llama-3.1-8b, mellum2, qwen3.5-4b, inkling-reduced, inkling-small.
    #[arg(value_name = "FILE|PRESET")]
    pub config: String,
    /// Check only, and print one line.
    #[arg(long)]
    pub check: bool,
    /// Arena size in place of the configuration's, such as "64 GiB".
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
///
/// # Errors
/// [`CliError::Input`] and [`CliError::Option`] for a configuration that cannot be used; [`CliError::Output`].
pub fn run(args: &ConfigArgs, out: &mut impl Write) -> Result<(), CliError> {
    let mut config = Config::from_model_arg(&args.config)?;
    if let Some(capacity) = &args.capacity {
        let total = Size::parse(capacity).map_err(bad_size("--capacity"))?;
        config = config.with_capacity(total.bytes())?;
    }
    let report = Report::new(&config);
    match (args.check, args.json) {
        (true, true) => {
            writeln!(out, "{}", serde_json::json!({ "ok": true, "model": config.model }))?
        }
        (true, false) => writeln!(out, "{}: ok", args.config)?,
        (false, true) => {
            let text = serde_json::to_string_pretty(&report).map_err(CliError::service)?;
            writeln!(out, "{text}")?;
        }
        (false, false) => report.write(out)?,
    }
    Ok(())
}

/// What follows from a configuration.
#[derive(Serialize)]
struct Report {
    model: String,
    total_bytes: u64,
    sink_bytes: u64,
    page_tokens: u32,
    pools: Vec<PoolReport>,
    together: JointReport,
    settings: serde_json::Map<String, serde_json::Value>,
}

/// One pool by itself.
#[derive(Serialize)]
struct PoolReport {
    name: String,
    kind: &'static str,
    grow: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_tokens: Option<u32>,
    page_bytes: u64,
    grid_pages: u32,
    first_page: u32,
    usable_pages: u32,
    /// Tokens, of a token pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_tokens: Option<u64>,
}

/// All token pools filled at once, beside one slot of every state pool.
#[derive(Serialize)]
struct JointReport {
    pages: u32,
    tokens: u64,
    /// The same where only the trailing window of one sequence keeps its window pages.
    window_tail_pages: u32,
    window_tail_tokens: u64,
}

impl Report {
    fn new(config: &Config) -> Self {
        let chain = &config.chain;
        let every = joint_pages(chain, Windows::Every);
        let tail = joint_pages(chain, Windows::Tail);
        Report {
            model: config.model.clone(),
            total_bytes: chain.total().0,
            sink_bytes: chain.sink().0,
            page_tokens: chain.page_tokens().0,
            pools: chain.pool_ids().map(|pool| PoolReport::new(chain, pool)).collect(),
            together: JointReport {
                pages: every.0,
                tokens: tokens(chain, every),
                window_tail_pages: tail.0,
                window_tail_tokens: tokens(chain, tail),
            },
            settings: settings(&config.sections),
        }
    }

    fn write(&self, out: &mut impl Write) -> Result<(), CliError> {
        let Report { model, total_bytes, sink_bytes, page_tokens, .. } = self;
        writeln!(out, "model        {model}")?;
        writeln!(out, "arena        {}", with_unit(Bytes(*total_bytes)))?;
        writeln!(out, "sink         {}", with_unit(Bytes(*sink_bytes)))?;
        writeln!(out, "page         {page_tokens} tokens")?;
        writeln!(out)?;
        writeln!(
            out,
            "{:<12} {:<7} {:<6} {:>14} {:>11} {:>11} {:>12} {:>13}",
            "pool",
            "kind",
            "grow",
            "page bytes",
            "grid pages",
            "first page",
            "usable pages",
            "tokens alone"
        )?;
        for pool in &self.pools {
            let PoolReport { name, kind, grow, page_bytes, grid_pages, first_page, .. } = pool;
            let alone = pool.capacity_tokens.map_or("-".to_owned(), |tokens| tokens.to_string());
            writeln!(
                out,
                "{name:<12} {kind:<7} {grow:<6} {page_bytes:>14} {grid_pages:>11} {first_page:>11} {:>12} {alone:>13}",
                pool.usable_pages
            )?;
        }
        writeln!(out)?;
        self.write_together(out)?;
        for (key, value) in &self.settings {
            writeln!(out, "{key} = {}", value.as_str().unwrap_or_default())?;
        }
        Ok(())
    }

    fn write_together(&self, out: &mut impl Write) -> Result<(), CliError> {
        let JointReport { pages, tokens, window_tail_pages, window_tail_tokens } = self.together;
        if self.pools.iter().all(|pool| pool.kind == "state") {
            writeln!(out, "together     {pages} slots of every pool")?;
        } else {
            let slot = if self.pools.iter().any(|pool| pool.kind == "state") {
                " and one state"
            } else {
                ""
            };
            writeln!(out, "together     {pages} pages of every token pool{slot}: {tokens} tokens")?;
        }
        if self.pools.iter().any(|pool| pool.kind == "window") {
            writeln!(
                out,
                "one sequence {window_tail_pages} pages with its window's tail only: {window_tail_tokens} tokens"
            )?;
        }
        writeln!(out)?;
        Ok(())
    }
}

impl PoolReport {
    fn new(chain: &Chain, pool: PoolId) -> Self {
        let spec = chain.pool(pool);
        let usable = chain.pages_max(pool);
        let (kind, window_tokens) = match spec.kind {
            PoolKind::Full => ("full", None),
            PoolKind::Window { window } => ("window", Some(window.0)),
            PoolKind::State => ("state", None),
        };
        PoolReport {
            name: spec.name.clone(),
            kind,
            grow: match spec.grow {
                Grow::Up => "up",
                Grow::Float => "float",
                Grow::Down => "down",
            },
            window_tokens,
            page_bytes: spec.page_bytes.0,
            grid_pages: chain.grid_pages(pool).0,
            first_page: chain.first_page(pool).0,
            usable_pages: usable.0,
            capacity_tokens: (kind != "state").then(|| tokens(chain, usable)),
        }
    }
}

fn tokens(chain: &Chain, pages: Pages) -> u64 {
    let page_tokens = if chain.full().is_some() { chain.page_tokens().0 } else { 0 };
    u64::from(pages.0) * u64::from(page_tokens)
}

/// Every setting in force, as a file would say it.
fn settings(sections: &Sections) -> serde_json::Map<String, serde_json::Value> {
    let Sections { cache, reclaim, state, queue, device, service } = sections;
    let cap = state.max_per_path.map_or("none".to_owned(), |cap| cap.to_string());
    let pairs = [
        ("cache.compaction", cache.compaction.word().to_owned()),
        ("cache.policy", cache.policy.word().to_owned()),
        ("cache.slru_protected_hits", cache.slru_protected_hits.to_string()),
        ("cache.tlru_latency_tokens", cache.tlru_latency_tokens.to_string()),
        ("cache.tlru_next_prompt_tokens", cache.tlru_next_prompt_tokens.to_string()),
        ("cache.max_sessions", cache.max_sessions.to_string()),
        ("reclaim.prefer", reclaim.prefer.word().to_owned()),
        ("reclaim.quota", reclaim.quota.to_string()),
        ("state.max_per_path", cap),
        ("state.track", state.track.word().to_owned()),
        ("queue.capacity", queue.capacity.to_string()),
        ("queue.max_bypass_ms", queue.max_bypass.as_millis().to_string()),
        ("device.engine", device.engine.word().to_owned()),
        ("device.max_pages_per_launch", device.max_pages_per_launch.to_string()),
        ("device.copy_timeout_ms", device.copy_timeout.as_millis().to_string()),
        ("device.queue_depth", device.queue_depth.to_string()),
        ("service.mailbox", service.mailbox.to_string()),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect()
}

/// Bytes, and the same in the largest binary unit that they reach.
fn with_unit(bytes: Bytes) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes.0 >> shift > 0) {
        Some((unit, shift)) => {
            let hundredths = (u128::from(bytes.0) * 100) >> shift;
            format!("{bytes} ({}.{:02} {unit})", hundredths / 100, hundredths % 100)
        }
        None => bytes.to_string(),
    }
}
