//! Spots at known positions, and everything that is no spot.

use super::*;
use crate::engine::kernels::{
    CameraValue, FitModel, FitStatus, Psf, Rois, SensorMap, SpotFit, erf::erf, fit,
};
use crate::random::Random;

const SIGMA: f32 = 1.3;

/// Options for spots above `threshold` that are the highest within 3 pixels.
pub(super) fn contrast(threshold: Threshold) -> FinderOptions {
    let method = Method::Contrast { sigma_px: [SIGMA; 2], wide: 2.0, threshold, radius: 3 };
    FinderOptions { method, box_side: 7, border: Border::Shift, spots_max: 1000 }
}

pub(super) fn net_gradient(minimum: f32) -> FinderOptions {
    FinderOptions { method: Method::NetGradient { minimum }, ..contrast(Threshold::Photons(1.0)) }
}

/// A frame without noise.
pub(super) struct Scene {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) pixels: Vec<f32>,
}

impl Scene {
    pub(super) fn new(width: usize, height: usize, background: f32) -> Scene {
        Scene { width, height, pixels: vec![background; width * height] }
    }

    pub(super) fn with(mut self, x: f64, y: f64, photons: f64) -> Scene {
        let share = |pixel: usize, place: f64| {
            let edge = |edge: f64| erf((edge - place) / (f64::from(SIGMA) * 2f64.sqrt()));
            (edge(pixel as f64 + 0.5) - edge(pixel as f64 - 0.5)) / 2.0
        };
        let across: Vec<f64> = (0..self.width).map(|column| share(column, x)).collect();
        for (row, pixels) in self.pixels.chunks_exact_mut(self.width).enumerate() {
            let photons = photons * share(row, y);
            pixels.iter_mut().zip(&across).for_each(|(pixel, share)| *pixel += (photons * share) as f32);
        }
        self
    }

    /// The same scene with photon noise, approximately normal and never negative.
    pub(super) fn noisy(mut self, seed: u64) -> Scene {
        let mut random = Random::new(seed);
        for pixel in &mut self.pixels {
            *pixel = (*pixel + pixel.sqrt() * random.normal() as f32).max(0.0).round();
        }
        self
    }

    pub(super) fn set(mut self, x: usize, y: usize, value: f32) -> Scene {
        self.pixels[y * self.width + x] = value;
        self
    }

    fn find_with(&self, options: &FinderOptions, camera: &Camera, set: InstructionSet) -> Vec<Spot> {
        let mut finder =
            SpotFinder::new(options, camera, self.width, self.height).unwrap().with_instructions(set);
        finder.find(Adu::F32(&self.pixels)).unwrap().to_vec()
    }

    /// The spots, after checking that all instruction sets find the same.
    pub(super) fn find(&self, options: &FinderOptions) -> Vec<Spot> {
        let found = self.find_with(options, &Camera::ideal(), InstructionSet::Baseline);
        for set in InstructionSet::supported() {
            let other = self.find_with(options, &Camera::ideal(), set);
            assert_eq!(places(&other), places(&found), "{set}");
            for (one, other) in found.iter().zip(&other) {
                assert!(
                    (one.score - other.score).abs() <= 1e-4 * one.score.abs() + 1e-3,
                    "{set}: {one:?} {other:?}"
                );
            }
        }
        found
    }
}

pub(super) fn places(spots: &[Spot]) -> Vec<[u32; 2]> {
    spots.iter().map(|spot| [spot.x, spot.y]).collect()
}

fn corners(spots: &[Spot]) -> Vec<[u32; 2]> {
    spots.iter().map(|spot| spot.corner).collect()
}

#[test]
fn a_spot_is_found_at_its_pixel_wherever_it_is() {
    for (width, height) in [(9, 9), (15, 11), (16, 9), (17, 12), (33, 10), (49, 9)] {
        for y in [0, 1, height / 2, height - 2, height - 1] {
            for x in 0..width {
                let scene = Scene::new(width, height, 5.0).with(x as f64, y as f64, 1000.0);
                let spots = scene.find(&contrast(Threshold::Noise(5.0)));
                let found = places(&spots);
                assert_eq!(found.len(), 1, "{x}, {y} in {width} x {height}: {found:?}");
                // One pixel from the edge, a spot and its mirror image are one.
                let near = |place: usize, extent: usize| match extent - 1 - place {
                    0 | 1 => extent - 1,
                    _ if place <= 1 => 0,
                    _ => place,
                };
                let [x, y] = [near(x, width), near(y, height)];
                assert_eq!(found, [[x as u32, y as u32]], "in {width} x {height}");
                let corner = |middle: usize, extent: usize| middle.saturating_sub(3).min(extent - 7) as u32;
                assert_eq!(corners(&spots), [[corner(x, width), corner(y, height)]]);

                let inside = (4..width - 4).contains(&x) && (4..height - 4).contains(&y);
                let expected: &[_] = if inside { &[[x as u32, y as u32]] } else { &[] };
                assert_eq!(places(&scene.find(&net_gradient(100.0))), expected, "in {width} x {height}");
            }
        }
    }
}

#[test]
fn boxes_that_would_leave_the_frame_are_dropped_where_that_is_asked_for() {
    let scene =
        Scene::new(30, 20, 5.0).with(2.0, 10.0, 1000.0).with(15.0, 3.0, 1000.0).with(27.0, 10.0, 1000.0);
    let options = FinderOptions { border: Border::Drop, ..contrast(Threshold::Noise(5.0)) };
    assert_eq!(places(&scene.find(&options)), [[15, 3]]);
    assert_eq!(places(&scene.find(&contrast(Threshold::Noise(5.0)))).len(), 3);
}

#[test]
fn the_score_is_the_spots_photons_and_the_threshold_is_in_them() {
    for photons in [50.0, 700.0, 30_000.0] {
        let scene = Scene::new(40, 40, 20.0).with(20.0, 20.0, f64::from(photons));
        let spots = scene.find(&contrast(Threshold::Photons(0.995 * photons)));
        assert_eq!(places(&spots), [[20, 20]]);
        let off = spots[0].score / photons - 1.0;
        println!("{photons} photons score {}: off by {off:e}", spots[0].score);
        assert!(off.abs() < 1e-3, "{} for {photons}", spots[0].score);
        assert!(scene.find(&contrast(Threshold::Photons(1.005 * photons))).is_empty());
    }
}

#[test]
fn the_contrast_of_a_photon_is_near_that_without_pixels() {
    let finder = SpotFinder::new(&contrast(Threshold::Photons(1.0)), &Camera::ideal(), 20, 20).unwrap();
    // Pixels widen the spot and truncation narrows the means, by a few percent.
    let formula = 0.3 / (2.0 * std::f32::consts::PI * SIGMA * SIGMA);
    let ratio = finder.contrast_per_photon() / formula;
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn flat_frames_have_no_spots() {
    for value in [0.0, 1.0, 100.0, 65535.0, -5.0] {
        let scene = Scene::new(37, 29, value);
        for options in [contrast(Threshold::Photons(1.0)), contrast(Threshold::Noise(3.0)), net_gradient(1.0)]
        {
            assert_eq!(scene.find(&options), [], "{value}");
        }
    }
}

#[test]
fn a_plateau_is_one_spot() {
    for side in [2, 3, 4, 6] {
        let mut scene = Scene::new(40, 40, 10.0);
        for y in 15..15 + side {
            for x in 15..15 + side {
                scene = scene.set(x, y, 65535.0);
            }
        }
        for options in [contrast(Threshold::Photons(100.0)), net_gradient(100.0)] {
            // Which of the equal pixels is found may differ by rounding.
            let spots = scene.find_with(&options, &Camera::ideal(), InstructionSet::detect());
            assert_eq!(spots.len(), 1, "{side}: {spots:?}");
        }
    }
    // Of equal pixels of the frame itself, the first is found.
    let scene = Scene::new(40, 40, 10.0).set(15, 15, 900.0).set(16, 15, 900.0).set(15, 16, 900.0);
    assert_eq!(places(&scene.find(&net_gradient(100.0))), [[15, 15]]);
}

#[test]
fn pixels_that_are_no_numbers_hide_no_spot_and_spoil_the_fits_that_hold_them_alone() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e9] {
        let scene = (0..4)
            .fold(Scene::new(64, 44, 10.0), |scene, i| scene.with(9.0 + 15.0 * f64::from(i), 20.0, 2000.0));
        // In the box of the first spot, just outside that of the second, and at the edge of that of the last.
        let scene = scene.set(10, 18, bad).set(28, 20, bad).set(57, 23, bad);
        for options in
            [contrast(Threshold::Noise(4.0)), contrast(Threshold::Photons(100.0)), net_gradient(50.0)]
        {
            for set in InstructionSet::supported() {
                let spots = scene.find_with(&options, &Camera::ideal(), set);
                assert_eq!(places(&spots), [[9, 20], [24, 20], [39, 20], [54, 20]], "{bad} {set}");
                let mut rois = RoiBuffer::new(7).unwrap();
                rois.cut(Adu::F32(&scene.pixels), 64, 0, &spots).unwrap();
                let mut fits = vec![SpotFit::default(); 4];
                let model = FitModel::new(Psf::Xynb { sigma_px: [1.3; 2] }, [0.1; 2]).unwrap();
                fit(set, &model, &Camera::ideal(), rois.rois(), &mut fits).unwrap();
                let status: Vec<FitStatus> = fits.iter().map(SpotFit::status).collect();
                let (good, bad) = (FitStatus::Converged, FitStatus::BadInput);
                assert_eq!(status, [bad, good, good, bad]);
            }
        }
    }
    // Where nothing around is a number either, nothing is found.
    let mut scene = Scene::new(64, 40, 10.0).with(20.0, 20.0, 2000.0).with(50.0, 20.0, 2000.0);
    for (x, y) in (21..24).flat_map(|x| (19..22).map(move |y| (x, y))) {
        scene = scene.set(x, y, f32::NAN);
    }
    assert_eq!(places(&scene.find(&contrast(Threshold::Noise(4.0)))), [[50, 20]]);
    let scene = Scene::new(30, 30, f32::NAN);
    assert_eq!(scene.find(&contrast(Threshold::Noise(3.0))), []);
    assert_eq!(scene.find(&net_gradient(1.0)), []);
}

#[test]
fn of_more_spots_than_allowed_the_strongest_are_kept_in_order() {
    let mut scene = Scene::new(90, 20, 5.0);
    for (i, photons) in [500.0, 3000.0, 1000.0, 4000.0, 800.0].into_iter().enumerate() {
        scene = scene.with(10.0 + 16.0 * i as f64, 10.0, photons);
    }
    let options = FinderOptions { spots_max: 2, ..contrast(Threshold::Noise(5.0)) };
    assert_eq!(places(&scene.find(&options)), [[26, 10], [58, 10]]);
    let mut finder = SpotFinder::new(&options, &Camera::ideal(), 90, 20).unwrap();
    for (pixels, over_max) in [(&scene.pixels, 3), (&vec![5.0; 90 * 20], 0)] {
        finder.find(Adu::F32(pixels)).unwrap();
        assert_eq!(finder.over_max(), over_max);
    }
}

#[test]
fn noisy_frames_give_the_same_in_every_instruction_set_and_every_time() {
    let mut scene = Scene::new(101, 67, 8.0);
    for i in 0..12 {
        scene = scene.with(5.0 + 8.1 * f64::from(i), 9.0 + 4.3 * f64::from(i), 600.0);
    }
    let scene = scene.noisy(7);
    for options in [contrast(Threshold::Noise(3.0)), contrast(Threshold::Photons(150.0)), net_gradient(60.0)]
    {
        let found = scene.find(&options);
        assert!(found.len() >= 12, "{}", found.len());
        assert!(found.is_sorted_by_key(|spot| (spot.y, spot.x)));
        // What an earlier frame left behind makes no difference.
        let mut finder = SpotFinder::new(&options, &Camera::ideal(), 101, 67).unwrap();
        let first = finder.find(Adu::F32(&scene.pixels)).unwrap().to_vec();
        finder.find(Adu::F32(&vec![f32::NAN; 101 * 67])).unwrap();
        assert_eq!(finder.find(Adu::F32(&scene.pixels)).unwrap(), first);
        // Nor does the type, where both hold the same numbers.
        let narrow: Vec<u16> = scene.pixels.iter().map(|pixel| *pixel as u16).collect();
        assert_eq!(finder.find(Adu::U16(&narrow)).unwrap(), first);
    }
}

fn map(width: usize, height: usize, value: impl Fn(usize, usize) -> f32) -> CameraValue {
    let values = (0..width * height).map(|i| value(i % width, i / width)).collect();
    CameraValue::Map(SensorMap { height, width, values })
}

#[test]
fn offset_and_gain_are_taken_off_pixel_by_pixel() {
    let (width, height) = (40, 30);
    let scene = Scene::new(width, height, 10.0).with(20.0, 15.0, 1500.0);
    let offset = |x: usize, y: usize| 100.0 + (x * 7 + y * 3) as f32 % 11.0;
    let gain = |x: usize, y: usize| 0.4 + ((x + 2 * y) % 5) as f32 * 0.05;
    let adu = scene.pixels.iter().enumerate().map(|(i, electrons)| {
        let (x, y) = (i % width, i / width);
        electrons / gain(x, y) + offset(x, y)
    });
    let raw = Scene { width, height, pixels: adu.collect() };
    let camera =
        Camera::new(&map(width, height, offset), &map(width, height, gain), &CameraValue::Scalar(2.0))
            .unwrap();
    for set in InstructionSet::supported() {
        let spots = raw.find_with(&contrast(Threshold::Photons(1000.0)), &camera, set);
        assert_eq!(places(&spots), [[20, 15]], "{set}");
        assert!((spots[0].score - 1500.0).abs() < 3.0, "{set}: {}", spots[0].score);
        assert_eq!(places(&raw.find_with(&net_gradient(300.0), &camera, set)), [[20, 15]], "{set}");
    }
}

#[test]
fn a_pixel_that_is_no_number_counts_as_those_around_it_whatever_its_own_read_noise() {
    let (width, height) = (48, 40);
    for (own, others) in [(10.0, 1.5), (1.5, 10.0)] {
        let noise = |x: usize, y: usize| if (x, y) == (20, 20) { own } else { others };
        let camera =
            Camera::new(&CameraValue::Scalar(0.0), &CameraValue::Scalar(1.0), &map(width, height, noise))
                .unwrap();
        let flat = Scene::new(width, height, 1000.0).set(20, 20, f32::NAN);
        let bright = Scene::new(width, height, 300.0).with(22.0, 21.0, 2000.0).set(20, 20, f32::NAN);
        for set in InstructionSet::supported() {
            for threshold in [Threshold::Noise(4.0), Threshold::Photons(100.0)] {
                assert_eq!(flat.find_with(&contrast(threshold), &camera, set), [], "{own} {set}");
                assert_eq!(
                    places(&bright.find_with(&contrast(threshold), &camera, set)),
                    [[22, 21]],
                    "{own} {set}"
                );
            }
        }
    }
}

#[test]
fn weights_by_read_noise_keep_the_score_and_quench_hot_columns() {
    let (width, height) = (48, 40);
    let noise = |x: usize, _: usize| if x % 16 == 8 { 40.0 } else { 1.4 };
    let camera =
        Camera::new(&CameraValue::Scalar(0.0), &CameraValue::Scalar(1.0), &map(width, height, noise))
            .unwrap();
    // A hot pixel as bright as its noise goes, and spots: away from, beside and on a hot column.
    let hot = Scene::new(width, height, 10.0).set(8, 20, 10.0 + 4.0 * 40.0);
    let spots = hot.with(30.0, 8.0, 2000.0).with(9.0, 32.0, 2000.0).with(24.0, 30.0, 2000.0);
    for set in InstructionSet::supported() {
        let found = spots.find_with(&contrast(Threshold::Noise(6.0)), &camera, set);
        assert_eq!(places(&found), [[30, 8], [24, 30], [9, 32]], "{set}");
        let found = spots.find_with(&contrast(Threshold::Photons(300.0)), &camera, set);
        assert_eq!(places(&found), [[30, 8], [24, 30], [9, 32]], "{set}");
        for spot in found {
            assert!((spot.score / 2000.0 - 1.0).abs() < 0.02, "{set}: {spot:?}");
        }
    }
    // Without the map the hot pixel is a spot.
    let plain = spots.find_with(&contrast(Threshold::Noise(6.0)), &Camera::ideal(), InstructionSet::detect());
    assert!(places(&plain).contains(&[8, 20]));
}

#[test]
fn cut_boxes_hold_the_frames_own_values_and_fit_to_the_truth() {
    let (width, height) = (60, 40);
    let truth = [[14.3, 2.2], [40.4, 20.4], [57.9, 37.1]];
    let mut scene = Scene::new(width, height, 20.0);
    for [x, y] in truth {
        scene = scene.with(x, y, 50_000.0);
    }
    let frame: Vec<u16> = scene.pixels.iter().map(|pixel| pixel.round() as u16).collect();
    let mut finder =
        SpotFinder::new(&contrast(Threshold::Noise(10.0)), &Camera::ideal(), width, height).unwrap();
    let mut rois = RoiBuffer::new(7).unwrap();
    for number in [4, 9] {
        let spots = finder.find(Adu::U16(&frame)).unwrap();
        rois.cut(Adu::U16(&frame), width, number, spots).unwrap();
    }
    assert_eq!(rois.frames(), [4, 4, 4, 9, 9, 9]);
    let [x, y] = rois.corners()[1].map(|corner| corner as usize);
    let bytes = rois.to_le_bytes();
    for (i, pixel) in bytes.as_chunks::<2>().0[49..98].iter().enumerate() {
        assert_eq!(u16::from_le_bytes(*pixel), frame[(y + i / 7) * width + x + i % 7]);
    }
    let model = FitModel::new(Psf::Xynb { sigma_px: [SIGMA; 2] }, [0.1, 0.1]).unwrap();
    let mut fits = vec![SpotFit::default(); rois.len()];
    fit(InstructionSet::detect(), &model, &Camera::ideal(), rois.rois(), &mut fits).unwrap();
    for (i, fit) in fits.iter().enumerate() {
        let corner = rois.corners()[i];
        let [x, y] = [fit.theta[0] + corner[0] as f32, fit.theta[1] + corner[1] as f32];
        let [true_x, true_y] = truth[i % 3].map(|place| place as f32);
        assert!((x - true_x).abs() < 5e-3 && (y - true_y).abs() < 5e-3, "{x} {y} for {:?}", truth[i % 3]);
    }
    rois.clear();
    assert!(rois.is_empty() && rois.rois().is_empty());
}

#[test]
fn cuts_that_cannot_be_are_errors_and_append_nothing() {
    let mut rois = RoiBuffer::new(7).unwrap();
    assert_eq!(rois.rois().len(), 0);
    let spot = |x, y| Spot { corner: [x, y], ..Spot::default() };
    rois.cut(Adu::U16(&[0; 100]), 10, 0, &[spot(3, 3)]).unwrap();
    let error = |rois: &mut RoiBuffer, frame: Adu<'_>, width, spot: Spot| {
        let error = rois.cut(frame, width, 0, &[spot]).unwrap_err().to_string();
        assert_eq!(rois.len(), 1);
        error
    };
    let outside = error(&mut rois, Adu::U16(&[0; 100]), 10, spot(4, 3));
    assert_eq!(outside, "spots: a box of 7 x 7 at x = 4, y = 3 does not lie in a frame of 10 x 10 pixels");
    error(&mut rois, Adu::U16(&[0; 100]), 10, spot(u32::MAX, 3));
    error(&mut rois, Adu::U16(&[]), 0, spot(0, 0));
    let mixed = error(&mut rois, Adu::F32(&[0.0; 100]), 10, spot(3, 3));
    assert_eq!(mixed, "frame: u16 and f32 frames do not go together");
    assert!(RoiBuffer::new(8).is_err() && RoiBuffer::new(23).is_err());
    let one = Rois::new(Adu::U16(&[0; 49]), 7, None).unwrap();
    assert_eq!(one.len(), rois.rois().len());
}

#[test]
fn frames_as_small_as_a_box_and_widths_as_large_as_can_be_work() {
    for (width, height) in [(3, 3), (3, 50), (50, 3), (4, 7)] {
        let method = Method::Contrast {
            sigma_px: [*SIGMA_PX.end(), *SIGMA_PX.start()],
            wide: *WIDE.end(),
            threshold: Threshold::Noise(3.0),
            radius: *RADIUS.end(),
        };
        let options = FinderOptions { method, box_side: 3, border: Border::Shift, spots_max: 10 };
        let scene = Scene::new(width, height, 4.0).set(1, 1, 500.0);
        assert!(scene.find(&options).len() <= 1);
    }
    let options = FinderOptions { box_side: 21, ..net_gradient(10.0) };
    let scene = Scene::new(23, 23, 4.0).with(11.0, 11.0, 900.0);
    assert_eq!(places(&scene.find(&options)), [[11, 11]]);
}

/// Checks the noise that scores are multiples of, in frames of 22 x 20 pixels, at corners, at edges and in between. The expected
/// variance is the sum over pixels of the pixel's squared weight in the contrast times the pixel's variance.
fn check_the_unit_of_noise(what: &str, variance: impl Fn(usize) -> f32, camera: &Camera) {
    const BACKGROUND: f32 = 1000.0;
    let (width, height) = (22, 20);
    let sigma_px = [1.3, 0.9];
    let method = Method::Contrast { sigma_px, wide: 2.0, threshold: Threshold::Noise(0.01), radius: 3 };
    let options = FinderOptions { method, ..contrast(Threshold::Noise(0.01)) };
    let mut finder = SpotFinder::new(&options, camera, width, height).unwrap();
    let mut with = |pixel: usize, more: f32| {
        let mut frame = vec![BACKGROUND; width * height];
        frame[pixel] += more;
        finder.find(Adu::F32(&frame)).unwrap();
        let strongest = finder.spots().iter().max_by(|a, b| a.score.total_cmp(&b.score)).copied();
        (finder.contrast(), strongest)
    };
    let responses: Vec<Vec<f32>> = (0..width * height).map(|pixel| with(pixel, 1e6).0).collect();
    let [mut worst, mut met] = [0f64; 2];
    for pixel in 0..width * height {
        let (contrast, spot) = with(pixel, 40.0);
        let spot = spot.unwrap();
        let at = spot.y as usize * width + spot.x as usize;
        let of_pixel = |(i, response): (usize, &Vec<f32>)| {
            (f64::from(response[at]) / 1e6).powi(2) * f64::from(BACKGROUND + variance(i))
        };
        let noise = responses.iter().enumerate().map(of_pixel).sum::<f64>().sqrt();
        let off = f64::from(contrast[at] / spot.score) / noise - 1.0;
        met += f64::from(u8::from(at == pixel));
        worst = worst.max(off.abs());
    }
    println!("{what}: off by {worst:.1e}, at {met} of {} pixels", width * height);
    assert!(met > 0.8 * (width * height) as f64, "{what}: {met}");
    // The added value of the probed pixel makes the background 0.6 % higher.
    assert!(worst < 0.01, "{what}: {worst}");
}

#[test]
fn the_unit_of_noise_is_that_of_the_contrast_at_edges_and_in_corners_too() {
    let [zero, one] = [CameraValue::Scalar(0.0), CameraValue::Scalar(1.0)];
    check_the_unit_of_noise("ideal", |_| 0.0, &Camera::ideal());
    let camera = Camera::new(&zero, &one, &CameraValue::Scalar(20.0)).unwrap();
    check_the_unit_of_noise("uniform", |_| 400.0, &camera);
    let camera = Camera::new(&zero, &one, &map(22, 20, |_, _| 20.0)).unwrap();
    check_the_unit_of_noise("maps of equal pixels", |_| 400.0, &camera);
    let noise = |x: usize, y: usize| 20.0 + ((7 * x + 13 * y) % 31) as f32 + if x == 0 { 60.0 } else { 0.0 };
    let camera = Camera::new(&zero, &one, &map(22, 20, noise)).unwrap();
    check_the_unit_of_noise("maps", |i| noise(i % 22, i / 22).powi(2), &camera);
}

#[test]
fn memory_counts_what_is_ready_before_the_first_frame_too() {
    let bytes =
        |threshold, camera: &Camera| SpotFinder::new(&contrast(threshold), camera, 200, 100).unwrap().bytes();
    let pixels = 200 * 100 * size_of::<f32>();
    let ideal = Camera::ideal();
    let photons = bytes(Threshold::Photons(100.0), &ideal);
    let noise = bytes(Threshold::Noise(5.0), &ideal);
    assert!(noise >= photons + pixels, "{noise} {photons}");
    let [zero, one] = [CameraValue::Scalar(0.0), CameraValue::Scalar(1.0)];
    let camera = Camera::new(&zero, &one, &map(200, 100, |x, _| 1.0 + (x % 3) as f32)).unwrap();
    // Gain, bias, weights, the scales of both means, and the parts of the noise.
    assert!(bytes(Threshold::Noise(5.0), &camera) >= noise + 7 * pixels);
}

#[test]
fn what_cannot_be_looked_for_is_an_error_that_names_it() {
    let check = |options: FinderOptions, width, height, expected: &str| {
        let error = SpotFinder::new(&options, &Camera::ideal(), width, height).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    let good = contrast(Threshold::Photons(100.0));
    check(good, 6, 40, "frame: 6 x 40 pixels are smaller than the box of 7 x 7");
    check(good, 1 << 20, 1 << 20, "frame: 1048576 x 1048576 pixels are more than 67108864");
    check(FinderOptions { box_side: 8, ..good }, 40, 40, "box_px: 8 is not an odd number between 3 and 21");
    check(FinderOptions { spots_max: 0, ..good }, 40, 40, "spots_max: 0 leaves no spot: allow at least 1");
    check(
        net_gradient(5.0),
        8,
        40,
        "frame: 8 x 40 pixels hold no box of 7 x 7 with the gradients at its edges: that takes 9 x 9",
    );
    check(net_gradient(f32::NAN), 40, 40, "gradient_min: NaN is not above 0 and up to 1000000000");
    check(contrast(Threshold::Photons(0.0)), 40, 40, "photons_min: 0 is not above 0 and up to 1000000000");
    check(
        contrast(Threshold::Noise(f32::INFINITY)),
        40,
        40,
        "noise_min: inf is not above 0 and up to 1000000000",
    );
    let with = |sigma_px, wide, radius| {
        let method = Method::Contrast { sigma_px, wide, threshold: Threshold::Noise(4.0), radius };
        FinderOptions { method, ..good }
    };
    check(with([1.0, 6.0], 2.0, 3), 40, 40, "sigma_px: 6 is not between 0.3 and 5");
    check(with([1.0, 1.0], 1.0, 3), 40, 40, "wide: 1 is not between 1.25 and 3");
    check(with([1.0, 1.0], 2.0, 17), 40, 40, "radius_px: 17 is not between 1 and 16");

    let ones = map(30, 20, |_, _| 1.0);
    let camera = Camera::new(&CameraValue::Scalar(0.0), &ones, &CameraValue::Scalar(0.0)).unwrap();
    let error = SpotFinder::new(&good, &camera, 20, 30).unwrap_err().to_string();
    assert_eq!(error, "frame: 20 x 30 pixels, but the camera's maps are 30 x 20");
    let least = FinderOptions { box_side: 3, ..contrast(Threshold::Noise(5.0)) };
    let error = SpotFinder::new(&least, &camera, 30, 19).unwrap_err().to_string();
    assert!(error.ends_with(
        "maps are 30 x 20: give corner_px, the column and the row of the maps in which the frames begin"
    ));
    let mut finder = SpotFinder::new(&good, &camera, 30, 20).unwrap();
    let error = finder.find(Adu::U16(&[0; 599])).unwrap_err().to_string();
    assert_eq!(error, "frame: 599 values are not one of 30 x 20 pixels");
}
