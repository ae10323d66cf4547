//! From engine outputs to answers. Pure: no clock, no lock, no file.
//!
//! A [`Task`] is made from a manifest, [resolved](Task::resolve) once against the model's [`Signature`], and then turns the outputs of one
//! item into an [`Answer`]. This module does not know how answers are written on the wire.
//!
//! - [`classify`]: from scores to the best classes.
//! - [`detect`]: from YOLO-style, boxes/scores/classes and end-to-end outputs to boxes in the posted image, and what a model says about
//!   each box; [`nms`] suppresses overlapping boxes, rotated ones as a [`quad`].
//! - [`segment`]: class maps to a [`mask`] of the posted image's size, with its PNG, TIFF and run-length renderings.
//! - [`image`]: an output that is a [`picture`], with its PNG and TIFF renderings.
//! - [`sheets`]: masks and pictures as the pages of TIFF files.
//! - [`landmarks`]: coordinates or heatmaps to the points of one thing.
//! - `planes`: where rows, columns and channels lie in an output that is a map of the image.
//! - [`embed`]: a vector.
//! - [`labels`]: class names.
//! - [`localize`]: tables of fitted spots to files, streams and pictures.

pub mod classify;
pub mod detect;
#[cfg(all(test, kernels_emulated))]
mod device_tests;
pub mod embed;
pub mod image;
pub mod labels;
pub mod landmarks;
pub mod localize;
pub mod mask;
pub mod nms;
pub mod picture;
mod planes;
pub mod quad;
pub mod segment;
pub mod sheets;

pub use classify::{Activation, Class, Classify, is_byte};
pub use detect::{
    Background, BoxFormat, Columns, Detect, Detection, Format, Instance, Keypoint, Keypoints, MaskArea,
    Orientation, ROWS_MAX, SizeOrder,
};
pub use embed::{Embed, Pool};
pub use image::Image;
pub use labels::Labels;
pub use landmarks::Landmarks;
pub use mask::{Mask, MaskClass, Run};
pub use picture::Picture;
pub use segment::{Enlarge, Segment};

use crate::{
    engine::{DataType, Dim, Reduction, Signature, Tensor, TensorSpec, show},
    image::Placement,
};

/// What a model's outputs mean.
#[derive(Debug, Clone, PartialEq)]
pub enum Task {
    /// One score per class.
    Classify(Classify),
    /// Boxes with classes and scores.
    Detect(Box<Detect>),
    /// A class per pixel.
    Segment(Segment),
    /// Another picture: larger, denoised, or of depths.
    Image(Image),
    /// The points of one thing.
    Landmarks(Landmarks),
    /// A vector.
    Embed(Embed),
    /// The outputs as the model gives them.
    Tensors,
    /// Fitted spots; [`localize`] makes their tables.
    Localize,
}

/// The result for one item.
#[derive(Debug, Clone)]
pub enum Answer {
    /// The best classes, best first.
    Classes(Vec<Class>),
    /// Boxes, highest score first.
    Detections(Vec<Detection>),
    /// A class per pixel of the posted image.
    Mask(Mask),
    /// A picture.
    Picture(Picture),
    /// Points of the posted image, in the model's order.
    Landmarks(Vec<Keypoint>),
    /// An embedding.
    Vector(Vec<f32>),
    /// The outputs as they are, in the order of the signature.
    Tensors(Vec<Tensor>),
}

impl Task {
    /// The task's name in manifests and replies.
    pub fn name(&self) -> &'static str {
        match self {
            Task::Classify(_) => "classify",
            Task::Detect(_) => "detect",
            Task::Segment(_) => "segment",
            Task::Image(_) => "image",
            Task::Landmarks(_) => "landmarks",
            Task::Embed(_) => "embed",
            Task::Tensors => "tensors",
            Task::Localize => "localize",
        }
    }

    /// Checks the settings against the model and fills in what they leave open, such as output names. A resolved task may be resolved
    /// again, against outputs whose shapes have been seen; their values do not matter.
    ///
    /// `input` is the width and height of the model's image input in pixels; `None` if the model takes no images, or images keep their own
    /// size. `batch_axis` says whether the image input has a batch axis.
    ///
    /// # Errors
    /// Outputs that are missing, ambiguous, or of a shape that cannot hold such an answer; labels that do not fit.
    pub fn resolve(
        self,
        signature: &Signature,
        labels: &Labels,
        input: Option<[u32; 2]>,
        batch_axis: bool,
    ) -> Result<Task, String> {
        Ok(match self {
            Task::Classify(task) => Task::Classify(task.resolve(signature, labels)?),
            Task::Detect(task) => Task::Detect(Box::new(task.resolve(signature, labels, input)?)),
            Task::Segment(task) => Task::Segment(task.resolve(signature, labels, input, batch_axis)?),
            Task::Image(task) => Task::Image(task.resolve(signature, input, batch_axis)?),
            Task::Landmarks(task) => Task::Landmarks(task.resolve(signature, labels, input)?),
            Task::Embed(task) => Task::Embed(task.resolve(signature)?),
            Task::Tensors => Task::Tensors,
            Task::Localize => Task::Localize,
        })
    }

    /// Whether the outputs that a resolved task reads can have a batch axis. Detectors that give boxes as `[N, 4]` cannot: their free first
    /// axis counts boxes, although it looks like a batch axis.
    pub fn can_batch(&self, signature: &Signature) -> bool {
        match self {
            Task::Detect(task) => task.can_batch(signature),
            _ => true,
        }
    }

    /// The part of the outputs that a resolved task needs, if that is much smaller than the outputs. [`Task::answer`] accepts this part as
    /// well.
    ///
    /// That is a classifier's best classes, a mask's classes if scores are not enlarged, and the YOLO boxes that reach the minimum score;
    /// separate outputs for boxes hold few boxes. Overlapping boxes are suppressed here, because the placement of the posted image in the input is known here: a box
    /// outside the image is dropped, and must not suppress another one before.
    pub fn reduction(&self, signature: &Signature) -> Option<Reduction> {
        match self {
            Task::Classify(task) => task.best(signature).map(Reduction::Classify),
            Task::Segment(task) => task.class_map(signature).map(Reduction::Segment),
            Task::Detect(task) => task.anchors(signature).map(Reduction::Detect),
            _ => None,
        }
    }

    /// Hints about outputs that a resolved task could read with a further setting, and now ignores or takes unchanged.
    pub fn unread(&self, signature: &Signature) -> Vec<String> {
        match self {
            Task::Detect(task) => task.unread(signature),
            Task::Embed(task) => task.unread(signature).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Whether the boxes that [`answer`](Task::answer) takes are read as pixels but seem to be fractions of the input's size. `None` if
    /// there are no boxes to tell.
    pub fn seem_parts(
        &self,
        outputs: &[Tensor],
        signature: &Signature,
        labels: &Labels,
        placement: Option<&Placement>,
    ) -> Option<bool> {
        match self {
            Task::Detect(task) => task.seem_parts(&Outputs::new(outputs, signature).ok()?, labels, placement),
            _ => None,
        }
    }

    /// Whether what an engine leaves of the outputs for `model`'s task is enough for this task, which a request has changed.
    pub fn is_left_by(&self, model: &Task) -> bool {
        match (self, model) {
            (Task::Classify(asked), Task::Classify(left)) => asked.top_k <= left.top_k,
            _ => true,
        }
    }

    /// The answer for one item.
    ///
    /// `outputs` are in the order of the signature's outputs and belong to one item: a batch axis is still there and is 1; models without a
    /// batch axis give their outputs whole. `placement` says where the posted image lies in the model's input; without one, coordinates
    /// stay in pixels of the model's input.
    ///
    /// # Errors
    /// Outputs whose shape does not fit the task (with the output's name, its shape and the expected one), and numbers that are not finite,
    /// except in a picture.
    pub fn answer(
        &self,
        outputs: &[Tensor],
        signature: &Signature,
        labels: &Labels,
        placement: Option<&Placement>,
    ) -> Result<Answer, String> {
        let outputs = Outputs::new(outputs, signature)?;
        Ok(match self {
            Task::Classify(task) => Answer::Classes(task.answer(&outputs, labels)?),
            Task::Detect(task) => Answer::Detections(task.answer(&outputs, labels, placement)?),
            Task::Segment(task) => Answer::Mask(task.answer(&outputs, labels, placement)?),
            Task::Image(task) => Answer::Picture(task.answer(&outputs, placement)?),
            Task::Landmarks(task) => Answer::Landmarks(task.answer(&outputs, labels, placement)?),
            Task::Embed(task) => Answer::Vector(task.answer(&outputs)?),
            Task::Tensors | Task::Localize => Answer::Tensors(outputs.tensors.to_vec()),
        })
    }
}

/// One item's outputs and their names.
struct Outputs<'a> {
    tensors: &'a [Tensor],
    signature: &'a Signature,
}

impl<'a> Outputs<'a> {
    fn new(tensors: &'a [Tensor], signature: &'a Signature) -> Result<Outputs<'a>, String> {
        if tensors.len() != signature.outputs.len() {
            return Err(format!(
                "the model gave {} outputs, expected {}",
                tensors.len(),
                signature.outputs.len()
            ));
        }
        Ok(Outputs { tensors, signature })
    }

    /// The output that a setting names; the only one if the setting is open.
    fn get(&self, name: Option<&str>) -> Result<Output<'a>, String> {
        let index = match name {
            Some(name) => self.signature.outputs.iter().position(|o| o.name == name),
            None => (self.tensors.len() == 1).then_some(0),
        };
        let index = index.ok_or_else(|| match name {
            Some(name) => no_such_output(self.signature, name),
            None => "the model has several outputs and none was chosen".to_owned(),
        })?;
        Ok(Output { name: &self.signature.outputs[index].name, tensor: &self.tensors[index] })
    }
}

/// One output of one item.
struct Output<'a> {
    name: &'a str,
    tensor: &'a Tensor,
}

impl Output<'_> {
    /// The elements as `f32`, whatever their values.
    fn values(&self) -> Result<Vec<f32>, String> {
        let numbers = self
            .tensor
            .to_f32()
            .ok_or_else(|| format!("output {:?} is {}, expected numbers", self.name, self.tensor.datatype))?;
        if numbers.len() != self.tensor.elements() {
            return Err(format!(
                "output {:?} has {} elements, expected {} from its shape {:?}",
                self.name,
                numbers.len(),
                self.tensor.elements(),
                self.tensor.shape
            ));
        }
        Ok(numbers)
    }

    /// The elements as `f32`, none of which is NaN.
    fn numbers(&self) -> Result<Vec<f32>, String> {
        self.first_numbers(usize::MAX)
    }

    /// The elements as `f32`, all of which are finite.
    fn finite_numbers(&self) -> Result<Vec<f32>, String> {
        let numbers = self.numbers()?;
        match numbers.iter().position(|number| number.is_infinite()) {
            Some(index) => Err(format!(
                "output {:?} is {} at element {index}, expected finite numbers: the model cannot process this input",
                self.name, numbers[index]
            )),
            None => Ok(numbers),
        }
    }

    /// The first `count` elements, or all if there are fewer; later ones are not checked.
    fn first_numbers(&self, count: usize) -> Result<Vec<f32>, String> {
        let mut numbers = self.values()?;
        numbers.truncate(count);
        if let Some(index) = numbers.iter().position(|number| number.is_nan()) {
            return Err(format!(
                "output {:?} is not a number (NaN) at element {index}: the model cannot process this input",
                self.name
            ));
        }
        Ok(numbers)
    }

    /// The extents, as a signature would give them.
    fn shape(&self) -> Vec<Dim> {
        self.tensor.shape.iter().copied().map(Dim::Fixed).collect()
    }
}

/// The error for an output whose shape cannot hold the answer.
fn wrong_shape(name: &str, shape: &[Dim], expected: &str) -> String {
    format!("output {name:?} has shape {}, expected {expected}", show(shape))
}

fn no_such_output(signature: &Signature, name: &str) -> String {
    format!("the model has no output {name:?}; it has {}", output_names(signature))
}

fn output_names(signature: &Signature) -> String {
    let names: Vec<String> = signature.outputs.iter().map(|output| format!("{:?}", output.name)).collect();
    names.join(", ")
}

/// The output that a task reads: the one that is named, or the only one. `key` is the setting that names it.
pub(crate) fn choose<'a>(
    signature: &'a Signature,
    name: Option<&str>,
    key: &str,
) -> Result<&'a TensorSpec, String> {
    let chosen = match (name, &signature.outputs[..]) {
        (Some(name), outputs) => outputs
            .iter()
            .find(|output| output.name == name)
            .ok_or_else(|| format!("{key}: {}", no_such_output(signature, name))),
        (None, [only]) => Ok(only),
        (None, _) => Err(format!(
            "the model has {} outputs ({}): choose one with {key}",
            signature.outputs.len(),
            output_names(signature)
        )),
    };
    chosen.and_then(numeric)
}

/// The output, unless its type is strings.
fn numeric(output: &TensorSpec) -> Result<&TensorSpec, String> {
    match output.datatype {
        DataType::Bytes => Err(format!("output {:?} is {}, expected numbers", output.name, output.datatype)),
        _ => Ok(output),
    }
}

/// Whether the first axis can be a batch axis of one item.
fn is_one(dim: Dim) -> bool {
    dim.takes(1)
}

#[cfg(test)]
pub(crate) mod testing {
    //! Tensors and signatures for tests.

    use crate::engine::{DataType, Dim, Signature, Tensor, TensorSpec};
    use bytes::Bytes;

    /// A tensor of `f32`.
    pub(crate) fn floats(shape: &[usize], numbers: &[f32]) -> Tensor {
        assert_eq!(shape.iter().product::<usize>(), numbers.len());
        Tensor {
            datatype: DataType::Fp32,
            shape: shape.to_vec(),
            data: Bytes::from(numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>()),
        }
    }

    /// A tensor of `i64`.
    pub(crate) fn integers(shape: &[usize], numbers: &[i64]) -> Tensor {
        assert_eq!(shape.iter().product::<usize>(), numbers.len());
        Tensor {
            datatype: DataType::Int64,
            shape: shape.to_vec(),
            data: Bytes::from(numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>()),
        }
    }

    /// A tensor's spec; -1 is a free extent.
    pub(crate) fn spec(name: &str, datatype: DataType, shape: &[i64]) -> TensorSpec {
        TensorSpec {
            name: name.to_owned(),
            datatype,
            shape: shape.iter().map(|n| usize::try_from(*n).map_or(Dim::Free, Dim::Fixed)).collect(),
        }
    }

    /// A signature with an image input of 3 × 8 × 8 and these outputs.
    pub(crate) fn signature(outputs: &[(&str, &[i64])]) -> Signature {
        Signature {
            platform: "onnxruntime_onnx".into(),
            inputs: vec![spec("images", DataType::Fp32, &[-1, 3, 8, 8])],
            outputs: outputs.iter().map(|(name, shape)| spec(name, DataType::Fp32, shape)).collect(),
            defaulted: Vec::new(),
            unshaped: Vec::new(),
            left_out: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::*, *};

    #[test]
    fn tensors_come_back_as_they_are() {
        let outputs = [floats(&[1, 2], &[1.0, f32::NAN])];
        let answer =
            Task::Tensors.answer(&outputs, &signature(&[("y", &[-1, 2])]), &Labels::default(), None).unwrap();
        let Answer::Tensors(tensors) = answer else { panic!("expected tensors") };
        assert_eq!(tensors[0].shape, [1, 2]);
        assert_eq!(tensors[0].data, outputs[0].data);
    }

    #[test]
    fn more_classes_than_an_engine_leaves_are_asked_of_the_whole_output() {
        let task = |top_k| Task::Classify(Classify { top_k, ..Classify::default() });
        assert!(
            task(1).is_left_by(&task(5)) && task(5).is_left_by(&task(5)) && !task(6).is_left_by(&task(5))
        );
        assert!(Task::Tensors.is_left_by(&Task::Tensors));
    }

    #[test]
    fn a_task_on_a_model_of_several_outputs_must_name_its_own() {
        let signature = signature(&[("logits", &[-1, 10]), ("features", &[-1, 64])]);
        let labels = Labels::default();
        let resolve = |output: Option<&str>| {
            let embed = Embed { output: output.map(str::to_owned), ..Embed::default() };
            Task::Embed(embed).resolve(&signature, &labels, None, true)
        };
        assert_eq!(
            resolve(None).unwrap_err(),
            "the model has 2 outputs (\"logits\", \"features\"): choose one with embed.output"
        );
        assert_eq!(
            resolve(Some("feature")).unwrap_err(),
            "embed.output: the model has no output \"feature\"; it has \"logits\", \"features\""
        );
        assert!(resolve(Some("features")).is_ok());
    }
}
