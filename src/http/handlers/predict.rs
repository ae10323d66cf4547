//! `POST /predictions/{model}`: images in, answers out.
//!
//! A raw body is one file, and a file of one frame gets a plain answer. Everything else (multipart, JSON instances, multi-page files) gets
//! a list with an entry per frame, in order. One bad image is an error in its own entry; the first error becomes the whole reply only if
//! nothing could be answered. A TIFF has a page per frame, and none for an error: the first one becomes the reply. TorchServe's form has one difference: a multipart form of one file counts as that file.

mod asked;
mod entries;
mod negotiated;
mod streaming;

use self::{
    asked::PictureForm,
    entries::{Pushed, without_errors},
    negotiated::Reply,
    streaming::one_by_one,
};
pub(super) use self::{
    asked::{Asked, Options},
    entries::{Entries, entries},
    negotiated::Negotiated,
};
use super::localize;
use crate::{
    error::InferError,
    http::{
        Front,
        body::posted::{self, AsTorchServe},
        call::{Call, Spent},
        decode::{Decoded, Opened, Staged},
        streamed,
        target::Target,
        wire::{
            Parameters,
            answer::{self, Entry, MaskForm, Of},
        },
    },
    models::{Model, may_be_image},
    tasks::sheets::Sheets,
};
use axum::{
    extract::{Request, State},
    http::header,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use std::sync::Arc;

/// The longest TIFF: offsets have 32 bits.
const TIFF_BYTES_MAX: u64 = u32::MAX as u64;

/// `POST /predictions/{model}[/{version}]`
pub(in crate::http) async fn predict(
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
    let options = Options::of(request.uri().query().unwrap_or(""), front.torchserve_answers)
        .map_err(InferError::BadRequest)?;
    let mut call = Call::of(request.headers(), model, front.limits.timeout_max)?.traced(request.extensions());
    if model.image.is_none() {
        return Err(takes_tensors(model));
    }
    let negotiated = Negotiated::of(request.headers(), &model.task);
    let torchserve = negotiated.torchserve(front.torchserve_answers);
    let options = if torchserve { options.in_torchserves_form(&model.task) } else { options };
    let as_torchserve =
        AsTorchServe { takes: front.torchserve_answers, answers: options.are_for_torchserves_form() };
    let mut posted = call.body(posted::read(request, front, call.step(), as_torchserve)).await?;
    let mut asked = Asked::of(options, &posted.parameters, model)?;
    let pictured = match negotiated.pictured {
        Some(Reply::Picture(form)) => Some(form),
        _ => None,
    };
    match (asked.mask, pictured) {
        (MaskForm::Rle, Some(form)) if matches!(negotiated.otherwise, None | Some(Reply::Picture(_))) => {
            return Err(InferError::BadRequest(format!(
                "mask=rle and Accept: {} exclude each other: leave out one of the two",
                form.media()
            )));
        }
        (MaskForm::Png, Some(form)) if posted.files.len() == 1 => {
            let file = posted.files.remove(0)?;
            let only =
                front.decode.stage_only(call.step(), file.clone(), Arc::clone(model), call.permit.as_ref());
            if let Opened::Only(decoded) = call.in_time(only).await? {
                drop(file);
                asked.picture = Some(form);
                return picture(front, model, &call, (&Arc::new(asked), form), decoded).await;
            }
            posted.files.push(Ok(file));
        }
        _ => {}
    }
    let reply = match (negotiated.otherwise, pictured) {
        (Some(Reply::Picture(form)), _) => {
            asked.picture = Some(form);
            return stack(front, model, &call, &Arc::new(asked), posted.files).await;
        }
        (Some(reply), _) => reply,
        (None, Some(form)) => {
            return Err(InferError::NotAcceptable {
                got: format!("{} for several images", form.media()),
                accepted: "image/tiff, application/json",
            });
        }
        // An `Accept` that names none of the route's types gets JSON.
        (None, None) => Reply::Json,
    };
    let asked = Arc::new(asked);
    if let Reply::Streamed(form) = reply {
        if asked.torchserve {
            return Err(InferError::BadRequest(
                "format=torchserve does not stream: leave out one of the two".into(),
            ));
        }
        let entries = one_by_one(front, model, &call, &asked, posted.files);
        return Ok(streamed::reply(form, call.permit, entries));
    }
    let Entries { entries, spent, held: _held } = entries(front, model, &call, &asked, posted.files).await?;
    let body = written(model, &asked, &entries, posted.raw, posted.listed);
    call.says(body.len() as u64)?;
    Ok(replied("application/json", body, &spent))
}

/// The answer to a request that is one file, as JSON in TorchServe's form if the task has that.
pub(crate) async fn file(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    file: Bytes,
) -> Result<(Vec<u8>, Spent), InferError> {
    if model.fit.is_some() {
        return Err(InferError::BadRequest(format!(
            "model {:?} takes stacks of frames: post them over HTTP, to /predictions/{}",
            model.name, model.name
        )));
    }
    if model.image.is_none() {
        return Err(takes_tensors(model));
    }
    let options = Options::default().in_torchserves_form(&model.task);
    let asked = Arc::new(Asked::of(options, &Parameters::new(), model)?);
    let Entries { entries, spent, held: _held } = entries(front, model, call, &asked, vec![Ok(file)]).await?;
    let body = written(model, &asked, &entries, true, false);
    call.says(body.len() as u64)?;
    Ok((body, spent))
}

/// The JSON of a reply to a request that was one file (`raw`), or had a list of files (`listed`).
fn written(model: &Model, asked: &Asked, entries: &[Entry], raw: bool, listed: bool) -> Vec<u8> {
    let of = Of { model: &model.name, version: &model.version, task: model.task.name() };
    match entries {
        entries if asked.torchserve => answer::bare(entries, listed),
        [Entry { answer: Ok(members), .. }] if raw => answer::one(of, members),
        several => answer::several(of, several),
    }
}

/// The mask or picture of the only frame, as a file of its own.
async fn picture(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    (asked, form): (&Arc<Asked>, PictureForm),
    Decoded { staged, took, share }: Decoded<Staged>,
) -> Result<Response, InferError> {
    call.decoded(front, model, took);
    let frame = Pushed::new(front, model, call, asked, staged);
    drop(share);
    let (file, spent) = frame.answer(front, call, asked, took).await?;
    call.says(file.len() as u64)?;
    Ok(replied(form.media(), file, &spent))
}

/// The masks or pictures of several frames as the pages of one TIFF.
async fn stack(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    asked: &Arc<Asked>,
    files: Vec<Result<Bytes, InferError>>,
) -> Result<Response, InferError> {
    let Entries { entries, spent, held } = entries(front, model, call, asked, files).await?;
    let sheets = Sheets::of(without_errors(entries)?).map_err(InferError::Internal)?;
    let (got, memory, limit) = (sheets.bytes(), sheets.memory(), TIFF_BYTES_MAX);
    if got > limit {
        let what = "bytes of all pages as one TIFF".into();
        return Err(InferError::TooLarge { what, got, limit, option: "" });
    }
    call.says(got)?;
    let joined = move || {
        let joined = sheets.joined();
        drop(held);
        joined
    };
    let what = "memory to join the pages of a TIFF in bytes";
    let file = front.decode.run_within(memory, what, joined).await?;
    let file = file.map_err(InferError::Internal)?;
    Ok(replied(PictureForm::Tiff.media(), file, &spent))
}

fn replied(media: &'static str, body: Vec<u8>, spent: &Spent) -> Response {
    let mut reply = ([(header::CONTENT_TYPE, media)], body).into_response();
    spent.tell(reply.headers_mut());
    reply
}

fn takes_tensors(model: &Model) -> InferError {
    let inputs = &model.signature.inputs;
    let names = || inputs.iter().map(|input| format!("{:?}", input.name)).collect::<Vec<_>>().join(", ");
    let or = match inputs.len() {
        _ if !may_be_image(&model.signature) => String::new(),
        1 => ", or say in its model.toml with an [input] table how an image becomes its input".to_owned(),
        n => format!(
            ". An image becomes one input, and it has {n} ({}): of a detector detect.size_input may name the second, if that \
             takes a width and a height, and input.constants fills those that are always the same",
            names()
        ),
    };
    InferError::BadRequest(format!(
        "model {:?} takes tensors, not images: post to /v2/models/{}/infer{or}",
        model.name, model.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::ModelKey,
        engine::{DataType, staging::Memory},
        models::testing::source,
        tasks::testing::{signature, spec},
    };
    use std::time::Duration;

    #[test]
    fn a_picture_for_a_model_of_tensors_is_told_what_is_possible_for_its_inputs() {
        let of = |inputs: &[&str], datatype, shape: &[i64]| {
            let mut signature = signature(&[("y", &[-1, 2])]);
            signature.inputs = inputs.iter().map(|name| spec(name, datatype, shape)).collect();
            let second = Duration::from_secs(1);
            let model = Model::resolve(ModelKey(1), &source("m", "1", ""), signature, second, &Memory::Plain);
            takes_tensors(&model.unwrap()).to_string()
        };
        let check = |inputs: &[&str], expected: &str| {
            let told = of(inputs, DataType::Fp32, &[-1, 3, 8, 8]);
            assert!(told.contains("post to /v2/models/m/infer") && told.contains(expected), "{told}");
            assert_eq!(told.contains("[input]"), inputs.len() == 1, "{told}");
        };
        check(&["x"], "or say in its model.toml with an [input] table how an image becomes its input");
        check(
            &["x", "size"],
            "and it has 2 (\"x\", \"size\"): of a detector detect.size_input may name the second",
        );
        check(&["a", "b", "c"], "An image becomes one input, and it has 3 (\"a\", \"b\", \"c\")");
        check(&["a", "mask"], "input.constants fills those that are always the same");
        // What no image can become is left as it is.
        for (datatype, shape) in
            [(DataType::Bytes, &[-1, 1][..]), (DataType::Bool, &[-1, 3, 8, 8]), (DataType::Fp32, &[-1, 10])]
        {
            let told = of(&["x"], datatype, shape);
            assert!(told.ends_with("takes tensors, not images: post to /v2/models/m/infer"), "{told}");
        }
    }
}
