//! A pool of threads that share the parts of a batch with the thread that calls.
//!
//! The calling thread works on the batch, too: it starts while the others wake up, which on a virtual machine takes as long as dozens
//! of fits. When no part is left to start, the next batch can start. Other threads may still work on the last parts of this one, if the
//! system has given their cores to another process for a while.

use crate::{
    engine::{Airborne, EngineError, Flight, Tensor, caught},
    telemetry::thread_limits::told,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Arc, Weak};

/// A batch in parts, with all that the parts read and write.
pub(super) trait Parts: Send + Sync {
    /// The number of parts.
    fn count(&self) -> usize;

    /// Does one part.
    ///
    /// # Errors
    /// As [`Engine::start`](crate::engine::Engine::start), for all of the batch.
    ///
    /// # Safety
    /// Each part is done at most once.
    #[allow(unsafe_code, reason = "threads write one place, each its own part of it")]
    unsafe fn work(&self, part: usize) -> Result<(), EngineError>;

    /// Takes the outputs; only the first call gets them.
    ///
    /// # Safety
    /// All parts have been done, without an error.
    #[allow(unsafe_code, reason = "parts that nobody did are not there")]
    unsafe fn outputs(&self) -> Vec<Tensor>;
}

/// A batch in flight.
struct Shared {
    parts: Box<dyn Parts>,
    progress: Mutex<Progress>,
    ended: Condvar,
}

#[derive(Default)]
struct Progress {
    begun: usize,
    ended: usize,
    /// The first error. No part is started after it.
    error: Option<EngineError>,
}

impl Shared {
    fn next(&self) -> Option<usize> {
        let mut progress = self.progress.lock();
        let next =
            Some(progress.begun).filter(|part| *part < self.parts.count() && progress.error.is_none())?;
        progress.begun += 1;
        Some(next)
    }

    /// Does parts until none is left to start.
    fn work(&self) {
        while let Some(part) = self.next() {
            // SAFETY: nobody else has this part.
            #[allow(unsafe_code, reason = "each part is done once")]
            let work = || unsafe { self.parts.work(part) };
            let done = caught("the fitter", work);
            let mut progress = self.progress.lock();
            progress.ended += 1;
            if let Err(error) = done {
                progress.error.get_or_insert(error);
            }
            if self.is_over(&progress) {
                self.ended.notify_all();
            }
        }
    }

    fn is_over(&self, progress: &Progress) -> bool {
        progress.ended == progress.begun && (progress.begun == self.parts.count() || progress.error.is_some())
    }

    /// Waits for the parts that were started.
    fn wait(&self) -> MutexGuard<'_, Progress> {
        let mut progress = self.progress.lock();
        self.ended.wait_while(&mut progress, |progress| !self.is_over(progress));
        progress
    }

    fn outcome(&self) -> Result<Vec<Tensor>, EngineError> {
        if let Some(error) = self.wait().error.clone() {
            return Err(error);
        }
        // SAFETY: all parts have been started and have ended, none with an error.
        #[allow(unsafe_code, reason = "all parts are done")]
        Ok(unsafe { self.parts.outputs() })
    }
}

/// Dropping it need not wait: a thread that works on a part holds the batch, and the batch owns all memory.
impl Airborne for Arc<Shared> {
    fn land(self: Box<Self>) -> Result<Vec<Tensor>, EngineError> {
        self.outcome()
    }
}

/// The pool of threads.
pub(super) struct Crew {
    /// The threads besides the calling one; `None` if there is only that.
    others: Option<ThreadPool>,
    /// The previous batch, on which other threads may still work.
    before: Weak<Shared>,
}

impl Crew {
    /// Batches that may be in flight at once.
    pub(super) const DEPTH: usize = 2;

    /// A pool of `threads` threads, including the one that calls [`Crew::begin`].
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn new(threads: usize) -> Result<Crew, String> {
        let start = |others| {
            let name = |index| format!("ocelli-fit-{index}");
            let pool = ThreadPoolBuilder::new().num_threads(others).thread_name(name).build();
            pool.map_err(|error| {
                format!("cannot start the threads that fit: {}", told(&error, &["compute_threads"]))
            })
        };
        let others = Some(threads.saturating_sub(1)).filter(|others| *others > 0).map(start).transpose()?;
        Ok(Crew { others, before: Weak::new() })
    }

    /// How many threads share the work.
    pub(super) fn threads(&self) -> usize {
        1 + self.others.as_ref().map_or(0, ThreadPool::current_num_threads)
    }

    /// Does a batch; each free thread takes its next part. With `along`, returns when no part is left to start and the previous batch is
    /// done. Otherwise returns when this batch is done, which saves waking a thread that waits for it.
    ///
    /// # Errors
    /// The first error. Parts that have been started are finished, and no more are started.
    pub(super) fn begin(&mut self, parts: impl Parts + 'static, along: bool) -> Result<Flight, EngineError> {
        let count = parts.count();
        let batch =
            Arc::new(Shared { parts: Box::new(parts), progress: Mutex::default(), ended: Condvar::new() });
        if let Some(others) = &self.others {
            for _ in 0..others.current_num_threads().min(count.saturating_sub(1)) {
                // A thread that comes too late does not keep the batch alive.
                let batch = Arc::downgrade(&batch);
                others.spawn(move || {
                    if let Some(batch) = batch.upgrade() {
                        batch.work();
                    }
                });
            }
        }
        batch.work();
        if !along || batch.is_over(&batch.progress.lock()) {
            return batch.outcome().map(Flight::Landed);
        }
        if let Some(before) = self.before.upgrade() {
            drop(before.wait());
        }
        self.before = Arc::downgrade(&batch);
        Ok(Flight::Airborne(Box::new(batch)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use std::{collections::HashSet, sync::Barrier, thread};

    /// Parts that do this.
    struct Doing<F> {
        count: usize,
        work: F,
        done: Arc<Mutex<Vec<usize>>>,
    }

    impl<F: Fn(usize) -> Result<(), EngineError> + Send + Sync> Parts for Doing<F> {
        fn count(&self) -> usize {
            self.count
        }

        #[allow(unsafe_code, reason = "a part of the trait")]
        unsafe fn work(&self, part: usize) -> Result<(), EngineError> {
            (self.work)(part)?;
            self.done.lock().push(part);
            Ok(())
        }

        #[allow(unsafe_code, reason = "a part of the trait")]
        unsafe fn outputs(&self) -> Vec<Tensor> {
            Vec::new()
        }
    }

    type Done = Arc<Mutex<Vec<usize>>>;

    fn doing(
        count: usize,
        work: impl Fn(usize) -> Result<(), EngineError> + Send + Sync + 'static,
    ) -> (impl Parts + 'static, Done) {
        let done = Done::default();
        (Doing { count, work, done: Arc::clone(&done) }, done)
    }

    fn sorted(done: &Done) -> Vec<usize> {
        let mut done = done.lock().clone();
        done.sort_unstable();
        done
    }

    #[test]
    fn each_part_is_done_once_by_as_many_threads_as_there_are() {
        for threads in [1, 2, 5] {
            let mut crew = Crew::new(threads).unwrap();
            assert_eq!(crew.threads(), threads);
            for (count, along) in [0, 1, threads, 100].into_iter().flat_map(|n| [(n, false), (n, true)]) {
                let (parts, done) = doing(count, |_| Ok(()));
                let flight = crew.begin(parts, along).unwrap();
                assert!(along || matches!(flight, Flight::Landed(_)));
                flight.land().unwrap();
                assert_eq!(sorted(&done), (0..count).collect::<Vec<_>>());
            }
            // No part ends before each thread has one.
            let (all, seen) = (Barrier::new(threads), Arc::new(Mutex::new(HashSet::new())));
            let who = Arc::clone(&seen);
            let (parts, _) = doing(threads, move |_| {
                all.wait();
                who.lock().insert(thread::current().id());
                Ok(())
            });
            crew.begin(parts, false).unwrap().land().unwrap();
            let seen = seen.lock();
            assert_eq!((seen.len(), seen.contains(&thread::current().id())), (threads, true));
        }
    }

    #[test]
    fn after_an_error_nothing_more_is_begun() {
        for (threads, panics) in [(1, false), (3, false), (3, true)] {
            let mut crew = Crew::new(threads).unwrap();
            let (parts, done) = doing(1000, move |part| match part {
                3 if panics => panic!("part 3"),
                3 => Err(EngineError::Input("part 3".to_owned())),
                _ => Ok(()),
            });
            let failed = crew.begin(parts, true).and_then(Flight::land).unwrap_err();
            let expected = match panics {
                true => EngineError::Device("the fitter panicked: part 3".to_owned()),
                false => EngineError::Input("part 3".to_owned()),
            };
            assert_eq!(failed, expected);
            let done = sorted(&done);
            // How far the other threads have got is not known.
            assert!(done.starts_with(&[0, 1, 2]) && !done.contains(&3), "{done:?}");
            assert!(threads > 1 || done.len() == 3, "{done:?}");
            let (parts, done) = doing(10, |_| Ok(()));
            crew.begin(parts, false).unwrap().land().unwrap();
            assert_eq!(sorted(&done).len(), 10, "the next batch");
        }
    }

    /// Two parts: the caller's, which ends when somebody else has the other, and that one, which ends after `hold`.
    fn held(hold: impl Fn() + Send + Sync + 'static) -> (impl Parts + 'static, Done) {
        let (me, both) = (thread::current().id(), Barrier::new(2));
        doing(2, move |_| {
            both.wait();
            if thread::current().id() != me {
                hold();
            }
            Ok(())
        })
    }

    #[test]
    fn the_next_batch_is_done_while_another_thread_is_about_the_last_part() {
        let mut crew = Crew::new(2).unwrap();
        let go = Arc::new(Barrier::new(2));
        let its = Arc::clone(&go);
        let (parts, first) = held(move || {
            its.wait();
        });
        let flight = crew.begin(parts, true).unwrap();
        assert!(matches!(flight, Flight::Airborne(_)), "it waited for the other's part");
        let (parts, second) = doing(4, |_| Ok(()));
        assert!(matches!(crew.begin(parts, true).unwrap(), Flight::Landed(_)));
        assert_eq!((second.lock().len(), first.lock().len()), (4, 1));
        go.wait();
        flight.land().unwrap();
        assert_eq!(sorted(&first).len(), 2);
    }

    #[test]
    fn no_more_than_two_batches_are_on_their_way() {
        let mut crew = Crew::new(3).unwrap();
        let (first_go, second_go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let (its, let_first_go) = (Arc::clone(&first_go), first_go);
        let (parts, first) = held(move || {
            its.wait();
        });
        let first_flight = crew.begin(parts, true).unwrap();
        let its = Arc::clone(&second_go);
        let (parts, second) = held(move || {
            let_first_go.wait();
            its.wait();
        });
        let second_flight = crew.begin(parts, true).unwrap();
        assert!(matches!(second_flight, Flight::Airborne(_)));
        assert_eq!((first.lock().len(), second.lock().len()), (2, 1));
        second_go.wait();
        first_flight.land().unwrap();
        second_flight.land().unwrap();
        assert_eq!(sorted(&second).len(), 2);
    }
}
