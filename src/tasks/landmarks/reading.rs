//! What the axes of a landmark model's output are.

use super::{Form, Landmarks, POINTS_MAX};
use crate::{
    engine::{Dim, show},
    image::Layout,
    tasks::{
        Labels, is_one,
        planes::{Planes, both_ways, channels_last},
        wrong_shape,
    },
};

/// How an output is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Reading {
    /// Points one after another, each of this many numbers.
    Coordinates { points: Dim, numbers: usize },
    /// A plane for each point.
    Heatmaps(Planes),
}

pub(super) const COORDINATES: &str = "[1, 2 x points], [1, points, 2] or [1, points, 3]";
pub(super) const HEATMAPS: &str = "[1, points, height, width] or [1, height, width, points]";

impl Landmarks {
    /// The meaning of the axes; `None` if open extents leave it undecided.
    pub(super) fn reading(
        &self,
        name: &str,
        shape: &[Dim],
        labels: &Labels,
    ) -> Result<Option<Reading>, String> {
        let count = self.count(labels);
        let item = match *shape {
            [] => return Ok(None),
            [batch, ref rest @ ..] if is_one(batch) && !rest.is_empty() => rest,
            _ => shape,
        };
        let form = self.form.or_else(|| form(item));
        let expected = match form {
            Some(Form::Heatmaps) => HEATMAPS,
            _ => COORDINATES,
        };
        if item.contains(&Dim::Fixed(0)) {
            return Err(wrong_shape(name, shape, expected));
        }
        let reading = match form {
            // Bins are two outputs' matter.
            None | Some(Form::Simcc) => None,
            Some(Form::Coordinates) => self.points_of(name, shape, item, count)?,
            Some(Form::Heatmaps) => self.planes_of(name, shape, item, count)?,
        };
        let points = match reading {
            None => return Ok(None),
            Some(Reading::Coordinates { points, .. }) => points,
            Some(Reading::Heatmaps(planes)) => planes.channels,
        };
        self.counted(name, shape, points, labels)?;
        Ok(reading)
    }

    /// How many points there are, if the settings or the labels say it.
    fn count(&self, labels: &Labels) -> Option<usize> {
        self.points.or((!labels.is_empty()).then(|| labels.len()))
    }

    /// Refuses an output of too many points, and of others than those that the settings or the labels count.
    pub(super) fn counted(
        &self,
        name: &str,
        shape: &[Dim],
        points: Dim,
        labels: &Labels,
    ) -> Result<(), String> {
        match (points, self.count(labels)) {
            (Dim::Fixed(points), _) if points > POINTS_MAX => Err(format!(
                "output {name:?} of shape {} has {points} points, more than the limit of {POINTS_MAX}: serve it with task = \"tensors\"",
                show(shape)
            )),
            (Dim::Fixed(points), Some(count)) if points != count => Err(format!(
                "output {name:?} of shape {} has {points} points, expected {count}, as landmarks.points or the labels file says",
                show(shape)
            )),
            _ => Ok(()),
        }
    }

    /// Coordinates of so many points, if that is known.
    fn points_of(
        &self,
        name: &str,
        shape: &[Dim],
        item: &[Dim],
        count: Option<usize>,
    ) -> Result<Option<Reading>, String> {
        let wrong = || wrong_shape(name, shape, COORDINATES);
        let of = |points, numbers| Ok(Some(Reading::Coordinates { points, numbers }));
        let axes: Vec<Dim> = match item {
            [points, numbers] => vec![*points, *numbers],
            _ => item.iter().copied().filter(|extent| *extent != Dim::Fixed(1)).collect(),
        };
        match axes[..] {
            [points, Dim::Fixed(numbers @ (2 | 3))] => of(points, numbers),
            [Dim::Fixed(1), only] | [only] => match (only, count) {
                (Dim::Free, _) => Ok(None),
                (Dim::Fixed(all), Some(count)) if all == 2 * count || all == 3 * count => {
                    of(Dim::Fixed(count), all / count.max(1))
                }
                (Dim::Fixed(_), Some(count)) => Err(wrong_shape(
                    name,
                    shape,
                    &format!("2 or 3 numbers for each of {count} points ({COORDINATES})"),
                )),
                (Dim::Fixed(all), None) => match (all % 2, all % 3) {
                    (0, 0) if all > 0 => Err(format!(
                        "output {name:?} of shape {} can be read both ways, as {} points of 2 numbers and as {} of 3: set landmarks.points, \
                         or name the points by labels",
                        show(shape),
                        all / 2,
                        all / 3
                    )),
                    (0, _) => of(Dim::Fixed(all / 2), 2),
                    (_, 0) => of(Dim::Fixed(all / 3), 3),
                    _ => Err(wrong()),
                },
            },
            [_, Dim::Free] => Ok(None),
            _ => Err(wrong()),
        }
    }

    /// Heatmaps of so many points, if that is known.
    fn planes_of(
        &self,
        name: &str,
        shape: &[Dim],
        item: &[Dim],
        count: Option<usize>,
    ) -> Result<Option<Reading>, String> {
        let axes = match *item {
            [a, b, c] => [a, b, c],
            [height, width] => [Dim::Fixed(1), height, width],
            _ => return Err(wrong_shape(name, shape, HEATMAPS)),
        };
        let [first, _, last] = axes;
        let layout =
            match (self.layout, count.map(|count| [first, last].map(|axis| axis == Dim::Fixed(count)))) {
                (Some(layout), _) => layout,
                (None, Some([true, false])) => Layout::Nchw,
                (None, Some([false, true])) => Layout::Nhwc,
                (None, _) if axes.contains(&Dim::Free) && [first, last].contains(&Dim::Free) => {
                    match (first, last) {
                        (Dim::Fixed(_), Dim::Free) => Layout::Nchw,
                        (Dim::Free, Dim::Fixed(_)) => Layout::Nhwc,
                        _ => return Ok(None),
                    }
                }
                (None, _) => match channels_last(axes, None, 0, self.input) {
                    Some(true) => Layout::Nhwc,
                    Some(false) => Layout::Nchw,
                    None => return Err(both_ways(name, shape, "landmarks.layout")),
                },
            };
        Ok(Some(Reading::Heatmaps(Planes::of(axes, layout))))
    }
}

/// What an item of this shape holds; `None` if it may be either.
fn form(item: &[Dim]) -> Option<Form> {
    let are_numbers = |extent: &Dim| matches!(extent, Dim::Fixed(2 | 3));
    match item {
        [_] => Some(Form::Coordinates),
        [_, Dim::Free] => None,
        [_, _] => Some(Form::Coordinates),
        [Dim::Fixed(1), _, last] if are_numbers(last) => Some(Form::Coordinates),
        [_, _, _] if item.iter().filter(|extent| **extent != Dim::Fixed(1)).count() < 2 => {
            Some(Form::Coordinates)
        }
        _ => Some(Form::Heatmaps),
    }
}
