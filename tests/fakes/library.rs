//! Compiles a fake: the C++ sources of some folders into a shared library under `target/`.
//!
//! Objects and the library are named after a hash of all they are made of, so they are made once and never out of date. This is
//! not in the package's build script: only tests need it, and users' builds do not.

use std::{
    collections::hash_map::DefaultHasher,
    env, fs,
    hash::{Hash, Hasher},
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use parking_lot::Mutex;

/// What is compiled, and what it is called by those who look for it.
pub struct Recipe {
    /// Below `tests/`. Its sources are the folders', and those in `kernels/` in them; it is named after the first.
    pub folders: &'static [&'static str],
    /// The name that the library is loaded by: a `dlopen` of it finds the library already there.
    pub name: &'static str,
    /// Another name of the file, for a process that is started with the folder in `LD_LIBRARY_PATH`.
    pub also: &'static str,
}

/// What all sources are compiled with. Kernels are optimised a little: they run one lane at a time.
const FLAGS: [&str; 11] = [
    "-std=gnu++17",
    "-O1",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
    "-Wno-psabi",
];

/// What kernels are compiled with beside: what lies at an address that is no multiple of its alignment ends a launch there, as it does
/// on a device (`machine.cpp` has what is called then).
const KERNEL_FLAGS: [&str; 2] = ["-fsanitize=alignment", "-fno-sanitize-recover=alignment"];

/// The library of a recipe, compiled if it is not there yet.
///
/// With `FAKE_SANITIZER` (`address`, `thread`, `undefined`) it is one of its own, which looks at itself and at the kernels in it; the
/// process must have been started with the sanitizer's library (`make test-fakes-sanitized`).
pub fn compiled(recipe: &Recipe) -> PathBuf {
    // Unfinished files are named after the process: one thread of it at a time.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders: Vec<PathBuf> = recipe.folders.iter().map(|name| package.join("tests").join(name)).collect();
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let mut flags: Vec<String> = FLAGS.iter().map(|flag| (*flag).to_owned()).collect();
    if let Ok(sanitizer) = env::var("FAKE_SANITIZER") {
        flags.extend([format!("-fsanitize={sanitizer}"), "-DSANITIZED".into()]);
        flags.push("-fno-omit-frame-pointer".to_owned());
    }
    let version = said(Command::new(&compiler).arg("--version"));
    let headers: Vec<_> =
        folders.iter().chain([&package.join("tests/fakes")]).map(|of| texts(of, &["h"])).collect();
    let common = (compiler.clone(), version, flags.clone(), headers);
    let kernels = texts(&package.join("kernels"), &["cu", "cuh", "h"]);

    let mut sources: Vec<Source> = Vec::new();
    for folder in &folders {
        let plain = files(folder, &["cpp"]).into_iter().map(|source| (source, None));
        let of_kernels = files(&folder.join("kernels"), &["cpp"]).into_iter();
        for (source, kernels) in plain.chain(of_kernels.map(|source| (source, Some(&kernels)))) {
            let flags = if kernels.is_some() { &KERNEL_FLAGS[..] } else { &[] };
            let hash = hash(&(&common, flags, kernels, read(&source)));
            sources.push((source, flags, hash));
        }
    }
    assert!(!sources.is_empty(), "no sources in {folders:?}");

    let made = made_in();
    let library =
        made.join(format!("{}-{:016x}", recipe.folders[0], hash(&(&sources, recipe.name)))).join(recipe.name);
    if !library.exists() {
        let objects = compile(&compiler, &flags, &sources, &made);
        link(&compiler, &flags, &objects, &library, recipe);
    }
    if env::var_os("FAKE_SANITIZER").is_none() {
        lead_to(&library, &made.join(recipe.folders[0]));
    }
    library
}

/// Makes the newest of a recipe known by a name without a hash, for tests in other languages.
fn lead_to(library: &Path, name: &Path) {
    let folder = library.parent().and_then(Path::file_name).expect("a library is in a folder");
    if fs::read_link(name).is_ok_and(|known| known == Path::new(folder)) {
        return;
    }
    let unfinished = name.with_extension(format!("{}.part", process::id()));
    let made = std::os::unix::fs::symlink(folder, &unfinished).and_then(|()| fs::rename(&unfinished, name));
    made.unwrap_or_else(|why| panic!("cannot make {}: {why}", name.display()));
}

/// `target/<profile>/fakes`, beside the folder that test binaries are in.
fn made_in() -> PathBuf {
    let binary = env::current_exe().expect("a running binary has a path");
    let profile = binary.ancestors().nth(2).expect("test binaries are in target/<profile>/deps");
    profile.join("fakes")
}

/// A file, what it is compiled with beside what all are, and the hash of all that.
type Source = (PathBuf, &'static [&'static str], u64);

fn compile(compiler: &str, flags: &[String], sources: &[Source], made: &Path) -> Vec<PathBuf> {
    let folder = made.join("objects");
    fs::create_dir_all(&folder).expect("target can be written");
    let object = |(source, _, hash): &Source| {
        let stem = source.file_stem().and_then(|stem| stem.to_str()).expect("sources have plain names");
        folder.join(format!("{stem}-{hash:016x}.o"))
    };
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(String::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let object = object(source);
                    if object.exists() {
                        continue;
                    }
                    let mut command = Command::new(compiler);
                    command.args(flags).args(source.1).arg("-c").arg(&source.0);
                    if let Err(why) = put(command, &object) {
                        failed.lock().push_str(&why);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    assert!(failed.is_empty(), "{failed}");
    sources.iter().map(object).collect()
}

fn link(compiler: &str, flags: &[String], objects: &[PathBuf], library: &Path, recipe: &Recipe) {
    let folder = library.parent().expect("a library is in a folder");
    fs::create_dir_all(folder).expect("target can be written");
    let mut command = Command::new(compiler);
    command.args(flags).args(["-shared", "-ldl"]).arg(format!("-Wl,-soname,{}", recipe.name));
    // What a sanitizer needs, the process has.
    if env::var_os("FAKE_SANITIZER").is_none() {
        command.arg("-Wl,-z,defs");
    }
    let also = folder.join(recipe.also);
    if !also.exists() {
        // Another test binary may be as far.
        let _ = std::os::unix::fs::symlink(recipe.name, also);
    }
    put(command.args(objects), library).unwrap_or_else(|why| panic!("{why}"));
}

/// Runs a compiler whose output appears whole or not at all.
fn put(mut command: impl std::borrow::BorrowMut<Command>, to: &Path) -> Result<(), String> {
    let command = command.borrow_mut();
    let unfinished = to.with_extension(format!("{}.part", process::id()));
    let output =
        command.arg("-o").arg(&unfinished).output().map_err(|why| {
            format!("cannot run {:?}: {why}; a C++ compiler is needed", command.get_program())
        })?;
    if !output.status.success() {
        return Err(format!("{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    fs::rename(&unfinished, to).map_err(|why| format!("cannot write {}: {why}", to.display()))
}

fn said(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|why| {
        panic!("cannot run {:?}: {why}; a C++ compiler is needed", command.get_program())
    });
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|why| panic!("cannot read {}: {why}", path.display()))
}

/// The files of a folder with these endings, in the order of their names; none where there is no folder.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let ending = |path: &Path| path.extension().and_then(|ending| ending.to_str()).map(str::to_owned);
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder can be read").path()).collect();
    found.retain(|path| ending(path).is_some_and(|ending| endings.contains(&ending.as_str())));
    found.sort();
    found
}

fn texts(folder: &Path, endings: &[&str]) -> Vec<(PathBuf, String)> {
    files(folder, endings)
        .into_iter()
        .map(|path| {
            let text = read(&path);
            (path, text)
        })
        .collect()
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
