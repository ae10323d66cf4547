//! The memory that decodes may use together.

use crate::error::InferError;
use std::sync::Arc;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// What the budget is for, in most errors.
pub(super) const DECODING: &str = "memory to decode the image in bytes";

/// Bytes are counted in units of this many, rounded up: the semaphore gives at most 2³² units at once.
const UNIT: u64 = 4096;

/// More is a large share, which takes long to decode. A photo of 24 megapixels takes less, also one that is turned, or progressive and
/// decoded at a reduced scale (6 bytes for each pixel).
const LARGE: u64 = 160 << 20;

/// A bound on bytes in use at once. Who finds no room waits in order of arrival, so that small images do not overtake a large one for
/// ever. Nobody waits on a thread: those of the pool are needed by those who have a share.
///
/// Large shares wait for each other before they wait for others: together they leave a quarter to small ones. One that needs more may have
/// it, alone among large ones. So small ones wait for each other, and for one large one at most.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    free: Arc<Semaphore>,
    of_large: Arc<Semaphore>,
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

/// The units that large shares may have together.
fn for_large(limit: u64) -> u32 {
    units(limit - limit / 4)
}

impl Budget {
    pub(super) fn new(limit: u64) -> Budget {
        let semaphore = |units: u32| Arc::new(Semaphore::new(units as usize));
        Budget { limit, free: semaphore(units(limit)), of_large: semaphore(for_large(limit)) }
    }

    /// Whether so many bytes are a large share.
    pub(super) fn is_large(&self, bytes: u64) -> bool {
        bytes > LARGE.min(self.limit / 4)
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes in use, to the unit.
    pub(super) fn used(&self) -> u64 {
        (units(self.limit) as usize - self.free.available_permits()) as u64 * UNIT
    }

    /// Whether so many bytes ever fit.
    ///
    /// # Errors
    /// More than the whole budget; `what` names their use.
    pub(super) fn check(&self, bytes: u64, what: &'static str) -> Result<(), InferError> {
        if bytes > self.limit {
            return Err(InferError::TooLarge {
                what: what.into(),
                got: bytes,
                limit: self.limit,
                option: "decode_bytes_max",
            });
        }
        Ok(())
    }

    /// Waits until so many bytes fit, in the order of the calls.
    ///
    /// # Errors
    /// As [`Budget::check`].
    pub(super) async fn take(&self, bytes: u64, what: &'static str) -> Result<Share, InferError> {
        self.check(bytes, what)?;
        let units = units(bytes);
        // They are never closed.
        let taken = async {
            let of_large = match self.is_large(bytes) {
                true => {
                    let units = units.min(for_large(self.limit));
                    Some(Arc::clone(&self.of_large).acquire_many_owned(units).await?)
                }
                false => None,
            };
            Ok(Share { units: Arc::clone(&self.free).acquire_many_owned(units).await?, of_large })
        };
        taken.await.map_err(|error: AcquireError| InferError::Internal(error.to_string()))
    }

    /// As [`Budget::take`] without waiting: none where it does not fit now, or others wait.
    pub(super) fn try_take(&self, bytes: u64) -> Option<Share> {
        self.check(bytes, DECODING).ok()?;
        let units = units(bytes);
        let of_large = match self.is_large(bytes) {
            true => Some(
                Arc::clone(&self.of_large).try_acquire_many_owned(units.min(for_large(self.limit))).ok()?,
            ),
            false => None,
        };
        let units = Arc::clone(&self.free).try_acquire_many_owned(units).ok()?;
        Some(Share { units, of_large })
    }
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "held, not read")]
pub struct Share {
    units: OwnedSemaphorePermit,
    of_large: Option<OwnedSemaphorePermit>,
}

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
            [20, 25, 10, 20, 25, 1].map(|units| Box::pin(budget.take(units * UNIT, DECODING))).into();
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
        let first = [20; 4].map(|units| budget.try_take(units * UNIT).unwrap());
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

    #[tokio::test]
    async fn large_shares_leave_a_quarter_to_small_ones_and_wait_for_each_other_alone() {
        let budget = Budget::new(100 * UNIT);
        let large = budget.take(50 * UNIT, DECODING).await.unwrap();
        let mut second = Box::pin(budget.take(50 * UNIT, DECODING));
        assert!(poll!(&mut second).is_pending());
        // It is not before small ones.
        let small = [budget.try_take(25 * UNIT), budget.try_take(25 * UNIT)];
        assert!(small.iter().all(Option::is_some) && budget.try_take(UNIT).is_none());
        drop(large);
        let second = second.await.unwrap();
        drop((small, second));
        // Alone, one may have it all; then it is behind small ones, and the next behind it.
        let small = budget.try_take(UNIT);
        let mut all = Box::pin(budget.take(100 * UNIT, DECODING));
        assert!(poll!(&mut all).is_pending());
        drop(small);
        let all = all.await.unwrap();
        assert!(budget.try_take(UNIT).is_none());
        drop(all);
        assert_eq!((budget.used(), budget.of_large.available_permits()), (0, 75));
    }

    #[test]
    fn photos_of_24_megapixels_are_not_large() {
        let (budget, pixels) = (Budget::new(1 << 30), 5712 * 4284);
        assert!(!budget.is_large(6 * pixels + (1 << 20)));
        assert!(budget.is_large(8192 * 8192 * 3));
    }
}
