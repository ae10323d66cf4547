//! What a launch of `kernels/preprocess.cu` takes: a [`Batch`] turns images and a model's [`Preprocess`] into descriptions and
//! tables of weights. Launching is not done here.

mod axis;

use self::axis::{AxisKey, table};
use crate::{
    error::InferError,
    image::{Color, DataType, Layout, Placement, Preprocess, Region, Resize},
};

/// The kernel in `kernels/generated/preprocess.ptx`.
pub const KERNEL: &str = "preprocess";

/// Threads of a block along x and y, each for one pixel of an item.
pub const THREADS: [u32; 3] = [32, 8, 1];

/// Images that one launch takes.
pub const IMAGES_MAX: usize = 65_535;

/// Where the samples of an image lie on the device, as a person sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pixels {
    /// The first sample of the pixel at the top left.
    pub address: u64,
    /// Samples to the next pixel to the right, to the one below, and to the next channel.
    pub steps: [i32; 3],
    /// 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha.
    pub channels: u8,
    /// `u16` instead of `u8`.
    pub wide: bool,
}

impl Pixels {
    /// Row by row with channels interleaved, as [`Frame`](crate::image::Frame)s are.
    pub fn interleaved(address: u64, width: u32, channels: u8, wide: bool) -> Pixels {
        let channels_step = i32::from(channels);
        Pixels { address, steps: [channels_step, width as i32 * channels_step, 1], channels, wide }
    }

    /// The same memory, holding `stored` columns and rows, seen under EXIF's orientation 1 to 8 (others are upright).
    #[must_use]
    pub fn turned(self, orientation: u8, stored: (u32, u32)) -> Pixels {
        let (mirrors, swaps) = match orientation {
            2 => ((true, false), false),
            3 => ((true, true), false),
            4 => ((false, true), false),
            5 => ((false, false), true),
            6 => ((false, true), true),
            7 => ((true, true), true),
            8 => ((true, false), true),
            _ => return self,
        };
        let [mut along, mut down, channel] = self.steps;
        let mut first = 0;
        if mirrors.0 {
            first += i64::from(along) * (i64::from(stored.0) - 1);
            along = -along;
        }
        if mirrors.1 {
            first += i64::from(down) * (i64::from(stored.1) - 1);
            down = -down;
        }
        let bytes = first * if self.wide { 2 } else { 1 };
        let steps = if swaps { [down, along, channel] } else { [along, down, channel] };
        Pixels { address: self.address.wrapping_add_signed(bytes), steps, ..self }
    }
}

/// `PreprocessImage` of `kernels/preprocess.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct PreprocessImage {
    samples: u64,
    steps: [i32; 3],
    channels: u32,
    wide: u32,
    left: u32,
    top: u32,
    width: u32,
    height: u32,
    x_table: u32,
    x_taps: u32,
    y_table: u32,
    y_taps: u32,
    unused: u32,
}

/// `PreprocessCall` of `kernels/preprocess.cu`: the launch's only argument.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::NoUninit)]
#[repr(C)]
pub struct PreprocessCall {
    images: u64,
    tables: u64,
    items: u64,
    width: u32,
    height: u32,
    depth: u32,
    swapped: u32,
    interleaved: u32,
    element: u32,
    background: [u32; 3],
    pad: f32,
    scale: f32,
    mean: [f32; 3],
    std: [f32; 3],
    unused: u32,
}

/// The images of one launch. Keeps its memory from batch to batch.
#[derive(Debug)]
pub struct Batch {
    to: Preprocess,
    images: Vec<PreprocessImage>,
    tables: Vec<u32>,
    /// Axes that have a table, where it begins, and its taps.
    known: Vec<(AxisKey, u32, u32)>,
}

impl Batch {
    /// An empty one for a model's input, which has been [checked](Preprocess::check).
    pub fn new(to: &Preprocess) -> Batch {
        Batch { to: to.clone(), images: Vec::new(), tables: Vec::new(), known: Vec::new() }
    }

    /// Images that have the input's size already, one behind the other as [`Preprocess::place`] writes them: only numbers are to be
    /// made of them. `to` takes images of exactly its size.
    ///
    /// # Panics
    /// For more than [`IMAGES_MAX`].
    pub fn finished(to: &Preprocess, address: u64, items: usize, wide: bool) -> Batch {
        let size = (to.width, to.height);
        let covered = Region { left: 0.0, top: 0.0, width: f64::from(size.0), height: f64::from(size.1) };
        let [height, width, depth] = to.pixels_shape();
        let item = (height * width * depth) as u64 * if wide { 2 } else { 1 };
        let mut batch = Batch::new(to);
        for index in 0..items as u64 {
            let pixels = Pixels::interleaved(address + index * item, to.width, depth as u8, wide);
            batch.push(pixels, size, size, covered).expect("it has the size that is taken");
        }
        batch
    }

    /// Forgets the images. Tables stay, for images of sizes that were seen.
    pub fn clear(&mut self) {
        self.images.clear();
        // Bounded where no two images have one size.
        if self.tables.len() > 1 << 22 {
            self.tables.clear();
            self.known.clear();
        }
    }

    /// Adds an image of `size` as it is seen, in which the posted one of the size `source` lies at `covered`, and says where
    /// in the item that is.
    ///
    /// # Errors
    /// [`InferError::BadRequest`] when the image must have the input's size and has another.
    ///
    /// # Panics
    /// Where there are [`IMAGES_MAX`] already, or the image would have no pixel in the item: the kernel reads a row and a column of
    /// every table.
    pub fn push(
        &mut self,
        pixels: Pixels,
        size: (u32, u32),
        source: (u32, u32),
        covered: Region,
    ) -> Result<Placement, InferError> {
        assert!(self.images.len() < IMAGES_MAX, "{IMAGES_MAX} images");
        self.to.takes(source)?;
        let placement = self.to.placement(source.0, source.1);
        let geometry = self.to.geometry(size, covered, &placement);
        let (window, from) = (geometry.window, geometry.from);
        assert!(window.width > 0 && window.height > 0, "an image has a pixel in its item");
        let (x_table, x_taps) = self.table(size.0, from.left, from.width, window.width, false);
        let (y_table, y_taps) = self.table(size.1, from.top, from.height, window.height, true);
        self.images.push(PreprocessImage {
            samples: pixels.address,
            steps: pixels.steps,
            channels: u32::from(pixels.channels),
            wide: u32::from(pixels.wide),
            left: window.left as u32,
            top: window.top as u32,
            width: window.width as u32,
            height: window.height as u32,
            x_table,
            x_taps,
            y_table,
            y_taps,
            unused: 0,
        });
        Ok(placement)
    }

    fn table(&mut self, size: u32, from: f64, span: f64, length: usize, down: bool) -> (u32, u32) {
        let key = AxisKey::new(size, from, span, length, down);
        if let Some((_, at, taps)) = self.known.iter().find(|(known, ..)| *known == key) {
            return (*at, *taps);
        }
        let at = self.tables.len() as u32;
        let taps = table(&key, self.to.filter, &mut self.tables);
        self.known.push((key, at, taps));
        (at, taps)
    }

    /// What goes to the device for the images of this batch.
    pub fn images(&self) -> &[PreprocessImage] {
        &self.images
    }

    /// What goes to the device for their sizes; grows only with new ones until [`Batch::clear`].
    pub fn tables(&self) -> &[u32] {
        &self.tables
    }

    /// Blocks of the launch.
    pub fn blocks(&self) -> [u32; 3] {
        let [x, y, _] = THREADS;
        [self.to.width.div_ceil(x), self.to.height.div_ceil(y), self.images.len() as u32]
    }

    /// The argument of the launch, with the addresses of images, tables and items on the device.
    pub fn call(&self, images: u64, tables: u64, items: u64) -> PreprocessCall {
        let to = &self.to;
        PreprocessCall {
            images,
            tables,
            items,
            width: to.width,
            height: to.height,
            depth: to.color.channels() as u32,
            swapped: u32::from(to.color == Color::Bgr),
            interleaved: u32::from(to.layout == Layout::Nhwc),
            element: match to.datatype {
                DataType::Fp32 => 0,
                DataType::Fp16 => 1,
                DataType::Uint8 => 2,
            },
            background: to.background.map(u32::from),
            pad: if to.resize == Resize::Letterbox { f32::from(to.pad) } else { 0.0 },
            scale: to.scale,
            mean: to.mean,
            std: to.std,
            unused: 0,
        }
    }
}

#[cfg(all(test, kernels_emulated))]
mod tests;
