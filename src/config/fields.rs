//! From checked values to the types of the fields that hold them.

use super::{
    kind::Value,
    table::{Backend, Chosen, Isolation, LogFormat, RepositoryMode, Secret, TritonMetrics, WhileWaiting},
};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// From a checked value to a field's type. The table pairs kinds with types; [`Config::default`] runs through all.
pub(super) trait FromValue {
    fn from_value(value: Value) -> Self;
}

macro_rules! from_value {
    ($( $type:ty: $pattern:pat => $made:expr; )*) => { $(
        impl FromValue for $type {
            fn from_value(value: Value) -> Self {
                match value {
                    $pattern => $made,
                    other => unreachable!("the table pairs {} with {other:?}", stringify!($type)),
                }
            }
        }
    )* };
}

from_value! {
    Vec<SocketAddr>: Value::Addresses(addresses) => addresses;
    Option<Secret>: Value::Text(text) => (!text.is_empty()).then(|| Secret::from(&*text));
    Option<SocketAddr>: Value::Address(address) => address;
    PathBuf: Value::Path(path) => path;
    Option<PathBuf>: Value::Path(path) => (!path.as_os_str().is_empty()).then_some(path);
    u64: Value::Number(number) => number;
    u32: Value::Number(number) => u32::try_from(number).expect("the kind's range fits the type");
    usize: Value::Number(number) => usize::try_from(number).expect("the kind's range fits the type");
    Duration: Value::Duration(duration) => duration;
    String: Value::Text(text) => text;
    Option<String>: Value::Text(text) => (!text.is_empty()).then_some(text);
    f64: Value::Real(number) => number;
}

impl FromValue for RepositoryMode {
    fn from_value(value: Value) -> Self {
        match value {
            Value::Text(word) if word == "none" => RepositoryMode::None,
            Value::Text(word) if word == "explicit" => RepositoryMode::Explicit,
            Value::Text(word) if word == "watch" => RepositoryMode::Watch,
            other => unreachable!("the table's words are none, explicit and watch, not {other:?}"),
        }
    }
}

impl FromValue for Chosen {
    fn from_value(value: Value) -> Self {
        match value {
            Value::Text(text) if text == "*" => Chosen::All,
            Value::Text(text) => {
                let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
                Chosen::Only(names.map(str::to_owned).collect())
            }
            other => unreachable!("names are text, not {other:?}"),
        }
    }
}

impl FromValue for bool {
    fn from_value(value: Value) -> Self {
        match value {
            Value::Text(word) => word == "on",
            other => unreachable!("the table's words are on and off, not {other:?}"),
        }
    }
}

impl FromValue for Backend {
    fn from_value(value: Value) -> Self {
        match value {
            Value::Text(word) if word == "auto" => Backend::Auto,
            Value::Text(word) if word == "cpu" => Backend::Cpu,
            Value::Text(word) if word == "gpu" => Backend::Gpu,
            other => unreachable!("the table's words are auto, cpu and gpu, not {other:?}"),
        }
    }
}

impl FromValue for Isolation {
    fn from_value(value: Value) -> Self {
        match value {
            Value::Text(word) if word == "thread" => Isolation::Thread,
            Value::Text(word) if word == "process" => Isolation::Process,
            other => unreachable!("the table's words are thread and process, not {other:?}"),
        }
    }
}

impl FromValue for WhileWaiting {
    fn from_value(value: Value) -> Self {
        match value {
            Value::Text(word) if word == "cpu" => WhileWaiting::Cpu,
            Value::Text(word) if word == "wait" => WhileWaiting::Wait,
            other => unreachable!("the table's words are cpu and wait, not {other:?}"),
        }
    }
}

impl FromValue for TritonMetrics {
    fn from_value(value: Value) -> Self {
        match value {
            Value::Text(word) if word == "apart" => TritonMetrics::Apart,
            Value::Text(word) if word == "on" => TritonMetrics::On,
            Value::Text(word) if word == "off" => TritonMetrics::Off,
            other => unreachable!("the table's words are apart, on and off, not {other:?}"),
        }
    }
}

impl FromValue for LogFormat {
    fn from_value(value: Value) -> Self {
        match value {
            Value::Text(word) if word == "auto" => LogFormat::Auto,
            Value::Text(word) if word == "human" => LogFormat::Human,
            Value::Text(word) if word == "json" => LogFormat::Json,
            other => unreachable!("the table's words are auto, human and json, not {other:?}"),
        }
    }
}
