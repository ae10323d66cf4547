//! Devices as JSON.

use crate::status::{Device, HeldModel, THROTTLES};
use serde_json::{Value, json};
use std::time::Instant;

/// One device. Unknown values are `null`.
pub fn device(device: &Device, now: Instant) -> Value {
    let seen = &device.seen;
    let processes = seen.processes.as_ref().map(|list| {
        list.iter().map(|(pid, bytes)| json!({ "pid": pid, "memory_bytes": bytes })).collect::<Vec<_>>()
    });
    let throttled = seen.throttled.map(|lowered| {
        let by = THROTTLES.into_iter().zip(lowered).filter(|(_, lowered)| *lowered);
        by.map(|(kind, _)| kind).collect::<Vec<_>>()
    });
    let refused = |(model, reason): &(String, String)| json!({ "model": model, "reason": reason });
    let model = |model: &HeldModel| {
        let batch = |(items, bytes, staging): &(usize, u64, Option<u64>)| json!({ "items": items, "bytes": bytes, "staging_bytes": staging });
        json!({
            "model": model.name,
            "version": model.version,
            "instances": model.instances,
            "instances_max": model.instances_max,
            "weights_bytes": model.weights_bytes,
            "batches": model.batches.iter().map(batch).collect::<Vec<_>>(),
            "frames_bytes": model.frames_bytes,
        })
    };
    json!({
        "id": device.id,
        "name": seen.name,
        "state": device.state.name(),
        "cause": device.cause.name(),
        "reason": device.reason,
        "since_s": now.saturating_duration_since(device.since).as_secs_f64(),
        "drained": device.drained,
        "verdict": seen.verdict,
        "no_networks": seen.no_networks,
        "models": seen.models.iter().map(model).collect::<Vec<_>>(),
        "refused_models": seen.refused.iter().map(refused).collect::<Vec<_>>(),
        "waited_s": seen.waited.as_secs_f64(),
        "memory": {
            "total_bytes": seen.memory_bytes,
            "free_bytes": seen.memory_free_bytes,
            "own_bytes": seen.memory_own_bytes,
            "others_bytes": seen.others_bytes,
            "needed_bytes": seen.memory_needed_bytes,
        },
        "other_processes": processes,
        "utilization_percent": seen.utilization_percent,
        "temperature_c": seen.temperature_c,
        "slowdown_c": seen.slowdown_c,
        "shutdown_c": seen.shutdown_c,
        "throttled": throttled,
        "power_w": seen.power_w,
        "power_limit_w": seen.power_limit_w,
        "ecc_corrected": seen.ecc_corrected,
        "ecc_uncorrected": seen.ecc_uncorrected,
        "pcie_replays": seen.pcie_replays,
        "mig": seen.mig,
    })
}

/// All devices, and why there are no GPUs, or not all of them.
pub fn devices(all: &[Device], no_gpu: &[String], now: Instant) -> Value {
    json!({ "devices": all.iter().map(|one| device(one, now)).collect::<Vec<_>>(), "no_gpu": no_gpu })
}
