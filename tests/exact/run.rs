//! Runs a case's operations against a real service.

use super::case::{Case, Kind, Op, Prompt, token};
use super::judge::{Before, Call, demand_of, judge};
use super::oracle::{Counts, Oracle, Pins};
use kvtide::error::AllocError;
use kvtide::handle::{CacheHandle, MoveGate, OpenOptions, Reservation, Sequence, StepLease};
use kvtide::message::{Publishing, Receipt};
use kvtide::report::Stats;
use kvtide::service::CacheService;
use kvtide_core::demand::ExactDemand;
use kvtide_core::tree::Namespace;
use kvtide_core::unit::{Bytes, PoolId, Tokens};

/// A case under way.
pub struct Run<'a> {
    case: &'a Case,
    service: CacheService,
    cache: CacheHandle,
    oracle: Oracle,
    watch: Watch,
    open: Vec<Opened>,
    reserved: Vec<Reservation>,
    steps: Vec<Step>,
    gates: Vec<MoveGate>,
    /// Allocations judged.
    pub judged: u64,
    /// Among them, those that were refused.
    pub refused: u64,
    /// And those that evicted something.
    pub evicted: u64,
    /// Whether the last step was refused while a gate was closed, with nothing but its demand to decide that.
    pub gated: bool,
}

/// Whether outcomes are judged, or only brought about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Watch {
    Judge,
    Replay,
}

/// An open sequence, and what a client knows of it. Counts in tokens.
struct Opened {
    sequence: Sequence,
    family: u32,
    prompt: u32,
    computed: u32,
    /// As far as it shares pages with the tree.
    boundary: u32,
}

/// An open lease, and the pages that it keeps in place.
struct Step {
    lease: StepLease,
    pages: Vec<(usize, u64)>,
}

/// What is left to see at the end of a run.
pub type End = (Stats, Vec<(u32, u32)>);

impl<'a> Run<'a> {
    pub async fn start(case: &'a Case, watch: Watch) -> Self {
        let service = CacheService::start(case.config()).await.unwrap();
        let cache = service.handle();
        Run {
            case,
            cache,
            service,
            oracle: Oracle::new(case),
            watch,
            open: Vec::new(),
            reserved: Vec::new(),
            steps: Vec::new(),
            gates: Vec::new(),
            judged: 0,
            refused: 0,
            evicted: 0,
            gated: false,
        }
    }

    /// Runs one operation, at most `limit` allocations of it; says how many were granted.
    pub async fn step(&mut self, op: &Op, limit: u32) -> Result<u32, String> {
        if limit == 0 {
            return Ok(0);
        }
        self.gated = false;
        let granted = self.act(op, limit).await?;
        // Handles dropped at once are taken back one by one, however many requests come in between.
        self.cache.settle().await.map_err(text)?;
        Ok(granted)
    }

    async fn act(&mut self, op: &Op, limit: u32) -> Result<u32, String> {
        match *op {
            Op::Open { prompt } => self.open(prompt).await,
            Op::Extend { which, tokens } => match self.place(which) {
                Some(place) => self.extend(place, tokens).await,
                None => Ok(0),
            },
            Op::Append { which, tokens } => self.append(which, tokens.min(limit)).await,
            Op::Checkpoint { which, how } => self.checkpoint(which, how).await,
            Op::Finish { which, how } => match self.place(which) {
                Some(place) => self.finish(place, publishing(how)).await.map(|()| 1),
                None => Ok(0),
            },
            Op::Drop { which } => {
                if let Some(place) = self.place(which) {
                    drop(self.open.remove(place));
                }
                Ok(1)
            }
            Op::Reserve { pages } => self.reserve(pages).await,
            Op::Release { which, pools } => self.release(which, pools).await.map(|()| 1),
            Op::Insert { prompt } => self.insert(prompt, limit).await,
            _ => self.hold(op).await.map(|()| 1),
        }
    }

    async fn hold(&mut self, op: &Op) -> Result<(), String> {
        let named = |mask: u32| {
            let pools = (0..self.case.pools.len() as u8).map(PoolId);
            pools.filter(move |pool| mask >> pool.0 & 1 == 1).collect::<Vec<_>>()
        };
        match *op {
            Op::BeginStep { mask } => self.begin_step(mask).await?,
            Op::EndStep { which } if !self.steps.is_empty() => {
                drop(self.steps.remove(which as usize % self.steps.len()));
            }
            Op::CloseMoves { mask } if self.gates.len() < 2 => {
                let gate = self.cache.close_moves("test", &named(mask)).await;
                self.gates.push(gate.map_err(text)?);
            }
            Op::OpenMoves { which } if !self.gates.is_empty() => {
                drop(self.gates.remove(which as usize % self.gates.len()));
            }
            Op::Flush => drop(self.cache.flush().await.map_err(text)?),
            Op::Compact { bytes } => drop(self.cache.compact(Bytes(bytes)).await.map_err(text)?),
            _ => {}
        }
        Ok(())
    }

    fn place(&self, which: u32) -> Option<usize> {
        (!self.open.is_empty()).then(|| which as usize % self.open.len())
    }

    async fn open(&mut self, prompt: Prompt) -> Result<u32, String> {
        let (tokens, namespace) = (prompt.tokens(self.case), namespace(prompt.salted));
        let found = self.cache.cached(namespace.clone(), tokens.clone()).await.map_err(text)?;
        let demand = self.counts(|kind| u64::from(kind == Kind::State));
        let before = self.look(demand).await?;
        let options = OpenOptions { namespace, ..OpenOptions::default() };
        let opened = self.cache.open(tokens.clone(), options).await;
        let outcome = opened.as_ref().map(Sequence::receipt).map_err(AllocError::clone);
        let matched = u64::from(found.tokens.0 / self.case.page_tokens);
        self.judge(Call::Open { matched }, before, &outcome).await?;
        let Ok(sequence) = opened else { return Ok(0) };
        if sequence.matched() != found {
            return Err(format!("matched {:?}, a peek said {found:?}", sequence.matched()));
        }
        let (computed, boundary) = (found.tokens.0, found.tokens.0);
        let (family, prompt) = (prompt.family, tokens.len() as u32);
        self.open.push(Opened { sequence, family, prompt, computed, boundary });
        Ok(1)
    }

    async fn extend(&mut self, place: usize, tokens: u32) -> Result<u32, String> {
        let Opened { prompt, computed, .. } = self.open[place];
        let left = prompt.saturating_sub(computed);
        // One more than are left now and then: to be refused, and to change nothing.
        let count = tokens % (left + 2);
        if count > left {
            let before = self.look([0; 4]).await?;
            let past = self.open[place].sequence.extend(Some(Tokens(count)), None).await;
            return match (past, before) {
                (Err(AllocError::InvalidOperation(_)), None) => Ok(0),
                (Err(AllocError::InvalidOperation(_)), Some(before)) => {
                    let after = self.cache.stats().await.map_err(text)?;
                    let same = after.pools == before.stats.pools;
                    if same { Ok(0) } else { Err("an invalid extend changed something".into()) }
                }
                (other, _) => Err(format!("extended past the prompt: {other:?}")),
            };
        }
        let page = self.case.page_tokens;
        let pages = u64::from((computed + count).div_ceil(page) - computed.div_ceil(page));
        let demand = self.counts(|kind| if kind == Kind::State { 0 } else { pages });
        let before = self.look(demand).await?;
        let outcome = self.open[place].sequence.extend(Some(Tokens(count)), None).await;
        self.judge(Call::Only, before, &outcome).await?;
        if outcome.is_ok() {
            self.open[place].computed += count;
        }
        Ok(u32::from(outcome.is_ok()))
    }

    async fn append(&mut self, which: u32, tokens: u32) -> Result<u32, String> {
        let Some(place) = self.place(which) else { return Ok(0) };
        let page = self.case.page_tokens;
        if self.open[place].computed < self.open[place].prompt {
            return Ok(0);
        }
        for done in 0..tokens % (3 * page + 1) {
            let at = self.open[place].computed;
            let starts = u64::from(at.is_multiple_of(page));
            let demand = self.counts(|kind| if kind == Kind::State { 0 } else { starts });
            let before = self.look(demand).await?;
            let next = token(self.case, self.open[place].family, at);
            let appended = self.open[place].sequence.append(vec![next], None).await;
            let appended = appended.map_err(text)?;
            let outcome = appended.stopped.map_or(Ok(appended.receipt), Err);
            self.judge(Call::Append, before, &outcome).await?;
            if outcome.is_err() {
                return Ok(done);
            }
            self.open[place].computed += 1;
        }
        Ok(tokens % (3 * page + 1))
    }

    async fn checkpoint(&mut self, which: u32, how: u32) -> Result<u32, String> {
        let Some(place) = self.place(which) else { return Ok(0) };
        let (page, publishing) = (self.case.page_tokens, publishing(how));
        let opened = &self.open[place];
        let slots = opened.computed > 0
            && opened.computed.is_multiple_of(page)
            && publishing == Publishing::PagesAndState;
        let demand = self.counts(|kind| u64::from(slots && kind == Kind::State));
        let before = self.look(demand).await?;
        let outcome = self.open[place].sequence.checkpoint(publishing, None).await;
        self.judge(Call::Checkpoint, before, &outcome).await?;
        if outcome.is_ok() {
            let opened = &mut self.open[place];
            opened.boundary = opened.computed / page * page;
        }
        Ok(u32::from(outcome.is_ok()))
    }

    async fn finish(&mut self, place: usize, publishing: Publishing) -> Result<(), String> {
        let opened = self.open.remove(place);
        opened.sequence.finish(publishing).await.map_err(text)
    }

    async fn insert(&mut self, prompt: Prompt, limit: u32) -> Result<u32, String> {
        if self.open(prompt).await? == 0 {
            return Ok(0);
        }
        let place = self.open.len() - 1;
        let left = self.open[place].prompt - self.open[place].computed;
        if limit == 1 || self.extend(place, left).await? == 0 {
            self.open.pop();
            return Ok(1);
        }
        self.finish(place, Publishing::PagesAndState).await?;
        Ok(2)
    }

    async fn reserve(&mut self, pages: [u32; 4]) -> Result<u32, String> {
        let pools = self.case.pools.len();
        let mut demand: Counts =
            std::array::from_fn(|pool| if pool < pools { u64::from(pages[pool]) } else { 0 });
        let full = demand[self.case.full()];
        for (pool, spec) in self.case.pools.iter().enumerate() {
            if matches!(spec.kind, Kind::Window(_)) {
                demand[pool] = demand[pool].min(full);
            }
        }
        let before = self.look(demand).await?;
        let demand = ExactDemand::raw(self.cache.chain(), demand_of(demand)).map_err(text)?;
        let reserved = self.cache.reserve(demand, None).await;
        let outcome = reserved.as_ref().map(Reservation::receipt).map_err(AllocError::clone);
        self.judge(Call::Only, before, &outcome).await?;
        self.reserved.extend(reserved);
        Ok(u32::from(outcome.is_ok()))
    }

    async fn release(&mut self, which: u32, pools: Option<u32>) -> Result<(), String> {
        if self.reserved.is_empty() {
            return Ok(());
        }
        let place = which as usize % self.reserved.len();
        let Some(mask) = pools else {
            drop(self.reserved.remove(place));
            return Ok(());
        };
        let pools: Vec<PoolId> = (0..self.case.pools.len() as u8)
            .map(PoolId)
            .filter(|pool| mask >> pool.0 & 1 == 1)
            .collect();
        // Refused for what was given back already, or is bound under what is not.
        match self.reserved[place].release(&pools).await {
            Ok(_) | Err(AllocError::UnknownName(_) | AllocError::InvalidOperation(_)) => Ok(()),
            Err(other) => Err(text(other)),
        }
    }

    async fn begin_step(&mut self, mask: u32) -> Result<(), String> {
        if self.steps.len() >= 3 {
            return Ok(());
        }
        self.cache.settle().await.map_err(text)?;
        let in_step = |index: usize| mask >> (index % 8) & 1 == 1;
        let chosen: Vec<&Opened> =
            self.open.iter().enumerate().filter(|(at, _)| in_step(*at)).map(|(_, o)| o).collect();
        let sequences: Vec<&Sequence> = chosen.iter().map(|opened| &opened.sequence).collect();
        let lease = self.cache.begin_step(&sequences).await.map_err(text)?;
        let mut pages = Vec::new();
        for (opened, (_, table)) in chosen.iter().zip(lease.tables()) {
            let full = self.case.full();
            pages.extend(table.full.iter().map(|page| (full, u64::from(page.0))));
            let mut windows = table.windows.iter();
            let mut states = table.states.iter();
            for (pool, spec) in self.case.pools.iter().enumerate() {
                match spec.kind {
                    Kind::Full => {}
                    Kind::State => {
                        pages.extend(states.next().map(|page| (pool, u64::from(page.0))));
                    }
                    Kind::Window(window) => {
                        let (first, places) = windows.next().unwrap();
                        let covered = opened.computed.saturating_sub(window);
                        let from = opened.boundary.min(covered) / self.case.page_tokens;
                        let held = (first.0..).zip(places).filter(|(at, _)| *at >= from);
                        pages.extend(held.map(|(_, page)| (pool, u64::from(page.0))));
                    }
                }
            }
        }
        self.steps.push(Step { lease, pages });
        Ok(())
    }

    /// All that a judge wants to know before an allocation of `demand`.
    async fn look(&self, demand: Counts) -> Result<Option<Before>, String> {
        self.cache.settle().await.map_err(text)?;
        if self.watch == Watch::Replay {
            return Ok(None);
        }
        let stats = self.cache.stats().await.map_err(text)?;
        let explained = self.cache.explain(demand_of(demand)).await.map_err(text)?;
        let again = self.cache.explain(demand_of(demand)).await.map_err(text)?;
        if again != explained {
            return Err(format!("explained as {explained:?}, and then as {again:?}"));
        }
        let mut pins: Pins = [None; 4];
        for &(pool, page) in self.steps.iter().flat_map(|step| &step.pages) {
            let (low, high) = pins[pool].unwrap_or((page, page));
            pins[pool] = Some((low.min(page), high.max(page)));
        }
        Ok(Some(Before { stats, explained, demand, pins, gated: !self.gates.is_empty() }))
    }

    async fn judge(
        &mut self,
        call: Call,
        before: Option<Before>,
        outcome: &Result<Receipt, AllocError>,
    ) -> Result<(), String> {
        let Some(before) = before else { return Ok(()) };
        if matches!(call, Call::Only | Call::Open { .. }) || outcome.is_err() {
            self.cache.settle().await.map_err(text)?;
        }
        let after = self.cache.stats().await.map_err(text)?;
        self.judged += 1;
        self.refused += u64::from(outcome.is_err());
        self.gated = before.gated && call == Call::Only && outcome.is_err();
        let evicted = |receipt: &Receipt| receipt.evicted != Default::default();
        self.evicted += u64::from(outcome.as_ref().is_ok_and(evicted));
        judge(self.case, &mut self.oracle, call, &before, outcome, &after)
            .map_err(|wrong| format!("{call:?} of {:?}: {wrong}", before.demand))
    }

    pub async fn verify(&self) -> Result<(), String> {
        self.cache.verify().await.map(drop).map_err(text)
    }

    /// What there is to see: the numbers, and how far every text is cached.
    pub async fn end(&self) -> Result<End, String> {
        self.cache.settle().await.map_err(text)?;
        let mut stats = self.cache.stats().await.map_err(text)?;
        (stats.totals.refused, stats.totals.copy_nanos) = Default::default();
        let mut cached = Vec::new();
        for family in 0..6 {
            for salted in 0..2 {
                let prompt = Prompt { family, pages: 12, rest: 0, salted };
                let tokens = prompt.tokens(self.case);
                let found = self.cache.cached(namespace(salted), tokens).await.map_err(text)?;
                cached.push((found.tokens.0, found.full_tokens.0));
            }
        }
        Ok((stats, cached))
    }

    /// Gives everything back: nothing may be left.
    pub async fn tear_down(mut self) -> Result<(), String> {
        self.steps.drain(..).for_each(|step| drop(step.lease));
        self.open.clear();
        self.reserved.clear();
        self.gates.clear();
        self.cache.settle().await.map_err(text)?;
        self.verify().await?;
        let stats = self.cache.stats().await.map_err(text)?;
        for pool in &stats.pools {
            let counts = pool.counts;
            let busy = (pool.locked.0, counts.pending.0, counts.reserved.0);
            if counts.live != pool.cached || busy != (0, 0, 0) {
                return Err(format!("with nothing open: {pool:?}"));
            }
        }
        if (stats.sequences, stats.leases, stats.gates, stats.waiting) != (0, 0, 0, 0) {
            return Err(format!("with everything dropped: {stats:?}"));
        }
        self.cache.flush().await.map_err(text)?;
        let stats = self.cache.stats().await.map_err(text)?;
        if let Some(left) = stats.pools.iter().find(|pool| pool.counts != Default::default()) {
            return Err(format!("with all flushed: {left:?}"));
        }
        self.verify().await?;
        self.service.stop().await;
        Ok(())
    }

    /// Pages of every pool, by kind.
    fn counts(&self, of: impl Fn(Kind) -> u64) -> Counts {
        let count = |pool: usize| self.case.pools.get(pool).map_or(0, |pool| of(pool.kind));
        std::array::from_fn(count)
    }
}

fn namespace(salted: u32) -> Namespace {
    Namespace { salt: (salted > 0).then(|| "salt".into()), ..Namespace::default() }
}

fn publishing(how: u32) -> Publishing {
    match how {
        0 => Publishing::Nothing,
        1 => Publishing::Pages,
        _ => Publishing::PagesAndState,
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
