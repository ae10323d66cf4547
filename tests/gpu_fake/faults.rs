//! The faults that tests of the product inject.

use cudarc::driver::{CudaContext, sys::CUresult};

use crate::{
    fakes::cuda::FakeCuda,
    support::{allocate, code, context, kernel, scale, trap},
};

#[test]
fn a_context_fails_to_start_as_often_as_told_on_one_device() {
    let fake = FakeCuda::start("count=2");
    fake.tell("fault on=cuDevicePrimaryCtxRetain device=0 times=2 code=2");
    assert_eq!(code(CudaContext::new(0)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert!(CudaContext::new(1).is_ok());
    assert_eq!(code(CudaContext::new(0)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert!(CudaContext::new(0).is_ok());
}

#[test]
fn memory_that_another_process_takes_is_missing() {
    let fake = FakeCuda::start("memory=1GiB");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    fake.tell("foreign device=0 bytes=1000MiB");
    assert_eq!(context.mem_get_info().unwrap().0, 24 << 20);
    assert_eq!(code(allocate(&stream, 8 << 20)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    fake.tell("foreign device=0 bytes=0");
    // Not sticky: all goes on.
    let memory = stream.alloc_zeros::<f32>(8 << 20).unwrap();
    assert_eq!(fake.books().devices[0].pool_used, 32 << 20);
    drop(memory);
}

#[test]
fn the_nth_allocation_fails() {
    let fake = FakeCuda::start("");
    let stream = context(0).new_stream().unwrap();
    fake.tell("fault on=cuMemAlloc* after=1 code=2");
    let codes: Vec<CUresult> = (0..3).map(|_| code(allocate(&stream, 16))).collect();
    assert_eq!(codes, [CUresult::CUDA_SUCCESS, CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_SUCCESS]);
    assert_eq!(fake.books().calls("cuMemAllocAsync"), 3);
}

#[test]
fn an_error_on_the_device_stays_until_the_last_reference_is_gone() {
    let fake = FakeCuda::start("");
    let first = context(0);
    let stream = first.new_stream().unwrap();
    let memory = stream.alloc_zeros::<f32>(16).unwrap();
    let broken = kernel(&first, "fake_trap");
    trap(&stream, &broken, &memory).unwrap();
    let failed = CUresult::CUDA_ERROR_LAUNCH_FAILED;
    assert_eq!(code(stream.synchronize()), failed);
    assert_eq!(code(allocate(&stream, 1)), failed);
    let again = CudaContext::new(0).unwrap();
    assert_eq!(code(again.new_stream()), failed, "the same primary context");
    assert_eq!(fake.books().devices[0].sticky, 719);

    drop((memory, broken, stream, first, again));
    fake.books().assert_empty();
    let rebuilt = context(0);
    let stream = rebuilt.new_stream().unwrap();
    stream.alloc_zeros::<f32>(16).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(fake.books().devices[0].contexts_made, 2);
}

#[test]
fn the_nth_launch_of_a_kernel_fails_on_the_device() {
    let fake = FakeCuda::start("count=2");
    let (sick, well) = (context(0), context(1));
    fake.tell("fault on=kernel:fake_scale device=0 after=2 code=700");
    for (context, expected) in [(&sick, 3), (&well, 5)] {
        let stream = context.new_stream().unwrap();
        let double = kernel(context, "fake_scale");
        let (a, mut b) = (stream.alloc_zeros::<f32>(8).unwrap(), stream.alloc_zeros::<f32>(8).unwrap());
        let mut good = 0;
        for _ in 0..5 {
            if context.check_err().is_ok()
                && stream.context().bind_to_thread().is_ok()
                && stream.synchronize().is_ok()
            {
                scale(&stream, &double, &a, &mut b, 2.0);
                good += 1;
            }
        }
        assert_eq!(good, expected, "the one that fails was given, and fails later");
    }
    assert_eq!((fake.books().devices[0].sticky, fake.books().devices[1].sticky), (700, 0));
}

#[test]
fn an_error_while_dropping_is_told_to_the_next_call_of_anyone() {
    let fake = FakeCuda::start("");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let memory = stream.alloc_zeros::<f32>(16).unwrap();
    fake.tell("fault on=cuMemFreeAsync code=400");
    drop(memory);
    assert_eq!(code(context.name()), CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert!(context.name().is_ok(), "told once");
    // The free never came, so the memory is there until the context ends, and that is in the books.
    drop((stream, context));
    assert_eq!(fake.books().devices[0].left_behind, 1);
    fake.tell("devices");
}

#[test]
fn what_hangs_goes_on_when_released() {
    let fake = FakeCuda::start("");
    let stream = context(0).new_stream().unwrap();
    let mut memory = allocate(&stream, 8).unwrap();
    fake.tell("fault on=memset hang");
    stream.memset_zeros(&mut memory).unwrap();
    let done = stream.record_event(None).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| done.synchronize());
        assert!(!done.try_is_complete().unwrap());
        assert!(!waiting.is_finished());
        fake.tell("release");
        waiting.join().unwrap().unwrap();
    });
    assert_eq!(stream.clone_dtoh(&memory).unwrap(), [0.0; 8]);
}

#[test]
fn a_device_off_the_bus_fails_every_call_and_no_other_device() {
    let fake = FakeCuda::start("count=2");
    let (lost, other) = (context(0), context(1));
    let stream = lost.new_stream().unwrap();
    fake.tell("lose device=0");
    assert_eq!(code(stream.synchronize()), CUresult::CUDA_ERROR_UNKNOWN);
    drop((stream, lost));
    assert_eq!(code(CudaContext::new(0)), CUresult::CUDA_ERROR_UNKNOWN);
    other.new_stream().unwrap().synchronize().unwrap();
    fake.tell("find device=0");
    assert!(CudaContext::new(0).is_ok());
}

#[test]
fn a_slow_device_takes_its_time() {
    let fake = FakeCuda::start("");
    let stream = context(0).new_stream().unwrap();
    fake.tell("slow device=0 factor=501");
    let mut memory = allocate(&stream, 8).unwrap();
    stream.memset_zeros(&mut memory).unwrap();
    stream.synchronize().unwrap();
    let operation = &fake.log()[0];
    assert!(operation.end_ns - operation.begin_ns >= 10_000_000, "{operation:?}");
}

#[test]
#[should_panic(expected = "unknown word tims")]
fn a_line_that_the_fake_does_not_understand_fails_the_test() {
    FakeCuda::start("").tell("fault on=kernel tims=2 code=2");
}
