//! Landmarks: the points of the one thing that an image shows, such as a face, a hand or a body. The network gives their coordinates, or a
//! heatmap for each, which is the highest where the point is, or scores of the columns and of the rows that each may be at.

mod bins;
mod reading;

use self::reading::{COORDINATES, HEATMAPS, Reading};
use super::{
    Keypoint, Labels, Output, Outputs, choose,
    planes::{Planes, extent},
    wrong_shape,
};
use crate::{
    engine::Signature,
    image::{Layout, Placement},
};

/// More points are no landmarks: a face with all its contours has 478.
pub const POINTS_MAX: usize = 10_000;

/// Settings of a landmark model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Landmarks {
    /// The output to read. If not set: the only output.
    ///
    /// Coordinates are `[1, 2 K]`, `[1, K, 2]` or `[1, K, 3]`, heatmaps `[1, K, H, W]` or `[1, H, W, K]`, or the same without the 1 for models
    /// that do not batch; coordinates may have further axes of 1.
    pub output: Option<String>,
    /// Of SimCC: the output with the bins across, `[1, K, B]`. If not set: `simcc_x`.
    pub x: Option<String>,
    /// Of SimCC: the output with the bins down. If not set: `simcc_y`.
    pub y: Option<String>,
    /// What the output holds. If not set: SimCC's bins where outputs are so named, else found from its shape.
    pub form: Option<Form>,
    /// How many points there are. If not set: as many as labels, else found from the shape.
    pub points: Option<usize>,
    /// Of coordinates: what they are measured in. Must be set: no file tells.
    pub unit: Option<Unit>,
    /// Of coordinates: which comes first. If not set: x.
    pub order: Option<Order>,
    /// Of coordinates: what the third number of a point is. If not set: its score.
    pub third: Option<Third>,
    /// Of heatmaps: where the axis of the points is. If not set: found from the number of points, else from which extents can be those of an
    /// image.
    pub layout: Option<Layout>,
    /// Of heatmaps: whether a point is moved by a quarter towards the higher neighbour. If not set: it is.
    pub refine: Option<bool>,
    /// Width and height of the model's image input in pixels, set by resolving; `None` where images keep their size.
    pub input: Option<[u32; 2]>,
}

/// What an output holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Numbers of each point.
    Coordinates,
    /// A plane for each point.
    Heatmaps,
    /// Scores of columns and of rows for each point, in two outputs.
    Simcc,
}

impl Form {
    /// All forms, with their names in manifests.
    pub const ALL: [(&str, Form); 3] =
        [("coordinates", Form::Coordinates), ("heatmaps", Form::Heatmaps), ("simcc", Form::Simcc)];
}

/// What coordinates are measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Pixels of the model's input.
    Pixels,
    /// Parts of the input's width and height: 0 to 1.
    Parts,
    /// The same from the centre: -1 to 1.
    Centred,
}

impl Unit {
    /// All units, with their names in manifests.
    pub const ALL: [(&str, Unit); 3] =
        [("pixels", Unit::Pixels), ("parts", Unit::Parts), ("centred", Unit::Centred)];

    /// A coordinate as pixels of an input with this side.
    fn pixels(self, at: f32, side: f32) -> f32 {
        match self {
            Unit::Pixels => at,
            Unit::Parts => at * side,
            Unit::Centred => (at + 1.0) / 2.0 * side,
        }
    }
}

/// Which of a point's coordinates comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Across, then down.
    Xy,
    /// Down, then across.
    Yx,
}

impl Order {
    /// All orders, with their names in manifests.
    pub const ALL: [(&str, Order); 2] = [("xy", Order::Xy), ("yx", Order::Yx)];
}

/// What the third number of a point is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Third {
    /// Its score.
    Score,
    /// Something that is not answered, such as a depth.
    Skip,
}

impl Third {
    /// All meanings, with their names in manifests.
    pub const ALL: [(&str, Third); 2] = [("score", Third::Score), ("skip", Third::Skip)];
}

/// A point in pixels of the model's input, and its score.
type Found = ([f32; 2], Option<f32>);

impl Landmarks {
    pub(super) fn resolve(
        mut self,
        signature: &Signature,
        labels: &Labels,
        input: Option<[u32; 2]>,
    ) -> Result<Landmarks, String> {
        self.input = input;
        if let (Some(points), 1..) = (self.points, labels.len())
            && points != labels.len()
        {
            return Err(format!(
                "landmarks.points = {points}, but the labels file has {} labels, one for each point: leave landmarks.points out, or correct \
                 one of the two",
                labels.len()
            ));
        }
        if self.is_of_bins(signature) {
            return self.of_bins(signature, labels);
        }
        let several = |why| match (&self.output, signature.outputs.len()) {
            (None, 2) => format!("{why}, or name those of SimCC's bins by landmarks.x and landmarks.y"),
            _ => why,
        };
        let output = choose(signature, self.output.as_deref(), "landmarks.output").map_err(several)?;
        // If the file leaves this open, resolving is repeated once a shape has been seen.
        if let Some(reading) = self.reading(&output.name, &output.shape, labels)? {
            match reading {
                Reading::Coordinates { .. } => self.form = Some(Form::Coordinates),
                Reading::Heatmaps(planes) => {
                    self.form = Some(Form::Heatmaps);
                    self.layout = Some(planes.layout);
                }
            }
        }
        if let Some(form) = self.form {
            self.fits(form, &output.name)?;
        }
        self.output = Some(output.name.clone());
        Ok(self)
    }

    /// Refuses settings of another form, and coordinates without a unit.
    fn fits(&self, form: Form, output: &str) -> Result<(), String> {
        let keys = [
            ("output", self.output.is_some(), &[Form::Coordinates, Form::Heatmaps][..]),
            ("x", self.x.is_some(), &[Form::Simcc]),
            ("y", self.y.is_some(), &[Form::Simcc]),
            ("unit", self.unit.is_some(), &[Form::Coordinates]),
            ("order", self.order.is_some(), &[Form::Coordinates]),
            ("third", self.third.is_some(), &[Form::Coordinates]),
            ("layout", self.layout.is_some(), &[Form::Heatmaps]),
            ("refine", self.refine.is_some(), &[Form::Heatmaps]),
        ];
        if let Some((key, ..)) = keys.iter().find(|(_, is_set, of)| *is_set && !of.contains(&form)) {
            let named = Form::ALL.iter().find(|(_, of)| *of == form).map_or("", |(name, _)| name);
            return Err(format!("landmarks.{key} is not read of {named}, which output {output:?} has"));
        }
        if form == Form::Coordinates && self.unit.is_none() {
            return Err(format!(
                "output {output:?} has coordinates, and no file tells what they are measured in: set landmarks.unit = \"pixels\" (of the \
                 model's input), \"parts\" (0 to 1 of its sides) or \"centred\" (-1 to 1)"
            ));
        }
        Ok(())
    }

    /// The points of the posted image, in the model's order; they may lie outside it. Without a placement, those of the model's input.
    pub(super) fn answer(
        &self,
        outputs: &Outputs<'_>,
        labels: &Labels,
        placement: Option<&Placement>,
    ) -> Result<Vec<Keypoint>, String> {
        let size = self.input.or(placement.map(|placement| placement.input.into()));
        let found = match self.form {
            Some(Form::Simcc) => self.best_bins(outputs, labels, size)?,
            _ => self.of_one_output(outputs, labels, size)?,
        };
        let point = |(index, ([x, y], score)): (usize, Found)| {
            let [x, y] = match placement {
                Some(placement) => placement.to_source_open(x, y).into(),
                None => [x, y],
            };
            if !x.is_finite() || !y.is_finite() {
                let output = self.output.as_deref().unwrap_or_default();
                return Err(format!(
                    "output {output:?} has point {index} at [{x}, {y}], expected finite numbers"
                ));
            }
            Ok(Keypoint { x, y, score, label: labels.get(index) })
        };
        found.into_iter().enumerate().map(point).collect()
    }

    /// The points by coordinates or heatmaps, in pixels of the input, which has this size.
    fn of_one_output(
        &self,
        outputs: &Outputs<'_>,
        labels: &Labels,
        size: Option<[u32; 2]>,
    ) -> Result<Vec<Found>, String> {
        let output = outputs.get(self.output.as_deref())?;
        let shape = output.shape();
        let reading = self
            .reading(output.name, &shape, labels)?
            .ok_or_else(|| wrong_shape(output.name, &shape, &format!("{COORDINATES}; or {HEATMAPS}")))?;
        match reading {
            Reading::Coordinates { numbers, .. } => self.coordinates(&output, numbers, size),
            Reading::Heatmaps(planes) => self.peaks(&output, planes, size),
        }
    }

    /// The points that the network gives, in pixels of its input, which has this size.
    fn coordinates(
        &self,
        output: &Output<'_>,
        numbers: usize,
        size: Option<[u32; 2]>,
    ) -> Result<Vec<Found>, String> {
        let unit = self.unit.unwrap_or(Unit::Pixels);
        if unit != Unit::Pixels && size.is_none() {
            return Err(
                "landmarks are parts of the input's size, which is not known without an image".to_owned()
            );
        }
        let [width, height] = size.unwrap_or_default().map(|side| side as f32);
        let values = output.finite_numbers()?;
        let point = |point: &[f32]| {
            let [x, y] = match self.order {
                Some(Order::Yx) => [point[1], point[0]],
                _ => [point[0], point[1]],
            };
            let score = point.get(2).copied().filter(|_| self.third != Some(Third::Skip));
            ([unit.pixels(x, width), unit.pixels(y, height)], score)
        };
        Ok(values.chunks_exact(numbers).map(point).collect())
    }

    /// The highest place of each heatmap, in pixels of the input, and how high it is. As in the code of "Simple Baselines for Human Pose
    /// Estimation and Tracking" (Xiao, Wu and Wei 2018), which HRNet shares, a place away from the edges is moved by a quarter of a pixel of the
    /// heatmap towards the higher neighbour along each axis, and the first pixel of a heatmap is at 0.
    fn peaks(
        &self,
        output: &Output<'_>,
        planes: Planes,
        size: Option<[u32; 2]>,
    ) -> Result<Vec<Found>, String> {
        let [points, height, width] = [planes.channels, planes.height, planes.width].map(extent);
        let values = output.finite_numbers()?;
        let last = planes.layout == Layout::Nhwc;
        let at = |point: usize, x: usize, y: usize| match last {
            true => values[(y * width + x) * points + point],
            false => values[(point * height + y) * width + x],
        };
        // Without a known size the heatmap's own pixels are all there are.
        let [input_width, input_height] = size.unwrap_or([width as u32, height as u32]);
        let scale = [f64::from(input_width) / width as f64, f64::from(input_height) / height as f64];
        let peak = |point: usize| {
            let (mut x, mut y) = (0, 0);
            for row in 0..height {
                for column in 0..width {
                    if at(point, column, row) > at(point, x, y) {
                        (x, y) = (column, row);
                    }
                }
            }
            let is_within = |at: usize, side: usize| 1 < at && at + 1 < side;
            let refines = self.refine != Some(false) && is_within(x, width) && is_within(y, height);
            let [dx, dy] = match refines {
                true => [
                    quarter(at(point, x - 1, y), at(point, x + 1, y)),
                    quarter(at(point, x, y - 1), at(point, x, y + 1)),
                ],
                false => [0.0; 2],
            };
            let place = [(x as f64 + dx) * scale[0], (y as f64 + dy) * scale[1]];
            (place.map(|at| at as f32), Some(at(point, x, y)))
        };
        Ok((0..points).map(peak).collect())
    }
}

/// A quarter towards the higher of two neighbours; 0 if they are equal.
fn quarter(before: f32, after: f32) -> f64 {
    match after.partial_cmp(&before) {
        Some(std::cmp::Ordering::Greater) => 0.25,
        Some(std::cmp::Ordering::Less) => -0.25,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};
    use crate::{
        engine::Tensor,
        image::{Preprocess, Resize},
    };

    /// 200 x 100 posted, input 100 x 100: scale 2, 25 rows of padding above and below.
    fn letterboxed() -> Placement {
        Preprocess { resize: Resize::Letterbox, ..Preprocess::new(100, 100) }.placement(200, 100)
    }

    type Point = (Option<String>, [f32; 2], Option<f32>);

    fn run(
        task: Landmarks,
        tensor: &Tensor,
        labels: &str,
        placement: Option<&Placement>,
    ) -> Result<Vec<Point>, String> {
        let labels = Labels::parse(labels)?;
        let shape: Vec<i64> = tensor.shape.iter().map(|extent| *extent as i64).collect();
        let signature = signature(&[("y", &shape)]);
        let task = task.resolve(&signature, &labels, Some([100, 100]))?;
        let tensors = [tensor.clone()];
        let found = task.answer(&Outputs::new(&tensors, &signature)?, &labels, placement)?;
        let point =
            |point: Keypoint| (point.label.map(|label| label.to_string()), [point.x, point.y], point.score);
        Ok(found.into_iter().map(point).collect())
    }

    fn in_unit(unit: Unit) -> Landmarks {
        Landmarks { unit: Some(unit), ..Landmarks::default() }
    }

    #[test]
    fn coordinates_are_points_of_the_posted_image_in_every_unit_and_shape() {
        let placement = letterboxed();
        let expected = [[20.0, 50.0], [180.0, -50.0]];
        for (unit, numbers) in [
            (Unit::Pixels, [10.0, 50.0, 90.0, 0.0]),
            (Unit::Parts, [0.1, 0.5, 0.9, 0.0]),
            (Unit::Centred, [-0.8, 0.0, 0.8, -1.0]),
        ] {
            for shape in [&[1, 4][..], &[1, 2, 2], &[2, 2], &[4], &[1, 1, 1, 4], &[1, 1, 2, 2]] {
                let found = run(in_unit(unit), &floats(shape, &numbers), "", Some(&placement)).unwrap();
                assert_eq!(found.len(), 2, "{unit:?} {shape:?}");
                for ((_, [x, y], score), [at, down]) in found.iter().zip(&expected) {
                    assert!(
                        (x - at).abs() < 1e-4 && (y - down).abs() < 1e-4,
                        "{unit:?} {shape:?}: {found:?}"
                    );
                    assert_eq!(*score, None);
                }
            }
        }
    }

    #[test]
    fn points_have_names_scores_and_an_order() {
        let tensor = floats(&[1, 2, 3], &[10.0, 50.0, 0.75, 90.0, 0.0, -3.0]);
        let named = |name: &str| Some(name.to_owned());
        let found = run(in_unit(Unit::Pixels), &tensor, "nose\nchin", None).unwrap();
        assert_eq!(
            found,
            [(named("nose"), [10.0, 50.0], Some(0.75)), (named("chin"), [90.0, 0.0], Some(-3.0))]
        );
        let task = Landmarks { order: Some(Order::Yx), third: Some(Third::Skip), ..in_unit(Unit::Pixels) };
        let found = run(task, &tensor, "", None).unwrap();
        assert_eq!(found, [(None, [50.0, 10.0], None), (None, [0.0, 90.0], None)]);
    }

    /// Two heatmaps of 5 x 4: one with its peak within, one with it at the edge.
    #[rustfmt::skip]
    const HEAT: [[f32; 20]; 2] = [
        [
            0.0, 0.0, 0.0, 0.0, 0.0,
            0.0, 0.0, 0.3, 0.0, 0.0,
            0.0, 0.2, 0.9, 0.4, 0.0,
            0.0, 0.0, 0.1, 0.0, 0.0,
        ],
        [
            0.0, 0.0, 0.0, 0.0, 0.5,
            0.0, 0.0, 0.0, 0.2, 0.5,
            0.0, 0.0, 0.0, 0.0, 0.0,
            0.0, 0.0, 0.0, 0.0, 0.0,
        ],
    ];

    #[test]
    fn the_highest_place_of_a_heatmap_is_moved_by_a_quarter_towards_its_higher_neighbours() {
        let planes = floats(&[1, 2, 4, 5], HEAT.as_flattened());
        let interleaved: Vec<f32> = (0..20).flat_map(|at| HEAT.map(|plane| plane[at])).collect();
        let last = floats(&[1, 4, 5, 2], &interleaved);
        // Twenty pixels of the input across for each of a heatmap, and 25 down. The second is at the edge, where nothing is moved.
        let moved = [(None, [45.0, 43.75], Some(0.9)), (None, [80.0, 0.0], Some(0.5))];
        let plain = [(None, [40.0, 50.0], Some(0.9)), (None, [80.0, 0.0], Some(0.5))];
        let two = || Landmarks { points: Some(2), ..Landmarks::default() };
        for tensor in [&planes, &last] {
            assert_eq!(run(two(), tensor, "", None).unwrap(), moved);
            let unmoved = Landmarks { refine: Some(false), ..two() };
            assert_eq!(run(unmoved, tensor, "", None).unwrap(), plain);
        }
        let layout = Landmarks { layout: Some(Layout::Nhwc), ..Landmarks::default() };
        assert_eq!(run(layout, &last, "", None).unwrap(), moved);
        let found = run(two(), &planes, "", Some(&letterboxed())).unwrap();
        assert_eq!(found[0].1, [90.0, 37.5]);
    }

    #[test]
    fn a_heatmap_that_is_the_same_everywhere_has_its_place_at_the_first_pixel() {
        let task = Landmarks { points: Some(1), ..Landmarks::default() };
        let flat = floats(&[1, 1, 4, 5], &[0.25; 20]);
        assert_eq!(run(task, &flat, "", None).unwrap(), [(None, [0.0, 0.0], Some(0.25))]);
    }

    #[test]
    fn what_cannot_be_told_or_does_not_fit_is_refused_at_load() {
        let refused = |task: Landmarks, shape: &[i64], labels: &str, told: &str| {
            let labels = Labels::parse(labels).unwrap();
            let error = task.resolve(&signature(&[("y", shape)]), &labels, Some([192, 256])).unwrap_err();
            assert!(error.contains(told), "{error}");
        };
        let pixels = || in_unit(Unit::Pixels);
        refused(Landmarks::default(), &[-1, 10], "", "set landmarks.unit = \"pixels\"");
        refused(
            pixels(),
            &[-1, 1404],
            "",
            "as 702 points of 2 numbers and as 468 of 3: set landmarks.points",
        );
        refused(pixels(), &[-1, 7], "", "has shape [?, 7], expected [1, 2 x points]");
        refused(pixels(), &[-1, 5, 4], "", "has shape [?, 5, 4], expected [1, 2 x points]");
        refused(pixels(), &[-1, 10], "a\nb", "expected 2 or 3 numbers for each of 2 points");
        refused(pixels(), &[-1, 5, 2], "a\nb", "has 5 points, expected 2");
        refused(pixels(), &[-1, 0, 2], "", "has shape [?, 0, 2], expected");
        refused(pixels(), &[-1, 20_002], "", "has 10001 points, more than the limit of 10000");
        refused(pixels(), &[-1, 17, 64, 48], "", "landmarks.unit is not read of heatmaps");
        let refining = Landmarks { refine: Some(true), ..pixels() };
        refused(refining, &[-1, 10], "", "landmarks.refine is not read of coordinates");
        let five = Landmarks { points: Some(5), ..pixels() };
        refused(five, &[-1, 10], "a\nb", "landmarks.points = 5, but the labels file has 2 labels");
        refused(Landmarks::default(), &[-1, 64, 64, 64], "", "can be read both ways: set landmarks.layout");
        refused(Landmarks::default(), &[-1, 17, 0, 48], "", "has shape [?, 17, 0, 48], expected");
        refused(Landmarks::default(), &[2, 17, 64, 48], "", "expected [1, points, height, width]");
        refused(Landmarks::default(), &[-1, 17, 64, 48], "a\nb", "has 17 points, expected 2");
        let resolved = |task: Landmarks, shape: &[i64]| {
            let task =
                task.resolve(&signature(&[("y", shape)]), &Labels::default(), Some([192, 256])).unwrap();
            (task.form, task.layout)
        };
        let heatmaps = |layout| (Some(Form::Heatmaps), Some(layout));
        assert_eq!(resolved(Landmarks::default(), &[-1, 17, 64, 48]), heatmaps(Layout::Nchw));
        assert_eq!(resolved(Landmarks::default(), &[-1, 64, 48, 17]), heatmaps(Layout::Nhwc));
        assert_eq!(resolved(Landmarks::default(), &[-1, 17, -1, -1]), heatmaps(Layout::Nchw));
        // Decided by the output of a pass.
        for open in [&[][..], &[-1, -1], &[-1, -1, -1], &[-1, -1, -1, -1]] {
            assert_eq!(resolved(Landmarks::default(), open), (None, None), "{open:?}");
        }
    }

    #[test]
    fn numbers_that_are_no_places_are_errors() {
        for wrong in [f32::NAN, f32::INFINITY] {
            assert!(run(in_unit(Unit::Pixels), &floats(&[1, 2], &[1.0, wrong]), "", None).is_err());
            let task = Landmarks { points: Some(1), ..Landmarks::default() };
            assert!(run(task, &floats(&[1, 1, 2, 2], &[0.0, wrong, 0.0, 0.0]), "", None).is_err());
        }
        let far = floats(&[1, 2], &[f32::MAX, 0.0]);
        let error = run(in_unit(Unit::Parts), &far, "", None).unwrap_err();
        assert!(error.contains("has point 0 at [inf, 0], expected finite numbers"), "{error}");
    }
}
