//! Sequences without memory, and their return.

use kameo::actor::ActorRef;
use kvtide_core::tree::{Lock, Match};
use kvtide_core::unit::VirtId;
use tokio::time::Instant;

use super::append::unknown;
use super::job::{OpenWork, Work};
use super::{Activity, Allocator, gone};
use crate::error::AllocError;
use crate::message::{Opened, Publishing, Reply, SequenceId, StepId};
use crate::radix;

impl Allocator {
    /// Publishes as asked, then gives all memory of a sequence back.
    pub(super) async fn park(
        &mut self,
        id: SequenceId,
        publishing: Publishing,
    ) -> Result<(), AllocError> {
        let slot = self.sequences.get(&id).ok_or_else(|| unknown(id))?;
        slot.sequence.can_work()?;
        self.publish_last(id, publishing).await?;
        self.park_now(id).await;
        Ok(())
    }

    /// Gives all memory of a sequence back.
    async fn park_now(&mut self, id: SequenceId) {
        // A step may still read what the sequence gives up.
        let steps: Vec<StepId> = self.steps.keys().copied().collect();
        for step in steps {
            self.stop_following(step, id);
        }
        let Some(slot) = self.sequences.get_mut(&id) else { return };
        let back = slot.sequence.park(&self.chain);
        self.free(back.pages);
        if let Some(lock) = back.lock {
            // A radix actor that is gone has no locks left.
            let _ = self.radix.tell(radix::Unlock(vec![lock])).send().await;
        }
        self.note_progress();
    }

    /// Matches a parked sequence's tokens again, as an open does.
    pub(super) async fn resume(
        &mut self,
        id: SequenceId,
        deadline: Option<Instant>,
        reply: Reply<Opened>,
        me: &ActorRef<Self>,
    ) {
        let question = match self.sequences.get(&id).ok_or_else(|| unknown(id)).and_then(|slot| {
            let (tokens, user) = slot.sequence.can_resume()?;
            let namespace = slot.sequence.namespace().clone();
            Ok(radix::Open { namespace, tokens: tokens.to_vec(), user: user.clone() })
        }) {
            Ok(question) => question,
            Err(error) => {
                self.note_refused(&error);
                let _ = reply.send(Err(error));
                return;
            }
        };
        let namespace = question.namespace.clone();
        let answer = match self.radix.ask(question).await {
            Ok(answer) => answer,
            Err(error) => {
                let _ = reply.send(Err(gone(error)));
                return;
            }
        };
        if let Some(slot) = self.sequences.get_mut(&id) {
            slot.activity = Activity::Working;
        }
        let radix::Openings { tokens, lock, matched } = answer;
        let running = Vec::new();
        let work = OpenWork { id, namespace, tokens, matched, lock, running, reply };
        let job = self.job(Work::Open(work), deadline);
        self.run(job, me).await;
    }

    /// Gives a parked sequence what it goes on from; takes it back if nobody waits for it.
    pub(super) async fn answer_resume(
        &mut self,
        id: SequenceId,
        (matched, lock, running): (Match, Lock, Vec<VirtId>),
        opened: Opened,
        reply: Reply<Opened>,
    ) {
        if let Some(slot) = self.sequences.get_mut(&id) {
            slot.sequence.resume(&self.chain, matched, lock, running);
        }
        if reply.send(Ok(opened)).is_err() {
            self.park_now(id).await;
        }
        self.release_slot(id).await;
    }
}
