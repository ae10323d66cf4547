//! `instance_group`: where the instances of a model run, and how that is reported.

use super::findings::Findings;
use crate::{
    models::manifest::{INSTANCES_MAX, Placing},
    protocol::inference::{ModelInstanceGroup, model_instance_group::Kind},
};

/// Where instances run: on the devices of all groups, each with the number of instances of the largest group.
pub(super) fn placement(told: &mut Findings, groups: &[ModelInstanceGroup]) -> Placing {
    let mut placing = Placing {
        devices: Vec::new(),
        instances: 1,
        memory_bytes_max: None,
        fallback: None,
        exclusive: false,
    };
    let mut anywhere = groups.is_empty();
    for (index, group) in groups.iter().enumerate() {
        let at = format!("instance_group[{index}]");
        if index > 0 && group.count.max(1) != groups[0].count.max(1) {
            told.note(format!("{at}.count: every device gets the instances of the largest group"));
        }
        placing.instances = placing.instances.max(instances(told, &at, group));
        let kind = group.kind();
        if kind == Kind::Model {
            told.note(format!(
                "{at}.kind: a model of ONNX names no devices itself, so KIND_MODEL is KIND_AUTO"
            ));
        }
        match kind {
            Kind::Cpu if !group.gpus.is_empty() => {
                told.wrong(format!("{at} has gpus, which KIND_CPU does not take"));
            }
            Kind::Cpu => placing.devices.push("cpu".to_owned()),
            Kind::Gpu if group.gpus.is_empty() => placing.devices.push("gpu".to_owned()),
            Kind::Auto | Kind::Model if group.gpus.is_empty() => anywhere = true,
            Kind::Gpu | Kind::Auto | Kind::Model => {
                for gpu in &group.gpus {
                    if !(0..=999).contains(gpu) {
                        told.wrong(format!("{at}.gpus holds {gpu}, allowed: 0 to 999"));
                    }
                    placing.devices.push(format!("gpu:{gpu}"));
                }
                if kind != Kind::Gpu {
                    placing.devices.push("cpu".to_owned());
                }
            }
        }
    }
    if anywhere {
        placing.devices.clear();
    }
    placing.devices.sort();
    placing.devices.dedup();
    placing
}

/// Instances per device.
pub(super) fn instances(told: &mut Findings, at: &str, group: &ModelInstanceGroup) -> usize {
    // 0 means not given.
    let count = if group.count == 0 { 1 } else { group.count };
    told.within(&format!("{at}.count"), count, 1, INSTANCES_MAX)
}

/// The kinds that `instance_group` may name for a placement. The first is the one that is reported. As in Triton, it is never
/// `KIND_AUTO`, which clients do not know and gRPC's JSON omits, but what that resolves to here.
pub fn kinds(placing: &Placing, may_use_gpu: bool) -> &'static [&'static str] {
    let devices = &placing.devices;
    let on_cpu = devices.iter().filter(|device| *device == "cpu").count();
    if !devices.is_empty() && on_cpu == 0 {
        &["KIND_GPU"]
    } else if !devices.is_empty() && on_cpu == devices.len() {
        &["KIND_CPU"]
    } else if may_use_gpu {
        &["KIND_GPU", "KIND_AUTO"]
    } else {
        &["KIND_CPU", "KIND_AUTO"]
    }
}

/// The kind and the GPU numbers that are reported for a placement. `KIND_CPU` has none, even if the author names GPUs beside the CPU.
pub fn told_placement(placing: &Placing, may_use_gpu: bool) -> (&'static str, Vec<i32>) {
    match kinds(placing, may_use_gpu)[0] {
        "KIND_CPU" => ("KIND_CPU", Vec::new()),
        kind => (kind, gpus(placing)),
    }
}

/// The numbers of a placement's GPUs. GPUs given by UUID or by a pattern are not included.
pub fn gpus(placing: &Placing) -> Vec<i32> {
    let number = |device: &String| device.strip_prefix("gpu:").unwrap_or(device).parse().ok();
    placing.devices.iter().filter_map(number).collect()
}
