//! The memory of all models on the CPU: one arena, from which sessions allocate weights, intermediate tensors and outputs.
//!
//! Without it each session has an arena of its own. Then every model keeps what its largest batch took, though on the CPU few run at
//! the same time, and nothing bounds them: one input that says how long an output is (of `Range`, `Tile` or `Resize`) would have the
//! system kill the server. Here a run that finds no room fails alone.

#![allow(unsafe_code)]

use super::placement::checked;
use ort::{
    AsPointer,
    editor::{Graph, Model, Node, ONNX_DOMAIN, Opset},
    environment::Environment,
    memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType},
    session::{RunOptions, Session, builder::SessionBuilder},
    value::{Outlet, Shape, SymbolicDimensions, Tensor, TensorElementType, ValueType},
};
use parking_lot::Mutex;
use std::ptr;

/// The arena. Sessions allocate from it if they are built with [`Arena::used_by`].
pub(super) struct Arena {
    bytes_max: usize,
    /// ONNX Runtime releases memory at the end of a run that asks for it, and in no other way.
    smallest: Mutex<Session>,
}

impl Arena {
    /// Registers it with the process's environment, in which there can be one.
    ///
    /// # Errors
    /// ONNX Runtime's message.
    pub(super) fn register(environment: &Environment, bytes_max: u64) -> Result<Arena, String> {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let memory = MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Arena, MemoryType::Default);
        let memory = memory.map_err(|error| error.to_string())?;
        let (api, mut settings) = (ort::api(), ptr::null_mut());
        let (keys, values) = ([c"max_mem".as_ptr()], [bytes_max]);
        // SAFETY: both arrays have one entry, and are copied.
        checked(unsafe { (api.CreateArenaCfgV2)(keys.as_ptr(), values.as_ptr(), 1, &raw mut settings) })?;
        // SAFETY: all three live until the call returns, which copies what it needs.
        let registered =
            unsafe { (api.CreateAndRegisterAllocator)(environment.ptr().cast_mut(), memory.ptr(), settings) };
        // SAFETY: nothing uses the settings any more.
        unsafe { (api.ReleaseArenaCfg)(settings) };
        checked(registered)?;
        let smallest = smallest(environment, bytes_max).map_err(|error| error.to_string())?;
        Ok(Arena { bytes_max, smallest: Mutex::new(smallest) })
    }

    /// Has a session allocate from the arena. What is folded into weights when it is loaded is no larger either.
    ///
    /// # Errors
    /// ONNX Runtime's.
    pub(super) fn used_by(&self, session: SessionBuilder) -> ort::Result<SessionBuilder> {
        used(session, self.bytes_max)
    }

    /// Gives back to the system what nobody uses at this moment.
    ///
    /// # Errors
    /// ONNX Runtime's; the memory is then kept.
    pub(super) fn trim(&self) -> ort::Result<()> {
        let mut options = RunOptions::new()?;
        options.set("memory.enable_memory_arena_shrinkage", "cpu:0")?;
        let input = Tensor::from_array(([1_usize], vec![0.0_f32]))?;
        self.smallest.lock().run_with_options(ort::inputs![input], &options).map(drop)
    }
}

fn used(session: SessionBuilder, bytes_max: usize) -> ort::Result<SessionBuilder> {
    let folded_max = bytes_max.to_string();
    let session = session.with_env_allocators()?;
    Ok(session.with_config_entry("optimization.constant_folding_max_output_size_in_bytes", folded_max)?)
}

/// The smallest model there can be, which hands on a number.
fn smallest(environment: &Environment, bytes_max: usize) -> ort::Result<Session> {
    let number = |name| {
        let dimension_symbols = SymbolicDimensions::empty(1);
        let shape = Shape::new([1]);
        Outlet::new(name, ValueType::Tensor { ty: TensorElementType::Float32, shape, dimension_symbols })
    };
    let mut graph = Graph::new()?;
    graph.set_inputs([number("from")])?;
    graph.set_outputs([number("to")])?;
    graph.add_node(Node::new("Identity", ONNX_DOMAIN, "hand on", ["from"], ["to"], [])?)?;
    let mut model = Model::new([Opset::new(ONNX_DOMAIN, 17)?])?;
    model.set_graph(graph)?;
    let session = Session::builder(environment)?.with_intra_threads(1)?;
    model.into_session(&used(session, bytes_max)?)
}
