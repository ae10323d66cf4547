//! The bodies of repository control: all optional, and read strictly, since what is overlooked there would be believed.

use super::{bad_json, clipped};
use crate::{
    error::InferError,
    models::{Change, Given, Overrides, manifest::PRIORITY_MAX, triton},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap, time::Duration};

/// Items of the largest batch and instances of a model, at most, as manifests have them.
const ITEMS_MAX: u64 = 1024;
const INSTANCES_MAX: u64 = 64;
const WAIT_US_MAX: u64 = 10_000_000;
/// What stands before a file's name.
const FILE: &str = "file:";

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    #[serde(default)]
    ready: bool,
}

#[derive(Default, Deserialize)]
struct Control<P> {
    #[serde(default)]
    parameters: P,
}

/// Text where it lies, unless something in it is escaped.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

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
    let control: Control<Map<String, Value>> = parse(body)?;
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

/// What a load brings, whatever it came by.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Load {
    config: Option<String>,
    files: Vec<(String, Bytes)>,
}

impl Load {
    /// Reads the body of a load over HTTP: files are in base64.
    ///
    /// # Errors
    /// 400 for parameters that are not known, and files that are no base64.
    pub fn of_body(body: &[u8]) -> Result<Load, InferError> {
        let control: Control<BTreeMap<Cow<'_, str>, &RawValue>> = parse(body)?;
        let mut load = Load::default();
        for (name, value) in control.parameters {
            let text = serde_json::from_str::<Text<'_>>(value.get()).ok();
            match (name.strip_prefix(FILE), text) {
                (Some(_), None) => return Err(not_a_file(&name)),
                (Some(_), Some(Text(base64))) => {
                    let bytes = BASE64_STANDARD.decode(&*base64).map_err(|_| not_a_file(&name))?;
                    load.file(&name, bytes.into())?;
                }
                (None, text) => load.config(&name, text.map(|Text(text)| text.into_owned()))?,
            }
        }
        Ok(load)
    }

    /// Takes a parameter that holds bytes.
    ///
    /// # Errors
    /// 400 if it is no file.
    pub fn file(&mut self, name: &str, bytes: Bytes) -> Result<(), InferError> {
        let path = name.strip_prefix(FILE).ok_or_else(|| unknown(name))?;
        self.files.push((path.to_owned(), bytes));
        Ok(())
    }

    /// Takes a parameter that holds text, or something else.
    ///
    /// # Errors
    /// 400 if it is not the configuration.
    pub fn config(&mut self, name: &str, text: Option<String>) -> Result<(), InferError> {
        match (name, text) {
            ("config", Some(text)) => self.config = Some(text),
            ("config", None) => {
                return Err(bad("the parameter config must be a string that holds JSON".into()));
            }
            (file, _) if file.starts_with(FILE) => return Err(not_a_file(file)),
            (other, _) => return Err(unknown(other)),
        }
        Ok(())
    }

    /// What it asks for of the model `name`. With files the configuration is the whole one of the model that they are. Without,
    /// it says what changes; `current` is that of the model that serves: members that repeat it are taken.
    ///
    /// # Errors
    /// 400 naming what cannot be changed, or is out of its range; for files without a configuration, and names of files that
    /// cannot be.
    pub fn change(self, name: &str, current: Option<&Value>) -> Result<Change, InferError> {
        let Load { config, files } = self;
        match config {
            None if files.is_empty() => Ok(Change::Overrides(Overrides::default())),
            None => Err(bad(
                "file: parameters need the parameter config: the whole configuration of the model that \
                             they are"
                    .into(),
            )),
            Some(config) if files.is_empty() => {
                let config: Map<String, Value> = serde_json::from_str(&config)
                    .map_err(|error| bad_json("the parameter config", &error))?;
                read(&config, name, current).map(Change::Overrides)
            }
            Some(config) => Given::new(config, files).map(Change::Given).map_err(bad),
        }
    }
}

fn not_a_file(name: &str) -> InferError {
    bad(format!("parameter {:?} must hold a file: base64 over HTTP, bytes over gRPC", clipped(name)))
}

fn unknown(name: &str) -> InferError {
    bad(format!("parameter {:?} is not known; there are config and file:VERSION/NAME", clipped(name)))
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
            "instance_group" => {
                let current = current.and_then(|current| current.get(member)?.get(0));
                overrides.instances = Some(instances(value, current)?);
            }
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
            // All of them together: see below.
            _ if QUEUE.contains(&member.as_str()) => {}
            _ => repeats(&path, value, current.and_then(|current| current.get(member)))?,
        }
    }
    queue(members, current, overrides)
}

/// What in `dynamic_batching` says how requests wait.
const QUEUE: [&str; 4] =
    ["priority_levels", "default_priority_level", "default_queue_policy", "priority_queue_policy"];

/// Puts what is said over what is so.
fn queue(
    members: &Map<String, Value>,
    current: Option<&Value>,
    overrides: &mut Overrides,
) -> Result<(), InferError> {
    let current = |member: &str| current.and_then(|current| current.get(member));
    let said = |member: &str| members.get(member).filter(|value| current(member) != Some(*value));
    if QUEUE.iter().all(|member| said(member).is_none()) {
        return Ok(());
    }
    let mut whole = Map::new();
    for member in QUEUE {
        let otherwise = || match member {
            "priority_levels" => Some((PRIORITY_MAX + 1).into()),
            "default_priority_level" => Some(2.into()),
            _ => None,
        };
        let value = members.get(member).or_else(|| current(member)).cloned();
        whole.extend(value.or_else(otherwise).map(|value| (member.to_owned(), value)));
    }
    let (waiting, priority) =
        triton::waiting(&Value::Object(whole).to_string()).map_err(|why| bad(format!("config: {}", why)))?;
    if said("default_priority_level").is_some() {
        overrides.priority = priority;
    }
    if QUEUE.iter().any(|member| *member != "default_priority_level" && said(member).is_some()) {
        overrides.queue = Some(waiting);
    }
    Ok(())
}

/// One group, whose devices are those that it has.
fn instances(value: &Value, current: Option<&Value>) -> Result<usize, InferError> {
    let Some([group]) = value.as_array().map(Vec::as_slice) else {
        return Err(bad("config: instance_group must have one group".into()));
    };
    let mut count = 1;
    for (member, value) in object("instance_group", group)? {
        match member.as_str() {
            "count" => count = Number("instance_group.count", value).within(1, INSTANCES_MAX)?,
            other if current.is_some_and(|current| current.get(other) == Some(value)) => {}
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
fn parse<'de, T: Default + Deserialize<'de>>(body: &'de [u8]) -> Result<T, InferError> {
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
    use crate::{
        batch::{QueuePolicies, QueuePolicy, Then},
        models::manifest::Waiting,
    };
    use serde_json::json;

    fn load(body: &[u8], current: Option<&Value>) -> Result<Change, InferError> {
        Load::of_body(body)?.change("m", current)
    }

    fn config(config: &Value, current: Option<&Value>) -> Result<Overrides, InferError> {
        let body = json!({ "parameters": { "config": config.to_string() } });
        match load(body.to_string().as_bytes(), current)? {
            Change::Overrides(overrides) => Ok(overrides),
            Change::Given(given) => panic!("no files were sent: {given:?}"),
        }
    }

    fn refuses(config_: &Value, told: &str) {
        let error = config(config_, None).unwrap_err().to_string();
        assert!(error.contains(told), "{error} lacks {told}");
    }

    #[test]
    fn what_can_be_changed_is_read() {
        assert_eq!(load(b"", None), Ok(Change::Overrides(Overrides::default())));
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
        let wait_max = Some(Duration::from_secs(2));
        let default = QueuePolicy { wait_max, may_shorten: false, ..QueuePolicy::default() };
        let policies = QueuePolicies { default, ..QueuePolicies::default() };
        let expected = Overrides {
            items_max: Some(8),
            sizes: Some(vec![2, 4]),
            wait_max: Some(Duration::from_micros(500)),
            instances: Some(2),
            priority: Some(0),
            queue: Some(Waiting { policies, ..Waiting::default() }),
        };
        assert_eq!(got, Ok(expected));
    }

    #[test]
    fn how_requests_wait_is_changed_over_what_is_so() {
        let current = json!({ "dynamic_batching": {
            "priority_levels": 3, "default_priority_level": 3,
            "default_queue_policy": { "timeout_action": "REJECT", "default_timeout_microseconds": 0,
                "allow_timeout_override": true, "max_queue_size": 5 },
            "priority_queue_policy": {},
        } });
        let changed = |dynamic: Value| config(&json!({ "dynamic_batching": dynamic }), Some(&current));
        assert_eq!(changed(current["dynamic_batching"].clone()), Ok(Overrides::default()));
        let got =
            changed(json!({ "priority_queue_policy": { "1": { "timeout_action": "DELAY" } } })).unwrap();
        let queue = got.queue.unwrap();
        assert_eq!((queue.priorities, queue.policies.of(1).jobs_max, got.priority), (3, Some(5), None));
        assert_eq!(queue.policies.of(0).then, Then::Delay);
        let only = Overrides { priority: Some(1), ..Overrides::default() };
        assert_eq!(changed(json!({ "default_priority_level": 2 })), Ok(only));
        let told = changed(json!({ "priority_levels": 2 })).unwrap_err().to_string();
        assert!(
            told.contains("default_priority_level is 3, allowed: 1 to priority_levels, which is 2"),
            "{told}"
        );
        let told = changed(json!({ "default_queue_policy": { "size": 2 } })).unwrap_err().to_string();
        assert!(told.contains("size"), "{told}");
    }

    #[test]
    fn files_come_with_the_configuration_of_their_model() {
        let body = br#"{"parameters":{"config":"{}","file:1/model.onnx":"AAECAw=="}}"#;
        let files = vec![("1/model.onnx".to_owned(), Bytes::from_static(&[0, 1, 2, 3]))];
        assert_eq!(load(body, None), Ok(Change::Given(Given::new("{}".into(), files).unwrap())));
        for (parameters, told) in [
            (json!({ "file:1/model.onnx": "AAAA" }), "need the parameter config"),
            (json!({ "file:1/model.onnx": "A", "config": "{}" }), "base64"),
            (json!({ "file:1/model.onnx": 1, "config": "{}" }), "base64"),
            (json!({ "file:../x": "AAAA", "config": "{}" }), "must be VERSION/NAME"),
            (json!({ "x": 1 }), "\"x\" is not known"),
            (json!({ "config": 1 }), "must be a string"),
        ] {
            let body = json!({ "parameters": parameters }).to_string();
            let error = load(body.as_bytes(), None).unwrap_err().to_string();
            assert!(error.contains(told), "{error} lacks {told}");
        }
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
    }

    #[test]
    fn other_bodies_are_refused() {
        assert_eq!((only_ready(b""), only_ready(br#"{"ready":true}"#)), (Ok(false), Ok(true)));
        assert!(only_ready(br#"{"redy":true}"#).is_err());
        assert_eq!(unload(br#"{"parameters":{"unload_dependents":true}}"#), Ok(()));
        assert!(unload(br#"{"parameters":{"other":true}}"#).is_err());
    }
}
