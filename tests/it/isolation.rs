//! Engines in a process of their own, on the CPU: what needs no GPU, and no fake of one.

use crate::support::{config, root};
use ocelli::engine::{
    Dim, Engine, EngineError, Tensor,
    child::{Child, ChildEngine, Place, Post, Program, Recipe},
    onnx::Runtime,
    staging::{Memory, Region, Staging},
};
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

fn post(region: &Region) -> Post {
    Post {
        device: "cpu".into(),
        gpu: None,
        program: Program { path: env!("CARGO_BIN_EXE_ocelli").into(), ..Program::own() },
        region: region.clone(),
        onnx_runtime: Some(config().onnx_runtime),
        patience: None,
    }
}

fn digits() -> Recipe {
    Recipe::Onnx { path: root().join("examples/models/digits/model.onnx"), threads: 1 }
}

fn start() -> (Region, Arc<Child>, ChildEngine) {
    start_with(4 << 20)
}

/// Sharing so many bytes.
fn start_with(bytes: usize) -> (Region, Arc<Child>, ChildEngine) {
    let region = Region::new(bytes, 1).unwrap();
    let child = Child::start(post(&region)).unwrap();
    let engine = child.load(&digits()).unwrap();
    (region, child, engine)
}

/// A batch that the engine takes, with numbers that differ.
fn batch(engine: &dyn Engine, items: usize) -> Vec<Tensor> {
    let input = &engine.signature().inputs[0];
    let extent = |dim: &Dim| if let Dim::Fixed(n) = dim { *n } else { items };
    let shape: Vec<usize> = input.shape.iter().map(extent).collect();
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (i * 7 % 97) as f32 / 97.0).collect();
    vec![Tensor { datatype: input.datatype, shape, data: bytemuck::cast_slice(&values).to_vec().into() }]
}

fn values(outputs: &[Tensor]) -> Vec<Vec<f32>> {
    outputs.iter().map(|output| output.to_f32().unwrap()).collect()
}

/// Whether a process is there, and no zombie.
fn lives(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Memory of a process alone, without what it shares.
fn resident_mb(id: u32) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<i64>().unwrap() / 1024
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < patience, "not within a minute: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_network_in_a_child_gives_what_it_gives_here() {
    check_network(4 << 20);
}

/// Both what goes there and what comes back: a thousand items are 4.1 MB, their answers 40 kB.
#[test]
fn batches_for_which_too_little_is_shared_go_there_and_come_back_as_well() {
    check_network(64 << 10);
}

fn check_network(shared_bytes: usize) {
    let (_region, child, mut engine) = start_with(shared_bytes);
    let runtime = Runtime::load(&config().onnx_runtime, u64::MAX).unwrap();
    let mut here = digits().make(&Place::Cpu(Ok(runtime))).unwrap();
    assert_eq!(engine.signature(), here.signature());
    for items in [1, 5, 16, 1000] {
        let inputs = batch(&engine, items);
        let views: Vec<_> = inputs.iter().map(Tensor::view).collect();
        let expected = here.run(&views, None).unwrap();
        let there = engine.start(inputs.clone(), None).unwrap().land().unwrap();
        assert_eq!(there[0].shape, expected[0].shape);
        assert_eq!(values(&there), values(&expected));
        assert_eq!(values(&engine.run(&views, None).unwrap()), values(&expected));
    }
    let id = child.id();
    drop((engine, child));
    assert!(!lives(id), "the child ends with the last hold on it");
}

#[test]
fn an_idle_network_gives_back_what_a_large_batch_took() {
    let region = Region::new(64 << 20, 1).unwrap();
    let child = Child::start(post(&region)).unwrap();
    let mut engine = child.load(&digits()).unwrap();
    let mut resident_after = |items: usize| {
        let inputs = batch(&engine, items);
        drop(engine.start(inputs, None).unwrap().land().unwrap());
        resident_mb(child.id())
    };
    let [small, large, later] = [1, 2000, 1].map(&mut resident_after);
    engine.rest();
    println!(
        "one item {small} MB, 2000 items {large} MB, one again {later} MB, rested {} MB",
        resident_mb(child.id())
    );
    assert!(later > small + 100, "the batch was too small to show anything");
    // The heap keeps what is free for some seconds.
    until("the memory goes back to the system", || resident_mb(child.id()) < small + (later - small) / 4);
    let one = engine.start(batch(&engine, 1), None).unwrap().land().unwrap();
    assert!(values(&one)[0].iter().all(|score| score.is_finite()), "it answers on");
}

#[test]
fn images_are_decoded_into_shared_memory_and_into_the_heap_where_that_is_full() {
    let region = Region::new(64 << 10, 1).unwrap();
    let (pool, _) = region.pool_bytes();
    let staging = Staging::new(4096, 2, Memory::Shared(region.clone())).unwrap();
    let slots: Vec<_> = (0..pool / 4096 + 4).map(|_| staging.slot()).collect();
    let (_, free) = region.pool_bytes();
    assert_eq!(free, 0, "all of the pool is in use");
    for mut slot in slots {
        slot.fill(1);
    }
    drop(staging);
    assert_eq!(region.pool_bytes().1, pool, "and it comes back");
}

#[test]
fn a_wrong_input_is_an_error_of_the_batch_and_the_child_goes_on() {
    let (_region, child, mut engine) = start();
    let good = batch(&engine, 2);
    let mut bad = good.clone();
    let bytes = bad[0].data.len();
    bad[0].shape = vec![1, bytes / 4];
    let refused = engine.start(bad, None).and_then(ocelli::engine::Flight::land);
    assert!(matches!(refused, Err(EngineError::Input(_))), "{refused:?}");
    assert!(engine.start(good, None).unwrap().land().is_ok());
    assert_eq!(child.ended(), None);
}

#[test]
fn a_model_that_cannot_be_loaded_is_an_error_with_the_reason() {
    let (_region, child, _engine) = start();
    let why =
        child.load(&Recipe::Onnx { path: "/nowhere/model.onnx".into(), threads: 1 }).unwrap_err().to_string();
    assert!(why.contains("model.onnx"), "{why}");
    assert!(child.load(&digits()).is_ok(), "the child goes on");
}

#[test]
fn a_model_that_is_tried_over_and_over_leaves_nothing_of_a_try_in_the_child() {
    let (_region, child, _engine) = start();
    // The stack of a thread is a mapping, and so is what guards it, until the thread is joined.
    let mapped = || std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap().lines().count();
    let fail = || {
        child.load(&Recipe::Onnx { path: "/nowhere/model.onnx".into(), threads: 1 }).unwrap_err();
    };
    // What the first threads of a process take is kept for the next ones.
    (0..8).for_each(|_| fail());
    let before = mapped();
    (0..64).for_each(|_| fail());
    let after = mapped();
    assert!(after < before + 64, "{before} mappings, and {after} after 64 tries");
}

#[test]
fn a_killed_child_fails_what_is_asked_and_another_answers_on_the_same_memory() {
    let (region, child, mut engine) = start();
    let inputs = batch(&engine, 16);
    let expected = values(&engine.start(inputs.clone(), None).unwrap().land().unwrap());
    let flight = engine.start(inputs.clone(), None).unwrap();
    assert!(Command::new("kill").args(["-9", &child.id().to_string()]).status().unwrap().success());
    // It may have answered before it was killed; afterwards, it does not.
    if let Err(error) = flight.land() {
        assert!(matches!(error, EngineError::Device(_)), "{error:?}");
    }
    until("the end is seen", || child.ended().is_some());
    let error = engine.start(inputs.clone(), None).and_then(ocelli::engine::Flight::land).unwrap_err();
    assert!(error.to_string().contains("was ended by signal 9 (SIGKILL"), "{error}");
    drop((engine, child));
    let child = Child::start(post(&region)).unwrap();
    let mut engine = child.load(&digits()).unwrap();
    assert_eq!(values(&engine.start(inputs, None).unwrap().land().unwrap()), expected);
}

#[test]
fn a_service_managers_signal_to_all_processes_leaves_the_child_to_its_parent() {
    let (_region, child, mut engine) = start();
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let inputs = batch(&engine, 1);
    assert!(engine.start(inputs, None).unwrap().land().is_ok());
}

#[test]
fn a_child_serves_where_no_memory_may_be_written_to_files_and_leaves_that_limit() {
    let region = Region::new(4 << 20, 1).unwrap();
    let own = post(&region).program.path.into_os_string();
    let lowered = ["-c".into(), "ulimit -c 0 && exec \"$0\" \"$@\"".into(), own];
    let program = Program { path: "/bin/sh".into(), arguments: lowered.into(), ..Program::own() };
    let child = Child::start(Post { program, ..post(&region) }).unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["0", "0"], "{core}");
    let mut engine = child.load(&digits()).unwrap();
    let inputs = batch(&engine, 2);
    assert!(engine.start(inputs, None).unwrap().land().is_ok());
}

#[test]
fn a_program_that_is_none_of_ours_is_an_error() {
    let region = Region::new(1 << 16, 1).unwrap();
    let check = |path: &str, expected: &str| {
        let program = Program { path: PathBuf::from(path), ..Program::own() };
        let why = Child::start(Post { program, ..post(&region) }).unwrap_err().to_string();
        assert!(why.contains(expected), "{why}");
    };
    check("/nowhere/ocelli", "cannot start a process: No such file");
    check("/bin/false", "ended with exit code 1");
}

/// Says to this binary that it is the parent that will be killed.
const PARENT: &str = "ISOLATION_PARENT";

#[test]
fn a_child_ends_with_a_parent_that_is_killed_and_nothing_is_left_in_shared_memory() {
    let test = "isolation::a_child_ends_with_a_parent_that_is_killed_and_nothing_is_left_in_shared_memory";
    if std::env::var_os(PARENT).is_some() {
        let (_region, child, _engine) = start();
        println!("\nchild {}", child.id());
        // Until it is killed.
        loop {
            std::thread::park();
        }
    }
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(PARENT, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let id = lines.find_map(|line| line.strip_prefix("child ")?.parse::<u32>().ok()).expect("it has a child");
    assert!(lives(id));
    parent.kill().unwrap();
    parent.wait().unwrap();
    until("the child is gone", || !lives(id));
    let left =
        std::fs::read_dir("/dev/shm").map(|entries| entries.flatten().map(|entry| entry.path()).collect());
    let left: Vec<PathBuf> = left.unwrap_or_default();
    let ours = |path: &&PathBuf| path.to_string_lossy().contains("ocelli");
    assert_eq!(left.iter().find(ours), None, "in {}", Path::new("/dev/shm").display());
}
