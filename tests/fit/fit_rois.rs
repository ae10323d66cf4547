//! Fits ROIs from a file, for tests and measurements from outside: `fit_rois JOB.json`, see [`Job`].
//!
//! Files are raw and little-endian. The results are 19 f32 for each ROI: 6 parameters, 6 standard errors, 3 covariances,
//! log-likelihood ratio, p-value, iterations, status. One line of JSON on standard output says how long it took.

#[path = "files.rs"]
mod files;

use std::{collections::BTreeMap, env, fs, time::Instant};

use anyhow::{Context, bail};
use files::{NumberOrFile, adu, instructions, read};
use ocelli::engine::kernels::{Adu, Astigmatism, Camera, FitModel, Psf, Rois, SpotFit, fit};
use serde::Deserialize;

/// ROIs that are fitted and timed at a time, as many as one thread of several takes.
const PART: usize = 1000;

/// What to fit, and how.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    /// `xynb`, `xynbs`, `xynbsxsy` or `xyznb`.
    psf: String,
    /// Fixed, or where the fit begins, along x and y.
    sigma_px: [f32; 2],
    /// `gamma_um`, `depth_um`, `a_x`, `a_y`, `b_x`, `b_y`.
    #[serde(default)]
    astigmatism: BTreeMap<String, f32>,
    /// Where z may be, um.
    #[serde(default = "z_um")]
    z_um: [f32; 2],
    side: usize,
    /// `u16` or `f32`.
    data_type: String,
    rois: String,
    /// u32, x and y of each ROI.
    corners: Option<String>,
    /// Height and width of the camera's maps.
    #[serde(default)]
    sensor: [usize; 2],
    offset: NumberOrFile,
    gain: NumberOrFile,
    read_noise: NumberOrFile,
    /// `baseline`, `avx2` or `avx512`; the widest where it is not given.
    instructions: Option<String>,
    /// How often to fit them all; of each part the shortest time counts, since other work only ever adds to it.
    repeat: usize,
    out: String,
}

fn z_um() -> [f32; 2] {
    [-1.0, 1.0]
}

fn psf(job: &Job) -> anyhow::Result<Psf> {
    let calibration = |name: &str| job.astigmatism.get(name).copied().unwrap_or_default();
    Ok(match job.psf.as_str() {
        "xynb" => Psf::Xynb { sigma_px: job.sigma_px },
        "xynbs" => Psf::Xynbs { sigma_start_px: job.sigma_px[0] },
        "xynbsxsy" => Psf::Xynbsxsy { sigma_start_px: job.sigma_px },
        "xyznb" => Psf::Xyznb(Astigmatism {
            sigma_px: job.sigma_px,
            a: [calibration("a_x"), calibration("a_y")],
            b: [calibration("b_x"), calibration("b_y")],
            gamma_um: calibration("gamma_um"),
            depth_um: calibration("depth_um"),
            z_um: job.z_um,
        }),
        other => bail!("psf {other} is none of xynb, xynbs, xynbsxsy, xyznb"),
    })
}

fn main() -> anyhow::Result<()> {
    let path = env::args().nth(1).context("usage: fit_rois JOB.json")?;
    let job: Job = serde_json::from_slice(&fs::read(&path)?).context(path)?;
    let set = instructions(job.instructions.as_deref())?;
    let model = FitModel::new(psf(&job)?, [0.1, 0.1])?;
    let value = |value: &NumberOrFile| value.read(job.sensor);
    let camera = Camera::new(&value(&job.offset)?, &value(&job.gain)?, &value(&job.read_noise)?)?;
    let (narrow, wide) = adu(&job.rois, &job.data_type)?;
    let values = if wide.is_empty() { Adu::U16(&narrow) } else { Adu::F32(&wide) };
    let corners = match &job.corners {
        Some(path) => {
            let numbers = read(path, u32::from_le_bytes)?;
            Some(numbers.as_chunks::<2>().0.to_vec())
        }
        None => None,
    };
    let rois = Rois::new(values, job.side, corners.as_deref())?;

    let mut fits = vec![SpotFit::default(); rois.len()];
    let mut seconds = vec![f64::MAX; fits.len().div_ceil(PART)];
    let all = Instant::now();
    for _ in 0..job.repeat {
        for (part, (fits, shortest)) in fits.chunks_mut(PART).zip(&mut seconds).enumerate() {
            let some = rois.part(part * PART..part * PART + fits.len());
            let began = Instant::now();
            fit(set, &model, &camera, some, fits)?;
            *shortest = shortest.min(began.elapsed().as_secs_f64());
        }
    }
    let (seconds, wall): (f64, f64) = (seconds.iter().sum(), all.elapsed().as_secs_f64());
    let mut out = Vec::with_capacity(fits.len() * 19 * 4);
    for fit in &fits {
        let last =
            [fit.log_likelihood_ratio, fit.p_value, f32::from(fit.iterations), f32::from(fit.status() as u8)];
        let values = fit.theta.iter().chain(&fit.errors).chain(&fit.covariance).chain(&last);
        out.extend(values.flat_map(|value| value.to_le_bytes()));
    }
    fs::write(&job.out, out)?;
    println!(r#"{{"instructions":"{set}","fits":{},"seconds":{seconds},"wall_seconds":{wall}}}"#, rois.len());
    Ok(())
}
