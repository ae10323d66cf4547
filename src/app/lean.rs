//! Gives memory back that a burst of requests took and nobody needs any more: the heap keeps it, and after a burst of thousands of
//! connections that is more than all models together may be.

use crate::{engine::heap, telemetry::host};
use std::time::{Duration, Instant};
use tokio::{task, time};

/// Between two looks. Requests wait while memory is given back, some milliseconds for each 100 MB, and what is needed again comes
/// page by page: not worth it more often.
const LOOK: Duration = Duration::from_secs(300);

/// What must have come since memory was last given back.
const GROWN_BYTES_MIN: u64 = 32 << 20;

/// Looks at times, for as long as it is polled.
pub(super) async fn keep() {
    let mut left = 0;
    loop {
        time::sleep(LOOK).await;
        left = task::spawn_blocking(move || look(left)).await.unwrap_or(left);
    }
}

/// Gives memory back if there is much more than was `left` the last time, and tells what is left now.
fn look(left: u64) -> u64 {
    let Some(before) = host::resident_bytes().filter(|now| is_worth_it(*now, left)) else { return left };
    let began = Instant::now();
    heap::give_back();
    let (took, now) = (began.elapsed(), host::resident_bytes().unwrap_or(before));
    tracing::debug!(before, now, ?took, "memory that was free is given back to the system");
    now
}

fn is_worth_it(resident: u64, left: u64) -> bool {
    resident >= left.saturating_add(GROWN_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_and_again_when_much_has_come() {
        const MIB: u64 = 1 << 20;
        assert!(is_worth_it(100 * MIB, 0), "models that were loaded leave something, too");
        assert!(!is_worth_it(100 * MIB, 100 * MIB));
        assert!(!is_worth_it(131 * MIB, 100 * MIB));
        assert!(is_worth_it(132 * MIB, 100 * MIB));
        assert!(!is_worth_it(50 * MIB, 100 * MIB));
    }
}
