//! How much may be unpacked: from a packed body, from the strips of a TIFF, and from packed strips in a packed body.
//!
//! A stack is read for as long as frames come out, so only the number of bytes that the client has sent can bound the work. Unpacking that
//! would exceed this bound waits for more of the body, and is refused if no more will arrive. So the answer depends on the body alone, not
//! on how the network split it.

use super::StackError;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// What may be unpacked however little has arrived: some frames of a camera.
const FREE_BYTES: u64 = 64 << 20;

/// How many times the bytes that have arrived may be unpacked beyond that. Camera images unpack to 2 to 4 times their size, and a
/// simulation without noise to some hundreds of times. Deflate never expands data more than 1032 times, so deflated data always pass, even
/// frames that hold one number throughout. Zstd expands such frames 30,000 times, so that a few megabytes would be hours of work.
const TIMES: u64 = 1032;

const UNPACKED: &str =
    "what the body unpacks to in bytes (at most 64 MiB and 1032 times what has come of it; send it unpacked)";

/// Checks whether `unpacked` bytes may be unpacked of a body of which `came` bytes have arrived.
fn check(came: u64, unpacked: u64) -> Result<(), StackError> {
    let limit = came.saturating_mul(TIMES).saturating_add(FREE_BYTES);
    if unpacked <= limit {
        return Ok(());
    }
    Err(StackError::TooLarge { what: UNPACKED, got: unpacked, limit, option: "" })
}

/// Counts the bytes of a body as they arrive, for everything that unpacks some of it. Clones share one count.
#[derive(Debug, Clone, Default)]
pub struct Received(Arc<AtomicU64>);

impl Received {
    /// Adds bytes that arrived.
    pub fn more(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// How many bytes have arrived.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Checks whether `unpacked` bytes in all may be unpacked of the body, counting at most `at_most` of the bytes that have arrived.
    ///
    /// # Errors
    /// [`StackError::TooLarge`]. It is final only if no more of the body will arrive.
    pub fn may_become(&self, unpacked: u64, at_most: u64) -> Result<(), StackError> {
        check(self.bytes().min(at_most), unpacked)
    }
}

/// How many bytes were unpacked from the packed parts of a stack.
#[derive(Debug, Default)]
pub(super) struct Unpacked {
    pub(super) came: Received,
    bytes: u64,
}

impl Unpacked {
    /// Claims `bytes` more bytes that are about to be unpacked. Returns whether they may be by now; if `finished`, it is an error that they
    /// may not.
    pub(super) fn more(&mut self, bytes: u64, finished: bool) -> Result<bool, StackError> {
        let unpacked = self.bytes.saturating_add(bytes);
        match self.came.may_become(unpacked, u64::MAX) {
            Ok(()) => self.bytes = unpacked,
            Err(refused) if finished => return Err(refused),
            Err(_) => return Ok(false),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_deflate_packs_always_passes_and_what_becomes_more_is_refused() {
        const MIB: u64 = 1 << 20;
        for (came, unpacked, passes) in [
            (0, 64 * MIB, true),
            (0, 64 * MIB + 1, false),
            (MIB, 1032 * MIB, true),
            (MIB, 1096 * MIB, true),
            (MIB, 1096 * MIB + 1, false),
            (u64::MAX, u64::MAX, true),
        ] {
            assert_eq!(check(came, unpacked).is_ok(), passes, "{unpacked} bytes of {came}");
        }
    }
}
