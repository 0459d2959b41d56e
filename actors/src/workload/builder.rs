//! Requests as they are gathered, from one trace or several.

use std::sync::Arc;
use std::time::Duration;

use super::error::TooManyTokens;
use super::text::{Blocks, FreshTokens, Run};
use super::{Request, SessionId, Workload};
use kvtide_core::unit::Tokens;

/// A request as a trace has it.
pub(super) struct Entry {
    pub(super) arrival: Duration,
    pub(super) session: Option<SessionId>,
    pub(super) input_length: u32,
    pub(super) output_length: u32,
    pub(super) ids: Vec<u64>,
}

/// Requests so far, and the token ids and sessions that they use.
#[derive(Default)]
pub(super) struct Builder {
    fresh: FreshTokens,
    sessions: u32,
    requests: Vec<Request>,
}

impl Builder {
    /// Requests so far.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// A session that no request is of yet.
    pub(super) fn new_session(&mut self) -> SessionId {
        // A session costs bytes of input, so 2^32 of them cannot be read.
        let session = SessionId(self.sessions);
        self.sessions = self.sessions.saturating_add(1);
        session
    }

    /// Text of a prompt, unlike any other.
    pub(super) fn input(&mut self, length: u32) -> Result<Run, TooManyTokens> {
        self.fresh.input(length)
    }

    /// Text that a model generates, unlike any other.
    pub(super) fn output(&mut self, length: u32) -> Result<Run, TooManyTokens> {
        self.fresh.output(length)
    }

    /// Adds a trace's request, whose block ids are of the scope `blocks`.
    pub(super) fn add(&mut self, entry: Entry, blocks: &mut Blocks) -> Result<(), TooManyTokens> {
        let Entry { arrival, session, input_length, output_length, ids } = entry;
        let runs: Arc<[Run]> = blocks.text(&ids, input_length, &mut self.fresh)?.into();
        let output = self.fresh.output(output_length)?;
        let run_count = runs.len();
        let reusable = blocks.whole_blocks(&ids, input_length);
        self.push(Request {
            arrival,
            session,
            runs,
            run_count,
            input: Tokens(input_length),
            output,
            reusable,
        });
        Ok(())
    }

    /// Adds a request that is made already.
    pub(super) fn push(&mut self, request: Request) {
        self.requests.push(request);
    }

    /// All requests by arrival; those that arrive together stay as they were added.
    pub(super) fn finish(mut self, name: String) -> Workload {
        self.requests.sort_by_key(|request| request.arrival);
        Workload { name, requests: self.requests }
    }
}
