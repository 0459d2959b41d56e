//! A list of cached pages, scanned for every answer.

use kvtide_core::chain::Chain;
use kvtide_core::tree::{Counters, Match, Namespace, Record};
use kvtide_core::unit::{Pages, PoolId, Token, Tokens, VirtId};
use std::collections::BTreeMap;

pub(crate) type Key = (Namespace, Vec<Token>);

/// One cached page, under the tokens from the root to its end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Page {
    pub(crate) virt: VirtId,
    pub(crate) windows: Vec<bool>,
    pub(crate) states: Vec<Option<VirtId>>,
    /// Whether an edge of the tree was made to end here: use is recorded by edge.
    pub(crate) cut: bool,
    pub(crate) used: Used,
}

/// What is recorded of a page's use.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Used {
    pub(crate) full: Record,
    pub(crate) window: Record,
    pub(crate) state: Record,
    pub(crate) priority: i64,
    pub(crate) conversation: Tokens,
}

/// A use of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// A match, or else a publication.
    pub(crate) hit: bool,
    pub(crate) state: bool,
    pub(crate) priority: i64,
    pub(crate) conversation: Tokens,
}

/// What a lock holds.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) namespace: Namespace,
    pub(crate) tokens: Vec<Token>,
    pub(crate) starts: Vec<u32>,
    pub(crate) state: bool,
}

pub(crate) struct Model {
    pub(crate) chain: Chain,
    pub(crate) pages: BTreeMap<Key, Page>,
    pub(crate) held: BTreeMap<u32, Held>,
    /// Uses so far.
    pub(crate) clock: u64,
}

impl Model {
    pub(crate) fn page_tokens(&self) -> usize {
        self.chain.page_tokens().0 as usize
    }

    pub(crate) fn window_pages(&self) -> Vec<u32> {
        self.chain.windows().iter().map(|&pool| self.chain.window_pages(pool).0).collect()
    }

    pub(crate) fn page(
        &self,
        namespace: &Namespace,
        tokens: &[Token],
        boundary: u32,
    ) -> Option<&Page> {
        let tokens = tokens[..boundary as usize * self.page_tokens()].to_vec();
        self.pages.get(&(namespace.clone(), tokens))
    }

    pub(crate) fn is_serviceable(
        &self,
        namespace: &Namespace,
        tokens: &[Token],
        boundary: u32,
    ) -> bool {
        let windows = self.window_pages().iter().enumerate().all(|(window, &pages)| {
            (boundary.saturating_sub(pages) + 1..=boundary).all(|end| {
                self.page(namespace, tokens, end).is_some_and(|page| page.windows[window])
            })
        });
        let end = self.page(namespace, tokens, boundary);
        windows && end.is_some_and(|page| page.states.iter().all(Option::is_some))
    }

    pub(crate) fn find(&self, namespace: &Namespace, tokens: &[Token]) -> Match {
        let most = (tokens.len().saturating_sub(1) / self.page_tokens()) as u32;
        let full =
            (1..=most).take_while(|&end| self.page(namespace, tokens, end).is_some()).count();
        let full = full as u32;
        let usable = (1..=full).rev().find(|&end| self.is_serviceable(namespace, tokens, end));
        let usable = usable.unwrap_or(0);
        let page = |end| self.page(namespace, tokens, end).unwrap();
        let states = (usable > 0 && !self.chain.states().is_empty())
            .then(|| page(usable).states.iter().map(|state| state.unwrap()).collect());
        Match {
            pages: Pages(usable),
            full_pages: Pages(full),
            virts: (1..=usable).map(|end| page(end).virt).collect(),
            states,
        }
    }

    /// The page's key at a boundary.
    pub(crate) fn key(&self, namespace: &Namespace, tokens: &[Token], boundary: u32) -> Key {
        (namespace.clone(), tokens[..boundary as usize * self.page_tokens()].to_vec())
    }

    /// Makes an edge end at a boundary.
    pub(crate) fn cut(&mut self, namespace: &Namespace, tokens: &[Token], boundary: u32) {
        let key = self.key(namespace, tokens, boundary);
        if let Some(page) = self.pages.get_mut(&key) {
            page.cut = true;
        }
    }

    /// Whether pages follow a page.
    pub(crate) fn has_children(&self, key: &Key) -> bool {
        let len = key.1.len() + self.page_tokens();
        self.pages
            .keys()
            .any(|other| other.0 == key.0 && other.1.len() == len && other.1.starts_with(&key.1))
    }

    /// Boundary at which the edge of the page before a boundary starts; the path is cut there.
    fn edge_start(&self, namespace: &Namespace, tokens: &[Token], boundary: u32) -> u32 {
        let ends = |&end: &u32| self.page(namespace, tokens, end).is_some_and(|page| page.cut);
        (1..boundary).rev().find(ends).unwrap_or(0)
    }

    /// Records a use of the path to a boundary, at which an edge ends.
    pub(crate) fn touch(
        &mut self,
        namespace: &Namespace,
        tokens: &[Token],
        boundary: u32,
        by: Use,
    ) {
        self.clock += 1;
        let now = self.clock;
        let starts = self.window_pages().into_iter().map(|pages| boundary.saturating_sub(pages));
        // The window's first edge is used as a whole.
        let window = starts.min().map(|first| self.edge_start(namespace, tokens, first + 1));
        let state = self.edge_start(namespace, tokens, boundary);
        for end in 1..=boundary {
            let key = self.key(namespace, tokens, end);
            let used = &mut self.pages.get_mut(&key).unwrap().used;
            let touch = |record: &mut Record| {
                record.last = now;
                record.hits += u32::from(by.hit);
            };
            touch(&mut used.full);
            used.priority = used.priority.max(by.priority);
            used.conversation = by.conversation;
            if window.is_some_and(|window| end > window) {
                touch(&mut used.window);
            }
            if by.state && end > state {
                touch(&mut used.state);
            }
        }
    }

    /// States are new at a boundary: their record starts afresh.
    pub(crate) fn states_are_new(
        &mut self,
        namespace: &Namespace,
        tokens: &[Token],
        boundary: u32,
    ) {
        for end in self.edge_start(namespace, tokens, boundary) + 1..=boundary {
            let key = self.key(namespace, tokens, end);
            let now = self.clock;
            self.pages.get_mut(&key).unwrap().used.state =
                Record { last: now, inserted: now, hits: 0 };
        }
    }

    pub(crate) fn hold(&self, namespace: &Namespace, tokens: &[Token], boundary: u32) -> Held {
        let state = boundary > 0
            && self
                .page(namespace, tokens, boundary)
                .is_some_and(|page| page.states.iter().any(Option::is_some));
        Held {
            namespace: namespace.clone(),
            tokens: tokens[..boundary as usize * self.page_tokens()].to_vec(),
            starts: self.window_pages().iter().map(|&p| boundary.saturating_sub(p)).collect(),
            state,
        }
    }

    pub(crate) fn is_locked(&self, key: &Key, lane: Option<usize>) -> bool {
        let position = (key.1.len() / self.page_tokens()) as u32 - 1;
        self.held.values().any(|held| {
            held.namespace == key.0
                && held.tokens.starts_with(&key.1)
                && lane.is_none_or(|window| position >= held.starts[window])
        })
    }

    pub(crate) fn is_state_locked(&self, key: &Key) -> bool {
        self.held.values().any(|held| held.state && held.namespace == key.0 && held.tokens == key.1)
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters =
            Counters { page_tokens: self.chain.page_tokens(), ..Counters::default() };
        let mut count = |pool: PoolId, locked: bool| {
            counters.cached[pool].0 += 1;
            counters.locked[pool].0 += u32::from(locked);
        };
        for (key, page) in &self.pages {
            count(self.chain.full().unwrap(), self.is_locked(key, None));
            for (window, &pool) in self.chain.windows().iter().enumerate() {
                if page.windows[window] {
                    count(pool, self.is_locked(key, Some(window)));
                }
            }
            for (state, &pool) in self.chain.states().iter().enumerate() {
                if page.states[state].is_some() {
                    count(pool, self.is_state_locked(key));
                }
            }
        }
        let served: Vec<&Key> = self
            .pages
            .keys()
            .filter(|(namespace, tokens)| {
                let end = (tokens.len() / self.page_tokens()) as u32;
                self.is_serviceable(namespace, tokens, end)
            })
            .collect();
        let matchable =
            |key: &Key| served.iter().any(|end| end.0 == key.0 && end.1.starts_with(&key.1));
        counters.matchable_pages = self.pages.keys().filter(|key| matchable(key)).count() as u64;
        counters
    }

    /// Evicts one page and checks that nothing forbids it.
    pub(crate) fn evict(&mut self, pool: PoolId, virt: VirtId) -> (Key, Option<Page>) {
        let window = self.chain.windows().iter().position(|&other| other == pool);
        let state = self.chain.states().iter().position(|&other| other == pool);
        let is_it = |page: &Page| match state {
            Some(state) => page.states[state] == Some(virt),
            None => page.virt == virt,
        };
        let found = self.pages.iter().find(|(_, page)| is_it(page));
        let key = found.expect("a victim that is not cached").0.clone();
        assert!(state.is_none() || !self.is_state_locked(&key), "a locked state was taken");
        if let Some(window) = window {
            assert!(!self.is_locked(&key, Some(window)), "a locked window page was taken");
            let page = self.pages.get_mut(&key).unwrap();
            assert!(std::mem::take(&mut page.windows[window]), "a tombstone was taken");
            return (key, None);
        }
        if let Some(state) = state {
            self.pages.get_mut(&key).unwrap().states[state] = None;
            return (key, None);
        }
        assert!(!self.is_locked(&key, None), "a locked full page was taken");
        let page = self.pages.remove(&key).unwrap();
        let bare =
            page.windows.iter().all(|present| !present) && page.states.iter().all(Option::is_none);
        assert!(bare, "a full page went before what hangs on it");
        (key, Some(page))
    }

    pub(crate) fn check_closed(&self) {
        for (namespace, tokens) in self.pages.keys() {
            let parent = tokens[..tokens.len() - self.page_tokens()].to_vec();
            let whole = parent.is_empty() || self.pages.contains_key(&(namespace.clone(), parent));
            assert!(whole, "a page without the pages before it");
        }
    }
}
