//! Which models are served, where each is to be, and where it is. When devices come and go, their models are brought in line with this.
//!
//! - [`refused`]: which devices cannot have a model, and when that is tried again. [`claims`]: GPUs that a model has for itself.
//! - [`waiting`]: models that no device serves yet. [`memory`]: what models need and hold of a GPU's memory.

mod claims;
mod memory;
mod refused;
mod waiting;

use super::{
    Lent,
    device::{Engines, Hold},
    forward::Asked,
    health::Health,
    lease::memory::Learned,
    parts::Sharing,
    place::Placed,
    plan::Footprint,
    refusal::{Again, Refusal},
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

/// A model that is served, with all that is needed to load it once more.
pub(super) struct Served {
    /// The model.
    pub(super) model: Lent,
    /// The model on disk.
    pub(super) source: Source,
    /// Its files, as of loading.
    pub(super) files: Files,
    /// Warm-up runs that its author asks for.
    pub(super) asked: Vec<Asked>,
    /// The devices that it is placed on.
    pub(super) placed: Placed,
}

impl Served {
    /// A model, and the devices that it is placed on.
    pub(super) fn new(
        model: &Lent,
        (source, files): (Source, Files),
        asked: Vec<Asked>,
        placed: Placed,
    ) -> Served {
        Served { model: Arc::clone(model), source, files, asked, placed }
    }
}

/// Whether a GPU can be counted on to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is ours, and serves.
    Here,
    /// It was given back because nobody needed it, and is taken again on demand.
    Idle,
    /// We wait for it, since this time.
    Awaited(Instant),
}

struct Entry {
    served: Arc<Served>,
    on: Vec<On>,
    /// Devices that it is being loaded onto, with the numbers of the holds.
    coming: Vec<(usize, u64)>,
    /// Devices that cannot have it.
    refused: Refused,
    /// It is unloaded, and stays only for requests that have begun with it.
    leaves: bool,
}

/// A model's engines on a device.
struct On {
    index: usize,
    hold: u64,
    health: Health,
    /// What they hold of its memory, where that is known.
    footprint: Option<Footprint>,
    paused: bool,
}

impl Entry {
    fn is_on(&self, index: usize, hold: u64) -> bool {
        self.on.iter().any(|on| on.index == index && on.hold == hold)
    }

    /// Whether devices without it should load it. For a model that leaves, only if no device can run what requests still wait for.
    fn spreads(&self) -> bool {
        !self.leaves || self.on.iter().all(|on| on.paused || on.health.is_over())
    }
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    /// Models that are about to be loaded: name, bytes of the file, indices of devices.
    announced: Vec<(String, u64, Vec<usize>)>,
    /// Models that no device serves yet.
    waiting: Vec<Waiting>,
    /// GPUs that models have for themselves.
    claims: Claims,
    /// By the index of the device. The CPU is not in it.
    presence: Vec<(usize, Presence)>,
}

/// What is served where.
#[derive(Default)]
pub(super) struct Book {
    state: Mutex<State>,
    learned: Mutex<Learned>,
    /// Held while a file is written.
    keeping: Mutex<()>,
    /// Bytes of each GPU that are reserved for something else than models.
    beside: u64,
}

impl Book {
    /// A book without models, with the measurements that an earlier run left in the state folder. On each GPU, `beside` bytes are
    /// reserved for something else than models.
    pub(super) fn new(state_folder: Option<&Path>, beside: u64) -> Book {
        Book {
            state: Mutex::default(),
            learned: Mutex::new(Learned::read(state_folder)),
            keeping: Mutex::default(),
            beside,
        }
    }

    /// A model is about to be loaded onto these devices.
    pub(super) fn announce(&self, source: &Source, on: Vec<usize>) {
        self.state.lock().announced.push((name(source), source.bytes, on));
    }

    /// All announced models are loaded, or could not be.
    pub(super) fn forget_announced(&self) {
        self.state.lock().announced.clear();
    }

    /// Whether any announced model may still be loaded.
    pub(super) fn has_announced(&self) -> bool {
        !self.state.lock().announced.is_empty()
    }

    /// Adds a model, which is on no device yet. `coming`: the devices that the caller loads it onto, by index and number of the hold; the
    /// caller reports each result soon.
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

    /// Records that a device serves a model, unless the model is no longer served.
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
        let left = hold.serve(&served.model, engines);
        entry.on.retain(|on| on.index != index);
        entry.coming.retain(|coming| coming.0 != index);
        entry.refused.forget(index);
        let health = hold.health.clone();
        entry.on.push(On { index, hold: hold.number, health, footprint, paused: false });
        drop(state);
        // Not locked meanwhile: what is left of a device that failed may take seconds to end.
        hold.drop_engines(left);
    }

    /// Records that a device cannot have a model now; if the device has failed under it, beyond the hold as well.
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
            let now = Instant::now();
            entry.refused.note(index, hold.number, refusal.to_string(), again, now);
            if hold.health.has_failed(now) {
                entry.refused.fault(index, format!("the device failed while it was loaded: {refusal}"));
            }
            // The memory that an earlier hold had for it is free.
            entry.served.model.statistics.holds(&hold.health.device, None);
        }
    }

    /// Failures of a device while it loaded models no longer count.
    pub(super) fn forgive(&self, index: usize) {
        self.state.lock().entries.iter_mut().for_each(|entry| entry.refused.forgive(index));
    }

    /// Models that a device cannot have, for now or as long as it is held, and why.
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

    /// Serves a model only to requests that have begun with it, until it is struck out. The returned reference is dead once no device
    /// holds any of it.
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

    /// A model that should be served on a device and is not. Excludes models that are being loaded there, and those refused a moment ago.
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

    /// Whether a model that is about to be loaded should be on a device.
    pub(super) fn wanted_on(&self, index: usize, placed: &Placed, sharing: &Sharing) -> bool {
        self.state.lock().wanted(index, placed, None, sharing)
    }

    /// Has a device start or stop taking work for models, as other devices come and go. For the device that stands in.
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

    /// Records whether a GPU can be counted on.
    pub(super) fn set_presence(&self, index: usize, presence: Presence) {
        let mut state = self.state.lock();
        match state.presence.iter_mut().find(|(device, _)| *device == index) {
            Some((_, known)) => *known = presence,
            None => state.presence.push((index, presence)),
        }
    }

    /// Whether any model should be on a device.
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

    /// Whether models of a device have work now, and a counter that grows with each request to them.
    pub(super) fn activity(&self, index: usize, queue: &Queue) -> (bool, u64) {
        let state = self.state.lock();
        let waits = state.waiting.iter().any(|waiting| waiting.is_for(index));
        let (mut keys, mut requests) = (Vec::new(), 0);
        for Entry { served, .. } in state.entries.iter().filter(|entry| entry.served.placed.has(index)) {
            let counts = served.model.statistics.snapshot();
            let failures: u64 = counts.failures.iter().map(|sum| sum.count).sum();
            keys.push(served.model.key);
            requests += counts.success.count + failures;
        }
        drop(state);
        (waits || queue.has_work(&keys), requests)
    }

    /// Reserves the GPUs among these devices for a model, if its manifest says so: from before it is loaded.
    pub(super) fn claim(&self, source: &Source, on: &[usize]) {
        self.state.lock().claims.set(source, on);
    }

    /// A model could not be loaded: if no version of it is served, other models may use its GPUs.
    pub(super) fn disclaim(&self, name: &str) {
        self.state.lock().let_go_of(name);
    }

    /// Why a model cannot be on a device, because of other models there.
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
    /// Ends a model's claim, if no version of it is served or waits.
    fn let_go_of(&mut self, name: &str) {
        let served = |entry: &Entry| entry.served.source.name == name && !entry.leaves;
        if !self.entries.iter().any(served) && self.waiting.iter().all(|waiting| waiting.name() != name) {
            self.claims.end(name);
        }
    }

    /// Whether a model should be served on a device now.
    fn wanted(&self, index: usize, placed: &Placed, entry: Option<&Entry>, sharing: &Sharing) -> bool {
        let presence = |index: usize| {
            self.presence.iter().find(|(device, _)| *device == index).map(|(_, presence)| *presence)
        };
        let meant = placed.has(index);
        if sharing.while_waiting == WhileWaiting::Cpu || presence(index).is_some() {
            // A device that only stands by is passed over by the queue while another serves.
            return meant;
        }
        // The device is the CPU, and requests should wait for GPUs. So the CPU serves only beside a GPU that serves, or when no GPU is
        // hoped for.
        let gpus: Vec<(usize, Presence)> =
            placed.on.iter().filter_map(|gpu| Some((*gpu, presence(*gpu)?))).collect();
        // A GPU that is held and cannot have the model does not serve it.
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

    /// A fitter of a gigabyte on disk, with this `placement` table in its manifest.
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
