//! NumPy arrays (`.npy`) of `uint8` or `uint16`: `(h, w)`, `(h, w, c)` with 1 to 4 channels, or several such images, `(n, h, w, c)`.

use super::{
    DecodeError, Format, Frame, Header, Later, Limits, Orientation, Samples,
    stack::{Order, SampleType, npy},
};
use std::borrow::Cow;

/// What the caller can do instead about an array that is not read.
const INSTEAD: &str = "scale it to uint8 or uint16 with the axes (h, w), (h, w, c) or (n, h, w, c), or send it as a tensor to /v2/models/{model}/infer";

fn corrupt(error: impl ToString) -> DecodeError {
    DecodeError::corrupt(Format::Npy, error)
}

/// An array as images.
struct Images<'a> {
    /// The numbers as they are stored.
    data: &'a [u8],
    order: Order,
    /// Whether the first index runs fastest.
    fortran_order: bool,
    /// Of each number: 1 or 2.
    bytes: usize,
    count: usize,
    size: (u32, u32),
    channels: u8,
}

impl Images<'_> {
    fn open<'a>(file: &'a [u8], limits: &Limits) -> Result<Images<'a>, DecodeError> {
        let begins = npy::header_bytes(file).map_err(corrupt)?.filter(|begins| *begins <= file.len() as u64);
        let begins = begins.ok_or_else(|| corrupt("it ends within its header"))? as usize;
        let npy::Header { sample, order, shape, fortran_order } =
            npy::header(&file[..begins]).map_err(corrupt)?;
        let unsupported = |what: String| DecodeError::unsupported(Format::Npy, what, INSTEAD);
        let bytes = match sample {
            Ok(SampleType::U8) => 1,
            Ok(SampleType::U16) => 2,
            Ok(other) => return Err(unsupported(format!("numbers of the type {}", other.name()))),
            Err(what) => return Err(unsupported(what)),
        };
        let axes = |what: &str| unsupported(format!("the shape {shape:?}{what}"));
        let (count, [height, width], channels) = match shape[..] {
            [height, width] => (1, [height, width], 1),
            [height, width, channels @ 1..=4] => (1, [height, width], channels),
            [count, height, width, channels @ 1..=4] => (count, [height, width], channels),
            [_, _, _] | [_, _, _, _] => return Err(axes(" (the last axis is that of 1 to 4 channels)")),
            _ => return Err(axes("")),
        };
        let side = |side: u64| u32::try_from(side).unwrap_or(u32::MAX);
        let (size, count) = ((side(width), side(height)), usize::try_from(count).unwrap_or(usize::MAX));
        limits.check_frames(count)?;
        limits.check_side(size.0, size.1)?;
        limits.check_pixels((width * height).saturating_mul(count as u64))?;
        if count == 0 || size.0 == 0 || size.1 == 0 {
            return Err(corrupt(format!("its shape {shape:?} holds no pixel")));
        }
        let data = &file[begins..];
        // The sides are within limits by now, so this is no large number.
        if shape.iter().product::<u64>() * bytes as u64 != data.len() as u64 {
            return Err(corrupt(format!(
                "its shape {shape:?} does not fit its {} bytes of numbers",
                data.len()
            )));
        }
        Ok(Images { data, order, fortran_order, bytes, count, size, channels: channels as u8 })
    }

    fn bits(&self) -> u8 {
        8 * self.bytes as u8
    }

    /// The bytes of one image, row-major with its channels interleaved.
    fn stored(&self, image: usize) -> Cow<'_, [u8]> {
        let (width, height, channels) =
            (self.size.0 as usize, self.size.1 as usize, usize::from(self.channels));
        let each = width * height * channels * self.bytes;
        if !self.fortran_order {
            return Cow::Borrowed(&self.data[image * each..][..each]);
        }
        let mut stored = Vec::with_capacity(each);
        for y in 0..height {
            for x in 0..width {
                for channel in 0..channels {
                    let index = image + self.count * (y + height * (x + width * channel));
                    stored.extend_from_slice(&self.data[index * self.bytes..][..self.bytes]);
                }
            }
        }
        Cow::Owned(stored)
    }

    fn frame(&self, image: usize) -> Frame {
        let stored = self.stored(image);
        let pairs = || stored.as_chunks().0.iter();
        let samples = match (self.bytes, self.order) {
            (1, _) => Samples::U8(stored.into_owned()),
            (_, Order::Little) => Samples::U16(pairs().map(|pair| u16::from_le_bytes(*pair)).collect()),
            (_, Order::Big) => Samples::U16(pairs().map(|pair| u16::from_be_bytes(*pair)).collect()),
        };
        Frame::upright(Orientation::UPRIGHT, self.size, self.channels, samples)
    }
}

pub(super) fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    let images = Images::open(bytes, limits)?;
    let first =
        Header::single(Format::Npy, images.size, images.channels, images.bits(), Orientation::UPRIGHT);
    // The bytes of one image in order, before they become numbers.
    let work_bytes = if images.fortran_order && images.bytes > 1 { first.frame_bytes } else { 0 };
    let (width, height) = images.size;
    let later = Later { width, height, bits: images.bits(), bytes: first.frame_bytes + work_bytes };
    Ok(Header { later: vec![later; images.count - 1], work_bytes, ..first })
}

/// Decodes one of the images. There must be so many.
pub(super) fn decode(bytes: &[u8], limits: &Limits, image: usize) -> Result<Frame, DecodeError> {
    Ok(Images::open(bytes, limits)?.frame(image))
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
        let header = header(bytes, &LIMITS).unwrap();
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
    fn other_arrays_are_refused_with_what_to_do() {
        let check = |descr: &str, shape: &str, bytes: usize, told: &str| {
            let error = header(&npy(descr, shape, &vec![0; bytes]), &LIMITS).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        };
        check("<f4", "(1, 2)", 8, "numbers of the type f32 is not supported; scale it to uint8");
        check("|u1", "(3, 5, 7)", 105, "the last axis is that of 1 to 4 channels");
        check("|u1", "(7, 5, 6)", 210, "the shape [7, 5, 6] (the last axis");
        check("|u1", "(7,)", 7, "the shape [7]");
        check("|u1", "(0, 5)", 0, "holds no pixel");
        check("|u1", "(2, 5)", 9, "does not fit");
        check("|b1", "(1, 2)", 2, "dtype \"|b1\"");
        check("|u1", "(100000, 1)", 100_000, "image_side_max");
        check("|u1", "(1000, 1, 1, 1)", 1000, "image_frames_max");
    }
}
