//! Logs, metrics and traces.
//!
//! - [`request`]: the ids of a request, its own and its trace's.
//! - [`logging`]: log lines on the standard error and one file per model; [`filter`]: which of them.
//! - [`metrics`]: every metric, one struct.
//! - [`statistics`]: statistics of a model's requests, for Triton's clients; [`triton`]: the same as Triton's metrics.
//! - [`traces`]: spans of requests and batches, for a collector.
//! - [`host`]: the load of the machine; [`thread_limits`]: advice if the system refuses a thread.
//! - `lines`: formats events as lines, for people and as JSON, safely for any values.
//! - `console`: the lines that wait for standard error.
//! - `model_files`: which events go to which model's file; `daily`: daily files.

pub mod filter;
pub mod host;
pub mod logging;
pub mod metrics;
pub mod request;
pub mod statistics;
#[cfg(test)]
pub(crate) mod testing;
pub mod thread_limits;
pub mod traces;
pub mod triton;

mod console;
mod daily;
mod lines;
mod model_files;

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The git commit of this build, as `OCELLI_COMMIT` named it at build time; empty if it did not.
pub const COMMIT: &str = match option_env!("OCELLI_COMMIT") {
    Some(commit) => commit,
    None => "",
};
