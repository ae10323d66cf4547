//! The fake CUDA driver in this process: devices, faults, books.
//!
//! [`FakeCuda::start`] before the first use of cudarc: a `dlopen` of `libcuda.so` then finds the library that is already there, also
//! where the machine has a driver of its own. What can be said to it is in `tests/fake_cuda/script.cpp`.

use std::{
    collections::BTreeMap,
    ffi::{CString, c_char},
    path::PathBuf,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;

use super::{
    library::{Recipe, compiled},
    text,
};

/// Where the library lies, compiled if it was not yet. A process that is started with its folder in `LD_LIBRARY_PATH` takes it for
/// its driver, reads its script from `FAKE_CUDA`, and leaves its books in the file that `FAKE_CUDA_BOOKS` names.
pub fn library() -> PathBuf {
    compiled(&Recipe { folders: &["fake_cuda", "machine"], name: "libcuda.so", also: "libcuda.so.1" })
}

type Tell = unsafe extern "C" fn(*const c_char) -> *mut c_char;
type Report = unsafe extern "C" fn() -> *mut c_char;

struct Entries {
    tell: Tell,
    books: Report,
    log: Report,
    free: text::Free,
    /// Never closed: threads of it may run until the process ends.
    _library: Library,
}

#[allow(unsafe_code, reason = "entries of a C library that is loaded at run time")]
fn entries() -> &'static Entries {
    static ENTRIES: OnceLock<Entries> = OnceLock::new();
    ENTRIES.get_or_init(|| {
        // SAFETY: what runs at load reads the environment; the types are those of script.cpp and books.cpp.
        unsafe {
            let library =
                Library::open(Some(library()), RTLD_NOW | RTLD_LOCAL).expect("the fake driver loads");
            Entries {
                tell: *library.get(b"fake_cuda_tell").expect("script.cpp has it"),
                books: *library.get(b"fake_cuda_books").expect("books.cpp has it"),
                log: *library.get(b"fake_cuda_log").expect("books.cpp has it"),
                free: *library.get(b"fake_cuda_free").expect("books.cpp has it"),
                _library: library,
            }
        }
    })
}

#[allow(unsafe_code, reason = "an entry of a C library")]
fn obeyed(line: &str) -> Result<(), String> {
    let words = CString::new(line).expect("lines have no zero byte");
    // SAFETY: the library reads the line and keeps nothing of it, and takes back what it gives.
    let wrong = unsafe { text::taken((entries().tell)(words.as_ptr()), entries().free) };
    wrong.map_or(Ok(()), |why| Err(format!("fake driver: {line}: {why}")))
}

/// Makes the fake this process's driver, as its environment has it. [`FakeCuda::start`] does too, and sets devices of its own.
pub fn load() {
    entries();
}

/// How long a server may take to end whose test has failed.
const LEAVING: Duration = Duration::from_secs(10);

/// The fake driver, held by one test at a time. When it is dropped, nothing may be left of what was taken.
pub struct FakeCuda {
    _turn: MutexGuard<'static, ()>,
}

impl FakeCuda {
    /// Waits for the test before, and begins anew with these devices: `"count=2 memory=8GiB"`.
    pub fn start(devices: &str) -> FakeCuda {
        static TURN: Mutex<()> = Mutex::new(());
        // First: one that cannot be had is not dropped.
        entries();
        let turn = TURN.lock();
        let fake = FakeCuda { _turn: turn };
        fake.tell(&format!("devices {devices}"));
        fake
    }

    /// Says a line of the script; fails the test where the fake does not understand it.
    pub fn tell(&self, line: &str) {
        obeyed(line).unwrap_or_else(|why| panic!("{why}"));
    }

    /// What is held now.
    #[allow(unsafe_code, reason = "an entry of a C library")]
    pub fn books(&self) -> Books {
        // SAFETY: it takes nothing, and takes back what it gives.
        let text = unsafe { text::taken((entries().books)(), entries().free) }.expect("books are never null");
        serde_json::from_str(&text).expect("books.cpp and Books agree")
    }

    /// The operations that ended since the start, in that order.
    #[allow(unsafe_code, reason = "an entry of a C library")]
    pub fn log(&self) -> Vec<Operation> {
        #[derive(Deserialize)]
        struct Log {
            forgotten: u64,
            operations: Vec<Operation>,
        }
        // SAFETY: it takes nothing, and takes back what it gives.
        let text = unsafe { text::taken((entries().log)(), entries().free) }.expect("the log is never null");
        let log: Log = serde_json::from_str(&text).expect("books.cpp and Operation agree");
        assert_eq!(log.forgotten, 0, "more operations than the log holds");
        log.operations
    }
}

impl Drop for FakeCuda {
    fn drop(&mut self) {
        // What hangs would be waited for by the next test.
        let cleared = obeyed("clear");
        if !thread::panicking() {
            cleared.unwrap_or_else(|why| panic!("{why}"));
            self.books().assert_empty();
            return;
        }
        // What a test that fails leaves behind ends by itself, and is not the next one's.
        let patience = Instant::now() + LEAVING;
        while Instant::now() < patience && self.books().devices.iter().any(|device| device.contexts > 0) {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What is held of the driver, and what was called.
#[derive(Debug, Deserialize)]
pub struct Books {
    pub devices: Vec<DeviceBooks>,
    /// By the name of the call.
    pub calls: BTreeMap<String, u64>,
}

impl Books {
    /// Fails with the books of every device on which something is left.
    pub fn assert_empty(&self) {
        let held: Vec<&DeviceBooks> = self.devices.iter().filter(|device| !device.is_empty()).collect();
        assert!(held.is_empty(), "left on the fake driver: {held:#?}");
    }

    /// How often a call was made.
    pub fn calls(&self, name: &str) -> u64 {
        self.calls.get(name).copied().unwrap_or(0)
    }
}

/// What is held of one device. Sizes are bytes.
#[derive(Debug, Deserialize)]
pub struct DeviceBooks {
    pub ordinal: u64,
    pub name: String,
    pub uuid: String,
    pub pci_bus: u64,
    pub memory: u64,
    /// Held by other processes.
    pub foreign: u64,
    /// Held by this process, with what pools keep and what the context takes.
    pub own: u64,
    /// References to the primary context.
    pub contexts: u64,
    /// How often it was created.
    pub contexts_made: u64,
    /// The error that ended the context, or 0.
    pub sticky: u64,
    /// The error since the device is off the bus, or 0.
    pub lost: u64,
    pub allocations: u64,
    pub allocated: u64,
    pub pool_used: u64,
    pub pool_reserved: u64,
    /// Beside the default one.
    pub pools: u64,
    pub pinned: u64,
    pub registered: u64,
    pub streams: u64,
    pub events: u64,
    pub modules: u64,
    pub graphs: u64,
    pub executables: u64,
    /// Things that were there still when a healthy context ended.
    pub left_behind: u64,
    /// Copies, fills and kernels that have begun and not ended.
    pub running: u64,
    pub launches: u64,
    pub copied_in: u64,
    pub copied_out: u64,
}

impl DeviceBooks {
    /// Whether all that was taken was given back, and no context ended with something in it.
    pub fn is_empty(&self) -> bool {
        let held = [
            self.own,
            self.contexts,
            self.allocations,
            self.pools,
            self.pinned,
            self.registered,
            self.streams,
            self.events,
            self.modules,
            self.graphs,
            self.executables,
            self.left_behind,
        ];
        held.iter().all(|count| *count == 0)
    }
}

/// One operation of a stream, with its time since the library was loaded.
#[derive(Debug, Clone, Deserialize)]
pub struct Operation {
    pub device: u64,
    /// Streams are numbered as they were created.
    pub stream: u64,
    /// `copy_in`, `copy_out`, `copy`, `memset`, `kernel` or `host`.
    pub kind: String,
    /// The kernel's name, or nothing.
    pub kernel: String,
    pub bytes: u64,
    pub begin_ns: u64,
    pub end_ns: u64,
    /// What it ended its context with, or 0.
    pub code: u64,
}

impl Operation {
    /// Whether both ran at one time.
    pub fn overlaps(&self, other: &Operation) -> bool {
        self.begin_ns < other.end_ns && other.begin_ns < self.end_ns
    }
}
