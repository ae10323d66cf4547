//! Which jobs the book lets in: within the bounds, with deadlines that can be met, and with tensors that match their description.

use super::{Book, Kind, Model};
use crate::{
    batch::{Job, JobKey, entry::Entry, lanes::ItemShape, rates, roster::DeviceKey, rows, urgency::Urgency},
    error::InferError,
};
use std::{sync::Arc, time::Instant};

/// A deadline is refused on arrival only if the work ahead takes at least this many times the time left, even at its fastest:
/// measurements are noisy, and a wrong refusal is worse than a late answer.
const LATE_MARGIN: f64 = 1.5;

impl Model {
    /// The fewest seconds in which the devices that serve the model could run so many items of a kind: as the fastest of all, with as many
    /// batches at once as ever ran there. `None` if none was measured lately.
    fn fewest_seconds(&self, serving: &[DeviceKey], kind: Kind, items: usize, now: Instant) -> Option<f64> {
        let largest = self.rules.largest();
        let counts = |device: &DeviceKey| serving.is_empty() || serving.contains(device);
        let devices = self.costs.iter().filter(|((device, of), _)| *of == kind && counts(device));
        let seconds = devices.filter_map(|(_, costs)| costs.fewest_seconds(items, largest, now));
        let at_once =
            serving.iter().filter_map(|device| self.running.get(device)).map(|running| running.peak);
        Some(seconds.min_by(f64::total_cmp)? / at_once.sum::<usize>().max(1) as f64)
    }
}

/// How a job that may be queued is queued.
struct Admitted {
    shape: Arc<ItemShape>,
    /// Of its inputs.
    bytes: usize,
    urgency: Urgency,
}

impl Book {
    /// Accepts a job.
    ///
    /// # Errors
    /// [`InferError::Draining`] once closed, [`InferError::ModelUnavailable`] once retired, [`InferError::TooLarge`] for what could never
    /// fit, [`InferError::Full`] for what does not fit now, [`InferError::Unserved`] where the model's devices are away and not expected
    /// back in time, [`InferError::Late`] for a deadline that has passed or cannot be met, [`InferError::Internal`] for tensors that do
    /// not match their shape and type.
    pub fn push(&mut self, job: Job, now: Instant) -> Result<JobKey, InferError> {
        let Admitted { shape, bytes, urgency } = match self.admit(&job, now) {
            Ok(admitted) => admitted,
            Err(error) => {
                // Released with the inputs of jobs that are done, outside the lock around the book.
                self.settled.inputs.push(job.inputs);
                return Err(error);
            }
        };
        let key = JobKey(self.new_key());
        let model = self.models.get_mut(&job.model).expect("a job of no model is not admitted");
        model.pace.note(now);
        model.lanes.push(&shape, key, urgency, job.items, now);
        model.items += job.items;
        self.items += job.items;
        self.bytes += bytes;
        self.shares.set_waiting(job.model, true);
        self.jobs.insert(key, Entry::new(job, shape, bytes, now));
        self.throughput.busy(true, now);
        Ok(key)
    }

    /// Checks whether a job may be queued. If there is no room, jobs whose time is over are answered first.
    fn admit(&mut self, job: &Job, now: Instant) -> Result<Admitted, InferError> {
        if self.is_closed() {
            return Err(InferError::Draining);
        }
        let model = match self.models.get(&job.model) {
            Some(model) if !model.retired => model,
            gone => {
                return Err(InferError::ModelUnavailable {
                    name: gone.map_or_else(String::new, |model| model.name.to_string()),
                    reason: "it was unloaded while the request was on its way; send it again".into(),
                    loading: false,
                });
            }
        };
        self.in_sight(job.model, job.deadline, now)?;
        let whole = model.rules.whole;
        check_rows(job, whole)?;
        let bytes = job.inputs.iter().map(|input| input.data.len()).sum();
        let shape = Arc::new(ItemShape::of(&job.inputs, job.setting.as_ref(), whole));
        if let Err(error) = self.within_bounds(job, bytes, now) {
            // Jobs whose time is over release their place first.
            let keys: Vec<_> = self.models.keys().copied().collect();
            keys.into_iter().for_each(|key| self.expire(key, now));
            self.within_bounds(job, bytes, now).map_err(|_| error)?;
        } else if job.deadline.is_some() || job.wait.is_some() {
            self.expire(job.model, now);
        }
        let patience = job.wait.map(|wait| wait.from(now));
        let urgency =
            Urgency { priority: job.priority, deadline: job.deadline, arrived: job.arrived, patience };
        self.in_time(job, &shape, urgency, now)?;
        Ok(Admitted { shape, bytes, urgency })
    }

    /// Checks the bounds in items and bytes, and those of the model.
    fn within_bounds(&mut self, job: &Job, bytes: usize, now: Instant) -> Result<(), InferError> {
        let (limits, items) = (self.limits, job.items);
        let too_large = |what: &'static str, got: usize, limit: usize, option| InferError::TooLarge {
            what: what.into(),
            got: got as u64,
            limit: limit as u64,
            option,
        };
        if items > limits.items_max {
            let (what, option) = ("items in the request", "queue_items_max");
            return Err(too_large(what, items, limits.items_max, option));
        }
        if bytes > limits.bytes_max {
            let (what, option) = ("bytes of model input in the request", "queue_bytes_max");
            return Err(too_large(what, bytes, limits.bytes_max, option));
        }
        if items > limits.items_max - self.items {
            return Err(InferError::Full {
                what: "the queue of items",
                limit: limits.items_max as u64,
                retry_after: self.throughput.retry_items(self.items, now),
            });
        }
        if bytes > limits.bytes_max - self.bytes {
            return Err(InferError::Full {
                what: "the queue of input bytes",
                limit: limits.bytes_max as u64,
                retry_after: self.throughput.retry_bytes(self.bytes, now),
            });
        }
        let model = &self.models[&job.model];
        let serving = self.roster.serving(job.model);
        match model.rules.queue.of(job.priority).jobs_max {
            Some(jobs_max) if model.lanes.of_priority(job.priority) >= jobs_max => Err(InferError::Full {
                what: "the model's own queue of requests of this priority",
                limit: jobs_max as u64,
                retry_after: match model.fewest_seconds(
                    serving,
                    Kind::of(job.setting.as_ref()),
                    model.items,
                    now,
                ) {
                    Some(seconds) => rates::retry_after(seconds),
                    None => self.throughput.retry_items(model.items, now),
                },
            }),
            _ => Ok(()),
        }
    }

    /// Refuses a deadline that has passed, or that the work ahead in its lane clearly makes impossible. With nothing ahead, never refuses
    /// the latter, so that the next batch always corrects a wrong measurement.
    fn in_time(
        &self,
        job: &Job,
        shape: &Arc<ItemShape>,
        urgency: Urgency,
        now: Instant,
    ) -> Result<(), InferError> {
        let Some(deadline) = job.deadline else {
            return Ok(());
        };
        let left = deadline.saturating_duration_since(now);
        if left.is_zero() {
            return Err(InferError::Late(format!(
                "the deadline passed {} ms before the request was queued",
                now.saturating_duration_since(deadline).as_millis()
            )));
        }
        let model = &self.models[&job.model];
        let kind = Kind::of(job.setting.as_ref());
        let serving = self.roster.serving(job.model);
        let seconds = |items| model.fewest_seconds(serving, kind, items, now);
        let hopeless = |seconds: f64| seconds > LATE_MARGIN * left.as_secs_f64();
        // Counting all items of the model gives a quick upper bound. Only if that is too much is it worth counting those ahead.
        if !seconds(model.items + job.items).is_some_and(hopeless) {
            return Ok(());
        }
        let ahead = model.lanes.ahead(shape, urgency, (job.items, model.rules.largest()), now);
        match seconds(ahead + job.items) {
            Some(seconds) if ahead > 0 && hopeless(seconds) => Err(InferError::Late(format!(
                "the deadline cannot be met: {} ms are left, and {ahead} items ahead make it {:.0} ms at the least",
                left.as_millis(),
                seconds * 1000.0
            ))),
            _ => Ok(()),
        }
    }
}

/// Checks that a job's tensors match their shapes and types, before anybody is held up. What callers send was checked where it was read:
/// this catches our own bugs before they can take down a worker.
///
/// # Errors
/// [`InferError::Internal`], saying what does not match.
pub fn check_tensors(job: &Job) -> Result<(), InferError> {
    job.inputs.iter().try_for_each(rows::check).map_err(|error| not_queued(&error))
}

/// Checks that a job's tensors have a row for each item.
fn check_rows(job: &Job, whole: bool) -> Result<(), InferError> {
    let checked = match (whole, job.items) {
        (_, 0) => Err("0 items".into()),
        (true, 2..) => Err(format!("{} items for a model without a batch axis", job.items)),
        (true, 1) => Ok(()),
        (false, items) => job.inputs.iter().try_for_each(|input| rows::check_rows(input, items)),
    };
    checked.map_err(|error| not_queued(&error))
}

fn not_queued(error: &str) -> InferError {
    InferError::Internal(format!("a job that cannot be queued: {error}"))
}
