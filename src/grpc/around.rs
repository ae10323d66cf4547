//! What every call passes: a name that goes into logs and replies, a span, a count by call and code, a net for panics; and for
//! inference, admission on the head, before anything of the body is read.

use super::{
    INFER, LOAD, REFLECTION, SMALL_BYTES_MAX, STREAM,
    incoming::{self, Charge, Messages},
    status,
};
use crate::{
    error::InferError,
    http::{
        Front,
        admission::{self, Permit},
        body::BodyLimits,
        guard::{X_REQUEST_ID, panicked, sign},
        reject::{Problem, Readers},
    },
    telemetry::{
        request::RequestId,
        traces::{Begun, End},
    },
    words::clipped,
};
use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Version, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use std::{panic::AssertUnwindSafe, sync::Arc, time::Instant};
use tonic::{Code, Status};
use tracing::Instrument;

/// When a call's head had been read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived(pub(super) Instant);

/// Middleware, around all calls.
pub(super) async fn around(State(front): State<Arc<Front>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = RequestId::from_header(request.headers().get(X_REQUEST_ID).map(HeaderValue::as_bytes));
    if !is_grpc(&request) {
        let problem = not_grpc(&request);
        front.metrics.route("other").request(request.method().as_str(), problem.kind.status, began.elapsed());
        let mut reply = problem.into_response();
        sign(&mut reply, &id, Readers::of(request.uri().path()));
        return reply;
    }
    let call = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    // Probes come every few seconds, and are of no use in a trace.
    let traces = front.traces.as_ref().filter(|_| matches!(&*call, INFER | STREAM));
    let Begun { span, place, trace } = Begun::new(traces, &id, request.headers());
    if let Some(trace) = &trace {
        request.extensions_mut().insert(Arc::clone(trace));
    }
    request.extensions_mut().insert(Arrived(began));
    let answered = admitted(&front, &call, request, next).instrument(span.clone());
    let caught = AssertUnwindSafe(answered).catch_unwind().await;
    let mut reply =
        caught.unwrap_or_else(|panic| span.in_scope(|| status::of(&panicked(&panic)).into_http()));
    let headers = reply.headers_mut();
    for (name, value) in [("x-request-id", id.to_string()), ("traceparent", place.to_string())] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    // A call that failed after its head, such as a stream, tells its own clients only.
    let (code, message) = reply
        .extensions()
        .get::<Status>()
        .map_or((code_of(reply.headers()), ""), |status| (status.code(), status.message()));
    let took = began.elapsed();
    front.metrics.route(&call).request("POST", status::http(code), took);
    if let Some(trace) = trace {
        let attributes = vec![
            ("rpc.system", "grpc".to_owned()),
            ("rpc.grpc.status_code", (code as i32).to_string()),
            ("ocelli.request.id", id.to_string()),
        ];
        trace.replied(End { name: call.clone(), status: status::http(code), attributes });
    }
    let _entered = span.enter();
    let ms = took.as_secs_f64() * 1e3;
    match status::http(code) {
        500.. => tracing::warn!(call, ?code, ms, error = message, "answered"),
        400.. => tracing::info!(call, ?code, ms, error = message, "answered"),
        _ => tracing::debug!(call, ?code, ms, "answered"),
    }
    reply
}

fn code_of(headers: &HeaderMap) -> Code {
    headers.get(Status::GRPC_STATUS).map_or(Code::Ok, |value| Code::from_bytes(value.as_bytes()))
}

fn is_grpc(request: &Request) -> bool {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let grpc = content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    grpc && request.version() == Version::HTTP_2
}

/// For whoever comes to the wrong port.
fn not_grpc(request: &Request) -> Problem {
    let got = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    Problem::from(&InferError::UnsupportedMedia {
        got: clipped(&String::from_utf8_lossy(got)).to_owned(),
        accepted: "application/grpc over HTTP/2: this port speaks gRPC, the REST API is on the port of the option listen",
    })
}

/// Lets an inference or a model in, or refuses it before its body is read; other calls are small, and cost nothing.
async fn admitted(front: &Arc<Front>, call: &str, request: Request, next: Next) -> Response {
    let limits = front.limits.body;
    let messages = match call {
        INFER | LOAD => Messages::One,
        STREAM => Messages::Many,
        _ => {
            let limits = BodyLimits { bytes_max: SMALL_BYTES_MAX as u64, ..limits };
            let messages = if call == REFLECTION { Messages::Many } else { Messages::One };
            return next.run(request.map(|body| incoming::limited(body, limits, messages, None))).await;
        }
    };
    // Messages are charged as their lengths become known.
    let permit = match messages {
        Messages::One => front.admission.admit(),
        Messages::Many => front.admission.open(),
    };
    let permit: Arc<Permit> = match permit {
        Ok(permit) => Arc::new(permit),
        Err(full) => return status::of(&full).into_http(),
    };
    let charge = Charge { permit: Arc::clone(&permit), coding: incoming::packed_with(request.headers()) };
    let mut request = request.map(|body| incoming::limited(body, limits, messages, Some(charge)));
    request.extensions_mut().insert(Arc::clone(&permit));
    admission::hold(next.run(request).await.into_response(), permit)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::{
        batch::{Queue, QueueLimits},
        config::Config,
        http::{Parts, decode::DecodePool},
        image::Limits,
        models::{Catalog, Control},
        status::Status as Process,
        telemetry::{logging::LinesLost, metrics::Metrics},
    };
    use axum::{Router, body::Body, middleware, routing::post};
    use std::sync::atomic::{AtomicBool, Ordering};
    use tower::ServiceExt;

    fn front() -> Arc<Front> {
        let limits = Limits { side_max: 1, pixels_max: 1, frames_max: 1 };
        let parts = Parts {
            queue: Queue::new(QueueLimits { items_max: 1, bytes_max: 1 }),
            catalog: Arc::new(Catalog::new()),
            status: Arc::new(Process::new(Instant::now())),
            metrics: Arc::new(Metrics::new(&super::super::paths(), "", "")),
            decode: DecodePool::new(1, 1, limits).unwrap(),
            lines_lost: LinesLost::default(),
            control: Arc::new(Control::new("models".into()).0),
            traces: None,
        };
        Arc::new(Front::new(&Config::default(), parts))
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
}
