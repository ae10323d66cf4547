//! The life of a device as a state machine. Pure: evidence and the time come in; no clock, no lock, no driver.
//!
//! `waiting → warming → serving → suspect → fenced → warming` and so on, and `lost`. A device that is fenced or lost comes back
//! only by being taken anew, and by a forward pass that worked, after a pause that grows while it keeps failing.

use super::{
    super::lease::doubled,
    xid::{self, Follows},
};
use crate::status::{Cause, DeviceState};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// The first pause after a fault, and the longest.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Faults are remembered for so long,
const MEMORY: Duration = Duration::from_secs(600);
/// and of more than so many, the device is given up until it has had a long pause.
const FAULTS_MAX: usize = 5;
/// The pause of what was given up, needs a reset, or is gone: looked at now and then.
const LONG_PAUSE: Duration = Duration::from_secs(60);
/// Suspicion ends when nothing has pointed at a fault for so long.
const CLEAN: Duration = Duration::from_secs(60);
/// Too hot, or braked, for so long before it says something.
const HOT: Duration = Duration::from_secs(30);

/// Something that says how a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// A call failed with an error after which its context cannot be trusted.
    Failed(String),
    /// A call has not come back for so long.
    Stuck(Duration),
    /// An Xid error.
    Xid(u64),
    /// An Xid error whose number is not told.
    UnknownXid,
    /// It does not answer on the bus, or is back there.
    OnBus(bool),
    /// Memory errors that could not be put right, since the driver was loaded.
    Uncorrected(u64),
    /// Rows or pages wait for a reset to be replaced.
    RowsPending(bool),
    /// No row is left to replace one by.
    RowsFailed,
    /// What the driver advises: 0 is nothing, 1 a reset, 2 a reboot, 3 to drain it, 4 to drain and reset it.
    Advice(u64),
    /// Its clocks are lowered, for heat or by its power supply.
    Throttled(bool),
    /// A forward pass with a known answer worked, or what it did instead.
    Canary(Result<(), String>),
}

/// How a device is.
#[derive(Debug, Clone)]
pub struct States {
    state: DeviceState,
    cause: Cause,
    reason: String,
    /// When its last faults were.
    faults: VecDeque<Instant>,
    /// Not taken before.
    not_before: Option<Instant>,
    on_bus: bool,
    uncorrected: Option<u64>,
    throttled_since: Option<Instant>,
    doubted_at: Option<Instant>,
    suspected_since: Option<Instant>,
    /// A reset was advised.
    advised: bool,
    rows_pending: bool,
}

impl Default for States {
    fn default() -> States {
        States {
            state: DeviceState::Waiting,
            cause: Cause::Start,
            reason: "not looked at yet".into(),
            faults: VecDeque::new(),
            not_before: None,
            on_bus: true,
            uncorrected: None,
            throttled_since: None,
            doubted_at: None,
            suspected_since: None,
            advised: false,
            rows_pending: false,
        }
    }
}

impl States {
    /// Where it stands.
    pub fn state(&self) -> DeviceState {
        self.state
    }

    /// What brought it there.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// The same in words.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether it may be taken now, as far as its health goes.
    pub fn may_take(&self, now: Instant) -> bool {
        !self.state.runs()
            && self.state != DeviceState::Warming
            && self.on_bus
            && !self.advised
            && self.not_before.is_none_or(|until| until <= now)
    }

    /// Whether it must show now that it works.
    pub fn canary_due(&self) -> bool {
        self.doubted_at.is_some()
    }

    /// It is not ours, and why.
    pub fn waiting(&mut self, cause: Cause, reason: impl Into<String>) {
        // What is fenced or lost stays so until it is taken anew.
        if !matches!(self.state, DeviceState::Fenced | DeviceState::Lost) {
            self.set(DeviceState::Waiting, cause, reason);
        }
    }

    /// It could be had, but for others; what is fenced or lost stays so until it is taken anew.
    pub fn refused_unless_fenced(&mut self, cause: Cause, reason: impl Into<String>) {
        self.waiting(cause, reason);
    }

    /// It is being taken.
    pub fn taking(&mut self) {
        self.set(DeviceState::Warming, Cause::Taken, "taking it, and loading models");
    }

    /// It was taken, and works.
    pub fn serving(&mut self) {
        self.doubted_at = None;
        self.set(DeviceState::Serving, Cause::Proved, "a forward pass works");
    }

    /// Somebody wants it to be left alone, or does no more.
    pub fn drained(&mut self, drained: bool) {
        match drained {
            true => {
                self.set(DeviceState::Fenced, Cause::Drain, "drained by request; POST …/resume ends that")
            }
            false => {
                self.not_before = None;
                self.faults.clear();
                self.set(DeviceState::Waiting, Cause::Resume, "resumed by request");
            }
        }
    }

    /// It could not be had for another reason than its health.
    pub fn refused(&mut self, cause: Cause, reason: impl Into<String>) {
        self.set(DeviceState::Waiting, cause, reason);
    }

    /// Takes evidence in. True where the device has to be given up now.
    pub fn note(&mut self, now: Instant, evidence: &Evidence) -> bool {
        match evidence {
            Evidence::Failed(reason) => self.fault(now, Cause::Fault, reason.clone()),
            Evidence::Stuck(time) => {
                let reason = format!("a call has not come back for {} s", time.as_secs());
                self.fault(now, Cause::Stuck, reason)
            }
            Evidence::Canary(Err(reason)) => self.fault(now, Cause::Canary, reason.clone()),
            Evidence::Canary(Ok(())) => {
                // Suspicion may have grown since; it stays until nothing has for a while.
                self.doubted_at = None;
                false
            }
            Evidence::Xid(xid) => match xid::follows(*xid) {
                Follows::Nothing => false,
                Follows::Doubt => self.doubt(now, Cause::Xid, format!("Xid {xid}")),
                Follows::Fence => self.fault(now, Cause::Xid, format!("Xid {xid}")),
                Follows::Reset => self.long_fault(now, Cause::Xid, format!("Xid {xid}: it needs a reset")),
                Follows::Gone => self.gone(now, format!("Xid {xid}: it has fallen off the bus")),
            },
            Evidence::UnknownXid => self.doubt(now, Cause::Xid, "an Xid without a number"),
            Evidence::OnBus(true) => {
                self.on_bus = true;
                false
            }
            Evidence::OnBus(false) => {
                let news = self.on_bus || self.state.runs();
                self.on_bus = false;
                news && self.gone(now, "it does not answer on the bus".into())
            }
            Evidence::Uncorrected(count) => {
                let before = self.uncorrected.replace(*count);
                before.is_some_and(|before| *count > before)
                    && self.fault(now, Cause::Ecc, "an uncorrectable memory error")
            }
            Evidence::RowsPending(pending) => {
                let news = *pending && !self.rows_pending;
                self.rows_pending = *pending;
                news && self.doubt(now, Cause::Ecc, "memory rows wait for a reset to be replaced")
            }
            Evidence::RowsFailed => {
                self.runs()
                    && self.long_fault(now, Cause::Ecc, "no spare memory row is left: it needs service")
            }
            Evidence::Advice(advice) => {
                self.advised = *advice != 0;
                self.runs() && self.advised && {
                    let reason = format!("the driver advises {}", advised(*advice));
                    self.long_fault(now, Cause::Advice, reason)
                }
            }
            Evidence::Throttled(false) => {
                self.throttled_since = None;
                false
            }
            Evidence::Throttled(true) => {
                let since = *self.throttled_since.get_or_insert(now);
                let long = now.saturating_duration_since(since) >= HOT;
                long && self.suspect(
                    now,
                    Cause::Thermal,
                    "its clocks have been lowered by heat or its power supply",
                )
            }
        }
    }

    /// What time alone brings: suspicion that nothing confirmed ends.
    pub fn tick(&mut self, now: Instant) {
        let quiet = |since: &Instant| now.saturating_duration_since(*since) >= CLEAN;
        if self.state == DeviceState::Suspect
            && self.doubted_at.is_none()
            && self.throttled_since.is_none()
            && self.suspected_since.as_ref().is_none_or(quiet)
        {
            self.set(DeviceState::Serving, Cause::Clean, "nothing has pointed at a fault for a minute");
        }
    }

    fn runs(&self) -> bool {
        self.state.runs() || self.state == DeviceState::Warming
    }

    /// It must show that it works. Never a reason to give it up.
    fn doubt(&mut self, now: Instant, cause: Cause, reason: impl Into<String>) -> bool {
        if self.state.runs() {
            self.doubted_at = Some(now);
        }
        self.suspect(now, cause, reason)
    }

    fn suspect(&mut self, now: Instant, cause: Cause, reason: impl Into<String>) -> bool {
        if self.state.runs() {
            self.suspected_since = Some(now);
            self.set(DeviceState::Suspect, cause, reason);
        }
        false
    }

    fn fault(&mut self, now: Instant, cause: Cause, reason: impl Into<String>) -> bool {
        self.faults.push_back(now);
        while self.faults.front().is_some_and(|at| now.saturating_duration_since(*at) > MEMORY) {
            self.faults.pop_front();
        }
        let mut reason = reason.into();
        let pause = if self.faults.len() > FAULTS_MAX {
            reason = format!("{reason}; {} faults in ten minutes: it has a long pause", self.faults.len());
            self.faults.truncate(FAULTS_MAX + 1);
            LONG_PAUSE
        } else {
            doubled(PAUSE, self.faults.len() as u32 - 1, PAUSE_MAX)
        };
        self.fence(DeviceState::Fenced, now + pause, cause, reason)
    }

    fn long_fault(&mut self, now: Instant, cause: Cause, reason: impl Into<String>) -> bool {
        self.fence(DeviceState::Fenced, now + LONG_PAUSE, cause, reason)
    }

    fn gone(&mut self, now: Instant, reason: String) -> bool {
        self.fence(DeviceState::Lost, now + LONG_PAUSE, Cause::Bus, reason)
    }

    fn fence(&mut self, state: DeviceState, until: Instant, cause: Cause, reason: impl Into<String>) -> bool {
        self.not_before = Some(self.not_before.map_or(until, |before| before.max(until)));
        self.doubted_at = None;
        let ours = self.runs();
        // Who drained it has the last word, and what is lost is not merely fenced.
        let stronger =
            self.cause == Cause::Drain || (self.state == DeviceState::Lost && state != DeviceState::Lost);
        if !stronger {
            self.set(state, cause, reason);
        }
        ours
    }

    fn set(&mut self, state: DeviceState, cause: Cause, reason: impl Into<String>) {
        (self.state, self.cause, self.reason) = (state, cause, reason.into());
    }
}

fn advised(advice: u64) -> &'static str {
    match advice {
        1 => "a reset",
        2 => "a reboot",
        3 => "to drain it",
        4 => "to drain and reset it",
        _ => "something that this version does not know",
    }
}
