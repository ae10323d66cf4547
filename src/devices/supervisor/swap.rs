//! Models that come and go while others serve. A new version is loaded and warmed up beside the old one, and takes its place in the
//! catalog in one step. The old one stays until the last request that has begun with it has ended.

use super::{Devices, NotLoaded};
use crate::models::{Entry, Found, Model, State};
use std::sync::{Arc, Weak};

/// A model that is out of the catalog, with what tells whether devices still hold it.
pub(super) struct Leaving {
    model: Arc<Model>,
    lent: Weak<Arc<Model>>,
}

/// Why a model was not loaded anew.
#[derive(Debug, PartialEq)]
pub struct NotReloaded {
    /// The reasons of all versions that failed.
    pub reason: String,
    /// Whether none of them failed by itself: their devices are away, or have no room for them now.
    pub for_now: bool,
}

impl Devices {
    /// Loads all versions of a model anew. If one fails, all that serve go on, and the reason is listed; otherwise versions that are gone
    /// from the folder are unloaded. A version that is only named, without files, is listed with its reason, and is no
    /// failure beside versions that are there. The first version that does not meet the caller's expectation fails like one that cannot
    /// be loaded, and those after it are left as they are.
    ///
    /// # Errors
    /// If a version failed.
    pub fn reload(&self, name: &str, found: &[Found]) -> Result<(), NotReloaded> {
        let _turn = self.turn.lock();
        let mut reasons = Vec::new();
        let (mut refused, mut for_now) = (false, true);
        let is_some_there = found.iter().any(|found| !found.only_named);
        let before = self.parts.catalog.entries(name);
        // All versions show as loading at once, including those that wait for their turn.
        for found in found.iter().filter(|found| self.serving(name, Some(&found.version)).is_empty()) {
            self.publish(found, State::Loading);
        }
        self.count();
        for found in found {
            if refused {
                self.put_back(found, &before);
                continue;
            }
            self.book.stop_waiting_for(found);
            let version = &found.version;
            let may_lack = found.only_named && is_some_there;
            let old = self.serving(name, Some(version)).pop();
            let loaded = self.try_load(found);
            refused = matches!(loaded, Err(NotLoaded::Unexpected(_)));
            match loaded {
                Ok(loading) => self.present(found, &loading),
                Err(why) if old.is_some() && !may_lack => {
                    for_now &= matches!(why, NotLoaded::Away(_));
                    let reason = why.reason();
                    if !self.ends() {
                        tracing::error!(
                            model = name,
                            version,
                            reason,
                            "a new load failed; the old one goes on serving"
                        );
                    }
                    self.parts.metrics.model(name).set_load_failed(version, true);
                    self.parts.catalog.note(name, version, &format!("the last load failed: {reason}"));
                    reasons.push(reason.to_owned());
                    continue;
                }
                Err(why) => {
                    let failed = self.not_loaded(found, why);
                    if !may_lack {
                        for_now &= failed.for_now;
                        reasons.push(failed.reason);
                    }
                }
            }
            if let Some(old) = old {
                self.leave(old);
            }
            self.count();
        }
        // Counted again without those that were put back.
        self.count();
        let gone = |version: &str| found.iter().all(|found| found.version != version);
        if !reasons.is_empty() {
            // What serves goes on; what is listed only with a reason, and has no files any more, would be listed for ever.
            let serves = |version: &str| !self.serving(name, Some(version)).is_empty();
            self.remove(name, &|version| gone(version) && !serves(version));
            return Err(NotReloaded { reason: reasons.join("; "), for_now });
        }
        self.book.stop_waiting(name, &|version| !gone(version));
        self.remove(name, &gone);
        Ok(())
    }

    /// Restores the state of a version that was to be loaded.
    fn put_back(&self, found: &Found, before: &[Entry]) {
        let (name, version) = (&found.name, &found.version);
        let same = |entry: &&Entry| (&*entry.name, &*entry.version) == (name.as_str(), version.as_str());
        match before.iter().find(same) {
            // It has served all the time.
            Some(Entry { state: State::Ready(_), .. }) => {}
            Some(entry) => self.publish(found, entry.state.clone()),
            None => {
                self.parts.catalog.remove(name, version);
                self.parts.metrics.model(name).remove_version(version);
            }
        }
    }

    /// Whether a model of this name serves, loads, or is listed with the reason why it does not.
    pub fn lists(&self, name: &str) -> bool {
        self.parts.catalog.has(name)
    }

    /// Whether all listed versions of a model take requests, and are what the last load asked for.
    pub fn serves_all(&self, name: &str) -> bool {
        let listed = self.parts.catalog.entries(name);
        let serves = |entry: &Entry| {
            let served = |model: &Arc<Model>| self.parts.queue.check_served(model.key).is_ok();
            entry.note.is_empty() && entry.state.model().is_some_and(served)
        };
        !listed.is_empty() && listed.iter().all(serves)
    }

    /// Whether a model of this name is listed, but only with reasons why it does not serve.
    pub fn lists_none_that_serves(&self, name: &str) -> bool {
        let listed = self.parts.catalog.entries(name);
        !listed.is_empty() && listed.iter().all(|entry| matches!(entry.state, State::Unavailable(_)))
    }

    /// Whether a model of this name is listed, or still serves requests that have begun with it.
    pub fn knows(&self, name: &str) -> bool {
        self.lists(name) || self.leaving.lock().iter().any(|Leaving { model, .. }| &*model.name == name)
    }

    /// Unloads a model: requests that have begun with it are still answered. False if there is none of this name.
    pub fn unload(&self, name: &str) -> bool {
        let _turn = self.turn.lock();
        self.book.stop_waiting(name, &|_| false);
        let known = self.parts.catalog.has(name);
        let served = self.parts.catalog.ready_versions(name);
        self.remove(name, &|_| true);
        if known {
            self.parts.catalog.was_unloaded(name, served);
        }
        known
    }

    /// Takes out of the catalog the versions of a model for which `goes` holds.
    fn remove(&self, name: &str, goes: &dyn Fn(&str) -> bool) {
        for model in self.serving(name, None) {
            if goes(&model.version) {
                tracing::info!(model = name, version = &*model.version, "model is unloaded");
                self.leave(model);
            }
        }
        for entry in self.parts.catalog.entries(name) {
            if goes(&entry.version) {
                self.parts.catalog.remove(name, &entry.version);
                self.parts.metrics.model(name).remove_version(&entry.version);
            }
        }
        self.count();
        self.forget_counts(name, &self.leaving.lock());
    }

    /// Removes the metrics of a model that is gone: it is not in the catalog, and no version of it is leaving.
    fn forget_counts(&self, name: &str, leaving: &[Leaving]) {
        let leaves = leaving.iter().any(|Leaving { model, .. }| &*model.name == name);
        if !leaves && !self.parts.catalog.has(name) {
            self.parts.metrics.remove_model(name);
        }
    }

    fn serving(&self, name: &str, version: Option<&str>) -> Vec<Arc<Model>> {
        let entries = self.parts.catalog.entries(name);
        let asked = entries.iter().filter(|of| version.is_none_or(|version| version == &*of.version));
        asked.filter_map(|of| of.state.model().cloned()).collect()
    }

    pub(super) fn leave(&self, model: Arc<Model>) {
        let lent = self.book.leave(model.key);
        self.leaving.lock().push(Leaving { model, lent });
    }

    /// Drops the leaving models that no request holds any more; true while some are left. To be called regularly.
    pub fn let_go(&self) -> bool {
        let mut leaving = self.leaving.lock();
        let mut gone = Vec::new();
        leaving.retain(|Leaving { model, lent }| {
            // It is out of the catalog, so this count can only fall. It is taken before that of `lent`: what devices drop in between is
            // counted once too often, not once too little. The devices' share counts as one holder, which a device that hangs may keep
            // for ever.
            let holders = Arc::strong_count(model);
            let held = holders > 1 + usize::from(lent.strong_count() > 0);
            if !held {
                self.book.strike(model.key);
                self.parts.queue.retire(model.key);
                gone.push(Arc::clone(&model.name));
            }
            held
        });
        for name in gone {
            self.forget_counts(&name, &leaving);
        }
        !leaving.is_empty()
    }
}
