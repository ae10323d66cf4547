//! KServe's first protocol, which is TensorFlow Serving's: `/v1/models`. Rows (`instances`) or columns (`inputs`) of images in
//! base64 or of numbers.

use super::predict::{self, Negotiated};
use crate::{
    error::InferError,
    http::{
        Front,
        admission::written,
        arrange::arrange,
        body::{
            self,
            posted::{Charged, is_no_file},
        },
        call::{Call, Spent},
        decode::{LONG_NUMBERS, Step},
        query,
        reject::Problem,
        tally::Tally,
        target::{Target, VERB},
        wire::{
            answer,
            request::Input,
            v1::{self, Asked, Form, Taken},
        },
    },
    models::{Model, State},
};
use axum::{
    Json,
    body::Body,
    extract::{self, Request},
    http::{HeaderValue, Method, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc, time::Instant};

/// `GET /v1/models`: the names of the models that take requests.
pub(in crate::http) async fn models(extract::State(front): extract::State<Arc<Front>>) -> Json<Value> {
    let models = front.catalog.ready();
    let served = models.iter().filter(|model| front.queue.check_served(model.key).is_ok());
    let names: BTreeSet<&str> = served.map(|model| &*model.name).collect();
    Json(json!({ "models": names }))
}

/// `GET /v1/models/{model}[/versions/{version}]`. A model that is not ready is 503 here. The reply has what KServe's clients read, and the
/// state of each version as in TensorFlow Serving.
pub(in crate::http) async fn ready(
    extract::State(front): extract::State<Arc<Front>>,
    target: Target,
    method: Method,
) -> Response {
    // No model has such a name.
    match target.asked_to_predict() {
        Ok(_) => refused(true, &method),
        Err((target, _)) => described(&front, &target).into_response(),
    }
}

/// Another method, or a prediction without its verb.
pub(in crate::http) async fn other(target: Target, method: Method) -> Response {
    refused(target.asked_to_predict().is_ok(), &method)
}

/// The refusal of a method on the path of a prediction, which is posted, or on that of a model's readiness, which is got.
fn refused(predicts: bool, method: &Method) -> Response {
    let problem = match !predicts && method == Method::POST {
        true => Problem::without_verb(VERB),
        false => Problem::method_not_allowed(method.as_str()),
    };
    let allowed = if predicts { "POST" } else { "GET, HEAD" };
    ([(header::ALLOW, allowed)], problem).into_response()
}

fn described(front: &Front, target: &Target) -> Result<Json<Value>, InferError> {
    let model = target.find_ready(front)?;
    let asked = |version: &str| target.version.as_deref().is_none_or(|asked| asked == version);
    let versions = front.catalog.entries(&model.name).into_iter().filter(|of| asked(&of.version));
    let versions = versions.map(|of| {
        let (state, code, message) = match of.state {
            State::Loading => ("LOADING", "OK", String::new()),
            State::Ready(model) => match front.queue.check_served(model.key) {
                Ok(()) => ("AVAILABLE", "OK", String::new()),
                Err(error) => ("END", "UNAVAILABLE", error.to_string()),
            },
            State::Unavailable(reason) => ("END", "UNAVAILABLE", reason),
        };
        let status = json!({ "error_code": code, "error_message": message });
        json!({ "version": &*of.version, "state": state, "status": status })
    });
    let versions: Vec<Value> = versions.collect();
    Ok(Json(json!({ "name": &*model.name, "ready": true, "model_version_status": versions })))
}

/// `POST /v1/models/{model}[/versions/{version}]:predict`
pub(in crate::http) async fn call(
    extract::State(front): extract::State<Arc<Front>>,
    target: Target,
    request: Request,
) -> Result<Response, InferError> {
    let target = match target.asked_to_predict() {
        Ok(target) => target,
        Err((_, None)) => return Ok(refused(false, &Method::POST)),
        Err((_, Some(verb))) => {
            let told =
                format!("a model can be asked to predict, not {verb:?}: post to /v1/models/NAME{VERB}");
            // Verbs that TensorFlow Serving and KServe have as well.
            let known = matches!(&*verb, "explain" | "classify" | "regress");
            return Err(if known { InferError::NotOffered(told) } else { InferError::BadRequest(told) });
        }
    };
    let model = target.find(&front)?;
    predicted(&front, &model, request).await
}

/// What to use here instead of the options of a prediction's query.
const INSTEAD_OF_OPTIONS: &str =
    "here the body's \"parameters\" may have top_k, and nothing asks for another form of a mask";

async fn predicted(front: &Arc<Front>, model: &Arc<Model>, request: Request) -> Result<Response, InferError> {
    if model.fit.is_some() {
        let name = &model.name;
        return Err(InferError::BadRequest(format!(
            "model {name:?} takes stacks: post them to /predictions/{name}"
        )));
    }
    let said = request.uri().query().unwrap_or_default();
    query::has_none_of(&["top_k", "mask"], said, INSTEAD_OF_OPTIONS).map_err(InferError::BadRequest)?;
    let options = predict::Options::of_form(said).map_err(InferError::BadRequest)?;
    let formed = options.has_form();
    let options = match Negotiated::of(request.headers(), &model.task).torchserve(front.torchserve_answers) {
        true => options.in_torchserves_form(&model.task),
        false => options,
    };
    let mut call = Call::of(request.headers(), model, front.limits.timeout_max)?.traced(request.extensions());
    let mut charged = Charged::to(call.permit.clone());
    let body = call.body(body::of(request, front.limits.body)).await?;
    is_no_file(&body, model)?;
    let began = Instant::now();
    let (of, parts_max, long) = (Arc::clone(model), front.limits.parts_max, body.len() >= LONG_NUMBERS);
    // Numbers and base64 as text take milliseconds per megabyte.
    let read = move || {
        let inputs = &of.interface.signature.inputs;
        let taken = Taken { inputs, pixels: &of.takes[inputs.len()..], images: of.image.is_some() };
        let (form, asked) = v1::read(&body, taken, parts_max, &mut |bytes| charged.room(bytes))?;
        Ok::<_, InferError>((
            form,
            match asked {
                Asked::Images { files, parameters } => {
                    Asked::Images { files: charged.files(files), parameters }
                }
                tensors @ Asked::Tensors(_) => tensors,
            },
        ))
    };
    let read = async { front.decode.run_slow(call.step(), long, read).await? };
    let (form, asked) = call.in_time(read).await?;
    let (json, spent) = match asked {
        Asked::Images { files, parameters } => {
            let asked = predict::Asked::in_rows(options, &parameters, model)?;
            pictured(front, model, &call, asked, files, form).await?
        }
        Asked::Tensors(_) if formed => {
            return Err(InferError::BadRequest(
                "format is for images: numbers are answered by all that the model gives, in one form".into(),
            ));
        }
        Asked::Tensors(inputs) => computed(front, model, &call, inputs, form, began).await?,
    };
    let mut reply = Response::new(Body::from(json));
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    spent.tell(reply.headers_mut());
    Ok(reply)
}

/// The answer to images, a row for each.
async fn pictured(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    asked: predict::Asked,
    files: Vec<Result<Bytes, InferError>>,
    form: Form,
) -> Result<(Vec<u8>, Spent), InferError> {
    let asked = Arc::new(asked);
    let predict::Entries { entries, spent, held: _held } =
        predict::entries(front, model, call, &asked, files).await?;
    // The protocol has no place for one answer that is an error.
    let value = |members: Vec<u8>| if asked.torchserve { members } else { answer::object(&members) };
    let answers = entries.into_iter().map(|entry| entry.answer.map(value)).collect::<Result<Vec<_>, _>>()?;
    let json = v1::answers(form, &answers);
    call.says(json.len() as u64)?;
    Ok((json, spent))
}

/// The answer to numbers, whose reading `began` then.
async fn computed(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    inputs: Vec<Input>,
    form: Form,
    began: Instant,
) -> Result<(Vec<u8>, Spent), InferError> {
    let (inputs, items) = arrange(model, inputs, call.permit.as_deref())?;
    let first = inputs.first().and_then(|input| input.shape.first().copied());
    let decode = began.elapsed();
    call.stage("decode", || decode);
    let tally = Tally::of(model);
    let ticket = call.push(front, &tally, inputs, items, None)?;
    let ran = call.answer(front, &tally, ticket).await?;
    let spent = Spent::on(decode, &ran);
    let of = Arc::clone(model);
    let outputs = model.interface.outward(&ran.outputs);
    // A request that is one run may still be of many items.
    let are_rows = |rows: &usize| outputs.iter().all(|output| output.shape.first() == Some(rows));
    let of_run = first.filter(|_| of.alone_max.is_some()).filter(are_rows);
    let rows = if of.rules.whole { of_run } else { Some(items) }.filter(|_| form == Form::Rows);
    let (permit, text) = (call.permit.clone(), v1::text_bytes_max(&outputs));
    let write = move || {
        let write = || v1::outputs(rows, form, &of.interface.signature.outputs, &outputs);
        written(permit.as_ref(), text, write, Vec::len)
    };
    let answered = Instant::now();
    let json = front.decode.run(Step::Answer, write).await.flatten();
    spent.replied(front, &tally, answered.elapsed());
    let json = tally.ended(json)?;
    call.stage("encode", || answered.elapsed());
    Ok((json, spent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing::{after_its_turn, model};
    use std::time::Duration;

    #[tokio::test]
    async fn long_json_is_read_in_its_turn() {
        let refused = after_its_turn(async |front| {
            let request = Request::new(Body::from(" ".repeat(LONG_NUMBERS) + "{}"));
            predicted(&front, &model(Duration::from_secs(60)), request).await.map(|_| ())
        });
        let refused = refused.await.expect_err("it has no rows").to_string();
        assert!(refused.contains("either instances (rows) or inputs (columns)"), "{refused}");
    }
}
