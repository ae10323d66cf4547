//! When changes in the model folder count: once the files of a model have been the same for a while.
//!
//! A file that is half written is as good a file as any, and weights beside an ONNX file have no checksum: a model that is loaded while
//! its files are copied may serve with one half of the old numbers and one half of the new.

use super::changes::{Difference, FileState, Snapshot};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How long the files of a model must have been the same. This is enough for what is moved or linked into place.
pub const REST: Duration = Duration::from_millis(500);
/// The same where a file is written over in place, or files have been seen to change more than once: somebody copies them, and a copy
/// may falter.
pub const REST_OF_COPIES: Duration = Duration::from_secs(5);
/// After this long, files that still change are worth a line in the log.
const LONG: Duration = Duration::from_secs(60);

/// The models whose files have changed, and how.
#[derive(Debug, Default)]
pub struct Settling(BTreeMap<String, Unsettled>);

#[derive(Debug)]
struct Unsettled {
    /// Its files at the last look.
    files: Vec<FileState>,
    /// The first look at which they were as they are now.
    since: Instant,
    /// The first look at which they differed from those that are served.
    began: Instant,
    /// They are written over, or have changed since then.
    copied: bool,
    /// The log says so.
    told: bool,
}

impl Settling {
    /// Whether nothing changes.
    pub fn is_settled(&self) -> bool {
        self.0.is_empty()
    }

    /// The changes from what is served to a look at this moment: those that count by now, which are forgotten here, and the others.
    pub fn sort(
        &mut self,
        served: &Snapshot,
        look: &Snapshot,
        now: Instant,
    ) -> (Vec<Difference>, Vec<Difference>) {
        let changes = served.changes(look);
        self.0.retain(|name, _| changes.iter().any(|change| change.name() == name));
        let counts = |change: &Difference| {
            let name = change.name();
            self.counts(name, (served.files(name), look.files(name)), now)
        };
        changes.into_iter().partition(counts)
    }

    fn counts(&mut self, name: &str, (served, files): (&[FileState], &[FileState]), now: Instant) -> bool {
        let Some(model) = self.0.get_mut(name) else {
            let copied = files.iter().any(|file| served.iter().any(|earlier| file.is_rewritten(earlier)));
            let new = Unsettled { files: files.to_owned(), since: now, began: now, copied, told: false };
            self.0.insert(name.to_owned(), new);
            return false;
        };
        if model.files != files {
            if !model.told && now - model.began >= LONG {
                model.told = true;
                let other = files.iter().find(|file| !model.files.contains(file));
                tracing::warn!(
                    model = name,
                    file = other.map(|file| &*file.name),
                    "files of the model keep changing: what is served stays until all have been the same for {REST_OF_COPIES:?}"
                );
            }
            (model.files, model.since, model.copied) = (files.to_owned(), now, true);
            return false;
        }
        let rest = if model.copied { REST_OF_COPIES } else { REST };
        let counts = now - model.since >= rest;
        if counts {
            self.0.remove(name);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    /// A folder that is looked at every 500 ms.
    struct Looks {
        folder: TempDir,
        served: Snapshot,
        settling: Settling,
        now: Instant,
    }

    impl Looks {
        fn new() -> Looks {
            let folder = tempfile::tempdir().unwrap();
            let served = Snapshot::at(&folder.path().into());
            Looks { folder, served, settling: Settling::default(), now: Instant::now() }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.folder.path().join(name), text).unwrap();
        }

        /// What counts at the next look.
        fn next(&mut self) -> Vec<Difference> {
            self.now += REST;
            let look = Snapshot::at(&self.folder.path().into());
            self.settling.sort(&self.served, &look, self.now).0
        }

        /// How many looks there are until something counts.
        fn until(&mut self, expected: &Difference) -> u32 {
            for looks in 1..100 {
                let counted = self.next();
                if !counted.is_empty() {
                    assert_eq!(counted, std::slice::from_ref(expected));
                    return looks;
                }
            }
            panic!("{expected:?} never counts");
        }
    }

    fn load(name: &str) -> Difference {
        Difference::Load(name.to_owned())
    }

    #[test]
    fn what_is_there_at_once_counts_at_the_second_look() {
        let mut looks = Looks::new();
        looks.write("a.onnx", "all of it");
        assert_eq!(looks.until(&load("a")), 2);
        assert!(looks.settling.is_settled());
    }

    #[test]
    fn what_comes_bit_by_bit_counts_when_it_has_been_the_same_for_longer() {
        let mut looks = Looks::new();
        for end in 1..=40 {
            looks.write("a.onnx", &"x".repeat(end));
            assert_eq!(looks.next(), [], "20 s of copying are not too long");
        }
        // A copy that falters, and goes on.
        for _ in 0..8 {
            assert_eq!(looks.next(), []);
        }
        looks.write("a.onnx", "the end");
        let rest = REST_OF_COPIES.div_duration_f32(REST) as u32;
        assert_eq!(looks.until(&load("a")), rest + 1);
    }

    #[test]
    fn a_file_that_is_written_over_counts_later_than_one_that_takes_its_place() {
        let mut looks = Looks::new();
        let rest = REST_OF_COPIES.div_duration_f32(REST) as u32;
        looks.write("a.onnx", "old");
        looks.served = Snapshot::at(&looks.folder.path().into());
        looks.write("a.onnx", "new, as far as it goes");
        assert_eq!(looks.until(&load("a")), rest + 1);
        looks.served = Snapshot::at(&looks.folder.path().into());
        looks.write(".next", "all of it");
        let at = |name: &str| looks.folder.path().join(name);
        fs::rename(at(".next"), at("a.onnx")).unwrap();
        assert_eq!(looks.until(&load("a")), 2);
    }

    #[test]
    fn a_model_that_is_copied_keeps_no_other_waiting_and_one_that_is_as_before_is_no_change() {
        let mut looks = Looks::new();
        looks.write("a.onnx", "1");
        assert_eq!(looks.next(), []);
        looks.write("a.onnx", "12");
        looks.write("b.onnx", "1");
        assert_eq!(looks.next(), []);
        looks.write("a.onnx", "123");
        assert_eq!(looks.next(), [load("b")]);
        fs::remove_file(looks.folder.path().join("a.onnx")).unwrap();
        looks.write("b.onnx", "1");
        looks.served = Snapshot::at(&looks.folder.path().into());
        assert_eq!(looks.next(), []);
        assert!(looks.settling.is_settled());
    }

    #[test]
    fn a_model_that_is_gone_counts_as_gone_at_the_second_look() {
        let mut looks = Looks::new();
        looks.write("a.onnx", "1");
        looks.served = Snapshot::at(&looks.folder.path().into());
        fs::remove_file(looks.folder.path().join("a.onnx")).unwrap();
        assert_eq!(looks.until(&Difference::Unload("a".to_owned())), 2);
    }
}
