//! The fitter on a GPU in a process of its own: the same numbers, and what is seen when that process ends.

use crate::{
    fakes::cuda::{Books, library},
    fitter::agree,
    support::{batch, camera_with_maps, on_cpu, plain, psfs, read, setting, staged, until},
};
use ocelli::engine::{
    Engine, EngineError, Flight, Tensor,
    child::{Child, ChildEngine, Post, Program, Recipe},
    kernels::Camera,
    staging::Region,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const GPU: &str = "GPU-fa000000-0000-0000-0000-000000000001";

/// A child with the fake as its driver, which has this script.
fn child(region: &Region, script: &str, books: Option<&tempfile::NamedTempFile>) -> Arc<Child> {
    let mut environment = vec![
        ("LD_LIBRARY_PATH".into(), library().parent().unwrap().into()),
        ("FAKE_CUDA".into(), format!("devices count=2;{script}").into()),
    ];
    environment.extend(books.map(|books| ("FAKE_CUDA_BOOKS".into(), books.path().into())));
    let program = Program { environment, ..Program::own() };
    let program = Program { path: env!("CARGO_BIN_EXE_ocelli").into(), ..program };
    Child::start(Post {
        device: GPU.into(),
        gpu: Some(GPU.into()),
        program,
        region: region.clone(),
        onnx_runtime: None,
        patience: None,
    })
    .unwrap()
}

fn region() -> Region {
    Region::new(64 << 20, 1).unwrap()
}

fn fitter(child: &Arc<Child>) -> ChildEngine {
    child.load(&Recipe::GaussMle { threads: 1 }).unwrap()
}

/// Begins a batch as a worker does: put together in the region.
fn start(engine: &mut ChildEngine, inputs: &[Tensor]) -> Result<Flight, EngineError> {
    let inputs = staged(engine, inputs);
    engine.start(inputs, Some(&plain()))
}

fn fault(landed: Result<Vec<Tensor>, EngineError>) -> String {
    match landed {
        Err(EngineError::Device(why)) => why,
        other => panic!("expected a fault of the device, not {other:?}"),
    }
}

fn of(books: &tempfile::NamedTempFile) -> Books {
    serde_json::from_slice(&std::fs::read(books.path()).unwrap()).unwrap()
}

#[test]
fn every_model_gives_what_the_cpu_gives_and_nothing_is_left_behind() {
    let (region, books) = (region(), tempfile::NamedTempFile::new().unwrap());
    let child = child(&region, "", Some(&books));
    let mut engine = fitter(&child);
    assert_eq!(engine.signature(), &ocelli::engine::gauss_mle::signature());
    assert_eq!(engine.depth(), 3);
    for psf in psfs() {
        for camera in [Arc::new(Camera::ideal()), camera_with_maps()] {
            for wide in [false, true] {
                let (inputs, asked) = (batch(7, 200, wide), setting(psf, &camera));
                let staged = staged(&engine, &inputs);
                let outputs = engine.start(staged, Some(&asked)).unwrap().land().unwrap();
                let what = format!("{} maps {} f32 {wide}", psf.name(), camera.sensor().is_some());
                agree(&what, &read(&outputs), &on_cpu(&inputs, &asked), 5e-3);
            }
        }
    }
    child.canary().unwrap();
    let before = child.memory().unwrap();
    assert!(engine.device_bytes() > 0 && before.free < before.total);
    engine.rest();
    let [landed, copied] = child.results_bytes();
    assert!(
        landed > 0 && copied == 0,
        "results are written where they are read: {landed} and {copied} bytes"
    );
    assert_eq!(engine.device_bytes(), 0);
    child.trim().unwrap();
    assert!(child.memory().unwrap().free > before.free);
    drop(engine);
    drop(child);
    let books = of(&books);
    books.assert_empty();
    assert!(
        books.calls.keys().any(|call| call.starts_with("cuMemHostRegister")),
        "the region was registered"
    );
    assert_eq!(books.devices[0].contexts_made, 1, "on the GPU that it was given");
    assert_eq!(books.devices[1].contexts_made, 0);
    let (pool, free) = region.pool_bytes();
    assert_eq!(pool, free, "all of the region is back");
}

#[test]
fn batches_are_read_where_they_were_put_together_and_from_a_copy_elsewhere() {
    let region = region();
    let child = child(&region, "", None);
    let mut engine = fitter(&child);
    let inputs = batch(3, 300, false);
    let expected = on_cpu(&inputs, &plain());
    // Put together in the region; in memory of the heap; both at once.
    let shared = staged(&engine, &inputs);
    let mixed = vec![shared[0].clone(), inputs[1].clone()];
    for inputs in [shared, inputs, mixed] {
        let outputs = engine.start(inputs, Some(&plain())).unwrap().land().unwrap();
        agree("a batch", &read(&outputs), &expected, 5e-3);
    }
}

#[test]
fn three_batches_are_on_their_way_at_once() {
    let (region, books) = (region(), tempfile::NamedTempFile::new().unwrap());
    let child = child(&region, "fault on=kernel times=always sleep_us=20000", Some(&books));
    let mut engine = fitter(&child);
    let inputs: Vec<Vec<Tensor>> = (0..6).map(|seed| batch(seed, 50, false)).collect();
    let flights: Vec<Flight> = inputs.iter().map(|inputs| start(&mut engine, inputs).unwrap()).collect();
    for (flight, inputs) in flights.into_iter().zip(&inputs) {
        agree("a batch", &read(&flight.land().unwrap()), &on_cpu(inputs, &plain()), 5e-3);
    }
    drop(engine);
    drop(child);
    of(&books).assert_empty();
}

/// Batches, their results and the maps of a camera: all are larger than what is shared from the beginning.
#[test]
fn what_does_not_fit_into_the_shared_memory_goes_in_memory_of_its_own() {
    let (region, books) = (Region::new(64 << 10, 1).unwrap(), tempfile::NamedTempFile::new().unwrap());
    let child = child(&region, "", Some(&books));
    let mut engine = fitter(&child);
    let maps = setting(psfs()[0], &camera_with_maps());
    for (seed, count) in [(1, 1000), (2, 20), (3, 2000), (4, 1)] {
        let inputs = batch(seed, count, false);
        let outputs = start(&mut engine, &inputs).unwrap().land().unwrap();
        agree(&format!("{count} ROIs"), &read(&outputs), &on_cpu(&inputs, &plain()), 5e-3);
        let on_maps = engine.start(staged(&engine, &inputs), Some(&maps)).unwrap().land().unwrap();
        agree(&format!("{count} ROIs on maps"), &read(&on_maps), &on_cpu(&inputs, &maps), 5e-3);
    }
    // The last results are given back when the child hears that they were read.
    until("all but the region is gone", || shared(child.id()) == 1);
    drop(engine);
    drop(child);
    of(&books).assert_empty();
}

/// Files of shared memory that a process has open.
fn shared(id: u32) -> usize {
    let open = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().flatten();
    let paths = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    paths.filter(|path| path.to_string_lossy().contains("ocelli-tensors")).count()
}

/// Ends a child in the middle of three batches, by its script or by `end`: what the batches get, and a new child's answer.
fn check_end(script: &str, end: impl FnOnce(&Child), expected: &str) {
    let region = region();
    let first = child(&region, script, None);
    let mut engine = fitter(&first);
    let inputs = batch(6, 20, false);
    let flights: Vec<_> = (0..3).map(|_| start(&mut engine, &inputs)).collect();
    let began = Instant::now();
    end(&first);
    for flight in flights {
        let why = fault(flight.and_then(Flight::land));
        println!("{why}");
    }
    println!("seen after {:?}", began.elapsed());
    until("the child is gone", || first.ended().is_some());
    let why = first.ended().unwrap();
    assert!(why.contains(expected) && why.contains(GPU), "{why}");
    // What is asked of it later fails at once, and with the same words.
    assert_eq!(fault(start(&mut engine, &inputs).and_then(Flight::land)), why);
    let began = Instant::now();
    let again = child(&region, "", None);
    let mut engine_again = fitter(&again);
    let outputs = start(&mut engine_again, &inputs).unwrap().land().unwrap();
    println!("a new one answers after {:?}", began.elapsed());
    agree("after the respawn", &read(&outputs), &on_cpu(&inputs, &plain()), 5e-3);
    drop((engine, engine_again));
    assert!(!std::path::Path::new(&format!("/proc/{}", first.id())).exists(), "no zombie is left");
}

#[test]
fn a_child_that_is_killed_in_mid_batch_fails_its_batches_and_a_new_one_takes_over() {
    let kill = |child: &Child| {
        let killed = std::process::Command::new("kill").args(["-9", &child.id().to_string()]).status();
        assert!(killed.unwrap().success());
    };
    check_end("fault on=kernel hang", kill, "was ended by signal 9 (SIGKILL");
}

#[test]
fn a_child_that_hangs_can_be_ended_with_a_reason() {
    check_end(
        "fault on=kernel hang",
        |child| child.kill("no answer within 5 s"),
        "was ended by the server: no answer within 5 s",
    );
}

#[test]
fn an_abort_in_a_library_is_told_with_its_last_words() {
    let expected = "was ended by signal 6 (SIGABRT); its last words: fake driver: ended by signal 6";
    check_end("fault on=kernel signal=6", |_| {}, expected);
}

#[test]
fn a_segfault_in_a_library_is_told() {
    check_end("fault on=kernel signal=11", |_| {}, "was ended by signal 11 (SIGSEGV)");
}

#[test]
fn a_sticky_error_ends_the_child_with_a_code_of_its_own() {
    check_end("fault on=kernel code=700", |_| {}, "ended with exit code 86, after a fault of its device: ");
}

#[test]
fn a_gpu_that_cannot_be_had_is_an_error_at_the_start() {
    let environment = vec![
        ("LD_LIBRARY_PATH".into(), library().parent().unwrap().into()),
        ("FAKE_CUDA".into(), "devices;fault on=cuDevicePrimaryCtxRetain times=always code=2".into()),
    ];
    let path = env!("CARGO_BIN_EXE_ocelli").into();
    let program = Program { path, environment, ..Program::own() };
    let (gpu, region) = (Some(GPU.into()), region());
    let (device, onnx_runtime, patience) = (GPU.into(), None, None);
    let post = Post { device, gpu, program, region: region.clone(), onnx_runtime, patience };
    let why = Child::start(post.clone()).unwrap_err().to_string();
    assert!(why.starts_with("cannot take GPU-fa000000-"), "{why}");
    let why = Child::start(Post { gpu: Some("GPU-0".into()), ..post }).unwrap_err().to_string();
    assert!(why.contains("CUDA_VISIBLE_DEVICES is \"GPU-0\""), "{why}");
}

#[test]
fn a_child_that_hangs_while_it_takes_its_gpu_is_ended_and_another_may_take_it() {
    let region = region();
    for call in ["cuInit", "cuDevicePrimaryCtxRetain"] {
        let environment = vec![
            ("LD_LIBRARY_PATH".into(), library().parent().unwrap().into()),
            ("FAKE_CUDA".into(), format!("devices;fault on={call} times=always hang").into()),
        ];
        let program = Program { path: env!("CARGO_BIN_EXE_ocelli").into(), environment, ..Program::own() };
        let why = Child::start(Post {
            device: GPU.into(),
            gpu: Some(GPU.into()),
            program,
            region: region.clone(),
            onnx_runtime: None,
            patience: Some(Duration::from_millis(500)),
        });
        let why = why.unwrap_err().to_string();
        assert!(why.contains("was ended by the server: it has not taken its device within 500 ms"), "{why}");
    }
    // Its share of the memory is back, too.
    child(&region, "", None).canary().unwrap();
}
