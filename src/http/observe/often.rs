//! How often the log says that requests failed in the same way: whoever sends bad requests as fast as possible must not turn over the
//! whole log within minutes.

use parking_lot::Mutex;
use std::{collections::HashMap, time::Instant};

/// Lines of one kind that may come at once.
const BURST: f64 = 200.0;
/// Lines of one kind per second in the long run: with one kind, a day takes some 400 MB at most.
const PER_SECOND: f64 = 10.0;

/// Counts lines by route or call, and status: there are few of both.
#[derive(Debug, Default)]
pub(crate) struct Often(Mutex<HashMap<u16, HashMap<String, Kind>>>);

#[derive(Debug)]
struct Kind {
    /// How many lines may be written at `at`.
    left: f64,
    at: Instant,
    /// Lines that were not written since the last one that was.
    passed_over: u64,
}

/// A line that may be written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct May {
    /// How many of its kind were passed over before it, if any.
    pub(crate) passed_over: Option<u64>,
}

impl Often {
    /// Whether a line about a request on this route that ended with this status may be written now.
    pub(crate) fn may(&self, route: &str, status: u16, now: Instant) -> Option<May> {
        let mut kinds = self.0.lock();
        let of_status = kinds.entry(status).or_default();
        let Some(kind) = of_status.get_mut(route) else {
            of_status.insert(route.to_owned(), Kind { left: BURST - 1.0, at: now, passed_over: 0 });
            return Some(May { passed_over: None });
        };
        let more = PER_SECOND * now.saturating_duration_since(kind.at).as_secs_f64();
        (kind.left, kind.at) = (BURST.min(kind.left + more), now);
        if kind.left < 1.0 {
            kind.passed_over += 1;
            return None;
        }
        kind.left -= 1.0;
        let passed_over = std::mem::take(&mut kind.passed_over);
        Some(May { passed_over: (passed_over > 0).then_some(passed_over) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flood_of_one_kind_has_ten_lines_a_second_which_say_what_is_not_said() {
        let (often, start) = (Often::default(), Instant::now());
        let lines: Vec<_> = (0..10_000)
            .filter_map(|millis| {
                often.may("/predictions/{model}", 404, start + Duration::from_millis(millis))
            })
            .collect();
        // 200 at once, and 10 s of others.
        assert_eq!(lines.len(), 299, "the first ones earn some more");
        assert!(lines[..200].iter().all(|may| may.passed_over.is_none()));
        let passed_over: u64 = lines.iter().filter_map(|may| may.passed_over).sum();
        assert!((10_000 - 299 - 100..=10_000 - 299).contains(&passed_over), "{passed_over}");
        // Other kinds have their own.
        for (route, status) in [("/predictions/{model}", 400), ("/v2/models/{model}/infer", 404)] {
            assert_eq!(often.may(route, status, start), Some(May { passed_over: None }));
        }
        // A calm minute later it is as at the start.
        let later = start + Duration::from_secs(70);
        let burst = (0..300).filter(|_| often.may("/predictions/{model}", 404, later).is_some()).count();
        assert_eq!(burst, 200);
    }
}
