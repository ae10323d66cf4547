//! What the pool does next, whether a JPEG is decoded by it or on a GPU, and how many files of a request are decoded at once. Pure.

use std::time::Duration;

/// Which of the jobs that wait is next.
///
/// The oldest, as long as callers wait for theirs. If more comes than the threads can do, and callers have little patience (a deadline, or
/// they hang up), the oldest is always the one that is about to be given up: all work would be done in vain. So where many are given up,
/// those come first that have waited for less than half as long as others did before they were given up. Callers with more patience then
/// have one in [`TURNS_OF_ALL`] of the turns.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The part of the last jobs that was given up, weighted.
    given_up: f64,
    /// Seconds after which they were.
    patience: f64,
    is_overloaded: bool,
    turns: u64,
}

/// Weight of a job in the part that is given up, and of one that was in the patience.
const NEW_WEIGHT: f64 = 0.05;
/// Callers who cancel for reasons of their own change nothing.
const OVERLOADED_FROM: f64 = 0.1;
const OVERLOADED_UNTIL: f64 = 0.02;
/// Of so many jobs, one is the oldest of all.
const TURNS_OF_ALL: u64 = 16;

impl Order {
    /// The index of the next of `count` jobs, at least one, in the order in which they came; `age` tells how long each has waited.
    pub(super) fn next(&mut self, count: usize, age: impl Fn(usize) -> Duration) -> usize {
        self.count(0.0);
        self.turns += 1;
        if !self.is_overloaded || self.turns.is_multiple_of(TURNS_OF_ALL) {
            return 0;
        }
        // The first that is fresh, or the youngest.
        let (mut from, mut until) = (0, count - 1);
        while from < until {
            let middle = usize::midpoint(from, until);
            match age(middle).as_secs_f64() > self.patience / 2.0 {
                true => from = middle + 1,
                false => until = middle,
            }
        }
        from
    }

    /// A job was given up that had waited for so long, or was done in vain after that.
    pub(super) fn given_up(&mut self, age: Duration) {
        self.count(1.0);
        let age = age.as_secs_f64();
        self.patience += if self.patience == 0.0 { age } else { NEW_WEIGHT * (age - self.patience) };
    }

    fn count(&mut self, given_up: f64) {
        self.given_up += NEW_WEIGHT * (given_up - self.given_up);
        let from = if self.is_overloaded { OVERLOADED_UNTIL } else { OVERLOADED_FROM };
        self.is_overloaded = self.given_up > from;
    }
}

/// How busy both are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    /// Threads of the pool.
    pub(super) threads: usize,
    /// Jobs that wait for them or run on them.
    pub(super) in_pool: usize,
    /// Files that wait for the GPU or are being decoded there; `None` without a GPU for this.
    pub(super) on_gpu: Option<usize>,
    /// Files that it decodes at once.
    pub(super) batch: usize,
}

/// Batches that may wait for the GPU: one that is decoded and one that gathers meanwhile.
const BATCHES_WAITING_MAX: usize = 2;

/// The pool is the bottleneck when each of its threads has another image waiting behind its current one: a newcomer would wait for longer
/// than an image takes. Then the GPU takes it, unless the GPU is full as well.
pub(super) fn is_for_gpu(load: &Load) -> bool {
    let waits = load.in_pool >= 2 * load.threads;
    waits && load.on_gpu.is_some_and(|waiting| waiting < BATCHES_WAITING_MAX * load.batch)
}

/// The most files of one request that may be decoded at once or wait for that: all threads are busy with it, and have another file each
/// behind the current one; with a GPU, that is full as well. More would only have the files of other requests wait for longer.
pub(super) fn files_of_request(threads: usize, gpu_batch: Option<usize>) -> usize {
    2 * threads + gpu_batch.map_or(0, |batch| BATCHES_WAITING_MAX * batch)
}

/// The most steps of files of several frames that the threads do at once.
pub(super) fn steps_at_once(threads: usize) -> usize {
    (threads - threads.div_ceil(4)).max(1)
}

/// The most work at once that may keep a thread for long, such as files of slow formats: half of the threads are left to
/// others, at least one where there are several.
pub(super) fn slow_at_once(threads: usize) -> usize {
    (threads / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn check(in_pool: usize, on_gpu: Option<usize>) -> bool {
        is_for_gpu(&Load { threads: 4, in_pool, on_gpu, batch: 8 })
    }

    /// Jobs done in time per second by one thread that takes 10 ms for each, of jobs that come `rate` times a second and are given up
    /// after `patience` ms.
    fn in_time(rate: u32, patience: u64) -> f64 {
        let ms = Duration::from_millis;
        let (mut order, mut waiting) = (Order::default(), VecDeque::new());
        let (every, end) = (Duration::from_secs(1) / rate, Duration::from_secs(20));
        let (mut now, mut comes, mut done) = (Duration::ZERO, Duration::ZERO, 0);
        while now < end {
            while comes <= now {
                waiting.push_back(comes);
                comes += every;
            }
            while let Some(came) = waiting.pop_front_if(|came| now - *came >= ms(patience)) {
                order.given_up(now - came);
            }
            let Some(last) = waiting.len().checked_sub(1) else {
                now = comes;
                continue;
            };
            let next = order.next(last + 1, |index| now - waiting[index]);
            let came = waiting.remove(next).unwrap();
            let begun = now;
            now += ms(10);
            match now - came <= ms(patience) {
                // The first ten seconds count for nothing.
                true => done += u32::from(begun >= end / 2),
                false => order.given_up(begun - came),
            }
        }
        f64::from(done) / (end / 2).as_secs_f64()
    }

    #[test]
    fn however_much_more_comes_than_can_be_done_the_threads_work_for_callers_who_still_wait() {
        for patience in [100, 500, 2000] {
            for rate in [50, 90, 101, 105, 120, 200, 1000] {
                let done = in_time(rate, patience);
                println!("{rate} a second of callers who wait for {patience} ms: {done} are done in time");
                // One in sixteen is the oldest, whose caller may leave meanwhile.
                assert!(done >= 0.9 * f64::from(rate.min(100)), "{rate} {patience}: {done}");
            }
        }
    }

    #[test]
    fn callers_who_wait_are_answered_in_the_order_in_which_they_came() {
        let mut order = Order::default();
        let age = |index: usize| Duration::from_secs(100 - index as u64);
        for round in 0..1000 {
            assert_eq!(order.next(50, age), 0);
            // Now and then one leaves for a reason of its own.
            if round % 40 == 0 {
                order.given_up(Duration::from_millis(1));
            }
        }
        // All who still wait, if nobody leaves any more.
        (0..100).for_each(|_| order.given_up(Duration::from_secs(10)));
        assert!(
            order.next(3, |index| Duration::from_secs([20, 8, 3][index])) == 2,
            "the first that has time"
        );
        assert!(order.next(2, |index| Duration::from_secs([20, 8][index])) == 1, "the youngest");
        let turns: Vec<_> =
            (0..200).map(|_| order.next(2, |index| Duration::from_secs([20, 8][index]))).collect();
        let later = turns.iter().rposition(|next| *next == 1).expect("others went first");
        assert!(later < 150 && turns[..later].contains(&0), "{turns:?}");
    }

    #[test]
    fn a_pool_that_keeps_up_decodes_everything() {
        for in_pool in 0..8 {
            assert!(!check(in_pool, Some(0)), "{in_pool}");
        }
    }

    #[test]
    fn the_gpu_helps_a_pool_that_has_more_to_do_than_its_threads_are_at() {
        assert!(check(8, Some(0)));
        assert!(check(1000, Some(15)));
    }

    #[test]
    fn a_gpu_with_its_hands_full_gets_no_more() {
        assert!(!check(1000, Some(16)));
    }

    #[test]
    fn one_request_can_fill_the_pool_and_the_gpu() {
        assert_eq!(files_of_request(4, None), 8);
        let waiting = files_of_request(4, Some(8)) - 8;
        assert!(check(8, Some(waiting - 1)));
        assert!(!check(8, Some(waiting)));
    }

    #[test]
    fn files_of_several_frames_leave_a_quarter_of_the_threads_to_others() {
        let left = [1, 2, 3, 4, 8, 9, 16].map(|threads| threads - steps_at_once(threads));
        assert_eq!(left, [0, 1, 1, 1, 2, 3, 4]);
    }

    #[test]
    fn slow_work_leaves_half_of_the_threads_to_others() {
        let left = [1, 2, 3, 4, 9].map(|threads| threads - slow_at_once(threads));
        assert_eq!(left, [0, 1, 2, 2, 5]);
    }

    #[test]
    fn without_a_gpu_the_pool_does_it_all() {
        assert!(!check(1000, None));
    }
}
