//! How large a body may be, how slowly it may come, and what it is charged for meanwhile.

use crate::error::InferError;
use std::time::Duration;

/// The most that there must be room for before a body of known length is read.
const ROOM_BYTES: u64 = 1 << 20;

/// How many bytes there must be room for before a body of this length is read, so that one that will find none is refused early. They are
/// not charged: an announcement alone takes nothing from others.
pub(crate) fn room_for(length: u64) -> u64 {
    length.min(ROOM_BYTES)
}

/// How many bytes a body is charged for once `received` bytes have come. With a known length, that is ahead of what is there, for the same
/// reason, but never by more than has come.
pub(crate) fn ahead_of(received: u64, length: Option<u64>) -> u64 {
    length.map_or(0, |length| received.saturating_mul(2).min(length)).max(received)
}

/// How large a body may be, and how slowly it may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyLimits {
    /// Bytes of the whole body.
    pub bytes_max: u64,
    /// For the whole body, from when it is asked for. Here and below, time in which nobody asks for more does not count.
    pub deadline: Duration,
    /// For so long, no rate is demanded.
    pub grace: Duration,
    /// Bytes per second that must come after the grace, on average since its end. 0: any rate.
    pub rate_min: u64,
    /// The longest time in which nothing comes, however much has come before.
    pub silence_max: Duration,
    /// The option that raises `bytes_max`; empty if none does.
    pub option: &'static str,
}

impl BodyLimits {
    /// The same for a body that is never longer than `bytes_max`, which no option raises.
    #[must_use]
    pub fn at_most(self, bytes_max: u64) -> BodyLimits {
        if bytes_max < self.bytes_max { BodyLimits { bytes_max, option: "", ..self } } else { self }
    }

    /// The refusal of a body of `got` bytes.
    pub fn too_large(&self, got: u64) -> InferError {
        InferError::TooLarge {
            what: "the body in bytes".into(),
            got,
            limit: self.bytes_max,
            option: self.option,
        }
    }

    /// Bytes per second that a body of this length must come at. If the length is known, fast enough to be whole within the deadline.
    pub(super) fn rate(&self, length: Option<u64>) -> u64 {
        if self.rate_min == 0 {
            return 0;
        }
        let pace = length.map_or(0.0, |length| length as f64 / self.deadline.as_secs_f64());
        self.rate_min.max(pace as u64)
    }

    /// How long after its beginning a body with `received` bytes is still fast enough; `None`: for ever.
    pub(super) fn earned(&self, received: u64, length: Option<u64>) -> Option<Duration> {
        Some(self.grace + worth(received, self.rate(length))?)
    }

    /// The same without the grace, at the rate that a body of any length must come at: a long one may begin slowly.
    pub(super) fn earned_at_least(&self, received: u64) -> Option<Duration> {
        worth(received, self.rate_min)
    }
}

/// How long so many bytes take at this rate; `None`: any time.
fn worth(received: u64, rate: u64) -> Option<Duration> {
    (rate > 0).then(|| Duration::from_secs_f64(received as f64 / rate as f64))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::{super::tests::LIMITS, *};

    #[test]
    fn an_option_is_named_where_it_would_help() {
        let limits = BodyLimits { bytes_max: 10, ..LIMITS };
        let told = |most| limits.at_most(most).too_large(11).to_string();
        assert_eq!(told(5), "the body in bytes is 11, more than the limit of 5");
        assert_eq!(
            told(20),
            "the body in bytes is 11, more than the limit of 10; raise it with body_bytes_max"
        );
    }

    #[test]
    fn a_body_of_known_length_counts_ahead_of_what_came() {
        const MIB: u64 = 1 << 20;
        for (received, length, counts) in
            [(3, None, 3), (3, Some(5), 5), (0, Some(9 * MIB), 0), (4 * MIB, Some(9 * MIB), 8 * MIB)]
        {
            assert_eq!(ahead_of(received, length), counts);
        }
        assert_eq!([3, 9 * MIB].map(room_for), [3, MIB]);
    }

    #[test]
    fn more_is_due_at_the_rate_after_the_grace() {
        let due = |received, length| LIMITS.earned(received, length).unwrap();
        for short in [None, Some(0), Some(60_000)] {
            assert_eq!(due(0, short), Duration::from_secs(5));
            assert_eq!(due(2500, short), Duration::from_millis(7500));
        }
        // One that says how long it is, and could not be whole in time at that rate.
        let long = Some(600_000);
        assert_eq!(due(2500, long), Duration::from_millis(5250));
        assert_eq!(LIMITS.earned_at_least(2500), Some(Duration::from_millis(2500)));
        assert_eq!(BodyLimits { rate_min: 0, ..LIMITS }.earned(0, long), None);
    }
}
