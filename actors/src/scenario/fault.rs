//! What a scenario can break.

use std::num::NonZeroU32;

use super::json::{Fields, Node};
use super::place::ScenarioError;
use crate::device::Fault;

/// What a `fault` operation breaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FaultWish {
    /// The next copies, or the end of their delay.
    Copy(Fault),
    /// An actor, at its next message.
    Panic(Victim),
}

/// An actor that can be made to panic.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Victim {
    /// The allocator actor.
    Allocator,
    /// The radix actor.
    Radix,
    /// The compactor actor.
    Compactor,
    /// The GPU worker.
    Gpu,
}

impl FaultWish {
    pub(super) fn parse(fields: &Fields<'_>) -> Result<Self, ScenarioError> {
        let Some(copy) = fields.find("copy") else {
            fields.without("times", "`panic`, which happens once")?;
            return Ok(FaultWish::Panic(fields.need("panic")?.word(&VICTIMS)?));
        };
        fields.without("panic", "`copy`: one fault a line")?;
        let times = fields.find("times").map(Node::positive_u32).transpose()?;
        let times = times.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
        let faults = [
            ("fail", Fault::FailCopies { times, after_batches: 0 }),
            ("delay", Fault::DelayCopies { times }),
            ("release", Fault::ReleaseCopies),
        ];
        let fault = copy.word(&faults)?;
        if fault == Fault::ReleaseCopies {
            fields.without("times", "\"release\", which releases all")?;
        }
        Ok(FaultWish::Copy(fault))
    }
}

const VICTIMS: [(&str, Victim); 4] = [
    ("allocator", Victim::Allocator),
    ("radix", Victim::Radix),
    ("compactor", Victim::Compactor),
    ("gpu", Victim::Gpu),
];
