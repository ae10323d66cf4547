//! Every kind of stack, from bytes to frames: correct results, refusals, memory use, and that nothing panics.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod builder;
mod copies;
mod files;
mod memory;
mod parts;
mod swelling;
mod work;

use super::{
    Dimensions, Format, Limits, Options, Raw, SampleType, Samples, SpillFolder, StackError, StackInfo,
    StackReader, directory::Encoding, tags,
};
use crate::{error::InferError, random::Random};
use builder::{BIG_BIG, BIG_LITTLE, Builder, LITTLE};
use bytes::Bytes;
use parking_lot::Mutex;
use std::{path::Path, sync::Arc};

const LIMITS: Limits = Limits {
    side_max: 4096,
    frame_pixels_max: 1 << 20,
    frames_max: 100_000,
    memory_bytes_max: 64 << 20,
    spill_bytes_max: 1 << 30,
};

/// The size of the fixtures.
const FRAMES: u64 = 5;
const HEIGHT: u64 = 6;
const WIDTH: u64 = 18;

/// Samples of one frame, in a type that holds all sample types.
type Plane = Vec<f64>;

/// A stack as `make_stacks.py` describes it.
fn planes(sample: SampleType, frames: u64) -> Vec<Plane> {
    let value = |t: u64, y: u64, x: u64| {
        let base = ((1009 * t + 31 * y + 7 * x) % 251) as f64;
        match sample {
            SampleType::U8 => base,
            SampleType::U16 | SampleType::U32 | SampleType::U64 => base * 259.0,
            SampleType::I8 => base - 125.0,
            SampleType::F16 => half::f16::from_f64((base - 125.0) * 25.0).to_f64(),
            SampleType::F32 | SampleType::F64 => (base - 125.0) * 25.0,
            _ => (base - 125.0) * 100.0,
        }
    };
    let plane =
        |t| (0..HEIGHT).flat_map(move |y| (0..WIDTH).map(move |x| (y, x))).map(move |(y, x)| value(t, y, x));
    (0..frames).map(|t| plane(t).collect()).collect()
}

fn fixture(name: &str) -> Bytes {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/stacks");
    std::fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}")).into()
}

fn all_fixtures() -> Vec<(String, Bytes)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/stacks");
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
        .into_iter()
        .map(|name| name.into_string().unwrap())
        .map(|name| (name.clone(), fixture(&name)))
        .collect()
}

fn spilled_to(folder: impl Into<std::path::PathBuf>) -> Option<Arc<SpillFolder>> {
    Some(Arc::new(SpillFolder::new(folder.into(), u64::MAX)))
}

fn options() -> Options {
    Options { limits: LIMITS, spill_folder: None, file_alone: false }
}

/// The result of reading a stack.
struct Outcome {
    planes: Vec<Plane>,
    /// How many bytes had been pushed when each frame came out.
    at: Vec<usize>,
    end: Result<(), StackError>,
    info: Option<StackInfo>,
    memory_peak: usize,
    spilled: u64,
}

/// Takes frames until there are none.
fn drain(
    reader: &mut StackReader,
    pushed: usize,
    outcome: &mut Outcome,
    at_most: usize,
) -> Result<(), StackError> {
    while let Some(frames) = reader.next_frames(at_most)? {
        assert_eq!(frames.first as usize, outcome.planes.len());
        let samples: Plane = match frames.samples {
            Samples::U16(samples) => samples.iter().copied().map(f64::from).collect(),
            Samples::F32(samples) => samples.iter().copied().map(f64::from).collect(),
        };
        let pixels = frames.width as usize * frames.height as usize;
        assert_eq!(samples.len(), pixels * frames.count);
        assert!(frames.count <= at_most);
        outcome.planes.extend(samples.chunks(pixels).map(<[f64]>::to_vec));
        outcome.at.extend(vec![pushed; frames.count]);
    }
    Ok(())
}

/// Feeds a reader with pieces of the sizes that `next` gives.
fn read_with(
    format: Option<Format>,
    options: Options,
    bytes: &Bytes,
    at_most: usize,
    mut next: impl FnMut() -> usize,
) -> Outcome {
    let mut reader = StackReader::new(format, options);
    let mut outcome =
        Outcome { planes: vec![], at: vec![], end: Ok(()), info: None, memory_peak: 0, spilled: 0 };
    let mut pushed = 0;
    let mut work = || {
        while pushed < bytes.len() {
            let len = next().clamp(1, bytes.len() - pushed);
            reader.push(bytes.slice(pushed..pushed + len))?;
            pushed += len;
            drain(&mut reader, pushed, &mut outcome, at_most)?;
        }
        reader.finish();
        drain(&mut reader, pushed, &mut outcome, at_most)
    };
    let end = work();
    outcome.end = end;
    outcome.info = reader.info();
    outcome.memory_peak = reader.memory_bytes_peak();
    outcome.spilled = reader.spilled_bytes();
    assert_eq!(reader.frames(), outcome.planes.len() as u64);
    outcome
}

fn read(bytes: &Bytes) -> Outcome {
    read_with(None, options(), bytes, 1, || usize::MAX)
}

/// The message of the error that a stack ends with.
fn refusal(bytes: impl Into<Bytes>) -> String {
    read(&bytes.into()).end.unwrap_err().to_string()
}

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

/// Fixtures whose frames can all be read, with their sample type.
fn good() -> Vec<(&'static str, SampleType)> {
    use SampleType::*;
    vec![
        ("shaped.tif", U16),
        ("shaped_big_endian.tif", U16),
        ("shaped_bigtiff.tif", U16),
        ("shaped_strips.tif", U16),
        ("one_frame.tif", U16),
        ("pages.tif", U16),
        ("pages_u1.tif", U8),
        ("pages_i1.tif", I8),
        ("pages_i2_big_endian.tif", I16),
        ("pages_u4.tif", U32),
        ("pages_i4.tif", I32),
        ("pages_u8.tif", U64),
        ("pages_i8.tif", I64),
        ("pages_f2.tif", F16),
        ("pages_f4.tif", F32),
        ("pages_f4_big_endian.tif", F32),
        ("pages_f8.tif", F64),
        ("lzw.tif", U16),
        ("lzw_predictor_strips.tif", U16),
        ("deflate.tif", U16),
        ("deflate_predictor_big_endian.tif", U16),
        ("deflate_predictor_u1.tif", U8),
        ("deflate_predictor_u4.tif", U32),
        ("deflate_predictor_f4.tif", F32),
        ("deflate_predictor_f8_big_endian.tif", F64),
        ("packbits.tif", U8),
        ("zstd.tif", U16),
        ("tiles.tif", U16),
        ("tiles_f4_lzw.tif", F32),
        ("tiles_deflate_predictor_big_endian.tif", U16),
        ("resolution.tif", U16),
        ("imagej.tif", U16),
        ("imagej_f4.tif", F32),
        ("imagej_one_directory_raised.tif", I16Raised),
        ("ome.tif", U16),
        ("ome_strips.tif", U16),
        ("ome_deflate.tif", U16),
        ("libtiff_lzw.tif", U16),
        ("libtiff_deflate.tif", U16),
        ("pillow.tif", U16),
        ("u1.npy", U8),
        ("i1.npy", I8),
        ("little_u2.npy", U16),
        ("big_u2.npy", U16),
        ("little_i2.npy", I16),
        ("big_i4.npy", I32),
        ("little_u4.npy", U32),
        ("little_i8.npy", I64),
        ("little_u8.npy", U64),
        ("little_f2.npy", F16),
        ("little_f4.npy", F32),
        ("big_f4.npy", F32),
        ("little_f8.npy", F64),
        ("version_2.npy", U16),
        ("version_3.npy", U16),
        ("one_frame.npy", U16),
    ]
}

fn frames_of(name: &str) -> u64 {
    if name.starts_with("one_frame") { 1 } else { FRAMES }
}

#[test]
fn stacks_of_other_programs_come_out_as_they_were_written_however_they_are_cut() {
    for (name, sample) in good() {
        let bytes = fixture(name);
        let expected = planes(sample, frames_of(name));
        let mut random = Random::new(7);
        let cuts: [&mut dyn FnMut() -> usize; 4] =
            [&mut || usize::MAX, &mut || 1, &mut || 17, &mut || random.below(700)];
        for (index, cut) in cuts.into_iter().enumerate() {
            for at_most in [1, 3, usize::MAX] {
                let outcome = read_with(None, options(), &bytes, at_most, &mut *cut);
                assert!(outcome.end.is_ok(), "{name}, cut {index}: {:?}", outcome.end);
                assert!(outcome.planes == expected, "{name}, cut {index}: other samples");
                let info = outcome.info.unwrap();
                assert_eq!((info.width, info.height), (WIDTH as u32, HEIGHT as u32), "{name}");
                assert_eq!(info.sample, sample, "{name}");
                assert_eq!(info.frames.unwrap_or(frames_of(name)), frames_of(name), "{name}");
            }
        }
    }
}

#[test]
fn every_fixture_is_either_read_or_refused_on_purpose() {
    let known: Vec<_> = good().into_iter().map(|(name, _)| name).collect();
    for (name, bytes) in all_fixtures() {
        assert_eq!(read(&bytes).end.is_ok(), known.contains(&&*name), "{name}");
    }
}

#[test]
fn what_is_no_stack_of_grey_frames_is_refused_with_what_to_do() {
    for (name, parts) in [
        ("rgb.tif", &["3 samples per pixel", "frame 0", "save the stack as grey"][..]),
        ("jpeg.tif", &["compression 7 (JPEG)", "frame 0", "deflate"]),
        ("fortran.npy", &["fortran_order", "ascontiguousarray"]),
        ("complex.npy", &["with dtype \"<c8\" is not supported", "integers or floats of up to 8 bytes"]),
        ("records.npy", &["structured dtype", "is not supported", "integers or floats"]),
        ("four_dimensions.npy", &["4 dimensions instead of 2 or 3"]),
        ("no_frames.npy", &["holds no pixels"]),
        ("two_sizes.tif", &["frame 2 is 18 x 5 px of u16", "the first frame is 18 x 6 px of u16"]),
        ("two_types.tif", &["frame 1 is 18 x 6 px of u8", "18 x 6 px of u16"]),
        ("ome_two_files.tif", &["planes in other files", "part_1.ome.tif", "of this file alone"]),
    ] {
        assert_says(&refusal(fixture(name)), parts);
    }
    assert_says(
        &refusal(&b"\x89PNG\r\n\x1a\n"[..]),
        &["not a stack: it begins with 89 50 4e 47", "neither TIFF nor .npy"],
    );
    assert_says(&refusal(&b""[..]), &["not a stack: it is empty; send the bytes of a TIFF or .npy file"]);
    assert_says(&refusal(&b"II*\0\0\0\0\0"[..]), &["TIFF holds no pixels"]);
}

#[test]
fn frames_before_one_of_another_size_come_out() {
    let outcome = read(&fixture("two_sizes.tif"));
    assert_eq!(outcome.planes, planes(SampleType::U16, 2));
    assert!(matches!(outcome.end, Err(StackError::Mismatch { frame: 2, .. })));
}

#[test]
fn one_file_of_several_is_read_where_that_is_asked_for() {
    let alone = Options { file_alone: true, ..options() };
    let outcome = read_with(None, alone, &fixture("ome_two_files.tif"), 1, || usize::MAX);
    assert!(outcome.end.is_ok());
    assert_eq!(outcome.planes, planes(SampleType::U16, FRAMES));
}

#[test]
fn pixel_sizes_are_read_from_where_programs_write_them() {
    for (name, expected) in [
        ("ome.tif", Some([65.0, 130.0])),
        ("ome_deflate.tif", Some([65.0, 130.0])),
        ("imagej.tif", Some([107.0, 107.0])),
        ("imagej_one_directory_raised.tif", Some([100.0, 100.0])),
        ("resolution.tif", Some([130.0, 260.0])),
        ("pages.tif", None),
        ("pillow.tif", None),
        ("u1.npy", None),
    ] {
        let found = read(&fixture(name)).info.unwrap().pixel_nm;
        let near = |(a, b): (&f64, f64)| (a - b).abs() < 1e-3;
        let same = match (found, expected) {
            (Some(found), Some(expected)) => found.iter().zip(expected).all(near),
            (found, expected) => found == expected,
        };
        assert!(same, "{name}: {found:?} instead of {expected:?}");
    }
}

#[test]
fn descriptions_say_how_many_frames_there_will_be() {
    for (name, frames) in [
        ("ome.tif", Some(5)),
        ("imagej.tif", Some(5)),
        ("shaped.tif", Some(5)),
        ("pages.tif", None),
        ("little_f4.npy", Some(5)),
    ] {
        assert_eq!(read(&fixture(name)).info.unwrap().frames, frames, "{name}");
    }
    let dimensions = read(&fixture("ome.tif")).info.unwrap().dimensions;
    assert_eq!(dimensions, Some(Dimensions { frames: 5, slices: 1, channels: 1 }));
}

/// The layout of the file says where the last byte of each frame is: the frame comes out with that byte.
#[test]
fn frames_come_out_with_their_last_byte_where_the_file_is_in_order() {
    let frame = (2 * WIDTH * HEIGHT) as usize;
    for name in [
        "little_u2.npy",
        "shaped.tif",
        "shaped_bigtiff.tif",
        "imagej.tif",
        "imagej_one_directory_raised.tif",
        "ome.tif",
        "ome_strips.tif",
    ] {
        let bytes = fixture(name);
        let outcome = read_with(None, options(), &bytes, 1, || 1);
        let first = outcome.at[0];
        let expected: Vec<_> = (0..FRAMES as usize).map(|index| first + index * frame).collect();
        assert_eq!(outcome.at, expected, "{name}");
        assert!(name.ends_with(".tif") || *expected.last().unwrap() == bytes.len(), "{name}");
    }
    for name in ["pages.tif", "libtiff_lzw.tif", "libtiff_deflate.tif", "pillow.tif", "tiles.tif", "zstd.tif"]
    {
        let bytes = fixture(name);
        let outcome = read_with(None, options(), &bytes, 1, || 1);
        // Each comes out a frame later than the one before, and the first when little more than a frame has arrived.
        assert!(outcome.at[0] < bytes.len() / 2, "{name}: {:?} of {}", outcome.at, bytes.len());
        assert!(outcome.at.windows(2).all(|pair| pair[0] < pair[1]), "{name}: {:?}", outcome.at);
    }
}

/// A frame of a long stack.
fn long_frame(index: u64, pixels: usize) -> Vec<u16> {
    (0..pixels as u64).map(|pixel| (index * 7919 + pixel * 31) as u16).collect()
}

/// Long stacks in every layout that streams.
fn long_stacks(frames: u64, side: u64) -> Vec<(&'static str, Option<Format>, Vec<u8>)> {
    let pixels = (side * side) as usize;
    let frame_bytes = 2 * side * side;
    let raw = Raw { width: side as u32, height: side as u32, sample: SampleType::U16, frames: None };
    let plain: Vec<u8> =
        (0..frames).flat_map(|index| long_frame(index, pixels)).flat_map(u16::to_le_bytes).collect();

    // A directory, its pixels, the metadata of the frame, and so on, as Micro-Manager writes.
    let mut forward = Builder::new(LITTLE);
    // Pixels, then their directory, as libtiff writes.
    let mut behind = Builder::new(BIG_BIG);
    for index in 0..frames {
        let samples = long_frame(index, pixels);
        let metadata = format!("{{\"PixelSizeUm\": 0.16, \"Frame\": {index}, \"Camera\": \"a camera\"}}");
        let mut fields = forward.page(side, side, 0, frame_bytes);
        fields.push(Builder::text(tags::MICRO_MANAGER, &metadata));
        let start = forward.bytes.len() as u64 + 2 + 12 * fields.len() as u64 + 4 + metadata.len() as u64;
        fields[3] = forward.longs(tags::STRIP_OFFSETS, &[start]);
        forward.directory(&fields);
        let data = forward.samples(&samples);
        assert_eq!(forward.put(&data), start);

        let data = behind.samples(&samples);
        let start = behind.put(&data);
        // Alignment.
        behind.put(&[0; 6]);
        let fields = behind.page(side, side, start, frame_bytes);
        behind.directory(&fields);
    }

    // One directory for all frames, as ImageJ writes stacks of more than 4 GiB.
    let mut one = Builder::new(LITTLE);
    let text = format!("ImageJ=1.54f\nimages={frames}\n");
    let mut fields = one.page(side, side, 0, frame_bytes);
    fields.push(Builder::text(tags::DESCRIPTION, &text));
    let start = one.bytes.len() + 2 + 12 * fields.len() + 4 + text.len();
    fields[3] = one.longs(tags::STRIP_OFFSETS, &[start as u64]);
    one.directory(&fields);
    one.put(&plain);

    // The first directory, all pixels, and then the other directories, as tifffile writes OME-TIFFs.
    let room = with_room(BIG_LITTLE, frames, side, |index| index).bytes;

    let header = format!("{{'descr': '<u2', 'fortran_order': False, 'shape': ({frames}, {side}, {side}), }}");
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    npy.extend((header.len() as u16).to_le_bytes());
    npy.extend(header.as_bytes());
    npy.extend(&plain);
    vec![
        ("raw", Some(Format::Raw(raw)), plain),
        ("npy", None, npy),
        ("one directory", None, one.bytes),
        ("forward", None, forward.bytes),
        ("room", None, room),
        ("behind", None, behind.bytes),
    ]
}

/// The first directory, the pixels of all frames, then the other directories. The directory of a frame points to the pixels of frame
/// `place_of`.
fn with_room(encoding: Encoding, frames: u64, side: u64, place_of: impl Fn(u64) -> u64) -> Builder {
    let mut builder = Builder::new(encoding);
    let frame_bytes = 2 * side * side;
    let mut fields = builder.page(side, side, 0, frame_bytes);
    let table = encoding.count_bytes() + fields.len() as u64 * encoding.entry_bytes();
    let start = builder.bytes.len() as u64 + table + encoding.offset_bytes() as u64;
    fields[3] = builder.longs(tags::STRIP_OFFSETS, &[start + place_of(0) * frame_bytes]);
    builder.directory(&fields);
    for index in 0..frames {
        let samples = builder.samples(&long_frame(index, (side * side) as usize));
        builder.put(&samples);
    }
    for index in 1..frames {
        let fields = builder.page(side, side, start + place_of(index) * frame_bytes, frame_bytes);
        builder.directory(&fields);
    }
    builder
}

#[test]
fn frames_in_the_room_before_the_second_directory_are_held_against_the_others() {
    for encoding in [LITTLE, BIG_LITTLE, BIG_BIG] {
        let bytes = Bytes::from(with_room(encoding, 5, 6, |index| index).bytes);
        let outcome = read_with(None, options(), &bytes, 1, || 1);
        assert!(outcome.end.is_ok(), "{:?}", outcome.end);
        assert_eq!(outcome.planes.len(), 5);
        assert!(outcome.at.windows(2).all(|pair| pair[1] - pair[0] == 72), "{:?}", outcome.at);
    }
    // The frames in another order, or fewer directories than frames.
    let swapped = |index| if index == 0 { 0 } else { 5 - index };
    let text = refusal(with_room(LITTLE, 5, 6, swapped).bytes);
    assert_says(&text, &["frame 1", "begin at byte", "by the room after those of the first page"]);
    let mut short = with_room(LITTLE, 3, 6, |index| index);
    short.point(0);
    let mut bytes = short.bytes;
    let second = bytes.len() - 2 * (2 + 5 * 12 + 4);
    bytes[second + 2 + 5 * 12..second + 2 + 5 * 12 + 4].fill(0);
    assert_says(&refusal(bytes), &["frame 2", "no directory", "3 frames"]);
}

#[test]
fn memory_does_not_grow_with_the_stack() {
    const SIDE: u64 = 32;
    let mut peaks = Vec::new();
    for frames in [100, 3000] {
        for (name, format, bytes) in long_stacks(frames, SIDE) {
            let bytes = Bytes::from(bytes);
            let mut random = Random::new(frames);
            let outcome = read_with(format, options(), &bytes, 1, || 1 + random.below(3000));
            assert!(outcome.end.is_ok(), "{name}: {:?}", outcome.end);
            assert_eq!(outcome.planes.len() as u64, frames, "{name}");
            for (index, plane) in outcome.planes.iter().enumerate() {
                let expected = long_frame(index as u64, plane.len());
                assert!(
                    plane.iter().zip(&expected).all(|(a, b)| *a == f64::from(*b)),
                    "{name}, frame {index}"
                );
            }
            println!("{name}: {frames} frames, {} bytes, peak {}", bytes.len(), outcome.memory_peak);
            peaks.push((name, outcome.memory_peak));
        }
    }
    let (short, long) = peaks.split_at(peaks.len() / 2);
    for ((name, short), (_, long)) in short.iter().zip(long) {
        // Two frames of bytes and one of samples, because buffers grow. Padding, if there is any, costs memory for its pieces.
        let padding = if *name == "behind" { 3000 * 110 } else { 0 };
        assert!(*long <= *short + 4096 + padding, "{name}: {short} bytes for 100 frames, {long} for 3000");
    }
}

#[test]
fn padding_does_not_add_up_for_ever() {
    let bytes = Bytes::from(long_stacks(20_000, 4).pop().unwrap().2);
    let limits = Limits { memory_bytes_max: 1 << 20, ..LIMITS };
    let outcome = read_with(None, Options { limits, ..options() }, &bytes, 1, || 1000);
    assert!(outcome.end.is_ok(), "{:?}", outcome.end);
    assert_eq!(outcome.planes.len(), 20_000);
    assert!(outcome.memory_peak < 1 << 20, "{}", outcome.memory_peak);
}

/// A stack whose directories stand at the end, with the pixels of its pages in the given order.
fn backward(frames: u64, side: u64, order: impl Iterator<Item = u64>) -> Bytes {
    let mut builder = Builder::new(BIG_LITTLE);
    let pixels = (side * side) as usize;
    let mut at = vec![0; frames as usize];
    for index in order {
        let samples = builder.samples(&long_frame(index, pixels));
        at[index as usize] = builder.put(&samples);
    }
    for start in at {
        let fields = builder.page(side, side, start, 2 * side * side);
        builder.directory(&fields);
    }
    builder.bytes.into()
}

#[test]
fn files_that_are_not_in_order_are_kept_in_memory_and_beyond_it_in_a_file() {
    const FRAMES: u64 = 400;
    let forward = backward(FRAMES, 32, 0..FRAMES);
    let reversed = backward(FRAMES, 32, (0..FRAMES).rev());
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { memory_bytes_max: 128 << 10, ..LIMITS };
    for (name, bytes) in [("forward", forward), ("reversed", reversed)] {
        for piece in [700, 5000, 40_000] {
            let spilling = Options { limits, spill_folder: spilled_to(folder.path()), file_alone: false };
            let outcome = read_with(None, spilling.clone(), &bytes, 1, || piece);
            assert!(outcome.end.is_ok(), "{name}: {:?}", outcome.end);
            assert!(
                outcome.spilled > 0 && outcome.spilled <= bytes.len() as u64,
                "{name}: {}",
                outcome.spilled
            );
            assert!(outcome.memory_peak < 256 << 10, "{name}: {}", outcome.memory_peak);
            for (index, plane) in outcome.planes.iter().enumerate() {
                let expected = long_frame(index as u64, plane.len());
                assert!(
                    plane.iter().zip(&expected).all(|(a, b)| *a == f64::from(*b)),
                    "{name}, frame {index}"
                );
            }
            assert_eq!(outcome.planes.len() as u64, FRAMES);

            // As if stack_spill_bytes_max is 0, whatever folder is set.
            let nowhere = Options { spill_folder: None, ..spilling.clone() };
            let told = read_with(None, nowhere, &bytes, 1, || piece).end.unwrap_err().to_string();
            assert_says(&told, &["out of order", "stack_memory_bytes_max", "stack_spill_bytes_max"]);
            assert!(!told.contains("stack_spill_folder"), "{told}");

            let little = Limits { spill_bytes_max: 300_000, ..limits };
            let outcome = read_with(None, Options { limits: little, ..spilling }, &bytes, 1, || piece);
            assert_says(&outcome.end.unwrap_err().to_string(), &["300000", "stack_spill_bytes_max"]);
        }
        let outcome = read(&bytes);
        assert!(outcome.end.is_ok() && outcome.spilled == 0, "{name}");

        // Without a temporary file, all of the memory may hold frames.
        let limits = Limits { memory_bytes_max: bytes.len() + bytes.len() / 10, ..LIMITS };
        let fits = Options { limits, spill_folder: None, file_alone: false };
        let end = read_with(None, fits, &bytes, 1, || 40_000).end;
        assert!(end.is_ok(), "{name}: {end:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
}

#[test]
fn what_somebody_else_has_no_room_for_goes_to_the_file_and_what_is_held_is_told() {
    const FRAMES: u64 = 400;
    const ROOM: usize = 256 << 10;
    let folder = tempfile::tempdir().unwrap();
    let options = || Options { spill_folder: spilled_to(folder.path()), ..options() };
    for order in [true, false] {
        let forward = (0..FRAMES).map(|index| if order { index } else { FRAMES - 1 - index });
        let bytes = backward(FRAMES, 32, forward);
        assert_eq!(read_with(None, options(), &bytes, 1, || 5000).spilled, 0, "it fits into memory");
        // Bytes held now, and the most that were held.
        let told = Arc::new(Mutex::new((0, 0)));
        let teller = Arc::clone(&told);
        let may_hold = move |bytes: usize| {
            let mut told = teller.lock();
            *told = (bytes, told.1.max(bytes));
            bytes <= ROOM
        };
        let mut reader = StackReader::new(None, options()).within(Box::new(may_hold));
        let mut frames = 0;
        let mut take = |reader: &mut StackReader| {
            while let Some(frame) = reader.next_frame().unwrap() {
                let expected = long_frame(frames, 32 * 32);
                assert!(matches!(frame.samples, Samples::U16(samples) if samples == expected), "{frames}");
                frames += 1;
            }
        };
        for piece in bytes.chunks(5000) {
            reader.push(Bytes::copy_from_slice(piece)).unwrap();
            assert!(told.lock().0 <= ROOM + (70 << 10), "it holds what it may not");
            take(&mut reader);
        }
        reader.finish();
        take(&mut reader);
        assert!(reader.spilled_bytes() > 0 && frames == FRAMES, "{frames}");
        let (last, most) = *told.lock();
        assert!(most > ROOM && last < ROOM / 100, "{last} of at most {most} bytes");
    }
}

#[test]
fn a_folder_that_is_not_there_is_an_error_of_ours() {
    let limits = Limits { memory_bytes_max: 16 << 10, ..LIMITS };
    let options = Options { limits, spill_folder: spilled_to("/nonexistent/folder"), file_alone: false };
    let outcome = read_with(None, options, &backward(50, 32, 0..50), 1, || 1000);
    let error = outcome.end.unwrap_err();
    assert!(matches!(error, StackError::Spill { bytes: 1.., .. }), "{error:?}");
    let error = InferError::from(error);
    assert!(matches!(error, InferError::NoStorage(_)), "{error:?}");
    let told = error.to_string();
    assert!(told.contains("not found") && !told.contains("nonexistent"), "{told}");
}

#[test]
fn a_stack_that_is_cut_anywhere_gives_its_whole_frames_and_says_what_is_missing() {
    for (name, sample) in good() {
        let bytes = fixture(name);
        let expected = planes(sample, frames_of(name));
        for len in 0..bytes.len() {
            for step in [usize::MAX, 97] {
                let outcome = read_with(None, options(), &bytes.slice(..len), 1, || step);
                let whole = outcome.planes.len();
                assert!(outcome.planes == expected[..whole], "{name} cut at {len}: other samples");
                match outcome.end {
                    Ok(()) => assert_eq!(whole, expected.len(), "{name} cut at {len} is taken for whole"),
                    Err(StackError::Truncated { frame, missing, .. }) => {
                        assert!(frame == whole as u64, "{name} cut at {len}: {frame} instead of {whole}");
                        assert!(
                            missing > 0 && missing <= (bytes.len() - len) as u64,
                            "{name} cut at {len}: {missing}"
                        );
                    }
                    Err(StackError::Unknown { .. }) => assert!(len < 8, "{name} cut at {len}"),
                    Err(other) => panic!("{name} cut at {len}: {other}"),
                }
            }
        }
    }
}

#[test]
fn a_cut_stack_names_the_frame_and_the_missing_bytes() {
    let bytes = fixture("little_u2.npy");
    let frame = 2 * WIDTH as usize * HEIGHT as usize;
    let cut = bytes.slice(..128 + 2 * frame + 100);
    let text = refusal(cut);
    assert_says(&text, &[".npy is truncated", "frame 2 is incomplete", "116 bytes of it are missing"]);
    assert!(!text.contains("at least"));
    let bytes = fixture("imagej.tif");
    let at = read_with(None, options(), &bytes, 1, || 1).at;
    assert_says(&refusal(bytes.slice(..at[2] - 7)), &["frame 2 is incomplete", ", 7 bytes"]);
    let bytes = fixture("pages.tif");
    let at = read_with(None, options(), &bytes, 1, || 1).at;
    assert_says(&refusal(bytes.slice(..at[2] - 7)), &["frame 2 is incomplete", ", 7 bytes"]);
    assert_says(&refusal(bytes.slice(..at[2])), &["frame 3 is incomplete", "at least 2 bytes"]);
}

#[test]
fn raw_samples_have_the_size_that_was_stated() {
    let raw = |frames| Some(Format::Raw(Raw { width: 3, height: 2, sample: SampleType::U16, frames }));
    let bytes: Bytes = (0u16..18).flat_map(u16::to_le_bytes).collect::<Vec<_>>().into();
    for frames in [None, Some(3)] {
        let outcome = read_with(raw(frames), options(), &bytes, 1, || 5);
        assert!(outcome.end.is_ok());
        assert_eq!(outcome.planes.concat(), (0..18).map(f64::from).collect::<Vec<_>>());
        assert_eq!(outcome.info.unwrap().frames, frames);
    }
    let end = |bytes: &Bytes, frames| {
        let whole = read_with(raw(frames), options(), bytes, 1, || usize::MAX);
        let pieces = read_with(raw(frames), options(), bytes, 1, || 1);
        assert_eq!(whole.planes, pieces.planes);
        let text = whole.end.unwrap_err().to_string();
        assert_eq!(text, pieces.end.unwrap_err().to_string());
        text
    };
    assert_says(&end(&bytes.slice(..30), None), &["frame 2 is incomplete", " 6 bytes"]);
    assert_says(&end(&bytes, Some(4)), &["frame 3 is incomplete", " 12 bytes"]);
    assert_says(
        &end(&bytes, Some(2)),
        &["more bytes follow after the last of its 2 frames of 3 x 2 px of u16"],
    );
    assert_says(&end(&Bytes::new(), None), &["holds no pixels"]);
    assert_says(&end(&Bytes::new(), Some(0)), &["holds no pixels"]);
    let floats: Bytes = [1.5f32, f32::NAN, f32::INFINITY].map(f32::to_le_bytes).concat().into();
    let raw = Raw { width: 3, height: 1, sample: SampleType::F32, frames: None };
    let outcome = read_with(Some(Format::Raw(raw)), options(), &floats, 1, || usize::MAX);
    let plane = &outcome.planes[0];
    assert!(plane[0] == 1.5 && plane[1].is_nan() && plane[2].is_infinite());
}

#[test]
fn a_stack_of_image_j_may_be_larger_than_4_gib() {
    // Frames of 1 MiB each.
    const FRAMES: u64 = 4200;
    let text = format!("ImageJ=1.54f\nimages={FRAMES}\n");
    let mut builder = Builder::new(LITTLE);
    let mut fields = builder.page(1024, 512, 0, 1 << 20);
    fields.push(Builder::text(tags::DESCRIPTION, &text));
    let start = (builder.bytes.len() + 2 + 12 * fields.len() + 4 + text.len()) as u64;
    fields[3] = builder.longs(tags::STRIP_OFFSETS, &[start]);
    builder.directory(&fields);

    let mut reader = StackReader::new(None, options());
    reader.push(builder.bytes.into()).unwrap();
    let frame = Bytes::from(vec![7; 1 << 20]);
    for index in 0..FRAMES {
        reader.push(frame.clone()).unwrap();
        let frames = reader.next_frame().unwrap().unwrap();
        assert_eq!(frames.first, index);
        assert!(matches!(frames.samples, Samples::U16([0x0707, .., 0x0707])));
        assert!(reader.next_frame().unwrap().is_none());
    }
    reader.finish();
    assert!(reader.next_frame().unwrap().is_none());
    assert!(reader.memory_bytes_peak() < 4 << 20, "{}", reader.memory_bytes_peak());
}

#[test]
fn small_frames_come_out_many_at_once() {
    let raw = Raw { width: 7, height: 7, sample: SampleType::U16, frames: None };
    let bytes: Bytes = vec![3; 98 * 50_000].into();
    let mut reader = StackReader::new(Some(Format::Raw(raw)), options());
    reader.push(bytes).unwrap();
    let counts = [
        reader.next_frames(1000).unwrap().unwrap().count,
        reader.next_frames(usize::MAX).unwrap().unwrap().count,
        reader.next_frame().unwrap().unwrap().count,
    ];
    assert_eq!(counts, [1000, (256 << 10) / 98, 1]);
}

#[test]
fn directories_that_run_in_a_circle_are_refused() {
    for (target, pages) in [("itself", 1), ("the first", 3)] {
        let mut builder = Builder::new(LITTLE);
        let mut first = 0;
        let mut last = 0;
        for _ in 0..pages {
            let samples = builder.samples(&[1, 2, 3, 4]);
            let start = builder.put(&samples);
            let fields = builder.page(2, 2, start, 8);
            last = builder.directory(&fields);
            first = if first == 0 { last } else { first };
        }
        builder.point(if target == "itself" { last } else { first });
        let outcome = read(&builder.bytes.into());
        assert_eq!(outcome.planes.len(), pages);
        assert_says(&outcome.end.unwrap_err().to_string(), &["directories run in a circle", "frame"]);
    }
}

#[test]
fn many_pages_are_read_in_one_go_and_counted() {
    const PAGES: u64 = 60_000;
    let bytes = Bytes::from(long_stacks(PAGES, 2).pop().unwrap().2);
    let outcome = read(&bytes);
    assert!(outcome.end.is_ok());
    assert_eq!(outcome.planes.len() as u64, PAGES);
    for (_, format, bytes) in long_stacks(20, 2) {
        let limits = Limits { frames_max: 19, ..LIMITS };
        let outcome = read_with(format, Options { limits, ..options() }, &bytes.into(), 1, || 10);
        assert_says(
            &outcome.end.unwrap_err().to_string(),
            &["frames in the stack is 20", "limit of 19", "stack_frames_max"],
        );
    }
}

#[test]
fn the_lists_of_a_page_are_not_read_again_with_every_piece_that_comes() {
    const ROWS: u64 = 1 << 17;
    let mut builder = Builder::new(LITTLE);
    let start = builder.put(&vec![7; 2 * ROWS as usize]);
    let mut fields = builder.page(1, 1, start, 2);
    fields[1] = builder.longs(tags::HEIGHT, &[ROWS]);
    // This text lies between the list of offsets and the list of sizes, so that the first arrives long before the second.
    fields.insert(4, Builder::text(tags::DESCRIPTION, &"x".repeat(2 << 20)));
    fields[3] = builder.longs(tags::STRIP_OFFSETS, &(0..ROWS).map(|row| start + 2 * row).collect::<Vec<_>>());
    fields[5] = builder.longs(tags::STRIP_BYTES, &vec![2; ROWS as usize]);
    fields.push(builder.short(tags::STRIP_ROWS, 1));
    builder.directory(&fields);
    let limits = Limits { side_max: ROWS as u32, memory_bytes_max: 64 << 20, ..LIMITS };
    // Reading the lists with each piece takes minutes: quadratic work shows in this test's duration.
    let outcome = read_with(None, Options { limits, ..options() }, &builder.bytes.into(), 1, || 64);
    assert!(outcome.end.is_ok(), "{:?}", outcome.end);
    assert_eq!(outcome.planes, [vec![f64::from(0x0707); ROWS as usize]]);
}

/// A page with changed fields.
fn page(change: impl FnOnce(&Builder, &mut Vec<builder::Field>)) -> Bytes {
    let mut builder = Builder::new(LITTLE);
    let samples = builder.samples(&[1, 2, 3, 4]);
    let start = builder.put(&samples);
    let mut fields = builder.page(2, 2, start, 8);
    change(&builder, &mut fields);
    builder.directory(&fields);
    builder.bytes.into()
}

#[test]
fn directories_that_lie_are_refused_with_what_they_say() {
    assert_eq!(read(&page(|_, _| ())).planes, [[1.0, 2.0, 3.0, 4.0]]);
    let end = |change: &dyn Fn(&Builder, &mut Vec<builder::Field>)| refusal(page(change));
    // A strip far outside; one that begins inside.
    let text = end(&|builder, fields| fields[3] = builder.longs(tags::STRIP_OFFSETS, &[4_000_000_000]));
    assert_says(&text, &["truncated", "frame 0", "39999"]);
    let text = end(&|builder, fields| fields[3] = builder.longs(tags::STRIP_OFFSETS, &[70]));
    assert_says(&text, &["shares bytes with another part"]);
    // Too few bytes; then more than there are, which is accepted because all pixels are there.
    let text = end(&|builder, fields| fields[4] = builder.longs(tags::STRIP_BYTES, &[7]));
    assert_says(&text, &["strip 0 of 1", "has 7 bytes instead of 8"]);
    let many = page(|builder, fields| fields[4] = builder.longs(tags::STRIP_BYTES, &[4_000_000_000]));
    assert!(read(&many).end.is_ok());
    // Sizes.
    let text = end(&|builder, fields| fields[0] = builder.longs(tags::WIDTH, &[4_294_967_295]));
    assert_says(&text, &["width", "4294967295", "4096", "image_side_max"]);
    let text = end(&|builder, fields| {
        fields[0] = builder.short(tags::WIDTH, 4000);
        fields[1] = builder.short(tags::HEIGHT, 4000);
    });
    assert_says(&text, &["16000000", "1048576", "image_pixels_max"]);
    let text = end(&|builder, fields| fields[1] = builder.short(tags::HEIGHT, 0));
    assert_says(&text, &["2 x 0 px"]);
    assert_says(&end(&|_, fields| drop(fields.remove(1))), &["no height"]);
    assert_says(&end(&|_, fields| drop(fields.remove(3))), &["where its pixels are"]);
    assert_says(
        &end(&|builder, fields| fields[2] = builder.short(tags::BITS, 12)),
        &["12 bits per sample", "with 8, 16 or 32 bits"],
    );
    let text = end(&|builder, fields| {
        fields[0] = Builder::counting(builder.short(tags::WIDTH, 2), 2);
    });
    assert_says(&text, &["width is not one number"]);
    let text = end(&|builder, fields| fields.push(builder.short(tags::STRIP_ROWS, 1)));
    assert_says(&text, &["list of offsets has 1 numbers", "2 strips"]);
    let text = end(&|builder, fields| {
        fields.extend([builder.short(tags::TILE_WIDTH, 0), builder.short(tags::TILE_HEIGHT, 16)]);
        fields.extend([builder.longs(tags::TILE_OFFSETS, &[8]), builder.longs(tags::TILE_BYTES, &[8])]);
    });
    assert_says(&text, &["tiles are 0 x 16 px"]);
    // A directory with far too many entries.
    let mut builder = Builder::new(BIG_LITTLE);
    builder.point(16);
    builder.put(&u64::MAX.to_le_bytes());
    assert_says(&refusal(builder.bytes), &["18446744073709551615 entries"]);
}

#[test]
fn pages_that_share_their_pixels_are_refused() {
    let mut builder = Builder::new(LITTLE);
    let samples = builder.samples(&[1, 2, 3, 4]);
    let start = builder.put(&samples);
    for _ in 0..2 {
        let fields = builder.page(2, 2, start, 8);
        builder.directory(&fields);
    }
    let outcome = read(&builder.bytes.into());
    assert_eq!(outcome.planes.len(), 1);
    assert_says(&outcome.end.unwrap_err().to_string(), &["frame 1", "shares bytes"]);
}

/// The bytes compressed by zlib.
fn deflated(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_strip_that_swells_is_cut_at_its_size() {
    let bomb = deflated(&vec![0; 64 << 20]);
    let mut builder = Builder::new(LITTLE);
    let start = builder.put(&bomb);
    let mut fields = builder.page(2, 2, start, bomb.len() as u64);
    fields.push(builder.short(tags::COMPRESSION, 8));
    builder.directory(&fields);
    let outcome = read(&builder.bytes.into());
    assert_eq!(outcome.planes, [[0.0; 4]]);
    assert!(outcome.memory_peak < 2 * bomb.len() + 4096, "{}", outcome.memory_peak);

    // And packed data that are too few for their strip.
    let mut builder = Builder::new(LITTLE);
    let start = builder.put(&bomb[..100]);
    let mut fields = builder.page(1000, 1000, start, 100);
    fields.push(builder.short(tags::COMPRESSION, 8));
    builder.directory(&fields);
    assert_says(&refusal(builder.bytes), &["strip 0 of 1", "of 2000000 bytes"]);
}

#[test]
fn what_a_strip_is_said_to_have_beyond_all_reason_is_not_waited_for() {
    let mut builder = Builder::new(LITTLE);
    let packed = deflated(&builder.samples(&[1, 2, 3, 4]));
    let start = builder.put(&packed);
    // More bytes than are read for the strip, and then the directory: a strip of the stated length would extend beyond that.
    builder.put(&[0; 128 << 10]);
    let mut fields = builder.page(2, 2, start, 1 << 30);
    fields.push(builder.short(tags::COMPRESSION, 8));
    builder.directory(&fields);
    let outcome = read(&builder.bytes.into());
    assert!(outcome.end.is_ok(), "{:?}", outcome.end);
    assert_eq!(outcome.planes, [[1.0, 2.0, 3.0, 4.0]]);
}

#[test]
fn image_j_says_of_all_pages_that_their_samples_have_a_sign() {
    let mut builder = Builder::new(LITTLE);
    for value in [1, 2] {
        let packed = deflated(&builder.samples(&[0, 32768, 32768 + value, 65535]));
        // In ImageJ's order: the directory, the description, the pixels.
        let text = "ImageJ=1.54f\nimages=2\nc0=-32768.0\nc1=1.0\n";
        let table = LITTLE.count_bytes() + 7 * LITTLE.entry_bytes() + LITTLE.offset_bytes() as u64;
        let start = builder.bytes.len() as u64 + table + text.len() as u64;
        let mut fields = builder.page(2, 2, start, packed.len() as u64);
        fields.push(builder.short(tags::COMPRESSION, 8));
        fields.push(Builder::text(tags::DESCRIPTION, text));
        builder.directory(&fields);
        assert_eq!(builder.put(&packed), start);
    }
    let outcome = read(&builder.bytes.into());
    assert!(outcome.end.is_ok(), "{:?}", outcome.end);
    assert_eq!(outcome.planes, [1.0, 2.0].map(|value| [-32768.0, 0.0, value, 32767.0]));
}

#[test]
fn samples_of_which_image_j_says_too_late_that_they_have_a_sign_are_refused() {
    let mut builder = Builder::new(LITTLE);
    let packed = deflated(&builder.samples(&[0, 32768, 32769, 65535]));
    let start = builder.put(&packed);
    let mut fields = builder.page(2, 2, start, packed.len() as u64);
    fields.push(builder.short(tags::COMPRESSION, 8));
    fields.push(Builder::text(tags::DESCRIPTION, "ImageJ=1.54f\nimages=1\nc0=-32768.0\nc1=1.0\n"));
    builder.directory(&fields);
    let error = read(&builder.bytes.into()).end.unwrap_err().to_string();
    assert!(error.contains("32768 too high") && error.contains("save the stack anew"), "{error}");
}

#[test]
fn a_description_that_goes_on_behind_the_end_is_done_without() {
    let text = "a description that the file has not to its end";
    let cut = |_: &Builder, fields: &mut Vec<builder::Field>| {
        fields.push(Builder::counting(Builder::text(tags::DESCRIPTION, text), 1 << 20));
    };
    let outcome = read(&page(cut));
    assert!(outcome.end.is_ok(), "{:?}", outcome.end);
    assert_eq!(outcome.planes, [[1.0, 2.0, 3.0, 4.0]]);
}

#[test]
fn a_description_after_the_pixels_is_still_read() {
    for text in ["ImageJ=1.54f\nimages=3\n", "{\"shape\": [3, 2, 2]}"] {
        let mut builder = Builder::new(LITTLE);
        let samples: Vec<u16> = (0..12).collect();
        let data = builder.samples(&samples);
        let start = builder.put(&data);
        let mut fields = builder.page(2, 2, start, 8);
        fields.push(Builder::text(tags::DESCRIPTION, text));
        builder.directory(&fields);
        let bytes = Bytes::from(builder.bytes);
        for piece in [1, usize::MAX] {
            let outcome = read_with(None, options(), &bytes, 1, || piece);
            assert!(outcome.end.is_ok());
            assert_eq!(outcome.planes.concat(), (0..12).map(f64::from).collect::<Vec<_>>());
        }
    }
}

/// A stack as MetaMorph writes it: one directory, for the first plane, and a tag with as many values as there are planes, which follow each
/// other.
fn meta_morph(planes: u64, change: impl FnOnce(&Builder, &mut Vec<builder::Field>)) -> Vec<u8> {
    let mut builder = Builder::new(LITTLE);
    let samples: Vec<u16> = (0..5 * 4).collect();
    let data = builder.samples(&samples);
    let start = builder.put(&data);
    let mut fields = builder.page(2, 2, start, 8);
    fields.push(Builder::counting(builder.longs(tags::META_MORPH_PLANES, &[7; 5 * 6]), planes));
    change(&builder, &mut fields);
    builder.directory(&fields);
    builder.bytes
}

#[test]
fn planes_that_metamorph_counts_follow_the_first() {
    let bytes = Bytes::from(meta_morph(5, |_, _| ()));
    for piece in [1, 30, usize::MAX] {
        let outcome = read_with(None, options(), &bytes, 1, || piece);
        assert!(outcome.end.is_ok(), "{:?}", outcome.end);
        assert_eq!(outcome.planes.concat(), (0..20).map(f64::from).collect::<Vec<_>>());
        assert_eq!(outcome.info.unwrap().frames, Some(5));
    }
    // Two strips of a plane, one behind the other.
    let strips = meta_morph(5, |builder, fields| {
        fields[3] = builder.longs(tags::STRIP_OFFSETS, &[8, 12]);
        fields[4] = builder.longs(tags::STRIP_BYTES, &[4, 4]);
        fields.push(builder.short(tags::STRIP_ROWS, 1));
    });
    assert_eq!(read(&strips.into()).planes.len(), 5);
    // A count of one plane fits any TIFF.
    let one = read(&meta_morph(1, |_, _| ()).into());
    assert!(one.end.is_ok() && one.planes.len() == 1);
}

#[test]
fn planes_that_metamorph_counts_and_that_are_not_there_are_missed() {
    // More planes than lie before the directory, and more than follow it.
    assert_says(&refusal(meta_morph(6, |_, _| ())), &["frame 5", "shares bytes"]);
    let mut builder = Builder::new(LITTLE);
    let mut fields = builder.page(2, 2, 0, 8);
    fields.push(Builder::counting(builder.longs(tags::META_MORPH_PLANES, &[7; 30]), 5));
    let start = (builder.bytes.len() + 2 + 12 * fields.len() + 4 + 120) as u64;
    fields[3] = builder.longs(tags::STRIP_OFFSETS, &[start]);
    builder.directory(&fields);
    assert_eq!(builder.put(&[1; 3 * 8 + 2]), start);
    assert_says(&refusal(builder.bytes), &["truncated", "frame 3 is incomplete", "6 bytes"]);
    let packed = |builder: &Builder, fields: &mut Vec<builder::Field>| {
        fields.push(builder.short(tags::COMPRESSION, 32773));
    };
    assert_says(
        &refusal(meta_morph(5, packed)),
        &["5 planes of MetaMorph", "compressed", "save the stack as TIFF"],
    );
    let limits = Limits { frames_max: 4, ..LIMITS };
    let outcome =
        read_with(None, Options { limits, ..options() }, &meta_morph(5, |_, _| ()).into(), 1, || usize::MAX);
    assert_says(&outcome.end.unwrap_err().to_string(), &["stack_frames_max"]);
}

#[test]
fn a_directory_that_contradicts_the_description_is_an_error() {
    let mut builder = Builder::new(LITTLE);
    let text = "ImageJ=1.54f\nimages=2\n";
    let mut fields = builder.page(2, 2, 0, 8);
    fields.push(Builder::text(tags::DESCRIPTION, text));
    let start = (builder.bytes.len() + 2 + 12 * fields.len() + 4 + text.len()) as u64;
    fields[3] = builder.longs(tags::STRIP_OFFSETS, &[start]);
    builder.directory(&fields);
    builder.put(&[0; 24]);
    let fields = builder.page(2, 2, start + 16, 8);
    builder.directory(&fields);
    let text = refusal(builder.bytes);
    assert_says(
        &text,
        &["frame 1", &format!("begin at byte {}", start + 16), &format!("at byte {}", start + 8)],
    );
}

/// Micro-Manager writes ImageJ's description too, and metadata and directories between its frames.
#[test]
fn frames_are_not_taken_to_follow_each_other_where_directories_stand_between_them() {
    let mut builder = Builder::new(LITTLE);
    let expected: Vec<Plane> = (0..3).map(|index| vec![f64::from(index); 4]).collect();
    for index in 0..3 {
        let samples = builder.samples(&[index; 4]);
        let mut fields = builder.page(2, 2, 0, 8);
        fields.push(Builder::text(tags::DESCRIPTION, "ImageJ=1.51s\nimages=3\n"));
        let start = (builder.bytes.len() + 2 + 12 * fields.len() + 4 + 22) as u64;
        fields[3] = builder.longs(tags::STRIP_OFFSETS, &[start]);
        builder.directory(&fields);
        assert_eq!(builder.put(&samples), start);
    }
    let outcome = read(&builder.bytes.into());
    assert!(outcome.end.is_ok(), "{:?}", outcome.end);
    assert_eq!(outcome.planes, expected);
}

#[test]
fn micro_manager_says_the_pixel_size_beside_each_frame() {
    let (_, _, bytes) = long_stacks(3, 8).swap_remove(3);
    let info = read(&bytes.into()).info.unwrap();
    assert_eq!(info.pixel_nm, Some([160.0, 160.0]));
}

#[test]
fn npy_headers_that_lie_are_refused() {
    let npy = |header: &str| {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes
    };
    let shape = |shape: &str| npy(&format!("{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}"));
    assert_says(&refusal(shape("(1, 18446744073709551615, 2)")), &["height", "18446744073709551615"]);
    assert_says(&refusal(shape("(9223372036854775807, 2, 2)")), &["stack_frames_max"]);
    assert_says(&refusal(shape("(1, -2, 2)")), &["not a tuple of numbers"]);
    assert_says(&refusal(shape("7")), &["not a tuple"]);
    assert_says(&refusal(shape("(3, 0, 2)")), &["2 x 0 px"]);
    assert_says(&refusal(npy("{'descr': '<u2'}")), &["no \"fortran_order\""]);
    assert_says(&refusal(&b"\x93NUMPY\x09\x00\x10\x00xxxxxxxxxxxxxxxxxx"[..]), &["version 9.0"]);
    assert_says(&refusal(&b"\x93NUMPY\x02\x00\xff\xff\xff\xff"[..]), &["4294967295 bytes"]);
    let mut surplus = fixture("little_u2.npy").to_vec();
    surplus.push(0);
    assert_says(&refusal(surplus), &["more bytes follow after the last of its 5 frames"]);
}

#[test]
fn an_error_stays() {
    let mut reader = StackReader::new(None, options());
    reader.push(fixture("two_sizes.tif")).unwrap();
    let mut frames = 0;
    let error = loop {
        match reader.next_frame() {
            Ok(Some(_)) => frames += 1,
            Ok(None) => panic!("no error"),
            Err(error) => break error.to_string(),
        }
    };
    assert_eq!(frames, 2);
    assert_eq!(reader.next_frame().unwrap_err().to_string(), error);
    assert_eq!(reader.push(Bytes::from_static(b"more")).unwrap_err().to_string(), error);
}

#[test]
fn damage_never_panics_and_takes_no_more_than_its_limits() {
    let limits = Limits { frames_max: 64, frame_pixels_max: 1 << 16, memory_bytes_max: 1 << 20, ..LIMITS };
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_120);
    let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(60);
    println!("SEED={seed} ROUNDS={rounds}");
    let mut random = Random::new(seed);
    let mut fixtures = all_fixtures();
    for (name, format, bytes) in long_stacks(3, 4) {
        if format.is_none() {
            fixtures.push((name.to_owned(), bytes.into()));
        }
    }
    let (mut good, mut bad) = (0, 0);
    for (name, bytes) in fixtures {
        for round in 0..rounds {
            let mut damaged = bytes.to_vec();
            for _ in 0..1 + random.below(4) {
                // Damage to headers and directories is the most interesting; they are at the ends of the file.
                let near = match random.below(3) {
                    0 => damaged.len(),
                    _ => damaged.len().min(400),
                };
                let at = if random.below(4) == 0 {
                    damaged.len() - 1 - random.below(near)
                } else {
                    random.below(near)
                };
                match random.below(5) {
                    0 => damaged[at] ^= 1 << random.below(8),
                    1 => damaged[at] = random.below(256) as u8,
                    2 => damaged[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
                    3 => drop(damaged.splice(at..(at + random.below(20)).min(damaged.len()), [])),
                    _ => {
                        let from = random.below(damaged.len());
                        let piece = damaged[from..(from + 1 + random.below(20)).min(damaged.len())].to_vec();
                        drop(damaged.splice(at..at, piece));
                    }
                }
                if damaged.is_empty() {
                    damaged.push(0);
                }
            }
            let damaged = Bytes::from(damaged);
            let options = Options { limits, spill_folder: None, file_alone: round % 2 == 0 };
            let whole = read_with(None, options.clone(), &damaged, 1, || usize::MAX);
            let pieces = read_with(None, options, &damaged, 3, || 1 + random.below(300));
            assert!(whole.memory_peak < 4 << 20, "{name}, round {round}: {}", whole.memory_peak);
            let same =
                |a: &Plane, b: &Plane| a.iter().zip(b).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()));
            let planes = whole.planes.iter().zip(&pieces.planes).all(|(a, b)| same(a, b));
            assert!(planes, "{name}, round {round}: frames differ");
            let ends = |end: &Result<(), StackError>| end.as_ref().map_err(ToString::to_string).copied();
            let counts = (whole.planes.len(), pieces.planes.len());
            assert_eq!(counts.0, counts.1, "{name}, round {round}: {:?} {:?}", whole.end, pieces.end);
            assert_eq!(ends(&whole.end), ends(&pieces.end), "{name}, round {round}");
            if whole.end.is_ok() { good += 1 } else { bad += 1 }
        }
    }
    println!("{good} read, {bad} refused");
    assert!(good > 0 && bad > 0);
}

#[test]
fn tiles_that_have_several_planes_are_refused_and_not_read_as_one() {
    let file = |planes: u64| {
        let mut builder = Builder::new(LITTLE);
        let samples = builder.samples(&[7; 16 * 16]);
        let at = builder.put(&samples);
        let fields = [
            builder.short(tags::WIDTH, 16),
            builder.short(tags::HEIGHT, 16),
            builder.short(tags::BITS, 16),
            builder.short(tags::TILE_WIDTH, 16),
            builder.short(tags::TILE_HEIGHT, 16),
            builder.longs(tags::TILE_OFFSETS, &[at]),
            builder.longs(tags::TILE_BYTES, &[512]),
            builder.short(tags::IMAGE_DEPTH, planes),
        ];
        builder.directory(&fields);
        Bytes::from(builder.bytes)
    };
    assert_eq!(read(&file(1)).planes.len(), 1);
    assert_says(&refusal(file(4)), &["tiles of 4 planes in frame 0"]);
}
