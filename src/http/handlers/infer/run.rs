//! Runs a request of tensors, whatever protocol it came by.

use super::wanted::{Wanted, output, shown, wanted};
use crate::{
    engine::Tensor,
    error::InferError,
    http::{
        Front,
        admission::Permit,
        arrange::arrange,
        call::{Call, Spent},
        decode::{INLINE_BYTES_MAX, Step},
        encoded,
        handlers::{
            localize::tensors::{self, Fitted},
            shared_memory::{self, Named},
        },
        tally::Tally,
        wire::{
            reply::{InferReply, Output, OutputParameters},
            request::InferRequest,
        },
    },
    models::Model,
};
use std::{mem, sync::Arc, time::Instant};

/// The result of an inference.
pub(crate) struct Ran {
    /// As in the request.
    id: Option<String>,
    /// Where the time went.
    spent: Spent,
    /// Counts the request once its reply is written.
    pub(super) tally: Arc<Tally>,
    /// Parameters of the reply, beside the outputs.
    pub(super) parameters: OutputParameters,
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
    pub(super) fn outputs(&self) -> Result<Vec<Output>, InferError> {
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
        let reply = if long { front.decode.run(Step::Answer, write).await.flatten() } else { write() };
        spent.replied(front, &tally, answered.elapsed());
        let reply = tally.ended(reply)?;
        call.stage("encode", || answered.elapsed());
        Ok((reply, spent))
    }
}
