//! The ids by which a request can be found in logs, replies and traces. Pure functions from headers to headers.

use std::{fmt, str::FromStr, sync::Arc};
use uuid::Uuid;

/// A request's id: the caller's `x-request-id` if it is harmless, otherwise a generated one.
///
/// Harmless means 1 to 128 characters of `A-Z a-z 0-9 . _ -`: the id goes into log lines, headers and other programs' file
/// names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// The longest id that is accepted from a caller, in characters.
    pub const LENGTH_MAX: usize = 128;

    /// The caller's id, or a new one if there is none or it is not harmless.
    pub fn from_header(value: Option<&[u8]>) -> RequestId {
        let harmless = |value: &&[u8]| {
            (1..=RequestId::LENGTH_MAX).contains(&value.len())
                && value.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
        };
        match value.filter(harmless).map(str::from_utf8) {
            Some(Ok(id)) => RequestId(id.into()),
            _ => RequestId::new(),
        }
    }

    /// A UUID of version 7: unique, and in the order of time.
    #[allow(clippy::new_without_default)] // each is different: a default would promise the contrary
    pub fn new() -> RequestId {
        RequestId(Uuid::now_v7().to_string().into())
    }

    /// As in the header.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A place in a trace, as W3C Trace Context's `traceparent` header carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace that everything in a user's action belongs to; not all zero.
    pub trace_id: [u8; 16],
    /// The span that this is about; not all zero.
    pub span_id: [u8; 8],
    /// Bit 0: the caller records this trace.
    pub flags: u8,
}

/// Why a `traceparent` was rejected. The specification requires that such a header is ignored and a new trace begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("traceparent is not version-traceid-parentid-flags in lower-case hex, or one of its ids is zero")]
pub struct BadTraceParent;

impl TraceContext {
    /// The root of a new trace, not marked as recorded.
    pub fn root() -> TraceContext {
        let id = Uuid::now_v7();
        // A span id only has to be unique within its trace.
        TraceContext { trace_id: *id.as_bytes(), span_id: lower_half(id), flags: 0 }
    }

    /// A new span under this one, with the same trace and flags.
    pub fn child(&self) -> TraceContext {
        TraceContext { span_id: new_span_id(), ..*self }
    }

    /// The server's span for a request with this header: a child of the caller's span, or a root. The second value is the
    /// caller's span, if there is one.
    pub fn from_header(value: Option<&[u8]>) -> (TraceContext, Option<TraceContext>) {
        let caller = value
            .and_then(|value| str::from_utf8(value).ok())
            .and_then(|value| value.parse::<TraceContext>().ok());
        match caller {
            Some(caller) => (caller.child(), Some(caller)),
            None => (TraceContext::root(), None),
        }
    }

    /// The header's value. Only the flag that version 00 defines is passed on.
    pub fn header(&self) -> [u8; 55] {
        let mut text = *b"00-tttttttttttttttttttttttttttttttt-ssssssssssssssss-ff";
        hex(&self.trace_id, &mut text[3..35]);
        hex(&self.span_id, &mut text[36..52]);
        hex(&[self.flags & 1], &mut text[53..]);
        text
    }

    /// The trace's id in hex, as logs show it.
    pub fn trace_id_hex(&self) -> String {
        TraceContext::trace_id_in(&self.header()).to_owned()
    }

    /// The same, from the header's value.
    pub fn trace_id_in(header: &[u8; 55]) -> &str {
        str::from_utf8(&header[3..35]).expect("it is written in hex")
    }
}

/// A new span id.
pub(super) fn new_span_id() -> [u8; 8] {
    lower_half(Uuid::now_v7())
}

/// The lower half of a version 7 UUID: two bits of variant, a counter that starts at random each millisecond, 32 random bits.
fn lower_half(id: Uuid) -> [u8; 8] {
    id.as_u64_pair().1.to_be_bytes()
}

impl FromStr for TraceContext {
    type Err = BadTraceParent;

    /// Reads `00-<32 hex>-<16 hex>-<2 hex>`. Later versions may have further fields after another dash; these are ignored, as
    /// the specification asks; version `ff` does not exist.
    fn from_str(text: &str) -> Result<TraceContext, BadTraceParent> {
        let mut parts = text.splitn(5, '-');
        let mut part = || parts.next().ok_or(BadTraceParent);
        let [version] = unhex(part()?)?;
        let trace_id = unhex(part()?)?;
        let span_id = unhex(part()?)?;
        let [flags] = unhex(part()?)?;
        let more = parts.next().is_some();
        if version == 0xff || (version == 0 && more) || trace_id == [0; 16] || span_id == [0; 8] {
            return Err(BadTraceParent);
        }
        Ok(TraceContext { trace_id, span_id, flags })
    }
}

impl fmt::Display for TraceContext {
    /// As the header has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.header()))
    }
}

/// Writes two digits for each byte.
fn hex(bytes: &[u8], digits: &mut [u8]) {
    let digit = |four_bits: u8| b"0123456789abcdef"[usize::from(four_bits)];
    for (byte, pair) in bytes.iter().zip(digits.as_chunks_mut::<2>().0) {
        *pair = [digit(byte >> 4), digit(byte & 0xf)];
    }
}

/// Exactly `2 * N` lower-case hex digits.
fn unhex<const N: usize>(text: &str) -> Result<[u8; N], BadTraceParent> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(BadTraceParent),
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return Err(BadTraceParent);
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_harmless_request_id_is_kept_and_any_other_replaced() {
        let kept = |id: &str| RequestId::from_header(Some(id.as_bytes())).as_str() == id;
        assert!(kept("a"));
        assert!(kept("Job_7.part-3"));
        assert!(kept(&"x".repeat(128)));
        for id in ["", " ", "a b", "a\nb", "\u{1b}[31m", "é", "a/b", "a\"", "<b>"] {
            assert!(!kept(id), "{id:?}");
        }
        assert!(!kept(&"x".repeat(129)));
        assert_eq!(RequestId::from_header(Some(&[0xff, 0xfe])).as_str().len(), 36);
    }

    #[test]
    fn ids_of_ours_are_different_and_in_order() {
        let ids: Vec<_> = (0..1000).map(|_| RequestId::from_header(None)).collect();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 1000);
        assert!(ids.is_sorted_by_key(|id| id.as_str().to_string()));
        let spans: HashSet<_> = (0..1000).map(|_| TraceContext::root().span_id).collect();
        assert_eq!(spans.len(), 1000);
    }

    #[test]
    fn a_child_keeps_the_trace_and_its_flags_under_a_new_span() {
        let (ours, caller) = TraceContext::from_header(Some(PARENT.as_bytes()));
        let caller = caller.expect("a caller");
        assert_eq!(caller.to_string(), PARENT);
        assert_eq!(ours.trace_id, caller.trace_id);
        assert_eq!(ours.flags, 1);
        assert_ne!(ours.span_id, caller.span_id);
        assert_eq!(ours.trace_id_hex(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(ours.to_string().parse(), Ok(ours));
    }

    #[test]
    fn a_bad_traceparent_begins_a_trace_of_our_own() {
        let bad = [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0é",
            " 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ];
        for text in bad {
            assert_eq!(text.parse::<TraceContext>(), Err(BadTraceParent), "{text:?}");
            let (ours, caller) = TraceContext::from_header(Some(text.as_bytes()));
            assert_eq!((caller, ours.flags), (None, 0));
            assert_ne!(ours.trace_id, [0; 16]);
        }
        assert_eq!(TraceContext::from_header(Some(&[0xff; 55])).1, None);
    }

    #[test]
    fn a_later_version_is_read_as_far_as_we_know_it() {
        let later = format!("cc{}-what-comes-later", &PARENT[2..]);
        let context: TraceContext = later.parse().expect("a later version");
        assert_eq!(context.to_string(), PARENT);
    }
}
