//! What every inference request carries beside its data: a deadline and a priority; and where its time went.

use super::{
    Front,
    admission::{Permit, counting, keeping},
    decode::{Step, Turns},
    tally::Tally,
};
use crate::{
    batch::{Answer, Fallback, Job, OnTimeout, Ticket, Timing, Wait},
    engine::{Setting, Tensor},
    error::{InferError, bad},
    models::Model,
    tasks::Task,
    telemetry::{
        metrics::DropReason,
        traces::{Ran, RequestTrace},
    },
    words::clipped,
};
use axum::{
    body::Bytes,
    http::{Extensions, HeaderMap, HeaderName, HeaderValue},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A request's terms: its deadline, its priority, and what is set aside for it.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// When the request's head had been read; once its body is there, when that was.
    pub(super) arrived: Instant,
    /// When its answer is worth nothing any more.
    pub(super) deadline: Instant,
    /// 0 is the most urgent.
    pub(super) priority: u8,
    timeout: Duration,
    /// Whether a header set the timeout.
    timed: bool,
    /// Whether its caller set a deadline that leaves less time than the model's own.
    hasty: bool,
    /// How long it may wait in the queue, by the model's policy.
    wait: Option<Wait>,
    /// Whether a header set the priority.
    prioritised: bool,
    /// Where its stages are noted, if its trace may be sent.
    trace: Option<Arc<RequestTrace>>,
    /// What is set aside for it. Work on its body holds this as well.
    pub(crate) permit: Option<Arc<Permit>>,
    /// The turns of its files, if other requests share them: it is a message of a stream.
    pub(super) turns: Option<Arc<Turns>>,
}

impl Call {
    /// From the headers `timeout` (milliseconds, at most `timeout_max`) and `priority` (from 0 to the model's last), else from the model.
    pub(crate) fn of(headers: &HeaderMap, model: &Model, timeout_max: Duration) -> Result<Call, InferError> {
        let arrived = Instant::now();
        let asked = number(headers, &TIMEOUT)?;
        let own = model.timeout.min(timeout_max);
        let timeout = match asked {
            Some(0) => return Err(bad("header timeout is 0; it is in milliseconds, at least 1")),
            Some(ms) => Duration::from_millis(ms).min(timeout_max),
            None => own,
        };
        let wish = if is_of_browsers(headers) { None } else { number(headers, &PRIORITY)? };
        let priority = match wish {
            Some(priority) => {
                u8::try_from(priority).ok().filter(|p| *p < model.priorities).ok_or_else(|| {
                    InferError::BadRequest(format!(
                        "header priority is {priority}; it goes from 0 (most urgent) to {}",
                        model.priorities - 1
                    ))
                })?
            }
            None => model.priority,
        };
        Ok(Call {
            arrived,
            deadline: arrived + timeout,
            priority,
            timeout,
            timed: asked.is_some(),
            hasty: timeout < own,
            wait: model.rules.queue.of(priority).wait(None),
            prioritised: wish.is_some(),
            trace: None,
            permit: None,
            turns: None,
        })
    }

    /// The same, with the trace and the permit in the request's extensions, if there are any.
    pub(crate) fn traced(self, extensions: &Extensions) -> Call {
        Call { trace: extensions.get().cloned(), permit: extensions.get().cloned(), ..self }
    }

    /// The same for a request that came with a call (a stream of requests): it has a permit of its own.
    pub(crate) fn charged_to(self, permit: Option<&Arc<Permit>>) -> Call {
        Call { permit: permit.cloned().or(self.permit), ..self }
    }

    /// The same for a message of a stream, whose files take turns with those of the other messages.
    pub(crate) fn sharing_turns(self, turns: Option<&Arc<Turns>>) -> Call {
        Call { turns: turns.cloned(), ..self }
    }

    /// The step of the decode pool's jobs that read for it.
    pub(crate) fn step(&self) -> Step {
        Step::Request(self.priority)
    }

    /// Sets aside memory for a reply of so many bytes, until the request ends.
    pub(super) fn says(&self, bytes: u64) -> Result<(), InferError> {
        let permit = counting(self.permit.as_ref(), bytes);
        permit.map_or(Ok(()), |permit| permit.more(bytes))
    }

    /// Sets aside memory for outputs, until the last of them is dropped.
    fn held(&self, outputs: Vec<Tensor>) -> Result<Vec<Tensor>, InferError> {
        let bytes = outputs.iter().map(|output| output.data.len() as u64).sum();
        let Some(permit) = counting(self.permit.as_ref(), bytes) else {
            return Ok(outputs);
        };
        let held = Arc::new(permit.beside(bytes)?);
        let keep = |output: Tensor| Tensor { data: keeping(output.data, &held), ..output };
        Ok(outputs.into_iter().map(keep).collect())
    }

    /// Notes a stage of its trace that has just ended, and how long it took.
    pub(crate) fn stage(&self, name: &'static str, took: impl FnOnce() -> Duration) {
        if let Some(trace) = &self.trace {
            trace.ended(name, took());
        }
    }

    /// Counts the time that one image or file took to be decoded.
    pub(crate) fn decoded(&self, front: &Front, model: &Model, took: Duration) {
        front.metrics.model(&model.name).decode_seconds.observe(took.as_secs_f64());
        self.stage("decode", || took);
    }

    /// Takes what a request's body asks for beside its headers: a timeout, as the model's queue policy understands it, and a priority, if
    /// no header gave one. Priority 1 is the most urgent; 0, and any that the model does not have, are ignored.
    pub(crate) fn asked(mut self, model: &Model, timeout: Option<Duration>, priority: Option<u64>) -> Call {
        let wish = priority.and_then(|wish| u8::try_from(wish.checked_sub(1)?).ok());
        if let (Some(wish), false) = (wish.filter(|wish| *wish < model.priorities), self.prioritised) {
            self.priority = wish;
        }
        let policy = model.rules.queue.of(self.priority);
        match policy.then {
            // A request that is put back for having waited too long is still answered.
            OnTimeout::Delay => Call { wait: policy.wait(timeout), ..self },
            OnTimeout::Refuse => {
                self.wait = policy.wait(None);
                let is_meant = |timeout: &Duration| policy.wait_max.is_some() || *timeout >= TIMEOUT_MIN;
                let timeout = timeout.filter(|_| policy.may_shorten).filter(is_meant);
                let arrived = self.arrived;
                self.no_later_than(timeout, arrived)
            }
        }
    }

    /// Sets the deadline to `timeout` after `since`, if that is earlier.
    pub(crate) fn no_later_than(mut self, timeout: Option<Duration>, since: Instant) -> Call {
        if let Some(timeout) = timeout.filter(|timeout| since + *timeout < self.deadline) {
            (self.timeout, self.deadline, self.hasty) = (timeout, since + timeout, true);
        }
        self
    }

    /// The same terms for a request whose body is there and whose head was read at `head`: a timeout that the client set counts from there.
    pub(crate) fn since(self, head: Instant) -> Call {
        if self.timed { Call { deadline: head + self.timeout, ..self } } else { self }
    }

    /// Reads the request's body. A timeout that the client set counts from the head, and ends the reading as well. Without one, the time
    /// for the answer begins when the body is there: reading has limits of its own.
    pub(super) async fn body<T>(
        &mut self,
        read: impl Future<Output = Result<T, InferError>>,
    ) -> Result<T, InferError> {
        let body = match self.timed {
            true => tokio::time::timeout_at(self.deadline.into(), read).await.unwrap_or_else(|_| {
                // The model would have given it all the time that its body takes.
                Err(InferError::Hasty(format!(
                    "the body had not been read to its end when the deadline of {} ms passed",
                    self.timeout.as_millis()
                )))
            })?,
            false => read.await?,
        };
        self.arrived = Instant::now();
        if !self.timed {
            self.deadline = self.arrived + self.timeout;
        }
        Ok(body)
    }

    /// The same terms, starting now, for the next part of a request that goes on for as long as it likes.
    pub(super) fn again(&self) -> Call {
        let arrived = Instant::now();
        Call { arrived, deadline: arrived + self.timeout, ..self.clone() }
    }

    /// The same terms, with `passed` of the time used up already.
    pub(super) fn sooner_by(self, passed: Duration) -> Call {
        Call { deadline: self.arrived + self.timeout.saturating_sub(passed), ..self }
    }

    /// Whether the deadline has passed.
    pub(super) fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Queues a job of `items` items for a request. Dropping the ticket cancels it.
    pub(super) fn push(
        &self,
        front: &Front,
        tally: &Tally,
        inputs: Vec<Tensor>,
        items: usize,
        setting: Option<Setting>,
    ) -> Result<Ticket, InferError> {
        let pushed = front.queue.push(self.job(tally.model(), inputs, items, setting));
        self.told(front, tally, pushed)
    }

    /// Queues an image of which only the answer to this task is wanted.
    pub(super) fn push_image(
        &self,
        front: &Front,
        tally: &Tally,
        task: &Task,
        inputs: Vec<Tensor>,
    ) -> Result<Ticket, InferError> {
        let model = tally.model();
        let reduced = task.is_left_by(&model.task);
        let pushed = front.queue.push(Job { reduced, ..self.job(model, inputs, 1, None) });
        self.told(front, tally, pushed)
    }

    /// Notes when a request came to the queue, and whether it got in.
    fn told(
        &self,
        front: &Front,
        tally: &Tally,
        pushed: Result<Ticket, InferError>,
    ) -> Result<Ticket, InferError> {
        let pushed = pushed.map_err(|error| self.by_whom(error));
        // The queue closes when the time to drain is over.
        if matches!(pushed, Err(InferError::Draining)) {
            front.metrics.dropped(DropReason::Job).inc();
        }
        tally.queued(pushed.as_ref().map_or(self.arrived, Ticket::pushed));
        tally.part(&pushed);
        pushed
    }

    fn job(&self, model: &Model, inputs: Vec<Tensor>, items: usize, setting: Option<Setting>) -> Job {
        Job {
            model: model.key,
            inputs,
            setting,
            items,
            reduced: false,
            priority: self.priority,
            deadline: Some(self.deadline),
            wait: self.wait,
            arrived: self.arrived,
        }
    }

    /// Waits for the answer to a job of a request, no longer than the deadline.
    pub(super) async fn answer(
        &self,
        front: &Front,
        tally: &Tally,
        ticket: Ticket,
    ) -> Result<Answer, InferError> {
        let (model, pushed) = (tally.model(), ticket.pushed());
        let answer = self.in_time(ticket).await;
        // A wait that the model's queue bounds may end earlier.
        let answer = answer.map_err(|error| if self.is_late() { self.by_whom(error) } else { error });
        let answer = answer.and_then(|answer| Ok(Answer { outputs: self.held(answer.outputs)?, ..answer }));
        tally.part(&answer);
        let answer = answer?;
        tally.ran(answer.timing);
        let device = front.metrics.model(&model.name).device(&answer.device);
        device.queue_seconds.observe(answer.timing.queue.as_secs_f64());
        if let Some(fallback) = answer.fallback {
            device.fell_back(fallback.name());
        }
        if let Some(trace) = &self.trace {
            let Timing { queue, behind, stage, compute } = answer.timing;
            trace.ran(Ran {
                pushed,
                taken: pushed + queue.saturating_sub(behind),
                stage,
                behind,
                compute,
                device: Arc::clone(&answer.device),
                model: Arc::clone(&model.name),
                items: answer.batch_items,
            });
        }
        Ok(answer)
    }

    /// Waits for something no longer than the deadline.
    pub(crate) async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, InferError>>,
    ) -> Result<T, InferError> {
        tokio::time::timeout_at(self.deadline.into(), work).await.unwrap_or_else(|_| Err(self.late()))
    }

    /// The error for a deadline that has passed.
    pub(super) fn late(&self) -> InferError {
        let ms = self.timeout.as_millis();
        self.by_whom(InferError::Late(format!("no answer within the deadline of {ms} ms")))
    }

    /// The same error, told apart where the deadline that is not met was its caller's.
    fn by_whom(&self, error: InferError) -> InferError {
        match error {
            InferError::Late(why) if self.hasty => InferError::Hasty(why),
            other => other,
        }
    }
}

/// The least parameter `timeout` that is heeded where the queue's policy has no time that it could shorten. Triton heeds none there, and
/// clients that mean seconds send 30 microseconds.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// For the whole request, in milliseconds.
const TIMEOUT: HeaderName = HeaderName::from_static("timeout");
/// From 0, the most urgent.
const PRIORITY: HeaderName = HeaderName::from_static("priority");

fn number(headers: &HeaderMap, name: &HeaderName) -> Result<Option<u64>, InferError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| {
        let value = String::from_utf8_lossy(value.as_bytes());
        InferError::BadRequest(format!("header {name} is {:?}, expected a whole number", clipped(&value)))
    })
}

/// Whether `priority` is the browsers' own header of this name, such as `u=1, i`, which is about their connection: RFC 9218's dictionary
/// begins with a key where ours is a number, or is empty.
fn is_of_browsers(headers: &HeaderMap) -> bool {
    let value = headers.get(PRIORITY).map(|value| value.as_bytes().trim_ascii_start());
    value.is_some_and(|value| value.first().is_none_or(|first| first.is_ascii_lowercase() || *first == b'*'))
}

/// Which device answered.
const DEVICE: HeaderName = HeaderName::from_static("ocelli-device");
/// Why the device that answered is not one that the model is meant for.
const FALLBACK: HeaderName = HeaderName::from_static("ocelli-fallback");
/// Where the time went, by the W3C's Server Timing.
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// What [`Spent::tell`] wrote of the stages' times to a reply's headers.
pub(crate) fn timing_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(SERVER_TIMING)?.to_str().ok()
}

/// The device that it wrote there.
pub(crate) fn device_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(DEVICE)?.to_str().ok()
}

/// Writes a time as milliseconds with three decimals. By integers and by hand: formatting takes three times the instructions.
fn write_ms(text: &mut Vec<u8>, time: Duration) {
    let us = (time + Duration::from_nanos(500)).as_micros() as u64;
    text.extend_from_slice(itoa::Buffer::new().format(us / 1000).as_bytes());
    let digit = |of: u64| b'0' + (us / of % 10) as u8;
    text.extend_from_slice(&[b'.', digit(100), digit(10), digit(1)]);
}

/// Where a request's time went: for each stage, the longest time of its items.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spent {
    /// Decode, resize, normalise; for tensors, reading them.
    pub(super) decode: Duration,
    /// The rest.
    pub(super) batch: Timing,
    /// The device that ran it.
    pub(super) device: Option<Arc<str>>,
    /// Why it was this device, if the model is not meant for it.
    pub(super) fallback: Option<Fallback>,
}

impl Spent {
    /// For one job, whose decoding took `decode`.
    pub(super) fn on(decode: Duration, answer: &Answer) -> Spent {
        let device = Some(Arc::clone(&answer.device));
        Spent { decode, batch: answer.timing, device, fallback: answer.fallback }
    }

    /// Adds another item of the same request.
    pub(super) fn include(&mut self, other: &Spent) {
        self.decode = self.decode.max(other.decode);
        self.batch.queue = self.batch.queue.max(other.batch.queue);
        self.batch.stage = self.batch.stage.max(other.batch.stage);
        self.batch.compute = self.batch.compute.max(other.batch.compute);
        // A device that stood in is reported, whichever item it ran.
        let told = self.fallback.is_some() && other.fallback.is_none();
        if !told && other.device.is_some() {
            (self.device, self.fallback) = (other.device.clone(), other.fallback);
        }
    }

    /// Counts how long it took to make the reply from the answer.
    pub(crate) fn replied(&self, front: &Front, tally: &Tally, took: Duration) {
        if let Some(device) = &self.device {
            let device = front.metrics.model(&tally.model().name).device(device);
            device.reply_seconds.observe(took.as_secs_f64());
            tally.replied(took);
        }
    }

    /// Writes this to a reply's headers; durations are in milliseconds.
    pub(crate) fn tell(&self, headers: &mut HeaderMap) {
        let Timing { queue, stage, compute, .. } = self.batch;
        let mut text = Vec::with_capacity(96);
        for (name, time) in [
            ("decode;dur=", self.decode),
            (", queue;dur=", queue),
            (", stage;dur=", stage),
            (", compute;dur=", compute),
        ] {
            text.extend_from_slice(name.as_bytes());
            write_ms(&mut text, time);
        }
        let value = HeaderValue::from_maybe_shared(Bytes::from(text));
        headers.insert(SERVER_TIMING, value.expect("digits and letters are legal"));
        if let Some(device) = self.device.as_deref().and_then(|device| HeaderValue::from_str(device).ok()) {
            headers.insert(DEVICE, device);
        }
        if let Some(fallback) = self.fallback {
            headers.insert(FALLBACK, HeaderValue::from_static(fallback.name()));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::{
        batch::ModelKey, engine::staging::Memory, models::testing::source, tasks::testing::signature,
    };

    const MS: Duration = Duration::from_millis(1);

    fn model(queue: &str) -> Model {
        let source = source("m", "1", &format!("[queue]\n{queue}"));
        Model::resolve(ModelKey(1), &source, signature(&[("y", &[-1, 2])]), MS * 900, &Memory::Plain).unwrap()
    }

    fn call(model: &Model, headers: &[(&'static str, &'static str)]) -> Result<Call, InferError> {
        let headers = headers.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)));
        Call::of(&HeaderMap::from_iter(headers), model, MS * 1000)
    }

    #[test]
    fn neither_a_caller_nor_a_model_has_more_time_than_the_server_gives() {
        let model = model("");
        for given in [None, Some("600")] {
            let headers = given.map(|ms| (TIMEOUT, HeaderValue::from_static(ms)));
            let call = Call::of(&headers.into_iter().collect(), &model, MS * 500).unwrap();
            assert_eq!((call.timeout, call.deadline), (MS * 500, call.arrived + MS * 500), "{given:?}");
        }
    }

    #[test]
    fn a_device_that_stood_in_is_told_of_whichever_item_it_was() {
        let on = |device: &str, fallback| Spent { device: Some(device.into()), fallback, ..Spent::default() };
        let (stood_in, meant) = (on("cpu", Some(Fallback::DeviceFailed)), on("gpu-0", None));
        for [first, second] in [[&stood_in, &meant], [&meant, &stood_in]] {
            let mut spent = first.clone();
            spent.include(second);
            assert_eq!((spent.device.as_deref(), spent.fallback), (Some("cpu"), stood_in.fallback));
        }
    }

    #[test]
    fn a_priority_that_the_model_does_not_have_is_no_wish() {
        let model = model("priorities = 3");
        for (wish, expected) in
            [(None, 1), (Some(0), 1), (Some(1), 0), (Some(3), 2), (Some(4), 1), (Some(300), 1)]
        {
            assert_eq!(call(&model, &[]).unwrap().asked(&model, None, wish).priority, expected, "{wish:?}");
        }
        assert_eq!(call(&model, &[("priority", "2")]).unwrap().asked(&model, None, Some(1)).priority, 2);
        let told = call(&model, &[("priority", "3")]).unwrap_err().to_string();
        assert_eq!(told, "header priority is 3; it goes from 0 (most urgent) to 2");
        // Browsers say with a header of this name what they load first.
        for of_browsers in ["u=1, i", "i", "*x", ""] {
            assert_eq!(call(&model, &[("priority", of_browsers)]).unwrap().priority, 1, "{of_browsers}");
        }
        for wrong in ["-1", "1.5", "=1"] {
            assert!(call(&model, &[("priority", wrong)]).is_err(), "{wrong}");
        }
    }

    /// Reads a body that is there `after` ms after its head. Returns the result, and the call with the timeout of `header`.
    async fn read(header: Option<&'static str>, after: u32) -> (Result<(), InferError>, Call) {
        let headers: Vec<_> = header.map(|ms| ("timeout", ms)).into_iter().collect();
        let mut call = call(&model(""), &headers).unwrap();
        let head = Instant::now() - MS * after;
        (call.arrived, call.deadline) = (head, head + call.timeout);
        let read = match after {
            0 => call.body(std::future::pending()).await,
            _ => call.body(async { Ok(()) }).await,
        };
        (read, call)
    }

    #[tokio::test]
    async fn what_a_caller_gives_counts_from_the_head_and_what_the_model_gives_from_the_body() {
        let (body, given) = read(Some("600"), 500).await;
        assert_eq!(body, Ok(()));
        let left = given.deadline.saturating_duration_since(Instant::now());
        assert!(left <= MS * 100, "{left:?}");
        // The model's 900 ms, none of which have passed.
        let (body, own) = read(None, 5000).await;
        assert_eq!(body, Ok(()));
        assert_eq!(own.deadline, own.arrived + MS * 900);
        assert!(own.arrived > Instant::now() - MS * 4000, "it counts from when the body is there");
        let (late, _) = read(Some("1"), 0).await;
        let told = "the body had not been read to its end when the deadline of 1 ms passed";
        assert_eq!(late, Err(InferError::Hasty(told.into())));
    }

    #[test]
    fn who_gives_less_time_than_the_model_is_hasty_and_nobody_else() {
        // The model has 900 ms.
        let model = model("");
        let is_hasty = |call: &Call| match call.late() {
            InferError::Hasty(_) => true,
            InferError::Late(_) => false,
            other => panic!("{other:?}"),
        };
        for (header, hasty) in
            [(None, false), (Some("899"), true), (Some("900"), false), (Some("1000"), false)]
        {
            let headers: Vec<_> = header.map(|ms| ("timeout", ms)).into_iter().collect();
            let call = call(&model, &headers).unwrap();
            assert_eq!(is_hasty(&call), hasty, "{header:?}");
            // So is the next part of a stack, however long the server took for the one before.
            assert_eq!(is_hasty(&call.again().sooner_by(MS * 800)), hasty, "{header:?}");
        }
        let own = || call(&model, &[]).unwrap();
        for (ms, hasty) in [(5, true), (5000, false)] {
            assert_eq!(is_hasty(&own().asked(&model, Some(MS * ms), None)), hasty, "parameter, {ms} ms");
            let since = own().arrived;
            assert_eq!(is_hasty(&own().no_later_than(Some(MS * ms), since)), hasty, "grpc-timeout, {ms} ms");
        }
        // Where the parameter shortens the wait alone, the deadline is still the model's.
        let delays = self::model("late = \"delay\"");
        assert!(!is_hasty(&call(&delays, &[]).unwrap().asked(&delays, Some(MS * 5), None)));
    }

    #[test]
    fn a_call_that_is_there_counts_from_its_head_where_its_caller_has_given_a_time() {
        let head = Instant::now() - MS * 5000;
        let given = call(&model(""), &[("timeout", "600")]).unwrap().since(head);
        assert_eq!(given.deadline, head + MS * 600);
        let own = call(&model(""), &[]).unwrap().since(head);
        assert_eq!(own.deadline, own.arrived + MS * 900);
        let sooner = own.no_later_than(Some(MS * 5100), head);
        assert_eq!(sooner.deadline, head + MS * 5100);
        let whole = sooner.deadline;
        assert_eq!(sooner.no_later_than(Some(MS * 800), Instant::now()).deadline, whole);
    }

    #[test]
    fn a_part_that_took_some_of_its_time_has_the_rest_of_it() {
        let call = call(&model(""), &[]).unwrap();
        for (passed, left) in [(0, 900), (200, 700), (2000, 0)] {
            let part = call.again().sooner_by(MS * passed);
            assert_eq!(part.deadline, part.arrived + MS * left);
        }
    }

    #[test]
    fn what_a_parameter_timeout_does_is_for_the_policy_of_its_priority() {
        // The longest wait in the queue, and the timeout for the answer.
        let check = |queue: &str, timeout: u32, expected: (Option<u32>, u32)| {
            let model = model(queue);
            let call = call(&model, &[]).unwrap().asked(&model, Some(MS * timeout), None);
            assert_eq!(
                (call.wait.map(|wait| wait.max), call.timeout),
                (expected.0.map(|ms| MS * ms), MS * expected.1)
            );
        };
        check("", 5, (None, 5));
        check("", 5000, (None, 900));
        check("", 0, (None, 900));
        check("wait_ms_max = 50", 0, (Some(50), 0));
        check("wait_ms_max = 50", 5, (Some(50), 5));
        check("wait_ms_max = 50\nshorten = false", 5, (Some(50), 900));
        check("wait_ms_max = 50\nlate = \"delay\"", 5, (Some(5), 900));
        check("wait_ms_max = 50\nlate = \"delay\"", 70, (Some(50), 900));
        check("late = \"delay\"\nshorten = false", 5, (None, 900));
        check("[queue.priority.1]\nwait_ms_max = 20", 900, (Some(20), 900));
    }
}
