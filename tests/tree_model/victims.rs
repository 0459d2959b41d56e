//! The victims that a list of pages predicts: after every page taken, all that decides about the next one is counted
//! afresh from the definitions of design section 5.

use crate::model::{Key, Model, Used};
use kvtide_core::demand::Demand;
use kvtide_core::fit::{Bound, Geometry};
use kvtide_core::tree::{Candidate, EvictionPolicy, Prefer, Rank, Record};
use kvtide_core::unit::{Bytes, PoolId, Tokens, VirtId};

/// What can go alone, or a leaf's last page.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Lane {
    Tail,
    Window(usize),
    State(usize),
}

/// Class (1 to 3), rank, place on the path.
type Place = (u8, Rank, u32);

/// One page as the prediction sees it.
#[derive(Clone)]
struct Flat {
    parent: Option<usize>,
    position: u32,
    virt: VirtId,
    states: Vec<Option<VirtId>>,
    windows: Vec<bool>,
    locked: bool,
    windows_locked: Vec<bool>,
    state_locked: bool,
    cut: bool,
    used: Used,
    there: bool,
}

/// A victim: its page, and what of it goes.
type Taken = (usize, Lane);

pub(crate) struct Prediction<'a> {
    model: &'a Model,
    policy: &'a dyn EvictionPolicy,
    prefer: Prefer,
    demand: Demand,
    geometry: Geometry,
    windows: Vec<u32>,
    pages: Vec<Flat>,
    taken: Vec<Taken>,
}

/// Victims in order, or `None` where nothing evictable is enough.
pub(crate) fn predict(
    model: &Model,
    policy: &dyn EvictionPolicy,
    prefer: Prefer,
    geometry: Geometry,
    demand: Demand,
) -> Option<Vec<(PoolId, VirtId)>> {
    let Err(bound) = geometry.fits(&demand) else { return Some(Vec::new()) };
    let start = || Prediction::new(model, policy, prefer, geometry, demand);
    let (mut victims, lost) = start().walk(bound, false)?;
    if lost > 1
        && let Some((plain, cost)) = start().walk(bound, true)
        && cost < lost
    {
        victims = plain;
    }
    Some(victims)
}

impl<'a> Prediction<'a> {
    fn new(
        model: &'a Model,
        policy: &'a dyn EvictionPolicy,
        prefer: Prefer,
        geometry: Geometry,
        demand: Demand,
    ) -> Self {
        let keys: Vec<&Key> = model.pages.keys().collect();
        let windows = model.window_pages();
        let flat = |(key, page): (&Key, &crate::model::Page)| {
            let position = (key.1.len() / model.page_tokens()) as u32 - 1;
            let above = key.1.len() - model.page_tokens();
            Flat {
                parent: keys.iter().position(|k| k.0 == key.0 && k.1 == key.1[..above]),
                position,
                virt: page.virt,
                states: page.states.clone(),
                windows: page.windows.clone(),
                locked: model.is_locked(key, None),
                windows_locked: (0..windows.len())
                    .map(|window| model.is_locked(key, Some(window)))
                    .collect(),
                state_locked: model.is_state_locked(key),
                cut: page.cut,
                used: page.used,
                there: true,
            }
        };
        let pages = model.pages.iter().map(flat).collect();
        Prediction { model, policy, prefer, demand, geometry, windows, pages, taken: Vec::new() }
    }

    fn there(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.pages.len()).filter(|&page| self.pages[page].there)
    }

    fn children(&self, page: usize) -> Vec<usize> {
        self.there().filter(|&child| self.pages[child].parent == Some(page)).collect()
    }

    fn is_serviceable(&self, page: usize) -> bool {
        let windows = self.windows.iter().enumerate().all(|(window, &pages)| {
            let back = std::iter::successors(Some(page), |&at| self.pages[at].parent);
            back.take(pages as usize).all(|at| self.pages[at].windows[window])
        });
        windows && self.pages[page].states.iter().all(Option::is_some)
    }

    /// Pages with a serviceable boundary at or after them.
    fn matchable(&self) -> Vec<bool> {
        let mut matchable = vec![false; self.pages.len()];
        for page in self.there().filter(|&page| self.is_serviceable(page)) {
            for at in std::iter::successors(Some(page), |&at| self.pages[at].parent) {
                matchable[at] = true;
            }
        }
        matchable
    }

    fn rank(&self, page: usize, record: Record) -> Rank {
        let flat = &self.pages[page];
        self.policy.rank(&Candidate {
            record,
            priority: flat.used.priority,
            conversation: flat.used.conversation,
            position: Tokens(flat.position * self.model.page_tokens() as u32),
        })
    }

    fn place(&self, class: u8, page: usize, record: Record) -> Place {
        let position = self.pages[page].position;
        let order = if class == 3 { u32::MAX - position } else { position };
        (class, self.rank(page, record), order)
    }

    /// Everything that could go next, by edge: pages from its first to its last.
    fn candidates(&self) -> Vec<(Place, Lane, usize)> {
        let matchable = self.matchable();
        let children: Vec<Vec<usize>> =
            (0..self.pages.len()).map(|page| self.children(page)).collect();
        let is_end = |page: usize| self.pages[page].cut || children[page].len() != 1;
        let served = |page: usize| children[page].iter().filter(|&&c| matchable[c]).count();
        let ends: Vec<usize> = self.there().filter(|&page| is_end(page)).collect();
        let edge = |end: usize| {
            let above = |&page: &usize| self.pages[page].parent.filter(|&above| !is_end(above));
            let mut edge: Vec<usize> = std::iter::successors(Some(end), above).collect();
            edge.reverse();
            edge
        };
        // Of every edge's end: boundaries there that are kept softly, and hard.
        let kept = |end: usize| {
            let last = edge(end).into_iter().rev().find(|&page| self.is_serviceable(page));
            let Some(boundary) = last.map(|page| self.pages[page].position + 1) else {
                return (None, None);
            };
            if served(end) == 0 {
                let short = u32::from(self.model.chain.states().is_empty());
                (Some(boundary - short), Some(boundary))
            } else if children[end].len() >= 2 && last == Some(end) {
                (Some(boundary), None)
            } else {
                (None, None)
            }
        };
        let kept: Vec<_> = ends.iter().map(|&end| (end, kept(end))).collect();
        let is_below = |page: usize, above: usize| {
            std::iter::successors(Some(page), |&at| self.pages[at].parent).any(|at| at == above)
        };
        let mut found = Vec::new();
        for &end in &ends {
            let flat = &self.pages[end];
            let (leaf, served) = (children[end].is_empty(), served(end));
            if leaf && !flat.locked {
                let class = if self.is_serviceable(end) { 3 } else { 1 };
                found.push((self.place(class, end, flat.used.full), Lane::Tail, end));
            }
            let alone = flat.locked || !leaf && served == 0;
            for (window, &pages) in self.windows.iter().enumerate() {
                let below = || kept.iter().filter(|(other, _)| is_below(*other, end));
                let start = |boundary: u32| boundary.saturating_sub(pages);
                let soft = below().filter_map(|(_, kept)| kept.0.map(start)).min();
                let hard = below().filter_map(|(_, kept)| kept.1.map(start)).min();
                let edge = edge(end);
                let there = |&&page: &&usize| self.pages[page].windows[window];
                let Some(&first) = edge.iter().find(there) else { continue };
                let free = |page: usize| !self.pages[page].windows_locked[window];
                let before =
                    |need: Option<u32>| need.is_none_or(|n| self.pages[first].position < n);
                let last = edge.iter().rposition(|&page| self.is_serviceable(page));
                let past = edge[last.map_or(0, |last| last + 1)..].iter().find(there);
                let past = past.copied().filter(|&past| served == 0 && free(past));
                let (class, page) = if before(soft) && free(first) {
                    (1, first)
                } else if let Some(past) = past {
                    (1, past)
                } else if !free(first) {
                    continue;
                } else if before(hard) {
                    (2, first)
                } else if alone {
                    (3, first)
                } else {
                    continue;
                };
                let record = self.pages[page].used.window;
                found.push((self.place(class, page, record), Lane::Window(window), page));
            }
            let class = match () {
                () if flat.state_locked => continue,
                () if !self.is_serviceable(end) => 1,
                () if served > 0 => 1 + u8::from(children[end].len() >= 2),
                () if alone => 3,
                () => continue,
            };
            for state in (0..flat.states.len()).filter(|&state| flat.states[state].is_some()) {
                let place = self.place(class, end, flat.used.state);
                found.push((place, Lane::State(state), end));
            }
        }
        found
    }

    fn pool(&self, lane: Lane) -> PoolId {
        match lane {
            Lane::Tail => self.model.chain.full().unwrap(),
            Lane::Window(window) => self.model.chain.windows()[window],
            Lane::State(state) => self.model.chain.states()[state],
        }
    }

    fn set(&mut self, (page, lane): Taken, there: bool) {
        let pool = self.pool(lane);
        let state = match lane {
            Lane::State(state) => self.original_state(page, state),
            _ => None,
        };
        let flat = &mut self.pages[page];
        match lane {
            Lane::Tail => flat.there = there,
            Lane::Window(window) => flat.windows[window] = there,
            Lane::State(index) => flat.states[index] = if there { state } else { None },
        }
        let live = &mut self.geometry.pool_mut(pool).live.0;
        *live = if there { *live + 1 } else { *live - 1 };
    }

    fn original_state(&self, page: usize, state: usize) -> Option<VirtId> {
        self.model.pages.values().nth(page).and_then(|page| page.states[state])
    }

    fn take(&mut self, page: usize, lane: Lane) {
        self.set((page, lane), false);
        self.taken.push((page, lane));
    }

    fn fits(&self) -> Result<(), Bound> {
        self.geometry.fits(&self.demand)
    }

    /// What hangs on a leaf's last page and goes before it.
    fn hanging(&self, page: usize) -> Option<Lane> {
        let flat = &self.pages[page];
        let window = flat.windows.iter().position(|&there| there).map(Lane::Window);
        window.or(flat.states.iter().position(Option::is_some).map(Lane::State))
    }

    fn take_next(&mut self, bound: &Bound) -> bool {
        let side = |lane: Lane| match (self.prefer, lane) {
            (Prefer::Full, Lane::Tail) | (Prefer::Window, Lane::Window(_)) => 0,
            (Prefer::Full, Lane::Window(_)) | (Prefer::Window, Lane::State(_)) => 1,
            (Prefer::Full, Lane::State(_)) | (Prefer::Window, Lane::Tail) => 2,
        };
        let helps = |lane: Lane| match bound {
            Bound::Ids { pool, .. } => lane == Lane::Tail || self.pool(lane) == *pool,
            Bound::Bytes { .. } => true,
        };
        let found = self.candidates().into_iter().filter(|(_, lane, _)| helps(*lane));
        let next = found.min_by_key(|((class, rank, order), lane, _)| {
            (*class, *rank, side(*lane), *order, *lane)
        });
        let Some((_, lane, page)) = next else { return false };
        if lane != Lane::Tail {
            self.take(page, lane);
        } else if self.prefer == Prefer::Window {
            self.take(page, self.hanging(page).unwrap_or(Lane::Tail));
        } else {
            self.take_whole(page);
        }
        true
    }

    fn take_whole(&mut self, page: usize) {
        while let Some(lane) = self.hanging(page) {
            self.take(page, lane);
        }
        self.take(page, Lane::Tail);
    }

    fn take_leaf(&mut self) -> bool {
        let tails = self.candidates().into_iter().filter(|(_, lane, _)| *lane == Lane::Tail);
        let tails: Vec<_> = tails.collect();
        let head = |class: u8| {
            let of_class = tails.iter().filter(|((c, _, _), _, _)| *c == class);
            of_class.min_by_key(|((_, rank, order), _, _)| (*rank, *order))
        };
        let heads = [head(1), head(3)].into_iter().flatten();
        let deepest = |page: usize| u32::MAX - self.pages[page].position;
        let next = heads.min_by_key(|((_, rank, _), _, page)| (*rank, deepest(*page))).copied();
        let Some(((_, rank, _), _, leaf)) = next else {
            return self.take_next(&Bound::Bytes { pool: PoolId(0), missing: Bytes(0) });
        };
        let mut next = Some(leaf);
        while let Some(page) =
            next.filter(|&page| self.rank(page, self.pages[page].used.full) == rank)
        {
            self.take_whole(page);
            if self.fits().is_ok() {
                break;
            }
            // On to the page before, unless that ends another edge.
            next = self.pages[page].parent.filter(|&above| {
                !self.pages[above].cut && self.children(above).is_empty() && !self.had_more(above)
            });
        }
        true
    }

    /// Whether more than one page followed a page before anything was taken.
    fn had_more(&self, page: usize) -> bool {
        self.pages.iter().filter(|child| child.parent == Some(page)).count() > 1
    }

    fn walk(mut self, mut bound: Bound, leaves: bool) -> Option<(Vec<(PoolId, VirtId)>, usize)> {
        let count = |it: &Self| it.matchable().into_iter().filter(|&m| m).count();
        let before = count(&self);
        loop {
            let taken = if leaves { self.take_leaf() } else { self.take_next(&bound) };
            if !taken {
                return None;
            }
            match self.fits() {
                Ok(()) => break,
                Err(still) => bound = still,
            }
        }
        let mut kept = Vec::new();
        for (page, lane) in std::mem::take(&mut self.taken).into_iter().rev() {
            let on = if lane == Lane::Tail { self.pages[page].parent } else { Some(page) };
            if on.is_none_or(|on| self.pages[on].there) {
                self.set((page, lane), true);
                if self.fits().is_ok() {
                    continue;
                }
                self.set((page, lane), false);
            }
            kept.push((page, lane));
        }
        kept.reverse();
        let id = |&(page, lane): &Taken| {
            let virt = match lane {
                Lane::State(state) => self.original_state(page, state).unwrap(),
                _ => self.pages[page].virt,
            };
            (self.pool(lane), virt)
        };
        Some((kept.iter().map(id).collect(), before - count(&self)))
    }
}
