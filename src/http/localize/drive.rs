//! One stack from its first byte to the last of its localizations. Two sides work at once, [`Finding`] ahead of [`Telling`] by a
//! bounded number of chunks.

use super::{
    asked::Asked,
    finding::{Finding, Found, Posted},
    outgoing::Outgoing,
    telling::Telling,
};
use crate::{
    engine::Setting,
    error::InferError,
    http::{Front, call::Call, tally::Tally},
    models::Model,
    tasks::localize::chunk::Origins,
};
use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;

/// How far reading may be ahead of fitting, and fitting of telling.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    /// Chunks that may be fitted, or wait to be told, beside the one that is told.
    chunks: usize,
    /// Bytes that are taken from the connection while others are looked at.
    bytes: usize,
}

impl Ahead {
    /// A GPU takes several batches at once, and each sooner than the next is read.
    const OF_GPU: Ahead = Ahead { chunks: 8, bytes: 4 << 20 };

    /// Cores slow down when what is on its way does not stay in their caches: with as much as for a GPU, two had 5 % fewer 7 x 7 ROIs. Each of the
    /// model's instances has a batch of its own.
    fn of_cpu(instances: usize) -> Ahead {
        Ahead { chunks: 3 + instances, bytes: 1 << 20 }
    }
}

/// A chunk in the queue.
pub(super) struct Pending {
    pub(super) fitting: Fitting,
    /// Counts it, once its rows are written.
    pub(super) tally: Arc<Tally>,
    pub(super) origins: Origins,
    pub(super) setting: Setting,
    /// How long it was looked for; of several that came at once, the first has the time of all.
    pub(super) decode: Duration,
}

pub(super) type Fitting = Pin<Box<dyn Future<Output = Result<crate::batch::Answer, InferError>> + Send>>;

/// The work on one stack.
pub(super) struct Drive {
    finding: Finding,
    telling: Telling,
    ahead: Ahead,
}

impl Drive {
    pub(super) fn new(front: &Arc<Front>, model: &Arc<Model>, call: Call, asked: Asked) -> Drive {
        let on_gpu = front.queue.is_on_gpu(model.key);
        let ahead = if on_gpu { Ahead::OF_GPU } else { Ahead::of_cpu(model.instances) };
        Drive {
            telling: Telling::new(front, call.clone(), asked.format),
            finding: Finding::new(Arc::clone(front), Arc::clone(model), call, asked),
            ahead,
        }
    }

    /// Does all of it. Ends early, without a word, when nobody listens any more.
    pub(super) async fn run(self, posted: Posted, mut reply: Outgoing) {
        let Drive { finding, mut telling, ahead } = self;
        let (found, mut coming) = mpsc::channel::<Found>(ahead.chunks);
        let mut found_all = None;
        let told = {
            let mut finding = pin!(finding.run(posted, ahead.bytes, found));
            let mut telling = pin!(telling.run(&mut coming, &mut reply));
            loop {
                tokio::select! {
                    all = &mut finding, if found_all.is_none() => found_all = Some(all),
                    // When it goes wrong, there is no use in finding more.
                    told = &mut telling => break told,
                }
            }
        };
        // What was found before an error has been told before it.
        if let Err(error) = told.and(found_all.unwrap_or(Ok(()))) {
            telling.fail(error, &mut reply).await;
        }
    }
}
