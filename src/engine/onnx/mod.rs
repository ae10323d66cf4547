//! ONNX Runtime through the `ort` crate, loaded at run time: one shared library, one environment per process.
//!
//! - [`Runtime`]: the library and its environment.
//! - [`OnnxEngine`]: a model on the CPU. On a GPU it is [`cuda::onnx`](super::cuda::onnx).
//! - [`gpu`]: what a model's author may ask for on a GPU.
//! - `session`: a model file, loaded for a provider, with the files that it names (`external`); `shapes`: what is known of its
//!   outputs before a run; `placement`: which node runs where; `ending`: whether an output is of probabilities; `operators`: which
//!   there are in a file; `threads`: what shares its operators; `axes`: which axis is named for the channels;
//!   `fields`: how those that read a model file themselves go through it; `skeleton`: the messages that they pass on the way.
//! - `value`: tensors in and out of it without a copy; `binding`: the same with memory of a device.
//! - [`report_nothing`]: it sends no reports.
//! - `libraries`: whether it can run models on a GPU here; `version`: whether it is new enough to replay what was recorded there;
//!   `failure`: whose fault a failed run is; `idle`: memory that an idle model gives back; `under_way`: what ends a run.

pub(crate) mod axes;
pub(super) mod binding;
pub(crate) mod ending;
pub(crate) mod external;
pub(super) mod failure;
mod fields;
pub mod gpu;
mod idle;
mod libraries;
pub(crate) mod operators;
mod placement;
mod reports;
pub(super) mod session;
mod shapes;
mod skeleton;
mod threads;
mod under_way;
pub(super) mod value;
mod version;

pub use gpu::OnGpu;
pub use placement::Placement;
pub use reports::report_nothing;

use super::{
    Ends, Engine, EngineError, Flight, Interrupt, Setting, Signature, Tensor, TensorView,
    cuda::Gpu,
    staging::{Blocks, Memory},
};
use crate::words::{causes, printable};
use libraries::CudaProvider;
use ort::{environment::Environment, ep::ExecutionProvider, logging::LogLevel};
use parking_lot::Mutex;
use session::{Session, Target};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};
use under_way::UnderWay;

/// The library takes one environment per process and never lets go of it, so that a second server in the process (in
/// tests) shares the first one's.
static LOADED: Mutex<Option<(PathBuf, Runtime)>> = Mutex::new(None);

/// The loaded library. Cloning is cheap; the library stays for the life of the process.
#[derive(Clone)]
pub struct Runtime {
    environment: Environment,
    path: Arc<Path>,
    /// Whether what it records on a GPU may be replayed, or why not.
    replays: Result<(), String>,
    /// What it runs on GPUs with, or why it cannot; looked at when it is first asked for.
    cuda: Arc<OnceLock<Result<CudaProvider, String>>>,
    stands_in: Arc<AtomicBool>,
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
        let mut loaded = LOADED.lock();
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
            // The system's reason is behind the error that is told: no such file, no right to read it, no library, or one that it needs.
            let why = match &error {
                ort::LoadDynamicError::Dlopen { error, .. } => causes(error),
                _ => error.to_string(),
            };
            let told = format!("cannot load ONNX Runtime from {}: {why}", path.display());
            format!("{}; {advice}", printable(&told))
        })?;
        let environment = builder
            .with_name("ocelli")
            .with_telemetry(false)
            .with_logger(Arc::new(log))
            .build()
            .map_err(|error| format!("cannot start ONNX Runtime: {error}"))?;
        let replays = version::of(path).and_then(|version| version::check_replays(&version));
        let replays = replays.map_err(|why| format!("{}: {why}", path.display()));
        let runtime = Runtime {
            environment,
            path: path.into(),
            replays,
            cuda: Arc::default(),
            stands_in: Arc::default(),
        };
        *loaded = Some((path.to_owned(), runtime.clone()));
        Ok(runtime)
    }

    /// The library's own build description: version, commit, flags.
    pub fn description(&self) -> String {
        ort::info().to_owned()
    }

    /// Has networks of GPUs run on the CPU from now on, in memory of the device: for drivers that are none, whose devices have the
    /// host's memory. All but ONNX Runtime's own part is then as on a GPU.
    pub fn stand_in(&self, stands_in: bool) {
        self.stands_in.store(stands_in, Ordering::Relaxed);
    }

    /// Whether that was said.
    pub fn stands_in(&self) -> bool {
        self.stands_in.load(Ordering::Relaxed)
    }

    /// Whether it can run models on a GPU.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn check_gpu(&self, gpu: &Gpu) -> Result<(), String> {
        if self.stands_in() {
            return Ok(());
        }
        let provider = self.cuda.get_or_init(|| {
            if !ort::ep::CUDA::is_available().unwrap_or(false) {
                return Err(format!(
                    "{} is a build of ONNX Runtime for the CPU: `make gpu` fetches the one for CUDA into .lib/gpu, which \
                     ORT_DYLIB_PATH or the option onnx_runtime then names",
                    self.path.display()
                ));
            }
            CudaProvider::beside(&self.path)
        });
        provider.as_ref().map_err(Clone::clone)?.check(gpu.cuda, gpu.capability)
    }

    /// Whether what it records on a GPU may be replayed.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn check_replays(&self) -> Result<(), String> {
        self.replays.clone()
    }

    /// Loads a model for the CPU.
    ///
    /// `threads` is the number of threads that share one operator, the calling one included.
    ///
    /// # Errors
    /// If the file is no model that ONNX Runtime takes, or has inputs or outputs other than tensors.
    pub fn load_cpu(&self, path: &Path, threads: usize) -> Result<OnnxEngine, String> {
        Session::load(self, path, Target::Cpu(threads)).map(|session| OnnxEngine {
            even: operators::is_even(path),
            session,
            ends: Ends::default(),
            blocks: Blocks::new(Memory::Plain),
            had: idle::Inputs::default(),
            under_way: Arc::default(),
        })
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
    ends: Ends,
    /// What pixels become numbers in.
    blocks: Blocks,
    had: idle::Inputs,
    under_way: Arc<UnderWay>,
    /// What it does depends on the shapes of its inputs alone.
    even: bool,
}

impl Engine for OnnxEngine {
    fn signature(&self) -> &Signature {
        self.session.signature()
    }

    fn equip(&mut self, ends: &Ends) -> Result<(), EngineError> {
        self.ends = ends.clone();
        Ok(())
    }

    /// On the CPU provider every failure but want of memory is the batch's own: an operator refused its input.
    fn start(&mut self, mut inputs: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
        if let (Some(pixels), Some(first)) = (&self.ends.pixels, inputs.first_mut())
            && let Some(numbers) = pixels.normalize(&first.view(), &self.blocks)
        {
            *first = numbers?;
        }
        let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
        let named = self.session.signature().inputs.iter().zip(&views);
        let lent = named.map(|(spec, view)| value::lend(&spec.name, view));
        let values: Vec<_> = lent.collect::<Result<_, _>>()?;
        let run = self.under_way.begin()?;
        let outputs = self.session.inner().run_with_options(values.as_slice(), run.options());
        let outputs = outputs.map_err(|error| failure::of_run(&error))?;
        self.had.note(views.iter());
        let outputs = outputs.into_iter().map(|(_, output)| value::take(output, &views));
        outputs.collect::<Result<_, _>>().map(Flight::Landed)
    }

    fn is_even(&self) -> bool {
        self.even
    }

    fn interrupt(&self) -> Option<Arc<dyn Interrupt>> {
        Some(Arc::clone(&self.under_way) as Arc<dyn Interrupt>)
    }

    fn rest(&mut self) {
        self.blocks.clear();
        if let Err(error) = self.had.shrink(&mut self.session) {
            tracing::debug!(%error, "an idle model keeps its memory");
        }
    }
}
