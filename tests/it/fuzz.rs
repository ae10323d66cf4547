//! Bodies that nobody meant to send: each parser gets files of `tests/fixtures/fuzz`, changed at random, and must answer with a
//! value that holds together or with an error, never with a panic.
//!
//! `FUZZ_CASES` and `FUZZ_SEED` run more, or the same again; a failure prints both.

use bytes::Bytes;
use ocelli::{
    engine::{DataType, Dim, Tensor, TensorSpec},
    http::{
        multipart::{self, MultipartLimits},
        wire::{binary, predict, raw, request, v1},
    },
};
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Enough to touch every change of every file many times, and done in seconds.
const CASES: u64 = 30_000;

/// What parsers trip over, more often than chance would have it.
const TOKENS: [&[u8]; 16] = [
    b"-1",
    b"0",
    b"18446744073709551616",
    b"1e999",
    b"[[[[[[[[[[[[[[[[[[",
    b"]",
    b"{",
    b"\"",
    b"\\u",
    b"null",
    b"\xff\xfe",
    b"\r\n--B",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"99999999999999999",
    b",",
];

/// A generator of numbers: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// One of the files, changed in one to eight places.
    fn body(&mut self, files: &[Vec<u8>]) -> Vec<u8> {
        let mut body = files[self.below(files.len())].clone();
        for _ in 0..=self.below(8) {
            let at = self.below(body.len() + 1);
            let end = (at + self.below(16)).min(body.len());
            match self.below(6) {
                0 if at < body.len() => body[at] ^= 1 << self.below(8),
                1 => drop(body.drain(at..end)),
                2 => {
                    let again = body[at..end].to_vec();
                    body.splice(at..at, again);
                }
                3 => drop(body.splice(at..at, TOKENS[self.below(TOKENS.len())].iter().copied())),
                4 => {
                    let other = &files[self.below(files.len())];
                    let from = self.below(other.len());
                    body.splice(at..end, other[from..].iter().copied());
                }
                _ => body.truncate(at),
            }
        }
        body
    }
}

fn check(folder: &str, parse: impl Fn(Vec<u8>)) {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect(name));
    let (cases, seed) = (number("FUZZ_CASES", CASES), number("FUZZ_SEED", 7));
    let path = super::support::root().join("tests/fixtures/fuzz").join(folder);
    let mut paths: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let files: Vec<Vec<u8>> = paths.into_iter().map(|path| fs::read(path).unwrap()).collect();
    for file in &files {
        parse(file.clone());
    }
    let mut random = Random(seed);
    for case in 0..cases {
        let body = random.body(&files);
        let text = String::from_utf8_lossy(&body).into_owned();
        let parsed = catch_unwind(AssertUnwindSafe(|| parse(body)));
        assert!(parsed.is_ok(), "{folder}: case {case} of FUZZ_SEED={seed}: {text}");
    }
}

fn specs() -> Vec<TensorSpec> {
    let spec = |name: &str, datatype, shape: &[Dim]| TensorSpec {
        name: name.into(),
        datatype,
        shape: shape.to_vec(),
    };
    vec![spec("x", DataType::Fp32, &[Dim::Free, Dim::Fixed(4)]), spec("c", DataType::Bytes, &[Dim::Free])]
}

/// The bytes of a tensor are those of its shape.
fn holds_together(tensor: &Tensor) {
    binary::check("it", tensor).unwrap();
}

#[test]
fn inference_requests_in_json() {
    check("oip-json", |body| {
        if let Ok(request) = request::read(&Bytes::from(body), None, &specs()) {
            request.inputs.iter().for_each(|input| holds_together(&input.tensor));
            let _ = (request.timeout(), request.priority());
        }
    });
}

#[test]
fn inference_requests_with_binary_tensors() {
    check("oip-binary", |file| {
        // The first line is what the header says.
        let line = file.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        let length = std::str::from_utf8(&file[..line]).ok().and_then(|text| text.parse().ok());
        let body = Bytes::from(file).slice(line..);
        let body = body.slice(body.len().min(1)..);
        let read = match length {
            Some(0) => raw::read(body, &specs()[..1], true),
            length => request::read(&body, length, &specs()),
        };
        if let Ok(request) = read {
            request.inputs.iter().for_each(|input| holds_together(&input.tensor));
        }
    });
}

#[test]
fn forms_of_several_parts() {
    check("multipart", |body| {
        let body = Bytes::from(body);
        let limits = MultipartLimits { parts_max: 8, ..MultipartLimits::default() };
        if let Ok(parts) = multipart::parts(&body, "B", &limits) {
            assert!(
                parts.len() <= 8 && parts.iter().map(|part| part.bytes.len()).sum::<usize>() <= body.len()
            );
        }
    });
}

#[test]
fn images_in_base64() {
    check("base64", |body| {
        if let Ok(read) = predict::instances(&body, 8) {
            assert!((1..=8).contains(&read.images.len()));
        }
    });
}

#[test]
fn rows_and_columns() {
    check("v1", |body| {
        for takes_images in [false, true] {
            if let Ok((_, v1::Asked::Tensors(inputs))) = v1::read(&body, &specs(), takes_images, 8) {
                inputs.iter().for_each(|input| holds_together(&input.tensor));
            }
        }
    });
}
