//! Runs kernels as they are for the device, on the host: what `kernels/emulate.h` makes of them, for tests on machines
//! without a GPU. In development builds on glibc only.
#![allow(unsafe_code, reason = "the kernels are C++")]

use std::ffi::{CString, c_char, c_int, c_void};

// SAFETY: the signature is that of `kernels/emulate.h`.
unsafe extern "C" {
    fn ocelli_emulated_launch(
        name: *const c_char,
        grid: *const u32,
        block: *const u32,
        shared: usize,
        arguments: *mut *mut c_void,
    ) -> c_int;
}

/// Launches a kernel with one argument and waits for its end.
///
/// # Safety
/// The argument is what the kernel takes, and all that it leads to is there.
pub(super) unsafe fn launch<A>(kernel: &str, grid: [u32; 3], block: [u32; 3], shared: usize, argument: &A) {
    // SAFETY: the caller's promise.
    unsafe { launch_with(kernel, grid, block, shared, &mut [std::ptr::from_ref(argument).cast_mut().cast()]) }
}

/// The same with several arguments, given by their places.
///
/// # Safety
/// As of [`launch`].
pub(super) unsafe fn launch_with(
    kernel: &str,
    grid: [u32; 3],
    block: [u32; 3],
    shared: usize,
    arguments: &mut [*mut c_void],
) {
    let name = CString::new(kernel).expect("names have no zero");
    // SAFETY: the arrays have three numbers each; the rest is the caller's promise.
    let failed = unsafe {
        ocelli_emulated_launch(name.as_ptr(), grid.as_ptr(), block.as_ptr(), shared, arguments.as_mut_ptr())
    };
    assert_eq!(failed, 0, "{kernel} with grid {grid:?}, block {block:?}, {shared} bytes");
}

/// The names after `start` in a text, up to a character that is in none.
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
