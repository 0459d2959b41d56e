//! A prefix kept in the cache while no sequence is open on it.

use std::sync::Arc;

use kvtide_core::tree::Namespace;
use kvtide_core::unit::Token;

use super::{CacheHandle, GiveBack};
use crate::error::AllocError;
use crate::message::{Matched, PinId, Request, Returned};

/// Keeps a cached prefix from eviction while it lives.
#[must_use = "a pin that is dropped lets its prefix go"]
pub struct Pin {
    matched: Matched,
    back: GiveBack,
}

impl CacheHandle {
    /// Keeps the longest cached prefix of `tokens` that every pool can serve from eviction: a system prompt, say.
    ///
    /// Unlike a prompt, `tokens` may be matched whole, the last page included. What is not cached is not pinned: see
    /// [`Pin::matched`]. Pinned pages count apart from locked ones, and nobody's recency changes. A flush leaves them.
    ///
    /// # Errors
    /// [`AllocError::Busy`] beyond `pin.max_pins` or `pin.max_tokens`; [`AllocError::InvalidOperation`] without tokens.
    pub async fn pin(&self, namespace: Namespace, tokens: Vec<Token>) -> Result<Pin, AllocError> {
        let id = PinId(self.shared.fresh());
        let back = self.shared.giveback(Returned::Pin(id));
        let request = |reply| Request::Pin { id, namespace, tokens, reply };
        let matched = self.shared.ask(request).await?;
        Ok(Pin { matched, back })
    }
}

impl Pin {
    /// How many tokens are pinned, and how far full pages alone would have gone.
    #[must_use]
    pub fn matched(&self) -> Matched {
        self.matched
    }

    /// Lets the prefix go. Unlike a drop, it is done when this returns.
    ///
    /// # Errors
    /// [`AllocError::Service`].
    pub async fn unpin(self) -> Result<(), AllocError> {
        let shared = Arc::clone(&self.back.shared);
        drop(self);
        shared.collected().await
    }
}
