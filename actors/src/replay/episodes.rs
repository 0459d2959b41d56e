//! The published pressure experiment: how much of two hot prefixes survives a run of cold requests.
//!
//! Per row: a fresh cache; two independent hot prefixes; distinct cold requests of 512 tokens; then both hot prefixes
//! again, the oldest or the most recent first. Requests run one after the other, each as an engine drives it: match on
//! at most length − 1, lock, per chunk of 512 allocate and then publish, decode 32 tokens with a page only when one is
//! needed, finish. What counts is the tokens that both revisits find cached. Rows and the figures to compare with:
//! `config/episodes.csv` (published before and after, and what page-granular LRU with exact fit reaches).

use std::fmt::Write;

use kvtide_core::unit::{Bytes, Token, Tokens};
use serde::Serialize;

use crate::config::Config;
use crate::error::AllocError;
use crate::handle::{CacheHandle, OpenOptions};
use crate::message::Publishing;
use crate::service::CacheService;

/// One row of the experiment and its outcome.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Episode {
    /// Preset.
    pub model: String,
    /// What the arena's size is called by.
    pub nominal_cap_tokens: u32,
    /// Tokens of each hot prefix.
    pub hot_prefix_tokens: u32,
    /// Cold requests between the visits.
    pub cold_requests: u32,
    /// `oldest` or `recent`: which prefix is revisited first.
    pub revisit_order: String,
    /// Cached tokens over both revisits.
    pub cached: u32,
    /// Published, before the change.
    #[serde(skip)]
    pub published_before: u32,
    /// Published, after it.
    #[serde(skip)]
    pub published_after: u32,
    /// Page-granular LRU with exact fit.
    #[serde(skip)]
    pub page_granular: u32,
}

/// All rows, as `--json` prints them.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Episodes {
    /// In the order of the table.
    pub episodes: Vec<Episode>,
}

/// Why the experiment could not be run.
#[derive(Debug, thiserror::Error)]
pub enum EpisodeError {
    /// The embedded table has a row that cannot be read.
    #[error("row {row} of the episodes table: {what}")]
    Row {
        /// Its number, from 1.
        row: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// No arena size is known for a model and nominal cap.
    #[error("no arena size for {model} with a nominal cap of {cap} tokens")]
    NoArena {
        /// The preset.
        model: String,
        /// The cap.
        cap: u32,
    },
    /// The preset does not give a configuration.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The service did not start.
    #[error(transparent)]
    Start(#[from] crate::error::StartError),
    /// A request failed.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

const TABLE: &str = include_str!("../../../config/episodes.csv");

/// Arena bytes by preset and nominal token cap.
const ARENAS: [(&str, u32, u64); 5] = [
    ("mellum2", 4_096, 196_345_856),
    ("mellum2", 8_192, 398_196_736),
    ("mellum2", 16_384, 796_393_472),
    ("inkling-reduced", 4_096, 61_865_984),
    ("inkling-reduced", 8_192, 105_906_176),
];

const COLD_TOKENS: u32 = 512;
const CHUNK: u32 = 512;
const OUTPUT_TOKENS: u32 = 32;
/// Tokens between state checkpoints, where the model has state.
const STATE_EVERY: u32 = 128;

/// At which multiples of 128 tokens a prompt's state is stored.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub enum EpisodeStates {
    /// Where the prompt itself could be matched again: inside it. A match never covers a prompt's last token, so a state
    /// at the very end serves longer prompts only; the one before it serves those (128 tokens short) and this one.
    #[default]
    Inside,
    /// At the prompt's very end as well.
    Every,
}

/// The table's rows, their outcomes still to come.
///
/// # Errors
/// [`EpisodeError::Row`].
pub fn rows() -> Result<Vec<Episode>, EpisodeError> {
    TABLE.lines().enumerate().skip(1).map(|(index, line)| parse_row(index, line)).collect()
}

fn parse_row(row: usize, line: &str) -> Result<Episode, EpisodeError> {
    let fields: Vec<&str> = line.split(',').collect();
    let [model, cap, hot, cold, order, before, after, granular] = fields[..] else {
        return Err(EpisodeError::Row { row, what: "eight fields expected" });
    };
    let number = |field: &str| {
        field.parse().map_err(|_| EpisodeError::Row { row, what: "a number expected" })
    };
    Ok(Episode {
        model: model.to_owned(),
        nominal_cap_tokens: number(cap)?,
        hot_prefix_tokens: number(hot)?,
        cold_requests: number(cold)?,
        revisit_order: order.to_owned(),
        cached: 0,
        published_before: number(before)?,
        published_after: number(after)?,
        page_granular: number(granular)?,
    })
}

/// Runs every row; `done` is told after each.
///
/// # Errors
/// [`EpisodeError`].
pub async fn run(states: EpisodeStates, mut done: impl FnMut()) -> Result<Episodes, EpisodeError> {
    let mut episodes = rows()?;
    for episode in &mut episodes {
        episode.cached = run_row(episode, states).await?;
        done();
    }
    Ok(Episodes { episodes })
}

async fn run_row(episode: &Episode, states: EpisodeStates) -> Result<u32, EpisodeError> {
    let (model, cap) = (episode.model.as_str(), episode.nominal_cap_tokens);
    let arena = ARENAS.iter().find(|(name, tokens, _)| *name == model && *tokens == cap);
    let Some(&(.., bytes)) = arena else {
        return Err(EpisodeError::NoArena { model: model.to_owned(), cap });
    };
    let config = Config::from_preset(model)?
        .with_capacity(Bytes(bytes))?
        .with_engine(crate::config::Engine::Accounting);
    let service = CacheService::start(config).await?;
    let handle = service.handle();
    let hot = |which: u32| {
        let start = (which + 1) * 1_000_000;
        (start..start + episode.hot_prefix_tokens).collect::<Vec<Token>>()
    };
    let mut serial = Serial { handle: &handle, states, served: 0 };
    for which in 0..2 {
        serial.serve(hot(which)).await?;
    }
    for cold in 0..episode.cold_requests {
        let start = 10_000_000 + cold * 10_000;
        serial.serve((start..start + COLD_TOKENS).collect()).await?;
    }
    let order = if episode.revisit_order == "oldest" { [0, 1] } else { [1, 0] };
    let mut cached = 0;
    for which in order {
        cached += serial.serve(hot(which)).await?;
    }
    handle.verify().await?;
    service.stop().await;
    Ok(cached)
}

/// Serves one request after the other.
struct Serial<'a> {
    handle: &'a CacheHandle,
    states: EpisodeStates,
    served: u32,
}

impl Serial<'_> {
    /// Serves a request to its end; the tokens that it found cached.
    async fn serve(&mut self, prompt: Vec<Token>) -> Result<u32, AllocError> {
        let length = prompt.len() as u32;
        let stateful = !self.handle.chain().states().is_empty();
        let stride = if stateful { STATE_EVERY } else { CHUNK };
        let mut sequence = self.handle.open(prompt, OpenOptions::default()).await?;
        let matched = sequence.matched().tokens.0;
        let mut computed = matched;
        while computed < length {
            let count = (length - computed).min(stride - computed % stride);
            sequence.extend(Some(Tokens(count)), None).await?;
            computed += count;
            let stored = computed < length || self.states == EpisodeStates::Every;
            let publishing = if stored { Publishing::PagesAndState } else { Publishing::Pages };
            sequence.checkpoint(publishing, None).await?;
        }
        let first = 100_000_000 + self.served * 1_000;
        for token in first..first + OUTPUT_TOKENS {
            if let Some(error) = sequence.append(vec![token], None).await?.stopped {
                return Err(error);
            }
        }
        sequence.finish(Publishing::PagesAndState).await?;
        self.served += 1;
        Ok(matched)
    }
}

impl Episodes {
    /// The rows beside the published figures, and their totals.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::from(
            "model            cap    hot   cold  revisit  before  after  page-lru  kvtide\n",
        );
        let mut line = |row: &Episode, label: &str| {
            let _ = writeln!(
                text,
                "{label:<16} {:>6} {:>5} {:>5}  {:<7} {:>6} {:>6} {:>9} {:>7}",
                row.nominal_cap_tokens,
                row.hot_prefix_tokens,
                row.cold_requests,
                row.revisit_order,
                row.published_before,
                row.published_after,
                row.page_granular,
                row.cached,
            );
        };
        for row in &self.episodes {
            line(row, &row.model);
        }
        for model in ["mellum2", "inkling-reduced", ""] {
            let total = |field: fn(&Episode) -> u32| -> u32 {
                self.episodes.iter().filter(|row| row.model.contains(model)).map(field).sum()
            };
            let label = if model.is_empty() { "all" } else { model };
            let _ = writeln!(
                text,
                "total {label:<35} {:>6} {:>6} {:>9} {:>7}",
                total(|row| row.published_before),
                total(|row| row.published_after),
                total(|row| row.page_granular),
                total(|row| row.cached),
            );
        }
        text
    }
}
