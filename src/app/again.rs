//! When models whose files could not be used are read again: ever more rarely, until they are loaded or unloaded. Pure.
//!
//! A volume may fail for a moment. Files that have not changed since, and are read with another result, could not be read then: their model
//! is loaded again. With the same result, the mistake is in the files, and only a change of these helps.

use crate::models::{Found, changes::Snapshot};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// The first pause.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest pause, as for models that wait for a device.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// Why versions of a model cannot be served, by version, as far as their files say.
pub(super) type Refused = Vec<(String, String)>;

/// Why versions that were found cannot be served. Versions that are only named are missed, not refused.
pub(super) fn refused<'f>(found: impl IntoIterator<Item = &'f Found>) -> Refused {
    let there = found.into_iter().filter(|found| !found.only_named);
    there.filter_map(|found| Some((found.version.clone(), found.source.clone().err()?))).collect()
}

/// What follows when the files of a model are read again.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// They are read again later.
    Wait,
    /// The model is loaded.
    Load,
    /// They have changed, or are gone: whoever loads what has changed loads the model.
    Forget,
}

/// The models that are read again.
#[derive(Debug, Default)]
pub(super) struct Again(BTreeMap<String, Waiting>);

#[derive(Debug)]
struct Waiting {
    /// The files as they were when they could not be used.
    look: Snapshot,
    refused: Refused,
    pause: Duration,
    due: Instant,
}

impl Again {
    /// A model was not loaded as its files, which `look` has, were refused.
    pub(super) fn failed(&mut self, name: &str, look: &Snapshot, refused: Refused, now: Instant) {
        // A model that fails in several ways in turn is not read more often for that.
        let pause = self.0.get(name).map_or(PAUSE, |waiting| waiting.pause);
        let look = Snapshot::default().with_one_from(name, look);
        self.0.insert(name.to_owned(), Waiting { look, refused, pause, due: now + pause });
    }

    /// A model is loaded or unloaded, or somebody else sees to it.
    pub(super) fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// How long it is until a model is due, if one waits.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        self.0.values().map(|waiting| waiting.due.saturating_duration_since(now)).min()
    }

    /// The model that has been due for the longest time.
    pub(super) fn due(&self, now: Instant) -> Option<String> {
        let due = self.0.iter().filter(|(_, waiting)| waiting.due <= now);
        due.min_by_key(|(_, waiting)| waiting.due).map(|(name, _)| name.clone())
    }

    /// Decides about a model that was due and has been read again: its files are as `look` has them, with what is found in them, or why
    /// they cannot be found.
    pub(super) fn decide(
        &mut self,
        name: &str,
        look: &Snapshot,
        found: &Result<Vec<Found>, String>,
        now: Instant,
    ) -> Next {
        let Some(waiting) = self.0.get_mut(name) else { return Next::Forget };
        waiting.pause = (waiting.pause * 2).min(PAUSE_MAX);
        waiting.due = now + waiting.pause;
        let next = match found {
            Err(_) => Next::Wait,
            Ok(found) if found.is_empty() || waiting.look.has_other(name, look) => Next::Forget,
            Ok(found) if refused(found) == waiting.refused => Next::Wait,
            Ok(_) => Next::Load,
        };
        if next == Next::Forget {
            self.forget(name);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::models::{self, Repository};
    use std::fs;
    use tempfile::TempDir;

    const S: Duration = Duration::from_secs(1);

    fn folder() -> (TempDir, Repository) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("m")).unwrap();
        fs::write(folder.path().join("m/model.toml"), "engine").unwrap();
        let repository = Repository::from(folder.path());
        (folder, repository)
    }

    fn read(repository: &Repository) -> (Snapshot, Result<Vec<Found>, String>) {
        (Snapshot::of_one(repository, "m"), models::scan_one(repository, "m", None))
    }

    #[test]
    fn files_that_read_as_before_are_read_ever_more_rarely() {
        let ((_folder, repository), mut now) = (folder(), Instant::now());
        let ((look, found), mut again) = (read(&repository), Again::default());
        assert_eq!((again.pause(now), again.due(now)), (None, None));
        again.failed("m", &look, refused(found.as_ref().unwrap()), now);
        for pause in [5, 10, 20, 40, 80, 160, 300, 300] {
            assert_eq!((again.pause(now), again.due(now)), (Some(S * pause), None));
            now += S * pause;
            assert_eq!((again.pause(now), again.due(now).as_deref()), (Some(Duration::ZERO), Some("m")));
            assert_eq!(again.decide("m", &look, &found, now), Next::Wait);
        }
        again.failed("m", &look, Refused::new(), now);
        assert_eq!(again.pause(now), Some(S * 300), "also those that fail in another way then");
        again.forget("m");
        again.failed("m", &look, Refused::new(), now);
        assert_eq!(again.pause(now), Some(S * 5), "until the model is another");
    }

    #[test]
    fn files_that_have_not_changed_and_read_otherwise_are_loaded() {
        let ((folder, repository), now) = (folder(), Instant::now());
        let (look, found) = read(&repository);
        let next = |look: &Snapshot, found: &Result<Vec<Found>, String>, before: &Snapshot, why: &str| {
            let mut again = Again::default();
            again.failed("m", before, vec![(String::new(), why.to_owned())], now);
            let next = again.decide("m", look, found, now);
            assert_eq!(again.pause(now).is_none(), next == Next::Forget);
            next
        };
        let why = &refused(found.as_ref().unwrap())[0].1;
        assert_eq!(next(&look, &found, &look, "cannot read it: stale"), Next::Load);
        assert_eq!(next(&look, &found, &look, why), Next::Wait);
        // Whose names and times could not be read either.
        assert_eq!(next(&look, &found, &Snapshot::default(), "cannot read it: stale"), Next::Load);
        assert_eq!(next(&Snapshot::default(), &Err("stale".into()), &look, "stale"), Next::Wait);

        fs::write(folder.path().join("m/model.toml"), "engine = \"gauss-mle\"\n").unwrap();
        let (later, found) = read(&repository);
        assert_eq!(next(&later, &found, &look, why), Next::Forget, "changed files are a matter for others");
        fs::remove_dir_all(folder.path().join("m")).unwrap();
        let (gone, found) = read(&repository);
        assert_eq!(next(&gone, &found, &look, why), Next::Forget);
    }
}
