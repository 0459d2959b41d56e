//! Reclaim plans on trees whose right answer is known by name.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use kvtide_core::chain::{Chain, Grow, PoolKind, PoolSpec};
use kvtide_core::demand::Demand;
use kvtide_core::fit::{Bound, Geometry};
use kvtide_core::tree::{
    Namespace, Ordinals, OwnPage, PlanRefusal, PlanRequest, Prefer, Quota, ReclaimPlan, Tree,
    TreeSettings,
};
use kvtide_core::unit::{Bytes, Pages, PoolId, Token, Tokens, VirtId};

/// A chain of one token a page and its tree; whatever is cached is all that is live.
struct Cache {
    chain: Chain,
    tree: Tree,
    held: Demand,
    next_virt: u32,
}

fn spec(name: &str, kind: PoolKind, grow: Grow, bytes: u64) -> PoolSpec {
    PoolSpec { name: name.to_owned(), kind, grow, page_bytes: Bytes(bytes), pages_max: None }
}

fn window(tokens: u32) -> PoolKind {
    PoolKind::Window { window: Tokens(tokens) }
}

impl Cache {
    fn new(total: u64, pools: Vec<PoolSpec>) -> Self {
        let chain = Chain::new(Bytes(total), Tokens(1), None, pools).unwrap();
        let tree = Tree::new(&chain, TreeSettings::default());
        Cache { chain, tree, held: Demand::default(), next_virt: 0 }
    }

    fn virt(&mut self) -> VirtId {
        self.next_virt += 1;
        VirtId(self.next_virt)
    }

    /// Caches a sequence of tokens, with a state at its end where the model has state.
    fn insert(&mut self, tokens: std::ops::Range<Token>) {
        let mut prompt: Vec<Token> = tokens.clone().collect();
        prompt.push(u32::MAX);
        let (lock, found) = self.tree.open(&Namespace::default(), &prompt);
        let rest: Vec<Token> = tokens.skip(found.pages.index()).collect();
        let windows = Ordinals::first(self.chain.windows().len());
        let own: Vec<OwnPage> =
            rest.iter().map(|_| OwnPage { virt: self.virt(), windows }).collect();
        let states: Vec<VirtId> = self.chain.states().iter().map(|_| VirtId(0)).collect();
        let states: Vec<VirtId> = states.iter().map(|_| self.virt()).collect();
        let published = self.tree.publish(lock, &rest, &own, Some(&states));
        self.tree.unlock(published.lock);
        self.tree.check().unwrap();
    }

    fn cached(&self, tokens: std::ops::Range<Token>) -> u32 {
        let mut prompt: Vec<Token> = tokens.collect();
        prompt.push(u32::MAX);
        self.tree.peek(&Namespace::default(), &prompt).pages.0
    }

    fn demand(&self, pages: &[(&str, u32)]) -> Demand {
        pages.iter().fold(Demand::default(), |demand, (name, pages)| {
            demand.with(self.chain.named(name).unwrap(), Pages(*pages)).unwrap()
        })
    }

    fn request(&self, demand: Demand) -> PlanRequest<'static> {
        let mut geometry = Geometry::empty(&self.chain);
        for pool in self.chain.pool_ids() {
            let live = self.tree.counters().cached[pool].0 + self.held.0[pool].0;
            geometry.pool_mut(pool).live = Pages(live);
        }
        let (prefer, quota) = (Prefer::Full, Quota::None);
        PlanRequest { geometry, demand, pinned: None, prefer, quota }
    }

    fn plan(&self, pages: &[(&str, u32)]) -> ReclaimPlan {
        self.tree.plan(&self.request(self.demand(pages))).unwrap()
    }

    /// Evicts a plan's victims; gives how many went, by pool's name.
    fn evict(&mut self, plan: ReclaimPlan) -> Vec<(String, u32)> {
        let evicted = plan.evicted();
        let detached = self.tree.detach(plan).unwrap();
        self.tree.evict(detached);
        self.tree.check().unwrap();
        let named = |pool: PoolId| (self.chain.pool(pool).name.clone(), evicted[pool].0);
        self.chain.pool_ids().map(named).filter(|(_, pages)| *pages > 0).collect()
    }
}

#[track_caller]
fn check_evicted(evicted: &[(String, u32)], want: &[(&str, u32)]) {
    let evicted: Vec<(&str, u32)> =
        evicted.iter().map(|(name, pages)| (name.as_str(), *pages)).collect();
    assert_eq!(evicted, want);
}

fn three_pools(total: u64, state_bytes: u64) -> Cache {
    let mut cache = Cache::new(
        total,
        vec![
            spec("state", PoolKind::State, Grow::Up, state_bytes),
            spec("swa", window(128), Grow::Float, 32),
            spec("full", PoolKind::Full, Grow::Down, 32),
        ],
    );
    cache.held = cache.demand(&[("state", 5)]);
    cache.insert(0..1);
    cache.insert(10_000..10_001);
    cache.insert(20_000..20_094);
    cache
}

#[test]
fn one_state_of_the_oldest_prefix_pays_for_four_page_pairs() {
    let mut cache = three_pools(7_808, 176);
    let plan = cache.plan(&[("full", 4), ("swa", 4)]);
    assert_eq!(plan.matchable_lost(), Tokens(1));
    check_evicted(&cache.evict(plan), &[("state", 1)]);
    assert_eq!(cache.tree.counters().matchable(), Tokens(95));
    assert_eq!([cache.cached(0..1), cache.cached(10_000..10_001)], [0, 1]);
}

#[test]
fn a_demand_beyond_everything_cached_evicts_nothing() {
    let cache = three_pools(7_808, 176);
    let demand = cache.demand(&[("full", 200), ("swa", 200)]);
    let refusal = cache.tree.plan(&cache.request(demand)).unwrap_err();
    let PlanRefusal::Exhausted { bound: Bound::Ids { .. } | Bound::Bytes { .. }, evictable } =
        refusal
    else {
        panic!("{refusal}")
    };
    assert_eq!(evictable, cache.tree.counters().cached);
}

#[test]
fn window_pages_that_no_match_needs_pay_first() {
    let mut cache = Cache::new(
        7_328,
        vec![spec("swa", window(4), Grow::Up, 128), spec("full", PoolKind::Full, Grow::Down, 32)],
    );
    cache.insert(0..30);
    cache.insert(0..45);
    let plan = cache.plan(&[("full", 5), ("swa", 5)]);
    assert_eq!(plan.matchable_lost(), Tokens(0));
    let positions: Vec<u32> = plan.victims().iter().map(|victim| victim.position.0).collect();
    assert!(positions.is_sorted(), "the farthest from the path's end go first: {positions:?}");
    let evicted = cache.evict(plan);
    assert!(evicted.iter().all(|(name, _)| name == "swa"), "{evicted:?}");
    assert_eq!(cache.cached(0..45), 45);
}

#[test]
fn a_leaf_gives_up_no_more_of_its_tail_than_is_needed() {
    let mut cache = Cache::new(33, vec![spec("full", PoolKind::Full, Grow::Up, 1)]);
    cache.insert(0..16);
    cache.insert(100..116);
    let plan = cache.plan(&[("full", 3)]);
    assert_eq!(plan.matchable_lost(), Tokens(3));
    check_evicted(&cache.evict(plan), &[("full", 3)]);
    assert_eq!([cache.cached(0..16), cache.cached(100..116)], [13, 16]);
}

#[test]
fn a_match_saves_what_it_used_and_no_more() {
    let mut cache = Cache::new(21, vec![spec("full", PoolKind::Full, Grow::Up, 1)]);
    cache.insert(0..10);
    cache.insert(100..110);
    // The first four tokens again: the six behind them stay the oldest.
    let (lock, found) = cache.tree.open(&Namespace::default(), &[0, 1, 2, 3, 77]);
    assert_eq!(found.pages, Pages(4));
    cache.tree.unlock(lock);
    let plan = cache.plan(&[("full", 8)]);
    check_evicted(&cache.evict(plan), &[("full", 8)]);
    assert_eq!([cache.cached(0..10), cache.cached(100..110)], [4, 8]);
}

#[test]
fn where_both_states_have_to_go_the_plan_costs_no_more_than_whole_leaves() {
    let mut pools = vec![
        spec("state", PoolKind::State, Grow::Up, 10),
        spec("full", PoolKind::Full, Grow::Down, 1),
    ];
    // Only states can make room for states.
    pools[0].pages_max = Some(Pages(2));
    // The sink, two states and a hundred pages.
    let mut cache = Cache::new(10 + 20 + 100, pools);
    cache.insert(0..50);
    cache.insert(0..100);
    for (states, lost) in [(1, 0), (2, 100)] {
        let plan = cache.plan(&[("state", states)]);
        assert_eq!(plan.matchable_lost(), Tokens(lost), "for {states} states");
        assert_eq!(plan.evicted()[PoolId(0)], Pages(states));
        assert_eq!(plan.evicted()[PoolId(1)], Pages(0));
    }
    // Half of the pages behind the second state, and one state: the first leaf pays for all of it.
    let plan = cache.plan(&[("state", 1), ("full", 40)]);
    assert_eq!(plan.matchable_lost(), Tokens(50));
    check_evicted(&cache.evict(plan), &[("state", 1), ("full", 40)]);
    assert_eq!(cache.cached(0..100), 50);
}

#[test]
fn feasibility_is_asked_a_few_times_for_each_victim() {
    let mut cache = Cache::new(
        2 + 4 * 4_000,
        vec![spec("full", PoolKind::Full, Grow::Up, 2), spec("swa", window(8), Grow::Down, 2)],
    );
    for leaf in 0..1_000 {
        cache.insert(leaf * 10..leaf * 10 + 4);
    }
    let plan = cache.plan(&[("full", 40), ("swa", 40)]);
    let victims = plan.victims().len() as u64;
    assert_eq!(victims, 80);
    assert!(plan.questions() <= 4 * victims, "{} questions", plan.questions());
}

#[test]
fn within_a_quota_of_the_demand_nothing_else_goes() {
    let mut cache = Cache::new(
        20 + 20 + 100,
        vec![
            spec("state", PoolKind::State, Grow::Up, 20),
            spec("full", PoolKind::Full, Grow::Down, 1),
        ],
    );
    cache.insert(0..100);
    let mut request = cache.request(cache.demand(&[("full", 10)]));
    request.quota = Quota::Demand;
    let plan = cache.tree.plan(&request).unwrap();
    // One slot covers the demand's bytes.
    check_evicted(&cache.evict(plan), &[("state", 1)]);
    let mut request = cache.request(cache.demand(&[("state", 2)]));
    request.quota = Quota::Demand;
    let refusal = cache.tree.plan(&request).unwrap_err();
    assert!(matches!(refusal, PlanRefusal::Quota { .. }), "{refusal}");
    request.quota = Quota::Bytes(Bytes(20));
    let plan = cache.tree.plan(&request).unwrap();
    check_evicted(&cache.evict(plan), &[("full", 20)]);
}

#[test]
fn a_plan_is_refused_once_the_tree_has_changed() {
    let mut cache = Cache::new(11, vec![spec("full", PoolKind::Full, Grow::Up, 1)]);
    cache.insert(0..10);
    let plan = cache.plan(&[("full", 3)]);
    let (lock, _) = cache.tree.open(&Namespace::default(), &(0..11).collect::<Vec<_>>());
    let plan = cache.tree.detach(plan).unwrap_err();
    assert_eq!(plan.victims().len(), 3);
    cache.tree.unlock(lock);
    assert_eq!(cache.cached(0..10), 10);
}

#[test]
fn detached_pages_are_matched_by_nobody_and_come_back_in_place() {
    let mut cache = Cache::new(11, vec![spec("full", PoolKind::Full, Grow::Up, 1)]);
    cache.insert(0..10);
    let before = cache.tree.fingerprint();
    let plan = cache.plan(&[("full", 3)]);
    let detached = cache.tree.detach(plan).unwrap();
    assert_eq!(cache.cached(0..10), 7);
    assert_eq!(cache.tree.attach(detached, &[]), []);
    assert_eq!(cache.cached(0..10), 10);
    assert_eq!(cache.tree.fingerprint(), before);
}

#[test]
fn a_state_published_where_a_tail_was_detached_stays_where_it_is() {
    let mut cache = Cache::new(
        5 + 5 + 10,
        vec![
            spec("state", PoolKind::State, Grow::Up, 5),
            spec("full", PoolKind::Full, Grow::Down, 1),
        ],
    );
    cache.insert(0..10);
    let mut request = cache.request(cache.demand(&[("full", 8)]));
    request.quota = Quota::Bytes(Bytes(8));
    let plan = cache.tree.plan(&request).unwrap();
    assert_eq!(plan.evicted()[cache.chain.full().unwrap()], Pages(3));
    let detached = cache.tree.detach(plan).unwrap();
    // Seven pages are left; somebody computes them and keeps the state there.
    cache.insert(0..7);
    let homeless = cache.tree.attach(detached, &[]);
    cache.tree.check().unwrap();
    assert_eq!(homeless, []);
    assert_eq!([cache.cached(0..7), cache.cached(0..10)], [7, 10]);
    assert_eq!(cache.cached(0..9), 7, "the state at seven tokens is still one of seven tokens");
}
