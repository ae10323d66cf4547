//! Masks of single things. The model gives values over its input, values over each box, or prototypes of which each box says how much of
//! each is in its own mask. Values in between are interpolated bilinearly. A pixel of the posted image is in the mask if the value at its
//! centre is above the threshold and the centre lies in the box. Masks over the input do not extend beyond the part of the image that the
//! model saw.

use super::{Detect, Instance, MaskArea, Raw, beside::PROTOTYPES, boxes::is_as_many};
use crate::{
    engine::{Dim, Signature, Tensor, show},
    image::Placement,
    tasks::{Output, Outputs, choose, wrong_shape},
};
use std::ops::{Range, RangeInclusive};

/// All masks of an image.
pub(super) struct Masks {
    output: String,
    of: Of,
    rows: usize,
    columns: usize,
    /// A pixel's value must be above this.
    threshold: f32,
    area: MaskArea,
    /// Width and height of the model's input.
    input: [u32; 2],
    placement: Placement,
}

/// What the values `[of, rows, columns]` belong to.
enum Of {
    Prototypes(Vec<f32>),
    /// Boxes. Few of them are answered, so only theirs are converted to numbers.
    Boxes(Tensor),
}

/// One axis: which texels of a mask the pixels of the posted image lie on.
struct Axis {
    /// Pixels whose centres lie in the box.
    pixels: Range<u32>,
    /// The last texel.
    last: usize,
    origin: f64,
    step: f64,
}

impl Axis {
    /// `edges` are those of the box, in pixels of a posted image of `side` pixels; `covers` is the part of the input that the mask's texels
    /// cover; `of_input` is the position of the image's edge in the input, and the size of an image pixel there.
    fn new(edges: [f32; 2], side: u32, covers: [f32; 2], of_input: [f32; 2], texels: usize) -> Axis {
        let first = |edge: f32| (f64::from(edge) - 0.5).ceil().clamp(0.0, f64::from(side)) as u32;
        let [begin, end] = covers.map(f64::from);
        let [offset, scale] = of_input.map(f64::from);
        let texels_per_unit = texels as f64 / (end - begin);
        Axis {
            pixels: first(edges[0])..first(edges[1]),
            last: texels - 1,
            origin: (offset - begin) * texels_per_unit - 0.5,
            step: scale * texels_per_unit,
        }
    }

    /// The position of a pixel's centre among the texels' centres.
    fn at(&self, pixel: u32) -> f64 {
        (self.origin + self.step * (f64::from(pixel) + 0.5)).clamp(0.0, self.last as f64)
    }

    /// The texels between which the pixels lie.
    fn texels(&self) -> RangeInclusive<usize> {
        let last = self.pixels.end.saturating_sub(1);
        self.at(self.pixels.start).floor() as usize..=self.at(last).ceil() as usize
    }

    /// The first pixel whose centre lies beyond a position among the texels.
    fn first_beyond(&self, at: f64) -> u32 {
        self.held(self.pixel(at).floor() + 1.0)
    }

    /// The first pixel whose centre lies at a position or beyond it.
    fn first_from(&self, at: f64) -> u32 {
        self.held(self.pixel(at).ceil())
    }

    /// The pixel whose centre lies at a position among the texels.
    fn pixel(&self, at: f64) -> f64 {
        (at - self.origin) / self.step - 0.5
    }

    fn held(&self, pixel: f64) -> u32 {
        pixel.clamp(f64::from(self.pixels.start), f64::from(self.pixels.end)) as u32
    }
}

impl Detect {
    /// For detectors with separate outputs for boxes, scores and classes. Refuses a file whose masks are not as many as its `n` boxes, or
    /// that leaves open whether masks cover the input or the boxes.
    pub(super) fn resolve_masks(&self, signature: &Signature, n: Dim) -> Result<(), String> {
        if self.masks.is_none() {
            return Ok(());
        }
        let output = choose(signature, self.masks.as_deref(), "detect.masks")?;
        let [leading @ .., rows, columns] = &output.shape[..] else {
            return match output.shape.is_empty() {
                true => Ok(()),
                false => Err(wrong_shape(&output.name, &output.shape, OF_BOXES)),
            };
        };
        // One axis counts boxes; others may have extent 1.
        let fits = |extent: &Dim| extent.takes(1) || is_as_many(*extent, n);
        if leading.is_empty() || !leading.iter().all(fits) {
            return Err(wrong_shape(&output.name, &output.shape, OF_BOXES));
        }
        // Open extents may be those of the input. Fixed extents cannot be those of an input that may have any size.
        let is_of_its_size = match (self.input, rows, columns) {
            (Some([width, height]), Dim::Fixed(rows), Dim::Fixed(columns)) => {
                Some([*rows, *columns] == [height as usize, width as usize])
            }
            (None, Dim::Fixed(_), Dim::Fixed(_)) => Some(false),
            _ => None,
        };
        match (is_of_its_size, self.mask_area) {
            (Some(false), None) => Err(of_another_size(&output.name, &output.shape)),
            (Some(true), Some(MaskArea::Box)) => Err(format!(
                "output {:?} of shape {} has masks of the input's size: they cover it, and detect.mask_area is \"box\"",
                output.name,
                show(&output.shape)
            )),
            _ => Ok(()),
        }
    }

    /// Bytes that masks and their written form take, for a posted image with rows of `width` pixels, if no column of a mask is in more than
    /// two pieces: four counts, as numbers and as text. `None` without masks.
    pub fn mask_bytes(&self, width: u32) -> Option<u64> {
        self.masks.as_ref().map(|_| self.detections_max as u64 * u64::from(width) * 4 * 16)
    }

    /// The masks, if the model has any.
    pub(super) fn read_masks(
        &self,
        outputs: &Outputs<'_>,
        placement: Option<&Placement>,
    ) -> Result<Option<Masks>, String> {
        let Some(name) = self.masks.as_deref() else {
            return Ok(None);
        };
        let Some(placement) = placement.copied() else {
            return Err("masks are in pixels of a posted image, and there is none".to_owned());
        };
        let output = outputs.get(Some(name))?;
        let (wanted, expected) = match self.prototypes {
            Some(prototypes) => (prototypes, PROTOTYPES),
            None => (self.box_count(outputs)?, OF_BOXES),
        };
        let (rows, columns) = match &output.tensor.shape[..] {
            [leading @ .., rows, columns]
                if *rows > 0 && *columns > 0 && leading.iter().product::<usize>() == wanted =>
            {
                (*rows, *columns)
            }
            _ => return Err(wrong_shape(name, &output.shape(), &format!("{expected}: {wanted} of them"))),
        };
        let input = self.input.unwrap_or(placement.input.into());
        let is_of_its_size = [columns, rows] == input.map(|pixels| pixels as usize);
        if self.mask_area.is_none() && self.prototypes.is_none() && !is_of_its_size {
            return Err(of_another_size(name, &output.shape()));
        }
        Ok(Some(Masks {
            output: name.to_owned(),
            of: match self.prototypes {
                Some(_) => Of::Prototypes(output.finite_numbers()?),
                None => Of::Boxes(output.tensor.clone()),
            },
            rows,
            columns,
            threshold: self.mask_threshold.unwrap_or(if self.prototypes.is_some() { 0.0 } else { 0.5 }),
            area: self.mask_area.unwrap_or(MaskArea::Input),
            input,
            placement,
        }))
    }
}

impl Masks {
    /// The mask of a box with these corners in pixels of the input, and these edges in pixels of the posted image.
    ///
    /// # Errors
    /// Prototype factors and values that are not finite.
    pub(super) fn instance(&self, of: &Raw, corners: [f32; 4], edges: [f32; 4]) -> Result<Instance, String> {
        let covers = match self.area {
            MaskArea::Input => [0.0, 0.0, self.input[0] as f32, self.input[1] as f32],
            MaskArea::Box => corners,
        };
        let (offset, scale) = (self.placement.from_source(0.0, 0.0), self.placement.scale());
        let (width, height) = self.placement.source;
        let edges = match (&self.of, self.area) {
            (Of::Boxes(_), MaskArea::Input) => {
                let (left, top) = self.placement.to_source(0.0, 0.0);
                let (right, bottom) = self.placement.to_source(covers[2], covers[3]);
                [left, top, right, bottom]
            }
            _ => edges,
        };
        let across =
            Axis::new([edges[0], edges[2]], width, [covers[0], covers[2]], [offset.0, scale.0], self.columns);
        let down =
            Axis::new([edges[1], edges[3]], height, [covers[1], covers[3]], [offset.1, scale.1], self.rows);
        let mut runs = Runs::new(width, height);
        if across.pixels.is_empty() || down.pixels.is_empty() {
            return Ok(runs.finish());
        }
        let (columns, rows) = (across.texels(), down.texels());
        let block = self.block(of, rows.clone(), columns.clone())?;
        let block_width = columns.end() - columns.start() + 1;
        let mut line = vec![0.0; block.len() / block_width];
        for x in across.pixels.clone() {
            let at = across.at(x) - *columns.start() as f64;
            let left = (at.floor() as usize).min(block_width - 1);
            let right = (left + 1).min(block_width - 1);
            let part = (at - left as f64) as f32;
            for (value, row) in line.iter_mut().zip(block.chunks_exact(block_width)) {
                *value = row[left] + part * (row[right] - row[left]);
            }
            self.column(&line, *rows.start(), &down, x, &mut runs);
        }
        Ok(runs.finish())
    }

    /// Finds the pixels of one column where `line`, which begins with texel `first`, is above the threshold.
    fn column(&self, line: &[f32], first: usize, down: &Axis, x: u32, runs: &mut Runs) {
        let is_in = |value: f32| value > self.threshold;
        let mut begun = is_in(line[0]).then_some(down.pixels.start);
        for (row, pair) in line.windows(2).enumerate() {
            if is_in(pair[0]) == is_in(pair[1]) {
                continue;
            }
            let part = f64::from((self.threshold - pair[0]) / (pair[1] - pair[0]));
            let crossing = (first + row) as f64 + part.clamp(0.0, 1.0);
            // A pixel exactly at the crossing has the threshold's value, which is not above it.
            match begun.take() {
                Some(begin) => runs.push(x, begin..down.first_from(crossing)),
                None => begun = Some(down.first_beyond(crossing)),
            }
        }
        if let Some(begin) = begun {
            runs.push(x, begin..down.pixels.end);
        }
    }

    /// The given rows and columns of a box's values.
    fn block(
        &self,
        of: &Raw,
        rows: RangeInclusive<usize>,
        columns: RangeInclusive<usize>,
    ) -> Result<Vec<f32>, String> {
        let cut = |plane: &[f32]| {
            let rows = rows.clone().map(|row| &plane[row * self.columns..][columns.clone()]);
            rows.flatten().copied().collect::<Vec<f32>>()
        };
        let prototypes = match &self.of {
            Of::Boxes(all) => return Ok(cut(&self.plane(all, of.row)?)),
            Of::Prototypes(values) => values.chunks_exact(self.rows * self.columns),
        };
        let mut block = vec![0.0; rows.clone().count() * columns.clone().count()];
        for (factor, prototype) in of.beside.iter().zip(prototypes) {
            if !factor.is_finite() {
                return Err(format!(
                    "box {} has a factor of {factor} for its mask, expected a finite number",
                    of.row
                ));
            }
            block.iter_mut().zip(cut(prototype)).for_each(|(sum, value)| *sum += factor * value);
        }
        Ok(block)
    }

    /// The values of one box.
    fn plane(&self, all: &Tensor, index: usize) -> Result<Vec<f32>, String> {
        let bytes = all.data.len() / all.elements().max(1) * self.rows * self.columns;
        let tensor = Tensor {
            datatype: all.datatype,
            shape: vec![self.rows, self.columns],
            data: all.data.slice(index * bytes..(index + 1) * bytes),
        };
        Output { name: &self.output, tensor: &tensor }.finite_numbers()
    }
}

/// The shape that masks of boxes must have.
const OF_BOXES: &str = "[1, boxes, rows, columns] or [boxes, 1, rows, columns], a mask for each box";

/// The error if masks may cover either the input or the boxes.
fn of_another_size(name: &str, shape: &[Dim]) -> String {
    format!(
        "output {name:?} of shape {} has masks of another size than the input's: set detect.mask_area to \"box\" if each covers its \
         own box, or to \"input\"",
        show(shape)
    )
}

/// A mask that is being built, column by column.
struct Runs {
    mask: Instance,
    /// Where the last run ended, counted down the columns.
    end: u64,
}

impl Runs {
    fn new(width: u32, height: u32) -> Runs {
        Runs { mask: Instance { width, height, pixels: 0, counts: Vec::new() }, end: 0 }
    }

    /// Adds pixels of column `x`, which follow all that were added before.
    fn push(&mut self, x: u32, rows: Range<u32>) {
        if rows.is_empty() {
            return;
        }
        let begin = u64::from(x) * u64::from(self.mask.height) + u64::from(rows.start);
        let length = rows.end - rows.start;
        match self.mask.counts.last_mut() {
            // The run goes on at the top of the next column.
            Some(last) if begin == self.end => *last += length,
            _ => self.mask.counts.extend([(begin - self.end) as u32, length]),
        }
        self.mask.pixels += u64::from(length);
        self.end = begin + u64::from(length);
    }

    fn finish(mut self) -> Instance {
        let all = u64::from(self.mask.width) * u64::from(self.mask.height);
        if self.end < all {
            self.mask.counts.push((all - self.end) as u32);
        }
        self.mask
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Detection, testing::*},
        *,
    };
    use crate::{
        engine::Tensor,
        image::{Preprocess, Resize},
        tasks::{Labels, testing::*},
    };
    use proptest::prelude::*;

    fn painted(mask: &Instance) -> Vec<bool> {
        let (width, height) = (mask.width as usize, mask.height as usize);
        let mut painted = vec![false; width * height];
        let mut at = 0;
        for (index, count) in mask.counts.iter().enumerate() {
            for position in at..at + *count as usize {
                painted[position % height * width + position / height] = index % 2 == 1;
            }
            at += *count as usize;
        }
        assert_eq!(at, width * height, "run lengths sum to all pixels");
        assert_eq!(painted.iter().filter(|is_in| **is_in).count() as u64, mask.pixels);
        painted
    }

    /// A picture of this size, letterboxed into an input of 100 x 100.
    fn placed(width: u32, height: u32) -> Placement {
        Preprocess { resize: Resize::Letterbox, ..Preprocess::new(100, 100) }.placement(width, height)
    }

    fn prototypes() -> Detect {
        Detect { masks: Some("protos".to_owned()), ..Detect::default() }
    }

    /// Two anchors with two factors each: a box over all of the input, and one with score 0.
    fn segment(
        task: Detect,
        factors: [f32; 2],
        protos: &[f32],
        placement: &Placement,
    ) -> Result<Vec<Detection>, String> {
        let anchor = [&[50.0, 50.0, 100.0, 100.0, 0.9], &factors[..]].concat();
        let numbers = [anchor, vec![0.0; 7]].concat();
        let outputs: [(&str, &[i64], Tensor); 2] = [
            ("output0", &[-1, 2, 7], floats(&[1, 2, 7], &numbers)),
            ("protos", &[-1, 2, 2, 2], floats(&[1, 2, 2, 2], protos)),
        ];
        detections(task, &outputs, "thing", Some(placement))
    }

    #[test]
    fn factors_say_how_much_of_each_prototype_is_in_a_mask() {
        // The left half of the input, and its upper half.
        let protos = [1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0, -1.0];
        let placement = placed(40, 20);
        let mask =
            |factors| segment(prototypes(), factors, &protos, &placement).unwrap().remove(0).mask.unwrap();
        let left = painted(&mask([1.0, 0.0]));
        let upper = painted(&mask([0.0, 2.0]));
        let right = painted(&mask([-1.0, 0.0]));
        for y in 0..20 {
            for x in 0..40 {
                let at = y * 40 + x;
                assert_eq!((left[at], upper[at], right[at]), (x < 20, y < 10, x >= 20), "{x} {y}");
            }
        }
        // Nothing is above the threshold.
        let task = Detect { mask_threshold: Some(3.0), ..prototypes() };
        let none = segment(task, [1.0, 1.0], &protos, &placement).unwrap().remove(0).mask.unwrap();
        assert_eq!((none.pixels, none.counts), (0, vec![800]));
        for infinite in [f32::INFINITY, f32::NEG_INFINITY] {
            let protos = [[infinite].as_slice(), &protos[1..]].concat();
            let error = segment(prototypes(), [1.0, 0.0], &protos, &placement).unwrap_err();
            let told = format!("output \"protos\" is {infinite} at element 0, expected finite numbers");
            assert!(error.contains(&told), "{error}");
        }
        let error = segment(prototypes(), [f32::INFINITY, 0.0], &protos, &placement).unwrap_err();
        assert!(
            error.contains("box 0 has a factor of inf for its mask, expected a finite number"),
            "{error}"
        );
    }

    fn of_boxes(task: Detect, file: &[i64], masks: Tensor) -> Result<Vec<Detection>, String> {
        in_picture(task, file, masks, &placed(100, 100))
    }

    fn in_picture(
        task: Detect,
        file: &[i64],
        masks: Tensor,
        placement: &Placement,
    ) -> Result<Vec<Detection>, String> {
        let outputs: [(&str, &[i64], Tensor); 4] = [
            ("boxes", &[-1, 4], floats(&[2, 4], &[0.0, 0.0, 50.0, 50.0, 20.0, 20.0, 60.0, 60.0])),
            ("labels", &[-1], integers(&[2], &[0, 1])),
            ("scores", &[-1], floats(&[2], &[0.5, 0.9])),
            ("masks", file, masks),
        ];
        detections(Detect { masks: Some("masks".to_owned()), ..task }, &outputs, "", Some(placement))
    }

    /// Two masks over the input, both with one value in some rows and columns, and another value elsewhere.
    fn block(rows: Range<usize>, columns: Range<usize>, inside: f32, outside: f32) -> Tensor {
        let value =
            |row, column| if rows.contains(&row) && columns.contains(&column) { inside } else { outside };
        let plane: Vec<f32> = (0..10_000).map(|at| value(at / 100, at % 100)).collect();
        floats(&[2, 1, 100, 100], &plane.repeat(2))
    }

    #[test]
    fn a_pixel_of_just_the_threshold_is_not_in_a_mask_on_any_side_of_it() {
        let check = |threshold, inside, outside, side: u32, expected: &[Range<u32>; 2]| {
            let task = Detect { mask_threshold: Some(threshold), ..Detect::default() };
            let masks = block(20..30, 40..50, inside, outside);
            let found = in_picture(task, &[-1, 1, 100, 100], masks, &placed(side, side)).unwrap();
            let mask = painted(found[0].mask.as_ref().unwrap());
            for (at, is_in) in (0_u32..).zip(mask) {
                let expects = expected[0].contains(&(at / side)) && expected[1].contains(&(at % side));
                assert_eq!(is_in, expects, "{side} {threshold}: {} {}", at / side, at % side);
            }
        };
        let same = [20..30, 40..50];
        check(0.0, 1.0, 0.0, 100, &same);
        check(0.5, 1.0, 0.5, 100, &same);
        check(0.5, 1.0, 0.0, 100, &same);
        // A centre in the middle between two texels lies at the edge of an odd number of them, between a 0 and a 1.
        check(0.5, 1.0, 0.0, 50, &[10..15, 20..25]);
        let masks = block(21..30, 41..50, 1.0, 0.0);
        let found = in_picture(Detect::default(), &[-1, 1, 100, 100], masks, &placed(50, 50)).unwrap();
        assert_eq!(found[0].mask.as_ref().unwrap().pixels, 4 * 4);
        let masks = block(20..29, 40..49, 1.0, 0.0);
        let found = in_picture(Detect::default(), &[-1, 1, 100, 100], masks, &placed(50, 50)).unwrap();
        assert_eq!(found[0].mask.as_ref().unwrap().pixels, 4 * 4);
    }

    #[test]
    fn masks_over_the_input_end_with_what_the_model_saw_of_a_picture() {
        // Of 300 x 100 the model saw the middle: columns 100 to 199.
        let resize = Resize::Shorter(100);
        let placement = Preprocess { resize, ..Preprocess::new(100, 100) }.placement(300, 100);
        for (columns, expected) in [(90..100, 190..200), (0..10, 100..110)] {
            let masks = block(20..30, columns, 1.0, 0.0);
            let found = in_picture(Detect::default(), &[-1, 1, 100, 100], masks, &placement).unwrap();
            let mask = found[0].mask.as_ref().unwrap();
            let painted = painted(mask);
            assert_eq!(mask.pixels, 100);
            assert!((20..30).all(|y: usize| expected.clone().all(|x: usize| painted[y * 300 + x])));
        }
    }

    #[test]
    fn masks_over_the_input_are_those_of_their_rows_and_end_with_no_box_and_those_of_boxes_do() {
        let mut values = vec![0.0; 2 * 100 * 100];
        values[..10_000].fill(1.0);
        values[10_000 + 30 * 100 + 70] = 1.0;
        let task = Detect::default;
        for (file, shape) in
            [(&[-1, 1, 100, 100][..], vec![2, 1, 100, 100]), (&[-1, 2, 100, 100], vec![1, 2, 100, 100])]
        {
            let found = of_boxes(task(), file, floats(&shape, &values)).unwrap();
            let [best, other] = [0, 1].map(|index| found[index].mask.as_ref().unwrap());
            assert_eq!((best.pixels, &best.counts[..]), (1, &[7030, 1, 2969][..]));
            assert_eq!((other.pixels, &other.counts[..]), (10_000, &[0, 10_000][..]));
        }
        // Interpolated, it would become NaN, which is above and below no threshold.
        values[10_000 + 30 * 100 + 71] = f32::NEG_INFINITY;
        let error = of_boxes(task(), &[-1, 1, 100, 100], floats(&[2, 1, 100, 100], &values)).unwrap_err();
        assert!(
            error.contains("output \"masks\" is -inf at element 3071, expected finite numbers"),
            "{error}"
        );
        // The left half of each box; boxes are 50 and 40 pixels wide.
        let halves = floats(&[2, 1, 2, 2], &[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
        let area = Detect { mask_area: Some(MaskArea::Box), ..task() };
        let found = of_boxes(area, &[-1, 1, 2, 2], halves.clone()).unwrap();
        let best = painted(found[0].mask.as_ref().unwrap());
        assert!(
            best.iter()
                .enumerate()
                .all(|(at, is_in)| *is_in
                    == ((20..40).contains(&(at % 100)) && (20..60).contains(&(at / 100))))
        );
        assert_eq!(found[1].mask.as_ref().unwrap().pixels, 25 * 50);
        let error = of_boxes(task(), &[-1, 1, 2, 2], halves.clone()).unwrap_err();
        assert!(error.contains("another size than the input's: set detect.mask_area"), "{error}");
        // The same if the file leaves the extents open.
        let error = of_boxes(task(), &[-1, 1, -1, -1], halves).unwrap_err();
        assert!(error.contains("another size than the input's: set detect.mask_area"), "{error}");
        let error =
            of_boxes(task(), &[-1, 1, -1, -1], floats(&[1, 1, 100, 100], &values[..10_000])).unwrap_err();
        assert!(error.contains("has shape [1, 1, 100, 100]") && error.contains("2 of them"), "{error}");
    }

    #[test]
    fn masks_of_one_size_beside_an_input_of_any_are_of_boxes_or_what_the_manifest_says() {
        let resolve = |mask_area, masks: &[i64]| {
            let outputs = [("boxes", &[-1, 4][..]), ("labels", &[-1]), ("scores", &[-1]), ("masks", masks)];
            let task = Detect { masks: Some("masks".to_owned()), mask_area, ..Detect::default() };
            task.resolve(&signature(&outputs), &Labels::default(), None).map(|_| ())
        };
        let error = resolve(None, &[-1, 1, 28, 28]).unwrap_err();
        assert!(error.contains("another size than the input's: set detect.mask_area"), "{error}");
        resolve(Some(MaskArea::Box), &[-1, 1, 28, 28]).unwrap();
        resolve(Some(MaskArea::Input), &[-1, 1, 28, 28]).unwrap();
        resolve(None, &[-1, 1, -1, -1]).unwrap();
    }

    proptest! {
        /// Against each pixel's own bilinear value.
        #[test]
        fn a_pixel_is_in_a_mask_where_the_values_around_it_are_above_the_threshold(
            protos in prop::collection::vec(-1.0_f32..1.0, 8),
            factors in prop::array::uniform2(-2.0_f32..2.0),
            (width, height) in (1_u32..60, 1_u32..60),
            threshold in -0.5_f32..0.5,
        ) {
            let placement = placed(width, height);
            let task = Detect { mask_threshold: Some(threshold), ..prototypes() };
            let found = segment(task, factors, &protos, &placement).unwrap();
            let mask = painted(found[0].mask.as_ref().unwrap());
            let value = |row: usize, column: usize| {
                let at = row * 2 + column;
                f64::from(factors[0] * protos[at] + factors[1] * protos[4 + at])
            };
            for y in 0..height {
                for x in 0..width {
                    let (u, v) = placement.from_source(x as f32 + 0.5, y as f32 + 0.5);
                    // Texels' centres are at 25 and 75.
                    let [u, v] = [u, v].map(|at| ((f64::from(at) - 25.0) / 50.0).clamp(0.0, 1.0));
                    let row = |row| value(row, 0) * (1.0 - u) + value(row, 1) * u;
                    let expected = row(0) * (1.0 - v) + row(1) * v - f64::from(threshold);
                    // Exactly at the edge, either is right.
                    if expected.abs() > 1e-4 {
                        prop_assert_eq!(mask[(y * width + x) as usize], expected > 0.0, "{} {}: {}", x, y, expected);
                    }
                }
            }
        }
    }
}
