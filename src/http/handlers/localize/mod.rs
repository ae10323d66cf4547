//! `POST /predictions/{model}` for a fitter: a stack of camera frames or of ROIs in, localizations out.
//!
//! - [`asked`]: what the query and the headers ask for.
//! - [`tensors`]: the same task by the Open Inference Protocol.
//! - [`drive`]: the work on one stack. [`finding`] goes ahead (body to chunks, chunks to the queue), [`telling`] follows (the model's
//!   answers to bytes of the reply). Both run at once, and in order.
//! - [`outgoing`]: passes bytes to the connection, and keeps those that the client does not read yet.
//! - [`share`]: how much of all this is charged to the request.
//! - `stack_options`: how stacks are read under a configuration.
//!
//! A raw body is read as it comes, so a stack may be longer than memory. In a format that streams, results are sent while the body still
//! comes. Once something was sent, an error becomes the last member of the reply.

mod asked;
mod drive;
mod finding;
mod outgoing;
mod share;
mod stack_options;
mod telling;
pub(super) mod tensors;

use crate::{
    error::InferError,
    http::{
        Front,
        body::{
            self,
            posted::{self, AsTorchServe},
        },
        call::Call,
        observe::StreamEnd,
        reject::Problem,
    },
    image::stack::Received,
    models::Model,
    tasks::localize::Settings,
    words::clipped,
};
use asked::Asked;
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderName, HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use drive::Drive;
use finding::Posted;
use futures_util::{Stream, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use outgoing::{COUNTS, Event, Head, Outgoing};
use share::Share;
pub(in crate::http) use stack_options::stack_options;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Header with units, pixel origin and frame base of the reply, whether or not its format can express them.
const CONVENTIONS: HeaderName = HeaderName::from_static("ocelli-conventions");

/// Answers a request whose model is a fitter.
pub(super) async fn predict(
    front: &Arc<Front>,
    model: &Arc<Model>,
    settings: &Settings,
    request: Request,
) -> Result<Response, InferError> {
    let call = Call::of(request.headers(), model, front.limits.timeout_max)?.traced(request.extensions());
    let mut asked =
        Asked::of(request.uri().query().unwrap_or_default(), request.headers(), settings.clone())?;
    asked.came = request.extensions().get::<Received>().cloned();
    let format = asked.format;
    let options = &front.limits.stack;
    let (posted, waiting) = if posted::is_raw(request.headers())? {
        let mut reader = body::Reader::new(request.into_body(), front.limits.stack_body);
        reader.announced()?;
        if let Some(permit) = &call.permit {
            // It is not held as a whole, whatever its length.
            reader = reader.charged_up_to(share::of_stack(options), Arc::clone(permit));
        }
        (Posted::Stream(reader), Share::of_stream(call.permit.as_ref(), options))
    } else {
        let read = posted::read(request, front, call.step(), AsTorchServe::default()).await;
        let posted::Posted { mut files, parameters, .. } = read.map_err(streamed_instead)?;
        if let Some(key) = parameters.keys().next().map(|key| clipped(key)) {
            return Err(InferError::BadRequest(format!(
                "{key:?} among the parameters of the body: what is asked of a stack is said in the query, such as ?psf=xynbs"
            )));
        }
        match (files.pop(), files.len()) {
            (Some(file), 0) => (Posted::File(file?), Share::beside_file(call.permit.as_ref())),
            (_, more) => {
                return Err(InferError::BadRequest(format!("{} files, expected one stack", more + 1)));
            }
        }
    };
    let (reply, mut coming) = Outgoing::new(options.limits.memory_bytes_max, waiting);
    let drive = Drive::new(front, model, call, asked);
    // The request's span goes with the task, so its log lines have the request's id.
    let driving = tracing::Instrument::instrument(drive.run(posted, reply), tracing::Span::current());
    let task = AbortOnDropHandle::new(tokio::spawn(driving));

    let Head { conventions, spent, counts } = match coming.recv().await {
        Some(Event::Begin(head)) => head,
        Some(Event::Failed(error)) => return Err(error),
        Some(Event::Bytes(_) | Event::Broken(..) | Event::End(_)) | None => {
            return Err(InferError::Internal("a stack was given up without a reason".into()));
        }
    };
    let ending = StreamEnd::default();
    let mut response = Response::new(Body::new(StreamBody::new(frames(coming, task, ending.clone()))));
    response.extensions_mut().insert(ending);
    let headers = response.headers_mut();
    let trailers = "ocelli-counts, server-timing, ocelli-device, ocelli-fallback";
    headers.insert(header::TRAILER, HeaderValue::from_static(trailers));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    spent.tell(headers);
    if let Some(counts) = counts {
        headers.insert(COUNTS, counts);
    }
    // Names of columns may have letters that a header may not.
    if let Ok(value) = HeaderValue::from_str(&conventions.replace('σ', "sigma")) {
        headers.insert(CONVENTIONS, value);
    }
    let name = format!("inline; filename=\"{}.{}\"", model.name, format.file_extension());
    if let Ok(value) = HeaderValue::from_str(&name) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    Ok(response)
}

/// Says of a form or JSON that is too large how to send a file that is larger.
fn streamed_instead(error: InferError) -> InferError {
    match error {
        InferError::TooLarge { what, got, limit, option: option @ "body_bytes_max" } => {
            let what = format!(
                "{what} (held as a whole, since the file is in a form or in JSON: send it as the body itself, such as by curl -T FILE, \
                 which is read as it comes)"
            );
            InferError::TooLarge { what: what.into(), got, limit, option }
        }
        other => other,
    }
}

/// The reply's body: all that comes after its beginning. Dropping it, for instance when the client goes away, ends the task.
fn frames(
    coming: mpsc::Receiver<Event>,
    task: AbortOnDropHandle<()>,
    ending: StreamEnd,
) -> impl Stream<Item = Result<Frame<Bytes>, InferError>> {
    let none = Vec::new().into_iter();
    stream::unfold((coming, none, task, ending), |(mut coming, mut pieces, task, ending)| async move {
        let frame = loop {
            if let Some(bytes) = pieces.next() {
                break Ok(Frame::data(bytes));
            }
            break match coming.recv().await? {
                Event::Bytes(more) => {
                    pieces = more.into_iter();
                    continue;
                }
                Event::Broken(last, kind) => {
                    ending.ended(Some(kind));
                    Ok(Frame::data(last))
                }
                Event::End(trailers) => {
                    ending.ended(None);
                    Ok(Frame::trailers(trailers))
                }
                // Too late for an error reply. A body that is cut off is not taken for a whole one.
                Event::Failed(error) => {
                    tracing::warn!(%error, "a reply is cut off");
                    ending.ended(Some(Problem::from(&error).kind));
                    Err(error)
                }
                Event::Begin(..) => return None,
            };
        };
        Some((frame, (coming, pieces, task, ending)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use futures_util::StreamExt;

    #[test]
    fn a_form_that_is_too_large_is_told_how_to_send_its_file() {
        let too_large =
            |option| InferError::TooLarge { what: "the body in bytes".into(), got: 503, limit: 256, option };
        let told = streamed_instead(too_large("body_bytes_max")).to_string();
        let begins = "the body in bytes (held as a whole, since the file is in a form or in JSON: send it as the body itself, ";
        assert!(told.starts_with(begins), "{told}");
        assert!(told.ends_with("is 503, more than the limit of 256; raise it with body_bytes_max"), "{told}");
        assert_eq!(streamed_instead(too_large("")), too_large(""), "a bound that is not of bodies");
    }

    #[tokio::test]
    async fn a_reply_that_fails_after_its_beginning_is_cut_off() {
        let share = Share::of_stream(None, &stack_options(&Config::default()));
        let (mut reply, coming) = Outgoing::new(1000, share);
        let task = tokio::spawn(async move {
            let _ = reply.bytes(vec![Bytes::from_static(b"a row")]).await;
            let _ = reply.send(Event::Failed(InferError::Internal("planted".into()))).await;
        });
        let mut frames = std::pin::pin!(frames(coming, AbortOnDropHandle::new(task), StreamEnd::default()));
        let first = frames.next().await.expect("a frame").expect("it came before");
        assert_eq!(first.into_data().expect("bytes"), "a row");
        assert!(
            matches!(frames.next().await, Some(Err(InferError::Internal(_)))),
            "it does not end in order"
        );
    }
}
