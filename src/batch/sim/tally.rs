//! What happened in all worlds together.

/// Counts of what happened, to show that the worlds cover everything.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) jobs: usize,
    pub(super) batches: usize,
    pub(super) padded: usize,
    pub(super) shared: usize,
    pub(super) split: usize,
    pub(super) overtaken: usize,
    pub(super) ok: usize,
    pub(super) late: usize,
    pub(super) input: usize,
    pub(super) device: usize,
    pub(super) full: usize,
    pub(super) too_large: usize,
    pub(super) refused_late: usize,
    pub(super) draining: usize,
    pub(super) retired: usize,
    pub(super) cancelled: usize,
    pub(super) alone: usize,
    pub(super) again: usize,
    pub(super) slept: usize,
    pub(super) aged: usize,
    pub(super) left: usize,
    pub(super) halved: usize,
    /// How often a larger batch was tried again, how often it was too large again, and how often the limit was forgotten.
    pub(super) rose: usize,
    pub(super) relapsed: usize,
    pub(super) forgotten: usize,
    pub(super) fallback: usize,
    pub(super) unserved: usize,
    pub(super) refused_unserved: usize,
    pub(super) recalled: usize,
    pub(super) partly_back: usize,
    /// Batches that were started while others of the same worker were in flight.
    pub(super) at_once: usize,
    /// Workers that waited for company beside a job that has a deadline.
    pub(super) company: usize,
    /// Jobs that were late though a worker woke for them, or had meant to.
    pub(super) overslept: usize,
    /// Batches that were run by the thread that pushed a job.
    pub(super) inline: usize,
    /// Those of them that ran beside others of the same worker.
    pub(super) inline_at_once: usize,
}

impl Tally {
    fn fields(&mut self) -> [&mut usize; 35] {
        [
            &mut self.jobs,
            &mut self.batches,
            &mut self.padded,
            &mut self.shared,
            &mut self.split,
            &mut self.overtaken,
            &mut self.ok,
            &mut self.late,
            &mut self.input,
            &mut self.device,
            &mut self.full,
            &mut self.too_large,
            &mut self.refused_late,
            &mut self.draining,
            &mut self.retired,
            &mut self.cancelled,
            &mut self.alone,
            &mut self.again,
            &mut self.slept,
            &mut self.aged,
            &mut self.left,
            &mut self.halved,
            &mut self.rose,
            &mut self.relapsed,
            &mut self.forgotten,
            &mut self.fallback,
            &mut self.unserved,
            &mut self.refused_unserved,
            &mut self.recalled,
            &mut self.partly_back,
            &mut self.at_once,
            &mut self.company,
            &mut self.overslept,
            &mut self.inline,
            &mut self.inline_at_once,
        ]
    }

    pub(super) fn add(&mut self, other: &Tally) {
        let mut other = Tally { ..*other };
        for (sum, term) in self.fields().into_iter().zip(other.fields()) {
            *sum += *term;
        }
    }

    /// A world in which something never happens proves nothing about it.
    pub(super) fn assert_everything_happened(mut self) {
        let text = format!("{self:?}");
        assert!(self.fields().into_iter().all(|count| *count > 0), "{text}");
    }
}
