//! What the checks share: contexts, the PTX of the fake's own kernels, launches.
#![allow(unsafe_code, reason = "cudarc's launches and uninitialised memory are unsafe")]

use std::sync::Arc;

use cudarc::{
    driver::{
        CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, DriverError, LaunchConfig,
        PinnedHostSlice, PushKernelArg, sys::CUresult,
    },
    nvrtc::Ptx,
};

/// Declares the kernels of `tests/machine/kernels/fake.cpp` as a compiler would; their bodies are not looked at.
pub const PTX: &str = "
.version 8.0
.target sm_75
.address_size 64
.visible .entry fake_scale(
    .param .u64 fake_scale_param_0,
    .param .u64 fake_scale_param_1,
    .param .f32 fake_scale_param_2,
    .param .u32 fake_scale_param_3
) { ret; }
.visible .entry fake_block_sums(.param .u64 in, .param .u64 out, .param .u32 count)
.maxntid 1024, 1, 1
{ ret; }
.visible .entry fake_trap(.param .u64 .ptr .global .align 4 nothing) { trap; }
.visible .entry fake_whole_grid(.param .u64 out) { ret; }
.visible .entry nobody_wrote_it(.param .align 8 .b8 call[304]) { ret; }
// .entry commented_out() { }
.visible .entry math_check(.param .u64 not_what_the_source_has) { ret; }
";

/// A context whose work is ordered by our own events, as the product's is.
pub fn context(ordinal: usize) -> Arc<CudaContext> {
    let context = CudaContext::new(ordinal).unwrap();
    // SAFETY: the checks order their streams themselves.
    unsafe { context.disable_event_tracking() };
    context
}

pub fn module(context: &Arc<CudaContext>) -> Arc<CudaModule> {
    context.load_module(Ptx::from_src(PTX)).unwrap()
}

pub fn kernel(context: &Arc<CudaContext>, name: &str) -> CudaFunction {
    module(context).load_function(name).unwrap()
}

/// Page-locked memory with these values.
pub fn pinned(context: &Arc<CudaContext>, values: &[f32]) -> PinnedHostSlice<f32> {
    // SAFETY: written before it is read.
    let mut memory = unsafe { context.alloc_pinned_with_flags::<f32>(values.len(), 0) }.unwrap();
    memory.as_mut_slice().unwrap().copy_from_slice(values);
    memory
}

pub fn allocate(stream: &Arc<CudaStream>, count: usize) -> Result<CudaSlice<f32>, DriverError> {
    // SAFETY: what reads it comes after what writes it.
    unsafe { stream.alloc::<f32>(count) }
}

/// `out = in * factor` on the device.
pub fn scale(
    stream: &CudaStream,
    scale: &CudaFunction,
    from: &CudaSlice<f32>,
    to: &mut CudaSlice<f32>,
    factor: f32,
) {
    let count = u32::try_from(from.len()).unwrap();
    let config =
        LaunchConfig { grid_dim: (count.div_ceil(64), 1, 1), block_dim: (64, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: the parameters are those of fake.cpp, and the kernel stays within `count`.
    unsafe { stream.launch_builder(scale).arg(from).arg(to).arg(&factor).arg(&count).launch(config) }
        .unwrap();
}

/// Launches the kernel that fails on the device.
pub fn trap(stream: &CudaStream, trap: &CudaFunction, memory: &CudaSlice<f32>) -> Result<(), DriverError> {
    // SAFETY: the kernel touches nothing.
    unsafe { stream.launch_builder(trap).arg(memory).launch(LaunchConfig::for_num_elems(1)) }.map(|_| ())
}

/// The code that a call failed with.
pub fn code<T>(result: Result<T, DriverError>) -> CUresult {
    result.err().map_or(CUresult::CUDA_SUCCESS, |DriverError(code)| code)
}
