//! A model's statistics in the form that Triton's clients read. Every member is always present, because `perf_analyzer` uses them without
//! checking.

use crate::telemetry::statistics::{Held, Snapshot, Sum};
use serde_json::{Value, json};

/// One entry of `model_stats`. `held` is what the model holds on GPUs now; its host memory is not measured.
pub fn entry(name: &str, version: &str, counts: &Snapshot, held: &[Held]) -> Value {
    let sum = |Sum { count, ns }: Sum| json!({ "count": count, "ns": ns });
    let batches: Vec<Value> = counts
        .batches
        .iter()
        .map(|(items, batch)| {
            let step = |ns| sum(Sum { count: batch.count, ns });
            json!({
                "batch_size": items,
                "compute_input": step(batch.input_ns),
                "compute_infer": step(batch.infer_ns),
                "compute_output": step(batch.output_ns),
            })
        })
        .collect();
    let usage = |Held { ordinal, bytes }: &Held| json!({ "type": "GPU", "id": ordinal, "byte_size": bytes });
    json!({
        "name": name,
        "version": version,
        "last_inference": counts.last_ms,
        "inference_count": counts.items,
        "execution_count": counts.executions,
        "inference_stats": {
            "success": sum(counts.success),
            "fail": sum(counts.fail()),
            "queue": sum(counts.queue),
            "compute_input": sum(counts.input),
            "compute_infer": sum(counts.infer),
            "compute_output": sum(counts.output),
            // Answers are not cached.
            "cache_hit": sum(Sum::default()),
            "cache_miss": sum(Sum::default()),
        },
        "response_stats": {},
        "batch_stats": batches,
        "memory_usage": held.iter().map(usage).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::statistics::{Statistics, Steps};
    use std::time::Duration;

    #[test]
    fn all_members_are_there_before_the_first_request_and_after() {
        let statistics = Statistics::default();
        for expected in [0, 1] {
            let entry = entry("m", "3", &statistics.snapshot(), &[]);
            let durations = entry["inference_stats"].as_object().expect("an object");
            assert_eq!(durations.len(), 8);
            assert!(durations.values().all(|sum| sum["count"].is_u64() && sum["ns"].is_u64()), "{entry}");
            assert_eq!(entry["inference_stats"]["success"]["count"], expected);
            assert_eq!((&entry["name"], &entry["version"]), (&"m".into(), &"3".into()));
            assert_eq!(entry["batch_stats"].as_array().map(Vec::len), Some(expected));
            let zero = Duration::ZERO;
            statistics.ran(4, zero, Duration::from_nanos(9));
            statistics.answered(zero, Steps::default());
        }
        let entry = entry("m", "3", &statistics.snapshot(), &[Held { ordinal: 2, bytes: 700 }]);
        assert_eq!(entry["memory_usage"], json!([{ "type": "GPU", "id": 2, "byte_size": 700 }]));
        assert_eq!(entry["batch_stats"][0]["batch_size"], 4);
        assert_eq!(entry["batch_stats"][0]["compute_infer"], json!({ "count": 2, "ns": 18 }));
    }
}
