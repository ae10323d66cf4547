//! The keeper of a GPU: observes it, obeys operators, looks after it while it is ours, and ends the hold. `taking` is how it becomes
//! ours, `telling` what is reported about it.

mod taking;
mod telling;

use super::{
    super::{
        Devices,
        book::Presence,
        claim::Claim,
        device::Hold,
        health::{Over, states::Evidence},
        lease::turns::{Ticket, Turns},
        parts::NO_MODEL,
        probe::{Sample, events::Happening, others::Ourselves},
    },
    EndingHolds, PAUSE_AFTER_PANIC,
    activity::Activity,
    senses::{Known, Senses},
    survive,
};
use crate::{
    engine::cuda::{self, Gpu},
    status::{Cause, DeviceInfo, DeviceState},
};
use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

/// How long a hold that is over may take to end before the next look.
const SETTLE: Duration = Duration::from_secs(2);

/// The time between tries of a canary while there is no memory for one: of a suspected GPU, and of one that was merely idle.
const CANARY_AGAIN: Duration = Duration::from_secs(5);
const CANARY_AGAIN_IDLE: Duration = Duration::from_secs(30);

/// Looks after one GPU.
pub(super) struct Keeper {
    devices: Arc<Devices>,
    index: usize,
    gpu: Gpu,
    senses: Arc<Senses>,
    turns: Turns,
    claim: Claim,
    ourselves: Ourselves,
    /// Bytes of a context that a library keeps there although we have left; once it is taken again, those that were there before.
    kept: Option<u64>,
    /// The last sample before it was taken, until it is known what we hold there.
    before: Option<Sample>,
    hold: Option<Arc<Hold>>,
    /// The last hold is ending.
    leaves: bool,
    ending: EndingHolds,
    ticket: Option<Ticket>,
    /// The last sample, and when it was taken.
    sample: Option<(Instant, Sample)>,
    seen: DeviceInfo,
    /// The next canary run waits until then.
    canary_after: Instant,
    began: Instant,
    waiting_since: SystemTime,
    drained: bool,
    activity: Activity,
    /// It was given back because nobody needed it.
    idle: bool,
    decided: bool,
    waited_before: Duration,
    next_report: Option<(Instant, Duration)>,
}

impl Keeper {
    pub(super) fn new(devices: Arc<Devices>, index: usize, gpu: Gpu, senses: Arc<Senses>) -> Keeper {
        let now = Instant::now();
        devices.book.set_presence(index, Presence::Awaited(now));
        let turns = Turns::new(devices.sharing.queue_folder.as_deref());
        let seen = DeviceInfo {
            name: Some(gpu.name.clone()),
            memory_bytes: Some(gpu.memory_bytes),
            no_networks: devices.no_onnx(&devices.devices[index]),
            ..DeviceInfo::default()
        };
        Keeper {
            devices,
            index,
            gpu,
            senses,
            turns,
            claim: Claim::new(now),
            ourselves: Ourselves::before(std::process::id()),
            kept: None,
            before: None,
            hold: None,
            leaves: false,
            ending: EndingHolds::default(),
            ticket: None,
            sample: None,
            seen,
            canary_after: now,
            began: now,
            waiting_since: SystemTime::now(),
            drained: false,
            activity: Activity::new(now),
            idle: false,
            decided: false,
            waited_before: Duration::ZERO,
            next_report: None,
        }
    }

    /// Keeps it until the server ends.
    pub(super) fn run(mut self) {
        let devices = Arc::clone(&self.devices);
        let id = self.gpu.id.clone();
        devices.keepers.wait_to_begin();
        loop {
            let turn = survive(&id, || self.attend(Instant::now()));
            let goes_on = match turn {
                Ok(()) => devices.keepers.pause(),
                Err(reason) => {
                    // If this panics as well, that is logged, and the next turn starts from the state it finds.
                    let _ = survive(&id, || self.start_over(Instant::now(), reason));
                    devices.keepers.pause_for(PAUSE_AFTER_PANIC)
                }
            };
            if !goes_on {
                break;
            }
        }
        // Its workers leave with the queue; the thread that joins the devices owns the hold then.
        self.hold = None;
        self.ending.settle(SETTLE);
    }

    /// One turn.
    fn attend(&mut self, now: Instant) {
        self.look(now);
        self.obey(now);
        if self.hold.is_some() {
            self.tend(now);
        } else {
            self.wait(now);
        }
        self.show(now);
    }

    /// A turn panicked somewhere in the middle: the GPU is given back, and taken again like one that failed.
    fn start_over(&mut self, now: Instant, reason: String) {
        self.claim.note(now, &Evidence::Failed(reason.clone()));
        self.hold = self.hold.take().or_else(|| self.devices.devices[self.index].let_go());
        self.leave(now, Over::Failed(reason));
        if !std::mem::replace(&mut self.decided, true) {
            self.devices.keepers.decide();
        }
        self.show(now);
    }

    /// Takes in observations and events.
    fn look(&mut self, now: Instant) {
        let mut evidence = Vec::new();
        for happening in self.senses.happened(&self.gpu) {
            evidence.push(match happening {
                Happening::Xid(xid) => {
                    *self.seen.xids.entry(xid).or_default() += 1;
                    Evidence::Xid(xid)
                }
                Happening::UnknownXid => Evidence::UnknownXid,
                Happening::Lost => Evidence::OnBus(false),
            });
        }
        if let Known::Look { at, sample, .. } =
            self.senses.look(&self.gpu, self.sample.is_some(), self.began, now)
            && self.sample.as_ref().is_none_or(|(before, _)| *before < at)
        {
            evidence.extend(read(&sample));
            self.sample = Some((at, *sample));
        }
        if let Some(hold) = &self.hold {
            hold.look();
            if let Some(Over::Failed(reason)) = hold.health.over() {
                evidence.push(Evidence::Failed(reason.clone()));
            }
            evidence.extend(hold.health.stuck_for(now).map(Evidence::Stuck));
        }
        for evidence in evidence {
            self.heed(now, &evidence);
        }
        self.ending.recall(now, &self.devices.parts.metrics);
        self.claim.states.tick(now);
    }

    /// Gives the GPU up if this is evidence of a fault. Returns whether it was given up.
    fn heed(&mut self, now: Instant, evidence: &Evidence) -> bool {
        let given_up = self.claim.note(now, evidence) && self.hold.is_some();
        if given_up {
            let (device, reason) = (&*self.gpu.id, self.claim.states.reason().to_owned());
            let pause = self.claim.states.retry_at().map(|at| at.saturating_duration_since(now));
            tracing::error!(
                device,
                reason,
                tried_again_in = pause.map(tracing::field::debug),
                "the GPU is taken out; its work goes elsewhere, and it comes back when it works again"
            );
            self.leave(now, Over::Failed(reason));
        }
        given_up
    }

    /// Does what operators asked for.
    fn obey(&mut self, now: Instant) {
        let drained = self.devices.parts.status.is_drained(&self.gpu.id);
        if drained != std::mem::replace(&mut self.drained, drained) {
            let device = &*self.gpu.id;
            if drained {
                tracing::info!(
                    device,
                    "drained by request: the GPU is given back, and left alone until it is resumed"
                );
            } else {
                tracing::info!(device, "resumed by request: the GPU is taken again when others leave it");
                self.devices.book.forgive(self.index);
            }
            self.claim.states.drained(drained);
            if drained {
                self.leave(now, Over::Left);
            }
            self.restart(now);
        }
    }

    /// Ends the hold: its workers finish what they have started, and leave.
    fn leave(&mut self, now: Instant, why: Over) {
        self.ticket = None;
        if let Some(hold) = self.hold.take() {
            // Before its workers leave: jobs that only it can run learn whether to wait. The claim's reason is why it leaves.
            self.expect(now);
            if let Over::Failed(reason) = &why {
                // Threads that wait for a call that hangs there need not wait any longer.
                hold.kill(reason);
            }
            hold.health.end(why);
            // `hold` keeps the remaining reference.
            drop(self.devices.devices[self.index].let_go());
            self.ending.push(hold);
            self.leaves = true;
            self.seen.verdict.clear();
            if self.claim.left(now) {
                self.restart(now);
            }
        }
    }

    /// Once the hold has ended: memory that is held from now on belongs to others, except for a context that a library keeps.
    fn has_left(&mut self) {
        let remains = cuda::remains(&self.gpu) == Some(true);
        let before = self.before.take();
        if !remains {
            (self.ourselves, self.kept) = (Ourselves::before(std::process::id()), None);
            return;
        }
        // Where taking it failed, our id in the list is not known yet.
        if let (Some(before), Some(after)) = (before, self.senses.fresh(&self.gpu)) {
            self.ourselves = self.ourselves.after(std::process::id(), 0, &before, &after);
        }
        let context = match self.devices.book.context(&self.gpu.name) {
            0 => self.ourselves.memory.saturating_sub(self.ourselves.models),
            learned => learned,
        };
        self.ourselves = self.ourselves.left(context);
        self.kept = Some(context);
    }

    /// The wait starts now.
    fn restart(&mut self, now: Instant) {
        self.idle = false;
        self.claim.lease.restart(now);
        self.waiting_since = SystemTime::now();
        self.next_report = None;
        self.devices.book.set_presence(self.index, Presence::Awaited(now));
    }

    /// Looks after a GPU that serves.
    fn tend(&mut self, now: Instant) {
        let Some(hold) = self.hold.clone() else { return };
        self.end_turn();
        // One that is merely idle is not asked while a load may keep its threads, nor by a server that ends.
        let suspected = self.claim.states.state() == DeviceState::Suspect;
        let may_ask = suspected || !(self.devices.is_loading() || self.devices.ends());
        let due = self.claim.states.canary_due(now, hold.health.worked_at());
        if due && may_ask && now >= self.canary_after {
            match hold.canary() {
                Err(refusal) if refusal.may_pass() => {
                    if suspected {
                        let (device, reason) = (&*self.gpu.id, refusal.to_string());
                        tracing::info!(
                            device,
                            reason,
                            "no memory is left to see whether the GPU works: later"
                        );
                    }
                    self.canary_after = now + if suspected { CANARY_AGAIN } else { CANARY_AGAIN_IDLE };
                }
                answered => {
                    let evidence = Evidence::Canary(answered.map_err(|refusal| refusal.to_string()));
                    if self.heed(now, &evidence) {
                        return;
                    }
                }
            }
        }
        if let Err(refusal) = self.devices.catch_up(self.index, &hold) {
            return self.refused(now, &refusal);
        }
        self.devices.try_waiting_on(self.index, &hold);
        // Not while a load may keep its first thread.
        if !self.devices.is_loading() && hold.health.take_freed() {
            hold.trim();
        }
        let (busy, requests) = self.devices.book.activity(self.index, &self.devices.parts.queue);
        // A model that is being loaded needs it, too, however long that takes.
        self.activity.note(busy || self.devices.is_loading(), requests, now);
        let unused = self.activity.unused(now);
        if !self.devices.book.needs(self.index) {
            self.claim.waiting(Cause::Empty, NO_MODEL);
            self.leave(now, Over::Left);
        } else if self.devices.sharing.idle_release.is_some_and(|limit| unused >= limit) {
            tracing::info!(device = &*self.gpu.id, ?unused, "an idle GPU is given back");
            // Requests that come meanwhile wait for it, or run elsewhere.
            self.claim.waiting(Cause::Idle, "nobody needed it; it is taken again when somebody does");
            self.idle = true;
            self.leave(now, Over::Left);
            self.idle = true;
            self.devices.book.set_presence(self.index, Presence::Idle);
        }
    }
}

/// The evidence of health in a sample.
fn read(sample: &Sample) -> Vec<Evidence> {
    let throttled = sample.throttled.map(|why| Evidence::Throttled(why.thermal || why.power_brake));
    let pending = match (sample.rows_pending, sample.pages_pending) {
        (None, None) => None,
        (rows, pages) => Some(Evidence::RowsPending(rows.unwrap_or(false) || pages.unwrap_or(false))),
    };
    [
        sample.on_bus().map(Evidence::OnBus),
        sample.ecc_uncorrected.map(Evidence::Uncorrected),
        pending,
        sample.rows_failed.map(Evidence::RowsFailed),
        sample.recovery_action.map(Evidence::Advice),
        throttled,
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::probe::{GpuId, Throttled},
        *,
    };

    /// Checks the evidence of a sample, besides that the GPU is on the bus.
    fn check(change: impl Fn(&mut Sample), expected: &[Evidence]) {
        let mut sample = Sample::of(GpuId { uuid: "GPU-1".into(), pci: String::new() });
        change(&mut sample);
        assert_eq!(read(&sample), [&[Evidence::OnBus(true)], expected].concat(), "{sample:?}");
    }

    #[test]
    fn each_reading_is_evidence_and_what_cannot_be_read_is_none() {
        check(|_| (), &[]);
        check(|sample| sample.ecc_uncorrected = Some(3), &[Evidence::Uncorrected(3)]);
        check(|sample| sample.recovery_action = Some(2), &[Evidence::Advice(2)]);
        for failed in [true, false] {
            check(|sample| sample.rows_failed = Some(failed), &[Evidence::RowsFailed(failed)]);
        }
        for (rows, pages, pending) in
            [(Some(true), None, true), (Some(false), Some(true), true), (Some(false), None, false)]
        {
            let change = |sample: &mut Sample| (sample.rows_pending, sample.pages_pending) = (rows, pages);
            check(change, &[Evidence::RowsPending(pending)]);
        }
        for (thermal, power_brake, power_cap) in
            [(true, false, false), (false, true, false), (false, false, true)]
        {
            let why = Throttled { thermal, power_brake, power_cap };
            // A power cap is common under load.
            check(|sample| sample.throttled = Some(why), &[Evidence::Throttled(!power_cap)]);
        }
    }
}
