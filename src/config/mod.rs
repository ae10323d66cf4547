//! Options: reads file, environment and flags into one checked and immutable [`Config`].
//!
//! Flags take precedence over the environment, the environment over the file, and the file over the defaults. A value is
//! checked even if another source overrides it, and all mistakes are reported together ([`ConfigError`]).
//!
//! - `table`: every option with its type and description.
//! - `fields`: the types of the fields of [`Config`], and how values become them.
//! - `kind`: which values are allowed and how text is parsed.
//! - `sources`: reads the file, the environment and the flags.
//! - `mistake`: the origins of values, and mistakes in them.
//! - `across`: rules between options.
//! - `render`: the table as `deploy/ocelli.toml` and `docs/options.md`.

mod across;
mod fields;
mod kind;
mod mistake;
mod render;
mod sources;
mod table;
#[cfg(test)]
mod tests;

pub use fields::{
    Backend, BusyPoll, Chosen, Isolation, LogFormat, RepositoryMode, Secret, TritonMetrics, WhileWaiting,
};
pub use kind::{Kind, MODEL_NAMES, bytes_text, is_model_name};
pub use mistake::{ConfigError, Mistake, Origin};
pub use render::{options_md, toml_defaults};
pub use table::{Config, OPTIONS, Spec};

use kind::Value;
use sources::{GivenValue, Refused};
use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    thread::available_parallelism,
};

/// The library that is loaded if no setting names one: the system's.
const ONNX_RUNTIME_SYSTEM: &str = "libonnxruntime.so";

/// What a [`Config`] is made of.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The file that a flag names; it takes precedence over `OCELLI_CONFIG`.
    pub file: Option<PathBuf>,
    /// The environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Options by their names in the table, with their values from flags.
    pub flags: Vec<(&'static str, OsString)>,
    /// The meaning of a thread count of 0; at least 1.
    pub cores: usize,
}

impl Sources {
    /// This process's environment and cores, with the flags that it was given.
    pub fn of_process(file: Option<PathBuf>, flags: Vec<(&'static str, OsString)>) -> Sources {
        Sources { file, environment: std::env::vars_os().collect(), flags, cores: cores() }
    }

    fn variable(&self, name: &str) -> Option<&OsStr> {
        let found = self.environment.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_os_str()).filter(|value| !value.is_empty())
    }
}

/// The value of an option that is in effect.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The option.
    pub spec: &'static Spec,
    /// Its value as it was written.
    pub text: String,
    /// Where it comes from.
    pub origin: Origin,
}

/// A checked configuration and where each of its values comes from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// In the order of [`OPTIONS`].
    pub settings: Vec<Setting>,
}

/// Reads and checks all sources. Touches no file but the configuration itself.
///
/// # Errors
/// All mistakes of all sources, together.
pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
    load_with(sources, |_| Vec::new())
}

/// As [`load`], with a further check: `unfit` returns options whose values are allowed but cannot be used, by name, with
/// the reason.
///
/// # Errors
/// All mistakes, together.
pub fn load_with(
    sources: &Sources,
    unfit: impl FnOnce(&Config) -> Vec<(&'static str, String)>,
) -> Result<Loaded, ConfigError> {
    let mut mistakes = Vec::new();
    let mut given = Vec::new();
    let named = sources.variable("OCELLI_CONFIG").map(PathBuf::from);
    if let Some(path) = sources.file.clone().or(named) {
        sources::file(&path, &mut given, &mut mistakes);
    }
    sources::environment(&sources.environment, &mut given, &mut mistakes);
    sources::flags(&sources.flags, &mut given);

    let (mut settings, mut values) = defaults(sources.cores);
    let mut broken = Vec::new();
    // From the weakest source to the strongest: later values override earlier ones.
    for GivenValue { option, text, origin } in given {
        let spec = &OPTIONS[option];
        let read = text.and_then(|text| match spec.kind.parse(&text, sources.cores) {
            Ok(value) => Ok((text, value)),
            Err(reason) => {
                let found = sources::found(spec, &text, format!("{} = {text:?}", spec.name));
                Err(Refused { found, reason })
            }
        });
        match read {
            Ok((text, value)) => {
                values[option] = value;
                settings[option].text = text;
                settings[option].origin = origin;
            }
            Err(Refused { found, reason }) => {
                broken.push(spec.name);
                mistakes.push(Mistake { origin, found, reason });
            }
        }
    }
    onnx_runtime(sources, &mut settings, &mut values);
    let config = Config::from_values(values);
    // Syntax and value mistakes were found in separate steps; order them by source.
    mistakes.sort_by(|a, b| a.origin.cmp(&b.origin));
    across::check(&config, &settings, &broken, &mut mistakes);
    for (option, reason) in unfit(&config).into_iter().filter(|(option, _)| !broken.contains(option)) {
        let setting = settings.iter().find(|setting| setting.spec.name == option);
        let setting = setting.expect("it is named as in the table");
        let (origin, found) = (setting.origin.clone(), format!("{option} = {:?}", setting.text));
        mistakes.push(Mistake { origin, found, reason });
    }
    if mistakes.is_empty() { Ok(Loaded { config, settings }) } else { Err(ConfigError { mistakes }) }
}

impl Default for Config {
    /// All defaults, whatever the environment says.
    fn default() -> Config {
        let (mut settings, mut values) = defaults(cores());
        let nowhere = Sources { file: None, environment: Vec::new(), flags: Vec::new(), cores: cores() };
        onnx_runtime(&nowhere, &mut settings, &mut values);
        Config::from_values(values)
    }
}

/// Number of cores that this process may use.
pub(crate) fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

fn defaults(cores: usize) -> (Vec<Setting>, Vec<Value>) {
    OPTIONS
        .iter()
        .map(|spec| {
            let setting = Setting { spec, text: spec.default.into(), origin: Origin::Default };
            let value = spec.kind.parse(spec.default, cores);
            (setting, value.expect("a test holds defaults to their kind"))
        })
        .unzip()
}

/// If the option is not set, the library is `ORT_DYLIB_PATH`, which other programs use too, or else the system's.
fn onnx_runtime(sources: &Sources, settings: &mut [Setting], values: &mut [Value]) {
    let option = OPTIONS.iter().position(|spec| spec.name == "onnx_runtime").expect("the table has it");
    if !settings[option].text.is_empty() {
        if let Value::Path(path) = &mut values[option] {
            let here = Path::new(".").join(&*path);
            // The system searches only its own folders for a bare name.
            if path.parent() == Some(Path::new("")) && here.is_file() {
                *path = here;
            }
        }
        return;
    }
    let path = match sources.variable("ORT_DYLIB_PATH") {
        Some(path) => {
            settings[option].origin = Origin::Variable("ORT_DYLIB_PATH".into());
            settings[option].text = path.to_string_lossy().into();
            PathBuf::from(path)
        }
        None => ONNX_RUNTIME_SYSTEM.into(),
    };
    values[option] = Value::Path(path);
}
