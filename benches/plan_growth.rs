//! Does a reclaim plan cost more the more is cached? Two pools, pages of 16 tokens, a demand of 512 tokens on a full arena.
//!
//! Prints medians per plan and per victim at three sizes of cache, side by side in one run; the last column is the ratio
//! to the smallest. Planning, detaching and evicting are measured; refilling is not.

use std::time::Instant;

use kvtide_core::arena::{Arena, Question, Victims};
use kvtide_core::chain::{Chain, Grow, PoolKind, PoolSpec};
use kvtide_core::demand::{ExactDemand, Extend, WindowDemand};
use kvtide_core::tree::{
    Namespace, Ordinals, OwnPage, PlanRequest, Prefer, Quota, Tree, TreeSettings,
};
use kvtide_core::unit::{Bytes, PoolId, Token, Tokens};

const PAGE_TOKENS: u32 = 16;
const PROMPT: u32 = 512;
const ROUNDS: usize = 300;

/// A full cache and what hands its pages out.
struct Cache {
    arena: Arena,
    tree: Tree,
    next: u32,
}

impl Cache {
    fn new(pages: u32) -> Self {
        let spec = |name: &str, kind, grow| PoolSpec {
            name: name.into(),
            kind,
            grow,
            page_bytes: Bytes(1024),
            pages_max: None,
        };
        let window = PoolKind::Window { window: Tokens(128) };
        let pools =
            vec![spec("full", PoolKind::Full, Grow::Up), spec("window", window, Grow::Down)];
        let total = Bytes(u64::from(2 * pages + 2) * 1024);
        let chain = Chain::new(total, Tokens(PAGE_TOKENS), None, pools).expect("a chain of two");
        let settings = TreeSettings::default();
        let mut cache =
            Cache { tree: Tree::new(&chain, settings), arena: Arena::new(chain), next: 0 };
        while cache.arena.place(&cache.demand()).is_some() {
            cache.fill();
        }
        cache
    }

    fn demand(&self) -> kvtide_core::demand::Demand {
        let extend = Extend { old: Tokens(0), new: Tokens(PROMPT), windows: WindowDemand::Every };
        let demand = ExactDemand::for_extends(self.arena.chain(), &[extend]);
        demand.expect("a step forward").demand()
    }

    /// Caches one more prompt, for which there is room.
    fn fill(&mut self) {
        let tokens: Vec<Token> = (self.next..self.next + PROMPT).collect();
        self.next += PROMPT;
        let placement = self.arena.place(&self.demand()).expect("there is room");
        let grant = self.arena.bind(placement);
        let pages: Vec<OwnPage> =
            grant.pages.iter().map(|&virt| OwnPage { virt, windows: Ordinals::first(1) }).collect();
        let (lock, _) = self.tree.open(&Namespace::default(), &tokens);
        let published = self.tree.publish(lock, &tokens, &pages, None);
        self.tree.unlock(published.lock);
    }

    /// Plans and makes room for one prompt; victims, and nanoseconds in the tree.
    fn reclaim(&mut self) -> (usize, u128) {
        let request = PlanRequest {
            geometry: self.arena.geometry(Question::AfterMoves),
            demand: self.demand(),
            pinned: None,
            prefer: Prefer::Full,
            quota: Quota::None,
        };
        let start = Instant::now();
        let plan = self.tree.plan(&request).expect("everything is evictable");
        let count = plan.victims().len();
        let detached = self.tree.detach(plan).expect("nothing came between");
        let planned = start.elapsed().as_nanos();
        let victims = Victims { pages: detached.victims().clone() };
        let prepare = self.arena.plan_prepare(&request.demand, &victims).expect("it fits");
        let begun = self.arena.begin(prepare);
        let grant = self.arena.commit(begun);
        let start = Instant::now();
        self.tree.evict(detached);
        let evicted = start.elapsed().as_nanos();
        for pool in [PoolId(1), PoolId(0)] {
            for &virt in &grant.pages {
                self.arena.free(pool, virt).expect("just granted");
            }
        }
        (count, planned + evicted)
    }
}

fn main() {
    println!("cached pages  victims  median ns/plan  ns/victim  ratio to the smallest");
    let mut smallest = None;
    for pages in [1_024, 10_240, 102_400] {
        let mut cache = Cache::new(pages);
        let mut rounds: Vec<(u128, usize)> = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let (victims, nanos) = cache.reclaim();
            rounds.push((nanos, victims));
            while cache.arena.place(&cache.demand()).is_some() {
                cache.fill();
            }
        }
        rounds.sort_unstable();
        let (nanos, victims) = rounds[ROUNDS / 2];
        let each = nanos as f64 / victims.max(1) as f64;
        let first = *smallest.get_or_insert(each);
        println!("{pages:>12} {victims:>8} {nanos:>15} {each:>10.0} {:>22.2}", each / first);
    }
}
