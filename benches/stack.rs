//! Megabytes of samples per second that a stack of camera frames gives on one core, as its bytes come in pieces.
//!
//! ```text
//! cargo bench --bench stack -- [FRAMES] [SECONDS]
//! ```
//!
//! Frames of 512 x 512 pixels of 16 bits, like those of a camera: an offset, noise, and spots. Prints one line per format:
//! its name, a tab, megabytes (10⁶ bytes) of samples per second, a tab, bytes of the file per byte of samples. `copy` is
//! the floor: the same pieces, copied into a frame.

use bytes::Bytes;
use ocelli::{
    image::stack::{Format, Limits, Options, Raw, SampleType, Samples, StackReader},
    random::Random,
};
use std::{
    hint::black_box,
    io::Cursor,
    time::{Duration, Instant},
};
use tiff::{
    encoder::{Compression, DeflateLevel, Predictor, TiffEncoder, colortype::Gray16},
    tags::Tag,
};

const SIDE: usize = 512;

/// Bytes that come at once, as from a socket.
const PIECE_BYTES: usize = 128 << 10;

/// A frame with an offset of 100, shot noise of a low background, and a spot every 64 pixels.
fn frame(random: &mut Random) -> Vec<u16> {
    let mut pixel = |index: usize| {
        let (x, y) = ((index % SIDE % 64) as f64 - 32.0, (index / SIDE % 64) as f64 - 32.0);
        let spot = 800.0 * (-(x * x + y * y) / 4.0).exp();
        // The number of ones in random bits is nearly Gaussian.
        let noise = f64::from(random.bits().count_ones()) - 32.0;
        (110.0 + spot + noise * (6.0 + spot).sqrt()).max(0.0) as u16
    };
    (0..SIDE * SIDE).map(&mut pixel).collect()
}

fn tiff(frames: &[Vec<u16>], compression: Compression, predictor: Predictor) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    let mut encoder =
        TiffEncoder::new(&mut file).expect("a file").with_compression(compression).with_predictor(predictor);
    for frame in frames {
        let mut image = encoder.new_image::<Gray16>(SIDE as u32, SIDE as u32).expect("a page");
        image.encoder().write_tag(Tag::Software, "bench").expect("a tag");
        image.write_data(frame).expect("pixels");
    }
    file.into_inner()
}

/// Reads a file once, up to `at_most` frames at a time; frames that came out.
fn read(format: Option<Format>, file: &Bytes, at_most: usize) -> u64 {
    let limits = Limits {
        side_max: 4096,
        frame_pixels_max: 1 << 24,
        frames_max: 1 << 40,
        memory_bytes_max: 64 << 20,
        spill_bytes_max: 0,
    };
    let mut reader = StackReader::new(format, Options { limits, spill_folder: None, file_alone: false });
    let drain = |reader: &mut StackReader| {
        while let Some(frames) = reader.next_frames(at_most).expect("a frame") {
            match frames.samples {
                Samples::U16(samples) => black_box(samples.len()),
                Samples::F32(samples) => black_box(samples.len()),
            };
        }
    };
    for start in (0..file.len()).step_by(PIECE_BYTES) {
        reader.push(file.slice(start..file.len().min(start + PIECE_BYTES))).expect("room");
        drain(&mut reader);
    }
    reader.finish();
    drain(&mut reader);
    reader.frames()
}

fn main() {
    // Cargo adds `--bench`.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let mut number = |default: u64| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (count, seconds) = (number(100), number(2));
    let mut random = Random::new(1);
    let frames: Vec<Vec<u16>> = (0..count).map(|_| frame(&mut random)).collect();
    let raw: Vec<u8> = frames.iter().flatten().flat_map(|sample| sample.to_le_bytes()).collect();
    let sample_bytes = raw.len();
    let report = |name: &str, file_bytes: usize, work: &mut dyn FnMut()| {
        work(); // warm
        let (start, mut calls) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(seconds) {
            work();
            calls += 1;
        }
        let rate = (sample_bytes * calls) as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("{name}\t{rate:.0}\t{:.3}", file_bytes as f64 / sample_bytes as f64);
    };

    let mut copy = vec![0; 2 * SIDE * SIDE];
    report("copy", sample_bytes, &mut || {
        for (index, piece) in raw.chunks(PIECE_BYTES).enumerate() {
            let at = index * PIECE_BYTES % copy.len();
            copy[at..at + piece.len()].copy_from_slice(piece);
        }
        black_box(&copy);
    });
    let layout = Raw { width: SIDE as u32, height: SIDE as u32, sample: SampleType::U16, frames: None };
    let (none, horizontal) = (Predictor::None, Predictor::Horizontal);
    let deflate = Compression::Deflate(DeflateLevel::Balanced);
    for (name, format, file) in [
        ("raw", Some(Format::Raw(layout)), raw.clone()),
        ("tiff", None, tiff(&frames, Compression::Uncompressed, none)),
        ("tiff packbits", None, tiff(&frames, Compression::Packbits, none)),
        ("tiff lzw", None, tiff(&frames, Compression::Lzw, none)),
        ("tiff lzw predictor", None, tiff(&frames, Compression::Lzw, horizontal)),
        ("tiff deflate", None, tiff(&frames, deflate, none)),
        ("tiff deflate predictor", None, tiff(&frames, deflate, horizontal)),
    ] {
        let file = Bytes::from(file);
        report(name, file.len(), &mut || assert_eq!(read(format, &file, 1), count));
    }
    let rois = Raw { width: 7, height: 7, ..layout };
    let file = Bytes::from(raw).slice(..sample_bytes / 98 * 98);
    for (name, at_most) in [("raw 7 x 7, one by one", 1), ("raw 7 x 7, many at once", usize::MAX)] {
        report(name, file.len(), &mut || {
            assert_eq!(read(Some(Format::Raw(rois)), &file, at_most), file.len() as u64 / 98);
        });
    }
}
