//! From a network's outputs to answers on the GPU, against plain code in double precision; and the functions that kernels are made of.

use crate::{
    device::{Device, Memory, at},
    erf::erf,
    fits::seeded,
    number,
    support::worse,
};
use ocelli::{
    engine::kernels::postprocess::{
        BoxNumbers, CANDIDATE_BYTES, CLASSIFY, ClassifyCall, DETECT_CANDIDATES, DETECT_SUPPRESS, DetectCall,
        DetectPlacement, NumberType, Numbers, Postprocess, SEGMENT, ScoreActivation, SegmentCall, Strides,
    },
    random::Random,
};

const KERNELS: &str = include_str!("../../../kernels/generated/postprocess.ptx");
const MATH: &str = include_str!("../../../kernels/generated/math_check.ptx");

const ITEMS: usize = 5;

pub(crate) fn against_plain_code() {
    let device = Device::open();
    let random = &mut seeded(3);
    let worst = classify(&device, random).max(detect(&device, random));
    segment(&device, random);
    number("postprocess_apart", worst);
}

fn run<A>(device: &Device, what: Postprocess, parts: usize, call: &A) {
    let [kernel] = device.kernels(KERNELS, [what.kernel]);
    device.launch(kernel, what.blocks(ITEMS as u32, parts as u64), [what.threads, 1, 1], &mut [at(call)]);
}

fn numbers(memory: &Memory) -> Numbers {
    Numbers::new(memory.address(), NumberType::F32)
}

fn scores(random: &mut Random, count: usize, span: f64) -> Vec<f32> {
    (0..count).map(|_| (span * (random.unit() - 0.5)) as f32).collect()
}

/// The best classes after softmax; how far scores are apart at most.
fn classify(device: &Device, random: &mut Random) -> f64 {
    const TOP: usize = 5;
    let mut worst = 0f64;
    for classes in [3, 10, 1000] {
        let values = scores(random, ITEMS * classes, 12.0);
        let (input, faults) = (device.with(&values), device.garbage(4 * ITEMS));
        let best = device.garbage(8 * ITEMS * TOP);
        let call = ClassifyCall {
            scores: numbers(&input),
            classes: classes as u32,
            activation: ScoreActivation::Softmax,
            top: TOP as u32,
            unused: 0,
            best: best.address(),
            faults: faults.address(),
        };
        run(device, CLASSIFY, classes, &call);
        assert_eq!(device.read::<u32>(&faults, ITEMS), [0; ITEMS]);
        let best = device.read::<[u32; 2]>(&best, ITEMS * TOP);
        for (item, values) in values.chunks(classes).enumerate() {
            let sum: f64 = values.iter().map(|value| f64::from(*value).exp()).sum();
            let mut order: Vec<usize> = (0..classes).collect();
            order.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
            for place in 0..TOP {
                let [class, score] = best[item * TOP + place];
                let score = f32::from_bits(score);
                let Some(&expected) = order.get(place) else {
                    assert_eq!(class, u32::MAX, "there are {classes} classes only");
                    continue;
                };
                assert_eq!(class as usize, expected, "{classes} classes, item {item}, place {place}");
                worst = worse(worst, (f64::from(score) - f64::from(values[expected]).exp() / sum).abs());
            }
        }
    }
    assert!(worst < 1e-5, "scores are {worst} apart");
    worst
}

/// Boxes of one class on a grid, each with a worse one that overlaps it: the better ones stay.
fn detect(device: &Device, random: &mut Random) -> f64 {
    const SPOTS: usize = 12;
    const ANCHORS: usize = 2 * SPOTS + 40;
    const CLASSES: usize = 4;
    let mut boxes = vec![0f32; ITEMS * ANCHORS * 4];
    let mut values = vec![0f32; ITEMS * ANCHORS * CLASSES];
    for anchor in 0..ITEMS * ANCHORS {
        let spot = anchor % ANCHORS;
        // The pairs come first, the rest is below the threshold.
        let (left, top) = ((spot / 2 % 6) as f32 * 50.0, (spot / 12) as f32 * 50.0);
        let shift = (spot % 2) as f32 * 4.0;
        boxes[anchor * 4..anchor * 4 + 4].copy_from_slice(&[
            left + shift,
            top,
            left + shift + 30.0,
            top + 30.0,
        ]);
        let score =
            if spot >= 2 * SPOTS { 0.2 } else { 0.95 - 0.3 * (spot % 2) as f32 - 0.2 * random.unit() as f32 };
        values[anchor * CLASSES + spot / 2 % CLASSES] = score;
    }
    let (boxes_memory, scores_memory) = (device.with(&boxes), device.with(&values));
    let placement = DetectPlacement {
        offset: [0.0; 2],
        resized: [640.0; 2],
        source: [640.0; 2],
        size: [640.0; 2],
        placed: 0,
        unused: 0,
    };
    let placements = device.with(&[placement; ITEMS]);
    let most = ANCHORS;
    let (candidates, found) = (device.garbage(ITEMS * ANCHORS * CANDIDATE_BYTES), device.zeros(4 * ITEMS));
    let (detections, kept) = (device.garbage(ITEMS * most * 24), device.garbage(4 * ITEMS));
    let faults = device.zeros(4 * ITEMS);
    let strides = |of: usize| Strides { item: (ANCHORS * of) as u64, anchor: of as u64, channel: 1 };
    let call = DetectCall {
        boxes: numbers(&boxes_memory),
        scores: numbers(&scores_memory),
        objectness: Numbers::NONE,
        labels: Numbers::NONE,
        counts: Numbers::NONE,
        boxes_by: strides(4),
        scores_by: strides(CLASSES),
        objectness_by: Strides::default(),
        anchors: ANCHORS as u32,
        classes: CLASSES as u32,
        first_class: 0.0,
        format: BoxNumbers::Xyxy,
        normalized: 0,
        score_min: 0.3,
        iou_max: 0.5,
        detections_max: most as u32,
        candidates_max: ANCHORS as u32,
        unused: 0,
        placements: placements.address(),
        candidates: candidates.address(),
        candidate_counts: found.address(),
        detections: detections.address(),
        detection_counts: kept.address(),
        faults: faults.address(),
    };
    run(device, DETECT_CANDIDATES, ANCHORS, &call);
    run(device, DETECT_SUPPRESS, 0, &call);
    assert_eq!(device.read::<u32>(&faults, ITEMS), [0; ITEMS]);
    assert_eq!(device.read::<u32>(&found, ITEMS), [2 * SPOTS as u32; ITEMS]);
    assert_eq!(device.read::<u32>(&kept, ITEMS), [SPOTS as u32; ITEMS]);
    let detections = device.read::<[u32; 6]>(&detections, ITEMS * most);
    let mut worst = 0f64;
    for item in 0..ITEMS {
        let mut expected: Vec<(f32, usize)> = (0..SPOTS)
            .map(|spot| (values[((item * ANCHORS) + 2 * spot) * CLASSES + spot % CLASSES], 2 * spot))
            .collect();
        expected.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        for (place, (score, spot)) in expected.into_iter().enumerate() {
            let words = detections[item * most + place];
            let from = (item * ANCHORS + spot) * 4;
            for (number, bits) in words[..4].iter().enumerate() {
                worst = worse(worst, f64::from((f32::from_bits(*bits) - boxes[from + number]).abs()));
            }
            worst = worse(worst, f64::from((f32::from_bits(words[4]) - score).abs()));
            assert_eq!(words[5] as usize, spot / 2 % CLASSES, "item {item}, place {place}");
        }
    }
    assert!(worst < 1e-4, "boxes or scores are {worst} apart");
    worst
}

/// The best class of each pixel, exactly.
fn segment(device: &Device, random: &mut Random) {
    const PIXELS: usize = 777;
    const CLASSES: usize = 6;
    for last in [false, true] {
        let values = scores(random, ITEMS * CLASSES * PIXELS, 4.0);
        let (input, best) = (device.with(&values), device.garbage(2 * ITEMS * PIXELS));
        let faults = device.zeros(4 * ITEMS);
        let call = SegmentCall {
            scores: numbers(&input),
            pixels: PIXELS as u64,
            classes: CLASSES as u32,
            last: u32::from(last),
            threshold: 0.0,
            unused: 0,
            best: best.address(),
            faults: faults.address(),
        };
        run(device, SEGMENT, PIXELS, &call);
        assert_eq!(device.read::<u32>(&faults, ITEMS), [0; ITEMS]);
        for (i, got) in device.read::<u16>(&best, ITEMS * PIXELS).into_iter().enumerate() {
            let (item, pixel) = (i / PIXELS, i % PIXELS);
            let score = |class: usize| match last {
                true => values[(item * PIXELS + pixel) * CLASSES + class],
                false => values[(item * CLASSES + class) * PIXELS + pixel],
            };
            let expected = (0..CLASSES).rev().max_by(|a, b| score(*a).total_cmp(&score(*b))).unwrap();
            assert_eq!(usize::from(got), expected, "item {item}, pixel {pixel}, classes last: {last}");
        }
    }
}

/// The functions by their numbers, each against double precision: name, lowest and highest argument, and how far off it may be in
/// all and relative to the value.
type Function = (i32, &'static str, [f64; 2], fn(f64) -> f64, [f64; 2]);
const FUNCTIONS: [Function; 5] = [
    (0, "exp", [-80.0, 80.0], f64::exp, [0.0, 4e-6]),
    (1, "ln", [1e-30, 1e30], f64::ln, [1e-7, 2e-7]),
    (2, "erf", [-6.0, 6.0], erf, [7e-7, 0.0]),
    (3, "reciprocal", [1e-30, 1e30], f64::recip, [0.0, 2.5e-7]),
    (4, "root", [1e-30, 1e30], f64::sqrt, [0.0, 3e-7]),
];

pub(crate) fn functions() {
    const COUNT: usize = 20_001;
    let device = Device::open();
    let [kernel] = device.kernels(MATH, ["math_check"]);
    let mut worst_of_all = 0f64;
    for (function, name, [low, high], exact, [absolute, relative]) in FUNCTIONS {
        let part = |i: usize| i as f64 / (COUNT - 1) as f64;
        // Over many magnitudes evenly in the exponent.
        let x: Vec<f32> = (0..COUNT)
            .map(|i| if low > 0.0 { low * (high / low).powf(part(i)) } else { low + (high - low) * part(i) } as f32)
            .collect();
        let (from, to, count) = (device.with(&x), device.garbage(4 * COUNT), COUNT as u64);
        let (from_address, to_address) = (from.address(), to.address());
        let arguments = &mut [at(&function), at(&from_address), at(&to_address), at(&count)];
        device.launch(kernel, [COUNT.div_ceil(128) as u32, 1, 1], [128, 1, 1], arguments);
        let mut worst = 0f64;
        for (x, y) in x.iter().zip(device.read::<f32>(&to, COUNT)) {
            let exact = exact(f64::from(*x));
            let off = (f64::from(y) - exact).abs() / (absolute + relative * exact.abs());
            assert!(off <= 1.0, "{name}({x}) is {y}, not {exact}");
            worst = worst.max(off);
        }
        println!("{name}: {worst:.3} of what it may be off");
        worst_of_all = worst_of_all.max(worst);
    }
    number("math_of_tolerance", worst_of_all);
}
