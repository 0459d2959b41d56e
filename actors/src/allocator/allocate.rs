//! One allocation: bind what fits, else plan, detach, prepare, commit (design section 5).

use kameo::actor::ActorRef;
use kvtide_core::arena::{CopiedBatches, CopyBatch, Grant, Prepare, Question, Victims};
use kvtide_core::demand::Demand;
use kvtide_core::tree::{Detached, PlanRefusal};
use kvtide_core::unit::{Pages, PoolId, VirtId};

use super::job::{Job, Moved, Moving, Purpose};
use super::{Allocator, Content, Progress, gone};
use crate::compactor::{CopyOutcome, CopyPages};
use crate::device::{Command, CopyTicket, PageWrite, PoolWrites, Reply, Tag};
use crate::error::{AllocError, ServiceError};
use crate::message::Receipt;
use crate::radix::{Attach, Detach, Evict, PlanReclaim};

/// How an attempt to allocate went, when it did not fail.
enum Attempt {
    /// The pages are bound.
    Granted(Grant),
    /// Pages must move first; the copies are ready to be launched.
    Moving(Launch),
    /// It needs a prepare while another is under way.
    Deferred,
}

/// A prepare that has begun, and its copies.
struct Launch {
    prepare: Prepare,
    moved: Moved,
    detached: Option<Detached>,
    batches: Vec<CopyBatch>,
}

impl Allocator {
    /// Runs a job until it is answered or set aside.
    pub(super) async fn run(&mut self, mut job: Job, me: &ActorRef<Self>) {
        loop {
            let demand = match self.next_demand(&mut job).await {
                Ok(Some(demand)) => demand,
                Ok(None) => return self.complete(job, me).await,
                Err(error) => match self.refuse(job, error).await {
                    Some(rest) => {
                        job = rest;
                        continue;
                    }
                    None => return,
                },
            };
            job.demand = demand;
            match self.attempt(&demand, &mut job).await {
                Ok(Attempt::Granted(grant)) => {
                    job.served();
                    self.apply(&mut job, grant).await;
                }
                Ok(Attempt::Moving(launch)) => {
                    return self.launch(launch, Purpose::Job(Box::new(job)), me).await;
                }
                Ok(Attempt::Deferred) => match self.defer(job, me) {
                    Some((rest, busy)) => match self.refuse(rest, busy).await {
                        Some(rest) => job = rest,
                        None => return,
                    },
                    None => return,
                },
                Err(error) if error.may_wait() && job.deadline.is_some() => {
                    match self.enqueue(job, error, me) {
                        Some((rest, error)) => match self.refuse(rest, error).await {
                            Some(rest) => job = rest,
                            None => return,
                        },
                        None => return,
                    }
                }
                Err(error) => match self.refuse(job, error).await {
                    Some(rest) => job = rest,
                    None => return,
                },
            }
        }
    }

    /// Tries to meet `demand`. On an error nothing has changed (I10).
    async fn attempt(&mut self, demand: &Demand, job: &mut Job) -> Result<Attempt, AllocError> {
        if let Some(placement) = self.arena.place(demand) {
            if self.delays_head(job, demand) {
                return Err(self.exhausted_by_queue(demand).await?);
            }
            let grant = self.arena.bind(placement);
            self.totals.granted += 1;
            return Ok(Attempt::Granted(grant));
        }
        self.check_possible(demand)?;
        if self.moving.is_some() {
            return Ok(Attempt::Deferred);
        }
        if self.delays_head(job, demand) {
            return Err(self.exhausted_by_queue(demand).await?);
        }
        let plan = self.plan(demand).await?;
        self.totals.plans += 1;
        tracing::debug!(
            victims = plan.victims().len(),
            matchable_lost = plan.matchable_lost().0,
            "planned"
        );
        let detached = self.radix.ask(Detach(plan)).await.map_err(gone)?.0;
        let Ok(detached) = detached else {
            debug_assert!(false, "I11: nothing comes between a plan and its detachment");
            return Ok(Attempt::Deferred);
        };
        let victims = Victims { pages: detached.victims().clone() };
        let prepare = match self.arena.plan_prepare(demand, &victims) {
            Ok(plan) => plan,
            Err(bound) => {
                self.attach(detached, &Victims::default()).await?;
                debug_assert!(false, "section 4: a plan that fits has a layout");
                return Err(self.exhausted(demand, self.refusal(bound)).await?);
            }
        };
        if prepare.moved_pages() == Pages(0) {
            let begun = self.arena.begin(prepare);
            let grant = self.arena.commit(begun);
            self.evict(Some(detached), &mut job.receipt).await?;
            // Victims leave holes, which eager packing closes.
            self.note_progress();
            self.totals.granted += 1;
            return Ok(Attempt::Granted(grant));
        }
        job.receipt.prepares += 1;
        let moved = Moved { pages: prepare.moved_pages(), bytes: prepare.moved_bytes() };
        let prepare = self.arena.begin(prepare);
        let batches = prepare.batches(self.policy.pages_per_launch);
        Ok(Attempt::Moving(Launch { prepare, moved, detached: Some(detached), batches }))
    }

    /// Hands a prepare's copies to the compactor and sets its purpose aside.
    async fn launch(&mut self, launch: Launch, purpose: Purpose, me: &ActorRef<Self>) {
        let ticket = CopyTicket(self.fresh());
        let Launch { prepare, moved, detached, batches } = launch;
        let copies = CopyPages { ticket, batches: batches.clone(), allocator: me.clone() };
        tracing::debug!(ticket = ticket.0, pages = moved.pages.0, bytes = moved.bytes.0, "moving");
        self.moving = Some(Moving { ticket, prepare, batches, moved, detached, purpose });
        self.totals.prepares += 1;
        if self.compactor.tell(copies).send().await.is_err() {
            let lost = CopyOutcome::lost();
            self.end_prepare(lost).await;
        }
    }

    /// Moves holes together: eagerly, or because a pass was asked for.
    pub(super) async fn launch_compaction(
        &mut self,
        plan: kvtide_core::arena::PreparePlan,
        purpose: Purpose,
        me: &ActorRef<Self>,
    ) {
        let moved = Moved { pages: plan.moved_pages(), bytes: plan.moved_bytes() };
        let prepare = self.arena.begin(plan);
        let batches = prepare.batches(self.policy.pages_per_launch);
        self.launch(Launch { prepare, moved, detached: None, batches }, purpose, me).await;
    }

    /// Commits the prepare under way, or takes it back.
    pub(super) async fn end_prepare(&mut self, outcome: CopyOutcome) {
        let Some(moving) = self.moving.take() else { return };
        let Moving { prepare, batches, moved, detached, purpose, .. } = moving;
        self.epoch += 1;
        let failure = outcome.failure();
        tracing::debug!(failed = failure.is_some(), "moved");
        let mut receipt = Receipt::default();
        let result = match failure {
            None => {
                self.totals.moved_pages += u64::from(moved.pages.0);
                self.totals.moved_bytes.0 += moved.bytes.0;
                let grant = self.arena.commit(prepare);
                receipt.moved_pages = u64::from(moved.pages.0);
                receipt.moved_bytes = moved.bytes;
                let evicted = self.evict(detached, &mut receipt).await;
                evicted.map(|()| grant).map_err(AllocError::from)
            }
            Some(failure) => {
                let copied = CopiedBatches::of(&batches, failure.landed, failure.launched);
                let aborted = self.arena.abort(prepare, copied);
                self.totals.moved_pages += u64::from(aborted.moved.0);
                self.totals.moved_bytes.0 += aborted.moved_bytes.0;
                receipt.moved_pages = u64::from(aborted.moved.0);
                receipt.moved_bytes = aborted.moved_bytes;
                let attached = match detached {
                    Some(detached) => self.attach(detached, &aborted.lost).await,
                    None => Ok(()),
                };
                Err(attached.err().map_or(failure.error, AllocError::from))
            }
        };
        match (&purpose, &result) {
            // Packed again at once it would fail for ever, should the device always fail.
            (Purpose::Pack, Err(_)) if self.progress == Progress::None => {
                self.progress = Progress::Ended;
            }
            _ => self.note_progress(),
        }
        match (purpose, result) {
            (Purpose::Job(mut job), Ok(grant)) => {
                self.totals.granted += 1;
                job.receipt.add(&receipt);
                job.served();
                self.apply(&mut job, grant).await;
                // What was held up meanwhile comes first.
                self.deferred.push_front(*job);
            }
            (Purpose::Job(mut job), Err(error)) => {
                job.receipt.add(&receipt);
                if let Some(rest) = self.refuse(*job, error).await {
                    self.deferred.push_front(rest);
                }
            }
            (Purpose::Compact(reply), result) => {
                receipt.prepares = 1;
                let _ = reply.send(result.map(|_| receipt));
            }
            (Purpose::Pack, _) => {}
        }
    }

    /// A plan for `demand`, or why there is none. Changes nothing.
    pub(super) async fn plan(
        &self,
        demand: &Demand,
    ) -> Result<kvtide_core::tree::ReclaimPlan, AllocError> {
        let refused = match self.ask_plan(demand, Question::AfterMoves).await? {
            Ok(plan) => return Ok(plan),
            Err(refused) => refused,
        };
        if !self.gates.is_empty() && self.ask_plan(demand, Question::GatesOpen).await?.is_ok() {
            return Err(AllocError::MovesGated { gates: self.gates_in_the_way(demand).await? });
        }
        let refusal = match refused {
            PlanRefusal::Exhausted { bound, .. } => self.refusal(bound),
            PlanRefusal::Quota { .. } => crate::error::Refusal::Quota(refused.to_string()),
        };
        Err(self.exhausted(demand, refusal).await?)
    }

    /// Asks the radix actor for a plan, with gates as they are or as if they were open.
    async fn ask_plan(
        &self,
        demand: &Demand,
        question: Question,
    ) -> Result<Result<kvtide_core::tree::ReclaimPlan, PlanRefusal>, AllocError> {
        let request = PlanReclaim {
            geometry: self.arena.geometry(question),
            demand: *demand,
            gated: self.arena.gated().filter(|_| question == Question::AfterMoves),
            prefer: self.policy.prefer,
            quota: self.policy.quota,
        };
        Ok(self.radix.ask(request).await.map_err(gone)?.0)
    }

    /// Reasons of the gates that keep `demand` out each by itself; of all, if they do so only together.
    async fn gates_in_the_way(&self, demand: &Demand) -> Result<Vec<String>, AllocError> {
        let counted = self.radix.ask(crate::radix::Count).await.map_err(gone)?.0;
        let gated = self.arena.geometry(Question::AfterMoves);
        let blocks = |gate: &&super::Gate| {
            let mut alone = self.arena.geometry(Question::GatesOpen);
            for pool in self.chain.pool_ids() {
                let evictable = counted.evictable(pool);
                let fit = alone.pool_mut(pool);
                fit.live = Pages(fit.live.0.saturating_sub(evictable.0));
                if gate.pools.contains(&pool) {
                    fit.pins = gated.pool(pool).pins;
                }
            }
            alone.fits(demand).is_err()
        };
        let reasons =
            |gates: Vec<&super::Gate>| gates.iter().map(|gate| gate.reason.clone()).collect();
        let alone: Vec<&super::Gate> = self.gates.values().filter(blocks).collect();
        Ok(reasons(if alone.is_empty() { self.gates.values().collect() } else { alone }))
    }

    /// Whether an empty arena could hold `demand`.
    pub(super) fn check_possible(&self, demand: &Demand) -> Result<(), AllocError> {
        let geometry = self.arena.geometry(Question::Now);
        geometry.fits_empty(demand).map_err(|bound| AllocError::Impossible {
            demand: self.amounts(|pool| demand.0[pool]),
            capacity: self.amounts(|pool| self.chain.pages_max(pool)),
            bound: self.refusal(bound),
        })
    }

    /// Tells the tree that its victims are gone for good.
    async fn evict(
        &mut self,
        detached: Option<Detached>,
        receipt: &mut Receipt,
    ) -> Result<(), ServiceError> {
        let Some(detached) = detached else { return Ok(()) };
        for pool in self.chain.pool_ids() {
            let count = detached.victims()[pool].len() as u32;
            receipt.evicted[pool].0 += count;
            self.totals.evicted[pool] += u64::from(count);
        }
        self.totals.matchable_lost += u64::from(detached.matchable_lost().0);
        self.radix.tell(Evict(detached)).send().await.map_err(|_| ServiceError::Reset)
    }

    /// Puts victims back, all but those whose pages were overwritten; what cannot go back is freed.
    async fn attach(&mut self, detached: Detached, lost: &Victims) -> Result<(), ServiceError> {
        let lost: Vec<(PoolId, VirtId)> = self
            .chain
            .pool_ids()
            .flat_map(|pool| lost.pages[pool].iter().map(move |&virt| (pool, virt)))
            .collect();
        let homeless = self.radix.ask(Attach { detached, lost }).await;
        let mut homeless = homeless.map_err(|_| ServiceError::Reset)?.0;
        for &(pool, _) in &homeless {
            self.totals.evicted[pool] += 1;
        }
        // The arena has freed those that were overwritten.
        homeless.retain(|&(pool, virt)| self.arena.is_bound(pool, virt));
        let full = self.chain.full();
        // Window pages before the full pages that they are bound under.
        homeless.sort_by_key(|&(pool, _)| Some(pool) == full);
        self.free(homeless);
        Ok(())
    }

    /// Writes the content of pages that were just handed out.
    pub(super) async fn write(&mut self, grant: &Grant) {
        if self.policy.content == Content::None {
            return;
        }
        let mut pages = Vec::new();
        if let Some(full) = self.chain.full() {
            pages.extend(grant.pages.iter().map(|&virt| (full, virt)));
            for &pool in self.chain.windows() {
                let bare = grant.pages.len() - grant.windows[pool].index();
                pages.extend(grant.pages[bare..].iter().map(|&virt| (pool, virt)));
            }
        }
        for &pool in self.chain.states() {
            pages.extend(grant.states[pool].iter().map(|&virt| (pool, virt)));
        }
        let mut writes: Vec<PoolWrites> = Vec::new();
        for (pool, virt) in pages {
            let (Some(page), Some(tag)) =
                (self.arena.locate(pool, virt), self.arena.content(pool, virt))
            else {
                continue;
            };
            let write = PageWrite { page, tag: Tag(tag.0) };
            match writes.last_mut() {
                Some(last) if last.pool == pool => last.pages.push(write),
                _ => writes.push(PoolWrites { pool, pages: vec![write] }),
            }
        }
        // A worker that is gone fails the next copy or verification; no page is read before that.
        if let Ok(room) = self.worker.reserve().await {
            room.send(Command::Write { writes, done: Reply::ignore() });
        }
    }

    /// Notes that something may have become possible for those who wait.
    pub(super) fn note_progress(&mut self) {
        self.progress = Progress::Memory;
    }
}
