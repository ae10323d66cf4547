//! The fake nvJPEG: decodes with the host's decoder, mostly in the order of the fake driver's streams. What can be said to it is in
//! `tests/fake_nvjpeg/nvjpeg.cpp`. Hold a [`FakeNvjpeg`] while it is used: its state is the process's.

use std::{
    ffi::{CString, c_char, c_int, c_long},
    path::PathBuf,
    slice,
    sync::OnceLock,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use parking_lot::{Mutex, MutexGuard};
use turbojpeg::{Decompressor, Image, PixelFormat};

use super::library::{Recipe, compiled};

/// Where the library lies, compiled if it was not yet. Whoever looks for nvJPEG for CUDA 12 finds it once it is loaded.
pub fn library() -> PathBuf {
    compiled(&Recipe { folders: &["fake_nvjpeg"], name: "libnvjpeg.so.12", also: "libnvjpeg.so" })
}

const BAD_JPEG: c_int = 3;

type Decode = unsafe extern "C" fn(*const u8, usize, *mut c_int, *mut c_int, *mut u8) -> c_int;

struct Entries {
    tell: unsafe extern "C" fn(*const c_char) -> bool,
    books: unsafe extern "C" fn(*mut c_long),
    /// Never closed: the product may hold it still.
    _library: Library,
}

#[allow(unsafe_code, reason = "entries of a C library that is loaded at run time")]
fn entries() -> &'static Entries {
    static ENTRIES: OnceLock<Entries> = OnceLock::new();
    ENTRIES.get_or_init(|| {
        // SAFETY: nothing runs at load; the types are those of nvjpeg.cpp.
        unsafe {
            let library =
                Library::open(Some(library()), RTLD_NOW | RTLD_LOCAL).expect("the fake nvJPEG loads");
            let take: unsafe extern "C" fn(Decode) =
                *library.get(b"fake_nvjpeg_use").expect("nvjpeg.cpp has it");
            take(decode);
            Entries {
                tell: *library.get(b"fake_nvjpeg_tell").expect("nvjpeg.cpp has it"),
                books: *library.get(b"fake_nvjpeg_books").expect("nvjpeg.cpp has it"),
                _library: library,
            }
        }
    })
}

/// The host's decoder, without the product's rules: as forgiving as one in hardware.
#[allow(unsafe_code, reason = "called by a C library")]
unsafe extern "C" fn decode(
    bytes: *const u8,
    length: usize,
    width: *mut c_int,
    height: *mut c_int,
    rgb: *mut u8,
) -> c_int {
    let decoded = || {
        // SAFETY: so many bytes are there, says the caller.
        let bytes = unsafe { slice::from_raw_parts(bytes, length) };
        let mut decompressor = Decompressor::new()?;
        let header = decompressor.read_header(bytes)?;
        // SAFETY: both are places for a number.
        unsafe {
            *width = header.width as c_int;
            *height = header.height as c_int;
        }
        if rgb.is_null() {
            return Ok(());
        }
        let (pitch, format) = (header.width * 3, PixelFormat::RGB);
        // SAFETY: the caller has made room for the size that it was told.
        let pixels = unsafe { slice::from_raw_parts_mut(rgb, pitch * header.height) };
        let (width, height) = (header.width, header.height);
        decompressor.decompress(bytes, Image { pixels, width, pitch, height, format })
    };
    match decoded() {
        Ok(()) => 0,
        Err(_) => BAD_JPEG,
    }
}

/// What there is of it, and what it has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Books {
    pub handles: i64,
    pub states: i64,
    pub batches: i64,
    pub files: i64,
    pub made: i64,
}

/// The fake, held by one test at a time.
pub struct FakeNvjpeg {
    _turn: MutexGuard<'static, ()>,
}

impl FakeNvjpeg {
    /// Waits for the test before, and begins anew.
    pub fn start() -> FakeNvjpeg {
        static TURN: Mutex<()> = Mutex::new(());
        let fake = FakeNvjpeg { _turn: TURN.lock() };
        fake.tell("clear");
        fake
    }

    /// Says a line of the script.
    #[allow(unsafe_code, reason = "an entry of a C library")]
    pub fn tell(&self, line: &str) {
        let words = CString::new(line).expect("lines have no zero byte");
        // SAFETY: the library reads the line and keeps nothing of it.
        assert!(unsafe { (entries().tell)(words.as_ptr()) }, "the fake nvJPEG does not understand {line:?}");
    }

    /// What is held now, and what was done.
    #[allow(unsafe_code, reason = "an entry of a C library")]
    pub fn books(&self) -> Books {
        let mut books = [0; 5];
        // SAFETY: five numbers are written.
        unsafe { (entries().books)(books.as_mut_ptr()) };
        let [handles, states, batches, files, made] = books;
        Books { handles, states, batches, files, made }
    }
}

impl Drop for FakeNvjpeg {
    fn drop(&mut self) {
        self.tell("clear");
        if !std::thread::panicking() {
            let left = self.books();
            assert_eq!((left.handles, left.states), (0, 0), "left in the fake nvJPEG");
        }
    }
}
