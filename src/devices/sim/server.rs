//! One server of the simulation: what its keepers do, in the same order.

use super::{
    super::{
        claim::{Claim, Next, Want},
        health::states::Evidence,
        lease::Occupancy,
    },
    Tally,
    jobs::{Jobs, Worker},
    machine::{HEADROOM, Machine, Sight},
};
use crate::{engine::EngineError, random::Random};
use std::time::{Duration, Instant};

const GIB: u64 = 1 << 30;
/// Milliseconds between two looks.
const LOOK_MS: u64 = 500;
/// The least pause before a new try after want of memory, and after a fault.
const PAUSE: Duration = Duration::from_millis(375);
const FAULT_PAUSE: Duration = Duration::from_secs(1);

/// Where a GPU is.
enum Place {
    Away,
    /// Being taken, until this time.
    Taking(Instant),
    Ours(Worker),
}

/// A GPU, as one server's keeper sees it.
struct Keeper {
    claim: Claim,
    place: Place,
    /// The last look, and when the next one is.
    sight: Option<Sight>,
    next_look: Instant,
    /// How many of its events have been read.
    heard: usize,
    drained: bool,
    waiting_since: Instant,
    /// It has a place in the queue.
    queued: bool,
    changed: Instant,
    /// When a batch last succeeded.
    worked: Instant,
    refused: Option<Instant>,
    fault: Option<Instant>,
}

pub(super) struct Server {
    jobs: Jobs,
    keepers: Vec<Keeper>,
    /// What its models need of a GPU.
    pub(super) required: u64,
    measured: bool,
}

impl Server {
    pub(super) fn new(random: &mut Random, gpus: usize, now: Instant) -> Server {
        let keeper = || Keeper {
            claim: Claim::new(now),
            place: Place::Away,
            sight: None,
            next_look: now,
            heard: 0,
            drained: false,
            waiting_since: now,
            queued: false,
            changed: now,
            worked: now,
            refused: None,
            fault: None,
        };
        let keepers = (0..gpus).map(|_| keeper()).collect();
        let required = random.between(1, 6) * GIB;
        Server { jobs: Jobs::new(random), keepers, required, measured: random.percent(50) }
    }

    pub(super) fn claim(&self, gpu: usize) -> &Claim {
        &self.keepers[gpu].claim
    }

    pub(super) fn has(&self, gpu: usize) -> bool {
        matches!(self.keepers[gpu].place, Place::Ours(_))
    }

    pub(super) fn is_taking(&self, gpu: usize) -> bool {
        matches!(self.keepers[gpu].place, Place::Taking(_))
    }

    pub(super) fn changed(&self, gpu: usize) -> Instant {
        self.keepers[gpu].changed
    }

    /// Since when it waits for a GPU, if it has a place in the queue.
    pub(super) fn waits_since(&self, gpu: usize) -> Option<Instant> {
        let keeper = &self.keepers[gpu];
        keeper.queued.then_some(keeper.waiting_since)
    }

    pub(super) fn arrive(&mut self, random: &mut Random, now: Instant) {
        self.jobs.arrive(random, now);
    }

    /// Drains a GPU, or resumes it.
    pub(super) fn drain(
        &mut self,
        gpu: usize,
        drained: bool,
        machine: &mut Machine,
        index: usize,
        now: Instant,
    ) {
        let keeper = &mut self.keepers[gpu];
        // A keeper that is taking a GPU learns of it only afterwards.
        if keeper.drained == drained || matches!(keeper.place, Place::Taking(_)) {
            return;
        }
        keeper.drained = drained;
        if drained {
            self.leave(gpu, "drained", machine, index, now, &mut Tally::default());
        }
        self.keepers[gpu].claim.states.drained(drained);
        self.keepers[gpu].fault = None;
        self.keepers[gpu].restart(now);
    }

    pub(super) fn resume_all(&mut self, now: Instant) {
        for keeper in self.keepers.iter_mut().filter(|keeper| keeper.drained) {
            keeper.drained = false;
            keeper.claim.states.drained(false);
            keeper.fault = None;
            keeper.restart(now);
        }
    }

    /// One turn of all keepers and workers. `firsts`: for each GPU, since when others in its queue wait; `takings`: whether one of them
    /// is taking it now.
    #[allow(clippy::too_many_arguments)] // a world of numbers
    pub(super) fn turn(
        &mut self,
        random: &mut Random,
        machine: &mut Machine,
        index: usize,
        firsts: &[Option<Instant>],
        takings: &[bool],
        now: Instant,
        tally: &mut Tally,
    ) {
        self.jobs.on_cpu(random, now, tally);
        for gpu in 0..self.keepers.len() {
            if let Place::Taking(until) = self.keepers[gpu].place {
                if until <= now {
                    self.end_take(gpu, random, machine, index, now, tally);
                }
                continue;
            }
            self.look(gpu, random, machine, index, now, tally);
            if self.has(gpu) {
                self.tend(gpu, random, machine, index, now, tally);
            } else {
                self.wait(gpu, random, machine, index, (firsts[gpu], takings[gpu]), now, tally);
            }
        }
    }

    fn look(
        &mut self,
        gpu: usize,
        random: &mut Random,
        machine: &mut Machine,
        index: usize,
        now: Instant,
        tally: &mut Tally,
    ) {
        let keeper = &mut self.keepers[gpu];
        let there = &machine.gpus[gpu];
        let mut evidence = there.events[keeper.heard..].to_vec();
        keeper.heard = there.events.len();
        if keeper.next_look <= now {
            let sight = there.sight(index);
            keeper.next_look =
                now + Duration::from_millis(random.between(LOOK_MS * 9 / 10, LOOK_MS * 11 / 10));
            keeper.sight = Some(sight);
            evidence.extend([
                Evidence::OnBus(sight.on_bus),
                Evidence::Uncorrected(sight.uncorrected),
                Evidence::Advice(sight.advice),
            ]);
        }
        for evidence in evidence {
            if self.keepers[gpu].note(now, &evidence) {
                tally.lost += usize::from(matches!(evidence, Evidence::OnBus(false) | Evidence::Xid(79)));
                tally.faults += 1;
                self.leave(gpu, "it fell ill", machine, index, now, tally);
            }
        }
        self.keepers[gpu].claim.states.tick(now);
    }

    /// One turn for a GPU that this server holds.
    fn tend(
        &mut self,
        gpu: usize,
        random: &mut Random,
        machine: &mut Machine,
        index: usize,
        now: Instant,
        tally: &mut Tally,
    ) {
        let works = !machine.gpus[gpu].sick && machine.gpus[gpu].on_bus;
        if self.keepers[gpu].claim.states.canary_due(now, self.keepers[gpu].worked) {
            tally.canaries += 1;
            let answer = if works { Ok(()) } else { Err("wrong".into()) };
            if self.keepers[gpu].note(now, &Evidence::Canary(answer)) {
                return self.leave(gpu, "the canary failed", machine, index, now, tally);
            }
        }
        let Server { jobs, keepers, .. } = self;
        let Keeper { place, worked, .. } = &mut keepers[gpu];
        let Place::Ours(worker) = place else { panic!("it is ours") };
        let mut broken = false;
        if worker.is_done(now) {
            let error = if !works {
                broken = true;
                Some(EngineError::Device("it broke".into()))
            } else {
                random.percent(3).then(|| EngineError::OutOfMemory("no room".into()))
            };
            *worked = if error.is_none() { now } else { *worked };
            tally.on_gpu += usize::from(jobs.finish(worker, error, now, tally));
        }
        if broken {
            tally.faults += 1;
            assert!(self.keepers[gpu].note(now, &Evidence::Failed("it broke".into())));
            return self.leave(gpu, "it broke", machine, index, now, tally);
        }
        jobs.pick(worker, random.between(10, 200), now);
    }

    /// Takes a GPU that this server does not hold, if it may.
    #[allow(clippy::too_many_arguments)]
    fn wait(
        &mut self,
        gpu: usize,
        random: &mut Random,
        machine: &Machine,
        index: usize,
        (first, taking): (Option<Instant>, bool),
        now: Instant,
        tally: &mut Tally,
    ) {
        let required = self.required;
        let want = Want {
            required,
            least: self.measured.then_some(required),
            headroom: HEADROOM,
            total: machine.gpus[gpu].total,
        };
        let keeper = &mut self.keepers[gpu];
        let Some(sight) = keeper.sight else { return };
        if keeper.drained || !keeper.claim.states.may_take(now) {
            keeper.queued = false;
            return;
        }
        let seen =
            Occupancy { others: sight.others, free: Some(sight.free), utilization: Some(sight.utilization) };
        let decision = keeper.claim.decide(now, Some(&seen), &want);
        match decision.next {
            Next::Leave => {
                keeper.queued = false;
                tally.contended += usize::from(decision.verdict == "contended");
                tally.too_full += usize::from(decision.verdict == "too full");
            }
            Next::Stay => {}
            Next::QueueUp => keeper.queued = true,
            Next::Take => {
                keeper.queued = true;
                if taking || first.is_some_and(|first| first < keeper.waiting_since) {
                    tally.turns += 1;
                    return;
                }
                // The rule, restated simply.
                let polite = 2 * sight.free >= 3 * required && sight.utilization <= 90;
                let room = sight.free >= required + HEADROOM;
                assert!(!sight.others || (polite && room), "{index} takes from others: {sight:?}");
                assert!(!self.measured || room, "it is known that there is no room: {sight:?}");
                assert!(sight.on_bus && sight.advice == 0, "{sight:?}");
                assert!(keeper.refused.is_none_or(|at| now >= at + PAUSE), "a hot loop");
                assert!(keeper.fault.is_none_or(|at| now >= at + FAULT_PAUSE), "a hot loop after a fault");
                keeper.claim.states.taking();
                keeper.place = Place::Taking(now + Duration::from_millis(random.between(100, 2000)));
            }
        }
    }

    /// The take ends: context and models are there, or it has failed.
    fn end_take(
        &mut self,
        gpu: usize,
        random: &mut Random,
        machine: &mut Machine,
        index: usize,
        now: Instant,
        tally: &mut Tally,
    ) {
        let there = &mut machine.gpus[gpu];
        let keeper = &mut self.keepers[gpu];
        (keeper.place, keeper.queued) = (Place::Away, false);
        if there.sick || !there.on_bus {
            tally.faults += 1;
            assert!(keeper.note(now, &Evidence::Failed("it broke".into())), "it was being taken");
        } else if there.free() < self.required + HEADROOM {
            tally.raced += 1;
            keeper.refused = Some(now);
            let scatter = random.unit();
            keeper.claim.short_of_memory(now, "somebody was faster", scatter);
        } else {
            tally.taken += 1;
            there.held.push((index, self.required));
            keeper.claim.taken(now);
            keeper.changed = now;
            keeper.place = Place::Ours(self.jobs.attach(Some(gpu)));
        }
    }

    /// Gives a GPU back, if it is ours.
    fn leave(
        &mut self,
        gpu: usize,
        why: &str,
        machine: &mut Machine,
        index: usize,
        now: Instant,
        tally: &mut Tally,
    ) {
        let keeper = &mut self.keepers[gpu];
        keeper.queued = false;
        if let Place::Ours(worker) = std::mem::replace(&mut keeper.place, Place::Away) {
            keeper.changed = now;
            let back = keeper.claim.states.retry_at().unwrap_or(now);
            self.jobs.detach(worker, why, back, now, tally);
            machine.give_back(gpu, index);
            assert!(self.keepers[gpu].claim.left(now), "it was ours");
            self.keepers[gpu].restart(now);
        }
    }

    pub(super) fn check(&self, machine: &Machine, index: usize) {
        for (gpu, keeper) in self.keepers.iter().enumerate() {
            let ours = matches!(keeper.place, Place::Ours(_));
            let held = machine.gpus[gpu].held.iter().any(|(holder, _)| *holder == index);
            let claim = &keeper.claim;
            assert_eq!((claim.states.state().runs(), claim.lease.is_held(), held), (ours, ours, ours));
        }
    }

    pub(super) fn check_end(&self, now: Instant) {
        self.jobs.check_end(now);
        for keeper in &self.keepers {
            assert!(now >= keeper.changed + super::STILL, "a GPU has just changed hands");
        }
    }
}

impl Keeper {
    fn note(&mut self, now: Instant, evidence: &Evidence) -> bool {
        let given_up = self.claim.note(now, evidence);
        if given_up {
            self.fault = Some(now);
        }
        given_up
    }

    fn restart(&mut self, now: Instant) {
        self.claim.lease.restart(now);
        self.waiting_since = now;
    }
}
