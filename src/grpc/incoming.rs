//! The bytes of a call, within the same limits as HTTP bodies. Each message is charged to the call's permit as soon as its length is known,
//! which is before it has arrived; a message that is too large is refused at that point. A packed message is unpacked here, so that it is
//! charged as it grows. The memory for decoding a message is charged by `codec`.

use super::status;
use crate::{
    error::InferError,
    http::{
        STACK_DEADLINE,
        accept::FRAME_BYTES_MAX,
        admission::Permit,
        body::{BodyLimits, Reader, ahead_of, room_for},
        coding::{Coding, Unpacking},
    },
};
use axum::{body::Body, http::HeaderMap};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tonic::Status;

/// The prefix of each message: whether it is compressed, and its length, big-endian.
const PREFIX_BYTES: usize = 5;

/// Bytes of the pieces in which unpacked data are kept.
const PIECE_BYTES: usize = 64 << 10;

/// Whether a call has one message, or any number of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Messages {
    One,
    Many,
}

/// The compression of a call's messages, if it is a supported one.
pub(super) fn packed_with(headers: &HeaderMap) -> Option<Coding> {
    match headers.get("grpc-encoding")?.as_bytes() {
        b"gzip" => Some(Coding::Gzip),
        b"deflate" => Some(Coding::Deflate),
        _ => None,
    }
}

/// The permit that messages are charged to, and their compression.
#[derive(Clone)]
pub(super) struct Charge {
    pub(super) permit: Arc<Permit>,
    pub(super) coding: Option<Coding>,
}

/// Whether a call's body was lost before it ended. The call itself does not show it: tonic takes the loss for the end of the messages, and
/// reports that a message is missing. Clones share the state.
#[derive(Debug, Clone, Default)]
pub(super) struct Lost(Arc<AtomicBool>);

impl Lost {
    fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The body of a call, which ends with an error if it exceeds its limits. Without a charge, it is charged to nobody and handed on as packed
/// as it arrives, so it must be small.
pub(super) fn limited(
    body: Body,
    limits: BodyLimits,
    messages: Messages,
    charge: Option<Charge>,
    lost: Lost,
) -> Body {
    // A client may be silent between two messages for as long as it likes, but not within a message.
    let between = BodyLimits {
        bytes_max: u64::MAX,
        deadline: STACK_DEADLINE,
        rate_min: 0,
        silence_max: STACK_DEADLINE,
        ..limits
    };
    let within = BodyLimits { bytes_max: u64::MAX, ..limits };
    let reader = match messages {
        // The charge is trimmed at the end to what arrived. A message that is too large is refused by the length in front of it, and may
        // have come with it in one frame.
        Messages::One => {
            let beyond = PREFIX_BYTES as u64 + u64::from(FRAME_BYTES_MAX);
            let bytes_max = limits.bytes_max.saturating_add(beyond);
            let reader = Reader::new(body, BodyLimits { bytes_max, ..limits });
            match &charge {
                Some(charge) => reader.charged_to(Arc::clone(&charge.permit)),
                None => reader,
            }
        }
        Messages::Many => Reader::new(body, between),
    };
    let state = Some((reader, Framing::new(limits, charge), Bytes::new(), lost));
    let pieces = stream::unfold(state, move |state| async move {
        let (mut reader, mut framing, mut came, lost) = state?;
        let begun = framing.begun;
        if came.is_empty() {
            came = match reader.next().await {
                Ok(None) => return None,
                Ok(Some(bytes)) => bytes,
                Err(error) => {
                    if matches!(error, InferError::Cancelled) {
                        lost.note();
                    }
                    return Some(((Vec::new(), Some(status::of(&error))), None));
                }
            };
        }
        let (pieces, seen) = framing.see(&mut came);
        if framing.is_packed() {
            // A thousand times as many bytes may have been unpacked: let the thread's other connections go on.
            tokio::task::yield_now().await;
        }
        if messages == Messages::Many {
            if framing.is_between() {
                reader.limited_by(between);
            } else if framing.begun > begun {
                reader.limited_by(within);
            }
        }
        if framing.left > 0 {
            reader.expects(framing.whole);
        }
        let failed = seen.err().map(|error| status::of(&error));
        let goes_on = failed.is_none().then_some((reader, framing, came, lost));
        Some(((pieces, failed), goes_on))
    });
    let pieces = pieces.map(|(pieces, failed)| {
        let pieces = pieces.into_iter().map(Ok::<_, Status>);
        stream::iter(pieces.chain(failed.map(Err)))
    });
    // tonic polls again after a body that ended in the middle of a message.
    Body::from_stream(pieces.flatten().fuse())
}

/// The position in the current message.
struct Framing {
    limits: BodyLimits,
    charge: Option<Charge>,
    prefix: Vec<u8>,
    /// Bytes of the current message that have not arrived.
    left: u64,
    /// Bytes of the current message as sent, with its prefix.
    whole: u64,
    /// The part of the current message that has been unpacked, if it is packed.
    unpacked: Option<Unpacked>,
    /// Messages whose first byte has arrived.
    begun: u64,
}

impl Framing {
    fn new(limits: BodyLimits, charge: Option<Charge>) -> Framing {
        let prefix = Vec::with_capacity(PREFIX_BYTES);
        Framing { limits, charge, prefix, left: 0, whole: 0, unpacked: None, begun: 0 }
    }

    /// Whether messages may be packed.
    fn is_packed(&self) -> bool {
        self.charge.as_ref().is_some_and(|charge| charge.coding.is_some())
    }

    /// Whether no message is incomplete.
    fn is_between(&self) -> bool {
        self.left == 0 && self.prefix.is_empty()
    }

    /// Takes from the bytes that arrived what is to be read next: all of them unchanged, or those up to the end of a packed message, which
    /// is handed on unpacked. So at most one unpacked message exists at a time, and the permit covers the largest message that has not been
    /// handed over. Complete messages in front of one that is refused are still read, however the bytes were split.
    fn see(&mut self, came: &mut Bytes) -> (Vec<Bytes>, Result<(), InferError>) {
        let mut seen = Scan { bytes: came.clone(), at: 0, plain: 0, whole: 0, read: Vec::new() };
        let result = self.look(&mut seen);
        let end = if result.is_ok() { seen.at } else { seen.whole };
        seen.read_to(end);
        came.advance(seen.at);
        (seen.read, result)
    }

    fn look(&mut self, seen: &mut Scan) -> Result<(), InferError> {
        if self.left > 0 && self.unpacked.is_none() {
            // The charge for this message may have been split off with an earlier message in the same piece.
            self.cover()?;
        }
        while let Some(byte) = seen.bytes.get(seen.at).copied() {
            if self.left > 0 {
                let from = seen.at;
                seen.at += (seen.bytes.len() - from).min(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= (seen.at - from) as u64;
                if let (Some(unpacked), Some(charge)) = (&mut self.unpacked, &self.charge) {
                    seen.plain = seen.at;
                    unpacked.feed(seen.bytes.slice(from..seen.at), self.limits, &charge.permit)?;
                } else {
                    self.cover()?;
                }
            } else {
                self.begin(byte, || seen.read_to(seen.at))?;
                seen.at += 1;
                if self.unpacked.is_some() {
                    seen.plain = seen.at;
                }
            }
            if self.is_between() {
                if let (Some(unpacked), Some(charge)) = (self.unpacked.take(), &self.charge) {
                    seen.read.extend(unpacked.end(self.limits, &charge.permit)?);
                    return Ok(());
                }
                seen.whole = seen.at;
            }
        }
        Ok(())
    }

    /// Takes the next byte of a prefix; calls `packed` if it begins a packed message.
    fn begin(&mut self, byte: u8, packed: impl FnOnce()) -> Result<(), InferError> {
        if self.prefix.is_empty() {
            self.begun += 1;
            if let (1, Some(coding)) = (byte, self.charge.as_ref().and_then(|charge| charge.coding)) {
                self.unpacked = Some(Unpacked::new(coding)?);
                packed();
            }
        }
        self.prefix.push(byte);
        let [_, length @ ..] = &self.prefix[..] else { return Ok(()) };
        let Ok(length) = <[u8; 4]>::try_from(length) else { return Ok(()) };
        self.left = u64::from(u32::from_be_bytes(length));
        self.whole = self.left + PREFIX_BYTES as u64;
        self.prefix.clear();
        let (got, limit) = (self.left, self.limits.bytes_max);
        let (what, option) = match &self.charge {
            Some(_) => ("the message in bytes", self.limits.option),
            // No option raises this limit.
            None => ("the message of a call that brings no data, in bytes,", ""),
        };
        if got > limit {
            return Err(InferError::TooLarge { what: what.into(), got, limit, option });
        }
        match &self.charge {
            Some(charge) if self.unpacked.is_none() => charge.permit.could_cover(room_for(self.whole)),
            _ => Ok(()),
        }
    }

    /// Charges for the current message like for a body of its length.
    fn cover(&self) -> Result<(), InferError> {
        let Some(charge) = &self.charge else { return Ok(()) };
        charge.permit.cover(ahead_of(self.whole - self.left, Some(self.whole)))
    }
}

/// Bytes that arrived, and what has been done with them.
struct Scan {
    bytes: Bytes,
    /// How far they have been examined.
    at: usize,
    /// Where the bytes begin that are handed on unchanged.
    plain: usize,
    /// The end of the last complete message.
    whole: usize,
    /// The pieces that are handed on.
    read: Vec<Bytes>,
}

impl Scan {
    /// Hands on the bytes before `end` unchanged.
    fn read_to(&mut self, end: usize) {
        if self.plain < end {
            self.read.push(self.bytes.slice(self.plain..end));
            self.plain = end;
        }
    }
}

/// A packed message, unpacked to the form that it would have had otherwise.
struct Unpacked {
    unpacking: Unpacking,
    pieces: Vec<BytesMut>,
    bytes: u64,
}

impl Unpacked {
    fn new(coding: Coding) -> Result<Unpacked, InferError> {
        Ok(Unpacked { unpacking: Unpacking::new(coding)?, pieces: Vec::new(), bytes: 0 })
    }

    fn feed(&mut self, packed: Bytes, limits: BodyLimits, permit: &Permit) -> Result<(), InferError> {
        let Unpacked { unpacking, pieces, bytes } = self;
        unpacking.feed(packed, |piece| keep(piece, pieces, bytes, limits, permit))
    }

    /// The whole message, with a prefix of its own.
    fn end(mut self, limits: BodyLimits, permit: &Permit) -> Result<impl Iterator<Item = Bytes>, InferError> {
        let Unpacked { unpacking, pieces, bytes } = &mut self;
        unpacking.end(|piece| keep(piece, pieces, bytes, limits, permit))?;
        let length = u32::try_from(self.bytes).map_err(|_| InferError::TooLarge {
            what: "the unpacked message in bytes".into(),
            got: self.bytes,
            limit: u64::from(u32::MAX),
            option: "",
        })?;
        let prefix = [&[0][..], &length.to_be_bytes()].concat();
        Ok([Bytes::from(prefix)].into_iter().chain(self.pieces.into_iter().map(BytesMut::freeze)))
    }
}

/// Charges for all that has been unpacked of a message, including this piece, and keeps the piece.
fn keep(
    piece: &[u8],
    pieces: &mut Vec<BytesMut>,
    bytes: &mut u64,
    limits: BodyLimits,
    permit: &Permit,
) -> Result<(), InferError> {
    *bytes += piece.len() as u64;
    let (got, limit, option) = (*bytes, limits.bytes_max, limits.option);
    if got > limit {
        return Err(InferError::TooLarge {
            what: "the unpacked message in bytes".into(),
            got,
            limit,
            option,
        });
    }
    // Twice: the bytes exist here, and again where they are gathered for decoding.
    permit.cover_growing(2 * got)?;
    match pieces.last_mut() {
        Some(last) if last.capacity() - last.len() >= piece.len() => last.extend_from_slice(piece),
        _ => {
            let mut last = BytesMut::with_capacity(PIECE_BYTES.max(piece.len()));
            last.extend_from_slice(piece);
            pieces.push(last);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::admission::{Admission, AdmissionLimits};
    use flate2::{Compression, write::GzEncoder};
    use http_body_util::BodyExt;
    use std::{io::Write, sync::atomic::AtomicUsize, time::Duration};

    fn framing(bytes_max: u64, in_flight: u64) -> Framing {
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: in_flight };
        let permit = Arc::new(Admission::new(limits).admit().unwrap());
        let limits = BodyLimits {
            bytes_max,
            deadline: Duration::from_secs(1),
            grace: Duration::ZERO,
            rate_min: 0,
            silence_max: Duration::from_secs(3600),
            option: "body_bytes_max",
        };
        Framing::new(limits, Some(Charge { permit, coding: Some(Coding::Gzip) }))
    }

    fn message(bytes: u32) -> Vec<u8> {
        [&[0][..], &bytes.to_be_bytes(), &vec![7; bytes as usize]].concat()
    }

    fn packed(bytes: u32) -> Vec<u8> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        packed.write_all(&vec![7; bytes as usize]).unwrap();
        let packed = packed.finish().unwrap();
        [&[1][..], &(packed.len() as u32).to_be_bytes(), &packed].concat()
    }

    #[test]
    fn messages_are_found_however_they_are_cut() {
        let plain = [message(3), message(0), message(700), message(1), message(2)].concat();
        let mixed = [packed(3), packed(0), message(700), packed(1), message(2)].concat();
        for sent in [&plain, &mixed] {
            for size in 1..=sent.len() {
                let mut framing = framing(700, 2 << 20);
                let mut read = Vec::new();
                for piece in sent.chunks(size) {
                    read.extend(all_of(&mut framing, piece));
                }
                assert!(framing.is_between() && framing.begun == 5, "in pieces of {size}");
                assert!(framing.charge.unwrap().permit.bytes() >= 705);
                assert!(read.concat() == plain, "in pieces of {size}");
            }
        }
    }

    fn seen(framing: &mut Framing, came: &mut Bytes) -> Result<Vec<Bytes>, InferError> {
        let (read, seen) = framing.see(came);
        seen.map(|()| read)
    }

    /// All that is handed on of these bytes.
    fn all_of(framing: &mut Framing, sent: &[u8]) -> Vec<Bytes> {
        let (mut came, mut read) = (Bytes::copy_from_slice(sent), Vec::new());
        while !came.is_empty() {
            read.extend(seen(framing, &mut came).unwrap());
        }
        read
    }

    #[test]
    fn of_packed_messages_that_come_together_one_is_unpacked_at_a_time() {
        let mut framing = framing(1 << 20, 4 << 20);
        let mut came = Bytes::from([packed(500_000), packed(600_000), message(3)].concat());
        let permit = Arc::clone(&framing.charge.as_ref().unwrap().permit);
        for bytes in [500_000, 600_000] {
            let read = seen(&mut framing, &mut came).unwrap();
            assert_eq!(read.concat(), message(bytes));
            assert!(permit.bytes() >= u64::from(bytes) && permit.bytes() <= 2 << 20, "{}", permit.bytes());
            // The message has been handed over.
            permit.trim(0);
        }
        assert_eq!((seen(&mut framing, &mut came).unwrap().concat(), came.len()), (message(3), 0));
    }

    #[test]
    fn what_is_whole_in_front_of_a_message_that_is_refused_is_read_however_they_are_cut() {
        let large = 801_u32.to_be_bytes();
        let refused = [&[0][..], &large, &[7; 9]].concat();
        for first in [message(700), packed(700)] {
            let sent = [first, refused.clone()].concat();
            for size in 1..=sent.len() {
                let mut framing = framing(800, 2 << 20);
                let (mut read, mut error) = (Vec::new(), None);
                for piece in sent.chunks(size) {
                    let mut came = Bytes::copy_from_slice(piece);
                    while !came.is_empty() && error.is_none() {
                        let (pieces, seen) = framing.see(&mut came);
                        read.extend(pieces);
                        error = seen.err();
                    }
                }
                let read = read.concat();
                assert!(read.starts_with(&message(700)), "in pieces of {size}");
                // At most a part of the prefix, which arrived separately.
                assert!(read.len() < 705 + PREFIX_BYTES, "in pieces of {size}: {}", read.len());
                assert!(matches!(error, Some(InferError::TooLarge { got: 801, .. })), "{error:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_message_that_is_too_large_is_refused_by_its_own_length_though_it_came_in_one_frame() {
        let Framing { limits, charge, .. } = framing(700, 100_000);
        let sent = Body::from(message(2000));
        let mut body = limited(sent, limits, Messages::One, charge, Lost::default());
        let told = body.frame().await.unwrap().unwrap_err().to_string();
        assert!(
            told.contains(
                "the message in bytes is 2000, more than the limit of 700; raise it with body_bytes_max"
            ),
            "{told}"
        );
    }

    #[tokio::test]
    async fn a_body_may_be_asked_on_behind_its_end() {
        let half = Body::from(message(3)[..6].to_vec());
        let Framing { limits, .. } = framing(700, 10_000);
        let mut body = limited(half, limits, Messages::Many, None, Lost::default());
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 6);
        for _ in 0..2 {
            assert!(body.frame().await.is_none());
        }
    }

    #[tokio::test]
    async fn others_go_on_between_the_pieces_of_a_packed_message() {
        let Framing { limits, charge, .. } = framing(1 << 20, 4 << 20);
        let sent = Bytes::from(packed(1 << 20));
        let sent: Vec<_> =
            sent.chunks(100).map(|piece| Ok::<_, Status>(Bytes::copy_from_slice(piece))).collect();
        let pieces = sent.len();
        let mut body =
            limited(Body::from_stream(stream::iter(sent)), limits, Messages::One, charge, Lost::default());
        let others = Arc::new(AtomicUsize::new(0));
        let turns = Arc::clone(&others);
        let other = tokio::spawn(async move {
            loop {
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        let mut read = 0;
        while let Some(frame) = body.frame().await {
            read += frame.unwrap().into_data().unwrap().len();
        }
        other.abort();
        assert_eq!(read, PREFIX_BYTES + (1 << 20));
        let turns = others.load(Ordering::Relaxed);
        assert!(pieces > 5 && turns >= pieces, "{turns} turns in {pieces} pieces");
    }

    #[test]
    fn what_is_not_packed_is_handed_on_in_the_pieces_that_it_came_in() {
        let sent = Bytes::from([message(3), message(600)].concat());
        let read = seen(&mut framing(700, 10_000), &mut sent.clone()).unwrap();
        assert_eq!((read.len(), read[0].as_ptr()), (1, sent.as_ptr()));
    }

    #[test]
    fn a_packed_message_is_charged_and_bounded_by_what_comes_out_of_it() {
        const MIB: u32 = 1 << 20;
        let mut framing = framing(u64::from(4 * MIB), u64::from(9 * MIB));
        seen(&mut framing, &mut Bytes::from(packed(3 * MIB))).unwrap();
        assert_eq!(framing.charge.as_ref().unwrap().permit.bytes(), u64::from(6 * MIB));
        let told = seen(&mut framing, &mut Bytes::from(packed(4 * MIB + 1))).unwrap_err().to_string();
        assert!(told.ends_with("more than the limit of 4194304; raise it with body_bytes_max"), "{told}");
        let mut narrow = self::framing(u64::from(4 * MIB), u64::from(2 * MIB));
        let error = seen(&mut narrow, &mut Bytes::from(packed(3 * MIB))).unwrap_err();
        assert!(matches!(error, InferError::TooLarge { option: "in_flight_bytes_max", .. }), "{error}");
        let mut cut = packed(1000);
        let last = cut.len() - 1;
        cut[4] -= 1;
        let error = seen(&mut self::framing(2000, 2 << 20), &mut Bytes::from(cut).slice(..last)).unwrap_err();
        assert!(matches!(&error, InferError::BadRequest(told) if told.contains("gzip")), "{error}");
    }

    /// The error of a body that sends these bytes and then nothing, if it comes within an hour.
    async fn stops_after(sent: Vec<u8>, messages: Messages) -> Option<String> {
        let framing = framing(700, 10_000);
        let sent =
            stream::iter([Ok::<_, std::convert::Infallible>(Bytes::from(sent))]).chain(stream::pending());
        let mut body =
            limited(Body::from_stream(sent), framing.limits, messages, framing.charge, Lost::default());
        loop {
            match tokio::time::timeout(Duration::from_secs(3600), body.frame()).await {
                Err(_) => return None,
                Ok(frame) => {
                    if let Err(error) = frame.expect("it does not end") {
                        return Some(error.to_string());
                    }
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_may_be_silent_between_messages_but_not_within_one() {
        let told =
            |error: Option<String>| error.is_some_and(|error| error.contains("bytes of the body came in"));
        let (whole, half) = (message(3), message(9)[..8].to_vec());
        assert_eq!(stops_after(whole.clone(), Messages::Many).await, None);
        assert!(told(stops_after([whole.clone(), half.clone()].concat(), Messages::Many).await));
        assert!(told(stops_after(half, Messages::Many).await));
        assert!(told(stops_after(whole, Messages::One).await), "one that does not end");
    }

    #[test]
    fn a_message_half_there_is_charged_when_the_one_before_it_has_been_handed_over() {
        let mut framing = framing(700, 10_000);
        let sent = [message(3), message(600)].concat();
        seen(&mut framing, &mut Bytes::copy_from_slice(&sent[..100])).unwrap();
        let permit = Arc::clone(&framing.charge.as_ref().unwrap().permit);
        permit.trim(0);
        seen(&mut framing, &mut Bytes::copy_from_slice(&sent[100..200])).unwrap();
        assert_eq!(permit.bytes(), 2 * 192, "all that has come of it, and as much again");
    }

    #[test]
    fn a_message_is_refused_on_its_length_alone() {
        let head = Bytes::from(message(701)).slice(..5);
        let error = seen(&mut framing(700, 10_000), &mut head.clone()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the message in bytes is 701, more than the limit of 700; raise it with body_bytes_max"
        );
        let uncharged =
            seen(&mut Framing { charge: None, ..framing(700, 10_000) }, &mut head.clone()).unwrap_err();
        assert_eq!(
            uncharged.to_string(),
            "the message of a call that brings no data, in bytes, is 701, more than the limit of 700"
        );
        assert_eq!(status::of(&uncharged).code(), tonic::Code::ResourceExhausted);
        let error = seen(&mut framing(700, 600), &mut Bytes::from(message(650)).slice(..5)).unwrap_err();
        assert!(matches!(error, InferError::TooLarge { option: "in_flight_bytes_max", .. }), "{error}");
    }
}
