//! Compares resizing with a plain reference and with Pillow, crops and padding with torchvision's rules, numbers with the formula, and
//! scaled decoding with full decoding.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::{Color, DataType, Filter, Layout, Pixels, Preprocess, Resize, Scratch, centred};
use crate::{
    error::InferError,
    image::{
        Frame, Orientation, Samples,
        corpus::{self, LIMITS, pixels, whole},
        decode,
    },
    random::Random,
    worse::worse,
};
use half::f16;
use turbojpeg::{PixelFormat, Subsamp};

/// Pixels unchanged, rounded.
fn plain(width: u32, height: u32, resize: Resize, filter: Filter) -> Preprocess {
    Preprocess {
        resize,
        filter,
        scale: 1.0,
        layout: Layout::Nhwc,
        datatype: DataType::Uint8,
        ..Preprocess::new(width, height)
    }
}

fn frame(width: u32, height: u32, channels: u8, samples: Samples) -> Frame {
    Frame::upright(Orientation::UPRIGHT, (width, height), channels, samples)
}

fn apply(to: &Preprocess, frame: &Frame) -> Vec<u8> {
    to.check().unwrap();
    let mut out = vec![0xaa; to.out_bytes()];
    to.apply(frame, &mut Scratch::default(), &mut out).unwrap();
    out
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (numbers, _) = bytes.as_chunks::<4>();
    numbers.iter().map(|b| f32::from_ne_bytes(*b)).collect()
}

/// The largest and the mean difference.
fn differences(a: &[f64], b: &[f64]) -> (f64, f64) {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    let largest = differences.clone().fold(0.0, worse);
    (largest, differences.sum::<f64>() / a.len() as f64)
}

fn wide(bytes: &[u8]) -> Vec<f64> {
    bytes.iter().map(|v| f64::from(*v)).collect()
}

/// The kernels by their definitions.
fn kernel(filter: Filter, x: f64) -> f64 {
    // The half-open box decides about pixels whose centre lies on its edge.
    if filter == Filter::Box {
        return f64::from(u8::from(-0.5 < x && x <= 0.5));
    }
    let x = x.abs();
    let sinc = |x: f64| {
        let x = x * std::f64::consts::PI;
        if x == 0.0 { 1.0 } else { x.sin() / x }
    };
    match filter {
        Filter::Bilinear if x < 1.0 => 1.0 - x,
        Filter::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
        Filter::Bicubic if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
        Filter::Lanczos3 if x < 3.0 => sinc(x) * sinc(x / 3.0),
        _ => 0.0,
    }
}

/// Resizes one line to `length` in double precision.
fn resize_line(line: &[f64], length: usize, filter: Filter) -> Vec<f64> {
    let scale = line.len() as f64 / length as f64;
    let wide = scale.max(1.0);
    let out = |i: usize| {
        let centre = (i as f64 + 0.5) * scale;
        let weights = (0..line.len()).map(|j| kernel(filter, (j as f64 + 0.5 - centre) / wide));
        let total: f64 = weights.clone().sum();
        weights.zip(line).map(|(w, v)| w * v).sum::<f64>() / total
    };
    (0..length).map(out).collect()
}

/// Resizes the whole image, channel by channel, columns then rows. Values are clamped to `most` after each pass.
fn reference(
    samples: &[f64],
    (width, height, channels): (usize, usize, usize),
    (to_width, to_height): (usize, usize),
    (filter, most): (Filter, f64),
) -> Vec<f64> {
    let cut = |line: &[f64], length| -> Vec<f64> {
        resize_line(line, length, filter).into_iter().map(|v| v.clamp(0.0, most)).collect()
    };
    let mut out = vec![0.0; to_width * to_height * channels];
    for c in 0..channels {
        let columns: Vec<Vec<f64>> = (0..width)
            .map(|x| {
                let line: Vec<f64> = (0..height).map(|y| samples[(y * width + x) * channels + c]).collect();
                cut(&line, to_height)
            })
            .collect();
        for y in 0..to_height {
            let row: Vec<f64> = columns.iter().map(|column| column[y]).collect();
            for (x, v) in cut(&row, to_width).into_iter().enumerate() {
                out[(y * to_width + x) * channels + c] = v;
            }
        }
    }
    out
}

#[test]
fn resizing_agrees_with_a_plain_reference() {
    let photo = corpus::photo(157, 83, 7);
    let image = frame(157, 83, 3, Samples::U8(photo.clone()));
    for filter in [Filter::Box, Filter::Bilinear, Filter::Bicubic, Filter::Lanczos3] {
        for (width, height) in [(64, 64), (200, 31), (157, 40), (300, 200)] {
            let to = plain(width, height, Resize::Stretch, filter);
            let size = (width as usize, height as usize);
            let expected = reference(&wide(&photo), (157, 83, 3), size, (filter, 255.0));
            let (largest, mean) = differences(&wide(&apply(&to, &image)), &expected);
            println!("{filter:?} {width} × {height}: largest {largest:.3}, mean {mean:.3}");
            // Values are rounded after each of the two passes, which the lobes of the wider kernels amplify.
            let tolerance = match filter {
                Filter::Box | Filter::Bilinear => 1.01,
                _ => 1.5,
            };
            assert!(largest <= tolerance && mean < 0.4);
        }
    }
}

#[test]
fn resizing_agrees_with_pillow() {
    let image = decode(&corpus::fixture("interlaced.png"), &LIMITS, &whole);
    let image = image.unwrap().remove(0);
    for (name, filter) in [
        ("nearest", Filter::Nearest),
        ("box", Filter::Box),
        ("bilinear", Filter::Bilinear),
        ("bicubic", Filter::Bicubic),
        ("lanczos", Filter::Lanczos3),
    ] {
        for (width, height) in [(7, 5), (31, 17)] {
            let pillow = corpus::fixture(&format!("{name}_{width}x{height}.png"));
            let pillow = decode(&pillow, &LIMITS, &whole).unwrap().remove(0);
            let Samples::U8(pillow) = pillow.samples else {
                panic!("8 bits");
            };
            let to = plain(width, height, Resize::Stretch, filter);
            let (largest, mean) = differences(&wide(&apply(&to, &image)), &wide(&pillow));
            println!("{name} {width} × {height}: largest {largest}, mean {mean:.4}");
            // Where the wide kernel overshoots, the clamping between the passes depends on their order.
            let tolerance = if filter == Filter::Lanczos3 { 2.0 } else { 1.0 };
            assert!(largest <= tolerance && mean < 0.1, "{name}");
        }
    }
}

#[test]
fn sixteen_bits_are_resized_at_sixteen_bits() {
    let samples: Vec<u16> = corpus::photo(90, 60, 3)
        .iter()
        .enumerate()
        .map(|(i, v)| (u16::from(*v) * 257) ^ (i % 251) as u16)
        .collect();
    for channels in [1u8, 3] {
        let width = 270 / u32::from(channels);
        let image = frame(width, 60, channels, Samples::U16(samples.clone()));
        let to = Preprocess {
            scale: 257.0,
            layout: Layout::Nhwc,
            color: if channels == 1 { Color::Gray } else { Color::Rgb },
            ..Preprocess::new(32, 24)
        };
        let numbers: Vec<f64> = samples.iter().map(|v| f64::from(*v)).collect();
        let size = (width as usize, 60, usize::from(channels));
        let expected = reference(&numbers, size, (32, 24), (Filter::Bilinear, 65535.0));
        let got: Vec<f64> = floats(&apply(&to, &image)).into_iter().map(f64::from).collect();
        let (largest, _) = differences(&got, &expected);
        println!("{channels} channels: largest difference {largest:.3} of 65535");
        assert!(largest < 2.0);
    }
}

#[test]
fn cutting_first_changes_nothing_but_the_work() {
    let photo = corpus::photo(150, 101, 5);
    let image = frame(150, 101, 3, Samples::U8(photo.clone()));
    for (resize, width, height) in [
        (Resize::Shorter(64), 56, 56),
        (Resize::Shorter(40), 57, 33),
        (Resize::Shorter(120), 100, 99),
        (Resize::Shorter(101), 64, 64),
        (Resize::Square(64), 56, 48),
        (Resize::Square(120), 120, 99),
    ] {
        let to = plain(width, height, resize, Filter::Bilinear);
        let all = to.placement(150, 101);
        let (all_width, all_height) = all.resized;
        let expected = match resize {
            Resize::Shorter(side) => (side * 150 / 101, side),
            Resize::Square(side) => (side, side),
            other => unreachable!("{other:?} cuts nothing"),
        };
        assert_eq!(all.resized, expected);
        let stretched = plain(all_width, all_height, Resize::Stretch, Filter::Bilinear);
        let stretched = apply(&stretched, &image);
        let (left, top) = (-all.offset.0 as usize, -all.offset.1 as usize);
        let mut expected = Vec::new();
        for y in 0..height as usize {
            let start = ((y + top) * all_width as usize + left) * 3;
            expected.extend(&stretched[start..start + width as usize * 3]);
        }
        let (largest, _) = differences(&wide(&apply(&to, &image)), &wide(&expected));
        println!("{resize:?} → {width} × {height}: largest difference {largest}");
        assert!(largest <= 1.0);
    }
}

#[test]
fn the_centre_is_cut_as_torchvision_cuts_it() {
    // Python rounds halves to even: int(round(0.5)) is 0, int(round(1.5)) is 2, int(round(2.5)) is 2.
    for (inner, expected) in [(5, 0), (6, 0), (7, -1), (8, -2), (9, -2), (10, -2), (11, -3), (12, -4)] {
        assert_eq!(centred(5, inner), expected, "{inner} in 5");
    }
    // Missing pixels: (crop - size) // 2 of them come first.
    for (inner, expected) in [(4, 0), (3, 1), (2, 1), (1, 2)] {
        assert_eq!(centred(5, inner), expected, "{inner} in 5");
    }
    // The longer side is rounded down: int(256 * 375 / 500) and the like.
    let to = plain(224, 224, Resize::Shorter(256), Filter::Bilinear);
    for (size, resized) in [
        ((500, 375), (341, 256)),
        ((375, 500), (256, 341)),
        ((224, 225), (256, 257)),
        ((1920, 1080), (455, 256)),
        ((10, 10), (256, 256)),
    ] {
        assert_eq!(to.enough(size.0, size.1), Some(resized), "{size:?}");
    }
}

#[test]
fn an_image_smaller_than_the_crop_stands_on_black() {
    let image = frame(2, 1, 1, Samples::U8(vec![100, 200]));
    let to = Preprocess { color: Color::Gray, ..plain(5, 4, Resize::Shorter(1), Filter::Bilinear) };
    #[rustfmt::skip]
    let expected = [
        0,   0,   0, 0, 0,
        0, 100, 200, 0, 0,
        0,   0,   0, 0, 0,
        0,   0,   0, 0, 0,
    ];
    assert_eq!(apply(&to, &image), expected);
}

#[test]
fn a_letterboxed_image_stands_in_the_middle_and_boxes_find_their_way_back() {
    let samples = vec![10u8; 40 * 20];
    let image = frame(40, 20, 1, Samples::U8(samples));
    let to = Preprocess { pad: 7, color: Color::Gray, ..plain(16, 16, Resize::Letterbox, Filter::Bilinear) };
    let mut out = vec![0; to.out_bytes()];
    let placement = to.apply(&image, &mut Scratch::default(), &mut out).unwrap();
    for (y, row) in out.chunks(16).enumerate() {
        let expected = if (4..12).contains(&y) { 10 } else { 7 };
        assert!(row.iter().all(|v| *v == expected), "row {y}: {row:?}");
    }
    assert_eq!(placement.to_source(0.0, 4.0), (0.0, 0.0));
    assert_eq!(placement.to_source(16.0, 12.0), (40.0, 20.0));
    assert_eq!(placement.to_source(8.0, 8.0), (20.0, 10.0));
    // Padding belongs to the nearest edge.
    assert_eq!(placement.to_source(-3.0, 0.0), (0.0, 0.0));
    assert_eq!(placement.to_source(99.0, 16.0), (40.0, 20.0));
    assert_eq!(placement.source, (40, 20));
    // Half a pixel is rounded to even, as in the code that trains YOLO.
    let to = plain(640, 640, Resize::Letterbox, Filter::Bilinear);
    for (height, resized, top) in [(721, 360, 140), (723, 362, 139), (725, 362, 139), (719, 360, 140)] {
        let placement = to.placement(1280, height);
        assert_eq!((placement.resized, placement.offset), ((640, resized), (0, top)), "{height}");
        assert_eq!(to.placement(height, 1280).resized, (resized, 640));
    }

    let mut random = Random::new(11);
    let mut largest = 0f32;
    for _ in 0..1000 {
        let (width, height) = (1 + random.below(4000) as u32, 1 + random.below(4000) as u32);
        let resize =
            [Resize::Letterbox, Resize::Stretch, Resize::Shorter(256), Resize::Square(256)][random.below(4)];
        let to = plain(224, 160, resize, Filter::Bilinear);
        let placement = to.placement(width, height);
        let point = (random.below(1 + width as usize) as f32, random.below(1 + height as usize) as f32);
        let (x, y) = placement.from_source(point.0, point.1);
        let back = placement.to_source(x, y);
        largest = worse(largest, worse((back.0 - point.0).abs(), (back.1 - point.1).abs()));
    }
    println!("largest error of a round trip: {largest} px");
    // Far outside a crop, the input's coordinates are large and their floats coarse.
    assert!(largest < 0.05);
}

#[test]
fn numbers_are_those_of_the_formula() {
    let samples: Vec<u8> = (0..=255).flat_map(|v: u8| [v, 255 - v, v / 2]).collect();
    let image = frame(16, 16, 3, Samples::U8(samples.clone()));
    let wide_image = frame(16, 16, 3, Samples::U16(samples.iter().map(|v| u16::from(*v) * 257).collect()));
    for layout in [Layout::Nchw, Layout::Nhwc] {
        for color in [Color::Rgb, Color::Bgr] {
            let to = Preprocess {
                color,
                layout,
                mean: [0.485, 0.456, 0.406],
                std: [0.229, 0.224, 0.225],
                ..Preprocess::new(16, 16)
            };
            let half = Preprocess { datatype: DataType::Fp16, ..to.clone() };
            let got = floats(&apply(&to, &image));
            assert_eq!(floats(&apply(&to, &wide_image)), got);
            let halves = apply(&half, &image);
            let (halves, _) = halves.as_chunks::<2>();
            for i in 0..256 {
                for k in 0..3 {
                    let from = if color == Color::Bgr { 2 - k } else { k };
                    let pixel = f32::from(samples[i * 3 + from]);
                    let expected = (pixel * to.scale - to.mean[k]) / to.std[k];
                    let at = match layout {
                        Layout::Nchw => k * 256 + i,
                        Layout::Nhwc => i * 3 + k,
                    };
                    assert_eq!(got[at], expected);
                    assert_eq!(f16::from_ne_bytes(halves[at]), f16::from_f32(expected));
                }
            }
        }
    }
}

/// As 8-bit pixels would be that were multiplied by `scale` before all else.
#[test]
fn measured_values_are_what_pixels_are_after_the_scale() {
    let mut random = Random::new(9);
    for (channels, color) in
        [(1, Color::Gray), (1, Color::Bgr), (3, Color::Rgb), (3, Color::Bgr), (3, Color::Gray)]
    {
        for resize in [Resize::Letterbox, Resize::Stretch, Resize::Shorter(30), Resize::Multiple(32)] {
            for filter in [Filter::Nearest, Filter::Box, Filter::Bilinear, Filter::Bicubic, Filter::Lanczos3]
            {
                let samples: Vec<u16> =
                    (0..27 * 23 * usize::from(channels)).map(|_| random.below(65536) as u16).collect();
                let to = Preprocess {
                    resize,
                    filter,
                    color,
                    layout: [Layout::Nchw, Layout::Nhwc][random.below(2)],
                    scale: 0.25,
                    mean: [5.0, 7.0, 9.0],
                    std: [2.0, 4.0, 0.5],
                    ..Preprocess::new(32, 32)
                };
                let measured = samples.iter().map(|value| f32::from(*value) / 257.0 * to.scale).collect();
                let expected = floats(&apply(&to, &frame(27, 23, channels, Samples::U16(samples))));
                let measured = frame(27, 23, channels, Samples::F32(measured));
                let got = floats(&apply(&to, &measured));
                let of = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
                let (largest, _) = differences(&of(&got), &of(&expected));
                // A step of 16 bits or two, after scale and the least deviation; cut where 16 bits end, beyond which kernels overshoot.
                let overshoots =
                    matches!(filter, Filter::Bicubic | Filter::Lanczos3) && resize != Resize::Multiple(32);
                println!("{resize:?}, {filter:?}, {color:?}: largest {largest}");
                assert!(
                    largest < if overshoots { 60.0 } else { 0.002 },
                    "{resize:?}, {filter:?}, {color:?}: {largest}"
                );
                // The same by the two steps.
                let mut placed = vec![0; 4 * to.pixels_shape().into_iter().product::<usize>()];
                to.place(&measured, &mut Scratch::default(), &mut placed).unwrap();
                let mut later = vec![0; to.out_bytes()];
                to.normalize(Pixels::F32(&floats(&placed)), 1, &mut later);
                assert_eq!(floats(&later), got);
            }
        }
    }
}

#[test]
fn pixels_that_are_more_than_halves_hold_become_the_most_that_they_hold() {
    let to = Preprocess {
        scale: 257.0,
        mean: [0.0, 40_000.0, 0.0],
        std: [1.0, 1.0, -0.5],
        datatype: DataType::Fp16,
        ..plain(2, 1, Resize::Exact, Filter::Nearest)
    };
    let halves = |samples| {
        let item = apply(&to, &frame(2, 1, 3, samples));
        item.as_chunks::<2>().0.iter().map(|half| f16::from_ne_bytes(*half).to_f32()).collect::<Vec<_>>()
    };
    let expected = [65504.0, 25536.0, -65504.0, 0.0, -40000.0, 0.0];
    assert_eq!(halves(Samples::U16(vec![65535, 65535, 65535, 0, 0, 0])), expected);
    assert_eq!(halves(Samples::U8(vec![255, 255, 255, 0, 0, 0])), expected);
}

#[test]
fn measured_values_that_the_input_does_not_hold_are_refused_with_their_place() {
    let told = |to: &Preprocess, at: usize, value: f32| {
        let mut values = vec![0.0; 4 * 3];
        values[at] = value;
        let mut out = vec![0; to.out_bytes()];
        to.apply(&frame(4, 3, 1, Samples::F32(values)), &mut Scratch::default(), &mut out)
            .map_err(|error| error.to_string())
            .map(|_| ())
    };
    let single = Preprocess { color: Color::Gray, resize: Resize::Exact, ..Preprocess::new(4, 3) };
    let half = Preprocess { datatype: DataType::Fp16, ..single.clone() };
    assert_eq!((told(&half, 9, 65519.0), told(&single, 9, 70000.0)), (Ok(()), Ok(())));
    let why = told(&half, 9, 70000.0).unwrap_err();
    assert!(why.contains("which is FP16 (the first is at column 1, row 2, counted from 0)"), "{why}");
    assert_eq!(told(&Preprocess { mean: [10_000.0; 3], ..half.clone() }, 9, 70000.0), Ok(()));
    assert!(told(&Preprocess { std: [0.01; 3], ..half.clone() }, 9, -700.0).is_err());
    let why = told(&Preprocess { std: [0.01; 3], ..single }, 9, 1e37).unwrap_err();
    assert!(why.contains("which is FP32 (the first is at column 1, row 2,"), "{why}");
    // In the pixels of the posted image, in either layout.
    for layout in [Layout::Nchw, Layout::Nhwc] {
        let rgb = Preprocess { color: Color::Rgb, layout, ..half.clone() };
        assert!(told(&rgb, 6, 70000.0).unwrap_err().contains("column 2, row 1,"), "{layout:?}");
        let (width, resize, filter) = (16, Resize::Letterbox, Filter::Nearest);
        let larger = Preprocess { width, height: 16, resize, filter, ..rgb };
        assert!(told(&larger, 6, 70000.0).unwrap_err().contains("column 2, row 1,"), "{layout:?}");
    }
}

#[test]
fn measured_values_have_an_opacity_from_0_to_1() {
    let to = Preprocess { background: [255, 0, 51], resize: Resize::Exact, ..Preprocess::new(1, 1) };
    for (samples, expected) in [
        (vec![-3.0, 0.5, 0.5, 1.0], [-3.0, 0.5, 0.5]),
        (vec![0.5, 0.5, 7.0, 0.0], [1.0, 0.0, 0.2]),
        (vec![0.0, 1.0, 0.2, 0.5], [0.5, 0.5, 0.2]),
        (vec![4.0, 9.0], [4.0; 3]),
        (vec![4.0, -9.0], [1.0, 0.0, 0.2]),
    ] {
        let channels = samples.len() as u8;
        let got = floats(&apply(&to, &frame(1, 1, channels, Samples::F32(samples))));
        for (got, expected) in got.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-6, "{got} for {expected}");
        }
    }
    // Weighted as 8-bit pixels are.
    let gray = Preprocess { color: Color::Gray, ..to };
    let luma = floats(&apply(&gray, &frame(1, 1, 3, Samples::F32(vec![-100.0, 1000.0, 10.0]))))[0];
    assert!((luma - (-29.9 + 587.0 + 1.14)).abs() < 0.01, "{luma}");
}

#[test]
fn pixels_that_are_placed_now_and_normalised_later_give_the_same_numbers() {
    let mut random = Random::new(5);
    let mut scratch = Scratch::default();
    for round in 0..200 {
        let side = |random: &mut Random| 1 + random.below(40) as u32;
        let to = Preprocess {
            resize: [Resize::Letterbox, Resize::Stretch, Resize::Shorter(30), Resize::Square(35)]
                [random.below(4)],
            color: [Color::Rgb, Color::Bgr, Color::Gray][random.below(3)],
            layout: [Layout::Nchw, Layout::Nhwc][random.below(2)],
            datatype: [DataType::Fp32, DataType::Fp16][random.below(2)],
            background: [10, 100, 200],
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
            ..Preprocess::new(side(&mut random), side(&mut random))
        };
        let wide = random.below(2) == 1;
        let mut together = Vec::new();
        let mut apart = Vec::new();
        let items = 1 + random.below(3);
        for _ in 0..items {
            let (width, height, channels) = (side(&mut random), side(&mut random), 1 + random.below(4) as u8);
            let count = width as usize * height as usize * usize::from(channels);
            let samples: Vec<u16> = (0..count).map(|_| random.below(65536) as u16).collect();
            let samples = match wide {
                true => Samples::U16(samples),
                false => Samples::U8(samples.into_iter().map(|v| v as u8).collect()),
            };
            let image = frame(width, height, channels, samples);
            together.extend(apply(&to, &image));
            let samples = to.pixels_shape().into_iter().product::<usize>();
            let mut item = vec![0xaa; samples * image.samples.bytes_each()];
            let placed = to.place(&image, &mut scratch, &mut item).unwrap();
            assert_eq!(placed, to.placement(width, height));
            apart.extend(item);
        }
        let samples: Vec<u16>;
        let pixels = match wide {
            true => {
                samples = apart.as_chunks::<2>().0.iter().map(|b| u16::from_ne_bytes(*b)).collect();
                Pixels::U16(&samples)
            }
            false => Pixels::U8(&apart),
        };
        let mut out = vec![0xaa; together.len()];
        to.normalize(pixels, items, &mut out);
        assert!(out == together, "round {round}: {to:?}");
    }
}

#[test]
fn an_image_is_filled_up_to_multiples_with_its_mirror_image() {
    // As `np.pad(..., mode="reflect")` does it.
    let rows = |samples: &[u8], width: usize| samples.chunks(width).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let to = Preprocess { color: Color::Gray, ..plain(8, 4, Resize::Multiple(4), Filter::Bilinear) };
    let image = frame(5, 3, 1, Samples::U8((0..15).collect()));
    let filled = apply(&to, &image);
    let expected = [
        [0, 1, 2, 3, 4, 3, 2, 1],
        [5, 6, 7, 8, 9, 8, 7, 6],
        [10, 11, 12, 13, 14, 13, 12, 11],
        [5, 6, 7, 8, 9, 8, 7, 6],
    ];
    assert_eq!(rows(&filled, 8), expected);
    let mut scratch = Scratch::default();
    let mut placed = vec![0; 32];
    let placement = to.place(&image, &mut scratch, &mut placed).unwrap();
    assert_eq!(rows(&placed, 8), expected, "and so are pixels that an engine normalises");
    assert_eq!((placement.source, placement.input), ((5, 3), (8, 4)));
    assert_eq!((placement.from_source(4.5, 2.5), placement.is_filled_up()), ((4.5, 2.5), true));
    // A pixel has no neighbour to begin with, and is repeated; a few have fewer than are missing, and go to and fro.
    let one = Preprocess { color: Color::Gray, ..plain(4, 4, Resize::Multiple(4), Filter::Bilinear) };
    assert_eq!(apply(&one, &frame(1, 1, 1, Samples::U8(vec![7]))), [7; 16]);
    assert_eq!(apply(&one, &frame(2, 1, 1, Samples::U8(vec![1, 2]))), [1, 2, 1, 2].repeat(4));
    let colours = Preprocess { height: 1, ..plain(4, 1, Resize::Multiple(4), Filter::Bilinear) };
    let colours = Preprocess { height: 4, ..colours };
    let filled = apply(&colours, &frame(3, 4, 3, Samples::U16((0..36).map(|n| n * 257).collect())));
    assert_eq!(filled[..12], [0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 4, 5]);
    // A whole multiple stays as it is.
    let exact = frame(8, 4, 1, Samples::U8((0..32).collect()));
    assert_eq!(apply(&to, &exact), (0..32).collect::<Vec<_>>());
    assert!(!to.placement(8, 4).is_filled_up());
    for (size, taken) in [((5, 1), true), ((8, 4), true), ((4, 4), false), ((9, 4), false), ((8, 5), false)] {
        assert_eq!(to.takes(size).is_ok(), taken, "{size:?}");
    }
}

#[test]
fn a_slot_that_is_not_aligned_gets_the_same_numbers() {
    let image = frame(20, 12, 3, Samples::U8(pixels(corpus::rgb)));
    let to = Preprocess::new(9, 7);
    let expected = apply(&to, &image);
    let mut scratch = Scratch::default();
    let mut slot = vec![0; to.out_bytes() + 4];
    for start in 0..4 {
        let out = &mut slot[start..start + to.out_bytes()];
        to.apply(&image, &mut scratch, out).unwrap();
        assert_eq!(out, expected);
    }
}

#[test]
fn colour_and_alpha_become_what_the_model_takes() {
    let one = |channels, samples: Vec<u8>| frame(1, 1, channels, Samples::U8(samples));
    let rgb = Preprocess { background: [0, 100, 200], ..plain(1, 1, Resize::Exact, Filter::Bilinear) };
    let gray = Preprocess { color: Color::Gray, ..rgb.clone() };
    for (to, image, expected) in [
        (&rgb, one(1, vec![9]), &[9, 9, 9][..]),
        (&rgb, one(3, vec![1, 2, 3]), &[1, 2, 3]),
        (&rgb, one(4, vec![255, 255, 255, 0]), &[0, 100, 200]),
        (&rgb, one(4, vec![200, 0, 100, 255]), &[200, 0, 100]),
        (&rgb, one(4, vec![255, 0, 0, 51]), &[51, 80, 160]),
        (&rgb, one(2, vec![255, 51]), &[51, 131, 211]),
        (&gray, one(1, vec![9]), &[9]),
        (&gray, one(2, vec![255, 0]), &[82]),
        (&gray, one(3, vec![255, 0, 0]), &[76]),
        (&gray, one(4, vec![1, 1, 1, 0]), &[82]),
    ] {
        assert_eq!(apply(to, &image), expected, "{image:?}");
        let Samples::U8(samples) = image.samples else {
            panic!("8 bits");
        };
        let wide = samples.iter().map(|v| u16::from(*v) * 257).collect();
        let wide = frame(1, 1, image.channels, Samples::U16(wide));
        assert_eq!(apply(to, &wide), expected, "{wide:?}");
    }
    // Weighted as in Pillow.
    let image = frame(20, 12, 3, Samples::U8(pixels(corpus::rgb)));
    let luma = decode(&corpus::fixture("luma.png"), &LIMITS, &whole).unwrap().remove(0);
    let to = Preprocess { color: Color::Gray, ..plain(20, 12, Resize::Exact, Filter::Bilinear) };
    assert_eq!(Samples::U8(apply(&to, &image)), luma.samples);
}

#[test]
fn scaled_decoding_gives_nearly_what_full_decoding_gives() {
    let to = Preprocess { resize: Resize::Shorter(256), ..plain(224, 224, Resize::Exact, Filter::Bilinear) };
    for (width, height, progressive) in [(1920, 1080, false), (1031, 1203, false), (1333, 2001, true)] {
        let photo = corpus::photo(width, height, 1);
        let bytes = corpus::jpeg(&photo, width, PixelFormat::RGB, progressive);
        for orientation in [1, 6, 3] {
            let bytes = corpus::turned(&bytes, orientation);
            let full = decode(&bytes, &LIMITS, &whole).unwrap().remove(0);
            let scaled = decode(&bytes, &LIMITS, &|w, h| to.enough(w, h)).unwrap().remove(0);
            assert!(scaled.width < full.width);
            assert_eq!(scaled.source, full.source);
            let (largest, mean) = differences(&wide(&apply(&to, &scaled)), &wide(&apply(&to, &full)));
            println!("{width} × {height}, {orientation}: largest {largest}, mean {mean:.3} of 255");
            assert!(mean < 0.5, "{mean}");
        }
    }
}

/// Red and blue in waves of six or seven pixels of the output; fewer samples are stored of them than of brightness.
#[test]
fn colours_are_not_scaled_to_less_than_is_needed_and_a_box_has_all_pixels() {
    let (width, height) = (1203u32, 905u32);
    let wave =
        |at: u32, side: u32, waves: f32| (at as f32 / side as f32 * waves * std::f32::consts::TAU).sin();
    let level = |wave: f32| (128.0 + 100.0 * wave) as u8;
    let at = |x, y| [level(wave(x, width, 9.0)), 128, level(wave(y, height, 7.0))];
    let waves: Vec<u8> = (0..height).flat_map(|y| (0..width).flat_map(move |x| at(x, y))).collect();
    for (subsampling, bilinear) in [
        (Subsamp::None, (151, 114)),
        (Subsamp::Sub2x2, (151, 114)),
        (Subsamp::Sub2x1, (301, 227)),
        (Subsamp::Sub1x2, (301, 227)),
        (Subsamp::Sub4x1, (602, 453)),
    ] {
        let bytes = corpus::jpeg_sampled(&waves, width, PixelFormat::RGB, subsampling, false);
        let full = decode(&bytes, &LIMITS, &whole).unwrap().remove(0);
        for (_, filter) in Filter::ALL {
            let to = plain(60, 44, Resize::Stretch, filter);
            let scaled = decode(&bytes, &LIMITS, &|w, h| to.enough(w, h)).unwrap().remove(0);
            let size = match filter {
                Filter::Nearest | Filter::Box => (width, height),
                _ => bilinear,
            };
            assert_eq!((scaled.width, scaled.height), size, "{subsampling:?}, {filter:?}");
            let (largest, mean) = differences(&wide(&apply(&to, &scaled)), &wide(&apply(&to, &full)));
            println!("{subsampling:?}, {filter:?}: largest {largest}, mean {mean:.3} of 255");
            assert!(mean < 1.0 && largest <= 10.0, "{subsampling:?}, {filter:?}: {largest}, {mean}");
        }
    }
}

/// With few rows, the last one, of which the image covers an eighth, would count as a whole row.
#[test]
fn strips_of_few_pixels_across_are_not_scaled_to_where_a_part_of_a_pixel_shows() {
    let to = plain(224, 224, Resize::Letterbox, Filter::Bilinear);
    for (width, height) in [(5000u32, 17u32), (5000, 25), (4000, 65), (3000, 129), (17, 5000), (4000, 128)] {
        let across = width.min(height);
        let level = |x: u32, y: u32| (255 * if width < height { x } else { y } / across) as u8;
        let gradient: Vec<u8> =
            (0..height).flat_map(|y| (0..width).flat_map(move |x| [level(x, y); 3])).collect();
        let bytes = corpus::jpeg(&gradient, width, PixelFormat::RGB, false);
        let full = decode(&bytes, &LIMITS, &whole).unwrap().remove(0);
        let scaled = decode(&bytes, &LIMITS, &|w, h| to.enough(w, h)).unwrap().remove(0);
        assert_eq!(scaled.width < full.width, across >= 65, "{width} × {height}");
        let (largest, mean) = differences(&wide(&apply(&to, &scaled)), &wide(&apply(&to, &full)));
        println!("{width} × {height}: largest {largest}, mean {mean:.3} of 255");
        assert!(mean < 0.5 && largest <= 2.0, "{width} × {height}: largest {largest}, mean {mean:.3} of 255");
    }
}

#[test]
fn an_image_of_another_size_is_refused_where_the_size_must_be_exact() {
    let image = frame(2, 1, 1, Samples::U8(vec![1, 2]));
    let to = plain(4, 4, Resize::Exact, Filter::Bilinear);
    let error = to.apply(&image, &mut Scratch::default(), &mut vec![0; to.out_bytes()]).unwrap_err();
    assert!(matches!(error, InferError::BadRequest(_)));
    assert_eq!(error.to_string(), "the image is 2 × 1 pixels, but the model takes exactly 4 × 4");
    assert_eq!(to.enough(2, 1), None);
    // Names one side only, because it may be the only one that the model fixes.
    let told = |size| to.takes(size).unwrap_err().to_string();
    assert_eq!(told((2, 4)), "the image is 2 × 4 pixels, but the model takes a width of exactly 4");
    assert_eq!(told((4, 2)), "the image is 4 × 2 pixels, but the model takes a height of exactly 4");
    assert_eq!(to.takes((4, 4)), Ok(()));
}

#[test]
fn the_strangest_sizes_are_resized_without_a_panic() {
    let mut random = Random::new(3);
    let mut scratch = Scratch::default();
    for round in 0..300 {
        let mut side = || [1, 2, 3, 17, 255, 1000][random.below(6)] as u32;
        let (width, height, to_width, to_height, shorter) =
            (side(), side(), side().min(300), side().min(300), side());
        let resize = [Resize::Letterbox, Resize::Stretch, Resize::Shorter(shorter), Resize::Square(shorter)]
            [round % 4];
        let filter = [Filter::Nearest, Filter::Box, Filter::Bilinear, Filter::Bicubic, Filter::Lanczos3]
            [round / 4 % 5];
        let samples = vec![77u8; (width * height) as usize];
        let image = frame(width, height, 1, Samples::U8(samples));
        let to = Preprocess { pad: 77, ..plain(to_width, to_height, resize, filter) };
        let mut out = vec![0; to.out_bytes()];
        let placement = to.apply(&image, &mut scratch, &mut out).unwrap();
        let inside = placement.resized.0 >= to_width && placement.resized.1 >= to_height;
        if inside || resize == Resize::Letterbox {
            assert!(out.iter().all(|v| *v == 77), "{width} × {height} by {to:?}");
        }
    }
}

/// A regression: rows were read beyond their end where the last pixel of the cut lies exactly on a source pixel and the one before needs
/// more.
#[test]
fn an_enlarged_cut_whose_last_pixel_lies_on_one_of_the_source_is_that_of_the_whole() {
    for (width, height, cut) in [(3, 75, (2, 39)), (75, 3, (39, 2))] {
        let image = frame(width, height, 3, Samples::U8(corpus::photo(width, height, 7)));
        for filter in [Filter::Bicubic, Filter::Lanczos3] {
            let to = plain(cut.0, cut.1, Resize::Shorter(23), filter);
            let placement = to.placement(width, height);
            let (all_width, all_height) = placement.resized;
            let all = apply(&plain(all_width, all_height, Resize::Stretch, filter), &image);
            let (left, top) = (-placement.offset.0 as usize, -placement.offset.1 as usize);
            let rows = (top..top + cut.1 as usize).map(|y| (y * all_width as usize + left) * 3);
            let expected: Vec<u8> =
                rows.flat_map(|start| all[start..start + cut.0 as usize * 3].to_vec()).collect();
            let (largest, _) = differences(&wide(&apply(&to, &image)), &wide(&expected));
            assert!(largest <= 1.0, "{width} × {height}, {filter:?}: {largest}");
        }
    }
}

#[test]
fn what_cannot_be_carried_out_is_said_with_its_value() {
    let good = Preprocess::new(224, 224);
    assert_eq!(good.check(), Ok(()));
    let mut cases = vec![good; 7];
    cases[0].width = 0;
    cases[1].resize = Resize::Shorter(0);
    cases[2].std[1] = 0.0;
    cases[3].mean[2] = f32::NAN;
    cases[4].scale = f32::INFINITY;
    cases[5].datatype = DataType::Uint8;
    cases[6].height = 1 << 16;
    let said = [
        "width is 0",
        "size is 0",
        "std holds 0",
        "mean holds NaN",
        "scale is inf",
        "set scale 1, mean 0 and std 1",
        "height is 65536",
    ];
    for (case, said) in cases.iter().zip(said) {
        let error = case.check().unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}
