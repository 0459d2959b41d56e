//! Allocations that wait for memory that others will give back: first come, first served.
//!
//! A later one goes ahead only if it leaves the head's shortfall no larger, and none does once the head has waited
//! `queue.max_bypass_ms`.

use kameo::actor::ActorRef;
use kvtide_core::arena::Question;
use kvtide_core::demand::Demand;
use kvtide_core::unit::PerPool;
use tokio::time::Instant;

use super::job::{Job, JobId, Priority, Timer};
use super::{Allocator, Progress};
use crate::error::{AllocError, Bounded, Refusal};
use crate::message::Request;

/// A job in the queue.
pub(super) struct Waiting {
    pub(super) job: Job,
    demand: Demand,
    since: Instant,
}

/// What the head of the queue lacks: no newcomer may make it larger.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Shortfall {
    ids: PerPool<u32>,
    bytes: u64,
}

impl Shortfall {
    /// Whether more of anything is missing than in `other`.
    fn exceeds(&self, other: &Shortfall) -> bool {
        let more_ids = self.ids.0.iter().zip(&other.ids.0).any(|(mine, theirs)| mine > theirs);
        more_ids || self.bytes > other.bytes
    }
}

impl Allocator {
    /// Puts a job that was refused with `error` at the end of the queue; gives it back with what to answer when it does
    /// not wait, the queue is full, or it is too late.
    pub(super) fn enqueue(
        &mut self,
        job: Job,
        error: AllocError,
        me: &ActorRef<Self>,
    ) -> Option<(Job, AllocError)> {
        let Some(deadline) = job.deadline else { return Some((job, error)) };
        // Who is told of an asker that gave up looks at the queue: none may be put there afterwards.
        if deadline <= Instant::now() || job.work.is_abandoned() {
            let late = AllocError::TimedOut { waited: job.receipt.waited };
            return Some((job, late));
        }
        let limit = self.policy.queue_max;
        if self.waiting.len() >= limit {
            let busy = busy(self.waiting.len(), limit);
            return Some((job, busy));
        }
        self.totals.waits += 1;
        let mut job = job;
        self.arm(&mut job, me);
        let demand = job.demand;
        let since = *job.since.get_or_insert_with(Instant::now);
        // One that waited before, for the same pages, has kept its place.
        let place = self.waiting.iter().position(|other| other.since > since);
        let waiting = Waiting { job, demand, since };
        self.waiting.insert(place.unwrap_or(self.waiting.len()), waiting);
        None
    }

    /// Sets a job aside until the prepare under way has ended; gives it back if too many are set aside already.
    pub(super) fn defer(&mut self, mut job: Job, me: &ActorRef<Self>) -> Option<(Job, AllocError)> {
        let (set_aside, limit) = (self.waiting.len() + self.deferred.len(), self.policy.queue_max);
        if set_aside >= limit && job.priority == Priority::Newcomer {
            let busy = busy(set_aside, limit);
            return Some((job, busy));
        }
        self.arm(&mut job, me);
        self.deferred.push_back(job);
        None
    }

    /// Has a job told when its deadline passes.
    fn arm(&self, job: &mut Job, me: &ActorRef<Self>) {
        let (Some(deadline), None) = (job.deadline, &job.timer) else { return };
        let (id, me) = (job.id, me.downgrade());
        let task = tokio::spawn(async move {
            tokio::time::sleep_until(deadline).await;
            if let Some(me) = me.upgrade() {
                let _ = me.tell(Request::Expire(id)).send().await;
            }
        });
        job.timer = Some(Timer::new(&task));
    }

    /// Tells a job whose deadline passed, if it still waits.
    pub(super) async fn expire(&mut self, id: JobId) {
        let waiting = self.waiting.iter().position(|waiting| waiting.job.id == id);
        let deferred = self.deferred.iter().position(|job| job.id == id);
        let job = match (waiting, deferred) {
            (Some(place), _) => {
                self.waiting.remove(place).map(|waiting| (waiting.since, waiting.job))
            }
            (None, Some(place)) => self.deferred.remove(place).map(|job| (Instant::now(), job)),
            (None, None) => None,
        };
        let Some((since, mut job)) = job else { return };
        let waited = since.elapsed();
        self.totals.wait_nanos += waited.as_nanos() as u64;
        job.receipt.waited += waited;
        if let Some(rest) = self.refuse(job, AllocError::TimedOut { waited }).await {
            // Later sequences of the same append get their own attempt.
            self.deferred.push_back(rest);
        }
        self.progress = Progress::Memory;
    }

    /// Does everything that can be done now: requests held up, jobs deferred, jobs waiting, eager packing.
    pub(super) async fn pump(&mut self, me: &ActorRef<Self>) {
        loop {
            if let Some(request) = self.ready.pop_front() {
                self.serve(request, me).await;
            } else if self.moving.is_none() && !self.held_up.is_empty() {
                self.ready.extend(self.held_up.drain(..));
            } else if self.moving.is_none() && !self.deferred.is_empty() {
                if let Some(job) = self.deferred.pop_front() {
                    self.run(job, me).await;
                }
            } else if self.progress != Progress::None {
                if std::mem::replace(&mut self.progress, Progress::None) == Progress::Memory {
                    self.packing_due = Progress::Memory;
                }
                self.wake(me).await;
            } else if !self.pack(me).await {
                break;
            }
        }
        if self.moving.is_none() && self.copying.is_empty() {
            for reply in self.settling.drain(..) {
                let _ = reply.send(Ok(()));
            }
        }
    }

    /// Gives every waiting job another attempt, in order; those behind a head that still waits only if they fit as
    /// things lie.
    async fn wake(&mut self, me: &ActorRef<Self>) {
        let mut tried = std::collections::VecDeque::new();
        while let Some(waiting) = self.waiting.pop_front() {
            if waiting.job.work.is_abandoned() {
                let stopped = AllocError::TimedOut { waited: waiting.since.elapsed() };
                if let Some(rest) = self.refuse(waiting.job, stopped).await {
                    self.deferred.push_back(rest);
                }
                continue;
            }
            let first = tried.is_empty();
            let fits = self.arena.place(&waiting.demand).is_some();
            if !first && !fits {
                tried.push_back(waiting);
                continue;
            }
            match self.retry(waiting, &tried, me).await {
                Some(waiting) => tried.push_back(waiting),
                None if self.moving.is_some() => break,
                None => {}
            }
        }
        tried.append(&mut self.waiting);
        self.waiting = tried;
    }

    /// One more attempt for a waiting job; given back if it still has to wait.
    async fn retry(
        &mut self,
        waiting: Waiting,
        ahead: &std::collections::VecDeque<Waiting>,
        me: &ActorRef<Self>,
    ) -> Option<Waiting> {
        let demand = waiting.demand;
        let blocked = match ahead.front() {
            Some(head) => self.would_delay(head, &demand),
            // While pages move it could only be deferred, and would lose its place.
            None => {
                self.arena.place(&demand).is_none()
                    && (self.moving.is_some() || self.plan(&demand).await.is_err())
            }
        };
        if blocked {
            return Some(waiting);
        }
        let Waiting { mut job, since, .. } = waiting;
        job.receipt.waited += since.elapsed();
        self.totals.wait_nanos += since.elapsed().as_nanos() as u64;
        job.priority = Priority::Served;
        self.run(job, me).await;
        None
    }

    /// Whether serving `demand` now would let the head of the queue wait longer.
    pub(super) fn delays_head(&self, job: &Job, demand: &Demand) -> bool {
        match self.waiting.front() {
            Some(head) if job.priority == Priority::Newcomer => self.would_delay(head, demand),
            _ => false,
        }
    }

    fn would_delay(&self, head: &Waiting, demand: &Demand) -> bool {
        if demand.is_empty() {
            return false;
        }
        if head.since.elapsed() >= self.policy.bypass_max {
            return true;
        }
        self.shortfall(head, demand).exceeds(&self.shortfall(head, &Demand::default()))
    }

    /// What `head` lacks once `taken` more pages are live.
    fn shortfall(&self, head: &Waiting, taken: &Demand) -> Shortfall {
        let mut geometry = self.arena.geometry(Question::GatesOpen);
        let mut short = Shortfall::default();
        for pool in self.chain.pool_ids() {
            let fit = geometry.pool_mut(pool);
            fit.live.0 += taken.0[pool].0;
            let wanted = fit.live.0 + fit.promised.0 + head.demand.0[pool].0;
            short.ids[pool] = wanted.saturating_sub(fit.ids.0);
        }
        short.bytes = geometry.overrun(&head.demand).0;
        short
    }

    /// The refusal of a newcomer that may not go ahead of the queue.
    pub(super) async fn exhausted_by_queue(
        &self,
        demand: &Demand,
    ) -> Result<AllocError, AllocError> {
        self.exhausted(demand, Refusal::Queue).await
    }
}

/// The refusal of one more that would wait.
fn busy(waiting: usize, limit: usize) -> AllocError {
    AllocError::Busy { what: Bounded::Waiting, taken: waiting as u64, limit: limit as u64 }
}
