//! Sessions: a model file, loaded for a provider.
#![allow(unsafe_code)]

use super::{
    Runtime,
    binding::Binding,
    external::{self, Beside},
    failure::{self, first_line},
    gpu::{ConvSearch, OnGpu, Provider},
    placement::{self, Placement, checked},
    shapes::{self, End, OutputShapes},
    threads::Threads,
};
use crate::engine::{Dim, EngineError, Signature};
use ort::{
    AsPointer,
    ep::{self, ArenaExtendStrategy, ExecutionProviderDispatch},
    session::{RunOptions, Session as OrtSession, builder::GraphOptimizationLevel},
    value::DynValue,
};
use std::{
    ffi::{CStr, CString, c_char},
    path::Path,
    ptr,
};

/// What a model is loaded for.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) enum Target<'a> {
    /// The CPU, with so many threads that share one operator, the calling one included.
    Cpu(usize),
    /// A GPU.
    Gpu(GpuTarget<'a>),
}

/// A GPU, and how a model is to be loaded on it.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct GpuTarget<'a> {
    /// The GPU's number in this process.
    pub(in crate::engine) ordinal: i32,
    /// The stream that all work goes to; it outlives the session.
    pub(in crate::engine) stream: *mut (),
    /// What the model's author asks for.
    pub(in crate::engine) asked: &'a OnGpu,
    /// Whether runs can be recorded as CUDA graphs.
    pub(in crate::engine) graphs: bool,
    /// Items of the largest batch.
    pub(in crate::engine) items_max: usize,
    /// Bytes that ONNX Runtime may take for weights and between layers.
    pub(in crate::engine) arena_bytes_max: u64,
    /// Where TensorRT keeps what it has built.
    pub(in crate::engine) cache: Option<&'a Path>,
}

/// A loaded model.
pub(in crate::engine) struct Session {
    session: OrtSession,
    signature: Signature,
    outputs: OutputShapes,
}

impl Session {
    /// Loads a model.
    ///
    /// # Errors
    /// If the file is no model that ONNX Runtime takes, has inputs or outputs other than tensors, or the provider cannot be had.
    pub(in crate::engine) fn load(
        runtime: &Runtime,
        path: &Path,
        target: Target<'_>,
    ) -> Result<Session, String> {
        let providers = match target {
            Target::Cpu(_) => Vec::new(),
            Target::Gpu(gpu) => providers(runtime, path, gpu)?,
        };
        let (threads, graphs) = match target {
            Target::Cpu(threads) => (threads, false),
            Target::Gpu(gpu) => (1, gpu.graphs),
        };
        // TensorRT reads a model's files itself, while it builds.
        let reads_itself = |gpu: GpuTarget<'_>| matches!(gpu.asked.provider, Provider::TensorRt { .. });
        let weights = match target {
            Target::Gpu(gpu) if reads_itself(gpu) => Vec::new(),
            _ => {
                let name = path.file_name().unwrap_or_default().display();
                external::read(path).map_err(|reason| format!("{name}: {reason}"))?
            }
        };
        let others = match threads.saturating_sub(1) {
            0 => None,
            others => Some(Threads::start(others)?),
        };
        let session = commit(runtime, path, (others, threads, graphs), &providers, weights);
        let session = session.map_err(|error| first_line(error.message()))?;
        let (signature, outputs) = shapes::of(&session)?;
        let mut session = Session { session, signature, outputs };
        if let Target::Gpu(_) = target {
            session.leave_open_what_the_cpu_gives();
        }
        Ok(session)
    }

    /// What it takes and gives.
    pub(in crate::engine) fn signature(&self) -> &Signature {
        &self.signature
    }

    /// What is known of its outputs before a run.
    pub(in crate::engine) fn outputs(&self) -> &OutputShapes {
        &self.outputs
    }

    /// ONNX Runtime's own.
    pub(in crate::engine) fn inner(&mut self) -> &mut OrtSession {
        &mut self.session
    }

    /// Has ONNX Runtime's own outlive this, for good: to end it in a context that failed throws where nobody catches, which ends the
    /// process.
    pub(in crate::engine) fn leak(&self) {
        std::mem::forget(self.session.inner());
    }

    /// Where its nodes run.
    ///
    /// # Errors
    /// Where ONNX Runtime does not say.
    pub(in crate::engine) fn placement(&self) -> Result<Placement, String> {
        Placement::of(&self.session)
    }

    /// For each input, whether the GPU reads it; else the CPU does, at once.
    ///
    /// # Errors
    /// Where ONNX Runtime does not say.
    pub(in crate::engine) fn inputs_on_gpu(&self) -> Result<Vec<bool>, String> {
        let names = self.memory_of(End::Input)?;
        Ok(names.iter().map(|name| name.as_c_str() == c"Cuda").collect())
    }

    /// Has ONNX Runtime make memory for outputs that the CPU computes, or that a node leaves in its memory (`Shape`). To memory of the GPU
    /// it would copy them behind the run, of whatever size they are, and a recorded run would copy what lies at that address by then.
    fn leave_open_what_the_cpu_gives(&mut self) {
        match self.memory_of(End::Output) {
            Ok(names) => {
                let on_host = |name: &CString| matches!(name.to_bytes(), b"Cpu" | b"CudaPinned");
                self.outputs.leave_open(&names.iter().map(on_host).collect::<Vec<_>>());
            }
            // Of an output that no node computes it does not say.
            Err(why) => tracing::debug!(why, "ONNX Runtime does not say where outputs come from"),
        }
    }

    /// For each input or output, what the memory is called that nodes read it from or write it to.
    fn memory_of(&self, end: End) -> Result<Vec<CString>, String> {
        let api = ort::api();
        let (ask, count) = match end {
            End::Input => (api.SessionGetMemoryInfoForInputs, self.signature.inputs.len()),
            End::Output => (api.SessionGetMemoryInfoForOutputs, self.signature.outputs.len()),
        };
        let mut infos = vec![ptr::null(); count];
        // SAFETY: as many places as the session has inputs or outputs; what is given belongs to it.
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
    /// ONNX Runtime's words.
    pub(in crate::engine) fn binding(&self) -> Result<Binding, String> {
        Binding::new(&self.session)
    }

    /// Runs what is bound; on a GPU it is begun. The outputs come in the order in which they were bound.
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

/// How long a thread may look for work before it sleeps, in a run; between runs it sleeps at once. From one operator to the next is
/// mostly less, and waking takes longer than that. More would take the cores from decoding and from the front.
const SPIN_US: &str = "10";

/// What is left out where runs are recorded: the kernel of a convolution that was fused with what follows it gives memory back, at
/// another size, that graphs of the sizes before still read (`FusedConv` without a bias).
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
    if let Some(others) = others {
        builder = builder.with_thread_manager(others)?;
    }
    if graphs {
        let (key, value) = NOT_RECORDED;
        builder = builder.with_config_entry(key, value)?;
    }
    for (name, bytes) in weights {
        // The session has a copy of them, and these go with the builder.
        builder = builder.with_external_initializer_file_in_memory(name, bytes)?;
    }
    builder.commit_from_file(path)
}

/// What runs the model's nodes, the first that can. One that cannot be had is an error, not a model on the CPU.
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
            std::fs::create_dir_all(folder)
                .map_err(|error| format!("cannot make {} for TensorRT: {error}", folder.display()))?;
            let folder = folder.display();
            tensorrt = tensorrt
                .with_engine_cache(true)
                .with_engine_cache_path(&folder)
                .with_timing_cache(true)
                .with_timing_cache_path(&folder);
        }
        // Without ranges, it builds an engine again for every batch size that it meets.
        let signature = Session::load(runtime, path, Target::Cpu(1))?.signature;
        if let Some([least, most]) = profile(&signature, gpu.items_max) {
            tensorrt = tensorrt
                .with_profile_min_shapes(&least)
                .with_profile_opt_shapes(&most)
                .with_profile_max_shapes(&most);
        }
        // SAFETY: whoever loads for a GPU keeps the stream longer than the session.
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

/// The shapes that inputs have at one item and at the most, as TensorRT reads them; `None` where more than the batch is free.
fn profile(signature: &Signature, items_max: usize) -> Option<[String; 2]> {
    if !signature.unshaped.is_empty() {
        return None;
    }
    let shapes = |items: usize| {
        let input = |input: &crate::engine::TensorSpec| {
            let extents = input.shape.iter().enumerate().map(|(axis, dim)| match dim {
                Dim::Fixed(n) => Some(n.to_string()),
                Dim::Free if axis == 0 => Some(items.to_string()),
                Dim::Free => None,
            });
            let extents: Option<Vec<String>> = extents.collect();
            extents.map(|extents| format!("{}:{}", input.name, extents.join("x")))
        };
        let inputs: Option<Vec<String>> = signature.inputs.iter().map(input).collect();
        inputs.map(|inputs| inputs.join(","))
    };
    Some([shapes(1)?, shapes(items_max)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{DataType, TensorSpec};

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
        };
        assert_eq!(profile(&signature, 16), Some(["a:1x3x8,b:1x3".into(), "a:16x3x8,b:16x3".into()]));
        signature.inputs[0].shape[2] = Dim::Free;
        assert_eq!(profile(&signature, 16), None);
    }
}
