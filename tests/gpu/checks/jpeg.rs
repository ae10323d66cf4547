//! JPEGs by nvJPEG on the GPU against the CPU's decoder, and how many each decodes.

use crate::{fits::seeded, number, rehearsed, skip, support};
use bytes::Bytes;
use ocelli::{
    engine::cuda::jpeg::{BATCH, Job, JpegOnGpu},
    image::{self, DataType, Layout, Limits, Preprocess, Resize, Scratch, plain_jpeg},
    random::Random,
};
use rayon::prelude::*;
use std::{sync::mpsc, time::Instant};
use turbojpeg::{Compressor, Image, PixelFormat, Subsamp};

const LIMITS: Limits = Limits { side_max: 8192, pixels_max: 1 << 26, frames_max: 1 };
/// How far pixels may be apart, of 255: decoders differ in how they round, and in how they enlarge colours at edges.
const MEAN_APART_MAX: f64 = 2.0;
const APART_MAX: u8 = 40;

fn decoder() -> JpegOnGpu {
    let driver = ocelli::engine::cuda::probe().unwrap();
    JpegOnGpu::start(driver.version).unwrap_or_else(|why| skip(&why))
}

/// A picture with slopes, edges and noise.
fn picture(random: &mut Random, width: usize, height: usize, sampling: Subsamp) -> Bytes {
    let (down, along) = (3 + (40.0 * random.unit()) as usize, 5 + (60.0 * random.unit()) as usize);
    let mut pixels = Vec::with_capacity(3 * width * height);
    for i in 0..width * height {
        let (x, y) = (i % width, i / width);
        let edge = if (x / along + y / down).is_multiple_of(2) { 60 } else { 0 };
        let noise = (8.0 * random.unit()) as usize;
        pixels.extend([x * 180 / width, y * 180 / height, 90].map(|value| (value + edge + noise) as u8));
    }
    let mut compressor = Compressor::new().unwrap();
    compressor.set_subsamp(sampling).unwrap();
    compressor.set_quality(90).unwrap();
    let image = Image { pixels: &pixels[..], width, pitch: 3 * width, height, format: PixelFormat::RGB };
    compressor.compress_to_vec(image).unwrap().into()
}

fn to(width: u32, height: u32) -> Preprocess {
    let resize = Resize::Stretch;
    Preprocess { datatype: DataType::Uint8, layout: Layout::Nhwc, resize, ..Preprocess::new(width, height) }
}

/// The items of files, all asked for at once.
fn decode(decoder: &JpegOnGpu, files: &[Bytes], to: &Preprocess) -> Vec<Option<Vec<u8>>> {
    let ask = |bytes: &Bytes| {
        let (send, answer) = mpsc::channel();
        decoder.decode(Job {
            bytes: bytes.clone(),
            jpeg: plain_jpeg(bytes).unwrap(),
            to: to.clone(),
            answer: Box::new(move |item| send.send(item).unwrap()),
        });
        answer
    };
    let answers: Vec<_> = files.iter().map(ask).collect();
    answers.into_iter().map(|answer| answer.recv().unwrap()).collect()
}

fn on_cpu(bytes: &[u8], to: &Preprocess, scratch: &mut Scratch) -> Vec<u8> {
    let frames = image::decode(bytes, &LIMITS, &|width, height| to.enough(width, height)).unwrap();
    let mut item = vec![0; to.out_bytes()];
    to.apply(&frames[0], scratch, &mut item).unwrap();
    item
}

pub(crate) fn against_the_cpu() {
    let (decoder, context) = (decoder(), support::open(0));
    let offer = decoder.offer(&context);
    let random = &mut seeded(8);
    let to = to(224, 224);
    let mut worst = 0f64;
    for sampling in [Subsamp::Sub2x2, Subsamp::None, Subsamp::Sub2x1, Subsamp::Sub1x2] {
        for (width, height) in [(500, 375), (224, 224), (1920, 1080), (233, 641)] {
            let file = picture(random, width, height, sampling);
            let got = decode(&decoder, std::slice::from_ref(&file), &to).remove(0);
            let got = got.unwrap_or_else(|| panic!("{width} x {height}, {sampling:?}: not decoded"));
            let expected = on_cpu(&file, &to, &mut Scratch::default());
            let apart = || got.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b));
            let mean = apart().map(f64::from).sum::<f64>() / expected.len() as f64;
            let most = apart().max().unwrap();
            println!("{width} x {height}, {sampling:?}: {mean:.3} apart on average, {most} at most");
            assert!(mean <= MEAN_APART_MAX && most <= APART_MAX, "{mean} apart, {most} at most");
            worst = worst.max(mean);
        }
    }
    number("pixels_apart", worst);
    drop(offer);
}

pub(crate) fn bench() {
    let (decoder, context) = (decoder(), support::open(0));
    let offer = decoder.offer(&context);
    let random = &mut seeded(9);
    let count = if rehearsed() { 4 } else { 8 * BATCH };
    let some: Vec<Bytes> = (0..count.min(16)).map(|_| picture(random, 500, 375, Subsamp::Sub2x2)).collect();
    let files: Vec<Bytes> = some.iter().cloned().cycle().take(count).collect();
    let to = to(224, 224);
    let best = |act: &dyn Fn()| {
        let timed = |_| {
            let began = Instant::now();
            act();
            count as f64 / began.elapsed().as_secs_f64()
        };
        (0..5).map(timed).fold(0.0, f64::max)
    };
    let on_gpu = best(&|| assert!(decode(&decoder, &files, &to).iter().all(Option::is_some)));
    let cpu = best(&|| {
        files.par_iter().for_each_init(Scratch::default, |scratch, file| {
            on_cpu(file, &to, scratch);
        });
    });
    println!("{} threads on the CPU", rayon::current_num_threads());
    number("jpeg_gpu", on_gpu);
    number("jpeg_cpu", cpu);
    drop(offer);
}
