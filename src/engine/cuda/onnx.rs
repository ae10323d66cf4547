//! ONNX Runtime on a GPU, with our own streams and memory. It has the inputs and outputs of
//! [`OnnxEngine`](crate::engine::onnx::OnnxEngine), and three batches in flight. One is copied in, one is computed and one is copied
//! out, each on a stream of its own.
//!
//! Device memory for inputs, and for outputs whose shapes follow from the inputs', is allocated once per batch size (`bucket`). Pixels
//! are copied to memory of their own, and a kernel converts them to numbers (`pixels`). Another kernel reduces an output before it
//! leaves the device (`reduced`). `launch` enqueues these steps; `graphs` records and replays them, for networks that `recordable`
//! accepts; `met` is what is known about shapes. `kept` is the session, and how it ends. `place` has the resources of a batch in flight,
//! `flight` its pending results; `idle` releases memory. ONNX Runtime allocates the rest from an arena of its own, which grows with the
//! first batch of a size. The free memory of the device then shows how much it has taken.
//!
//! Bindings are dropped before the session, and the session before the stream that it was created with. Values of ONNX Runtime's hold
//! the session, so whoever holds such a value must hold the streams as well.
#![allow(unsafe_code)]

mod bucket;
mod flight;
mod graphs;
mod idle;
mod kept;
mod launch;
mod met;
mod pixels;
mod place;
mod recordable;
mod reduced;

pub use crate::engine::onnx::gpu::Load;

use super::{Context, Heap, HostMemory, Streams};
use crate::engine::{
    DataType, Ends, Engine, EngineError, Flight, Habits, Setting, Signature, Tensor,
    ends::Reading,
    onnx::{
        Placement, Runtime,
        binding::Where,
        gpu::{CudaGraph, Provider},
        session::{GpuTarget, Target},
    },
    staging::{Blocks, Memory},
};
use bucket::{Bucket, Output};
use graphs::Graphs;
use kept::Kept;
use met::Met;
use ort::session::RunOptions;
use pixels::Normalizer;
use place::Place;
use reduced::{Reducer, Scores};
use std::{
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
};

/// Batches in flight, if memory allows.
const DEPTH: usize = 3;

/// One run in so many is waited for. ONNX Runtime only frees host memory that its kernels have the GPU read (such as the addresses of
/// the parts of Concat and Split) after such a run. Otherwise some kB per run would accumulate.
const WAITED_EVERY: u64 = 512;

/// A model on a GPU.
pub struct OnnxOnGpu {
    /// Declared, and so dropped, before the session, to which their bindings belong.
    places: Vec<Place>,
    /// Declared before the streams, on one of which it works.
    session: Kept,
    streams: Arc<Streams>,
    heap: Arc<Heap>,
    device: Where,
    /// For each input, whether the GPU reads it.
    on_gpu: Vec<bool>,
    /// Whether there are outputs of known shape, which are then written to our own memory.
    bind_outputs: bool,
    /// What is known about input shapes, such as those for which the outputs do not have the expected shapes.
    met: Met,
    graphs: Graphs,
    /// Whether a batch of another size than the previous one is planned anew, unless it is replayed.
    plans: bool,
    /// Bytes that ONNX Runtime has taken for the model, and in addition for batches.
    weights: u64,
    arena: u64,
    /// Converts pixels to numbers, if the GPU reads the input.
    normalizer: Option<Normalizer>,
    /// Reduces an output, if one can be reduced.
    reducer: Option<Reducer>,
    /// Converts pixels on the host, if the host reads the input.
    ends: Ends,
    results: Blocks,
    /// Memory in which the host converts pixels.
    inputs: Blocks,
    /// Free places, the channel by which they come back, and the number of places in use.
    free: Receiver<usize>,
    back: Sender<usize>,
    in_use: usize,
    /// Places that are not used for lack of memory, until the engine is idle.
    given_up: Vec<usize>,
    batches: u64,
    /// Whether a batch has been begun.
    has_run: bool,
    /// The options of runs that are waited for.
    waited: RunOptions,
    /// Declared last, so that it is dropped last: what was made in the context keeps the GPU's, too.
    context: Arc<Context>,
}

impl OnnxOnGpu {
    /// Loads a model on a GPU, and logs where its nodes run.
    ///
    /// # Errors
    /// If ONNX Runtime does not accept the file, the provider is unavailable, too little memory is free, or a node would run on the CPU
    /// that must not.
    pub fn load(runtime: &Runtime, context: &Arc<Context>, load: &Load) -> Result<OnnxOnGpu, String> {
        if load.on_host {
            let (engine, _) = OnnxOnGpu::load_on_host(runtime, context, &load.path)?;
            let records = load.asked.cuda_graph == CudaGraph::Always;
            return Ok(if records { engine.recording() } else { engine });
        }
        runtime.check_gpu(context.gpu())?;
        let too_old = recordable::too_old(runtime.check_replays(), &load.asked)?;
        let ordinal = i32::try_from(context.gpu().ordinal).map_err(|_| "no such GPU".to_owned())?;
        let streams = Arc::new(context.streams().map_err(|error| error.to_string())?);
        let memory = context.memory().map_err(|error| error.to_string())?;
        let arena_bytes_max = memory.part(load.instances, load.memory_bytes_max);
        // With `auto`, graphs are only tried if nothing speaks against it.
        let tried = load.asked.cuda_graph == CudaGraph::Auto && load.asked.records();
        let unlisted = too_old.or_else(|| tried.then(|| recordable::unlisted(&load.path)).flatten());
        let target = GpuTarget {
            ordinal,
            stream: streams.compute.cu_stream().cast(),
            asked: &load.asked,
            graphs: load.asked.records() && unlisted.is_none(),
            items_max: load.items_max,
            arena_bytes_max,
            cache: load.cache.as_deref(),
        };
        let session = |target| Kept::load(runtime, &load.path, Target::Gpu(target), (context, &streams));
        let with = session(target);
        let (session, refused) = if target.graphs && tried {
            // ONNX Runtime refuses to record, for example, nodes on the CPU.
            let fit = with.and_then(|session| match recordable::speaks_against(&session)? {
                None => Ok(session),
                Some(why) => Err(why),
            });
            match fit {
                Ok(session) => (session, None),
                Err(why) => {
                    // The memory of the first session is free again.
                    let without = GpuTarget { graphs: false, ..target };
                    (session(without)?, Some(why))
                }
            }
        } else {
            let session = with?;
            let why = if target.graphs { recordable::drawing(&session.placement()?) } else { unlisted };
            (session, why)
        };
        let placement = session.placement()?;
        let name = load.path.display().to_string();
        let graphs = Graphs::new(name, load.asked.cuda_graph, target.graphs && refused.is_none());
        let recorded = if target.graphs && refused.is_none() { "recorded" } else { "none" };
        if load.whole {
            placement.check_no_cpu()?;
        }
        let (model, gpu) = (load.path.display(), context.gpu().id.as_str());
        if placement.on_cpu().is_empty() {
            tracing::info!(%model, gpu, %placement, arena_bytes_max, graphs = recorded, "loaded on a GPU");
        } else {
            tracing::warn!(
                %model, gpu, %placement, arena_bytes_max, graphs = recorded,
                "loaded on a GPU, with nodes that wait for the CPU"
            );
        }
        if let Some(why) = refused {
            graphs.tell("loaded without CUDA graphs", &why);
        }
        let on_gpu = session.inputs_on_gpu()?;
        let weights = memory.free.saturating_sub(free(context)?);
        let mut engine =
            OnnxOnGpu::around(session, streams, context, Where::Device(ordinal), on_gpu, weights)?;
        engine.graphs = graphs;
        engine.plans = load.asked.provider == Provider::Cuda;
        Ok(engine)
    }

    /// The same with the model on the CPU, for an emulated driver whose device memory is host memory. It tests everything except ONNX
    /// Runtime's own part.
    ///
    /// # Errors
    /// As [`OnnxOnGpu::load`].
    pub fn load_on_host(
        runtime: &Runtime,
        context: &Arc<Context>,
        path: &Path,
    ) -> Result<(OnnxOnGpu, Placement), String> {
        let streams = Arc::new(context.streams().map_err(|error| error.to_string())?);
        let session = Kept::load(runtime, path, Target::Cpu(1), (context, &streams))?;
        let placement = session.placement()?;
        let on_gpu = vec![true; session.signature().inputs.len()];
        let engine = OnnxOnGpu::around(session, streams, context, Where::Host, on_gpu, 0)?;
        Ok((engine, placement))
    }

    /// The same as if the CPU read its inputs, as it does those that only hold a size.
    #[must_use]
    pub fn reading_on_the_cpu(mut self) -> OnnxOnGpu {
        self.on_gpu.fill(false);
        self
    }

    /// The same as if batches could be recorded: without a GPU, a replay is just another run.
    #[must_use]
    pub fn recording(mut self) -> OnnxOnGpu {
        self.graphs = Graphs::new(String::new(), CudaGraph::Auto, true);
        self
    }

    fn around(
        session: Kept,
        streams: Arc<Streams>,
        context: &Arc<Context>,
        device: Where,
        on_gpu: Vec<bool>,
        weights: u64,
    ) -> Result<OnnxOnGpu, String> {
        let signature = session.signature();
        if signature.inputs.iter().chain(&signature.outputs).any(|spec| spec.datatype == DataType::Bytes) {
            return Err("it takes or gives strings, which only the CPU can have".to_owned());
        }
        let memory = Memory::Pinned(Arc::new(HostMemory::of(context)));
        let outputs = signature.outputs.len();
        let (back, free) = channel();
        let bind_outputs = session.outputs().any_known();
        let mut engine = OnnxOnGpu {
            places: Vec::new(),
            session,
            streams,
            context: Arc::clone(context),
            heap: Heap::new(context),
            device,
            on_gpu,
            bind_outputs,
            met: Met::new(),
            graphs: Graphs::new(String::new(), CudaGraph::Never, false),
            plans: true,
            weights,
            arena: 0,
            normalizer: None,
            reducer: None,
            ends: Ends::default(),
            // One more for the faults, which say which items could not be reduced.
            results: Blocks::for_batches(context.landing(), outputs + 1),
            inputs: Blocks::new(memory),
            free,
            back,
            in_use: 0,
            given_up: Vec::new(),
            batches: 0,
            has_run: false,
            waited: options(true).map_err(|error| error.to_string())?,
        };
        for index in 0..DEPTH {
            engine.places.push(Place::new(context).map_err(|error| error.to_string())?);
            engine.put_back(index);
        }
        engine.in_use = DEPTH;
        Ok(engine)
    }

    fn put_back(&self, place: usize) {
        self.back.send(place).expect("its receiver is ours");
    }

    /// Waits for a place with memory for these shapes. Returns the place, the index of its bucket, and whether this is the first batch of
    /// these shapes there. If there is too little memory, there is one place less from now on.
    fn place(
        &mut self,
        shapes: &[Vec<usize>],
        pixels: Option<&Reading>,
    ) -> Result<(usize, usize, bool), EngineError> {
        loop {
            let index = self.free.recv().expect("its sender is ours");
            match self.bucket(index, shapes, pixels) {
                Ok((bucket, first)) => return Ok((index, bucket, first)),
                Err(EngineError::OutOfMemory(error)) if self.in_use > 1 => {
                    self.in_use -= 1;
                    self.given_up.push(index);
                    self.places[index].buckets.clear();
                    tracing::warn!(places = self.in_use, error, "fewer batches at once from now on");
                }
                Err(error) => {
                    self.put_back(index);
                    return Err(error);
                }
            }
        }
    }

    /// The bucket of a place for these shapes, and for pixels that become the first input, and whether it is new.
    fn bucket(
        &mut self,
        place: usize,
        shapes: &[Vec<usize>],
        pixels: Option<&Reading>,
    ) -> Result<(usize, bool), EngineError> {
        let binds = self.binds_outputs(shapes);
        let known = self.places[place].position(shapes, binds);
        let made = if known.is_some() { None } else { Some(self.make(shapes)?) };
        let place = &mut self.places[place];
        let at = known.unwrap_or_else(|| {
            place.make_room();
            place.buckets.extend(made);
            place.buckets.len() - 1
        });
        if let Some(reading) = pixels {
            let expected = place.buckets[at].expect_pixels(&self.heap, reading, &self.streams.compute);
            if expected.is_err() && known.is_none() {
                // The next batch is then the first of these shapes.
                place.buckets.remove(at);
            }
            expected?;
        }
        Ok((at, known.is_none()))
    }

    /// Whether outputs of such inputs are written to our own memory.
    fn binds_outputs(&self, shapes: &[Vec<usize>]) -> bool {
        self.bind_outputs && !self.met.is_unlike(shapes)
    }

    fn make(&mut self, shapes: &[Vec<usize>]) -> Result<Bucket, EngineError> {
        let known = self.session.outputs().for_inputs(shapes);
        let binds = self.binds_outputs(shapes);
        let known = known.into_iter().map(|shape| shape.filter(|_| binds)).collect();
        let options = options(false)?;
        let mut bucket =
            Bucket::new(&self.session, &self.heap, shapes, known, self.device, &self.on_gpu, options)?;
        if let Some(reducer) = &self.reducer
            && let Some(Output::Ours { buffer, shape, .. }) = bucket.outputs.get(reducer.output())
        {
            let datatype = self.session.signature().outputs[reducer.output()].datatype;
            let scores = Scores { datatype, shape, address: buffer.address() };
            bucket.reduced = reducer.make(&self.heap, scores, &self.streams.compute)?;
        }
        Ok(bucket)
    }
}

/// The options of a run that is no part of a graph, with or without waiting for its end.
fn options(waits: bool) -> Result<RunOptions, EngineError> {
    let words = |error: ort::Error| EngineError::Device(error.message().to_owned());
    let mut options = RunOptions::new().map_err(words)?;
    if !waits {
        options.disable_device_sync().map_err(words)?;
    }
    graphs::number(&mut options, None)?;
    Ok(options)
}

fn free(context: &Context) -> Result<u64, String> {
    context.memory().map(|memory| memory.free).map_err(|error| error.to_string())
}

impl Engine for OnnxOnGpu {
    fn signature(&self) -> &Signature {
        self.session.signature()
    }

    fn equip(&mut self, ends: &Ends) -> Result<(), EngineError> {
        if let Some(from) = ends.first.as_ref().and_then(|first| self.session.put_first(first)) {
            self.on_gpu[..=from].rotate_right(1);
        }
        self.session.leave_out(&ends.left_out);
        self.ends = ends.clone();
        self.normalizer = None;
        if let (Some(pixels), Some(true)) = (&ends.pixels, self.on_gpu.first()) {
            self.normalizer = Some(Normalizer::new(&self.context, pixels)?);
        }
        let reducer = ends.reduction.as_ref().map(|reduction| Reducer::new(&self.context, reduction));
        self.reducer = reducer.transpose()?;
        Ok(())
    }

    fn depth(&self) -> usize {
        DEPTH
    }

    fn start(&mut self, inputs: Vec<Tensor>, _: Option<&Setting>) -> Result<Flight, EngineError> {
        self.try_twice(inputs, false)
    }

    fn start_reduced(&mut self, inputs: Vec<Tensor>) -> Result<Flight, EngineError> {
        self.try_twice(inputs, true)
    }

    fn memory(&self) -> Memory {
        Memory::Pinned(Arc::new(HostMemory::of(&self.context)))
    }

    fn device_bytes(&self) -> u64 {
        self.weights + self.arena + self.heap.held_bytes()
    }

    fn staging_bytes(&self) -> Option<u64> {
        Some(self.heap.held_bytes())
    }

    fn habits(&self) -> Habits {
        Habits { plans_anew: self.plans && !self.graphs.are_for_all(), unrecorded: self.graphs.unrecorded() }
    }

    fn rest(&mut self) {
        self.let_go();
    }

    fn forget(&mut self) {
        self.graphs.forget();
        self.let_go();
    }
}

impl Drop for OnnxOnGpu {
    fn drop(&mut self) {
        // Batches in flight use memory of the places; a recording that was left open would keep anybody from waiting for them.
        self.streams.end_recording();
        self.streams.settle();
        let broken = self.context.broken().is_some();
        let _unrecorded = self.context.no_recording();
        for bucket in self.places.iter_mut().flat_map(|place| place.buckets.drain(..)) {
            if broken {
                bucket.leak();
            }
        }
    }
}
