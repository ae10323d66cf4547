//! A body that is unpacked piece by piece on its way in. However much a byte of it may stand for, no more than a piece comes out at once,
//! and the reader counts what comes out. In all, no more comes out than [`Received`] allows: output beyond that waits for more of the body.

use super::{
    super::admission::{Beside, Permit},
    Coding, PIECE_BYTES,
    ahead::Ahead,
};
use crate::{error::InferError, image::stack::Received};
use axum::{Error, body::Body};
use bytes::{Buf, Bytes};
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use http_body::{Body as HttpBody, Frame};
use std::{
    io::{self, BufRead, Read},
    pin::Pin,
    task::{Context, Poll, ready},
};

/// A packed body is malformed, or ends too early.
#[derive(Debug, thiserror::Error)]
#[error("the body cannot be unpacked as {coding}: {cause}")]
pub(crate) struct Malformed {
    /// As the request said.
    coding: Coding,
    cause: io::Error,
}

/// The base-2 logarithm of the largest window, by RFC 9659. With a larger one, a sender could take our memory.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// The most output that this decoder keeps. The others keep 32 KiB.
const ZSTD_WINDOW_BYTES_MAX: u64 = 1 << ZSTD_WINDOW_LOG_MAX;

/// Bytes that have come and are not unpacked yet. While more are to come, an empty feed is `WouldBlock`.
#[derive(Default)]
struct Feed {
    bytes: Bytes,
    ended: bool,
}

impl Read for Feed {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(out)?;
        self.consume(n);
        Ok(n)
    }
}

impl BufRead for Feed {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.bytes.is_empty() && !self.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(&self.bytes)
    }

    fn consume(&mut self, n: usize) {
        self.bytes.advance(n);
    }
}

enum Unpacker {
    Gzip(MultiGzDecoder<Feed>),
    Deflate(ZlibDecoder<Feed>),
    Zstd(zstd::stream::read::Decoder<'static, Feed>),
}

impl Unpacker {
    fn new(coding: Coding) -> Result<Unpacker, InferError> {
        let feed = Feed::default();
        let zstd = |feed| {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(feed)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            Ok(Unpacker::Zstd(decoder))
        };
        match coding {
            Coding::Gzip => Ok(Unpacker::Gzip(MultiGzDecoder::new(feed))),
            Coding::Deflate => Ok(Unpacker::Deflate(ZlibDecoder::new(feed))),
            Coding::Zstd => zstd(feed)
                .map_err(|error: io::Error| InferError::Internal(format!("cannot unpack {coding}: {error}"))),
        }
    }

    fn feed(&mut self) -> &mut Feed {
        match self {
            Unpacker::Gzip(unpacker) => unpacker.get_mut(),
            Unpacker::Deflate(unpacker) => unpacker.get_mut(),
            Unpacker::Zstd(unpacker) => unpacker.get_mut(),
        }
    }

    /// The next piece; empty at the end.
    fn read(&mut self) -> io::Result<Bytes> {
        let mut piece = vec![0; PIECE_BYTES];
        let n = match self {
            Unpacker::Gzip(unpacker) => unpacker.read(&mut piece),
            Unpacker::Deflate(unpacker) => unpacker.read(&mut piece),
            Unpacker::Zstd(unpacker) => unpacker.read(&mut piece),
        }?;
        piece.truncate(n);
        // A great many frames may give a single byte each: the piece must not keep a whole buffer.
        piece.shrink_to_fit();
        if n == 0 && !self.feed().bytes.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "there is more behind its end"));
        }
        Ok(piece.into())
    }
}

/// Unpacks bytes as they come, for callers that know where they end.
pub(crate) struct Unpacking {
    coding: Coding,
    unpacker: Unpacker,
}

impl Unpacking {
    /// # Errors
    /// If there is no memory for it.
    pub(crate) fn new(coding: Coding) -> Result<Unpacking, InferError> {
        Ok(Unpacking { coding, unpacker: Unpacker::new(coding)? })
    }

    /// Takes the next packed bytes, and hands on what comes out of them, piece by piece.
    ///
    /// # Errors
    /// [`InferError::BadRequest`] for malformed bytes, and any error of `take`.
    pub(crate) fn feed(
        &mut self,
        packed: Bytes,
        take: impl FnMut(&[u8]) -> Result<(), InferError>,
    ) -> Result<(), InferError> {
        self.unpacker.feed().bytes = packed;
        self.hand_on(take)
    }

    /// Marks the end of the packed bytes, and hands on the rest.
    ///
    /// # Errors
    /// As [`Unpacking::feed`], and if it ends too early.
    pub(crate) fn end(
        &mut self,
        take: impl FnMut(&[u8]) -> Result<(), InferError>,
    ) -> Result<(), InferError> {
        self.unpacker.feed().ended = true;
        self.hand_on(take)
    }

    fn hand_on(&mut self, mut take: impl FnMut(&[u8]) -> Result<(), InferError>) -> Result<(), InferError> {
        loop {
            match self.unpacker.read() {
                Ok(piece) if piece.is_empty() => return Ok(()),
                Ok(piece) => take(&piece)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(cause) => {
                    let malformed = Malformed { coding: self.coding, cause };
                    return Err(InferError::BadRequest(malformed.to_string()));
                }
            }
        }
    }
}

/// A body that is unpacked as it is read.
pub(super) struct Unpacked {
    body: Ahead,
    coding: Coding,
    unpacker: Unpacker,
    /// Bytes that have come out.
    bytes: u64,
    /// The piece that came out last, until enough of the body has come for it.
    piece: Option<Bytes>,
    /// What is set aside for the decoder's window, which takes memory as it is filled.
    window: Option<Beside>,
    over: bool,
}

impl Unpacked {
    /// Charges to the permit what the decoder keeps, and what is read ahead.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(super) fn new(body: Body, coding: Coding, permit: Option<&Permit>) -> Result<Unpacked, InferError> {
        let unpacker = Unpacker::new(coding)?;
        let body = Ahead::new(body, permit.map(Permit::nothing_beside));
        let window = permit.filter(|_| coding == Coding::Zstd).map(Permit::nothing_beside);
        Ok(Unpacked { body, coding, unpacker, bytes: 0, piece: None, window, over: false })
    }

    /// The count of packed bytes that have come.
    pub(super) fn came(&self) -> Received {
        self.body.came().clone()
    }

    /// Notes that `bytes` more have come out, and charges for those that the decoder keeps.
    fn came_out(&mut self, bytes: usize) -> Result<(), InferError> {
        let before = self.bytes;
        self.bytes += bytes as u64;
        self.body.came_out(bytes as u64);
        match &mut self.window {
            Some(window) if before < ZSTD_WINDOW_BYTES_MAX => {
                window.grow_to(self.bytes.min(ZSTD_WINDOW_BYTES_MAX))
            }
            _ => Ok(()),
        }
    }

    /// The next piece that comes out.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        let Unpacked { body, coding, unpacker, .. } = self;
        loop {
            // Lets other tasks run between the pieces of a body that is here already.
            ready!(tokio::task::coop::poll_proceed(context)).made_progress();
            match unpacker.read() {
                Ok(piece) if piece.is_empty() => {
                    // The packed data has ended; the body's own end settles the connection.
                    match ready!(body.poll_next(context)?) {
                        None => return Poll::Ready(None),
                        Some(bytes) => unpacker.feed().bytes = bytes,
                    }
                }
                Ok(piece) => {
                    let fits = self.came_out(piece.len());
                    return Poll::Ready(Some(fits.map(|()| piece).map_err(Error::new)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    match ready!(body.poll_next(context)?) {
                        Some(bytes) => unpacker.feed().bytes = bytes,
                        None => unpacker.feed().ended = true,
                    }
                }
                Err(cause) => {
                    return Poll::Ready(Some(Err(Error::new(Malformed { coding: *coding, cause }))));
                }
            }
        }
    }

    /// The same, once enough of the body has come for it.
    fn poll_allowed(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        if self.piece.is_none() {
            self.piece = ready!(self.poll_piece(context)?);
        }
        if self.piece.is_some() {
            let unused = self.unpacker.feed().bytes.len() as u64;
            ready!(self.body.poll_enough(context, self.bytes, unused)?);
        }
        Poll::Ready(self.piece.take().map(Ok))
    }
}

impl HttpBody for Unpacked {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if self.over {
            return Poll::Ready(None);
        }
        self.body.read(context)?;
        let piece = ready!(self.poll_allowed(context));
        self.over = !matches!(piece, Some(Ok(_)));
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::super::{super::body, CODINGS, tests::packed};
    use super::*;
    use crate::http::{
        admission::{Admission, AdmissionLimits},
        body::BodyLimits,
    };
    use http_body_util::BodyExt;
    use std::time::Duration;

    async fn read(coding: Coding, sent: Vec<u8>, bytes_max: u64) -> Result<Bytes, InferError> {
        let deadline = Duration::from_secs(60);
        let option = "body_bytes_max";
        let limits =
            BodyLimits { bytes_max, deadline, grace: deadline, rate_min: 0, silence_max: deadline, option };
        let body = Unpacked::new(Body::from(sent), coding, None).unwrap();
        body::read(Body::new(body), limits).await
    }

    #[tokio::test]
    async fn a_small_body_that_unpacks_to_a_large_one_stops_at_the_limit() {
        for coding in CODINGS {
            let bomb = packed(coding, &vec![0; 64 << 20]);
            assert!(bomb.len() < 1 << 20, "{coding}: {}", bomb.len());
            match read(coding, bomb, 1 << 20).await {
                Err(InferError::TooLarge { got, limit, .. }) => {
                    // Not a piece more than needed was unpacked.
                    assert!(got <= limit + PIECE_BYTES as u64, "{coding}: {got}");
                }
                other => panic!("{coding}: {other:?}"),
            }
        }
    }

    #[tokio::test]
    async fn what_deflate_packs_always_unpacks_and_a_body_of_which_too_little_has_come_does_not() {
        const BYTES: usize = 72 << 20;
        for coding in CODINGS {
            let sent = packed(coding, &vec![0; BYTES]);
            let limit = (64 << 20) + 1032 * sent.len() as u64;
            let mut body = Unpacked::new(Body::from(sent), coding, None).unwrap();
            let (mut bytes, mut refused) = (0, None);
            while let Some(frame) = body.frame().await {
                match frame {
                    Ok(frame) => bytes += frame.into_data().unwrap().len(),
                    Err(error) => refused = Some(error.to_string()),
                }
            }
            if coding == Coding::Zstd {
                let told = refused.unwrap();
                assert!(told.ends_with(&format!("more than the limit of {limit}")), "{told}");
                assert!(bytes as u64 <= limit, "{bytes}");
            } else {
                assert_eq!((bytes, refused), (BYTES, None), "{coding}");
            }
        }
    }

    #[tokio::test]
    async fn what_comes_out_takes_no_more_memory_than_its_bytes() {
        for coding in [Coding::Zstd, Coding::Gzip] {
            let sent = packed(coding, b"x").repeat(3);
            let mut body = Unpacked::new(Body::from(sent), coding, None).unwrap();
            while let Some(frame) = body.frame().await {
                let piece = Vec::from(frame.unwrap().into_data().unwrap());
                assert!(piece.capacity() <= 16, "{coding}: {} bytes", piece.capacity());
            }
        }
    }

    #[tokio::test]
    async fn how_a_body_is_cut_says_nothing_about_what_comes_of_it() {
        const BYTES: usize = 72 << 20;
        let zeros = packed(Coding::Zstd, &vec![0; BYTES]);
        let mut seed = 1_u32;
        let noise = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        });
        let noise: Vec<u8> = noise.take(64 << 10).collect();
        let good = [&zeros[..], &packed(Coding::Zstd, &noise)].concat();
        let limit = (64 << 20) + 1032 * zeros.len() as u64;
        for piece in [1, 100, good.len()] {
            for (sent, fits) in [(&good, true), (&zeros, false)] {
                let pieces: Vec<_> = sent.chunks(piece).map(Bytes::copy_from_slice).map(Ok).collect();
                let body = Body::from_stream(futures_util::stream::iter::<Vec<Result<_, io::Error>>>(pieces));
                let body = Unpacked::new(body, Coding::Zstd, None).unwrap();
                let told = match body.collect().await {
                    Ok(body) => format!("{} bytes", body.to_bytes().len()),
                    Err(refused) => refused.to_string(),
                };
                let all = format!("{} bytes", BYTES + noise.len());
                let expected = if fits { all } else { format!("more than the limit of {limit}") };
                assert!(told.ends_with(&expected), "pieces of {piece}: {told}");
            }
        }
    }

    /// Unpacks a body whose client goes away after its pieces. Returns how much comes out before that is seen.
    async fn out_before_its_end(pieces: Vec<Bytes>, permit: &Permit) -> u64 {
        let gone = Err(io::Error::from(io::ErrorKind::ConnectionReset));
        let pieces = pieces.into_iter().map(Ok).chain([gone]);
        let body = Body::from_stream(futures_util::stream::iter(pieces));
        let mut body = Unpacked::new(body, Coding::Gzip, Some(permit)).unwrap();
        let mut bytes = 0;
        while let Ok(frame) = body.frame().await.unwrap() {
            bytes += frame.into_data().unwrap().len() as u64;
        }
        bytes
    }

    #[tokio::test]
    async fn that_a_caller_has_gone_is_seen_long_before_all_that_he_sent_is_unpacked() {
        const MIB: u64 = 1 << 20;
        let sent = Bytes::from(packed(Coding::Gzip, &vec![0; 60 << 20]));
        let half = sent.len() / 2;
        let pieces = || vec![sent.slice(..half), sent.slice(half..), Bytes::from_static(b"more")];
        let bytes_in_flight_max = 20 * MIB;
        let admission = Admission::new(AdmissionLimits { requests_in_flight_max: 2, bytes_in_flight_max });
        let (permit, other) = (admission.admit().unwrap(), admission.admit().unwrap());
        let out = out_before_its_end(pieces(), &permit).await;
        assert!(out <= 13 * MIB, "{out}");
        assert_eq!(admission.in_flight().bytes, 0, "what was read is no more");
        // Nothing is read ahead without room for it.
        other.cover(bytes_in_flight_max).unwrap();
        let out = out_before_its_end(pieces(), &permit).await;
        assert!(out >= 25 * MIB, "{out}");
    }

    #[tokio::test]
    async fn what_a_decoder_keeps_of_a_body_is_set_aside_and_refused_where_there_is_no_room() {
        const MIB: u64 = 1 << 20;
        let sent = packed(Coding::Zstd, &vec![7; 12 << 20]);
        let bytes_in_flight_max = 9 * MIB;
        let admission = Admission::new(AdmissionLimits { requests_in_flight_max: 2, bytes_in_flight_max });
        let (permit, other) = (admission.admit().unwrap(), admission.admit().unwrap());
        let unpacked = |sent: &[u8]| {
            let body = Body::from(sent.to_vec());
            Unpacked::new(body, Coding::Zstd, Some(&permit)).unwrap()
        };
        let mut whole = unpacked(&sent);
        let mut most = 0;
        while let Some(frame) = whole.frame().await {
            most = most.max(admission.in_flight().bytes);
            drop(frame.unwrap());
        }
        assert_eq!(most, ZSTD_WINDOW_BYTES_MAX);
        drop(whole);
        assert_eq!(admission.in_flight().bytes, 0);
        // What is small takes little.
        let mut small = unpacked(&packed(Coding::Zstd, b"small"));
        small.frame().await.unwrap().unwrap();
        assert_eq!(admission.in_flight().bytes, 5);
        drop(small);

        other.cover(2 * MIB).unwrap();
        let limits = BodyLimits {
            bytes_max: 64 * MIB,
            deadline: Duration::from_secs(60),
            grace: Duration::from_secs(60),
            rate_min: 0,
            silence_max: Duration::from_secs(60),
            option: "body_bytes_max",
        };
        let full = body::read(Body::new(unpacked(&sent)), limits).await;
        assert!(
            matches!(full, Err(InferError::Full { limit, .. }) if limit == bytes_in_flight_max),
            "{full:?}"
        );
        assert_eq!(admission.in_flight().bytes, 2 * MIB);
    }

    #[tokio::test]
    async fn a_body_that_never_fits_beside_what_its_decoder_keeps_is_not_told_to_come_back() {
        const MIB: u64 = 1 << 20;
        let sent = packed(Coding::Zstd, &vec![7; 28 << 20]);
        for (bytes_in_flight_max, fits) in [(36 * MIB, true), (36 * MIB - 1, false)] {
            let admission =
                Admission::new(AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max });
            let permit = std::sync::Arc::new(admission.admit().unwrap());
            let unpacked = Unpacked::new(Body::from(sent.clone()), Coding::Zstd, Some(&permit)).unwrap();
            let deadline = Duration::from_secs(60);
            let limits = BodyLimits {
                bytes_max: 32 * MIB,
                deadline,
                grace: deadline,
                rate_min: 0,
                silence_max: deadline,
                option: "body_bytes_max",
            };
            let reader = body::Reader::new(Body::new(unpacked), limits).charged_to(permit);
            match reader.all().await {
                Ok(body) => assert!(fits && body.len() as u64 == 28 * MIB),
                Err(never) => {
                    let told = format!("more than the limit of {bytes_in_flight_max}");
                    assert!(!fits && matches!(never, InferError::TooLarge { .. }), "{never}");
                    assert!(never.to_string().contains(&told), "{never}");
                    assert!(never.to_string().contains("in_flight_bytes_max"), "{never}");
                }
            }
        }
    }

    #[tokio::test]
    async fn what_is_cut_off_damaged_or_followed_by_more_is_the_callers_mistake() {
        let data: Vec<u8> = (0..20_000u32).flat_map(u32::to_le_bytes).collect();
        for coding in CODINGS {
            let whole = packed(coding, &data);
            assert_eq!(read(coding, whole.clone(), 1 << 20).await.unwrap(), data);
            let cut = whole[..whole.len() / 2].to_vec();
            let mut damaged = whole.clone();
            damaged[whole.len() / 2] ^= 0x55;
            let followed = [&whole[..], b"more"].concat();
            for (what, sent) in
                [("cut", cut), ("damaged", damaged), ("followed", followed), ("other", b"abc".to_vec())]
            {
                let error = read(coding, sent, 1 << 20).await;
                // Zstandard has no checksum by default: damage may also come out as other numbers.
                if what == "damaged" && coding == Coding::Zstd {
                    continue;
                }
                match error {
                    Err(InferError::BadRequest(told)) => {
                        assert!(told.contains(&coding.to_string()), "{told}");
                    }
                    other => panic!("{coding}, {what}: {:?}", other.map(|bytes| bytes.len())),
                }
            }
        }
    }
}
