//! NVIDIA's decoder of JPEGs, nvJPEG: its library, found at run time, and the calls of it that we make.
//!
//! Declared after the library's public documentation. Handles are the library's own; a status of 0 is success.
#![allow(unsafe_code)]

use crate::engine::cuda::driver::Version;
use cudarc::driver::sys::CUstream;
use libloading::os::unix::{Library as Shared, RTLD_LOCAL, RTLD_NOW};
use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
    sync::Arc,
};

/// By CUDA's major version, the newest first.
const NAMES: [(u32, &str); 3] = [(13, "libnvjpeg.so.13"), (12, "libnvjpeg.so.12"), (11, "libnvjpeg.so.11")];

/// `nvjpegBackend_t`: engines of the GPU for this alone, and what the library thinks best without them.
const BACKEND_HARDWARE: c_int = 3;
const BACKEND_DEFAULT: c_int = 0;
/// `nvjpegOutputFormat_t`: red, green and blue side by side.
const OUTPUT_RGBI: c_int = 5;

type Handle = *mut c_void;

/// `nvjpegImage_t`: where an image goes, plane by plane; of ours, all is in the first.
#[repr(C)]
pub(super) struct Target {
    pub(super) planes: [*mut u8; 4],
    pub(super) pitches: [usize; 4],
}

/// What a call gave other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status(c_int);

impl Status {
    /// The library's name of it.
    pub(super) fn name(self) -> &'static str {
        match self.0 {
            1 => "not initialized",
            2 => "invalid parameter",
            3 => "bad JPEG",
            4 => "JPEG not supported",
            5 => "allocator failure",
            6 => "execution failed",
            7 => "architecture mismatch",
            8 => "internal error",
            9 => "implementation not supported",
            10 => "incomplete bitstream",
            _ => "a status that is not documented",
        }
    }

    /// Whether a file is at fault, and not the library or the GPU.
    pub(super) fn is_of_file(self) -> bool {
        matches!(self.0, 3 | 4 | 9 | 10)
    }

    /// Whether memory was lacking.
    pub(super) fn is_of_memory(self) -> bool {
        self.0 == 5
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (nvJPEG's status {})", self.name(), self.0)
    }
}

fn checked(status: c_int) -> Result<(), Status> {
    if status == 0 { Ok(()) } else { Err(Status(status)) }
}

macro_rules! calls {
    ($( $name:ident = $symbol:literal: fn($($argument:ty),*); )*) => {
        /// The library, and where its functions are.
        pub(super) struct Library {
            $( $name: unsafe extern "C" fn($($argument),*) -> c_int, )*
            name: &'static str,
            /// Its functions are called as long as this is there.
            _shared: Shared,
        }

        impl Library {
            fn open(name: &'static str) -> Result<Library, libloading::Error> {
                // SAFETY: runs the initialisers of NVIDIA's library, which are made for that; the types are those of its
                // documentation.
                unsafe {
                    let shared = Shared::open(Some(name), RTLD_NOW | RTLD_LOCAL)?;
                    Ok(Library { $( $name: *shared.get($symbol)?, )* name, _shared: shared })
                }
            }
        }
    };
}

calls! {
    create = b"nvjpegCreateEx": fn(c_int, *mut c_void, *mut c_void, c_uint, *mut Handle);
    destroy = b"nvjpegDestroy": fn(Handle);
    state_create = b"nvjpegJpegStateCreate": fn(Handle, *mut Handle);
    state_destroy = b"nvjpegJpegStateDestroy": fn(Handle);
    batched_initialize = b"nvjpegDecodeBatchedInitialize": fn(Handle, Handle, c_int, c_int, c_int);
    decode_batched = b"nvjpegDecodeBatched": fn(Handle, Handle, *const *const u8, *const usize, *mut Target, CUstream);
}

impl Library {
    /// The newest that a driver runs which knows this CUDA.
    ///
    /// # Errors
    /// What was looked for, and what to do.
    pub(super) fn find(driver: Version) -> Result<Arc<Library>, String> {
        let fitting = NAMES.iter().filter(|(major, _)| *major <= driver.major());
        let mut tried = Vec::new();
        for (_, name) in fitting {
            match Library::open(name) {
                Ok(library) => return Ok(Arc::new(library)),
                Err(error) => tried.push(error.to_string()),
            }
        }
        Err(format!(
            "nvJPEG cannot be used ({}): it comes with CUDA's toolkit, and as the Python package nvidia-nvjpeg, whose folder \
             belongs on LD_LIBRARY_PATH",
            tried.join("; ")
        ))
    }

    /// What it is called.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }
}

/// A decoder of batches, in the context that was current when it was made. For one thread.
pub(super) struct Session {
    library: Arc<Library>,
    handle: Handle,
    state: Handle,
    hardware: bool,
    /// What it is made ready for.
    files: usize,
}

// SAFETY: the library ties neither handle to a thread; one at a time uses them.
unsafe impl Send for Session {}

impl Session {
    /// On the GPU's engines for JPEGs where it has any, else as the library thinks best.
    pub(super) fn new(library: &Arc<Library>) -> Result<Session, Status> {
        let make = |backend| {
            let mut handle = ptr::null_mut();
            // SAFETY: no allocators of ours; one handle is written.
            let made =
                unsafe { (library.create)(backend, ptr::null_mut(), ptr::null_mut(), 0, &raw mut handle) };
            checked(made).map(|()| handle)
        };
        let (handle, hardware) = match make(BACKEND_HARDWARE) {
            Ok(handle) => (handle, true),
            Err(_) => (make(BACKEND_DEFAULT)?, false),
        };
        let mut state = ptr::null_mut();
        // SAFETY: the handle was just made; one handle is written.
        let made = checked(unsafe { (library.state_create)(handle, &raw mut state) });
        let session = Session { library: Arc::clone(library), handle, state, hardware, files: 0 };
        made.map(|()| session)
    }

    /// Whether it decodes on engines for that alone.
    pub(super) fn hardware(&self) -> bool {
        self.hardware
    }

    /// Begins to decode files, each to its place, on a stream.
    ///
    /// # Safety
    /// There is a target for each file, with room on the device for all of its rows; and files and targets are there until the
    /// stream has come past this.
    pub(super) unsafe fn decode(
        &mut self,
        files: &[&[u8]],
        targets: &mut [Target],
        stream: CUstream,
    ) -> Result<(), Status> {
        assert_eq!(files.len(), targets.len(), "a place for each file");
        if self.files != files.len() {
            let count = files.len() as c_int;
            // SAFETY: both handles are ours.
            let ready =
                unsafe { (self.library.batched_initialize)(self.handle, self.state, count, 1, OUTPUT_RGBI) };
            self.files = 0;
            checked(ready)?;
            self.files = files.len();
        }
        let starts: Vec<*const u8> = files.iter().map(|file| file.as_ptr()).collect();
        let lengths: Vec<usize> = files.iter().map(|file| file.len()).collect();
        // SAFETY: as many pointers and lengths as it was made ready for, of files that are there; the rest is the caller's
        // promise.
        checked(unsafe {
            (self.library.decode_batched)(
                self.handle,
                self.state,
                starts.as_ptr(),
                lengths.as_ptr(),
                targets.as_mut_ptr(),
                stream,
            )
        })
    }

    /// Leaves what it has to the context, which is broken: calls into it may do anything.
    pub(super) fn abandon(&mut self) {
        self.handle = ptr::null_mut();
        self.state = ptr::null_mut();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: each was made by the library and is given back once, the state first; nothing of it is on its way (`decode`).
        unsafe {
            if !self.state.is_null() {
                (self.library.state_destroy)(self.state);
            }
            if !self.handle.is_null() {
                (self.library.destroy)(self.handle);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_the_library_is_told_what_was_looked_for() {
        // None is made for so old a driver, so none is loaded whatever the machine has.
        let why = Library::find(Version::new(10, 2)).err().expect("none fits");
        assert!(why.starts_with("nvJPEG cannot be used (): it comes with") && !why.contains('\n'), "{why}");
    }

    #[test]
    fn a_status_is_of_the_file_of_memory_or_of_the_decoder() {
        let kinds = |status: c_int| (Status(status).is_of_file(), Status(status).is_of_memory());
        for status in [3, 4, 9, 10] {
            assert_eq!(kinds(status), (true, false));
        }
        assert_eq!(kinds(5), (false, true));
        for status in [1, 2, 6, 7, 8, 99] {
            assert_eq!(kinds(status), (false, false));
        }
    }
}
