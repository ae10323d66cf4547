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
    host::resident_bytes().map_or(left, |resident| decide(left, resident, || give_back(resident)))
}

/// What counts as left from now on; less where something else, such as a model that was unloaded, has given memory back.
fn decide(left: u64, resident: u64, give_back: impl FnOnce() -> u64) -> u64 {
    if resident >= left.saturating_add(GROWN_BYTES_MIN) { give_back() } else { left.min(resident) }
}

fn give_back(before: u64) -> u64 {
    let began = Instant::now();
    heap::give_back();
    let (took, now) = (began.elapsed(), host::resident_bytes().unwrap_or(before));
    tracing::debug!(before, now, ?took, "memory that was free is given back to the system");
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_where_much_has_come_since_there_was_least() {
        let mut left = 0;
        // MiB: resident, and whether it is given back, which leaves half.
        for (resident, expected) in [
            (200, true), // models that were loaded leave something, too
            (100, false),
            (131, false),
            (132, true),
            (90, false), // a model was unloaded
            (60, false),
            (91, false),
            (92, true),
        ] {
            let mut given = false;
            left = decide(left, resident << 20, || {
                given = true;
                (resident << 20) / 2
            });
            assert_eq!(given, expected, "{resident} MiB");
        }
    }
}
