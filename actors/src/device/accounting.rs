//! An arena of no bytes.

use kvtide_core::unit::PoolId;

use super::{
    AccessError, CopyError, Engine, Grids, PageCheck, PageMove, PageWrite, Verified, VerifyError,
};

/// Refuses what a real arena would refuse, and otherwise does nothing.
///
/// It cannot verify content, and says so: `verified` is 0 in every [`Verified`].
#[derive(Clone, Debug)]
pub struct AccountingEngine {
    grids: Grids,
}

impl AccountingEngine {
    /// An arena of any size.
    #[must_use]
    pub fn new(grids: Grids) -> Self {
        AccountingEngine { grids }
    }
}

impl Engine for AccountingEngine {
    fn grids(&self) -> &Grids {
        &self.grids
    }

    fn write(&mut self, pool: PoolId, pages: &[PageWrite]) -> Result<(), AccessError> {
        pages.iter().try_for_each(|write| self.grids.range(pool, write.page).map(drop))
    }

    fn copy(&mut self, pool: PoolId, moves: &[PageMove]) -> Result<(), CopyError> {
        Ok(self.grids.check_batch(pool, moves)?)
    }

    fn verify(&mut self, pages: &[PageCheck]) -> Result<Verified, VerifyError> {
        for check in pages {
            self.grids.range(check.pool, check.page)?;
        }
        Ok(Verified { verified: 0, in_range: pages.len() as u64 })
    }
}
