//! Sessions: the path that each published last is given up after what no session holds.
//!
//! A hold is a preference, not a lock: within a class of victims, pages on some session's path stand behind those on
//! none, whatever the policy. It ends at a node. Eviction shortens it from its end, and what is put back lengthens it
//! again.

use super::Tree;
use super::namespace::Namespace;
use super::node::NodeId;
use super::policy::Stamp;
use super::upkeep::requeue;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Names a session within its namespace.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct SessionId(pub Arc<str>);

impl From<&str> for SessionId {
    fn from(name: &str) -> Self {
        SessionId(name.into())
    }
}

/// Which session, of whom.
type Name = (Namespace, SessionId);

/// Whose last paths are held. A session's key is the moment of its last publication.
#[derive(Debug)]
pub(super) struct Sessions {
    /// The most that are held; beyond it the one whose last publication is longest ago is not held any more.
    pub max: u32,
    by_name: HashMap<Name, Stamp, FixedState>,
    held: BTreeMap<Stamp, (Name, NodeId)>,
    by_end: BTreeSet<(NodeId, Stamp)>,
}

impl Sessions {
    pub(super) fn new(max: u32, hasher: FixedState) -> Self {
        Sessions {
            max,
            by_name: HashMap::with_hasher(hasher),
            held: BTreeMap::new(),
            by_end: BTreeSet::new(),
        }
    }

    /// Every hold: since when, and where it ends.
    pub(super) fn ends(&self) -> impl Iterator<Item = (Stamp, NodeId)> {
        self.held.iter().map(|(&since, held)| (since, held.1))
    }

    /// The holds that end at a node. O(log n + holds there).
    pub(super) fn ending_at(&self, node: NodeId) -> Vec<Stamp> {
        let there = self.by_end.range((node, 0)..=(node, Stamp::MAX));
        there.map(|&(_, since)| since).collect()
    }

    /// Where a hold ends, if it is still that session's last.
    fn end_of(&self, since: Stamp) -> Option<NodeId> {
        self.held.get(&since).map(|held| held.1)
    }

    fn set_end(&mut self, since: Stamp, end: NodeId) {
        if let Some(held) = self.held.get_mut(&since) {
            self.by_end.remove(&(held.1, since));
            held.1 = end;
            self.by_end.insert((end, since));
        }
    }

    fn insert(&mut self, name: Name, since: Stamp, end: NodeId) {
        self.by_name.insert(name.clone(), since);
        self.held.insert(since, (name, end));
        self.by_end.insert((end, since));
    }

    /// Forgets a hold; gives where it ended.
    fn remove(&mut self, since: Stamp) -> Option<NodeId> {
        let (name, end) = self.held.remove(&since)?;
        self.by_name.remove(&name);
        self.by_end.remove(&(end, since));
        Some(end)
    }
}

impl Tree {
    /// Sessions whose last path is held. O(1).
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.held.len()
    }

    /// Lets go of the path that a session holds; says whether it held any. O(nodes of the path).
    pub fn close_session(&mut self, namespace: &Namespace, session: &SessionId) -> bool {
        self.version += 1;
        let name = (namespace.clone(), session.clone());
        match self.sessions.by_name.get(&name).copied() {
            Some(since) => {
                self.forget_session(since);
                true
            }
            None => false,
        }
    }

    /// Moves a session's hold to the path that ends at `end`, published now.
    pub(super) fn hold_session(&mut self, session: &SessionId, end: NodeId) {
        let Some(namespace) = self.namespace_of(end) else { return };
        if self.slab.get(end).vitals.is_root() {
            return;
        }
        let name = (namespace, session.clone());
        self.count_session(end, |held| held + 1);
        if let Some(since) = self.sessions.by_name.get(&name).copied() {
            self.forget_session(since);
        }
        self.sessions.insert(name, self.clock, end);
        while self.sessions.held.len() > self.sessions.max as usize {
            let Some((&oldest, _)) = self.sessions.held.first_key_value() else { break };
            self.forget_session(oldest);
        }
    }

    /// The holds that end at a node which is gone from the tree end at its closest ancestor that is not.
    pub(super) fn raise_sessions(&mut self, gone: NodeId) {
        for since in self.sessions.ending_at(gone) {
            let mut to = self.slab.get(gone).vitals.parent;
            while self.slab.get(to).vitals.len == 0 && !self.slab.get(to).vitals.is_root() {
                to = self.slab.get(to).vitals.parent;
            }
            self.move_session(since, to);
        }
    }

    /// Holds that ended at a place which is back end there again, those of sessions that published since excepted.
    pub(super) fn lower_sessions(&mut self, holds: &[Stamp], to: NodeId) {
        for &since in holds {
            self.move_session(since, to);
        }
    }

    /// Holds of which nothing is left, since they end at a root, are over.
    pub(super) fn end_bare_sessions(&mut self, root: NodeId) {
        if !self.slab.get(root).vitals.is_root() {
            return;
        }
        for since in self.sessions.ending_at(root) {
            self.forget_session(since);
        }
    }

    fn move_session(&mut self, since: Stamp, to: NodeId) {
        let Some(from) = self.sessions.end_of(since).filter(|&from| from != to) else { return };
        self.count_session(to, |held| held + 1);
        self.count_session(from, |held| held - 1);
        self.sessions.set_end(since, to);
    }

    fn forget_session(&mut self, since: Stamp) {
        if let Some(end) = self.sessions.remove(since) {
            self.count_session(end, |held| held - 1);
        }
    }

    /// Changes how many sessions hold each node of a path.
    fn count_session(&mut self, end: NodeId, change: impl Fn(u32) -> u32) {
        let mut next = Some(end);
        while let Some(node) = next {
            let vitals = &mut self.slab.get_mut(node).vitals;
            vitals.held = change(vitals.held);
            next = vitals.parent.some();
            requeue(self, node);
        }
    }

    fn namespace_of(&self, node: NodeId) -> Option<Namespace> {
        let mut node = self.slab.get(node);
        while let Some(parent) = node.vitals.parent.some() {
            node = self.slab.get(parent);
        }
        node.namespace.clone()
    }
}
