//! Opening, extending and closing sequences.

use kameo::actor::ActorRef;
use kvtide_core::arena::Grant;
use kvtide_core::demand::WindowDemand;
use kvtide_core::sequence::{Sequence, SequenceError};
use kvtide_core::tree::{Namespace, User};
use kvtide_core::unit::{PoolId, Token, VirtId};
use tokio::time::Instant;

use super::append::unknown;
use super::job::{AppendWork, Claim, ExtendWork, Job, JobId, OpenWork, Priority, Work};
use super::{Activity, Allocator, Slot, gone};
use crate::error::AllocError;
use crate::message::{Matched, Opened, Receipt, Reply, Request, Reserved, SequenceId};
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
            copy: None,
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
            | Request::Fork { id, .. }
            | Request::Park { id, .. }
            | Request::Resume { id, .. }
            | Request::Truncate { id, .. }
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
            Request::Fork { id, child, deadline, reply } => {
                self.fork(id, child, deadline, reply, me).await;
            }
            Request::Park { id, publishing, reply } => {
                let result = self.park(id, publishing).await;
                let _ = reply.send(result);
            }
            Request::Resume { id, deadline, reply } => {
                self.resume(id, deadline, reply, me).await;
            }
            Request::Truncate { id, count, reply } => {
                let result = self.truncate(id, count).await;
                let _ = reply.send(result);
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
        slot.sequence.can_work()?;
        let target = slot.sequence.extend_target(count)?;
        let demand = slot.sequence.demand_to(&self.chain, target, windows)?;
        slot.activity = Activity::Working;
        Ok((slot.sequence.computed(), target, demand))
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
    pub(super) async fn apply(&mut self, job: &mut Job, mut grant: Grant) {
        self.write(&grant).await;
        if let Some(copy) = &mut job.copy {
            // The last page: only there are all windows bound, whatever else was asked for.
            copy.to = grant.pages.pop();
            for &pool in self.chain.windows() {
                grant.windows[pool].0 -= 1;
            }
        }
        match &mut job.work {
            Work::Open(work) => work.running = self.slots_of(&grant),
            Work::Fork(work) => work.running = self.slots_of(&grant),
            Work::Checkpoint(work) => work.slots = self.slots_of(&grant),
            Work::Extend(work) => {
                work.demand = None;
                if let Some(slot) = self.sequences.get_mut(&work.id) {
                    slot.sequence.extend(&self.chain, &grant, work.target);
                }
            }
            Work::Append(_) if job.copy.is_some() => {}
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
        let copies = self.copies(&job);
        if !copies.is_empty() {
            return self.copy_states(job, copies, me).await;
        }
        self.answer(job).await;
    }

    /// Answers a job whose pages are all there and written. An asker that is gone keeps nothing.
    pub(super) async fn answer(&mut self, job: Job) {
        let receipt = job.receipt;
        match job.work {
            Work::Open(work) => self.answer_open(work, receipt).await,
            Work::Fork(work) => self.answer_fork(work, receipt).await,
            Work::Extend(work) => {
                if work.reply.send(Ok(receipt)).is_err() {
                    self.undo_extend(work.id, work.before);
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

    fn undo_extend(&mut self, id: SequenceId, before: kvtide_core::unit::Tokens) {
        let undone = self.sequences.get_mut(&id);
        let undone = undone.map(|slot| slot.sequence.undo_to(&self.chain, before));
        self.free(undone.unwrap_or_default());
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
        self.totals.hit_tokens += u64::from(found.tokens.0);
        self.totals.miss_tokens += tokens.len() as u64 - u64::from(found.tokens.0);
        if self.sequences.contains_key(&id) {
            let opened = Opened { id, matched: found, receipt };
            return self.answer_resume(id, (matched, lock, running), opened, reply).await;
        }
        self.totals.opened += 1;
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
        let Job { id, work, deadline, demand, receipt, timer, copy, .. } = job;
        if let Some(copy) = copy {
            self.free(copy.pages(&self.chain));
        }
        match work {
            Work::Open(work) => {
                let pools: Vec<PoolId> = self.chain.states().to_vec();
                self.free(pools.into_iter().zip(work.running));
                let _ = self.radix.tell(radix::Unlock(vec![work.lock])).send().await;
                self.note_progress();
                let _ = work.reply.send(Err(error));
                // Of a resume: it stays parked.
                self.release_slot(work.id).await;
                None
            }
            Work::Fork(work) => {
                let pools: Vec<PoolId> = self.chain.states().to_vec();
                self.free(pools.into_iter().zip(work.running));
                let _ = work.reply.send(Err(error));
                self.release_slot(work.parent).await;
                None
            }
            Work::Extend(work) => {
                self.undo_extend(work.id, work.before);
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
                Some(Job {
                    id,
                    work,
                    deadline,
                    demand,
                    priority,
                    since: None,
                    timer,
                    receipt,
                    copy: None,
                })
            }
        }
    }
}
