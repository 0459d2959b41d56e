//! The command line: one module for each subcommand, each a function of its arguments and an output.

pub mod config;
pub mod error;
pub mod plan;
pub mod replay;
pub mod scenario;

pub use error::CliError;
