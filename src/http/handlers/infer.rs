//! `POST /v2/models/{model}/infer`: tensors in, tensors out, by the Open Inference Protocol.
//!
//! - `run`: runs a request, from this protocol or another; `parts`: answers item by item.
//! - `wanted`: which outputs are asked for.

mod parts;
mod run;
mod wanted;

use super::{
    localize::tensors::Changes,
    shared_memory::{self, Caller},
};
use crate::{
    error::{InferError, bad},
    http::{
        Front,
        admission::{Permit, charged, written},
        body::{self, posted::is_no_file},
        call::Call,
        decode::{INLINE_BYTES_MAX, LONG_NUMBERS},
        query,
        streamed::Form,
        target::Target,
        wire::{
            HEADER_LENGTH, raw,
            reply::{self, InferReply, Output},
            request as oip,
        },
    },
    image::Format,
    models::Model,
};
use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, header},
    response::Response,
};
pub(crate) use run::run;
use std::sync::Arc;

/// `POST /v2/models/{model}[/versions/{version}]/infer`
pub(in crate::http) async fn infer(
    State(front): State<Arc<Front>>,
    target: Target,
    request: Request,
) -> Result<Response, InferError> {
    answer(&front, &target.find(&front)?, request).await
}

async fn answer(front: &Arc<Front>, model: &Arc<Model>, request: Request) -> Result<Response, InferError> {
    let mut call = Call::of(request.headers(), model, front.limits.timeout_max)?.traced(request.extensions());
    let length = oip::json_length(request.headers())?;
    let said = request.uri().query().unwrap_or_default();
    let changes = match &model.fit {
        Some(settings) => Some(Changes::of(said, settings)?),
        None => query::has_no_options(said, INSTEAD_OF_OPTIONS).map(|()| None).map_err(bad)?,
    };
    let form = Form::accepted(request.headers(), &["application/json", "application/octet-stream"]);
    let caller = Caller::of(front, request.extensions(), request.headers(), request.uri());
    let body = call.body(body::aligned(request, front.limits.body, length.unwrap_or(0))).await?;
    if length.is_none() {
        is_no_file(&body, model)?;
    }
    // The body has been there since then.
    let (began, text) = (call.arrived, length.unwrap_or(body.len()));
    // Numbers as text take milliseconds per megabyte, and so may the header of an image: not on the async threads.
    let slow = length == Some(0) && Format::sniff(&body).is_some_and(Format::is_slow);
    let signature = Arc::clone(model);
    let images = model.image.is_some().then(|| front.decode.limits());
    let read = move || match length {
        Some(0) => {
            let own = &signature.interface.signature.inputs;
            raw::read(body, own, &signature.takes[own.len()..], images.as_ref())
        }
        // A fitter takes its inputs in several types, and checks them itself.
        length if signature.fit.is_some() => oip::read(&body, length, &[]),
        length => oip::read(&body, length, &signature.takes),
    };
    let mut request = if text < INLINE_BYTES_MAX && !slow {
        read()?
    } else {
        let read = charged(call.permit.as_ref(), read);
        call.in_time(async { front.decode.run_slow(call.step(), text >= LONG_NUMBERS, read).await? }).await?
    };
    if let Some(changes) = changes {
        changes.join(&mut request.parameters)?;
    }
    let (request, named) = shared_memory::fetch(front, model, &caller, &call, request).await?;
    let call = call.asked(model, request.timeout()?, request.priority()?);
    call.stage("decode", || began.elapsed());
    if let Some(form) = form {
        return Box::pin(parts::in_parts(front, model, &call, request, form)).await;
    }
    let ran = run(front, model, &call, request, began).await?;
    let write = |reply: InferReply, permit: Option<&Arc<Permit>>| {
        let text = reply.outputs.iter().map(Output::text_bytes_max).sum();
        written(permit, text, || reply::write(&reply), |encoded| encoded.text)
    };
    let (encoded, spent) = ran.written(front, &call, named, write).await?;
    let mut response = Response::new(Body::new(encoded.body));
    let headers = response.headers_mut();
    // Room for our headers and those that the layers around add, so that the map never grows.
    headers.reserve(REPLY_HEADERS);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(encoded.content_type));
    if let Some(length) = encoded.json_length {
        headers.insert(HEADER_LENGTH, length.into());
    }
    spent.tell(headers);
    Ok(response)
}

/// What to use here instead of the options of a prediction's query.
const INSTEAD_OF_OPTIONS: &str = "here the answer is the model's tensors; an output with the parameter \"classification\" is its best classes";

/// Headers of a reply.
const REPLY_HEADERS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing::{after_its_turn, model};
    use std::time::Duration;

    #[tokio::test]
    async fn long_json_is_read_in_its_turn() {
        let refused = after_its_turn(async |front| {
            let request = Request::new(Body::from(" ".repeat(LONG_NUMBERS) + "{}"));
            answer(&front, &model(Duration::from_secs(60)), request).await.map(|_| ())
        });
        let refused = refused.await.expect_err("it has no inputs").to_string();
        assert!(refused.contains("missing field `inputs`"), "{refused}");
    }
}
