//! Work that waits for a thread of the pool, only as long as somebody waits for its result, and behind no more than a few files of each
//! other request.

use parking_lot::Mutex;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::Semaphore;

/// Work that a thread is to take, kept by the caller that waits for its result. It is dropped with this unless it was taken: it may own a
/// large body, for which nothing is set aside once the request is over, however long the threads are busy.
pub(super) struct Waiting<W>(Arc<Mutex<Option<W>>>);

impl<W> Waiting<W> {
    /// Returns it with the function by which a thread takes the work; that gives `None` once nobody waits.
    pub(super) fn new(work: W) -> (Waiting<W>, impl FnOnce() -> Option<W>) {
        let work = Arc::new(Mutex::new(Some(work)));
        (Waiting(Arc::clone(&work)), move || work.lock().take())
    }
}

impl<W> Drop for Waiting<W> {
    fn drop(&mut self) {
        let left = self.0.lock().take();
        // Not under the lock: what the work owns may take a while to go.
        drop(left);
    }
}

/// The files of one request take turns here on their way to the pool, which does what it has in order of arrival. Without this, a single
/// image would wait for all files of a large request that came before.
///
/// So do the steps in which its files of several frames are decoded. Whoever has the turn of a file may wait for that of a step, never the
/// other way round.
#[derive(Debug)]
pub struct Turns {
    files: Semaphore,
    steps: Semaphore,
}

impl Turns {
    /// At most so many files, and steps of them, are under way.
    pub(super) fn new(files: usize, steps: usize) -> Turns {
        Turns { files: Semaphore::new(files), steps: Semaphore::new(steps) }
    }

    /// Does the work for a file when it is its turn, in the order of the calls.
    pub(in crate::http) async fn take<T>(&self, work: impl Future<Output = T>) -> T {
        // It is never closed.
        let _turn = self.files.acquire().await;
        work.await
    }

    /// The same for a step.
    pub(super) async fn step<T>(&self, work: impl Future<Output = T>) -> T {
        let _turn = self.steps.acquire().await;
        work.await
    }
}

/// Counts one more of something as long as it lives.
pub(super) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(super) fn among(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::{super::DecodePool, *};
    use crate::{
        http::admission::{Admission, AdmissionLimits, charged},
        image::Limits,
    };
    use std::{sync::mpsc, time::Duration};

    fn one_thread() -> DecodePool {
        let limits = Limits { side_max: 8, pixels_max: 64, frames_max: 1 };
        DecodePool::new(1, 100, limits).unwrap()
    }

    #[tokio::test]
    async fn what_waits_goes_with_whoever_waits_for_it_while_the_threads_are_busy() {
        let pool = one_thread();
        let (release, released) = mpsc::channel::<()>();
        let mut first = Box::pin(pool.run(move || released.recv().is_ok()));
        assert!(futures_util::poll!(&mut first).is_pending());
        let body = Arc::new(());
        let owned = Arc::clone(&body);
        let mut second = Box::pin(pool.run(move || drop(owned)));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert_eq!((Arc::strong_count(&body), pool.in_pool.load(Ordering::Relaxed)), (2, 2));
        drop(second);
        assert_eq!((Arc::strong_count(&body), pool.in_pool.load(Ordering::Relaxed)), (1, 1));
        release.send(()).unwrap();
        assert_eq!(first.await, Ok(true));
        assert_eq!(pool.run(|| 7).await, Ok(7));
    }

    #[tokio::test]
    async fn what_was_begun_keeps_what_is_set_aside_for_it_to_its_end() {
        let pool = one_thread();
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: 100 };
        let admission = Admission::new(limits);
        let permit = Arc::new(admission.admit().unwrap());
        permit.cover(60).unwrap();
        let (begin, begun) = mpsc::channel::<()>();
        let (release, released) = mpsc::channel::<()>();
        let work = move || {
            begin.send(()).unwrap();
            released.recv().is_ok()
        };
        let mut asked = Box::pin(pool.run(charged(Some(&permit), work)));
        assert!(futures_util::poll!(&mut asked).is_pending());
        begun.recv_timeout(Duration::from_secs(10)).unwrap();
        drop((asked, permit));
        let now = admission.in_flight();
        assert_eq!((now.requests, now.bytes), (1, 60));
        release.send(()).unwrap();
        // Behind it, on the one thread that there is.
        assert_eq!(pool.run(|| 7).await, Ok(7));
        let now = admission.in_flight();
        assert_eq!((now.requests, now.bytes), (0, 0));
    }
}
