//! Around each request: a span that carries its id and trace, one log line at its end, counts by route, and for a
//! model's requests how they ended, whichever layer ended them.

use super::{
    Front,
    kserve::VERB,
    reject::{Kind, Problem},
};
use crate::telemetry::{
    metrics::{ModelMetrics, Outcome},
    request::RequestId,
    traces::{Begun, End},
};
use axum::{
    body::Body,
    extract::{MatchedPath, Request},
    http::{HeaderValue, Response},
};
use percent_encoding::percent_decode_str;
use std::{sync::Arc, time::Instant};
use tracing::Instrument;

/// The route is the template (`/predictions/{model}`), never the path that a client chose.
pub(super) async fn observe<F: Future<Output = Response<Body>>>(
    front: &Front,
    mut request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response<Body> {
    let began = Instant::now();
    let method = request.method().clone();
    let id = request.extensions().get::<RequestId>().cloned().unwrap_or_else(RequestId::new);
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let traces = front.traces.as_ref().filter(|_| !route.as_deref().is_some_and(is_probe));
    let Begun { span, place, trace } = Begun::new(traces, &id, request.headers());
    if let Some(trace) = &trace {
        request.extensions_mut().insert(Arc::clone(trace));
    }
    let uncounted =
        Uncounted(route.as_deref().and_then(|route| inferred(front, route, request.uri().path())));
    let mut reply = next(request).instrument(span.clone()).await;
    if let Ok(place) = HeaderValue::from_str(&place.to_string()) {
        reply.headers_mut().insert("traceparent", place);
    }

    uncounted.ended(reply.extensions().get::<Problem>().map(|problem| problem.kind));
    let (status, took) = (reply.status().as_u16(), began.elapsed());
    let route = route.as_deref().unwrap_or("other");
    front.metrics.route(route).request(method.as_str(), status, took);
    if let Some(trace) = trace {
        let attributes = vec![
            ("http.request.method", method.to_string()),
            ("http.route", route.to_owned()),
            ("ocelli.request.id", id.to_string()),
        ];
        trace.replied(End { name: format!("{method} {route}"), status, attributes });
    }
    let _entered = span.enter();
    let ms = took.as_secs_f64() * 1e3;
    match reply.extensions().get::<Problem>() {
        Some(problem) if status >= 500 => {
            tracing::warn!(%method, route, status, ms, error = problem.detail, "answered");
        }
        Some(problem) => tracing::info!(%method, route, status, ms, error = problem.detail, "answered"),
        None => tracing::debug!(%method, route, status, ms, "answered"),
    }
    reply
}

/// Whether supervisors and scrapers come here: every few seconds, and of no use in a trace.
fn is_probe(route: &str) -> bool {
    route.starts_with("/v2/health/") || matches!(route, "/ping" | "/metrics")
}

/// The metrics of the model that an inference request is for, if the catalog has it: a name that a caller made up must
/// not become a label.
fn inferred(front: &Front, route: &str, path: &str) -> Option<Arc<ModelMetrics>> {
    let v1 = route.starts_with("/v1/models/") && path.ends_with(VERB);
    if !route.starts_with("/predictions/") && !route.ends_with("/infer") && !v1 {
        return None;
    }
    let path = path.strip_suffix(VERB).unwrap_or(path);
    let place = route.split('/').position(|segment| segment == "{model}")?;
    let name = percent_decode_str(path.split('/').nth(place)?).decode_utf8().ok()?;
    front.catalog.has(&name).then(|| front.metrics.model(&name))
}

/// A request that is dropped before it has a reply: its caller went away.
pub(crate) struct Uncounted(Option<Arc<ModelMetrics>>);

impl Uncounted {
    /// A request for a model of the catalog.
    pub(crate) fn of(front: &Front, model: &str) -> Uncounted {
        Uncounted(Some(front.metrics.model(model)))
    }

    /// It has its reply: an answer, or a problem of this kind.
    pub(crate) fn ended(mut self, problem: Option<Kind>) {
        if let Some(metrics) = self.0.take() {
            metrics.outcome(outcome(problem)).inc();
        }
    }
}

impl Drop for Uncounted {
    fn drop(&mut self) {
        if let Some(metrics) = self.0.take() {
            metrics.outcome(Outcome::Cancelled).inc();
        }
    }
}

/// Under which outcome the metrics count a reply.
fn outcome(problem: Option<Kind>) -> Outcome {
    match problem.map(|kind| kind.slug) {
        None => Outcome::Ok,
        Some("not-an-image") => Outcome::Decode,
        Some("too-large" | "uri-too-long") => Outcome::TooLarge,
        Some("queue-full") => Outcome::Full,
        Some("draining") => Outcome::Draining,
        Some("late" | "slow-body") => Outcome::Late,
        Some("cancelled") => Outcome::Cancelled,
        Some("input-refused") => Outcome::Input,
        Some("no-device") => Outcome::Device,
        Some("internal") => Outcome::Internal,
        Some("model-unavailable" | "unknown-model") => Outcome::Unavailable,
        Some(_) => Outcome::BadRequest,
    }
}
