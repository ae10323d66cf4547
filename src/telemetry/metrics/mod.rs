//! Every metric, one struct: call sites use its fields, so a name is spelled once. `docs/metrics.md` lists them all.
//!
//! Label values come from the catalog, from devices, from routes and from the enums here, never from a request: the
//! number of series is bounded. What is counted for each job is resolved when a model meets a device
//! ([`ModelMetrics`], [`DeviceMetrics`]), so that no label is hashed on the way.
//!
//! - `bounds`: what some of them can reach.
//! - `register`: makes metrics, remembers what they are, and writes `docs/metrics.md` from that.
//! - `device`: what is seen of devices.
//! - `model`: what is counted for a model, and for a model on a device.
//! - `route`: what is counted for a route.

mod bounds;
mod device;
mod model;
mod register;
mod route;

pub use bounds::Bounds;
pub use device::{DeviceFamilies, Readings};
pub use model::{DeviceMetrics, ModelMetrics, ModelState, Outcome};
pub use register::metrics_md;
pub use route::{RouteMetrics, known_method};

use super::{logging::LOGS, traces::SPANS_LOST};
use crate::words::named;
use bounds::BoundMetrics;
use model::Models;
use prometheus::{IntCounter, IntGauge, IntGaugeVec, Registry, TextEncoder};
use register::Register;
use route::Routes;
use std::sync::{Arc, atomic::Ordering};

/// Names and label names are literals of this folder; a test makes them all.
const LITERALS: &str = "names and labels are literals that Prometheus allows";

named! {
    /// What was left when the time to drain was over.
    DropReason {
        /// A connection with a request on it was cut.
        Connection = "connection",
        /// A job was waiting or running, or would have been: its file was not decoded yet, or it came too late to be queued.
        Job = "job",
        /// A request still came or was decoded, or a stack was answered as it came.
        Request = "request",
    }
}

named! {
    /// Why a connection was ended.
    EndReason {
        /// No request came.
        Idle = "idle",
        /// A request's header came too slowly.
        Header = "header",
        /// An answer was not taken.
        Stalled = "stalled",
        /// It was idle, and another waited for its place.
        Evicted = "evicted",
    }
}

named! {
    /// What was all taken when a request was refused at the door.
    RefuseReason {
        /// The number of requests in flight.
        Requests = "requests",
        /// The bytes of their bodies.
        Bytes = "bytes",
    }
}

named! {
    /// Why a batch failed.
    FailReason {
        /// The engine refused it.
        Input = "input",
        /// The device's memory was too small.
        OutOfMemory = "out_of_memory",
        /// Something beside it was in its way.
        Passing = "passing",
        /// The device failed.
        Device = "device",
    }
}

named! {
    /// What the duration of a request says: how long answers take, or how long nobody waited, or nothing.
    RequestClass {
        /// It has its answer.
        Answered = "answered",
        /// Its caller went away, or a deadline passed: its answer would have taken longer.
        Abandoned = "abandoned",
        /// It was refused, or failed: however fast that was, it is no answer.
        Failed = "failed",
    }
}

/// All metrics of a process, on a registry of their own. Shared behind an `Arc`.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    routes: Routes,
    models: Models,
    bounds: BoundMetrics,
    dropped: [IntCounter; DropReason::LABELS.len()],
    ended: [IntCounter; EndReason::LABELS.len()],
    refused: [IntCounter; RefuseReason::LABELS.len()],

    /// What is seen of devices.
    pub devices: DeviceFamilies,
    /// Open connections.
    pub http_connections: IntGauge,
    /// Connections accepted.
    pub http_connections_total: IntCounter,
    /// Accepts that failed.
    pub http_accept_errors_total: IntCounter,
    /// Streams of HTTP/2 that were reset, since their answer was not taken.
    pub http_streams_reset_total: IntCounter,
    /// Lines that were dropped, of each of the [`LOGS`].
    pub log_lines_lost_total: [IntCounter; LOGS.len()],
    /// Bytes of log lines that wait for standard error.
    pub log_waiting_bytes: IntGauge,
    /// Spans that did not reach the collector, by the reasons of [`SPANS_LOST`].
    pub trace_spans_lost_total: [IntCounter; SPANS_LOST.len()],
    /// JPEGs that a GPU has decoded.
    pub gpu_jpegs_total: IntCounter,
    /// Work of the decode pool that was done for nobody.
    pub decode_in_vain_total: IntCounter,
    /// Regions of shared memory that callers have registered.
    pub shared_memory_regions: IntGauge,
    /// Bytes of inputs read from regions.
    pub shared_memory_read_bytes_total: IntCounter,
    /// Bytes of outputs written to regions.
    pub shared_memory_written_bytes_total: IntCounter,
    /// As many as may be open on each listener.
    pub http_connections_max: IntGauge,
    /// Listeners at that number, where another waits.
    pub http_listeners_full: IntGauge,
    /// Who came then.
    pub http_connections_capped_total: IntCounter,
    /// Whether the server says that it is ready.
    pub ready: IntGauge,
    /// GPUs that are left alone, or a driver.
    pub gpus_failed: IntGauge,
    /// Requests being worked on.
    pub requests_in_flight: IntGauge,
    /// Bytes of request bodies held.
    pub in_flight_bytes: IntGauge,
    /// Bytes of model input that wait or run.
    pub queue_bytes: IntGauge,
    /// Age of what has waited longest; set just before [`Metrics::render`].
    pub queue_oldest_age_seconds: prometheus::Gauge,
    /// Bytes reserved for decoded images.
    pub decode_bytes: IntGauge,
    /// Work of the decode pool that waits or runs.
    pub decode_jobs: IntGauge,
    memory_used: IntGaugeVec,
}

impl Metrics {
    /// All metrics at zero, for the routes that the router has (templates, such as `/v2/models/{model}`).
    /// `version` and `commit` name the build.
    pub fn new(routes: &[&str], version: &str, commit: &str) -> Metrics {
        Metrics::registered(&mut Register::new(), routes, version, commit)
    }

    fn registered(register: &mut Register, routes: &[&str], version: &str, commit: &str) -> Metrics {
        let metrics = Metrics {
            registry: register.registry.clone(),
            routes: Routes::new(register, routes),
            http_connections: register.gauge("ocelli_http_connections", "Open connections on the API."),
            http_connections_total: register
                .counter("ocelli_http_connections_total", "Connections accepted on the API."),
            http_accept_errors_total: register.counter(
                "ocelli_http_accept_errors_total",
                "Connections that could not be accepted, such as for want of file descriptors.",
            ),
            ended: register.by_reason(
                "ocelli_http_connections_ended_total",
                "Connections that were ended because nothing came or went on them.",
                EndReason::LABELS,
            ),
            http_streams_reset_total: register.counter(
                "ocelli_http_streams_reset_total",
                "Replies over HTTP/2 that were not taken within reply_stall_ms: only their streams were reset.",
            ),
            http_connections_max: register.gauge(
                "ocelli_http_connections_max",
                "The most connections that may be open on each listener of the API: connections_max, or fewer if the limit of open files is low.",
            ),
            http_listeners_full: register.gauge(
                "ocelli_http_listeners_full",
                "Listeners of the API that have as many open connections as they may, none of them idle, while another waits.",
            ),
            http_connections_capped_total: register.counter(
                "ocelli_http_connections_capped_total",
                "Connections that came while their listener had as many open as it may, and waited until one ended or an idle one made room.",
            ),
            ready: register.gauge("ocelli_ready", "1 while GET /v2/health/ready answers 200, 0 while not."),
            gpus_failed: register.gauge(
                "ocelli_gpus_failed",
                "GPUs about which the driver told nothing when the server started, or 1 if the driver itself failed: they are left alone until the next start.",
            ),
            requests_in_flight: register.gauge(
                "ocelli_requests_in_flight",
                "Requests between their headers and the end of their reply.",
            ),
            in_flight_bytes: register.gauge(
                "ocelli_in_flight_bytes",
                "Bytes of request bodies, and of what replies hold, that are admitted and not yet released.",
            ),
            refused: register.by_reason(
                "ocelli_refused_total",
                "Requests refused because as much was in flight as may be, before their body was read or while it grew.",
                RefuseReason::LABELS,
            ),
            models: register.models(Models::new()),
            queue_bytes: register
                .gauge("ocelli_queue_bytes", "Bytes of model input that wait or run, of all models."),
            queue_oldest_age_seconds: register.float_gauge(
                "ocelli_queue_oldest_age_seconds",
                "Age of the job that has waited longest; 0 when none waits.",
            ),
            decode_bytes: register
                .gauge("ocelli_decode_bytes", "Bytes reserved for decoded images, all decodes together."),
            decode_jobs: register.gauge(
                "ocelli_decode_jobs",
                "Files and other long work that wait for a thread of the decode pool or run there. No stage counts the wait.",
            ),
            memory_used: register.gauges(
                "ocelli_memory_used_bytes",
                "Memory that counts against the limit of the control group: of all its processes, without file pages that are given back first. No sample without such a limit.",
                &[],
            ),
            bounds: BoundMetrics::new(register),
            devices: DeviceFamilies::new(register),
            dropped: register.by_reason(
                "ocelli_dropped_total",
                "Work dropped because drain_timeout_ms had passed or a second signal came.",
                DropReason::LABELS,
            ),
            gpu_jpegs_total: register.counter(
                "ocelli_gpu_jpegs_total",
                "JPEGs that a GPU decoded because the CPU had more of them than it has threads for (gpu_jpeg).",
            ),
            decode_in_vain_total: register.counter(
                "ocelli_decode_in_vain_total",
                "Files and other long work of the decode pool whose caller left, or whose deadline passed, while they were done.",
            ),
            shared_memory_regions: register.gauge(
                "ocelli_shared_memory_regions",
                "Regions of shared memory that callers have registered (at most shared_memory_regions_max).",
            ),
            shared_memory_read_bytes_total: register.counter(
                "ocelli_shared_memory_read_bytes_total",
                "Bytes of inputs that came in regions of shared memory.",
            ),
            shared_memory_written_bytes_total: register.counter(
                "ocelli_shared_memory_written_bytes_total",
                "Bytes of outputs that were put into regions of shared memory.",
            ),
            log_lines_lost_total: register.by(
                "ocelli_log_lines_lost_total",
                "Log lines that were dropped because their reader or disk was too slow, full or gone.",
                "log",
                LOGS,
            ),
            log_waiting_bytes: register.gauge(
                "ocelli_log_waiting_bytes",
                "Bytes of log lines that wait for whoever reads the standard error. If this stays above 0, nobody reads it; beyond 8 MiB, lines are lost.",
            ),
            trace_spans_lost_total: register.by_reason(
                "ocelli_trace_spans_lost_total",
                "Spans that did not reach the collector: more waited than may (queue), or it took none (collector), or not all of them (rejected).",
                SPANS_LOST,
            ),
        };
        register
            .gauges("ocelli_build_info", "Always 1; the labels name the build.", &["version", "commit"])
            .with_label_values(&[version, commit])
            .set(1);
        register.process();
        metrics
    }

    /// What is counted for a model that comes into the catalog; made with all its outcomes at zero when it is new, so that rates
    /// have a beginning. `name` must come from the catalog, never from a request.
    pub fn add_model(&self, name: &str) -> Arc<ModelMetrics> {
        self.models.add(name)
    }

    /// What is counted for a model of the catalog. For one that is gone, or never was there, it is shown to nobody.
    pub fn model(&self, name: &str) -> Arc<ModelMetrics> {
        self.models.get(name).unwrap_or_else(|| Arc::new(ModelMetrics::new(name)))
    }

    /// Forgets all that was counted for a model that is gone from the catalog.
    pub fn remove_model(&self, name: &str) {
        self.models.remove(name);
    }

    /// The names of all models for which something is counted.
    pub fn models(&self) -> Vec<Arc<str>> {
        self.models.names()
    }

    /// Models with requests that have not ended, and how many.
    pub fn requests_open(&self) -> Vec<(Arc<str>, usize)> {
        let open = |name: &Arc<str>| self.model(name).requests_open.load(Ordering::Relaxed);
        let models = self.models().into_iter().map(|name| (Arc::clone(&name), open(&name)));
        models.filter(|(_, open)| *open > 0).collect()
    }

    /// What is counted for a route. A template that [`Metrics::new`] was not told of is `other`.
    pub fn route(&self, template: &str) -> &RouteMetrics {
        self.routes.get(template)
    }

    /// Says what the gauges of what is held can reach. Until then the bounds are 0.
    pub fn set_bounds(&self, bounds: Bounds) {
        self.bounds.set(bounds);
    }

    /// Sets what counts against the limit of memory; `None` where there is no such limit, or the system does not tell.
    pub fn set_memory_used(&self, bytes: Option<u64>) {
        match bytes {
            Some(bytes) => {
                self.memory_used.with_label_values::<&str>(&[]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
            }
            // Fails only if none was set.
            None => {
                let _ = self.memory_used.remove_label_values::<&str>(&[]);
            }
        }
    }

    /// Counts what was dropped at the end of a drain.
    pub fn dropped(&self, reason: DropReason) -> &IntCounter {
        &self.dropped[reason as usize]
    }

    /// Counts connections that a clock ended.
    pub fn ended(&self, reason: EndReason) -> &IntCounter {
        &self.ended[reason as usize]
    }

    /// Counts requests refused because all that may be in flight was.
    pub fn refused(&self, reason: RefuseReason) -> &IntCounter {
        &self.refused[reason as usize]
    }

    /// All metrics in Prometheus' text format, version 0.0.4 (`text/plain; version=0.0.4`).
    pub fn render(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .expect("only metrics that were registered, each with a name and samples")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blessed;
    use std::time::Duration;

    const ROUTES: [&str; 1] = ["/predictions/{model}"];

    fn metrics() -> Metrics {
        Metrics::new(&ROUTES, "1.2.3", "abc")
    }

    fn check(metrics: &Metrics, line: &str) {
        let text = metrics.render();
        assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
    }

    #[test]
    fn a_model_begins_with_every_outcome_at_zero() {
        let metrics = metrics();
        metrics.add_model("digits");
        for outcome in Outcome::ALL {
            let name = outcome.name();
            check(&metrics, &format!("ocelli_outcomes_total{{model=\"digits\",outcome=\"{name}\"}} 0"));
        }
        check(&metrics, "ocelli_queue_items{model=\"digits\"} 0");
    }

    #[test]
    fn each_outcome_counts_under_its_own_name() {
        let metrics = metrics();
        let model = metrics.add_model("digits");
        for (i, outcome) in Outcome::ALL.into_iter().enumerate() {
            model.outcome(outcome).inc_by(i as u64 + 1);
        }
        for (i, outcome) in Outcome::ALL.into_iter().enumerate() {
            let name = outcome.name();
            let n = i + 1;
            check(&metrics, &format!("ocelli_outcomes_total{{model=\"digits\",outcome=\"{name}\"}} {n}"));
        }
    }

    #[test]
    fn a_model_on_a_device_counts_its_stages_and_batches() {
        let metrics = metrics();
        let model = metrics.add_model("digits");
        let device = model.device("cpu");
        let text = metrics.render();
        assert!(text.contains("ocelli_items_total{device=\"cpu\",model=\"digits\"} 0"), "{text}");
        let histograms = |name| text.contains(&format!("{name}_count{{device=\"cpu\",model=\"digits\""));
        assert!(!histograms("ocelli_batch_items"), "there is none before its first value: {text}");
        let stage = |stage| text.contains(&format!("device=\"cpu\",model=\"digits\",stage=\"{stage}\""));
        // But for the one that autoscalers look at.
        assert_eq!(["queue", "stage", "compute", "reply"].map(stage), [true, false, false, false], "{text}");
        device.compute_seconds.observe(0.0001);
        device.batch(5, 8);
        device.batch(1000, 1024);
        model.decode_seconds.observe(0.5);
        for line in [
            "ocelli_stage_duration_seconds_count{device=\"cpu\",model=\"digits\",stage=\"compute\"} 1",
            "ocelli_stage_duration_seconds_bucket{device=\"cpu\",model=\"digits\",stage=\"compute\",le=\"0.00005\"} 0",
            "ocelli_stage_duration_seconds_bucket{device=\"cpu\",model=\"digits\",stage=\"compute\",le=\"0.0001\"} 1",
            "ocelli_stage_duration_seconds_count{device=\"\",model=\"digits\",stage=\"decode\"} 1",
            "ocelli_batch_items_bucket{device=\"cpu\",model=\"digits\",le=\"4\"} 0",
            "ocelli_batch_items_bucket{device=\"cpu\",model=\"digits\",le=\"8\"} 1",
            "ocelli_batch_items_bucket{device=\"cpu\",model=\"digits\",le=\"1024\"} 2",
            "ocelli_batch_padding_items_total{device=\"cpu\",model=\"digits\"} 27",
            "ocelli_items_total{device=\"cpu\",model=\"digits\"} 1005",
        ] {
            check(&metrics, line);
        }
        let again = metrics.add_model("digits").device("cpu");
        again.batch(1, 1);
        check(&metrics, "ocelli_items_total{device=\"cpu\",model=\"digits\"} 1006");
    }

    #[test]
    fn a_version_is_in_one_state_until_it_is_removed() {
        let metrics = metrics();
        let model = metrics.add_model("digits");
        model.set_state("1", ModelState::Loading);
        model.set_state("1", ModelState::Ready);
        check(&metrics, "ocelli_model_state{model=\"digits\",state=\"ready\",version=\"1\"} 1");
        check(&metrics, "ocelli_model_state{model=\"digits\",state=\"loading\",version=\"1\"} 0");
        model.remove_version("1");
        assert!(!metrics.render().contains("ocelli_model_state{"));
    }

    #[test]
    fn a_model_that_is_gone_has_no_series_and_who_counts_for_it_late_makes_none() {
        let metrics = metrics();
        let other = metrics.add_model("letters");
        other.outcome(Outcome::Ok).inc();
        let of_digits = || {
            let text = metrics.render();
            text.lines().filter(|line| line.contains("model=\"digits\"")).count()
        };
        let model = metrics.add_model("digits");
        model.set_state("1", ModelState::Ready);
        let device = model.device("cpu");
        device.fell_back("device_away");
        device.set_ceiling(Some(4));
        device.batch(1, 1);
        for stage in [&device.stage_seconds, &device.compute_seconds, &device.reply_seconds] {
            stage.observe(0.1);
        }
        assert!(of_digits() > 100);
        metrics.remove_model("digits");
        assert_eq!(of_digits(), 0);
        // Whoever had them before, and whoever asks for them after.
        for late in [model, metrics.model("digits")] {
            late.outcome(Outcome::Late).inc();
            late.set_state("1", ModelState::Ready);
            late.queue_items.set(3);
            for device in [late.device("cpu"), late.device("GPU-1")] {
                device.fell_back("device_failed");
                device.set_ceiling(Some(2));
                device.failed(FailReason::Device, 1);
                device.compute_seconds.observe(0.1);
            }
        }
        device.fell_back("device_failed");
        assert_eq!(of_digits(), 0);
        check(&metrics, "ocelli_outcomes_total{model=\"letters\",outcome=\"ok\"} 1");
        // One of its name is another, from the beginning.
        metrics.add_model("digits");
        check(&metrics, "ocelli_outcomes_total{model=\"digits\",outcome=\"late\"} 0");
    }

    #[test]
    fn a_load_has_failed_until_one_succeeds() {
        let metrics = metrics();
        let model = metrics.add_model("digits");
        let failed = |value: u8| {
            check(&metrics, &format!("ocelli_model_load_failed{{model=\"digits\",version=\"1\"}} {value}"));
        };
        model.set_state("1", ModelState::Unavailable);
        failed(1);
        model.set_state("1", ModelState::Loading);
        failed(1);
        model.set_state("1", ModelState::Ready);
        failed(0);
        model.set_load_failed("1", true);
        failed(1);
        model.remove_version("1");
        assert!(!metrics.render().contains("ocelli_model_load_failed{"));
    }

    #[test]
    fn a_device_is_in_one_state() {
        let metrics = metrics();
        metrics.devices.set_state("cpu", &["warming", "serving"], "warming");
        metrics.devices.set_state("cpu", &["warming", "serving"], "serving");
        check(&metrics, "ocelli_device_state{device=\"cpu\",state=\"warming\"} 0");
        check(&metrics, "ocelli_device_state{device=\"cpu\",state=\"serving\"} 1");
    }

    #[test]
    fn bounds_stand_beside_what_they_bound() {
        let metrics = metrics();
        metrics.set_bounds(Bounds { queue_bytes: 7, ..Bounds::default() });
        check(&metrics, "ocelli_queue_bytes_max 7");
        check(&metrics, "ocelli_queue_items_max 0");
    }

    #[test]
    fn memory_has_a_sample_where_it_has_a_limit() {
        let metrics = metrics();
        assert!(!metrics.render().contains("ocelli_memory_used_bytes"));
        metrics.set_memory_used(Some(5));
        check(&metrics, "ocelli_memory_used_bytes 5");
        metrics.set_memory_used(None);
        assert!(!metrics.render().contains("ocelli_memory_used_bytes"));
    }

    #[test]
    fn what_is_seen_of_a_device_is_told_and_counters_only_grow() {
        let metrics = metrics();
        let mut seen = Readings { utilization: Some(0.5), energy_j: Some(7.5), ..Readings::default() };
        seen.memory_bytes = vec![("free", Some(8)), ("own", None)];
        seen.xids.insert(79, 2);
        metrics.devices.set("GPU-1", &seen);
        metrics.devices.set("GPU-1", &Readings { energy_j: Some(5.0), ..seen });
        metrics.devices.set_transitions(["GPU-1", "fenced", "xid"], 3);
        metrics.devices.set_transitions(["GPU-1", "fenced", "xid"], 3);
        for line in [
            "ocelli_device_memory_bytes{device=\"GPU-1\",kind=\"free\"} 8",
            "ocelli_device_utilization_ratio{device=\"GPU-1\"} 0.5",
            "ocelli_device_energy_joules_total{device=\"GPU-1\"} 7.5",
            "ocelli_device_xids_total{device=\"GPU-1\",xid=\"79\"} 2",
            "ocelli_device_transitions_total{device=\"GPU-1\",reason=\"xid\",state=\"fenced\"} 3",
        ] {
            check(&metrics, line);
        }
        assert!(!metrics.render().contains("kind=\"own\""), "what is not told has no sample");
    }

    #[test]
    fn what_a_gpu_counts_begins_anew_when_it_is_reset() {
        let metrics = metrics();
        for (seen, told) in [(5, 5), (5, 5), (0, 0), (3, 3)] {
            metrics.devices.set("GPU-1", &Readings { ecc_uncorrected: Some(seen), ..Readings::default() });
            check(&metrics, &format!("ocelli_device_ecc_uncorrected_total{{device=\"GPU-1\"}} {told}"));
        }
    }

    #[test]
    fn a_batch_has_no_ceiling_where_full_ones_are_run_again() {
        let metrics = metrics();
        let device = metrics.add_model("digits").device("GPU-1");
        device.set_ceiling(None);
        device.set_ceiling(Some(4));
        check(&metrics, "ocelli_batch_ceiling_items{device=\"GPU-1\",model=\"digits\"} 4");
        device.set_ceiling(None);
        assert!(!metrics.render().contains("ocelli_batch_ceiling_items{"));
    }

    #[test]
    fn what_is_told_of_a_device_no_more_has_no_sample() {
        let metrics = metrics();
        let seen = Readings {
            memory_bytes: vec![("free", Some(8)), ("own", Some(3))],
            others: Some(1),
            utilization: Some(0.5),
            temperature_c: Some(40),
            throttled: vec![("thermal", Some(true)), ("power_cap", None)],
            power_w: Some(90.0),
            energy_j: Some(7.5),
            ..Readings::default()
        };
        let gauges = |device: &str| {
            let text = metrics.render();
            let of_device = text.lines().filter(|line| line.contains(&format!("device=\"{device}\"")));
            of_device.filter(|line| !line.contains("_total{")).map(str::to_owned).collect::<Vec<_>>()
        };
        metrics.devices.set("GPU-1", &seen);
        metrics.devices.set("GPU-2", &seen);
        assert_eq!(gauges("GPU-1").len(), 7);
        let gone = Readings {
            memory_bytes: vec![("free", Some(8)), ("own", None)],
            throttled: vec![("thermal", None)],
            ..Readings::default()
        };
        metrics.devices.set("GPU-1", &gone);
        assert_eq!(gauges("GPU-1"), ["ocelli_device_memory_bytes{device=\"GPU-1\",kind=\"free\"} 8"]);
        assert_eq!(gauges("GPU-2").len(), 7, "another device's stay");
        check(&metrics, "ocelli_device_energy_joules_total{device=\"GPU-1\"} 7.5");
        metrics.devices.set("GPU-1", &seen);
        assert_eq!(gauges("GPU-1").len(), 7);
    }

    #[test]
    fn requests_are_counted_by_route_method_and_code() {
        let metrics = metrics();
        let route = metrics.route("/predictions/{model}");
        route.request("POST", 200, Duration::from_millis(3));
        route.request("POST", 200, Duration::from_millis(3));
        route.request("POST", 429, Duration::from_millis(1));
        for code in [499, 504] {
            route.request("POST", code, Duration::from_secs(3));
        }
        for line in [
            "ocelli_http_requests_total{code=\"200\",method=\"POST\",route=\"/predictions/{model}\"} 2",
            "ocelli_http_requests_total{code=\"429\",method=\"POST\",route=\"/predictions/{model}\"} 1",
            "ocelli_http_request_duration_seconds_count{class=\"answered\",route=\"/predictions/{model}\"} 2",
            "ocelli_http_request_duration_seconds_count{class=\"failed\",route=\"/predictions/{model}\"} 1",
            "ocelli_http_request_duration_seconds_count{class=\"abandoned\",route=\"/predictions/{model}\"} 2",
            "ocelli_http_request_duration_seconds_bucket{class=\"abandoned\",route=\"/predictions/{model}\",le=\"1\"} 0",
            "ocelli_http_request_duration_seconds_count{class=\"answered\",route=\"other\"} 0",
        ] {
            check(&metrics, line);
        }
        assert!(!metrics.render().contains("class=\"failed\",route=\"other\""), "it has had none");
    }

    #[test]
    fn what_callers_invent_adds_no_series() {
        let metrics = metrics();
        for i in 0..10_000 {
            let route = metrics.route(&format!("/{i}"));
            route.request(&format!("M{i}"), 404, Duration::ZERO);
        }
        check(&metrics, "ocelli_http_requests_total{code=\"404\",method=\"OTHER\",route=\"other\"} 10000");
        let text = metrics.render();
        let series = text.lines().filter(|line| line.starts_with("ocelli_http_requests_total{"));
        assert_eq!(series.count(), 1);
    }

    #[test]
    fn two_sets_of_metrics_do_not_share_anything() {
        let (a, b) = (metrics(), metrics());
        a.dropped(DropReason::Job).inc();
        check(&a, "ocelli_dropped_total{reason=\"job\"} 1");
        check(&b, "ocelli_dropped_total{reason=\"job\"} 0");
        check(&b, "ocelli_build_info{commit=\"abc\",version=\"1.2.3\"} 1");
    }

    #[test]
    fn every_metric_has_our_prefix_or_is_about_the_process() {
        let text = metrics().render();
        for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
            assert!(line.starts_with("# TYPE ocelli_") || line.starts_with("# TYPE process_"), "{line}");
        }
        assert!(text.contains("process_resident_memory_bytes"));
    }

    #[test]
    fn the_reference_of_metrics_is_the_registry() {
        blessed::check("docs/metrics.md", &metrics_md(), "metrics");
    }
}
