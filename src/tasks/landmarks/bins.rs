//! Points by the most likely column and the most likely row of each, as SimCC's networks (RTMPose) give them: one output has a score for
//! each bin across the input, another for each bin down.

use super::{Form, Found, Landmarks};
use crate::{
    engine::{Dim, Signature, show},
    tasks::{Labels, Outputs, choose, is_one, no_such_output, wrong_shape},
};

/// The names that mmpose and mmdeploy give the outputs.
const OUTPUTS: [&str; 2] = ["simcc_x", "simcc_y"];
/// The settings that name them.
const KEYS: [&str; 2] = ["landmarks.x", "landmarks.y"];
const EXPECTED: &str = "[1, points, bins]";

impl Landmarks {
    /// Whether points come as bins of two outputs: where the settings say it, or nothing of another form while outputs are so named.
    pub(super) fn is_of_bins(&self, signature: &Signature) -> bool {
        let has = |name: &str| signature.outputs.iter().any(|output| output.name == name);
        match self.form {
            Some(form) => form == Form::Simcc,
            None => {
                self.x.is_some()
                    || self.y.is_some()
                    || (self.output.is_none() && OUTPUTS.into_iter().all(has))
            }
        }
    }

    /// The settings with both outputs, which fit each other.
    pub(super) fn of_bins(mut self, signature: &Signature, labels: &Labels) -> Result<Landmarks, String> {
        self.form = Some(Form::Simcc);
        let named = [self.x.take(), self.y.take()];
        let axis = |at: usize| {
            let name = named[at].as_deref().unwrap_or(OUTPUTS[at]);
            let other = |why| match named[at] {
                Some(_) => why,
                None => format!(
                    "{}: name the outputs of bins by {} and {}",
                    no_such_output(signature, name),
                    KEYS[0],
                    KEYS[1]
                ),
            };
            let output = choose(signature, Some(name), KEYS[at]).map_err(other)?;
            Ok::<_, String>((&output.name, self.bins(&output.name, &output.shape, labels)?))
        };
        let ((x, across), (y, down)) = (axis(0)?, axis(1)?);
        self.fits(Form::Simcc, x)?;
        if let (Some([points, columns]), Some([others, rows])) = (across, down) {
            self.agree([x, y], [points, others], [columns, rows])?;
        }
        (self.x, self.y) = (Some(x.clone()), Some(y.clone()));
        Ok(self)
    }

    /// The extents of points and of bins; `None` if the file leaves even their number open.
    fn bins(&self, name: &str, shape: &[Dim], labels: &Labels) -> Result<Option<[Dim; 2]>, String> {
        let axes = match *shape {
            [] => return Ok(None),
            [batch, points, bins] if is_one(batch) => [points, bins],
            [points, bins] => [points, bins],
            _ => return Err(wrong_shape(name, shape, EXPECTED)),
        };
        if axes.contains(&Dim::Fixed(0)) {
            return Err(wrong_shape(name, shape, EXPECTED));
        }
        self.counted(name, shape, axes[0], labels)?;
        Ok(Some(axes))
    }

    /// Refuses outputs of different points, and bins that are not as many for each column as for each row.
    fn agree(&self, outputs: [&str; 2], points: [Dim; 2], bins: [Dim; 2]) -> Result<(), String> {
        let [x, y] = outputs;
        if let [Dim::Fixed(these), Dim::Fixed(those)] = points
            && these != those
        {
            return Err(format!(
                "output {x:?} has {these} points, and output {y:?} {those}: they are not of one kind"
            ));
        }
        let ([Dim::Fixed(columns), Dim::Fixed(rows)], Some(input)) = (bins, self.input) else {
            return Ok(());
        };
        let [width, height] = input.map(|side| side as usize);
        // A side times the ratio is rounded.
        match (columns * height).abs_diff(rows * width) <= width.max(height) {
            true => Ok(()),
            false => Err(format!(
                "output {x:?} has {columns} bins for {width} columns of the input, and output {y:?} {rows} for {height} rows, which is not \
                 the same number for each: set {} and {} to the outputs across and down",
                KEYS[0], KEYS[1]
            )),
        }
    }

    /// The bins with the highest scores, in pixels of the input, which has this size, and the smaller of their two scores, as in mmpose's
    /// `get_simcc_maximum`.
    pub(super) fn best_bins(
        &self,
        outputs: &Outputs<'_>,
        labels: &Labels,
        size: Option<[u32; 2]>,
    ) -> Result<Vec<Found>, String> {
        let axis = |at: usize| {
            let name = [&self.x, &self.y][at].as_deref().unwrap_or(OUTPUTS[at]);
            let output = outputs.get(Some(name))?;
            let shape = output.shape();
            let Some([_, Dim::Fixed(bins)]) = self.bins(output.name, &shape, labels)? else {
                return Err(wrong_shape(output.name, &shape, EXPECTED));
            };
            let scores = output.finite_numbers()?;
            // Without a known size the bins are all there is.
            let pixels = size.map_or(1.0, |size| f64::from(size[at]) / bins as f64);
            let place = |(bin, score): (usize, f32)| ((bin as f64 * pixels) as f32, score);
            Ok((shape, scores.chunks_exact(bins).map(|scores| place(highest(scores))).collect::<Vec<_>>()))
        };
        let ((shape, across), (other, down)) = (axis(0)?, axis(1)?);
        if across.len() != down.len() {
            return Err(format!(
                "the outputs of bins have shapes {} and {}, expected as many points",
                show(&shape),
                show(&other)
            ));
        }
        let point = |(&(x, of_x), &(y, of_y)): (&(f32, f32), &(f32, f32))| ([x, y], Some(of_x.min(of_y)));
        Ok(across.iter().zip(&down).map(point).collect())
    }
}

/// The first of the highest scores, and where it is.
fn highest(scores: &[f32]) -> (usize, f32) {
    let mut best = (0, scores[0]);
    for (at, score) in scores.iter().copied().enumerate() {
        if score > best.1 {
            best = (at, score);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::Tensor,
        image::{Preprocess, Resize},
        tasks::testing::{floats, signature},
    };

    const INPUT: Option<[u32; 2]> = Some([3, 4]);

    /// Two points on an input of 3 x 4 with two bins for each pixel. The second has no score above 0 down.
    #[rustfmt::skip]
    fn pair() -> [Tensor; 2] {
        [
            floats(&[1, 2, 6], &[
                0.1, 0.2, 0.3, 0.9, 0.8, 0.0,
                0.0, 0.5, 0.5, 0.4, 0.0, -1.0,
            ]),
            floats(&[1, 2, 8], &[
                0.0, 0.0, 0.0, 0.0, 0.0, 0.7, 0.1, 0.6,
                -0.5, -0.4, -0.3, -0.25, -0.3, -0.4, -0.5, -0.6,
            ]),
        ]
    }

    fn named(names: [&str; 2]) -> Signature {
        signature(&[(names[0], &[-1, 2, 6]), (names[1], &[-1, 2, 8])])
    }

    fn keys(x: &str, y: &str) -> Landmarks {
        Landmarks { x: Some(x.to_owned()), y: Some(y.to_owned()), ..Landmarks::default() }
    }

    type Point = ([f32; 2], Option<f32>);

    fn found(task: Landmarks, names: [&str; 2], tensors: &[Tensor; 2]) -> Result<Vec<Point>, String> {
        let (signature, labels) = (named(names), Labels::default());
        let task = task.resolve(&signature, &labels, INPUT)?;
        // Resolved again, as after a pass that has shown the shapes.
        let task = task.resolve(&signature, &labels, INPUT)?;
        let points = task.answer(&Outputs::new(tensors, &signature)?, &labels, None)?;
        Ok(points.into_iter().map(|point| ([point.x, point.y], point.score)).collect())
    }

    #[test]
    fn a_point_is_at_the_best_bins_and_its_score_is_the_smaller_of_both() {
        let expected = [([1.5, 2.5], Some(0.7)), ([0.5, 1.5], Some(-0.25))];
        let [x, y] = pair();
        assert_eq!(found(Landmarks::default(), OUTPUTS, &[x.clone(), y.clone()]).unwrap(), expected);
        assert_eq!(found(keys("a", "b"), ["a", "b"], &[x.clone(), y.clone()]).unwrap(), expected);
        let simcc = Landmarks { form: Some(Form::Simcc), ..Landmarks::default() };
        assert_eq!(found(simcc, OUTPUTS, &[x, y]).unwrap(), expected);
    }

    #[test]
    fn points_of_bins_are_those_of_the_posted_image() {
        // 6 x 4 posted: scale 2, one row of padding above and below.
        let placement = Preprocess { resize: Resize::Letterbox, ..Preprocess::new(3, 4) }.placement(6, 4);
        let (signature, labels) = (named(OUTPUTS), Labels::parse("nose\nchin").unwrap());
        let task = Landmarks::default().resolve(&signature, &labels, INPUT).unwrap();
        let tensors = pair();
        let points =
            task.answer(&Outputs::new(&tensors, &signature).unwrap(), &labels, Some(&placement)).unwrap();
        let told: Vec<_> = points
            .iter()
            .map(|point| (point.label.as_deref().map(str::to_owned), point.x, point.y))
            .collect();
        assert_eq!(told, [(Some("nose".to_owned()), 3.0, 3.0), (Some("chin".to_owned()), 1.0, 1.0)]);
    }

    #[test]
    fn outputs_that_are_no_bins_of_the_same_points_are_refused_at_load() {
        let refused = |task: Landmarks, outputs: &[(&str, &[i64])], labels: &str, told: &str| {
            let labels = Labels::parse(labels).unwrap();
            let error = task.resolve(&signature(outputs), &labels, Some([192, 256])).unwrap_err();
            assert!(error.contains(told), "{error}");
        };
        let of = |x: &'static [i64], y: &'static [i64]| [("simcc_x", x), ("simcc_y", y)];
        let right = of(&[-1, 17, 384], &[-1, 17, 512]);
        refused(Landmarks::default(), &right, "a\nb", "has 17 points, expected 2");
        refused(Landmarks::default(), &of(&[-1, 17, 384], &[-1, 18, 512]), "", "and output \"simcc_y\" 18");
        refused(
            Landmarks::default(),
            &of(&[-1, 17, 384], &[2, 17, 512]),
            "",
            "has shape [2, 17, 512], expected [1, points, bins]",
        );
        refused(Landmarks::default(), &of(&[-1, 17, 0], &[-1, 17, 512]), "", "expected [1, points, bins]");
        refused(
            keys("simcc_y", "simcc_x"),
            &right,
            "",
            "has 512 bins for 192 columns of the input, and output \"simcc_x\" 384 for 256 rows",
        );
        refused(keys("simcc_x", "y"), &right, "", "landmarks.y: the model has no output \"y\"");
        let refining = Landmarks { refine: Some(true), ..Landmarks::default() };
        refused(refining, &right, "", "landmarks.refine is not read of simcc");
        let one = Landmarks { output: Some("simcc_x".to_owned()), ..keys("simcc_x", "simcc_y") };
        refused(one, &right, "", "landmarks.output is not read of simcc");
        let others = [("a", &[-1, 17, 384][..]), ("b", &[-1, 17, 512])];
        let simcc = Landmarks { form: Some(Form::Simcc), ..Landmarks::default() };
        refused(
            simcc,
            &others,
            "",
            "it has \"a\", \"b\": name the outputs of bins by landmarks.x and landmarks.y",
        );
        refused(
            Landmarks::default(),
            &others,
            "",
            "choose one with landmarks.output, or name those of SimCC's bins by landmarks.x and",
        );
        let heatmaps =
            Landmarks { form: Some(Form::Heatmaps), output: Some("a".to_owned()), ..keys("a", "b") };
        refused(heatmaps, &[("a", &[-1, 17, 64, 48])], "", "landmarks.x is not read of heatmaps");
        // A side times the ratio need not be a whole number.
        let rounded = of(&[-1, 17, 289], &[-1, 17, 384]);
        assert!(
            Landmarks::default().resolve(&signature(&rounded), &Labels::default(), Some([193, 256])).is_ok()
        );
        // Open extents are seen in a pass.
        let open = of(&[-1, -1, -1], &[]);
        assert!(
            Landmarks::default().resolve(&signature(&open), &Labels::default(), Some([192, 256])).is_ok()
        );
    }

    #[test]
    fn bins_that_are_not_finite_are_errors() {
        let [_, y] = pair();
        let mut numbers = [0.0; 12];
        numbers[3] = f32::NAN;
        assert!(found(Landmarks::default(), OUTPUTS, &[floats(&[1, 2, 6], &numbers), y]).is_err());
    }
}
