//! What makes a classifier's scores of what its network gives, and how that was found.

use super::{Model, Source};
use crate::{
    engine::{
        DataType, Signature,
        onnx::{ending::FinalActivation, outline::Outline},
    },
    tasks::{Activation, Classify, Task, choose, is_byte},
};

/// How a classifier's activation was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationBy {
    /// Its author says it.
    Author,
    /// The network ends in an operator that makes probabilities.
    Ending(&'static str),
    /// Forward passes gave probabilities.
    Passes,
    /// Nothing shows that the network gives probabilities.
    Default,
}

/// If a classifier's network already ends in probabilities, they must not be computed twice. The activation is omitted if the manifest
/// does not name one; if it does, the log warns. Returns how the activation was found; `None` for other tasks.
pub(super) fn settle(task: &mut Task, source: &Source, outline: &Outline) -> Option<ActivationBy> {
    let Task::Classify(classify) = task else { return None };
    let ending = classify.output.as_deref().and_then(|output| outline.ending(output));
    Some(match (ending.map(FinalActivation::name), classify.activation) {
        (Some(ending), None) => {
            classify.activation = Some(Activation::None);
            ActivationBy::Ending(ending)
        }
        (None, None) => ActivationBy::Default,
        (Some(ending), Some(Activation::Softmax | Activation::Sigmoid)) => {
            tracing::warn!(
                model = source.name,
                version = source.version,
                "its network ends in {ending}, and classify.activation makes probabilities once more: set it to \"none\", or leave it out"
            );
            ActivationBy::Author
        }
        (_, Some(_)) => ActivationBy::Author,
    })
}

/// Fills in what a classifier's whole numbers stand for, if its output has bytes and its file says it. The log tells it.
pub(super) fn dequantize(task: &mut Task, source: &Source, signature: &Signature, outline: &Outline) {
    let Task::Classify(classify) = task else { return };
    // Without one, resolving says why.
    let Ok(output) = choose(signature, classify.output.as_deref(), "classify.output") else { return };
    if !is_byte(output.datatype) {
        return;
    }
    let is_signed = output.datatype == DataType::Int8;
    if let Some((operator, by)) = outline.quantized(&output.name, is_signed) {
        classify.quantized = Some(by);
        tracing::info!(
            model = source.name,
            version = source.version,
            scale = by.scale,
            zero_point = by.zero,
            "output {:?} is quantized by {operator}: its numbers are taken as (number - zero_point) * scale",
            output.name
        );
    }
}

impl Model {
    /// The classifier's settings, if its activation is only a default, which forward passes may show to be wrong.
    pub fn by_default(&self) -> Option<&Classify> {
        match &self.task {
            Task::Classify(classify) if self.activation_by == Some(ActivationBy::Default) => Some(classify),
            _ => None,
        }
    }

    /// Has a classifier's numbers answered as they are, since forward passes gave probabilities.
    pub fn take_probabilities(&mut self) {
        if let Task::Classify(classify) = &mut self.task {
            classify.activation = Some(Activation::None);
            self.activation_by = Some(ActivationBy::Passes);
            self.ends.reduction = self.task.reduction(&self.signature);
        }
    }

    /// Logs what makes a classifier's scores, and why. `seem`: whether forward passes gave numbers that seem to be probabilities.
    pub fn tell_activation(&self, seem: bool) {
        let (Task::Classify(classify), Some(by)) = (&self.task, self.activation_by) else { return };
        let (name, version) = (&*self.name, &*self.version);
        let by = match by {
            ActivationBy::Author => "its author says so".to_owned(),
            ActivationBy::Ending(operator) => format!("its network ends in {operator}"),
            ActivationBy::Passes => {
                "what its network gave for random inputs lies in 0 to 1 and sums to 1 each time".to_owned()
            }
            ActivationBy::Default => {
                "the default where a network ends in neither Softmax nor Sigmoid".to_owned()
            }
        };
        let named = classify.named(&self.signature);
        tracing::info!(
            model = name,
            version,
            "its scores come about by: classify.activation = {named} ({by})"
        );
        if seem {
            let output = classify.output.as_deref().unwrap_or_default();
            tracing::warn!(
                model = name,
                version,
                "output {output:?} gave numbers in 0 to 1 for random inputs, as probabilities are, and {named} is applied to them by \
                 default: add the lines [classify] and activation = \"none\" to model.toml if they are probabilities, or else activation \
                 = {named}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{Reduction, kernels::postprocess::ScoreActivation, onnx::ending::testing::model as onnx},
        models::testing::{model_of, source},
        tasks::testing::signature,
    };

    fn model(operator: &str, manifest: &str, output: &[i64]) -> Model {
        let folder = tempfile::tempdir().unwrap();
        let mut source = source("m", "1", &format!("task = \"classify\"\n{manifest}"));
        source.path = folder.path().join("model.onnx");
        std::fs::write(&source.path, onnx(&[["Gemm", "x", "l"], [operator, "l", "y"]])).unwrap();
        model_of(&source, signature(&[("y", output)])).unwrap()
    }

    #[test]
    fn it_is_known_why_an_activation_was_chosen() {
        let by = |operator: &str, manifest: &str| model(operator, manifest, &[-1, 10]).activation_by.unwrap();
        assert_eq!(by("Softmax", ""), ActivationBy::Ending("Softmax"));
        assert_eq!(by("Relu", ""), ActivationBy::Default);
        for said in ["softmax", "sigmoid", "none"] {
            let manifest = format!("[classify]\nactivation = {said:?}");
            assert_eq!(by("Softmax", &manifest), ActivationBy::Author);
            assert_eq!(by("Relu", &manifest), ActivationBy::Author);
            assert!(model("Relu", &manifest, &[-1, 10]).by_default().is_none());
        }
    }

    #[test]
    fn probabilities_that_passes_show_are_answered_as_they_are() {
        let mut model = model("Relu", "", &[-1, 10]);
        let named = |model: &Model| match &model.task {
            Task::Classify(classify) => classify.named(&model.signature),
            _ => panic!("expected a classifier"),
        };
        let reduced = |model: &Model| match &model.ends.reduction {
            Some(Reduction::Classify(best)) => best.activation,
            other => panic!("{other:?}"),
        };
        assert_eq!((named(&model), reduced(&model)), ("\"softmax\"", ScoreActivation::Softmax));
        model.take_probabilities();
        assert_eq!((named(&model), reduced(&model)), ("\"none\"", ScoreActivation::None));
        assert_eq!(model.activation_by, Some(ActivationBy::Passes));
        assert!(model.by_default().is_none(), "it is not asked again");
        assert_eq!(named(&self::model("Relu", "", &[-1, 1])), "\"sigmoid\"");
        assert_eq!(
            named(&self::model("Relu", "", &[-1, -1])),
            "\"softmax\" (\"sigmoid\" for a single score)"
        );
    }
}
