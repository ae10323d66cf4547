//! Work of one request that waits for its turn at the pool, so that what comes later waits behind no more than a few files of each other
//! request.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::Semaphore;

/// The files of one request take turns here on their way to the pool, where those of equal priority mostly go in order of arrival. Without
/// this, a single image would wait for all files of a large request that came before.
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
