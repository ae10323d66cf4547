//! Host memory that a GPU copies from by itself: there before the first request, and known to whichever context there is.

use crate::{
    fakes::cuda::FakeCuda,
    support::{batch, open, plain},
};
use cudarc::driver::{CudaContext, DriverError, sys};
use ocelli::engine::{
    Engine, Flight, Tensor, TensorView,
    cuda::{Context, HostMemory, gauss_mle::GaussMle, probe},
    staging::{Blocks, Memory, Pinner, Staging},
};
use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

const SLOT: usize = 4096;

#[test]
fn memory_that_was_taken_without_the_gpu_or_before_it_was_given_back_is_registered_when_it_is_taken() {
    let fake = FakeCuda::start("");
    let gpu = probe().unwrap().gpus.remove(0);
    let host = HostMemory::default();
    let staging = Staging::new(SLOT, 4, Memory::Pinned(Arc::new(host.clone()))).unwrap();
    staging.ready(2);
    staging.ready(2);
    let slab = 4 * SLOT as u64;
    assert_eq!(staging.bytes() as u64, 2 * slab);
    let registered = || fake.books().devices[0].registered;
    for slabs in [2, 3, 3] {
        assert_eq!(registered(), 0);
        let context = Context::open_with(&gpu, host.clone()).unwrap();
        assert_eq!(registered(), slabs * slab);
        let calls = fake.books().calls("cuMemHostRegister_v2");
        let slots: Vec<_> = (0..8).map(|_| staging.slot()).collect();
        assert_eq!(
            fake.books().calls("cuMemHostRegister_v2"),
            calls,
            "what there is suffices for two batches"
        );
        let more = staging.slot();
        assert_eq!(registered(), 3 * slab);
        // Whoever still reads a slot keeps no context.
        drop(context);
        drop((slots, more));
    }
    drop(staging);
    fake.books().assert_empty();
}

#[test]
fn a_driver_that_hangs_while_it_registers_memory_holds_up_nobody_who_takes_some_or_gives_it_back() {
    let fake = FakeCuda::start("");
    let gpu = probe().unwrap().gpus.remove(0);
    let host = HostMemory::default();
    let context = Context::open_with(&gpu, host.clone()).unwrap();
    let (known, staging) = (staging(&host), staging(&host));
    let of_known = known.slot();
    fake.tell("fault on=cuMemHostRegister* hang times=always");
    let (tell, told) = std::sync::mpsc::channel();
    let threads: Vec<_> = (0..4u8)
        .map(|thread| {
            let (staging, tell) = (staging.clone(), tell.clone());
            std::thread::spawn(move || {
                let mut slots: Vec<_> = (0..8).map(|_| staging.slot()).collect();
                slots.iter_mut().for_each(|slot| slot.fill(thread));
                assert!(slots.iter().all(|slot| slot.iter().all(|byte| *byte == thread)));
                drop(slots);
                tell.send(()).unwrap();
            })
        })
        .collect();
    for _ in &threads {
        told.recv_timeout(crate::machine::PATIENCE).expect("nobody waits for the driver");
    }
    // What the driver knows goes when the driver is back, and its last holder does not wait for that.
    drop((of_known, known));
    staging.clear(0);
    assert_eq!(fake.books().devices[0].registered, SLOT as u64);
    fake.tell("clear");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let patience = std::time::Instant::now() + crate::machine::PATIENCE;
    while fake.books().devices[0].registered > 0 {
        assert!(std::time::Instant::now() < patience, "the driver is back, and nobody has any of it");
        std::thread::yield_now();
    }
    // From now on it is waited for again.
    let slot = staging.slot();
    assert_eq!(fake.books().devices[0].registered, SLOT as u64);
    drop((slot, staging, context));
    fake.books().assert_empty();
}

/// Slabs of one slot.
fn staging(host: &HostMemory) -> Staging {
    Staging::new(SLOT, 1, Memory::Pinned(Arc::new(host.clone()))).unwrap()
}

#[test]
fn a_context_that_goes_late_leaves_the_next_ones_memory_registered() {
    let fake = FakeCuda::start("");
    let gpu = probe().unwrap().gpus.remove(0);
    let host = HostMemory::default();
    let staging = Staging::new(SLOT, 1, Memory::Pinned(Arc::new(host.clone()))).unwrap();
    let first = Context::open_with(&gpu, host.clone()).unwrap();
    let slot = staging.slot();
    let second = Context::open_with(&gpu, host.clone()).unwrap();
    drop(first);
    assert_eq!(fake.books().devices[0].registered, SLOT as u64);
    drop(second);
    assert_eq!(fake.books().devices[0].registered, 0);
    drop((slot, staging));
    fake.books().assert_empty();
}

/// Memory that says when it is freed.
struct Told(Vec<u8>, Arc<AtomicBool>);

impl Drop for Told {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
#[allow(unsafe_code, reason = "memory is pinned by whoever says that it stays there")]
fn memory_that_a_broken_context_knows_is_not_freed_before_the_driver_has_forgotten_it() {
    let fake = FakeCuda::start("");
    let gpu = probe().unwrap().gpus.remove(0);
    for forgets in [true, false] {
        let host = HostMemory::default();
        let context = Context::open_with(&gpu, host.clone()).unwrap();
        // As libraries hold it.
        let theirs = CudaContext::new(0).unwrap();
        let freed = Arc::new(AtomicBool::new(false));
        let memory = Told(vec![0; SLOT], Arc::clone(&freed));
        let start = NonNull::from(memory.0.as_slice()).cast();
        // SAFETY: it is there until it is released, and longer.
        let pinned = unsafe { host.pin(start, SLOT) }.expect("the driver takes it");
        assert_eq!(fake.books().devices[0].registered, SLOT as u64);
        fake.tell("poison device=0 code=700");
        if !forgets {
            fake.tell("fault on=cuMemHostUnregister code=700 times=always");
        }
        pinned.release(Box::new(memory));
        drop(context);
        assert_eq!(freed.load(Ordering::SeqCst), forgets);
        assert_eq!(fake.books().devices[0].registered, if forgets { 0 } else { SLOT as u64 });
        drop(theirs);
        fake.tell("clear");
        drop(Context::open_with(&gpu, host).unwrap());
        assert!(freed.load(Ordering::SeqCst), "the context that knew it has gone");
    }
    fake.books().assert_empty();
}

#[test]
fn a_graph_that_one_thread_records_and_what_others_do_are_not_in_each_others_way() {
    let fake = FakeCuda::start("");
    let ours = open(0);
    let theirs = CudaContext::new(0).unwrap();
    let stream = theirs.new_stream().unwrap();
    // As ONNX Runtime records.
    let recorded = |meanwhile: &(dyn Fn() + Sync)| {
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        std::thread::scope(|scope| scope.spawn(meanwhile).join().unwrap());
        stream.end_capture(sys::CUgraphInstantiate_flags(0)).map(|_| ())
    };
    let staging = Staging::new(SLOT, 1, Memory::Pinned(Arc::new(HostMemory::of(&ours)))).unwrap();
    let fitted = recorded(&|| {
        drop(staging.slot());
        let inputs = batch(1, 3, false);
        let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
        let mut engine = GaussMle::new(&ours).unwrap();
        engine.run(&views, Some(&plain())).unwrap();
        engine.rest();
    });
    assert_eq!(fitted, Ok(()));
    assert!(fake.books().devices[0].registered > 0);
    // A thread that has not asked for it is refused, and breaks the graph.
    let broken = recorded(&|| {
        theirs.bind_to_thread().unwrap();
        let refused = theirs.new_event(None).and_then(|event| event.synchronize());
        let unsupported = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        assert_eq!(refused, Err(DriverError(unsupported)));
    });
    assert_eq!(broken, Err(DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)));
    drop((staging, ours, stream, theirs));
    fake.books().assert_empty();
}

#[test]
fn a_thread_that_was_refused_to_go_on_beside_graphs_asks_again() {
    let fake = FakeCuda::start("");
    let ours = open(0);
    let theirs = CudaContext::new(0).unwrap();
    let stream = theirs.new_stream().unwrap();
    fake.tell("fault on=cuThreadExchangeStreamCaptureMode code=201");
    std::thread::scope(|scope| {
        let (bound, hears) = std::sync::mpsc::channel();
        let (go, told) = std::sync::mpsc::channel::<()>();
        let ours = &ours;
        let other = scope.spawn(move || {
            ours.bind().unwrap();
            bound.send(()).unwrap();
            told.recv().unwrap();
            ours.event().unwrap().wait()
        });
        hears.recv().unwrap();
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        go.send(()).unwrap();
        let waited = other.join().unwrap();
        let recorded = stream.end_capture(sys::CUgraphInstantiate_flags(0)).map(|_| ());
        assert_eq!((waited, recorded), (Ok(()), Ok(())));
    });
    drop((ours, stream, theirs));
    fake.books().assert_empty();
}

#[test]
fn of_two_gpus_each_copies_from_what_is_pinned_for_itself_so_that_the_other_may_go_at_any_time() {
    let fake = FakeCuda::start("count=2");
    let gpus = probe().unwrap().gpus;
    let hosts = [HostMemory::default(), HostMemory::default()];
    let [first, second] = [0, 1].map(|at| Context::open_with(&gpus[at], hosts[at].clone()).unwrap());
    let inputs = batch(1, 3, false);
    let memory = Memory::Pinned(Arc::new(hosts[0].clone()));
    let staging = Staging::new(inputs[0].data.len(), 1, memory.clone()).unwrap();
    let mut slot = staging.slot();
    slot.copy_from_slice(&inputs[0].data);
    let Tensor { datatype, shape, .. } = inputs[0].clone();
    let part = Tensor { datatype, shape, data: slot.freeze() };
    let assembled = |memory| Blocks::new(memory).assemble(&[&part], 3, false, Some(&staging));
    assert_eq!(assembled(memory).data.as_ptr(), part.data.as_ptr(), "its own GPU needs no copy");

    second.bind().unwrap();
    let mut engine = GaussMle::new(&second).unwrap();
    let rows = assembled(engine.memory());
    let others = Blocks::new(engine.memory()).assemble(&[&inputs[1]], 3, false, None);
    fake.tell("fault on=copy_in hang");
    let Flight::Airborne(flight) = engine.start(vec![rows, others], Some(&plain())).unwrap() else {
        panic!("it is done at once")
    };
    drop(first);
    assert_eq!(fake.books().devices[0].registered, 0, "the first GPU is given back meanwhile");
    fake.tell("release");
    flight.land().unwrap();
    drop((engine, second, part, staging));
    fake.books().assert_empty();
}
