//! Forks: continuations that share pages, counted by reference.
//!
//! A page that forks share is published for all of them at once: the cache owns it from then on, and every one of them
//! holds it there.

use kameo::actor::ActorRef;
use kvtide_core::sequence::Publication;
use kvtide_core::tree::Fate;
use kvtide_core::unit::{Pages, PoolId, VirtId};
use tokio::time::Instant;

use super::append::unknown;
use super::job::{ForkWork, Work};
use super::{Activity, Allocator, Slot, gone};
use crate::error::AllocError;
use crate::message::{Receipt, Reply, SequenceId};
use crate::radix;

impl Allocator {
    /// Starts a second continuation of a sequence.
    pub(super) async fn fork(
        &mut self,
        parent: SequenceId,
        child: SequenceId,
        deadline: Option<Instant>,
        reply: Reply<Receipt>,
        me: &ActorRef<Self>,
    ) {
        let found = self.sequences.get_mut(&parent).ok_or_else(|| unknown(parent));
        match found.and_then(|slot| slot.sequence.can_work().map(|()| slot).map_err(Into::into)) {
            Ok(slot) => slot.activity = Activity::Working,
            Err(error) => return drop(reply.send(Err(error))),
        }
        let work = ForkWork { parent, child, running: Vec::new(), reply };
        let job = self.job(Work::Fork(work), deadline);
        self.run(job, me).await;
    }

    /// Hands the second continuation over.
    pub(super) async fn answer_fork(&mut self, work: ForkWork, receipt: Receipt) {
        let ForkWork { parent, child, running, reply } = work;
        let lock = match self.lock_again(parent).await {
            Ok(lock) => lock,
            Err(error) => return drop(reply.send(Err(error))),
        };
        if let Some(slot) = self.sequences.get(&parent) {
            for page in slot.sequence.own_pages(&self.chain) {
                *self.shares.entry(page).or_default() += 1;
            }
            let sequence = slot.sequence.fork(lock, running);
            let slot = Slot { sequence, activity: Activity::Idle, queued: Default::default() };
            self.sequences.insert(child, slot);
        }
        if reply.send(Ok(receipt)).is_err() {
            self.close(child).await;
        }
        self.release_slot(parent).await;
    }

    /// Whether several sequences share a token page.
    pub(super) fn is_shared(&self, virt: VirtId) -> bool {
        self.chain.full().is_some_and(|full| self.shares.contains_key(&(full, virt)))
    }

    /// One sequence fewer shares a page; says whether any did.
    pub(super) fn gives_up_share(&mut self, pool: PoolId, virt: VirtId) -> bool {
        let Some(more) = self.shares.get_mut(&(pool, virt)) else { return false };
        *more -= 1;
        if *more == 0 {
            self.shares.remove(&(pool, virt));
        }
        true
    }

    /// Adds the window pages that a publication's pages have in forks only.
    pub(super) fn join_windows(&self, publication: &mut Publication) {
        for page in &mut publication.pages {
            if !self.is_shared(page.virt) {
                continue;
            }
            for slot in self.sequences.values() {
                let same = slot.sequence.own().iter().find(|own| own.virt == page.virt);
                page.windows = same.map_or(page.windows, |own| page.windows.union(own.windows));
            }
        }
    }

    /// The pages of a publication are the cache's now: nobody counts them any more.
    pub(super) fn forget_shares(&mut self, virt: VirtId) {
        for pool in self.chain.windows().iter().copied().chain(self.chain.full()) {
            self.shares.remove(&(pool, virt));
        }
    }

    /// Has every fork that shares published pages hold them in the tree too.
    pub(super) async fn publish_forks(
        &mut self,
        id: SequenceId,
        virts: &[VirtId],
        fates: &[Fate],
    ) -> Result<(), AllocError> {
        let others: Vec<SequenceId> =
            self.sequences.keys().copied().filter(|&other| other != id).collect();
        for other in others {
            let Some(slot) = self.sequences.get_mut(&other) else { continue };
            let own = slot.sequence.own();
            let from = own.first().and_then(|own| virts.iter().position(|&virt| virt == own.virt));
            let Some(from) = from else { continue };
            let common =
                own.iter().zip(&virts[from..]).take_while(|(own, virt)| own.virt == **virt);
            let common = common.count();
            let boundary = Pages(slot.sequence.boundary().0 + common as u32);
            let computed = slot.sequence.computed();
            let old = slot.sequence.take_lock();
            let lock = self.lock_again(id).await?.used_by(old.user().clone());
            let question = radix::LockBack { lock, boundary, computed };
            let moved = self.radix.ask(question).await.map_err(gone)?.0;
            debug_assert!(moved.is_ok(), "I8: a fork's windows are published with its pages");
            let lock = moved.map_err(gone)?;
            let _ = self.radix.tell(radix::Unlock(vec![old])).send().await;
            if let Some(slot) = self.sequences.get_mut(&other) {
                slot.sequence.published(lock, &fates[from..from + common]);
            }
            self.extend_lease_locks(other, &[]).await?;
        }
        Ok(())
    }
}
