//! Explains what lies where a model file is missing, or in place of one, and what to do about it.

use super::disk::entries;
use std::path::{Path, PathBuf};

/// Most names that a message lists.
const TOLD_MAX: usize = 3;

/// Formats of other frameworks, by file extension.
const OTHERS: [(&[&str], &str); 6] = [
    (&[".mar"], "TorchServe's: docs/coming-from-torchserve.md says where what is in it goes"),
    (&[".pt", ".pth"], "PyTorch's: docs/pytorch.md says how it is exported"),
    (&[".safetensors"], "weights without their network: docs/pytorch.md says how both are exported"),
    (&[".keras", ".h5", ".pb", ".tflite"], "TensorFlow's: tf2onnx makes an ONNX file of it"),
    (&[".engine", ".plan"], "TensorRT's, for one kind of GPU: serve the ONNX file that it was made from"),
    (&[".ort"], "in ONNX Runtime's own format: serve the ONNX file that it was made from"),
];

/// What a folder without `model_file` holds instead, if any of it may be what the author means.
pub(super) fn instead(folder: &Path, model_file: &str) -> Option<String> {
    let inside = entries(folder).ok()?;
    let here = networks(&inside, "");
    if !here.is_empty() {
        let which = if here.len() > 1 { "the one that is to be served" } else { "it" };
        return Some(format!("there is {}: call {which} {model_file}", told(&here)));
    }
    // Version folders are examined on their own.
    let folders = inside.iter().filter(|(name, path)| !super::is_number(name) && path.is_dir());
    let below: Vec<String> = folders
        .flat_map(|(name, path)| networks(&entries(path).unwrap_or_default(), &format!("{name}/")))
        .collect();
    let named: Vec<String> =
        below.iter().filter(|path| path.rsplit('/').next() == Some(model_file)).cloned().collect();
    match (&named[..], &below[..]) {
        ([], []) => {}
        ([one], _) => return Some(format!("there is {one}: move it up")),
        ([], [one]) => return Some(format!("there is {one}: move it up and call it {model_file}")),
        (several, _) => {
            let several = if several.is_empty() { &below[..] } else { several };
            return Some(format!(
                "there is {}: move the one that is to be served up and call it {model_file}",
                told(several)
            ));
        }
    }
    inside.iter().find_map(|(name, _)| Some(format!("there is {name}, which is {}", of_other(name)?)))
}

/// What a file in a models folder itself is, if another framework's that nothing beside it was made from.
pub(super) fn alone(name: &str, path: &Path) -> Option<&'static str> {
    let whose = of_other(name)?;
    let made = path.with_extension("onnx").exists() || path.with_extension("").exists();
    (!made).then_some(whose)
}

/// What a file with such a name is, if another framework's.
fn of_other(name: &str) -> Option<&'static str> {
    let (_, whose) = OTHERS.iter().find(|(ends, _)| ends.iter().any(|end| name.ends_with(end)))?;
    Some(whose)
}

/// The ONNX files among these entries, by their paths from the folder where the search began.
fn networks(inside: &[(String, PathBuf)], folder: &str) -> Vec<String> {
    let named = |name: &str| name.to_ascii_lowercase().ends_with(".onnx");
    let files = inside.iter().filter(|(name, path)| named(name) && path.is_file());
    files.map(|(name, _)| format!("{folder}{name}")).collect()
}

fn told(names: &[String]) -> String {
    let told = names[..names.len().min(TOLD_MAX)].join(", ");
    match names.len().saturating_sub(TOLD_MAX) {
        0 => told,
        more => format!("{told} and {more} more"),
    }
}
