//! TorchServe's own service: a file in, and what TorchServe's handler for the task answers.

use super::inference::{Head, counted, target};
use crate::{
    error::InferError,
    http::{Front, admission::Permit, call::Call, handlers::predict},
    protocol::torchserve::{
        PredictionResponse, PredictionsRequest, TorchServeHealthResponse,
        inference_ap_is_service_server::InferenceApIsService,
    },
    words::clipped,
};
use axum::http::HeaderMap;
use bytes::Bytes;
use futures_util::{Stream, stream};
use prost::Message;
use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Instant};
use tonic::{Extensions, Request, Response, Status, metadata::MetadataMap};

/// The service.
pub(super) struct TorchServe {
    front: Arc<Front>,
}

impl TorchServe {
    pub(super) fn new(front: &Arc<Front>) -> TorchServe {
        TorchServe { front: Arc::clone(front) }
    }
}

#[tonic::async_trait]
impl InferenceApIsService for TorchServe {
    /// As `GET /ping`. TorchServe says in its text that it is not healthy.
    async fn ping(&self, _: Request<()>) -> Result<Response<TorchServeHealthResponse>, Status> {
        let ready = self.front.status.ready(Instant::now()).is_ok();
        let status = if ready { "Healthy" } else { "Unhealthy" };
        Ok(Response::new(TorchServeHealthResponse {
            health: serde_json::json!({ "status": status }).to_string(),
        }))
    }

    async fn predictions(
        &self,
        request: Request<PredictionsRequest>,
    ) -> Result<Response<PredictionResponse>, Status> {
        let (metadata, extensions, message) = request.into_parts();
        let answer = async {
            let head = Head::of(metadata, &extensions)?;
            if let Some(permit) = extensions.get::<Arc<Permit>>() {
                // As for an inference: the message takes more than the bytes that arrived if they were packed.
                permit.cover(message.encoded_len() as u64)?;
            }
            let PredictionsRequest { model_name, model_version, input } = message;
            let target = target(model_name, model_version);
            let answer = async {
                let model = target.find(&self.front)?;
                let call = Call::of(&head.headers, &model, self.front.limits.timeout_max)?
                    .traced(&extensions)
                    .since(head.arrived)
                    .no_later_than(head.timeout, head.arrived);
                predict::file(&self.front, &model, &call, file(input)?).await
            };
            counted(&self.front, &target.model, answer).await
        };
        let (prediction, spent) = answer.await?;
        let mut headers = HeaderMap::new();
        spent.tell(&mut headers);
        let reply = PredictionResponse { prediction: prediction.into() };
        Ok(Response::from_parts(MetadataMap::from_headers(headers), reply, Extensions::default()))
    }

    type StreamPredictionsStream = Pin<Box<dyn Stream<Item = Result<PredictionResponse, Status>> + Send>>;

    /// Handlers may answer in several messages; ours have one answer.
    async fn stream_predictions(
        &self,
        request: Request<PredictionsRequest>,
    ) -> Result<Response<Self::StreamPredictionsStream>, Status> {
        let reply = self.predictions(request).await?;
        Ok(reply.map(|only| Box::pin(stream::iter([Ok(only)])) as Self::StreamPredictionsStream))
    }
}

/// The file of a request, where TorchServe's handlers look for it. They pass over what has other names.
fn file(mut input: BTreeMap<String, Bytes>) -> Result<Bytes, InferError> {
    let mut take = |name| input.remove(name).filter(|file| !file.is_empty());
    take("data").or_else(|| take("body")).ok_or_else(|| {
        let names = input.keys().map(|name| format!("{:?}", clipped(name))).collect::<Vec<_>>().join(", ");
        let has = if names.is_empty() { "nothing".to_owned() } else { names };
        InferError::BadRequest(format!(
            "input has {}, expected an image as \"data\" or \"body\"",
            clipped(&has)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_looked_for_where_torchserves_handlers_do() {
        let of = |names: &[(&str, &'static str)]| {
            file(
                names
                    .iter()
                    .map(|(name, file)| ((*name).to_owned(), Bytes::from_static(file.as_bytes())))
                    .collect(),
            )
        };
        assert_eq!(of(&[("body", "a"), ("data", "b"), ("k", "c")]), Ok("b".into()));
        assert_eq!(of(&[("body", "a"), ("data", "")]), Ok("a".into()));
        for (names, has) in
            [(&[][..], "nothing"), (&[("data", "")], "nothing"), (&[("b", "1"), ("a", "")], r#""a", "b""#)]
        {
            let told = of(names).expect_err("there is no file").to_string();
            assert_eq!(told, format!("input has {has}, expected an image as \"data\" or \"body\""));
        }
    }
}
