//! How a seed determines a world: models, workers, limits, and the events to come.

use super::{
    super::{Random, truth::Truth},
    Event, SimWorker, World,
};
use crate::batch::{
    ModelKey, Padding, QueuePolicies, Rules,
    book::{Book, QueueLimits},
    roster::CPU,
};
use std::{
    collections::{BinaryHeap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let limits = QueueLimits {
            items_max: random.between(6, 120) as usize,
            bytes_max: random.between(60, 1200) as usize,
        };
        let mut book = Book::new(limits);
        let scale = *random.of(&[1, 1, 1, 60]);
        let (mut models, mut costs) = (HashMap::new(), HashMap::new());
        for i in 0..random.between(1, 3) {
            let sizes: &[&[usize]] = &[&[1], &[1, 2, 4], &[1, 2, 4, 8], &[4], &[3, 5]];
            let whole = random.percent(15);
            let sizes = if whole { &[1] } else { *random.of(sizes) };
            let waits = random.percent(30);
            let wait_max = random.between(1, 200_000) * u64::from(waits);
            let rules = Rules {
                sizes: sizes.to_vec(),
                padding: *random.of(&[Padding::OnGpus, Padding::Everywhere]),
                whole,
                wait_max: Duration::from_micros(wait_max),
                weight: *random.of(&[0.5, 1.0, 1.0, 3.0]),
                queue: QueuePolicies::default(),
            };
            let key = ModelKey(i);
            book.register(key, "model", rules.clone());
            models.insert(key, rules);
            let cost = (random.between(500, 20_000) * scale, random.between(100, 8_000) * scale);
            costs.insert(key, cost);
        }
        let all: Vec<ModelKey> = (0..models.len() as u64).map(ModelKey).collect();
        let mut truth = Truth::new(models, limits);
        let fails_percent = *random.of(&[0, 0, 5, 30]);
        let workers = (0..random.between(1, 3) as usize).map(|i| {
            // The first serves everything, so whatever is accepted can end while it is there.
            let mut serves = all.clone();
            serves.retain(|_| i == 0 || random.percent(60));
            let names = [CPU, "gpu-0", "gpu-1"];
            let device: Arc<str> = (*random.of(&names)).into();
            for model in &all {
                // Never all of them: a device that only stands by is not what a model is meant for.
                if *device == *CPU && random.percent(50) {
                    book.stand_by(*model, &device);
                    truth.standby.insert(*model);
                }
            }
            let key = book.attach(&device);
            SimWorker {
                key: Some(key),
                loaded: serves.len(),
                absences: 0,
                serves,
                device,
                rows_max: usize::MAX,
                slow: *random.of(&[1, 1, 2, 10]),
                fails_percent,
                life: 0,
                depth: *random.of(&[1, 1, 2, 3]),
                running: Vec::new(),
                looks: 0,
                home: false,
            }
        });
        let workers: Vec<SimWorker> = workers.collect();
        if workers.iter().all(|worker| worker.device == workers[0].device) && random.percent(40) {
            // So short that no worker is woken for them. Not beside a faster device: a slow one leaves it the head of a lane only for as
            // long as the slow one would take itself, which is almost no time, and leaves it jobs behind ever more urgent ones until they
            // have aged.
            for cost in costs.values_mut() {
                // Some gain nothing from batching.
                *cost = (random.between(0, 40) * u64::from(random.percent(60)), random.between(1, 20));
            }
        }
        // Few worlds live so long that batches grow again after too little memory, and that the limit is forgotten.
        let is_long = random.percent(1);
        let paces: &[u64] =
            if is_long { &[100_000, 2_000_000, 10_000_000] } else { &[2_000, 20_000, 100_000, 400_000] };
        let mut world = World {
            to_come: if is_long { random.between(300, 600) } else { random.between(5, 45) } as usize,
            pace: *random.of(paces),
            comes_back: random.percent(90),
            random,
            base: Instant::now(),
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            book,
            truth,
            workers,
            hangs_percent: 0,
            hung: Vec::new(),
            costs,
        };
        world.hangs_percent = *world.random.of(&[0, 0, 0, 10]);
        world.plan(0, Event::Arrive);
        let span = world.pace * world.to_come as u64;
        if is_long || world.random.percent(25) {
            // Early in a long life, so that there is time for what follows.
            let until = if is_long { span / 4 } else { span };
            for _ in 0..4 {
                let at = world.random.between(0, until);
                let worker = world.random.below(world.workers.len());
                world.plan(at, Event::Memory(worker));
            }
        }
        if world.random.percent(25) {
            let at = world.random.between(0, span);
            world.plan(at, Event::Close);
        }
        if world.random.percent(20) {
            let at = world.random.between(0, span);
            let model = *world.random.of(&all);
            world.plan(at, Event::Retire(model));
        }
        if world.random.percent(20) {
            let at = world.random.between(0, span);
            let worker = world.random.below(world.workers.len());
            world.plan(at, Event::Vanish(worker));
        }
        world
    }
}
