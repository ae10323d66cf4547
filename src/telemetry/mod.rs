//! Logs, metrics and traces.
//!
//! - [`request`]: the ids by which a request is found again, its own and its trace's.
//! - [`logging`]: log lines on the standard error and one file per model.
//! - [`metrics`]: every metric, one struct.
//! - [`statistics`]: what became of a model's requests, for Triton's clients; [`triton`]: the same as its metrics.
//! - [`traces`]: spans of requests and batches, for a collector.
//! - [`host`]: how busy the machine is; [`thread_limits`]: what to do where it refuses a thread.
//! - `lines`: how an event becomes a line, for people and as JSON, whatever its values hold.
//! - `model_files`: which events go to which model's file; `daily`: a file a day.

/// Reasons that are counted apart: an enum, and their names, in the order in which they are told.
macro_rules! reasons {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $label:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// All of them.
            pub const ALL: [$name; [$($label),+].len()] = [$($name::$variant),+];
            /// Their names.
            pub const LABELS: [&str; [$($label),+].len()] = [$($label),+];

            /// The label's value.
            pub fn name(self) -> &'static str {
                $name::LABELS[self as usize]
            }
        }
    };
}

pub mod host;
pub mod logging;
pub mod metrics;
pub mod request;
pub mod statistics;
pub mod thread_limits;
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
