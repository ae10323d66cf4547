//! Around each request: a span that carries its id and trace, one log line at its end, and counts by route.

use super::{Front, reject::Problem};
use crate::telemetry::request::{RequestId, TraceContext};
use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
    http::{HeaderValue, Response},
    middleware::Next,
};
use std::{sync::Arc, time::Instant};
use tracing::Instrument;

/// Middleware. The route is the template (`/predictions/{model}`), never the path that a client chose.
pub(super) async fn observe(State(front): State<Arc<Front>>, request: Request, next: Next) -> Response<Body> {
    let began = Instant::now();
    let method = request.method().clone();
    let id = request.extensions().get::<RequestId>().cloned().unwrap_or_else(RequestId::new);
    let (trace, _) =
        TraceContext::from_header(request.headers().get("traceparent").map(HeaderValue::as_bytes));
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let span = tracing::info_span!(
        "request",
        id = id.as_str(),
        trace = trace.trace_id_hex(),
        model = tracing::field::Empty
    );
    let mut reply = next.run(request).instrument(span.clone()).await;
    if let Ok(trace) = HeaderValue::from_str(&trace.to_string()) {
        reply.headers_mut().insert("traceparent", trace);
    }

    let (status, took) = (reply.status().as_u16(), began.elapsed());
    let route = route.as_deref().unwrap_or("other");
    front.metrics.route(route).request(method.as_str(), status, took);
    let _entered = span.enter();
    let ms = took.as_secs_f64() * 1e3;
    match reply.extensions().get::<Problem>() {
        Some(problem) if status >= 500 => {
            tracing::warn!(%method, route, status, ms, error = problem.detail, "answered");
        }
        Some(problem) => tracing::debug!(%method, route, status, ms, error = problem.detail, "answered"),
        None => tracing::debug!(%method, route, status, ms, "answered"),
    }
    reply
}
