//! A parser under libFuzzer, which looks for files that take it where it has not been: `make fuzz`, which builds this with
//! `--cfg fuzzing`. `FUZZ_PARSER` says which; without it, they are listed, each with the folder of its files.
//!
//! Built without that, it gives files to a parser, to see again what one of them did:
//!
//! ```sh
//! cargo run --example fuzz -- stack target/fuzz/found/stack-crash-…
//! ```

#![cfg_attr(fuzzing, no_main)]

mod parsers;

use parsers::{PARSERS, Parser};

fn named(name: &str) -> &'static Parser {
    let names = PARSERS.map(|parser| parser.name).join(", ");
    PARSERS.iter().find(|parser| parser.name == name).unwrap_or_else(|| panic!("{name} is none of {names}"))
}

#[cfg(fuzzing)]
mod under_libfuzzer {
    #![allow(unsafe_code, reason = "how libFuzzer calls what it is given")]

    use super::{PARSERS, Parser, named};
    use std::sync::LazyLock;

    static PARSER: LazyLock<&Parser> = LazyLock::new(|| {
        let Ok(name) = std::env::var("FUZZ_PARSER") else {
            PARSERS.iter().for_each(|parser| println!("{} {}", parser.name, parser.files));
            std::process::exit(0)
        };
        named(&name)
    });

    /// A panic ends the run, but for those of the libraries that decode images: the server takes them for a refusal.
    fn init() {
        let image = PARSER.name == "image";
        let ends = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let library = panic.location().is_some_and(|at| at.file().contains("/registry/src/"));
            if !(image && library) {
                ends(panic);
            }
        }));
    }

    libfuzzer_sys::fuzz_target!(init: init(), |body: &[u8]| (PARSER.parse)(body));
}

#[cfg(not(fuzzing))]
fn main() {
    let mut words = std::env::args().skip(1);
    let parser = named(&words.next().expect("the name of a parser; then files, or all of the parser's own"));
    let mut paths: Vec<_> = words.map(std::path::PathBuf::from).collect();
    if paths.is_empty() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(parser.files);
        paths.extend(
            std::fs::read_dir(folder).expect("there is such a folder").flatten().map(|entry| entry.path()),
        );
    }
    for path in paths {
        let path = path.display();
        (parser.parse)(&std::fs::read(path.to_string()).unwrap_or_else(|error| panic!("{path}: {error}")));
        println!("{path}: nothing is wrong");
    }
}
