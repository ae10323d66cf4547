//! Workers that leave, because they vanish or hang, and come back with one model after the other.

use super::{Event, OnItsWay, SimWorker, World};
use crate::{batch::roster::Absence, engine::EngineError};
use std::{sync::Arc, time::Duration};

impl World {
    /// A worker that has returned gets another model, or can get no more; with the last one, it says so.
    pub(super) fn load(&mut self, index: usize) {
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

    pub(super) fn vanish(&mut self, worker: usize) {
        let Some(key) = self.workers[worker].key.take() else {
            return;
        };
        self.workers[worker].absences += 1;
        let now = self.at();
        let running = std::mem::take(&mut self.workers[worker].running);
        let mut detach = Some(key).filter(|_| self.random.percent(50));
        let device = Arc::clone(&self.workers[worker].device);
        let back = self.announced(&device, "it is being mended");
        if detach.is_none() {
            self.truth.serving.remove(&worker);
            self.book.detach(key, now);
            self.settle();
        }
        for OnItsWay { batch, receipt, .. } in running {
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

    /// After how long a worker that leaves comes back, if it does; the device's keeper may have announced it.
    fn announced(&mut self, device: &Arc<str>, reason: &str) -> Option<u64> {
        let back = self.comes_back.then(|| self.random.between(0, 5 * self.pace));
        if self.random.percent(50) {
            let now = self.at();
            let at = back.map(|after| now + Duration::from_micros(after));
            self.truth.leaves(device, at);
            self.book.expect(device, Absence { reason: reason.into(), back: at }, now);
            self.settle();
        }
        back
    }

    /// A worker is found to hang: its batches go to others, and another worker takes its place once it has gone.
    pub(super) fn recall(&mut self, worker: usize, life: usize) {
        let SimWorker { key, running, device, absences, .. } = &mut self.workers[worker];
        if running.iter().all(|running| running.life != life) {
            return;
        }
        let (Some(key), running) = (key.take(), std::mem::take(running)) else { return };
        let device = Arc::clone(device);
        *absences += 1;
        let now = self.at();
        let back = self.announced(&device, "it hangs");
        self.truth.serving.remove(&worker);
        for running in &running {
            self.truth.broke(&running.batch, &device, now);
        }
        self.truth.tally.recalled += 1;
        let recalled = self.book.recall(key, "it hangs", now);
        let items = running.iter().map(|running| running.batch.items);
        assert!(recalled.iter().map(|one| one.items).eq(items), "{recalled:?}");
        assert!(self.book.recall(key, "it hangs", now).is_empty(), "once");
        self.settle();
        let late = self.random.between(0, 5 * self.pace);
        for OnItsWay { batch, receipt, .. } in running {
            self.hung.push((batch, receipt));
            self.plan(late, Event::Late(self.hung.len() - 1));
        }
        if let Some(back) = back {
            // Not before the hung thread is gone.
            self.plan(late + back, Event::Return(worker));
        }
    }
}
