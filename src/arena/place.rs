//! Handing out pages where nothing has to move.

use super::content::ContentTag;
use super::pool::{Pool, Span};
use super::{Arena, PageSet};
use crate::chain::{Grow, PoolKind};
use crate::demand::Demand;
use crate::unit::{PageId, Pages, PerPool, PoolId, VirtId};

/// Free pages found for a demand; valid until the arena changes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Placement {
    pub(super) epoch: u64,
    pub(super) pages: PerPool<Vec<PageId>>,
}

/// Ids bound for one demand. Nothing gives them back by itself.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Grant {
    /// Ids of the full pool, by ascending positions in the sequences that they were asked for.
    pub pages: Vec<VirtId>,
    /// How many of the last of `pages` carry a page of each window pool.
    pub windows: PerPool<Pages>,
    /// Slots of each state pool.
    pub states: PerPool<Vec<VirtId>>,
}

/// Where one pool stands while a placement is worked out.
#[derive(Clone, Copy, Debug)]
struct Seat {
    /// The span, or where the first page of an end goes; nothing for an empty float.
    span: Option<Span>,
    /// Whether something lies there.
    kind: Standing,
    /// Pages wanted beyond the holes.
    rest: u32,
    /// Pages that the pool may be extended into: `start` to `end`, as far as its own promises allow.
    reach: Span,
    page_bytes: u64,
}

/// Whether a pool takes part in the order of spans.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Standing {
    /// It occupies pages already.
    Seated,
    /// It gets its first pages.
    Coming,
    /// It has none and gets none.
    Absent,
}

impl Placement {
    /// The pages found in one pool.
    #[must_use]
    pub fn pages(&self, pool: PoolId) -> &[PageId] {
        &self.pages[pool]
    }
}

impl Arena {
    /// Where `demand` goes right now without any move: holes first, then the frontiers.
    ///
    /// With no prepare under way this is `Some` exactly when `geometry(Now).fits(demand)` and the demand is valid:
    /// floats choose their sides so that all pools stay jointly feasible. Where there is a choice, a float grows into
    /// the larger gap, and an empty one starts in the middle of its gap, so that fewer moves are needed later. While a
    /// prepare is under way, only pages count that keep the layout promised to it within reach.
    ///
    /// O(pools² + pages of the demand × log64 n).
    #[must_use]
    pub fn place(&self, demand: &Demand) -> Option<Placement> {
        demand.check(&self.chain).ok()?;
        for pool in self.chain.pool_ids() {
            let live = self.pools[pool.index()].live.count();
            let wanted =
                live.checked_add(self.promised_ids(pool).0)?.checked_add(demand.0[pool].0)?;
            if wanted > self.chain.pages_max(pool).0 {
                return None;
            }
        }
        let mut pages = PerPool::default();
        let mut seats = Vec::new();
        for pool in self.chain.pool_ids() {
            let holes = self.take_holes(pool, demand.0[pool].0);
            seats.push(self.seat(pool, demand.0[pool].0 - holes.len() as u32));
            pages[pool] = holes;
        }
        let latest = self.latest_starts(&seats)?;
        let mut floor = 0;
        for (pool, seat) in self.chain.pool_ids().zip(&seats) {
            let ceiling = latest[pool.index() + 1];
            let Some(spans) = self.extend(pool, seat, floor, ceiling)? else { continue };
            let [below, above] = spans;
            pages[pool].extend((below.start..below.end).chain(above.start..above.end).map(PageId));
            let end = above.end;
            floor = u64::from(end) * seat.page_bytes;
        }
        Some(Placement { epoch: self.epoch, pages })
    }

    /// Binds the pages of a placement.
    ///
    /// # Panics
    /// If the arena has changed since the placement was made.
    pub fn bind(&mut self, placement: Placement) -> Grant {
        assert_eq!(placement.epoch, self.epoch, "the placement is stale");
        let grant = self.bind_pages(&placement.pages);
        self.touch();
        self.debug_check();
        grant
    }

    /// Binds free pages: fresh ids for the full and state pools, the last of the full pool's for the window pools.
    pub(super) fn bind_pages(&mut self, pages: &PerPool<Vec<PageId>>) -> Grant {
        let mut grant = Grant::default();
        for pool in self.chain.pool_ids() {
            let places = &pages[pool];
            match self.chain.pool(pool).kind {
                PoolKind::Full => grant.pages = self.bind_fresh(pool, places),
                PoolKind::State => grant.states[pool] = self.bind_fresh(pool, places),
                PoolKind::Window { .. } => grant.windows[pool] = Pages(places.len() as u32),
            }
        }
        for &window in self.chain.windows() {
            let Some(full) = self.chain.full() else { continue };
            let places = &pages[window];
            let carriers = &grant.pages[grant.pages.len() - places.len()..];
            for (&virt, &page) in carriers.iter().zip(places) {
                let tag = ContentTag::of(window, virt, self.generations[full][virt.index()]);
                self.pools[window.index()].bind(virt.0, page.0, tag);
            }
        }
        grant
    }

    /// The lowest free ids of `pool`, bound to `places`.
    fn bind_fresh(&mut self, pool: PoolId, places: &[PageId]) -> Vec<VirtId> {
        let mut bound = Vec::with_capacity(places.len());
        for page in places {
            let free = self.free_ids[pool].as_mut();
            let id = free.and_then(|ids| ids.first().inspect(|&id| _ = ids.remove(id)));
            let virt = VirtId(id.expect("I5: a placement leaves an id for every page"));
            let generation = &mut self.generations[pool][virt.index()];
            *generation = generation.wrapping_add(1);
            let tag = ContentTag::of(pool, virt, *generation);
            self.pools[pool.index()].bind(virt.0, page.0, tag);
            bound.push(virt);
        }
        bound
    }

    /// Up to `wanted` holes that may be handed out: the highest of the down end, the lowest of the others.
    fn take_holes(&self, pool: PoolId, wanted: u32) -> Vec<PageId> {
        let tables = &self.pools[pool.index()];
        let Some(span) = tables.span() else { return Vec::new() };
        let reach = self.reach(pool);
        let (from, to) = (span.start.max(reach.start), span.end.min(reach.end));
        if tables.grow != Grow::Down {
            return tables.free.range(from, to).take(wanted as usize).map(PageId).collect();
        }
        let mut holes = Vec::new();
        let mut at = to;
        while holes.len() < wanted as usize {
            let below = at.checked_sub(1).and_then(|at| tables.free.prev_at_or_before(at));
            let Some(hole) = below.filter(|&hole| hole >= from) else { break };
            holes.push(PageId(hole));
            at = hole;
        }
        holes
    }

    /// Pages of a pool that keep a prepare's layout within reach; all usable ones when none is under way.
    fn reach(&self, pool: PoolId) -> Span {
        let tables = &self.pools[pool.index()];
        let (low, high) = self.limits(pool);
        let start = low.div_ceil(tables.page_bytes).max(u64::from(tables.first));
        let end = (high / tables.page_bytes).min(u64::from(tables.grid));
        // Both are at most the grid's pages or about the arena's end, which 32 bits can name.
        Span { start: start.min(end) as u32, end: end as u32 }
    }

    fn seat(&self, pool: PoolId, rest: u32) -> Seat {
        let tables = &self.pools[pool.index()];
        let span = tables.span().or(match tables.grow {
            Grow::Up => Some(Span { start: tables.first, end: tables.first }),
            Grow::Float => None,
            Grow::Down => Some(Span { start: tables.grid, end: tables.grid }),
        });
        let kind = match (tables.span(), rest) {
            (Some(_), _) => Standing::Seated,
            (None, 0) => Standing::Absent,
            (None, _) => Standing::Coming,
        };
        Seat {
            span,
            kind,
            rest,
            reach: self.extension(tables, pool, span),
            page_bytes: tables.page_bytes,
        }
    }

    /// How far a pool may be extended without crossing a page promised to the prepare, or leaving its reach.
    fn extension(&self, tables: &Pool, pool: PoolId, span: Option<Span>) -> Span {
        let reach = self.reach(pool);
        let promised: &PageSet = &tables.promised;
        let Some(span) = span else {
            let end =
                promised.next_at_or_after(reach.start).map_or(reach.end, |p| p.min(reach.end));
            return Span { start: reach.start, end };
        };
        let below = span.start.checked_sub(1).and_then(|at| promised.prev_at_or_before(at));
        let above = promised.next_at_or_after(span.end);
        // A span that lies beside its reach cannot be extended towards it across what lies between.
        let start = if span.start > reach.end { span.start } else { reach.start };
        let end = if span.end < reach.start { span.end } else { reach.end };
        Span {
            start: below.map_or(start, |page| start.max(page + 1)).min(span.start),
            end: above.map_or(end, |page| end.min(page)).max(span.end),
        }
    }

    /// For every pool the highest byte at which it and all above it can start, packed from the top; one more at the
    /// end: the top. Nothing if they cannot be packed.
    fn latest_starts(&self, seats: &[Seat]) -> Option<Vec<u64>> {
        let mut latest = vec![self.chain.total().0; seats.len() + 1];
        for (index, seat) in seats.iter().enumerate().rev() {
            let next = latest[index + 1];
            latest[index] = match seat.span {
                _ if seat.kind == Standing::Absent => next,
                Some(span) => {
                    let up = seat.rest.min(seat.room_above(span, next)?);
                    let start = span.start.checked_sub(seat.rest - up)?;
                    (start >= seat.reach.start).then_some(u64::from(start) * seat.page_bytes)?
                }
                None => {
                    let end = (next / seat.page_bytes).min(u64::from(seat.reach.end));
                    let start = end.checked_sub(u64::from(seat.rest))?;
                    (start >= u64::from(seat.reach.start)).then_some(start * seat.page_bytes)?
                }
            };
        }
        Some(latest)
    }

    /// The pages that extend one pool, below and above, between `floor` and `ceiling`; nothing inside for a pool that
    /// is absent, nothing at all if they do not fit.
    #[expect(
        clippy::option_option,
        reason = "the outer one refuses, the inner one is an absent pool"
    )]
    fn extend(
        &self,
        pool: PoolId,
        seat: &Seat,
        floor: u64,
        ceiling: u64,
    ) -> Option<Option<[Span; 2]>> {
        if seat.kind == Standing::Absent {
            return Some(None);
        }
        let (room_start, room_end) = self.room(pool);
        let Some(span) = seat.span else {
            let start = seat.middle(floor, ceiling, room_end)?;
            let above = Span { start, end: start + seat.rest };
            return Some(Some([Span { start, end: start }, above]));
        };
        let above = seat.room_above(span, ceiling)?;
        let below = seat.room_below(span, floor)?;
        let (least, most) = (seat.rest.saturating_sub(above), seat.rest.min(below));
        let (start, end) =
            (u64::from(span.start) * seat.page_bytes, u64::from(span.end) * seat.page_bytes);
        let gap_below = start.saturating_sub(floor.max(room_start));
        let gap_above = room_end.saturating_sub(end);
        let down = if gap_below > gap_above { most } else { least };
        (least <= most).then_some(Some([
            Span { start: span.start - down, end: span.start },
            Span { start: span.end, end: span.end + (seat.rest - down) },
        ]))
    }
}

impl Seat {
    /// Pages free above the span, when what lies above starts at `ceiling`; nothing if the span itself is in the way.
    fn room_above(&self, span: Span, ceiling: u64) -> Option<u32> {
        let end = u64::from(span.end);
        let top = (ceiling / self.page_bytes).min(u64::from(self.reach.end));
        (end * self.page_bytes <= ceiling).then(|| top.saturating_sub(end) as u32)
    }

    /// Pages free below the span, when what lies below ends at `floor`; nothing if the span itself is in the way.
    fn room_below(&self, span: Span, floor: u64) -> Option<u32> {
        let start = u64::from(span.start);
        let bottom = floor.div_ceil(self.page_bytes).max(u64::from(self.reach.start));
        (floor <= start * self.page_bytes).then(|| start.saturating_sub(bottom) as u32)
    }

    /// Where an empty float starts: as near to the middle of its gap as its neighbours allow.
    fn middle(&self, floor: u64, ceiling: u64, room_end: u64) -> Option<u32> {
        let rest = u64::from(self.rest);
        let least = floor.div_ceil(self.page_bytes).max(u64::from(self.reach.start));
        let most = (ceiling / self.page_bytes).min(u64::from(self.reach.end)).checked_sub(rest)?;
        let middle = (floor / 2 + room_end / 2) / self.page_bytes;
        (least <= most).then(|| middle.saturating_sub(rest / 2).clamp(least, most) as u32)
    }
}
