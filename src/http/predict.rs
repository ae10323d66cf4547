//! `POST /predictions/{model}`: images in, answers out.
//!
//! A raw body is one file, and a file of one frame gets a plain answer. Everything else (multipart, JSON instances, multi-page files) gets
//! a list with an entry per frame, in order. One bad image is an error in its own entry; the first error becomes the whole reply only if
//! nothing could be answered. TorchServe's form has one difference: a multipart form of one file counts as that file.

mod asked;
mod negotiated;
mod streaming;

pub(super) use self::{
    asked::{Asked, Options},
    negotiated::Negotiated,
};
use self::{
    negotiated::{PictureForm, Reply},
    streaming::one_by_one,
};
use super::{
    Front,
    call::{Call, Spent},
    decode::{self, Decoded, Frames, Opened, Staged, Turns},
    localize, posted,
    reject::kind_of,
    streamed,
    tally::Tally,
    target::Target,
    wire::answer::{self, Entry, MaskForm, Of, Page},
};
use crate::{
    batch::{self, Ticket},
    error::InferError,
    image::Placement,
    models::{Model, may_be_image},
    tasks::{Answer, Task},
};
use axum::{
    extract::{Request, State},
    http::header,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::future::join_all;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

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
    let options = Options::of(request.uri().query().unwrap_or(""), front.torchserve_answers)
        .map_err(InferError::BadRequest)?;
    let mut call = Call::of(request.headers(), model, front.limits.timeout_max)?.traced(request.extensions());
    if model.image.is_none() {
        return Err(takes_tensors(model));
    }
    let negotiated = Negotiated::of(request.headers(), &model.task);
    let torchserve = negotiated.torchserve(front.torchserve_answers);
    let options = if torchserve { options.in_torchserves_form(&model.task) } else { options };
    let mut posted = call.body(posted::read(request, front, front.torchserve_answers)).await?;
    let mut asked = Asked::of(options, &posted.parameters, model)?;
    let pictured = match negotiated.pictured {
        Some(Reply::Picture(form)) => Some(form),
        _ => None,
    };
    match (asked.mask, pictured) {
        (MaskForm::Rle, Some(_)) if negotiated.otherwise.is_none() => {
            return Err(InferError::BadRequest(
                "mask=rle and Accept: image/png exclude each other: leave out one of the two".into(),
            ));
        }
        (MaskForm::Png, Some(form)) if posted.files.len() == 1 => {
            let file = posted.files.remove(0)?;
            let only = front.decode.stage_only(file.clone(), Arc::clone(model), call.permit.as_ref());
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
        (Some(reply), _) => reply,
        (None, Some(form)) => {
            return Err(InferError::NotAcceptable {
                got: format!("{} for several images", form.media()),
                accepted: "application/json",
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
    let (entries, spent) = entries(front, model, &call, &asked, posted.files).await?;
    let of = Of { model: &model.name, version: &model.version, task: model.task.name() };
    let body = match &entries[..] {
        entries if asked.torchserve => answer::bare(entries, posted.listed),
        [Entry { answer: Ok(members), .. }] if posted.raw => answer::one(of, members),
        several => answer::several(of, several),
    };
    call.says(&body)?;
    Ok(replied("application/json", body, &spent))
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
    call.says(&file)?;
    Ok(replied(form.media(), file, &spent))
}

fn replied(media: &'static str, body: Vec<u8>, spent: &Spent) -> Response {
    let mut reply = ([(header::CONTENT_TYPE, media)], body).into_response();
    spent.tell(reply.headers_mut());
    reply
}

/// The frames of a file, each with its place if the file has several; or the error for the file as a whole.
fn placed<T>(
    file: usize,
    frames: Result<Vec<Result<T, InferError>>, InferError>,
) -> Vec<(Option<Page>, Result<T, InferError>)> {
    match frames {
        Ok(frames) => {
            let several = frames.len() > 1;
            let place = |page| several.then_some(Page { file, page });
            frames.into_iter().enumerate().map(|(page, frame)| (place(page), frame)).collect()
        }
        Err(error) => vec![(None, Err(error))],
    }
}

/// The answers for files, in their order, one for each frame. A frame without an answer is an error in its place.
///
/// # Errors
/// If nothing could be answered, the error of [`of_all`].
pub(super) async fn entries(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    asked: &Arc<Asked>,
    files: Vec<Result<Bytes, InferError>>,
) -> Result<(Vec<Entry>, Spent), InferError> {
    let turns = front.decode.turns();
    let files = files.into_iter().enumerate().map(|file| one_file(front, model, call, asked, &turns, file));
    let mut spent = Spent::default();
    let mut entries = Vec::new();
    for (index, file) in join_all(files).await.into_iter().enumerate() {
        entries.extend(placed(index, file).into_iter().map(|(page, frame)| {
            let answer = frame.map(|(entry, of)| {
                spent.include(&of);
                entry
            });
            Entry { page, answer }
        }));
    }
    match of_all(&entries) {
        Some(error) => Err(error.clone()),
        None => Ok((entries, spent)),
    }
}

/// The error of a request if all its images failed: the first one that may pass, so that a caller who tries again gets the answers that
/// there can be; otherwise the first.
fn of_all(entries: &[Entry]) -> Option<&InferError> {
    let errors: Option<Vec<&InferError>> = entries.iter().map(|entry| entry.answer.as_ref().err()).collect();
    let errors = errors?;
    let passes = |error: &&&InferError| matches!(kind_of(error).status, 429 | 503 | 504);
    errors.iter().find(passes).or(errors.first()).copied()
}

type Answered = Result<(Vec<u8>, Spent), InferError>;

/// Decodes a file, runs its frames, and turns what comes out into entries of the reply.
async fn one_file(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    asked: &Arc<Asked>,
    turns: &Turns,
    (index, file): (usize, Result<Bytes, InferError>),
) -> Result<Vec<Answered>, InferError> {
    let (of, permit) = (Arc::clone(model), call.permit.as_ref());
    let decoded: Decoded<Frames> = match asked.pages {
        true => call.in_time(turns.take(front.decode.stage(file?, of, permit, turns))).await?,
        false => {
            let only = call.in_time(turns.take(front.decode.stage_only(file?, of, permit))).await;
            decode::only(only, index, "a row", model)?.into()
        }
    };
    let Decoded { staged, took, share } = decoded;
    call.decoded(front, model, took);
    let push = |frame| Pushed::new(front, model, call, asked, frame);
    let frames: Vec<_> = staged.into_iter().map(|frame| frame.map(push)).collect();
    // From here on the queue accounts for their memory.
    drop(share);
    let answers = frames.into_iter().map(async |frame| frame?.answer(front, call, asked, took).await);
    Ok(join_all(answers).await)
}

/// A frame that was given to the queue, which may have refused it.
struct Pushed {
    ticket: Result<Ticket, InferError>,
    tally: Tally,
    placement: Placement,
}

impl Pushed {
    fn new(front: &Front, model: &Arc<Model>, call: &Call, asked: &Asked, frame: Staged) -> Pushed {
        let (Staged { inputs, placement }, tally) = (frame, Tally::of(model));
        Pushed { ticket: call.push_image(front, &tally, &asked.task, inputs), tally, placement }
    }

    /// Waits for what the model makes of it, and writes that.
    async fn answer(self, front: &Front, call: &Call, asked: &Arc<Asked>, took: Duration) -> Answered {
        let Pushed { ticket, tally, placement } = self;
        let answer = async {
            let ran = call.answer(front, &tally, ticket?).await?;
            let answered = Instant::now();
            entry(front, &tally, asked, ran, placement, took)
                .await
                .inspect(|_| call.stage("encode", || answered.elapsed()))
        };
        tally.ended(answer.await)
    }
}

/// Turns what a model gave for a frame into an entry of the reply.
async fn entry(
    front: &Front,
    tally: &Tally,
    asked: &Arc<Asked>,
    ran: batch::Answer,
    placement: Placement,
    decode: Duration,
) -> Answered {
    let model = tally.model();
    let answered = Instant::now();
    let spent = Spent::on(decode, &ran);
    // Answers that may take more memory than the decoded image: masks, pictures of the posted image's size, and whatever a network makes.
    let room = match &asked.task {
        Task::Segment(_) => {
            let (width, height) = placement.source;
            let bytes = u64::from(width) * u64::from(height) * asked.mask.bytes_per_pixel();
            Some((bytes, "memory to write the mask in bytes"))
        }
        Task::Detect(task) => {
            task.mask_bytes(placement.source.0).map(|bytes| (bytes, "memory to write masks in bytes"))
        }
        Task::Image(task) => {
            let bytes = task.bytes(&ran.outputs, &model.signature, &placement);
            Some((bytes, "memory to write the picture in bytes"))
        }
        _ => None,
    };
    let (of, asked_of) = (Arc::clone(model), Arc::clone(asked));
    let entry = move || {
        let answer = of.answer(&asked_of.task, &ran.outputs, Some(&placement)).map_err(InferError::Input)?;
        match (&answer, asked_of.picture) {
            (Answer::Mask(mask), Some(_)) => mask.to_png_palette().map_err(InferError::Internal),
            (Answer::Picture(picture), Some(form)) => match form {
                PictureForm::Png => picture.to_png(),
                PictureForm::Tiff => picture.to_tiff(),
            }
            .map_err(InferError::Internal),
            (answer, _) => match asked_of.torchserve.then(|| answer::of_torchserve(answer)).flatten() {
                Some(value) => Ok(value),
                None => answer::members(answer, &of.signature, placement.source, asked_of.mask),
            },
        }
    };
    // Boxes, pictures and raw outputs take longer than a hand-over to the pool does; labels and vectors do not.
    let entry = match (&asked.task, room) {
        (Task::Classify(_) | Task::Embed(_), _) => entry(),
        (_, Some((bytes, what))) => front.decode.run_within(bytes, what, entry).await?,
        (_, None) => front.decode.run(entry).await?,
    };
    spent.replied(front, tally, answered.elapsed());
    Ok((entry?, spent))
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
    use super::{
        super::testing::{front, model},
        *,
    };
    use crate::{
        batch::ModelKey,
        engine::{DataType, staging::Memory},
        http::wire::Parameters,
        models::testing::source,
        tasks::testing::{signature, spec},
    };
    use axum::http::HeaderMap;

    #[test]
    fn where_all_images_fail_the_error_is_one_that_may_pass_if_there_is_one() {
        let entry = |answer| Entry { page: None, answer };
        let (bad, late) = (InferError::Decode("no image".into()), InferError::Late("late".into()));
        let of = |errors: &[&InferError]| {
            let entries: Vec<_> = errors.iter().map(|error| entry(Err((*error).clone()))).collect();
            of_all(&entries).cloned()
        };
        let other = InferError::BadRequest("other".into());
        assert_eq!(of(&[&bad, &other]), Some(bad.clone()));
        assert_eq!(of(&[&bad, &late, &InferError::Draining]), Some(late));
        assert_eq!(of(&[]), None);
        assert_eq!(of_all(&[entry(Err(bad)), entry(Ok(Vec::new()))]), None);
    }

    #[tokio::test]
    async fn a_request_of_many_files_leaves_room_for_others_in_the_pool() {
        let (front, model) = (front(&[]), model(Duration::from_secs(60)));
        let (release, released) = std::sync::mpsc::channel::<()>();
        let mut other = Box::pin(front.decode.run(move || released.recv().is_ok()));
        assert!(futures_util::poll!(&mut other).is_pending());
        let call = Call::of(&HeaderMap::new(), &model, Duration::from_secs(60)).expect("no headers");
        let asked = Asked::in_rows(Options::default(), &Parameters::default(), &model)
            .map(Arc::new)
            .expect("nothing is asked");
        let files = vec![Ok(Bytes::from_static(b"no image")); 20];
        let mut entries = Box::pin(entries(&front, &model, &call, &asked, files));
        assert!(futures_util::poll!(&mut entries).is_pending());
        // One thread: two of the files, behind the other's work.
        assert_eq!(front.decode.jobs(), 3);
        release.send(()).expect("it waits");
        assert_eq!(other.await, Ok(true));
        // All of them have their turn.
        let error = entries.await.expect_err("none is an image");
        assert!(error.to_string().contains("image 0"), "{error}");
    }

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
