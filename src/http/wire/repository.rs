//! The bodies of repository control: all optional, and read strictly, since what is overlooked there would be believed.

use super::{bad_json, clipped};
use crate::{
    error::InferError,
    models::{Overrides, manifest::PRIORITY_MAX},
};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::time::Duration;

/// Items of the largest batch and instances of a model, at most, as manifests have them.
const ITEMS_MAX: u64 = 1024;
const INSTANCES_MAX: u64 = 64;
const WAIT_US_MAX: u64 = 10_000_000;
const TIMEOUT_US_MAX: u64 = 3_600_000_000;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    #[serde(default)]
    ready: bool,
}

#[derive(Default, Deserialize)]
struct Control {
    #[serde(default)]
    parameters: Map<String, Value>,
}

/// Whether the index shall have only what takes requests.
///
/// # Errors
/// 400 for what is no such body.
pub fn only_ready(body: &[u8]) -> Result<bool, InferError> {
    let index: Index = parse(body)?;
    Ok(index.ready)
}

/// Checks the body of an unload. No model depends on another here, so that `unload_dependents` asks for nothing.
///
/// # Errors
/// 400 for parameters that are not known.
pub fn unload(body: &[u8]) -> Result<(), InferError> {
    let control: Control = parse(body)?;
    match control.parameters.iter().find(|(name, value)| *name != "unload_dependents" || !value.is_boolean())
    {
        None => Ok(()),
        Some((name, value)) => Err(bad(format!(
            "parameter {:?} is {}; the only one is unload_dependents, true or false",
            clipped(name),
            clipped(&value.to_string())
        ))),
    }
}

/// What a load asks to change. `current` is the configuration of the model that serves: members that repeat it are taken.
///
/// # Errors
/// 400 naming what cannot be changed, or is out of its range.
pub fn overrides(body: &[u8], name: &str, current: Option<&Value>) -> Result<Overrides, InferError> {
    let control: Control = parse(body)?;
    let mut overrides = Overrides::default();
    for (parameter, value) in &control.parameters {
        match (parameter.as_str(), value) {
            ("config", Value::String(text)) => {
                let config: Map<String, Value> =
                    serde_json::from_str(text).map_err(|error| bad_json("the parameter config", &error))?;
                overrides = read(&config, name, current)?;
            }
            ("config", _) => return Err(bad("the parameter config must be a string that holds JSON".into())),
            (file, _) if file.starts_with("file:") => {
                return Err(bad(format!(
                    "parameter {:?}: model files are not taken from requests; put them into the model folder",
                    clipped(file)
                )));
            }
            (other, _) => {
                return Err(bad(format!("parameter {:?} is not known; there is config", clipped(other))));
            }
        }
    }
    Ok(overrides)
}

/// A whole number at a path of a configuration, which may also be text, as protobuf's JSON has large ones.
struct Number<'a>(&'a str, &'a Value);

impl Number<'_> {
    fn within(&self, min: u64, max: u64) -> Result<u64, InferError> {
        let Number(path, value) = self;
        let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
        number.filter(|number| (min..=max).contains(number)).ok_or_else(|| {
            bad(format!("config: {path} is {}, expected {min} to {max}", clipped(&value.to_string())))
        })
    }
}

fn read(config: &Map<String, Value>, name: &str, current: Option<&Value>) -> Result<Overrides, InferError> {
    let mut overrides = Overrides::default();
    for (member, value) in config {
        let same = current.and_then(|current| current.get(member)) == Some(value);
        match member.as_str() {
            _ if same => {}
            "name" if value.as_str() == Some(name) => {}
            "platform" if value.as_str() == Some("onnxruntime_onnx") => {}
            "backend" if value.as_str() == Some("onnxruntime") => {}
            "max_batch_size" => {
                overrides.items_max = Some(Number(member, value).within(1, ITEMS_MAX)? as usize);
            }
            "dynamic_batching" => {
                batching(object(member, value)?, current.and_then(|c| c.get(member)), &mut overrides)?;
            }
            "instance_group" => overrides.instances = Some(instances(value)?),
            other => {
                return Err(bad(format!(
                    "config: {:?} cannot be changed while the server runs; what can: max_batch_size, dynamic_batching, \
                     instance_group (others may stand there as GET /v2/models/{name}/config has them)",
                    clipped(other)
                )));
            }
        }
    }
    Ok(overrides)
}

fn batching(
    members: &Map<String, Value>,
    current: Option<&Value>,
    overrides: &mut Overrides,
) -> Result<(), InferError> {
    for (member, value) in members {
        let path = format!("dynamic_batching.{member}");
        match member.as_str() {
            "preferred_batch_size" => {
                let list = value.as_array().filter(|list| !list.is_empty());
                let list = list.ok_or_else(|| bad(format!("config: {path} must be a list of sizes")))?;
                let sizes = list.iter().map(|size| Ok(Number(&path, size).within(1, ITEMS_MAX)? as usize));
                let mut sizes = sizes.collect::<Result<Vec<_>, InferError>>()?;
                sizes.sort_unstable();
                sizes.dedup();
                overrides.sizes = Some(sizes);
            }
            "max_queue_delay_microseconds" => {
                overrides.wait_max =
                    Some(Duration::from_micros(Number(&path, value).within(0, WAIT_US_MAX)?));
            }
            "default_priority_level" => {
                // The protocol counts from 1.
                let level = Number(&path, value).within(1, u64::from(PRIORITY_MAX) + 1)?;
                overrides.priority = Some((level - 1) as u8);
            }
            "default_queue_policy" => {
                let current = current.and_then(|current| current.get(member));
                for (inner, value) in object(&path, value)? {
                    let path = format!("{path}.{inner}");
                    if inner == "default_timeout_microseconds" {
                        let us = Number(&path, value).within(1000, TIMEOUT_US_MAX)?;
                        overrides.timeout = Some(Duration::from_micros(us));
                    } else {
                        repeats(&path, value, current.and_then(|current| current.get(inner)))?;
                    }
                }
            }
            _ => repeats(&path, value, current.and_then(|current| current.get(member)))?,
        }
    }
    Ok(())
}

/// One group, on the CPU or wherever we like.
fn instances(value: &Value) -> Result<usize, InferError> {
    let Some([group]) = value.as_array().map(Vec::as_slice) else {
        return Err(bad("config: instance_group must have one group".into()));
    };
    let mut count = 1;
    for (member, value) in object("instance_group", group)? {
        match member.as_str() {
            "count" => count = Number("instance_group.count", value).within(1, INSTANCES_MAX)?,
            "kind" if matches!(value.as_str(), Some("KIND_CPU" | "KIND_AUTO")) => {}
            "name" => {}
            "gpus" if value.as_array().is_some_and(Vec::is_empty) => {}
            other => {
                let value = value.to_string();
                return Err(bad(format!(
                    "config: instance_group.{} is {}, which is not supported; count is, and kind KIND_CPU or KIND_AUTO",
                    clipped(other),
                    clipped(&value)
                )));
            }
        }
    }
    Ok(count as usize)
}

fn repeats(path: &str, value: &Value, current: Option<&Value>) -> Result<(), InferError> {
    if current == Some(value) {
        return Ok(());
    }
    Err(bad(format!("config: {path} = {} is not supported", clipped(&value.to_string()))))
}

fn object<'a>(path: &str, value: &'a Value) -> Result<&'a Map<String, Value>, InferError> {
    value.as_object().ok_or_else(|| bad(format!("config: {path} must be an object")))
}

/// A body that may also be absent.
fn parse<T: Default + for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, InferError> {
    if body.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(body).map_err(|error| bad_json("the body", &error))
}

fn bad(what: String) -> InferError {
    InferError::BadRequest(what)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use serde_json::json;

    fn config(config: &Value, current: Option<&Value>) -> Result<Overrides, InferError> {
        let body = json!({ "parameters": { "config": config.to_string() } });
        overrides(body.to_string().as_bytes(), "m", current)
    }

    fn refuses(config_: &Value, told: &str) {
        let error = config(config_, None).unwrap_err().to_string();
        assert!(error.contains(told), "{error} lacks {told}");
    }

    #[test]
    fn what_can_be_changed_is_read() {
        assert_eq!(overrides(b"", "m", None), Ok(Overrides::default()));
        let got = config(
            &json!({
                "name": "m", "backend": "onnxruntime", "max_batch_size": "8",
                "dynamic_batching": {
                    "preferred_batch_size": [4, 2], "max_queue_delay_microseconds": 500, "default_priority_level": 1,
                    "default_queue_policy": { "default_timeout_microseconds": "2000000" }
                },
                "instance_group": [{ "count": 2, "kind": "KIND_CPU" }]
            }),
            None,
        );
        let expected = Overrides {
            items_max: Some(8),
            sizes: Some(vec![2, 4]),
            wait_max: Some(Duration::from_micros(500)),
            instances: Some(2),
            priority: Some(0),
            timeout: Some(Duration::from_secs(2)),
        };
        assert_eq!(got, Ok(expected));
    }

    #[test]
    fn what_cannot_be_changed_may_be_repeated_and_is_refused_by_name_otherwise() {
        let current =
            json!({ "input": [{ "name": "x" }], "dynamic_batching": { "preserve_ordering": false } });
        assert_eq!(config(&current, Some(&current)), Ok(Overrides::default()));
        let other = json!({ "input": [{ "name": "y" }] });
        let told = config(&other, Some(&current)).unwrap_err().to_string();
        assert!(told.contains("\"input\" cannot be changed"), "{told}");
        refuses(&json!({ "name": "n" }), "\"name\"");
        refuses(&json!({ "max_batch_size": 0 }), "expected 1 to 1024");
        refuses(&json!({ "ensemble_scheduling": {} }), "ensemble_scheduling");
        refuses(&json!({ "dynamic_batching": { "preserve_ordering": true } }), "preserve_ordering = true");
        refuses(&json!({ "instance_group": [{ "kind": "KIND_GPU" }] }), "instance_group.kind");
        let file = br#"{"parameters":{"file:1/model.onnx":"AAAA"}}"#;
        assert!(overrides(file, "m", None).unwrap_err().to_string().contains("model folder"));
        assert!(overrides(br#"{"parameters":{"x":1}}"#, "m", None).is_err());
        assert!(overrides(br#"{"parameters":{"config":1}}"#, "m", None).is_err());
    }

    #[test]
    fn other_bodies_are_refused() {
        assert_eq!((only_ready(b""), only_ready(br#"{"ready":true}"#)), (Ok(false), Ok(true)));
        assert!(only_ready(br#"{"redy":true}"#).is_err());
        assert_eq!(unload(br#"{"parameters":{"unload_dependents":true}}"#), Ok(()));
        assert!(unload(br#"{"parameters":{"other":true}}"#).is_err());
    }
}
