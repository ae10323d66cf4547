//! Samples given in advance, for tests and simulations.

use super::{Probe, Sample};

/// Yields one set of samples after the other, then repeats the last.
#[derive(Debug, Default)]
pub struct Scripted {
    ticks: Vec<Vec<Sample>>,
    next: usize,
}

impl Scripted {
    /// A machine whose samples are these, look by look.
    pub fn new(ticks: Vec<Vec<Sample>>) -> Scripted {
        Scripted { ticks, next: 0 }
    }
}

impl Probe for Scripted {
    fn sample(&mut self) -> Vec<Sample> {
        let at = self.next.min(self.ticks.len().saturating_sub(1));
        self.next += 1;
        self.ticks.get(at).cloned().unwrap_or_default()
    }
}
