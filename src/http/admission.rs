//! Who may come in: requests in flight, decided on the head alone; and bytes in flight, decided before a body is read whose length
//! is known, and as it grows where it is not, or is not held as a whole.
//!
//! A permit is shared by the request (its extensions, as `Arc<Permit>`) and the reply's body, and is given back when the
//! last of both is gone: until then the request takes memory. (A concurrency layer of the usual kind gives it back when
//! the head of the reply is ready.)

use crate::error::InferError;
use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::Response,
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

/// `Retry-After` stays within these, whatever was measured.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// A body of unknown length is charged in steps of this.
const COVER_STEP_BYTES: u64 = 1024 * 1024;
const BYTES_IN_FLIGHT: &str = "the budget for bytes in flight";

/// How much may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Requests, from their head to the end of their reply; and as many calls that bring requests.
    pub requests_in_flight_max: u64,
    /// Bytes of their bodies, and of what is made of these.
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
            held_us: AtomicU64::new(0),
        })
    }

    /// Lets a request in. What it takes is set aside as that becomes known.
    ///
    /// # Errors
    /// [`InferError::Full`], with `retry_after` from how long requests have been in flight lately.
    pub fn admit(self: &Arc<Self>) -> Result<Permit, InferError> {
        self.permit(Kind::Request)
    }

    /// Lets a call in that brings requests, one after the other, for as long as it likes: what has come of the next is charged to
    /// it, and each is a request when it is there ([`Permit::split_off`]). However many of them are silent, other requests come in.
    ///
    /// # Errors
    /// As [`Admission::admit`].
    pub fn open(self: &Arc<Self>) -> Result<Permit, InferError> {
        self.permit(Kind::Call)
    }

    fn permit(self: &Arc<Self>, kind: Kind) -> Result<Permit, InferError> {
        let max = self.limits.requests_in_flight_max;
        if !take(self.count_of(kind), 1, max) {
            self.refused_requests.fetch_add(1, Ordering::Relaxed);
            return Err(self.full(kind.counted_as(), max));
        }
        Ok(Permit { account: Account::new(self), kind, bytes: AtomicU64::new(0), since: Instant::now() })
    }

    fn count_of(&self, kind: Kind) -> &AtomicU64 {
        match kind {
            Kind::Request => &self.requests,
            Kind::Call => &self.calls,
        }
    }

    /// Lets a request in, which has the permit in its extensions then.
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

    /// Refuses what is more than the whole budget.
    fn has_ever(&self, what: &'static str, got: u64) -> Result<(), InferError> {
        let limit = self.limits.bytes_in_flight_max;
        if got > limit {
            return Err(InferError::TooLarge { what, got, limit, option: "in_flight_bytes_max" });
        }
        Ok(())
    }

    fn full(&self, what: &'static str, limit: u64) -> InferError {
        // With everything taken, the mean time in flight is about when half of it is free again.
        let held = Duration::from_micros(self.held_us.load(Ordering::Relaxed));
        InferError::Full { what, limit, retry_after: held.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX) }
    }
}

/// What is set aside for one request: for its body, and beside it.
#[derive(Debug)]
struct Account {
    admission: Arc<Admission>,
    held: AtomicU64,
}

impl Account {
    fn new(admission: &Arc<Admission>) -> Arc<Account> {
        Arc::new(Account { admission: Arc::clone(admission), held: AtomicU64::new(0) })
    }

    /// Sets so many bytes more aside, if there is room.
    fn take(&self, more: u64) -> bool {
        let taken = take(&self.admission.bytes, more, self.admission.limits.bytes_in_flight_max);
        self.held.fetch_add(if taken { more } else { 0 }, Ordering::AcqRel);
        taken
    }

    fn give_back(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::AcqRel);
        self.admission.bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// The refusal of so many bytes more: for now, or for ever where the request alone would hold more than there may be.
    fn refuse(&self, more: u64) -> InferError {
        let alone = self.held.load(Ordering::Acquire).saturating_add(more);
        if let Err(never) = self.admission.has_ever("what the request holds at once in bytes", alone) {
            return never;
        }
        self.admission.refused_bytes.fetch_add(1, Ordering::Relaxed);
        self.admission.full(BYTES_IN_FLIGHT, self.admission.limits.bytes_in_flight_max)
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

/// What comes in.
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

/// A place in flight, given back when dropped.
#[derive(Debug)]
pub struct Permit {
    account: Arc<Account>,
    kind: Kind,
    /// Of the body alone.
    bytes: AtomicU64,
    since: Instant,
}

impl Permit {
    /// The body turned out to have `bytes`: gives back what was set aside beyond them. Never takes more.
    pub fn trim(&self, bytes: u64) {
        let before = self.bytes.fetch_min(bytes, Ordering::AcqRel);
        self.account.give_back(before.saturating_sub(bytes));
    }

    /// Sets aside what is missing to `bytes`.
    ///
    /// # Errors
    /// [`InferError::Full`], or [`InferError::TooLarge`] where there never is as much; what was set aside stays.
    pub fn cover(&self, bytes: u64) -> Result<(), InferError> {
        self.set_aside(bytes, bytes)
    }

    /// The same for a body that has come to `bytes` and grows, with something ahead so that not each frame asks.
    ///
    /// # Errors
    /// As [`Permit::cover`].
    pub fn cover_growing(&self, bytes: u64) -> Result<(), InferError> {
        self.set_aside(bytes, bytes.next_multiple_of(COVER_STEP_BYTES))
    }

    /// Sets aside what is missing to so many bytes: to those that are wanted if there is room, else to those that are needed.
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

    /// The same where `bytes` is all that `what` takes.
    ///
    /// # Errors
    /// As [`Permit::cover`].
    pub fn cover_all(&self, what: &'static str, bytes: u64) -> Result<(), InferError> {
        self.account.admission.has_ever(what, bytes)?;
        self.cover(bytes)
    }

    /// For what the request may come to take beside its body, of which nothing is set aside yet.
    pub fn nothing_beside(&self) -> Beside {
        Beside { account: Arc::clone(&self.account), bytes: 0 }
    }

    /// Sets aside more for what the request takes beside its body, until that is dropped.
    ///
    /// # Errors
    /// [`InferError::Full`], or [`InferError::TooLarge`] where there never is as much; nothing is set aside.
    pub fn beside(&self, bytes: u64) -> Result<Beside, InferError> {
        let mut beside = self.nothing_beside();
        beside.grow_to(bytes)?;
        Ok(beside)
    }

    /// Moves all that is set aside here to a request of its own: what came with a call that goes on.
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

    /// Bytes set aside.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }
}

/// Bytes that a request takes beside its body, given back when dropped.
#[derive(Debug)]
pub struct Beside {
    account: Arc<Account>,
    bytes: u64,
}

impl Beside {
    /// Sets aside so many bytes instead, or gives back what is more; whether there was room. Nobody is refused where there was none:
    /// whoever asks has somewhere else to put it.
    pub fn set(&mut self, bytes: u64) -> bool {
        let less = self.bytes.saturating_sub(bytes);
        self.account.give_back(less);
        self.bytes -= less;
        let more = bytes - self.bytes;
        let fits = self.account.take(more);
        self.bytes += if fits { more } else { 0 };
        fits
    }

    /// Sets aside what is missing to so many bytes.
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
        admission.count_of(self.kind).fetch_sub(1, Ordering::AcqRel);
        if self.kind == Kind::Call {
            return;
        }
        let held = self.since.elapsed().as_micros() as u64;
        // Losing an update to another thread changes a mean by little.
        let mean = admission.held_us.load(Ordering::Relaxed);
        admission.held_us.store(mean - mean / 16 + held / 16, Ordering::Relaxed);
    }
}

/// The reply, which keeps the permit until its body has ended.
pub(crate) fn hold(reply: Response<Body>, permit: Arc<Permit>) -> Response<Body> {
    reply.map(|body| Body::new(Held { body, _permit: permit }))
}

/// A reply's body that keeps its permit until it has ended.
struct Held {
    body: Body,
    _permit: Arc<Permit>,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use axum::{
        Router,
        extract::State,
        middleware::{self, Next},
        routing::post,
    };
    use tower::ServiceExt;

    fn admission() -> Arc<Admission> {
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
        // Also of other requests there is none, so that it will never be let in.
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
        // A third request is one too many, and what came for it is no longer there.
        call.cover(40).unwrap();
        let full = call.split_off().unwrap_err();
        assert!(matches!(full, InferError::Full { limit: 2, .. }), "{full}");
        assert_eq!(admission.in_flight().bytes, 60);
        drop((message, other));
        let now = admission.in_flight();
        assert_eq!((now.requests, now.bytes), (0, 0));
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
        permit.cover_growing(1).unwrap();
        assert_eq!(admission.in_flight().bytes, COVER_STEP_BYTES);
        permit.cover_growing(COVER_STEP_BYTES + 4).expect("there is room for it, if not for the next step");
        assert_eq!(admission.in_flight().bytes, COVER_STEP_BYTES + 4);
        let never = permit.cover_growing(COVER_STEP_BYTES + 11);
        assert!(matches!(never, Err(InferError::TooLarge { .. })), "{never:?}");
        permit.trim(30);
        assert_eq!(admission.in_flight().bytes, 30);
        permit.trim(50);
        assert_eq!(admission.in_flight().bytes, 30, "trimming never takes more");
        drop(permit);
        assert_eq!(admission.in_flight().bytes, 0);
    }

    #[tokio::test]
    async fn the_permit_lives_until_the_body_of_the_reply_has_ended() {
        let admission = admission();
        let router: Router =
            Router::new().route("/", post(|| async { "answer" })).layer(middleware::from_fn_with_state(
                Arc::clone(&admission),
                async |State(admission): State<Arc<Admission>>, mut request: Request, next: Next| {
                    let permit = admission.enter(&mut request).unwrap();
                    permit.cover(10).unwrap();
                    hold(next.run(request).await, permit)
                },
            ));
        let request = http::Request::post("/").body(Body::empty()).unwrap();
        let reply = router.oneshot(request).await.unwrap();
        let now = admission.in_flight();
        assert_eq!((now.requests, now.bytes), (1, 10));
        drop(reply);
        assert_eq!(admission.in_flight().requests, 0);
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
