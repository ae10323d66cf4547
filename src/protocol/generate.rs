//! Part of the build script: generates Rust from the messages and services that are defined beside this file. A library parses
//! the definitions, so that no `protoc` is needed.

use std::{env, fs, path::PathBuf};

const FOLDER: &str = "src/protocol";
const FILES: [&str; 3] = ["inference.proto", "health.proto", "torchserve.proto"];

/// Writes one Rust file per package, and `descriptors.bin`: the definitions themselves. They are used to parse `config.pbtxt`,
/// and gRPC's reflection serves them.
pub(crate) fn generate() {
    println!("cargo:rerun-if-changed={FOLDER}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut compiler = protox::Compiler::new([FOLDER]).expect("the folder is there");
    compiler.include_imports(true);
    if let Err(mistake) = compiler.open_files(FILES) {
        panic!("{mistake:?}");
    }
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())
        .expect("OUT_DIR can be written to");
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        // As `Bytes`, tensors and files stay in the buffer in which they were received.
        .bytes(".")
        .btree_map(".")
        .compile_fds(compiler.file_descriptor_set())
        .expect("definitions that were read can be generated");
}
