//! Why a request failed: one variant for each way in which the caller can react.
//!
//! `http::reject` holds the only table from variant to status. Causes that only an operator can act on go to the log.

use crate::words::{clipped, told};
use std::{any::Any, borrow::Cow, time::Duration};

/// When to retry after a transient error for which there is no better estimate.
pub const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Why a request, or one item of it, failed.
///
/// Messages are lower case (but for one), without a full stop, and carry the value and the limit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InferError {
    /// The request itself is malformed: JSON, tensor names, shapes, types, parameters. 400.
    #[error("{0}")]
    BadRequest(String),
    /// The bytes are not an image that we can decode; the message says what was tried. 400.
    #[error("{0}")]
    Decode(String),
    /// Over a limit: body bytes, pixels, frames, parts, items. 413.
    #[error("{what} is {got}, more than the limit of {limit}{}", raise_with(option))]
    TooLarge {
        /// What was measured, with its unit.
        what: Cow<'static, str>,
        /// Its value.
        got: u64,
        /// The limit.
        limit: u64,
        /// The option that raises the limit; empty where none does.
        option: &'static str,
    },
    /// By itself, and with nothing beside it, the input has the model take more memory than it may. 413.
    #[error("{0}")]
    Outsized(String),
    /// The body came too slowly: over its deadline, or under the minimum rate. 408.
    #[error("{0}")]
    SlowBody(String),
    /// The caller disconnected before the request was complete: nobody reads the answer. 499, for logs and metrics.
    #[error("the caller went away")]
    Cancelled,
    /// The answer is not available in any form that the caller accepts. 406.
    #[error("{got:?} is not a form of this answer; accept {accepted}")]
    NotAcceptable {
        /// What the request said.
        got: String,
        /// What it may say.
        accepted: &'static str,
    },
    /// A content type that no route takes. 415.
    #[error("content type {got:?} is not supported; send {accepted}")]
    UnsupportedMedia {
        /// What the request said.
        got: String,
        /// What it may say.
        accepted: &'static str,
    },
    /// A content coding that no body may have. 415.
    #[error("content encoding {got:?} is not supported; send {accepted}, or none")]
    UnsupportedEncoding {
        /// What the request said.
        got: String,
        /// What it may say.
        accepted: &'static str,
    },
    /// No such model or version; `nearest` holds the closest names. 404. The message begins as Triton's, by which its clients know it.
    #[error("Request for unknown model: '{}' is not found{}", clipped(name).escape_debug(), known(nearest))]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// The closest names, best first.
        nearest: Vec<String>,
    },
    /// The model is known but cannot be served now. 503.
    #[error("model {name:?} is unavailable: {reason}")]
    ModelUnavailable {
        /// The model's name.
        name: String,
        /// Why, in words for the caller.
        reason: String,
        /// Whether the reason is that the model is still being loaded, as it is in every replica that has just started.
        loading: bool,
    },
    /// A model could not be loaded; the version that served before still serves. 400, or 503 if devices are to blame.
    #[error("failed to load {:?}: {reason}", clipped(name))]
    LoadFailed {
        /// The model's name.
        name: String,
        /// Why.
        reason: String,
        /// Whether nothing is wrong with the model: its devices are away, or have no room for it now.
        for_now: bool,
    },
    /// The caller may not do this. 403.
    #[error("{0}")]
    Forbidden(String),
    /// A queue or the admission budget is full. 429.
    #[error("{what} is full ({limit}); retry after {} s", seconds_up(*retry_after))]
    Full {
        /// Which bound was reached.
        what: &'static str,
        /// The bound.
        limit: u64,
        /// When there should be room, estimated from the measured service rate.
        retry_after: Duration,
    },
    /// The server is draining before it exits. 503.
    #[error("the server is draining; retry elsewhere")]
    Draining,
    /// The deadline has passed, or cannot be met at the measured service rate. 504.
    #[error("{0}")]
    Late(String),
    /// The same for a deadline that the caller set, and that leaves less time than the model would have had. 504.
    #[error("{0}")]
    Hasty(String),
    /// The engine refused this input (not the whole batch that it ran in). 400.
    #[error("the model refused the input: {0}")]
    Input(String),
    /// The devices that serve the model are unavailable, and not expected back in time. 503.
    #[error("no device serves model {name:?} now: {reason}; retry after {} s", seconds_up(*retry_after))]
    Unserved {
        /// The model's name.
        name: String,
        /// Why, in words for the caller.
        reason: String,
        /// When a device should be available again.
        retry_after: Duration,
    },
    /// No device could run the request. 503.
    #[error("no device could run the request: {0}")]
    Device(String),
    /// A feature that other servers of the same protocols offer and this one does not. 501.
    #[error("{0}")]
    NotOffered(String),
    /// The data is more than memory may hold, and our disk has no room for it either. 507.
    #[error("{0}")]
    NoStorage(String),
    /// A fault of this server. 500.
    #[error("{0}")]
    Internal(String),
}

/// The message of a panic, where it has one.
pub fn panic_words(panic: &Box<dyn Any + Send>) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without words".into())
}

/// An error for a malformed request. `what` says what is wrong, with the value, and what to do.
pub fn bad(what: impl Into<String>) -> InferError {
    InferError::BadRequest(what.into())
}

/// Whole seconds, rounded up, at least one: the form that `Retry-After` takes.
pub fn seconds_up(duration: Duration) -> u64 {
    (duration.as_millis() as u64).div_ceil(1000).max(1)
}

/// The end of a message about a limit: which option raises it, if one does.
pub(crate) fn raise_with(option: &str) -> String {
    if option.is_empty() { String::new() } else { format!("; raise it with {option}") }
}

/// The end of the message about an unknown model.
fn known(nearest: &[String]) -> String {
    match nearest {
        [] => "; GET /v2/models lists those that are served, POST /v2/repository/index those in the folder"
            .to_owned(),
        _ => told(nearest),
    }
}
