//! Images per second of one core: JPEG bytes to a normalised 224 × 224 tensor, and where the time goes.
//!
//! ```text
//! make bench-decode                                       # against Pillow and OpenCV, in turns
//! cargo bench --bench decode -- FOLDER SECONDS            # ours alone, on the JPEGs of a folder
//! ```
//!
//! Prints one line per part: its name, a tab, images per second. `benches/decode_peers.py` makes the images and calls this
//! in turns with the others.

use ocelli::image::{Limits, Preprocess, Resize, Scratch, decode};
use std::{
    hint::black_box,
    path::PathBuf,
    time::{Duration, Instant},
};

/// Calls of `work` per second, on each of `count` inputs in turn.
fn rate(seconds: f64, count: usize, mut work: impl FnMut(usize)) -> f64 {
    (0..count).for_each(&mut work); // warm
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        work(calls % count);
        calls += 1;
    }
    calls as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [folder, seconds] = arguments.as_slice() else {
        println!("decode: give a folder of JPEGs and the seconds of each part; make bench-decode does");
        return;
    };
    let seconds: f64 = seconds.parse().expect("seconds as a number");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jpg"))
        .collect();
    paths.sort();
    let files: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).expect("a file")).collect();
    assert!(!files.is_empty(), "no *.jpg in {folder}");

    let limits = Limits { side_max: 16_384, pixels_max: 1 << 26, frames_max: 1 };
    let to = Preprocess {
        resize: Resize::Shorter(256),
        mean: [0.485, 0.456, 0.406],
        std: [0.229, 0.224, 0.225],
        ..Preprocess::new(224, 224)
    };
    let enough = |width, height| to.enough(width, height);
    let whole = |_, _| None;
    let scaled: Vec<_> =
        files.iter().map(|file| decode(file, &limits, &enough).expect("a frame").remove(0)).collect();
    let mut scratch = Scratch::default();
    let mut slot = vec![0f32; to.out_bytes() / 4];
    let slot: &mut [u8] = bytemuck::cast_slice_mut(&mut slot);
    let count = files.len();

    let show = |part: &str, rate: f64| println!("{part}\t{rate:.1}");
    let all = rate(seconds, count, |i| {
        let frames = decode(&files[i], &limits, &enough).expect("a frame");
        to.apply(&frames[0], &mut scratch, slot).expect("a tensor");
        black_box(&slot);
    });
    show("all", all);
    let in_full = rate(seconds, count, |i| {
        let frames = decode(&files[i], &limits, &whole).expect("a frame");
        to.apply(&frames[0], &mut scratch, slot).expect("a tensor");
        black_box(&slot);
    });
    show("all, decoded in full", in_full);
    let decoded = rate(seconds, count, |i| {
        black_box(decode(&files[i], &limits, &enough).expect("a frame"));
    });
    show("decode", decoded);
    let applied = rate(seconds, count, |i| {
        to.apply(&scaled[i], &mut scratch, slot).expect("a tensor");
        black_box(&slot);
    });
    show("resize and normalise", applied);
}
