//! Which models are served, where each is to be, and where it is: what devices that come and go are held against.
//!
//! - [`refused`]: which devices cannot have a model, and when that is tried again; [`claims`]: which no other model may have.
//! - [`waiting`]: what is served nowhere yet; [`memory`]: what models need and hold of a GPU's memory.

mod claims;
mod memory;
mod refused;
mod waiting;

use super::{
    device::{Engines, Hold},
    forward::Asked,
    health::Health,
    lease::memory::Learned,
    parts::Sharing,
    place::Placed,
    plan::Footprint,
    refusal::{Again, Refusal},
    worker::Lent,
};
use crate::{
    batch::{ModelKey, Queue},
    config::WhileWaiting,
    models::{Files, Model, Source},
};
use claims::Claims;
use memory::name;
use parking_lot::Mutex;
use refused::Refused;
use std::{
    path::Path,
    sync::{Arc, Weak},
    time::Instant,
};
pub(super) use waiting::Away;
use waiting::Waiting;

/// A model that is served, and all that it takes to load it once more.
pub(super) struct Served {
    /// The model.
    pub(super) model: Lent,
    /// What lies on disk.
    pub(super) source: Source,
    /// Its files, as they were loaded.
    pub(super) files: Files,
    /// Runs that its author asks for.
    pub(super) asked: Vec<Asked>,
    placed: Placed,
}

impl Served {
    /// A model, and where it is to be.
    pub(super) fn new(
        model: &Lent,
        (source, files): (Source, Files),
        asked: Vec<Asked>,
        placed: Placed,
    ) -> Served {
        Served { model: Arc::clone(model), source, files, asked, placed }
    }
}

/// Whether a GPU can be counted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It serves.
    Here,
    /// It was given back because nobody needed it, and is taken again on demand.
    Idle,
    /// It is waited for, since then.
    Awaited(Instant),
}

struct Entry {
    served: Arc<Served>,
    on: Vec<On>,
    /// Devices that somebody loads it onto just now, with the numbers of the holds.
    coming: Vec<(usize, u64)>,
    /// Devices that cannot have it.
    refused: Refused,
    /// It is unloaded, and stays for requests that have begun with it.
    leaves: bool,
}

/// Engines of a model on a device.
struct On {
    index: usize,
    hold: u64,
    health: Health,
    /// What they hold, where that is told.
    footprint: Option<Footprint>,
    paused: bool,
}

impl Entry {
    fn is_on(&self, index: usize, hold: u64) -> bool {
        self.on.iter().any(|on| on.index == index && on.hold == hold)
    }

    /// Whether devices are to have it that do not: of one that leaves, what requests still wait for is enough.
    fn spreads(&self) -> bool {
        !self.leaves || self.on.iter().all(|on| on.paused || on.health.is_over())
    }
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    /// Models that are about to be loaded: name, bytes of the file, devices.
    announced: Vec<(String, u64, Vec<usize>)>,
    /// Models that are served nowhere yet.
    waiting: Vec<Waiting>,
    /// GPUs that models have for themselves.
    claims: Claims,
    /// By the index of a device; those that are not in it are the CPU.
    presence: Vec<(usize, Presence)>,
}

/// What is served where.
#[derive(Default)]
pub(super) struct Book {
    state: Mutex<State>,
    learned: Mutex<Learned>,
    /// Bytes of a GPU that are for something else than models.
    beside: u64,
}

impl Book {
    /// Empty, but for what an earlier run left of what it measured. Each GPU is to have `beside` bytes for something else than
    /// models.
    pub(super) fn new(state_folder: Option<&Path>, beside: u64) -> Book {
        Book { state: Mutex::default(), learned: Mutex::new(Learned::read(state_folder)), beside }
    }

    /// A model is about to be loaded onto these devices.
    pub(super) fn announce(&self, source: &Source, on: Vec<usize>) {
        self.state.lock().announced.push((name(source), source.bytes, on));
    }

    /// All that was announced is loaded, or could not be.
    pub(super) fn forget_announced(&self) {
        self.state.lock().announced.clear();
    }

    /// Whether any of what was announced may still be loaded.
    pub(super) fn has_announced(&self) -> bool {
        !self.state.lock().announced.is_empty()
    }

    /// Adds a model; it is on no device yet, and whoever adds it tells soon whether it can be on those of `coming`: their
    /// indices, and the numbers of their holds.
    pub(super) fn enter(&self, served: Served, coming: Vec<(usize, u64)>) -> Arc<Served> {
        let served = Arc::new(served);
        let (on, refused) = (Vec::new(), Refused::default());
        let entry = Entry { served: Arc::clone(&served), on, coming, refused, leaves: false };
        let mut state = self.state.lock();
        state.claims.set(&entry.served.source, &entry.served.placed.on);
        state.entries.push(entry);
        drop(state);
        served
    }

    /// Has a device serve a model, unless that is not served any more.
    pub(super) fn put(
        &self,
        index: usize,
        hold: &Hold,
        served: &Arc<Served>,
        engines: Engines,
        footprint: Option<Footprint>,
    ) {
        let mut state = self.state.lock();
        let entry = state.entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.served, served));
        let Some(entry) = entry.filter(|entry| !entry.is_on(index, hold.number)) else {
            drop(state);
            return hold.drop_engines(engines);
        };
        hold.serve(&served.model, engines);
        entry.on.retain(|on| on.index != index);
        entry.coming.retain(|coming| coming.0 != index);
        entry.refused.forget(index);
        let health = hold.health.clone();
        entry.on.push(On { index, hold: hold.number, health, footprint, paused: false });
    }

    /// A device cannot have a model now.
    pub(super) fn refuse(
        &self,
        index: usize,
        hold: &Hold,
        key: ModelKey,
        (refusal, again): (&Refusal, Again),
    ) {
        tracing::debug!(device = &*hold.health.device, %refusal, "a model is not served here");
        if let Some(entry) = self.state.lock().entries.iter_mut().find(|entry| entry.served.model.key == key)
        {
            entry.coming.retain(|coming| coming.0 != index);
            entry.refused.note(index, hold.number, refusal.to_string(), again, Instant::now());
            // What an earlier hold had of it is gone.
            entry.served.model.statistics.holds(&hold.health.device, None);
        }
    }

    /// Models that a device cannot have, as long as it is held or for now, and why.
    pub(super) fn refused(&self, index: usize, hold: &Hold) -> Vec<(String, String)> {
        let state = self.state.lock();
        let of = |entry: &Entry| {
            let why = entry.refused.why(index, hold.number)?;
            Some((entry.served.model.name.to_string(), why.to_owned()))
        };
        let waits = |waiting: &Waiting| {
            let why = waiting.why(index, hold.number)?;
            Some((waiting.name().to_owned(), why.to_owned()))
        };
        let waiting = state.waiting.iter().filter_map(waits);
        state.entries.iter().filter_map(of).chain(waiting).collect()
    }

    /// Serves a model only to who has begun with it, until it is struck out; hands over what tells whether devices have anything of
    /// it.
    pub(super) fn leave(&self, key: ModelKey) -> Weak<Arc<Model>> {
        let mut state = self.state.lock();
        let Some(entry) = state.entries.iter_mut().find(|entry| entry.served.model.key == key) else {
            return Weak::new();
        };
        entry.leaves = true;
        let served = Arc::clone(&entry.served);
        state.let_go_of(&served.source.name);
        Arc::downgrade(&served.model)
    }

    /// Takes a model out.
    pub(super) fn strike(&self, key: ModelKey) {
        self.state.lock().entries.retain(|entry| entry.served.model.key != key);
    }

    /// A model that is to be served on a device, and is not; what somebody loads there is not meant, nor what was refused a
    /// moment ago.
    pub(super) fn missing(&self, index: usize, hold: &Hold, sharing: &Sharing) -> Option<Arc<Served>> {
        let (state, now) = (self.state.lock(), Instant::now());
        let missing = state.entries.iter().find(|entry| {
            !entry.is_on(index, hold.number)
                && !entry.coming.contains(&(index, hold.number))
                && !entry.refused.bars(index, hold.number, now)
                && entry.spreads()
                && state.wanted(index, &entry.served.placed, Some(entry), sharing)
        });
        missing.map(|entry| Arc::clone(&entry.served))
    }

    /// Whether a model that is about to be loaded is to be on a device.
    pub(super) fn wanted_on(&self, index: usize, placed: &Placed, sharing: &Sharing) -> bool {
        self.state.lock().wanted(index, placed, None, sharing)
    }

    /// Has a device begin or cease to take work for models, as others come and go. For the one that stands in.
    pub(super) fn balance(&self, index: usize, hold: &Hold, sharing: &Sharing) {
        let mut state = self.state.lock();
        let wanted: Vec<bool> = state
            .entries
            .iter()
            .map(|entry| state.wanted(index, &entry.served.placed, Some(entry), sharing))
            .collect();
        for (entry, wanted) in state.entries.iter_mut().zip(wanted) {
            let key = entry.served.model.key;
            for on in entry.on.iter_mut().filter(|on| on.index == index && on.paused == wanted) {
                on.paused = !wanted;
                hold.pause(key, on.paused);
            }
        }
    }

    /// Says whether a GPU can be counted on.
    pub(super) fn set_presence(&self, index: usize, presence: Presence) {
        let mut state = self.state.lock();
        match state.presence.iter_mut().find(|(device, _)| *device == index) {
            Some((_, known)) => *known = presence,
            None => state.presence.push((index, presence)),
        }
    }

    /// Whether any model is to be on a device.
    pub(super) fn needs(&self, index: usize) -> bool {
        let state = self.state.lock();
        state.entries.iter().any(|entry| entry.served.placed.has(index))
            || state.announced.iter().any(|(.., on)| on.contains(&index))
            || state.waiting.iter().any(|waiting| waiting.is_for(index))
    }

    /// Whether no model is on a device.
    pub(super) fn is_empty_on(&self, index: usize) -> bool {
        let state = self.state.lock();
        let mut on = state.entries.iter().flat_map(|entry| &entry.on);
        !on.any(|on| on.index == index && !on.health.is_over())
    }

    /// Whether models of a device have work now, and a number that grows with each request that they were sent.
    pub(super) fn activity(&self, index: usize, queue: &Queue) -> (bool, u64) {
        let load = queue.load();
        let state = self.state.lock();
        let entries = state.entries.iter().filter(|entry| entry.served.placed.has(index));
        let mut activity = (state.waiting.iter().any(|waiting| waiting.is_for(index)), 0);
        for Entry { served, .. } in entries {
            let counts = served.model.statistics.snapshot();
            let failures: u64 = counts.failures.iter().map(|sum| sum.count).sum();
            activity.0 |= load.models.iter().any(|load| load.key == served.model.key && load.items > 0);
            activity.1 += counts.success.count + failures;
        }
        activity
    }

    /// A model is to have the GPUs among these devices for itself, if its manifest says so: from before it is loaded.
    pub(super) fn claim(&self, source: &Source, on: &[usize]) {
        self.state.lock().claims.set(source, on);
    }

    /// A model could not be loaded: where no version of it is served, others may have its GPUs.
    pub(super) fn disclaim(&self, name: &str) {
        self.state.lock().let_go_of(name);
    }

    /// Why a model cannot be on a device that others have.
    pub(super) fn taken(&self, index: usize, device: &str, source: &Source) -> Option<String> {
        let state = self.state.lock();
        if let Some(owner) = state.claims.owner(index, &source.name) {
            return Some(format!("{device} is for the model {owner} alone (placement.exclusive)"));
        }
        if !source.manifest.placement.exclusive || state.claims.has(index, &source.name) {
            return None;
        }
        let there = |entry: &&Entry| {
            entry.served.placed.has(index) && entry.served.source.name != source.name && !entry.leaves
        };
        let mut others: Vec<&str> =
            state.entries.iter().filter(there).map(|entry| entry.served.source.name.as_str()).collect();
        others.sort_unstable();
        others.dedup();
        let list = others.join(", ");
        (!others.is_empty())
            .then(|| format!("{device} has other models ({list}), and placement.exclusive wants none there"))
    }
}

impl State {
    /// Ends a model's claim, where no version of it is served or waits.
    fn let_go_of(&mut self, name: &str) {
        let served = |entry: &Entry| entry.served.source.name == name && !entry.leaves;
        if !self.entries.iter().any(served) && self.waiting.iter().all(|waiting| waiting.name() != name) {
            self.claims.end(name);
        }
    }

    /// Whether a model is to be served on a device now.
    fn wanted(&self, index: usize, placed: &Placed, entry: Option<&Entry>, sharing: &Sharing) -> bool {
        let presence = |index: usize| {
            self.presence.iter().find(|(device, _)| *device == index).map(|(_, presence)| *presence)
        };
        let meant = placed.has(index);
        if sharing.while_waiting == WhileWaiting::Cpu || presence(index).is_some() {
            // Who only stands by is left out by the queue, while another device serves.
            return meant;
        }
        // The CPU, and requests are to wait for GPUs: beside one that serves, or when there is no hope of any.
        let gpus: Vec<(usize, Presence)> =
            placed.on.iter().filter_map(|gpu| Some((*gpu, presence(*gpu)?))).collect();
        // A GPU that is there and cannot have the model does not serve it.
        let serves = |(gpu, presence): &(usize, Presence)| {
            let on = |entry: &Entry| entry.on.iter().any(|on| on.index == *gpu && !on.health.is_over());
            *presence == Presence::Here && entry.is_none_or(on)
        };
        let hopeless = |(_, presence): &(usize, Presence)| match presence {
            Presence::Here => true,
            Presence::Idle => false,
            Presence::Awaited(since) => since.elapsed() >= sharing.auto_timeout,
        };
        meant && (gpus.iter().any(serves) || gpus.iter().all(hopeless))
    }
}

#[cfg(test)]
mod testing {
    //! Models of a book that are on no device yet.
    #![allow(clippy::unwrap_used)] // a test may panic

    use super::*;
    use crate::{
        engine::{gauss_mle, staging::Memory},
        models::testing,
    };
    use std::time::Duration;

    pub(super) fn placed(on: &[usize]) -> Placed {
        Placed { on: on.to_vec(), stands_in: None, instead: false, notes: Vec::new() }
    }

    /// A fitter of a gigabyte on disk, with this table `placement` in its manifest.
    pub(super) fn source(name: &str, placement: &str) -> Source {
        let manifest = format!("engine = \"gauss-mle\"\n[placement]\n{placement}\n");
        Source { bytes: 1 << 30, ..testing::source(name, "1", &manifest) }
    }

    /// Enters it for these devices.
    pub(super) fn enter(book: &Book, key: ModelKey, source: &Source, on: &[usize]) -> Arc<Served> {
        let time = Duration::from_secs(60);
        let model = Model::resolve(key, source, gauss_mle::signature(), time, &Memory::Plain).unwrap();
        let files = Files::of(source).unwrap();
        let model = Arc::new(Arc::new(model));
        book.enter(Served::new(&model, (source.clone(), files), Vec::new(), placed(on)), Vec::new())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic

    use super::{testing::*, *};
    use crate::{
        batch::{Job, QueueLimits},
        tasks::testing::floats,
    };

    const KEY: ModelKey = ModelKey(1);

    #[test]
    fn devices_have_work_as_long_as_a_request_for_a_model_of_theirs_is_queued() {
        let (book, queue) = (Book::default(), Queue::new(QueueLimits { items_max: 1, bytes_max: 100 }));
        let served = enter(&book, KEY, &source("m", ""), &[1]);
        queue.register(KEY, "m", served.model.rules.clone());
        let busy = || [0, 1].map(|index| book.activity(index, &queue).0);
        assert_eq!(busy(), [false, false]);
        let ticket = queue.push(Job::plain(KEY, vec![floats(&[1, 1], &[0.0])], 1, Instant::now())).unwrap();
        assert_eq!(busy(), [false, true]);
        drop(ticket);
        assert_eq!(busy(), [false, false]);
    }

    #[test]
    fn the_cpu_has_what_waits_for_gpus_beside_one_that_serves_and_not_while_one_can_be_had_again() {
        let book = Book::default();
        let sharing = Sharing { while_waiting: WhileWaiting::Wait, ..Sharing::default() };
        let awaited = Presence::Awaited(Instant::now());
        for (presence, wanted) in [(Presence::Here, true), (Presence::Idle, false), (awaited, false)] {
            book.set_presence(1, presence);
            assert_eq!(book.wanted_on(0, &placed(&[0, 1]), &sharing), wanted, "{presence:?}");
        }
    }

    #[test]
    fn a_model_that_leaves_keeps_nobody_from_having_a_gpu_alone() {
        let (book, alone) = (Book::default(), source("alone", "exclusive = true"));
        enter(&book, KEY, &source("other", ""), &[1]);
        let taken = |index| book.taken(index, "gpu-0", &alone);
        assert_eq!(taken(0), None);
        assert!(taken(1).is_some_and(|why| why.contains("other models (other)")));
        drop(book.leave(KEY));
        assert_eq!(taken(1), None);
    }
}
