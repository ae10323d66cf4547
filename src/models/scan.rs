//! Scans the model folder for what can be served. It only reads files.
//!
//! ```text
//! models/NAME/model.toml           manifest; optional
//! models/NAME/model.onnx           version 1
//! models/NAME/VERSION/model.onnx   VERSION in digits; all are served, the highest is the default
//! models/NAME/model.toml           alone: version 1 of a fitter, which has no model file
//! models/NAME/VERSION/model.onnx/  a folder with such a file and its external data: the same
//! models/NAME/config.pbtxt         instead of model.toml, for repositories made for Triton: see `triton`
//! models/NAME.onnx                 version 1, served as tensors
//! ```
//!
//! Where the folder is itself a model's, it is served by the name of the option `model_name`: see [`Repository`].
//!
//! Names that begin with a dot are skipped (mounted volumes have such folders), and so are `lost+found` and unrelated files. Whatever
//! looks like a model but cannot be one is listed with the reason. So is whatever may be a model but cannot be read.

mod disk;
mod instead;
mod map;
mod misplaced;
mod repository;

use super::{
    Engine, Expected, Manifest, Source, by_version,
    manifest::Versions,
    triton::{self, CONFIG_FILE},
};
use crate::{
    config::{MODEL_NAMES, is_model_name},
    engine::Dim,
    tasks::Labels,
};
use disk::{Folder, at, entries, file_bytes, labels, look, may_be_folder, model_bytes, opened, text};
pub(super) use disk::{inside, listed};
use instead::instead;
use repository::Candidate;
pub use repository::Repository;
pub(super) use repository::candidate;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The version of a model without version folders.
const FLAT_VERSION: &str = "1";
const MODEL_FILE: &str = "model.onnx";
const MANIFEST_FILE: &str = "model.toml";
/// A larger manifest is refused as a mistake.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// One version of one model, or why it cannot be served.
#[derive(Debug, Clone)]
pub struct Found {
    /// The folder's name, or the stem of a bare file.
    pub name: String,
    /// Digits; empty if the mistake concerns no version in particular.
    pub version: String,
    /// What lies on disk, or the reason.
    pub source: Result<Source, String>,
    /// Whether a version policy names this version but it does not exist. The other versions are served regardless.
    pub only_named: bool,
}

/// Every model, by name and ascending version.
///
/// # Errors
/// If the folder itself cannot be read.
pub fn scan(repository: &Repository) -> Result<Vec<Found>, String> {
    let mut found = found_of(repository.folder(), repository.entries()?, None);
    repository.note_other_name(&mut found);
    Ok(found)
}

/// One model. `versions`, if given, replaces the model's own version policy. No other model is read.
///
/// # Errors
/// As [`scan`].
pub fn scan_one(
    repository: &Repository,
    name: &str,
    versions: Option<&Versions>,
) -> Result<Vec<Found>, String> {
    let mut there = repository.entries()?;
    // A file `NAME.onnx` and a folder `NAME` must be seen together: only one of them can be served.
    let is_bare = |file: &str, stem: &str| file.strip_suffix(".onnx") == Some(stem);
    there.retain(|(other, _)| other == name || is_bare(other, name) || is_bare(name, other));
    let mut found = found_of(repository.folder(), there, versions);
    found.retain(|found| found.name == name);
    Ok(found)
}

/// The names of possible models; none of them is read.
///
/// # Errors
/// As [`scan`].
pub fn names(repository: &Repository) -> Result<BTreeSet<String>, String> {
    let there = repository.entries()?.into_iter();
    Ok(there.filter_map(|(name, path)| candidate(&name, &path).map(|(model, _)| model)).collect())
}

/// The models among these entries of a model folder.
fn found_of(folder: &Path, entries: Vec<(String, PathBuf)>, versions: Option<&Versions>) -> Vec<Found> {
    let mut found = Vec::new();
    let mut bare = Vec::new();
    for (entry, path) in entries {
        match candidate(&entry, &path) {
            Some((name, Candidate::Folder)) => found.extend(scan_model(&name, &path, versions)),
            Some((stem, Candidate::File)) => bare.push((stem, path)),
            Some((name, Candidate::Mistake(why))) => {
                found.push(Found { name, version: String::new(), source: Err(why), only_named: false });
            }
            None => {}
        }
    }
    for (name, path) in bare {
        let twice = found.iter().any(|other| other.name == name);
        found.push(if twice {
            Found {
                source: Err(format!(
                    "{name}.onnx lies beside the folder {name}, which is served instead: remove or rename one of them"
                )),
                name: format!("{name}.onnx"),
                version: FLAT_VERSION.to_owned(),
                only_named: false,
            }
        } else {
            Found {
                source: check_name(&name).and_then(|()| {
                    let notes = [notes_on_name(&name), misplaced::beside(&path)].concat();
                    Described { notes, ..Described::default() }.source([&name, FLAT_VERSION], folder, path)
                }),
                name,
                version: FLAT_VERSION.to_owned(),
                only_named: false,
            }
        });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| by_version(&a.version, &b.version)));
    found
}

/// All versions in one model's folder.
fn scan_model(name: &str, folder: &Path, instead: Option<&Versions>) -> Vec<Found> {
    let describe = || {
        let described = describe(name, folder)?;
        let versions = instead.unwrap_or(&described.manifest.versions).clone();
        Ok(Described { manifest: Manifest { versions, ..described.manifest }, ..described })
    };
    scan_as(name, folder, &describe)
}

/// All versions of a model that a caller sent: its files are in a folder of the server's, and its configuration came as JSON.
pub(super) fn scan_given(name: &str, folder: &Path, config: &str) -> Vec<Found> {
    let describe = || {
        let config = triton::read_json(config, name).map_err(|reason| format!("config: {reason}"))?;
        Described::of(&opened(folder)?, config)
    };
    scan_as(name, folder, &describe)
}

/// All versions in a folder that `describe` describes.
fn scan_as(name: &str, folder: &Path, describe: &dyn Fn() -> Result<Described, String>) -> Vec<Found> {
    let failed = |version: &str, reason: String| Found {
        name: name.to_owned(),
        version: version.to_owned(),
        source: Err(reason),
        only_named: false,
    };
    if let Err(reason) = check_name(name) {
        return vec![failed("", reason)];
    }
    let mut inside = match entries(folder) {
        Ok(inside) => inside,
        Err(reason) => return vec![failed("", reason)],
    };
    let mut described = match describe() {
        Ok(described) => described,
        Err(why) => {
            let versions = undescribed(&inside).into_iter();
            return versions.map(|version| failed(version, why.clone())).collect();
        }
    };
    let model_file = described.manifest.file.as_deref().unwrap_or(MODEL_FILE).to_owned();
    described.notes.extend([notes_on_name(name), misplaced::in_folder(name, &inside, &model_file)].concat());
    inside.retain(|(version, path)| is_number(version) && may_be_folder(path));
    if described.tritons {
        // As in Triton, these are skipped and the others served.
        for (version, _) in inside.extract_if(.., |(version, _)| is_padded(version)) {
            let passed_over = format!("the folder {version} is passed over: a version has no leading zeros");
            described.notes.push(passed_over);
        }
    }
    let served = |version: &str, path: PathBuf| {
        let mut described = described.clone();
        described.notes.extend(misplaced::in_version(folder, version));
        let source = described.source([name, version], folder, path);
        Found { name: name.to_owned(), version: version.to_owned(), source, only_named: false }
    };
    let flat = folder.join(&model_file);
    let has_flat = look(&flat).map_or(true, |there| there.is_some_and(|metadata| metadata.is_file()));
    if let Engine::GaussMle(_) = described.manifest.engine {
        let why = format!(
            "{MANIFEST_FILE} says engine = \"gauss-mle\", which reads no {MODEL_FILE}: remove one of them"
        );
        return match has_flat {
            true => vec![failed(FLAT_VERSION, why)],
            false => vec![served(FLAT_VERSION, folder.join(MANIFEST_FILE))],
        };
    }
    let flat = has_flat.then_some(flat);
    let wanted = &described.manifest.versions;
    let (versions, mut mistakes) = versions_of(inside, flat.as_deref(), (&model_file, wanted), &failed);
    let mut found = Vec::new();
    for (version, path) in versions {
        let file = match flat.as_deref() == Some(&path) {
            true => Ok(path),
            false => file_of(folder, &version, &path, &model_file),
        };
        match file {
            Ok(file) => found.push(served(&version, file)),
            Err(reason) => mistakes.push(failed(&version, reason)),
        }
    }
    found.extend(mistakes);
    if found.is_empty() {
        let but = instead(folder, &model_file).map(|there| format!(", but {there}")).unwrap_or_default();
        let missing = format!("it holds neither {model_file} nor VERSION/{model_file}{but}");
        // What was skipped may be what the author misses.
        found.push(failed("", [vec![missing], described.notes].concat().join("; ")));
    }
    found
}

/// The versions in a folder whose description cannot be read. Model files are not looked for: only the description would give their name
/// and engine.
fn undescribed(inside: &[(String, PathBuf)]) -> Vec<&str> {
    let numbers = inside.iter().filter(|(version, path)| is_number(version) && may_be_folder(path));
    let mut versions: Vec<&str> = numbers.map(|(version, _)| version.as_str()).collect();
    let flat = inside.iter().any(|(name, path)| name == MODEL_FILE && !may_be_folder(path));
    if flat && !versions.contains(&FLAT_VERSION) {
        versions.push(FLAT_VERSION);
    } else if versions.is_empty() {
        versions.push("");
    }
    versions
}

/// The versions to serve (the one without a folder with its file, the others with their folders), and those that cannot be served.
fn versions_of(
    folders: Vec<(String, PathBuf)>,
    flat: Option<&Path>,
    (model_file, wanted): (&str, &Versions),
    failed: &dyn Fn(&str, String) -> Found,
) -> (Vec<(String, PathBuf)>, Vec<Found>) {
    let mut mistakes = Vec::new();
    let mut versions: Vec<_> =
        flat.map(|flat| (FLAT_VERSION.to_owned(), flat.to_owned())).into_iter().collect();
    for (version, path) in folders {
        if version.len() > 18 || is_padded(&version) {
            let why = format!("version {version:?} must be 1 to 18 digits without leading zeros");
            mistakes.push(failed(&version, why));
        } else if flat.is_some() && version == FLAT_VERSION {
            let both = format!("{model_file} and {version}/{model_file} are both version {version}");
            mistakes.push(failed("", format!("{both}: remove one of them")));
        } else {
            versions.push((version, path));
        }
    }
    for version in choose(wanted, &mut versions) {
        let why = format!("version_policy names it, but there is no folder {version}");
        mistakes.push(Found { only_named: true, ..failed(&version, why) });
    }
    (versions, mistakes)
}

/// The model file in a version's folder, or why there is none.
fn file_of(folder: &Path, version: &str, path: &Path, model_file: &str) -> Result<PathBuf, String> {
    let file = path.join(model_file);
    look(path)?;
    match look(&file)? {
        Some(metadata) if metadata.is_file() => Ok(file),
        // As in Triton, a network with external data may have a folder of its own.
        Some(_) if file.join(MODEL_FILE).is_file() => Ok(file.join(MODEL_FILE)),
        _ => {
            let but = instead(path, model_file).map(|there| format!(", but {there}")).unwrap_or_default();
            let missing = format!("{version}/{model_file} is missing{but}");
            Err([vec![missing], misplaced::in_version(folder, version)].concat().join("; "))
        }
    }
}

/// Warnings about a name that is allowed but inconvenient.
fn notes_on_name(name: &str) -> Vec<String> {
    let taken = "GET /v2/models/stats answers with the statistics of all models, not with what this one takes: give it another name";
    (name == "stats").then(|| taken.to_owned()).into_iter().collect()
}

fn is_number(version: &str) -> bool {
    version.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether it is a number with leading zeros.
fn is_padded(version: &str) -> bool {
    is_number(version) && version.starts_with('0') && version != "0"
}

/// Keeps the versions to serve in `there`; returns those that are asked for but do not exist.
fn choose(versions: &Versions, there: &mut Vec<(String, PathBuf)>) -> Vec<String> {
    match versions {
        Versions::All => Vec::new(),
        Versions::Latest(count) => {
            there.sort_by(|(a, _), (b, _)| by_version(a, b));
            there.drain(..there.len().saturating_sub(*count));
            Vec::new()
        }
        Versions::Specific(wanted) => {
            there.retain(|(version, _)| wanted.contains(version));
            let lost = wanted.iter().filter(|version| there.iter().all(|(other, _)| other != *version));
            lost.cloned().collect()
        }
    }
}

/// The description of the model in a folder.
#[derive(Clone, Default)]
struct Described {
    manifest: Manifest,
    labels: Arc<Labels>,
    output_labels: BTreeMap<String, Arc<Labels>>,
    notes: Vec<String>,
    /// Whether the description is a Triton configuration.
    tritons: bool,
}

impl Described {
    /// From a Triton configuration, with the labels that it names.
    fn of(folder: &Folder, config: triton::Described) -> Result<Described, String> {
        let triton::Described { manifest, mut notes } = config;
        let mut output_labels = BTreeMap::new();
        for output in manifest.declared.iter().flat_map(|declared| &declared.outputs) {
            let Some(file) = output.labels.as_deref() else { continue };
            let labels = labels(folder, Some(file))?;
            let extents = output.dims.iter().map(|dim| if let Dim::Fixed(n) = dim { Some(*n) } else { None });
            let has = match (labels.len(), extents.product::<Option<usize>>()) {
                (0, _) => "has no labels".to_owned(),
                (labels, Some(classes)) if labels != classes => {
                    format!("has {labels} labels, and the output has {classes} classes")
                }
                _ => String::new(),
            };
            if !has.is_empty() {
                notes.push(format!("output[{:?}].label_filename: {file:?} {has}", output.name));
            }
            output_labels.insert(output.name.clone(), labels);
        }
        let labels = labels(folder, manifest.labels.as_deref())?;
        Ok(Described { labels, output_labels, manifest, notes, tritons: true })
    }

    /// The source of one version, whose model file is `path`.
    fn source(self, [name, version]: [&str; 2], folder: &Path, path: PathBuf) -> Result<Source, String> {
        let Described { manifest, labels, output_labels, notes, tritons: _ } = self;
        let bytes = match manifest.engine {
            Engine::Onnx => model_bytes(&path)?,
            Engine::GaussMle(_) => file_bytes(&path)?,
        };
        Ok(Source {
            name: name.to_owned(),
            version: version.to_owned(),
            path,
            folder: folder.to_owned(),
            manifest,
            labels,
            output_labels,
            bytes,
            notes,
            kept: None,
            expected: Expected::default(),
        })
    }
}

/// The manifest of a folder, the default if there is none, and its labels. The maps of a fitter's camera are read.
fn describe(name: &str, path: &Path) -> Result<Described, String> {
    let folder = &opened(path)?;
    let there = |file: &str| match fs::symlink_metadata(path.join(file)) {
        Err(error) => error.kind() != io::ErrorKind::NotFound,
        Ok(_) => true,
    };
    let mut manifest = match (there(MANIFEST_FILE), there(CONFIG_FILE)) {
        (true, true) => {
            return Err(format!(
                "{MANIFEST_FILE} and {CONFIG_FILE} both describe the model: remove one of them"
            ));
        }
        (false, true) => {
            let of_file = |reason| format!("{CONFIG_FILE}: {reason}");
            let bytes = at(folder, CONFIG_FILE, MANIFEST_BYTES_MAX).map_err(of_file)?;
            // Comments may be in any encoding. Names in another encoding match nothing anyway.
            let config = triton::read(&String::from_utf8_lossy(&bytes), name).map_err(of_file)?;
            let mut described = Described::of(folder, config)?;
            described.notes.iter_mut().for_each(|note| note.insert_str(0, &format!("{CONFIG_FILE}: ")));
            return Ok(described);
        }
        (true, false) => {
            let text = at(folder, MANIFEST_FILE, MANIFEST_BYTES_MAX).and_then(text);
            let parsed = text.and_then(|text| Manifest::parse(&text).map_err(|error| error.to_string()));
            parsed.map_err(|reason| format!("{MANIFEST_FILE}: {reason}"))?
        }
        (false, false) => Manifest::default(),
    };
    let labels = labels(folder, manifest.labels.as_deref())?;
    if let Some(file) = manifest.labels.as_deref().filter(|_| labels.is_empty()) {
        return Err(format!("labels file {file:?}: it holds no label"));
    }
    if let Engine::GaussMle(fit) = &mut manifest.engine {
        for (key, name) in &fit.maps {
            let map = inside(folder, name).and_then(map::read);
            let map = map.map_err(|reason| format!("camera.{key}, file {name:?}: {reason}"))?;
            fit.settings.set_map(key, map, name)?;
        }
    }
    let notes = misplaced::labels(path, &manifest);
    Ok(Described { manifest, labels, output_labels: BTreeMap::new(), notes, tritons: false })
}

/// Checks a model's name, which is used unchanged in URLs, metrics and log files.
///
/// # Errors
/// What is allowed.
pub fn check_name(name: &str) -> Result<(), String> {
    match is_model_name(name) {
        true => Ok(()),
        false => Err(format!("the name {name:?} must be {MODEL_NAMES}")),
    }
}

#[cfg(test)]
mod tests;
