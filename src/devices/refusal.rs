//! What a device cannot do, now or ever.

use crate::engine::{EngineError, child::NotOpened};

/// Why a device cannot do what it was asked now.
#[derive(Debug, Clone)]
pub(super) enum Refusal {
    /// Too little memory is free; later there may be more.
    Memory(String),
    /// The model was loaded, and left too little memory free; later there may be more.
    Room(String),
    /// A model's files have changed since it was loaded, or cannot be read; later they may be right again.
    Files(String),
    /// It would not fit even if nobody else were there, or takes more than its manifest allows.
    TooLarge(String),
    /// This process cannot take the GPU because of what it ran on a GPU before; a new process can.
    Poisoned(String),
    /// Something beside the model and the device was in the way, such as a limit of threads; later it may not be.
    Passing(String),
    /// Anything else.
    Failed(String),
}

/// Whether something that a hold on a device refused is tried there again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// At growing intervals, as long as the device is held.
    Always,
    /// Likewise, but only a few times: the failure may not recur, but each try costs others time.
    AFewTimes,
    /// Not while the device is held: the result would be the same.
    Never,
}

impl Refusal {
    /// Whether a later try on the same hold may succeed.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Refusal::Memory(_) | Refusal::Room(_) | Refusal::Files(_))
    }

    /// Whether it is tried again on the same hold. The CPU is never given back to be taken anew, and serves undisturbed while a model
    /// loads; engines of a GPU are made between its batches.
    pub(super) fn again(&self, on_gpu: bool) -> Again {
        match self {
            _ if self.may_pass() || !on_gpu => Again::Always,
            Refusal::TooLarge(_) => Again::Never,
            _ => Again::AFewTimes,
        }
    }
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Refusal {
        match error {
            EngineError::OutOfMemory(reason) => Refusal::Memory(reason),
            EngineError::Passing(reason) => Refusal::Passing(reason),
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
            | Refusal::TooLarge(reason)
            | Refusal::Poisoned(reason)
            | Refusal::Passing(reason)
            | Refusal::Failed(reason) => f.write_str(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_asked_again_for_whatever_may_have_failed_for_once() {
        let why = String::new;
        let refusals = [
            (Refusal::Memory(why()), Again::Always),
            (Refusal::Room(why()), Again::Always),
            (Refusal::Files(why()), Again::Always),
            (Refusal::Failed(why()), Again::AFewTimes),
            (Refusal::from(EngineError::Input(why())), Again::AFewTimes),
            (Refusal::from(EngineError::Passing(why())), Again::AFewTimes),
            (Refusal::TooLarge(why()), Again::Never),
        ];
        for (refusal, again) in refusals {
            assert_eq!((refusal.again(true), refusal.again(false)), (again, Again::Always), "{refusal:?}");
        }
    }
}
