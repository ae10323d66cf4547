//! Images per second of one core: JPEG bytes to a normalised 224 × 224 tensor, and where the time goes.
//!
//! ```text
//! cargo bench --bench decode                # writes the JPEGs to target/bench-images
//! python benches/decode_peers.py target/bench-images
//! ```
//!
//! The images are generated: gradients, waves, edges and noise, quality 90, chroma halved both ways.

use ocelli::image::{Limits, Preprocess, Resize, Scratch, decode};
use std::{
    hint::black_box,
    path::Path,
    time::{Duration, Instant},
};
use turbojpeg::{Compressor, Image, PixelFormat, Subsamp};

/// How long each figure is measured.
const MEASURED: Duration = Duration::from_secs(2);

/// Figures are the best of this many, taken in turns: the machine may be shared.
const ROUNDS: usize = 3;

fn photo(width: usize, height: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut noise = move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as f32 % 25.0 - 12.0
    };
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            let (u, v) = (x as f32 / width as f32, y as f32 / height as f32);
            let wave = (u * 19.0 + v * 7.0).sin() * 40.0 + (v * 31.0).cos() * 25.0;
            let edge = if (x / 37 + y / 53).is_multiple_of(2) { 30.0 } else { 0.0 };
            let shade = wave + edge + noise() + 30.0;
            for base in [200.0 * u, 180.0 * v, 120.0 * (1.0 - u)] {
                pixels.push((base + shade).clamp(0.0, 255.0) as u8);
            }
        }
    }
    pixels
}

fn jpeg(width: usize, height: usize) -> Vec<u8> {
    let pixels = photo(width, height);
    let mut compressor = Compressor::new().expect("a compressor");
    compressor.set_quality(90).expect("a quality");
    compressor.set_subsamp(Subsamp::Sub2x2).expect("a subsampling");
    let image = Image { pixels: &pixels[..], width, pitch: width * 3, height, format: PixelFormat::RGB };
    compressor.compress_to_vec(image).expect("a JPEG")
}

/// Calls of `work` per second.
fn rate(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut calls = 0;
    while start.elapsed() < MEASURED {
        work();
        calls += 1;
    }
    f64::from(calls) / start.elapsed().as_secs_f64()
}

fn main() {
    let limits = Limits { side_max: 16_384, pixels_max: 1 << 26, frames_max: 1 };
    let to = Preprocess {
        resize: Resize::Shorter(256),
        mean: [0.485, 0.456, 0.406],
        std: [0.229, 0.224, 0.225],
        ..Preprocess::new(224, 224)
    };
    let folder = Path::new("target/bench-images");
    std::fs::create_dir_all(folder).expect("a folder for the images");
    println!("{:12} {:>9} {:>24} {:>10}", "source", "bytes", "what", "images/s");
    for (width, height) in [(500, 375), (1920, 1080), (4000, 3000)] {
        let bytes = jpeg(width, height);
        let name = format!("{width}x{height}");
        std::fs::write(folder.join(format!("{name}.jpg")), &bytes).expect("an image file");
        let enough = |w, h| to.enough(w, h);
        let whole = |_, _| None;
        let mut scratch = Scratch::default();
        let mut slot = vec![0f32; to.out_bytes() / 4];
        let slot: &mut [u8] = bytemuck::cast_slice_mut(&mut slot);
        let scaled = decode(&bytes, &limits, &enough).expect("a frame").remove(0);
        let mut best = [0f64; 4];
        for _ in 0..ROUNDS {
            let rates = [
                rate(|| {
                    let frames = decode(&bytes, &limits, &enough).expect("a frame");
                    to.apply(&frames[0], &mut scratch, slot).expect("a tensor");
                    black_box(&slot);
                }),
                rate(|| {
                    let frames = decode(&bytes, &limits, &whole).expect("a frame");
                    to.apply(&frames[0], &mut scratch, slot).expect("a tensor");
                    black_box(&slot);
                }),
                rate(|| {
                    black_box(decode(&bytes, &limits, &enough).expect("a frame"));
                }),
                rate(|| {
                    to.apply(&scaled, &mut scratch, slot).expect("a tensor");
                    black_box(&slot);
                }),
            ];
            for (best, rate) in best.iter_mut().zip(rates) {
                *best = best.max(rate);
            }
        }
        let what = ["all", "all, decoded in full", "decode", "resize and normalise"];
        for (what, rate) in what.iter().zip(best) {
            println!("{name:12} {:>9} {what:>24} {rate:>10.0}", bytes.len());
        }
    }
}
