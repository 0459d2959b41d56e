//! Why a configuration is refused, and where it says so.

use std::fmt;
use std::io;
use std::path::PathBuf;

use kvtide_core::chain::ChainError;

use super::preset;

/// Why there is no configuration. One line each; nothing was made or changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read, or is not UTF-8.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file says something that cannot be.
    #[error("{place}: {problem}")]
    Invalid {
        /// Where in which file.
        place: Box<Place>,
        /// What is wrong there.
        problem: Problem,
    },
    /// A value given outside any file.
    #[error("`{key}` = {value}: {problem}")]
    InvalidValue {
        /// The key.
        key: String,
        /// Its value, as JSON.
        value: String,
        /// What is wrong with it.
        problem: Problem,
    },
    /// A key given outside any file that none of the tables has.
    #[error("unknown key `{key}`, expected one of {expected}")]
    UnknownKey {
        /// The key.
        key: String,
        /// All keys that could have been meant.
        expected: String,
    },
    /// Neither a preset nor a file.
    #[error("no preset or file is named `{name}`, expected one of {}, or a TOML file", preset::names().join(", "))]
    UnknownModel {
        /// What was named.
        name: String,
    },
    /// Pools given outside any file do not form a chain.
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// What is wrong at a place.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Problem {
    /// The text is no TOML, or a value is not what its key takes.
    #[error("{0}")]
    Parse(String),
    /// A key that must be there is not.
    #[error("`{key}` is missing, expected {expected}")]
    Missing {
        /// The key.
        key: &'static str,
        /// What it would say.
        expected: &'static str,
    },
    /// A key that makes no sense beside another.
    #[error("`{key}` has no place {beside}")]
    OutOfPlace {
        /// The key.
        key: &'static str,
        /// Beside what.
        beside: &'static str,
    },
    /// A geometry that does not fit into 64 bits, or has no bytes.
    #[error("the pool's page would have {0} bytes, expected at least 1 and at most 2^63")]
    PageBytes(u128),
    /// A preset that does not exist.
    #[error("unknown preset, expected one of {}", preset::names().join(", "))]
    UnknownPreset,
    /// The pools do not form a chain.
    #[error(transparent)]
    Chain(#[from] ChainError),
}

/// A place in a configuration file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Place {
    /// The file, as it was named.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The key there, by its full path, if there is one.
    pub key: Option<String>,
    /// The value as the file has it, shortened, if there is one.
    pub value: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)?;
        match (&self.key, &self.value) {
            (Some(key), Some(value)) => write!(f, ": `{key}` = {value}"),
            (Some(key), None) => write!(f, ": `{key}`"),
            (None, _) => Ok(()),
        }
    }
}
