//! Collects the results of one measurement: every latency, failures by kind, and the times that the server reports for
//! its stages. Pure functions.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, time::Duration};

/// From a microsecond to ten minutes, to three significant digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000, 3).expect("the bounds are in order")
}

fn record(histogram: &mut Histogram<u64>, took: Duration) {
    histogram.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1));
}

fn ms(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    if histogram.is_empty() { 0.0 } else { histogram.value_at_quantile(quantile) as f64 / 1e3 }
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) struct Ended {
    /// A status, or a description if there was none.
    pub(in crate::cli) status: Result<u16, &'static str>,
    /// For a failure, the server's error or what broke; may be empty.
    pub(in crate::cli) why: String,
    /// From when it was due to the last byte of its reply.
    pub(in crate::cli) latency: Duration,
    /// From when it was due to when it was sent.
    pub(in crate::cli) late: Duration,
    /// The header `Server-Timing`.
    pub(in crate::cli) timing: String,
}

/// All requests of a measurement.
pub(in crate::cli) struct Tally {
    bound: Duration,
    latency: Histogram<u64>,
    late: Histogram<u64>,
    stages: BTreeMap<String, Histogram<u64>>,
    statuses: BTreeMap<String, u64>,
    answered: u64,
    failed: u64,
    first_failure: Option<String>,
    /// The answers that count for rates.
    in_span: u64,
    /// Those of them within the bound.
    in_time: u64,
}

impl Tally {
    /// An empty tally; answers count as good up to a latency of `bound`.
    pub(in crate::cli) fn new(bound: Duration) -> Tally {
        Tally {
            bound,
            latency: histogram(),
            late: histogram(),
            stages: BTreeMap::new(),
            statuses: BTreeMap::new(),
            answered: 0,
            failed: 0,
            first_failure: None,
            in_span: 0,
            in_time: 0,
        }
    }

    /// Adds a request. Percentiles cover answers only: a refusal is quick and says nothing about them.
    pub(in crate::cli) fn add(&mut self, ended: &Ended) {
        if self.take(ended) {
            self.in_span += 1;
            self.in_time += u64::from(ended.latency <= self.bound);
        }
    }

    /// Adds a request that ended after the measured span: its status and latency count, but it is not part of a rate.
    pub(super) fn add_after(&mut self, ended: &Ended) {
        self.take(ended);
    }

    /// Counts a request, and returns whether it was answered.
    fn take(&mut self, ended: &Ended) -> bool {
        let name = ended.status.map_or_else(str::to_owned, |status| status.to_string());
        *self.statuses.entry(name).or_default() += 1;
        record(&mut self.late, ended.late);
        if !matches!(ended.status, Ok(200..=299)) {
            self.failed += 1;
            self.first_failure.get_or_insert_with(|| words(ended.status, &ended.why));
            return false;
        }
        self.answered += 1;
        record(&mut self.latency, ended.latency);
        for (stage, took) in stages(&ended.timing) {
            record(self.stages.entry(stage).or_insert_with(histogram), took);
        }
        true
    }

    /// Number of requests counted.
    pub(super) fn count(&self) -> u64 {
        self.answered + self.failed
    }

    /// The result over this many seconds, at this rate or number of callers.
    pub(in crate::cli) fn point(&self, load: f64, seconds: f64) -> Point {
        let [p50, p95, p99, p99_9] = [0.5, 0.95, 0.99, 0.999].map(|quantile| ms(&self.latency, quantile));
        let stages =
            self.stages.iter().map(|(name, stage)| (name.clone(), (ms(stage, 0.5), ms(stage, 0.99))));
        Point {
            load,
            seconds,
            answered: self.answered,
            failed: self.failed,
            first_failure: self.first_failure.clone(),
            answered_per_second: self.in_span as f64 / seconds,
            goodput_per_second: self.in_time as f64 / seconds,
            p50,
            p95,
            p99,
            p99_9,
            max: self.latency.max() as f64 / 1e3,
            late_p99: ms(&self.late, 0.99),
            stages: stages.collect(),
            statuses: self.statuses.clone(),
        }
    }
}

/// How many requests of these measurements failed, and why the first one did; `None` if none failed.
pub(in crate::cli) fn failed(points: &[Point]) -> Option<String> {
    let first = points.iter().find_map(|point| point.first_failure.as_deref())?;
    let failed: u64 = points.iter().map(|point| point.failed).sum();
    let answered: u64 = points.iter().map(|point| point.answered).sum();
    Some(format!("{failed} of {} requests failed, the first with {first}", answered + failed))
}

/// A failure in words: its status or description, and its reason.
pub(super) fn words(status: Result<u16, &'static str>, why: &str) -> String {
    let what = status.map_or_else(str::to_owned, |status| format!("status {status}"));
    if why.is_empty() { what } else { format!("{what}: {why}") }
}

/// `decode;dur=0.512, queue;dur=0.021` as durations in milliseconds.
fn stages(timing: &str) -> impl Iterator<Item = (String, Duration)> {
    timing.split(',').filter_map(|entry| {
        let (name, rest) = entry.trim().split_once(';')?;
        let ms: f64 = rest.trim().strip_prefix("dur=")?.parse().ok()?;
        Some((name.to_owned(), Duration::try_from_secs_f64(ms / 1e3).ok()?))
    })
}

/// One measurement. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::cli) struct Point {
    /// Requests per second to be sent, or concurrent callers.
    pub(in crate::cli) load: f64,
    pub(in crate::cli) seconds: f64,
    pub(in crate::cli) answered: u64,
    pub(in crate::cli) failed: u64,
    /// The first failure.
    pub(in crate::cli) first_failure: Option<String>,
    /// Counts answers within the measured seconds only: in a closed loop, others come later.
    pub(in crate::cli) answered_per_second: f64,
    /// Those of them within the latency bound.
    pub(in crate::cli) goodput_per_second: f64,
    pub(in crate::cli) p50: f64,
    pub(in crate::cli) p95: f64,
    pub(in crate::cli) p99: f64,
    pub(in crate::cli) p99_9: f64,
    pub(in crate::cli) max: f64,
    /// How late requests were sent: a property of this client, not of the server.
    pub(in crate::cli) late_p99: f64,
    /// Median and 99th percentile of the time that the server reports for each stage.
    pub(in crate::cli) stages: BTreeMap<String, (f64, f64)>,
    pub(in crate::cli) statuses: BTreeMap<String, u64>,
}

/// The fraction of requests that may fail before a load counts as too high.
const FAILED_MAX: f64 = 0.01;

impl Point {
    /// Whether the server sustained the load; the error says why it did not.
    pub(in crate::cli) fn verdict(&self, bound_ms: f64) -> Result<(), String> {
        let all = self.answered + self.failed;
        let failed = self.failed as f64 / all.max(1) as f64;
        if self.answered == 0 {
            Err("no answers".into())
        } else if failed > FAILED_MAX {
            Err(format!("{:.1} % failed", failed * 100.0))
        } else if self.p99 > bound_ms {
            Err(format!("p99 over {bound_ms} ms"))
        } else {
            Ok(())
        }
    }

    /// The measurement as a part of the report.
    pub(super) fn json(&self, load: &str, bound_ms: f64) -> Value {
        let stage =
            |(name, (p50, p99)): (&String, &(f64, f64))| (name.clone(), json!({ "p50": p50, "p99": p99 }));
        json!({
            load: self.load,
            "seconds": self.seconds,
            "answered": self.answered,
            "failed": self.failed,
            "first_failure": self.first_failure,
            "answered_per_second": self.answered_per_second,
            "goodput_per_second": self.goodput_per_second,
            "latency_ms": {
                "p50": self.p50, "p95": self.p95, "p99": self.p99, "p99_9": self.p99_9, "max": self.max,
            },
            "sent_late_ms": { "p99": self.late_p99 },
            "server_ms": self.stages.iter().map(stage).collect::<Map<_, _>>(),
            "statuses": self.statuses,
            "verdict": self.verdict(bound_ms).err().unwrap_or_else(|| "ok".into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(status: Result<u16, &'static str>, latency_ms: u64) -> Ended {
        let timing = "decode;dur=1.000, queue;dur=2.000, compute;dur=4.000".to_owned();
        let why = if status == Ok(429) { "full".to_owned() } else { String::new() };
        Ended { status, why, latency: Duration::from_millis(latency_ms), late: Duration::ZERO, timing }
    }

    fn point(ended: impl IntoIterator<Item = Ended>) -> Point {
        let mut tally = Tally::new(Duration::from_millis(100));
        ended.into_iter().for_each(|ended| tally.add(&ended));
        tally.point(50.0, 2.0)
    }

    #[test]
    fn percentiles_count_from_the_least_latency_up() {
        let point = point((1..=1000).map(|ms| ended(Ok(200), ms)));
        for (got, expected) in
            [(point.p50, 500.0), (point.p95, 950.0), (point.p99, 990.0), (point.p99_9, 999.0)]
        {
            assert!((got - expected).abs() <= expected * 2e-3, "{got} is not {expected}");
        }
        assert_eq!((point.answered_per_second, point.goodput_per_second), (500.0, 50.0));
        assert!((point.stages["queue"].0 - 2.0).abs() < 0.01);
    }

    #[test]
    fn a_refusal_is_counted_and_makes_no_latency_better() {
        let point = point([ended(Ok(200), 80), ended(Ok(429), 1), ended(Err("timeout"), 10_000)]);
        assert_eq!((point.answered, point.failed), (1, 2));
        assert!((point.p50 - 80.0).abs() < 0.2);
        assert_eq!(
            point.statuses,
            [("200", 1), ("429", 1), ("timeout", 1)].map(|(n, c)| (n.to_owned(), c)).into()
        );
        assert_eq!(point.verdict(100.0), Err("66.7 % failed".into()));
    }

    #[test]
    fn failures_are_counted_over_all_measurements_and_the_first_says_what_it_was() {
        let well = point([ended(Ok(200), 80)]);
        assert_eq!(failed(&[well.clone(), well.clone()]), None);
        let ill = point([ended(Ok(200), 80), ended(Err("timeout"), 10_000), ended(Ok(429), 1)]);
        assert_eq!(ill.json("rate", 100.0)["first_failure"], "timeout");
        let full = point([ended(Ok(429), 1), ended(Err("timeout"), 10_000)]);
        let told = failed(&[well, full, ill]);
        assert_eq!(told.as_deref(), Some("4 of 6 requests failed, the first with status 429: full"));
    }

    #[test]
    fn the_verdict_is_about_the_99th_percentile() {
        let slow = |count| (0..1000).map(move |index| ended(Ok(200), if index < count { 150 } else { 10 }));
        assert_eq!(point(slow(5)).verdict(100.0), Ok(()));
        assert_eq!(point(slow(20)).verdict(100.0), Err("p99 over 100 ms".into()));
        assert_eq!(point([]).verdict(100.0), Err("no answers".into()));
    }
}
