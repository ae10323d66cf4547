//! The device version of the kernel against `image::preprocess`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use super::{super::emulated, *};
use crate::{
    image::{Filter, Frame, Samples, Scratch},
    random::Random,
    worse::worse,
};
use half::f16;

/// Half noise, half slopes and edges, so that filters overshoot somewhere.
fn frame(random: &mut Random, width: u32, height: u32, channels: u8, wide: bool) -> Frame {
    let noise = *random.of(&[0, 40, 255]);
    let mut sample = |i: u64| {
        let (pixel, channel) = (i / u64::from(channels), i % u64::from(channels));
        let (x, y) = (pixel % u64::from(width), pixel / u64::from(width));
        let edge = if (x / 9 + y / 7 + channel) % 2 == 0 { 200 } else { 30 + x % 50 };
        (edge + random.below(noise) as u64).min(255)
    };
    let count = u64::from(width) * u64::from(height) * u64::from(channels);
    let samples = if wide {
        Samples::U16((0..count).map(|i| (sample(i) * 257) as u16 ^ (i % 199) as u16).collect())
    } else {
        Samples::U8((0..count).map(|i| sample(i) as u8).collect())
    };
    let covered = Region { left: 0.0, top: 0.0, width: f64::from(width), height: f64::from(height) };
    Frame { width, height, channels, samples, source: (width, height), covered }
}

fn pixels(frame: &Frame) -> Pixels {
    let (address, wide) = match &frame.samples {
        Samples::U8(samples) => (samples.as_ptr() as u64, false),
        Samples::U16(samples) => (samples.as_ptr() as u64, true),
        Samples::F32(_) => panic!("no kernel reads measured values"),
    };
    Pixels::interleaved(address, frame.width, frame.channels, wide)
}

/// Launches a batch; returns its items as bytes.
fn launch(batch: &Batch, bytes: usize) -> Vec<u8> {
    let mut items = vec![0xaau8; bytes];
    let call =
        batch.call(batch.images().as_ptr() as u64, batch.tables().as_ptr() as u64, items.as_mut_ptr() as u64);
    for launch in batch.launches() {
        // SAFETY: all addresses are of this machine's memory, of the sizes that the kernels state.
        #[allow(unsafe_code, reason = "a call into C++")]
        unsafe {
            emulated::launch(KERNELS[launch.kernel], launch.blocks, THREADS, 0, &call);
        }
    }
    items
}

fn numbers(datatype: DataType, bytes: &[u8]) -> Vec<f32> {
    match datatype {
        DataType::Fp32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect(),
        DataType::Fp16 => bytes.as_chunks::<2>().0.iter().map(|b| f16::from_ne_bytes(*b).to_f32()).collect(),
        DataType::Uint8 => bytes.iter().map(|b| f32::from(*b)).collect(),
    }
}

fn options(random: &mut Random) -> Preprocess {
    let side = |random: &mut Random| 1 + random.below(70) as u32;
    let datatype = *random.of(&[DataType::Fp32, DataType::Fp32, DataType::Fp16, DataType::Uint8]);
    let plain = datatype == DataType::Uint8 || random.below(2) == 0;
    let filter = *random.of(&[
        Filter::Nearest,
        Filter::Box,
        Filter::Bilinear,
        Filter::Bilinear,
        Filter::Bicubic,
        Filter::Lanczos3,
    ]);
    let (shorter, square) = (Resize::Shorter(side(random)), Resize::Square(side(random)));
    let resize = *random.of(&[shorter, square, Resize::Stretch, Resize::Letterbox]);
    Preprocess {
        resize,
        filter,
        color: *random.of(&[Color::Rgb, Color::Bgr, Color::Gray]),
        background: *random.of(&[[0; 3], [255; 3], [10, 100, 200]]),
        scale: if plain { 1.0 } else { 1.0 / 255.0 },
        mean: if plain { [0.0; 3] } else { [0.485, 0.456, 0.406] },
        std: if plain { [1.0; 3] } else { [0.229, 0.224, 0.225] },
        layout: *random.of(&[Layout::Nchw, Layout::Nhwc]),
        datatype,
        ..Preprocess::new(side(random), side(random))
    }
}

#[test]
fn random_batches_agree_with_the_host_within_a_step() {
    let mut scratch = Scratch::default();
    let mut worst = std::collections::BTreeMap::<String, (f32, u64)>::new();
    let mut of_each = [0; KERNELS.len()];
    for seed in 1..=150 {
        let random = &mut Random::new(seed);
        let to = options(random);
        to.check().unwrap();
        let mut batch = Batch::new(&to);
        let mut frames = Vec::new();
        for _ in 0..1 + random.below(4) {
            let extent = |random: &mut Random| {
                let most = *random.of(&[3, 40, 90, 400]);
                1 + random.below(most) as u32
            };
            let (width, height) = (extent(random), extent(random));
            let (channels, wide) = (1 + random.below(4) as u8, random.below(3) == 0);
            let mut frame = frame(random, width, height, channels, wide);
            if random.below(4) == 0 && width > 1 && height > 1 {
                // Like a JPEG that was decoded at a quarter of its size: its last pixels are partly covered.
                frame.source = (width * 4 - 3, height * 4 - 1);
                frame.covered.width = f64::from(frame.source.0) / 4.0;
                frame.covered.height = f64::from(frame.source.1) / 4.0;
            }
            frames.push(frame);
        }
        let mut expected = Vec::new();
        for frame in &frames {
            let mut item = vec![0; to.out_bytes()];
            let placement = to.apply(frame, &mut scratch, &mut item).unwrap();
            let pushed = batch.push(pixels(frame), (frame.width, frame.height), frame.source, frame.covered);
            assert_eq!(pushed.unwrap(), placement, "seed {seed}");
            expected.push(item);
        }
        batch.launches().iter().for_each(|launch| of_each[launch.kernel] += 1);
        let items = launch(&batch, to.out_bytes() * frames.len());
        for (frame, (item, expected)) in frames.iter().zip(items.chunks(to.out_bytes()).zip(&expected)) {
            let wide = matches!(frame.samples, Samples::U16(_));
            let overshoots = matches!(to.filter, Filter::Bicubic | Filter::Lanczos3);
            // Differences in steps of the samples, minus the rounding error of the element type.
            let (got, expected) = (numbers(to.datatype, item), numbers(to.datatype, expected));
            let mut largest = 0f32;
            for (got, expected) in got.into_iter().zip(expected) {
                let step = to.scale / to.std.iter().copied().fold(f32::MAX, f32::min);
                let rounding = match to.datatype {
                    DataType::Fp16 => expected.abs() * 1e-3,
                    _ => expected.abs() * 1e-6,
                };
                let off = (got - expected).abs();
                largest = worse(largest, if off <= rounding { 0.0 } else { (off - rounding) / step });
            }
            let key = format!("{:?}, {} bits", to.filter, if wide { 16 } else { 8 });
            let entry = worst.entry(key).or_default();
            *entry = if largest <= entry.0 { *entry } else { (largest, seed) };
            let tolerance = match to.filter {
                Filter::Nearest => 0.0,
                // The host resizes along x first there, so that other overshoots are clipped.
                _ if overshoots && wide => 40.0,
                _ if overshoots => 3.01,
                // Bytes are rounded once more.
                _ if wide && to.datatype != DataType::Uint8 => 0.02,
                _ => 1.01,
            };
            assert!(
                largest <= tolerance,
                "seed {seed}: {largest} of 255: {} x {} x {} by {to:?}",
                frame.width,
                frame.height,
                frame.channels
            );
        }
    }
    for (what, (largest, seed)) in worst {
        println!("{what}: at most {largest} of 255 apart (seed {seed})");
    }
    // None of these images has the memory layout of its item.
    assert!(of_each[..3].iter().all(|count| *count > 5), "{of_each:?} by each kernel");
}

#[test]
fn an_image_of_the_inputs_size_is_resized_where_more_than_the_input_is_made_of_it() {
    let random = &mut Random::new(29);
    let mut scratch = Scratch::default();
    let frame = frame(random, 64, 64, 3, false);
    for shorter in [48, 64, 72] {
        let to = Preprocess {
            filter: Filter::Nearest,
            resize: Resize::Shorter(shorter),
            ..Preprocess::new(frame.width, frame.height)
        };
        let mut batch = Batch::new(&to);
        let size = (frame.width, frame.height);
        batch.push(pixels(&frame), size, frame.source, frame.covered).unwrap();
        let mut expected = vec![0; to.out_bytes()];
        to.apply(&frame, &mut scratch, &mut expected).unwrap();
        assert!(launch(&batch, to.out_bytes()) == expected, "the shorter side {shorter}");
    }
}

#[test]
fn pixels_that_lie_on_those_of_the_image_begin_no_tile_too_late() {
    let random = &mut Random::new(23);
    let mut scratch = Scratch::default();
    let mut worst = 0f32;
    // Every third or fifth one does, and each of these is the first of a tile somewhere.
    for (times, filter) in
        [(3, Filter::Lanczos3), (5, Filter::Lanczos3), (3, Filter::Bicubic), (5, Filter::Bicubic)]
    {
        let frame = frame(random, 70, 9, 3, false);
        let to = Preprocess {
            filter,
            resize: Resize::Stretch,
            scale: 1.0,
            mean: [0.0; 3],
            std: [1.0; 3],
            ..Preprocess::new(times * frame.width, times * frame.height)
        };
        let mut batch = Batch::new(&to);
        let size = (frame.width, frame.height);
        batch.push(pixels(&frame), size, frame.source, frame.covered).unwrap();
        let mut expected = vec![0; to.out_bytes()];
        to.apply(&frame, &mut scratch, &mut expected).unwrap();
        let got = numbers(to.datatype, &launch(&batch, to.out_bytes()));
        let apart = got
            .into_iter()
            .zip(numbers(to.datatype, &expected))
            .map(|(got, expected)| (got - expected).abs());
        let largest = apart.fold(0.0, worse);
        assert!(largest <= 3.01, "{largest} of 255 by {filter:?}, {times} times as large");
        worst = worse(worst, largest);
    }
    println!("at most {worst} of 255 apart");
}

#[test]
fn an_image_of_the_inputs_size_comes_through_as_it_is() {
    let random = &mut Random::new(7);
    for (channels, wide) in [(1, false), (3, false), (3, true)] {
        let frame = frame(random, 45, 21, channels, wide);
        let to = Preprocess { resize: Resize::Exact, ..Preprocess::new(45, 21) };
        let mut batch = Batch::new(&to);
        // From the smallest half-precision numbers to those beyond the largest.
        for (datatype, scale) in
            [(DataType::Fp32, 1.0 / 255.0), (DataType::Fp16, 1e-9), (DataType::Fp16, 300.0)]
        {
            let to = Preprocess { datatype, scale, mean: [0.3; 3], std: [0.7; 3], ..to.clone() };
            let to = if scale < 1e-8 { Preprocess { mean: [0.0; 3], ..to } } else { to };
            let mut batch = Batch::new(&to);
            batch.push(pixels(&frame), (45, 21), (45, 21), frame.covered).unwrap();
            let mut expected = vec![0; to.out_bytes()];
            to.apply(&frame, &mut Scratch::default(), &mut expected).unwrap();
            assert_eq!(launch(&batch, to.out_bytes()), expected, "{channels} channels, {datatype:?} {scale}");
        }
        let refused = batch.push(pixels(&frame), (44, 21), (44, 21), frame.covered).unwrap_err();
        assert!(matches!(refused, InferError::BadRequest(_)), "{refused}");
    }
}

#[test]
fn pixels_of_a_batch_become_the_numbers_that_the_host_makes_of_them() {
    let random = &mut Random::new(13);
    let mut of_each = vec![0; KERNELS.len()];
    for round in 0..60 {
        let to = Preprocess {
            color: *random.of(&[Color::Rgb, Color::Bgr, Color::Gray]),
            layout: *random.of(&[Layout::Nchw, Layout::Nhwc]),
            datatype: *random.of(&[DataType::Fp32, DataType::Fp16, DataType::Uint8]),
            // Levels as counts are beyond what halves hold.
            scale: *random.of(&[1.0 / 255.0, 257.0]),
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
            resize: Resize::Exact,
            filter: Filter::Nearest,
            ..Preprocess::new(1 + random.below(70) as u32, 1 + random.below(30) as u32)
        };
        let (items, wide) = (1 + random.below(4), random.below(2) == 0);
        let count = items * to.pixels_shape().into_iter().product::<usize>();
        let words: Vec<u16> = (0..count).map(|_| random.below(65536) as u16).collect();
        let bytes: Vec<u8> = words.iter().map(|word| *word as u8).collect();
        let mut expected = vec![0; items * to.out_bytes()];
        let (pixels, address) = match wide {
            true => (crate::image::Pixels::U16(&words), words.as_ptr() as u64),
            false => (crate::image::Pixels::U8(&bytes), bytes.as_ptr() as u64),
        };
        to.normalize(pixels, items, &mut expected);
        let batch = Batch::finished(&to, address, items, wide);
        let in_pieces = !wide && address.is_multiple_of(4) && (to.width * to.height).is_multiple_of(4);
        let kernels: Vec<usize> = batch.launches().iter().map(|launch| launch.kernel).collect();
        let kernel = match (wide, in_pieces) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 3,
        };
        assert_eq!(kernels, [kernel], "round {round}");
        of_each[kernel] += 1;
        assert!(launch(&batch, expected.len()) == expected, "round {round}: {items} of {to:?}");
    }
    let resized = of_each.remove(2);
    assert!(resized == 0 && of_each.iter().all(|count| *count > 5), "{of_each:?} by each kernel");
}

#[test]
fn memory_may_be_turned_and_in_planes() {
    let random = &mut Random::new(11);
    let (width, height) = (37, 22);
    let stored = frame(random, width, height, 3, false);
    let Samples::U8(samples) = &stored.samples else { panic!("8 bits") };
    let at = |x: u32, y: u32, k: u32| samples[((y * width + x) * 3 + k) as usize];
    for orientation in 0..=9 {
        // As EXIF defines it: 6 and 8 are quarter turns, 5 and 7 are these with a reflection.
        let (w, h) = if (5..=8).contains(&orientation) { (height, width) } else { (width, height) };
        let from = |x: u32, y: u32| match orientation {
            2 => (width - 1 - x, y),
            3 => (width - 1 - x, height - 1 - y),
            4 => (x, height - 1 - y),
            5 => (y, x),
            6 => (y, height - 1 - x),
            7 => (width - 1 - y, height - 1 - x),
            8 => (width - 1 - y, x),
            _ => (x, y),
        };
        let mut upright = Vec::new();
        for y in 0..h {
            for x in 0..w {
                let (x, y) = from(x, y);
                upright.extend((0..3).map(|k| at(x, y, k)));
            }
        }
        let covered = Region { left: 0.0, top: 0.0, width: f64::from(w), height: f64::from(h) };
        let seen = Frame {
            width: w,
            height: h,
            channels: 3,
            samples: Samples::U8(upright),
            source: (w, h),
            covered,
        };
        let to = Preprocess { resize: Resize::Letterbox, ..Preprocess::new(16, 16) };
        let mut batch = Batch::new(&to);
        let planes: Vec<u8> = (0..3)
            .flat_map(|k| (0..width * height).map(move |i| (i, k)))
            .map(|(i, k)| at(i % width, i / width, k))
            .collect();
        let planar = Pixels {
            address: planes.as_ptr() as u64,
            steps: [1, width as i32, (width * height) as i32],
            channels: 3,
            wide: false,
        };
        for pixels in [
            pixels(&seen),
            pixels(&stored).turned(orientation, (width, height)),
            planar.turned(orientation, (width, height)),
        ] {
            batch.push(pixels, (w, h), (w, h), covered).unwrap();
        }
        let items = launch(&batch, 3 * to.out_bytes());
        let (upright, others) = items.split_at(to.out_bytes());
        assert_eq!(others[..to.out_bytes()], *upright, "orientation {orientation}");
        assert_eq!(others[to.out_bytes()..], *upright, "orientation {orientation}, planes");
    }
}

/// The samples of a frame somewhere in memory, surrounded by bytes `around`. The first sample is `shift` bytes after the start of a
/// word, and rows have `more` bytes than they need.
fn placed(frame: &Frame, shift: usize, more: usize, around: u8) -> (Vec<u8>, Pixels) {
    let Samples::U8(samples) = &frame.samples else { panic!("8 bits") };
    let row = frame.width as usize * usize::from(frame.channels);
    let mut memory = vec![around; 8 + (row + more) * frame.height as usize];
    let first = memory.as_ptr().align_offset(4) + shift;
    for (y, samples) in samples.chunks(row).enumerate() {
        memory[first + y * (row + more)..][..row].copy_from_slice(samples);
    }
    let address = memory[first..].as_ptr() as u64;
    let steps = [i32::from(frame.channels), (row + more) as i32, 1];
    (memory, Pixels { address, steps, channels: frame.channels, wide: false })
}

#[test]
fn rows_may_begin_anywhere_in_memory_and_nothing_around_them_counts() {
    let random = &mut Random::new(17);
    let mut scratch = Scratch::default();
    let mut worst = 0f32;
    // Sizes of images and items: small and large reductions, also along one axis only; enlargements; edges within a tile and within
    // a group of rows, columns and words; and images of hardly more than a row or a column.
    for ((width, height), (to_width, to_height)) in [
        ((125, 94), (56, 56)),
        ((94, 125), (56, 56)),
        ((97, 33), (33, 66)),
        ((301, 259), (67, 9)),
        ((1025, 9), (3, 9)),
        ((9, 1025), (9, 2)),
        ((700, 700), (4, 3)),
        ((5, 4), (70, 65)),
        ((41, 5), (40, 6)),
        ((1, 50), (20, 20)),
        ((2, 7), (3, 3)),
        ((50, 1), (20, 20)),
        ((50, 3), (20, 2)),
        ((1, 1), (3, 3)),
    ] {
        for (channels, filter) in [
            (1, Filter::Bilinear),
            (3, Filter::Bilinear),
            (3, Filter::Box),
            (3, Filter::Lanczos3),
            (3, Filter::Nearest),
        ] {
            let frame = frame(random, width, height, channels, false);
            let to = Preprocess {
                filter,
                datatype: DataType::Uint8,
                resize: *random.of(&[Resize::Stretch, Resize::Letterbox]),
                color: *random.of(&[Color::Rgb, Color::Bgr]),
                ..Preprocess::new(to_width, to_height)
            };
            let mut expected = vec![0; to.out_bytes()];
            to.apply(&frame, &mut scratch, &mut expected).unwrap();
            let mut first = None;
            for (shift, more, around) in
                [(0, 0, 0), (1, 0, 255), (2, 0, 0), (3, 0, 255), (0, 1, 255), (0, 4, 0), (3, 2, 255)]
            {
                let (_memory, pixels) = placed(&frame, shift, more, around);
                let mut batch = Batch::new(&to);
                batch.push(pixels, (width, height), frame.source, frame.covered).unwrap();
                let item = launch(&batch, to.out_bytes());
                let what = format!("{width} x {height} x {channels} by {to:?}, {shift}, {more}");
                assert!(*first.get_or_insert_with(|| item.clone()) == item, "{what}");
                let most = if filter == Filter::Lanczos3 { 3 } else { 1 };
                for (got, expected) in item.iter().zip(&expected) {
                    assert!(got.abs_diff(*expected) <= most, "{got} instead of {expected}: {what}");
                    worst = worst.max(f32::from(got.abs_diff(*expected)));
                }
            }
        }
    }
    println!("at most {worst} of 255 apart");
}

#[test]
fn tables_of_sizes_that_were_seen_are_used_again() {
    let random = &mut Random::new(3);
    let frame = frame(random, 50, 40, 3, false);
    let mut batch = Batch::new(&Preprocess::new(20, 20));
    batch.push(pixels(&frame), (50, 40), (50, 40), frame.covered).unwrap();
    let tables = batch.tables().len();
    batch.push(pixels(&frame), (50, 40), (50, 40), frame.covered).unwrap();
    batch.clear();
    batch.push(pixels(&frame), (50, 40), (50, 40), frame.covered).unwrap();
    assert_eq!((batch.tables().len(), batch.images().len()), (tables, 1));
}

#[test]
#[should_panic(expected = "an image has a pixel in its item")]
fn an_image_without_a_row_in_its_item_is_never_launched() {
    let mut batch = Batch::new(&Preprocess::new(8, 0));
    let covered = Region { left: 0.0, top: 0.0, width: 4.0, height: 4.0 };
    let _ = batch.push(Pixels::interleaved(0, 4, 1, false), (4, 4), (4, 4), covered);
}

#[test]
fn of_many_pixels_the_mean_is_exact_wherever_one_differs_from_the_others() {
    // A box filter weights all of them equally: with weights of 16 bits, the rounding remainder would be visible.
    let (width, taps) = (181 * 3, 181);
    let to = Preprocess {
        filter: Filter::Box,
        datatype: DataType::Uint8,
        color: Color::Gray,
        ..Preprocess::new(3, 1)
    };
    for (dark, bright) in [(0, 255), (255, 0)] {
        for odd in 0..taps {
            let samples = (0..width).map(|x| if x % taps == odd { bright } else { dark }).collect();
            let covered = Region { left: 0.0, top: 0.0, width: width as f64, height: 1.0 };
            let frame = Frame {
                width: width as u32,
                height: 1,
                channels: 1,
                samples: Samples::U8(samples),
                source: (width as u32, 1),
                covered,
            };
            let mut batch = Batch::new(&to);
            batch.push(pixels(&frame), (frame.width, 1), frame.source, covered).unwrap();
            let mean = f64::from(dark) + (f64::from(bright) - f64::from(dark)) / taps as f64;
            assert_eq!(launch(&batch, 3), [mean.round() as u8; 3], "{bright} at {odd} among {dark}");
        }
    }
}
