//! Text without words: runs of token ids, no two of which share an id unless they are the same text.
//!
//! Ids below 2^31 are prompts', the others outputs'. So text that a model generates never equals a prompt by accident,
//! and equals one on purpose where a later turn quotes it.

use std::collections::HashMap;

use kvtide_core::unit::{Token, Tokens};

use super::error::TooManyTokens;

/// Consecutive token ids.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Run {
    start: Token,
    length: u32,
}

impl Run {
    /// Tokens in it.
    #[must_use]
    pub const fn length(self) -> Tokens {
        Tokens(self.length)
    }

    /// Its tokens, in order.
    pub fn tokens(self) -> impl ExactSizeIterator<Item = Token> {
        // The last one may be the last id there is, so no end is computed.
        (0..self.length).map(move |index| self.start + index)
    }

    /// Its first tokens, all of them if it has no more.
    pub(super) fn prefix(self, length: u32) -> Run {
        Run { length: self.length.min(length), ..self }
    }
}

/// The ids that a workload has not used yet.
#[derive(Debug, Default)]
pub(super) struct FreshTokens {
    inputs: u32,
    outputs: u32,
}

/// Ids of each half.
const HALF: u32 = 1 << 31;

impl FreshTokens {
    /// Text of a prompt, unlike any other.
    pub(super) fn input(&mut self, length: u32) -> Result<Run, TooManyTokens> {
        take(&mut self.inputs, length, "input").map(|start| Run { start, length })
    }

    /// Text that a model generates, unlike any other.
    pub(super) fn output(&mut self, length: u32) -> Result<Run, TooManyTokens> {
        take(&mut self.outputs, length, "output").map(|start| Run { start: HALF + start, length })
    }
}

fn take(used: &mut u32, length: u32, kind: &'static str) -> Result<u32, TooManyTokens> {
    let start = *used;
    let end = start.checked_add(length).filter(|end| *end <= HALF).ok_or(TooManyTokens { kind })?;
    *used = end;
    Ok(start)
}

/// The text behind block ids: one run per id, given out at its first use. One of these is one scope of ids.
#[derive(Debug)]
pub(super) struct Blocks {
    block_tokens: u32,
    known: HashMap<u64, Run>,
}

impl Blocks {
    /// No ids yet; each block has `block_tokens`, at least 1.
    pub(super) fn new(block_tokens: u32) -> Self {
        Blocks { block_tokens, known: HashMap::new() }
    }

    /// Tokens of the whole blocks among the first `length` that `ids` stand for.
    pub(super) fn whole_blocks(&self, ids: &[u64], length: u32) -> Tokens {
        let blocks = (length / self.block_tokens).min(ids.len() as u32);
        Tokens(blocks * self.block_tokens)
    }

    /// The `length` tokens that the blocks `ids` begin with, then fresh text if the ids end before.
    pub(super) fn text(
        &mut self,
        ids: &[u64],
        length: u32,
        fresh: &mut FreshTokens,
    ) -> Result<Vec<Run>, TooManyTokens> {
        let mut left = length;
        let mut runs = Vec::with_capacity(ids.len() + 1);
        for id in ids {
            let run = match self.known.get(id) {
                Some(run) => *run,
                None => {
                    let run = fresh.input(self.block_tokens)?;
                    self.known.insert(*id, run);
                    run
                }
            };
            let run = run.prefix(left);
            left -= run.length;
            runs.push(run);
        }
        if left > 0 {
            runs.push(fresh.input(left)?);
        }
        Ok(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(runs: &[Run]) -> Vec<Token> {
        runs.iter().flat_map(|run| run.tokens()).collect()
    }

    #[test]
    fn equal_blocks_are_equal_text_and_a_partial_block_is_a_prefix() {
        let (mut fresh, mut blocks) = (FreshTokens::default(), Blocks::new(4));
        let first = tokens(&blocks.text(&[7, 9], 6, &mut fresh).unwrap());
        let again = tokens(&blocks.text(&[7, 9, 8], 12, &mut fresh).unwrap());
        assert_eq!((first.len(), again.len()), (6, 12));
        assert_eq!(first[..], again[..6]);
    }

    #[test]
    fn text_past_the_ids_is_of_its_own() {
        let (mut fresh, mut blocks) = (FreshTokens::default(), Blocks::new(4));
        let first = tokens(&blocks.text(&[1], 6, &mut fresh).unwrap());
        let again = tokens(&blocks.text(&[1], 6, &mut fresh).unwrap());
        assert_eq!(first[..4], again[..4]);
        assert!(first[4..].iter().all(|token| !again.contains(token)));
    }

    #[test]
    fn ids_run_out_with_an_error() {
        let mut fresh = FreshTokens::default();
        let all = fresh.output(HALF).unwrap();
        assert_eq!(all.tokens().nth(HALF as usize - 1), Some(u32::MAX));
        assert_eq!(fresh.output(1), Err(TooManyTokens { kind: "output" }));
        assert_eq!(fresh.input(HALF + 1), Err(TooManyTokens { kind: "input" }));
        assert!(fresh.input(HALF).is_ok());
    }
}
