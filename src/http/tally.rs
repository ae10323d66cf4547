//! A request in the statistics of its model: counted once, by how it ended, however many jobs it became.

use crate::{
    batch::Timing,
    error::InferError,
    models::Model,
    telemetry::statistics::{Failure, Steps},
};
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// One request, from when the first of its jobs is queued until its reply is written. A request that queued nothing is
/// not counted; one dropped before its reply counts as cancelled.
pub(crate) struct Tally {
    model: Arc<Model>,
    sum: Mutex<Sum>,
}

#[derive(Default)]
struct Sum {
    /// When its first job came to the queue; taken when it is counted.
    since: Option<Instant>,
    /// The longest time of each step among its jobs, which run side by side.
    steps: Steps,
    /// Why it is no success: the reason of its first part that failed.
    failure: Option<Failure>,
}

impl Tally {
    /// A request for this model.
    pub(crate) fn of(model: &Arc<Model>) -> Tally {
        Tally { model: Arc::clone(model), sum: Mutex::default() }
    }

    /// The model that it is for.
    pub(super) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// One of its jobs was queued, or refused by the queue, at this time.
    pub(super) fn queued(&self, at: Instant) {
        self.sum.lock().since.get_or_insert(at);
    }

    /// One of its jobs ran.
    pub(super) fn ran(&self, Timing { queue, stage, compute, .. }: Timing) {
        let steps = &mut self.sum.lock().steps;
        steps.queue = steps.queue.max(queue);
        steps.input = steps.input.max(stage);
        steps.infer = steps.infer.max(compute);
    }

    /// Writing a part of its reply took so long.
    pub(crate) fn replied(&self, took: Duration) {
        self.sum.lock().steps.output += took;
    }

    /// A part of it had this result.
    pub(super) fn part<T>(&self, part: &Result<T, InferError>) {
        if let Err(error) = part {
            self.sum.lock().failure.get_or_insert(failure(error));
        }
    }

    /// It is not over: a request that a full queue refused tries again, as a new one.
    pub(super) fn again(&self) {
        *self.sum.lock() = Sum::default();
    }

    /// All its parts are done: counts it.
    pub(super) fn over(&self) {
        self.count(None);
    }

    /// The whole request had this result: counts it.
    pub(crate) fn ended<T>(&self, end: Result<T, InferError>) -> Result<T, InferError> {
        self.part(&end);
        self.over();
        end
    }

    fn count(&self, otherwise: Option<Failure>) {
        let mut sum = self.sum.lock();
        let Some(since) = sum.since.take() else { return };
        match sum.failure.or(otherwise) {
            Some(why) => self.model.statistics.failed(why, since.elapsed()),
            None => self.model.statistics.answered(since.elapsed(), sum.steps),
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.count(Some(Failure::Cancelled));
    }
}

/// The reason under which an unanswered request is counted.
fn failure(error: &InferError) -> Failure {
    match error {
        InferError::Full { .. }
        | InferError::TooLarge { .. }
        | InferError::Outsized(_)
        | InferError::Late(_)
        | InferError::Hasty(_)
        | InferError::Draining
        | InferError::Unserved { .. }
        | InferError::ModelUnavailable { .. } => Failure::Rejected,
        InferError::Cancelled => Failure::Cancelled,
        InferError::Input(_) | InferError::Device(_) => Failure::Backend,
        InferError::BadRequest(_)
        | InferError::Decode(_)
        | InferError::SlowBody(_)
        | InferError::NotAcceptable { .. }
        | InferError::UnsupportedMedia { .. }
        | InferError::UnsupportedEncoding { .. }
        | InferError::UnknownModel { .. }
        | InferError::LoadFailed { .. }
        | InferError::Forbidden(_)
        | InferError::NotOffered(_)
        | InferError::NoStorage(_)
        | InferError::Internal(_) => Failure::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing::model;

    const MS: Duration = Duration::from_millis(1);

    /// Successes, and failures by their reason.
    fn counts(model: &Model) -> (u64, [u64; 4]) {
        let counts = model.statistics.snapshot();
        (counts.success.count, counts.failures.map(|sum| sum.count))
    }

    #[test]
    fn a_request_of_many_jobs_is_one_success() {
        let model = model(MS * 900);
        let tally = Tally::of(&model);
        for n in [2, 1] {
            tally.queued(Instant::now());
            tally.ran(Timing { queue: MS * n, stage: MS * 3, compute: MS * (10 - n), ..Timing::default() });
            tally.replied(MS);
        }
        assert_eq!(tally.ended(Ok(())), Ok(()));
        drop(tally);
        assert_eq!(counts(&model), (1, [0; 4]));
        let now = model.statistics.snapshot();
        let steps = [now.queue, now.input, now.infer, now.output];
        assert_eq!(steps.map(|step| (step.count, step.ns)), [2, 3, 9, 2].map(|ms| (1, ms * 1_000_000)));
    }

    #[test]
    fn a_request_that_ran_and_whose_reply_cannot_be_written_is_a_failure() {
        let model = model(MS * 900);
        let tally = Tally::of(&model);
        tally.queued(Instant::now());
        tally.ran(Timing::default());
        let refused = InferError::BadRequest("output \"y\" is not a finite number".into());
        assert_eq!(tally.ended::<()>(Err(refused.clone())), Err(refused));
        assert_eq!(counts(&model), (0, [0, 0, 0, 1]));
    }

    #[test]
    fn a_part_that_failed_makes_the_request_a_failure_for_its_reason_and_one_that_is_left_is_cancelled() {
        let model = model(MS * 900);
        for (parts, expected) in [
            (
                vec![Ok(()), Err(InferError::Late("late".into())), Err(InferError::Input("odd".into()))],
                [1, 0, 0, 0],
            ),
            (vec![Ok(())], [1, 1, 0, 0]),
            (vec![Err(InferError::Device("lost".into()))], [1, 1, 1, 0]),
            (vec![Err(InferError::Outsized("too much".into())), Ok(())], [2, 1, 1, 0]),
        ] {
            let tally = Tally::of(&model);
            tally.queued(Instant::now());
            parts.iter().for_each(|part| tally.part(part));
            // Left before its end, but where it says otherwise.
            if parts.len() > 1 {
                tally.over();
            }
            drop(tally);
            assert_eq!(counts(&model), (0, expected));
        }
        drop(Tally::of(&model));
        assert_eq!(counts(&model), (0, [2, 1, 1, 0]), "nothing of it was queued");
    }
}
