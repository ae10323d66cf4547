//! The socket as hyper sees it, reporting to the connection's [`Watch`].

use super::clocks::Watch;
use parking_lot::Mutex;
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};

/// How long a request may still be answered after its client has ended its sending side. hyper takes that as the client's departure. But
/// the client may only have nothing more to send (`nc -N`), and nothing but a write can tell.
const END_GRACE: Duration = Duration::from_secs(1);

/// Where [`Io`] leaves the socket when hyper drops it.
pub(super) type LeftAt = Arc<Mutex<Option<TcpStream>>>;

pub(super) struct Io {
    /// Present until dropped.
    stream: Option<TcpStream>,
    watch: Arc<Watch>,
    left_at: LeftAt,
    /// Runs once the client has ended its side while requests are open. hyper learns of that end only when it is over.
    end: Option<Pin<Box<Sleep>>>,
}

impl Io {
    pub(super) fn new(stream: TcpStream, watch: Arc<Watch>, left_at: LeftAt) -> Io {
        Io { stream: Some(stream), watch, left_at, end: None }
    }

    fn stream(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(self.stream.as_mut().expect("taken only when dropped"))
    }

    /// Notes how a write went.
    fn wrote(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Pending => self.watch.write_blocked(Instant::now()),
            Poll::Ready(Ok(count)) => self.watch.wrote(*count, Instant::now()),
            Poll::Ready(Err(_)) => (),
        }
    }
}

impl Drop for Io {
    fn drop(&mut self) {
        let mut left_at = self.left_at.lock();
        *left_at = self.stream.take();
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.is_none() {
            let (before, room) = (buffer.filled().len(), buffer.remaining());
            ready!(self.stream().poll_read(context, buffer))?;
            let read = &buffer.filled()[before..];
            self.watch.read(read, Instant::now());
            if !read.is_empty() || room == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        if self.watch.requests_open() > 0 {
            let end = self.end.get_or_insert_with(|| Box::pin(sleep(END_GRACE)));
            ready!(end.as_mut().poll(context));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream().poll_write(context, bytes);
        self.wrote(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.stream().poll_write_vectored(context, slices);
        self.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// hyper flushes when its own buffers are empty.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.stream().poll_flush(context))?;
        self.watch.flushed(Instant::now());
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(context)
    }
}
