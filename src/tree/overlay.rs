//! A plan's own copy of what it touched, over a tree that it cannot change.

use super::node::{NodeId, VictimClass, Vitals};
use super::shape::{Lane, Shape};
use super::upkeep::{Entry, Need, NeedLane, Store};
use super::{CLASSES, SEED, Tree};
use crate::unit::PoolId;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::ops::Bound::{Included, Unbounded};

/// The tree with some pages gone. A node is copied when it is first changed; from then on the tree's own queue
/// entries for it are passed over, and never looked at again.
pub(super) struct Overlay<'a> {
    tree: &'a Tree,
    touched: HashMap<NodeId, Vitals, FixedState>,
    /// Entries of touched nodes, indexed as the tree's queues.
    queues: Vec<BTreeSet<Entry>>,
    /// By queue: no entry of the tree's before this one is of an untouched node.
    cursors: Vec<Option<Entry>>,
    needs: BTreeSet<Need>,
    need_cursors: HashMap<(NodeId, NeedLane), Need, FixedState>,
    matchable_pages: u64,
}

impl<'a> Overlay<'a> {
    pub(super) fn new(tree: &'a Tree) -> Self {
        let queues = CLASSES.len() * tree.shape.lanes();
        Overlay {
            tree,
            touched: HashMap::with_hasher(FixedState::with_seed(SEED)),
            queues: vec![BTreeSet::new(); queues],
            cursors: vec![None; queues],
            needs: BTreeSet::new(),
            need_cursors: HashMap::with_hasher(FixedState::with_seed(SEED)),
            matchable_pages: tree.tally.matchable_pages,
        }
    }

    pub(super) fn tree(&self) -> &'a Tree {
        self.tree
    }

    /// Pages that have stopped being matchable.
    pub(super) fn lost(&self) -> u64 {
        self.tree.tally.matchable_pages - self.matchable_pages
    }

    /// The entry of a queue that goes first. O(log n), and O(1) for every entry of a touched node passed for the first
    /// time.
    pub(super) fn first(&mut self, class: VictimClass, lane: Lane) -> Option<Entry> {
        let queue = self.tree.queue_index(class, lane);
        let from = self.cursors[queue].map_or(Unbounded, Included);
        let mut entries = self.tree.queues[queue].range((from, Unbounded));
        let untouched = entries.find(|entry| !self.touched.contains_key(&entry.node)).copied();
        // Past all of them, the cursor stands at the last: touched for good.
        self.cursors[queue] = untouched.or(self.tree.queues[queue].last().copied());
        let touched = self.queues[queue].first().copied();
        untouched.into_iter().chain(touched).min()
    }

    /// Takes an entry out of its queue until its node changes.
    pub(super) fn pass_over(&mut self, class: VictimClass, lane: Lane, entry: Entry) {
        self.vitals_mut(entry.node);
        self.unqueue(class, lane, entry);
    }

    /// Enters into the copy's queues what the tree's hold of a node.
    fn copy_entries(&mut self, node: NodeId, vitals: &Vitals) {
        let entry = |rank, order| Entry { rank, order, node };
        if let Some(place) = vitals.tail {
            self.enqueue(place.class, Lane::Tail, entry(place.rank, place.order));
        }
        if let Some(place) = vitals.state {
            for state in vitals.queued_states.iter() {
                let lane = Lane::State(state as u8);
                self.enqueue(place.class, lane, entry(place.rank, place.order));
            }
        }
        for (window, kept) in (0..).zip(&vitals.windows) {
            if let Some(place) = kept.place {
                self.enqueue(place.class, Lane::Window(window), entry(place.rank, place.order));
            }
            let needs = [(NeedLane::Soft(window), kept.soft), (NeedLane::Hard(window), kept.hard)];
            for (lane, from) in needs.into_iter().filter(|(_, from)| *from < vitals.start) {
                self.needs.insert(Need { parent: vitals.parent, lane, from, child: node });
            }
        }
    }
}

impl Store for Overlay<'_> {
    fn shape(&self) -> &Shape {
        &self.tree.shape
    }

    fn vitals(&self, node: NodeId) -> &Vitals {
        self.touched.get(&node).unwrap_or_else(|| self.tree.vitals(node))
    }

    fn vitals_mut(&mut self, node: NodeId) -> &mut Vitals {
        if !self.touched.contains_key(&node) {
            let vitals = self.tree.vitals(node).clone();
            self.copy_entries(node, &vitals);
            self.touched.insert(node, vitals);
        }
        self.touched.entry(node).or_insert_with(|| self.tree.vitals(node).clone())
    }

    fn child(&self, parent: NodeId, after: Option<NodeId>) -> Option<NodeId> {
        self.tree.child(parent, after)
    }

    fn enqueue(&mut self, class: VictimClass, lane: Lane, entry: Entry) {
        self.queues[self.tree.queue_index(class, lane)].insert(entry);
    }

    fn unqueue(&mut self, class: VictimClass, lane: Lane, entry: Entry) {
        self.queues[self.tree.queue_index(class, lane)].remove(&entry);
    }

    fn add_need(&mut self, need: Need) {
        self.needs.insert(need);
    }

    fn remove_need(&mut self, need: Need) {
        self.needs.remove(&need);
    }

    fn least_need(&mut self, parent: NodeId, lane: NeedLane) -> Option<u32> {
        let least = Need { parent, lane, from: 0, child: NodeId(0) };
        let ours = |need: &&Need| need.parent == parent && need.lane == lane;
        let cursor = self.need_cursors.entry((parent, lane)).or_insert(least);
        let mut untouched = None;
        for need in self.tree.needs.range(*cursor..).take_while(ours) {
            *cursor = *need;
            if !self.touched.contains_key(&need.child) {
                untouched = Some(need.from);
                break;
            }
        }
        let touched = self.needs.range(least..).next().filter(ours).map(|need| need.from);
        untouched.into_iter().chain(touched).min()
    }

    fn worth_changed(&mut self, was: u32, now: u32) {
        self.matchable_pages = self.matchable_pages + u64::from(now) - u64::from(was);
    }

    fn uncached(&mut self, _pool: PoolId) {}
}
