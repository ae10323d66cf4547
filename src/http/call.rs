//! What every inference request carries beside its data: a deadline, a priority, and an outcome that is counted once.

use super::{Front, target::Target};
use crate::{
    batch::{Answer, Job, Timing},
    engine::Tensor,
    error::InferError,
    models::Model,
    telemetry::metrics::{self, ModelMetrics},
};
use axum::{
    http::{HeaderMap, HeaderName, HeaderValue},
    response::Response,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// One request's terms.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// When the request's head had been read.
    pub(super) arrived: Instant,
    /// When its answer is worth nothing any more.
    pub(super) deadline: Instant,
    /// 0 is the most urgent.
    pub(super) priority: u8,
    timeout: Duration,
}

/// Priorities run from 0 to this.
const PRIORITY_MAX: u8 = 9;

impl Call {
    /// From the headers `timeout` (milliseconds, at most `timeout_max`) and `priority` (0 to 9), else from the model.
    pub(super) fn of(headers: &HeaderMap, model: &Model, timeout_max: Duration) -> Result<Call, InferError> {
        let arrived = Instant::now();
        let timeout = match number(headers, "timeout")? {
            Some(0) => {
                return Err(InferError::BadRequest(
                    "header timeout is 0; it is in milliseconds, at least 1".into(),
                ));
            }
            Some(ms) => Duration::from_millis(ms).min(timeout_max),
            None => model.timeout,
        };
        let priority = match number(headers, "priority")? {
            Some(priority) => {
                u8::try_from(priority).ok().filter(|p| *p <= PRIORITY_MAX).ok_or_else(|| {
                    InferError::BadRequest(format!(
                        "header priority is {priority}; it goes from 0 (most urgent) to {PRIORITY_MAX}"
                    ))
                })?
            }
            None => model.priority,
        };
        Ok(Call { arrived, deadline: arrived + timeout, priority, timeout })
    }

    /// Shortens the deadline to what a request's body asks for beside its headers.
    pub(super) fn within(mut self, timeout: Option<Duration>) -> Call {
        if let Some(timeout) = timeout.filter(|timeout| *timeout < self.timeout) {
            (self.timeout, self.deadline) = (timeout, self.arrived + timeout);
        }
        self
    }

    /// Queues a job of `items` items and waits for its answer, no longer than the deadline. Dropping the future
    /// cancels the job.
    pub(super) async fn run(
        &self,
        front: &Front,
        model: &Model,
        inputs: Vec<Tensor>,
        items: usize,
    ) -> Result<Answer, InferError> {
        let ticket = front.queue.push(Job {
            model: model.key,
            inputs,
            items,
            priority: self.priority,
            deadline: Some(self.deadline),
            arrived: self.arrived,
        })?;
        let answer = tokio::time::timeout_at(self.deadline.into(), ticket).await.unwrap_or_else(|_| {
            Err(InferError::Late(format!("no answer within the deadline of {} ms", self.timeout.as_millis())))
        })?;
        let device = front.metrics.model(&model.name).device(&answer.device);
        device.queue_seconds.observe(answer.timing.queue.as_secs_f64());
        Ok(answer)
    }
}

fn number(headers: &HeaderMap, name: &str) -> Result<Option<u64>, InferError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number
        .map(Some)
        .ok_or_else(|| InferError::BadRequest(format!("header {name} is {value:?}, expected a whole number")))
}

/// Finds the model that a request is for, has it answered, and counts how that ended: exactly once, as `cancelled` if
/// the future is dropped because the caller went away.
pub(super) async fn counted<F>(
    front: &Front,
    target: &Target,
    answer: impl FnOnce(Arc<Model>) -> F,
) -> Result<Response, InferError>
where
    F: Future<Output = Result<Response, InferError>>,
{
    let model = target.find(front)?;
    let mut uncounted = Uncounted(Some(front.metrics.model(&model.name)));
    let result = answer(model).await;
    if let Some(metrics) = uncounted.0.take() {
        metrics.outcome(outcome(result.as_ref().err())).inc();
    }
    result
}

struct Uncounted(Option<Arc<ModelMetrics>>);

impl Drop for Uncounted {
    fn drop(&mut self) {
        if let Some(metrics) = self.0.take() {
            metrics.outcome(metrics::Outcome::Cancelled).inc();
        }
    }
}

/// Which device answered.
const DEVICE: HeaderName = HeaderName::from_static("ocelli-device");
/// Where the time went, by the W3C's Server Timing.
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Where the time of a request went: the longest of its items, stage by stage.
#[derive(Debug, Clone, Default)]
pub(super) struct Spent {
    /// Decode, resize, normalise; for tensors, reading them.
    pub(super) decode: Duration,
    /// The rest.
    pub(super) batch: Timing,
    /// What ran it.
    pub(super) device: Option<Arc<str>>,
}

impl Spent {
    /// Another item of the same request.
    pub(super) fn include(&mut self, other: &Spent) {
        self.decode = self.decode.max(other.decode);
        self.batch.queue = self.batch.queue.max(other.batch.queue);
        self.batch.stage = self.batch.stage.max(other.batch.stage);
        self.batch.compute = self.batch.compute.max(other.batch.compute);
        self.device = other.device.clone().or(self.device.take());
    }

    /// Says so in a reply's headers; durations are in milliseconds.
    pub(super) fn tell(&self, headers: &mut HeaderMap) {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let Timing { queue, stage, compute } = self.batch;
        let timing = format!(
            "decode;dur={:.3}, queue;dur={:.3}, stage;dur={:.3}, compute;dur={:.3}",
            ms(self.decode),
            ms(queue),
            ms(stage),
            ms(compute)
        );
        headers.insert(SERVER_TIMING, HeaderValue::from_str(&timing).expect("digits and letters are legal"));
        if let Some(device) = self.device.as_deref().and_then(|device| HeaderValue::from_str(device).ok()) {
            headers.insert(DEVICE, device);
        }
    }
}

/// Under which outcome the metrics count an error.
fn outcome(error: Option<&InferError>) -> metrics::Outcome {
    use metrics::Outcome;
    match error {
        None => Outcome::Ok,
        Some(error) => match error {
            InferError::BadRequest(_)
            | InferError::UnsupportedMedia { .. }
            | InferError::NotAcceptable { .. } => Outcome::BadRequest,
            InferError::Decode(_) => Outcome::Decode,
            InferError::TooLarge { .. } => Outcome::TooLarge,
            InferError::Full { .. } => Outcome::Full,
            InferError::Draining { .. } => Outcome::Draining,
            InferError::Late(_) | InferError::SlowBody(_) => Outcome::Late,
            InferError::Cancelled => Outcome::Cancelled,
            InferError::Input(_) => Outcome::Input,
            InferError::Device(_) => Outcome::Device,
            InferError::Internal(_) => Outcome::Internal,
            InferError::UnknownModel { .. } | InferError::ModelUnavailable { .. } => Outcome::Unavailable,
        },
    }
}
