//! What models need of a GPU's memory, as measured at load and with their largest batches. It is remembered from run to run, by the names
//! of model and GPU. If the file cannot be read or written, only this memory is lost.

use std::{
    collections::BTreeMap,
    fs::Permissions,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// The file's name in the folder for state.
const FILE: &str = "gpu-memory.json";
/// Assumed bytes of a context, where it has not been measured.
const CONTEXT_BYTES: u64 = 512 << 20;
/// Assumed bytes of a model per byte of its file, where it has not been measured.
const FILE_FACTOR: u64 = 3;
/// The least of that assumption, bytes.
const MODEL_BYTES_MIN: u64 = 64 << 20;
/// Follows the name of a GPU in the file, for measurements that do not count yet.
const DOUBTED: &str = " (doubted)";
/// The key of the context among a GPU's models: no model can have this name.
const CONTEXT: &str = "";

/// Bytes, by the name of the GPU, then by that of the model.
pub type Measured = BTreeMap<String, BTreeMap<String, u64>>;

/// The measurements.
#[derive(Debug, Default)]
pub struct Learned {
    measured: Measured,
    /// Measurements far from the value in use, seen once: of two in a row, the one nearer to it is used.
    doubted: Measured,
    file: Option<PathBuf>,
    /// Whether the file is to have what was measured since it was written.
    is_news: bool,
}

impl Learned {
    /// The measurements that an earlier run left in `folder`; none without such a file.
    pub fn read(folder: Option<&Path>) -> Learned {
        let file = folder.map(|folder| folder.join(FILE));
        let mut learned = Learned { file, ..Learned::default() };
        for (gpu, models) in learned.file.as_deref().map(read).unwrap_or_default() {
            match gpu.strip_suffix(DOUBTED) {
                Some(gpu) => learned.doubted.insert(gpu.to_owned(), models),
                None => learned.measured.insert(gpu, models),
            };
        }
        learned
    }

    /// What these models need together on a GPU, from their names and the bytes of their files.
    pub fn required<'a>(&self, gpu: &str, models: impl Iterator<Item = (&'a str, u64)>) -> u64 {
        let known = |name: &str| self.measured(gpu, name);
        let model = |(name, file): (&str, u64)| {
            known(name).unwrap_or_else(|| file.saturating_mul(FILE_FACTOR).max(MODEL_BYTES_MIN))
        };
        let context = known(CONTEXT).unwrap_or(CONTEXT_BYTES);
        models.map(model).fold(context, u64::saturating_add)
    }

    /// What a model needs there, if it was measured.
    pub fn measured(&self, gpu: &str, model: &str) -> Option<u64> {
        self.measured.get(gpu).and_then(|models| models.get(model)).copied()
    }

    /// What a context takes there; 0 if it was not measured.
    pub fn measured_context(&self, gpu: &str) -> u64 {
        self.measured(gpu, CONTEXT).unwrap_or(0)
    }

    /// What the context and these models took there, as far as they were measured.
    pub fn beside(&self, gpu: &str, models: impl Iterator<Item = String>) -> u64 {
        let models = models.filter_map(|name| self.measured(gpu, &name));
        models.fold(self.measured_context(gpu), u64::saturating_add)
    }

    /// Records one measurement of what a model took, on a GPU of which our models could have `most` bytes.
    ///
    /// It is the difference in free memory, so memory that others take meanwhile counts as the model's, and memory that they give back is
    /// missing. Therefore more than before, or less than half of it, counts only if the measurement before was like that too: then the
    /// nearer one of both. A first value that would keep the model off such a GPU for ever, and so prevent any further measurement, counts
    /// as half of `most` until a second measurement confirms it.
    pub fn model(&mut self, gpu: &str, name: &str, bytes: u64, most: u64) {
        let known = self.measured(gpu, name);
        let before = self.doubted.get_mut(gpu).and_then(|models| models.remove(name));
        let counts = match (known, before) {
            (None, _) if bytes > most => most / 2,
            (Some(known), Some(before)) if bytes > known && before > known => bytes.min(before),
            (Some(known), Some(before)) if bytes < known / 2 && before < known => bytes.max(before),
            // What is known is that half.
            (Some(known), Some(before)) if bytes < known / 2 && before > most => bytes,
            (Some(known), _) if bytes > known || bytes < known / 2 => known,
            _ => bytes,
        };
        if counts != bytes {
            tracing::debug!(
                gpu,
                name,
                bytes,
                counts,
                "not what it took before: others may have taken or left it"
            );
            self.doubted.entry(gpu.to_owned()).or_default().insert(name.to_owned(), bytes);
        }
        self.is_news |= before != Some(bytes).filter(|_| counts != bytes);
        self.note(gpu, name, counts);
    }

    /// Notes that these models together took at most `bytes`, counted without other processes: each is lowered by the
    /// same factor.
    pub fn at_most(&mut self, gpu: &str, names: &[String], bytes: u64) {
        let measured = |name: &String| Some((name.clone(), self.measured(gpu, name)?));
        let models: Vec<(String, u64)> = names.iter().filter_map(measured).collect();
        let sum: u64 = models.iter().map(|(_, bytes)| *bytes).sum();
        if sum <= bytes {
            return;
        }
        for (name, took) in models {
            let less = u128::from(took) * u128::from(bytes) / u128::from(sum);
            self.note(gpu, &name, less as u64);
        }
    }

    /// Records what we hold there besides our models, counted without other processes.
    pub fn context_told(&mut self, gpu: &str, bytes: u64) {
        let doubted = self.doubted.get_mut(gpu).and_then(|models| models.remove(CONTEXT));
        self.is_news |= doubted.is_some();
        self.note(gpu, CONTEXT, bytes);
    }

    /// Records one measurement of what we hold there besides our models, by the rules of [`Learned::model`]: it includes what others took
    /// while the GPU was taken. A first one that is far more than a context takes counts as what is assumed of one.
    pub fn context(&mut self, gpu: &str, bytes: u64) {
        self.model(gpu, CONTEXT, bytes, 2 * CONTEXT_BYTES);
    }

    fn note(&mut self, gpu: &str, name: &str, bytes: u64) {
        let old = self.measured.entry(gpu.to_owned()).or_default().insert(name.to_owned(), bytes);
        self.is_news |= old != Some(bytes);
    }

    /// What is to be written for the next run, and to which file, if anything has changed since the last call.
    pub fn unsaved(&mut self) -> Option<(PathBuf, Measured)> {
        let file = self.file.clone()?;
        let doubted = self.doubted.iter().filter(|(_, models)| !models.is_empty());
        let doubted = doubted.map(|(gpu, models)| (format!("{gpu}{DOUBTED}"), models.clone()));
        std::mem::take(&mut self.is_news)
            .then(|| (file, self.measured.clone().into_iter().chain(doubted).collect()))
    }

    /// Nothing is to be written any more.
    pub fn give_up(&mut self) {
        self.file = None;
    }
}

fn read(file: &Path) -> Measured {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Measured::new(),
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "what models need of a GPU cannot be read; it is measured anew");
            return Measured::new();
        }
    };
    serde_json::from_str(&text).unwrap_or_else(|error| {
        tracing::warn!(file = %file.display(), %error, "this is not what models need of a GPU; it is measured anew");
        Measured::new()
    })
}

/// Replaces the file in one step, so that nobody reads half of it.
///
/// # Errors
/// What the system says.
pub fn write(file: &Path, measured: &Measured) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    // Servers in containers may share the folder and have the same process id, so the name must be unique. Other users of the folder must
    // be able to read the file, which the permissions of a temporary file prevent.
    let mut new = tempfile::Builder::new()
        .prefix(&format!("{FILE}."))
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(folder)?;
    new.write_all(serde_json::to_string_pretty(measured)?.as_bytes())?;
    new.persist(file).map(|_| ()).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MOST: u64 = 70 * GIB;

    fn save(learned: &mut Learned) {
        let (file, measured) = learned.unsaved().unwrap();
        write(&file, &measured).unwrap();
    }

    #[test]
    fn what_others_took_during_one_measurement_does_not_count_for_ever() {
        let mut learned = Learned::default();
        let mut measure = |name: &str, gib: u64| {
            learned.model("H100", name, gib * GIB, MOST);
            learned.measured("H100", name).unwrap() / GIB
        };
        // The first time, and then far less, which may be what others gave back, and twice; once more, which may be others', and twice.
        assert_eq!([11, 3, 9, 3, 4, 5, 6].map(|gib| measure("a", gib)), [11, 11, 9, 9, 4, 4, 5]);
        // With the first of these it would never be loaded again, and so never be measured again.
        assert_eq!([71, 3].map(|gib| measure("b", gib)), [35, 3]);
        assert_eq!([71, 72].map(|gib| measure("c", gib)), [35, 71], "it really takes so much");
    }

    #[test]
    fn what_others_took_while_the_gpu_was_taken_is_not_our_context() {
        let mut learned = Learned::default();
        let mut measure = |mib: u64| {
            learned.context("H100", mib << 20);
            learned.measured_context("H100") >> 20
        };
        assert_eq!([9516, 300, 9516, 310, 400, 420].map(&mut measure), [512, 300, 300, 310, 310, 400]);
        assert_eq!([1500, 1600].map(measure), [420, 1500], "it really takes so much");
    }

    #[test]
    fn what_others_gave_back_during_one_measurement_is_not_missing_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        // Each start of the server measures once.
        let start = |bytes: u64| {
            let mut learned = Learned::read(Some(folder.path()));
            learned.model("H100", "a", bytes, MOST);
            save(&mut learned);
            learned.measured("H100", "a").unwrap()
        };
        assert_eq!([GIB, 242, GIB + 1, GIB + 2].map(start), [GIB, GIB, GIB, GIB + 1]);
        // Nothing was known when others left.
        std::fs::remove_file(folder.path().join(FILE)).unwrap();
        assert_eq!([242, GIB, GIB].map(start), [242, 242, GIB]);
    }

    #[test]
    fn a_context_is_what_the_driver_tells_of_us() {
        let mut learned = Learned::default();
        let mib = |learned: &Learned| learned.measured_context("H100") >> 20;
        learned.context("H100", 1500 << 20);
        assert_eq!(mib(&learned), 512);
        learned.context_told("H100", 1500 << 20);
        assert_eq!(mib(&learned), 1500);
        learned.context("H100", 1600 << 20);
        assert_eq!(mib(&learned), 1500, "the first like that");
    }

    #[test]
    fn models_took_no_more_than_we_hold_in_all() {
        let mut learned = Learned::default();
        for (name, gib) in [("a", 12), ("b", 4), ("c", 1)] {
            learned.model("H100", name, gib * GIB, MOST);
        }
        let names = ["a", "b", "unknown"].map(str::to_owned);
        for (most, expected) in [(16, [12, 4, 1]), (8, [6, 2, 1])] {
            learned.at_most("H100", &names, most * GIB);
            let took = ["a", "b", "c"].map(|name| learned.measured("H100", name).unwrap() / GIB);
            assert_eq!(took, expected);
        }
    }

    #[test]
    fn what_was_measured_counts_and_what_was_not_is_guessed_from_the_file() {
        let mut learned = Learned::default();
        let models = [("a", 0), ("b", GIB)];
        let required = |learned: &Learned| learned.required("H100", models.into_iter());
        assert_eq!(required(&learned), CONTEXT_BYTES + MODEL_BYTES_MIN + 3 * GIB);
        learned.model("H100", "b", 5 * GIB, MOST);
        learned.model("A10", "a", 7 * GIB, MOST);
        assert_eq!(required(&learned), CONTEXT_BYTES + MODEL_BYTES_MIN + 5 * GIB);
        learned.context("H100", 300 << 20);
        learned.model("H100", "b", 4 * GIB, MOST);
        assert_eq!(required(&learned), (300 << 20) + MODEL_BYTES_MIN + 4 * GIB);
    }

    #[test]
    fn it_lasts_from_run_to_run_and_a_broken_file_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let mut learned = Learned::read(Some(&state));
        learned.model("H100", "a", GIB, MOST);
        save(&mut learned);
        learned.model("H100", "a", GIB, MOST);
        assert_eq!(learned.unsaved(), None, "nothing is new");
        let again = Learned::read(Some(&state));
        assert_eq!(again.required("H100", [("a", 0)].into_iter()), CONTEXT_BYTES + GIB);
        std::fs::write(state.join(FILE), "no json").unwrap();
        let broken = Learned::read(Some(&state));
        assert_eq!(broken.required("H100", [("a", 0)].into_iter()), CONTEXT_BYTES + MODEL_BYTES_MIN);
        assert_eq!(std::fs::read_dir(&state).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn servers_of_one_number_that_share_a_folder_do_not_write_into_each_others_files() {
        let state = tempfile::tempdir().unwrap();
        // What another of our number is just writing; a name that is made of the number alone would be this one.
        let other = state.path().join(format!("{FILE}.{}", std::process::id()));
        std::fs::write(&other, "half of it").unwrap();
        let mut learned = Learned::read(Some(state.path()));
        learned.model("H100", "a", GIB, MOST);
        save(&mut learned);
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "half of it");
        let mode = std::fs::metadata(state.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o400, 0o400);
        assert_eq!(Learned::read(Some(state.path())).measured("H100", "a"), Some(GIB));
    }
}
