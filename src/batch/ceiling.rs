//! How large a batch of a model may be on a device that had too little memory for a larger one. Pure.
//!
//! Running out of memory makes half of the failed batch the ceiling. The ceiling rises by one size after [`GOOD_MIN`] good batches and
//! [`RISE_AFTER`]. Where it fell again after a rise, that time doubles, up to [`RISE_AFTER_MAX`]. The ceiling is forgotten when the
//! largest size was good for [`RISE_AFTER_MAX`], and not before: otherwise the time would never grow where only the largest size is too
//! large.

use super::Rules;
use std::{
    borrow::Cow,
    time::{Duration, Instant},
};

/// Good batches before a larger one is tried.
pub const GOOD_MIN: u32 = 32;
/// The least time before a larger one is tried.
pub const RISE_AFTER: Duration = Duration::from_secs(10);
/// The longest that [`RISE_AFTER`] doubles to.
pub const RISE_AFTER_MAX: Duration = Duration::from_secs(640);

/// The largest batch that may be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ceiling {
    items: usize,
    good: u32,
    since: Instant,
    rise_after: Duration,
    /// Whether it has risen since it last fell.
    rose: bool,
}

impl Ceiling {
    /// Rows of the largest batch.
    pub fn items(&self) -> usize {
        self.items
    }

    /// The ceiling after memory was too small for a batch larger than `items`.
    pub fn lowered(before: Option<Ceiling>, items: usize, now: Instant) -> Ceiling {
        let rise_after = match before {
            // Batches that were started before it fell say nothing new.
            Some(before) if before.items <= items => return before,
            Some(before) if before.rose => (2 * before.rise_after).min(RISE_AFTER_MAX),
            Some(before) => before.rise_after,
            None => RISE_AFTER,
        };
        Ceiling { items, good: 0, since: now, rise_after, rose: false }
    }

    /// After a batch that worked: the ceiling from now on.
    pub fn worked(mut self, rules: &Rules, now: Instant) -> Ceiling {
        self.good = self.good.saturating_add(1);
        let due = self.good >= GOOD_MIN && now.saturating_duration_since(self.since) >= self.rise_after;
        let larger = rules.sizes.iter().copied().find(|size| *size > self.items);
        if let Some(larger) = larger.filter(|_| due) {
            self = Ceiling { items: larger, good: 0, since: now, rose: true, ..self };
        }
        self
    }

    /// Whether batches of the largest size have worked for so long that the earlier failures no longer matter.
    pub fn is_over(&self, rules: &Rules, now: Instant) -> bool {
        self.items >= rules.largest() && now.saturating_duration_since(self.since) >= RISE_AFTER_MAX
    }
}

/// The size to try where a batch of `size` was too large: about half, and one of the model's sizes where batches are padded. `None` where
/// there is no smaller one.
pub fn halved(rules: &Rules, pads: bool, size: usize) -> Option<usize> {
    if rules.whole || size <= 1 {
        return None;
    }
    let smaller = || rules.sizes.iter().copied().filter(|smaller| *smaller < size);
    let half = smaller().rfind(|smaller| *smaller <= size / 2).or_else(|| smaller().next());
    if pads { half } else { Some(half.unwrap_or(size / 2).max(1)) }
}

/// The batch sizes up to a ceiling; the ceiling itself where all sizes are larger.
pub fn within<'a>(sizes: &'a [usize], ceiling: Option<&Ceiling>) -> Cow<'a, [usize]> {
    let Some(ceiling) = ceiling else {
        return Cow::Borrowed(sizes);
    };
    let below: Vec<usize> = sizes.iter().copied().filter(|size| *size <= ceiling.items).collect();
    Cow::Owned(if below.is_empty() { vec![ceiling.items] } else { below })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_halved_down_to_the_smallest_that_can_be_run() {
        let halves = |sizes: &[usize], pads, size| {
            let rules = Rules::plain(sizes);
            std::iter::successors(Some(size), |size| halved(&rules, pads, *size)).collect::<Vec<_>>()
        };
        assert_eq!(halves(&[1, 2, 4, 8], true, 8), [8, 4, 2, 1]);
        assert_eq!(halves(&[3, 5], true, 5), [5, 3]);
        assert_eq!(halves(&[4], true, 4), [4], "padded to 4, whatever is in it");
        assert_eq!(halves(&[16], false, 16), [16, 8, 4, 2, 1]);
        assert_eq!(halves(&[1, 2, 4, 8], false, 5), [5, 2, 1]);
    }

    #[test]
    fn the_ceiling_rises_after_good_batches_and_time_and_waits_longer_after_each_relapse() {
        let (start, rules) = (Instant::now(), Rules::plain(&[1, 2, 4, 8]));
        let mut ceiling = Ceiling::lowered(None, 2, start);
        for _ in 0..2 * GOOD_MIN {
            ceiling = ceiling.worked(&rules, start + RISE_AFTER / 2);
        }
        assert_eq!(ceiling.items(), 2, "not before the time");
        let later = start + RISE_AFTER;
        ceiling = ceiling.worked(&rules, later);
        assert_eq!(ceiling.items(), 4);
        ceiling = ceiling.worked(&rules, later + RISE_AFTER_MAX);
        assert_eq!(ceiling.items(), 4, "not before as many good batches again");
        ceiling = Ceiling::lowered(Some(ceiling), 2, later);
        for _ in 0..GOOD_MIN {
            ceiling = ceiling.worked(&rules, later + RISE_AFTER);
        }
        assert_eq!(ceiling.items(), 2, "it fell again: twice the time");
        assert_eq!(ceiling.worked(&rules, later + 2 * RISE_AFTER).items(), 4);
    }

    #[test]
    fn batches_begun_before_the_ceiling_fell_do_not_lower_it_further() {
        let now = Instant::now();
        let ceiling = Ceiling::lowered(None, 4, now);
        assert_eq!(Ceiling::lowered(Some(ceiling), 4, now), ceiling);
        assert_eq!(Ceiling::lowered(Some(ceiling), 2, now).items(), 2);
    }
}
