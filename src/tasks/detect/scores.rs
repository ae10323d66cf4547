//! Scores in an output of their own: how they become the scores of an answer, and which of them belong to classes.

use super::{
    Background, Detect,
    boxes::{CLASSES, is_as_many, many, plain},
    chosen::{Chosen, Scored},
};
use crate::{
    engine::Dim,
    tasks::{Activation, Labels, Output, is_one, wrong_shape},
};

impl Detect {
    /// Whether these scores of `n` boxes, of which no output says the class, are one for each box. Refuses settings that do not apply to
    /// them, and labels whose number differs from that of the classes. `batch` is the batch axis of the boxes, if they have one.
    pub(super) fn resolve_scores(
        &self,
        name: &str,
        shape: &[Dim],
        (batch, n): (Option<Dim>, Dim),
        labels: &Labels,
    ) -> Result<bool, String> {
        let is_for_classes = self.classes.is_none() && CLASSES.contains(&plain(name));
        if self.activation.is_none() && (is_for_classes || name.to_ascii_lowercase().contains("logit")) {
            return Err(format!(
                "output {name:?} seems to hold logits, which are no scores: set detect.activation (\"softmax\" for DETR and \
                 YOLOS, with detect.background = \"last\"; \"sigmoid\" for RT-DETR and RF-DETR; \"none\" if they are scores after all)"
            ));
        }
        if let Some(classes) = &self.classes {
            self.refuse_multi_label(&format!("output {classes:?} has a class number for each box"))?;
            return match (self.background, self.activation) {
                (Some(_), _) => Err("detect.background is for scores [1, boxes, classes]: this model gives class numbers; \
                                     set detect.first_class to that of the first label"
                    .to_owned()),
                (None, Some(Activation::Softmax)) => {
                    Err("detect.activation = \"softmax\" is for scores [1, boxes, classes]: this model gives one score a box"
                        .to_owned())
                }
                _ => Ok(false),
            };
        }
        if self.first_class.is_some_and(|first| first != 0) {
            return Err("detect.first_class is for class numbers, and no output has them: where the first column of scores is \
                        no class, set detect.background = \"first\""
                .to_owned());
        }
        let one_class = format!("output {name:?} has scores of one class");
        if self.scores == self.boxes {
            self.refuse_multi_label(&one_class)?;
            return Ok(false);
        }
        if shape.is_empty() {
            return Ok(false);
        }
        // An axis that scores share with boxes counts items, and each is answered for itself.
        let of_item: Vec<Dim> = match *shape {
            [first, ref others @ ..] if batch == Some(first) => [&[Dim::Fixed(1)], others].concat(),
            _ => shape.to_vec(),
        };
        let columns = self.score_columns(&of_item, n).ok_or_else(|| self.no_scores(name, shape, n))?;
        let Dim::Fixed(columns) = columns else {
            return Ok(false);
        };
        if columns == 1 && self.activation == Some(Activation::Softmax) {
            return Err(format!(
                "detect.activation = \"softmax\" is for scores of several classes: output {name:?} has one score a box"
            ));
        }
        labels.fit(name, self.classes_of(columns)).map_err(|why| match (self.background, columns) {
            (None, 1) => format!("{why}: if another output has class numbers, name it with detect.classes"),
            (None, columns) if columns == labels.len() + 1 => {
                format!("{why}: if one of them is no class, set detect.background = \"last\" (DETR) or \"first\" (SSD)")
            }
            _ => why,
        })?;
        if self.classes_of(columns) == 1 {
            self.refuse_multi_label(&one_class)?;
        }
        Ok(columns == 1)
    }

    /// How many scores a box has in scores of `n` boxes: C of `[1, N, C]` or `[N, C]`, 1 of `[1, N]` or `[N]`. Free if that is known only
    /// once all extents are; `None` if these are no scores of so many boxes.
    fn score_columns(&self, shape: &[Dim], n: Dim) -> Option<Dim> {
        let of = |shape: &[Dim]| match *shape {
            [boxes, columns] if is_as_many(boxes, n) => Some(columns),
            [boxes] if is_as_many(boxes, n) => Some(Dim::Fixed(1)),
            _ => None,
        };
        let without_batch = match shape {
            [batch, others @ ..] if is_one(*batch) => of(others),
            _ => None,
        };
        let columns = match (of(shape), without_batch) {
            (Some(one), Some(other)) if one != other => Some(Dim::Free),
            (one, other) => one.or(other),
        };
        columns.filter(|columns| !matches!(columns, Dim::Fixed(columns) if self.classes_of(*columns) == 0))
    }

    /// The error for scores that are not those of `n` boxes.
    fn no_scores(&self, name: &str, shape: &[Dim], n: Dim) -> String {
        let n = many(n);
        let expected = match self.background {
            Some(_) => format!("[1, {n}, 1 + classes]"),
            None => format!("[1, {n}, classes], or [1, {n}] of one class"),
        };
        wrong_shape(name, shape, &format!("{expected}, since no output of classes is set"))
    }

    /// From scores `[1, N, C]`, or `[1, N]` of one class: those of the first `valid` boxes that reach the minimum, with their classes.
    pub(super) fn classes_chosen(
        &self,
        scores: &Output<'_>,
        [n, valid]: [usize; 2],
    ) -> Result<Vec<Scored>, String> {
        let shape = scores.shape();
        let Some(Dim::Fixed(columns)) = self.score_columns(&shape, Dim::Fixed(n)) else {
            return Err(self.no_scores(scores.name, &shape, Dim::Fixed(n)));
        };
        let first = usize::from(self.background == Some(Background::First));
        let classes = first..first + self.classes_of(columns);
        let mut numbers = scores.first_numbers(valid * columns)?;
        let mut chosen = Chosen::new(self);
        for (row, scores_of_row) in numbers.chunks_exact_mut(columns).enumerate() {
            // Softmax includes the background: a box that is probably background gets low scores.
            self.activate(scores.name, scores_of_row)?;
            chosen.add(row, 1.0, scores_of_row[classes.clone()].iter().copied());
        }
        Ok(chosen.finish())
    }

    /// Turns the model's numbers into scores.
    pub(super) fn activate(&self, name: &str, scores: &mut [f32]) -> Result<(), String> {
        let Some(activation) = self.activation.filter(|activation| *activation != Activation::None) else {
            return Ok(());
        };
        activation.apply(scores);
        match scores.iter().find(|score| !score.is_finite()) {
            Some(score) => Err(format!(
                "output {name:?} gives a score of {score} by detect.activation, expected a finite number"
            )),
            None => Ok(()),
        }
    }

    /// How many columns of scores belong to classes.
    fn classes_of(&self, columns: usize) -> usize {
        columns.saturating_sub(usize::from(self.background.is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{BoxFormat, testing::*},
        *,
    };
    use crate::tasks::testing::*;

    const LAST: [f32; 12] = [3.0, -2.0, -2.0, -1.0, -3.0, 2.5, -2.0, 0.0, -4.0, -4.0, -4.0, 5.0];

    /// Three boxes as DETR exports them, centres and sizes as fractions of the input, with these logits.
    fn detr(task: Detect, logits: &[f32], labels: &str) -> Result<Vec<Seen>, String> {
        let boxes = [0.5, 0.5, 0.25, 0.5, 0.25, 0.25, 0.25, 0.25, 0.75, 0.75, 0.5, 0.5];
        let task = Detect {
            boxes: Some("pred_boxes".to_owned()),
            scores: Some("logits".to_owned()),
            box_format: Some(BoxFormat::Cxcywh),
            normalized: Some(true),
            ..task
        };
        let columns = logits.len() / 3;
        let outputs = [
            ("logits", &[-1, -1, columns as i64][..], floats(&[1, 3, columns], logits)),
            ("pred_boxes", &[-1, -1, 4], floats(&[1, 3, 4], &boxes)),
        ];
        run(task, &outputs, labels, None)
    }

    /// Compares corners exactly, and scores to the fifth decimal.
    fn check(found: Result<Vec<Seen>, String>, expected: &[Seen]) {
        let found = found.unwrap();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!((found.0, found.1), (expected.0, expected.1));
            assert!((found.2 - expected.2).abs() < 1e-5, "{found:?}, expected {expected:?}");
        }
    }

    const FIRST_BOX: [f32; 4] = [37.5, 25.0, 62.5, 75.0];
    const SECOND_BOX: [f32; 4] = [12.5, 12.5, 37.5, 37.5];
    const THIRD_BOX: [f32; 4] = [50.0, 50.0, 100.0, 100.0];

    fn soft(background: Background) -> Detect {
        Detect { activation: Some(Activation::Softmax), background: Some(background), ..Detect::default() }
    }

    #[test]
    fn logits_become_scores_by_softmax_and_no_object_is_no_class() {
        // e^3 / (e^3 + 2 e^-2 + e^-1) and e^2.5 / (e^-3 + e^2.5 + e^-2 + 1).
        let expected = [(FIRST_BOX, 0, 0.969_188), (SECOND_BOX, 1, 0.911_343_8)];
        check(detr(soft(Background::Last), &LAST, "a\nb\nc"), &expected);
        check(detr(soft(Background::Last), &LAST, ""), &expected);
        let mut first = LAST;
        for row in first.chunks_exact_mut(4) {
            row.rotate_right(1);
        }
        check(detr(soft(Background::First), &first, "a\nb\nc"), &expected);
    }

    #[test]
    fn a_background_goes_without_an_activation_as_well() {
        // As SSD exports them: probabilities, that of the background first.
        let scores = [0.2, 0.8, 0.9, 0.1, 0.4, 0.6];
        let task = || Detect { activation: Some(Activation::None), ..Detect::default() };
        let of_classes = Detect { background: Some(Background::First), ..task() };
        check(detr(of_classes, &scores, "face"), &[(FIRST_BOX, 0, 0.8), (THIRD_BOX, 0, 0.6)]);
        let error = detr(task(), &scores, "face").unwrap_err();
        let told =
            "the labels file has 1 labels, output \"logits\" has 2 classes: if one of them is no class, set";
        assert!(error.starts_with(told), "{error}");
    }

    #[test]
    fn logits_become_scores_by_sigmoid_with_a_class_a_column() {
        let task = || Detect { activation: Some(Activation::Sigmoid), ..Detect::default() };
        // 1 / (1 + e^-2) and 1 / (1 + e^1); the last is below the minimum score.
        let logits = [2.0, -5.0, -5.0, -1.0, -3.0, -2.0];
        check(detr(task(), &logits, "a\nb"), &[(FIRST_BOX, 0, 0.880_797), (SECOND_BOX, 1, 0.268_941_4)]);
        // The same with one score per box.
        let outputs = [
            ("boxes", &[-1, 4][..], floats(&[1, 4], &FIRST_BOX)),
            ("labels", &[-1], integers(&[1], &[3])),
            ("scores", &[-1], floats(&[1], &[2.0])),
        ];
        check(run(task(), &outputs, "", None), &[(FIRST_BOX, 3, 0.880_797)]);
    }

    #[test]
    fn what_is_called_logits_is_no_score_unless_the_manifest_says_so() {
        let error = detr(Detect::default(), &LAST, "").unwrap_err();
        assert!(
            error.contains("\"logits\" seems to hold logits") && error.contains("detect.activation"),
            "{error}"
        );
    }

    #[test]
    fn labels_count_the_classes_without_the_background() {
        let error = detr(soft(Background::Last), &LAST, "a\nb\nc\nno object").unwrap_err();
        assert_eq!(error, "the labels file has 4 labels, output \"logits\" has 3 classes");
        let error = detr(soft(Background::Last), &[0.0; 3], "").unwrap_err();
        assert!(error.contains("has shape [?, ?, 1], expected [1, boxes, 1 + classes]"), "{error}");
    }

    #[test]
    fn what_says_nothing_about_the_scores_is_refused() {
        let activation = Some(Activation::None);
        let error =
            detr(Detect { first_class: Some(1), activation, ..Detect::default() }, &LAST, "").unwrap_err();
        assert!(
            error.contains("detect.first_class") && error.contains("detect.background = \"first\""),
            "{error}"
        );
        let numbered = |task: Detect| {
            let outputs = [
                ("boxes", &[-1, 4][..], floats(&[1, 4], &FIRST_BOX)),
                ("labels", &[-1], integers(&[1], &[3])),
                ("scores", &[-1], floats(&[1], &[0.5])),
            ];
            run(task, &outputs, "", None).unwrap_err()
        };
        let error = numbered(Detect { background: Some(Background::First), ..Detect::default() });
        assert!(error.contains("detect.background") && error.contains("detect.first_class"), "{error}");
        let error = numbered(Detect { activation: Some(Activation::Softmax), ..Detect::default() });
        assert!(error.contains("detect.activation = \"softmax\""), "{error}");
    }

    #[test]
    fn scores_of_all_classes_may_be_called_labels() {
        // As RF-DETR exports them.
        let outputs = [
            ("dets", &[-1, 2, 4][..], floats(&[1, 2, 4], &[10.0, 20.0, 30.0, 40.0, 0.0, 0.0, 1.0, 1.0])),
            ("labels", &[-1, 2, 3], floats(&[1, 2, 3], &[-3.0, 0.0, -5.0, -9.0, -9.0, -9.0])),
        ];
        let error = run(Detect::default(), &outputs, "", None).unwrap_err();
        assert!(error.contains("set detect.scores = \"labels\", and detect.activation"), "{error}");
        let told = Detect { scores: Some("labels".to_owned()), ..Detect::default() };
        let error = run(told.clone(), &outputs, "", None).unwrap_err();
        assert!(error.contains("seems to hold logits"), "{error}");
        let told = Detect { activation: Some(Activation::Sigmoid), ..told };
        assert_eq!(run(told, &outputs, "", None).unwrap(), [([10.0, 20.0, 30.0, 40.0], 1, 0.5)]);
    }

    /// The corners of three boxes, and a score of each.
    const CORNERS: [f32; 12] = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 0.0, 0.0, 9.0, 9.0];
    const ONE_CLASS: [f32; 3] = [0.5, 0.75, 0.125];

    #[test]
    fn scores_without_an_axis_of_classes_are_those_of_one_class() {
        let expected = [([50.0, 60.0, 70.0, 80.0], 0, 0.75), ([10.0, 20.0, 30.0, 40.0], 0, 0.5)];
        let check = |boxes: &[i64], scores: &[i64], of_boxes: &[usize], of_scores: &[usize]| {
            for labels in ["", "face"] {
                let outputs = [
                    ("boxes", boxes, floats(of_boxes, &CORNERS)),
                    ("scores", scores, floats(of_scores, &ONE_CLASS)),
                ];
                let found = run(Detect::default(), &outputs, labels, None);
                assert_eq!(found.as_deref(), Ok(&expected[..]), "{boxes:?} {scores:?} {labels:?}");
            }
        };
        // The batch axis open or not, and the number of boxes.
        for (batch, n) in [(-1, 3), (1, 3), (-1, -1), (1, -1)] {
            check(&[batch, n, 4], &[batch, n], &[1, 3, 4], &[1, 3]);
            check(&[batch, n, 4], &[batch, n, 1], &[1, 3, 4], &[1, 3, 1]);
        }
        for n in [3, -1] {
            check(&[1, n, 4], &[n], &[1, 3, 4], &[3]);
            check(&[n, 4], &[n], &[3, 4], &[3]);
            check(&[n, 4], &[1, n], &[3, 4], &[1, 3]);
        }
        // No boxes at all.
        let outputs = [
            ("boxes", &[-1, -1, 4][..], floats(&[1, 0, 4], &[])),
            ("scores", &[-1, -1], floats(&[1, 0], &[])),
        ];
        assert_eq!(run(Detect::default(), &outputs, "face", None).unwrap(), []);
    }

    #[test]
    fn numbers_of_a_single_box_are_those_of_its_classes() {
        let check = |boxes: &[i64], scores: &[i64], of_boxes: &[usize], of_scores: &[usize]| {
            let outputs = [
                ("boxes", boxes, floats(of_boxes, &CORNERS[..4])),
                ("scores", scores, floats(of_scores, &ONE_CLASS)),
            ];
            let found = run(Detect::default(), &outputs, "a\nb\nc", None);
            assert_eq!(
                found.as_deref(),
                Ok(&[([10.0, 20.0, 30.0, 40.0], 1, 0.75)][..]),
                "{boxes:?} {scores:?}"
            );
        };
        for batch in [-1, 1] {
            check(&[batch, 1, 4], &[batch, 3], &[1, 1, 4], &[1, 3]);
            check(&[batch, -1, 4], &[batch, 3], &[1, 1, 4], &[1, 3]);
        }
        check(&[-1, 4], &[-1, 3], &[1, 4], &[1, 3]);
    }

    #[test]
    fn scores_of_another_number_of_boxes_and_labels_of_more_classes_are_refused_at_load() {
        let resolve = |outputs: &[(&str, &[i64])], labels: &str| {
            let labels = Labels::parse(labels).unwrap();
            Detect::default().resolve(&signature(outputs), &labels, None).map(|_| ())
        };
        let boxes: (&str, &[i64]) = ("boxes", &[-1, 3, 4]);
        for shape in [&[-1, 80][..], &[-1], &[1, 2], &[-1, 3, 4, 5], &[-1, 2, 80]] {
            let error = resolve(&[boxes, ("scores", shape)], "").unwrap_err();
            let expected =
                "expected [1, 3, classes], or [1, 3] of one class, since no output of classes is set";
            assert!(error.starts_with("output \"scores\" has shape") && error.ends_with(expected), "{error}");
        }
        assert_eq!(
            resolve(&[boxes, ("scores", &[-1, 3])], "a\nb\nc").unwrap_err(),
            "the labels file has 3 labels, output \"scores\" has 1 classes: if another output has class numbers, name it with \
             detect.classes"
        );
        // An output of a name that nobody knows may be that of the classes.
        let known = [boxes, ("scores", &[-1, 3]), ("ids", &[-1, 3])];
        let error = resolve(&known, "").unwrap_err();
        assert!(
            error.starts_with("output \"ids\" of shape [?, 3] may have class numbers: name it with"),
            "{error}"
        );
        assert_eq!(resolve(&known, "face"), Ok(()));
        // What the file leaves open is known once a pass has been seen.
        assert_eq!(resolve(&[("boxes", &[-1, -1, 4]), ("scores", &[-1, -1])], "a\nb\nc"), Ok(()));
    }

    #[test]
    fn settings_of_several_classes_are_refused_of_one() {
        let check = |task: Detect| {
            let outputs = signature(&[("boxes", &[-1, -1, 4]), ("scores", &[-1, 3])]);
            let known = signature(&[("boxes", &[-1, 3, 4]), ("scores", &[-1, 3])]);
            assert!(task.clone().resolve(&outputs, &Labels::default(), None).is_ok(), "left open");
            task.resolve(&known, &Labels::default(), None).unwrap_err()
        };
        let error = check(Detect { activation: Some(Activation::Softmax), ..Detect::default() });
        assert!(error.contains("\"softmax\" is for scores of several classes"), "{error}");
        let error = check(Detect { background: Some(Background::First), ..Detect::default() });
        assert!(error.contains("has shape [?, 3], expected [1, 3, 1 + classes]"), "{error}");
    }

    #[test]
    fn an_infinite_logit_is_an_error() {
        let mut logits = LAST;
        logits[0] = f32::INFINITY;
        let error = detr(soft(Background::Last), &logits, "").unwrap_err();
        assert!(error.contains("\"logits\" gives a score of NaN by detect.activation"), "{error}");
    }
}
