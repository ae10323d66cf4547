//! A record of a model's files as they were when it was loaded. A device that comes back later loads them again, and must not
//! serve different content under the same name.

use super::{Engine, Source};
use crate::engine::{onnx::external::external_files, regular_file};
use foldhash::fast::FixedState;
use std::{
    fs::{File, Metadata},
    hash::{BuildHasher, Hasher},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Size of the chunks that files are read in.
const CHUNK_BYTES: usize = 1 << 20;

/// The files that an engine is made from, as they were at one moment.
#[derive(Debug)]
pub struct Files(Vec<One>);

#[derive(Debug)]
struct One {
    path: PathBuf,
    /// For messages.
    name: String,
    stamp: Stamp,
    content: u64,
}

/// A file with an unchanged stamp counts as having the same content.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl Files {
    /// The files of a model as they are now. Each is read once.
    ///
    /// # Errors
    /// The file that cannot be read.
    pub fn of(source: &Source) -> Result<Files, String> {
        if let Engine::GaussMle(_) = source.manifest.engine {
            // A fitter's settings are in the manifest, which is kept in memory.
            return Ok(Files(Vec::new()));
        }
        let path = &source.path;
        let own = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let folder = path.parent().unwrap_or(Path::new("."));
        let beside = external_files(path).map_err(|reason| format!("{own}: {reason}"))?;
        let beside = beside.into_iter().map(|name| (folder.join(&name), name));
        let all = std::iter::once((path.clone(), own)).chain(beside);
        all.map(|(path, name)| {
            let (stamp, content) = look(&path).map_err(|error| cannot_read(&name, &error))?;
            Ok(One { path, name, stamp, content })
        })
        .collect::<Result<_, _>>()
        .map(Files)
    }

    /// The folder below `folder` for engines built from a model. Each content of the files has its own: TensorRT finds its
    /// engines by the names of a file and of what is in it, and the engines contain the weights. `None` if nothing is built.
    pub fn built(&self, source: &Source, folder: &Path) -> Option<PathBuf> {
        if !source.manifest.gpu.provider.builds() {
            return None;
        }
        let mut hasher = FixedState::default().build_hasher();
        for One { name, content, .. } in &self.0 {
            hasher.write(name.as_bytes());
            hasher.write_u64(*content);
        }
        Some(folder.join("tensorrt").join(format!("{:016x}", hasher.finish())))
    }

    /// Checks that the files have not changed. A file with another stamp is read and compared, so that touching it or replacing
    /// it with a copy does not count as a change.
    ///
    /// # Errors
    /// The file that has changed, and what to do.
    pub fn check(&self) -> Result<(), String> {
        for One { path, name, stamp, content } in &self.0 {
            let now = std::fs::metadata(path).map_err(|error| cannot_read(name, &error))?;
            if Stamp::of(&now) == *stamp {
                continue;
            }
            let same = now.len() == stamp.bytes
                && look(path).map_err(|error| cannot_read(name, &error))?.1 == *content;
            if !same {
                return Err(format!(
                    "{name} is not what it was when the model was loaded: load the model again, or put the file back"
                ));
            }
        }
        Ok(())
    }
}

fn cannot_read(name: &str, error: &io::Error) -> String {
    format!("cannot read {name}: {error}")
}

fn look(path: &Path) -> io::Result<(Stamp, u64)> {
    let mut file = regular_file::open(path)?;
    // The stamp is taken before the content is read, so that a write in between changes it.
    let stamp = Stamp::of(&file.metadata()?);
    let (mut hasher, mut chunk) = (FixedState::default().build_hasher(), vec![0; CHUNK_BYTES]);
    loop {
        // Chunks are filled completely, so that equal content gives an equal hash.
        let read = fill(&mut file, &mut chunk)?;
        if read == 0 {
            return Ok((stamp, hasher.finish()));
        }
        hasher.write(&chunk[..read]);
    }
}

/// Reads until `chunk` is full or the file ends.
fn fill(file: &mut File, chunk: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < chunk.len() {
        match file.read(&mut chunk[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic

    use super::*;
    use crate::{engine::onnx::external::testing::model, models::testing::source};
    use std::fs;

    #[test]
    fn the_same_bytes_are_the_same_files_and_others_or_none_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let [own, beside] = ["model.onnx", "w.data"].map(|name| folder.path().join(name));
        let weights = vec![7; CHUNK_BYTES + 1];
        fs::write(&own, model("w.data")).unwrap();
        fs::write(&beside, &weights).unwrap();
        let files = Files::of(&Source { path: own.clone(), ..source("m", "1", "") }).unwrap();
        assert_eq!(files.check(), Ok(()));
        let copy = folder.path().join("copy");
        fs::copy(&beside, &copy).unwrap();
        fs::rename(&copy, &beside).unwrap();
        assert_eq!(files.check(), Ok(()), "a copy");

        let mut other = weights.clone();
        *other.last_mut().unwrap() = 8;
        fs::write(&beside, &other).unwrap();
        let changed = files.check().unwrap_err();
        assert!(changed.starts_with("w.data is not what it was"), "{changed}");
        fs::write(&beside, &weights).unwrap();
        assert_eq!(files.check(), Ok(()));

        fs::write(&own, model("v.data")).unwrap();
        assert!(files.check().unwrap_err().starts_with("model.onnx is not what it was"));
        fs::remove_file(&own).unwrap();
        assert!(files.check().unwrap_err().starts_with("cannot read model.onnx: No such file"));
    }

    #[test]
    fn what_is_built_of_a_model_is_kept_apart_from_what_is_built_of_other_weights() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        // Files with the same name, as two versions have.
        for (version, weights) in [("1", 7), ("2", 8), ("3", 7)] {
            fs::create_dir(path(version)).unwrap();
            fs::write(path(version).join("model.onnx"), model("w.data")).unwrap();
            fs::write(path(version).join("w.data"), [weights; 100]).unwrap();
        }
        let kept = |version: &str, manifest: &str| {
            let path = path(version).join("model.onnx");
            let source = Source { path, ..source("m", version, manifest) };
            Files::of(&source).ok()?.built(&source, Path::new("cache"))
        };
        let tensorrt = "[gpu]\nprovider = \"tensorrt\"\n";
        let [first, second, third] = ["1", "2", "3"].map(|version| kept(version, tensorrt).unwrap());
        assert!(first.starts_with("cache/tensorrt") && first != Path::new("cache/tensorrt"), "{first:?}");
        assert_ne!(first, second, "the same file, with other weights beside it");
        assert_eq!(first, third, "the same, elsewhere");
        fs::write(path("1").join("model.onnx"), model("./w.data")).unwrap();
        assert_ne!(kept("1", tensorrt), Some(third), "another file, with the same weights");
        assert_eq!(kept("1", ""), None, "nothing is built");
        assert_eq!(kept("4", tensorrt), None, "it is not there");
    }

    #[test]
    fn a_fitter_has_no_files_of_its_own() {
        let fitter = source("spots", "1", "engine = \"gauss-mle\"\n");
        assert_eq!(Files::of(&fitter).unwrap().check(), Ok(()));
    }
}
