//! gRPC's own health checks: ready means the same as `/v2/health/ready`. The named service is the inference service.

use crate::{
    http::{Front, accept::Stages},
    protocol::health::{
        HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server,
    },
    words::clipped,
};
use futures_util::{Stream, StreamExt, stream};
use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};
use tonic::{Request, Response, Status};

/// How often a watcher checks the status.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const SERVICES: [&str; 2] = ["", "inference.GRPCInferenceService"];

/// The service.
pub(super) struct Health {
    front: Arc<Front>,
    stages: Stages,
}

impl Health {
    pub(super) fn new(front: &Arc<Front>, stages: &Stages) -> Health {
        Health { front: Arc::clone(front), stages: stages.clone() }
    }
}

fn now(front: &Front, service: &str) -> ServingStatus {
    if !SERVICES.contains(&service) {
        ServingStatus::ServiceUnknown
    } else if front.status.ready(Instant::now()).is_ok() {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

fn reply(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        match now(&self.front, &service) {
            ServingStatus::ServiceUnknown => Err(Status::not_found(format!(
                "there is no service {:?}; ask for one of {SERVICES:?}",
                clipped(&service)
            ))),
            status => Ok(Response::new(reply(status))),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Sends the status, and each change of it, until the listener closes.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (front, service) = (Arc::clone(&self.front), request.into_inner().service);
        let changes = stream::unfold(None, move |told| {
            let (front, service) = (Arc::clone(&front), service.clone());
            async move {
                loop {
                    let status = now(&front, &service);
                    if Some(status) != told {
                        return Some((Ok(reply(status)), Some(status)));
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        });
        let stages = self.stages.clone();
        Ok(Response::new(Box::pin(changes.take_until(async move { stages.closing().await }))))
    }
}
