//! Texts that a fake makes and takes back.
#![allow(unsafe_code, reason = "text of a C library")]

use std::ffi::{CStr, c_char};

/// What gives a text back.
pub type Free = unsafe extern "C" fn(*mut c_char);

/// A copy of the text, which goes back; none where it is null.
///
/// # Safety
///
/// The text is null or a C string that `free` takes, once.
pub unsafe fn taken(text: *mut c_char, free: Free) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    unsafe {
        let owned = CStr::from_ptr(text).to_string_lossy().into_owned();
        free(text);
        Some(owned)
    }
}
