//! Our claim to one GPU: when it is taken and when it is given up, by what others do there ([`lease`]) and by its condition
//! ([`health`](super::health)). Pure: observations and the time come in, decisions come out. The keeper of the GPU carries them out;
//! `sim` does so on simulated machines.

use super::{
    health::states::{Evidence, States},
    lease::{self, Lease, Occupancy, Step},
};
use crate::status::{Cause, DeviceState};
use std::time::{Duration, Instant};

/// An allowance for the time that it takes to take a GPU, for requests that wait for it.
const TAKING: Duration = Duration::from_secs(2);

/// What we need of a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Want {
    /// Bytes of the context and all models, measured or guessed.
    pub(super) required: u64,
    /// Bytes of the context and the smallest model, where all were measured.
    pub(super) least: Option<u64>,
    /// Bytes that must stay free after loading.
    pub(super) headroom: u64,
    /// All bytes of the GPU.
    pub(super) total: u64,
}

impl Want {
    /// Bytes that must be free to share the GPU with others.
    pub(super) fn needed(&self) -> u64 {
        lease::needed(self.required, self.headroom)
    }

    /// Bytes that must be free in any case: with less, not even one model would be loaded.
    fn floor(&self) -> Option<u64> {
        self.least.map(|least| least.saturating_add(self.headroom))
    }
}

/// What to do about a GPU that is not ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Leave it alone, and let others in the queue go first.
    Leave,
    /// Wait, and keep our place in the queue.
    Stay,
    /// Wait, with a place in the queue: it can be taken soon.
    QueueUp,
    /// Take it when it is our turn.
    Take,
}

/// A decision, and the reasons for it, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    /// What to do.
    pub(super) next: Next,
    /// The reason in a word or two.
    pub(super) verdict: &'static str,
    /// Bytes that must be free, by this decision.
    pub(super) needed: u64,
}

/// What determines when a GPU is back, besides the claim to it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outlook {
    /// Requests may wait for it: it is taken on demand, or waited for while there is hope.
    pub(super) patient: bool,
    /// A call hangs there; the GPU is not taken anew until it ends.
    pub(super) hangs: bool,
}

/// Our claim to one GPU, held or not.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    /// Whether others leave room for us.
    pub(super) lease: Lease,
    /// Whether it works.
    pub(super) states: States,
    /// By the last observation, it was to be taken, at once or when due.
    wanted: bool,
}

impl Claim {
    /// A claim to a GPU that is not ours yet.
    pub(super) fn new(now: Instant) -> Claim {
        Claim { lease: Lease::new(now), states: States::default(), wanted: false }
    }

    /// Whether to take it now, by the last look. `seen` is `None` where nothing is known of other processes. For a GPU that is not held,
    /// and that may be taken as far as its health goes.
    pub(super) fn decide(&mut self, now: Instant, seen: Option<&Occupancy>, want: &Want) -> Decision {
        let needed = want.needed();
        self.wanted = true;
        let decision = |next, verdict| Decision { next, verdict, needed };
        match self.lease.look(now, seen, needed) {
            Step::Pausing(_) => decision(Next::Stay, "tried a moment ago"),
            Step::Contended(contention) => {
                self.waiting(Cause::Contended, contention.to_string());
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
                    self.waiting(Cause::Memory, reason);
                    return Decision { next: Next::Leave, verdict: "too full", needed: floor };
                }
                decision(Next::Take, if seen.is_some() { "free" } else { "unknown: no NVML" })
            }
        }
    }

    /// The GPU is not ours, and nobody knows for how long.
    pub(super) fn waiting(&mut self, cause: Cause, reason: impl Into<String>) {
        self.wanted = false;
        self.states.waiting(cause, reason);
    }

    /// It was taken, and works.
    pub(super) fn taken(&mut self, now: Instant) {
        self.lease.taken(now);
        self.states.serving(now);
    }

    /// It could not be taken for want of memory, or was given up for that. `scatter` is as in [`Lease::failed`].
    pub(super) fn short_of_memory(&mut self, now: Instant, reason: &str, scatter: f64) {
        self.states.refused(Cause::Memory, reason);
        self.lease.failed(now, scatter);
    }

    /// When a GPU that is not held should serve again; `None` where nobody knows. Each call returns the same as long as nothing happens
    /// and the GPU is not overdue. A time in the past means that requests wait for it as long as it takes.
    pub(super) fn back(&self, now: Instant, outlook: Outlook) -> Option<Instant> {
        let states = &self.states;
        match (states.state(), states.cause()) {
            // A GPU that is lost to this process is still tried, but no request should wait for that.
            (DeviceState::Lost, _) | (_, Cause::Drain | Cause::Poisoned) => None,
            (DeviceState::Fenced, _) if !states.may_take(now) => {
                states.retry_at().filter(|at| *at > now).map(|at| at + TAKING)
            }
            _ if outlook.hangs => None,
            _ if outlook.patient => Some(now - self.lease.waited(now)),
            (DeviceState::Warming, _) => Some(now + TAKING),
            _ => self.wanted.then(|| self.lease.due(now) + TAKING),
        }
    }

    /// Takes in evidence. True if the GPU has to be given up now.
    pub(super) fn note(&mut self, now: Instant, evidence: &Evidence) -> bool {
        self.states.note(now, evidence)
    }

    /// It is no longer ours. True if it was.
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
        let seen = Occupancy { others, free: Some(free * MIB), utilization: Some(0) };
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

    /// A GPU that served and met this a moment ago, and when.
    fn after(evidence: &Evidence) -> (Claim, Instant) {
        let t0 = Instant::now();
        let mut claim = Claim::new(t0);
        claim.decide(t0, None, &want(305, None));
        claim.taken(t0);
        assert!(claim.note(t0, evidence) && claim.left(t0));
        (claim, t0)
    }

    const FAULT: Evidence = Evidence::Xid(48);
    const FREE: Occupancy = Occupancy { others: false, free: Some(4096 * MIB), utilization: Some(0) };
    const BUSY: Occupancy = Occupancy { others: true, free: Some(0), utilization: Some(0) };

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_gpu_that_failed_is_expected_back_after_its_pause_and_then_by_what_is_seen_there() {
        let (mut claim, t0) = after(&FAULT);
        let paused = Some(t0 + s(1) + TAKING);
        assert_eq!(claim.back(t0, Outlook::default()), paused);
        // What it was about last is not done yet, but does not hang.
        assert_eq!(claim.back(t0 + s(2), Outlook::default()), Some(t0 + s(2) + TAKING));
        claim.decide(t0 + s(3), Some(&BUSY), &want(305, None));
        assert_eq!(claim.states.state(), DeviceState::Fenced, "until it is taken");
        assert_eq!(claim.back(t0 + s(3), Outlook::default()), None, "others have it");
        claim.decide(t0 + s(4), Some(&FREE), &want(305, None));
        let calm = Some(t0 + s(4) + s(2) + TAKING);
        for at in [4, 5, 6] {
            assert_eq!(claim.back(t0 + s(at), Outlook::default()), calm, "it has to be calm first");
        }
    }

    #[test]
    fn a_gpu_on_which_a_call_hangs_is_not_expected_back() {
        for patient in [false, true] {
            let hung = Outlook { hangs: true, patient };
            let (claim, t0) = after(&Evidence::Stuck(s(60)));
            assert_eq!(claim.back(t0, hung), Some(t0 + s(1) + TAKING), "it may come back meanwhile");
            assert_eq!(claim.back(t0 + s(1), hung), None);
            let (mut claim, t0) = after(&FAULT);
            claim.states.drained(true);
            claim.states.drained(false);
            assert_eq!(claim.back(t0, hung), None, "whatever it was taken out for");
        }
    }

    #[test]
    fn a_gpu_that_is_gone_or_drained_or_lost_to_this_process_is_not_waited_for() {
        let poisoned = Evidence::Poisoned("code 700".into());
        for (evidence, drained) in
            [(Evidence::OnBus(false), false), (poisoned, false), (FAULT, true), (Evidence::Xid(119), true)]
        {
            let (mut claim, t0) = after(&evidence);
            if drained {
                claim.states.drained(true);
            }
            for patient in [false, true] {
                let outlook = Outlook { patient, hangs: false };
                for at in [0, 1, 100] {
                    assert_eq!(claim.back(t0 + s(at), outlook), None, "{evidence:?}, {at} s, {patient}");
                }
            }
        }
        let (mut advised, t0) = after(&Evidence::Xid(119));
        assert_eq!(advised.back(t0, Outlook::default()), Some(t0 + s(60) + TAKING));
        advised.note(t0, &Evidence::Advice(1));
        assert_eq!(advised.back(t0 + s(60), Outlook::default()), None, "as long as that is advised");
    }

    #[test]
    fn a_gpu_that_had_too_little_memory_is_expected_back_when_it_is_tried_again_but_not_beside_others() {
        let (t0, mut claim) = (Instant::now(), Claim::new(Instant::now()));
        claim.decide(t0, Some(&FREE), &want(305, None));
        claim.short_of_memory(t0, "somebody was faster", 0.5);
        let paused = t0 + Duration::from_millis(500);
        let again = paused + s(2);
        for at in [t0, paused, again] {
            claim.decide(at, Some(&FREE), &want(305, None));
            assert_eq!(claim.back(at, Outlook::default()), Some(again + TAKING));
        }
        // Nobody else computes there, and yet there is no room.
        let full = Occupancy { others: false, ..BUSY };
        claim.decide(again, Some(&full), &want(305, Some(305)));
        assert_eq!((claim.states.cause(), claim.back(again, Outlook::default())), (Cause::Memory, None));
        claim.decide(again, Some(&BUSY), &want(305, None));
        assert_eq!((claim.states.cause(), claim.back(again, Outlook::default())), (Cause::Contended, None));
    }

    #[test]
    fn a_gpu_that_is_taken_on_demand_or_waited_for_patiently_is_back_in_time_for_everybody() {
        let patient = Outlook { patient: true, hangs: false };
        let (mut claim, t0) = after(&FAULT);
        assert_eq!(claim.back(t0, patient), Some(t0 + s(1) + TAKING), "not before its pause is over");
        claim.decide(t0 + s(2), Some(&BUSY), &want(305, None));
        for at in [2, 1000] {
            assert_eq!(claim.back(t0 + s(at), patient), Some(t0), "and said once");
        }
        claim.states.taking();
        assert_eq!(claim.back(t0 + s(1000), patient), Some(t0), "however long that takes");
        assert_eq!(claim.back(t0 + s(1000), Outlook::default()), Some(t0 + s(1000) + TAKING));
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
