//! Builds the host side of the kernels: each source once per instruction set, chosen among at run time.
//!
//! The sources are C++ in the vector extension that GCC and Clang share. Nothing of the C++ library is used.

#[path = "../src/protocol/generate.rs"]
mod protocol;

use std::{env, path::PathBuf, thread};

/// Sources with host entries. What they include is watched too.
const SOURCES: [&str; 3] = ["gauss_mle.cu", "math_check.cu", "spots.cu"];

/// What an object of each instruction set is compiled with, by the architecture. A machine that lacks one never calls
/// into its objects: `engine::kernels::InstructionSet` knows what each needs.
fn instruction_sets(arch: &str) -> &'static [(&'static str, &'static [&'static str])] {
    match arch {
        "x86_64" => &[
            ("baseline", &[]),
            ("avx2", &["-mavx2", "-mfma"]),
            (
                "avx512",
                &[
                    "-mavx2",
                    "-mfma",
                    "-mavx512f",
                    "-mavx512bw",
                    "-mavx512dq",
                    "-mavx512vl",
                    "-mprefer-vector-width=512",
                ],
            ),
        ],
        _ => &[("baseline", &[])],
    }
}

fn main() {
    println!("cargo:rerun-if-changed=kernels");
    protocol::generate();
    // Tests run the code for the device on the host, in fibers, which not every C library has.
    println!("cargo:rustc-check-cfg=cfg(kernels_emulated)");
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu") {
        println!("cargo:rustc-cfg=kernels_emulated");
    }
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    // Side by side: the widest takes as long as the others together.
    thread::scope(|scope| {
        for (name, flags) in instruction_sets(&arch) {
            scope.spawn(|| compile(name, flags));
        }
    });
}

/// How all kernels are compiled for the host.
const FLAGS: [&str; 10] = [
    "-fno-exceptions",
    "-fno-rtti",
    // Multiplications and additions may fuse, and no flag or trap of floating point is looked at: the rules of IEEE
    // hold otherwise, since bad input is found by its NaN.
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    // A loop is as fast in every program that has it, wherever the linker puts it: where functions begin at 16 bytes, fits differ by 2 %.
    "-falign-functions=64",
    // Vectors never cross an object's border.
    "-Wno-psabi",
    "-Wno-unknown-pragmas",
    // Of a variable in the compiler's own header of intrinsics.
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
];

fn compile(name: &str, flags: &[&str]) {
    let mut build = cc::Build::new();
    // Objects are named after their source: each set needs a folder of its own.
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(name);
    build
        .out_dir(out)
        .cpp(true)
        .std("c++17")
        // No exception, type information or template of the library is used, so nothing is linked.
        .cpp_link_stdlib(None)
        // Also in development: unoptimised, these would be a hundred times slower.
        .opt_level(3)
        .define("ISA", name);
    for flag in FLAGS {
        build.flag_if_supported(flag);
    }
    for flag in flags {
        build.flag(flag);
    }
    // The ending .cu is not one that a C++ compiler knows.
    build.flag("-x").flag("c++");
    for source in SOURCES {
        build.file(format!("kernels/{source}"));
    }
    build.compile(&format!("ocelli_kernels_{name}"));
}
