//! Chooses the loads to measure, one after the other. Pure functions.

use super::tally::Point;

/// The loads to measure.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plan {
    /// These rates, in requests per second, whatever the results.
    Rates(Vec<f64>),
    /// Rates from `from`, each `step` times the last, until the server does not sustain one; then some between that and the
    /// last sustained one.
    Sweep { from: f64, step: f64 },
    /// These numbers of concurrent callers, in turn.
    Callers(Vec<usize>),
}

/// A sweep ends after this many measurements, whatever the server sustains.
const POINTS_MAX: usize = 30;
/// Further rates between the highest sustained one and the lowest one that was not.
const CLOSER: usize = 2;

impl Plan {
    /// The next load after these measurements, if there is one.
    pub(super) fn next(&self, done: &[Point], bound_ms: f64) -> Option<f64> {
        match self {
            Plan::Rates(rates) => rates.get(done.len()).copied(),
            Plan::Callers(callers) => callers.get(done.len()).map(|callers| *callers as f64),
            Plan::Sweep { from, step } => {
                let Some(last) = done.last() else { return Some(*from) };
                match done.iter().position(|point| point.verdict(bound_ms).is_err()) {
                    None => (done.len() < POINTS_MAX).then_some(last.load * step),
                    Some(broke) if done.len() - broke <= CLOSER => between(done, bound_ms),
                    Some(_) => None,
                }
            }
        }
    }

    /// The unit of the load.
    pub(super) fn unit(&self) -> &'static str {
        match self {
            Plan::Rates(_) | Plan::Sweep { .. } => "rate",
            Plan::Callers(_) => "concurrency",
        }
    }
}

/// The geometric mean of the highest load that was sustained and the lowest that was not.
fn between(done: &[Point], bound_ms: f64) -> Option<f64> {
    let borne = best(done, bound_ms)?.load;
    let broken = done.iter().filter(|point| point.verdict(bound_ms).is_err()).map(|point| point.load);
    Some((borne * broken.fold(f64::MAX, f64::min)).sqrt())
}

/// The highest sustained load such that every lower load was sustained too.
pub(super) fn best(done: &[Point], bound_ms: f64) -> Option<&Point> {
    let mut rising: Vec<&Point> = done.iter().collect();
    rising.sort_by(|a, b| a.load.total_cmp(&b.load));
    rising.into_iter().take_while(|point| point.verdict(bound_ms).is_ok()).last()
}

#[cfg(test)]
mod tests {
    use super::{
        super::tally::{Ended, Tally},
        *,
    };
    use std::time::Duration;

    /// A measurement whose requests all took `ms`.
    fn point(load: f64, ms: u64) -> Point {
        let mut tally = Tally::new(Duration::from_secs(1));
        let (latency, late) = (Duration::from_millis(ms), Duration::ZERO);
        tally.add(&Ended { status: Ok(200), why: String::new(), latency, late, timing: String::new() });
        tally.point(load, 1.0)
    }

    #[test]
    fn a_sweep_goes_up_until_the_bound_breaks_and_then_looks_where() {
        let plan = Plan::Sweep { from: 10.0, step: 16.0 };
        let check = |bears: f64, expected: &[f64], highest: Option<f64>| {
            let mut done = Vec::new();
            while let Some(rate) = plan.next(&done, 100.0) {
                done.push(point(rate, if rate <= bears { 20 } else { 200 }));
            }
            assert_eq!(done.iter().map(|point| point.load.round()).collect::<Vec<_>>(), expected);
            assert_eq!(best(&done, 100.0).map(|point| point.load.round()), highest);
        };
        check(200.0, &[10.0, 160.0, 2560.0, 640.0, 320.0], Some(160.0));
        check(700.0, &[10.0, 160.0, 2560.0, 640.0, 1280.0], Some(640.0));
        check(2000.0, &[10.0, 160.0, 2560.0, 640.0, 1280.0], Some(1280.0));
        check(1.0, &[10.0], None);
    }

    #[test]
    fn a_sweep_that_never_breaks_ends() {
        let plan = Plan::Sweep { from: 1.0, step: 1.5 };
        let mut done = Vec::new();
        while let Some(rate) = plan.next(&done, 100.0) {
            done.push(point(rate, 1));
        }
        assert_eq!(done.len(), POINTS_MAX);
    }

    #[test]
    fn loads_that_were_named_are_all_measured() {
        let plan = Plan::Callers(vec![1, 8]);
        let first = point(1.0, 500);
        assert_eq!(plan.next(&[], 100.0), Some(1.0));
        assert_eq!(plan.next(std::slice::from_ref(&first), 100.0), Some(8.0));
        assert_eq!(plan.next(&[first.clone(), first.clone()], 100.0), None);
        assert_eq!(best(&[first], 100.0), None);
    }
}
