//! The threads that share the operators of a session with the thread that runs it.
//!
//! ONNX Runtime ends a pool by waiting until all of its threads are idle. If the system refuses to start one of them, it waits for
//! ever for the others. So the threads are started here, before ONNX Runtime asks for them, and a refusal is an error.

use crate::telemetry::thread_limits::told;
use ort::environment::ThreadManager;
use parking_lot::Mutex;
use std::{
    io,
    sync::mpsc::{self, Sender},
    thread::{self, JoinHandle},
};

/// The usual default of the system for ONNX Runtime's own threads: its operators may rely on it.
const STACK_BYTES: usize = 8 << 20;

/// Threads that the process must still be able to start. A model that took the last ones would leave none for reading the model
/// folder, or for running another model.
const SPARE: usize = 8;

type Work = Box<dyn FnOnce() + Send>;

/// The threads that have been started for a session and that it has not asked for yet.
#[derive(Debug)]
pub(super) struct Threads {
    waiting: Mutex<Vec<Waiting>>,
}

/// A thread that has no work yet. It ends when `give` is dropped.
#[derive(Debug)]
struct Waiting {
    give: Sender<Work>,
    thread: JoinHandle<()>,
}

impl Threads {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// How many threads the system lets the process start, why not more, and what to do.
    pub(super) fn start(count: usize) -> Result<Threads, String> {
        Threads::start_with(count, Waiting::start)
    }

    fn start_with(count: usize, start: impl Fn() -> io::Result<Waiting>) -> Result<Threads, String> {
        let (mut waiting, mut refused) = (Vec::new(), None);
        while waiting.len() < count + SPARE && refused.is_none() {
            match start() {
                Ok(one) => waiting.push(one),
                Err(error) => refused = Some(error),
            }
        }
        let Some(error) = refused else {
            end(waiting.split_off(count));
            return Ok(Threads { waiting: Mutex::new(waiting) });
        };
        let started = waiting.len();
        end(waiting);
        Err(format!(
            "it has {count} threads of its own on the CPU, and the system lets the process start {started} more, of which {SPARE} are \
             left for the rest: {}",
            told(&error, &["compute_threads"])
        ))
    }
}

/// Ends these threads: all are told before the first is joined.
fn end(waiting: Vec<Waiting>) {
    let threads: Vec<_> = waiting.into_iter().map(|one| one.thread).collect();
    for thread in threads {
        // The thread does nothing that could panic.
        let _ = thread.join();
    }
}

impl Waiting {
    fn start() -> io::Result<Waiting> {
        let (give, given) = mpsc::channel::<Work>();
        let thread = thread::Builder::new().name("ocelli-onnx".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || {
            if let Ok(work) = given.recv() {
                work();
            }
        })?;
        Ok(Waiting { give, thread })
    }
}

impl ThreadManager for Threads {
    type Thread = JoinHandle<()>;

    fn create(&self, work: impl FnOnce() + Send + 'static) -> ort::Result<JoinHandle<()>> {
        let waiting = self.waiting.lock().pop();
        let one =
            waiting.ok_or_else(|| ort::Error::new("it asks for more threads than it was said to have"))?;
        // The thread waits for this work, and for nothing else.
        one.give.send(Box::new(work)).map_err(|_| ort::Error::new("a thread has ended"))?;
        Ok(one.thread)
    }

    fn join(thread: JoinHandle<()>) -> ort::Result<()> {
        thread.join().map_err(|_| ort::Error::new("a thread has panicked"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use std::{cell::Cell, sync::Arc};

    #[test]
    fn a_session_is_given_as_many_threads_as_it_was_said_to_have_and_waits_for_their_work() {
        let threads = Threads::start(2).unwrap();
        let (done, is_done) = mpsc::channel();
        let own = thread::current().id();
        for number in 0..2 {
            let done = done.clone();
            let work = move || done.send((number, thread::current().id() != own)).unwrap();
            Threads::join(threads.create(work).unwrap()).unwrap();
            assert_eq!(is_done.try_recv(), Ok((number, true)));
        }
        assert!(threads.create(|| ()).is_err());
    }

    #[test]
    fn a_thread_that_is_refused_is_told_with_what_to_do_and_the_others_have_ended() {
        let (started, waits) = (Cell::new(0), Arc::new(()));
        let limited = |limit: usize| {
            started.set(0);
            Threads::start_with(2, || {
                if started.get() == limit {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                started.set(started.get() + 1);
                let (give, given) = mpsc::channel::<Work>();
                let waits = Arc::clone(&waits);
                let thread = thread::spawn(move || {
                    assert!(given.recv().is_err(), "nobody gives it work");
                    drop(waits);
                });
                Ok(Waiting { give, thread })
            })
        };
        let told = limited(2 + SPARE - 1).unwrap_err();
        let begin = "it has 2 threads of its own on the CPU, and the system lets the process start 9 more, of which 8 are left for the rest: ";
        assert!(told.starts_with(begin), "{told}");
        assert!(told.contains("pids.max") && told.ends_with(", or lower compute_threads"), "{told}");
        assert_eq!(Arc::strong_count(&waits), 1);
        let threads = limited(2 + SPARE).unwrap();
        assert_eq!(Arc::strong_count(&waits), 1 + 2, "there are no more than it has asked for");
        end(threads.waiting.into_inner());
    }
}
