//! Logs, metrics and traces.
//!
//! - [`request`]: the ids by which a request is found again, its own and its trace's.
//! - [`logging`]: log lines on the standard error and one file per model.
//! - [`metrics`]: every metric, one struct.
//! - [`statistics`]: what became of a model's requests, for Triton's clients; [`triton`]: the same as its metrics.
//! - [`traces`]: spans of requests and batches, for a collector.
//! - [`host`]: how busy the machine is.
//! - `lines`: how an event becomes a line, for people and as JSON, whatever its values hold.
//! - `model_files`: which events go to which model's file; `daily`: a file a day.

pub mod host;
pub mod logging;
pub mod metrics;
pub mod request;
pub mod statistics;
pub mod traces;
pub mod triton;

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
