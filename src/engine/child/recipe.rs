//! Which engine to create, in a form that can be sent to another process, and the one place where engines are created.

use crate::engine::{
    Engine, EngineError,
    cuda::{self, Context, onnx::OnnxOnGpu},
    gauss_mle::GaussMle,
    onnx::{Runtime, failure::is_out_of_memory},
};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, sync::Arc};

/// Which engine to create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recipe {
    /// A network.
    Onnx {
        /// Its file.
        path: PathBuf,
        /// Threads that share one operator on the CPU.
        threads: usize,
    },
    /// A network on a GPU.
    OnnxOnGpu(cuda::onnx::Load),
    /// The fitter of Gaussian spots.
    GaussMle {
        /// Threads that share a batch on the CPU.
        threads: usize,
    },
}

/// The device on which engines are created.
#[derive(Clone)]
pub enum Place {
    /// The CPU, with ONNX Runtime or the reason why there is none.
    Cpu(Result<Runtime, String>),
    /// A GPU that the server has taken, likewise.
    Gpu(Arc<Context>, Result<Runtime, String>),
}

impl Recipe {
    /// Whether the engine compiles programs for the GPU when it is created, which takes minutes.
    pub fn builds(&self) -> bool {
        matches!(self, Recipe::OnnxOnGpu(load) if load.asked.provider.builds())
    }

    /// Creates the engine. An engine of a GPU must be created on the thread that is to own it.
    ///
    /// # Errors
    /// Why it cannot be created there.
    pub fn make(&self, place: &Place) -> Result<Box<dyn Engine + Send>, EngineError> {
        let refused = EngineError::Input;
        match (self, place) {
            (Recipe::Onnx { path, threads }, Place::Cpu(Ok(runtime))) => {
                Ok(Box::new(runtime.load_cpu(path, *threads)?))
            }
            (Recipe::OnnxOnGpu(load), Place::Gpu(context, Ok(runtime))) => {
                let engine =
                    OnnxOnGpu::load(runtime, context, load).map_err(|reason| {
                        match is_out_of_memory(&reason) {
                            true => context.judged(EngineError::OutOfMemory(reason)),
                            false => refused(reason),
                        }
                    });
                Ok(Box::new(engine?))
            }
            (Recipe::Onnx { .. }, Place::Cpu(Err(why))) | (Recipe::OnnxOnGpu(_), Place::Gpu(_, Err(why))) => {
                Err(refused(why.clone()))
            }
            (Recipe::Onnx { .. }, Place::Gpu(..)) | (Recipe::OnnxOnGpu(_), Place::Cpu(_)) => {
                Err(refused("it is to be loaded for another kind of device".to_owned()))
            }
            (Recipe::GaussMle { threads }, Place::Cpu(_)) => {
                Ok(Box::new(GaussMle::new(*threads).map_err(EngineError::Passing)?))
            }
            (Recipe::GaussMle { .. }, Place::Gpu(context, _)) => {
                Ok(Box::new(cuda::gauss_mle::GaussMle::new(context)?))
            }
        }
    }
}
