//! The jobs that wait for a thread of the pool, each for as long as somebody waits for its result.

use super::policy::Order;
use crate::batch::urgency::AGE_STEP;
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

/// What a job does for its request. What is less goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Writes what a model gave. The request ends with it, and what it holds is free.
    Answer,
    /// Reads what a model is to get, by the request's priority, which rises as it does in the lanes of models.
    Request(u8),
}

impl Step {
    /// The level of a job that has waited for `age`; the least is next.
    fn level(self, age: Duration) -> i64 {
        match self {
            Step::Answer => i64::MIN,
            Step::Request(priority) => i64::from(priority) - (age.as_nanos() / AGE_STEP.as_nanos()) as i64,
        }
    }
}

/// It is told how long it has waited.
pub(super) type Job = Box<dyn FnOnce(Duration) + Send>;

/// All that wait.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// There is a job, or there will be no more.
    news: Condvar,
}

#[derive(Default)]
struct State {
    lanes: BTreeMap<Step, Lane>,
    /// Of the job that came last.
    number: u64,
    /// Jobs that were done for nobody.
    in_vain: u64,
    closed: bool,
}

/// Those of one step, in the order in which they came.
#[derive(Default)]
struct Lane {
    jobs: VecDeque<Entry>,
    order: Order,
}

struct Entry {
    number: u64,
    came: Instant,
    job: Job,
}

impl Queue {
    /// Adds a job. It is dropped unless it was taken when what is returned is dropped: it may own a large body, for which nothing is set
    /// aside once the request is over, however long the threads are busy.
    pub(super) fn push(self: &Arc<Queue>, step: Step, job: Job) -> Waiting {
        let mut state = self.state.lock();
        state.number += 1;
        let number = state.number;
        state.lanes.entry(step).or_default().jobs.push_back(Entry { number, came: Instant::now(), job });
        drop(state);
        self.news.notify_one();
        Waiting { queue: Arc::clone(self), step, number }
    }

    /// Waits for the job that is next, and says how long it has waited; `None` once there will be no more.
    pub(super) fn take(&self) -> Option<(Job, Duration)> {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let age = |entry: &Entry| now.saturating_duration_since(entry.came);
            let front = |(step, lane): (&Step, _)| {
                let Lane { jobs, .. }: &Lane = lane;
                jobs.front().map(|entry| (step.level(age(entry)), *step))
            };
            if let Some((_, step)) = state.lanes.iter().filter_map(front).min()
                && let Some(Lane { jobs, order }) = state.lanes.get_mut(&step)
            {
                let age = |index: usize| age(&jobs[index]);
                // Answers have been paid for.
                let next = if step == Step::Answer { 0 } else { order.next(jobs.len(), age) };
                return jobs.remove(next).map(|entry| (entry.job, now.saturating_duration_since(entry.came)));
            }
            if state.closed {
                return None;
            }
            self.news.wait(&mut state);
        }
    }

    /// A job that had waited for `age` was done for nobody.
    pub(super) fn was_in_vain(&self, step: Step, age: Duration) {
        let mut state = self.state.lock();
        state.in_vain += 1;
        if let Some(lane) = state.lanes.get_mut(&step) {
            lane.order.given_up(age);
        }
    }

    /// How many jobs were done for nobody.
    pub(super) fn in_vain(&self) -> u64 {
        self.state.lock().in_vain
    }

    /// Lets the threads end when nothing is left to do.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.news.notify_all();
    }
}

/// A job's place in the queue, kept by whoever waits for its result.
pub(super) struct Waiting {
    queue: Arc<Queue>,
    step: Step,
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        let Some(Lane { jobs, order }) = state.lanes.get_mut(&self.step) else { return };
        let Ok(index) = jobs.binary_search_by_key(&self.number, |entry| entry.number) else { return };
        let left = jobs.remove(index);
        if let Some(entry) = &left {
            order.given_up(entry.came.elapsed());
        }
        drop(state);
        // Not under the lock: what the job owns may take a while to go.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::{
        super::{
            DecodePool,
            tests::{READ, busy},
        },
        *,
    };
    use crate::{
        http::admission::{Admission, AdmissionLimits, charged},
        image::Limits,
    };
    use std::sync::mpsc;

    fn one_thread() -> DecodePool {
        let limits = Limits { side_max: 8, pixels_max: 64, frames_max: 1 };
        DecodePool::new(1, 100, limits).unwrap()
    }

    #[tokio::test]
    async fn answers_go_first_and_then_the_most_urgent_in_the_order_in_which_they_came() {
        let pool = one_thread();
        let (release, _first) = busy(&pool).await;
        let (done, order) = mpsc::channel();
        let steps = [2, 1, 2, 0, 1].map(Step::Request).into_iter().chain([Step::Answer; 2]);
        let mut others: Vec<_> = steps
            .enumerate()
            .map(|(number, step)| {
                let done = done.clone();
                Box::pin(pool.run(step, move || done.send(number)))
            })
            .collect();
        for other in &mut others {
            assert!(futures_util::poll!(other).is_pending());
        }
        release.send(()).unwrap();
        futures_util::future::join_all(others).await;
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [5, 6, 3, 1, 4, 0, 2]);
    }

    #[tokio::test]
    async fn what_is_done_for_nobody_is_counted() {
        let pool = one_thread();
        let ((begin, begun), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
        let work = move || {
            begin.send(()).unwrap();
            released.recv().is_ok()
        };
        let mut left = Box::pin(pool.run(READ, work));
        assert!(futures_util::poll!(&mut left).is_pending());
        begun.recv().unwrap();
        let mut waits = Box::pin(pool.run(READ, || ()));
        assert!(futures_util::poll!(&mut waits).is_pending());
        // One runs, and one has not begun.
        drop((left, waits));
        release.send(()).unwrap();
        assert_eq!((pool.run(READ, || 7).await, pool.in_vain()), (Ok(7), 1));
    }

    #[tokio::test]
    async fn what_waits_goes_with_whoever_waits_for_it_while_the_threads_are_busy() {
        let pool = one_thread();
        let (release, first) = busy(&pool).await;
        let body = Arc::new(());
        let owned = Arc::clone(&body);
        let mut second = Box::pin(pool.run(READ, move || drop(owned)));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert_eq!((Arc::strong_count(&body), pool.jobs()), (2, 2));
        drop(second);
        assert_eq!((Arc::strong_count(&body), pool.jobs()), (1, 1));
        release.send(()).unwrap();
        assert_eq!(first.await, Ok(true));
        assert_eq!(pool.run(READ, || 7).await, Ok(7));
    }

    #[tokio::test]
    async fn what_was_begun_keeps_what_is_set_aside_for_it_to_its_end() {
        let pool = one_thread();
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: 100 };
        let admission = Admission::new(limits);
        let permit = Arc::new(admission.admit().unwrap());
        permit.cover(60).unwrap();
        let (begin, begun) = mpsc::channel::<()>();
        let (release, released) = mpsc::channel::<()>();
        let work = move || {
            begin.send(()).unwrap();
            released.recv().is_ok()
        };
        let mut asked = Box::pin(pool.run(READ, charged(Some(&permit), work)));
        assert!(futures_util::poll!(&mut asked).is_pending());
        begun.recv_timeout(Duration::from_secs(10)).unwrap();
        drop((asked, permit));
        let now = admission.in_flight();
        assert_eq!((now.requests, now.bytes), (1, 60));
        release.send(()).unwrap();
        // Behind it, on the one thread that there is.
        assert_eq!(pool.run(READ, || 7).await, Ok(7));
        let now = admission.in_flight();
        assert_eq!((now.requests, now.bytes), (0, 0));
    }
}
