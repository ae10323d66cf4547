//! A packed body that is read a little ahead of who unpacks it, where little of it becomes much: the end of a caller who has gone stands
//! behind what he has sent, and nobody would come to it for minutes.

use super::super::admission::Beside;
use crate::image::stack::Came;
use axum::{Error, body::Body};
use bytes::Bytes;
use http_body::Body as HttpBody;
use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// What comes out before a piece is read ahead. Of what is packed a few times, no piece becomes as much.
const AFTER_BYTES: u64 = 4 << 20;

/// What is read ahead at most: no less than a caller and both sockets keep of what has not been read.
const AHEAD_BYTES_MAX: u64 = 8 << 20;

pub(super) struct Ahead {
    body: Body,
    /// Of the body, whether it has been used or not.
    came: Came,
    waiting: VecDeque<Bytes>,
    /// Of what waits.
    bytes: u64,
    /// What is set aside for it.
    held: Option<Beside>,
    /// What has come out since a piece was read.
    out: u64,
    ended: bool,
}

impl Ahead {
    /// What waits is set aside at `held`; without room for it, no more is read ahead.
    pub(super) fn new(body: Body, held: Option<Beside>) -> Ahead {
        let (came, waiting) = (Came::default(), VecDeque::new());
        Ahead { body, came, waiting, bytes: 0, held, out: 0, ended: false }
    }

    /// What counts the bytes that have come.
    pub(super) fn came(&self) -> &Came {
        &self.came
    }

    /// So many bytes more came out of what was taken.
    pub(super) fn came_out(&mut self, bytes: u64) {
        self.out += bytes;
    }

    /// Reads a piece, if it is time for one and it is there.
    ///
    /// # Errors
    /// What is wrong with the body: the rest of it does not come.
    pub(super) fn read(&mut self, context: &mut Context<'_>) -> Result<(), Error> {
        if self.out < AFTER_BYTES || self.ended || self.bytes >= AHEAD_BYTES_MAX || !self.has_room() {
            return Ok(());
        }
        if let Poll::Ready(piece) = self.poll_body(context)
            && let Some(piece) = piece.transpose()?
        {
            self.bytes += piece.len() as u64;
            self.waiting.push_back(piece);
        }
        Ok(())
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

    /// Sets aside what waits now, whether or not it has become more.
    fn has_room(&mut self) -> bool {
        let bytes = self.bytes;
        self.held.as_mut().is_none_or(|held| held.set(bytes))
    }
}
