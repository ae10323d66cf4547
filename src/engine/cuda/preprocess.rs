//! Loads and launches the kernels that turn images into items.
#![allow(unsafe_code)]

use super::{Context, CudaError, Kernel, Module};
use crate::engine::kernels::preprocess::{KERNELS, Launch, PreprocessCall, THREADS};
use cudarc::driver::CudaStream;

const PTX: &str = include_str!("../../../kernels/generated/preprocess.ptx");

/// The kernels, in the order of [`KERNELS`].
#[derive(Debug)]
pub(super) struct Preprocessor([Kernel; KERNELS.len()]);

impl Preprocessor {
    /// Loads the kernels.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub(super) fn new(context: &Context) -> Result<Preprocessor, CudaError> {
        let module = Module::load(context, "preprocess", PTX)?;
        let [any, plain, narrow, finished] = KERNELS.map(|name| module.kernel(name));
        Ok(Preprocessor([any?, plain?, narrow?, finished?]))
    }

    /// Enqueues the kernels for the items of a batch.
    ///
    /// # Safety
    /// The call's images, tables and items are on the device as its batch described them, until the stream has passed this.
    pub(super) unsafe fn launch(
        &self,
        launches: &[Launch],
        call: &PreprocessCall,
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        for launch in launches {
            // SAFETY: the caller's promise.
            unsafe { self.0[launch.kernel].launch_grid(stream, launch.blocks, THREADS, call) }?;
        }
        Ok(())
    }
}
