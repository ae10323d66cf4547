//! Segment: a class per pixel of the posted image.

mod enlarge;

use self::enlarge::{Grid, SCORES_MAX, Scores};
use super::{
    Labels, Mask, Output, Outputs, choose, is_one,
    planes::{Planes, both_ways, channels_last, extent, of_item},
    wrong_shape,
};
use crate::{
    engine::{ClassMap, DataType, Dim, Signature, TensorSpec, show},
    image::{Layout, Placement},
};

/// Settings of a segmentation model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Segment {
    /// The output to read. If not set: the only output.
    ///
    /// Scores per class are `[1, C, H, W]` or `[1, H, W, C]` (without the 1 for models that do not batch): the class with the highest score
    /// counts. One channel of scores is compared with the threshold; in models that batch it needs no axis of its own. Integers without a
    /// channel axis, `[1, H, W]`, are classes already.
    pub output: Option<String>,
    /// Where the class axis is. If not set: found from the number of labels; else from which extents can be those of an image.
    pub layout: Option<Layout>,
    /// For one channel of scores: class 1 from this value on, class 0 below. If not set: 0.5, which is right for probabilities; for logits
    /// it should be 0.
    pub threshold: Option<f32>,
    /// How a mask gets the posted image's size. If not set: `bilinear` for scores of fewer pixels than the input has, else `nearest`.
    pub enlarge: Option<Enlarge>,
    /// Whether the output is one channel of scores, set by resolving.
    pub one_channel: bool,
    /// Width and height of the model's image input in pixels, set by resolving; `None` where images keep their size.
    pub input: Option<[u32; 2]>,
}

/// How a mask gets from the output's size to the posted image's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enlarge {
    /// Each pixel has the class of the output's pixel that it lies on.
    Nearest,
    /// Each pixel has the class of the scores at its centre, between those of the output's pixels.
    Bilinear,
}

impl Enlarge {
    /// All ways, with their names in manifests.
    pub const ALL: [(&str, Enlarge); 2] = [("nearest", Enlarge::Nearest), ("bilinear", Enlarge::Bilinear)];
}

/// The threshold for probabilities.
const THRESHOLD: f32 = 0.5;

const SHAPE: &str =
    "[1, classes, height, width], [1, height, width, classes], or integers of [1, height, width]";

/// An output of transformers' models that holds masks; another output says how much of each class is in them.
const QUERIES: &str = "masks_queries_logits";

/// How an output is read.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reading {
    /// Scores, a plane per class.
    First { classes: Dim, height: Dim, width: Dim },
    /// Scores, interleaved.
    Last { height: Dim, width: Dim, classes: Dim },
    /// Class numbers.
    Classes { height: Dim, width: Dim },
}

impl Segment {
    pub(super) fn resolve(
        mut self,
        signature: &Signature,
        labels: &Labels,
        input: Option<[u32; 2]>,
        batch_axis: bool,
    ) -> Result<Segment, String> {
        if let Some(queries) = signature.outputs.iter().find(|output| output.name == QUERIES) {
            return Err(format!(
                "output {:?} of shape {} has a mask for each query (Mask2Former, MaskFormer), not one for each class: have the network \
                 put them together before it is exported, as docs/pytorch.md says (a segmenter)",
                queries.name,
                show(&queries.shape)
            ));
        }
        let output = choose(signature, self.output.as_deref(), "segment.output")?;
        if self.enlarge == Some(Enlarge::Bilinear) && is_integers(output.datatype) {
            return Err(format!(
                "segment.enlarge = \"bilinear\" is for scores: output {:?} is {}, and there is no class between two others; leave it out, \
                 or have the network give scores (without its last ArgMax)",
                output.name, output.datatype
            ));
        }
        self.input = input;
        // If the file leaves this open, resolving is repeated once a shape has been seen.
        let untold = match output.shape[..] {
            [] => true,
            [_, Dim::Free, _, Dim::Free] => input.is_some() && self.layout.is_none(),
            _ => false,
        };
        if !untold {
            let reading = self.reading_of_file(output, signature, labels, batch_axis)?;
            if let Reading::First { classes, .. } | Reading::Last { classes, .. } = reading
                && let Dim::Fixed(classes) = classes
            {
                self.one_channel = classes == 1;
                if let Some(threshold) =
                    self.threshold.filter(|threshold| classes > 1 && *threshold != THRESHOLD)
                {
                    return Err(format!(
                        "segment.threshold = {threshold} is only read of one channel of scores: output {:?} has {classes}, of which the \
                         highest counts",
                        output.name
                    ));
                }
                labels.fit(&output.name, classes.max(2)).map_err(|why| match classes {
                    1 => format!(
                        "{why}: a single channel of scores tells two, the background first; where its values are class numbers, export \
                         them as integers"
                    ),
                    _ => why,
                })?;
            }
            // The layout is settled for every size that an answer may have.
            self.layout = match reading {
                Reading::First { .. } => Some(Layout::Nchw),
                Reading::Last { .. } => Some(Layout::Nhwc),
                Reading::Classes { .. } => self.layout,
            };
        }
        self.output = Some(output.name.clone());
        Ok(self)
    }

    /// How an engine may find the classes, if the output holds scores whose axes are known, and nobody needs the scores after that.
    pub(super) fn class_map(&self, signature: &Signature) -> Option<ClassMap> {
        let output =
            signature.outputs.iter().position(|output| Some(&output.name) == self.output.as_ref())?;
        let TensorSpec { datatype, ref shape, .. } = signature.outputs[output];
        let scores = matches!(datatype, DataType::Fp32 | DataType::Fp16);
        let last = self.layout? == Layout::Nhwc;
        let size = match shape[..] {
            [.., height, width, _] if last => [width, height],
            [.., height, width] if !last => [width, height],
            _ => [Dim::Free; 2],
        };
        let compared = scores && self.enlarge_of(size, self.input) == Enlarge::Nearest;
        compared.then_some(ClassMap { output, last, threshold: self.threshold() })
    }

    /// The output, if it is compared with a threshold that is not set.
    pub fn compared_unsaid<'a>(&self, signature: &'a Signature) -> Option<&'a str> {
        let is_unsaid = self.one_channel && self.threshold.is_none();
        let output = signature.outputs.iter().find(|output| Some(&output.name) == self.output.as_ref())?;
        is_unsaid.then_some(&*output.name)
    }

    fn threshold(&self) -> f32 {
        self.threshold.unwrap_or(THRESHOLD)
    }

    /// How the scores of an output of this width and height are enlarged. Those of all pixels of the input gain little by what lies
    /// between them, and have many times the bytes of the classes that a GPU would send back instead.
    fn enlarge_of(&self, size: [Dim; 2], input: Option<[u32; 2]>) -> Enlarge {
        let is_whole = input.is_some_and(|input| size == input.map(|side| Dim::Fixed(side as usize)));
        self.enlarge.unwrap_or(if is_whole { Enlarge::Nearest } else { Enlarge::Bilinear })
    }

    /// The mask at the posted image's size; without a placement, at the output's own size.
    pub(super) fn answer(
        &self,
        outputs: &Outputs<'_>,
        labels: &Labels,
        placement: Option<&Placement>,
    ) -> Result<Mask, String> {
        let output = outputs.get(self.output.as_deref())?;
        let shape = output.shape();
        let input = self.input.or(placement.map(|placement| placement.input.into()));
        let reading = self.reading(output.name, output.tensor.datatype, &shape, labels, input)?;
        let (Reading::First { height, width, .. }
        | Reading::Last { height, width, .. }
        | Reading::Classes { height, width }) = reading;
        let enlarge = self.enlarge_of([width, height], input);
        let size @ [width, height] = [extent(width), extent(height)];
        if width == 0 || height == 0 {
            return Err(wrong_shape(output.name, &shape, SHAPE));
        }
        let source = placement.map_or([width as u32, height as u32], |placement| placement.source.into());
        let grid = placement
            .filter(|_| enlarge == Enlarge::Bilinear)
            .map(|placement| Grid::new(placement, input.unwrap_or(source), size));
        let classes = match reading {
            Reading::Classes { .. } => given(&output)?,
            Reading::First { classes, .. } | Reading::Last { classes, .. } => {
                let values = output.numbers()?;
                let planes = matches!(reading, Reading::First { .. });
                let scores = Scores { values: &values, classes: extent(classes), planes };
                if let Some(grid) = grid {
                    let classes = match scores.classes {
                        1 => grid.above(&scores, self.threshold()),
                        _ => grid.best(&scores, &self.best(&output, &scores)?, SCORES_MAX),
                    };
                    return Ok(Mask::new(source[0], source[1], classes?, labels));
                }
                self.best(&output, &scores)?
            }
        };
        let Some(placement) = placement else {
            return Ok(Mask::new(source[0], source[1], classes, labels));
        };
        let [input_width, input_height] = input.unwrap_or(source);
        let columns = nearest(source[0], input_width, width, |x| placement.from_source(x, 0.0).0);
        let rows = nearest(source[1], input_height, height, |y| placement.from_source(0.0, y).1);
        let lines = rows.into_iter().map(|row| &classes[row * width..(row + 1) * width]);
        let mapped = lines.flat_map(|line| columns.iter().map(|x| line[*x])).collect();
        Ok(Mask::new(source[0], source[1], mapped, labels))
    }

    /// From scores to the class of each pixel: the best class, the first if several are equal; a single channel is compared with the
    /// threshold.
    fn best(&self, output: &Output<'_>, scores: &Scores<'_>) -> Result<Vec<u16>, String> {
        let Scores { values: scores, classes, planes } = *scores;
        if classes == 0 || classes > usize::from(u16::MAX) + 1 {
            return Err(wrong_shape(output.name, &output.shape(), "1 to 65536 classes"));
        }
        if classes == 1 {
            let threshold = self.threshold();
            return Ok(scores.iter().map(|score| u16::from(*score >= threshold)).collect());
        }
        let pixels = scores.len() / classes;
        if planes {
            let mut best = scores[..pixels].to_vec();
            let mut found = vec![0; pixels];
            for class in 1..classes {
                let plane = &scores[class * pixels..(class + 1) * pixels];
                for ((score, best), found) in plane.iter().zip(&mut best).zip(&mut found) {
                    if score > best {
                        (*best, *found) = (*score, class as u16);
                    }
                }
            }
            Ok(found)
        } else {
            Ok(scores
                .chunks_exact(classes)
                .map(|scores| {
                    let mut found = 0;
                    for (class, score) in scores.iter().enumerate() {
                        if *score > scores[found] {
                            found = class;
                        }
                    }
                    found as u16
                })
                .collect())
        }
    }

    /// The meaning of the axes, from the model file. With a batch axis, three axes leave none for classes.
    fn reading_of_file(
        &self,
        output: &TensorSpec,
        signature: &Signature,
        labels: &Labels,
        batch_axis: bool,
    ) -> Result<Reading, String> {
        if !is_integers(output.datatype)
            && let Some(Planes { channels, height, width, .. }) =
                Planes::only_beside_a_batch(output, signature, batch_axis, ("segment.layout", self.layout))?
        {
            return Ok(Reading::First { classes: channels, height, width });
        }
        self.reading(&output.name, output.datatype, &output.shape, labels, self.input)
    }

    /// The meaning of the axes, for a model whose input has this width and height.
    fn reading(
        &self,
        name: &str,
        datatype: DataType,
        shape: &[Dim],
        labels: &Labels,
        input: Option<[u32; 2]>,
    ) -> Result<Reading, String> {
        let integers = is_integers(datatype);
        let [a, b, c] = match *shape {
            [height, width] if integers => return Ok(Reading::Classes { height, width }),
            [batch, height, width] if integers && is_one(batch) => {
                return Ok(Reading::Classes { height, width });
            }
            _ => of_item(shape).ok_or_else(|| wrong_shape(name, shape, SHAPE))?,
        };
        let last = channels_last([a, b, c], self.layout, labels.len(), input)
            .ok_or_else(|| both_ways(name, shape, "segment.layout"))?;
        let [classes, height, width] = if last { [c, a, b] } else { [a, b, c] };
        Ok(match last {
            // A single channel of integers is classes, not scores.
            _ if integers && classes == Dim::Fixed(1) => Reading::Classes { height, width },
            true => Reading::Last { height, width, classes },
            false => Reading::First { classes, height, width },
        })
    }
}

/// Whether numbers of this type are classes, unless there is an axis for scores.
fn is_integers(datatype: DataType) -> bool {
    !matches!(datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64)
}

/// The class numbers that the model gives.
fn given(output: &Output<'_>) -> Result<Vec<u16>, String> {
    output
        .numbers()?
        .into_iter()
        .map(|number| {
            if (0.0..=65535.0).contains(&number) {
                Ok(number as u16)
            } else {
                Err(format!("output {:?} has a class {number}, expected 0 to 65535", output.name))
            }
        })
        .collect()
}

/// For each pixel of the posted image along one axis, the element of the output under the pixel's centre. The model must have seen all of
/// the image. `to_input` maps to pixels of the model's input.
fn nearest(source: u32, input: u32, output: usize, to_input: impl Fn(f32) -> f32) -> Vec<usize> {
    let ratio = output as f32 / input as f32;
    (0..source).map(|pixel| ((to_input(pixel as f32 + 0.5) * ratio) as usize).min(output - 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};
    use crate::{
        engine::Tensor,
        image::{Preprocess, Resize},
    };

    fn run(
        task: Segment,
        tensor: &Tensor,
        labels: &str,
        placement: Option<&Placement>,
    ) -> Result<Mask, String> {
        let labels = Labels::parse(labels)?;
        let mut signature = signature(&[("map", &[])]);
        signature.outputs[0].datatype = tensor.datatype;
        let task = task.resolve(&signature, &labels, Some([4, 4]), true)?;
        let tensors = [tensor.clone()];
        task.answer(&Outputs::new(&tensors, &signature)?, &labels, placement)
    }

    /// Scores of three classes over 2 × 2 pixels whose best are 0 2 / 1 0 (the last pixel is a tie).
    const SCORES: [[f32; 3]; 4] = [[9.0, 1.0, 2.0], [0.0, 1.0, 2.0], [0.0, 5.0, -1.0], [3.0, 3.0, 3.0]];
    const BEST: [u16; 4] = [0, 2, 1, 0];

    fn planes() -> Vec<f32> {
        (0..3).flat_map(|c| SCORES.iter().map(move |p| p[c])).collect()
    }

    #[test]
    fn the_best_class_counts_in_both_layouts() {
        let labels = "background\ncat\ndog";
        let first = run(Segment::default(), &floats(&[1, 3, 2, 2], &planes()), labels, None).unwrap();
        assert_eq!(first.classes, BEST);
        let last = run(Segment::default(), &floats(&[1, 2, 2, 3], &SCORES.concat()), labels, None).unwrap();
        assert_eq!(last.classes, BEST);
        let whole = run(Segment::default(), &floats(&[3, 2, 2], &planes()), labels, None).unwrap();
        assert_eq!(whole.classes, BEST);
        assert_eq!((whole.width, whole.height), (2, 2));
    }

    #[test]
    fn an_engine_compares_scores_of_all_of_the_inputs_pixels_and_others_if_it_is_said() {
        let compared = |shape: &[i64], enlarge| {
            let signature = signature(&[("map", shape)]);
            let task = Segment { enlarge, ..Segment::default() };
            let task = task.resolve(&signature, &Labels::default(), Some([64, 48]), true).unwrap();
            task.class_map(&signature).is_some()
        };
        assert!(compared(&[-1, 21, 48, 64], None));
        assert!(compared(&[-1, 48, 64, 21], None));
        assert!(!compared(&[-1, 21, -1, -1], None), "nobody knows how many there will be");
        assert!(!compared(&[-1, 21, 12, 16], None), "what lies between them counts");
        assert!(!compared(&[-1, 21, 48, 64], Some(Enlarge::Bilinear)));
        assert!(compared(&[-1, 21, 12, 16], Some(Enlarge::Nearest)));
    }

    #[test]
    fn a_layout_that_cannot_be_told_must_be_set() {
        let tensor = floats(&[1, 3, 1, 3], &[0.0; 9]);
        let error = run(Segment::default(), &tensor, "", None).unwrap_err();
        assert_eq!(error, "output \"map\" of shape [1, 3, 1, 3] can be read both ways: set segment.layout");
        let task = Segment { layout: Some(Layout::Nhwc), ..Segment::default() };
        let mask = run(task, &tensor, "", None).unwrap();
        assert_eq!((mask.width, mask.height), (1, 3));
    }

    #[test]
    fn more_classes_than_pixels_of_a_side_are_told_by_the_extents_of_the_image() {
        let check = |input: [u32; 2], shape: &[i64], expected: Option<Layout>| {
            let signature = signature(&[("map", shape)]);
            let found = Segment::default().resolve(&signature, &Labels::default(), Some(input), true);
            match (found, expected) {
                (Ok(task), Some(layout)) => assert_eq!(task.layout, Some(layout), "{input:?} {shape:?}"),
                (Err(error), None) => assert!(error.ends_with("set segment.layout"), "{error}"),
                (found, _) => panic!("{found:?} for {input:?} {shape:?}"),
            }
        };
        let (nchw, nhwc) = (Some(Layout::Nchw), Some(Layout::Nhwc));
        check([512, 512], &[-1, 150, 128, 128], nchw);
        check([512, 512], &[-1, 128, 128, 150], nhwc);
        check([512, 512], &[-1, 2, 512, 512], nchw);
        // A fixed batch axis, a side that is rounded up, and one that is rounded down.
        check([1024, 512], &[1, 150, 64, 128], nchw);
        check([1025, 513], &[1, 65, 129, 150], nhwc);
        check([1025, 513], &[1, 150, 64, 128], nchw);
        // Not the image's proportions, but a square.
        check([640, 480], &[1, 150, 100, 100], nchw);
        // Neither reading matches the image, or both do.
        check([512, 512], &[1, 19, 100, 120], None);
        check([1024, 512], &[1, 32, 64, 128], None);
        check([64, 64], &[1, 64, 64, 64], None);
        // An image of any size.
        let signature = signature(&[("map", &[-1, 150, 128, 128])]);
        let task = Segment::default().resolve(&signature, &Labels::default(), None, true).unwrap();
        assert_eq!(task.layout, nchw);
    }

    #[test]
    fn classes_that_are_given_stay() {
        let mask = run(Segment::default(), &integers(&[1, 2, 2], &[0, 7, 300, 1]), "", None).unwrap();
        assert_eq!(mask.classes, [0, 7, 300, 1]);
        let mask = run(Segment::default(), &integers(&[1, 1, 2, 2], &[0, 7, 300, 1]), "", None).unwrap();
        assert_eq!(mask.classes, [0, 7, 300, 1]);
        let error = run(Segment::default(), &integers(&[1, 1, 2], &[0, -1]), "", None).unwrap_err();
        assert_eq!(error, "output \"map\" has a class -1, expected 0 to 65535");
    }

    #[test]
    fn one_channel_is_compared_with_the_threshold() {
        let tensor = floats(&[1, 1, 2, 2], &[0.2, 0.5, 0.7, 0.49]);
        let mask = run(Segment::default(), &tensor, "", None).unwrap();
        assert_eq!(mask.classes, [0, 1, 1, 0]);
        let task = Segment { threshold: Some(0.3), ..Segment::default() };
        assert_eq!(run(task, &tensor, "", None).unwrap().classes, [0, 1, 1, 1]);
    }

    #[test]
    fn one_channel_of_a_model_that_batches_needs_no_axis_of_its_own() {
        let labels = Labels::parse("background\nspot").unwrap();
        let tensors = [floats(&[1, 3, 2], &[0.2, 0.5, 0.7, 0.49, 0.1, 0.9])];
        // As wide as there are classes; and the image input has a fixed batch axis, too.
        for (input, output) in [([-1, 3, 8, 8], [-1, 3, 2]), ([1, 3, 8, 8], [1, 3, 2])] {
            let mut signature = signature(&[("map", &output)]);
            signature.inputs = vec![spec("images", DataType::Fp32, &input)];
            let task = Segment::default().resolve(&signature, &labels, None, true).unwrap();
            let mask = task.answer(&Outputs::new(&tensors, &signature).unwrap(), &labels, None).unwrap();
            assert_eq!((mask.width, mask.height, &mask.classes[..]), (2, 3, &[0, 1, 1, 0, 0, 1][..]));
        }
        // Another output shows that the model does not batch: then the first axis may be the height.
        let signature = signature(&[("map", &[-1, 3, 2]), ("other", &[5])]);
        let task = Segment { output: Some("map".to_owned()), ..Segment::default() };
        let error = task.clone().resolve(&signature, &labels, None, true).unwrap_err();
        assert!(error.contains("of shape [?, 3, 2]") && error.contains("add a channel axis"), "{error}");
        // It is the height if the image has no batch axis.
        let planes = [floats(&[1, 3, 2], &[1.0, 2.0, 2.0, 1.0, 1.0, 1.0]), floats(&[5], &[0.0; 5])];
        let task = task.resolve(&signature, &labels, None, false).unwrap();
        let mask = task.answer(&Outputs::new(&planes, &signature).unwrap(), &labels, None).unwrap();
        assert_eq!((mask.width, mask.height, &mask.classes[..]), (3, 1, &[1, 0, 0][..]));
    }

    #[test]
    fn letterbox_padding_is_removed() {
        // 8 × 4 posted, input 4 × 4: scale 2, one row of padding above and below.
        let placement = Preprocess { resize: Resize::Letterbox, ..Preprocess::new(4, 4) }.placement(8, 4);
        #[rustfmt::skip]
        let tensor = integers(&[1, 4, 4], &[
            9, 9, 9, 9,
            1, 2, 3, 4,
            5, 6, 7, 8,
            9, 9, 9, 9,
        ]);
        let mask = run(Segment::default(), &tensor, "", Some(&placement)).unwrap();
        assert_eq!((mask.width, mask.height), (8, 4));
        #[rustfmt::skip]
        assert_eq!(mask.classes, [
            1, 1, 2, 2, 3, 3, 4, 4,
            1, 1, 2, 2, 3, 3, 4, 4,
            5, 5, 6, 6, 7, 7, 8, 8,
            5, 5, 6, 6, 7, 7, 8, 8,
        ]);
    }

    #[test]
    fn a_coarse_output_for_images_of_any_size_is_spread_over_the_image() {
        let labels = Labels::parse("a\nb").unwrap();
        let signature = signature(&[("map", &[-1, 2, -1, -1])]);
        let task = Segment::default().resolve(&signature, &labels, None, true).unwrap();
        let placement = Preprocess { resize: Resize::Exact, ..Preprocess::new(4, 2) }.placement(4, 2);
        // Two classes over 1 × 2: as many columns as classes; the model file has settled the layout.
        let tensors = [floats(&[1, 2, 1, 2], &[1.0, 0.0, 0.0, 1.0])];
        let outputs = Outputs::new(&tensors, &signature).unwrap();
        let mask = task.answer(&outputs, &labels, Some(&placement)).unwrap();
        assert_eq!((mask.width, mask.height), (4, 2));
        assert_eq!(mask.classes, [0, 0, 1, 1, 0, 0, 1, 1]);
    }

    #[test]
    fn masks_of_queries_are_no_masks_of_classes() {
        let signature = signature(&[
            ("class_queries_logits", &[-1, 100, 151]),
            ("masks_queries_logits", &[-1, 100, 96, 96]),
        ]);
        let task = Segment { output: Some("masks_queries_logits".to_owned()), ..Segment::default() };
        let error = task.resolve(&signature, &Labels::default(), Some([384, 384]), true).unwrap_err();
        assert!(error.contains("has a mask for each query (Mask2Former, MaskFormer)"), "{error}");
    }

    #[test]
    fn a_pixel_has_the_class_under_its_centre() {
        assert_eq!(nearest(4, 4, 3, |x| x), [0, 1, 1, 2]);
        // 4 × 4 posted and seen, output of 3 × 3.
        let placement = Preprocess { resize: Resize::Stretch, ..Preprocess::new(4, 4) }.placement(4, 4);
        let tensor = integers(&[1, 3, 3], &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let mask = run(Segment::default(), &tensor, "", Some(&placement)).unwrap();
        assert_eq!(mask.classes, [1, 2, 2, 3, 4, 5, 5, 6, 4, 5, 5, 6, 7, 8, 8, 9]);
    }

    #[test]
    fn coarse_outputs_are_spread() {
        // 8 × 4 posted, 4 × 4 seen, output of 2 × 2.
        let placement = Preprocess { resize: Resize::Stretch, ..Preprocess::new(4, 4) }.placement(8, 4);
        let tensor = integers(&[1, 2, 2], &[1, 2, 3, 4]);
        let mask = run(Segment::default(), &tensor, "", Some(&placement)).unwrap();
        #[rustfmt::skip]
        assert_eq!(mask.classes, [
            1, 1, 1, 1, 2, 2, 2, 2,
            1, 1, 1, 1, 2, 2, 2, 2,
            3, 3, 3, 3, 4, 4, 4, 4,
            3, 3, 3, 3, 4, 4, 4, 4,
        ]);
    }

    #[test]
    fn wrong_shapes_and_nan_are_errors() {
        let error = run(Segment::default(), &floats(&[2, 3, 2, 2], &[0.0; 24]), "", None).unwrap_err();
        assert!(error.starts_with("output \"map\" has shape [2, 3, 2, 2], expected"), "{error}");
        let error =
            run(Segment::default(), &floats(&[1, 2, 1, 3], &[f32::NAN; 6]), "a\nb", None).unwrap_err();
        assert!(error.contains("not a number"), "{error}");
        assert!(run(Segment::default(), &floats(&[1, 2, 0, 3], &[]), "a\nb", None).is_err());
        let labels = Labels::parse("a\nb").unwrap();
        let wide = signature(&[("map", &[-1, 21, 64, 64])]);
        let task = Segment { threshold: Some(0.3), ..Segment::default() };
        let error = task.resolve(&wide, &Labels::default(), None, true).unwrap_err();
        let told = "segment.threshold = 0.3 is only read of one channel of scores: output \"map\" has 21, of which the \
                    highest counts";
        assert_eq!(error, told);
        let error = Segment::default().resolve(&wide, &labels, None, true).unwrap_err();
        assert_eq!(error, "the labels file has 2 labels, output \"map\" has 21 classes");
        let three = Labels::parse("a\nb\nc").unwrap();
        let one = signature(&[("map", &[-1, 1, 64, 64])]);
        let error = Segment::default().resolve(&one, &three, None, true).unwrap_err();
        assert!(error.ends_with("where its values are class numbers, export them as integers"), "{error}");
    }
}
