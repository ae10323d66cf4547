//! The fitter on the GPU against the fitter on the CPU; batches side by side; what goes wrong.

use crate::{
    fakes::cuda::{FakeCuda, Operation},
    onnx::said,
    support::{
        SIDE, batch, camera_with_maps, on_cpu, open, plain, psfs, read, setting, staged, until, worse,
    },
};
use ocelli::engine::{
    Engine, EngineError, Flight, Tensor,
    cuda::{Canary, gauss_mle::GaussMle},
    kernels::Camera,
};
use std::{collections::BTreeSet, sync::Arc};

/// A row of 11 columns, and two codes.
const RESULT_BYTES: usize = 11 * 4 + 2;

/// Begins a batch as a worker does.
fn start(engine: &mut GaussMle, inputs: &[Tensor]) -> Result<Flight, EngineError> {
    let inputs = staged(engine, inputs);
    engine.start(inputs, Some(&plain()))
}

/// Fails unless rows agree: relative to the value where that is above 1.
pub(crate) fn agree(what: &str, got: &(Vec<f32>, Vec<u8>), expected: &(Vec<f32>, Vec<u8>), tolerance: f32) {
    assert_eq!(got.0.len(), expected.0.len(), "{what}");
    let status = |codes: &[u8]| codes.iter().skip(1).step_by(2).copied().collect::<Vec<u8>>();
    assert_eq!(status(&got.1), status(&expected.1), "{what}: how the fits ended");
    let off =
        |(a, b): (&f32, &f32)| if a.is_nan() && b.is_nan() { 0.0 } else { (a - b).abs() / b.abs().max(1.0) };
    let worst = got.0.iter().zip(&expected.0).map(off).fold(0.0, worse);
    println!("{what}: largest difference {worst:.1e}");
    assert!(worst <= tolerance, "{what}: {worst} is more than {tolerance}");
}

#[test]
fn a_batch_is_waited_for_whatever_went_wrong_where_something_else_was_dropped() {
    let fake = FakeCuda::start("");
    let context = open(0);
    let mut engine = GaussMle::new(&context).unwrap();
    let other = context.event().unwrap();
    let inputs = batch(4, 200, false);
    fake.tell("fault on=copy_out hang");
    let staged = staged(&engine, &inputs);
    let flight = engine.start(staged, Some(&plain())).unwrap();
    // Nobody can be told that this fails but who asks for something next.
    fake.tell("fault on=cuCtxGetCurrent code=1");
    drop(other);
    let waits = fake.books().calls("cuEventSynchronize");
    let landed = std::thread::scope(|scope| {
        let landing = scope.spawn(|| flight.land());
        until("it waits", || landing.is_finished() || fake.books().calls("cuEventSynchronize") > waits);
        fake.tell("release");
        landing.join().unwrap()
    });
    agree("a batch", &read(&landed.unwrap()), &on_cpu(&inputs, &plain()), 5e-3);
}

#[test]
fn a_batch_whose_wait_fails_keeps_its_memory_until_the_device_is_done_with_it() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    fake.tell("fault on=copy_out hang");
    let flight = start(&mut engine, &batch(4, 200, false)).unwrap();
    fake.tell("fault on=cuEventSynchronize code=999");
    let settled = fake.books().calls("cuStreamSynchronize");
    let (waits, landed) = std::thread::scope(|scope| {
        let landing = scope.spawn(|| flight.land());
        let waits = || fake.books().calls("cuStreamSynchronize") > settled;
        until("it waits", || landing.is_finished() || waits());
        let waits = waits();
        fake.tell("release");
        (waits, landing.join().unwrap())
    });
    assert!(waits, "{landed:?}");
    assert!(matches!(landed, Err(EngineError::Device(_))), "{landed:?}");
}

#[test]
fn a_context_that_fails_all_that_is_asked_is_at_fault_and_no_input() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let inputs = batch(4, 200, false);
    // It ends the context, though other calls give this code for what they are asked.
    fake.tell("fault on=copy_in code=1");
    let first = start(&mut engine, &inputs).and_then(Flight::land);
    assert!(first.is_err());
    let second = start(&mut engine, &inputs).and_then(Flight::land);
    assert!(matches!(second, Err(EngineError::Device(_))), "{second:?}");
}

#[test]
fn every_model_gives_what_the_cpu_gives_with_either_type_and_with_maps() {
    let _fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    for psf in psfs() {
        for camera in [Arc::new(Camera::ideal()), camera_with_maps()] {
            for wide in [false, true] {
                let inputs = batch(7, 200, wide);
                let asked = setting(psf, &camera);
                let staged = staged(&engine, &inputs);
                let outputs = engine.start(staged, Some(&asked)).unwrap().land().unwrap();
                let what = format!("{} maps {} f32 {wide}", psf.name(), camera.sensor().is_some());
                // A fit ends when a step is below a thousandth of the standard error, so that is how far two may be apart.
                agree(&what, &read(&outputs), &on_cpu(&inputs, &asked), 5e-3);
            }
        }
    }
}

#[test]
fn a_batch_beyond_what_the_gpu_takes_at_once_is_fitted_in_rounds() {
    let fake = FakeCuda::start("processors=1");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let inputs = [3000, 2500, 3000].map(|count| batch(count as u64, count, false));
    let flights: Vec<Flight> = inputs.iter().map(|inputs| start(&mut engine, inputs).unwrap()).collect();
    for (flight, inputs) in flights.into_iter().zip(&inputs) {
        let outputs = flight.land().unwrap();
        agree("in rounds", &read(&outputs), &on_cpu(inputs, &plain()), 5e-3);
    }
    let kernels = fake.log().iter().filter(|operation| operation.kind == "kernel").count();
    assert_eq!(kernels, 9, "three rounds of each batch");
}

#[test]
fn batches_of_any_size_reuse_the_memory_of_the_largest() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    for count in [300, 1, 129, 300, 7, 300] {
        let inputs = batch(count as u64, count, false);
        let outputs = start(&mut engine, &inputs).unwrap().land().unwrap();
        agree(&format!("{count} ROIs"), &read(&outputs), &on_cpu(&inputs, &plain()), 5e-3);
    }
    // Six batches in three places: each grew to the largest that it met, and no more is allocated after that.
    let allocated = |fake: &FakeCuda| fake.books().calls("cuMemAllocAsync");
    let before = allocated(&fake);
    for _ in 0..6 {
        start(&mut engine, &batch(1, 300, false)).unwrap().land().unwrap();
    }
    let grown = allocated(&fake);
    for _ in 0..6 {
        start(&mut engine, &batch(1, 300, false)).unwrap().land().unwrap();
    }
    assert!(grown >= before && allocated(&fake) == grown, "no allocation once each place is large enough");
    let held = engine.device_bytes();
    let one = 300 * (SIDE * SIDE * 2 + RESULT_BYTES) as u64;
    assert_eq!(held, 3 * one);
    engine.rest();
    assert_eq!(engine.device_bytes(), 0, "a resting engine holds nothing");
    start(&mut engine, &batch(1, 300, false)).unwrap().land().unwrap();
}

#[test]
fn the_next_batch_is_copied_in_while_one_is_fitted() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let inputs = [batch(1, 50, false), batch(2, 60, false), batch(3, 70, false)];
    // The first kernel runs until it is told otherwise.
    fake.tell("fault on=kernel hang");
    let flights: Vec<Flight> = inputs.iter().map(|inputs| start(&mut engine, inputs).unwrap()).collect();
    let copied = |log: &[Operation]| log.iter().filter(|operation| operation.kind == "copy_in").count();
    until("three batches copied in while the first is fitted", || copied(&fake.log()) == 3);
    assert!(fake.log().iter().all(|operation| operation.kind == "copy_in"), "nothing was fitted yet");
    fake.tell("release");
    for (flight, inputs) in flights.into_iter().zip(&inputs) {
        agree("a batch", &read(&flight.land().unwrap()), &on_cpu(inputs, &plain()), 5e-3);
    }
    let streams = |kind: &str| {
        let log = fake.log();
        let of_kind = log.iter().filter(|operation| operation.kind == kind);
        of_kind.map(|operation| operation.stream).collect::<BTreeSet<u64>>()
    };
    let each = ["copy_in", "kernel", "copy_out"].map(streams);
    assert!(each.iter().all(|streams| streams.len() == 1), "{each:?}");
    assert_eq!(each.iter().flatten().collect::<BTreeSet<_>>().len(), 3, "each on a stream of its own");
}

#[test]
fn a_kernel_waits_for_its_input_and_its_results_for_the_kernel() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    // Whoever does not wait is far ahead of these.
    for slow in ["copy_in", "kernel", "copy_out"] {
        fake.tell(&format!("fault on={slow} times=always sleep_us=3000"));
    }
    let camera = camera_with_maps();
    for seed in 0..4 {
        let (inputs, asked) = (batch(seed, 30, false), setting(psfs()[0], &camera));
        let staged = staged(&engine, &inputs);
        let outputs = engine.start(staged, Some(&asked)).unwrap().land().unwrap();
        agree("slow", &read(&outputs), &on_cpu(&inputs, &asked), 5e-3);
    }
    assert!(fake.books().devices[0].registered > 0, "copies are from memory that the driver knows");
}

#[test]
fn results_are_copied_out_while_the_next_batch_is_fitted() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let inputs = [batch(1, 50, false), batch(2, 60, false)];
    fake.tell("fault on=kernel after=1 hang");
    let mut flights: Vec<Flight> = inputs.iter().map(|inputs| start(&mut engine, inputs).unwrap()).collect();
    // The second one hangs; the first one lands all the same.
    let second = flights.pop().unwrap();
    agree("the first", &read(&flights.remove(0).land().unwrap()), &on_cpu(&inputs[0], &plain()), 5e-3);
    fake.tell("release");
    agree("the second", &read(&second.land().unwrap()), &on_cpu(&inputs[1], &plain()), 5e-3);
}

#[test]
fn too_little_memory_for_a_batch_is_its_error_and_not_the_end() {
    let fake = FakeCuda::start("memory=1GiB");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let inputs = batch(4, 100, false);
    fake.tell("fault on=cuMemAllocAsync code=2 times=always");
    let Err(EngineError::OutOfMemory(why)) = start(&mut engine, &inputs) else { panic!("out of memory") };
    let expected = "cannot allocate 9800 bytes on GPU-fa000000-0000-0000-0000-000000000001: 1073741824 of 1073741824 bytes \
                    are free, this process's buffers hold 0: ";
    assert!(why.starts_with(expected), "{why}");
    fake.tell("clear");
    let outputs = start(&mut engine, &inputs).unwrap().land().unwrap();
    agree("the same again", &read(&outputs), &on_cpu(&inputs, &plain()), 5e-3);
}

#[test]
fn where_three_batches_do_not_fit_fewer_are_on_their_way_at_once() {
    // Room for one batch of 1000, and not for two.
    let bytes = 1000 * (SIDE * SIDE * 2 + RESULT_BYTES);
    let _fake = FakeCuda::start(&format!("memory={}", bytes * 3 / 2));
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let inputs = batch(5, 1000, false);
    let expected = on_cpu(&inputs, &plain());
    for _ in 0..4 {
        let outputs = start(&mut engine, &inputs).unwrap().land().unwrap();
        agree("one of four", &read(&outputs), &expected, 5e-3);
    }
    assert_eq!(engine.device_bytes(), bytes as u64);
}

#[test]
fn a_kernel_that_fails_takes_the_device_and_leaves_nothing_behind() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let inputs = batch(6, 20, false);
    fake.tell("fault on=kernel code=700");
    let flights = [start(&mut engine, &inputs), start(&mut engine, &inputs)];
    for flight in flights {
        // The second may find the context broken when it is begun, or when it lands.
        let result = flight.and_then(Flight::land);
        assert!(matches!(result, Err(EngineError::Device(_))), "{result:?}");
    }
    assert!(matches!(start(&mut engine, &inputs), Err(EngineError::Device(_))));
    drop(engine);
    // All of it went with the context: another one works.
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let outputs = start(&mut engine, &inputs).unwrap().land().unwrap();
    agree("on a new context", &read(&outputs), &on_cpu(&inputs, &plain()), 5e-3);
    drop(engine);
    drop(fake);
}

#[test]
fn a_batch_that_nobody_waits_for_ends_before_its_memory_does() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    fake.tell("fault on=kernel sleep_us=20000");
    drop(start(&mut engine, &batch(8, 30, false)).unwrap());
    // The fake ends the process where memory is given back while it is in use.
    assert_eq!(fake.log().iter().filter(|operation| operation.kind == "copy_out").count(), 1);
}

#[test]
fn bad_input_is_an_error_before_anything_reaches_the_gpu() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let mut inputs = batch(9, 5, false);
    inputs[0].shape = vec![5, 7, 6];
    inputs[0].data.truncate(5 * 7 * 6 * 2);
    assert!(matches!(start(&mut engine, &inputs), Err(EngineError::Input(_))));
    assert!(fake.log().is_empty());
}

#[test]
fn a_kernel_that_the_driver_cannot_compile_says_what_is_needed() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    fake.tell("fault on=cuModuleLoadData code=222");
    let error = start(&mut engine, &batch(1, 5, false)).err().unwrap().to_string();
    assert!(error.contains("the driver is too old for them: 525 is needed"), "{error}");
}

#[test]
fn kernels_of_models_that_nobody_asks_for_are_not_loaded() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let camera = Arc::new(Camera::ideal());
    let modules = || fake.books().devices[0].modules;
    assert_eq!(modules(), 0);
    for (number, psf) in psfs().into_iter().enumerate() {
        for wide in [false, true, false] {
            let staged = staged(&engine, &batch(3, 10, wide));
            engine.start(staged, Some(&setting(psf, &camera))).unwrap().land().unwrap();
            assert_eq!(modules(), number as u64 + 1, "one for each model, whatever the type");
        }
    }
}

#[test]
fn what_is_copied_out_is_the_reply() {
    let fake = FakeCuda::start("");
    let mut engine = GaussMle::new(&open(0)).unwrap();
    let camera = Arc::new(Camera::ideal());
    for (psf, bytes) in psfs().into_iter().zip([46, 54, 62, 62]) {
        let before = fake.log().iter().filter(|operation| operation.kind == "copy_out").count();
        let staged = staged(&engine, &batch(3, 10, false));
        let outputs = engine.start(staged, Some(&setting(psf, &camera))).unwrap().land().unwrap();
        let log = fake.log();
        let copies: Vec<&Operation> =
            log.iter().filter(|operation| operation.kind == "copy_out").skip(before).collect();
        assert_eq!(
            copies.iter().map(|copy| copy.bytes).collect::<Vec<u64>>(),
            [10 * bytes],
            "{}",
            psf.name()
        );
        let [fits, codes] = [0, 1].map(|output| outputs[output].data.as_ptr_range());
        assert_eq!(fits.end, codes.start, "rows and codes lie as they came");
    }
}

#[test]
fn a_gpu_that_was_checked_is_given_back_whole_whoever_leaves_it_last() {
    let _fake = FakeCuda::start("");
    let (context, canary) = (open(0), Canary::default());
    canary.check(&context).unwrap();
    let told = said(|| {
        drop(context);
        drop(canary);
    });
    assert!(!told.contains("but for its context"), "{told}");
}

#[test]
fn the_check_of_a_gpu_keeps_its_kernels_until_it_fails() {
    let fake = FakeCuda::start("");
    let (context, canary) = (open(0), Canary::default());
    let loaded = || fake.books().calls("cuModuleLoadData");
    canary.check(&context).unwrap();
    let once = loaded();
    assert!(once > 0);
    canary.check(&context).unwrap();
    assert_eq!(
        (loaded(), context.held_bytes()),
        (once, 0),
        "an idle GPU is checked for as long as it is held"
    );
    fake.tell("fault on=cuMemcpyHtoDAsync* code=1");
    canary.check(&context).unwrap_err();
    canary.check(&context).unwrap();
    assert_eq!(loaded(), 2 * once, "one that has failed is not used again");
}
