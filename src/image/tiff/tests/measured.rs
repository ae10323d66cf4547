//! Pages of measured values.

use super::{zstd::packed, *};
use crate::image::stack::{self, StackReader};

const COLUMNS: u32 = SIZE[0];

/// Sample format, bits, and how a value is stored.
type Stored = (u32, u32, fn(f32) -> Vec<u8>);

const KINDS: [Stored; 9] = [
    (1, 32, |value| ((value + 5000.0) as u32).to_le_bytes().to_vec()),
    (1, 64, |value| ((value + 5000.0) as u64).to_le_bytes().to_vec()),
    (2, 8, |value| ((value / 50.0) as i8).to_le_bytes().to_vec()),
    (2, 16, |value| (value as i16).to_le_bytes().to_vec()),
    (2, 32, |value| (value as i32 * 1000).to_le_bytes().to_vec()),
    (2, 64, |value| (value as i64).to_le_bytes().to_vec()),
    (3, 16, |value| half::f16::from_f32(value / 8.0).to_le_bytes().to_vec()),
    (3, 32, |value| (value / 7.0).to_le_bytes().to_vec()),
    (3, 64, |value| (f64::from(value) / 7.0).to_le_bytes().to_vec()),
];

/// What comes back of it.
fn back(format: u32, bits: u32, value: f32) -> f32 {
    match (format, bits) {
        (1, _) => value + 5000.0,
        (2, 8) => (value / 50.0).trunc(),
        (2, 32) => value * 1000.0,
        (2, _) => value,
        (_, 16) => value / 8.0,
        (_, 32) => value / 7.0,
        _ => (f64::from(value) / 7.0) as f32,
    }
}

/// A value, negative or not, that all kinds can hold.
fn value(x: u32, y: u32, channel: u32) -> f32 {
    (8 * ((37 * x + 101 * y + 59 * channel) % 1001)) as f32 - 4000.0
}

fn page((format, bits, store): Stored, channels: &[u32], size: [u32; 2]) -> Page {
    let places = (0..size[1]).flat_map(|y| (0..size[0]).map(move |x| (x, y)));
    let stored =
        places.flat_map(|(x, y)| channels.iter().flat_map(move |channel| store(value(x, y, *channel))));
    let count = channels.len() as u32;
    let page = Page::new(size, bits, count, vec![stored.collect()]);
    page.with(SAMPLE_FORMAT, &vec![format; channels.len()])
        .with(PHOTOMETRIC, &[if count == 3 { 2 } else { 1 }])
}

fn f32s(page: Page) -> (u8, Vec<f32>) {
    let frame = frames(&[page]).remove(0);
    let Samples::F32(samples) = frame.samples else { panic!("parts of white") };
    (frame.channels, samples)
}

#[test]
fn values_of_every_type_are_read_as_they_are() {
    for kind in KINDS {
        let (format, bits, _) = kind;
        let expected = |channels: &[u32]| -> Vec<f32> {
            let places = (0..SIZE[1]).flat_map(|y| (0..COLUMNS).map(move |x| (x, y)));
            let of = |(x, y)| channels.iter().map(move |channel| back(format, bits, value(x, y, *channel)));
            places.flat_map(of).collect()
        };
        assert_eq!(f32s(page(kind, &[0], SIZE)), (1, expected(&[0])), "format {format}, {bits} bits");
        let colors = (3, expected(&[0, 1, 2]));
        assert_eq!(f32s(page(kind, &[0, 1, 2], SIZE)), colors, "format {format}, {bits} bits");
        let five = [0, 1, 2, 3, 4];
        let open = open_pages(file(&[page(kind, &five, SIZE)]), &LIMITS, Pages::Channels).unwrap();
        let frame = open.frame(0, &whole).unwrap();
        assert_eq!((frame.channels, frame.samples), (5, Samples::F32(expected(&five))));
        let planes = (0..3).flat_map(|channel| page(kind, &[channel], SIZE).chunks).collect();
        let planar = Page { chunks: planes, ..page(kind, &[0, 1, 2], SIZE) }.with(PLANAR, &[2]);
        assert_eq!(f32s(planar), colors, "format {format}, {bits} bits, in planes");
        let plain = page(kind, &[0, 1, 2], SIZE);
        let predicted = differences(&plain.chunks[0], bits as usize / 8, 3);
        let zstd = |chunks| Page { chunks: packed(chunks), ..plain.clone() }.with(COMPRESSION, &[50_000]);
        assert_eq!(f32s(zstd(plain.chunks.clone())), colors, "format {format}, {bits} bits, packed");
        let predicted = f32s(zstd(vec![predicted]).with(PREDICTOR, &[2]));
        assert_eq!(predicted, colors, "format {format}, {bits} bits, predicted");
    }
}

/// How each sample differs, as a whole number, from the one of the same channel to its left.
fn differences(stored: &[u8], bytes: usize, channels: usize) -> Vec<u8> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let mut out = Vec::new();
    for row in stored.chunks(bytes * channels * COLUMNS as usize) {
        let samples: Vec<u64> = row.chunks(bytes).map(number).collect();
        for (at, sample) in samples.iter().enumerate() {
            let left = at.checked_sub(channels).map_or(0, |at| samples[at]);
            out.extend(&sample.wrapping_sub(left).to_le_bytes()[..bytes]);
        }
    }
    out
}

#[test]
fn values_are_turned_with_their_page() {
    let kind = KINDS[7];
    let turned = f32s(page(kind, &[0], [3, 2]).with(ORIENTATION, &[6])).1;
    let at = |x, y| back(3, 32, value(x, y, 0));
    assert_eq!(turned, [at(0, 1), at(0, 0), at(1, 1), at(1, 0), at(2, 1), at(2, 0)]);
    let store: fn(f32) -> Vec<u8> =
        |value| if value > 1500.0 { f32::NAN } else { value }.to_le_bytes().to_vec();
    // The second row is what is left of the first column.
    let page = |orientation| page((3, 32, store), &[0], [1, 60]).with(ORIENTATION, &[orientation]);
    let first = (0..60).position(|y| value(0, y, 0) > 1500.0).unwrap();
    for (orientation, place) in [(1, format!("column 0, row {first}")), (5, format!("column {first}, row 0"))]
    {
        let good = file(&[page(orientation)]);
        let told = decode(&good, &LIMITS, &whole).unwrap_err().to_string();
        assert!(told.contains(&format!("NaN (the first is at {place}, counted from 0)")), "{told}");
    }
    let pages = [page(1).with(SAMPLE_FORMAT, &[1]), page(1)];
    let told = open(&file(&pages), &LIMITS).unwrap().frame(1, &whole).unwrap_err().to_string();
    assert!(told.contains("in page 1 (they count from 0)"), "{told}");
}

#[test]
fn measured_values_of_other_kinds_are_named() {
    let check = |page: Page, told: &str| {
        let error = header(&file(&[page]), &LIMITS).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    };
    let float = || page(KINDS[7], &[0], SIZE);
    check(float().with(PHOTOMETRIC, &[0]), "f32 samples of which 0 is white");
    check(
        float().with(COMPRESSION, &[7]),
        "f32 samples in JPEG streams is not supported; compress it with Deflate",
    );
    check(float().with(258, &[24]), "floating-point samples of 24 bits");
    check(float().with(SAMPLE_FORMAT, &[6]), "sample format 6");
    let four = page(KINDS[3], &[0, 1, 2, 3], SIZE).with(PHOTOMETRIC, &[2]);
    let values = "post it as grey or RGB without alpha, of floats of 16, 32 or 64 bits";
    check(four.clone(), "4 i16 samples per pixel");
    for page in [four, float().with(258, &[24]), float().with(PHOTOMETRIC, &[0])] {
        check(page, values);
    }
    let channels = "post it with a page for each channel, to a model with pages = \"channels\"";
    check(page(KINDS[7], &[0, 1], SIZE), channels);
    check(page(KINDS[7], &[0, 1, 2, 3, 4], SIZE).with(PHOTOMETRIC, &[2]), channels);
    check(page(KINDS[7], &[0, 1, 2, 3, 4], SIZE).with(SAMPLE_FORMAT, &[1]).with(258, &[16]), channels);
}

/// Against the reader of stacks, which is another decoder.
#[test]
fn the_measured_pages_of_stacks_are_pictures() {
    let names = [
        "pages_i1",
        "pages_i2_big_endian",
        "pages_u4",
        "pages_i4",
        "pages_u8",
        "pages_i8",
        "pages_f2",
        "pages_f4",
        "pages_f4_big_endian",
        "pages_f8",
        "deflate_predictor_u4",
        "deflate_predictor_f4",
        "deflate_predictor_f8_big_endian",
        "tiles_f4_lzw",
        "imagej_f4",
    ];
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/stacks");
    for name in names {
        let file = std::fs::read(folder.join(format!("{name}.tif"))).unwrap();
        let limits = stack::Limits {
            side_max: 4096,
            frame_pixels_max: 1 << 20,
            frames_max: 100,
            memory_bytes_max: 64 << 20,
            spill_bytes_max: 0,
        };
        let mut reader =
            StackReader::new(None, stack::Options { limits, spill_folder: None, file_alone: false });
        reader.push(file.clone().into()).unwrap();
        reader.finish();
        let mut expected = Vec::new();
        while let Some(frames) = reader.next_frames(1).unwrap() {
            let stack::Samples::F32(values) = frames.samples else { panic!("{name}") };
            expected.push(values.to_vec());
        }
        let got = decode(&file, &LIMITS, &whole).unwrap().into_iter().map(|frame| match frame.samples {
            Samples::F32(values) => values,
            other => panic!("{name}: {other:?}"),
        });
        assert_eq!(got.collect::<Vec<_>>(), expected, "{name}");
    }
}

#[test]
fn floats_that_were_predicted_are_read_however_they_are_packed() {
    for channels in [&[0][..], &[0, 1, 2]] {
        let plain = page(KINDS[7], channels, SIZE);
        let count = channels.len();
        // Differences of bytes, after those of the same place were put together, the highest first.
        let mut predicted = Vec::new();
        for row in plain.chunks[0].chunks(4 * count * COLUMNS as usize) {
            let planes: Vec<u8> =
                (0..4).rev().flat_map(|byte| row.iter().skip(byte).step_by(4).copied()).collect();
            predicted.extend(&planes[..count]);
            predicted
                .extend(planes.iter().zip(&planes[count..]).map(|(left, byte)| byte.wrapping_sub(*left)));
        }
        let floats = f32s(plain.clone());
        let zstd = packed(vec![predicted.clone()]);
        let zstd = Page { chunks: zstd, ..plain.clone() }.with(COMPRESSION, &[50_000]);
        assert_eq!(f32s(zstd.with(PREDICTOR, &[3])), floats);
        let deflate = Page { chunks: vec![deflated(&predicted)], ..plain }.with(COMPRESSION, &[8]);
        assert_eq!(f32s(deflate.with(PREDICTOR, &[3])), floats);
    }
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}
