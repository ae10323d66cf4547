//! The batch size on a device where changing it is expensive. Pure.
//!
//! ONNX Runtime's CUDA provider has cuDNN plan every convolution anew when a batch has another size than the one before: for ResNet-50 on
//! an H100 that takes 0.28 s, where a batch takes 3 ms. So a size is kept. It grows at once when more waits. It falls, to the largest
//! size that was wanted of late, once its full size has not been wanted for [`CALM`].

use super::{largest, padded};
use std::time::{Duration, Instant};

/// How long less must have been wanted before the size falls: where each change takes 0.28 s, changes take at most about a twentieth of
/// the time.
pub const CALM: Duration = Duration::from_secs(10);

/// The size that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steady {
    size: usize,
    /// The largest size wanted since the kept size itself was.
    wanted: usize,
    since: Instant,
}

impl Steady {
    /// The size to pad to.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What is kept once a batch of so many items starts, where `sizes` may be run.
    pub fn begin(kept: Option<Steady>, sizes: &[usize], items: usize, now: Instant) -> Steady {
        let size = padded(sizes, items);
        let afresh = Steady { size, wanted: 0, since: now };
        // The kept size may be too large for the memory that there is now.
        let Some(kept) = kept.filter(|kept| kept.size > size && kept.size <= largest(sizes)) else {
            return afresh;
        };
        let kept = Steady { wanted: kept.wanted.max(size), ..kept };
        if now.saturating_duration_since(kept.since) < CALM {
            return kept;
        }
        Steady { size: padded(sizes, kept.wanted), ..afresh }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 5] = [1, 2, 4, 8, 16];

    /// The sizes of batches that are begun with so many items, at so many seconds.
    fn sizes(batches: &[(u64, usize)], allowed: &[usize]) -> Vec<usize> {
        let start = Instant::now();
        let mut kept = None;
        let mut begin = |&(second, items): &(u64, usize)| {
            let steady = Steady::begin(kept, allowed, items, start + Duration::from_secs(second));
            kept = Some(steady);
            steady.size()
        };
        batches.iter().map(&mut begin).collect()
    }

    #[test]
    fn the_size_grows_at_once_and_stays_while_it_is_wanted_now_and_then() {
        let batches = [(0, 1), (0, 3), (0, 1), (1, 9), (2, 1), (10, 16), (11, 3), (19, 16), (28, 1)];
        assert_eq!(sizes(&batches, &SIZES), [1, 4, 4, 16, 16, 16, 16, 16, 16]);
    }

    #[test]
    fn after_a_calm_time_the_size_falls_to_what_was_wanted_meanwhile() {
        let batches = [(0, 16), (1, 3), (5, 1), (9, 1), (10, 1), (11, 1), (19, 2), (21, 1), (22, 1)];
        assert_eq!(sizes(&batches, &SIZES), [16, 16, 16, 16, 4, 4, 4, 2, 2]);
    }

    #[test]
    fn a_size_that_may_not_be_run_any_more_is_not_kept() {
        let start = Instant::now();
        let kept = Steady::begin(None, &SIZES, 16, start);
        assert_eq!(Steady::begin(Some(kept), &SIZES[..3], 3, start).size(), 4);
        assert_eq!(Steady::begin(Some(kept), &[6], 3, start).size(), 6, "a ceiling below all sizes");
    }
}
