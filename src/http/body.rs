//! Reads a request's body within limits of bytes and time, into one piece of memory.
//!
//! [`posted`] finds the files of a prediction in it, by [`multipart`] where they are in a form.

mod limits;
pub mod multipart;
pub(super) mod posted;

use super::{accept::MEANWHILE, admission::Permit, coding::Malformed};
use crate::error::InferError;
use axum::{
    body::{Body, Bytes},
    extract::Request,
};
use bytes::{Buf, BytesMut};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;
pub use limits::BodyLimits;
pub(crate) use limits::{ahead_of, room_for};
use std::{error::Error, sync::Arc, time::Duration};
use tokio::time::{Instant, timeout_at};

/// Buffer space before the first byte of a body of unknown length.
const START_BYTES: usize = 16 * 1024;

/// The most for a body of known length: an announcement alone takes no more address space. A larger body gets the rest of its buffer once
/// this much has come.
const ROOM_BYTES_MAX: usize = 16 << 20;

/// Alignment of a tensor in a body: engines read numbers in place only where they are aligned.
const ALIGN: usize = 64;

/// Pieces that a body may come in, however small they are.
const PIECES_FREE: u64 = 1 << 16;
/// Bytes that pieces must have on average once there are more. Each costs work of its own, and chunks of one byte cost most.
const PIECE_BYTES_MIN: u64 = 64;

/// For how long a body must have been too slow before its request's place is on offer. Round trips between continents take less.
const SLOW_FOR: Duration = Duration::from_millis(250);
/// And for how long nothing of it must have come by then, so that what has reached the server is read first.
const READ_FOR: Duration = Duration::from_millis(1);

/// What became of the wait for a frame.
enum Waited {
    /// It came, or the body ended.
    For(Option<Result<Frame<Bytes>, axum::Error>>),
    InVain,
    PlaceTaken,
}

/// A body being read, frame by frame.
#[derive(Debug)]
pub struct Reader {
    body: Body,
    limits: BodyLimits,
    /// The length that was announced for the body.
    length: Option<u64>,
    began: Instant,
    /// When the last bytes were handed out; cleared when more are asked for.
    handed_out: Option<Instant>,
    /// For an overdue body: how long it may still be overdue because the process was suspended.
    meanwhile: Option<Instant>,
    /// Time that was earned beyond the longest silence, and is lost.
    forfeited: Duration,
    received: u64,
    pieces: u64,
    /// What the body is charged to, and up to how many bytes.
    permit: Option<(Arc<Permit>, u64)>,
    /// Offset of the byte that is put at an aligned address.
    aligned: usize,
}

impl Reader {
    /// The clock starts now.
    pub fn new(body: Body, limits: BodyLimits) -> Reader {
        let (length, began) = (body.size_hint().exact(), Instant::now());
        Reader {
            body,
            limits,
            length,
            began,
            handed_out: None,
            meanwhile: None,
            forfeited: Duration::ZERO,
            received: 0,
            pieces: 0,
            permit: None,
            aligned: 0,
        }
    }

    /// Puts the byte at `offset` at an address that is aligned for any type, if the body is gathered. A tensor behind a JSON header of any
    /// length can then be read in place.
    #[must_use]
    pub fn aligned_at(mut self, offset: usize) -> Reader {
        self.aligned = offset;
        self
    }

    /// Charges the body to the permit: up to [twice](ahead_of) what has come, and at its end no more than its true length. If its length is
    /// known and it is read in one piece, there must be [room](room_for) for up to a MiB before any is read.
    #[must_use]
    pub fn charged_to(self, permit: Arc<Permit>) -> Reader {
        self.charged_up_to(u64::MAX, permit)
    }

    /// The same for a body that is not held as a whole: at most `bytes_max` bytes of it are charged.
    #[must_use]
    pub(crate) fn charged_up_to(mut self, bytes_max: u64, permit: Arc<Permit>) -> Reader {
        self.permit = Some((permit, bytes_max));
        self
    }

    /// Sets other limits, whose clocks and counts begin now: for a body that is a sequence of messages.
    pub(crate) fn limited_by(&mut self, limits: BodyLimits) {
        (self.limits, self.began, self.received, self.pieces) = (limits, Instant::now(), 0, 0);
        (self.length, self.forfeited, self.meanwhile) = (None, Duration::ZERO, None);
    }

    /// The instant by which more must have come. Time earned beyond the longest silence is lost, so that it cannot be saved up.
    fn due(&mut self, now: Instant) -> Instant {
        let deadline = self.began + self.limits.deadline;
        let Some(earned) = self.limits.earned(self.received, self.length) else { return deadline };
        let (due, latest) =
            (self.began + earned.saturating_sub(self.forfeited), now + self.limits.silence_max);
        self.forfeited += due.saturating_duration_since(latest);
        deadline.min(due).min(latest)
    }

    /// Announces how many bytes come under the limits set last.
    pub(crate) fn expects(&mut self, bytes: u64) {
        self.length = Some(bytes);
    }

    /// The announced length, if there is one; never more than the limit.
    ///
    /// # Errors
    /// [`InferError::TooLarge`], before any of it is read.
    pub fn announced(&self) -> Result<Option<u64>, InferError> {
        match self.length.filter(|length| *length > self.limits.bytes_max) {
            Some(length) => Err(self.limits.too_large(length)),
            None => Ok(self.length),
        }
    }

    /// The next bytes, or `None` at the end.
    ///
    /// # Errors
    /// [`InferError::TooLarge`], [`InferError::SlowBody`], [`InferError::Full`] if it outgrows the budget,
    /// [`InferError::BadRequest`] for a malformed chunk and for a flood of tiny ones, [`InferError::Cancelled`] if the
    /// connection was lost.
    pub async fn next(&mut self) -> Result<Option<Bytes>, InferError> {
        if self.body.is_end_stream() {
            return Ok(self.ended());
        }
        let asked = Instant::now();
        let mut now = asked;
        if let Some(since) = self.handed_out.take() {
            // Time in which nobody asks for more does not count: the client may have had to wait for us.
            self.began += now - since;
            self.meanwhile = self.meanwhile.map(|until| until + (now - since));
        }
        loop {
            let due = self.due(now);
            if due > now {
                self.meanwhile = None;
            }
            let frame = match self.frame(asked, self.meanwhile.unwrap_or(due)).await {
                // More may have come while the process was suspended. Granted once until the body is on time again: else a trickle would
                // never be too slow.
                Waited::InVain if self.meanwhile.is_none() => {
                    now = Instant::now();
                    self.meanwhile = Some(now + MEANWHILE);
                    continue;
                }
                Waited::InVain => return Err(self.slow(asked.elapsed())),
                Waited::PlaceTaken => return Err(self.displaced()),
                Waited::For(None) => return Ok(self.ended()),
                Waited::For(Some(Err(error))) => return Err(broken(&error)),
                Waited::For(Some(Ok(frame))) => frame,
            };
            // Trailers say nothing that we use.
            if let Ok(bytes) = frame.into_data() {
                self.received += bytes.len() as u64;
                if self.received > self.limits.bytes_max {
                    return Err(self.limits.too_large(self.received));
                }
                self.pieces += 1;
                if self.pieces > PIECES_FREE && self.received < self.pieces * PIECE_BYTES_MIN {
                    return Err(InferError::BadRequest(format!(
                        "the body's first {} bytes came in {} chunks: send chunks of {PIECE_BYTES_MIN} bytes or more",
                        self.received, self.pieces
                    )));
                }
                if let Some((permit, most)) = &self.permit {
                    let bytes = ahead_of(self.received, self.length).min(*most);
                    // With a known length, `bytes` is ahead already.
                    if self.length.is_some() { permit.cover(bytes) } else { permit.cover_growing(bytes) }?;
                }
                self.handed_out = Some(Instant::now());
                return Ok(Some(bytes));
            }
            now = Instant::now();
        }
    }

    /// Waits for a frame. A body that has been slower for [`SLOW_FOR`] than any may be, as if there were no grace, offers the request's
    /// place to others until more comes: the grace is for servers that have room.
    async fn frame(&mut self, asked: Instant, until: Instant) -> Waited {
        let slow_since = self.limits.earned_at_least(self.received).map(|earned| self.began + earned);
        let on_offer = slow_since.map(|since| (since, (since + SLOW_FOR).max(asked + READ_FOR)));
        if let (Some((permit, _)), Some((since, at))) = (&self.permit, on_offer.filter(|(_, at)| *at < until))
        {
            if let Ok(frame) = timeout_at(at, self.body.frame()).await {
                return Waited::For(frame);
            }
            if let Some(mut offer) = permit.offer(since.into_std()) {
                let frame = tokio::select! {
                    () = offer.taken() => return Waited::PlaceTaken,
                    frame = timeout_at(until, self.body.frame()) => frame,
                };
                return match frame {
                    _ if !offer.withdraw() => Waited::PlaceTaken,
                    Ok(frame) => Waited::For(frame),
                    Err(_) => Waited::InVain,
                };
            }
        }
        timeout_at(until, self.body.frame()).await.map_or(Waited::InVain, Waited::For)
    }

    /// The end, which settles the permit.
    fn ended(&self) -> Option<Bytes> {
        if let Some((permit, _)) = &self.permit {
            permit.trim(self.received);
        }
        None
    }

    /// The whole rest in one piece: without a copy if it comes as one frame, else gathered as it comes, so that a
    /// flood of tiny chunks takes no more memory than their bytes.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub async fn all(mut self) -> Result<Bytes, InferError> {
        let announced = self.announced()?;
        if let (Some(length), Some((permit, most))) = (announced, &self.permit) {
            permit.could_cover(room_for(length).min(*most))?;
        }
        let Some(first) = self.next().await? else {
            return Ok(Bytes::new());
        };
        let aligned = self.aligned;
        let gathered = |parts: &[Bytes]| {
            let so_far: usize = parts.iter().map(Bytes::len).sum();
            // An announced length is within the limit, and takes memory as it is filled: no more than is charged.
            let room = announced.map_or(START_BYTES, |announced| (announced as usize).min(ROOM_BYTES_MAX));
            let mut whole = BytesMut::with_capacity(room.max(so_far) + ALIGN);
            let before = whole.as_ptr().addr().wrapping_add(aligned).wrapping_neg() % ALIGN;
            whole.resize(before, 0);
            whole.advance(before);
            parts.iter().for_each(|part| whole.extend_from_slice(part));
            whole
        };
        // Where more is sure to come, the first frame is copied while the rest is under way.
        let mut whole = if announced.is_some_and(|announced| announced > first.len() as u64) {
            gathered(&[first])
        } else {
            let Some(second) = self.next().await? else {
                return Ok(first);
            };
            gathered(&[first, second])
        };
        while let Some(bytes) = self.next().await? {
            // So much has come by now that the rest can be expected.
            if let (Some(length), true) = (announced, whole.len() + bytes.len() > whole.capacity()) {
                whole.reserve((length as usize).saturating_sub(whole.len()));
            }
            whole.extend_from_slice(&bytes);
        }
        Ok(whole.freeze())
    }

    /// The refusal of a body whose request lost its place.
    fn displaced(&self) -> InferError {
        InferError::SlowBody(format!(
            "{} bytes of the body came in {} ms, and then another request needed its place: as many are in flight as there may be \
             (requests_in_flight_max)",
            self.received,
            self.began.elapsed().as_millis()
        ))
    }

    /// The refusal of a body of which nothing came for `silence`, and which is late.
    fn slow(&self, silence: Duration) -> InferError {
        let BodyLimits { deadline, grace, rate_min, silence_max, .. } = self.limits;
        let rate = self.limits.rate(self.length);
        let so_far =
            |took: Duration| format!("{} bytes of the body came in {} ms", self.received, took.as_millis());
        let took = self.began.elapsed();
        InferError::SlowBody(if took >= deadline {
            format!("{}; the whole body has {} ms", so_far(took), deadline.as_millis())
        } else if silence >= silence_max {
            let so_far = so_far(took.saturating_sub(silence));
            let pause = silence_max.as_millis();
            format!("{so_far}, and then none for {pause} ms, the longest that it may pause (body_timeout_ms)")
        } else {
            let must = format!(
                "{}; after {} ms it must come at {rate} bytes/s or more",
                so_far(took),
                grace.as_millis()
            );
            match self.length.filter(|_| rate > rate_min) {
                Some(length) => {
                    format!("{must}, as its {length} bytes have {} ms", deadline.as_millis())
                }
                None => must,
            }
        })
    }
}

/// Reads a request's whole body, charged to its permit if it has one.
///
/// # Errors
/// As [`Reader::next`].
pub async fn of(request: Request, limits: BodyLimits) -> Result<Bytes, InferError> {
    aligned(request, limits, 0).await
}

/// The same, with the byte at `offset` where [`Reader::aligned_at`] puts it.
///
/// # Errors
/// As [`Reader::next`].
pub async fn aligned(request: Request, limits: BodyLimits, offset: usize) -> Result<Bytes, InferError> {
    let permit = request.extensions().get::<Arc<Permit>>().cloned();
    let reader = Reader::new(request.into_body(), limits).aligned_at(offset);
    match permit {
        Some(permit) => reader.charged_to(permit).all().await,
        None => reader.all().await,
    }
}

/// Reads the whole body, charged to no permit.
///
/// # Errors
/// As [`Reader::next`].
pub async fn read(body: Body, limits: BodyLimits) -> Result<Bytes, InferError> {
    Reader::new(body, limits).all().await
}

/// A body that cannot be read: there is no room to unpack it, the client's framing is at fault, or the client is gone.
fn broken(error: &axum::Error) -> InferError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(refused) = error.downcast_ref::<InferError>() {
            return refused.clone();
        }
        if let Some(malformed) = error.downcast_ref::<Malformed>() {
            return InferError::BadRequest(malformed.to_string());
        }
        if let Some(hyper) = error.downcast_ref::<hyper::Error>() {
            let malformed = hyper.is_parse() || hyper.is_parse_too_large();
            return if malformed || is_invalid(hyper) {
                InferError::BadRequest("the body's framing is malformed".to_owned())
            } else {
                InferError::Cancelled
            };
        }
        cause = error.source();
    }
    InferError::Cancelled
}

/// hyper reports a malformed chunk as an I/O error of an invalid kind.
fn is_invalid(error: &hyper::Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| {
        matches!(io.kind(), std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::super::admission::{Admission, AdmissionLimits};
    use super::*;
    use futures_util::{StreamExt, stream};
    use http_body::SizeHint;
    use std::{
        convert::Infallible,
        pin::Pin,
        task::{Context, Poll},
    };

    pub(super) const LIMITS: BodyLimits = BodyLimits {
        bytes_max: 1_000_000,
        deadline: Duration::from_secs(60),
        grace: Duration::from_secs(5),
        rate_min: 1000,
        silence_max: Duration::from_secs(60),
        option: "body_bytes_max",
    };

    fn frames(frames: Vec<Bytes>) -> Body {
        Body::from_stream(stream::iter(frames.into_iter().map(Ok::<_, Infallible>)))
    }

    #[tokio::test]
    async fn a_body_of_one_frame_is_not_copied() {
        let sent = Bytes::from(vec![7; 1000]);
        for body in [Body::from(sent.clone()), frames(vec![sent.clone()])] {
            let got = read(body, LIMITS).await.unwrap();
            assert_eq!(got.as_ptr(), sent.as_ptr());
        }
    }

    #[tokio::test]
    async fn frames_are_gathered_in_order() {
        let sent: Vec<Bytes> = (0..60_000u32).map(|i| Bytes::from(vec![i as u8])).collect();
        let got = read(frames(sent), LIMITS).await.unwrap();
        assert!(got.iter().enumerate().all(|(i, b)| *b == i as u8));
        assert_eq!(got.len(), 60_000);
    }

    #[tokio::test]
    async fn a_flood_of_tiny_chunks_is_cut_off_and_many_large_ones_are_not() {
        let of = |bytes: usize| frames(vec![Bytes::from(vec![0; bytes]); 70_000]);
        let error = read(of(1), LIMITS).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the body's first 65537 bytes came in 65537 chunks: send chunks of 64 bytes or more"
        );
        let wide = BodyLimits { bytes_max: 10_000_000, ..LIMITS };
        assert_eq!(read(of(64), wide).await.unwrap().len(), 64 * 70_000);
    }

    #[tokio::test]
    async fn a_tensor_behind_a_header_of_any_length_is_aligned() {
        for header in [0, 1, 141, 200, 999] {
            let sent = [vec![b' '; header + 10], vec![7; 100_000]].map(Bytes::from);
            let got = Reader::new(frames(sent.into()), LIMITS).aligned_at(header).all().await.unwrap();
            assert_eq!(got.len(), header + 100_010);
            assert!(got[header..].as_ptr().addr().is_multiple_of(ALIGN), "a header of {header} bytes");
            assert!(
                got[..header + 10].iter().all(|b| *b == b' ') && got[header + 10..].iter().all(|b| *b == 7)
            );
        }
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_with_the_option() {
        let limits = BodyLimits { bytes_max: 10, ..LIMITS };
        for body in [Body::from("01234567890"), frames(vec!["012345".into(), "67890".into()])] {
            assert_eq!(read(body, limits).await, Err(limits.too_large(11)));
        }
        assert_eq!(read(Body::from("0123456789"), limits).await.unwrap(), "0123456789");
    }

    #[tokio::test]
    async fn a_body_of_unknown_length_is_charged_for_what_came() {
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: 100 };
        let admission = Admission::new(limits);
        let read = async |frame: &'static str| {
            let permit = Arc::new(admission.admit().unwrap());
            let body = frames(vec![frame.into(); 3]);
            let reader = Reader::new(body, LIMITS).charged_to(Arc::clone(&permit));
            (reader.all().await.map(|bytes| bytes.len()), permit.bytes())
        };
        assert_eq!(read("01").await, (Ok(6), 6));
        assert_eq!(read("01234567890123456789").await, (Ok(60), 60));
        let (result, _) = read("0123456789012345678901234567890123456789").await;
        assert!(matches!(result, Err(InferError::TooLarge { got: 120, limit: 100, .. })), "{result:?}");
        assert_eq!(admission.in_flight().bytes, 0);
    }

    #[tokio::test]
    async fn what_was_set_aside_for_more_is_given_back_when_a_body_ends() {
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: 10 << 20 };
        let admission = Admission::new(limits);
        let permit = Arc::new(admission.admit().unwrap());
        let mut reader = Reader::new(frames(vec!["01234".into(); 3]), LIMITS).charged_to(Arc::clone(&permit));
        for charged in [8, 16, 16] {
            assert_eq!(reader.next().await, Ok(Some("01234".into())));
            assert_eq!(permit.bytes(), charged);
        }
        assert_eq!(reader.next().await, Ok(None));
        assert_eq!(permit.bytes(), 15);
    }

    #[tokio::test]
    async fn time_in_which_nobody_asks_for_more_is_not_the_callers() {
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let second = stream::once(async move {
            let _ = told.await;
            Ok::<_, Infallible>(Bytes::from("two"))
        });
        let body = Body::from_stream(stream::iter([Ok(Bytes::from("one"))]).chain(second));
        let mut reader = Reader::new(body, LIMITS);
        assert_eq!(reader.next().await, Ok(Some("one".into())));
        // As if it were an hour later, after which the second piece is not there at once.
        let hour = Duration::from_secs(3600);
        reader.began -= hour;
        reader.handed_out = reader.handed_out.map(|since| since - hour);
        tokio::spawn(async move { tell.send(()) });
        assert_eq!(reader.next().await, Ok(Some("two".into())));
    }

    /// An endless body in pieces of `bytes`; each comes `every` after the one before was taken.
    fn trickle(bytes: usize, every: Duration) -> Body {
        Body::from_stream(stream::repeat(Bytes::from(vec![0; bytes])).then(move |piece| async move {
            tokio::time::sleep(every).await;
            Ok::<_, Infallible>(piece)
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_is_cut_by_whichever_limit_comes_first() {
        let (ms, any) = (Duration::from_millis, BodyLimits { rate_min: 0, ..LIMITS });
        for (limits, bytes, every, due) in [
            (any, 1, ms(10), any.deadline),
            // What has come by then is worth 50 ms.
            (LIMITS, 1, ms(100), LIMITS.grace + ms(50)),
            // Each piece comes a moment late, and makes good for it.
            (LIMITS, 5011, ms(5010), LIMITS.deadline),
        ] {
            let began = Instant::now();
            let error = read(trickle(bytes, every), limits).await.unwrap_err();
            let took = began.elapsed();
            assert!(matches!(error, InferError::SlowBody(_)), "{error}");
            assert!(took >= due && took <= due + MEANWHILE + ms(2), "{took:?}, due after {due:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_while_the_process_stood_still_is_read_and_what_comes_later_is_not() {
        // The first piece is there as soon as the process goes on, or a moment later; the rest comes in a moment, piece by piece.
        for (moment, last, whole) in [(0, 0, true), (1, 0, true), (1, 30, false), (0, 30, false)] {
            let ms = Duration::from_millis;
            let stands_still = stream::once(async move {
                tokio::time::advance(LIMITS.deadline * 2).await;
                tokio::time::sleep(ms(moment)).await;
                Ok::<_, Infallible>(Bytes::from("a"))
            });
            let then = stream::iter([1, 1, 1, last]).then(move |after| async move {
                tokio::time::sleep(ms(after)).await;
                Ok(Bytes::from("b"))
            });
            let read = read(Body::from_stream(stands_still.chain(then)), LIMITS).await;
            match read {
                Ok(bytes) => assert!(whole && bytes == "abbbb", "{bytes:?}"),
                Err(error) => {
                    assert!(!whole && matches!(error, InferError::SlowBody(_)), "{moment} {last}: {error}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_body_of_known_length_that_finds_no_room_is_refused_before_any_is_read() {
        let limits = AdmissionLimits { requests_in_flight_max: 2, bytes_in_flight_max: 100 };
        let admission = Admission::new(limits);
        let (one, other) = (admission.admit().unwrap(), Arc::new(admission.admit().unwrap()));
        one.cover(41).unwrap();
        let unread = Body::from_stream(stream::poll_fn(|_| -> Poll<Option<Result<Bytes, Infallible>>> {
            panic!("it is read")
        }));
        let full = Reader::new(announced(60, unread), LIMITS).charged_to(Arc::clone(&other)).all().await;
        assert!(matches!(full, Err(InferError::Full { limit: 100, .. })), "{full:?}");
        drop(one);
        let body = Body::from(vec![0; 60]);
        let read = Reader::new(body, LIMITS).charged_to(Arc::clone(&other)).all().await.unwrap();
        assert_eq!((read.len(), other.bytes()), (60, 60));
    }

    #[tokio::test]
    async fn time_that_was_earned_is_not_saved_up_beyond_the_longest_silence() {
        let silence_max = Duration::from_secs(20);
        let limits = BodyLimits { silence_max, deadline: Duration::from_secs(30 * 24 * 3600), ..LIMITS };
        let mut reader = Reader::new(frames(vec![Bytes::from(vec![0; 500_000]), "a".into()]), limits);
        let left = |reader: &mut Reader| reader.due(Instant::now()).saturating_duration_since(Instant::now());
        assert!(left(&mut reader) <= LIMITS.grace);
        reader.next().await.unwrap();
        // It is worth 500 s.
        assert!(left(&mut reader) <= silence_max && left(&mut reader) > silence_max / 2);
        // Most of that is over, and a byte more is worth a millisecond.
        reader.began -= Duration::from_secs(19);
        reader.next().await.unwrap();
        assert!(left(&mut reader) < silence_max / 2);
        // However much has come, more is worth more.
        for received in [1 << 32, 1 << 40, 1 << 50] {
            reader.received = received;
            assert!(left(&mut reader) > silence_max / 2, "{received} bytes");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_pauses_for_too_long_is_told_so() {
        let silence_max = Duration::from_secs(20);
        let limits = BodyLimits { silence_max, deadline: Duration::from_secs(30 * 24 * 3600), ..LIMITS };
        let error = |bytes: usize| async move {
            let piece = stream::once(async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok::<_, Infallible>(Bytes::from(vec![0; bytes]))
            });
            read(Body::from_stream(piece.chain(stream::pending())), limits).await.unwrap_err().to_string()
        };
        // It is worth 500 s at the rate that is demanded.
        assert_eq!(
            error(500_000).await,
            "500000 bytes of the body came in 10 ms, and then none for 20000 ms, the longest that it may pause (body_timeout_ms)"
        );
        let by_rate = error(100).await;
        assert!(by_rate.contains("it must come at 1000 bytes/s or more"), "{by_rate}");
    }

    /// A body that is announced with this length, whatever comes of it.
    struct Announced(u64, Body);

    impl HttpBody for Announced {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
            Pin::new(&mut self.1).poll_frame(context)
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.0)
        }
    }

    fn announced(bytes: u64, body: Body) -> Body {
        Body::new(Announced(bytes, body))
    }

    /// A body that stops after its first bytes.
    fn stops_after(bytes: usize) -> Body {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from(vec![0; bytes]))]);
        Body::from_stream(first.chain(stream::pending()))
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_are_announced_and_do_not_come_take_no_bytes_from_others() {
        const MIB: u64 = 1 << 20;
        let limits = AdmissionLimits { requests_in_flight_max: 100, bytes_in_flight_max: 2 * MIB };
        let admission = Admission::new(limits);
        let bodies: [fn() -> Body; 4] = [
            || announced(MIB, Body::from_stream(stream::pending::<Result<Bytes, Infallible>>())),
            || announced(9 * MIB, stops_after(1)),
            || announced(MIB, stops_after(100)),
            || stops_after(1),
        ];
        let read = |body| {
            let permit = Arc::new(admission.admit().unwrap());
            tokio::spawn(
                Reader::new(body, BodyLimits { bytes_max: 9 * MIB, ..LIMITS }).charged_to(permit).all(),
            )
        };
        let silent: Vec<_> = bodies.iter().flat_map(|body| [(); 16].map(|()| read(body()))).collect();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(admission.in_flight().bytes, 16 * (2 + 200 + 1));
        assert_eq!(read(Body::from(vec![0; MIB as usize])).await.unwrap().unwrap().len() as u64, MIB);
        for silent in silent {
            silent.abort();
            silent.await.unwrap_err();
        }
        assert_eq!(admission.in_flight().bytes, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_gives_its_place_to_a_request_that_finds_no_other() {
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: 1 << 20 };
        let admission = Admission::new(limits);
        // What has come by then, how long nothing has come since, and whether others find room.
        for (bytes, silent_ms, room) in [
            (0, 200, false),
            (0, 300, true),
            (100, 300, false),
            (100, 400, true),
            (1000, 1200, false),
            (1000, 1300, true),
        ] {
            let permit = Arc::new(admission.admit().unwrap());
            let reading = tokio::spawn(Reader::new(stops_after(bytes), LIMITS).charged_to(permit).all());
            tokio::time::sleep(Duration::from_millis(silent_ms)).await;
            let other = admission.admit();
            assert_eq!(other.is_ok(), room, "{bytes} bytes, none for {silent_ms} ms");
            if room {
                let error = reading.await.unwrap().unwrap_err();
                assert!(matches!(error, InferError::SlowBody(_)), "{error}");
                assert!(error.to_string().contains("requests_in_flight_max"), "{error}");
            } else {
                reading.abort();
                reading.await.unwrap_err();
            }
        }
        assert_eq!(admission.in_flight().requests, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickle_below_its_rate_gives_its_place_away_and_what_may_come_at_any_rate_does_not() {
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: 1 << 20 };
        let admission = Admission::new(limits);
        // The rate, how much comes at once and how often, and whether another finds room.
        for (rate_min, bytes, every_ms, room) in [
            (1000, 1, 200, true),
            (1000, 1, 7, true),
            (1000, 100, 200, true),
            (1000, 200, 200, false),
            (0, 1, 2000, false),
        ] {
            let permit = Arc::new(admission.admit().unwrap());
            // It announces more than can come in its time at this rate.
            let body = announced(LIMITS.bytes_max, trickle(bytes, Duration::from_millis(every_ms)));
            let limits = BodyLimits { rate_min, ..LIMITS };
            let reading = tokio::spawn(Reader::new(body, limits).charged_to(permit).all());
            tokio::time::sleep(Duration::from_millis(1105)).await;
            let other = admission.admit();
            assert_eq!(other.is_ok(), room, "{bytes} bytes every {every_ms} ms, of {rate_min} a second");
            reading.abort();
            let _ = reading.await;
        }
        assert_eq!(admission.in_flight().requests, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_late_keeps_the_place_that_nobody_needed() {
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: 1 << 20 };
        let admission = Admission::new(limits);
        let permit = Arc::new(admission.admit().unwrap());
        let body = stream::once(async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, Infallible>(Bytes::from("late"))
        });
        let mut reader = Reader::new(Body::from_stream(body), LIMITS).charged_to(permit);
        assert_eq!(reader.next().await, Ok(Some("late".into())));
        admission.admit().unwrap_err();
    }

    #[test]
    fn all_is_due_by_the_deadline() {
        let any = BodyLimits { rate_min: 0, ..LIMITS };
        for (received, limits) in [(900_000, LIMITS), (0, any)] {
            let mut reader = Reader::new(Body::empty(), limits);
            reader.received = received;
            assert_eq!(reader.due(Instant::now()), reader.began + LIMITS.deadline);
        }
    }

    #[tokio::test]
    async fn a_body_that_stops_is_cut_by_whichever_limit_comes_first() {
        let stops = || Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let quick = Duration::from_millis(1);
        let by_rate = read(stops(), BodyLimits { grace: quick, ..LIMITS }).await.unwrap_err();
        assert!(by_rate.to_string().contains("at 1000 bytes/s or more"), "{by_rate}");
        let (rate_min, deadline) = (7, Duration::from_secs(6));
        let paced = BodyLimits { grace: quick, rate_min, deadline, ..LIMITS };
        let by_pace = read(announced(60, stops()), paced).await.unwrap_err().to_string();
        assert!(by_pace.contains("at 10 bytes/s or more, as its 60 bytes have 6000 ms"), "{by_pace}");
        let by_deadline = read(stops(), BodyLimits { deadline: quick, ..LIMITS }).await.unwrap_err();
        assert!(by_deadline.to_string().contains("the whole body has 1 ms"), "{by_deadline}");
    }
}
