//! One demand on one arena, and what the right answers are.

use crate::config::{Config, Freed, Left, PAGES_MAX, Pools, Set, freed, has, members};
use crate::{Tally, kinds};
use kvtide_core::chain::Chain;
use kvtide_core::demand::Demand;
use kvtide_core::fit::{Geometry, Pins};
use kvtide_core::tree::{PinnedPages, PlanRefusal, PlanRequest, Prefer, Quota, ReclaimPlan, Tree};
use kvtide_core::unit::{PageId, Pages, PoolId, VirtId};

/// Where pages are: by kind, then page.
pub(crate) type Layout = [[u32; PAGES_MAX]; 3];

/// Full pages from the bottom with a hole among them, then window pages, and states from the top; full pages the
/// deepest first where use is reversed too.
pub(crate) fn layout(chain: &Chain, config: &Config) -> Layout {
    let mut layout = Layout::default();
    let cached = config.all();
    let [full, window, state] = kinds(chain);
    let first = |pool: Option<PoolId>| pool.map_or(0, |pool| chain.first_page(pool).0);
    let mut end = 0;
    for page in members(cached.full) {
        let at = if config.reversed { config.count() - 1 - page } else { page };
        layout[0][page] = first(full) + at as u32 + u32::from(at >= 2);
        end = end.max(layout[0][page] + 1);
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
pub(crate) struct Gated<'a> {
    pub(crate) kinds: [Option<PoolId>; 3],
    pub(crate) gates: Set,
    pub(crate) layout: &'a Layout,
    pub(crate) cached: [Set; 3],
}

impl Gated<'_> {
    pub(crate) fn pages(&self, pool: PoolId) -> impl DoubleEndedIterator<Item = PageId> {
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
pub(crate) struct Question<'a> {
    pub(crate) config: &'a Config,
    pub(crate) pools: Pools,
    pub(crate) tree: &'a Tree,
    pub(crate) chain: Chain,
    pub(crate) layout: Layout,
    pub(crate) gates: Set,
    pub(crate) costs: &'a [(Left, u64)],
}

impl Question<'_> {
    pub(crate) fn geometry(&self, left: Left) -> Geometry {
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

    pub(crate) fn fits(&self, demand: &Demand, left: Left) -> bool {
        self.geometry(left).fits(demand).is_ok()
    }

    pub(crate) fn ask(&self, demand: Demand, prefer: Prefer, tally: &mut Tally) {
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

    pub(crate) fn check_plan(
        &self,
        plan: &ReclaimPlan,
        demand: &Demand,
        least: u64,
        tally: &mut Tally,
        context: &dyn Fn() -> String,
    ) {
        let all = self.config.all();
        let left = self.left_by(plan, demand, context);
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

    /// What a plan leaves, once it has been found to be a valid one.
    pub(crate) fn left_by(
        &self,
        plan: &ReclaimPlan,
        demand: &Demand,
        context: &dyn Fn() -> String,
    ) -> Left {
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
        left
    }

    /// A plan within a quota is a valid one and keeps to it.
    pub(crate) fn ask_within(&self, demand: Demand, quota: Quota, tally: &mut Tally) {
        let all = self.config.all();
        let geometry = self.geometry(all);
        let bytes = [2, 3, 5];
        let cost = |freed: Freed| freed.iter().zip(bytes).map(|(n, bytes)| n * bytes).sum::<u32>();
        let demanded = kinds(&self.chain).map(|pool| pool.map_or(0, |pool| demand.0[pool].0));
        let allowed = |left: &Left| {
            let freed = freed(all, *left);
            match quota {
                Quota::None => true,
                Quota::Bytes(bytes) => u64::from(cost(freed)) <= bytes.0,
                Quota::Demand => {
                    freed[0] <= demanded[0]
                        && freed[1] <= demanded[1]
                        && freed[2] <= cost(demanded).div_ceil(5)
                }
            }
        };
        let context = || format!("{:?} {demand:?} {quota:?}", self.config);
        let request = PlanRequest { geometry, demand, pinned: None, prefer: Prefer::Full, quota };
        let mut able = self.costs.iter().filter(|(left, _)| self.fits(&demand, *left));
        let able = able.any(|(left, _)| allowed(left));
        tally.within_quota += u64::from(able && geometry.fits(&demand).is_err());
        match self.tree.plan(&request) {
            Ok(plan) => {
                let left = self.left_by(&plan, &demand, &context);
                assert!(allowed(&left), "beyond the quota: {}", context());
            }
            Err(PlanRefusal::Quota { .. }) => tally.refused += u64::from(able),
            Err(PlanRefusal::Exhausted { .. }) => assert!(!able, "could: {}", context()),
        }
    }

    /// Taking back any one page that can be taken back makes the demand fail.
    pub(crate) fn check_irreducible(
        &self,
        left: Left,
        demand: &Demand,
        context: &dyn Fn() -> String,
    ) {
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
