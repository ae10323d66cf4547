//! Admission control. The number of requests in flight is checked on a request's head alone. Whether there is room for its bytes is checked
//! before a body is read, if its length is known and it is held as a whole. They are set aside as they come: who announces a body and does
//! not send it takes none.
//!
//! The request (its extensions, as `Arc<Permit>`) and the response's body share a permit, which is given back when both are gone: until
//! then the request takes memory. Work on the body that was begun holds it as well ([`charged`]). (An ordinary concurrency layer gives it
//! back as soon as the head of the response is ready.)

mod held;
mod offers;
mod permit;
pub(crate) mod texts;

use crate::error::InferError;
use axum::extract::Request;
pub(crate) use held::{hold, hold_bytes, keeping};
pub use permit::{Beside, Permit, charged, counting, written};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Bounds of `Retry-After`, whatever was measured.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// How much may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Requests, from their head to the end of their response. Calls that bring requests ([`Admission::open`]) are counted apart, up to the
    /// same number.
    pub requests_in_flight_max: u64,
    /// Bytes of their bodies, and of what is made from these.
    pub bytes_in_flight_max: u64,
}

/// What is in flight, and what was refused.
#[derive(Debug)]
pub struct Admission {
    limits: AdmissionLimits,
    requests: AtomicU64,
    calls: AtomicU64,
    bytes: AtomicU64,
    refused_requests: AtomicU64,
    refused_bytes: AtomicU64,
    offers: offers::Offers,
    /// Moving mean of how long a request is in flight, in microseconds.
    held_us: AtomicU64,
}

/// Counts of an [`Admission`] at one time, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlight {
    /// Requests now.
    pub requests: u64,
    /// Bytes set aside now.
    pub bytes: u64,
    /// Refused so far for the number of requests.
    pub refused_requests: u64,
    /// Refused so far for the bytes.
    pub refused_bytes: u64,
}

impl Admission {
    /// Nothing in flight yet.
    pub fn new(limits: AdmissionLimits) -> Arc<Admission> {
        Arc::new(Admission {
            limits,
            requests: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            refused_requests: AtomicU64::new(0),
            refused_bytes: AtomicU64::new(0),
            offers: offers::Offers::default(),
            held_us: AtomicU64::new(0),
        })
    }

    /// Lets a request in, if need be in the place of one that offers it ([`Permit::offer`]). Its bytes are set aside as they become known.
    ///
    /// # Errors
    /// [`InferError::Full`], with `retry_after` from how long requests have been in flight lately.
    pub fn admit(self: &Arc<Self>) -> Result<Permit, InferError> {
        self.permit(Kind::Request)
    }

    /// Lets in a call that brings requests, one after the other, for as long as it likes. What has arrived of the next request is charged
    /// to the call; once complete, it is a request of its own ([`Permit::split_off`]). Silent calls, however many, keep no request out.
    ///
    /// # Errors
    /// As [`Admission::admit`].
    pub fn open(self: &Arc<Self>) -> Result<Permit, InferError> {
        self.permit(Kind::Call)
    }

    fn permit(self: &Arc<Self>, kind: Kind) -> Result<Permit, InferError> {
        let max = self.limits.requests_in_flight_max;
        let has_place = take(self.count_of(kind), 1, max) || (kind == Kind::Request && self.offers.take());
        if !has_place {
            self.refused_requests.fetch_add(1, Ordering::Relaxed);
            return Err(self.full(kind.counted_as(), max));
        }
        Ok(Permit::new(self, kind))
    }

    fn count_of(&self, kind: Kind) -> &AtomicU64 {
        match kind {
            Kind::Request => &self.requests,
            Kind::Call => &self.calls,
        }
    }

    /// Lets a request in and puts its permit into its extensions.
    ///
    /// # Errors
    /// As [`Admission::admit`].
    pub fn enter(self: &Arc<Self>, request: &mut Request) -> Result<Arc<Permit>, InferError> {
        let permit = Arc::new(self.admit()?);
        request.extensions_mut().insert(Arc::clone(&permit));
        Ok(permit)
    }

    /// The counts now.
    pub fn in_flight(&self) -> InFlight {
        InFlight {
            requests: self.requests.load(Ordering::Acquire),
            bytes: self.bytes.load(Ordering::Acquire),
            refused_requests: self.refused_requests.load(Ordering::Relaxed),
            refused_bytes: self.refused_bytes.load(Ordering::Relaxed),
        }
    }

    /// Refuses what exceeds the whole budget.
    fn has_ever(&self, what: &'static str, got: u64) -> Result<(), InferError> {
        let limit = self.limits.bytes_in_flight_max;
        if got > limit {
            return Err(InferError::TooLarge {
                what: what.into(),
                got,
                limit,
                option: "in_flight_bytes_max",
            });
        }
        Ok(())
    }

    fn full(&self, what: &'static str, limit: u64) -> InferError {
        // With everything taken, about half of it is free again after the mean time in flight.
        let held = Duration::from_micros(self.held_us.load(Ordering::Relaxed));
        InferError::Full { what, limit, retry_after: held.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX) }
    }
}

/// Adds `count` unless that would exceed `max`.
fn take(counter: &AtomicU64, count: u64, max: u64) -> bool {
    counter
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            now.checked_add(count).filter(|sum| *sum <= max)
        })
        .is_ok()
}

/// What is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Request,
    /// One that brings requests.
    Call,
}

impl Kind {
    fn counted_as(self) -> &'static str {
        match self {
            Kind::Request => "the number of requests in flight",
            Kind::Call => "the number of open streams",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::{permit::COVER_STEP_BYTES, *};

    pub(super) fn admission() -> Arc<Admission> {
        Admission::new(AdmissionLimits { requests_in_flight_max: 2, bytes_in_flight_max: 100 })
    }

    /// A request of so many bytes.
    fn admitted(admission: &Arc<Admission>, bytes: u64) -> Result<Permit, InferError> {
        let permit = admission.admit()?;
        permit.cover(bytes)?;
        Ok(permit)
    }

    #[test]
    fn what_a_request_takes_beside_its_body_is_set_aside_until_it_is_dropped() {
        let admission = admission();
        let permit = admitted(&admission, 30).unwrap();
        let mut beside = permit.beside(50).unwrap();
        assert!(beside.set(70) && !beside.set(71) && beside.set(60));
        assert_eq!(admission.in_flight().refused_bytes, 0);
        beside.grow_to(10).unwrap();
        assert_eq!(admission.in_flight().bytes, 90);
        // It alone exceeds the budget, even without other requests: it will never be let in.
        let never = beside.grow_to(71).unwrap_err();
        assert!(matches!(never, InferError::TooLarge { got: 101, limit: 100, .. }), "{never}");
        assert!(never.to_string().contains("in_flight_bytes_max"), "{never}");
        assert!(matches!(beside.grow_to(101), Err(InferError::TooLarge { got: 101, limit: 100, .. })));
        let other = admission.admit().unwrap();
        assert!(matches!(other.beside(11), Err(InferError::Full { limit: 100, .. })));
        drop(other);
        // What goes on beside the body does not change what the body counts.
        permit.trim(20);
        drop(permit);
        assert_eq!(admission.in_flight().bytes, 60);
        drop(beside);
        assert_eq!(admission.in_flight().bytes, 0);
    }

    #[test]
    fn a_call_that_brings_requests_is_none_and_what_is_split_off_is_one_that_is_counted_once() {
        let admission = admission();
        let (silent, call) = (admission.open().unwrap(), admission.open().unwrap());
        let full = admission.open().unwrap_err();
        assert!(full.to_string().contains("open streams"), "{full}");
        drop(silent);
        call.cover(60).unwrap();
        assert_eq!(admission.in_flight().requests, 0, "however long it is silent");
        let message = call.split_off().unwrap();
        assert_eq!((call.bytes(), message.bytes()), (0, 60));
        let other = admission.admit().unwrap();
        let now = admission.in_flight();
        assert_eq!((now.requests, now.bytes), (2, 60));
        // What was split off is not the call's any more: the refusal is for now, not for ever.
        let rest = other.beside(40).unwrap();
        let full = call.cover(50).unwrap_err();
        assert!(matches!(full, InferError::Full { limit: 100, .. }), "{full}");
        drop(rest);
        // A third request is one too many, and what was set aside for it is given back.
        call.cover(40).unwrap();
        let full = call.split_off().unwrap_err();
        assert!(matches!(full, InferError::Full { limit: 2, .. }), "{full}");
        assert_eq!(admission.in_flight().bytes, 60);
        drop((message, other));
        let now = admission.in_flight();
        assert_eq!((now.requests, now.bytes), (0, 0));
    }

    #[test]
    fn a_refusal_says_to_retry_after_the_mean_time_in_flight() {
        let admission = admission();
        let _both = [admission.admit().unwrap(), admission.admit().unwrap()];
        for (held_us, seconds) in [(0, 1), (7_000_000, 7), (u64::MAX, 60)] {
            admission.held_us.store(held_us, Ordering::Relaxed);
            let full = admission.admit().unwrap_err();
            let InferError::Full { retry_after, .. } = full else { panic!("{full}") };
            assert_eq!(retry_after, Duration::from_secs(seconds));
        }
    }

    #[test]
    fn what_a_reply_did_not_need_of_its_most_is_given_back() {
        const MOST: u64 = 1 << 20;
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: 2 * MOST };
        let permit = Arc::new(Admission::new(limits).admit().unwrap());
        permit.cover(1000).unwrap();
        let during = || Ok(permit.bytes());
        assert_eq!(written(Some(&permit), MOST, during, |_| 100 << 10), Ok(1000 + MOST));
        assert_eq!(permit.bytes(), 1000 + (100 << 10));
        let fails = || Err::<(), _>(InferError::Draining);
        written(Some(&permit), MOST, fails, |()| 0).unwrap_err();
        assert_eq!(permit.bytes(), 1000 + (100 << 10));
    }

    #[test]
    fn how_long_a_call_is_open_says_nothing_of_when_to_retry() {
        let admission = admission();
        let held = || admission.held_us.load(Ordering::Relaxed);
        admission.held_us.store(16_000_000, Ordering::Relaxed);
        drop(admission.open().unwrap());
        assert_eq!(held(), 16_000_000);
        drop(admission.admit().unwrap());
        assert!(held() < 16_000_000, "a request does");
    }

    #[test]
    fn both_bounds_refuse_and_a_refusal_takes_nothing() {
        let admission = admission();
        let first = admitted(&admission, 60).unwrap();
        let full = admitted(&admission, 41).unwrap_err();
        assert!(matches!(full, InferError::Full { limit: 100, .. }), "{full}");
        let second = admitted(&admission, 40).unwrap();
        let full = admission.admit().unwrap_err();
        assert!(matches!(full, InferError::Full { limit: 2, .. }), "{full}");
        drop((first, second));
        let left = admission.in_flight();
        assert_eq!((left.requests, left.bytes), (0, 0));
        assert_eq!((left.refused_requests, left.refused_bytes), (1, 1));
    }

    #[test]
    fn what_grows_is_charged_ahead_while_there_is_room_and_trimmed_at_the_end() {
        let limits =
            AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: COVER_STEP_BYTES + 10 };
        let admission = Admission::new(limits);
        let permit = admission.admit().unwrap();
        for (bytes, charged) in [
            (1, 1),
            (3, 4),
            (1000, 1024),
            (COVER_STEP_BYTES / 2 + 1, COVER_STEP_BYTES),
            // There is room for it, if not for the next step.
            (COVER_STEP_BYTES + 4, COVER_STEP_BYTES + 4),
        ] {
            permit.cover_growing(bytes).unwrap();
            assert_eq!(admission.in_flight().bytes, charged, "{bytes} have come");
        }
        let never = permit.cover_growing(COVER_STEP_BYTES + 11);
        assert!(matches!(never, Err(InferError::TooLarge { .. })), "{never:?}");
        permit.trim(30);
        assert_eq!(admission.in_flight().bytes, 30);
        permit.trim(50);
        assert_eq!(admission.in_flight().bytes, 30, "trimming never takes more");
        drop(permit);
        assert_eq!(admission.in_flight().bytes, 0);
    }

    #[test]
    fn permits_taken_and_given_back_by_many_threads_leave_nothing_behind() {
        let admission = admission();
        std::thread::scope(|scope| {
            for bytes in 0..4 {
                let admission = &admission;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        if let Ok(permit) = admitted(admission, bytes * 20) {
                            permit.trim(bytes);
                            assert!(admission.in_flight().requests <= 2);
                        }
                    }
                });
            }
        });
        let left = admission.in_flight();
        assert_eq!((left.requests, left.bytes), (0, 0));
    }
}
