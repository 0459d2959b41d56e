//! Plans are pure, by counting: feasibility is asked a few times for each victim however many there are, and nothing
//! that any decision depends on has changed afterwards.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use kvtide_core::arena::{Arena, Question};
use kvtide_core::chain::{Chain, Grow, PoolKind, PoolSpec};
use kvtide_core::demand::Demand;
use kvtide_core::tree::{
    Namespace, Ordinals, OwnPage, PlanRequest, Prefer, Quota, Tree, TreeSettings,
};
use kvtide_core::unit::{Bytes, Pages, PoolId, Token, Tokens};

/// An arena without a byte to spare, all of it cached.
struct Full {
    arena: Arena,
    tree: Tree,
    pairs: u32,
}

/// How the cached pages hang together.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Paths of four pages that share nothing.
    Leaves,
    /// One path of all pages, whose window covers it.
    Path,
}

impl Full {
    fn new(pairs: u32, shape: Shape) -> Self {
        let spec = |name: &str, kind, grow| PoolSpec {
            name: name.to_owned(),
            kind,
            grow,
            page_bytes: Bytes(2),
            pages_max: None,
        };
        let window = PoolKind::Window { window: Tokens(pairs) };
        let pools = vec![spec("full", PoolKind::Full, Grow::Up), spec("swa", window, Grow::Down)];
        let total = Bytes(2 + 4 * u64::from(pairs));
        let chain = Chain::new(total, Tokens(1), None, pools).unwrap();
        let tree = Tree::new(&chain, TreeSettings::default());
        let mut full = Full { arena: Arena::new(chain), tree, pairs };
        let length = match shape {
            Shape::Leaves => 4,
            Shape::Path => pairs,
        };
        for start in (0..pairs).step_by(length as usize) {
            full.insert(start, length.min(pairs - start));
        }
        full
    }

    fn insert(&mut self, start: Token, count: u32) {
        let grant = self.arena.bind(self.arena.place(&pairs(count)).unwrap());
        let windows = Ordinals::first(1);
        let own: Vec<OwnPage> = grant.pages.iter().map(|&virt| OwnPage { virt, windows }).collect();
        let tokens: Vec<Token> = (start..start + count).collect();
        let (lock, _) = self.tree.open(&Namespace::default(), &[]);
        let published = self.tree.publish(lock, &tokens, &own, None);
        self.tree.unlock(published.lock);
    }

    /// Plans for so many pairs; questions asked, and victims.
    fn plan(&self, wanted: u32) -> Option<(u64, u64)> {
        let gated = self.arena.gated();
        let request = PlanRequest {
            geometry: self.arena.geometry(Question::AfterMoves),
            demand: pairs(wanted),
            pinned: gated.as_ref().map(|view| view as _),
            prefer: Prefer::Full,
            quota: Quota::None,
        };
        let (tree, epoch) = (self.tree.fingerprint(), self.arena.epoch());
        let (counters, shape) = (self.tree.counters(), format!("{:?}", self.tree));
        let plan = self.tree.plan(&request).ok();
        assert_eq!(self.tree.fingerprint(), tree, "planning changed the tree");
        assert_eq!((self.tree.counters(), self.arena.epoch()), (counters, epoch));
        // All of it, the order of its queues and its clock included.
        assert!(format!("{:?}", self.tree) == shape, "planning changed the tree");
        plan.map(|plan| (plan.questions(), plan.victims().len() as u64))
    }
}

fn pairs(count: u32) -> Demand {
    let demand = Demand::default().with(PoolId(0), Pages(count)).unwrap();
    demand.with(PoolId(1), Pages(count)).unwrap()
}

/// Victims of the largest plan.
const VICTIMS_MAX: u32 = 10_000;

#[test]
fn questions_for_each_victim_do_not_grow_with_their_number() {
    for shape in [Shape::Leaves, Shape::Path] {
        let full = Full::new(VICTIMS_MAX / 2, shape);
        for victims in [10, 100, 1_000, VICTIMS_MAX] {
            let (asked, gone) = full.plan(victims / 2).unwrap();
            assert_eq!(gone, u64::from(victims), "{shape:?}");
            // Once before and after each step of the walk, once to take each victim back, and as much again for the
            // plain walk.
            assert!(asked <= 4 * gone + 2, "{shape:?}: {asked} questions, {gone} victims");
        }
    }
}

#[test]
fn questions_for_each_victim_do_not_grow_where_gates_pin_every_page() {
    for shape in [Shape::Leaves, Shape::Path] {
        let mut full = Full::new(1_000, shape);
        full.arena.close_gate(&[PoolId(0), PoolId(1)]).unwrap();
        for wanted in [5, 50, 500, 1_000] {
            let (asked, gone) = full.plan(wanted).unwrap();
            assert!(gone >= u64::from(2 * wanted), "{shape:?}");
            assert!(asked <= 4 * gone + 2, "{shape:?}: {asked} questions, {gone} victims");
        }
    }
}

#[test]
fn a_plan_that_is_refused_or_needs_nothing_changes_nothing_either() {
    let mut full = Full::new(100, Shape::Leaves);
    assert_eq!(full.plan(full.pairs + 1), None);
    assert_eq!(full.plan(0), Some((1, 0)));
    full.arena.close_gate(&[PoolId(0)]).unwrap();
    assert_eq!(full.plan(full.pairs + 1), None);
}
