//! The parameters of launching the fitter on a device: names, sizes and arguments. Launching is not done here.

use super::{
    super::{Camera, FitModel, Psf},
    FitCall, setup,
};

/// Addresses on the device.
#[derive(Debug, Clone, Copy)]
pub struct FitAddresses {
    /// The values of the ROIs, `[n, side, side]`; aligned to 16 bytes.
    pub rois: u64,
    /// Corners, `[n, 2]` of `u32`, and the three maps of the camera, `[height, width]` of `f32`; or none of them.
    pub maps: Option<MapAddresses>,
    /// Room for the rows of [`Columns`](super::Columns), `[n, columns]` of `f32`.
    pub fits: u64,
    /// Room for the codes, `[n, 2]` of `u8`.
    pub codes: u64,
}

/// Addresses on the device of a camera's maps, and of the corners of ROIs.
#[derive(Debug, Clone, Copy)]
pub struct MapAddresses {
    /// x and y of each ROI's first pixel.
    pub corners: u64,
    /// The first of [`Camera::map_values`].
    pub gain: u64,
    /// The second.
    pub bias: u64,
    /// The third.
    pub variance: u64,
}

/// `FitRound` of `kernels/gauss_mle.cu`: addresses on the device, 0 for none.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
pub struct FitRound {
    /// Fits to continue, `[state_words, places]` of `u32`; none in the first round.
    pub begun: u64,
    /// Their number, `u64`. In the first round the number of ROIs; none if the call states it.
    pub begun_count: u64,
    /// Room for fits that are not done after this round, like `begun`; none in the last round.
    pub unfinished: u64,
    /// Their number, `u64`; 0 before the round. It may exceed `places`: the excess fits are completed in this round.
    pub unfinished_count: u64,
    /// Fits that `begun` and `unfinished` have room for.
    pub places: u64,
    /// Evaluations that a fit gets in this round, at least 1.
    pub evaluations: u32,
    /// ROIs that a block shares: [`FitLaunch::tile`].
    pub tile: u32,
}

/// Evaluations that a fit gets in each round; one more round, without a limit, follows.
pub const ROUNDS: [u32; 2] = [6, 10];

/// How a round is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FitLaunch {
    /// The PTX file in `kernels/generated` that has the kernel: one for each model.
    pub module: &'static str,
    /// The kernel.
    pub kernel: &'static str,
    /// Threads of a block.
    pub threads: u32,
    /// ROIs that a block shares.
    pub tile: u32,
    /// Shared memory of a block, bytes. More than 48 KiB must be enabled for the kernel, once.
    pub shared_bytes: u32,
}

/// Shared memory of a device, in bytes, from its attributes.
#[derive(Debug, Clone, Copy)]
pub struct SharedMemory {
    /// One block, opted in: 64 KiB (less 1 from sm_80 on) or more.
    pub block_max: u32,
    /// All blocks on one multiprocessor together.
    pub multiprocessor: u32,
}

/// The most shared memory that the compiler uses besides, and that CUDA reserves per block.
const RESERVED_BYTES: u32 = 2048;

impl FitLaunch {
    /// The launch for ROIs of `side` pixels, `f32` if `wide`, else `u16`; `maps`: with a camera's maps.
    pub fn new(psf: &Psf, wide: bool, maps: bool, side: usize, memory: SharedMemory) -> FitLaunch {
        let (module, kernels): (_, [&'static str; 4]) = match psf {
            Psf::Xynb { .. } => {
                ("gauss_mle_xynb", ["fit_xynb_u16", "fit_xynb_u16_maps", "fit_xynb_f32", "fit_xynb_f32_maps"])
            }
            Psf::Xynbs { .. } => (
                "gauss_mle_xynbs",
                ["fit_xynbs_u16", "fit_xynbs_u16_maps", "fit_xynbs_f32", "fit_xynbs_f32_maps"],
            ),
            Psf::Xynbsxsy { .. } => (
                "gauss_mle_xynbsxsy",
                ["fit_xynbsxsy_u16", "fit_xynbsxsy_u16_maps", "fit_xynbsxsy_f32", "fit_xynbsxsy_f32_maps"],
            ),
            Psf::Xyznb(_) => (
                "gauss_mle_xyznb",
                ["fit_xyznb_u16", "fit_xyznb_u16_maps", "fit_xyznb_f32", "fit_xyznb_f32_maps"],
            ),
        };
        let kernel = kernels[2 * usize::from(wide) + usize::from(maps)];
        let side = side as u32;
        let factors = if matches!(psf, Psf::Xynb { .. }) { 2 } else { 3 };
        let shared = |tile: u32| {
            let data = tile * side * side * if wide || maps { 4 } else { 2 };
            let variance = if maps { tile * side * side * 4 } else { 0 };
            data.next_multiple_of(16) + variance + tile * 4 * (2 * factors * side + 1)
        };
        // Four blocks of two warps on each multiprocessor, or more blocks of one.
        let fits = |tile| shared(tile) + RESERVED_BYTES <= memory.block_max;
        let tile = if fits(64) && 4 * (shared(64) + RESERVED_BYTES) <= memory.multiprocessor {
            64
        } else {
            [32, 24, 16].into_iter().find(|&tile| fits(tile)).unwrap_or(8)
        };
        FitLaunch { module, kernel, threads: tile.next_multiple_of(32), tile, shared_bytes: shared(tile) }
    }

    /// Blocks for `count` ROIs, if `resident` blocks are on the device at a time.
    pub fn blocks(&self, count: u64, resident: u32) -> u32 {
        count.div_ceil(u64::from(self.tile)).clamp(1, u64::from(resident.max(1))) as u32
    }
}

/// Words of a fit that is set aside between rounds, including its ROI's number: `1 + Fit::WORDS` of `kernels/fit.cuh`.
pub fn state_words(psf: &Psf) -> usize {
    let count = psf.parameter_names().len();
    let packed = count * (count + 1) / 2;
    let second_start = if matches!(psf, Psf::Xyznb(_)) { count + packed + 3 } else { 0 };
    1 + 3 * count + packed + 5 + second_start
}

impl FitCall {
    /// The fit of `count` ROIs (less than 2^32) of `side` pixels on a device. `addresses` has maps if the camera has.
    pub fn on_device(
        model: &FitModel,
        camera: &Camera,
        side: usize,
        count: u64,
        addresses: &FitAddresses,
    ) -> FitCall {
        let map = |of: fn(&MapAddresses) -> u64| addresses.maps.as_ref().map_or(0, of);
        FitCall {
            setup: setup(model, camera, side),
            rois: addresses.rois,
            corners: map(|maps| maps.corners),
            gain_map: map(|maps| maps.gain),
            bias_map: map(|maps| maps.bias),
            variance_map: map(|maps| maps.variance),
            map_width: camera.sensor().map_or(0, |(_, width)| width as u64),
            count,
            fits: addresses.fits,
            codes: addresses.codes,
        }
    }
}

#[cfg(all(test, kernels_emulated))]
mod tests;
