//! One pool's tables: what each of its pages and each of its ids is doing.

use std::collections::BTreeMap;

use super::content::ContentTag;
use super::page_set::PageSet;
use crate::chain::{Chain, Grow};
use crate::fit::Pins;
use crate::unit::{PageId, Pages, PoolId, VirtId};

/// Pages of one pool by what they are doing, inside its span.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Bound to a virtual id.
    pub live: Pages,
    /// Free, inside the span.
    pub holes: Pages,
    /// Freed, but a lease or a copy may still touch them.
    pub pending: Pages,
    /// Promised to a prepare under way.
    pub reserved: Pages,
}

/// Pages `start..end` of one pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// What becomes of a page that loses its id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    /// Can be handed out again.
    Free,
    /// Stays until nothing touches it any more.
    Pending,
    /// Goes to the prepare that it was promised to.
    Reserved,
}

/// Pages, ids and holds of one pool. Knows nothing of other pools.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) page_bytes: u64,
    pub(super) first: u32,
    pub(super) grid: u32,
    pub(super) grow: Grow,
    /// Page → id, `NONE` unless live.
    pub(super) owner: Vec<u32>,
    /// Id → page, `NONE` unless bound.
    pub(super) place: Vec<u32>,
    pub(super) content: Vec<ContentTag>,
    pub(super) live: PageSet,
    pub(super) pending: PageSet,
    pub(super) reserved: PageSet,
    /// Promised to a prepare under way, but other pools' bytes are still in the way, so that they are not yet reserved.
    pub(super) promised: PageSet,
    /// Live, pending and reserved together.
    pub(super) occupied: PageSet,
    /// Usable pages that are neither occupied nor promised. Those outside the span may be other pools' bytes.
    pub(super) free: PageSet,
    /// Live or pending pages that a lease holds.
    pub(super) held: PageSet,
    pub(super) holds: BTreeMap<u32, u32>,
    /// Closed gates over the pool.
    pub(super) gates: u32,
}

impl Span {
    pub(super) fn len(self) -> u32 {
        self.end - self.start
    }

    pub(super) fn contains(self, page: u32) -> bool {
        (self.start..self.end).contains(&page)
    }
}

impl Pool {
    pub(super) fn new(chain: &Chain, pool: PoolId) -> Self {
        let (grid, first) = (chain.grid_pages(pool).0, chain.first_page(pool).0);
        let owner_of_ids = match chain.full() {
            Some(full) if chain.windows().contains(&pool) => full,
            _ => pool,
        };
        let ids = chain.pages_max(owner_of_ids).index();
        let set = || PageSet::new(grid);
        Pool {
            page_bytes: chain.pool(pool).page_bytes.0,
            first,
            grid,
            grow: chain.pool(pool).grow,
            owner: vec![NONE; grid as usize],
            place: vec![NONE; ids],
            content: vec![ContentTag::default(); ids],
            live: set(),
            pending: set(),
            reserved: set(),
            promised: set(),
            occupied: set(),
            free: PageSet::filled(first, grid),
            held: set(),
            holds: BTreeMap::new(),
            gates: 0,
        }
    }

    /// Binds the free `page` under the unbound `virt`.
    pub(super) fn bind(&mut self, virt: u32, page: u32, content: ContentTag) {
        assert!(self.free.remove(page), "I1: page {page} is bound but was not free");
        assert_eq!(self.place[virt as usize], NONE, "I3: id {virt} is bound twice");
        self.occupied.insert(page);
        self.live.insert(page);
        self.owner[page as usize] = virt;
        self.place[virt as usize] = page;
        self.content[virt as usize] = content;
    }

    /// Takes the page away from the bound `virt` and gives it its fate.
    pub(super) fn unbind(&mut self, virt: u32, fate: Fate) {
        let page = std::mem::replace(&mut self.place[virt as usize], NONE);
        self.owner[page as usize] = NONE;
        self.live.remove(page);
        match fate {
            Fate::Free => self.vacate(page),
            Fate::Pending => _ = self.pending.insert(page),
            Fate::Reserved => _ = self.reserved.insert(page),
        }
    }

    /// The live page `from` of some id becomes the free page `to`; the id stays.
    pub(super) fn relocate(&mut self, from: u32, to: u32) {
        assert!(self.free.remove(to), "I1: page {to} takes a move but was not free");
        let virt = std::mem::replace(&mut self.owner[from as usize], NONE);
        self.live.remove(from);
        self.occupied.insert(to);
        self.live.insert(to);
        self.owner[to as usize] = virt;
        self.place[virt as usize] = to;
        if self.held.contains(from) {
            self.pending.insert(from);
        } else {
            self.vacate(from);
        }
    }

    /// Marks a free page for the prepare under way.
    pub(super) fn reserve(&mut self, page: u32) {
        self.free.remove(page);
        self.occupied.insert(page);
        self.reserved.insert(page);
    }

    /// Remembers a page for the prepare under way that other pools' bytes still cover.
    pub(super) fn promise(&mut self, page: u32) {
        self.free.remove(page);
        self.promised.insert(page);
    }

    /// Takes back every mark that a prepare has made.
    pub(super) fn clear_marks(&mut self) {
        for page in self.reserved.iter().collect::<Vec<_>>() {
            self.reserved.remove(page);
            self.vacate(page);
        }
        for page in self.promised.iter().collect::<Vec<_>>() {
            self.promised.remove(page);
            self.free.insert(page);
        }
    }

    /// A pending page that nothing touches any more.
    pub(super) fn settle(&mut self, page: u32) {
        if self.pending.contains(page) && !self.held.contains(page) {
            self.pending.remove(page);
            self.vacate(page);
        }
    }

    pub(super) fn hold(&mut self, page: u32) {
        *self.holds.entry(page).or_default() += 1;
        self.held.insert(page);
    }

    /// Takes one hold off `page`.
    pub(super) fn release(&mut self, page: u32) {
        let Some(count) = self.holds.get_mut(&page) else { return };
        *count -= 1;
        if *count == 0 {
            self.holds.remove(&page);
            self.held.remove(page);
        }
    }

    pub(super) fn page_of(&self, virt: VirtId) -> Option<u32> {
        self.place.get(virt.index()).copied().filter(|&page| page != NONE)
    }

    pub(super) fn is_gated(&self) -> bool {
        self.gates > 0
    }

    /// The pool's span: from the first usable page for the up end, to the end of the grid for the down end.
    pub(super) fn span(&self) -> Option<Span> {
        let (start, last) = self.occupied.first().zip(self.occupied.last())?;
        Some(match self.grow {
            Grow::Up => Span { start: self.first, end: last + 1 },
            Grow::Float => Span { start, end: last + 1 },
            Grow::Down => Span { start, end: self.grid },
        })
    }

    /// The span from its first to just past its last byte.
    pub(super) fn span_bytes(&self) -> Option<(u64, u64)> {
        self.span().map(|span| self.bytes(span))
    }

    pub(super) fn bytes(&self, span: Span) -> (u64, u64) {
        (u64::from(span.start) * self.page_bytes, u64::from(span.end) * self.page_bytes)
    }

    pub(super) fn counts(&self) -> Counts {
        let occupied = self.occupied.count();
        Counts {
            live: Pages(self.live.count()),
            holes: Pages(self.span().map_or(0, |span| span.len() - occupied)),
            pending: Pages(self.pending.count()),
            reserved: Pages(self.reserved.count()),
        }
    }

    /// The lowest and highest page of what a lease, a copy or a prepare pins; gates apart.
    pub(super) fn pins_but_gates(&self) -> Option<Pins> {
        let sets = [&self.pending, &self.reserved, &self.held];
        hull(sets.iter().flat_map(|set| set.first().into_iter().chain(set.last())))
    }

    fn vacate(&mut self, page: u32) {
        self.occupied.remove(page);
        self.free.insert(page);
    }
}

/// The lowest and highest of some pages.
pub(super) fn hull(pages: impl Iterator<Item = u32>) -> Option<Pins> {
    pages.fold(None, |hull, page| {
        let page = PageId(page);
        Some(match hull {
            None => Pins { lo: page, hi: page },
            Some(Pins { lo, hi }) => Pins { lo: lo.min(page), hi: hi.max(page) },
        })
    })
}

/// No page, or no id.
pub(super) const NONE: u32 = u32::MAX;
