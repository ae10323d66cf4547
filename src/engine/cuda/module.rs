//! Our kernels on the device: PTX text that is part of the binary. The driver compiles it for the GPU when it is first loaded, and
//! caches the result ([`keep_kernels_in`](super::keep_kernels_in)).
#![allow(unsafe_code)]

use super::{Context, CudaError, context::enter};
use bytemuck::NoUninit;
use cudarc::{
    driver::{
        CudaFunction, CudaModule, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg,
        sys::{CUfunction_attribute_enum as Attribute, CUresult as Code},
    },
    nvrtc::Ptx,
};
use std::sync::Arc;

/// The kernels of one source file.
#[derive(Debug)]
pub struct Module {
    name: &'static str,
    cuda: Arc<CudaModule>,
}

/// One kernel.
#[derive(Debug, Clone)]
pub struct Kernel(CudaFunction);

/// A kernel argument passed by value, without padding. The fake driver scans arguments word by word for addresses of freed memory, and
/// would find stale values in padding.
#[repr(transparent)]
struct ByValue<A>(A);

// SAFETY: plain data; whoever launches the kernel promises that it is what the kernel takes.
unsafe impl<A: NoUninit> DeviceRepr for ByValue<A> {}

impl Module {
    /// Loads PTX; `name` is that of its source, for messages.
    ///
    /// # Errors
    /// If the driver is too old for the text, or the GPU for the code.
    pub fn load(context: &Context, name: &'static str, ptx: &str) -> Result<Module, CudaError> {
        let loaded = enter(&context.cuda).and_then(|()| context.cuda.load_module(Ptx::from_src(ptx)));
        let cuda = loaded.map_err(|error| {
            let why = match error.0 {
                Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => "; the driver is too old for them: 525 is needed",
                Code::CUDA_ERROR_NO_BINARY_FOR_GPU | Code::CUDA_ERROR_INVALID_PTX => {
                    "; they are made for compute capability 7.5 and up"
                }
                Code::CUDA_ERROR_JIT_COMPILER_NOT_FOUND => {
                    "; the driver's compiler (libnvidia-ptxjitcompiler) is missing: containers need the capability \
                     compute (NVIDIA_DRIVER_CAPABILITIES)"
                }
                Code::CUDA_ERROR_JIT_COMPILATION_DISABLED => "; CUDA_DISABLE_PTX_JIT is set",
                _ => "",
            };
            let gpu = context.gpu();
            let (major, minor) = gpu.capability;
            let doing =
                format!("cannot load the kernels {name} on {} (compute capability {major}.{minor}){why}", gpu.id);
            CudaError::when(doing)(error)
        })?;
        Ok(Module { name, cuda })
    }

    /// The name of its source.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// One of its kernels.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn kernel(&self, name: &str) -> Result<Kernel, CudaError> {
        let found = self.cuda.load_function(name);
        found.map(Kernel).map_err(CudaError::when(format!("no kernel {name} in {}", self.name)))
    }
}

/// How a kernel is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Blocks of the grid.
    pub(super) blocks: u32,
    /// Threads of a block.
    pub(super) threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub(super) shared_bytes: u32,
}

impl Kernel {
    /// Allows blocks up to `bytes` of dynamic shared memory.
    pub(super) fn allow_shared(&self, bytes: u32) -> Result<(), CudaError> {
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let set = self.0.set_attribute(attribute, bytes.cast_signed());
        set.map_err(CudaError::when(format!("a kernel's blocks cannot share {bytes} bytes")))
    }

    /// How many of its blocks are resident on a multiprocessor at a time.
    pub(super) fn resident(&self, threads: u32, shared_bytes: u32) -> Result<u32, CudaError> {
        let asked =
            self.0.occupancy_max_active_blocks_per_multiprocessor(threads, shared_bytes as usize, None);
        asked.map_err(CudaError::when("cannot tell how a kernel fits the GPU"))
    }

    /// Enqueues it on a grid of up to three axes, with one argument.
    ///
    /// # Safety
    /// As [`Kernel::launch`].
    pub(super) unsafe fn launch_grid<A: NoUninit>(
        &self,
        stream: &CudaStream,
        blocks: [u32; 3],
        threads: [u32; 3],
        argument: &A,
    ) -> Result<(), CudaError> {
        let config = LaunchConfig { grid_dim: blocks.into(), block_dim: threads.into(), shared_mem_bytes: 0 };
        enter(stream.context()).map_err(CudaError::when("cannot launch a kernel"))?;
        // SAFETY: the caller's promise.
        let launched = unsafe { stream.launch_builder(&self.0).arg(&ByValue(*argument)).launch(config) };
        launched.map(|_| ()).map_err(CudaError::when("cannot launch a kernel"))
    }

    /// Enqueues it, with two arguments.
    ///
    /// # Safety
    /// The arguments are what the kernel takes, and all memory that they refer to stays allocated until the stream has passed this.
    pub(super) unsafe fn launch<A: NoUninit, B: NoUninit>(
        &self,
        stream: &CudaStream,
        shape: Shape,
        first: &A,
        second: &B,
    ) -> Result<(), CudaError> {
        let config = LaunchConfig {
            grid_dim: (shape.blocks, 1, 1),
            block_dim: (shape.threads, 1, 1),
            shared_mem_bytes: shape.shared_bytes,
        };
        enter(stream.context()).map_err(CudaError::when("cannot launch a kernel"))?;
        // SAFETY: the caller's promise.
        let launched = unsafe {
            stream.launch_builder(&self.0).arg(&ByValue(*first)).arg(&ByValue(*second)).launch(config)
        };
        launched.map(|_| ()).map_err(CudaError::when("cannot launch a kernel"))
    }
}
