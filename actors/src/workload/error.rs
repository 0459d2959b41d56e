//! Why there is no workload, in one line with file, line and column.

use std::io;
use std::path::PathBuf;

/// Why a workload cannot be read or made.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The file cannot be read, or is not UTF-8.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file has no request.
    #[error("{file}: no request in it")]
    Empty {
        /// The file.
        file: String,
    },
    /// The file's beginning is of no known format.
    #[error(
        "{file}:{line}:{column}: unknown trace format, expected Mooncake JSON Lines (`timestamp`, `input_length`, `output_length`, `hash_ids` on each line) or an agentic session (one JSON object with `block_size` and `requests`)"
    )]
    UnknownFormat {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// The file is of a known format and breaks it.
    #[error("{file}:{line}:{column}: {problem}")]
    Invalid {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1: at the fault, or just past the request that has it.
        column: usize,
        /// What is wrong.
        problem: String,
    },
    /// More tokens than there are token ids.
    #[error("the workload's {0}")]
    TooLarge(#[from] TooManyTokens),
}

/// Token ids are 31 bits for prompts and 31 bits for outputs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{kind} tokens need more than {} different ids", 1u32 << 31)]
pub struct TooManyTokens {
    /// `input` or `output`.
    pub kind: &'static str,
}

impl WorkloadError {
    /// A JSON error in `file`, which starts after `lines_before` lines.
    pub(super) fn json(file: &str, lines_before: usize, error: &serde_json::Error) -> Self {
        WorkloadError::Invalid {
            file: file.to_owned(),
            line: lines_before + error.line().max(1),
            column: error.column().max(1),
            problem: json_problem(error),
        }
    }
}

/// The error's text without the position, which serde_json appends to it.
fn json_problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}
