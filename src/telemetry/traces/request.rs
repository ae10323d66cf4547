//! One request's trace: its span from the head to the last of what works for it, and the spans of its stages.

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

/// The longest `tracestate` that is passed on, as the specification has it.
const STATE_BYTES_MAX: usize = 512;
/// The most members that it may have.
const STATE_MEMBERS_MAX: usize = 32;

/// What became of a job, from the queue to its outputs.
#[derive(Debug, Clone)]
pub struct Ran {
    /// When it came into the queue.
    pub pushed: Instant,
    /// When it was taken out: the same for all jobs of a batch.
    pub taken: Instant,
    /// Putting the batch together.
    pub stage: Duration,
    /// Then, behind batches that the device had begun before.
    pub behind: Duration,
    /// Running it.
    pub compute: Duration,
    /// What ran it.
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
    /// What it was, such as `POST /predictions/{model}`: never what a caller chose.
    pub name: String,
    /// Whether that was a failure of ours.
    pub failed: bool,
    /// More of it, in the words of OpenTelemetry's conventions.
    pub attributes: Vec<(&'static str, Value)>,
}

/// A request whose head is there.
#[derive(Debug)]
pub struct Begun {
    /// What the log's lines about it stand in, with its id and trace.
    pub span: tracing::Span,
    /// Its place in the trace, for the reply's `traceparent`.
    pub place: TraceContext,
    /// Where its stages are noted, if its trace may be sent.
    pub trace: Option<Arc<RequestTrace>>,
}

impl Begun {
    /// Under the caller's span, if the head names one; else in a trace of its own.
    pub fn new(traces: Option<&Arc<Traces>>, id: &RequestId, headers: &HeaderMap) -> Begun {
        // Of two, neither is known to be the caller's.
        let mut parents = headers.get_all("traceparent").iter().map(HeaderValue::as_bytes);
        let parent = parents.next().filter(|_| parents.next().is_none());
        let (place, caller) = TraceContext::from_header(parent);
        if let Some(traces) = traces {
            let span = tracing::error_span!(target: TARGET, "request", id = id.as_str(), trace = Empty, model = Empty);
            let parent = caller.map(|caller| remote(caller, state_of(headers)));
            if let Some((place, trace)) = RequestTrace::begin(traces, &span, parent) {
                span.record("trace", place.trace_id_hex());
                return Begun { span, place, trace: Some(Arc::new(trace)) };
            }
        }
        let trace = place.trace_id_hex();
        let span = tracing::error_span!(target: LOGGED, "request", id = id.as_str(), trace, model = Empty);
        Begun { span, place, trace: None }
    }
}

/// What the caller's trace carries along. Several headers are one list; a list that is longer than it may be is left out whole, as one
/// that cannot be read.
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
struct Seen {
    stages: Vec<Stage>,
    end: Option<End>,
}

#[derive(Debug)]
enum Stage {
    Named(&'static str, Instant, Instant),
    Ran(Ran),
}

/// One request, from its head to the last of whatever still works for it; then its spans are sent, if they are.
#[derive(Debug)]
pub struct RequestTrace {
    traces: Arc<Traces>,
    span: tracing::Span,
    /// The same span as OpenTelemetry has it.
    context: Context,
    /// The same moment by both clocks, after the beginning of the span.
    anchor: (SystemTime, Instant),
    seen: Mutex<Seen>,
}

impl RequestTrace {
    /// None if the layer that would send it is not there.
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
            // In this order the times that are made of instants are never later than the true ones, and the end is behind them.
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

    /// A stage that took so long and has just ended.
    pub fn ended(&self, name: &'static str, took: Duration) {
        let now = Instant::now();
        self.note(Stage::Named(name, now.checked_sub(took).unwrap_or(now), now));
    }

    /// A job that was run.
    pub fn ran(&self, ran: Ran) {
        self.note(Stage::Ran(ran));
    }

    /// The head of the reply is known. What follows, such as a streamed body, still counts.
    pub fn replied(&self, end: End) {
        self.seen.lock().end = Some(end);
    }

    /// The time of day of an instant; of one before the request, that of its beginning.
    fn time(&self, at: Instant) -> SystemTime {
        let (time, instant) = self.anchor;
        time + at.saturating_duration_since(instant)
    }

    /// Sends a stage.
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

    /// Sends the span of a batch, once however many of its requests are sent.
    fn batch(&self, ran: &Ran) -> SpanContext {
        let traces = &self.traces;
        // All of its jobs were taken at the same instant.
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
        let Seen { stages, end } = std::mem::take(self.seen.get_mut());
        let request = self.context.span();
        // What went wrong is sent, whatever the ratio.
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
        // It ends where it was left last.
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
            begun.place.trace_id_hex()
        };
        assert_eq!(trace(&[caller]), caller[3..35]);
        assert_ne!(trace(&[caller, caller]), caller[3..35]);
    }
}
