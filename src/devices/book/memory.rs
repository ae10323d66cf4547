//! What models need of a GPU's memory, by measurements, and what they hold.

use super::{
    super::{
        device::Hold,
        lease::memory,
        plan::{Footprint, Need},
    },
    Book, Entry,
};
use crate::{
    models::{Source, by_version},
    status::HeldModel,
};

impl Book {
    /// What models hold of a device with `free` bytes free, where that is known, by name and version.
    pub(in crate::devices) fn held(&self, index: usize, hold: &Hold, free: Option<u64>) -> Vec<HeldModel> {
        let state = self.state.lock();
        let of = |entry: &Entry| {
            let on = entry.on.iter().find(|on| (on.index, on.hold) == (index, hold.number))?;
            let mut footprint = on.footprint.clone()?;
            footprint.free = free.unwrap_or(footprint.free);
            Some(footprint.of(&entry.served.source.name, &entry.served.model.version))
        };
        let mut held: Vec<HeldModel> = state.entries.iter().filter_map(of).collect();
        held.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| by_version(&a.version, &b.version)));
        held
    }

    /// Bytes that the models of a device need there, with the context and the bytes reserved beside them. A model measured to take more
    /// than the whole device, `total`, does not count: it is not loaded.
    pub(in crate::devices) fn required(&self, index: usize, gpu: &str, total: u64) -> u64 {
        let state = self.state.lock();
        let served = state.entries.iter().filter(|entry| entry.served.placed.has(index));
        let served = served.map(|entry| (name(&entry.served.source), entry.served.source.bytes));
        let announced = state.announced.iter().filter(|(.., on)| on.contains(&index));
        let announced = announced.map(|(name, bytes, _)| (name.clone(), *bytes));
        let waiting = state.waiting_for(index).map(|source| (name(source), source.bytes));
        let mut models: Vec<(String, u64)> = served.chain(announced).chain(waiting).collect();
        models.sort();
        models.dedup_by(|one, other| one.0 == other.0);
        let learned = self.learned.lock();
        let beside = learned.measured_context(gpu);
        let fits = |name: &str| {
            let need = learned.measured(gpu, name).map(|model| Need { model, beside });
            need.is_none_or(|need| need.check_total(total).is_ok())
        };
        let models =
            models.iter().map(|(name, bytes)| (name.as_str(), *bytes)).filter(|(name, _)| fits(name));
        learned.required(gpu, models).saturating_add(self.beside)
    }

    /// Records what a model took on a GPU.
    pub(in crate::devices) fn learn(&self, index: usize, gpu: &str, source: &Source, footprint: &Footprint) {
        let own = name(source);
        let others = self.names_on(index).into_iter().filter(|name| *name != own);
        let mut learned = self.learned.lock();
        let beside = learned.beside(gpu, others).saturating_add(footprint.headroom());
        learned.model(gpu, &own, footprint.all(), footprint.total.saturating_sub(beside));
        drop(learned);
        self.keep();
    }

    /// Keeps what was learned for the next run. The disk may be slow, and nobody else waits for it.
    fn keep(&self) {
        let _in_turn = self.keeping.lock();
        let unsaved = self.learned.lock().unsaved();
        if let Some((file, measured)) = unsaved
            && let Err(error) = memory::write(&file, &measured)
        {
            tracing::warn!(file = %file.display(), %error, "what models need of a GPU cannot be kept; it is measured anew");
            // Logged once, and not tried again: the next write would fail likewise.
            self.learned.lock().give_up();
        }
    }

    /// What a model needs on a device, if that was measured.
    pub(in crate::devices) fn need(&self, index: usize, gpu: &str, source: &Source) -> Option<Need> {
        let own = name(source);
        let others = self.names_on(index).into_iter().filter(|name| *name != own);
        let learned = self.learned.lock();
        let model = learned.measured(gpu, &own)?;
        Some(Need { model, beside: learned.beside(gpu, others) })
    }

    /// The models that are on a device, each once.
    fn names_on(&self, index: usize) -> Vec<String> {
        let state = self.state.lock();
        let entries = state.entries.iter();
        let there =
            entries.filter(|entry| entry.on.iter().any(|on| on.index == index && !on.health.is_over()));
        let mut names: Vec<String> = there.map(|entry| name(&entry.served.source)).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The least that any of a device's models needs there with its context; `None` unless all were measured.
    pub(in crate::devices) fn least(&self, index: usize, gpu: &str) -> Option<u64> {
        let (state, learned) = (self.state.lock(), self.learned.lock());
        let served = state.entries.iter().filter(|entry| entry.served.placed.has(index));
        let announced = state.announced.iter().filter(|(.., on)| on.contains(&index));
        let names =
            served.map(|entry| name(&entry.served.source)).chain(announced.map(|(name, ..)| name.clone()));
        let names = names.chain(state.waiting_for(index).map(name));
        let least = names.map(|name| learned.measured(gpu, &name)).min()??;
        Some(least.saturating_add(learned.measured_context(gpu)))
    }

    /// What a context takes on a GPU; 0 if it was not measured.
    pub(in crate::devices) fn context(&self, gpu: &str) -> u64 {
        self.learned.lock().measured_context(gpu)
    }

    /// Records what we hold on a GPU in all, by the driver's count. `ours`: the count excludes other processes.
    pub(in crate::devices) fn learn_all(&self, index: usize, gpu: &str, held: u64, ours: bool) {
        let names = self.names_on(index);
        let mut learned = self.learned.lock();
        if ours {
            learned.at_most(gpu, &names, held);
        }
        let models = names.iter().filter_map(|name| learned.measured(gpu, name)).sum();
        match held.checked_sub(models).filter(|context| *context > 0) {
            Some(context) if ours => learned.context_told(gpu, context),
            Some(context) => learned.context(gpu, context),
            None => {}
        }
        drop(learned);
        self.keep();
    }
}

/// The key for a model's measurements: includes everything that determines how much it takes.
pub(super) fn name(source: &Source) -> String {
    let Source { name, version, bytes, manifest, .. } = source;
    let (instances, items) = (manifest.placement.instances, manifest.batch.largest());
    // The memory arena of a network keeps to its limit.
    let limit = manifest.placement.memory_bytes_max.map(|max| format!(", at most {max} bytes each"));
    let limit = limit.unwrap_or_default();
    format!("{name}/{version}, {bytes} bytes, {instances} instances, batches of {items}{limit}")
}

#[cfg(test)]
mod tests {
    use super::{super::testing, *};
    use crate::batch::ModelKey;

    #[test]
    fn what_is_beside_models_is_required_with_them() {
        let [plain, more] = [0, 7].map(|beside| Book::new(None, beside).required(0, "H100", 1 << 30));
        assert_eq!(more, plain + 7);
    }

    #[test]
    fn what_cannot_be_there_is_not_required() {
        let book = Book::new(None, 0);
        let required = || book.required(0, "H100", 4 << 30);
        let nothing = required();
        for (name, bytes) in [("small", 1 << 30), ("large", 4 << 30)] {
            book.state.lock().announced.push((name.into(), 0, vec![0]));
            book.learned.lock().model("H100", name, bytes, u64::MAX);
        }
        assert_eq!(required(), nothing + (1 << 30));
    }

    #[test]
    fn what_is_announced_and_entered_is_required_once() {
        let (book, source) = (Book::new(None, 0), testing::source("m", ""));
        let required = || book.required(1, "H100", 80 << 30);
        let nothing = required();
        book.announce(&source, vec![1]);
        let announced = required();
        assert!(announced > nothing);
        testing::enter(&book, ModelKey(1), &source, &[1]);
        assert_eq!(required(), announced);
        book.forget_announced();
        assert_eq!(required(), announced);
    }
}
