//! The bytes of a call, within the limits of `http`'s bodies: each message is charged to the call's permit when its length is
//! known, which is before it has come, and one that is too large is refused there. What it is more when it is unpacked and decoded
//! is charged by `codec`.

use super::status;
use crate::{
    error::InferError,
    http::{
        STACK_DEADLINE,
        admission::Permit,
        body::{BodyLimits, Reader},
    },
};
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use std::sync::Arc;

/// What stands in front of each message: whether it is compressed, and its length, big-endian.
const PREFIX_BYTES: usize = 5;

/// Whether messages keep coming for as long as the caller likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Messages {
    One,
    Many,
}

/// The body of a call, which ends with an error where it leaves its limits. Without a permit it is charged to nobody, and is to be
/// small.
pub(super) fn limited(
    body: Body,
    limits: BodyLimits,
    messages: Messages,
    permit: Option<&Arc<Permit>>,
) -> Body {
    // A caller may be silent between two messages for as long as it likes, and within none.
    let between = BodyLimits { bytes_max: u64::MAX, deadline: STACK_DEADLINE, rate_min: 0, ..limits };
    let within = BodyLimits { bytes_max: u64::MAX, ..limits };
    let reader = match messages {
        // Trimmed to what came at the end.
        Messages::One => {
            let bytes_max = limits.bytes_max.saturating_add(PREFIX_BYTES as u64);
            let reader = Reader::new(body, BodyLimits { bytes_max, ..limits });
            match permit {
                Some(permit) => reader.charged_to(Arc::clone(permit)),
                None => reader,
            }
        }
        Messages::Many => Reader::new(body, between),
    };
    let state = Some((reader, Framing::new(limits, permit)));
    Body::from_stream(stream::unfold(state, move |state| async move {
        let (mut reader, mut framing) = state?;
        let begun = framing.begun;
        let next = match reader.next().await {
            Ok(None) => return None,
            Ok(Some(bytes)) => framing.see(&bytes).map(|()| bytes),
            Err(error) => Err(error),
        };
        if messages == Messages::Many {
            if framing.is_between() {
                reader.limited_by(between);
            } else if framing.begun > begun {
                reader.limited_by(within);
            }
        }
        match next {
            Ok(bytes) => Some((Ok(bytes), Some((reader, framing)))),
            Err(error) => Some((Err(status::of(&error)), None)),
        }
    }))
}

/// Where in a message the bytes are.
struct Framing {
    limits: BodyLimits,
    permit: Option<Arc<Permit>>,
    prefix: Vec<u8>,
    /// Of the message that is coming.
    left: u64,
    /// What that takes in all.
    whole: u64,
    /// Messages whose first byte has come.
    begun: u64,
}

impl Framing {
    fn new(limits: BodyLimits, permit: Option<&Arc<Permit>>) -> Framing {
        let prefix = Vec::with_capacity(PREFIX_BYTES);
        Framing { limits, permit: permit.cloned(), prefix, left: 0, whole: 0, begun: 0 }
    }

    /// Whether no message is half there.
    fn is_between(&self) -> bool {
        self.left == 0 && self.prefix.is_empty()
    }

    /// The next bytes: at most one message is put together at a time, so the permit covers the largest that has not been handed
    /// over.
    fn see(&mut self, bytes: &Bytes) -> Result<(), InferError> {
        let mut bytes = &bytes[..];
        if self.left > 0
            && let Some(permit) = &self.permit
        {
            // What was set aside for it may have gone with one that came before it, in the same piece.
            permit.cover(self.whole)?;
        }
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left -= skipped as u64;
                bytes = &bytes[skipped..];
                continue;
            }
            self.begun += u64::from(self.prefix.is_empty());
            self.prefix.push(bytes[0]);
            bytes = &bytes[1..];
            if let [_, length @ ..] = &self.prefix[..]
                && let Ok(length) = <[u8; 4]>::try_from(length)
            {
                self.left = u64::from(u32::from_be_bytes(length));
                self.whole = self.left + PREFIX_BYTES as u64;
                self.prefix.clear();
                let (got, limit) = (self.left, self.limits.bytes_max);
                let (what, option) = match &self.permit {
                    Some(_) => ("the message in bytes", self.limits.option),
                    // No option is for these.
                    None => ("the message of a call that brings no data, in bytes,", ""),
                };
                if got > limit {
                    return Err(InferError::TooLarge { what, got, limit, option });
                }
                if let Some(permit) = &self.permit {
                    permit.cover(self.whole)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::admission::{Admission, AdmissionLimits};
    use futures_util::StreamExt;
    use http_body_util::BodyExt;
    use std::time::Duration;

    fn framing(bytes_max: u64, in_flight: u64) -> Framing {
        let admission = Admission::new(AdmissionLimits {
            requests_in_flight_max: 1,
            bytes_in_flight_max: in_flight,
            announced_bytes_max: in_flight,
            unknown_length_bytes: 0,
        });
        let limits = BodyLimits {
            bytes_max,
            deadline: Duration::from_secs(1),
            grace: Duration::ZERO,
            rate_min: 0,
            option: "body_bytes_max",
        };
        Framing::new(limits, Some(&Arc::new(admission.admit(Some(0)).unwrap())))
    }

    fn message(bytes: u32) -> Vec<u8> {
        [&[0][..], &bytes.to_be_bytes(), &vec![7; bytes as usize]].concat()
    }

    #[test]
    fn messages_are_found_however_they_are_cut() {
        let sent = [message(3), message(0), message(700), message(1)].concat();
        for size in 1..=sent.len() {
            let mut framing = framing(700, 10_000);
            for piece in sent.chunks(size) {
                framing.see(&Bytes::copy_from_slice(piece)).unwrap();
            }
            assert!(framing.is_between() && framing.begun == 4, "in pieces of {size}");
            assert!(framing.permit.unwrap().bytes() >= 705);
        }
    }

    /// What becomes of a body that sends this and then nothing, within an hour.
    async fn stops_after(sent: Vec<u8>, messages: Messages) -> Option<String> {
        let framing = framing(700, 10_000);
        let sent =
            stream::iter([Ok::<_, std::convert::Infallible>(Bytes::from(sent))]).chain(stream::pending());
        let mut body = limited(Body::from_stream(sent), framing.limits, messages, framing.permit.as_ref());
        loop {
            match tokio::time::timeout(Duration::from_secs(3600), body.frame()).await {
                Err(_) => return None,
                Ok(frame) => {
                    if let Err(error) = frame.expect("it does not end") {
                        return Some(error.to_string());
                    }
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_may_be_silent_between_messages_but_not_within_one() {
        let told =
            |error: Option<String>| error.is_some_and(|error| error.contains("bytes of the body came in"));
        let (whole, half) = (message(3), message(9)[..8].to_vec());
        assert_eq!(stops_after(whole.clone(), Messages::Many).await, None);
        assert!(told(stops_after([whole.clone(), half.clone()].concat(), Messages::Many).await));
        assert!(told(stops_after(half, Messages::Many).await));
        assert!(told(stops_after(whole, Messages::One).await), "one that does not end");
    }

    #[test]
    fn a_message_half_there_is_charged_when_the_one_before_it_has_been_handed_over() {
        let mut framing = framing(700, 10_000);
        let sent = [message(3), message(600)].concat();
        framing.see(&Bytes::copy_from_slice(&sent[..100])).unwrap();
        let permit = framing.permit.clone().unwrap();
        permit.trim(0);
        framing.see(&Bytes::copy_from_slice(&sent[100..200])).unwrap();
        assert!(permit.bytes() >= 605, "{}", permit.bytes());
    }

    #[test]
    fn a_message_is_refused_on_its_length_alone() {
        let head = Bytes::from(message(701)).slice(..5);
        let error = framing(700, 10_000).see(&head).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the message in bytes is 701, more than the limit of 700; raise it with body_bytes_max"
        );
        let uncharged = Framing { permit: None, ..framing(700, 10_000) }.see(&head).unwrap_err();
        assert_eq!(
            uncharged.to_string(),
            "the message of a call that brings no data, in bytes, is 701, more than the limit of 700"
        );
        assert_eq!(status::of(&uncharged).code(), tonic::Code::ResourceExhausted);
        let error = framing(700, 600).see(&Bytes::from(message(650)).slice(..5)).unwrap_err();
        assert!(matches!(error, InferError::Full { .. }), "{error}");
    }
}
