//! ROIs to fit and the results of fitting them: chunks, the origins of their ROIs, and rows.

use super::{Parameter, Schema, Score, Table};
use crate::{
    engine::{
        DataType, Setting, Tensor,
        gauss_mle::{
            Columns,
            frames::{Found, FrameMemory, FrameRoom},
        },
        kernels::RoiBuffer,
        tensor::bytes_of,
    },
    error::InferError,
    image::stack::{Charge, Frames, Samples, Values},
};
use bytes::Bytes;

/// The most ROIs in a chunk. This is the size of the largest batch, unless the manifest says otherwise, so that a chunk is a batch and need
/// not be copied into one.
pub(super) const ROIS: usize = 10_000;

/// ROIs to fit, or frames to find them in: the engine's inputs in its order, and their origins.
#[derive(Debug)]
pub struct Chunk {
    /// `rois` and `corners`; whole frames may take the place of the ROIs.
    pub inputs: Vec<Tensor>,
    /// The number of ROIs, or of frames.
    pub items: usize,
    /// What to fit.
    pub setting: Setting,
    /// The origin of each item.
    pub origins: Origins,
}

impl Chunk {
    /// Memory that it takes, in bytes.
    pub fn bytes(&self) -> usize {
        let Origins { frames, corners, scores, .. } = &self.origins;
        let inputs = self.inputs.iter().map(|input| input.data.len()).sum::<usize>();
        inputs + size_of_val(&**frames) + size_of_val(&**corners) + size_of_val(&**scores)
    }
}

/// Where the ROIs of a chunk come from.
#[derive(Debug)]
pub struct Origins {
    frames: Vec<u32>,
    /// Empty if all are zeros.
    corners: Vec<[u32; 2]>,
    scores: Vec<f32>,
    /// Spots that were found in these frames but left out because a frame had too many.
    over_max: u64,
    /// Whether the items are whole frames, in which the engine finds the spots.
    whole: bool,
}

/// A chunk of the ROIs that were found in frames, at least one; `over_max` others were left out.
pub(super) fn cut_out(found: &mut RoiBuffer, over_max: u64, setting: &Setting) -> Chunk {
    let (side, items) = (found.rois().side(), found.len());
    let data: Bytes = found.to_le_bytes().into();
    let wide = data.len() / (side * side * items) == size_of::<f32>();
    let origins = Origins {
        frames: found.frames().to_vec(),
        corners: found.corners().to_vec(),
        scores: found.scores().to_vec(),
        over_max,
        whole: false,
    };
    found.clear();
    let datatype = if wide { DataType::Fp32 } else { DataType::Uint16 };
    chunk(datatype, side, data, origins, setting)
}

/// ROIs that were posted as such: each is a frame of the stack. The stack's reader [gathers](crate::image::stack::StackReader::gather)
/// them.
pub(super) struct Posted {
    pub(super) side: usize,
    /// The number of the first one that has not been handed out.
    pub(super) first: u64,
    /// How many have not been handed out.
    pub(super) count: usize,
}

impl Posted {
    /// A chunk of all that were gathered and not handed out.
    pub(super) fn chunk(&mut self, gathered: Values, setting: &Setting) -> Chunk {
        let (datatype, data) = into_bytes(gathered);
        let items = std::mem::take(&mut self.count);
        let frames = numbers(self.first, items);
        self.first += items as u64;
        let origins = Origins { frames, corners: Vec::new(), scores: Vec::new(), over_max: 0, whole: false };
        chunk(datatype, self.side, data, origins, setting)
    }
}

/// Whole frames, in which the engine looks for spots.
pub(super) struct Whole {
    first: u64,
    size: [usize; 2],
    /// Frames per chunk.
    frames_max: usize,
    /// How many are gathered.
    pub(super) count: usize,
    /// Memory from which a device can copy, if there is a device.
    memory: Option<FrameMemory>,
    room: Option<(DataType, FrameRoom)>,
    /// Frames for which there is no such memory.
    values: Values,
}

impl Whole {
    /// Starts empty, for frames of this many columns and rows; `frames_max` frames are a chunk.
    pub(super) fn new(size: [usize; 2], frames_max: usize, memory: Option<FrameMemory>) -> Whole {
        Whole { first: 0, size, frames_max, count: 0, memory, room: None, values: Values::default() }
    }

    /// How many more frames fit into the chunk.
    pub(super) fn room(&self) -> usize {
        self.frames_max - self.count
    }

    /// Appends frames, all of one type and size. Charges for memory if there is none from which a device can copy.
    pub(super) fn add(&mut self, frames: &Frames<'_>, charge: &mut Charge) -> Result<(), InferError> {
        let room = self.frames_max * self.size[0] * self.size[1];
        let (datatype, bytes): (_, &[u8]) = match frames.samples {
            Samples::U16(values) => (DataType::Uint16, bytemuck::cast_slice(values)),
            Samples::F32(values) => (DataType::Fp32, bytemuck::cast_slice(values)),
        };
        if self.count == 0 {
            self.first = frames.first;
            let sample = datatype.size().unwrap_or(1);
            self.room = self
                .memory
                .as_ref()
                .and_then(|memory| memory.room(datatype, room * sample).map(|room| (datatype, room)));
            let own = if self.room.is_some() { 0 } else { room };
            charge(own * sample)?;
            self.values = frames.samples.room(own);
        }
        match &mut self.room {
            Some((_, room)) => room.extend(bytes),
            None => self.values.extend(frames.samples),
        }
        self.count += frames.count;
        Ok(())
    }

    /// A chunk of all frames that are gathered; none are left afterwards.
    pub(super) fn chunk(&mut self, setting: &Setting) -> Chunk {
        let (items, [width, height]) = (std::mem::take(&mut self.count), self.size);
        let (datatype, data) = match self.room.take() {
            Some((datatype, room)) => (datatype, room.freeze()),
            None => into_bytes(std::mem::take(&mut self.values)),
        };
        let frames = numbers(self.first, items);
        Chunk {
            inputs: vec![
                Tensor { datatype, shape: vec![items, height, width], data },
                Tensor { datatype: DataType::Uint32, shape: vec![items, 2], data: no_corners(items) },
            ],
            items,
            setting: setting.clone(),
            origins: Origins { frames, corners: Vec::new(), scores: Vec::new(), over_max: 0, whole: true },
        }
    }
}

/// The numbers of `count` frames. Numbers beyond 32 bits become the largest.
fn numbers(first: u64, count: usize) -> Vec<u32> {
    let [first, end] = [first, first + count as u64].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    let mut numbers: Vec<u32> = (first..end).collect();
    numbers.resize(count, u32::MAX);
    numbers
}

/// Corners of this many ROIs, all of them zeros.
fn no_corners(items: usize) -> Bytes {
    static ZEROS: [[u32; 2]; ROIS] = [[0; 2]; ROIS];
    match ZEROS.get(..items) {
        Some(zeros) => Bytes::from_static(bytemuck::cast_slice(zeros)),
        None => vec![0; items * size_of::<[u32; 2]>()].into(),
    }
}

fn into_bytes(values: Values) -> (DataType, Bytes) {
    match values {
        Values::U16(values) => (DataType::Uint16, bytes_of(values)),
        Values::F32(values) => (DataType::Fp32, bytes_of(values)),
    }
}

fn chunk(datatype: DataType, side: usize, data: Bytes, origins: Origins, setting: &Setting) -> Chunk {
    let items = origins.frames.len();
    let corners = if origins.corners.is_empty() {
        no_corners(items)
    } else {
        bytes_of(origins.corners.as_flattened().to_vec())
    };
    Chunk {
        inputs: vec![
            Tensor { datatype, shape: vec![items, side, side], data },
            Tensor { datatype: DataType::Uint32, shape: vec![items, 2], data: corners },
        ],
        items,
        setting: setting.clone(),
        origins,
    }
}

impl Origins {
    /// The origins of ROIs that a caller sends: frames and corners are zeros if they are not given.
    ///
    /// # Panics
    /// If they are given and their number is not `items`; the caller must check that before.
    pub fn of(items: usize, frames: Option<Vec<u32>>, corners: Option<Vec<[u32; 2]>>) -> Origins {
        let frames = frames.unwrap_or_else(|| vec![0; items]);
        let corners = corners.unwrap_or_default();
        let placed = corners.is_empty() || corners.len() == items;
        assert!(frames.len() == items && placed, "one frame and one corner for each ROI");
        Origins { frames, corners, scores: Vec::new(), over_max: 0, whole: false }
    }

    /// The engine's results for the chunk as rows. Positions count from the frame's first pixel.
    ///
    /// # Errors
    /// Outputs that are not the fitter's: an internal error.
    pub fn table(self, outputs: &[Tensor], schema: &Schema, setting: &Setting) -> Result<Table, String> {
        let columns = Columns::of(setting.model().psf());
        if self.whole {
            let Found { counts, fits, codes, corners, scores, over_max } = Found::read(outputs, columns)?;
            if counts.len() != self.frames.len() {
                return Err(format!("the fitter answered {} of {} frames", counts.len(), self.frames.len()));
            }
            let of_frame = |(frame, count): (&u32, usize)| std::iter::repeat_n(*frame, count);
            let frames = self.frames.iter().zip(counts).flat_map(of_frame).collect();
            let origins = Origins { frames, corners, scores, over_max, whole: false };
            return origins.rows(columns, &fits, &codes, schema);
        }
        let (Some(fits), Some(codes)) = (outputs.first(), outputs.get(1)) else {
            return Err("the fitter gave no results".into());
        };
        let fits = fits.as_f32().ok_or("the fitter gave no numbers")?;
        self.rows(columns, &fits, &codes.data, schema)
    }

    /// The results for these ROIs as rows.
    fn rows(self, columns: Columns, fits: &[f32], codes: &[u8], schema: &Schema) -> Result<Table, String> {
        let items = self.frames.len();
        if fits.len() != items * columns.count() || codes.len() != 2 * items {
            return Err(format!("the fitter gave {} numbers for {items} ROIs", fits.len()));
        }
        let mut turned = turn(fits, columns.count(), items).into_iter();
        let mut take = |count: usize| turned.by_ref().take(count).collect::<Vec<_>>();
        let mut table = Table::new(schema);
        let Columns { parameters, covariances } = columns;
        table.theta = take(parameters);
        table.errors = take(parameters);
        table.covariances = take(covariances);
        [table.log_likelihood_ratio, table.p_value] =
            [turned.next(), turned.next()].map(Option::unwrap_or_default);
        for (axis, positions) in table.theta.iter_mut().take(2).enumerate() {
            for (position, corner) in positions.iter_mut().zip(&self.corners) {
                *position += corner[axis] as f32;
            }
        }
        let (codes, _) = codes.as_chunks();
        // One column at a time, so that `collect` reserves the memory of each at once, not element by element.
        [table.iterations, table.status] =
            [0, 1].map(|index: usize| codes.iter().map(|code: &[u8; 2]| code[index]).collect());
        table.frame = self.frames;
        table.over_spots_max = self.over_max;
        if schema.score.is_some() {
            table.score = self.scores;
        }
        in_electrons(&mut table, schema);
        Ok(table)
    }
}

/// Converts counts in units of F² photo-electrons ([`Camera::multiplying`](crate::engine::kernels::Camera::multiplying)) to
/// photo-electrons.
fn in_electrons(table: &mut Table, schema: &Schema) {
    if schema.excess_noise == 1.0 {
        return;
    }
    let times = |column: &mut Vec<f32>| column.iter_mut().for_each(|value| *value *= schema.excess_noise);
    for (at, parameter) in schema.model.parameters().iter().enumerate() {
        if matches!(parameter, Parameter::Photons | Parameter::Background) {
            times(&mut table.theta[at]);
            times(&mut table.errors[at]);
        }
    }
    if schema.score.is_some_and(Score::is_in_electrons) {
        times(&mut table.score);
    }
}

/// Added to a number, turns -0 into 0: nobody wants to read -0.
const NO_SIGN: f32 = 0.0;

/// Transposes rows of numbers into columns.
fn turn(rows: &[f32], columns: usize, items: usize) -> Vec<Vec<f32>> {
    // Four times as fast if the number of columns is known at compile time; these are those of the spot models.
    match columns {
        11 => turn_rows::<11>(rows, items),
        13 => turn_rows::<13>(rows, items),
        15 => turn_rows::<15>(rows, items),
        _ => {
            let column = |index: usize| {
                rows.iter().skip(index).step_by(columns).map(|value| value + NO_SIGN).collect()
            };
            (0..columns).map(column).collect()
        }
    }
}

/// Transposes a few rows at a time, so that each is read from memory once.
fn turn_rows<const N: usize>(rows: &[f32], items: usize) -> Vec<Vec<f32>> {
    const ROWS: usize = 64;
    let mut turned: Vec<Vec<f32>> = (0..N).map(|_| Vec::with_capacity(items)).collect();
    let (rows, _) = rows.as_chunks::<N>();
    for rows in rows.chunks(ROWS) {
        for (index, column) in turned.iter_mut().enumerate() {
            column.extend(rows.iter().map(|row| row[index] + NO_SIGN));
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kernels::{Camera, FitModel, Psf};
    use std::sync::Arc;

    #[test]
    fn frames_count_on_as_far_as_32_bits_reach() {
        let last = u64::from(u32::MAX);
        assert_eq!(numbers(3, 4), [3, 4, 5, 6]);
        assert_eq!(numbers(last - 2, 4), [u32::MAX - 2, u32::MAX - 1, u32::MAX, u32::MAX]);
        assert_eq!(numbers(last + 5, 2), [u32::MAX; 2]);
        assert_eq!(numbers(7, 0), [0; 0]);
    }

    #[test]
    fn rows_become_columns_however_many_there_are() {
        for (columns, items) in [(11, 1000), (13, 64), (15, 65), (3, 100), (11, 0)] {
            let mut rows: Vec<f32> = (0..columns * items).map(|index| index as f32).collect();
            rows.iter_mut().take(1).for_each(|zero| *zero = -0.0);
            let turned = turn(&rows, columns, items);
            assert_eq!(turned.len(), columns);
            for (index, column) in turned.iter().enumerate() {
                assert!((0..items).map(|row| rows[row * columns + index]).eq(column.iter().copied()));
                assert!(column.iter().all(|value| value.is_sign_positive()), "a zero has no sign");
            }
        }
    }

    #[test]
    fn posted_rois_count_on_from_one_chunk_to_the_next() {
        let model = FitModel::new(Psf::Xynb { sigma_px: [1.3; 2] }, [1.0; 2]).unwrap();
        let setting = Setting::new(model, Arc::new(Camera::ideal()));
        let mut posted = Posted { side: 1, first: 0, count: 0 };
        let mut frames = |rois: usize| {
            posted.count = rois;
            posted.chunk(Values::U16(vec![7; rois]), &setting).origins.frames
        };
        assert_eq!([2, 3, 1].map(&mut frames).concat(), [0, 1, 2, 3, 4, 5]);
    }
}
