//! A picture that a network made, and its forms in answers: PNG bytes, or its values as a TIFF.

use super::{
    image::Range,
    sheets::{self, Samples},
};

/// Values of one, three or four channels for each pixel, and which of them are black and white.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// Pixels per row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// 1 for grey, 3 for red, green and blue, 4 for these and alpha.
    pub channels: u8,
    /// Bits per channel in its PNG: 8 or 16.
    pub depth: u8,
    /// The values that are black and white in the PNG.
    pub range: [f32; 2],
    /// Row by row, with the channels of a pixel interleaved.
    pub values: Vec<f32>,
}

impl Picture {
    /// From as many values as the extents say; any numbers are accepted. For an automatic range, the smallest and the largest finite value
    /// are black and white.
    pub(super) fn new(
        [width, height]: [u32; 2],
        channels: u8,
        values: Vec<f32>,
        range: Range,
        depth: u8,
    ) -> Picture {
        let range = match range {
            Range::Of(range) => range,
            Range::Auto => {
                let finite = || values.iter().copied().filter(|value| value.is_finite());
                let least = finite().reduce(f32::min).unwrap_or(0.0);
                [least, finite().reduce(f32::max).unwrap_or(least)]
            }
        };
        Picture { width, height, channels, depth, range, values }
    }

    /// A PNG with [`depth`](Picture::depth) bits per channel. Values beyond black or white become black or white; NaN becomes black.
    ///
    /// # Errors
    /// If the encoder refuses the size.
    pub fn to_png(&self) -> Result<Vec<u8>, String> {
        let color = match self.channels {
            1 => png::ColorType::Grayscale,
            3 => png::ColorType::Rgb,
            _ => png::ColorType::Rgba,
        };
        let [black, white] = self.range.map(f64::from);
        // From 0 to 1. An empty range gives NaN and infinities, which the cast turns into black and white.
        let part = |value: f32| ((f64::from(value) - black) / (white - black)).clamp(0.0, 1.0);
        let (depth, data): (_, Vec<u8>) = if self.depth == 16 {
            let sample = |value: &f32| ((part(*value) * 65535.0).round() as u16).to_be_bytes();
            (png::BitDepth::Sixteen, self.values.iter().flat_map(sample).collect())
        } else {
            let sample = |value: &f32| (part(*value) * 255.0).round() as u8;
            (png::BitDepth::Eight, self.values.iter().map(sample).collect())
        };
        encode([self.width, self.height], color, depth, &data, |_| Ok(()))
            .map_err(|error| format!("cannot write a picture {error}"))
    }

    /// An uncompressed TIFF of 32-bit floating-point numbers: the values unchanged.
    ///
    /// # Errors
    /// If the encoder refuses the size: 4 GiB and more.
    pub fn to_tiff(&self) -> Result<Vec<u8>, String> {
        sheets::page([self.width, self.height], self.channels, Samples::Floats(&self.values))
    }
}

/// A PNG that is encoded fast; `beside` sets further options of the encoder.
///
/// # Errors
/// The encoder's error, with the size in front.
pub(super) fn encode(
    [width, height]: [u32; 2],
    color: png::ColorType,
    depth: png::BitDepth,
    data: &[u8],
    beside: impl FnOnce(&mut png::Encoder<'_, &mut Vec<u8>>) -> Result<(), png::EncodingError>,
) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    // Masks are flat, so this makes them small enough. Pictures compress little anyway.
    encoder.set_compression(png::Compression::Fast);
    let failed = |error: png::EncodingError| format!("of {width} x {height} pixels as PNG: {error}");
    beside(&mut encoder).map_err(failed)?;
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(data).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;
    use tiff::{
        ColorType,
        decoder::{Decoder, DecodingResult},
        tags::{ExtraSamples, Tag},
    };

    fn picture(channels: u8, range: Range, depth: u8, values: &[f32]) -> Picture {
        let width = values.len() as u32 / u32::from(channels);
        Picture::new([width, 1], channels, values.to_vec(), range, depth)
    }

    /// The content of a PNG of these values: its colour type, and its bytes.
    fn samples(picture: &Picture) -> (png::ColorType, Vec<u8>) {
        let bytes = picture.to_png().unwrap();
        let mut reader = png::Decoder::new(Cursor::new(bytes)).read_info().unwrap();
        let mut data = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut data).unwrap();
        assert_eq!((info.width, info.height), (picture.width, picture.height));
        assert_eq!(info.bit_depth as u8, picture.depth);
        (info.color_type, data)
    }

    #[test]
    fn values_are_clamped_and_rounded_to_the_nearest_and_nan_is_black() {
        let values =
            [-0.5, 0.0, 0.4 / 255.0, 0.6 / 255.0, 1.0, 7.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        let grey = picture(1, Range::Of([0.0, 1.0]), 8, &values);
        assert_eq!(samples(&grey), (png::ColorType::Grayscale, vec![0, 0, 0, 1, 255, 255, 0, 255, 0]));
        // Smaller values may be white, as depth maps are often shown.
        let turned = picture(1, Range::Of([1.0, 0.0]), 8, &values);
        assert_eq!(samples(&turned).1, [255, 255, 255, 254, 0, 0, 0, 0, 255]);
        let bytes = picture(3, Range::Of([0.0, 255.0]), 8, &[0.0, 1.0, 254.0, 255.0, 127.4, 127.6]);
        assert_eq!(samples(&bytes), (png::ColorType::Rgb, vec![0, 1, 254, 255, 127, 128]));
    }

    #[test]
    fn sixteen_bits_are_big_endian_and_as_fine_as_the_values() {
        let fine = picture(4, Range::Of([0.0, 65535.0]), 16, &[0.0, 258.0, 65535.0, 65534.0]);
        assert_eq!(samples(&fine), (png::ColorType::Rgba, vec![0, 0, 1, 2, 255, 255, 255, 254]));
    }

    #[test]
    fn an_automatic_range_is_of_the_finite_values_of_each_picture() {
        let check = |values: &[f32], range: [f32; 2], expected: &[u8]| {
            let picture = picture(1, Range::Auto, 8, values);
            assert_eq!((picture.range, &samples(&picture).1[..]), (range, expected), "{values:?}");
        };
        check(&[-10.0, 0.0, 10.0, 30.0], [-10.0, 30.0], &[0, 64, 128, 255]);
        check(&[f32::NAN, 2.0, f32::INFINITY, 4.0], [2.0, 4.0], &[0, 0, 255, 255]);
        check(&[f32::MIN, f32::MAX, 0.0], [f32::MIN, f32::MAX], &[0, 255, 128]);
        // A picture of equal values is all black, and so is one without finite values.
        check(&[3.0, 3.0], [3.0, 3.0], &[0, 0]);
        check(&[f32::NAN, f32::NAN], [0.0, 0.0], &[0, 0]);
    }

    #[test]
    fn a_tiff_has_the_values_as_they_are() {
        for (channels, kind) in
            [(1_u8, ColorType::Gray(32)), (3, ColorType::RGB(32)), (4, ColorType::RGBA(32))]
        {
            let values: Vec<f32> = (0..2 * 3 * channels).map(|n| f32::from(n) * 1.25 - 7.0).collect();
            let picture = Picture::new([3, 2], channels, values.clone(), Range::Of([0.0, 1.0]), 8);
            let mut decoder = Decoder::new(Cursor::new(picture.to_tiff().unwrap())).unwrap();
            assert_eq!(decoder.dimensions().unwrap(), (3, 2));
            assert_eq!(decoder.colortype().unwrap(), kind);
            let extra = decoder.find_tag_unsigned_vec::<u16>(Tag::ExtraSamples).unwrap();
            assert_eq!(extra, (channels == 4).then(|| vec![ExtraSamples::UnassociatedAlpha.to_u16()]));
            let DecodingResult::F32(read) = decoder.read_image().unwrap() else { panic!("expected floats") };
            assert_eq!(read, values);
        }
    }
}
