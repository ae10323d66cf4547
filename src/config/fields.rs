//! The types of the fields of [`Config`](super::Config) that the standard library has not, and how checked values become fields.

use super::kind::Value;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// What the models run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// A GPU where there is one that is free, else the CPU.
    Auto,
    /// The CPU, even where there is a GPU.
    Cpu,
    /// A GPU, or nothing.
    Gpu,
}

/// Where a GPU's engines run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// In one process for each GPU where GPUs are to be given back whole, else in the server's process.
    Auto,
    /// In the server's process.
    Thread,
    /// In one process for each GPU.
    Process,
}

/// What answers while a GPU is away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WhileWaiting {
    /// The CPU.
    #[default]
    Cpu,
    /// Nothing: requests wait for the GPU, until it has been waited for too long.
    Wait,
}

/// Where metrics have Triton's names beside our own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TritonMetrics {
    /// At `admin_listen` and `metrics_listen`.
    #[default]
    Apart,
    /// Wherever there are metrics.
    On,
    /// Nowhere.
    Off,
}

/// Whether threads stay awake while requests follow each other closely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BusyPoll {
    /// Where that takes nothing from the rest of the process.
    Auto,
    /// Yes.
    On,
    /// No.
    Off,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people on a terminal, JSON elsewhere.
    Auto,
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

/// How models come and go while the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepositoryMode {
    /// Not at all.
    None,
    /// By callers.
    Explicit,
    /// With their folder.
    Watch,
}

/// Some of the models of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chosen {
    /// Whatever is there.
    All,
    /// Those of these names.
    Only(Vec<String>),
}

impl Chosen {
    /// Whether a model is among them.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Chosen::All => true,
            Chosen::Only(names) => names.iter().any(|one| one == name),
        }
    }
}

/// A text that nobody is shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret(text.to_owned())
    }
}

impl Secret {
    /// For comparing, in time that does not depend on the content.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(set)")
    }
}

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
