//! One request's trace: its span, from its head to the end of the last work for it, and the spans of its stages.

use super::{BATCHES_KNOWN, LOGGED, STAGES_MAX, Span, TARGET, Traces, sampled};
use crate::telemetry::request::{RequestId, TraceContext, new_span_id};
use http::{HeaderMap, HeaderValue};
use opentelemetry::{
    Context, KeyValue, SpanId, TraceFlags, TraceId, Value,
    trace::{SpanContext, Status, TraceContextExt, TraceState},
};
use parking_lot::Mutex;
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The longest `tracestate` that is passed on, by the specification.
const STATE_BYTES_MAX: usize = 512;
/// The most members of a `tracestate`.
const STATE_MEMBERS_MAX: usize = 32;

/// The times of a job that ran, from the queue to its outputs.
#[derive(Debug, Clone)]
pub struct Ran {
    /// When it entered the queue.
    pub pushed: Instant,
    /// When it left the queue: the same instant for all jobs of a batch.
    pub taken: Instant,
    /// Time to assemble the batch.
    pub stage: Duration,
    /// Time behind batches that the device had begun before.
    pub behind: Duration,
    /// Time to run it.
    pub compute: Duration,
    /// The device that ran it.
    pub device: Arc<str>,
    /// The model.
    pub model: Arc<str>,
    /// Items of the batch.
    pub items: usize,
}

impl Ran {
    fn attributes(&self) -> Vec<KeyValue> {
        vec![
            KeyValue::new("ocelli.device", self.device.to_string()),
            KeyValue::new("ocelli.model", self.model.to_string()),
            KeyValue::new("ocelli.batch.items", self.items as i64),
        ]
    }
}

/// How a request ended.
#[derive(Debug, Clone)]
pub struct End {
    /// A name such as `POST /predictions/{model}`: never text that a caller chose.
    pub name: String,
    /// Whether the server failed.
    pub failed: bool,
    /// Further attributes, by OpenTelemetry's semantic conventions.
    pub attributes: Vec<(&'static str, Value)>,
}

/// A request whose head has arrived.
#[derive(Debug)]
pub struct Begun {
    /// The span of its log lines, with its id and trace.
    pub span: tracing::Span,
    /// Its position in the trace, as the reply's `traceparent` has it.
    pub place: [u8; 55],
    /// Where its stages are recorded, if its trace may be sent.
    pub trace: Option<Arc<RequestTrace>>,
}

impl Begun {
    /// Begins a span under the caller's, if the head names one; otherwise in a new trace.
    pub fn new(traces: Option<&Arc<Traces>>, id: &RequestId, headers: &HeaderMap) -> Begun {
        // With two headers it is unknown which is the caller's, so neither is used.
        let mut parents = headers.get_all("traceparent").iter().map(HeaderValue::as_bytes);
        let parent = parents.next().filter(|_| parents.next().is_none());
        let (place, caller) = TraceContext::from_header(parent);
        if let Some(traces) = traces {
            let span = tracing::error_span!(target: TARGET, "request", id = id.as_str(), trace = Empty, model = Empty);
            let parent = caller.map(|caller| remote(caller, state_of(headers)));
            if let Some((place, trace)) = RequestTrace::begin(traces, &span, parent) {
                span.record("trace", place.trace_id_hex());
                return Begun { span, place: place.header(), trace: Some(Arc::new(trace)) };
            }
        }
        let place = place.header();
        let trace = TraceContext::trace_id_in(&place);
        let span = tracing::error_span!(target: LOGGED, "request", id = id.as_str(), trace, model = Empty);
        Begun { span, place, trace: None }
    }
}

/// The caller's `tracestate`. Several headers form one list. A list that is too long or cannot be read is dropped as a whole.
fn state_of(headers: &HeaderMap) -> Option<TraceState> {
    let lines = headers.get_all("tracestate").iter().map(|line| str::from_utf8(line.as_bytes()));
    let whole = lines.collect::<Result<Vec<&str>, _>>().ok()?.join(",");
    let members = whole.split(',').filter(|member| !member.trim_matches([' ', '\t']).is_empty());
    let fits = whole.len() <= STATE_BYTES_MAX && members.count() <= STATE_MEMBERS_MAX;
    fits.then(|| whole.parse().ok()).flatten()
}

/// The caller's span.
fn remote(caller: TraceContext, state: Option<TraceState>) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(caller.trace_id), SpanId::from_bytes(caller.span_id));
    SpanContext::new(trace, span, TraceFlags::new(caller.flags & 1), true, state.unwrap_or_default())
}

#[derive(Debug, Default)]
struct Recorded {
    stages: Vec<Stage>,
    end: Option<End>,
}

#[derive(Debug)]
enum Stage {
    Named(&'static str, Instant, Instant),
    Ran(Ran),
}

/// One request, from its head to the end of the last work for it. Dropping this sends its spans, if they are to be sent.
#[derive(Debug)]
pub struct RequestTrace {
    traces: Arc<Traces>,
    span: tracing::Span,
    /// The same span in OpenTelemetry's form.
    context: Context,
    /// One moment by both clocks, just after the span begins.
    anchor: (SystemTime, Instant),
    seen: Mutex<Recorded>,
}

impl RequestTrace {
    /// `None` if the layer that would send it is not installed.
    fn begin(
        traces: &Arc<Traces>,
        span: &tracing::Span,
        parent: Option<SpanContext>,
    ) -> Option<(TraceContext, RequestTrace)> {
        if let Some(parent) = parent {
            span.set_parent(Context::new().with_remote_span_context(parent)).ok()?;
        }
        let context = span.context();
        let own = context.span().span_context().clone();
        let place = TraceContext {
            trace_id: own.trace_id().to_bytes(),
            span_id: own.span_id().to_bytes(),
            flags: own.trace_flags().to_u8() & 1,
        };
        let trace = RequestTrace {
            traces: Arc::clone(traces),
            span: span.clone(),
            // In this order, times computed from instants are never later than the true ones, so that they precede the end of the
            // span.
            anchor: (SystemTime::now(), Instant::now()),
            seen: Mutex::default(),
            context,
        };
        own.is_valid().then_some((place, trace))
    }

    fn note(&self, stage: Stage) {
        let mut seen = self.seen.lock();
        if seen.stages.len() < STAGES_MAX {
            seen.stages.push(stage);
        }
    }

    /// Records a stage that took `took` and has just ended.
    pub fn ended(&self, name: &'static str, took: Duration) {
        let now = Instant::now();
        self.note(Stage::Named(name, now.checked_sub(took).unwrap_or(now), now));
    }

    /// Records a job that ran.
    pub fn ran(&self, ran: Ran) {
        self.note(Stage::Ran(ran));
    }

    /// Records the head of the reply. Work after that, such as a streamed body, still belongs to the request.
    pub fn replied(&self, end: End) {
        self.seen.lock().end = Some(end);
    }

    /// The wall-clock time of an instant; for an instant before the request, the time at which it began.
    fn time(&self, at: Instant) -> SystemTime {
        let (time, instant) = self.anchor;
        time + at.saturating_duration_since(instant)
    }

    /// Sends the span of a stage.
    fn stage(&self, name: &'static str, from: Instant, to: Instant, attributes: Vec<KeyValue>) {
        let request = self.context.span();
        let span = SpanId::from_bytes(new_span_id());
        self.traces.send(Span {
            context: sampled(request.span_context(), span),
            parent: request.span_context().span_id(),
            name,
            time: (self.time(from), self.time(to)),
            attributes,
        });
    }

    /// Sends the span of a batch, only once however many of its requests are sent.
    fn batch(&self, ran: &Ran) -> SpanContext {
        let traces = &self.traces;
        // All jobs of a batch have the same `taken`, so they compute the same id.
        let key = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            let taken = ran.taken.saturating_duration_since(traces.began);
            (traces.seed, salt, &*ran.device, taken).hash(&mut hasher);
            hasher.finish()
        };
        let trace = u128::from(key(0)) << 64 | u128::from(key(1));
        let span = SpanId::from_bytes(key(2).to_be_bytes());
        let context = SpanContext::new(
            TraceId::from_bytes(trace.to_be_bytes()),
            span,
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        );
        {
            let mut known = traces.batches.lock();
            if known.contains(&span) {
                return context;
            }
            if known.len() == BATCHES_KNOWN {
                known.pop_front();
            }
            known.push_back(span);
        }
        traces.send(Span {
            context: context.clone(),
            parent: SpanId::INVALID,
            name: "batch",
            time: (self.time(ran.taken), self.time(ran.taken + ran.stage + ran.behind + ran.compute)),
            attributes: ran.attributes(),
        });
        context
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let Recorded { stages, end } = std::mem::take(self.seen.get_mut());
        let request = self.context.span();
        // Failures are sent whatever the ratio.
        if !request.span_context().is_sampled() && end.as_ref().is_none_or(|end| !end.failed) {
            return;
        }
        let mut batches: Vec<SpanId> = Vec::new();
        for stage in stages {
            match stage {
                Stage::Named(name, from, to) => self.stage(name, from, to, Vec::new()),
                Stage::Ran(ran) => {
                    let staged = ran.taken + ran.stage;
                    let turn = staged + ran.behind;
                    self.stage("queue", ran.pushed, ran.taken, Vec::new());
                    self.stage("stage", ran.taken, staged, Vec::new());
                    self.stage("compute", turn, turn + ran.compute, ran.attributes());
                    let batch = self.batch(&ran);
                    if !batches.contains(&batch.span_id()) {
                        batches.push(batch.span_id());
                        request.add_link(batch, Vec::new());
                    }
                }
            }
        }
        match end {
            Some(End { name, failed, attributes }) => {
                request.update_name(name);
                let attributes = attributes.into_iter().map(|(key, value)| KeyValue::new(key, value));
                request.set_attributes(attributes);
                if failed {
                    request.set_status(Status::error(""));
                }
            }
            None => request.set_status(Status::error("the caller went away")),
        }
        // `tracing-opentelemetry` ends a span at the time when it was last exited.
        self.span.in_scope(|| ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, lines: &[&str]) -> HeaderMap {
        lines.iter().map(|line| (name.parse().expect("a name"), line.parse().expect("a value"))).collect()
    }

    #[test]
    fn what_a_trace_carries_along_is_one_list_that_is_passed_on_whole_or_not() {
        let list = |count: usize| (0..count).map(|at| format!("k{at}=1")).collect::<Vec<_>>().join(",");
        let (most, more, spread) = (list(32), list(33), list(32) + ",, ,");
        for (lines, expected) in [
            (&["a=1"][..], Some("a=1")),
            (&["a=1", "b=2,c=3"], Some("a=1,b=2,c=3")),
            (&["a=1 ,\tb=2", ""], Some("a=1,b=2")),
            (&[&most], Some(&most)),
            (&[&spread], Some(&most)),
            (&[&more], None),
            (&[&most, "z=1"], None),
            (&["a=1", "B=2"], None),
        ] {
            let state = state_of(&headers("tracestate", lines)).map(|state| state.header());
            assert_eq!(state.as_deref(), expected, "{lines:?}");
        }
        assert_eq!(state_of(&headers("tracestate", &[&format!("a={}", "x".repeat(511))])), None);
    }

    #[test]
    fn of_two_callers_neither_is_followed() {
        let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let trace = |lines: &[&str]| {
            let begun = Begun::new(None, &RequestId::new(), &headers("traceparent", lines));
            TraceContext::trace_id_in(&begun.place).to_owned()
        };
        assert_eq!(trace(&[caller]), caller[3..35]);
        assert_ne!(trace(&[caller, caller]), caller[3..35]);
    }
}
