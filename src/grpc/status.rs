//! The only table from errors to gRPC codes. The messages are the same as over HTTP.

use crate::{
    error::{InferError, seconds_up},
    http::reject::Problem,
};
use axum::http::{HeaderMap, HeaderValue, header};
use tonic::{Code, Status, metadata::MetadataMap};

/// The code for an error, as Triton's clients expect it.
fn code(error: &InferError) -> Code {
    match error {
        InferError::BadRequest(_)
        | InferError::Decode(_)
        | InferError::NotAcceptable { .. }
        | InferError::UnsupportedMedia { .. }
        | InferError::UnsupportedEncoding { .. }
        | InferError::LoadFailed { for_now: false, .. }
        | InferError::Input(_) => Code::InvalidArgument,
        InferError::Forbidden(_) => Code::PermissionDenied,
        InferError::UnknownModel { .. } => Code::NotFound,
        InferError::TooLarge { .. }
        | InferError::Outsized(_)
        | InferError::Full { .. }
        | InferError::NoStorage(_) => Code::ResourceExhausted,
        InferError::ModelUnavailable { .. }
        | InferError::LoadFailed { for_now: true, .. }
        | InferError::Unserved { .. }
        | InferError::Draining
        | InferError::Device(_) => Code::Unavailable,
        InferError::SlowBody(_) | InferError::Late(_) | InferError::Hasty(_) => Code::DeadlineExceeded,
        InferError::Cancelled => Code::Cancelled,
        InferError::NotOffered(_) => Code::Unimplemented,
        InferError::Internal(_) => Code::Internal,
    }
}

/// The reply to a failed call. It says when to retry, if that is known.
pub(super) fn of(error: &InferError) -> Status {
    let mut headers = HeaderMap::new();
    if let Some(retry_after) = Problem::from(error).retry_after {
        let seconds = seconds_up(retry_after);
        headers.insert(header::RETRY_AFTER, seconds.into());
        // gRPC's own clients read this value, in milliseconds, if retries are enabled.
        headers.insert("grpc-retry-pushback-ms", HeaderValue::from(seconds.saturating_mul(1000)));
    }
    Status::with_metadata(code(error), words(error), MetadataMap::from_headers(headers))
}

impl From<InferError> for Status {
    fn from(error: InferError) -> Status {
        of(&error)
    }
}

/// Bytes of a message as it is sent, in a header. Clients end a call whose headers exceed 8 KiB without showing the message.
const WORDS_BYTES_MAX: usize = 6000;

/// The error's message, cut to what a header can hold.
fn words(error: &InferError) -> String {
    let words = match error {
        // As gRPC itself says it: clients tell a timeout by these words.
        InferError::Late(why) | InferError::Hasty(why) => format!("Deadline Exceeded: {why}"),
        other => other.to_string(),
    };
    let mut left = WORDS_BYTES_MAX;
    let over = words.char_indices().find(|(_, character)| {
        // All other characters are percent-encoded: those of `ENCODING_SET` in tonic's status.rs, and what is not ASCII.
        let plain = matches!(character, '!'..='~')
            && !matches!(character, '"' | '#' | '%' | '<' | '>' | '?' | '`' | '{' | '}');
        let bytes = if plain { 1 } else { 3 * character.len_utf8() };
        left.checked_sub(bytes).map(|rest| left = rest).is_none()
    });
    match over {
        None => words,
        Some((end, _)) => format!("{}…", &words[..end]),
    }
}

/// The HTTP status that corresponds to a code; metrics count calls by it.
pub(super) fn http(code: Code) -> u16 {
    match code {
        Code::Ok => 200,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::ResourceExhausted => 429,
        Code::Cancelled => 499,
        Code::Unknown | Code::Internal | Code::DataLoss => 500,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_call_that_failed_has_a_code_the_words_and_when_to_come_back() {
        let full = InferError::Full { what: "the queue", limit: 3, retry_after: Duration::from_millis(2100) };
        let status = of(&full);
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, full.to_string().as_str()));
        assert_eq!(status.metadata().get("retry-after").unwrap(), "3");
        assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "3000");
        let bad = of(&InferError::BadRequest("no".into()));
        assert_eq!((bad.code(), bad.metadata().len()), (Code::InvalidArgument, 0));
    }

    #[test]
    fn a_timeout_begins_as_clients_look_for_it() {
        let late = of(&InferError::Hasty("no answer within the deadline of 49 ms".into()));
        assert_eq!(late.code(), Code::DeadlineExceeded);
        assert_eq!(late.message(), "Deadline Exceeded: no answer within the deadline of 49 ms");
    }

    #[test]
    fn words_are_no_longer_than_a_header_may_be() {
        for (character, fit) in [("a", 6000), ("%", 2000), (" ", 2000), ("{", 2000), ("µ", 1000)] {
            let told =
                |count: usize| of(&InferError::BadRequest(character.repeat(count))).message().to_owned();
            assert_eq!(told(fit), character.repeat(fit));
            assert_eq!(told(fit + 1_000_000), character.repeat(fit) + "…");
        }
    }
}
