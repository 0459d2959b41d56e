//! What the tree must know of a chain.

use super::node::Vitals;
use super::ordinals::Ordinals;
use super::policy::{Candidate, EvictionPolicy, Record, Standing, TreeSettings};
use crate::chain::{Chain, PoolKind};
use crate::unit::{POOLS_MAX, PoolId, Tokens};
use std::sync::Arc;

/// A chain as the tree sees it, in arrays by ordinal.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub policy: Arc<dyn EvictionPolicy>,
    pub page_tokens: u32,
    pub full: PoolId,
    pub windows: Vec<PoolId>,
    pub states: Vec<PoolId>,
    /// Tokens of each window.
    pub window_tokens: Vec<u32>,
    /// Pages of each trailing window, counted back from a page boundary; at least 1.
    pub window_pages: Vec<u32>,
}

/// A queue of victims within its class: one kind of page of one pool.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) enum Lane {
    /// The last page of a leaf, with all that hangs on it.
    Tail,
    /// A window page alone, by window ordinal.
    Window(u8),
    /// A state alone, by state ordinal.
    State(u8),
}

/// One number for every window ordinal.
pub(super) type PerWindow = [u32; POOLS_MAX];

impl Shape {
    /// A chain without a full pool has no prefixes to keep: its tree stays empty.
    pub(super) fn of(chain: &Chain, settings: &TreeSettings) -> Self {
        let windows = chain.windows().to_vec();
        let tokens = |pool: &PoolId| match chain.pool(*pool).kind {
            PoolKind::Window { window } => window,
            PoolKind::Full | PoolKind::State => Tokens(0),
        };
        Shape {
            policy: settings.eviction_policy(),
            page_tokens: chain.page_tokens().0,
            full: chain.full().unwrap_or(PoolId(0)),
            states: chain.states().to_vec(),
            window_tokens: windows.iter().map(|pool| tokens(pool).0).collect(),
            window_pages: windows.iter().map(|&pool| chain.window_pages(pool).0.max(1)).collect(),
            windows,
        }
    }

    /// Where a page of a node, `position` pages from the root, stands, used as `record` says.
    pub(super) fn standing(&self, vitals: &Vitals, record: Record, position: u32) -> Standing {
        let rank = self.policy.rank(&Candidate {
            record,
            priority: vitals.used.priority,
            conversation: vitals.used.conversation,
            position: Tokens(position.saturating_mul(self.page_tokens)),
        });
        Standing { held: vitals.held > 0, rank }
    }

    /// Every state ordinal.
    pub(super) fn all_states(&self) -> Ordinals {
        Ordinals::first(self.states.len())
    }

    /// Lanes per class.
    pub(super) fn lanes(&self) -> usize {
        1 + self.windows.len() + self.states.len()
    }

    /// Every lane, the tails first.
    pub(super) fn all_lanes(&self) -> impl Iterator<Item = Lane> + use<> {
        let (windows, states) = (self.windows.len() as u8, self.states.len() as u8);
        std::iter::once(Lane::Tail)
            .chain((0..windows).map(Lane::Window))
            .chain((0..states).map(Lane::State))
    }

    /// Place of a lane among its class's queues.
    pub(super) fn lane_index(&self, lane: Lane) -> usize {
        match lane {
            Lane::Tail => 0,
            Lane::Window(window) => 1 + usize::from(window),
            Lane::State(state) => 1 + self.windows.len() + usize::from(state),
        }
    }

    /// The pool that a lane's single pages belong to; for a tail, that of its full page.
    pub(super) fn pool(&self, lane: Lane) -> PoolId {
        match lane {
            Lane::Tail => self.full,
            Lane::Window(window) => self.windows[usize::from(window)],
            Lane::State(state) => self.states[usize::from(state)],
        }
    }

    /// The boundary up to which a prompt equal to a cached one is matched, given the path's last serviceable one: a match
    /// never covers a prompt's last token. Where states decide what is serviceable, that is up to whoever stores them.
    pub(super) fn repeat_boundary(&self, last: u32) -> u32 {
        if self.states.is_empty() { last.saturating_sub(1) } else { last }
    }

    /// Where the windows of a boundary start.
    pub(super) fn window_starts(&self, boundary: u32) -> PerWindow {
        let mut starts = [boundary; POOLS_MAX];
        for (start, pages) in starts.iter_mut().zip(&self.window_pages) {
            *start = boundary.saturating_sub(*pages);
        }
        starts
    }
}
