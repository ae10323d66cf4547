//! What happened in all worlds together.

/// Counts of what happened, to show that the worlds cover everything.
macro_rules! tally {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        #[derive(Debug, Default)]
        pub(super) struct Tally {
            $($(#[$doc])* pub(super) $field: usize,)*
        }

        impl Tally {
            pub(super) fn add(&mut self, other: &Tally) {
                $(self.$field += other.$field;)*
            }

            /// A world in which something never happens proves nothing about it.
            pub(super) fn assert_everything_happened(&self) {
                assert!([$(self.$field),*].iter().all(|count| *count > 0), "a part never happened: {self:?}");
            }
        }
    };
}
pub(crate) use tally;

tally! {
    jobs,
    batches,
    padded,
    shared,
    split,
    /// Batches in which shorter jobs passed a longer one.
    passed,
    /// Batches in which they did not, as it would have been late.
    kept_back,
    overtaken,
    ok,
    late,
    input,
    device,
    full,
    too_large,
    refused_late,
    draining,
    retired,
    cancelled,
    alone,
    again,
    slept,
    aged,
    left,
    halved,
    /// Jobs that the CPU had no memory for, with nothing beside them.
    outsized,
    /// How often a larger batch was tried again, how often it was too large again, and how often the limit was forgotten.
    rose,
    relapsed,
    forgotten,
    fallback,
    unserved,
    refused_unserved,
    recalled,
    partly_back,
    /// Batches that were started while others of the same worker were in flight.
    at_once,
    /// Workers that waited for company beside a job that has a deadline.
    company,
    /// Jobs that were late though a worker woke for them, or had meant to.
    overslept,
    /// Batches that were run by the thread that pushed a job.
    inline,
    /// Those of them that ran beside others of the same worker.
    inline_at_once,
}
