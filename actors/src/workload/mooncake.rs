//! Mooncake JSON Lines: a request per line, its prompt as global ids of blocks of 512 tokens, the last one partial.

use std::time::Duration;

use serde::Deserialize;

use super::builder::{Builder, Entry};
use super::error::WorkloadError;
use super::text::Blocks;

/// Tokens of one block.
const BLOCK_TOKENS: u32 = 512;

/// One line.
#[derive(Deserialize)]
struct Line {
    timestamp: u64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// Adds the requests of `text` to `builder`. Keys beyond the four are ignored, and so are blank lines.
///
/// # Errors
/// [`WorkloadError::Invalid`] at the first bad line, [`WorkloadError::Empty`].
pub(super) fn read(file: &str, text: &str, builder: &mut Builder) -> Result<(), WorkloadError> {
    let mut blocks = Blocks::new(BLOCK_TOKENS);
    let before = builder.len();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let request: Line =
            serde_json::from_str(line).map_err(|error| WorkloadError::json(file, index, &error))?;
        if let Err((key, problem)) = request.check() {
            let at = line.find(&format!("\"{key}\"")).unwrap_or(0);
            return Err(WorkloadError::Invalid {
                file: file.to_owned(),
                line: index + 1,
                column: line[..at].chars().count() + 1,
                problem,
            });
        }
        let Line { timestamp, input_length, output_length, hash_ids } = request;
        let arrival = Duration::from_millis(timestamp);
        let entry = Entry { arrival, session: None, input_length, output_length, ids: hash_ids };
        builder.add(entry, &mut blocks)?;
    }
    if builder.len() == before {
        return Err(WorkloadError::Empty { file: file.to_owned() });
    }
    Ok(())
}

impl Line {
    /// Whether the length and the ids agree; if not, the key to blame and why.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let Line { input_length, hash_ids, .. } = self;
        if *input_length == 0 {
            return Err(("input_length", "`input_length` is 0, expected at least 1".to_owned()));
        }
        let blocks = input_length.div_ceil(BLOCK_TOKENS);
        if usize::try_from(blocks) != Ok(hash_ids.len()) {
            return Err((
                "hash_ids",
                format!(
                    "`hash_ids` has {} blocks, but `input_length` = {input_length} takes {blocks} of {BLOCK_TOKENS} tokens",
                    hash_ids.len()
                ),
            ));
        }
        Ok(())
    }
}
