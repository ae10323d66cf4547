//! Launches: kernels that meet at barriers, and the product's own against their host entries.
#![allow(unsafe_code, reason = "launches are unsafe")]

use cudarc::{
    driver::{CudaSlice, DevicePtr, LaunchConfig, PushKernelArg, sys::CUresult},
    nvrtc::Ptx,
};

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

#[test]
fn a_kernel_takes_as_many_threads_and_as_much_memory_as_its_ptx_leaves() {
    let _fake = FakeCuda::start("");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let load = |source: &str, name: &str| {
        let (_, ptx) = committed().into_iter().find(|(path, _)| path.ends_with(source)).unwrap();
        context.load_module(Ptx::from_src(ptx)).unwrap().load_function(name).unwrap()
    };
    // Compiled for blocks of 128.
    let math = load("/math_check.ptx", "math_check");
    let mut values = stream.alloc_zeros::<f32>(256).unwrap();
    let from = stream.alloc_zeros::<f32>(256).unwrap();
    let mut launch = |threads: u32| {
        // SAFETY: math_check takes (int, const float*, float*, u64) and stays within 256 values.
        code(unsafe {
            let mut launch = stream.launch_builder(&math);
            launch.arg(&0i32).arg(&from).arg(&mut values).arg(&256u64).launch(config(2, threads, 0))
        })
    };
    assert_eq!([128, 129].map(&mut launch), [CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_INVALID_VALUE]);
    assert_eq!(math.occupancy_max_active_blocks_per_multiprocessor(256, 0, None).unwrap(), 0);
    // Has 6144 bytes of its own.
    let preprocess = load("/preprocess.ptx", "preprocess");
    let attribute =
        cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let allow = |bytes: i32| code(preprocess.set_attribute(attribute, bytes));
    let most = (227 << 10) - 6144;
    assert_eq!([most, most + 1].map(allow), [CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_INVALID_VALUE]);
}

#[test]
fn what_is_not_aligned_for_its_type_breaks_the_context() {
    let fake = FakeCuda::start("");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let scale = kernel(&context, "fake_scale");
    let (from, to) = (stream.alloc_zeros::<f32>(8).unwrap(), stream.alloc_zeros::<f32>(8).unwrap());
    let address = |memory: &CudaSlice<f32>| memory.device_ptr(&stream).0;
    for (off, expected) in [(4, CUresult::CUDA_SUCCESS), (2, CUresult::CUDA_ERROR_MISALIGNED_ADDRESS)] {
        // SAFETY: fake_scale takes (const float*, float*, float, unsigned), and stays within 4 values of 8.
        unsafe {
            let mut launch = stream.launch_builder(&scale);
            let (from, to) = (address(&from) + off, address(&to));
            launch.arg(&from).arg(&to).arg(&2f32).arg(&4u32).launch(config(1, 32, 0)).unwrap();
        }
        assert_eq!(code(stream.synchronize()), expected, "{off} bytes off");
    }
    drop((scale, from, to, stream, context));
    fake.tell("devices");
}

/// The committed PTX of every source.
fn committed() -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/generated");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let ptx = paths.filter(|path| path.extension().is_some_and(|ending| ending == "ptx"));
    ptx.map(|path| (path.display().to_string(), std::fs::read_to_string(&path).unwrap())).collect()
}

#[test]
fn every_kernel_that_is_committed_can_be_launched() {
    let _fake = FakeCuda::start("capability=7.5");
    let context = context(0);
    let mut found = 0;
    for (path, ptx) in committed() {
        let names: Vec<String> = ptx
            .split(".entry ")
            .skip(1)
            .map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
            .collect();
        let module = context.load_module(Ptx::from_src(ptx)).unwrap();
        for name in names {
            assert_eq!(code(module.load_function(&name)), CUresult::CUDA_SUCCESS, "{name} of {path}");
            found += 1;
        }
    }
    assert!(found >= 20, "{found} kernels in kernels/generated");
}

#[test]
fn a_kernel_gives_what_the_host_gives() {
    let _fake = FakeCuda::start("");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let (_, ptx) = committed().into_iter().find(|(path, _)| path.ends_with("math_check.ptx")).unwrap();
    let kernel = context.load_module(Ptx::from_src(ptx)).unwrap().load_function("math_check").unwrap();
    let x: Vec<f32> = (1..1000u16).map(|i| f32::from(i) / 100.0).collect();
    let (from, mut to) = (stream.clone_htod(&x).unwrap(), stream.alloc_zeros::<f32>(x.len()).unwrap());
    for (function, exact) in [(0, f64::exp as fn(f64) -> f64), (1, f64::ln), (3, f64::recip), (4, f64::sqrt)]
    {
        let count = x.len() as u64;
        // SAFETY: math_check takes (int, const float*, float*, u64) and stays within `count`.
        unsafe {
            let mut launch = stream.launch_builder(&kernel);
            launch.arg(&function).arg(&from).arg(&mut to).arg(&count).launch(config(16, 64, 0)).unwrap();
        }
        for (x, y) in x.iter().zip(stream.clone_dtoh(&to).unwrap()) {
            let exact = exact(f64::from(*x));
            assert!(
                (f64::from(y) - exact).abs() <= 2e-6 * exact.abs() + 1e-6,
                "function {function} of {x}: {y}"
            );
        }
    }
}
