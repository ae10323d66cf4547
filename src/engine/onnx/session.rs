//! Sessions: a model file, loaded for a provider.
#![allow(unsafe_code)]

use super::{
    Runtime,
    binding::Binding,
    external::{self, Beside},
    failure::{self, of_load},
    functions,
    gpu::{ConvSearch, OnGpu, Provider},
    placement::{self, Placement, checked},
    shapes::{self, End, OutputShapes},
    threads::Threads,
};
use crate::engine::{Dim, EngineError, Signature, TensorSpec, show};
use ort::{
    AsPointer,
    ep::{self, ArenaExtendStrategy, ExecutionProviderDispatch},
    session::{RunOptions, Session as OrtSession, builder::GraphOptimizationLevel},
    value::DynValue,
};
use std::{
    ffi::{CStr, CString, c_char},
    fs::File,
    path::Path,
    ptr,
};

/// The device that a model is loaded for.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) enum Target<'a> {
    /// The CPU, with the number of threads that share one operator, the calling one included.
    Cpu(usize),
    /// A GPU.
    Gpu(GpuTarget<'a>),
}

/// Why a model is not loaded.
#[derive(Debug)]
pub(in crate::engine) enum NotLoaded {
    /// The system refuses it threads, which it may have later.
    Threads(String),
    /// Anything else.
    Failed(String),
}

impl From<String> for NotLoaded {
    fn from(reason: String) -> NotLoaded {
        NotLoaded::Failed(reason)
    }
}

impl From<NotLoaded> for String {
    fn from(not: NotLoaded) -> String {
        let (NotLoaded::Threads(reason) | NotLoaded::Failed(reason)) = not;
        reason
    }
}

impl From<NotLoaded> for EngineError {
    fn from(not: NotLoaded) -> EngineError {
        match not {
            NotLoaded::Threads(reason) => EngineError::Passing(reason),
            NotLoaded::Failed(reason) => EngineError::Input(reason),
        }
    }
}

/// A GPU, and how a model is to be loaded on it.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct GpuTarget<'a> {
    /// The GPU's number in this process.
    pub(in crate::engine) ordinal: i32,
    /// The stream for all work; it outlives the session.
    pub(in crate::engine) stream: *mut (),
    /// The options that the model's author has set.
    pub(in crate::engine) asked: &'a OnGpu,
    /// Whether runs can be recorded as CUDA graphs.
    pub(in crate::engine) graphs: bool,
    /// Items of the largest batch.
    pub(in crate::engine) items_max: usize,
    /// Bytes that ONNX Runtime may allocate for weights and intermediate tensors.
    pub(in crate::engine) arena_bytes_max: u64,
    /// The folder in which TensorRT caches what it has built.
    pub(in crate::engine) cache: Option<&'a Path>,
}

/// A loaded model.
pub(in crate::engine) struct Session {
    session: OrtSession,
    signature: Signature,
    outputs: OutputShapes,
    /// Where the first input is in the file.
    first: usize,
}

impl Session {
    /// Loads a model.
    ///
    /// # Errors
    /// If ONNX Runtime does not accept the file, the model has inputs or outputs other than tensors, or the provider is unavailable.
    pub(in crate::engine) fn load(
        runtime: &Runtime,
        path: &Path,
        target: Target<'_>,
    ) -> Result<Session, NotLoaded> {
        let name = path.file_name().unwrap_or_default().display();
        functions::check(path).map_err(|reason| format!("{name}: {reason}"))?;
        let _alone = match target {
            Target::Gpu(GpuTarget { cache: Some(folder), asked, .. }) if asked.provider.builds() => {
                alone(folder)?
            }
            _ => None,
        };
        let providers = match target {
            Target::Cpu(_) => Vec::new(),
            Target::Gpu(gpu) => providers(runtime, path, gpu)?,
        };
        let (threads, graphs) = match target {
            Target::Cpu(threads) => (threads, false),
            Target::Gpu(gpu) => (1, gpu.graphs),
        };
        let weights = match target {
            // TensorRT reads a model's files itself, while it builds.
            Target::Gpu(gpu) if gpu.asked.provider.builds() => Vec::new(),
            _ => external::read(path).map_err(|reason| format!("{name}: {reason}"))?,
        };
        let others = match threads.saturating_sub(1) {
            0 => None,
            others => Some(Threads::start(others).map_err(NotLoaded::Threads)?),
        };
        let session = commit(runtime, path, (others, threads, graphs), &providers, weights);
        let session = session.map_err(|error| of_load(error.message()))?;
        let (signature, outputs) = shapes::of(&session)?;
        let mut session = Session { session, signature, outputs, first: 0 };
        if let Target::Gpu(_) = target {
            session.leave_open_what_the_cpu_gives();
        }
        Ok(session)
    }

    /// Has the input of this name come first from now on. Returns where it was, if it came later.
    pub(in crate::engine) fn put_first(&mut self, name: &str) -> Option<usize> {
        let from = self.signature.put_first(name).filter(|from| *from > 0)?;
        self.outputs.put_first(from);
        self.first = from;
        Some(from)
    }

    /// Leaves out the outputs of these names from now on.
    pub(in crate::engine) fn leave_out(&mut self, names: &[String]) {
        let stay = self.signature.leave_out(names);
        self.outputs.keep(&stay);
    }

    /// Brings what was given for each input into the order of the file, which ONNX Runtime expects.
    pub(in crate::engine) fn in_file_order<T>(&self, given: &mut [T]) {
        if let Some(moved) = given.get_mut(..=self.first) {
            moved.rotate_left(1);
        }
    }

    /// Its inputs and outputs.
    pub(in crate::engine) fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The output shapes that are known before a run.
    pub(in crate::engine) fn outputs(&self) -> &OutputShapes {
        &self.outputs
    }

    /// ONNX Runtime's own session.
    pub(in crate::engine) fn inner(&mut self) -> &mut OrtSession {
        &mut self.session
    }

    /// Where its nodes run.
    ///
    /// # Errors
    /// If ONNX Runtime does not say.
    pub(in crate::engine) fn placement(&self) -> Result<Placement, String> {
        Placement::of(&self.session)
    }

    /// For each input, whether the GPU reads it; otherwise the CPU reads it at once.
    ///
    /// # Errors
    /// If ONNX Runtime does not say.
    pub(in crate::engine) fn inputs_on_gpu(&self) -> Result<Vec<bool>, String> {
        let names = self.memory_of(End::Input)?;
        Ok(names.iter().map(|name| name.as_c_str() == c"Cuda").collect())
    }

    /// Has ONNX Runtime allocate memory for outputs that the CPU computes, or that a node leaves in host memory (`Shape`). It would copy
    /// them to GPU memory after the run, whatever their size, and a replayed graph would copy whatever lies at that address by then.
    fn leave_open_what_the_cpu_gives(&mut self) {
        match self.memory_of(End::Output) {
            Ok(names) => {
                let on_host = |name: &CString| matches!(name.to_bytes(), b"Cpu" | b"CudaPinned");
                let is_tensor = |name: &str| self.signature.left_out.iter().all(|other| other != name);
                let tensors = names.iter().zip(self.session.outputs()).filter(|(_, o)| is_tensor(o.name()));
                self.outputs.leave_open(&tensors.map(|(name, _)| on_host(name)).collect::<Vec<_>>());
            }
            // For an output that no node computes, ONNX Runtime does not say.
            Err(why) => tracing::debug!(why, "ONNX Runtime does not say where outputs come from"),
        }
    }

    /// For each input or output of the file, the name of the memory that nodes read it from or write it to.
    fn memory_of(&self, end: End) -> Result<Vec<CString>, String> {
        let api = ort::api();
        let (ask, count) = match end {
            End::Input => (api.SessionGetMemoryInfoForInputs, self.signature.inputs.len()),
            End::Output => (api.SessionGetMemoryInfoForOutputs, self.session.outputs().len()),
        };
        let mut infos = vec![ptr::null(); count];
        // SAFETY: the array has as many entries as the session has inputs or outputs; what it returns belongs to the session.
        checked(unsafe { ask(self.session.ptr(), infos.as_mut_ptr(), count) })?;
        let name_of = |info| {
            let mut name: *const c_char = ptr::null();
            // SAFETY: the description belongs to the session, as does its name, which ends with a zero byte.
            checked(unsafe { (api.MemoryInfoGetName)(info, &raw mut name) })?;
            // SAFETY: as above.
            Ok(if name.is_null() { CString::default() } else { unsafe { CStr::from_ptr(name) }.to_owned() })
        };
        infos.into_iter().map(name_of).collect()
    }

    /// A binding with nothing bound.
    ///
    /// # Errors
    /// ONNX Runtime's message.
    pub(in crate::engine) fn binding(&self) -> Result<Binding, String> {
        Binding::new(&self.session)
    }

    /// Runs the bound inputs; on a GPU, the run is only started. Outputs come in the order in which they were bound.
    ///
    /// # Errors
    /// As [`Engine::start`](crate::engine::Engine::start).
    pub(in crate::engine) fn run(
        &mut self,
        binding: &Binding,
        options: &RunOptions,
    ) -> Result<Vec<DynValue>, EngineError> {
        let outputs = self.session.run_binding_with_options(binding.io(), options);
        let outputs = outputs.map_err(|error| failure::of_run(&error))?;
        Ok(outputs.into_iter().map(|(_, value)| value).collect())
    }
}

/// How long a thread may spin for work during a run before it sleeps, in µs; between runs it sleeps at once. The gap between operators
/// is mostly shorter, and waking takes longer. More spinning would take cores from decoding and from the HTTP front end.
const SPIN_US: &str = "10";

/// Optimisations that are disabled where runs are recorded. When the batch size changes, the kernel of a fused convolution (`FusedConv`
/// without a bias) frees memory that the graphs of earlier sizes still read.
const NOT_RECORDED: (&str, &str) =
    ("optimization.disable_specified_optimizers", "ConvActivationFusion;ConvAddActivationFusion");

fn commit(
    runtime: &Runtime,
    path: &Path,
    (others, threads, graphs): (Option<Threads>, usize, bool),
    providers: &[ExecutionProviderDispatch],
    weights: Vec<Beside>,
) -> ort::Result<OrtSession> {
    let (key, value) = placement::RECORD;
    let mut builder = OrtSession::builder(&runtime.environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(threads)?
        .with_config_entry(key, value)?
        .with_config_entry("session.intra_op.spin_duration_us", SPIN_US)?
        .with_config_entry("session.force_spinning_stop", "1")?
        .with_execution_providers(providers)?;
    if providers.is_empty() {
        builder = runtime.arena.used_by(builder)?;
    }
    if let Some(others) = others {
        builder = builder.with_thread_manager(others)?;
    }
    if graphs {
        let (key, value) = NOT_RECORDED;
        builder = builder.with_config_entry(key, value)?;
    }
    for (name, bytes) in weights {
        // The session copies the weights; these are dropped with the builder.
        builder = builder.with_external_initializer_file_in_memory(name, bytes)?;
    }
    builder.commit_from_file(path)
}

/// The providers for the model's nodes; the first that can runs a node. An unavailable provider is an error: the model does not fall
/// back to the CPU.
fn providers(
    runtime: &Runtime,
    path: &Path,
    gpu: GpuTarget<'_>,
) -> Result<Vec<ExecutionProviderDispatch>, String> {
    let mut providers = Vec::new();
    if let Provider::TensorRt { fp16 } = gpu.asked.provider {
        let mut tensorrt =
            ep::TensorRT::default().with_device_id(gpu.ordinal).with_fp16(fp16).with_cuda_graph(gpu.graphs);
        if let Some(folder) = gpu.cache {
            let folder = folder.display();
            tensorrt = tensorrt
                .with_engine_cache(true)
                .with_engine_cache_path(&folder)
                .with_timing_cache(true)
                .with_timing_cache_path(&folder);
        }
        // Without ranges of shapes, TensorRT rebuilds its engine for every new batch size.
        let signature = Session::load(runtime, path, Target::Cpu(1))?.signature;
        let [least, most] = profile(&signature, gpu.items_max)?;
        tensorrt = tensorrt
            .with_profile_min_shapes(&least)
            .with_profile_opt_shapes(&most)
            .with_profile_max_shapes(&most);
        // SAFETY: `GpuTarget::stream` outlives the session.
        let tensorrt = unsafe { tensorrt.with_compute_stream(gpu.stream) };
        providers.push(tensorrt.build().error_on_failure());
    }
    let search = match gpu.asked.conv_search {
        ConvSearch::Heuristic => ep::cuda::ConvAlgorithmSearch::Heuristic,
        ConvSearch::Exhaustive => ep::cuda::ConvAlgorithmSearch::Exhaustive,
    };
    let cuda = ep::CUDA::default()
        .with_device_id(gpu.ordinal)
        .with_memory_limit(usize::try_from(gpu.arena_bytes_max).unwrap_or(usize::MAX))
        .with_arena_extend_strategy(ArenaExtendStrategy::SameAsRequested)
        .with_conv_algorithm_search(search)
        .with_tf32(gpu.asked.tf32)
        .with_prefer_nhwc(gpu.asked.channels_last)
        .with_cuda_graph(gpu.graphs);
    // SAFETY: as above.
    let cuda = unsafe { cuda.with_compute_stream(gpu.stream) };
    providers.push(cuda.build().error_on_failure());
    Ok(providers)
}

/// Makes the folder in which TensorRT caches what it builds from a model, and has it alone until the file is closed. ONNX Runtime keeps
/// threads from reading what another is still writing, but not processes, and each GPU may be served by one. Whoever waits here finds a
/// whole engine afterwards, instead of building the same for minutes. `None` where nothing can be written, or there are no locks.
///
/// # Errors
/// If the folder cannot be made.
fn alone(folder: &Path) -> Result<Option<File>, String> {
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("cannot make {} for TensorRT: {error}", folder.display()))?;
    let lock = File::options().create(true).append(true).open(folder.join("lock"));
    let lock = lock.and_then(|file| file.lock().map(|()| file));
    Ok(lock.inspect_err(|error| tracing::warn!(%error, ?folder, "TensorRT's engines are not locked")).ok())
}

/// The input shapes for one item and for the largest batch, in TensorRT's notation.
///
/// # Errors
/// If more than the batch axis is free: TensorRT would build an engine for minutes at a request of each new shape, and the device counts
/// as stuck by then.
fn profile(signature: &Signature, items_max: usize) -> Result<[String; 2], String> {
    if let Some(input) = signature.chosen_input() {
        return Err(format!(
            "input {:?} of shape {}: with provider = \"tensorrt\" only the batch may be free, since TensorRT builds an engine for minutes \
             for each new shape; export the model with all other extents fixed, or choose provider = \"cuda\"",
            input.name,
            show(&input.shape)
        ));
    }
    let shapes = |items: usize| {
        let input = |input: &TensorSpec| {
            let extents = input.shape.iter().map(|dim| match dim {
                Dim::Fixed(n) => n.to_string(),
                Dim::Free => items.to_string(),
            });
            format!("{}:{}", input.name, extents.collect::<Vec<_>>().join("x"))
        };
        signature.inputs.iter().map(input).collect::<Vec<_>>().join(",")
    };
    Ok([shapes(1), shapes(items_max)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{DataType, TensorSpec};
    use std::fs::TryLockError;

    #[test]
    fn only_one_process_at_a_time_has_a_folder_of_engines() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("cache/of a model");
        let first = alone(&folder).unwrap().expect("it can be locked");
        let other = File::open(folder.join("lock")).unwrap();
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        drop(first);
        other.try_lock().unwrap();
        std::fs::write(folder.join("file"), "").unwrap();
        let told = alone(&folder.join("file")).unwrap_err();
        assert!(told.starts_with("cannot make ") && told.contains("file for TensorRT: "), "{told}");
    }

    #[test]
    fn tensorrt_is_told_the_range_of_batches_where_nothing_else_is_free() {
        let input = |name: &str, shape: &[Dim]| TensorSpec {
            name: name.into(),
            datatype: DataType::Fp32,
            shape: shape.to_vec(),
        };
        let fixed = [Dim::Free, Dim::Fixed(3), Dim::Fixed(8)];
        let mut signature = Signature {
            platform: String::new(),
            inputs: vec![input("a", &fixed), input("b", &fixed[..2])],
            outputs: Vec::new(),
            defaulted: Vec::new(),
            unshaped: Vec::new(),
            left_out: Vec::new(),
        };
        assert_eq!(profile(&signature, 16), Ok(["a:1x3x8,b:1x3".into(), "a:16x3x8,b:16x3".into()]));
        signature.inputs[0].shape[2] = Dim::Free;
        let told = profile(&signature, 16).unwrap_err();
        assert!(told.starts_with("input \"a\" of shape [?, 3, ?]: ") && told.contains("\"cuda\""), "{told}");
        signature.inputs[0].shape[2] = Dim::Fixed(8);
        signature.unshaped = vec!["b".into()];
        assert!(profile(&signature, 16).unwrap_err().starts_with("input \"b\""));
    }
}
