//! Intensities, widths and positions far from real images and from where fits start: each fit has numbers or a flag, and the flag is
//! true.

use super::*;

const PHOTONS: [f64; 8] = [0.0, 1.0, 30.0, 300.0, 1e4, 1e6, 1e7, 9e8];
const BACKGROUND: [f64; 7] = [0.0, 0.01, 1.0, 50.0, 1e4, 1e6, 9e8];

/// ROIs over all of these, each with a spot anywhere, in the ROI or a little beyond it, of any width.
fn anywhere(seed: u64, side: usize) -> Vec<f32> {
    let random = &mut Random::new(seed);
    let last = (side - 1) as f64;
    let mut rois = Vec::new();
    for (photons, background) in PHOTONS.into_iter().flat_map(|photons| BACKGROUND.map(|b| (photons, b))) {
        for _ in 0..4 {
            let spot = Spot {
                x: between(random, -3.0, last + 3.0),
                y: between(random, -3.0, last + 3.0),
                photons,
                background,
                sigma: [0; 2].map(|_| (between(random, 0.2f64.ln(), 6f64.ln())).exp()),
            };
            let expected = spot.expected(side);
            rois.extend(expected.into_iter().map(|mean| {
                // Whole photons: few of them are not normal, and most pixels have none.
                let noisy = mean + random.normal() * mean.sqrt();
                let whole =
                    if mean < 1.0 { f64::from(u8::from(random.unit() < mean)) } else { noisy.round() };
                whole.clamp(0.0, 1e9) as f32
            }));
        }
    }
    rois
}

/// Models whose fits start where few spots are, besides those that start in the middle.
fn models() -> Vec<FitModel> {
    let deep = Astigmatism { z_um: [-5.0, 5.0], ..astigmatism() };
    // Nearly one focal line for both axes: hardly anything says at which side of it a spot is.
    let round = Astigmatism { gamma_um: 1e-3, a: [0.0; 2], b: [0.0; 2], ..astigmatism() };
    let psfs = [
        Psf::Xynb { sigma_px: [0.3, 5.0] },
        Psf::Xynb { sigma_px: [1.3; 2] },
        Psf::Xynbs { sigma_start_px: 0.3 },
        Psf::Xynbs { sigma_start_px: 5.0 },
        Psf::Xynbsxsy { sigma_start_px: [5.0, 0.3] },
        Psf::Xyznb(astigmatism()),
        Psf::Xyznb(deep),
        Psf::Xyznb(round),
    ];
    psfs.into_iter().map(model).collect()
}

/// Fails unless the status of a fit is true.
fn check_status(model: &FitModel, side: usize, fit: &SpotFit, what: &str) {
    check_defined(fit, what);
    let bounds = model.psf().parameter_names().iter().map(|name| match *name {
        "x" | "y" => [-1.0, side as f32],
        "z" => match model.psf() {
            Psf::Xyznb(astigmatism) => astigmatism.z_um,
            _ => unreachable!("no other model has a depth"),
        },
        "photons" => [1.0, 1e9],
        "background" => [0.01, 1e9],
        _ => [*SIGMA_PX.start(), *SIGMA_PX.end()],
    });
    let mut at_bound = false;
    for ([low, high], theta) in bounds.zip(fit.theta) {
        assert!(fit.status() == FitStatus::BadInput || (low..=high).contains(&theta), "{what}: {fit:?}");
        at_bound |= theta <= low || theta >= high;
    }
    let starts = if matches!(model.psf(), Psf::Xyznb(_)) { 3 } else { 1 };
    assert!(u32::from(fit.iterations) <= starts * model.iterations_max(), "{what}: {fit:?}");
    let count = model.psf().parameter_names().len();
    match fit.status() {
        FitStatus::Converged | FitStatus::IterationLimit => {
            assert!(fit.errors[..count].iter().all(|error| *error > 0.0), "{what}: {fit:?}");
        }
        FitStatus::AtBound => assert!(at_bound, "{what}: {fit:?}"),
        FitStatus::Singular => {
            assert!(fit.errors[..count].iter().all(|error| error.is_nan()), "{what}: {fit:?}");
        }
        FitStatus::BadInput => assert_eq!(fit.iterations, 0, "{what}: {fit:?}"),
    }
    assert!(fit.status() == FitStatus::BadInput || fit.log_likelihood_ratio <= 0.0, "{what}: {fit:?}");
}

#[test]
fn fits_of_any_light_at_any_place_have_numbers_or_a_flag() {
    for side in [3, 7, 11, 21] {
        let values = anywhere(31 + side as u64, side);
        let rois = Rois::new(Adu::F32(&values), side, None).unwrap();
        for model in models() {
            let mut seen = [0; FitStatus::ALL.len()];
            for set in InstructionSet::supported() {
                for (roi, fit) in run(set, &model, &Camera::ideal(), rois).iter().enumerate() {
                    check_status(&model, side, fit, &format!("{set} {:?} {side}: ROI {roi}", model.psf()));
                    seen[fit.status() as usize] += 1;
                }
            }
            println!("{:?} {side}: {seen:?} of each status", model.psf());
            assert_eq!(seen[FitStatus::BadInput as usize], 0, "all of it is light");
        }
    }
}

/// The same on a sensor with pixels that hardly respond, and with pixels whose noise drowns everything.
#[test]
fn fits_on_any_sensor_have_numbers_or_a_flag() {
    let side = 7;
    let values = anywhere(41, side);
    let count = values.len() / (side * side);
    let random = &mut Random::new(43);
    let corners: Vec<[u32; 2]> = (0..count)
        .map(|_| [between(random, 0.0, 32.99) as u32, between(random, 0.0, 22.99) as u32])
        .collect();
    let mut any = |low: f64, high: f64| {
        let values = (0..30 * 40).map(|_| between(random, low, high).exp() as f32).collect();
        CameraValue::Map(SensorMap { height: 30, width: 40, values })
    };
    let (gain, noise) = (any(-5.0, 3.0), any(-9.0, 9.0));
    let camera = Camera::new(&CameraValue::Scalar(0.0), &gain, &noise).unwrap();
    let rois = Rois::new(Adu::F32(&values), side, Some(&corners)).unwrap();
    for model in models() {
        for set in InstructionSet::supported() {
            for (roi, fit) in run(set, &model, &camera, rois).iter().enumerate() {
                check_status(&model, side, fit, &format!("{set} {:?}: ROI {roi}", model.psf()));
            }
        }
    }
}

#[test]
fn fits_that_are_cut_short_say_so() {
    let side = 9;
    let values = anywhere(47, side);
    let rois = Rois::new(Adu::F32(&values), side, None).unwrap();
    for model in models() {
        let model = model.with_iterations_max(1).unwrap();
        let fits = run(InstructionSet::detect(), &model, &Camera::ideal(), rois);
        for (roi, fit) in fits.iter().enumerate() {
            check_status(&model, side, fit, &format!("{:?}: ROI {roi}", model.psf()));
        }
        let cut = fits.iter().filter(|fit| fit.status() == FitStatus::IterationLimit).count();
        println!("{:?}: {cut} of {}", model.psf(), fits.len());
        assert!(4 * cut > fits.len(), "{:?}: {cut} of {}", model.psf(), fits.len());
    }
}

/// The expected photo-electrons in each pixel, and their derivatives by the parameters of a model whose widths are fitted.
fn slopes(side: usize, theta: &[f64]) -> Vec<(f64, Vec<f64>)> {
    // For each pixel: its share of the light, and the derivatives of that by position and width.
    let axis = |position: f64, sigma: f64| -> Vec<[f64; 3]> {
        let edge = |j: usize| {
            let u = (j as f64 - 0.5 - position) / sigma;
            let density = (-0.5 * u * u).exp() / (sigma * (2.0 * std::f64::consts::PI).sqrt());
            [0.5 * erf(u / 2f64.sqrt()), -density, -density * u]
        };
        let between = |j: usize| std::array::from_fn(|k| edge(j + 1)[k] - edge(j)[k]);
        // Far away the share of the light is less than rounding, which may not make it negative.
        (0..side)
            .map(between)
            .map(|[share, slopes @ ..]: [f64; 3]| [share.max(0.0), slopes[0], slopes[1]])
            .collect()
    };
    let &[x, y, photons, background, sigma_x, ref rest @ ..] = theta else { panic!("no widths") };
    let (columns, rows) = (axis(x, sigma_x), axis(y, rest.first().copied().unwrap_or(sigma_x)));
    let pixel = |e: &[f64; 3], f: &[f64; 3]| {
        let [by_x, by_y] = [photons * e[1] * f[0], photons * e[0] * f[1]];
        let [by_width, by_height] = [photons * e[2] * f[0], photons * e[0] * f[2]];
        let mut slopes = vec![by_x, by_y, e[0] * f[0], 1.0];
        match rest.is_empty() {
            true => slopes.push(by_width + by_height),
            false => slopes.extend([by_width, by_height]),
        }
        (background + photons * e[0] * f[0], slopes)
    };
    rows.iter().flat_map(|row| columns.iter().map(move |column| pixel(column, row))).collect()
}

/// The Cramer-Rao standard deviations at `theta`, in double precision.
fn bounds_of_errors(side: usize, theta: &[f64]) -> Vec<f64> {
    let count = theta.len();
    let mut fisher = vec![vec![0.0; count]; count];
    for (mean, slopes) in slopes(side, theta) {
        for (i, row) in fisher.iter_mut().enumerate() {
            for (j, sum) in row.iter_mut().enumerate() {
                *sum += slopes[i] * slopes[j] / mean;
            }
        }
    }
    // Gauss-Jordan elimination of the matrix, scaled to a unit diagonal and augmented with the identity.
    let scale: Vec<f64> = (0..count).map(|k| fisher[k][k].sqrt().recip()).collect();
    let mut rows: Vec<Vec<f64>> = (0..count)
        .map(|i| {
            let left = (0..count).map(|j| fisher[i][j] * scale[i] * scale[j]);
            left.chain((0..count).map(|j| f64::from(u8::from(i == j)))).collect()
        })
        .collect();
    for i in 0..count {
        let pivot = (i..count).max_by(|a, b| rows[*a][i].abs().total_cmp(&rows[*b][i].abs())).unwrap();
        rows.swap(i, pivot);
        let divisor = rows[i][i];
        rows[i].iter_mut().for_each(|value| *value /= divisor);
        let own = rows[i].clone();
        for (_, other) in rows.iter_mut().enumerate().filter(|(k, _)| *k != i) {
            let times = other[i];
            other.iter_mut().zip(&own).for_each(|(value, own)| *value -= times * own);
        }
    }
    (0..count).map(|k| rows[k][count + k].sqrt() * scale[k]).collect()
}

#[test]
fn a_fit_that_claims_errors_claims_none_that_are_far_too_small() {
    let psfs = [
        Psf::Xynbs { sigma_start_px: 0.3 },
        Psf::Xynbs { sigma_start_px: 5.0 },
        Psf::Xynbsxsy { sigma_start_px: [5.0, 0.3] },
    ];
    for side in [5, 7, 11] {
        let seed = 31 + side as u64;
        let values = anywhere(seed, side);
        let rois = Rois::new(Adu::F32(&values), side, None).unwrap();
        for model in psfs.map(model) {
            for set in InstructionSet::supported() {
                let (mut claimed, mut singular, mut least) = (0, 0, 1.0_f64);
                for (roi, fit) in run(set, &model, &Camera::ideal(), rois).iter().enumerate() {
                    singular += usize::from(fit.status() == FitStatus::Singular);
                    if fit.status() != FitStatus::Converged {
                        continue;
                    }
                    claimed += 1;
                    let count = model.psf().parameter_names().len();
                    let theta: Vec<f64> = fit.theta[..count].iter().map(|value| f64::from(*value)).collect();
                    for (error, bound) in fit.errors.iter().zip(bounds_of_errors(side, &theta)) {
                        let ratio = f64::from(*error) / bound;
                        least = least.min(ratio);
                        let what = format!("seed {seed} {set} {:?} {side}: ROI {roi}", model.psf());
                        assert!(ratio > 0.5, "{what}: an error of {error}, not {bound}: {fit:?}");
                    }
                }
                println!("{set} {:?} {side}: {claimed} claimed, {singular} singular, {least}", model.psf());
                assert!(claimed > 20, "{set} {:?} {side}: only {claimed}", model.psf());
            }
        }
    }
}

#[test]
fn spots_on_a_dark_ground_converge_and_are_where_they_say() {
    // Of hundreds of photons each, with hardly any beside them: in many of these the best background is none.
    let (side, count, seed) = (7, 1000, 47);
    let random = &mut Random::new(seed);
    let poisson = |random: &mut Random, mean: f64| {
        let (mut left, mut events) = (mean, -1.0);
        while left > 0.0 {
            left += random.unit().ln();
            events += 1.0;
        }
        events as f32
    };
    let spots: Vec<Spot> = (0..count)
        .map(|_| Spot {
            photons: 1000.0,
            background: 0.3,
            sigma: [1.3; 2],
            ..Spot::near_middle(random, side)
        })
        .collect();
    let values: Vec<f32> = spots
        .iter()
        .flat_map(|spot| spot.expected(side))
        .map(|mean| poisson(random, mean.max(1e-9)))
        .collect();
    let psfs = [
        Psf::Xynb { sigma_px: [1.3; 2] },
        Psf::Xynbs { sigma_start_px: 1.3 },
        Psf::Xynbsxsy { sigma_start_px: [1.3; 2] },
    ];
    for psf in psfs {
        let fits = run_f32(&model(psf), &values, side);
        let none = fits.iter().filter(|fit| fit.theta[3] <= 0.01).count();
        assert!(none > count / 20, "{}: {none} without a background, seed {seed}", psf.name());
        let converged = fits.iter().filter(|fit| fit.status() == FitStatus::Converged).count();
        assert_eq!(converged, count, "{}, seed {seed}", psf.name());
        // Deviations in units of the standard errors that are stated, of x, y and photons.
        for (k, truth) in
            [|spot: &Spot| spot.x, |spot: &Spot| spot.y, |spot: &Spot| spot.photons].iter().enumerate()
        {
            let pulls = fits.iter().zip(&spots).filter(|(fit, _)| fit.theta[3] <= 0.01);
            let pulls: Vec<f64> = pulls
                .map(|(fit, spot)| (f64::from(fit.theta[k]) - truth(spot)) / f64::from(fit.errors[k]))
                .collect();
            let spread = (pulls.iter().map(|pull| pull * pull).sum::<f64>() / pulls.len() as f64).sqrt();
            println!("{}: deviation {k} over its standard error {spread:.2}, of {}", psf.name(), pulls.len());
            assert!((0.75..1.25).contains(&spread), "{}: {k}: {spread}, seed {seed}", psf.name());
        }
    }
}
