//! A front without models, and a model.

use super::*;
use crate::{
    batch::{ModelKey, QueueLimits},
    engine::staging::Memory,
    image::Limits,
    models::{Model, testing::source},
    tasks::testing::signature,
};
use std::time::{Duration, Instant};

/// A model whose requests have so much time.
pub(crate) fn model(timeout: Duration) -> Arc<Model> {
    let (source, signature) = (source("m", "1", ""), signature(&[("y", &[-1, 2])]));
    let model = Model::resolve(ModelKey(1), &source, signature, timeout, &Memory::Plain);
    Arc::new(model.expect("a model"))
}

/// A front whose metrics know these routes.
pub(crate) fn front(routes: &[&str]) -> Arc<Front> {
    let limits = Limits { side_max: 1, pixels_max: 1, frames_max: 1 };
    let parts = Parts {
        queue: Queue::new(QueueLimits { items_max: 1, bytes_max: 1 }),
        catalog: Arc::new(Catalog::new()),
        status: Arc::new(Status::new(Instant::now())),
        metrics: Arc::new(Metrics::new(routes, "", "")),
        decode: DecodePool::new(1, 1, limits).expect("a thread"),
        lines_lost: LinesLost::default(),
        control: Arc::new(Control::new("models".into()).0),
        traces: None,
    };
    Arc::new(Front::new(&Config::default(), parts))
}
