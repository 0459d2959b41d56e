//! Nodes, and the slab that holds them.

use super::namespace::Namespace;
use super::ordinals::Ordinals;
use super::page_set::PageSet;
use super::policy::{Standing, Used};
use super::shape::{PerWindow, Shape};
use crate::unit::{POOLS_MAX, Token, VirtId};

/// A node's place in the slab.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct NodeId(pub u32);

/// A node's place and how often that place was given away: stale once the node is gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct NodeRef {
    pub id: NodeId,
    pub generation: u32,
}

/// What giving a page up would mean; see the module doc of [`tree`](super).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum VictimClass {
    /// Costs nothing, and no kept boundary needs it.
    Unneeded,
    /// Costs nothing, though a kept boundary (a branch point, or where a repeated prompt is matched) would miss it.
    KeptBoundary,
    /// Taken in the policy's order.
    Policy,
}

/// Where a node stands in a queue of victims.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Place {
    pub class: VictimClass,
    pub rank: Standing,
    /// Breaks ties of rank: the position, or its complement where the deepest goes first.
    pub order: u32,
}

/// A node's pages of one window pool. Positions are pages from the root.
#[derive(Clone, Debug)]
pub(super) struct WindowVitals {
    /// Indices within the edge whose window page is there.
    pub present: PageSet,
    /// First position that a lock holds; `u32::MAX` if none does.
    pub locked_from: u32,
    /// Present pages in a row back from the node's end, capped at the window.
    pub run_end: u32,
    /// First position that path ends, repeated prompts and branch points at or below here need; `u32::MAX` if none.
    pub soft: u32,
    /// First position that path ends alone need.
    pub hard: u32,
    /// Where the next page to go alone stands.
    pub place: Option<Place>,
}

/// All about a node that decisions depend on, apart from its edge: what a plan copies when it touches the node.
#[derive(Clone, Debug)]
pub(super) struct Vitals {
    /// [`NodeId::NONE`] of a root.
    pub parent: NodeId,
    /// Pages from the root to the edge's start.
    pub start: u32,
    /// Pages of the edge: none for a root, and for a node that is gone.
    pub len: u32,
    pub children: u32,
    /// Children with a serviceable boundary at or below them.
    pub serviceable_children: u32,
    pub full_locks: u32,
    pub state_locks: u32,
    /// States present at the end.
    pub states: Ordinals,
    pub used: Used,
    /// Sessions whose last path leads through here.
    pub held: u32,
    /// Index of the last serviceable boundary within the edge, from 1; 0 if there is none.
    pub last_serviceable: u32,
    /// Whether a boundary at or below here is serviceable.
    pub serviceable: bool,
    /// Matchable pages of the edge.
    pub worth: u32,
    pub tail: Option<Place>,
    pub state: Option<Place>,
    /// States that stand in queues, all at place `state`.
    pub queued_states: Ordinals,
    pub windows: Box<[WindowVitals]>,
}

/// Neighbours, for visiting children.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub first_child: NodeId,
    pub next: NodeId,
    pub previous: NodeId,
}

/// A node. Its edge holds whole pages.
#[derive(Debug)]
pub(super) struct Node {
    pub generation: u32,
    pub vitals: Vitals,
    pub links: Links,
    /// `page_tokens` for every page.
    pub tokens: Vec<Token>,
    /// One for every page.
    pub virts: Vec<VirtId>,
    /// By state ordinal; valid where `vitals.states` says so.
    pub states: Vec<VirtId>,
    /// By window ordinal: window starts of the locks that reach into this node, rising, with how many share each.
    pub window_locks: Vec<Vec<(u32, u32)>>,
    /// Of a root.
    pub namespace: Option<Namespace>,
}

/// All nodes, by id.
#[derive(Debug, Default)]
pub(super) struct Slab {
    nodes: Vec<Node>,
    free: Vec<NodeId>,
}

impl NodeId {
    /// No node.
    pub(super) const NONE: NodeId = NodeId(u32::MAX);

    /// The node, if there is one.
    pub(super) fn some(self) -> Option<NodeId> {
        (self != NodeId::NONE).then_some(self)
    }
}

impl Vitals {
    /// A node of `len` pages with nothing derived yet.
    pub(super) fn new(shape: &Shape, parent: NodeId, start: u32, len: u32, used: Used) -> Self {
        let window = WindowVitals {
            present: PageSet::default(),
            locked_from: u32::MAX,
            // No run is that long: the first upkeep tells the children.
            run_end: u32::MAX,
            soft: u32::MAX,
            hard: u32::MAX,
            place: None,
        };
        Vitals {
            parent,
            start,
            len,
            children: 0,
            serviceable_children: 0,
            full_locks: 0,
            state_locks: 0,
            states: Ordinals::NONE,
            used,
            held: 0,
            last_serviceable: 0,
            serviceable: false,
            worth: 0,
            tail: None,
            state: None,
            queued_states: Ordinals::NONE,
            windows: vec![window; shape.windows.len()].into(),
        }
    }

    /// A namespace's root: every window is whole there.
    pub(super) fn root(shape: &Shape) -> Self {
        let mut vitals = Vitals::new(shape, NodeId::NONE, 0, 0, Used::default());
        for (window, &pages) in vitals.windows.iter_mut().zip(&shape.window_pages) {
            window.run_end = pages;
        }
        vitals
    }

    pub(super) fn is_root(&self) -> bool {
        self.parent == NodeId::NONE
    }

    /// Pages from the root to the edge's end.
    pub(super) fn end(&self) -> u32 {
        self.start + self.len
    }

    /// Runs of present window pages back from the node's end.
    pub(super) fn runs(&self) -> PerWindow {
        let mut runs = [0; POOLS_MAX];
        for (run, window) in runs.iter_mut().zip(&self.windows) {
            *run = window.run_end;
        }
        runs
    }

    /// Locked pages of one window pool.
    pub(super) fn locked_window_pages(&self, window: usize) -> u32 {
        let window = &self.windows[window];
        if window.locked_from >= self.end() {
            return 0;
        }
        window.present.count_from(window.locked_from.saturating_sub(self.start))
    }

    /// Present pages in a row back from boundary `index`, capped at the window, given the run up to the edge's start.
    pub(super) fn run_at(&self, shape: &Shape, before: u32, window: usize, index: u32) -> u32 {
        let run = match self.windows[window].present.last_gap_before(index) {
            Some(gap) => index - gap - 1,
            None => before.saturating_add(index),
        };
        run.min(shape.window_pages[window])
    }

    /// The last serviceable boundary within the edge at or before index `upto`, given the runs up to the edge's
    /// start; 0 if there is none. O(words of the edge + gaps passed).
    pub(super) fn serviceable_upto(&self, shape: &Shape, before: &PerWindow, upto: u32) -> u32 {
        if !shape.states.is_empty() && (upto < self.len || self.states != shape.all_states()) {
            return 0;
        }
        let mut index = upto;
        'boundary: while index > 0 {
            for (window, &pages) in shape.window_pages.iter().enumerate() {
                match self.windows[window].present.last_gap_before(index) {
                    Some(gap) if index - gap > pages => {}
                    // No boundary between the gap and here has a longer run.
                    Some(gap) if shape.states.is_empty() => {
                        index = gap;
                        continue 'boundary;
                    }
                    None if before[window].saturating_add(index) >= pages => {}
                    _ => return 0,
                }
            }
            return index;
        }
        0
    }
}

impl Links {
    pub(super) const NONE: Links =
        Links { first_child: NodeId::NONE, next: NodeId::NONE, previous: NodeId::NONE };
}

impl Slab {
    pub(super) fn get(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    pub(super) fn get_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    /// A new node, alone. Reuses the place that was freed last.
    pub(super) fn add(&mut self, shape: &Shape, vitals: Vitals) -> NodeId {
        let generation = self.free.last().map_or(0, |&id| self.get(id).generation);
        let node = Node {
            generation,
            vitals,
            links: Links::NONE,
            tokens: Vec::new(),
            virts: Vec::new(),
            states: vec![VirtId(0); shape.states.len()],
            window_locks: vec![Vec::new(); shape.windows.len()],
            namespace: None,
        };
        match self.free.pop() {
            Some(id) => {
                *self.get_mut(id) = node;
                id
            }
            None => {
                self.nodes.push(node);
                NodeId(self.nodes.len() as u32 - 1)
            }
        }
    }

    /// Gives a node's place away; references to it are stale from now on.
    pub(super) fn remove(&mut self, shape: &Shape, id: NodeId) {
        let node = self.get_mut(id);
        node.generation = node.generation.wrapping_add(1);
        node.vitals = Vitals::new(shape, NodeId::NONE, 0, 0, Used::default());
        node.namespace = None;
        (node.tokens, node.virts) = (Vec::new(), Vec::new());
        self.free.push(id);
    }

    pub(super) fn reference(&self, id: NodeId) -> NodeRef {
        NodeRef { id, generation: self.get(id).generation }
    }

    /// Whether a reference still means a node that is in the tree.
    pub(super) fn is_alive(&self, node: NodeRef) -> bool {
        let found = self.get(node.id);
        found.generation == node.generation && (found.namespace.is_some() || found.vitals.len > 0)
    }

    /// Nodes in the tree, by id.
    pub(super) fn live(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        (0..)
            .map(NodeId)
            .zip(&self.nodes)
            .filter(|(_, node)| node.namespace.is_some() || node.vitals.len > 0)
    }
}
