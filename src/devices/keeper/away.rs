//! Since when no GPU can be had: `gpu_timeout_ms` is compared with this. Pure: the time comes in.
//!
//! This is not how long a single GPU has been waited for: one that others use for days does no harm while another serves.

use std::time::{Duration, Instant};

/// A GPU's standing, as far as waiting for it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It serves, or would: it was given back because nobody needed it, or an operator asked for it to be left alone.
    There,
    /// It is waited for.
    Awaited,
    /// No model should be on it.
    Unneeded,
}

/// The standings of all GPUs, as last reported by their keepers.
#[derive(Debug, Default)]
pub(super) struct Away {
    /// By the index of the device.
    standings: Vec<(usize, Standing)>,
    since: Option<Instant>,
}

impl Away {
    /// Records a GPU's standing. Returns how long GPUs have been waited for while none was there, if that is so.
    pub(super) fn note(&mut self, index: usize, standing: Standing, now: Instant) -> Option<Duration> {
        match self.standings.iter_mut().find(|(device, _)| *device == index) {
            Some((_, known)) => *known = standing,
            None => self.standings.push((index, standing)),
        }
        let any = |standing| self.standings.iter().any(|(_, known)| *known == standing);
        if any(Standing::There) || !any(Standing::Awaited) {
            self.since = None;
            return None;
        }
        // Each keeper reads the clock itself, before this call.
        Some(now.saturating_duration_since(*self.since.get_or_insert(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Standing::*, *};

    /// Applies what keepers report at these seconds; the last report must return `expected`, in seconds.
    fn check(said: &[(u64, usize, Standing)], expected: Option<u64>) {
        let (t0, mut away) = (Instant::now(), Away::default());
        let s = Duration::from_secs;
        let told = said.iter().map(|(at, gpu, standing)| away.note(*gpu, *standing, t0 + s(*at)));
        assert_eq!(told.last().unwrap(), expected.map(s), "{said:?}");
    }

    #[test]
    fn the_only_gpu_is_away_from_when_it_is_waited_for() {
        check(&[(0, 1, Awaited)], Some(0));
        check(&[(0, 1, Awaited), (7, 1, Awaited)], Some(7));
        check(&[(0, 1, Awaited), (7, 1, There), (9, 1, Awaited), (12, 1, Awaited)], Some(3));
    }

    #[test]
    fn a_gpu_that_others_have_for_long_does_not_count_from_before_the_last_one_went() {
        let both = [(0, 1, Awaited), (0, 2, There), (100, 1, Awaited)];
        check(&both, None);
        let fault = [&both[..], &[(101, 2, Awaited)]].concat();
        check(&fault, Some(0));
        check(&[&fault[..], &[(105, 1, Awaited)]].concat(), Some(4));
        check(&[&fault[..], &[(105, 2, There), (200, 1, Awaited)]].concat(), None);
    }

    #[test]
    fn what_no_model_needs_is_neither_there_nor_away() {
        check(&[(0, 1, Unneeded), (50, 2, Unneeded)], None);
        check(&[(0, 1, Unneeded), (50, 2, Awaited), (60, 2, Awaited)], Some(10));
        // The last model of the one that served goes.
        check(&[(0, 1, Awaited), (0, 2, There), (50, 2, Unneeded), (60, 1, Awaited)], Some(10));
        // No GPU is waited for during a long time, then one is.
        check(&[(0, 1, Awaited), (10, 1, Unneeded), (90, 1, Awaited), (91, 1, Awaited)], Some(1));
    }
}
