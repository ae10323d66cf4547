//! Access to the disk: the entries of a folder, their kinds, and reading files.

pub(super) use crate::engine::regular_file::Folder;
use crate::{
    engine::{onnx::external::external_bytes, regular_file},
    tasks::Labels,
};
use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

/// A larger file of labels is refused as a mistake: this is 100 times the largest public list of classes.
const LABELS_BYTES_MAX: u64 = 16 << 20;

/// The names in a folder and their paths, sorted; those that begin with a dot are left out.
pub(super) fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    listed(folder).map_err(|error| format!("cannot read the folder {}: {error}", folder.display()))
}

/// The same, with the system's error.
pub(in crate::models) fn listed(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Mounted volumes use hidden names for content that they are about to show. `lost+found` lies at the top of a volume; file system
        // checks put recovered files there.
        if !name.starts_with('.') && name != "lost+found" {
            entries.push((name, entry.path()));
        }
    }
    entries.sort();
    Ok(entries)
}

/// The metadata of what is at a path, if there is anything.
///
/// # Errors
/// Why that cannot be determined: a dangling or circular link, or a folder without permission.
pub(super) fn look(path: &Path) -> Result<Option<fs::Metadata>, String> {
    let error = match fs::metadata(path) {
        Ok(metadata) => return Ok(Some(metadata)),
        Err(error) => error,
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        _ => {
            let leads = fs::read_link(path).map(|to| format!(", a link to {}", to.display()));
            Err(format!("cannot read {}{}: {error}", path.display(), leads.unwrap_or_default()))
        }
    }
}

/// Whether a path is a folder, or may be one because it cannot be determined.
pub(super) fn may_be_folder(path: &Path) -> bool {
    look(path).map_or(true, |there| there.is_some_and(|metadata| metadata.is_dir()))
}

pub(super) fn opened(folder: &Path) -> Result<Folder, String> {
    Folder::open(folder).map_err(|error| format!("cannot read the folder {}: {error}", folder.display()))
}

/// A file in a folder, opened. Links must not lead out of the folder.
pub(in crate::models) fn inside(folder: &Folder, name: &str) -> Result<fs::File, String> {
    folder.file_inside(Path::new(name), None).map_err(|error| format!("cannot read it: {error}"))
}

/// What a file in a folder holds. It may be a link to anywhere.
pub(super) fn at(folder: &Folder, name: &str, bytes_max: u64) -> Result<Vec<u8>, String> {
    let file = folder.file(Path::new(name)).map_err(|error| format!("cannot read it: {error}"))?;
    read_bytes(file, bytes_max)
}

pub(super) fn text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| {
        let byte = error.utf8_error().valid_up_to() + 1;
        format!("cannot read it: it is not UTF-8 at byte {byte}: save it as UTF-8")
    })
}

/// All of a file.
pub(super) fn read_bytes(file: fs::File, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    // Reading one byte more than allowed detects a file that is too large, whatever its metadata said.
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| format!("cannot read it: {error}"))?;
    if bytes.len() as u64 > bytes_max {
        return Err(format!("it is larger than the limit of {bytes_max} bytes"));
    }
    Ok(bytes)
}

/// The labels in the file that a manifest names.
pub(super) fn labels(folder: &Folder, name: Option<&str>) -> Result<Arc<Labels>, String> {
    let Some(name) = name else { return Ok(Arc::default()) };
    let labels = inside(folder, name)
        .and_then(|file| text(read_bytes(file, LABELS_BYTES_MAX)?))
        .and_then(|text| Labels::parse(&text))
        .map_err(|reason| format!("labels file {name:?}: {reason}"))?;
    Ok(Arc::new(labels))
}

pub(super) fn file_bytes(path: &Path) -> Result<u64, String> {
    let cannot = |error| format!("cannot read {}: {error}", path.display());
    let metadata = fs::metadata(path).map_err(cannot)?;
    if !metadata.is_file() {
        return Err(format!("{} is not a file", path.display()));
    }
    if metadata.len() == 0 {
        return Err(format!("{} is empty", path.display()));
    }
    regular_file::open(path).map_err(cannot)?;
    Ok(metadata.len())
}

/// Size of a model file together with the external data that it names, which must exist in its folder.
pub(super) fn model_bytes(path: &Path) -> Result<u64, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let bytes = file_bytes(path)?;
    let beside = external_bytes(path);
    let wrong = |reason: String| format!("{name}: {}", other_format(path).map_or(reason, str::to_owned));
    Ok(bytes + beside.map_err(wrong)?)
}

/// The format of a file that is not ONNX, if its first bytes tell.
fn other_format(path: &Path) -> Option<&'static str> {
    let mut head = Vec::new();
    regular_file::open(path).ok()?.take(32).read_to_end(&mut head).ok()?;
    if head.starts_with(b"version https://git-lfs") {
        Some("it is Git LFS's pointer to the file, not the file: git lfs pull fetches that")
    } else if head.starts_with(b"PK\x03\x04") {
        Some("it is a ZIP archive, as PyTorch's files are: docs/pytorch.md says how a network is exported")
    } else if head.get(4..8) == Some(b"ORTM") {
        Some("it is in ONNX Runtime's own format: serve the ONNX file that it was made from")
    } else {
        None
    }
}
