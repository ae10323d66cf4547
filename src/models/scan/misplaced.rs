//! Finds files that would describe a model but are never read, because of their place or their name, or since nothing names them.

use super::{CONFIG_FILE, MANIFEST_FILE, Manifest, disk::entries, is_number};
use crate::tasks::Task;
use std::path::{Path, PathBuf};

/// Which of the files that describe a model this name means, ignoring case.
fn meant(name: &str) -> Option<&'static str> {
    [MANIFEST_FILE, CONFIG_FILE].into_iter().find(|file| file.eq_ignore_ascii_case(name))
}

/// Why such a file in a models folder itself describes no model.
pub(super) fn at_top(name: &str) -> Option<String> {
    let file = meant(name)?;
    Some(format!(
        "it lies in the models folder itself, where nothing reads it: each model has a folder of its own there, with NAME/{file} \
         beside NAME/model.onnx; where this folder is one model's, name it by model_name, or serve the folder above it"
    ))
}

/// Names in a model's own folder that are almost right: files that describe it, version folders with this model file, and the folder
/// itself.
pub(super) fn in_folder(name: &str, inside: &[(String, PathBuf)], model_file: &str) -> Vec<String> {
    let has = |file: &str| inside.iter().any(|(other, _)| other == file);
    let is_version = is_number(name) && has(model_file) && !has(MANIFEST_FILE) && !has(CONFIG_FILE);
    let itself = is_version.then(|| {
        format!(
            "it is served by the name {name}: where {name} is a version of one model, whose folder this is, name it by model_name, or serve the folder above it"
        )
    });
    let named = inside.iter().filter(|(name, path)| !is_number(name) && path.join(model_file).is_file());
    let named = named.map(|(name, _)| {
        format!("the folder {name} is passed over, with its {model_file}: a version's folder is called by its number, as 1")
    });
    let almost = inside.iter().filter_map(|(name, path)| {
        // A case-insensitive file system takes both names for the same file.
        let file = meant(name).filter(|file| file != name && !path.with_file_name(file).exists())?;
        Some(format!("{name} is passed over: such a file is called {file}, in small letters"))
    });
    almost.chain(named).chain(itself).collect()
}

/// Class names in the folder of a model that has classes, where no key names any.
pub(super) fn labels(folder: &Path, manifest: &Manifest) -> Vec<String> {
    let has_classes = matches!(manifest.task, Task::Classify(_) | Task::Detect(_) | Task::Segment(_));
    if manifest.labels.is_some() || !has_classes {
        return Vec::new();
    }
    let keys = [
        ("labels.txt", "labels = \"labels.txt\" in model.toml names the classes by it"),
        (
            "index_to_name.json",
            "docs/coming-from-torchserve.md says how it becomes labels.txt, which labels = \"labels.txt\" in model.toml names",
        ),
    ];
    let there = keys.into_iter().find(|(file, _)| folder.join(file).is_file());
    there
        .map(|(file, key)| format!("{file} is passed over, since no key names it: {key}"))
        .into_iter()
        .collect()
}

/// Such files in the folder of a version.
pub(super) fn in_version(folder: &Path, version: &str) -> Vec<String> {
    let names = entries(&folder.join(version)).unwrap_or_default().into_iter().map(|(name, _)| name);
    let there = names.filter_map(|name| {
        let file = meant(&name)?;
        Some(format!(
            "{version}/{name} is passed over: one {file} in the model's folder is for all its versions"
        ))
    });
    there.collect()
}

/// Such files beside a model that has no folder.
pub(super) fn beside(path: &Path) -> Vec<String> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let there = [("toml", MANIFEST_FILE), ("pbtxt", CONFIG_FILE)].into_iter();
    let told = there.filter(|(end, _)| path.with_extension(end).is_file()).map(|(end, file)| {
        format!(
            "{name}.{end} is passed over: a model that is described has a folder of its own, with {name}/model.onnx and \
             {name}/{file}"
        )
    });
    told.collect()
}
