//! A child's answer, for whoever waits for it; and the seat that a batch has until then.

use super::wire::Answer;
use crate::engine::{EngineError, Tensor};
use parking_lot::{Condvar, Mutex};
use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

/// A child's answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) answer: Answer,
    /// Copies of the tensors that the answer refers to.
    pub(super) outputs: Vec<Tensor>,
}

/// A pending answer.
pub(super) struct Ticket {
    coming: mpsc::Receiver<Result<Reply, EngineError>>,
    /// The answer, if it has already been received.
    come: Option<Result<Reply, EngineError>>,
}

impl Ticket {
    /// The answer that arrives on this channel.
    pub(super) fn of(coming: mpsc::Receiver<Result<Reply, EngineError>>) -> Ticket {
        Ticket { coming, come: None }
    }

    pub(super) fn wait(self) -> Result<Reply, EngineError> {
        let gone = |_| EngineError::Device("the device's process is gone".to_owned());
        self.come.unwrap_or_else(|| self.coming.recv().map_err(gone)?)
    }

    /// Waits up to `patience`; false if the answer has not come by then.
    pub(super) fn comes_within(&mut self, patience: Duration) -> bool {
        match self.coming.recv_timeout(patience) {
            Ok(come) => self.come = Some(come),
            Err(mpsc::RecvTimeoutError::Timeout) => return false,
            // `wait` reports that.
            Err(mpsc::RecvTimeoutError::Disconnected) => {}
        }
        true
    }
}

/// Limits the number of batches in flight.
#[derive(Debug, Clone)]
pub(super) struct Seats(Arc<(Mutex<usize>, Condvar)>);

/// Room for one batch, taken until it is dropped.
#[derive(Debug)]
pub(super) struct Seat(Seats);

impl Seats {
    pub(super) fn new(count: usize) -> Seats {
        Seats(Arc::new((Mutex::new(count.max(1)), Condvar::new())))
    }

    pub(super) fn take(&self) -> Seat {
        let (free, freed) = &*self.0;
        let mut free = free.lock();
        freed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        Seat(self.clone())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let (free, freed) = &*self.0.0;
        *free.lock() += 1;
        freed.notify_one();
    }
}
