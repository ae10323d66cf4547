//! Engines: one instance is one model on one device on one thread, without locks.
//!
//! - [`tensor`]: data type, shape and bytes.
//! - [`signature`]: what a model takes and gives.
//! - [`ends`]: what is done before and behind a network, as an engine is told; [`reduction`]: what of its outputs is answered.
//! - [`staging`]: the memory in which batches are put together.
//! - [`onnx`]: ONNX Runtime.
//! - [`gauss_mle`]: our own fitter of Gaussian spots, on [`kernels`].
//! - [`kernels`]: our own kernels, C++ and their safe launchers.
//! - [`cuda`]: GPUs, and the engines on them.
//! - [`child`]: engines in a process of their own.
//! - `regular_file`: opening what others put there, and nothing that one would wait for.

pub mod child;
pub mod cuda;
pub mod ends;
pub mod gauss_mle;
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

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Why an engine did not answer: one kind for each thing that can follow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum EngineError {
    /// This batch is at fault; the engine goes on. Its jobs are run alone once.
    #[error("{0}")]
    Input(String),
    /// Too little memory was free for this batch; the engine goes on. Its jobs are run once more.
    #[error("{0}")]
    OutOfMemory(String),
    /// The engine or its device is at fault: drop both.
    #[error("{0}")]
    Device(String),
}

/// A batch that an engine has begun.
pub enum Flight {
    /// It is done already.
    Landed(Vec<Tensor>),
    /// It is on its way, and holds all that it reads and writes.
    Airborne(Box<dyn Airborne>),
}

/// What of a batch is on its way. Dropping it waits for it as well: its memory is then somebody else's.
pub trait Airborne: Send {
    /// Waits for it, without keeping a core busy.
    ///
    /// # Errors
    /// As [`Engine::start`].
    fn land(self: Box<Self>) -> Result<Vec<Tensor>, EngineError>;
}

impl Flight {
    /// Its outputs, once they are there.
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

/// How an engine takes batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Habits {
    /// Whether one of another size than the one before is dear, since its work is planned anew: such an engine is best given batches of
    /// one size.
    pub plans_anew: bool,
    /// How often memory was made for a size whose work was not recorded since there were as many CUDA graphs as there may be.
    pub unrecorded: u64,
}

/// Ends what an engine is about, from another thread.
pub trait Interrupt: Send + Sync {
    /// Ends the batch that is under way, if there is one and it is `unwanted`, which is asked while the engine cannot come to the next.
    /// Returns whether it is told to end now, which it does as soon as it can, with an error.
    fn interrupt(&self, unwanted: &dyn Fn() -> bool) -> bool;
}

/// One model, loaded on one device; one thread at a time has it.
pub trait Engine {
    /// What the model takes and gives.
    fn signature(&self) -> &Signature;

    /// Learns what is done at the ends of the network: from then on, its first input may come as pixels as well.
    ///
    /// # Errors
    /// [`EngineError::Input`] where it can do no such thing.
    fn equip(&mut self, ends: &Ends) -> Result<(), EngineError> {
        match *ends == Ends::default() {
            true => Ok(()),
            false => Err(EngineError::Input("this engine takes no images".to_owned())),
        }
    }

    /// Batches that may be on their way at once; at least 1.
    fn depth(&self) -> usize {
        1
    }

    /// Begins one batch. `inputs` are in the order of the signature's inputs, outputs come back in the order of its
    /// outputs; for a model that batches, all have the same `shape[0]`. They are aligned for their types, as an
    /// [`Assembler`](staging::Assembler) makes them. `setting` is what the requests of the batch ask for beside their tensors, for
    /// engines that know any. Waits for the oldest one on its way where there are [`Engine::depth`].
    ///
    /// # Errors
    /// [`EngineError::Input`] where another batch may succeed, [`EngineError::OutOfMemory`] where this one may later,
    /// [`EngineError::Device`] where none will.
    fn start(&mut self, inputs: Vec<Tensor>, setting: Option<&Setting>) -> Result<Flight, EngineError>;

    /// Runs one batch that may lie anywhere: starts a copy of it, and waits for that. For what is seldom: the copy is not in memory that
    /// a device knows, which takes longer to make than most batches do.
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

    /// Begins a batch of which only what is left after [`Ends::reduction`] is wanted. What comes may be that, or the outputs as they
    /// are: where there is none, or an item cannot be reduced.
    ///
    /// # Errors
    /// As [`Engine::start`].
    fn start_reduced(&mut self, inputs: Vec<Tensor>) -> Result<Flight, EngineError> {
        self.start(inputs, None)
    }

    /// What the batches given to [`Engine::start`] are best put together in.
    fn memory(&self) -> staging::Memory {
        staging::Memory::Plain
    }

    /// Bytes that it holds on a device of its own; 0 for what runs in the host's memory.
    fn device_bytes(&self) -> u64 {
        0
    }

    /// Of [`Engine::device_bytes`], what batches are copied into and out of, where that is told apart from what the engine works in.
    fn staging_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether batches of the same shapes take the same time whatever is in them: one that was measured tells how long the next takes.
    fn is_even(&self) -> bool {
        false
    }

    /// How it takes batches by now. It may change with each one that is begun.
    fn habits(&self) -> Habits {
        Habits::default()
    }

    /// What ends a batch that it is about, where something can.
    fn interrupt(&self) -> Option<Arc<dyn Interrupt>> {
        None
    }

    /// Lets go of memory that the next batch can get again. No batch is on its way.
    fn rest(&mut self) {}

    /// Lets go of all that batches so far had made for those like them, which are not to come any more. No batch is on its way.
    fn forget(&mut self) {
        self.rest();
    }
}
