//! A first-fit allocator for a range of bytes; adjacent free parts are merged. It handles offsets only; the memory belongs to
//! [`region`](super::region).

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// Parts begin at multiples of this, which suits AVX-512 loads and cache lines.
pub const ALIGN: usize = 64;

/// The free parts, start to length. No two of them are adjacent.
#[derive(Debug)]
struct Free {
    parts: BTreeMap<usize, usize>,
}

impl Free {
    /// Takes the first part that is large enough, cut to size.
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let (start, found) =
            self.parts.iter().find(|(_, found)| **found >= bytes).map(|(start, found)| (*start, *found))?;
        self.parts.remove(&start);
        if found > bytes {
            self.parts.insert(start + bytes, found - bytes);
        }
        Some(start)
    }

    fn put_back(&mut self, mut start: usize, mut bytes: usize) {
        if let Some((&before, &length)) = self.parts.range(..start).next_back() {
            debug_assert!(before + length <= start, "parts come back once");
            if before + length == start {
                self.parts.remove(&before);
                (start, bytes) = (before, length + bytes);
            }
        }
        if let Some(after) = self.parts.remove(&(start + bytes)) {
            bytes += after;
        }
        self.parts.insert(start, bytes);
    }
}

/// A range of bytes that is lent in parts. Clones share it.
#[derive(Debug, Clone)]
pub struct Arena(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    range: Range<usize>,
    free: Mutex<Free>,
    /// Notified when a part comes back.
    freed: Condvar,
}

impl Arena {
    /// An arena in which all of `range` is free. Both ends must be multiples of [`ALIGN`].
    pub fn new(range: Range<usize>) -> Arena {
        debug_assert!(range.start.is_multiple_of(ALIGN) && range.end.is_multiple_of(ALIGN));
        let parts = BTreeMap::from_iter((!range.is_empty()).then_some((range.start, range.len())));
        Arena(Arc::new(Shared { range, free: Mutex::new(Free { parts }), freed: Condvar::new() }))
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.0.range.len()
    }

    /// Free bytes.
    pub fn free_bytes(&self) -> usize {
        self.0.free.lock().parts.values().sum()
    }

    /// Takes `bytes`, rounded up to [`ALIGN`], if they are free in one piece.
    pub fn take(&self, bytes: usize) -> Option<Span> {
        let bytes = rounded(bytes)?;
        let start = self.0.free.lock().take(bytes)?;
        Some(Span { arena: self.clone(), range: start..start + bytes })
    }

    /// Wakes whoever waits, though nothing has come back; whether somebody did.
    #[cfg(test)]
    pub(in crate::engine) fn disturb(&self) -> bool {
        self.0.freed.notify_all() > 0
    }

    /// The same, but waits until they are free. `None` if the arena is too small.
    pub fn take_waiting(&self, bytes: usize) -> Option<Span> {
        self.take_after(bytes, |free| self.0.freed.wait(free))
    }

    /// The same; `wait` lets others have the lock until a part comes back.
    fn take_after(&self, bytes: usize, mut wait: impl FnMut(&mut MutexGuard<'_, Free>)) -> Option<Span> {
        let bytes = rounded(bytes).filter(|bytes| *bytes <= self.bytes())?;
        let mut free = self.0.free.lock();
        loop {
            if let Some(start) = free.take(bytes) {
                return Some(Span { arena: self.clone(), range: start..start + bytes });
            }
            wait(&mut free);
        }
    }
}

/// At least one unit, so that no two parts have the same offset.
fn rounded(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(ALIGN)
}

/// A part that is lent. Dropping it gives it back.
#[derive(Debug)]
pub struct Span {
    arena: Arena,
    range: Range<usize>,
}

impl Span {
    /// Its bytes, as offsets.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.arena.0.free.lock().put_back(self.range.start, self.range.len());
        self.arena.0.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{sync::mpsc, thread, time::Duration};

    proptest! {
        #[test]
        fn parts_never_overlap_and_all_come_back(steps in prop::collection::vec((0usize..700, any::<bool>(), any::<prop::sample::Index>()), 1..200)) {
            let arena = Arena::new(128..4096);
            let mut held: Vec<Span> = Vec::new();
            for (bytes, take, which) in steps {
                if take || held.is_empty() {
                    if let Some(span) = arena.take(bytes) {
                        let range = span.range();
                        prop_assert!(range.start >= 128 && range.end <= 4096 && range.len() >= bytes);
                        prop_assert!(range.start.is_multiple_of(ALIGN));
                        prop_assert!(held.iter().all(|other| other.range.end <= range.start || range.end <= other.range.start));
                        held.push(span);
                    }
                } else {
                    held.swap_remove(which.index(held.len()));
                }
                let taken: usize = held.iter().map(|span| span.range.len()).sum();
                prop_assert_eq!(arena.free_bytes() + taken, arena.bytes());
            }
            drop(held);
            prop_assert!(arena.take(arena.bytes()).is_some(), "in one piece again");
        }
    }

    #[test]
    fn whoever_waits_gets_what_comes_back_and_what_never_fits_is_refused_at_once() {
        let arena = Arena::new(0..256);
        let all = arena.take(256).expect("it is free");
        assert!(arena.take(1).is_none());
        assert!(arena.take_waiting(257).is_none());
        let (theirs, (waits, waiting), (found, gets)) = (arena.clone(), mpsc::channel(), mpsc::channel());
        // On a thread of its own: a test that waits for it would hang as well.
        thread::spawn(move || {
            let span = theirs.take_after(200, |free| {
                let _ = waits.send(());
                theirs.0.freed.wait(free);
            });
            found.send(span.map(|span| span.range()))
        });
        let patience = Duration::from_secs(60);
        waiting.recv_timeout(patience).expect("it waits");
        // It keeps the lock from then on until it sleeps.
        drop(all);
        assert_eq!(gets.recv_timeout(patience), Ok(Some(0..256)));
    }
}
