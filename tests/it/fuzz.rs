//! Bodies that nobody meant to send: each parser gets files that are in the repository, changed at random, and must answer with a
//! value that holds together or with an error, never with a panic.
//!
//! `FUZZ_CASES` and `FUZZ_SEED` run more, or the same again; a failure prints both. `make fuzz` looks for what these do not meet.

#[path = "../fuzz/parsers.rs"]
mod parsers;

use ocelli::random::Random;
use parsers::PARSERS;
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Enough to touch every change of every file many times, and done in seconds.
const CASES: u64 = 30_000;
/// Of those that read pixels: for them, files change in their own tests, too (`src/image`).
const CASES_OF_PIXELS: u64 = 2_000;

/// What parsers trip over, more often than chance would have it.
const TOKENS: [&[u8]; 17] = [
    b"-1",
    b"0",
    b"18446744073709551616",
    b"1e999",
    b"[[[[[[[[[[[[[[[[[[",
    b"]",
    b"{",
    b"\"",
    b"\\u",
    b"\"\\ud800\"",
    b"null",
    b"\xff\xfe",
    b"\r\n--B",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"99999999999999999",
    b",",
];

/// One of the files, changed in one to eight places.
fn body(random: &mut Random, files: &[Vec<u8>]) -> Vec<u8> {
    let mut body = files[random.below(files.len())].clone();
    for _ in 0..=random.below(8) {
        let at = random.below(body.len() + 1);
        let end = (at + random.below(16)).min(body.len());
        match random.below(6) {
            0 if at < body.len() => body[at] ^= 1 << random.below(8),
            1 => drop(body.drain(at..end)),
            2 => {
                let again = body[at..end].to_vec();
                body.splice(at..at, again);
            }
            3 => drop(body.splice(at..at, TOKENS[random.below(TOKENS.len())].iter().copied())),
            4 => {
                let other = &files[random.below(files.len())];
                let from = random.below(other.len());
                body.splice(at..end, other[from..].iter().copied());
            }
            _ => body.truncate(at),
        }
    }
    body
}

fn check(name: &str, cases: u64) {
    let parser = PARSERS.iter().find(|parser| parser.name == name).expect("there is such a parser");
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect(name));
    let (cases, seed) = (number("FUZZ_CASES", cases), number("FUZZ_SEED", 7));
    let path = super::support::root().join(parser.files);
    let mut paths: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let files: Vec<Vec<u8>> = paths.into_iter().map(|path| fs::read(path).unwrap()).collect();
    for file in &files {
        (parser.parse)(file);
    }
    let mut random = Random::new(seed);
    for case in 0..cases {
        let body = body(&mut random, &files);
        let parsed = catch_unwind(AssertUnwindSafe(|| (parser.parse)(&body)));
        let text = || String::from_utf8_lossy(&body).into_owned();
        assert!(parsed.is_ok(), "{name}: case {case} of {cases}, FUZZ_SEED={seed}: {}", text());
    }
}

#[test]
fn every_parser_has_a_test() {
    let tests = include_str!("fuzz.rs");
    for parser in &PARSERS {
        assert!(tests.contains(&format!("check({:?}, ", parser.name)), "{}", parser.name);
    }
    let folder = super::support::root().join("tests/fixtures/fuzz");
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            PARSERS.iter().any(|parser| parser.name == name),
            "tests/fixtures/fuzz/{name} is of no parser"
        );
    }
}

#[test]
fn inference_requests_in_json() {
    check("oip-json", CASES);
}

#[test]
fn inference_requests_with_binary_tensors() {
    check("oip-binary", CASES);
}

#[test]
fn forms_of_several_parts() {
    check("multipart", CASES);
}

#[test]
fn images_in_base64() {
    check("base64", CASES);
}

#[test]
fn rows_and_columns() {
    check("v1", CASES);
}

#[test]
fn configurations_of_models() {
    check("config-pbtxt", CASES);
}

#[test]
fn models_that_come_with_their_load() {
    check("load", CASES);
}

#[test]
fn manifests_of_models() {
    check("manifest", CASES);
}

#[test]
fn images() {
    check("image", CASES_OF_PIXELS);
}

#[test]
fn stacks_of_frames() {
    check("stack", CASES_OF_PIXELS);
}

#[test]
fn maps_of_cameras() {
    check("npy", CASES);
}
