//! Frames stored one after another: `.npy`, raw samples, and the TIFFs that say so.

use super::{
    Format, StackError, Step,
    page::{Layout, Page},
    samples::Order,
    store::{Presence, Store},
};

/// Small frames (ROIs) are returned together, up to this many bytes. A call for each would cost more than its samples, and a block that
/// fits into a core's cache is read from the cache again.
const BLOCK_BYTES: u64 = 256 << 10;

/// Frames stored one after another.
#[derive(Debug, Clone)]
pub(super) struct Contiguous {
    pub(super) format: Format,
    pub(super) layout: Layout,
    pub(super) order: Order,
    /// Offset of frame 0.
    pub(super) start: u64,
    /// The number of frames; `None` if they go on to the end.
    pub(super) frames: Option<u64>,
    /// The frame that is read next.
    pub(super) next: u64,
    /// Whether the file ends with its frames, so that further bytes are an error.
    pub(super) ends_with_frames: bool,
    pub(super) frames_max: u64,
}

impl Contiguous {
    /// The next frames that have arrived, at least one and at most `at_most`.
    pub(super) fn next(
        &mut self,
        store: &Store,
        at_most: usize,
        finished: bool,
    ) -> Result<Step<Page>, StackError> {
        let frame_bytes = self.layout.frame_bytes().max(1);
        let offset = self.start + self.next * frame_bytes;
        let come = store.end().saturating_sub(offset);
        let left = self.frames.map_or(u64::MAX, |frames| frames.saturating_sub(self.next));
        if left == 0 {
            if self.ends_with_frames && come > 0 {
                let reason = format!(
                    "more bytes follow after the last of its {} frames of {} (is the size right?)",
                    self.next, self.layout
                );
                return Err(StackError::corrupt(self.format, self.next, reason));
            }
            // Surplus bytes may still arrive.
            let ends = finished || !self.ends_with_frames;
            return Ok(if ends { Step::End } else { Step::Wait { until: offset + 1 } });
        }
        if self.frames.is_none() && come == 0 && finished {
            return Ok(Step::End);
        }
        let most = (BLOCK_BYTES / frame_bytes).min(at_most as u64).min(left);
        let mut frames = (come / frame_bytes).min(most).max(1);
        if come > 0 && self.next + frames > self.frames_max {
            return Err(StackError::too_many(self.next + frames, self.frames_max));
        }
        if come < frame_bytes {
            return Ok(Step::Wait { until: offset + frame_bytes });
        }
        if frames > 1 && store.presence(offset, frames * frame_bytes) == Presence::Gone {
            // One of the frames is damaged; those before it are still returned.
            frames = 1;
        }
        let page = Page::contiguous(self.format, self.layout, self.order, self.next, frames as u32, offset);
        self.next += frames;
        Ok(Step::Ready(page))
    }
}
