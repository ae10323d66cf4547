//! Netpbm: PBM, PGM, PPM and PAM, as text and as bytes, with up to 16 bits a sample. Of several images in one file, the first. In text,
//! a cut within the last number cannot be seen.

use super::{DecodeError, Format, Frame, Header, Limits, Orientation, Samples};
use crate::words::clipped;
use image::{ColorType, ImageDecoder, codecs::pnm::PnmDecoder};
use std::io::Cursor;

type Opened<'a> = PnmDecoder<Cursor<&'a [u8]>>;

fn corrupt(error: impl ToString) -> DecodeError {
    DecodeError::corrupt(Format::Pnm, error)
}

/// The decoder's words, which may repeat a line of the file.
#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands errors over")]
fn said(error: impl ToString) -> DecodeError {
    corrupt(clipped(&error.to_string()))
}

/// The longest header that is read, in bytes, comments included. The decoder itself would keep a line of any length.
const HEADER_BYTES_MAX: usize = 64 << 10;

/// Refuses headers that are too long, and samples whose width the decoder would get wrong.
fn check_header(bytes: &[u8]) -> Result<(), DecodeError> {
    let head = &bytes[..bytes.len().min(HEADER_BYTES_MAX)];
    let endless = || corrupt(format!("its header does not end within {HEADER_BYTES_MAX} bytes"));
    if head.starts_with(b"P7") {
        let end = head.windows(8).position(|line| line == b"\nENDHDR\n").ok_or_else(endless)?;
        // The word behind another at the start of a line.
        let value = |name: &[u8]| {
            head[..end].split(|byte| *byte == b'\n').find_map(|line| {
                let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
                (words.next()? == name).then(|| words.next().unwrap_or_default())
            })
        };
        let maxval = value(b"MAXVAL").and_then(|text| std::str::from_utf8(text).ok()?.parse::<u32>().ok());
        return match value(b"TUPLTYPE") {
            None if maxval.is_some_and(|maxval| maxval > 255) => Err(DecodeError::unsupported(
                Format::Pnm,
                "16 bits and no TUPLTYPE",
                "say one, such as TUPLTYPE GRAYSCALE",
            )),
            _ => Ok(()),
        };
    }
    // Width, height, and, of kinds with more than black and white, the largest value.
    let numbers = if matches!(head.get(1), Some(b'1' | b'4')) { 2 } else { 3 };
    let mut rest = head.get(2..).unwrap_or_default();
    for _ in 0..numbers {
        rest = rest.trim_ascii_start();
        while let Some(comment) = rest.strip_prefix(b"#") {
            let end = comment.iter().position(|byte| *byte == b'\n').ok_or_else(endless)?;
            rest = comment[end..].trim_ascii_start();
        }
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if !(1..=10).contains(&digits) {
            return Err(corrupt("its header has something else where a number belongs"));
        }
        rest = &rest[digits..];
    }
    Ok(())
}

fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Result<(Opened<'a>, Header), DecodeError> {
    check_header(bytes)?;
    let decoder = PnmDecoder::new(Cursor::new(bytes)).map_err(said)?;
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
            decoder.read_image(bytemuck::cast_slice_mut(&mut samples)).map_err(said)?;
            Samples::U16(samples)
        }
        _ => {
            let mut samples = vec![0; samples];
            decoder.read_image(&mut samples).map_err(said)?;
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
    fn a_header_without_an_end_and_samples_of_unsaid_width_are_refused() {
        let check = |begin: &[u8], filled: u8, told: &str| {
            let error = header(&[begin, &vec![filled; 1 << 20]].concat(), &LIMITS).unwrap_err().to_string();
            assert!(error.contains(told) && error.len() < 300, "{error}");
        };
        check(b"P7\nA", 1, "does not end within 65536 bytes");
        check(b"P5 #", b'a', "does not end within 65536 bytes");
        check(b"P5 ", b'7', "where a number belongs");
        check(b"P6 7 7 ", b'a', "where a number belongs");
        let pam =
            |kind: &str| format!("P7\nWIDTH 1\nHEIGHT 1\nDEPTH 1\nMAXVAL 65535\n{kind}ENDHDR\n\x01\x02");
        for unsaid in [pam(""), pam("").replace("MAXVAL ", "MAXVAL\t")] {
            let error = header(unsaid.as_bytes(), &LIMITS).unwrap_err().to_string();
            assert!(error.contains("TUPLTYPE"), "{error}");
        }
        let grey = decode(pam("TUPLTYPE GRAYSCALE\n").as_bytes(), &LIMITS).unwrap();
        assert_eq!(grey.samples, Samples::U16(vec![0x0102]));
    }

    #[test]
    fn a_size_beyond_the_limits_is_refused_before_anything_is_allocated() {
        let error = header(b"P5 4000000000 4000000000 255 ", &LIMITS).unwrap_err();
        assert!(error.to_string().contains("image_side_max"), "{error}");
        let error = header(b"P5 0 7 255 ", &LIMITS).unwrap_err();
        assert!(error.to_string().contains("0 × 7"), "{error}");
    }
}
