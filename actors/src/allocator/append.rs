//! Decode steps: one token after the other, a page only when one is needed.

use kvtide_core::demand::{Demand, WindowDemand};
use kvtide_core::unit::Tokens;

use super::job::{AppendWork, Appending, Claim, Job, PageCopy, Work};
use super::{Activity, Allocator, gone};
use crate::error::AllocError;
use crate::message::{Receipt, SequenceId, Shedding};
use crate::radix;

impl Allocator {
    /// The pages that a job needs next; `None` once it has all.
    pub(super) async fn next_demand(
        &mut self,
        job: &mut Job,
    ) -> Result<Option<Demand>, AllocError> {
        if job.copy.as_ref().is_some_and(|copy| copy.to.is_some()) {
            // The page must be copied before anything else.
            return Ok(None);
        }
        let states = || kvtide_core::demand::ExactDemand::for_state(&self.chain).demand();
        match &mut job.work {
            Work::Open(work) => Ok(work.running.is_empty().then(states).filter(|d| !d.is_empty())),
            Work::Fork(work) => Ok(work.running.is_empty().then(states).filter(|d| !d.is_empty())),
            Work::Checkpoint(work) => Ok(work.slots.is_empty().then(states)),
            Work::Extend(work) => {
                let Some(demand) = work.demand.as_ref().map(|demand| demand.pages()) else {
                    return Ok(None);
                };
                job.copy = (work.target > work.before).then(|| self.copy_wanted(work.id)).flatten();
                match job.copy {
                    Some(_) => Ok(Some(self.copy_demand().plus(demand)?)),
                    None => Ok(Some(demand)),
                }
            }
            Work::Reserve(work) => Ok(work.demand.as_ref().map(|demand| demand.pages())),
            Work::Append(work) => {
                self.append_until_page(work, &mut job.copy, &mut job.receipt).await
            }
        }
    }

    /// Appends until the next token starts a page, or all are appended.
    async fn append_until_page(
        &mut self,
        work: &mut AppendWork,
        copy: &mut Option<PageCopy>,
        receipt: &mut Receipt,
    ) -> Result<Option<Demand>, AllocError> {
        loop {
            let Some(appending) = &mut work.current else {
                if work.reply.is_closed() {
                    // Nobody waits for what is left of it.
                    return Ok(None);
                }
                let Some(item) = work.items.next() else { return Ok(None) };
                work.current = Some(Appending { item, appended: 0, claim: Claim::Wanted });
                self.start_item(work)?;
                continue;
            };
            let id = appending.item.id;
            let Some(&token) = appending.item.tokens.get(appending.appended as usize) else {
                self.release_slot(id).await;
                work.end_item(None, std::mem::take(receipt));
                continue;
            };
            *copy = self.copy_wanted(id);
            if copy.is_some() {
                return Ok(Some(self.copy_demand()));
            }
            let Some(slot) = self.sequences.get_mut(&id) else { return Err(unknown(id)) };
            if slot.sequence.starts_page(&self.chain) && !slot.sequence.has_page(&self.chain) {
                let next = Tokens(slot.sequence.computed().0 + 1);
                let demand = slot.sequence.demand_to(&self.chain, next, WindowDemand::Every)?;
                return Ok(Some(demand.demand()));
            }
            slot.sequence.append(token);
            appending.appended += 1;
            if appending.item.windows == Shedding::Now && slot.sequence.is_at_boundary(&self.chain)
            {
                self.shed(id).await?;
            }
        }
    }

    /// Claims the sequence of the append's next part.
    fn start_item(&mut self, work: &mut AppendWork) -> Result<(), AllocError> {
        let Some(appending) = &mut work.current else { return Ok(()) };
        let id = appending.item.id;
        let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
        if slot.activity != Activity::Idle {
            return Err(AllocError::InvalidOperation(format!(
                "sequence {} is still busy with an operation that was given up",
                id.0
            )));
        }
        slot.sequence.can_work()?;
        slot.sequence.can_append(appending.item.tokens.len())?;
        slot.activity = Activity::Working;
        appending.claim = Claim::Held;
        Ok(())
    }

    /// Lets go of window pages, its own and the tree's, that the trailing window has left behind.
    pub(super) async fn shed(&mut self, id: SequenceId) -> Result<(), AllocError> {
        let Some(slot) = self.sequences.get_mut(&id) else { return Ok(()) };
        if self.chain.windows().is_empty() {
            return Ok(());
        }
        let freed = slot.sequence.shed(&self.chain);
        let computed = slot.sequence.computed();
        if slot.sequence.sheds_lock(&self.chain) {
            let lock = slot.sequence.take_lock();
            let answer = self.radix.ask(radix::Shed { lock, computed }).await.map_err(gone)?;
            if let Some(slot) = self.sequences.get_mut(&id) {
                slot.sequence.put_lock(answer.0);
            }
            self.note_progress();
        }
        self.free(freed);
        Ok(())
    }
}

/// The error of a sequence that is not open.
pub(super) fn unknown(id: SequenceId) -> AllocError {
    AllocError::UnknownName(format!("sequence {} is not open", id.0))
}
