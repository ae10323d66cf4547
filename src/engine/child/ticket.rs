//! What a child answers, for whoever waits for it.

use super::wire::Answer;
use crate::engine::{EngineError, Tensor};
use std::{sync::mpsc, time::Duration};

/// What a child answered.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) answer: Answer,
    /// Copies of the tensors that the answer tells of.
    pub(super) outputs: Vec<Tensor>,
}

/// An answer that is to come.
pub(super) struct Ticket {
    coming: mpsc::Receiver<Result<Reply, EngineError>>,
    /// It was waited for, and has come.
    come: Option<Result<Reply, EngineError>>,
}

impl Ticket {
    /// An answer that is told here.
    pub(super) fn of(coming: mpsc::Receiver<Result<Reply, EngineError>>) -> Ticket {
        Ticket { coming, come: None }
    }

    pub(super) fn wait(self) -> Result<Reply, EngineError> {
        let gone = |_| EngineError::Device("the device's process is gone".to_owned());
        self.come.unwrap_or_else(|| self.coming.recv().map_err(gone)?)
    }

    /// Waits so long; false where it has not come by then.
    pub(super) fn comes_within(&mut self, patience: Duration) -> bool {
        match self.coming.recv_timeout(patience) {
            Ok(come) => self.come = Some(come),
            Err(mpsc::RecvTimeoutError::Timeout) => return false,
            // `wait` says so.
            Err(mpsc::RecvTimeoutError::Disconnected) => {}
        }
        true
    }
}
