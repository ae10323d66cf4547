//! Boxes cut out around the spots of many frames, for the fit.

use super::Spot;
use crate::engine::kernels::{Adu, Invalid, Rois, fit::odd_side};

/// Bytes of a ROI besides its pixels: its frame, its corner and its score.
const PLACE_BYTES: usize = 4 + 8 + 4;

/// ROIs with their origin. They keep the type of the frames, since the fit applies the camera itself.
#[derive(Debug, Clone, PartialEq)]
pub struct RoiBuffer {
    side: usize,
    values: Values,
    frames: Vec<u32>,
    corners: Vec<[u32; 2]>,
    scores: Vec<f32>,
}

/// The values of all ROIs, `[n, side, side]`.
#[derive(Debug, Clone, PartialEq)]
enum Values {
    /// Nothing has been cut yet.
    Open,
    U16(Vec<u16>),
    F32(Vec<f32>),
}

impl RoiBuffer {
    /// An empty buffer for ROIs of `side` by `side` pixels.
    ///
    /// # Errors
    /// If the side is even or out of [`SIDE`](crate::engine::kernels::SIDE).
    pub fn new(side: usize) -> Result<RoiBuffer, Invalid> {
        odd_side("box", side)?;
        let values = Values::Open;
        Ok(RoiBuffer { side, values, frames: Vec::new(), corners: Vec::new(), scores: Vec::new() })
    }

    /// Cuts the boxes of `spots` out of frame `number`, `width` pixels wide, and appends them.
    ///
    /// # Errors
    /// If the frame has another type than earlier ones, or a box does not lie in it. Nothing is appended then.
    pub fn cut(&mut self, frame: Adu<'_>, width: usize, number: u32, spots: &[Spot]) -> Result<(), Invalid> {
        let height = frame.len().checked_div(width).unwrap_or(0);
        let fits = |corner: u32, extent: usize| {
            (corner as usize).checked_add(self.side).is_some_and(|end| end <= extent)
        };
        let outside =
            spots.iter().find(|spot| !(fits(spot.corner[0], width) && fits(spot.corner[1], height)));
        if let Some(spot) = outside {
            let ([x, y], side) = (spot.corner, self.side);
            let why = format!(
                "a box of {side} x {side} at x = {x}, y = {y} does not lie in a frame of {width} x {height} pixels"
            );
            return Err(Invalid::new("spots", why));
        }
        if let Values::Open = self.values {
            self.values = match frame {
                Adu::U16(_) => Values::U16(Vec::new()),
                Adu::F32(_) => Values::F32(Vec::new()),
            };
        }
        match (&mut self.values, frame) {
            (Values::U16(values), Adu::U16(frame)) => append(values, frame, width, self.side, spots),
            (Values::F32(values), Adu::F32(frame)) => append(values, frame, width, self.side, spots),
            _ => {
                let why = "u16 and f32 frames do not go together".to_owned();
                return Err(Invalid::new("frame", why));
            }
        }
        self.frames.extend(spots.iter().map(|_| number));
        self.corners.extend(spots.iter().map(|spot| spot.corner));
        self.scores.extend(spots.iter().map(|spot| spot.score));
        Ok(())
    }

    /// Memory that it takes once `rois` more ROIs of such a frame have been appended, in bytes.
    pub fn bytes_with(&self, frame: Adu<'_>, rois: usize) -> usize {
        let pixels = self.side * self.side;
        let values = match &self.values {
            Values::Open => room(0, 0, rois * pixels),
            Values::U16(values) => room(values.len(), values.capacity(), rois * pixels),
            Values::F32(values) => room(values.len(), values.capacity(), rois * pixels),
        };
        let size = if let Adu::U16(_) = frame { size_of::<u16>() } else { size_of::<f32>() };
        values * size + values / pixels * PLACE_BYTES
    }

    /// Empties it, but keeps its memory and the type of its values.
    pub fn clear(&mut self) {
        match &mut self.values {
            Values::Open => (),
            Values::U16(values) => values.clear(),
            Values::F32(values) => values.clear(),
        }
        self.frames.clear();
        self.corners.clear();
        self.scores.clear();
    }

    /// How many ROIs there are.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// All ROIs with their corners, to be fitted.
    pub fn rois(&self) -> Rois<'_> {
        let adu = match &self.values {
            Values::Open => Adu::U16(&[]),
            Values::U16(values) => Adu::U16(values),
            Values::F32(values) => Adu::F32(values),
        };
        Rois::new(adu, self.side, Some(&self.corners))
            .expect("whole ROIs of a checked side, a corner for each")
    }

    /// The values of all ROIs, little-endian.
    pub fn to_le_bytes(&self) -> Vec<u8> {
        match &self.values {
            Values::Open => Vec::new(),
            Values::U16(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Values::F32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    /// The number of each ROI's frame.
    pub fn frames(&self) -> &[u32] {
        &self.frames
    }

    /// x and y of each ROI's first pixel.
    pub fn corners(&self) -> &[[u32; 2]] {
        &self.corners
    }

    /// By how much each spot stood out.
    pub fn scores(&self) -> &[f32] {
        &self.scores
    }
}

/// The capacity once `more` values have been appended: if it grows, it at least doubles.
fn room(len: usize, capacity: usize, more: usize) -> usize {
    if len + more <= capacity { capacity } else { (len + more).max(2 * capacity) }
}

fn append<T: Copy>(values: &mut Vec<T>, frame: &[T], width: usize, side: usize, spots: &[Spot]) {
    let room = room(values.len(), values.capacity(), spots.len() * side * side);
    values.reserve_exact(room - values.len());
    for spot in spots {
        let [x, y] = spot.corner.map(|corner| corner as usize);
        for row in y..y + side {
            values.extend_from_slice(&frame[row * width + x..][..side]);
        }
    }
}
