//! What is where: every pool's pages, ids, spans, leases and gates in one arena, and the moves between places.
//!
//! A page's life: free, perhaps reserved for a prepare; bound under a virtual id (live); freed, at once or through
//! pending while a lease or a copy may still touch it. Only a prepare moves a live page, and only its commit tells.
//!
//! Kept here: I1 page-states, I2 span-order, I3 tables-inverse, I5 ids-add-up, I6 holds-stay; [`Arena::check`] verifies
//! them. The arena knows places, not contents: bytes are copied by others between [`Arena::begin`] and
//! [`Arena::commit`], which together keep I7 if the batches are executed in order.
//!
//! Methods are *queries* and *plans* (`&self`), and *commands*. A refused command changes nothing. A plan is valid for
//! the [`Arena::epoch`] that it was made in; committing a stale one is a bug of the caller, and panics.

mod abort;
mod check;
mod content;
mod free;
mod gate;
mod lease;
mod packing;
mod page_set;
mod place;
mod plan;
mod pool;
mod prepare;
mod target;
mod victims;

use std::collections::BTreeMap;

pub use abort::{Aborted, CopiedBatches};
pub use check::Violation;
pub use content::ContentTag;
pub use free::{NotBound, RebindError};
pub use gate::{GateError, GateId, GatedView};
pub use lease::{LeaseError, LeaseId, UnknownLease};
pub use page_set::PageSet;
pub use place::{Grant, Placement};
pub use plan::{Move, PreparePlan};
pub use pool::Counts;
pub use prepare::{CopyBatch, Prepare};
pub use victims::Victims;

use crate::chain::{Chain, PoolKind};
use crate::fit::Geometry;
use crate::unit::{PageId, Pages, PerPool, PoolId, VirtId};
use pool::Pool;
use prepare::UnderWay;

/// Which pages count as pins, and which as there at all, in a capacity question (design section 4).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Question {
    /// Every live, pending and reserved page is a pin: nothing moves.
    Now,
    /// Pins are the live pages of gated pools, pages that leases hold, pending and reserved pages.
    AfterMoves,
    /// Pins are the live pages of gated pools; nothing is pending any more, and a prepare under way has committed.
    AfterLeases,
    /// As [`Question::AfterMoves`], with every gate open.
    GatesOpen,
}

/// Pools over one byte range. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Arena {
    chain: Chain,
    pools: Vec<Pool>,
    /// Ids that are free, of each pool that owns ids.
    free_ids: PerPool<Option<PageSet>>,
    /// How often each id was bound, of each pool that owns ids.
    generations: PerPool<Vec<u32>>,
    leases: BTreeMap<u64, Vec<(PoolId, PageId)>>,
    gates: BTreeMap<u64, Vec<PoolId>>,
    under_way: Option<UnderWay>,
    epoch: u64,
    tickets: u64,
}

impl Arena {
    /// An empty arena. O(pages and ids of all pools).
    #[must_use]
    pub fn new(chain: Chain) -> Self {
        let pools: Vec<_> = chain.pool_ids().map(|pool| Pool::new(&chain, pool)).collect();
        let mut free_ids = PerPool::default();
        let mut generations = PerPool::default();
        for pool in chain.pool_ids() {
            if !matches!(chain.pool(pool).kind, PoolKind::Window { .. }) {
                free_ids[pool] = Some(PageSet::filled(0, chain.pages_max(pool).0));
                generations[pool] = vec![0; chain.pages_max(pool).index()];
            }
        }
        Arena {
            chain,
            pools,
            free_ids,
            generations,
            leases: BTreeMap::new(),
            gates: BTreeMap::new(),
            under_way: None,
            epoch: 0,
            tickets: 0,
        }
    }

    /// The pools and their order.
    #[must_use]
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Grows with every change. A plan is valid while it stays the same.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Pages inside a pool's span, by what they are doing. O(log64 n).
    #[must_use]
    pub fn counts(&self, pool: PoolId) -> Counts {
        self.pools[pool.index()].counts()
    }

    /// First and last page of a pool's span; nothing if the pool occupies no page. O(log64 n).
    #[must_use]
    pub fn span(&self, pool: PoolId) -> Option<(PageId, PageId)> {
        let span = self.pools[pool.index()].span()?;
        Some((PageId(span.start), PageId(span.end - 1)))
    }

    /// Where the page of an id lies now.
    #[must_use]
    pub fn locate(&self, pool: PoolId, virt: VirtId) -> Option<PageId> {
        self.pools.get(pool.index())?.page_of(virt).map(PageId)
    }

    /// Whether an id has a page in that pool.
    #[must_use]
    pub fn is_bound(&self, pool: PoolId, virt: VirtId) -> bool {
        self.locate(pool, virt).is_some()
    }

    /// Ids of a pool that are not bound; a window pool's are the full pool's.
    #[must_use]
    pub fn free_ids(&self, pool: PoolId) -> Pages {
        Pages(self.free_ids[self.owner_of_ids(pool)].as_ref().map_or(0, PageSet::count))
    }

    /// Every live page, by pool, then by id. O(ids) for all.
    pub fn live_pages(
        &self,
    ) -> impl Iterator<Item = (PoolId, VirtId, PageId, ContentTag)> + use<'_> {
        (0..).map(PoolId).zip(&self.pools).flat_map(|(id, pool)| {
            (0..).map(VirtId).zip(&pool.content).filter_map(move |(virt, &content)| {
                pool.page_of(virt).map(|page| (id, virt, PageId(page), content))
            })
        })
    }

    /// What the page of an id must contain.
    #[must_use]
    pub fn content(&self, pool: PoolId, virt: VirtId) -> Option<ContentTag> {
        let pool = self.pools.get(pool.index())?;
        pool.page_of(virt).map(|_| pool.content[virt.index()])
    }

    /// Says what a page contains after another page was copied over it.
    ///
    /// # Errors
    /// [`NotBound`]: nothing changed.
    pub fn set_content(
        &mut self,
        pool: PoolId,
        virt: VirtId,
        content: ContentTag,
    ) -> Result<(), NotBound> {
        if !self.is_bound(pool, virt) {
            return Err(NotBound { pool, virt });
        }
        self.pools[pool.index()].content[virt.index()] = content;
        Ok(())
    }

    /// The numbers that decide capacity. O(pools × log64 n).
    ///
    /// While a prepare is under way the answers err on the side of refusal: both a move's source and its place count.
    /// [`Arena::place`] then knows better what can be handed out at once.
    #[must_use]
    pub fn geometry(&self, question: Question) -> Geometry {
        let mut geometry = Geometry::empty(&self.chain);
        for (id, pool) in (0..).map(PoolId).zip(&self.pools) {
            let promised = self.promised_ids(id);
            let gated = || self.live_hull(id);
            let fit = geometry.pool_mut(id);
            fit.live = Pages(pool.live.count());
            fit.pending = Pages(pool.pending.count());
            fit.reserved = Pages(pool.reserved.count());
            fit.promised = promised;
            fit.pins = match question {
                Question::Now => {
                    pool::hull(pool.occupied.first().into_iter().chain(pool.occupied.last()))
                }
                Question::AfterMoves if pool.is_gated() => {
                    gate::join(pool.pins_but_gates(), gated())
                }
                Question::AfterMoves | Question::GatesOpen => pool.pins_but_gates(),
                Question::AfterLeases => {
                    Some(()).filter(|()| pool.is_gated()).and_then(|()| gated())
                }
            };
            if question == Question::AfterLeases {
                let (gone, come) = self.under_way_pages(id);
                fit.live = Pages((fit.live.0 - gone.0).saturating_add(come.0));
                (fit.pending, fit.reserved, fit.promised) = Default::default();
            }
        }
        geometry
    }

    /// The pool that owns the ids of `pool`: the full pool for token pools.
    fn owner_of_ids(&self, pool: PoolId) -> PoolId {
        match (self.chain.pool(pool).kind, self.chain.full()) {
            (PoolKind::Window { .. }, Some(full)) => full,
            _ => pool,
        }
    }

    /// The bytes that a pool could grow into without a move: between the spans of the nearest pools around it.
    fn room(&self, pool: PoolId) -> (u64, u64) {
        let spans = |pools: &[Pool]| pools.iter().filter_map(Pool::span_bytes).collect::<Vec<_>>();
        let below = spans(&self.pools[..pool.index()]).iter().map(|span| span.1).max();
        let above = spans(&self.pools[pool.index() + 1..]).iter().map(|span| span.0).min();
        (below.unwrap_or(0), above.unwrap_or(self.chain.total().0))
    }

    /// Every command ends here.
    fn touch(&mut self) {
        self.epoch += 1;
    }

    /// Checks everything at phase boundaries of debug builds, unless the arena is too large for that.
    #[track_caller]
    fn debug_check(&self) {
        if cfg!(debug_assertions) {
            let pages: u64 = self.pools.iter().map(|pool| u64::from(pool.grid)).sum();
            if pages <= DEBUG_CHECK_PAGES_MAX {
                self.check().expect("I1-I6: the phase that just ended kept its invariants");
            }
        }
    }
}

/// A check reads every page and id: about 20 µs at this many.
const DEBUG_CHECK_PAGES_MAX: u64 = 4096;
