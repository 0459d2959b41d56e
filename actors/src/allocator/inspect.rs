//! Questions that change nothing, and the numbers in refusals.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvtide_core::arena::{Question, Victims};
use kvtide_core::demand::Demand;
use kvtide_core::fit::Bound;
use kvtide_core::tree::{Namespace, SessionId};
use kvtide_core::unit::{Pages, PoolId, VirtId};

use super::job::{Job, Purpose};
use super::{Allocator, gone};
use crate::device::{Command, DeviceLost, PageCheck, Tag};
use crate::error::{AllocError, Amounts, Refusal, ServiceError};
use crate::message::{Matched, Receipt, Reply, Request};
use crate::radix;
use crate::report::{Explanation, OUTCOMES, Plan, PoolStats, Stats, Verified};

impl Allocator {
    pub(super) async fn inspect(&mut self, request: Request) {
        match request {
            Request::Cached { namespace, tokens, reply } => {
                let _ = reply.send(self.cached(namespace, tokens).await);
            }
            Request::CloseSession { namespace, session, reply } => {
                let _ = reply.send(self.close_session(namespace, session).await);
            }
            Request::Explain { demand, reply } => drop(reply.send(self.explain(&demand).await)),
            Request::Flush { reply } => drop(reply.send(self.flush().await)),
            Request::Stats { reply } => drop(reply.send(self.stats().await)),
            Request::Verify { reply } => match self.audit().await {
                Ok(pages) => self.verify_content(pages, reply).await,
                Err(error) => drop(reply.send(Err(error))),
            },
            _ => {}
        }
    }

    async fn cached(
        &self,
        namespace: Namespace,
        tokens: Vec<kvtide_core::unit::Token>,
    ) -> Result<Matched, AllocError> {
        let matched = self.radix.ask(radix::Peek { namespace, tokens }).await.map_err(gone)?.0;
        let page = self.chain.page_tokens();
        Ok(Matched {
            tokens: matched.pages.tokens(page),
            full_tokens: matched.full_pages.tokens(page),
        })
    }

    async fn explain(&self, demand: &Demand) -> Result<Explanation, AllocError> {
        demand.check(&self.chain)?;
        let fits = |question| self.arena.geometry(question).fits(demand).is_ok();
        let verdict = match self.check_possible(demand) {
            Ok(()) => self.explain_plan(demand).await,
            Err(error) => Err(error),
        };
        if let Err(AllocError::Service(error)) = verdict {
            return Err(error.into());
        }
        Ok(Explanation {
            fits_now: fits(Question::Now),
            fits_after_moves: fits(Question::AfterMoves),
            verdict,
        })
    }

    async fn explain_plan(&self, demand: &Demand) -> Result<Plan, AllocError> {
        if self.arena.place(demand).is_some() {
            return Ok(Plan::default());
        }
        let plan = self.plan(demand).await?;
        let mut victims = Victims::default();
        for victim in plan.victims() {
            victims.pages[victim.pool].push(victim.virt);
        }
        let mut explained = Plan {
            evicted: plan.evicted(),
            matchable_lost: u64::from(plan.matchable_lost().0),
            ..Plan::default()
        };
        if let Ok(prepare) = self.arena.plan_prepare(demand, &victims) {
            explained.moved_bytes = prepare.moved_bytes();
        }
        Ok(explained)
    }

    async fn close_session(
        &mut self,
        namespace: Namespace,
        session: SessionId,
    ) -> Result<(), AllocError> {
        let unknown = AllocError::UnknownName(format!("no session `{}` holds anything", session.0));
        let question = radix::CloseSession { namespace, session };
        let held = self.radix.ask(question).await.map_err(gone)?.0;
        if held { Ok(()) } else { Err(unknown) }
    }

    async fn flush(&mut self) -> Result<Receipt, AllocError> {
        let victims = self.radix.ask(radix::Flush).await.map_err(gone)?.0;
        let mut receipt = Receipt::default();
        let full = self.chain.full();
        // Window pages before the full pages that they are bound under.
        let (last, first): (Vec<PoolId>, Vec<PoolId>) =
            self.chain.pool_ids().partition(|pool| Some(*pool) == full);
        for pool in first.into_iter().chain(last) {
            receipt.evicted[pool] = Pages(victims[pool].len() as u32);
            self.totals.evicted[pool] += victims[pool].len() as u64;
            self.free(victims[pool].iter().map(|&virt| (pool, virt)));
        }
        Ok(receipt)
    }

    async fn stats(&self) -> Result<Stats, AllocError> {
        let counted = self.radix.ask(radix::Count).await.map_err(gone)?.0;
        let pools = self.chain.pool_ids().map(|pool| PoolStats {
            name: Arc::clone(&self.names[pool.index()]),
            page_tokens: kvtide_core::sequence::tokens_of_page(&self.chain, pool),
            page_bytes: self.chain.pool(pool).page_bytes,
            capacity: self.chain.pages_max(pool),
            counts: self.arena.counts(pool),
            free: self.free_pages(pool),
            cached: counted.cached[pool],
            locked: counted.locked[pool],
            evictable: counted.evictable(pool),
        });
        Ok(Stats {
            total: self.chain.total(),
            sink: self.chain.sink(),
            pools: pools.collect(),
            matchable: counted.matchable(),
            sequences: self.sequences.len() as u64,
            waiting: self.waiting.len() as u64,
            leases: self.steps.len() as u64,
            gates: self.gates.len() as u64,
            totals: self.totals,
        })
    }

    /// Checks every invariant; the live pages whose content must be right.
    async fn audit(&mut self) -> Result<Vec<PageCheck>, AllocError> {
        let corrupt = |what: String| AllocError::Service(ServiceError::Corrupt(what));
        self.arena.check().map_err(|violation| corrupt(violation.to_string()))?;
        let audited = self.radix.ask(radix::Audit).await.map_err(gone)?;
        audited.verdict.map_err(corrupt)?;
        let victims: BTreeSet<(PoolId, VirtId)> = self.underway_victims();
        self.check_owners(&audited.owned, &victims).map_err(corrupt)?;
        if self.sequences.is_empty() && self.steps.is_empty() && self.jobs().next().is_none() {
            let locked = self.chain.pool_ids().find(|&p| audited.locked[p] != Pages(0));
            if let Some(pool) = locked {
                let name = &self.names[pool.index()];
                return Err(corrupt(format!("I9 locks-at-rest: pool {name} has locked pages")));
            }
        }
        let live = self.arena.live_pages();
        // Until its commit, what a prepare moves or evicts may have been written over where it lay.
        let live = live.filter(|(pool, virt, ..)| !self.arena.is_moving(*pool, *virt));
        Ok(live.map(|(pool, _, page, tag)| PageCheck { pool, page, tag: Tag(tag.0) }).collect())
    }

    /// Victims of the prepare under way: detached from the tree, not evicted yet.
    fn underway_victims(&self) -> BTreeSet<(PoolId, VirtId)> {
        let detached = self.moving.as_ref().and_then(|moving| moving.detached.as_ref());
        let victims = |pool: PoolId| {
            let pages = detached.map(|detached| detached.victims()[pool].as_slice());
            pages.unwrap_or_default().iter().map(move |&virt| (pool, virt))
        };
        self.chain.pool_ids().flat_map(victims).collect()
    }

    /// Every job that is not answered yet.
    fn jobs(&self) -> impl Iterator<Item = &Job> {
        let moving = self.moving.iter().filter_map(|moving| match &moving.purpose {
            Purpose::Job(job) => Some(&**job),
            Purpose::Compact(_) | Purpose::Pack => None,
        });
        let copying = self.copying.values().map(|copying| &copying.job);
        let waiting = self.waiting.iter().map(|waiting| &waiting.job);
        moving.chain(copying).chain(waiting).chain(&self.deferred)
    }

    /// I4: every live page is the tree's, or sequences', or an allocation's under way, and nobody's twice.
    fn check_owners(
        &self,
        cached: &[(PoolId, VirtId)],
        victims: &BTreeSet<(PoolId, VirtId)>,
    ) -> Result<(), String> {
        let mut owners: BTreeSet<(PoolId, VirtId)> = victims.clone();
        let mut claim = |pages: &mut dyn Iterator<Item = (PoolId, VirtId)>, who: &str| {
            for page in pages {
                if !owners.insert(page) {
                    return Err(format!("I4 one-owner: {page:?} of {who} is another's too"));
                }
            }
            Ok(())
        };
        claim(&mut cached.iter().copied(), "the tree")?;
        let mut sharers: BTreeMap<(PoolId, VirtId), u32> = BTreeMap::new();
        for slot in self.sequences.values() {
            for page in slot.sequence.owned(&self.chain) {
                *sharers.entry(page).or_default() += 1;
            }
        }
        claim(&mut sharers.keys().copied(), "sequences")?;
        sharers.retain(|_, count| {
            *count -= 1;
            *count > 0
        });
        if sharers != self.shares {
            return Err(format!(
                "I4 references: forks share {sharers:?}, but {:?} are counted",
                self.shares
            ));
        }
        for (id, reserved) in &self.reservations {
            claim(&mut reserved.pages(&self.chain).into_iter(), &format!("{id:?}"))?;
        }
        for job in self.jobs() {
            claim(&mut job.owned(&self.chain).into_iter(), "an allocation under way")?;
        }
        let live: BTreeSet<(PoolId, VirtId)> =
            self.arena.live_pages().map(|(pool, virt, ..)| (pool, virt)).collect();
        match live.symmetric_difference(&owners).next() {
            Some(page) => Err(format!(
                "I4 owners-known: {page:?} is live without an owner, or owned but not live"
            )),
            None => Ok(()),
        }
    }

    /// Has the worker read pages; answers when it has.
    async fn verify_content(&mut self, pages: Vec<PageCheck>, reply: Reply<Verified>) {
        let count = pages.len() as u64;
        let (done, reading) = crate::device::Reply::channel();
        if let Ok(room) = self.worker.reserve().await {
            room.send(Command::Verify { pages, done });
        }
        tokio::spawn(async move {
            let verified = match reading.await.unwrap_or(Err(DeviceLost)) {
                Ok(Ok(read)) => Ok(Verified { pages: count, compared: read.verified }),
                Ok(Err(wrong)) => Err(ServiceError::Corrupt(format!("I7 content: {wrong}")).into()),
                Err(lost) => Err(ServiceError::DeviceLost(lost.to_string()).into()),
            };
            let _ = reply.send(verified);
        });
    }

    /// A refusal because not even eviction would do, with its numbers.
    pub(super) async fn exhausted(
        &self,
        demand: &Demand,
        bound: Refusal,
    ) -> Result<AllocError, AllocError> {
        let counted = self.radix.ask(radix::Count).await.map_err(gone)?.0;
        Ok(AllocError::Exhausted {
            demand: self.amounts(|pool| demand.0[pool]),
            free: self.amounts(|pool| self.free_pages(pool)),
            evictable: self.amounts(|pool| counted.evictable(pool)),
            locked: self.amounts(|pool| counted.locked[pool]),
            bound,
        })
    }

    /// The largest demand of one pool alone that fits as things lie. O(pools × log pages): fitting is monotone.
    fn free_pages(&self, pool: PoolId) -> Pages {
        let now = self.arena.geometry(Question::Now);
        let fits = |pages: u32| {
            Demand::default().with(pool, Pages(pages)).is_ok_and(|d| now.fits(&d).is_ok())
        };
        let (mut low, mut high) = (0, self.chain.pages_max(pool).0);
        while low < high {
            let middle = high - (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        Pages(low)
    }

    /// Pages per pool as amounts by name.
    pub(super) fn amounts(&self, pages: impl Fn(PoolId) -> Pages) -> Amounts {
        let amount = |pool: PoolId| {
            let tokens = kvtide_core::sequence::tokens_of_page(&self.chain, pool);
            let amount = u64::from(pages(pool).0) * u64::from(tokens.0);
            (Arc::clone(&self.names[pool.index()]), amount)
        };
        Amounts(self.chain.pool_ids().map(amount).collect())
    }

    pub(super) fn refusal(&self, bound: Bound) -> Refusal {
        Refusal::Fit { pool: Arc::clone(&self.names[bound.pool().index()]), bound }
    }

    pub(super) fn note_refused(&mut self, error: &AllocError) {
        tracing::debug!(%error, "refused");
        let name = match error.name() {
            "invalid_demand" | "invalid_operation" | "unknown_name" | "unsupported" => "invalid",
            "reset" | "stopped" | "device_lost" | "corrupt" => "service",
            other => other,
        };
        if let Some(place) = OUTCOMES.iter().position(|outcome| *outcome == name) {
            self.totals.refused[place] += 1;
        }
    }
}
