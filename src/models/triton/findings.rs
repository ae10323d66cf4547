//! What is found while a configuration is read.

use std::time::Duration;

/// Mistakes, for which a configuration is refused, and notes, for the log.
#[derive(Default)]
pub(super) struct Findings {
    wrong: Vec<String>,
    notes: Vec<String>,
}

impl Findings {
    pub(super) fn wrong(&mut self, what: String) {
        self.wrong.push(what);
    }

    /// `number` if it is from `min` to `max`; otherwise records a mistake and returns `min`.
    pub(super) fn within(&mut self, at: &str, number: i32, min: usize, max: usize) -> usize {
        let within = usize::try_from(number).ok().filter(|number| (min..=max).contains(number));
        within.unwrap_or_else(|| {
            self.wrong(format!("{at} is {number}, allowed: {min} to {max}"));
            min
        })
    }

    /// The notes, or all mistakes.
    pub(super) fn into_notes(self) -> Result<Vec<String>, String> {
        if self.wrong.is_empty() { Ok(self.notes) } else { Err(self.wrong.join("; ")) }
    }

    /// Mistakes and notes together, if there are any. For a caller that waits for the answer: it gets an error rather than
    /// something other than it asked for.
    pub(super) fn into_none(mut self) -> Result<(), String> {
        self.wrong.append(&mut self.notes);
        self.into_notes().map(drop)
    }

    pub(super) fn note(&mut self, what: String) {
        self.notes.push(what);
    }

    /// A wait, cut to `max` with a note: Triton has no limit.
    pub(super) fn capped(&mut self, at: &str, micros: u64, max: Duration) -> Duration {
        let wait = Duration::from_micros(micros);
        if wait > max {
            self.note(format!("{at}: it is {micros}, and the longest wait is {}", max.as_micros()));
        }
        wait.min(max)
    }
}
