//! What is true of every job, kept apart from the book in the plainest way, and the checks against it.

use super::tally::Tally;
use crate::{
    batch::{
        Batch, Job, JobKey, ModelKey, Rules,
        book::{Done, Load, QueueLimits},
        urgency::AGE_STEP,
    },
    engine::{DataType, Tensor},
    error::InferError,
};
use std::{collections::HashMap, time::Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Row {
    Waiting,
    Running,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Live,
    Answered,
    Cancelled,
}

/// One accepted job.
#[derive(Debug)]
pub(super) struct TrueJob {
    pub(super) key: JobKey,
    pub(super) model: ModelKey,
    pub(super) input: Tensor,
    pub(super) rows: Vec<Row>,
    pub(super) state: State,
    /// The engine refuses every batch that it is in.
    pub(super) poisoned: bool,
    priority: u8,
    deadline: Option<Instant>,
    arrived: Instant,
    /// Came back from a failed batch, so it stands first.
    again: bool,
    alone: bool,
    device_failures: usize,
}

impl TrueJob {
    fn waits(&self, now: Instant) -> bool {
        self.state == State::Live
            && self.rows.contains(&Row::Waiting)
            && self.deadline.is_none_or(|deadline| deadline > now)
    }

    fn runs(&self) -> bool {
        self.rows.contains(&Row::Running)
    }

    /// The order that the lanes promise, written down once more.
    fn rank(&self, now: Instant) -> (i64, bool, Option<Instant>, Instant, JobKey) {
        let steps = now.duration_since(self.arrived).as_micros() / AGE_STEP.as_micros();
        let top = if self.deadline.is_some() { 0 } else { -1 };
        let level = match self.again {
            true => -2,
            false => (i64::from(self.priority) - steps as i64).max(top),
        };
        let never = self.deadline.is_none();
        (level, never, self.deadline, self.arrived, self.key)
    }

    fn same_lane(&self, other: &TrueJob) -> bool {
        self.model == other.model && self.input.shape[1..] == other.input.shape[1..]
    }
}

/// All that is true.
#[derive(Debug)]
pub(super) struct Truth {
    pub(super) jobs: Vec<TrueJob>,
    pub(super) models: HashMap<ModelKey, Rules>,
    pub(super) retired: Vec<ModelKey>,
    pub(super) closed: bool,
    /// What each attached worker serves.
    pub(super) serving: HashMap<usize, Vec<ModelKey>>,
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

    /// A push gave the right answer.
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
                    device_failures: 0,
                });
            }
            Err(InferError::Draining { .. }) => {
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

    /// A batch is one that may run now.
    pub(super) fn taken(&mut self, batch: &Batch, serves: &[ModelKey], now: Instant) {
        let rules = self.models[&batch.model].clone();
        let largest = *rules.sizes.last().unwrap();
        assert!(serves.contains(&batch.model), "the worker serves the model");
        assert!(!batch.parts.is_empty());
        let items: usize = batch.parts.iter().map(|part| part.rows.len()).sum();
        assert_eq!(batch.items, items);
        assert!(rules.sizes.contains(&batch.size) && items <= batch.size);
        self.tally.batches += 1;
        self.tally.padded += usize::from(items < batch.size);

        let first = batch.parts[0].job;
        let mut last = self.job(first).rank(now);
        for part in &batch.parts {
            let whole = rules.whole;
            let job = self.job_mut(part.job);
            assert_eq!(job.model, batch.model);
            assert!(job.waits(now), "live, waiting, not late: {job:?}");
            assert!(!job.alone || part.job == first, "alone means alone");
            let rank = job.rank(now);
            assert!(last <= rank, "parts are in the order of urgency");
            last = rank;
            for row in &mut job.rows[part.rows.clone()] {
                assert_eq!(*row, Row::Waiting, "no row runs twice");
                *row = Row::Running;
            }
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

        // Whoever still waits in the lane is no more urgent than anybody in the batch.
        let left = || self.jobs.iter().filter(|job| job.waits(now));
        let in_lane = || left().filter(|job| job.same_lane(head));
        let joinable = in_lane().min_by_key(|job| job.rank(now));
        if let Some(next) = joinable {
            assert!(next.rank(now) >= last, "{next:?} before {:?}", self.job(first));
            let shut = next.key != first && (head.alone || next.alone);
            assert!(
                shut || items == largest || rules.sizes.contains(&items),
                "{items} of {largest} while {next:?} waits"
            );
        }
        if rules.wait_max.is_zero() {
            let of_model = left().filter(|job| job.model == batch.model);
            let urgent = of_model.map(|job| job.rank(now)).min();
            let head_rank = head.rank(now);
            assert!(urgent.is_none_or(|rank| rank >= head_rank), "the most urgent lane runs");
        }
        let steps = now.duration_since(head.arrived).as_micros() / AGE_STEP.as_micros();
        let aged = head.priority > 0 && steps > 0;
        let overtaken = in_lane().any(|job| job.arrived < head.arrived);
        self.tally.aged += usize::from(aged);
        self.tally.overtaken += usize::from(overtaken);
        self.tally.shared += usize::from(shared);
    }

    /// A worker may sleep (or go home): nothing that it could run is ripe.
    pub(super) fn may_sleep(&mut self, serves: &[ModelKey], now: Instant, home: bool) {
        let live = |job: &&TrueJob| job.state == State::Live;
        let running = self.jobs.iter().filter(live).any(TrueJob::runs);
        assert!(!(home && running), "what runs may come back");
        for job in self.jobs.iter().filter(|job| job.waits(now)) {
            let ripe = self.closed
                || self.retired.contains(&job.model)
                || job.arrived + self.models[&job.model].wait_max <= now;
            assert!(!(serves.contains(&job.model) && (ripe || home)), "idle while {job:?} waits");
        }
        self.tally.slept += 1;
    }

    /// The batch ended well.
    pub(super) fn ran(&mut self, batch: &Batch) {
        for part in &batch.parts {
            self.job_mut(part.job).rows[part.rows.clone()].fill(Row::Done);
        }
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

    /// The device failed under the batch.
    pub(super) fn broke(&mut self, batch: &Batch, now: Instant) {
        let mut before = None;
        for part in &batch.parts {
            let job = self.job_mut(part.job);
            job.device_failures += usize::from(before != Some(part.job));
            before = Some(part.job);
            let again = job.device_failures < 2 && job.waits_again(now);
            let row = if again { Row::Waiting } else { Row::Done };
            job.rows[part.rows.clone()].fill(row);
            job.again |= again;
            self.tally.again += usize::from(again);
        }
    }

    /// An answer is the right one, and the first.
    pub(super) fn answered(&mut self, done: Done, now: Instant) {
        let served = |serving: &HashMap<usize, Vec<ModelKey>>, model| {
            serving.values().any(|serves| serves.contains(model))
        };
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
                self.tally.ok += 1;
            }
            Err(InferError::Late(_)) => {
                assert!(job.deadline.is_some_and(|deadline| deadline <= now));
                self.tally.late += 1;
            }
            Err(InferError::Input(_)) => {
                assert!(job.poisoned, "nobody pays for another's input");
                self.tally.input += 1;
            }
            Err(InferError::Device(_)) => {
                let over = self.closed || self.retired.contains(&job.model);
                let stranded = over && !served(&self.serving, &job.model);
                assert!(job.device_failures >= 2 || stranded, "{job:?}");
                self.tally.device += 1;
            }
            Err(error) => panic!("answer: {error}"),
        }
        self.jobs[index].state = State::Answered;
    }

    /// Everything has come to rest.
    pub(super) fn check_rest(&self, load: &Load) {
        assert_eq!((load.items, load.bytes, load.waiting, load.running), (0, 0, 0, 0));
        for job in &self.jobs {
            assert!(job.state != State::Live, "never answered: {job:?}");
            assert!(!job.runs());
        }
    }
}

impl TrueJob {
    fn waits_again(&self, now: Instant) -> bool {
        self.state == State::Live && self.deadline.is_none_or(|deadline| deadline > now)
    }
}

/// Rows that say whose they are and where they stand: 8 bytes each.
pub(super) fn tagged(tag: usize, shape: Vec<usize>, rows: usize) -> Tensor {
    let numbers = (0..rows).map(|row| (tag as u64) << 16 | row as u64);
    Tensor {
        datatype: DataType::Uint8,
        shape,
        data: numbers.flat_map(u64::to_le_bytes).collect::<Vec<_>>().into(),
    }
}
