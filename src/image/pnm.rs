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

/// Digits of the longest number in a file. Any number of zeros could stand before it.
const DIGITS_MAX: usize = 10;

/// Samples as text: the largest value, and where they begin.
type Text<'a> = (u32, &'a [u8]);

/// Refuses headers that are too long, and samples whose width the decoder would get wrong. Returns the samples if they are text.
fn check_header(bytes: &[u8]) -> Result<Option<Text<'_>>, DecodeError> {
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
            _ => Ok(None),
        };
    }
    // Width, height, and, of kinds with more than black and white, the largest value.
    let numbers = if matches!(head.get(1), Some(b'1' | b'4')) { 2 } else { 3 };
    let mut rest = head.get(2..).unwrap_or_default();
    let mut last = 1;
    for _ in 0..numbers {
        rest = rest.trim_ascii_start();
        while let Some(comment) = rest.strip_prefix(b"#") {
            let end = comment.iter().position(|byte| *byte == b'\n').ok_or_else(endless)?;
            rest = comment[end..].trim_ascii_start();
        }
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&rest[..digits]).ok().filter(|_| digits <= DIGITS_MAX);
        let Some(Ok(number)) = number.map(str::parse::<u64>) else {
            return Err(corrupt("its header has something else where a number belongs"));
        };
        rest = &rest[digits..];
        last = number;
    }
    let largest = if numbers == 2 { 1 } else { u32::try_from(last).map_err(corrupt)? };
    let is_text = matches!(head[1], b'1'..=b'3');
    Ok(is_text.then(|| (largest, &bytes[head.len() - rest.len()..])))
}

/// Reads samples that are text. The decoder would take ten times as long, and reads numbers of any length.
fn read_text(is_bits: bool, (largest, text): Text<'_>, header: &Header) -> Result<Samples, DecodeError> {
    let is_space = |byte: &u8| matches!(byte, b'\t'..=b'\r' | b' ');
    let count = header.frame_bytes as usize / usize::from(header.bits / 8);
    let mut rest = text;
    // A comment directly behind the last number of the header.
    if rest.starts_with(b"#") {
        rest = &rest[rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len())..];
    }
    let mut next = || {
        let begin = rest.iter().position(|byte| !is_space(byte));
        rest = &rest[begin.ok_or_else(|| corrupt("its samples are fewer than its size says"))?..];
        let (mut number, mut digits) = (0_u64, 0);
        while let Some((digit, after)) = rest.split_first().filter(|(byte, _)| !is_space(byte)) {
            if !digit.is_ascii_digit() {
                return Err(corrupt("it has something else where a sample belongs"));
            }
            number = number * 10 + u64::from(digit - b'0');
            (digits, rest) = (digits + 1, after);
            if digits > DIGITS_MAX {
                return Err(corrupt(format!("a sample of it has more than {DIGITS_MAX} digits")));
            }
            // Nothing needs to stand between bits.
            if is_bits {
                break;
            }
        }
        Ok(number)
    };
    let beyond = |number| corrupt(format!("a sample of it is {number}, beyond what its header allows"));
    if header.bits == 16 {
        let scale = 65535.0 / largest as f32;
        let mut samples = vec![0_u16; count];
        for sample in &mut samples {
            let number = next()?;
            let number = u16::try_from(number).map_err(|_| beyond(number))?;
            *sample = if largest == 65535 { number } else { (f32::from(number) * scale).round() as u16 };
        }
        return Ok(Samples::U16(samples));
    }
    let scale = 255.0 / largest as f32;
    let mut samples = vec![0_u8; count];
    for sample in &mut samples {
        let number = next()?;
        let number = u8::try_from(number).map_err(|_| beyond(number))?;
        *sample = match (is_bits, number) {
            // A set bit is black.
            (true, 0) => 255,
            (true, 1) => 0,
            (true, other) => return Err(beyond(other.into())),
            (false, number) if largest == 255 => number,
            (false, number) => (f32::from(number) * scale).round() as u8,
        };
    }
    Ok(Samples::U8(samples))
}

fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Result<(Opened<'a>, Header, Option<Text<'a>>), DecodeError> {
    let text = check_header(bytes)?;
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
    Ok((decoder, Header::single(Format::Pnm, size, channels, bits, Orientation::UPRIGHT), text))
}

pub(super) fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    open(bytes, limits).map(|(_, header, _)| header)
}

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Frame, DecodeError> {
    let (decoder, header, text) = open(bytes, limits)?;
    let samples = header.frame_bytes as usize / usize::from(header.bits / 8);
    let samples = match (text, header.bits) {
        (Some(text), _) => read_text(bytes[1] == b'1', text, &header)?,
        (None, 16) => {
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
    fn samples_as_text_are_read_as_the_decoder_reads_them() {
        let kinds: [&[u8]; 7] = [
            b"P2 3 1 7 0 0000000003 7",
            b"P1 5 2\n01101 1 0\t0\x0b1\x0c1",
            b"P2 3 1 255 0 128\r\n255 and more",
            b"P2 2 1 100 100 200",
            b"P2 3 1 1000\n0 500 1000",
            b"P3 1 2 255\n1 2 3\n4 5 6\n",
            b"P3 1 1 65535\n1 2 65535",
        ];
        for bytes in kinds {
            let (decoder, header, _) = open(bytes, &LIMITS).unwrap();
            let mut expected = vec![0; header.frame_bytes as usize];
            decoder.read_image(&mut expected).unwrap();
            let read = match decode(bytes, &LIMITS).unwrap().samples {
                Samples::U8(samples) => samples,
                Samples::U16(samples) => bytemuck::cast_slice(&samples).to_vec(),
                Samples::F32(_) => panic!("measured"),
            };
            assert_eq!(read, expected, "{:?}", String::from_utf8_lossy(bytes));
        }
        // As in Netpbm, a comment directly behind a number ends it.
        let commented = decode(b"P2 2 1 7#largest\n0 7", &LIMITS).unwrap();
        assert_eq!(commented.samples, Samples::U8(vec![0, 255]));
    }

    #[test]
    fn text_that_is_no_sample_is_refused() {
        let check = |bytes: &[u8], told: &str| {
            let error = decode(bytes, &LIMITS).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        };
        check(&[b"P2 1 1 255 ".as_slice(), &vec![b'0'; 1 << 20]].concat(), "more than 10 digits");
        check(b"P2 1 1 255 00000000001", "more than 10 digits");
        check(b"P2 1 1 255 256", "is 256, beyond");
        check(b"P2 1 1 256 9999999999", "is 9999999999, beyond");
        check(b"P2 1 1 255 -1", "where a sample belongs");
        check(b"P2 2 1 255 1", "fewer than its size says");
        check(b"P1 1 1 2", "is 2, beyond");
    }

    #[test]
    fn a_size_beyond_the_limits_is_refused_before_anything_is_allocated() {
        let error = header(b"P5 4000000000 4000000000 255 ", &LIMITS).unwrap_err();
        assert!(error.to_string().contains("image_side_max"), "{error}");
        let error = header(b"P5 0 7 255 ", &LIMITS).unwrap_err();
        assert!(error.to_string().contains("0 × 7"), "{error}");
    }
}
