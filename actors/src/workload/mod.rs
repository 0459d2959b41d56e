//! Workloads: requests with their arrival times and texts, from a trace or from the embedded generator.
//!
//! # For who replays one
//!
//! [`Workload::requests`] is in order of arrival. A request's prompt is made on demand by [`Request::input`]; what the
//! model would answer is [`Request::output`], token by token what a replay appends. Texts are token ids that mean
//! nothing, but equal texts are equal ids and different ones share none: prompts share exactly the prefixes that the
//! trace says they share, and an answer equals nothing but its own quotation in a later turn of its session.
//!
//! Requests of one [`SessionId`] are turns of one conversation, each later than the one before. In a generated
//! workload a turn's prompt quotes the answers before it, so a replay that wants the hits which the session deserves
//! starts a turn only after the turn before it has finished: at its arrival, or then if that is later. Requests
//! without a session stand alone.
//!
//! A trace's prompts are known by blocks only: what was an answer once is part of a later prompt's blocks, and equals
//! nothing that the replay appended.

mod agentic;
mod builder;
mod error;
mod format;
mod generate;
mod mooncake;
mod splitmix;
mod text;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvtide_core::unit::{Token, Tokens};

pub use error::{TooManyTokens, WorkloadError};
pub use generate::Generator;
pub use text::Run;

use builder::Builder;
use format::Format;

/// A conversation: its requests follow one another.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SessionId(pub u32);

/// One request to a model. Small: the prompt's text is made when asked for.
#[derive(Clone, Debug)]
pub struct Request {
    arrival: Duration,
    session: Option<SessionId>,
    /// Shared by the turns of a generated conversation; this request's prompt is the first `run_count` of them.
    runs: Arc<[Run]>,
    run_count: usize,
    input: Tokens,
    output: Run,
    reusable: Tokens,
}

impl Request {
    /// When it arrives, from the workload's start.
    #[must_use]
    pub fn arrival(&self) -> Duration {
        self.arrival
    }

    /// The conversation that it is a turn of.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// The prompt's length, at least 1.
    #[must_use]
    pub fn input_tokens(&self) -> Tokens {
        self.input
    }

    /// The answer's length, perhaps 0.
    #[must_use]
    pub fn output_tokens(&self) -> Tokens {
        self.output.length()
    }

    /// How much of the prompt, and of the answer after it, later prompts may start with: a trace tells prompts apart by
    /// whole blocks, so nothing past the last whole one ever recurs; a generated turn recurs with its answer.
    #[must_use]
    pub fn reusable_tokens(&self) -> Tokens {
        self.reusable
    }

    /// The prompt. O(its length).
    #[must_use]
    pub fn input(&self) -> Vec<Token> {
        let mut tokens = Vec::with_capacity(self.input.0 as usize);
        self.write_input(&mut tokens);
        tokens
    }

    /// Appends the prompt to `tokens`. O(its length).
    pub fn write_input(&self, tokens: &mut Vec<Token>) {
        for run in &self.runs[..self.run_count] {
            tokens.extend(run.tokens());
        }
    }

    /// The answer, token by token. No other request's answer has any of these tokens.
    pub fn output(&self) -> impl ExactSizeIterator<Item = Token> + use<> {
        self.output.tokens()
    }
}

/// Requests in order of arrival.
#[derive(Clone, Debug)]
pub struct Workload {
    name: String,
    requests: Vec<Request>,
}

/// A workload in numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Summary {
    /// Requests.
    pub requests: u64,
    /// Conversations; requests that stand alone are none.
    pub sessions: u64,
    /// All prompts' tokens.
    pub input_tokens: u64,
    /// All answers' tokens.
    pub output_tokens: u64,
    /// The most tokens that one request has, prompt and answer together.
    pub longest_tokens: u64,
    /// From the workload's start to the last arrival.
    pub span: Duration,
}

impl Workload {
    /// The trace at `path`, in either format; the content tells which, not the name.
    ///
    /// # Errors
    /// Every [`WorkloadError`].
    pub fn read(path: &Path) -> Result<Self, WorkloadError> {
        Self::read_all(&[path])
    }

    /// Several traces as one workload, all starting at once: their block ids and sessions are kept apart.
    ///
    /// # Errors
    /// Every [`WorkloadError`], at the first file that has one; [`WorkloadError::Empty`] for no files.
    pub fn read_all(paths: &[impl AsRef<Path>]) -> Result<Self, WorkloadError> {
        let mut builder = Builder::default();
        let mut names = Vec::new();
        for path in paths.iter().map(AsRef::as_ref) {
            let text = std::fs::read_to_string(path)
                .map_err(|source| WorkloadError::Read { path: path.to_owned(), source })?;
            let name = path.display().to_string();
            add_trace(&name, &text, &mut builder)?;
            names.push(name);
        }
        let name = names.join(", ");
        if builder.len() == 0 {
            return Err(WorkloadError::Empty { file: name });
        }
        Ok(builder.finish(name))
    }

    /// The trace whose text is `text`; errors call it `file`.
    ///
    /// # Errors
    /// As [`Workload::read`].
    pub fn parse(file: &str, text: &str) -> Result<Self, WorkloadError> {
        let mut builder = Builder::default();
        add_trace(file, text, &mut builder)?;
        Ok(builder.finish(file.to_owned()))
    }

    /// What the workload is, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All requests in order of arrival.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Keeps the first `requests` arrivals only.
    pub fn truncate(&mut self, requests: usize) {
        self.requests.truncate(requests);
    }

    /// The workload in numbers. O(requests × log sessions).
    #[must_use]
    pub fn summary(&self) -> Summary {
        let lengths = || {
            let length = |request: &Request| {
                (u64::from(request.input_tokens().0), u64::from(request.output_tokens().0))
            };
            self.requests.iter().map(length)
        };
        let sessions: BTreeSet<_> = self.requests.iter().filter_map(Request::session).collect();
        Summary {
            requests: self.requests.len() as u64,
            sessions: sessions.len() as u64,
            input_tokens: lengths().map(|(input, _)| input).sum(),
            output_tokens: lengths().map(|(_, output)| output).sum(),
            longest_tokens: lengths().map(|(input, output)| input + output).max().unwrap_or(0),
            span: self.requests.last().map_or(Duration::ZERO, Request::arrival),
        }
    }
}

fn add_trace(file: &str, text: &str, builder: &mut Builder) -> Result<(), WorkloadError> {
    match format::recognise(file, text)? {
        Format::Mooncake => mooncake::read(file, text, builder),
        Format::Agentic => agentic::read(file, text, builder),
    }
}
