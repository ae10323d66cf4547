//! Which setups are tried, in which order, and which is best. Pure functions.

use super::super::bench::Point;
use std::fmt::{self, Write};

/// The settings of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    /// `batch.items_max` of the manifest.
    pub(super) items_max: usize,
    /// `batch.wait_ms_max`.
    pub(super) wait_ms_max: u64,
    /// `placement.instances`.
    pub(super) instances: usize,
    /// The option `compute_threads`.
    pub(super) threads: usize,
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setup { items_max, wait_ms_max, instances, threads } = self;
        write!(
            f,
            "items_max = {items_max}, wait_ms_max = {wait_ms_max}, instances = {instances}, compute_threads = {threads}"
        )
    }
}

/// The result of a trial.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    pub(super) setup: Setup,
    /// The highest throughput within the bound: callers, answers per second, and the 99th percentile in milliseconds.
    pub(super) best: Option<(f64, f64, f64)>,
    /// Requests that failed, over all numbers of callers.
    pub(super) failed: u64,
    /// Whether it could not be measured at all.
    pub(super) untried: bool,
}

impl Trial {
    /// From the measurements of a setup, one for each number of callers.
    pub(super) fn of(setup: Setup, points: &[Point], bound_ms: f64) -> Trial {
        let borne = points.iter().filter(|point| point.verdict(bound_ms).is_ok());
        let best = borne.max_by(|a, b| a.answered_per_second.total_cmp(&b.answered_per_second));
        let best = best.map(|point| (point.load, point.answered_per_second, point.p99));
        let failed = points.iter().map(|point| point.failed).sum();
        Trial { setup, best, failed, untried: points.is_empty() }
    }

    fn rate(&self) -> f64 {
        self.best.map_or(0.0, |(_, rate, _)| rate)
    }
}

/// The batch sizes that are tried, in this order.
pub(super) const ITEMS: &[usize] = &[1, 2, 4, 8, 16, 32, 64];
/// The same for a fitter, whose items are ROIs.
pub(super) const ROIS: &[usize] = &[1000, 3000, 10_000, 30_000, 100_000];
const WAITS_MS: [u64; 3] = [1, 2, 5];
/// Smaller gains count as noise.
const GAIN_MIN: f64 = 1.03;

/// The search: batch sizes first, then how long batches wait, then instances and threads. Each step starts from the best
/// setup so far.
#[derive(Debug)]
pub(super) struct Search {
    threads: usize,
    /// Batch sizes; empty for a model without a batch axis.
    sizes: &'static [usize],
    /// Items of a request.
    items: usize,
}

impl Search {
    /// A search with at most `threads` threads, with these batch sizes and requests of `items` items.
    pub(super) fn new(threads: usize, sizes: &'static [usize], items: usize) -> Search {
        Search { threads, sizes, items }
    }

    /// The trials of a step that have not been done yet; `None` after the last step.
    pub(super) fn step(&self, step: usize, done: &[Trial]) -> Option<Vec<Setup>> {
        let items_max = self.sizes.first().copied().unwrap_or(1);
        let first = Setup { items_max, wait_ms_max: 0, instances: 1, threads: self.threads };
        let best = best(done).map_or(first, |trial| trial.setup);
        let half = self.threads.div_ceil(2);
        let setups: Vec<Setup> = match step {
            0 if self.sizes.is_empty() => vec![first],
            0 => self.sizes.iter().map(|items_max| Setup { items_max: *items_max, ..first }).collect(),
            // A single request fills the batch: there is nothing to wait for.
            1 if best.items_max <= self.items => Vec::new(),
            1 => WAITS_MS.map(|wait_ms_max| Setup { wait_ms_max, ..best }).to_vec(),
            2 => [(2, self.threads), (1, half), (2, half)]
                .map(|(instances, threads)| Setup { instances, threads, ..best })
                .to_vec(),
            _ => return None,
        };
        let mut new: Vec<Setup> = Vec::new();
        for setup in setups {
            if !new.contains(&setup) && done.iter().all(|trial| trial.setup != setup) {
                new.push(setup);
            }
        }
        Some(new)
    }

    /// The largest possible number of trials.
    pub(super) fn trials_max(&self) -> usize {
        if self.sizes.is_empty() { 4 } else { self.sizes.len() + WAITS_MS.len() + 3 }
    }
}

/// The best trial. Of two that are about equal, it is the one tried first, which needs fewer resources.
pub(super) fn best(done: &[Trial]) -> Option<&Trial> {
    let borne = done.iter().filter(|trial| trial.best.is_some());
    borne.reduce(|best, trial| if trial.rate() > best.rate() * GAIN_MIN { trial } else { best })
}

/// A trial's setup as tables of a manifest.
pub(super) fn manifest(trial: &Trial, default_threads: usize) -> String {
    let Setup { items_max, wait_ms_max, instances, threads } = trial.setup;
    let mut text = String::new();
    if let Some((callers, rate, p99)) = trial.best {
        let _ = writeln!(text, "# {rate:.0} requests/s of {callers} callers, p99 {p99:.1} ms");
    }
    let _ = write!(
        text,
        "[batch]\nitems_max = {items_max}\nwait_ms_max = {wait_ms_max}\n\n[placement]\ninstances = {instances}\n"
    );
    if threads != default_threads {
        let _ = writeln!(text, "# with the option compute_threads = {threads}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::Manifest;

    /// Runs the search against a device whose throughput is `rate`.
    fn search(sizes: &'static [usize], rate: impl Fn(Setup) -> Option<f64>) -> Vec<Trial> {
        let search = Search::new(4, sizes, sizes.first().copied().unwrap_or(1));
        let mut done = Vec::new();
        for step in 0.. {
            let Some(setups) = search.step(step, &done) else { break };
            done.extend(setups.into_iter().map(|setup| {
                let best = rate(setup).map(|rate| (8.0, rate, 5.0));
                Trial { setup, best, failed: 0, untried: false }
            }));
        }
        assert!(done.len() <= search.trials_max());
        done
    }

    #[test]
    fn the_search_finds_a_peak_and_keeps_the_simpler_of_what_is_alike() {
        let rate = |setup: Setup| {
            let batch = [(1, 10.0), (2, 19.0), (4, 35.0), (8, 60.0), (16, 61.0), (32, 30.0)];
            let items = batch.iter().find(|(items, _)| *items == setup.items_max).map(|(_, rate)| *rate)?;
            Some(items + if setup.instances == 2 && setup.threads == 2 { 20.0 } else { 0.0 })
        };
        let done = search(ITEMS, rate);
        let found = best(&done).expect("some").setup;
        assert_eq!(found, Setup { items_max: 8, wait_ms_max: 0, instances: 2, threads: 2 });
    }

    #[test]
    fn a_model_without_a_batch_axis_is_not_tried_with_batches() {
        let done = search(&[], |_| Some(10.0));
        assert!(done.iter().all(|trial| trial.setup.items_max == 1 && trial.setup.wait_ms_max == 0));
        assert!(best(&search(ITEMS, |_| None)).is_none());
    }

    #[test]
    fn a_fitter_is_tried_with_batches_of_rois() {
        let done = search(ROIS, |setup| Some(setup.items_max.min(10_000) as f64));
        assert_eq!(done.iter().map(|trial| trial.setup.items_max).min(), Some(1000));
        assert_eq!(best(&done).expect("some").setup.items_max, 10_000, "what gains nothing is not taken");
    }

    #[test]
    fn what_is_printed_is_a_manifest() {
        let setup = Setup { items_max: 8, wait_ms_max: 2, instances: 2, threads: 3 };
        let best = Some((16.0, 812.4, 9.87));
        let text = manifest(&Trial { setup, best, failed: 0, untried: false }, 4);
        let read = Manifest::parse(&text).expect("a manifest");
        assert_eq!(
            (read.batch.items_max, read.batch.wait_max.as_millis(), read.placement.instances),
            (Some(8), 2, 2)
        );
        assert!(
            text.starts_with("# 812 requests/s of 16 callers, p99 9.9 ms\n")
                && text.contains("compute_threads = 3"),
            "{text}"
        );
    }
}
