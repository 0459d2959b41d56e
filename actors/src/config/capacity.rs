//! How much an empty arena holds, for people who size one.

use kvtide_core::chain::{Chain, PoolKind};
use kvtide_core::demand::Demand;
use kvtide_core::fit::Geometry;
use kvtide_core::unit::Pages;

/// How window pages are counted when pools are filled together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Windows {
    /// One for every full page: every position keeps its window page.
    Every,
    /// Only the trailing window of one sequence, on top of a page under way.
    Tail,
}

/// The most pages that every token pool can hold at once on an empty arena, beside one slot of every state pool; for
/// a chain of state pools only, the most slots of each.
///
/// Exact, by [`Geometry::fits_empty`]: a bisection, O(pools × log pages).
#[must_use]
pub fn joint_pages(chain: &Chain, windows: Windows) -> Pages {
    let geometry = Geometry::empty(chain);
    let fits =
        |pages: u32| geometry.fits_empty(&joint_demand(chain, Pages(pages), windows)).is_ok();
    let (mut fit, mut above) = (0, u32::MAX);
    while above - fit > 1 {
        let middle = fit + (above - fit) / 2;
        if fits(middle) {
            fit = middle;
        } else {
            above = middle;
        }
    }
    Pages(fit)
}

fn joint_demand(chain: &Chain, pages: Pages, windows: Windows) -> Demand {
    let mut demand = Demand::default();
    for pool in chain.pool_ids() {
        demand.0[pool] = match chain.pool(pool).kind {
            PoolKind::Full => pages,
            PoolKind::Window { .. } => match windows {
                Windows::Every => pages,
                Windows::Tail => Pages(pages.0.min(chain.window_pages(pool).0.saturating_add(1))),
            },
            PoolKind::State if chain.full().is_none() => pages,
            PoolKind::State => Pages(1),
        };
    }
    demand
}
