//! The keeper of a GPU.

use super::{
    super::{
        Devices,
        book::Presence,
        device::{Hold, Refusal},
        health::{
            Over,
            states::{Evidence, States},
        },
        lease::{
            self, Lease, Step,
            turns::{Ticket, Turns},
        },
        probe::{
            Sample,
            events::Happening,
            others::{Others, Ourselves},
        },
    },
    Ending,
    senses::{Known, Senses},
};
use crate::{
    batch::queue::Absence,
    config::WhileWaiting,
    engine::cuda::Gpu,
    status::{Cause, DeviceState, Seen},
};
use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

/// How long a hold that is over may take to end before the next look.
const SETTLE: Duration = Duration::from_secs(2);
/// What it may take to take a GPU, for those who wait for it.
const TAKING: Duration = Duration::from_secs(2);
/// Between two lines of the log on one wait, at first; twice as long each time.
const REPORT: Duration = Duration::from_secs(5);
const REPORT_MAX: Duration = Duration::from_secs(300);

/// Looks after one GPU.
pub(super) struct Keeper {
    devices: Arc<Devices>,
    index: usize,
    gpu: Gpu,
    senses: Arc<Senses>,
    turns: Turns,
    lease: Lease,
    states: States,
    ourselves: Ourselves,
    hold: Option<Arc<Hold>>,
    ending: Ending,
    ticket: Option<Ticket>,
    /// The last sample, and when it was taken.
    sample: Option<(Instant, Sample)>,
    seen: Seen,
    began: Instant,
    waiting_since: SystemTime,
    drained: bool,
    /// Requests that its models had met, when that last changed.
    activity: (u64, Instant),
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
        let seen =
            Seen { name: Some(gpu.name.clone()), memory_bytes: Some(gpu.memory_bytes), ..Seen::default() };
        Keeper {
            devices,
            index,
            gpu,
            senses,
            turns,
            lease: Lease::new(now),
            states: States::default(),
            ourselves: Ourselves::before(std::process::id()),
            hold: None,
            ending: Ending::default(),
            ticket: None,
            sample: None,
            seen,
            began: now,
            waiting_since: SystemTime::now(),
            drained: false,
            activity: (0, now),
            idle: false,
            decided: false,
            waited_before: Duration::ZERO,
            next_report: None,
        }
    }

    /// Keeps it until the server ends.
    pub(super) fn run(mut self) {
        self.devices.keepers.wait_to_begin();
        loop {
            let now = Instant::now();
            self.look(now);
            self.obey(now);
            if self.hold.is_some() {
                self.tend(now);
            } else {
                self.wait(now);
            }
            self.show(now);
            if !self.devices.keepers.pause() {
                break;
            }
        }
        // Its workers leave with the queue; whoever joins the devices has the hold then.
        self.hold = None;
        self.ending.settle(SETTLE);
    }

    /// Takes in what is seen and heard.
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
        if let Known::Look(at, sample) = self.senses.look(&self.gpu, self.began, now)
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
            let limit = self.devices.sharing.stuck_timeout;
            if let (Some(busy), Some(limit)) = (hold.health.busy_for(now), limit)
                && busy >= limit
            {
                evidence.push(Evidence::Stuck(busy));
            }
        }
        for evidence in evidence {
            if self.states.note(now, &evidence) && self.hold.is_some() {
                let (device, reason) = (&*self.gpu.id, self.states.reason());
                tracing::error!(device, reason, "the GPU is taken out; it comes back when it works again");
                self.leave(now, Over::Failed(reason.to_owned()));
            }
        }
        self.states.tick(now);
    }

    /// Does what somebody asked for.
    fn obey(&mut self, now: Instant) {
        let drained = self.devices.parts.status.is_drained(&self.gpu.id);
        if drained != std::mem::replace(&mut self.drained, drained) {
            let device = &*self.gpu.id;
            tracing::info!(device, drained, "asked to leave the GPU alone, or to use it again");
            if drained {
                self.leave(now, Over::Left);
            }
            self.states.drained(drained);
            self.restart(now);
        }
    }

    /// Ends the hold: its workers finish what they have begun, and leave.
    fn leave(&mut self, now: Instant, why: Over) {
        self.ticket = None;
        if let Some(hold) = self.hold.take() {
            // Before its workers leave: jobs that only it can run are told whether to wait.
            self.expect(now);
            if let Over::Failed(reason) = &why {
                // Whoever waits for something that hangs there need wait no more.
                hold.kill(reason);
            }
            hold.health.end(why);
            // Ours is the other one.
            drop(self.devices.devices[self.index].let_go());
            self.ending.push(hold);
            if self.lease.is_held() {
                self.lease.given_back(now);
                self.restart(now);
            }
        }
    }

    /// Tells the queue why the GPU is away, and when it should be back.
    fn expect(&self, now: Instant) {
        let back = match self.states.state() {
            _ if self.drained => None,
            _ if self.idle => Some(now),
            DeviceState::Lost => None,
            DeviceState::Fenced => self.states.retry_at().map(|at| at.max(now) + TAKING),
            // Whoever is to wait for it does so for as long as there is hope.
            _ if self.devices.sharing.while_waiting == WhileWaiting::Wait => Some(now),
            DeviceState::Warming => Some(now + TAKING),
            _ if self.states.cause() == Cause::Memory => Some(now + TAKING),
            _ => None,
        };
        let absence = Absence { reason: self.states.reason().into(), back };
        self.devices.parts.queue.expect(&self.devices.devices[self.index].id, absence);
    }

    /// Waiting begins now.
    fn restart(&mut self, now: Instant) {
        self.idle = false;
        self.lease.restart(now);
        self.waiting_since = SystemTime::now();
        self.next_report = None;
        self.devices.book.set_presence(self.index, Presence::Awaited(now));
    }

    /// Looks after a GPU that serves.
    fn tend(&mut self, now: Instant) {
        let Some(hold) = self.hold.clone() else { return };
        if self.states.canary_due() {
            let evidence = Evidence::Canary(hold.canary());
            if self.states.note(now, &evidence) {
                return self.leave(now, Over::Failed(self.states.reason().to_owned()));
            }
        }
        if let Err(refusal) = self.devices.catch_up(self.index, &hold) {
            return self.refused(now, &refusal);
        }
        let (busy, met) = self.devices.book.activity(self.index, &self.devices.parts.queue);
        if busy || met != self.activity.0 {
            self.activity = (met, now);
        }
        let unused = now.saturating_duration_since(self.activity.1);
        if !self.devices.book.needs(self.index) {
            self.leave(now, Over::Left);
            self.states.waiting(Cause::Empty, super::super::supervisor::NO_MODEL);
        } else if self.devices.sharing.idle_release.is_some_and(|limit| unused >= limit) {
            tracing::info!(device = &*self.gpu.id, ?unused, "an idle GPU is given back");
            // Requests that come meanwhile wait for it, or run elsewhere.
            self.idle = true;
            self.leave(now, Over::Left);
            self.idle = true;
            self.devices.book.set_presence(self.index, Presence::Idle);
            self.states.waiting(Cause::Idle, "nobody needed it; it is taken again when somebody does");
        }
    }

    /// Takes the GPU, if it may be had.
    fn wait(&mut self, now: Instant) {
        let step = self.consider(now);
        if let Some(true) = step {
            self.take(now);
        }
        if step.is_some() && !std::mem::replace(&mut self.decided, true) {
            self.devices.keepers.decide();
        }
        self.patience(now);
    }

    /// Whether to take it now; none where that is not known yet.
    fn consider(&mut self, now: Instant) -> Option<bool> {
        let ended = self.ending.is_done();
        if self.drained || !ended || !self.states.may_take(now) {
            return Some(false);
        }
        if !self.devices.book.needs(self.index) {
            self.states.waiting(Cause::Empty, super::super::supervisor::NO_MODEL);
            return Some(false);
        }
        if self.idle {
            let (busy, met) = self.devices.book.activity(self.index, &self.devices.parts.queue);
            if !busy && met == self.activity.0 {
                return Some(false);
            }
            self.activity = (met, now);
            self.restart(now);
        }
        let required = self.devices.book.required(self.index, &self.gpu.name);
        self.seen.memory_needed_bytes = Some(lease::needed(required));
        let looked = match self.senses.look(&self.gpu, self.began, now) {
            Known::Nothing => None,
            Known::Silence => {
                self.states.waiting(Cause::Contended, "NVML does not answer: it is not known who uses it");
                return self.decided.then_some(false);
            }
            Known::Look(_, sample) => Some(self.others(&sample)),
        };
        let step = self.lease.look(now, looked.as_ref(), required);
        self.seen.verdict = verdict(&step, looked.as_ref());
        match step {
            Step::Take => Some(self.turn()),
            Step::Contended(contention) => {
                self.ticket = None;
                self.states.refused_unless_fenced(Cause::Contended, contention.to_string());
                Some(false)
            }
            Step::Calming(_) => {
                self.queue_up();
                self.states
                    .refused_unless_fenced(Cause::Contended, "free again; it has to stay so for a moment");
                Some(false)
            }
            Step::Pausing(_) => Some(false),
        }
    }

    /// What others do there.
    fn others(&self, sample: &Sample) -> lease::Seen {
        lease::Seen {
            others: self.ourselves.others(sample).any(),
            free: sample.memory.map(|memory| memory.free),
            utilization: sample.utilization_percent,
        }
    }

    fn queue_up(&mut self) {
        if self.ticket.is_none() {
            self.ticket = self.turns.ticket(&self.gpu.id, self.waiting_since);
        }
    }

    /// Whether it is our turn, among the servers of this machine.
    fn turn(&mut self) -> bool {
        self.queue_up();
        let Some(ticket) = &mut self.ticket else { return true };
        let ahead = self.turns.ahead(ticket);
        if ahead == 0 && ticket.enter() {
            return true;
        }
        let reason = match ahead {
            0 => "another server takes it just now".to_owned(),
            ahead => format!("{ahead} servers waited for it before this one"),
        };
        self.states.refused_unless_fenced(Cause::Turn, reason);
        false
    }

    /// Takes it: context, models, and a forward pass with a known answer.
    fn take(&mut self, now: Instant) {
        let began = now;
        let waited = self.lease.waited(now);
        self.states.taking();
        self.show(now);
        let device = &*self.gpu.id.clone();
        let before = self.sample.as_ref().map(|(_, sample)| sample.clone());
        let taken = self.devices.devices[self.index].take(&self.devices.parts);
        let tried = taken.and_then(|hold| {
            self.hold = Some(Arc::clone(&hold));
            self.devices.catch_up(self.index, &hold)?;
            hold.canary().map_err(Refusal::Failed)
        });
        let now = Instant::now();
        if let Err(refusal) = tried {
            return self.refused(now, &refusal);
        }
        self.ticket = None;
        self.waited_before += waited;
        self.lease.taken(now);
        self.states.serving();
        self.activity.1 = now;
        self.devices.book.set_presence(self.index, Presence::Here);
        tracing::info!(device, ?waited, took = ?(now - began), "the GPU serves");
        self.devices.load_waiting();
        if let (Some(before), Some(after)) = (before, self.senses.fresh(&self.gpu)) {
            let process = self.hold.as_ref().map_or_else(std::process::id, |hold| hold.process());
            self.ourselves = Ourselves::after(process, &before, &after);
            self.devices.book.learn_all(self.index, &self.gpu.name, self.ourselves.memory);
        }
    }

    /// It could not be had, or had no room for a model.
    fn refused(&mut self, now: Instant, refusal: &Refusal) {
        let (device, reason) = (&*self.gpu.id.clone(), refusal.to_string());
        let failed = self.hold.as_ref().and_then(|hold| match hold.health.over() {
            Some(Over::Failed(reason)) => Some(reason.clone()),
            _ => None,
        });
        match (refusal, failed) {
            (Refusal::Memory(_), None) => {
                tracing::warn!(device, reason, "the GPU has too little free memory; it is tried again");
                self.leave(now, Over::Left);
                self.states.refused(Cause::Memory, reason);
                self.lease.failed(now, scatter(now));
            }
            (_, failed) => {
                let reason = failed.unwrap_or(reason);
                tracing::error!(device, reason, "the GPU cannot be used; it is tried again");
                self.states.note(now, &Evidence::Failed(reason.clone()));
                self.leave(now, Over::Failed(reason));
            }
        }
        self.ourselves = Ourselves::before(std::process::id());
        self.ticket = None;
    }

    /// What waiting too long brings, and what is said of it meanwhile.
    fn patience(&mut self, now: Instant) {
        let waited = self.lease.waited(now);
        if self.hold.is_some() || self.idle || self.drained || !self.devices.book.needs(self.index) {
            return;
        }
        let available = self.seen.memory_free_bytes;
        let (required, reason) = (self.seen.memory_needed_bytes, self.states.reason());
        let device = &*self.gpu.id;
        let (due, pause) = *self.next_report.get_or_insert((now + REPORT, REPORT));
        if now >= due {
            tracing::info!(device, elapsed = ?waited, available, required, reason, "waiting for the GPU");
            let pause = (pause * 2).min(REPORT_MAX);
            self.next_report = Some((now + pause, pause));
        }
        if let Some(limit) = self.devices.sharing.gpu_timeout
            && waited >= limit
            && self.devices.devices.iter().all(|device| device.hold().is_none())
        {
            let reason = format!(
                "backend is gpu, and none could be had for {} s (gpu_timeout_ms): {device} is {} ({reason})",
                waited.as_secs(),
                self.states.state().name()
            );
            self.devices.parts.status.give_up(reason);
        }
    }

    /// Publishes where it stands.
    fn show(&mut self, now: Instant) {
        let (state, cause, reason) = (self.states.state(), self.states.cause(), self.states.reason());
        let status = &self.devices.parts.status;
        if status.set_device(&self.gpu.id, state, cause, reason) {
            if self.hold.is_none() {
                self.expect(now);
            }
            let level_is_bad = matches!(state, DeviceState::Fenced | DeviceState::Lost);
            if !level_is_bad {
                tracing::info!(
                    device = &*self.gpu.id,
                    state = state.name(),
                    reason,
                    "the GPU's state changed"
                );
            }
        }
        if let Some((_, sample)) = &self.sample {
            fill(&mut self.seen, sample, &self.ourselves);
        }
        if self.hold.is_some() {
            self.seen.verdict = match &self.seen.processes {
                Some(others) if others.is_empty() => "ours".into(),
                Some(others) => format!("ours, shared with {} processes", others.len()),
                None => "ours".into(),
            };
        }
        self.seen.waited = self.waited_before + self.lease.waited(now);
        status.see_device(&self.gpu.id, self.seen.clone());
    }
}

/// What a sample says of a GPU's health.
fn read(sample: &Sample) -> Vec<Evidence> {
    let throttled = sample.throttled.map(|why| Evidence::Throttled(why.thermal || why.power_brake));
    let pending = match (sample.rows_pending, sample.pages_pending) {
        (None, None) => None,
        (rows, pages) => Some(Evidence::RowsPending(rows.unwrap_or(false) || pages.unwrap_or(false))),
    };
    [
        Some(Evidence::OnBus(!sample.lost)),
        sample.ecc_uncorrected.map(Evidence::Uncorrected),
        pending,
        sample.rows_failed.and_then(|failed| failed.then_some(Evidence::RowsFailed)),
        sample.recovery_action.map(Evidence::Advice),
        throttled,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What a sample says to people.
fn fill(seen: &mut Seen, sample: &Sample, ourselves: &Ourselves) {
    let others = ourselves.others(sample);
    seen.memory_free_bytes = sample.memory.map(|memory| memory.free);
    seen.memory_own_bytes = Some(ourselves.memory);
    seen.others_bytes = others.memory();
    seen.processes = match others {
        Others::Processes(list) => Some(list.iter().map(|process| (process.pid, process.memory)).collect()),
        Others::Memory(_) | Others::Unknown => None,
    };
    seen.utilization_percent = sample.utilization_percent;
    seen.temperature_c = sample.temperature_c;
    seen.power_w = sample.power_mw.map(|power| f64::from(power) / 1000.0);
    seen.energy_j = sample.energy_mj.map(|energy| energy as f64 / 1000.0);
    seen.ecc_uncorrected = sample.ecc_uncorrected;
}

fn verdict(step: &Step, looked: Option<&lease::Seen>) -> String {
    match (step, looked) {
        (Step::Contended(_), _) => "contended".into(),
        (Step::Calming(_), _) => "calming".into(),
        (Step::Pausing(_), _) => "tried a moment ago".into(),
        (Step::Take, None) => "unknown: no NVML".into(),
        (Step::Take, Some(_)) => "free".into(),
    }
}

/// From 0 to 1; differs from process to process and from time to time.
fn scatter(now: Instant) -> f64 {
    use std::hash::{BuildHasher, RandomState};
    (RandomState::new().hash_one(now) >> 40) as f64 / f64::from(1u32 << 24)
}
