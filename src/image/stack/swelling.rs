//! How much may be unpacked: of a body that comes packed, of the strips of a TIFF, and of packed strips in a packed body.
//!
//! A stack is read for as long as frames come out, so that only what somebody has sent can bound the work on it. What would be more than what
//! has come may become waits for more of the body, and is refused where no more comes: what is answered depends on the body alone, not on
//! how the network cut it.

use super::StackError;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// What may be unpacked however little has come: some frames of a camera.
const FREE_BYTES: u64 = 64 << 20;

/// How many times as much as has come may be unpacked beyond that. What cameras see becomes 2 to 4 times as large, and a simulation
/// without noise some hundreds of times. What deflate packs never becomes more than 1032 times as large, so that it always passes, frames
/// of one number too; zstd packs those 30,000 times, and a few megabytes were hours of work.
const TIMES: u64 = 1032;

const UNPACKED: &str =
    "what the body unpacks to in bytes (at most 64 MiB and 1032 times what has come of it; send it unpacked)";

/// Whether so much may be unpacked of what has come.
fn check(came: u64, unpacked: u64) -> Result<(), StackError> {
    let limit = came.saturating_mul(TIMES).saturating_add(FREE_BYTES);
    if unpacked <= limit {
        return Ok(());
    }
    Err(StackError::TooLarge { what: UNPACKED, got: unpacked, limit, option: "" })
}

/// Counts the bytes of a body as they come, for all who unpack something of it. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Came(Arc<AtomicU64>);

impl Came {
    /// So many more came.
    pub fn more(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// How many have come.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether so many bytes in all may be unpacked of it, were no more than `at_most` of it there.
    ///
    /// # Errors
    /// [`StackError::TooLarge`], which holds once no more is to come.
    pub fn may_become(&self, unpacked: u64, at_most: u64) -> Result<(), StackError> {
        check(self.bytes().min(at_most), unpacked)
    }
}

/// What of a stack's bytes was packed, unpacked.
#[derive(Debug, Default)]
pub(super) struct Unpacked {
    pub(super) came: Came,
    bytes: u64,
}

impl Unpacked {
    /// So many bytes more are about to be unpacked, if they may be by now. Where no more is to come, it is an error that they may not.
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
