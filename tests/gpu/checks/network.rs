//! Networks by ONNX Runtime on the GPU, on streams and memory of ours: against the CPU, and how fast without a server around.

use crate::{fits::seeded, given, number, rehearsed, skip, support};
use ocelli::{
    engine::{
        DataType, Dim, Engine, Flight, Tensor, TensorView,
        cuda::{
            Context,
            onnx::{Load, OnnxOnGpu},
        },
        onnx::{
            OnGpu, Runtime,
            gpu::{ConvSearch, CudaGraph},
        },
        staging::Blocks,
    },
    random::Random,
};
use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// How far outputs of single precision may be apart, relative to the largest of them.
const APART_MAX: f32 = 2e-3;

fn runtime() -> Runtime {
    let path =
        given("ORT_DYLIB_PATH").unwrap_or_else(|| skip("there is no ONNX Runtime: ORT_DYLIB_PATH names one"));
    Runtime::load(Path::new(&path), u64::MAX).unwrap()
}

/// Folders with a model file, as `run.py` gives them.
fn models() -> Vec<PathBuf> {
    let folders = given("GPU_CHECKS_MODELS").expect("run.py names the models");
    folders.split(':').map(|folder| Path::new(folder).join("model.onnx")).collect()
}

/// How the network is to run, by what `run.py` names of a manifest's table.
fn asked() -> OnGpu {
    let named = given("GPU_CHECKS_ON_GPU").unwrap_or_default();
    let has = |what: &str| named.split(',').any(|name| name == what);
    OnGpu {
        // With "auto" a session of no graphs would pass for one that has them.
        cuda_graph: if has("cuda_graph") { CudaGraph::Always } else { CudaGraph::Never },
        channels_last: has("channels_last"),
        tf32: has("tf32"),
        conv_search: if has("exhaustive") { ConvSearch::Exhaustive } else { ConvSearch::Heuristic },
        ..OnGpu::default()
    }
}

/// On the GPU; where it is none, with all but ONNX Runtime's own part there.
fn load(runtime: &Runtime, context: &Arc<Context>, path: &Path, items_max: usize) -> OnnxOnGpu {
    if rehearsed() {
        return OnnxOnGpu::load_on_host(runtime, context, path).unwrap().0;
    }
    if let Err(why) = runtime.check_gpu(context.gpu()) {
        // Where one was brought that is for GPUs, that is what is to be found out.
        if given("GPU_CHECKS_NETWORKS").is_some() {
            panic!("{why}");
        }
        skip(&why);
    }
    let load = Load {
        path: path.to_owned(),
        asked: asked(),
        items_max,
        memory_bytes_max: None,
        instances: 1,
        whole: false,
        on_host: false,
        cache: None,
    };
    OnnxOnGpu::load(runtime, context, &load).unwrap()
}

/// A batch for a model of one image input: values from 0 to 1, or bytes.
fn batch(engine: &dyn Engine, random: &mut Random, items: usize) -> Vec<Tensor> {
    let specs = &engine.signature().inputs;
    assert_eq!(specs.len(), 1, "a model of one input");
    let side = |dim: &Dim| match dim {
        Dim::Fixed(side) => *side,
        Dim::Free => panic!("sides that the model leaves open: {:?}", specs[0].shape),
    };
    let shape: Vec<usize> = std::iter::once(items).chain(specs[0].shape[1..].iter().map(side)).collect();
    let count = shape.iter().product();
    let datatype = specs[0].datatype;
    let data: Vec<u8> = match datatype {
        DataType::Uint8 => (0..count).map(|_| (256.0 * random.unit()) as u8).collect(),
        DataType::Fp32 => (0..count).flat_map(|_| (random.unit() as f32).to_ne_bytes()).collect(),
        other => panic!("inputs here are UINT8 or FP32, not {other:?}"),
    };
    vec![Tensor { datatype, shape, data: data.into() }]
}

/// The example that reads digits, and a batch for it.
pub(crate) fn digits(context: &Arc<Context>) -> (OnnxOnGpu, Vec<Tensor>) {
    let engine = load(&runtime(), context, &models()[0], 8);
    let inputs = batch(&engine, &mut seeded(1), 3);
    (engine, inputs)
}

pub(crate) fn against_the_cpu() {
    let (runtime, context) = (runtime(), support::open(0));
    let random = &mut seeded(2);
    let mut worst = 0f32;
    for path in models() {
        let mut on_gpu = load(&runtime, &context, &path, 8);
        let mut on_cpu = runtime.load_cpu(&path, 1).unwrap();
        for items in [1, 3, 8] {
            let inputs = batch(&on_gpu, random, items);
            let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
            let (got, expected) = (on_gpu.run(&views, None).unwrap(), on_cpu.run(&views, None).unwrap());
            for (got, expected) in got.iter().zip(&expected) {
                assert_eq!((got.datatype, &got.shape), (expected.datatype, &expected.shape));
                let (got, expected) = (got.to_f32().unwrap(), expected.to_f32().unwrap());
                let largest =
                    expected.iter().fold(f32::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
                for (got, expected) in got.iter().zip(&expected) {
                    let off = (got - expected).abs() / largest;
                    assert!(off <= APART_MAX, "{}: {got} instead of {expected} of {largest}", path.display());
                    worst = worst.max(off);
                }
            }
        }
    }
    number("network_apart", f64::from(worst));
}

/// What a session gives without a server: images per second with three batches at once, and the time of one image alone.
pub(crate) fn bench() {
    let (runtime, context) = (runtime(), support::open(0));
    let random = &mut seeded(3);
    let span = Duration::from_millis(if rehearsed() { 1 } else { 2000 });
    let sizes = if rehearsed() { vec![1, 2] } else { vec![1, 2, 4, 8, 16, 32, 64, 128] };
    for path in models() {
        let name = path.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap().to_owned();
        let mut engine = load(&runtime, &context, &path, *sizes.last().unwrap());
        let blocks = Blocks::new(engine.memory());
        for &items in &sizes {
            let inputs = batch(&engine, random, items);
            let staged = |inputs: &[Tensor]| -> Vec<Tensor> {
                inputs.iter().map(|input| blocks.assemble(&[input], items, false, None)).collect()
            };
            for _ in 0..4 {
                let outputs = engine.start(staged(&inputs), None).unwrap().land().unwrap();
                let finite = outputs[0].to_f32().unwrap().iter().all(|value| value.is_finite());
                assert!(finite, "{name} gives values that are no numbers");
            }
            let (mut flights, mut images) = (VecDeque::<Flight>::new(), 0);
            let began = Instant::now();
            while began.elapsed() < span {
                if flights.len() == engine.depth() {
                    flights.pop_front().unwrap().land().unwrap();
                    images += items;
                }
                flights.push_back(engine.start(staged(&inputs), None).unwrap());
            }
            for flight in flights {
                flight.land().unwrap();
                images += items;
            }
            number(&format!("session_{name}_b{items}"), images as f64 / began.elapsed().as_secs_f64());
            if items == 1 {
                for (number_of, pause) in [("p50", None), ("paused_p50", Some(Duration::from_micros(300)))] {
                    let mut times: Vec<f64> = (0..if rehearsed() { 5 } else { 500 })
                        .map(|_| {
                            pause.into_iter().for_each(std::thread::sleep);
                            let began = Instant::now();
                            engine.start(staged(&inputs), None).unwrap().land().unwrap();
                            began.elapsed().as_secs_f64()
                        })
                        .collect();
                    times.sort_by(f64::total_cmp);
                    number(&format!("session_{number_of}_{name}"), times[times.len() / 2]);
                }
            }
        }
    }
}
