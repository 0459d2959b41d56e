//! Walking victims until a demand fits, and trimming what was not needed after all.

use super::freed::Freed;
use super::node::{NodeId, VictimClass, Vitals};
use super::overlay::Overlay;
use super::plan::{Budget, Prefer, Victim};
use super::shape::Lane;
use super::upkeep::{
    Entry, Store, drop_state, drop_tail, drop_window, settle_dropped, tail_standing,
};
use super::{CLASSES, NodeMap, Tree};
use crate::fit::Bound;
use crate::unit::{Pages, VirtId};

/// In which order victims are taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Order {
    /// Class by class, page by page.
    Classes,
    /// As that, from one lane only.
    Only(Lane),
    /// Whole leaves in the policy's order, then what is not locked on locked paths: the plain walk.
    WholeLeaves,
}

/// A walk under way.
pub(super) struct Walk<'a> {
    overlay: Overlay<'a>,
    freed: Freed<'a>,
    victims: Vec<Victim>,
    prefer: Prefer,
    budget: Option<Budget>,
}

/// Where the next victim is.
#[derive(Clone, Copy)]
struct Pick {
    class: VictimClass,
    lane: Lane,
    entry: Entry,
}

/// A set of victims that makes the demand fit, none of which could be left out.
pub(super) struct Trimmed {
    pub victims: Vec<Victim>,
    /// Matchable pages lost.
    pub lost: u64,
    /// Feasibility questions asked.
    pub asked: u64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        tree: &'a Tree,
        freed: Freed<'a>,
        prefer: Prefer,
        budget: Option<Budget>,
    ) -> Self {
        Walk { overlay: Overlay::new(tree), freed, victims: Vec::new(), prefer, budget }
    }

    /// Walks in `order` until the demand, refused by `bound` so far, fits; then trims. When nothing is left to take
    /// before that: the bound that still refuses, and the questions asked.
    pub(super) fn run(mut self, order: Order, mut bound: Bound) -> Result<Trimmed, (Bound, u64)> {
        loop {
            let advanced = match order {
                Order::Classes => self.take_next(None, &bound),
                Order::Only(lane) => self.take_next(Some(lane), &bound),
                Order::WholeLeaves => self.take_leaf(),
            };
            if !advanced {
                return Err((bound, self.freed.asked()));
            }
            match self.freed.fits() {
                Ok(()) => return Ok(self.trim()),
                Err(still) => bound = still,
            }
        }
    }

    /// Takes the next page of the lowest class that has any; says whether there was one.
    fn take_next(&mut self, only: Option<Lane>, bound: &Bound) -> bool {
        while let Some(pick) = self.pick(only, bound) {
            let taken = match pick.lane {
                Lane::Tail => self.take_tail(pick),
                lane => self.take_alone(pick, lane),
            };
            if taken {
                return true;
            }
            // Beyond the quota: it stays.
            self.overlay.pass_over(pick.class, pick.lane, pick.entry);
        }
        false
    }

    /// The best of the lowest class, among the lanes that can help against `bound`.
    fn pick(&mut self, only: Option<Lane>, bound: &Bound) -> Option<Pick> {
        let lanes: Vec<Lane> = self
            .overlay
            .shape()
            .all_lanes()
            .filter(|&lane| only.is_none_or(|only| lane == only))
            .filter(|&lane| match bound {
                // Ids come back only with pages of that pool; tails may lie before those.
                Bound::Ids { pool, .. } => {
                    lane == Lane::Tail || self.overlay.shape().pool(lane) == *pool
                }
                Bound::Bytes { .. } => true,
            })
            .collect();
        for class in CLASSES {
            let mut best: Option<Pick> = None;
            for &lane in &lanes {
                let Some(entry) = self.overlay.first(class, lane) else { continue };
                let key = |pick: &Pick| {
                    (pick.entry.rank, self.prefer.side(pick.lane), pick.entry.order, pick.lane)
                };
                let pick = Pick { class, lane, entry };
                if best.as_ref().is_none_or(|best| key(&pick) < key(best)) {
                    best = Some(pick);
                }
            }
            if best.is_some() {
                return best;
            }
        }
        None
    }

    /// Takes a leaf's last page with all that hangs on it, or as much of that as preference and quota say; says
    /// whether anything was taken.
    fn take_tail(&mut self, pick: Pick) -> bool {
        let node = pick.entry.node;
        let whole = self.prefer == Prefer::Full && self.budget.is_none();
        let mut taken = false;
        loop {
            let (lane, bare) = match self.hanging(node) {
                Some(lane) => (lane, false),
                None => (Lane::Tail, true),
            };
            if !self.take(pick.class, node, lane, self.overlay.vitals(node).end() - 1) {
                break;
            }
            taken = true;
            if bare || !whole {
                break;
            }
        }
        if taken {
            settle_dropped(&mut self.overlay, node);
        }
        taken
    }

    /// What hangs on a leaf's last page and would go next: affordable window pages first, then states.
    fn hanging(&self, node: NodeId) -> Option<Lane> {
        let vitals = self.overlay.vitals(node);
        let last = vitals.len - 1;
        let windows = (0..).zip(&vitals.windows).filter(|(_, kept)| kept.present.contains(last));
        let states = vitals.states.iter().map(|state| Lane::State(state as u8));
        let mut hanging = windows.map(|(window, _)| Lane::Window(window)).chain(states).peekable();
        let first = hanging.peek().copied();
        hanging.find(|&lane| self.affordable(lane)).or(first)
    }

    fn take_alone(&mut self, pick: Pick, lane: Lane) -> bool {
        let position = match pick.class {
            VictimClass::Policy => u32::MAX - pick.entry.order,
            VictimClass::Unneeded | VictimClass::KeptBoundary => pick.entry.order,
        };
        let taken = self.take(pick.class, pick.entry.node, lane, position);
        if taken {
            settle_dropped(&mut self.overlay, pick.entry.node);
        }
        taken
    }

    /// Takes the policy's next leaf, all of it that has its rank, or as much of the last one as makes the demand fit: the
    /// rest would be taken back. Where there is none, the next page that is not locked on a path that is. Says whether there was one.
    fn take_leaf(&mut self) -> bool {
        let mut tails: Vec<Pick> = Vec::new();
        for class in [VictimClass::Unneeded, VictimClass::Policy] {
            let entry = self.overlay.first(class, Lane::Tail);
            tails.extend(entry.map(|entry| Pick { class, lane: Lane::Tail, entry }));
        }
        // Of one rank, the deeper leaf.
        let end = |pick: &Pick| self.overlay.vitals(pick.entry.node).end();
        let next = tails.into_iter().min_by_key(|pick| (pick.entry.rank, u32::MAX - end(pick)));
        let Some(pick) = next else {
            let any =
                Bound::Bytes { pool: self.overlay.shape().full, missing: crate::unit::Bytes(0) };
            return self.take_next(None, &any);
        };
        let (tree, node) = (self.overlay.tree(), pick.entry.node);
        let ranked = |vitals: &Vitals| tail_standing(&tree.shape, vitals) == pick.entry.rank;
        while Some(self.overlay.vitals(node)).is_some_and(|leaf| leaf.len > 0 && ranked(leaf)) {
            let lane = self.hanging(node).unwrap_or(Lane::Tail);
            let position = self.overlay.vitals(node).end() - 1;
            self.take(pick.class, node, lane, position);
            if lane == Lane::Tail && self.freed.fits().is_ok() {
                break;
            }
        }
        settle_dropped(&mut self.overlay, node);
        true
    }

    fn affordable(&self, lane: Lane) -> bool {
        let pool = self.overlay.shape().pool(lane);
        self.budget.as_ref().is_none_or(|budget| budget.allows(pool))
    }

    /// Takes one page, unless that is beyond the quota. Leaves the derived numbers to the caller.
    fn take(&mut self, class: VictimClass, node: NodeId, lane: Lane, position: u32) -> bool {
        if !self.affordable(lane) {
            return false;
        }
        let pool = self.overlay.shape().pool(lane);
        let virt = virt_of(self.overlay.tree(), node, lane, position);
        drop_page(&mut self.overlay, node, lane, position);
        self.freed.free(pool, virt);
        if let Some(budget) = &mut self.budget {
            budget.spend(pool);
        }
        self.victims.push(Victim { pool, virt, class, position: Pages(position), node, lane });
        true
    }

    /// Takes back every victim that the demand can do without, the last taken first.
    ///
    /// One pass is enough: whatever a victim hangs on was taken after it or with it, and so has been tried before it;
    /// and what was needed once is needed by any smaller set.
    fn trim(mut self) -> Trimmed {
        let tree = self.overlay.tree();
        let mut ends: NodeMap<u32> = NodeMap::default();
        for victim in &self.victims {
            if victim.lane == Lane::Tail {
                ends.insert(victim.node, victim.position.0);
            }
        }
        let mut kept = Vec::with_capacity(self.victims.len());
        let walked = self.victims.len();
        for victim in self.victims.into_iter().rev() {
            let end = |node: NodeId| ends.get(&node).copied().unwrap_or(tree.end(node));
            let whole = |node: NodeId| end(node) == tree.end(node);
            let vitals = tree.vitals(victim.node);
            let position = victim.position.0;
            let hangs_on = match victim.lane {
                Lane::Tail if position > vitals.start => end(victim.node) == position,
                Lane::Tail => whole(vitals.parent),
                Lane::Window(_) => position < end(victim.node),
                Lane::State(_) => whole(victim.node),
            };
            if hangs_on {
                self.freed.restore(victim.pool, victim.virt);
                if self.freed.fits().is_ok() {
                    if victim.lane == Lane::Tail {
                        ends.insert(victim.node, position + 1);
                    }
                    continue;
                }
                self.freed.free(victim.pool, victim.virt);
            }
            kept.push(victim);
        }
        kept.reverse();
        let lost = if kept.len() == walked { self.overlay.lost() } else { cost(tree, &kept) };
        Trimmed { victims: kept, lost, asked: self.freed.asked() }
    }
}

/// Matchable pages that a tree loses with `victims`, exactly.
fn cost(tree: &Tree, victims: &[Victim]) -> u64 {
    let mut overlay = Overlay::new(tree);
    drop_all(&mut overlay, victims);
    overlay.lost()
}

/// Evicts `victims`, which hang on nothing but later ones, and brings all numbers up to date.
pub(super) fn drop_all(store: &mut impl Store, victims: &[Victim]) {
    let mut nodes: Vec<NodeId> = Vec::new();
    for victim in victims {
        drop_page(store, victim.node, victim.lane, victim.position.0);
        nodes.push(victim.node);
    }
    nodes.sort_unstable();
    nodes.dedup();
    nodes.into_iter().for_each(|node| settle_dropped(store, node));
}

fn drop_page(store: &mut impl Store, node: NodeId, lane: Lane, position: u32) {
    match lane {
        Lane::Tail => drop_tail(store, node),
        Lane::Window(window) => drop_window(store, node, usize::from(window), position),
        Lane::State(state) => drop_state(store, node, usize::from(state)),
    }
}

/// The id of a page that a node holds.
pub(super) fn virt_of(tree: &Tree, node: NodeId, lane: Lane, position: u32) -> VirtId {
    let node = tree.slab.get(node);
    match lane {
        Lane::Tail | Lane::Window(_) => node.virts[(position - node.vitals.start) as usize],
        Lane::State(state) => node.states[usize::from(state)],
    }
}
