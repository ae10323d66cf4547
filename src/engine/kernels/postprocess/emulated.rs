//! Runs the device version of the kernels on slices of host memory, for tests of what outputs mean.
#![allow(unsafe_code, reason = "the kernels are C++")]

use super::{super::emulated, *};
use crate::engine::reduction::Scored;

fn run<A>(what: Postprocess, items: usize, parts: usize, call: &A) {
    let blocks = what.blocks(items as u32, parts as u64);
    // SAFETY: the callers below pass addresses of slices that are as long as the kernels state.
    unsafe {
        emulated::launch(what.kernel, blocks, [what.threads, 1, 1], 0, call);
    }
}

/// The best classes of each item with their scores, and whether its scores are at fault.
pub(crate) fn classify(
    (scores, items): (&[u8], usize),
    number_type: NumberType,
    classes: usize,
    activation: ScoreActivation,
    top: usize,
) -> Vec<(Vec<Scored>, bool)> {
    let (mut best, mut faults) = (vec![Scored { class: 7, score: 7.0 }; items * top], vec![7u32; items]);
    let call = ClassifyCall {
        scores: Numbers::new(scores.as_ptr() as u64, number_type),
        classes: classes as u32,
        activation,
        top: top as u32,
        unused: 0,
        best: best.as_mut_ptr() as u64,
        faults: faults.as_mut_ptr() as u64,
    };
    run(CLASSIFY, items, classes, &call);
    best.chunks(top).zip(faults).map(|(best, fault)| (best.to_vec(), fault != 0)).collect()
}

/// The detections of each item, or `None` if its outputs are at fault. Fills in the placements and results of `call`.
pub(crate) fn detect(
    mut call: DetectCall,
    placements: &[DetectPlacement],
) -> Vec<Option<Vec<DeviceDetection>>> {
    let items = placements.len();
    let mut candidates = vec![[0u64; CANDIDATE_BYTES / 8]; items * call.candidates_max as usize];
    let (mut found, mut kept, mut faults) = (vec![0u32; items], vec![7u32; items], vec![0u32; items]);
    let most = call.detections_max as usize;
    let mut detections = vec![DeviceDetection::default(); items * most];
    call.placements = placements.as_ptr() as u64;
    call.candidates = candidates.as_mut_ptr() as u64;
    call.candidate_counts = found.as_mut_ptr() as u64;
    call.detections = detections.as_mut_ptr() as u64;
    call.detection_counts = kept.as_mut_ptr() as u64;
    call.faults = faults.as_mut_ptr() as u64;
    if call.anchors > 0 {
        run(DETECT_CANDIDATES, items, call.anchors as usize, &call);
    }
    run(DETECT_SUPPRESS, items, 0, &call);
    (0..items)
        .map(|item| {
            let kept = item * most..item * most + kept[item] as usize;
            (faults[item] == 0).then(|| detections[kept].to_vec())
        })
        .collect()
}

/// The boxes of one item as the kernel leaves them, in room for `places`, or `None` if its outputs are at fault. Fills in the addresses
/// of `call`.
pub(crate) fn candidates(mut call: DetectCall, places: usize, size: [f32; 2]) -> Option<Vec<u8>> {
    let nowhere = [0.0; 2];
    let stays =
        DetectPlacement { offset: nowhere, resized: nowhere, source: nowhere, size, placed: 0, unused: 0 };
    let mut found = vec![0u8; places * CANDIDATE_BYTES];
    let (mut count, mut fault) = (0u32, 0u32);
    call.candidates_max = places as u32;
    call.placements = (&raw const stays) as u64;
    call.candidates = found.as_mut_ptr() as u64;
    call.candidate_counts = (&raw mut count) as u64;
    call.faults = (&raw mut fault) as u64;
    run(DETECT_CANDIDATES, 1, call.anchors as usize, &call);
    (fault == 0).then_some(found)
}

/// The class of each pixel, or `None` if the item's scores are at fault.
pub(crate) fn segment(
    (scores, items): (&[u8], usize),
    number_type: NumberType,
    classes: usize,
    last: bool,
    threshold: f32,
) -> Vec<Option<Vec<u16>>> {
    let size = if number_type == NumberType::F16 { 2 } else { 4 };
    let pixels = scores.len() / size / items / classes;
    let (mut best, mut faults) = (vec![7u16; items * pixels], vec![0u32; items]);
    let call = SegmentCall {
        scores: Numbers::new(scores.as_ptr() as u64, number_type),
        pixels: pixels as u64,
        classes: classes as u32,
        last: u32::from(last),
        threshold,
        unused: 0,
        best: best.as_mut_ptr() as u64,
        faults: faults.as_mut_ptr() as u64,
    };
    run(SEGMENT, items, pixels, &call);
    best.chunks(pixels).zip(faults).map(|(best, fault)| (fault == 0).then(|| best.to_vec())).collect()
}
