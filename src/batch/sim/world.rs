//! One small world per seed: its events in the order of a virtual clock. `made` creates it; in `away`, workers leave and come back.

mod away;
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
        roster::CPU,
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
    /// A worker's call has not returned for too long.
    Recall {
        worker: usize,
        life: usize,
    },
    /// That call returns, long afterwards.
    Late(usize),
    Vanish(usize),
    Return(usize),
    /// A worker that has returned loads its next model.
    Load {
        worker: usize,
        absences: usize,
    },
    /// Something else takes a device's memory, or gives it back.
    Memory(usize),
    Retire(ModelKey),
    Close,
    /// The window of waiting for company ends, or a worker's batches are nearly done.
    Look,
}

struct SimWorker {
    /// None while it is away.
    key: Option<WorkerKey>,
    serves: Vec<ModelKey>,
    /// How many of these it has loaded: one that returns loads them one after the other.
    loaded: usize,
    /// How often it has gone.
    absences: usize,
    /// Its name; several workers may be on one.
    device: Arc<str>,
    /// Rows of the largest batch that its memory holds.
    rows_max: usize,
    /// How many times slower than the model's cost it is.
    slow: u64,
    fails_percent: u64,
    /// Counts batches, so that each has a number of its own.
    life: usize,
    /// As many as this may be on their way at once.
    depth: usize,
    /// Oldest first.
    running: Vec<OnItsWay>,
    /// When it looks again, unless that time has passed: it has one timer.
    looks: u64,
    home: bool,
}

/// A batch in flight, and when it ends if nothing goes wrong.
struct OnItsWay {
    life: usize,
    batch: Arc<Batch>,
    receipt: Receipt,
    ends: u64,
    /// The thread that pushed its job runs it.
    inline: bool,
}

impl SimWorker {
    /// When it ends: mostly after those before it, unless it hangs.
    fn ends(&self, now: u64, takes: u64, in_turn: bool) -> u64 {
        let before = self.running.last().filter(|_| in_turn);
        before.map_or(now, |before| before.ends.max(now)) + takes
    }

    /// Removes one that has ended.
    fn take(&mut self, life: usize) -> Option<OnItsWay> {
        let at = self.running.iter().position(|running| running.life == life)?;
        Some(self.running.remove(at))
    }
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
    /// How many batches hang, in percent, and those that did, until they return after all.
    hangs_percent: u64,
    hung: Vec<(Arc<Batch>, Receipt)>,
    /// Microseconds per batch and per row.
    costs: HashMap<ModelKey, (u64, u64)>,
    to_come: usize,
    pace: u64,
    /// Workers that vanish come back.
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
            // When closed, the queue wakes all workers at every change.
            world.serve();
        }
        let load = world.book.load(world.at());
        world.truth.check_load(&load);
    }
    let now = world.at();
    if !world.comes_back && !world.truth.closed {
        // The last worker may be gone for good: closing ends the jobs that wait for it.
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
            Event::Finish { worker, life } => self.finish(worker, life),
            Event::Recall { worker, life } => self.recall(worker, life),
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
            Event::Load { .. } | Event::Look => {}
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
        if accepted {
            self.inline(model);
        }
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

    /// The thread that pushed a job may run a short batch of it on behalf of a sleeping worker.
    fn inline(&mut self, model: ModelKey) {
        let index = self.random.below(self.workers.len());
        let now = self.at();
        let (worker, asked) = (&self.workers[index], self.truth.serving.get(&index));
        let has_room = worker.running.len() < worker.depth || worker.running.iter().all(|way| way.inline);
        let sleeps = has_room && !worker.home;
        let serves = asked.filter(|(_, serves)| sleeps && serves.contains(&model));
        let (Some(key), Some((device, serves))) = (worker.key, serves.cloned()) else {
            return;
        };
        let inline = self.book.inline(key, model, now);
        self.settle();
        if let Some((batch, receipt)) = inline {
            self.truth.tally.inline += 1;
            self.truth.tally.inline_at_once += usize::from(!self.workers[index].running.is_empty());
            let looked = Looked { device: &device, serves: &serves, own: 0, busy: 0, home: false };
            self.truth.taken(&batch, looked, now);
            self.begin(index, batch, receipt, true);
        }
    }

    /// Every idle worker asks, in a random order.
    fn serve(&mut self) {
        let start = self.random.below(self.workers.len());
        for i in 0..self.workers.len() {
            let index = (start + i) % self.workers.len();
            let worker = &self.workers[index];
            let (Some(key), false) = (worker.key, worker.home) else {
                continue;
            };
            if worker.running.len() >= worker.depth {
                continue;
            }
            let now = self.at();
            let serves = worker.serves[..worker.loaded].to_vec();
            let device = Arc::clone(&worker.device);
            // What it would take for the largest batch, or as long as it may be expected to, behind its batches in flight.
            let costs = serves.iter().map(|key| self.costs[key]);
            let cost = costs.map(|(base, per_row)| base + per_row).max().unwrap_or_default();
            let own = worker.slow * 20 * worker.depth as u64 * cost + 200_000;
            // An overdue batch is expected to need as long again.
            let begun = worker.running.first().map_or(now, |way| way.batch.taken);
            let own = own + now.duration_since(begun).as_micros() as u64;
            self.truth.asks(index, &device, &serves);
            // Whether another size is expensive may change while an engine serves.
            for model in &serves {
                if *device != *CPU && self.random.percent(5) {
                    self.book.keep_size(key, *model, self.random.percent(50));
                }
            }
            let pick = self.book.pick(key, &serves, now);
            self.settle();
            match pick {
                Pick::Run(batch, receipt) => {
                    let looked = Looked { device: &device, serves: &serves, own, busy: 0, home: false };
                    self.truth.taken(&batch, looked, now);
                    self.begin(index, batch, receipt, false);
                }
                Pick::SleepUntil(until) => {
                    let busy = self.workers[index].running.len() as u64;
                    let looked = Looked { device: &device, serves: &serves, own, busy, home: false };
                    self.truth.may_sleep(looked, Some(until), now);
                    assert!(until > now);
                    // On a busy machine it wakes late.
                    let late = self.random.between(0, 4 * self.pace) * u64::from(self.random.percent(50));
                    let after = until.duration_since(now).as_nanos().div_ceil(1000) as u64 + late;
                    let (now, looks) = (self.now, &mut self.workers[index].looks);
                    if !(now + 1..=now + after).contains(looks) {
                        *looks = now + after;
                        self.plan(after, Event::Look);
                    }
                }
                Pick::Sleep => {
                    let looked = Looked { device: &device, serves: &serves, own: 0, busy: 0, home: false };
                    self.truth.may_sleep(looked, None, now);
                }
                // It waits for its batches in flight, and asks again.
                Pick::Closed if !self.workers[index].running.is_empty() => assert!(self.truth.closed),
                Pick::Closed => {
                    assert!(self.truth.closed);
                    let looked = Looked { device: &device, serves: &serves, own: 0, busy: 0, home: true };
                    self.truth.may_sleep(looked, None, now);
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

    fn begin(&mut self, index: usize, batch: Arc<Batch>, receipt: Receipt, inline: bool) {
        let (base, per_row) = self.costs[&batch.model];
        let in_turn = self.random.percent(80);
        let hangs = self.random.percent(self.hangs_percent);
        let worker = &mut self.workers[index];
        let cost = (base + per_row * batch.size as u64) * worker.slow;
        worker.life += 1;
        let (life, ends) = (worker.life, worker.ends(self.now, cost, in_turn));
        self.truth.tally.at_once += usize::from(!worker.running.is_empty());
        worker.running.push(OnItsWay { life, batch, receipt, ends, inline });
        let after = ends - self.now;
        if hangs {
            self.plan(after + 2 * self.pace, Event::Recall { worker: index, life });
        } else {
            self.plan(after, Event::Finish { worker: index, life });
        }
    }

    fn finish(&mut self, worker: usize, life: usize) {
        let fails = self.random.percent(self.workers[worker].fails_percent);
        // A batch that was lost does not end here.
        let Some(OnItsWay { batch, receipt, .. }) = self.workers[worker].take(life) else {
            return;
        };
        let now = self.at();
        let poisoned = batch.parts.iter().any(|part| {
            let mut jobs = self.truth.jobs.iter();
            jobs.any(|job| job.key == part.job && job.poisoned)
        });
        let device = Arc::clone(&self.workers[worker].device);
        let (result, ceiling) = if batch.size > self.workers[worker].rows_max {
            let ceiling = self.truth.too_large(&batch, &device, now);
            (Err(EngineError::OutOfMemory("no room".into())), ceiling)
        } else if fails {
            self.truth.broke(&batch, &device, now);
            (Err(EngineError::Device("it broke".into())), None)
        } else if poisoned {
            self.truth.refused(&batch);
            (Err(EngineError::Input("poison".into())), None)
        } else {
            let ceiling = self.truth.ran(&batch, &device, now);
            (self.echo(&batch), ceiling)
        };
        let aftermath = self.book.finish(&batch, &receipt, result, now).unwrap();
        assert_eq!(aftermath.ceiling, ceiling, "the largest batch on {device} after one of {}", batch.size);
        if fails && self.random.percent(50) {
            self.vanish(worker);
        }
    }

    /// The engine: returns its input, followed by padding.
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
        Ok(Ran {
            outputs: vec![output],
            stage: Duration::ZERO,
            waited: Duration::ZERO,
            compute: self.at() - batch.taken,
        })
    }

    /// Sends the answers.
    fn settle(&mut self) {
        let now = self.at();
        for done in self.book.settle().done {
            self.truth.answered(done, now);
        }
    }
}
