//! Small trees, as sets of pages, and a search over all that could be left of them.

use kvtide_core::chain::Chain;
use kvtide_core::tree::{Lock, Namespace, Ordinals, OwnPage, Tree, TreeSettings};
use kvtide_core::unit::{Token, VirtId};

pub(crate) const WINDOW: usize = 2;
pub(crate) const PAGES_MAX: usize = 6;

/// A set of pages, by bit.
pub(crate) type Set = u8;

/// Which pools a chain has beside the full pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Pools {
    pub(crate) window: bool,
    pub(crate) state: bool,
}

/// One configuration. Page `i`'s parent comes before it.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) parents: Vec<Option<usize>>,
    pub(crate) windows: Set,
    pub(crate) states: Set,
    pub(crate) locks: Set,
    pub(crate) reversed: bool,
}

/// What is left of the pages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Left {
    pub(crate) full: Set,
    pub(crate) windows: Set,
    pub(crate) states: Set,
}

/// Freed full pages, window pages and states.
pub(crate) type Freed = [u32; 3];

pub(crate) const fn has(set: Set, page: usize) -> bool {
    set >> page & 1 == 1
}

pub(crate) fn members(set: Set) -> impl Iterator<Item = usize> {
    (0..PAGES_MAX).filter(move |&page| has(set, page))
}

impl Config {
    pub(crate) fn count(&self) -> usize {
        self.parents.len()
    }

    /// Pages from the root to `page`.
    pub(crate) fn path(&self, page: usize) -> Vec<usize> {
        let mut path: Vec<usize> =
            std::iter::successors(Some(page), |&page| self.parents[page]).collect();
        path.reverse();
        path
    }

    pub(crate) fn children(&self, page: usize) -> impl Iterator<Item = usize> {
        (0..self.count()).filter(move |&child| self.parents[child] == Some(page))
    }

    /// Path ends that are published, in order.
    pub(crate) fn published(&self) -> Vec<usize> {
        let ends = |&page: &usize| {
            self.children(page).next().is_none() || has(self.states, page) || has(self.locks, page)
        };
        let mut published: Vec<usize> = (0..self.count()).filter(ends).collect();
        if self.reversed {
            published.reverse();
        }
        published
    }

    pub(crate) fn tree(&self, chain: &Chain, pools: Pools) -> (Tree, Vec<Lock>) {
        let mut tree = Tree::new(chain, TreeSettings::default());
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
    pub(crate) fn locked(&self) -> Left {
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

    pub(crate) fn all(&self) -> Left {
        let full = ((1_u32 << self.count()) - 1) as Set;
        Left { full, windows: self.windows, states: self.states }
    }

    pub(crate) fn matchable(&self, pools: Pools, left: Left) -> u64 {
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
    pub(crate) fn costs(&self, pools: Pools, gated: bool) -> Vec<(Left, u64)> {
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
    pub(crate) fn plain_walk(&self, pools: Pools, fits: impl Fn(Left) -> bool) -> Option<u64> {
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

pub(crate) fn freed(all: Left, left: Left) -> Freed {
    let gone = |all: Set, left: Set| (all & !left).count_ones();
    [gone(all.full, left.full), gone(all.windows, left.windows), gone(all.states, left.states)]
}

pub(crate) fn index(freed: Freed) -> usize {
    freed.iter().fold(0, |index, &count| index * 7 + count as usize)
}

pub(crate) fn subsets(set: Set) -> impl Iterator<Item = Set> {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let now: Set = next?;
        next = (now != set).then(|| (now.wrapping_sub(set)) & set);
        Some(now)
    })
}

/// Every shape of `count` pages once: parents before children, siblings' subtrees in order.
pub(crate) fn shapes(count: usize) -> Vec<Vec<Option<usize>>> {
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

pub(crate) fn canonical(shape: &[Option<usize>], root: Option<usize>) -> String {
    let children = (0..shape.len()).filter(|&child| shape[child] == root);
    let mut parts: Vec<String> = children.map(|child| canonical(shape, Some(child))).collect();
    parts.sort();
    format!("({})", parts.concat())
}
