//! The only table from error to reply.
//!
//! Every error has the same body, whatever the route: that of RFC 9457 with one member more, `error`, which is where the
//! clients of Triton and KServe look. Its content type is the RFC's on our own routes, and theirs on theirs; and where TorchServe's
//! clients ask it has what they look for as well ([`Readers`]). [`manual`] explains each kind.

pub mod manual;

use crate::{
    error::{InferError, RETRY_AFTER, seconds_up},
    status::Status,
    telemetry::metrics::Outcome,
    words::clipped,
};
use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The content type of error bodies on our own routes.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// What the routes of images take: the words of [`InferError::UnsupportedMedia`] there.
pub(super) const IMAGE_BODIES: &str = "an image/* type or application/octet-stream for one image, multipart/form-data for files, or \
                        application/json for base64";

/// Whose clients read the error of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// Ours.
    Own,
    /// Those of KServe's first protocol and of the Open Inference Protocol, whose servers answer with `application/json`: KServe's
    /// client shows the words of no other.
    Protocols,
    /// TorchServe's, which know an error by `code` and `message`. Their `type` is another than that of RFC 9457, which stays.
    TorchServe,
}

impl Readers {
    /// By the path that was asked for.
    pub fn of(path: &str) -> Readers {
        match path.split('/').nth(1) {
            Some("v1" | "v2") => Readers::Protocols,
            Some("predictions" | "ping" | "explanations" | "models") => Readers::TorchServe,
            _ => Readers::Own,
        }
    }

    /// The type of the body.
    pub fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(if self == Readers::Protocols { "application/json" } else { PROBLEM_JSON })
    }
}

/// One kind of error: what a client can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The anchor in `docs/errors.md` and at `/docs/errors`, and the end of `type`.
    pub slug: &'static str,
    /// The reply's status.
    pub status: u16,
    /// Under which outcome a model's metrics count it. What callers alone can do otherwise is none of the server's
    /// failures: also to ask for a version that a model does not have, and to send too slowly.
    pub outcome: Outcome,
    /// `title`: the same for all errors of a kind.
    pub title: &'static str,
}

impl Kind {
    /// Where the manual explains it: `type`.
    pub fn address(&self) -> String {
        format!("/docs/errors#{}", self.slug)
    }
}

const fn kind(slug: &'static str, status: u16, outcome: Outcome, title: &'static str) -> Kind {
    Kind { slug, status, outcome, title }
}

const BAD_REQUEST: Kind = kind("bad-request", 400, Outcome::BadRequest, "the request is malformed");
const NOT_AN_IMAGE: Kind =
    kind("not-an-image", 400, Outcome::Decode, "the bytes are not an image we can decode");
const INPUT_REFUSED: Kind = kind("input-refused", 400, Outcome::Input, "the model refused the input");
const MODEL_NOT_READY: Kind =
    kind("model-not-ready", 400, Outcome::Unavailable, "the model cannot be served now");
const LOAD_FAILED: Kind = kind("load-failed", 400, Outcome::BadRequest, "the model could not be loaded");
const LOAD_WAITS: Kind = kind("load-waits", 503, Outcome::Unavailable, "no device can take the model now");
const FORBIDDEN: Kind = kind("forbidden", 403, Outcome::BadRequest, "the caller may not do this");
const NOT_FOUND: Kind = kind("not-found", 404, Outcome::BadRequest, "there is nothing at this path");
const UNKNOWN_MODEL: Kind =
    kind("unknown-model", 404, Outcome::BadRequest, "there is no such model or version");
const METHOD: Kind =
    kind("method-not-allowed", 405, Outcome::BadRequest, "the path does not take this method");
const NOT_ACCEPTABLE: Kind =
    kind("not-acceptable", 406, Outcome::BadRequest, "the answer has no form that is accepted");
const SLOW_BODY: Kind = kind("slow-body", 408, Outcome::BadRequest, "the body came too slowly");
const TOO_LARGE: Kind = kind("too-large", 413, Outcome::TooLarge, "the request is over a limit");
const URI_TOO_LONG: Kind = kind("uri-too-long", 414, Outcome::TooLarge, "the address is over a limit");
const MEDIA: Kind =
    kind("unsupported-media", 415, Outcome::BadRequest, "the content type or encoding is not supported");
const FULL: Kind = kind("queue-full", 429, Outcome::Full, "a queue is full");
const CANCELLED: Kind = kind("cancelled", 499, Outcome::Cancelled, "the caller went away");
const INTERNAL: Kind = kind("internal", 500, Outcome::Internal, "the server is at fault");
const NOT_OFFERED: Kind = kind("not-offered", 501, Outcome::BadRequest, "the server does not do this");
const UNAVAILABLE: Kind =
    kind("model-unavailable", 503, Outcome::Unavailable, "the model cannot be served now");
/// The same to callers. It is counted apart, since whoever balances requests asks replicas that begin as well, and then another.
const LOADING: Kind = Kind { outcome: Outcome::Loading, ..UNAVAILABLE };
const DRAINING: Kind = kind("draining", 503, Outcome::Draining, "the server is going away");
const NO_DEVICE: Kind = kind("no-device", 503, Outcome::Device, "no device could run the request");
const NOT_READY: Kind = kind("not-ready", 503, Outcome::Unavailable, "the server is not ready");
const NOT_LIVE: Kind = kind("not-live", 503, Outcome::Unavailable, "the server must be restarted");
const LATE: Kind = kind("late", 504, Outcome::Late, "the deadline passed or cannot be met");
/// The same to callers. It is counted apart, since a caller that gives every request a millisecond says nothing of the server.
const HASTY: Kind = Kind { outcome: Outcome::Hasty, ..LATE };
const NO_STORAGE: Kind =
    kind("insufficient-storage", 507, Outcome::Storage, "the server has no room on its disk");

/// All kinds, by status.
pub const KINDS: [Kind; 26] = [
    BAD_REQUEST,
    NOT_AN_IMAGE,
    INPUT_REFUSED,
    MODEL_NOT_READY,
    LOAD_FAILED,
    FORBIDDEN,
    NOT_FOUND,
    UNKNOWN_MODEL,
    METHOD,
    NOT_ACCEPTABLE,
    SLOW_BODY,
    TOO_LARGE,
    URI_TOO_LONG,
    MEDIA,
    FULL,
    CANCELLED,
    INTERNAL,
    NOT_OFFERED,
    UNAVAILABLE,
    LOAD_WAITS,
    DRAINING,
    NO_DEVICE,
    NOT_READY,
    NOT_LIVE,
    LATE,
    NO_STORAGE,
];

/// The kind of an error.
pub fn kind_of(error: &InferError) -> Kind {
    match error {
        InferError::BadRequest(_) => BAD_REQUEST,
        InferError::Decode(_) => NOT_AN_IMAGE,
        InferError::TooLarge { .. } | InferError::Outsized(_) => TOO_LARGE,
        InferError::SlowBody(_) => SLOW_BODY,
        InferError::Cancelled => CANCELLED,
        InferError::NotAcceptable { .. } => NOT_ACCEPTABLE,
        InferError::UnsupportedMedia { .. } | InferError::UnsupportedEncoding { .. } => MEDIA,
        InferError::UnknownModel { .. } => UNKNOWN_MODEL,
        InferError::ModelUnavailable { loading: true, .. } => LOADING,
        InferError::ModelUnavailable { .. } => UNAVAILABLE,
        InferError::LoadFailed { for_now: true, .. } => LOAD_WAITS,
        InferError::LoadFailed { .. } => LOAD_FAILED,
        InferError::Forbidden(_) => FORBIDDEN,
        InferError::Full { .. } => FULL,
        InferError::Draining => DRAINING,
        InferError::Late(_) => LATE,
        InferError::Hasty(_) => HASTY,
        InferError::Input(_) => INPUT_REFUSED,
        InferError::Unserved { .. } | InferError::Device(_) => NO_DEVICE,
        InferError::NotOffered(_) => NOT_OFFERED,
        InferError::NoStorage(_) => NO_STORAGE,
        InferError::Internal(_) => INTERNAL,
    }
}

/// An error on its way out: a kind, and what happened this time.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Which kind.
    pub kind: Kind,
    /// What happened, for a person: `detail` and `error`.
    pub detail: String,
    /// `Retry-After`; on every 429 and 503.
    pub retry_after: Option<Duration>,
}

impl Problem {
    /// No route has this path.
    pub fn not_found(path: &str) -> Problem {
        let path = clipped(path);
        Problem::new(NOT_FOUND, format!("there is nothing at {path:?}; /openapi.yaml lists all paths"))
    }

    /// No route of a listener for operators has this path.
    pub fn not_found_here(path: &str) -> Problem {
        let path = clipped(path);
        let detail = format!(
            "there is nothing at {path:?} on this listener: it is one for operators, and that of `listen` has the rest, and \
             /openapi.yaml"
        );
        Problem::new(NOT_FOUND, detail)
    }

    /// No device has this name.
    pub fn unknown_device(id: &str, known: &[&str]) -> Problem {
        let id = clipped(id);
        Problem::new(NOT_FOUND, format!("there is no device {id:?}; there are {}", known.join(", ")))
    }

    /// No region of shared memory has this name.
    pub fn unknown_region(name: &str) -> Problem {
        let name = clipped(name);
        Problem::new(NOT_FOUND, format!("there is no shared memory region {name:?}"))
    }

    /// The route has other methods.
    pub fn method_not_allowed(method: &str) -> Problem {
        let method = clipped(method);
        let detail = format!("the path does not take {method}; the header allow lists what it takes");
        Problem::new(METHOD, detail)
    }

    /// A prediction of KServe's first protocol was posted to a path that does not end in `verb`.
    pub fn without_verb(verb: &str) -> Problem {
        Problem::new(METHOD, format!("predictions are posted to /v1/models/NAME{verb}"))
    }

    /// The path and query are longer than `limit` bytes.
    pub fn uri_too_long(got: usize, limit: usize) -> Problem {
        let detail = format!("the address has {got} bytes, more than the limit of {limit}");
        Problem::new(URI_TOO_LONG, detail)
    }

    /// For readiness probes of the whole server: why it should get no requests now.
    pub fn not_ready(reason: &str) -> Problem {
        Problem::new(NOT_READY, format!("the server is not ready: {reason}"))
    }

    /// For whoever asks whether the server is alive: why it is to be restarted.
    pub fn not_live(reason: &str) -> Problem {
        Problem::new(NOT_LIVE, format!("the server is not live: {reason}"))
    }

    /// For readiness probes of one model. 400, as Triton answers and as KServe's clients understand it: a request for
    /// the model itself gets 503.
    pub fn model_not_ready(name: &str, reason: &str) -> Problem {
        Problem::new(MODEL_NOT_READY, format!("model {name:?} is not ready: {reason}"))
    }

    /// Whether it is the answer of a readiness probe, which says nothing of the request that asked.
    pub(super) fn is_of_probe(&self) -> bool {
        matches!(self.kind, NOT_READY | MODEL_NOT_READY)
    }

    /// For the log and the metrics: of a request that goes now without an answer, the caller went away, unless the server's end cut it.
    pub(crate) fn gone(status: &Status) -> Problem {
        match status.cuts(Instant::now()) {
            true => Problem::new(DRAINING, "the server ended before the request was answered".to_owned()),
            false => Problem::from(&InferError::Cancelled),
        }
    }

    fn new(kind: Kind, detail: String) -> Problem {
        let passes = matches!(kind.status, 429 | 503);
        Problem { kind, detail, retry_after: passes.then_some(RETRY_AFTER) }
    }

    /// The JSON body as a whole reply.
    pub fn to_body(&self, request_id: &str, readers: Readers) -> Value {
        let mut body = self.to_json(Some(request_id));
        if readers == Readers::TorchServe {
            body["code"] = self.kind.status.into();
            body["message"] = self.detail.as_str().into();
        }
        body
    }

    /// The JSON body. Also the entry of one failed item in a reply with several.
    pub fn to_json(&self, request_id: Option<&str>) -> Value {
        let mut body = json!({
            "error": self.detail,
            "type": self.kind.address(),
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
        });
        // What KServe's clients read of a probe.
        if self.kind == NOT_READY {
            body["ready"] = false.into();
        } else if self.kind == NOT_LIVE {
            body["live"] = false.into();
        }
        if let Some(id) = request_id {
            body["request_id"] = id.into();
        }
        body
    }
}

/// Characters of what happened: it may repeat a name or a value of the request, which has any length, in the reply and in the log.
const DETAIL_CHARS_MAX: usize = 5000;

impl From<&InferError> for Problem {
    fn from(error: &InferError) -> Problem {
        let mut detail = error.to_string();
        if let Some((end, _)) = detail.char_indices().nth(DETAIL_CHARS_MAX) {
            detail.truncate(end);
            detail.push('…');
        }
        let mut problem = Problem::new(kind_of(error), detail);
        if let InferError::Full { retry_after, .. } | InferError::Unserved { retry_after, .. } = error {
            problem.retry_after = Some(*retry_after);
        }
        problem
    }
}

/// The whole reply. The problem itself stays in the extensions, for logs, metrics and the request id.
impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let mut reply = Response::new(Body::from(self.to_json(None).to_string()));
        *reply.status_mut() =
            StatusCode::from_u16(self.kind.status).expect("the table holds statuses between 100 and 999");
        let headers = reply.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(retry_after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds_up(retry_after).into());
        }
        reply.extensions_mut().insert(self);
        reply
    }
}

/// So that a handler may end with `?`.
impl IntoResponse for InferError {
    fn into_response(self) -> Response<Body> {
        let mut reply = Problem::from(&self).into_response();
        // RFC 9110, 15.5.16: what would have been taken.
        if let InferError::UnsupportedEncoding { accepted, .. } = self {
            reply.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static(accepted));
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;

    fn one_of_each() -> Vec<InferError> {
        let text = || "what happened".to_owned();
        let retry_after = Duration::from_millis(2100);
        vec![
            InferError::BadRequest(text()),
            InferError::Decode(text()),
            InferError::TooLarge {
                what: "the body in bytes".into(),
                got: 2,
                limit: 1,
                option: "body_bytes_max",
            },
            InferError::SlowBody(text()),
            InferError::Cancelled,
            InferError::NotAcceptable { got: text(), accepted: "application/json" },
            InferError::UnsupportedMedia { got: text(), accepted: "application/json" },
            InferError::UnknownModel { name: text(), nearest: vec![] },
            InferError::ModelUnavailable { name: text(), reason: text(), loading: false },
            InferError::LoadFailed { name: text(), reason: text(), for_now: false },
            InferError::LoadFailed { name: text(), reason: text(), for_now: true },
            InferError::Forbidden(text()),
            InferError::UnsupportedEncoding { got: text(), accepted: "gzip" },
            InferError::Full { what: "the queue", limit: 3, retry_after },
            InferError::Draining,
            InferError::Late(text()),
            InferError::Unserved { name: text(), reason: text(), retry_after },
            InferError::Input(text()),
            InferError::Device(text()),
            InferError::NotOffered(text()),
            InferError::NoStorage(text()),
            InferError::Internal(text()),
        ]
    }

    #[test]
    fn a_model_that_is_still_loading_is_counted_apart_and_told_alike() {
        let told = |loading| {
            Problem::from(&InferError::ModelUnavailable { name: "m".into(), reason: "r".into(), loading })
        };
        let (loading, broken) = (told(true), told(false));
        assert_eq!((loading.kind.outcome, broken.kind.outcome), (Outcome::Loading, Outcome::Unavailable));
        assert_eq!(loading.to_json(None), broken.to_json(None));
    }

    #[test]
    fn a_deadline_that_the_caller_set_is_counted_apart_and_told_alike() {
        let (late, hasty) = (InferError::Late("why".into()), InferError::Hasty("why".into()));
        let (late, hasty) = (Problem::from(&late), Problem::from(&hasty));
        assert_eq!((late.kind.outcome, hasty.kind.outcome), (Outcome::Late, Outcome::Hasty));
        assert_eq!(late.to_json(None), hasty.to_json(None));
    }

    #[test]
    fn every_error_has_a_body_that_both_families_of_clients_read() {
        for error in one_of_each() {
            let problem = Problem::from(&error);
            let body = problem.to_json(Some("abc"));
            assert_eq!(body["error"], body["detail"]);
            assert_eq!(body["detail"], error.to_string());
            assert_eq!(body["request_id"], "abc");
            assert_eq!(body["status"], problem.kind.status);
            assert!(KINDS.contains(&problem.kind), "{error} is not in the table");
            let reply = error.into_response();
            assert_eq!(reply.status(), problem.kind.status);
            assert_eq!(reply.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
            let told = reply.headers().contains_key(header::RETRY_AFTER);
            assert_eq!(told, matches!(problem.kind.status, 429 | 503), "{problem:?}");
        }
    }

    #[test]
    fn what_a_caller_sent_is_not_repeated_at_any_length() {
        let problem = Problem::from(&InferError::BadRequest("ä".repeat(1 << 20)));
        assert_eq!(problem.detail, "ä".repeat(5000) + "…");
    }

    #[test]
    fn retry_after_is_rounded_up_to_seconds() {
        let full = InferError::Full { what: "the queue", limit: 3, retry_after: Duration::from_millis(2100) };
        assert_eq!(full.into_response().headers()[header::RETRY_AFTER], "3");
    }
}
