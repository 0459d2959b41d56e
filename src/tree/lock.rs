//! Holds on a path: the full path to the root, the trailing windows, the state.

use super::Tree;
use super::node::NodeId;
use super::session::SessionId;
use super::shape::PerWindow;
use super::upkeep::requeue;
use crate::unit::{Pages, Tokens};

/// A hold on one boundary: its full path, what its windows still need of that, and its state. Given back by
/// [`Tree::unlock`] or spent by [`Tree::publish`]; not `Clone`.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a lock keeps its pages from eviction until it is unlocked"]
pub struct Lock {
    node: NodeId,
    boundary: u32,
    /// First position that each window still needs.
    starts: PerWindow,
    holds_state: bool,
    user: User,
    /// Length of the prompt that was matched; 0 if none was.
    prompt: Tokens,
}

/// Whom a hold is for, as far as the eviction policy asks. What the hold publishes or matches is used by them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct User {
    /// Higher is kept longer, under [`PolicyKind::Priority`](super::PolicyKind::Priority).
    pub priority: i64,
    /// Holds what is published last under it in preference to what no session holds.
    pub session: Option<SessionId>,
}

impl Lock {
    /// Pages from the root to the boundary.
    #[must_use]
    pub fn boundary(&self) -> Pages {
        Pages(self.boundary)
    }

    /// First page that the window of an ordinal still holds.
    #[must_use]
    pub fn window_start(&self, window: usize) -> Pages {
        Pages(self.starts.get(window).copied().unwrap_or(self.boundary))
    }

    /// Whom it is for.
    #[must_use]
    pub fn user(&self) -> &User {
        &self.user
    }

    /// The same hold, for `user`.
    pub fn used_by(self, user: User) -> Self {
        Lock { user, ..self }
    }

    pub(super) fn for_prompt(self, prompt: Tokens) -> Self {
        Lock { prompt, ..self }
    }

    pub(super) fn prompt(&self) -> Tokens {
        self.prompt
    }

    pub(super) fn node(&self) -> NodeId {
        self.node
    }
}

impl Tree {
    /// A second hold on the same place, as it is now. O(nodes of the path).
    pub fn lock_again(&mut self, lock: &Lock) -> Lock {
        self.version += 1;
        self.hold(lock.node, lock.starts, lock.holds_state).used_by(lock.user.clone())
    }

    /// Moves `held`, taken before `lock` went on along the same path, to where that is now. It holds every window page
    /// that it held before and all behind those: a step may still read what was published under it. O(nodes of the
    /// path).
    pub fn lock_on(&mut self, held: Lock, lock: &Lock) -> Lock {
        self.version += 1;
        let mut starts = lock.starts;
        for (start, held) in starts.iter_mut().zip(held.starts) {
            *start = held.min(*start);
        }
        let moved = self.hold(lock.node, starts, lock.holds_state).used_by(held.user.clone());
        self.unlock(held);
        moved
    }

    /// Moves a hold back to an earlier `boundary` of its path, for a sequence of `computed` tokens: a boundary inside an
    /// edge splits it. Window pages that this sequence looks back on are held again. O(pages of the windows + nodes of
    /// the path).
    ///
    /// # Errors
    /// The lock as it was, and the first position of a window page that is needed and not there.
    pub fn lock_back(
        &mut self,
        lock: Lock,
        boundary: Pages,
        computed: Tokens,
    ) -> Result<Lock, (Lock, Pages)> {
        let boundary = boundary.0.min(lock.boundary);
        let page = Tokens(self.shape.page_tokens);
        let mut starts = lock.starts;
        for (start, &window) in starts.iter_mut().zip(&self.shape.window_tokens) {
            let needed = Tokens(computed.0.saturating_sub(window)).pages_down(page).0;
            *start = needed.min(*start).min(boundary);
        }
        if let Some(missing) = self.missing_window(lock.node, &starts, boundary) {
            return Err((lock, Pages(missing)));
        }
        self.version += 1;
        let mut node = lock.node;
        while let Some(parent) = self.slab.get(node).vitals.parent.some() {
            if self.slab.get(node).vitals.start < boundary {
                break;
            }
            node = parent;
        }
        let vitals = &self.slab.get(node).vitals;
        let index = boundary - vitals.start.min(boundary);
        if index < vitals.len {
            node = self.split(node, index);
        }
        let holds_state = lock.holds_state && node == lock.node;
        let moved = self.hold(node, starts, holds_state).used_by(lock.user.clone());
        self.unlock(lock);
        Ok(moved)
    }

    /// First position between `starts` and `boundary` on the path to `node` that lacks a window page.
    fn missing_window(&self, node: NodeId, starts: &PerWindow, boundary: u32) -> Option<u32> {
        let mut missing = None;
        let mut next = Some(node);
        while let Some(node) = next {
            let vitals = &self.slab.get(node).vitals;
            for (window, &start) in vitals.windows.iter().zip(starts) {
                let mut needed = start.max(vitals.start)..vitals.end().min(boundary);
                let gap = needed.find(|position| !window.present.contains(position - vitals.start));
                missing = gap.or(missing);
            }
            next = vitals.parent.some();
        }
        missing
    }

    /// Gives up the part of the windows that a sequence of `computed` tokens looks back on no more. O(nodes given up).
    pub fn shed(&mut self, lock: &mut Lock, computed: Tokens) {
        self.version += 1;
        for window in 0..self.shape.windows.len() {
            let needed = Tokens(computed.0.saturating_sub(self.shape.window_tokens[window]));
            let now = needed.pages_down(Tokens(self.shape.page_tokens)).0.min(lock.boundary);
            let was = lock.starts[window];
            if now <= was {
                continue;
            }
            lock.starts[window] = now;
            let mut next = Some(lock.node);
            while let Some(node) = next.filter(|&node| self.end(node) > was) {
                self.change_window_lock(node, window, Some(was), Some(now));
                requeue(self, node);
                next = self.slab.get(node).vitals.parent.some();
            }
        }
    }

    /// Gives a hold back. O(nodes of the path).
    pub fn unlock(&mut self, lock: Lock) {
        self.version += 1;
        self.open_locks -= 1;
        let mut next = Some(lock.node);
        if lock.holds_state {
            self.change_state_locks(lock.node, |locks| locks - 1);
        }
        while let Some(node) = next {
            self.change_full_locks(node, |locks| locks - 1);
            for window in 0..self.shape.windows.len() {
                self.change_window_lock(node, window, Some(lock.starts[window]), None);
            }
            requeue(self, node);
            let vitals = &self.slab.get(node).vitals;
            if vitals.is_root() && vitals.full_locks == 0 && vitals.children == 0 {
                self.bare_roots.push(node);
            }
            next = vitals.parent.some();
        }
        self.sweep_roots();
    }

    /// Locks the boundary at a node's end.
    pub(super) fn lock_end(&mut self, node: NodeId) -> Lock {
        let vitals = &self.slab.get(node).vitals;
        let starts = self.shape.window_starts(vitals.end());
        let holds_state = !vitals.states.is_empty();
        self.hold(node, starts, holds_state)
    }

    fn hold(&mut self, end: NodeId, starts: PerWindow, holds_state: bool) -> Lock {
        self.open_locks += 1;
        if holds_state {
            self.change_state_locks(end, |locks| locks + 1);
        }
        let mut next = Some(end);
        while let Some(node) = next {
            self.change_full_locks(node, |locks| locks + 1);
            for (window, &start) in starts.iter().enumerate().take(self.shape.windows.len()) {
                self.change_window_lock(node, window, None, Some(start));
            }
            requeue(self, node);
            next = self.slab.get(node).vitals.parent.some();
        }
        let (user, prompt) = (User::default(), Tokens(0));
        Lock { node: end, boundary: self.end(end), starts, holds_state, user, prompt }
    }

    fn change_full_locks(&mut self, node: NodeId, change: impl Fn(u32) -> u32) {
        let vitals = &mut self.slab.get_mut(node).vitals;
        let was = vitals.full_locks;
        vitals.full_locks = change(was);
        let pages = |locks: u32| if locks > 0 { vitals.len } else { 0 };
        self.tally.locked_changed(self.shape.full, pages(was), pages(vitals.full_locks));
    }

    fn change_state_locks(&mut self, node: NodeId, change: impl Fn(u32) -> u32) {
        let vitals = &mut self.slab.get_mut(node).vitals;
        let was = vitals.state_locks;
        vitals.state_locks = change(was);
        for state in vitals.states.iter() {
            let slots = |locks: u32| u32::from(locks > 0);
            let pool = self.shape.states[state];
            self.tally.locked_changed(pool, slots(was), slots(vitals.state_locks));
        }
    }

    /// One lock's window starts at `now` instead of at `was`, as far as that reaches into `node`.
    fn change_window_lock(
        &mut self,
        node: NodeId,
        window: usize,
        was: Option<u32>,
        now: Option<u32>,
    ) {
        let found = self.slab.get_mut(node);
        let end = found.vitals.end();
        let locked = found.vitals.locked_window_pages(window);
        let locks = &mut found.window_locks[window];
        if let Some(was) = was.filter(|&was| was < end)
            && let Ok(at) = locks.binary_search_by_key(&was, |lock| lock.0)
        {
            locks[at].1 -= 1;
            if locks[at].1 == 0 {
                locks.remove(at);
            }
        }
        if let Some(now) = now.filter(|&now| now < end) {
            match locks.binary_search_by_key(&now, |lock| lock.0) {
                Ok(at) => locks[at].1 += 1,
                Err(at) => locks.insert(at, (now, 1)),
            }
        }
        found.vitals.windows[window].locked_from = locks.first().map_or(u32::MAX, |lock| lock.0);
        let now = found.vitals.locked_window_pages(window);
        self.tally.locked_changed(self.shape.windows[window], locked, now);
    }

    /// Forgets namespaces that hold nothing, unless something detached may still come back to them.
    pub(super) fn sweep_roots(&mut self) {
        if self.open_detachments > 0 {
            return;
        }
        while let Some(root) = self.bare_roots.pop() {
            self.end_bare_sessions(root);
            let node = self.slab.get(root);
            if node.vitals.children > 0 || node.vitals.full_locks > 0 {
                continue;
            }
            if let Some(namespace) = self.slab.get_mut(root).namespace.take() {
                self.roots.remove(&namespace);
                self.slab.remove(&self.shape, root);
            }
        }
    }
}
