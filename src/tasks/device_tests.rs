//! What kernels make of outputs, as they are for the device, against the tasks.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::{
    Activation, Answer, BoxFormat, Classify, Detect, Detection, Format, Labels, Orientation, Segment, Task,
    testing::{floats, spec},
};
use crate::{
    engine::{
        DataType, Signature, Tensor,
        kernels::postprocess::{emulated, *},
    },
    image::{Placement, Preprocess, Resize},
};
use bytes::Bytes;
use half::f16;

/// The same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn even(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 24) as f32
    }
}

fn signature(outputs: &[(&str, &Tensor)]) -> Signature {
    Signature {
        platform: "onnxruntime_onnx",
        inputs: vec![spec("images", DataType::Fp32, &[-1, 3, 8, 8])],
        outputs: outputs.iter().map(|(name, tensor)| spec(name, tensor.datatype, &[])).collect(),
    }
}

fn labels(count: usize) -> Labels {
    let names: Vec<String> = (0..count).map(|i| format!("class {i}")).collect();
    Labels::parse(&names.join("\n")).unwrap()
}

fn halves(tensor: &Tensor) -> Tensor {
    let numbers = tensor.to_f32().unwrap();
    let data: Vec<u8> = numbers.iter().flat_map(|n| f16::from_f32(*n).to_le_bytes()).collect();
    Tensor { datatype: DataType::Fp16, shape: tensor.shape.clone(), data: Bytes::from(data) }
}

fn number_type(tensor: &Tensor) -> NumberType {
    match tensor.datatype {
        DataType::Fp32 => NumberType::F32,
        DataType::Fp16 => NumberType::F16,
        DataType::Int64 => NumberType::I64,
        other => panic!("{other}"),
    }
}

/// Aligned for any type.
struct Aligned(Vec<u64>, usize);

impl Aligned {
    fn of(tensor: &Tensor) -> Aligned {
        let mut words = vec![0u64; tensor.data.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut words)[..tensor.data.len()].copy_from_slice(&tensor.data);
        Aligned(words, tensor.data.len())
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[..self.1]
    }

    fn numbers(&self, tensor: &Tensor) -> Numbers {
        Numbers::new(self.0.as_ptr() as u64, number_type(tensor))
    }
}

// ---- classify ---------------------------------------------------------------------------------------------------------

fn check_classify(scores: &[f32], activation: Activation, top: usize) -> f32 {
    let mut worst = 0f32;
    let tensor = floats(&[1, scores.len()], scores);
    for tensor in [tensor.clone(), halves(&tensor)] {
        let task = Task::Classify(Classify { output: None, activation, top_k: top });
        let signature = signature(&[("scores", &tensor)]);
        let task = task.resolve(&signature, &Labels::default(), None).unwrap();
        let expected = task.answer(std::slice::from_ref(&tensor), &signature, &Labels::default(), None);
        let activation = match activation {
            Activation::Softmax => ScoreActivation::Softmax,
            Activation::Sigmoid => ScoreActivation::Sigmoid,
            Activation::None => ScoreActivation::None,
        };
        let data = Aligned::of(&tensor);
        let found =
            emulated::classify((data.bytes(), 1), number_type(&tensor), scores.len(), activation, top);
        let (best, fault) = &found[0];
        let Ok(Answer::Classes(expected)) = expected else {
            assert!(fault, "{expected:?} of {scores:?}");
            continue;
        };
        assert!(!fault, "{scores:?}");
        assert_eq!(expected.len(), top.min(scores.len()));
        for (place, (class, score)) in best.iter().enumerate() {
            let Some(expected) = expected.get(place) else {
                assert_eq!((*class, *score), (u32::MAX, 0.0), "beyond all classes");
                continue;
            };
            worst = worst.max((score - expected.score).abs());
            // Where rounding makes two equal, either may come first.
            if *class as usize != expected.index {
                let tie = (score - expected.score).abs() < 1e-6 && activation != ScoreActivation::None;
                assert!(tie, "{place}: {class} {score}, {expected:?}");
            }
        }
    }
    worst
}

#[test]
fn classes_are_those_of_the_task() {
    let mut worst = 0f32;
    for seed in 1..=40 {
        let random = &mut Random(seed);
        let classes = 1 + random.below([3, 40, 1500][seed as usize % 3]) as usize;
        let spread = [1.0, 8.0, 60.0][random.below(3) as usize];
        let scores: Vec<f32> = (0..classes).map(|_| (random.even() - 0.5) * 2.0 * spread).collect();
        for activation in [Activation::Softmax, Activation::Sigmoid, Activation::None] {
            worst = worst.max(check_classify(&scores, activation, 1 + random.below(8) as usize));
        }
        println!("seed {seed}: {classes} classes, at most {worst:.1e} apart");
    }
    assert!(worst < 2e-6, "{worst}");
}

#[test]
fn more_than_all_classes_ties_and_extremes_are_answered_alike() {
    for activation in [Activation::Softmax, Activation::Sigmoid, Activation::None] {
        for scores in [
            &[0.25, 0.5, 0.25, 0.0, -0.0, 0.5][..],
            &[7.0; 20],
            &[1.0],
            &[1e4, 1e4 - 1.0, -1e4],
            &[60000.0, -60000.0, 3.0],
            &[0.0, f32::NAN, 1.0],
            &[f32::INFINITY, 1.0],
            &[f32::NEG_INFINITY, 1.0],
            &[f32::NEG_INFINITY; 2],
        ] {
            for top in [1, 3, 30] {
                assert!(check_classify(scores, activation, top) < 2e-6, "{scores:?}");
            }
        }
    }
}

#[test]
fn items_of_a_batch_do_not_mix() {
    let scores: Vec<f32> = vec![1.0, 2.0, 3.0, 9.0, f32::NAN, 1.0, 5.0, 4.0, 3.0];
    let found =
        emulated::classify((bytemuck::cast_slice(&scores), 3), NumberType::F32, 3, ScoreActivation::None, 2);
    assert_eq!(found[0], (vec![(2, 3.0), (1, 2.0)], false));
    assert!(found[1].1);
    assert_eq!(found[2], (vec![(0, 5.0), (1, 4.0)], false));
}

// ---- detect -----------------------------------------------------------------------------------------------------------

const INPUT: [u32; 2] = [100, 80];

/// A detector's outputs, and what the kernels take of them beside addresses and placements.
struct Case {
    task: Detect,
    outputs: Vec<(&'static str, Tensor)>,
    labels: Labels,
    call: DetectCall,
}

fn call(task: &Detect) -> DetectCall {
    DetectCall {
        boxes: Numbers::NONE,
        scores: Numbers::NONE,
        objectness: Numbers::NONE,
        labels: Numbers::NONE,
        counts: Numbers::NONE,
        boxes_by: Strides::default(),
        scores_by: Strides::default(),
        objectness_by: Strides::default(),
        anchors: 0,
        classes: 1,
        first_class: task.first_class as f32,
        format: match task.box_format.unwrap() {
            BoxFormat::Xyxy => BoxNumbers::Xyxy,
            BoxFormat::Yxyx => BoxNumbers::Yxyx,
            BoxFormat::Cxcywh => BoxNumbers::Cxcywh,
            BoxFormat::Xywh => BoxNumbers::Xywh,
        },
        normalized: u32::from(task.normalized == Some(true)),
        score_min: task.score_min,
        iou_max: task.iou_max,
        detections_max: task.detections_max as u32,
        candidates_max: 0,
        unused: 0,
        placements: 0,
        candidates: 0,
        candidate_counts: 0,
        detections: 0,
        detection_counts: 0,
        faults: 0,
    }
}

fn check_detect(what: &str, case: &Case, placement: Option<&Placement>) -> usize {
    let outputs: Vec<(&str, &Tensor)> = case.outputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let signature = signature(&outputs);
    let tensors: Vec<Tensor> = case.outputs.iter().map(|(_, tensor)| tensor.clone()).collect();
    let task = Task::Detect(case.task.clone()).resolve(&signature, &case.labels, Some(INPUT)).unwrap();
    let expected = task.answer(&tensors, &signature, &case.labels, placement);
    let size = INPUT.map(|side| side as f32);
    let inside = match placement {
        Some(placement) => {
            let (source, resized, offset) = placement.numbers();
            DetectPlacement { offset, resized, source, size, placed: 1, unused: 0 }
        }
        None => {
            let size_wide = INPUT.map(f64::from);
            DetectPlacement {
                offset: [0.0; 2],
                resized: size_wide,
                source: size_wide,
                size,
                placed: 1,
                unused: 0,
            }
        }
    };
    let mut call = case.call;
    call.candidates_max = call.anchors.max(1);
    let found = emulated::detect(call, &[inside]).remove(0);
    let expected: Vec<Detection> = match expected {
        Ok(Answer::Detections(expected)) => expected,
        other => {
            assert!(found.is_none(), "{what}: {other:?}");
            return 0;
        }
    };
    let found = found.unwrap_or_else(|| panic!("{what}: a fault"));
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!((found.label as usize, found.score), (expected.index, expected.score), "{what}");
        let corners = [expected.x0, expected.y0, expected.x1, expected.y1];
        for (a, b) in found.corners.iter().zip(corners) {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{what}: {found:?} {expected:?}");
        }
    }
    expected.len()
}

/// Boxes of which many lie over each other; sometimes with equal scores.
fn anchors(random: &mut Random, count: usize, channels: usize) -> Vec<f32> {
    let mut numbers = Vec::new();
    for _ in 0..count {
        let (x, y) = (random.below(12) as f32 * 9.0 - 6.0, random.below(9) as f32 * 10.0 - 5.0);
        numbers.extend([x + random.even() * 4.0, y + random.even() * 4.0]);
        numbers.extend([random.even() * 30.0 + 2.0, random.even() * 30.0 + 2.0]);
        let coarse = random.below(2) == 0;
        numbers.extend((4..channels).map(|_| match coarse {
            true => random.below(5) as f32 / 4.0,
            false => random.even(),
        }));
    }
    numbers
}

fn transposed(rows: &[f32], channels: usize) -> Vec<f32> {
    let count = rows.len() / channels;
    (0..channels).flat_map(|c| (0..count).map(move |a| rows[a * channels + c])).collect()
}

fn placements() -> [Option<Placement>; 3] {
    let to = |resize| Preprocess { resize, ..Preprocess::new(INPUT[0], INPUT[1]) };
    [None, Some(to(Resize::Letterbox).placement(613, 211)), Some(to(Resize::Shorter(90)).placement(333, 480))]
}

#[test]
fn yolo_boxes_are_those_of_the_task() {
    let mut answered = 0;
    for seed in 1..=60 {
        let random = &mut Random(seed);
        let classes = 1 + random.below(5) as usize;
        let objectness = random.below(2) == 0;
        let channels = 4 + classes + usize::from(objectness);
        let count = [0, 1, 7, 90, 700][random.below(5) as usize];
        let mut rows = anchors(random, count, channels);
        if seed % 10 == 0 && !rows.is_empty() {
            let at = random.below(rows.len() as u64) as usize;
            rows[at] = [f32::NAN, f32::INFINITY][random.below(2) as usize];
        }
        let first = random.below(2) == 0;
        let (shape, numbers, orientation) = match first {
            true => ([1, channels, count], transposed(&rows, channels), Orientation::ChannelsFirst),
            false => ([1, count, channels], rows, Orientation::ChannelsLast),
        };
        let task = Detect {
            format: Some(Format::Yolo),
            box_format: Some([BoxFormat::Cxcywh, BoxFormat::Xywh][random.below(2) as usize]),
            orientation: Some(orientation),
            objectness: Some(objectness),
            score_min: [0.0, 0.3, 0.6][random.below(3) as usize],
            iou_max: [0.0, 0.4, 0.7, 1.0][random.below(4) as usize],
            detections_max: [1, 10, 300][random.below(3) as usize],
            ..Detect::default()
        };
        let mut tensor = floats(&shape, &numbers);
        if random.below(3) == 0 {
            tensor = halves(&tensor);
        }
        let data = Aligned::of(&tensor);
        let (anchor, channel) = if first { (1, count as u64) } else { (channels as u64, 1) };
        let by = Strides { item: (channels * count) as u64, anchor, channel };
        let from = |channel_number: usize| {
            let size = if tensor.datatype == DataType::Fp16 { 2 } else { 4 };
            let address = data.0.as_ptr() as u64 + channel_number as u64 * channel * size;
            Numbers::new(address, number_type(&tensor))
        };
        let call = DetectCall {
            boxes: from(0),
            scores: from(channels - classes),
            objectness: if objectness { from(4) } else { Numbers::NONE },
            boxes_by: by,
            scores_by: by,
            objectness_by: by,
            anchors: count as u32,
            classes: classes as u32,
            ..call(&task)
        };
        let case = Case { task, outputs: vec![("out", tensor.clone())], labels: labels(classes), call };
        for placement in &placements() {
            answered += check_detect(&format!("seed {seed}"), &case, placement.as_ref());
        }
    }
    println!("{answered} boxes");
    assert!(answered > 1000, "{answered}");
}

#[test]
fn boxes_with_scores_and_classes_are_those_of_the_task() {
    let mut answered = 0;
    for seed in 1..=60 {
        let random = &mut Random(seed * 977);
        let count = [1, 5, 60, 400][random.below(4) as usize];
        let given = random.below(2) == 0;
        let classes = if given { 1 } else { 1 + random.below(4) as usize };
        let rows = anchors(random, count, 4 + classes);
        let normalized = random.below(2) == 0;
        let mut boxes = Vec::new();
        let mut scores = Vec::new();
        for row in rows.chunks(4 + classes) {
            let [x, y, w, h] = [row[0], row[1], row[2], row[3]];
            let scale = if normalized { [100.0, 80.0] } else { [1.0; 2] };
            boxes.extend([y / scale[1], x / scale[0], (y + h) / scale[1], (x + w) / scale[0]]);
            scores.extend(&row[4..]);
        }
        if seed % 9 == 0 {
            boxes[0] = f32::NEG_INFINITY;
        }
        let task = Detect {
            format: Some(Format::Boxes),
            boxes: Some("boxes".into()),
            scores: Some("scores".into()),
            classes: given.then(|| "classes".into()),
            count: (seed % 2 == 0).then(|| "count".into()),
            box_format: Some(BoxFormat::Yxyx),
            normalized: Some(normalized),
            first_class: usize::from(given),
            score_min: 0.2,
            iou_max: 0.5,
            ..Detect::default()
        };
        let boxes = floats(&[1, count, 4], &boxes);
        let scores_shape: &[usize] = if given { &[1, count] } else { &[1, count, classes] };
        let scores = floats(scores_shape, &scores);
        // Sometimes a class that is none.
        let wrong = seed % 7 == 0;
        let numbers: Vec<f32> =
            (0..count).map(|i| if wrong && i == 0 { 0.5 } else { 1.0 + random.below(3) as f32 }).collect();
        let numbers = floats(&[1, count], &numbers);
        let valid = floats(&[1], &[random.below(count as u64 + 3) as f32]);
        let data = [&boxes, &scores, &numbers, &valid].map(Aligned::of);
        let call = DetectCall {
            boxes: data[0].numbers(&boxes),
            scores: data[1].numbers(&scores),
            labels: if given { data[2].numbers(&numbers) } else { Numbers::NONE },
            counts: if task.count.is_some() { data[3].numbers(&valid) } else { Numbers::NONE },
            boxes_by: Strides { item: 4 * count as u64, anchor: 4, channel: 1 },
            scores_by: Strides { item: (classes * count) as u64, anchor: classes as u64, channel: 1 },
            anchors: count as u32,
            classes: classes as u32,
            ..call(&task)
        };
        let mut outputs = vec![("boxes", boxes.clone()), ("scores", scores.clone())];
        if given {
            outputs.push(("classes", numbers.clone()));
        }
        if task.count.is_some() {
            outputs.push(("count", valid.clone()));
        }
        let labels = if given { Labels::default() } else { labels(classes) };
        let case = Case { task, outputs, labels, call };
        for placement in &placements() {
            answered += check_detect(&format!("seed {seed}"), &case, placement.as_ref());
        }
    }
    println!("{answered} boxes");
    assert!(answered > 1000, "{answered}");
}

#[test]
fn of_very_many_boxes_the_same_are_looked_at() {
    // More than are looked at; the last of those overlaps nothing.
    let count = super::nms::CANDIDATES_MAX + 40;
    let rows: Vec<f32> = (0..count)
        .flat_map(|i| {
            let (x, y) = ((i % 300) as f32 * 0.3, (i / 300) as f32 * 0.7);
            [x + 5.0, y + 5.0, 0.2, 0.2, 0.5 + i as f32 * 1e-6]
        })
        .collect();
    let task = Detect {
        format: Some(Format::Yolo),
        box_format: Some(BoxFormat::Cxcywh),
        orientation: Some(Orientation::ChannelsLast),
        objectness: Some(false),
        iou_max: 0.5,
        detections_max: 30,
        ..Detect::default()
    };
    let tensor = floats(&[1, count, 5], &rows);
    let data = Aligned::of(&tensor);
    let by = Strides { item: 5 * count as u64, anchor: 5, channel: 1 };
    let address = data.0.as_ptr() as u64;
    let call = DetectCall {
        boxes: Numbers::new(address, NumberType::F32),
        scores: Numbers::new(address + 16, NumberType::F32),
        boxes_by: by,
        scores_by: by,
        anchors: count as u32,
        ..call(&task)
    };
    let case = Case { task, outputs: vec![("out", tensor.clone())], labels: labels(1), call };
    assert_eq!(check_detect("very many", &case, None), 30);
}

// ---- segment ----------------------------------------------------------------------------------------------------------

#[test]
fn masks_are_those_of_the_task() {
    for seed in 1..=40 {
        let random = &mut Random(seed);
        let classes = 1 + random.below(6) as usize;
        let (width, height) = (7 + random.below(30) as usize, 7 + random.below(30) as usize);
        let mut scores: Vec<f32> =
            (0..classes * width * height).map(|_| random.below(9) as f32 / 8.0).collect();
        if seed % 8 == 0 {
            scores[3] = f32::NAN;
        }
        if seed % 5 == 0 {
            scores[1] = f32::NEG_INFINITY;
        }
        for last in [false, true] {
            let shape = if last { [1, height, width, classes] } else { [1, classes, height, width] };
            let tensor = floats(&shape, &scores);
            for tensor in [tensor.clone(), halves(&tensor)] {
                let layout = Some(if last { crate::image::Layout::Nhwc } else { crate::image::Layout::Nchw });
                let signature = signature(&[("map", &tensor)]);
                let task = Task::Segment(Segment { layout, threshold: 0.6, ..Segment::default() });
                let task = task.resolve(&signature, &Labels::default(), None).unwrap();
                let expected =
                    task.answer(std::slice::from_ref(&tensor), &signature, &Labels::default(), None);
                let data = Aligned::of(&tensor);
                let found =
                    emulated::segment((data.bytes(), 1), number_type(&tensor), classes, last, 0.6).remove(0);
                match expected {
                    Ok(Answer::Mask(mask)) => assert_eq!(found.unwrap(), mask.classes, "seed {seed}"),
                    other => assert!(found.is_none(), "seed {seed}: {other:?}"),
                }
            }
        }
    }
}
