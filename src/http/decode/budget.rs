//! The memory that decodes may use together.

use crate::error::InferError;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What the budget is for, in most errors.
pub(super) const DECODING: &str = "memory to decode the image in bytes";

/// Bytes are counted in units of this many, rounded up: the semaphore gives at most 2³² units at once.
const UNIT: u64 = 4096;

/// A bound on bytes in use at once. Who finds no room waits in order of arrival, so that small images do not overtake a large one for
/// ever. Nobody waits on a thread: those of the pool are needed by those who have a share.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    free: Arc<Semaphore>,
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

impl Budget {
    pub(super) fn new(limit: u64) -> Budget {
        Budget { limit, free: Arc::new(Semaphore::new(units(limit) as usize)) }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes in use, to the unit.
    pub(super) fn used(&self) -> u64 {
        (units(self.limit) as usize - self.free.available_permits()) as u64 * UNIT
    }

    /// Waits until so many bytes fit, in the order of the calls.
    ///
    /// # Errors
    /// More than the whole budget; `what` names their use.
    pub(super) async fn take(&self, bytes: u64, what: &'static str) -> Result<Share, InferError> {
        if bytes > self.limit {
            return Err(InferError::TooLarge {
                what: what.into(),
                got: bytes,
                limit: self.limit,
                option: "decode_bytes_max",
            });
        }
        // It is never closed.
        let units = Arc::clone(&self.free).acquire_many_owned(units(bytes)).await;
        units.map(Share).map_err(|error| InferError::Internal(error.to_string()))
    }

    /// As [`Budget::take`] without waiting: none where it does not fit now, or others wait.
    pub(super) fn try_take(&self, bytes: u64) -> Option<Share> {
        if bytes > self.limit {
            return None;
        }
        Arc::clone(&self.free).try_acquire_many_owned(units(bytes)).ok().map(Share)
    }
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub struct Share(#[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use futures_util::poll;

    #[tokio::test]
    async fn more_than_the_whole_budget_is_refused_and_names_the_option() {
        let budget = Budget::new(100);
        let error = budget.take(101, DECODING).await.unwrap_err();
        assert!(
            error.to_string().contains("101, more than the limit of 100; raise it with decode_bytes_max")
        );
        assert!(budget.try_take(101).is_none());
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn shares_are_given_in_the_order_of_coming_and_to_all_who_fit() {
        let budget = Budget::new(100 * UNIT);
        let all = budget.take(100 * UNIT, DECODING).await.unwrap();
        let mut waiting: Vec<_> =
            [30, 40, 30, 1].map(|units| Box::pin(budget.take(units * UNIT, DECODING))).into();
        for share in &mut waiting {
            assert!(poll!(share).is_pending());
        }
        drop(all);
        let mut last = waiting.pop().unwrap();
        let mut shares = Vec::new();
        for share in waiting {
            shares.push(share.await.unwrap());
        }
        assert!(poll!(&mut last).is_pending());
        assert_eq!(budget.used(), 100 * UNIT);
        drop(shares);
        drop(last);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_small_share_does_not_overtake_a_large_one() {
        let budget = Budget::new(100 * UNIT);
        let first = budget.try_take(80 * UNIT).unwrap();
        let mut large = Box::pin(budget.take(50 * UNIT, DECODING));
        assert!(poll!(&mut large).is_pending());
        let mut small = Box::pin(budget.take(UNIT, DECODING));
        assert!(poll!(&mut small).is_pending());
        assert!(budget.try_take(UNIT).is_none());
        // Who goes leaves no gap.
        drop(large);
        assert!(poll!(&mut small).is_ready());
        drop(first);
    }
}
