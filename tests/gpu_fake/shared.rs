//! Processes that share a machine: what one holds is missing to the other.

use std::{env, fs};

use cudarc::driver::{CudaContext, sys::CUresult};
use nvml_wrapper::Nvml;

use crate::{
    child::in_child,
    fakes::{
        cuda,
        nvml::{FakeNvml, library},
    },
    support::{allocate, code, context},
};

const MIB: u64 = 1 << 20;

/// The processes on the GPU and what they hold together, MiB.
fn seen() -> (usize, u64) {
    let _fake = FakeNvml::start("follow");
    let nvml = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
    let device = nvml.device_by_index(0).unwrap();
    (device.running_compute_processes().unwrap().len(), device.memory_info().unwrap().used / MIB)
}

/// Runs `act` in a process that shares `file`.
fn check(test: &str, file: &str, act: impl FnOnce()) {
    let variables = [("FAKE_CUDA_SHARED", file), ("FAKE_CUDA", "devices memory=1GiB context=100MiB")];
    if let Some(output) = in_child(&format!("shared::{test}"), &variables, act) {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

/// What the process that came first holds while `second` runs in another, and what that one finds.
const SECOND: &str = "FAKE_SECOND";

#[test]
fn two_processes_share_the_memory_of_a_gpu() {
    let test = "two_processes_share_the_memory_of_a_gpu";
    let file = env::var("FAKE_CUDA_SHARED").unwrap_or_else(|_| {
        let file = env::temp_dir().join(format!("fake-cuda-shared-{}", std::process::id()));
        file.to_str().unwrap().to_owned()
    });
    check(test, &file, || {
        cuda::load();
        if env::var_os(SECOND).is_some() {
            return second();
        }
        assert_eq!(seen(), (0, 0));
        let context = context(0);
        let stream = context.new_stream().unwrap();
        let memory = allocate(&stream, 150 << 20).unwrap();
        assert_eq!(seen(), (1, 700));
        // The second is killed with its memory, as a process may be.
        let output = std::process::Command::new(env::current_exe().unwrap())
            .args(["--exact", &format!("shared::{test}"), "--nocapture"])
            .env(SECOND, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && said.contains("the second held memory"), "{said}");
        assert_eq!(seen(), (1, 700), "what the dead held is free");
        drop(memory);
    });
    let _ = fs::remove_file(file);
}

fn second() {
    assert_eq!(seen(), (1, 700));
    let context = CudaContext::new(0).unwrap();
    assert_eq!(seen(), (2, 800));
    let stream = context.new_stream().unwrap();
    assert_eq!(code(allocate(&stream, 75 << 20)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let _memory = allocate(&stream, 50 << 20).unwrap();
    assert_eq!(seen(), (2, 1000));
    println!("the second held memory");
    std::process::abort();
}
