//! Whether anybody needs a GPU. Pure: counts and the time come in.

use std::time::{Duration, Instant};

/// What models of a GPU were last asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activity {
    /// Requests that these models had received by the last look.
    requests: u64,
    /// When one of them was last needed.
    at: Instant,
}

impl Activity {
    pub(super) fn new(now: Instant) -> Activity {
        Activity { requests: 0, at: now }
    }

    /// Takes in whether models have work now, and how many requests they have received in all. Returns whether the GPU is needed. The
    /// sum is lower once a model has gone, which is nobody's demand.
    pub(super) fn note(&mut self, busy: bool, requests: u64, now: Instant) -> bool {
        let needed = busy || requests > self.requests;
        self.requests = requests;
        if needed {
            self.at = now;
        }
        needed
    }

    /// It was needed until now, whoever asked.
    pub(super) fn touch(&mut self, now: Instant) {
        self.at = now;
    }

    /// For how long nobody has needed it.
    pub(super) fn unused(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_needs_a_gpu_and_a_model_that_goes_does_not() {
        let t0 = Instant::now();
        let s = |seconds| t0 + Duration::from_secs(seconds);
        let mut activity = Activity::new(t0);
        let mut note =
            |busy, requests, at| (activity.note(busy, requests, s(at)), activity.unused(s(at)).as_secs());
        assert_eq!(note(false, 7, 1), (true, 0));
        assert_eq!(note(false, 7, 3), (false, 2));
        assert_eq!(note(false, 5, 4), (false, 3), "a model has gone, and its requests with it");
        assert_eq!(note(false, 6, 5), (true, 0));
        assert_eq!(note(true, 6, 9), (true, 0), "one that is not counted yet");
        assert_eq!(note(false, 6, 10), (false, 1));
    }
}
