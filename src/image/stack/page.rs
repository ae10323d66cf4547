//! Frames as a stack stores them, strip by strip or tile by tile, and how their samples are decoded from there.

use super::{
    Charge, Format, StackError,
    packing::{self, Compression, Predictor},
    samples::{Order, SampleType, Samples, Values},
    store::{Presence, Store},
    swelling::Unpacked,
};

/// At most this many bytes of a strip's packed data are read, plus twice the size of its samples.
const PACKED_SLACK_BYTES: u64 = 64 << 10;

/// What all frames of a stack share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) sample: SampleType,
}

impl Layout {
    /// Bytes of a frame's samples as they are stored, unpacked.
    pub(super) fn frame_bytes(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height) * self.sample.bytes() as u64
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x {} px of {}", self.width, self.height, self.sample.name())
    }
}

/// One frame, or several whose samples follow each other.
#[derive(Debug, Clone)]
pub(super) struct Page {
    pub(super) format: Format,
    /// The number of the first frame, from 0.
    pub(super) first: u64,
    pub(super) frames: u32,
    pub(super) layout: Layout,
    pub(super) order: Order,
    pub(super) compression: Compression,
    pub(super) predictor: Predictor,
    pub(super) tiled: bool,
    /// Width and height of a strip or tile in pixels. The last strip may have fewer rows; tiles may extend beyond the frame.
    pub(super) chunk: (u32, u32),
    /// Offset and bytes of each strip or tile, row by row.
    pub(super) chunks: Vec<(u64, u64)>,
}

impl Page {
    /// Frames whose samples lie one after another from `offset`.
    pub(super) fn contiguous(
        format: Format,
        layout: Layout,
        order: Order,
        first: u64,
        frames: u32,
        offset: u64,
    ) -> Page {
        let rows = layout.height.saturating_mul(frames);
        Page {
            format,
            first,
            frames,
            layout,
            order,
            compression: Compression::None,
            predictor: Predictor::None,
            tiled: false,
            chunk: (layout.width, rows),
            chunks: vec![(offset, layout.frame_bytes() * u64::from(frames))],
        }
    }

    /// The offset of the first sample, if all samples lie one after another, neither packed nor predicted.
    pub(super) fn contiguous_at(&self) -> Option<u64> {
        let plain = self.compression == Compression::None && self.predictor == Predictor::None && !self.tiled;
        match self.chunks[..] {
            [(offset, _)] if plain => Some(offset),
            _ => None,
        }
    }

    /// Merges strips that follow each other into one.
    pub(super) fn join_strips(&mut self) {
        if self.compression != Compression::None || self.predictor != Predictor::None || self.tiled {
            return;
        }
        let strip = u64::from(self.chunk.0) * u64::from(self.chunk.1) * self.layout.sample.bytes() as u64;
        let follow = self.chunks.windows(2).all(|pair| {
            let [(offset, bytes), (next, _)] = pair else { return false };
            *bytes == strip && offset.checked_add(strip) == Some(*next)
        });
        if let (true, [(offset, _), .., (last, bytes)]) = (follow, &self.chunks[..]) {
            self.chunks = vec![(*offset, (last - offset).saturating_add(*bytes))];
            self.chunk.1 = self.layout.height;
        }
    }

    fn rows(&self) -> u32 {
        self.layout.height.saturating_mul(self.frames)
    }

    /// Samples of all its frames.
    fn samples(&self) -> usize {
        self.layout.width as usize * self.rows() as usize
    }

    /// The number of strips or tiles beside each other.
    fn across(&self) -> usize {
        self.layout.width.div_ceil(self.chunk.0.max(1)) as usize
    }

    fn top(&self, index: usize) -> u32 {
        (index / self.across()) as u32 * self.chunk.1
    }

    /// Rows in the data of a strip or tile.
    fn chunk_rows(&self, index: usize) -> u32 {
        if self.tiled { self.chunk.1 } else { self.chunk.1.min(self.rows() - self.top(index)) }
    }

    /// Bytes of a strip or tile, unpacked.
    fn unpacked_bytes(&self, index: usize) -> u64 {
        u64::from(self.chunk.0) * u64::from(self.chunk_rows(index)) * self.layout.sample.bytes() as u64
    }

    /// Bytes that are read for a strip or tile. Bytes that a wrong byte count adds are not waited for.
    fn read_bytes(&self, index: usize) -> u64 {
        let unpacked = self.unpacked_bytes(index);
        let stated = self.chunks[index].1;
        match self.compression {
            Compression::None => unpacked,
            _ => stated.min(2 * unpacked + PACKED_SLACK_BYTES),
        }
    }
}

/// The memory that holds decoded frames. It is reused for each frame, unless frames are [gathered](Canvas::gather).
#[derive(Default)]
pub(super) struct Canvas {
    u16s: Vec<u16>,
    f32s: Vec<f32>,
    /// The number of samples to make room for when frames are gathered, if they are.
    gathers: Option<usize>,
    /// Samples of finished pages. Any samples behind them belong to a page that is being filled.
    done: usize,
    raw: Vec<u8>,
    packed: Vec<u8>,
    charge: Option<Charge>,
    /// Bytes that were charged so far.
    charged: usize,
}

impl Canvas {
    /// Bytes of memory that it uses.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        2 * self.u16s.capacity() + 4 * self.f32s.capacity() + self.raw.capacity() + self.packed.capacity()
    }

    /// Sets the function that is called before memory is allocated.
    pub(super) fn charging(&mut self, charge: Charge) {
        self.charge = Some(charge);
    }

    /// Charges the memory that decoding a strip or tile of `len` stored bytes will need. A few packed kB may need a thousand times as many
    /// bytes, and keep them while the next strip is awaited.
    fn charge_for(&mut self, page: &Page, index: usize, len: u64) -> Result<(), StackError> {
        let Some(charge) = &mut self.charge else { return Ok(()) };
        let kept = if self.gathers.is_some() { self.done } else { 0 };
        let samples = self.gathers.unwrap_or(0).max(kept + page.samples());
        let (u16s, f32s) = if page.layout.sample.is_u16() { (samples, 0) } else { (0, samples) };
        let raw = if page.is_straight() { 0 } else { page.unpacked_bytes(index) as usize };
        let packed = if page.compression == Compression::None { 0 } else { len as usize };
        let bytes = 2 * self.u16s.capacity().max(u16s)
            + 4 * self.f32s.capacity().max(f32s)
            + self.raw.capacity().max(raw)
            + self.packed.capacity().max(packed);
        if bytes > self.charged {
            charge(bytes).map_err(StackError::NoRoom)?;
            self.charged = bytes;
        }
        Ok(())
    }

    /// The samples of the page that was filled last: they are the last in the canvas.
    pub(super) fn samples(&self, page: &Page) -> Samples<'_> {
        let count = page.samples();
        if page.layout.sample.is_u16() {
            Samples::U16(&self.u16s[self.u16s.len() - count..])
        } else {
            Samples::F32(&self.f32s[self.f32s.len() - count..])
        }
    }

    /// Keeps the page that was filled last and all later ones, one behind the other, until they are [taken](Canvas::take); that is expected
    /// at `room` samples. Samples that must lie together are therefore copied only once.
    pub(super) fn gather(&mut self, room: usize) {
        self.gathers = Some(room);
    }

    /// Returns the gathered samples of whole pages and removes them from the canvas.
    pub(super) fn take(&mut self) -> Values {
        let done = std::mem::take(&mut self.done);
        // All pages of a stack have the same sample type.
        if self.f32s.is_empty() {
            let unfinished = self.u16s.split_off(done);
            Values::U16(std::mem::replace(&mut self.u16s, unfinished))
        } else {
            let unfinished = self.f32s.split_off(done);
            Values::F32(std::mem::replace(&mut self.f32s, unfinished))
        }
    }

    /// Makes room for a page behind those that are kept. Its samples exist afterwards, with any values, unless the page will be
    /// [appended](Page::append).
    fn prepare(&mut self, page: &Page) {
        let start = if self.gathers.is_some() { self.done } else { 0 };
        let len = start + page.samples();
        let room = self.gathers.unwrap_or(0).max(len);
        let filled = if page.is_as_it_comes() { start } else { len };
        if page.layout.sample.is_u16() {
            self.u16s.reserve_exact(room.saturating_sub(self.u16s.len()));
            self.u16s.resize(filled, 0);
        } else {
            self.f32s.reserve_exact(room.saturating_sub(self.f32s.len()));
            self.f32s.resize(filled, 0.0);
        }
    }

    /// Notes that a page is filled that was [prepared](Canvas::prepare) for.
    fn filled(&mut self, page: &Page) {
        self.done = if page.layout.sample.is_u16() { self.u16s.len() } else { self.f32s.len() };
    }
}

/// A page that is being decoded into a [`Canvas`].
pub(super) struct Filling {
    pub(super) page: Page,
    next: usize,
}

impl Filling {
    pub(super) fn new(page: Page) -> Filling {
        Filling { page, next: 0 }
    }

    /// The end of the bytes that are still needed.
    pub(super) fn until(&self) -> u64 {
        let end = |index: usize| self.page.chunks[index].0.saturating_add(self.page.read_bytes(index));
        (self.next..self.page.chunks.len()).map(end).max().unwrap_or(0)
    }

    /// Decodes what has arrived, as far as it may be unpacked by now; `finished` says that no more will arrive. Returns whether the page is
    /// complete.
    pub(super) fn fill(
        &mut self,
        store: &mut Store,
        canvas: &mut Canvas,
        unpacked: &mut Unpacked,
        finished: bool,
    ) -> Result<bool, StackError> {
        let page = &self.page;
        let corrupt = |reason: String| StackError::corrupt(page.format, page.first, reason);
        while let Some((offset, stated)) = page.chunks.get(self.next).copied() {
            let index = self.next;
            let name = || {
                let part = if page.tiled { "tile" } else { "strip" };
                format!("{part} {index} of {} (at byte {offset})", page.chunks.len())
            };
            let len = page.read_bytes(index);
            if stated < len {
                let reason = format!("{} has {stated} bytes instead of {len}", name());
                return Err(corrupt(reason));
            }
            match store.presence(offset, len) {
                Presence::NotYet => return Ok(false),
                Presence::Gone => {
                    let reason = format!("{} shares bytes with another part of the file", name());
                    return Err(corrupt(reason));
                }
                Presence::Here => {}
            }
            if page.compression != Compression::None
                && !unpacked.more(page.unpacked_bytes(index), finished)?
            {
                return Ok(false);
            }
            canvas.charge_for(page, index, len)?;
            if index == 0 {
                canvas.prepare(page);
            }
            if page.is_as_it_comes() {
                page.append(store, canvas)?;
            } else {
                page.decode(index, len, store, canvas)?
                    .map_err(|reason| corrupt(format!("{}: {reason}", name())))?;
            }
            store.release(offset, len);
            self.next += 1;
        }
        canvas.filled(page);
        Ok(true)
    }
}

impl Page {
    /// Whether its samples lie one after another and need no conversion of type.
    fn is_as_it_comes(&self) -> bool {
        self.contiguous_at().is_some() && self.layout.sample.is_as_stored()
    }

    /// Whether strips can be decoded straight into the canvas: there are no tiles, and samples need no conversion of type.
    fn is_straight(&self) -> bool {
        !self.tiled && self.layout.sample.is_as_stored()
    }

    /// Appends all samples of a page that [is as it comes](Page::is_as_it_comes) to the canvas.
    fn append(&self, store: &Store, canvas: &mut Canvas) -> Result<(), StackError> {
        let (offset, len) = (self.chunks[0].0, self.read_bytes(0));
        match (self.layout.sample.is_u16(), self.order) {
            (true, Order::Little) => store.append(offset, len, u16::from_le_bytes, &mut canvas.u16s),
            (true, Order::Big) => store.append(offset, len, u16::from_be_bytes, &mut canvas.u16s),
            (false, Order::Little) => store.append(offset, len, f32::from_le_bytes, &mut canvas.f32s),
            (false, Order::Big) => store.append(offset, len, f32::from_be_bytes, &mut canvas.f32s),
        }
    }

    /// Decodes one strip or tile, all of whose bytes are there. The outer error is the store's, the inner one the file's.
    fn decode(
        &self,
        index: usize,
        len: u64,
        store: &Store,
        canvas: &mut Canvas,
    ) -> Result<Result<(), String>, StackError> {
        let Canvas { u16s, f32s, raw, packed, .. } = canvas;
        // Samples in front of those of this page, which are the last.
        let kept = (if self.layout.sample.is_u16() { u16s.len() } else { f32s.len() }) - self.samples();
        let (width, sample) = (self.layout.width as usize, self.layout.sample);
        let (chunk_width, size) = (self.chunk.0 as usize, sample.bytes());
        let (top, left) = (self.top(index) as usize, index % self.across() * chunk_width);
        let bytes = self.unpacked_bytes(index) as usize;

        let straight = self.is_straight();
        let first = (kept + top * width) * size;
        let into = if straight && sample.is_u16() {
            &mut bytemuck::cast_slice_mut::<u16, u8>(u16s)[first..first + bytes]
        } else if straight {
            &mut bytemuck::cast_slice_mut::<f32, u8>(f32s)[first..first + bytes]
        } else {
            // No more than was charged.
            raw.reserve_exact(bytes.saturating_sub(raw.len()));
            raw.resize(bytes, 0);
            &mut raw[..]
        };
        if self.compression == Compression::None {
            store.copy(self.chunks[index].0, into)?;
        } else {
            let view = store.view(self.chunks[index].0, len as usize, packed)?;
            if let Err(reason) = packing::unpack(self.compression, view, into) {
                return Ok(Err(reason));
            }
        }
        self.predictor.undo(self.order, into, chunk_width, size, 1);
        if straight {
            return Ok(Ok(()));
        }
        let rows = (self.chunk_rows(index) as usize).min(self.rows() as usize - top);
        let columns = chunk_width.min(width - left);
        // Rows of full width follow each other in both places.
        let (runs, run) =
            if columns == width && columns == chunk_width { (1, rows * width) } else { (rows, columns) };
        for row in 0..runs {
            let from = &raw[row * chunk_width * size..][..run * size];
            let to = kept + (top + row) * width + left;
            if sample.is_u16() {
                sample.to_u16(from, &mut u16s[to..to + run]);
            } else {
                sample.to_f32(from, &mut f32s[to..to + run]);
            }
        }
        Ok(Ok(()))
    }
}
