//! Builds every part from the leaves up.

use crate::config::Config;

/// Why a run ended other than well; the command line gives each its exit code.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// What the models were to run on is not there: no ONNX Runtime, no GPU where one was asked for.
    #[error("{0}")]
    Backend(String),
    /// Our own bug.
    #[error("{0}")]
    Internal(String),
    /// The time to drain was over before the work was done.
    #[error(
        "drain_timeout_ms passed with work left: {connections} connections and {jobs} jobs were dropped"
    )]
    Dropped {
        /// Connections that were cut.
        connections: u64,
        /// Jobs that were waiting or running.
        jobs: u64,
    },
    /// Anything else: an address in use, a model that fails its check.
    #[error("{0}")]
    Failed(String),
}

/// Serves until told to stop, and drains.
///
/// # Errors
/// Why it could not start, or what was left undone at the end.
pub fn serve(config: Config) -> Result<(), AppError> {
    drop(config);
    Err(AppError::Internal("serving is not built in".into()))
}

/// Loads every model, runs one canary each, and prints a table.
///
/// # Errors
/// A model failed, or nothing could run them.
pub fn check(config: Config) -> Result<(), AppError> {
    drop(config);
    Err(AppError::Internal("checking is not built in".into()))
}
