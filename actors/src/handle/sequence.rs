//! An open sequence, as its owner holds it.

use std::sync::Arc;
use std::time::Duration;

use kvtide_core::demand::WindowDemand;
use kvtide_core::unit::{Token, Tokens};

use super::{GiveBack, deadline};
use crate::error::{AllocError, ServiceError};
use crate::message::{
    AppendItem, Appended, Matched, Publishing, Receipt, Request, Returned, SequenceId, Shedding,
};
use crate::service::Shared;

/// An open sequence. Dropped, it gives back its pages and its hold on the cached prefix.
#[must_use = "a sequence that is dropped gives its pages back"]
pub struct Sequence {
    pub(super) id: SequenceId,
    pub(super) matched: Matched,
    pub(super) receipt: Receipt,
    pub(super) shared: Arc<Shared>,
    pub(super) back: GiveBack,
}

impl Sequence {
    /// Its name.
    #[must_use]
    pub fn id(&self) -> SequenceId {
        self.id
    }

    /// What its prompt matched when it was opened, or its tokens when it was last resumed.
    #[must_use]
    pub fn matched(&self) -> Matched {
        self.matched
    }

    /// What opening it took, or resuming it.
    #[must_use]
    pub fn receipt(&self) -> Receipt {
        self.receipt
    }

    /// Allocates pages for the next `count` prompt tokens, or for all that are left.
    ///
    /// # Errors
    /// Any [`AllocError`] of an allocation; [`AllocError::InvalidOperation`] past the prompt.
    pub async fn extend(
        &mut self,
        count: Option<Tokens>,
        wait: Option<Duration>,
    ) -> Result<Receipt, AllocError> {
        self.extend_with(WindowDemand::Every, count, wait).await
    }

    /// As [`extend`](Self::extend), for prompt tokens computed elsewhere (a remote prefill): of the new pages only those
    /// that the window still covers afterwards get window pages.
    ///
    /// # Errors
    /// As [`extend`](Self::extend).
    pub async fn extend_fetched(
        &mut self,
        count: Option<Tokens>,
        wait: Option<Duration>,
    ) -> Result<Receipt, AllocError> {
        self.extend_with(WindowDemand::Tail, count, wait).await
    }

    async fn extend_with(
        &mut self,
        windows: WindowDemand,
        count: Option<Tokens>,
        wait: Option<Duration>,
    ) -> Result<Receipt, AllocError> {
        let (id, deadline) = (self.id, deadline(wait));
        self.shared.ask(|reply| Request::Extend { id, count, windows, deadline, reply }).await
    }

    /// One decode step per token. What was appended before a failure stays.
    ///
    /// # Errors
    /// [`AllocError::Service`]; any other failure is in [`Appended::stopped`].
    pub async fn append(
        &mut self,
        tokens: Vec<Token>,
        wait: Option<Duration>,
    ) -> Result<Appended, AllocError> {
        self.append_with(Shedding::Now, tokens, wait).await
    }

    /// As [`append`](Self::append), for tokens that may be taken back by [`truncate`](Self::truncate): window pages that
    /// they leave behind are given back by the next append or truncation only.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub async fn draft(
        &mut self,
        tokens: Vec<Token>,
        wait: Option<Duration>,
    ) -> Result<Appended, AllocError> {
        self.append_with(Shedding::Later, tokens, wait).await
    }

    async fn append_with(
        &mut self,
        windows: Shedding,
        tokens: Vec<Token>,
        wait: Option<Duration>,
    ) -> Result<Appended, AllocError> {
        let item = AppendItem { id: self.id, tokens, windows };
        let (items, deadline) = (vec![item], deadline(wait));
        let done = self.shared.ask(|reply| Request::Append { items, deadline, reply }).await?;
        done.into_iter().next().ok_or(AllocError::Service(ServiceError::Reset))
    }

    /// A second continuation: both share all pages so far, and whoever writes to a page under way first gets a copy of it.
    /// The new one has running state slots of its own, copied.
    ///
    /// # Errors
    /// Any [`AllocError`] of an allocation. Nothing changes then.
    pub async fn fork(&mut self, wait: Option<Duration>) -> Result<Sequence, AllocError> {
        let (id, child) = (self.id, SequenceId(self.shared.fresh()));
        let back = self.shared.giveback(Returned::Sequence(child));
        let deadline = deadline(wait);
        let receipt = self.shared.ask(|reply| Request::Fork { id, child, deadline, reply }).await?;
        let (matched, shared) = (self.matched, Arc::clone(&self.shared));
        Ok(Sequence { id: child, matched, receipt, shared, back })
    }

    /// Gives all its memory back and keeps its tokens, having published as asked. Until it is resumed it can only be
    /// finished, closed or dropped.
    ///
    /// # Errors
    /// [`AllocError::InvalidOperation`] if it is parked.
    pub async fn park(&mut self, publishing: Publishing) -> Result<(), AllocError> {
        let id = self.id;
        self.shared.ask(|reply| Request::Park { id, publishing, reply }).await
    }

    /// Goes on after a [`park`](Self::park): matches all tokens so far but the last, locks what matched and copies the
    /// state there; [`extend`](Self::extend) computes the rest. A refusal leaves it parked.
    ///
    /// # Errors
    /// Any [`AllocError`] of an allocation; [`AllocError::InvalidOperation`] if it is not parked.
    pub async fn resume(&mut self, wait: Option<Duration>) -> Result<Receipt, AllocError> {
        let (id, deadline) = (self.id, deadline(wait));
        let resumed = self.shared.ask(|reply| Request::Resume { id, deadline, reply }).await?;
        self.matched = resumed.matched;
        self.receipt = resumed.receipt;
        Ok(resumed.receipt)
    }

    /// Drops computed tokens beyond `count`, and the pages that they alone needed. Tokens of the prompt stay known, to be
    /// extended again; appended ones are forgotten. Running state slots stay as they are: what they hold is the engine's
    /// to restore. Inside a page that the cache or another sequence uses too, the next write goes to a copy of it.
    ///
    /// # Errors
    /// [`AllocError::InvalidOperation`] if fewer are computed, or if the trailing window at `count` lacks a page.
    pub async fn truncate(&mut self, count: Tokens) -> Result<(), AllocError> {
        let id = self.id;
        self.shared.ask(|reply| Request::Truncate { id, count, reply }).await
    }

    /// Publishes whole pages computed so far, with a copy of the state if at a page boundary and wanted; goes on.
    ///
    /// # Errors
    /// Any [`AllocError`] of an allocation: a state checkpoint takes a slot.
    pub async fn checkpoint(
        &mut self,
        publishing: Publishing,
        wait: Option<Duration>,
    ) -> Result<Receipt, AllocError> {
        let (id, deadline) = (self.id, deadline(wait));
        self.shared.ask(|reply| Request::Checkpoint { id, publishing, deadline, reply }).await
    }

    /// Publishes as asked, and closes.
    ///
    /// # Errors
    /// [`AllocError::Service`].
    pub async fn finish(mut self, publishing: Publishing) -> Result<(), AllocError> {
        let id = self.id;
        let result = self.shared.ask(|reply| Request::Finish { id, publishing, reply }).await;
        if result.is_ok() {
            self.back.defuse();
        }
        result
    }

    /// Closes it without publishing. Unlike a drop, it is done when this returns.
    ///
    /// # Errors
    /// [`AllocError::Service`].
    pub async fn close(self) -> Result<(), AllocError> {
        let shared = Arc::clone(&self.shared);
        drop(self);
        shared.collected().await
    }
}
