//! GPUs, through NVIDIA's driver, which is found at run time: nothing of CUDA is needed to build, and none of its libraries
//! but the driver's to run.
//!
//! - [`driver`]: what there is, or in one line why there is nothing.
//! - [`context`]: a GPU that is ours, its streams and events.
//! - [`numa`]: the processors near it.
//! - [`memory`]: buffers on it; [`host`]: memory of the host that it copies from and to by itself.
//! - [`module`]: our kernels on it; `preprocess`: those that make items of images.
//! - [`canary`]: whether it answers as it should.
//! - [`fault`]: what follows from an error.
//! - [`jpeg`]: JPEGs, for a CPU that has too many of them.
//! - [`gauss_mle`]: the fitter; [`onnx`]: ONNX Runtime.
//!
//! Everything holds on to its [`Context`], which is given back when the last of it is dropped.

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

pub use canary::canary;
pub use context::{Context, Event, MemoryInfo, Streams, headroom_bytes, remains};
pub use driver::{Driver, Gpu, NoGpu, keep_kernels_in, probe};
pub use fault::{CudaError, Fault};
pub use host::HostMemory;
pub use memory::{Buffer, Heap};
pub use module::{Kernel, Module};
