//! Answers to a request of tensors, sent part by part as they come.

use super::{
    run::run,
    wanted::{Wanted, output, shown, wanted},
};
use crate::{
    batch::{
        Answer,
        rows::{self, Mark},
    },
    engine::{Dim, Tensor, TensorSpec},
    error::{InferError, bad},
    http::{
        Front,
        arrange::arrange,
        call::{Call, Spent},
        decode::Step,
        encoded,
        streamed::{self, Form, Text},
        tally::Tally,
        wire::{BINARY_OUTPUT, flag, reply::OutputParameters, request::InferRequest},
    },
    models::Model,
    telemetry::metrics::DropReason,
};
use axum::response::Response;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// The answers for a request's items as they come, in order. A part is one image, or at most one largest batch. A request that is a single
/// run has one part.
pub(super) async fn in_parts(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    request: InferRequest,
    form: Form,
) -> Result<Response, InferError> {
    if let Some(output) = request.outputs.iter().find(|output| output.place.is_some()) {
        return Err(bad(format!(
            "output {:?} is asked for in shared memory, but the outputs of a reply that comes item by item are in it",
            output.name
        )));
    }
    // The `binary_default` of a raw request is true without having been asked for.
    let all_binary = request.outputs.is_empty() && flag(&request.parameters, BINARY_OUTPUT)? == Some(true);
    if all_binary || request.outputs.iter().any(|output| output.binary) {
        return Err(bad(
            "outputs are asked for as binary data, but those of a reply that comes item by item are text: leave one out, \
             Accept or binary_data",
        ));
    }
    let asked = (request.outputs.clone(), request.binary_default);
    let id = request.id.clone();
    if let Some(images) = encoded::sent(model, &request.inputs) {
        let (wanted, count) =
            (Arc::new(wanted(model, &asked, &shown(model))?), images.shape.first().copied().unwrap_or(0));
        let tally = Arc::new(Tally::of(model));
        let images = encoded::one_by_one(front, &tally, call, images)?.enumerate();
        let common = (Arc::clone(front), Arc::clone(&tally), call.clone(), wanted);
        let parts = images.then(move |(index, ran)| {
            let (front, tally, call, wanted) = common.clone();
            async move {
                match ran {
                    Ok(ran) => (index, part(&front, &tally, &call, &wanted, &ran).await),
                    Err(error) => (index, Err(error)),
                }
            }
        });
        return Ok(streamed::parts(form, id.as_deref(), tallied(tally, count, parts)));
    }
    if model.fit.is_some() || model.rules.whole {
        let ran = run(front, model, call, request, Instant::now()).await?;
        let (tally, permit) = (Arc::clone(&ran.tally), call.permit.clone());
        let only =
            move || ran.outputs().and_then(|outputs| Text::of(permit.as_ref(), &ran.parameters, &outputs));
        let only = front.decode.run(Step::Answer, only);
        let only = tally.ended(only.await.flatten())?;
        return Ok(streamed::parts(form, id.as_deref(), stream::iter([(0, Ok(only))])));
    }
    let wanted = wanted(model, &asked, &shown(model))?;
    let (inputs, items) = arrange(model, request.inputs, call.permit.as_deref())?;
    let parts = by_batches(front, model, call, inputs, items, wanted);
    Ok(streamed::parts(form, id.as_deref(), parts))
}

fn by_batches(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    inputs: Vec<Tensor>,
    items: usize,
    wanted: Vec<Wanted>,
) -> impl Stream<Item = (usize, Result<Text, InferError>)> + Send + use<> {
    let largest = part_items(model);
    let tally = Arc::new(Tally::of(model));
    let common = (Arc::clone(front), Arc::clone(&tally), call.clone(), Arc::new(wanted));
    let mut marks = vec![Mark::default(); inputs.len()];
    let batches = stream::iter((0..items).step_by(largest)).map(move |first| {
        let (front, tally, call, wanted) = common.clone();
        let end = (first + largest).min(items);
        let given = inputs.iter().zip(&mut marks);
        let given: Vec<Tensor> = given.map(|(input, mark)| rows::cut(input, first..end, mark)).collect();
        let part = async move {
            let call = call.again();
            let ticket = call.push(&front, &tally, given, end - first, None)?;
            let ran = call.answer(&front, &tally, ticket).await?;
            part(&front, &tally, &call, &wanted, &ran).await
        };
        part.map(move |part| (first, part))
    });
    tallied(tally, items.div_ceil(largest), batches.buffered(STREAMED_BATCHES))
}

/// Counts the request once the last of its `count` parts has come.
fn tallied<T>(
    tally: Arc<Tally>,
    count: usize,
    parts: impl Stream<Item = (usize, Result<T, InferError>)> + Send,
) -> impl Stream<Item = (usize, Result<T, InferError>)> + Send {
    parts.enumerate().map(move |(index, (first, part))| {
        tally.part(&part);
        if index + 1 == count {
            tally.over();
        }
        (first, part)
    })
}

/// The part of the reply for some items. All of it is text.
async fn part(
    front: &Front,
    tally: &Tally,
    call: &Call,
    wanted: &[Wanted],
    ran: &Answer,
) -> Result<Text, InferError> {
    let (answered, model) = (Instant::now(), tally.model());
    let names = model.interface.signature.outputs.iter().map(|spec| spec.name.clone());
    let there: Vec<(String, Tensor)> = names.zip(model.interface.outward(&ran.outputs)).collect();
    let outputs =
        wanted.iter().map(|wanted| output(model, &there, &Wanted { binary: false, ..wanted.clone() }));
    let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
    let permit = call.permit.clone();
    let write =
        front.decode.run(Step::Answer, move || Text::of(permit.as_ref(), &OutputParameters::new(), &outputs));
    let written = front.before_the_end(DropReason::Job, write).await??;
    Spent::on(Duration::ZERO, ran).replied(front, tally, answered.elapsed());
    call.stage("encode", || answered.elapsed());
    written
}

/// Batches of a streamed reply that are under way at once.
const STREAMED_BATCHES: usize = 2;

/// Bytes of outputs in one part of a stream, if the model's file tells how many an item has. As text they are several times as many.
const PART_BYTES: usize = 8 << 20;

/// Items of a part.
fn part_items(model: &Model) -> usize {
    let bytes = |spec: &TensorSpec| {
        let extents = spec.shape.iter().skip(1).map(|extent| match extent {
            Dim::Fixed(extent) => *extent,
            Dim::Free => 1,
        });
        extents.fold(spec.datatype.size().unwrap_or(1), usize::saturating_mul)
    };
    let item = model.interface.signature.outputs.iter().map(bytes).fold(1, usize::saturating_add);
    (PART_BYTES / item).clamp(1, model.rules.largest())
}
