//! Which cached pages to evict for a demand (design section 5).

use super::Tree;
use super::counters::tokens;
use super::freed::{Freed, PinnedPages};
use super::node::{NodeId, VictimClass};
use super::shape::Lane;
use super::walk::{Order, Trimmed, Walk};
use crate::demand::Demand;
use crate::fit::{Bound, Geometry};
use crate::unit::{Bytes, Pages, PerPool, PoolId, Tokens, VirtId};

/// Which side gives first where the cost is the same.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Prefer {
    /// Full pages.
    #[default]
    Full,
    /// Window pages and states: for where something else can restore them.
    Window,
}

/// The most that one allocation may reclaim.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Quota {
    /// Anything.
    #[default]
    None,
    /// The demand's own pages of each token pool, and the state slots whose bytes cover the demand's.
    Demand,
    /// So many bytes.
    Bytes(Bytes),
}

/// What a plan is asked.
#[derive(Clone, Copy)]
pub struct PlanRequest<'a> {
    /// The arena, with the pins of the question asked.
    pub geometry: Geometry,
    /// What must fit.
    pub demand: Demand,
    /// Pools among the geometry's whose live pages may not move, if there are any.
    pub pinned: Option<&'a dyn PinnedPages>,
    /// Breaks ties.
    pub prefer: Prefer,
    /// The most to reclaim.
    pub quota: Quota,
}

/// One page of one pool that has to go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Victim {
    /// Its pool.
    pub pool: PoolId,
    /// Its id.
    pub virt: VirtId,
    /// Why it was taken when it was.
    pub class: VictimClass,
    /// Pages before it on its path; for a state, one less than its boundary.
    pub position: Pages,
    pub(super) node: NodeId,
    pub(super) lane: Lane,
}

/// Which cached pages to evict for a demand. Nothing has changed yet; good for [`Tree::detach`] until the tree changes.
///
/// Irreducible: without any one of its victims, and what hangs on no other, the demand would not fit.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a plan does nothing until it is detached"]
pub struct ReclaimPlan {
    pub(super) victims: Vec<Victim>,
    pub(super) version: u64,
    evicted: PerPool<Pages>,
    matchable_lost: Tokens,
    questions: u64,
}

/// Why no plan makes the demand fit. Nothing has changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PlanRefusal {
    /// Not even with everything evictable given back.
    #[error("{bound}, with everything evictable given back")]
    Exhausted {
        /// What refuses then.
        bound: Bound,
        /// Evictable pages by pool.
        evictable: PerPool<Pages>,
    },
    /// Not within the quota.
    #[error("{bound}, with as much evicted as the quota allows")]
    Quota {
        /// What refuses then.
        bound: Bound,
        /// What would have to go, by pool, without a quota.
        wanted: PerPool<Pages>,
    },
}

/// What is left of a quota.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pages: PerPool<Pages>,
    bytes: u64,
    page_bytes: PerPool<Bytes>,
}

impl Prefer {
    /// Place among lanes of the same rank.
    pub(super) fn side(self, lane: Lane) -> u8 {
        match (self, lane) {
            (Prefer::Full, Lane::Tail) | (Prefer::Window, Lane::Window(_)) => 0,
            (Prefer::Full, Lane::Window(_)) | (Prefer::Window, Lane::State(_)) => 1,
            (Prefer::Full, Lane::State(_)) | (Prefer::Window, Lane::Tail) => 2,
        }
    }
}

impl ReclaimPlan {
    fn new(tree: &Tree, trimmed: Trimmed, questions: u64) -> Self {
        ReclaimPlan {
            evicted: count(&trimmed.victims),
            matchable_lost: tokens(trimmed.lost, tree.shape.page_tokens),
            victims: trimmed.victims,
            version: tree.version,
            questions,
        }
    }

    /// Whether nothing has to go: moving is enough, or not even that is needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.victims.is_empty()
    }

    /// What has to go, in the order in which it was taken.
    #[must_use]
    pub fn victims(&self) -> &[Victim] {
        &self.victims
    }

    /// Pages (slots) that go, by pool.
    #[must_use]
    pub fn evicted(&self) -> PerPool<Pages> {
        self.evicted
    }

    /// Tokens that no prompt can be served any more.
    #[must_use]
    pub fn matchable_lost(&self) -> Tokens {
        self.matchable_lost
    }

    /// How often feasibility was asked: at most a few times for each page looked at.
    #[must_use]
    pub fn questions(&self) -> u64 {
        self.questions
    }
}

impl Budget {
    /// `None` where there is no quota.
    fn of(request: &PlanRequest<'_>, tree: &Tree) -> Option<Self> {
        let mut budget = Budget {
            pages: PerPool([Pages(u32::MAX); _]),
            bytes: u64::MAX,
            page_bytes: PerPool::default(),
        };
        let mut demanded = 0_u64;
        for (pool, fit) in request.geometry.pools() {
            budget.page_bytes[pool] = fit.page_bytes;
            let bytes = request.demand.0[pool].bytes(fit.page_bytes).0;
            demanded = demanded.saturating_add(bytes);
        }
        match request.quota {
            Quota::None => return None,
            Quota::Bytes(bytes) => budget.bytes = bytes.0,
            Quota::Demand => {
                for (pool, fit) in request.geometry.pools() {
                    budget.pages[pool] = if tree.shape.states.contains(&pool) {
                        let slots = demanded.div_ceil(fit.page_bytes.0.max(1));
                        Pages(slots.try_into().unwrap_or(u32::MAX))
                    } else {
                        request.demand.0[pool]
                    };
                }
            }
        }
        Some(budget)
    }

    pub(super) fn allows(&self, pool: PoolId) -> bool {
        self.pages[pool].0 > 0 && self.bytes >= self.page_bytes[pool].0
    }

    pub(super) fn spend(&mut self, pool: PoolId) {
        self.pages[pool].0 = self.pages[pool].0.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(self.page_bytes[pool].0);
    }

    fn covers(mut self, victims: &[Victim]) -> bool {
        victims.iter().all(|victim| {
            let allowed = self.allows(victim.pool);
            self.spend(victim.pool);
            allowed
        })
    }
}

impl Tree {
    /// Which cached pages to evict so that the demand fits; none, if it fits already. Changes nothing.
    ///
    /// O(pages looked at × (pools + log n)), and the words of their nodes' edges; O(pools) to refuse when nothing is
    /// pinned. Where the plan would cost matchable tokens, the plain walk in policy order is tried too, and wins if it
    /// is cheaper.
    ///
    /// # Errors
    /// [`PlanRefusal`]: nothing evictable is enough, or the quota does not allow it.
    pub fn plan(&self, request: &PlanRequest<'_>) -> Result<ReclaimPlan, PlanRefusal> {
        let mut freed = Freed::new(request.geometry, request.demand, request.pinned);
        let Err(bound) = freed.fits() else {
            let nothing = Trimmed { victims: Vec::new(), lost: 0, asked: 1 };
            return Ok(ReclaimPlan::new(self, nothing, 1));
        };
        let evictable = self.tally.all_evictable();
        if request.pinned.is_none() {
            let mut all = request.geometry;
            for (pool, _) in request.geometry.pools() {
                let live = &mut all.pool_mut(pool).live.0;
                *live = live.saturating_sub(evictable[pool].0);
            }
            if let Err(bound) = all.fits(&request.demand) {
                return Err(PlanRefusal::Exhausted { bound, evictable });
            }
        }
        let walk = |order, budget| {
            Walk::new(self, freed.clone(), request.prefer, budget).run(order, bound)
        };
        let best = walk(Order::Classes, None)
            .map_err(|(bound, _)| PlanRefusal::Exhausted { bound, evictable })?;
        let mut questions = best.asked + 1;
        // What costs a single page cannot be beaten: were there anything free, the walk would have found it.
        let best = if best.lost <= 1 {
            best
        } else {
            match walk(Order::WholeLeaves, None) {
                Ok(plain) => {
                    questions += plain.asked;
                    if plain.lost < best.lost { plain } else { best }
                }
                Err(_) => best,
            }
        };
        let budget = Budget::of(request, self);
        if budget.is_none_or(|budget| budget.covers(&best.victims)) {
            return Ok(ReclaimPlan::new(self, best, questions));
        }
        // What can be had within a quota depends on where it is spent: over all lanes, or on one.
        let orders = std::iter::once(Order::Classes).chain(self.shape.all_lanes().map(Order::Only));
        let mut refused = bound;
        for order in orders {
            match walk(order, budget) {
                Ok(within) => {
                    questions += within.asked;
                    return Ok(ReclaimPlan::new(self, within, questions));
                }
                Err((bound, _)) if order == Order::Classes => refused = bound,
                Err(_) => {}
            }
        }
        Err(PlanRefusal::Quota { bound: refused, wanted: count(&best.victims) })
    }
}

fn count(victims: &[Victim]) -> PerPool<Pages> {
    let mut pages = PerPool::default();
    for victim in victims {
        let count: &mut Pages = &mut pages[victim.pool];
        count.0 += 1;
    }
    pages
}
