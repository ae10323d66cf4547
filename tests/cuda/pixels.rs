//! Images on a GPU: pixels become numbers there, and of scores only classes leave it; the network between them is on the CPU, since
//! ONNX Runtime's CUDA provider runs on no fake.

use crate::{
    fakes::{
        cuda::{FakeCuda, Operation, library},
        example,
    },
    graph::{Extent::*, FLOAT, FLOAT16, model},
    http::config,
    machine::{GPU, MODES, Machine, Running},
    support::{Random, open, staged},
};
use futures_util::future::join_all;
use ocelli::{
    engine::{
        Anchors, Best, ClassMap, DataType, Ends, Engine, EngineError, PixelInput, Reduction, Tensor,
        TensorView,
        child::{Child, Post, Program, Recipe},
        cuda::onnx::{Load, OnnxOnGpu},
        kernels::postprocess::{BoxNumbers, ScoreActivation},
        onnx::{OnGpu, Runtime, gpu::CudaGraph},
        reduction::{Candidate, Scored},
        staging::Region,
    },
    image::{self, Color, Preprocess},
};
use serde_json::{Value, json};
use std::path::Path;

/// Of the network's input.
const WIDTH: usize = 9;
const HEIGHT: usize = 5;

fn runtime() -> Runtime {
    Runtime::load(&config().onnx_runtime, u64::MAX).unwrap()
}

fn written(folder: &Path, file: &[u8]) -> std::path::PathBuf {
    let path = folder.join("model.onnx");
    std::fs::write(&path, file).unwrap();
    path
}

/// A network whose scores of three classes are its input's channels, the darkest being the best.
fn network(folder: &Path, element: u64) -> std::path::PathBuf {
    let extents = [Named("batch"), Fixed(3), Fixed(HEIGHT as u64), Fixed(WIDTH as u64)];
    let file = model(
        &[("Neg", &["image"], "scores")],
        &[("image", element, &extents)],
        &[("scores", element, &extents)],
    );
    written(folder, &file)
}

fn ends(datatype: image::DataType) -> Ends {
    let to = Preprocess {
        color: Color::Bgr,
        mean: [0.485, 0.456, 0.406],
        std: [0.229, 0.224, 0.225],
        datatype,
        ..Preprocess::new(1, 1)
    };
    let map = ClassMap { output: 0, last: false, threshold: 0.5 };
    Ends {
        pixels: PixelInput::new(&to, true, true),
        reduction: Some(Reduction::Segment(map)),
        ..Ends::default()
    }
}

/// Pictures by chance, of 8 or 16 bits.
fn pictures(seed: u64, count: usize, wide: bool) -> Vec<Tensor> {
    let random = &mut Random(seed);
    let values: Vec<u16> =
        (0..count * HEIGHT * WIDTH * 3).map(|_| (random.next() * 65_536.0) as u16).collect();
    let shape = vec![count, HEIGHT, WIDTH, 3];
    vec![match wide {
        true => {
            let data = values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>().into();
            Tensor { datatype: DataType::Uint16, shape, data }
        }
        false => {
            let data = values.iter().map(|v| (v >> 8) as u8).collect::<Vec<u8>>().into();
            Tensor { datatype: DataType::Uint8, shape, data }
        }
    }]
}

fn on_cpu(path: &Path, ends: &Ends, inputs: &[Tensor]) -> Vec<Tensor> {
    let mut engine = runtime().load_cpu(path, 1).unwrap();
    engine.equip(ends).unwrap();
    let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
    engine.run(&views, None).unwrap()
}

/// The classes that the scores say, as UINT16.
fn classes(scores: &Tensor) -> Tensor {
    let (count, pixels) = (scores.shape[0], HEIGHT * WIDTH);
    let values = scores.to_f32().unwrap();
    let mut best = Vec::new();
    for item in 0..count {
        for pixel in 0..pixels {
            let score = |class: usize| values[(item * 3 + class) * pixels + pixel];
            let first = (0..3).fold(0, |best, class| if score(class) > score(best) { class } else { best });
            best.extend((first as u16).to_ne_bytes());
        }
    }
    Tensor { datatype: DataType::Uint16, shape: vec![count, HEIGHT, WIDTH], data: best.into() }
}

fn same(what: &str, got: &[Tensor], expected: &[Tensor]) {
    let all = |tensors: &[Tensor]| -> Vec<(DataType, Vec<usize>, Vec<u8>)> {
        tensors.iter().map(|t| (t.datatype, t.shape.clone(), t.data.to_vec())).collect()
    };
    assert_eq!(all(got), all(expected), "{what}");
}

/// The kernels that ran, in order.
fn kernels(log: Vec<Operation>) -> Vec<String> {
    log.into_iter().filter(|operation| operation.kind == "kernel").map(|operation| operation.kernel).collect()
}

/// The image, each item times a number of its own, which the file has before or behind the image.
fn scaled(folder: &Path, before: bool) -> std::path::PathBuf {
    let image = [Named("batch"), Fixed(3), Fixed(HEIGHT as u64), Fixed(WIDTH as u64)];
    let scale = [Named("batch"), Fixed(1), Fixed(1), Fixed(1)];
    let mut inputs = [("image", FLOAT, &image[..]), ("scale", FLOAT, &scale[..])];
    if before {
        inputs.reverse();
    }
    let file = model(&[("Mul", &["image", "scale"], "scores")], &inputs, &[("scores", FLOAT, &image[..])]);
    written(folder, &file)
}

#[test]
fn an_image_that_the_file_has_behind_another_input_comes_first_all_the_same() {
    let _fake = FakeCuda::start("");
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let usual = Ends { reduction: None, ..ends(image::DataType::Fp32) };
    let moved = Ends { first: Some("image".to_owned()), ..usual.clone() };
    let (first, second) = (scaled(folders[0].path(), false), scaled(folders[1].path(), true));
    let mut engine = OnnxOnGpu::load_on_host(&runtime(), &open(0), &second).unwrap().0;
    // Equipped again, as for a model that is resolved once more.
    engine.equip(&moved).unwrap();
    engine.equip(&moved).unwrap();
    assert_eq!(engine.signature().inputs[0].name, "image");
    for count in [3, 1] {
        let mut inputs = pictures(count as u64, count, false);
        let numbers = (0..count).flat_map(|item| (item as f32 - 0.5).to_ne_bytes()).collect::<Vec<u8>>();
        inputs.push(Tensor { datatype: DataType::Fp32, shape: vec![count, 1, 1, 1], data: numbers.into() });
        let expected = on_cpu(&first, &usual, &inputs);
        same("on the CPU", &on_cpu(&second, &moved, &inputs), &expected);
        let flight = engine.start(staged(&engine, &inputs), None).unwrap();
        same("on a GPU", &flight.land().unwrap(), &expected);
    }
}

#[test]
fn pixels_become_the_numbers_that_the_cpu_makes_of_them_also_as_halves() {
    let fake = FakeCuda::start("");
    let folder = tempfile::tempdir().unwrap();
    for (element, datatype) in [(FLOAT, image::DataType::Fp32), (FLOAT16, image::DataType::Fp16)] {
        let (path, ends) = (network(folder.path(), element), ends(datatype));
        let mut engine = OnnxOnGpu::load_on_host(&runtime(), &open(0), &path).unwrap().0;
        engine.equip(&ends).unwrap();
        let mut allocated = None;
        for (seed, wide) in [(1, false), (2, true), (3, false)] {
            let (before, copied) = (kernels(fake.log()).len(), fake.books().devices[0].copied_in);
            let inputs = [4, 1, 4].map(|count| pictures(seed + count as u64, count, wide));
            let begun = inputs.each_ref().map(|inputs| engine.start(staged(&engine, inputs), None).unwrap());
            for (flight, inputs) in begun.into_iter().zip(&inputs) {
                let what = format!("{datatype:?}, wide {wide}");
                same(&what, &flight.land().unwrap(), &on_cpu(&path, &ends, inputs));
            }
            assert_eq!(
                kernels(fake.log())[before..],
                [if wide { "preprocess" } else { "preprocess_plain" }; 3]
            );
            let calls = fake.books().calls("cuMemAllocAsync");
            assert_eq!(
                calls,
                *allocated.get_or_insert(calls),
                "the first batches take the memory of both depths"
            );
            if seed == 3 {
                let bytes = 9 * HEIGHT * WIDTH * 3;
                let copied = fake.books().devices[0].copied_in - copied;
                assert!((copied as usize) < 2 * bytes, "{copied} bytes for {bytes} of pixels");
            }
        }
        // Numbers of the network's own come as they are, between batches of pixels.
        let numbers = on_cpu(&path, &ends, &pictures(9, 2, false));
        let before = kernels(fake.log()).len();
        let flight = engine.start(staged(&engine, &numbers), None).unwrap();
        same("numbers", &flight.land().unwrap(), &on_cpu(&path, &ends, &numbers));
        assert_eq!(kernels(fake.log()).len(), before);
    }
}

#[test]
fn of_scores_only_classes_leave_the_device_and_all_of_it_where_one_is_no_number() {
    let fake = FakeCuda::start("");
    let folder = tempfile::tempdir().unwrap();
    for (element, datatype) in [(FLOAT, image::DataType::Fp32), (FLOAT16, image::DataType::Fp16)] {
        let (path, ends) = (network(folder.path(), element), ends(datatype));
        let mut engine = OnnxOnGpu::load_on_host(&runtime(), &open(0), &path).unwrap().0;
        engine.equip(&ends).unwrap();
        for (seed, count) in [(1, 3), (2, 3), (3, 1)] {
            let inputs = pictures(seed, count, false);
            let scores = on_cpu(&path, &ends, &inputs);
            let copied = fake.books().devices[0].copied_out;
            let reduced = engine.start_reduced(staged(&engine, &inputs)).unwrap().land().unwrap();
            same("classes", &reduced, &[classes(&scores[0])]);
            let copied = fake.books().devices[0].copied_out - copied;
            assert_eq!(copied as usize, count * (HEIGHT * WIDTH * 2 + 4), "and which items have a fault");
            let whole = engine.start(staged(&engine, &inputs), None).unwrap().land().unwrap();
            same("scores", &whole, &scores);
        }
        let mut numbers = on_cpu(&path, &ends, &pictures(4, 2, false));
        let mut data = numbers[0].data.to_vec();
        let last = data.len() - 2;
        data[last..].fill(0xff);
        numbers[0].data = data.into();
        let landed = engine.start_reduced(staged(&engine, &numbers)).unwrap().land().unwrap();
        same("a NaN", &landed, &on_cpu(&path, &ends, &numbers));
        // A flight that nobody lands, and one that lands when its engine has gone.
        let [dropped, late] = [5, 6].map(|seed| pictures(seed, 2, false));
        drop(engine.start_reduced(staged(&engine, &dropped)).unwrap());
        let flight = engine.start_reduced(staged(&engine, &late)).unwrap();
        let expected = classes(&on_cpu(&path, &ends, &late)[0]);
        drop(engine);
        same("late", &flight.land().unwrap(), &[expected]);
    }
    fake.books().assert_empty();
}

/// A network that has a class for every number of its input.
fn classifier(folder: &Path, element: u64) -> std::path::PathBuf {
    let image = [Named("batch"), Fixed(3), Fixed(HEIGHT as u64), Fixed(WIDTH as u64)];
    let scores = [Named("batch"), Fixed((3 * HEIGHT * WIDTH) as u64)];
    let file = model(
        &[("Flatten", &["image"], "scores")],
        &[("image", element, &image)],
        &[("scores", element, &scores)],
    );
    written(folder, &file)
}

/// How many classes are left of it.
const TOP: usize = 5;

fn best(datatype: image::DataType) -> Ends {
    let best = Best { output: 0, activation: ScoreActivation::Softmax, top: TOP };
    Ends { reduction: Some(Reduction::Classify(best)), ..ends(datatype) }
}

/// Holds what is left of each item against its scores, in double precision.
fn check_best(left: &Tensor, scores: &Tensor) {
    let count = scores.shape[0];
    assert_eq!((left.datatype, &left.shape[..]), (DataType::Uint32, &[count, TOP, 2][..]));
    let (left, scores): (Vec<Scored>, _) =
        (bytemuck::pod_collect_to_vec(&left.data), scores.to_f32().unwrap());
    for (left, scores) in left.chunks(TOP).zip(scores.chunks(scores.len() / count)) {
        let sum: f64 = scores.iter().map(|score| f64::from(*score).exp()).sum();
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        for (Scored { class, score }, expected) in left.iter().zip(order) {
            assert_eq!(*class as usize, expected);
            let apart = (f64::from(*score) - f64::from(scores[expected]).exp() / sum).abs();
            assert!(apart < 2e-6, "class {class}: {score} is {apart} off");
        }
    }
}

#[test]
fn of_scores_of_classes_only_the_best_leave_the_device_and_all_where_one_is_no_number() {
    let fake = FakeCuda::start("");
    let folder = tempfile::tempdir().unwrap();
    for (element, datatype) in [(FLOAT, image::DataType::Fp32), (FLOAT16, image::DataType::Fp16)] {
        let (path, ends) = (classifier(folder.path(), element), best(datatype));
        let mut engine = OnnxOnGpu::load_on_host(&runtime(), &open(0), &path).unwrap().0;
        engine.equip(&ends).unwrap();
        for (seed, count) in [(1, 3), (2, 1), (3, 3)] {
            let inputs = pictures(seed, count, false);
            let scores = on_cpu(&path, &ends, &inputs);
            let (before, copied) = (kernels(fake.log()).len(), fake.books().devices[0].copied_out);
            let left = engine.start_reduced(staged(&engine, &inputs)).unwrap().land().unwrap();
            let copied = fake.books().devices[0].copied_out - copied;
            assert_eq!(copied as usize, count * (TOP * 8 + 4), "and which items have a fault");
            assert_eq!(kernels(fake.log())[before..], ["preprocess_plain", "classify"]);
            check_best(&left[0], &scores[0]);
            let whole = engine.start(staged(&engine, &inputs), None).unwrap().land().unwrap();
            same("scores", &whole, &scores);
        }
        let mut numbers = on_cpu(&path, &Ends { reduction: None, ..ends }, &pictures(4, 2, false));
        let numbers = &mut numbers[0];
        let mut data = numbers.data.to_vec();
        let last = data.len() - 2;
        data[last..].fill(0xff);
        (numbers.data, numbers.shape) = (data.into(), vec![2, 3, HEIGHT, WIDTH]);
        let numbers = std::slice::from_ref(numbers);
        let landed = engine.start_reduced(staged(&engine, numbers)).unwrap().land().unwrap();
        same("a NaN", &landed, &on_cpu(&path, &Ends::default(), numbers));
    }
    fake.books().assert_empty();
}

/// A network that hands grey pictures on as they are: rows as boxes of an output with channels first, four numbers and eight classes.
fn boxes(folder: &Path, element: u64) -> std::path::PathBuf {
    let extents = [Named("batch"), Fixed(12), Fixed(40)];
    let file = model(
        &[("Abs", &["image"], "boxes")],
        &[("image", element, &extents)],
        &[("boxes", element, &extents)],
    );
    written(folder, &file)
}

#[test]
fn of_boxes_only_those_of_the_score_asked_for_leave_the_device() {
    let fake = FakeCuda::start("");
    let folder = tempfile::tempdir().unwrap();
    for (element, datatype) in [(FLOAT, image::DataType::Fp32), (FLOAT16, image::DataType::Fp16)] {
        let path = boxes(folder.path(), element);
        let to = Preprocess { color: Color::Gray, scale: 0.1, datatype, ..Preprocess::new(1, 1) };
        let anchors = Anchors {
            output: 0,
            channels_first: true,
            objectness: false,
            format: BoxNumbers::Cxcywh,
            size: None,
            score_min: 22.0,
        };
        let ends = Ends {
            pixels: PixelInput::new(&to, true, false),
            reduction: Some(Reduction::Detect(anchors)),
            ..Ends::default()
        };
        let mut engine = OnnxOnGpu::load_on_host(&runtime(), &open(0), &path).unwrap().0;
        engine.equip(&ends).unwrap();
        let random = &mut Random(7);
        for count in [3, 1, 3] {
            let values: Vec<u8> = (0..count * 480).map(|_| (random.next() * 256.0) as u8).collect();
            let inputs =
                [Tensor { datatype: DataType::Uint8, shape: vec![count, 12, 40, 1], data: values.into() }];
            let numbers = on_cpu(&path, &ends, &inputs);
            let copied = fake.books().devices[0].copied_out;
            let left = engine.start_reduced(staged(&engine, &inputs)).unwrap().land().unwrap().remove(0);
            assert_eq!(fake.books().devices[0].copied_out - copied, (count * (40 * 32 + 4)) as u64);
            assert_eq!((left.datatype, &left.shape[..]), (DataType::Uint32, &[count, 40, 8][..]));
            let values = numbers[0].to_f32().unwrap();
            let mut boxes = 0;
            for item in 0..count {
                let at = |channel: usize, anchor: usize| values[item * 480 + channel * 40 + anchor];
                let rows: Vec<Candidate> =
                    bytemuck::pod_collect_to_vec(&left.data[item * 1280..(item + 1) * 1280]);
                for anchor in 0..40 {
                    let class = (0..8)
                        .fold(0, |best, k| if at(4 + k, anchor) > at(4 + best, anchor) { k } else { best });
                    let score = at(4 + class, anchor);
                    let [x, y, w, h] = [0, 1, 2, 3].map(|k| at(k, anchor));
                    let corners = [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0];
                    let (label, anchor) = (class as u32, anchor as u32);
                    let expected = Candidate { corners, score, label, anchor, unused: 0 };
                    let wanted = score >= 22.0 && w > 0.0 && h > 0.0;
                    assert_eq!(rows.iter().filter(|row| **row == expected).count(), usize::from(wanted));
                    boxes += usize::from(wanted);
                }
            }
            assert!(boxes > 5 * count, "{boxes}");
        }
    }
}

#[test]
fn a_kernel_that_fails_is_the_devices_fault() {
    let fake = FakeCuda::start("");
    let folder = tempfile::tempdir().unwrap();
    let path = network(folder.path(), FLOAT);
    let mut engine = OnnxOnGpu::load_on_host(&runtime(), &open(0), &path).unwrap().0;
    engine.equip(&ends(image::DataType::Fp32)).unwrap();
    let inputs = pictures(1, 2, false);
    engine.start_reduced(staged(&engine, &inputs)).unwrap().land().unwrap();
    fake.tell("fault on=kernel code=700");
    let failed = engine.start_reduced(staged(&engine, &inputs)).and_then(ocelli::engine::Flight::land);
    assert!(matches!(failed, Err(EngineError::Device(_))), "{failed:?}");
}

#[test]
fn an_engine_in_a_process_of_its_own_does_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (path, ends) = (network(folder.path(), FLOAT), ends(image::DataType::Fp32));
    let environment = vec![
        ("LD_LIBRARY_PATH".into(), library().parent().unwrap().into()),
        ("FAKE_CUDA".into(), "devices count=1".into()),
    ];
    let program = Program { environment, ..Program::own() };
    let post = Post {
        device: GPU.into(),
        gpu: Some(GPU.into()),
        program: Program { path: env!("CARGO_BIN_EXE_ocelli").into(), ..program },
        region: Region::new(64 << 20, 1).unwrap(),
        onnx_runtime: Some(config().onnx_runtime),
        patience: None,
    };
    let child = Child::start(post).unwrap();
    let load = |path: &Path, cuda_graph| Load {
        path: path.to_owned(),
        asked: OnGpu { cuda_graph, ..OnGpu::default() },
        items_max: 4,
        memory_bytes_max: None,
        instances: 1,
        whole: false,
        on_host: true,
        cache: None,
    };
    let mut engine = child.load(&Recipe::OnnxOnGpu(load(&path, CudaGraph::Never))).unwrap();
    engine.equip(&ends).unwrap();
    let others = tempfile::tempdir().unwrap();
    let others = classifier(others.path(), FLOAT);
    let mut other = child.load(&Recipe::OnnxOnGpu(load(&others, CudaGraph::Always))).unwrap();
    other.equip(&best(image::DataType::Fp32)).unwrap();
    for (seed, wide) in [(1, false), (2, true)] {
        let inputs = pictures(seed, 3, wide);
        let scores = on_cpu(&path, &ends, &inputs);
        let whole = engine.start(staged(&engine, &inputs), None).unwrap().land().unwrap();
        same("scores", &whole, &scores);
        let reduced = engine.start_reduced(staged(&engine, &inputs)).unwrap().land().unwrap();
        same("classes", &reduced, &[classes(&scores[0])]);
        let left = other.start_reduced(staged(&other, &inputs)).unwrap().land().unwrap();
        check_best(&left[0], &on_cpu(&others, &ends, &inputs)[0]);
        assert!(engine.habits().plans_anew && !other.habits().plans_anew, "what is recorded is told");
    }
}

/// A PNG with colours by chance.
fn png(seed: u64, width: u32, height: u32) -> Vec<u8> {
    let random = &mut Random(seed);
    let samples: Vec<u8> = (0..width * height * 3).map(|_| (random.next() * 256.0) as u8).collect();
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&samples).unwrap();
    file
}

/// What a server with that network as a segmenter says of pictures, posted at once with tensors: the answers' members.
async fn answers(server: &Running) -> Vec<Value> {
    let image = async |seed: u64| {
        let (width, height) = (20 + seed as u32, 31 - seed as u32);
        let reply = server.send("POST", "/predictions/map?mask=rle", &[], png(seed, width, height)).await;
        assert_eq!(reply.status, 200, "{}", reply.json());
        reply.json()["mask"].clone()
    };
    let tensor = async |seed: u64, numbers: bool| {
        let values = pictures(seed, 1, false).remove(0).data.to_vec();
        let (datatype, shape) = match numbers {
            true => ("FP32", json!([1, 3, HEIGHT, WIDTH])),
            false => ("UINT8", json!([1, HEIGHT, WIDTH, 3])),
        };
        let input = json!({"name": "image", "datatype": datatype, "shape": shape, "data": values});
        let body = json!({"inputs": [input]}).to_string();
        let reply = server.send("POST", "/v2/models/map/infer", &[], body).await;
        assert_eq!(reply.status, 200, "{}", reply.json());
        reply.json()["outputs"][0].clone()
    };
    let detections = async |seed: u64| {
        let reply = server.send("POST", "/predictions/boxes", &[], png(seed, 80, 120)).await;
        assert_eq!(reply.status, 200, "{}", reply.json());
        let found = reply.json()["detections"].clone();
        assert!(found.as_array().unwrap().len() > 2, "{found}");
        found
    };
    let images = join_all((0..6).map(image));
    let detected = join_all((0..4).map(detections));
    let pixels = join_all((0..3).map(|seed| tensor(seed, false)));
    let numbers = join_all((0..3).map(|seed| tensor(seed, true)));
    let (images, detected, pixels, numbers) = tokio::join!(images, detected, pixels, numbers);
    [images, detected, pixels, numbers].concat()
}

/// A server with these models, whose networks for GPUs run on the CPU.
async fn serve(machine: &Machine, isolation: &str, backend: &str, devices: &str) -> Running {
    let models = tempfile::tempdir().unwrap();
    let rest = format!("[batch]\nwait_ms_max = 20\n[placement]\ndevices = \"{devices}\"\n");
    let detect = "task = \"detect\"\n[input]\nresize = \"stretch\"\n[detect]\nscore_min = 0.5\niou_max = 1.0\n\
                  objectness = false\norientation = \"channels_first\"\n";
    let classify = "task = \"classify\"\n";
    let segment = "task = \"segment\"\n[segment]\nlayout = \"nchw\"\nenlarge = \"nearest\"\n";
    for (name, manifest) in [("map", segment), ("boxes", detect), ("classes", classify), ("other", segment)] {
        let folder = models.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        match name {
            "map" | "other" => network(&folder, FLOAT),
            "classes" => classifier(&folder, FLOAT),
            _ => boxes(&folder, FLOAT),
        };
        std::fs::write(folder.join("model.toml"), format!("{manifest}{rest}")).unwrap();
    }
    machine.run(&example::built("stand_in"), isolation, models, &[("backend", backend)]).await
}

/// How many classes pictures are asked for, beside what the model says: fewer and more than are left of its output.
const ASKED: [usize; 2] = [2, 9];

/// The classes of pictures with their scores, as a server with that classifier answers them: asked for as many each, so that no
/// other is in a batch, and all at once.
async fn classified(server: &Running) -> Vec<(u64, f64)> {
    let asked: Vec<String> =
        [String::new()].into_iter().chain(ASKED.map(|top| format!("?top_k={top}"))).collect();
    let mut classes = Vec::new();
    for queries in asked.chunks(1).chain([&asked[..]]) {
        classes.extend(classified_at_once(server, queries).await);
    }
    classes
}

async fn classified_at_once(server: &Running, queries: &[String]) -> Vec<(u64, f64)> {
    let pictures = queries.iter().flat_map(|query| (0..6).map(move |seed| (seed, query)));
    let classes = join_all(pictures.map(async |(seed, query)| {
        let reply =
            server.send("POST", &format!("/predictions/classes{query}"), &[], png(seed, 30, 20)).await;
        assert_eq!(reply.status, 200, "{}", reply.json());
        reply.json()["classes"].clone()
    }));
    let classes = classes.await;
    let classes = classes.iter().flat_map(|classes| classes.as_array().unwrap());
    classes.map(|class| (class["index"].as_u64().unwrap(), class["score"].as_f64().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn images_posted_to_a_server_go_through_the_kernels_and_are_answered_as_by_the_cpu() {
    for isolation in MODES {
        let machine = Machine::new("count=1");
        let server = serve(&machine, isolation, "auto", "gpu").await;
        server.until_ready().await;
        let on_gpu = answers(&server).await;
        let before = kernels(machine.log()).len();
        let classes_on_gpu = classified(&server).await;
        assert!(kernels(machine.log())[before..].iter().any(|kernel| kernel == "classify"));
        // Alone, so that no tensor is in its batch.
        let before = kernels(machine.log()).len();
        let alone = server.send("POST", "/predictions/map?mask=rle", &[], png(0, 20, 31)).await;
        assert_eq!(alone.json()["mask"], on_gpu[0]);
        assert_eq!(alone.headers["ocelli-device"], GPU);
        assert_eq!(kernels(machine.log())[before..], ["preprocess_plain", "segment"]);
        let before = kernels(machine.log()).len();
        let alone = server.send("POST", "/predictions/boxes", &[], png(0, 80, 120)).await;
        assert_eq!(alone.json()["detections"], on_gpu[6]);
        assert_eq!(kernels(machine.log())[before..], ["preprocess_finished", "detect_candidates"]);
        server.end();
        machine.assert_empty();

        let server = serve(&machine, isolation, "cpu", "cpu").await;
        server.until_ready().await;
        assert_eq!(answers(&server).await, on_gpu);
        let classes = classified(&server).await;
        assert_eq!(classes.len(), 2 * 6 * (TOP + ASKED.iter().sum::<usize>()));
        for ((class, score), (expected, on_gpu)) in classes.into_iter().zip(classes_on_gpu) {
            assert!(
                class == expected && (score - on_gpu).abs() < 2e-6,
                "{class} {score}, {expected} {on_gpu}"
            );
        }
        server.end();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_batches_are_put_in_is_there_at_load() {
    for isolation in MODES {
        // A worker takes up all models that it was given before it runs a batch of any.
        let mut registered = Vec::new();
        for models in [&["other"][..], &["other", "map", "boxes", "classes"]] {
            let machine = Machine::new("count=1");
            let server = serve(&machine, isolation, "auto", "gpu").await;
            server.until_ready().await;
            for name in models {
                let reply = server.send("POST", &format!("/predictions/{name}"), &[], png(1, 80, 120)).await;
                assert_eq!(reply.status, 200, "{}", reply.json());
            }
            server.end();
            registered.push(machine.calls("cuMemHostRegister_v2"));
        }
        println!("{isolation}: {registered:?}");
        assert_eq!(registered[0], registered[1], "{isolation}");
        assert!(registered[0] > 0, "{isolation}");
    }
}
