//! House rules that a compiler does not check.

use super::imports::{code, paths, sources};
use std::{collections::BTreeSet, fs, path::Path, process::Command};

/// Longer files hold a second subject.
const LINES_MAX: usize = 450;

/// Larger files are made or fetched where they are needed: each clone would carry them for ever.
const BYTES_MAX: u64 = 8 << 20;

/// All that lies at the top.
const TOP: [&str; 24] = [
    ".ci",
    ".dockerignore",
    ".gitattributes",
    ".gitignore",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "Dockerfile",
    "LICENSE",
    "Makefile",
    "README.md",
    "benches",
    "clippy.toml",
    "deny.toml",
    "deploy",
    "docs",
    "examples",
    "kernels",
    "openapi.yaml",
    "proptest-regressions",
    "rustfmt.toml",
    "src",
    "tests",
    "tools",
];

/// What each top-level module stands on: it may use those of a lower rank, and the leaves. `http` and `devices` have
/// the same rank: they do not know each other. `grpc` is another wire of `http`.
const RANKS: [(&str, i32); 10] = [
    ("cli", 8),
    ("app", 7),
    ("grpc", 6),
    ("http", 5),
    ("devices", 5),
    ("models", 4),
    ("batch", 3),
    ("tasks", 3),
    ("engine", 2),
    ("image", 1),
];

/// Modules that use no other of ours.
const LEAVES: [&str; 5] = ["config", "error", "protocol", "status", "telemetry"];

/// Modules that leaves use as well: `blessed` and `worse` in tests alone.
const BELOW_LEAVES: [&str; 5] = ["bits", "blessed", "random", "words", "worse"];

fn rank(module: &str) -> i32 {
    let ranked = RANKS.iter().find(|(name, _)| *name == module);
    match ranked {
        Some((_, rank)) => *rank,
        None if LEAVES.contains(&module) => 0,
        None if BELOW_LEAVES.contains(&module) => -1,
        None => {
            panic!("module {module} has no rank: add it to RANKS, LEAVES or BELOW_LEAVES in tests/it/tidy.rs")
        }
    }
}

/// The modules that `code` reaches by `crate::`, alone or in a group.
fn reached(code: &str) -> BTreeSet<String> {
    let from_root = |path: Vec<String>| path.into_iter().skip_while(|name| name != "crate").nth(1);
    // Macros and constants at the root of the crate are no modules.
    paths(code)
        .into_iter()
        .filter_map(from_root)
        .filter(|name| name.starts_with(|c: char| c.is_lowercase()))
        .collect()
}

/// The top-level module that a file under `src` belongs to.
fn module(path: &Path) -> String {
    let inside = path.strip_prefix("src").unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

#[test]
fn imports_point_downward() {
    let mut wrong = Vec::new();
    for (path, text) in sources("src") {
        let own = module(&path);
        if own == "main" || own == "lib" {
            continue;
        }
        for other in reached(&code(&text)) {
            let allowed = other == own || rank(&other) < rank(&own);
            if !allowed {
                wrong.push(format!("{}: {own} uses {other}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "imports that do not point downward:\n{}", wrong.join("\n"));
}

#[test]
fn groups_and_paths_are_both_seen_as_imports() {
    let code = "use crate::{\n    engine::{Tensor, x::Y},\n    error::InferError,\n};\nfn f() { crate::image::g(); my_crate::h(); }";
    assert_eq!(reached(code), ["engine", "error", "image"].map(str::to_owned).into());
}

#[test]
fn unsafe_code_lives_under_engine() {
    for (path, text) in sources("src") {
        if path.starts_with("src/engine") {
            continue;
        }
        for (number, line) in code(&text).lines().enumerate() {
            let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            let found = words.into_iter().any(|word| word == "unsafe");
            assert!(!found, "{}:{}: {line}", path.display(), number + 1);
        }
    }
}

#[test]
fn nothing_is_served_without_our_accept_loop() {
    for (path, text) in sources("src") {
        let found = code(&text).contains("axum::serve(");
        assert!(!found, "{} uses axum's own server, which sets no timer", path.display());
    }
}

#[test]
fn every_file_says_what_it_is_for_and_holds_one_subject() {
    for folder in ["src", "tests"] {
        for (path, text) in sources(folder) {
            assert!(text.starts_with("//!"), "{} does not begin with //!", path.display());
            // Tests may be as many as there is to test; `mod tests;` and a lone item for them end nothing.
            let tests_begin =
                |(at, _): (usize, &str)| text[at..].lines().nth(1).is_some_and(|line| line.ends_with('{'));
            let end = text
                .match_indices("\n#[cfg(test)]\nmod ")
                .map(|(at, found)| (at + 1, found))
                .find(|found| tests_begin(*found));
            let lines = text[..end.map_or(text.len(), |(at, _)| at)].lines().count();
            let tests = path.file_stem().is_some_and(|stem| stem == "tests") || path.starts_with("tests");
            assert!(
                tests || lines <= LINES_MAX,
                "{} has {lines} lines, more than {LINES_MAX}",
                path.display()
            );
        }
    }
}

#[test]
fn what_is_committed_has_its_place_a_size_that_clones_bear_and_a_name_that_no_command_takes_for_an_option() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output();
    let listed = match listed {
        Ok(listed) if listed.status.success() && !listed.stdout.is_empty() => listed.stdout,
        other => {
            eprintln!("skipped: git does not list what is committed: {other:?}");
            return;
        }
    };
    let mut wrong = Vec::new();
    for path in String::from_utf8(listed).unwrap().split_terminator('\0') {
        let top = path.split('/').next().unwrap();
        if !TOP.contains(&top) {
            wrong.push(format!("{path}: {top:?} is not in TOP of tests/it/tidy.rs"));
        }
        if path.split('/').any(|name| name.starts_with('-')) {
            wrong.push(format!("{path} begins with \"-\" as options do"));
        }
        // One that was removed here and not yet there has no size.
        let bytes = fs::symlink_metadata(root.join(path)).map_or(0, |file| file.len());
        if bytes > BYTES_MAX {
            wrong.push(format!("{path} has {bytes} bytes, more than {BYTES_MAX}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
