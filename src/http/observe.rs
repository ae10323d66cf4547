//! Around each request: a span that carries its id and trace, one log line at its end, counts by route, and for a
//! model's requests how they ended, whichever layer ended them.

use super::{
    Front,
    kserve::{PREDICTIONS, VERB},
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
    http::{HeaderName, HeaderValue, Method, Response},
};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

/// A reply's place in its trace, by W3C Trace Context.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// A request from its head to the head of its reply.
pub(super) struct Observation {
    began: Instant,
    method: Method,
    matched: Option<MatchedPath>,
    predicts: bool,
    begun: Begun,
    uncounted: Uncounted,
}

impl Observation {
    /// The handler finds its trace in the extensions.
    pub(super) fn begin(front: &Front, id: &RequestId, request: &mut Request) -> Observation {
        let began = Instant::now();
        let matched = request.extensions().get::<MatchedPath>().cloned();
        let route = matched.as_ref().map(MatchedPath::as_str);
        let traces = front.traces.as_ref().filter(|_| !route.is_some_and(is_probe));
        let begun = Begun::new(traces, id, request.headers());
        if let Some(trace) = &begun.trace {
            request.extensions_mut().insert(Arc::clone(trace));
        }
        let uncounted = route.and_then(|route| inferred(front, route, request.uri().path()));
        let method = request.method().clone();
        let predicts = method == Method::POST && request.uri().path().ends_with(VERB);
        Observation { began, method, matched, predicts, begun, uncounted: Uncounted::begin(uncounted) }
    }

    /// What the handler's log lines stand in.
    pub(super) fn span(&self) -> tracing::Span {
        self.begun.span.clone()
    }

    /// Counts the reply, logs it, and says its place in the trace.
    pub(super) fn end(self, front: &Front, id: &RequestId, reply: &mut Response<Body>) {
        let Observation { began, method, matched, predicts, begun, uncounted } = self;
        let Begun { span, place, trace } = begun;
        if let Ok(place) = HeaderValue::from_bytes(&place.header()) {
            reply.headers_mut().insert(TRACEPARENT, place);
        }
        match reply.extensions().get::<Ending>() {
            Some(ending) => ending.begins(uncounted),
            None => uncounted.ended(reply.extensions().get::<Problem>().map(|problem| problem.kind)),
        }
        let (status, took) = (reply.status().as_u16(), began.elapsed());
        // The template (`/predictions/{model}`), never the path that a client chose.
        let route = matched.as_ref().map_or("other", |matched| template(matched, predicts));
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
    }
}

/// The template that a request is counted under. Probes of KServe come to the route of its predictions, and would pass for fast ones.
fn template(matched: &MatchedPath, predicts: bool) -> &str {
    let route = matched.as_str();
    let prediction = |of: &&str| predicts && of.strip_suffix(VERB) == Some(route);
    PREDICTIONS.into_iter().find(prediction).unwrap_or(route)
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
    // The model is the first that a template leaves open.
    let (before, _) = route.split_once('{')?;
    let name = percent_decode_str(path.strip_prefix(before)?.split('/').next()?).decode_utf8().ok()?;
    front.catalog.has(&name).then(|| front.metrics.model(&name))
}

/// A request that is dropped before it has a reply: its caller went away.
pub(crate) struct Uncounted(Option<Arc<ModelMetrics>>);

impl Uncounted {
    /// A request for a model of the catalog.
    pub(crate) fn of(front: &Front, model: &str) -> Uncounted {
        Uncounted::begin(Some(front.metrics.model(model)))
    }

    fn begin(model: Option<Arc<ModelMetrics>>) -> Uncounted {
        if let Some(metrics) = &model {
            metrics.requests_open.fetch_add(1, Ordering::Relaxed);
        }
        Uncounted(model)
    }

    /// It has its reply: an answer, or a problem of this kind.
    pub(crate) fn ended(mut self, problem: Option<Kind>) {
        self.count(problem.map_or(Outcome::Ok, |kind| kind.outcome));
    }

    fn count(&mut self, outcome: Outcome) {
        if let Some(metrics) = self.0.take() {
            metrics.requests_open.fetch_sub(1, Ordering::Relaxed);
            metrics.outcome(outcome).inc();
        }
    }
}

impl Drop for Uncounted {
    fn drop(&mut self) {
        self.count(Outcome::Cancelled);
    }
}

/// How a streamed reply ended, set by whoever writes it; left unset, the caller went away.
#[derive(Clone, Default)]
pub(super) struct Ending(Arc<Mutex<Option<Uncounted>>>);

impl Ending {
    fn begins(&self, uncounted: Uncounted) {
        *self.0.lock() = Some(uncounted);
    }

    /// It has ended: as it should, or with a problem of this kind.
    pub(super) fn ended(&self, problem: Option<Kind>) {
        let uncounted = self.0.lock().take();
        if let Some(uncounted) = uncounted {
            uncounted.ended(problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            streamed::{Form, reply},
            wire::answer::Entry,
        },
        *,
    };
    use crate::{error::InferError, telemetry::metrics::Metrics};
    use futures_util::stream;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn a_stream_counts_as_an_answer_if_it_has_one_and_else_by_its_first_error() {
        let metrics = Metrics::new(&[], "0", "none");
        metrics.add_model("m");
        let model = metrics.model("m");
        for (answered, counts) in [(true, [1, 0]), (false, [1, 1])] {
            let answer = answered.then(|| Entry { page: None, answer: Ok(b"\"a\":1".to_vec()) });
            let error = Entry { page: None, answer: Err(InferError::Decode("no".into())) };
            let reply = reply(Form::Lines, stream::iter([error].into_iter().chain(answer)));
            let ending = reply.extensions().get::<Ending>().expect("it is counted at its end");
            ending.begins(Uncounted::begin(Some(Arc::clone(&model))));
            reply.into_body().collect().await.expect("infallible");
            assert_eq!([Outcome::Ok, Outcome::Decode].map(|outcome| model.outcome(outcome).get()), counts);
        }
    }
}
