//! Replays: workloads driven through the service as an engine would, and what came of them.

pub mod episodes;
pub mod joint;
pub mod report;
pub mod scheduler;
pub mod tally;
