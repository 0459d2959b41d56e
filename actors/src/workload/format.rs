//! Which format a trace has, told by its first keys and never by its name.

use std::cell::Cell;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::error::WorkloadError;

/// A trace's format.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Format {
    /// A JSON object per line.
    Mooncake,
    /// One JSON object for the whole session.
    Agentic,
}

/// The format of `text`. O(bytes up to the first telling key).
///
/// # Errors
/// [`WorkloadError::Empty`], [`WorkloadError::UnknownFormat`], and [`WorkloadError::Invalid`] for what is no JSON.
pub(super) fn recognise(file: &str, text: &str) -> Result<Format, WorkloadError> {
    if text.trim().is_empty() {
        return Err(WorkloadError::Empty { file: file.to_owned() });
    }
    let found = Cell::new(None);
    let mut json = serde_json::Deserializer::from_str(text);
    // The visit ends at the first telling key, with an error, since the rest is unread: only `found` counts then.
    let visited = (&mut json).deserialize_map(FirstKeys(&found));
    match (found.get(), visited) {
        (Some(format), _) => Ok(format),
        (None, Err(error)) if !error.is_data() => Err(WorkloadError::json(file, 0, &error)),
        _ => {
            let before = &text[..text.len() - text.trim_start().len()];
            let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
            let line = before.matches('\n').count() + 1;
            Err(WorkloadError::UnknownFormat { file: file.to_owned(), line, column })
        }
    }
}

struct FirstKeys<'a>(&'a Cell<Option<Format>>);

impl<'de> Visitor<'de> for FirstKeys<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let format = match key.as_str() {
                "timestamp" | "input_length" | "output_length" => Some(Format::Mooncake),
                "block_size" | "hash_id_scope" | "requests" => Some(Format::Agentic),
                _ => None,
            };
            if format.is_some() {
                self.0.set(format);
                return Ok(());
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}
