//! The bytes of a TIFF as its decoder reads them: with a read budget, and changed where the decoder does not understand them.
//!
//! The decoder refuses palettes, whose samples are stored exactly as grey ones are. So the number that says "palette" is replaced as it is
//! read, and the decoder returns the indices. The same is done for colours with extra samples: the decoder drops extra samples before it
//! undoes the prediction that depends on them, but of grey it returns all samples. Sizes are replaced where tiles have to be read whole.
//!
//! Nor does the decoder know bytes whose first bit is the lowest. The bytes of such strips and tiles, compressed or not, are bit-reversed
//! as they are read, as in libtiff.

use crate::image::stack::Encoding;
use std::{
    io::{Error, Read, Result, Seek, SeekFrom},
    sync::atomic::{AtomicU64, Ordering},
};
use tiff::tags::Tag;

/// How many bytes may be read, as a multiple of the file, beside [`READ_BYTES_BASE`]. Many strips over the same bytes, each inflated again,
/// would cost far more time than the size of the file explains.
const READ_FILES_MAX: u64 = 16;
/// Bytes that may be read beside that multiple: the decompressors read ahead of each strip.
const READ_BYTES_BASE: u64 = 256 << 20;
/// The same for the walk, which reads directories: a small file may have thousands that overlap, with all tags that there are in each.
const WALK_BYTES_BASE: u64 = 24 << 20;

/// The tag type for values of 32 bits.
const LONG: u16 = 4;

/// Where the decoder reads something other than what the file holds.
#[derive(Default)]
pub(super) struct Changes {
    /// Bytes that are read instead of those in the file.
    patches: Vec<(u64, u8)>,
    /// Strips and tiles whose bytes have the lowest bit first: from, and up to.
    pub(super) reversed: Vec<[u64; 2]>,
}

impl Changes {
    /// Marks bytes to be read with the lowest bit first. Pages may share strips, which then come in the same order again.
    pub(super) fn reverse(&mut self, [from, to]: [u64; 2]) {
        match self.reversed.last_mut() {
            Some(last) if (last[0]..=last[1]).contains(&from) => last[1] = last[1].max(to),
            _ => self.reversed.push([from, to]),
        }
    }

    /// Sorts the changes; call it after the last one. Then no range begins before the one in front of it ends, so that ranges can be found
    /// by their ends.
    pub(super) fn sort(&mut self) {
        self.patches.sort_unstable();
        self.reversed.sort_unstable();
        self.reversed.dedup_by(|next, last| {
            let meet = next[0] < last[1];
            if meet {
                last[1] = last[1].max(next[1]);
            }
            meet
        });
    }

    /// Whether any of these bytes is changed. Call it after [`Changes::sort`].
    pub(super) fn meet(&self, [from, to]: [u64; 2]) -> bool {
        let reversed = self.reversed.partition_point(|[_, end]| *end <= from);
        let patched = self.patches.partition_point(|&(at, _)| at < from);
        self.reversed.get(reversed).is_some_and(|[start, _]| *start < to)
            || self.patches.get(patched).is_some_and(|&(at, _)| at < to)
    }

    /// Replaces the value of a tag, which is one number in the directory at `directory`. Its type is replaced as well, because a short type
    /// might not hold the new value; every entry has room for 32 bits.
    pub(super) fn replace(&mut self, bytes: &[u8], directory: u64, tag: Tag, value: u32) -> Option<()> {
        let (entry, value_at) = entry_of(bytes, directory, tag)?;
        let (kind, value) = if bytes.starts_with(b"II") {
            (LONG.to_le_bytes(), value.to_le_bytes())
        } else {
            (LONG.to_be_bytes(), value.to_be_bytes())
        };
        self.patches.extend((entry as u64 + 2..).zip(kind));
        self.patches.extend(((entry + value_at) as u64..).zip(value));
        Some(())
    }
}

/// How many bytes of a file may still be read, by all readers that share this.
pub(super) struct ReadBudget(AtomicU64);

impl ReadBudget {
    /// For the pixels.
    pub(super) fn of(bytes: &[u8]) -> ReadBudget {
        ReadBudget(AtomicU64::new(READ_BYTES_BASE.saturating_add(READ_FILES_MAX * bytes.len() as u64)))
    }

    /// For the walk.
    pub(super) fn of_walk(bytes: &[u8]) -> ReadBudget {
        ReadBudget(AtomicU64::new(WALK_BYTES_BASE.saturating_add(READ_FILES_MAX * bytes.len() as u64)))
    }

    fn take(&self, bytes: u64) -> Result<()> {
        let left = |left: u64| left.checked_sub(bytes);
        let taken = self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, left);
        taken.map(drop).map_err(|_| Error::other("its parts are read again and again"))
    }
}

/// A reader of the file with its changes.
pub(super) struct Source<'a> {
    bytes: &'a [u8],
    position: u64,
    /// Sorted.
    changes: &'a Changes,
    /// Bytes that are read instead of the offset of the first directory.
    first: Vec<u8>,
    budget: &'a ReadBudget,
}

impl<'a> Source<'a> {
    /// `changes` must have been sorted.
    pub(super) fn new(bytes: &'a [u8], changes: &'a Changes, budget: &'a ReadBudget) -> Source<'a> {
        Source { bytes, position: 0, changes, first: Vec::new(), budget }
    }

    /// The same file with another of its directories as the first.
    pub(super) fn beginning_at(mut self, directory: u64) -> Source<'a> {
        // Where the offset is, it has as many bytes as come before it.
        let [little, big] = [directory.to_le_bytes(), directory.to_be_bytes()];
        self.first = match self.bytes.get(..4) {
            Some(b"II*\0") => little[..4].to_vec(),
            Some(b"MM\0*") => big[4..].to_vec(),
            Some(b"II+\0") => little.to_vec(),
            _ => big.to_vec(),
        };
        self
    }
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let start = self.position.min(self.bytes.len() as u64);
        let rest = &self.bytes[start as usize..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        let end = start + count as u64;
        let Changes { patches, reversed } = self.changes;
        let first = reversed.partition_point(|[_, to]| *to <= start);
        for [from, to] in reversed[first..].iter().take_while(|[from, _]| *from < end) {
            let within = (from.max(&start) - start) as usize..(to.min(&end) - start) as usize;
            buffer[within].iter_mut().for_each(|byte| *byte = byte.reverse_bits());
        }
        let first = patches.partition_point(|&(at, _)| at < start);
        for &(at, byte) in patches[first..].iter().take_while(|&&(at, _)| at < end) {
            buffer[(at - start) as usize] = byte;
        }
        for (at, byte) in (self.first.len() as u64..).zip(&self.first) {
            if (start..end).contains(&at) {
                buffer[(at - start) as usize] = *byte;
            }
        }
        self.position = end;
        self.budget.take(count as u64)?;
        Ok(count)
    }
}

impl Seek for Source<'_> {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => (self.bytes.len() as u64).checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or_else(|| Error::other("a seek before the start"))?;
        Ok(self.position)
    }
}

/// The offset in the file of a tag's entry, for the directory at `directory`, and the offset of the value in the entry.
fn entry_of(bytes: &[u8], directory: u64, tag: Tag) -> Option<(usize, usize)> {
    let encoding = Encoding::begins(bytes)?;
    let number = |at: usize, size: usize| Some(encoding.number(bytes.get(at..at.checked_add(size)?)?));
    let (count_bytes, entry_bytes) = (encoding.count_bytes() as usize, encoding.entry_bytes() as usize);
    // Tag, type and count come before the value.
    let value_at = 4 + encoding.offset_bytes();
    let start = usize::try_from(directory).ok()?;
    let entries = usize::try_from(number(start, count_bytes)?).ok()?;
    let mut found = None;
    // Tags have 16 bits, so more entries are not needed to find one.
    for index in 0..entries.min(1 << 16) {
        let entry = start + count_bytes + index * entry_bytes;
        if number(entry, 2)? == u64::from(tag.to_u16()) {
            // If a tag occurs twice, the decoder takes the last.
            found = Some((entry, value_at));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::Changes;

    #[test]
    fn bytes_that_are_read_otherwise_are_found() {
        let mut changes = Changes::default();
        for range in [[40, 48], [8, 16]] {
            changes.reverse(range);
        }
        changes.patches.extend([(100, 1), (60, 1)]);
        changes.sort();
        for range in [[0, 9], [10, 12], [15, 40], [16, 41], [0, 200], [60, 61], [50, 61], [99, 101]] {
            assert!(changes.meet(range), "{range:?}");
        }
        for range in [[0, 8], [16, 40], [48, 60], [61, 100], [101, 200]] {
            assert!(!changes.meet(range), "{range:?}");
        }
    }

    #[test]
    fn strips_that_follow_each_other_are_one_and_others_are_not() {
        let mut changes = Changes::default();
        for range in [[8, 16], [16, 24], [20, 22], [40, 48], [8, 16]] {
            changes.reverse(range);
        }
        assert_eq!(changes.reversed, [[8, 24], [40, 48], [8, 16]]);
    }
}
