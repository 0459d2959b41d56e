//! Where the pages of every pool lie in one arena, and which accesses stay inside it.
//!
//! Page `p` of a pool whose pages have `e` bytes is the byte range `[p * e, (p + 1) * e)`. Every engine asks
//! here before it touches a byte, so all of them refuse the same accesses with the same words.

use std::ops::Range;

use kvtide_core::chain::Chain;
use kvtide_core::unit::{Bytes, PageId, PoolId};

use super::PageMove;

/// The page grids of all pools over one arena, checked once.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Grids {
    total: Bytes,
    sink: Bytes,
    page_bytes: Vec<Bytes>,
}

/// Why pages cannot be read or written. Nothing was touched.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AccessError {
    /// The arena has no such pool.
    #[error("pool {} is not one of the arena's {pools}", pool.0)]
    NoPool {
        /// The pool asked for.
        pool: PoolId,
        /// Pools that the arena has.
        pools: usize,
    },
    /// The page reaches past the arena's end, or into the sink.
    #[error("page {} of pool {} is bytes {start} to {end}, outside {} to {}", page.0, pool.0, sink.0, total.0)]
    OutOfRange {
        /// The page's pool.
        pool: PoolId,
        /// The page.
        page: PageId,
        /// Its first byte.
        start: u64,
        /// Just past its last byte.
        end: u64,
        /// First byte that pages may use.
        sink: Bytes,
        /// Just past the last byte that pages may use.
        total: Bytes,
    },
    /// A batch's copies run in no order, so a page may be the target of one copy only, and of no copy's source.
    #[error("page {} of pool {} is written by one copy of a batch and used by another", page.0, pool.0)]
    Overlap {
        /// The batch's pool.
        pool: PoolId,
        /// The page that is used twice.
        page: PageId,
    },
}

impl Grids {
    /// The grids of a checked chain.
    #[must_use]
    pub fn of(chain: &Chain) -> Self {
        let page_bytes = chain.pool_ids().map(|pool| chain.pool(pool).page_bytes).collect();
        Grids { total: chain.total(), sink: chain.sink(), page_bytes }
    }

    /// Grids over `total` bytes, the lowest `sink` of them out of bounds; a page size for every pool.
    #[must_use]
    pub fn new(total: Bytes, sink: Bytes, page_bytes: Vec<Bytes>) -> Self {
        Grids { total, sink, page_bytes }
    }

    /// Bytes of the arena.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.total
    }

    /// Bytes of one page of a pool.
    ///
    /// # Errors
    /// [`AccessError::NoPool`].
    pub fn page_bytes(&self, pool: PoolId) -> Result<Bytes, AccessError> {
        let pools = self.page_bytes.len();
        self.page_bytes.get(pool.index()).copied().ok_or(AccessError::NoPool { pool, pools })
    }

    /// The bytes of one page, all of them inside the arena and above the sink.
    ///
    /// # Errors
    /// [`AccessError::NoPool`], [`AccessError::OutOfRange`].
    pub fn range(&self, pool: PoolId, page: PageId) -> Result<Range<u64>, AccessError> {
        let page_bytes = self.page_bytes(pool)?.0;
        let start = u64::from(page.0).checked_mul(page_bytes);
        let end = start.and_then(|start| start.checked_add(page_bytes));
        match start.zip(end) {
            Some((start, end)) if start >= self.sink.0 && end <= self.total.0 => Ok(start..end),
            _ => {
                let (start, end) = (start.unwrap_or(u64::MAX), end.unwrap_or(u64::MAX));
                let (sink, total) = (self.sink, self.total);
                Err(AccessError::OutOfRange { pool, page, start, end, sink, total })
            }
        }
    }

    /// Checks one batch of copies: in range, and free to run in any order.
    ///
    /// A page may be the source of several copies (a state that two sequences take over). O(n log n) in moves.
    ///
    /// # Errors
    /// Every [`AccessError`].
    pub fn check_batch(&self, pool: PoolId, moves: &[PageMove]) -> Result<(), AccessError> {
        let mut targets = Vec::with_capacity(moves.len());
        for step in moves {
            self.range(pool, step.from)?;
            self.range(pool, step.to)?;
            targets.push(step.to);
        }
        targets.sort_unstable();
        let twice = targets.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let read =
            moves.iter().map(|step| step.from).find(|from| targets.binary_search(from).is_ok());
        match twice.or(read) {
            Some(page) => Err(AccessError::Overlap { pool, page }),
            None => Ok(()),
        }
    }
}
