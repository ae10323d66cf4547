//! Triton's metrics beside our own, for dashboards, autoscalers and `perf_analyzer` that look for its names.
//!
//! Written by hand: names, labels and their order, and numbers without an exponent are what readers of these metrics were
//! made for. What is about GPUs is left out on a machine without one, and what a GPU does not tell.

use super::{
    host::Load,
    statistics::{Failure, Snapshot},
};
use std::fmt::{Display, Write};

/// One loaded version of a model.
#[derive(Debug)]
pub struct Version<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Its version.
    pub version: &'a str,
    /// What became of its requests.
    pub counts: Snapshot,
    /// Requests of which something waits.
    pub pending: usize,
}

/// Name, type, labels, meaning.
type Row = (&'static str, &'static str, &'static str, &'static str);

/// All of them, in the order in which they are written.
pub(super) const ROWS: [Row; 14] = [
    ("nv_inference_request_success", "counter", "model version", "Requests that were answered."),
    ("nv_inference_request_failure", "counter", "model reason version", "Requests that were not."),
    ("nv_inference_count", "counter", "model version", "Items that were run."),
    ("nv_inference_exec_count", "counter", "model version", "Batches that were run."),
    (
        "nv_inference_request_duration_us",
        "counter",
        "model version",
        "From the queue to the reply, all answered requests together, in microseconds.",
    ),
    ("nv_inference_queue_duration_us", "counter", "model version", "Of these, waiting for a device."),
    (
        "nv_inference_compute_input_duration_us",
        "counter",
        "model version",
        "Of these, putting batches together.",
    ),
    ("nv_inference_compute_infer_duration_us", "counter", "model version", "Of these, running batches."),
    ("nv_inference_compute_output_duration_us", "counter", "model version", "Of these, writing replies."),
    ("nv_inference_pending_request_count", "gauge", "model version", "Requests of which something waits."),
    ("nv_model_load_duration_secs", "gauge", "model version", "How long it took to load the model."),
    (
        "nv_cpu_utilization",
        "gauge",
        "",
        "Part of the processors' time that was in use since the last scrape.",
    ),
    ("nv_cpu_memory_total_bytes", "gauge", "", "Memory of the machine."),
    ("nv_cpu_memory_used_bytes", "gauge", "", "Memory of the machine that is in use."),
];

/// Those of GPUs, likewise; left out where there is none.
pub(super) const GPU_ROWS: [Row; 6] = [
    (
        "nv_gpu_utilization",
        "gauge",
        "gpu_uuid",
        "Part of a GPU's time in which a kernel of anybody ran, 0 to 1.",
    ),
    ("nv_gpu_memory_total_bytes", "gauge", "gpu_uuid", "Memory of a GPU."),
    ("nv_gpu_memory_used_bytes", "gauge", "gpu_uuid", "Memory of a GPU that is not free."),
    ("nv_gpu_power_usage", "gauge", "gpu_uuid", "Power that a GPU draws, in watts."),
    ("nv_gpu_power_limit", "gauge", "gpu_uuid", "Power that its driver holds a GPU to, in watts."),
    (
        "nv_energy_consumption",
        "counter",
        "gpu_uuid",
        "Energy that a GPU took since its driver was loaded, in joules.",
    ),
];

/// A GPU; what is not told has no line.
#[derive(Debug, Clone, Copy)]
pub struct Gpu<'a> {
    /// Its UUID.
    pub uuid: &'a str,
    /// Part of its time in use, 0 to 1.
    pub utilization: Option<f64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Bytes of it that are not free.
    pub memory_used_bytes: Option<u64>,
    /// Watts.
    pub power_w: Option<f64>,
    /// Watts that it is held to.
    pub power_limit_w: Option<f64>,
    /// Joules since the driver was loaded.
    pub energy_j: Option<f64>,
}

/// Appends the metrics in Prometheus' text format.
pub fn write(out: &mut String, versions: &[Version<'_>], host: Option<Load>, gpus: &[Gpu<'_>]) {
    write_all(out, versions, host);
    for (name, kind, _, help) in GPU_ROWS {
        if gpus.is_empty() {
            return;
        }
        head(out, name, kind, help);
        for gpu in gpus {
            let value: Option<&dyn Display> = match name {
                "nv_gpu_utilization" => gpu.utilization.as_ref().map(|value| value as _),
                "nv_gpu_memory_total_bytes" => gpu.memory_bytes.as_ref().map(|value| value as _),
                "nv_gpu_memory_used_bytes" => gpu.memory_used_bytes.as_ref().map(|value| value as _),
                "nv_gpu_power_usage" => gpu.power_w.as_ref().map(|value| value as _),
                "nv_gpu_power_limit" => gpu.power_limit_w.as_ref().map(|value| value as _),
                _ => gpu.energy_j.as_ref().map(|value| value as _),
            };
            if let Some(value) = value {
                line(out, name, format_args!("{{gpu_uuid=\"{}\"}}", gpu.uuid), value);
            }
        }
    }
}

fn write_all(out: &mut String, versions: &[Version<'_>], host: Option<Load>) {
    for (name, kind, labels, help) in ROWS {
        if labels.is_empty() {
            let Some(host) = host else { continue };
            let value: &dyn Display = match name {
                "nv_cpu_utilization" => &host.utilization,
                "nv_cpu_memory_total_bytes" => &host.memory_bytes,
                _ => &host.memory_used_bytes,
            };
            head(out, name, kind, help);
            line(out, name, format_args!(""), value);
            continue;
        }
        head(out, name, kind, help);
        for Version { model, version, counts, pending } in versions {
            let labels = format_args!("{{model=\"{model}\",version=\"{version}\"}}");
            let value: &dyn Display = match name {
                "nv_inference_request_failure" => {
                    for (failure, sum) in Failure::ALL.iter().zip(&counts.failures) {
                        let reason = failure.name();
                        let labels =
                            format_args!("{{model=\"{model}\",reason=\"{reason}\",version=\"{version}\"}}");
                        line(out, name, labels, &sum.count);
                    }
                    continue;
                }
                "nv_inference_request_success" => &counts.success.count,
                "nv_inference_count" => &counts.items,
                "nv_inference_exec_count" => &counts.executions,
                "nv_inference_request_duration_us" => &(counts.success.ns / 1000),
                "nv_inference_queue_duration_us" => &(counts.queue.ns / 1000),
                "nv_inference_compute_input_duration_us" => &(counts.input.ns / 1000),
                "nv_inference_compute_infer_duration_us" => &(counts.infer.ns / 1000),
                "nv_inference_compute_output_duration_us" => &(counts.output.ns / 1000),
                "nv_inference_pending_request_count" => pending,
                _ => &counts.load.as_secs_f64(),
            };
            line(out, name, labels, value);
        }
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Names of models hold nothing that a label would have to escape. `Display` writes numbers without an exponent.
fn line(out: &mut String, name: &str, labels: std::fmt::Arguments<'_>, value: &dyn Display) {
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
        let steps = Steps { queue: us(30), input: us(3), infer: us(50), output: us(0) };
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
        for (name, _, labels, _) in ROWS {
            let there = out.lines().any(|line| line.starts_with(name));
            assert_eq!(there, !labels.is_empty(), "{name}\n{out}");
        }
    }
}
