//! The models being served, by name and version. A name from a request is only looked up here; it never becomes a path.
//!
//! Readers take a snapshot: the map inside is immutable, and a change replaces it as a whole.

use super::Model;
use crate::{
    error::InferError,
    status::ModelCounts,
    words::{clipped, nearest},
};
use parking_lot::RwLock;
use std::{collections::BTreeMap, sync::Arc};

/// Of how many models at most it is known that they were unloaded: those that callers send may have any name.
const UNLOADED_MAX: usize = 1000;

/// How many similar names an error suggests.
const NEAREST_MAX: usize = 3;

/// Fewer bytes than this could be a part of many names.
const PART_BYTES_MIN: usize = 4;

/// The state of a version of a model.
#[derive(Clone)]
pub enum State {
    /// Found, not loaded yet.
    Loading,
    /// Takes requests.
    Ready(Arc<Model>),
    /// Cannot take requests, and why.
    Unavailable(String),
}

impl State {
    /// The model, if it takes requests.
    pub fn model(&self) -> Option<&Arc<Model>> {
        match self {
            State::Ready(model) => Some(model),
            State::Loading | State::Unavailable(_) => None,
        }
    }
}

/// One version of one model, as lists show it.
#[derive(Clone)]
pub struct Entry {
    /// Its name.
    pub name: Arc<str>,
    /// Its version; empty if a mistake concerns no version in particular.
    pub version: Arc<str>,
    /// Its state.
    pub state: State,
    /// A further remark, such as why the last load failed while an older one goes on serving. May be empty.
    pub note: Arc<str>,
}

#[derive(Clone)]
struct Version {
    version: Arc<str>,
    state: State,
    note: Arc<str>,
}

/// The versions of one model, ascending.
type Versions = Vec<Version>;
type Map = BTreeMap<Arc<str>, Versions>;
/// The versions of models that served until they were unloaded.
type Unloaded = BTreeMap<String, Vec<Arc<str>>>;

/// All models. Clones share one catalog.
#[derive(Clone, Default)]
pub struct Catalog {
    map: Arc<RwLock<Arc<Map>>>,
    unloaded: Arc<RwLock<Unloaded>>,
}

impl Catalog {
    /// An empty catalog.
    pub fn new() -> Catalog {
        Catalog::default()
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read())
    }

    fn change(&self, change: impl FnOnce(&mut Map)) {
        let mut map = self.map.write();
        change(Arc::make_mut(&mut map));
    }

    /// Adds a version or changes its state.
    pub fn set(&self, name: &str, version: &str, state: State) {
        self.change(|map| {
            let versions = map.entry(Arc::from(name)).or_default();
            let note = Arc::from("");
            match versions.binary_search_by(|other| by_version(&other.version, version)) {
                Ok(at) => (versions[at].state, versions[at].note) = (state, note),
                Err(at) => versions.insert(at, Version { version: Arc::from(version), state, note }),
            }
        });
    }

    /// Attaches a remark to a version, until its state is set again.
    pub fn note(&self, name: &str, version: &str, note: &str) {
        self.change(|map| {
            let versions = map.get_mut(name).map(Vec::as_mut_slice).unwrap_or_default();
            if let Some(of) = versions.iter_mut().find(|of| &*of.version == version) {
                of.note = Arc::from(note);
            }
        });
    }

    /// Removes a version. Its model lives on while somebody still holds it.
    pub fn remove(&self, name: &str, version: &str) {
        self.change(|map| {
            if let Some(versions) = map.get_mut(name) {
                versions.retain(|of| &*of.version != version);
                if versions.is_empty() {
                    map.remove(name);
                }
            }
        });
    }

    /// Takes down which versions of a model served until it was unloaded.
    pub fn was_unloaded(&self, name: &str, versions: Vec<Arc<str>>) {
        let mut unloaded = self.unloaded.write();
        unloaded.remove(name);
        if !versions.is_empty() && unloaded.len() < UNLOADED_MAX {
            unloaded.insert(name.to_owned(), versions);
        }
    }

    /// The models that were unloaded, by name, with the versions that had served, ascending. A model may have been loaded again since.
    pub fn unloaded(&self) -> BTreeMap<String, Vec<Arc<str>>> {
        self.unloaded.read().clone()
    }

    /// The model to run: this version, or the highest that is ready.
    ///
    /// # Errors
    /// [`InferError::UnknownModel`] with the nearest names (or the existing versions), and
    /// [`InferError::ModelUnavailable`] with the reason for the version asked for, or for the highest.
    pub fn get(&self, name: &str, version: Option<&str>) -> Result<Arc<Model>, InferError> {
        let map = self.map();
        // It may have any length, by which the search for near ones would take its time.
        let nearest = || near(clipped(name), &map);
        let versions = map
            .get(name)
            .ok_or_else(|| InferError::UnknownModel { name: name.to_owned(), nearest: nearest() })?;
        let state = match version {
            Some(version) => {
                versions.iter().find(|of| &*of.version == version).map(|of| &of.state).ok_or_else(|| {
                    InferError::UnknownModel {
                        name: format!("{name}/{version}"),
                        nearest: versions
                            .iter()
                            .rev()
                            .filter(|of| !of.version.is_empty())
                            .take(NEAREST_MAX)
                            .map(|of| format!("{name}/{}", of.version))
                            .collect(),
                    }
                })?
            }
            None => versions
                .iter()
                .rev()
                .map(|of| &of.state)
                .find(|state| matches!(state, State::Ready(_)))
                .unwrap_or(&versions[versions.len() - 1].state),
        };
        let unavailable = |reason: &str, loading| InferError::ModelUnavailable {
            name: match version {
                Some(version) => format!("{name}/{version}"),
                None => name.to_owned(),
            },
            reason: reason.to_owned(),
            loading,
        };
        match state {
            State::Ready(model) => Ok(Arc::clone(model)),
            State::Loading => Err(unavailable("it is still loading", true)),
            State::Unavailable(reason) => Err(unavailable(reason, false)),
        }
    }

    /// Whether there is a model of this name, in whatever state.
    pub fn has(&self, name: &str) -> bool {
        self.map().contains_key(name)
    }

    /// Whether a ready version of this model is a fitter, which takes stacks of camera frames.
    pub fn takes_stacks(&self, name: &str) -> bool {
        let fits = |of: &Version| of.state.model().is_some_and(|model| model.fit.is_some());
        self.map().get(name).into_iter().flatten().any(fits)
    }

    /// All versions of all models, by name and ascending version.
    pub fn list(&self) -> Vec<Entry> {
        self.map().iter().flat_map(entries).collect()
    }

    /// All versions of one model, ascending.
    pub fn entries(&self, name: &str) -> Vec<Entry> {
        self.map().get_key_value(name).into_iter().flat_map(entries).collect()
    }

    /// How many versions of all models are in which state.
    pub fn counts(&self) -> ModelCounts {
        let mut counts = ModelCounts::default();
        for Version { state, .. } in self.map().values().flatten() {
            match state {
                State::Loading => counts.loading += 1,
                State::Ready(_) => counts.ready += 1,
                State::Unavailable(_) => counts.unavailable += 1,
            }
        }
        counts
    }

    /// The versions of a model that take requests, ascending.
    pub fn ready_versions(&self, name: &str) -> Vec<Arc<str>> {
        let map = self.map();
        let ready = map.get(name).into_iter().flatten().filter(|of| of.state.model().is_some());
        ready.map(|of| Arc::clone(&of.version)).collect()
    }

    /// The models that take requests, by name and ascending version.
    pub fn ready(&self) -> Vec<Arc<Model>> {
        self.map().values().flatten().filter_map(|of| of.state.model().cloned()).collect()
    }
}

fn entries<'m>((name, versions): (&'m Arc<str>, &'m Versions)) -> impl Iterator<Item = Entry> + 'm {
    versions.iter().map(|Version { version, state, note }| Entry {
        name: Arc::clone(name),
        version: Arc::clone(version),
        state: state.clone(),
        note: Arc::clone(note),
    })
}

/// The order of versions. They are digits without leading zeros, so the longer is the higher.
pub fn by_version(a: &str, b: &str) -> std::cmp::Ordering {
    (a.len(), a).cmp(&(b.len(), b))
}

/// The names most similar to this one; if there are none, the names that contain it.
fn near(name: &str, map: &Map) -> Vec<String> {
    let near = nearest(name, map.keys(), NEAREST_MAX);
    if !near.is_empty() || name.len() < PART_BYTES_MIN {
        return near;
    }
    let part = name.to_lowercase();
    let whole = map.keys().filter(|known| known.to_lowercase().contains(&part));
    whole.take(NEAREST_MAX).map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::ModelKey, engine::staging::Memory, models::testing::source, tasks::testing::signature,
    };
    use std::time::Duration;

    fn ready(name: &str, version: &str, key: u64) -> State {
        let signature = signature(&[("out", &[-1, 2])]);
        let (source, timeout) = (source(name, version, ""), Duration::from_secs(30));
        let model = Model::resolve(ModelKey(key), &source, signature, timeout, &Memory::Plain).unwrap();
        State::Ready(Arc::new(model))
    }

    fn key(got: Result<Arc<Model>, InferError>) -> Result<u64, String> {
        got.map(|model| model.key.0).map_err(|error| error.to_string())
    }

    #[test]
    fn versions_that_served_are_remembered_of_so_many_models() {
        let catalog = Catalog::new();
        catalog.was_unloaded("m", vec!["1".into(), "2".into()]);
        catalog.was_unloaded("m", vec!["2".into()]);
        catalog.was_unloaded("failed", Vec::new());
        assert_eq!(catalog.unloaded(), BTreeMap::from([("m".to_owned(), vec!["2".into()])]));
        for index in 0..2 * UNLOADED_MAX {
            catalog.was_unloaded(&index.to_string(), vec!["1".into()]);
        }
        assert_eq!(catalog.unloaded().len(), UNLOADED_MAX);
    }

    #[test]
    fn without_a_version_the_highest_that_is_ready_runs() {
        let catalog = Catalog::new();
        catalog.set("digits", "9", ready("digits", "9", 1));
        catalog.set("digits", "10", ready("digits", "10", 2));
        catalog.set("digits", "11", State::Unavailable("broken".to_owned()));
        assert_eq!(key(catalog.get("digits", None)), Ok(2));
        assert_eq!(key(catalog.get("digits", Some("9"))), Ok(1));
        let versions: Vec<String> = catalog.list().iter().map(|e| e.version.to_string()).collect();
        assert_eq!(versions, ["9", "10", "11"]);
        assert_eq!(catalog.ready().len(), 2);
        assert_eq!(catalog.ready_versions("digits").iter().map(|v| &**v).collect::<Vec<_>>(), ["9", "10"]);
        assert!(catalog.ready_versions("letters").is_empty());
    }

    #[test]
    fn what_is_not_ready_says_why() {
        let catalog = Catalog::new();
        catalog.set("a", "1", State::Loading);
        assert_eq!(
            key(catalog.get("a", None)).unwrap_err(),
            "model \"a\" is unavailable: it is still loading"
        );
        catalog.set("a", "2", State::Unavailable("no such output".to_owned()));
        assert_eq!(key(catalog.get("a", None)).unwrap_err(), "model \"a\" is unavailable: no such output");
        assert_eq!(
            key(catalog.get("a", Some("1"))).unwrap_err(),
            "model \"a/1\" is unavailable: it is still loading"
        );
        let loading = |version| {
            let error = catalog.get("a", Some(version)).map(drop).unwrap_err();
            matches!(error, InferError::ModelUnavailable { loading: true, .. })
        };
        assert_eq!((loading("1"), loading("2")), (true, false));
    }

    #[test]
    fn unknown_names_come_with_the_nearest() {
        let catalog = Catalog::new();
        for name in ["resnet18", "resnet50", "resnet101", "resnet152", "yolo"] {
            catalog.set(name, "1", State::Loading);
        }
        assert_eq!(
            key(catalog.get("ResNet5", None)).unwrap_err(),
            "Request for unknown model: 'ResNet5' is not found; nearest: resnet50, resnet152, resnet18"
        );
        assert_eq!(
            key(catalog.get("../../etc/passwd", None)).unwrap_err(),
            "Request for unknown model: '../../etc/passwd' is not found; GET /v2/models lists those that are served, POST /v2/repository/index those in the folder"
        );
        assert_eq!(
            key(catalog.get("yolo", Some("01"))).unwrap_err(),
            "Request for unknown model: 'yolo/01' is not found; nearest: yolo/1"
        );
        catalog.set("digits-segmenter", "1", State::Loading);
        let part = "Request for unknown model: 'Segmenter' is not found; nearest: digits-segmenter";
        assert_eq!(key(catalog.get("Segmenter", None)).unwrap_err(), part);
        assert_eq!(
            key(catalog.get("git", None)).unwrap_err(),
            "Request for unknown model: 'git' is not found; GET /v2/models lists those that are served, POST /v2/repository/index those in the folder"
        );
        // What is said of a name of any length is short.
        for (name, version) in [("x".repeat(1 << 24), None), ("yolo".into(), Some("x".repeat(1 << 24)))] {
            assert!(key(catalog.get(&name, version.as_deref())).unwrap_err().len() < 500);
        }
    }

    #[test]
    fn a_snapshot_outlives_a_change_and_clones_share_it() {
        let catalog = Catalog::new();
        catalog.set("a", "1", ready("a", "1", 1));
        let held = catalog.get("a", None).unwrap();
        catalog.clone().set("a", "1", ready("a", "1", 2));
        assert_eq!(held.key, ModelKey(1));
        assert_eq!(key(catalog.get("a", None)), Ok(2));
        catalog.remove("a", "1");
        assert!(matches!(catalog.get("a", None), Err(InferError::UnknownModel { .. })));
        assert!(catalog.list().is_empty());
    }
}
