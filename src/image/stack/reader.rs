//! The reader itself: bytes go in at one end, frames come out at the other.

use super::{
    Charge, Format, Frames, MayHold, Options, StackError, StackInfo, Step, Tried,
    contiguous::Contiguous,
    directory::Encoding,
    npy,
    page::{Canvas, Filling, Layout, Page},
    samples::{Order, Values},
    spill::Spill,
    store::Store,
    swelling::{Received, Unpacked},
    tiff::Chain,
};
use crate::image::signature;
use bytes::Bytes;
use std::fmt;

/// How many first bytes tell the format.
const MAGIC_BYTES: u64 = 8;

/// Where frames come from.
enum Source {
    /// The first bytes, which tell the format, have not arrived.
    Unknown,
    /// The header has not been read.
    Npy,
    Contiguous(Contiguous),
    Tiff(Box<Chain>),
    Done,
}

/// Reads a stack as it arrives. [`push`](StackReader::push) bytes, take frames until there are none, and repeat. Then call
/// [`finish`](StackReader::finish), and take the last frames. All three compute and may touch a file, so they belong on a thread that may
/// block.
pub struct StackReader {
    options: Options,
    format: Option<Format>,
    source: Source,
    store: Store,
    canvas: Canvas,
    filling: Option<Filling>,
    unpacked: Unpacked,
    /// Whether the caller counts the bytes that arrived, because the body was packed.
    comes_packed: bool,
    /// Whether raw samples are refused if they begin as a file does.
    suspects_files: bool,
    /// The page that was returned last, as long as the canvas holds it.
    last: Option<Page>,
    info: Option<StackInfo>,
    finished: bool,
    failed: Option<StackError>,
    frames: u64,
    #[cfg(test)]
    memory_peak: usize,
}

impl fmt::Debug for StackReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("StackReader");
        debug.field("format", &self.format).field("frames", &self.frames).finish_non_exhaustive()
    }
}

impl StackReader {
    /// A reader for a stack of the given format, or of the format that its first bytes show (never [`Format::Raw`]).
    pub fn new(format: Option<Format>, options: Options) -> StackReader {
        let spill = Spill::new(options.spill_folder.clone(), options.limits.spill_bytes_max);
        StackReader {
            store: Store::new(options.limits.memory_bytes_max, spill),
            options,
            format,
            source: Source::Unknown,
            canvas: Canvas::default(),
            filling: None,
            unpacked: Unpacked::default(),
            comes_packed: false,
            suspects_files: false,
            last: None,
            info: None,
            finished: false,
            failed: None,
            frames: 0,
            #[cfg(test)]
            memory_peak: 0,
        }
    }

    /// Sets the function that says how much memory the reader may hold, below the limit, if it has a temporary file.
    #[must_use]
    pub fn within(mut self, may_hold: MayHold) -> StackReader {
        self.store.within(may_hold);
        self
    }

    /// Sets the function that is called before memory for frames is allocated.
    #[must_use]
    pub fn charging(mut self, charge: Charge) -> StackReader {
        self.canvas.charging(charge);
        self
    }

    /// For a body that was packed as a whole and is unpacked before its bytes are pushed: `came` counts the bytes that arrived.
    #[must_use]
    pub fn packed(mut self, came: Received) -> StackReader {
        (self.unpacked.came, self.comes_packed) = (came, true);
        self
    }

    /// For raw samples that may be a file by mistake, whose header would become pixels: refuses them if they begin as files do.
    #[must_use]
    pub fn suspecting_files(mut self) -> StackReader {
        self.suspects_files = true;
        self
    }

    /// Takes the next bytes of the stack. They are not copied: parts of them are held as long as they are needed.
    ///
    /// # Errors
    /// [`StackError::TooLarge`] and [`StackError::Spill`] if the bytes cannot be kept. Errors in the stack itself are returned by
    /// [`next_frames`](StackReader::next_frames), after the frames before them.
    #[expect(clippy::needless_pass_by_value, reason = "parts are held beyond the call")]
    pub fn push(&mut self, bytes: Bytes) -> Result<(), StackError> {
        debug_assert!(!self.finished, "bytes after the end");
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if matches!(self.source, Source::Done) {
            return Ok(());
        }
        if !self.comes_packed {
            self.unpacked.came.more(bytes.len());
        }
        let pushed = self.store.push(&bytes);
        #[cfg(test)]
        self.note_memory();
        pushed.inspect_err(|error| self.failed = Some(error.clone()))
    }

    /// Says that no more bytes will arrive.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// The next frame, as [`next_frames`](StackReader::next_frames).
    ///
    /// # Errors
    /// As there.
    pub fn next_frame(&mut self) -> Result<Option<Frames<'_>>, StackError> {
        self.next_frames(1)
    }

    /// The next frames, at most `at_most`: one, or several at once if they are small and lie one after another. `None` if more bytes are
    /// needed or, after [`finish`](StackReader::finish), if all frames have been returned.
    ///
    /// # Errors
    /// What is wrong with the rest of the stack; the same again if called again.
    pub fn next_frames(&mut self, at_most: usize) -> Result<Option<Frames<'_>>, StackError> {
        while self.go_on(at_most)? {}
        Ok(self.last_frames())
    }

    /// Like [`next_frames`](StackReader::next_frames), but limits the work of one call: a few megabytes may hold hundreds of thousands of
    /// directories before the next frame.
    ///
    /// # Errors
    /// As [`next_frames`](StackReader::next_frames).
    pub fn try_frames(&mut self, at_most: usize) -> Result<Tried<'_>, StackError> {
        if self.go_on(at_most)? {
            return Ok(Tried::Busy);
        }
        Ok(self.last_frames().map_or(Tried::Nothing, Tried::Frames))
    }

    /// Advances to the next frames; if there are any, they are then the last ones. Returns whether work remains before the next frames.
    fn go_on(&mut self, at_most: usize) -> Result<bool, StackError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.last = None;
        let advanced = self.advance(at_most.max(1));
        self.store.tell();
        #[cfg(test)]
        self.note_memory();
        let step = advanced.inspect_err(|error| self.failed = Some(error.clone()))?;
        let busy = matches!(step, Step::Busy);
        if let Step::Ready(page) = step {
            self.last = Some(page);
        }
        Ok(busy)
    }

    /// The frames that were returned last, unless more have been asked for since.
    pub fn last_frames(&self) -> Option<Frames<'_>> {
        let page = self.last.as_ref()?;
        Some(Frames {
            first: page.first,
            count: page.frames as usize,
            width: page.layout.width,
            height: page.layout.height,
            samples: self.canvas.samples(page),
        })
    }

    /// Keeps the last frames and all later ones, one behind the other, until they are [taken](StackReader::take). Samples that must lie
    /// together are therefore copied only once. Room for `room` samples is reserved at once.
    pub fn gather(&mut self, room: usize) {
        self.canvas.gather(room);
    }

    /// The frames since [`gather`](StackReader::gather) was called, or since the last call of this.
    pub fn take(&mut self) -> Values {
        self.last = None;
        self.canvas.take()
    }

    /// What the stack says about itself: known with the first frame at the latest; the pixel size sometimes only at the end.
    pub fn info(&self) -> Option<StackInfo> {
        match &self.source {
            Source::Tiff(chain) => chain.info(),
            _ => self.info.clone(),
        }
    }

    /// Frames that were returned so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// The most memory that was held so far, in bytes: bytes that wait, and the frame.
    #[cfg(test)]
    pub(crate) fn memory_bytes_peak(&self) -> usize {
        self.memory_peak
    }

    /// Bytes that were written to a temporary file so far.
    pub fn spilled_bytes(&self) -> u64 {
        self.store.spilled()
    }

    #[cfg(test)]
    fn note_memory(&mut self) {
        self.memory_peak = self.memory_peak.max(self.store.held() + self.canvas.bytes());
    }

    /// Fills the canvas with the next page.
    fn advance(&mut self, at_most: usize) -> Result<Step<Page>, StackError> {
        let name = self.format.map_or("stack", Format::name);
        let truncated =
            |frame, missing, at_least| Err(StackError::Truncated { format: name, frame, missing, at_least });
        let mut filling = match self.filling.take() {
            Some(filling) => filling,
            None => match self.next_page(at_most)? {
                Step::Ready(page) => Filling::new(page),
                Step::Wait { until } if self.finished => {
                    let at_least = match &self.source {
                        Source::Contiguous(_) => false,
                        Source::Tiff(chain) => !chain.is_contiguous(),
                        _ => true,
                    };
                    return truncated(self.frames, until.saturating_sub(self.store.end()), at_least);
                }
                Step::End => return self.end().map(|()| Step::End),
                step => return Ok(step),
            },
        };
        if filling.fill(&mut self.store, &mut self.canvas, &mut self.unpacked, self.finished)? {
            self.frames += u64::from(filling.page.frames);
            return Ok(Step::Ready(filling.page));
        }
        let until = filling.until();
        if self.finished {
            return truncated(self.frames, until.saturating_sub(self.store.end()), false);
        }
        self.filling = Some(filling);
        Ok(Step::Wait { until })
    }

    fn end(&mut self) -> Result<(), StackError> {
        self.info = self.info();
        self.source = Source::Done;
        self.store.release(0, u64::MAX);
        if self.frames > 0 {
            return Ok(());
        }
        let format = self.format.map_or("stack", Format::name);
        Err(StackError::Empty { format, what: "it has no frames".to_owned() })
    }

    fn next_page(&mut self, at_most: usize) -> Result<Step<Page>, StackError> {
        loop {
            match &mut self.source {
                Source::Unknown => {
                    if let Step::Wait { until } = self.open()? {
                        return Ok(Step::Wait { until });
                    }
                }
                Source::Npy => {
                    if let Step::Wait { until } = self.open_npy()? {
                        return Ok(Step::Wait { until });
                    }
                }
                Source::Contiguous(contiguous) => {
                    return contiguous.next(&self.store, at_most, self.finished);
                }
                Source::Tiff(chain) => return chain.next(&mut self.store, at_most, self.finished),
                Source::Done => return Ok(Step::End),
            }
        }
    }

    /// Finds the source of the frames.
    fn open(&mut self) -> Result<Step<()>, StackError> {
        if let Some(Format::Raw(raw)) = self.format {
            let layout = Layout { width: raw.width, height: raw.height, sample: raw.sample };
            if self.suspects_files {
                // No more than a frame, which is read as soon as it is there.
                let until = layout.frame_bytes().min(signature::SAMPLES_BYTES as u64);
                match self.first(until)? {
                    Step::Ready(first) => StackError::not_samples(&first).map_or(Ok(()), Err)?,
                    step => return Ok(step.nothing()),
                }
            }
            self.open_contiguous(layout, Order::Little, 0, raw.frames)?;
            return Ok(Step::Ready(()));
        }
        let magic = match self.first(MAGIC_BYTES)? {
            Step::Ready(magic) => magic,
            step => return Ok(step.nothing()),
        };
        let format = self.format.or_else(|| Format::sniff(&magic));
        match (format, Encoding::begins(&magic)) {
            (Some(Format::Tiff), Some(encoding)) => {
                let chain = Chain::new(encoding, self.options.limits, self.options.file_alone);
                self.source = Source::Tiff(Box::new(chain));
            }
            (Some(Format::Npy), _) if magic.starts_with(npy::MAGIC) => self.source = Source::Npy,
            _ => {
                return match self.first(signature::BYTES as u64)? {
                    Step::Ready(first) => Err(StackError::unknown(&first)),
                    step => Ok(step.nothing()),
                };
            }
        }
        self.format = format;
        Ok(Step::Ready(()))
    }

    /// The first bytes, once so many have arrived; of a shorter stack, all.
    fn first(&mut self, bytes: u64) -> Result<Step<Vec<u8>>, StackError> {
        if self.store.end() < bytes && !self.finished {
            return Ok(Step::Wait { until: bytes });
        }
        let mut first = vec![0; self.store.end().min(bytes) as usize];
        self.store.copy(0, &mut first)?;
        Ok(Step::Ready(first))
    }

    fn open_npy(&mut self) -> Result<Step<()>, StackError> {
        let corrupt = |reason: String| StackError::corrupt(Format::Npy, 0, reason);
        let mut begin = [0; 12];
        let begin = &mut begin[..self.store.end().min(12) as usize];
        self.store.copy(0, begin)?;
        let len = npy::header_bytes(begin).map_err(corrupt)?.unwrap_or(12);
        if self.store.end() < len.max(12) {
            return Ok(Step::Wait { until: len.max(12) });
        }
        let mut bytes = vec![0; len as usize];
        self.store.copy(0, &mut bytes)?;
        let header = npy::header(&bytes).map_err(corrupt)?;
        let sample = header.sample.map_err(|what| {
            let instead = "save integers or floats of up to 8 bytes, such as frames.astype('uint16')";
            StackError::unsupported(Format::Npy, what, instead)
        })?;
        let instead = "save it as numpy.ascontiguousarray(frames) of shape [frames, height, width]";
        if header.fortran_order {
            return Err(StackError::unsupported(Format::Npy, "fortran_order", instead));
        }
        let (frames, height, width) = match header.shape[..] {
            [frames, height, width] => (frames, height, width),
            [height, width] => (1, height, width),
            _ => {
                let what = format!("{} dimensions instead of 2 or 3", header.shape.len());
                return Err(StackError::unsupported(Format::Npy, what, instead));
            }
        };
        let limits = self.options.limits;
        let width = limits.check_side("frame width in pixels", width)?;
        let height = limits.check_side("frame height in pixels", height)?;
        self.store.release(0, len);
        let layout = Layout { width, height, sample };
        self.open_contiguous(layout, header.order, len, Some(frames))?;
        Ok(Step::Ready(()))
    }

    fn open_contiguous(
        &mut self,
        layout: Layout,
        order: Order,
        start: u64,
        frames: Option<u64>,
    ) -> Result<(), StackError> {
        let format = self.format.unwrap_or(Format::Npy);
        let limits = self.options.limits;
        let Layout { width, height, sample } = layout;
        limits.check_side("frame width in pixels", u64::from(width))?;
        limits.check_side("frame height in pixels", u64::from(height))?;
        limits.check_frame(format, width, height)?;
        let many = frames.unwrap_or(0);
        // The end offset must fit into a `u64` as well.
        let end = layout.frame_bytes().checked_mul(many).and_then(|bytes| bytes.checked_add(start));
        if many > limits.frames_max || end.is_none() {
            return Err(StackError::too_many(many, limits.frames_max));
        }
        self.info =
            Some(StackInfo { width, height, sample, frames, dimensions: None, images: 1, pixel_nm: None });
        self.source = Source::Contiguous(Contiguous {
            format,
            layout,
            order,
            start,
            frames,
            next: 0,
            ends_with_frames: true,
            frames_max: limits.frames_max,
        });
        Ok(())
    }
}
