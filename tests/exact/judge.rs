//! Holds one allocation's outcome against the oracle, and against what was said before it.

use super::case::{Case, Kind};
use super::oracle::{Counts, Oracle, Pins};
use kvtide::error::AllocError;
use kvtide::message::Receipt;
use kvtide::report::{Explanation, Stats};
use kvtide_core::demand::Demand;
use kvtide_core::unit::{Pages, PoolId};

/// All that is known before an allocation.
pub struct Before {
    pub stats: Stats,
    pub explained: Explanation,
    pub demand: Counts,
    pub pins: Pins,
    pub gated: bool,
}

/// What kind of call allocates: how much of its effects the demand alone tells.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Call {
    /// Allocates, and nothing else.
    Only,
    /// Gives up what falls behind the window, after it has its page.
    Append,
    /// Locks so many matched pages first.
    Open { matched: u64 },
    /// Allocates unless the state is there already, and then publishes.
    Checkpoint,
}

/// Judges one outcome; an error says what is wrong with it.
pub fn judge(
    case: &Case,
    oracle: &mut Oracle,
    call: Call,
    before: &Before,
    outcome: &Result<Receipt, AllocError>,
    after: &Stats,
) -> Result<(), String> {
    let judge = Judge { case, call, before, after };
    match outcome {
        Ok(receipt) => judge.granted(oracle, receipt),
        Err(error) => judge.refused(oracle, error),
    }
}

struct Judge<'a> {
    case: &'a Case,
    call: Call,
    before: &'a Before,
    after: &'a Stats,
}

impl Judge<'_> {
    fn granted(&self, oracle: &mut Oracle, receipt: &Receipt) -> Result<(), String> {
        let before = self.before;
        let evicted: Counts = self.each(|pool| u64::from(receipt.evicted.0[pool].0));
        let no_demand = self.call == Call::Checkpoint && evicted == [0; 4] && !self.grew();
        if !no_demand {
            self.as_explained(receipt)?;
        }
        for (pool, &gone) in evicted.iter().enumerate().take(self.case.pools.len()) {
            let (was, now) = (&before.stats.pools[pool], &self.after.pools[pool]);
            let gone = gone as u32;
            if gone > was.evictable.0 {
                return Err(format!("{gone} of pool {pool} went, {} evictable", was.evictable.0));
            }
            if self.call != Call::Checkpoint && now.cached.0 + gone != was.cached.0 {
                return Err(format!("pool {pool}: {gone} went, yet {was:?} became {now:?}"));
            }
            if self.call == Call::Only {
                if now.locked != was.locked {
                    return Err(format!("locks of pool {pool} changed: {was:?}, {now:?}"));
                }
                let live = u64::from(was.counts.live.0 - gone) + before.demand[pool];
                if u64::from(now.counts.live.0) != live {
                    return Err(format!("pool {pool} should have {live} live: {now:?}"));
                }
            }
        }
        if before.gated || no_demand {
            return Ok(());
        }
        self.least(oracle, evicted)
    }

    /// With all gates open: nothing goes where moves are enough, and no more goes than must.
    fn least(&self, oracle: &mut Oracle, evicted: Counts) -> Result<(), String> {
        let none = [0; 4];
        if evicted != none && self.fits(oracle, none) {
            return Err(format!("{evicted:?} went, though moving is enough"));
        }
        if !self.fits(oracle, evicted) {
            return Err(format!("granted after {evicted:?} went, though no placement exists"));
        }
        let full = self.case.full();
        for (pool, spec) in self.case.pools.iter().enumerate() {
            // A page that other victims hang on may have to go for their sake.
            let alone = match spec.kind {
                Kind::Full => evicted[pool] > 0,
                Kind::Window(_) => evicted[pool] > evicted[full],
                Kind::State => evicted[pool] > 0 && evicted[full] == 0,
            };
            let mut fewer = evicted;
            fewer[pool] = evicted[pool].saturating_sub(1);
            if alone && self.fits(oracle, fewer) {
                return Err(format!("{evicted:?} went, where {fewer:?} would do"));
            }
        }
        Ok(())
    }

    fn refused(&self, oracle: &mut Oracle, error: &AllocError) -> Result<(), String> {
        self.unchanged()?;
        let all: Counts = self.each(|pool| u64::from(self.before.stats.pools[pool].evictable.0));
        match error {
            AllocError::Impossible { .. } => {
                if oracle.fits(self.before.demand, [0; 4], [None; 4]) {
                    return Err("impossible, though an empty arena holds it".to_owned());
                }
            }
            AllocError::Exhausted { .. } => {
                if !oracle.fits(self.before.demand, [0; 4], [None; 4]) {
                    return Err("exhausted, though it is impossible".to_owned());
                }
                // Without its own match it could have all that is evictable, and all but that in any case.
                if self.fits(oracle, self.without_match(all)) {
                    return Err("exhausted, though there is a placement".to_owned());
                }
            }
            AllocError::MovesGated { .. } => {
                if !self.before.gated {
                    return Err("gated without a gate".to_owned());
                }
                if !self.fits(oracle, all) {
                    return Err("gated, though it would not fit without gates".to_owned());
                }
            }
            other => return Err(format!("an allocation ended with {other}")),
        }
        let foretold = self.before.explained.verdict.as_ref().err().map(AllocError::name);
        let sure = !matches!(self.call, Call::Open { matched: 1.. });
        if sure && foretold != Some(error.name()) {
            return Err(format!("refused as {}, foretold {foretold:?}", error.name()));
        }
        Ok(())
    }

    /// Whether there is a placement, with gates open, once `gone` are given back.
    fn fits(&self, oracle: &mut Oracle, gone: Counts) -> bool {
        let pools = &self.before.stats.pools;
        let live = self.each(|pool| {
            u64::from(pools[pool].counts.live.0) - gone[pool] + self.before.demand[pool]
        });
        let stuck = self.each(|pool| u64::from(pools[pool].counts.pending.0));
        oracle.fits(live, stuck, self.before.pins)
    }

    /// What is evictable at least once the call's own match is locked.
    fn without_match(&self, all: Counts) -> Counts {
        let Call::Open { matched } = self.call else { return all };
        self.each(|pool| {
            let locked = match self.case.pools[pool].kind {
                Kind::Full | Kind::Window(_) => matched,
                Kind::State => matched.min(1),
            };
            all[pool].saturating_sub(locked)
        })
    }

    /// What the call did is what the explanation said that it would do.
    fn as_explained(&self, receipt: &Receipt) -> Result<(), String> {
        if matches!(self.call, Call::Open { matched: 1.. }) {
            return Ok(());
        }
        let before = self.before;
        let plan = match &before.explained.verdict {
            Ok(plan) => plan,
            Err(error) => return Err(format!("granted, foretold {error}")),
        };
        if plan.evicted != receipt.evicted || plan.moved_bytes != receipt.moved_bytes {
            return Err(format!("foretold {plan:?}, done {receipt:?}"));
        }
        if before.explained.fits_now && receipt.moved_pages > 0 {
            return Err("it fitted without moves".to_owned());
        }
        if before.explained.fits_after_moves != (plan.evicted.0 == [Pages(0); 8]) {
            return Err(format!("explained as {:?}", before.explained));
        }
        let lost = u64::from(before.stats.matchable.0.saturating_sub(self.after.matchable.0));
        if self.call != Call::Checkpoint && lost != plan.matchable_lost {
            return Err(format!("{lost} matchable tokens lost, foretold {plan:?}"));
        }
        Ok(())
    }

    /// I10: a refusal changes nothing.
    fn unchanged(&self) -> Result<(), String> {
        let (was, now) = (&self.before.stats, self.after);
        let same = was.pools == now.pools
            && was.matchable == now.matchable
            && (was.sequences, was.leases, was.gates, was.waiting)
                == (now.sequences, now.leases, now.gates, now.waiting)
            && now.totals == {
                let mut totals = was.totals;
                totals.refused = now.totals.refused;
                totals
            };
        if same { Ok(()) } else { Err(format!("a refusal changed {was:?} to {now:?}")) }
    }

    /// Whether a state pool has more live slots than before.
    fn grew(&self) -> bool {
        let pools = self.case.pools.iter().enumerate();
        pools.filter(|(_, pool)| pool.kind == Kind::State).any(|(pool, _)| {
            self.after.pools[pool].counts.live > self.before.stats.pools[pool].counts.live
        })
    }

    fn each(&self, count: impl Fn(usize) -> u64) -> Counts {
        std::array::from_fn(|pool| if pool < self.case.pools.len() { count(pool) } else { 0 })
    }
}

/// A demand of so many pages.
pub fn demand_of(pages: Counts) -> Demand {
    let mut demand = Demand::default();
    for (pool, pages) in (0..).map(PoolId).zip(pages) {
        demand.0[pool] = Pages(pages as u32);
    }
    demand
}
