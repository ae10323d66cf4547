//! The jobs of one server: a real book, its workers, and a simple record of what each job should get.

use super::Tally;
use crate::{
    batch::{
        Batch, Job, JobKey, ModelKey, Ran, Rules,
        book::{Book, Pick, QueueLimits, Receipt, WorkerKey},
        entry::Pieces,
        roster::{Absence, CPU},
        rows,
    },
    engine::{DataType, EngineError, Tensor},
    error::InferError,
    random::Random,
};
use bytes::BytesMut;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

const MODEL: ModelKey = ModelKey(0);

/// A worker, and what it runs.
pub(super) struct Worker {
    key: WorkerKey,
    /// The number of its GPU; `None` for the CPU.
    gpu: Option<usize>,
    running: Option<(Arc<Batch>, Receipt, Instant)>,
}

impl Worker {
    /// Whether its batch is done.
    pub(super) fn is_done(&self, now: Instant) -> bool {
        self.running.as_ref().is_some_and(|(.., done)| *done <= now)
    }
}

/// What is true of a job, for comparison.
struct True {
    input: Tensor,
    deadline: Option<Instant>,
    /// Devices that failed under it.
    failures: u32,
    answered: bool,
}

pub(super) struct Jobs {
    book: Book,
    truth: HashMap<JobKey, True>,
    cpu: Option<Worker>,
    /// Rows of the smallest batch.
    smallest: usize,
}

fn device(gpu: Option<usize>) -> Arc<str> {
    gpu.map_or_else(|| CPU.into(), |gpu| format!("gpu-{gpu}").into())
}

impl Jobs {
    pub(super) fn new(random: &mut Random) -> Jobs {
        let mut book = Book::new(QueueLimits { items_max: 200, bytes_max: 2000 });
        let sizes = random.of(&[vec![1, 2, 4], vec![1], vec![4, 8]]).clone();
        let rules = Rules::plain(&sizes);
        let smallest = rules.sizes[0];
        book.register(MODEL, "model", rules);
        if random.percent(70) {
            book.stand_by(MODEL, &CPU.into());
        }
        let mut jobs = Jobs { book, truth: HashMap::new(), cpu: None, smallest };
        jobs.cpu = Some(jobs.attach(None));
        jobs
    }

    /// A worker of a device.
    pub(super) fn attach(&mut self, gpu: Option<usize>) -> Worker {
        Worker { key: self.book.attach(&device(gpu)), gpu, running: None }
    }

    /// A worker leaves with its device; its batch fails.
    pub(super) fn detach(
        &mut self,
        worker: Worker,
        why: &str,
        back: Instant,
        now: Instant,
        tally: &mut Tally,
    ) {
        let absence = Absence { reason: why.into(), back: Some(back) };
        self.book.expect(&device(worker.gpu), absence, now);
        if let Some((batch, receipt, _)) = worker.running {
            self.failed_under(&batch, tally);
            let error = Err(EngineError::Device(why.into()));
            self.book.finish(&batch, &receipt, error, now).unwrap();
        }
        self.book.detach(worker.key, now);
        self.settle(now, tally);
    }

    fn failed_under(&mut self, batch: &Batch, tally: &mut Tally) {
        let mut jobs: Vec<JobKey> = batch.parts.iter().map(|part| part.job).collect();
        jobs.dedup();
        for job in jobs {
            self.truth.get_mut(&job).unwrap().failures += 1;
            tally.again += 1;
        }
    }

    /// Perhaps a job arrives.
    pub(super) fn arrive(&mut self, random: &mut Random, now: Instant) {
        if !random.percent(15) {
            return;
        }
        let items = random.between(1, 6) as usize;
        let data: Vec<u8> = (0..8 * items).map(|_| random.bits() as u8).collect();
        let input = Tensor { datatype: DataType::Uint8, shape: vec![items, 8], data: data.into() };
        let deadline = random.percent(30).then(|| now + Duration::from_millis(random.between(1, 60_000)));
        let job = Job {
            priority: random.below(2) as u8,
            deadline,
            ..Job::plain(MODEL, vec![input.clone()], items, now)
        };
        match self.book.push(job, now) {
            Ok(key) => {
                let new = True { input, deadline, failures: 0, answered: false };
                assert!(self.truth.insert(key, new).is_none());
            }
            Err(InferError::Full { .. }) => {}
            Err(InferError::Late(_)) => assert!(deadline.is_some(), "late without a deadline"),
            Err(error) => panic!("the CPU serves: {error}"),
        }
    }

    /// The CPU's turn, which never fails.
    pub(super) fn on_cpu(&mut self, random: &mut Random, now: Instant, tally: &mut Tally) {
        let mut cpu = self.cpu.take().unwrap();
        tally.on_cpu += usize::from(self.finish(&mut cpu, None, now, tally));
        self.pick(&mut cpu, random.between(20, 400), now);
        self.cpu = Some(cpu);
        self.settle(now, tally);
    }

    /// A worker starts a batch, if it has none.
    pub(super) fn pick(&mut self, worker: &mut Worker, millis: u64, now: Instant) {
        if worker.running.is_none()
            && let Pick::Run(batch, receipt) = self.book.pick(worker.key, &[MODEL], now)
        {
            worker.running = Some((batch, receipt, now + Duration::from_millis(millis)));
        }
    }

    /// Hands back a batch that is done, with the result of its device. True if there was one.
    pub(super) fn finish(
        &mut self,
        worker: &mut Worker,
        error: Option<EngineError>,
        now: Instant,
        tally: &mut Tally,
    ) -> bool {
        let Some((batch, receipt, _)) = worker.running.take_if(|(.., done)| *done <= now) else {
            return false;
        };
        // The smallest batch cannot be halved: if memory is too small for it, the device has failed.
        let failed = match &error {
            Some(EngineError::Device(_)) => true,
            Some(EngineError::OutOfMemory(_)) => batch.size == self.smallest,
            _ => false,
        };
        if failed {
            self.failed_under(&batch, tally);
        }
        let result = error.map_or_else(|| Ok(echo(&batch, now)), Err);
        self.book.finish(&batch, &receipt, result, now).unwrap();
        self.settle(now, tally);
        true
    }

    fn settle(&mut self, now: Instant, tally: &mut Tally) {
        for done in self.book.settle().done {
            let job = self.truth.get_mut(&done.job).unwrap();
            assert!(!std::mem::replace(&mut job.answered, true), "answered twice");
            match done.result.and_then(Pieces::join) {
                Ok(answer) => {
                    assert_eq!(answer.outputs[0].data, job.input.data, "somebody else's rows");
                    // Answered by the CPU, then.
                    tally.twice_failed += usize::from(job.failures >= 2);
                }
                Err(InferError::Late(_)) => {
                    assert!(job.deadline.is_some_and(|deadline| deadline <= now), "it was not late");
                }
                Err(InferError::Device(why) | InferError::Outsized(why)) => {
                    assert!(job.failures >= 2, "{} failures: {why}", job.failures);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(super) fn check_end(&self, now: Instant) {
        assert!(self.truth.values().all(|job| job.answered), "a job has no answer");
        let load = self.book.load(now);
        assert_eq!((load.items, load.bytes, load.waiting, load.running), (0, 0, 0, 0));
    }
}

/// The engine: returns its input, followed by padding.
fn echo(batch: &Batch, now: Instant) -> Ran {
    let inputs: Vec<&Tensor> = batch.parts.iter().map(|part| &part.inputs[0]).collect();
    let mut output = rows::join(&inputs).unwrap();
    let mut data = BytesMut::from(&output.data[..]);
    data.resize(batch.size * 8, 0xff);
    (output.data, output.shape[0]) = (data.freeze(), batch.size);
    Ran { outputs: vec![output], stage: Duration::ZERO, waited: Duration::ZERO, compute: now - batch.taken }
}
