//! ONNX Runtime through the `ort` crate, loaded at run time: one shared library, one environment per process.
//!
//! - [`Runtime`]: the library and its environment.
//! - [`OnnxEngine`]: a model on the CPU. For a GPU, see [`cuda::onnx`](super::cuda::onnx).
//! - [`gpu`]: the options that a model's author may set for a GPU.
//! - `session`: a model file, loaded for a provider, with the files that it refers to (`external`); `shapes`: output shapes that are
//!   known before a run; `placement`: which node runs where; `threads`: the threads that share its operators.
//! - Reading a model file without loading it: `outline`: what one walk finds of its network, in parts that `axes`, `constant` and
//!   `metadata` read. What follows from that: `ending`: whether an output holds probabilities; `quantized`: what the whole numbers of an
//!   output stand for; `operators`: how the network runs. `functions`: how many nodes its functions are written out to; `fields` and
//!   `skeleton`: the traversal that these use.
//! - `value`: tensors in and out of a session without a copy; `binding`: the same with memory of a device.
//! - [`report_nothing`]: turns off ONNX Runtime's telemetry.
//! - `libraries`: whether ONNX Runtime can run models on a GPU here; `version`: whether it is new enough to replay CUDA graphs;
//!   `failure`: classifies failed runs; `arena`: the memory of models on the CPU; `under_way`: interrupts a run; `division`: divisions that
//!   would end the process.

mod arena;
pub(crate) mod axes;
pub(super) mod binding;
mod constant;
mod division;
pub(crate) mod ending;
pub(crate) mod external;
pub(super) mod failure;
mod fields;
mod functions;
pub mod gpu;
mod libraries;
pub(crate) mod metadata;
pub(crate) mod operators;
pub(crate) mod outline;
mod placement;
pub(crate) mod quantized;
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
pub use quantized::Quantized;
pub use reports::report_nothing;

use super::{
    Ends, Engine, EngineError, Flight, Interrupt, Setting, Signature, Tensor, TensorView,
    gpu::Gpu,
    staging::{Blocks, Memory},
};
use crate::words::{causes, printable};
use arena::Arena;
use libraries::CudaProvider;
use ort::{environment::Environment, ep::ExecutionProvider, logging::LogLevel};
use outline::Outline;
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

/// The library allows one environment per process and never releases it, so a second server in the process (in tests) shares
/// the first one's.
static LOADED: Mutex<Option<(PathBuf, Runtime)>> = Mutex::new(None);

/// The loaded library. Cloning is cheap; the library stays for the life of the process.
#[derive(Clone)]
pub struct Runtime {
    environment: Environment,
    arena: Arc<Arena>,
    path: Arc<Path>,
    /// Whether CUDA graphs that it has recorded may be replayed, or why not.
    replays: Result<(), String>,
    /// Its provider for GPUs, or why there is none; determined on first use.
    cuda: Arc<OnceLock<Result<CudaProvider, String>>>,
    stands_in: Arc<AtomicBool>,
}

impl Runtime {
    /// Loads the shared library at `path` and creates the process's environment.
    ///
    /// All models on the CPU together may allocate `cpu_bytes_max` bytes.
    ///
    /// Must come before any other use of `ort`, whose error type already needs the library. Loading the same library
    /// again gives the same environment, with the limit that it has.
    ///
    /// # Errors
    /// If the library is missing or too old, or another one is already loaded. The text is for an operator.
    pub fn load(path: &Path, cpu_bytes_max: u64) -> Result<Runtime, String> {
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
        division::complete_divisions();
        let advice = "set ORT_DYLIB_PATH, or the option onnx_runtime, to a libonnxruntime.so; `make ort` fetches one \
                      into .lib/";
        let builder = ort::init_from(path).map_err(|error| {
            // The system's reason is in the error's sources: no such file, no permission, not a library, or a dependency is missing.
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
        let arena = Arena::register(&environment, cpu_bytes_max);
        let arena = arena.map_err(|error| format!("ONNX Runtime takes no limit of memory: {error}"))?;
        let replays = version::of(path).and_then(|version| version::check_replays(&version));
        let replays = replays.map_err(|why| format!("{}: {why}", path.display()));
        let runtime = Runtime {
            environment,
            arena: arena.into(),
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

    /// Has networks for GPUs run on the CPU from now on, in memory of the device: for emulated drivers, whose devices use host memory.
    /// Everything except ONNX Runtime's own part then works as on a GPU.
    pub fn stand_in(&self, stands_in: bool) {
        self.stands_in.store(stands_in, Ordering::Relaxed);
    }

    /// Whether [`Runtime::stand_in`] is set.
    pub fn stands_in(&self) -> bool {
        self.stands_in.load(Ordering::Relaxed)
    }

    /// Checks that ONNX Runtime can run models on a GPU.
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

    /// Checks that CUDA graphs that it has recorded may be replayed.
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
    /// [`EngineError::Passing`] if the system refuses threads; [`EngineError::Input`] if ONNX Runtime does not accept the file, or the
    /// model has inputs or outputs other than tensors.
    pub fn load_cpu(&self, path: &Path, threads: usize) -> Result<OnnxEngine, EngineError> {
        let session = Session::load(self, path, Target::Cpu(threads))?;
        Ok(OnnxEngine {
            even: Outline::of(path).is_some_and(|outline| operators::are_even(&outline.operators)),
            session,
            ends: Ends::default(),
            blocks: Blocks::new(Memory::Plain),
            under_way: Arc::default(),
            trims: Trims(Arc::clone(&self.arena)),
        })
    }
}

/// Logs ONNX Runtime's own lines. Their level is mostly kept, but its informational lines are noise at our level.
fn log(level: LogLevel, category: &str, _id: &str, location: &str, message: &str) {
    match level {
        LogLevel::Verbose | LogLevel::Info => {
            tracing::trace!(target: "onnxruntime", category, location, "{message}");
        }
        LogLevel::Warning => {
            tracing::debug!(target: "onnxruntime", category, location, "{message}");
        }
        // A failed run also returns an error, which is answered; its log line is only detail.
        LogLevel::Error => tracing::info!(target: "onnxruntime", category, location, "{message}"),
        LogLevel::Fatal => tracing::error!(target: "onnxruntime", category, location, "{message}"),
    }
}

/// One session on the CPU provider.
pub struct OnnxEngine {
    session: Session,
    ends: Ends,
    /// Memory in which pixels become numbers.
    blocks: Blocks,
    under_way: Arc<UnderWay>,
    /// Whether its work depends on the shapes of its inputs alone.
    even: bool,
    /// Dropped last, when all of the session is free.
    trims: Trims,
}

/// Gives back memory of models that nobody uses.
struct Trims(Arc<Arena>);

impl Trims {
    fn trim(&self) {
        if let Err(error) = self.0.trim() {
            tracing::debug!(%error, "memory of models that nobody uses is kept");
        }
    }
}

impl Drop for Trims {
    fn drop(&mut self) {
        self.trim();
    }
}

impl Engine for OnnxEngine {
    fn signature(&self) -> &Signature {
        self.session.signature()
    }

    fn equip(&mut self, ends: &Ends) -> Result<(), EngineError> {
        if let Some(first) = &ends.first {
            self.session.put_first(first);
        }
        self.session.leave_out(&ends.left_out);
        self.under_way.forget();
        self.ends = ends.clone();
        Ok(())
    }

    /// On the CPU provider, every failure except lack of memory is the batch's own: an operator refused its input.
    fn start(&mut self, mut inputs: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
        if let (Some(pixels), Some(first)) = (&self.ends.pixels, inputs.first_mut())
            && let Some(numbers) = pixels.normalize(&first.view(), &self.blocks)
        {
            *first = numbers?;
        }
        let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
        let named = self.session.signature().inputs.iter().zip(&views);
        let lent = named.map(|(spec, view)| value::lend(&spec.name, view));
        let mut values: Vec<_> = lent.collect::<Result<_, _>>()?;
        self.session.in_file_order(&mut values);
        let run = self.under_way.begin(&self.session.signature().left_out)?;
        let outputs = self.session.inner().run_with_options(values.as_slice(), run.options());
        let outputs = outputs.map_err(|error| {
            let error = failure::of_run(&error);
            if matches!(error, EngineError::OutOfMemory(_)) {
                // What larger batches of others left in the arena may be in its way. It is run once more.
                self.trims.trim();
            }
            error
        })?;
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
        self.trims.trim();
    }
}
