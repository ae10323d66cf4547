//! Fakes of what a machine without a GPU lacks, for tests: a CUDA driver, NVML and nvJPEG.
//!
//! - [`library`]: compiles a folder of C++ into a shared library, once per content.
//! - [`cuda`]: `tests/fake_cuda`, which is `libcuda.so` to this process once it is loaded.
//! - [`example`]: programs of tests, built.
//! - [`nvjpeg`]: `tests/fake_nvjpeg`, which whoever looks for nvJPEG finds once it is loaded.
//! - [`nvml`]: `tests/fake_nvml`, which is given to whoever looks for NVML by its path.
//!
//! A test binary takes this folder with `#[path = "../fakes/mod.rs"] mod fakes;`. The fakes' state is the process's, so tests that
//! use them take turns, which starting one sees to.
#![allow(dead_code, reason = "each binary uses a part")]

pub mod cuda;
pub mod example;
pub mod library;
pub mod nvjpeg;
pub mod nvml;
mod text;
