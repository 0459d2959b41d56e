//! Who holds what of a node: open sequences (locks), and pins, counted apart.

use super::node::Node;

/// Whom a hold is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum HoldKind {
    /// An open sequence.
    Sequence,
    /// A pin: it outlives sequences.
    Pin,
}

/// Window starts of holds that reach into a node, rising, with how many share each.
pub(super) type WindowHolds = Vec<(u32, u32)>;

/// Pins on a node.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Pins {
    pub full: u32,
    pub states: u32,
    /// By window ordinal.
    pub windows: Vec<WindowHolds>,
}

/// Pages of one place by who holds them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Held {
    /// By open sequences.
    pub locked: u32,
    /// By pins.
    pub pinned: u32,
    /// By either.
    pub any: u32,
}

impl Held {
    /// `pages` pages that so many holds of either kind are on.
    fn of(pages: u32, holds: u32, pins: u32) -> Self {
        let held = |holds: u32| if holds > 0 { pages } else { 0 };
        Held { locked: held(holds - pins), pinned: held(pins), any: held(holds) }
    }
}

impl Node {
    /// Held full pages.
    pub(super) fn full_held(&self) -> Held {
        let pins = self.pins.as_ref().map_or(0, |pins| pins.full);
        Held::of(self.vitals.len, self.vitals.full_locks, pins)
    }

    /// Held slots of one state that is there.
    pub(super) fn state_held(&self) -> Held {
        let pins = self.pins.as_ref().map_or(0, |pins| pins.states);
        Held::of(1, self.vitals.state_locks, pins)
    }

    /// Held pages of a window. O(words of the edge).
    pub(super) fn window_held(&self, window: usize) -> Held {
        let (vitals, present) = (&self.vitals, &self.vitals.windows[window].present);
        let held = |from: u32| match from {
            from if from >= vitals.end() => 0,
            from => present.count_from(from.saturating_sub(vitals.start)),
        };
        let (locked, pinned) = self.window_holds_from(window);
        Held { locked: held(locked), pinned: held(pinned), any: held(locked.min(pinned)) }
    }

    /// Whether the window page at `position` is held.
    pub(super) fn window_page_held(&self, window: usize, position: u32) -> Held {
        let held = |from: u32| u32::from(position >= from);
        let (locked, pinned) = self.window_holds_from(window);
        Held { locked: held(locked), pinned: held(pinned), any: held(locked.min(pinned)) }
    }

    /// First position of a window that locks hold, and that pins do; `u32::MAX` if none does.
    pub(super) fn window_holds_from(&self, window: usize) -> (u32, u32) {
        let first = |holds: &WindowHolds| holds.first().map_or(u32::MAX, |hold| hold.0);
        let pinned = self.pins.as_ref().map_or(u32::MAX, |pins| first(&pins.windows[window]));
        (first(&self.window_locks[window]), pinned)
    }

    /// The pins, there from now on. Windows without any.
    pub(super) fn pins_mut(&mut self) -> &mut Pins {
        let windows = self.window_locks.len();
        self.pins.get_or_insert_with(|| {
            Box::new(Pins { windows: vec![Vec::new(); windows], ..Pins::default() })
        })
    }

    /// Forgets pins that there are none of.
    pub(super) fn tidy_pins(&mut self) {
        if self.pins.as_ref().is_some_and(|pins| pins.full == 0) {
            self.pins = None;
        }
    }
}
