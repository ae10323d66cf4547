//! The memory that decodes may use together.

use crate::error::InferError;
use parking_lot::{Condvar, Mutex};
use std::{collections::VecDeque, sync::Arc};

/// What the budget is for, in most errors.
pub(super) const DECODING: &str = "memory to decode the image in bytes";

/// A bound on bytes in use at once. A job that does not fit yet waits on its own (pool) thread, in order of arrival, so that small images
/// do not overtake a large one for ever.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    used: u64,
    /// Jobs that wait, in order of arrival. Only the first is woken; the others would look in vain.
    waiting: VecDeque<Arc<Condvar>>,
}

impl BudgetState {
    fn wake_first(&self) {
        if let Some(first) = self.waiting.front() {
            first.notify_one();
        }
    }
}

impl Budget {
    pub(super) fn new(limit: u64) -> Budget {
        Budget { limit, state: Mutex::default() }
    }

    pub(super) fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// Waits until so many bytes fit, in the order of the calls.
    ///
    /// # Errors
    /// More than the whole budget; `what` names their use.
    pub(super) fn take(budget: &Arc<Budget>, bytes: u64, what: &'static str) -> Result<Share, InferError> {
        if bytes > budget.limit {
            return Err(InferError::TooLarge {
                what: what.into(),
                got: bytes,
                limit: budget.limit,
                option: "decode_bytes_max",
            });
        }
        let mut state = budget.state.lock();
        if !state.waiting.is_empty() || state.used + bytes > budget.limit {
            let mine = Arc::new(Condvar::new());
            state.waiting.push_back(Arc::clone(&mine));
            let is_first =
                |state: &BudgetState| state.waiting.front().is_some_and(|it| Arc::ptr_eq(it, &mine));
            mine.wait_while(&mut state, |state| !is_first(state) || state.used + bytes > budget.limit);
            state.waiting.pop_front();
        }
        state.used += bytes;
        // There may be room for the next as well.
        state.wake_first();
        drop(state);
        Ok(Share { budget: Arc::clone(budget), bytes })
    }

    /// As [`Budget::take`] without waiting: none where it does not fit now, or others wait.
    pub(super) fn try_take(budget: &Arc<Budget>, bytes: u64) -> Option<Share> {
        let mut state = budget.state.lock();
        if !state.waiting.is_empty() || state.used + bytes > budget.limit {
            return None;
        }
        state.used += bytes;
        Some(Share { budget: Arc::clone(budget), bytes })
    }
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    pub(super) bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.budget.state.lock();
        state.used -= self.bytes;
        state.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_file_larger_than_the_whole_budget_is_refused_and_names_the_option() {
        let budget = Arc::new(Budget::new(100));
        let error = Budget::take(&budget, 101, DECODING).expect_err("refused");
        assert!(error.to_string().contains("decode_bytes_max"), "{error}");
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_decode_waits_for_its_share_and_gives_it_back() {
        let budget = Arc::new(Budget::new(100));
        let first = Budget::take(&budget, 80, DECODING).expect("fits");
        thread::scope(|scope| {
            let second = scope.spawn(|| Budget::take(&budget, 80, DECODING).map(|share| share.bytes));
            drop(first);
            assert_eq!(second.join().expect("no panic").expect("fits now"), 80);
        });
        assert_eq!(budget.used(), 0);
    }

    /// Has one thread for each size wait for so many bytes, in this order, then gives all back. Each thread that has its share calls
    /// `then`.
    fn after_waiting(sizes: &[u64], then: impl Fn(usize) + Sync) {
        let budget = Arc::new(Budget::new(100));
        let all = Budget::take(&budget, 100, DECODING).expect("fits");
        thread::scope(|scope| {
            for (number, bytes) in sizes.iter().enumerate() {
                let (budget, then) = (&budget, &then);
                scope.spawn(move || {
                    let _share = Budget::take(budget, *bytes, DECODING).expect("fits");
                    then(number);
                });
                while budget.state.lock().waiting.len() <= number {
                    thread::yield_now();
                }
            }
            drop(all);
        });
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn shares_are_given_in_the_order_of_coming() {
        // Of these no two fit beside each other.
        let sizes: Vec<_> = (0..32).map(|number| 51 + number * 37 % 50).collect();
        let order = Mutex::new(Vec::new());
        after_waiting(&sizes, |number| order.lock().push(number));
        assert_eq!(order.into_inner(), (0..32).collect::<Vec<_>>());
    }

    #[test]
    fn all_who_fit_beside_each_other_have_their_share_at_once() {
        let together = std::sync::Barrier::new(3);
        after_waiting(&[30, 40, 30], |_| _ = together.wait());
    }

    #[test]
    fn who_does_not_wait_overtakes_nobody_who_does() {
        let budget = Arc::new(Budget::new(100));
        let first = Budget::try_take(&budget, 80).expect("fits");
        assert!(Budget::try_take(&budget, 21).is_none());
        // A job waits whose turn has not come yet.
        budget.state.lock().waiting.push_back(Arc::default());
        assert!(Budget::try_take(&budget, 20).is_none());
        budget.state.lock().waiting.clear();
        assert_eq!(Budget::try_take(&budget, 20).expect("nobody waits").bytes, 20);
        drop(first);
        assert_eq!(budget.used(), 0);
    }
}
