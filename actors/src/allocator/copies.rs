//! Copies that a job needs before its answer, by the engine, both ends held in place meanwhile.

use kameo::actor::ActorRef;
use kvtide_core::arena::CopyBatch;
use kvtide_core::unit::{PoolId, VirtId};

use super::Allocator;
use super::job::{Copying, Job, Work};
use crate::compactor::{CopyOutcome, CopyPages};
use crate::device::CopyTicket;
use crate::error::AllocError;

impl Allocator {
    /// What has to be copied before a job is answered: a page that it is to write to, or a state.
    pub(super) fn copies(&self, job: &Job) -> Vec<(PoolId, VirtId, VirtId)> {
        match job.copy.as_ref() {
            Some(copy) => {
                let bound = |&(pool, _): &(PoolId, VirtId)| self.arena.is_bound(pool, copy.from);
                let pages = copy.pages(&self.chain).into_iter().filter(bound);
                pages.map(|(pool, to)| (pool, copy.from, to)).collect()
            }
            None => self.state_copies(job),
        }
    }

    /// Which slots a job's state comes from and goes to.
    fn state_copies(&self, job: &Job) -> Vec<(PoolId, VirtId, VirtId)> {
        let (from, to) = match &job.work {
            Work::Open(work) => (work.matched.states.as_deref().unwrap_or(&[]), &work.running),
            Work::Fork(work) => match self.sequences.get(&work.parent) {
                Some(slot) => (slot.sequence.running(), &work.running),
                None => return Vec::new(),
            },
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
    pub(super) async fn copy_states(
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
                if let Some(rest) = self.refuse(job, error).await {
                    self.deferred.push_back(rest);
                }
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
        let Copying { mut job, lease, pairs } = copying;
        self.ready.append(&mut self.after_copies);
        let ended = self.arena.end_lease(lease);
        debug_assert!(ended.is_ok(), "I6: a copy ends its lease once");
        self.note_progress();
        match outcome.failure() {
            Some(failure) => {
                if let Some(rest) = self.refuse(job, failure.error).await {
                    self.deferred.push_back(rest);
                }
            }
            None => {
                for (pool, from, to) in pairs {
                    if let Some(tag) = self.arena.content(pool, from) {
                        let set = self.arena.set_content(pool, to, tag);
                        debug_assert!(set.is_ok(), "I4: a job's own slot is live");
                    }
                }
                match job.copy.take() {
                    Some(copy) => {
                        if let Err(error) = self.replace_page(copy).await {
                            if let Some(rest) = self.refuse(job, error).await {
                                self.deferred.push_back(rest);
                            }
                            return;
                        }
                        // It goes on from there.
                        self.deferred.push_back(job);
                    }
                    None => self.answer(job).await,
                }
            }
        }
    }
}
