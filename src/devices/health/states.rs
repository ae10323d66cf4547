//! The life of a device as a state machine. Pure: evidence and the time come in; no clock, no lock, no driver.
//!
//! `waiting → warming → serving → suspect → fenced → warming` and so on, and `lost`. A device that is fenced or lost comes back only by
//! being taken anew, with a forward pass that works, after a pause that grows while it keeps failing.

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
/// How long faults are remembered.
const MEMORY: Duration = Duration::from_secs(600);
/// After more faults than this within [`MEMORY`], the device gets a long pause.
const FAULTS_MAX: usize = 5;
/// The pause of a device that fails too often, needs a reset, or is gone: it is looked at now and then.
const LONG_PAUSE: Duration = Duration::from_secs(60);
/// Suspicion ends when there was no sign of a fault for this long.
const CLEAN: Duration = Duration::from_secs(60);
/// How long a device that has no work may go without a proof that it works. Its context may die while it is idle (a fault of another
/// process, a driver that is restarted), and nothing else tells.
const UNPROVED_MAX: Duration = Duration::from_secs(30);
/// How long clocks must be lowered before that counts as a sign of a fault.
const HOT: Duration = Duration::from_secs(30);

/// What to do about a GPU that only another process can use.
const POISONED: &str = "this process cannot use the GPU again after the fault: restart the server, or run it with isolation = \
                        \"process\", which needs no restart";

/// What is wrong where rows or pages wait to be replaced.
const ROWS_PENDING: &str = "memory rows wait for a reset to be replaced";

/// An observation of a device's condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// A call failed with an error after which its context cannot be trusted.
    Failed(String),
    /// It could not be taken, because of an error that only running work causes. None ran now, but earlier work of this process has
    /// failed there.
    Poisoned(String),
    /// A call has not returned for so long.
    Stuck(Duration),
    /// An Xid error.
    Xid(u64),
    /// An Xid error without a known number.
    UnknownXid,
    /// It does not answer on the bus (false), or is back there (true).
    OnBus(bool),
    /// Uncorrected memory errors since the driver was loaded.
    Uncorrected(u64),
    /// Rows or pages wait for a reset to be replaced.
    RowsPending(bool),
    /// Whether a row could not be replaced, for want of spare rows.
    RowsFailed(bool),
    /// The recovery action that the driver advises, by its number in NVML: 0 is none.
    Advice(u64),
    /// Whether its clocks are lowered, because of heat or by its power supply.
    Throttled(bool),
    /// A forward pass with a known answer worked, or what happened instead.
    Canary(Result<(), String>),
}

/// A device's condition.
#[derive(Debug, Clone)]
pub struct States {
    state: DeviceState,
    cause: Cause,
    reason: String,
    /// When its last faults were.
    faults: VecDeque<Instant>,
    /// It is not taken before this time.
    not_before: Option<Instant>,
    on_bus: bool,
    uncorrected: Option<u64>,
    throttled_since: Option<Instant>,
    doubted_at: Option<Instant>,
    proved_at: Option<Instant>,
    suspected_since: Option<Instant>,
    /// A reset was advised.
    advised: bool,
    rows_pending: bool,
    /// It needs service.
    rows_failed: bool,
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
            proved_at: None,
            suspected_since: None,
            advised: false,
            rows_pending: false,
            rows_failed: false,
        }
    }
}

impl States {
    /// The current state.
    pub fn state(&self) -> DeviceState {
        self.state
    }

    /// The cause of this state.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// The cause in words.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether it may be taken now, as far as its health goes.
    pub fn may_take(&self, now: Instant) -> bool {
        !self.state.runs()
            && self.state != DeviceState::Warming
            && self.on_bus
            && !self.is_barred()
            && self.not_before.is_none_or(|until| until <= now)
    }

    /// When it may be tried again at the earliest. `None` if that is now, or only once what bars it is gone.
    pub fn retry_at(&self) -> Option<Instant> {
        self.not_before.filter(|_| !self.is_barred())
    }

    /// Whether it is not taken for as long as a condition lasts, however long that is.
    fn is_barred(&self) -> bool {
        self.advised || self.rows_failed
    }

    /// Whether it must now prove that it works: there is a doubt, or it has had no work for long that would have shown it. `worked_at`:
    /// when it last had any.
    pub fn canary_due(&self, now: Instant, worked_at: Instant) -> bool {
        let known_at = self.proved_at.map_or(worked_at, |at| at.max(worked_at));
        let unproved = now.saturating_duration_since(known_at);
        self.doubted_at.is_some() || (self.state.runs() && unproved >= UNPROVED_MAX)
    }

    /// It is not ours, and why.
    pub fn waiting(&mut self, cause: Cause, reason: impl Into<String>) {
        // A device that is fenced or lost stays so until it is taken anew.
        if !matches!(self.state, DeviceState::Fenced | DeviceState::Lost) {
            self.set(DeviceState::Waiting, cause, reason);
        }
    }

    /// It is being taken. If this process could not take it before, the state keeps saying so until it can.
    pub fn taking(&mut self) {
        match self.cause {
            Cause::Poisoned => self.state = DeviceState::Warming,
            _ => self.set(DeviceState::Warming, Cause::Taken, "taking it, and loading models"),
        }
    }

    /// It was taken, and works. What pointed at a fault before, and still does, makes it suspect.
    pub fn serving(&mut self, now: Instant) {
        self.doubted_at = None;
        self.proved_at = Some(now);
        self.set(DeviceState::Serving, Cause::Proved, "a forward pass works");
        if self.rows_pending {
            self.doubt(now, Cause::Ecc, ROWS_PENDING);
        }
    }

    /// An operator wants it to be left alone, or no longer does.
    pub fn drained(&mut self, drained: bool) {
        match drained {
            true => {
                self.set(DeviceState::Fenced, Cause::Drain, "drained by request; POST …/resume ends that");
            }
            false => {
                self.not_before = None;
                self.faults.clear();
                self.set(DeviceState::Waiting, Cause::Resume, "resumed by request");
            }
        }
    }

    /// It could not be taken for another reason than its health.
    pub fn refused(&mut self, cause: Cause, reason: impl Into<String>) {
        self.set(DeviceState::Waiting, cause, reason);
    }

    /// Takes in evidence. True if the device has to be given up now.
    pub fn note(&mut self, now: Instant, evidence: &Evidence) -> bool {
        match evidence {
            Evidence::Failed(reason) => self.fault(now, Cause::Fault, reason.clone()),
            Evidence::Poisoned(reason) => self.fault(now, Cause::Poisoned, format!("{POISONED} ({reason})")),
            Evidence::Stuck(time) => self.fault(now, Cause::Stuck, super::hangs(*time)),
            Evidence::Canary(Err(reason)) => self.fault(now, Cause::Canary, reason.clone()),
            Evidence::Canary(Ok(())) => {
                // Suspicion may have grown meanwhile; it stays until there was no sign of a fault for a while.
                self.doubted_at = None;
                self.proved_at = Some(now);
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
                // One that was drained and is resumed is not known for lost any more.
                let news = self.on_bus || self.state.runs() || self.state == DeviceState::Waiting;
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
                news && self.doubt(now, Cause::Ecc, ROWS_PENDING)
            }
            Evidence::RowsFailed(failed) => {
                self.rows_failed = *failed;
                *failed && self.bar(now, Cause::Ecc, "no spare memory row is left: it needs service".into())
            }
            Evidence::Advice(advice) => {
                let (words, follows) = advised(*advice);
                let reason = || format!("the driver advises {words}");
                self.advised = follows == Follows::Reset;
                match follows {
                    Follows::Reset => self.bar(now, Cause::Advice, reason()),
                    Follows::Doubt => self.suspect(now, Cause::Advice, reason()),
                    _ => false,
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

    /// Effects of time alone: unconfirmed suspicion ends.
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

    /// It must prove that it works. Never a reason to give it up.
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
            // Drops the oldest: as long as the device keeps failing, there are this many within the time.
            self.faults.pop_front();
            LONG_PAUSE
        } else {
            doubled(PAUSE, self.faults.len() as u32 - 1, PAUSE_MAX)
        };
        self.fence(DeviceState::Fenced, now + pause, cause, reason)
    }

    fn long_fault(&mut self, now: Instant, cause: Cause, reason: impl Into<String>) -> bool {
        self.fence(DeviceState::Fenced, now + LONG_PAUSE, cause, reason)
    }

    /// It is not taken for as long as this condition lasts, without a pause.
    fn bar(&mut self, now: Instant, cause: Cause, reason: String) -> bool {
        if self.runs() {
            return self.long_fault(now, cause, reason);
        }
        if self.state == DeviceState::Waiting {
            self.set(DeviceState::Fenced, cause, reason);
        }
        false
    }

    fn gone(&mut self, now: Instant, reason: String) -> bool {
        self.fence(DeviceState::Lost, now + LONG_PAUSE, Cause::Bus, reason)
    }

    fn fence(&mut self, state: DeviceState, until: Instant, cause: Cause, reason: impl Into<String>) -> bool {
        self.not_before = Some(self.not_before.map_or(until, |before| before.max(until)));
        self.doubted_at = None;
        let ours = self.runs();
        // A drain has the last word, and a lost device is not merely fenced.
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

/// The driver's advice in words, and what follows. Advice about traffic between GPUs does not concern us: each of our GPUs works alone.
fn advised(advice: u64) -> (&'static str, Follows) {
    match advice {
        0 => ("nothing", Follows::Nothing),
        1 => ("a reset", Follows::Reset),
        2 => ("a reboot of its machine", Follows::Reset),
        3 => ("to end its traffic with other GPUs (P2P)", Follows::Doubt),
        4 => ("to drain and reset it", Follows::Reset),
        5 => ("to recover the GPUs' IMEX domain", Follows::Doubt),
        6 => ("a reset of its bus", Follows::Reset),
        7 => ("a reboot of the system", Follows::Reset),
        _ => ("something that this version does not know", Follows::Reset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn serving() -> States {
        let mut states = States::default();
        states.taking();
        states.serving(Instant::now());
        states
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_kind_of_evidence_has_its_consequence() {
        use DeviceState::{Fenced, Lost, Serving, Suspect};
        let broken = || "it broke".to_owned();
        for (evidence, state, cause, given_up) in [
            (Evidence::Failed(broken()), Fenced, Cause::Fault, true),
            (Evidence::Poisoned(broken()), Fenced, Cause::Poisoned, true),
            (Evidence::Stuck(s(61)), Fenced, Cause::Stuck, true),
            (Evidence::Xid(13), Serving, Cause::Proved, false),
            (Evidence::Xid(63), Suspect, Cause::Xid, false),
            (Evidence::Xid(48), Fenced, Cause::Xid, true),
            (Evidence::Xid(74), Fenced, Cause::Xid, true),
            (Evidence::Xid(119), Fenced, Cause::Xid, true),
            (Evidence::Xid(79), Lost, Cause::Bus, true),
            (Evidence::UnknownXid, Suspect, Cause::Xid, false),
            (Evidence::OnBus(true), Serving, Cause::Proved, false),
            (Evidence::OnBus(false), Lost, Cause::Bus, true),
            (Evidence::RowsPending(true), Suspect, Cause::Ecc, false),
            (Evidence::RowsFailed(true), Fenced, Cause::Ecc, true),
            (Evidence::RowsFailed(false), Serving, Cause::Proved, false),
            (Evidence::Advice(0), Serving, Cause::Proved, false),
            (Evidence::Advice(1), Fenced, Cause::Advice, true),
            (Evidence::Advice(3), Suspect, Cause::Advice, false),
            (Evidence::Advice(4), Fenced, Cause::Advice, true),
            (Evidence::Advice(5), Suspect, Cause::Advice, false),
            (Evidence::Advice(7), Fenced, Cause::Advice, true),
            (Evidence::Advice(99), Fenced, Cause::Advice, true),
            (Evidence::Xid(154), Suspect, Cause::Xid, false),
            (Evidence::Canary(Ok(())), Serving, Cause::Proved, false),
            (Evidence::Canary(Err(broken())), Fenced, Cause::Canary, true),
        ] {
            let mut states = serving();
            assert_eq!(states.note(Instant::now(), &evidence), given_up, "{evidence:?}");
            assert_eq!((states.state(), states.cause()), (state, cause), "{evidence:?}");
        }
    }

    #[test]
    fn uncorrected_errors_count_from_when_they_were_first_read() {
        let (now, mut states) = (Instant::now(), serving());
        assert!(!states.note(now, &Evidence::Uncorrected(7)), "they are older than we are");
        assert!(!states.note(now, &Evidence::Uncorrected(7)));
        assert!(states.note(now, &Evidence::Uncorrected(8)));
        assert_eq!(states.cause(), Cause::Ecc);
    }

    #[test]
    fn heat_is_suspicious_when_it_lasts_and_forgiven_when_it_has_gone() {
        let (t0, mut states) = (Instant::now(), serving());
        states.note(t0, &Evidence::Throttled(true));
        states.note(t0 + s(29), &Evidence::Throttled(true));
        assert_eq!(states.state(), DeviceState::Serving);
        states.note(t0 + s(30), &Evidence::Throttled(true));
        assert_eq!(
            (states.state(), states.canary_due(t0 + s(30), t0 + s(30))),
            (DeviceState::Suspect, false)
        );
        states.note(t0 + s(40), &Evidence::Throttled(false));
        states.tick(t0 + s(89));
        assert_eq!(states.state(), DeviceState::Suspect);
        states.tick(t0 + s(90));
        assert_eq!((states.state(), states.cause()), (DeviceState::Serving, Cause::Clean));
    }

    #[test]
    fn a_doubt_asks_for_a_canary_and_a_good_one_ends_it_in_time() {
        let (t0, mut states) = (Instant::now(), serving());
        states.note(t0, &Evidence::UnknownXid);
        assert!(states.canary_due(t0, t0));
        states.tick(t0 + s(100));
        assert_eq!(states.state(), DeviceState::Suspect, "nothing has shown that it works");
        states.note(t0 + s(1), &Evidence::Canary(Ok(())));
        assert!(!states.canary_due(t0 + s(1), t0));
        states.tick(t0 + s(60));
        assert_eq!(states.state(), DeviceState::Serving);
    }

    #[test]
    fn a_device_that_has_no_work_proves_now_and_then_that_it_works() {
        let (t0, mut states) = (Instant::now(), States::default());
        assert!(!states.canary_due(t0 + s(600), t0), "it is not ours");
        states.taking();
        states.serving(t0);
        let due = |states: &States, at, worked| states.canary_due(t0 + s(at), t0 + s(worked));
        assert_eq!([due(&states, 29, 0), due(&states, 30, 0)], [false, true]);
        assert_eq!([due(&states, 49, 20), due(&states, 50, 20)], [false, true], "its work was a proof");
        states.note(t0 + s(50), &Evidence::Canary(Ok(())));
        assert_eq!([due(&states, 79, 20), due(&states, 80, 20)], [false, true]);
        assert!(states.note(t0 + s(80), &Evidence::Canary(Err("it broke".into()))));
        assert!(!due(&states, 200, 20), "it is given up");
    }

    #[test]
    fn pauses_grow_with_faults_and_many_faults_bring_a_long_one() {
        let (mut now, mut states) = (Instant::now(), serving());
        let mut pauses = Vec::new();
        for _ in 0..8 {
            states.note(now, &Evidence::Failed("again".into()));
            let at = states.retry_at().unwrap();
            pauses.push((at - now).as_secs());
            assert!(!states.may_take(at - Duration::from_millis(1)));
            assert!(states.may_take(at));
            now = at;
            states.taking();
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 60, 60, 60]);
        states.note(now + MEMORY + s(1), &Evidence::Failed("once more".into()));
        assert_eq!(states.retry_at(), Some(now + MEMORY + s(2)), "what is long past is forgotten");
    }

    #[test]
    fn what_fails_after_each_long_pause_never_has_short_ones_again() {
        let (mut now, mut states) = (Instant::now(), serving());
        let mut pauses = Vec::new();
        for _ in 0..60 {
            states.note(now, &Evidence::Failed("again".into()));
            let at = states.retry_at().unwrap();
            pauses.push((at - now).as_secs());
            // Finding out takes a while.
            now = at + s(5);
            states.taking();
        }
        assert_eq!(pauses[..5], [1, 2, 4, 8, 16]);
        assert_eq!(pauses[5..], [60; 55], "an hour later, it is still given up between its tries");
    }

    #[test]
    fn what_this_process_cannot_use_again_is_tried_like_any_other_and_said_until_it_can_be_used() {
        let (mut now, mut states) = (Instant::now(), serving());
        states.note(now, &Evidence::Failed("a kernel failed".into()));
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let at = states.retry_at().unwrap();
            pauses.push((at - now).as_secs());
            now = at;
            states.taking();
            states.note(now, &Evidence::Poisoned("cannot take it: code 700".into()));
            assert_eq!((states.state(), states.cause()), (DeviceState::Fenced, Cause::Poisoned));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 60]);
        let said = states.reason();
        for part in ["restart the server", "isolation = \"process\"", "(cannot take it: code 700)"] {
            assert!(said.contains(part), "{said}");
        }
        let said = said.to_owned();
        states.taking();
        assert_eq!((states.state(), states.cause()), (DeviceState::Warming, Cause::Poisoned));
        assert_eq!(states.reason(), said);
        states.serving(now);
        assert_eq!((states.state(), states.cause()), (DeviceState::Serving, Cause::Proved));
        states.note(now, &Evidence::Failed("a kernel failed again".into()));
        states.taking();
        assert_eq!(states.cause(), Cause::Taken, "what is over is not said of the next fault");
    }

    #[test]
    fn a_short_pause_does_not_end_a_long_one() {
        let (now, mut states) = (Instant::now(), serving());
        states.note(now, &Evidence::Xid(119));
        states.note(now, &Evidence::Failed("it broke".into()));
        assert_eq!(states.retry_at(), Some(now + LONG_PAUSE));
    }

    #[test]
    fn rows_that_wait_for_a_reset_are_news_once() {
        let (now, mut states) = (Instant::now(), serving());
        states.note(now, &Evidence::RowsPending(true));
        assert!(states.canary_due(now, now));
        states.note(now, &Evidence::Canary(Ok(())));
        states.note(now + s(1), &Evidence::RowsPending(true));
        assert!(!states.canary_due(now, now));
        states.note(now + s(2), &Evidence::RowsPending(false));
        states.note(now + s(3), &Evidence::RowsPending(true));
        assert!(states.canary_due(now + s(3), now), "others do");
    }

    #[test]
    fn rows_that_waited_before_the_device_was_taken_are_suspicious_each_time_it_is() {
        let (now, mut states) = (Instant::now(), States::default());
        for taken in [now, now + s(100)] {
            states.note(taken, &Evidence::RowsPending(true));
            states.taking();
            states.serving(taken);
            assert_eq!((states.state(), states.cause()), (DeviceState::Suspect, Cause::Ecc));
            assert!(states.canary_due(taken, taken));
            states.note(taken, &Evidence::Canary(Ok(())));
            states.tick(taken + CLEAN);
            assert_eq!((states.state(), states.cause()), (DeviceState::Serving, Cause::Clean));
            states.note(taken + CLEAN, &Evidence::Failed("it broke".into()));
        }
        states.note(now + s(200), &Evidence::RowsPending(false));
        states.taking();
        states.serving(now + s(200));
        assert_eq!((states.state(), states.cause()), (DeviceState::Serving, Cause::Proved));
    }

    #[test]
    fn what_is_lost_is_not_merely_fenced_by_a_fault_that_follows() {
        let (now, mut states) = (Instant::now(), serving());
        states.note(now, &Evidence::OnBus(false));
        states.note(now, &Evidence::Failed("it broke".into()));
        assert_eq!((states.state(), states.cause()), (DeviceState::Lost, Cause::Bus));
    }

    #[test]
    fn a_device_that_is_not_ours_is_not_taken_for_want_of_spare_rows_or_while_a_reset_is_advised() {
        for (seen, passes, cause, words) in [
            (Evidence::RowsFailed(true), Evidence::RowsFailed(false), Cause::Ecc, "needs service"),
            (Evidence::Advice(1), Evidence::Advice(0), Cause::Advice, "advises a reset"),
        ] {
            let (now, mut states) = (Instant::now(), States::default());
            assert!(!states.note(now, &seen), "it is not given up");
            assert_eq!(
                (states.state(), states.cause(), states.retry_at()),
                (DeviceState::Fenced, cause, None)
            );
            assert!(states.reason().contains(words), "{}", states.reason());
            assert!(!states.may_take(now));
            states.note(now, &passes);
            assert!(states.may_take(now));
        }
    }

    #[test]
    fn a_device_without_spare_rows_is_given_up_once_and_not_taken_again() {
        let (t0, mut states) = (Instant::now(), serving());
        assert!(states.note(t0, &Evidence::RowsFailed(true)));
        assert_eq!(states.retry_at(), None, "nobody can say");
        for at in (1..600).map(|seconds| t0 + s(seconds)) {
            assert!(!states.note(at, &Evidence::RowsFailed(true)));
            assert!(!states.may_take(at));
        }
        assert_eq!((states.state(), states.cause()), (DeviceState::Fenced, Cause::Ecc));
        states.note(t0 + s(600), &Evidence::RowsFailed(false));
        assert!(states.may_take(t0 + s(600)), "it was exchanged");
    }

    #[test]
    fn what_is_gone_comes_back_when_it_is_on_the_bus_again() {
        let (t0, mut states) = (Instant::now(), serving());
        assert!(states.note(t0, &Evidence::OnBus(false)));
        assert!(!states.note(t0 + s(1), &Evidence::OnBus(false)), "it is given up once");
        assert!(!states.may_take(t0 + s(120)));
        states.note(t0 + s(120), &Evidence::OnBus(true));
        assert_eq!(states.state(), DeviceState::Lost, "until it is taken anew");
        assert!(states.may_take(t0 + s(120)));
    }

    #[test]
    fn what_was_lost_before_or_while_it_was_drained_is_lost_when_it_is_resumed() {
        for lost_first in [true, false] {
            let (now, mut states) = (Instant::now(), serving());
            let lose = |states: &mut States| states.note(now, &Evidence::OnBus(false));
            assert!(!lost_first || lose(&mut states));
            states.drained(true);
            assert!(!lose(&mut states));
            assert_eq!((states.state(), states.cause()), (DeviceState::Fenced, Cause::Drain));
            states.drained(false);
            assert!(!lose(&mut states), "it is not ours");
            assert_eq!((states.state(), states.cause()), (DeviceState::Lost, Cause::Bus));
            assert!(!states.may_take(now));
        }
    }

    #[test]
    fn who_drained_a_device_has_the_last_word() {
        let (now, mut states) = (Instant::now(), serving());
        states.drained(true);
        states.note(now, &Evidence::Failed("late".into()));
        assert_eq!((states.state(), states.cause()), (DeviceState::Fenced, Cause::Drain));
        states.drained(false);
        assert_eq!((states.state(), states.may_take(now)), (DeviceState::Waiting, true));
    }

    fn evidence() -> impl Strategy<Value = Evidence> {
        prop_oneof![
            Just(Evidence::Failed("it broke".into())),
            Just(Evidence::Poisoned("it broke before".into())),
            Just(Evidence::Stuck(s(60))),
            (0u64..170).prop_map(Evidence::Xid),
            Just(Evidence::UnknownXid),
            any::<bool>().prop_map(Evidence::OnBus),
            (0u64..3).prop_map(Evidence::Uncorrected),
            any::<bool>().prop_map(Evidence::RowsPending),
            any::<bool>().prop_map(Evidence::RowsFailed),
            (0u64..9).prop_map(Evidence::Advice),
            any::<bool>().prop_map(Evidence::Throttled),
            any::<bool>()
                .prop_map(|good| { Evidence::Canary(if good { Ok(()) } else { Err("wrong".into()) }) }),
        ]
    }

    proptest! {
        /// Whatever the evidence: a device that is given up no longer runs, none is given up twice, and none is tried in a hot loop.
        #[test]
        fn a_device_is_given_up_once_and_never_tried_in_a_hot_loop(
            seen in prop::collection::vec((0u64..2000, evidence()), 1..200),
        ) {
            let (mut now, mut states, mut ours) = (Instant::now(), States::default(), false);
            let mut last_failure = None;
            for (wait, evidence) in seen {
                now += Duration::from_millis(wait);
                states.tick(now);
                if !ours && states.may_take(now) {
                    if let Some(last) = last_failure {
                        prop_assert!(now - last >= PAUSE, "taken {:?} after a fault", now - last);
                    }
                    states.taking();
                    states.serving(now);
                    ours = true;
                }
                let given_up = states.note(now, &evidence);
                prop_assert!(!given_up || ours, "{evidence:?} gave up what was not ours");
                if given_up {
                    (ours, last_failure) = (false, Some(now));
                }
                prop_assert_eq!(states.state().runs(), ours);
            }
        }
    }
}
