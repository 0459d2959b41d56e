//! One TOML file, checked once: from text with every key optional to a [`Config`] that cannot be wrong.
//!
//! A file is read over the defaults of `config/reference.toml`, the only place that has any. Geometry comes from the
//! file's own `[model]` table, or from a preset that it names. What is refused is refused in one line with file,
//! line, column, key, value and what was expected. The checked form knows nothing of files.

mod capacity;
mod document;
mod error;
mod model;
mod preset;
mod section;
mod size;
mod value;

use std::path::Path;

use kvtide_core::chain::{Chain, ChainError, PoolKind, PoolSpec};
use kvtide_core::unit::{Bytes, Tokens};
use serde::Deserialize;

pub use capacity::{Windows, joint_pages};
pub use error::{ConfigError, Place, Problem};
pub use model::page_bytes;
pub use preset::names as preset_names;
pub use section::{
    CacheConfig, DeviceConfig, PinConfig, QueueConfig, ReclaimConfig, Sections, ServiceConfig,
    StateConfig,
};
pub use size::{Size, SizeError};
pub use value::{Compaction, Dtype, Engine, GrowWord, KindWord, Policy, Prefer, Quota, Track};

use document::{Document, KeyPath, one_line};
use model::{At, RawModel, need};
use section::{
    RawCache, RawDevice, RawPin, RawQueue, RawReclaim, RawSections, RawService, RawState, TABLES,
};
use value::Sink;

/// A checked configuration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Config {
    /// The model's name, for people.
    pub model: String,
    /// The pools over the arena.
    pub chain: Chain,
    /// Everything that tunes the service.
    pub sections: Sections,
}

/// The reference, with all defaults.
const REFERENCE: Document<'static> = Document {
    name: "config/reference.toml",
    text: include_str!("../../../config/reference.toml"),
};

/// Tables whose keys a scenario's `cache` object may set.
const FLAT_TABLES: &[&str] = &["cache", "reclaim", "state", "pin", "queue"];

/// A file as read.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawFile {
    arena: RawArena,
    model: RawModel,
    cache: RawCache,
    reclaim: RawReclaim,
    state: RawState,
    pin: RawPin,
    queue: RawQueue,
    device: RawDevice,
    service: RawService,
}

/// `[arena]` as read.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawArena {
    total_bytes: Option<Size>,
    sink_bytes: Option<Sink>,
}

impl RawFile {
    fn split(self) -> (RawArena, RawModel, RawSections) {
        let RawFile { arena, model, cache, reclaim, state, pin, queue, device, service } = self;
        (arena, model, RawSections { cache, reclaim, state, pin, queue, device, service })
    }
}

impl Config {
    /// The preset `name`, with its default capacity.
    ///
    /// # Errors
    /// [`ConfigError::UnknownModel`].
    pub fn from_preset(name: &str) -> Result<Self, ConfigError> {
        let unknown = || ConfigError::UnknownModel { name: name.to_owned() };
        Self::from_document(preset::document(name).ok_or_else(unknown)?)
    }

    /// The file at `path`.
    ///
    /// # Errors
    /// [`ConfigError::Read`] and [`ConfigError::Invalid`].
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// What a command line's argument names: a preset, or else a file.
    ///
    /// # Errors
    /// As [`Config::load`]; [`ConfigError::UnknownModel`] if the argument does not even look like a file.
    pub fn from_model_arg(argument: &str) -> Result<Self, ConfigError> {
        let path = Path::new(argument);
        if preset::document(argument).is_some() {
            Self::from_preset(argument)
        } else if path.exists() || path.components().count() > 1 || argument.ends_with(".toml") {
            Self::load(path)
        } else {
            Err(ConfigError::UnknownModel { name: argument.to_owned() })
        }
    }

    /// The file whose text is `text`; errors call it `file`.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`].
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        Self::from_document(Document { name: file, text })
    }

    /// Pools that no file describes, everything else by default.
    ///
    /// `sink` is the bytes at the bottom that no page may use: the largest page unless given.
    ///
    /// # Errors
    /// [`ConfigError::Chain`].
    pub fn from_pools(
        model: &str,
        total: Bytes,
        page_tokens: Tokens,
        sink: Option<Bytes>,
        pools: Vec<PoolSpec>,
    ) -> Result<Self, ConfigError> {
        let chain = Chain::new(total, page_tokens, sink, pools)?;
        Ok(Config { model: model.to_owned(), chain, sections: Sections::reference()? })
    }

    /// The same over an arena of `total` bytes.
    ///
    /// # Errors
    /// [`ConfigError::Chain`]: too small, or too large for the pages to be numbered.
    pub fn with_capacity(self, total: Bytes) -> Result<Self, ConfigError> {
        let old = &self.chain;
        let pools = old.pool_ids().map(|pool| old.pool(pool).clone()).collect();
        let chain = Chain::new(total, old.page_tokens(), Some(old.sink()), pools)?;
        Ok(Config { chain, ..self })
    }

    /// The same with pages of `page_tokens` tokens; the sink is the largest page again.
    ///
    /// # Errors
    /// [`ConfigError::Chain`]: a page of no tokens, or larger than the arena allows.
    pub fn with_page_tokens(self, page_tokens: Tokens) -> Result<Self, ConfigError> {
        let old = &self.chain;
        let pools = old.pool_ids().map(|pool| {
            let mut spec = old.pool(pool).clone();
            if spec.kind != PoolKind::State {
                let entry = spec.page_bytes.0 / u64::from(old.page_tokens().0);
                spec.page_bytes = Bytes(entry.saturating_mul(u64::from(page_tokens.0)));
            }
            spec
        });
        let chain = Chain::new(old.total(), page_tokens, None, pools.collect())?;
        Ok(Config { chain, ..self })
    }

    /// The same with its bytes elsewhere.
    #[must_use]
    pub fn with_engine(mut self, engine: Engine) -> Self {
        self.sections.device.engine = engine;
        self
    }

    /// Sets one key of the tables `cache`, `reclaim`, `state`, `pin` and `queue`, named `key` or `table.key`, as a
    /// scenario's header does.
    ///
    /// # Errors
    /// [`ConfigError::UnknownKey`] and [`ConfigError::InvalidValue`]; nothing changed.
    pub fn apply_flat_key(
        &mut self,
        key: &str,
        value: &serde_json::Value,
    ) -> Result<(), ConfigError> {
        let (table, bare) = resolve_flat_key(key)?;
        let invalid = |problem: String| ConfigError::InvalidValue {
            key: format!("{table}.{bare}"),
            value: value.to_string(),
            problem: Problem::Parse(one_line(&problem)),
        };
        if value.is_null() {
            return Err(invalid("null is no value".to_owned()));
        }
        let nested = serde_json::json!({ table: { bare: value } });
        let raw = RawSections::deserialize(nested).map_err(|error| invalid(error.to_string()))?;
        raw.overlay(&mut self.sections);
        Ok(())
    }

    fn from_document(document: Document<'_>) -> Result<Self, ConfigError> {
        let (arena, model, sections) = document.read::<RawFile>()?.split();
        let (default_arena, default_model, _) = REFERENCE.read::<RawFile>()?.split();
        let mut tuning = Sections::reference()?;
        sections.overlay(&mut tuning);
        let geometry = geometry(arena, model, default_arena, default_model);
        let (model, chain) =
            geometry.map_err(|(path, problem)| document.invalid(&path, problem))?;
        Ok(Config { model, chain, sections: tuning })
    }
}

impl Sections {
    /// The defaults of `config/reference.toml`.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if the reference lacks a key; a test keeps it whole.
    pub fn reference() -> Result<Self, ConfigError> {
        let (_, _, sections) = REFERENCE.read::<RawFile>()?.split();
        sections.complete().map_err(|(table, key)| {
            let missing = Problem::Missing { key, expected: "the default" };
            REFERENCE.invalid(&KeyPath::keys(&[table]), missing)
        })
    }
}

/// The table and key that a flat key means.
fn resolve_flat_key(key: &str) -> Result<(&'static str, &'static str), ConfigError> {
    let flat = || TABLES.iter().filter(|(table, _)| FLAT_TABLES.contains(table));
    let all = || flat().flat_map(|(table, keys)| keys.iter().map(move |key| (*table, *key)));
    let mut matches = all().filter(|(table, bare)| match key.split_once('.') {
        Some((wanted, rest)) => wanted == *table && rest == *bare,
        None => key == *bare,
    });
    match (matches.next(), matches.next()) {
        (Some(found), None) => Ok(found),
        _ => Err(ConfigError::UnknownKey {
            key: key.to_owned(),
            expected: all()
                .map(|(table, key)| format!("{table}.{key}"))
                .collect::<Vec<_>>()
                .join(", "),
        }),
    }
}

/// The model's name and its chain; a preset that the file names gives what the file does not.
fn geometry(
    arena: RawArena,
    model: RawModel,
    default_arena: RawArena,
    default_model: RawModel,
) -> Result<(String, Chain), At> {
    let path = KeyPath::keys(&["model"]);
    let (preset_arena, preset_model) = match &model.preset {
        Some(preset) if model.pools.is_none() => named_preset(preset)?,
        Some(_) => {
            let problem = Problem::OutOfPlace { key: "preset", beside: "beside pools" };
            return Err((path.key("preset"), problem));
        }
        None => Default::default(),
    };
    let name = need(model.name.or(preset_model.name), &path, "name", "the model's name")?;
    let page_tokens = model.page_tokens.or(preset_model.page_tokens).or(default_model.page_tokens);
    let page_tokens = need(page_tokens, &path, "page_tokens", "the tokens of a page")?;
    let page_tokens = Tokens(page_tokens.0);
    let pools = model.pools.or(preset_model.pools);
    let pools =
        need(pools, &path, "pools", "one table [[model.pools]] for each pool, or `preset`")?;
    let path = path.key("pools");
    let pools: Vec<PoolSpec> = pools
        .into_iter()
        .enumerate()
        .map(|(index, pool)| pool.check(&path.index(index), page_tokens))
        .collect::<Result<_, At>>()?;
    let arena_path = KeyPath::keys(&["arena"]);
    let total = arena.total_bytes.or(preset_arena.total_bytes);
    let total = need(total, &arena_path, "total_bytes", "the arena's size, such as \"64 GiB\"")?;
    let sink = arena.sink_bytes.or(preset_arena.sink_bytes).or(default_arena.sink_bytes);
    let sink = sink.and_then(|sink| sink.0);
    let names: Vec<String> = pools.iter().map(|pool| pool.name.clone()).collect();
    let chain = Chain::new(total.bytes(), page_tokens, sink, pools)
        .map_err(|error| (blame(&error, &names), Problem::Chain(error)))?;
    Ok((name, chain))
}

fn named_preset(name: &str) -> Result<(RawArena, RawModel), At> {
    let at = || (KeyPath::keys(&["model", "preset"]), Problem::UnknownPreset);
    let document = preset::document(name).ok_or_else(at)?;
    let (arena, model, _) = document
        .read::<RawFile>()
        .map_err(|error| (KeyPath::keys(&["model", "preset"]), Problem::Parse(error.to_string())))?
        .split();
    Ok((arena, model))
}

/// The key that a chain's error is about.
fn blame(error: &ChainError, names: &[String]) -> KeyPath {
    let pools = KeyPath::keys(&["model", "pools"]);
    let pool = |name: &String| {
        // The last of that name: where two share one, the second is the one too many.
        names.iter().rposition(|known| known == name).map_or(pools.clone(), |at| pools.index(at))
    };
    match error {
        ChainError::NoPools | ChainError::TooManyPools(_) => pools,
        ChainError::SameName(name) => pool(name).key("name"),
        ChainError::Zero { pool: name, .. } => pool(name),
        ChainError::SameEnd { second, .. } => pool(second).key("grow"),
        ChainError::TwoFull { second, .. } => pool(second).key("kind"),
        ChainError::NoFull(name) => pool(name).key("kind"),
        ChainError::SmallSink { .. } => KeyPath::keys(&["arena", "sink_bytes"]),
        ChainError::NoRoom { .. } | ChainError::TooManyPages { .. } => {
            KeyPath::keys(&["arena", "total_bytes"])
        }
    }
}

#[cfg(test)]
mod tests;
