//! YOLO-style detectors: one output, a column (or row) per anchor with a box, perhaps an objectness, and class scores.

use super::{
    BoxFormat, COLUMNS, Detect, Orientation, Raw,
    beside::{Follows, OTHERS},
    chosen::{Chosen, Scored},
    end2end::ROWS_MAX,
    finite,
};
use crate::{
    engine::{Dim, Signature, show},
    tasks::{Labels, Outputs, choose, is_one, wrong_shape},
};

const SHAPE: &str =
    "[1, 4 + classes, anchors] or [1, anchors, 4 + classes], or one channel more with an objectness";

/// How an output is read.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Reading {
    orientation: Orientation,
    objectness: bool,
}

impl Detect {
    /// Fills in the output; refuses shapes that cannot hold boxes, as far as the model file gives them.
    pub(super) fn resolve_yolo(&mut self, signature: &Signature, labels: &Labels) -> Result<(), String> {
        let output = choose(signature, self.output.as_deref(), "detect.output")?;
        if !output.shape.is_empty() {
            // The axis that the model file leaves open counts anchors.
            let (axes, known) = match axes(&output.name, &output.shape)? {
                [Dim::Fixed(a), Dim::Fixed(b)] => ([a, b], self.orientation),
                [Dim::Fixed(n), Dim::Free] => ([n; 2], Some(Orientation::ChannelsFirst)),
                [Dim::Free, Dim::Fixed(n)] => ([n; 2], Some(Orientation::ChannelsLast)),
                [Dim::Free, Dim::Free] => ([0; 2], None),
            };
            // Both axes are known once a forward pass has given them; then the task is resolved again.
            if axes != [0; 2] && !self.opens_channels(&output.shape, labels) {
                if let (Some(set), Some(known)) = (self.orientation, known)
                    && set != known
                {
                    return Err(format!(
                        "detect.orientation is set to the axis that counts anchors in output {:?} of shape {}",
                        output.name,
                        show(&output.shape)
                    ));
                }
                self.orientation = known;
                let reading = self.reading(&output.name, &output.shape, axes, labels)?;
                self.orientation = Some(reading.orientation);
                self.objectness = Some(reading.objectness);
                let channels = axes[usize::from(reading.orientation == Orientation::ChannelsLast)];
                if self.classes(channels, reading.objectness, labels) == Some(1) {
                    self.refuse_multi_label(&format!("output {:?} has scores of one class", output.name))?;
                }
            } else if self.objectness.is_none() && labels.is_empty() && self.keypoints.is_none() {
                return Err(self.unknown_objectness(&output.name));
            }
        }
        self.output = Some(output.name.clone());
        self.box_format.get_or_insert(BoxFormat::Cxcywh);
        Ok(())
    }

    /// Whether the axis that the model file leaves open is that of the channels, as legacy exporters do where only the batch is to be open:
    /// `[batch, ?, 8400]`. The other one then counts anchors, so it is fixed only for an input of one size.
    fn opens_channels(&self, shape: &[Dim], labels: &Labels) -> bool {
        let (n, usual) = match *shape {
            [.., Dim::Fixed(n), Dim::Free] => (n, Orientation::ChannelsFirst),
            [.., Dim::Free, Dim::Fixed(n)] => (n, Orientation::ChannelsLast),
            _ => return false,
        };
        let either = self.objectness.map_or(vec![false, true], |objectness| vec![objectness]);
        let fits = either.into_iter().any(|objectness| self.classes(n, objectness, labels).is_some());
        // Without labels, any number may be that of channels, but few networks have so many classes.
        if self.input.is_none() || fits && (n <= ROWS_MAX || !labels.is_empty()) {
            return false;
        }
        match self.orientation {
            Some(set) => set != usual,
            None => usual == Orientation::ChannelsLast || n > ROWS_MAX,
        }
    }

    pub(super) fn read_yolo(&self, outputs: &Outputs<'_>, labels: &Labels) -> Result<Vec<Raw>, String> {
        let output = outputs.get(self.output.as_deref())?;
        let shape = output.shape();
        let [Dim::Fixed(a), Dim::Fixed(b)] = axes(output.name, &shape)? else {
            return Err(wrong_shape(output.name, &shape, SHAPE));
        };
        let reading = self.reading(output.name, &shape, [a, b], labels)?;
        let numbers = output.numbers()?;
        let (channels, anchors, steps) = match reading.orientation {
            Orientation::ChannelsFirst => (a, b, [b, 1]),
            Orientation::ChannelsLast => (b, a, [1, b]),
        };
        let at = |channel: usize, anchor: usize| numbers[channel * steps[0] + anchor * steps[1]];
        let first_score = 4 + usize::from(reading.objectness);
        // `reading` has checked that they fit.
        let behind = first_score + self.classes(channels, reading.objectness, labels).unwrap_or_default();
        let mut chosen = Chosen::new(self);
        for anchor in 0..anchors {
            let objectness = if reading.objectness { at(4, anchor) } else { 1.0 };
            chosen.add(anchor, objectness, (first_score..behind).map(|channel| at(channel, anchor)));
        }
        let raw = |Scored { row, class, score }| {
            let numbers = finite(output.name, [0, 1, 2, 3].map(|i| at(i, row)))?;
            let beside = (behind..channels).map(|channel| at(channel, row)).collect();
            Ok(Raw { numbers, score, class, row, beside })
        };
        chosen.finish().into_iter().map(raw).collect()
    }

    /// Which axis holds the channels, and whether the fifth channel is an objectness: as set, else as the labels tell.
    fn reading(
        &self,
        name: &str,
        shape: &[Dim],
        axes: [usize; 2],
        labels: &Labels,
    ) -> Result<Reading, String> {
        let fits = |channels: usize, objectness: bool| self.classes(channels, objectness, labels).is_some();
        let fits_either = |channels| match self.objectness {
            Some(objectness) => fits(channels, objectness),
            None => fits(channels, false) || fits(channels, true),
        };
        let orientation = match self.orientation {
            Some(orientation) => orientation,
            None => match (fits_either(axes[0]), fits_either(axes[1])) {
                (true, false) => Orientation::ChannelsFirst,
                (false, true) => Orientation::ChannelsLast,
                // A model has many more anchors than classes.
                (true, true) if labels.is_empty() && axes[0] < axes[1] => Orientation::ChannelsFirst,
                (true, true) if labels.is_empty() && axes[0] > axes[1] => Orientation::ChannelsLast,
                (true, true) => {
                    return Err(format!(
                        "output {name:?} of shape {} can be read both ways: set detect.orientation",
                        show(shape)
                    ));
                }
                (false, false) => return Err(self.misfit(name, shape, axes, labels)),
            },
        };
        let channels = match orientation {
            Orientation::ChannelsFirst => axes[0],
            Orientation::ChannelsLast => axes[1],
        };
        if !fits_either(channels) {
            return Err(self.misfit(name, shape, axes, labels));
        }
        let objectness = match self.objectness {
            Some(objectness) => objectness,
            None if fits(channels, false) && fits(channels, true) => {
                return Err(self.unknown_objectness(name));
            }
            // Models with an objectness have their channels last. Oriented boxes, whose last channel is an angle, have them first.
            None if orientation == Orientation::ChannelsFirst && fits(channels, true) => {
                return Err(format!(
                    "output {name:?} of shape {} has one channel more than 4 + {}{} for the labels: set detect.objectness = true \
                     if the fifth is one, or detect.angle = true for oriented boxes (OBB), whose last is an angle",
                    show(shape),
                    labels.len(),
                    self.follows()
                ));
            }
            None => fits(channels, true),
        };
        if labels.is_empty() && channels == POSE_CHANNELS && self.follows() == Follows::Nothing {
            let classes = channels - 4 - usize::from(objectness);
            return Err(format!(
                "output {name:?} of shape {} has {POSE_CHANNELS} channels, as have a pose model of people (a box, its score, 17 \
                 keypoints of three numbers) and a detector of {classes} classes: set detect.keypoints = 17 for the former, give a labels \
                 file of {classes} for the latter",
                show(shape)
            ));
        }
        Ok(Reading { orientation, objectness })
    }

    /// How many class scores this many channels hold. Without labels any number is accepted, except that a pose model has one; with labels,
    /// only their number.
    fn classes(&self, channels: usize, objectness: bool, labels: &Labels) -> Option<usize> {
        let follows = self.follows();
        let scores = channels.checked_sub(4 + usize::from(objectness))?;
        let fits = |count: &usize| match (labels.len(), follows) {
            (0, Follows::Keypoints(_)) => *count == 1,
            (0, _) => *count >= 1,
            (labels, _) => *count == labels,
        };
        follows.widths().into_iter().filter_map(|width| scores.checked_sub(width)).find(fits)
    }

    fn unknown_objectness(&self, name: &str) -> String {
        let others = if self.follows() == Follows::Nothing { format!("; {OTHERS}") } else { String::new() };
        format!(
            "whether the fifth channel of output {name:?} is an objectness cannot be told without labels: give a labels \
             file or set detect.objectness{others}"
        )
    }

    fn misfit(&self, name: &str, shape: &[Dim], axes: [usize; 2], labels: &Labels) -> String {
        let follows = self.follows();
        let mut expected = match (labels.len(), self.objectness, follows) {
            (0, _, Follows::Nothing) => SHAPE.to_owned(),
            (0, _, Follows::Keypoints(_)) => {
                format!(
                    "channels of a box and one class (4 + 0 or 1 + 1{follows}); more classes need a labels file"
                )
            }
            (0, ..) => format!("channels of a box and scores (4 + 0 or 1 + classes{follows})"),
            (n, Some(objectness), Follows::Nothing) => format!(
                "{} channels for {n} labels (4 + {}{n})",
                n + 4 + usize::from(objectness),
                if objectness { "1 + " } else { "" }
            ),
            (n, None, Follows::Nothing) => {
                format!("{} channels for {n} labels (4 + {n}), or {} with an objectness", n + 4, n + 5)
            }
            (n, objectness, _) => {
                let fifth = match objectness {
                    Some(true) => " + 1",
                    Some(false) => "",
                    None => " + 0 or 1",
                };
                format!("channels for {n} labels (4{fifth} + {n}{follows})")
            }
        };
        let too_many = !labels.is_empty() && axes.iter().all(|axis| *axis > labels.len() + 5);
        let (rows, columns) = match *shape {
            [.., rows, columns] => (rows, columns),
            _ => (Dim::Free, Dim::Free),
        };
        // A few rows with more numbers than box, score and class may be rows that the model has sorted out and that hold more about a box.
        let are_rows =
            matches!((rows, columns), (Dim::Free | Dim::Fixed(..=ROWS_MAX), Dim::Fixed(COLUMNS..=ROWS_MAX)));
        let more = matches!(columns, Dim::Fixed(columns) if columns > COLUMNS);
        if follows == Follows::Nothing && (too_many || are_rows && more) {
            expected += "; ";
            expected += OTHERS;
        }
        if are_rows || columns == Dim::Fixed(COLUMNS) || too_many && columns == Dim::Free {
            expected += "; rows of box, score and class are read with detect.format = \"end2end\"";
        }
        if rows == Dim::Free || columns == Dim::Free {
            expected +=
                "; ? is an extent that the file leaves open, also where a forward pass always gives the same";
        }
        wrong_shape(name, shape, &expected)
    }
}

/// Channels of the usual pose model.
const POSE_CHANNELS: usize = 4 + 1 + 17 * 3;

/// The two axes beside a batch axis.
fn axes(name: &str, shape: &[Dim]) -> Result<[Dim; 2], String> {
    match *shape {
        [batch, a, b] if is_one(batch) => Ok([a, b]),
        [a, b] => Ok([a, b]),
        _ => Err(wrong_shape(name, shape, SHAPE)),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Format, testing::*},
        *,
    };
    use crate::{
        engine::{
            DataType, Tensor,
            reduction::{self, CANDIDATE_WORDS},
        },
        image::{Preprocess, Resize},
        tasks::testing::*,
    };

    /// Anchors with cx, cy, w, h and scores of two classes: two near-duplicates of class 1, one of class 0 over
    /// them, one below the score, one outside the image.
    const ANCHORS: [[f32; 6]; 5] = [
        [20.0, 30.0, 20.0, 20.0, 0.1, 0.9],
        [21.0, 30.0, 20.0, 20.0, 0.1, 0.8],
        [20.0, 30.0, 20.0, 20.0, 0.7, 0.2],
        [60.0, 60.0, 10.0, 10.0, 0.2, 0.1],
        [-50.0, 10.0, 20.0, 20.0, 0.95, 0.0],
    ];

    fn expected() -> Vec<Seen> {
        vec![([10.0, 20.0, 30.0, 40.0], 1, 0.9), ([10.0, 20.0, 30.0, 40.0], 0, 0.7)]
    }

    fn rows() -> Vec<f32> {
        ANCHORS.concat()
    }

    fn columns() -> Vec<f32> {
        (0..6).flat_map(|channel| ANCHORS.iter().map(move |anchor| anchor[channel])).collect()
    }

    fn check(task: Detect, shape: &[usize], numbers: &[f32], labels: &str) -> Result<Vec<Seen>, String> {
        let free = vec![-1; shape.len()];
        run(task, &[("out", &free, floats(shape, numbers))], labels, None)
    }

    #[test]
    fn both_orientations_are_found_from_the_labels() {
        let labels = "cat\ndog";
        let task = Detect::default;
        assert_eq!(check(task(), &[1, 6, 5], &columns(), labels).unwrap(), expected());
        assert_eq!(check(task(), &[1, 5, 6], &rows(), labels).unwrap(), expected());
        assert_eq!(check(task(), &[5, 6], &rows(), labels).unwrap(), expected());
    }

    #[test]
    fn a_set_orientation_needs_no_labels() {
        let task = |orientation| Detect {
            orientation: Some(orientation),
            objectness: Some(false),
            ..Detect::default()
        };
        let first = task(Orientation::ChannelsFirst);
        assert_eq!(check(first, &[1, 6, 5], &columns(), "").unwrap(), expected());
        let last = task(Orientation::ChannelsLast);
        assert_eq!(check(last, &[1, 5, 6], &rows(), "").unwrap(), expected());
    }

    #[test]
    fn an_orientation_that_the_model_file_tells_holds_for_every_number_of_anchors() {
        // Six anchors of six channels can be read both ways; the file says which axis is free.
        let mut square = rows();
        square.extend([0.0; 6]);
        let tensor = floats(&[1, 6, 6], &square);
        let outputs = [("out", &[-1, -1, 6][..], tensor)];
        let yolo = || Detect { format: Some(Format::Yolo), ..Detect::default() };
        let found = run(yolo(), &outputs, "cat\ndog", None);
        assert_eq!(found.unwrap(), expected());
        let wrong = Detect { orientation: Some(Orientation::ChannelsFirst), ..yolo() };
        let error = run(wrong, &outputs, "cat\ndog", None).unwrap_err();
        assert!(error.contains("counts anchors"), "{error}");
        let error = run(yolo(), &outputs, "a\nb\nc", None).unwrap_err();
        assert!(error.contains("has shape [1, 6, 6], expected 7 channels"), "{error}");
        // Where images keep their size, a fixed extent does not count anchors.
        let signature = signature(&[("out", &[-1, -1, 6])]);
        let error = yolo().resolve(&signature, &Labels::parse("a\nb\nc").unwrap(), None).unwrap_err();
        assert!(error.contains("has shape [?, ?, 6], expected 7 channels"), "{error}");
        assert!(error.contains("? is an extent that the file leaves open"), "{error}");
    }

    #[test]
    fn channels_that_the_model_file_leaves_open_are_those_of_the_pass() {
        let mut many = rows();
        many.extend([0.0; 30]);
        let turned: Vec<f32> = (0..6)
            .flat_map(|channel| (0..10).map(move |anchor| anchor * 6 + channel))
            .map(|at| many[at])
            .collect();
        let first = floats(&[1, 6, 10], &turned);
        let last = floats(&[1, 10, 6], &many);
        let labels = "cat\ndog";
        let run = |task: Detect, file: &[i64], tensor: &Tensor, labels| {
            run(task, &[("out", file, tensor.clone())], labels, None)
        };
        let set = |orientation| Detect { orientation: Some(orientation), ..Detect::default() };
        for file in [[-1, -1, 10], [-1, 6, -1], [-1, -1, -1]] {
            assert_eq!(run(Detect::default(), &file, &first, labels).unwrap(), expected(), "{file:?}");
            assert_eq!(run(set(Orientation::ChannelsFirst), &file, &first, labels).unwrap(), expected());
        }
        assert_eq!(run(set(Orientation::ChannelsLast), &[-1, 10, -1], &last, labels).unwrap(), expected());
        // The pass does not fit the labels.
        let error = run(Detect::default(), &[-1, -1, 10], &first, "a\nb\nc").unwrap_err();
        assert!(error.contains("has shape [1, 6, 10], expected 7 channels"), "{error}");
    }

    #[test]
    fn open_channels_hold_what_a_model_gives_beside_its_boxes_too() {
        let resolve = |task: Detect, labels: &str, outputs: &[(&str, &[i64])]| {
            let labels = Labels::parse(labels).unwrap();
            let file = task.resolve(&signature(outputs), &labels, Some([640, 640])).unwrap();
            assert_eq!(file.orientation, None, "the file does not tell");
            let channels = |count: i64| {
                let mut seen = outputs.to_vec();
                let shape = [-1, count, 8400];
                seen[0].1 = &shape;
                file.clone().resolve(&signature(&seen), &labels, Some([640, 640]))
            };
            (1..=200).filter(|count| channels(*count).is_ok()).collect::<Vec<i64>>()
        };
        let open = ("output0", &[-1, -1, 8400][..]);
        assert_eq!(resolve(Detect::default(), "a", &[open]), [5]);
        assert_eq!(resolve(Detect::default(), "a\nb", &[open]), [6]);
        assert_eq!(resolve(Detect { angle: Some(true), ..Detect::default() }, "a\nb", &[open]), [7]);
        let masks = Detect { masks: Some("output1".to_owned()), ..Detect::default() };
        let prototypes = ("output1", &[-1, 32, 160, 160][..]);
        assert_eq!(resolve(masks, "a\nb", &[open, prototypes]), [38]);
        let points = super::super::Keypoints { count: 17, names: Labels::default() };
        let pose = Detect { keypoints: Some(points), ..Detect::default() };
        assert_eq!(resolve(pose, "person", &[open]), [39, 56]);
        let bare = Detect { objectness: Some(false), ..Detect::default() };
        assert!(resolve(bare, "", &[open]).contains(&84));
    }

    #[test]
    fn without_labels_the_shorter_axis_has_the_channels() {
        let task = || Detect { objectness: Some(false), ..Detect::default() };
        let mut many = rows();
        many.extend([0.0; 30]);
        assert_eq!(check(task(), &[1, 10, 6], &many, "").unwrap(), expected());
        let square = check(task(), &[1, 6, 6], &[0.0; 36], "").unwrap_err();
        assert_eq!(square, "output \"out\" of shape [1, 6, 6] can be read both ways: set detect.orientation");
    }

    #[test]
    fn objectness_multiplies_the_class_score() {
        let anchors = [[50.0, 50.0, 10.0, 10.0, 0.5, 0.2, 0.8], [20.0, 20.0, 10.0, 10.0, 0.1, 1.0, 0.0]];
        let found = check(Detect::default(), &[1, 2, 7], &anchors.concat(), "cat\ndog").unwrap();
        assert_eq!(found, [([45.0, 45.0, 55.0, 55.0], 1, 0.4)]);
    }

    #[test]
    fn without_labels_objectness_must_be_set() {
        let error = check(Detect::default(), &[1, 5, 6], &rows(), "").unwrap_err();
        assert!(error.contains("set detect.objectness"), "{error}");
    }

    #[test]
    fn a_shape_that_does_not_fit_the_labels_is_refused() {
        let error = check(Detect::default(), &[1, 5, 6], &rows(), "a\nb\nc\nd\ne").unwrap_err();
        assert_eq!(
            error,
            "output \"out\" has shape [1, 5, 6], expected 9 channels for 5 labels (4 + 5), or 10 with an objectness; \
             rows of box, score and class are read with detect.format = \"end2end\""
        );
        assert!(check(Detect::default(), &[1, 1, 5, 6], &rows(), "a\nb").is_err());
        assert!(check(Detect::default(), &[2, 5, 3], &rows(), "a\nb").is_err());
        // Known at load if the model file tells.
        let signature = signature(&[("out", &[-1, 85, 8400])]);
        let error = Detect::default().resolve(&signature, &Labels::parse("a\nb").unwrap(), None).unwrap_err();
        assert!(error.contains("has shape [?, 85, 8400]"), "{error}");
        assert!(error.contains("detect.masks (segment)"), "{error}");
    }

    #[test]
    fn an_angle_is_not_taken_for_an_objectness() {
        let resolve = |task: Detect, shape: &[i64]| {
            let signature = signature(&[("out", shape)]);
            task.resolve(&signature, &Labels::parse("plane\nship").unwrap(), None)
        };
        // Oriented boxes of two classes, known and free: 4 + 2 + 1 channels.
        for shape in [[1, 7, 2100], [-1, 7, -1]] {
            let error = resolve(Detect::default(), &shape).unwrap_err();
            assert!(
                error.contains("detect.objectness = true") && error.contains("detect.angle = true"),
                "{error}"
            );
            let told = Detect { objectness: Some(true), ..Detect::default() };
            assert_eq!(resolve(told, &shape).unwrap().objectness, Some(true));
        }
        let last = resolve(Detect::default(), &[1, 25_200, 7]).unwrap();
        assert_eq!((last.objectness, last.orientation), (Some(true), Some(Orientation::ChannelsLast)));
    }

    #[test]
    fn keypoints_are_not_taken_for_classes() {
        let resolve = |objectness, labels: &str, shape: &[i64]| {
            let labels = Labels::parse(labels).unwrap();
            let task = Detect { objectness: Some(objectness), ..Detect::default() };
            task.resolve(&signature(&[("out", shape)]), &labels, None)
        };
        for shape in [[-1, 56, 8400], [-1, 56, -1], [-1, 8400, 56]] {
            let error = resolve(false, "", &shape).unwrap_err();
            assert!(error.contains("17 keypoints") && error.contains("detect.keypoints = 17"), "{error}");
            assert!(resolve(false, "card\n".repeat(52).as_str(), &shape).is_ok());
        }
        assert!(resolve(false, "", &[-1, 57, 8400]).is_ok());
        // What looks like an objectness in the fifth channel is the score of the only class.
        let error = resolve(true, "", &[-1, 25_200, 56]).unwrap_err();
        assert!(error.contains("a detector of 51 classes"), "{error}");
    }

    #[test]
    fn letterboxed_boxes_come_back_in_the_posted_image() {
        // 200 × 100 posted, model 100 × 100: scale 2, 25 rows of padding above and below.
        let placement =
            Preprocess { resize: Resize::Letterbox, ..Preprocess::new(100, 100) }.placement(200, 100);
        let anchors = [
            [50.0, 50.0, 20.0, 10.0, 0.9],
            // Half of it in the padding, half right of the image.
            [95.0, 30.0, 20.0, 20.0, 0.8],
            // All of it in the padding.
            [50.0, 10.0, 20.0, 20.0, 0.7],
        ];
        let tensor = floats(&[1, 3, 5], &anchors.concat());
        let found =
            run(Detect::default(), &[("out", &[-1, 3, 5], tensor)], "spot", Some(&placement)).unwrap();
        assert_eq!(found, [([80.0, 40.0, 120.0, 60.0], 0, 0.9), ([170.0, 0.0, 200.0, 30.0], 0, 0.8),]);
    }

    #[test]
    fn nan_and_infinite_boxes_are_errors() {
        let mut numbers = rows();
        numbers[0] = f32::INFINITY;
        let error = check(Detect::default(), &[1, 5, 6], &numbers, "a\nb").unwrap_err();
        assert!(error.contains("expected finite numbers"), "{error}");
        numbers[0] = f32::NAN;
        let error = check(Detect::default(), &[1, 5, 6], &numbers, "a\nb").unwrap_err();
        assert!(error.contains("not a number"), "{error}");
    }

    #[test]
    fn an_infinite_score_is_an_error() {
        let mut numbers = rows();
        numbers[5] = f32::INFINITY;
        let error = check(Detect::default(), &[1, 5, 6], &numbers, "a\nb").unwrap_err();
        assert!(error.contains("output \"out\" has a box of score inf"), "{error}");
        // The same for the candidates that a device has found.
        let found = reduction::Candidate {
            corners: [10.0, 20.0, 30.0, 40.0],
            score: f32::INFINITY,
            label: 1,
            anchor: 0,
            unused: 0,
        };
        let data = bytemuck::bytes_of(&found).to_vec();
        let left =
            Tensor { datatype: DataType::Uint32, shape: vec![1, 1, CANDIDATE_WORDS], data: data.into() };
        let yolo = Detect { format: Some(Format::Yolo), ..Detect::default() };
        let error = run(yolo, &[("out", &[-1, 5, 6], left)], "a\nb", None).unwrap_err();
        assert!(error.contains("output \"out\" has a box of score inf"), "{error}");
    }

    #[test]
    fn no_anchors_give_no_boxes() {
        assert_eq!(check(Detect::default(), &[1, 6, 0], &[], "a\nb").unwrap(), []);
    }
}
