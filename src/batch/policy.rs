//! From what waits in a lane, the time and the limits to a decision. Pure: no clock, no lock.
//!
//! Work-conserving: what waits runs at once, up to the largest batch, padded to the smallest size that holds it. Only a
//! model that asks for company with `wait_max` lets a batch that is not full wait, and no longer than until the arrival
//! of its oldest job plus `wait_max`, nor so long that a deadline in it would be missed.

use super::{Rules, lanes::Front, rates::Costs};
use std::time::{Duration, Instant};

/// What a free worker does about a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Run this many rows, padded to this size.
    Run {
        /// Rows to take.
        items: usize,
        /// Size to pad to.
        size: usize,
    },
    /// Ask again then, or when more arrives.
    SleepUntil(Instant),
    /// Ask again when something arrives.
    Sleep,
}

/// Two smaller batches must be at least this much cheaper than one padded batch: beyond the noise of measurements.
const SPLIT_GAIN: f64 = 0.9;

/// Decides about the start of a lane.
pub fn decide(rules: &Rules, front: Option<&Front>, costs: &Costs, now: Instant) -> Next {
    let Some(front) = front.filter(|front| front.items > 0) else {
        return Next::Sleep;
    };
    let largest = largest(&rules.sizes);
    let items = front.items.min(largest);
    if items < largest && !front.shut && !rules.wait_max.is_zero() {
        let until = company_until(rules, front, costs);
        if now < until {
            return Next::SleepUntil(until);
        }
    }
    let items = if rules.wait_max.is_zero() {
        without_waste(&rules.sizes, items, costs)
    } else {
        items
    };
    Next::Run {
        items,
        size: padded(&rules.sizes, items),
    }
}

/// The largest batch.
pub fn largest(sizes: &[usize]) -> usize {
    sizes.last().copied().unwrap_or(1).max(1)
}

/// The smallest size that holds so many items; the largest if none does.
pub fn padded(sizes: &[usize], items: usize) -> usize {
    let size = sizes.iter().copied().find(|&size| size >= items);
    size.unwrap_or_else(|| largest(sizes))
}

/// When to stop waiting for company: at the end of the window, or two batch times before the first deadline (one for
/// the batch that may be running). A deadline is not gambled with before a batch was measured.
fn company_until(rules: &Rules, front: &Front, costs: &Costs) -> Instant {
    let end = front.oldest + rules.wait_max;
    let Some(deadline) = front.deadline else {
        return end;
    };
    let cost = costs.measured(padded(&rules.sizes, front.items));
    let start = cost
        .and_then(|seconds| Duration::try_from_secs_f64(2.0 * seconds).ok())
        .and_then(|duration| deadline.checked_sub(duration));
    end.min(start.unwrap_or(front.oldest))
}

/// How many of `items` to take: all of them, padded up, unless filling the next lower size and running the rest after it
/// was measured to take less device time in all. Then the first jobs end sooner and the last ones no later.
fn without_waste(sizes: &[usize], items: usize, costs: &Costs) -> usize {
    let upper = padded(sizes, items);
    let Some(&lower) = sizes.iter().rfind(|&&size| size < items) else {
        return items;
    };
    if upper <= items {
        return items;
    }
    let rest = padded(sizes, items - lower);
    let (Some(one), Some(first), Some(second)) = (
        costs.measured(upper),
        costs.measured(lower),
        costs.measured(rest),
    ) else {
        return items;
    };
    if first + second <= SPLIT_GAIN * one {
        lower
    } else {
        items
    }
}
