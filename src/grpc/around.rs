//! Middleware around every call: a name for logs and replies, a span, a count by call and code, and a guard against panics. If the client
//! goes away, the code is that of a cancelled call; if the server's shutdown cuts the call, that of draining. Inference calls are
//! admitted on their head, before any of the body is read.

use super::{
    calls::{INFERENCES, LOAD, REFLECTION, REFLECTION_ALPHA, SMALL_BYTES_MAX, STREAM, ours},
    incoming::{self, Charge, Lost, Messages},
    status,
};
use crate::{
    error::InferError,
    http::{
        Front,
        admission::{self, Permit},
        around::guard::{self, X_REQUEST_ID, panicked, sign},
        body::BodyLimits,
        call::{device_of, timing_of},
        observe::often::May,
        reject::{Problem, Readers},
    },
    telemetry::{
        metrics::DropReason,
        request::RequestId,
        traces::{Begun, End, RequestTrace},
    },
    words::clipped,
};
use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, Uri, Version, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use std::{panic::AssertUnwindSafe, sync::Arc, time::Instant};
use tonic::{Code, Status};
use tracing::{Instrument, Span};

/// When a call's head was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived(pub(super) Instant);

/// A call from its head to the head of its reply. If the client goes away before that, the call is dropped.
struct Call {
    front: Arc<Front>,
    /// The path template.
    name: String,
    id: RequestId,
    began: Instant,
    span: Span,
    trace: Option<Arc<RequestTrace>>,
    lost: Lost,
    ended: bool,
}

impl Call {
    fn end(mut self, code: Code, message: &str, head: &HeaderMap) {
        // Nobody receives this reply: a client that goes away while its message arrives is reported like one that goes away later.
        if code != Code::Ok && self.lost.is_noted() {
            return;
        }
        self.ended = true;
        self.tell(code, message, Some(head));
    }

    /// Counts the call and logs how it ended, with the head of its reply if it has one.
    fn tell(&self, code: Code, message: &str, head: Option<&HeaderMap>) {
        let Call { front, name: call, id, began, span, trace, .. } = self;
        let took = began.elapsed();
        front.metrics.route(call).request("POST", status::http(code), took);
        if let Some(trace) = trace {
            // By OpenTelemetry's conventions, the name is `package.Service/Method`.
            let name = call.trim_start_matches('/');
            let (service, method) = name.split_once('/').unwrap_or((name, ""));
            let attributes = vec![
                ("rpc.system", "grpc".into()),
                ("rpc.service", service.to_owned().into()),
                ("rpc.method", method.to_owned().into()),
                ("rpc.grpc.status_code", i64::from(code as i32).into()),
                ("ocelli.request.id", id.to_string().into()),
            ];
            trace.replied(End { name: name.to_owned(), failed: status::http(code) >= 500, attributes });
        }
        let _entered = span.enter();
        let ms = took.as_secs_f64() * 1e3;
        let status = status::http(code);
        let slow = front.log_slow.is_some_and(|slow| took > slow);
        let may = match status >= 400 || slow {
            true => front.often.may(call, status, Instant::now()),
            false => Some(May::default()),
        };
        let Some(May { passed_over }) = may else { return };
        match status {
            500.. => tracing::warn!(call, ?code, ms, error = message, passed_over, "answered"),
            400.. => tracing::info!(call, ?code, ms, error = message, passed_over, "answered"),
            _ if slow => {
                let (timing, device) = (head.and_then(timing_of), head.and_then(device_of));
                tracing::info!(call, ?code, ms, timing, device, passed_over, "answered slowly");
            }
            _ => tracing::debug!(call, ?code, ms, "answered"),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            let gone = Problem::gone(&self.front.status);
            self.tell(
                if gone.kind.status == 503 { Code::Unavailable } else { Code::Cancelled },
                &gone.detail,
                None,
            );
        }
    }
}

/// Middleware, around all calls.
pub(super) async fn around(State(front): State<Arc<Front>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = RequestId::from_header(request.headers().get(X_REQUEST_ID).map(HeaderValue::as_bytes));
    if let Some(problem) = not_grpc(&request) {
        front.metrics.route("other").request(request.method().as_str(), problem.kind.status, began.elapsed());
        let mut reply = problem.into_response();
        if request.method() != Method::POST {
            reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        }
        sign(&mut reply, &id, Readers::of(request.uri().path()));
        return reply;
    }
    let mut call = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    if let Some(ours) = ours(&call) {
        // The service looks at the path.
        *request.uri_mut() = Uri::from_static(ours);
        ours.clone_into(&mut call);
    }
    // Health probes come every few seconds, and are of no use in a trace.
    let traces = front.traces.as_ref().filter(|_| INFERENCES.contains(&&*call));
    let Begun { span, place, trace } = Begun::new(traces, &id, request.headers());
    if let Some(trace) = &trace {
        request.extensions_mut().insert(Arc::clone(trace));
    }
    request.extensions_mut().insert(Arrived(began));
    let lost = Lost::default();
    let observed = Call {
        front: Arc::clone(&front),
        name: call,
        id: id.clone(),
        began,
        span: span.clone(),
        trace,
        lost: lost.clone(),
        ended: false,
    };
    let answered = admitted(&front, &observed.name, request, next, lost).instrument(span.clone());
    let caught = AssertUnwindSafe(answered).catch_unwind().await;
    let mut reply =
        caught.unwrap_or_else(|panic| span.in_scope(|| status::of(&panicked(&panic)).into_http()));
    let headers = reply.headers_mut();
    for (name, value) in [("x-request-id", id.as_str().as_bytes()), ("traceparent", &place)] {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name, value);
        }
    }
    // A call that fails after its head, such as a stream, reports that only to its client.
    let (code, message) = reply
        .extensions()
        .get::<Status>()
        .map_or((code_of(reply.headers()), ""), |status| (status.code(), status.message()));
    observed.end(code, message, reply.headers());
    reply
}

fn code_of(headers: &HeaderMap) -> Code {
    headers.get(Status::GRPC_STATUS).map_or(Code::Ok, |value| Code::from_bytes(value.as_bytes()))
}

fn is_grpc(request: &Request) -> bool {
    guard::is_grpc(request.headers()) && request.version() == Version::HTTP_2
}

/// The problem for clients that use the wrong port, or send what no gRPC client sends (gRPC over HTTP/2, "Requests").
fn not_grpc(request: &Request) -> Option<Problem> {
    if !is_grpc(request) {
        let got = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        return Some(Problem::from(&InferError::UnsupportedMedia {
            got: clipped(&String::from_utf8_lossy(got)).to_owned(),
            accepted: "application/grpc over HTTP/2: this port speaks gRPC, the REST API is on the port of the option listen",
        }));
    }
    (request.method() != Method::POST).then(|| Problem::method_not_allowed(request.method().as_str()))
}

/// Admits an inference or a load, or refuses it before its body is read. Other calls are small and need no permit.
async fn admitted(front: &Arc<Front>, call: &str, request: Request, next: Next, lost: Lost) -> Response {
    let limits = front.limits.body;
    let messages = match call {
        STREAM => Messages::Many,
        call if call == LOAD || INFERENCES.contains(&call) => Messages::One,
        _ => {
            let limits = BodyLimits { bytes_max: SMALL_BYTES_MAX as u64, ..limits };
            let messages =
                if matches!(call, REFLECTION | REFLECTION_ALPHA) { Messages::Many } else { Messages::One };
            return next.run(request.map(|body| incoming::limited(body, limits, messages, None, lost))).await;
        }
    };
    // The permit is charged for messages as their lengths become known.
    let permit = match messages {
        Messages::One => front.admission.admit(),
        Messages::Many => front.admission.open(),
    };
    let permit: Arc<Permit> = match permit {
        Ok(permit) => Arc::new(permit),
        Err(full) => return status::of(&full).into_http(),
    };
    let charge = Charge { permit: Arc::clone(&permit), coding: incoming::packed_with(request.headers()) };
    let mut request = request.map(|body| incoming::limited(body, limits, messages, Some(charge), lost));
    request.extensions_mut().insert(Arc::clone(&permit));
    let reply = match front.before_the_end(DropReason::Request, next.run(request)).await {
        Ok(reply) => reply.into_response(),
        Err(error) => status::of(&error).into_http(),
    };
    admission::hold(reply, permit)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::{super::calls::INFER, *};
    use crate::http::testing;
    use axum::{Router, body::Body, middleware, routing::post};
    use std::sync::atomic::{AtomicBool, Ordering};
    use tower::ServiceExt;

    fn front() -> Arc<Front> {
        testing::front(&super::super::calls::paths())
    }

    #[tokio::test]
    async fn a_call_that_panics_is_an_internal_error_that_says_nothing_of_it_and_keeps_no_room() {
        static HELD_ROOM: AtomicBool = AtomicBool::new(false);
        async fn fails(request: Request) -> Response {
            HELD_ROOM.store(request.extensions().get::<Arc<Permit>>().is_some(), Ordering::Relaxed);
            panic!("secret");
        }
        let front = front();
        let calls = Router::new().route(INFER, post(fails)).route("/fine", post(async || ()));
        let calls = calls.layer(middleware::from_fn_with_state(Arc::clone(&front), around));
        for (path, code) in [(INFER, Code::Internal), ("/fine", Code::Ok)] {
            let request = http::Request::post(path).version(Version::HTTP_2);
            let request = request.header(header::CONTENT_TYPE, "application/grpc").header(X_REQUEST_ID, "me");
            let reply = calls.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            assert_eq!((reply.status().as_u16(), code_of(reply.headers())), (200, code), "{path}");
            assert_eq!(reply.headers()[X_REQUEST_ID], "me");
            let told = reply.headers().get(Status::GRPC_MESSAGE).cloned();
            assert_eq!(told.is_some(), code == Code::Internal);
            assert!(told.is_none_or(|told| !told.to_str().unwrap().contains("secret")));
            assert_eq!(front.admission.in_flight().requests, 0);
        }
        assert!(HELD_ROOM.load(Ordering::Relaxed));
        assert!(front.metrics.render().contains(INFER));
    }

    /// Whether a call of [`INFER`] was counted under this code.
    fn counted(front: &Front, code: u16) -> bool {
        let line =
            format!("ocelli_http_requests_total{{code=\"{code}\",method=\"POST\",route=\"{INFER}\"}} 1");
        front.metrics.render().contains(&line)
    }

    #[tokio::test]
    async fn a_call_whose_message_is_lost_on_its_way_is_told_as_its_callers_doing_or_the_ends() {
        // Like tonic, which takes the error for the end of the messages.
        async fn misses(body: Body) -> Response {
            assert!(axum::body::to_bytes(body, 1000).await.is_err());
            Status::internal("Missing request message.").into_http()
        }
        let front = front();
        let calls = Router::new().route(INFER, post(misses));
        let calls = calls.layer(middleware::from_fn_with_state(Arc::clone(&front), around));
        for code in [499, 503] {
            let half = [Ok(&b"\0\0\0\0\x09ab"[..]), Err(std::io::Error::other("reset"))];
            let body = Body::from_stream(futures_util::stream::iter(half));
            let request = http::Request::post(INFER).version(Version::HTTP_2);
            let request = request.header(header::CONTENT_TYPE, "application/grpc").body(body).unwrap();
            calls.clone().oneshot(request).await.unwrap();
            assert!(counted(&front, code), "{code}: {}", front.metrics.render());
            front.status.cut_from(Instant::now());
        }
        assert!(!counted(&front, 500));
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_is_counted_once_with_its_time_as_its_callers_doing_or_the_ends() {
        let front = front();
        let calls = Router::new().route(INFER, post(std::future::pending::<()>));
        let calls = calls.layer(middleware::from_fn_with_state(Arc::clone(&front), around));
        for (code, class) in [(499, "abandoned"), (503, "failed")] {
            let request = http::Request::post(INFER).version(Version::HTTP_2);
            let request = request.header(header::CONTENT_TYPE, "application/grpc");
            // The call has begun, and is dropped here.
            let call = calls.clone().oneshot(request.body(Body::empty()).unwrap());
            assert!(call.now_or_never().is_none());
            let text = front.metrics.render();
            let labels = format!("{{class=\"{class}\",route=\"{INFER}\"}}");
            let time = format!("ocelli_http_request_duration_seconds_count{labels} 1");
            assert!(counted(&front, code) && text.contains(&time), "{code}: {text}");
            assert_eq!(front.admission.in_flight().requests, 0);
            // The server is what ends the second call.
            front.status.cut_from(Instant::now());
        }
    }

    #[tokio::test]
    async fn a_call_without_an_answer_is_told_when_the_server_ends() {
        let front = front();
        let calls = Router::new().route(INFER, post(std::future::pending::<()>));
        let calls = calls.layer(middleware::from_fn_with_state(Arc::clone(&front), around));
        let request = http::Request::post(INFER).version(Version::HTTP_2);
        let request = request.header(header::CONTENT_TYPE, "application/grpc");
        let mut call = calls.oneshot(request.body(Body::empty()).unwrap());
        assert!(futures_util::poll!(&mut call).is_pending());
        front.status.cut(Instant::now());
        let reply = call.await.unwrap();
        assert_eq!(code_of(reply.headers()), Code::Unavailable);
        assert_eq!(front.metrics.dropped(DropReason::Request).get(), 1);
        assert!(counted(&front, 503), "{}", front.metrics.render());
    }
}
