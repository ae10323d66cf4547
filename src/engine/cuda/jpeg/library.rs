//! nvJPEG, NVIDIA's JPEG decoder: the library, found at run time, and the functions that we call.
//!
//! The declarations follow the library's public documentation. Handles belong to the library; a status of 0 is success.
#![allow(unsafe_code)]

use crate::engine::gpu::Version;
use cudarc::driver::sys::CUstream;
use libloading::os::unix::{Library as Shared, RTLD_LOCAL, RTLD_NOW};
use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
    sync::Arc,
};

/// By CUDA's major version, the newest first.
const NAMES: [(u32, &str); 3] = [(13, "libnvjpeg.so.13"), (12, "libnvjpeg.so.12"), (11, "libnvjpeg.so.11")];

/// `nvjpegBackend_t`: the GPU's dedicated decoding hardware, and the library's own choice without it.
const BACKEND_HARDWARE: c_int = 3;
const BACKEND_DEFAULT: c_int = 0;
/// `nvjpegOutputFormat_t`: red, green and blue interleaved.
const OUTPUT_RGBI: c_int = 5;

type Handle = *mut c_void;

/// `nvjpegImage_t`: where an image is written, plane by plane. We use only the first plane.
#[repr(C)]
pub(super) struct Target {
    pub(super) planes: [*mut u8; 4],
    pub(super) pitches: [usize; 4],
}

/// The status of a call that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status(c_int);

impl Status {
    /// The library's name for it.
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

    /// Whether a file is at fault, rather than the library or the GPU.
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
        /// The library, with the addresses of its functions.
        pub(super) struct Library {
            $( $name: unsafe extern "C" fn($($argument),*) -> c_int, )*
            name: &'static str,
            /// Keeps the library loaded.
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
    /// The newest version that a driver of this CUDA version can run.
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

    /// The file name of the library.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }
}

/// A decoder of batches, in the context that was current when it was created. For one thread.
pub(super) struct Session {
    library: Arc<Library>,
    handle: Handle,
    state: Handle,
    hardware: bool,
    /// The number of files that it is initialised for.
    files: usize,
}

// SAFETY: the library ties neither handle to a thread; one thread at a time uses them.
unsafe impl Send for Session {}

impl Session {
    /// A decoder that uses the GPU's JPEG hardware if it has any, otherwise the library's default.
    pub(super) fn new(library: &Arc<Library>) -> Result<Session, Status> {
        let make = |backend| {
            let mut handle = ptr::null_mut();
            // SAFETY: null means the library's own allocators; one handle is written.
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

    /// Whether it decodes in dedicated hardware.
    pub(super) fn hardware(&self) -> bool {
        self.hardware
    }

    /// Enqueues the decoding of files, each to its target, on a stream.
    ///
    /// # Safety
    /// There is a target for each file, with room on the device for all of its rows; files and targets stay allocated until the
    /// stream has passed this.
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
        // SAFETY: as many pointers and lengths as the decoder was initialised for, of files that are alive; the rest is the
        // caller's promise.
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

    /// Leaks the handles, since the context is broken: calls into it may do anything.
    pub(super) fn abandon(&mut self) {
        self.handle = ptr::null_mut();
        self.state = ptr::null_mut();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: each was created by the library and is destroyed once, the state first; it waits for what hardware still decodes.
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
        // No version supports so old a driver, so none is loaded, whatever the machine has.
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
