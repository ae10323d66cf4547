//! From a folder to what can be served from it. Reads files, changes nothing.
//!
//! ```text
//! models/NAME/model.toml           manifest; optional
//! models/NAME/model.onnx           version 1
//! models/NAME/VERSION/model.onnx   VERSION in digits; all are served, the highest is the default
//! models/NAME/model.toml           alone: version 1 of a fitter, which has no model file
//! models/NAME/config.pbtxt         instead of model.toml, for repositories made for Triton: see `triton`
//! models/NAME.onnx                 version 1, served as tensors
//! ```
//!
//! Names that begin with a dot are passed over (mounted volumes have such folders), and so are other files beside the
//! models. Whatever looks like a model and cannot be one is listed with its reason.

use super::{
    Engine, Manifest, Source,
    external::external_files,
    map,
    triton::{self, CONFIG_FILE, Versions},
};
use crate::tasks::Labels;
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The version of a model that has no folder per version.
const FLAT_VERSION: &str = "1";
const MODEL_FILE: &str = "model.onnx";
const MANIFEST_FILE: &str = "model.toml";
/// Manifests beyond this are a mistake.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Labels beyond this are a mistake: 100 times the largest public list of classes.
const LABELS_BYTES_MAX: u64 = 16 << 20;

/// One version of one model, or why it cannot be served.
#[derive(Debug, Clone)]
pub struct Found {
    /// The folder's name, or the stem of a bare file.
    pub name: String,
    /// Digits; empty where the mistake concerns no version in particular.
    pub version: String,
    /// What lies on disk, or the reason.
    pub source: Result<Source, String>,
}

/// Everything in a model folder, by name and rising version.
///
/// # Errors
/// If the folder itself cannot be read.
pub fn scan(folder: &Path) -> Result<Vec<Found>, String> {
    let mut found = Vec::new();
    let mut bare = Vec::new();
    for (name, path) in entries(folder)? {
        if path.is_dir() {
            found.extend(scan_model(&name, &path));
        } else if let Some(stem) = name.strip_suffix(".onnx") {
            bare.push((stem.to_owned(), path));
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
            }
        } else {
            Found {
                source: check_name(&name).and_then(|()| {
                    let bytes = model_bytes(&path)?;
                    Ok(Source {
                        name: name.clone(),
                        version: FLAT_VERSION.to_owned(),
                        path,
                        folder: folder.to_owned(),
                        manifest: Manifest::default(),
                        labels: Arc::default(),
                        bytes,
                        notes: Vec::new(),
                    })
                }),
                name,
                version: FLAT_VERSION.to_owned(),
            }
        });
    }
    found.sort_by(|a, b| {
        let key = |f: &Found| (f.name.clone(), f.version.len(), f.version.clone());
        key(a).cmp(&key(b))
    });
    Ok(found)
}

/// The names in a folder and their paths, sorted; those that begin with a dot are left out.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let cannot = |error| format!("cannot read the folder {}: {error}", folder.display());
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            entries.push((name, entry.path()));
        }
    }
    entries.sort();
    Ok(entries)
}

/// All versions in one model's folder.
fn scan_model(name: &str, folder: &Path) -> Vec<Found> {
    let failed = |version: &str, reason: String| Found {
        name: name.to_owned(),
        version: version.to_owned(),
        source: Err(reason),
    };
    if let Err(reason) = check_name(name) {
        return vec![failed("", reason)];
    }
    let inside = match entries(folder) {
        Ok(inside) => inside,
        Err(reason) => return vec![failed("", reason)],
    };
    let described = describe(name, folder);
    let mut found = Vec::new();
    let mut add = |version: &str, path: PathBuf| {
        let source = described.clone().and_then(|Described { manifest, labels, notes, .. }| {
            Ok(Source {
                name: name.to_owned(),
                version: version.to_owned(),
                bytes: match manifest.engine {
                    Engine::Onnx => model_bytes(&path)?,
                    Engine::GaussMle(_) => file_bytes(&path)?,
                },
                path,
                folder: folder.to_owned(),
                manifest,
                labels,
                notes,
            })
        });
        found.push(Found { name: name.to_owned(), version: version.to_owned(), source });
    };
    let model_file = described.as_ref().map_or(MODEL_FILE, |described| &described.file);
    let flat = folder.join(model_file);
    let has_flat = flat.is_file();
    if let Ok(Described { manifest: Manifest { engine: Engine::GaussMle(_), .. }, .. }) = &described {
        if has_flat {
            let why = format!(
                "{MANIFEST_FILE} says engine = \"gauss-mle\", which reads no {MODEL_FILE}: remove one of them"
            );
            return vec![failed(FLAT_VERSION, why)];
        }
        add(FLAT_VERSION, folder.join(MANIFEST_FILE));
        return found;
    }
    if has_flat {
        add(FLAT_VERSION, flat);
    }
    let mut mistakes = Vec::new();
    let mut numbered = Vec::new();
    for (version, path) in inside {
        let digits = version.bytes().all(|byte| byte.is_ascii_digit());
        if !digits || !path.is_dir() {
            continue;
        }
        if version.len() > 18 || (version.starts_with('0') && version != "0") {
            mistakes.push(failed(
                &version,
                format!("version {version:?} must be 1 to 18 digits without leading zeros"),
            ));
        } else if has_flat && version == FLAT_VERSION {
            mistakes.push(failed(
                "",
                format!(
                    "{model_file} and {version}/{model_file} are both version {version}: remove one of them"
                ),
            ));
        } else {
            numbered.push((version, path));
        }
    }
    if let Ok(described) = &described {
        for version in choose(&described.versions, &mut numbered) {
            let why = format!("version_policy of {CONFIG_FILE} names it, but there is no folder {version}");
            mistakes.push(failed(&version, why));
        }
    }
    for (version, path) in numbered {
        if path.join(model_file).is_file() {
            add(&version, path.join(model_file));
        } else {
            mistakes.push(failed(&version, format!("{version}/{model_file} is missing")));
        }
    }
    found.extend(mistakes);
    if found.is_empty() {
        let missing = format!("it holds neither {model_file} nor VERSION/{model_file}");
        found.push(failed("", described.err().unwrap_or(missing)));
    }
    found
}

/// Leaves those versions that are to be served; gives those that are asked for and are not there.
fn choose(versions: &Versions, there: &mut Vec<(String, PathBuf)>) -> Vec<String> {
    match versions {
        Versions::All => Vec::new(),
        Versions::Latest(count) => {
            there.sort_by(|(a, _), (b, _)| (a.len(), a).cmp(&(b.len(), b)));
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

/// What is said about the model in a folder.
#[derive(Clone)]
struct Described {
    manifest: Manifest,
    labels: Arc<Labels>,
    /// The model file's name.
    file: String,
    versions: Versions,
    notes: Vec<String>,
}

/// The manifest of a folder, the default if there is none, and its labels. The maps of a fitter's camera are read.
fn describe(name: &str, folder: &Path) -> Result<Described, String> {
    let there = |file: &str| match fs::symlink_metadata(folder.join(file)) {
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        Ok(_) => true,
    };
    let text = |file: &str| {
        read(&folder.join(file), MANIFEST_BYTES_MAX).map_err(|reason| format!("{file}: {reason}"))
    };
    let mut described = Described {
        manifest: Manifest::default(),
        labels: Arc::default(),
        file: MODEL_FILE.to_owned(),
        versions: Versions::All,
        notes: Vec::new(),
    };
    match (there(MANIFEST_FILE), there(CONFIG_FILE)) {
        (true, true) => {
            return Err(format!(
                "{MANIFEST_FILE} and {CONFIG_FILE} both describe the model: remove one of them"
            ));
        }
        (true, false) => {
            described.manifest = Manifest::parse(&text(MANIFEST_FILE)?)
                .map_err(|error| format!("{MANIFEST_FILE}: {error}"))?;
        }
        (false, true) => {
            let config = triton::read(&text(CONFIG_FILE)?, name)
                .map_err(|reason| format!("{CONFIG_FILE}: {reason}"))?;
            described.manifest = config.manifest;
            described.file = config.file.unwrap_or(described.file);
            described.versions = config.versions;
            described.notes = config.notes.into_iter().map(|note| format!("{CONFIG_FILE}: {note}")).collect();
        }
        (false, false) => {}
    }
    if let Some(name) = &described.manifest.labels {
        let labels = inside(folder, name)
            .and_then(|path| read(&path, LABELS_BYTES_MAX))
            .and_then(|text| Labels::parse(&text))
            .map_err(|reason| format!("labels file {name:?}: {reason}"))?;
        described.labels = Arc::new(labels);
    }
    if let Engine::GaussMle(fit) = &mut described.manifest.engine {
        for (key, name) in &fit.maps {
            let map = inside(folder, name).and_then(|path| map::read(&path));
            let map = map.map_err(|reason| format!("camera.{key}, file {name:?}: {reason}"))?;
            fit.settings.set_map(key, map)?;
        }
    }
    Ok(described)
}

/// The path of a file in a folder, which a link may not leave.
pub(super) fn inside(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let resolve = |path: &Path| path.canonicalize().map_err(|error| format!("cannot read it: {error}"));
    let path = resolve(&folder.join(name))?;
    if !path.starts_with(resolve(folder)?) {
        return Err("it leads out of the model's folder".to_owned());
    }
    Ok(path)
}

fn read(path: &Path, bytes_max: u64) -> Result<String, String> {
    let cannot = |error| format!("cannot read it: {error}");
    let file = fs::File::open(path).map_err(cannot)?;
    if !file.metadata().map_err(cannot)?.is_file() {
        return Err("it is not a file".to_owned());
    }
    let mut text = String::new();
    // One byte more than allowed tells a file that is too large, whatever its metadata said.
    file.take(bytes_max + 1).read_to_string(&mut text).map_err(cannot)?;
    if text.len() as u64 > bytes_max {
        return Err(format!("it is larger than the limit of {bytes_max} bytes"));
    }
    Ok(text)
}

fn file_bytes(path: &Path) -> Result<u64, String> {
    let metadata = fs::metadata(path).and_then(|metadata| fs::File::open(path).map(|_| metadata));
    match metadata {
        Ok(metadata) if metadata.len() > 0 => Ok(metadata.len()),
        Ok(_) => Err(format!("{} is empty", path.display())),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

/// Size of a model file and of the external data that it names, which must be there and in its folder.
fn model_bytes(path: &Path) -> Result<u64, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut bytes = file_bytes(path)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    for data in external_files(path).map_err(|reason| format!("{name}: {reason}"))? {
        bytes += fs::metadata(folder.join(&data))
            .map_err(|error| format!("{name}: cannot read its external data {data:?}: {error}"))?
            .len();
    }
    Ok(bytes)
}

/// Names go into URLs, metrics and log files as they are.
fn check_name(name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins && name.len() <= 64 && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(format!("the name {name:?} must be 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::external;

    /// The least that is an ONNX file: the version of its format.
    const ONNX: &str = "\u{8}\u{8}";

    /// A folder with these files; a name that ends in `/` is a folder.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    /// Name, version and, for what cannot be served, a part of the reason.
    fn check(files: &[(&str, &str)], expected: &[(&str, &str, &str)]) {
        let folder = folder(files);
        check_folder(folder.path(), expected);
    }

    fn check_folder(folder: &Path, expected: &[(&str, &str, &str)]) {
        let found = scan(folder).unwrap();
        let got: Vec<(&str, &str, &str)> = found
            .iter()
            .map(|f| {
                let reason = f.source.as_ref().err().map_or("", String::as_str);
                (f.name.as_str(), f.version.as_str(), reason)
            })
            .collect();
        assert_eq!(got.len(), expected.len(), "{got:#?}");
        for (got, expected) in got.iter().zip(expected) {
            assert_eq!((got.0, got.1), (expected.0, expected.1), "{got:#?}");
            assert!(got.2.contains(expected.2), "{got:#?}");
            assert_eq!(got.2.is_empty(), expected.2.is_empty(), "{got:#?}");
        }
    }

    #[test]
    fn all_layouts_are_found_in_a_fixed_order() {
        check(
            &[
                ("digits/10/model.onnx", ONNX),
                ("digits/9/model.onnx", ONNX),
                ("digits/notes/model.onnx", ONNX),
                ("digits/model.toml", "task = \"classify\""),
                ("bare/model.onnx", ONNX),
                ("cats.v2.onnx", ONNX),
                ("README.md", "text"),
                (".hidden/model.onnx", ONNX),
                ("mixed/model.onnx", ONNX),
                ("mixed/2/model.onnx", ONNX),
            ],
            &[
                ("bare", "1", ""),
                ("cats.v2", "1", ""),
                ("digits", "9", ""),
                ("digits", "10", ""),
                ("mixed", "1", ""),
                ("mixed", "2", ""),
            ],
        );
    }

    #[test]
    fn a_repository_of_tritons_is_found_with_the_versions_that_its_policy_chooses() {
        check(
            &[
                ("all/9/model.onnx", ONNX),
                ("all/10/model.onnx", ONNX),
                ("all/config.pbtxt", "version_policy { all { } }"),
                ("both/1/model.onnx", ONNX),
                ("both/config.pbtxt", ""),
                ("both/model.toml", ""),
                ("broken/1/model.onnx", ONNX),
                ("broken/config.pbtxt", "name: \"broken\"\nmax_batch: 4\n"),
                ("empty/config.pbtxt", ""),
                ("highest/9/model.onnx", ONNX),
                ("highest/10/model.onnx", ONNX),
                ("highest/config.pbtxt", ""),
                ("named/1/net.onnx", ONNX),
                ("named/2/model.onnx", ONNX),
                (
                    "named/config.pbtxt",
                    "version_policy { specific { versions: [ 1, 2, 3 ] } } default_model_filename: \"net.onnx\"",
                ),
                ("unlabelled/1/model.onnx", ONNX),
                (
                    "unlabelled/config.pbtxt",
                    "output { name: \"y\" data_type: TYPE_FP32 dims: 2 label_filename: \"labels.txt\" }",
                ),
            ],
            &[
                ("all", "9", ""),
                ("all", "10", ""),
                ("both", "1", "model.toml and config.pbtxt both describe the model"),
                ("broken", "1", "config.pbtxt: line 2: field 'max_batch' not found"),
                ("empty", "", "holds neither model.onnx"),
                ("highest", "10", ""),
                ("named", "1", ""),
                ("named", "2", "2/net.onnx is missing"),
                ("named", "3", "there is no folder 3"),
                ("unlabelled", "1", "labels file \"labels.txt\": cannot read it"),
            ],
        );
    }

    #[test]
    fn a_fitter_needs_no_model_file() {
        const FIT: &str = "engine = \"gauss-mle\"\n";
        let with_map = format!("{FIT}[camera]\noffset = \"offset.npy\"\n");
        check(
            &[
                ("fit/model.toml", FIT),
                ("mapped/model.toml", &with_map),
                ("mapped/offset.npy", "no numbers"),
                ("missing/model.toml", &with_map),
                ("two/model.toml", FIT),
                ("two/model.onnx", ONNX),
            ],
            &[
                ("fit", "1", ""),
                ("mapped", "", "camera.offset, file \"offset.npy\": not a stack"),
                ("missing", "", "camera.offset, file \"offset.npy\": cannot read it"),
                ("two", "1", "reads no model.onnx"),
            ],
        );
    }

    #[test]
    fn one_bad_model_never_stops_the_others() {
        check(
            &[
                ("bad name/model.onnx", ONNX),
                ("-dash/model.onnx", ONNX),
                ("empty/notes.txt", "x"),
                ("good/model.onnx", ONNX),
                ("hollow/model.onnx", ""),
                ("lost/1/notes.txt", ""),
                ("typo/model.onnx", ONNX),
                ("typo/model.toml", "tsak = \"embed\"\npriority = 77"),
                ("zeros/01/model.onnx", ONNX),
            ],
            &[
                ("-dash", "", "must be 1 to 64 of"),
                ("bad name", "", "must be 1 to 64 of"),
                ("empty", "", "holds neither model.onnx"),
                ("good", "1", ""),
                ("hollow", "1", "model.onnx is empty"),
                ("lost", "1", "1/model.onnx is missing"),
                ("typo", "1", "did you mean \"task\"?; line 2: priority is 77"),
                ("zeros", "01", "without leading zeros"),
            ],
        );
    }

    #[test]
    fn two_files_for_one_version_are_said_so() {
        check(
            &[("a/model.onnx", ONNX), ("a/1/model.onnx", ONNX), ("a.onnx", ONNX)],
            &[("a", "", "both version 1"), ("a", "1", ""), ("a.onnx", "1", "lies beside the folder a")],
        );
    }

    #[test]
    fn labels_and_external_data_go_with_every_version() {
        let folder = folder(&[
            ("m/model.toml", "task = \"classify\"\nlabels = \"names.txt\""),
            ("m/names.txt", "cat\ndog\n"),
            ("m/1/weights.data", "67890"),
            ("m/2/model.onnx", ONNX),
        ]);
        let model = external::testing::model("weights.data");
        fs::write(folder.path().join("m/1/model.onnx"), &model).unwrap();
        let found = scan(folder.path()).unwrap();
        let sources: Vec<&Source> = found.iter().map(|f| f.source.as_ref().unwrap()).collect();
        assert_eq!(sources[0].bytes, model.len() as u64 + 5);
        assert_eq!(sources[1].bytes, 2);
        assert_eq!(sources[1].labels.get(1).as_deref(), Some("dog"));
        assert_eq!(sources[1].folder, folder.path().join("m"));
        assert_eq!(sources[1].path, folder.path().join("m/2/model.onnx"));
    }

    #[test]
    fn external_data_must_be_there_and_in_the_folder() {
        let folder = folder(&[("away/note", ""), ("lost/note", "")]);
        let write = |path: &str, location: &str| {
            let model = external::testing::model(location);
            fs::write(folder.path().join(path), model).unwrap();
        };
        write("away/model.onnx", "/etc/passwd");
        write("lost/model.onnx", "w.data");
        write("root.onnx", "../w.data");
        check_folder(
            folder.path(),
            &[
                ("away", "1", "\"/etc/passwd\", which leads out of the model's folder"),
                ("lost", "1", "cannot read its external data \"w.data\""),
                ("root", "1", "leads out of the model's folder"),
            ],
        );
    }

    #[test]
    fn labels_that_are_missing_or_empty_are_reasons() {
        let manifest = "labels = \"names.txt\"";
        check(
            &[
                ("a/model.onnx", ONNX),
                ("a/model.toml", manifest),
                ("b/model.onnx", ONNX),
                ("b/model.toml", manifest),
                ("b/names.txt", "\n"),
            ],
            &[
                ("a", "1", "labels file \"names.txt\": cannot read it"),
                ("b", "1", "labels file \"names.txt\": it holds no label"),
            ],
        );
    }

    #[cfg(unix)]
    #[test]
    fn labels_cannot_leave_their_folder_through_a_link() {
        let folder = folder(&[
            ("secret.txt", "password"),
            ("a/model.onnx", ONNX),
            ("a/model.toml", "labels = \"names.txt\""),
            ("b/model.onnx", ONNX),
            ("b/model.toml", "labels = \"names.txt\""),
            ("b/data/names.txt", "cat"),
        ]);
        let link = |to: &str, at: &str| {
            std::os::unix::fs::symlink(folder.path().join(to), folder.path().join(at)).unwrap();
        };
        link("secret.txt", "a/names.txt");
        link("b/data/names.txt", "b/names.txt");
        check_folder(folder.path(), &[("a", "1", "leads out of the model's folder"), ("b", "1", "")]);
    }

    #[test]
    fn a_folder_that_cannot_be_read_is_an_error() {
        let error = scan(Path::new("/nonexistent/models")).unwrap_err();
        assert!(error.starts_with("cannot read the folder /nonexistent/models"), "{error}");
    }
}
