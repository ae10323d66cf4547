//! Replies that come item by item, for requests of many: as lines of JSON (`application/x-ndjson`) or as events
//! (`text/event-stream`), whichever `Accept` asks for.
//!
//! Answers come in order, each when its batch has finished. If the client does not read, work stops: only as many items are under way as
//! fill two batches. If it goes away, the work ends.

use super::{
    Front,
    accepted::{self, Offer},
    admission::{Beside, Permit, counting, keeping},
    call::Call,
    observe::StreamEnd,
    reject::Problem,
    tally::Tally,
    wire::{
        answer::{self, Entry},
        reply::{self, Output, OutputParameters},
    },
};
use crate::{
    batch::{Answer, Ticket},
    error::InferError,
    models::Model,
};
use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use futures_util::{Stream, StreamExt, stream};
use std::{convert::Infallible, sync::Arc};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

/// How items are separated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A line each.
    Lines,
    /// An event each.
    Events,
}

/// The bound on items under way is at least this.
const AHEAD_MIN: usize = 8;
/// Files that are decoded ahead.
pub(super) const FILES_AHEAD: usize = 4;

impl Form {
    /// The forms by their names. Ranges do not select them: a client that takes anything gets JSON.
    pub(super) fn offers<T>(of: impl Fn(Form) -> T) -> [Offer<T>; 3] {
        [
            Offer::named(of(Form::Lines), "application/x-ndjson"),
            Offer::named(of(Form::Lines), "application/ndjson"),
            Offer::named(of(Form::Events), "text/event-stream"),
        ]
    }

    /// The form that the client asks for. `None` if a reply in one piece, of the types `whole`, is preferred, or is wanted as much and
    /// named first.
    pub(super) fn accepted(headers: &HeaderMap, whole: &[&'static str]) -> Option<Form> {
        let whole = whole.iter().map(|media| Offer::ranged(None, media));
        let offers: Vec<_> = whole.chain(Form::offers(Some)).collect();
        accepted::best(headers, &offers).flatten()
    }

    fn write(self, name: &str, json: &[&[u8]]) -> Vec<u8> {
        match self {
            Form::Lines => [json, &[b"\n"]].concat().concat(),
            Form::Events => [&[b"event: ", name.as_bytes(), b"\ndata: "], json, &[b"\n\n"]].concat().concat(),
        }
    }
}

/// How many items may be under way: two batches, so that a device need not wait.
pub(super) fn ahead(model: &Model) -> usize {
    let largest = model.rules.largest();
    (2 * largest).max(AHEAD_MIN)
}

/// Does work that must not wait until the client reads: decoding a file and giving back its share of the memory. It ends with the reply.
pub(super) async fn aside<T: Send + 'static>(
    work: impl Future<Output = Result<T, InferError>> + Send + 'static,
) -> Result<T, InferError> {
    let done = AbortOnDropHandle::new(tokio::spawn(work.in_current_span())).await;
    done.map_err(|error| InferError::Internal(format!("a part of a reply was not made: {error}")))?
}

/// An item that was queued before its turn in the reply, under terms of its own.
pub(super) struct Queued {
    call: Call,
    tally: Arc<Tally>,
    ticket: Ticket,
}

impl Queued {
    /// An item that was pushed under `call` for a request.
    pub(super) fn new(call: Call, tally: Arc<Tally>, ticket: Ticket) -> Queued {
        Queued { call, tally, ticket }
    }

    /// Waits for the answer, no longer than its terms say.
    pub(super) async fn answer(self, front: &Front) -> Result<Answer, InferError> {
        self.call.answer(front, &self.tally, self.ticket).await
    }

    /// Its terms.
    pub(super) fn call(&self) -> &Call {
        &self.call
    }

    /// The request that it belongs to.
    pub(super) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }
}

/// The text of some items of a reply, and what is set aside for it until it has been sent.
pub(super) struct Text {
    json: Vec<u8>,
    held: Option<Beside>,
}

impl Text {
    /// Writes the members for these outputs, and what is told beside them.
    ///
    /// # Errors
    /// As [`reply::members`], and if there is no room for so much text.
    pub(super) fn of(
        permit: Option<&Arc<Permit>>,
        told: &OutputParameters,
        outputs: &[Output],
    ) -> Result<Text, InferError> {
        // Twice: the text itself, and the line that it becomes part of.
        let bytes_max = 2 * outputs.iter().map(Output::text_bytes_max).sum::<u64>();
        let mut held = counting(permit, bytes_max).map(|permit| permit.beside(bytes_max)).transpose()?;
        let json = reply::members(told, outputs)?;
        if let Some(held) = &mut held {
            held.set(2 * json.len() as u64);
        }
        Ok(Text { json, held })
    }
}

impl From<Vec<u8>> for Text {
    fn from(json: Vec<u8>) -> Text {
        Text { json, held: None }
    }
}

/// A reply of these entries, with their `index` as progress; the last line or event says how many there were. Their memory is charged to
/// the request.
pub(super) fn reply(
    form: Form,
    permit: Option<Arc<Permit>>,
    entries: impl Stream<Item = Entry> + Send + 'static,
) -> Response {
    let held = move |json: Vec<u8>| {
        let bytes = 2 * json.len() as u64;
        Ok(Text {
            held: counting(permit.as_ref(), bytes).map(|permit| permit.beside(bytes)).transpose()?,
            json,
        })
    };
    written(form, Vec::new(), entries.map(move |entry| (entry.place(), entry.answer.and_then(&held))))
}

/// The same for the items of a request of tensors. Each entry, even an error, says with which item it begins. Every line or event has the
/// request's `id`, as a reply in one piece has.
pub(super) fn parts(
    form: Form,
    id: Option<&str>,
    entries: impl Stream<Item = (usize, Result<Text, InferError>)> + Send + 'static,
) -> Response {
    let id = id.map(reply::id).unwrap_or_default();
    let entries = entries.map(|(first, entry)| (format!("\"first_item\":{first},").into_bytes(), entry));
    written(form, id, entries)
}

/// Writes entries. Each has the `common` members, then members of its own, then its text. Members end with a comma.
fn written(
    form: Form,
    common: Vec<u8>,
    entries: impl Stream<Item = (Vec<u8>, Result<Text, InferError>)> + Send + 'static,
) -> Response {
    let mut counts = [0u64; 2];
    let ending = StreamEnd::default();
    let (ended, mut problem) = (ending.clone(), None);
    let items = entries.map(Some).chain(stream::iter([None])).map(move |entry| {
        let (bytes, held) = match entry {
            Some((own, entry)) => {
                let index = counts[0] + counts[1];
                counts[usize::from(entry.is_err())] += 1;
                let (name, Text { json, held }) = match entry {
                    Ok(members) => ("answer", members),
                    Err(error) => {
                        let error = Problem::from(&error);
                        problem.get_or_insert(error.kind);
                        ("error", answer::problem(&error).into())
                    }
                };
                let index = format!("{{\"index\":{index},");
                (form.write(name, &[index.as_bytes(), &common, &own, &json, b"}"]), held)
            }
            None => {
                let [answered, failed] = counts;
                // As with a reply in one piece, which is an error only if nothing was answered.
                ended.ended(problem.filter(|_| answered == 0));
                let done = format!("\"done\":{{\"answered\":{answered},\"failed\":{failed}}}}}");
                (form.write("done", &[b"{", &common[..], done.as_bytes()]), None)
            }
        };
        let bytes = Bytes::from(bytes);
        Ok::<_, Infallible>(match held {
            Some(held) => keeping(bytes, &Arc::new(held)),
            None => bytes,
        })
    });
    let mut reply = Response::new(Body::from_stream(items));
    reply.extensions_mut().insert(ending);
    let media = match form {
        Form::Lines => "application/x-ndjson",
        // Some clients take text without a charset for Latin-1.
        Form::Events => "text/event-stream; charset=utf-8",
    };
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    // A proxy that buffers the whole reply before it passes it on would defeat its purpose.
    reply.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    reply.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::{Job, Queue, QueueLimits},
        engine::{DataType, Tensor, staging::Memory},
        telemetry::statistics::Failure,
    };
    use http_body_util::BodyExt;

    #[test]
    fn the_form_is_what_accept_asks_for() {
        let (json, binary) = (["application/json"], ["application/json", "application/octet-stream"]);
        let accepted = |accept: &'static str, whole: &[&'static str]| {
            Form::accepted(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]), whole)
        };
        let of = |accept| accepted(accept, &json);
        assert_eq!(of("application/x-ndjson"), Some(Form::Lines));
        assert_eq!(of("text/html, text/event-stream;q=0.9"), Some(Form::Events));
        assert_eq!(of("Text/Event-Stream; Q=1"), Some(Form::Events));
        assert_eq!(of("application/x-ndjson;q=0.5, text/event-stream"), Some(Form::Events));
        assert_eq!(of("application/json, */*"), None);
        assert_eq!(of("application/json, text/event-stream"), None);
        assert_eq!(of("application/x-ndjson;q=0.1, application/json"), None);
        assert_eq!(of("application/json;q=0.1, application/x-ndjson;q=0.2"), Some(Form::Lines));
        assert_eq!(of("*/*, text/event-stream"), Some(Form::Events));
        assert_eq!(of("*/*, text/event-stream;q=0.1"), None);
        assert_eq!(of("application/*;q=0.5, application/x-ndjson;q=0.4"), None);
        assert_eq!(of("image/*, application/x-ndjson;q=0.4"), Some(Form::Lines));
        assert_eq!(of("application/json, text/event-stream;q=0, application/x-ndjson; q=0.0"), None);
        assert_eq!(Form::accepted(&HeaderMap::new(), &json), None);
        // Where there is such a reply in one piece.
        for accept in [
            "application/octet-stream, application/x-ndjson;q=0.1",
            "application/octet-stream, text/event-stream",
        ] {
            assert_eq!(accepted(accept, &binary), None, "{accept}");
            assert!(of(accept).is_some(), "{accept}");
        }
        assert_eq!(
            accepted("application/octet-stream;q=0.1, text/event-stream", &binary),
            Some(Form::Events)
        );
    }

    #[tokio::test]
    async fn entries_come_in_order_with_their_index_and_a_count_at_the_end() {
        for (form, expected) in [
            (Form::Lines, "{\"index\":0,\"a\":1}\n{\"index\":1,\"file\":2,\"page\":3,\"detail\":\"no\""),
            (
                Form::Events,
                "event: answer\ndata: {\"index\":0,\"a\":1}\n\nevent: error\ndata: {\"index\":1,\"file\":2,\"page\":3,\"detail\":\"no\"",
            ),
        ] {
            let entries = [
                Entry { file: 0, page: None, answer: Ok(b"\"a\":1".to_vec()) },
                Entry { file: 2, page: Some(3), answer: Err(InferError::Decode("no".into())) },
            ];
            let reply = reply(form, None, stream::iter(entries));
            assert_eq!(reply.headers()["x-accel-buffering"], "no", "proxies pass it on as it comes");
            let body = reply.into_body().collect().await.expect("infallible");
            let text = String::from_utf8(body.to_bytes().to_vec()).expect("text");
            assert!(text.starts_with(expected), "{text}");
            assert!(text.trim_end().ends_with("{\"done\":{\"answered\":1,\"failed\":1}}"), "{text}");
        }
    }

    #[tokio::test]
    async fn parts_of_a_request_say_where_they_begin_and_whose_they_are_also_where_they_failed() {
        for (id, said) in [(Some("a\"b"), "\"id\":\"a\\\"b\","), (None, "")] {
            let entries = [(0, Ok(b"\"a\":1".to_vec().into())), (4, Err(InferError::Decode("no".into())))];
            let body = parts(Form::Lines, id, stream::iter(entries)).into_body().collect().await;
            let text = String::from_utf8(body.expect("infallible").to_bytes().to_vec()).expect("text");
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines[0], format!("{{\"index\":0,{said}\"first_item\":0,\"a\":1}}"));
            let failed = format!("{{\"index\":1,{said}\"first_item\":4,\"detail\":\"no\"");
            assert!(lines[1].starts_with(&failed) && lines[1].contains("\"status\":400"), "{text}");
            assert_eq!(lines[2], format!("{{{said}\"done\":{{\"answered\":1,\"failed\":1}}}}"));
            assert!(
                lines.iter().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()),
                "{text}"
            );
        }
    }

    #[test]
    fn what_waits_for_its_turn_when_the_caller_goes_away_is_counted_as_cancelled() {
        let signature = crate::tasks::testing::signature(&[("y", &[-1, 2])]);
        let (key, timeout) = (crate::batch::ModelKey(1), std::time::Duration::from_secs(60));
        let source = crate::models::testing::source("m", "1", "");
        let model = Model::resolve(key, &source, signature, timeout, &Memory::Plain).expect("a model");
        let queue = Queue::new(QueueLimits { items_max: 10, bytes_max: 100 });
        queue.register(key, "m", model.rules.clone());
        let call = Call::of(&HeaderMap::new(), &model, timeout).expect("no headers");
        let data = vec![0; 8].into();
        let inputs = vec![Tensor { datatype: DataType::Fp32, shape: vec![1, 2], data }];
        let job = Job::plain(key, inputs, 1, std::time::Instant::now());
        let model = Arc::new(model);
        let (tally, ticket) = (Tally::of(&model), queue.push(job).expect("there is room"));
        tally.queued(ticket.pushed());
        drop(Queued::new(call, Arc::new(tally), ticket));
        let cancelled = |of: Failure| model.statistics.snapshot().failures[of as usize].count;
        assert_eq!(Failure::ALL.map(cancelled), [0, 1, 0, 0]);
    }
}
