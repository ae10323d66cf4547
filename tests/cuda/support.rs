//! ROIs to fit, and the engines that fit them.

#[path = "../../src/worse.rs"]
mod worse;

use ocelli::engine::{
    DataType, Engine, Setting, Tensor, TensorView,
    cuda::{self, Context},
    gauss_mle,
    kernels::{Astigmatism, Camera, CameraValue, FitModel, Psf, SensorMap},
    staging::Blocks,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use worse::worse;

/// Side of the ROIs, px.
pub(crate) const SIDE: usize = 7;
/// Side of the sensor of [`camera_with_maps`], px.
const SENSOR: usize = 40;

/// The context of a GPU that the driver shows.
pub(crate) fn open(ordinal: usize) -> Arc<Context> {
    Context::open(&cuda::probe().unwrap().gpus[ordinal]).unwrap()
}

/// Numbers that look random and are the same every time.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// From 0 to 1.
    pub(crate) fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }
}

/// Pixels as a camera gives them: 16 bits, or floats where `wide`.
pub(crate) fn samples(values: &[u16], wide: bool) -> (DataType, Vec<u8>) {
    if wide {
        let values: Vec<f32> = values.iter().map(|value| f32::from(*value)).collect();
        (DataType::Fp32, bytemuck::cast_slice(&values).to_vec())
    } else {
        (DataType::Uint16, bytemuck::cast_slice(values).to_vec())
    }
}

/// `count` spots with noise as a camera gives them, and where they lie on the sensor: rois and corners.
pub(crate) fn batch(seed: u64, count: usize, wide: bool) -> Vec<Tensor> {
    let random = &mut Random(seed);
    let mut values = Vec::with_capacity(count * SIDE * SIDE);
    for _ in 0..count {
        let centre = [2.5 + random.next(), 2.5 + random.next()];
        let (photons, width) = (300.0 + 2000.0 * random.next(), 1.1 + 0.4 * random.next());
        for y in 0..SIDE {
            for x in 0..SIDE {
                let (dx, dy) = (x as f32 - centre[0], y as f32 - centre[1]);
                let spot = (-(dx * dx + dy * dy) / (2.0 * width * width)).exp()
                    / (std::f32::consts::TAU * width * width);
                let mean = 10.0 + photons * spot;
                // Four of them make something like a bell.
                let noise = (0..4).map(|_| random.next() - 0.5).sum::<f32>() * 1.7 * mean.sqrt();
                values.push((mean + noise).max(0.0).round() as u16);
            }
        }
    }
    let corners: Vec<u32> = (0..2 * count).map(|_| (random.next() * (SENSOR - SIDE) as f32) as u32).collect();
    let (datatype, data) = samples(&values, wide);
    vec![
        Tensor { datatype, shape: vec![count, SIDE, SIDE], data: data.into() },
        Tensor {
            datatype: DataType::Uint32,
            shape: vec![count, 2],
            data: bytemuck::cast_slice(&corners).to_vec().into(),
        },
    ]
}

/// A camera whose pixels differ.
pub(crate) fn camera_with_maps() -> Arc<Camera> {
    let random = &mut Random(99);
    let mut map = |low: f32, high: f32| {
        let values = (0..SENSOR * SENSOR).map(|_| low + (high - low) * random.next()).collect();
        CameraValue::Map(SensorMap { height: SENSOR, width: SENSOR, values })
    };
    let (offset, gain) = (map(0.0, 2.0), map(0.8, 1.2));
    Arc::new(Camera::new(&offset, &gain, &map(0.5, 2.0)).unwrap())
}

/// What is fitted, of every kind.
pub(crate) fn psfs() -> [Psf; 4] {
    let astigmatism = Astigmatism {
        sigma_px: [1.2, 1.3],
        a: [0.05, -0.03],
        b: [0.1, 0.05],
        gamma_um: 0.25,
        depth_um: 0.4,
        z_um: [-1.0, 1.0],
    };
    [
        Psf::Xynb { sigma_px: [1.3; 2] },
        Psf::Xynbs { sigma_start_px: 1.3 },
        Psf::Xynbsxsy { sigma_start_px: [1.3; 2] },
        Psf::Xyznb(astigmatism),
    ]
}

/// What a batch asks for.
pub(crate) fn setting(psf: Psf, camera: &Arc<Camera>) -> Setting {
    Setting::new(FitModel::new(psf, [1.0; 2]).unwrap(), Arc::clone(camera))
}

/// Spots of known width, of an ideal camera.
pub(crate) fn plain() -> Setting {
    setting(psfs()[0], &Arc::new(Camera::ideal()))
}

/// The inputs of a batch as a worker hands them to an engine.
pub(crate) fn staged(engine: &dyn Engine, inputs: &[Tensor]) -> Vec<Tensor> {
    let blocks = Blocks::new(engine.memory());
    inputs.iter().map(|input| blocks.assemble(&[input], input.shape[0], false, None)).collect()
}

/// What the CPU makes of it: the rows and the codes.
pub(crate) fn on_cpu(inputs: &[Tensor], setting: &Setting) -> (Vec<f32>, Vec<u8>) {
    let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
    read(&gauss_mle::GaussMle::new(1).unwrap().run(&views, Some(setting)).unwrap())
}

/// The rows and the codes.
pub(crate) fn read(outputs: &[Tensor]) -> (Vec<f32>, Vec<u8>) {
    (outputs[0].to_f32().unwrap(), outputs[1].data.to_vec())
}

/// Waits until something holds: the bound is for a test that would hang.
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    const PATIENCE: Duration = Duration::from_secs(300);
    let patience = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < patience, "not within {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}
