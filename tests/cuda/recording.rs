//! Recordings of CUDA graphs beside what waits for the whole device: sessions that are made and end. The networks run on the CPU, but the
//! stream is recorded, and the device waited for, where they would be on a GPU; the fake driver refuses and breaks what a real one does.

use crate::{
    fakes::{cuda::FakeCuda, nvjpeg::FakeNvjpeg},
    jpeg::digit,
    onnx::{digits, load, on_cpu, pictures, runtime, said, same, start},
    support::{open, until},
};
use cudarc::driver::result;
use ocelli::{
    engine::{
        Engine, EngineError, Flight, Tensor,
        cuda::{
            self, Context,
            jpeg::{Job, JpegOnGpu},
            onnx::OnnxOnGpu,
        },
    },
    image::{DataType, Layout, Preprocess, plain_jpeg},
};
use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

/// Long enough for a call to be made, if nothing keeps a thread from it.
const A_WHILE: Duration = Duration::from_millis(300);

/// Runs a batch, which must be answered as the CPU answers it.
fn run(what: &str, engine: &mut OnnxOnGpu, inputs: &[Tensor]) {
    let landed = start(engine, inputs).unwrap_or_else(|error| panic!("{what}: {error}")).land().unwrap();
    same(what, &landed, &on_cpu(&digits(), inputs));
}

/// An engine that records.
fn recording(context: &Arc<Context>) -> OnnxOnGpu {
    load(context, &digits()).recording()
}

fn recorded(fake: &FakeCuda) -> u64 {
    fake.books().calls("cuStreamBeginCapture_v2")
}

/// Acts on another thread while an engine records its first batch, for a while at least.
fn while_it_records(fake: &FakeCuda, engine: &mut OnnxOnGpu, act: impl FnOnce() + Send) {
    fake.tell("fault on=cuStreamEndCapture hang");
    thread::scope(|scope| {
        let records = scope.spawn(|| run("what is recorded", engine, &pictures(3, 6)));
        until("it records", || records.is_finished() || fake.books().calls("cuStreamEndCapture") > 0);
        let acting = scope.spawn(act);
        thread::sleep(A_WHILE);
        fake.tell("release");
        acting.join().unwrap();
        records.join().unwrap();
    });
}

#[test]
fn a_session_is_neither_made_nor_ended_while_a_graph_is_recorded() {
    let fake = FakeCuda::start("");
    let context = open(0);
    let mut engine = recording(&context);
    while_it_records(&fake, &mut engine, || drop(load(&context, &digits())));
    assert!(!engine.habits().plans_anew && recorded(&fake) == 1, "made: {}", recorded(&fake));
    let (mut engine, other) = (recording(&context), load(&context, &digits()));
    while_it_records(&fake, &mut engine, || drop(other));
    assert!(!engine.habits().plans_anew && recorded(&fake) == 2, "ended: {}", recorded(&fake));
}

#[test]
fn a_decoder_of_jpegs_is_neither_made_nor_ended_while_a_graph_is_recorded() {
    let fake = FakeCuda::start("");
    let _nvjpeg = FakeNvjpeg::start();
    let context = open(0);
    let decoder = JpegOnGpu::start(cuda::probe().unwrap().version).unwrap();
    let offer = decoder.offer(&context);
    let (file, (send, item)) = (digit(3), mpsc::channel());
    let job = Job {
        jpeg: plain_jpeg(&file).unwrap(),
        bytes: file.into(),
        to: Preprocess { datatype: DataType::Uint8, layout: Layout::Nhwc, ..Preprocess::new(16, 16) },
        answer: Box::new(move |item| send.send(item).unwrap()),
    };
    let mut engine = recording(&context);
    while_it_records(&fake, &mut engine, || decoder.decode(job));
    assert!(item.recv().unwrap().is_some() && recorded(&fake) == 1, "made: {}", recorded(&fake));
    let mut engine = recording(&context);
    while_it_records(&fake, &mut engine, || drop(offer));
    assert!(!engine.habits().plans_anew && recorded(&fake) == 2, "ended: {}", recorded(&fake));
}

#[test]
fn a_gpu_is_taken_by_a_new_thread_while_another_one_records() {
    let fake = FakeCuda::start("count=2");
    let mut engine = recording(&open(0));
    while_it_records(&fake, &mut engine, || drop(open(1)));
    assert!(!engine.habits().plans_anew && recorded(&fake) == 1, "{}", recorded(&fake));
}

#[test]
fn what_is_not_recorded_while_a_session_is_made_is_run_and_recorded_later() {
    let fake = FakeCuda::start("");
    let context = open(0);
    let mut engine = recording(&context);
    let waits = || fake.books().calls("cuCtxSynchronize");
    let before = waits();
    fake.tell("fault on=cuCtxSynchronize hang");
    thread::scope(|scope| {
        let loading = scope.spawn(|| load(&context, &digits()));
        until("it loads", || loading.is_finished() || waits() > before);
        run("beside a load", &mut engine, &pictures(1, 2));
        let plain = engine.habits().plans_anew && recorded(&fake) == 0;
        fake.tell("release");
        loading.join().unwrap();
        assert!(plain, "recorded beside a load");
    });
    // The other two places, and then that of the first batch.
    for places in 1..=3 {
        run("after a load", &mut engine, &pictures(places, 2));
        assert_eq!((recorded(&fake), engine.habits().plans_anew), (places, false));
    }
    run("a replay", &mut engine, &pictures(5, 2));
    assert_eq!(recorded(&fake), 3);
}

#[test]
fn a_recording_that_something_else_breaks_is_tried_once_more() {
    let fake = FakeCuda::start("");
    let context = open(0);
    let mut engine = recording(&context);
    // As a library that knows of nobody's recordings does.
    while_it_records(&fake, &mut engine, || {
        context.bind().unwrap();
        result::ctx::synchronize().unwrap_err();
    });
    assert_eq!((recorded(&fake), engine.habits().plans_anew), (2, false));
    for (fault, tried) in [("code=900 times=2", 2), ("code=1", 1)] {
        let (before, mut engine) = (recorded(&fake), recording(&context));
        fake.tell(&format!("fault on=cuStreamBeginCapture_v2 {fault}"));
        run(fault, &mut engine, &pictures(3, 6));
        assert_eq!((recorded(&fake) - before, engine.habits().plans_anew), (tried, true), "{fault}");
    }
}

#[test]
fn a_recording_that_is_left_open_is_ended_before_the_next_batch() {
    let fake = FakeCuda::start("");
    let mut engine = recording(&open(0));
    fake.tell("fault on=cuStreamEndCapture code=1 times=2");
    let failed = start(&mut engine, &pictures(3, 6)).and_then(Flight::land);
    assert!(matches!(failed, Err(EngineError::Passing(_))), "{failed:?}");
    run("the next", &mut engine, &pictures(3, 6));
}

#[test]
fn a_batch_that_a_recording_was_in_the_way_of_is_begun_again_and_fails_without_anybodys_fault() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits());
    for what in ["the first of the engine", "a later one"] {
        fake.tell("fault on=cuMemcpyHtoDAsync* code=900");
        run(what, &mut engine, &pictures(3, 6));
    }
    fake.tell("fault on=cuMemcpyHtoDAsync* code=900 times=2");
    let failed = start(&mut engine, &pictures(3, 6)).map(|_| ());
    assert!(matches!(failed, Err(EngineError::Passing(_))), "{failed:?}");
    run("the next", &mut engine, &pictures(3, 6));
}

#[test]
fn a_session_whose_load_fails_is_left_where_its_context_is_broken_and_ended_where_it_is_not() {
    let fake = FakeCuda::start("");
    for broken in [false, true] {
        fake.tell("fault on=cuCtxSynchronize code=700");
        if broken {
            fake.tell("fault on=cuMemGetInfo* code=700");
        }
        let told = said(|| {
            let why = OnnxOnGpu::load_on_host(&runtime(), &open(0), &digits()).err().unwrap();
            assert!(why.starts_with("cannot wait for the GPU: "), "{why}");
        });
        let left = told.contains("what ONNX Runtime has on a GPU that failed is left there");
        assert_eq!(left, broken, "{told}");
    }
}
