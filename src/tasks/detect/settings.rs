//! Settings of a detector, and which of them belong together.

use crate::tasks::{Activation, Columns, Labels};

/// Which family of outputs a detector has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One output with a box, perhaps an objectness, and a score per class for each anchor.
    Yolo,
    /// Boxes, scores and classes in outputs of their own.
    Boxes,
    /// One output with a row of box, score and class number for each box that the model has sorted out itself.
    End2end,
}

impl Format {
    /// With their names in manifests.
    pub const ALL: [(&str, Format); 3] =
        [("yolo", Format::Yolo), ("boxes", Format::Boxes), ("end2end", Format::End2end)];
}

/// What the four numbers of a box are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoxFormat {
    /// Left, top, right, bottom.
    Xyxy,
    /// Top, left, bottom, right.
    Yxyx,
    /// Centre x, centre y, width, height.
    Cxcywh,
    /// Left, top, width, height.
    Xywh,
}

/// Which axis of a YOLO output holds boxes and scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orientation {
    /// `[1, 4 + C, A]`.
    ChannelsFirst,
    /// `[1, A, 4 + C]`.
    ChannelsLast,
}

/// Which column of scores is of no class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// The first, as SSD has it.
    First,
    /// The last, as DETR has it ("no object").
    Last,
}

/// What masks cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaskArea {
    /// The model's input.
    Input,
    /// Each its own box.
    Box,
}

/// The points of a body or a thing that a detector gives for each box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keypoints {
    /// How many.
    pub count: usize,
    /// Their names, in order; none if only the number was said.
    pub names: Labels,
}

/// Settings of a detector. What is open is found from the model when it is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Detect {
    /// Open: `boxes` for a model of several outputs, `yolo` for one; still open after resolving where the file says nothing of that
    /// one's shape.
    pub format: Option<Format>,
    /// `yolo` and `end2end`: the output to read; the only one when open.
    pub output: Option<String>,
    /// `boxes`: the output with `[1, N, 4]` or `[N, 4]`; open: `boxes`, `detection_boxes` or `dets`.
    pub boxes: Option<String>,
    /// `boxes`: the output with `[1, N]` or `[N]` scores, or `[1, N, C]` (or `[N, C]`) when there is no output of
    /// classes; open: `scores` or `detection_scores`, or that of the boxes if it is `[1, N, 5]`. The same output as that of the
    /// boxes: the fifth number of each is its score.
    pub scores: Option<String>,
    /// `boxes`: the output with `[1, N]` or `[N]` class numbers; open: `labels`, `classes` or `detection_classes`,
    /// where the model has it.
    pub classes: Option<String>,
    /// `boxes`: the output with the number of valid boxes; open: `num_detections`, where the model has it.
    pub count: Option<String>,
    /// The model's second input, if it takes a width and a height in pixels of which boxes come.
    pub size_input: Option<String>,
    /// Open: `cxcywh` for `yolo`, `yxyx` for an output named `detection_boxes`, `xyxy` otherwise.
    pub box_format: Option<BoxFormat>,
    /// Whether coordinates are parts of the input's size instead of pixels of it; open: only for `detection_boxes`.
    pub normalized: Option<bool>,
    /// `yolo`; open: found from the number of labels, else the shorter axis holds the channels.
    pub orientation: Option<Orientation>,
    /// `yolo`: whether the fifth channel is an objectness; open: found from the number of labels.
    pub objectness: Option<bool>,
    /// `end2end`: what the numbers of a row are; open: box, score and class.
    pub columns: Option<Columns>,
    /// `boxes`: what turns scores into those of an answer; open: nothing; refused where the output's name speaks of logits.
    pub activation: Option<Activation>,
    /// `boxes`, where scores are `[1, N, C]`: the column that is no class; labels count the others.
    pub background: Option<Background>,
    /// `boxes` and `end2end`, where classes are numbers: the one that the first label has (1 for models that leave 0 to the
    /// background); open: 1 for an output named `detection_classes`, else 0.
    pub first_class: Option<usize>,
    /// What stands behind the scores of an anchor or the numbers of a row, or in an output of its own: keypoints.
    pub keypoints: Option<Keypoints>,
    /// The output with masks: of all boxes (`boxes`), or of which each box says how they make up its own (prototypes).
    pub masks: Option<String>,
    /// `boxes`: what a mask covers; open: the input, where masks are of its size; others are refused.
    pub mask_area: Option<MaskArea>,
    /// A pixel is in a mask if its value is above this; open: 0 for prototypes, whose sums are logits, else 0.5.
    pub mask_threshold: Option<f32>,
    /// `yolo` and `end2end`: whether an angle in radians turns each box.
    pub angle: bool,
    /// How many prototypes there are, set by resolving.
    pub prototypes: Option<usize>,
    /// Boxes of a lower score are left out.
    pub score_min: f32,
    /// A box goes when it overlaps a better one of its class by more (intersection over union); 1 keeps all.
    pub iou_max: f32,
    /// At most this many boxes are answered, the best ones.
    pub detections_max: usize,
    /// Width and height of the model's image input in pixels, set by resolving; `None` where images keep their size.
    pub input: Option<[u32; 2]>,
}

impl Default for Detect {
    fn default() -> Detect {
        Detect {
            format: None,
            output: None,
            boxes: None,
            scores: None,
            classes: None,
            count: None,
            size_input: None,
            box_format: None,
            normalized: None,
            orientation: None,
            objectness: None,
            columns: None,
            activation: None,
            background: None,
            first_class: None,
            keypoints: None,
            masks: None,
            mask_area: None,
            mask_threshold: None,
            angle: false,
            prototypes: None,
            score_min: 0.25,
            iou_max: 0.5,
            detections_max: 300,
            input: None,
        }
    }
}

impl Detect {
    /// Nothing that is set is without effect.
    pub(super) fn refuse_settings_of_others(&self, format: Format) -> Result<(), String> {
        use Format::{Boxes, End2end, Yolo};
        let keys: [(&str, bool, &[Format]); 13] = [
            ("output", self.output.is_some(), &[Yolo, End2end]),
            ("orientation", self.orientation.is_some(), &[Yolo]),
            ("objectness", self.objectness.is_some(), &[Yolo]),
            ("columns", self.columns.is_some(), &[End2end]),
            ("boxes", self.boxes.is_some(), &[Boxes]),
            ("scores", self.scores.is_some(), &[Boxes]),
            ("classes", self.classes.is_some(), &[Boxes]),
            ("count", self.count.is_some(), &[Boxes]),
            ("activation", self.activation.is_some(), &[Boxes]),
            ("background", self.background.is_some(), &[Boxes]),
            ("first_class", self.first_class.is_some_and(|first| first != 0), &[Boxes, End2end]),
            ("mask_area", self.mask_area.is_some(), &[Boxes]),
            ("angle", self.angle, &[Yolo, End2end]),
        ];
        if let Some((key, _, of)) = keys.iter().find(|(_, set, of)| *set && !of.contains(&format)) {
            let of: Vec<String> = Format::ALL
                .iter()
                .filter(|(_, f)| of.contains(f))
                .map(|(name, _)| format!("{name:?}"))
                .collect();
            return Err(format!("detect.{key} is for detect.format = {}", of.join(" or ")));
        }
        let of_masks =
            [("mask_area", self.mask_area.is_some()), ("mask_threshold", self.mask_threshold.is_some())];
        match of_masks.iter().find(|(_, set)| *set && self.masks.is_none()) {
            Some((key, _)) => Err(format!("detect.{key} is for detect.masks, the output that has them")),
            None => Ok(()),
        }
    }
}
