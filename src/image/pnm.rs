//! Netpbm: PBM, PGM, PPM and PAM, as text and as bytes, with up to 16 bits a sample. Of several images in one file, the first. In text,
//! a cut within the last number cannot be seen.

use super::{DecodeError, Format, Frame, Header, Limits, Orientation, Samples};
use image::{ColorType, ImageDecoder, codecs::pnm::PnmDecoder};
use std::io::Cursor;

type Opened<'a> = PnmDecoder<Cursor<&'a [u8]>>;

fn corrupt(error: impl ToString) -> DecodeError {
    DecodeError::corrupt(Format::Pnm, error)
}

fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Result<(Opened<'a>, Header), DecodeError> {
    let decoder = PnmDecoder::new(Cursor::new(bytes)).map_err(corrupt)?;
    let size = decoder.dimensions();
    limits.check_one(size.0, size.1)?;
    if size.0 == 0 || size.1 == 0 {
        return Err(corrupt(format!("its size is {} × {}", size.0, size.1)));
    }
    let (channels, bits) = match decoder.color_type() {
        ColorType::L8 => (1, 8),
        ColorType::La8 => (2, 8),
        ColorType::Rgb8 => (3, 8),
        ColorType::Rgba8 => (4, 8),
        ColorType::L16 => (1, 16),
        ColorType::La16 => (2, 16),
        ColorType::Rgb16 => (3, 16),
        ColorType::Rgba16 => (4, 16),
        other => return Err(corrupt(format!("its samples are {other:?}"))),
    };
    Ok((decoder, Header::single(Format::Pnm, size, channels, bits, Orientation::UPRIGHT)))
}

pub(super) fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    open(bytes, limits).map(|(_, header)| header)
}

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Frame, DecodeError> {
    let (decoder, header) = open(bytes, limits)?;
    let samples = header.frame_bytes as usize / usize::from(header.bits / 8);
    let samples = match header.bits {
        16 => {
            let mut samples = vec![0_u16; samples];
            decoder.read_image(bytemuck::cast_slice_mut(&mut samples)).map_err(corrupt)?;
            Samples::U16(samples)
        }
        _ => {
            let mut samples = vec![0; samples];
            decoder.read_image(&mut samples).map_err(corrupt)?;
            Samples::U8(samples)
        }
    };
    Ok(Frame::upright(header.orientation, (header.width, header.height), header.channels, samples))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::image::corpus::LIMITS;

    fn check(bytes: &[u8], expected: &((u32, u32), u8, Samples)) {
        let header = header(bytes, &LIMITS).unwrap();
        let frame = decode(bytes, &LIMITS).unwrap();
        assert_eq!(&((frame.width, frame.height), frame.channels, frame.samples.clone()), expected);
        assert_eq!(
            (header.width, header.height, header.channels),
            (frame.width, frame.height, frame.channels)
        );
        assert_eq!(usize::from(header.bits / 8), frame.samples.bytes_each());
        for cut in 3..bytes.len() {
            let cut = &bytes[..cut];
            // Of text, the last number may be cut short and still be one.
            let is_text = matches!(bytes[1], b'1'..=b'3') && cut.len() + 3 >= bytes.len();
            assert!(is_text || decode(cut, &LIMITS).is_err(), "{:?}", String::from_utf8_lossy(cut));
        }
    }

    #[test]
    fn all_kinds_are_read_and_their_samples_fill_the_range() {
        let u8s = |samples: &[u8]| Samples::U8(samples.to_vec());
        // A set bit is black.
        check(b"P1\n# by hand\n3 1\n1 0 1\n", &((3, 1), 1, u8s(&[0, 255, 0])));
        check(b"P4 9 1 \x80\x80", &((9, 1), 1, u8s(&[0, 255, 255, 255, 255, 255, 255, 255, 0])));
        check(b"P2\n2 1\n255\n7 200\n", &((2, 1), 1, u8s(&[7, 200])));
        check(b"P5 1 2 15 \x0f\x03", &((1, 2), 1, u8s(&[255, 51])));
        check(b"P5 2 1 65535 \x01\x02\xff\xff", &((2, 1), 1, Samples::U16(vec![0x0102, 0xffff])));
        check(b"P6 1 1 255 \x01\x02\x03", &((1, 1), 3, u8s(&[1, 2, 3])));
        let pam = b"P7\nWIDTH 1\nHEIGHT 1\nDEPTH 4\nMAXVAL 255\nTUPLTYPE RGB_ALPHA\nENDHDR\n\x01\x02\x03\x04";
        check(pam, &((1, 1), 4, u8s(&[1, 2, 3, 4])));
    }

    #[test]
    fn a_size_beyond_the_limits_is_refused_before_anything_is_allocated() {
        let error = header(b"P5 4000000000 4000000000 255 ", &LIMITS).unwrap_err();
        assert!(error.to_string().contains("image_side_max"), "{error}");
        let error = header(b"P5 0 7 255 ", &LIMITS).unwrap_err();
        assert!(error.to_string().contains("0 × 7"), "{error}");
    }
}
