//! Finds spots in a movie from a file, for tests and measurements from outside: `find_spots JOB.json`, see [`Job`].
//!
//! Files are raw and little-endian. The results are, for each spot, u32 frame, x, y, corner x, corner y, and f32 score; the
//! ROIs in the movie's type; the contrast of every frame in f32, where that is asked for. One line of JSON on standard output says how
//! long it took.

#[path = "files.rs"]
mod files;

use std::{env, fs, time::Instant};

use anyhow::{Context, bail};
use files::{NumberOrFile, adu, instructions};
use ocelli::engine::kernels::{Adu, Border, Camera, FinderOptions, Method, RoiBuffer, SpotFinder, Threshold};
use serde::Deserialize;

/// What to find, and in what.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    /// Frames, height, width.
    shape: [usize; 3],
    /// `u16` or `f32`.
    data_type: String,
    movie: String,
    /// `contrast` or `net_gradient`.
    method: String,
    sigma_px: [f32; 2],
    wide: f32,
    /// `photons`, `noise` or `net_gradient`.
    threshold_in: String,
    threshold: f32,
    radius: usize,
    side: usize,
    /// Leave out spots whose box would leave the frame.
    drop: bool,
    spots_max: usize,
    offset: NumberOrFile,
    gain: NumberOrFile,
    read_noise: NumberOrFile,
    /// `baseline`, `avx2` or `avx512`; the widest where it is not given.
    instructions: Option<String>,
    /// How often to go through the movie; of each frame the shortest time counts.
    repeat: usize,
    out_spots: String,
    out_rois: String,
    out_contrast: Option<String>,
}

fn options(job: &Job) -> anyhow::Result<FinderOptions> {
    let method = match (job.method.as_str(), job.threshold_in.as_str()) {
        ("net_gradient", _) => Method::NetGradient { minimum: job.threshold },
        ("contrast", threshold_in) => Method::Contrast {
            sigma_px: job.sigma_px,
            wide: job.wide,
            threshold: match threshold_in {
                "photons" => Threshold::Photons(job.threshold),
                "noise" => Threshold::Noise(job.threshold),
                other => bail!("threshold_in {other} is none of photons, noise"),
            },
            radius: job.radius,
        },
        (other, _) => bail!("method {other} is none of contrast, net_gradient"),
    };
    let border = if job.drop { Border::Drop } else { Border::Shift };
    Ok(FinderOptions { method, box_side: job.side, border, spots_max: job.spots_max })
}

fn main() -> anyhow::Result<()> {
    let path = env::args().nth(1).context("usage: find_spots JOB.json")?;
    let job: Job = serde_json::from_slice(&fs::read(&path)?).context(path)?;
    let set = instructions(job.instructions.as_deref())?;
    let [frames, height, width] = job.shape;
    let value = |value: &NumberOrFile| value.read([height, width]);
    let camera = Camera::new(&value(&job.offset)?, &value(&job.gain)?, &value(&job.read_noise)?)?;
    let mut finder = SpotFinder::new(&options(&job)?, &camera, width, height)?.with_instructions(set);
    let (narrow, wide) = adu(&job.movie, &job.data_type)?;
    let frame = |t: usize| match wide.get(t * height * width..(t + 1) * height * width) {
        Some(values) if !values.is_empty() => Adu::F32(values),
        _ => Adu::U16(narrow.get(t * height * width..(t + 1) * height * width).unwrap_or_default()),
    };

    let mut rois = RoiBuffer::new(job.side)?;
    // Of each frame by itself: passes over the movie are longer than a busy machine leaves a thread alone.
    let mut fastest = vec![(f64::MAX, f64::MAX); frames];
    let (mut out, mut contrasts) = (Vec::new(), Vec::new());
    for _ in 0..job.repeat {
        rois.clear();
        out.clear();
        contrasts.clear();
        for (t, (find_fastest, cut_fastest)) in fastest.iter_mut().enumerate() {
            let began = Instant::now();
            let spots = finder.find(frame(t))?;
            *find_fastest = find_fastest.min(began.elapsed().as_secs_f64());
            let began = Instant::now();
            rois.cut(frame(t), width, t as u32, spots)?;
            *cut_fastest = cut_fastest.min(began.elapsed().as_secs_f64());
            for spot in spots {
                let [x, y] = spot.corner;
                out.extend([t as u32, spot.x, spot.y, x, y, spot.score.to_bits()]);
            }
            if job.out_contrast.is_some() {
                contrasts.extend(finder.contrast().iter().flat_map(|value| value.to_le_bytes()));
            }
        }
    }
    let find_seconds: f64 = fastest.iter().map(|(find, _)| find).sum();
    let seconds: f64 = fastest.iter().map(|(find, cut)| find + cut).sum();
    let count = rois.len();
    fs::write(&job.out_spots, out.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())?;
    fs::write(&job.out_rois, rois.to_le_bytes())?;
    if let Some(path) = &job.out_contrast {
        fs::write(path, contrasts)?;
    }
    let per_photon = finder.contrast_per_photon();
    println!(
        r#"{{"instructions":"{set}","spots":{count},"find_seconds":{find_seconds},"seconds":{seconds},"contrast_per_photon":{per_photon}}}"#
    );
    Ok(())
}
