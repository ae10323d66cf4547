//! `POST /predictions/{model}`: images in, answers out.
//!
//! A raw body is one file, and a file of one frame gets a plain answer. Everything else (multipart, JSON instances,
//! multi-page files) gets a list with an entry per frame, in order. One bad image is an error in its own entry; only
//! when nothing could be answered is the first error the reply's own.

use super::{
    Front,
    call::{Call, Spent},
    decode::{Decoded, Share, Staged},
    localize, posted,
    streamed::{self, Form},
    target::Target,
    wire::{
        self, Parameters,
        answer::{self, MaskForm, Of},
    },
};
use crate::{
    batch::{self, Ticket},
    error::InferError,
    image::Placement,
    models::Model,
    tasks::{Answer, Task},
};
use axum::{
    extract::{Query, Request, State},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, future::join_all, stream};
use serde::Deserialize;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// What the query of a request may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Options {
    /// Classes to return, instead of the model's own setting.
    top_k: Option<String>,
    /// `png` or `rle`.
    mask: Option<String>,
    /// `ocelli` or `torchserve`.
    format: Option<String>,
}

impl Options {
    /// In TorchServe's form where nothing else is asked for and the task has it.
    fn in_torchserves_form(mut self, task: &Task) -> Options {
        if matches!(task, Task::Classify(_)) {
            self.format.get_or_insert_with(|| "torchserve".to_owned());
        }
        self
    }
}

/// `POST /predictions/{model}[/{version}]`
pub(super) async fn predict(
    State(front): State<Arc<Front>>,
    target: Target,
    request: Request,
) -> Result<Response, InferError> {
    let model = target.find(&front)?;
    match &model.fit {
        Some(settings) => localize::predict(&front, &model, settings, request).await,
        None => answer(&front, &model, request).await,
    }
}

async fn answer(front: &Arc<Front>, model: &Arc<Model>, request: Request) -> Result<Response, InferError> {
    let Query(options) = Query::<Options>::try_from_uri(request.uri()).map_err(|error| {
        InferError::BadRequest(format!("the query cannot be read: {}", error.body_text()))
    })?;
    let call = Call::of(request.headers(), model, front.limits.timeout_max)?.traced(request.extensions());
    if model.image.is_none() {
        return Err(takes_tensors(model));
    }
    let wants_png = accepts_png(request.headers(), &model.task);
    let form = Form::accepted(request.headers());
    // A stream has one form.
    let torchserve = (front.torchserve_answers || accepts_torchserve(request.headers())) && form.is_none();
    let options = if torchserve { options.in_torchserves_form(&model.task) } else { options };
    let posted = posted::read(request, front).await?;
    let asked = Arc::new(Asked::of(options, &posted.parameters, model, wants_png)?);

    if let Some(form) = form {
        if asked.torchserve {
            return Err(InferError::BadRequest(
                "format=torchserve does not stream: leave out one of the two".into(),
            ));
        }
        return Ok(streamed::reply(form, one_by_one(front, model, &call, &asked, posted.files)));
    }
    let (entries, spent) = entries(front, model, &call, &asked, posted.files).await?;
    let of = Of { model: &model.name, version: &model.version, task: model.task.name() };
    let (media, body) = match &entries[..] {
        [Ok(png)] if wants_png => ("image/png", png.clone()),
        entries if asked.torchserve => ("application/json", answer::bare(entries, posted.raw)),
        [Ok(members)] if posted.raw => ("application/json", answer::one(of, members)),
        _ if wants_png => {
            return Err(InferError::NotAcceptable {
                got: "image/png for several images".into(),
                accepted: "application/json",
            });
        }
        several => ("application/json", answer::several(of, several)),
    };
    let mut reply = ([(header::CONTENT_TYPE, media)], body).into_response();
    spent.tell(reply.headers_mut());
    Ok(reply)
}

/// The same answers as they come, in order. Each frame has the time that a request has.
fn one_by_one(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    asked: &Arc<Asked>,
    files: Vec<Result<Bytes, InferError>>,
) -> impl Stream<Item = Entry> + Send + use<> {
    let ahead = streamed::ahead(model);
    let common = (Arc::clone(front), Arc::clone(model), call.clone(), Arc::clone(asked));
    let decoding = common.clone();
    let decoded = stream::iter(files).map(move |file| {
        let (front, model, call, _) = decoding.clone();
        async move {
            let (began, decode) = (call.again(), front.decode.stage(file?, Arc::clone(&model)));
            let Decoded { frames, took, share } = began.in_time(decode).await?;
            front.metrics.model(&model.name).decode_seconds.observe(took.as_secs_f64());
            began.stage("decode", took);
            Ok(match <[Staged; 1]>::try_from(frames) {
                // Not in its turn: a file that is ahead would keep its share of the memory for decoding from those before it.
                Ok([only]) => vec![queue(&front, &model, &call, only, took).map(Ahead::Queued)],
                Err(frames) => {
                    // Until the last of its frames is queued.
                    let share = Arc::new(share);
                    let waits = |frame| Ok(Ahead::Waits(frame, took, Arc::clone(&share)));
                    frames.into_iter().map(waits).collect()
                }
            })
        }
    });
    let frames = decoded
        .buffered(streamed::FILES_AHEAD)
        .flat_map(|frames| stream::iter(frames.unwrap_or_else(|error| vec![Err(error)])));
    let answers = frames.map(move |frame| {
        let (front, model, call, asked) = common.clone();
        async move {
            let queued = match frame? {
                Ahead::Queued(queued) => Ok(queued),
                Ahead::Waits(frame, took, _share) => queue(&front, &model, &call, frame, took),
            };
            let Queued { call, ticket, placement, took } = queued?;
            let ran = call.answer(&front, &model, ticket).await?;
            let answered = Instant::now();
            let (entry, _) = entry(&front, &model, &asked, ran, placement, took).await?;
            call.stage("encode", answered.elapsed());
            Ok(entry)
        }
    });
    answers.buffered(ahead)
}

/// A frame of a stream that was decoded ahead.
enum Ahead {
    /// The only one of its file.
    Queued(Queued),
    /// One of several, with how long all of them took and what they take.
    Waits(Staged, Duration, Arc<Share>),
}

/// A frame in the queue, under terms of its own.
struct Queued {
    call: Call,
    ticket: Ticket,
    placement: Placement,
    took: Duration,
}

/// Queues a frame of a stream: from now on it has the time that a request has.
fn queue(
    front: &Front,
    model: &Model,
    call: &Call,
    Staged { tensor, placement }: Staged,
    took: Duration,
) -> Result<Queued, InferError> {
    let call = call.again();
    let ticket = call.push_image(front, model, tensor)?;
    Ok(Queued { call, ticket, placement, took })
}

/// The answers for files, in their order, one for each frame. One that has none is an error in its place.
///
/// # Errors
/// The first error, if nothing could be answered.
pub(super) async fn entries(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    asked: &Arc<Asked>,
    files: Vec<Result<Bytes, InferError>>,
) -> Result<(Vec<Entry>, Spent), InferError> {
    let files = files.into_iter().map(|file| one_file(front, model, call, asked, file));
    let mut spent = Spent::default();
    let mut entries = Vec::new();
    for file in join_all(files).await {
        match file {
            Ok(frames) => entries.extend(frames.into_iter().map(|frame| {
                frame.map(|(entry, of)| {
                    spent.include(&of);
                    entry
                })
            })),
            Err(error) => entries.push(Err(error)),
        }
    }
    if entries.iter().all(Result::is_err)
        && let Some(Err(error)) = entries.pop()
    {
        let first = entries.into_iter().next().and_then(Result::err);
        return Err(first.unwrap_or(error));
    }
    Ok((entries, spent))
}

/// What a model says of a frame, as the members of an object.
pub(super) type Entry = Result<Vec<u8>, InferError>;

/// How many classes TorchServe's classifiers answer.
const TORCHSERVE_CLASSES: usize = 5;

/// What a request wants of the answer.
pub(super) struct Asked {
    task: Task,
    mask: MaskForm,
    png: bool,
    /// `{label: probability}`, as TorchServe's classifiers answer.
    torchserve: bool,
}

impl Asked {
    fn of(options: Options, parameters: &Parameters, model: &Model, png: bool) -> Result<Asked, InferError> {
        let bad = |name: &str, got: &str, expected: &str| {
            InferError::BadRequest(format!("{name} is {got:?}, expected {expected}"))
        };
        let top_k = match options.top_k {
            Some(text) => {
                Some(text.parse().map_err(|_| bad("top_k", &text, "a whole number of at least 1"))?)
            }
            None => wire::count(parameters, "top_k")?,
        };
        let mut task = model.task.clone();
        if let (Some(top_k), Task::Classify(classify)) = (top_k, &mut task) {
            let top_k = usize::try_from(top_k).ok().filter(|k| *k > 0);
            classify.top_k = top_k.ok_or_else(|| bad("top_k", "0", "a whole number of at least 1"))?;
        }
        let mask = match options.mask.as_deref() {
            None | Some("png") => MaskForm::Png,
            Some("rle") => MaskForm::Rle,
            Some(other) => return Err(bad("mask", other, "png or rle")),
        };
        if let (Some("torchserve"), None, Task::Classify(classify)) =
            (options.format.as_deref(), top_k, &mut task)
        {
            classify.top_k = TORCHSERVE_CLASSES;
        }
        let torchserve = match (options.format.as_deref(), &task) {
            (None | Some("ocelli"), _) => false,
            (Some("torchserve"), Task::Classify(_)) => true,
            (Some("torchserve"), _) => {
                return Err(bad("format", "torchserve", "a model with the task classify for it"));
            }
            (Some(other), _) => return Err(bad("format", other, "ocelli or torchserve")),
        };
        Ok(Asked { task, mask, png, torchserve })
    }

    /// What a request wants that has no query.
    pub(super) fn plain(parameters: &Parameters, model: &Model) -> Result<Asked, InferError> {
        Asked::of(Options::default(), parameters, model, false)
    }
}

/// `Accept: application/json; format=torchserve` asks for TorchServe's form, for those who cannot change an address.
fn accepts_torchserve(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|accept| accept.split(',')).any(|media| {
        let mut parts = media.split(';').map(str::trim);
        let json = parts.next().is_some_and(|media| media.eq_ignore_ascii_case("application/json"));
        json && parts.any(|parameter| parameter.eq_ignore_ascii_case("format=torchserve"))
    })
}

/// A segmenter's mask can be had as the picture itself.
fn accepts_png(headers: &HeaderMap, task: &Task) -> bool {
    matches!(task, Task::Segment(_))
        && headers
            .get(header::ACCEPT)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|accept| accept.trim_start().starts_with("image/png"))
}

type Frame = Result<(Vec<u8>, Spent), InferError>;

/// Decodes a file, runs its frames, and turns what comes out into entries of the reply.
async fn one_file(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    asked: &Arc<Asked>,
    file: Result<Bytes, InferError>,
) -> Result<Vec<Frame>, InferError> {
    let decoded = call.in_time(front.decode.stage(file?, Arc::clone(model))).await?;
    let Decoded { frames, took, share } = decoded;
    front.metrics.model(&model.name).decode_seconds.observe(took.as_secs_f64());
    call.stage("decode", took);
    let queued: Vec<_> = frames
        .into_iter()
        .map(|Staged { tensor, placement }| (call.push_image(front, model, tensor), placement))
        .collect();
    // From here on the queue accounts for their memory.
    drop(share);
    let answers = queued.into_iter().map(async |(ticket, placement)| {
        let ran = call.answer(front, model, ticket?).await?;
        let answered = Instant::now();
        entry(front, model, asked, ran, placement, took)
            .await
            .inspect(|_| call.stage("encode", answered.elapsed()))
    });
    Ok(join_all(answers).await)
}

/// Turns what a model gave for a frame into an entry of the reply.
async fn entry(
    front: &Front,
    model: &Arc<Model>,
    asked: &Arc<Asked>,
    ran: batch::Answer,
    placement: Placement,
    decode: Duration,
) -> Frame {
    let (device, answered) = (front.metrics.model(&model.name).device(&ran.device), Instant::now());
    let spent = Spent::on(decode, &ran);
    let (of, asked_of) = (Arc::clone(model), Arc::clone(asked));
    let entry = move || {
        let answer = asked_of
            .task
            .answer(&ran.outputs, &of.signature, &of.labels, Some(&placement))
            .map_err(InferError::Input)?;
        match &answer {
            Answer::Mask(mask) if asked_of.png => mask.to_png_palette().map_err(InferError::Internal),
            Answer::Classes(classes) if asked_of.torchserve => Ok(answer::probabilities(classes)),
            answer => answer::members(answer, &of.signature, placement.source, asked_of.mask),
        }
    };
    // Boxes, masks and raw outputs take longer than a hand-over to the pool does; labels and vectors do not.
    let entry = match asked.task {
        Task::Classify(_) | Task::Embed(_) => entry(),
        Task::Detect(_) | Task::Segment(_) | Task::Tensors | Task::Localize => {
            front.decode.run(entry).await?
        }
    };
    device.reply_seconds.observe(answered.elapsed().as_secs_f64());
    model.statistics.replied(answered.elapsed());
    Ok((entry?, spent))
}

fn takes_tensors(model: &Model) -> InferError {
    InferError::BadRequest(format!(
        "model {:?} takes tensors, not images: post to /v2/models/{}/infer, or say in its model.toml with an [input] \
         table how an image becomes its input",
        model.name, model.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn torchserves_form_can_be_accepted() {
        let check = |accept: &'static str, expected: bool| {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(accepts_torchserve(&headers), expected, "{accept}");
        };
        check("application/json;format=torchserve", true);
        check("text/html, application/json; q=0.9; format=torchserve", true);
        check("application/json, */*", false);
        check("text/plain; format=torchserve", false);
        check("application/json; format=ocelli", false);
    }
}
