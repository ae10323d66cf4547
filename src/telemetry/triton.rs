//! Triton's metrics, in addition to the server's own, for dashboards, autoscalers and `perf_analyzer`, which look for
//! Triton's names.
//!
//! The text is written by hand, because readers of these metrics expect these names, this order of labels, and numbers
//! without an exponent. GPU metrics are left out on a machine without a GPU, and so are readings that a GPU does not
//! report.

use super::{
    host::Load,
    statistics::{Failure, Snapshot, Sum},
};
use std::fmt::Write;

/// One loaded version of a model.
#[derive(Debug)]
pub struct Version<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Its version.
    pub version: &'a str,
    /// Statistics of its requests.
    pub counts: Snapshot,
    /// Requests with at least a part still waiting.
    pub pending: usize,
}

/// A GPU. A reading that is `None` has no line.
#[derive(Debug, Clone, Copy)]
pub struct Gpu<'a> {
    /// Its UUID.
    pub uuid: &'a str,
    /// Fraction of time in use, 0 to 1.
    pub utilization: Option<f64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Bytes of memory that are not free.
    pub memory_used_bytes: Option<u64>,
    /// Watts.
    pub power_w: Option<f64>,
    /// Power limit in watts.
    pub power_limit_w: Option<f64>,
    /// Joules since the driver was loaded.
    pub energy_j: Option<f64>,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    of: Of,
    pub(super) help: &'static str,
}

/// What a metric describes, and the function for its value. Numbers up to 2^53 are written exactly.
#[derive(Debug, Clone, Copy)]
enum Of {
    Version(fn(&Version<'_>) -> f64),
    /// A version's failures, by reason.
    Failures,
    /// Left out if the machine does not report its load.
    Host(fn(&Load) -> f64),
    /// Left out without a GPU. A reading that a GPU does not report has no line.
    Gpu(fn(&Gpu<'_>) -> Option<f64>),
}

impl Row {
    /// Its labels, separated by spaces.
    pub(super) fn labels(self) -> &'static str {
        match self.of {
            Of::Version(_) => "model version",
            Of::Failures => "model reason version",
            Of::Host(_) => "",
            Of::Gpu(_) => "gpu_uuid",
        }
    }
}

const fn counter(name: &'static str, of: Of, help: &'static str) -> Row {
    Row { name, kind: "counter", of, help }
}

const fn gauge(name: &'static str, of: Of, help: &'static str) -> Row {
    Row { name, kind: "gauge", of, help }
}

/// All metrics, in the order in which they are written.
pub(super) const ROWS: [Row; 20] = [
    counter(
        "nv_inference_request_success",
        Of::Version(|v| v.counts.success.count as f64),
        "Requests that were answered.",
    ),
    counter("nv_inference_request_failure", Of::Failures, "Requests that were not answered."),
    counter("nv_inference_count", Of::Version(|v| v.counts.items as f64), "Items that were run."),
    counter("nv_inference_exec_count", Of::Version(|v| v.counts.executions as f64), "Batches that were run."),
    counter(
        "nv_inference_request_duration_us",
        Of::Version(|v| us(v.counts.success)),
        "Time from the queue to the reply, summed over all answered requests, in microseconds.",
    ),
    counter(
        "nv_inference_queue_duration_us",
        Of::Version(|v| us(v.counts.queue)),
        "Part of the request duration that was spent waiting for a device.",
    ),
    counter(
        "nv_inference_compute_input_duration_us",
        Of::Version(|v| us(v.counts.input)),
        "Part of the request duration that was spent assembling batches.",
    ),
    counter(
        "nv_inference_compute_infer_duration_us",
        Of::Version(|v| us(v.counts.infer)),
        "Part of the request duration that was spent running batches.",
    ),
    counter(
        "nv_inference_compute_output_duration_us",
        Of::Version(|v| us(v.counts.output)),
        "Part of the request duration that was spent writing replies.",
    ),
    gauge(
        "nv_inference_pending_request_count",
        Of::Version(|v| v.pending as f64),
        "Requests of which at least a part still waits.",
    ),
    gauge(
        "nv_model_load_duration_secs",
        Of::Version(|v| v.counts.load.as_secs_f64()),
        "How long it took to load the model.",
    ),
    gauge(
        "nv_cpu_utilization",
        Of::Host(|host| host.utilization),
        "Share of the processors' time that was in use since the last scrape.",
    ),
    gauge("nv_cpu_memory_total_bytes", Of::Host(|host| host.memory_bytes as f64), "Memory of the machine."),
    gauge(
        "nv_cpu_memory_used_bytes",
        Of::Host(|host| host.memory_used_bytes as f64),
        "Memory of the machine that is in use.",
    ),
    gauge(
        "nv_gpu_utilization",
        Of::Gpu(|gpu| gpu.utilization),
        "Share of time in which a kernel of any process ran on a GPU, 0 to 1.",
    ),
    gauge(
        "nv_gpu_memory_total_bytes",
        Of::Gpu(|gpu| gpu.memory_bytes.map(|bytes| bytes as f64)),
        "Memory of a GPU.",
    ),
    gauge(
        "nv_gpu_memory_used_bytes",
        Of::Gpu(|gpu| gpu.memory_used_bytes.map(|bytes| bytes as f64)),
        "Memory of a GPU that is not free.",
    ),
    gauge("nv_gpu_power_usage", Of::Gpu(|gpu| gpu.power_w), "Power that a GPU draws, in watts."),
    gauge(
        "nv_gpu_power_limit",
        Of::Gpu(|gpu| gpu.power_limit_w),
        "Power limit that the driver holds a GPU to, in watts.",
    ),
    counter(
        "nv_energy_consumption",
        Of::Gpu(|gpu| gpu.energy_j),
        "Energy that a GPU has used since its driver was loaded, in joules.",
    ),
];

/// Microseconds.
fn us(sum: Sum) -> f64 {
    (sum.ns / 1000) as f64
}

/// Appends the metrics in Prometheus' text format.
pub fn write(out: &mut String, versions: &[Version<'_>], host: Option<Load>, gpus: &[Gpu<'_>]) {
    for Row { name, kind, of, help } in ROWS {
        match of {
            Of::Host(_) if host.is_none() => continue,
            Of::Gpu(_) if gpus.is_empty() => continue,
            _ => _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}"),
        }
        match of {
            Of::Version(value) => {
                for version in versions {
                    let Version { model, version: number, .. } = version;
                    let labels = format_args!("{{model=\"{model}\",version=\"{number}\"}}");
                    line(out, name, labels, value(version));
                }
            }
            Of::Failures => {
                for Version { model, version, counts, .. } in versions {
                    for (failure, sum) in Failure::ALL.iter().zip(&counts.failures) {
                        let reason = failure.name();
                        let labels =
                            format_args!("{{model=\"{model}\",reason=\"{reason}\",version=\"{version}\"}}");
                        line(out, name, labels, sum.count as f64);
                    }
                }
            }
            Of::Host(value) => host.iter().for_each(|host| line(out, name, format_args!(""), value(host))),
            Of::Gpu(value) => {
                for (gpu, value) in gpus.iter().filter_map(|gpu| Some((gpu, value(gpu)?))) {
                    line(out, name, format_args!("{{gpu_uuid=\"{}\"}}", gpu.uuid), value);
                }
            }
        }
    }
}

/// Names of models contain nothing that a label would have to escape. `Display` writes numbers without an exponent.
fn line(out: &mut String, name: &str, labels: std::fmt::Arguments<'_>, value: f64) {
    let _ = writeln!(out, "{name}{labels} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::statistics::{Statistics, Steps};
    use std::time::Duration;

    fn written(host: Option<Load>) -> String {
        let statistics = Statistics::default();
        statistics.ran(4, Duration::from_micros(3), Duration::from_micros(50));
        let us = Duration::from_micros;
        let steps = Steps { queue: us(30), input: us(3), infer: us(50), output: us(7) };
        statistics.answered(us(90), steps);
        statistics.failed(Failure::Rejected, Duration::ZERO);
        statistics.loaded(Duration::from_millis(1500));
        let version = Version { model: "m", version: "2", counts: statistics.snapshot(), pending: 5 };
        let mut out = String::new();
        let gpu = Gpu {
            uuid: "GPU-1",
            utilization: Some(0.5),
            memory_bytes: Some(80),
            memory_used_bytes: None,
            power_w: Some(300.5),
            power_limit_w: Some(700.0),
            energy_j: Some(7.0),
        };
        write(&mut out, &[version], host, &[gpu]);
        out
    }

    #[test]
    fn lines_have_the_form_that_readers_of_these_names_expect() {
        let host = Load { utilization: 0.25, memory_bytes: 1 << 40, memory_used_bytes: 7 };
        let out = written(Some(host));
        for line in [
            "# TYPE nv_inference_request_success counter",
            "nv_inference_request_success{model=\"m\",version=\"2\"} 1",
            "nv_inference_request_failure{model=\"m\",reason=\"REJECTED\",version=\"2\"} 1",
            "nv_inference_request_failure{model=\"m\",reason=\"CANCELED\",version=\"2\"} 0",
            "nv_inference_count{model=\"m\",version=\"2\"} 4",
            "nv_inference_exec_count{model=\"m\",version=\"2\"} 1",
            "nv_inference_request_duration_us{model=\"m\",version=\"2\"} 90",
            "nv_inference_queue_duration_us{model=\"m\",version=\"2\"} 30",
            "nv_inference_compute_input_duration_us{model=\"m\",version=\"2\"} 3",
            "nv_inference_compute_infer_duration_us{model=\"m\",version=\"2\"} 50",
            "nv_inference_compute_output_duration_us{model=\"m\",version=\"2\"} 7",
            "nv_inference_pending_request_count{model=\"m\",version=\"2\"} 5",
            "nv_model_load_duration_secs{model=\"m\",version=\"2\"} 1.5",
            "nv_cpu_utilization 0.25",
            "nv_cpu_memory_total_bytes 1099511627776",
            "nv_cpu_memory_used_bytes 7",
            "nv_gpu_utilization{gpu_uuid=\"GPU-1\"} 0.5",
            "nv_gpu_memory_total_bytes{gpu_uuid=\"GPU-1\"} 80",
            "nv_gpu_power_usage{gpu_uuid=\"GPU-1\"} 300.5",
            "nv_gpu_power_limit{gpu_uuid=\"GPU-1\"} 700",
            "nv_energy_consumption{gpu_uuid=\"GPU-1\"} 7",
        ] {
            assert!(out.lines().any(|got| got == line), "{line} is not in\n{out}");
        }
    }

    #[test]
    fn every_name_has_its_lines_and_a_machine_that_tells_nothing_has_none() {
        let out = written(None);
        for row in ROWS {
            let there = out.lines().any(|line| line.starts_with(row.name));
            let told = !matches!(row.of, Of::Host(_)) && row.name != "nv_gpu_memory_used_bytes";
            assert_eq!(there, told, "{row:?}\n{out}");
        }
    }
}
