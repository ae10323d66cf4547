//! From images to a model's input on the GPU against `image::preprocess`.

use crate::{
    device::{Device, Kernel, Memory, at},
    fits::seeded,
    number,
};
use ocelli::{
    engine::kernels::preprocess::{Batch, KERNELS, Pixels, THREADS},
    image::{Color, DataType, Filter, Frame, Layout, Preprocess, Region, Resize, Samples, Scratch},
    random::Random,
};

const PTX: &str = include_str!("../../../kernels/generated/preprocess.ptx");

/// How far apart values may be, in steps of 8-bit samples: each rounds once on its way. Filters that overshoot are cut at other
/// places on the way.
fn apart_max(filter: Filter) -> f32 {
    match filter {
        Filter::Nearest => 0.0,
        Filter::Bicubic | Filter::Lanczos3 => 3.01,
        _ => 1.01,
    }
}

pub(crate) fn against_the_host() {
    let device = Device::open();
    let kernels = kernels(&device);
    let random = &mut seeded(5);
    let mut worst = 0f32;
    for filter in [Filter::Nearest, Filter::Box, Filter::Bilinear, Filter::Bicubic, Filter::Lanczos3] {
        // Items of 36 x 30 pixels are read and written in pieces where an image lies as they do.
        for (width, resize, color, layout, datatype) in [
            (37, Resize::Stretch, Color::Rgb, Layout::Nchw, DataType::Fp32),
            (37, Resize::Letterbox, Color::Bgr, Layout::Nhwc, DataType::Fp32),
            (37, Resize::Shorter(40), Color::Gray, Layout::Nchw, DataType::Fp32),
            (37, Resize::Stretch, Color::Rgb, Layout::Nhwc, DataType::Uint8),
            (36, Resize::Stretch, Color::Rgb, Layout::Nchw, DataType::Fp32),
            (36, Resize::Letterbox, Color::Bgr, Layout::Nhwc, DataType::Fp32),
            (36, Resize::Stretch, Color::Gray, Layout::Nchw, DataType::Fp32),
            (36, Resize::Stretch, Color::Rgb, Layout::Nhwc, DataType::Uint8),
        ] {
            let plain = datatype == DataType::Uint8;
            let to = Preprocess {
                resize,
                filter,
                color,
                layout,
                datatype,
                scale: if plain { 1.0 } else { 1.0 / 255.0 },
                mean: if plain { [0.0; 3] } else { [0.485, 0.456, 0.406] },
                std: if plain { [1.0; 3] } else { [0.229, 0.224, 0.225] },
                ..Preprocess::new(width, 30)
            };
            // Rows of whole words and such that begin within one, whole images of words.
            let sizes = [
                (64, 48, 3),
                (20, 90, 1),
                (200, 131, 4),
                (37, 30, 3),
                (36, 30, 3),
                (36, 30, 1),
                (375, 500, 3),
                (61, 44, 3),
                (63, 84, 1),
                (5, 4, 3),
            ];
            let frames = sizes.map(|(width, height, channels)| frame(random, width, height, channels));
            worst = worst.max(check(&device, &kernels, &to, &frames));
        }
    }
    number("preprocess_apart", f64::from(worst));
}

pub(crate) fn kernels(device: &Device) -> [Kernel; KERNELS.len()] {
    device.kernels(PTX, KERNELS)
}

/// Edges, slopes and noise.
pub(crate) fn frame(random: &mut Random, width: u32, height: u32, channels: u8) -> Frame {
    let sample = |i: usize, noise: f64| {
        let (pixel, channel) = (i / usize::from(channels), i % usize::from(channels));
        let (x, y) = (pixel % width as usize, pixel / width as usize);
        let edge = if (x / 9 + y / 7 + channel).is_multiple_of(2) { 200 } else { 30 + x % 50 };
        (edge as f64 + 40.0 * noise) as u8
    };
    let count = width as usize * height as usize * usize::from(channels);
    let samples = Samples::U8((0..count).map(|i| sample(i, random.unit())).collect());
    let covered = Region { left: 0.0, top: 0.0, width: f64::from(width), height: f64::from(height) };
    Frame { width, height, channels, samples, source: (width, height), covered }
}

/// What a launch for these images takes, and the memory that holds it.
pub(crate) struct Launch {
    batch: Batch,
    _samples: Vec<Memory>,
    images: Memory,
    tables: Memory,
    pub(crate) items: Memory,
}

impl Launch {
    pub(crate) fn new(device: &Device, to: &Preprocess, frames: &[Frame]) -> Launch {
        let mut batch = Batch::new(to);
        let mut samples = Vec::new();
        for frame in frames {
            let Samples::U8(values) = &frame.samples else { unreachable!("frames here have 8 bits") };
            let memory = device.with(values);
            let pixels = Pixels::interleaved(memory.address(), frame.width, frame.channels, false);
            batch.push(pixels, (frame.width, frame.height), frame.source, frame.covered).unwrap();
            samples.push(memory);
        }
        let (images, tables) = (device.with(batch.images()), device.with(batch.tables()));
        let items = device.garbage(to.out_bytes() * frames.len());
        Launch { batch, _samples: samples, images, tables, items }
    }

    pub(crate) fn run(&self, device: &Device, kernels: &[Kernel; KERNELS.len()]) {
        let call = self.batch.call(self.images.address(), self.tables.address(), self.items.address());
        for launch in self.batch.launches() {
            device.launch(kernels[launch.kernel], launch.blocks, THREADS, &mut [at(&call)]);
        }
    }
}

fn check(device: &Device, kernels: &[Kernel; KERNELS.len()], to: &Preprocess, frames: &[Frame]) -> f32 {
    let launch = Launch::new(device, to, frames);
    launch.run(device, kernels);
    let got = device.read::<u8>(&launch.items, to.out_bytes() * frames.len());
    let mut scratch = Scratch::default();
    let mut worst = 0f32;
    for (frame, got) in frames.iter().zip(got.chunks(to.out_bytes())) {
        let mut expected = vec![0; to.out_bytes()];
        to.apply(frame, &mut scratch, &mut expected).unwrap();
        let step = to.scale / to.std.iter().copied().fold(f32::MAX, f32::min);
        for (got, expected) in numbers(to.datatype, got).into_iter().zip(numbers(to.datatype, &expected)) {
            let (off, rounding) = ((got - expected).abs(), expected.abs() * 1e-6);
            let off = if off <= rounding { 0.0 } else { (off - rounding) / step };
            // What is no number is not near either.
            assert!(
                off <= apart_max(to.filter),
                "{got} instead of {expected}: {} x {} by {to:?}",
                frame.width,
                frame.height
            );
            worst = worst.max(off);
        }
    }
    worst
}

fn numbers(datatype: DataType, bytes: &[u8]) -> Vec<f32> {
    match datatype {
        DataType::Fp32 => bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect(),
        _ => bytes.iter().map(|byte| f32::from(*byte)).collect(),
    }
}
