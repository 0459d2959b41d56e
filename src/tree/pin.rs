//! Pinned prefixes: kept from eviction though no sequence is open on them.

use super::Tree;
use super::hold::HoldKind;
use super::lock::Lock;
use super::matching::Match;
use super::namespace::Namespace;
use crate::unit::Token;

/// A hold on a prefix that outlives sequences. Given back by [`Tree::unpin`]; not `Clone`.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a pin keeps its pages from eviction until it is unpinned"]
pub struct Pin(Lock);

impl Tree {
    /// Keeps the longest serviceable prefix of `tokens` from eviction: its full path, trailing windows, and state.
    ///
    /// `tokens` are no prompt: the last page counts too. Nobody's recency changes; what is pinned counts in
    /// [`Counters::pinned`](super::Counters::pinned), apart from locks. O(tokens).
    pub fn pin(&mut self, namespace: &Namespace, tokens: &[Token]) -> (Pin, Match) {
        self.version += 1;
        let root = self.root(namespace);
        let found = self.find(root, tokens, tokens.len() / self.page_tokens());
        let matched = self.match_of(&found);
        let node = self.split_at(found.at);
        (Pin(self.hold_end(node, HoldKind::Pin)), matched)
    }

    /// Gives a pin back. O(nodes of the path).
    pub fn unpin(&mut self, pin: Pin) {
        self.unlock(pin.0);
    }

    /// Pins that were given out and not yet given back.
    #[must_use]
    pub fn open_pins(&self) -> u64 {
        self.open_pins
    }
}
