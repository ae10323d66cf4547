//! The parameters of launching `kernels/preprocess.cu`: a [`Batch`] turns images and a model's [`Preprocess`] into descriptions and
//! tables of weights. Launching is not done here.

mod axis;

use self::axis::{AxisKey, Form, TILE_WIDTH, Table, table};
use crate::{
    error::InferError,
    image::{Color, DataType, Layout, Placement, Preprocess, Region, Resize},
};

/// The kernels in `kernels/generated/preprocess.ptx`. `preprocess` takes any image of a batch; `preprocess_plain` takes 8-bit images of
/// one or three channels; `preprocess_narrow` those of them of which few columns make a tile; `preprocess_finished` those with the item's
/// size and memory layout.
pub const KERNELS: [&str; 4] = ["preprocess", "preprocess_plain", "preprocess_narrow", "preprocess_finished"];

/// Threads of a block along x and y.
pub const THREADS: [u32; 3] = [32, 8, 1];

/// Pixels of an item that a block of the first three kernels makes, along x and y.
const TILES: [[u32; 2]; 3] = [[TILE_WIDTH, 8], [TILE_WIDTH, 32], [TILE_WIDTH, 64]];
/// Pixels that a block of the last kernel makes, in memory order, and how many of them it reads and writes at once.
const FINISHED: [u32; 2] = [1024, 4];

/// A launch for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Index in [`KERNELS`].
    pub kernel: usize,
    /// How many blocks along x, y and z.
    pub blocks: [u32; 3],
}

/// Most bytes of an image's row that may make one tile's width of pixels: the room of `preprocess_narrow` (`PLAIN_WORDS` of the
/// kernels).
const ROW_MAX: u32 = 4 * 96;

/// Images that one launch takes.
pub const IMAGES_MAX: usize = 65_535;

/// Where the samples of an image lie on the device, in the orientation in which a person sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pixels {
    /// Address of the first sample of the top left pixel. Memory is read in words of four bytes: the first and the last word of an image
    /// must lie completely in its allocation.
    pub address: u64,
    /// Steps in samples to the next pixel on the right, to the one below, and to the next channel.
    pub steps: [i32; 3],
    /// 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha.
    pub channels: u8,
    /// Whether samples are `u16` instead of `u8`.
    pub wide: bool,
}

impl Pixels {
    /// Pixels in row-major order with interleaved channels, as in a [`Frame`](crate::image::Frame).
    pub fn interleaved(address: u64, width: u32, channels: u8, wide: bool) -> Pixels {
        let channels_step = i32::from(channels);
        Pixels { address, steps: [channels_step, width as i32 * channels_step, 1], channels, wide }
    }

    /// The same memory, holding `stored` columns and rows, seen in EXIF's orientation 1 to 8 (others count as upright).
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
    way: u32,
    left: u32,
    top: u32,
    width: u32,
    height: u32,
    x_table: u32,
    x_taps: u32,
    x_bits: u32,
    y_table: u32,
    y_taps: u32,
    y_bits: u32,
    columns: u32,
}

/// How an image is read: `Way` of `kernels/preprocess.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Bytes = 0,
    Words = 1,
    /// Plain: 8 bits, one or three channels.
    Resampled = 2,
    /// The same, and there is room for all columns that make a tile at once.
    Narrow = 3,
    /// Plain, and each pixel of the item is made of one.
    Copied = 4,
    /// Plain, and laid out in memory as the item is.
    Finished = 5,
}

impl Way {
    /// Which of [`KERNELS`] reads it.
    fn kernel(self) -> usize {
        match self {
            Way::Bytes | Way::Words => 0,
            Way::Resampled | Way::Copied => 1,
            Way::Narrow => 2,
            Way::Finished => 3,
        }
    }
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
    inverse: [f32; 3],
}

/// The images of one batch. Keeps its memory from batch to batch.
#[derive(Debug)]
pub struct Batch {
    to: Preprocess,
    images: Vec<PreprocessImage>,
    tables: Vec<u32>,
    /// Axes that have a table.
    known: Vec<(AxisKey, Form, Table)>,
    /// Whether multiplying by 1 / std is exact enough: see [`mild`].
    mild: bool,
    /// Which of [`KERNELS`] have an image to process.
    launched: [bool; KERNELS.len()],
}

impl Batch {
    /// An empty batch for a model's input, which has been [checked](Preprocess::check).
    pub fn new(to: &Preprocess) -> Batch {
        Batch {
            to: to.clone(),
            images: Vec::new(),
            tables: Vec::new(),
            known: Vec::new(),
            mild: mild(to),
            launched: [false; KERNELS.len()],
        }
    }

    /// A batch of images that have the input's size already, in succession as [`Preprocess::place`] writes them: they are only
    /// converted to numbers. `to` takes images of exactly its size.
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

    /// Forgets the images. Tables stay, for images of sizes that have occurred.
    pub fn clear(&mut self) {
        self.images.clear();
        self.launched = [false; KERNELS.len()];
        // Bounds the tables if every image has another size.
        if self.tables.len() > 1 << 22 {
            self.tables.clear();
            self.known.clear();
        }
    }

    /// Adds an image of `size` in the orientation in which it is seen; the posted image, of size `source`, lies in it at `covered`.
    /// Returns where the posted image lies in the item.
    ///
    /// # Errors
    /// [`InferError::BadRequest`] when the image must have the input's size and has another.
    ///
    /// # Panics
    /// If there are [`IMAGES_MAX`] already, or the image would have no pixel in the item: the kernel reads a row and a column of
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
        let x = AxisKey::new(size.0, from.left, from.width, window.width, false);
        let y = AxisKey::new(size.1, from.top, from.height, window.height, true);
        let way = match self.way(&pixels, &x, &y, size) {
            // With `Filter::Nearest`, one pixel makes one even if the image is resized.
            Way::Copied if x.plain() && y.plain() && self.is_finished(&pixels, size, covered) => {
                Way::Finished
            }
            way => way,
        };
        let [of_x, of_y] = match way {
            Way::Resampled => [Form::Columns, Form::Rows],
            _ => [Form::Numbers; 2],
        };
        let (x, y) = (self.table(x, of_x), self.table(y, of_y));
        let is_narrow = way == Way::Resampled && x.reach * u32::from(pixels.channels) <= ROW_MAX;
        let way = if is_narrow { Way::Narrow } else { way };
        self.launched[way.kernel()] = true;
        self.images.push(PreprocessImage {
            samples: pixels.address,
            steps: pixels.steps,
            channels: u32::from(pixels.channels),
            way: way as u32,
            left: window.left as u32,
            top: window.top as u32,
            width: window.width as u32,
            height: window.height as u32,
            x_table: x.at,
            x_taps: x.taps,
            x_bits: x.bits,
            y_table: y.at,
            y_taps: y.taps,
            y_bits: y.bits,
            columns: size.0,
        });
        Ok(placement)
    }

    /// How an image of `size` is read, if it is resized along the axes `x` and `y`.
    fn way(&self, pixels: &Pixels, x: &AxisKey, y: &AxisKey, size: (u32, u32)) -> Way {
        let plain = pixels.channels == 1 || pixels.channels == 3 && self.to.color.channels() == 3;
        let [along, _, channel] = pixels.steps.map(|step| u64::from(step.unsigned_abs()));
        let row = u64::from(size.0) * along + 3 * channel;
        match pixels.wide {
            true => Way::Words,
            false if !(plain && self.mild) => Way::Bytes,
            false if x.taps(self.to.filter) == 1 && y.taps(self.to.filter) == 1 => Way::Copied,
            // Rows are read in pairs, which must all lie in the image, and a row's length must fit 31 bits.
            false if y.rows(self.to.filter) > size.1 as usize || row > i32::MAX as u64 => Way::Bytes,
            false => Way::Resampled,
        }
    }

    /// Whether an image of which each pixel makes one is laid out in memory as the item is, in pieces that are read and written at once.
    fn is_finished(&self, pixels: &Pixels, size: (u32, u32), covered: Region) -> bool {
        let to = &self.to;
        let whole = Region { left: 0.0, top: 0.0, width: f64::from(to.width), height: f64::from(to.height) };
        let as_it_lies = Pixels::interleaved(pixels.address, to.width, to.color.channels() as u8, false);
        size == (to.width, to.height)
            && covered == whole
            && *pixels == as_it_lies
            && pixels.address.is_multiple_of(4)
            && (u64::from(to.width) * u64::from(to.height)).is_multiple_of(u64::from(FINISHED[1]))
    }

    fn table(&mut self, key: AxisKey, form: Form) -> Table {
        if let Some((.., table)) = self.known.iter().find(|(known, its, _)| *known == key && *its == form) {
            return *table;
        }
        let table = table(&key, self.to.filter, form, &mut self.tables);
        self.known.push((key, form, table));
        table
    }

    /// The descriptions of this batch's images, for the device.
    pub fn images(&self) -> &[PreprocessImage] {
        &self.images
    }

    /// The tables for the images' sizes, for the device. Until [`Batch::clear`], they only grow with new sizes.
    pub fn tables(&self) -> &[u32] {
        &self.tables
    }

    /// The launches, in any order: one for each kernel that has an image to process.
    pub fn launches(&self) -> Vec<Launch> {
        let (width, height, count) = (self.to.width, self.to.height, self.images.len() as u32);
        let launch = |kernel: usize| {
            let [x, y] = match TILES.get(kernel) {
                Some([x, y]) => [width.div_ceil(*x), height.div_ceil(*y)],
                None => [(width * height).div_ceil(FINISHED[0]), 1],
            };
            Launch { kernel, blocks: [x, y, count] }
        };
        (0..KERNELS.len()).filter(|kernel| self.launched[*kernel]).map(launch).collect()
    }

    /// The argument of each launch, with the addresses of images, tables and items on the device.
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
            inverse: to.std.map(f32::recip),
        }
    }
}

/// Whether multiplying by the inverse of std is as exact as dividing by std: no intermediate number leaves its range.
fn mild(to: &Preprocess) -> bool {
    let mild = |value: &f32| (1e-9..=1e9).contains(&value.abs());
    mild(&to.scale) && to.std.iter().all(mild) && to.mean.iter().all(|mean| *mean == 0.0 || mild(mean))
}

#[cfg(all(test, kernels_emulated))]
mod tests;
