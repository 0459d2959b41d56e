//! Giving computed pages to the tree: checkpoints, and finishing.

use kameo::actor::ActorRef;
use kvtide_core::tree::{Fate, Ordinals};
use kvtide_core::unit::{PoolId, VirtId};
use tokio::time::Instant;

use super::append::unknown;
use super::job::{CheckpointWork, Work};
use super::{Activity, Allocator, gone};
use crate::error::AllocError;
use crate::message::{Publishing, Receipt, Reply, SequenceId};
use crate::radix;

impl Allocator {
    /// Publishes what is computed so far; with a state, if asked for, the model has one and none is there yet.
    pub(super) async fn checkpoint(
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
    pub(super) async fn wants_state(
        &mut self,
        id: SequenceId,
        publishing: Publishing,
    ) -> Result<bool, AllocError> {
        let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
        slot.sequence.can_work()?;
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
    pub(super) async fn publish(
        &mut self,
        id: SequenceId,
        states: Option<Vec<VirtId>>,
    ) -> Result<(), AllocError> {
        let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
        let mut publication = slot.sequence.publication(&self.chain);
        // With nothing new, a session's hold moves all the same.
        let nothing_new = publication.pages.is_empty() && states.is_none();
        if nothing_new && !slot.sequence.has_session() {
            return Ok(());
        }
        let lock = slot.sequence.take_lock();
        self.join_windows(&mut publication);
        let pages = publication.pages.clone();
        let question = radix::Publish {
            lock,
            tokens: publication.tokens,
            pages: publication.pages,
            states: states.clone(),
        };
        let published = self.radix.ask(question).await.map_err(gone)?.0;
        let forked = pages.iter().any(|page| self.is_shared(page.virt));
        for (page, fate) in pages.iter().zip(&published.fates) {
            self.forget_shares(page.virt);
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
        let virts: Vec<VirtId> = pages.iter().map(|page| page.virt).collect();
        self.extend_lease_locks(id, &virts).await?;
        if forked {
            self.publish_forks(id, &virts, &published.fates).await?;
        }
        // What was this sequence's alone may now be another's to evict.
        self.note_progress();
        Ok(())
    }

    /// A duplicate's window pages heal the tree's tombstone or are freed, then the page itself is freed.
    pub(super) fn settle_fate(&mut self, own: VirtId, windows: Ordinals, fate: &Fate) {
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

    /// Publishes, and closes; what is parked has nothing to publish.
    pub(super) async fn finish(
        &mut self,
        id: SequenceId,
        publishing: Publishing,
    ) -> Result<(), AllocError> {
        let slot = self.sequences.get(&id).ok_or_else(|| unknown(id))?;
        if slot.sequence.can_work().is_ok() {
            self.publish_last(id, publishing).await?;
        }
        self.close(id).await;
        Ok(())
    }

    /// Publishes what a sequence leaves behind, its running state with it.
    pub(super) async fn publish_last(
        &mut self,
        id: SequenceId,
        publishing: Publishing,
    ) -> Result<(), AllocError> {
        let wants_state = self.wants_state(id, publishing).await?;
        if publishing != Publishing::Nothing {
            let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
            let states = wants_state.then(|| slot.sequence.take_running());
            self.publish(id, states).await?;
        }
        Ok(())
    }
}
