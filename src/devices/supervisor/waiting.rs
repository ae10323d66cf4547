//! Models that no device serves yet wait until a device of theirs is back, or has room, and are loaded then.

use super::{
    super::{book::Away, device::Hold, health::Over, place::Placed, refusal::Refusal},
    Devices, NotReloaded,
};
use crate::models::{Found, State};
use std::{sync::Arc, time::Instant};

/// A model is taken for the cause once devices have failed more often than this in a row while loading it.
const FAULTS_MAX: u32 = 5;

impl Devices {
    /// Loads the waiting models that a device that we hold may have now, or should stand in for. Leaves them to the next turn of its
    /// keeper if something else is being loaded: nobody would look after the device while the keeper waited for that.
    pub(in super::super) fn load_waiting_on(&self, index: usize, hold: &Hold) {
        self.load_of(&self.due(index, hold.number), index, hold.number);
    }

    /// Like [`Devices::load_waiting_on`], unless the models of the start are still being loaded.
    pub(in super::super) fn try_waiting_on(&self, index: usize, hold: &Hold) {
        if !self.book.has_announced() {
            self.load_waiting_on(index, hold);
        }
    }

    fn due(&self, index: usize, hold: u64) -> Vec<Found> {
        self.book.who_waits(index, hold, &self.sharing, Instant::now())
    }

    /// Loads those of `found` that still wait. One may have been unloaded meanwhile, or loaded anew from other files.
    pub(super) fn load_of(&self, found: &[Found], index: usize, hold: u64) {
        for Found { name, version, .. } in found {
            let Some(_turn) = self.turn.try_lock() else { return };
            let same = |found: &Found| (&found.name, &found.version) == (name, version);
            if let Some(found) = self.due(index, hold).into_iter().find(same) {
                // The result is in the catalog and in the log.
                let _ = self.load_now(&found);
                self.count();
            }
        }
    }

    /// For a GPU that was just taken and has no models: loads those that waited for it.
    ///
    /// # Errors
    /// If it has too little memory for any of them, or if the hold is over: then it has to be given back.
    pub(in super::super) fn begin_with_waiting(&self, index: usize, hold: &Arc<Hold>) -> Result<(), Refusal> {
        if !self.book.is_empty_on(index) {
            return Ok(());
        }
        self.try_waiting_on(index, hold);
        match hold.health.over() {
            Some(Over::Failed(reason)) => Err(Refusal::Failed(reason.clone())),
            _ => self.check_in_vain(index, hold),
        }
    }

    /// Checks whether a GPU is held in vain: it has no model, and no room for any that waits for it.
    ///
    /// # Errors
    /// Why there is no room.
    pub(super) fn check_in_vain(&self, index: usize, hold: &Hold) -> Result<(), Refusal> {
        let short = self.book.no_room_for_waiting(index, hold.number);
        short.filter(|_| self.has_none(index)).map_or(Ok(()), Err)
    }

    /// Whether a device is a GPU that has no model, and is not about to get one.
    pub(super) fn has_none(&self, index: usize) -> bool {
        self.devices[index].gpu.is_some() && self.book.is_empty_on(index) && !self.is_loading()
    }

    /// Whether a model is being loaded, or about to be: what a device has then is not all that it will have.
    pub(in super::super) fn is_loading(&self) -> bool {
        self.book.has_announced() || self.turn.is_locked()
    }

    /// What follows when none of these holds has taken a model. It waits if that may help: if a GPU had too little memory, or a hold has
    /// ended.
    pub(super) fn nowhere(
        &self,
        placed: Placed,
        holds: &[(usize, Arc<Hold>)],
        refusals: Vec<Refusal>,
    ) -> NotLoaded {
        let names: Vec<&str> = holds.iter().map(|(index, _)| &*self.devices[*index].id).collect();
        let reason = reasons(&names, &refusals);
        let of = |((index, hold), refusal): (&(usize, Arc<Hold>), Refusal)| {
            // Memory that the host lacks it will lack again, and each try takes it from other models. Files that change while they are
            // loaded are a matter for the caller that asked for the load.
            let for_now = match &refusal {
                Refusal::Memory(_) | Refusal::Room(_) => self.devices[*index].gpu.is_some(),
                // A GPU that refuses what may pass has tried it several times.
                Refusal::Passing(_) => self.devices[*index].gpu.is_none(),
                _ => false,
            };
            (*index, hold.number, refusal, for_now)
        };
        let refused: Vec<_> = holds.iter().zip(refusals).map(of).collect();
        let now = Instant::now();
        let failed = holds.iter().any(|(_, hold)| hold.health.has_failed(now));
        let ended = failed || holds.iter().any(|(_, hold)| hold.health.is_over());
        match ended || refused.iter().any(|(.., for_now)| *for_now) {
            true => NotLoaded::Away(Box::new(Away { reason, placed, refused, failed })),
            false => NotLoaded::Failed(reason),
        }
    }

    /// Publishes that no device serves a model, and lets it wait if that may help. Returns why, and what happens next.
    pub(super) fn not_loaded(&self, found: &Found, why: NotLoaded) -> NotReloaded {
        let (name, version) = (&found.name, &found.version);
        let reason = match why {
            NotLoaded::Unexpected(reason) | NotLoaded::Failed(reason) => reason,
            NotLoaded::Away(away) => {
                let next = match away.refused.is_empty() {
                    true => "it is loaded when one of them is back",
                    false => "it is tried again",
                };
                let (reason, told) = (away.reason.clone(), format!("{}; {next}", away.reason));
                let passing = away.refused.iter().any(|(_, _, why, _)| matches!(why, Refusal::Passing(_)));
                let beside_others = away.refused.iter().any(|(index, ..)| !self.book.is_empty_on(*index));
                let faults = self.book.wait_for_device(found, *away, Instant::now());
                if faults <= FAULTS_MAX {
                    if !self.ends() {
                        tracing::warn!(model = name, version, reason, "the model waits for a device");
                    }
                    // A server that has no room for one of its models counts as ready all the same. Where the device is there, and has
                    // room, whoever reads the state should see what else is missing.
                    let state = if beside_others || passing {
                        State::Unavailable(told.clone())
                    } else {
                        State::Loading
                    };
                    self.publish(found, state);
                    return NotReloaded { reason: told, for_now: true };
                }
                format!("{reason}; devices failed while it was loaded, {faults} times in a row")
            }
        };
        if !self.ends() {
            tracing::error!(model = name, version, reason, "model is unavailable");
        }
        self.publish(found, State::Unavailable(reason.clone()));
        self.book.stop_waiting_for(found);
        self.book.disclaim(name);
        NotReloaded { reason, for_now: false }
    }
}

/// Why a model is not loaded.
pub(super) enum NotLoaded {
    /// Its devices are away, or have no room for it now.
    Away(Box<Away>),
    /// It does not meet the caller's expectation.
    Unexpected(String),
    /// Anything else.
    Failed(String),
}

impl NotLoaded {
    /// In words.
    pub(super) fn reason(&self) -> &str {
        match self {
            NotLoaded::Away(away) => &away.reason,
            NotLoaded::Unexpected(reason) | NotLoaded::Failed(reason) => reason,
        }
    }
}

/// Why no device could: a single reason as it is, several with their devices.
fn reasons(devices: &[&str], reasons: &[Refusal]) -> String {
    match reasons {
        [only] => only.to_string(),
        several => {
            let named = devices.iter().zip(several).map(|(device, why)| format!("{device}: {why}"));
            named.collect::<Vec<_>>().join("; ")
        }
    }
}
