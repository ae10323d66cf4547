//! Encoded images as tensors: a BYTES input, `[n]` or `[n, 1]`, to a model that takes images. Each element is a file, decoded
//! as posted files are, and becomes one item.

use super::{
    Front,
    call::{Call, Spent},
    decode::Decoded,
    wire::{binary, request::Input},
};
use crate::{
    batch::rows,
    engine::{Batching, DataType, Tensor},
    error::InferError,
    models::Model,
};
use futures_util::future::try_join_all;
use std::{sync::Arc, time::Duration};

/// The tensor that holds the images, if that is what was sent.
pub(super) fn sent<'a>(model: &Model, inputs: &'a [Input]) -> Option<&'a Tensor> {
    match inputs {
        [input] if model.image.is_some() && input.tensor.datatype == DataType::Bytes => Some(&input.tensor),
        _ => None,
    }
}

/// What the model gives for the images of a tensor, in their order.
///
/// # Errors
/// 400 for a tensor of another shape, for what is not one image of one frame, and for several where the model has no axis for
/// them; what decoding and running say. One bad image fails the request: a tensor has no place for an error.
pub(super) async fn run(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    tensor: &Tensor,
) -> Result<(Vec<Tensor>, Spent), InferError> {
    let bad = |what: String| Err(InferError::BadRequest(what));
    let shape = &tensor.shape;
    let ([count] | [count, 1]) = shape[..] else {
        return bad(format!("encoded images have shape {shape:?}, expected [n] or [n, 1]"));
    };
    let limit = if model.batching == Batching::Whole { 1 } else { front.limits.parts_max };
    if count == 0 {
        return bad("the tensor of encoded images is empty, expected 1 or more".into());
    }
    if count > limit && limit == 1 {
        return bad(format!(
            "{count} images in one request, but model {:?} takes one at a time: it has no batch axis",
            model.name
        ));
    }
    if count > limit {
        return Err(InferError::TooLarge {
            what: "the number of encoded images",
            got: count as u64,
            limit: limit as u64,
            option: "parts_max",
        });
    }
    let broken = || InferError::Internal("lengths that were checked do not add up".into());
    let files = binary::strings(&tensor.data).ok_or_else(broken)?;
    let decoding = files.into_iter().enumerate().map(async |(index, file)| {
        let decoded = call.in_time(front.decode.stage(file, Arc::clone(model))).await;
        let decoded = decoded.inspect(|decoded| call.stage("decode", decoded.took));
        decoded.map_err(|error| of_image(index, error))
    });
    let mut spent = Spent::default();
    let mut queued = Vec::with_capacity(count);
    for (index, decoded) in try_join_all(decoding).await?.into_iter().enumerate() {
        let Decoded { mut frames, took, share } = decoded;
        front.metrics.model(&model.name).decode_seconds.observe(took.as_secs_f64());
        spent.decode = spent.decode.max(took);
        let (Some(frame), true) = (frames.pop(), frames.is_empty()) else {
            return bad(format!(
                "image {index} has several frames, which a tensor has no place for; post it to /predictions/{}",
                model.name
            ));
        };
        queued.push(call.push(front, model, vec![frame.tensor], 1, None)?);
        // From here on the queue accounts for its memory.
        drop(share);
    }
    let answers = queued.into_iter().map(|ticket| call.answer(front, model, ticket));
    let mut outputs: Vec<Vec<Tensor>> = Vec::with_capacity(count);
    for ran in try_join_all(answers).await? {
        spent.include(&Spent::on(Duration::ZERO, &ran));
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

/// Says which image it was.
fn of_image(index: usize, error: InferError) -> InferError {
    match error {
        InferError::Decode(what) => InferError::Decode(format!("image {index}: {what}")),
        InferError::BadRequest(what) => InferError::BadRequest(format!("image {index}: {what}")),
        other => other,
    }
}
