//! The chain of a TIFF's directories, followed as the file comes in, one page after another.
//!
//! Each directory is read once and given up, so that a chain that runs in a circle meets bytes that are gone. Descriptions
//! that stand before the first pixels are read before the first frame; those that stand later, after the last one.

use super::{
    Format, Limits, StackError, StackInfo, Step,
    contiguous::Contiguous,
    directory::{Directory, ENTRIES_MAX, Encoding},
    packing::Compression,
    page::{Layout, Page},
    store::{Presence, Store},
    tags,
    wanted::Wanted,
};

/// Strips or tiles of one page.
const CHUNKS_MAX: u64 = 1 << 18;

/// Bits of the subfile type: a reduced copy, a transparency mask.
const NO_PAGE: u64 = 0b101;

/// What to read next.
enum At {
    Header,
    Directory(u64),
    Page(Directory),
    /// Frames that follow each other, then the directory at an offset.
    Contiguous(Contiguous, u64),
    /// Descriptions that stand after the pixels.
    Descriptions,
    End,
}

/// The directories of a TIFF, one after another.
pub(super) struct Chain {
    encoding: Encoding,
    at: At,
    limits: Limits,
    /// Whether planes that lie in other files do not matter.
    file_alone: bool,
    /// The frame that the next directory describes.
    frame: u64,
    /// Directories of reduced copies and masks so far.
    copies: u64,
    /// What all pages are.
    layout: Option<Layout>,
    /// What the first directory says beside.
    wanted: Wanted,
    /// The first page, where it may be the first of many that follow each other.
    first: Option<Page>,
    /// Frames before this one lie as the first page's description said.
    announced: u64,
}

impl Chain {
    /// For a file that begins like this.
    pub(super) fn new(encoding: Encoding, limits: Limits, file_alone: bool) -> Chain {
        Chain {
            encoding,
            at: At::Header,
            limits,
            file_alone,
            frame: 0,
            copies: 0,
            layout: None,
            wanted: Wanted::new(encoding),
            first: None,
            announced: 1,
        }
    }

    fn corrupt(&self, reason: impl Into<String>) -> StackError {
        StackError::corrupt(Format::Tiff, self.frame, reason)
    }

    /// What is known of the stack once the first page is.
    pub(super) fn info(&self) -> Option<StackInfo> {
        let Layout { width, height, sample } = self.layout?;
        let (frames, dimensions) = self.wanted.description.frames(width, height);
        Some(StackInfo {
            dialect: self.wanted.description.dialect(),
            width,
            height,
            sample,
            frames,
            dimensions,
            pixel_size: self.wanted.description.pixel_size(),
        })
    }

    /// The next page, or several that follow each other.
    pub(super) fn next(
        &mut self,
        store: &mut Store,
        at_most: usize,
        finished: bool,
    ) -> Result<Step<Page>, StackError> {
        loop {
            let step = match &mut self.at {
                At::Header => self.header(store)?,
                At::Directory(0) => {
                    self.at = At::Descriptions;
                    continue;
                }
                At::Directory(offset) => {
                    let offset = *offset;
                    self.directory(store, offset)?
                }
                At::Page(directory) => {
                    let directory = std::mem::take(directory);
                    match self.page(store, &directory, finished)? {
                        Step::Ready(Some(page)) => return Ok(Step::Ready(page)),
                        Step::Ready(None) => Step::Ready(()),
                        step => {
                            self.at = At::Page(directory);
                            step.nothing()
                        }
                    }
                }
                At::Contiguous(contiguous, then) => match contiguous.next(store, at_most, finished)? {
                    Step::End => {
                        self.at = At::Directory(*then);
                        continue;
                    }
                    step => return Ok(step),
                },
                At::Descriptions => match self.wanted.read(store, u64::MAX, finished, self.file_alone)? {
                    Step::Ready(()) => {
                        self.after_descriptions()?;
                        continue;
                    }
                    step => step,
                },
                At::End => Step::End,
            };
            match step {
                Step::Ready(()) => {}
                Step::Wait { until } => return Ok(Step::Wait { until }),
                Step::End => return Ok(Step::End),
            }
        }
    }

    /// Bytes of the file, once they are there.
    fn fetch(&self, store: &Store, start: u64, len: u64, what: &str) -> Result<Step<Vec<u8>>, StackError> {
        match store.presence(start, len) {
            Presence::NotYet => Ok(Step::Wait { until: start.saturating_add(len) }),
            Presence::Gone => Err(self.corrupt(format!(
                "its {what} at byte {start} lies where something else was read before; do the directories run in a circle?"
            ))),
            Presence::Here => {
                let mut bytes = vec![0; len as usize];
                store.copy(start, &mut bytes)?;
                Ok(Step::Ready(bytes))
            }
        }
    }

    fn header(&mut self, store: &mut Store) -> Result<Step<()>, StackError> {
        let len = self.encoding.header_bytes();
        let bytes = match self.fetch(store, 0, len, "header")? {
            Step::Ready(bytes) => bytes,
            step => return Ok(step.nothing()),
        };
        if self.encoding.big && self.encoding.number(&bytes[4..6]) != 8 {
            return Err(self.corrupt("its offsets have a size other than 8 bytes"));
        }
        let first = self.encoding.number(&bytes[len as usize - self.encoding.offset_bytes()..]);
        store.release(0, len);
        self.at = At::Directory(first);
        Ok(Step::Ready(()))
    }

    fn directory(&mut self, store: &mut Store, offset: u64) -> Result<Step<()>, StackError> {
        let encoding = self.encoding;
        let count = match self.fetch(store, offset, encoding.count_bytes(), "directory")? {
            Step::Ready(count) => encoding.number(&count),
            step => return Ok(step.nothing()),
        };
        if count > ENTRIES_MAX {
            return Err(self.corrupt(format!(
                "its directory at byte {offset} has {count} entries, more than {ENTRIES_MAX}"
            )));
        }
        let start = offset.saturating_add(encoding.count_bytes());
        let len = count * encoding.entry_bytes() + encoding.offset_bytes() as u64;
        let bytes = match self.fetch(store, start, len, "directory")? {
            Step::Ready(bytes) => bytes,
            step => return Ok(step.nothing()),
        };
        store.release(offset, encoding.count_bytes() + len);
        let directory = Directory::read(encoding, &bytes);
        let subfile =
            directory.number(tags::SUBFILE_TYPE, "subfile type").map_err(|why| self.corrupt(why))?;
        if self.layout.is_some() && subfile.unwrap_or(0) & NO_PAGE != 0 {
            self.copies += 1;
            if self.copies > self.limits.frames_max {
                return Err(StackError::too_many(self.copies, self.limits.frames_max));
            }
            self.at = At::Directory(directory.next);
        } else {
            if self.frame >= self.limits.frames_max {
                return Err(StackError::too_many(self.frame + 1, self.limits.frames_max));
            }
            self.at = At::Page(directory);
        }
        Ok(Step::Ready(()))
    }

    /// Makes a page of a directory, once the lists that it needs are there; nothing where its frame came out before.
    fn page(
        &mut self,
        store: &mut Store,
        directory: &Directory,
        finished: bool,
    ) -> Result<Step<Option<Page>>, StackError> {
        let mut page = tags::page(directory, self.encoding, self.frame, &self.limits)?;
        if self.wanted.description.is_raised() {
            page.layout.sample = page.layout.sample.raised();
        }
        let (offsets, bytes) = if page.tiled {
            (tags::TILE_OFFSETS, tags::TILE_BYTES)
        } else {
            (tags::STRIP_OFFSETS, tags::STRIP_BYTES)
        };
        let (width, height) = page.chunk;
        let across = u64::from(page.layout.width.div_ceil(width));
        let needed = across * u64::from(page.layout.height.div_ceil(height));
        if needed > CHUNKS_MAX {
            return Err(self.corrupt(format!("it has {needed} strips or tiles, more than {CHUNKS_MAX}")));
        }
        let offsets = match self.list(store, directory, offsets, needed, "list of offsets")? {
            Step::Ready(Some(offsets)) => offsets,
            Step::Ready(None) => return Err(self.corrupt("its directory does not say where its pixels are")),
            step => return Ok(step.nothing()),
        };
        let bytes = match self.list(store, directory, bytes, needed, "list of byte counts")? {
            Step::Ready(Some(bytes)) => bytes,
            // Without compression, and only then, the sizes are known.
            Step::Ready(None) if page.compression == Compression::None => vec![u64::MAX; offsets.len()],
            Step::Ready(None) => {
                return Err(self.corrupt("its directory does not say how long its strips are"));
            }
            step => return Ok(step.nothing()),
        };
        page.chunks = offsets.into_iter().zip(bytes).collect();
        page.join_strips();

        if self.layout.is_none() {
            self.wanted.note(directory);
            let pixels = page.chunks.iter().map(|(offset, _)| *offset).min().unwrap_or(0);
            if let Step::Wait { until } = self.wanted.read(store, pixels, finished, self.file_alone)? {
                return Ok(Step::Wait { until });
            }
            if self.wanted.description.is_raised() {
                page.layout.sample = page.layout.sample.raised();
            }
            self.layout = Some(page.layout);
        }
        let first = self.layout.unwrap_or(page.layout);
        if page.layout != first {
            return Err(StackError::Mismatch {
                frame: self.frame,
                found: page.layout.to_string(),
                first: first.to_string(),
            });
        }
        self.release_values(store, directory);
        self.place(page, directory.next)
    }

    /// What follows from a page that is complete.
    fn place(&mut self, page: Page, next: u64) -> Result<Step<Option<Page>>, StackError> {
        let frame_bytes = page.layout.frame_bytes();
        let start = page.contiguous_at();
        if self.frame > 0 && self.frame < self.announced {
            // It came out when its bytes did. Its directory is a check on the first page's word.
            let told =
                self.first.as_ref().and_then(Page::contiguous_at).unwrap_or(0) + self.frame * frame_bytes;
            if start != Some(told) {
                return Err(self.corrupt(format!(
                    "its pixels begin at byte {}, but by the description of the first page at byte {told}",
                    page.chunks.first().map_or(0, |(offset, _)| *offset)
                )));
            }
            self.frame += 1;
            self.at = At::Directory(next);
            return Ok(Step::Ready(None));
        }
        if self.frame == 0 {
            self.first = Some(page.clone());
            if let Some(contiguous) = self.following(next)? {
                self.frame = 1;
                self.at = At::Contiguous(Contiguous { next: 0, ..contiguous }, next);
                return Ok(Step::Ready(None));
            }
        }
        self.frame += 1;
        self.at = At::Directory(next);
        Ok(Step::Ready(Some(page)))
    }

    /// The frames that follow the first one's, where its description says that there are some and nothing speaks
    /// against it: they lie before the next directory, or there is none.
    fn following(&mut self, next: u64) -> Result<Option<Contiguous>, StackError> {
        let Some(page) = &self.first else { return Ok(None) };
        let Layout { width, height, .. } = page.layout;
        let frames = self.wanted.description.contiguous_frames(width, height).unwrap_or(1);
        let (Some(start), 2..) = (page.contiguous_at(), frames) else { return Ok(None) };
        let end = page.layout.frame_bytes().checked_mul(frames).and_then(|bytes| bytes.checked_add(start));
        if end.is_none_or(|end| next != 0 && next < end) {
            return Ok(None);
        }
        if frames > self.limits.frames_max {
            return Err(StackError::too_many(frames, self.limits.frames_max));
        }
        self.announced = frames;
        Ok(Some(Contiguous {
            format: Format::Tiff,
            layout: page.layout,
            order: page.order,
            start,
            frames: Some(frames),
            next: 1,
            ends_with_frames: false,
            frames_max: self.limits.frames_max,
        }))
    }

    /// Goes on when nothing more can be learned: a description that stood late may still say that frames follow.
    fn after_descriptions(&mut self) -> Result<(), StackError> {
        self.at = At::End;
        if self.frame == 1
            && self.announced == 1
            && let Some(contiguous) = self.following(0)?
        {
            self.at = At::Contiguous(contiguous, 0);
        }
        Ok(())
    }

    /// Gives up the values of all entries but those that are wanted.
    fn release_values(&self, store: &mut Store, directory: &Directory) {
        for entry in &directory.entries {
            if let (false, Some(offset)) = (self.wanted.holds(entry.tag), entry.offset(self.encoding)) {
                store.release(offset, entry.bytes());
            }
        }
    }

    /// The first `needed` values of a list of numbers.
    fn list(
        &self,
        store: &Store,
        directory: &Directory,
        tag: u16,
        needed: u64,
        what: &str,
    ) -> Result<Step<Option<Vec<u64>>>, StackError> {
        let Some(entry) = directory.find(tag) else { return Ok(Step::Ready(None)) };
        if !entry.is_unsigned() || entry.count < needed {
            let count = entry.count;
            return Err(self.corrupt(format!(
                "its {what} has {count} numbers, fewer than its {needed} strips or tiles"
            )));
        }
        let len = needed * entry.value_bytes();
        let bytes = match entry.offset(self.encoding) {
            None => entry.inline().to_owned(),
            Some(offset) => match self.fetch(store, offset, len, what)? {
                Step::Ready(bytes) => bytes,
                step => return Ok(step.nothing()),
            },
        };
        let values = bytes.chunks_exact(entry.value_bytes() as usize).take(needed as usize);
        Ok(Step::Ready(Some(values.map(|value| self.encoding.number(value)).collect())))
    }
}
