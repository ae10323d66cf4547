//! ONNX Runtime through the `ort` crate, loaded at run time: one shared library, one environment per process.
//!
//! - [`Runtime`]: the library and its environment.
//! - [`OnnxEngine`]: one session.
//! - [`value`]: tensors in and out of it without a copy.

mod value;

use super::{Dim, Engine, EngineError, Setting, Signature, Tensor, TensorSpec, TensorView};
use ort::{
    environment::Environment,
    logging::LogLevel,
    session::{Session, builder::GraphOptimizationLevel},
    value::ValueType,
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// The library takes one environment per process and never lets go of it, so that a second server in the process (in
/// tests) shares the first one's.
static LOADED: Mutex<Option<(PathBuf, Runtime)>> = Mutex::new(None);

/// The loaded library. Cloning is cheap; the library stays for the life of the process.
#[derive(Clone)]
pub struct Runtime {
    environment: Environment,
}

impl Runtime {
    /// Loads the shared library at `path` and makes the process's environment.
    ///
    /// Must come before any other use of `ort`, whose error type already needs the library. Loading the same library
    /// again gives the same environment.
    ///
    /// # Errors
    /// If the library is missing, too old, or one is already loaded. Words for an operator.
    pub fn load(path: &Path) -> Result<Runtime, String> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        match &*loaded {
            Some((from, runtime)) if from == path => return Ok(runtime.clone()),
            Some((from, _)) => {
                return Err(format!(
                    "ONNX Runtime is loaded from {} already, not from {}",
                    from.display(),
                    path.display()
                ));
            }
            None => {}
        }
        let advice = "set ORT_DYLIB_PATH, or the option onnx_runtime, to a libonnxruntime.so; `make ort` fetches one \
                      into .lib/";
        let builder = ort::init_from(path).map_err(|error| {
            format!("cannot load ONNX Runtime from {}: {error}; {advice}", path.display())
        })?;
        let environment = builder
            .with_name("ocelli")
            .with_telemetry(false)
            .with_logger(Arc::new(log))
            .build()
            .map_err(|error| format!("cannot start ONNX Runtime: {error}"))?;
        let runtime = Runtime { environment };
        *loaded = Some((path.to_owned(), runtime.clone()));
        Ok(runtime)
    }

    /// The library's own build description: version, commit, flags.
    pub fn description(&self) -> String {
        ort::info().to_owned()
    }

    /// Loads a model for the CPU.
    ///
    /// `threads` is the number of threads that share one operator, the calling one included.
    ///
    /// # Errors
    /// If the file is no model that ONNX Runtime takes, or has inputs or outputs other than tensors.
    pub fn load_cpu(&self, path: &Path, threads: usize) -> Result<OnnxEngine, String> {
        self.session(path, threads).map_err(|error| first_line(error.message())).and_then(OnnxEngine::new)
    }

    fn session(&self, path: &Path, threads: usize) -> ort::Result<Session> {
        Session::builder(&self.environment)?
            .with_optimization_level(GraphOptimizationLevel::All)?
            .with_intra_threads(threads)?
            // Idle threads that spin would take the cores from decoding and from the front.
            .with_intra_op_spinning(false)?
            .commit_from_file(path)
    }
}

/// ONNX Runtime's own log lines, at the level they have there; its informational lines are noise at our level.
fn log(level: LogLevel, category: &str, _id: &str, location: &str, message: &str) {
    match level {
        LogLevel::Verbose | LogLevel::Info => {
            tracing::trace!(target: "onnxruntime", category, location, "{message}");
        }
        LogLevel::Warning => {
            tracing::debug!(target: "onnxruntime", category, location, "{message}");
        }
        // Failed runs come back as errors too and are answered; here they are detail.
        LogLevel::Error => tracing::info!(target: "onnxruntime", category, location, "{message}"),
        LogLevel::Fatal => tracing::error!(target: "onnxruntime", category, location, "{message}"),
    }
}

/// One session on the CPU provider.
pub struct OnnxEngine {
    session: Session,
    signature: Signature,
}

impl OnnxEngine {
    fn new(session: Session) -> Result<OnnxEngine, String> {
        let signature = Signature {
            platform: "onnxruntime_onnx",
            inputs: session
                .inputs()
                .iter()
                .map(|i| spec("input", i.name(), i.dtype()))
                .collect::<Result<_, _>>()?,
            outputs: session
                .outputs()
                .iter()
                .map(|o| spec("output", o.name(), o.dtype()))
                .collect::<Result<_, _>>()?,
        };
        Ok(OnnxEngine { session, signature })
    }
}

impl Engine for OnnxEngine {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// On the CPU provider every failure but want of memory is the batch's own: an operator refused its input.
    fn run(&mut self, inputs: &[TensorView<'_>], _: Option<&Setting>) -> Result<Vec<Tensor>, EngineError> {
        let mut values = Vec::with_capacity(inputs.len());
        for view in inputs {
            values.push(value::lend(view)?);
        }
        let outputs = self.session.run(values.as_slice()).map_err(|error| failed(&error))?;
        outputs.into_iter().map(|(_, output)| value::take(output)).collect()
    }
}

fn spec(kind: &str, name: &str, dtype: &ValueType) -> Result<TensorSpec, String> {
    match dtype {
        ValueType::Tensor { ty, shape, .. } => Ok(TensorSpec {
            name: name.to_owned(),
            datatype: value::datatype(*ty)
                .ok_or_else(|| format!("{kind} {name:?} has element type {ty}, which is not supported"))?,
            shape: shape.iter().map(|&n| usize::try_from(n).map_or(Dim::Free, Dim::Fixed)).collect(),
        }),
        other => Err(format!(
            "{kind} {name:?} is {other}; only tensors are supported (export without sequences, maps and optionals)"
        )),
    }
}

/// Whose fault a failed run is.
fn failed(error: &ort::Error) -> EngineError {
    let message = first_line(error.message());
    if message.contains("Failed to allocate memory") || message.contains("bad_alloc") {
        EngineError::Device(format!("out of memory: {message}"))
    } else {
        EngineError::Input(message)
    }
}

/// The first line of one of ONNX Runtime's messages, without what only its own developers can use: stack traces below
/// it, and the source files it names.
fn first_line(message: &str) -> String {
    let words = message.lines().next().unwrap_or_default().split_whitespace();
    words.filter(|word| !word.starts_with('/')).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_for_callers_name_no_source_files() {
        let message =
            "Non-zero status code /onnxruntime_src/onnxruntime/core/bfc_arena.cc:360 void* f() Failed\n0x1";
        assert_eq!(first_line(message), "Non-zero status code void* f() Failed");
    }
}
