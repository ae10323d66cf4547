//! A place in flight and the bytes that are set aside for it, given back when it is dropped.

use super::{
    Admission, Kind,
    offers::{Offer, Offers},
    take,
};
use crate::error::InferError;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

/// A body of unknown length is charged in steps of so many bytes, of fewer before it has come to that.
pub(super) const COVER_STEP_BYTES: u64 = 1024 * 1024;
const BYTES_IN_FLIGHT: &str = "the budget for bytes in flight";

/// All that is set aside for one request: for its body, and beside it.
#[derive(Debug)]
struct Account {
    admission: Arc<Admission>,
    held: AtomicU64,
}

impl Account {
    /// Sets `more` bytes aside, if there is room.
    fn take(&self, more: u64) -> bool {
        let taken = take(&self.admission.bytes, more, self.admission.limits.bytes_in_flight_max);
        self.held.fetch_add(if taken { more } else { 0 }, Ordering::AcqRel);
        taken
    }

    /// Whether there is room for `more` bytes now.
    fn has_room(&self, more: u64) -> bool {
        let sum = self.admission.bytes.load(Ordering::Acquire).checked_add(more);
        sum.is_some_and(|sum| sum <= self.admission.limits.bytes_in_flight_max)
    }

    fn give_back(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::AcqRel);
        self.admission.bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// The error for `more` bytes that found no room: for ever if the request alone would exceed the budget, else for now.
    fn refuse(&self, more: u64) -> InferError {
        let alone = self.held.load(Ordering::Acquire).saturating_add(more);
        if let Err(never) = self.admission.has_ever("what the request holds at once in bytes", alone) {
            return never;
        }
        self.admission.refused_bytes.fetch_add(1, Ordering::Relaxed);
        self.admission.full(BYTES_IN_FLIGHT, self.admission.limits.bytes_in_flight_max)
    }
}

/// A place in flight, given back when dropped.
#[derive(Debug)]
pub struct Permit {
    account: Arc<Account>,
    kind: Kind,
    /// Without what is held by [`Beside`].
    bytes: AtomicU64,
    /// Another request has its place.
    lost_place: AtomicBool,
    since: Instant,
}

impl Permit {
    /// A permit that was counted already, with nothing set aside yet.
    pub(super) fn new(admission: &Arc<Admission>, kind: Kind) -> Permit {
        let account = Account { admission: Arc::clone(admission), held: AtomicU64::new(0) };
        Permit {
            account: Arc::new(account),
            kind,
            bytes: AtomicU64::new(0),
            lost_place: AtomicBool::new(false),
            since: Instant::now(),
        }
    }

    /// The body turned out to have `bytes`: gives back what was set aside beyond that. Never takes more.
    pub fn trim(&self, bytes: u64) {
        let before = self.bytes.fetch_min(bytes, Ordering::AcqRel);
        self.account.give_back(before.saturating_sub(bytes));
    }

    /// Sets aside what is missing up to `bytes`.
    ///
    /// # Errors
    /// [`InferError::Full`], or [`InferError::TooLarge`] if the request alone would exceed the budget; what was set aside before stays.
    pub fn cover(&self, bytes: u64) -> Result<(), InferError> {
        self.set_aside(bytes, bytes)
    }

    /// Checks that there is room for what is missing up to `bytes`, and sets none of it aside.
    ///
    /// # Errors
    /// As [`Permit::cover`].
    pub fn could_cover(&self, bytes: u64) -> Result<(), InferError> {
        let more = bytes.saturating_sub(self.bytes());
        if self.account.has_room(more) { Ok(()) } else { Err(self.account.refuse(more)) }
    }

    /// The same as [`Permit::cover`] for a body that has reached `bytes` and still grows. Takes a whole step ahead if there is room, so
    /// that not each frame asks; but not twice as many, so that a body of which little comes takes little.
    ///
    /// # Errors
    /// As [`Permit::cover`].
    pub fn cover_growing(&self, bytes: u64) -> Result<(), InferError> {
        let step = bytes.min(COVER_STEP_BYTES).next_power_of_two();
        self.set_aside(bytes, bytes.next_multiple_of(step))
    }

    /// Sets aside what is missing up to `wanted` bytes if there is room, else up to `needed`.
    fn set_aside(&self, needed: u64, wanted: u64) -> Result<(), InferError> {
        let now = self.bytes();
        if needed <= now {
            return Ok(());
        }
        let more = [wanted - now, needed - now];
        let Some(taken) = more.into_iter().find(|more| self.account.take(*more)) else {
            return Err(self.account.refuse(needed - now));
        };
        self.bytes.fetch_add(taken, Ordering::AcqRel);
        Ok(())
    }

    /// The same where `bytes` is all that `what` takes; `what` names it in a refusal.
    ///
    /// # Errors
    /// As [`Permit::cover`].
    pub fn cover_all(&self, what: &'static str, bytes: u64) -> Result<(), InferError> {
        self.account.admission.has_ever(what, bytes)?;
        self.cover(bytes)
    }

    /// Sets aside `bytes` more, until the request ends.
    ///
    /// # Errors
    /// As [`Permit::cover`].
    pub fn more(&self, bytes: u64) -> Result<(), InferError> {
        // Most requests need no more, and skip the shared counter.
        if bytes > 0 && !self.account.take(bytes) {
            return Err(self.account.refuse(bytes));
        }
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        Ok(())
    }

    /// An empty [`Beside`], for what the request may later take beside its body.
    pub fn nothing_beside(&self) -> Beside {
        Beside { account: Arc::clone(&self.account), bytes: 0 }
    }

    /// Sets aside `bytes` for what the request takes beside its body, until the [`Beside`] is dropped.
    ///
    /// # Errors
    /// [`InferError::Full`], or [`InferError::TooLarge`] if the request alone would exceed the budget; nothing is set aside then.
    pub fn beside(&self, bytes: u64) -> Result<Beside, InferError> {
        let mut beside = self.nothing_beside();
        beside.grow_to(bytes)?;
        Ok(beside)
    }

    /// Moves all that is set aside here to a new request: a message that arrived on a call that goes on.
    ///
    /// # Errors
    /// [`InferError::Full`] where there are too many requests; nothing is set aside here then either.
    pub fn split_off(&self) -> Result<Permit, InferError> {
        let alone = self.account.admission.admit().inspect_err(|_| self.trim(0))?;
        let bytes = self.bytes.swap(0, Ordering::AcqRel);
        self.account.held.fetch_sub(bytes, Ordering::AcqRel);
        alone.account.held.store(bytes, Ordering::Release);
        alone.bytes.store(bytes, Ordering::Release);
        Ok(alone)
    }

    /// Offers the place of a request whose body has been too slow since then to whoever finds no other. Calls keep theirs.
    pub(crate) fn offer(self: &Arc<Self>, slow_since: Instant) -> Option<Offer> {
        (self.kind == Kind::Request).then(|| self.offers().add(self, slow_since))
    }

    pub(super) fn offers(&self) -> &Offers {
        &self.account.admission.offers
    }

    pub(super) fn lose_place(&self) {
        self.lost_place.store(true, Ordering::Release);
    }

    /// Bytes set aside.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }
}

/// Wraps work on what a request brought, so that the work holds the permit until it is done: it goes on even if the request is over before.
/// The permit is released before the result is delivered.
pub fn charged<T, W: FnOnce() -> T>(permit: Option<&Arc<Permit>>, work: W) -> impl FnOnce() -> T + use<T, W> {
    let permit = permit.cloned();
    move || {
        let _permit = permit;
        work()
    }
}

/// A response of fewer bytes is not counted: a request takes as much in any case.
const UNCOUNTED_BYTES: u64 = 16 * 1024;

/// The permit to charge a response of `bytes` to; `None` if they are too few to count.
pub fn counting(permit: Option<&Arc<Permit>>, bytes: u64) -> Option<&Arc<Permit>> {
    permit.filter(|_| bytes >= UNCOUNTED_BYTES)
}

/// Writes a response of at most `bytes_max` bytes. They are set aside before that, until the request ends. `bytes` tells how many the
/// response took; the others are given back.
///
/// # Errors
/// As [`Permit::cover`], and those of `write`.
pub fn written<T>(
    permit: Option<&Arc<Permit>>,
    bytes_max: u64,
    write: impl FnOnce() -> Result<T, InferError>,
    bytes: impl FnOnce(&T) -> usize,
) -> Result<T, InferError> {
    let Some(permit) = counting(permit, bytes_max) else { return write() };
    permit.more(bytes_max)?;
    let written = write();
    let took = written.as_ref().map_or(0, |written| bytes(written) as u64);
    permit.trim(permit.bytes().saturating_sub(bytes_max.saturating_sub(took)));
    written
}

/// Bytes that a request takes beside its body, given back when dropped.
#[derive(Debug)]
pub struct Beside {
    account: Arc<Account>,
    bytes: u64,
}

impl Beside {
    /// Sets aside `bytes` in place of what was, taking or giving back the difference. Returns whether there was room. Where there was none,
    /// no refusal is counted: the caller can put the data elsewhere.
    pub fn set(&mut self, bytes: u64) -> bool {
        let less = self.bytes.saturating_sub(bytes);
        self.account.give_back(less);
        self.bytes -= less;
        let more = bytes - self.bytes;
        let fits = self.account.take(more);
        self.bytes += if fits { more } else { 0 };
        fits
    }

    /// Sets aside what is missing up to `bytes`.
    ///
    /// # Errors
    /// As [`Permit::beside`]; what was set aside stays.
    pub fn grow_to(&mut self, bytes: u64) -> Result<(), InferError> {
        self.account.admission.has_ever("what is held beside the body in bytes", bytes)?;
        let more = bytes.saturating_sub(self.bytes);
        if !self.account.take(more) {
            return Err(self.account.refuse(more));
        }
        self.bytes += more;
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.account.give_back(*self.bytes.get_mut());
        let admission = &self.account.admission;
        if !*self.lost_place.get_mut() {
            admission.count_of(self.kind).fetch_sub(1, Ordering::AcqRel);
        }
        if self.kind == Kind::Call {
            return;
        }
        let held = self.since.elapsed().as_micros() as u64;
        // Losing an update to another thread changes a mean by little.
        let mean = admission.held_us.load(Ordering::Relaxed);
        admission.held_us.store(mean - mean / 16 + held / 16, Ordering::Relaxed);
    }
}
