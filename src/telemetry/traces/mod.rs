//! Traces: requests as OpenTelemetry spans, sent to a collector by OTLP over HTTP.
//!
//! A request is a `tracing` span that contains its log lines; `tracing-opentelemetry` turns it into an OpenTelemetry span with the
//! lines as events. The stages of a request run on other threads and are only known once they are over, by instants that are recorded
//! anyway. Their spans are made from these at the end of the request, with the true times. (A `tracing` span begins and ends where
//! code enters it, which would be the wrong places and times.)
//!
//! - [`Traces`]: sampling, and delivery to the collector. `request`: one request, from its head to its last stage.
//! - `export`: the client that sends spans, and counts of those that are lost.

mod export;
mod request;

pub use export::SPANS_LOST;
pub use request::{Begun, End, Ran, RequestTrace};

use super::request::{TraceContext, new_span_id};
use export::{Client, Delivery, Exporter};
use opentelemetry::{
    Context, InstrumentationScope, Key, KeyValue, SpanId, TraceFlags, TraceId, Value,
    trace::{Link, SpanContext, SpanKind, Status, TraceContextExt, TracerProvider},
};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    resource::{EnvResourceDetector, ResourceDetector, TelemetryResourceDetector},
    trace::{
        BatchConfigBuilder, BatchSpanProcessor, IdGenerator, SamplingDecision, SamplingResult,
        SdkTracerProvider, ShouldSample, SpanData, SpanEvents, SpanLinks, SpanProcessor,
    },
};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::runtime::Handle;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

/// Stages of one request that become spans: of a long stack, the first ones.
const STAGES_MAX: usize = 256;
/// The number of sent batches that are remembered.
const BATCHES_KNOWN: usize = 1024;
/// Spans that may wait for the collector, unless the environment sets another number (OpenTelemetry's default).
const WAITING_MAX: usize = 2048;
/// How long the collector may take to reply.
const EXPORT_MAX: Duration = Duration::from_secs(5);
/// The target of spans that are sent; the layer recognises them by it.
const TARGET: &str = "ocelli::traced";
/// The target of the spans of requests that only go to the log.
const LOGGED: &str = "ocelli::request";

/// Sampling, and delivery to the collector.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    collector: ToCollector,
    scope: InstrumentationScope,
    /// Makes the ids of batches differ from those of other processes.
    seed: [u8; 16],
    began: Instant,
    /// Batches that were sent, oldest first.
    batches: Mutex<VecDeque<SpanId>>,
}

impl Traces {
    /// Sends the fraction `ratio` of the traces to the collector at `endpoint`, on the runtime that this is called on.
    ///
    /// # Errors
    /// If `endpoint` is not a valid address.
    pub fn start(endpoint: &str, ratio: f64, version: &'static str) -> Result<Arc<Traces>, String> {
        let uri: http::Uri =
            endpoint.parse().map_err(|error| format!("otlp_endpoint {endpoint:?}: {error}"))?;
        let endpoint = match uri.path() {
            "" | "/" => format!("{}/v1/traces", endpoint.trim_end_matches('/')),
            _ => endpoint.to_owned(),
        };
        let failed = |error: ExporterBuildError| format!("otlp_endpoint {endpoint:?}: {error}");
        // Read in the same way as by the library.
        let waiting_max =
            std::env::var("OTEL_BSP_MAX_QUEUE_SIZE").ok().and_then(|number| number.parse().ok());
        let waiting_max = waiting_max.unwrap_or(WAITING_MAX);
        let delivery = Arc::new(Delivery::new(waiting_max));
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new(Handle::current(), EXPORT_MAX, Arc::clone(&delivery)))
            .with_endpoint(&endpoint)
            .with_timeout(EXPORT_MAX)
            .build()
            .map_err(failed)?;
        let exporter = Exporter { inner: exporter, delivery: Arc::clone(&delivery) };
        let config = BatchConfigBuilder::default().with_max_queue_size(waiting_max).build();
        let mut processor = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        let instance = TraceContext::root();
        let resource = Resource::builder_empty()
            .with_detector(Box::new(TelemetryResourceDetector))
            .with_service_name("ocelli")
            .with_attribute(KeyValue::new("service.version", version))
            .with_attribute(KeyValue::new("service.instance.id", instance.trace_id_hex()))
            .with_attributes(decoded(&EnvResourceDetector::new().detect()))
            .build();
        processor.set_resource(&resource);
        let collector = ToCollector { processor: Arc::new(processor), delivery };
        let provider = SdkTracerProvider::builder()
            .with_span_processor(collector.clone())
            .with_sampler(Part::of(ratio))
            .with_id_generator(OwnIds)
            .with_max_links_per_span(STAGES_MAX as u32)
            .build();
        Ok(Arc::new(Traces {
            provider,
            collector,
            scope: InstrumentationScope::builder("ocelli").with_version(version).build(),
            seed: instance.trace_id,
            began: Instant::now(),
            batches: Mutex::default(),
        }))
    }

    /// The layer that makes spans of requests. Add it beside the layers of the log, not below their filter.
    pub fn layer<S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync>(&self) -> impl Layer<S> + use<S> {
        // A log line reports a failure on its own; the status of a request's span follows from its reply.
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer_with_scope(self.scope.clone()))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_context_activation(false)
            .with_error_fields_to_exceptions(false)
            .with_error_records_to_exceptions(false)
            .with_error_events_to_exceptions(false)
            .with_error_events_to_status(false)
            .with_filter(filter_fn(is_sent))
    }

    /// Spans that were lost so far, by the reasons of [`SPANS_LOST`].
    pub fn spans_lost(&self) -> [u64; SPANS_LOST.len()] {
        self.collector.delivery.lost()
    }

    /// Sends the waiting spans, for at most `time_max`, and no longer than the collector may take for one reply: with one that does not
    /// answer, each of several exports would wait as long. Call it from a thread that may block.
    pub fn end(&self, time_max: Duration) {
        if let Err(error) = self.provider.shutdown_with_timeout(time_max.min(EXPORT_MAX)) {
            tracing::warn!(%error, "traces were lost at the end");
        }
    }

    fn send(&self, span: Span) {
        self.collector.send(SpanData {
            span_context: span.context,
            parent_span_id: span.parent,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: Cow::Borrowed(span.name),
            start_time: span.time.0,
            end_time: span.time.1,
            attributes: span.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        });
    }
}

/// The resource attributes from the environment. By the specification their values are percent-encoded, but the library does not
/// decode them. A value that does not decode to UTF-8 stays unchanged.
fn decoded(resource: &Resource) -> Vec<KeyValue> {
    let decode = |(key, value): (&Key, &Value)| {
        let value = value.as_str();
        let text = percent_decode_str(&value).decode_utf8().unwrap_or(Cow::Borrowed(&value));
        KeyValue::new(key.clone(), text.into_owned())
    };
    resource.iter().map(decode).collect()
}

/// Which spans and log lines are sent: requests, and their lines at the levels that a service normally runs with (INFO and more
/// severe), whatever the log's filter shows.
fn is_sent(metadata: &Metadata<'_>) -> bool {
    match metadata.is_span() {
        true => metadata.target() == TARGET,
        false => *metadata.level() <= Level::INFO,
    }
}

/// Whether this is a request's span. The log keeps it whatever its filter shows, because lines of every level name the request and its
/// model. Its level is the one that the fewest filters leave out.
pub(super) fn is_request(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && matches!(metadata.target(), TARGET | LOGGED)
}

/// A span made from recorded times.
struct Span {
    context: SpanContext,
    parent: SpanId,
    name: &'static str,
    time: (SystemTime, SystemTime),
    attributes: Vec<KeyValue>,
}

/// Passes requests to the collector: all that are sampled, and of the others those that failed.
#[derive(Debug, Clone)]
struct ToCollector {
    processor: Arc<BatchSpanProcessor>,
    delivery: Arc<Delivery>,
}

impl ToCollector {
    fn send(&self, span: SpanData) {
        if self.delivery.has_place() {
            self.processor.on_end(span);
        }
    }
}

impl SpanProcessor for ToCollector {
    fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &Context) {}

    fn on_end(&self, mut span: SpanData) {
        let failed = matches!(span.status, Status::Error { .. });
        if !span.span_context.is_sampled() && !failed {
            return;
        }
        span.span_kind = SpanKind::Server;
        span.span_context = sampled(&span.span_context, span.span_context.span_id());
        self.send(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, time_max: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(time_max)
    }
}

/// The context of a span of the same trace, marked as sampled.
fn sampled(of: &SpanContext, span: SpanId) -> SpanContext {
    SpanContext::new(of.trace_id(), span, TraceFlags::SAMPLED, false, of.trace_state().clone())
}

/// The sampler. It decides by the bytes that are random in every kind of trace id, so that all services with the same ratio decide
/// alike. The rest is recorded but not sampled, because a request that fails is sent anyway.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Traces are sent if the last four bytes of their id are below this.
    below: u64,
}

impl Part {
    fn of(ratio: f64) -> Part {
        Part { below: (ratio * (u64::from(u32::MAX) + 1) as f64) as u64 }
    }

    fn has(self, id: TraceId) -> bool {
        let [.., a, b, c, d] = id.to_bytes();
        u64::from(u32::from_be_bytes([a, b, c, d])) < self.below
    }
}

impl ShouldSample for Part {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        _name: &str,
        _kind: &SpanKind,
        _attributes: &[KeyValue],
        _links: &[Link],
    ) -> SamplingResult {
        let decision = match self.has(trace) {
            true => SamplingDecision::RecordAndSample,
            false => SamplingDecision::RecordOnly,
        };
        let trace_state = parent.map(|parent| parent.span().span_context().trace_state().clone());
        SamplingResult { decision, attributes: Vec::new(), trace_state: trace_state.unwrap_or_default() }
    }
}

/// Generates the same kind of ids that requests have without a collector.
#[derive(Debug)]
struct OwnIds;

impl IdGenerator for OwnIds {
    fn new_trace_id(&self) -> TraceId {
        TraceId::from_bytes(TraceContext::root().trace_id)
    }

    fn new_span_id(&self) -> SpanId {
        SpanId::from_bytes(new_span_id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_environment_says_of_the_process_is_decoded() {
        let given = [("deployment.environment.name", "a%20b%2Cc"), ("k", "100%"), ("latin", "%e9")];
        let given = given.map(|(key, value)| KeyValue::new(key, value));
        let expected = [("deployment.environment.name", "a b,c"), ("k", "100%"), ("latin", "%e9")];
        let mut read = decoded(&Resource::builder_empty().with_attributes(given).build());
        read.sort_by(|a, b| a.key.cmp(&b.key));
        assert_eq!(read, expected.map(|(key, value)| KeyValue::new(key, value)));
    }

    #[test]
    fn the_sampled_part_of_our_own_ids_is_the_ratio() {
        for (ratio, expected) in [(0.0, 0..=0), (1.0, 20_000..=20_000), (0.25, 4600..=5400)] {
            let part = Part::of(ratio);
            let sampled = (0..20_000).filter(|_| part.has(OwnIds.new_trace_id())).count();
            // The range allows more than five standard deviations on each side.
            assert!(expected.contains(&sampled), "{ratio}: {sampled}");
        }
    }
}
