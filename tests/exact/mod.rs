//! Random cases against a real service: made, run, judged, and shortened when they fail.

pub mod case;
pub mod judge;
pub mod oracle;
pub mod run;
