//! The answers for a request's files as they come, in order. Files are decoded and queued a few ahead.

use super::{
    asked::Asked,
    entries::{entry, placed},
};
use crate::{
    error::InferError,
    http::{
        Front,
        admission::Beside,
        call::Call,
        decode::{Decoded, Opened, Staged},
        streamed::{self, Queued},
        tally::Tally,
        wire::answer::Entry,
    },
    image::{Image, Placement},
    models::Model,
    telemetry::metrics::DropReason,
};
use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The answers. Each frame has the time limit of a request.
pub(super) fn one_by_one(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    asked: &Arc<Asked>,
    files: Vec<Result<Bytes, InferError>>,
) -> impl Stream<Item = Entry> + Send + use<> {
    let ahead = streamed::ahead(model);
    let (front, model, asked) = (Arc::clone(front), Arc::clone(model), Arc::clone(asked));
    let decoding = Arc::new(Decoding { front, model, call: call.clone(), asked });
    let (first, then) = (Arc::clone(&decoding), Arc::clone(&decoding));
    let files = stream::iter(files).map(move |file| {
        let decoding = Arc::clone(&first);
        streamed::aside(async move {
            decoding.front.before_the_end(DropReason::Job, decoding.ahead(file?)).await?
        })
    });
    let frames = files.buffered(streamed::FILES_AHEAD).enumerate().flat_map(move |(index, file)| {
        let decoding = Arc::clone(&then);
        let frames = async move {
            match file? {
                Ahead::Queued(frame) => Ok(vec![Ok(Due::Queued(frame))]),
                Ahead::Several(file) => {
                    let frames = async move {
                        decoding.front.before_the_end(DropReason::Job, decoding.in_turn(file)).await?
                    };
                    streamed::aside(frames).await
                }
            }
        };
        stream::once(frames).flat_map(move |frames| stream::iter(placed(index, frames)))
    });
    let answers = frames.map(move |(file, page, frame)| {
        let decoding = Arc::clone(&decoding);
        let answer = async move {
            let Decoding { front, asked, .. } = &*decoding;
            let Frame { queued, placement, took } = match frame? {
                Due::Queued(frame) => frame,
                Due::Waits(frame, took, _held) => decoding.queue(frame, took)?,
            };
            let (call, tally) = (queued.call().clone(), Arc::clone(queued.tally()));
            let answered = async {
                let ran = queued.answer(front).await?;
                let answered = Instant::now();
                let (entry, _) = entry(front, &tally, asked, ran, placement, took).await?;
                call.stage("encode", || answered.elapsed());
                Ok(entry)
            };
            tally.ended(front.before_the_end(DropReason::Job, answered).await.flatten())
        };
        answer.map(move |answer| Entry { file, page, answer })
    });
    answers.buffered(ahead)
}

/// A file of a stream that was decoded before its turn, if it has one frame.
enum Ahead {
    /// Its only frame. It is queued before its turn: a file that is ahead would otherwise keep its share of the memory for decoding from
    /// those before it.
    Queued(Frame),
    /// It has several frames, which are decoded in their turn.
    Several(Image<Bytes>),
}

/// A frame whose turn it is.
enum Due {
    Queued(Frame),
    /// One of several frames, with the time that all of them took, and their charge until the last one is queued.
    Waits(Staged, Duration, Arc<Option<Beside>>),
}

/// A frame in the queue.
struct Frame {
    queued: Queued,
    placement: Placement,
    took: Duration,
}

/// What decoding the files of a stream needs.
struct Decoding {
    front: Arc<Front>,
    model: Arc<Model>,
    call: Call,
    asked: Arc<Asked>,
}

impl Decoding {
    /// Decodes and queues a file of one frame.
    async fn ahead(&self, file: Bytes) -> Result<Ahead, InferError> {
        let (began, of) = (self.call.again(), Arc::clone(&self.model));
        let decode = self.front.decode.stage_only(self.call.step(), file, of, self.call.permit.as_ref());
        let Decoded { staged, took, share: _share } = match began.in_time(decode).await? {
            Opened::Only(decoded) => decoded,
            Opened::Several(image) => return Ok(Ahead::Several(image)),
        };
        self.call.decoded(&self.front, &self.model, took);
        self.queue(staged, took).map(Ahead::Queued)
    }

    /// Decodes a file of several frames. They are queued one by one as the client reads. Until then they are charged to the request, not to
    /// the decoder's memory: a slow client would keep that from others for as long as it likes.
    async fn in_turn(&self, image: Image<Bytes>) -> Result<Vec<Result<Due, InferError>>, InferError> {
        let (began, of) = (self.call.again(), Arc::clone(&self.model));
        let turns = self.front.decode.turns();
        let decode =
            self.front.decode.stage_several(self.call.step(), image, of, self.call.permit.as_ref(), &turns);
        let Decoded { staged: frames, took, share } = began.in_time(decode).await?;
        self.call.decoded(&self.front, &self.model, took);
        let inputs = frames.iter().flatten().flat_map(|frame| &frame.inputs);
        let bytes = inputs.map(|input| input.data.len() as u64).sum();
        let held = Arc::new(self.call.permit.as_ref().map(|permit| permit.beside(bytes)).transpose()?);
        drop(share);
        let turn = |frame: Result<_, _>| frame.map(|frame| Due::Waits(frame, took, Arc::clone(&held)));
        Ok(frames.into_iter().map(turn).collect())
    }

    /// Queues a frame. From now on it has the time limit of a request.
    fn queue(&self, Staged { inputs, placement }: Staged, took: Duration) -> Result<Frame, InferError> {
        let (call, tally) = (self.call.again(), Arc::new(Tally::of(&self.model)));
        let ticket = call.push_image(&self.front, &tally, &self.asked.task, inputs)?;
        Ok(Frame { queued: Queued::new(call, tally, ticket), placement, took })
    }
}
