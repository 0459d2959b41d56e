//! Every eviction policy against a model that keeps one record for each page and looks through all of them.
//!
//! A page of the model is named by the tokens up to and with it. Where all pages are full pages, every victim costs one
//! matchable token: so sessions and the policy alone decide, and a plan for n pages is the first n of the model's order.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::collections::BTreeMap;

use kvtide_core::arena::{Arena, Question};
use kvtide_core::chain::{Chain, Grow, PoolKind, PoolSpec};
use kvtide_core::demand::Demand;
use kvtide_core::tree::{
    Fate, Lock, Namespace, Ordinals, OwnPage, PlanRequest, PolicyKind, Prefer, Quota, ReclaimPlan,
    Tree, TreeSettings, User,
};
use kvtide_core::unit::{Bytes, Pages, PoolId, Token, Tokens, VirtId};

const KINDS: [PolicyKind; 8] = [
    PolicyKind::Lru,
    PolicyKind::Lfu,
    PolicyKind::Fifo,
    PolicyKind::Mru,
    PolicyKind::Filo,
    PolicyKind::Priority,
    PolicyKind::Slru,
    PolicyKind::Tlru,
];

const FULL: PoolId = PoolId(0);
const PAGES: u32 = 60;
const SESSIONS: [&str; 4] = ["a", "b", "c", "d"];
const MAX_SESSIONS: usize = 3;
const PAGE_TOKENS: u32 = 2;

/// What the model knows of a page.
#[derive(Clone, Copy, Debug)]
struct Record {
    virt: VirtId,
    last: u64,
    inserted: u64,
    hits: u64,
    priority: i64,
    conversation: usize,
}

struct Held {
    lock: Lock,
    path: Vec<Token>,
    user: User,
}

struct World {
    arena: Arena,
    tree: Tree,
    settings: TreeSettings,
    pages: BTreeMap<Vec<Token>, Record>,
    held: Vec<Held>,
    /// By name: when it published last, and the path that it holds.
    sessions: BTreeMap<&'static str, (u64, Vec<Token>)>,
    now: u64,
    random: u64,
}

impl World {
    fn new(policy: PolicyKind, seed: u64) -> Self {
        let spec = PoolSpec {
            name: "full".into(),
            kind: PoolKind::Full,
            grow: Grow::Up,
            page_bytes: Bytes(1),
            pages_max: None,
        };
        let total = Bytes(1 + u64::from(PAGES));
        let chain = Chain::new(total, Tokens(PAGE_TOKENS), None, vec![spec]).unwrap();
        let settings = TreeSettings {
            policy,
            slru_protected_hits: 2,
            tlru_latency: Tokens(5),
            tlru_next_prompt: Tokens(1),
            max_sessions: MAX_SESSIONS as u32,
        };
        World {
            tree: Tree::new(&chain, settings),
            arena: Arena::new(chain),
            settings,
            pages: BTreeMap::new(),
            held: Vec::new(),
            sessions: BTreeMap::new(),
            now: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) % bound
    }

    /// Few tokens, so that paths share.
    fn tokens(&mut self) -> Vec<Token> {
        let count = 1 + self.below(14);
        (0..count).map(|_| 1 + (self.below(5) / 4) as Token).collect()
    }

    fn touch(&mut self, path: &[Token], conversation: usize, priority: i64, hit: u64) {
        self.now += 1;
        for end in (PAGE_TOKENS as usize..=path.len()).step_by(PAGE_TOKENS as usize) {
            let record = self.pages.get_mut(&path[..end]).expect("a page that is used is there");
            record.last = self.now;
            record.hits += hit;
            record.priority = record.priority.max(priority);
            record.conversation = conversation;
        }
    }

    fn open(&mut self) {
        let tokens = self.tokens();
        let priority = self.below(5) as i64 - 2;
        let (lock, matched) = self.tree.lock_match(&Namespace::default(), &tokens);
        let named = self.below(2 * SESSIONS.len() as u64) as usize;
        let session = SESSIONS.get(named).map(|&name| name.into());
        let user = User { priority, session };
        let lock = lock.used_by(user.clone());
        let path = tokens[..(matched.pages.0 * PAGE_TOKENS) as usize].to_vec();
        let longest = (PAGE_TOKENS as usize..tokens.len())
            .step_by(PAGE_TOKENS as usize)
            .rfind(|&end| self.pages.contains_key(&tokens[..end]));
        assert_eq!(path.len(), longest.unwrap_or(0));
        if self.below(4) == 0 {
            // A refused open.
            self.tree.unlock(lock);
            return;
        }
        self.tree.mark_used(&lock);
        self.touch(&path, tokens.len(), priority, 1);
        self.held.push(Held { lock, path, user });
    }

    fn publish(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let index = self.below(self.held.len() as u64) as usize;
        let mut tokens = self.tokens();
        tokens.truncate(tokens.len() / 2 * 2);
        let count = tokens.len() as u32 / PAGE_TOKENS;
        self.make_room(count);
        let Held { lock, mut path, user } = self.held.swap_remove(index);
        let demand = Demand::default().with(FULL, Pages(count)).unwrap();
        let Some(placed) = self.arena.place(&demand) else {
            return self.held.push(Held { lock, path, user });
        };
        let grant = self.arena.bind(placed);
        let own = grant.pages.iter().map(|&virt| OwnPage { virt, windows: Ordinals::NONE });
        let own: Vec<_> = own.collect();
        let published = self.tree.publish(lock, &tokens, &own, None);
        let (inserted, priority) = (self.now, user.priority);
        for ((page, own), fate) in tokens.chunks(2).zip(&own).zip(&published.fates) {
            path.extend(page);
            match fate {
                Fate::Kept => {
                    let virt = own.virt;
                    let (last, hits, conversation) = (0, 0, 0);
                    let record = Record { virt, last, inserted, hits, priority, conversation };
                    assert!(self.pages.insert(path.clone(), record).is_none());
                }
                Fate::Duplicate { tree, .. } => {
                    assert_eq!(self.pages[&path].virt, *tree);
                    self.arena.free(FULL, own.virt).unwrap();
                }
            }
        }
        self.touch(&path, path.len(), priority, 0);
        self.hold(&user, &path);
        self.held.push(Held { lock: published.lock, path, user });
    }

    /// A session's hold is where it published last; beyond the most, the oldest goes.
    fn hold(&mut self, user: &User, path: &[Token]) {
        let Some(session) = &user.session else { return };
        let name = SESSIONS.iter().find(|&&name| name == &*session.0).unwrap();
        if !path.is_empty() {
            self.sessions.insert(name, (self.now, path.to_vec()));
        }
        if self.sessions.len() > MAX_SESSIONS {
            let (&oldest, _) = self.sessions.iter().min_by_key(|(_, held)| held.0).unwrap();
            self.sessions.remove(oldest);
        }
    }

    fn close_session(&mut self) {
        let name = SESSIONS[self.below(SESSIONS.len() as u64) as usize];
        let held = self.tree.close_session(&Namespace::default(), &name.into());
        assert_eq!(held, self.sessions.remove(name).is_some());
    }

    fn close(&mut self) {
        if !self.held.is_empty() {
            let index = self.below(self.held.len() as u64) as usize;
            self.tree.unlock(self.held.swap_remove(index).lock);
        }
    }

    /// What sessions hold after the rest; then by the policy's definition.
    fn rank(&self, path: &[Token], record: &Record) -> (bool, (i64, i64)) {
        let held = self.sessions.values().any(|(_, session)| session.starts_with(path));
        let last = record.last as i64;
        let rank = match self.settings.policy {
            PolicyKind::Lru => (0, last),
            PolicyKind::Lfu => (record.hits as i64, last),
            PolicyKind::Fifo => (0, record.inserted as i64),
            PolicyKind::Mru => (0, -last),
            PolicyKind::Filo => (0, -(record.inserted as i64)),
            PolicyKind::Priority => (record.priority, last),
            PolicyKind::Slru => (i64::from(record.hits >= 2), last),
            PolicyKind::Tlru => {
                let to_compute = record.conversation as i64 + 1 - (path.len() as i64 - 2);
                (i64::from(to_compute > 5), last)
            }
        };
        (held, rank)
    }

    /// All that may go, in the order in which it goes.
    fn order(&self) -> Vec<Vec<Token>> {
        let mut pages = self.pages.clone();
        let mut order = Vec::new();
        loop {
            let is_free = |path: &[Token]| {
                let longer = |other: &[Token]| other.len() > path.len() && other.starts_with(path);
                !pages.keys().any(|other| longer(other))
                    && !self.held.iter().any(|held| held.path.starts_with(path))
            };
            let free = pages.iter().filter(|(path, _)| is_free(path));
            let next = free.min_by_key(|(path, record)| self.rank(path, record));
            let Some(path) = next.map(|(path, _)| path.clone()) else { return order };
            pages.remove(&path);
            order.push(path);
        }
    }

    fn plan(&self, count: u32) -> Option<ReclaimPlan> {
        let gated = self.arena.gated();
        let request = PlanRequest {
            geometry: self.arena.geometry(Question::AfterMoves),
            demand: Demand::default().with(FULL, Pages(count)).unwrap(),
            pinned: gated.as_ref().map(|view| view as _),
            prefer: Prefer::Full,
            quota: Quota::None,
        };
        self.tree.plan(&request).ok()
    }

    /// What plans for growing demands would take, next to what the model says.
    fn check_order(&self) -> usize {
        let order = self.order();
        let virts: Vec<_> = order.iter().map(|path| self.pages[path].virt).collect();
        let free = PAGES - self.arena.counts(FULL).live.0;
        for count in 1..=virts.len() {
            let plan = self.plan(free + count as u32).expect("the model has as many to give");
            let planned: Vec<_> = plan.victims().iter().map(|victim| victim.virt).collect();
            assert_eq!(planned, virts[..count], "{:?}", self.settings.policy);
        }
        assert!(self.plan(free + virts.len() as u32 + 1).is_none());
        virts.len()
    }

    /// Takes victims out, often among them what sessions hold, and puts them back.
    fn put_back(&mut self) {
        let order = self.order();
        let free = PAGES - self.arena.counts(FULL).live.0;
        let count = 1 + self.below(order.len() as u64 + 1) as u32;
        let Some(plan) = self.plan(free + count) else { return };
        let detached = self.tree.detach(plan).unwrap();
        self.tree.check().unwrap();
        assert!(self.tree.attach(detached, &[]).is_empty());
        self.check_order();
    }

    /// Evicts what `count` pages need.
    fn make_room(&mut self, count: u32) {
        let order = self.order();
        if let Some(plan) = self.plan(count) {
            for path in &order[..plan.victims().len()] {
                let gone = self.pages.remove(path).unwrap();
                for (_, held) in self.sessions.values_mut().filter(|(_, held)| held == path) {
                    held.truncate(path.len() - PAGE_TOKENS as usize);
                }
                assert!(plan.victims().iter().any(|victim| victim.virt == gone.virt));
            }
            self.sessions.retain(|_, (_, held)| !held.is_empty());
            let detached = self.tree.detach(plan).unwrap();
            let freed = self.tree.evict(detached);
            freed[FULL].iter().for_each(|&virt| self.arena.free(FULL, virt).unwrap());
        }
    }
}

#[test]
fn plans_take_what_the_policy_says_in_its_order() {
    for policy in KINDS {
        let mut compared = 0;
        for seed in 1..=200 {
            let mut world = World::new(policy, seed);
            for _ in 0..60 {
                match world.below(10) {
                    0..=2 => world.open(),
                    3..=5 => world.publish(),
                    6 => world.close(),
                    7 => world.close_session(),
                    8 => world.put_back(),
                    _ => compared += world.check_order(),
                }
                world.tree.check().unwrap();
                assert_eq!(world.tree.counters(), world.tree.recount());
                assert_eq!(world.tree.sessions(), world.sessions.len());
            }
            world.held.drain(..).for_each(|held| world.tree.unlock(held.lock));
            compared += world.check_order();
        }
        assert!(compared > 5_000, "{policy:?}: {compared} plans compared");
    }
}
