//! Camera frames as a batch of the fitter: the engine finds spots in them, cuts them out and fits them.
//!
//! A batch whose [`Setting`] has [`FinderOptions`] has the tensors below instead of those of ROIs. Its items are frames, however many
//! spots they have, so that it can be split like any other batch. It is not joined with others, since it holds enough frames for a
//! device. It has at most [`PIXELS_MAX`] pixels, unless a single frame has more, so that the memory of a batch is known beforehand.
//!
//! | tensor | type and shape | |
//! |---|---|---|
//! | `rois` | UINT16 or FP32 `[n, h, w]` | ADU of whole frames |
//! | `corners` | UINT32 `[n, 2]` | ignored |
//! | `fits` | BYTES `[n]` | for each frame, a row of [`Columns`] per spot, FP32 |
//! | `codes` | BYTES `[n]` | the codes of the spots, as for ROIs |
//! | `spots` | BYTES `[n]` | for each spot, x and y of its box's first pixel, UINT32, and its score, FP32 |
//! | `over_max` | UINT32 `[n]` | how many more spots each frame has than `spots_max` |

use super::{Columns, Setting, crew::Parts, values};
use crate::engine::{
    DataType, EngineError, Tensor, TensorView,
    kernels::{Adu, FinderOptions, InstructionSet, Invalid, RoiBuffer, Spot, SpotFinder, fit_all},
    staging::{Memory, Slot, Staging},
    tensor::bytes_of,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::{mem, ops::Range};

/// Most pixels of a batch, unless it is a single frame: about 10 ms of work for a CPU.
pub const PIXELS_MAX: usize = 1 << 22;

/// Batches whose memory is kept while it is unused: one that is filled, one in the queue and one that is copied in.
const FREE_MAX: usize = 3;

/// Bytes of a spot in the answer.
const SPOT_BYTES: usize = 12;

/// Frames of one size.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Frames<'a> {
    pub(in crate::engine) adu: Adu<'a>,
    pub(in crate::engine) count: usize,
    pub(in crate::engine) width: usize,
    pub(in crate::engine) height: usize,
}

impl<'a> Frames<'a> {
    /// The frames in an engine's inputs.
    pub(in crate::engine) fn of(inputs: &[TensorView<'a>]) -> Result<Frames<'a>, EngineError> {
        let wrong = |what: String| EngineError::Input(what);
        let Some(frames) = inputs.first() else { return Err(wrong("no frames".to_owned())) };
        let [count, height, width] = frames.shape[..] else {
            return Err(wrong(format!("frames have shape {:?}, expected [n, h, w]", frames.shape)));
        };
        let adu = match frames.datatype {
            DataType::Uint16 => Adu::U16(values(frames.data)?),
            DataType::Fp32 => Adu::F32(values(frames.data)?),
            other => return Err(wrong(format!("frames are {other}, expected UINT16 or FP32"))),
        };
        let values = count.checked_mul(height).and_then(|rows| rows.checked_mul(width));
        if values != Some(adu.len()) {
            return Err(wrong(format!("{} values for frames of shape {:?}", adu.len(), frames.shape)));
        }
        Ok(Frames { adu, count, width, height })
    }

    fn frame(&self, index: usize) -> Adu<'a> {
        let pixels = self.width * self.height;
        let range = index * pixels..(index + 1) * pixels;
        match self.adu {
            Adu::U16(values) => Adu::U16(&values[range]),
            Adu::F32(values) => Adu::F32(&values[range]),
        }
    }
}

/// Memory for frames that devices copy from by themselves: frames are gathered there, so a batch is copied from it directly.
#[derive(Clone)]
pub struct FrameMemory {
    low: Staging,
    high: Staging,
}

impl FrameMemory {
    /// Memory of this kind; nothing is allocated before the first frame.
    ///
    /// # Errors
    /// If a batch would not fit in the address space.
    pub fn new(memory: Memory) -> Result<FrameMemory, String> {
        let low = Staging::new(PIXELS_MAX * size_of::<u16>(), 1, memory.clone())?;
        let high = Staging::new(PIXELS_MAX * size_of::<f32>(), 1, memory)?;
        Ok(FrameMemory { low: low.keeping(FREE_MAX), high: high.keeping(FREE_MAX) })
    }

    /// The memory for frames of this type.
    pub fn of(&self, datatype: DataType) -> Option<&Staging> {
        match datatype {
            DataType::Uint16 => Some(&self.low),
            DataType::Fp32 => Some(&self.high),
            _ => None,
        }
    }

    /// Room for `bytes` bytes of frames of a type; `None` if that is more than a batch may have.
    pub fn room(&self, datatype: DataType, bytes: usize) -> Option<FrameRoom> {
        let staging = self.of(datatype).filter(|staging| bytes <= staging.slot_bytes())?;
        Some(FrameRoom { slot: staging.slot(), filled: 0 })
    }
}

/// Room for the frames of a batch.
pub struct FrameRoom {
    slot: Slot,
    filled: usize,
}

impl FrameRoom {
    /// Appends frames.
    ///
    /// # Panics
    /// If there is no room for them, which is a bug.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.slot[self.filled..][..bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
    }

    /// The frames that have been appended.
    pub fn freeze(self) -> Bytes {
        let filled = self.filled;
        self.slot.freeze().slice(..filled)
    }
}

/// A batch of frames in parts, the same number for each thread.
pub(super) struct FrameParts {
    inputs: Vec<Tensor>,
    setting: Setting,
    options: FinderOptions,
    set: InstructionSet,
    count: usize,
    /// Frames of a part; the last may have fewer.
    part: usize,
    found: Vec<Mutex<Fitted>>,
}

impl FrameParts {
    /// The frames in `inputs`, in parts for `threads` threads.
    ///
    /// # Errors
    /// [`EngineError::Input`] if they are not frames.
    pub(super) fn new(
        inputs: Vec<Tensor>,
        setting: &Setting,
        options: &FinderOptions,
        set: InstructionSet,
        threads: usize,
    ) -> Result<FrameParts, EngineError> {
        let count = frames_in(&inputs)?.count;
        let part = count.div_ceil(threads).max(1);
        let found = (0..count).step_by(part).map(|_| Mutex::default()).collect();
        Ok(FrameParts { inputs, setting: setting.clone(), options: *options, set, count, part, found })
    }
}

impl Parts for FrameParts {
    fn count(&self) -> usize {
        self.found.len()
    }

    #[allow(unsafe_code, reason = "a part of the trait; nothing here is")]
    unsafe fn work(&self, part: usize) -> Result<(), EngineError> {
        let range = part * self.part..self.count.min((part + 1) * self.part);
        let frames = frames_in(&self.inputs)?;
        let fitted = Fitted::search(self.set, &self.setting, &self.options, &frames, range);
        let fitted = fitted.map_err(|error| EngineError::Input(error.to_string()))?;
        *self.found[part].lock() = fitted;
        Ok(())
    }

    #[allow(unsafe_code, reason = "a part of the trait; nothing here is")]
    unsafe fn outputs(&self) -> Vec<Tensor> {
        let mut all = Fitted::default();
        for part in &self.found {
            all.append(mem::take(&mut part.lock()));
        }
        all.answer(self.count, self.options.spots_max)
    }
}

fn frames_in(inputs: &[Tensor]) -> Result<Frames<'_>, EngineError> {
    let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
    Frames::of(&views)
}

/// The results of some frames: spots in any order, and a row and codes for each.
#[derive(Debug, Default)]
pub(in crate::engine) struct Fitted {
    spots: Vec<Spot>,
    rows: Vec<f32>,
    codes: Vec<[u8; 2]>,
    /// How many spots of each frame were left out, in the order of the frames.
    over_max: Vec<u32>,
}

impl Fitted {
    /// Finds and fits spots on the calling thread.
    pub(in crate::engine) fn search(
        set: InstructionSet,
        setting: &Setting,
        options: &FinderOptions,
        frames: &Frames<'_>,
        range: Range<usize>,
    ) -> Result<Fitted, Invalid> {
        let (width, height) = (frames.width, frames.height);
        let mut finder = SpotFinder::new(options, setting.camera(), width, height)?.with_instructions(set);
        let mut rois = RoiBuffer::new(options.box_side)?;
        let (mut spots, mut over_max) = (Vec::new(), Vec::with_capacity(range.len()));
        for index in range {
            let (adu, frame) = (frames.frame(index), index as u32);
            let found = finder.find(adu)?;
            rois.cut(adu, width, frame, found)?;
            spots.extend(found.iter().map(|spot| Spot { frame, ..*spot }));
            over_max.push(finder.over_max() as u32);
        }
        let (rows, codes) = fit_all(set, setting.model(), setting.camera(), rois.rois())?;
        Ok(Fitted { spots, rows, codes, over_max })
    }

    /// Appends the results of other frames.
    pub(in crate::engine) fn append(&mut self, mut more: Fitted) {
        self.spots.append(&mut more.spots);
        self.rows.append(&mut more.rows);
        self.codes.append(&mut more.codes);
        self.over_max.append(&mut more.over_max);
    }

    /// The answer for `frames` frames.
    pub(in crate::engine) fn answer(&self, frames: usize, spots_max: usize) -> Vec<Tensor> {
        answer(frames, spots_max, (&self.spots, &self.over_max), &self.rows, &self.codes)
    }
}

/// The answer for `frames` frames: their spots in the order of their pixels. If a frame has more than `spots_max`, only the strongest
/// are kept, as in [`SpotFinder::find`]. There is a row and a code for each of `spots`. `left_out` says for each frame how many of its
/// spots are not among them; none if it is empty.
pub(in crate::engine) fn answer(
    frames: usize,
    spots_max: usize,
    (spots, left_out): (&[Spot], &[u32]),
    rows: &[f32],
    codes: &[[u8; 2]],
) -> Vec<Tensor> {
    let columns = rows.len().checked_div(spots.len()).unwrap_or(0);
    let (of_frames, mut over_max) = in_order(frames, spots_max, spots);
    over_max.iter_mut().zip(left_out).for_each(|(over_max, left_out)| *over_max += left_out);
    // The final length, except for spots that are left out below.
    let room = |bytes: usize| Vec::with_capacity(4 * frames + spots.len() * bytes);
    let (mut fits_out, mut codes_out, mut spots_out) = (room(4 * columns), room(2), room(SPOT_BYTES));
    for mine in of_frames {
        let prefix = |out: &mut Vec<u8>, bytes: usize| {
            out.extend(u32::try_from(mine.len() * bytes).unwrap_or(u32::MAX).to_le_bytes());
        };
        prefix(&mut fits_out, 4 * columns);
        prefix(&mut codes_out, 2);
        prefix(&mut spots_out, SPOT_BYTES);
        for index in mine.iter().map(|index| *index as usize) {
            fits_out.extend_from_slice(bytemuck::cast_slice(&rows[index * columns..][..columns]));
            codes_out.extend_from_slice(&codes[index]);
            let Spot { corner: [x, y], score, .. } = spots[index];
            spots_out.extend([x, y, score.to_bits()].into_iter().flat_map(u32::to_le_bytes));
        }
    }
    let tensor = |data: Vec<u8>| Tensor { datatype: DataType::Bytes, shape: vec![frames], data: data.into() };
    let mut answer: Vec<Tensor> = [fits_out, codes_out, spots_out].map(tensor).into();
    answer.push(Tensor { datatype: DataType::Uint32, shape: vec![frames], data: bytes_of(over_max) });
    answer
}

/// For each frame, the indices of its spots in `spots`, and how many more it has.
fn in_order(frames: usize, spots_max: usize, spots: &[Spot]) -> (Vec<Vec<u32>>, Vec<u32>) {
    let mut of_frames = vec![Vec::new(); frames];
    for (index, spot) in spots.iter().enumerate() {
        of_frames[spot.frame as usize].push(index as u32);
    }
    let place = |index: &u32| (spots[*index as usize].y, spots[*index as usize].x);
    let mut over_max = vec![0; frames];
    for (mine, over_max) in of_frames.iter_mut().zip(&mut over_max) {
        if mine.len() > spots_max {
            *over_max = (mine.len() - spots_max) as u32;
            let score = |index: &u32| spots[*index as usize].score;
            // Of equally strong spots, the first.
            mine.sort_unstable_by(|a, b| score(b).total_cmp(&score(a)).then(place(a).cmp(&place(b))));
            mine.truncate(spots_max);
        }
        mine.sort_unstable_by_key(place);
    }
    (of_frames, over_max)
}

/// The parsed answer for frames.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Found {
    /// How many spots each frame has.
    pub counts: Vec<usize>,
    /// A row of [`Columns`] for each spot, frame by frame.
    pub fits: Vec<f32>,
    /// Two codes for each spot.
    pub codes: Vec<u8>,
    /// x and y of the first pixel of each spot's box.
    pub corners: Vec<[u32; 2]>,
    /// By how much each spot stood out.
    pub scores: Vec<f32>,
    /// Spots of all frames that were left out, since their frame has more than `spots_max`.
    pub over_max: u64,
}

impl Found {
    /// Parses the outputs of an engine.
    ///
    /// # Errors
    /// If the outputs are not those of frames, which is a bug.
    pub fn read(outputs: &[Tensor], columns: Columns) -> Result<Found, String> {
        let [fits, codes, spots, over_max] = outputs else {
            return Err(format!("the fitter gave {} outputs for frames, not 4", outputs.len()));
        };
        let words = over_max.data.as_chunks::<4>().0;
        let over_max = words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum();
        let mut found = Found { over_max, ..Found::default() };
        let parts = elements(fits)?.into_iter().zip(elements(codes)?).zip(elements(spots)?);
        for ((fits, codes), spots) in parts {
            let count = spots.len() / SPOT_BYTES;
            let whole = spots.len() == count * SPOT_BYTES
                && codes.len() == 2 * count
                && fits.len() == 4 * count * columns.count();
            if !whole {
                return Err(format!("the fitter gave {} bytes of rows for {count} spots", fits.len()));
            }
            found.counts.push(count);
            found.fits.extend(fits.as_chunks().0.iter().map(|value| f32::from_ne_bytes(*value)));
            found.codes.extend_from_slice(codes);
            for spot in spots.as_chunks::<SPOT_BYTES>().0 {
                let word =
                    |at: usize| u32::from_le_bytes([spot[at], spot[at + 1], spot[at + 2], spot[at + 3]]);
                found.corners.push([word(0), word(4)]);
                found.scores.push(f32::from_bits(word(8)));
            }
        }
        match found.counts.len() == fits.elements() {
            true => Ok(found),
            false => Err("the fitter's outputs are not of the same frames".to_owned()),
        }
    }
}

/// The byte strings of a tensor.
fn elements(tensor: &Tensor) -> Result<Vec<&[u8]>, String> {
    let (mut elements, mut rest) = (Vec::new(), &tensor.data[..]);
    while let Some((length, tail)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        let cut = tail.split_at_checked(length);
        let (element, tail) =
            cut.ok_or_else(|| format!("{length} bytes are said, {} are left", tail.len()))?;
        elements.push(element);
        rest = tail;
    }
    match rest.is_empty() && elements.len() == tensor.elements() {
        true => Ok(elements),
        false => Err(format!("{} byte strings for a shape of {:?}", elements.len(), tensor.shape)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

    use super::*;
    use crate::engine::{
        Engine,
        gauss_mle::GaussMle,
        kernels::{Border, Camera, FitModel, Method, Psf, Threshold},
    };
    use std::sync::Arc;

    const SIZE: [usize; 2] = [60, 40];

    fn setting(spots_max: usize) -> Setting {
        let model = FitModel::new(Psf::Xynb { sigma_px: [1.3; 2] }, [1.0; 2]).unwrap();
        let method = Method::Contrast {
            sigma_px: [1.3; 2],
            wide: 2.0,
            threshold: Threshold::Photons(200.0),
            radius: 2,
        };
        Setting::new(model, Arc::new(Camera::ideal())).finding(FinderOptions {
            method,
            box_side: 7,
            border: Border::Shift,
            spots_max,
        })
    }

    /// Frames, each with one more spot than the one before, of rising brightness; the first has none.
    fn frames(count: usize) -> Tensor {
        let [width, height] = SIZE;
        let mut values = vec![10_u16; count * width * height];
        for (frame, values) in values.chunks_exact_mut(width * height).enumerate() {
            for spot in 0..frame {
                let (x, y) = ((8 + spot * 13) % (width - 8), 8 + (spot * 17) % (height - 16));
                for (dy, dx) in (0..7).flat_map(|dy| (0..7).map(move |dx| (dy, dx))) {
                    let squared = (dx as f32 - 3.0).powi(2) + (dy as f32 - 3.0).powi(2);
                    let light = (600 + 200 * spot) as f32 * (-squared / 3.4).exp() / 10.6;
                    values[(y + dy - 3) * width + x + dx - 3] += light as u16;
                }
            }
        }
        let data = bytemuck::cast_slice(&values).to_vec().into();
        Tensor { datatype: DataType::Uint16, shape: vec![count, height, width], data }
    }

    fn run(threads: usize, frames: &Tensor, setting: &Setting) -> Vec<Tensor> {
        let data = [0_u64; 100];
        let corners = TensorView {
            datatype: DataType::Uint32,
            shape: vec![frames.shape[0], 2],
            data: &bytemuck::cast_slice(&data)[..frames.shape[0] * 8],
        };
        GaussMle::new(threads).unwrap().run(&[frames.view(), corners], Some(setting)).unwrap()
    }

    fn found(outputs: &[Tensor], setting: &Setting) -> Found {
        Found::read(outputs, Columns::of(setting.model().psf())).unwrap()
    }

    #[test]
    fn spots_of_frames_come_in_their_order_whatever_the_number_of_threads() {
        let (frames, setting) = (frames(6), setting(1000));
        let outputs = run(1, &frames, &setting);
        let one = found(&outputs, &setting);
        assert_eq!(one.counts, [0, 1, 2, 3, 4, 5]);
        assert_eq!(one, found(&run(3, &frames, &setting), &setting));
        assert_eq!(one.corners[0], [5, 5]);
        for ([x, y], row) in one.corners.iter().zip(one.fits.chunks_exact(11)) {
            assert!((row[0] - 3.0).abs() < 0.3 && (row[1] - 3.0).abs() < 0.3, "{row:?} at {x}, {y}");
        }
    }

    #[test]
    fn of_more_spots_than_allowed_the_strongest_are_kept_in_their_order() {
        let frames = frames(5);
        let all = found(&run(1, &frames, &setting(1000)), &setting(1000));
        let some = found(&run(1, &frames, &setting(2)), &setting(2));
        assert_eq!(some.counts, [0, 1, 2, 2, 2]);
        assert_eq!((all.over_max, some.over_max), (0, 1 + 2), "those that were left out are counted");
        assert_eq!(found(&run(3, &frames, &setting(2)), &setting(2)), some);
        let last = |found: &Found, count: usize| found.scores[found.scores.len() - count..].to_vec();
        let mut strongest = last(&all, 4);
        strongest.sort_unstable_by(f32::total_cmp);
        let mut kept = last(&some, 2);
        kept.sort_unstable_by(f32::total_cmp);
        assert_eq!(kept, strongest[2..]);
    }

    #[test]
    fn what_are_no_frames_is_an_error_that_says_so() {
        let mut engine = GaussMle::new(1).unwrap();
        let zeros = [0_u32; 64];
        let mut check = |shape: &[usize], datatype, bytes: usize, expected: &str| {
            let view =
                TensorView { datatype, shape: shape.to_vec(), data: &bytemuck::cast_slice(&zeros)[..bytes] };
            let error = engine.run(&[view], Some(&setting(9))).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(&[4, 4], DataType::Uint16, 32, "expected [n, h, w]");
        check(&[1, 4, 4], DataType::Uint8, 16, "expected UINT16 or FP32");
        check(&[2, 4, 4], DataType::Uint16, 32, "16 values for frames");
        check(&[1, 4, 4], DataType::Uint16, 32, "smaller than the box of 7 x 7");
    }
}
