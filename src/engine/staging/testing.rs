//! A device that refuses to pin memory, for tests.
#![allow(unsafe_code)]

use super::{Pin, Pinner};
use std::{fmt, ptr::NonNull};

/// Runs a callback whenever memory is to be pinned, and refuses to pin it.
pub(crate) struct Refusing(pub(crate) Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for Refusing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refusing")
    }
}

impl Pinner for Refusing {
    unsafe fn pin(&self, _: NonNull<u8>, _: usize) -> Option<Pin> {
        (self.0)();
        None
    }

    fn owner(&self) -> usize {
        0
    }
}
