//! Pinned prefixes: holds that outlive sequences, bounded by configuration.

use kvtide_core::sequence::SequenceError;
use kvtide_core::tree::Namespace;
use kvtide_core::unit::{Token, Tokens};

use super::{Allocator, gone};
use crate::error::{AllocError, Bounded};
use crate::message::{Matched, PinId, Reply};
use crate::radix;

/// The most that may be pinned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinBounds {
    pub(crate) pins: u64,
    pub(crate) tokens: u64,
}

impl Allocator {
    /// Keeps a cached prefix from eviction.
    pub(super) async fn pin(
        &mut self,
        id: PinId,
        namespace: Namespace,
        tokens: Vec<Token>,
        reply: Reply<Matched>,
    ) {
        let result = self.make_pin(id, namespace, tokens).await;
        if let Err(error) = &result {
            self.note_refused(error);
        }
        if reply.send(result).is_err() {
            self.unpin(id).await;
        }
    }

    async fn make_pin(
        &mut self,
        id: PinId,
        namespace: Namespace,
        tokens: Vec<Token>,
    ) -> Result<Matched, AllocError> {
        if tokens.is_empty() {
            return Err(SequenceError::NoTokens.into());
        }
        let bounds = self.policy.pins;
        let busy = |what, taken, limit| AllocError::Busy { what, taken, limit };
        let pins = self.pins.len() as u64;
        if pins >= bounds.pins {
            return Err(busy(Bounded::Pins, pins, bounds.pins));
        }
        let (pin, matched) =
            self.radix.ask(radix::PinPrefix { namespace, tokens }).await.map_err(gone)?.0;
        self.pins.insert(id, pin);
        let pinned = self.pinned_tokens().await?;
        if pinned > bounds.tokens {
            self.unpin(id).await;
            return Err(busy(Bounded::PinnedTokens, pinned, bounds.tokens));
        }
        let page = self.chain.page_tokens();
        Ok(Matched {
            tokens: matched.pages.tokens(page),
            full_tokens: matched.full_pages.tokens(page),
        })
    }

    /// Tokens whose full pages pins keep, each once.
    async fn pinned_tokens(&self) -> Result<u64, AllocError> {
        let counted = self.radix.ask(radix::Count).await.map_err(gone)?.0;
        let pages = self.chain.full().map_or(0, |full| counted.pinned[full].0);
        let Tokens(page) = self.chain.page_tokens();
        Ok(u64::from(pages) * u64::from(page))
    }

    /// Lets a pinned prefix go; it may help one who waits.
    pub(super) async fn unpin(&mut self, id: PinId) {
        let Some(pin) = self.pins.remove(&id) else { return };
        // A radix actor that is gone has no pins left.
        let _ = self.radix.tell(radix::Unpin(pin)).send().await;
        self.note_progress();
    }
}
