//! The sources, and the paths in them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// All Rust files under `folder`, with their text.
pub(super) fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let short = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap();
                found.push((short.to_owned(), text));
            }
        }
    }
    assert!(!found.is_empty(), "no sources under {folder}");
    found
}

/// The text without line comments.
pub(super) fn code(text: &str) -> String {
    let line = |line: &str| line.split("//").next().unwrap_or_default().to_owned() + "\n";
    text.lines().map(line).collect()
}

/// All paths in `code` that begin with `crate`, `self` or `super`, with groups written out.
pub(super) fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for first in ["crate", "self", "super"] {
        for (at, _) in code.match_indices(&format!("{first}::")) {
            if !code[..at].ends_with(|c: char| c.is_alphanumeric() || "_$:".contains(c)) {
                follow(vec![first.to_owned()], &code[at + first.len() + 2..], &mut found);
            }
        }
    }
    found
}

/// Adds the paths that begin with `before` and go on with the beginning of `rest`. Returns what comes behind them.
fn follow<'a>(before: Vec<String>, rest: &'a str, found: &mut Vec<Vec<String>>) -> &'a str {
    let mut rest = rest.trim_start();
    if let Some(group) = rest.strip_prefix('{') {
        rest = group.trim_start();
        while !rest.starts_with('}') {
            rest = follow(before.clone(), rest, found).trim_start();
            // A comma, or something that a `use` cannot have, as in a macro.
            rest = rest
                .strip_prefix(',')
                .unwrap_or_else(|| &rest[rest.find('}').unwrap_or(rest.len())..])
                .trim_start();
            if rest.is_empty() {
                break;
            }
        }
        return rest.strip_prefix('}').unwrap_or(rest);
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let path = [before, vec![rest[..end].to_owned()]].concat();
    match rest[end..].strip_prefix("::") {
        Some(more) => follow(path, more, found),
        None => {
            found.push(path);
            // `name as other`
            let behind = &rest[end..];
            behind
                .trim_start()
                .strip_prefix("as ")
                .map_or(behind, |alias| &alias[alias.find([',', '}', ';']).unwrap_or(0)..])
        }
    }
}

#[test]
fn paths_are_found_alone_and_in_groups() {
    let words = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
    let code = "use super::{\n    a::{B, c::D},\n    e as f,\n    g,\n};\nfn h() { $crate::i::j(); crate::k::L::m() }\n";
    let expected = ["super::a::B", "super::a::c::D", "super::e", "super::g", "crate::k::L::m"];
    assert_eq!(std::collections::BTreeSet::from_iter(paths(code)), expected.map(words).into());
}
