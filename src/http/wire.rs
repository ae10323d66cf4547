//! The forms of requests and replies: bytes in, typed values out, and back. Pure functions.
//!
//! - [`predict`]: images in JSON.
//! - [`answer`]: the reply to a prediction.
//! - [`request`]: an inference request of the Open Inference Protocol, JSON with or without binary tensors behind it.
//! - [`raw`]: an inference request that is nothing but its input's data.
//! - [`binary`]: tensors as bytes.
//! - [`data`]: the numbers of a JSON tensor, straight into its bytes.
//! - [`reply`]: the reply to an inference request.

pub mod binary;
pub mod answer;
pub mod data;
pub mod predict;
pub mod raw;
pub mod reply;
pub mod request;

use crate::error::InferError;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The length of the JSON in front of binary tensors, in requests and replies.
pub const HEADER_LENGTH: &str = "inference-header-content-length";

/// One value of `parameters`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Parameter {
    /// `true` or `false`.
    Bool(bool),
    /// An integer within 64 bits.
    Integer(i64),
    /// Any other number.
    Number(f64),
    /// A string.
    Text(String),
}

/// `parameters` of a request, an input or an output.
pub type Parameters = BTreeMap<String, Parameter>;

/// The count in the parameter `name`, if there is one.
///
/// # Errors
/// 400 if it is not an integer of 0 or more.
pub fn count(parameters: &Parameters, name: &str) -> Result<Option<u64>, InferError> {
    match parameters.get(name) {
        None => Ok(None),
        Some(Parameter::Integer(n)) if *n >= 0 => Ok(Some(n.unsigned_abs())),
        Some(other) => Err(InferError::BadRequest(format!(
            "parameter {name:?} is {other}, expected an integer of 0 or more"
        ))),
    }
}

/// The flag in the parameter `name`, if there is one.
///
/// # Errors
/// 400 if it is not a boolean.
pub fn flag(parameters: &Parameters, name: &str) -> Result<Option<bool>, InferError> {
    match parameters.get(name) {
        None => Ok(None),
        Some(Parameter::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => Err(InferError::BadRequest(format!(
            "parameter {name:?} is {other}, expected true or false"
        ))),
    }
}

impl std::fmt::Display for Parameter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Parameter::Bool(value) => write!(f, "{value}"),
            Parameter::Integer(value) => write!(f, "{value}"),
            Parameter::Number(value) => write!(f, "{value}"),
            Parameter::Text(value) => write!(f, "{:?}", clipped(value)),
        }
    }
}

/// A 400 for JSON that cannot be read. Says where, and repeats nothing of the content but names.
fn bad_json(what: &str, error: &serde_json::Error) -> InferError {
    InferError::BadRequest(format!("{what} cannot be read: {error}"))
}

/// At most the first 60 characters, for messages.
fn clipped(text: &str) -> &str {
    match text.char_indices().nth(60) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}
