//! What a detector gives beside its boxes. The numbers follow the scores of an anchor, or the numbers of a row that the model has sorted
//! out. They are of one kind: keypoints, the factors of prototypes in the box's mask, or the angle of the box.

use super::{BoxFormat, Detect, Format};
use crate::{
    engine::{Dim, Signature},
    tasks::{choose, is_one, wrong_shape},
};
use std::fmt::{self, Display, Formatter};

/// The settings that read what a model gives beside boxes.
pub(super) const OTHERS: &str = "what a model gives beside its boxes is read by detect.keypoints (pose), detect.masks (segment) or \
                                 detect.angle (OBB)";

/// What the numbers that follow a box are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Follows {
    /// There are none.
    Nothing,
    /// This many points of x and y, or of x, y and a score.
    Keypoints(usize),
    /// A factor for each of this many mask prototypes.
    Factors(usize),
    /// An angle in radians.
    Angle,
}

impl Follows {
    /// How many numbers there may be.
    pub(super) fn widths(self) -> [usize; 2] {
        match self {
            Follows::Nothing => [0; 2],
            Follows::Keypoints(count) => [2 * count, 3 * count],
            Follows::Factors(count) => [count; 2],
            Follows::Angle => [1; 2],
        }
    }
}

impl Display for Follows {
    /// Written as a term to add to a number.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Follows::Nothing => Ok(()),
            Follows::Keypoints(count) => write!(f, " + {count} x 2 or 3 (keypoints)"),
            Follows::Factors(count) => write!(f, " + {count} (masks)"),
            Follows::Angle => f.write_str(" + 1 (angle)"),
        }
    }
}

impl Detect {
    /// What the numbers that follow a box are, for a resolved detector.
    pub(super) fn follows(&self) -> Follows {
        match (&self.keypoints, self.prototypes) {
            _ if self.format == Some(Format::Boxes) => Follows::Nothing,
            (Some(keypoints), _) => Follows::Keypoints(keypoints.count),
            (None, Some(count)) => Follows::Factors(count),
            (None, None) if self.is_turned() => Follows::Angle,
            (None, None) => Follows::Nothing,
        }
    }

    /// For detectors whose single output holds everything about a box. Counts the mask prototypes, and refuses settings that exclude each
    /// other.
    pub(super) fn resolve_beside(&mut self, signature: &Signature) -> Result<(), String> {
        let said = [
            ("detect.keypoints", self.keypoints.is_some()),
            ("detect.masks", self.masks.is_some()),
            ("detect.angle", self.is_turned()),
        ];
        let said: Vec<&str> = said.into_iter().filter(|(_, is_said)| *is_said).map(|(key, _)| key).collect();
        if let [one, other, ..] = said[..] {
            return Err(format!(
                "{one} and {other} exclude each other: the numbers that follow a box are those of one of them"
            ));
        }
        if self.is_turned() && self.box_format.is_some_and(|format| format != BoxFormat::Cxcywh) {
            return Err("detect.angle turns a box about its centre: leave out detect.box_format, which is \"cxcywh\" then".to_owned());
        }
        if self.is_turned() {
            self.box_format = Some(BoxFormat::Cxcywh);
        }
        if self.masks.is_some() {
            let output = choose(signature, self.masks.as_deref(), "detect.masks")?;
            self.prototypes = match output.shape[..] {
                [batch, Dim::Fixed(count), _, _] if is_one(batch) && count > 0 => Some(count),
                _ => return Err(wrong_shape(&output.name, &output.shape, PROTOTYPES)),
            };
        }
        Ok(())
    }

    /// The output that holds the boxes, if the only other output is that of the prototypes.
    pub(super) fn beside_masks<'a>(&self, signature: &'a Signature) -> Option<&'a str> {
        let masks = self.masks.as_deref()?;
        match &signature.outputs[..] {
            [a, b] if a.name == masks => Some(&b.name),
            [a, b] if b.name == masks => Some(&a.name),
            _ => None,
        }
    }
}

/// The shape that prototypes must have.
pub(super) const PROTOTYPES: &str = "[1, prototypes, rows, columns] with as many prototypes as the file says";

#[cfg(test)]
mod tests {
    use super::{
        super::{Detection, Keypoints, testing::*},
        *,
    };
    use crate::{
        engine::Tensor,
        image::{Preprocess, Resize},
        tasks::{Labels, testing::*},
    };
    use std::f32::consts::FRAC_PI_4;

    fn pose(names: &[&str]) -> Detect {
        let names = Labels::of(names.iter().copied());
        Detect { keypoints: Some(Keypoints { count: 2, names }), ..Detect::default() }
    }

    fn turned() -> Detect {
        Detect { angle: Some(true), ..Detect::default() }
    }

    fn output(task: Detect, tensor: Tensor, labels: &str) -> Result<Vec<Detection>, String> {
        let file: Vec<i64> = tensor.shape.iter().map(|extent| *extent as i64).collect();
        // 200 x 100 posted, the model's 100 x 100: scale 2, 25 rows of padding above and below.
        let placement =
            Preprocess { resize: Resize::Letterbox, ..Preprocess::new(100, 100) }.placement(200, 100);
        detections(task, &[("output0", &file, tensor)], labels, Some(&placement))
    }

    /// Two anchors, or rows: one with these numbers, and one of zeros.
    fn yolo(
        task: Detect,
        anchor: &[f32],
        channels_first: bool,
        labels: &str,
    ) -> Result<Vec<Detection>, String> {
        let (width, none) = (anchor.len(), vec![0.0; anchor.len()]);
        let tensor = match channels_first {
            true => {
                floats(&[1, width, 2], &anchor.iter().flat_map(|number| [*number, 0.0]).collect::<Vec<_>>())
            }
            false => floats(&[1, 2, width], &[anchor, &none].concat()),
        };
        output(task, tensor, labels)
    }

    type Point = (Option<String>, f32, f32, Option<f32>);

    fn points(found: &[Detection]) -> Vec<Point> {
        let [found] = found else { panic!("{found:?}") };
        let point = |p: &super::super::Keypoint| (p.label.as_deref().map(str::to_owned), p.x, p.y, p.score);
        found.keypoints.iter().map(point).collect()
    }

    const FISH: [f32; 5] = [50.0, 50.0, 20.0, 10.0, 0.9];
    const SCORED: [f32; 6] = [45.0, 50.0, 0.75, 0.0, 100.0, 0.25];

    #[test]
    fn keypoints_behind_the_scores_are_points_of_the_posted_image() {
        let (head, tail) = (Some("head".to_owned()), Some("tail".to_owned()));
        for channels_first in [true, false] {
            let three =
                yolo(pose(&["head", "tail"]), &[&FISH[..], &SCORED].concat(), channels_first, "").unwrap();
            assert_eq!([three[0].x0, three[0].y0, three[0].x1, three[0].y1], [80.0, 40.0, 120.0, 60.0]);
            // The second lies in the padding, below the image.
            assert_eq!(
                points(&three),
                [(head.clone(), 90.0, 50.0, Some(0.75)), (tail.clone(), 0.0, 150.0, Some(0.25))]
            );
            let two = [&FISH[..], &[45.0, 50.0, 0.0, 100.0]].concat();
            let two = yolo(pose(&[]), &two, channels_first, "fish").unwrap();
            assert_eq!(points(&two), [(None, 90.0, 50.0, None), (None, 0.0, 150.0, None)]);
        }
        // An objectness, two classes, then the points.
        let anchor = [&[50.0, 50.0, 20.0, 10.0, 0.5, 0.1, 0.8], &SCORED[..]].concat();
        let both = yolo(pose(&[]), &anchor, false, "cat\ndog").unwrap();
        assert_eq!((both[0].index, both[0].score), (1, 0.4));
        assert_eq!(points(&both)[0], (None, 90.0, 50.0, Some(0.75)));
    }

    #[test]
    fn keypoints_and_angles_behind_rows_that_are_sorted_out_belong_to_their_rows() {
        let rows = |task: Detect, rows: &[&[f32]]| {
            let tensor = floats(&[1, rows.len(), rows[0].len()], &rows.concat());
            output(Detect { format: Some(Format::End2end), ..task }, tensor, "fish")
        };
        let row = [&[40.0, 45.0, 60.0, 55.0, 0.9, 0.0], &SCORED[..]].concat();
        let weak = [0.0; 12];
        assert_eq!(points(&rows(pose(&[]), &[&weak, &row]).unwrap())[0], (None, 90.0, 50.0, Some(0.75)));
        let found = rows(turned(), &[&[50.0, 50.0, 20.0, 10.0, 0.9, 0.0, 0.0]]).unwrap();
        assert_eq!(found[0].corners, Some([[120.0, 60.0], [80.0, 60.0], [80.0, 40.0], [120.0, 40.0]]));
        let error = rows(pose(&[]), &[&[0.0; 11]]).unwrap_err();
        assert!(
            error.contains("6 or more numbers a row (box, score, class, rest) + 2 x 2 or 3 (keypoints)"),
            "{error}"
        );
        let columns = super::super::Columns::of(&["box", "class", "score"]);
        let error = rows(Detect { columns, ..pose(&[]) }, &[&weak]).unwrap_err();
        assert!(error.contains("\"rest\" at its end stands for what follows"), "{error}");
    }

    #[test]
    fn turned_boxes_have_corners_and_cover_others_by_what_they_share_themselves() {
        // Two thin boxes side by side, 8 apart across: the upright boxes around them overlap most of each other.
        let anchor = |x: f32, y: f32, score: f32, angle: f32| vec![x, y, 40.0, 4.0, score, angle];
        let shift = 4.0 * 2.0_f32.sqrt();
        let anchors = [
            anchor(50.0, 50.0, 0.9, FRAC_PI_4),
            anchor(50.0 - shift, 50.0 + shift, 0.8, FRAC_PI_4),
            // This one lies on the first, and is suppressed.
            anchor(51.0, 51.0, 0.7, FRAC_PI_4),
        ];
        let tensor = floats(&[1, 3, 6], &anchors.concat());
        let found = output(turned(), tensor, "ship").unwrap();
        assert_eq!(found.iter().map(|found| found.score).collect::<Vec<_>>(), [0.9, 0.8]);
        let (along, across) = (20.0 * FRAC_PI_4.cos(), 2.0 * FRAC_PI_4.cos());
        // The corner at the right and below, where x is turned towards y, then around; twice as far and 25 rows up in the posted image.
        let expected = [[along - across, along + across], [-along - across, across - along]];
        for (corner, [x, y]) in found[0].corners.unwrap().iter().zip(expected) {
            let [dx, dy] = [corner[0] - 2.0 * (50.0 + x), corner[1] - 2.0 * (25.0 + y)];
            assert!(dx.abs() < 1e-3 && dy.abs() < 1e-3, "{:?}", found[0].corners);
        }
        let reach = 2.0 * (along + across);
        let edges = [found[0].x0, found[0].y0, found[0].x1, found[0].y1];
        for (edge, expected) in
            edges.into_iter().zip([100.0 - reach, 50.0 - reach, 100.0 + reach, 50.0 + reach])
        {
            assert!((edge - expected).abs() < 1e-3, "{edges:?}");
        }
    }

    #[test]
    fn a_box_of_no_width_or_less_is_none_however_it_is_turned() {
        let anchor = |width: f32, score: f32, angle: f32| vec![50.0, 50.0, width, 20.0, score, angle];
        let anchors = [
            anchor(0.0, 0.9, 0.5),
            anchor(-8.0, 0.8, FRAC_PI_4),
            anchor(0.0, 0.7, 0.0),
            anchor(8.0, 0.6, 0.5),
        ];
        let found = output(turned(), floats(&[1, 4, 6], &anchors.concat()), "ship").unwrap();
        assert_eq!(found.iter().map(|found| found.score).collect::<Vec<_>>(), [0.6]);
    }

    #[test]
    fn numbers_that_are_none_are_told_with_whose_they_are() {
        let anchor = [&FISH[..], &[f32::INFINITY, 0.0, 0.0, 0.0]].concat();
        let error = yolo(pose(&[]), &anchor, false, "fish").unwrap_err();
        assert!(error.contains("keypoint 0 at [inf, 0.0], expected finite numbers"), "{error}");
        let anchor = [&FISH[..], &[f32::INFINITY]].concat();
        let error = yolo(turned(), &anchor, true, "fish").unwrap_err();
        assert!(error.contains("box 0 is turned by inf, expected a finite number"), "{error}");
    }

    #[test]
    fn settings_that_exclude_each_other_or_have_no_effect_are_refused() {
        let refused = |task: Detect, outputs: &[(&str, &[i64])], expected: &str| {
            let error = task.resolve(&signature(outputs), &Labels::parse("a\nb").unwrap(), None).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        let one: [(&str, &[i64]); 1] = [("output0", &[-1, 7, 2100])];
        refused(
            Detect { angle: Some(true), ..pose(&[]) },
            &one,
            "detect.keypoints and detect.angle exclude each other",
        );
        let format = Some(BoxFormat::Xyxy);
        refused(Detect { box_format: format, ..turned() }, &one, "leave out detect.box_format");
        refused(pose(&[]), &one, "channels for 2 labels (4 + 0 or 1 + 2 + 2 x 2 or 3 (keypoints))");
        let mask_threshold = Some(0.5);
        refused(
            Detect { mask_threshold, ..Detect::default() },
            &one,
            "detect.mask_threshold is for detect.masks",
        );
        let masks = Some("protos".to_owned());
        refused(Detect { masks: masks.clone(), ..Detect::default() }, &one, "has no output \"protos\"");
        let flat: [(&str, &[i64]); 2] = [("output0", &[-1, 38, 2100]), ("protos", &[-1, 32, 160])];
        refused(
            Detect { masks: masks.clone(), ..Detect::default() },
            &flat,
            "expected [1, prototypes, rows, columns]",
        );
        let three: [(&str, &[i64]); 3] = [("boxes", &[-1, 4]), ("scores", &[-1]), ("labels", &[-1])];
        refused(turned(), &three, "detect.angle is for detect.format = \"yolo\" or \"end2end\"");
        refused(pose(&[]), &three, "no output named keypoints");
        // The error says what such models give beside what they lack.
        let segments: [(&str, &[i64]); 2] = [("output0", &[-1, 38, 2100]), ("protos", &[-1, 32, 160, 160])];
        refused(
            Detect::default(),
            &segments,
            "if \"protos\" has the prototypes of masks, set detect.masks = \"protos\"",
        );
        let misnamed = Detect { masks: Some("proto".to_owned()), ..Detect::default() };
        refused(
            misnamed,
            &segments,
            "detect.masks: the model has no output \"proto\"; it has \"output0\", \"protos\"",
        );
        // Rows of a pose model, which could also be those of a model with many labels.
        let rows: [(&str, &[i64]); 1] = [("output0", &[-1, 300, 57])];
        refused(Detect::default(), &rows, "detect.keypoints (pose)");
        refused(Detect::default(), &rows, "detect.format = \"end2end\"");
        let read = Detect { masks, ..Detect::default() };
        read.resolve(&signature(&segments), &Labels::parse("a\nb").unwrap(), None).unwrap();
    }

    #[test]
    fn what_is_to_be_done_without_labels_is_told() {
        let told = |task: Detect, shape: &[i64]| {
            task.resolve(&signature(&[("output0", shape)]), &Labels::default(), None).unwrap_err()
        };
        let error = told(pose(&[]), &[-1, 14, 2100]);
        assert!(
            error.contains(
                "one class (4 + 0 or 1 + 1 + 2 x 2 or 3 (keypoints)); more classes need a labels file"
            ),
            "{error}"
        );
        let error = told(turned(), &[-1, 8, 2100]);
        assert!(error.ends_with("give a labels file or set detect.objectness"), "{error}");
    }

    #[test]
    fn boxes_that_bring_their_score_need_no_output_of_classes_where_there_is_one_class() {
        // As RTMO exports them.
        let dets = floats(&[1, 2, 5], &[10.0, 20.0, 30.0, 40.0, 0.75, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let places: Vec<f32> = (0..12_u8).map(f32::from).collect();
        let outputs = [
            ("dets", &[-1, -1, 5][..], dets),
            ("keypoints", &[-1, -1, 2, 3], floats(&[1, 2, 2, 3], &places)),
        ];
        for labels in ["", "person"] {
            let found = detections(pose(&[]), &outputs, labels, None).unwrap();
            assert_eq!((found[0].index, found[0].score), (0, 0.75));
            assert_eq!(points(&found), [(None, 0.0, 1.0, Some(2.0)), (None, 3.0, 4.0, Some(5.0))]);
        }
        let error = detections(pose(&[]), &outputs, "cat\ndog", None).unwrap_err();
        assert!(error.ends_with("name it with detect.classes"), "{error}");
    }

    #[test]
    fn outputs_that_a_key_would_read_are_told() {
        let outputs: [(&str, &[i64]); 5] = [
            ("boxes", &[-1, 4]),
            ("labels", &[-1]),
            ("scores", &[-1]),
            ("masks", &[-1, 1, -1, -1]),
            ("keypoints", &[-1, 2, 3]),
        ];
        let told = |task: Detect| {
            let signature = signature(&outputs);
            task.resolve(&signature, &Labels::default(), None).unwrap().unread(&signature).join("; ")
        };
        let both = told(Detect::default());
        assert!(
            both.contains("detect.masks = \"masks\" answers") && both.contains("detect.keypoints, "),
            "{both}"
        );
        assert_eq!(told(Detect { masks: Some("masks".to_owned()), ..pose(&[]) }), "");
    }

    #[test]
    fn keypoints_in_an_output_of_their_own_go_with_their_boxes() {
        let boxes = floats(&[2, 4], &[10.0, 30.0, 30.0, 40.0, 50.0, 60.0, 70.0, 70.0]);
        let places = [0.0, 25.0, 1.0, 5.0, 26.0, 1.0, 40.0, 50.0, 1.0, 45.0, 51.0, 1.0];
        let run = |scores: Option<&[f32]>| {
            let mut outputs: Vec<(&str, &[i64], Tensor)> = vec![
                ("boxes", &[-1, 4], boxes.clone()),
                ("labels", &[-1], integers(&[2], &[0, 0])),
                ("scores", &[-1], floats(&[2], &[0.5, 0.9])),
                ("keypoints", &[-1, 2, 3], floats(&[2, 2, 3], &places)),
            ];
            if let Some(scores) = scores {
                outputs.push(("keypoints_scores", &[-1, -1], floats(&[2, 2], scores)));
            }
            let found = detections(pose(&[]), &outputs, "", None).unwrap();
            found
                .iter()
                .flat_map(|found| found.keypoints.iter().map(|p| (p.x, p.y, p.score)))
                .collect::<Vec<_>>()
        };
        let best = [(40.0, 50.0, Some(1.0)), (45.0, 51.0, Some(1.0))];
        assert_eq!(run(None)[..2], best);
        assert_eq!(run(None)[2], (0.0, 25.0, Some(1.0)));
        assert_eq!(run(Some(&[1.0, 2.0, 3.0, 4.0]))[1], (45.0, 51.0, Some(4.0)));
    }
}
