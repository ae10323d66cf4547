//! Which devices may run which jobs, which of them should, and what becomes of a model that no device serves.
//!
//! A job may run on every device that serves its model, with two exceptions: not on a device that failed it while there is another, and
//! not on one that only stands by while there is any other.

use super::{Book, Kind, Model, Pieces};
use crate::{
    batch::{
        JobKey, ModelKey,
        lanes::Admits,
        padded,
        roster::{Absence, Avoid, DeviceKey, Roster, WorkerKey},
        urgency::Rank,
    },
    error::{InferError, RETRY_AFTER},
};
use std::{sync::Arc, time::Instant};

/// The devices that serve a model.
#[derive(Clone, Copy)]
pub(super) struct Pool<'a> {
    roster: &'a Roster,
    devices: &'a [DeviceKey],
    /// The names of those that only stand by.
    standby: &'a [Arc<str>],
}

impl<'a> Pool<'a> {
    pub(super) fn of(roster: &'a Roster, key: ModelKey, standby: &'a [Arc<str>]) -> Pool<'a> {
        Pool { roster, devices: roster.serving(key), standby }
    }

    /// Each device once.
    pub(super) fn devices(self) -> &'a [DeviceKey] {
        self.devices
    }

    /// Whether a device may run jobs that avoid these devices.
    pub(super) fn admits(self, device: DeviceKey, avoid: Option<Avoid>) -> bool {
        let avoided = |other| avoid.is_some_and(|avoid| avoid.is(other, self.roster.is_cpu(other)));
        let nobody_else = self.devices.iter().all(|other| avoided(*other));
        let is_candidate = |other| nobody_else || !avoided(other);
        let mut candidates = self.devices.iter().copied().filter(|other| is_candidate(*other));
        self.devices.contains(&device)
            && is_candidate(device)
            && (!self.stands_by(device) || candidates.all(|other| self.stands_by(other)))
    }

    /// Whether a device only stands by.
    pub(super) fn stands_by(self, device: DeviceKey) -> bool {
        self.standby.contains(self.roster.name(device))
    }
}

/// How fast a device runs a batch; less is faster. GPUs without a recent measurement come first, in the order of older measurements, so
/// that they are measured. A CPU without one comes last.
type Speed = (u8, f64);

fn faster(one: Speed, other: Speed) -> bool {
    one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)).is_lt()
}

impl Model {
    /// Rows of a kind that wait.
    fn waiting(&self, kind: Kind) -> usize {
        let lanes = self.lanes.iter().filter(|(shape, _)| Kind::of(shape.setting()) == kind);
        lanes.map(|(_, lane)| lane.items()).sum()
    }

    /// Seconds that a device would take for these rows, as far as it was measured.
    fn backlog(&self, device: DeviceKey, kind: Kind) -> f64 {
        let place = (device, kind);
        let sizes = self.sizes(place);
        self.costs.get(&place).map_or(0.0, |costs| costs.seconds(self.waiting(kind), &sizes))
    }
}

impl Book {
    /// Models with waiting work of which this worker may run at least a part.
    pub(super) fn open_to(&self, worker: WorkerKey, device: DeviceKey) -> Vec<ModelKey> {
        let open = |key: &ModelKey| {
            self.roster.may_serve(worker, *key)
                && self.models.get(key).is_some_and(|model| {
                    let pool = Pool::of(&self.roster, *key, &model.standby);
                    model.lanes.any(&|avoid| pool.admits(device, avoid))
                })
        };
        self.shares.waiting().filter(open).collect()
    }

    fn speed(&self, device: DeviceKey, model: &Model, (kind, size): (Kind, usize), now: Instant) -> Speed {
        match model.costs.get(&(device, kind)) {
            Some(costs) if costs.is_fresh(now) => (1, costs.at_best(size)),
            _ if self.roster.is_cpu(device) => (2, 0.0),
            Some(costs) => (0, costs.at_best(size)),
            None => (0, 0.0),
        }
    }

    /// Seconds until the quickest of the faster devices should have run all that waits for it, if there is a faster device.
    pub(super) fn rival(
        &self,
        device: DeviceKey,
        key: ModelKey,
        pool: Pool<'_>,
        batch: (Kind, usize),
        now: Instant,
    ) -> Option<f64> {
        let model = &self.models[&key];
        let own = self.speed(device, model, batch, now);
        let rivals = pool.devices.iter().copied().filter(|other| {
            *other != device
                && pool.admits(*other, None)
                && faster(self.speed(*other, model, batch, now), own)
        });
        let seconds = rivals.map(|rival| self.roster.ready_in(rival, key, now) + self.backlog(rival));
        seconds.min_by(f64::total_cmp)
    }

    /// Seconds that a device would take for all that waits of the models that it serves.
    fn backlog(&self, device: DeviceKey) -> f64 {
        let served = self.shares.waiting().filter(|key| self.roster.runs(device, *key));
        let models = served.filter_map(|key| self.models.get(&key));
        let seconds = models.flat_map(|model| Kind::ALL.map(|kind| model.backlog(device, kind)));
        seconds.sum()
    }

    /// The index of the worker that is best woken for the waiting work of a model: the one that should finish it first. A worker cannot
    /// be woken for work that avoids its device, so only those that may take the work are considered; they wake the others.
    pub fn best_of(&self, workers: &[WorkerKey], key: ModelKey, now: Instant) -> Option<usize> {
        let model = self.models.get(&key).filter(|model| !model.lanes.is_empty())?;
        let pool = Pool::of(&self.roster, key, &model.standby);
        let mut best: Option<(usize, Rank, Speed)> = None;
        for (index, worker) in workers.iter().enumerate() {
            let Some(device) = self.roster.device_of(*worker) else {
                continue;
            };
            let admits: Admits<'_> = &|avoid| pool.admits(device, avoid);
            let head = model.lanes.head(admits).filter(|_| self.roster.may_serve(*worker, key));
            let Some((head, shape)) = head else {
                continue;
            };
            let kind = Kind::of(shape.setting());
            let size = padded(&model.rules.sizes, model.waiting(kind));
            // A worker that waits for more work may have batches in flight.
            let busy = self.roster.busy_for(*worker, now);
            let done = match self.speed(device, model, (kind, size), now) {
                // Its batches in flight will measure it, so it need not come first.
                (0, _) if busy > 0.0 => (1, busy),
                (class, seconds) => (class, busy + seconds),
            };
            // Of equals the last one: it fell asleep last, and has the warmest caches.
            if best.is_none_or(|(_, first, best)| head < first || (head == first && !faster(best, done))) {
                best = Some((index, head, done));
            }
        }
        best.map(|(index, ..)| index)
    }

    /// Records what a worker serves; returns whether that has changed.
    pub(super) fn note_serves(&mut self, worker: WorkerKey, serves: &[ModelKey]) -> bool {
        let news = self.roster.note_serves(worker, serves);
        self.settled.moved |= news;
        if let (true, Some(device)) = (news, self.roster.device_of(worker)) {
            for key in serves {
                if let Some(model) = self.models.get_mut(key).filter(|model| !model.homes.contains(&device)) {
                    model.homes.push(device);
                }
            }
        }
        news
    }

    /// A worker serves these from now on.
    pub fn serves(&mut self, worker: WorkerKey, serves: &[ModelKey], now: Instant) {
        if self.note_serves(worker, serves) {
            self.strand(now);
        }
    }

    /// Says why a device's workers leave or have left, and when it should be back; returns whether that has changed anything.
    pub fn expect(&mut self, device: &Arc<str>, absence: Absence, now: Instant) -> bool {
        let news = self.roster.set_absence(device, absence);
        if news {
            self.strand(now);
        }
        news
    }

    /// Like [`Book::expect`], but only if nothing was said since the device last served.
    pub fn suppose(&mut self, device: &Arc<str>, absence: Absence, now: Instant) -> bool {
        !self.roster.is_absence_told(device) && self.expect(device, absence, now)
    }

    /// A worker has all that its device will serve for now: jobs that wait for the device to return with other models are answered.
    pub fn returned(&mut self, worker: WorkerKey, serves: &[ModelKey], now: Instant) {
        let Some(device) = self.roster.device_of(worker) else { return };
        self.note_serves(worker, serves);
        self.roster.end_absence(device);
        self.strand(now);
    }

    /// Why a model that was served before is not served now.
    pub(super) fn unserved(&self, key: ModelKey) -> Option<Absence> {
        let model = self.models.get(&key).filter(|model| !model.homes.is_empty())?;
        (!self.roster.may_be_served(key)).then(|| self.roster.absence(&model.homes, key))
    }

    /// Refuses a job of a model whose devices are away and will not be back in time.
    pub fn in_sight(&self, key: ModelKey, deadline: Option<Instant>, now: Instant) -> Result<(), InferError> {
        match self.unserved(key) {
            Some(absence) => out_of_sight(&self.models[&key], &absence, deadline, now).map_or(Ok(()), Err),
            None => Ok(()),
        }
    }

    /// Answers jobs of unserved models that no worker will run, or not in time: those of retired models, of any model once closed, and
    /// those whose devices will not be back before their deadline.
    pub(super) fn strand(&mut self, now: Instant) {
        let mut stranded: Vec<(JobKey, InferError)> = Vec::new();
        for (key, model) in self.models.iter().filter(|(_, model)| !model.lanes.is_empty()) {
            if self.roster.may_be_served(*key) {
                continue;
            }
            let absence = self.unserved(*key);
            let over = self.is_closed() || model.retired;
            for job in model.lanes.jobs() {
                let deadline = self.jobs.get(&job).and_then(|entry| entry.job.deadline);
                let error = match &absence {
                    _ if over => Some(InferError::Device("no device serves the model any more".into())),
                    Some(absence) => out_of_sight(model, absence, deadline, now),
                    // A device may still come.
                    None => None,
                };
                stranded.extend(error.map(|error| (job, error)));
            }
        }
        for (job, error) in stranded {
            self.end(job, Some(Err::<Pieces, _>(error)), now);
        }
    }
}

/// Why a job cannot wait for the devices of its model.
fn out_of_sight(
    model: &Model,
    absence: &Absence,
    deadline: Option<Instant>,
    now: Instant,
) -> Option<InferError> {
    let in_time = absence.back.is_some_and(|back| deadline.is_none_or(|deadline| back < deadline));
    let retry_after = absence.back.map_or(RETRY_AFTER, |back| back.saturating_duration_since(now));
    let (name, reason) = (model.name.to_string(), absence.reason.to_string());
    (!in_time).then_some(InferError::Unserved { name, reason, retry_after })
}
