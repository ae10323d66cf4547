//! NumPy arrays (`.npy`) as pictures: `(h, w)`, `(h, w, c)` with 1 to 4 channels, `(c, h, w)` with 1 or 3, or several such images,
//! `(n, h, w, c)`; where the pages of files are channels, `(c, h, w)` with any number of them. `uint8` and `uint16` are parts of white,
//! numbers of other types are measured values.

use super::{
    DecodeError, Format, Frame, Header, Later, Limits, Orientation, Pages, Samples,
    stack::{Order, SampleType, npy, to_native},
};
use std::borrow::Cow;

/// What the caller can do instead about an array that is not read.
const INSTEAD: &str = "give it the axes (h, w), (h, w, c) or (n, h, w, c) and integers or floats of up to 8 bytes, or send it as a tensor to /v2/models/{model}/infer";
/// The same where pages are channels.
const INSTEAD_OF_CHANNELS: &str = "give it the axes (c, h, w) and integers or floats of up to 8 bytes, or send it as a tensor to /v2/models/{model}/infer";

fn corrupt(error: impl ToString) -> DecodeError {
    DecodeError::corrupt(Format::Npy, error)
}

/// How the numbers of an array follow each other.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Axes {
    /// Image, row, column, channel.
    Interleaved,
    /// Channel, row, column.
    Planes,
    /// The first index runs fastest: of image, row, column, channel.
    Fortran,
    /// The same of channel, row, column.
    FortranPlanes,
}

/// An array as images.
struct Images<'a> {
    /// The numbers as they are stored.
    data: &'a [u8],
    sample: SampleType,
    order: Order,
    axes: Axes,
    count: usize,
    size: (u32, u32),
    channels: u8,
}

impl Images<'_> {
    fn open<'a>(file: &'a [u8], limits: &Limits, first: Pages) -> Result<Images<'a>, DecodeError> {
        let (npy::Header { sample, order, shape, fortran_order }, data) =
            npy::parts(file).map_err(corrupt)?;
        let instead = match first {
            Pages::Pictures => INSTEAD,
            Pages::Channels => INSTEAD_OF_CHANNELS,
        };
        let unsupported = |what: String| DecodeError::unsupported(Format::Npy, what, instead);
        let sample = sample.map_err(unsupported)?;
        let wrong = |what: &str| unsupported(format!("the shape {shape:?}{what}"));
        let (count, [height, width], channels, is_planes) = match shape[..] {
            [height, width] => (1, [height, width], 1, false),
            [count, height, width] if first == Pages::Channels => (count, [height, width], 1, false),
            _ if first == Pages::Channels => return Err(wrong("")),
            [height, width, channels @ 1..=4] => (1, [height, width], channels, false),
            [channels @ (1 | 3), height, width] => (1, [height, width], channels, true),
            [count, height, width, channels @ 1..=4] => (count, [height, width], channels, false),
            [_, _, _] => {
                return Err(wrong(" (its channels are 1 to 4 in the last axis, or 1 or 3 in the first)"));
            }
            [_, _, _, _] => return Err(wrong(" (the last axis is that of 1 to 4 channels)")),
            _ => return Err(wrong("")),
        };
        let axes = match (is_planes, fortran_order) {
            (false, false) => Axes::Interleaved,
            (true, false) => Axes::Planes,
            (false, true) => Axes::Fortran,
            (true, true) => Axes::FortranPlanes,
        };
        let side = |side: u64| u32::try_from(side).unwrap_or(u32::MAX);
        let (size, count) = ((side(width), side(height)), usize::try_from(count).unwrap_or(usize::MAX));
        limits.check_frames(count)?;
        limits.check_side(size.0, size.1)?;
        limits.check_pixels((width * height).saturating_mul(count as u64))?;
        if count == 0 || size.0 == 0 || size.1 == 0 {
            return Err(corrupt(format!("its shape {shape:?} holds no pixel")));
        }
        npy::check_bytes(&shape, sample, data.len()).map_err(corrupt)?;
        if !sample.is_u16() && !sample.is_float() && matches!(channels, 2 | 4) {
            return Err(unsupported(format!(
                "{channels} channels of {} (the last would be opacity)",
                sample.name()
            )));
        }
        Ok(Images { data, sample, order, axes, count, size, channels: channels as u8 })
    }

    /// Bits of a decoded sample.
    fn bits(&self) -> u8 {
        match self.sample {
            SampleType::U8 => 8,
            SampleType::U16 => 16,
            _ => 32,
        }
    }

    /// Bytes of one image as it is stored.
    fn stored_bytes(&self) -> usize {
        self.size.0 as usize * self.size.1 as usize * usize::from(self.channels) * self.sample.bytes()
    }

    /// The bytes of one image, row-major with its channels interleaved.
    fn stored(&self, image: usize) -> Cow<'_, [u8]> {
        let (width, height, channels) =
            (self.size.0 as usize, self.size.1 as usize, usize::from(self.channels));
        let (each, bytes) = (self.stored_bytes(), self.sample.bytes());
        if self.axes == Axes::Interleaved {
            return Cow::Borrowed(&self.data[image * each..][..each]);
        }
        let mut stored = Vec::with_capacity(each);
        for y in 0..height {
            for x in 0..width {
                for channel in 0..channels {
                    let index = match self.axes {
                        Axes::Interleaved | Axes::Planes => x + width * (y + height * channel),
                        Axes::Fortran => image + self.count * (y + height * (x + width * channel)),
                        Axes::FortranPlanes => channel + channels * (y + height * x),
                    };
                    stored.extend_from_slice(&self.data[index * bytes..][..bytes]);
                }
            }
        }
        Cow::Owned(stored)
    }

    fn frame(&self, image: usize) -> Result<Frame, DecodeError> {
        let stored = self.stored(image);
        let pairs = || stored.as_chunks().0.iter();
        let samples = match (self.sample, self.order) {
            (SampleType::U8, _) => Samples::U8(stored.into_owned()),
            (SampleType::U16, Order::Little) => {
                Samples::U16(pairs().map(|pair| u16::from_le_bytes(*pair)).collect())
            }
            (SampleType::U16, Order::Big) => {
                Samples::U16(pairs().map(|pair| u16::from_be_bytes(*pair)).collect())
            }
            (sample, order) => {
                let mut stored = stored.into_owned();
                to_native(order, sample.bytes(), &mut stored);
                let mut values = vec![0.0; stored.len() / sample.bytes()];
                sample.to_f32(&stored, &mut values);
                drop(stored);
                let frame =
                    Frame::measured(Format::Npy, Orientation::UPRIGHT, self.size, self.channels, values);
                return frame.map_err(|error| error.of_page(self.count > 1, image));
            }
        };
        Ok(Frame::upright(Orientation::UPRIGHT, self.size, self.channels, samples))
    }
}

pub(super) fn header(bytes: &[u8], limits: &Limits, first: Pages) -> Result<Header, DecodeError> {
    let images = Images::open(bytes, limits, first)?;
    let first =
        Header::single(Format::Npy, images.size, images.channels, images.bits(), Orientation::UPRIGHT);
    // The bytes of one image in order, before they become numbers.
    let work_bytes = match images.sample {
        SampleType::U8 => 0,
        SampleType::U16 if images.axes == Axes::Interleaved => 0,
        _ => images.stored_bytes() as u64,
    };
    let (width, height) = images.size;
    let later = Later { width, height, bits: images.bits(), bytes: first.frame_bytes + work_bytes };
    Ok(Header { later: vec![later; images.count - 1], work_bytes, ..first })
}

/// Decodes one of the images. There must be so many.
pub(super) fn decode(
    bytes: &[u8],
    limits: &Limits,
    first: Pages,
    image: usize,
) -> Result<Frame, DecodeError> {
    Images::open(bytes, limits, first)?.frame(image)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::image::corpus::{LIMITS, npy, npy_in_order, whole};

    fn frames(descr: &str, shape: &str, data: &[u8]) -> Vec<(u32, u32, u8, Samples)> {
        read(&npy(descr, shape, data), 0)
    }

    /// `beside`: bytes that decoding takes beside each frame.
    fn read(bytes: &[u8], beside: u64) -> Vec<(u32, u32, u8, Samples)> {
        let header = header(bytes, &LIMITS, Pages::Pictures).unwrap();
        let frames = crate::image::decode(bytes, &LIMITS, &whole).unwrap();
        assert_eq!(header.frames().len(), frames.len());
        for frame in &frames {
            let held = (frame.samples.len() * frame.samples.bytes_each()) as u64;
            assert_eq!(header.decoded_bytes(), held + beside);
        }
        let all = header.decoded_bytes() * frames.len() as u64;
        assert_eq!(header.decoding_bytes(frames.len(), &whole), all);
        frames.into_iter().map(|frame| (frame.width, frame.height, frame.channels, frame.samples)).collect()
    }

    #[test]
    fn arrays_of_one_and_of_several_images_are_read() {
        let u8s = |samples: &[u8]| Samples::U8(samples.to_vec());
        assert_eq!(frames("|u1", "(1, 2)", &[3, 4]), [(2, 1, 1, u8s(&[3, 4]))]);
        assert_eq!(frames("|u1", "(2, 1, 3)", &[1, 2, 3, 4, 5, 6]), [(1, 2, 3, u8s(&[1, 2, 3, 4, 5, 6]))]);
        assert_eq!(frames("<u2", "(1, 2)", &[1, 2, 3, 4]), [(2, 1, 1, Samples::U16(vec![0x0201, 0x0403]))]);
        assert_eq!(frames(">u2", "(1, 2)", &[1, 2, 3, 4]), [(2, 1, 1, Samples::U16(vec![0x0102, 0x0304]))]);
        let two = frames("|u1", "(2, 1, 1, 4)", &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(two, [(1, 1, 4, u8s(&[1, 2, 3, 4])), (1, 1, 4, u8s(&[5, 6, 7, 8]))]);
    }

    /// Against the same images in C order.
    #[test]
    fn arrays_whose_first_index_runs_fastest_are_read() {
        for bytes in [1, 2] {
            let (n, h, w, c) = (2, 3, 5, 3);
            let number = |index: usize| (0..bytes).map(move |byte| (7 * index + byte) as u8);
            let plain: Vec<u8> = (0..n * h * w * c).flat_map(number).collect();
            let mut fortran = Vec::new();
            for channel in 0..c {
                for x in 0..w {
                    for y in 0..h {
                        for image in 0..n {
                            fortran.extend(number(((image * h + y) * w + x) * c + channel));
                        }
                    }
                }
            }
            let (descr, shape) = (format!("<u{bytes}"), format!("({n}, {h}, {w}, {c})"));
            let stored = npy_in_order("True", &descr, &shape, &fortran);
            let beside = if bytes > 1 { (h * w * c * bytes) as u64 } else { 0 };
            assert_eq!(read(&stored, beside), frames(&descr, &shape, &plain));
        }
    }

    #[test]
    fn channels_may_come_first_where_they_cannot_come_last() {
        let u8s = |samples: &[u8]| Samples::U8(samples.to_vec());
        let fifteen: Vec<u8> = (0..15).collect();
        let interleaved = [0, 5, 10, 1, 6, 11, 2, 7, 12, 3, 8, 13, 4, 9, 14];
        assert_eq!(frames("|u1", "(3, 1, 5)", &fifteen), [(5, 1, 3, u8s(&interleaved))]);
        assert_eq!(frames("|u1", "(1, 3, 5)", &fifteen), [(5, 3, 1, u8s(&fifteen))]);
        let fortran = npy_in_order("True", "|u1", "(3, 1, 5)", &fifteen);
        assert_eq!(read(&fortran, 0), [(5, 1, 3, u8s(&fifteen))]);
        // Either could be meant: the last axis.
        assert_eq!(frames("|u1", "(3, 1, 4)", &fifteen[..12]), [(1, 3, 4, u8s(&fifteen[..12]))]);
    }

    #[test]
    fn numbers_that_are_no_parts_of_white_are_read_as_they_are() {
        let check = |descr: &str, little: &[u8], expected: &[f32]| {
            let shape = format!("(1, {})", expected.len());
            let each = little.len() / expected.len();
            let big: Vec<u8> = little.chunks(each).flat_map(|number| number.iter().rev().copied()).collect();
            for (order, data) in [('<', little), ('>', &big)] {
                let got = read(&npy(&format!("{order}{descr}"), &shape, data), little.len() as u64);
                assert_eq!(
                    got,
                    [(expected.len() as u32, 1, 1, Samples::F32(expected.to_vec()))],
                    "{order}{descr}"
                );
            }
        };
        check("i1", &[0x80, 1], &[-128.0, 1.0]);
        check("i2", &[0, 0x80, 1, 2], &[-32768.0, 513.0]);
        check("i4", &(-70_000_i32).to_le_bytes(), &[-70_000.0]);
        check("u4", &u32::MAX.to_le_bytes(), &[4_294_967_296.0]);
        check("i8", &(-5_i64).to_le_bytes(), &[-5.0]);
        check("u8", &(1_u64 << 40).to_le_bytes(), &[1_099_511_627_776.0]);
        check("f2", &[0, 0x3c, 0, 0xc0], &[1.0, -2.0]);
        check("f4", &0.1_f32.to_le_bytes(), &[0.1]);
        check("f8", &0.1_f64.to_le_bytes(), &[0.1]);
    }

    #[test]
    fn the_first_value_that_is_no_number_is_refused_with_its_place() {
        let refused = |values: &[f64], shape: &str| {
            let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            crate::image::decode(&npy("<f8", shape, &data), &LIMITS, &whole).unwrap_err().to_string()
        };
        let mut values = [0.0; 12];
        (values[7], values[9]) = (f64::NAN, f64::INFINITY);
        let told = refused(&values, "(3, 4)");
        assert!(told.contains("NaN (the first is at column 3, row 1, counted from 0)"), "{told}");
        let told = refused(&values, "(2, 2, 3)");
        assert!(told.contains("column 0, row 1,"), "{told}");
        values[7] = 1e39;
        let told = refused(&values, "(1, 12)");
        assert!(told.contains("infinite in single precision (the first is at column 7, row 0,"), "{told}");
        // Of several images, or channels of one, also which.
        let told = refused(&values, "(2, 2, 3, 1)");
        assert!(told.contains("column 1, row 0, counted from 0) in page 1 (they count from 0)"), "{told}");
        let array = npy("<f8", "(2, 2, 3)", bytemuck::cast_slice(&values));
        let channels = crate::image::open_pages(array, &LIMITS, Pages::Channels).unwrap();
        assert!(channels.frame(0, &whole).is_ok());
        let told = channels.frame(1, &whole).unwrap_err().to_string();
        assert!(told.contains("column 1, row 0, counted from 0) in page 1 (they count from 0)"), "{told}");
    }

    #[test]
    fn other_arrays_are_refused_with_what_to_do() {
        let refused = |descr: &str, shape: &str, bytes: usize, pages| {
            header(&npy(descr, shape, &vec![0; bytes]), &LIMITS, pages).unwrap_err().to_string()
        };
        let check = |descr: &str, shape: &str, bytes: usize, told: &str| {
            let error = refused(descr, shape, bytes, Pages::Pictures);
            assert!(error.contains(told), "{error}");
        };
        check("<c8", "(1, 2)", 16, "dtype \"<c8\" is not supported; give it the axes");
        check("|u1", "(4, 5, 7)", 140, "its channels are 1 to 4 in the last axis, or 1 or 3 in the first");
        check("<i4", "(1, 2, 4)", 32, "4 channels of i32 (the last would be opacity)");
        check("|u1", "(7, 5, 6)", 210, "the shape [7, 5, 6] (its channels");
        check("|u1", "(2, 7, 5, 6)", 420, "the shape [2, 7, 5, 6] (the last axis");
        check("|u1", "(7,)", 7, "the shape [7]");
        check("|u1", "(0, 5)", 0, "holds no pixel");
        check("|u1", "(2, 5)", 9, "does not fit");
        check("|b1", "(1, 2)", 2, "dtype \"|b1\"");
        check("|u1", "(100000, 1)", 100_000, "image_side_max");
        check("|u1", "(1000, 1, 1, 1)", 1000, "image_frames_max");
        // Where pages are channels, other axes are asked for.
        for (descr, shape, what) in
            [("|u1", "(1, 5, 2, 2)", "the shape [1, 5, 2, 2]"), ("|b1", "(5, 2, 2)", "dtype \"|b1\"")]
        {
            let error = refused(descr, shape, 20, Pages::Channels);
            assert!(
                error.contains(&format!("{what} is not supported; give it the axes (c, h, w) and")),
                "{error}"
            );
        }
    }
}
