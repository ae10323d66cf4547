//! Reads a packed body a little ahead of its unpacker, where little of it becomes much. If the client has gone, the end of its connection
//! stands behind all that it has sent, and would go unnoticed for minutes. Reading ahead also raises how much may come out.

use super::{super::admission::Beside, PIECE_BYTES};
use crate::{error::InferError, image::stack::Received};
use axum::{Error, body::Body};
use bytes::{Bytes, BytesMut};
use http_body::Body as HttpBody;
use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// Bytes that come out before a piece is read ahead. At ordinary ratios, no piece becomes as much.
const AFTER_BYTES: u64 = 4 << 20;

/// The most that is read ahead: as much as the client's socket and ours buffer by default. Where the system lets them buffer more
/// (`net.ipv4.tcp_rmem`, `tcp_wmem`), a client's departure is seen once all but that much is unpacked.
const AHEAD_BYTES_MAX: u64 = 8 << 20;

pub(super) struct Ahead {
    body: Body,
    /// Counts the body's bytes, whether they have been used or not.
    came: Received,
    waiting: VecDeque<Bytes>,
    /// Bytes of what waits.
    bytes: u64,
    /// What is set aside for them.
    held: Option<Beside>,
    /// Bytes that have come out since a piece was read.
    out: u64,
    ended: bool,
}

impl Ahead {
    /// Waiting bytes are charged to `held`; without room for them, no more is read ahead.
    pub(super) fn new(body: Body, held: Option<Beside>) -> Ahead {
        let (came, waiting) = (Received::default(), VecDeque::new());
        Ahead { body, came, waiting, bytes: 0, held, out: 0, ended: false }
    }

    /// The count of bytes that have come.
    pub(super) fn came(&self) -> &Received {
        &self.came
    }

    /// Notes that `bytes` more came out of what was taken.
    pub(super) fn came_out(&mut self, bytes: u64) {
        self.out += bytes;
    }

    /// Reads a piece, if it is time for one and it is there.
    ///
    /// # Errors
    /// The body's error: the rest of it does not come.
    pub(super) fn read(&mut self, context: &mut Context<'_>) -> Result<(), Error> {
        if self.out < AFTER_BYTES || self.ended || self.bytes >= AHEAD_BYTES_MAX || !self.has_room() {
            return Ok(());
        }
        if let Poll::Ready(piece) = self.poll_body(context)
            && let Some(piece) = piece.transpose()?
        {
            self.keep(piece);
        }
        Ok(())
    }

    /// Reads on until `unpacked` bytes in all may come out. For this, up to [`AHEAD_BYTES_MAX`] bytes beyond those used count, so that it
    /// does not matter how far the body had been read when they came out. Of the piece that was taken last, `unused` bytes are still
    /// unused.
    ///
    /// # Errors
    /// What comes is not enough, there is no room for it, or it does not come.
    pub(super) fn poll_enough(
        &mut self,
        context: &mut Context<'_>,
        unpacked: u64,
        unused: u64,
    ) -> Poll<Result<(), Error>> {
        loop {
            let used = self.came.bytes() - self.bytes - unused;
            let at_most = used + AHEAD_BYTES_MAX;
            let Err(refused) = self.came.may_become(unpacked, at_most) else { return Poll::Ready(Ok(())) };
            if self.ended || self.came.bytes() >= at_most {
                return Poll::Ready(Err(Error::new(InferError::from(refused))));
            }
            if let Some(held) = &mut self.held {
                held.grow_to(self.bytes).map_err(Error::new)?;
            }
            // Lets other tasks run between the pieces of a body that is here already.
            ready!(tokio::task::coop::poll_proceed(context)).made_progress();
            if let Some(piece) = ready!(self.poll_body(context)).transpose()? {
                self.keep(piece);
            }
        }
    }

    /// Keeps a piece for later. Small ones are joined, since each takes memory beside its bytes.
    fn keep(&mut self, piece: Bytes) {
        self.bytes += piece.len() as u64;
        match self.waiting.pop_back() {
            Some(last) if last.len() + piece.len() <= PIECE_BYTES => {
                let mut joined = last.try_into_mut().unwrap_or_else(|last| BytesMut::from(&last[..]));
                joined.extend_from_slice(&piece);
                self.waiting.push_back(joined.freeze());
            }
            last => self.waiting.extend(last.into_iter().chain([piece])),
        }
    }

    /// The next piece; `None` at the end.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        if let Some(piece) = self.waiting.pop_front() {
            self.bytes -= piece.len() as u64;
            self.has_room();
            return Poll::Ready(Some(Ok(piece)));
        }
        if self.ended { Poll::Ready(None) } else { self.poll_body(context) }
    }

    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        (self.out, self.ended) = (0, frame.is_none());
        Poll::Ready(frame.map(|frame| {
            let bytes = frame?.into_data().unwrap_or_default();
            self.came.more(bytes.len());
            Ok(bytes)
        }))
    }

    /// Sets aside what waits now, be it more or less than before. Returns whether there was room.
    fn has_room(&mut self) -> bool {
        let bytes = self.bytes;
        self.held.as_mut().is_none_or(|held| held.set(bytes))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::http::admission::{Admission, AdmissionLimits};
    use futures_util::{Stream, StreamExt, stream};
    use std::{future::poll_fn, io};

    const MIB: u64 = 1 << 20;
    /// How much may come out of the most that is read ahead.
    const MOST: u64 = 64 * MIB + 1032 * AHEAD_BYTES_MAX;

    fn zeros(bytes: u64, piece: usize) -> impl Stream<Item = io::Result<Bytes>> + Send + Unpin {
        stream::iter((0..bytes / piece as u64).map(move |_| Ok(Bytes::from(vec![0; piece]))))
    }

    async fn enough(ahead: &mut Ahead, unpacked: u64) -> Result<(), String> {
        poll_fn(|context| ahead.poll_enough(context, unpacked, 0)).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn as_much_is_read_as_something_comes_of_and_no_more_than_a_bound_however_it_is_cut() {
        let bytes_in_flight_max = 20 * MIB;
        let admission = Admission::new(AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max });
        let permit = admission.admit().unwrap();
        for piece in [1 << 20, 3000, 16] {
            let body = Body::from_stream(zeros(12 * MIB, piece));
            let mut ahead = Ahead::new(body, Some(permit.nothing_beside()));
            assert_eq!(enough(&mut ahead, 64 * MIB).await, Ok(()));
            assert_eq!(ahead.came.bytes(), 0, "it is free");
            assert_eq!(enough(&mut ahead, 65 * MIB).await, Ok(()));
            assert!(ahead.came.bytes() <= MIB);
            assert_eq!(enough(&mut ahead, MOST).await, Ok(()));
            let told = enough(&mut ahead, MOST + 1).await.unwrap_err();
            assert!(told.ends_with(&format!("more than the limit of {MOST}")), "{told}");
            let waits: usize = ahead.waiting.iter().map(Bytes::len).sum();
            assert!((AHEAD_BYTES_MAX..AHEAD_BYTES_MAX + piece as u64).contains(&(waits as u64)));
            assert!(ahead.waiting.len() <= 1024, "small pieces are joined: {}", ahead.waiting.len());
            assert!(admission.in_flight().bytes >= AHEAD_BYTES_MAX - piece as u64);
            // Bytes that are used make room for as many.
            poll_fn(|context| ahead.poll_next(context)).await.unwrap().unwrap();
            assert_eq!(enough(&mut ahead, MOST + 1).await, Ok(()));
            drop(ahead);
            assert_eq!(admission.in_flight().bytes, 0);
        }
    }

    #[tokio::test]
    async fn what_does_not_come_is_told_as_what_it_is() {
        let short = Body::from_stream(zeros(MIB, 1 << 10));
        let told = enough(&mut Ahead::new(short, None), MOST).await.unwrap_err();
        assert!(told.ends_with(&format!("more than the limit of {}", (64 + 1032) * MIB)), "{told}");

        let gone = stream::iter([Err(io::Error::from(io::ErrorKind::ConnectionReset))]);
        let gone = Body::from_stream(zeros(MIB, 1 << 10).chain(gone));
        let told = enough(&mut Ahead::new(gone, None), MOST).await.unwrap_err();
        assert!(told.contains("reset"), "{told}");

        let silent = Body::from_stream(zeros(MIB, 1 << 10).chain(stream::pending()));
        let mut ahead = Ahead::new(silent, None);
        // It lets others run before it waits.
        while ahead.came.bytes() < MIB {
            assert!(futures_util::poll!(Box::pin(enough(&mut ahead, MOST))).is_pending());
            tokio::task::yield_now().await;
        }
        assert!(futures_util::poll!(Box::pin(enough(&mut ahead, MOST))).is_pending());

        let bytes_in_flight_max = 4 * MIB;
        let admission = Admission::new(AdmissionLimits { requests_in_flight_max: 2, bytes_in_flight_max });
        let (permit, other) = (admission.admit().unwrap(), admission.admit().unwrap());
        other.cover(2 * MIB).unwrap();
        let body = Body::from_stream(zeros(12 * MIB, 1 << 20));
        let told = enough(&mut Ahead::new(body, Some(permit.nothing_beside())), MOST).await.unwrap_err();
        assert!(told.contains("in flight") && told.contains("retry"), "{told}");
        assert_eq!(admission.in_flight().bytes, 2 * MIB);
    }
}
