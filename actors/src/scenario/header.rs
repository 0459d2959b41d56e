//! The first line: an arena and how its cache is to behave.

use std::path::{Path, PathBuf};

use kvtide_core::chain::{Chain, Grow, PoolKind, PoolSpec};
use kvtide_core::unit::{Bytes, Pages, Tokens};

use super::json::{Fields, Node};
use super::place::{Place, Problem, ScenarioError};
use crate::device::EngineKind;

/// What a scenario runs against.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// What it is called; the file's stem unless given.
    pub name: String,
    /// Where the arena's bytes are.
    pub engine: EngineKind,
    /// The arena and its pools.
    pub arena: Arena,
    /// Configuration keys in the order given, not yet understood.
    pub cache: Vec<CacheKey>,
    /// Where the header stands.
    pub place: Place,
}

/// An arena, in the header or in a file of its own.
#[derive(Clone, Debug, PartialEq)]
pub enum Arena {
    /// Spelled out.
    Inline(Box<InlineArena>),
    /// In a configuration file.
    Config {
        /// The file, already relative to the scenario's directory.
        path: PathBuf,
        /// Where it is named.
        place: Place,
    },
}

/// An arena spelled out in a header.
#[derive(Clone, Debug, PartialEq)]
pub struct InlineArena {
    /// Bytes of the arena.
    pub total_bytes: Bytes,
    /// Tokens of a token page.
    pub page_tokens: Tokens,
    /// Bytes at the bottom that no page may use, if not the largest page.
    pub sink_bytes: Option<Bytes>,
    /// The pools in the order given.
    pub pools: Vec<PoolHeader>,
    /// All of it, checked, in byte order.
    pub chain: Chain,
}

/// A pool spelled out in a header.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PoolHeader {
    /// Names the pool in demands, outcomes and expectations.
    pub name: String,
    /// What it stores.
    pub kind: PoolKind,
    /// Where it lies.
    pub grow: Grow,
    /// Bytes of one token, or of one slot of a state pool.
    pub entry_bytes: Bytes,
    /// A cap on the pool's pages and ids.
    pub max_pages: Option<Pages>,
}

/// One key of the header's `cache` table.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheKey {
    /// Bare or dotted, as it stands.
    pub key: String,
    /// Its value.
    pub value: serde_json::Value,
    /// Where the value stands: report an unknown key or a bad value there.
    pub place: Place,
}

impl Header {
    pub(super) fn parse(fields: Fields<'_>) -> Result<Self, ScenarioError> {
        let fields = fields.only(&[&["scenario", "name", "engine", "arena", "cache"]])?;
        let version = fields.need("scenario")?;
        if version.value()? != VERSION {
            return Err(version.wrong(format!("the version {VERSION}")));
        }
        let file = fields.node().file();
        let name = match fields.find("name") {
            Some(name) => name.string()?,
            None => file.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        };
        let kinds = EngineKind::ALL.map(|kind| (kind.as_str(), kind));
        let engine = fields.find("engine").map(|engine| engine.word(&kinds)).transpose()?;
        let arena = Arena::parse(fields.need("arena")?.object()?)?;
        let cache = fields.find("cache").map(CacheKey::parse_all).transpose()?;
        Ok(Header {
            name,
            engine: engine.unwrap_or_default(),
            arena,
            cache: cache.unwrap_or_default(),
            place: fields.node().place(),
        })
    }
}

impl Arena {
    fn parse(fields: Fields<'_>) -> Result<Self, ScenarioError> {
        let fields =
            fields.only(&[&["config"], &["total_bytes", "page_tokens", "sink_bytes", "pools"]])?;
        let Some(config) = fields.find("config") else {
            return InlineArena::parse(&fields).map(|arena| Arena::Inline(Box::new(arena)));
        };
        for key in ["total_bytes", "page_tokens", "sink_bytes", "pools"] {
            fields.without(key, "`config`, whose file has it")?;
        }
        let directory = config.file().parent().unwrap_or(Path::new(""));
        Ok(Arena::Config { path: directory.join(config.name()?), place: config.place() })
    }
}

impl InlineArena {
    fn parse(fields: &Fields<'_>) -> Result<Self, ScenarioError> {
        let total_bytes = Bytes(fields.need("total_bytes")?.positive_u64()?);
        let page_tokens = Tokens(fields.need("page_tokens")?.positive_u32()?);
        let sink_bytes = fields.find("sink_bytes").map(Node::u64).transpose()?.map(Bytes);
        let list = fields.need("pools")?;
        let mut pools = Vec::new();
        let mut specs = Vec::new();
        for item in list.array()? {
            let (pool, entry_bytes) = PoolHeader::parse(item)?;
            let page_bytes = pool.page_bytes(page_tokens).ok_or_else(|| {
                let wanted = "a number whose product with page_tokens is below 2^64";
                entry_bytes.wrong(wanted)
            })?;
            specs.push(PoolSpec {
                name: pool.name.clone(),
                kind: pool.kind,
                grow: pool.grow,
                page_bytes,
                pages_max: pool.max_pages,
            });
            pools.push(pool);
        }
        let chain = Chain::new(total_bytes, page_tokens, sink_bytes, specs);
        let chain = chain.map_err(|error| list.error(Problem::Chain(error)))?;
        Ok(InlineArena { total_bytes, page_tokens, sink_bytes, pools, chain })
    }
}

impl PoolHeader {
    /// Bytes of one page, where they fit 64 bits.
    #[must_use]
    pub fn page_bytes(&self, page_tokens: Tokens) -> Option<Bytes> {
        let entries = match self.kind {
            PoolKind::Full | PoolKind::Window { .. } => u64::from(page_tokens.0),
            PoolKind::State => 1,
        };
        self.entry_bytes.0.checked_mul(entries).map(Bytes)
    }

    /// A pool, and where its entry bytes stand.
    fn parse(node: Node<'_>) -> Result<(Self, Node<'_>), ScenarioError> {
        let known = ["name", "kind", "grow", "entry_bytes", "window_tokens", "max_pages"];
        let fields = node.object()?.only(&[&known])?;
        let kind = match fields.need("kind")?.word(&KINDS)? {
            PoolKind::Window { .. } => {
                PoolKind::Window { window: Tokens(fields.need("window_tokens")?.positive_u32()?) }
            }
            kind => {
                fields.without("window_tokens", "a pool that is not of kind \"window\"")?;
                kind
            }
        };
        let entry_bytes = fields.need("entry_bytes")?;
        let pool = PoolHeader {
            name: fields.need("name")?.name()?,
            kind,
            grow: fields.need("grow")?.word(&GROWS)?,
            entry_bytes: Bytes(entry_bytes.positive_u64()?),
            max_pages: fields.find("max_pages").map(Node::positive_u32).transpose()?.map(Pages),
        };
        Ok((pool, entry_bytes))
    }
}

impl CacheKey {
    fn parse_all(node: Node<'_>) -> Result<Vec<Self>, ScenarioError> {
        let fields = node.object()?;
        let parse = |member: &super::json::Member<'_>| {
            let (key, value) = (member.name.clone(), member.value.value()?);
            Ok(CacheKey { key, value, place: member.value.place() })
        };
        fields.members().iter().map(parse).collect()
    }
}

const VERSION: u32 = 1;

/// A window's tokens have a key of their own.
const KINDS: [(&str, PoolKind); 3] = [
    ("full", PoolKind::Full),
    ("window", PoolKind::Window { window: Tokens(0) }),
    ("state", PoolKind::State),
];

const GROWS: [(&str, Grow); 3] = [("up", Grow::Up), ("down", Grow::Down), ("float", Grow::Float)];
