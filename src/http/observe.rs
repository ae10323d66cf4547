//! Observes each request: a span that carries its id and trace, one log line at its end, counts by route, and for a model's requests their
//! outcome, whichever layer ended them. A request whose client goes away before its reply ends with 499, and one that is cut off by the
//! shutdown with 503.

pub(crate) mod often;

use super::{
    Front, call,
    reject::{Kind, Problem},
    target::VERB,
};
use crate::{
    telemetry::{
        metrics::{ModelMetrics, Outcome, known_method},
        request::RequestId,
        traces::{Begun, End},
    },
    words::clipped,
};
use axum::{
    body::Body,
    extract::{MatchedPath, Request},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Response},
};
use often::May;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};
use tracing::level_filters::LevelFilter;

/// A reply's place in its trace, by W3C Trace Context.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The templates of KServe's predictions. They share their routes with readiness, and are counted apart from it.
const PREDICTIONS: [&str; 2] =
    ["/v1/models/{model}:predict", "/v1/models/{model}/versions/{version}:predict"];

/// Suffix of a route's template under which stacks are counted.
const STACK: &str = " (stack)";

/// The templates for stacks, which are counted apart from images posted to the same routes.
const STACKS: [&str; 2] = ["/predictions/{model} (stack)", "/predictions/{model}/{version} (stack)"];

/// What is counted apart from the other requests of its route.
pub(super) fn apart() -> impl Iterator<Item = &'static str> {
    PREDICTIONS.into_iter().chain(STACKS)
}

/// A request from its head to the head of its reply. Dropped before that if its client goes away.
pub(super) struct Observation {
    front: Arc<Front>,
    id: RequestId,
    began: Instant,
    method: Method,
    matched: Option<MatchedPath>,
    predicts: bool,
    /// Whether its model takes stacks of camera frames on this route.
    stack: bool,
    /// Empty unless the request's trace may be sent.
    path: String,
    begun: Begun,
    uncounted: Option<Uncounted>,
    ended: bool,
}

impl Observation {
    /// Puts the trace into the extensions, where the handler finds it.
    pub(super) fn begin(front: &Arc<Front>, id: &RequestId, request: &mut Request) -> Observation {
        let began = Instant::now();
        let matched = request.extensions().get::<MatchedPath>().cloned();
        let route = matched.as_ref().map(MatchedPath::as_str);
        let traces = front.traces.as_ref().filter(|_| !route.is_some_and(is_probe));
        let begun = Begun::new(traces, id, request.headers());
        if let Some(trace) = &begun.trace {
            request.extensions_mut().insert(Arc::clone(trace));
        }
        let path = request.uri().path();
        let v1 = route.is_some_and(|route| route.starts_with("/v1/models/")) && names_verb(path);
        let inferred = route.and_then(|route| inferred(front, route, path, v1));
        let stack = inferred.as_ref().is_some_and(|(_, stack)| *stack);
        let uncounted = inferred.map(|(model, _)| Uncounted::begin(front, model));
        let method = request.method().clone();
        let predicts = v1 && method == Method::POST;
        let path = begun.trace.as_ref().map_or_else(String::new, |_| clipped(path).to_owned());
        let (front, id) = (Arc::clone(front), id.clone());
        Observation {
            front,
            id,
            began,
            method,
            matched,
            predicts,
            stack,
            path,
            begun,
            uncounted,
            ended: false,
        }
    }

    /// The span of the handler's log lines.
    pub(super) fn span(&self) -> &tracing::Span {
        &self.begun.span
    }

    /// Counts the reply, logs it, and adds its place in the trace.
    pub(super) fn end(mut self, reply: &mut Response<Body>) {
        if let Ok(place) = HeaderValue::from_bytes(&self.begun.place) {
            reply.headers_mut().insert(TRACEPARENT, place);
        }
        let problem = reply.extensions().get::<Problem>();
        if let Some(uncounted) = self.uncounted.take() {
            match reply.extensions().get::<StreamEnd>() {
                Some(ending) => ending.begins(uncounted),
                None => uncounted.ended(problem.map(|problem| problem.kind)),
            }
        }
        self.ended = true;
        // Probes come again and again: the log has the changes of state instead of their errors.
        let told = problem.filter(|problem| !problem.is_of_probe());
        self.tell(reply.status().as_u16(), told.map(|problem| &*problem.detail), Some(reply.headers()));
    }

    /// Counts and logs how it ended, with the head of its reply if it has one.
    fn tell(&self, status: u16, error: Option<&str>, head: Option<&HeaderMap>) {
        let Observation { front, began, method, begun, .. } = self;
        let took = began.elapsed();
        // The template (`/predictions/{model}`), never the path that a client chose.
        let matched = self.matched.as_ref().map(|matched| template(matched, self.predicts));
        let route = matched.unwrap_or("other");
        front.metrics.route(self.counted(route)).request(method.as_str(), status, took);
        if let Some(trace) = &begun.trace {
            trace.replied(self.span_end(matched, status));
        }
        let slow = status < 400 && !self.stack && front.log_slow.is_some_and(|slow| took > slow);
        // No line would be written: nothing is prepared for one.
        if error.is_none() && !slow && LevelFilter::current() < LevelFilter::DEBUG {
            return;
        }
        let _entered = begun.span.enter();
        let ms = took.as_secs_f64() * 1e3;
        let may = match error.is_some() || slow {
            true => front.often.may(route, status, Instant::now()),
            false => Some(May::default()),
        };
        let Some(May { passed_over }) = may else { return };
        // With this type, it is a number in a span's event as well.
        let status = i64::from(status);
        match error {
            Some(error) if status >= 500 => {
                tracing::warn!(%method, route, status, ms, error, passed_over, "answered");
            }
            Some(error) => tracing::info!(%method, route, status, ms, error, passed_over, "answered"),
            None if slow => {
                let (timing, device) = (head.and_then(call::timing_of), head.and_then(call::device_of));
                tracing::info!(%method, route, status, ms, timing, device, passed_over, "answered slowly");
            }
            None => tracing::debug!(%method, route, status, ms, "answered"),
        }
    }

    /// The route that it is counted under. A stack takes as long as its client sends it, which would pass for slowness of ours.
    fn counted<'a>(&self, route: &'a str) -> &'a str {
        let stack = |of: &&str| self.stack && of.strip_suffix(STACK) == Some(route);
        STACKS.into_iter().find(stack).unwrap_or(route)
    }

    /// The name and attributes of its span, by OpenTelemetry's conventions for HTTP servers.
    fn span_end(&self, route: Option<&str>, status: u16) -> End {
        let known = known_method(self.method.as_str());
        let mut attributes = vec![
            ("http.request.method", known.unwrap_or("_OTHER").into()),
            ("http.response.status_code", i64::from(status).into()),
            ("url.scheme", "http".into()),
            ("url.path", self.path.clone().into()),
            ("ocelli.request.id", self.id.to_string().into()),
        ];
        if known.is_none() {
            attributes
                .push(("http.request.method_original", clipped(self.method.as_str()).to_owned().into()));
        }
        let method = known.unwrap_or("HTTP");
        let name = match route {
            Some(route) => {
                attributes.push(("http.route", route.to_owned().into()));
                format!("{method} {route}")
            }
            None => method.to_owned(),
        };
        End { name, failed: status >= 500, attributes }
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        if !self.ended {
            let gone = Problem::gone(&self.front.status);
            self.tell(gone.kind.status, Some(&gone.detail), None);
        }
    }
}

/// The template that a request is counted under. KServe's probes use the route of its predictions, and would pass for fast ones.
fn template(matched: &MatchedPath, predicts: bool) -> &str {
    let route = matched.as_str();
    let prediction = |of: &&str| predicts && of.strip_suffix(VERB) == Some(route);
    PREDICTIONS.into_iter().find(prediction).unwrap_or(route)
}

/// Whether supervisors and scrapers use this route: they come every few seconds, and are of no use in a trace.
fn is_probe(route: &str) -> bool {
    route.starts_with("/v2/health/") || matches!(route, "/ping" | "/metrics")
}

/// Whether a path's last part ends with the verb of predictions, percent-decoded as its handler has it.
fn names_verb(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    percent_decode_str(last).decode_utf8().is_ok_and(|last| last.ends_with(VERB))
}

/// The metrics of the model that an inference request is for, if the catalog has it, and whether the request is a stack. A name that a
/// client made up must not become a label. `v1`: it is a prediction of KServe's first protocol.
fn inferred(front: &Front, route: &str, path: &str, v1: bool) -> Option<(Arc<ModelMetrics>, bool)> {
    if !route.starts_with("/predictions/") && !route.ends_with("/infer") && !v1 {
        return None;
    }
    // The model is the first placeholder of a template.
    let (before, _) = route.split_once('{')?;
    let name = percent_decode_str(path.strip_prefix(before)?.split('/').next()?).decode_utf8().ok()?;
    let name = if v1 { name.strip_suffix(VERB).unwrap_or(&name) } else { &name };
    let stack = route.starts_with("/predictions/") && front.catalog.takes_stacks(name);
    front.catalog.has(name).then(|| (front.metrics.model(name), stack))
}

/// A request for a model whose outcome is not counted yet. Dropped before it has its reply, it is [gone](Problem::gone).
pub(crate) struct Uncounted {
    front: Arc<Front>,
    model: Arc<ModelMetrics>,
    outcome: Option<Outcome>,
}

impl Uncounted {
    /// A request for a model of the catalog.
    pub(crate) fn of(front: &Arc<Front>, model: &str) -> Uncounted {
        Uncounted::begin(front, front.metrics.model(model))
    }

    fn begin(front: &Arc<Front>, model: Arc<ModelMetrics>) -> Uncounted {
        model.requests_open.fetch_add(1, Ordering::Relaxed);
        Uncounted { front: Arc::clone(front), model, outcome: None }
    }

    /// It has its reply: an answer, or a problem of this kind.
    pub(crate) fn ended(mut self, problem: Option<Kind>) {
        self.outcome = Some(problem.map_or(Outcome::Ok, |kind| kind.outcome));
    }
}

impl Drop for Uncounted {
    fn drop(&mut self) {
        let outcome = self.outcome.unwrap_or_else(|| Problem::gone(&self.front.status).kind.outcome);
        self.model.requests_open.fetch_sub(1, Ordering::Relaxed);
        self.model.outcome(outcome).inc();
    }
}

/// How a streamed reply ended, set by whoever writes it. If it is never set, the client went away.
#[derive(Clone, Default)]
pub(super) struct StreamEnd(Arc<Mutex<Option<Uncounted>>>);

impl StreamEnd {
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
    use crate::{
        batch::ModelKey,
        engine::{gauss_mle, staging::Memory},
        error::InferError,
        http::testing,
        models::{Model, State, testing::source},
        status::{Cause, DeviceState, ModelCounts},
        telemetry::{metrics::Metrics, testing::logged},
    };
    use axum::{Router, response::IntoResponse, routing::post};
    use futures_util::stream;
    use http_body_util::BodyExt;
    use std::time::Duration;
    use tower::ServiceExt;

    #[test]
    fn a_request_whose_caller_goes_away_is_in_the_log_once_and_counted_with_its_time() {
        let front = testing::front(&[]);
        let told = logged(|| {
            let begin = || Observation::begin(&front, &RequestId::new(), &mut Request::new(Body::empty()));
            drop(begin());
            begin().end(&mut Response::new(Body::empty()));
        });
        assert_eq!(told.lines().count(), 1, "{told}");
        for part in ["INFO", "answered", "status=499", "the caller went away"] {
            assert!(told.contains(part), "{told}");
        }
        let text = front.metrics.render();
        for code in ["499", "200"] {
            let line =
                format!("ocelli_http_requests_total{{code=\"{code}\",method=\"GET\",route=\"other\"}} 1");
            assert!(text.contains(&line), "{text}");
        }
        for class in ["abandoned", "answered"] {
            let line =
                format!("ocelli_http_request_duration_seconds_count{{class=\"{class}\",route=\"other\"}} 1");
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn a_request_that_takes_long_has_a_line_with_its_stages_though_it_goes_well() {
        let front = testing::front(&[]);
        let slow = front.log_slow.expect("it is on by default");
        let told = logged(|| {
            for (began, stack, status) in
                [(Duration::ZERO, false, 200), (slow, false, 200), (slow, true, 200), (slow, false, 503)]
            {
                let mut request = Request::new(Body::empty());
                let mut observation = Observation::begin(&front, &RequestId::new(), &mut request);
                observation.began -= began;
                observation.stack = stack;
                let reply = Response::builder().status(status).header("server-timing", "decode;dur=9");
                observation.end(&mut reply.body(Body::empty()).expect("a reply"));
            }
        });
        assert_eq!(told.lines().count(), 1, "{told}");
        for part in ["INFO", "answered slowly", "status=200", "timing=\"decode;dur=9\""] {
            assert!(told.contains(part), "{told}");
        }
    }

    #[test]
    fn the_log_tells_once_that_a_server_is_not_ready_and_not_of_each_probe() {
        let front = testing::front(&[]);
        let told = logged(|| {
            let probe = || {
                let problem =
                    front.status.ready(Instant::now()).err().map(|reason| Problem::not_ready(&reason));
                let mut reply =
                    problem.map_or_else(|| Response::new(Body::empty()), IntoResponse::into_response);
                Observation::begin(&front, &RequestId::new(), &mut Request::new(Body::empty()))
                    .end(&mut reply);
            };
            front.status.set_device("cpu", DeviceState::Serving, Cause::Proved, "");
            for [ready, loading, unavailable] in [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1], [1, 0, 0]] {
                front.status.set_models(ModelCounts { ready, loading, unavailable });
                probe();
                probe();
            }
            front.status.begin_drain();
            probe();
        });
        let lines: Vec<&str> = told.lines().collect();
        let told_as = ["WARN", "INFO", "WARN", "INFO"].map(|level| (level, "the server is "));
        assert_eq!(lines.len(), told_as.len(), "{told}");
        assert!(lines[0].contains("1 of 1 unavailable"), "not of the start: {told}");
        for (line, (level, words)) in lines.iter().zip(told_as) {
            assert!(line.contains(level) && line.contains(words), "{told}");
            assert_eq!(line.contains("not ready"), level == "WARN", "{told}");
        }
    }

    #[test]
    fn a_request_that_is_cut_as_the_server_ends_is_not_blamed_on_its_caller() {
        let front = testing::front(&[]);
        let model = Arc::new(Metrics::new(&[], "0", "none"));
        model.add_model("m");
        let model = model.model("m");
        let now = Instant::now();
        front.status.cut_from(now + Duration::from_secs(3600));
        for outcome in [Outcome::Cancelled, Outcome::Draining] {
            let mut cut = Observation::begin(&front, &RequestId::new(), &mut Request::new(Body::empty()));
            cut.uncounted = Some(Uncounted::begin(&front, Arc::clone(&model)));
            drop(cut);
            // A streamed reply whose head has gone out.
            StreamEnd::default().begins(Uncounted::begin(&front, Arc::clone(&model)));
            assert_eq!(model.outcome(outcome).get(), 2, "{outcome:?}");
            // A second signal: the end is now.
            front.status.cut_from(now);
        }
        assert_eq!(model.requests_open.load(Ordering::Relaxed), 0);
        let text = front.metrics.render();
        for code in ["499", "503"] {
            let line =
                format!("ocelli_http_requests_total{{code=\"{code}\",method=\"GET\",route=\"other\"}} 1");
            assert!(text.contains(&line), "{text}");
        }
    }

    #[tokio::test]
    async fn a_prediction_is_one_however_its_path_is_encoded() {
        let front = testing::front(&PREDICTIONS);
        front.catalog.set("m", "1", State::Loading);
        front.metrics.add_model("m");
        let of = Arc::clone(&front);
        let observe = async move |mut request: Request| {
            let observation = Observation::begin(&of, &RequestId::new(), &mut request);
            observation.end(&mut Response::new(Body::empty()));
        };
        let router = Router::new().route("/v1/models/{model}", post(observe.clone()));
        let router = router.route("/v1/models/{model}/versions/{version}", post(observe));
        for (path, count) in [("m:predict", 1), ("m%3Apredict", 2), ("%6d%3apredic%74", 3), ("m:other", 3)] {
            let request = Request::post(format!("/v1/models/{path}")).body(Body::empty()).expect("a request");
            router.clone().oneshot(request).await.expect("infallible");
            assert_eq!(front.metrics.model("m").outcome(Outcome::Ok).get(), count, "{path}");
        }
        let request = Request::post("/v1/models/m/versions/1%3Apredict").body(Body::empty());
        router.oneshot(request.expect("a request")).await.expect("infallible");
        assert_eq!(front.metrics.model("m").outcome(Outcome::Ok).get(), 4);
        let text = front.metrics.render();
        for (route, count) in PREDICTIONS.into_iter().zip([3, 1]) {
            let line = format!(
                "ocelli_http_requests_total{{code=\"200\",method=\"POST\",route=\"{route}\"}} {count}"
            );
            assert!(text.contains(&line), "{text}");
        }
    }

    #[tokio::test]
    async fn a_stack_is_counted_apart_from_images_and_tensors_however_it_ends() {
        let front =
            testing::front(&[&STACKS[..], &["/predictions/{model}", "/v2/models/{model}/infer"]].concat());
        let fitter = source("spots", "1", "engine = \"gauss-mle\"\n");
        let fitter = Model::resolve(
            ModelKey(1),
            &fitter,
            gauss_mle::signature(),
            Duration::from_secs(1),
            &Memory::Plain,
        );
        front.catalog.set("spots", "1", State::Ready(Arc::new(fitter.expect("a fitter"))));
        front.catalog.set("m", "1", State::Ready(testing::model(Duration::from_secs(1))));
        let of = Arc::clone(&front);
        let observe = async move |mut request: Request| {
            let observation = Observation::begin(&of, &RequestId::new(), &mut request);
            match request.uri().query() {
                // Its caller goes away.
                Some(_) => drop(observation),
                None => observation.end(&mut Response::new(Body::empty())),
            }
        };
        let mut router = Router::new();
        for route in ["/predictions/{model}", "/predictions/{model}/{version}", "/v2/models/{model}/infer"] {
            router = router.route(route, post(observe.clone()));
        }
        for path in [
            "/predictions/spots",
            "/predictions/spots?gone",
            "/predictions/spots/1",
            "/predictions/m",
            "/v2/models/spots/infer",
        ] {
            let request = Request::post(path).body(Body::empty()).expect("a request");
            router.clone().oneshot(request).await.expect("infallible");
        }
        let text = front.metrics.render();
        for (route, class) in [
            (STACKS[0], "answered"),
            (STACKS[0], "abandoned"),
            (STACKS[1], "answered"),
            ("/predictions/{model}", "answered"),
            ("/v2/models/{model}/infer", "answered"),
        ] {
            let labels = format!("{{class=\"{class}\",route=\"{route}\"}}");
            let line = format!("ocelli_http_request_duration_seconds_count{labels} 1");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }

    #[tokio::test]
    async fn a_stream_counts_as_an_answer_if_it_has_one_and_else_by_its_first_error() {
        let front = testing::front(&[]);
        let metrics = Metrics::new(&[], "0", "none");
        metrics.add_model("m");
        let model = metrics.model("m");
        for (answered, counts) in [(true, [1, 0]), (false, [1, 1])] {
            let answer = answered.then(|| Entry { file: 0, page: None, answer: Ok(b"\"a\":1".to_vec()) });
            let error = Entry { file: 0, page: None, answer: Err(InferError::Decode("no".into())) };
            let reply = reply(Form::Lines, None, stream::iter([error].into_iter().chain(answer)));
            let ending = reply.extensions().get::<StreamEnd>().expect("it is counted at its end");
            ending.begins(Uncounted::begin(&front, Arc::clone(&model)));
            reply.into_body().collect().await.expect("infallible");
            assert_eq!([Outcome::Ok, Outcome::Decode].map(|outcome| model.outcome(outcome).get()), counts);
        }
    }
}
