//! GPUs, through NVIDIA's driver, which is found at run time. Building needs nothing of CUDA, and running needs none of its
//! libraries but the driver's.
//!
//! - [`driver`]: finds the driver and GPUs, or says in one line why there are none.
//! - [`context`]: a GPU that this process has taken. `streams`: its streams and events.
//! - [`numa`]: the processors near it.
//! - [`memory`]: buffers on it; [`host`]: pinned host memory, which it copies from and to by itself.
//! - [`module`]: our kernels on it; `preprocess`: those that turn images into items.
//! - [`canary`]: checks that it computes correctly.
//! - [`fault`]: what follows from an error.
//! - [`jpeg`]: decodes JPEGs when the CPU has too many of them.
//! - [`gauss_mle`]: the fitter; [`onnx`]: ONNX Runtime.
//!
//! Everything holds a reference to its [`Context`]; the GPU is released when the last of these is dropped.

pub mod canary;
pub mod context;
pub mod driver;
pub mod fault;
pub mod gauss_mle;
pub mod host;
pub mod jpeg;
pub mod memory;
pub mod module;
pub mod numa;
pub mod onnx;
mod preprocess;
mod streams;

pub use super::gpu::{Gpu, Version};
pub use canary::Canary;
pub use context::{Context, MemoryInfo, headroom_bytes, remains};
pub use driver::{Driver, NoGpu, keep_kernels_in, probe};
pub use fault::{CudaError, Fault};
pub use host::HostMemory;
pub use memory::{Buffer, Heap};
pub use module::{Kernel, Module};
pub use streams::{Event, Streams};
