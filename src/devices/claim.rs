//! Our claim to one GPU: when it is taken and when it is given up, by what others do there ([`lease`](super::lease)) and by
//! how it is ([`health`](super::health)). Pure: what was seen and the time come in, and what to do comes out. The keeper of the
//! GPU does it; `sim` does it to a machine that is none.

use super::{
    health::states::{Evidence, States},
    lease::{self, Lease, Seen, Step},
};
use crate::status::Cause;
use std::time::Instant;

/// What of a GPU's memory we want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Want {
    /// Bytes of the context and all models, measured or guessed.
    pub(super) required: u64,
    /// Bytes of the context and the smallest model, where all were measured.
    pub(super) least: Option<u64>,
    /// Bytes that loading leaves free.
    pub(super) headroom: u64,
    /// Bytes of the GPU.
    pub(super) total: u64,
}

impl Want {
    /// What must be free beside others.
    pub(super) fn needed(&self) -> u64 {
        lease::needed(self.required, self.headroom)
    }

    /// What must be free in any case: with less, not even one model would be loaded.
    fn floor(&self) -> Option<u64> {
        self.least.map(|least| least.saturating_add(self.headroom))
    }
}

/// What to do about a GPU that is not ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Leave it alone, and whoever waits behind us before us.
    Leave,
    /// Wait; the place in the queue stays ours.
    Stay,
    /// Wait, with a place in the queue: it will be taken soon.
    QueueUp,
    /// Take it, when it is our turn.
    Take,
}

/// A decision, and the numbers behind it for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    /// What to do.
    pub(super) next: Next,
    /// In a word or two.
    pub(super) verdict: &'static str,
    /// Bytes that must be free by it.
    pub(super) needed: u64,
}

/// Our claim to one GPU, held or not.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    /// Whether others leave it.
    pub(super) lease: Lease,
    /// Whether it works.
    pub(super) states: States,
}

impl Claim {
    /// To a GPU that is not ours yet.
    pub(super) fn new(now: Instant) -> Claim {
        Claim { lease: Lease::new(now), states: States::default() }
    }

    /// Whether to take it now, by the last look: `None` where nothing can be known of others. For a GPU that is not held, and
    /// may be taken as far as its health goes.
    pub(super) fn decide(&mut self, now: Instant, seen: Option<&Seen>, want: &Want) -> Decision {
        let needed = want.needed();
        let decision = |next, verdict| Decision { next, verdict, needed };
        match self.lease.look(now, seen, needed) {
            Step::Pausing(_) => decision(Next::Stay, "tried a moment ago"),
            Step::Contended(contention) => {
                self.states.waiting(Cause::Contended, contention.to_string());
                decision(Next::Leave, "contended")
            }
            Step::Calming(_) => {
                self.states.waiting(Cause::Contended, "free again; it has to stay so for a moment");
                decision(Next::QueueUp, "calming")
            }
            Step::Take => {
                let free = seen.and_then(|seen| seen.free);
                if let Some((floor, free)) = want.floor().zip(free).filter(|(floor, free)| free < floor) {
                    let reason = format!(
                        "its smallest model needs {} bytes there with the context, as measured before, and {free} of {} are \
                         free, of which {} are kept free",
                        floor - want.headroom,
                        want.total,
                        want.headroom
                    );
                    self.states.waiting(Cause::Memory, reason);
                    return Decision { next: Next::Leave, verdict: "too full", needed: floor };
                }
                decision(Next::Take, if seen.is_some() { "free" } else { "unknown: no NVML" })
            }
        }
    }

    /// It was taken, and works.
    pub(super) fn taken(&mut self, now: Instant) {
        self.lease.taken(now);
        self.states.serving();
    }

    /// It could not be had for want of memory, or was given up for that. `scatter` as [`Lease::failed`] has it.
    pub(super) fn short_of_memory(&mut self, now: Instant, reason: &str, scatter: f64) {
        self.states.refused(Cause::Memory, reason);
        self.lease.failed(now, scatter);
    }

    /// Takes evidence in. True where it has to be given up now.
    pub(super) fn note(&mut self, now: Instant, evidence: &Evidence) -> bool {
        self.states.note(now, evidence)
    }

    /// It is not ours any more. True if it was.
    pub(super) fn left(&mut self, now: Instant) -> bool {
        let held = self.lease.is_held();
        if held {
            self.lease.given_back(now);
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::DeviceState;

    const MIB: u64 = 1 << 20;

    fn want(required: u64, least: Option<u64>) -> Want {
        let least = least.map(|least| least * MIB);
        Want { required: required * MIB, least, headroom: 256 * MIB, total: 4096 * MIB }
    }

    fn decide(others: bool, free: u64, want: &Want) -> (Next, u64, String) {
        let now = Instant::now();
        let mut claim = Claim::new(now);
        let seen = Seen { others, free: Some(free * MIB), utilization: Some(0) };
        let Decision { next, needed, .. } = claim.decide(now, Some(&seen), want);
        assert_eq!(claim.states.state(), DeviceState::Waiting);
        (next, needed / MIB, claim.states.reason().to_owned())
    }

    #[test]
    fn a_gpu_is_not_tried_where_what_loading_leaves_free_is_all_there_is() {
        // Half as much again as 305 MiB is less than 305 MiB and the headroom.
        let small = want(305, Some(305));
        assert_eq!(decide(true, 560, &small).0, Next::Leave);
        assert_eq!(decide(true, 561, &small), (Next::Take, 561, "not looked at yet".into()));
        // And of 2000 MiB it is more.
        let large = want(2000, Some(305));
        assert_eq!(decide(true, 2999, &large).0, Next::Leave);
        assert_eq!(decide(true, 3000, &large).0, Next::Take);
        let (_, _, why) = decide(true, 2999, &large);
        assert!(why.ends_with("and 2999 MiB are free of the 3000 MiB that must be"), "{why}");
    }

    #[test]
    fn where_nobody_else_computes_the_smallest_model_and_the_headroom_are_enough() {
        let measured = want(2000, Some(305));
        assert_eq!(decide(false, 561, &measured).0, Next::Take);
        let (next, needed, why) = decide(false, 560, &measured);
        assert_eq!((next, needed), (Next::Leave, 561), "what is shown is what decided");
        assert_eq!(
            why,
            "its smallest model needs 319815680 bytes there with the context, as measured before, and 587202560 of \
             4294967296 are free, of which 268435456 are kept free"
        );
        // A guess keeps nobody from trying.
        assert_eq!(decide(false, 1, &want(2000, None)).0, Next::Take);
    }
}
