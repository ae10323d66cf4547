//! Reads the configuration in a load request: some members change the model, the others may only repeat its current values.

use super::{
    OPTIMIZATION, alone,
    backend::{self, BACKEND, PLATFORM},
    findings::Findings,
    groups, map, message,
    queue::Queueing,
    said_of_optimization, says_as,
    text::{MAX_BATCH_SIZE, definition},
    verdict,
};
use crate::{
    models::{Overrides, manifest::ITEMS_MAX},
    protocol::inference::{ModelConfig, model_config::SchedulingChoice},
    words::clipped,
};
use serde_json::{Map, Value};

const RESPONSE_CACHE: &str = "response_cache";

/// Reads a configuration, [named as defined](super::as_defined), as changes to the model `name`. `current` is the configuration of
/// the model being served: members that repeat it are accepted. If none is being served, they are compared once the model is loaded.
///
/// # Errors
/// A member that does not exist, has the wrong type, cannot be changed, or is out of range.
pub fn overrides(
    config: Map<String, Value>,
    name: &str,
    current: Option<&Value>,
) -> Result<Overrides, String> {
    let mut overrides = Overrides::default();
    let mut changed = Map::new();
    for (member, value) in config {
        let has = current.and_then(|current| current.get(&member));
        let same = has.is_some_and(|has| says_as(&member, &value, has));
        // 0 repeats that the model does not batch: there is nothing to change.
        let none = member == MAX_BATCH_SIZE && value == 0 && (same || current.is_none());
        match member.as_str() {
            // Applied even if the value is current: an earlier load may have set it, and this load starts from the folder.
            MAX_BATCH_SIZE | "dynamic_batching" | "instance_group" | "version_policy" if !none => {
                alone(&member, &value)?;
                changed.insert(member, value);
            }
            OPTIMIZATION | RESPONSE_CACHE => {
                let message = alone(&member, &value)?;
                overrides.notes.extend(verdict::judge(&message)?);
                let config: ModelConfig = message.transcode_to().map_err(|error| error.to_string())?;
                let mut told = Findings::default();
                backend::accelerators(&mut told, config.optimization.as_ref());
                overrides.notes.extend(told.into_notes()?);
                overrides.optimization.extend(said_of_optimization(&message)?);
            }
            _ if same => {}
            "name" if value == name => {}
            "platform" if value == PLATFORM => {}
            "backend" if value == BACKEND => {}
            other
                if current.is_none()
                    && other != "name"
                    && definition().get_field_by_name(other).is_some() =>
            {
                // A value that no model can have is refused here, without loading the model to compare.
                verdict::judge(&alone(other, &value)?)?;
                overrides.repeated.insert(member, value);
            }
            other => {
                return Err(format!(
                    "{:?} cannot be changed while the server runs; what can: max_batch_size, dynamic_batching, instance_group, \
                     version_policy, optimization (others may stand there as GET /v2/models/{name}/config has them)",
                    clipped(other)
                ));
            }
        }
    }
    change(&mut overrides, changed)?;
    Ok(overrides)
}

/// Applies the changed members. A setting that would have no effect is refused.
fn change(overrides: &mut Overrides, changed: Map<String, Value>) -> Result<(), String> {
    let message = message(definition(), changed.clone())?;
    let config: ModelConfig = message.transcode_to().map_err(|error| error.to_string())?;
    let mut told = Findings::default();
    for vain in verdict::judge(&message)? {
        told.wrong(format!("{vain}: leave it out"));
    }
    let changed = Value::Object(changed);
    // The message cannot distinguish a missing member from one that is 0; the JSON can.
    let said = |path: &str| changed.pointer(path).is_some_and(|value| !value.is_null());
    if said("/max_batch_size") {
        overrides.items_max = Some(told.within(MAX_BATCH_SIZE, config.max_batch_size, 1, ITEMS_MAX));
    }
    if let Some(SchedulingChoice::DynamicBatching(dynamic)) = &config.scheduling_choice {
        overrides.merges = true;
        if said("/dynamic_batching/preferred_batch_size") {
            let preferred = dynamic.preferred_batch_size.iter();
            let at = "dynamic_batching.preferred_batch_size";
            let mut sizes: Vec<_> = preferred.map(|size| told.within(at, *size, 1, ITEMS_MAX)).collect();
            sizes.sort_unstable();
            sizes.dedup();
            overrides.sizes = Some(sizes);
        }
        if said("/dynamic_batching/max_queue_delay_microseconds") {
            overrides.wait_max = Some(map::wait_max(&mut told, dynamic));
        }
        let queueing = Queueing::of(dynamic, &changed["dynamic_batching"]);
        overrides.queue = Some(queueing).filter(|queueing| *queueing != Queueing::default());
    }
    match &config.instance_group[..] {
        [] if !said("/instance_group") => {}
        [group] => {
            overrides.instances = Some(groups::instances(&mut told, "instance_group", group));
            overrides.kind = said("/instance_group/0/kind").then(|| group.kind().as_str_name().to_owned());
            overrides.gpus = said("/instance_group/0/gpus").then(|| group.gpus.iter().copied().collect());
        }
        groups => told.wrong(format!("instance_group has {} groups, expected one", groups.len())),
    }
    if said("/version_policy") {
        overrides.versions = Some(map::versions(&mut told, config.version_policy.as_ref()));
    }
    told.into_none()
}
