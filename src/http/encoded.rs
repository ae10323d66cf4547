//! Encoded images as tensors: a BYTES input, `[n]` or `[n, 1]`, to a model that takes images. Each element is a file, which is decoded like
//! posted files and becomes one item. A file may be in base64, since JSON cannot hold its bytes.

use super::{
    Front,
    admission::{Beside, Permit, charged, texts},
    call::{Call, Spent},
    decode::{self, Decoded, LONG_FILES, Share},
    streamed::{self, Queued},
    tally::Tally,
    wire::{base64_text, binary, request::Input},
};
use crate::{
    batch::{Answer, rows},
    engine::{Batching, DataType, Tensor},
    error::InferError,
    image,
    models::Model,
    telemetry::metrics::DropReason,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, future::try_join_all, stream};
use std::{sync::Arc, time::Duration};

/// The tensor that holds the images, if that is what was sent.
pub(super) fn sent<'a>(model: &Model, inputs: &'a [Input]) -> Option<&'a Tensor> {
    match inputs {
        [Input { name, tensor, .. }] if model.image.is_some() && tensor.datatype == DataType::Bytes => {
            // A wrong name is refused later, as for any tensor.
            model.interface.signature.inputs.first().filter(|spec| spec.name == *name).map(|_| tensor)
        }
        _ => None,
    }
}

/// The model's outputs for the images of a tensor, in their order.
///
/// # Errors
/// 400 for a tensor of another shape, for an element that is not one image of one frame, and for several images where the model has no axis
/// for them; errors of decoding and running. One bad image fails the request: a tensor has no place for an error.
pub(super) async fn run(
    front: &Arc<Front>,
    tally: &Tally,
    call: &Call,
    tensor: &Tensor,
) -> Result<(Vec<Tensor>, Spent), InferError> {
    let model = tally.model();
    // Where requests run one by one although they may have many items, each image is a run of its own.
    let one = model.batching == Batching::Whole && model.alone_max.is_none();
    let files = files(front, model, tensor, one, call.permit.as_deref())?;
    // Those of the whole stream, if the request is a message of one.
    let turns = call.turns.clone().unwrap_or_else(|| Arc::new(front.decode.turns()));
    // Each is queued as soon as it is decoded. An image that waited for the others would keep its share of the memory for decoding, and
    // leave none for them.
    let answers = files.into_iter().enumerate().map(async |file| {
        let image = turns.take(decode(front, model, call, file));
        let Image { inputs, took, share } = call.in_time(image).await?;
        let ticket = call.push(front, tally, inputs, 1, None);
        // From here on the queue accounts for its memory.
        drop(share);
        Ok::<_, InferError>((took, call.answer(front, tally, ticket?).await?))
    });
    let mut spent = Spent::default();
    let mut outputs: Vec<Vec<Tensor>> = Vec::new();
    for (took, ran) in try_join_all(answers).await? {
        spent.include(&Spent::on(took, &ran));
        outputs.push(ran.outputs);
    }
    let joined = (0..model.signature.outputs.len()).map(|output| {
        let of_all: Vec<&Tensor> = outputs.iter().filter_map(|outputs| outputs.get(output)).collect();
        match &of_all[..] {
            [only] => Ok((*only).clone()),
            several => rows::join(several),
        }
    });
    let joined = joined.collect::<Result<_, _>>().map_err(|error| {
        InferError::BadRequest(format!("the outputs of the images do not fit into one tensor: {error}"))
    })?;
    Ok((joined, spent))
}

/// The model's outputs for each image as they come, in order. Each image has the time limit of a request, and a bad one is an error in its
/// place.
///
/// # Errors
/// As [`run`], for the tensor as a whole.
pub(super) fn one_by_one(
    front: &Arc<Front>,
    tally: &Arc<Tally>,
    call: &Call,
    tensor: &Tensor,
) -> Result<impl Stream<Item = Result<Answer, InferError>> + Send + use<>, InferError> {
    let files = files(front, tally.model(), tensor, false, call.permit.as_deref())?;
    let (ahead, front) = (streamed::ahead(tally.model()), Arc::clone(front));
    let decoding = (Arc::clone(&front), Arc::clone(tally), call.clone());
    let queued = stream::iter(files.into_iter().enumerate()).map(move |file| {
        let (front, tally, call) = decoding.clone();
        // Queued before its turn: an image that is ahead would otherwise keep its share of the memory for decoding from those before it.
        streamed::aside(async move {
            let began = call.again();
            let image = began.in_time(decode(&front, tally.model(), &began, file));
            let Image { inputs, share, .. } = front.before_the_end(DropReason::Job, image).await??;
            let call = call.again();
            let ticket = call.push(&front, &tally, inputs, 1, None);
            drop(share);
            Ok(Queued::new(call, tally, ticket?))
        })
    });
    let answers = queued.buffered(streamed::FILES_AHEAD).map(move |queued| {
        let front = Arc::clone(&front);
        async move { queued?.answer(&front).await }
    });
    Ok(answers.buffered(ahead))
}

/// A file in a tensor.
struct File {
    bytes: Bytes,
    is_base64: bool,
    /// What is set aside for the bytes that come out of base64.
    held: Option<Arc<Beside>>,
}

/// The files in a tensor. Room for what comes out of base64 is set aside beside the body, until the last of them was decoded.
fn files(
    front: &Front,
    model: &Model,
    tensor: &Tensor,
    one: bool,
    permit: Option<&Permit>,
) -> Result<Vec<File>, InferError> {
    let bad = |what: String| Err(InferError::BadRequest(what));
    let shape = &tensor.shape;
    let ([count] | [count, 1]) = shape[..] else {
        return bad(format!("encoded images have shape {shape:?}, expected [n] or [n, 1]"));
    };
    if count == 0 {
        return bad("the tensor of encoded images is empty, expected 1 or more".into());
    }
    if count > 1 && one {
        return bad(format!(
            "{count} images in one request, but model {:?} takes one at a time: it has no batch axis",
            model.name
        ));
    }
    if count > front.limits.parts_max {
        return Err(InferError::TooLarge {
            what: "the number of encoded images".into(),
            got: count as u64,
            limit: front.limits.parts_max as u64,
            option: "parts_max",
        });
    }
    texts::cover_slices(permit, count)?;
    let broken = || InferError::Internal("lengths that were checked do not add up".into());
    let files = binary::strings(&tensor.data).ok_or_else(broken)?;
    let file = |bytes: Bytes| File { is_base64: is_base64(&bytes), bytes, held: None };
    let mut files: Vec<File> = files.into_iter().map(file).collect();
    let texts = files.iter().filter(|file| file.is_base64).map(|file| file.bytes.len() as u64 / 4 * 3).sum();
    if let (1.., Some(permit)) = (texts, permit) {
        let held = Arc::new(permit.beside(texts)?);
        files.iter_mut().filter(|file| file.is_base64).for_each(|file| file.held = Some(Arc::clone(&held)));
    }
    Ok(files)
}

/// Whether an image is written in base64.
fn is_base64(file: &[u8]) -> bool {
    image::Format::sniff(file).is_none() && image::Format::sniff(&base64_text::beginning(file)).is_some()
}

/// A file that was decoded.
struct Image {
    inputs: Vec<Tensor>,
    took: Duration,
    share: Share,
}

async fn decode(
    front: &Front,
    model: &Arc<Model>,
    call: &Call,
    (index, File { bytes, is_base64, held }): (usize, File),
) -> Result<Image, InferError> {
    let permit = call.permit.as_ref();
    let of_work = held.clone();
    let file = if is_base64 {
        let long = bytes.len() >= LONG_FILES;
        let read = move || {
            let _held = of_work;
            let text = std::str::from_utf8(&bytes).map_err(|error| error.to_string())?;
            base64_text::decode(text).map_err(|error| error.to_string())
        };
        let wrong = |error| InferError::BadRequest(format!("image {index} is not base64: {error}"));
        front.decode.run_slow(call.step(), long, charged(permit, read)).await?.map_err(wrong)?.into()
    } else {
        bytes
    };
    let opened = front.decode.stage_only(call.step(), file, Arc::clone(model), permit).await;
    let Decoded { staged, took, share } = decode::only(opened, index, "a tensor", model)?;
    call.decoded(front, model, took);
    Ok(Image { inputs: staged.inputs, took, share })
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{front, image_model},
        *,
    };
    use axum::http::HeaderMap;
    use std::time::Duration;

    #[tokio::test]
    async fn a_tensor_of_many_images_leaves_room_for_others_in_the_pool() {
        let (front, model) = (front(&[]), image_model());
        let (release, released) = std::sync::mpsc::channel::<()>();
        let mut other = Box::pin(front.decode.run(decode::Step::Request(0), move || released.recv().is_ok()));
        assert!(futures_util::poll!(&mut other).is_pending());
        let call = Call::of(&HeaderMap::new(), &model, Duration::from_secs(60)).expect("no headers");
        // Each has its length in front.
        let data = b"\x08\0\0\0no image".repeat(20).into();
        let tensor = Tensor { datatype: DataType::Bytes, shape: vec![20], data };
        let tally = Tally::of(&model);
        let mut outputs = Box::pin(run(&front, &tally, &call, &tensor));
        assert!(futures_util::poll!(&mut outputs).is_pending());
        // One thread: two of the images, behind the other's work.
        assert_eq!(front.decode.jobs(), 3);
        release.send(()).expect("it waits");
        assert_eq!(other.await, Ok(true));
        let error = outputs.await.expect_err("none is an image");
        assert!(error.to_string().contains("image 0"), "{error}");
    }
}
