//! What a device cannot do now, or for good.

use super::Hold;
use crate::engine::{EngineError, child::NotOpened};
use std::sync::Arc;

/// What a device is asked to do, and cannot now.
#[derive(Debug, Clone)]
pub(in crate::devices) enum Refusal {
    /// Too little memory is free; another time there may be more.
    Memory(String),
    /// It was loaded, and left too little memory free; another time there may be more.
    Room(String),
    /// A model's files are not what they were when it was loaded, or cannot be read; another time they may be.
    Files(String),
    /// It could not be taken for what this process has run on a GPU before. Another process may have it.
    Poisoned(String),
    /// Anything else.
    Failed(String),
}

impl Refusal {
    /// Whether it may be otherwise another time, on the same hold.
    pub(in crate::devices) fn may_pass(&self) -> bool {
        matches!(self, Refusal::Memory(_) | Refusal::Room(_) | Refusal::Files(_))
    }
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Refusal {
        match error {
            EngineError::OutOfMemory(reason) => Refusal::Memory(reason),
            EngineError::Input(reason) | EngineError::Device(reason) => Refusal::Failed(reason),
        }
    }
}

impl From<NotOpened> for Refusal {
    fn from(not: NotOpened) -> Refusal {
        match not {
            NotOpened::Poisoned(error) => Refusal::Poisoned(error.to_string()),
            NotOpened::Failed(error) => error.into(),
        }
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal::Failed(reason)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Memory(reason)
            | Refusal::Room(reason)
            | Refusal::Files(reason)
            | Refusal::Poisoned(reason)
            | Refusal::Failed(reason) => f.write_str(reason),
        }
    }
}

/// A device that could not be taken.
pub(in crate::devices) struct NotTaken {
    /// Why.
    pub(in crate::devices) refusal: Refusal,
    /// What there is of a hold on it, for whoever ends it.
    pub(in crate::devices) left: Option<Arc<Hold>>,
}

impl From<String> for NotTaken {
    fn from(reason: String) -> NotTaken {
        NotTaken { refusal: reason.into(), left: None }
    }
}
