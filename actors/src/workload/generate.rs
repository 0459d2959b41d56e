//! The embedded workload: multi-turn conversations under a few shared system prompts.
//!
//! A conversation opens with one of the system prompts, the first of them most often (Zipf: the k-th with weight 1/k).
//! Each turn's prompt is the whole conversation so far, what the model answered included, and a new message. Turns are
//! dealt unevenly, and conversations overlap, so that histories compete for the cache while they wait for their users.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use kvtide_core::unit::Tokens;

use super::builder::Builder;
use super::error::WorkloadError;
use super::splitmix::SplitMix;
use super::text::Run;
use super::{Request, Workload};

/// What the workload is made from; equal values make equal workloads on every platform.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Generator {
    /// Decides everything that the counts leave open.
    pub seed: u64,
    /// Conversations; at most one per request are made.
    pub conversations: NonZeroU32,
    /// Requests in all, one a turn.
    pub requests: NonZeroU32,
}

/// System prompts.
const SYSTEM_PROMPTS: u32 = 12;
/// A system prompt's length: at least, and the bound of what is added. 128 + 1,152 / 3 = 512 on average.
const SYSTEM_TOKENS: (u32, u32) = (128, 1_152);
/// A message's length. 16 + 252 / 3 = 100 on average.
const MESSAGE_TOKENS: (u32, u32) = (16, 252);
/// An answer's length. 32 + 354 / 3 = 150 on average.
const ANSWER_TOKENS: (u32, u32) = (32, 354);
/// Bound of the milliseconds between one conversation's start and the next: 1 s on average.
const START_GAP_MS: u32 = 2_000;
/// What one token of an answer takes until its user has it.
const TOKEN_MS: u64 = 20;
/// A user's pause: 2 s at least, 17 s on average.
const PAUSE_MS: (u32, u32) = (2_000, 30_000);

impl Default for Generator {
    /// Seed 0: 2,000 requests in 300 conversations.
    fn default() -> Self {
        Generator {
            seed: 0,
            conversations: NonZeroU32::MIN.saturating_add(299),
            requests: NonZeroU32::MIN.saturating_add(1_999),
        }
    }
}

impl Generator {
    /// The workload. O(requests × log requests).
    ///
    /// # Errors
    /// [`WorkloadError::TooLarge`] from about ten million requests.
    pub fn generate(&self) -> Result<Workload, WorkloadError> {
        let mut random = SplitMix::new(self.seed);
        let mut builder = Builder::default();
        let systems = (0..SYSTEM_PROMPTS)
            .map(|_| builder.input(length(SYSTEM_TOKENS, &mut random)))
            .collect::<Result<Vec<Run>, _>>()?;
        let mut start = 0;
        for turns in self.deal_turns(&mut random) {
            start += u64::from(random.below(START_GAP_MS));
            let system = systems[zipf(&mut random)];
            converse(&mut builder, &mut random, system, start, turns)?;
        }
        Ok(builder.finish(format!("generated, seed {}", self.seed)))
    }

    /// Turns of each conversation: one each, the rest dealt unevenly, in an order that says nothing of the number.
    fn deal_turns(&self, random: &mut SplitMix) -> Vec<u32> {
        let conversations = self.conversations.min(self.requests).get();
        let mut turns = vec![1; conversations as usize];
        for _ in conversations..self.requests.get() {
            turns[random.skewed(conversations) as usize] += 1;
        }
        for last in (1..conversations).rev() {
            turns.swap(last as usize, random.below(last + 1) as usize);
        }
        turns
    }
}

/// Adds one conversation, which starts at `start` ms.
fn converse(
    builder: &mut Builder,
    random: &mut SplitMix,
    system: Run,
    start: u64,
    turns: u32,
) -> Result<(), WorkloadError> {
    let mut runs = vec![system];
    let mut made = Vec::new();
    let (mut input, mut arrival) = (system.length().0, start);
    for _ in 0..turns {
        let message = builder.input(length(MESSAGE_TOKENS, random))?;
        let answer = builder.output(length(ANSWER_TOKENS, random))?;
        runs.push(message);
        input = input.saturating_add(message.length().0);
        made.push((arrival, runs.len(), input, answer));
        runs.push(answer);
        input = input.saturating_add(answer.length().0);
        arrival += u64::from(answer.length().0) * TOKEN_MS + u64::from(length(PAUSE_MS, random));
    }
    let runs: Arc<[Run]> = runs.into();
    let session = Some(builder.new_session());
    for (arrival, run_count, input, output) in made {
        let (arrival, runs) = (Duration::from_millis(arrival), Arc::clone(&runs));
        let reusable = Tokens(input.saturating_add(output.length().0));
        let input = Tokens(input);
        builder.push(Request { arrival, session, runs, run_count, input, output, reusable });
    }
    Ok(())
}

fn length((least, bound): (u32, u32), random: &mut SplitMix) -> u32 {
    least + random.skewed(bound)
}

/// A system prompt, the k-th with weight 1/k.
fn zipf(random: &mut SplitMix) -> usize {
    // 27,720 is the least number that 1 to 12 all divide: every weight is whole.
    let weights = || (1..=SYSTEM_PROMPTS).map(|rank| 27_720 / rank);
    let mut draw = random.below(weights().sum());
    let mut chosen = 0;
    for weight in weights() {
        if draw < weight {
            break;
        }
        draw -= weight;
        chosen += 1;
    }
    chosen
}
