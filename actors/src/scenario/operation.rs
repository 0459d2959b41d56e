//! What a scenario does, one operation a line.

use kvtide_core::unit::Bytes;

use super::fault::FaultWish;
use super::json::{Fields, Node};
use super::place::{Problem, ScenarioError};
use super::tokens::TokenList;

/// An operation with all it needs. Names of sequences, pools and so on are resolved when it runs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Operation {
    /// Match and lock a prompt.
    Open {
        /// The new sequence.
        seq: String,
        /// Its prompt.
        tokens: TokenList,
        /// Whom it may share with.
        namespace: Namespace,
        /// For the `priority` policy.
        priority: Option<i64>,
        /// The session that it belongs to.
        session: Option<String>,
    },
    /// Allocate and fill prompt tokens.
    Extend {
        /// The sequence.
        seq: String,
        /// How many, if not all that are left.
        count: Option<u32>,
    },
    /// One decode step for every token.
    Append {
        /// The sequence.
        seq: String,
        /// The tokens.
        tokens: TokenList,
        /// Whether they may be taken back: then window pages stay until the next append or truncation.
        draft: Draft,
    },
    /// Publish what is computed so far.
    Checkpoint {
        /// The sequence.
        seq: String,
        /// Whether with a state.
        state: StateWish,
    },
    /// Publish and close.
    Finish {
        /// The sequence.
        seq: String,
        /// Whether to publish at all.
        cache: Publish,
        /// Whether with a state.
        state: StateWish,
    },
    /// Close without publishing.
    Drop {
        /// The sequence.
        seq: String,
    },
    /// Ask what a match would give.
    Cached {
        /// The prompt.
        tokens: TokenList,
        /// Whose.
        namespace: Namespace,
    },
    /// Open, extend and finish.
    Insert {
        /// The prompt.
        tokens: TokenList,
        /// Whether with a state.
        state: StateWish,
        /// Whose.
        namespace: Namespace,
        /// For the `priority` policy.
        priority: Option<i64>,
        /// The session that it belongs to.
        session: Option<String>,
    },
    /// End a session.
    CloseSession {
        /// The session.
        session: String,
        /// Whose.
        namespace: Namespace,
    },
    /// A second continuation that shares the pages so far.
    Fork {
        /// The sequence that exists.
        seq: String,
        /// The new one.
        child: String,
    },
    /// Drop computed tokens beyond a count.
    Truncate {
        /// The sequence.
        seq: String,
        /// Tokens that stay.
        count: u32,
    },
    /// Give memory back and keep the tokens.
    Park {
        /// The sequence.
        seq: String,
        /// Whether to publish first.
        cache: Publish,
    },
    /// Match again and go on.
    Resume {
        /// The sequence.
        seq: String,
    },
    /// Keep a prefix from eviction.
    Pin {
        /// The pin.
        pin: String,
        /// The prefix.
        tokens: TokenList,
        /// Whose.
        namespace: Namespace,
    },
    /// Let a pinned prefix go.
    Unpin {
        /// The pin.
        pin: String,
    },
    /// Allocate a raw demand.
    Reserve {
        /// The reservation.
        reservation: String,
        /// What it is to hold.
        demand: DemandByName,
    },
    /// Give a reservation back.
    Release {
        /// The reservation.
        reservation: String,
        /// Only these pools' pages; all, if not given.
        pools: Option<Vec<String>>,
    },
    /// Ask how a demand would be met.
    Probe {
        /// The demand.
        demand: DemandByName,
    },
    /// Take a lease.
    StepBegin {
        /// The step.
        step: String,
        /// Its sequences.
        seqs: Vec<String>,
    },
    /// End a lease.
    StepEnd {
        /// The step.
        step: String,
    },
    /// Forbid moves.
    Gate {
        /// The gate.
        gate: String,
        /// Of these pools only; of all, if not given.
        pools: Option<Vec<String>>,
    },
    /// Open a gate.
    Ungate {
        /// The gate.
        gate: String,
    },
    /// One opportunistic pass of compaction.
    Compact {
        /// Bytes that it may move.
        budget: Option<Bytes>,
    },
    /// Drop everything that is not locked.
    Flush,
    /// Break something.
    Fault(FaultWish),
    /// Collect the outcome of an operation started with `async`.
    Wait {
        /// The line of that operation.
        op_line: u32,
        /// How long to wait for it.
        deadline_ms: u64,
    },
    /// Check all invariants and all content.
    Verify,
    /// Ask for the counters.
    Stats,
}

/// How long an allocating operation waits for memory, and whether the scenario waits with it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Waiting {
    /// How long it waits; without, it fails at once if it cannot have its memory.
    pub deadline_ms: Option<u64>,
    /// Whether the scenario goes on before it is done.
    pub mode: Mode,
}

/// Whether a scenario waits for an operation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mode {
    /// The next line comes after the operation's outcome.
    #[default]
    Sync,
    /// The next line comes at once; a `wait` collects the outcome.
    Async,
}

/// Whose tokens match whose: only those with the same salt, if any, and the same adapter, if any.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Namespace {
    /// A tenant's secret; absent is not empty.
    pub salt: Option<String>,
    /// An adapter's id; absent is not empty.
    pub adapter: Option<String>,
}

/// Whether a state checkpoint is stored with what is published.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum StateWish {
    /// Where the model has state.
    #[default]
    Default,
    /// Asked for.
    Store,
    /// Asked not to.
    Skip,
}

/// Whether a closing sequence leaves its pages to the cache.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Publish {
    /// It does.
    #[default]
    Publish,
    /// It gives them back.
    Discard,
}

/// Whether appended tokens may be taken back.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Draft {
    /// They stay.
    #[default]
    Final,
    /// They are a guess.
    Draft,
}

/// Amounts by pool name, in the order given: tokens of token pools, slots of state pools.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DemandByName(pub Vec<(String, u64)>);

impl Operation {
    /// Every operation's name, in the order of the format's own table.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KEYS.iter().map(|(name, _)| *name)
    }

    /// The name in files and outcomes.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Operation::Open { .. } => "open",
            Operation::Extend { .. } => "extend",
            Operation::Append { .. } => "append",
            Operation::Checkpoint { .. } => "checkpoint",
            Operation::Finish { .. } => "finish",
            Operation::Drop { .. } => "drop",
            Operation::Cached { .. } => "cached",
            Operation::Insert { .. } => "insert",
            Operation::CloseSession { .. } => "close_session",
            Operation::Fork { .. } => "fork",
            Operation::Truncate { .. } => "truncate",
            Operation::Park { .. } => "park",
            Operation::Resume { .. } => "resume",
            Operation::Pin { .. } => "pin",
            Operation::Unpin { .. } => "unpin",
            Operation::Reserve { .. } => "reserve",
            Operation::Release { .. } => "release",
            Operation::Probe { .. } => "probe",
            Operation::StepBegin { .. } => "step_begin",
            Operation::StepEnd { .. } => "step_end",
            Operation::Gate { .. } => "gate",
            Operation::Ungate { .. } => "ungate",
            Operation::Compact { .. } => "compact",
            Operation::Flush => "flush",
            Operation::Fault(_) => "fault",
            Operation::Wait { .. } => "wait",
            Operation::Verify => "verify",
            Operation::Stats => "stats",
        }
    }

    pub(super) fn parse(fields: Fields<'_>) -> Result<(Self, Waiting), ScenarioError> {
        let op = fields.need("op")?;
        let name = op.string()?;
        let Some((_, keys)) = KEYS.iter().find(|(op, _)| *op == name) else {
            let known = Operation::names().collect();
            return Err(op.error(Problem::UnknownOperation { name, known }));
        };
        let allocating = ALLOCATING.contains(&&*name);
        let waiting: &[_] = if allocating { &["deadline_ms", "async"] } else { &[] };
        let fields = fields.only(&[&["op"], keys, waiting])?;
        let waiting = if allocating { Waiting::parse(&fields)? } else { Waiting::default() };
        Ok((Operation::parse_named(&name, &Keys(&fields))?, waiting))
    }

    /// An operation whose name and keys are known to be good.
    fn parse_named(name: &str, keys: &Keys<'_, '_>) -> Result<Self, ScenarioError> {
        Ok(match name {
            "open" => Operation::Open {
                seq: keys.name("seq")?,
                tokens: keys.tokens()?,
                namespace: keys.namespace()?,
                priority: keys.maybe("priority", Node::i64)?,
                session: keys.maybe("session", Node::name)?,
            },
            "extend" => {
                Operation::Extend { seq: keys.name("seq")?, count: keys.maybe("count", Node::u32)? }
            }
            "append" => Operation::Append {
                seq: keys.name("seq")?,
                tokens: keys.tokens()?,
                draft: keys
                    .maybe("draft", |draft| draft.choice(Draft::Draft, Draft::Final))?
                    .unwrap_or_default(),
            },
            "checkpoint" => Operation::Checkpoint { seq: keys.name("seq")?, state: keys.state()? },
            "finish" => Operation::Finish {
                seq: keys.name("seq")?,
                cache: keys
                    .maybe("cache", |cache| cache.choice(Publish::Publish, Publish::Discard))?
                    .unwrap_or_default(),
                state: keys.state()?,
            },
            "drop" => Operation::Drop { seq: keys.name("seq")? },
            "cached" => Operation::Cached { tokens: keys.tokens()?, namespace: keys.namespace()? },
            "insert" => Operation::Insert {
                tokens: keys.tokens()?,
                state: keys.state()?,
                namespace: keys.namespace()?,
                priority: keys.maybe("priority", Node::i64)?,
                session: keys.maybe("session", Node::name)?,
            },
            "close_session" => Operation::CloseSession {
                session: keys.name("session")?,
                namespace: keys.namespace()?,
            },
            "fork" => Operation::Fork { seq: keys.name("seq")?, child: keys.name("as")? },
            "truncate" => {
                Operation::Truncate { seq: keys.name("seq")?, count: keys.0.need("count")?.u32()? }
            }
            "park" => Operation::Park {
                seq: keys.name("seq")?,
                cache: keys
                    .maybe("cache", |cache| cache.choice(Publish::Publish, Publish::Discard))?
                    .unwrap_or(Publish::Discard),
            },
            "resume" => Operation::Resume { seq: keys.name("seq")? },
            "pin" => Operation::Pin {
                pin: keys.name("as")?,
                tokens: keys.tokens()?,
                namespace: keys.namespace()?,
            },
            "unpin" => Operation::Unpin { pin: keys.name("as")? },
            other => Operation::parse_memory(other, keys)?,
        })
    }

    /// The operations that name no tokens.
    fn parse_memory(name: &str, keys: &Keys<'_, '_>) -> Result<Self, ScenarioError> {
        Ok(match name {
            "reserve" => {
                Operation::Reserve { reservation: keys.name("as")?, demand: keys.demand()? }
            }
            "release" => {
                let (reservation, pools) = (keys.name("as")?, keys.maybe("pools", Node::names)?);
                Operation::Release { reservation, pools }
            }
            "probe" => Operation::Probe { demand: keys.demand()? },
            "step_begin" => {
                let (step, seqs) = (keys.name("step")?, keys.0.need("seqs")?.names()?);
                Operation::StepBegin { step, seqs }
            }
            "step_end" => Operation::StepEnd { step: keys.name("step")? },
            "gate" => {
                let (gate, pools) = (keys.name("gate")?, keys.maybe("pools", Node::names)?);
                Operation::Gate { gate, pools }
            }
            "ungate" => Operation::Ungate { gate: keys.name("gate")? },
            "compact" => {
                Operation::Compact { budget: keys.maybe("budget_bytes", Node::u64)?.map(Bytes) }
            }
            "flush" => Operation::Flush,
            "fault" => Operation::Fault(FaultWish::parse(keys.0)?),
            "wait" => Operation::Wait {
                op_line: keys.0.need("op_line")?.positive_u32()?,
                deadline_ms: keys.0.need("deadline_ms")?.u64()?,
            },
            "verify" => Operation::Verify,
            _ => Operation::Stats, // the last of `KEYS`, where the caller has looked the name up in
        })
    }
}

/// An operation's keys, read as what they mean.
struct Keys<'f, 'a>(&'f Fields<'a>);

impl<'a> Keys<'_, 'a> {
    fn maybe<T>(
        &self,
        key: &str,
        read: impl FnOnce(Node<'a>) -> Result<T, ScenarioError>,
    ) -> Result<Option<T>, ScenarioError> {
        self.0.find(key).map(read).transpose()
    }

    fn name(&self, key: &'static str) -> Result<String, ScenarioError> {
        self.0.need(key)?.name()
    }

    fn tokens(&self) -> Result<TokenList, ScenarioError> {
        TokenList::parse(self.0.need("tokens")?)
    }

    fn namespace(&self) -> Result<Namespace, ScenarioError> {
        self.maybe("namespace", Namespace::parse).map(Option::unwrap_or_default)
    }

    fn state(&self) -> Result<StateWish, ScenarioError> {
        let state = self.maybe("state", |state| state.choice(StateWish::Store, StateWish::Skip));
        state.map(Option::unwrap_or_default)
    }

    fn demand(&self) -> Result<DemandByName, ScenarioError> {
        let fields = self.0.need("demand")?.object()?;
        let amounts = fields.members().iter();
        let amounts = amounts.map(|member| Ok((member.name.clone(), member.value.u64()?)));
        amounts.collect::<Result<_, _>>().map(DemandByName)
    }
}

impl Waiting {
    fn parse(fields: &Fields<'_>) -> Result<Self, ScenarioError> {
        let deadline_ms = fields.find("deadline_ms").map(Node::u64).transpose()?;
        let mode = fields.find("async").map(|mode| mode.choice(Mode::Async, Mode::Sync));
        Ok(Waiting { deadline_ms, mode: mode.transpose()?.unwrap_or_default() })
    }
}

impl Namespace {
    fn parse(node: Node<'_>) -> Result<Self, ScenarioError> {
        let fields = node.object()?.only(&[&["salt", "adapter"]])?;
        let part = |key| fields.find(key).map(Node::string).transpose();
        Ok(Namespace { salt: part("salt")?, adapter: part("adapter")? })
    }
}

/// Every operation's own keys, required or not.
const KEYS: [(&str, &[&str]); 28] = [
    ("open", &["seq", "tokens", "namespace", "priority", "session"]),
    ("extend", &["seq", "count"]),
    ("append", &["seq", "tokens", "draft"]),
    ("checkpoint", &["seq", "state"]),
    ("finish", &["seq", "cache", "state"]),
    ("drop", &["seq"]),
    ("cached", &["tokens", "namespace"]),
    ("insert", &["tokens", "state", "namespace", "priority", "session"]),
    ("close_session", &["session", "namespace"]),
    ("fork", &["seq", "as"]),
    ("truncate", &["seq", "count"]),
    ("park", &["seq", "cache"]),
    ("resume", &["seq"]),
    ("pin", &["as", "tokens", "namespace"]),
    ("unpin", &["as"]),
    ("reserve", &["as", "demand"]),
    ("release", &["as", "pools"]),
    ("probe", &["demand"]),
    ("step_begin", &["step", "seqs"]),
    ("step_end", &["step"]),
    ("gate", &["gate", "pools"]),
    ("ungate", &["gate"]),
    ("compact", &["budget_bytes"]),
    ("flush", &[]),
    ("fault", &["copy", "times", "panic"]),
    ("wait", &["op_line", "deadline_ms"]),
    ("verify", &[]),
    ("stats", &[]),
];

/// Operations that may need memory, and so may wait for it.
const ALLOCATING: [&str; 8] =
    ["open", "extend", "append", "checkpoint", "insert", "fork", "resume", "reserve"];
