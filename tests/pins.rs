//! Pinned prefixes in the tree: counted apart, kept from every plan, and nobody's lock.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod small_random;

use kvtide_core::chain::{Chain, Grow, PoolKind, PoolSpec};
use kvtide_core::demand::Demand;
use kvtide_core::fit::Geometry;
use kvtide_core::tree::{
    Namespace, Ordinals, OwnPage, Pin, PlanRequest, PolicyKind, Prefer, Quota, Tree, TreeSettings,
};
use kvtide_core::unit::{Bytes, Pages, PerPool, PoolId, Token, Tokens, VirtId};
use small_random::Random;
use std::collections::BTreeSet;

const WINDOW: u32 = 3;
const FULL: PoolId = PoolId(0);

struct Rig {
    chain: Chain,
    tree: Tree,
    next: u32,
    pins: Vec<(Vec<Token>, Pin)>,
}

impl Rig {
    /// Full, window and state pools, a token a page.
    fn new() -> Self {
        let spec = |name: &str, kind, grow| PoolSpec {
            name: name.into(),
            kind,
            grow,
            page_bytes: Bytes(64),
            pages_max: None,
        };
        let pools = vec![
            spec("full", PoolKind::Full, Grow::Up),
            spec("window", PoolKind::Window { window: Tokens(WINDOW) }, Grow::Float),
            spec("state", PoolKind::State, Grow::Down),
        ];
        let chain = Chain::new(Bytes(64 * 4096), Tokens(1), None, pools).unwrap();
        let tree =
            Tree::new(&chain, TreeSettings { policy: PolicyKind::Lru, ..Default::default() });
        Rig { chain, tree, next: 0, pins: Vec::new() }
    }

    fn virt(&mut self) -> VirtId {
        self.next += 1;
        VirtId(self.next)
    }

    fn insert(&mut self, tokens: &[Token]) {
        let prompt: Vec<Token> = tokens.iter().copied().chain([u32::MAX]).collect();
        let (lock, found) = self.tree.open(&Namespace::default(), &prompt);
        let rest = &tokens[found.pages.index()..];
        let windows = Ordinals::first(1);
        let own: Vec<OwnPage> =
            rest.iter().map(|_| OwnPage { virt: self.virt(), windows }).collect();
        let state = self.virt();
        let published = self.tree.publish(lock, rest, &own, Some(&[state]));
        self.tree.unlock(published.lock);
    }

    /// How much of `tokens` could be pinned: all whole pages, the last one too.
    fn cached(&self, tokens: &[Token]) -> u32 {
        let longer: Vec<Token> = tokens.iter().copied().chain([u32::MAX]).collect();
        self.tree.peek(&Namespace::default(), &longer).pages.0
    }

    fn pin(&mut self, tokens: &[Token]) {
        let expected = self.cached(tokens);
        let (pin, matched) = self.tree.pin(&Namespace::default(), tokens);
        assert_eq!(matched.pages, Pages(expected));
        self.pins.push((tokens[..expected as usize].to_vec(), pin));
    }

    /// What pins keep, by a recount of the prefixes that were pinned.
    fn pinned(&self) -> PerPool<Pages> {
        let mut pages = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
        for (prefix, _) in &self.pins {
            let len = prefix.len();
            pages[0].extend((1..=len).map(|end| &prefix[..end]));
            let window = len.saturating_sub(WINDOW as usize);
            pages[1].extend((window + 1..=len).map(|end| &prefix[..end]));
            pages[2].extend((len > 0).then_some(&prefix[..]));
        }
        let mut pinned = PerPool::default();
        for (pool, pages) in (0..).map(PoolId).zip(pages) {
            pinned[pool] = Pages(pages.len() as u32);
        }
        pinned
    }

    fn check(&self) {
        self.tree.check().unwrap();
        let counters = self.tree.counters();
        assert_eq!(counters.pinned, self.pinned());
        assert_eq!(counters.locked, PerPool::default(), "I9: pins are no locks");
        for (prefix, _) in &self.pins {
            assert_eq!(self.cached(prefix) as usize, prefix.len(), "a pinned prefix is served");
        }
    }

    /// Evicts as much as there is to evict; or `pages` full pages.
    fn evict(&mut self, pages: u32) {
        let mut geometry = Geometry::empty(&self.chain);
        for pool in self.chain.pool_ids() {
            geometry.pool_mut(pool).live = self.tree.counters().cached[pool];
        }
        let ids = geometry.pool_mut(FULL).ids.0;
        let wanted = ids - self.tree.counters().cached[FULL].0 + pages;
        let demand = Demand::default().with(FULL, Pages(wanted)).unwrap();
        let (prefer, quota) = (Prefer::Full, Quota::None);
        let request = PlanRequest { geometry, demand, pinned: None, prefer, quota };
        if let Ok(plan) = self.tree.plan(&request) {
            let detached = self.tree.detach(plan).unwrap();
            self.check();
            self.tree.evict(detached);
        }
    }
}

/// Branching prefixes pinned and unpinned at random between insertions, evictions and flushes: what is pinned stays, is
/// served, and is counted once in each pool; in the end nothing stays.
#[test]
fn pinned_prefixes_outlive_everything_and_are_counted_apart() {
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let mut rig = Rig::new();
        for _ in 0..60 {
            let length = 1 + random.below(9);
            let tokens: Vec<Token> = (0..length).map(|_| random.below(2)).collect();
            match random.below(8) {
                0..=2 => rig.insert(&tokens),
                3 | 4 => rig.pin(&tokens),
                5 if !rig.pins.is_empty() => {
                    let index = random.below(rig.pins.len() as u32) as usize;
                    let (_, pin) = rig.pins.swap_remove(index);
                    rig.tree.unpin(pin);
                }
                6 => rig.evict(1 + random.below(12)),
                7 => drop(rig.tree.flush()),
                _ => {}
            }
            rig.check();
            assert_eq!(rig.tree.open_pins(), rig.pins.len() as u64);
        }
        for (_, pin) in std::mem::take(&mut rig.pins) {
            rig.tree.unpin(pin);
        }
        rig.tree.flush();
        rig.check();
        assert_eq!(rig.tree.counters().cached, PerPool::default());
    }
}
