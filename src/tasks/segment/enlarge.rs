//! From scores at the size of the output to classes at the size of the posted image, by the scores between the output's pixels.
//!
//! The scores at a pixel's centre are interpolated bilinearly between those of the four nearest texels (pixels of the output), as torch's
//! `interpolate(mode="bilinear", align_corners=False)` does, and the best class counts, the first if several are equal. What is interpolated
//! lies between its corners. So if one class is the best at all four, it is the best everywhere between them; and a class that another
//! one exceeds at all four is nowhere the best. Only what is left is computed, and no scores of the image's size are ever held.

use crate::image::Placement;
use std::ops::Range;

/// Scores that are interpolated for one image at most; more are refused. It takes a few seconds.
pub(super) const SCORES_MAX: u64 = 2_000_000_000;

/// Pixels between four texels from which on it pays to find the classes that can be best there.
const PIXELS_WORTH: usize = 4;

/// How the posted image lies over the rows and columns of an output.
pub(super) struct Grid {
    across: Axis,
    down: Axis,
    /// Texels per row.
    width: usize,
}

impl Grid {
    /// `input` and `output` are width and height of the model's input and of its output, none of them zero.
    pub(super) fn new(placement: &Placement, input: [u32; 2], output: [usize; 2]) -> Grid {
        let (source, resized, offset) = placement.numbers();
        let axis = |axis: usize| {
            Axis::new(source[axis], resized[axis], offset[axis], f64::from(input[axis]), output[axis])
        };
        Grid { across: axis(0), down: axis(1), width: output[0] }
    }

    /// The class of each pixel of the image, row by row. `best` has that of each texel.
    ///
    /// # Errors
    /// More than `scores_max` scores to interpolate.
    pub(super) fn best(
        &self,
        scores: &Scores<'_>,
        best: &[u16],
        scores_max: u64,
    ) -> Result<Vec<u16>, String> {
        let mut interpolated = 0_u64;
        let (mut candidates, mut highest) = (Vec::new(), Vec::new());
        self.fill(|corners, mut block| {
            let winners = corners.map(|texel| best[texel]);
            if let Some(class) = all_equal(winners) {
                block.paint(class);
                return Ok(());
            }
            scores.candidates(corners, winners, block.pixels(), &mut candidates);
            interpolated += candidates.len() as u64 * block.pixels() as u64;
            if interpolated > scores_max {
                return Err(self.too_many(scores.classes, scores_max));
            }
            block.rows(|down, across, row| {
                highest.clear();
                highest.resize(row.len(), f32::NEG_INFINITY);
                for (class, [a, b, c, d]) in &candidates {
                    let [left, right] = [mix(*a, *c, down), mix(*b, *d, down)];
                    for ((pixel, highest), across) in row.iter_mut().zip(&mut highest).zip(across) {
                        let score = mix(left, right, *across);
                        if score > *highest {
                            (*pixel, *highest) = (*class, score);
                        }
                    }
                }
            });
            Ok(())
        })
    }

    /// Of one channel: 1 for each pixel of the image whose score is at least the threshold, else 0.
    pub(super) fn above(&self, scores: &Scores<'_>, threshold: f32) -> Result<Vec<u16>, String> {
        self.fill(|corners, mut block| {
            let scores = corners.map(|texel| scores.at(0, texel));
            let is_above = |score: f32| u16::from(score >= threshold);
            match all_equal(scores.map(is_above)) {
                Some(class) => block.paint(class),
                None => block.rows(|down, across, row| {
                    let [a, b, c, d] = scores;
                    let [left, right] = [mix(a, c, down), mix(b, d, down)];
                    for (pixel, across) in row.iter_mut().zip(across) {
                        *pixel = is_above(mix(left, right, *across));
                    }
                }),
            }
            Ok(())
        })
    }

    /// Calls `each` for every block of pixels that lie between the same four texels: above left, above right, below left, below right.
    fn fill(
        &self,
        mut each: impl FnMut([usize; 4], Block<'_>) -> Result<(), String>,
    ) -> Result<Vec<u16>, String> {
        let mut classes = vec![0; self.across.parts.len() * self.down.parts.len()];
        for down in &self.down.spans {
            for across in &self.across.spans {
                let [above, below] = down.texels.map(|texel| texel * self.width);
                let [left, right] = across.texels;
                let corners = [above + left, above + right, below + left, below + right];
                each(corners, Block { grid: self, down, across, classes: &mut classes })?;
            }
        }
        Ok(classes)
    }

    fn too_many(&self, classes: usize, scores_max: u64) -> String {
        format!(
            "an image of {} x {} pixels needs more than {scores_max} scores between those of the network's {classes} classes, the limit \
             for enlarging them: post a smaller image, or set segment.enlarge = \"nearest\"",
            self.across.parts.len(),
            self.down.parts.len()
        )
    }
}

/// Pixels that lie between the same four texels, in the classes of all of the image.
struct Block<'a> {
    grid: &'a Grid,
    down: &'a Span,
    across: &'a Span,
    classes: &'a mut [u16],
}

impl Block<'_> {
    fn pixels(&self) -> usize {
        self.down.pixels.len() * self.across.pixels.len()
    }

    /// Gives all pixels the same class.
    fn paint(&mut self, class: u16) {
        self.rows(|_, _, row| row.fill(class));
    }

    /// Calls `each` for every row of pixels, with how far it is from the upper texels to the lower ones, and how far each pixel is from the
    /// left ones to the right ones.
    fn rows(&mut self, mut each: impl FnMut(f32, &[f32], &mut [u16])) {
        let (columns, width) = (self.across.pixels.clone(), self.grid.across.parts.len());
        for y in self.down.pixels.clone() {
            let row = &mut self.classes[y * width..(y + 1) * width];
            each(
                self.grid.down.parts[y],
                &self.grid.across.parts[columns.clone()],
                &mut row[columns.clone()],
            );
        }
    }
}

/// Scores of each class at each texel.
pub(super) struct Scores<'a> {
    pub(super) values: &'a [f32],
    pub(super) classes: usize,
    /// Whether a class's scores lie together, not a texel's.
    pub(super) planes: bool,
}

/// Beyond it, sums and products of scores would not be numbers any more.
const FAR: f32 = 1e37;

impl Scores<'_> {
    fn at(&self, class: usize, texel: usize) -> f32 {
        let index = match self.planes {
            true => class * (self.values.len() / self.classes) + texel,
            false => texel * self.classes + class,
        };
        self.values[index].clamp(-FAR, FAR)
    }

    /// The classes that may be the best somewhere between the corners, and their scores there. `winners` are the best at the corners.
    fn candidates(
        &self,
        corners: [usize; 4],
        winners: [u16; 4],
        pixels: usize,
        found: &mut Vec<(u16, [f32; 4])>,
    ) {
        let all = |class: usize| corners.map(|texel| self.at(class, texel));
        let winning = winners.map(|class| (usize::from(class), all(usize::from(class))));
        let exceeds = |(winner, best): &(usize, [f32; 4]), class: usize, scores: &[f32; 4]| {
            let mut pairs = best.iter().zip(scores);
            match *winner < class {
                true => pairs.all(|(best, score)| best >= score),
                false => pairs.all(|(best, score)| best > score),
            }
        };
        found.clear();
        for class in 0..self.classes {
            let scores = all(class);
            if pixels < PIXELS_WORTH || !winning.iter().any(|winner| exceeds(winner, class, &scores)) {
                found.push((class as u16, scores));
            }
        }
    }
}

/// What lies between two scores. In this form it rises wherever one of them does, also as it is rounded.
fn mix(from: f32, to: f32, part: f32) -> f32 {
    from * (1.0 - part) + to * part
}

fn all_equal<T: PartialEq + Copy>([first, rest @ ..]: [T; 4]) -> Option<T> {
    rest.iter().all(|other| *other == first).then_some(first)
}

/// One axis: between which texels the image's pixels lie.
struct Axis {
    spans: Vec<Span>,
    /// For each pixel, how far its centre is from the first of its texels to the second.
    parts: Vec<f32>,
}

/// Pixels one after another that lie between the same two texels, or on one.
struct Span {
    pixels: Range<usize>,
    texels: [usize; 2],
}

impl Axis {
    /// An image of `source` pixels that takes `resized` pixels of the input from `offset` on; the output's `texels` cover all of the input.
    /// Texels that show nothing of the image are not read: those of padding.
    fn new(source: f64, resized: f64, offset: f64, input: f64, texels: usize) -> Axis {
        // Rounding may have pushed whole numbers out by an ulp.
        const NEAR: f64 = 1e-6;
        let ratio = texels as f64 / input;
        let end = texels as f64 - 1.0;
        let first = (offset * ratio + NEAR).floor().clamp(0.0, end);
        let last = (((offset + resized) * ratio - NEAR).ceil() - 1.0).clamp(first, end);
        let mut axis = Axis { spans: Vec::new(), parts: Vec::with_capacity(source as usize) };
        for pixel in 0..source as usize {
            let at = ((pixel as f64 + 0.5) / source * resized + offset) * ratio - 0.5;
            let near = at.round();
            let at = if (at - near).abs() < NEAR { near } else { at }.clamp(first, last);
            let low = at.floor();
            axis.parts.push((at - low) as f32);
            axis.add(pixel, [low as usize, at.ceil() as usize]);
        }
        axis
    }

    fn add(&mut self, pixel: usize, texels: [usize; 2]) {
        match self.spans.last_mut() {
            Some(span) if span.texels == texels => span.pixels.end = pixel + 1,
            _ => self.spans.push(Span { pixels: pixel..pixel + 1, texels }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Preprocess, Resize};
    use proptest::prelude::*;

    /// Over all of an image of `source` pixels.
    fn stretched(source: [u32; 2], output: [usize; 2]) -> Grid {
        let stretch = Preprocess { resize: Resize::Stretch, ..Preprocess::new(64, 64) };
        Grid::new(&stretch.placement(source[0], source[1]), [64, 64], output)
    }

    /// For each pixel along an axis the first of its texels and the part beyond it, by torch's formula.
    fn by_formula(source: u32, texels: usize) -> Vec<(usize, f32)> {
        let scale = texels as f64 / f64::from(source);
        let at = |pixel| ((f64::from(pixel) + 0.5) * scale - 0.5).max(0.0);
        let low = |at: f64| (at as usize).min(texels - 1);
        (0..source).map(at).map(|at| (low(at), (at - low(at) as f64) as f32)).collect()
    }

    /// The score of one class at each pixel, as torch would enlarge it.
    fn enlarged(plane: &[f32], source: [u32; 2], [width, height]: [usize; 2]) -> Vec<f32> {
        let (columns, rows) = (by_formula(source[0], width), by_formula(source[1], height));
        let mut scores = Vec::new();
        for &(y, down) in &rows {
            for &(x, across) in &columns {
                let row = |y: usize| {
                    let texel = |x: usize| plane[y.min(height - 1) * width + x.min(width - 1)];
                    mix(texel(x), texel(x + 1), across)
                };
                scores.push(mix(row(y), row(y + 1), down));
            }
        }
        scores
    }

    /// The first of the best classes in each column of planes.
    fn firsts(planes: &[Vec<f32>]) -> Vec<u16> {
        let best = |pixel: usize| {
            let mut found = 0;
            for class in 1..planes.len() {
                if planes[class][pixel] > planes[found][pixel] {
                    found = class;
                }
            }
            found as u16
        };
        (0..planes[0].len()).map(best).collect()
    }

    fn sides() -> impl Strategy<Value = ([u32; 2], [usize; 2])> {
        ((1_u32..40, 1_u32..40), (1_usize..9, 1_usize..9)).prop_map(|(s, o)| (s.into(), o.into()))
    }

    fn scores(classes: usize) -> impl Strategy<Value = ([u32; 2], [usize; 2], Vec<Vec<f32>>)> {
        sides().prop_flat_map(move |(source, output)| {
            let plane = prop::collection::vec(-9.0_f32..9.0, output[0] * output[1]);
            (Just(source), Just(output), prop::collection::vec(plane, classes))
        })
    }

    proptest! {
        #[test]
        fn every_pixel_has_the_class_of_the_highest_score_between_texels(
            (source, output, planes) in scores(5), last in any::<bool>(),
        ) {
            let texels = output[0] * output[1];
            let values: Vec<f32> = match last {
                false => planes.concat(),
                true => (0..texels).flat_map(|texel| planes.iter().map(move |plane| plane[texel])).collect(),
            };
            let scores = Scores { values: &values, classes: planes.len(), planes: !last };
            let found = stretched(source, output).best(&scores, &firsts(&planes), u64::MAX).unwrap();
            let enlarged: Vec<Vec<f32>> = planes.iter().map(|plane| enlarged(plane, source, output)).collect();
            let expected = firsts(&enlarged);
            prop_assert_eq!(found.len(), expected.len());
            for (pixel, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let [found, expected] = [found, expected].map(|class| enlarged[usize::from(*class)][pixel]);
                prop_assert!(expected - found < 1e-4, "pixel {pixel}: {found} instead of {expected}");
            }
        }

        #[test]
        fn one_channel_is_compared_with_the_threshold_between_texels((source, output, planes) in scores(1)) {
            let scores = Scores { values: &planes[0], classes: 1, planes: true };
            let found = stretched(source, output).above(&scores, 0.25).unwrap();
            for (found, score) in found.into_iter().zip(enlarged(&planes[0], source, output)) {
                prop_assert!((score - 0.25).abs() < 1e-4 || found == u16::from(score >= 0.25));
            }
        }
    }

    #[test]
    fn a_class_that_is_the_best_nowhere_in_the_output_may_be_so_between() {
        let planes = [vec![9.0, 0.0], vec![0.0, 9.0], vec![6.0, 6.0]];
        let scores = Scores { values: &planes.concat(), classes: 3, planes: true };
        let found = stretched([16, 1], [2, 1]).best(&scores, &firsts(&planes), u64::MAX).unwrap();
        assert_eq!(found, [0, 0, 0, 0, 0, 0, 0, 2, 2, 1, 1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn of_equal_scores_the_first_class_counts_between_texels_too() {
        let planes = [vec![1.0, 3.0], vec![1.0, 3.0], vec![3.0, 1.0]];
        let scores = Scores { values: &planes.concat(), classes: 3, planes: true };
        let found = stretched([8, 1], [2, 1]).best(&scores, &firsts(&planes), u64::MAX).unwrap();
        assert_eq!(found, [2, 2, 2, 2, 0, 0, 0, 0]);
        // So few pixels that all classes are looked at.
        let found = stretched([4, 1], [2, 1]).best(&scores, &firsts(&planes), u64::MAX).unwrap();
        assert_eq!(found, [2, 2, 0, 0]);
    }

    #[test]
    fn infinite_scores_count_as_very_large_ones() {
        let (low, high) = (f32::NEG_INFINITY, f32::INFINITY);
        let planes = [vec![1.0, low], vec![low, high]];
        let scores = Scores { values: &planes.concat(), classes: 2, planes: true };
        let found = stretched([8, 1], [2, 1]).best(&scores, &firsts(&planes), u64::MAX).unwrap();
        assert_eq!(found, [0, 0, 0, 1, 1, 1, 1, 1]);
        let one = Scores { values: &planes[1], classes: 1, planes: true };
        assert_eq!(stretched([4, 1], [2, 1]).above(&one, 0.5).unwrap(), [0, 0, 1, 1]);
    }

    #[test]
    fn texels_of_padding_are_not_blended_in() {
        // 8 x 4 posted, input 4 x 4: scale 2, one row of padding above and below.
        let placement = Preprocess { resize: Resize::Letterbox, ..Preprocess::new(4, 4) }.placement(8, 4);
        let grid = Grid::new(&placement, [4, 4], [4, 4]);
        #[rustfmt::skip]
        let values = [
            9.0, 9.0, 9.0, 9.0,
            0.0, 1.0, 1.0, 0.0,
            0.0, 1.0, 1.0, 0.0,
            9.0, 9.0, 9.0, 9.0,
        ];
        let scores = Scores { values: &values, classes: 1, planes: true };
        assert_eq!(grid.above(&scores, 0.5).unwrap(), [0, 0, 1, 1, 1, 1, 0, 0].repeat(4));
    }

    #[test]
    fn more_scores_than_the_limit_are_refused_with_what_to_do() {
        let planes = [vec![1.0, 0.0], vec![0.0, 1.0]];
        let scores = Scores { values: &planes.concat(), classes: 2, planes: true };
        let grid = stretched([8, 4], [2, 1]);
        // Four columns lie between the two texels, and two classes may be the best there.
        assert!(grid.best(&scores, &firsts(&planes), 4 * 4 * 2).is_ok());
        assert_eq!(
            grid.best(&scores, &firsts(&planes), 4 * 4 * 2 - 1).unwrap_err(),
            "an image of 8 x 4 pixels needs more than 31 scores between those of the network's 2 classes, the limit for enlarging them: \
             post a smaller image, or set segment.enlarge = \"nearest\""
        );
    }
}
