//! A configuration file's text, and where in it each key stands.

use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Place, Problem};

/// A text and the name that errors call it by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Document<'a> {
    /// The file, as the user named it.
    pub(super) name: &'a str,
    /// All of it.
    pub(super) text: &'a str,
}

/// One step from a table or an array to what it holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// Into a table.
    Key(&'static str),
    /// Into an array.
    Index(usize),
}

/// The steps from the top to a key.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct KeyPath(pub(super) Vec<Step>);

impl KeyPath {
    /// From the top, by keys only.
    pub(super) fn keys(keys: &[&'static str]) -> Self {
        KeyPath(keys.iter().map(|key| Step::Key(key)).collect())
    }

    /// One key further.
    pub(super) fn key(&self, key: &'static str) -> Self {
        let mut longer = self.clone();
        longer.0.push(Step::Key(key));
        longer
    }

    /// One element further.
    pub(super) fn index(&self, index: usize) -> Self {
        let mut longer = self.clone();
        longer.0.push(Step::Index(index));
        longer
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if depth == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// A key found in the text.
struct Found {
    path: String,
    key: Range<usize>,
    value: Range<usize>,
    scalar: bool,
}

impl<'a> Document<'a> {
    /// Reads the whole text as a `T`.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] at the place of the first problem.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(self.text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            ConfigError::Invalid {
                place: Box::new(self.place_of(start)),
                problem: Problem::Parse(one_line(error.message())),
            }
        })
    }

    /// The error that `problem` makes at `path`, or at the closest table above that the text has.
    pub(super) fn invalid(&self, path: &KeyPath, problem: Problem) -> ConfigError {
        ConfigError::Invalid { place: Box::new(self.place_at(path)), problem }
    }

    fn place_at(&self, path: &KeyPath) -> Place {
        let found = self.found();
        let mut path = path.clone();
        while !path.0.is_empty() {
            let name = path.to_string();
            if let Some(found) = found.iter().find(|found| found.path == name) {
                return self.place(found.key.start, Some(found));
            }
            path.0.pop();
        }
        self.place(0, None)
    }

    fn place_of(&self, offset: usize) -> Place {
        let found = self.found();
        let holds = |range: &Range<usize>| range.start <= offset && offset < range.end;
        // The innermost: of all that hold the offset, the one that starts last.
        let at = found
            .iter()
            .filter(|found| holds(&found.key) || holds(&found.value))
            .max_by_key(|found| (found.key.start, found.path.len()));
        self.place(offset, at)
    }

    fn place(&self, offset: usize, found: Option<&Found>) -> Place {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Place {
            file: self.name.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            key: found.map(|found| found.path.clone()),
            value: found
                .filter(|found| found.scalar)
                .and_then(|found| self.text.get(found.value.clone()))
                .map(shorten),
        }
    }

    /// Every key of the text; none, if it is no TOML. Read only once something is wrong.
    fn found(&self) -> Vec<Found> {
        let mut found = Vec::new();
        if let Ok(table) = DeTable::parse(self.text) {
            collect_table(table.get_ref(), "", &mut found);
        }
        found
    }
}

fn collect_table(table: &DeTable<'_>, above: &str, found: &mut Vec<Found>) {
    for (key, value) in table {
        let dot = if above.is_empty() { "" } else { "." };
        collect(format!("{above}{dot}{}", key.get_ref()), key.span(), value, found);
    }
}

fn collect(path: String, key: Range<usize>, value: &Spanned<DeValue<'_>>, found: &mut Vec<Found>) {
    match value.get_ref() {
        DeValue::Table(table) => collect_table(table, &path, found),
        DeValue::Array(array) => {
            for (index, element) in array.iter().enumerate() {
                collect(format!("{path}[{index}]"), element.span(), element, found);
            }
        }
        _ => {}
    }
    let scalar = !matches!(value.get_ref(), DeValue::Table(_) | DeValue::Array(_));
    found.push(Found { path, key, value: value.span(), scalar });
}

/// `text` without line breaks: an error is one line.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The first characters of a value; a whole document may hide in one.
fn shorten(text: &str) -> String {
    const CHARS_MAX: usize = 48;
    let line = one_line(text);
    match line.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}
