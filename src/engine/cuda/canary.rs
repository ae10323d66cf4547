//! A forward pass with a known answer: one spot without noise must be fitted where it was put.
//!
//! It uses a fitter of its own, with its own kernels, streams and memory, so that serving does not interfere. It detects a GPU that
//! computes wrongly as well as one that does not answer.

use super::{Context, gauss_mle::GaussMle};
use crate::engine::{
    Engine, EngineError, Setting, TensorView,
    kernels::{Camera, FitModel, Psf},
    tensor::DataType,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// Side of the ROI, px.
const SIDE: usize = 7;
/// Where the spot is, px from the ROI's corner.
const CENTRE: [f32; 2] = [3.25, 2.75];
/// The spot's width, px, and photons; the background's photons per pixel.
const SPOT: [f32; 3] = [1.25, 4000.0, 10.0];
/// How far off the answer may be, px: the kernel integrates over a pixel, but the spot here is sampled at the pixel's middle.
const OFF_MAX: f32 = 0.05;

/// The check of one context. Keeps its fitter, without memory, from one time to the next: an idle GPU is checked twice a minute, and for a
/// new fitter the driver compiles the kernels, which takes a second where it keeps nothing that it has compiled.
#[derive(Debug, Default)]
pub struct Canary(Mutex<Option<GaussMle>>);

impl Canary {
    /// Fits the spot.
    ///
    /// # Errors
    /// What the device did instead; [`EngineError::Device`] for a wrong answer.
    pub fn check(&self, context: &Arc<Context>) -> Result<(), EngineError> {
        // Not locked meanwhile: a fit may hang.
        let kept = self.0.lock().take();
        let mut fitter = match kept {
            Some(fitter) => fitter,
            None => GaussMle::new(context)?,
        };
        check(&mut fitter)?;
        fitter.free();
        *self.0.lock() = Some(fitter);
        Ok(())
    }
}

fn check(fitter: &mut GaussMle) -> Result<(), EngineError> {
    let psf = Psf::Xynb { sigma_px: [SPOT[0]; 2] };
    let model = FitModel::new(psf, [0.1, 0.1]).map_err(|invalid| EngineError::Input(invalid.to_string()))?;
    let setting = Setting::new(model, Arc::new(Camera::ideal()));
    let (roi, corner) = (spot(), [0_u32; 2]);
    let view = |datatype, shape: &[usize], data| TensorView { datatype, shape: shape.to_vec(), data };
    let inputs = [
        view(DataType::Fp32, &[1, SIDE, SIDE], bytemuck::cast_slice(&roi)),
        view(DataType::Uint32, &[1, 2], bytemuck::cast_slice(&corner)),
    ];
    let outputs = fitter.run(&inputs, Some(&setting))?;
    let fit = outputs[0].to_f32().unwrap_or_default();
    let off = |axis: usize| fit.get(axis).map_or(f32::NAN, |found| (found - CENTRE[axis]).abs());
    // Also false for NaN.
    if off(0) < OFF_MAX && off(1) < OFF_MAX {
        return Ok(());
    }
    Err(EngineError::Device(format!(
        "a spot at {CENTRE:?} px was fitted at {:?}: the device computes wrongly",
        fit.get(..2).unwrap_or_default()
    )))
}

fn spot() -> Vec<f32> {
    let [width, photons, background] = SPOT;
    let value = |index: usize| {
        let (dx, dy) = ((index % SIDE) as f32 - CENTRE[0], (index / SIDE) as f32 - CENTRE[1]);
        let density =
            (-(dx * dx + dy * dy) / (2.0 * width * width)).exp() / (std::f32::consts::TAU * width * width);
        background + photons * density
    };
    (0..SIDE * SIDE).map(value).collect()
}
