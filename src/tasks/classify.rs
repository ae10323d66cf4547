//! Classify: from one score per class to the best classes.

use super::{Labels, Output, Outputs, choose, is_one, wrong_shape};
use crate::engine::{
    Best, DataType, Dim, Signature, TensorSpec,
    kernels::postprocess::ScoreActivation,
    onnx::Quantized,
    reduction::{SCORED_WORDS, Scored},
};
use std::sync::Arc;

/// How a model's scores become the scores of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Scores are logits of classes that exclude each other.
    Softmax,
    /// Scores are logits of classes that do not exclude each other.
    Sigmoid,
    /// Scores are answered as the model gives them.
    None,
}

impl Activation {
    /// Turns the model's numbers into scores, in place.
    pub(super) fn apply(self, scores: &mut [f32]) {
        match self {
            Activation::Softmax => softmax(scores),
            Activation::Sigmoid => scores.iter_mut().for_each(|score| *score = sigmoid(*score)),
            Activation::None => {}
        }
    }
}

/// Settings of a classifier.
#[derive(Debug, Clone, PartialEq)]
pub struct Classify {
    /// The output to read, `[1, C]` or `[C]`. If not set: the only output.
    pub output: Option<String>,
    /// How scores become those of the answer. If not set: softmax, or sigmoid for a single score.
    pub activation: Option<Activation>,
    /// How many classes to answer, at least 1.
    pub top_k: usize,
    /// What whole numbers of the output stand for, as its network's file says; `None` if the output has none, or it does not say.
    pub quantized: Option<Quantized>,
}

impl Default for Classify {
    fn default() -> Classify {
        Classify { output: None, activation: None, top_k: 5, quantized: None }
    }
}

/// One class of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// The position of the class in the output.
    pub index: usize,
    /// Its name, if the model has labels.
    pub label: Option<Arc<str>>,
    /// The score after the activation.
    pub score: f32,
}

const SHAPE: &str = "[1, classes]";

impl Classify {
    pub(super) fn resolve(mut self, signature: &Signature, labels: &Labels) -> Result<Classify, String> {
        let output = choose(signature, self.output.as_deref(), "classify.output")?;
        if let Some(classes) = classes(&output.name, &output.shape)? {
            if is_whole(output.datatype) && self.quantized.is_none() {
                self.refuse_whole(output, classes)?;
            }
            self.activation_of(&output.name, classes)?;
            if !is_yes_or_no(classes, labels) {
                labels.fit(&output.name, classes)?;
            }
        }
        self.output = Some(output.name.clone());
        Ok(self)
    }

    /// Refuses whole numbers that are no scores. A number for each class may be one, but no network is trained to give whole ones, so only
    /// those that quantization leaves may be, if their author says that they are.
    fn refuse_whole(
        &self,
        TensorSpec { name, datatype, .. }: &TensorSpec,
        classes: usize,
    ) -> Result<(), String> {
        match classes {
            1 => Err(format!(
                "output {name:?} is one {datatype} for an image, which is the number of a class and no score: export the network without \
                 its argmax, or serve it with task = \"tensors\""
            )),
            _ if is_byte(*datatype) && self.activation == Some(Activation::None) => Ok(()),
            _ if is_byte(*datatype) => Err(format!(
                "output {name:?} has {classes} {datatype}s for an image, and the file does not say what they stand for (by a constant scale \
                 of the QuantizeLinear or QLinear operator that gives them): export the network with a last DequantizeLinear, or set \
                 classify.activation = \"none\" to have them answered as they are, whole numbers whose order alone means something"
            )),
            _ => Err(format!(
                "output {name:?} has {classes} {datatype}s for an image, which are no scores: name the output with the scores before TopK or \
                 ArgMax by classify.output, or export the network without these"
            )),
        }
    }

    /// How an engine may find the best classes, for a resolved task.
    pub(super) fn best(&self, signature: &Signature) -> Option<Best> {
        let output =
            signature.outputs.iter().position(|output| Some(&output.name) == self.output.as_ref())?;
        // A single score is never reduced.
        let activation = match self.activation.unwrap_or(Activation::Softmax) {
            Activation::Softmax => ScoreActivation::Softmax,
            Activation::Sigmoid => ScoreActivation::Sigmoid,
            Activation::None => ScoreActivation::None,
        };
        let numbers = matches!(signature.outputs[output].datatype, DataType::Fp32 | DataType::Fp16);
        numbers.then_some(Best { output, activation, top: self.top_k })
    }

    /// The best classes, if an engine has reduced the output: it leaves at least the classes that are wanted. `None` if the output is not
    /// reduced.
    fn left(&self, output: &Output<'_>, signature: &Signature, labels: &Labels) -> Option<Vec<Class>> {
        let tensor = output.tensor;
        let wide = matches!(tensor.shape[..], [1, left, SCORED_WORDS] if left >= self.top_k);
        let left = tensor.datatype == DataType::Uint32 && wide;
        self.best(signature).filter(|_| left)?;
        let found: Vec<Scored> = bytemuck::pod_collect_to_vec(&tensor.data);
        let class = |Scored { class, score }: Scored| {
            let index = class as usize;
            Class { index, label: labels.get(index), score }
        };
        Some(found.into_iter().take(self.top_k).map(class).collect())
    }

    /// The best classes, best first; equal scores in the order of their index (0 is above -0, as on GPUs).
    pub(super) fn answer(&self, outputs: &Outputs<'_>, labels: &Labels) -> Result<Vec<Class>, String> {
        let output = outputs.get(self.output.as_deref())?;
        if let Some(classes) = self.left(&output, outputs.signature, labels) {
            return Ok(classes);
        }
        classes(output.name, &output.shape())?;
        let mut scores = output.numbers()?;
        if let Some(quantized) = self.quantized {
            scores.iter_mut().for_each(|score| *score = quantized.value(*score));
        }
        let activation = self.activation_of(output.name, scores.len())?;
        if is_yes_or_no(scores.len(), labels) {
            scores.insert(0, opposite(&output, activation, scores[0])?);
        }
        activate(activation, &output, &mut scores)?;
        let mut order: Vec<usize> = (0..scores.len()).collect();
        let better = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b));
        let k = self.top_k.min(order.len());
        if k < order.len() {
            order.select_nth_unstable_by(k, better);
            order.truncate(k);
        }
        order.sort_unstable_by(better);
        Ok(order
            .into_iter()
            .map(|index| Class { index, label: labels.get(index), score: scores[index] })
            .collect())
    }

    /// The activation of a resolved task, as a manifest would name it.
    pub fn named(&self, signature: &Signature) -> &'static str {
        let output = signature.outputs.iter().find(|output| Some(&output.name) == self.output.as_ref());
        let classes = output.and_then(|output| classes(&output.name, &output.shape).ok().flatten());
        match (self.activation, classes) {
            (Some(Activation::Softmax), _) | (None, Some(2..)) => "\"softmax\"",
            (Some(Activation::Sigmoid), _) | (None, Some(_)) => "\"sigmoid\"",
            (Some(Activation::None), _) => "\"none\"",
            (None, None) => "\"softmax\" (\"sigmoid\" for a single score)",
        }
    }

    /// The activation for this many scores.
    fn activation_of(&self, output: &str, classes: usize) -> Result<Activation, String> {
        match self.activation {
            None if classes == 1 => Ok(Activation::Sigmoid),
            None => Ok(Activation::Softmax),
            Some(Activation::Softmax) if classes == 1 => Err(format!(
                "output {output:?} has one score for an image, which softmax makes 1 whatever it is: set \
                 classify.activation = \"sigmoid\", or \"none\" if it is a probability already"
            )),
            Some(activation) => Ok(activation),
        }
    }
}

/// Whether numbers of this type have no fractions.
fn is_whole(datatype: DataType) -> bool {
    !matches!(
        datatype,
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 | DataType::Bool | DataType::Bytes
    )
}

/// Whether numbers of this type are what quantization mostly leaves.
pub fn is_byte(datatype: DataType) -> bool {
    matches!(datatype, DataType::Uint8 | DataType::Int8)
}

/// Whether the labels name both classes of a single score: the one that it speaks against, and the one that it speaks for.
fn is_yes_or_no(classes: usize, labels: &Labels) -> bool {
    classes == 1 && labels.len() == 2
}

/// The score of the first of two classes, computed from the score of the second before its activation.
fn opposite(output: &Output<'_>, activation: Activation, score: f32) -> Result<f32, String> {
    match activation {
        // 1 / (1 + e^x), which keeps the digits that 1 - p would lose.
        Activation::Softmax | Activation::Sigmoid => Ok(-score),
        // A probability, allowing for rounding.
        Activation::None if (-1e-3..=1.001).contains(&score) => Ok(1.0 - score),
        Activation::None => Err(format!(
            "the score in output {:?} is {score}, expected a probability, 0 to 1: set classify.activation = \"sigmoid\" if \
             it is a logit",
            output.name
        )),
    }
}

/// Turns the model's numbers into the scores of the answer.
fn activate(activation: Activation, output: &Output<'_>, scores: &mut [f32]) -> Result<(), String> {
    activation.apply(scores);
    match scores.iter().position(|score| !score.is_finite()) {
        Some(index) => Err(format!(
            "the score of class {index} in output {:?} is {}, expected a finite number",
            output.name, scores[index]
        )),
        None => Ok(()),
    }
}

/// The number of classes, if the shape tells. A shape of unknown rank (empty) is checked again on each answer.
fn classes(name: &str, shape: &[Dim]) -> Result<Option<usize>, String> {
    let axes = match shape {
        [] => return Ok(None),
        [only] => std::slice::from_ref(only),
        [batch, rest @ ..] if is_one(*batch) => rest,
        _ => return Err(wrong_shape(name, shape, SHAPE)),
    };
    if axes.contains(&Dim::Fixed(0)) {
        return Err(wrong_shape(name, shape, SHAPE));
    }
    let mut larger = axes.iter().filter(|dim| !matches!(dim, Dim::Fixed(1) | Dim::Free));
    match (larger.next(), larger.next()) {
        (Some(_), Some(_)) => Err(wrong_shape(name, shape, SHAPE)),
        (Some(Dim::Fixed(classes)), None) => Ok(Some(*classes)),
        _ if axes.contains(&Dim::Free) => Ok(None),
        _ => Ok(Some(1)),
    }
}

/// Exponentials over their sum; the largest score is taken off first, so that none overflows.
fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0_f64;
    for score in scores.iter_mut() {
        *score = (*score - largest).exp();
        sum += f64::from(*score);
    }
    for score in scores {
        *score = (f64::from(*score) / sum) as f32;
    }
}

/// The logistic function, from the side on which the exponential cannot overflow.
fn sigmoid(score: f32) -> f32 {
    if score >= 0.0 {
        1.0 / (1.0 + (-score).exp())
    } else {
        let e = score.exp();
        e / (1.0 + e)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};
    use crate::engine::Tensor;
    use proptest::prelude::*;

    fn run(task: Classify, shape: &[usize], scores: &[f32]) -> Result<Vec<Class>, String> {
        let signature = signature(&[("logits", &[])]);
        let tensors = [floats(shape, scores)];
        task.resolve(&signature, &Labels::default())?
            .answer(&Outputs::new(&tensors, &signature)?, &Labels::parse("a\nb\nc")?)
    }

    /// Scores in, (index, score) out.
    fn check(activation: Activation, top_k: usize, scores: &[f32], expected: &[(usize, f32)]) {
        let task = Classify { activation: Some(activation), top_k, ..Classify::default() };
        let got = run(task, &[1, scores.len()], scores).unwrap();
        assert_eq!(got.len(), expected.len(), "{got:?}");
        for (class, (index, score)) in got.iter().zip(expected) {
            assert_eq!(class.index, *index, "{got:?}");
            assert!((class.score - score).abs() < 1e-6, "{got:?}");
        }
    }

    #[test]
    fn softmax_gives_the_known_probabilities() {
        // exp(1, 2, 3) / sum
        check(
            Activation::Softmax,
            3,
            &[1.0, 2.0, 3.0],
            &[(2, 0.665_240_94), (1, 0.244_728_47), (0, 0.090_030_57)],
        );
    }

    #[test]
    fn softmax_of_huge_logits_does_not_overflow() {
        check(Activation::Softmax, 2, &[1e30, -1e30, f32::NEG_INFINITY], &[(0, 1.0), (1, 0.0)]);
        check(Activation::Softmax, 2, &[1e4, 1e4 - 1.0], &[(0, 0.731_058_6), (1, 0.268_941_43)]);
    }

    #[test]
    fn sigmoid_scores_each_class_alone() {
        check(Activation::Sigmoid, 3, &[0.0, -200.0, 200.0], &[(2, 1.0), (0, 0.5), (1, 0.0)]);
    }

    #[test]
    fn given_probabilities_pass_unchanged_and_ties_go_by_index() {
        check(Activation::None, 2, &[0.25, 0.5, 0.25, 0.0], &[(1, 0.5), (0, 0.25)]);
        check(Activation::None, 9, &[0.25, 0.5, 0.25], &[(1, 0.5), (0, 0.25), (2, 0.25)]);
    }

    #[test]
    fn what_is_left_for_more_classes_is_enough_for_fewer() {
        let signature = signature(&[("logits", &[1, 1000])]);
        let words =
            [(7_u32, 0.5_f32), (3, 0.25), (900, 0.125)].map(|(class, score)| [class, score.to_bits()]);
        let data = words.as_flattened().iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let tensors = [Tensor { datatype: DataType::Uint32, shape: vec![1, 3, 2], data: data.into() }];
        let answer = |top_k| {
            let task = Classify { top_k, ..Classify::default() };
            let task = task.resolve(&signature, &Labels::default()).unwrap();
            let found =
                task.answer(&Outputs::new(&tensors, &signature).unwrap(), &Labels::default()).unwrap();
            found.iter().map(|class| (class.index, class.score)).collect::<Vec<_>>()
        };
        for top_k in 1..=3 {
            assert_eq!(answer(top_k), [(7, 0.5), (3, 0.25), (900, 0.125)][..top_k]);
        }
    }

    #[test]
    fn labels_go_with_their_class() {
        let classes = run(Classify::default(), &[1, 3], &[0.0, 9.0, 1.0]).unwrap();
        assert_eq!(classes[0].label.as_deref(), Some("b"));
    }

    #[test]
    fn nan_is_an_error_and_never_a_label() {
        let error = run(Classify::default(), &[1, 3], &[0.0, f32::NAN, 1.0]).unwrap_err();
        assert!(error.contains("\"logits\" is not a number"), "{error}");
        let error = run(Classify::default(), &[1, 2], &[f32::NEG_INFINITY; 2]).unwrap_err();
        assert!(error.contains("class 0 in output \"logits\" is NaN"), "{error}");
    }

    #[test]
    fn shapes_that_are_not_one_score_per_class_are_refused() {
        let error = run(Classify::default(), &[2, 2], &[0.0; 4]).unwrap_err();
        assert_eq!(error, "output \"logits\" has shape [2, 2], expected [1, classes]");
        assert!(run(Classify::default(), &[1, 2, 2], &[0.0; 4]).is_err());
        assert!(run(Classify::default(), &[1, 0], &[]).is_err());
        assert!(run(Classify::default(), &[1, 3, 1, 1], &[0.0; 3]).is_ok());
        assert!(run(Classify::default(), &[3], &[0.0; 3]).is_ok());
    }

    #[test]
    fn labels_for_another_number_of_classes_are_refused_at_load() {
        let labels = Labels::parse("cat\ndog").unwrap();
        let resolve = |shape: &[i64]| Classify::default().resolve(&signature(&[("logits", shape)]), &labels);
        assert_eq!(
            resolve(&[-1, 1000]).unwrap_err(),
            "the labels file has 2 labels, output \"logits\" has 1000 classes"
        );
        assert!(resolve(&[-1, 2]).is_ok());
        assert!(resolve(&[-1, -1]).is_ok());
    }

    /// The answer of a model with one score: label and score of each class, best first.
    fn single(
        activation: Option<Activation>,
        labels: &str,
        score: f32,
    ) -> Result<Vec<(Option<String>, f32)>, String> {
        let labels = Labels::parse(labels)?;
        let task = Classify { activation, ..Classify::default() };
        let of = |shape: &[i64]| {
            let signature = signature(&[("logit", shape)]);
            let tensors = [floats(&[1, 1], &[score])];
            let outputs = Outputs::new(&tensors, &signature)?;
            let found = task.clone().resolve(&signature, &labels)?.answer(&outputs, &labels)?;
            Ok(found.iter().map(|class| (class.label.as_deref().map(str::to_owned), class.score)).collect())
        };
        let (known, free) = (of(&[-1, 1]), of(&[-1, -1]));
        assert_eq!(known, free, "whether the model file tells that there is one");
        known
    }

    #[test]
    fn a_single_score_is_a_logit_unless_the_manifest_says_otherwise() {
        let p = 0.880_797_1_f32;
        let check = |found: Result<Vec<(Option<String>, f32)>, String>, expected: &[(Option<&str>, f32)]| {
            let found = found.unwrap();
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for ((label, score), (name, expected)) in found.iter().zip(expected) {
                assert_eq!(label.as_deref(), *name, "{found:?}");
                assert!((score - expected).abs() < 1e-6, "{found:?}");
            }
        };
        check(single(None, "", 2.0), &[(None, p)]);
        check(single(Some(Activation::Sigmoid), "spam", 2.0), &[(Some("spam"), p)]);
        check(single(Some(Activation::None), "spam", 0.25), &[(Some("spam"), 0.25)]);
        // Two names: the negative class, then the positive one.
        check(single(None, "ham\nspam", 2.0), &[(Some("spam"), p), (Some("ham"), 1.0 - p)]);
        check(single(None, "ham\nspam", -2.0), &[(Some("ham"), p), (Some("spam"), 1.0 - p)]);
        check(
            single(Some(Activation::None), "ham\nspam", 0.25),
            &[(Some("ham"), 0.75), (Some("spam"), 0.25)],
        );
        let error = single(Some(Activation::None), "ham\nspam", 2.0).unwrap_err();
        assert!(error.contains("is 2, expected a probability") && error.contains("\"sigmoid\""), "{error}");
    }

    #[test]
    fn softmax_of_a_single_score_is_refused_at_load() {
        let task = Classify { activation: Some(Activation::Softmax), ..Classify::default() };
        let resolve = |shape: &[i64]| task.clone().resolve(&signature(&[("y", shape)]), &Labels::default());
        assert_eq!(
            resolve(&[-1, 1]).unwrap_err(),
            "output \"y\" has one score for an image, which softmax makes 1 whatever it is: set classify.activation = \
             \"sigmoid\", or \"none\" if it is a probability already"
        );
        assert!(resolve(&[-1, 2]).is_ok());
        let three = Labels::parse("a\nb\nc").unwrap();
        assert!(Classify::default().resolve(&signature(&[("y", &[-1, 1])]), &three).is_err());
    }

    #[test]
    fn whole_numbers_for_an_image_are_no_scores() {
        let resolve = |datatype, shape: &[i64]| {
            let mut signature = signature(&[("y", shape)]);
            signature.outputs[0].datatype = datatype;
            Classify::default().resolve(&signature, &Labels::default()).err().unwrap_or_default()
        };
        for datatype in [DataType::Int64, DataType::Int32, DataType::Uint8, DataType::Int8] {
            let told = if is_byte(datatype) { "with a last DequantizeLinear" } else { "before TopK" };
            for shape in [&[-1, 5][..], &[5], &[1, 5, 1, 1]] {
                let error = resolve(datatype, shape);
                assert!(error.contains("has 5 ") && error.contains(told), "{error}");
            }
            assert!(resolve(datatype, &[-1, 1]).contains("the number of a class and no score"));
            // The forward pass tells.
            assert_eq!(resolve(datatype, &[-1, -1]), "");
        }
        for datatype in [DataType::Fp32, DataType::Fp16] {
            assert_eq!(resolve(datatype, &[-1, 5]), "");
        }
    }

    #[test]
    fn bytes_are_scores_by_what_they_stand_for_or_as_they_are_where_that_is_said() {
        let answer = |task: Classify, classes: usize, datatype, data: &[u8]| {
            let mut signature = signature(&[("y", &[-1, classes as i64])]);
            signature.outputs[0].datatype = datatype;
            let tensors = [Tensor { datatype, shape: vec![1, classes], data: data.to_vec().into() }];
            let task = task.resolve(&signature, &Labels::default())?;
            let found = task.answer(&Outputs::new(&tensors, &signature)?, &Labels::default())?;
            Ok::<_, String>(found.iter().map(|class| (class.index, class.score)).collect::<Vec<_>>())
        };
        let quantized = |scale, zero| Classify {
            quantized: Some(Quantized { scale, zero }),
            activation: Some(Activation::None),
            ..Classify::default()
        };
        let bytes = [255, 0, 130];
        let found = answer(quantized(0.5, 128.0), 3, DataType::Uint8, &bytes).unwrap();
        assert_eq!(found, [(0, 63.5), (2, 1.0), (1, -64.0)]);
        let found = answer(quantized(0.5, -1.0), 3, DataType::Int8, &bytes).unwrap();
        assert_eq!(found, [(1, 0.5), (0, 0.0), (2, -62.5)]);
        // Logits by default.
        let logits = Classify { activation: None, ..quantized(0.1, 0.0) };
        let found = answer(logits.clone(), 3, DataType::Uint8, &[10, 20, 30]).unwrap();
        assert!((found[0].1 - 0.665_240_94).abs() < 1e-6, "{found:?}");
        let found = answer(logits, 1, DataType::Uint8, &[20]).unwrap();
        assert!((found[0].1 - 0.880_797_1).abs() < 1e-6, "{found:?}");
        // Nobody knows what they stand for.
        let plain = Classify { activation: Some(Activation::None), ..Classify::default() };
        let found = answer(plain.clone(), 3, DataType::Int8, &bytes).unwrap();
        assert_eq!(found, [(1, 0.0), (0, -1.0), (2, -126.0)]);
        assert!(answer(plain, 1, DataType::Int8, &[1]).unwrap_err().contains("the number of a class"));
        let error = answer(Classify::default(), 3, DataType::Uint8, &bytes).unwrap_err();
        assert!(
            error.starts_with("output \"y\" has 3 UINT8s for an image, and the file does not say"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn softmax_sums_to_one_and_keeps_the_order(
            // Near each other, all have a share; far apart, the best has all.
            apart in prop::sample::select(vec![1.0_f32, 1e5]),
            scores in prop::collection::vec(-1.0_f32..1.0, 1..50),
        ) {
            let scores: Vec<f32> = scores.into_iter().map(|score| score * apart).collect();
            let mut probabilities = scores.clone();
            softmax(&mut probabilities);
            let sum: f64 = probabilities.iter().map(|p| f64::from(*p)).sum();
            prop_assert!((sum - 1.0).abs() < 1e-5, "sum {}", sum);
            for (a, p) in scores.iter().zip(&probabilities) {
                for (b, q) in scores.iter().zip(&probabilities) {
                    prop_assert!(a < b || p >= q);
                }
            }
        }

        #[test]
        fn top_k_is_the_head_of_the_full_order(scores in prop::collection::vec(0_u8..5, 1..40), k in 1_usize..40) {
            let scores: Vec<f32> = scores.into_iter().map(f32::from).collect();
            let task =
                |top_k| Classify { activation: Some(Activation::None), top_k, ..Classify::default() };
            let full = run(task(scores.len()), &[1, scores.len()], &scores).unwrap();
            let head = run(task(k), &[1, scores.len()], &scores).unwrap();
            prop_assert_eq!(&full[..k.min(full.len())], &head[..]);
        }
    }
}
