//! From the files of a request to the entries of its reply: decoded, run, and written, all at once.

use super::asked::{Asked, PictureForm};
use crate::{
    batch::{self, Ticket},
    error::InferError,
    http::{
        Front,
        admission::{Beside, Permit, counting},
        call::{Call, Spent},
        decode::{self, Decoded, Frames, Staged, Step, Turns},
        reject::kind_of,
        tally::Tally,
        wire::answer::{self, Entry},
    },
    image::Placement,
    models::Model,
    tasks::{Answer, Task},
};
use bytes::Bytes;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The frames of a file, each with its place if the file has several; or the error for the file as a whole.
pub(super) fn placed<T>(
    file: usize,
    frames: Result<Vec<Result<T, InferError>>, InferError>,
) -> Vec<(usize, Option<usize>, Result<T, InferError>)> {
    match frames {
        Ok(frames) => {
            let several = frames.len() > 1;
            let placed = |(page, frame)| (file, several.then_some(page), frame);
            frames.into_iter().enumerate().map(placed).collect()
        }
        Err(error) => vec![(file, None, Err(error))],
    }
}

/// The answers for the files of a request.
pub(in crate::http) struct Entries {
    pub(in crate::http) entries: Vec<Entry>,
    pub(in crate::http) spent: Spent,
    pub(in crate::http) held: Held,
}

/// The memory that is set aside for the answers of a request while they wait for each other and for the reply that they become part of.
pub(in crate::http) struct Held {
    permit: Option<Arc<Permit>>,
    /// Their bytes, and what is set aside once they are many.
    answers: Mutex<(u64, Option<Beside>)>,
}

impl Held {
    fn of(call: &Call) -> Held {
        Held { permit: call.permit.clone(), answers: Mutex::default() }
    }

    /// Sets aside memory for one more answer.
    fn more(&self, answer: &Vec<u8>) -> Result<(), InferError> {
        let (bytes, beside) = &mut *self.answers.lock();
        *bytes += answer.capacity() as u64;
        let Some(permit) = counting(self.permit.as_ref(), *bytes) else { return Ok(()) };
        beside.get_or_insert_with(|| permit.nothing_beside()).grow_to(*bytes)
    }
}

/// The answers for files, in their order, one for each frame. A frame without an answer is an error in its place.
///
/// # Errors
/// If nothing could be answered, the error of [`of_all`]; [`InferError::Full`] or [`InferError::TooLarge`] where there is no room for the
/// answers.
pub(in crate::http) async fn entries(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    asked: &Arc<Asked>,
    files: Vec<Result<Bytes, InferError>>,
) -> Result<Entries, InferError> {
    let turns = front.decode.turns();
    let held = Held::of(call);
    let files = files.into_iter().enumerate().map(async |(index, file)| {
        let frames = match queued(front, model, call, asked, &turns, (index, file)).await {
            Ok(frames) => placed(index, Ok(answers(front, call, asked, &held, frames).await?)),
            Err(error) => placed(index, Err(error)),
        };
        Ok::<_, InferError>(frames)
    });
    let mut spent = Spent::default();
    let answered = try_join_all(files).await?.into_iter().flatten().map(|(file, page, frame)| {
        let answer = frame.map(|(entry, of)| {
            spent.include(&of);
            entry
        });
        Entry { file, page, answer }
    });
    let entries: Vec<_> = answered.collect();
    match of_all(&entries) {
        Some(error) => Err(error.clone()),
        None => Ok(Entries { entries, spent, held }),
    }
}

/// The error of a request if all its images failed.
fn of_all(entries: &[Entry]) -> Option<&InferError> {
    let errors = || entries.iter().filter_map(|entry| entry.answer.as_ref().err());
    first(errors()).filter(|_| errors().count() == entries.len())
}

/// Of several errors, the one for the whole request: the first one that may pass, so that a caller who tries again gets the answers that
/// there can be; otherwise the first.
fn first<'a>(mut errors: impl Iterator<Item = &'a InferError> + Clone) -> Option<&'a InferError> {
    let passes = |error: &&InferError| matches!(kind_of(error).status, 429 | 503 | 504);
    errors.clone().find(passes).or_else(|| errors.next())
}

/// The answers, where there is no place for an error among them.
///
/// # Errors
/// If there is an error among them, the [`first`], and which image it is about.
pub(super) fn without_errors(entries: Vec<Entry>) -> Result<Vec<Vec<u8>>, InferError> {
    let failed = entries.iter().filter_map(|entry| {
        let image = match (entry.file, entry.page) {
            (file, Some(page)) => format!("page {page} of image {file}"),
            (file, None) => format!("image {file}"),
        };
        Some(decode::about(&image, entry.answer.as_ref().err()?.clone()))
    });
    let failed: Vec<_> = failed.collect();
    match first(failed.iter()) {
        Some(error) => Err(error.clone()),
        None => entries.into_iter().map(|entry| entry.answer).collect(),
    }
}

pub(super) type Answered = Result<(Vec<u8>, Spent), InferError>;

/// Decodes a file and gives its frames to the queue. Tells how long decoding took.
async fn queued(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    asked: &Arc<Asked>,
    turns: &Turns,
    (index, file): (usize, Result<Bytes, InferError>),
) -> Result<(Vec<Result<Pushed, InferError>>, Duration), InferError> {
    let (of, permit) = (Arc::clone(model), call.permit.as_ref());
    let decoded: Decoded<Frames> = match asked.pages {
        true => call.in_time(turns.take(front.decode.stage(call.step(), file?, of, permit, turns))).await?,
        false => {
            let only =
                call.in_time(turns.take(front.decode.stage_only(call.step(), file?, of, permit))).await;
            decode::only(only, index, "a row", model)?.into()
        }
    };
    let Decoded { staged, took, share } = decoded;
    call.decoded(front, model, took);
    let push = |frame| Pushed::new(front, model, call, asked, frame);
    let frames: Vec<_> = staged.into_iter().map(|frame| frame.map(push)).collect();
    // From here on the queue accounts for their memory.
    drop(share);
    Ok((frames, took))
}

/// The answers for the frames of a file.
///
/// # Errors
/// As [`Held::more`]: there is no room for all answers of the request.
async fn answers(
    front: &Front,
    call: &Call,
    asked: &Arc<Asked>,
    held: &Held,
    (frames, took): (Vec<Result<Pushed, InferError>>, Duration),
) -> Result<Vec<Answered>, InferError> {
    let answers = frames.into_iter().map(async |frame| {
        let answered = async { frame?.answer(front, call, asked, took).await }.await;
        if let Ok((answer, _)) = &answered {
            held.more(answer)?;
        }
        Ok(answered)
    });
    try_join_all(answers).await
}

/// A frame that was given to the queue, which may have refused it.
pub(super) struct Pushed {
    ticket: Result<Ticket, InferError>,
    tally: Tally,
    placement: Placement,
}

impl Pushed {
    pub(super) fn new(
        front: &Front,
        model: &Arc<Model>,
        call: &Call,
        asked: &Asked,
        frame: Staged,
    ) -> Pushed {
        let (Staged { inputs, placement }, tally) = (frame, Tally::of(model));
        Pushed { ticket: call.push_image(front, &tally, &asked.task, inputs), tally, placement }
    }

    /// Waits for what the model makes of it, and writes that.
    pub(super) async fn answer(
        self,
        front: &Front,
        call: &Call,
        asked: &Arc<Asked>,
        took: Duration,
    ) -> Answered {
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
pub(super) async fn entry(
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
            (Answer::Mask(mask), Some(form)) => match form {
                PictureForm::Png => mask.to_png_palette(),
                PictureForm::Tiff => mask.to_tiff(),
            }
            .map_err(InferError::Internal),
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
        (_, None) => front.decode.run(Step::Answer, entry).await?,
    };
    spent.replied(front, tally, answered.elapsed());
    Ok((entry?, spent))
}

#[cfg(test)]
mod tests {
    use super::{super::asked::Options, *};
    use crate::http::{
        testing::{front, image_model},
        wire::Parameters,
    };
    use axum::http::HeaderMap;

    #[test]
    fn where_all_images_fail_the_error_is_one_that_may_pass_if_there_is_one() {
        let entry = |answer| Entry { file: 0, page: None, answer };
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

    #[test]
    fn where_errors_have_no_place_the_request_fails_and_says_for_which_image() {
        let entry = |file, page, answer| Entry { file, page, answer };
        let good = |file| entry(file, None, Ok(vec![1]));
        let bad = |file, page| entry(file, page, Err(InferError::Decode("no image".into())));
        assert_eq!(without_errors(vec![good(0), good(1)]), Ok(vec![vec![1], vec![1]]));
        let told = |entries| without_errors(entries).map_err(|error| error.to_string());
        assert_eq!(told(vec![good(0), bad(1, None), bad(2, Some(4))]), Err("image 1: no image".to_owned()));
        assert_eq!(
            told(vec![good(0), entry(2, Some(3), Ok(vec![1])), bad(2, Some(4)), bad(5, None)]),
            Err("page 4 of image 2: no image".to_owned())
        );
        let two_pages = [Some(0), Some(1)].map(|page| entry(0, page, Ok(vec![1])));
        let after_two_pages = two_pages.into_iter().chain([bad(1, None)]).collect();
        assert_eq!(told(after_two_pages), Err("image 1: no image".to_owned()));
        let late = entry(2, Some(5), Err(InferError::Late("late".into())));
        assert_eq!(without_errors(vec![bad(0, None), late]), Err(InferError::Late("late".into())));
    }

    #[tokio::test]
    async fn a_request_of_many_files_leaves_room_for_others_in_the_pool() {
        let (front, model) = (front(&[]), image_model());
        let (release, released) = std::sync::mpsc::channel::<()>();
        let mut other = Box::pin(front.decode.run(Step::Request(0), move || released.recv().is_ok()));
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
        let error = entries.await.err().expect("none is an image");
        assert!(error.to_string().contains("image 0"), "{error}");
    }
}
