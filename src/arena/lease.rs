//! Holds of engine steps on the pages that their kernels may still read or write.

use super::Arena;
use crate::unit::{PoolId, VirtId};

/// One lease. Not reused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LeaseId(pub u64);

/// Why a lease was refused. Nothing changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LeaseError {
    /// Nothing to hold.
    #[error("id {virt:?} has no page in pool {pool:?}")]
    NotBound {
        /// The pool.
        pool: PoolId,
        /// The id.
        virt: VirtId,
    },
    /// The page is a source or a victim of the prepare under way: wait until that has ended.
    #[error("the page of id {virt:?} in pool {pool:?} is about to move or to go")]
    Moving {
        /// The pool.
        pool: PoolId,
        /// The id.
        virt: VirtId,
    },
}

/// A lease that has ended already, or never was. Nothing changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("lease {} is not open", .0.0)]
pub struct UnknownLease(pub LeaseId);

impl Arena {
    /// Holds the pages of `holds`, counted per physical page: until the lease ends they stay where they are, and if
    /// freed they are not handed out. The window pages of a token page are listed by themselves.
    ///
    /// # Errors
    /// [`LeaseError`]; ask [`Arena::is_moving`] first.
    pub fn begin_lease(&mut self, holds: &[(PoolId, VirtId)]) -> Result<LeaseId, LeaseError> {
        let mut pages = Vec::with_capacity(holds.len());
        for &(pool, virt) in holds {
            let page = self.locate(pool, virt).ok_or(LeaseError::NotBound { pool, virt })?;
            if self.is_moving(pool, virt) {
                return Err(LeaseError::Moving { pool, virt });
            }
            pages.push((pool, page));
        }
        for &(pool, page) in &pages {
            self.pools[pool.index()].hold(page.0);
        }
        self.tickets += 1;
        self.leases.insert(self.tickets, pages);
        self.touch();
        Ok(LeaseId(self.tickets))
    }

    /// Lets the lease's pages move again; those that were freed meanwhile can be handed out.
    ///
    /// # Errors
    /// [`UnknownLease`].
    pub fn end_lease(&mut self, lease: LeaseId) -> Result<(), UnknownLease> {
        let pages = self.leases.remove(&lease.0).ok_or(UnknownLease(lease))?;
        for (pool, page) in pages {
            self.pools[pool.index()].release(page.0);
            if !self.is_source(pool, page) {
                self.pools[pool.index()].settle(page.0);
            }
        }
        self.touch();
        self.debug_check();
        Ok(())
    }

    /// Open leases.
    #[must_use]
    pub fn lease_count(&self) -> usize {
        self.leases.len()
    }

    /// Whether a lease holds the page of an id.
    #[must_use]
    pub fn is_held(&self, pool: PoolId, virt: VirtId) -> bool {
        self.locate(pool, virt).is_some_and(|page| self.pools[pool.index()].held.contains(page.0))
    }
}
