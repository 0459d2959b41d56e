//! Agentic sessions: one JSON object for the session of a coding agent, block ids local to the file.
//!
//! `requests` holds the main agent's requests. A sub-agent's stand in a list of their own, either bare or under the
//! key `requests` of an entry, with times that count from the session's start as well; each such list is a session of
//! its own. Block ids name whole blocks, so a prompt's last tokens may have none: these are text of their own.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{
    self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor, value,
};

use super::builder::{Builder, Entry};
use super::error::WorkloadError;
use super::text::Blocks;

/// The one key that all else depends on, wherever it stands.
#[derive(Deserialize)]
struct Header {
    block_size: u32,
}

/// Adds the requests of `text` to `builder`.
///
/// # Errors
/// [`WorkloadError::Invalid`] just past the first bad request, [`WorkloadError::Empty`].
pub(super) fn read(file: &str, text: &str, builder: &mut Builder) -> Result<(), WorkloadError> {
    let invalid = |error: serde_json::Error| WorkloadError::json(file, 0, &error);
    let Header { block_size } = serde_json::from_str(text).map_err(invalid)?;
    let mut json = serde_json::Deserializer::from_str(text);
    let session = SessionSeed { block_size }.deserialize(&mut json).map_err(invalid)?;
    let mut blocks = Blocks::new(block_size);
    let before = builder.len();
    add(session, &mut blocks, builder)?;
    if builder.len() == before {
        return Err(WorkloadError::Empty { file: file.to_owned() });
    }
    Ok(())
}

/// Adds one agent's requests as one session, and those of its sub-agents as others.
fn add(items: Vec<Item>, blocks: &mut Blocks, builder: &mut Builder) -> Result<(), WorkloadError> {
    let session = builder.new_session();
    for item in items {
        match item {
            Item::Request(mut entry) => {
                entry.session = Some(session);
                builder.add(entry, blocks)?;
            }
            Item::SubAgent(items) => add(items, blocks, builder)?,
        }
    }
    Ok(())
}

/// What a list of requests holds.
enum Item {
    Request(Entry),
    SubAgent(Vec<Item>),
}

/// One entry as read.
#[derive(Deserialize)]
struct RawEntry {
    t: Option<f64>,
    #[serde(rename = "in")]
    input: Option<u32>,
    #[serde(rename = "out")]
    output: Option<u32>,
    hash_ids: Option<Ids>,
    requests: Option<RawList>,
}

/// An entry, or a list of them.
enum RawItem {
    Entry(Box<RawEntry>),
    List(Vec<RawItem>),
}

/// A list of entries.
#[derive(Deserialize)]
#[serde(transparent)]
struct RawList(Vec<RawItem>);

/// Block ids, lists within lists read as one.
struct Ids(Vec<u64>);

impl RawItem {
    fn check(self, block_size: u32) -> Result<Vec<Item>, String> {
        match self {
            RawItem::List(items) => Ok(vec![Item::SubAgent(check_list(items, block_size)?)]),
            RawItem::Entry(entry) => entry.check(block_size),
        }
    }
}

fn check_list(items: Vec<RawItem>, block_size: u32) -> Result<Vec<Item>, String> {
    let lists = items.into_iter().map(|item| item.check(block_size));
    Ok(lists.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

impl RawEntry {
    /// The request that the entry is, if it is one, and the sub-agent that it holds.
    fn check(self, block_size: u32) -> Result<Vec<Item>, String> {
        let RawEntry { t, input, output, hash_ids, requests } = self;
        let mut items = Vec::new();
        if input.is_some() || requests.is_none() {
            let missing = |key: &str| format!("missing field `{key}`");
            let seconds = t.ok_or_else(|| missing("t"))?;
            let arrival = Duration::try_from_secs_f64(seconds)
                .map_err(|_| format!("`t` is {seconds:?}, expected seconds of at least 0"))?;
            let input_length = input.ok_or_else(|| missing("in"))?;
            let output_length = output.ok_or_else(|| missing("out"))?;
            let Ids(ids) = hash_ids.ok_or_else(|| missing("hash_ids"))?;
            check_blocks(input_length, ids.len(), block_size)?;
            let entry = Entry { arrival, session: None, input_length, output_length, ids };
            items.push(Item::Request(entry));
        }
        if let Some(RawList(requests)) = requests {
            items.push(Item::SubAgent(check_list(requests, block_size)?));
        }
        Ok(items)
    }
}

/// Whether `ids` block ids are as many as `input` tokens have whole blocks, or one more for the last in part.
fn check_blocks(input: u32, ids: usize, block_size: u32) -> Result<(), String> {
    if input == 0 {
        return Err("`in` is 0, expected at least 1".to_owned());
    }
    let (whole, all) = (input / block_size, input.div_ceil(block_size));
    if usize::try_from(whole) == Ok(ids) || usize::try_from(all) == Ok(ids) {
        return Ok(());
    }
    Err(format!(
        "`hash_ids` has {ids} blocks, but `in` = {input} takes {whole} whole ones of {block_size} tokens"
    ))
}

/// Reads the session's object, checking every request where it stands, so that errors have a position.
struct SessionSeed {
    block_size: u32,
}

impl<'de> DeserializeSeed<'de> for SessionSeed {
    type Value = Vec<Item>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Item>, D::Error> {
        if self.block_size == 0 {
            return Err(de::Error::custom("`block_size` is 0, expected at least 1"));
        }
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for SessionSeed {
    type Value = Vec<Item>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a session")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Item>, A::Error> {
        let mut requests = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == "requests" {
                requests = Some(map.next_value_seed(ListSeed { block_size: self.block_size })?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        requests.ok_or_else(|| de::Error::missing_field("requests"))
    }
}

#[derive(Clone, Copy)]
struct ListSeed {
    block_size: u32,
}

impl<'de> DeserializeSeed<'de> for ListSeed {
    type Value = Vec<Item>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Item>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ListSeed {
    type Value = Vec<Item>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of requests")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Item>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element::<RawItem>()? {
            items.extend(item.check(self.block_size).map_err(de::Error::custom)?);
        }
        Ok(items)
    }
}

impl<'de> Deserialize<'de> for RawItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ItemVisitor;
        impl<'de> Visitor<'de> for ItemVisitor {
            type Value = RawItem;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a request or a list of requests")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawItem, A::Error> {
                let entry = RawEntry::deserialize(value::MapAccessDeserializer::new(map))?;
                Ok(RawItem::Entry(Box::new(entry)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<RawItem, A::Error> {
                let RawList(items) = RawList::deserialize(value::SeqAccessDeserializer::new(list))?;
                Ok(RawItem::List(items))
            }
        }
        deserializer.deserialize_any(ItemVisitor)
    }
}

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdsVisitor;
        impl<'de> Visitor<'de> for IdsVisitor {
            type Value = Ids;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a block id of at least 0, or a list of them")
            }

            fn visit_u64<E: de::Error>(self, id: u64) -> Result<Ids, E> {
                Ok(Ids(vec![id]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Ids, A::Error> {
                let mut ids = Vec::new();
                while let Some(Ids(more)) = list.next_element()? {
                    ids.extend(more);
                }
                Ok(Ids(ids))
            }
        }
        deserializer.deserialize_any(IdsVisitor)
    }
}
