//! The fitter on the GPU: against the fitter on the CPU, and against spots whose place is known.

use crate::{erf::erf, number, support};
use ocelli::{
    engine::{
        DataType, Engine, Setting, Tensor, TensorView,
        cuda::gauss_mle::GaussMle,
        kernels::{Camera, FitModel, Psf},
    },
    random::Random,
};
use std::sync::Arc;

/// How far a fit may be from the CPU's, relative to values above 1: fits end when a step is below a thousandth of the standard error.
const APART_MAX: f32 = 5e-3;

/// Spots of known place: how many, side of their ROIs, width in px, photons, and background per pixel.
const SPOTS: usize = 4000;
const SIDE: usize = 7;
const WIDTH: f64 = 1.3;
const PHOTONS: f64 = 1500.0;
const BACKGROUND: f64 = 8.0;

/// Random numbers, whose seed is printed.
pub(crate) fn seeded(seed: u64) -> Random {
    println!("seed {seed}");
    Random::new(seed)
}

/// Photons where so many are expected: by counting arrivals, which is exact.
fn poisson(random: &mut Random, mean: f64) -> f64 {
    let (mut count, mut left) = (0.0, mean);
    loop {
        left += random.unit().max(f64::MIN_POSITIVE).ln();
        if left < 0.0 {
            return count;
        }
        count += 1.0;
    }
}

/// The share of a spot at `place` that pixel `j` gets, along one axis.
fn share(j: usize, place: f64) -> f64 {
    let edge = |edge: f64| erf((edge - place) / (WIDTH * 2f64.sqrt()));
    (edge(j as f64 + 0.5) - edge(j as f64 - 0.5)) / 2.0
}

/// ROIs with the noise of photons, and where their spots are.
pub(crate) fn simulated(seed: u64, count: usize, side: usize) -> (Vec<u16>, Vec<[f64; 2]>) {
    let random = &mut seeded(seed);
    let mut values = Vec::with_capacity(count * side * side);
    let mut places = Vec::with_capacity(count);
    for _ in 0..count {
        let middle = (side - 1) as f64 / 2.0;
        let place = [(); 2].map(|()| middle + random.unit() - 0.5);
        let [along_x, along_y] = place.map(|place| (0..side).map(|j| share(j, place)).collect::<Vec<f64>>());
        for down in &along_y {
            values.extend(
                along_x.iter().map(|across| poisson(random, BACKGROUND + PHOTONS * across * down) as u16),
            );
        }
        places.push(place);
    }
    (values, places)
}

/// ROIs and corners as the engines take them.
pub(crate) fn tensors(values: &[u16], side: usize) -> Vec<Tensor> {
    let count = values.len() / side / side;
    vec![
        Tensor {
            datatype: DataType::Uint16,
            shape: vec![count, side, side],
            data: bytemuck::cast_slice(values).to_vec().into(),
        },
        Tensor { datatype: DataType::Uint32, shape: vec![count, 2], data: vec![0; 8 * count].into() },
    ]
}

/// A spot of known width, of an ideal camera.
pub(crate) fn known_width() -> Setting {
    let model = FitModel::new(Psf::Xynb { sigma_px: [WIDTH as f32; 2] }, [0.1, 0.1]).unwrap();
    Setting::new(model, Arc::new(Camera::ideal()))
}

pub(crate) fn run(engine: &mut dyn Engine, inputs: &[Tensor], setting: &Setting) -> Vec<Tensor> {
    let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
    engine.run(&views, Some(setting)).unwrap()
}

pub(crate) fn against_the_host_and_truth() {
    let mut engine = GaussMle::new(&support::open(0)).unwrap();
    let mut worst = 0f32;
    for psf in support::psfs() {
        for camera in [Arc::new(Camera::ideal()), support::camera_with_maps()] {
            for wide in [false, true] {
                let inputs = support::batch(7, 200, wide);
                let setting = support::setting(psf, &camera);
                let got = support::read(&run(&mut engine, &inputs, &setting));
                let expected = support::on_cpu(&inputs, &setting);
                let what = format!("{} maps {} f32 {wide}", psf.name(), camera.sensor().is_some());
                worst = worst.max(apart(&what, &got, &expected));
            }
        }
    }
    number("fit_apart", f64::from(worst));

    // Errors of a fit that attains the bound, in units of what it says they are, have a root mean square of 1.
    let (values, places) = simulated(11, SPOTS, SIDE);
    let (rows, _) = support::read(&run(&mut engine, &tensors(&values, SIDE), &known_width()));
    let columns = rows.len() / SPOTS;
    let squares: f64 = rows
        .chunks_exact(columns)
        .zip(&places)
        .flat_map(|(row, place)| {
            [0, 1].map(|axis| (f64::from(row[axis]) - place[axis]) / f64::from(row[4 + axis]))
        })
        .map(|off| off * off)
        .sum();
    let spread = (squares / (2 * SPOTS) as f64).sqrt();
    number("fit_error_over_bound", spread);
    assert!((0.95..1.05).contains(&spread), "errors are {spread} of what the fit says they are");
}

/// The largest difference, relative to the value where that is above 1.
fn apart(what: &str, got: &(Vec<f32>, Vec<u8>), expected: &(Vec<f32>, Vec<u8>)) -> f32 {
    assert_eq!(got.0.len(), expected.0.len(), "{what}");
    let status = |codes: &[u8]| codes.iter().skip(1).step_by(2).copied().collect::<Vec<u8>>();
    assert_eq!(status(&got.1), status(&expected.1), "{what}: how the fits ended");
    let off =
        |(a, b): (&f32, &f32)| if a.is_nan() && b.is_nan() { 0.0 } else { (a - b).abs() / b.abs().max(1.0) };
    let worst =
        got.0.iter().zip(&expected.0).map(off).fold(0.0, |worst, off| if off <= worst { worst } else { off });
    println!("{what}: {worst:.1e} apart");
    assert!(worst <= APART_MAX, "{what}: {worst} apart, more than {APART_MAX}");
    worst
}
