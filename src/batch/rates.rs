//! How fast work gets done: seconds per batch of each size, and items and bytes per second of the whole queue. Pure.

use super::{largest, padded};
use std::time::{Duration, Instant};

/// Weight of a new measurement: heavy enough to follow a device that slows down within a few batches.
const NEW_WEIGHT: f64 = 0.3;
/// The assumed cost of a batch before any was measured; corrected as soon as it ends.
const SECONDS_UNMEASURED: f64 = 0.01;

/// A device whose last batch of a model is longer ago than this is measured anew before it is compared with others.
pub const STALE_AFTER: Duration = Duration::from_secs(60);

/// Sizes are compared by the least of this many last measurements: one batch that was held up says nothing about the size.
const COMPARED: usize = 4;

/// A size whose last batch is this many times as long ago as it took is no longer avoided for its cost then: a size that is never run is
/// never measured again. To try it takes at most a thousandth of a device's time so: those who wait behind a large batch wait for long.
const AVOIDED_TIMES: f64 = 1000.0;
/// The shortest and the longest time after which a size is tried again.
const AVOIDED_SECONDS: (f64, f64) = (10.0, 600.0);

/// What batches of one size cost.
#[derive(Debug)]
struct Cost {
    size: usize,
    /// Exponentially weighted.
    mean: f64,
    /// The last measurements; infinity in place of those not yet made.
    last: [f64; COMPARED],
    at: Instant,
}

impl Cost {
    /// The least of the last measurements.
    fn least(&self) -> f64 {
        self.last.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Whether it was measured so lately, and so often, that the size can be avoided for it.
    fn counts(&self, now: Instant) -> bool {
        let (shortest, longest) = AVOIDED_SECONDS;
        let avoided = (AVOIDED_TIMES * self.least()).clamp(shortest, longest);
        let since = now.saturating_duration_since(self.at);
        since.as_secs_f64() < avoided && self.last.iter().all(|seconds| seconds.is_finite())
    }
}

/// Measured seconds of compute of one model on one device by padded batch size, for batches of one kind.
#[derive(Debug, Default)]
pub struct Costs {
    /// Ascending by size.
    by_size: Vec<Cost>,
    /// The size of the last batch that left work behind.
    chosen: Option<usize>,
}

impl Costs {
    /// Takes in a measurement.
    pub fn record(&mut self, size: usize, seconds: f64, now: Instant) {
        match self.by_size.binary_search_by_key(&size, |cost| cost.size) {
            Ok(i) => {
                let cost = &mut self.by_size[i];
                cost.mean += NEW_WEIGHT * (seconds - cost.mean);
                cost.last.rotate_right(1);
                (cost.last[0], cost.at) = (seconds, now);
            }
            Err(i) => {
                let mut last = [f64::INFINITY; COMPARED];
                last[0] = seconds;
                self.by_size.insert(i, Cost { size, mean: seconds, last, at: now });
            }
        }
    }

    /// Notes the size of a batch for which more was there than it takes.
    pub fn choose(&mut self, size: usize) {
        self.chosen = Some(size);
    }

    /// The size that was chosen last, when there was a choice.
    pub fn chosen(&self) -> Option<usize> {
        self.chosen
    }

    fn of(&self, size: usize) -> Option<&Cost> {
        let i = self.by_size.binary_search_by_key(&size, |cost| cost.size);
        i.ok().map(|i| &self.by_size[i])
    }

    /// Seconds for a batch of this size; `None` if none was measured.
    pub fn measured(&self, size: usize) -> Option<f64> {
        self.of(size).map(|cost| cost.mean)
    }

    /// Seconds that a batch of this size takes if nothing holds it up; `None` if there are too few measurements or no recent one.
    pub fn undisturbed(&self, size: usize, now: Instant) -> Option<f64> {
        self.of(size).filter(|cost| cost.counts(now)).map(Cost::least)
    }

    /// Seconds that the slowest of the last batches of this size took; `None` if there are too few measurements.
    pub fn longest(&self, size: usize) -> Option<f64> {
        let longest = self.of(size)?.last.iter().copied().fold(0.0, f64::max);
        longest.is_finite().then_some(longest)
    }

    /// Seconds for a batch of this size. Interpolated between the measured sizes around it if need be, or scaled from the nearest one.
    pub fn estimate(&self, size: usize) -> f64 {
        self.scaled(size, |cost| cost.mean)
    }

    /// Like [`Costs::estimate`], but if nothing holds the batch up, as far as was measured. Devices are compared by this: otherwise a
    /// device that was held up once would get less work, and so fewer measurements to correct it.
    pub fn at_best(&self, size: usize) -> f64 {
        self.scaled(size, Cost::least)
    }

    fn scaled(&self, size: usize, seconds: impl Fn(&Cost) -> f64) -> f64 {
        let (below, above) = self.by_size.split_at(self.by_size.partition_point(|cost| cost.size < size));
        match (below.last(), above.first()) {
            // Both contain a part that does not grow with the size.
            (Some(below), Some(above)) => {
                let part = (size - below.size) as f64 / (above.size - below.size) as f64;
                seconds(below) + part * (seconds(above) - seconds(below))
            }
            (Some(only), None) | (None, Some(only)) => seconds(only) * size as f64 / only.size as f64,
            (None, None) => SECONDS_UNMEASURED,
        }
    }

    /// Whether there is a recent measurement.
    pub fn is_fresh(&self, now: Instant) -> bool {
        self.by_size.iter().any(|cost| now.saturating_duration_since(cost.at) < STALE_AFTER)
    }

    /// Seconds for so many items, in batches of the largest of `sizes` and one for the rest.
    pub fn seconds(&self, items: usize, sizes: &[usize]) -> f64 {
        let largest = largest(sizes);
        let rest = items % largest;
        let last = if rest == 0 { 0.0 } else { self.estimate(padded(sizes, rest)) };
        (items / largest) as f64 * self.estimate(largest) + last
    }

    /// The fewest seconds in which one device could run so many items, in batches up to `size_max`, if nothing holds it up; `None`
    /// without a recent measurement. A size above all measured ones is taken to cost no more than the largest of those.
    pub fn fewest_seconds(&self, items: usize, size_max: usize, now: Instant) -> Option<f64> {
        let largest = self.by_size.last().filter(|_| self.is_fresh(now))?;
        let unmeasured = largest.least() / size_max.max(largest.size) as f64;
        let per_item =
            self.by_size.iter().map(|cost| cost.least() / cost.size as f64).fold(unmeasured, f64::min);
        Some(per_item * items as f64)
    }
}

/// Gaps between jobs longer than this count as this long.
const GAP_SECONDS_MAX: f64 = 1e-3;

/// How far apart a model's jobs arrive.
#[derive(Debug)]
pub struct Pace {
    last: Option<Instant>,
    /// Exponentially weighted.
    gap: f64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { last: None, gap: GAP_SECONDS_MAX }
    }
}

impl Pace {
    /// A job has come.
    pub fn note(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let gap = now.saturating_duration_since(last).as_secs_f64();
            self.gap += NEW_WEIGHT * (gap.min(GAP_SECONDS_MAX) - self.gap);
        }
    }

    /// Mean seconds between arrivals, at most a millisecond.
    pub fn gap(&self) -> f64 {
        self.gap
    }
}

/// Time over which throughput is averaged.
const WINDOW_SECONDS: f64 = 10.0;
/// The `Retry-After` value before anything was measured.
const RETRY_UNMEASURED: Duration = Duration::from_secs(1);
/// The bounds of `Retry-After` from then on.
const RETRY_RANGE: (f64, f64) = (1.0, 60.0);

/// Items and bytes finished per second while there was something to do, exponentially weighted.
#[derive(Debug, Default)]
pub struct Throughput {
    busy_since: Option<Instant>,
    seconds: f64,
    items: f64,
    bytes: f64,
}

impl Throughput {
    /// From now on there is (or is not) work to do.
    pub fn busy(&mut self, busy: bool, now: Instant) {
        match (self.busy_since, busy) {
            (None, true) => self.busy_since = Some(now),
            (Some(_), false) => {
                self.advance(now);
                self.busy_since = None;
            }
            _ => {}
        }
    }

    /// Counts finished work.
    pub fn record(&mut self, items: usize, bytes: usize, now: Instant) {
        self.advance(now);
        self.items += items as f64;
        self.bytes += bytes as f64;
    }

    fn advance(&mut self, now: Instant) {
        if let Some(since) = self.busy_since {
            let seconds = now.saturating_duration_since(since).as_secs_f64();
            let keep = (-seconds / WINDOW_SECONDS).exp();
            self.seconds = self.seconds * keep + seconds;
            self.items *= keep;
            self.bytes *= keep;
            self.busy_since = Some(now);
        }
    }

    /// When so many items will be done, from the measured rate, within 1 to 60 s.
    pub fn retry_items(&mut self, ahead: usize, now: Instant) -> Duration {
        self.advance(now);
        self.retry(ahead, self.items)
    }

    /// When so many bytes will be done, from the measured rate, within 1 to 60 s.
    pub fn retry_bytes(&mut self, ahead: usize, now: Instant) -> Duration {
        self.advance(now);
        self.retry(ahead, self.bytes)
    }

    fn retry(&self, ahead: usize, done: f64) -> Duration {
        if done <= 0.0 || self.seconds <= 0.0 {
            return RETRY_UNMEASURED;
        }
        retry_after(ahead as f64 * self.seconds / done)
    }
}

/// When a caller should retry if it takes this many seconds: after 1 to 60 s.
pub fn retry_after(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(RETRY_RANGE.0, RETRY_RANGE.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_follow_new_measurements_and_scale_to_sizes_not_measured() {
        let mut costs = Costs::default();
        assert_eq!(costs.measured(4), None);
        assert!(costs.estimate(4) > 0.0, "a guess before any measurement");
        let now = Instant::now();
        costs.record(4, 0.4, now);
        assert_eq!((costs.measured(4), costs.measured(2)), (Some(0.4), None));
        assert!((costs.estimate(2) - 0.2).abs() < 1e-9);
        for _ in 0..10 {
            costs.record(4, 0.8, now);
        }
        let seconds = costs.measured(4).unwrap_or_default();
        assert!((0.78..0.8).contains(&seconds), "{seconds}");
        assert_eq!((costs.at_best(4), costs.at_best(2)), (0.8, 0.4), "the last ones count");
        costs.record(4, 0.6, now);
        costs.record(4, 9.0, now);
        assert_eq!(costs.at_best(4), 0.6);
    }

    #[test]
    fn a_size_is_compared_by_what_it_takes_undisturbed_and_only_if_that_was_seen_lately() {
        let (mut costs, start) = (Costs::default(), Instant::now());
        for (i, seconds) in [0.9, 0.2, 0.3].into_iter().enumerate() {
            costs.record(4, seconds, start);
            let known = (costs.undisturbed(4, start), costs.longest(4));
            assert_eq!(known, (None, None), "{} measurements", i + 1);
        }
        costs.record(4, 0.9, start);
        assert_eq!(costs.undisturbed(4, start), Some(0.2));
        assert_eq!((costs.longest(4), costs.longest(2)), (Some(0.9), None));
        // A thousand times the least.
        let later = start + Duration::from_secs(200);
        assert_eq!(costs.undisturbed(4, later), None);
        // One more is enough; what was long ago is forgotten in turn.
        for expected in [0.2, 0.2, 0.3] {
            assert_eq!(costs.undisturbed(4, later - Duration::from_nanos(1)), Some(expected));
            costs.record(4, 0.8, later - Duration::from_nanos(1));
        }
        assert_eq!(costs.undisturbed(4, later), Some(0.8));
        assert_eq!(costs.undisturbed(2, later), None);
        for (seconds, known_for) in [(0.001, 10), (2.0, 600)] {
            (0..4).for_each(|_| costs.record(1, seconds, start));
            let known = |after: u64| costs.undisturbed(1, start + Duration::from_secs(after));
            assert_eq!([known(known_for - 1), known(known_for)], [Some(seconds), None]);
        }
    }

    #[test]
    fn jobs_come_as_close_as_the_last_ones_did_and_a_pause_is_no_more_than_a_millisecond() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let mut note = |micros: u64, times: usize| {
            for _ in 0..times {
                now += Duration::from_micros(micros);
                pace.note(now);
            }
            pace.gap() * 1e6
        };
        assert!((note(0, 1) - 1000.0).abs() < 1e-6, "the first comes after none");
        assert!((note(50, 20) - 50.0).abs() < 1.0);
        assert!((note(3_600_000_000, 1) - 335.0).abs() < 1.0, "0.7 of 50 and 0.3 of a millisecond");
        assert!((note(50, 12) - 50.0).abs() < 5.0);
    }

    #[test]
    fn the_fewest_seconds_never_overstate_what_larger_batches_may_save() {
        let mut costs = Costs::default();
        let now = Instant::now();
        assert_eq!(costs.fewest_seconds(16, 8, now), None);
        costs.record(1, 0.1, now);
        // A batch of 8 may cost no more than one of 1.
        let seconds = costs.fewest_seconds(16, 8, now).unwrap_or_default();
        assert!((seconds - 0.2).abs() < 1e-9, "{seconds}");
        costs.record(8, 0.4, now);
        let seconds = costs.fewest_seconds(16, 8, now).unwrap_or_default();
        assert!((seconds - 0.8).abs() < 1e-9, "{seconds}");
        // One that was held up says nothing of the others, nor does any of long ago.
        costs.record(8, 60.0, now);
        assert_eq!(costs.fewest_seconds(16, 8, now), Some(seconds));
        assert_eq!(costs.fewest_seconds(16, 8, now + STALE_AFTER), None);
    }

    #[test]
    fn a_size_between_two_that_were_measured_takes_no_more_than_the_larger_one() {
        let (mut costs, now) = (Costs::default(), Instant::now());
        costs.record(1, 0.003, now);
        costs.record(32, 0.010, now);
        let seconds = [1, 16, 17, 32, 64].map(|size| (costs.estimate(size) * 1e6).round());
        assert_eq!(seconds, [3000.0, 6387.0, 6613.0, 10_000.0, 20_000.0]);
    }

    #[test]
    fn retry_after_is_the_backlog_over_the_measured_rate_within_its_bounds() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut throughput = Throughput::default();
        assert_eq!(throughput.retry_items(99, at(0)), RETRY_UNMEASURED);
        throughput.busy(true, at(0));
        throughput.record(20, 2000, at(2));
        throughput.busy(false, at(2));
        // 10 items/s while busy; the idle hour between does not count.
        for (items, seconds) in [(1, 1.0), (50, 5.0), (300, 30.0), (9000, 60.0)] {
            let after = throughput.retry_items(items, at(3600)).as_secs_f64();
            assert!((after - seconds).abs() < 1e-6, "{items} items: {after} s");
        }
        let after = throughput.retry_bytes(5000, at(3600)).as_secs_f64();
        assert!((after - 5.0).abs() < 1e-6, "{after} s");
    }

    #[test]
    fn what_was_done_long_ago_says_nothing_of_now() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut throughput = Throughput::default();
        throughput.busy(true, at(0));
        throughput.record(1000, 5000, at(2));
        throughput.record(100, 500, at(102));
        let after = throughput.retry_items(10, at(102)).as_secs_f64();
        assert!((after - 10.0).abs() < 0.1, "{after} s");
        let after = throughput.retry_bytes(50, at(102)).as_secs_f64();
        assert!((after - 10.0).abs() < 0.1, "{after} s");
    }
}
