//! Memory that this process and its children share: one file without a name, mapped by each.
//!
//! ```text
//! | pool: images are decoded here, batches assembled here | traffic of one child | of the next |
//!
//! traffic: | copies of inputs from elsewhere | copied results | results that the device writes |
//! ```
//!
//! The parent allocates all of it except the results in a child's traffic, which that child allocates. Parts do not overlap, and
//! only one side writes a part; the other side reads it until it says that it is done. Memory for what a device writes is allocated
//! when its batch starts, without ever waiting. It has a range of its own, so that copies which wait for room wait for nothing but
//! the parent.
//!
//! A message that is larger than its range goes in a [sheet](Region::sheet) of its own, which is not pinned for any device.
#![allow(unsafe_code)]

use super::arena::{ALIGN, Arena, Span};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};
use std::{
    collections::BTreeSet,
    io,
    ops::{Deref, DerefMut, Range},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

/// The pool's share, in eighths.
const POOL: usize = 3;

/// The file as this process sees it.
#[derive(Debug)]
struct Mapping {
    file: OwnedFd,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory; `Arena`, and between processes their messages, decide who may write which part.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A new file of zeros with a sealed size: if a file shrinks, a process that reads beyond its end is killed (SIGBUS).
    fn made(bytes: usize) -> io::Result<Mapping> {
        let file = memfd_create("ocelli-tensors", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Mapping::new(file, bytes)
    }

    fn new(file: OwnedFd, bytes: usize) -> io::Result<Mapping> {
        let (both, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at a place that the system chooses touches nothing of ours.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, both, shared, &file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped to address 0"))?;
        Ok(Mapping { file, start, bytes })
    }

    /// Where a part begins. The caller has checked the range.
    fn at(&self, range: &Range<usize>) -> *mut u8 {
        debug_assert!(range.start <= range.end && range.end <= self.bytes);
        // SAFETY: the range lies in the mapping.
        unsafe { self.start.as_ptr().add(range.start) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; whatever points into it holds the mapping.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) } {
            tracing::error!(%error, "shared memory could not be unmapped");
        }
    }
}

/// The shared memory. Clones share it.
#[derive(Debug, Clone)]
pub struct Region {
    mapping: Arc<Mapping>,
    pool: Arena,
    /// Allocates shares, one per child.
    traffic: Arena,
    share: usize,
    /// The devices whose killed processes have not ended, and keep their shares.
    outlasted: Arc<Mutex<BTreeSet<String>>>,
}

impl Region {
    /// Memory for `children` children, `bytes` for each of them: three eighths for batches that are being assembled, a quarter each
    /// for inputs that are copied to a child and for results that are copied, an eighth for results that its device writes.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new(bytes: usize, children: usize) -> io::Result<Region> {
        const PAGE: usize = 4096;
        let too_much = || io::Error::from(io::ErrorKind::OutOfMemory);
        let eighth = (bytes / 8).checked_next_multiple_of(PAGE).ok_or_else(too_much)?.max(PAGE);
        let times =
            |eighths: usize| eighth.checked_mul(eighths).and_then(|bytes| bytes.checked_mul(children));
        let pool = times(POOL).ok_or_else(too_much)?;
        let all = times(8).filter(|all| *all <= isize::MAX as usize).ok_or_else(too_much)?;
        let mapping = Arc::new(Mapping::made(all)?);
        let (pool, traffic) = (Arena::new(0..pool), Arena::new(pool..all));
        Ok(Region { mapping, pool, traffic, share: eighth * (8 - POOL), outlasted: Arc::default() })
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    /// The part allocated for one message or, where there was no room, a sheet, whose handle is sent with the message.
    ///
    /// # Errors
    /// If the system refuses.
    pub(in crate::engine) fn or_sheet(
        lent: Option<Part>,
        bytes: usize,
    ) -> io::Result<(Part, Option<Region>)> {
        match lent {
            Some(part) => Ok((part, None)),
            None => Region::sheet(bytes).map(|(sheet, part)| (part, Some(sheet))),
        }
    }

    /// Memory for one message: a file of its own, and a part that covers it.
    ///
    /// # Errors
    /// If the system refuses.
    pub(in crate::engine) fn sheet(bytes: usize) -> io::Result<(Region, Part)> {
        let arena = Arena::new(0..bytes.max(1).next_multiple_of(ALIGN));
        let mapping = Arc::new(Mapping::made(arena.bytes())?);
        let traffic = Arena::new(0..0);
        let sheet = Region { mapping, pool: arena, traffic, share: 0, outlasted: Arc::default() };
        let part = sheet.lend(bytes).expect("it is made for so many");
        Ok((sheet, part))
    }

    /// Maps memory that the other side created. None of it may be allocated here, except ranges that the other side names (`lending`).
    ///
    /// # Errors
    /// If the file cannot be mapped, or may shrink.
    pub fn open(file: OwnedFd) -> io::Result<Region> {
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("the file may shrink"));
        }
        let bytes = usize::try_from(fstat(&file)?.st_size).map_err(io::Error::other)?;
        let mapping = Arc::new(Mapping::new(file, bytes)?);
        let (pool, traffic) = (Arena::new(0..0), Arena::new(0..0));
        Ok(Region { mapping, pool, traffic, share: 0, outlasted: Arc::default() })
    }

    /// The same memory, with `pool` as its pool: the range into which a child's device writes results.
    ///
    /// # Errors
    /// If `pool` does not lie in the region.
    pub(in crate::engine) fn lending(&self, pool: Range<usize>) -> Result<Region, String> {
        let pool = self.checked(pool.start, pool.len())?;
        Ok(Region { pool: Arena::new(pool), ..self.clone() })
    }

    /// The file handle to send to a child.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.mapping.file.as_fd()
    }

    /// Where a range begins in this process, for pinning. It stays mapped as long as any of the region's clones exists.
    ///
    /// # Errors
    /// If the range does not lie in the region.
    pub(in crate::engine) fn memory(&self, part: &Range<usize>) -> Result<NonNull<u8>, String> {
        let part = self.checked(part.start, part.len())?;
        Ok(NonNull::new(self.mapping.at(&part)).expect("a mapping does not begin at 0"))
    }

    /// Bytes of the pool, and how many of them are free.
    pub fn pool_bytes(&self) -> (usize, usize) {
        (self.pool.bytes(), self.pool.free_bytes())
    }

    /// Allocates a part of the pool, if there is room.
    pub fn lend(&self, bytes: usize) -> Option<Part> {
        self.pool.take(bytes).map(|span| self.part(span))
    }

    /// Allocates the share for the traffic of a device's child. Waits for the share of its predecessor while the last results in it are
    /// being read.
    ///
    /// # Errors
    /// If the predecessor has been killed and has not ended: how long that takes is unknown. It cannot take another device's share, since
    /// that device may be about to need it.
    pub(in crate::engine) fn traffic(&self, device: &str) -> Result<Traffic, String> {
        if self.outlasted.lock().contains(device) {
            return Err("its process before was killed and has not ended, and may still write to the memory that they share: it is \
                        waited for"
                .to_owned());
        }
        let span = self.traffic.take_waiting(self.share).expect("shares are whole");
        let Range { start, end } = span.range();
        let eighth = self.share / (8 - POOL);
        let [results, landing] = [start + 2 * eighth, start + 4 * eighth];
        Ok(Traffic {
            region: self.clone(),
            inputs: Arena::new(start..results),
            results: results..landing,
            landing: landing..end,
            share: Arc::new(span),
        })
    }

    /// Records that the process of a device was killed and has not ended. Until the result is dropped, the device gets no other process.
    pub(in crate::engine) fn outlasts(&self, device: &str) -> Outlasts {
        self.outlasted.lock().insert(device.to_owned());
        Outlasts { region: self.clone(), device: device.to_owned() }
    }

    /// The memory of a span that was allocated from an arena of this region.
    pub(in crate::engine) fn part(&self, span: Span) -> Part {
        Part { mapping: Arc::clone(&self.mapping), span, _share: None }
    }

    /// The offset of data that lies in the region; `None` if it lies elsewhere.
    pub(in crate::engine) fn place(&self, data: &[u8]) -> Option<usize> {
        let offset = data.as_ptr().addr().checked_sub(self.mapping.start.addr().get())?;
        (offset + data.len() <= self.mapping.bytes).then_some(offset)
    }

    /// Copies bytes that another process wrote.
    ///
    /// # Errors
    /// If they do not lie in the region.
    pub(in crate::engine) fn copy(&self, offset: usize, to: &mut [u8]) -> Result<(), String> {
        let range = self.checked(offset, to.len())?;
        // SAFETY: the range lies in the mapping and is as long as `to`; no reference is made to memory that others may write.
        unsafe { std::ptr::copy_nonoverlapping(self.mapping.at(&range), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// A copy of bytes that another process wrote.
    ///
    /// # Errors
    /// If they do not lie in the region.
    pub(in crate::engine) fn read(&self, offset: usize, bytes: usize) -> Result<Vec<u8>, String> {
        self.checked(offset, bytes)?;
        let mut copy = vec![0; bytes];
        self.copy(offset, &mut copy)?;
        Ok(copy)
    }

    /// A view, without a copy, of bytes that another process wrote.
    ///
    /// # Errors
    /// If they do not lie in the region.
    ///
    /// # Safety
    /// No process may write them while the view is held.
    pub(in crate::engine) unsafe fn view(&self, offset: usize, bytes: usize) -> Result<Bytes, String> {
        let range = self.checked(offset, bytes)?;
        Ok(Bytes::from_owner(View { mapping: Arc::clone(&self.mapping), range }))
    }

    /// The range of these bytes.
    ///
    /// # Errors
    /// If they do not lie in the region.
    pub(in crate::engine) fn checked(&self, offset: usize, bytes: usize) -> Result<Range<usize>, String> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.mapping.bytes);
        let end = end.ok_or_else(|| {
            format!("{bytes} bytes at {offset} do not lie in the {} that are shared", self.mapping.bytes)
        })?;
        Ok(offset..end)
    }
}

/// The share of a killed process that has not ended.
pub(in crate::engine) struct Outlasts {
    region: Region,
    device: String,
}

impl Drop for Outlasts {
    fn drop(&mut self) {
        self.region.outlasted.lock().remove(&self.device);
    }
}

/// The share of the region through which one child and its parent exchange data. The next child gets the share when this and
/// all of its parts are gone.
#[derive(Debug)]
pub(in crate::engine) struct Traffic {
    region: Region,
    inputs: Arena,
    /// The range that the child allocates for results that it copies,
    pub(in crate::engine) results: Range<usize>,
    /// and the one for results that its device writes.
    pub(in crate::engine) landing: Range<usize>,
    share: Arc<Span>,
}

impl Traffic {
    /// The memory to pin for the child's device: the pool, where batches for any child may be assembled, and this share. The shares of
    /// other children do not concern it.
    pub(in crate::engine) fn pinned(&self) -> [Range<usize>; 2] {
        [0..self.region.pool.bytes(), self.share.range()]
    }

    /// Allocates a part for a message to the child, waiting for room; `None` if it is larger than all there is.
    pub(in crate::engine) fn lend_waiting(&self, bytes: usize) -> Option<Part> {
        let span = self.inputs.take_waiting(bytes)?;
        Some(Part { _share: Some(Arc::clone(&self.share)), ..self.region.part(span) })
    }
}

/// A part of the region, written by one owner.
#[derive(Debug)]
pub struct Part {
    mapping: Arc<Mapping>,
    span: Span,
    /// The share that it was allocated from, unless it is from the pool, which stays.
    _share: Option<Arc<Span>>,
}

impl Part {
    /// Its offset in the region.
    pub(in crate::engine) fn offset(&self) -> usize {
        self.span.range().start
    }

    /// Its address in this process.
    pub(in crate::engine) fn start(&self) -> NonNull<u8> {
        NonNull::new(self.mapping.at(&self.span.range())).expect("a mapping does not begin at 0")
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the span lies in the mapping and has no other owner; memory of a new file is zeroed, so it is initialised.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.span.range().len()) }
    }
}

impl DerefMut for Part {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only reference to these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.span.range().len()) }
    }
}

/// A part that another process wrote.
struct View {
    mapping: Arc<Mapping>,
    range: Range<usize>,
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping; the caller of `Region::view` promised that nobody writes it.
        unsafe { std::slice::from_raw_parts(self.mapping.at(&self.range), self.range.len()) }
    }
}

/// Rounds up to where the next tensor may begin.
pub(in crate::engine) fn aligned(offset: usize) -> usize {
    offset.next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread, time::Duration};

    #[test]
    fn what_one_mapping_writes_another_reads_where_it_was_told() {
        let region = Region::new(1 << 16, 1).expect("memory");
        let other =
            Region::open(region.file().try_clone_to_owned().expect("a handle")).expect("the same file");
        let mut part = region.lend(1000).expect("room");
        part.fill(7);
        assert_eq!(region.place(&part[3..]), Some(part.offset() + 3));
        assert_eq!(region.place(&[1, 2, 3]), None);
        // SAFETY: nobody writes the part while it is held.
        let view = unsafe { other.view(part.offset(), 1000) }.expect("in the region");
        assert!(view.iter().all(|byte| *byte == 7));
        assert_eq!(other.read(part.offset(), 1000).expect("in the region"), vec![7; 1000]);
        assert!(other.read(1 << 17, 1).is_err() && other.read(usize::MAX, 2).is_err());
        assert!(other.lend(1).is_none(), "a child lends nothing of the pool");
    }

    #[test]
    fn a_childs_share_waits_for_the_one_before_it_and_the_pool_does_not_eat_it() {
        let region = Region::new(1 << 16, 1).expect("memory");
        let (pool, _) = region.pool_bytes();
        let _all = region.lend(pool).expect("all of the pool");
        assert!(region.lend(1).is_none());
        let first = region.traffic("gpu").expect("a share");
        assert_eq!(first.inputs.bytes(), first.results.len());
        let (theirs, (found, gets)) = (region.clone(), mpsc::channel());
        // On a thread of its own: a test that waits for it would hang as well.
        let second = thread::spawn(move || found.send(theirs.traffic("gpu").map(|traffic| traffic.results)));
        while !region.traffic.disturb() {
            assert!(!second.is_finished(), "it does not wait");
            thread::yield_now();
        }
        let results = first.results.clone();
        drop(first);
        assert_eq!(gets.recv_timeout(Duration::from_secs(60)), Ok(Ok(results)));
    }

    #[test]
    fn a_child_has_the_pool_and_its_own_share_known_to_its_device_and_no_other_share() {
        let region = Region::new(1 << 16, 8).expect("memory");
        let traffics: Vec<Traffic> = (0..8).map(|_| region.traffic("gpu").expect("a share")).collect();
        let (pool, _) = region.pool_bytes();
        let mut shares = Vec::new();
        for traffic in &traffics {
            let [common, share] = traffic.pinned();
            assert_eq!(common, 0..pool);
            assert_eq!(
                (share.start, share.end),
                (traffic.results.start - traffic.inputs.bytes(), traffic.landing.end)
            );
            shares.push(share);
        }
        shares.sort_by_key(|share| share.start);
        assert!(shares.windows(2).all(|two| two[0].end == two[1].start));
        assert_eq!((shares[0].start, shares[7].end), (pool, region.mapping.bytes));
    }

    #[test]
    fn the_share_of_a_process_that_does_not_end_is_given_to_no_other_and_not_waited_for() {
        let region = Region::new(1 << 16, 2).expect("memory");
        let traffic = region.traffic("gpu").expect("a share");
        let outlasts = region.outlasts("gpu");
        let why = region.traffic("gpu").expect_err("it has it still");
        assert!(why.contains("has not ended"), "{why}");
        let other = region.traffic("other").expect("its own");
        drop(traffic);
        drop(outlasts);
        assert!(region.traffic("gpu").is_ok());
        drop(other);
    }

    #[test]
    fn the_file_cannot_shrink_under_a_reader() {
        let region = Region::new(1 << 16, 1).expect("memory");
        assert!(ftruncate(region.file(), 0).is_err());
        let open =
            memfd_create("one that may", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a file");
        assert!(Region::open(open).is_err());
    }

    #[test]
    fn a_sheet_has_room_for_what_it_is_made_for_and_the_other_side_reads_it() {
        for bytes in [1, ALIGN, 100_001] {
            let (sheet, mut part) = Region::sheet(bytes).expect("memory");
            assert!(part.len() >= bytes && sheet.lend(1).is_none());
            part.fill(7);
            let file = sheet.file().try_clone_to_owned().expect("a handle");
            let other = Region::open(file).expect("the same file");
            assert_eq!(other.read(part.offset(), bytes).expect("in it"), vec![7; bytes]);
        }
    }
}
