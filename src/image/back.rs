//! Maps a picture that a model made back to the posted image: the inverse of preparing the model's input.

use super::{
    Filter, Placement, Region,
    preprocess::resize::{Picture, pass_of},
};
use fast_image_resize::{Resizer, pixels};

impl Placement {
    /// Brings a model's output picture of `size` pixels, which covers the model's input of `input` pixels, back to the posted image, at the
    /// posted image's size.
    /// Padding is cut off first, so that it is not blended in. The rest is resized bilinearly (antialiased where it shrinks). Where the
    /// image was cropped, the edge pixels are repeated. The channels of a pixel (1, 3 or 4) are interleaved.
    ///
    /// # Errors
    /// What the resizer says.
    pub fn bring_back(
        &self,
        values: Vec<f32>,
        size: [u32; 2],
        channels: usize,
        input: [u32; 2],
    ) -> Result<Vec<f32>, String> {
        let across = Axis::new(self.source.0, self.resized.0, self.offset.0, input[0], size[0]);
        let down = Axis::new(self.source.1, self.resized.1, self.offset.1, input[1], size[1]);
        let cut = cut(values, size, channels, &across, &down);
        if across.is_whole() && down.is_whole() {
            return Ok(cut);
        }
        let picture = Picture { samples: &cut, width: across.pixels, height: down.pixels, channels };
        let region =
            Region { left: across.start, top: down.start, width: across.length, height: down.length };
        let seen = [across.count, down.count];
        let mut resized = Vec::new();
        let (mut resizer, filter) = (Resizer::new(), Filter::Bilinear);
        match channels {
            1 => pass_of::<f32, pixels::F32>(&mut resizer, &picture, &region, seen, filter, &mut resized),
            3 => pass_of::<f32, pixels::F32x3>(&mut resizer, &picture, &region, seen, filter, &mut resized),
            _ => pass_of::<f32, pixels::F32x4>(&mut resizer, &picture, &region, seen, filter, &mut resized),
        }?;
        drop(cut);
        Ok(extended(resized, channels, &across, &down))
    }
}

impl Placement {
    /// For an input that is [filled up](Placement::is_filled_up): where the image lies in an output of this size, if it had the number of
    /// pixels there that it is shown with.
    pub fn shown_in(&self, size: [u32; 2]) -> Placement {
        let side = |source: u32, input: u32, side: u32| {
            let side = u64::from(side);
            ((u64::from(source) * side + u64::from(input) / 2) / u64::from(input)).clamp(1, side) as u32
        };
        let shown = (side(self.source.0, self.input.0, size[0]), side(self.source.1, self.input.1, size[1]));
        Placement { source: shown, resized: shown, offset: (0, 0), input: size.into(), mirrored: true }
    }
}

/// Where one axis of the posted image lies in the picture.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Axis {
    /// The first pixel of the picture that shows anything of the image, and how many do.
    from: u32,
    pixels: u32,
    /// The span of these pixels that is resized. It begins and ends at pixel boundaries of the image.
    start: f64,
    length: f64,
    /// The pixels of the image that this span becomes, out of `source`.
    first: u32,
    count: u32,
    source: u32,
}

impl Axis {
    fn new(source: u32, resized: u32, offset: i64, input: u32, side: u32) -> Axis {
        let ratio = f64::from(side) / f64::from(input);
        let (left, length) = (offset as f64 * ratio, f64::from(resized) * ratio);
        let from = (left.floor().max(0.0) as u32).min(side - 1);
        let end = ((left + length).ceil().min(f64::from(side)) as u32).max(from + 1);
        // Pixels of the picture to one of the image.
        let each = length / f64::from(source);
        // Division may have pushed whole numbers out by an ulp.
        let near = 1e-6;
        let visible = |at: f64| ((at - left) / each).clamp(0.0, f64::from(source));
        let first = (visible(f64::from(from)) - near).ceil() as u32;
        let last = (visible(f64::from(end)) + near).floor() as u32;
        let pixels = end - from;
        if last <= first {
            // Less than a pixel of the image is seen.
            let middle = visible(f64::from(from) + f64::from(pixels) / 2.0) as u32;
            let length = f64::from(pixels);
            return Axis {
                from,
                pixels,
                start: 0.0,
                length,
                first: middle.min(source - 1),
                count: 1,
                source,
            };
        }
        let start = (left + f64::from(first) * each - f64::from(from)).max(0.0);
        let length = (f64::from(last - first) * each).min(f64::from(pixels) - start);
        Axis { from, pixels, start, length, first, count: last - first, source }
    }

    /// Whether the part that was cut out needs no resize.
    fn is_whole(&self) -> bool {
        let same = self.pixels == self.source && self.count == self.source;
        same && self.start == 0.0 && (self.length - f64::from(self.pixels)).abs() < 1e-6
    }
}

/// Cuts out the part of a picture that shows anything of the image.
fn cut(values: Vec<f32>, size: [u32; 2], channels: usize, across: &Axis, down: &Axis) -> Vec<f32> {
    if size == [across.pixels, down.pixels] {
        return values;
    }
    let row = |row: u32| {
        let begin = (row as usize * size[0] as usize + across.from as usize) * channels;
        &values[begin..begin + across.pixels as usize * channels]
    };
    (down.from..down.from + down.pixels).flat_map(row).copied().collect()
}

/// Repeats the edge pixels out to the edges of the image.
fn extended(values: Vec<f32>, channels: usize, across: &Axis, down: &Axis) -> Vec<f32> {
    if across.count == across.source && down.count == down.source {
        return values;
    }
    let nearest = |axis: &Axis, at: u32| (at.max(axis.first) - axis.first).min(axis.count - 1) as usize;
    let mut whole = Vec::with_capacity(across.source as usize * down.source as usize * channels);
    for row in 0..down.source {
        let row = nearest(down, row) * across.count as usize;
        for column in 0..across.source {
            let pixel = (row + nearest(across, column)) * channels;
            whole.extend_from_slice(&values[pixel..pixel + channels]);
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use crate::image::{Preprocess, Resize};
    use proptest::prelude::*;

    fn back(
        resize: Resize,
        input: [u32; 2],
        source: (u32, u32),
        size: [u32; 2],
        channels: usize,
        values: &[f32],
    ) -> Vec<f32> {
        let preprocess = Preprocess { resize, ..Preprocess::new(input[0], input[1]) };
        let placement = preprocess.placement(source.0, source.1);
        placement.bring_back(values.to_vec(), size, channels, input).unwrap()
    }

    #[test]
    fn what_has_the_images_size_stays_as_it_is() {
        let values = [1.0, f32::NAN, f32::INFINITY, 4.0];
        let stays = back(Resize::Exact, [2, 2], (2, 2), [2, 2], 1, &values);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&stays), bits(&values));
    }

    #[test]
    fn padding_is_cut_off_a_picture_that_has_the_images_scale() {
        // 3 × 2 letterboxed into 3 × 3: the one row of padding lies below.
        let seen = back(Resize::Letterbox, [3, 3], (3, 2), [3, 3], 1, &[1., 2., 3., 4., 5., 6., 0., 0., 0.]);
        assert_eq!(seen, [1., 2., 3., 4., 5., 6.]);
    }

    #[test]
    fn where_the_image_was_cut_off_the_edge_goes_on() {
        // 8 × 4 posted, its shorter side kept: columns 2 to 5 are seen, at twice their size in the output.
        let row = [1.0, 1.0, 2.0, 2.0, 5.0, 5.0, 9.0, 9.0];
        let seen = back(Resize::Shorter(4), [4, 4], (8, 4), [8, 8], 1, &row.repeat(8));
        // Antialiased: weights of 1, 3, 3 and 1 eighths of four pixels of the output; of three at its edges, 3, 3 and 1 sevenths.
        let [first, last] = [8.0 / 7.0, 59.0 / 7.0];
        let expected = [first, first, first, 2.25, 5.125, last, last, last].repeat(4);
        assert_eq!(seen.len(), expected.len());
        for (seen, expected) in seen.iter().zip(expected) {
            assert!((seen - expected).abs() < 1e-5, "{seen} instead of {expected}");
        }
    }

    #[test]
    fn channels_are_resized_each_for_itself() {
        // One pixel and a second become four: a quarter and three quarters between.
        for channels in [1, 3, 4] {
            let values: Vec<f32> =
                (0..2).flat_map(|pixel| (0..channels).map(move |c| (pixel * 8 + c) as f32)).collect();
            let wide = back(Resize::Stretch, [2, 1], (4, 1), [2, 1], channels, &values);
            let expected: Vec<f32> = [0.0, 2.0, 6.0, 8.0]
                .into_iter()
                .flat_map(|at| (0..channels).map(move |c| at + c as f32))
                .collect();
            assert_eq!(wide, expected);
        }
    }

    #[test]
    fn an_image_of_which_hardly_anything_was_seen_is_filled_with_it() {
        let seen = back(Resize::Shorter(4), [4, 4], (1000, 1), [4, 4], 1, &[7.0; 16]);
        assert_eq!(seen, vec![7.0; 1000]);
    }

    proptest! {
        /// What the model saw of a ramp comes back as that ramp, however it got there.
        #[test]
        fn a_ramp_comes_back_as_it_was(
            (width, height) in (1_u32..60, 1_u32..60), side in 4_u32..40, twice in 1_u32..4, kind in 0_usize..4
        ) {
            let resize = [Resize::Stretch, Resize::Letterbox, Resize::Shorter(side), Resize::Square(side + 3)][kind];
            let preprocess = Preprocess { resize, ..Preprocess::new(side, side) };
            let placement = preprocess.placement(width, height);
            let out = side * twice;
            // Each pixel of the output has the place in the posted image that it shows, in parts of its width.
            let at = |column: u32| {
                let x = (f64::from(column) + 0.5) / f64::from(twice) - placement.offset.0 as f64;
                (x / f64::from(placement.resized.0)) as f32
            };
            let values: Vec<f32> = (0..out).flat_map(|_| (0..out).map(at)).collect();
            let back = placement.bring_back(values, [out, out], 1, [side, side]).unwrap();
            prop_assert_eq!(back.len(), (width * height) as usize);
            // A pixel of the image that is seen in part shows what its neighbour does: up to one and a half are between their centres
            // and the edge; and at edges a blend has one side only.
            let bound = (1.0 / f64::from(placement.resized.0 * twice) + 1.5 / f64::from(width)) as f32;
            let [least, most] = [at(0), at(out - 1)].map(|end| end.clamp(0.0, 1.0));
            for (pixel, value) in back.iter().enumerate() {
                let expected = (pixel as u32 % width) as f32 + 0.5;
                let expected = (expected / width as f32).clamp(least, most);
                prop_assert!((value - expected).abs() <= bound, "{} instead of {}, within {}", value, expected, bound);
            }
        }
    }
}
