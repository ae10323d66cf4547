//! A front without models, and models.

use super::*;
use crate::{
    batch::{ModelKey, QueueLimits},
    engine::{DataType, staging::Memory},
    image::Limits,
    models::{Model, testing::source},
    tasks::testing::{signature, spec},
};
use std::time::{Duration, Instant};

/// A model whose requests have so much time.
pub(crate) fn model(timeout: Duration) -> Arc<Model> {
    let (source, signature) = (source("m", "1", ""), signature(&[("y", &[-1, 2])]));
    let model = Model::resolve(ModelKey(1), &source, signature, timeout, &Memory::Plain);
    Arc::new(model.expect("a model"))
}

/// A model that takes images of any size as they are.
pub(crate) fn image_model() -> Arc<Model> {
    let mut signature = signature(&[("out", &[-1, 4, -1, -1])]);
    signature.inputs = vec![spec("image", DataType::Fp32, &[-1, 3, -1, -1])];
    let source = source("m", "1", "task = \"segment\"\n[input]\nresize = \"none\"\n");
    let (key, time) = (ModelKey(1), Duration::from_secs(60));
    Arc::new(Model::resolve(key, &source, signature, time, &Memory::Plain).expect("a model"))
}

/// A front whose metrics know these routes.
pub(crate) fn front(routes: &[&str]) -> Arc<Front> {
    front_of(routes, 1)
}

/// The same with so many threads that decode.
fn front_of(routes: &[&str], threads: usize) -> Arc<Front> {
    let limits = Limits { side_max: 1, pixels_max: 1, frames_max: 1 };
    let parts = Parts {
        queue: Queue::new(QueueLimits { items_max: 1, bytes_max: 1 }),
        catalog: Arc::new(Catalog::new()),
        status: Arc::new(Status::new(Instant::now())),
        metrics: Arc::new(Metrics::new(routes, "", "")),
        decode: DecodePool::new(threads, 1, limits).expect("threads"),
        lines_lost: LinesLost::default(),
        log_filter: LogFilter::default(),
        control: Arc::new(Control::new(std::path::Path::new("models").into()).0),
        traces: None,
    };
    Arc::new(Front::new(&Config::default(), parts))
}

/// Checks that an answer waits while other work has the turn of what may take long, although a thread is free. Returns it.
pub(crate) async fn after_its_turn<T, F: Future<Output = T>>(answer: impl FnOnce(Arc<Front>) -> F) -> T {
    let (front, read) = (front_of(&[], 2), decode::Step::Request(0));
    let (release, released) = std::sync::mpsc::channel();
    let mut other = Box::pin(front.decode.run_slow(read, true, move || released.recv().is_ok()));
    assert!(futures_util::poll!(&mut other).is_pending());
    let mut answer = Box::pin(answer(Arc::clone(&front)));
    for _ in 0..2 {
        assert!(futures_util::poll!(&mut answer).is_pending());
        // Behind it, if it is on the free thread.
        assert_eq!(front.decode.run(decode::Step::Request(9), || 7).await, Ok(7));
    }
    release.send(()).expect("it waits");
    assert_eq!(other.await, Ok(true));
    answer.await
}
