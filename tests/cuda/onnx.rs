//! ONNX models on streams and memory of a GPU, with the model itself on the CPU: the fake driver's memory is the host's, and
//! ONNX Runtime's CUDA provider runs on no fake. What is checked is all that is ours: copies, order, places, memory, faults.

use crate::{
    fakes::cuda::FakeCuda,
    graph::{Extent::*, FLOAT, INT64, model},
    http::{config, root},
    support::{Random, open, staged, until},
};
use ocelli::engine::{
    DataType, Ends, Engine, EngineError, Flight, Tensor, TensorView,
    cuda::{Context, onnx::OnnxOnGpu},
    onnx::Runtime,
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

pub(crate) fn runtime() -> Runtime {
    Runtime::load(&config().onnx_runtime, u64::MAX).unwrap()
}

pub(crate) fn digits() -> PathBuf {
    root().join("examples/models/digits/model.onnx")
}

pub(crate) fn load(context: &Arc<Context>, path: &Path) -> OnnxOnGpu {
    OnnxOnGpu::load_on_host(&runtime(), context, path).unwrap().0
}

/// Pictures of digits that nobody wrote.
pub(crate) fn pictures(seed: u64, count: usize) -> Vec<Tensor> {
    let random = &mut Random(seed);
    let values: Vec<f32> = (0..count * 32 * 32).map(|_| random.next()).collect();
    vec![floats(vec![count, 1, 32, 32], &values)]
}

fn floats(shape: Vec<usize>, values: &[f32]) -> Tensor {
    Tensor { datatype: DataType::Fp32, shape, data: bytemuck::cast_slice(values).to_vec().into() }
}

/// Begins a batch as a worker does.
pub(crate) fn start(engine: &mut OnnxOnGpu, inputs: &[Tensor]) -> Result<Flight, EngineError> {
    let inputs = staged(engine, inputs);
    engine.start(inputs, None)
}

pub(crate) fn on_cpu(path: &Path, inputs: &[Tensor]) -> Vec<Tensor> {
    let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
    runtime().load_cpu(path, 1).unwrap().run(&views, None).unwrap()
}

/// Fails unless all outputs are the same to the bit: it is the same code that computed them.
pub(crate) fn same(what: &str, got: &[Tensor], expected: &[Tensor]) {
    let all = |tensors: &[Tensor]| -> Vec<(DataType, Vec<usize>, Vec<u8>)> {
        tensors.iter().map(|t| (t.datatype, t.shape.clone(), t.data.to_vec())).collect()
    };
    assert_eq!(all(got), all(expected), "{what}");
}

#[test]
fn batches_give_what_the_cpu_gives_however_many_are_on_their_way() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits());
    for round in 0..3 {
        let inputs = [4, 1, 7].map(|count| pictures(round * 10 + count as u64, count));
        let flights: Vec<Flight> = inputs.iter().map(|inputs| start(&mut engine, inputs).unwrap()).collect();
        for (flight, inputs) in flights.into_iter().zip(&inputs) {
            same("a batch", &flight.land().unwrap(), &on_cpu(&digits(), inputs));
        }
    }
    let copied = &fake.books().devices[0];
    assert_eq!(copied.copied_in, 3 * 12 * 32 * 32 * 4, "every picture went to the device once");
    assert_eq!(copied.copied_out, 3 * 12 * 10 * 4, "and its scores came back");
}

#[test]
fn nothing_is_allocated_for_a_size_that_every_place_has_seen() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits());
    let run = |engine: &mut OnnxOnGpu| {
        for count in [2, 5] {
            for _ in 0..engine.depth() {
                start(engine, &pictures(1, count)).unwrap().land().unwrap();
            }
        }
    };
    run(&mut engine);
    let held = engine.device_bytes();
    run(&mut engine);
    assert_eq!(
        fake.books().calls("cuMemAllocAsync"),
        3 * 2 * 2,
        "an input and an output of two sizes in three places"
    );
    assert_eq!(engine.device_bytes(), held);
    assert_eq!(held, 3 * 7 * (32 * 32 + 10) * 4);
}

#[test]
fn an_idle_engine_gives_its_memory_back_and_works_again() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits());
    let inputs = pictures(3, 6);
    start(&mut engine, &inputs).unwrap().land().unwrap();
    engine.rest();
    assert_eq!((engine.device_bytes(), fake.books().devices[0].pool_reserved), (0, 0));
    same("after a rest", &start(&mut engine, &inputs).unwrap().land().unwrap(), &on_cpu(&digits(), &inputs));
}

/// A model that adds chance numbers to its input.
fn noisy(folder: &Path) -> PathBuf {
    let (path, x, y) = (folder.join("noisy"), [Named("batch"), Fixed(4)], [Named("batch"), Fixed(4)]);
    let nodes: [(&str, &[&str], &str); 2] =
        [("RandomNormalLike", &["x"], "noise"), ("Add", &["x", "noise"], "y")];
    std::fs::write(&path, model(&nodes, &[("x", FLOAT, &x)], &[("y", FLOAT, &y)])).unwrap();
    path
}

#[test]
fn batches_whose_replays_give_the_same_are_of_any_size_and_keep_their_memory() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits());
    start(&mut engine, &pictures(3, 6)).unwrap().land().unwrap();
    assert!(engine.habits().plans_anew, "nothing is recorded unless it is asked for");
    drop(engine);
    let mut engine = load(&open(0), &digits()).recording();
    for count in [6, 2, 6, 6, 6] {
        let inputs = pictures(3, count);
        let landed = start(&mut engine, &inputs).unwrap().land().unwrap();
        same("a batch", &landed, &on_cpu(&digits(), &inputs));
    }
    assert!(!engine.habits().plans_anew);
    let held = engine.device_bytes();
    engine.rest();
    assert!(held > 0 && engine.device_bytes() == held, "graphs have its addresses in them");
    drop((engine, fake));
}

#[test]
fn what_was_recorded_for_batches_that_do_not_come_again_keeps_no_memory() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits()).recording();
    let run = |engine: &mut OnnxOnGpu, count| {
        let inputs = pictures(3, count);
        let landed = start(engine, &inputs).unwrap().land().unwrap();
        same("a batch", &landed, &on_cpu(&digits(), &inputs));
    };
    for count in [6, 2, 1] {
        run(&mut engine, count);
    }
    engine.forget();
    assert_eq!((engine.device_bytes(), fake.books().devices[0].pool_reserved), (0, 0));
    run(&mut engine, 1);
    assert!(!engine.habits().plans_anew, "what comes instead is recorded");
    let held = engine.device_bytes();
    engine.rest();
    assert!(held > 0 && engine.device_bytes() == held, "and that is kept");
    drop((engine, fake));
}

#[test]
fn when_as_many_graphs_are_recorded_as_there_may_be_batches_are_run_without_and_counted() {
    let _fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits()).recording();
    for count in 1..=50 {
        let inputs = pictures(3, count);
        let landed = start(&mut engine, &inputs).unwrap().land().unwrap();
        same("a batch", &landed, &on_cpu(&digits(), &inputs));
        let habits = engine.habits();
        let beyond = count.saturating_sub(48) as u64;
        assert_eq!((habits.plans_anew, habits.unrecorded), (beyond > 0, beyond), "{count} sizes");
    }
}

#[test]
fn this_onnx_runtime_says_that_it_is_new_enough_to_replay_what_it_records() {
    assert_eq!(runtime().check_replays(), Ok(()));
}

#[test]
fn a_batch_whose_replay_gives_something_else_is_answered_and_nothing_is_replayed() {
    let _fake = FakeCuda::start("");
    let folder = tempfile::tempdir().unwrap();
    let mut engine = load(&open(0), &noisy(folder.path())).recording();
    let inputs = [floats(vec![2, 4], &[0.0; 8])];
    let mut answers = (0..4).map(|_| start(&mut engine, &inputs).unwrap().land().unwrap());
    let first = answers.next().unwrap()[0].data.to_vec();
    assert!(answers.all(|answer| answer[0].data != first));
    assert!(engine.habits().plans_anew);
    engine.rest();
    assert_eq!(engine.device_bytes(), 0, "no graph has an address in it");
}

#[test]
fn a_replay_that_fails_ends_graphs_and_not_the_batch() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits()).recording();
    let inputs = pictures(3, 6);
    // The batch's own result is copied first, then what is compared with a replay, and then what that gave.
    fake.tell("fault on=cuMemcpyDtoHAsync* after=2 code=2");
    for _ in 0..4 {
        let landed = start(&mut engine, &inputs).unwrap().land().unwrap();
        same("a batch", &landed, &on_cpu(&digits(), &inputs));
    }
    assert!(engine.habits().plans_anew);
}

#[test]
fn a_device_that_fails_while_a_replay_is_tried_is_at_fault() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits()).recording();
    fake.tell("fault on=copy_out after=1 code=700");
    let failed = start(&mut engine, &pictures(1, 2)).and_then(Flight::land);
    assert!(matches!(failed, Err(EngineError::Device(_))), "{failed:?}");
}

#[test]
fn a_context_that_fails_all_that_is_asked_is_at_fault_and_no_input() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits());
    // It ends the context, though other calls give this code for what they are asked.
    fake.tell("fault on=copy_in code=1");
    let first = start(&mut engine, &pictures(1, 2)).and_then(Flight::land);
    assert!(first.is_err());
    let second = start(&mut engine, &pictures(3, 2)).and_then(Flight::land);
    assert!(matches!(second, Err(EngineError::Device(_))), "{second:?}");
}

#[test]
fn a_batch_whose_wait_fails_keeps_its_memory_until_the_device_is_done_with_it() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits());
    // The first batch in each place is waited for by whoever begins it.
    (0..engine.depth()).for_each(|_| drop(start(&mut engine, &pictures(1, 2)).unwrap().land().unwrap()));
    fake.tell("fault on=copy_out hang");
    let flight = start(&mut engine, &pictures(1, 2)).unwrap();
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
fn batches_with_outputs_of_unknown_shapes_are_not_recorded() {
    let _fake = FakeCuda::start("");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let (x, at) = ([Named("batch"), Fixed(2)], [Fixed(2), Named("found")]);
    let nodes: [(&str, &[&str], &str); 1] = [("NonZero", &["x"], "at")];
    std::fs::write(&path, model(&nodes, &[("x", FLOAT, &x)], &[("at", INT64, &at)])).unwrap();
    let mut engine = load(&open(0), &path).recording();
    let inputs = [floats(vec![2, 2], &[0.0, 1.0, 0.0, 2.0])];
    same("as it is", &start(&mut engine, &inputs).unwrap().land().unwrap(), &on_cpu(&path, &inputs));
    assert!(engine.habits().plans_anew);
    engine.rest();
    assert_eq!(engine.device_bytes(), 0);
}

/// Runs a model that reads its inputs on the CPU, while memory is taken that counts as ONNX Runtime's, and then has it rest. The
/// bytes that it holds, before and after.
fn held_around_a_rest(path: &Path, inputs: &[Tensor]) -> [u64; 2] {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), path).reading_on_the_cpu();
    let expected = on_cpu(path, inputs);
    fake.tell("fault on=record hang");
    let landed = std::thread::scope(|scope| {
        let running = scope.spawn(|| start(&mut engine, inputs).unwrap().land().unwrap());
        until("it is on its way", || running.is_finished() || fake.books().calls("cuEventRecord") > 0);
        fake.tell("foreign device=0 bytes=100MiB");
        fake.tell("release");
        running.join().unwrap()
    });
    same("a batch", &landed, &expected);
    let before = engine.device_bytes();
    engine.rest();
    let after = engine.device_bytes();
    fake.tell("foreign device=0 bytes=0");
    same("after a rest", &start(&mut engine, inputs).unwrap().land().unwrap(), &expected);
    [before, after]
}

#[test]
fn an_idle_engine_whose_inputs_the_cpu_reads_has_its_arena_given_back_with_a_run_of_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let [negate, count] = ["negate", "count"].map(|name| folder.path().join(name));
    let x = ("x", FLOAT, &[Named("batch")][..]);
    let y = ("y", FLOAT, &[Named("batch")][..]);
    std::fs::write(&negate, model(&[("Neg", &["x"], "y")], &[x], &[y])).unwrap();
    let [before, after] = held_around_a_rest(&negate, &[floats(vec![3], &[1.0, 2.0, 3.0])]);
    assert_eq!([before, after], [(100 << 20) + 3 * 4, 0]);

    // Nobody counts in steps of zero: what cannot be run is not given back either, and not said to be.
    let number = |name| (name, FLOAT, &[Fixed(1)][..]);
    let inputs = [number("from"), number("to"), number("by")];
    let counted = ("counted", FLOAT, &[Named("many")][..]);
    let nodes: [(&str, &[&str], &str); 1] = [("Range", &["from", "to", "by"], "counted")];
    std::fs::write(&count, model(&nodes, &inputs, &[counted])).unwrap();
    let numbers = [1.0, 6.0, 2.0].map(|number| floats(vec![1], &[number]));
    assert_eq!(held_around_a_rest(&count, &numbers), [100 << 20; 2]);
}

#[test]
fn where_three_batches_do_not_fit_there_are_fewer_at_once() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits());
    let inputs = pictures(5, 8);
    let first = start(&mut engine, &inputs).unwrap();
    fake.tell("fault on=cuMemAllocAsync times=1000 code=2");
    // No memory for a second place: it waits for the first.
    let second = std::thread::scope(|scope| {
        let second = scope.spawn(|| start(&mut engine, &inputs).unwrap());
        same("the first", &first.land().unwrap(), &on_cpu(&digits(), &inputs));
        second.join().unwrap()
    });
    same("the second", &second.land().unwrap(), &on_cpu(&digits(), &inputs));
    let refused = start(&mut engine, &pictures(5, 9)).map(|_| ());
    assert!(matches!(refused, Err(EngineError::OutOfMemory(_))), "{refused:?}");
}

#[test]
fn where_there_were_fewer_at_once_there_are_as_many_again_after_a_rest() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits());
    let inputs = pictures(5, 8);
    let in_all_places = |engine: &mut OnnxOnGpu| {
        for _ in 0..3 {
            start(engine, &inputs).unwrap().land().unwrap();
        }
        engine.device_bytes()
    };
    let before = in_all_places(&mut engine);
    engine.rest();
    fake.tell("fault on=cuMemAllocAsync times=1000 code=2");
    let refused = start(&mut engine, &inputs).map(|_| ());
    assert!(matches!(refused, Err(EngineError::OutOfMemory(_))), "{refused:?}");
    fake.tell("clear");
    assert!(in_all_places(&mut engine) < before, "one place is left while there is work");
    engine.rest();
    assert_eq!(in_all_places(&mut engine), before);
}

#[test]
fn a_copy_that_fails_is_the_devices_fault_and_leaves_nothing_behind() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits());
    start(&mut engine, &pictures(1, 2)).unwrap().land().unwrap();
    fake.tell("fault on=copy_out code=700");
    let failed = start(&mut engine, &pictures(1, 2)).and_then(Flight::land);
    assert!(matches!(failed, Err(EngineError::Device(_))), "{failed:?}");
}

/// What the log says of what this thread does.
pub(crate) fn said(act: impl FnOnce()) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    let log = tracing_subscriber::fmt().with_writer(Arc::new(file.reopen().unwrap())).finish();
    // A second log: with one, another thread that reaches an event first answers for all whether anybody wants it.
    let _another = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    tracing::subscriber::with_default(log, act);
    std::fs::read_to_string(file.path()).unwrap()
}

#[test]
fn what_onnx_runtime_has_in_a_context_that_failed_is_left_and_what_is_ours_is_not() {
    for failed in [false, true] {
        let fake = FakeCuda::start("");
        let mut engine = load(&open(0), &digits());
        start(&mut engine, &pictures(1, 2)).unwrap().land().unwrap();
        if failed {
            fake.tell("poison device=0 code=700");
        }
        let told = said(|| drop(engine));
        assert_eq!(
            told.contains("what ONNX Runtime has on a GPU that failed is left there"),
            failed,
            "{told}"
        );
        fake.books().assert_empty();
    }
}

#[test]
fn a_batch_that_nobody_lands_is_waited_for_even_when_its_engine_is_gone() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits());
    let flight = start(&mut engine, &pictures(1, 2)).unwrap();
    drop(engine);
    drop(flight);
    fake.books().assert_empty();
}

#[test]
fn outputs_whose_shapes_only_a_run_can_tell_come_as_they_are() {
    let _fake = FakeCuda::start("");
    let folder = tempfile::tempdir().unwrap();
    let x = ("x", FLOAT, &[Named("batch"), Fixed(4)][..]);
    // NonZero gives where it found something: [2, how many].
    let nodes: [(&str, &[&str], &str); 2] = [("Neg", &["x"], "y"), ("NonZero", &["x"], "at")];
    let honest =
        [("at", INT64, &[Fixed(2), Named("found")][..]), ("y", FLOAT, &[Named("batch"), Fixed(4)][..])];
    // Says that there are as many as the batch has items, which is not so.
    let lying = [("at", INT64, &[Fixed(2), Named("batch")][..]), honest[1]];
    for (name, outputs) in [("honest", honest), ("lying", lying)] {
        let path = folder.path().join(name);
        std::fs::write(&path, model(&nodes, &[x], &outputs)).unwrap();
        let mut engine = load(&open(0), &path);
        for values in [[0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 3.0], [0.0; 8], [1.0; 8]] {
            let inputs = [floats(vec![2, 4], &values)];
            let flights = [0; 3].map(|_| start(&mut engine, &inputs).unwrap());
            for flight in flights {
                same(name, &flight.land().unwrap(), &on_cpu(&path, &inputs));
            }
        }
    }
}

#[test]
fn outputs_that_nobody_asks_for_do_not_come() {
    let fake = FakeCuda::start("");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let shape = &[Named("batch"), Fixed(4)][..];
    let nodes: [(&str, &[&str], &str); 3] =
        [("NonZero", &["x"], "at"), ("Neg", &["x"], "y"), ("Abs", &["x"], "z")];
    let outputs = [("at", INT64, &[Fixed(2), Named("found")][..]), ("y", FLOAT, shape), ("z", FLOAT, shape)];
    std::fs::write(&path, model(&nodes, &[("x", FLOAT, shape)], &outputs)).unwrap();
    let all = |inputs| on_cpu(&path, inputs);
    let (mut cpu, mut gpu) = (runtime().load_cpu(&path, 1).unwrap(), load(&open(0), &path));
    let inputs = [floats(vec![2, 4], &[0.0, 1.0, 0.0, -2.0, 0.0, 0.0, 0.0, 3.0])];
    let views = inputs.each_ref().map(Tensor::view);
    // One that has run before, as when a model turns out not to batch.
    same("before", &cpu.run(&views, None).unwrap(), &all(&inputs));
    same("before", &gpu.run(&views, None).unwrap(), &all(&inputs));
    gpu.forget();
    let ends = Ends { left_out: vec!["at".into(), "z".into()], ..Ends::default() };
    let copied = || fake.books().devices[0].copied_out;
    for engine in [&mut cpu as &mut dyn Engine, &mut gpu] {
        engine.equip(&ends).unwrap();
        let before = copied();
        same("since", &engine.run(&views, None).unwrap(), &all(&inputs)[1..2]);
        assert!(copied() - before <= 2 * 4 * 4, "{} bytes from the device", copied() - before);
        let names = engine.signature().outputs.iter().map(|output| output.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["y"]);
    }
}

#[test]
fn a_file_that_lists_an_output_twice_is_refused() {
    let _fake = FakeCuda::start("");
    let folder = tempfile::tempdir().unwrap();
    let (x, y) =
        (("x", FLOAT, &[Named("batch"), Fixed(4)][..]), ("y", FLOAT, &[Named("batch"), Fixed(4)][..]));
    let path = folder.path().join("twice");
    std::fs::write(&path, model(&[("Neg", &["x"], "y")], &[x], &[y, y])).unwrap();
    let refused = OnnxOnGpu::load_on_host(&runtime(), &open(0), &path).err().unwrap();
    assert!(refused.contains("lists output \"y\" twice"), "{refused}");
}

#[test]
fn outputs_that_are_inputs_are_those_of_their_batch() {
    let _fake = FakeCuda::start("");
    let folder = tempfile::tempdir().unwrap();
    let x = ("x", FLOAT, &[Named("batch"), Fixed(4)][..]);
    let nodes: [(&str, &[&str], &str); 2] = [("Neg", &["x"], "y"), ("NonZero", &["x"], "at")];
    let at = ("at", INT64, &[Fixed(2), Named("found")][..]);
    // Before one that ONNX Runtime makes memory for, behind one that is written to ours, and with nothing else.
    let cases = [("first", 2, vec![x, at]), ("last", 1, vec![("y", x.1, x.2), x]), ("alone", 0, vec![x])];
    for (name, nodes_used, outputs) in cases {
        let path = folder.path().join(name);
        std::fs::write(&path, model(&nodes[..nodes_used], &[x], &outputs)).unwrap();
        let mut engine = load(&open(0), &path);
        for first in [1.0, 2.0] {
            let batches = [1, 2, 3].map(|n| {
                let values: Vec<f32> = (0..n * 4).map(|i| first + (i * n) as f32).collect();
                [floats(vec![n, 4], &values)]
            });
            let flights = batches.each_ref().map(|inputs| start(&mut engine, inputs).unwrap());
            for (flight, inputs) in flights.into_iter().zip(&batches) {
                same(name, &flight.land().unwrap(), &on_cpu(&path, inputs));
            }
        }
    }
}

#[test]
fn outputs_whose_named_extents_hold_for_some_batches_come_as_they_are_for_all() {
    let fake = FakeCuda::start("");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let nodes: [(&str, &[&str], &str); 1] = [("NonZero", &["x"], "at")];
    // Says that something is found as often as there are items.
    let at = ("at", INT64, &[Fixed(2), Named("batch")][..]);
    std::fs::write(&path, model(&nodes, &[("x", FLOAT, &[Named("batch"), Fixed(2)])], &[at])).unwrap();
    let mut engine = load(&open(0), &path);
    let often: [(&str, &[f32]); 4] = [
        ("as often", &[0.0, 1.0, 0.0, 2.0]),
        ("as often, of another shape", &[0.0, 1.0, 0.0, 2.0, 1.0, 0.0]),
        ("more often", &[3.0, 1.0, 0.0, 2.0]),
        ("never, of another shape", &[0.0; 8]),
    ];
    for (what, values) in often {
        let inputs = [floats(vec![values.len() / 2, 2], values)];
        // Every place has memory for batches that came before.
        let flights = [0; 3].map(|_| start(&mut engine, &inputs).unwrap());
        for flight in flights {
            same(what, &flight.land().unwrap(), &on_cpu(&path, &inputs));
        }
    }
    // What is so of some shapes is not taken from others.
    let copied = || fake.books().devices[0].copied_out;
    let before = copied();
    let inputs = [floats(vec![3, 2], often[1].1)];
    same("again", &start(&mut engine, &inputs).unwrap().land().unwrap(), &on_cpu(&path, &inputs));
    assert_eq!(copied() - before, 2 * 3 * 8, "from memory on the device");
}

#[test]
fn a_batch_that_the_model_refuses_does_not_change_how_outputs_come() {
    let fake = FakeCuda::start("");
    let mut engine = load(&open(0), &digits());
    let wrong = [floats(vec![2, 1, 7, 7], &[0.0; 98])];
    for _ in 0..3 {
        let refused = start(&mut engine, &wrong).map(|_| ());
        assert!(matches!(refused, Err(EngineError::Input(_))), "{refused:?}");
    }
    let copied = || fake.books().devices[0].copied_out;
    let before = copied();
    let inputs = pictures(1, 2);
    same("the next", &start(&mut engine, &inputs).unwrap().land().unwrap(), &on_cpu(&digits(), &inputs));
    assert_eq!(copied() - before, 2 * 10 * 4, "from memory on the device");
}

#[test]
fn it_is_told_which_nodes_are_on_the_cpu_and_a_model_that_may_have_none_is_refused() {
    let _fake = FakeCuda::start("");
    let (_, placement) = OnnxOnGpu::load_on_host(&runtime(), &open(0), &digits()).unwrap();
    assert!(placement.nodes() > 3 && placement.on_cpu().len() == placement.nodes(), "{placement}");
    assert_eq!(placement.to_string(), format!("{} nodes on CPU", placement.nodes()));
    let why = placement.check_no_cpu().unwrap_err();
    assert!(why.contains(&placement.on_cpu()[0]) && why.contains("placement.fallback"), "{why}");
}

#[test]
fn the_cpus_build_of_onnx_runtime_is_told_apart() {
    let _fake = FakeCuda::start("");
    let why = runtime().check_gpu(open(0).gpu()).unwrap_err();
    assert!(why.contains("a build of ONNX Runtime for the CPU") && why.contains("make gpu"), "{why}");
}
