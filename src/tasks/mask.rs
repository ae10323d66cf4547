//! A class per pixel, and its forms in answers: PNG and TIFF bytes, run lengths, pixel counts.

use super::{
    Labels,
    picture::encode,
    sheets::{self, Samples},
};
use std::sync::Arc;

/// A class per pixel of the posted image.
#[derive(Debug, Clone, PartialEq)]
pub struct Mask {
    /// Pixels per row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Row-major class indices.
    pub classes: Vec<u16>,
    /// The classes that occur, by index.
    pub present: Vec<MaskClass>,
}

/// A class that occurs in a mask.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskClass {
    /// Class index.
    pub index: u16,
    /// Its name, if the model has labels.
    pub label: Option<Arc<str>>,
    /// Pixels of this class.
    pub pixels: u64,
}

/// The pixels of one class as run lengths, in the uncompressed form of COCO.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Class index.
    pub index: u16,
    /// Column by column: pixels of other classes, pixels of this class, and so on. They sum to all pixels.
    pub counts: Vec<u32>,
}

impl Mask {
    /// Counts the pixels of each class.
    pub(super) fn new(width: u32, height: u32, classes: Vec<u16>, labels: &Labels) -> Mask {
        let largest = classes.iter().copied().max().unwrap_or(0);
        let mut counts = vec![0_u64; usize::from(largest) + 1];
        for class in &classes {
            counts[usize::from(*class)] += 1;
        }
        let present = (0..=largest)
            .zip(counts)
            .filter(|(_, pixels)| *pixels > 0)
            .map(|(index, pixels)| MaskClass { index, label: labels.get(usize::from(index)), pixels })
            .collect();
        Mask { width, height, classes, present }
    }

    /// A PNG whose palette indices are the classes, for viewing: class 0 is black, neighbouring classes differ strongly. Grey with 16 bits
    /// if a class above 255 occurs, since palettes end there.
    ///
    /// # Errors
    /// If the encoder refuses the size (a side of zero).
    pub fn to_png_palette(&self) -> Result<Vec<u8>, String> {
        if self.is_wide() {
            let data: Vec<u8> = self.classes.iter().flat_map(|class| class.to_be_bytes()).collect();
            return self.encode(png::ColorType::Grayscale, png::BitDepth::Sixteen, &data);
        }
        let data: Vec<u8> = self.classes.iter().map(|class| *class as u8).collect();
        self.encode(png::ColorType::Indexed, png::BitDepth::Eight, &data)
    }

    /// An uncompressed TIFF whose samples are the classes, of 8 bits if those suffice, else of 16.
    ///
    /// # Errors
    /// If the encoder refuses the size: 4 GiB and more.
    pub fn to_tiff(&self) -> Result<Vec<u8>, String> {
        let size = [self.width, self.height];
        if self.is_wide() {
            return sheets::page(size, 1, Samples::Words(&self.classes));
        }
        let bytes: Vec<u8> = self.classes.iter().map(|class| *class as u8).collect();
        sheets::page(size, 1, Samples::Bytes(&bytes))
    }

    /// Whether a byte does not hold every class that occurs.
    fn is_wide(&self) -> bool {
        self.present.last().is_some_and(|class| class.index > 255)
    }

    fn encode(&self, color: png::ColorType, depth: png::BitDepth, data: &[u8]) -> Result<Vec<u8>, String> {
        let png = encode([self.width, self.height], color, depth, data, |encoder| {
            if color == png::ColorType::Indexed {
                let colors = self.present.last().map_or(1, |class| class.index + 1);
                let palette: Vec<u8> = (0..colors).flat_map(|c| tint(c as u8)).collect();
                encoder.set_palette(palette);
            }
            Ok(())
        });
        png.map_err(|error| format!("cannot write a mask {error}"))
    }

    /// Run lengths of every class that occurs, by index.
    pub fn runs(&self) -> Vec<Run> {
        let [width, height] = [self.width as usize, self.height as usize];
        let mut runs: Vec<Run> =
            self.present.iter().map(|class| Run { index: class.index, counts: Vec::new() }).collect();
        let largest = self.present.last().map_or(0, |class| class.index);
        let mut place = vec![0; usize::from(largest) + 1];
        for (at, run) in runs.iter().enumerate() {
            place[usize::from(run.index)] = at;
        }
        // Where the last run of each class ended.
        let mut ends = vec![0_usize; runs.len()];
        let mut note = |class: u16, start: usize, end: usize| {
            let at = place[usize::from(class)];
            runs[at].counts.extend([(start - ends[at]) as u32, (end - start) as u32]);
            ends[at] = end;
        };
        let mut open: Option<(u16, usize)> = None;
        for position in 0..width * height {
            let class = self.classes[position % height * width + position / height];
            match open {
                Some((current, _)) if current == class => {}
                Some((current, start)) => {
                    note(current, start, position);
                    open = Some((class, position));
                }
                None => open = Some((class, position)),
            }
        }
        if let Some((class, start)) = open {
            note(class, start, width * height);
        }
        for (run, end) in runs.iter_mut().zip(ends) {
            if end < width * height {
                run.counts.push((width * height - end) as u32);
            }
        }
        runs
    }
}

/// A colour per class: the bits of the class, three at a time, become the high bits of red, green and blue. This is the colour map that
/// PASCAL VOC's annotations made common.
fn tint(class: u8) -> [u8; 3] {
    let mut color = [0; 3];
    let mut rest = class;
    for bit in (0..8).rev() {
        for (channel, value) in color.iter_mut().enumerate() {
            *value |= (rest >> channel & 1) << bit;
        }
        rest >>= 3;
    }
    color
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tiff::decoder::DecodingResult;

    fn mask(width: u32, height: u32, classes: &[u16]) -> Mask {
        Mask::new(width, height, classes.to_vec(), &Labels::parse("sky\nsea").unwrap())
    }

    #[test]
    fn run_lengths_go_down_the_columns() {
        // 0 1 1
        // 1 1 0    down the columns: 0 1 | 1 1 | 1 0
        let runs = mask(3, 2, &[0, 1, 1, 1, 1, 0]).runs();
        assert_eq!(
            runs,
            [Run { index: 0, counts: vec![0, 1, 4, 1] }, Run { index: 1, counts: vec![1, 4, 1] },]
        );
    }

    #[test]
    fn pixels_are_counted_per_class_that_occurs() {
        let present = mask(2, 2, &[1, 1, 7, 1]).present;
        assert_eq!(present.len(), 2);
        assert_eq!((present[0].index, present[0].pixels), (1, 3));
        assert_eq!(present[0].label.as_deref(), Some("sea"));
        assert_eq!((present[1].index, present[1].pixels, &present[1].label), (7, 1, &None));
    }

    fn decode(bytes: &[u8]) -> (png::ColorType, png::BitDepth, Option<Vec<u8>>, Vec<u8>) {
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut data = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut data).unwrap();
        data.truncate(info.buffer_size());
        let palette = reader.info().palette.as_ref().map(|p| p.to_vec());
        (info.color_type, info.bit_depth, palette, data)
    }

    #[test]
    fn png_values_are_the_classes() {
        let small = mask(3, 2, &[0, 1, 2, 255, 4, 5]);
        let (color, _, palette, data) = decode(&small.to_png_palette().unwrap());
        assert_eq!(color, png::ColorType::Indexed);
        assert_eq!(data, [0, 1, 2, 255, 4, 5]);
        let palette = palette.unwrap();
        assert_eq!(palette.len(), 256 * 3);
        // The first colours of the VOC map.
        assert_eq!(palette[..12], [0, 0, 0, 128, 0, 0, 0, 128, 0, 128, 128, 0]);
    }

    fn samples(mask: &Mask) -> DecodingResult {
        let file = std::io::Cursor::new(mask.to_tiff().unwrap());
        tiff::decoder::Decoder::new(file).unwrap().read_image().unwrap()
    }

    #[test]
    fn samples_of_a_tiff_are_the_classes() {
        let small = mask(3, 2, &[0, 1, 2, 255, 4, 5]);
        let DecodingResult::U8(samples) = samples(&small) else { panic!("expected bytes") };
        assert_eq!(samples, [0, 1, 2, 255, 4, 5]);
    }

    #[test]
    fn classes_above_255_take_sixteen_bits() {
        for (class, bytes) in [(256, [1, 0]), (300, [1, 44])] {
            let large = mask(2, 1, &[1, class]);
            let (color, depth, _, data) = decode(&large.to_png_palette().unwrap());
            assert_eq!((color, depth), (png::ColorType::Grayscale, png::BitDepth::Sixteen));
            assert_eq!(data, [0, 1, bytes[0], bytes[1]]);
            let DecodingResult::U16(samples) = samples(&large) else { panic!("expected words") };
            assert_eq!(samples, [1, class]);
        }
    }

    proptest! {
        #[test]
        fn run_lengths_paint_the_mask_again(
            (width, classes) in (1_usize..9, 1_usize..9).prop_flat_map(|(w, h)| (Just(w), prop::collection::vec(0_u16..4, w * h)))
        ) {
            let height = classes.len() / width;
            let mask = mask(width as u32, height as u32, &classes);
            let mut painted = vec![u16::MAX; classes.len()];
            for run in mask.runs() {
                prop_assert_eq!(run.counts.iter().sum::<u32>() as usize, classes.len());
                let mut position = 0;
                for (at, count) in run.counts.iter().enumerate() {
                    for p in position..position + *count as usize {
                        if at % 2 == 1 {
                            painted[p % height * width + p / height] = run.index;
                        }
                    }
                    position += *count as usize;
                }
            }
            prop_assert_eq!(painted, classes);
        }
    }
}
