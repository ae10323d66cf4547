//! Why a request has no answer: one variant per thing the caller can do about it.
//!
//! `http::reject` holds the only table from variant to status. Causes that only an operator can use go to the log.

use crate::words::told;
use std::{any::Any, borrow::Cow, time::Duration};

/// When to come back after an error that passes, where nobody can say more.
pub const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Why a request, or one item of it, has no answer.
///
/// Messages are lower case, without a full stop, and carry the value and the limit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InferError {
    /// The request itself is malformed: JSON, tensor names, shapes, types, parameters. 400.
    #[error("{0}")]
    BadRequest(String),
    /// The bytes are not an image that we can decode; says what was tried. 400.
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
    /// The body came too slowly: over its deadline, or under the minimum rate. 408.
    #[error("{0}")]
    SlowBody(String),
    /// The caller went away before the request was complete: nobody reads the answer. 499, for logs and metrics.
    #[error("the caller went away")]
    Cancelled,
    /// No form of the answer that the caller accepts. 406.
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
    /// No such model or version; `nearest` holds the closest names. 404.
    #[error("unknown model {name:?}{}", told(nearest))]
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
        /// Whether that is because it is still being loaded, as it is in each replica that begins.
        loading: bool,
    },
    /// A model could not be loaded; what served before goes on. 400.
    #[error("failed to load {name:?}: {reason}")]
    LoadFailed {
        /// The model's name.
        name: String,
        /// Why.
        reason: String,
    },
    /// The caller may not do this. 403.
    #[error("{0}")]
    Forbidden(String),
    /// A queue or the admission budget is full. 429.
    #[error("{what} is full ({limit}); retry after {} s", seconds_up(*retry_after))]
    Full {
        /// Which bound was met.
        what: &'static str,
        /// The bound.
        limit: u64,
        /// When there should be room, from the measured service rate.
        retry_after: Duration,
    },
    /// The server is going away. 503.
    #[error("the server is draining; retry elsewhere")]
    Draining,
    /// The deadline passed, or cannot be met by the measured service rate. 504.
    #[error("{0}")]
    Late(String),
    /// The engine refused this input (not the batch it ran in). 400.
    #[error("the model refused the input: {0}")]
    Input(String),
    /// The devices that serve the model are away, and not expected back in time. 503.
    #[error("no device serves model {name:?} now: {reason}; retry after {} s", seconds_up(*retry_after))]
    Unserved {
        /// The model's name.
        name: String,
        /// Why, in words for the caller.
        reason: String,
        /// When one should be back.
        retry_after: Duration,
    },
    /// No device could run it. 503.
    #[error("no device could run the request: {0}")]
    Device(String),
    /// Other servers of the same protocols do this, and this one does not. 501.
    #[error("{0}")]
    NotOffered(String),
    /// What memory may not hold has no room on a disk of ours either. 507.
    #[error("{0}")]
    NoStorage(String),
    /// Our own fault. 500.
    #[error("{0}")]
    Internal(String),
}

/// What a panic said, where it said something.
pub fn panic_words(panic: &Box<dyn Any + Send>) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without words".into())
}

/// A request that is itself malformed, in words: what was wrong, with the value, and what to do.
pub fn bad(what: impl Into<String>) -> InferError {
    InferError::BadRequest(what.into())
}

/// Whole seconds, rounded up, at least one: what `Retry-After` carries.
pub fn seconds_up(duration: Duration) -> u64 {
    (duration.as_millis() as u64).div_ceil(1000).max(1)
}

/// What to do where an option raises a limit.
pub(crate) fn raise_with(option: &str) -> String {
    if option.is_empty() { String::new() } else { format!("; raise it with {option}") }
}
