//! JPEG XL: lossy and lossless, up to 16 bits, with and without alpha, turned upright. Of an animation, the first frame.
//!
//! A picture may be made of frames that are not shown: patches that are used many times, a coarse copy that is refined, layers. There may
//! be any number of these in a few bytes each, as large as the picture, and the decoder holds up to four. It tells nobody of them; but it
//! hands their parts to [`Parts`], which allows a few. Other work for each pixel is bounded by the decoder, to what level 5 of the standard
//! allows.

use super::{DecodeError, Format, Frame, Header, Limits, Orientation, Samples, boxes::boxes};
use jxl::{
    api::{
        AlphaMode, Endianness, Event, ExtraChannel, JxlBasicInfo, JxlBitDepth, JxlColorType, JxlDataFormat,
        JxlDecoder, JxlDecoderOptions, JxlOutputBuffer, JxlParallelRunner, JxlParallelRunnerFun,
        JxlPixelFormat,
    },
    error::Error,
};

/// How a file begins that has boxes around the picture.
const CONTAINER: &[u8] = b"\0\0\0\x0cJXL ";

/// The largest side of a part of a frame, which is decoded by itself.
const PART_SIDE_MAX: u32 = 1024;

/// Parts of frames that are not shown, beside one for each part of the largest size that the picture has.
const HIDDEN_PARTS: usize = 8;

/// How much of a file is looked at to see whether its first frame is shown: the sizes of all parts of a frame stand at its beginning.
const PEEKED_BYTES: usize = 1 << 14;

/// Colours and others that level 5 allows.
const CHANNELS_MAX: u64 = 3 + 4;

/// The decoder takes smaller sides for this when it compares a frame with its limit.
const SIDE_MIN: u64 = 16;

const ENDED: Error = Error::ApiUsageError("it ends before its pixels do");

/// Pixels that a frame may have at least, however small the picture is: patches are larger than that at times.
const FRAME_PIXELS: u64 = 1 << 16;

/// The decoder's channels: a number of 32 bits for each sample, before and after a transform.
const SAMPLE_BYTES: u64 = 2 * 4;
/// Its tables, whatever the size of the picture.
const TABLE_BYTES: u64 = 4 << 20;
/// A sample of a frame that is kept for others.
const KEPT_SAMPLE_BYTES: u64 = 4;
/// Frames that are kept at most.
const KEPT_MAX: u64 = 4;

#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands errors over")]
fn corrupt(error: impl ToString) -> DecodeError {
    let words = error.to_string();
    // The words in front of our own errors.
    DecodeError::corrupt(Format::Jxl, words.strip_prefix("API usage error: ").unwrap_or(&words))
}

/// Runs the parts of frames one after the other. Of frames that are not shown, so many may be left to run.
struct Parts {
    hidden_left: usize,
    shown: bool,
}

impl JxlParallelRunner for Parts {
    fn run(&mut self, parts: usize, run: &JxlParallelRunnerFun<'_>) -> Result<(), Error> {
        self.run_ordered(parts, None, run)
    }

    fn num_threads(&self) -> usize {
        1
    }

    fn run_ordered(
        &mut self,
        parts: usize,
        _: Option<usize>,
        run: &JxlParallelRunnerFun<'_>,
    ) -> Result<(), Error> {
        if !self.shown {
            let left = self.hidden_left.checked_sub(parts);
            let refused = Error::ApiUsageError("it has too many or too large frames that are not shown");
            self.hidden_left = left.ok_or(refused)?;
        }
        (0..parts).try_for_each(run)
    }
}

/// A decoder that has read the header of the picture, and what is left of the file.
struct Opened<'a> {
    decoder: JxlDecoder,
    rest: &'a [u8],
    parts: Parts,
}

impl<'a> Opened<'a> {
    /// The frames may have this many pixels each, those of a side below 16 as if it were that long.
    fn new(bytes: &'a [u8], frame_pixels: u64, scan: bool) -> Result<Opened<'a>, Error> {
        let mut options = JxlDecoderOptions::default();
        options.alpha_mode = AlphaMode::Unpremultiplied;
        options.scan_frames_only = scan;
        options.sample_limit =
            usize::try_from(frame_pixels.saturating_mul(CHANNELS_MAX).saturating_add(1)).ok();
        let decoder = JxlDecoder::new(options);
        let mut opened = Opened { decoder, rest: bytes, parts: Parts { hidden_left: 0, shown: false } };
        match opened.next(None)? {
            Event::BasicInfo => Ok(opened),
            _ => Err(ENDED),
        }
    }

    /// Goes on to the next event, with or without a place for pixels.
    fn next(&mut self, pixels: Option<&mut [JxlOutputBuffer<'_>]>) -> Result<Event, Error> {
        match self.decoder.process(&mut self.rest, pixels, Some(&mut self.parts))? {
            Event::NeedMoreInput { .. } => Err(ENDED),
            event => Ok(event),
        }
    }

    /// Goes on to the first frame that is shown, over frames that are not.
    fn show(&mut self, hidden_parts: usize) -> Result<(), Error> {
        self.parts.hidden_left = hidden_parts;
        match self.next(None)? {
            Event::FrameHeader => self.parts.shown = true,
            _ => return Err(ENDED),
        }
        Ok(())
    }
}

/// The words of an error if samples are of a kind that others have not.
fn unsupported(info: &JxlBasicInfo) -> Option<String> {
    let inks = info.extra_channels.iter().any(|channel| channel.ec_type == ExtraChannel::Black);
    match info.bit_depth {
        JxlBitDepth::Float { .. } => Some("floating-point samples".to_owned()),
        JxlBitDepth::Int { bits_per_sample: bits @ 17.. } => Some(format!("{bits} bits per sample")),
        JxlBitDepth::Int { .. } => inks.then(|| "inks (CMYK)".to_owned()),
    }
}

/// The header, and how many parts of frames that are not shown may be decoded.
fn checked(bytes: &[u8], limits: &Limits) -> Result<(Header, usize), DecodeError> {
    if bytes.starts_with(CONTAINER) {
        boxes(bytes).try_for_each(|each| each.map(drop)).map_err(corrupt)?;
    }
    let frame_pixels = limits.pixels_max.max(u64::from(limits.side_max) * SIDE_MIN);
    let mut opened = Opened::new(bytes, frame_pixels, false).map_err(|error| match error {
        Error::ImageSizeTooLarge(width, height) => {
            let [width, height] = [width, height].map(|side| u32::try_from(side).unwrap_or(u32::MAX));
            let told = limits.check_one(width, height);
            told.err().unwrap_or_else(|| corrupt("its headers disagree about its size"))
        }
        error => corrupt(error),
    })?;
    let decoder = &opened.decoder;
    let (Some(info), Some(colors)) = (decoder.basic_info(), decoder.embedded_color_profile()) else {
        return Err(corrupt(ENDED));
    };
    let (info, colors) = (info.clone(), colors.channels());
    let [width, height] = [info.size.0, info.size.1].map(|side| u32::try_from(side).unwrap_or(u32::MAX));
    limits.check_one(width, height)?;
    if let Some(what) = unsupported(&info) {
        return Err(DecodeError::unsupported(Format::Jxl, what, "post it as grey or RGB of at most 16 bits"));
    }
    let alpha = info.extra_channels.iter().any(|channel| channel.ec_type == ExtraChannel::Alpha);
    let channels = if colors == 1 { 1 } else { 3 } + u8::from(alpha);
    let bits = if info.bit_depth.bits_per_sample() > 8 { 16 } else { 8 };
    // The decoder turns it upright.
    let mut header = Header::single(Format::Jxl, (width, height), channels, bits, Orientation::UPRIGHT);

    let pixels = u64::from(width) * u64::from(height);
    let (mut kept, mut hidden_parts) = (0, 0);
    opened.rest = &opened.rest[..opened.rest.len().min(PEEKED_BYTES)];
    if info.animation.is_some() || opened.show(0).is_err() {
        // There may be frames that are not shown, or what follows will show that it is broken.
        let parts = u64::from(width.div_ceil(PART_SIDE_MAX)) * u64::from(height.div_ceil(PART_SIDE_MAX));
        hidden_parts = HIDDEN_PARTS + parts as usize;
        let hidden_pixels = HIDDEN_PARTS as u64 * u64::from(PART_SIDE_MAX).pow(2);
        kept = (KEPT_MAX * pixels.max(FRAME_PIXELS)).min(pixels + hidden_pixels);
    }
    let samples = 3 + info.extra_channels.len() as u64;
    // It copies what it has not decoded yet.
    header.work_bytes = TABLE_BYTES + bytes.len() as u64;
    header.work_bytes += samples * (pixels * SAMPLE_BYTES + kept * KEPT_SAMPLE_BYTES);
    Ok((header, hidden_parts))
}

pub(super) fn header(bytes: &[u8], limits: &Limits) -> Result<Header, DecodeError> {
    checked(bytes, limits).map(|(header, _)| header)
}

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Frame, DecodeError> {
    let (header, hidden_parts) = checked(bytes, limits)?;
    let (width, height) = (header.width as usize, header.height as usize);
    let frame_pixels = u64::from(header.width).max(SIDE_MIN) * u64::from(header.height).max(SIDE_MIN);
    let frame_pixels = frame_pixels.max(FRAME_PIXELS);
    let mut opened = Opened::new(bytes, frame_pixels, false).map_err(corrupt)?;
    let others = opened.decoder.basic_info().map_or(0, |info| info.extra_channels.len());
    let color_type = match header.channels {
        1 => JxlColorType::Grayscale,
        2 => JxlColorType::GrayscaleAlpha,
        3 => JxlColorType::Rgb,
        _ => JxlColorType::Rgba,
    };
    let format = match header.bits {
        8 => JxlDataFormat::U8 { bit_depth: 8 },
        _ => JxlDataFormat::U16 { endianness: Endianness::native(), bit_depth: 16 },
    };
    let format = JxlPixelFormat {
        color_type,
        color_data_format: Some(format),
        extra_channel_format: vec![None; others],
    };
    opened.decoder.set_pixel_format(format).map_err(corrupt)?;

    let mut samples = match header.bits {
        8 => Samples::U8(vec![0; header.frame_bytes as usize]),
        _ => Samples::U16(vec![0; header.frame_bytes as usize / 2]),
    };
    let pixels = match &mut samples {
        Samples::U8(samples) => &mut samples[..],
        Samples::U16(samples) => bytemuck::cast_slice_mut(samples),
        Samples::F32(samples) => bytemuck::cast_slice_mut(samples),
    };
    let row_bytes = pixels.len() / height;
    let mut place = [JxlOutputBuffer::new(pixels, height, row_bytes)];
    opened.show(hidden_parts).map_err(corrupt)?;
    let Event::FrameComplete { has_more_frames } = opened.next(Some(&mut place)).map_err(corrupt)? else {
        return Err(corrupt(ENDED));
    };
    drop(opened);
    if has_more_frames {
        check_complete(bytes, frame_pixels, hidden_parts).map_err(corrupt)?;
    }
    Ok(Frame::upright(header.orientation, (width as u32, height as u32), header.channels, samples))
}

/// Whether the file continues to its last frame. Frames that are shown are passed over.
fn check_complete(bytes: &[u8], frame_pixels: u64, hidden_parts: usize) -> Result<(), Error> {
    let mut opened = Opened::new(bytes, frame_pixels, true)?;
    opened.parts.hidden_left = hidden_parts;
    while opened.next(None)? != Event::Complete {}
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use super::*;
    use crate::image::corpus::{LIMITS, fixture};

    /// Where the first frame begins and where the next, which is shown.
    fn frames(file: &[u8]) -> (usize, usize) {
        let mut opened = Opened::new(file, LIMITS.pixels_max, true).unwrap();
        opened.show(HIDDEN_PARTS).unwrap();
        let shown =
            opened.next(None).map(|_| opened.decoder.scanned_frames()[0].file_offset as usize).unwrap();
        // A copy of what lies between is a frame only if it begins where the header ends.
        let twice = |from: usize| [&file[..shown], &file[from..]].concat();
        let first = (2..shown).rfind(|from| decode(&twice(*from), &LIMITS).is_ok()).unwrap();
        (first, shown)
    }

    #[test]
    fn frames_that_are_not_shown_are_counted() {
        let file = fixture("jxl_hidden.jxl");
        let (first, shown) = frames(&file);
        println!("a frame of {} bytes that is not shown", shown - first);
        let repeated =
            |times: usize| [&file[..first], &file[first..shown].repeat(times), &file[shown..]].concat();
        let once = decode(&file, &LIMITS).unwrap();
        assert_eq!(decode(&repeated(2), &LIMITS), Ok(once));
        for times in [100, 10_000] {
            let error = decode(&repeated(times), &LIMITS).unwrap_err().to_string();
            assert!(error.contains("too many or too large frames that are not shown"), "{error}");
        }
    }

    #[test]
    fn memory_is_asked_for_the_frames_that_are_kept() {
        let work = |name| {
            let file = fixture(name);
            header(&file, &LIMITS).unwrap().work_bytes - TABLE_BYTES - file.len() as u64
        };
        let samples = 20 * 12 * 3;
        assert_eq!(work("jxl_rgb.jxl"), samples * SAMPLE_BYTES);
        assert_eq!(work("jxl_rgba.jxl"), samples / 3 * 4 * SAMPLE_BYTES);
        for name in ["jxl_hidden.jxl", "jxl_animated.jxl"] {
            assert_eq!(work(name), samples * SAMPLE_BYTES + KEPT_MAX * FRAME_PIXELS * 3 * KEPT_SAMPLE_BYTES);
        }
    }

    #[test]
    fn kinds_that_are_not_read_are_named() {
        let error = header(&fixture("jxl_float.jxl"), &LIMITS).unwrap_err().to_string();
        assert!(error.starts_with("JPEG XL with floating-point samples is not supported; "), "{error}");
    }
}
