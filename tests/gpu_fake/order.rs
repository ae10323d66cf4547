//! Streams, events, and what runs beside what.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use cudarc::driver::{CudaContext, CudaStream, sys, sys::CUresult};

use crate::{
    fakes::cuda::{FakeCuda, Operation},
    support::{allocate, code, context, kernel, pinned, scale},
};

/// Two streams, numbered as they were made.
fn two_streams(context: &Arc<CudaContext>) -> (Arc<CudaStream>, Arc<CudaStream>) {
    (context.new_stream().unwrap(), context.new_stream().unwrap())
}

/// The operations of a kind.
fn of_kind(log: &[Operation], kind: &str) -> Vec<Operation> {
    log.iter().filter(|operation| operation.kind == kind).cloned().collect()
}

#[test]
fn a_stream_keeps_its_order_and_waits_for_events_of_others() {
    let fake = FakeCuda::start("");
    let context = context(0);
    let (first, second) = two_streams(&context);
    let double = kernel(&context, "fake_scale");
    let (mut a, mut b) = (allocate(&first, 8).unwrap(), allocate(&first, 8).unwrap());
    first.synchronize().unwrap();
    // The copy ends when it is told to, on however slow a machine.
    fake.tell("fault on=copy_in hang");
    let from = pinned(&context, &[3.0; 8]);
    first.memcpy_htod(&from, &mut a).unwrap();
    let copied = first.record_event(None).unwrap();
    assert!(!copied.try_is_complete().unwrap());
    second.wait(&copied).unwrap();
    scale(&second, &double, &a, &mut b, 2.0);
    let scaled = second.record_event(None).unwrap();
    assert!(!scaled.try_is_complete().unwrap(), "without the wait, it would read what nobody wrote");
    fake.tell("release");
    assert_eq!(second.clone_dtoh(&b).unwrap(), [6.0; 8]);
    assert!(copied.try_is_complete().unwrap());
}

#[test]
fn a_missing_wait_is_a_race() {
    let fake = FakeCuda::start("");
    let context = context(0);
    let (first, second) = two_streams(&context);
    let double = kernel(&context, "fake_scale");
    let (mut a, mut b) = (allocate(&first, 8).unwrap(), allocate(&first, 8).unwrap());
    first.synchronize().unwrap();
    fake.tell("fault on=copy_in hang");
    let from = pinned(&context, &[3.0; 8]);
    first.memcpy_htod(&from, &mut a).unwrap();
    scale(&second, &double, &a, &mut b, 2.0);
    assert_ne!(second.clone_dtoh(&b).unwrap(), [6.0; 8]);
    fake.tell("release");
    first.synchronize().unwrap();
}

#[test]
fn copies_and_kernels_of_two_streams_overlap() {
    let fake = FakeCuda::start("");
    let context = context(0);
    let (copies, compute) = two_streams(&context);
    let double = kernel(&context, "fake_scale");
    let (a, mut b) = (compute.alloc_zeros::<f32>(8).unwrap(), compute.alloc_zeros::<f32>(8).unwrap());
    let mut target = allocate(&compute, 8).unwrap();
    compute.synchronize().unwrap();
    // The kernel has begun before the copy, and ends only after it, on however slow a machine.
    fake.tell("fault on=kernel hang");
    scale(&compute, &double, &a, &mut b, 2.0);
    while fake.books().devices[0].running == 0 {
        std::thread::yield_now();
    }
    let from = pinned(&context, &[1.0; 8]);
    copies.memcpy_htod(&from, &mut target).unwrap();
    copies.synchronize().unwrap();
    fake.tell("release");
    compute.synchronize().unwrap();
    let log = fake.log();
    let (copied, computed) = (of_kind(&log, "copy_in"), of_kind(&log, "kernel"));
    assert!(copied[0].overlaps(&computed[0]), "{log:?}");
    assert_eq!((copied[0].bytes, computed[0].kernel.as_str()), (32, "fake_scale"));
    assert_ne!(copied[0].stream, computed[0].stream);
}

#[test]
fn events_measure_time_where_they_are_told_to() {
    let fake = FakeCuda::start("");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let mut memory = allocate(&stream, 8).unwrap();
    fake.tell("fault on=memset sleep_us=5000");
    let begin = stream.record_event(timed).unwrap();
    stream.memset_zeros(&mut memory).unwrap();
    let end = stream.record_event(timed).unwrap();
    end.synchronize().unwrap();
    assert!(begin.elapsed_ms(&end).unwrap() >= 5.0);
    let untimed = stream.record_event(None).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(code(begin.elapsed_ms(&untimed)), CUresult::CUDA_ERROR_INVALID_HANDLE);
}

#[test]
fn the_default_stream_takes_turns_with_blocking_streams_only() {
    let fake = FakeCuda::start("");
    let context = context(0);
    let default = context.default_stream();
    let beside = context.new_stream().unwrap();
    let (mut a, mut b) = (allocate(&default, 8).unwrap(), allocate(&default, 8).unwrap());
    default.synchronize().unwrap();
    fake.tell("fault on=memset hang");
    default.memset_zeros(&mut a).unwrap();
    // Does not wait for the one that hangs.
    beside.memcpy_htod(&[1.0; 8], &mut b).unwrap();
    beside.synchronize().unwrap();
    fake.tell("release");
}

#[test]
fn a_graph_replays_what_was_captured_and_nothing_before() {
    let fake = FakeCuda::start("");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let double = kernel(&context, "fake_scale");
    let mut a = stream.clone_htod(&[7.0f32; 4]).unwrap();
    let mut b = stream.alloc_zeros::<f32>(4).unwrap();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    scale(&stream, &double, &a, &mut b, 2.0);
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().unwrap();
    assert_eq!(stream.clone_dtoh(&b).unwrap(), [0.0; 4], "nothing ran yet");
    for value in [1.0, 5.0] {
        stream.memcpy_htod(&[value; 4], &mut a).unwrap();
        graph.launch().unwrap();
        assert_eq!(stream.clone_dtoh(&b).unwrap(), [2.0 * value; 4]);
    }
    assert_eq!((fake.books().devices[0].graphs, fake.books().devices[0].launches), (1, 2));
}

#[test]
fn a_capture_may_fork_and_must_join() {
    let _fake = FakeCuda::start("");
    let context = context(0);
    let (first, second) = two_streams(&context);
    let double = kernel(&context, "fake_scale");
    let a = first.clone_htod(&[7.0f32; 4]).unwrap();
    let mut b = first.alloc_zeros::<f32>(4).unwrap();
    first.synchronize().unwrap();
    for join in [true, false] {
        first.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        second.wait(&first.record_event(None).unwrap()).unwrap();
        scale(&second, &double, &a, &mut b, 3.0);
        if join {
            first.wait(&second.record_event(None).unwrap()).unwrap();
        }
        let ended = first.end_capture(sys::CUgraphInstantiate_flags(0));
        if !join {
            assert_eq!(code(ended), CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
            continue;
        }
        ended.unwrap().unwrap().launch().unwrap();
        assert_eq!(first.clone_dtoh(&b).unwrap(), [21.0; 4]);
    }
}

#[test]
fn waiting_and_allocating_break_a_capture() {
    let _fake = FakeCuda::start("");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let outside = stream.record_event(None).unwrap();
    let check = |what: &str, expected: CUresult, act: &dyn Fn() -> CUresult| {
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        assert_eq!(act(), expected, "{what}");
        let ended =
            code(stream.end_capture(sys::CUgraphInstantiate_flags(0)).map(|graph| assert!(graph.is_none())));
        assert_eq!(ended, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "{what}");
    };
    let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    check("synchronise", unsupported, &|| code(stream.synchronize()));
    check("allocate", unsupported, &|| code(allocate(&stream, 4)));
    check("page-lock", unsupported, &|| {
        // SAFETY: never read.
        #[allow(unsafe_code, reason = "fresh memory")]
        code(unsafe { context.alloc_pinned_with_flags::<f32>(4, 0) })
    });
    check("wait for what is outside", CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION, &|| {
        code(stream.wait(&outside))
    });
    // And all goes on afterwards.
    stream.synchronize().unwrap();
}

#[test]
fn a_host_function_runs_in_its_place() {
    extern "C" fn note(flag: *mut std::ffi::c_void) {
        // SAFETY: the flag outlives the stream's work, which the test waits for.
        #[allow(unsafe_code, reason = "the driver hands a pointer")]
        unsafe {
            (*flag.cast::<AtomicBool>()).store(true, Ordering::SeqCst);
        }
    }
    let fake = FakeCuda::start("");
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let mut memory = allocate(&stream, 8).unwrap();
    let flag = AtomicBool::new(false);
    fake.tell("fault on=memset hang");
    stream.memset_zeros(&mut memory).unwrap();
    // SAFETY: as in `note`.
    #[allow(unsafe_code, reason = "the driver keeps a pointer")]
    unsafe {
        sys::cuLaunchHostFunc(stream.cu_stream(), Some(note), (&raw const flag).cast_mut().cast())
            .result()
            .unwrap();
    }
    assert!(!flag.load(Ordering::SeqCst));
    fake.tell("release");
    stream.synchronize().unwrap();
    assert!(flag.load(Ordering::SeqCst));
}
