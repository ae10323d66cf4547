//! What it costs to run an engine in a process of its own, and how long it takes to see one end and to have another.
//!
//! ```text
//! ORT_DYLIB_PATH=.lib/libonnxruntime.so cargo bench --bench isolation
//! ```
//!
//! The engine copies its input to its output (ONNX Runtime on the CPU), so that nothing but the way there and back is measured:
//! once on this thread, once in a child with the input put together in shared memory, and once with the input copied there.

use ocelli::engine::{
    DataType, Engine, Tensor,
    child::{Child, Place, Post, Program, Recipe},
    onnx::{Runtime, report_nothing},
    staging::{Blocks, Region},
};
use std::{
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

/// Calls of each kind, and how many before they count.
const CALLS: usize = 3000;
const WARM: usize = 200;
/// Children that are killed.
const KILLS: usize = 30;

/// A field of a protobuf message that has bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() < 128, "one byte of length");
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

/// A field that has a number.
fn count(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

/// `y = x`, FP32 of any shape of two extents, as ONNX.
fn identity() -> Vec<u8> {
    let value = |name: &str| {
        let extent = |name: &str| field(1, &field(2, name.as_bytes()));
        let shape = [extent("n"), extent("m")].concat();
        let tensor = [count(1, 1), field(2, &shape)].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
    };
    let node = [field(1, b"x"), field(2, b"y"), field(4, b"Identity")].concat();
    let graph = [field(1, &node), field(2, b"g"), field(11, &value("x")), field(12, &value("y"))].concat();
    [count(1, 8), field(7, &graph), field(8, &count(2, 13))].concat()
}

/// The median and the 99th percentile.
fn spread(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// Times batches of `tensor`, put together by the engine's wishes if `staged`.
fn time(engine: &mut dyn Engine, tensor: &Tensor, staged: bool) -> (Duration, Duration) {
    let blocks = Blocks::new(engine.memory());
    let input = |tensor: &Tensor| match staged {
        true => blocks.assemble(&[tensor], tensor.shape[0], false, None),
        false => tensor.clone(),
    };
    let mut times = Vec::with_capacity(CALLS);
    for call in 0..WARM + CALLS {
        let input = input(tensor);
        let began = Instant::now();
        let outputs =
            engine.start(vec![input], None).and_then(ocelli::engine::Flight::land).expect("an answer");
        if call >= WARM {
            times.push(began.elapsed());
        }
        assert_eq!(outputs[0].data, tensor.data);
    }
    spread(times)
}

fn main() {
    report_nothing();
    let library = PathBuf::from(std::env::var_os("ORT_DYLIB_PATH").expect("ORT_DYLIB_PATH"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("identity.onnx");
    std::fs::write(&path, identity()).expect("a file");
    let recipe = Recipe::Onnx { path, threads: 1 };
    let region = Region::new(64 << 20, 1).expect("memory");
    let post = || Post {
        device: "cpu".into(),
        gpu: None,
        program: Program { path: env!("CARGO_BIN_EXE_ocelli").into(), ..Program::own() },
        region: region.clone(),
        onnx_runtime: Some(library.clone()),
        patience: None,
    };
    let runtime = Runtime::load(&library, u64::MAX).expect("ONNX Runtime");
    let mut here = recipe.make(&Place::Cpu(Ok(runtime))).expect("an engine");
    let child = Child::start(post()).expect("a child");
    let mut there = child.load(&recipe).expect("an engine");
    println!("bytes    where                      p50        p99");
    for bytes in [64, 150_528, 3 << 20] {
        let data: Vec<u8> = (0..bytes / 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let tensor = Tensor { datatype: DataType::Fp32, shape: vec![1, bytes / 4], data: data.into() };
        let row = |place: &str, (p50, p99): (Duration, Duration)| {
            println!(
                "{bytes:<8} {place:<26} {:>7.1} us {:>7.1} us",
                p50.as_secs_f64() * 1e6,
                p99.as_secs_f64() * 1e6
            );
        };
        row("this thread", time(&mut *here, &tensor, true));
        row("child, put together there", time(&mut there, &tensor, true));
        row("child, copied there", time(&mut there, &tensor, false));
    }
    drop((there, child));

    let (mut seen, mut back) = (Vec::new(), Vec::new());
    let tensor = Tensor { datatype: DataType::Fp32, shape: vec![1, 16], data: vec![0; 64].into() };
    let answers = |child: &Arc<Child>| {
        let mut engine = child.load(&recipe).expect("an engine");
        engine.start(vec![tensor.clone()], None).and_then(ocelli::engine::Flight::land).expect("an answer");
    };
    let mut child = Child::start(post()).expect("a child");
    for _ in 0..KILLS {
        answers(&child);
        // The command itself takes its time: the clock starts when the process is no more.
        let stat = format!("/proc/{}/stat", child.id());
        let mut kill = Command::new("kill").args(["-9", &child.id().to_string()]).spawn().expect("kill");
        let gone = |stat: String| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'));
        while !std::fs::read_to_string(&stat).map_or(true, gone) {}
        let began = Instant::now();
        while child.ended().is_none() {
            std::thread::yield_now();
        }
        seen.push(began.elapsed());
        kill.wait().expect("kill");
        let began = Instant::now();
        child = Child::start(post()).expect("a child");
        answers(&child);
        back.push(began.elapsed());
    }
    for (what, times) in [("end seen after", seen), ("respawn to first answer", back)] {
        let (p50, p99) = spread(times);
        println!("{what:<35} {:>7.2} ms {:>7.2} ms", p50.as_secs_f64() * 1e3, p99.as_secs_f64() * 1e3);
    }
}
