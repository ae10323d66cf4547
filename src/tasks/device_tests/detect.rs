//! Detectors: which boxes are read, and which of them are kept.

use super::{
    super::{BoxFormat, Detect, Detection, Format, Orientation, nms::CANDIDATES_MAX},
    *,
};
use crate::image::{Placement, Preprocess, Resize};

const INPUT: [u32; 2] = [100, 80];

/// A detector's outputs, and the kernels' parameters for them other than addresses and placements.
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
        first_class: task.first_class.unwrap_or(0) as f32,
        format: match task.box_format.unwrap() {
            BoxFormat::Xyxy => BoxNumbers::Xyxy,
            BoxFormat::Yxyx => BoxNumbers::Yxyx,
            BoxFormat::Cxcywh => BoxNumbers::Cxcywh,
            BoxFormat::Xywh => BoxNumbers::Xywh,
        },
        normalized: u32::from(task.normalized == Some(true)),
        score_min: task.score_min,
        iou_max: task.iou_max(),
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
    let task = Task::Detect(Box::new(case.task.clone()))
        .resolve(&signature, &case.labels, Some(INPUT), true)
        .unwrap();
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

/// Boxes of which many overlap; some have equal scores.
fn anchors(random: &mut Random, count: usize, channels: usize) -> Vec<f32> {
    let mut numbers = Vec::new();
    for _ in 0..count {
        let (x, y) = (random.below(12) as f32 * 9.0 - 6.0, random.below(9) as f32 * 10.0 - 5.0);
        numbers.extend([x + random.unit() as f32 * 4.0, y + random.unit() as f32 * 4.0]);
        numbers.extend([random.unit() as f32 * 30.0 + 2.0, random.unit() as f32 * 30.0 + 2.0]);
        let coarse = random.below(2) == 0;
        numbers.extend((4..channels).map(|_| match coarse {
            true => random.below(5) as f32 / 4.0,
            false => random.unit() as f32,
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
    for seed in 1..=50 {
        let random = &mut Random::new(seed);
        let classes = 1 + random.below(5);
        let objectness = random.below(2) == 0;
        let channels = 4 + classes + usize::from(objectness);
        let count = [0, 1, 7, 90, 700][random.below(5)];
        let mut rows = anchors(random, count, channels);
        if seed % 10 == 0 && !rows.is_empty() {
            let at = random.below(rows.len());
            rows[at] = [f32::NAN, f32::INFINITY][random.below(2)];
        }
        let first = random.below(2) == 0;
        let (shape, numbers, orientation) = match first {
            true => ([1, channels, count], transposed(&rows, channels), Orientation::ChannelsFirst),
            false => ([1, count, channels], rows, Orientation::ChannelsLast),
        };
        let task = Detect {
            format: Some(Format::Yolo),
            box_format: Some([BoxFormat::Cxcywh, BoxFormat::Xywh][random.below(2)]),
            orientation: Some(orientation),
            objectness: Some(objectness),
            score_min: [0.0, 0.3, 0.6][random.below(3)],
            iou_max: Some([0.0, 0.4, 0.7, 1.0][random.below(4)]),
            detections_max: [1, 10, 80][random.below(3)],
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
            check_left(&format!("seed {seed}"), &case, placement.as_ref());
        }
    }
    println!("{answered} boxes");
    assert!(answered > 500, "{answered}");
}

/// Checks that the part of an output that an engine leaves gives the same answer as the output, to the bit.
fn check_left(what: &str, case: &Case, placement: Option<&Placement>) {
    let outputs: Vec<(&str, &Tensor)> = case.outputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let signature = signature(&outputs);
    let mut task = case.task.clone();
    (task.output, task.input) = (Some("out".into()), Some(INPUT));
    let task = Task::Detect(Box::new(task));
    let Some(Reduction::Detect(anchors)) = task.reduction(&signature) else { panic!("{what}: none") };
    assert_eq!(anchors.score_min, case.call.score_min);
    let answer = |tensor| task.answer(&[tensor], &signature, &case.labels, placement);
    let expected = answer(case.outputs[0].1.clone());
    let places = case.call.anchors as usize;
    if places == 0 {
        return;
    }
    let left = emulated::candidates(case.call, places, INPUT.map(|side| side as f32));
    let (Some(left), Ok(Answer::Detections(expected))) = (&left, &expected) else {
        assert!(left.is_none() && expected.is_err(), "{what}: {expected:?}");
        return;
    };
    let tensor = Tensor { datatype: DataType::Uint32, shape: vec![1, places, 8], data: left.clone().into() };
    let Ok(Answer::Detections(found)) = answer(tensor) else { panic!("{what}") };
    assert_eq!(&found, expected, "{what}");
}

#[test]
fn boxes_with_scores_and_classes_are_those_of_the_task() {
    let mut answered = 0;
    for seed in 1..=30 {
        let random = &mut Random::new(seed * 977);
        let count = [1, 5, 60, 400][random.below(4)];
        let given = random.below(2) == 0;
        let classes = if given { 1 } else { 1 + random.below(4) };
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
            first_class: Some(given.into()),
            score_min: 0.2,
            detections_max: 80,
            iou_max: Some(0.5),
            ..Detect::default()
        };
        let boxes = floats(&[1, count, 4], &boxes);
        let scores_shape: &[usize] = if given { &[1, count] } else { &[1, count, classes] };
        let scores = floats(scores_shape, &scores);
        // Sometimes one class number is invalid.
        let wrong = seed % 7 == 0;
        let numbers: Vec<f32> =
            (0..count).map(|i| if wrong && i == 0 { 0.5 } else { 1.0 + random.below(3) as f32 }).collect();
        let numbers = floats(&[1, count], &numbers);
        let valid = floats(&[1], &[random.below(count + 3) as f32]);
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
    assert!(answered > 500, "{answered}");
}

#[test]
fn of_very_many_boxes_the_same_are_looked_at() {
    // More boxes than are examined; the last of those overlaps nothing.
    let count = CANDIDATES_MAX + 40;
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
        iou_max: Some(0.5),
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
