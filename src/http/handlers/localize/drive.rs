//! The work on one stack, from its first byte to its last localization. Two sides work at once: [`Finding`] runs ahead of [`Telling`] by a
//! bounded number of chunks.

use super::{
    asked::Asked,
    finding::{Finding, Found, Posted},
    outgoing::Outgoing,
    telling::Telling,
};
use crate::{
    error::InferError,
    http::{Front, call::Call},
    models::Model,
};
use std::{pin::pin, sync::Arc};
use tokio::sync::mpsc;

/// How far reading may be ahead of fitting, and fitting of telling.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    /// Chunks that are being fitted or wait to be written, beside the one that is being written.
    chunks: usize,
    /// Bytes taken from the connection while others are being searched.
    bytes: usize,
}

impl Ahead {
    /// A GPU takes several batches at once, and is done with each sooner than the next is read.
    const OF_GPU: Ahead = Ahead { chunks: 8, bytes: 4 << 20 };

    /// Cores slow down when the data in flight does not stay in their caches: with as much as for a GPU, two cores fitted 5 % fewer 7 x 7
    /// ROIs. Each of the model's instances has a batch of its own.
    fn of_cpu(instances: usize) -> Ahead {
        Ahead { chunks: 3 + instances, bytes: 1 << 20 }
    }
}

/// The work on one stack.
pub(super) struct Drive {
    finding: Finding,
    telling: Telling,
    ahead: Ahead,
    front: Arc<Front>,
}

impl Drive {
    pub(super) fn new(front: &Arc<Front>, model: &Arc<Model>, call: Call, asked: Asked) -> Drive {
        let on_gpu = front.queue.is_on_gpu(model.key);
        let ahead = if on_gpu { Ahead::OF_GPU } else { Ahead::of_cpu(model.instances) };
        Drive {
            telling: Telling::new(front, call.clone(), asked.format),
            finding: Finding::new(Arc::clone(front), Arc::clone(model), call, asked),
            ahead,
            front: Arc::clone(front),
        }
    }

    /// Does all the work. Ends early when the server does, and says so; and, without a word, when the client has gone.
    pub(super) async fn run(self, posted: Posted, mut reply: Outgoing) {
        let Drive { finding, mut telling, ahead, front } = self;
        let (found, mut coming) = mpsc::channel::<Found>(ahead.chunks);
        let mut found_all = None;
        let told = {
            let finding = async {
                tokio::select! {
                    found_all = finding.run(posted, ahead.bytes, found) => found_all,
                    () = front.status.until_cut() => Err(InferError::Draining),
                }
            };
            let mut finding = pin!(finding);
            let mut telling = pin!(telling.run(&mut coming, &mut reply));
            loop {
                tokio::select! {
                    all = &mut finding, if found_all.is_none() => found_all = Some(all),
                    // If telling fails, there is no use in finding more.
                    told = &mut telling => break told,
                }
            }
        };
        // What was found before an error has been written by now.
        if let Err(error) = told.and(found_all.unwrap_or(Ok(()))) {
            telling.fail(error, &mut reply).await;
        }
    }
}
