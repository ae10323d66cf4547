//! Fits one Gaussian spot per ROI by Poisson maximum likelihood: the launcher of `kernels/gauss_mle.cu`.
//! [`device`] has the parameters of a launch on a device.

pub mod device;

use std::{
    mem::MaybeUninit,
    ops::{Range, RangeInclusive},
};

use super::{Camera, FitModel, InstructionSet, Invalid, Psf, SIGMA_PX, entry};

/// Allowed sides of a ROI, px; odd ones only.
pub const SIDE: RangeInclusive<usize> = 3..=21;

/// The values of ROIs, `[n, side, side]`, row-major, in ADU.
#[derive(Debug, Clone, Copy)]
pub enum Adu<'a> {
    /// As cameras deliver them.
    U16(&'a [u16]),
    /// Any other values. A value that is not finite, or beyond 10⁹ photo-electrons, makes its fit [`FitStatus::BadInput`].
    F32(&'a [f32]),
}

impl Adu<'_> {
    pub(in crate::engine) fn len(&self) -> usize {
        match self {
            Adu::U16(values) => values.len(),
            Adu::F32(values) => values.len(),
        }
    }

    /// The address of the values, for a kernel, and its flag `wide`: 1 for `f32`.
    pub(super) fn address(&self) -> (u64, i32) {
        match self {
            Adu::U16(values) => (values.as_ptr() as u64, 0),
            Adu::F32(values) => (values.as_ptr() as u64, 1),
        }
    }
}

/// Checks the side of a ROI or a box.
///
/// # Errors
/// If it is even or out of [`SIDE`]; names the field at fault.
pub(super) fn odd_side(field: &'static str, side: usize) -> Result<(), Invalid> {
    if SIDE.contains(&side) && !side.is_multiple_of(2) {
        return Ok(());
    }
    let (low, high) = (SIDE.start(), SIDE.end());
    Err(Invalid::new(field, format!("{side} is not an odd number between {low} and {high}")))
}

/// ROIs to fit, checked to be complete.
#[derive(Debug, Clone, Copy)]
pub struct Rois<'a> {
    adu: Adu<'a>,
    side: usize,
    corners: Option<&'a [[u32; 2]]>,
}

impl<'a> Rois<'a> {
    /// ROIs of `side` by `side` pixels. `corners` are x and y of each ROI's first pixel on the sensor, which a camera
    /// with maps needs.
    ///
    /// # Errors
    /// If the side is even or out of [`SIDE`], the values are not a whole number of ROIs, or there is not one corner for each.
    pub fn new(adu: Adu<'a>, side: usize, corners: Option<&'a [[u32; 2]]>) -> Result<Rois<'a>, Invalid> {
        odd_side("box", side)?;
        let pixels = side * side;
        if !adu.len().is_multiple_of(pixels) {
            let why = format!("{} values do not make whole ROIs of {side} x {side} pixels", adu.len());
            return Err(Invalid::new("rois", why));
        }
        let count = adu.len() / pixels;
        if let Some(corners) = corners
            && corners.len() != count
        {
            return Err(Invalid::new("corners", format!("{} for {count} ROIs", corners.len())));
        }
        Ok(Rois { adu, side, corners })
    }

    /// Their values.
    pub(in crate::engine) fn adu(&self) -> Adu<'a> {
        self.adu
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.adu.len() / (self.side * self.side)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pixels along each edge.
    pub fn side(&self) -> usize {
        self.side
    }

    /// A part of the ROIs, for one of several threads. Panics if `range` exceeds them.
    pub fn part(&self, range: Range<usize>) -> Rois<'a> {
        let pixels = self.side * self.side;
        let values = range.start * pixels..range.end * pixels;
        let adu = match self.adu {
            Adu::U16(all) => Adu::U16(&all[values]),
            Adu::F32(all) => Adu::F32(&all[values]),
        };
        Rois { adu, side: self.side, corners: self.corners.map(|corners| &corners[range]) }
    }
}

/// How a fit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FitStatus {
    /// At the maximum of the likelihood.
    Converged = 0,
    /// Not converged after the allowed number of evaluations; the result is the best so far.
    IterationLimit = 1,
    /// At the maximum within the bounds of the parameters, with one of them at its bound.
    AtBound = 2,
    /// The data do not determine all parameters: standard errors are NaN.
    Singular = 3,
    /// A pixel is not a number, or beyond any camera's range: all values are NaN.
    BadInput = 4,
}

impl FitStatus {
    /// All statuses, in the order of their codes.
    pub const ALL: [FitStatus; 5] = [
        FitStatus::Converged,
        FitStatus::IterationLimit,
        FitStatus::AtBound,
        FitStatus::Singular,
        FitStatus::BadInput,
    ];

    /// The status of a code.
    pub fn from_code(code: u8) -> Option<FitStatus> {
        FitStatus::ALL.get(usize::from(code)).copied()
    }

    /// The name in replies.
    pub fn name(self) -> &'static str {
        match self {
            FitStatus::Converged => "converged",
            FitStatus::IterationLimit => "iteration_limit",
            FitStatus::AtBound => "at_bound",
            FitStatus::Singular => "singular",
            FitStatus::BadInput => "bad_input",
        }
    }
}

/// The columns of a row of results: the parameters in the order of [`Psf::parameter_names`], their standard errors in the same
/// order, the covariances (xy, and with z also xz and yz), the log-likelihood ratio and the p-value. `FitRow` of
/// `kernels/gauss_mle.cu` has the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// How many parameters there are.
    pub parameters: usize,
    /// How many covariances.
    pub covariances: usize,
}

impl Columns {
    /// The columns of a model.
    pub fn of(psf: &Psf) -> Columns {
        Columns {
            parameters: psf.parameter_names().len(),
            covariances: if matches!(psf, Psf::Xyznb(_)) { 3 } else { 1 },
        }
    }

    /// Columns in all.
    pub fn count(self) -> usize {
        2 * self.parameters + self.covariances + 2
    }
}

/// The result for one ROI. Positions are in px from the centre of the ROI's first pixel, z in µm, photons and background (per
/// pixel) in photo-electrons, widths in px.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SpotFit {
    /// Parameters in the order of [`Psf::parameter_names`]; the rest is 0.
    pub theta: [f32; 6],
    /// Their standard deviations by the Cramér-Rao bound.
    pub errors: [f32; 6],
    /// Covariances xy, xz and yz; those with z are 0 without z.
    pub covariance: [f32; 3],
    /// Logarithm of the likelihood relative to a model that explains every pixel: 0 or less.
    pub log_likelihood_ratio: f32,
    /// Probability that data from a perfect model would fit as badly as these.
    pub p_value: f32,
    /// Evaluations of the model.
    pub iterations: u8,
    status: u8,
}

impl SpotFit {
    /// How the fit ended.
    pub fn status(&self) -> FitStatus {
        FitStatus::from_code(self.status).unwrap_or(FitStatus::BadInput)
    }

    /// The result in a row and its codes.
    fn of(columns: Columns, row: &[f32], [iterations, status]: [u8; 2]) -> SpotFit {
        let (theta, rest) = row.split_at(columns.parameters);
        let (errors, rest) = rest.split_at(columns.parameters);
        let (covariance, rest) = rest.split_at(columns.covariances);
        let mut fit = SpotFit {
            log_likelihood_ratio: rest[0],
            p_value: rest[1],
            iterations,
            status,
            ..SpotFit::default()
        };
        fit.theta[..theta.len()].copy_from_slice(theta);
        fit.errors[..errors.len()].copy_from_slice(errors);
        fit.covariance[..covariance.len()].copy_from_slice(covariance);
        fit
    }
}

/// `Defocus` of `kernels/psf.cuh`.
#[derive(Debug, Clone, Copy, Default, bytemuck::NoUninit)]
#[repr(C)]
struct Defocus {
    focus: f32,
    shift: f32,
    depth: f32,
    a: f32,
    b: f32,
}

/// `FitSetup` of `kernels/likelihood.cuh`.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct FitSetup {
    side: i32,
    evaluations_max: i32,
    gain: f32,
    bias: f32,
    variance: f32,
    sigma_x: f32,
    sigma_y: f32,
    sigma_min: f32,
    sigma_max: f32,
    z_min: f32,
    z_max: f32,
    defocus_x: Defocus,
    defocus_y: Defocus,
    unused: u32,
}

/// `FitCall` of `kernels/gauss_mle.cu`. Its addresses are on the host or on the device, depending on where it is used; 0 for none.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
pub struct FitCall {
    setup: FitSetup,
    rois: u64,
    corners: u64,
    gain_map: u64,
    bias_map: u64,
    variance_map: u64,
    map_width: u64,
    count: u64,
    fits: u64,
    codes: u64,
}

entry!(
    host_fit,
    (call: *const FitCall, model: i32, wide: i32),
    ocelli_fit_baseline,
    ocelli_fit_avx2,
    ocelli_fit_avx512
);

/// Fits all `rois` on the calling thread, to one of `fits` each.
///
/// # Errors
/// As for [`fit_rows`].
///
/// # Panics
/// If `fits` is not as long as `rois`.
pub fn fit(
    set: InstructionSet,
    model: &FitModel,
    camera: &Camera,
    rois: Rois<'_>,
    fits: &mut [SpotFit],
) -> Result<(), Invalid> {
    assert_eq!(fits.len(), rois.len(), "one place for each ROI");
    let columns = Columns::of(model.psf());
    let (rows, codes) = fit_all(set, model, camera, rois)?;
    let rows = rows.chunks_exact(columns.count()).zip(codes);
    fits.iter_mut().zip(rows).for_each(|(fit, (row, codes))| *fit = SpotFit::of(columns, row, codes));
    Ok(())
}

/// Fits all `rois` on the calling thread, as [`fit_rows`]: rows and codes.
///
/// # Errors
/// As there.
pub fn fit_all(
    set: InstructionSet,
    model: &FitModel,
    camera: &Camera,
    rois: Rois<'_>,
) -> Result<(Vec<f32>, Vec<[u8; 2]>), Invalid> {
    let count = rois.len() * Columns::of(model.psf()).count();
    let (mut rows, mut codes) = (Vec::with_capacity(count), vec![[0; 2]; rois.len()]);
    fit_rows(set, model, camera, rois, &mut rows.spare_capacity_mut()[..count], &mut codes)?;
    // SAFETY: there is room for `count` values, and all of them have been written.
    #[allow(unsafe_code, reason = "zeros that nobody reads take time")]
    unsafe {
        rows.set_len(count);
    }
    Ok((rows, codes))
}

/// Fits all `rois` on the calling thread. Each gets a row of [`Columns`], and as codes the number of evaluations (at most 255) and
/// its [`FitStatus`]. When this returns without an error, all rows are filled.
///
/// # Errors
/// If the camera has maps, and ROIs have no corners or do not lie on the sensor.
///
/// # Panics
/// If there are not as many rows or codes as ROIs.
pub fn fit_rows(
    set: InstructionSet,
    model: &FitModel,
    camera: &Camera,
    rois: Rois<'_>,
    rows: &mut [MaybeUninit<f32>],
    codes: &mut [[u8; 2]],
) -> Result<(), Invalid> {
    assert_eq!(codes.len(), rois.len(), "codes for each ROI");
    assert_eq!(rows.len(), rois.len() * Columns::of(model.psf()).count(), "a row for each ROI");
    on_sensor(camera, rois)?;
    let maps = camera.maps.as_ref();
    let map = |of: fn(&super::camera::Maps) -> &Vec<f32>| maps.map_or(0, |maps| of(maps).as_ptr() as u64);
    let (pixels, wide) = rois.adu.address();
    let call = FitCall {
        setup: setup(model, camera, rois.side),
        rois: pixels,
        corners: maps.and(rois.corners).map_or(0, |corners| corners.as_ptr() as u64),
        gain_map: map(|maps| &maps.gain),
        bias_map: map(|maps| &maps.bias),
        variance_map: map(|maps| &maps.variance),
        map_width: maps.map_or(0, |maps| maps.width as u64),
        count: codes.len() as u64,
        fits: rows.as_mut_ptr() as u64,
        codes: codes.as_mut_ptr() as u64,
    };
    // SAFETY: `rois` holds count * side * side values of the kind that `wide` says, rows and codes are count (asserted);
    // side is within what the kernel's arrays hold; maps have one size, and every ROI lies on it, or there is neither
    // map nor corner; the structs are the kernel's own; the object is one that this machine can run.
    #[allow(unsafe_code, reason = "a call into C++")]
    unsafe {
        host_fit(set)(&raw const call, model.psf().number(), wide);
    }
    Ok(())
}

/// Checks that all ROIs lie on the maps of the camera, if it has any. [`fit`] checks its own ROIs. A caller that splits ROIs
/// into parts calls this first, so that the error numbers the ROI within the whole batch.
///
/// # Errors
/// If ROIs have no corners, or one does not lie on the sensor.
pub fn on_sensor(camera: &Camera, rois: Rois<'_>) -> Result<(), Invalid> {
    let Some((height, width)) = camera.sensor() else { return Ok(()) };
    let Some(corners) = rois.corners else {
        let why = "the camera has maps, so each ROI needs the x and y of its first pixel on the sensor";
        return Err(Invalid::new("corners", why.to_owned()));
    };
    let fits = |corner: u32, extent: usize| {
        usize::try_from(corner)
            .ok()
            .and_then(|corner| corner.checked_add(rois.side))
            .is_some_and(|end| end <= extent)
    };
    let outside = corners.iter().enumerate().find(|(_, [x, y])| !(fits(*x, width) && fits(*y, height)));
    if let Some((roi, [x, y])) = outside {
        let why =
            format!("ROI {roi} at x = {x}, y = {y} does not lie on the sensor of {width} x {height} pixels");
        return Err(Invalid::new("corners", why));
    }
    Ok(())
}

fn setup(model: &FitModel, camera: &Camera, side: usize) -> FitSetup {
    let psf = model.psf();
    let [sigma_x, sigma_y] = psf.sigma();
    let mut setup = FitSetup {
        side: side as i32,
        evaluations_max: model.iterations_max() as i32,
        gain: camera.uniform.gain,
        bias: camera.uniform.bias,
        variance: camera.uniform.variance,
        sigma_x,
        sigma_y,
        sigma_min: *SIGMA_PX.start(),
        sigma_max: *SIGMA_PX.end(),
        z_min: 0.0,
        z_max: 0.0,
        defocus_x: Defocus::default(),
        defocus_y: Defocus::default(),
        unused: 0,
    };
    if let Psf::Xyznb(astigmatism) = psf {
        [setup.z_min, setup.z_max] = astigmatism.z_um;
        let axis = |axis: usize, shift| Defocus {
            focus: astigmatism.sigma_px[axis],
            shift,
            depth: astigmatism.depth_um,
            a: astigmatism.a[axis],
            b: astigmatism.b[axis],
        };
        setup.defocus_x = axis(0, astigmatism.gamma_um);
        setup.defocus_y = axis(1, -astigmatism.gamma_um);
    }
    setup
}

#[cfg(test)]
mod tests;
