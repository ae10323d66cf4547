//! Part of the build script: the messages and services that are defined beside this file, as Rust. The definitions are read
//! by a library, so that no `protoc` is needed.

use std::{env, fs, path::PathBuf};

const FOLDER: &str = "src/protocol";
const FILES: [&str; 2] = ["inference.proto", "health.proto"];

/// Writes one Rust file per package, and `descriptors.bin`: the definitions themselves, which `config.pbtxt` is read by and
/// which gRPC's reflection tells.
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
        // Tensors stay in the memory in which they came.
        .bytes(".inference")
        .btree_map(".inference")
        .compile_fds(compiler.file_descriptor_set())
        .expect("definitions that were read can be generated");
}
