//! Engines. An instance is one model on one device, used by one thread at a time, without locks.
//!
//! - [`tensor`]: data type, shape and bytes.
//! - [`signature`]: a model's inputs and outputs.
//! - [`ends`]: the work before and after a network; [`reduction`]: reducing its outputs to what the answer needs.
//! - [`staging`]: the memory in which batches are assembled.
//! - [`onnx`]: ONNX Runtime.
//! - [`gauss_mle`]: our own fitter of Gaussian spots, on [`kernels`].
//! - [`kernels`]: our own kernels, C++ and their safe launchers.
//! - [`gpu`]: what is known of a GPU; [`cuda`]: GPUs at work, and the engines on them.
//! - [`child`]: engines in a process of their own.
//! - `regular_file`: opening files that others provide, without blocking on pipes or devices, and within a folder.

pub mod child;
pub mod cuda;
pub mod ends;
pub mod gauss_mle;
pub mod gpu;
pub mod kernels;
pub mod onnx;
pub mod reduction;
pub(crate) mod regular_file;
pub mod signature;
pub mod staging;
pub mod tensor;

pub use ends::{Ends, PixelInput};
pub use gauss_mle::Setting;
pub use reduction::{Anchors, Best, ClassMap, Reduction};
pub use signature::{Batching, Dim, Signature, TensorSpec, show};
pub use tensor::{DataType, Tensor, TensorView};

use crate::error::panic_words;
use serde::{Deserialize, Serialize};
use std::{panic, sync::Arc};

/// Why an engine did not answer: one variant for each way in which the worker reacts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum EngineError {
    /// This batch is at fault; the engine still works. The jobs of the batch are each run alone once.
    #[error("{0}")]
    Input(String),
    /// Too little memory was free for this batch; the engine still works. The jobs of the batch are run once more.
    #[error("{0}")]
    OutOfMemory(String),
    /// Neither is at fault: something beside it was in its way, and has passed, or may pass. The jobs of the batch are run once more; what
    /// is not loaded is tried again.
    #[error("{0}")]
    Passing(String),
    /// The engine or its device is at fault: drop both.
    #[error("{0}")]
    Device(String),
}

/// The result of `work`; a panic in it is a fault of the device.
pub(crate) fn caught<T>(
    whose: &str,
    work: impl FnOnce() -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    let failed = |words| EngineError::Device(format!("{whose} panicked: {}", panic_words(&words)));
    panic::catch_unwind(panic::AssertUnwindSafe(work)).map_err(failed).flatten()
}

/// A batch that an engine has started.
pub enum Flight {
    /// It is complete.
    Landed(Vec<Tensor>),
    /// It is in flight, and holds all memory that it reads and writes.
    Airborne(Box<dyn Airborne>),
}

/// A batch in flight. Dropping it also waits for it, since its memory is reused afterwards.
pub trait Airborne: Send {
    /// Waits until the batch is complete, without keeping a core busy.
    ///
    /// # Errors
    /// As [`Engine::start`].
    fn land(self: Box<Self>) -> Result<Vec<Tensor>, EngineError>;
}

impl Flight {
    /// Waits for the outputs.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn land(self) -> Result<Vec<Tensor>, EngineError> {
        match self {
            Flight::Landed(outputs) => Ok(outputs),
            Flight::Airborne(flight) => flight.land(),
        }
    }
}

/// How an engine behaves from batch to batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Habits {
    /// Whether a batch of another size than the previous one is expensive, since its work is planned anew. Such an engine is best given
    /// batches of one size.
    pub plans_anew: bool,
    /// How often memory was allocated for a batch size that was not recorded, since the maximum number of CUDA graphs was reached.
    pub unrecorded: u64,
}

/// Interrupts an engine's running batch from another thread.
pub trait Interrupt: Send + Sync {
    /// Ends the running batch, if there is one and it is `unwanted`. `unwanted` is called while the engine cannot proceed to the next
    /// batch. Returns whether the batch was told to end: it then fails with an error as soon as it can.
    fn interrupt(&self, unwanted: &dyn Fn() -> bool) -> bool;
}

/// One model, loaded on one device. Only one thread at a time uses it.
pub trait Engine {
    /// The model's inputs and outputs.
    fn signature(&self) -> &Signature;

    /// Sets the work before and after the network. From then on, its first input may come as pixels as well.
    ///
    /// # Errors
    /// [`EngineError::Input`] if the engine does not support that.
    fn equip(&mut self, ends: &Ends) -> Result<(), EngineError> {
        match *ends == Ends::default() {
            true => Ok(()),
            false => Err(EngineError::Input("this engine takes no images".to_owned())),
        }
    }

    /// Batches that may be in flight at once; at least 1.
    fn depth(&self) -> usize {
        1
    }

    /// Starts one batch. `inputs` are in the order of the signature's inputs, outputs come back in the order of its outputs. For a
    /// model that batches, all have the same `shape[0]`. They are aligned for their types, as [`Blocks`](staging::Blocks)
    /// makes them. `setting` holds the parameters that the requests of the batch set beside their tensors, for engines that take
    /// parameters. If [`Engine::depth`] batches are in flight, this waits for the oldest first.
    ///
    /// # Errors
    /// [`EngineError::Input`] if another batch may succeed, [`EngineError::OutOfMemory`] or [`EngineError::Passing`] if this one may
    /// succeed later, [`EngineError::Device`] if none will.
    fn start(&mut self, inputs: Vec<Tensor>, setting: Option<&Setting>) -> Result<Flight, EngineError>;

    /// Runs one batch from any memory: starts a copy of it, and waits for that. For rare use: the copy is in pageable memory, since
    /// pinning memory takes longer than most batches do.
    ///
    /// # Errors
    /// As [`Engine::start`].
    fn run(
        &mut self,
        inputs: &[TensorView<'_>],
        setting: Option<&Setting>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let blocks = staging::Blocks::new(staging::Memory::Plain);
        let inputs = inputs.iter().map(|view| blocks.copy(view)).collect();
        self.start(inputs, setting)?.land()
    }

    /// Starts a batch of which only the result of [`Ends::reduction`] is needed. The outputs may also come unreduced: if there is no
    /// reduction, or an item cannot be reduced.
    ///
    /// # Errors
    /// As [`Engine::start`].
    fn start_reduced(&mut self, inputs: Vec<Tensor>) -> Result<Flight, EngineError> {
        self.start(inputs, None)
    }

    /// The kind of memory in which batches for [`Engine::start`] are best assembled.
    fn memory(&self) -> staging::Memory {
        staging::Memory::Plain
    }

    /// Bytes of device memory that the engine holds; 0 if it runs in host memory.
    fn device_bytes(&self) -> u64 {
        0
    }

    /// The part of [`Engine::device_bytes`] that batches are copied into and out of, if the engine can tell it from its working memory.
    fn staging_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether batches of the same shapes take the same time whatever they contain, so that one measurement predicts the next.
    fn is_even(&self) -> bool {
        false
    }

    /// How the engine behaves from batch to batch, as of now. It may change with each batch that is started.
    fn habits(&self) -> Habits {
        Habits::default()
    }

    /// A handle that interrupts the running batch, if the engine supports that.
    fn interrupt(&self) -> Option<Arc<dyn Interrupt>> {
        None
    }

    /// Frees memory that the next batch can allocate again. Called when no batch is in flight.
    fn rest(&mut self) {}

    /// Also frees what earlier batches have set up for later ones of their kind, when no more of that kind are to come. Called when
    /// no batch is in flight.
    fn forget(&mut self) {
        self.rest();
    }
}
