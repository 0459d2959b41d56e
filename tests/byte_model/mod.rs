//! What an arena must show: one word a byte, what each id must read, what each lease has seen.

use std::collections::BTreeMap;

use kvtide_core::arena::{Arena, ContentTag, CopyBatch, GateId, Grant, LeaseId, Prepare, Victims};
use kvtide_core::chain::{Chain, Grow, PoolKind, PoolSpec};
use kvtide_core::demand::Demand;
use kvtide_core::unit::{Bytes, PageId, Pages, PoolId, Tokens, VirtId};

/// A page with what is to be read there.
pub type Seen = (PoolId, PageId, ContentTag);

/// What the run has exercised: a test that never commits a move proves nothing.
#[derive(Debug, Default)]
pub struct Did {
    pub bound: u64,
    pub freed: u64,
    pub pending: u64,
    pub handed_on: u64,
    pub committed: u64,
    pub moved: u64,
    pub moved_across: u64,
    pub evicted: u64,
    pub aborted: u64,
    pub kept_by_abort: u64,
    pub lost_by_abort: u64,
    pub bound_while_preparing: u64,
    pub freed_while_preparing: u64,
    pub packed: u64,
    pub refused_leases: u64,
}

impl Did {
    pub fn check_that_everything_happened(&self) {
        let all = [
            self.bound,
            self.freed,
            self.pending,
            self.handed_on,
            self.committed,
            self.moved,
            self.moved_across,
            self.evicted,
            self.aborted,
            self.kept_by_abort,
            self.lost_by_abort,
            self.bound_while_preparing,
            self.freed_while_preparing,
            self.packed,
            self.refused_leases,
        ];
        assert!(all.iter().all(|&count| count > 100), "something hardly ever happened: {self:?}");
    }
}

pub struct Running {
    pub prepare: Prepare,
    pub batches: Vec<CopyBatch>,
    pub landed: usize,
    pub demand: Demand,
    pub victims: Vec<(PoolId, VirtId)>,
    pub sources: Vec<(PoolId, PageId)>,
}

pub struct World {
    pub seed: u64,
    pub rng: u64,
    pub arena: Arena,
    pub bytes: Vec<u64>,
    /// What each live id reads.
    pub live: BTreeMap<(PoolId, VirtId), ContentTag>,
    /// Pages held by each lease, with what the lease reads there.
    pub leases: Vec<(LeaseId, Vec<Seen>)>,
    pub gates: Vec<(GateId, Vec<PoolId>)>,
    /// Freed pages that something may still touch, with what that reads there.
    pub pending: BTreeMap<(PoolId, PageId), ContentTag>,
    pub running: Option<Running>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with KVTIDE_SEED={}", self.seed);
        }
    }
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut rng = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995;
        let chain = random_chain(&mut rng);
        World {
            seed,
            rng,
            bytes: vec![0; chain.total().0 as usize],
            arena: Arena::new(chain),
            live: BTreeMap::new(),
            leases: Vec::new(),
            gates: Vec::new(),
            pending: BTreeMap::new(),
            running: None,
        }
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        below(&mut self.rng, bound)
    }

    /// The model's side of a free: a full id takes its window pages along.
    pub fn drop_id(&mut self, pool: PoolId, virt: VirtId) {
        let mut keys = vec![(pool, virt)];
        if self.arena.chain().full() == Some(pool) {
            keys.extend(self.arena.chain().windows().iter().map(|&window| (window, virt)));
        }
        for (pool, virt) in keys {
            let Some(tag) = self.live.remove(&(pool, virt)) else { continue };
            if let Some(running) = &mut self.running {
                running.victims.retain(|&victim| victim != (pool, virt));
            }
            let page = self.arena.locate(pool, virt).unwrap();
            if self.is_touched(pool, page) {
                self.pending.insert((pool, page), tag);
            } else if self.running.is_none() {
                self.scribble(pool, page);
            }
        }
    }

    pub fn is_touched(&self, pool: PoolId, page: PageId) -> bool {
        let held = |(_, pages): &(LeaseId, Vec<Seen>)| {
            pages.iter().any(|&(p, at, _)| (p, at) == (pool, page))
        };
        self.leases.iter().any(held)
            || self.running.iter().any(|running| running.sources.contains(&(pool, page)))
    }

    /// Forgets pending pages that nothing touches any more.
    pub fn settle(&mut self) {
        let keys: Vec<_> = self.pending.keys().copied().collect();
        for (pool, page) in keys {
            if !self.is_touched(pool, page) {
                self.pending.remove(&(pool, page));
            }
        }
    }

    /// Where the pages lie that a gate or a lease forbids to move.
    pub fn pinned_places(&self) -> Vec<(PoolId, VirtId, PageId)> {
        self.live
            .keys()
            .map(|&(pool, virt)| (pool, virt, self.arena.locate(pool, virt).unwrap()))
            .filter(|&(pool, _, page)| {
                let gated = self.gates.iter().any(|(_, pools)| pools.contains(&pool));
                let leases = self.leases.iter().flat_map(|(_, pages)| pages);
                gated || leases.clone().any(|&(p, at, _)| (p, at) == (pool, page))
            })
            .collect()
    }

    pub fn check_pinned(&self, before: &[(PoolId, VirtId, PageId)]) {
        for &(pool, virt, page) in before {
            if self.live.contains_key(&(pool, virt)) {
                assert_eq!(self.arena.locate(pool, virt), Some(page), "seed {}: I6", self.seed);
            }
        }
    }

    pub fn write_grant(&mut self, grant: &Grant, demand: &Demand) {
        for pool in self.arena.chain().pool_ids() {
            let wanted = demand.0[pool].index();
            let ids = match self.arena.chain().pool(pool).kind {
                PoolKind::Full => &grant.pages[..],
                PoolKind::State => &grant.states[pool],
                PoolKind::Window { .. } => {
                    assert_eq!(grant.windows[pool].index(), wanted);
                    &grant.pages[grant.pages.len() - wanted..]
                }
            };
            assert_eq!(ids.len(), wanted, "seed {}", self.seed);
            for &virt in ids {
                let tag = self.arena.content(pool, virt).unwrap();
                let page = self.arena.locate(pool, virt).unwrap();
                assert!(self.live.values().all(|&other| other != tag), "a tag came twice");
                assert!(self.live.insert((pool, virt), tag).is_none());
                self.write(pool, page, tag);
            }
        }
    }

    pub fn write(&mut self, pool: PoolId, page: PageId, tag: ContentTag) {
        let e = self.arena.chain().pool(pool).page_bytes;
        let start = page.offset(e).0 as usize;
        for index in 0..e.0 as usize {
            self.bytes[start + index] = tag.0.wrapping_add(index as u64);
        }
    }

    pub fn scribble(&mut self, pool: PoolId, page: PageId) {
        self.write(pool, page, ContentTag(0xf4ee));
    }

    #[track_caller]
    pub fn check_reads(&self, pool: PoolId, page: PageId, tag: ContentTag, who: &str) {
        let e = self.arena.chain().pool(pool).page_bytes;
        let start = page.offset(e).0 as usize;
        for index in 0..e.0 as usize {
            let read = self.bytes[start + index];
            let wanted = tag.0.wrapping_add(index as u64);
            assert_eq!(read, wanted, "I7, seed {}: {who}, {pool:?} {page:?}", self.seed);
        }
    }

    /// Whether a copy of the prepare under way has landed on that page: so it may be for sources that were read before,
    /// and for victims. Nobody can hold a lease on these.
    pub fn is_copied_over(&self, pool: PoolId, page: PageId) -> bool {
        let bytes = |pool: PoolId, page: PageId| {
            let e = self.arena.chain().pool(pool).page_bytes;
            (page.offset(e).0, page.offset(e).0 + e.0)
        };
        let (start, end) = bytes(pool, page);
        let landed = self.running.iter().flat_map(|running| &running.batches[..running.landed]);
        landed
            .flat_map(|batch| batch.pairs.iter().map(|pair| bytes(batch.pool, pair.1)))
            .any(|(from, to)| from < end && start < to)
    }

    pub fn verify(&self) {
        if let Err(violation) = self.arena.check() {
            panic!("seed {}: {violation}", self.seed);
        }
        for (&(pool, virt), &tag) in &self.live {
            let page = self.arena.locate(pool, virt).expect("a live id has a page");
            assert_eq!(self.arena.content(pool, virt), Some(tag));
            if !(self.arena.is_moving(pool, virt) && self.is_copied_over(pool, page)) {
                self.check_reads(pool, page, tag, "a live id");
            }
        }
        for &(pool, page, tag) in self.leases.iter().flat_map(|(_, pages)| pages) {
            self.check_reads(pool, page, tag, "a lease");
        }
        for (&(pool, page), &tag) in &self.pending {
            let sources = self.running.iter().flat_map(|running| &running.sources);
            if sources.clone().any(|&source| source == (pool, page))
                && self.is_copied_over(pool, page)
            {
                continue;
            }
            self.check_reads(pool, page, tag, "a pending page");
        }
        assert_eq!(self.arena.live_pages().count(), self.live.len());
        for pool in self.arena.chain().pool_ids() {
            let counts = self.arena.counts(pool);
            let live = self.live.keys().filter(|key| key.0 == pool).count();
            let pending = self.pending.keys().filter(|key| key.0 == pool).count();
            assert_eq!(counts.live.index(), live, "seed {}", self.seed);
            assert_eq!(counts.pending.index(), pending, "seed {}: {pool:?}", self.seed);
            if self.running.is_none() {
                assert_eq!(counts.reserved, Pages(0));
            }
        }
    }

    pub fn capacity_of_ids(&self, pool: PoolId) -> Pages {
        let chain = self.arena.chain();
        match (chain.pool(pool).kind, chain.full()) {
            (PoolKind::Window { .. }, Some(full)) => chain.pages_max(full),
            _ => chain.pages_max(pool),
        }
    }

    pub fn random_demand(&mut self, most: u64) -> Demand {
        let mut demand = Demand::default();
        let chain = self.arena.chain().clone();
        let full = self.below(most + 1) as u32;
        for pool in chain.pool_ids() {
            demand.0[pool] = Pages(match chain.pool(pool).kind {
                PoolKind::Full => full,
                PoolKind::Window { .. } => self.below(u64::from(full) + 1) as u32,
                PoolKind::State => self.below(most / 2 + 1) as u32,
            });
        }
        demand
    }

    /// A few pages that nobody holds, as the tree would choose, or once in a while some that leases hold.
    pub fn random_victims(&mut self) -> Victims {
        let mut victims = Victims::default();
        let keys: Vec<_> = self.live.keys().copied().collect();
        let share = self.below(4);
        for (pool, virt) in keys {
            let held = self.arena.is_held(pool, virt) && self.below(8) > 0;
            if self.below(4) < share && !held {
                victims.pages[pool].push(virt);
            }
        }
        victims
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let index = self.below(items.len().max(1) as u64) as usize;
        items.get(index).copied()
    }
}

fn random_chain(rng: &mut u64) -> Chain {
    let count = 1 + below(rng, 6) as usize;
    let with_full = below(rng, 4) > 0;
    let grows = match (count, below(rng, 4)) {
        (1, kind) => vec![[Grow::Up, Grow::Float, Grow::Down, Grow::Up][kind as usize]],
        (_, 0) => vec![Grow::Float; count],
        _ => {
            let mut grows = vec![Grow::Float; count];
            (grows[0], grows[count - 1]) = (Grow::Up, Grow::Down);
            grows
        }
    };
    let full_at = below(rng, count as u64) as usize;
    let pools = (0..count).map(|index| PoolSpec {
        name: format!("pool{index}"),
        kind: match (with_full, index == full_at, below(rng, 2)) {
            (true, true, _) => PoolKind::Full,
            (true, false, 0) => PoolKind::Window { window: Tokens(32) },
            _ => PoolKind::State,
        },
        grow: grows[index],
        page_bytes: Bytes([1, 2, 3, 5][below(rng, 4) as usize]),
        pages_max: (below(rng, 5) == 0).then_some(Pages(6)),
    });
    let pools = pools.collect();
    let total = Bytes(12 + below(rng, 50) + 4 * count as u64);
    Chain::new(total, Tokens(16), None, pools).unwrap()
}

fn below(rng: &mut u64, bound: u64) -> u64 {
    *rng = rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *rng;
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ word >> 31) % bound.max(1)
}
