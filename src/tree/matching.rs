//! How far a prompt can be served.

use super::lock::{Lock, User};
use super::namespace::Namespace;
use super::node::{NodeId, Vitals};
use super::ordinals::Ordinals;
use super::policy::Occasion;
use super::shape::PerWindow;
use super::upkeep::{requeue, settle, unhook};
use super::{Counters, Tree};
use crate::unit::{Pages, Token, Tokens, VirtId};

/// How far a prompt can be served from the cache. Never covers the prompt's last token.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Match {
    /// Pages that every pool can serve.
    pub pages: Pages,
    /// Pages that full pages alone could serve.
    pub full_pages: Pages,
    /// Ids of the `pages` usable pages, from the root on.
    pub virts: Vec<VirtId>,
    /// State at the boundary by state ordinal, if the model has state and `pages` is not 0.
    pub states: Option<Vec<VirtId>>,
}

/// Where a match ended.
struct Found {
    /// Node and index within it of the last serviceable boundary; the root's end if there is none.
    at: (NodeId, u32),
    full_pages: u32,
}

/// Which uses of a path to record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Uses {
    /// The path and its trailing windows.
    Pages,
    /// And the state at its end.
    PagesAndState,
}

impl Tree {
    /// What [`open`](Tree::open) would find, touching nothing. O(tokens).
    #[must_use]
    pub fn peek(&self, namespace: &Namespace, tokens: &[Token]) -> Match {
        match self.roots.get(namespace) {
            Some(&root) => self.match_of(&self.find(root, tokens)),
            None => Match::default(),
        }
    }

    /// Finds the longest prefix of `tokens` that every pool can serve, marks what it uses as used now, and locks it:
    /// the full path, the trailing windows, the state. O(tokens).
    pub fn open(&mut self, namespace: &Namespace, tokens: &[Token]) -> (Lock, Match) {
        let (lock, matched) = self.lock_match(namespace, tokens);
        self.mark_used(&lock);
        (lock, matched)
    }

    /// As [`open`](Tree::open), but marks nothing: for a use that may be refused yet, and then changes nobody's
    /// recency. O(tokens).
    pub fn lock_match(&mut self, namespace: &Namespace, tokens: &[Token]) -> (Lock, Match) {
        self.version += 1;
        let root = self.root(namespace);
        let found = self.find(root, tokens);
        let matched = self.match_of(&found);
        let (node, index) = found.at;
        let node =
            if index < self.slab.get(node).vitals.len { self.split(node, index) } else { node };
        (self.lock_end(node).for_prompt(Tokens(tokens.len() as u32)), matched)
    }

    /// Marks what a match locked as used now. O(nodes of the path).
    pub fn mark_used(&mut self, lock: &Lock) {
        self.version += 1;
        let by = (lock.user(), lock.prompt());
        self.touch(lock.node(), Uses::PagesAndState, Occasion::Match, by);
    }

    fn root(&mut self, namespace: &Namespace) -> NodeId {
        if let Some(&root) = self.roots.get(namespace) {
            return root;
        }
        let vitals = Vitals::root(&self.shape);
        let root = self.slab.add(&self.shape, vitals);
        self.slab.get_mut(root).namespace = Some(namespace.clone());
        self.roots.insert(namespace.clone(), root);
        root
    }

    fn find(&self, root: NodeId, tokens: &[Token]) -> Found {
        // At least one token is left to compute.
        let pages = tokens.len().saturating_sub(1) / self.page_tokens();
        let mut rest = &tokens[..pages * self.page_tokens()];
        let mut found = Found { at: (root, 0), full_pages: 0 };
        let mut node = root;
        while let Some(child) = self.child_of(node, rest) {
            let vitals = &self.slab.get(child).vitals;
            let common = self.common_pages(child, rest);
            found.full_pages += common;
            let usable = if common == vitals.len {
                vitals.last_serviceable
            } else {
                let before = self.slab.get(node).vitals.runs();
                vitals.serviceable_upto(&self.shape, &before, common)
            };
            if usable > 0 {
                found.at = (child, usable);
            }
            if common < vitals.len {
                break;
            }
            rest = &rest[common as usize * self.page_tokens()..];
            node = child;
        }
        found
    }

    fn match_of(&self, found: &Found) -> Match {
        let (mut node, mut index) = found.at;
        let boundary = self.slab.get(node).vitals.start + index;
        let states = (boundary > 0 && !self.shape.states.is_empty())
            .then(|| self.slab.get(node).states.clone());
        // From the boundary up, each edge's pages backwards, turned round at the end.
        let mut virts = Vec::with_capacity(boundary as usize);
        loop {
            let found = self.slab.get(node);
            virts.extend(found.virts[..index as usize].iter().rev());
            match found.vitals.parent.some() {
                Some(parent) => (node, index) = (parent, self.slab.get(parent).vitals.len),
                None => break,
            }
        }
        virts.reverse();
        Match { pages: Pages(boundary), full_pages: Pages(found.full_pages), virts, states }
    }

    /// Makes the boundary at `index` of an edge a node end, of the node returned. `node` stays the lower part. Nobody's
    /// recency changes.
    pub(super) fn split(&mut self, node: NodeId, index: u32) -> NodeId {
        self.unlink(node);
        unhook(self, node);
        let lower = self.slab.get(node);
        let (vitals, page) = (&lower.vitals, self.shape.page_tokens as usize);
        let middle = vitals.start + index;
        let mut upper = Vitals::new(&self.shape, vitals.parent, vitals.start, index, vitals.used);
        upper.full_locks = vitals.full_locks;
        upper.held = vitals.held;
        let upper = self.slab.add(&self.shape, upper);
        let lower = self.slab.get_mut(node);
        lower.vitals.parent = upper;
        lower.vitals.start = middle;
        lower.vitals.len -= index;
        let tokens = lower.tokens.split_off(index as usize * page);
        let virts = lower.virts.split_off(index as usize);
        let tokens = std::mem::replace(&mut lower.tokens, tokens);
        let virts = std::mem::replace(&mut lower.virts, virts);
        let mut windows = Vec::new();
        for (window, locks) in lower.vitals.windows.iter_mut().zip(&lower.window_locks) {
            let below = window.present.split_off(index);
            let above = std::mem::replace(&mut window.present, below);
            let locks: Vec<_> = locks.iter().copied().filter(|lock| lock.0 < middle).collect();
            windows.push((above, locks));
        }
        let made = self.slab.get_mut(upper);
        (made.tokens, made.virts) = (tokens, virts);
        for (window, (present, locks)) in windows.into_iter().enumerate() {
            made.vitals.windows[window].present = present;
            made.vitals.windows[window].locked_from = locks.first().map_or(u32::MAX, |lock| lock.0);
            made.window_locks[window] = locks;
        }
        self.link(upper);
        self.link(node);
        self.slab.get_mut(upper).vitals.children = 1;
        settle(self, upper);
        settle(self, node);
        upper
    }

    /// Marks the path to `node`'s end as used now, by `user`, whose conversation is `length` long.
    pub(super) fn touch(
        &mut self,
        node: NodeId,
        uses: Uses,
        occasion: Occasion,
        (user, length): (&User, Tokens),
    ) {
        self.clock += 1;
        let now = self.clock;
        let starts: PerWindow = self.shape.window_starts(self.end(node));
        let windows = self.shape.windows.len();
        let first = starts[..windows].iter().min().copied().unwrap_or(u32::MAX);
        if uses == Uses::PagesAndState {
            self.slab.get_mut(node).vitals.used.state.touch(now, occasion);
        }
        let mut next = Some(node);
        while let Some(node) = next {
            let vitals = &mut self.slab.get_mut(node).vitals;
            vitals.used.full.touch(now, occasion);
            vitals.used.priority = vitals.used.priority.max(user.priority);
            vitals.used.conversation = length;
            if first < vitals.end() {
                vitals.used.window.touch(now, occasion);
            }
            next = vitals.parent.some();
            requeue(self, node);
        }
    }

    /// What the tree holds, by a count of its nodes. O(pages).
    #[must_use]
    pub fn recount(&self) -> Counters {
        let mut counters = Counters::new(&self.shape);
        for (_, node) in self.slab.live() {
            let vitals = &node.vitals;
            counters.add_cached(self.shape.full, vitals.len);
            if vitals.full_locks > 0 {
                counters.locked_changed(self.shape.full, 0, vitals.len);
            }
            for (window, &pool) in self.shape.windows.iter().enumerate() {
                let present = vitals.windows[window].present.iter().count() as u32;
                counters.add_cached(pool, present);
                counters.locked_changed(pool, 0, vitals.locked_window_pages(window));
            }
            for (state, &pool) in self.shape.states.iter().enumerate() {
                let present = u32::from(vitals.states.contains(state));
                counters.add_cached(pool, present);
                counters.locked_changed(pool, 0, if vitals.state_locks > 0 { present } else { 0 });
            }
        }
        counters.matchable_pages = self.matchable_from_nodes();
        counters
    }

    /// State ordinals without a checkpoint at the boundary that lies `tokens` (whole pages) past the lock's: those for
    /// which a published checkpoint would be kept. O(tokens).
    #[must_use]
    pub fn missing_states(&self, lock: &Lock, tokens: &[Token]) -> Ordinals {
        let all = self.shape.all_states();
        let mut rest = &tokens[..tokens.len() / self.page_tokens() * self.page_tokens()];
        let mut node = lock.node();
        while !rest.is_empty() {
            let Some(child) = self.child_of(node, rest) else { return all };
            let common = self.common_pages(child, rest);
            if common < self.slab.get(child).vitals.len {
                return all;
            }
            rest = &rest[common as usize * self.page_tokens()..];
            node = child;
        }
        if self.slab.get(node).vitals.is_root() {
            return Ordinals::NONE;
        }
        all.without(self.slab.get(node).vitals.states)
    }
}
