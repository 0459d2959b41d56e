//! Outside holds that forbid moves of whole pools.

use std::collections::BTreeSet;

use super::pool::{Pool, hull};
use super::{Arena, PageSet};
use crate::fit::Pins;
use crate::unit::{POOLS_MAX, PageId, PoolId, VirtId};

/// One closed gate. Not reused.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct GateId(pub u64);

/// Why a gate could not be closed or opened. Nothing changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum GateError {
    /// The gate was opened already, or never closed.
    #[error("gate {} is not closed", .0.0)]
    Unknown(GateId),
    /// Pages of the pool are moving: wait until the prepare under way has ended.
    #[error("pages of pool {0:?} are moving")]
    Moving(PoolId),
    /// No such pool in the chain.
    #[error("the chain has no pool {0:?}")]
    NoPool(PoolId),
}

/// Where the pages of gated pools lie, apart from the arena: a copy that a reclaim plan may free pages in.
///
/// In a pinned pool a freed page at an edge moves the edge, and one inside is a hole. O(pages and ids of the gated
/// pools) to make.
#[derive(Clone, Debug, Default)]
pub struct GatedView {
    pools: [Option<GatedPool>; POOLS_MAX],
}

#[derive(Clone, Debug)]
struct GatedPool {
    place: Vec<u32>,
    /// Freeing these pages would not unpin them.
    kept: BTreeSet<u32>,
    occupied: PageSet,
}

impl Arena {
    /// Forbids moves of `pools` until the gate is opened. Gates are counted: a pool listed twice counts once.
    ///
    /// # Errors
    /// [`GateError::Moving`] while a prepare moves pages of one of them (ask [`Arena::is_moving_pool`] first), and
    /// [`GateError::NoPool`].
    pub fn close_gate(&mut self, pools: &[PoolId]) -> Result<GateId, GateError> {
        let pools: BTreeSet<_> = pools.iter().copied().collect();
        for &pool in &pools {
            if pool.index() >= self.pools.len() {
                return Err(GateError::NoPool(pool));
            }
            if self.is_moving_pool(pool) {
                return Err(GateError::Moving(pool));
            }
        }
        for pool in &pools {
            self.pools[pool.index()].gates += 1;
        }
        self.tickets += 1;
        self.gates.insert(self.tickets, pools.into_iter().collect());
        self.touch();
        Ok(GateId(self.tickets))
    }

    /// Allows the moves that this gate forbade, unless another gate does too.
    ///
    /// # Errors
    /// [`GateError::Unknown`].
    pub fn open_gate(&mut self, gate: GateId) -> Result<(), GateError> {
        let pools = self.gates.remove(&gate.0).ok_or(GateError::Unknown(gate))?;
        for pool in pools {
            self.pools[pool.index()].gates -= 1;
        }
        self.touch();
        Ok(())
    }

    /// Whether a closed gate forbids moves of `pool`.
    #[must_use]
    pub fn is_gated(&self, pool: PoolId) -> bool {
        self.pools.get(pool.index()).is_some_and(Pool::is_gated)
    }

    /// Closed gates.
    pub fn closed_gates(&self) -> impl Iterator<Item = (GateId, &[PoolId])> {
        self.gates.iter().map(|(&gate, pools)| (GateId(gate), pools.as_slice()))
    }

    /// Places in the gated pools, for planning; nothing when no gate is closed.
    #[must_use]
    pub fn gated(&self) -> Option<GatedView> {
        let mut view = GatedView::default();
        for (slot, pool) in view.pools.iter_mut().zip(&self.pools) {
            *slot = pool.is_gated().then(|| GatedPool {
                place: pool.place.clone(),
                kept: pool.held.iter().collect(),
                occupied: pool.occupied.clone(),
            });
        }
        view.pools.iter().any(Option::is_some).then_some(view)
    }

    /// The lowest and highest live page of a pool that are not about to be evicted.
    pub(super) fn live_hull(&self, pool: PoolId) -> Option<Pins> {
        let tables = &self.pools[pool.index()];
        let leaves = |page: u32| self.is_victim(pool, VirtId(tables.owner[page as usize]));
        let low = tables.live.iter().find(|&page| !leaves(page));
        let mut high = tables.live.last();
        while let Some(page) = high.filter(|&page| leaves(page)) {
            high = page.checked_sub(1).and_then(|below| tables.live.prev_at_or_before(below));
        }
        hull(low.into_iter().chain(high))
    }
}

impl GatedView {
    /// Whether `pool` is gated, so that its pages matter one by one.
    #[must_use]
    pub fn covers(&self, pool: PoolId) -> bool {
        self.pools[pool.index()].is_some()
    }

    /// The page of an id in a gated pool.
    #[must_use]
    pub fn page_of(&self, pool: PoolId, virt: VirtId) -> Option<PageId> {
        let page = *self.pools[pool.index()].as_ref()?.place.get(virt.index())?;
        (page != super::pool::NONE).then_some(PageId(page))
    }

    /// Frees the page of an id in this copy; says whether that gave a page back. O(log64 n).
    pub fn free(&mut self, pool: PoolId, virt: VirtId) -> bool {
        let Some(page) = self.page_of(pool, virt) else { return false };
        let Some(gated) = &mut self.pools[pool.index()] else { return false };
        !gated.kept.contains(&page.0) && gated.occupied.remove(page.0)
    }

    /// Takes a [`GatedView::free`] back.
    pub fn restore(&mut self, pool: PoolId, virt: VirtId) {
        let page = self.page_of(pool, virt);
        if let Some((page, gated)) = page.zip(self.pools[pool.index()].as_mut()) {
            gated.occupied.insert(page.0);
        }
    }

    /// The lowest and highest page of a gated pool that is still occupied: its pins.
    #[must_use]
    pub fn pins(&self, pool: PoolId) -> Option<Pins> {
        let occupied = &self.pools[pool.index()].as_ref()?.occupied;
        hull(occupied.first().into_iter().chain(occupied.last()))
    }

    /// The pages of a gated pool that are still occupied.
    #[must_use]
    pub fn occupied(&self, pool: PoolId) -> Option<&PageSet> {
        self.pools[pool.index()].as_ref().map(|gated| &gated.occupied)
    }
}

/// What both pin.
pub(super) fn join(one: Option<Pins>, other: Option<Pins>) -> Option<Pins> {
    hull([one, other].into_iter().flatten().flat_map(|pins| [pins.lo.0, pins.hi.0]))
}

#[cfg(test)]
mod tests {
    use crate::arena::{Arena, Question};
    use crate::chain::{Chain, Grow, PoolKind, PoolSpec};
    use crate::demand::Demand;
    use crate::unit::{Bytes, Pages, PoolId, Tokens, VirtId};

    const POOL: PoolId = PoolId(0);

    /// Six live pages of one pool, ids 0 to 5 from the bottom.
    fn six_pages() -> Arena {
        let spec = PoolSpec {
            name: "state".to_owned(),
            kind: PoolKind::State,
            grow: Grow::Up,
            page_bytes: Bytes(2),
            pages_max: None,
        };
        let chain = Chain::new(Bytes(24), Tokens(1), None, vec![spec]).unwrap();
        let mut arena = Arena::new(chain);
        let demand = Demand::default().with(POOL, Pages(6)).unwrap();
        let placement = arena.place(&demand).unwrap();
        arena.bind(placement);
        arena
    }

    #[test]
    fn a_view_frees_like_the_arena_itself() {
        for order in [[0, 1, 5, 4, 2, 3], [3, 2, 0, 5, 1, 4], [5, 4, 3, 2, 1, 0]] {
            let mut arena = six_pages();
            arena.close_gate(&[POOL]).unwrap();
            let mut view = arena.gated().unwrap();
            for virt in order.map(VirtId) {
                assert!(view.free(POOL, virt));
                assert!(!view.free(POOL, virt), "freed once only");
                arena.free(POOL, virt).unwrap();
                assert_eq!(view.pins(POOL), arena.geometry(Question::AfterMoves).pool(POOL).pins);
            }
        }
    }

    #[test]
    fn a_view_takes_frees_back_and_keeps_what_a_lease_holds() {
        let mut arena = six_pages();
        arena.begin_lease(&[(POOL, VirtId(5))]).unwrap();
        assert!(arena.gated().is_none(), "no gate is closed");
        arena.close_gate(&[POOL]).unwrap();
        let mut view = arena.gated().unwrap();
        let before = view.pins(POOL);
        assert!(!view.free(POOL, VirtId(5)));
        assert!(view.free(POOL, VirtId(0)));
        assert_ne!(view.pins(POOL), before);
        view.restore(POOL, VirtId(0));
        assert_eq!(view.pins(POOL), before);
    }

    #[test]
    fn two_gates_over_one_pool_are_counted() {
        let mut arena = six_pages();
        let gates =
            [arena.close_gate(&[POOL, POOL]), arena.close_gate(&[POOL])].map(Result::unwrap);
        arena.open_gate(gates[0]).unwrap();
        assert!(arena.is_gated(POOL));
        arena.open_gate(gates[1]).unwrap();
        assert!(!arena.is_gated(POOL));
        assert!(arena.open_gate(gates[1]).is_err());
        assert!(arena.close_gate(&[PoolId(7)]).is_err());
    }
}
