//! What is true of one job.

use crate::{
    batch::{JobKey, ModelKey, roster::CPU, urgency::AGE_STEP},
    engine::{DataType, Tensor},
};
use std::{sync::Arc, time::Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::batch::sim) enum Row {
    Waiting,
    Running,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::batch::sim) enum State {
    Live,
    Answered,
    Cancelled,
}

/// A job's place in the order.
pub(super) type Rank = (i64, bool, Option<Instant>, Instant, JobKey);

/// One accepted job.
#[derive(Debug)]
pub(in crate::batch::sim) struct TrueJob {
    pub(in crate::batch::sim) key: JobKey,
    pub(in crate::batch::sim) model: ModelKey,
    pub(in crate::batch::sim) input: Tensor,
    pub(in crate::batch::sim) rows: Vec<Row>,
    pub(in crate::batch::sim) state: State,
    /// The engine refuses every batch that it is in.
    pub(in crate::batch::sim) poisoned: bool,
    pub(super) priority: u8,
    pub(super) deadline: Option<Instant>,
    pub(super) arrived: Instant,
    /// Came back from a failed batch, so it stands first.
    pub(super) again: bool,
    pub(super) alone: bool,
    /// It was first in a batch since others passed it.
    pub(super) led: bool,
    pub(super) device_failures: usize,
    /// The number of failures when each row was taken.
    pub(super) failures_before: Vec<usize>,
    /// The device that failed it first, and whether another GPU has failed it since, so that only the CPU may run it.
    pub(super) avoid: Option<Arc<str>>,
    pub(super) for_cpu: bool,
    /// Devices have failed it for good.
    pub(super) lost: bool,
    pub(super) pushed: Instant,
}

impl TrueJob {
    pub(super) fn avoids(&self, device: &Arc<str>) -> bool {
        if self.for_cpu { **device != *CPU } else { self.avoid.as_ref() == Some(device) }
    }

    pub(super) fn waits(&self, now: Instant) -> bool {
        self.state == State::Live
            && self.rows.contains(&Row::Waiting)
            && self.deadline.is_none_or(|deadline| deadline > now)
    }

    pub(super) fn runs(&self) -> bool {
        self.rows.contains(&Row::Running)
    }

    /// The order that the lanes promise, restated.
    pub(super) fn rank(&self, now: Instant) -> Rank {
        let steps = now.duration_since(self.arrived).as_micros() / AGE_STEP.as_micros();
        let top = if self.deadline.is_some() { 0 } else { -1 };
        let level = match self.again {
            true => -2,
            false => (i64::from(self.priority) - steps as i64).max(top),
        };
        let never = self.deadline.is_none();
        (level, never, self.deadline, self.arrived, self.key)
    }

    pub(super) fn same_lane(&self, other: &TrueJob) -> bool {
        self.model == other.model && self.input.shape[1..] == other.input.shape[1..]
    }

    pub(super) fn waits_again(&self, now: Instant) -> bool {
        self.state == State::Live && self.deadline.is_none_or(|deadline| deadline > now)
    }
}

/// Rows that contain their job and their position: 8 bytes each.
pub(in crate::batch::sim) fn tagged(tag: usize, shape: Vec<usize>, rows: usize) -> Tensor {
    let numbers = (0..rows).map(|row| (tag as u64) << 16 | row as u64);
    Tensor {
        datatype: DataType::Uint8,
        shape,
        data: numbers.flat_map(u64::to_le_bytes).collect::<Vec<_>>().into(),
    }
}
