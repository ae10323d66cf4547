//! The parts of a module use each other one way, all the way down: whoever reads one needs only those below it.

use super::tidy::{code, sources};
use std::collections::{BTreeMap, BTreeSet};

/// The name of a module, from the root of the crate.
type Module = Vec<String>;

/// The modules of `src` with the code of each, without those that are there for tests alone.
fn modules() -> BTreeMap<Module, String> {
    let named = |path: &std::path::Path| -> Module {
        let inside = path.with_extension("");
        let names = inside.strip_prefix("src").unwrap().iter().map(|name| name.to_str().unwrap().to_owned());
        names.filter(|name| !["mod", "lib", "main"].contains(&&**name)).collect()
    };
    let mut modules: BTreeMap<Module, String> = BTreeMap::new();
    let mut of_tests: Vec<Module> = Vec::new();
    for (path, text) in sources("src") {
        let (module, text) = (named(&path), code(&text));
        let lines: Vec<&str> = text.lines().collect();
        let mut end = lines.len();
        for (number, pair) in lines.windows(2).enumerate() {
            let is_for_tests = pair[0].starts_with("#[cfg(") && pair[0].contains("test");
            let Some((_, declared)) = pair[1].split_once("mod ").filter(|_| is_for_tests) else { continue };
            match declared.trim_end().strip_suffix(';') {
                Some(name) => of_tests.push([&module[..], &[name.to_owned()]].concat()),
                // Written out, at the end of the file.
                None => end = end.min(number),
            }
        }
        modules.entry(module).or_default().push_str(&(lines[..end].join("\n") + "\n"));
    }
    modules.retain(|module, _| !of_tests.iter().any(|tests| module.starts_with(tests)));
    modules
}

/// All paths in `code` that begin with `crate`, `self` or `super`, with groups written out.
fn paths(code: &str) -> Vec<Vec<String>> {
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

/// The module that a path in `module` leads to or into.
fn reached(module: &Module, path: &[String], modules: &BTreeMap<Module, String>) -> Module {
    let mut at = module.clone();
    for name in path {
        match &**name {
            "crate" => at.clear(),
            "self" => (),
            "super" => _ = at.pop(),
            name => {
                at.push(name.to_owned());
                if !modules.contains_key(&at) {
                    at.pop();
                    break;
                }
            }
        }
    }
    at
}

/// For each module, which of its parts use which others, with an example each.
type Uses = BTreeMap<Module, BTreeMap<(String, String), String>>;

fn uses(modules: &BTreeMap<Module, String>) -> Uses {
    let mut uses = Uses::new();
    for (module, code) in modules {
        for path in paths(code) {
            let other = reached(module, &path, modules);
            let common = module.iter().zip(&other).take_while(|(one, other)| one == other).count();
            // A part and its own parts belong together.
            if let (Some(one), Some(other)) = (module.get(common), other.get(common)) {
                let example = format!("{} has {}", module.join("::"), path.join("::"));
                uses.entry(module[..common].to_vec())
                    .or_default()
                    .insert((one.clone(), other.clone()), example);
            }
        }
    }
    uses
}

/// The uses that are part of a circle.
fn circles(uses: &BTreeMap<(String, String), String>) -> Vec<&(String, String)> {
    let leads_to = |from: &str, to: &str| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(at) = left.pop() {
            let next = uses.keys().filter(|(one, _)| one == at).map(|(_, other)| &**other);
            left.extend(next.filter(|other| seen.insert(*other)));
        }
        seen.contains(to)
    };
    uses.keys().filter(|(one, other)| leads_to(other, one)).collect()
}

#[test]
fn the_parts_of_a_module_use_each_other_one_way() {
    let modules = modules();
    let mut wrong = Vec::new();
    for (module, uses) in &uses(&modules) {
        let told = |used: &&(String, String)| {
            format!("{}: {} -> {} ({})", module.join("::"), used.0, used.1, uses[*used])
        };
        wrong.extend(circles(uses).iter().map(told));
    }
    assert!(wrong.is_empty(), "circles:\n{}", wrong.join("\n"));
}

#[test]
fn circles_are_seen_through_groups_and_parts_and_not_in_what_is_for_tests() {
    let words = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
    let code = "use super::{\n    a::{B, c::D},\n    e as f,\n    g,\n};\nfn h() { $crate::i::j(); crate::k::L::m() }\n";
    let expected = ["super::a::B", "super::a::c::D", "super::e", "super::g", "crate::k::L::m"];
    assert_eq!(BTreeSet::from_iter(paths(code)), expected.map(words).into());
    let of = |code: [(&str, &str); 4]| {
        let modules =
            code.map(|(name, code)| (if name.is_empty() { vec![] } else { words(name) }, code.to_owned()));
        let uses = uses(&modules.into());
        uses.values().map(|uses| circles(uses).len()).sum::<usize>()
    };
    let below = ("b::c", "use crate::a::X;");
    assert_eq!(
        of([("", ""), ("a", "use super::b::Y;"), ("b", "mod c;"), below]),
        2,
        "a -> b -> a, by a part of b"
    );
    assert_eq!(of([("", ""), ("a", "use super::Y;"), ("b", "use super::a; use c::Z;"), below]), 0);
}
