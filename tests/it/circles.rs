//! The parts of a module use each other one way, all the way down: whoever reads one needs only those below it.

use super::imports::{code, paths, sources};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// The name of a module, from the root of the crate.
type Module = Vec<String>;

/// The modules of `src` with the code of each, without those that are there for tests alone.
fn modules() -> BTreeMap<Module, String> {
    let named = |path: &Path| -> Module {
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
fn circles_are_seen_through_parts_of_modules_and_not_where_a_part_uses_its_own() {
    let words = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
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
