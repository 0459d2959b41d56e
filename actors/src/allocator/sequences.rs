//! Opening, extending, publishing and closing sequences.

use kameo::actor::ActorRef;
use kvtide_core::arena::{CopyBatch, Grant};
use kvtide_core::demand::WindowDemand;
use kvtide_core::sequence::{Sequence, SequenceError};
use kvtide_core::tree::{Fate, Namespace, Ordinals, User};
use kvtide_core::unit::{PoolId, Token, VirtId};
use tokio::time::Instant;

use super::append::unknown;
use super::job::{
    AppendWork, CheckpointWork, Claim, Copying, ExtendWork, Job, JobId, OpenWork, Priority, Work,
};
use super::{Activity, Allocator, Slot, gone};
use crate::compactor::{CopyOutcome, CopyPages};
use crate::device::CopyTicket;
use crate::error::AllocError;
use crate::message::{Matched, Opened, Publishing, Receipt, Reply, Request, Reserved, SequenceId};
use crate::radix;

impl Allocator {
    pub(super) fn job(&mut self, work: Work, deadline: Option<Instant>) -> Job {
        Job {
            id: JobId(self.fresh()),
            work,
            deadline,
            demand: Default::default(),
            priority: Priority::Newcomer,
            since: None,
            timer: None,
            receipt: Receipt::default(),
        }
    }

    pub(super) async fn open(
        &mut self,
        id: SequenceId,
        (namespace, user): (Namespace, User),
        tokens: Vec<Token>,
        deadline: Option<Instant>,
        reply: Reply<Opened>,
        me: &ActorRef<Self>,
    ) {
        let refused = match tokens.len() as u64 {
            0 => Some(SequenceError::NoTokens),
            asked if asked > u64::from(u32::MAX) => Some(SequenceError::TooLong { asked }),
            _ => None,
        };
        if let Some(error) = refused {
            let error = AllocError::from(error);
            self.note_refused(&error);
            let _ = reply.send(Err(error));
            return;
        }
        if self.chain.full().is_none() {
            let _ = reply.send(Err(AllocError::Unsupported(
                "sequences need a full pool; this chain keeps states only".into(),
            )));
            return;
        }
        let question = radix::Open { namespace: namespace.clone(), tokens, user };
        let answer = match self.radix.ask(question).await {
            Ok(answer) => answer,
            Err(error) => {
                let _ = reply.send(Err(gone(error)));
                return;
            }
        };
        let radix::Openings { tokens, lock, matched } = answer;
        let running = Vec::new();
        let work = OpenWork { id, namespace, tokens, matched, lock, running, reply };
        let job = self.job(Work::Open(work), deadline);
        self.run(job, me).await;
    }

    /// Serves a request about one sequence (or several, for an append), unless an operation that its owner gave up is
    /// still under way: then after that.
    pub(super) async fn serve_sequence(&mut self, request: Request, me: &ActorRef<Self>) {
        let named = match &request {
            Request::Extend { id, .. }
            | Request::Checkpoint { id, .. }
            | Request::Finish { id, .. } => Some(*id),
            _ => None,
        };
        if let Some(slot) = named.and_then(|id| self.sequences.get_mut(&id))
            && slot.activity != Activity::Idle
        {
            slot.queued.push_back(request);
            return;
        }
        match request {
            Request::Extend { id, count, windows, deadline, reply } => {
                match self.start_extend(id, count, windows) {
                    Ok((before, target, demand)) => {
                        let demand = Some(demand.into());
                        let work = ExtendWork { id, before, target, demand, reply };
                        let job = self.job(Work::Extend(work), deadline);
                        self.run(job, me).await;
                    }
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            Request::Append { items, deadline, reply } => {
                let done = Vec::with_capacity(items.len());
                let work = AppendWork { items: items.into_iter(), current: None, done, reply };
                let job = self.job(Work::Append(work), deadline);
                self.run(job, me).await;
            }
            Request::Checkpoint { id, publishing, deadline, reply } => {
                self.checkpoint(id, publishing, deadline, reply, me).await;
            }
            Request::Finish { id, publishing, reply } => {
                let result = self.finish(id, publishing).await;
                let _ = reply.send(result);
            }
            _ => {}
        }
    }

    fn start_extend(
        &mut self,
        id: SequenceId,
        count: Option<kvtide_core::unit::Tokens>,
        windows: WindowDemand,
    ) -> Result<
        (kvtide_core::unit::Tokens, kvtide_core::unit::Tokens, kvtide_core::demand::ExactDemand),
        AllocError,
    > {
        let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
        let target = slot.sequence.extend_target(count)?;
        let demand = slot.sequence.demand_to(&self.chain, target, windows)?;
        slot.activity = Activity::Working;
        Ok((slot.sequence.computed(), target, demand))
    }

    /// Publishes what is computed so far; with a state, if asked for, the model has one and none is there yet.
    async fn checkpoint(
        &mut self,
        id: SequenceId,
        publishing: Publishing,
        deadline: Option<Instant>,
        reply: Reply<Receipt>,
        me: &ActorRef<Self>,
    ) {
        match self.wants_state(id, publishing).await {
            Ok(true) => {
                if let Some(slot) = self.sequences.get_mut(&id) {
                    slot.activity = Activity::Working;
                }
                let slots = Vec::new();
                let work = CheckpointWork { id, slots, reply };
                let job = self.job(Work::Checkpoint(work), deadline);
                self.run(job, me).await;
            }
            Ok(false) => {
                let result = self.publish(id, None).await;
                let _ = reply.send(result.map(|()| Receipt::default()));
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Whether a checkpoint now would store a state that is not there yet.
    async fn wants_state(
        &mut self,
        id: SequenceId,
        publishing: Publishing,
    ) -> Result<bool, AllocError> {
        let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
        if publishing != Publishing::PagesAndState
            || self.chain.states().is_empty()
            || !slot.sequence.is_at_boundary(&self.chain)
        {
            return Ok(false);
        }
        let tokens = slot.sequence.publication(&self.chain).tokens;
        let lock = slot.sequence.take_lock();
        let answer = self.radix.ask(radix::HasState { lock, tokens }).await.map_err(gone)?;
        if let Some(slot) = self.sequences.get_mut(&id) {
            slot.sequence.put_lock(answer.lock);
        }
        Ok(!answer.found)
    }

    /// Adds whole computed pages to the tree and moves the sequence's hold to their end.
    async fn publish(
        &mut self,
        id: SequenceId,
        states: Option<Vec<VirtId>>,
    ) -> Result<(), AllocError> {
        let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
        let publication = slot.sequence.publication(&self.chain);
        if publication.pages.is_empty() && states.is_none() {
            return Ok(());
        }
        let lock = slot.sequence.take_lock();
        let pages = publication.pages.clone();
        let question = radix::Publish {
            lock,
            tokens: publication.tokens,
            pages: publication.pages,
            states: states.clone(),
        };
        let published = self.radix.ask(question).await.map_err(gone)?.0;
        for (page, fate) in pages.iter().zip(&published.fates) {
            self.settle_fate(page.virt, page.windows, fate);
        }
        if let Some(states) = states {
            let pools = self.chain.states().iter().copied().enumerate().zip(states);
            let kept = pools.filter(|((ordinal, _), _)| !published.states_taken.contains(*ordinal));
            let kept: Vec<_> = kept.map(|((_, pool), virt)| (pool, virt)).collect();
            self.free(kept);
        }
        if let Some(slot) = self.sequences.get_mut(&id) {
            slot.sequence.published(published.lock, &published.fates);
        }
        self.extend_lease_locks(id).await?;
        // What was this sequence's alone may now be another's to evict.
        self.note_progress();
        Ok(())
    }

    /// A duplicate's window pages heal the tree's tombstone or are freed, then the page itself is freed.
    fn settle_fate(&mut self, own: VirtId, windows: Ordinals, fate: &Fate) {
        let Fate::Duplicate { tree, healed } = fate else { return };
        if *tree == own {
            return;
        }
        let pools: Vec<PoolId> = self.chain.windows().to_vec();
        for (ordinal, pool) in pools.into_iter().enumerate() {
            if windows.contains(ordinal) && healed.contains(ordinal) {
                let bound = self.arena.rebind_window(pool, own, *tree);
                debug_assert!(bound.is_ok(), "I5: a healed tombstone is a bound full id");
            }
        }
        let full = self.chain.full();
        // Window pages that are still bound under it go with the full page.
        self.free(full.map(|full| (full, own)));
    }

    /// Publishes, and closes.
    async fn finish(&mut self, id: SequenceId, publishing: Publishing) -> Result<(), AllocError> {
        let wants_state = self.wants_state(id, publishing).await?;
        if publishing != Publishing::Nothing {
            let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
            let states = wants_state.then(|| slot.sequence.take_running());
            self.publish(id, states).await?;
        }
        self.close(id).await;
        Ok(())
    }

    /// Closes a sequence and gives back all that it holds.
    pub(super) async fn close(&mut self, id: SequenceId) {
        let Some(slot) = self.sequences.get_mut(&id) else { return };
        if slot.activity != Activity::Idle {
            slot.activity = Activity::Doomed;
            return;
        }
        let Some(slot) = self.sequences.remove(&id) else { return };
        let back = slot.sequence.give_back(&self.chain);
        self.free(back.pages);
        if let Some(lock) = back.lock {
            // A radix actor that is gone has no locks left.
            let _ = self.radix.tell(radix::Unlock(vec![lock])).send().await;
        }
        self.note_progress();
    }

    /// Ends a job's claim on a sequence: what its owner asked for meanwhile comes next.
    pub(super) async fn release_slot(&mut self, id: SequenceId) {
        let Some(slot) = self.sequences.get_mut(&id) else { return };
        let activity = std::mem::replace(&mut slot.activity, Activity::Idle);
        self.ready.extend(slot.queued.drain(..));
        if activity == Activity::Doomed {
            self.close(id).await;
        }
    }

    /// Gives a job the pages that it asked for.
    pub(super) async fn apply(&mut self, job: &mut Job, grant: Grant) {
        self.write(&grant).await;
        match &mut job.work {
            Work::Open(work) => work.running = self.slots_of(&grant),
            Work::Checkpoint(work) => work.slots = self.slots_of(&grant),
            Work::Extend(work) => {
                work.demand = None;
                if let Some(slot) = self.sequences.get_mut(&work.id) {
                    slot.sequence.extend(&self.chain, &grant, work.target);
                }
            }
            Work::Append(work) => {
                let id = work.current.as_ref().map(|appending| appending.item.id);
                if let Some(slot) = id.and_then(|id| self.sequences.get_mut(&id)) {
                    let computed = slot.sequence.computed();
                    slot.sequence.extend(&self.chain, &grant, computed);
                }
            }
            Work::Reserve(work) => {
                work.demand = None;
                work.held = Some(Reserved {
                    full: grant.pages,
                    windows: grant.windows,
                    states: grant.states,
                    released: Default::default(),
                });
            }
        }
    }

    /// One slot of every state pool, by state ordinal.
    fn slots_of(&self, grant: &Grant) -> Vec<VirtId> {
        self.chain.states().iter().flat_map(|&pool| grant.states[pool].first().copied()).collect()
    }

    /// Answers a job that has all its pages; a state may have to be copied first.
    pub(super) async fn complete(&mut self, job: Job, me: &ActorRef<Self>) {
        let copies = self.state_copies(&job);
        if !copies.is_empty() {
            return self.copy_states(job, copies, me).await;
        }
        self.answer(job).await;
    }

    /// Which slots a job's state comes from and goes to.
    fn state_copies(&self, job: &Job) -> Vec<(PoolId, VirtId, VirtId)> {
        let (from, to) = match &job.work {
            Work::Open(work) => (work.matched.states.as_deref().unwrap_or(&[]), &work.running),
            Work::Checkpoint(work) => match self.sequences.get(&work.id) {
                Some(slot) => (slot.sequence.running(), &work.slots),
                None => return Vec::new(),
            },
            _ => return Vec::new(),
        };
        let pairs = from.iter().copied().zip(to.iter().copied());
        let pools = self.chain.states().iter().copied();
        pools.zip(pairs).map(|(pool, (from, to))| (pool, from, to)).collect()
    }

    /// Copies states by the engine, their pages held in place meanwhile.
    async fn copy_states(
        &mut self,
        job: Job,
        pairs: Vec<(PoolId, VirtId, VirtId)>,
        me: &ActorRef<Self>,
    ) {
        if pairs.iter().any(|&(pool, from, _)| self.arena.is_moving(pool, from)) {
            self.deferred.push_back(job);
            return;
        }
        let mut holds = Vec::new();
        let mut batches = Vec::new();
        for &(pool, from, to) in &pairs {
            holds.extend([(pool, from), (pool, to)]);
            if let (Some(from), Some(to)) =
                (self.arena.locate(pool, from), self.arena.locate(pool, to))
            {
                batches.push(CopyBatch { pool, pairs: vec![(from, to)] });
            }
        }
        let lease = match self.arena.begin_lease(&holds) {
            Ok(lease) => lease,
            Err(error) => {
                debug_assert!(false, "I4: a matched state is live");
                let error = AllocError::CopyFailed(error.to_string());
                let _ = self.refuse(job, error).await;
                return;
            }
        };
        let ticket = CopyTicket(self.fresh());
        self.copying.insert(ticket, Copying { job, lease, pairs });
        let copies = CopyPages { ticket, batches, allocator: me.clone() };
        if self.compactor.tell(copies).send().await.is_err()
            && let Some(copying) = self.copying.remove(&ticket)
        {
            self.end_copying(copying, CopyOutcome::lost()).await;
        }
    }

    /// Goes on with a job whose state was copied, or fails it.
    pub(super) async fn end_copying(&mut self, copying: Copying, outcome: CopyOutcome) {
        let Copying { job, lease, pairs } = copying;
        self.ready.append(&mut self.after_copies);
        let ended = self.arena.end_lease(lease);
        debug_assert!(ended.is_ok(), "I6: a copy ends its lease once");
        self.note_progress();
        match outcome.failure() {
            Some(failure) => {
                let _ = self.refuse(job, failure.error).await;
            }
            None => {
                for (pool, from, to) in pairs {
                    if let Some(tag) = self.arena.content(pool, from) {
                        let set = self.arena.set_content(pool, to, tag);
                        debug_assert!(set.is_ok(), "I4: a job's own slot is live");
                    }
                }
                self.answer(job).await;
            }
        }
    }

    /// Answers a job whose pages are all there and written. An asker that is gone keeps nothing.
    async fn answer(&mut self, job: Job) {
        let receipt = job.receipt;
        match job.work {
            Work::Open(work) => self.answer_open(work, receipt).await,
            Work::Extend(work) => {
                if work.reply.send(Ok(receipt)).is_err() {
                    let undone = self
                        .sequences
                        .get_mut(&work.id)
                        .map(|slot| slot.sequence.undo_to(&self.chain, work.before));
                    self.free(undone.unwrap_or_default());
                }
                self.release_slot(work.id).await;
            }
            Work::Append(work) => drop(work.reply.send(Ok(work.done))),
            Work::Checkpoint(work) => {
                let result = self.publish(work.id, Some(work.slots)).await;
                let _ = work.reply.send(result.map(|()| receipt));
                self.release_slot(work.id).await;
            }
            Work::Reserve(work) => {
                self.reservations.insert(work.id, work.held.unwrap_or_default());
                if work.reply.send(Ok(receipt)).is_err() {
                    self.give_back_reservation(work.id);
                }
            }
        }
    }

    async fn answer_open(&mut self, work: OpenWork, receipt: Receipt) {
        let OpenWork { id, namespace, tokens, matched, lock, running, reply } = work;
        // Only now: a refused open leaves everybody's recency alone (I10).
        let lock = match self.radix.ask(radix::Used(lock)).await {
            Ok(answer) => answer.0,
            Err(error) => {
                let _ = reply.send(Err(gone(error)));
                return;
            }
        };
        let page = self.chain.page_tokens();
        let found = Matched {
            tokens: matched.pages.tokens(page),
            full_tokens: matched.full_pages.tokens(page),
        };
        self.totals.opened += 1;
        self.totals.hit_tokens += u64::from(found.tokens.0);
        self.totals.miss_tokens += tokens.len() as u64 - u64::from(found.tokens.0);
        let sequence = Sequence::new(&self.chain, namespace, tokens, matched, lock, running);
        let slot = Slot { sequence, activity: Activity::Idle, queued: Default::default() };
        self.sequences.insert(id, slot);
        if reply.send(Ok(Opened { id, matched: found, receipt })).is_err() {
            self.close(id).await;
        }
    }

    /// Fails a job, or the part of it that it is at; what can still go on is given back.
    pub(super) async fn refuse(&mut self, job: Job, error: AllocError) -> Option<Job> {
        self.note_refused(&error);
        let Job { id, work, deadline, demand, receipt, timer, .. } = job;
        match work {
            Work::Open(work) => {
                let pools: Vec<PoolId> = self.chain.states().to_vec();
                self.free(pools.into_iter().zip(work.running));
                let _ = self.radix.tell(radix::Unlock(vec![work.lock])).send().await;
                self.note_progress();
                let _ = work.reply.send(Err(error));
                None
            }
            Work::Extend(work) => {
                let _ = work.reply.send(Err(error));
                self.release_slot(work.id).await;
                None
            }
            Work::Checkpoint(work) => {
                let pools: Vec<PoolId> = self.chain.states().to_vec();
                self.free(pools.into_iter().zip(work.slots));
                let _ = work.reply.send(Err(error));
                self.release_slot(work.id).await;
                None
            }
            Work::Reserve(work) => {
                let _ = work.reply.send(Err(error));
                None
            }
            Work::Append(mut work) => {
                if let Some(appending) = &work.current
                    && appending.claim == Claim::Held
                {
                    self.release_slot(appending.item.id).await;
                }
                work.end_item(Some(error), receipt);
                let receipt = Receipt::default();
                let priority = Priority::Newcomer;
                let work = Work::Append(work);
                Some(Job { id, work, deadline, demand, priority, since: None, timer, receipt })
            }
        }
    }
}
