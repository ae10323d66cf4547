//! The only table from error to gRPC code; what happened is told in the same words as over HTTP.

use crate::{
    error::{InferError, seconds_up},
    http::reject::Problem,
};
use axum::http::{HeaderMap, HeaderValue, header};
use tonic::{Code, Status, metadata::MetadataMap};

/// The code of an error, as Triton's clients know them.
fn code(error: &InferError) -> Code {
    match error {
        InferError::BadRequest(_)
        | InferError::Decode(_)
        | InferError::NotAcceptable { .. }
        | InferError::UnsupportedMedia { .. }
        | InferError::UnsupportedEncoding { .. }
        | InferError::LoadFailed { .. }
        | InferError::Input(_) => Code::InvalidArgument,
        InferError::Forbidden(_) => Code::PermissionDenied,
        InferError::UnknownModel { .. } => Code::NotFound,
        InferError::TooLarge { .. } | InferError::Full { .. } => Code::ResourceExhausted,
        InferError::ModelUnavailable { .. }
        | InferError::Unserved { .. }
        | InferError::Draining { .. }
        | InferError::Device(_) => Code::Unavailable,
        InferError::SlowBody(_) | InferError::Late(_) => Code::DeadlineExceeded,
        InferError::Cancelled => Code::Cancelled,
        InferError::NotOffered(_) => Code::Unimplemented,
        InferError::Internal(_) => Code::Internal,
    }
}

/// The reply to a call that failed; says when to come back, where that is known.
pub(super) fn of(error: &InferError) -> Status {
    let mut headers = HeaderMap::new();
    if let Some(retry_after) = Problem::from(error).retry_after {
        let seconds = seconds_up(retry_after);
        headers.insert(header::RETRY_AFTER, seconds.into());
        // What gRPC's own clients look at where retries are switched on; in milliseconds.
        headers.insert("grpc-retry-pushback-ms", HeaderValue::from(seconds.saturating_mul(1000)));
    }
    Status::with_metadata(code(error), error.to_string(), MetadataMap::from_headers(headers))
}

/// The status of HTTP that says the same as a code: under these, metrics count calls.
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
}
