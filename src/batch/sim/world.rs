//! One small world per seed: its events in the order of a virtual clock. `made` makes it.

mod made;

use super::{
    Random,
    tally::Tally,
    truth::{Looked, State, Truth, tagged},
};
use crate::{
    batch::{
        Batch, Job, ModelKey, Ran, RunResult,
        book::{Book, Pick, Receipt, WorkerKey},
        roster::Absence,
        rows,
    },
    engine::{EngineError, Tensor},
};
use bytes::BytesMut;
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

/// Times are microseconds of the virtual clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive,
    Cancel(usize),
    Finish {
        worker: usize,
        life: usize,
    },
    /// Its call has not come back for too long.
    Recall {
        worker: usize,
        life: usize,
    },
    /// Long after that it does.
    Late(usize),
    Vanish(usize),
    Return(usize),
    /// One that has returned loads its next model.
    Load {
        worker: usize,
        absences: usize,
    },
    /// Something else takes a device's memory, or gives it back.
    Memory(usize),
    Retire(ModelKey),
    Close,
    /// A window of waiting for company ends.
    Look,
}

struct SimWorker {
    /// None while it is away.
    key: Option<WorkerKey>,
    serves: Vec<ModelKey>,
    /// How many of these it has: one that returns loads them one after the other.
    loaded: usize,
    /// How often it has gone.
    absences: usize,
    /// Its name; several workers may be on one.
    device: Arc<str>,
    /// Rows of the largest batch that its memory holds.
    rows_max: usize,
    /// Times slower than the cost says.
    slow: u64,
    fails_percent: u64,
    /// Counts batches and absences, so that the end of a lost batch finds nothing.
    life: usize,
    running: Option<(Arc<Batch>, Receipt)>,
    home: bool,
}

struct World {
    random: Random,
    base: Instant,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    book: Book,
    truth: Truth,
    workers: Vec<SimWorker>,
    /// How many batches hang, and those that did: until they come back after all.
    hangs_percent: u64,
    hung: Vec<(Arc<Batch>, Receipt)>,
    /// Microseconds per batch and per row.
    costs: HashMap<ModelKey, (u64, u64)>,
    to_come: usize,
    pace: u64,
    /// Workers that vanish return.
    comes_back: bool,
}

/// Runs one seed to its end, checking every step.
pub(super) fn run(seed: u64) -> Tally {
    let mut world = World::new(seed);
    while let Some(Reverse((at, _, event))) = world.events.pop() {
        world.now = at;
        world.step(event);
        world.settle();
        world.serve();
        if world.truth.closed {
            // The queue wakes everybody then, at every change.
            world.serve();
        }
        let load = world.book.load(world.at());
        world.truth.check_load(&load);
    }
    let now = world.at();
    if !world.comes_back && !world.truth.closed {
        // The last worker may be gone for good: what waits for it ends with the close.
        world.truth.closed = true;
        world.book.close(now);
        world.settle();
    }
    world.truth.check_rest(&world.book.load(now));
    if world.truth.closed && world.comes_back {
        assert!(world.workers.iter().all(|w| w.home || w.key.is_none()), "all go home");
    }
    let models: Vec<_> = world.truth.models.keys().copied().collect();
    for model in models {
        world.book.retire(model, now);
        assert!(!world.book.knows(model), "an empty model is forgotten");
    }
    world.truth.tally
}

impl World {
    fn at(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    fn plan(&mut self, after: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((self.now + after, self.sequence, event)));
    }

    fn step(&mut self, event: Event) {
        let now = self.at();
        match event {
            Event::Arrive => self.arrive(),
            Event::Cancel(index) => {
                let job = &self.truth.jobs[index];
                if job.state == State::Live {
                    self.book.cancel(job.key, now);
                    self.truth.cancelled(index);
                }
            }
            Event::Finish { worker, life } if self.workers[worker].life == life => {
                self.finish(worker);
            }
            Event::Recall { worker, life } if self.workers[worker].life == life => self.recall(worker),
            Event::Late(hung) => {
                let (batch, receipt) = self.hung[hung].clone();
                let result = if self.random.percent(50) {
                    self.echo(&batch)
                } else {
                    Err(EngineError::Device("it broke at last".into()))
                };
                let aftermath = self.book.finish(&batch, &receipt, result, now);
                assert!(aftermath.is_none() && self.book.is_settled(), "what was recalled is worth nothing");
            }
            Event::Vanish(worker) => self.vanish(worker),
            Event::Return(index) => {
                let worker = &mut self.workers[index];
                worker.key = Some(self.book.attach(&worker.device));
                worker.home = false;
                worker.loaded = 0;
                let absences = worker.absences;
                self.plan(0, Event::Load { worker: index, absences });
            }
            Event::Load { worker, absences } if self.workers[worker].absences == absences => {
                self.load(worker);
            }
            Event::Memory(worker) => {
                let device = Arc::clone(&self.workers[worker].device);
                let rows_max = *self.random.of(&[0, 1, 2, 3, 7, usize::MAX]);
                let of_device = self.workers.iter_mut().filter(|worker| worker.device == device);
                of_device.for_each(|worker| worker.rows_max = rows_max);
            }
            Event::Retire(model) => {
                self.truth.retired.push(model);
                self.book.retire(model, now);
            }
            Event::Close => {
                self.truth.closed = true;
                self.book.close(now);
            }
            Event::Finish { .. } | Event::Recall { .. } | Event::Load { .. } | Event::Look => {}
        }
    }

    fn arrive(&mut self) {
        let (now, random) = (self.at(), &mut self.random);
        let model = ModelKey(random.below(self.truth.models.len()) as u64);
        let rules = &self.truth.models[&model];
        let tag = self.to_come;
        let (items, input) = if rules.whole {
            (1, tagged(tag, vec![3, 8], 3))
        } else {
            let largest = *rules.sizes.last().unwrap() as u64;
            let most = *random.of(&[1, 2, largest, 3 * largest, 20]);
            let items = random.between(1, most) as usize;
            let item: &[usize] = if random.percent(70) { &[8] } else { &[2, 4] };
            let shape = [&[items], item].concat();
            (items, tagged(tag, shape, items))
        };
        let deadline = random.percent(40).then(|| {
            let most = *random.of(&[self.pace, 50_000, 20_000_000]);
            now + Duration::from_micros(random.between(0, most))
        });
        let decoded = Duration::from_micros(random.between(0, 1000).min(self.now));
        let job = Job {
            priority: random.below(3) as u8,
            deadline,
            ..Job::plain(model, vec![input], items, now - decoded)
        };
        let copy = Job { inputs: job.inputs.clone(), setting: None, ..job };
        let poisoned = random.percent(4);
        let result = self.book.push(copy, now);
        self.settle();
        let accepted = result.is_ok();
        self.truth.pushed(&job, poisoned, result, now);
        if accepted && self.random.percent(15) {
            let after = self.random.between(0, 2 * self.pace);
            self.plan(after, Event::Cancel(self.truth.jobs.len() - 1));
        }
        self.to_come -= 1;
        if self.to_come > 0 {
            let pause = match self.random.below(20) {
                0..=8 => 0,
                9 => 20 * self.pace,
                _ => self.random.between(0, self.pace),
            };
            self.plan(pause, Event::Arrive);
        }
    }

    /// Every idle worker asks, in a random order.
    fn serve(&mut self) {
        let start = self.random.below(self.workers.len());
        for i in 0..self.workers.len() {
            let index = (start + i) % self.workers.len();
            let worker = &self.workers[index];
            let (Some(key), None, false) = (worker.key, &worker.running, worker.home) else {
                continue;
            };
            let now = self.at();
            let serves = worker.serves[..worker.loaded].to_vec();
            let device = Arc::clone(&worker.device);
            // What it would take for the largest batch, or as long as it may be thought to.
            let (base, per_row) = serves.iter().map(|key| self.costs[key]).max().unwrap_or_default();
            let own = worker.slow * 20 * (base + per_row) + 200_000;
            self.truth.asks(index, &device, &serves);
            let pick = self.book.pick(key, &serves, now);
            self.settle();
            match pick {
                Pick::Run(batch, receipt) => {
                    let looked = Looked { device: &device, serves: &serves, own, home: false };
                    self.truth.taken(&batch, looked, now);
                    let (base, per_row) = self.costs[&batch.model];
                    let worker = &mut self.workers[index];
                    let cost = (base + per_row * batch.size as u64) * worker.slow;
                    worker.life += 1;
                    worker.running = Some((batch, receipt));
                    let life = worker.life;
                    if self.random.percent(self.hangs_percent) {
                        self.plan(cost + 2 * self.pace, Event::Recall { worker: index, life });
                    } else {
                        self.plan(cost, Event::Finish { worker: index, life });
                    }
                }
                Pick::SleepUntil(until) => {
                    let looked = Looked { device: &device, serves: &serves, own, home: false };
                    self.truth.may_sleep(looked, now);
                    assert!(until > now);
                    let after = until.duration_since(now).as_nanos().div_ceil(1000) as u64;
                    self.plan(after, Event::Look);
                }
                Pick::Sleep => {
                    let looked = Looked { device: &device, serves: &serves, own: 0, home: false };
                    self.truth.may_sleep(looked, now);
                }
                Pick::Closed => {
                    assert!(self.truth.closed);
                    let looked = Looked { device: &device, serves: &serves, own: 0, home: true };
                    self.truth.may_sleep(looked, now);
                    self.workers[index].home = true;
                    self.truth.serving.remove(&index);
                    if self.random.percent(50) {
                        self.book.detach(key, now);
                        self.workers[index].key = None;
                        self.settle();
                    }
                }
            }
        }
    }

    fn finish(&mut self, worker: usize) {
        let fails = self.random.percent(self.workers[worker].fails_percent);
        let Some((batch, receipt)) = self.workers[worker].running.take() else {
            return;
        };
        let now = self.at();
        let poisoned = batch.parts.iter().any(|part| {
            let mut jobs = self.truth.jobs.iter();
            jobs.any(|job| job.key == part.job && job.poisoned)
        });
        let device = Arc::clone(&self.workers[worker].device);
        let result = if batch.size > self.workers[worker].rows_max {
            self.truth.too_large(&batch, &device, now);
            Err(EngineError::OutOfMemory("no room".into()))
        } else if fails {
            self.truth.broke(&batch, &device, now);
            Err(EngineError::Device("it broke".into()))
        } else if poisoned {
            self.truth.refused(&batch);
            Err(EngineError::Input("poison".into()))
        } else {
            self.truth.ran(&batch);
            self.echo(&batch)
        };
        self.book.finish(&batch, &receipt, result, now).unwrap();
        if fails && self.random.percent(50) {
            self.vanish(worker);
        }
    }

    /// The engine: gives back what it got, and padding after it.
    fn echo(&self, batch: &Batch) -> RunResult {
        let whole = self.truth.models[&batch.model].whole;
        let inputs: Vec<&Tensor> = batch.parts.iter().map(|part| &part.inputs[0]).collect();
        let mut output = rows::join(&inputs).unwrap();
        if !whole {
            let mut data = BytesMut::from(&output.data[..]);
            data.resize(batch.size * 8, 0xff);
            output.data = data.freeze();
            output.shape[0] = batch.size;
        }
        Ok(Ran { outputs: vec![output], stage: Duration::ZERO, compute: self.at() - batch.taken })
    }

    /// A worker that has returned has another model, or can have no more; with the last one, it says so.
    fn load(&mut self, index: usize) {
        let now = self.at();
        let refused = self.random.percent(5);
        let worker = &mut self.workers[index];
        let (Some(key), false) = (worker.key, worker.home) else { return };
        worker.loaded += usize::from(!refused && worker.loaded < worker.serves.len());
        let (serves, lacks) = worker.serves.split_at(worker.loaded);
        if refused || lacks.is_empty() {
            self.truth.asks(index, &worker.device, serves);
            self.truth.returned(&worker.device);
            self.book.returned(key, serves, now);
            return;
        }
        lacks.iter().for_each(|model| self.truth.lacks(*model, now));
        let absences = worker.absences;
        let takes = self.random.between(0, 2 * self.pace);
        self.plan(takes, Event::Load { worker: index, absences });
    }

    fn vanish(&mut self, worker: usize) {
        let Some(key) = self.workers[worker].key.take() else {
            return;
        };
        self.workers[worker].absences += 1;
        let now = self.at();
        let running = self.workers[worker].running.take();
        self.workers[worker].life += 1;
        let mut detach = Some(key).filter(|_| self.random.percent(50));
        let device = Arc::clone(&self.workers[worker].device);
        let back = self.comes_back.then(|| self.random.between(0, 5 * self.pace));
        if self.random.percent(50) {
            let back = back.map(|after| now + Duration::from_micros(after));
            self.truth.leaves(&device, back);
            self.book.expect(&device, Absence { reason: "it is being mended".into(), back }, now);
            self.settle();
        }
        if detach.is_none() {
            self.truth.serving.remove(&worker);
            self.book.detach(key, now);
            self.settle();
        }
        if let Some((batch, receipt)) = running {
            self.truth.broke(&batch, &device, now);
            let result = Err(EngineError::Device("it vanished".into()));
            self.book.finish(&batch, &receipt, result, now).unwrap();
            self.settle();
        }
        if let Some(key) = detach.take() {
            self.truth.serving.remove(&worker);
            self.book.detach(key, now);
            self.settle();
        }
        if let Some(back) = back {
            self.plan(back, Event::Return(worker));
        }
    }

    /// Somebody sees that a worker hangs: what it has goes to others, and another comes in its place when it has gone.
    fn recall(&mut self, worker: usize) {
        let SimWorker { key, running, device, life, absences, .. } = &mut self.workers[worker];
        let (Some(key), Some((batch, receipt))) = (key.take(), running.take()) else { return };
        let device = Arc::clone(device);
        *life += 1;
        *absences += 1;
        let now = self.at();
        let back = self.comes_back.then(|| self.random.between(0, 5 * self.pace));
        if self.random.percent(50) {
            let back = back.map(|after| now + Duration::from_micros(after));
            self.truth.leaves(&device, back);
            self.book.expect(&device, Absence { reason: "it hangs".into(), back }, now);
            self.settle();
        }
        self.truth.serving.remove(&worker);
        self.truth.broke(&batch, &device, now);
        self.truth.tally.recalled += 1;
        let recalled = self.book.recall(key, "it hangs", now);
        assert!(matches!(&recalled[..], [one] if one.items == batch.items), "{recalled:?}");
        assert!(self.book.recall(key, "it hangs", now).is_empty(), "once");
        self.settle();
        self.hung.push((batch, receipt));
        let late = self.random.between(0, 5 * self.pace);
        self.plan(late, Event::Late(self.hung.len() - 1));
        if let Some(back) = back {
            // Not before the thread that hung is gone.
            self.plan(late + back, Event::Return(worker));
        }
    }

    /// Answers go out.
    fn settle(&mut self) {
        let now = self.at();
        for done in self.book.settle().done {
            self.truth.answered(done, now);
        }
    }
}
