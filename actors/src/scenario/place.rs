//! Where a scenario file is wrong, and what was expected there.

use std::error::Error;
use std::path::{Path, PathBuf};

use kvtide_core::chain::ChainError;

/// A place in a file. Both numbers start at 1; columns are counted in characters.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

/// A file that cannot be read as a scenario. The command line exits with 2. Nothing was run.
#[derive(Debug, thiserror::Error)]
#[error("{}:{}:{}: {problem}", file.display(), place.line, place.column)]
pub struct ScenarioError {
    /// The file.
    pub file: PathBuf,
    /// Where in it; 1:1 if it cannot be read at all.
    pub place: Place,
    /// What is wrong.
    #[source]
    pub problem: Problem,
}

/// What is wrong at a place of a scenario file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file system says no.
    #[error("wanted a readable file: {0}")]
    Unreadable(std::io::Error),
    /// A byte that is no part of UTF-8 text.
    #[error("wanted UTF-8 text, found the byte {byte:#04x}")]
    NotUtf8 {
        /// The byte.
        byte: u8,
    },
    /// A line that is not JSON.
    #[error("wanted one JSON object on the line: {reason}")]
    NotJson {
        /// What the JSON parser says.
        reason: String,
    },
    /// The file has no header, or something before it.
    #[error("wanted the header, an object with the key `scenario`, before anything else")]
    NoHeader,
    /// A second header.
    #[error("wanted an operation or an expectation, found a second header")]
    SecondHeader,
    /// An expectation with nothing to be expected of.
    #[error("wanted an operation before the first expectation")]
    NoOperation,
    /// An object that is none of the four kinds of line.
    #[error("wanted an object with one of the keys `scenario`, `op`, `expect` and `expect_total`")]
    UnknownLine,
    /// No operation has this name.
    #[error("wanted an operation, found `{name}`; operations are {}", listed(known))]
    UnknownOperation {
        /// The name found.
        name: String,
        /// Every operation.
        known: Vec<&'static str>,
    },
    /// A key that does not belong here.
    #[error("unknown key `{key}`; wanted {}", listed(known))]
    UnknownKey {
        /// The key found.
        key: String,
        /// The keys that may stand here.
        known: Vec<&'static str>,
    },
    /// A key that must be there is not.
    #[error("wanted the key `{key}`")]
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// A key that stands twice in one object.
    #[error("wanted the key `{key}` once, found it twice")]
    TwiceKey {
        /// The key.
        key: String,
    },
    /// A key that goes without another that is there.
    #[error("key `{key}` does not go with {with}")]
    ConflictingKey {
        /// The key found.
        key: &'static str,
        /// What it does not go with.
        with: &'static str,
    },
    /// A value of the wrong type or out of range.
    #[error("key `{key}`: wanted {wanted}, found {found}")]
    Value {
        /// Whose value it is.
        key: String,
        /// What may stand here.
        wanted: String,
        /// What does, shortened.
        found: String,
    },
    /// Pools that do not form a chain.
    #[error("wanted pools that form a chain: {0}")]
    Chain(#[from] ChainError),
    /// Refused by whoever runs the scenario: a configuration key, or the file that `config` names.
    #[error("{0}")]
    Refused(Box<dyn Error + Send + Sync>),
}

impl ScenarioError {
    /// An error at a place of a file.
    #[must_use]
    pub fn new(file: &Path, place: Place, problem: Problem) -> Self {
        ScenarioError { file: file.to_owned(), place, problem }
    }
}

/// "`a`, `b` or `c`"
fn listed(names: &[&str]) -> String {
    match names {
        [] => "no key at all".to_owned(),
        [one] => format!("`{one}`"),
        [most @ .., last] => format!("`{}` or `{last}`", most.join("`, `")),
    }
}
