//! Giving computed pages to the tree.

use super::Tree;
use super::lock::{Lock, User};
use super::matching::Uses;
use super::node::{NodeId, Vitals};
use super::ordinals::Ordinals;
use super::policy::{Occasion, Record, Used};
use super::upkeep::settle;
use crate::unit::{Pages, Token, Tokens, VirtId};

/// A computed page of a sequence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OwnPage {
    /// Its id.
    pub virt: VirtId,
    /// Window ordinals whose page is bound under the id.
    pub windows: Ordinals,
}

/// What became of a published page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// The tree owns it now.
    Kept,
    /// The tree has the page already: the caller uses the tree's from now on, and frees its own afterwards (unless
    /// both have the same id, as after a fork).
    Duplicate {
        /// The tree's page.
        tree: VirtId,
        /// Window ordinals where the tree's page was a tombstone: the caller's window page is bound under the tree's
        /// id from now on.
        healed: Ordinals,
    },
}

/// What came of a publication.
#[derive(Debug)]
pub struct Published {
    /// On the new boundary: its full path, its trailing windows, and its state.
    pub lock: Lock,
    /// One for each page.
    pub fates: Vec<Fate>,
    /// State ordinals whose slot the tree owns now; the caller keeps the others.
    pub states_taken: Ordinals,
}

impl Tree {
    /// Gives the pages that follow the lock's boundary to the tree, and moves the lock to their end.
    ///
    /// `tokens` are those of `pages`, whole pages; `states`, by state ordinal, are a checkpoint at the new boundary.
    /// Pages without their tokens, and tokens without their pages, are left out, and so have no fate. All that is
    /// published counts as used now. O(tokens).
    pub fn publish(
        &mut self,
        lock: Lock,
        tokens: &[Token],
        pages: &[OwnPage],
        states: Option<&[VirtId]>,
    ) -> Published {
        self.version += 1;
        let count = pages.len().min(tokens.len() / self.page_tokens());
        let (mut tokens, mut pages) = (&tokens[..count * self.page_tokens()], &pages[..count]);
        let mut fates = Vec::with_capacity(count);
        let mut node = lock.node();
        while let Some(child) = self.child_of(node, tokens) {
            let common = self.common_pages(child, tokens);
            let (known, new) = pages.split_at(common as usize);
            self.heal(child, known, &mut fates);
            (pages, tokens) = (new, &tokens[common as usize * self.page_tokens()..]);
            if common < self.slab.get(child).vitals.len {
                node = self.split(child, common);
                break;
            }
            node = child;
        }
        if !pages.is_empty() {
            node = self.add_leaf(node, tokens, pages, lock.user());
            fates.resize(count, Fate::Kept);
        }
        let states_taken = match states {
            Some(states) if !self.slab.get(node).vitals.is_root() => self.add_states(node, states),
            _ => Ordinals::NONE,
        };
        let uses = if states.is_some() { Uses::PagesAndState } else { Uses::Pages };
        let length = Pages(self.end(node)).tokens(Tokens(self.shape.page_tokens));
        self.touch(node, uses, Occasion::Publication, (lock.user(), length));
        if let Some(session) = &lock.user().session {
            self.hold_session(session, node);
        }
        let moved = self.lock_end(node).used_by(lock.user().clone());
        self.unlock(lock);
        Published { lock: moved, fates, states_taken }
    }

    /// Takes over window pages where the edge's are missing.
    fn heal(&mut self, node: NodeId, pages: &[OwnPage], fates: &mut Vec<Fate>) {
        let mut healed_any = false;
        let windows = self.shape.windows.len();
        for (index, page) in (0..).zip(pages) {
            let tree = self.slab.get(node).virts[index as usize];
            let mut healed = Ordinals::NONE;
            for window in page.windows.iter().take_while(|&window| window < windows) {
                if self.in_flight.contains(&(window as u8, tree))
                    || !self.add_window(node, window, index)
                {
                    continue;
                }
                healed.insert(window);
                healed_any = true;
            }
            fates.push(Fate::Duplicate { tree, healed });
        }
        if healed_any {
            settle(self, node);
        }
    }

    /// Notes that a window page is there; says whether it was missing. Leaves the derived numbers to the caller.
    pub(super) fn add_window(&mut self, node: NodeId, window: usize, index: u32) -> bool {
        let vitals = &mut self.slab.get_mut(node).vitals;
        let position = vitals.start + index;
        let kept = &mut vitals.windows[window];
        if kept.present.contains(index) {
            return false;
        }
        kept.present.insert(index);
        let pool = self.shape.windows[window];
        self.tally.add_cached(pool, 1);
        self.tally.locked_changed(pool, 0, u32::from(position >= kept.locked_from));
        true
    }

    fn add_leaf(
        &mut self,
        parent: NodeId,
        tokens: &[Token],
        pages: &[OwnPage],
        user: &User,
    ) -> NodeId {
        let start = self.end(parent);
        let len = pages.len() as u32;
        let used = Used::new(self.clock, user);
        let vitals = Vitals::new(&self.shape, parent, start, len, used);
        let node = self.slab.add(&self.shape, vitals);
        let made = self.slab.get_mut(node);
        made.tokens = tokens.to_vec();
        made.virts = pages.iter().map(|page| page.virt).collect();
        self.tally.add_cached(self.shape.full, len);
        for (index, page) in (0..).zip(pages) {
            for window in 0..self.shape.windows.len() {
                if page.windows.contains(window) {
                    self.add_window(node, window, index);
                }
            }
        }
        self.adopt(node);
        node
    }

    /// Links a complete node under its parent and brings all numbers up to date.
    pub(super) fn adopt(&mut self, node: NodeId) {
        self.link(node);
        let parent = self.slab.get(node).vitals.parent;
        self.slab.get_mut(parent).vitals.children += 1;
        settle(self, node);
        settle(self, parent);
    }

    /// Puts states where none are; says which. Brings all numbers up to date.
    pub(super) fn add_states(&mut self, node: NodeId, states: &[VirtId]) -> Ordinals {
        let mut taken = Ordinals::NONE;
        let now = self.clock;
        let found = self.slab.get_mut(node);
        if found.vitals.states.is_empty() {
            found.vitals.used.state = Record::new(now);
        }
        for (state, &virt) in states.iter().enumerate().take(self.shape.states.len()) {
            if found.vitals.states.contains(state) {
                continue;
            }
            found.vitals.states.insert(state);
            found.states[state] = virt;
            taken.insert(state);
            let pool = self.shape.states[state];
            self.tally.add_cached(pool, 1);
            self.tally.locked_changed(pool, 0, u32::from(found.vitals.state_locks > 0));
        }
        if !taken.is_empty() {
            settle(self, node);
        }
        taken
    }
}
