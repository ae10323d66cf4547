//! Traces: what became of a request, as OpenTelemetry's spans, sent to a collector by OTLP over HTTP.
//!
//! A request's stages run on other threads and are known when they are over, by instants that are taken anyway. So spans are
//! made from these at the end of the request, with their true times, and nothing is kept of a request that is not sent but a few
//! numbers; where traces are off, nothing at all. (Spans of `tracing` begin and end where the code runs that enters them, which
//! would be the wrong places and times here.)
//!
//! - [`Traces`]: the sampling, and the way to the collector. [`RequestTrace`]: one request.
//! - `export`: the client that sends them.

mod export;

use super::request::TraceContext;
use opentelemetry::{
    InstrumentationScope, KeyValue, SpanId, TraceFlags, TraceId,
    trace::{Link, SpanContext, SpanKind, Status, TraceState},
};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    resource::EnvResourceDetector,
    trace::{BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor},
};
use std::{
    borrow::Cow,
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};
use tokio::runtime::Handle;

/// Spans of one request: of a long stack, the first ones.
const STAGES_MAX: usize = 256;
/// Batches of which it is known that they were sent.
const BATCHES_KNOWN: usize = 1024;
/// How long the collector may take.
const EXPORT_MAX: Duration = Duration::from_secs(5);
/// The longest `tracestate` that is passed on, as the specification has it.
const STATE_BYTES_MAX: usize = 512;

/// The way to the collector.
#[derive(Debug)]
pub struct Traces {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    /// Traces whose last four bytes are below are sent.
    below: u64,
    /// The same moment by both clocks.
    anchor: (Instant, SystemTime),
    /// Makes ids of batches differ from those of other processes.
    seed: [u8; 16],
    batches: Mutex<VecDeque<u64>>,
}

impl Traces {
    /// Sends this part of the traces to the collector at `endpoint`, on the runtime that this is called on.
    ///
    /// # Errors
    /// If the address is not one.
    pub fn start(endpoint: &str, ratio: f64, version: &'static str) -> Result<Arc<Traces>, String> {
        let uri: http::Uri =
            endpoint.parse().map_err(|error| format!("otlp_endpoint {endpoint:?}: {error}"))?;
        let endpoint = match uri.path() {
            "" | "/" => format!("{}/v1/traces", endpoint.trim_end_matches('/')),
            _ => endpoint.to_owned(),
        };
        let failed = |error: ExporterBuildError| format!("otlp_endpoint {endpoint:?}: {error}");
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(export::Client::new(Handle::current(), EXPORT_MAX))
            .with_endpoint(&endpoint)
            .with_timeout(EXPORT_MAX)
            .build()
            .map_err(failed)?;
        let mut processor = BatchSpanProcessor::builder(exporter).build();
        let instance = TraceContext::root();
        let resource = Resource::builder_empty()
            .with_service_name("ocelli")
            .with_attribute(KeyValue::new("service.version", version))
            .with_attribute(KeyValue::new("service.instance.id", instance.trace_id_hex()))
            .with_detector(Box::new(EnvResourceDetector::new()))
            .build();
        processor.set_resource(&resource);
        Ok(Arc::new(Traces {
            processor,
            scope: InstrumentationScope::builder("ocelli").with_version(version).build(),
            below: (ratio * (u64::from(u32::MAX) + 1) as f64) as u64,
            anchor: (Instant::now(), SystemTime::now()),
            seed: instance.trace_id,
            batches: Mutex::default(),
        }))
    }

    /// Whether a trace is sent. By the bytes of its id that are random in all kinds of ids, so that whoever has the same
    /// ratio decides alike.
    fn samples(&self, trace: &TraceContext) -> bool {
        samples(self.below, trace.trace_id)
    }

    /// A request that has begun. `trace` is its own span, which gets the flag that says whether it is sent; `caller` the span
    /// that it is under, if there is one.
    pub fn request(
        self: &Arc<Traces>,
        trace: &mut TraceContext,
        caller: Option<TraceContext>,
        state: Option<&[u8]>,
        began: Instant,
    ) -> Arc<RequestTrace> {
        trace.flags = u8::from(self.samples(trace));
        let state = state.filter(|state| caller.is_some() && state.len() <= STATE_BYTES_MAX);
        let state = state.and_then(|state| str::from_utf8(state).ok()?.parse().ok());
        Arc::new(RequestTrace {
            traces: Arc::clone(self),
            trace: *trace,
            caller,
            state: state.unwrap_or_default(),
            began,
            seen: Mutex::default(),
        })
    }

    /// Sends what waits, for no longer than this. To be called from a thread that may block.
    pub fn end(&self, time_max: Duration) {
        if let Err(error) = self.processor.shutdown_with_timeout(time_max) {
            tracing::warn!(%error, "traces were lost at the end");
        }
    }

    /// The time of day of an instant.
    fn time(&self, at: Instant) -> SystemTime {
        let (instant, time) = self.anchor;
        match at.checked_duration_since(instant) {
            Some(after) => time + after,
            None => time - instant.duration_since(at),
        }
    }

    fn send(&self, span: Span) {
        let mut links = SpanLinks::default();
        links.links.extend(span.links);
        self.processor.on_end(SpanData {
            span_context: span.context,
            parent_span_id: span.parent,
            parent_span_is_remote: span.parent_is_remote,
            span_kind: span.kind,
            name: span.name,
            start_time: self.time(span.time.0),
            end_time: self.time(span.time.1),
            attributes: span.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            status: span.status,
            instrumentation_scope: self.scope.clone(),
        });
    }

    /// The span of a batch, sent once however many of its requests are.
    fn batch(&self, ran: &Ran) -> SpanContext {
        // All of its jobs were taken at the same instant.
        let key = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (self.seed, salt, &*ran.device, ran.taken.saturating_duration_since(self.anchor.0))
                .hash(&mut hasher);
            hasher.finish()
        };
        let trace = u128::from(key(0)) << 64 | u128::from(key(1));
        let context = SpanContext::new(
            TraceId::from_bytes(trace.to_be_bytes()),
            SpanId::from_bytes(key(2).to_be_bytes()),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        );
        let mut known = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(&key(2)) {
            return context;
        }
        if known.len() == BATCHES_KNOWN {
            known.pop_front();
        }
        known.push_back(key(2));
        drop(known);
        self.send(Span {
            context: context.clone(),
            parent: SpanId::INVALID,
            parent_is_remote: false,
            kind: SpanKind::Internal,
            name: Cow::Borrowed("batch"),
            time: (ran.taken, ran.taken + ran.stage + ran.compute),
            attributes: ran.attributes(),
            links: Vec::new(),
            status: Status::Unset,
        });
        context
    }
}

/// Whether the last four bytes of an id, which are random, are below.
fn samples(below: u64, id: [u8; 16]) -> bool {
    let [.., a, b, c, d] = id;
    u64::from(u32::from_be_bytes([a, b, c, d])) < below
}

/// What a span says.
struct Span {
    context: SpanContext,
    parent: SpanId,
    parent_is_remote: bool,
    kind: SpanKind,
    name: Cow<'static, str>,
    time: (Instant, Instant),
    attributes: Vec<KeyValue>,
    links: Vec<Link>,
    status: Status,
}

/// What became of a job, from the queue to its outputs.
#[derive(Debug, Clone)]
pub struct Ran {
    /// When it came into the queue.
    pub pushed: Instant,
    /// When it was taken out: the same for all jobs of a batch.
    pub taken: Instant,
    /// Putting the batch together.
    pub stage: Duration,
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
    /// The status of HTTP.
    pub status: u16,
    /// More of it.
    pub attributes: Vec<(&'static str, String)>,
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
    trace: TraceContext,
    caller: Option<TraceContext>,
    state: TraceState,
    began: Instant,
    seen: Mutex<Seen>,
}

impl RequestTrace {
    fn note(&self, stage: Stage) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
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
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).end = Some(end);
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let now = Instant::now();
        let Seen { stages, end } =
            std::mem::take(self.seen.get_mut().unwrap_or_else(PoisonError::into_inner));
        let status = end.as_ref().map(|end| end.status);
        // What went wrong is sent, whatever the ratio.
        if self.trace.flags & 1 == 0 && status.is_none_or(|status| status < 500) {
            return;
        }
        let trace = TraceId::from_bytes(self.trace.trace_id);
        let own = SpanId::from_bytes(self.trace.span_id);
        let context = |span| SpanContext::new(trace, span, TraceFlags::SAMPLED, false, self.state.clone());
        let mut links: Vec<Link> = Vec::new();
        for stage in stages {
            let child = |name: &'static str, from, to, attributes| {
                self.traces.send(Span {
                    context: context(SpanId::from_bytes(self.trace.child().span_id)),
                    parent: own,
                    parent_is_remote: false,
                    kind: SpanKind::Internal,
                    name: Cow::Borrowed(name),
                    time: (from, to),
                    attributes,
                    links: Vec::new(),
                    status: Status::Unset,
                });
            };
            match stage {
                Stage::Named(name, from, to) => child(name, from, to, Vec::new()),
                Stage::Ran(ran) => {
                    let staged = ran.taken + ran.stage;
                    child("queue", ran.pushed, ran.taken, Vec::new());
                    child("stage", ran.taken, staged, Vec::new());
                    child("compute", staged, staged + ran.compute, ran.attributes());
                    let batch = self.traces.batch(&ran);
                    if links.iter().all(|link| link.span_context != batch) {
                        links.push(Link::with_context(batch));
                    }
                }
            }
        }
        let mut attributes = Vec::new();
        let name = match end {
            Some(End { name, status, attributes: more }) => {
                attributes.push(KeyValue::new("http.response.status_code", i64::from(status)));
                attributes.extend(more.into_iter().map(|(key, value)| KeyValue::new(key, value)));
                Cow::Owned(name)
            }
            None => Cow::Borrowed("request"),
        };
        self.traces.send(Span {
            context: context(own),
            parent: self.caller.map_or(SpanId::INVALID, |caller| SpanId::from_bytes(caller.span_id)),
            parent_is_remote: self.caller.is_some(),
            kind: SpanKind::Server,
            name,
            time: (self.began, now),
            attributes,
            links,
            status: match status {
                Some(500..) => Status::error(""),
                Some(_) => Status::Unset,
                None => Status::error("the caller went away"),
            },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sampled_part_of_our_own_ids_is_the_ratio() {
        for (ratio, expected) in [(0.0, 0..=0), (1.0, 20_000..=20_000), (0.25, 4600..=5400)] {
            let below = (ratio * (u64::from(u32::MAX) + 1) as f64) as u64;
            let sampled = (0..20_000).filter(|_| samples(below, TraceContext::root().trace_id)).count();
            // More than five standard deviations to each side.
            assert!(expected.contains(&sampled), "{ratio}: {sampled}");
        }
    }
}
