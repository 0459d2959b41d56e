//! Dropping computed tokens, and copies of pages that a sequence may not write (copy on write).

use kvtide_core::demand::Demand;
use kvtide_core::sequence::{PageUnderWay, SequenceError};
use kvtide_core::tree::{Ordinals, OwnPage};
use kvtide_core::unit::{Pages, Tokens};

use super::append::unknown;
use super::job::PageCopy;
use super::{Allocator, gone};
use crate::error::AllocError;
use crate::message::SequenceId;
use crate::radix;

impl Allocator {
    /// Drops computed tokens beyond `count`. Nothing changes on an error.
    pub(super) async fn truncate(
        &mut self,
        id: SequenceId,
        count: Tokens,
    ) -> Result<(), AllocError> {
        let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
        slot.sequence.can_work()?;
        let boundary = slot.sequence.can_truncate(&self.chain, count)?;
        if count == slot.sequence.computed() {
            return Ok(());
        }
        let moved = self.lock_back(id, boundary, count).await?;
        if let Err(missing) = moved {
            let missing = missing.tokens(self.chain.page_tokens());
            return Err(SequenceError::WindowGivenBack { asked: count, missing }.into());
        }
        let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
        let freed = slot.sequence.truncate(&self.chain, count);
        self.free(freed);
        self.shed(id).await?;
        self.note_progress();
        Ok(())
    }

    /// Moves a sequence's hold on the tree back; the first page whose window page it would need and is not there.
    async fn lock_back(
        &mut self,
        id: SequenceId,
        boundary: Pages,
        computed: Tokens,
    ) -> Result<Result<(), Pages>, AllocError> {
        let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
        let lock = slot.sequence.take_lock();
        let answer = self.radix.ask(radix::LockBack { lock, boundary, computed }).await;
        let (lock, result) = match answer.map_err(gone)?.0 {
            Ok(lock) => (lock, Ok(())),
            Err((lock, missing)) => (lock, Err(missing)),
        };
        if let Some(slot) = self.sequences.get_mut(&id) {
            slot.sequence.put_lock(lock);
        }
        if result.is_ok() {
            self.fork_lease_locks(id).await?;
        }
        Ok(result)
    }

    /// The copy that a sequence needs before its next token, if it may not write the page under way.
    pub(super) fn copy_wanted(&self, id: SequenceId) -> Option<PageCopy> {
        match self.sequences.get(&id)?.sequence.page_under_way(&self.chain) {
            PageUnderWay::Tree(from) => Some(PageCopy { id, from, to: None }),
            PageUnderWay::Own(page) if self.is_shared(page.virt) => {
                Some(PageCopy { id, from: page.virt, to: None })
            }
            PageUnderWay::None | PageUnderWay::Own(_) => None,
        }
    }

    /// One page of every token pool.
    pub(super) fn copy_demand(&self) -> Demand {
        let mut demand = Demand::default();
        for pool in self.chain.windows().iter().copied().chain(self.chain.full()) {
            demand.0[pool] = Pages(1);
        }
        demand
    }

    /// Puts a page's copy in its place.
    pub(super) async fn replace_page(&mut self, copy: PageCopy) -> Result<(), AllocError> {
        let PageCopy { id, from, to: Some(to) } = copy else { return Ok(()) };
        let windows = Ordinals::first(self.chain.windows().len());
        let slot = self.sequences.get_mut(&id).ok_or_else(|| unknown(id))?;
        let before = slot.sequence.boundary();
        let freed = slot.sequence.replace_page(&self.chain, from, OwnPage { virt: to, windows });
        let (boundary, computed) = (slot.sequence.boundary(), slot.sequence.computed());
        self.free(freed);
        if boundary < before {
            let moved = self.lock_back(id, boundary, computed).await?;
            debug_assert!(moved.is_ok(), "I8: a lock's windows are there");
        }
        self.note_progress();
        Ok(())
    }
}
