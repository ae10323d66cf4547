//! The parameters of launching the finder on a device: the data there, and the argument. Launching is not done here.

use super::{
    SpotFinder,
    plan::{SpotCall, Work},
    plane::{Plane, PlaneLayout},
};

/// The byte with which memory for the contrast is filled: as a float this is -1.7e38, lower than any contrast.
pub const LOWEST: u8 = 0xfe;

/// Threads of a block of all launches except those that cut boxes.
pub const THREADS: [u32; 3] = [32, 4, 1];

/// Threads of a block that cuts boxes.
pub const CUT_THREADS: u32 = 64;

/// The number of constants that a finder copies to the device once, in the order in which [`SpotFinder::on_device`] takes their
/// addresses: gain, bias, scale of the narrow and of the wide mean, weights of pixels, shot, readout, spread, power, and the weights of
/// the net gradient. A constant that it does not need is empty.
pub const CONSTANTS: usize = super::plan::CONSTANTS;

/// Addresses on the device, each of the first byte of an allocation.
#[derive(Debug, Clone, Copy)]
pub struct SpotAddresses {
    /// The frames, `[frames, height, width]` of `u16` or `f32`.
    pub frame: u64,
    /// The [`SpotFinder::constants`]; 0 for an empty one.
    pub constants: [u64; CONSTANTS],
    /// Working planes, [`SpotFinder::plane_values`] for each frame: electrons, narrow and wide mean, contrast, noise. All
    /// values of the contrast must be -1e38 or less before the first launch.
    pub work: [u64; 5],
    /// Room for [`Spot`](super::Spot)s.
    pub spots: u64,
    /// For how many.
    pub spots_max: u64,
    /// A `u64`, 0 before: how many spots were found, even if there is no room for them.
    pub count: u64,
}

/// `SpotCut` of `kernels/spots.cu`: addresses on the device.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
pub struct SpotCut {
    /// As in [`SpotAddresses`].
    pub frame: u64,
    /// As in [`SpotAddresses`].
    pub spots: u64,
    /// As in [`SpotAddresses`].
    pub count: u64,
    /// Room for ROIs: boxes beyond that are not cut.
    pub spots_max: u64,
    /// Pixels of a frame.
    pub frame_pixels: i64,
    /// Columns of the frame.
    pub width: i32,
    /// Side of the boxes, px.
    pub side: i32,
    /// Room for ROIs, `[spots_max, side, side]` of the frame's type; aligned to 16 bytes.
    pub rois: u64,
    /// Room for their corners, `[spots_max, 2]` of `u32`; or 0.
    pub corners: u64,
}

impl SpotFinder {
    /// The constants to copy to the device once.
    pub fn constants(&self) -> [&[f32]; CONSTANTS] {
        self.plan.constants().map(Plane::values)
    }

    /// Values of a working plane, for one frame.
    pub fn plane_values(&self) -> usize {
        let (width, height) = self.size();
        PlaneLayout::new(width, height).values
    }

    /// The most spots that a frame can have.
    pub fn spots_possible(&self) -> usize {
        self.spots.len()
    }

    /// Which of the working planes in [`SpotAddresses`] its launches use.
    pub fn works_in(&self) -> [bool; 5] {
        let contrast = !self.plan.by_gradient();
        [true, contrast, contrast, contrast, self.plan.by_noise()]
    }

    /// The argument of all launches.
    pub fn on_device(&self, addresses: &SpotAddresses) -> SpotCall {
        let (width, height) = self.size();
        let layout = PlaneLayout::new(width, height);
        let constants = self.plan.constants();
        let constants = std::array::from_fn(|i| match addresses.constants[i] {
            0 => 0,
            address => address + constants[i].first_byte() as u64,
        });
        let [electrons, narrow, wide, contrast, noise] =
            addresses.work.map(|address| address + (layout.first * size_of::<f32>()) as u64);
        let mut call = self.plan.call_with(constants);
        call.frame = addresses.frame;
        call.work(&Work { electrons, narrow, wide, contrast, noise }, self.plan.by_noise());
        call.spots = addresses.spots;
        call.spots_max = addresses.spots_max;
        call.plane_values = layout.values as i64;
        call.count = addresses.count;
        call
    }

    /// The argument for cutting the boxes around the spots at these addresses, with room for as many ROIs.
    pub fn cut_on_device(&self, addresses: &SpotAddresses, rois: u64, corners: u64) -> SpotCut {
        let (width, height) = self.size();
        SpotCut {
            frame: addresses.frame,
            spots: addresses.spots,
            count: addresses.count,
            spots_max: addresses.spots_max,
            frame_pixels: (width * height) as i64,
            width: width as i32,
            side: self.options.box_side as i32,
            rois,
            corners,
        }
    }

    /// The grid of all launches for `frames` frames, at most 65535, except those that cut boxes.
    pub fn blocks(&self, frames: u32) -> [u32; 3] {
        let (width, height) = self.size();
        [width.div_ceil(32) as u32, height.div_ceil(4) as u32, frames]
    }

    /// The kernels of `kernels/generated/spots.ptx` to launch for frames, in order, before `spots_cut_u16` or `spots_cut_f32` cuts
    /// boxes; `wide`: frames are `f32`.
    pub fn launches(&self, wide: bool) -> &'static [&'static str] {
        match (self.plan.by_gradient(), wide) {
            (true, false) => &["spots_convert_u16", "spots_select"],
            (true, true) => &["spots_convert_f32", "spots_select"],
            (false, false) => &["spots_convert_u16", "spots_columns", "spots_rows", "spots_select"],
            (false, true) => &["spots_convert_f32", "spots_columns", "spots_rows", "spots_select"],
        }
    }
}

#[cfg(all(test, kernels_emulated))]
mod tests;
