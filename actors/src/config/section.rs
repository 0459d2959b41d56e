//! The tables that tune a service, each with what the checked form holds and what a file may say.

use std::time::Duration;

use serde::Deserialize;

use super::value::{Compaction, Engine, Millis, PathCap, Policy, Prefer, Quota, Track, Within};

/// Declares a table twice: as read, every key optional; and as checked, every key there.
macro_rules! section {
    (
        $(#[$doc:meta])*
        $name:ident from $raw:ident {
            $($(#[$fdoc:meta])* $field:ident as $key:literal: $ty:ty = $read:ty,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Eq, PartialEq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }

        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $raw { $(#[serde(rename = $key)] $field: Option<$read>,)* }

        impl $raw {
            /// Every key of the table.
            pub(super) const KEYS: &'static [&'static str] = &[$($key),*];

            /// Replaces in `base` what was read.
            fn overlay(self, base: &mut $name) {
                $(if let Some(value) = self.$field { base.$field = value.into(); })*
            }

            /// The table, or the first key that was not read.
            fn complete(self) -> Result<$name, &'static str> {
                Ok($name { $($field: self.$field.ok_or($key)?.into(),)* })
            }
        }
    };
}

section! {
    /// `[cache]`: what is kept, and how tightly.
    CacheConfig from RawCache {
        /// When holes are closed.
        compaction as "compaction": Compaction = Compaction,
        /// Eviction order.
        policy as "policy": Policy = Policy,
        /// Matches from which on `slru` protects a prefix.
        slru_protected_hits as "slru_protected_hits": u32 = Within<1, { u32::MAX }>,
        /// Tokens that can be computed within the latency budget of `tlru`.
        tlru_latency_tokens as "tlru_latency_tokens": u32 = Within<0, { u32::MAX }>,
        /// Tokens that `tlru` expects a next prompt to add.
        tlru_next_prompt_tokens as "tlru_next_prompt_tokens": u32 = Within<0, { u32::MAX }>,
        /// Sessions whose last path is held.
        max_sessions as "max_sessions": u32 = Within<1, { u32::MAX }>,
    }
}

section! {
    /// `[reclaim]`: what one allocation may push out.
    ReclaimConfig from RawReclaim {
        /// Which side of a tie gives first.
        prefer as "prefer": Prefer = Prefer,
        /// The most that one allocation may reclaim.
        quota as "quota": Quota = Quota,
    }
}

section! {
    /// `[state]`: checkpoints of recurrent state.
    StateConfig from RawState {
        /// Most checkpoints on one path; `None`: no cap.
        max_per_path as "max_per_path": Option<u32> = PathCap,
        /// Whether running sequences keep the state of their last page boundary.
        track as "track": Track = Track,
    }
}

section! {
    /// `[queue]`: allocations that wait for memory.
    QueueConfig from RawQueue {
        /// Most allocations waiting; beyond it an allocation is refused as busy.
        capacity as "capacity": u32 = Within<1, 1_048_576>,
        /// How long the head may be overtaken.
        max_bypass as "max_bypass_ms": Duration = Millis<0, 3_600_000>,
    }
}

section! {
    /// `[device]`: the GPU worker.
    DeviceConfig from RawDevice {
        /// What holds the bytes.
        engine as "engine": Engine = Engine,
        /// Most pages that one copy launch moves.
        max_pages_per_launch as "max_pages_per_launch": u32 = Within<1, 65_536>,
        /// After so long a copy counts as failed.
        copy_timeout as "copy_timeout_ms": Duration = Millis<1, 3_600_000>,
        /// Commands that may wait for the worker.
        queue_depth as "queue_depth": u32 = Within<1, 65_536>,
    }
}

section! {
    /// `[service]`: the actors.
    ServiceConfig from RawService {
        /// Messages that may wait for one actor.
        mailbox as "mailbox": u32 = Within<1, 65_536>,
    }
}

/// Every tuning table as read.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawSections {
    pub(super) cache: RawCache,
    pub(super) reclaim: RawReclaim,
    pub(super) state: RawState,
    pub(super) queue: RawQueue,
    pub(super) device: RawDevice,
    pub(super) service: RawService,
}

/// Every tuning table, checked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sections {
    /// `[cache]`.
    pub cache: CacheConfig,
    /// `[reclaim]`.
    pub reclaim: ReclaimConfig,
    /// `[state]`.
    pub state: StateConfig,
    /// `[queue]`.
    pub queue: QueueConfig,
    /// `[device]`.
    pub device: DeviceConfig,
    /// `[service]`.
    pub service: ServiceConfig,
}

/// Every tuning table with its keys.
pub(super) const TABLES: &[(&str, &[&str])] = &[
    ("cache", RawCache::KEYS),
    ("reclaim", RawReclaim::KEYS),
    ("state", RawState::KEYS),
    ("queue", RawQueue::KEYS),
    ("device", RawDevice::KEYS),
    ("service", RawService::KEYS),
];

impl RawSections {
    /// Replaces in `base` what was read; the rest of `base` stays.
    pub(super) fn overlay(self, base: &mut Sections) {
        self.cache.overlay(&mut base.cache);
        self.reclaim.overlay(&mut base.reclaim);
        self.state.overlay(&mut base.state);
        self.queue.overlay(&mut base.queue);
        self.device.overlay(&mut base.device);
        self.service.overlay(&mut base.service);
    }

    /// All tables, or the table and key that were not read.
    pub(super) fn complete(self) -> Result<Sections, (&'static str, &'static str)> {
        Ok(Sections {
            cache: self.cache.complete().map_err(|key| ("cache", key))?,
            reclaim: self.reclaim.complete().map_err(|key| ("reclaim", key))?,
            state: self.state.complete().map_err(|key| ("state", key))?,
            queue: self.queue.complete().map_err(|key| ("queue", key))?,
            device: self.device.complete().map_err(|key| ("device", key))?,
            service: self.service.complete().map_err(|key| ("service", key))?,
        })
    }
}
