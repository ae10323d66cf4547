//! Finds spots in frames, and holds their ROIs until there are enough for a chunk. A frame with more spots than a chunk holds is cut out in
//! parts, so that memory does not depend on the content of a frame.

use crate::{
    engine::{
        Setting,
        kernels::{Adu, Invalid, RoiBuffer, SpotFinder},
    },
    error::InferError,
    image::stack::{Charge, Frames, Samples},
    tasks::localize::chunk::{Chunk, ROIS, cut_out},
};

/// The finder, and the ROIs that were found and not yet handed out.
pub(super) struct Search {
    finder: SpotFinder,
    found: RoiBuffer,
    /// Bytes that were charged so far.
    charged: usize,
    /// The next of the last frames to examine. If it has been examined and waits for room, `cut` is the number of its spots that are cut
    /// out.
    frame: usize,
    cut: Option<usize>,
    /// Spots left out of frames with too many, since ROIs were last handed out.
    over_max: u64,
}

impl Search {
    /// For ROIs of `side` pixels. Charges for the finder's memory.
    pub(super) fn new(finder: SpotFinder, side: usize, charge: &mut Charge) -> Result<Search, InferError> {
        let charged = finder.bytes();
        charge(charged)?;
        let found = RoiBuffer::new(side).map_err(refused)?;
        Ok(Search { finder, found, charged, frame: 0, cut: None, over_max: 0 })
    }

    /// The number of ROIs that have not been handed out.
    pub(super) fn len(&self) -> usize {
        self.found.len()
    }

    /// Whether these fill a chunk: there is no room for those of the next frame.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= ROIS || (self.cut.is_some() && self.len() > 0)
    }

    /// Looks for spots in the last frames, from where it stopped. Returns whether all have been examined; if not, a chunk must be taken
    /// first. Charges for the memory of ROIs before it is allocated, and for that of a chunk of them.
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
            // All ROIs of a frame go into one chunk if they fit: some formats write the rows of a frame together.
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

    /// A chunk of the ROIs that have not been handed out, at least one.
    pub(super) fn chunk(&mut self, setting: &Setting) -> Chunk {
        cut_out(&mut self.found, std::mem::take(&mut self.over_max), setting)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "what an error is made of")]
fn refused(error: Invalid) -> InferError {
    InferError::BadRequest(error.to_string())
}
