//! The chain of a TIFF's directories, followed as the file arrives, one page after another.
//!
//! Each directory is read once and released, so a chain that forms a cycle meets bytes that are gone. Descriptions that lie before the
//! first pixels are read before the first frame is returned; later ones, after the last frame.
//!
//! A description, or the room before the second directory, may say that more frames follow the first one directly. Such frames are returned
//! as their bytes arrive. The directories that come later are checked against that.
//!
//! Reduced copies and masks are not frames, wherever they lie. The directories of those before the first frame are kept, because a file
//! that has nothing else marks its frames that way.
//!
//! - `chunks`: where a page's strips or tiles lie.

mod chunks;

use super::{
    Format, Limits, StackError, StackInfo, Step,
    contiguous::Contiguous,
    directory::{Directory, ENTRIES_MAX, Encoding},
    page::{Layout, Page},
    store::{Presence, Store},
    tags,
    wanted::Wanted,
};

/// How many bytes of directories and their lists are read before a call ends, whatever it found.
const WORK_BYTES: u64 = 1 << 20;

/// Looking at one place in the file counts as this many bytes of work, however few bytes there are.
const PLACE_BYTES: u64 = 64;

/// How many reduced copies and masks a file may have, and how many more for each of its frames: more than any pyramid has.
const COPIES_MAX: u64 = 1000;
const COPIES_PER_FRAME_MAX: u64 = 32;

/// A file that begins with this many reduced copies and has no frame before them is taken to mark its frames that way.
const COPIES_FIRST_MAX: u64 = 8;

/// What to read next.
enum At {
    Header,
    Directory(u64),
    /// The lists of a directory's strips or tiles.
    Page(Directory),
    /// What describes the stack and lies before the pixels of its first page.
    First(Page, Directory),
    /// Frames that follow each other directly, then the directory at an offset.
    Contiguous(Contiguous, u64),
    /// What describes the stack and lies elsewhere.
    Descriptions,
    End,
}

/// The directories of a TIFF, one after another.
pub(super) struct Chain {
    encoding: Encoding,
    at: At,
    limits: Limits,
    /// Whether to ignore planes that lie in other files.
    file_alone: bool,
    /// The frame that the next directory describes.
    frame: u64,
    /// Directories of reduced copies and masks so far.
    copies: u64,
    /// Whether the copies are the frames.
    all_copies: bool,
    /// The layout that all pages share.
    layout: Option<Layout>,
    /// The other values of the first directory that are used.
    wanted: Wanted,
    /// Where the first frame's samples lie, if they are contiguous: other frames may follow them.
    first_at: Option<u64>,
    /// Frames before this one lie where the first page's description, or the room after that page, said.
    announced: u64,
    /// Whether the room said so: then every frame has a directory.
    by_room: bool,
    /// Offset of the first directory; once the first frame is known, of that frame's directory.
    begin: u64,
    /// Whether signed samples are stored as unsigned ones.
    raised: bool,
    /// The end of the bytes that must arrive first.
    until: u64,
    /// Work since the last `Step::Busy`, in bytes.
    work: u64,
    /// The offset of the last list of byte counts, and the list: tifffile writes one list for all pages that are alike.
    counts: (u64, Vec<u64>),
}

impl Chain {
    /// For a file with this encoding.
    pub(super) fn new(encoding: Encoding, limits: Limits, file_alone: bool) -> Chain {
        Chain {
            encoding,
            at: At::Header,
            limits,
            file_alone,
            frame: 0,
            copies: 0,
            all_copies: false,
            layout: None,
            wanted: Wanted::new(encoding),
            first_at: None,
            announced: 1,
            by_room: false,
            begin: 0,
            raised: false,
            until: 0,
            work: 0,
            counts: (0, Vec::new()),
        }
    }

    fn corrupt(&self, reason: impl Into<String>) -> StackError {
        StackError::corrupt(Format::Tiff, self.frame, reason)
    }

    /// What is known about the stack, once the first page is known.
    pub(super) fn info(&self) -> Option<StackInfo> {
        let Layout { width, height, sample } = self.layout?;
        let (frames, dimensions) = self.wanted.description.frames(width, height);
        Some(StackInfo {
            width,
            height,
            sample,
            frames,
            dimensions,
            images: self.wanted.description.ome.as_ref().map_or(1, |ome| ome.images.max(1)),
            pixel_nm: self.wanted.description.pixel_nm(),
        })
    }

    /// Whether the next frame is one of those that follow each other directly, so that the number of missing bytes is known.
    pub(super) fn is_contiguous(&self) -> bool {
        matches!(self.at, At::Contiguous(..))
    }

    /// The next page, or several frames that follow each other directly.
    pub(super) fn next(
        &mut self,
        store: &mut Store,
        at_most: usize,
        finished: bool,
    ) -> Result<Step<Page>, StackError> {
        // Retrying earlier would read the long lists of a page again with every piece that arrives.
        if store.end() < self.until && !finished {
            return Ok(Step::Wait { until: self.until });
        }
        loop {
            if self.work >= WORK_BYTES {
                self.work = 0;
                return Ok(Step::Busy);
            }
            let at = std::mem::replace(&mut self.at, At::End);
            let (at, step) = self.step(at, store, at_most, finished)?;
            self.at = at;
            if let Some(step) = step {
                if let Step::Wait { until } = step {
                    self.until = until;
                }
                return Ok(step);
            }
        }
    }

    /// Moves from one place in the file to the next. Returns that place, and the result or the wait if there is one.
    fn step(
        &mut self,
        at: At,
        store: &mut Store,
        at_most: usize,
        finished: bool,
    ) -> Result<(At, Option<Step<Page>>), StackError> {
        Ok(match at {
            At::Header => match self.header(store)? {
                Step::Ready(first) => {
                    self.begin = first;
                    (At::Directory(first), None)
                }
                step => (At::Header, Some(step.nothing())),
            },
            At::Directory(0) if self.by_room && self.frame < self.announced => {
                return Err(self.corrupt(format!(
                    "it has no directory: what lies between the first two directories was read as {} frames",
                    self.announced
                )));
            }
            At::Directory(0) => (At::Descriptions, None),
            At::Directory(offset) => match self.directory(store, offset)? {
                Step::Ready(at) => (at, None),
                step => (At::Directory(offset), Some(step.nothing())),
            },
            At::Page(directory) => match self.page(store, &directory)? {
                Step::Ready(page) if self.layout.is_none() => {
                    self.wanted.note(&directory);
                    (At::First(page, directory), None)
                }
                Step::Ready(page) => self.place(store, page, &directory)?,
                step => (At::Page(directory), Some(step.nothing())),
            },
            At::First(page, directory) => {
                let pixels = page.chunks.iter().map(|(offset, _)| *offset).min().unwrap_or(0);
                match self.wanted.read(store, pixels, finished, self.file_alone)? {
                    Step::Ready(()) => self.place_first(store, page, &directory)?,
                    step => (At::First(page, directory), Some(step.nothing())),
                }
            }
            At::Contiguous(mut contiguous, then) => match contiguous.next(store, at_most, finished)? {
                Step::End => (At::Directory(then), None),
                step => (At::Contiguous(contiguous, then), Some(step)),
            },
            At::Descriptions => match self.wanted.read(store, u64::MAX, finished, self.file_alone)? {
                Step::Ready(()) => (self.after_descriptions()?, None),
                step => (At::Descriptions, Some(step.nothing())),
            },
            At::End => (At::End, Some(Step::End)),
        })
    }

    /// Bytes of the file, once they have arrived.
    fn fetch(
        &mut self,
        store: &Store,
        start: u64,
        len: u64,
        what: &str,
    ) -> Result<Step<Vec<u8>>, StackError> {
        match store.presence(start, len) {
            Presence::NotYet => Ok(Step::Wait { until: start.saturating_add(len) }),
            Presence::Gone => Err(self.corrupt(format!(
                "its {what} at byte {start} lies where something else was read before; do the directories run in a circle?"
            ))),
            Presence::Here => {
                self.work += PLACE_BYTES + len;
                let mut bytes = vec![0; len as usize];
                store.copy(start, &mut bytes)?;
                Ok(Step::Ready(bytes))
            }
        }
    }

    fn header(&mut self, store: &mut Store) -> Result<Step<u64>, StackError> {
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
        Ok(Step::Ready(first))
    }

    fn directory(&mut self, store: &mut Store, offset: u64) -> Result<Step<At>, StackError> {
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
        let directory = Directory::read(encoding, &bytes);
        let copy = !self.all_copies && tags::is_copy(&directory).map_err(|why| self.corrupt(why))?;
        if copy {
            self.copies += 1;
            let (copies, frames) = (self.copies, self.frame.max(self.announced));
            if copies > COPIES_MAX + COPIES_PER_FRAME_MAX * frames {
                return Err(StackError::unsupported(
                    Format::Tiff,
                    format!(
                        "{copies} reduced copies and masks beside {frames} of its frames (at most {COPIES_MAX} and \
                         {COPIES_PER_FRAME_MAX} for each frame)"
                    ),
                    "save the stack's frames alone",
                ));
            }
            if self.layout.is_none() {
                self.all_copies = directory.next == 0 || self.copies >= COPIES_FIRST_MAX;
                let then = if self.all_copies { self.begin } else { directory.next };
                return Ok(Step::Ready(At::Directory(then)));
            }
        }
        store.release(offset, encoding.count_bytes() + len);
        if copy {
            return Ok(Step::Ready(At::Directory(directory.next)));
        }
        if self.frame >= self.limits.frames_max {
            return Err(StackError::too_many(self.frame + 1, self.limits.frames_max));
        }
        if self.layout.is_none() {
            self.begin = offset;
        }
        Ok(Step::Ready(At::Page(directory)))
    }

    /// Handles the first page: returns it, or starts on all frames that its description says follow it.
    fn place_first(
        &mut self,
        store: &mut Store,
        mut page: Page,
        directory: &Directory,
    ) -> Result<(At, Option<Step<Page>>), StackError> {
        self.raised = self.wanted.description.is_raised();
        if self.raised {
            page.layout.sample = page.layout.sample.raised();
        }
        self.layout = Some(page.layout);
        self.release_values(store, directory);
        self.frame = 1;
        self.first_at = page.contiguous_at();
        let (width, height) = (page.layout.width, page.layout.height);
        let told = self.wanted.description.contiguous_frames(width, height);
        let room = if told.is_none() { self.room(&page, directory) } else { None };
        let following = self.following(told.or(room), directory.next)?;
        self.by_room = following.is_some() && told.is_none();
        if let (None, 0, Some(planes)) = (&following, directory.next, self.wanted.description.meta_morph) {
            return Err(StackError::unsupported(
                Format::Tiff,
                format!("{planes} planes of MetaMorph that are compressed or do not follow each other"),
                "save the stack as TIFF with a directory for each plane",
            ));
        }
        Ok(match following {
            Some(contiguous) => (At::Contiguous(Contiguous { next: 0, ..contiguous }, directory.next), None),
            None => (At::Directory(directory.next), Some(Step::Ready(page))),
        })
    }

    /// Handles a later page: returns it, or nothing if its frame has been returned already.
    fn place(
        &mut self,
        store: &mut Store,
        mut page: Page,
        directory: &Directory,
    ) -> Result<(At, Option<Step<Page>>), StackError> {
        if self.raised {
            page.layout.sample = page.layout.sample.raised();
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
        let next = At::Directory(directory.next);
        if self.frame >= self.announced {
            self.frame += 1;
            return Ok((next, Some(Step::Ready(page))));
        }
        // The frame was returned when its bytes arrived. Its directory only checks what the first page said.
        let told = self.first_at.unwrap_or(0) + self.frame * page.layout.frame_bytes();
        if page.contiguous_at() != Some(told) {
            return Err(self.corrupt(format!(
                "its pixels begin at byte {}, but by {} at byte {told}",
                page.chunks.first().map_or(0, |(offset, _)| *offset),
                if self.by_room {
                    "the room after those of the first page"
                } else {
                    "the description of the first page"
                }
            )));
        }
        self.frame += 1;
        Ok((next, None))
    }

    /// How many frames fill the room between the first page's pixels and the next directory; tifffile's OME-TIFFs leave that room for all
    /// frames. `None` if anything else lies there, or may lie there: a description at the end of the file would say too late what it is.
    fn room(&self, page: &Page, directory: &Directory) -> Option<u64> {
        let start = page.contiguous_at()?;
        let room = directory.next.checked_sub(start)?;
        let (frames, rest) =
            (room / page.layout.frame_bytes().max(1), room % page.layout.frame_bytes().max(1));
        let between = |offset: u64| (start..directory.next).contains(&offset);
        let mut values = directory.entries.iter().filter_map(|entry| entry.offset(self.encoding));
        // Directories begin at even offsets, so one byte may be left over.
        let filled = frames > 1 && rest <= 1;
        let alone =
            self.begin < start && !values.any(between) && directory.find(tags::SUB_DIRECTORIES).is_none();
        (filled && alone).then_some(frames)
    }

    /// The frames that follow the first one directly, if something says that there are some and they end before the next directory, or
    /// there is none.
    fn following(&mut self, frames: Option<u64>, next: u64) -> Result<Option<Contiguous>, StackError> {
        let (Some(layout), Some(start), Some(frames @ 2..)) = (self.layout, self.first_at, frames) else {
            return Ok(None);
        };
        let end = layout.frame_bytes().checked_mul(frames).and_then(|bytes| bytes.checked_add(start));
        if end.is_none_or(|end| next != 0 && next < end) {
            return Ok(None);
        }
        if frames > self.limits.frames_max {
            return Err(StackError::too_many(frames, self.limits.frames_max));
        }
        self.announced = frames;
        Ok(Some(Contiguous {
            format: Format::Tiff,
            layout,
            order: self.encoding.order,
            start,
            frames: Some(frames),
            next: 1,
            ends_with_frames: false,
            frames_max: self.limits.frames_max,
        }))
    }

    /// Called when all descriptions have been read. A late description may still say that frames follow the only one. It must not say that
    /// samples are signed which have been returned as unsigned.
    fn after_descriptions(&mut self) -> Result<At, StackError> {
        let signs = |layout: Layout| layout.sample.raised() != layout.sample;
        if self.wanted.description.is_raised() && !self.raised && self.layout.is_some_and(signs) {
            return Err(StackError::unsupported(
                Format::Tiff,
                "samples with a sign (c0=-32768 of ImageJ), which is told only behind them, so that these came out 32768 too high",
                "save the stack anew with ImageJ, which says it before them",
            ));
        }
        let only = self.frame == 1 && self.announced == 1;
        let told = self.layout.and_then(|Layout { width, height, .. }| {
            self.wanted.description.contiguous_frames(width, height)
        });
        let following = if only { self.following(told, 0)? } else { None };
        Ok(following.map_or(At::End, |contiguous| At::Contiguous(contiguous, 0)))
    }

    /// Releases the values of all entries except those that are wanted.
    fn release_values(&self, store: &mut Store, directory: &Directory) {
        for entry in &directory.entries {
            if let (false, Some(offset)) = (self.wanted.holds(entry.tag), entry.offset(self.encoding)) {
                store.release(offset, entry.bytes());
            }
        }
    }
}
