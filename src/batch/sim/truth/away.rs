//! Devices that leave, and come back with one model after the other.

use super::Truth;
use crate::batch::ModelKey;
use std::{collections::HashSet, sync::Arc, time::Instant};

impl Truth {
    /// A worker says what it serves, and asks for work.
    pub(in crate::batch::sim) fn asks(&mut self, worker: usize, device: &Arc<str>, serves: &[ModelKey]) {
        self.serving.insert(worker, (Arc::clone(device), serves.to_vec()));
        self.homes.extend(serves.iter().map(|model| (*model, Arc::clone(device))));
        if let Some((_, again)) = self.away.get_mut(device) {
            again.extend(serves);
        }
    }

    /// A device leaves, with the time at which it should be back.
    pub(in crate::batch::sim) fn leaves(&mut self, device: &Arc<str>, back: Option<Instant>) {
        self.away.insert(Arc::clone(device), (back, HashSet::new()));
    }

    /// A device has all models that it will have.
    pub(in crate::batch::sim) fn returned(&mut self, device: &Arc<str>) {
        self.away.remove(device);
    }

    /// A device has come back, so far without this model.
    pub(in crate::batch::sim) fn lacks(&mut self, model: ModelKey, now: Instant) {
        let waits =
            !self.is_served(model) && self.jobs.iter().any(|job| job.model == model && job.waits(now));
        self.tally.partly_back += usize::from(waits);
    }

    /// Whether a device should be back with a model in time.
    pub(super) fn is_coming(&self, model: ModelKey, deadline: Option<Instant>) -> bool {
        let over = self.closed || self.retired.contains(&model);
        let mut away = self.away.iter();
        !over
            && away.any(|(device, (back, again))| {
                let in_time = back.is_some_and(|back| deadline.is_none_or(|deadline| back < deadline));
                in_time && !again.contains(&model) && self.homes.contains(&(model, Arc::clone(device)))
            })
    }
}
