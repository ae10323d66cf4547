//! Compares the results of kernels on a device with those of the tasks.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod detect;

use super::{
    Activation, Answer, Classify, Enlarge, Labels, Segment, Task,
    testing::{floats, spec},
};
use crate::engine::{
    DataType, Reduction, Signature, Tensor,
    kernels::postprocess::{emulated, *},
    reduction::Scored,
};
use crate::{random::Random, worse::worse};
use bytes::Bytes;
use half::f16;

fn signature(outputs: &[(&str, &Tensor)]) -> Signature {
    Signature {
        platform: "onnxruntime_onnx".into(),
        inputs: vec![spec("images", DataType::Fp32, &[-1, 3, 8, 8])],
        outputs: outputs.iter().map(|(name, tensor)| spec(name, tensor.datatype, &[])).collect(),
        defaulted: Vec::new(),
        unshaped: Vec::new(),
        left_out: Vec::new(),
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

/// Memory that is aligned for any type.
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
    if scores.len() == 1 && activation == Activation::Softmax {
        // The task refuses this.
        return worst;
    }
    let tensor = floats(&[1, scores.len()], scores);
    for tensor in [tensor.clone(), halves(&tensor)] {
        let task =
            Task::Classify(Classify { activation: Some(activation), top_k: top, ..Classify::default() });
        let signature = signature(&[("scores", &tensor)]);
        let task = task.resolve(&signature, &Labels::default(), None, true).unwrap();
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
        if top <= scores.len() {
            // If an engine leaves the kernel's result of the output, the answer is that result.
            let data = Bytes::copy_from_slice(bytemuck::cast_slice(best));
            let left = Tensor { datatype: DataType::Uint32, shape: vec![1, top, 2], data };
            let answer = task.answer(&[left], &signature, &Labels::default(), None).unwrap();
            let Answer::Classes(classes) = answer else { panic!("{answer:?}") };
            let classes: Vec<Scored> =
                classes.iter().map(|c| Scored { class: c.index as u32, score: c.score }).collect();
            assert_eq!(&classes, best);
        }
        for (place, Scored { class, score }) in best.iter().enumerate() {
            let Some(expected) = expected.get(place) else {
                assert_eq!((*class, *score), (u32::MAX, 0.0), "beyond all classes");
                continue;
            };
            worst = worse(worst, (score - expected.score).abs());
            // If rounding makes two scores equal, either may come first.
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
        let random = &mut Random::new(seed);
        let classes = 1 + random.below([3, 40, 1500][seed as usize % 3]);
        let spread = [1.0, 8.0, 60.0][random.below(3)];
        let scores: Vec<f32> = (0..classes).map(|_| (random.unit() as f32 - 0.5) * 2.0 * spread).collect();
        for activation in [Activation::Softmax, Activation::Sigmoid, Activation::None] {
            worst = worse(worst, check_classify(&scores, activation, 1 + random.below(8)));
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
    let best = |classes: [(u32, f32); 2]| classes.map(|(class, score)| Scored { class, score }).to_vec();
    assert_eq!(found[0], (best([(2, 3.0), (1, 2.0)]), false));
    assert!(found[1].1);
    assert_eq!(found[2], (best([(0, 5.0), (1, 4.0)]), false));
}

// ---- segment ----------------------------------------------------------------------------------------------------------

#[test]
fn masks_are_those_of_the_task() {
    for seed in 1..=40 {
        let random = &mut Random::new(seed);
        let classes = 1 + random.below(6);
        let (width, height) = (7 + random.below(30), 7 + random.below(30));
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
                let segment = Segment { layout, threshold: Some(0.6), ..Segment::default() };
                let task = Task::Segment(Segment { enlarge: Some(Enlarge::Nearest), ..segment });
                let task = task.resolve(&signature, &Labels::default(), None, true).unwrap();
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
