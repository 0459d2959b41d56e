//! Taking victims out of the tree, for good or until they are put back.

use super::CLASSES;
use super::node::{NodeId, NodeRef, VictimClass, Vitals};
use super::plan::{ReclaimPlan, Victim};
use super::policy::{Stamp, Used};
use super::shape::Lane;
use super::upkeep::settle;
use super::walk::{drop_all, virt_of};
use super::{NodeMap, Tree};
use crate::unit::{Pages, PerPool, PoolId, Token, Tokens, VirtId};
use std::collections::BTreeSet;

/// Victims that no match can use any more, and all that is needed to put them back. Ended by [`Tree::evict`] or by
/// [`Tree::attach`]; not `Clone`.
#[derive(Debug)]
#[must_use = "detached pages are in limbo until they are evicted or attached"]
pub struct Detached {
    parts: Vec<Part>,
    victims: PerPool<Vec<VirtId>>,
    evicted: PerPool<Pages>,
    matchable_lost: Tokens,
}

/// What was taken from one node.
#[derive(Debug)]
struct Part {
    node: NodeRef,
    parent: NodeRef,
    start: u32,
    /// Where the node ended before.
    end: u32,
    used: Used,
    /// Sessions whose path ended there.
    sessions: Vec<Stamp>,
    /// The last pages, in order; they ended at `end`.
    tokens: Vec<Token>,
    virts: Vec<VirtId>,
    /// Ordinal, position, id.
    windows: Vec<(u8, u32, VirtId)>,
    states: Vec<(u8, VirtId)>,
}

/// What could not go back.
type Homeless = Vec<(PoolId, VirtId)>;

impl Detached {
    /// Ids of all that was taken, by pool.
    #[must_use]
    pub fn victims(&self) -> &PerPool<Vec<VirtId>> {
        &self.victims
    }

    /// How many were taken, by pool.
    #[must_use]
    pub fn evicted(&self) -> PerPool<Pages> {
        self.evicted
    }

    /// Tokens that no prompt can be served while this is detached.
    #[must_use]
    pub fn matchable_lost(&self) -> Tokens {
        self.matchable_lost
    }
}

impl Part {
    /// First position of the last pages taken.
    fn cut(&self) -> u32 {
        self.end - self.virts.len() as u32
    }

    fn died(&self) -> bool {
        self.cut() == self.start
    }
}

impl Tree {
    /// Takes a plan's victims out: no match can use them from now on, nothing is lost yet. O(victims × log n).
    ///
    /// # Errors
    /// The plan itself, if the tree has changed since it was made: then nothing has changed now, and a new plan must
    /// be made.
    pub fn detach(&mut self, plan: ReclaimPlan) -> Result<Detached, ReclaimPlan> {
        if plan.version != self.version {
            return Err(plan);
        }
        self.version += 1;
        self.open_detachments += 1;
        let mut parts = self.parts_of(&plan.victims);
        let mut victims = PerPool::<Vec<VirtId>>::default();
        for victim in &plan.victims {
            victims[victim.pool].push(victim.virt);
        }
        drop_all(self, &plan.victims);
        for part in &mut parts {
            let id = part.node.id;
            if part.virts.is_empty() {
                part.in_flight(&mut self.in_flight);
                continue;
            }
            if part.died() {
                self.unlink(id);
                self.raise_sessions(id);
            }
            let page = self.shape.page_tokens as usize;
            let node = self.slab.get_mut(id);
            let keep = node.vitals.len as usize;
            part.tokens = node.tokens.split_off(keep * page);
            node.virts.truncate(keep);
            part.in_flight(&mut self.in_flight);
        }
        Ok(Detached {
            parts,
            victims,
            evicted: plan.evicted(),
            matchable_lost: plan.matchable_lost(),
        })
    }

    /// The victims are gone for good; gives their ids, by pool, for the caller to free. O(victims).
    pub fn evict(&mut self, detached: Detached) -> PerPool<Vec<VirtId>> {
        for part in &detached.parts {
            self.end_flight(part);
            if part.died() {
                self.slab.remove(&self.shape, part.node.id);
            }
        }
        self.end_detachment();
        detached.victims
    }

    /// Puts victims back where they were, as old as they were; gives those that cannot go back, for the caller to free.
    ///
    /// Those are the `lost` ones, which something has overwritten, with the pages behind them on their paths; and those
    /// whose place something else has taken, or is gone. O(victims × log n).
    pub fn attach(
        &mut self,
        mut detached: Detached,
        lost: &[(PoolId, VirtId)],
    ) -> Vec<(PoolId, VirtId)> {
        self.version += 1;
        let lost: BTreeSet<_> = lost.iter().copied().collect();
        let mut homeless = Homeless::new();
        // Parents before their children.
        detached.parts.sort_by_key(|part| part.start);
        for part in detached.parts {
            self.end_flight(&part);
            self.put_back(part, &lost, &mut homeless);
        }
        self.end_detachment();
        homeless
    }

    /// Evicts everything that is not locked; gives the ids, by pool, for the caller to free. O(pages × log n).
    pub fn flush(&mut self) -> PerPool<Vec<VirtId>> {
        self.version += 1;
        let mut victims = PerPool::<Vec<VirtId>>::default();
        while let Some(victim) = self.any_evictable() {
            victims[victim.pool].push(victim.virt);
            let node = victim.node;
            let goes = victim.lane == Lane::Tail && self.slab.get(node).vitals.len == 1;
            if goes {
                self.unlink(node);
            }
            drop_all(self, &[victim]);
            let page = self.shape.page_tokens as usize;
            let found = self.slab.get_mut(node);
            let keep = found.vitals.len as usize;
            found.virts.truncate(keep);
            found.tokens.truncate(keep * page);
            if goes {
                let parent = found.vitals.parent;
                self.raise_sessions(node);
                self.note_bare_root(parent);
                self.slab.remove(&self.shape, node);
            }
        }
        self.sweep_roots();
        victims
    }

    fn any_evictable(&self) -> Option<Victim> {
        let lanes = || self.shape.all_lanes();
        let mut heads =
            CLASSES.into_iter().flat_map(|class| lanes().map(move |lane| (class, lane)));
        let (class, lane, node) = heads.find_map(|(class, lane)| {
            let entry = self.queue(class, lane).first()?;
            Some((class, lane, (entry.node, entry.order)))
        })?;
        let (node, order) = node;
        let vitals = &self.slab.get(node).vitals;
        let last = vitals.len - 1;
        let mut hanging =
            (0..).zip(&vitals.windows).filter(|(_, kept)| kept.present.contains(last));
        let (lane, position) = match (lane, class) {
            (Lane::Tail, _) => {
                let window = hanging.next().map(|(window, _)| Lane::Window(window));
                let state = vitals.states.iter().next().map(|state| Lane::State(state as u8));
                (window.or(state).unwrap_or(Lane::Tail), vitals.end() - 1)
            }
            (_, VictimClass::Policy) => (lane, u32::MAX - order),
            _ => (lane, order),
        };
        let pool = self.shape.pool(lane);
        let virt = virt_of(self, node, lane, position);
        Some(Victim { pool, virt, class, position: Pages(position), node, lane })
    }

    /// What `victims` take from each node, before they are taken.
    fn parts_of(&self, victims: &[Victim]) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut by_node: NodeMap<usize> = NodeMap::default();
        for victim in victims {
            let at = *by_node.entry(victim.node).or_insert_with(|| {
                let vitals = &self.slab.get(victim.node).vitals;
                parts.push(Part {
                    node: self.slab.reference(victim.node),
                    parent: self.slab.reference(vitals.parent),
                    start: vitals.start,
                    end: vitals.end(),
                    used: vitals.used,
                    sessions: self.sessions.ending_at(victim.node),
                    tokens: Vec::new(),
                    virts: Vec::new(),
                    windows: Vec::new(),
                    states: Vec::new(),
                });
                parts.len() - 1
            });
            let part = &mut parts[at];
            match victim.lane {
                Lane::Tail => part.virts.push(victim.virt),
                Lane::Window(window) => {
                    part.windows.push((window, victim.position.0, victim.virt));
                }
                Lane::State(state) => part.states.push((state, victim.virt)),
            }
        }
        // Taken from the last page on.
        parts.iter_mut().for_each(|part| part.virts.reverse());
        parts
    }

    fn put_back(&mut self, part: Part, lost: &BTreeSet<(PoolId, VirtId)>, out: &mut Homeless) {
        let full = self.shape.full;
        let whole = part.virts.iter().take_while(|&&virt| !lost.contains(&(full, virt))).count();
        out.extend(part.virts[whole..].iter().map(|&virt| (full, virt)));
        let home = if part.virts.is_empty() {
            Some(part.node)
        } else {
            let home = if whole == 0 { None } else { self.put_tail_back(&part, whole) };
            if let Some(home) = home {
                self.lower_sessions(&part.sessions, home);
            }
            if part.died() && home != Some(part.node.id) {
                self.slab.remove(&self.shape, part.node.id);
            }
            if home.is_none() {
                out.extend(part.virts[..whole].iter().map(|&virt| (full, virt)));
            }
            home.map(|home| self.slab.reference(home))
        };
        // Where a window page or state goes if the tail did not come back: the node that was cut.
        let home = home.unwrap_or(part.node);
        let mut settled: Vec<NodeId> = Vec::new();
        for &(window, position, virt) in &part.windows {
            let pool = self.shape.windows[usize::from(window)];
            let place = (!lost.contains(&(pool, virt)))
                .then(|| {
                    self.holder(home, position, virt).or(self.holder(part.node, position, virt))
                })
                .flatten();
            let added = place.is_some_and(|node| {
                let index = position - self.slab.get(node).vitals.start;
                self.add_window(node, usize::from(window), index)
            });
            match place {
                Some(node) if added => settled.push(node),
                _ => out.push((pool, virt)),
            }
        }
        settled.sort_unstable();
        settled.dedup();
        settled.into_iter().for_each(|node| settle(self, node));
        for &(state, virt) in &part.states {
            let pool = self.shape.states[usize::from(state)];
            let back = !lost.contains(&(pool, virt))
                && self.slab.is_alive(home)
                && self.end(home.id) == part.end
                && self.add_state(home.id, usize::from(state), virt);
            if !back {
                out.push((pool, virt));
            }
        }
    }

    /// The node that holds the full page `virt` at `position`, at or above a node.
    fn holder(&self, below: NodeRef, position: u32, virt: VirtId) -> Option<NodeId> {
        if !self.slab.is_alive(below) || self.end(below.id) <= position {
            return None;
        }
        let mut node = below.id;
        while self.slab.get(node).vitals.start > position {
            node = self.slab.get(node).vitals.parent.some()?;
        }
        let found = self.slab.get(node);
        let index = (position - found.vitals.start) as usize;
        (found.virts.get(index) == Some(&virt)).then_some(node)
    }

    /// Puts the first `whole` of the last pages back; gives the node that they are in.
    fn put_tail_back(&mut self, part: &Part, whole: usize) -> Option<NodeId> {
        let (tokens, virts) = (&part.tokens[..whole * self.page_tokens()], &part.virts[..whole]);
        let above = if part.died() { part.parent } else { part.node };
        if !self.slab.is_alive(above) || self.end(above.id) != part.cut() {
            return None;
        }
        if self.child_of(above.id, tokens).is_some() {
            return None;
        }
        let vitals = &self.slab.get(above.id).vitals;
        let alone = vitals.children == 0 && vitals.full_locks == 0 && vitals.states.is_empty();
        if !part.died() && alone {
            let node = self.slab.get_mut(above.id);
            node.tokens.extend(tokens);
            node.virts.extend(virts);
            node.vitals.len += whole as u32;
            self.tally.add_cached(self.shape.full, whole as u32);
            settle(self, above.id);
            return Some(above.id);
        }
        let mut vitals = Vitals::new(&self.shape, above.id, part.cut(), whole as u32, part.used);
        let node = if part.died() {
            std::mem::swap(&mut self.slab.get_mut(part.node.id).vitals, &mut vitals);
            part.node.id
        } else {
            self.slab.add(&self.shape, vitals)
        };
        let found = self.slab.get_mut(node);
        (found.tokens, found.virts) = (tokens.to_vec(), virts.to_vec());
        self.tally.add_cached(self.shape.full, whole as u32);
        self.adopt(node);
        Some(node)
    }

    fn add_state(&mut self, node: NodeId, state: usize, virt: VirtId) -> bool {
        let mut slots = self.slab.get(node).states.clone();
        slots[state] = virt;
        let others = self.slab.get(node).vitals.states.contains(state);
        !others && {
            let found = self.slab.get_mut(node);
            found.states[state] = virt;
            found.vitals.states.insert(state);
            let pool = self.shape.states[state];
            let locked = found.vitals.state_locks > 0;
            self.tally.add_cached(pool, 1);
            self.tally.locked_changed(pool, 0, u32::from(locked));
            settle(self, node);
            true
        }
    }

    fn end_flight(&mut self, part: &Part) {
        for &(window, _, virt) in &part.windows {
            self.in_flight.remove(&(window, virt));
        }
        self.note_bare_root(part.parent.id);
    }

    fn note_bare_root(&mut self, node: NodeId) {
        if self.slab.get(node).vitals.is_root() {
            self.bare_roots.push(node);
        }
    }

    fn end_detachment(&mut self) {
        self.open_detachments -= 1;
        self.sweep_roots();
    }
}

impl Part {
    fn in_flight(&self, in_flight: &mut BTreeSet<(u8, VirtId)>) {
        let stay = self.windows.iter().filter(|(_, position, _)| *position < self.cut());
        in_flight.extend(stay.map(|&(window, _, virt)| (window, virt)));
    }
}
