//! `POST /v2/models/{model}/infer`: tensors in, tensors out, by the Open Inference Protocol. `parts` answers item by item.

mod parts;

use super::{
    Front,
    admission::{Permit, charged, texts, written},
    body,
    call::{Call, Spent},
    decode::INLINE_BYTES_MAX,
    encoded,
    localize::tensors::{self, Changes, Fitted},
    posted::is_no_file,
    query,
    shared_memory::{self, Caller, Named},
    streamed::Form,
    tally::Tally,
    target::Target,
    wire::{
        HEADER_LENGTH, classification, model_config, raw,
        reply::{self, InferReply, Output, OutputParameters},
        request::{self as oip, InferRequest, Input, Requested, fits},
        shared_memory::Place,
    },
};
use crate::{
    engine::{Tensor, TensorSpec},
    error::{InferError, bad},
    image::Format,
    models::Model,
    words::clipped,
};
use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, header},
    response::Response,
};
use std::{mem, sync::Arc, time::Instant};

/// `POST /v2/models/{model}[/versions/{version}]/infer`
pub(super) async fn infer(
    State(front): State<Arc<Front>>,
    target: Target,
    request: Request,
) -> Result<Response, InferError> {
    answer(&front, &target.find(&front)?, request).await
}

/// Puts a request's tensors into the model's order and form, and checks each against its specification. Also counts the items, and sets
/// aside memory for texts.
pub(super) fn arrange(
    model: &Model,
    given: Vec<Input>,
    permit: Option<&Permit>,
) -> Result<(Vec<Tensor>, usize), InferError> {
    let specs = &model.interface.signature.inputs;
    let mut slots: Vec<Option<Tensor>> = specs.iter().map(|_| None).collect();
    for Input { name, tensor, .. } in given {
        // A raw request has no name for its only input.
        let named = |spec: &TensorSpec| spec.name == name || (name.is_empty() && specs.len() == 1);
        let index = specs.iter().position(named).ok_or_else(|| {
            let name = clipped(&name);
            bad(format!("model {:?} has no input {name:?}; it has {}", model.name, names(specs)))
        })?;
        fits(&model.takes, &specs[index].name, tensor.datatype, &tensor.shape)?;
        if slots[index].replace(tensor).is_some() {
            return Err(bad(format!("input {name:?} is given twice")));
        }
    }
    let inputs = slots
        .into_iter()
        .zip(specs)
        .map(|(slot, spec)| {
            slot.ok_or_else(|| bad(format!("input {:?} is missing; expected {}", spec.name, names(specs))))
        })
        .collect::<Result<Vec<_>, _>>()?;
    texts::cover(permit, &inputs)?;
    // Pixels are left to the engine.
    let inward = |inputs: Vec<Tensor>| match &inputs[..] {
        [only] if model.is_pixels(only) => inputs,
        _ => model.interface.inward(&inputs),
    };
    if model.rules.whole {
        return Ok((inward(inputs), 1));
    }
    let items = inputs[0].shape[0];
    if let Some(index) = inputs.iter().position(|input| input.shape[0] != items) {
        return Err(bad(format!(
            "input {:?} has {} items and input {:?} has {items}: the batch axis must be the same (where their first axes count different \
             things, batch.axis = \"none\" in the model's model.toml says so)",
            specs[index].name, inputs[index].shape[0], specs[0].name
        )));
    }
    Ok((inward(inputs), items))
}

fn names(specs: &[TensorSpec]) -> String {
    specs.iter().map(|spec| format!("{:?} ({})", spec.name, spec.datatype)).collect::<Vec<_>>().join(", ")
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
        front.decode.run(charged(call.permit.as_ref(), read)).await??
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

/// The result of an inference.
pub(crate) struct Ran {
    /// As in the request.
    id: Option<String>,
    /// Where the time went.
    spent: Spent,
    /// Counts the request once its reply is written.
    tally: Arc<Tally>,
    /// Parameters of the reply, beside the outputs.
    parameters: OutputParameters,
    outputs: Vec<(String, Tensor)>,
    wanted: Vec<Wanted>,
}

/// Runs a request from any protocol, once all its data is there. `began` is when its tensors began to be read.
pub(crate) async fn run(
    front: &Arc<Front>,
    model: &Arc<Model>,
    call: &Call,
    request: InferRequest,
    began: Instant,
) -> Result<Ran, InferError> {
    let tally = Arc::new(Tally::of(model));
    match counted(front, &tally, call, request, began).await {
        Ok(ran) => Ok(ran),
        Err(error) => tally.ended(Err(error)),
    }
}

async fn counted(
    front: &Arc<Front>,
    tally: &Arc<Tally>,
    call: &Call,
    mut request: InferRequest,
    began: Instant,
) -> Result<Ran, InferError> {
    let (model, id) = (tally.model(), request.id.take());
    let asked = (mem::take(&mut request.outputs), request.binary_default);
    if let Some(settings) = &model.fit {
        // Boxed: what fitters need would make every request's future larger.
        let fitted = Box::pin(tensors::fit(front, tally, settings, call, request));
        let Fitted { outputs, parameters, spent } = fitted.await?;
        let names: Vec<&str> = outputs.iter().map(|(name, _)| name.as_str()).collect();
        let wanted = wanted(model, &asked, &names)?;
        return Ok(Ran { id, spent, tally: Arc::clone(tally), parameters, outputs, wanted });
    }
    // Checked before the work: what may be asked for is known by now.
    let names = shown(model);
    let wanted = wanted(model, &asked, &names)?;
    let (outputs, spent) = if let Some(images) = encoded::sent(model, &request.inputs) {
        Box::pin(encoded::run(front, tally, call, images)).await?
    } else {
        let (inputs, items) = arrange(model, request.inputs, call.permit.as_deref())?;
        let decode = began.elapsed();
        let ticket = call.push(front, tally, inputs, items, None)?;
        let ran = call.answer(front, tally, ticket).await?;
        let spent = Spent::on(decode, &ran);
        (ran.outputs, spent)
    };
    let names = names.into_iter().map(str::to_owned);
    let outputs = names.zip(model.interface.outward(&outputs)).collect();
    Ok(Ran { id, spent, tally: Arc::clone(tally), parameters: OutputParameters::new(), outputs, wanted })
}

/// The outputs that requests may ask for.
fn shown(model: &Model) -> Vec<&str> {
    model.interface.signature.outputs.iter().map(|spec| spec.name.as_str()).collect()
}

impl Ran {
    /// Whether the outputs take longer to write (as text or into shared memory), or to search for the best classes, than a hand-over to the
    /// pool takes.
    fn is_long(&self) -> bool {
        let (mut text, mut shared) = (0, 0);
        for wanted in &self.wanted {
            let bytes = self.outputs[wanted.index].1.data.len();
            match wanted {
                Wanted { place: Some(_), .. } => shared += bytes as u64,
                Wanted { binary: true, classes: None, .. } => {}
                _ => text += bytes,
            }
        }
        text >= INLINE_BYTES_MAX || shared_memory::is_long(shared)
    }

    /// The outputs that were asked for.
    fn outputs(&self) -> Result<Vec<Output>, InferError> {
        let model = self.tally.model();
        self.wanted.iter().map(|wanted| output(model, &self.outputs, wanted)).collect()
    }

    /// Puts outputs that have a place into their regions (`named`), and writes the reply with `write`. Returns the result and where the
    /// time went. The request is counted then.
    pub(crate) async fn written<T: Send + 'static>(
        mut self,
        front: &Arc<Front>,
        call: &Call,
        named: Named,
        write: impl FnOnce(InferReply, Option<&Arc<Permit>>) -> Result<T, InferError> + Send + 'static,
    ) -> Result<(T, Spent), InferError> {
        let answered = Instant::now();
        let (long, spent, tally) = (self.is_long(), mem::take(&mut self.spent), Arc::clone(&self.tally));
        let (front_too, permit) = (Arc::clone(front), call.permit.clone());
        let write = move || {
            let outputs = self.outputs()?;
            shared_memory::deliver(&front_too, &named, &outputs)?;
            let model = self.tally.model();
            let reply = InferReply {
                outputs,
                id: self.id,
                model_name: Arc::clone(&model.name),
                model_version: Arc::clone(&model.version),
                parameters: self.parameters,
            };
            write(reply, permit.as_ref())
        };
        let reply = if long { front.decode.run(write).await.flatten() } else { write() };
        spent.replied(front, &tally, answered.elapsed());
        let reply = tally.ended(reply)?;
        call.stage("encode", || answered.elapsed());
        Ok((reply, spent))
    }
}

/// An output that is asked for.
#[derive(Clone)]
struct Wanted {
    /// Its index among the model's outputs.
    index: usize,
    binary: bool,
    /// How many of its best classes to return instead of its values.
    classes: Option<u64>,
    /// Where it goes instead of into the reply.
    place: Option<Place>,
}

fn output(model: &Model, there: &[(String, Tensor)], wanted: &Wanted) -> Result<Output, InferError> {
    let (name, tensor) = &there[wanted.index];
    let tensor = match wanted.classes {
        None => tensor.clone(),
        Some(k) => {
            // As the configuration says it (`max_batch_size` above 0).
            let batched = model_config::has_batch_axis(model);
            classification::best(name, tensor, batched, k, |classes| model.labels_of(name, Some(classes)))?
        }
    };
    Ok(Output { name: name.clone(), tensor, binary: wanted.binary, place: wanted.place.clone() })
}

/// The outputs that are asked for; all of them if none is named.
fn wanted(
    model: &Model,
    (outputs, binary_default): &(Vec<Requested>, bool),
    there: &[&str],
) -> Result<Vec<Wanted>, InferError> {
    // Triton orders its answers by name, whatever order was asked for.
    let in_order = |mut wanted: Vec<Wanted>| {
        if model.manifest.by_name {
            wanted.sort_by_key(|wanted| there[wanted.index]);
        }
        wanted
    };
    if outputs.is_empty() {
        let plain = |index| Wanted { index, binary: *binary_default, classes: None, place: None };
        return Ok(in_order((0..there.len()).map(plain).collect()));
    }
    let wanted = outputs
        .iter()
        .map(|asked| {
            let index = there.iter().position(|name| *name == asked.name).ok_or_else(|| {
                let (name, there) = (clipped(&asked.name), there.join(", "));
                bad(format!("model {:?} has no output {name:?}; it has {there}", model.name))
            })?;
            // Clients that want no classes send 0.
            let classes = asked.classification.filter(|k| *k > 0);
            Ok(Wanted { index, binary: asked.binary, classes, place: asked.place.clone() })
        })
        .collect::<Result<_, InferError>>()?;
    Ok(in_order(wanted))
}
