//! Whether a GPU may be taken now, and taking it.

use super::{
    super::super::{
        book::Presence,
        claim::{Decision, Next, Want},
        health::{Over, states::Evidence},
        lease::{self, turns::Turn},
        parts::NO_MODEL,
        probe::Sample,
        refusal::Refusal,
    },
    Keeper, Known,
};
use crate::{
    engine::cuda::headroom_bytes,
    random::Random,
    status::{Cause, HeldModel},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long the models of the start wait for a first look.
const UNSEEN: Duration = Duration::from_secs(10);

impl Keeper {
    /// Takes the GPU, if it may be taken.
    pub(super) fn wait(&mut self, now: Instant) {
        let step = self.consider(now);
        if let Some(true) = step {
            self.take(now);
        }
        if step.is_some() && !std::mem::replace(&mut self.decided, true) {
            self.devices.keepers.decide();
        }
        self.patience(now);
    }

    /// Whether to take it now; `None` if that is not known yet.
    fn consider(&mut self, now: Instant) -> Option<bool> {
        // A place in the queue is only for a server that may take the GPU soon: one that cannot must not hold up others.
        let ticket = self.ticket.take();
        // Of one that is not to be taken, nothing is decided.
        self.seen.verdict.clear();
        let ended = self.ending.is_done();
        if ended && std::mem::take(&mut self.leaves) {
            self.has_left();
        }
        if self.drained || !ended || !self.claim.states.may_take(now) {
            return Some(false);
        }
        if !self.devices.book.needs(self.index) {
            self.claim.waiting(Cause::Empty, NO_MODEL);
            return Some(false);
        }
        if self.idle {
            let (busy, requests) = self.devices.book.activity(self.index, &self.devices.parts.queue);
            if !self.activity.note(busy, requests, now) {
                return Some(false);
            }
            self.restart(now);
        }
        let want = self.want();
        self.seen.memory_needed_bytes = Some(want.needed());
        let (looked, began) = match self.senses.look(&self.gpu, self.sample.is_some(), self.began, now) {
            Known::Nothing => (None, None),
            Known::Silence => {
                self.claim.waiting(Cause::Contended, "NVML does not answer: it is not known who uses it");
                let waited = now.saturating_duration_since(self.began);
                return (self.decided || waited >= UNSEEN).then_some(false);
            }
            Known::Look { began, sample, .. } => (Some(self.others(&sample)), Some(began)),
        };
        let Decision { next, verdict, needed } = self.claim.decide(now, looked.as_ref(), &want);
        self.seen.memory_needed_bytes = Some(needed);
        self.seen.verdict = verdict.to_owned();
        self.ticket = ticket.filter(|_| next != Next::Leave);
        match next {
            Next::Leave | Next::Stay => Some(false),
            Next::QueueUp => {
                self.queue_up();
                Some(false)
            }
            Next::Take => Some(self.turn(began)),
        }
    }

    /// What we need of its memory.
    fn want(&self) -> Want {
        let Keeper { devices, index, gpu, .. } = self;
        // A context that is there already is not needed once more.
        let without = |bytes: u64| bytes.saturating_sub(self.kept.unwrap_or(0));
        Want {
            required: without(devices.book.required(*index, &gpu.name, gpu.memory_bytes)),
            least: devices.book.least(*index, &gpu.name).map(without),
            headroom: headroom_bytes(gpu.memory_bytes),
            total: gpu.memory_bytes,
        }
    }

    /// What other processes do there.
    fn others(&self, sample: &Sample) -> lease::Occupancy {
        lease::Occupancy {
            others: self.ourselves.others(sample).any(),
            free: sample.memory.map(|memory| memory.free),
            utilization: sample.utilization_percent,
        }
    }

    /// Takes a place in the queue, if there is one. Returns how many servers are before us.
    fn queue_up(&mut self) -> usize {
        if self.ticket.is_none() {
            self.ticket = self.turns.ticket(&self.gpu.id, self.waiting_since);
        }
        self.ticket.as_mut().map_or(0, |ticket| self.turns.ahead(ticket))
    }

    /// Whether it is our turn among the servers of this machine. `looked`: when the last look at the GPU began, if there is any.
    fn turn(&mut self, looked: Option<Instant>) -> bool {
        let ahead = self.queue_up();
        let Some(ticket) = &mut self.ticket else { return true };
        let reason = match ahead {
            0 => match ticket.enter(looked) {
                Turn::Ours => return true,
                Turn::Taken => "another server takes it just now".to_owned(),
                Turn::Look => "another server came first: it is looked at what that one left".to_owned(),
            },
            1 => "another server has waited for it for longer".to_owned(),
            ahead => format!("{ahead} other servers have waited for it for longer"),
        };
        // We still want it: it can be had soon, or others will have it by then.
        self.claim.states.waiting(Cause::Turn, reason);
        false
    }

    /// Lets the next server look at what we have left of it. Models of the start are loaded after it was taken: it is our turn until then.
    pub(super) fn end_turn(&mut self) {
        if !self.devices.book.has_announced() {
            self.ticket = None;
        }
    }

    /// Takes it: context, models, and a forward pass with a known answer.
    fn take(&mut self, now: Instant) {
        let began = now;
        let waited = self.claim.lease.waited(now);
        self.claim.states.taking();
        self.show(now);
        let device = &*self.gpu.id.clone();
        self.before = self.sample.as_ref().map(|(_, sample)| sample.clone());
        let taken = self.devices.devices[self.index].take(&self.devices.parts);
        let tried = match taken {
            Ok(hold) => {
                self.hold = Some(Arc::clone(&hold));
                let loaded = self.devices.catch_up(self.index, &hold);
                let works = loaded.and_then(|()| hold.canary());
                works.and_then(|()| self.devices.begin_with_waiting(self.index, &hold))
            }
            Err(not) => {
                self.hold = not.left;
                Err(not.refusal)
            }
        };
        let now = Instant::now();
        if let Err(refusal) = tried {
            return self.refused(now, &refusal);
        }
        self.end_turn();
        self.waited_before += waited;
        self.claim.taken(now);
        self.activity.touch(now);
        self.devices.book.set_presence(self.index, Presence::Here);
        tracing::info!(device, ?waited, taking_took = ?(now - began), "the GPU serves: a forward pass works");
        if let Some(hold) = &self.hold {
            hold.complete();
            self.devices.try_waiting_on(self.index, hold);
        }
        if let (Some(before), Some(after)) = (self.before.take(), self.senses.fresh(&self.gpu)) {
            let process = self.hold.as_ref().map_or_else(std::process::id, |hold| hold.process());
            let models = self.models().iter().map(HeldModel::bytes).sum();
            self.ourselves = self.ourselves.after(process, models, &before, &after);
            let (held, ours) = (self.ourselves.memory, self.ourselves.is_told(&after));
            // What was there before is known by estimate alone, if nobody tells what we hold.
            if ours || self.kept.is_none() {
                self.devices.book.learn_all(self.index, &self.gpu.name, held, ours);
            }
        }
    }

    /// It could not be taken, or had no room for a model.
    pub(super) fn refused(&mut self, now: Instant, refusal: &Refusal) {
        let (device, reason) = (&*self.gpu.id.clone(), refusal.to_string());
        let failed = self.hold.as_ref().and_then(|hold| match hold.health.over() {
            Some(Over::Failed(reason)) => Some(reason.clone()),
            _ => None,
        });
        let stuck = self.hold.as_ref().and_then(|hold| hold.health.stuck_for(now));
        match (refusal, failed) {
            (Refusal::Memory(_), None) => {
                tracing::warn!(device, reason, "the GPU has no room now; it is tried again");
                // The reason that is published when it leaves.
                self.claim.states.refused(Cause::Memory, reason.as_str());
                self.leave(now, Over::Left);
                self.claim.short_of_memory(now, &reason, Random::anew().unit());
            }
            (Refusal::Poisoned(_), None) => {
                let known = self.claim.states.cause() == Cause::Poisoned;
                self.claim.note(now, &Evidence::Poisoned(reason.clone()));
                // An error only once. Later tries just wait, which is logged at growing intervals.
                match known {
                    false => tracing::error!(
                        device,
                        reason = self.claim.states.reason(),
                        "the GPU is lost to this process; it is tried again, which seldom helps"
                    ),
                    true => tracing::debug!(device, reason, "the GPU is still lost to this process"),
                }
                self.leave(now, Over::Failed(reason));
            }
            // Threads that should have taken it ended with the queue.
            (_, None) if self.devices.keepers.have_ended() && stuck.is_none() => {
                tracing::debug!(device, reason, "the server ends while the GPU is taken");
                self.leave(now, Over::Left);
            }
            (_, failed) => {
                // A refusal that has the fault in it says what was being done besides.
                let reason = failed.filter(|fault| !reason.contains(fault.as_str())).unwrap_or(reason);
                tracing::error!(device, reason, "the GPU cannot be used; it is tried again");
                let failed = || Evidence::Failed(reason.clone());
                self.claim.note(now, &stuck.map_or_else(failed, Evidence::Stuck));
                self.leave(now, Over::Failed(reason));
            }
        }
        self.ticket = None;
    }
}
