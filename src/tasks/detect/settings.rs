//! Settings of a detector, and which of them apply together.

use crate::tasks::{Activation, Columns, Labels};

/// The families of outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One output with a box, perhaps an objectness, and a score per class for each anchor.
    Yolo,
    /// Boxes, scores and classes in separate outputs.
    Boxes,
    /// One output with a row of box, score and class number for each box that the model has sorted out itself.
    End2end,
}

impl Format {
    /// All formats, with their names in manifests.
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

/// The column of scores that belongs to no class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// The first, as in SSD.
    First,
    /// The last, as in DETR ("no object").
    Last,
}

/// What a model that needs to know the size for its boxes is told first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeOrder {
    /// The width, as in RT-DETR.
    Wh,
    /// The height, as in PaddleDetection.
    Hw,
}

impl SizeOrder {
    /// All orders, with their names in manifests.
    pub const ALL: [(&str, SizeOrder); 2] = [("wh", SizeOrder::Wh), ("hw", SizeOrder::Hw)];

    /// A width and a height in this order.
    pub fn of(self, [width, height]: [u32; 2]) -> [u32; 2] {
        match self {
            SizeOrder::Wh => [width, height],
            SizeOrder::Hw => [height, width],
        }
    }
}

/// What a mask covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaskArea {
    /// The model's input.
    Input,
    /// Its own box.
    Box,
}

/// The points of a body or a thing that a detector gives for each box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keypoints {
    /// How many.
    pub count: usize,
    /// Their names, in order; empty if only their number was set.
    pub names: Labels,
}

/// Settings of a detector. What is not set is found from the model when it is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Detect {
    /// If not set: `boxes` for a model with several outputs, `yolo` for one. It stays unset after resolving if the file does not give the
    /// shape of that one output.
    pub format: Option<Format>,
    /// `yolo` and `end2end`: the output to read. If not set: the only output.
    pub output: Option<String>,
    /// `boxes`: the output with `[1, N, 4]` or `[N, 4]`. If not set: `boxes`, `detection_boxes` or `dets`.
    pub boxes: Option<String>,
    /// `boxes`: the output with `[1, N]` or `[N]` scores, or, if there is no output of classes, with `[1, N, C]` or `[N, C]` of several
    /// classes. If not set: `scores` or `detection_scores`, or the output of the boxes if it is `[1, N, 5]`. If it is the output of the
    /// boxes, the fifth number of each box is its score.
    pub scores: Option<String>,
    /// `boxes`: the output with `[1, N]` or `[N]` class numbers. If not set: `labels`, `classes` or `detection_classes`, if the model has
    /// it.
    pub classes: Option<String>,
    /// `boxes`: the output with the number of valid boxes. If not set: `num_detections`, if the model has it.
    pub count: Option<String>,
    /// The model's second input, if it has one for the width and height in pixels to which boxes refer.
    pub size_input: Option<String>,
    /// The order of the two in that input. If not set: width, height.
    pub size_order: Option<SizeOrder>,
    /// If not set: `cxcywh` for `yolo`, `yxyx` for an output named `detection_boxes`, `xyxy` otherwise.
    pub box_format: Option<BoxFormat>,
    /// Whether coordinates are fractions of the input's size instead of pixels. If not set: only for `detection_boxes`.
    pub normalized: Option<bool>,
    /// `yolo`. If not set: found from the number of labels; else the shorter axis holds the channels.
    pub orientation: Option<Orientation>,
    /// `yolo`: whether the fifth channel is an objectness. If not set: found from the number of labels.
    pub objectness: Option<bool>,
    /// `end2end`: what the numbers of a row are. If not set: box, score and class.
    pub columns: Option<Columns>,
    /// `boxes`: how scores become those of the answer. If not set: unchanged, and an output whose name suggests logits is refused.
    pub activation: Option<Activation>,
    /// `boxes` with `[1, N, C]` scores: the column that is not a class; labels name the others.
    pub background: Option<Background>,
    /// `boxes` and `end2end` with class numbers: the number of the first label (1 for models that use 0 for the background). If not set: 1
    /// for an output named `detection_classes`, else 0.
    pub first_class: Option<usize>,
    /// Keypoints, which follow the scores of an anchor or the numbers of a row, or have an output of their own.
    pub keypoints: Option<Keypoints>,
    /// The output with masks: those of all boxes (`boxes`), or the prototypes from which each box combines its own.
    pub masks: Option<String>,
    /// `boxes`: what a mask covers. If not set: the input if masks have its size; other masks are refused.
    pub mask_area: Option<MaskArea>,
    /// A pixel is in a mask if its value is above this. If not set: 0 for prototypes, whose sums are logits, else 0.5.
    pub mask_threshold: Option<f32>,
    /// `yolo` and `end2end`: whether each box has an angle in radians. If not set: no.
    pub angle: Option<bool>,
    /// How many prototypes there are, set by resolving.
    pub prototypes: Option<usize>,
    /// Whether each class of a box that reaches the minimum score is a detection, not only its best.
    pub multi_label: bool,
    /// Boxes with a lower score are dropped.
    pub score_min: f32,
    /// A box is suppressed if it overlaps a better one of its class by more than this (intersection over union); 1 keeps all. If not set:
    /// 1 for boxes that the model has sorted out (`end2end`), else 0.5.
    pub iou_max: Option<f32>,
    /// At most this many boxes are answered: the best ones.
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
            size_order: None,
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
            angle: None,
            prototypes: None,
            multi_label: false,
            score_min: 0.25,
            iou_max: None,
            detections_max: 300,
            input: None,
        }
    }
}

impl Detect {
    /// Whether each box has an angle by which it is turned.
    pub(super) fn is_turned(&self) -> bool {
        self.angle == Some(true)
    }

    /// The overlap beyond which the weaker box goes.
    pub fn iou_max(&self) -> f32 {
        let is_sorted_out = self.format == Some(Format::End2end) || self.columns.is_some();
        self.iou_max.unwrap_or(if is_sorted_out { 1.0 } else { 0.5 })
    }

    /// Refuses settings that would have no effect with this format.
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
            ("angle", self.is_turned(), &[Yolo, End2end]),
        ];
        if let Some((key, _, of)) = keys.iter().find(|(_, set, of)| *set && !of.contains(&format)) {
            let of: Vec<String> = Format::ALL
                .iter()
                .filter(|(_, f)| of.contains(f))
                .map(|(name, _)| format!("{name:?}"))
                .collect();
            return Err(format!("detect.{key} is for detect.format = {}", of.join(" or ")));
        }
        let masks = ("masks, the output that has them", self.masks.is_some());
        let size = ("size_input, the input that takes a size", self.size_input.is_some());
        let of_another = [
            ("mask_area", self.mask_area.is_some(), masks),
            ("mask_threshold", self.mask_threshold.is_some(), masks),
            ("size_order", self.size_order.is_some(), size),
        ];
        match of_another.iter().find(|(_, set, (_, has))| *set && !has) {
            Some((key, _, (other, _))) => Err(format!("detect.{key} is for detect.{other}")),
            None => Ok(()),
        }
    }
}
