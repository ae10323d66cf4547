//! Decides what a free worker does, from what waits in a lane, the time and the limits. Pure: no clock, no lock.
//!
//! Work-conserving: what waits runs at once, up to the largest batch, padded to the smallest size that holds it. Only a model with a
//! `wait_max` lets a batch that is not full wait for company: at most until the arrival of its oldest job plus `wait_max`, and never so
//! long that one of its deadlines would be missed. Jobs that came back from a failed batch have waited already, or had company, so they
//! do not wait again.
//!
//! On a CPU, where twice the items mostly take twice the time, a batch takes no more of what waits than pays ([`Takes::WhatPays`]): the
//! first answers come sooner, and the last ones no later.
//!
//! Where several devices serve a model, the fastest gets as much work as it can keep up with. A slower device leaves it the jobs that the
//! slower one would not finish first ([`help`]), but no longer than the slower device would have taken to run them.

use super::{Rules, lanes::Front, largest, padded, rates::Costs};
use std::time::{Duration, Instant};

/// What a free worker does with a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Run this many rows, padded to this size.
    Run {
        /// Rows to take.
        items: usize,
        /// Size to pad to.
        size: usize,
    },
    /// Ask again then, or when more arrives.
    SleepUntil(Instant),
}

/// How many of the waiting items a batch takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// All.
    All,
    /// All, unless two smaller batches were measured to take less time than one that is padded.
    WithoutWaste,
    /// As few as possible, as long as larger batches were not measured to take notably less time per item.
    WhatPays,
}

/// Two smaller batches together must take at most this part of the time of one padded batch: smaller gains are measurement noise.
const SPLIT_GAIN: f64 = 0.9;

/// An item may take this many times as long in a smaller batch as in the best one, since its answer comes sooner.
const DEARER_MAX: f64 = 1.02;

/// The size that the last batch had is kept to while an item takes no more than this many times as long as in the best one. Sizes that
/// cost about the same would take turns otherwise: a job that waits behind a small batch would then end with a large one.
const KEPT: f64 = 1.05;

/// The search for a smaller batch ends at a size at which an item takes more than this many times as long as in the best one.
const DEAR: f64 = 1.1;

/// What a batch costs beyond its measured time: a worker and a caller wake, with a lock between them.
const HAND_OVER_SECONDS: f64 = 30e-6;

/// Decides what to do with the front of a lane. `sizes` are those of the model's sizes that may be run. A model with a `wait_max` takes
/// all that waits, whatever `takes` says.
pub fn decide(
    rules: &Rules,
    sizes: &[usize],
    takes: Takes,
    front: &Front,
    costs: &Costs,
    now: Instant,
) -> Next {
    let largest = largest(sizes);
    let items = front.items.min(largest);
    if items < largest && !front.shut && !front.again && !rules.wait_max.is_zero() {
        let until = company_until(rules, sizes, front, costs);
        if now < until {
            return Next::SleepUntil(until);
        }
    }
    let items = match takes {
        _ if !rules.wait_max.is_zero() => items,
        Takes::All => items,
        Takes::WithoutWaste => without_waste(sizes, items, costs, now),
        Takes::WhatPays if front.jobs == 1 && is_short(sizes, items, costs, now) => items,
        Takes::WhatPays => what_pays(sizes, items, costs, now),
    };
    Next::Run { items, size: padded(sizes, items) }
}

/// What a device compares when a faster one serves the model as well.
#[derive(Clone, Copy)]
pub struct Rival<'a> {
    /// Seconds until a batch of the given size, if taken now, would end on this device.
    pub own: &'a dyn Fn(usize) -> f64,
    /// Seconds until the faster device has run all that waits for it, if it gets all of it.
    pub rival: f64,
}

/// How many of `items` to run here: as many as end before the faster device could have run all that waits. If not even one would, as many
/// as fill a batch that takes no longer here than the oldest of them has waited: the faster device is slower than expected then.
pub fn help(sizes: &[usize], items: usize, front: &Front, rival: Rival<'_>, now: Instant) -> Next {
    let Rival { own, rival } = rival;
    let ends_first = |size: usize| own(size) < rival;
    let size = padded(sizes, items);
    if ends_first(size) {
        return Next::Run { items, size };
    }
    let smaller = sizes.iter().copied().filter(|smaller| *smaller < items);
    if let Some(size) = smaller.rev().find(|smaller| ends_first(*smaller)) {
        return Next::Run { items: size, size };
    }
    let left_until = |size| front.pushed + Duration::from_secs_f64(own(size).clamp(0.0, LEAVE_SECONDS_MAX));
    let late = |batch: &usize| left_until(*batch) <= now;
    match sizes.iter().copied().filter(|batch| *batch <= size).rfind(late) {
        Some(size) => Next::Run { items: items.min(size), size },
        None => Next::SleepUntil(left_until(padded(sizes, 1))),
    }
}

/// Work is left to a faster device no longer than this, however slow this one is.
const LEAVE_SECONDS_MAX: f64 = 10.0;

/// What waking a worker and sending an answer may take on a busy machine.
const DEADLINE_MARGIN: Duration = Duration::from_millis(10);

/// When to stop waiting for company. The earliest of: the end of the window; [`DEADLINE_MARGIN`] before a job's patience ends; that
/// margin and two batch times before the first deadline (one for a batch that may be running). For a size that was not measured, the last
/// is halfway between the oldest arrival and that deadline.
fn company_until(rules: &Rules, sizes: &[usize], front: &Front, costs: &Costs) -> Instant {
    let begun = front.patience.map(|until| until.checked_sub(DEADLINE_MARGIN).unwrap_or(until));
    let end = begun.into_iter().fold(front.oldest + rules.wait_max, Instant::min);
    let Some(deadline) = front.deadline else {
        return end;
    };
    let cost = costs.measured(padded(sizes, front.items));
    let start = cost
        .and_then(|seconds| Duration::try_from_secs_f64(2.0 * seconds).ok())
        .and_then(|duration| deadline.checked_sub(duration + DEADLINE_MARGIN));
    let unmeasured = || front.oldest + deadline.saturating_duration_since(front.oldest) / 2;
    end.min(start.unwrap_or_else(unmeasured))
}

/// How many of `items` to take: all of them, padded up, unless by recent measurements filling the next lower size and running the rest
/// after it takes less device time in total. Then the first jobs end sooner and the last ones no later.
fn without_waste(sizes: &[usize], items: usize, costs: &Costs, now: Instant) -> usize {
    let upper = padded(sizes, items);
    let Some(&lower) = sizes.iter().rfind(|&&size| size < items) else {
        return items;
    };
    if upper <= items {
        return items;
    }
    let rest = padded(sizes, items - lower);
    let cost = |size| costs.undisturbed(size, now);
    let (Some(one), Some(first), Some(second)) = (cost(upper), cost(lower), cost(rest)) else {
        return items;
    };
    if first + second <= SPLIT_GAIN * one { lower } else { items }
}

/// A job that arrives while a batch of at most this length runs does not wait for long.
const SHORT_SECONDS: f64 = 1e-3;

/// Whether all of `items` end so soon that a job which waits alone is not split: its own answer would come no sooner.
fn is_short(sizes: &[usize], items: usize, costs: &Costs, now: Instant) -> bool {
    costs.undisturbed(padded(sizes, items), now).is_some_and(|seconds| seconds <= SHORT_SECONDS)
}

/// How many of `items` to run: the smallest size at which an item takes hardly more time than at the best, or the last one if it is not
/// much dearer. Looks from the largest filled size down to where items become dear. A size in that range without a recent measurement is
/// run, to be measured.
fn what_pays(sizes: &[usize], items: usize, costs: &Costs, now: Instant) -> usize {
    let each = |size| Some((costs.undisturbed(size, now)? + HAND_OVER_SECONDS) / size as f64);
    let mut filled = sizes.iter().copied().filter(|&size| size <= items).rev();
    let Some(mut best) = filled.next().and_then(each) else {
        return items;
    };
    let mut taken = items;
    for size in filled {
        match each(size) {
            None => return size,
            Some(cost) if cost > DEAR * best => break,
            Some(cost) => {
                best = best.min(cost);
                taken = if cost <= DEARER_MAX * best { size } else { taken };
            }
        }
    }
    let is_kept = |&size: &usize| size <= items && each(size).is_some_and(|cost| cost <= KEPT * best);
    costs.chosen().filter(is_kept).unwrap_or(taken)
}

/// The longest time for inline batches: a thread that pushes a job runs its batch, and waits for those ahead of it, instead of its other
/// work.
const INLINE_SECONDS_MAX: f64 = 400e-6;

/// A size is not run inline either if one of its last few batches took longer than this: something delays them, or they vary. Where all
/// cores are busy, another thread's turn of a few milliseconds is within it.
const HELD_UP_SECONDS_MAX: f64 = 10e-3;

/// If jobs arrive less than this after a batch ends, a worker should run them: those that arrive while it wakes form one batch, which
/// mostly costs less per job than running them one by one.
const COMPANY_SECONDS: f64 = 60e-6;

/// Whether jobs that arrive `gap` seconds apart may be run one by one, however much batching would gain.
pub fn are_apart(gap: f64) -> bool {
    gap > COMPANY_SECONDS
}

/// Whether no larger size, of those measured lately, takes less time per item than this one.
pub fn gains_nothing(sizes: &[usize], size: usize, costs: &Costs, now: Instant) -> bool {
    let each = |size| Some(costs.undisturbed(size, now)? / size as f64);
    let Some(own) = each(size) else {
        return false;
    };
    let mut larger = sizes.iter().copied().filter(|&larger| larger > size).peekable();
    if larger.peek().is_none() {
        return true;
    }
    let best = larger.filter_map(each).fold(f64::INFINITY, f64::min);
    best.is_finite() && own <= best
}

/// Whether a batch of this size runs inline, without waking a worker, where jobs arrive `gap` seconds apart and the worker has `running`
/// batches. All of these together must be short. In addition, either none runs and this one ends well before the next job arrives, or a
/// larger batch would gain nothing.
pub fn is_inline(
    sizes: &[usize],
    size: usize,
    costs: &Costs,
    gap: f64,
    running: usize,
    now: Instant,
) -> bool {
    let Some(seconds) = costs.undisturbed(size, now) else {
        return false;
    };
    (running + 1) as f64 * seconds <= INLINE_SECONDS_MAX
        && costs.longest(size).is_some_and(|seconds| seconds <= HELD_UP_SECONDS_MAX)
        && ((running == 0 && seconds + COMPANY_SECONDS <= gap) || gains_nothing(sizes, size, costs, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn rules(sizes: &[usize], wait_max: Duration) -> Rules {
        Rules { wait_max, ..Rules::plain(sizes) }
    }

    /// A lane of items that came together.
    fn pushed_at(pushed: Instant, items: usize) -> Front {
        Front {
            items,
            jobs: items,
            oldest: pushed,
            pushed,
            again: false,
            deadline: None,
            patience: None,
            shut: false,
        }
    }

    /// 10 ms after the oldest of `items` arrived, with sizes 1, 2, 4 and 8: (items, size) to run, or how long after that
    /// arrival to ask again.
    fn check(
        items: usize,
        wait_ms: u32,
        change: impl Fn(&mut Front),
        costs: &[(usize, f64)],
    ) -> Result<(usize, usize), Duration> {
        let oldest = Instant::now();
        let rules = rules(&[1, 2, 4, 8], MS * wait_ms);
        let mut front = pushed_at(oldest, items);
        change(&mut front);
        let mut measured = Costs::default();
        for &(size, seconds) in costs {
            for _ in 0..8 {
                measured.record(size, seconds, oldest);
            }
        }
        match decide(&rules, &rules.sizes, Takes::WithoutWaste, &front, &measured, oldest + 10 * MS) {
            Next::Run { items, size } => Ok((items, size)),
            Next::SleepUntil(at) => Err(at - oldest),
        }
    }

    fn costs_of(measured: &[(usize, f64)], now: Instant) -> Costs {
        let mut costs = Costs::default();
        measured.iter().for_each(|&(size, seconds)| (0..4).for_each(|_| costs.record(size, seconds, now)));
        costs
    }

    #[test]
    fn nobody_is_woken_for_a_short_batch_that_ends_long_before_the_next_job_comes() {
        let now = Instant::now();
        let is_inline = |costs: &Costs, gap: f64| is_inline(&[1, 2, 4], 2, costs, gap, 0, now);
        let inline = |seconds: f64, times: usize, gap: f64| {
            let mut costs = Costs::default();
            (0..times).for_each(|_| costs.record(2, seconds, now));
            is_inline(&costs, gap)
        };
        assert!(inline(400e-6, 4, 461e-6));
        assert!(!inline(401e-6, 4, 1.0), "it is long");
        assert!(!inline(10e-6, 3, 1.0), "it may be longer, mostly");
        assert!(inline(10e-6, 4, 71e-6) && !inline(10e-6, 4, 69e-6), "others come meanwhile");
        assert!(!is_inline(&Costs::default(), 1.0));
        assert!(are_apart(61e-6) && !are_apart(59e-6));
        let last = |longest: f64| {
            let mut costs = Costs::default();
            [10e-6, longest, 10e-6, 10e-6].into_iter().for_each(|seconds| costs.record(2, seconds, now));
            costs
        };
        assert!(is_inline(&last(10e-3), 1.0) && !is_inline(&last(11e-3), 1.0), "they are not alike");
        let mut passed = last(11e-3);
        (0..4).for_each(|_| passed.record(2, 10e-6, now));
        assert!(is_inline(&passed, 1.0));
    }

    #[test]
    fn nor_for_one_that_gains_nothing_from_company_however_soon_the_next_comes_and_as_many_at_once_as_are_short()
     {
        let now = Instant::now();
        let inline = |measured: &[(usize, f64)], running| {
            is_inline(&[1, 2, 4], 1, &costs_of(measured, now), 0.0, running, now)
        };
        assert!(inline(&[(1, 20e-6), (2, 40e-6), (4, 90e-6)], 0));
        assert!(!inline(&[(1, 20e-6), (2, 40e-6), (4, 79e-6)], 0), "four cost less");
        assert!(!inline(&[(1, 20e-6)], 0), "what others cost is not known");
        assert!(inline(&[(1, 20e-6), (2, 40e-6)], 19), "400 us in all");
        assert!(!inline(&[(1, 20e-6), (2, 40e-6)], 20), "420 us in all");
        let costs = costs_of(&[(1, 20e-6), (2, 40e-6)], now);
        let later = now + Duration::from_secs(11);
        assert!(!gains_nothing(&[1, 2], 1, &costs, later), "that was long ago");
        assert!(
            gains_nothing(&[1], 1, &costs, now) && !gains_nothing(&[1], 1, &Costs::default(), now),
            "there are no larger ones"
        );
        assert!(
            !is_inline(&[1, 2], 1, &costs_of(&[(1, 20e-6), (2, 38e-6)], now), 1.0, 1, now),
            "another runs"
        );
    }

    fn deadline(ms: u32) -> impl Fn(&mut Front) {
        move |front| front.deadline = Some(front.oldest + MS * ms)
    }

    #[test]
    fn what_waits_runs_at_once_padded_to_the_next_size() {
        for (items, size) in [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8)] {
            assert_eq!(check(items, 0, |_| {}, &[]), Ok((items, size)));
        }
        assert_eq!(check(9, 0, |_| {}, &[]), Ok((8, 8)));
    }

    #[test]
    fn a_batch_that_is_not_full_waits_for_company_no_longer_than_wait_max() {
        assert_eq!(check(7, 30, |_| {}, &[]), Err(30 * MS));
        assert_eq!(check(7, 10, |_| {}, &[]), Ok((7, 8)));
        assert_eq!(check(8, 30, |_| {}, &[]), Ok((8, 8)));
    }

    #[test]
    fn nobody_waits_for_company_that_may_not_join() {
        assert_eq!(check(3, 30, |front| front.shut = true, &[]), Ok((3, 4)));
    }

    #[test]
    fn what_came_back_from_a_batch_that_failed_does_not_wait_for_company_again() {
        assert_eq!(check(3, 30, |front| front.again = true, &[]), Ok((3, 4)));
    }

    #[test]
    fn waiting_for_company_leaves_time_for_the_deadline() {
        assert_eq!(check(3, 30, deadline(36), &[(4, 0.005)]), Err(16 * MS));
        assert_eq!(check(3, 30, deadline(30), &[(4, 0.005)]), Ok((3, 4)));
        for (by_ms, until) in [(90, Err(30 * MS)), (40, Err(20 * MS)), (20, Ok((3, 4)))] {
            assert_eq!(check(3, 30, deadline(by_ms), &[]), until, "half of it, where nothing is measured");
        }
        assert_eq!(check(3, 30, deadline(90), &[(4, 0.005)]), Err(30 * MS));
    }

    #[test]
    fn waiting_for_company_ends_before_a_job_has_waited_for_too_long() {
        let patience = |ms: u32| move |front: &mut Front| front.patience = Some(front.oldest + MS * ms);
        assert_eq!(check(3, 30, patience(25), &[]), Err(15 * MS));
        assert_eq!(check(3, 30, patience(20), &[]), Ok((3, 4)));
        assert_eq!(check(3, 30, patience(50), &[]), Err(30 * MS));
    }

    #[test]
    fn a_lower_size_is_filled_first_only_if_measured_to_cost_less_in_all() {
        let linear = [(1, 0.1), (4, 0.4), (8, 0.8)];
        assert_eq!(check(5, 0, |_| {}, &linear), Ok((4, 4)));
        let flat = [(1, 0.5), (4, 0.6), (8, 0.8)];
        assert_eq!(check(5, 0, |_| {}, &flat), Ok((5, 8)));
        assert_eq!(check(5, 0, |_| {}, &linear[1..]), Ok((5, 8)), "rest not measured");
        assert_eq!(check(7, 0, |_| {}, &linear), Ok((7, 8)), "the rest is 3, padded to 4");
    }

    #[test]
    fn a_size_that_was_held_up_is_not_avoided_for_it_and_one_that_was_avoided_is_tried_again() {
        let (start, sizes) = (Instant::now(), [1, 2, 4]);
        let front = pushed_at(start, 3);
        let take = |costs: &Costs, now| without_waste(&sizes, front.items, costs, now);
        let mut costs = Costs::default();
        for _ in 0..8 {
            sizes.into_iter().for_each(|size| costs.record(size, 0.01, start));
        }
        for held_up in 1..4 {
            costs.record(4, 1.0, start);
            assert_eq!(take(&costs, start), 3, "held up {held_up} times");
        }
        costs.record(4, 1.0, start);
        assert_eq!(take(&costs, start), 2, "it is slow");
        let soon = start + Duration::from_secs(599);
        [1, 2].into_iter().for_each(|size| costs.record(size, 0.01, soon));
        assert_eq!(take(&costs, soon), 2, "to try it costs a second");
        let later = start + Duration::from_secs(600);
        assert_eq!(take(&costs, later), 3, "it was slow");
        costs.record(4, 1.0, later);
        assert_eq!(take(&costs, later), 2, "it is slow still");
        costs.record(4, 0.01, later);
        assert_eq!(take(&costs, later), 3, "it is no longer");
    }

    /// How many of `items` are taken on a CPU where a full batch of so many takes so many seconds.
    fn check_pays(items: usize, seconds: &[(usize, f64)]) -> usize {
        let now = Instant::now();
        let mut costs = Costs::default();
        for &(size, seconds) in seconds {
            (0..4).for_each(|_| costs.record(size, seconds, now));
        }
        what_pays(&[1, 2, 4, 8], items, &costs, now)
    }

    #[test]
    fn no_more_is_taken_on_a_cpu_than_makes_an_item_cheaper() {
        let linear = [(1, 0.010), (2, 0.020), (4, 0.040), (8, 0.080)];
        assert_eq!([1, 2, 3, 8].map(|items| check_pays(items, &linear)), [1; 4]);
        let up_to_four = [(1, 0.011), (2, 0.021), (4, 0.040), (8, 0.081)];
        assert_eq!([8, 7, 4].map(|items| check_pays(items, &up_to_four)), [4, 7, 4]);
        let short = linear.map(|(size, seconds)| (size, seconds / 1000.0));
        assert_eq!(check_pays(8, &short), 8, "each batch has to be handed over");
        let in_all = [(1, 0.01055), (2, 0.0207), (4, 0.0407), (8, 0.080)];
        assert_eq!(check_pays(8, &in_all), 4, "2 are dearer than 8, if not than 4");
        let uneven = [(1, 0.011), (2, 0.020), (4, 0.042), (8, 0.080)];
        assert_eq!(check_pays(8, &uneven), 2, "that 4 are dear says nothing of 2");
        let dear = [(1, 0.010), (2, 0.020), (4, 0.045), (8, 0.080)];
        assert_eq!(check_pays(8, &dear), 8, "nor is anything looked at below what is far too dear");
    }

    #[test]
    fn sizes_that_cost_about_the_same_do_not_take_turns() {
        let (now, sizes) = (Instant::now(), [1, 2, 4, 8]);
        let mut costs = Costs::default();
        let mut take = |items: usize, two: f64| {
            for (size, each) in [(1, 1.2), (2, two), (4, 1.0), (8, 1.0)] {
                (0..4).for_each(|_| costs.record(size, each * size as f64, now));
            }
            let taken = what_pays(&sizes, items, &costs, now);
            costs.choose(taken);
            taken
        };
        let sizes = [1.03, 1.01, 1.03, 1.049, 1.051, 1.03, 1.01].map(|two| take(8, two));
        assert_eq!(sizes, [4, 4, 4, 4, 4, 4, 4], "the last one is good enough");
        assert_eq!(
            [take(2, 1.0), take(8, 1.049), take(8, 1.051)],
            [2, 2, 4],
            "there was no choice, then a better one"
        );
    }

    #[test]
    fn a_job_that_waits_alone_is_not_cut_where_all_of_it_is_done_soon() {
        let (now, sizes) = (Instant::now(), vec![1, 2, 4]);
        // What is taken of 4 items where cutting pays.
        let take = |jobs: usize, seconds: f64| {
            let mut costs = Costs::default();
            for (size, seconds) in [(1, seconds), (2, seconds), (4, seconds)] {
                (0..4).for_each(|_| costs.record(size, seconds, now));
            }
            (0..4).for_each(|_| costs.record(2, seconds / 4.0, now));
            let front = Front { jobs, ..pushed_at(now, 4) };
            decide(&rules(&sizes, Duration::ZERO), &sizes, Takes::WhatPays, &front, &costs, now)
        };
        let (whole, half) = (Next::Run { items: 4, size: 4 }, Next::Run { items: 2, size: 2 });
        assert_eq!([take(1, 1e-3), take(2, 1e-3)], [whole, half]);
        assert_eq!([take(1, 1.1e-3), take(2, 1.1e-3)], [half, half], "others who come have to wait for it");
    }

    #[test]
    fn a_size_that_was_not_measured_lately_is_run_to_see_whether_it_pays() {
        let linear = |size: usize| 0.01 * size as f64;
        let (start, sizes) = (Instant::now(), [1, 2, 4]);
        let mut costs = Costs::default();
        // What is taken of 5, and measured, so many times.
        let mut take = |times: usize, now| {
            let once = |_| {
                let items = what_pays(&sizes, 5, &costs, now);
                let size = padded(&sizes, items);
                costs.record(size, linear(size), now);
                items
            };
            (0..times).map(once).collect::<Vec<_>>()
        };
        assert_eq!(take(14, start), [5, 5, 5, 5, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]);
        assert_eq!(take(5, start + Duration::from_secs(60)), [5, 2, 1, 1, 1]);
    }

    /// 10 ms after `items` were accepted, on a device that takes 50 ms and 10 ms for each row, while a faster one needs
    /// `rival_ms` for all that waits: (items, size) to run, or how long after that to ask again.
    fn check_help(items: usize, rival_ms: u32) -> Result<(usize, usize), u128> {
        let pushed = Instant::now();
        let front = pushed_at(pushed, items);
        let own = |size: usize| 0.05 + 0.01 * size as f64;
        let rival = Rival { own: &own, rival: f64::from(rival_ms) / 1000.0 };
        match help(&[1, 2, 4, 8], items, &front, rival, pushed + 10 * MS) {
            Next::Run { items, size } => Ok((items, size)),
            Next::SleepUntil(at) => Err((at - pushed).as_millis()),
        }
    }

    #[test]
    fn a_slower_device_leaves_what_a_faster_one_ends_sooner() {
        assert_eq!(check_help(1, 2), Err(60));
        assert_eq!(check_help(8, 60), Err(60));
    }

    #[test]
    fn a_slower_device_helps_with_as_much_as_it_ends_before_the_faster_one_is_done() {
        assert_eq!(check_help(1, 61), Ok((1, 1)));
        assert_eq!(check_help(8, 95), Ok((4, 4)));
        assert_eq!(check_help(7, 1000), Ok((7, 8)));
    }

    #[test]
    fn what_was_left_too_long_is_taken_in_batches_that_take_no_longer_than_it_has_waited() {
        let pushed = Instant::now();
        let front = pushed_at(pushed, 16);
        // Single ones are quick here, as far as is known, and larger batches are not.
        let rival = Rival { own: &|size| if size == 1 { 0.001 } else { 0.1 * size as f64 }, rival: 0.0 };
        let after = |ms: u32| help(&[1, 4, 16], 16, &front, rival, pushed + ms * MS);
        assert_eq!(after(0), Next::SleepUntil(pushed + MS));
        assert_eq!([1, 399].map(after), [Next::Run { items: 1, size: 1 }; 2]);
        assert_eq!([400, 1599].map(after), [Next::Run { items: 4, size: 4 }; 2]);
        assert_eq!(after(1600), Next::Run { items: 16, size: 16 });
    }

    #[test]
    fn work_is_not_left_for_ever_to_a_device_that_does_not_take_it() {
        let pushed = Instant::now();
        let front = pushed_at(pushed, 3);
        let rival = Rival { own: &|_| 0.06, rival: 0.0 };
        let after = |ms: u32| help(&[1, 2, 4], 3, &front, rival, pushed + ms * MS);
        assert_eq!(after(59), Next::SleepUntil(pushed + 60 * MS));
        assert_eq!(after(60), Next::Run { items: 3, size: 4 });
    }
}
