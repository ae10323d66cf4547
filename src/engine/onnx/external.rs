//! Finds the other files from which an ONNX file reads weights, without loading it, and reads their contents.
//!
//! A model file names these files itself, so a foreign model could name any file of this machine. Only the structure of the model
//! file is read: weights inside it are skipped.

use super::{
    fields::Fields,
    skeleton::{self, Message},
};
use crate::{
    engine::regular_file::{self, Folder},
    telemetry::host,
};
use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read, Seek},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

/// A file name and its key that are longer than this are treated as damage.
const ENTRY_BYTES_MAX: u64 = 8192;

/// Names of the other files that a model file refers to, relative to the model's folder.
///
/// # Errors
/// If the file is not ONNX, or a name leads out of the model's folder.
pub(crate) fn external_files(path: &Path) -> Result<BTreeSet<String>, String> {
    let (file, bytes) = skeleton::open(path)?;
    files_of(file, bytes)
}

fn files_of(file: impl Read + Seek, bytes: u64) -> Result<BTreeSet<String>, String> {
    let names = names(file, bytes)?;
    for name in &names {
        let inside =
            Path::new(name).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !inside || name.contains(['\\', '\0']) {
            return Err(format!("its weights are in {name:?}, which leads out of the model's folder"));
        }
    }
    Ok(names.iter().map(|name| plain(name)).collect())
}

/// A normalised name (`./a//b` is `a/b`): different spellings name the same file.
fn plain(name: &str) -> String {
    let parts = Path::new(name).components().filter(|part| matches!(part, Component::Normal(_)));
    parts.collect::<PathBuf>().to_string_lossy().into_owned()
}

/// A file that a model refers to: the name in the model, and the contents.
pub(super) type Beside = (String, Arc<[u8]>);

/// The contents of the files that a model refers to. ONNX Runtime itself would map them: it would see what is written to them while
/// it runs, and the process would be killed if they were truncated.
///
/// # Errors
/// If a file cannot be read completely.
pub(super) fn read(path: &Path) -> Result<Vec<Beside>, String> {
    each(path, |name, mut file| {
        let length = file.metadata()?.len();
        there_is_room(length, host::free())?;
        // Read directly into the shared allocation: weights are large, so they should not be copied.
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, length as usize).collect();
        file.read_exact(Arc::get_mut(&mut bytes).expect("it is new"))?;
        Ok((name, bytes))
    })
}

/// The bytes of the files that a model refers to, together.
///
/// # Errors
/// If a file cannot be opened.
pub(crate) fn external_bytes(path: &Path) -> Result<u64, String> {
    each(path, |_, file| Ok(file.metadata()?.len())).map(|lengths| lengths.iter().sum())
}

/// Has `take` read each file that a model refers to. A file must lie in the model's folder or, if the model is a link, beside the link's
/// target: with a file elsewhere, the model could reveal that file's contents. Folder and model are opened once; their paths may name
/// something else when the files are opened.
fn each<T>(path: &Path, mut take: impl FnMut(String, File) -> io::Result<T>) -> Result<Vec<T>, String> {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let open = || {
        let folder = Folder::open(folder)?;
        let model = folder.file(Path::new(path.file_name().unwrap_or_default()))?;
        let (place, bytes) = (regular_file::place(&model)?, model.metadata()?.len());
        Ok((folder, model, place, bytes))
    };
    let (folder, model, place, bytes) =
        open().map_err(|error: io::Error| format!("cannot read it: {error}"))?;
    let read = |name: String| {
        let file = folder.file_inside(Path::new(&name), place.parent());
        let taken = file.and_then(|file| take(name.clone(), file));
        taken.map_err(|error| format!("cannot read its external data {name:?}: {error}"))
    };
    files_of(&model, bytes)?.into_iter().map(read).collect()
}

/// Checks that a file fits into the free memory: otherwise allocating it would kill the process.
fn there_is_room(bytes: u64, free: Option<u64>) -> io::Result<()> {
    match free.filter(|free| bytes > *free) {
        Some(free) => Err(io::Error::other(format!(
            "it has {} MB, and {} MB are free",
            bytes / 1_000_000,
            free / 1_000_000
        ))),
        None => Ok(()),
    }
}

/// Names of the files that hold tensors, from every place where a tensor can occur.
fn names(reader: impl Read + Seek, bytes: u64) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    skeleton::walk(reader, bytes, |fields, field, bytes| match field {
        (Message::Tensor, 13) => {
            names.extend(location(fields, bytes)?);
            Ok(true)
        }
        _ => Ok(false),
    })?;
    Ok(names)
}

/// The file name, if this key and value of a tensor's external data give it.
fn location(fields: &mut Fields<impl Read + Seek>, bytes: u64) -> Result<Option<String>, String> {
    if bytes > ENTRY_BYTES_MAX {
        return Err(format!(
            "a name of external data has {bytes} bytes, more than the limit of {ENTRY_BYTES_MAX}"
        ));
    }
    let end = fields.at() + bytes;
    let (mut name, mut value) = (Vec::new(), Vec::new());
    while let Some((number, bytes)) = fields.next_until(end)? {
        let text = fields.read(bytes)?;
        match number {
            1 => name = text,
            2 => value = text,
            _ => {}
        }
    }
    match &*name {
        b"location" => String::from_utf8(value).map(Some).map_err(|_| fields.broken()),
        _ => Ok(None),
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! ONNX files for tests, reduced to external data.

    /// A field that holds bytes.
    pub(crate) fn field(number: u8, inside: &[u8]) -> Vec<u8> {
        let key = u32::from(number) << 3 | 2;
        let mut bytes = varint(key);
        bytes.extend(varint(inside.len() as u32));
        bytes.extend(inside);
        bytes
    }

    fn varint(mut value: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    /// A tensor whose data lies in another file.
    pub(crate) fn tensor(location: &str) -> Vec<u8> {
        let entry = |key: &str, value: &str| {
            field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat())
        };
        // Extents, raw data that must be skipped, then the location of the data.
        [
            vec![0x08, 3],
            field(9, &[0xff; 300]),
            entry("location", location),
            entry("offset", "../0"),
            vec![0x70, 1],
        ]
        .concat()
    }

    /// A model with this one initializer in its graph.
    pub(crate) fn model(location: &str) -> Vec<u8> {
        [vec![0x08, 8], field(7, &field(5, &tensor(location)))].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::*, *};
    use proptest::prelude::*;
    use std::{fs, io::Cursor};

    #[test]
    fn a_file_that_is_larger_than_what_is_free_is_not_read() {
        assert!(there_is_room(9, Some(9)).is_ok() && there_is_room(u64::MAX, None).is_ok());
        let told = there_is_room(8 << 30, Some(1 << 30)).unwrap_err().to_string();
        assert_eq!(told, "it has 8589 MB, and 1073 MB are free");
    }

    fn walk(bytes: &[u8]) -> Result<Vec<String>, String> {
        names(Cursor::new(bytes), bytes.len() as u64).map(|names| names.into_iter().collect())
    }

    #[test]
    fn names_are_found_wherever_a_tensor_can_be() {
        let check = |bytes: &[u8]| assert_eq!(walk(bytes).unwrap(), ["w.data"]);
        let constant = field(1, &field(5, &field(5, &tensor("w.data"))));
        let branch = field(1, &field(5, &field(6, &field(5, &tensor("w.data")))));
        let sparse = field(15, &field(1, &tensor("w.data")));
        let list = field(1, &field(5, &field(10, &tensor("w.data"))));
        let function = field(25, &field(7, &field(5, &field(5, &tensor("w.data")))));
        check(&model("w.data"));
        check(&field(7, &constant));
        check(&field(7, &branch));
        check(&field(7, &sparse));
        check(&field(7, &list));
        check(&function);
        assert_eq!(walk(&[0x08, 8]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_link_may_lead_within_the_folder_or_beside_what_the_model_is_a_link_to() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["secret", "blobs/weights", "m/data/w"] {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), name).unwrap();
        }
        symlink("data/w", at("m/within")).unwrap();
        symlink("../secret", at("m/out")).unwrap();
        symlink("../blobs/weights", at("m/blob")).unwrap();
        symlink("../blobs/model", at("m/linked.onnx")).unwrap();
        let check = |path: &str, name: &str| {
            // Through the link, if it is one.
            fs::write(at(path), model(name)).unwrap();
            let read = read(&at(path))?;
            assert_eq!(external_bytes(&at(path)), Ok(read[0].1.len() as u64));
            Ok(String::from_utf8_lossy(&read[0].1).into_owned())
        };
        let out = |name: &str| {
            Err(format!("cannot read its external data {name:?}: it leads out of the model's folder"))
        };
        assert_eq!(check("m/model.onnx", "within").as_deref(), Ok("m/data/w"));
        assert_eq!(check("m/model.onnx", "data/w").as_deref(), Ok("m/data/w"));
        assert_eq!(check("m/model.onnx", "out"), out("out"));
        assert_eq!(check("m/model.onnx", "blob"), out("blob"));
        // As in a hub's cache: names that are links to files named by their hash.
        assert_eq!(check("m/linked.onnx", "blob").as_deref(), Ok("blobs/weights"));
        assert_eq!(check("m/linked.onnx", "within").as_deref(), Ok("m/data/w"));
        assert_eq!(check("m/linked.onnx", "out"), out("out"));
        assert!(check("m/model.onnx", "none").unwrap_err().contains("No such file"));
    }

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        let check = |name: &str| {
            fs::write(&path, model(name)).unwrap();
            external_files(&path)
        };
        for name in ["../x", "/etc/passwd", "a/../../x", "..\\x"] {
            let error = check(name).unwrap_err();
            assert!(error.contains("leads out of the model's folder"), "{error}");
        }
        for (name, expected) in [
            ("weights/model.data", "weights/model.data"),
            ("./model.data", "model.data"),
            (".//weights/.//model.data", "weights/model.data"),
        ] {
            assert_eq!(check(name), Ok([expected.to_owned()].into()));
        }
        // Two tensors that spell the same name differently.
        let two = [field(5, &tensor("w")), field(5, &tensor("./w"))].concat();
        fs::write(&path, field(7, &two)).unwrap();
        assert_eq!(external_files(&path), Ok(["w".to_owned()].into()));
    }

    #[test]
    fn what_has_no_end_is_no_external_data_and_nobody_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        fs::write(&path, model("w.data")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(folder.path().join("w.data")).status().unwrap();
        assert!(made.success());
        assert_eq!(read(&path).unwrap_err(), "cannot read its external data \"w.data\": it is not a file");
    }

    #[test]
    fn damaged_files_are_errors() {
        let whole = model("w.data");
        assert!(walk(&whole[..whole.len() - 1]).unwrap_err().contains("damaged"));
        assert!(walk(b"<html>").is_err());
        // A file that has its final length, but has not been written yet.
        assert!(walk(&[0; 64]).unwrap_err().ends_with("(at byte 1)"));
        // A graph in an attribute of a node of a graph, and so on, nested.
        let nested =
            (0..300).fold(field(5, &tensor("x")), |inner, level| field([6, 5, 1][level % 3], &inner));
        let error = walk(&field(7, &nested)).unwrap_err();
        assert!(error.contains("nested more deeply"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = walk(&bytes);
        }
    }
}
