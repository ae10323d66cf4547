//! Threads that share the parts of a batch with whoever has it.
//!
//! Whoever has a batch works on it, too: it begins while the others wake, and need not be woken when they are done. On a virtual machine
//! either takes as long as dozens of fits.

use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::{Mutex, PoisonError};

/// The others; none where one thread is all there is.
#[derive(Debug)]
pub(super) struct Crew(Option<ThreadPool>);

impl Crew {
    /// So many threads, with the one that calls [`Crew::share`].
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn new(threads: usize) -> Result<Crew, String> {
        if threads < 2 {
            return Ok(Crew(None));
        }
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads - 1)
            .thread_name(|index| format!("ocelli-fit-{index}"))
            .build();
        pool.map(|pool| Crew(Some(pool)))
            .map_err(|error| format!("cannot start the threads that fit: {error}"))
    }

    /// How many threads share the work.
    pub(super) fn threads(&self) -> usize {
        1 + self.0.as_ref().map_or(0, ThreadPool::current_num_threads)
    }

    /// Does something with each part; whoever is free takes the next.
    ///
    /// # Errors
    /// The first that came. What was begun then is ended, and no more is begun.
    pub(super) fn share<P: Send, E: Send>(
        &self,
        parts: impl ExactSizeIterator<Item = P> + Send,
        each: impl Fn(P) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let count = parts.len();
        let left = Mutex::new((Some(parts), None));
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).0.as_mut()?.next();
        let work = || {
            while let Some(part) = next() {
                if let Err(error) = each(part) {
                    let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
                    left.0 = None;
                    left.1.get_or_insert(error);
                }
            }
        };
        match &self.0 {
            Some(pool) if count > 1 => pool.in_place_scope(|scope| {
                for _ in 0..pool.current_num_threads().min(count - 1) {
                    scope.spawn(|_| work());
                }
                work();
            }),
            _ => work(),
        }
        left.into_inner().unwrap_or_else(PoisonError::into_inner).1.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use std::{collections::HashSet, sync::Barrier, thread};

    #[test]
    fn each_part_is_done_once_by_as_many_threads_as_there_are() {
        for threads in [1, 2, 5] {
            let crew = Crew::new(threads).unwrap();
            assert_eq!(crew.threads(), threads);
            for count in [0, 1, threads, 100] {
                let mut done = vec![0; count];
                crew.share(done.iter_mut(), |part| {
                    *part += 1;
                    Ok::<_, ()>(())
                })
                .unwrap();
                assert_eq!(done, vec![1; count]);
            }
            // None ends before all have one.
            let (all, seen) = (Barrier::new(threads), Mutex::new(HashSet::new()));
            crew.share(0..threads, |_| {
                all.wait();
                seen.lock().unwrap().insert(thread::current().id());
                Ok::<_, ()>(())
            })
            .unwrap();
            let seen = seen.into_inner().unwrap();
            assert_eq!((seen.len(), seen.contains(&thread::current().id())), (threads, true));
        }
    }

    #[test]
    fn after_an_error_nothing_more_is_begun() {
        for threads in [1, 3] {
            let crew = Crew::new(threads).unwrap();
            let begun = Mutex::new(0);
            let failed = crew.share(0..1000, |part| {
                *begun.lock().unwrap() += 1;
                if part == 3 { Err(part) } else { Ok(()) }
            });
            assert_eq!(failed, Err(3));
            let begun = *begun.lock().unwrap();
            assert!(begun >= 4 && (threads > 1 || begun == 4), "{begun}");
            assert_eq!(crew.share(0..10, |_| Ok::<_, ()>(())), Ok(()), "the next batch");
        }
    }
}
