//! Replies that come item by item, for requests of many: as lines of JSON (`application/x-ndjson`) or as events
//! (`text/event-stream`), whichever `Accept` asks for.
//!
//! Answers come in order, each when its batch has finished. A caller who does not read is not worked for: only so many items
//! are under way as fill two batches. One who goes away ends the work.

use super::{reject::Problem, wire::answer};
use crate::{error::InferError, models::Model};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use futures_util::{Stream, StreamExt, stream};
use std::convert::Infallible;

/// How items are set apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A line each.
    Lines,
    /// An event each.
    Events,
}

/// Items under way, at least.
const AHEAD_MIN: usize = 8;
/// Files that are decoded ahead.
pub(super) const FILES_AHEAD: usize = 4;

impl Form {
    /// What the caller asks for, if it is one of these.
    pub(super) fn accepted(headers: &HeaderMap) -> Option<Form> {
        let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut media = accepts.flat_map(|accept| accept.split(','));
        media.find_map(|media| {
            let mut parts = media.split(';').map(str::trim);
            let media = parts.next()?;
            let is = |name: &str| media.eq_ignore_ascii_case(name);
            let form = if is("application/x-ndjson") || is("application/ndjson") {
                Form::Lines
            } else if is("text/event-stream") {
                Form::Events
            } else {
                return None;
            };
            // A weight of 0 says what is not wanted (RFC 9110, 12.4.2).
            let weight = |part: &str| part.strip_prefix(['q', 'Q'])?.strip_prefix('=').map(str::parse::<f32>);
            let weight = parts.find_map(weight);
            (weight != Some(Ok(0.0))).then_some(form)
        })
    }

    fn write(self, name: &str, json: &[u8]) -> Vec<u8> {
        match self {
            Form::Lines => [json, b"\n"].concat(),
            Form::Events => [b"event: ", name.as_bytes(), b"\ndata: ", json, b"\n\n"].concat(),
        }
    }
}

/// How many items may be under way: those of two batches, so that a device need not wait.
pub(super) fn ahead(model: &Model) -> usize {
    let largest = model.rules.sizes.last().copied().unwrap_or(1);
    (2 * largest).max(AHEAD_MIN)
}

/// A reply of these entries, each the members of an object or an error, with their `index` as progress; the last line or event
/// says how many there were.
pub(super) fn reply(
    form: Form,
    entries: impl Stream<Item = Result<Vec<u8>, InferError>> + Send + 'static,
) -> Response {
    let mut counts = [0u64; 2];
    let items = entries.map(Some).chain(stream::iter([None])).map(move |entry| {
        let bytes = match entry {
            Some(entry) => {
                let index = counts[0] + counts[1];
                counts[usize::from(entry.is_err())] += 1;
                let (name, json) = match &entry {
                    Ok(members) => ("answer", answer::indexed(index, members)),
                    Err(error) => ("error", answer::indexed_problem(index, &Problem::from(error))),
                };
                form.write(name, &json)
            }
            None => {
                let [answered, failed] = counts;
                let json = format!("{{\"done\":{{\"answered\":{answered},\"failed\":{failed}}}}}");
                form.write("done", json.as_bytes())
            }
        };
        Ok::<_, Infallible>(bytes)
    });
    let mut reply = Response::new(Body::from_stream(items));
    let media = match form {
        Form::Lines => "application/x-ndjson",
        Form::Events => "text/event-stream",
    };
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    // Proxies that gather a reply before they pass it on would take its point away.
    reply.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    reply.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[test]
    fn the_form_is_what_accept_asks_for() {
        let of = |accept: &'static str| {
            Form::accepted(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]))
        };
        assert_eq!(of("application/x-ndjson"), Some(Form::Lines));
        assert_eq!(of("text/html, text/event-stream;q=0.9"), Some(Form::Events));
        assert_eq!(of("Text/Event-Stream; Q=1"), Some(Form::Events));
        assert_eq!(of("application/json, */*"), None);
        assert_eq!(of("application/json, text/event-stream;q=0, application/x-ndjson; q=0.0"), None);
        assert_eq!(Form::accepted(&HeaderMap::new()), None);
    }

    #[tokio::test]
    async fn entries_come_in_order_with_their_index_and_a_count_at_the_end() {
        for (form, expected) in [
            (Form::Lines, "{\"index\":0,\"a\":1}\n{\"index\":1,\"detail\":\"no\""),
            (
                Form::Events,
                "event: answer\ndata: {\"index\":0,\"a\":1}\n\nevent: error\ndata: {\"index\":1,\"detail\":\"no\"",
            ),
        ] {
            let entries = [Ok(b"\"a\":1".to_vec()), Err(InferError::Decode("no".into()))];
            let body = reply(form, stream::iter(entries)).into_body().collect().await.expect("infallible");
            let text = String::from_utf8(body.to_bytes().to_vec()).expect("text");
            assert!(text.starts_with(expected), "{text}");
            assert!(text.trim_end().ends_with("{\"done\":{\"answered\":1,\"failed\":1}}"), "{text}");
        }
    }
}
