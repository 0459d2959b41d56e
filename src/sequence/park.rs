//! Giving all memory back while the tokens stay, and going on from what is cached then.

use super::{GivenBack, Sequence, SequenceError, Standing};
use crate::chain::Chain;
use crate::tree::{Lock, Match, User};
use crate::unit::{Pages, Token, Tokens, VirtId};

impl Sequence {
    /// Whether it can be worked on.
    ///
    /// # Errors
    /// [`SequenceError::Parked`].
    pub fn can_work(&self) -> Result<(), SequenceError> {
        match self.standing {
            Standing::Open => Ok(()),
            Standing::Parked(_) => Err(SequenceError::Parked),
        }
    }

    /// All tokens so far, to be matched again, and whom the match is for.
    ///
    /// # Errors
    /// [`SequenceError::NotParked`].
    pub fn can_resume(&self) -> Result<(&[Token], &User), SequenceError> {
        match &self.standing {
            Standing::Parked(user) => Ok((&self.tokens, user)),
            Standing::Open => Err(SequenceError::NotParked),
        }
    }

    /// Gives everything of its own up, and its lock; keeps its tokens.
    pub fn park(&mut self, chain: &Chain) -> GivenBack {
        let pages = self.owned(chain);
        let lock = self.lock.take();
        let user = lock.as_ref().map(|lock| lock.user().clone());
        self.standing = Standing::Parked(user.unwrap_or_default());
        self.own.clear();
        self.shared.clear();
        self.running.clear();
        self.computed = Tokens(0);
        GivenBack { pages, lock }
    }

    /// Goes on from what matched; the rest of its tokens can be extended.
    pub fn resume(&mut self, chain: &Chain, matched: Match, lock: Lock, running: Vec<VirtId>) {
        self.computed = matched.pages.tokens(chain.page_tokens());
        self.lock = Some(lock);
        self.lock_shed = self.computed;
        self.shared = matched.virts;
        self.shed.fill(Pages(0));
        self.running = running;
        self.standing = Standing::Open;
    }
}
