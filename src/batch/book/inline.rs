//! Batches that the thread that pushes a job runs at once, on behalf of a sleeping worker.

use super::{Book, Kind, Receipt, WorkerKey, run::Choice};
use crate::batch::{Batch, ModelKey, policy};
use std::{sync::Arc, time::Instant};

impl Book {
    /// Whether it may be worth asking for [`Book::inline`]: jobs of a model arrive far apart, or batching gains nothing.
    pub fn may_inline(&self, key: ModelKey, now: Instant) -> bool {
        self.models.get(&key).is_some_and(|model| {
            let sizes = &model.rules.sizes;
            policy::are_apart(model.pace.gap())
                || model.costs.values().any(|costs| policy::gains_nothing(sizes, sizes[0], costs, now))
        })
    }

    /// The batch that a sleeping worker would start if it were woken for a model now, where that batch takes all that waits of the model
    /// and [runs inline](policy::is_inline). If the worker already has batches running, only where no other model has work for it: such
    /// work has its turn when they have ended.
    pub fn inline(
        &mut self,
        worker: WorkerKey,
        key: ModelKey,
        now: Instant,
    ) -> Option<(Arc<Batch>, Receipt)> {
        let device = self.roster.device_of(worker)?;
        self.expire(key, now);
        let running = self.roster.running(worker);
        if running > 0
            && self.shares.waiting().any(|other| other != key && self.roster.may_serve(worker, other))
        {
            return None;
        }
        let Choice::Run(cut) = self.choose(worker, device, key, true, now) else {
            return None;
        };
        let model = self.models.get(&key)?;
        let place = (device, Kind::of(cut.shape.setting()));
        let costs = model.costs.get(&place)?;
        let (sizes, gap) = (model.sizes(place), model.pace.gap());
        if cut.items < model.lanes.items() || !policy::is_inline(&sizes, cut.size, costs, gap, running, now) {
            return None;
        }
        Some(self.form(worker, device, key, cut, now))
    }

    /// The name of the device that a batch was formed for.
    pub fn device(&self, receipt: &Receipt) -> &Arc<str> {
        self.roster.name(receipt.device)
    }
}
