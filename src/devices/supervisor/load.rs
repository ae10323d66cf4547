//! Loads one model onto those of its devices that are there. Loads onto a device that is taken anew the models that are served without
//! it.

use super::{
    super::{
        Lent,
        book::{Away, Served},
        device::{Device, Engines, Hold},
        forward::{Asked, Proof, not_counted},
        health::Over,
        place::{self, Kind, Placed},
        plan::NoRoom,
        probabilities::Seen,
        refusal::Refusal,
    },
    Devices, LoadedOn, Loading, NotLoaded,
};
use crate::{
    batch::ModelKey,
    engine::{Engine, Signature, cuda::headroom_bytes, staging::Memory},
    error::panic_words,
    models::{Files, Manifest, Model, Source},
    status::{Cause, DeviceState},
    telemetry::statistics::Held,
};
use parking_lot::Mutex;
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

impl Devices {
    pub(super) fn place(&self, source: &Source) -> Result<Placed, String> {
        let (kinds, no_onnx) = self.kinds();
        let taken = |(index, device): (usize, &Device)| {
            let gpu = device.gpu.as_ref()?;
            self.book.taken(index, &format!("gpu:{}", gpu.ordinal), source)
        };
        let taken: Vec<Option<String>> = self.devices.iter().enumerate().map(taken).collect();
        place::place(&source.manifest, &kinds, &taken, &no_onnx)
    }

    /// Whether a model may run on a GPU that the server has. The answer does not depend on which process has the GPU now.
    pub fn may_use_gpu(&self, manifest: &Manifest) -> bool {
        let (kinds, no_onnx) = self.kinds();
        place::may_use_gpu(manifest, &kinds, &no_onnx)
    }

    /// The kinds of all devices, and for each why ONNX models cannot run there.
    fn kinds(&self) -> (Vec<Kind>, Vec<Option<String>>) {
        self.devices.iter().map(|device| (device.kind.clone(), self.no_onnx(device))).unzip()
    }

    /// Why ONNX models cannot run on a device, if they cannot.
    pub(in super::super) fn no_onnx(&self, device: &Device) -> Option<String> {
        let (gpu, runtime) = (device.gpu.as_ref()?, self.parts.runtime.as_ref());
        runtime.map_err(Clone::clone).and_then(|runtime| runtime.check_gpu(gpu)).err()
    }

    /// Loads one model onto all devices that should have it, and enters it in the book.
    ///
    /// # Errors
    /// Why no device serves it.
    pub(super) fn load_source(&self, source: Source) -> Result<Loading, NotLoaded> {
        let placed = self.place(&source).map_err(NotLoaded::Failed)?;
        for note in placed.notes.iter().chain(&source.notes) {
            tracing::warn!(model = source.name, "{note}");
        }
        let holds = self.holds_for(&placed);
        if holds.is_empty() {
            let (reason, refused) = (self.away(&placed), Vec::new());
            return Err(NotLoaded::Away(Box::new(Away { reason, placed, refused, failed: false })));
        }
        let files = Files::of(&source).map_err(NotLoaded::Failed)?;
        let load = |(index, hold): &(usize, Arc<Hold>)| self.load_here(*index, hold, &source, &files);
        let made = side_by_side(holds.iter().map(|held| || load(held)));
        let Some(signature) = engines(&made).next().map(|engine| engine.signature().clone()) else {
            return Err(self.nowhere(placed, &holds, made.into_iter().filter_map(Result::err).collect()));
        };
        let memory = self.memory(&made, &placed);
        let Resolved { asked, model, proved } =
            self.resolve(&source, (&signature, &memory), &holds, made).map_err(NotLoaded::Failed)?;
        if proved.iter().all(Result::is_err) {
            return Err(self.nowhere(placed, &holds, proved.into_iter().filter_map(Result::err).collect()));
        }
        model.ready();
        let served = Served::new(&model, (source, files), asked, placed);
        Ok(Loading { on: self.enter(served, &holds, proved), model: Arc::clone(&model) })
    }

    /// The devices that are there and should have a model now.
    fn holds_for(&self, placed: &Placed) -> Vec<(usize, Arc<Hold>)> {
        let wanted = |index: &usize| self.book.wanted_on(*index, placed, &self.sharing);
        let indices = placed.on.iter().chain(&placed.stands_in).copied().filter(wanted);
        indices.filter_map(|index| self.devices[index].hold().map(|hold| (index, hold))).collect()
    }

    /// Resolves a model by the signature of its engines, and proves them on their devices. If forward passes there show that its first axis
    /// does not count items, does so once more with each request as a run of its own; if a classifier gives probabilities, with none made
    /// of them.
    fn resolve(
        &self,
        source: &Source,
        (signature, memory): (&Signature, &Memory),
        holds: &[(usize, Arc<Hold>)],
        mut made: Vec<Made>,
    ) -> Result<Resolved, String> {
        let key = ModelKey(self.next_key.fetch_add(1, Ordering::Relaxed));
        let resolve = |source: &Source, gives_probabilities| -> Result<(Vec<Asked>, Lent), String> {
            let mut model = Model::resolve(key, source, signature.clone(), self.parts.timeout, memory)?;
            if gives_probabilities {
                model.take_probabilities();
            }
            model.may_use_gpu = self.may_use_gpu(&source.manifest);
            Ok((Asked::of(source, &model)?, Arc::new(Arc::new(model))))
        };
        let mut resolving = source.clone();
        // Why each request is a run of its own, if forward passes have shown that.
        let mut alone = None;
        // Whether forward passes have shown that a classifier gives probabilities, which are then answered as they are.
        let mut gives_probabilities = false;
        loop {
            let (asked, model) = resolve(&resolving, gives_probabilities).map_err(|reason| {
                for ((_, hold), made) in holds.iter().zip(std::mem::take(&mut made)) {
                    if let Ok((engines, _)) = made {
                        give_back(hold, engines);
                    }
                }
                match &alone {
                    Some(why) => format!("{why}: {reason}"),
                    None => reason,
                }
            })?;
            let proofs = holds.iter().zip(std::mem::take(&mut made)).map(|((index, hold), made)| {
                let (asked, model) = (&asked, &model);
                move || {
                    let (engines, load) = made?;
                    let began = Instant::now();
                    let proved = self.prove_here(*index, hold, source, model, asked, engines);
                    proved.map(|(engines, proof)| (engines, proof, load + began.elapsed()))
                }
            });
            let proved: Vec<Proved> = side_by_side(proofs);
            let said = model.rules.whole || source.manifest.batch.is_said();
            let proofs = proved.iter().flatten().map(|(_, proof, _)| proof);
            let saw = |seen| proofs.clone().any(|proof| proof.seen == Some(seen));
            let sees_probabilities = saw(Seen::Probabilities);
            match not_counted(proofs.clone(), said).filter(|_| alone.is_none()) {
                None if sees_probabilities && !gives_probabilities => gives_probabilities = true,
                None => {
                    if proved.iter().any(Result::is_ok) {
                        model.tell_activation(saw(Seen::Perhaps));
                    }
                    return Ok(Resolved { asked, model, proved });
                }
                Some(why) => {
                    let otherwise = match source.manifest.batch.is_of_requests() {
                        true => "dynamic_batching { } in its config.pbtxt has them put together",
                        false => "as by batch.axis = \"none\"",
                    };
                    tracing::warn!(
                        model = source.name,
                        "{why}: each request is a run of its own ({otherwise})"
                    );
                    // As if its author had said so.
                    (alone, resolving.manifest.batch.no_axis) = (Some(why), Some(true));
                }
            }
            made =
                proved.into_iter().map(|proved| proved.map(|(engines, _, load)| (engines, load))).collect();
        }
    }

    /// Tells the queue and the book of a model, and lets its devices serve it. Returns, for each, what came of it.
    fn enter(
        &self,
        served: Served,
        holds: &[(usize, Arc<Hold>)],
        proved: Vec<Proved>,
    ) -> Vec<(Arc<str>, Result<LoadedOn, String>)> {
        let (key, placed) = (served.model.key, &served.placed);
        self.parts.queue.register(key, &served.model.name, served.model.rules.clone());
        self.parts.queue.count_waits(key, self.parts.metrics.model(&served.model.name));
        let instead = placed.on.iter().filter(|_| placed.instead);
        for index in instead.chain(&placed.stands_in) {
            self.parts.queue.stand_by(key, &self.devices[*index].id);
        }
        let coming = holds.iter().map(|(index, hold)| (*index, hold.number)).collect();
        let served = self.book.enter(served, coming);
        let on = holds.iter().zip(proved).map(|((index, hold), proved)| {
            let on =
                proved.map(|(engines, proof, load)| self.put(*index, hold, &served, engines, proof, load));
            if let Err(refusal) = &on {
                let again = refusal.again(self.devices[*index].gpu.is_some());
                self.book.refuse(*index, hold, key, (refusal, again));
            }
            (Arc::clone(&self.devices[*index].id), on.map_err(|refusal| refusal.to_string()))
        });
        on.collect()
    }

    /// What images for a model are decoded into: memory that suits the most demanding of its devices, which may be away.
    fn memory(&self, made: &[Made], placed: &Placed) -> Memory {
        let there = engines(made).map(|engine| engine.memory()).find(Memory::is_pinned);
        let away = || placed.on.iter().find_map(|index| self.devices[*index].memory(&self.parts));
        there.or_else(away).unwrap_or_default()
    }

    /// Makes a model's engines on a device that has room for them, and measures how long that takes. If the files have changed since, the
    /// engines are not served: devices that already have the model keep what the files were.
    fn load_here(&self, index: usize, hold: &Hold, source: &Source, files: &Files) -> Made {
        let started = Instant::now();
        files.check().map_err(Refusal::Files)?;
        self.check_room(index, hold, source)?;
        let loaded = hold.load(source, files, &self.parts).map_err(|refusal| fell_short(hold, refusal));
        if let Err(reason) = files.check() {
            // `loaded` is why it could not be loaded, or engines of other files.
            if let Ok(engines) = loaded {
                give_back(hold, engines);
            }
            return Err(Refusal::Files(reason));
        }
        loaded.map(|engines| (engines, started.elapsed()))
    }

    /// Checks by earlier measurements whether a device has room for a model, which is cheaper than to try.
    fn check_room(&self, index: usize, hold: &Hold, source: &Source) -> Result<(), Refusal> {
        let Some(gpu) = &self.devices[index].gpu else { return Ok(()) };
        let Some(need) = self.book.need(index, &gpu.name, source) else { return Ok(()) };
        let limit = source.manifest.placement.memory_bytes_max;
        let check = || {
            let Some((free, total)) = hold.memory()? else { return Ok(()) };
            let allowed = need.check_limit(Hold::instances(source) as u64, limit);
            allowed.and_then(|()| need.check(free, total)).map_err(|no| match no {
                NoRoom::Now(reason) => Refusal::Memory(reason),
                NoRoom::Ever(reason) => Refusal::TooLarge(reason),
            })
        };
        match check() {
            // Memory of models that have gone may be in our own pool, which busy ones keep.
            Err(Refusal::Memory(_)) => {
                hold.trim();
                check()
            }
            checked => checked,
        }
    }

    /// Runs a model's engines at every batch size, records what they hold, and returns them if they may stay.
    fn prove_here(
        &self,
        index: usize,
        hold: &Hold,
        source: &Source,
        model: &Lent,
        asked: &[Asked],
        engines: Engines,
    ) -> Result<(Engines, Proof), Refusal> {
        let status = Arc::clone(&self.parts.status);
        let proved = hold.prove(engines, model, asked, &|| status.draining());
        let (engines, proof) = proved.map_err(|refusal| fell_short(hold, refusal))?;
        if let (Some(gpu), Some(footprint)) = (&self.devices[index].gpu, &proof.footprint) {
            // Recorded for engines that cannot stay as well, so that the next time it is known without a try.
            self.book.learn(index, &gpu.name, source, footprint);
            if let Err(no) = footprint.check(source.manifest.placement.memory_bytes_max) {
                give_back(hold, engines);
                return Err(match no {
                    NoRoom::Now(reason) => Refusal::Room(reason),
                    NoRoom::Ever(reason) => Refusal::TooLarge(reason),
                });
            }
        }
        Ok((engines, proof))
    }

    /// Why no device of a model can take it.
    fn away(&self, placed: &Placed) -> String {
        let states = self.parts.status.devices();
        let ids: Vec<&str> = placed.on.iter().map(|index| &*self.devices[*index].id).collect();
        let away = states.iter().filter(|device| ids.contains(&device.id.as_str()));
        let list = away.map(|device| format!("{} is {} ({})", device.id, device.state.name(), device.reason));
        format!("none of its devices is there now: {}", list.collect::<Vec<_>>().join(", "))
    }

    /// Lets a device serve a model from now on.
    fn put(
        &self,
        index: usize,
        hold: &Arc<Hold>,
        served: &Arc<Served>,
        engines: Engines,
        proof: Proof,
        load: Duration,
    ) -> LoadedOn {
        let device = &self.devices[index];
        if let (Some(gpu), Some(footprint)) = (&device.gpu, &proof.footprint) {
            let held = Held { ordinal: gpu.ordinal, bytes: footprint.all() };
            served.model.statistics.holds(&device.id, Some(held));
        }
        let smallest = served.model.rules.sizes.first().copied().unwrap_or(1);
        self.parts.queue.measured(served.model.key, &device.id, smallest, proof.canary);
        self.parts.queue.tried(served.model.key, &device.id, proof.largest);
        self.book.put(index, hold, served, engines, proof.footprint.clone());
        if device.gpu.is_none() && !hold.health.is_over() {
            let status = &self.parts.status;
            // The queue is told first: a caller that has seen the state must be answered in line with it.
            if !status.devices().iter().any(|state| *state.id == *device.id && state.state.runs()) {
                hold.settle();
            }
            status.set_device(&device.id, DeviceState::Serving, Cause::Proved, "a forward pass works");
        }
        LoadedOn { load, canary: proof.canary, largest: proof.largest, footprint: proof.footprint }
    }

    /// Loads onto a device the models that should be served there and are not yet. A model that it refuses is left out for a while; the
    /// models that it serves are not affected.
    ///
    /// # Errors
    /// If it has too little memory for any model, including one that waits for it, or if the hold is over: then it has to be given back.
    pub(in super::super) fn catch_up(&self, index: usize, hold: &Arc<Hold>) -> Result<(), Refusal> {
        let mut short = None;
        while let Some(served) = self.book.missing(index, hold, &self.sharing) {
            if self.keepers.have_ended() {
                return Ok(());
            }
            let (model, version) = (&*served.model.name, &*served.model.version);
            let load = || {
                let (engines, load) = self.load_here(index, hold, &served.source, &served.files)?;
                let (engines, proof) =
                    self.prove_here(index, hold, &served.source, &served.model, &served.asked, engines)?;
                if let Err(why) = proof.counts {
                    give_back(hold, engines);
                    return Err(Refusal::Failed(format!("{why}, unlike elsewhere")));
                }
                Ok((engines, proof, load))
            };
            let loaded = catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| {
                Err(Refusal::Failed(format!("loading panicked: {}", panic_words(&panic))))
            });
            let device = &*self.devices[index].id;
            match loaded {
                Ok((engines, proof, load)) => {
                    tracing::info!(model, version, device, ?load, "model is ready here as well");
                    self.put(index, hold, &served, engines, proof, load);
                }
                Err(refusal) => {
                    let failed = hold.health.has_failed(Instant::now());
                    if hold.health.is_over() && !failed {
                        return Err(refusal);
                    }
                    if !self.ends() {
                        tracing::warn!(model, version, device, reason = %refusal, "the model is not served here");
                    }
                    let again = refusal.again(self.devices[index].gpu.is_some());
                    self.book.refuse(index, hold, served.model.key, (&refusal, again));
                    if failed {
                        let why = match hold.health.over() {
                            Some(Over::Failed(reason)) => reason.clone(),
                            _ => refusal.to_string(),
                        };
                        return Err(Refusal::Failed(format!("while the model {model} was loaded: {why}")));
                    }
                    short = short.or(Some(refusal).filter(|refusal| matches!(refusal, Refusal::Memory(_))));
                }
            }
        }
        short.filter(|_| self.has_none(index)).map_or_else(|| self.check_in_vain(index, hold), Err)
    }
}

/// A model's engines on one device, and how long it took to make them.
type Made = Result<(Engines, Duration), Refusal>;

/// The same, with what their forward passes have shown, which counts in the time.
type Proved = Result<(Engines, Proof, Duration), Refusal>;

/// A model as its engines have it.
struct Resolved {
    model: Lent,
    /// Warm-up runs that its author asks for.
    asked: Vec<Asked>,
    /// For each hold.
    proved: Vec<Proved>,
}

/// All engines that were made.
fn engines(made: &[Made]) -> impl Iterator<Item = &Box<dyn Engine + Send>> {
    made.iter().flatten().flat_map(|(engines, _)| engines)
}

/// Frees what engines hold that will not serve.
fn give_back(hold: &Hold, engines: Engines) {
    hold.drop_engines(engines);
    hold.trim();
}

/// Frees what a model took that could not be loaded. If the reason was too little memory, says how much there is.
fn fell_short(hold: &Hold, refusal: Refusal) -> Refusal {
    if hold.health.is_over() {
        return refusal;
    }
    hold.trim();
    match (refusal, hold.memory()) {
        (Refusal::Memory(reason), Ok(Some((free, total)))) => Refusal::Memory(format!(
            "{reason}; without it, {free} of {total} bytes are free, of which {} are kept free",
            headroom_bytes(total)
        )),
        (refusal, _) => refusal,
    }
}

/// Runs things at once, each on a thread of its own if there are several. A panic is passed on.
fn side_by_side<T: Send, F: FnOnce() -> T + Send>(things: impl ExactSizeIterator<Item = F>) -> Vec<T> {
    if things.len() == 1 {
        return things.map(|thing| thing()).collect();
    }
    side_by_side_on(thread::Builder::new, things)
}

/// Like [`side_by_side`], on threads built by `like`. If the system refuses a thread, the work is done on this one.
fn side_by_side_on<T: Send, F: FnOnce() -> T + Send>(
    like: impl Fn() -> thread::Builder,
    things: impl Iterator<Item = F>,
) -> Vec<T> {
    let act = |thing: &Mutex<Option<F>>| {
        let thing = thing.lock().take().expect("each is done once");
        thing()
    };
    let things: Vec<_> = things.map(|thing| Mutex::new(Some(thing))).collect();
    thread::scope(|scope| {
        let begin = |thing| like().spawn_scoped(scope, move || act(thing));
        let threads: Vec<_> = things.iter().map(begin).collect();
        let done = things.iter().zip(threads).map(|(thing, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => act(thing),
        });
        done.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_has_no_thread_for_is_done_all_the_same() {
        // No machine has room for a stack of this size.
        let refused = || thread::Builder::new().stack_size(1 << 60);
        let here = thread::current().id();
        let things = (0..3).map(|thing| move || (thing, thread::current().id()));
        assert_eq!(side_by_side_on(refused, things.clone()), [0, 1, 2].map(|thing| (thing, here)));
        let (done, on): (Vec<_>, Vec<_>) = side_by_side(things).into_iter().unzip();
        assert!(done == [0, 1, 2] && !on.contains(&here));
    }
}
