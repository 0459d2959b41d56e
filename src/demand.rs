//! Pages needed per pool by one allocation, all or nothing (design section 3).

use crate::chain::{Chain, PoolKind};
use crate::unit::{Pages, PerPool, PoolId, Tokens};

/// Pages wanted of every pool; slots, of a state pool.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Demand(pub PerPool<Pages>);

/// One sequence's step from `old` to `new` computed tokens.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extend {
    /// Tokens computed before.
    pub old: Tokens,
    /// Tokens computed after; at least `old`.
    pub new: Tokens,
    /// Which new pages get window pages.
    pub windows: WindowDemand,
}

/// Which of an extend's new pages get a window page.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum WindowDemand {
    /// Each: the step computes them all.
    #[default]
    Every,
    /// Only those that the window still covers when the step ends: the prefix was computed elsewhere.
    Tail,
}

/// A demand that is known to the page: what a sequence on one rank needs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ExactDemand(Demand);

/// A demand that bounds from above what a sharded sequence may need on this rank.
///
/// Under decode context parallelism a rank cannot know which of a sequence's pages fall to it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ConservativeDemand(Demand);

/// A demand and how well it is known. Capacity answers for the second kind are safe, not exact.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AnyDemand {
    /// Known to the page.
    Exact(ExactDemand),
    /// An upper bound.
    Conservative(ConservativeDemand),
}

/// Why a demand makes no sense. Nothing changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum DemandError {
    /// Window pages are bound under the ids of full pages.
    #[error(
        "{window} of a window pool (pool {pool:?}) against {full} of the full pool: a window page needs a full page"
    )]
    MoreWindowThanFull {
        /// The window pool.
        pool: PoolId,
        /// Window pages wanted.
        window: Pages,
        /// Full pages wanted.
        full: Pages,
    },
    /// A step that goes backwards.
    #[error("a step from {old} to {new} goes backwards")]
    Backwards {
        /// Tokens before.
        old: Tokens,
        /// Tokens after.
        new: Tokens,
    },
    /// More pages than can be counted.
    #[error("the demand for pool {pool:?} overflows")]
    Overflow {
        /// The pool.
        pool: PoolId,
    },
    /// Pages of a pool that the chain does not have.
    #[error("{pages} of pool {pool:?}, but the chain has {pools} pools")]
    NoPool {
        /// The pool.
        pool: PoolId,
        /// Pages wanted of it.
        pages: Pages,
        /// Pools of the chain.
        pools: usize,
    },
    /// A sequence sharded over no ranks.
    #[error("a sequence needs at least one rank")]
    NoRanks,
}

impl Demand {
    /// Whether nothing is wanted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.0.iter().all(|pages| *pages == Pages(0))
    }

    /// Wants `pages` more of `pool`.
    ///
    /// # Errors
    /// [`DemandError::Overflow`].
    pub fn with(mut self, pool: PoolId, pages: Pages) -> Result<Self, DemandError> {
        let sum = self.0[pool].0.checked_add(pages.0).ok_or(DemandError::Overflow { pool })?;
        self.0[pool] = Pages(sum);
        Ok(self)
    }

    /// The demand of both, met together. O(pools).
    ///
    /// # Errors
    /// [`DemandError::Overflow`].
    pub fn plus(mut self, other: Demand) -> Result<Self, DemandError> {
        for pool in (0..).map(PoolId).take(self.0.0.len()) {
            self = self.with(pool, other.0[pool])?;
        }
        Ok(self)
    }

    /// Checks that the chain has every pool, and every window page a full page to be bound under.
    ///
    /// # Errors
    /// [`DemandError::NoPool`] and [`DemandError::MoreWindowThanFull`].
    pub fn check(&self, chain: &Chain) -> Result<(), DemandError> {
        let pools = chain.pool_ids().len();
        let beyond = (0..).map(PoolId).zip(self.0.0).skip(pools);
        if let Some((pool, pages)) = beyond.into_iter().find(|(_, pages)| *pages != Pages(0)) {
            return Err(DemandError::NoPool { pool, pages, pools });
        }
        let full = chain.full().map_or(Pages(0), |full| self.0[full]);
        match chain.windows().iter().find(|&&pool| self.0[pool] > full) {
            Some(&pool) => {
                Err(DemandError::MoreWindowThanFull { pool, window: self.0[pool], full })
            }
            None => Ok(()),
        }
    }
}

impl ExactDemand {
    /// The pages.
    #[must_use]
    pub fn demand(&self) -> Demand {
        self.0
    }

    /// What a batch of extends needs, to the page: the sum over its sequences. O(extends × pools).
    ///
    /// # Errors
    /// [`DemandError::Backwards`] and [`DemandError::Overflow`].
    pub fn for_extends(chain: &Chain, extends: &[Extend]) -> Result<Self, DemandError> {
        let mut sum = Demand::default();
        for extend in extends {
            sum = sum.plus(extend_demand(chain, *extend)?)?;
        }
        Ok(ExactDemand(sum))
    }

    /// One slot of every state pool: a running state, or a checkpoint.
    #[must_use]
    pub fn for_state(chain: &Chain) -> Self {
        let mut demand = Demand::default();
        for &pool in chain.states() {
            demand.0[pool] = Pages(1);
        }
        ExactDemand(demand)
    }

    /// A raw demand, taken at its word.
    ///
    /// # Errors
    /// [`DemandError::MoreWindowThanFull`].
    pub fn raw(chain: &Chain, demand: Demand) -> Result<Self, DemandError> {
        demand.check(chain)?;
        Ok(ExactDemand(demand))
    }
}

impl ConservativeDemand {
    /// A bound that the caller knows: the most that this rank may need.
    ///
    /// # Errors
    /// As [`ExactDemand::raw`].
    pub fn raw(chain: &Chain, demand: Demand) -> Result<Self, DemandError> {
        demand.check(chain)?;
        Ok(ConservativeDemand(demand))
    }

    /// The most that one of `ranks` ranks may need when the batch's pages, or its tokens, are dealt out between them in
    /// some order that is not known here: a rank's share of each sequence rounded up to a page at both of its ends. A
    /// step of any length may start a page on some rank. O(extends × pools).
    ///
    /// # Errors
    /// As [`ExactDemand::for_extends`], and [`DemandError::NoRanks`].
    pub fn for_shards(chain: &Chain, extends: &[Extend], ranks: u32) -> Result<Self, DemandError> {
        if ranks == 0 {
            return Err(DemandError::NoRanks);
        }
        let mut sum = Demand::default();
        for extend in extends {
            let whole = extend_demand(chain, *extend)?;
            let mut share = Demand::default();
            for pool in chain.pool_ids() {
                let token_pool = chain.pool(pool).kind != PoolKind::State;
                if token_pool && extend.new > extend.old {
                    share.0[pool] = Pages(whole.0[pool].0.div_ceil(ranks).saturating_add(1));
                }
            }
            sum = sum.plus(share)?;
        }
        Ok(ConservativeDemand(sum))
    }
}

impl AnyDemand {
    /// The pages, whichever kind it is.
    #[must_use]
    pub fn pages(&self) -> Demand {
        match self {
            AnyDemand::Exact(ExactDemand(demand))
            | AnyDemand::Conservative(ConservativeDemand(demand)) => *demand,
        }
    }
}

impl From<ExactDemand> for AnyDemand {
    fn from(demand: ExactDemand) -> Self {
        AnyDemand::Exact(demand)
    }
}

impl From<ConservativeDemand> for AnyDemand {
    fn from(demand: ConservativeDemand) -> Self {
        AnyDemand::Conservative(demand)
    }
}

fn extend_demand(chain: &Chain, extend: Extend) -> Result<Demand, DemandError> {
    let Extend { old, new, windows } = extend;
    if new < old {
        return Err(DemandError::Backwards { old, new });
    }
    let page = chain.page_tokens();
    let (from, to) = (old.pages_up(page), new.pages_up(page));
    let mut demand = Demand::default();
    for pool in chain.pool_ids() {
        demand.0[pool] = match (chain.pool(pool).kind, windows) {
            (PoolKind::State, _) => Pages(0),
            (PoolKind::Window { window }, WindowDemand::Tail) => {
                // The first page that still holds a token of the trailing window.
                let covered = Tokens(new.0.saturating_sub(window.0)).pages_down(page);
                Pages(to.0 - from.0.max(covered.0).min(to.0))
            }
            (PoolKind::Full | PoolKind::Window { .. }, _) => Pages(to.0 - from.0),
        };
    }
    Ok(demand)
}
