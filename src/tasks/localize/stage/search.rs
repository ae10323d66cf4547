//! Spots that are looked for in frames, and their ROIs until there is a chunk of them. A frame with more than a chunk has is cut out
//! in parts, so that memory does not grow with what is in it.

use crate::{
    engine::{
        Setting,
        kernels::{Adu, Invalid, RoiBuffer, SpotFinder},
    },
    error::InferError,
    image::stack::{Charge, Frames, Samples},
    tasks::localize::chunk::{Chunk, ROIS, cut_out},
};

/// Where ROIs are found, and those that are found and not handed out.
pub(super) struct Search {
    finder: SpotFinder,
    found: RoiBuffer,
    /// Bytes that were asked for.
    charged: usize,
    /// Of the frames that came last, the one that is looked at next; and where it has been and waits for room, how many of its
    /// spots are cut out.
    frame: usize,
    cut: Option<usize>,
    /// Spots that were left out of frames with too many, since ROIs were handed out last.
    over_max: u64,
}

impl Search {
    /// With ROIs of so many pixels a side. Asks for the memory.
    pub(super) fn new(finder: SpotFinder, side: usize, charge: &mut Charge) -> Result<Search, InferError> {
        let charged = finder.bytes();
        charge(charged)?;
        let found = RoiBuffer::new(side).map_err(refused)?;
        Ok(Search { finder, found, charged, frame: 0, cut: None, over_max: 0 })
    }

    /// ROIs that were not handed out.
    pub(super) fn len(&self) -> usize {
        self.found.len()
    }

    /// Whether those are a chunk: the next frame's have no room beside them.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= ROIS || (self.cut.is_some() && self.len() > 0)
    }

    /// Looks for spots in the frames that came last, from where it stopped. Whether it is through: else there is a chunk first. Asks for
    /// the memory of ROIs before it is taken, and for that of a chunk of them.
    pub(super) fn look(&mut self, frames: &Frames<'_>, charge: &mut Charge) -> Result<bool, InferError> {
        let width = frames.width as usize;
        let pixels = width * frames.height as usize;
        while self.frame < frames.count {
            let adu = match frames.samples {
                Samples::U16(values) => Adu::U16(&values[self.frame * pixels..][..pixels]),
                Samples::F32(values) => Adu::F32(&values[self.frame * pixels..][..pixels]),
            };
            let cut = match self.cut {
                Some(cut) => cut,
                None => {
                    self.finder.find(adu).map_err(refused)?;
                    self.over_max += self.finder.over_max() as u64;
                    0
                }
            };
            let spots = &self.finder.spots()[cut..];
            let room = ROIS - self.found.len();
            // A frame is in one chunk where one can hold it: some formats write what is of one together.
            let now = match spots.len() <= room {
                true => spots,
                false if self.found.is_empty() => &spots[..room],
                false => &[],
            };
            let bytes = self.finder.bytes() + 2 * self.found.bytes_with(adu, now.len());
            if bytes > self.charged {
                charge(bytes)?;
                self.charged = bytes;
            }
            let number = u32::try_from(frames.first + self.frame as u64).unwrap_or(u32::MAX);
            self.found.cut(adu, width, number, now).map_err(refused)?;
            if now.len() < spots.len() {
                self.cut = Some(cut + now.len());
                return Ok(false);
            }
            (self.frame, self.cut) = (self.frame + 1, None);
        }
        self.frame = 0;
        Ok(true)
    }

    /// The ROIs that were not handed out, of which there are some.
    pub(super) fn chunk(&mut self, setting: &Setting) -> Chunk {
        cut_out(&mut self.found, std::mem::take(&mut self.over_max), setting)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "what an error is made of")]
fn refused(error: Invalid) -> InferError {
    InferError::BadRequest(error.to_string())
}
