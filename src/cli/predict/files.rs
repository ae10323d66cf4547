//! Finds the input files: names as they are, the content of folders, patterns.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The files that a model takes, by extension. The extension only matters within folders: a file that is named is taken whatever its
/// name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// Pictures.
    Images,
    /// Stacks of frames.
    Stacks,
    /// Arrays, and requests as JSON.
    Tensors,
}

impl Takes {
    fn extensions(self) -> &'static [&'static str] {
        match self {
            Takes::Images => &[
                "jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "jxl", "jp2", "j2k", "pbm", "pgm",
                "ppm", "pnm", "pam",
            ],
            Takes::Stacks => &["tif", "tiff", "npy"],
            Takes::Tensors => &["npy", "json"],
        }
    }

    fn takes(self, path: &Path) -> bool {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
        extension.is_some_and(|extension| self.extensions().contains(&&*extension))
    }
}

/// What `-` stands for.
const STDIN: &str = "/dev/stdin";

/// How deep nested folders are searched.
const DEPTH_MAX: usize = 16;

/// `*` and `?` do not match a leading dot, as in shells.
const AS_SHELLS_DO: glob::MatchOptions = glob::MatchOptions {
    case_sensitive: true,
    require_literal_separator: false,
    require_literal_leading_dot: true,
};

/// The path that a name stands for.
fn place(name: &Path) -> &Path {
    if name == Path::new("-") { Path::new(STDIN) } else { name }
}

/// The first repeated name of something that can be read only once: standard input or a pipe.
pub(super) fn repeated(given: &[PathBuf]) -> Option<&Path> {
    let mut seen = Vec::new();
    let repeated = given.iter().find(|name| {
        let there = fs::metadata(place(name)).ok();
        let again = there.as_ref().is_none_or(|there| there.is_file() || there.is_dir());
        let which = there.map(|there| (there.dev(), there.ino()));
        // `-` counts whatever standard input is, so that a command means the same everywhere.
        let once = !again || name.as_path() == Path::new("-");
        once && (seen.contains(&which) || {
            seen.push(which);
            false
        })
    });
    repeated.map(PathBuf::as_path)
}

/// The files that `given` stands for. Those of folders and patterns are in the order of their names.
///
/// # Errors
/// What does not exist, or matches no file.
pub(super) fn find(given: &[PathBuf], takes: Takes) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for name in given {
        let path = place(name);
        // A name that is not UTF-8 is not a pattern.
        let pattern = name.to_str().filter(|name| name.contains(['*', '?', '[']));
        if path.is_dir() {
            let before = found.len();
            walk(path, takes, &mut Vec::new(), &mut found)?;
            if found.len() == before {
                let extensions = takes.extensions().join(", ");
                return Err(format!("the folder {} holds no file that ends in {extensions}", name.display()));
            }
        } else if path.exists() {
            found.push(path.to_owned());
        } else if let Some(name) = pattern {
            let before = found.len();
            let paths = glob::glob_with(name, AS_SHELLS_DO)
                .map_err(|error| format!("{name:?} is no pattern: {error}"))?;
            let paths = paths.filter_map(Result::ok).filter(|path| path.is_file());
            found.extend(paths);
            if found.len() == before {
                return Err(format!("no file fits the pattern {name:?}"));
            }
        } else {
            return Err(format!("there is no file {}", name.display()));
        }
    }
    Ok(found)
}

/// Whether writing to `output` would overwrite one of these files.
pub(super) fn same(files: &[PathBuf], output: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok().filter(|path| path.is_file());
    real(output).is_some_and(|output| files.iter().any(|file| real(file).as_ref() == Some(&output)))
}

/// The files in a folder; `above` are the folders that contain it. Hidden names are skipped, such as the `._NAME` that macOS leaves
/// beside each file, and so are links to a folder above.
fn walk(
    folder: &Path,
    takes: Takes,
    above: &mut Vec<(u64, u64)>,
    found: &mut Vec<PathBuf>,
) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot read the folder {}: {error}", folder.display());
    let there = fs::metadata(folder).map_err(failed)?;
    let own = (there.dev(), there.ino());
    if above.contains(&own) {
        return Ok(());
    }
    if above.len() > DEPTH_MAX {
        return Err(format!("{} is more than {DEPTH_MAX} folders deep", folder.display()));
    }
    above.push(own);
    let entries = fs::read_dir(folder).map_err(failed)?;
    let mut paths =
        entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect::<Result<Vec<_>, String>>()?;
    paths.sort();
    let hidden = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    for path in paths.into_iter().filter(|path| !hidden(path)) {
        if path.is_dir() {
            walk(&path, takes, above, found)?;
        } else if takes.takes(&path) && path.is_file() {
            // Only regular files: a pipe would block. It is read if it is named.
            found.push(path);
        }
    }
    above.pop();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    fn check(given: &[&str], takes: Takes, expected: Result<&[&str], &str>) {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("in")).expect("a folder");
        fs::create_dir(folder.path().join("empty")).expect("a folder");
        for name in ["b.png", "a.JPG", "notes.txt", "x.npy", "in/c.tif", "[odd].png"] {
            fs::write(folder.path().join(name), "").expect("a file");
        }
        let root = format!("{}/", folder.path().display());
        let given: Vec<PathBuf> = given.iter().map(|name| format!("{root}{name}").into()).collect();
        let found = find(&given, takes).map_err(|why| why.replace(&root, "")).map(|found| {
            found.iter().map(|path| path.display().to_string().replace(&root, "")).collect::<Vec<_>>()
        });
        let expected = expected.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(found, expected.map_err(str::to_owned), "{given:?}");
    }

    #[test]
    fn folders_give_what_the_model_takes_in_the_order_of_names() {
        check(&[""], Takes::Images, Ok(&["[odd].png", "a.JPG", "b.png", "in/c.tif"]));
        check(&[""], Takes::Stacks, Ok(&["in/c.tif", "x.npy"]));
        check(&[""], Takes::Tensors, Ok(&["x.npy"]));
    }

    #[test]
    fn a_named_file_is_taken_whatever_it_is_called() {
        check(&["notes.txt", "[odd].png"], Takes::Images, Ok(&["notes.txt", "[odd].png"]));
    }

    #[test]
    fn patterns_are_for_those_whose_shell_has_none() {
        check(&["*.png", "in/?.tif"], Takes::Images, Ok(&["[odd].png", "b.png", "in/c.tif"]));
    }

    #[test]
    fn what_is_not_there_is_said() {
        check(&["none.png"], Takes::Images, Err("there is no file none.png"));
        check(&["*.gif"], Takes::Images, Err("no file fits the pattern \"*.gif\""));
        check(&["empty"], Takes::Tensors, Err("the folder empty holds no file that ends in npy, json"));
    }

    #[test]
    fn what_is_empty_after_its_first_reader_is_named_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let [file, link, pipe] = ["a.png", "link.png", "pipe"].map(|name| folder.path().join(name));
        fs::write(&file, "").expect("a file");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
        assert!(made.success());
        std::os::unix::fs::symlink(&pipe, &link).expect("a link");
        let stdin = PathBuf::from("-");
        let given = |names: &[&PathBuf]| names.iter().copied().cloned().collect::<Vec<_>>();
        for names in [&[&file, &file][..], &[&file, &pipe], &[&stdin, &file, &pipe]] {
            assert_eq!(repeated(&given(names)), None, "{names:?}");
        }
        assert_eq!(repeated(&given(&[&pipe, &file, &link])), Some(link.as_path()));
        assert_eq!(repeated(&given(&[&stdin, &file, &stdin])), Some(stdin.as_path()));
    }

    #[test]
    fn a_name_that_is_no_text_is_a_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let within = |name: &[u8]| folder.path().join(OsStr::from_bytes(name));
        fs::write(within(b"a\xff.png"), "").expect("a file");
        let named = [within(b"a\xff.png")];
        assert_eq!(find(&named, Takes::Images), Ok(named.to_vec()));
        assert_eq!(find(&[folder.path().to_owned()], Takes::Images), Ok(named.to_vec()));
        let told = find(&[within(b"b\xff*.png")], Takes::Images).expect_err("no file");
        assert!(told.starts_with("there is no file ") && told.ends_with("/b\u{fffd}*.png"), "{told}");
    }

    #[test]
    fn what_is_hidden_is_not_meant_unless_it_is_named_and_links_that_lead_up_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let within = |name: &str| folder.path().join(name);
        for inner in [".git", "in/deep"] {
            fs::create_dir_all(within(inner)).expect("a folder");
        }
        for name in ["a.png", "._a.png", ".git/b.png", "in/c.png", "in/deep/d.png"] {
            fs::write(within(name), "").expect("a file");
        }
        std::os::unix::fs::symlink("../..", within("in/deep/up")).expect("a link");
        std::os::unix::fs::symlink(".", within("in/same")).expect("a link");
        let root = [folder.path().to_owned()];
        let all = ["a.png", "in/c.png", "in/deep/d.png"].map(within);
        assert_eq!(find(&root, Takes::Images), Ok(all.to_vec()));
        assert_eq!(find(&[within("._a.png")], Takes::Images), Ok(vec![within("._a.png")]));
        assert_eq!(find(&[within("*.png")], Takes::Images), Ok(vec![within("a.png")]));
        let deep = within("x/".repeat(20).trim_end_matches('/'));
        fs::create_dir_all(deep).expect("folders");
        assert!(find(&root, Takes::Images).is_err_and(|told| told.ends_with("is more than 16 folders deep")));
    }

    #[test]
    fn of_a_folder_only_files_are_meant() {
        let folder = tempfile::tempdir().expect("a folder");
        let within = |name: &str| folder.path().join(name);
        fs::write(within("b.png"), "").expect("a file");
        std::os::unix::fs::symlink(within("b.png"), within("link.png")).expect("a link");
        let _socket = std::os::unix::net::UnixListener::bind(within("a.png")).expect("a socket");
        let given = [folder.path().to_owned()];
        assert_eq!(find(&given, Takes::Images), Ok(vec![within("b.png"), within("link.png")]));
    }
}
