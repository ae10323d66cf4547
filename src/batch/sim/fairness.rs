//! Models that never run out of work, and the device time that each gets.

use super::{Random, truth::tagged};
use crate::batch::{
    Batch, Job, ModelKey, Ran, Rules,
    book::{Book, Pick, QueueLimits, Receipt, WorkerKey},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Runs one seed; returns the largest difference between two models, as a part of the allowed one.
///
/// Allowed between models a and b, in seconds of compute per weight: (workers + 1) × (longest batch of a / weight of
/// a + longest batch of b / weight of b). One such sum is what start-time fair queueing promises on one server; each
/// worker adds the batches that run there, charged by an estimate.
pub(super) fn run(seed: u64) -> f64 {
    let mut random = Random::new(seed);
    let limits = QueueLimits { items_max: 10_000, bytes_max: 1_000_000 };
    let mut book = Book::new(limits);
    let base = Instant::now();
    let models: Vec<(ModelKey, f64, u64, u8)> = (0..random.between(2, 3))
        .map(|i| {
            let weight = *random.of(&[0.5, 1.0, 2.0, 4.0]);
            let size = *random.of(&[1, 4, 8]);
            let rules = Rules { weight, ..Rules::plain(&[size]) };
            book.register(ModelKey(i), "model", rules);
            // Priority must not change a model's share of the device.
            let priority = *random.of(&[0, 9]);
            (ModelKey(i), weight, random.between(1, 300), priority)
        })
        .collect();
    let keys: Vec<ModelKey> = models.iter().map(|model| model.0).collect();
    let workers: Vec<_> = (0..random.between(1, 3)).map(|_| book.attach(&"gpu".into())).collect();

    let mut served = vec![0.0; models.len()];
    let mut worst = 0.0_f64;
    let mut running: Vec<(u64, WorkerKey, Arc<Batch>, Receipt)> = Vec::new();
    let mut now = 0;
    for _ in 0..60 {
        let at = base + Duration::from_millis(now);
        for &(key, _, _, priority) in &models {
            let load = book.load(at);
            let items = load.models.iter().find(|load| load.key == key).map_or(0, |load| load.items);
            for _ in items..40 {
                let inputs = vec![tagged(0, vec![1, 8], 1)];
                let job = Job { priority, ..Job::plain(key, inputs, 1, at) };
                book.push(job, at).unwrap();
            }
        }
        for &worker in &workers {
            if running.iter().any(|(_, busy, ..)| *busy == worker) {
                continue;
            }
            let Pick::Run(batch, receipt) = book.pick(worker, &keys, at) else {
                panic!("a worker has nothing to do while models are saturated");
            };
            // Batches of one model differ a little in length.
            let longest = models[batch.model.0 as usize].2;
            let end = now + random.between(longest.div_ceil(2), longest);
            running.push((end, worker, batch, receipt));
        }
        let next = (0..running.len()).min_by_key(|&i| running[i].0).unwrap();
        let (end, _, batch, receipt) = running.swap_remove(next);
        now = end;
        let at = base + Duration::from_millis(now);
        let compute = at - batch.taken;
        served[batch.model.0 as usize] += compute.as_secs_f64();
        let rows = tagged(0, vec![batch.size, 8], batch.size);
        let ran = Ran { outputs: vec![rows], stage: Duration::ZERO, waited: Duration::ZERO, compute };
        book.finish(&batch, &receipt, Ok(ran), at).unwrap();
        book.settle();

        for (i, a) in models.iter().enumerate() {
            for (j, b) in models.iter().enumerate().skip(i + 1) {
                let difference = (served[i] / a.1 - served[j] / b.1).abs();
                let longest = a.2 as f64 / 1000.0 / a.1 + b.2 as f64 / 1000.0 / b.1;
                let allowed = (workers.len() + 1) as f64 * longest;
                assert!(
                    difference <= allowed,
                    "{difference:.3} s apart, {allowed:.3} s allowed: {models:?} got {served:?}"
                );
                worst = worst.max(difference / allowed);
            }
        }
    }
    worst
}
