//! A small continuous-batching scheduler, as an engine's would drive the service.
//!
//! Every step admits requests while the arena could hold all that run to their ends, computes a chunk of each unfinished
//! prompt within a budget of tokens, and decodes one token of every other request. Memory that is short is asked for
//! again in the next step; when no request can go on, the one admitted last gives its memory back, and starts over from
//! its cached prefix once another has ended.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use kvtide_core::unit::{Token, Tokens};

use super::tally::Tally;
use crate::error::AllocError;
use crate::handle::{CacheHandle, OpenOptions, Sequence};
use crate::message::{Matched, Publishing};
use crate::workload::{Request, SessionId};

/// How requests are driven.
#[derive(Clone, Copy, Debug)]
pub struct Drive {
    /// The most requests that run at once.
    pub concurrency: usize,
    /// The most tokens, prompts and answers, that may run at once; one request runs whatever its length.
    pub running_tokens: u64,
    /// Prompt tokens computed per request and step.
    pub chunk: Tokens,
    /// Prompt tokens computed per step, all requests together.
    pub step_tokens: Tokens,
    /// How time passes between arrivals.
    pub pace: Pace,
    /// Whether answers are decoded.
    pub decode: Decode,
}

/// How time passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Not at all: the next request is there as soon as there is room.
    Max,
    /// This many times as fast as recorded.
    Times(f64),
}

/// Whether answers are decoded, or prompts only computed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Decode {
    /// Token by token, to the recorded length.
    Answers,
    /// Not at all.
    PromptsOnly,
}

/// A request with memory.
struct Running<'a> {
    request: &'a Request,
    sequence: Sequence,
    computed: u32,
    prompt: u32,
    /// Page boundaries at which a state checkpoint pays, ascending.
    stops: VecDeque<u32>,
    answer: Vec<Token>,
    /// Tokens of the answer decoded so far.
    generated: usize,
}

/// A request without memory: new, or started over.
struct Pending<'a> {
    request: &'a Request,
    /// Tokens of the answer decoded before it gave its memory back.
    generated: usize,
    attempt: Attempt,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Attempt {
    First,
    /// It gave its memory back, or was refused: not counted as a request again.
    Later,
}

/// Whether requests are admitted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Admission {
    Open,
    /// Not before one that runs has ended.
    Held,
}

/// What one step did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Progress {
    Made,
    None,
}

impl Running<'_> {
    /// What a closing request leaves in the cache beyond what it published: nothing that can never recur.
    fn leaves(&self, publishing: Publishing) -> Publishing {
        let recurs = self.computed <= self.request.reusable_tokens().0;
        if recurs { publishing } else { Publishing::Nothing }
    }
}

/// Drives requests against a service.
pub struct Scheduler<'a> {
    handle: &'a CacheHandle,
    drive: Drive,
    pending: VecDeque<Pending<'a>>,
    running: Vec<Running<'a>>,
    admission: Admission,
    /// Sessions with a turn under way, and their turns that have arrived meanwhile.
    sessions: BTreeMap<SessionId, VecDeque<&'a Request>>,
    tally: &'a mut Tally,
    started: Instant,
}

impl<'a> Scheduler<'a> {
    /// A scheduler with nothing to do.
    pub fn new(handle: &'a CacheHandle, drive: Drive, tally: &'a mut Tally) -> Self {
        Scheduler {
            handle,
            drive,
            pending: VecDeque::new(),
            running: Vec::new(),
            admission: Admission::Open,
            sessions: BTreeMap::new(),
            tally,
            started: Instant::now(),
        }
    }

    /// Runs every request to its end; `done` is told after each.
    ///
    /// # Errors
    /// Only what makes going on pointless: the service is gone or corrupt, a copy failed.
    pub async fn run(
        &mut self,
        requests: &'a [Request],
        mut done: impl FnMut(u64),
    ) -> Result<(), AllocError> {
        let mut requests = requests.iter().peekable();
        loop {
            let before = self.tally.requests_ended();
            while self.running.len() + self.pending.len() < self.drive.concurrency
                && let Some(request) = requests.next_if(|request| self.is_due(request))
            {
                self.arrive(request);
            }
            if self.running.is_empty() && self.pending.is_empty() {
                match requests.peek() {
                    None => return Ok(()),
                    Some(request) => tokio::time::sleep(self.until_due(request)).await,
                }
                continue;
            }
            self.step().await?;
            done(self.tally.requests_ended() - before);
        }
    }

    /// Takes a request in: at once, or once the turn before it in its session has ended.
    fn arrive(&mut self, request: &'a Request) {
        if let Some(session) = request.session() {
            match self.sessions.entry(session) {
                Entry::Occupied(mut under_way) => {
                    under_way.get_mut().push_back(request);
                    return;
                }
                Entry::Vacant(vacant) => drop(vacant.insert(VecDeque::new())),
            }
        }
        self.pending.push_back(Pending { request, generated: 0, attempt: Attempt::First });
    }

    /// Lets the next turn of an ended request's session come.
    fn depart(&mut self, request: &'a Request) {
        let Some(session) = request.session() else { return };
        match self.sessions.get_mut(&session).and_then(VecDeque::pop_front) {
            Some(request) => {
                let attempt = Attempt::First;
                self.pending.push_back(Pending { request, generated: 0, attempt });
            }
            None => drop(self.sessions.remove(&session)),
        }
    }

    fn is_due(&self, request: &Request) -> bool {
        self.until_due(request).is_zero()
    }

    fn until_due(&self, request: &Request) -> Duration {
        match self.drive.pace {
            Pace::Max => Duration::ZERO,
            Pace::Times(times) => {
                request.arrival().div_f64(times).saturating_sub(self.started.elapsed())
            }
        }
    }

    async fn step(&mut self) -> Result<(), AllocError> {
        let mut progress = self.admit().await?;
        if self.prefill().await? == Progress::Made {
            progress = Progress::Made;
        }
        if self.decode().await? == Progress::Made {
            progress = Progress::Made;
        }
        if self.end_finished().await? == Progress::Made {
            progress = Progress::Made;
        }
        if progress == Progress::None {
            self.retract().await?;
        }
        Ok(())
    }

    /// Opens pending requests, in order, until one finds no room.
    async fn admit(&mut self) -> Result<Progress, AllocError> {
        let mut progress = Progress::None;
        if self.running.is_empty() {
            self.admission = Admission::Open;
        }
        while self.pending.front().is_some_and(|next| self.may_admit(next.request)) {
            let Some(pending) = self.pending.pop_front() else { break };
            let Pending { request, generated, attempt } = pending;
            let mut tokens = request.input();
            let answer: Vec<Token> = request.output().collect();
            tokens.extend(&answer[..generated]);
            let length = tokens.len() as u32;
            let options = OpenOptions::default();
            let asked = Instant::now();
            let opened = self.handle.open(tokens, options).await;
            self.tally.allocation(asked.elapsed());
            match opened {
                Ok(sequence) => {
                    let matched = sequence.matched();
                    if attempt == Attempt::First {
                        self.tally.admitted(u64::from(length), u64::from(matched.tokens.0));
                    }
                    let stops = self.stops(matched, request.reusable_tokens(), length);
                    let computed = matched.tokens.0;
                    let prompt = length;
                    self.running.push(Running {
                        request,
                        answer,
                        sequence,
                        computed,
                        prompt,
                        stops,
                        generated,
                    });
                    progress = Progress::Made;
                }
                Err(AllocError::Exhausted { .. } | AllocError::MovesGated { .. }) => {
                    self.tally.retries += 1;
                    self.pending.push_front(Pending { request, generated, attempt });
                    break;
                }
                Err(AllocError::Impossible { .. }) => {
                    self.reject(Pending { request, generated, attempt });
                    progress = Progress::Made;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(progress)
    }

    /// Turns a request away for good.
    fn reject(&mut self, pending: Pending<'a>) {
        self.tally.rejected(u64::from(pending.attempt == Attempt::First));
        self.depart(pending.request);
    }

    /// Whether a request could run to its end beside those that run already, sharing nothing.
    fn may_admit(&self, request: &Request) -> bool {
        let whole = |request: &Request| {
            u64::from(request.input_tokens().0) + u64::from(request.output_tokens().0)
        };
        let running: u64 = self.running.iter().map(|running| whole(running.request)).sum();
        self.running.is_empty()
            || self.admission == Admission::Open
                && running + whole(request) <= self.drive.running_tokens
    }

    /// Where to publish: how far full pages alone matched, if a state would pay there, and the last boundary that a
    /// later prompt may share.
    fn stops(&self, found: Matched, reusable: Tokens, length: u32) -> VecDeque<u32> {
        let chain = self.handle.chain();
        let page = chain.page_tokens().0;
        let (matched, matched_full) = (found.tokens.0, found.full_tokens.0);
        let mut stops = VecDeque::new();
        if matched_full > matched && !chain.states().is_empty() {
            stops.push_back(matched_full);
        }
        let last = reusable.0.min(length) / page * page;
        if last > matched && stops.back() != Some(&last) {
            stops.retain(|stop| *stop < last);
            stops.push_back(last);
        }
        stops
    }

    /// Computes a chunk of each unfinished prompt, oldest first, within the step's budget.
    async fn prefill(&mut self) -> Result<Progress, AllocError> {
        let mut progress = Progress::None;
        let mut budget = self.drive.step_tokens.0;
        for running in &mut self.running {
            if running.computed == running.prompt {
                continue;
            }
            let until = running.stops.front().copied().unwrap_or(running.prompt);
            let count = self.drive.chunk.0.min(until - running.computed).min(budget);
            if count == 0 {
                break;
            }
            let asked = Instant::now();
            let extended = running.sequence.extend(Some(Tokens(count)), None).await;
            self.tally.allocation(asked.elapsed());
            match extended {
                Ok(_) => {
                    running.computed += count;
                    budget -= count;
                    progress = Progress::Made;
                }
                Err(error) if error.may_wait() => {
                    self.tally.retries += 1;
                    break;
                }
                Err(AllocError::Impossible { .. }) => {
                    // Longer than the arena: it can never be computed; `end_finished` drops it.
                    running.prompt = u32::MAX;
                    progress = Progress::Made;
                    continue;
                }
                Err(error) => return Err(error),
            }
            if running.stops.front() == Some(&running.computed) {
                running.stops.pop_front();
                match running.sequence.checkpoint(Publishing::PagesAndState, None).await {
                    Ok(_) => {}
                    // A checkpoint is worth having, not worth waiting for.
                    Err(error) if error.may_wait() => self.tally.checkpoints_skipped += 1,
                    Err(AllocError::Impossible { .. }) => self.tally.checkpoints_skipped += 1,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(progress)
    }

    /// One token of every request whose prompt is computed, in one message.
    async fn decode(&mut self) -> Result<Progress, AllocError> {
        if self.drive.decode == Decode::PromptsOnly {
            return Ok(Progress::None);
        }
        let mut items = Vec::new();
        let mut places = Vec::new();
        for (place, running) in self.running.iter_mut().enumerate() {
            if running.computed == running.prompt
                && let Some(&token) = running.answer.get(running.generated)
            {
                items.push((&mut running.sequence, vec![token]));
                places.push(place);
            }
        }
        if items.is_empty() {
            return Ok(Progress::None);
        }
        let mut progress = Progress::None;
        let asked = Instant::now();
        let appended = self.handle.append_many(items, None).await?;
        self.tally.step(asked.elapsed());
        for (place, appended) in places.into_iter().zip(appended) {
            let running = &mut self.running[place];
            match appended.stopped {
                None => {
                    running.generated += 1;
                    running.computed += 1;
                    running.prompt += 1;
                    self.tally.tokens_out += 1;
                    progress = Progress::Made;
                }
                Some(error) if error.may_wait() => self.tally.retries += 1,
                Some(AllocError::Impossible { .. }) => {
                    running.prompt = u32::MAX;
                    progress = Progress::Made;
                }
                Some(error) => return Err(error),
            }
        }
        Ok(progress)
    }

    /// Publishes and closes every request that has all its tokens.
    async fn end_finished(&mut self) -> Result<Progress, AllocError> {
        let mut progress = Progress::None;
        let mut place = 0;
        while place < self.running.len() {
            let running = &self.running[place];
            let too_long = running.prompt == u32::MAX;
            let decoded = self.drive.decode == Decode::PromptsOnly
                || running.generated >= running.answer.len();
            let ended = running.computed == running.prompt && decoded;
            if !(too_long || ended) {
                place += 1;
                continue;
            }
            let running = self.running.remove(place);
            progress = Progress::Made;
            self.admission = Admission::Open;
            self.depart(running.request);
            if too_long {
                self.tally.cut_short += 1;
                continue;
            }
            let publishing = running.leaves(Publishing::PagesAndState);
            running.sequence.finish(publishing).await?;
            self.tally.finished += 1;
        }
        Ok(progress)
    }

    /// Takes memory back from the request admitted last, so that those before it can go on.
    async fn retract(&mut self) -> Result<(), AllocError> {
        let Some(running) = self.running.pop() else {
            // Nothing runs and the first pending request still found no room: nobody will ever make some.
            if let Some(pending) = self.pending.pop_front() {
                self.reject(pending);
            }
            return Ok(());
        };
        self.tally.retractions += 1;
        self.admission = Admission::Held;
        let publishing = running.leaves(Publishing::Pages);
        let Running { request, sequence, generated, .. } = running;
        if self.running.is_empty() {
            // Alone, and still short: it cannot be served at all.
            drop(sequence);
            self.tally.cut_short += 1;
            self.depart(request);
            return Ok(());
        }
        sequence.finish(publishing).await?;
        let attempt = Attempt::Later;
        self.pending.push_front(Pending { request, generated, attempt });
        Ok(())
    }
}
