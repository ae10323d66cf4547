//! Converts checked values to the types of the fields of [`Config`](super::Config).

use super::{
    kind::Value,
    table::{
        Backend, BusyPoll, Chosen, Isolation, LogFormat, RepositoryMode, Secret, TritonMetrics, WhileWaiting,
    },
};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Conversion of a checked value to a field's type. The table pairs kinds with types; [`Config::default`](super::Config::default) exercises
/// every pair.
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

/// The words of a setting, and what each means.
macro_rules! words {
    ($( $type:ident { $( $word:literal => $meaning:ident, )* } )*) => { $(
        impl $type {
            /// All of them.
            pub(super) const WORDS: &[&str] = &[$( $word ),*];

            /// As it is written.
            pub fn name(self) -> &'static str {
                match self {
                    $( $type::$meaning => $word, )*
                }
            }
        }

        impl FromValue for $type {
            fn from_value(value: Value) -> Self {
                match value {
                    $( Value::Text(word) if word == $word => $type::$meaning, )*
                    other => unreachable!("the table's words are {:?}, not {other:?}", $type::WORDS),
                }
            }
        }
    )* };
}

words! {
    Backend { "auto" => Auto, "cpu" => Cpu, "gpu" => Gpu, }
    BusyPoll { "auto" => Auto, "on" => On, "off" => Off, }
    Isolation { "auto" => Auto, "thread" => Thread, "process" => Process, }
    LogFormat { "auto" => Auto, "human" => Human, "json" => Json, }
    RepositoryMode { "none" => None, "explicit" => Explicit, "watch" => Watch, }
    TritonMetrics { "apart" => Apart, "on" => On, "off" => Off, }
    WhileWaiting { "cpu" => Cpu, "wait" => Wait, }
}
