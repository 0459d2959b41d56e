//! What can go wrong, by family of operation, each with the numbers that decided it (design section 12).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kvtide_core::demand::DemandError;
use kvtide_core::fit::Bound;
use kvtide_core::sequence::SequenceError;
use kvtide_core::unit::Bytes;

/// Amounts per pool, by name in byte order: tokens of a token pool, slots of a state pool.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Amounts(pub Box<[(Arc<str>, u64)]>);

/// Why an allocation was refused, or failed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AllocError {
    /// Not even an empty arena could hold the demand. Nothing changed.
    #[error(
        "impossible: {demand} can never fit, an empty arena holds {capacity} of each alone; {bound}"
    )]
    Impossible {
        /// What was asked for.
        demand: Amounts,
        /// The most of each pool that an empty arena holds, were it alone.
        capacity: Amounts,
        /// What refuses it.
        bound: Refusal,
    },
    /// Not even with everything evictable given back would the demand fit. Nothing changed; it may fit once others give
    /// memory back.
    #[error(
        "exhausted: {demand} do not fit with everything evictable given back; free {free}, evictable {evictable}, locked {locked}; {bound}"
    )]
    Exhausted {
        /// What was asked for.
        demand: Amounts,
        /// What each pool alone could take now, moving nothing.
        free: Amounts,
        /// What eviction could give back.
        evictable: Amounts,
        /// What the tree holds for open sequences.
        locked: Amounts,
        /// What refuses it.
        bound: Refusal,
    },
    /// It would fit, were these gates open. Nothing changed.
    #[error("moves are gated by {}", .gates.join(", "))]
    MovesGated {
        /// Reasons of the closed gates.
        gates: Vec<String>,
    },
    /// The deadline passed while waiting for memory. Nothing changed.
    #[error("timed out after waiting {} ms for memory", .waited.as_millis())]
    TimedOut {
        /// How long it waited.
        waited: Duration,
    },
    /// As much is taken as the configuration allows. Nothing changed.
    #[error("busy: {taken} {what}, at most {limit} may")]
    Busy {
        /// What is bounded.
        what: Bounded,
        /// How many there are, or would be.
        taken: u64,
        /// The configured bound.
        limit: u64,
    },
    /// A copy that the allocation needed failed. Moves already made stay; a victim whose page the copy may have
    /// overwritten is gone.
    #[error("a copy failed: {0}")]
    CopyFailed(String),
    /// The demand makes no sense. Nothing changed.
    #[error("invalid demand: {0}")]
    InvalidDemand(#[from] DemandError),
    /// The operation does not apply as things stand. Nothing changed.
    #[error("invalid operation: {0}")]
    InvalidOperation(String),
    /// A name that nothing has, or no longer has.
    #[error("unknown name: {0}")]
    UnknownName(String),
    /// Not built, for this chain or at all.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The service itself cannot answer.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// Why the service itself cannot answer.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ServiceError {
    /// An actor panicked; what was in flight is lost, and the cache with it.
    #[error("reset: the cache was lost while this was in flight")]
    Reset,
    /// The service was stopped.
    #[error("stopped: the service no longer takes requests")]
    Stopped,
    /// The device, or the thread that owns it, is gone.
    #[error("device lost: {0}")]
    DeviceLost(String),
    /// An invariant or a page's content does not hold.
    #[error("corrupt: {0}")]
    Corrupt(String),
}

/// Why a service could not be started.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StartError {
    /// The engine cannot be had here.
    #[error("device unavailable: {0}")]
    DeviceUnavailable(String),
    /// An actor did not start.
    #[error("the {0} actor did not start")]
    NotStarted(&'static str),
}

/// The bound that decided a refusal.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// By the arithmetic of pools in an arena.
    Fit {
        /// Name of the pool without room.
        pool: Arc<str>,
        /// The bound.
        bound: Bound,
    },
    /// By the configured quota on one allocation's reclaim.
    Quota(String),
    /// Another allocation, first in the queue, would wait longer for it.
    Queue,
}

/// What a configuration bounds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bounded {
    /// Allocations that wait: `queue.capacity`.
    Waiting,
    /// Pins: `pin.max_pins`.
    Pins,
    /// Tokens that pins keep, with those asked for: `pin.max_tokens`.
    PinnedTokens,
}

impl Bounded {
    /// As it is called in outcomes.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Bounded::Waiting => "waiting",
            Bounded::Pins => "pins",
            Bounded::PinnedTokens => "pinned_tokens",
        }
    }
}

impl fmt::Display for Bounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bounded::Waiting => "allocations wait already",
            Bounded::Pins => "prefixes are pinned already",
            Bounded::PinnedTokens => "tokens would be pinned",
        })
    }
}

impl AllocError {
    /// The variant's name, in snake case: as scenario outcomes and metrics' labels have it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            AllocError::Impossible { .. } => "impossible",
            AllocError::Exhausted { .. } => "exhausted",
            AllocError::MovesGated { .. } => "moves_gated",
            AllocError::TimedOut { .. } => "timed_out",
            AllocError::Busy { .. } => "busy",
            AllocError::CopyFailed(_) => "copy_failed",
            AllocError::InvalidDemand(_) => "invalid_demand",
            AllocError::InvalidOperation(_) => "invalid_operation",
            AllocError::UnknownName(_) => "unknown_name",
            AllocError::Unsupported(_) => "unsupported",
            AllocError::Service(error) => error.name(),
        }
    }

    /// Whether others giving memory back could let it succeed.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        matches!(self, AllocError::Exhausted { .. } | AllocError::MovesGated { .. })
    }
}

impl ServiceError {
    /// The variant's name, in snake case.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            ServiceError::Reset => "reset",
            ServiceError::Stopped => "stopped",
            ServiceError::DeviceLost(_) => "device_lost",
            ServiceError::Corrupt(_) => "corrupt",
        }
    }
}

impl From<SequenceError> for AllocError {
    fn from(error: SequenceError) -> Self {
        match error {
            SequenceError::Demand(error) => AllocError::InvalidDemand(error),
            other => AllocError::InvalidOperation(other.to_string()),
        }
    }
}

impl Refusal {
    /// Bytes short, when bytes decided.
    #[must_use]
    pub fn missing(&self) -> Option<Bytes> {
        match self {
            Refusal::Fit { bound: Bound::Bytes { missing, .. }, .. } => Some(*missing),
            _ => None,
        }
    }
}

impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (pool, amount)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{pool} {amount}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Fit { pool, bound: Bound::Ids { wanted, ids, .. } } => {
                write!(f, "pool {pool} would have {wanted} live, its ids and cap allow {ids}")
            }
            Refusal::Fit { pool, bound: Bound::Bytes { missing, .. } } => {
                write!(
                    f,
                    "packed as tightly as grids and pins allow, pool {pool} is {missing} short"
                )
            }
            Refusal::Quota(what) => write!(f, "the reclaim quota refuses: {what}"),
            Refusal::Queue => f.write_str("an allocation that waits first needs the memory"),
        }
    }
}
