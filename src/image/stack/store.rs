//! The bytes of a stack that may still be needed, by their offset in it.
//!
//! Bytes are added at the end ([`Store::push`]) and go when the reader no longer needs them ([`Store::release`]), which may be before they
//! arrive. The rest is kept: in memory up to a limit, and beyond it in a [`Spill`]. Pushed bytes are not copied, except for pieces that are
//! small or that hold much more memory than they need.

use super::{MayHold, StackError, spill::Spill};
use bytes::{Buf, Bytes, BytesMut};
use std::collections::BTreeMap;

/// Smaller pushes are gathered into pieces of up to four times this size, in bytes.
const SMALL_BYTES: usize = 16 << 10;

/// The overhead of a piece beside its bytes.
const PIECE_BYTES: usize = 96;

/// If there are very many pieces, pieces between released ranges are taken for padding if they have fewer bytes than this.
const PADDING_BYTES: u64 = 16;

/// How many ranges are remembered that were released before they arrived. Forgetting more of them only costs memory.
const DOOMED_MAX: usize = 4096;

/// If the caller's budget has no room, fewer bytes than these are not worth a write to the temporary file and a pass over all pieces.
const SPILL_BYTES_MIN: usize = 64 << 10;

/// How many bytes are copied at once if they are not contiguous in memory: a multiple of the size of every number type.
const APART_BYTES: usize = 16 << 10;

/// Whether a range can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Here,
    /// It ends beyond the bytes that have arrived so far.
    NotYet,
    /// Some of it has been released.
    Gone,
}

enum Place {
    Shared(Bytes),
    Own(BytesMut),
    /// This many bytes in the spill.
    File(u64),
}

struct Piece {
    place: Place,
    /// Bytes of memory that the piece keeps from being freed.
    holds: usize,
}

impl Piece {
    fn len(&self) -> u64 {
        match &self.place {
            Place::Shared(bytes) => bytes.len() as u64,
            Place::Own(bytes) => bytes.len() as u64,
            Place::File(len) => *len,
        }
    }

    /// The part from `from` to `to`, copied if it would otherwise hold more than twice its size.
    fn cut(self, from: u64, to: u64) -> Piece {
        // A piece in memory is no longer than memory, so the casts are exact.
        let (start, len) = (from as usize, (to - from) as usize);
        let small = |bytes: &[u8]| Piece { place: Place::Own(BytesMut::from(bytes)), holds: bytes.len() };
        let sparse = len * 2 < self.holds;
        match self.place {
            Place::File(_) => Piece { place: Place::File(to - from), holds: 0 },
            Place::Shared(bytes) if sparse => small(&bytes[start..start + len]),
            Place::Own(bytes) if sparse => small(&bytes[start..start + len]),
            Place::Shared(bytes) => {
                Piece { place: Place::Shared(bytes.slice(start..start + len)), holds: self.holds }
            }
            Place::Own(mut bytes) => {
                bytes.truncate(start + len);
                bytes.advance(start);
                Piece { place: Place::Own(bytes), holds: self.holds }
            }
        }
    }
}

/// The bytes of a stack that may still be needed.
pub(super) struct Store {
    /// Keyed by the offset of their first byte; they do not overlap.
    pieces: BTreeMap<u64, Piece>,
    /// Ranges that were released before they arrived: first byte to end.
    doomed: BTreeMap<u64, u64>,
    end: u64,
    held: usize,
    /// Memory that is held elsewhere for this stack, in bytes.
    beside: usize,
    memory_bytes_max: usize,
    may_hold: MayHold,
    spill: Spill,
}

impl Store {
    pub(super) fn new(memory_bytes_max: usize, spill: Spill) -> Store {
        Store {
            pieces: BTreeMap::new(),
            doomed: BTreeMap::new(),
            end: 0,
            held: 0,
            beside: 0,
            memory_bytes_max,
            may_hold: Box::new(|_| true),
            spill,
        }
    }

    /// Sets the function that says how much memory the store may hold, below the limit.
    pub(super) fn within(&mut self, may_hold: MayHold) {
        self.may_hold = may_hold;
    }

    /// Reports how much is held now; returns whether it may be.
    pub(super) fn tell(&mut self) -> bool {
        let held = self.held();
        (self.may_hold)(held)
    }

    /// The number of bytes that have arrived so far.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Memory that is held now, in bytes.
    pub(super) fn held(&self) -> usize {
        self.held + self.beside + (self.pieces.len() + self.doomed.len()) * PIECE_BYTES
    }

    /// From now on, counts these bytes as held elsewhere for this stack.
    pub(super) fn hold_beside(&mut self, bytes: usize) {
        self.beside = bytes;
    }

    /// Bytes written to the temporary file so far.
    pub(super) fn spilled(&self) -> u64 {
        self.spill.bytes()
    }

    /// Adds the next bytes of the stack.
    pub(super) fn push(&mut self, bytes: &Bytes) -> Result<(), StackError> {
        let end = self.end + bytes.len() as u64;
        let mut at = self.end;
        while let Some((&from, &to)) = self.doomed.first_key_value() {
            if from >= end {
                break;
            }
            if from > at {
                self.keep(at, bytes, at..from);
            }
            at = at.max(to).min(end);
            if to > end {
                break;
            }
            self.doomed.remove(&from);
        }
        if at < end {
            self.keep(at, bytes, at..end);
        }
        self.end = end;
        if self.pieces.len() * PIECE_BYTES > self.memory_bytes_max / 4 {
            self.drop_padding()?;
        }
        if self.spill.possible() {
            return if self.held > self.memory_bytes_max / 4 * 3 {
                self.spill_to(self.memory_bytes_max / 2)
            } else if self.tell() || self.held < SPILL_BYTES_MIN {
                Ok(())
            } else {
                self.spill_to(0)
            };
        }
        let held = self.held();
        if held <= self.memory_bytes_max {
            return Ok(());
        }
        Err(StackError::TooLarge {
            what: "memory for a stack that is stored out of order, in bytes so far,",
            got: held as u64,
            limit: self.memory_bytes_max as u64,
            option: "stack_memory_bytes_max (up to half of in_flight_bytes_max), or allow a temporary file with \
                     stack_spill_bytes_max",
        })
    }

    /// Keeps the part `range` of `bytes`, whose first byte is at the end of the store; `range` counts in offsets of the stack.
    fn keep(&mut self, at: u64, bytes: &Bytes, range: std::ops::Range<u64>) {
        let start = (range.start - self.end) as usize;
        let part = bytes.slice(start..start + (range.end - range.start) as usize);
        if let Some(mut last) = self.pieces.last_entry() {
            let adjacent = *last.key() + last.get().len() == at;
            let piece = last.get_mut();
            if let Place::Own(own) = &mut piece.place
                && adjacent
                && part.len() < SMALL_BYTES
                && own.len() + part.len() <= 4 * SMALL_BYTES
            {
                own.extend_from_slice(&part);
                self.held -= piece.holds;
                piece.holds = piece.holds.max(own.capacity());
                self.held += piece.holds;
                return;
            }
        }
        let piece = if part.len() < SMALL_BYTES {
            Piece { place: Place::Own(BytesMut::from(&part[..])), holds: part.len() }
        } else {
            Piece { place: Place::Shared(part), holds: bytes.len() }
        };
        self.insert(at, piece);
    }

    fn insert(&mut self, at: u64, piece: Piece) {
        self.held += piece.holds;
        self.pieces.insert(at, piece);
    }

    fn remove(&mut self, at: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&at)?;
        self.held -= piece.holds;
        Some(piece)
    }

    /// Drops isolated pieces of a few bytes: alignment padding, of which a long stack has some beside each frame.
    fn drop_padding(&mut self) -> Result<(), StackError> {
        let before = self.pieces.len();
        let mut last_end = None;
        let mut held = self.held;
        let end = self.end;
        let mut starts = self.pieces.keys().copied().skip(1).collect::<Vec<_>>().into_iter();
        self.pieces.retain(|at, piece| {
            let follows = last_end == Some(*at);
            let to = *at + piece.len();
            last_end = Some(to);
            let padding = piece.len() < PADDING_BYTES && to < end && !follows && starts.next() != Some(to);
            if padding {
                held -= piece.holds;
            }
            !padding
        });
        self.held = held;
        if self.pieces.len() <= before / 2 {
            return Ok(());
        }
        Err(StackError::TooLarge {
            what: "the number of places of a stack that are kept for what may refer to them",
            got: before as u64,
            limit: (self.memory_bytes_max / 4 / PIECE_BYTES) as u64,
            option: "stack_memory_bytes_max",
        })
    }

    /// Moves pieces to the temporary file, oldest first, until at most `bytes` bytes are held.
    fn spill_to(&mut self, bytes: usize) -> Result<(), StackError> {
        for (at, piece) in &mut self.pieces {
            if self.held <= bytes {
                break;
            }
            match &piece.place {
                Place::Shared(bytes) => self.spill.write(*at, bytes)?,
                Place::Own(bytes) => self.spill.write(*at, bytes)?,
                Place::File(_) => continue,
            }
            self.held -= piece.holds;
            *piece = Piece { place: Place::File(piece.len()), holds: 0 };
        }
        self.merge_spilled();
        self.tell();
        Ok(())
    }

    /// Merges adjacent spilled pieces into one, so that their number stays small.
    fn merge_spilled(&mut self) {
        let mut merged: BTreeMap<u64, Piece> = BTreeMap::new();
        for (at, piece) in std::mem::take(&mut self.pieces) {
            if let (Some(mut last), Place::File(more)) = (merged.last_entry(), &piece.place) {
                let start = *last.key();
                if let Place::File(len) = &mut last.get_mut().place
                    && start + *len == at
                {
                    *len += *more;
                    continue;
                }
            }
            merged.insert(at, piece);
        }
        self.pieces = merged;
    }

    /// The pieces that overlap a range, in order, with their offsets.
    fn over(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Piece)> {
        let first = self.pieces.range(..=start).next_back().map_or(start, |(at, _)| *at);
        let overlapping = move |(at, piece): &(&u64, &Piece)| **at + piece.len() > start;
        self.pieces.range(first..end).filter(overlapping).map(|(at, piece)| (*at, piece))
    }

    /// Whether the `len` bytes at `start` can be read.
    pub(super) fn presence(&self, start: u64, len: u64) -> Presence {
        let Some(end) = start.checked_add(len).filter(|end| *end <= self.end) else {
            return Presence::NotYet;
        };
        let mut at = start;
        if at < end {
            for (from, piece) in self.over(start, end) {
                if from > at {
                    return Presence::Gone;
                }
                at = from + piece.len();
            }
        }
        if at < end { Presence::Gone } else { Presence::Here }
    }

    /// Copies bytes that are [`Presence::Here`] to `into`.
    pub(super) fn copy(&self, start: u64, into: &mut [u8]) -> Result<(), StackError> {
        let end = start + into.len() as u64;
        for (from, piece) in self.over(start, end) {
            let first = from.max(start);
            let last = (from + piece.len()).min(end);
            let place = &mut into[(first - start) as usize..(last - start) as usize];
            let inside = (first - from) as usize..(last - from) as usize;
            match &piece.place {
                Place::Shared(bytes) => place.copy_from_slice(&bytes[inside]),
                Place::Own(bytes) => place.copy_from_slice(&bytes[inside]),
                Place::File(_) => self.spill.read(first, place)?,
            }
        }
        Ok(())
    }

    /// Appends the numbers in the `len` bytes at `start`, which are [`Presence::Here`], without zeroing their place first.
    pub(super) fn append<T, const N: usize>(
        &self,
        start: u64,
        len: u64,
        number: impl Fn([u8; N]) -> T,
        into: &mut Vec<T>,
    ) -> Result<(), StackError> {
        let (mut at, end) = (start, start + len);
        let mut add = |bytes: &[u8]| {
            let (whole, _) = bytes.as_chunks::<N>();
            into.extend(whole.iter().map(|one| number(*one)));
            (whole.len() * N) as u64
        };
        while at < end {
            let bytes = self.in_memory(at, end);
            at += if bytes.len() >= N {
                add(bytes)
            } else {
                // The bytes are in the file, or the next number is split between two pieces.
                let mut apart = [0; APART_BYTES];
                let bytes = &mut apart[..(end - at).min(APART_BYTES as u64) as usize];
                self.copy(at, bytes)?;
                add(bytes)
            };
        }
        Ok(())
    }

    /// The contiguous bytes from `start` on that are in memory; empty if they are in the file.
    fn in_memory(&self, start: u64, end: u64) -> &[u8] {
        let Some((from, piece)) = self.pieces.range(..=start).next_back() else { return &[] };
        let inside = (start - from) as usize..(end - from).min(piece.len()) as usize;
        match &piece.place {
            Place::Shared(bytes) => &bytes[inside],
            Place::Own(bytes) => &bytes[inside],
            Place::File(_) => &[],
        }
    }

    /// Borrows bytes that are [`Presence::Here`], copied to `scratch` unless they are contiguous already.
    pub(super) fn view<'a>(
        &'a self,
        start: u64,
        len: usize,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], StackError> {
        if let Some((from, piece)) = self.pieces.range(..=start).next_back() {
            let inside = (start - from) as usize..(start - from) as usize + len;
            let whole = match &piece.place {
                Place::Shared(bytes) => bytes.get(inside),
                Place::Own(bytes) => bytes.get(inside),
                Place::File(_) => None,
            };
            if let Some(whole) = whole {
                return Ok(whole);
            }
        }
        scratch.reserve_exact(len.saturating_sub(scratch.len()));
        scratch.resize(len, 0);
        self.copy(start, scratch)?;
        Ok(scratch)
    }

    /// Releases the `len` bytes at `start`, both those that have arrived and those that will.
    pub(super) fn release(&mut self, start: u64, len: u64) {
        let end = start.saturating_add(len);
        if start >= end {
            return;
        }
        if end > self.end && self.doomed.len() < DOOMED_MAX {
            let to = self.doomed.entry(start.max(self.end)).or_insert(end);
            *to = end.max(*to);
        }
        loop {
            let found = self.over(start, end).next().map(|(at, piece)| (at, at + piece.len()));
            let Some((at, to)) = found else { return };
            let (from, last) = (at.max(start), to.min(end));
            let Some(piece) = self.remove(at) else { return };
            match (at < from, last < to) {
                (false, false) => {}
                (true, false) => self.insert(at, piece.cut(0, from - at)),
                (false, true) => self.insert(last, piece.cut(last - at, to - at)),
                (true, true) => {
                    let (before, after) = piece.split(from - at, last - at, to - at);
                    self.insert(at, before);
                    self.insert(last, after);
                }
            }
        }
    }
}

impl Piece {
    /// The parts before `from` and after `to` of a piece of `len` bytes.
    fn split(self, from: u64, to: u64, len: u64) -> (Piece, Piece) {
        let share = |place| Piece { place, holds: self.holds };
        let bytes = match self.place {
            Place::File(_) => return (share(Place::File(from)), share(Place::File(len - to))),
            Place::Own(bytes) => bytes.freeze(),
            Place::Shared(bytes) => bytes,
        };
        let after = share(Place::Shared(bytes.clone())).cut(to, len);
        (share(Place::Shared(bytes)).cut(0, from), after)
    }
}
