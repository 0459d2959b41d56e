//! How a command ends when it does not end well: one line for people, one exit code for scripts.

use std::error::Error;
use std::io;

use crate::config::{ConfigError, SizeError};
use crate::workload::WorkloadError;

/// Why a command failed. The text is one line.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// What was given cannot be used: exit code 2.
    #[error("{0}")]
    Input(#[source] Box<dyn Error + Send + Sync>),
    /// An option's value cannot be used: exit code 2.
    #[error("{option}: {source}")]
    Option {
        /// The option.
        option: &'static str,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The command ran, and what was expected of it does not hold: exit code 1.
    #[error("{failed} of {checked} expectations failed")]
    Expectations {
        /// Expectations that do not hold.
        failed: u64,
        /// Expectations checked.
        checked: u64,
    },
    /// The service failed under the command: exit code 1.
    #[error("{0}")]
    Service(#[source] Box<dyn Error + Send + Sync>),
    /// Output cannot be written: exit code 1, or 0 where the reader has just had enough.
    #[error("cannot write output: {0}")]
    Output(#[from] io::Error),
}

impl CliError {
    /// Input of a kind that has no variant of its own.
    pub fn input(error: impl Error + Send + Sync + 'static) -> Self {
        CliError::Input(Box::new(error))
    }

    /// A failure of the service.
    pub fn service(error: impl Error + Send + Sync + 'static) -> Self {
        CliError::Service(Box::new(error))
    }

    /// What the process should exit with.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Input(_) | CliError::Option { .. } => 2,
            CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            CliError::Expectations { .. } | CliError::Service(_) | CliError::Output(_) => 1,
        }
    }
}

impl From<WorkloadError> for CliError {
    fn from(error: WorkloadError) -> Self {
        Self::input(error)
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::input(error)
    }
}

/// An option that takes a size.
pub(super) fn bad_size(option: &'static str) -> impl FnOnce(SizeError) -> CliError {
    move |source| CliError::Option { option, source: Box::new(source) }
}
