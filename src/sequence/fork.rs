//! Two continuations of one sequence, which share all pages so far.

use super::{Sequence, own_pages};
use crate::chain::Chain;
use crate::tree::{Lock, OwnPage};
use crate::unit::{PoolId, Tokens, VirtId};

impl Sequence {
    /// A second continuation, with a hold and running slots of its own. The pages of both belong to both from now on; the
    /// page under way is copied by whoever writes to it first.
    #[must_use]
    pub fn fork(&self, lock: Lock, running: Vec<VirtId>) -> Sequence {
        Sequence {
            namespace: self.namespace.clone(),
            tokens: self.tokens.clone(),
            prompt: self.prompt,
            computed: self.computed,
            lock: Some(lock),
            lock_shed: Tokens(0),
            shared: self.shared.clone(),
            own: self.own.clone(),
            shed: self.shed.clone(),
            running,
            standing: self.standing.clone(),
        }
    }

    /// Pages past the lock's boundary, in order: its own, or shared by forks.
    #[must_use]
    pub fn own(&self) -> &[OwnPage] {
        &self.own
    }

    /// Those pages, pool by pool.
    #[must_use]
    pub fn own_pages(&self, chain: &Chain) -> Vec<(PoolId, VirtId)> {
        own_pages(chain, &self.own)
    }
}
