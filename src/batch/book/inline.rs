//! Batches that whoever pushes a job runs at once, in the name of a worker that sleeps.

use super::{Book, Kind, Pick, Receipt, WorkerKey, run::Choice};
use crate::batch::{Batch, ModelKey, policy};
use std::{sync::Arc, time::Instant};

impl Book {
    /// Whether jobs of a model come so far apart that it is worth asking for [`Book::inline`].
    pub fn are_apart(&self, key: ModelKey) -> bool {
        self.models.get(&key).is_some_and(|model| policy::are_apart(model.pace.gap()))
    }

    /// What a worker that sleeps would begin if it were woken for a model now, where that is all that waits of the model, and
    /// [nobody is to be woken for it](policy::is_inline).
    pub fn inline(
        &mut self,
        worker: WorkerKey,
        key: ModelKey,
        now: Instant,
    ) -> Option<(Arc<Batch>, Receipt)> {
        let device = self.roster.device_of(worker)?;
        self.expire(key, now);
        let Choice::Run { shape, items, size } = self.choose(worker, device, key, now) else {
            return None;
        };
        let model = self.models.get(&key)?;
        let costs = model.costs.get(&(device, Kind::of(shape.setting())))?;
        let waiting: usize = model.lanes.iter().map(|(_, lane)| lane.items()).sum();
        if items < waiting || !policy::is_inline(costs, size, model.pace.gap(), now) {
            return None;
        }
        match self.form(worker, device, key, &shape, [items, size], now) {
            Pick::Run(batch, receipt) => Some((batch, receipt)),
            Pick::SleepUntil(_) | Pick::Sleep | Pick::Closed => None,
        }
    }

    /// The name of the device that a batch was formed for.
    pub fn device(&self, receipt: &Receipt) -> &Arc<str> {
        self.roster.name(receipt.device)
    }
}
