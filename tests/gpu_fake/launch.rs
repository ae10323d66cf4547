//! Launches: kernels that meet at barriers, and the product's own against their host entries.
#![allow(unsafe_code, reason = "launches are unsafe")]

use cudarc::driver::{LaunchConfig, PushKernelArg, sys::CUresult};

use crate::{
    fakes::cuda::FakeCuda,
    support::{code, context, kernel},
};

fn config(blocks: u32, threads: u32, shared_mem_bytes: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes }
}

#[test]
fn threads_of_a_block_meet_and_share_memory() {
    let _fake = FakeCuda::start("");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let sums = kernel(&context, "fake_block_sums");
    for threads in [32, 100, 256, 1024] {
        let values: Vec<f32> = (0..5000u16).map(|i| f32::from(i % 17)).collect();
        let blocks = 5000u32.div_ceil(threads);
        let (from, mut to) =
            (stream.clone_htod(&values).unwrap(), stream.alloc_zeros::<f32>(blocks as usize).unwrap());
        // SAFETY: the kernel stays within 5000 values, a sum per block, and 4 bytes of shared memory per thread.
        unsafe {
            let mut launch = stream.launch_builder(&sums);
            launch
                .arg(&from)
                .arg(&mut to)
                .arg(&5000u32)
                .launch(config(blocks, threads, 4 * threads))
                .unwrap();
        }
        let expected: Vec<f32> = values.chunks(threads as usize).map(|block| block.iter().sum()).collect();
        assert_eq!(stream.clone_dtoh(&to).unwrap(), expected, "{threads} threads");
    }
}

#[test]
fn a_twin_stands_for_the_whole_grid() {
    let _fake = FakeCuda::start("");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let whole = kernel(&context, "fake_whole_grid");
    let mut threads = stream.alloc_zeros::<u32>(1).unwrap();
    // SAFETY: the twin writes one word.
    unsafe { stream.launch_builder(&whole).arg(&mut threads).launch(config(7, 64, 0)) }.unwrap();
    assert_eq!(stream.clone_dtoh(&threads).unwrap(), [448]);
}

#[test]
fn a_grid_that_no_device_takes_is_refused() {
    let _fake = FakeCuda::start("");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let whole = kernel(&context, "fake_whole_grid");
    let mut memory = stream.alloc_zeros::<u32>(1).unwrap();
    for wrong in [config(0, 64, 0), config(1, 1025, 0), config(1, 64, 49 << 10)] {
        // SAFETY: never runs.
        let launched = unsafe { stream.launch_builder(&whole).arg(&mut memory).launch(wrong) };
        assert_eq!(code(launched), CUresult::CUDA_ERROR_INVALID_VALUE, "{wrong:?}");
    }
    // More shared memory is to be asked for.
    let attribute =
        cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    whole.set_attribute(attribute, 100 << 10).unwrap();
    // SAFETY: the twin writes one word.
    unsafe { stream.launch_builder(&whole).arg(&mut memory).launch(config(1, 64, 100 << 10)) }.unwrap();
}
