//! Reclaim plans on every small tree, against a search over all sets of pages that could go.
//!
//! Every tree of up to six pages of one token: every shape, every set of pages with a window page, with a state, and
//! under a lock, in two orders of use; every small demand on a few arenas. `KVTIDE_EXHAUSTIVE=full` runs them all (for
//! the chain of three pools at six pages, one in 97); otherwise a slice runs whose numbers are compared with a snapshot.

#![allow(clippy::unwrap_used, reason = "a test may panic, and says where")]

use kvtide_core::chain::{Chain, Grow, PoolKind, PoolSpec};
use kvtide_core::demand::Demand;
use kvtide_core::fit::{Geometry, Pins};
use kvtide_core::tree::{
    Lock, Namespace, Ordinals, OwnPage, PinnedPages, PlanRefusal, PlanRequest, PolicyKind, Prefer,
    Quota, ReclaimPlan, Tree, TreeSettings,
};
use kvtide_core::unit::{Bytes, PageId, Pages, PoolId, Token, Tokens, VirtId};

const WINDOW: usize = 2;
const PAGES_MAX: usize = 6;

/// A set of pages, by bit.
type Set = u8;

/// Which pools a chain has beside the full pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Pools {
    window: bool,
    state: bool,
}

/// One configuration. Page `i`'s parent comes before it.
#[derive(Clone, Debug)]
struct Config {
    parents: Vec<Option<usize>>,
    windows: Set,
    states: Set,
    locks: Set,
    reversed: bool,
}

/// What is left of the pages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Left {
    full: Set,
    windows: Set,
    states: Set,
}

/// Freed full pages, window pages and states.
type Freed = [u32; 3];

/// What a run saw.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Tally {
    configs: u64,
    questions: u64,
    exhausted: u64,
    free: u64,
    /// Plans that cost something.
    paid: u64,
    /// Among those, plans that cost as little as any set of pages could.
    cheapest: u64,
    /// Pages lost by those, and by the cheapest sets.
    lost: u64,
    least: u64,
    /// The worst plan: pages it loses, and pages that would do.
    worst: (u64, u64),
}

const fn has(set: Set, page: usize) -> bool {
    set >> page & 1 == 1
}

fn members(set: Set) -> impl Iterator<Item = usize> {
    (0..PAGES_MAX).filter(move |&page| has(set, page))
}

impl Config {
    fn count(&self) -> usize {
        self.parents.len()
    }

    /// Pages from the root to `page`.
    fn path(&self, page: usize) -> Vec<usize> {
        let mut path: Vec<usize> =
            std::iter::successors(Some(page), |&page| self.parents[page]).collect();
        path.reverse();
        path
    }

    fn children(&self, page: usize) -> impl Iterator<Item = usize> {
        (0..self.count()).filter(move |&child| self.parents[child] == Some(page))
    }

    /// Path ends that are published, in order.
    fn published(&self) -> Vec<usize> {
        let ends = |&page: &usize| {
            self.children(page).next().is_none() || has(self.states, page) || has(self.locks, page)
        };
        let mut published: Vec<usize> = (0..self.count()).filter(ends).collect();
        if self.reversed {
            published.reverse();
        }
        published
    }

    fn tree(&self, chain: &Chain, pools: Pools) -> (Tree, Vec<Lock>) {
        let mut tree = Tree::new(chain, TreeSettings { policy: PolicyKind::Lru });
        let mut locks = Vec::new();
        for end in self.published() {
            let path = self.path(end);
            let tokens: Vec<Token> = path.iter().map(|&page| page as Token).collect();
            let own: Vec<OwnPage> = path
                .iter()
                .map(|&page| OwnPage {
                    virt: VirtId(100 + page as u32),
                    windows: Ordinals::first(usize::from(pools.window && has(self.windows, page))),
                })
                .collect();
            let state = [VirtId(200 + end as u32)];
            let state = (pools.state && has(self.states, end)).then_some(&state[..]);
            let (root, _) = tree.open(&Namespace::default(), &[]);
            let lock = tree.publish(root, &tokens, &own, state).lock;
            if has(self.locks, end) {
                locks.push(lock);
            } else {
                tree.unlock(lock);
            }
        }
        (tree, locks)
    }

    /// All that locks hold.
    fn locked(&self) -> Left {
        let mut locked = Left { full: 0, windows: 0, states: self.locks };
        for end in members(self.locks) {
            let path = self.path(end);
            for (back, page) in path.iter().rev().enumerate() {
                locked.full |= 1 << page;
                if back < WINDOW {
                    locked.windows |= 1 << page;
                }
            }
        }
        locked
    }

    fn all(&self) -> Left {
        let full = ((1_u32 << self.count()) - 1) as Set;
        Left { full, windows: self.windows, states: self.states }
    }

    fn matchable(&self, pools: Pools, left: Left) -> u64 {
        let mut matchable: Set = 0;
        for page in members(left.full) {
            let path = self.path(page);
            let window = path.iter().rev().take(WINDOW).all(|&page| has(left.windows, page));
            let state = has(left.states, page);
            if (window || !pools.window) && (state || !pools.state) {
                path.iter().for_each(|page| matchable |= 1 << page);
            }
        }
        u64::from(matchable.count_ones())
    }

    /// Every set of pages that can be left, and the matchable pages that this loses; where nothing is `gated`, only
    /// the cheapest for every number of pages freed of each pool.
    fn costs(&self, pools: Pools, gated: bool) -> Vec<(Left, u64)> {
        let (all, locked) = (self.all(), self.locked());
        let before = self.matchable(pools, all);
        let mut every = Vec::new();
        let mut least = vec![None::<(Left, u64)>; 7 * 7 * 7];
        for full in 0..=all.full {
            let orphans = members(full)
                .any(|page| self.parents[page].is_some_and(|parent| !has(full, parent)));
            if orphans || full & locked.full != locked.full {
                continue;
            }
            let free_windows = all.windows & full & !locked.windows;
            let free_states = all.states & full & !locked.states;
            for windows_gone in subsets(free_windows) {
                for states_gone in subsets(free_states) {
                    let left = Left {
                        full,
                        windows: all.windows & full & !windows_gone,
                        states: all.states & full & !states_gone,
                    };
                    let lost = before - self.matchable(pools, left);
                    if gated {
                        every.push((left, lost));
                        continue;
                    }
                    let slot = &mut least[index(freed(all, left))];
                    if slot.is_none_or(|(_, least)| lost < least) {
                        *slot = Some((left, lost));
                    }
                }
            }
        }
        every.extend(least.into_iter().flatten());
        every
    }

    /// What whole leaves in order of use leave behind, when the demand fits first; none if it never does.
    fn plain_walk(&self, pools: Pools, fits: impl Fn(Left) -> bool) -> Option<u64> {
        let (all, locked) = (self.all(), self.locked());
        let published = self.published();
        let used = |page: usize| published.iter().rposition(|&end| self.path(end).contains(&page));
        let mut left = all;
        while !fits(left) {
            let leaf = |&page: &usize| {
                !has(locked.full, page) && !self.children(page).any(|child| has(left.full, child))
            };
            // Leaves share no use: one was published after the other.
            let mut page = members(left.full).filter(leaf).min_by_key(|&page| used(page))?;
            loop {
                left.full &= !(1 << page);
                left.windows &= left.full;
                left.states &= left.full;
                let Some(parent) = self.parents[page] else { break };
                let ends = self.children(parent).count() > 1
                    || published.contains(&parent)
                    || has(locked.full, parent);
                if ends {
                    break;
                }
                page = parent;
            }
        }
        Some(self.matchable(pools, all) - self.matchable(pools, left))
    }
}

fn freed(all: Left, left: Left) -> Freed {
    let gone = |all: Set, left: Set| (all & !left).count_ones();
    [gone(all.full, left.full), gone(all.windows, left.windows), gone(all.states, left.states)]
}

fn index(freed: Freed) -> usize {
    freed.iter().fold(0, |index, &count| index * 7 + count as usize)
}

fn subsets(set: Set) -> impl Iterator<Item = Set> {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let now: Set = next?;
        next = (now != set).then(|| (now.wrapping_sub(set)) & set);
        Some(now)
    })
}

/// Every shape of `count` pages once: parents before children, siblings' subtrees in order.
fn shapes(count: usize) -> Vec<Vec<Option<usize>>> {
    let mut shapes = vec![Vec::new()];
    for page in 0..count {
        let longer = |shape: Vec<Option<usize>>| {
            let parents = std::iter::once(None).chain((0..page).map(Some));
            parents.map(move |parent| {
                let mut longer = shape.clone();
                longer.push(parent);
                longer
            })
        };
        shapes = shapes.into_iter().flat_map(longer).collect();
    }
    shapes.sort();
    let mut seen = std::collections::BTreeSet::new();
    shapes.retain(|shape| seen.insert(canonical(shape, None)));
    shapes
}

fn canonical(shape: &[Option<usize>], root: Option<usize>) -> String {
    let children = (0..shape.len()).filter(|&child| shape[child] == root);
    let mut parts: Vec<String> = children.map(|child| canonical(shape, Some(child))).collect();
    parts.sort();
    format!("({})", parts.concat())
}

fn chain(pools: Pools, total: u64) -> Chain {
    let spec = |name: &str, kind, grow, bytes| PoolSpec {
        name: name.to_owned(),
        kind,
        grow,
        page_bytes: Bytes(bytes),
        pages_max: None,
    };
    let mut specs = vec![spec("full", PoolKind::Full, Grow::Up, 2)];
    if pools.window {
        let window = PoolKind::Window { window: Tokens(WINDOW as u32) };
        specs.push(spec("window", window, Grow::Float, 3));
    }
    if pools.state {
        specs.push(spec("state", PoolKind::State, Grow::Down, 5));
    }
    Chain::new(Bytes(total), Tokens(1), None, specs).unwrap()
}

/// The chain's pools in the order of [`Freed`].
fn kinds(chain: &Chain) -> [Option<PoolId>; 3] {
    [chain.full(), chain.windows().first().copied(), chain.states().first().copied()]
}

/// Where pages are: by kind, then page.
type Layout = [[u32; PAGES_MAX]; 3];

/// Full pages from the bottom with a hole among them, then window pages, and states from the top.
fn layout(chain: &Chain, cached: Left) -> Layout {
    let mut layout = Layout::default();
    let [full, window, state] = kinds(chain);
    let first = |pool: Option<PoolId>| pool.map_or(0, |pool| chain.first_page(pool).0);
    let mut end = 0;
    for page in members(cached.full) {
        layout[0][page] = first(full) + page as u32 + u32::from(page >= 2);
        end = layout[0][page] + 1;
    }
    let above = first(window).max((end * 2).div_ceil(3));
    for (at, page) in (above..).zip(members(cached.windows)) {
        layout[1][page] = at;
    }
    let grid = state.map_or(0, |pool| chain.grid_pages(pool).0);
    for (back, page) in (1..).zip(members(cached.states)) {
        layout[2][page] = grid.saturating_sub(back);
    }
    layout
}

/// What a plan is told of gated pools.
struct Gated<'a> {
    kinds: [Option<PoolId>; 3],
    gates: Set,
    layout: &'a Layout,
    cached: [Set; 3],
}

impl Gated<'_> {
    fn pages(&self, pool: PoolId) -> impl DoubleEndedIterator<Item = PageId> {
        let kind = self.kinds.iter().position(|&kind| kind == Some(pool)).unwrap();
        let mut pages: Vec<PageId> =
            members(self.cached[kind]).map(|page| PageId(self.layout[kind][page])).collect();
        pages.sort();
        pages.into_iter()
    }
}

impl PinnedPages for Gated<'_> {
    fn page(&self, pool: PoolId, virt: VirtId) -> Option<PageId> {
        let kind = self.kinds.iter().position(|&kind| kind == Some(pool))?;
        let page = (virt.0 % 100) as usize;
        has(self.gates, kind).then(|| PageId(self.layout[kind][page]))
    }

    fn above(&self, pool: PoolId, page: PageId) -> Option<PageId> {
        self.pages(pool).find(|&other| other > page)
    }

    fn below(&self, pool: PoolId, page: PageId) -> Option<PageId> {
        self.pages(pool).rfind(|&other| other < page)
    }
}

/// One arena, and every demand that might be met. Pools among `gates` (by kind) may not move.
struct Question<'a> {
    config: &'a Config,
    pools: Pools,
    tree: &'a Tree,
    chain: Chain,
    layout: Layout,
    gates: Set,
    costs: &'a [(Left, u64)],
}

impl Question<'_> {
    fn geometry(&self, left: Left) -> Geometry {
        let mut geometry = Geometry::empty(&self.chain);
        let sets = [left.full, left.windows, left.states];
        for (kind, pool) in kinds(&self.chain).into_iter().enumerate() {
            let Some(pool) = pool else { continue };
            let fit = geometry.pool_mut(pool);
            fit.live = Pages(sets[kind].count_ones());
            if has(self.gates, kind) {
                let pages = || members(sets[kind]).map(|page| PageId(self.layout[kind][page]));
                fit.pins = pages().min().zip(pages().max()).map(|(lo, hi)| Pins { lo, hi });
            }
        }
        geometry
    }

    fn fits(&self, demand: &Demand, left: Left) -> bool {
        self.geometry(left).fits(demand).is_ok()
    }

    fn ask(&self, demand: Demand, prefer: Prefer, tally: &mut Tally) {
        tally.questions += 1;
        let all = self.config.all();
        let gated = Gated {
            kinds: kinds(&self.chain),
            gates: self.gates,
            layout: &self.layout,
            cached: [all.full, all.windows, all.states],
        };
        let request = PlanRequest {
            geometry: self.geometry(all),
            demand,
            pinned: (self.gates != 0).then_some(&gated as &dyn PinnedPages),
            prefer,
            quota: Quota::None,
        };
        let plan = self.tree.plan(&request);
        let able = self.costs.iter().filter(|(left, _)| self.fits(&demand, *left));
        let least = able.map(|(_, lost)| *lost).min();
        let context = || format!("{:?} gates {} {demand:?} {prefer:?}", self.config, self.gates);
        match (plan, least) {
            (Err(PlanRefusal::Exhausted { .. }), None) => tally.exhausted += 1,
            (Ok(plan), Some(least)) => {
                self.check_plan(&plan, &demand, least, tally, &context);
            }
            (plan, least) => panic!("{plan:?}, where {least:?} would do: {}", context()),
        }
    }

    fn check_plan(
        &self,
        plan: &ReclaimPlan,
        demand: &Demand,
        least: u64,
        tally: &mut Tally,
        context: &dyn Fn() -> String,
    ) {
        let (all, locked) = (self.config.all(), self.config.locked());
        let mut left = all;
        for victim in plan.victims() {
            let (set, locked) = match kinds(&self.chain).map(|pool| pool == Some(victim.pool)) {
                [true, _, _] => (&mut left.full, locked.full),
                [_, true, _] => (&mut left.windows, locked.windows),
                _ => (&mut left.states, locked.states),
            };
            let page = (victim.virt.0 % 100) as usize;
            assert!(has(*set, page) && !has(locked, page), "{victim:?}: {}", context());
            *set &= !(1 << page);
        }
        let whole = |page: usize| self.config.path(page).iter().all(|&page| has(left.full, page));
        assert!(members(left.full).all(whole), "an orphan: {}", context());
        assert_eq!((left.windows | left.states) & !left.full, 0, "hangs on nothing: {}", context());
        assert!(self.fits(demand, left), "does not fit: {}", context());
        self.check_irreducible(left, demand, context);
        let lost = self.config.matchable(self.pools, all) - self.config.matchable(self.pools, left);
        assert_eq!(u64::from(plan.matchable_lost().0), lost, "cost: {}", context());
        let plain = self.config.plain_walk(self.pools, |left| self.fits(demand, left));
        assert!(plain.is_none_or(|plain| lost <= plain), "{lost} > {plain:?}: {}", context());
        if least == 0 {
            assert_eq!(lost, 0, "costs, though something free would do: {}", context());
            tally.free += 1;
            return;
        }
        tally.paid += 1;
        tally.cheapest += u64::from(lost == least);
        tally.lost += lost;
        tally.least += least;
        if lost * tally.worst.1 > tally.worst.0 * least || tally.worst.1 == 0 {
            tally.worst = (lost, least);
        }
    }

    /// Taking back any one page that can be taken back makes the demand fail.
    fn check_irreducible(&self, left: Left, demand: &Demand, context: &dyn Fn() -> String) {
        let all = self.config.all();
        for page in 0..self.config.count() {
            let bit = 1 << page;
            let parent = self.config.parents[page];
            let reachable = parent.is_none_or(|parent| has(left.full, parent));
            let mut back = Vec::new();
            if !has(left.full, page) && reachable {
                back.push(Left { full: left.full | bit, ..left });
            }
            if has(all.windows & left.full & !left.windows, page) {
                back.push(Left { windows: left.windows | bit, ..left });
            }
            if has(all.states & left.full & !left.states, page) {
                back.push(Left { states: left.states | bit, ..left });
            }
            for more in back {
                assert!(!self.fits(demand, more), "{page} could stay: {}", context());
            }
        }
    }
}

fn run_config(config: &Config, pools: Pools, gates: Set, tally: &mut Tally) {
    tally.configs += 1;
    // Bytes do not matter to the tree.
    let (mut tree, locks) = config.tree(&chain(pools, 1_000), pools);
    tree.check().unwrap();
    let before = tree.fingerprint();
    let costs = config.costs(pools, gates != 0);
    let arena = |total: u64| {
        let chain = chain(pools, total);
        let layout = layout(&chain, config.all());
        Question { config, pools, tree: &tree, chain, layout, gates, costs: &costs }
    };
    // The least that holds what is cached, and a little more. Below 10, some pool has no page at all.
    let holds = |&total: &u64| arena(total).fits(&Demand::default(), config.all());
    let least = (10..).find(holds).unwrap();
    for total in [least, least + 3] {
        let question = arena(total);
        for full in 0..=3 {
            for window in 0..=if pools.window { full } else { 0 } {
                for state in 0..=if pools.state { 2 } else { 0 } {
                    let mut demand = Demand::default();
                    let counts = [full, window, state];
                    for (pool, count) in kinds(&question.chain).into_iter().zip(counts) {
                        if let Some(pool) = pool {
                            demand.0[pool] = Pages(count);
                        }
                    }
                    let prefer = if (full + window + state) % 2 == 0 {
                        Prefer::Full
                    } else {
                        Prefer::Window
                    };
                    question.ask(demand, prefer, tally);
                }
            }
        }
    }
    assert_eq!(tree.fingerprint(), before, "planning changed something: {config:?}");
    locks.into_iter().for_each(|lock| tree.unlock(lock));
    tree.check().unwrap();
}

/// Every `stride`-th configuration of `count` pages.
fn run(pools: Pools, gates: Set, count: usize, stride: usize) -> Tally {
    let mut tally = Tally::default();
    let sets = 1_usize << count;
    let (windows, states) =
        (if pools.window { sets } else { 1 }, if pools.state { sets } else { 1 });
    let mut number = 0_usize;
    for parents in shapes(count) {
        for choice in 0..windows * states * sets * 2 {
            number += 1;
            if !number.is_multiple_of(stride) {
                continue;
            }
            let (rest, reversed) = (choice / 2, choice % 2 == 1);
            let config = Config {
                parents: parents.clone(),
                locks: (rest % sets) as Set,
                windows: (rest / sets % windows) as Set,
                states: (rest / sets / windows) as Set,
                reversed,
            };
            run_config(&config, pools, gates, &mut tally);
        }
    }
    tally
}

/// Runs every count of pages, the six-page trees with `stride`, or all with the stride of a full run.
fn run_all(pools: Pools, strides: [usize; PAGES_MAX], full_stride: usize) -> Vec<Tally> {
    let full = std::env::var("KVTIDE_EXHAUSTIVE").is_ok_and(|value| value == "full");
    let mut tallies = Vec::new();
    for (count, stride) in (1..).zip(strides) {
        let full_stride = if count == PAGES_MAX { full_stride } else { 1 };
        let tally = run(pools, 0, count, if full { full_stride } else { stride });
        println!("{pools:?}, {count} pages: {tally:?}");
        tallies.push(tally);
    }
    tallies
}

fn sum(tallies: &[Tally]) -> Tally {
    let mut sum = Tally::default();
    for tally in tallies {
        sum.configs += tally.configs;
        sum.questions += tally.questions;
        sum.exhausted += tally.exhausted;
        sum.free += tally.free;
        sum.paid += tally.paid;
        sum.cheapest += tally.cheapest;
        sum.lost += tally.lost;
        sum.least += tally.least;
        if tally.worst.0 * sum.worst.1 > sum.worst.0 * tally.worst.1 || sum.worst.1 == 0 {
            sum.worst = tally.worst;
        }
    }
    sum
}

#[track_caller]
fn check(pools: Pools, strides: [usize; PAGES_MAX], full_stride: usize, want: &str) {
    let sum = sum(&run_all(pools, strides, full_stride));
    let got = format!(
        "{} questions, {} exhausted, {} free, {} paid of which {} cheapest, {} lost for {}, worst {}/{}",
        sum.questions,
        sum.exhausted,
        sum.free,
        sum.paid,
        sum.cheapest,
        sum.lost,
        sum.least,
        sum.worst.0,
        sum.worst.1
    );
    println!("{pools:?}: {got}");
    if std::env::var_os("KVTIDE_EXHAUSTIVE").is_none() {
        assert_eq!(got, want);
    }
}

#[test]
fn every_shape_is_tried_once() {
    let counts: Vec<usize> = (1..=PAGES_MAX).map(|count| shapes(count).len()).collect();
    assert_eq!(counts, [1, 2, 4, 9, 20, 48]);
}

#[test]
fn plans_are_right_where_pages_are_full_only() {
    check(
        Pools { window: false, state: false },
        [1; PAGES_MAX],
        1,
        "62368 questions, 13890 exhausted, 23600 free, 24878 paid of which 24878 cheapest, 38684 lost for 38684, worst 1/1",
    );
}

#[test]
fn plans_are_right_with_a_window() {
    check(
        Pools { window: true, state: false },
        [1, 1, 1, 1, 5, 31],
        1,
        "521360 questions, 182765 exhausted, 248326 free, 90269 paid of which 89028 cheapest, 136471 lost for 134442, worst 5/1",
    );
}

#[test]
fn plans_are_right_with_a_state() {
    check(
        Pools { window: false, state: true },
        [1, 1, 1, 1, 5, 31],
        1,
        "625632 questions, 177829 exhausted, 254477 free, 193326 paid of which 183416 cheapest, 304926 lost for 293266, worst 5/1",
    );
}

#[test]
fn plans_are_right_with_a_window_and_a_state() {
    check(
        Pools { window: true, state: true },
        [1, 1, 1, 3, 101, 3_001],
        97,
        "3018360 questions, 1325045 exhausted, 1304149 free, 389166 paid of which 383014 cheapest, 596191 lost for 588041, worst 5/1",
    );
}

#[test]
fn plans_are_right_where_gated_pools_cannot_move() {
    let pools = Pools { window: true, state: true };
    let mut tallies = Vec::new();
    for gates in 1..8 {
        for (count, stride) in [(1, 1), (2, 1), (3, 11), (4, 301), (5, 10_007), (6, 300_007)] {
            tallies.push(run(pools, gates, count, stride));
        }
    }
    let sum = sum(&tallies);
    println!("{sum:?}");
    assert!(sum.exhausted > 1_000 && sum.free > 1_000 && sum.paid > 1_000, "{sum:?}");
}
