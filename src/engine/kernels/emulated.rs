//! Runs the device version of kernels on the host, in the emulator of `tests/machine`, for tests on machines without a GPU.
//! The emulator is compiled when the first test needs it.
#![allow(unsafe_code, reason = "the kernels are C++")]

#[allow(unreachable_pub, reason = "other tests have it as well")]
#[path = "../../../tests/fakes/library.rs"]
mod library;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::{
    ffi::{CString, c_char, c_int, c_void},
    sync::OnceLock,
};

type Launch = unsafe extern "C" fn(*const c_char, *const u32, *const u32, usize, *mut *mut c_void) -> c_int;

/// `machine_launch` of `tests/machine/machine.cpp`.
fn machine() -> Launch {
    static MACHINE: OnceLock<(Launch, Library)> = OnceLock::new();
    let loaded = MACHINE.get_or_init(|| {
        let recipe =
            library::Recipe { folders: &["machine"], name: "libmachine.so", also: "libmachine.so.1" };
        // SAFETY: the library's initialisers only register kernels; the type is that of machine.cpp.
        unsafe {
            let library = Library::open(Some(library::compiled(&recipe)), RTLD_NOW | RTLD_LOCAL);
            let library = library.expect("the machine loads");
            (*library.get(b"machine_launch").expect("machine.cpp has it"), library)
        }
    });
    loaded.0
}

/// Launches a kernel with one argument and waits for its end.
///
/// # Safety
/// The argument is what the kernel takes, and all memory that it refers to is allocated.
pub(super) unsafe fn launch<A>(kernel: &str, grid: [u32; 3], block: [u32; 3], shared: usize, argument: &A) {
    // SAFETY: the caller's promise.
    unsafe { launch_with(kernel, grid, block, shared, &mut [std::ptr::from_ref(argument).cast_mut().cast()]) }
}

/// The same with several arguments, given by their addresses.
///
/// # Safety
/// As for [`launch`].
pub(super) unsafe fn launch_with(
    kernel: &str,
    grid: [u32; 3],
    block: [u32; 3],
    shared: usize,
    arguments: &mut [*mut c_void],
) {
    // SAFETY: the caller's promise.
    let failed = unsafe { code(kernel, grid, block, shared, arguments) };
    assert_eq!(failed, 0, "{kernel} with grid {grid:?}, block {block:?}, {shared} bytes");
}

/// The same; returns 0, or the driver's error code.
///
/// # Safety
/// As for [`launch`].
unsafe fn code(
    kernel: &str,
    grid: [u32; 3],
    block: [u32; 3],
    shared: usize,
    arguments: &mut [*mut c_void],
) -> c_int {
    let name = CString::new(kernel).expect("names have no zero");
    // SAFETY: the arrays have three numbers each; the rest is the caller's promise.
    unsafe { machine()(name.as_ptr(), grid.as_ptr(), block.as_ptr(), shared, arguments.as_mut_ptr()) }
}

/// The identifiers that follow each `start` in a text.
fn names(text: &str, start: &str) -> Vec<String> {
    let name = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let mut found: Vec<String> = text.split(start).skip(1).map(name).collect();
    found.sort();
    found
}

#[test]
fn entries_are_those_of_the_ptx() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
    let mut generated = Vec::new();
    for file in std::fs::read_dir(format!("{folder}/generated")).expect("make kernels") {
        let text = std::fs::read_to_string(file.expect("an entry").path()).expect("text");
        generated.extend(names(&text, ".entry "));
    }
    generated.sort();
    let mut listed =
        names(&std::fs::read_to_string(format!("{folder}/entries.h")).expect("entries.h"), "    ENTRY(");
    listed.sort();
    assert_eq!(generated, listed);
}

#[test]
fn a_barrier_that_not_all_threads_reach_fails_the_launch() {
    for (kernel, threads, expected) in [
        ("fake_early_end", 1, 0),
        ("fake_early_end", 2, 719),
        ("fake_two_barriers", 1, 0),
        ("fake_two_barriers", 2, 719),
    ] {
        let mut nothing = std::ptr::null_mut::<f32>();
        // SAFETY: the kernels read nothing.
        let code = unsafe { code(kernel, [1; 3], [threads, 1, 1], 0, &mut [(&raw mut nothing).cast()]) };
        assert_eq!(code, expected, "{kernel} with {threads} threads");
    }
}
