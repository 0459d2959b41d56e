//! The tree's invariants, recomputed from its nodes page by page.

use super::CLASSES;
use super::node::{Node, NodeId, Place, Vitals};
use super::ordinals::Ordinals;
use super::policy::{Record, Standing};
use super::shape::{Lane, PerWindow};
use super::upkeep::{Entry, Need, NeedLane};
use super::{NodeMap, Tree};
use crate::unit::{POOLS_MAX, Pages, PoolId};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hash, Hasher};

/// An invariant of the tree that does not hold.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Violation {
    /// The counters differ from a recount.
    #[error("I8 tree-counters: pool {pool:?} has {counted} {what}, a recount gives {recounted}")]
    Counters {
        /// The pool.
        pool: PoolId,
        /// `cached` or `locked`.
        what: &'static str,
        /// By the counters.
        counted: Pages,
        /// By the nodes.
        recounted: Pages,
    },
    /// The matchable pages differ from a recount.
    #[error("I8 tree-counters: {counted} matchable pages, a recount gives {recounted}")]
    Matchable {
        /// By the counters.
        counted: u64,
        /// By the nodes.
        recounted: u64,
    },
    /// A derived number of a node differs from what its pages give.
    #[error("I8 tree-counters: node {node} derives `{what}` wrongly")]
    Derived {
        /// The node's id.
        node: u32,
        /// The number.
        what: &'static str,
    },
    /// A queue holds other entries than the nodes give.
    #[error("I8 tree-counters: queue {queue} holds {held} entries, the nodes give {given}")]
    Queue {
        /// The queue's index; past all of them, the needs.
        queue: usize,
        /// Entries held.
        held: usize,
        /// Entries by the nodes.
        given: usize,
    },
    /// Lock counts that no set of locks gives.
    #[error("I9 lock-counts: node {node}: `{what}`, with {open} locks open")]
    Locks {
        /// The node's id.
        node: u32,
        /// What does not add up.
        what: &'static str,
        /// Locks given out.
        open: u64,
    },
    /// Nodes that do not form a tree.
    #[error("tree-structure: node {node}: {what}")]
    Structure {
        /// The node's id.
        node: u32,
        /// What is wrong.
        what: &'static str,
    },
}

/// What a node's pages and its relatives say about it.
#[derive(Clone, Debug)]
struct Truth {
    runs: PerWindow,
    soft: PerWindow,
    hard: PerWindow,
    last_serviceable: u32,
    serviceable_children: u32,
}

impl Tree {
    /// Checks everything that the tree derives and counts, and names the first thing that is wrong.
    ///
    /// - I8 `tree-counters`: counters, summaries and queues equal what a recount gives.
    /// - I9 `lock-counts`: a path is locked at least as often as what is below it; without open locks, nothing is.
    /// - `tree-structure`: nodes, links and the table of first pages describe the same tree.
    ///
    /// O(pages × window).
    ///
    /// # Errors
    /// The first [`Violation`] found.
    pub fn check(&self) -> Result<(), Violation> {
        let order = self.top_down();
        self.check_structure(&order)?;
        self.check_locks(&order)?;
        self.check_sessions(&order)?;
        let truths = self.truths(&order);
        self.check_derived(&order, &truths)?;
        self.check_queues(&order, &truths)?;
        self.check_counters()
    }

    /// A hash of everything that decisions depend on: two trees of the same past have the same. O(pages).
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        (self.clock, self.open_locks).hash(&mut hasher);
        for (id, node) in self.slab.live() {
            let vitals = &node.vitals;
            (id.0, vitals.parent.0, vitals.start, vitals.len).hash(&mut hasher);
            (vitals.full_locks, vitals.state_locks, vitals.states).hash(&mut hasher);
            vitals.used.hash(&mut hasher);
            (&node.tokens, &node.virts, &node.namespace, &node.window_locks).hash(&mut hasher);
            vitals.states.iter().for_each(|state| node.states[state].hash(&mut hasher));
            for window in &vitals.windows {
                window.present.iter().for_each(|page| page.hash(&mut hasher));
            }
        }
        self.queues.iter().flatten().for_each(|entry| {
            let Standing { held, rank } = entry.rank;
            (held, rank.group, rank.order, entry.order, entry.node.0).hash(&mut hasher);
        });
        self.sessions.ends().for_each(|(since, end)| (since, end.0).hash(&mut hasher));
        self.tally.matchable_pages.hash(&mut hasher);
        hasher.finish()
    }

    /// Matchable pages by a walk over all nodes.
    pub(super) fn matchable_from_nodes(&self) -> u64 {
        let order = self.top_down();
        let truths = self.truths(&order);
        order.iter().map(|&id| self.worth(id, &truths[&id])).sum()
    }

    fn worth(&self, id: NodeId, truth: &Truth) -> u64 {
        let vitals = &self.slab.get(id).vitals;
        let pages =
            if truth.serviceable_children > 0 { vitals.len } else { truth.last_serviceable };
        u64::from(pages)
    }

    /// Every node, parents first.
    fn top_down(&self) -> Vec<NodeId> {
        let mut order: Vec<NodeId> = self.slab.live().map(|(id, _)| id).collect();
        order.sort_by_key(|&id| {
            let vitals = &self.slab.get(id).vitals;
            (!vitals.is_root(), vitals.start, id)
        });
        order
    }

    fn check_structure(&self, order: &[NodeId]) -> Result<(), Violation> {
        let wrong = |node: NodeId, what| Err(Violation::Structure { node: node.0, what });
        let mut children: NodeMap<u32> = NodeMap::default();
        for &id in order {
            let node = self.slab.get(id);
            let vitals = &node.vitals;
            let pages = vitals.len as usize;
            if node.virts.len() != pages || node.tokens.len() != pages * self.page_tokens() {
                return wrong(id, "the edge's length differs from its pages");
            }
            if vitals.windows.iter().any(|w| w.present.first_from(vitals.len).is_some()) {
                return wrong(id, "window pages past the edge's end");
            }
            if vitals.is_root() {
                let named = node.namespace.as_ref().and_then(|name| self.roots.get(name));
                if named != Some(&id) || vitals.len > 0 {
                    return wrong(id, "a root that its namespace does not lead to");
                }
                continue;
            }
            *children.entry(vitals.parent).or_default() += 1;
            if self.end(vitals.parent) != vitals.start {
                return wrong(id, "starts elsewhere than its parent ends");
            }
            if self.child_of(vitals.parent, &node.tokens) != Some(id) {
                return wrong(id, "its first page does not lead to it");
            }
        }
        for &id in order {
            let vitals = &self.slab.get(id).vitals;
            let mut linked = 0;
            let mut next = self.slab.get(id).links.first_child.some();
            while let Some(child) = next {
                linked += 1;
                if self.slab.get(child).vitals.parent != id || linked > vitals.children {
                    return wrong(id, "its links lead to a stranger");
                }
                next = self.slab.get(child).links.next.some();
            }
            let counted = children.get(&id).copied().unwrap_or(0);
            if counted != vitals.children || linked != counted {
                return wrong(id, "its count of children is wrong");
            }
        }
        let below_roots = order.len() - self.roots.len();
        if self.by_first_page.len() != below_roots {
            return wrong(NodeId(0), "the table of first pages has other nodes than the tree");
        }
        Ok(())
    }

    fn check_locks(&self, order: &[NodeId]) -> Result<(), Violation> {
        let mut below: NodeMap<u32> = NodeMap::default();
        let open = self.open_locks;
        let wrong = |id: NodeId, what| Err(Violation::Locks { node: id.0, what, open });
        let mut at_roots = 0;
        for &id in order.iter().rev() {
            let node = self.slab.get(id);
            let vitals = &node.vitals;
            let own = below.get(&id).copied().unwrap_or(0);
            if vitals.full_locks < own {
                return wrong(id, "less locked than what is below it");
            }
            if vitals.state_locks > vitals.full_locks - own {
                return wrong(id, "more locks on the state than on the place");
            }
            if vitals.is_root() {
                at_roots += u64::from(vitals.full_locks);
            } else {
                *below.entry(vitals.parent).or_default() += vitals.full_locks;
            }
            for (locks, window) in node.window_locks.iter().zip(&vitals.windows) {
                let count: u32 = locks.iter().map(|lock| lock.1).sum();
                let rising = locks.is_sorted_by(|a, b| a.0 < b.0);
                let from = locks.first().map_or(u32::MAX, |lock| lock.0);
                let inside = locks.iter().all(|lock| lock.0 < vitals.end() && lock.1 > 0);
                if count > vitals.full_locks || !rising || !inside || from != window.locked_from {
                    return wrong(id, "window locks that no set of locks gives");
                }
            }
        }
        if at_roots != open {
            return wrong(NodeId(0), "the roots' locks are not those given out");
        }
        Ok(())
    }

    fn check_sessions(&self, order: &[NodeId]) -> Result<(), Violation> {
        let mut held: NodeMap<u32> = NodeMap::default();
        for (_, end) in self.sessions.ends() {
            if !self.slab.is_alive(self.slab.reference(end)) {
                let what = "a session ends at a node that is gone";
                return Err(Violation::Structure { node: end.0, what });
            }
            *held.entry(end).or_default() += 1;
        }
        for &id in order.iter().rev() {
            let vitals = &self.slab.get(id).vitals;
            let counted = held.remove(&id).unwrap_or(0);
            if counted != vitals.held {
                let what = "its count of sessions is wrong";
                return Err(Violation::Structure { node: id.0, what });
            }
            *held.entry(vitals.parent).or_default() += counted;
        }
        Ok(())
    }

    /// Whether the window pages of `window` that boundary `index` of a node needs are all there; page by page.
    fn run(&self, id: NodeId, window: usize, index: u32) -> u32 {
        let cap = self.shape.window_pages[window];
        let (mut node, mut index, mut run) = (self.slab.get(id), index, 0);
        while run < cap {
            if index == 0 {
                match node.vitals.parent.some() {
                    Some(parent) => node = self.slab.get(parent),
                    None => return cap,
                }
                index = node.vitals.len;
            } else if node.vitals.windows[window].present.contains(index - 1) {
                run += 1;
                index -= 1;
            } else {
                return run;
            }
        }
        cap
    }

    fn is_serviceable(&self, id: NodeId, index: u32) -> bool {
        let vitals = &self.slab.get(id).vitals;
        let all = Ordinals::first(self.shape.states.len());
        let states = if index == vitals.len { vitals.states } else { Ordinals::NONE };
        index > 0
            && (all.is_empty() || states == all)
            && (0..self.shape.windows.len())
                .all(|window| self.run(id, window, index) == self.shape.window_pages[window])
    }

    fn truths(&self, order: &[NodeId]) -> NodeMap<Truth> {
        let mut truths: NodeMap<Truth> = NodeMap::default();
        let mut children: NodeMap<Vec<NodeId>> = NodeMap::default();
        for &id in order.iter().rev() {
            let vitals = &self.slab.get(id).vitals;
            let serviceable = (1..=vitals.len).rev().find(|&i| self.is_serviceable(id, i));
            let last_serviceable = serviceable.unwrap_or(0);
            let below = children.remove(&id).unwrap_or_default();
            let serves = |child: &NodeId| {
                truths[child].last_serviceable > 0 || truths[child].serviceable_children > 0
            };
            let serviceable_children = below.iter().filter(|child| serves(child)).count() as u32;
            let mut truth = Truth {
                runs: [0; POOLS_MAX],
                soft: [u32::MAX; POOLS_MAX],
                hard: [u32::MAX; POOLS_MAX],
                last_serviceable,
                serviceable_children,
            };
            for (window, &pages) in self.shape.window_pages.iter().enumerate() {
                truth.runs[window] = self.run(id, window, vitals.len);
                let overflow = |need: u32| (need < vitals.end()).then_some(need);
                let soft = below.iter().filter_map(|child| overflow(truths[child].soft[window]));
                let hard = below.iter().filter_map(|child| overflow(truths[child].hard[window]));
                truth.soft[window] = soft.min().unwrap_or(u32::MAX);
                truth.hard[window] = hard.min().unwrap_or(u32::MAX);
                let last = (vitals.start + last_serviceable).saturating_sub(pages);
                if serviceable_children == 0 && last_serviceable > 0 {
                    // A prompt equal to a cached one is matched one page short of its end.
                    let shorter = if self.shape.states.is_empty() { 1 } else { 0 };
                    let repeated =
                        (vitals.start + last_serviceable - shorter).saturating_sub(pages);
                    truth.soft[window] = truth.soft[window].min(repeated);
                    truth.hard[window] = truth.hard[window].min(last);
                }
                let branches = below.len() >= 2 && serviceable_children > 0;
                if branches && last_serviceable == vitals.len {
                    truth.soft[window] = truth.soft[window].min(last);
                }
            }
            truths.insert(id, truth);
            children.entry(vitals.parent).or_default().push(id);
        }
        truths
    }

    fn check_derived(&self, order: &[NodeId], truths: &NodeMap<Truth>) -> Result<(), Violation> {
        for &id in order {
            let (vitals, truth) = (&self.slab.get(id).vitals, &truths[&id]);
            let wrong = |what| Err(Violation::Derived { node: id.0, what });
            if vitals.serviceable_children != truth.serviceable_children {
                return wrong("serviceable children");
            }
            if vitals.is_root() {
                continue;
            }
            if vitals.last_serviceable != truth.last_serviceable {
                return wrong("last serviceable boundary");
            }
            if vitals.serviceable != (truth.last_serviceable > 0 || truth.serviceable_children > 0)
            {
                return wrong("serviceable");
            }
            if u64::from(vitals.worth) != self.worth(id, truth) {
                return wrong("worth");
            }
            for (window, kept) in vitals.windows.iter().enumerate() {
                if kept.run_end != truth.runs[window] {
                    return wrong("run");
                }
                if (kept.soft, kept.hard) != (truth.soft[window], truth.hard[window]) {
                    return wrong("needs");
                }
            }
        }
        Ok(())
    }

    fn check_queues(&self, order: &[NodeId], truths: &NodeMap<Truth>) -> Result<(), Violation> {
        let mut queues = vec![BTreeSet::new(); self.queues.len()];
        let mut needs = BTreeSet::new();
        for &id in order.iter().filter(|&&id| !self.slab.get(id).vitals.is_root()) {
            let (node, truth) = (self.slab.get(id), &truths[&id]);
            let mut put = |place: Option<Place>, lane| {
                if let Some(Place { class, rank, order }) = place {
                    let entry = Entry { rank, order, node: id };
                    queues[self.queue_index(class, lane)].insert(entry);
                }
            };
            let vitals = &node.vitals;
            put(self.expected_tail(node, truth), Lane::Tail);
            for window in 0..self.shape.windows.len() {
                put(self.expected_window(node, truth, window), Lane::Window(window as u8));
                let lanes = [
                    (NeedLane::Soft(window as u8), truth.soft[window]),
                    (NeedLane::Hard(window as u8), truth.hard[window]),
                ];
                for (lane, from) in lanes.into_iter().filter(|(_, from)| *from < vitals.start) {
                    needs.insert(Need { parent: vitals.parent, lane, from, child: id });
                }
            }
            for state in vitals.states.iter() {
                put(self.expected_state(node, truth), Lane::State(state as u8));
            }
        }
        for (queue, (held, given)) in self.queues.iter().zip(&queues).enumerate() {
            if held != given {
                return Err(Violation::Queue { queue, held: held.len(), given: given.len() });
            }
        }
        if self.needs != needs {
            let (held, given) = (self.needs.len(), needs.len());
            return Err(Violation::Queue { queue: queues.len(), held, given });
        }
        Ok(())
    }

    fn place(&self, class: usize, vitals: &Vitals, record: Record, position: u32) -> Option<Place> {
        let order = if class == 2 { u32::MAX - position } else { position };
        let rank = self.shape.standing(vitals, record, position);
        Some(Place { class: CLASSES[class], rank, order })
    }

    fn expected_tail(&self, node: &Node, truth: &Truth) -> Option<Place> {
        let vitals = &node.vitals;
        let free = vitals.children == 0 && vitals.full_locks == 0;
        let class = if truth.last_serviceable < vitals.len { 0 } else { 2 };
        free.then(|| self.place(class, vitals, vitals.used.full, vitals.end() - 1)).flatten()
    }

    /// The first page, by position, of the lowest class that has any.
    fn expected_window(&self, node: &Node, truth: &Truth, window: usize) -> Option<Place> {
        let vitals = &node.vitals;
        let locked = node.window_locks[window].first().map_or(u32::MAX, |lock| lock.0);
        let kept_until = match truth.serviceable_children {
            0 => vitals.start + truth.last_serviceable,
            _ => vitals.end(),
        };
        let class_of = |position: u32| {
            if position < truth.soft[window] || position >= kept_until {
                Some(0)
            } else if position < truth.hard[window] {
                Some(1)
            } else {
                let alone = vitals.children > 0 && truth.serviceable_children == 0;
                (vitals.full_locks > 0 || alone).then_some(2)
            }
        };
        vitals.windows[window]
            .present
            .iter()
            .map(|index| vitals.start + index)
            .filter(|&position| position < locked)
            .filter_map(|position| Some((class_of(position)?, position)))
            .min()
            .and_then(|(class, position)| self.place(class, vitals, vitals.used.window, position))
    }

    fn expected_state(&self, node: &Node, truth: &Truth) -> Option<Place> {
        let vitals = &node.vitals;
        if vitals.state_locks > 0 {
            return None;
        }
        let kept = truth.last_serviceable == vitals.len;
        let class = match (kept, truth.serviceable_children, vitals.children) {
            (false, _, _) => 0,
            (true, 0, 0) if vitals.full_locks == 0 => return None,
            (true, 0, _) => 2,
            (true, _, 1) => 0,
            (true, _, _) => 1,
        };
        self.place(class, vitals, vitals.used.state, vitals.end() - 1)
    }

    fn check_counters(&self) -> Result<(), Violation> {
        let (counters, recount) = (self.counters(), self.recount());
        if counters.matchable_pages != recount.matchable_pages {
            let (counted, recounted) = (counters.matchable_pages, recount.matchable_pages);
            return Err(Violation::Matchable { counted, recounted });
        }
        for pool in (0..).map(PoolId).take(POOLS_MAX) {
            let pairs = [
                ("cached", counters.cached[pool], recount.cached[pool]),
                ("locked", counters.locked[pool], recount.locked[pool]),
            ];
            for (what, counted, recounted) in pairs {
                if counted != recounted {
                    return Err(Violation::Counters { pool, what, counted, recounted });
                }
            }
        }
        Ok(())
    }
}
