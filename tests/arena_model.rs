//! Random operations on an arena against its bytes: whatever moves, every id reads what was last written through it.
//!
//! The model keeps one word a byte, what each id must read, and what each lease has seen. It shares no code with the
//! arena. `KVTIDE_SEEDS=n` runs that many seeds, `KVTIDE_SEED=n` only that one.

use std::collections::BTreeMap;

use kvtide_core::arena::{
    Arena, ContentTag, CopiedBatches, CopyBatch, GateId, Grant, LeaseId, Prepare, Question, Victims,
};
use kvtide_core::chain::{Chain, Grow, PoolKind, PoolSpec};
use kvtide_core::demand::Demand;
use kvtide_core::unit::{Bytes, PageId, Pages, PoolId, Tokens, VirtId};

const OPS: u32 = 250;

#[test]
fn every_id_reads_what_was_written_through_it_whatever_moves() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number("KVTIDE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KVTIDE_SEEDS").unwrap_or(8_000),
    };
    let mut did = Did::default();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let mut world = World::new(seed);
        for _ in 0..OPS {
            world.step(&mut did);
            world.verify();
        }
        world.quiesce();
    }
    println!("{count} seeds x {OPS} operations: {did:?}");
    if count >= 1_000 {
        did.check_that_everything_happened();
    }
}

/// What the run has exercised: a test that never commits a move proves nothing.
#[derive(Debug, Default)]
struct Did {
    bound: u64,
    freed: u64,
    pending: u64,
    handed_on: u64,
    committed: u64,
    moved: u64,
    moved_across: u64,
    evicted: u64,
    aborted: u64,
    kept_by_abort: u64,
    lost_by_abort: u64,
    bound_while_preparing: u64,
    freed_while_preparing: u64,
    packed: u64,
    refused_leases: u64,
}

impl Did {
    fn check_that_everything_happened(&self) {
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

struct Running {
    prepare: Prepare,
    batches: Vec<CopyBatch>,
    landed: usize,
    demand: Demand,
    victims: Vec<(PoolId, VirtId)>,
    sources: Vec<(PoolId, PageId)>,
}

struct World {
    seed: u64,
    rng: u64,
    arena: Arena,
    bytes: Vec<u64>,
    /// What each live id reads.
    live: BTreeMap<(PoolId, VirtId), ContentTag>,
    /// Pages held by each lease, with what the lease reads there.
    leases: Vec<(LeaseId, Vec<(PoolId, PageId, ContentTag)>)>,
    gates: Vec<(GateId, Vec<PoolId>)>,
    /// Freed pages that something may still touch, with what that reads there.
    pending: BTreeMap<(PoolId, PageId), ContentTag>,
    running: Option<Running>,
}

impl World {
    fn new(seed: u64) -> Self {
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

    fn below(&mut self, bound: u64) -> u64 {
        below(&mut self.rng, bound)
    }

    fn step(&mut self, did: &mut Did) {
        match self.below(20) {
            0..5 => self.bind(did),
            5..7 => self.free(did),
            // Half of the seeds run nearly full, where room has to be made by moves.
            7 if self.seed.is_multiple_of(2) => self.free(did),
            7 => self.bind(did),
            8 => self.hand_on(did),
            9 if self.below(2) == 0 => self.begin_lease(did),
            9 | 10 if self.seed % 4 < 2 => self.begin_lease(did),
            9 | 10 => self.advance(did),
            11 | 12 => self.end_lease(),
            13 if self.below(3) == 0 => self.close_gate(),
            13 | 14 => self.open_gate(),
            15..17 => self.begin(did),
            _ => self.advance(did),
        }
    }

    fn bind(&mut self, did: &mut Did) {
        let demand = self.random_demand(4);
        let placement = self.arena.place(&demand);
        if self.running.is_none() {
            let fits = self.arena.geometry(Question::Now).fits(&demand).is_ok();
            assert_eq!(placement.is_some(), fits, "seed {}: placing {demand:?}", self.seed);
        }
        let Some(placement) = placement else { return };
        let grant = self.arena.bind(placement);
        self.write_grant(&grant, &demand);
        did.bound += 1;
        did.bound_while_preparing += u64::from(self.running.is_some());
    }

    fn free(&mut self, did: &mut Did) {
        let victims: Vec<_> =
            self.running.iter().flat_map(|running| running.victims.clone()).collect();
        // Detached victims are nobody's: mostly left alone, as the tree does.
        let spare = self.below(8) > 0;
        let owned: Vec<_> =
            self.live.keys().copied().filter(|key| !(spare && victims.contains(key))).collect();
        let Some((pool, virt)) = self.pick(&owned) else { return };
        self.drop_id(pool, virt);
        self.arena.free(pool, virt).unwrap();
        assert!(self.arena.free(pool, virt).is_err());
        did.freed += 1;
        did.freed_while_preparing += u64::from(self.running.is_some());
        did.pending += u64::from(!self.pending.is_empty());
    }

    /// The model's side of a free: a full id takes its window pages along.
    fn drop_id(&mut self, pool: PoolId, virt: VirtId) {
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

    fn is_touched(&self, pool: PoolId, page: PageId) -> bool {
        let held = |(_, pages): &(LeaseId, Vec<(PoolId, PageId, ContentTag)>)| {
            pages.iter().any(|&(p, at, _)| (p, at) == (pool, page))
        };
        self.leases.iter().any(held)
            || self.running.iter().any(|running| running.sources.contains(&(pool, page)))
    }

    fn hand_on(&mut self, did: &mut Did) {
        let Some(full) = self.arena.chain().full() else { return };
        let windows = self.arena.chain().windows().to_vec();
        let Some(window) = self.pick(&windows) else { return };
        let of = |pool: PoolId, live: &BTreeMap<(PoolId, VirtId), ContentTag>| -> Vec<VirtId> {
            live.keys().filter(|key| key.0 == pool).map(|key| key.1).collect()
        };
        let (givers, takers) = (of(window, &self.live), of(full, &self.live));
        let Some((from, to)) = self.pick(&givers).zip(self.pick(&takers)) else { return };
        let taken = self.live.contains_key(&(window, to));
        let victims = self.running.iter().flat_map(|running| &running.victims);
        let promised = victims.clone().any(|&key| key == (window, from) || key == (full, to));
        let result = self.arena.rebind_window(window, from, to);
        assert_eq!(result.is_ok(), !taken && !promised, "seed {}: {result:?}", self.seed);
        if result.is_ok() {
            let tag = self.live.remove(&(window, from)).unwrap();
            self.live.insert((window, to), tag);
            did.handed_on += 1;
        }
    }

    fn begin_lease(&mut self, did: &mut Did) {
        let keys: Vec<_> = self.live.keys().copied().collect();
        let mut holds = Vec::new();
        for _ in 0..=self.below(4) {
            holds.extend(self.pick(&keys));
        }
        let pages: Vec<_> = holds
            .iter()
            .map(|&(pool, virt)| {
                (pool, self.arena.locate(pool, virt).unwrap(), self.live[&(pool, virt)])
            })
            .collect();
        match self.arena.begin_lease(&holds) {
            Ok(lease) => self.leases.push((lease, pages)),
            Err(_) => {
                assert!(self.running.is_some(), "seed {}", self.seed);
                did.refused_leases += 1;
            }
        }
    }

    fn end_lease(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let index = self.below(self.leases.len() as u64) as usize;
        let (lease, _) = self.leases.remove(index);
        self.arena.end_lease(lease).unwrap();
        assert!(self.arena.end_lease(lease).is_err());
        self.settle();
    }

    /// Forgets pending pages that nothing touches any more.
    fn settle(&mut self) {
        let keys: Vec<_> = self.pending.keys().copied().collect();
        for (pool, page) in keys {
            if !self.is_touched(pool, page) {
                self.pending.remove(&(pool, page));
            }
        }
    }

    fn close_gate(&mut self) {
        let pools: Vec<_> = self.arena.chain().pool_ids().collect();
        let pools: Vec<_> = pools.into_iter().filter(|_| self.below(2) == 0).collect();
        let moving = pools.iter().any(|&pool| self.arena.is_moving_pool(pool));
        let gate = self.arena.close_gate(&pools);
        assert_eq!(gate.is_err(), moving, "seed {}", self.seed);
        self.gates.extend(gate.map(|gate| (gate, pools)).ok());
    }

    fn open_gate(&mut self) {
        if let Some((gate, _)) = self.gates.pop() {
            self.arena.open_gate(gate).unwrap();
            assert!(self.arena.open_gate(gate).is_err());
        }
    }

    fn begin(&mut self, did: &mut Did) {
        if self.running.is_some() {
            return;
        }
        let kind = self.below(8);
        let mut demand = Demand::default();
        let plan = match kind {
            0 => self.arena.plan_packing(),
            1 => {
                let budget = Bytes(self.below(12));
                let plan = self.arena.plan_compaction(budget);
                assert!(plan.as_ref().is_none_or(|plan| plan.moved_bytes() <= budget));
                plan
            }
            _ => {
                demand = self.random_demand(12);
                let victims = self.random_victims();
                let plan = self.arena.plan_prepare(&demand, &victims).ok();
                if victims.is_empty() {
                    let fits = self.arena.geometry(Question::AfterMoves).fits(&demand).is_ok();
                    assert_eq!(plan.is_some(), fits, "seed {}", self.seed);
                }
                plan
            }
        };
        let Some(plan) = plan else { return };
        did.packed += u64::from(kind < 2);
        let victims = plan.victims();
        let victims = self
            .arena
            .chain()
            .pool_ids()
            .flat_map(|pool| victims.pages[pool].iter().map(move |&virt| (pool, virt)))
            .collect();
        let sources = plan.moves().iter().map(|step| (step.pool, step.from)).collect();
        let pools: std::collections::BTreeSet<_> =
            plan.moves().iter().map(|step| step.pool).collect();
        did.moved_across += u64::from(pools.len() > 1);
        let prepare = self.arena.begin(plan);
        let most = Pages(self.below(4) as u32);
        let batches = prepare.batches(most);
        self.running = Some(Running { prepare, batches, landed: 0, demand, victims, sources });
    }

    /// The prepare under way gets one batch further, is committed at its end, or fails.
    fn advance(&mut self, did: &mut Did) {
        let fails = self.below(9) == 0;
        let Some(running) = &mut self.running else { return };
        let next = running.batches.get(running.landed).cloned();
        match next {
            Some(_) | None if fails => self.abort(did),
            Some(batch) => {
                running.landed += 1;
                let e = self.arena.chain().pool(batch.pool).page_bytes;
                // In any order within a batch: here all are read before any is written, or one by one.
                for (from, to) in batch.pairs {
                    let (from, to) = (from.offset(e).0 as usize, to.offset(e).0 as usize);
                    self.bytes.copy_within(from..from + e.0 as usize, to);
                }
            }
            None => self.commit(did),
        }
    }

    fn commit(&mut self, did: &mut Did) {
        let running = self.running.take().unwrap();
        for &(pool, virt) in &running.victims {
            let still_ours = self.arena.is_moving(pool, virt);
            if still_ours && self.live.contains_key(&(pool, virt)) {
                self.evict(pool, virt);
                did.evicted += 1;
            }
        }
        let before = self.pinned_places();
        did.moved += u64::from(running.prepare.moved_pages().0);
        let grant = self.arena.commit(running.prepare);
        self.settle();
        self.check_pinned(&before);
        self.write_grant(&grant, &running.demand);
        did.committed += 1;
    }

    fn abort(&mut self, did: &mut Did) {
        let running = self.running.take().unwrap();
        let mut launched = running.landed;
        if let Some(batch) = running.batches.get(launched).filter(|_| self.rng & 4096 != 0) {
            launched += 1;
            // Some of it was written, some of it half.
            let e = self.arena.chain().pool(batch.pool).page_bytes;
            for (index, (_, to)) in batch.pairs.iter().enumerate() {
                let start = to.offset(e).0 as usize;
                let len = (e.0 as usize).div_ceil(1 + index % 2);
                self.bytes[start..start + len].fill(0xdead);
            }
        }
        let copied = CopiedBatches::of(&running.batches, running.landed, launched);
        let before = self.pinned_places();
        let victims = running.victims.clone();
        let moving: Vec<_> =
            victims.into_iter().filter(|&(p, v)| self.arena.is_moving(p, v)).collect();
        let places: BTreeMap<_, _> =
            moving.iter().map(|&(p, v)| ((p, v), self.arena.locate(p, v))).collect();
        let aborted = self.arena.abort(running.prepare, copied);
        for pool in self.arena.chain().pool_ids() {
            for &virt in &aborted.lost.pages[pool] {
                assert!(places.contains_key(&(pool, virt)), "seed {}: no victim", self.seed);
                if let Some(tag) = self.live.remove(&(pool, virt)) {
                    let page = places[&(pool, virt)].unwrap();
                    if self.is_touched(pool, page) {
                        self.pending.insert((pool, page), tag);
                    }
                }
                did.lost_by_abort += 1;
            }
        }
        if launched == 0 {
            assert!(aborted.lost.is_empty(), "seed {}: nothing was written", self.seed);
        }
        self.settle();
        self.check_pinned(&before);
        did.aborted += 1;
        did.kept_by_abort += u64::from(aborted.moved.0);
    }

    fn evict(&mut self, pool: PoolId, virt: VirtId) {
        let page = self.arena.locate(pool, virt).unwrap();
        let tag = self.live.remove(&(pool, virt)).unwrap();
        if self.is_touched(pool, page) {
            self.pending.insert((pool, page), tag);
        }
    }

    /// Where the pages lie that a gate or a lease forbids to move.
    fn pinned_places(&self) -> Vec<(PoolId, VirtId, PageId)> {
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

    fn check_pinned(&self, before: &[(PoolId, VirtId, PageId)]) {
        for &(pool, virt, page) in before {
            if self.live.contains_key(&(pool, virt)) {
                assert_eq!(self.arena.locate(pool, virt), Some(page), "seed {}: I6", self.seed);
            }
        }
    }

    fn write_grant(&mut self, grant: &Grant, demand: &Demand) {
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

    fn write(&mut self, pool: PoolId, page: PageId, tag: ContentTag) {
        let e = self.arena.chain().pool(pool).page_bytes;
        let start = page.offset(e).0 as usize;
        for index in 0..e.0 as usize {
            self.bytes[start + index] = tag.0.wrapping_add(index as u64);
        }
    }

    fn scribble(&mut self, pool: PoolId, page: PageId) {
        self.write(pool, page, ContentTag(0xf4ee));
    }

    #[track_caller]
    fn check_reads(&self, pool: PoolId, page: PageId, tag: ContentTag, who: &str) {
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
    fn is_copied_over(&self, pool: PoolId, page: PageId) -> bool {
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

    fn verify(&self) {
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

    /// With nothing held and everything freed, the arena is as it was at first.
    fn quiesce(&mut self) {
        let mut did = Did::default();
        while self.running.is_some() {
            self.advance(&mut did);
            self.verify();
        }
        while !self.gates.is_empty() {
            self.open_gate();
        }
        while !self.leases.is_empty() {
            self.end_lease();
        }
        self.verify();
        if let Some(plan) = self.arena.plan_packing() {
            let prepare = self.arena.begin(plan);
            for batch in prepare.batches(Pages(2)) {
                let e = self.arena.chain().pool(batch.pool).page_bytes;
                for (from, to) in batch.pairs {
                    let (from, to) = (from.offset(e).0 as usize, to.offset(e).0 as usize);
                    self.bytes.copy_within(from..from + e.0 as usize, to);
                }
            }
            self.arena.commit(prepare);
            self.verify();
        }
        for pool in self.arena.chain().pool_ids() {
            assert_eq!(self.arena.counts(pool).holes, Pages(0), "packing leaves no hole");
        }
        assert!(self.arena.plan_packing().is_none());
        while let Some((&(pool, virt), _)) = self.live.first_key_value() {
            self.drop_id(pool, virt);
            self.arena.free(pool, virt).unwrap();
        }
        self.verify();
        for pool in self.arena.chain().pool_ids() {
            assert_eq!(self.arena.span(pool), None);
            assert_eq!(self.arena.free_ids(pool), self.capacity_of_ids(pool));
        }
    }

    fn capacity_of_ids(&self, pool: PoolId) -> Pages {
        let chain = self.arena.chain();
        match (chain.pool(pool).kind, chain.full()) {
            (PoolKind::Window { .. }, Some(full)) => chain.pages_max(full),
            _ => chain.pages_max(pool),
        }
    }

    fn random_demand(&mut self, most: u64) -> Demand {
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
    fn random_victims(&mut self) -> Victims {
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

    fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let index = self.below(items.len().max(1) as u64) as usize;
        items.get(index).copied()
    }
}

fn random_chain(rng: &mut u64) -> Chain {
    let count = 1 + below(rng, 4) as usize;
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
    let total = Bytes(12 + below(rng, 50));
    Chain::new(total, Tokens(16), None, pools).unwrap()
}

fn below(rng: &mut u64, bound: u64) -> u64 {
    *rng = rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *rng;
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ word >> 31) % bound.max(1)
}
