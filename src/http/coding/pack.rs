//! A body that is packed piece by piece on its way out. Whenever the body pauses, what was packed is flushed, so that a stream can be read
//! as it comes.

use super::{Coding, PIECE_BYTES};
use axum::{Error, body::Body};
use bytes::Bytes;
use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame};
use std::{
    io::{self, Write},
    pin::Pin,
    task::{Context, Poll, ready},
};

/// Replies are packed fast rather than small: clients wait for them.
const ZSTD_LEVEL: i32 = 1;

/// Packs into memory.
pub(super) enum Packer {
    Gzip(GzEncoder<Vec<u8>>),
    Deflate(ZlibEncoder<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Packer {
    pub(super) fn new(coding: Coding) -> io::Result<Packer> {
        Ok(match coding {
            Coding::Gzip => Packer::Gzip(GzEncoder::new(Vec::new(), Compression::fast())),
            Coding::Deflate => Packer::Deflate(ZlibEncoder::new(Vec::new(), Compression::fast())),
            Coding::Zstd => Packer::Zstd(zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?),
        })
    }

    pub(super) fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        match self {
            Packer::Gzip(packer) => packer.write_all(piece),
            Packer::Deflate(packer) => packer.write_all(piece),
            Packer::Zstd(packer) => packer.write_all(piece),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Packer::Gzip(packer) => packer.flush(),
            Packer::Deflate(packer) => packer.flush(),
            Packer::Zstd(packer) => packer.flush(),
        }
    }

    /// What has come out so far.
    fn take(&mut self) -> Vec<u8> {
        std::mem::take(match self {
            Packer::Gzip(packer) => packer.get_mut(),
            Packer::Deflate(packer) => packer.get_mut(),
            Packer::Zstd(packer) => packer.get_mut(),
        })
    }

    /// The rest.
    pub(super) fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Packer::Gzip(packer) => packer.finish(),
            Packer::Deflate(packer) => packer.finish(),
            Packer::Zstd(packer) => packer.finish(),
        }
    }
}

/// A body that is packed as it is read.
pub(super) struct Packed {
    body: Body,
    /// `None` once the body has ended.
    packer: Option<Packer>,
    /// The part of a frame that is still to be packed.
    left: Bytes,
    /// Whether the packer may hold back some bytes.
    held_back: bool,
    /// Sent behind the packer's last bytes.
    trailers: Option<HeaderMap>,
}

impl Packed {
    pub(super) fn new(body: Body, packer: Packer) -> Packed {
        Packed { body, packer: Some(packer), left: Bytes::new(), held_back: false, trailers: None }
    }
}

impl HttpBody for Packed {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Packed { body, packer, left, held_back, trailers } = &mut *self;
        let frame = |out: Vec<u8>| Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))));
        loop {
            let Some(working) = packer.as_mut() else {
                return Poll::Ready(trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
            };
            if !left.is_empty() {
                // Lets other tasks run between the pieces of a large reply.
                ready!(tokio::task::coop::poll_proceed(context)).made_progress();
                let piece = left.split_to(left.len().min(PIECE_BYTES));
                working.write(&piece).map_err(Error::new)?;
                *held_back = true;
                match working.take() {
                    out if out.is_empty() => continue,
                    out => return frame(out),
                }
            }
            match Pin::new(&mut *body).poll_frame(context) {
                Poll::Pending if *held_back => {
                    working.flush().map_err(Error::new)?;
                    *held_back = false;
                    match working.take() {
                        out if out.is_empty() => return Poll::Pending,
                        out => return frame(out),
                    }
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => *left = data,
                    Err(frame) => *trailers = frame.into_trailers().ok(),
                },
                Poll::Ready(Some(Err(error))) => {
                    (*packer, *trailers) = (None, None);
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Ready(None) => {
                    let rest = packer.take().map_or_else(|| Ok(Vec::new()), Packer::finish);
                    return frame(rest.map_err(Error::new)?);
                }
            }
        }
    }
}
