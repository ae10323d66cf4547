//! A child's answer, for whoever waits for it.

use super::wire::Answer;
use crate::engine::{EngineError, Tensor};
use std::{sync::mpsc, time::Duration};

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
