//! Engines: one instance is one model on one device on one thread, without locks.
//!
//! - [`tensor`]: data type, shape and bytes.
//! - [`signature`]: what a model takes and gives.
//! - [`staging`]: the memory in which batches are put together.
//! - [`onnx`]: ONNX Runtime.
//! - [`gauss_mle`]: our own fitter of Gaussian spots, on [`kernels`].
//! - [`kernels`]: our own kernels, C++ and their safe launchers.

pub mod gauss_mle;
pub mod kernels;
pub mod onnx;
pub mod signature;
pub mod staging;
pub mod tensor;

pub use gauss_mle::Setting;
pub use signature::{Batching, Dim, Signature, TensorSpec};
pub use tensor::{DataType, Tensor, TensorView};

/// Why an engine did not answer: two kinds, because two things can follow.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// This batch is at fault; the engine goes on. Its jobs are run alone once.
    #[error("{0}")]
    Input(String),
    /// The engine or its device is at fault: drop both.
    #[error("{0}")]
    Device(String),
}

/// One model, loaded on one device, owned by one thread.
pub trait Engine {
    /// What the model takes and gives.
    fn signature(&self) -> &Signature;

    /// Runs one batch. `inputs` are in the order of the signature's inputs, outputs come back in the order of its
    /// outputs; for a model that batches, all have the same `shape[0]`. `setting` is what the requests of the batch ask for
    /// beside their tensors, for engines that know any.
    ///
    /// # Errors
    /// [`EngineError::Input`] where another batch may succeed, [`EngineError::Device`] where none will.
    fn run(
        &mut self,
        inputs: &[TensorView<'_>],
        setting: Option<&Setting>,
    ) -> Result<Vec<Tensor>, EngineError>;
}
