//! Scenario files: a geometry, operations, and what should come of them.
//!
//! [`Scenario::read`] turns a file into types and refuses whatever is no scenario, with file, line and column (exit
//! code 2). Names of sequences, reservations and pools are left to whoever runs it, for naming something unknown is
//! an outcome, not a bad file.
//!
//! A runner goes through the steps and makes one [`Outcome`] of each:
//!
//! ```no_run
//! # use kvtide::scenario::{Arena, Operation, Outcome, Scenario, Table, Totals};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scenario = Scenario::read("case.jsonl".as_ref())?;
//! for key in &scenario.header.cache {
//!     return Err(scenario.refuse(key.place, format!("no key is called `{}`", key.key)).into());
//! }
//! if let Arena::Inline(arena) = &scenario.header.arena {
//!     println!("{} pools", arena.chain.pool_ids().len());
//! }
//! let (mut totals, mut failures) = (Totals::default(), Vec::new());
//! for step in &scenario.steps {
//!     let name = step.operation.name();
//!     let outcome = match &step.operation {
//!         Operation::Flush => Outcome::success(step.line, name)
//!             .with("evicted", Table::from_iter([("full", 3u64), ("swa", 0)])),
//!         _ => Outcome::failure(step.line, name, "unsupported", "only flushes are run here")
//!             .with("detail", Table::new()),
//!     };
//!     println!("{}", serde_json::to_string(&outcome)?);
//!     totals.add(&outcome);
//!     failures.extend(scenario.check(step, &outcome, &totals));
//! }
//! for failure in &failures {
//!     eprintln!("{failure}"); // case.jsonl:4: evicted.full: wanted {"max":2}, got 3
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The files: [`Scenario`] and its [`Step`]s, the [`Header`], the [`Operation`]s with their [`TokenList`]s, the
//! [`Outcome`]s and [`Totals`], the [`Expectation`]s and [`Failure`]s, and the [`ScenarioError`] with its [`Place`].

mod allocating;
mod ended;
mod expect;
mod fault;
mod file;
mod header;
mod json;
mod operation;
mod outcome;
mod place;
mod run;
mod setup;
mod tokens;

pub use ended::probe_outcome;
pub use expect::{Expectation, ExpectedField, Failure, Subject, Wanted};
pub use fault::{FaultWish, Victim};
pub use file::{Scenario, Step};
pub use header::{Arena, CacheKey, Header, InlineArena, PoolHeader};
pub use operation::{DemandByName, Draft, Mode, Namespace, Operation, Publish, StateWish, Waiting};
pub use outcome::{Field, Outcome, Table, Totals};
pub use place::{Place, Problem, ScenarioError};
pub use run::{RunError, Runner, demand};
pub use tokens::TokenList;
