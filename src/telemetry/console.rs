//! The lines that wait for standard error, and the thread that writes them.
//!
//! A terminal or pipe that nobody reads must neither hold up a request nor take memory without end.

use std::{
    convert::Infallible,
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};
use tracing_subscriber::fmt::MakeWriter;

/// Bytes of lines that may wait to be written: some ten thousand lines. Further ones are lost and counted.
const BYTES_MAX: usize = 8 << 20;
/// How long the end waits for the remaining lines to be written.
const END_WAIT: Duration = Duration::from_secs(1);

/// What becomes of the lines. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    waiting_bytes: AtomicUsize,
    lost: AtomicU64,
}

impl Counts {
    /// Lines that found no room or could not be written.
    pub(super) fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Bytes of lines that wait, the one that is being written included.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.0.waiting_bytes.load(Ordering::Relaxed) as u64
    }

    fn lose(&self) {
        self.0.lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// Takes lines, each in one call, and never waits.
#[derive(Debug)]
pub(super) struct Console {
    /// `None` ends the thread.
    lines: Sender<Option<Box<[u8]>>>,
    counts: Counts,
}

/// Dropping this writes the remaining lines and ends the thread.
#[derive(Debug)]
pub(super) struct End {
    lines: Sender<Option<Box<[u8]>>>,
    /// Disconnected once the last line has been written.
    written: Receiver<Infallible>,
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.lines.send(None);
        // A terminal that hangs must not keep the process.
        let _ = self.written.recv_timeout(END_WAIT);
    }
}

impl Console {
    /// Starts the thread that writes to `to`.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn start(mut to: impl Write + Send + 'static) -> io::Result<(Console, Counts, End)> {
        let (lines, to_write) = mpsc::channel::<Option<Box<[u8]>>>();
        let (ended, written) = mpsc::channel::<Infallible>();
        let counts = Counts::default();
        let of_thread = counts.clone();
        let write = move || {
            // Dropped in the reverse order: whoever sees the end finds nobody who takes lines.
            let _ended = ended;
            let to_write = to_write;
            while let Ok(Some(line)) = to_write.recv() {
                if to.write_all(&line).is_err() {
                    of_thread.lose();
                }
                of_thread.0.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            }
            let _ = to.flush();
        };
        thread::Builder::new().name("ocelli-console".into()).spawn(write)?;
        let end = End { lines: lines.clone(), written };
        Ok((Console { lines, counts: counts.clone() }, counts, end))
    }
}

impl Write for &Console {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let waiting = &self.counts.0.waiting_bytes;
        let before = waiting.fetch_add(line.len(), Ordering::Relaxed);
        // After the end, nobody takes it.
        if before + line.len() > BYTES_MAX || self.lines.send(Some(line.into())).is_err() {
            waiting.fetch_sub(line.len(), Ordering::Relaxed);
            self.counts.lose();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Console {
    type Writer = &'a Console;

    fn make_writer(&'a self) -> &'a Console {
        self
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;

    /// Writes nothing until it is told to.
    struct Stuck(Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_waits_for_a_reader_is_bounded_in_bytes_and_the_rest_is_counted() {
        let (go, stuck) = mpsc::channel();
        let (console, counts, end) = Console::start(Stuck(stuck)).unwrap();
        let line = vec![b'x'; BYTES_MAX / 8];
        for _ in 0..11 {
            (&console).write_all(&line).unwrap();
        }
        assert_eq!((counts.waiting_bytes(), counts.lost()), (BYTES_MAX as u64, 3));
        // Without its sender it goes on.
        drop(go);
        drop(end);
        assert_eq!((counts.waiting_bytes(), counts.lost()), (0, 3));
        (&console).write_all(b"after the end").unwrap();
        assert_eq!((counts.waiting_bytes(), counts.lost()), (0, 4));
    }
}
