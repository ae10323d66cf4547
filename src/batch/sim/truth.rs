//! The true state of every job, tracked separately from the book in the simplest way, and the checks against it.

mod away;
mod ceiling;
mod job;
mod passing;

use super::tally::Tally;
use crate::{
    batch::{
        Batch, Fallback, Job, JobKey, ModelKey, Padding, Part, Rules,
        book::{Done, Load, QueueLimits},
        roster::CPU,
        urgency::AGE_STEP,
    },
    error::InferError,
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use ceiling::Ceiling;
pub(super) use job::{Row, State, TrueJob, tagged};

/// Whether batches are padded there.
fn pads(rules: &Rules, device: &str) -> bool {
    rules.padding == Padding::Everywhere || device != CPU
}

/// The next size to try where a batch of `size` was too large; `size` itself if there is no smaller one.
fn half(rules: &Rules, device: &str, size: usize) -> usize {
    let smaller: Vec<usize> = rules.sizes.iter().copied().filter(|smaller| *smaller < size).collect();
    let listed = smaller.iter().rev().find(|smaller| 2 * **smaller <= size).or(smaller.first());
    listed.copied().unwrap_or(if pads(rules, device) { size } else { (size / 2).max(1) })
}

/// A worker that runs something, or sleeps.
#[derive(Clone, Copy)]
pub(super) struct Looked<'a> {
    pub(super) device: &'a Arc<str>,
    pub(super) serves: &'a [ModelKey],
    /// Microseconds for which it may leave work to another device.
    pub(super) own: u64,
    /// Its number of batches in flight; it may let them get nearer to their end before it takes more.
    pub(super) busy: u64,
    /// It goes home.
    pub(super) home: bool,
}

/// The true state of everything.
#[derive(Debug)]
pub(super) struct Truth {
    pub(super) jobs: Vec<TrueJob>,
    pub(super) models: HashMap<ModelKey, Rules>,
    pub(super) retired: Vec<ModelKey>,
    pub(super) closed: bool,
    /// What each attached worker serves, and on which device, once it has said so.
    pub(super) serving: HashMap<usize, (Arc<str>, Vec<ModelKey>)>,
    /// Devices that have served a model.
    homes: HashSet<(ModelKey, Arc<str>)>,
    /// Devices that are away, or have come back with some of their models: when they should be back, and with which models they are.
    away: HashMap<Arc<str>, (Option<Instant>, HashSet<ModelKey>)>,
    /// Models for which the CPU only stands by.
    pub(super) standby: HashSet<ModelKey>,
    /// Where batches of a model were too large for a device.
    ceilings: HashMap<(Arc<str>, ModelKey), Ceiling>,
    /// Jobs with a deadline beside which a worker waited for company.
    in_company: HashSet<JobKey>,
    pub(super) tally: Tally,
    pub(super) limits: QueueLimits,
    by_key: HashMap<JobKey, usize>,
}

impl Truth {
    pub(super) fn new(models: HashMap<ModelKey, Rules>, limits: QueueLimits) -> Truth {
        Truth {
            jobs: Vec::new(),
            models,
            retired: Vec::new(),
            closed: false,
            serving: HashMap::new(),
            homes: HashSet::new(),
            away: HashMap::new(),
            standby: HashSet::new(),
            ceilings: HashMap::new(),
            in_company: HashSet::new(),
            tally: Tally::default(),
            limits,
            by_key: HashMap::new(),
        }
    }

    fn job(&self, key: JobKey) -> &TrueJob {
        &self.jobs[self.by_key[&key]]
    }

    fn job_mut(&mut self, key: JobKey) -> &mut TrueJob {
        &mut self.jobs[self.by_key[&key]]
    }

    /// Items and bytes that wait or run.
    fn held(&self) -> (usize, usize) {
        let held = self.jobs.iter().filter(|job| job.state == State::Live || job.runs());
        held.fold((0, 0), |(items, bytes), job| (items + job.rows.len(), bytes + job.input.data.len()))
    }

    pub(super) fn check_load(&self, load: &Load) {
        assert_eq!((load.items, load.bytes), self.held(), "bounds are the sums");
        assert!(load.items <= self.limits.items_max && load.bytes <= self.limits.bytes_max);
    }

    /// Checks the result of a push.
    pub(super) fn pushed(
        &mut self,
        job: &Job,
        poisoned: bool,
        result: Result<JobKey, InferError>,
        now: Instant,
    ) {
        let (items, bytes) = self.held();
        let (more, input) = (job.items, job.inputs[0].clone());
        let limits = self.limits;
        let fits = items + more <= limits.items_max && bytes + input.data.len() <= limits.bytes_max;
        let could = more <= limits.items_max && input.data.len() <= limits.bytes_max;
        let retired = self.retired.contains(&job.model);
        let late = job.deadline.is_some_and(|deadline| deadline <= now);
        let others = self.jobs.iter().any(|other| {
            other.model == job.model && other.state == State::Live && other.rows.contains(&Row::Waiting)
        });
        match result {
            Ok(key) => {
                assert!(!self.closed && !retired && could && fits && !late);
                self.tally.jobs += 1;
                self.by_key.insert(key, self.jobs.len());
                self.jobs.push(TrueJob {
                    key,
                    model: job.model,
                    input,
                    rows: vec![Row::Waiting; more],
                    state: State::Live,
                    poisoned,
                    priority: job.priority,
                    deadline: job.deadline,
                    arrived: job.arrived,
                    again: false,
                    alone: false,
                    led: false,
                    device_failures: 0,
                    failures_before: vec![0; more],
                    avoid: None,
                    for_cpu: false,
                    lost: false,
                    pushed: now,
                });
            }
            Err(InferError::Draining) => {
                assert!(self.closed);
                self.tally.draining += 1;
            }
            Err(InferError::ModelUnavailable { .. }) => {
                assert!(retired);
                self.tally.retired += 1;
            }
            Err(InferError::TooLarge { .. }) => {
                assert!(!could);
                self.tally.too_large += 1;
            }
            Err(InferError::Full { retry_after, .. }) => {
                assert!(could && !fits);
                let seconds = retry_after.as_secs_f64();
                assert!((1.0..=60.0).contains(&seconds), "{seconds}");
                self.tally.full += 1;
            }
            Err(InferError::Unserved { .. }) => {
                assert!(!self.is_served(job.model) && !self.is_coming(job.model, job.deadline));
                self.tally.refused_unserved += 1;
            }
            Err(InferError::Late(_)) => {
                assert!(late || (others && job.deadline.is_some()));
                self.tally.refused_late += 1;
            }
            Err(error) => panic!("push: {error}"),
        }
    }

    pub(super) fn cancelled(&mut self, index: usize) {
        let job = &mut self.jobs[index];
        if job.state == State::Live {
            job.state = State::Cancelled;
            self.tally.cancelled += 1;
        }
    }

    /// Whether a device may have a job: not if it failed the job, nor if it only stands by, while there is a better one.
    fn may_have(&self, device: &Arc<str>, job: &TrueJob) -> bool {
        let serving = self.serving.values().filter(|(_, serves)| serves.contains(&job.model));
        let all: Vec<&Arc<str>> = serving.map(|(device, _)| device).collect();
        let mut fit: Vec<&Arc<str>> = all.iter().copied().filter(|device| !job.avoids(device)).collect();
        if fit.is_empty() {
            fit = all;
        }
        let stands_by = |device: &Arc<str>| **device == *CPU && self.standby.contains(&job.model);
        if fit.iter().any(|device| !stands_by(device)) {
            fit.retain(|device| !stands_by(device));
        }
        fit.contains(&device)
    }

    /// Whether a device may still leave a job to another one.
    fn may_leave(&self, device: &Arc<str>, job: &TrueJob, own: u64, now: Instant) -> bool {
        let mut others = self.serving.values();
        !job.again
            && others.any(|(other, serves)| other != device && serves.contains(&job.model))
            && now < job.pushed + Duration::from_micros(own)
    }

    fn is_served(&self, model: ModelKey) -> bool {
        self.serving.values().any(|(_, serves)| serves.contains(&model))
    }

    /// Checks that a batch may run now.
    pub(super) fn taken(&mut self, batch: &Batch, looked: Looked<'_>, now: Instant) {
        let Looked { device, serves, own, .. } = looked;
        let sizes = self.sizes(device, batch.model);
        assert!(batch.size <= sizes[sizes.len() - 1], "{} on {device}, of {sizes:?}", batch.size);
        let fits = |part: &Part| self.may_have(device, self.job(part.job));
        assert!(batch.parts.iter().all(fits), "no device has what it failed, while there is another");
        let rules = self.models[&batch.model].clone();
        assert!(serves.contains(&batch.model), "the worker serves the model");
        assert!(!batch.parts.is_empty());
        let items: usize = batch.parts.iter().map(|part| part.rows.len()).sum();
        assert_eq!(batch.items, items);
        let padded = rules.sizes.contains(&batch.size) && items <= batch.size;
        assert!(
            if pads(&rules, device) { padded } else { batch.size == items },
            "{} for {items}",
            batch.size
        );
        self.tally.batches += 1;
        self.tally.padded += usize::from(items < batch.size);

        let first = batch.parts[0].job;
        let (lead, last) = self.in_order(batch, device, now);
        for part in &batch.parts {
            let whole = rules.whole;
            let job = self.job_mut(part.job);
            assert_eq!(job.model, batch.model);
            assert!(job.waits(now), "live, waiting, not late: {job:?}");
            assert!(!job.alone || part.job == first, "alone means alone");
            for row in &mut job.rows[part.rows.clone()] {
                assert_eq!(*row, Row::Waiting, "no row runs twice");
                *row = Row::Running;
            }
            job.failures_before[part.rows.clone()].fill(job.device_failures);
            job.led &= job.rows.contains(&Row::Waiting);
            let expected = if whole {
                job.input.data.clone()
            } else {
                job.input.data.slice(part.rows.start * 8..part.rows.end * 8)
            };
            assert_eq!(part.inputs[0].data, expected, "the rows are the job's");
            let split = part.rows.len() < job.rows.len();
            self.tally.split += usize::from(split);
            let (job, head) = (self.job(part.job), self.job(first));
            assert!(job.same_lane(head), "batches do not mix lanes");
        }
        let head = self.job(first);
        let shared = batch.parts.iter().any(|part| part.job != first);
        assert!(!(head.alone && shared), "alone means alone");

        // Jobs still waiting in the lane must be no more urgent than any in the batch.
        let left = || self.jobs.iter().filter(|job| job.waits(now) && self.may_have(device, job));
        let in_lane = || left().filter(|job| job.same_lane(head));
        let joinable = in_lane().min_by_key(|job| job.rank(now));
        if let Some(next) = joinable {
            assert!(last.is_none_or(|last| next.rank(now) >= last), "{next:?} before {:?}", self.job(first));
            let shut = next.key != first && (head.alone || next.alone);
            assert!(shut || sizes.contains(&items), "{items} of {sizes:?} while {next:?} waits");
        }
        if rules.wait_max.is_zero() {
            let of_model =
                left().filter(|job| job.model == batch.model && !self.may_leave(device, job, own, now));
            let urgent = of_model.map(|job| job.rank(now)).min();
            let head_rank = self.job(lead).rank(now);
            assert!(urgent.is_none_or(|rank| rank >= head_rank), "the most urgent lane runs");
        }
        let steps = now.duration_since(head.arrived).as_micros() / AGE_STEP.as_micros();
        let aged = head.priority > 0 && steps > 0;
        let overtaken = in_lane().any(|job| job.arrived < head.arrived);
        self.tally.aged += usize::from(aged);
        self.tally.overtaken += usize::from(overtaken);
        self.tally.shared += usize::from(shared);
    }

    /// Checks that a worker may sleep (or go home): nothing that it could run is due, or it has not left the work to a faster device for
    /// longer than it may, or its batches in flight may take until then.
    pub(super) fn may_sleep(&mut self, looked: Looked<'_>, until: Option<Instant>, now: Instant) {
        let Looked { device, serves, own, busy, home } = looked;
        let busy = busy > 0 && until.is_some_and(|until| until <= now + Duration::from_micros(busy * own));
        let live = |job: &&TrueJob| job.state == State::Live;
        let running = self.jobs.iter().filter(live).any(TrueJob::runs);
        assert!(!(home && running), "what runs may come back");
        for job in self.jobs.iter().filter(|job| job.waits(now)) {
            let ripe = self.closed
                || self.retired.contains(&job.model)
                || job.again
                || job.arrived + self.models[&job.model].wait_max <= now;
            let left = self.may_leave(device, job, own, now);
            let own = serves.contains(&job.model) && self.may_have(device, job);
            self.tally.left += usize::from(left && own);
            assert!(busy || !(own && !left && (ripe || home)), "{device} is idle while {job:?} waits");
            if let Some(deadline) = job.deadline.filter(|_| own && !left && !busy) {
                assert!(until.is_some_and(|until| until < deadline), "{device} waits for company of {job:?}");
                self.tally.company += 1;
                self.in_company.insert(job.key);
            }
        }
        self.tally.slept += 1;
    }

    /// The batch ended well. Returns the new size limit there, if it has changed.
    pub(super) fn ran(&mut self, batch: &Batch, device: &Arc<str>, now: Instant) -> Option<usize> {
        for part in &batch.parts {
            self.job_mut(part.job).rows[part.rows.clone()].fill(Row::Done);
        }
        self.rises(batch.model, device, now)
    }

    /// The engine refused the batch.
    pub(super) fn refused(&mut self, batch: &Batch) {
        let first = batch.parts[0].job;
        let shared = batch.parts.iter().any(|part| part.job != first);
        for part in &batch.parts {
            let job = self.job_mut(part.job);
            let live = job.state == State::Live;
            let row = if shared && live { Row::Waiting } else { Row::Done };
            job.rows[part.rows.clone()].fill(row);
            job.alone |= shared;
            job.again |= shared;
        }
        self.tally.alone += usize::from(shared);
    }

    /// The device's memory was too small. Returns the new size limit there, if it has changed.
    pub(super) fn too_large(&mut self, batch: &Batch, device: &Arc<str>, now: Instant) -> Option<usize> {
        if half(&self.models[&batch.model], device, batch.size) == batch.size {
            self.broke(batch, device, now);
            return None;
        }
        let ceiling = self.falls(batch, device, now);
        for part in &batch.parts {
            let job = self.job_mut(part.job);
            let again = job.waits_again(now);
            job.rows[part.rows.clone()].fill(if again { Row::Waiting } else { Row::Done });
            job.again |= again;
        }
        self.tally.halved += 1;
        ceiling
    }

    /// The device failed under the batch.
    pub(super) fn broke(&mut self, batch: &Batch, device: &Arc<str>, now: Instant) {
        let mut before = None;
        let on_cpu =
            |(other, serves): &(Arc<str>, Vec<ModelKey>)| **other == *CPU && serves.contains(&batch.model);
        let cpu_is_left = **device != *CPU && self.serving.values().any(on_cpu);
        for part in &batch.parts {
            let job = self.job_mut(part.job);
            // Batches that were in flight together with one that failed are the same failure.
            let same = job.failures_before[part.rows.start] < job.device_failures && job.avoids(device);
            if before != Some(part.job) && !same {
                job.device_failures += 1;
                job.lost |= match job.device_failures {
                    1 => false,
                    2 => !cpu_is_left || job.avoid.as_deref() == Some(CPU),
                    _ => true,
                };
                job.for_cpu = job.device_failures > 1;
            }
            before = Some(part.job);
            let again = !job.lost && job.waits_again(now);
            let row = if again { Row::Waiting } else { Row::Done };
            job.rows[part.rows.clone()].fill(row);
            job.again |= again;
            job.avoid.get_or_insert_with(|| Arc::clone(device));
            self.tally.again += usize::from(again);
        }
    }

    /// Checks that an answer is right, and the first.
    pub(super) fn answered(&mut self, done: Done, now: Instant) {
        let index = self.by_key[&done.job];
        let job = &self.jobs[index];
        assert_eq!(job.state, State::Live, "answered once, and not after a cancel");
        match done.result {
            Ok(pieces) => {
                let answer = pieces.join().unwrap();
                assert!(job.rows.iter().all(|row| *row == Row::Done), "complete");
                let output = &answer.outputs[0];
                assert_eq!(output.shape, job.input.shape);
                assert_eq!(output.data, job.input.data, "rows are complete and in order");
                assert!(!job.poisoned);
                let failed_over = !matches!(answer.fallback, None | Some(Fallback::DeviceAway));
                assert!(!failed_over || job.avoid.is_some(), "{answer:?}");
                self.tally.fallback += usize::from(answer.fallback.is_some());
                self.tally.ok += 1;
            }
            Err(InferError::Late(_)) => {
                assert!(job.deadline.is_some_and(|deadline| deadline <= now));
                self.tally.late += 1;
                self.tally.overslept += usize::from(self.in_company.contains(&job.key));
            }
            Err(InferError::Input(_)) => {
                assert!(job.poisoned, "nobody pays for another's input");
                self.tally.input += 1;
            }
            Err(InferError::Device(_)) => {
                let over = self.closed || self.retired.contains(&job.model);
                let stranded = over && !self.is_served(job.model);
                assert!(job.lost || stranded, "{job:?}");
                self.tally.device += 1;
            }
            Err(InferError::Outsized(_)) => {
                assert!(job.lost, "{job:?}");
                self.tally.outsized += 1;
            }
            Err(InferError::Unserved { .. }) => {
                assert!(!self.is_served(job.model), "{job:?}");
                assert!(!self.is_coming(job.model, job.deadline), "{job:?}");
                self.tally.unserved += 1;
            }
            Err(error) => panic!("answer: {error}"),
        }
        self.jobs[index].state = State::Answered;
    }

    /// Checks the end state: nothing waits or runs.
    pub(super) fn check_rest(&self, load: &Load) {
        assert_eq!((load.items, load.bytes, load.waiting, load.running), (0, 0, 0, 0));
        for job in &self.jobs {
            assert!(job.state != State::Live, "never answered: {job:?}");
            assert!(!job.runs());
        }
    }
}
