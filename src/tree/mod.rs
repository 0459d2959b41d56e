//! The radix tree of cached prefixes, and the planner of what has to go (design sections 5 and 7).
//!
//! # What it holds
//!
//! A node is an edge of whole pages; its id means the place where the edge ends. Per page there is the full page, and
//! for every window pool whether the window page is there; per node end there may be a state of every state pool. A
//! *boundary* lies between two pages. It is *serviceable* if a prompt that goes on from it could be served: the
//! trailing window of every window pool is present (back to the root, where the prefix is shorter), and so is a state
//! of every state pool. A token is *matchable* if a serviceable boundary lies at or after it on some path.
//!
//! # What can go
//!
//! *Kept boundaries* are path ends (the last serviceable boundary of a path) and branch points. Victims are single
//! pages of single pools, in three classes ([`VictimClass`]):
//!
//! 1. what costs no matchable token and no kept boundary needs: full pages past the last serviceable boundary, window
//!    pages outside every kept boundary's window, states inside a path or at a boundary that is not serviceable;
//! 2. what costs nothing, though a branch point would miss it, or a prompt equal to a cached one: a match never covers a
//!    prompt's last token, so that prompt is matched one page short of its path's end;
//! 3. tails of leaves in the policy's order; and what is not locked on paths that are.
//!
//! Within a class, what no session holds goes before what one does; then the policy decides.
//!
//! Every node keeps its next victims in ordered queues, one per class and kind of page, so that the next victim of any
//! class costs O(log n). For that it knows the run of window pages at its end, its last serviceable boundary, whether
//! something serviceable is below, and from where on boundaries at or below it need window pages; `upkeep` says how
//! these follow from each other.
//!
//! # The life of a reclaim
//!
//! [`Tree::plan`] changes nothing: it walks victims on a copy of what it touches, stops where the demand fits, trims.
//! [`Tree::detach`] takes the victims out, so that no match can use them, and [`Tree::evict`] or [`Tree::attach`] ends
//! it. What the tree does not know: where pages are, what leases and gates hold (see [`PinnedPages`]), and time.

mod check;
mod counters;
mod detach;
mod freed;
mod gated;
mod lock;
mod matching;
mod namespace;
mod node;
mod ordinals;
mod overlay;
mod owned;
mod page_set;
mod plan;
mod policy;
mod publish;
mod session;
mod shape;
mod upkeep;
mod walk;

use crate::chain::Chain;
use crate::unit::{Token, VirtId};

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashTable};
use node::{NodeId, Slab, Vitals};
use session::Sessions;
use shape::{Lane, Shape};
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use upkeep::{Entry, Need, NeedLane, Store};

pub use check::Violation;
pub use counters::Counters;
pub use detach::Detached;
pub use freed::PinnedPages;
pub use lock::{Lock, User};
pub use matching::Match;
pub use namespace::Namespace;
pub use node::VictimClass;
pub use ordinals::Ordinals;
pub use plan::{PlanRefusal, PlanRequest, Prefer, Quota, ReclaimPlan, Victim};
pub use policy::{
    ByPriority, Candidate, EvictionPolicy, Fifo, Filo, Lfu, Lru, Mru, PolicyKind, Rank, Record,
    Slru, Tlru, TreeSettings,
};
pub use publish::{Fate, OwnPage, Published};
pub use session::SessionId;

/// The radix tree of one arena's cached prefixes. See the [module](self).
///
/// Commands: [`open`](Tree::open), [`publish`](Tree::publish), [`unlock`](Tree::unlock), [`detach`](Tree::detach) and
/// their kin. Queries: [`peek`](Tree::peek), [`plan`](Tree::plan), [`counters`](Tree::counters). A chain without a
/// full pool is not supported: its tree stays empty, since nothing can be published without full pages.
#[derive(Debug)]
pub struct Tree {
    shape: Shape,
    slab: Slab,
    roots: HashMap<Namespace, NodeId, FixedState>,
    /// Nodes other than roots, by parent and first page.
    by_first_page: HashTable<NodeId>,
    hasher: FixedState,
    /// By class, then lane.
    queues: Vec<BTreeSet<Entry>>,
    needs: BTreeSet<Need>,
    tally: Counters,
    /// Ticks at every use.
    clock: u64,
    /// Ticks at every change: a plan is good for the version that it was made for.
    version: u64,
    open_locks: u64,
    /// Roots that may have nothing below them any more.
    bare_roots: Vec<NodeId>,
    open_detachments: u32,
    /// Window pages detached from full pages that stay, by ordinal and id: not to be healed meanwhile.
    in_flight: BTreeSet<(u8, VirtId)>,
    sessions: Sessions,
}

/// Look-ups by node; never iterated.
type NodeMap<V> = HashMap<NodeId, V, FixedState>;

/// Classes of victims.
const CLASSES: [VictimClass; 3] =
    [VictimClass::Unneeded, VictimClass::KeptBoundary, VictimClass::Policy];

/// Seed of the hash of first pages. Any will do, as long as it is the same everywhere.
const SEED: u64 = 0x6b76_7469_6465;

impl Tree {
    /// An empty tree for the prefixes of `chain`.
    #[must_use]
    pub fn new(chain: &Chain, settings: TreeSettings) -> Self {
        let shape = Shape::of(chain, &settings);
        Tree {
            slab: Slab::default(),
            roots: HashMap::with_hasher(FixedState::with_seed(SEED)),
            by_first_page: HashTable::new(),
            hasher: FixedState::with_seed(SEED),
            queues: vec![BTreeSet::new(); CLASSES.len() * shape.lanes()],
            needs: BTreeSet::new(),
            tally: Counters::new(&shape),
            clock: 0,
            version: 0,
            open_locks: 0,
            bare_roots: Vec::new(),
            open_detachments: 0,
            in_flight: BTreeSet::new(),
            sessions: Sessions::new(settings.max_sessions, FixedState::with_seed(SEED)),
            shape,
        }
    }

    /// What the tree holds. O(1).
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.tally
    }

    /// Locks that were given out and not yet given back.
    #[must_use]
    pub fn open_locks(&self) -> u64 {
        self.open_locks
    }

    /// Pages from the root to a node's end.
    fn end(&self, node: NodeId) -> u32 {
        self.slab.get(node).vitals.end()
    }

    fn page_tokens(&self) -> usize {
        self.shape.page_tokens as usize
    }

    /// The child of `parent` whose edge starts with the first page of `tokens`, if that holds a page.
    fn child_of(&self, parent: NodeId, tokens: &[Token]) -> Option<NodeId> {
        let page = tokens.get(..self.page_tokens())?;
        let hash = self.hasher.hash_one((parent.0, page));
        let is_it = |&id: &NodeId| {
            let node = self.slab.get(id);
            node.vitals.parent == parent && node.tokens.starts_with(page)
        };
        self.by_first_page.find(hash, is_it).copied()
    }

    /// Pages that an edge and `tokens` have in common.
    fn common_pages(&self, node: NodeId, tokens: &[Token]) -> u32 {
        let edge = &self.slab.get(node).tokens;
        let common = if tokens.starts_with(edge) {
            edge.len()
        } else {
            edge.iter().zip(tokens).take_while(|(ours, theirs)| ours == theirs).count()
        };
        (common / self.page_tokens()) as u32
    }

    /// Makes `node`, whose parent and tokens are set, a child of its parent.
    fn link(&mut self, id: NodeId) {
        let parent = self.slab.get(id).vitals.parent;
        let first = std::mem::replace(&mut self.slab.get_mut(parent).links.first_child, id);
        if let Some(first) = first.some() {
            self.slab.get_mut(first).links.previous = id;
        }
        let node = self.slab.get_mut(id);
        (node.links.previous, node.links.next) = (NodeId::NONE, first);
        let hash = self.first_page_hash(id);
        let (slab, hasher, page) = (&self.slab, &self.hasher, self.shape.page_tokens as usize);
        let rehash = |&id: &NodeId| hash_of(slab, hasher, page, id);
        self.by_first_page.insert_unique(hash, id, rehash);
    }

    /// Takes `node` out of its parent's children.
    fn unlink(&mut self, id: NodeId) {
        let hash = self.first_page_hash(id);
        if let Ok(entry) = self.by_first_page.find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        let node = self.slab.get(id);
        let (parent, links) = (node.vitals.parent, node.links);
        match links.previous.some() {
            Some(previous) => self.slab.get_mut(previous).links.next = links.next,
            None => self.slab.get_mut(parent).links.first_child = links.next,
        }
        if let Some(next) = links.next.some() {
            self.slab.get_mut(next).links.previous = links.previous;
        }
    }

    fn first_page_hash(&self, id: NodeId) -> u64 {
        hash_of(&self.slab, &self.hasher, self.page_tokens(), id)
    }

    fn queue_mut(&mut self, class: VictimClass, lane: Lane) -> &mut BTreeSet<Entry> {
        let index = self.queue_index(class, lane);
        &mut self.queues[index]
    }

    fn queue(&self, class: VictimClass, lane: Lane) -> &BTreeSet<Entry> {
        &self.queues[self.queue_index(class, lane)]
    }

    fn queue_index(&self, class: VictimClass, lane: Lane) -> usize {
        class as usize * self.shape.lanes() + self.shape.lane_index(lane)
    }
}

fn hash_of(slab: &Slab, hasher: &FixedState, page: usize, id: NodeId) -> u64 {
    let node = slab.get(id);
    hasher.hash_one((node.vitals.parent.0, &node.tokens[..page]))
}

impl Store for Tree {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn vitals(&self, node: NodeId) -> &Vitals {
        &self.slab.get(node).vitals
    }

    fn vitals_mut(&mut self, node: NodeId) -> &mut Vitals {
        &mut self.slab.get_mut(node).vitals
    }

    fn child(&self, parent: NodeId, after: Option<NodeId>) -> Option<NodeId> {
        match after {
            None => self.slab.get(parent).links.first_child.some(),
            Some(after) => self.slab.get(after).links.next.some(),
        }
    }

    fn enqueue(&mut self, class: VictimClass, lane: Lane, entry: Entry) {
        self.queue_mut(class, lane).insert(entry);
    }

    fn unqueue(&mut self, class: VictimClass, lane: Lane, entry: Entry) {
        self.queue_mut(class, lane).remove(&entry);
    }

    fn add_need(&mut self, need: Need) {
        self.needs.insert(need);
    }

    fn remove_need(&mut self, need: Need) {
        self.needs.remove(&need);
    }

    fn least_need(&mut self, parent: NodeId, lane: NeedLane) -> Option<u32> {
        let least = Need { parent, lane, from: 0, child: NodeId(0) };
        let found = self.needs.range(least..).next()?;
        (found.parent == parent && found.lane == lane).then_some(found.from)
    }

    fn worth_changed(&mut self, was: u32, now: u32) {
        self.tally.matchable_pages = self.tally.matchable_pages + u64::from(now) - u64::from(was);
    }

    fn uncached(&mut self, pool: crate::unit::PoolId) {
        self.tally.remove_cached(pool, 1);
    }
}
