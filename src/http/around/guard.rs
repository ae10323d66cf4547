//! What every request passes, outermost first: a name ([`identify`]), a net for panics ([`catch_panics`]), and the checks that the head
//! alone allows ([`check_head`]). Also the replies for paths and methods that no route takes.
//!
//! These are functions around whatever comes next, not layers of their own: for every request, a layer allocates a box for its future and
//! one for what is within it.

use crate::{
    error::{InferError, panic_words},
    http::{
        accepted,
        reject::{Problem, Readers},
    },
    telemetry::request::RequestId,
    words::clipped,
};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, Version, header},
    response::IntoResponse,
};
use futures_util::FutureExt;
use std::{any::Any, panic::AssertUnwindSafe};

/// The request id, in and out.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Limits on the head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes of a body, as announced. Over it: 413 before the body is read.
    pub body_bytes_max: u64,
    /// The option that raises it.
    pub option: &'static str,
    /// Bytes of path and query. Over it: 414.
    pub uri_bytes_max: usize,
}

/// The name of a request, known before anything can fail.
pub fn identify(headers: &HeaderMap) -> RequestId {
    RequestId::from_header(headers.get(X_REQUEST_ID).map(HeaderValue::as_bytes))
}

/// Puts a request's name into its reply: into a header and, if the reply is an error, into its body, in the form that its readers expect.
pub fn sign(reply: &mut Response<Body>, id: &RequestId, readers: Readers) {
    if let Some(problem) = reply.extensions().get::<Problem>() {
        *reply.body_mut() = Body::from(problem.to_body(id.as_str(), readers).to_string());
        reply.headers_mut().insert(header::CONTENT_TYPE, readers.content_type());
        reply.headers_mut().remove(header::CONTENT_LENGTH);
    }
    let value = HeaderValue::from_str(id.as_str()).expect("ids hold letters, digits and ._- only");
    reply.headers_mut().insert(X_REQUEST_ID, value);
}

/// Turns a panic of `reply` into a 500: the connection and its other requests go on.
pub fn catch_panics(reply: impl Future<Output = Response<Body>>) -> impl Future<Output = Response<Body>> {
    // The state that a panic leaves behind is dropped with it.
    let caught = AssertUnwindSafe(reply).catch_unwind();
    caught.map(|caught| caught.unwrap_or_else(|panic| panicked(&panic).into_response()))
}

/// The error for a panic. Only the log has the panic's own words.
pub fn panicked(panic: &Box<dyn Any + Send>) -> InferError {
    tracing::error!(panic = panic_words(panic), "a request handler panicked");
    InferError::Internal(
        "a handler failed unexpectedly; the log has the cause under the request id".to_owned(),
    )
}

/// Checks what the head says: host, address, form and announced length of the body.
///
/// # Errors
/// 400 for an HTTP/1.1 request without exactly one valid `Host` (RFC 9112, 3.2) or an HTTP/2 request without an
/// authority; 501 for transfer codings beside `chunked` (RFC 9112, 6.1); 414 and 413 for what is over `limits`.
pub fn check_head<B>(head: &http::Request<B>, limits: HeadLimits) -> Result<(), Problem> {
    let bad = |what: &str| Problem::from(&InferError::BadRequest(what.to_owned()));
    let mut hosts = head.headers().get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(bad("the request has more than one host header; send one"));
    }
    let needs_host = match head.version() {
        Version::HTTP_11 => true,
        Version::HTTP_2 => head.uri().authority().is_none(),
        _ => false,
    };
    if needs_host && host.is_none() {
        return Err(bad("the request has no host header; send one"));
    }
    let is_authority = |value: &HeaderValue| {
        // An empty host is legal, for addresses that have none.
        value.is_empty()
            || http::uri::Authority::try_from(value.as_bytes())
                .is_ok_and(|authority| !authority.as_str().contains('@'))
    };
    if host.is_some_and(|host| !is_authority(host)) {
        return Err(bad("the host header is not a host name or address with an optional port"));
    }
    if let Some(codings) = not_understood(head.headers()) {
        return Err(Problem::from(&InferError::NotOffered(format!(
            "the body has the transfer-encoding {:?}, of which nothing but chunked is understood; what a body is packed with is said by \
             content-encoding",
            clipped(&codings)
        ))));
    }
    let uri_bytes = head.uri().path_and_query().map_or(0, |path| path.as_str().len());
    if uri_bytes > limits.uri_bytes_max {
        return Err(Problem::uri_too_long(uri_bytes, limits.uri_bytes_max));
    }
    match announced(head.headers()) {
        Some(got) if got > limits.body_bytes_max => {
            let HeadLimits { body_bytes_max: limit, option, .. } = limits;
            Err(Problem::from(&InferError::TooLarge { what: "the body in bytes".into(), got, limit, option }))
        }
        _ => Ok(()),
    }
}

/// The transfer codings of the body, if it has any but `chunked`: no other is decoded.
fn not_understood(headers: &HeaderMap) -> Option<String> {
    if !headers.contains_key(header::TRANSFER_ENCODING) {
        return None;
    }
    let codings = accepted::joined(headers, header::TRANSFER_ENCODING);
    (!codings.trim().eq_ignore_ascii_case("chunked")).then_some(codings)
}

/// The length of the body, where the head says it.
fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

/// For `Router::fallback`: no route has this path. A path that other servers of the same protocols have gets a reason of its own, and a
/// gRPC client one that it can show.
pub async fn not_found(uri: Uri, headers: HeaderMap) -> Response<Body> {
    if is_grpc(&headers) {
        return not_grpc_here();
    }
    let problem = match elsewhere(uri.path()) {
        Some(why) => Problem::from(&InferError::NotOffered(why.to_owned())),
        None => Problem::not_found(uri.path()),
    };
    problem.into_response()
}

/// Whether a head is that of a gRPC call, by its content type. gRPC-Web does not count, because its replies differ.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let named = content_type.and_then(|named| named.strip_prefix(b"application/grpc"));
    named.is_some_and(|rest| matches!(rest, [] | [b'+' | b';', ..]))
}

/// The answer to a gRPC call, as its protocol has errors without a message: trailers alone, as headers. It must have no body, so it is no
/// [`Problem`].
fn not_grpc_here() -> Response<Body> {
    const UNIMPLEMENTED: &str = "12";
    let headers = [
        ("content-type", "application/grpc"),
        ("grpc-status", UNIMPLEMENTED),
        ("grpc-message", "this port speaks REST: gRPC is on the port of the option grpc_listen"),
    ];
    (StatusCode::NOT_FOUND, headers).into_response()
}

/// The same on a listener that has a part of the routes.
pub async fn not_found_here(uri: Uri) -> Problem {
    match elsewhere(uri.path()) {
        Some(why) => Problem::from(&InferError::NotOffered(why.to_owned())),
        None => Problem::not_found_here(uri.path()),
    }
}

/// Why there is nothing at a path of Triton's, TensorFlow Serving's, TorchServe's or SageMaker's.
fn elsewhere(path: &str) -> Option<&'static str> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    Some(match parts[..] {
        ["v2", "cudasharedmemory", ..] => {
            "memory of GPUs is not shared with callers: send tensors in the request, as binary data, or through system \
             shared memory"
        }
        ["v2", "trace", ..] | ["v2", "models", .., "trace", "setting"] => {
            "traces are set up with the server's options, and not while it runs"
        }
        ["v2", "models", .., "generate" | "generate_stream"] => "text is not generated here",
        ["v2", "models", .., "infer_stream"] => {
            "requests are not taken as a stream: post to infer, whose answers come item by item with Accept: text/event-stream"
        }
        ["v2", "repository", repository, "index"] | ["v2", "repository", repository, "models", ..]
            if repository != "models" =>
        {
            "there is one repository, without a name: leave it out of the path"
        }
        ["v1", "models", _, "labels", ..] => "versions have numbers and no labels: name a version, or none",
        ["v1", "models", .., "metadata"] => "what a model takes and gives is told at /v2/models/NAME",
        ["explanations", ..] | ["v2", "models", .., "explain"] => "models are not explained here",
        ["invocations"] | ["models", _, "invoke"] | [_, "predict"] => {
            "predictions are posted to /predictions/NAME"
        }
        ["models", _, _, "set-default"] => {
            "the highest version that can be served is the default: callers may name another"
        }
        ["models", ..] => {
            "TorchServe's management API is not built: models are listed at /v2/models, told of at /v2/models/NAME, and, with \
             repository_mode = \"explicit\", loaded and unloaded by POST to /v2/repository/models/NAME/load and unload"
        }
        ["workflows" | "wfpredict", ..] => "there are no workflows: post to one model after the other",
        _ => return None,
    })
}

/// For `Router::method_not_allowed_fallback`, which adds the header `Allow`.
pub async fn method_not_allowed(method: Method) -> Problem {
    Problem::method_not_allowed(method.as_str())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::http::reject;
    use axum::{
        Router,
        extract::Request,
        middleware::{self, Next},
        routing::get,
    };
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    #[test]
    fn what_others_have_is_told_apart_from_what_nobody_has() {
        for path in [
            "/v2/cudasharedmemory/region/x/register",
            "/v2/trace/setting",
            "/v2/models/m/trace/setting",
            "/v2/models/m/versions/1/generate_stream",
            "/v2/repository/mine/index",
            "/v2/repository/mine/models/m/load",
            "/v1/models/m/labels/stable:predict",
            "/v1/models/m/metadata",
            "/v1/models/m/versions/1/metadata",
            "/explanations/m",
            "/v2/models/m/explain",
            "/v2/models/m/versions/1/explain",
            "/v2/models/m/infer_stream",
            "/v2/models/m/versions/1/infer_stream",
            "/wfpredict/w",
            "/workflows",
            "/workflows/w",
        ] {
            assert!(elsewhere(path).is_some(), "{path}");
        }
        for (path, instead) in [
            ("/models", "/v2/models"),
            ("/models/m", "/v2/repository/models/NAME/load"),
            ("/models/m/1.0", "/v2/models/NAME"),
            ("/models/m/1.0/set-default/", "the highest version"),
            ("/models/m/invoke", "/predictions/NAME"),
            ("/invocations", "/predictions/NAME"),
            ("/m/predict", "/predictions/NAME"),
        ] {
            assert!(elsewhere(path).is_some_and(|told| told.contains(instead)), "{path}");
        }
        for path in [
            "/",
            "/v2/repository/models/m",
            "/v2/models/m/traces",
            "/v1/models/m/label/x",
            "/x/v2/logging",
            "/predict",
        ] {
            assert_eq!(elsewhere(path), None, "{path}");
        }
    }

    const LIMITS: HeadLimits =
        HeadLimits { body_bytes_max: 1000, option: "body_bytes_max", uri_bytes_max: 100 };

    fn head(version: Version, uri: &str, headers: &[(&str, &str)]) -> http::Request<()> {
        let mut builder = http::Request::builder().version(version).uri(uri);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).unwrap()
    }

    fn check(version: Version, uri: &str, headers: &[(&str, &str)], status: Option<u16>) {
        let result = check_head(&head(version, uri, headers), LIMITS);
        let got = result.err().map(|problem| problem.kind.status);
        assert_eq!(got, status, "{version:?} {uri} {headers:?}");
    }

    #[test]
    fn http_1_1_needs_exactly_one_valid_host() {
        check(Version::HTTP_11, "/", &[("host", "a:80")], None);
        check(Version::HTTP_11, "/", &[("host", "[::1]:80")], None);
        check(Version::HTTP_11, "/", &[], Some(400));
        check(Version::HTTP_11, "/", &[("host", "a"), ("host", "a")], Some(400));
        check(Version::HTTP_11, "/", &[("host", "a b")], Some(400));
        check(Version::HTTP_11, "/", &[("host", "user@a")], Some(400));
        check(Version::HTTP_10, "/", &[], None);
        check(Version::HTTP_10, "/", &[("host", "a"), ("host", "b")], Some(400));
    }

    #[test]
    fn http_2_needs_an_authority_or_a_host() {
        check(Version::HTTP_2, "http://a/x", &[], None);
        check(Version::HTTP_2, "/x", &[("host", "a")], None);
        check(Version::HTTP_2, "/x", &[], Some(400));
    }

    #[test]
    fn an_announced_length_over_the_limit_is_refused_on_the_head() {
        check(Version::HTTP_10, "/", &[("content-length", "1000")], None);
        check(Version::HTTP_10, "/", &[("content-length", "1001")], Some(413));
    }

    #[test]
    fn a_body_that_is_packed_for_its_way_is_not_taken_for_one_that_is_not() {
        for (coding, status) in
            [("chunked", None), ("Chunked ", None), ("gzip, chunked", Some(501)), ("gzip", Some(501))]
        {
            check(Version::HTTP_11, "/", &[("host", "a"), ("transfer-encoding", coding)], status);
        }
        let twice = [("host", "a"), ("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")];
        check(Version::HTTP_11, "/", &twice, Some(501));
    }

    #[test]
    fn a_long_address_is_refused() {
        check(Version::HTTP_10, &format!("/{}", "x".repeat(99)), &[], None);
        check(Version::HTTP_10, &format!("/{}", "x".repeat(100)), &[], Some(414));
    }

    async fn ask(method: &str, path: &str) -> (Response<()>, serde_json::Value) {
        async fn fails() {
            panic!("secret");
        }
        let router = Router::new()
            .route("/panics", get(fails))
            .fallback(not_found)
            .method_not_allowed_fallback(method_not_allowed)
            .layer(middleware::from_fn(async |request: Request, next: Next| {
                let id = identify(request.headers());
                let readers = Readers::of(request.uri().path());
                let mut reply = catch_panics(next.run(request)).await;
                sign(&mut reply, &id, readers);
                reply
            }));
        let request = http::Request::builder().method(method).uri(path).header(X_REQUEST_ID, "me");
        let request = request.body(Body::empty()).unwrap();
        let (parts, body) = router.oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body).unwrap();
        (Response::from_parts(parts, ()), body)
    }

    #[tokio::test]
    async fn errors_outside_the_handlers_have_the_same_body_and_the_id() {
        let (own, theirs) = (reject::PROBLEM_JSON, "application/json");
        for (method, path, status, content_type) in [
            ("GET", "/none", 404, own),
            ("POST", "/panics", 405, own),
            ("GET", "/panics", 500, own),
            ("GET", "/v22", 404, own),
            ("GET", "/v2/none", 404, theirs),
            ("GET", "/v1", 404, theirs),
            ("PUT", "/models/m", 501, own),
            ("GET", "/predictions/m", 404, own),
        ] {
            let (reply, body) = ask(method, path).await;
            assert_eq!(reply.status(), status);
            assert_eq!(reply.headers()[header::CONTENT_TYPE], content_type, "{path}");
            assert_eq!(reply.headers()[X_REQUEST_ID], "me");
            assert_eq!(body["status"], status);
            assert_eq!(body["request_id"], "me");
            let theirs = matches!(path, "/models/m" | "/predictions/m");
            let of_torchserve = theirs.then(|| (&body["status"], &body["detail"]));
            assert_eq!(body.get("code").zip(body.get("message")), of_torchserve, "{path}");
            assert!(body["type"].as_str().unwrap().starts_with("/docs/errors#"), "{body}");
            assert!(!body.to_string().contains("secret"));
            if status == 405 {
                assert_eq!(reply.headers()[header::ALLOW], "GET,HEAD");
            }
        }
    }
}
