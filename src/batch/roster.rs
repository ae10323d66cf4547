//! Which workers there are, on which devices, serving which models; and which devices are away. Pure.
//!
//! A *device* is known by its name from its first worker on, and never forgotten: its measured speed and its last fault are still of use
//! when it comes back. A device *serves* a model while one of its workers does.

use super::ModelKey;
use foldhash::{HashMap, HashSet};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The name of the device that is the machine's own processors.
pub const CPU: &str = "cpu";

/// The devices that a job avoids, where others serve its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Avoid {
    /// The one that failed it.
    One(DeviceKey),
    /// All but the CPU: two devices have failed it, and one fault may affect all GPUs of a process.
    Gpus,
}

impl Avoid {
    /// Whether this device is one of them.
    pub fn is(self, device: DeviceKey, is_cpu: bool) -> bool {
        match self {
            Avoid::One(avoided) => avoided == device,
            Avoid::Gpus => !is_cpu,
        }
    }
}

/// One worker, from attach to detach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkerKey(pub(super) u64);

/// One device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceKey(pub(super) u32);

/// What is said of a device that is away, or about to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absence {
    /// Why, in words.
    pub reason: Arc<str>,
    /// When it should serve again; `None` where nobody can say.
    pub back: Option<Instant>,
}

#[derive(Debug)]
struct Worker {
    device: DeviceKey,
    /// As of its last pick; `None` until then: it may serve anything.
    serves: Option<Served>,
    /// Its batches: their numbers, and when each should be done.
    running: Vec<(u64, Instant)>,
}

/// What a worker serves: as a list, to see whether that has changed, and as a set, for quick look-ups.
#[derive(Debug)]
struct Served {
    told: Vec<ModelKey>,
    models: HashSet<ModelKey>,
}

impl Worker {
    fn may_serve(&self, model: ModelKey) -> bool {
        self.serves.as_ref().is_none_or(|serves| serves.models.contains(&model))
    }

    fn serves(&self, model: ModelKey) -> bool {
        self.serves.as_ref().is_some_and(|serves| serves.models.contains(&model))
    }

    /// Seconds from now until it should be done with its batches. An overdue batch is taken to need as long again as it is late.
    fn busy_for(&self, now: Instant) -> f64 {
        let Some((_, due)) = self.running.last() else { return 0.0 };
        due.saturating_duration_since(now).max(now.saturating_duration_since(*due)).as_secs_f64()
    }
}

#[derive(Debug)]
struct Device {
    name: Arc<str>,
    absence: Option<Absence>,
    /// Models that it has served since `absence` was set: for these it is back.
    served: Vec<ModelKey>,
    /// What its last fault was.
    fault: Option<Arc<str>>,
}

/// All workers and devices.
#[derive(Debug, Default)]
pub struct Roster {
    workers: HashMap<WorkerKey, Worker>,
    devices: Vec<Device>,
    /// The devices that serve each model, each once. Cached: it is read several times for each job, and seldom changes.
    serving: HashMap<ModelKey, Vec<DeviceKey>>,
    next_batch: u64,
}

impl Roster {
    /// Adds a worker of a device.
    pub fn attach(&mut self, worker: WorkerKey, device: &Arc<str>) {
        let device = self.device(device);
        self.workers.insert(worker, Worker { device, serves: None, running: Vec::new() });
    }

    /// Removes a worker.
    pub fn detach(&mut self, worker: WorkerKey) {
        let served = self.workers.remove(&worker).and_then(|worker| worker.serves);
        for model in served.into_iter().flat_map(|served| served.models) {
            self.note_serving(model);
        }
    }

    /// The device of this name, known from now on.
    pub fn device(&mut self, name: &Arc<str>) -> DeviceKey {
        let known = self.devices.iter().position(|device| device.name == *name);
        let index = known.unwrap_or_else(|| {
            self.devices.push(Device {
                name: Arc::clone(name),
                absence: None,
                served: Vec::new(),
                fault: None,
            });
            self.devices.len() - 1
        });
        DeviceKey(index as u32)
    }

    /// A device's name.
    pub fn name(&self, device: DeviceKey) -> &Arc<str> {
        &self.devices[device.0 as usize].name
    }

    /// The device that a worker is on.
    pub fn device_of(&self, worker: WorkerKey) -> Option<DeviceKey> {
        self.workers.get(&worker).map(|worker| worker.device)
    }

    /// Whether a device is the machine's own processors.
    pub fn is_cpu(&self, device: DeviceKey) -> bool {
        **self.name(device) == *CPU
    }

    /// Says why a device leaves, and when it should be back; returns whether that has changed anything.
    pub fn set_absence(&mut self, device: &Arc<str>, absence: Absence) -> bool {
        let device = self.device(device);
        let device = &mut self.devices[device.0 as usize];
        let news = device.absence.as_ref() != Some(&absence) || !device.served.is_empty();
        (device.absence, device.served) = (Some(absence), Vec::new());
        news
    }

    /// Whether an absence was announced since the device last served anything.
    pub fn is_absence_told(&mut self, device: &Arc<str>) -> bool {
        let device = self.device(device);
        let device = &self.devices[device.0 as usize];
        device.absence.is_some() && device.served.is_empty()
    }

    /// A device is back with all that it will serve for now: no other model is expected of it.
    pub fn end_absence(&mut self, device: DeviceKey) {
        let device = &mut self.devices[device.0 as usize];
        (device.absence, device.served) = (None, Vec::new());
    }

    /// Notes a fault of a device, for messages.
    pub fn note_fault(&mut self, device: DeviceKey, fault: &str) {
        self.devices[device.0 as usize].fault = Some(fault.into());
    }

    /// Records what a worker serves; returns whether that has changed.
    pub fn note_serves(&mut self, worker: WorkerKey, serves: &[ModelKey]) -> bool {
        let Some(worker) = self.workers.get_mut(&worker) else {
            return false;
        };
        let news = worker.serves.as_ref().is_none_or(|known| known.told != serves);
        if news {
            let models: HashSet<ModelKey> = serves.iter().copied().collect();
            let told = Served { told: serves.to_vec(), models: models.clone() };
            let before = worker.serves.replace(told).map(|served| served.models).unwrap_or_default();
            if !serves.is_empty() {
                let device = &mut self.devices[worker.device.0 as usize];
                device.fault = None;
                // A device that comes back loads one model at a time: jobs for the models still to come keep waiting.
                if device.absence.is_some() {
                    device.served.extend_from_slice(serves);
                }
            }
            for model in before.symmetric_difference(&models) {
                self.note_serving(*model);
            }
        }
        news
    }

    /// The workers that serve a model have changed.
    fn note_serving(&mut self, model: ModelKey) {
        let workers = self.workers.values().filter(|worker| worker.serves(model));
        let mut devices: Vec<DeviceKey> = workers.map(|worker| worker.device).collect();
        devices.sort_unstable();
        devices.dedup();
        match devices.is_empty() {
            true => self.serving.remove(&model),
            false => self.serving.insert(model, devices),
        };
    }

    /// Whether any worker serves a model, or might.
    pub fn may_be_served(&self, model: ModelKey) -> bool {
        self.workers.values().any(|worker| worker.may_serve(model))
    }

    /// Whether this worker serves a model, or might: before its first pick that is not known.
    pub fn may_serve(&self, worker: WorkerKey, model: ModelKey) -> bool {
        self.workers.get(&worker).is_some_and(|worker| worker.may_serve(model))
    }

    /// The devices that workers are on.
    pub fn present(&self) -> Vec<DeviceKey> {
        self.workers.values().map(|worker| worker.device).collect()
    }

    /// The devices that serve a model, each once.
    pub fn serving(&self, model: ModelKey) -> &[DeviceKey] {
        self.serving.get(&model).map_or(&[], Vec::as_slice)
    }

    /// Whether a device serves a model.
    pub fn runs(&self, device: DeviceKey, model: ModelKey) -> bool {
        self.serving(model).contains(&device)
    }

    /// Why these devices, which served a model once, do not now, and when the first of them should again.
    pub fn absence(&self, devices: &[DeviceKey], model: ModelKey) -> Absence {
        let absence = |key: &DeviceKey| {
            let device = &self.devices[key.0 as usize];
            device.absence.as_ref().filter(|_| !device.served.contains(&model))
        };
        let told = |key: &DeviceKey| {
            let Device { name, fault, .. } = &self.devices[key.0 as usize];
            match absence(key).map(|absence| &absence.reason).or(fault.as_ref()) {
                Some(why) => format!("{name} is away: {why}"),
                None if self.present().contains(key) => format!("{name} is there, and does not serve it now"),
                None => format!("{name} is away"),
            }
        };
        Absence {
            reason: devices.iter().map(told).collect::<Vec<_>>().join("; ").into(),
            back: devices.iter().filter_map(absence).filter_map(|absence| absence.back).min(),
        }
    }

    /// A worker starts a batch that should take so long; returns the batch's number.
    pub fn begin(&mut self, worker: WorkerKey, seconds: f64, now: Instant) -> u64 {
        self.next_batch += 1;
        if let Some(worker) = self.workers.get_mut(&worker) {
            let free = worker.running.last().map_or(now, |(_, due)| now.max(*due));
            let takes = Duration::try_from_secs_f64(seconds).unwrap_or_default();
            worker.running.push((self.next_batch, free + takes));
        }
        self.next_batch
    }

    /// The number of the batch that started last.
    pub fn last_batch(&self) -> u64 {
        self.next_batch
    }

    /// A worker's batch has ended: the due times of those behind it shift, as it ended earlier or later than expected.
    pub fn end(&mut self, worker: WorkerKey, batch: u64, now: Instant) {
        let Some(worker) = self.workers.get_mut(&worker) else { return };
        let Some(at) = worker.running.iter().position(|(running, _)| *running == batch) else { return };
        let (_, expected) = worker.running.remove(at);
        let turn = worker.running[..at].last().map_or(now, |(_, due)| now.max(*due));
        for (_, due) in &mut worker.running[at..] {
            // None of them was due before the one that has ended.
            *due = turn + due.saturating_duration_since(expected);
        }
    }

    /// Time from now until a worker's last batch is due.
    pub fn due_in(&self, worker: WorkerKey, now: Instant) -> Duration {
        let due = self.workers.get(&worker).and_then(|worker| worker.running.last());
        due.map_or(Duration::ZERO, |(_, due)| due.saturating_duration_since(now))
    }

    /// Seconds from now until a worker should be done with its batches.
    pub fn busy_for(&self, worker: WorkerKey, now: Instant) -> f64 {
        self.workers.get(&worker).map_or(0.0, |worker| worker.busy_for(now))
    }

    /// Batches of a worker.
    pub fn running(&self, worker: WorkerKey) -> usize {
        self.workers.get(&worker).map_or(0, |worker| worker.running.len())
    }

    /// Seconds from now until the first worker of a device that serves a model should be done with its batches.
    pub fn ready_in(&self, device: DeviceKey, model: ModelKey, now: Instant) -> f64 {
        let workers = self.workers.values();
        let workers = workers.filter(|worker| worker.device == device && worker.serves(model));
        workers.map(|worker| worker.busy_for(now)).min_by(f64::total_cmp).unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_ends_sooner_or_later_than_expected_moves_those_behind_it() {
        let (mut roster, worker, start) = (Roster::default(), WorkerKey(1), Instant::now());
        roster.attach(worker, &"gpu-0".into());
        let at = |seconds| start + Duration::from_secs(seconds);
        let [first, second, third] = [10.0, 1.0, 1.0].map(|takes| roster.begin(worker, takes, start));
        assert_eq!(roster.busy_for(worker, start), 12.0);
        roster.end(worker, first, at(1));
        assert_eq!(roster.busy_for(worker, at(1)), 2.0, "sooner");
        roster.end(worker, second, at(5));
        assert_eq!(roster.busy_for(worker, at(5)), 1.0, "later");
        assert_eq!([6, 8, 16].map(|now| roster.busy_for(worker, at(now))), [0.0, 2.0, 10.0], "overdue");
        roster.end(worker, third, at(16));
        assert_eq!(roster.busy_for(worker, at(16)), 0.0);
    }

    #[test]
    fn a_fault_is_not_told_of_a_device_that_serves_again() {
        let (mut roster, worker) = (Roster::default(), WorkerKey(1));
        roster.attach(worker, &"gpu-0".into());
        let device = roster.device(&"gpu-0".into());
        let told = |roster: &Roster| roster.absence(&[device], ModelKey(2)).reason;
        roster.note_fault(device, "xid 79");
        assert_eq!(&*told(&roster), "gpu-0 is away: xid 79");
        roster.note_serves(worker, &[ModelKey(1)]);
        assert_eq!(&*told(&roster), "gpu-0 is there, and does not serve it now");
    }
}
