//! Pools whose live pages a gate pins, as a reclaim plan sees them.

use super::PinnedPages;
use crate::arena::GatedView;
use crate::unit::{PageId, PoolId, VirtId};

impl PinnedPages for GatedView {
    fn page(&self, pool: PoolId, virt: VirtId) -> Option<PageId> {
        self.page_of(pool, virt)
    }

    fn above(&self, pool: PoolId, page: PageId) -> Option<PageId> {
        self.occupied(pool)?.next_at_or_after(page.0 + 1).map(PageId)
    }

    fn below(&self, pool: PoolId, page: PageId) -> Option<PageId> {
        let below = page.0.checked_sub(1)?;
        self.occupied(pool)?.prev_at_or_before(below).map(PageId)
    }
}
