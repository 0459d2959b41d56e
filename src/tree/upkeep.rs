//! Keeping derived numbers true: one code for the tree and for a plan's copy of what it touched.
//!
//! A change to a node is made first (`drop_*`), then [`settle`] brings the node's derived numbers up to date and goes
//! on to those whose own depend on them: to the children while the run of window pages at its end changes, to the
//! parent while what is needed of it, or whether anything serviceable is below it, changes.

use super::node::{NodeId, Place, VictimClass, Vitals};
use super::policy::Standing;
use super::shape::{Lane, PerWindow, Shape};
use crate::unit::{POOLS_MAX, PoolId};

/// An entry in a queue of victims; the least goes first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Entry {
    pub rank: Standing,
    pub order: u32,
    pub node: NodeId,
}

/// Which boundaries a need counts, and for which window pool.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) enum NeedLane {
    /// Path ends, where prompts equal to a cached one are matched, and branch points.
    Soft(u8),
    /// Path ends alone.
    Hard(u8),
}

/// A node whose kept boundaries need window pages above its start: the first position needed, kept with its parent.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Need {
    pub parent: NodeId,
    pub lane: NeedLane,
    pub from: u32,
    pub child: NodeId,
}

/// Nodes and queues, the tree's own or a plan's copy.
pub(super) trait Store {
    fn shape(&self) -> &Shape;
    fn vitals(&self, node: NodeId) -> &Vitals;
    fn vitals_mut(&mut self, node: NodeId) -> &mut Vitals;
    /// The child after `after`, or the first one; nodes that are gone from a plan's copy may be among them.
    fn child(&self, parent: NodeId, after: Option<NodeId>) -> Option<NodeId>;
    fn enqueue(&mut self, class: VictimClass, lane: Lane, entry: Entry);
    fn unqueue(&mut self, class: VictimClass, lane: Lane, entry: Entry);
    fn add_need(&mut self, need: Need);
    fn remove_need(&mut self, need: Need);
    /// The first position that children need.
    fn least_need(&mut self, parent: NodeId, lane: NeedLane) -> Option<u32>;
    /// Matchable pages changed.
    fn worth_changed(&mut self, was: u32, now: u32);
    /// An unlocked page left the tree.
    fn uncached(&mut self, pool: PoolId);
}

/// What follows from a node's pages, its parent's run and its children's needs.
struct Derived {
    runs: PerWindow,
    soft: PerWindow,
    hard: PerWindow,
    last_serviceable: u32,
}

/// Evicts the window page at `position`; the full page stays.
pub(super) fn drop_window(store: &mut impl Store, node: NodeId, window: usize, position: u32) {
    let vitals = store.vitals_mut(node);
    let index = position - vitals.start;
    vitals.windows[window].present.remove(index);
    let pool = store.shape().windows[window];
    store.uncached(pool);
}

/// Evicts a state; the node stays.
pub(super) fn drop_state(store: &mut impl Store, node: NodeId, state: usize) {
    // The queues hold it under the mask: out of them first.
    unqueue_states(store, node);
    store.vitals_mut(node).states.remove(state);
    let pool = store.shape().states[state];
    store.uncached(pool);
}

/// Evicts the last page of a leaf, whose window pages and states are gone already; the last page of all takes the
/// node with it.
pub(super) fn drop_tail(store: &mut impl Store, node: NodeId) {
    if store.vitals(node).len == 1 {
        bury(store, node);
    }
    store.vitals_mut(node).len -= 1;
    let pool = store.shape().full;
    store.uncached(pool);
}

/// After drops at `node`: brings it, or its parent if it is gone, up to date.
pub(super) fn settle_dropped(store: &mut impl Store, node: NodeId) {
    let vitals = store.vitals(node);
    let node = if vitals.len == 0 { vitals.parent } else { node };
    settle(store, node);
}

/// Brings the derived numbers of `node`, and of all that depend on them, up to date.
///
/// O((words of the edge + log n) × nodes whose numbers change), and one look at each child of a node whose trailing
/// run changes.
pub(super) fn settle(store: &mut impl Store, node: NodeId) {
    let mut next = Some(node);
    let mut later = Vec::new();
    while let Some(node) = next {
        refresh(store, node, &mut later);
        next = later.pop();
    }
}

fn refresh(store: &mut impl Store, node: NodeId, later: &mut Vec<NodeId>) {
    let vitals = store.vitals(node);
    if vitals.is_root() || vitals.len == 0 {
        return;
    }
    let (parent, runs_before) = (vitals.parent, vitals.runs());
    let derived = derive(store, node);
    let mut up = update_needs(store, node, &derived);
    let vitals = store.vitals(node);
    let serviceable = derived.last_serviceable > 0 || vitals.serviceable_children > 0;
    let worth = if vitals.serviceable_children > 0 { vitals.len } else { derived.last_serviceable };
    let was = vitals.worth;
    if serviceable != vitals.serviceable {
        up = true;
        let parent = store.vitals_mut(parent);
        if serviceable {
            parent.serviceable_children += 1;
        } else {
            parent.serviceable_children -= 1;
        }
    }
    if worth != was {
        store.worth_changed(was, worth);
    }
    let windows = store.shape().windows.len();
    let vitals = store.vitals(node);
    let runs_change = (0..windows).any(|window| derived.runs[window] != runs_before[window]);
    if runs_change
        || worth != was
        || serviceable != vitals.serviceable
        || derived.last_serviceable != vitals.last_serviceable
    {
        let vitals = store.vitals_mut(node);
        vitals.last_serviceable = derived.last_serviceable;
        vitals.serviceable = serviceable;
        vitals.worth = worth;
        for (window, &run) in vitals.windows.iter_mut().zip(&derived.runs) {
            window.run_end = run;
        }
    }
    requeue(store, node);
    if up {
        later.push(parent);
    }
    if runs_change {
        let mut child = store.child(node, None);
        while let Some(found) = child {
            later.push(found);
            child = store.child(node, Some(found));
        }
    }
}

fn derive(store: &mut impl Store, node: NodeId) -> Derived {
    let mut soft = [u32::MAX; POOLS_MAX];
    let mut hard = [u32::MAX; POOLS_MAX];
    let windows = store.shape().windows.len();
    if store.vitals(node).children > 0 {
        for window in 0..windows {
            let ordinal = window as u8;
            let need = store.least_need(node, NeedLane::Soft(ordinal));
            soft[window] = need.unwrap_or(u32::MAX);
            let need = store.least_need(node, NeedLane::Hard(ordinal));
            hard[window] = need.unwrap_or(u32::MAX);
        }
    }
    let (shape, vitals) = (store.shape(), store.vitals(node));
    let before = store.vitals(vitals.parent).runs();
    let mut runs = [0; POOLS_MAX];
    for (window, run) in runs.iter_mut().enumerate().take(windows) {
        *run = vitals.run_at(shape, before[window], window, vitals.len);
    }
    let last_serviceable = vitals.serviceable_upto(shape, &before, vitals.len);
    for (window, pages) in shape.window_pages.iter().enumerate() {
        let back_from = |index: u32| (vitals.start + index).saturating_sub(*pages);
        if vitals.serviceable_children == 0 {
            if last_serviceable > 0 {
                let repeated = shape.repeat_boundary(last_serviceable);
                soft[window] = soft[window].min(back_from(repeated));
                hard[window] = hard[window].min(back_from(last_serviceable));
            }
        } else if vitals.children >= 2 && last_serviceable == vitals.len {
            soft[window] = soft[window].min(back_from(vitals.len));
        }
    }
    Derived { runs, soft, hard, last_serviceable }
}

/// Stores what is needed of the windows; says whether what is needed of the parent's changed.
fn update_needs(store: &mut impl Store, node: NodeId, derived: &Derived) -> bool {
    let mut up = false;
    for window in 0..store.shape().windows.len() {
        let vitals = store.vitals(node);
        let (parent, start) = (vitals.parent, vitals.start);
        let ordinal = window as u8;
        let was = [vitals.windows[window].soft, vitals.windows[window].hard];
        let now = [derived.soft[window], derived.hard[window]];
        if was == now {
            continue;
        }
        let kept = &mut store.vitals_mut(node).windows[window];
        [kept.soft, kept.hard] = now;
        let lanes = [NeedLane::Soft(ordinal), NeedLane::Hard(ordinal)];
        for (lane, (was, now)) in lanes.into_iter().zip(was.into_iter().zip(now)) {
            let need = |from| Need { parent, lane, from, child: node };
            if was == now {
                continue;
            }
            if was < start {
                store.remove_need(need(was));
            }
            if now < start {
                store.add_need(need(now));
            }
            up |= was.min(start) != now.min(start);
        }
    }
    up
}

/// Puts a node's next victims where they belong in the queues. O(words of the edge + log n).
pub(super) fn requeue(store: &mut impl Store, node: NodeId) {
    let (shape, vitals) = (store.shape(), store.vitals(node));
    if vitals.is_root() || vitals.len == 0 {
        return;
    }
    let (was, now) = (vitals.tail, tail_place(shape, vitals));
    if was != now {
        store.vitals_mut(node).tail = now;
        move_entry(store, node, Lane::Tail, was, now);
    }
    for window in 0..store.shape().windows.len() {
        let (shape, vitals) = (store.shape(), store.vitals(node));
        let (was, now) = (vitals.windows[window].place, window_place(shape, vitals, window));
        if was != now {
            store.vitals_mut(node).windows[window].place = now;
            move_entry(store, node, Lane::Window(window as u8), was, now);
        }
    }
    let (shape, vitals) = (store.shape(), store.vitals(node));
    let now = state_place(shape, vitals);
    let queued = if now.is_some() { vitals.states } else { vitals.queued_states };
    if now != vitals.state || queued != vitals.queued_states {
        unqueue_states(store, node);
        let vitals = store.vitals_mut(node);
        vitals.state = now;
        if now.is_some() {
            vitals.queued_states = vitals.states;
        }
        for state in store.vitals(node).queued_states.iter() {
            move_entry(store, node, Lane::State(state as u8), None, now);
        }
    }
}

/// Takes a node out of everything that its parent and the queues know of it.
pub(super) fn unhook(store: &mut impl Store, node: NodeId) {
    let (tail, parent, start) = {
        let vitals = store.vitals_mut(node);
        (vitals.tail.take(), vitals.parent, vitals.start)
    };
    move_entry(store, node, Lane::Tail, tail, None);
    unqueue_states(store, node);
    for window in 0..store.shape().windows.len() {
        let ordinal = window as u8;
        let kept = &mut store.vitals_mut(node).windows[window];
        let (place, soft, hard) = (kept.place.take(), kept.soft, kept.hard);
        (kept.soft, kept.hard) = (u32::MAX, u32::MAX);
        move_entry(store, node, Lane::Window(ordinal), place, None);
        let needs = [(NeedLane::Soft(ordinal), soft), (NeedLane::Hard(ordinal), hard)];
        for (lane, from) in needs.into_iter().filter(|(_, from)| *from < start) {
            store.remove_need(Need { parent, lane, from, child: node });
        }
    }
    let vitals = store.vitals_mut(node);
    let was = std::mem::take(&mut vitals.worth);
    if std::mem::take(&mut vitals.serviceable) {
        store.vitals_mut(parent).serviceable_children -= 1;
    }
    store.worth_changed(was, 0);
}

fn bury(store: &mut impl Store, node: NodeId) {
    unhook(store, node);
    let parent = store.vitals(node).parent;
    store.vitals_mut(parent).children -= 1;
}

fn unqueue_states(store: &mut impl Store, node: NodeId) {
    let vitals = store.vitals_mut(node);
    let place = vitals.state.take();
    let queued = std::mem::take(&mut vitals.queued_states);
    for state in queued.iter() {
        move_entry(store, node, Lane::State(state as u8), place, None);
    }
}

fn move_entry(
    store: &mut impl Store,
    node: NodeId,
    lane: Lane,
    was: Option<Place>,
    now: Option<Place>,
) {
    let entry = |place: Place| Entry { rank: place.rank, order: place.order, node };
    if let Some(place) = was {
        store.unqueue(place.class, lane, entry(place));
    }
    if let Some(place) = now {
        store.enqueue(place.class, lane, entry(place));
    }
}

/// Where the last page of an unlocked leaf stands.
fn tail_place(shape: &Shape, vitals: &Vitals) -> Option<Place> {
    if vitals.children > 0 || vitals.full_locks > 0 {
        return None;
    }
    let class = if vitals.last_serviceable < vitals.len {
        VictimClass::Unneeded
    } else {
        VictimClass::Policy
    };
    Some(place(class, tail_standing(shape, vitals), vitals.end() - 1))
}

/// Where a leaf's last page stands.
pub(super) fn tail_standing(shape: &Shape, vitals: &Vitals) -> Standing {
    shape.standing(vitals, vitals.used.full, vitals.end() - 1)
}

/// Where the next window page that could go alone stands.
fn window_place(shape: &Shape, vitals: &Vitals, window: usize) -> Option<Place> {
    let kept = &vitals.windows[window];
    let first = vitals.start + kept.present.first_from(0)?;
    let unlocked = |position: u32| position < kept.locked_from;
    let place = |class, position| {
        place(class, shape.standing(vitals, vitals.used.window, position), position)
    };
    if first < kept.soft && unlocked(first) {
        return Some(place(VictimClass::Unneeded, first));
    }
    if vitals.serviceable_children == 0 {
        let past = kept.present.first_from(vitals.last_serviceable);
        let past = past.map(|index| vitals.start + index);
        if let Some(past) = past.filter(|&past| unlocked(past)) {
            return Some(place(VictimClass::Unneeded, past));
        }
    }
    if !unlocked(first) {
        return None;
    }
    if first < kept.hard {
        return Some(place(VictimClass::KeptBoundary, first));
    }
    goes_alone(vitals).then(|| place(VictimClass::Policy, first))
}

/// Where the states at a node's end stand.
fn state_place(shape: &Shape, vitals: &Vitals) -> Option<Place> {
    if vitals.states.is_empty() || vitals.state_locks > 0 {
        return None;
    }
    let class = if vitals.last_serviceable != vitals.len {
        VictimClass::Unneeded
    } else if vitals.serviceable_children > 0 {
        if vitals.children >= 2 { VictimClass::KeptBoundary } else { VictimClass::Unneeded }
    } else if goes_alone(vitals) {
        VictimClass::Policy
    } else {
        return None;
    };
    let position = vitals.end() - 1;
    Some(place(class, shape.standing(vitals, vitals.used.state, position), position))
}

/// Whether what a path end needs of a node does not go with the tail of a leaf: its full pages are locked, or have
/// children behind them, which serve nothing but may be beyond a quota.
fn goes_alone(vitals: &Vitals) -> bool {
    vitals.full_locks > 0 || vitals.children > 0 && vitals.serviceable_children == 0
}

/// What costs nothing goes from the root on, since a prompt equal to a cached one matches one page short of its end;
/// what costs goes from the deepest end.
fn place(class: VictimClass, rank: Standing, position: u32) -> Place {
    let order = match class {
        VictimClass::Unneeded | VictimClass::KeptBoundary => position,
        VictimClass::Policy => u32::MAX - position,
    };
    Place { class, rank, order }
}
