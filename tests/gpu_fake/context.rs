//! Devices, contexts and memory.
#![allow(unsafe_code, reason = "pools are only reached by calls that cudarc has as unsafe")]

use cudarc::driver::{CudaContext, result, sys, sys::CUresult};

use crate::{
    fakes::cuda::FakeCuda,
    support::{allocate, code, context, kernel, module, pinned},
};

#[test]
fn devices_are_as_the_test_asked() {
    let _fake =
        FakeCuda::start("name=Small memory=2GiB capability=7.5 pci=0x41 | count=2 name=Large memory=80GiB");
    assert_eq!(CudaContext::device_count().unwrap(), 3);
    let (small, large) = (context(0), context(2));
    assert_eq!((small.name().unwrap().as_str(), large.name().unwrap().as_str()), ("Small", "Large"));
    assert_eq!(small.compute_capability().unwrap(), (7, 5));
    assert_eq!(large.mem_get_info().unwrap(), (80 << 30, 80 << 30));
    assert_ne!(small.uuid().unwrap().bytes, large.uuid().unwrap().bytes);
}

#[test]
fn without_a_device_there_is_no_context() {
    let _fake = FakeCuda::start("count=0");
    assert_eq!(code(CudaContext::new(0)), CUresult::CUDA_ERROR_NO_DEVICE);
}

#[test]
fn the_context_lives_as_long_as_its_last_reference() {
    let fake = FakeCuda::start("context=300MiB");
    let first = context(0);
    let second = context(0);
    let stream = first.new_stream().unwrap();
    assert_eq!((fake.books().devices[0].contexts, fake.books().devices[0].own), (2, 300 << 20));
    drop(first);
    drop(second);
    assert_eq!(fake.books().devices[0].contexts, 1, "the stream holds it");
    drop(stream);
    fake.books().assert_empty();
}

#[test]
fn what_others_in_the_process_keep_of_a_gpu_is_seen_after_all_of_ours_is_gone() {
    let fake = FakeCuda::start("count=2");
    let gpus = ocelli::engine::cuda::probe().unwrap().gpus;
    let remains = || gpus.iter().map(ocelli::engine::cuda::remains).collect::<Vec<_>>();
    assert_eq!(remains(), [Some(false), Some(false)]);
    // As CUDA's runtime does for a library, once.
    let theirs = context(1);
    let ours = ocelli::engine::cuda::Context::open(&gpus[1]).unwrap();
    drop(ours);
    assert_eq!(remains(), [Some(false), Some(true)]);
    drop(theirs);
    assert_eq!(remains(), [Some(false), Some(false)]);
    fake.books().assert_empty();
}

#[test]
fn what_is_left_when_a_context_ends_is_in_the_books() {
    let fake = FakeCuda::start("");
    let context = context(0);
    std::mem::forget(context.new_stream().unwrap());
    // The stream holds the context: only a reset ends both.
    // SAFETY: nothing of the context is used afterwards.
    unsafe { sys::cuDevicePrimaryCtxReset_v2(0).result().unwrap() };
    let books = fake.books();
    assert_eq!((books.devices[0].streams, books.devices[0].left_behind), (0, 1));
    assert!(std::panic::catch_unwind(|| books.assert_empty()).is_err());
    // SAFETY: the one reference that is counted, which nobody else gives back.
    unsafe { result::primary_ctx::release(0).unwrap() };
    std::mem::forget(context);
    fake.tell("devices");
}

#[test]
fn memory_of_the_pool_stays_reserved_up_to_the_threshold() {
    let fake = FakeCuda::start("memory=1GiB");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    // SAFETY: the pool is the device's own.
    let pool = unsafe { result::device::get_default_mem_pool(context.cu_device()) }.unwrap();
    let held = |megabytes: usize| allocate(&stream, megabytes << 18).unwrap();
    let reserved = || fake.books().devices[0].pool_reserved >> 20;

    drop(held(64));
    stream.synchronize().unwrap();
    assert_eq!(reserved(), 0, "nothing is kept by default");

    let keep: u64 = 100 << 20;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute is 64 bits.
    unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw const keep).cast_mut().cast()) }.unwrap();
    drop((held(64), held(64)));
    stream.synchronize().unwrap();
    assert_eq!((reserved(), fake.books().devices[0].pool_used), (100, 0));
    assert_eq!(context.mem_get_info().unwrap().0, (1 << 30) - (100 << 20));
    // SAFETY: as above.
    unsafe { result::mem_pool::trim_to(pool, 0) }.unwrap();
    assert_eq!(reserved(), 0);
}

#[test]
fn page_locked_memory_is_copied_later_and_other_memory_before_the_call_returns() {
    let fake = FakeCuda::start("");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let mut device = allocate(&stream, 4).unwrap();
    let mut plain = vec![1.0; 4];
    fake.tell("fault on=memset hang");
    stream.memset_zeros(&mut device).unwrap();
    stream.memcpy_htod(&plain, &mut device).unwrap();
    plain.fill(9.0);
    let mut back = pinned(&context, &[0.0; 4]);
    stream.memcpy_dtoh(&device, &mut back).unwrap();
    assert!(fake.log().is_empty(), "all of it waits behind the first");
    fake.tell("release");
    stream.synchronize().unwrap();
    assert_eq!(back.as_slice().unwrap(), [1.0; 4], "as it was when the call was made");

    let from = pinned(&context, &[2.0; 4]);
    stream.memcpy_htod(&from, &mut device).unwrap();
    assert_eq!(stream.clone_dtoh(&device).unwrap(), [2.0; 4]);
}

#[test]
fn registered_memory_counts_as_page_locked() {
    let fake = FakeCuda::start("");
    let context = context(0);
    let mut memory = vec![0u8; 10_000];
    // SAFETY: the vector lives longer than its registration.
    unsafe {
        sys::cuMemHostRegister_v2(memory.as_mut_ptr().cast(), memory.len(), 0).result().unwrap();
        assert_eq!(fake.books().devices[0].registered, 10_000);
        let again = sys::cuMemHostRegister_v2(memory.as_mut_ptr().cast(), 1, 0);
        assert_eq!(again, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        sys::cuMemHostUnregister(memory.as_mut_ptr().cast()).result().unwrap();
        let twice = sys::cuMemHostUnregister(memory.as_mut_ptr().cast());
        assert_eq!(twice, CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
    drop(context);
}

#[test]
fn a_module_has_the_kernels_of_its_ptx_and_no_others() {
    let _fake = FakeCuda::start("");
    let context = context(0);
    let module = module(&context);
    assert!(module.load_function("fake_scale").is_ok());
    for (name, expected) in [
        ("fit_xynb_u16", CUresult::CUDA_ERROR_NOT_FOUND),
        ("commented_out", CUresult::CUDA_ERROR_NOT_FOUND),
        // In the PTX, but nowhere to run.
        ("nobody_wrote_it", CUresult::CUDA_ERROR_NOT_SUPPORTED),
        // The parameters are those of another time.
        ("math_check", CUresult::CUDA_ERROR_INVALID_PTX),
    ] {
        assert_eq!(code(module.load_function(name)), expected, "{name}");
    }
}

#[test]
fn a_module_that_the_device_or_the_driver_is_too_old_for_is_refused() {
    let fake = FakeCuda::start("capability=7.0");
    let load = |ptx: &str| code(context(0).load_module(cudarc::nvrtc::Ptx::from_src(ptx)));
    assert_eq!(load("not a module"), CUresult::CUDA_ERROR_INVALID_IMAGE);
    assert_eq!(load(".version 8.0\n.target sm_75\n"), CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(load(".version 8.0\n.target sm_70\n"), CUresult::CUDA_SUCCESS);
    fake.tell("driver version=11080");
    assert_eq!(load(".version 8.0\n.target sm_70\n"), CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
}

#[test]
fn occupancy_follows_from_threads_and_shared_memory() {
    let _fake = FakeCuda::start("processors=4");
    let context = context(0);
    let kernel = kernel(&context, "fake_scale");
    let blocks = |threads, shared| {
        kernel.occupancy_max_active_blocks_per_multiprocessor(threads, shared, None).unwrap()
    };
    assert_eq!((blocks(256, 0), blocks(256, 99 << 10), blocks(32, 0)), (8, 2, 32));
}
