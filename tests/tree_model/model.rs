//! A list of cached pages, scanned for every answer.

use kvtide_core::chain::Chain;
use kvtide_core::tree::{Counters, Match, Namespace};
use kvtide_core::unit::{Pages, PoolId, Token, VirtId};
use std::collections::BTreeMap;

pub(crate) type Key = (Namespace, Vec<Token>);

/// One cached page, under the tokens from the root to its end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Page {
    pub(crate) virt: VirtId,
    pub(crate) windows: Vec<bool>,
    pub(crate) states: Vec<Option<VirtId>>,
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
            counters.held[pool].0 += u32::from(locked);
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
