//! Giving pages back, and handing a window page on.

use super::Arena;
use super::pool::Fate;
use crate::chain::PoolKind;
use crate::unit::{PageId, PoolId, VirtId};

/// No page is bound under that id. Nothing changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("id {virt:?} has no page in pool {pool:?}")]
pub struct NotBound {
    /// The pool.
    pub pool: PoolId,
    /// The id.
    pub virt: VirtId,
}

/// Why a window page could not be handed on. Nothing changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RebindError {
    /// Only pages of window pools can be handed on.
    #[error("pool {0:?} is not a window pool")]
    NotWindow(PoolId),
    /// Nothing to hand on, or nobody to take it.
    #[error(transparent)]
    NotBound(#[from] NotBound),
    /// The taker has a page already.
    #[error("id {virt:?} already has a page in pool {pool:?}")]
    Occupied {
        /// The pool.
        pool: PoolId,
        /// The id.
        virt: VirtId,
    },
    /// One of the two goes when the prepare under way commits.
    #[error("id {virt:?} in pool {pool:?} is about to be evicted")]
    Victim {
        /// The pool.
        pool: PoolId,
        /// The id.
        virt: VirtId,
    },
}

impl Arena {
    /// Gives back the page of an id; of the full pool, the id and every window page under it too.
    ///
    /// The id is free at once. A page that a lease holds, or that a prepare under way copies from, becomes pending.
    ///
    /// # Errors
    /// [`NotBound`].
    pub fn free(&mut self, pool: PoolId, virt: VirtId) -> Result<(), NotBound> {
        self.unbind(pool, virt)?;
        self.touch();
        self.debug_check();
        Ok(())
    }

    /// Hands the window page of `from`, with what it contains, to `to`, a full id that has none.
    ///
    /// # Errors
    /// [`RebindError`].
    pub fn rebind_window(
        &mut self,
        pool: PoolId,
        from: VirtId,
        to: VirtId,
    ) -> Result<(), RebindError> {
        let full = self.chain.full().filter(|_| self.chain.windows().contains(&pool));
        let full = full.ok_or(RebindError::NotWindow(pool))?;
        let page = self.locate(pool, from).ok_or(NotBound { pool, virt: from })?;
        if !self.is_bound(full, to) {
            return Err(NotBound { pool: full, virt: to }.into());
        }
        if self.is_bound(pool, to) {
            return Err(RebindError::Occupied { pool, virt: to });
        }
        for (pool, virt) in [(pool, from), (full, to)] {
            if self.is_victim(pool, virt) {
                return Err(RebindError::Victim { pool, virt });
            }
        }
        let tables = &mut self.pools[pool.index()];
        tables.place[from.index()] = super::pool::NONE;
        tables.place[to.index()] = page.0;
        tables.owner[page.index()] = to.0;
        tables.content[to.index()] = tables.content[from.index()];
        self.touch();
        self.debug_check();
        Ok(())
    }

    /// [`Arena::free`] without the checks around it.
    pub(super) fn unbind(&mut self, pool: PoolId, virt: VirtId) -> Result<(), NotBound> {
        let page = self.locate(pool, virt).ok_or(NotBound { pool, virt })?;
        if self.chain.full() == Some(pool) {
            for window in self.chain.windows().to_vec() {
                // A full page without a window page is a tombstone: nothing to give back there.
                if let Some(page) = self.locate(window, virt) {
                    self.drop_page(window, virt, page);
                }
            }
        }
        self.drop_page(pool, virt, page);
        if !matches!(self.chain.pool(pool).kind, PoolKind::Window { .. })
            && let Some(ids) = &mut self.free_ids[pool]
        {
            ids.insert(virt.0);
        }
        Ok(())
    }

    fn drop_page(&mut self, pool: PoolId, virt: VirtId, page: PageId) {
        let tables = &self.pools[pool.index()];
        let fate = if tables.held.contains(page.0) || self.is_source(pool, page) {
            Fate::Pending
        } else if self.is_wanted(pool, page) {
            Fate::Reserved
        } else {
            Fate::Free
        };
        self.pools[pool.index()].unbind(virt.0, fate);
        self.forget_victim(pool, virt);
    }
}
