//! The fake NVML: GPUs whose readings a test sets.
//!
//! Where it is loaded from is [`library`]; `Nvml::builder().lib_path(library())` takes it as it is. What can be said to it is in
//! `tests/fake_nvml/script.cpp`. Its state is the process's: hold a [`FakeNvml`] while it is used.

use std::{
    ffi::{CString, c_char},
    path::PathBuf,
    sync::OnceLock,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use parking_lot::{Mutex, MutexGuard};

use super::{
    library::{Recipe, compiled},
    text,
};

/// Where the library lies, compiled if it was not yet. A process that is started with its folder in `LD_LIBRARY_PATH` finds it by
/// NVML's own name, and it reads its script from `FAKE_NVML`.
pub fn library() -> PathBuf {
    compiled(&Recipe { folders: &["fake_nvml"], name: "libnvidia-ml.so.1", also: "libnvidia-ml.so" })
}

struct Entries {
    tell: unsafe extern "C" fn(*const c_char) -> *mut c_char,
    free: text::Free,
    /// Never closed: callers may hold it still.
    _library: Library,
}

#[allow(unsafe_code, reason = "entries of a C library that is loaded at run time")]
fn entries() -> &'static Entries {
    static ENTRIES: OnceLock<Entries> = OnceLock::new();
    ENTRIES.get_or_init(|| {
        // SAFETY: what runs at load reads the environment; the types are those of script.cpp.
        unsafe {
            let library = Library::open(Some(library()), RTLD_NOW | RTLD_LOCAL).expect("the fake NVML loads");
            Entries {
                tell: *library.get(b"fake_nvml_tell").expect("script.cpp has it"),
                free: *library.get(b"fake_nvml_free").expect("script.cpp has it"),
                _library: library,
            }
        }
    })
}

#[allow(unsafe_code, reason = "an entry of a C library")]
fn obeyed(line: &str) -> Result<(), String> {
    let entries = entries();
    let words = CString::new(line).expect("lines have no zero byte");
    // SAFETY: the library reads the line and keeps nothing of it, and takes back what it gives.
    let wrong = unsafe { text::taken((entries.tell)(words.as_ptr()), entries.free) };
    wrong.map_or(Ok(()), |why| Err(format!("fake NVML: {line}: {why}")))
}

/// The fake NVML, held by one test at a time.
pub struct FakeNvml {
    _turn: MutexGuard<'static, ()>,
}

impl FakeNvml {
    /// Waits for the test before, and begins anew with these GPUs: `"count=2 memory=80GiB"`, or `"follow"` for the devices of the
    /// fake CUDA driver, which a test that uses both starts first.
    pub fn start(gpus: &str) -> FakeNvml {
        static TURN: Mutex<()> = Mutex::new(());
        entries();
        let fake = FakeNvml { _turn: TURN.lock() };
        fake.tell(&format!("gpus {gpus}"));
        fake
    }

    /// Says a line of the script; fails the test where the fake does not understand it.
    pub fn tell(&self, line: &str) {
        obeyed(line).unwrap_or_else(|why| panic!("{why}"));
    }
}

impl Drop for FakeNvml {
    fn drop(&mut self) {
        // What hangs would be waited for by the next test.
        let _ = obeyed("clear");
    }
}
