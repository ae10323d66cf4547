//! Chooses the thread that serves a connection: the one with the fewest, or the next in turn among equals.

use super::Connections;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::runtime::Handle;

/// The threads and how many connections each has.
pub(super) struct Seats {
    threads: Vec<(Handle, Arc<AtomicUsize>)>,
    /// Index of the thread that is looked at first.
    next: usize,
}

impl Seats {
    /// Without threads, the caller's own runtime is the only one.
    pub(super) fn new(mut threads: Vec<Handle>) -> Seats {
        if threads.is_empty() {
            threads.push(Handle::current());
        }
        Seats { threads: threads.into_iter().map(|thread| (thread, Arc::default())).collect(), next: 0 }
    }

    /// Takes a place for one more connection on the thread with the fewest.
    pub(super) fn take(&mut self, connections: Arc<Connections>) -> (Handle, Seat) {
        let count = self.threads.len();
        let index = (0..count)
            .map(|step| (self.next + step) % count)
            .min_by_key(|index| self.threads[*index].1.load(Ordering::Relaxed))
            .expect("there is at least one thread");
        self.next = (index + 1) % count;
        let (thread, taken) = &self.threads[index];
        taken.fetch_add(1, Ordering::Relaxed);
        connections.open.fetch_add(1, Ordering::Relaxed);
        (thread.clone(), Seat { taken: Arc::clone(taken), connections })
    }
}

/// One open connection; counted out however its task ends.
pub(super) struct Seat {
    taken: Arc<AtomicUsize>,
    connections: Arc<Connections>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
        self.connections.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_goes_to_the_thread_with_the_fewest() {
        let connections = Arc::new(Connections::default());
        let mut seats = Seats::new(vec![Handle::current(); 3]);
        let taken = |seats: &Seats| {
            seats.threads.iter().map(|(_, taken)| taken.load(Ordering::Relaxed)).collect::<Vec<_>>()
        };
        let mut held: Vec<Seat> = (0..6).map(|_| seats.take(Arc::clone(&connections)).1).collect();
        assert_eq!(taken(&seats), [2, 2, 2]);
        held.remove(4);
        held.push(seats.take(Arc::clone(&connections)).1);
        assert_eq!(taken(&seats), [2, 2, 2], "the place that was left is taken");
        assert_eq!(connections.open.load(Ordering::Relaxed), 6);
        drop(held);
        assert_eq!(taken(&seats), [0, 0, 0]);
        assert_eq!(connections.open.load(Ordering::Relaxed), 0);
    }
}
