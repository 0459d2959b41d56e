//! The radix tree against a list of cached pages: one entry for every cached prefix of whole pages, scanned. Matches,
//! counters, locks and victims agree, under every policy. `KVTIDE_SEEDS=n` so many seeds, `KVTIDE_STEPS=n` as many
//! operations of each, `KVTIDE_SEED=n` starts at that one.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod model;
mod victims;

use kvtide_core::chain::{Chain, Grow, PoolKind, PoolSpec};
use kvtide_core::demand::Demand;
use kvtide_core::fit::Geometry;
use kvtide_core::tree::{
    Detached, Fate, Lock, Namespace, Ordinals, OwnPage, PlanRequest, PolicyKind, Prefer, Quota,
    Record, Tree, TreeSettings, User,
};
use kvtide_core::unit::{Bytes, Pages, PerPool, PoolId, Token, Tokens, VirtId};
use model::{Held, Key, Model, Page, Use, Used};
use std::collections::BTreeMap;

/// A seeded generator (splitmix64), so that a failing seed can be run again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u32) -> u32 {
        (self.next() % u64::from(bound)) as u32
    }

    fn one_in(&mut self, bound: u32) -> bool {
        self.below(bound) == 0
    }
}

/// One sequence: its tokens so far, whole pages, all published.
struct Sequence {
    id: u32,
    namespace: Namespace,
    tokens: Vec<Token>,
    lock: Lock,
    priority: i64,
}

/// A victim's place, and the page itself if it is a full page, with whether an edge started there.
type Taken = (PoolId, VirtId, Key, Option<(Page, bool)>);

/// Seeds run, and operations of each, unless `KVTIDE_SEEDS` and `KVTIDE_STEPS` say otherwise.
const SEEDS: u64 = 700;
const STEPS: u64 = 200;

/// How often the interesting things happened.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    matched: u32,
    healed: u32,
    refused: u32,
    victims: u32,
    attached: u32,
    homeless: u32,
    lost: u32,
}

struct Run {
    seen: Seen,
    random: Random,
    tree: Tree,
    settings: TreeSettings,
    model: Model,
    sequences: Vec<Sequence>,
    detached: Option<(Detached, Vec<Taken>)>,
    next_virt: u32,
    next_id: u32,
}

fn chain(page_tokens: u32, windows: &[u32], states: usize) -> Chain {
    let pool = |name: String, kind, grow, bytes| PoolSpec {
        name,
        kind,
        grow,
        page_bytes: Bytes(bytes),
        pages_max: None,
    };
    let mut pools = vec![pool("full".to_owned(), PoolKind::Full, Grow::Up, 3)];
    for (index, &window) in windows.iter().enumerate() {
        let kind = PoolKind::Window { window: Tokens(window) };
        pools.push(pool(format!("window{index}"), kind, Grow::Float, 2 + index as u64));
    }
    for index in 0..states {
        let grow = if index == 0 { Grow::Down } else { Grow::Float };
        pools.push(pool(format!("state{index}"), PoolKind::State, grow, 7));
    }
    Chain::new(Bytes(400), Tokens(page_tokens), None, pools).unwrap()
}

const POLICIES: [PolicyKind; 8] = [
    PolicyKind::Lru,
    PolicyKind::Lfu,
    PolicyKind::Fifo,
    PolicyKind::Mru,
    PolicyKind::Filo,
    PolicyKind::Priority,
    PolicyKind::Slru,
    PolicyKind::Tlru,
];

fn settings(random: &mut Random) -> TreeSettings {
    TreeSettings {
        policy: POLICIES[random.below(8) as usize],
        slru_protected_hits: 1 + random.below(3),
        tlru_latency: Tokens(random.below(40)),
        tlru_next_prompt: Tokens(random.below(20)),
        ..TreeSettings::default()
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let page_tokens = [1, 4, 16, 128][random.below(4) as usize];
        let settings = settings(&mut random);
        let windows: Vec<u32> =
            (0..random.below(3)).map(|_| 1 + random.below(4 * page_tokens)).collect();
        let chain = chain(page_tokens, &windows, random.below(3) as usize);
        Run {
            seen: Seen::default(),
            random,
            tree: Tree::new(&chain, settings),
            settings,
            model: Model { chain, pages: BTreeMap::new(), held: BTreeMap::new(), clock: 0 },
            sequences: Vec::new(),
            detached: None,
            next_virt: 0,
            next_id: 0,
        }
    }

    fn namespace(&mut self) -> Namespace {
        let part = |draw: u32| match draw {
            0 => Some("".into()),
            1 => Some("a".into()),
            _ => None,
        };
        let (salt, adapter) = (self.random.below(12), self.random.below(24));
        Namespace { salt: part(salt), adapter: part(adapter) }
    }

    /// Pages that often start alike, and sometimes differ in their last token only.
    fn pages(&mut self, count: u32) -> Vec<Token> {
        let page = self.model.page_tokens();
        let mut tokens = Vec::new();
        for _ in 0..count {
            let kind = self.random.below(3);
            tokens.extend(std::iter::repeat_n(7, page - 1));
            tokens.push(kind / 2);
        }
        tokens
    }

    fn virt(&mut self) -> VirtId {
        self.next_virt += 1;
        VirtId(self.next_virt)
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..4 => self.open(),
            4..9 => self.publish(),
            9..11 => self.shed(),
            11..15 => self.unlock(),
            15 => self.lock_again(),
            16..19 => self.reclaim(),
            _ if self.random.one_in(4) => self.flush(),
            _ => self.peek(),
        }
        self.tree.check().unwrap();
        let counters = self.model.counters();
        assert_eq!(self.tree.counters(), counters, "the tree's counters, the model's");
        assert_eq!(self.tree.recount(), counters);
        assert_eq!(self.tree.open_locks(), self.model.held.len() as u64);
        self.model.check_closed();
    }

    fn peek(&mut self) {
        let namespace = self.namespace();
        let count = self.random.below(9);
        let mut tokens = self.pages(count);
        tokens.truncate(tokens.len().saturating_sub(self.random.below(3) as usize));
        let before = self.tree.fingerprint();
        let found = self.tree.peek(&namespace, &tokens);
        assert_eq!(found, self.model.find(&namespace, &tokens));
        assert_eq!(self.tree.fingerprint(), before, "peeking touched something");
    }

    fn open(&mut self) {
        let namespace = self.namespace();
        let count = self.random.below(9);
        let mut tokens = self.pages(count);
        if self.random.one_in(2) {
            tokens.push(1);
        }
        let priority = i64::from(self.random.below(3)) - 1;
        let (lock, found) = self.tree.lock_match(&namespace, &tokens);
        let lock = lock.used_by(User { priority, ..User::default() });
        self.tree.mark_used(&lock);
        assert_eq!(found, self.model.find(&namespace, &tokens));
        assert_eq!(lock.boundary(), found.pages);
        self.seen.matched += found.pages.0;
        self.model.cut(&namespace, &tokens, found.pages.0);
        let conversation = Tokens(tokens.len() as u32);
        let by = Use { hit: true, state: true, priority, conversation };
        self.model.touch(&namespace, &tokens, found.pages.0, by);
        let held = self.model.hold(&namespace, &tokens, found.pages.0);
        self.enter(held, lock);
    }

    fn enter(&mut self, held: Held, lock: Lock) {
        let id = self.next_id;
        self.next_id += 1;
        let (namespace, tokens) = (held.namespace.clone(), held.tokens.clone());
        self.model.held.insert(id, held);
        let priority = lock.user().priority;
        self.sequences.push(Sequence { id, namespace, tokens, lock, priority });
    }

    fn draw(&mut self) -> Option<Sequence> {
        let count = self.sequences.len() as u32;
        (count > 0).then(|| self.sequences.swap_remove(self.random.below(count) as usize))
    }

    fn lock_again(&mut self) {
        let Some(sequence) = self.draw() else { return };
        let lock = self.tree.lock_again(&sequence.lock);
        let held = self.model.held[&sequence.id].clone();
        self.sequences.push(sequence);
        self.enter(held, lock);
    }

    fn unlock(&mut self) {
        let Some(sequence) = self.draw() else { return };
        self.model.held.remove(&sequence.id);
        self.tree.unlock(sequence.lock);
    }

    fn shed(&mut self) {
        let Some(mut sequence) = self.draw() else { return };
        let page = self.model.chain.page_tokens().0;
        let computed = sequence.tokens.len() as u32 + self.random.below(3 * page);
        self.tree.shed(&mut sequence.lock, Tokens(computed));
        let held = self.model.held.get_mut(&sequence.id).unwrap();
        let boundary = held.tokens.len() as u32 / page;
        for (window, &pool) in self.model.chain.windows().iter().enumerate() {
            let PoolKind::Window { window: tokens } = self.model.chain.pool(pool).kind else {
                panic!("a window pool without a window")
            };
            let start = (computed.saturating_sub(tokens.0) / page).min(boundary);
            held.starts[window] = held.starts[window].max(start);
            assert_eq!(sequence.lock.window_start(window), Pages(held.starts[window]));
        }
        self.sequences.push(sequence);
    }

    fn publish(&mut self) {
        let Some(sequence) = self.draw() else { return };
        let count = self.random.below(5);
        let more = self.pages(count);
        let windows = self.model.chain.windows().len();
        let own: Vec<OwnPage> = (0..count)
            .map(|_| {
                let all = Ordinals::first(windows);
                let missing = (0..windows).filter(|_| self.random.one_in(5)).collect();
                OwnPage { virt: self.virt(), windows: all.without(missing) }
            })
            .collect();
        let states = self.model.chain.states().len();
        let states: Option<Vec<VirtId>> = (states > 0 && !self.random.one_in(3))
            .then(|| (0..states).map(|_| self.virt()).collect());
        let missing = self.tree.missing_states(&sequence.lock, &more);
        let published = self.tree.publish(sequence.lock, &more, &own, states.as_deref());
        if states.is_some() {
            assert_eq!(published.states_taken, missing, "what was missing is taken");
        }
        let before = sequence.tokens.len();
        let mut tokens = sequence.tokens;
        tokens.extend(&more);
        assert_eq!(published.fates.len(), own.len());
        let priority = sequence.priority;
        self.apply_fates(&sequence.namespace, &tokens, before, &own, &published.fates, priority);
        let boundary = (tokens.len() / self.model.page_tokens()) as u32;
        self.model.cut(&sequence.namespace, &tokens, boundary);
        let taken = self.apply_states(&sequence.namespace, &tokens, states.as_deref());
        assert_eq!(published.states_taken, taken);
        let conversation = Tokens(tokens.len() as u32);
        let by = Use { hit: false, state: states.is_some(), priority, conversation };
        self.model.touch(&sequence.namespace, &tokens, boundary, by);
        assert_eq!(published.lock.boundary(), Pages(boundary));
        let held = self.model.hold(&sequence.namespace, &tokens, boundary);
        self.model.held.remove(&sequence.id);
        self.enter(held, published.lock);
    }

    fn apply_fates(
        &mut self,
        namespace: &Namespace,
        tokens: &[Token],
        before: usize,
        own: &[OwnPage],
        fates: &[Fate],
        priority: i64,
    ) {
        let page = self.model.page_tokens();
        let states = self.model.chain.states().len();
        let windows = self.model.chain.windows().len();
        let known = fates.iter().take_while(|fate| **fate != Fate::Kept).count();
        self.model.cut(namespace, tokens, (before / page + known) as u32);
        let now = self.model.clock;
        let record = Record { last: now, inserted: now, hits: 0 };
        let conversation = Tokens(0);
        let used = Used { full: record, window: record, state: record, priority, conversation };
        for (index, (own, fate)) in own.iter().zip(fates).enumerate() {
            let key = (namespace.clone(), tokens[..before + (index + 1) * page].to_vec());
            let flying: Vec<usize> = (0..windows).filter(|&w| self.is_flying(&key, w)).collect();
            let fresh = Page {
                virt: own.virt,
                windows: (0..windows).map(|window| own.windows.contains(window)).collect(),
                states: vec![None; states],
                cut: false,
                used,
            };
            match self.model.pages.get_mut(&key) {
                None => {
                    assert_eq!(*fate, Fate::Kept);
                    self.model.pages.insert(key, fresh);
                }
                Some(ours) => {
                    let heals = |w: &usize| {
                        !ours.windows[*w] && own.windows.contains(*w) && !flying.contains(w)
                    };
                    let healed: Ordinals = (0..windows).filter(heals).collect();
                    assert_eq!(*fate, Fate::Duplicate { tree: ours.virt, healed });
                    self.seen.healed += healed.len();
                    healed.iter().for_each(|window| ours.windows[window] = true);
                }
            }
        }
    }

    /// Whether a window page is detached while its full page stays.
    fn is_flying(&self, key: &Key, window: usize) -> bool {
        let pool = self.model.chain.windows()[window];
        let virt = self.model.pages.get(key).map(|page| page.virt);
        let taken = self.detached.iter().flat_map(|(_, taken)| taken);
        taken
            .into_iter()
            .any(|(taken_pool, taken_virt, _, _)| *taken_pool == pool && Some(*taken_virt) == virt)
    }

    fn apply_states(
        &mut self,
        namespace: &Namespace,
        tokens: &[Token],
        states: Option<&[VirtId]>,
    ) -> Ordinals {
        let key = (namespace.clone(), tokens.to_vec());
        let Some(states) = states.filter(|_| self.model.pages.contains_key(&key)) else {
            return Ordinals::NONE;
        };
        if self.model.pages[&key].states.iter().all(Option::is_none) {
            let boundary = (tokens.len() / self.model.page_tokens()) as u32;
            self.model.states_are_new(namespace, tokens, boundary);
        }
        let page = self.model.pages.get_mut(&key).unwrap();
        let missing = (0..states.len()).filter(|&state| page.states[state].is_none());
        let missing: Ordinals = missing.collect();
        missing.iter().for_each(|state| page.states[state] = Some(states[state]));
        missing
    }

    fn geometry(&self) -> Geometry {
        let mut geometry = Geometry::empty(&self.model.chain);
        for pool in self.model.chain.pool_ids() {
            geometry.pool_mut(pool).live = self.tree.counters().cached[pool];
        }
        geometry
    }

    fn reclaim(&mut self) {
        if self.detached.is_some() {
            return self.end_detachment();
        }
        let mut demand = Demand::default();
        for pool in self.model.chain.pool_ids() {
            let draw = self.random.below(self.model.chain.pages_max(pool).0 * 2 / 3);
            demand.0[pool] = Pages(if self.random.one_in(2) { draw } else { 0 });
        }
        let request = PlanRequest {
            geometry: self.geometry(),
            demand,
            pinned: None,
            prefer: if self.random.one_in(2) { Prefer::Full } else { Prefer::Window },
            quota: Quota::None,
        };
        let before = self.tree.fingerprint();
        let plan = self.tree.plan(&request);
        assert_eq!(self.tree.fingerprint(), before, "planning changed something");
        let victims = plan.as_ref().ok().map(|plan| {
            plan.victims().iter().map(|victim| (victim.pool, victim.virt)).collect::<Vec<_>>()
        });
        let policy = self.settings.eviction_policy();
        let (geometry, prefer) = (request.geometry, request.prefer);
        let predicted =
            victims::predict(&self.model, policy.as_ref(), prefer, geometry, request.demand);
        assert_eq!(victims, predicted, "the tree's victims, the model's ({:?})", self.settings);
        let Ok(plan) = plan else {
            self.seen.refused += 1;
            return;
        };
        self.seen.victims += plan.victims().len() as u32;
        let (lost, counters) = (plan.matchable_lost(), self.tree.counters());
        let detached = self.tree.detach(plan).unwrap();
        let now = self.tree.counters().matchable();
        assert_eq!(now.0 + lost.0, counters.matchable().0, "the plan's cost is what is lost");
        let taken = self.take(&detached);
        let undisturbed = self.random.one_in(2);
        self.detached = Some((detached, taken));
        if undisturbed {
            self.attach_all();
            assert_eq!(self.tree.fingerprint(), before, "attaching restores everything");
            assert_eq!(self.tree.counters(), counters);
        }
    }

    fn take(&mut self, detached: &Detached) -> Vec<Taken> {
        let mut taken = Vec::new();
        let full = self.model.chain.full().unwrap();
        let pools: Vec<PoolId> = self.model.chain.pool_ids().filter(|&pool| pool != full).collect();
        for pool in pools.into_iter().chain([full]) {
            for &virt in &detached.victims()[pool] {
                let (key, page) = self.model.evict(pool, virt);
                let above = self.above(&key);
                let starts = above.is_none_or(|above| self.model.pages[&above].cut);
                taken.push((pool, virt, key, page.map(|page| (page, starts))));
            }
        }
        taken
    }

    /// The page before a page.
    fn above(&self, key: &Key) -> Option<Key> {
        let len = key.1.len() - self.model.page_tokens();
        (len > 0).then(|| (key.0.clone(), key.1[..len].to_vec()))
    }

    /// A full page goes back: to the edge that it was cut from, if nothing follows or holds that by now.
    fn put_back(&mut self, key: Key, mut page: Page, starts: bool) {
        if let Some(above) = self.above(&key).filter(|_| !starts) {
            let stateless = self.model.pages[&above].states.iter().all(Option::is_none);
            let alone = stateless
                && !self.model.has_children(&above)
                && !self.model.is_locked(&above, None);
            let above = self.model.pages.get_mut(&above).unwrap();
            above.cut = !alone;
            if alone {
                page.used = above.used;
            }
        }
        assert!(self.model.pages.insert(key, page).is_none(), "its place was taken");
    }

    fn attach_all(&mut self) {
        let (detached, taken) = self.detached.take().unwrap();
        let homeless = self.tree.attach(detached, &[]);
        assert_eq!(homeless, []);
        self.restore(taken, &homeless);
    }

    fn end_detachment(&mut self) {
        let (detached, taken) = self.detached.take().unwrap();
        if self.random.one_in(3) {
            let victims = self.tree.evict(detached);
            let count: usize = victims.0.iter().map(Vec::len).sum();
            assert_eq!(count, taken.len());
            return;
        }
        let lost: Vec<(PoolId, VirtId)> = taken
            .iter()
            .filter(|_| self.random.one_in(6))
            .map(|(pool, virt, _, _)| (*pool, *virt))
            .collect();
        let homeless = self.tree.attach(detached, &lost);
        assert!(lost.iter().all(|lost| homeless.contains(lost)), "what was lost came back");
        self.seen.lost += lost.len() as u32;
        self.seen.homeless += homeless.len() as u32;
        self.seen.attached += (taken.len() - homeless.len()) as u32;
        self.restore(taken, &homeless);
    }

    /// Puts back what the tree says went back: full pages before what hangs on them.
    fn restore(&mut self, taken: Vec<Taken>, homeless: &[(PoolId, VirtId)]) {
        for (pool, virt, key, page) in taken.into_iter().rev() {
            if homeless.contains(&(pool, virt)) {
                continue;
            }
            if let Some((page, starts)) = page {
                self.put_back(key, page, starts);
                continue;
            }
            let page = self.model.pages.get_mut(&key).expect("went back to nowhere");
            if let Some(window) = self.model.chain.windows().iter().position(|&w| w == pool) {
                assert!(!std::mem::replace(&mut page.windows[window], true));
            }
            if let Some(state) = self.model.chain.states().iter().position(|&s| s == pool) {
                assert_eq!(page.states[state].replace(virt), None);
            }
        }
    }

    fn flush(&mut self) {
        let victims = self.tree.flush();
        let full = self.model.chain.full().unwrap();
        let pools: Vec<PoolId> = self.model.chain.pool_ids().filter(|&pool| pool != full).collect();
        for pool in pools.into_iter().chain([full]) {
            for &virt in &victims[pool] {
                self.model.evict(pool, virt);
            }
        }
        assert_eq!(self.tree.counters().all_evictable(), PerPool::default());
    }

    fn finish(mut self) {
        if self.detached.is_some() {
            self.end_detachment();
        }
        while !self.sequences.is_empty() {
            self.unlock();
        }
        self.tree.check().unwrap();
        assert_eq!(self.tree.open_locks(), 0);
        assert_eq!(self.tree.counters().locked, PerPool::default());
        self.flush();
        assert_eq!(self.tree.counters().cached, PerPool::default());
        self.tree.check().unwrap();
    }
}

fn run(seed: u64, steps: u32) -> Seen {
    let mut run = Run::new(seed);
    for _ in 0..steps {
        run.step();
    }
    let seen = run.seen;
    run.finish();
    seen
}

#[test]
fn the_tree_agrees_with_a_list_of_pages() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let (seeds, steps) = (number("KVTIDE_SEEDS"), number("KVTIDE_STEPS"));
    let first = number("KVTIDE_SEED").unwrap_or(0);
    let mut all = Seen::default();
    for seed in first..first + seeds.unwrap_or(SEEDS) {
        match std::panic::catch_unwind(|| run(seed, steps.unwrap_or(STEPS) as u32)) {
            Ok(seen) => {
                all.matched += seen.matched;
                all.healed += seen.healed;
                all.refused += seen.refused;
                all.victims += seen.victims;
                all.attached += seen.attached;
                all.homeless += seen.homeless;
                all.lost += seen.lost;
            }
            Err(panic) => {
                eprintln!("seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{all:?}");
    let Seen { matched, healed, refused, victims, attached, homeless, lost } = all;
    let least = [matched, healed, refused, victims, attached, lost, homeless - lost];
    assert!(least.into_iter().all(|count| count > 100), "something hardly happened: {all:?}");
}
