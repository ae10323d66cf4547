//! Fits of spots with known parameters, alone and among others, and of everything that is no spot.

mod extremes;

use super::{
    super::{erf::erf, *},
    *,
};
use crate::{random::Random, worse::worse};

/// Uniform between two numbers.
fn between(random: &mut Random, low: f64, high: f64) -> f64 {
    low + (high - low) * random.unit()
}

/// The parameters of a simulated spot.
#[derive(Clone, Copy)]
struct Spot {
    x: f64,
    y: f64,
    photons: f64,
    background: f64,
    sigma: [f64; 2],
}

impl Spot {
    /// A spot near the middle of a ROI of `side` pixels.
    fn near_middle(random: &mut Random, side: usize) -> Spot {
        let middle = (side - 1) as f64 / 2.0;
        Spot {
            x: middle + between(random, -0.5, 0.5),
            y: middle + between(random, -0.5, 0.5),
            photons: between(random, 800.0, 5000.0),
            background: between(random, 2.0, 20.0),
            sigma: [between(random, 1.0, 1.5); 2],
        }
    }

    /// Expected photo-electrons, row-major.
    fn expected(&self, side: usize) -> Vec<f64> {
        let share = |j: usize, position: f64, sigma: f64| {
            let edge = |edge: f64| erf((edge - position) / (sigma * 2f64.sqrt()));
            (edge(j as f64 + 0.5) - edge(j as f64 - 0.5)) / 2.0
        };
        let pixel = |r: usize, c: usize| {
            self.background + self.photons * share(c, self.x, self.sigma[0]) * share(r, self.y, self.sigma[1])
        };
        (0..side * side).map(|j| pixel(j / side, j % side)).collect()
    }
}

const SQUARE: [f32; 2] = [0.1, 0.1];

pub(super) fn model(psf: Psf) -> FitModel {
    FitModel::new(psf, SQUARE).unwrap()
}

pub(super) fn astigmatism() -> Astigmatism {
    Astigmatism {
        sigma_px: [1.2, 1.3],
        a: [0.05, -0.03],
        b: [0.1, 0.05],
        gamma_um: 0.25,
        depth_um: 0.4,
        z_um: [-1.0, 1.0],
    }
}

/// The results of ROIs on one instruction set.
fn run(set: InstructionSet, model: &FitModel, camera: &Camera, rois: Rois<'_>) -> Vec<SpotFit> {
    let mut fits = vec![SpotFit::default(); rois.len()];
    fit(set, model, camera, rois, &mut fits).unwrap();
    fits
}

fn run_f32(model: &FitModel, values: &[f32], side: usize) -> Vec<SpotFit> {
    let rois = Rois::new(Adu::F32(values), side, None).unwrap();
    run(InstructionSet::detect(), model, &Camera::ideal(), rois)
}

/// `count` ROIs with noise, with a spot near their middle, as the `u16` values of a camera.
pub(super) fn noisy(seed: u64, count: usize, side: usize) -> Vec<u16> {
    let random = &mut Random::new(seed);
    let mut rois = Vec::new();
    for _ in 0..count {
        let expected = Spot::near_middle(random, side).expected(side);
        rois.extend(expected.into_iter().map(|mean| (mean + random.normal() * mean.sqrt()).max(0.0) as u16));
    }
    rois
}

/// Fails unless a fit's values match its status: numbers where it claims some, NaN only with the right flag.
fn check_defined(fit: &SpotFit, what: &str) {
    let values: Vec<f32> = fit.theta.into_iter().chain([fit.log_likelihood_ratio, fit.p_value]).collect();
    let errors: Vec<f32> = fit.errors.into_iter().chain(fit.covariance).collect();
    match fit.status() {
        FitStatus::BadInput => assert!(values[..4].iter().all(|value| value.is_nan()), "{what}: {fit:?}"),
        FitStatus::Singular => assert!(values.iter().all(|value| value.is_finite()), "{what}: {fit:?}"),
        _ => {
            assert!(values.iter().chain(&errors).all(|value| value.is_finite()), "{what}: {fit:?}");
            assert!((0.0..=1.0).contains(&fit.p_value), "{what}: {fit:?}");
        }
    }
}

#[test]
fn spots_without_noise_are_found_exactly() {
    for set in InstructionSet::supported() {
        let mut worst = 0f64;
        for side in [5, 7, 9, 11, 13, 15, 21] {
            let random = &mut Random::new(7);
            for _ in 0..20 {
                let spot = Spot::near_middle(random, side);
                let z = between(random, -0.4, 0.4);
                let psfs = [
                    Psf::Xynb { sigma_px: spot.sigma.map(|sigma| sigma as f32) },
                    Psf::Xynbs { sigma_start_px: 1.3 },
                    Psf::Xynbsxsy { sigma_start_px: [1.3; 2] },
                    Psf::Xyznb(astigmatism()),
                ];
                for psf in psfs {
                    let mut spot = spot;
                    if let Psf::Xyznb(a) = psf {
                        let width = |axis: usize, gamma: f64| {
                            let t = (z - gamma) / f64::from(a.depth_um);
                            let (cubic, quartic) = (f64::from(a.a[axis]), f64::from(a.b[axis]));
                            let square = 1.0 + t * t * (1.0 + t * (cubic + t * quartic));
                            f64::from(a.sigma_px[axis]) * square.sqrt()
                        };
                        spot.sigma = [width(0, f64::from(a.gamma_um)), width(1, -f64::from(a.gamma_um))];
                    }
                    let values: Vec<f32> = spot.expected(side).iter().map(|&mean| mean as f32).collect();
                    let rois = Rois::new(Adu::F32(&values), side, None).unwrap();
                    let found = run(set, &model(psf), &Camera::ideal(), rois)[0];
                    let what = format!("{set} {} {side}: {found:?}", psf.name());
                    assert_eq!(found.status(), FitStatus::Converged, "{what}");
                    for (k, name) in psf.parameter_names().iter().enumerate() {
                        let truth = match *name {
                            "x" => spot.x,
                            "y" => spot.y,
                            "z" => z,
                            "photons" => spot.photons,
                            "background" => spot.background,
                            "sigma" | "sigma_x" => spot.sigma[0],
                            _ => spot.sigma[1],
                        };
                        let off = (f64::from(found.theta[k]) - truth).abs() / f64::from(found.errors[k]);
                        worst = worst.max(off);
                        assert!(off < 0.01, "{name} is {off} standard errors off: {what}");
                    }
                    assert!(found.log_likelihood_ratio.abs() < 0.01, "{what}");
                    assert!(found.p_value > 0.99, "{what}");
                }
            }
        }
        println!("{set}: at most {worst:.1e} standard errors off");
    }
}

#[test]
fn instruction_sets_agree() {
    for side in [7, 11] {
        let values = noisy(3, 500, side);
        let rois = Rois::new(Adu::U16(&values), side, None).unwrap();
        let psfs = [Psf::Xynb { sigma_px: [1.2; 2] }, Psf::Xynbs { sigma_start_px: 1.3 }];
        for psf in psfs {
            let mut all = InstructionSet::supported().into_iter();
            let first = run(all.next().unwrap(), &model(psf), &Camera::ideal(), rois);
            for set in all {
                let mut worst = 0f32;
                for (a, b) in first.iter().zip(run(set, &model(psf), &Camera::ideal(), rois)) {
                    assert_eq!(a.status(), b.status(), "{a:?} {b:?}");
                    for k in 0..psf.parameter_names().len() {
                        worst = worse(worst, (a.theta[k] - b.theta[k]).abs() / a.errors[k]);
                    }
                }
                println!("{set}, {} {side}: at most {worst:.1e} standard errors apart", psf.name());
                assert!(worst < 0.01, "{set}: {worst}");
            }
        }
    }
}

#[test]
fn a_result_does_not_depend_on_the_neighbours_or_on_how_the_work_is_cut() {
    let side = 7;
    let mut values: Vec<f32> = noisy(11, 300, side).into_iter().map(f32::from).collect();
    let pixels = side * side;
    for (roi, value) in [(0, f32::NAN), (100, f32::INFINITY), (101, 0.0), (299, 65535.0)] {
        values[roi * pixels..(roi + 1) * pixels].fill(value);
    }
    let rois = Rois::new(Adu::F32(&values), side, None).unwrap();
    for set in InstructionSet::supported() {
        for psf in [Psf::Xynbs { sigma_start_px: 1.3 }, Psf::Xyznb(astigmatism())] {
            let whole = run(set, &model(psf), &Camera::ideal(), rois);
            let bits =
                |fit: &SpotFit| (fit.theta.map(f32::to_bits), fit.errors.map(f32::to_bits), fit.status());
            for (roi, fit) in whole.iter().enumerate() {
                check_defined(fit, &format!("{set}: ROI {roi}"));
                let alone = run(set, &model(psf), &Camera::ideal(), rois.part(roi..roi + 1));
                assert_eq!(bits(fit), bits(&alone[0]), "{set}: ROI {roi}");
            }
            assert_eq!(whole[0].status(), FitStatus::BadInput);
            assert_eq!(whole[100].status(), FitStatus::BadInput);
        }
    }
}

#[test]
fn what_is_no_spot_has_a_status() {
    for set in InstructionSet::supported() {
        for side in (3..=21).step_by(2) {
            let pixels = side * side;
            let spike =
                |at: usize| (0..pixels).map(|j| if j == at { 1000.0 } else { 1.0 }).collect::<Vec<f32>>();
            let spot = |x: f64, y: f64| {
                let spot = Spot { x, y, photons: 3000.0, background: 5.0, sigma: [1.3; 2] };
                spot.expected(side).iter().map(|&mean| mean as f32).collect::<Vec<f32>>()
            };
            let last = (side - 1) as f64;
            let cases: Vec<(&str, Vec<f32>)> = vec![
                ("zero", vec![0.0; pixels]),
                ("constant", vec![7.0; pixels]),
                ("saturated", vec![65535.0; pixels]),
                ("negative", vec![-5.0; pixels]),
                ("large", vec![9e8; pixels]),
                ("beyond any camera", vec![1e12; pixels]),
                ("largest", vec![f32::MAX; pixels]),
                ("infinite", vec![f32::NEG_INFINITY; pixels]),
                ("a NaN", (0..pixels).map(|j| if j == 4 { f32::NAN } else { 9.0 }).collect()),
                ("a spike", spike(pixels / 2)),
                ("a spike in the corner", spike(0)),
                ("a spot at the edge", spot(0.0, last / 2.0)),
                ("a spot at the corner", spot(last, last)),
                ("a spot beyond the edge", spot(-3.0, last + 3.0)),
                ("a slope", (0..pixels).map(|j| (j % side) as f32 * 10.0).collect()),
            ];
            let psfs = [
                Psf::Xynb { sigma_px: [1.3; 2] },
                Psf::Xynbs { sigma_start_px: 1.3 },
                Psf::Xynbsxsy { sigma_start_px: [1.3; 2] },
                Psf::Xyznb(astigmatism()),
            ];
            for psf in psfs {
                for (what, values) in &cases {
                    let rois = Rois::new(Adu::F32(values), side, None).unwrap();
                    let found = run(set, &model(psf), &Camera::ideal(), rois)[0];
                    let what = format!("{set} {} {side}: {what}", psf.name());
                    check_defined(&found, &what);
                    let bad = ["beyond any camera", "largest", "infinite", "a NaN"];
                    let expected = bad.iter().any(|bad| what.ends_with(bad));
                    assert_eq!(found.status() == FitStatus::BadInput, expected, "{what}: {found:?}");
                }
            }
        }
    }
}

#[test]
fn a_spot_at_the_edge_is_found_there() {
    let spot = Spot { x: 0.2, y: 5.0, photons: 3000.0, background: 5.0, sigma: [1.3; 2] };
    let values: Vec<f32> = spot.expected(11).iter().map(|&mean| mean as f32).collect();
    let found = run_f32(&model(Psf::Xynb { sigma_px: [1.3; 2] }), &values, 11)[0];
    assert_eq!(found.status(), FitStatus::Converged, "{found:?}");
    assert!((found.theta[0] - 0.2).abs() < 1e-3 && (found.theta[1] - 5.0).abs() < 1e-3, "{found:?}");
}

#[test]
fn no_roi_and_one_roi_are_fitted() {
    let fixed = model(Psf::Xynb { sigma_px: [1.2; 2] });
    assert!(run_f32(&fixed, &[], 7).is_empty());
    let values: Vec<f32> = noisy(5, 1, 7).into_iter().map(f32::from).collect();
    assert_eq!(run_f32(&fixed, &values, 7)[0].status(), FitStatus::Converged);
}

#[test]
fn offset_and_gain_are_undone() {
    let values = noisy(17, 200, 9);
    let scalar = CameraValue::Scalar;
    let adu: Vec<u16> = values.iter().map(|&electrons| electrons * 2 + 100).collect();
    let camera = Camera::new(&scalar(100.0), &scalar(0.5), &scalar(0.0)).unwrap();
    let fixed = model(Psf::Xynbs { sigma_start_px: 1.3 });
    let set = InstructionSet::detect();
    let ideal = run(set, &fixed, &Camera::ideal(), Rois::new(Adu::U16(&values), 9, None).unwrap());
    let converted = run(set, &fixed, &camera, Rois::new(Adu::U16(&adu), 9, None).unwrap());
    assert_eq!(ideal, converted);
}

/// A map of the values of a function of row and column.
pub(super) fn map(height: usize, width: usize, value: impl Fn(usize, usize) -> f32) -> CameraValue {
    let values = (0..height * width).map(|i| value(i / width, i % width)).collect();
    CameraValue::Map(SensorMap { height, width, values })
}

#[test]
fn maps_are_read_at_the_pixels_of_each_roi() {
    // Rows and columns differ, so that swapping them is noticed; so do the corners.
    let (height, width, side) = (40, 60, 7);
    let offset = |r: usize, c: usize| 90.0 + (r * 3 + c) as f32 % 17.0;
    let gain = |r: usize, c: usize| 0.4 + ((r + 2 * c) % 5) as f32 * 0.05;
    let noise = |r: usize, _: usize| 0.5 + r as f32 * 0.3;
    let camera =
        Camera::new(&map(height, width, offset), &map(height, width, gain), &map(height, width, noise))
            .unwrap();
    let random = &mut Random::new(23);
    let corners: Vec<[u32; 2]> = (0..64)
        .map(|_| [between(random, 0.0, 53.99) as u32, between(random, 0.0, 33.99) as u32])
        .chain([[53, 33], [0, 0]])
        .collect();
    let mut adu = Vec::new();
    let mut truth = Vec::new();
    for [x, y] in &corners {
        let spot = Spot::near_middle(random, side);
        for (j, mean) in spot.expected(side).into_iter().enumerate() {
            let (r, c) = (*y as usize + j / side, *x as usize + j % side);
            adu.push((mean / f64::from(gain(r, c))) as f32 + offset(r, c));
        }
        truth.push(spot);
    }
    let rois = Rois::new(Adu::F32(&adu), side, Some(&corners)).unwrap();
    for set in InstructionSet::supported() {
        let found = run(set, &model(Psf::Xynbs { sigma_start_px: 1.3 }), &camera, rois);
        for (spot, fit) in truth.iter().zip(&found) {
            let off = (f64::from(fit.theta[0]) - spot.x).hypot(f64::from(fit.theta[1]) - spot.y);
            assert!(off < 1e-3, "{set}: {off} px: {fit:?}");
            assert!((f64::from(fit.theta[2]) / spot.photons - 1.0).abs() < 2e-3, "{set}: {fit:?}");
        }
    }
    // The same spot where rows have little read noise and where they have much.
    let spot = Spot { x: 3.0, y: 3.0, photons: 500.0, background: 5.0, sigma: [1.3; 2] };
    let values: Vec<f32> = spot.expected(side).into_iter().map(|mean| mean as f32).collect();
    let noise_only = |value: CameraValue| {
        Camera::new(&CameraValue::Scalar(0.0), &CameraValue::Scalar(1.0), &value).unwrap()
    };
    let camera = noise_only(map(height, width, |r, _| if r < 20 { 1.0 } else { 10.0 }));
    let fixed = model(Psf::Xynb { sigma_px: [1.3; 2] });
    for (corner, noise) in [([30, 2], 1.0), ([2, 30], 10.0)] {
        let corners = [corner];
        let set = InstructionSet::detect();
        let mapped = run(set, &fixed, &camera, Rois::new(Adu::F32(&values), side, Some(&corners)).unwrap());
        let uniform = noise_only(CameraValue::Scalar(noise));
        let uniform = run(set, &fixed, &uniform, Rois::new(Adu::F32(&values), side, None).unwrap());
        let ratio = mapped[0].errors[0] / uniform[0].errors[0];
        assert!((ratio - 1.0).abs() < 1e-3, "{corner:?}: {ratio}");
    }
}

#[test]
fn oblong_pixels_take_a_width_for_each_axis() {
    let pixel_um = [0.127, 0.116];
    let sigma = sigma_px(0.13, pixel_um);
    let oblong = FitModel::new(Psf::Xynb { sigma_px: sigma }, pixel_um).unwrap();
    let spot = Spot { x: 5.3, y: 4.6, photons: 1000.0, background: 10.0, sigma: sigma.map(f64::from) };
    let values: Vec<f32> = spot.expected(11).into_iter().map(|mean| mean as f32).collect();
    let found = run_f32(&oblong, &values, 11)[0];
    assert!((found.theta[0] - 5.3).abs() * 0.127 < 1e-4, "{found:?}");
    assert!((found.theta[1] - 4.6).abs() * 0.116 < 1e-4, "{found:?}");
    assert!((found.theta[2] / 1000.0 - 1.0).abs() < 1e-3, "{found:?}");

    let refused = FitModel::new(Psf::Xynbs { sigma_start_px: 1.3 }, pixel_um).unwrap_err();
    assert!(refused.to_string().contains("xynbsxsy"), "{refused}");
}

#[test]
fn what_cannot_be_fitted_is_named() {
    fn check<T>(made: Result<T, Invalid>, field: &str, words: &str) {
        let Err(invalid) = made else { panic!("{field} is taken") };
        assert_eq!(invalid.field, field);
        assert!(invalid.why.contains(words), "{invalid}");
    }
    let values = [0u16; 98];
    check(Rois::new(Adu::U16(&values), 6, None), "box", "6 is not an odd number between 3 and 21");
    check(Rois::new(Adu::U16(&values), 23, None), "box", "23");
    check(Rois::new(Adu::U16(&values), 0, None), "box", "0");
    check(Rois::new(Adu::U16(&values[..97]), 7, None), "rois", "97 values");
    check(Rois::new(Adu::U16(&values), 7, Some(&[[0, 0]])), "corners", "1 for 2 ROIs");

    let scalar = CameraValue::Scalar;
    check(Camera::new(&scalar(0.0), &scalar(0.0), &scalar(0.0)), "gain", "0");
    check(Camera::new(&scalar(f32::NAN), &scalar(1.0), &scalar(0.0)), "offset", "NaN");
    check(Camera::new(&scalar(0.0), &scalar(1.0), &scalar(-1.0)), "read_noise", "-1");
    let holed = map(4, 5, |r, c| if (r, c) == (2, 3) { 0.0 } else { 1.0 });
    check(Camera::new(&scalar(0.0), &holed, &scalar(1.0)), "gain", "row 2, column 3");
    let other = map(5, 4, |_, _| 1.0);
    check(Camera::new(&other, &map(4, 5, |_, _| 1.0), &scalar(1.0)), "gain", "another one is 5 x 4");
    let short = CameraValue::Map(SensorMap { height: 4, width: 5, values: vec![1.0; 19] });
    check(Camera::new(&short, &scalar(1.0), &scalar(1.0)), "offset", "19 values");

    check(FitModel::new(Psf::Xynb { sigma_px: [0.1, 1.0] }, SQUARE), "sigma_px", "0.1");
    check(FitModel::new(Psf::Xynbs { sigma_start_px: f32::NAN }, SQUARE), "sigma_px", "NaN");
    check(FitModel::new(Psf::Xynb { sigma_px: [1.0; 2] }, [0.1, 0.0]), "pixel_um", "along y");
    let flat = Astigmatism { depth_um: 0.0, ..astigmatism() };
    check(FitModel::new(Psf::Xyznb(flat), SQUARE), "depth_um", "0");
    let negative = Astigmatism { b: [-0.5, 0.0], ..astigmatism() };
    check(FitModel::new(Psf::Xyznb(negative), SQUARE), "z_um", "no width along x");
    let fixed = model(Psf::Xynb { sigma_px: [1.3; 2] });
    check(fixed.with_iterations_max(0), "iterations_max", "0");

    let camera = Camera::new(&map(20, 30, |_, _| 1.0), &scalar(1.0), &scalar(1.0)).unwrap();
    let fitted = |corners| {
        let rois = Rois::new(Adu::U16(&values), 7, corners).unwrap();
        fit(InstructionSet::detect(), &fixed, &camera, rois, &mut [SpotFit::default(); 2])
    };
    check(fitted(None), "corners", "maps");
    check(fitted(Some(&[[0, 0], [24, 0]])), "corners", "ROI 1 at x = 24, y = 0");
    check(fitted(Some(&[[0, 14], [0, 0]])), "corners", "ROI 0");
    check(fitted(Some(&[[u32::MAX, 0], [0, 0]])), "corners", "ROI 0");
    assert_eq!(fitted(Some(&[[23, 13], [0, 0]])), Ok(()));
}

#[test]
fn calls_are_laid_out_as_the_kernels_have_them() {
    assert_eq!(size_of::<FitSetup>(), 11 * 4 + 2 * 5 * 4 + 4, "and a number that nobody uses");
    assert_eq!(size_of::<FitCall>(), 88 + 9 * 8);
}
