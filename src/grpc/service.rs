//! The calls of the inference service. Each reads or runs the same things as the handlers of `http`.

use super::{
    change::{load, model_of, one_repository, unload_body},
    codec,
    inference::{Head, infer, permit_of, stream_answer, target},
    log_settings, status,
};
use crate::{
    error::InferError,
    http::{
        Front,
        accept::{Peer, Stages},
        admission::Permit,
        control,
        handlers::{
            catalog, logging, repository,
            shared_memory::{self, Region},
        },
        reject::Problem,
        wire::shared_memory::Registration,
    },
    models::Model,
    protocol::{DESCRIPTORS, inference::*},
    telemetry::VERSION,
};
use axum::http::HeaderMap;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage};
use std::{pin::Pin, sync::Arc, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Extensions, Request, Response, Status, Streaming, metadata::MetadataMap};
use tracing::Instrument;

/// How many messages of one stream are worked on at once; further ones wait in the connection.
const STREAM_MESSAGES_MAX: usize = 64;

/// The service.
pub(super) struct Service {
    front: Arc<Front>,
    stages: Stages,
    definitions: DescriptorPool,
}

impl Service {
    pub(super) fn new(front: &Arc<Front>, stages: &Stages) -> Service {
        let definitions = DescriptorPool::decode(DESCRIPTORS).expect("the build wrote the definitions");
        Service { front: Arc::clone(front), stages: stages.clone(), definitions }
    }

    fn find(&self, name: String, version: String) -> Result<Arc<Model>, Status> {
        target(name, version).find(&self.front).map_err(Status::from)
    }

    /// Whether a caller may load and unload models, by the rules of HTTP.
    pub(super) fn may_control(&self, extensions: &Extensions, headers: &HeaderMap) -> Result<(), Status> {
        control::allowed(&self.front, extensions.get::<Peer>(), headers).map_err(Status::from)
    }

    /// Whether an HTTP rule for shared memory allows the caller's request.
    fn may<M>(
        &self,
        rule: fn(&Front, Option<&Peer>, &HeaderMap) -> Result<(), InferError>,
        request: &Request<M>,
    ) -> Result<(), Status> {
        rule(&self.front, request.extensions().get(), request.metadata().as_ref()).map_err(Status::from)
    }

    /// Converts HTTP's JSON to the message of this name. Both use the same names, so that they cannot differ.
    fn message<M: prost::Message + Default>(
        &self,
        name: &str,
        value: serde_json::Value,
    ) -> Result<M, Status> {
        let descriptor = self.definitions.get_message_by_name(name).expect("the definitions have it");
        DynamicMessage::deserialize(descriptor, value)
            .map_err(|error| error.to_string())
            .and_then(|message| message.transcode_to().map_err(|error| error.to_string()))
            .map_err(|error| Status::internal(format!("{name} cannot be written: {error}")))
    }
}

/// The answers of a stream.
type Answers = Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

impl Service {
    /// Answers in the order of the requests, which are decoded one after the other, and worked on concurrently.
    pub(super) fn stream(
        &self,
        metadata: MetadataMap,
        extensions: &Extensions,
        messages: impl Stream<Item: Future<Output = Result<ModelInferRequest, Status>> + Send> + Send + 'static,
    ) -> Result<Response<Answers>, Status> {
        let head = Arc::new(Head::of(metadata, extensions)?.of_stream(&self.front));
        let (front, stages, closed) = (Arc::clone(&self.front), self.stages.clone(), self.stages.clone());
        // For `around`, the call is over once its head is sent; what follows is still logged under the call's id.
        let span = tracing::Span::current();
        let call = extensions.get::<Arc<Permit>>().cloned();
        let mut ended = false;
        let answers = messages
            // Accepted messages are answered; clients send later ones elsewhere.
            .take_until(async move { stages.closing().await })
            .then(std::convert::identity)
            // An error ends a call. After a message that broke off, the stream would return errors without end.
            .take_while(move |message| {
                let goes_on = !std::mem::replace(&mut ended, message.is_err());
                std::future::ready(goes_on)
            })
            .map(move |message| {
                let (front, head) = (Arc::clone(&front), Arc::clone(&head));
                let span = span.clone();
                // The message's permit is split off the call's before the next message is decoded, which is charged to the call in turn.
                let message = message.map(|message| (permit_of(call.as_ref(), &message), message));
                async move {
                    // Runs as a task of its own, whether or not the client reads, so that a slow client does not keep resources that the
                    // message is done with from others.
                    let (permit, message) = message?;
                    let kept = permit.as_ref().ok().cloned().flatten();
                    let answer = stream_answer(front, head, message, permit).instrument(span);
                    let answer = AbortOnDropHandle::new(tokio::spawn(answer)).await;
                    let answer = answer.map_err(|_| Status::internal("a message was not answered"))??;
                    Ok((answer, kept))
                }
            })
            .buffered(STREAM_MESSAGES_MAX)
            // An answer counts as in flight until there is room for it on its way to the client.
            .map(|answer| answer.map(|(answer, _permit)| answer));
        let end = stream::once(async move {
            let draining = || status::of(&InferError::Draining);
            closed.closing().now_or_never().map(|()| Err(draining()))
        });
        Ok(Response::new(Box::pin(answers.chain(end.filter_map(std::future::ready)))))
    }
}

#[tonic::async_trait]
impl grpc_inference_service_server::GrpcInferenceService for Service {
    async fn server_live(
        &self,
        _: Request<ServerLiveRequest>,
    ) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: self.front.status.live(Instant::now()).is_ok() }))
    }

    async fn server_ready(
        &self,
        _: Request<ServerReadyRequest>,
    ) -> Result<Response<ServerReadyResponse>, Status> {
        Ok(Response::new(ServerReadyResponse { ready: self.front.status.ready(Instant::now()).is_ok() }))
    }

    /// A model that does not exist is not ready, as in Triton.
    async fn model_ready(
        &self,
        request: Request<ModelReadyRequest>,
    ) -> Result<Response<ModelReadyResponse>, Status> {
        let ModelReadyRequest { name, version } = request.into_inner();
        let ready = target(name, version).find_ready(&self.front).is_ok();
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        Ok(Response::new(ServerMetadataResponse {
            name: self.front.server_name.clone(),
            version: VERSION.to_owned(),
            extensions: catalog::extensions(&self.front).map(str::to_owned).collect(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let ModelMetadataRequest { name, version } = request.into_inner();
        let target = target(name, version);
        let model = target.find(&self.front)?;
        let signature = catalog::signature(&model);
        let tensors = |specs: &[crate::engine::TensorSpec]| {
            let tensor = |spec: &crate::engine::TensorSpec| model_metadata_response::TensorMetadata {
                name: spec.name.clone(),
                datatype: spec.datatype.name().to_owned(),
                shape: spec.shape.iter().map(|dim| dim.number()).collect(),
            };
            specs.iter().map(tensor).collect()
        };
        Ok(Response::new(ModelMetadataResponse {
            name: model.name.to_string(),
            versions: catalog::versions(&self.front, &model, &target),
            platform: signature.platform.clone(),
            inputs: tensors(&signature.inputs),
            outputs: tensors(&signature.outputs),
        }))
    }

    async fn model_infer(
        &self,
        request: Request<ModelInferRequest>,
    ) -> Result<Response<ModelInferResponse>, Status> {
        let (metadata, extensions, message) = request.into_parts();
        let answer = async {
            let head = Head::of(metadata, &extensions)?;
            if let Some(permit) = extensions.get::<Arc<Permit>>() {
                // The end of the call trimmed the permit to the bytes that arrived. The message takes more if it was packed or has typed
                // elements.
                permit.cover(codec::held(&message))?;
            }
            infer(&self.front, &head, head.arrived, message, None).await
        };
        let (reply, headers) = answer.await?;
        Ok(Response::from_parts(MetadataMap::from_headers(headers), reply, Extensions::default()))
    }

    type ModelStreamInferStream = Answers;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let (metadata, extensions, messages) = request.into_parts();
        self.stream(metadata, &extensions, messages.map(std::future::ready))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> Result<Response<ModelConfigResponse>, Status> {
        let ModelConfigRequest { name, version } = request.into_inner();
        let config = catalog::config_of(&*self.find(name, version)?);
        let config = self.message("inference.ModelConfig", config)?;
        Ok(Response::new(ModelConfigResponse { config: Some(config) }))
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Result<Response<ModelStatisticsResponse>, Status> {
        let ModelStatisticsRequest { name, version } = request.into_inner();
        let models = if name.is_empty() {
            self.front.catalog.ready()
        } else {
            catalog::counted(&self.front, &target(name, version))?
        };
        let statistics = catalog::statistics_value(&self.front, &models);
        Ok(Response::new(self.message("inference.ModelStatisticsResponse", statistics)?))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Result<Response<RepositoryIndexResponse>, Status> {
        let RepositoryIndexRequest { repository_name, ready } = request.into_inner();
        one_repository(&repository_name)?;
        let known = repository::list(&self.front, ready).await;
        let models = known.into_iter().map(|known| repository_index_response::ModelIndex {
            name: known.name,
            version: known.version,
            state: known.state.to_owned(),
            reason: known.reason.into_owned(),
        });
        let models = models.collect();
        Ok(Response::new(RepositoryIndexResponse { models }))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Result<Response<RepositoryModelLoadResponse>, Status> {
        self.may_control(request.extensions(), request.metadata().as_ref())?;
        let permit = request.extensions().get::<Arc<Permit>>().cloned();
        if let Some(permit) = &permit {
            // As for an inference: the end of the call trimmed the permit to the bytes that arrived, which are fewer if they were packed.
            let bytes = request.get_ref().encoded_len() as u64;
            permit.cover(bytes)?;
        }
        let RepositoryModelLoadRequest { repository_name, model_name, parameters } = request.into_inner();
        let model_name = model_of(repository_name, model_name)?;
        repository::load_as(&self.front, &model_name, load(parameters)?, permit.as_ref()).await?;
        Ok(Response::new(RepositoryModelLoadResponse { model_name, is_loaded: true }))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Result<Response<RepositoryModelUnloadResponse>, Status> {
        self.may_control(request.extensions(), request.metadata().as_ref())?;
        let RepositoryModelUnloadRequest { repository_name, model_name, parameters } = request.into_inner();
        let model_name = model_of(repository_name, model_name)?;
        let unloaded = repository::unload_as(&self.front, &model_name, &unload_body(parameters)).await;
        unloaded?;
        Ok(Response::new(RepositoryModelUnloadResponse { model_name, is_unloaded: true }))
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> Result<Response<SystemSharedMemoryStatusResponse>, Status> {
        self.may(shared_memory::may_look, &request)?;
        let name = request.into_inner().name;
        let regions = match self.front.shared_memory.find(&name) {
            _ if name.is_empty() => self.front.shared_memory.all(),
            Some(region) => vec![region],
            None => return Err(Status::not_found(Problem::unknown_region(&name).detail)),
        };
        let entry = |region: Arc<Region>| {
            let Registration { key, offset, byte_size } = region.registration.clone();
            let name = region.name.clone();
            let status = system_shared_memory_status_response::RegionStatus { name, key, offset, byte_size };
            (region.name.clone(), status)
        };
        let regions = regions.into_iter().map(entry).collect();
        Ok(Response::new(SystemSharedMemoryStatusResponse { regions }))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Result<Response<SystemSharedMemoryRegisterResponse>, Status> {
        self.may(shared_memory::allowed, &request)?;
        let SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = request.into_inner();
        let registered = self.front.shared_memory.register(&name, Registration { key, offset, byte_size });
        registered?;
        Ok(Response::new(SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Result<Response<SystemSharedMemoryUnregisterResponse>, Status> {
        self.may(shared_memory::may_look, &request)?;
        self.front.shared_memory.unregister(&request.into_inner().name);
        Ok(Response::new(SystemSharedMemoryUnregisterResponse {}))
    }

    /// GPU memory is never shared, so the list is empty.
    async fn cuda_shared_memory_status(
        &self,
        _: Request<CudaSharedMemoryStatusRequest>,
    ) -> Result<Response<CudaSharedMemoryStatusResponse>, Status> {
        Ok(Response::new(CudaSharedMemoryStatusResponse::default()))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        _: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Result<Response<CudaSharedMemoryUnregisterResponse>, Status> {
        Ok(Response::new(CudaSharedMemoryUnregisterResponse {}))
    }

    /// Without settings, it only asks.
    async fn log_settings(
        &self,
        request: Request<LogSettingsRequest>,
    ) -> Result<Response<LogSettingsResponse>, Status> {
        if !request.get_ref().settings.is_empty() {
            self.may(control::known, &request)?;
        }
        let body = log_settings::body(request.into_inner().settings);
        let settings = log_settings::reply(logging::change_as(&self.front, &body)?);
        Ok(Response::new(LogSettingsResponse { settings }))
    }
}
