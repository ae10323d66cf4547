//! Makes metrics on a registry and remembers what they are, so that `docs/metrics.md` can be written from the same
//! words.

use super::{
    LITERALS, Metrics,
    model::{DURATION_BUCKETS, Models, batch_buckets},
};
use crate::telemetry::triton;
use prometheus::{
    CounterVec, Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, core::Collector, process_collector::ProcessCollector, proto::MetricType,
};
use std::fmt::Write;

/// A metric as the reference shows it.
struct Described {
    name: String,
    kind: &'static str,
    labels: Vec<String>,
    help: String,
}

/// A registry, and what is on it.
pub(super) struct Register {
    pub(super) registry: Registry,
    described: Vec<Described>,
}

impl Register {
    pub(super) fn new() -> Register {
        Register { registry: Registry::new(), described: Vec::new() }
    }

    fn add<M: Collector + Clone + 'static>(&mut self, kind: &'static str, metric: M) -> M {
        for desc in metric.desc() {
            self.described.push(Described {
                name: desc.fq_name.clone(),
                kind,
                labels: desc.variable_labels.clone(),
                help: desc.help.clone(),
            });
        }
        self.registry.register(Box::new(metric.clone())).expect("each name is registered once");
        metric
    }

    /// The metrics of models, which come and go.
    pub(super) fn models(&mut self, models: Models) -> Models {
        for family in models.example.each() {
            let kind = match family.collect()[0].get_field_type() {
                MetricType::COUNTER => "counter",
                MetricType::HISTOGRAM => "histogram",
                _ => "gauge",
            };
            for desc in family.desc() {
                let own = desc.const_label_pairs.iter().map(|label| label.name().to_owned());
                self.described.push(Described {
                    name: desc.fq_name.clone(),
                    kind,
                    labels: own.chain(desc.variable_labels.iter().cloned()).collect(),
                    help: desc.help.clone(),
                });
            }
        }
        self.registry.register(Box::new(models.clone())).expect("each name is registered once");
        models
    }

    pub(super) fn counter(&mut self, name: &str, help: &str) -> IntCounter {
        self.add("counter", IntCounter::new(name, help).expect(LITERALS))
    }

    pub(super) fn counters(&mut self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        let counters = IntCounterVec::new(Opts::new(name, help), labels);
        self.add("counter", counters.expect(LITERALS))
    }

    /// A counter for each of the values that the label `reason` has.
    pub(super) fn by_reason<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        reasons: [&str; N],
    ) -> [IntCounter; N] {
        self.by(name, help, "reason", reasons)
    }

    /// A counter for each of the values that a label has.
    pub(super) fn by<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: [&str; N],
    ) -> [IntCounter; N] {
        let counters = self.counters(name, help, &[label]);
        values.map(|value| counters.with_label_values(&[value]))
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str) -> IntGauge {
        self.add("gauge", IntGauge::new(name, help).expect(LITERALS))
    }

    pub(super) fn float_gauge(&mut self, name: &str, help: &str) -> Gauge {
        self.add("gauge", Gauge::new(name, help).expect(LITERALS))
    }

    pub(super) fn gauges(&mut self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        let gauges = IntGaugeVec::new(Opts::new(name, help), labels);
        self.add("gauge", gauges.expect(LITERALS))
    }

    pub(super) fn float_gauges(&mut self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        let gauges = GaugeVec::new(Opts::new(name, help), labels);
        self.add("gauge", gauges.expect(LITERALS))
    }

    pub(super) fn float_counters(&mut self, name: &str, help: &str, labels: &[&str]) -> CounterVec {
        let counters = CounterVec::new(Opts::new(name, help), labels);
        self.add("counter", counters.expect(LITERALS))
    }

    pub(super) fn histograms(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.add("histogram", HistogramVec::new(options, labels).expect(LITERALS))
    }

    /// CPU time, memory, file descriptors and threads of this process, read when rendered.
    pub(super) fn process(&mut self) {
        self.registry.register(Box::new(ProcessCollector::for_self())).expect("each name is registered once");
    }
}

/// What each label means, and its values where they are few.
const LABELS: [(&str, &str); 15] = [
    (
        "cause",
        "what lowers a GPU's clocks: `thermal` (heat), `power_brake` (its power supply), `power_cap` (its power limit: common under load)",
    ),
    (
        "class",
        "what a duration says: `answered`: codes below 400; `abandoned`: the caller went away (499) or a deadline passed (504), so the \
         answer would have taken longer; `failed`: any other code, however fast. Each class after the first that a route has had adds 22 \
         series",
    ),
    (
        "code",
        "status code of the reply; over gRPC, the HTTP code that says the same; 499 if the client went away before the reply; `other` \
         outside of 100 to 599",
    ),
    ("commit", "git commit of the build, empty if unknown"),
    (
        "device",
        "device id, such as `cpu`; empty for what happens before a device is chosen, and for the stage `queue` of jobs that got no answer",
    ),
    (
        "kind",
        "`total`: all there is; `free`: what nobody holds; `own`: what this process holds; `others`: what other processes \
         hold; `needed`: what must be free before the GPU is taken beside others",
    ),
    ("log", "`stderr`: the log of the whole server; `files`: the logs of models (`log_dir`)"),
    ("method", "`GET`, `HEAD`, `POST`, `PUT`, `PATCH`, `DELETE`, `OPTIONS`; `OTHER` for any other"),
    ("model", "name of a model in the catalog"),
    (
        "outcome",
        "how a request for a model ended: `ok`; `bad_request`, `decode`, `too_large`, `input`: refused for what the request is; \
         `full`, `draining`, `unavailable`: refused for the state of the server; `loading`: the model is still being loaded, as in each \
         replica that starts, and a load balancer asks another; `late`: the deadline passed; `hasty`: a deadline passed that its caller had set (by a \
         timeout or a deadline of gRPC), with less time than the model's own; `cancelled`: the client went away; \
         `storage`: the server's disk had no room for the stack; `device`, `internal`: the server's fault",
    ),
    ("reason", "see below"),
    (
        "route",
        "the route's template, such as `/predictions/{model}` or `/v1/models/{model}:predict`, or the path of a gRPC call; \
         `/predictions/{model} (stack)` for what is posted to a fitter (`task = \"localize\"`), apart since it takes as long as the client \
         sends; `other` if no route matched",
    ),
    (
        "stage",
        "`decode`: bytes to pixels and model input; `queue`: waiting for a device, also of jobs that a deadline or \
         their caller ended before they had an answer; `stage`: putting the batch \
         together; `compute`: running the model; `reply`: from the result to the end of the reply",
    ),
    ("state", "see the metric"),
    ("xid", "number of an Xid error in NVIDIA's catalogue"),
];

/// States and reasons are labels of several metrics, with their own words for each.
const STATES: &str = "\
States:\n\n\
- `ocelli_model_state`: `ready`, `loading`, `unavailable`\n\
- `ocelli_device_state`: `waiting` (not taken yet), `warming` (loading), `serving`, `suspect` (serving, but something \
points at a fault), `fenced` (given no work), `lost`\n\
\nReasons:\n\n\
- `ocelli_device_transitions_total`:\
\n  - `start`\
\n  - for taking it and giving it back: `taken`; `proved` (a forward pass has worked); `empty` (no model is to run there); `contended` \
(others use it); `turn` (other servers wait for it and came first); `memory` (too little is free, or others have it to themselves); \
`refused` (it cannot be used); `idle` (nobody needed it)\
\n  - for faults: `fault` (a call failed); `poisoned` (this process cannot use it again after such a call); `stuck` (a call does not \
come back); `xid`; `ecc`; `advice` (the driver's); `thermal`; `canary` (a forward pass failed); `bus` (it does not answer); `clean` \
(nothing pointed at a fault for a minute)\
\n  - by request: `drain`, `resume`\n\
- `ocelli_dropped_total`: `connection` (cut with a request on it), `job` (waiting, running or not decoded yet), `request` (it still came or was \
decoded, or it was a stack, answered as it came). Callers of jobs and requests get an error. The process ends within moments of counting \
them, so few scrapes have them. Its exit code is then 75, and its last line says how many were dropped. Log lines for each model say whose \
they were: `the model's work is dropped`, and `requests of the model are cut`\n\
- `ocelli_http_connections_ended_total`: `idle` (no request came), `header` (a request's header came too slowly), `stalled` \
(a reply was not taken: `reply_stall_ms`; over HTTP/2 only if no other reply was open, or nothing of any was taken), `evicted` (it was \
idle, and another waited for its place: `connections_max`)\n\
- `ocelli_failed_batches_total`, `ocelli_retried_jobs_total`: `input` (the model refused the batch: its jobs run alone), `out_of_memory` \
(the jobs run in smaller batches), `passing` (a CUDA graph was being recorded beside it: the jobs run once more), `device` (the jobs run \
elsewhere)\n\
- `ocelli_fallbacks_total`: `device_away` (no device that the model is meant for serves it now), `device_failed`, `out_of_memory` \
(of the device that had the job first)\n\
- `nv_inference_request_failure`: `REJECTED` (refused for a full queue, a deadline or a drain), `CANCELED` (the caller went \
away), `BACKEND` (the model or its device failed), `OTHER`\n\
- `ocelli_refused_total`: `requests` (as many are in flight as may be, or as many gRPC streams are open), `bytes` (the same for the bytes \
that they hold: of bodies, and of replies)\n";

/// The reference of metrics.
pub fn metrics_md() -> String {
    let mut register = Register::new();
    let metrics = Metrics::registered(&mut register, &[], "", "");
    let mut out = String::from(
        "# Metrics\n\n\
         <!-- Made from src/telemetry/metrics by `OCELLI_BLESS=1 cargo test --lib metrics`. -->\n\n\
         `GET /metrics` on the API, on the admin listener and at `metrics_listen` answers in Prometheus' text format 0.0.4. Units\n\
         are seconds, bytes and items. Every outcome of every model, and its wait for each device, is there from the start, at 0.\n\
         The other histograms of a device begin with its first batch, and those of a route, but for the class `answered`, with\n\
         the first request of their class. A model that has had requests on one device has some 180 series: 200 such models\n\
         made 2.9 MB a scrape.\n\n\
         The series of a model are there for as long as `GET /v2/models` lists it, even if it failed to load, and until the last\n\
         request that began with it has ended. Then they go, as Triton's do, so a server whose models come and go does not grow.\n\
         What was counted after the last scrape goes with them. A model that is loaded again begins at 0, which `rate` and\n\
         `increase` take for a restart. Loading a model anew while it serves, or another version of it, changes no counter.\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for metric in &register.described {
        let labels: Vec<_> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
        let _ =
            writeln!(out, "| `{}` | {} | {} | {} |", metric.name, metric.kind, labels.join(" "), metric.help);
    }
    for family in metrics.registry.gather() {
        if family.name().starts_with("process_") {
            let kind = match family.get_field_type() {
                MetricType::COUNTER => "counter",
                _ => "gauge",
            };
            let (name, help) = (family.name(), family.help());
            let _ = writeln!(out, "| `{name}` | {kind} | | {help} |");
        }
    }
    let bounds = |buckets: &[f64]| buckets.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
    let _ = writeln!(
        out,
        "\nBounds of the histograms (`le`), beside `+Inf`:\n\n\
         - `ocelli_http_request_duration_seconds`, `ocelli_stage_duration_seconds`: {}\n\
         - `ocelli_batch_items`: {}",
        bounds(&DURATION_BUCKETS),
        bounds(&batch_buckets())
    );
    out.push_str(
        "\n## Triton's names\n\n\
         These are on the admin listener and at `metrics_listen`, or where `triton_metrics` says, so that dashboards, autoscalers and\n\
         `perf_analyzer` find what they look for. Those of models are of each loaded version, since it was loaded.\n\n\
         A request is an inference request, however many batches it takes and however its reply comes; or an image of a prediction;\n\
         or a piece of a stack. It has succeeded once its reply is written. Of the steps of its batches, the longest count.\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for row in triton::ROWS {
        let triton::Row { name, kind, help, .. } = row;
        let labels: Vec<_> = row.labels().split_whitespace().map(|l| format!("`{l}`")).collect();
        let _ = writeln!(out, "| `{name}` | {kind} | {} | {help} |", labels.join(" "));
    }
    out.push_str("\n## Labels\n\n| label | meaning |\n|---|---|\n");
    for (label, meaning) in LABELS {
        let _ = writeln!(out, "| `{label}` | {meaning} |");
    }
    let _ = writeln!(out, "| `gpu_uuid` | UUID of a GPU |");
    let _ = writeln!(out, "| `version` | version of the model, or of the build |");
    let _ = write!(out, "\n{STATES}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_in_use_is_explained_and_no_other() {
        let mut register = Register::new();
        Metrics::registered(&mut register, &[], "", "");
        let mut used: Vec<_> = (register.described.iter())
            .flat_map(|metric| metric.labels.iter().map(String::as_str))
            .filter(|label| *label != "version")
            .collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used, LABELS.map(|(label, _)| label));
    }

    #[test]
    fn every_outcome_is_explained() {
        let (_, meaning) = LABELS.iter().find(|(label, _)| *label == "outcome").expect("a label");
        for outcome in super::super::Outcome::ALL {
            let name = format!("`{}`", outcome.name());
            assert!(meaning.contains(&name), "{name} is not in {meaning}");
        }
    }
}
