//! The caller's side: a future that is the answer, and that cancels when it is dropped.

use super::{Queue, Reply};
use crate::{batch::JobKey, error::InferError};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};
use tokio::sync::oneshot;

/// A job's answer to come. Dropping it takes the job out of the queue: what of it waits never runs.
#[derive(Debug)]
#[must_use = "dropping a ticket cancels its job"]
pub struct Ticket {
    pub(super) job: JobKey,
    pub(super) pushed: Instant,
    pub(super) reply: oneshot::Receiver<Reply>,
    /// Until the answer is here.
    pub(super) queue: Option<Arc<Queue>>,
}

impl Ticket {
    /// The job's key, for logs.
    pub fn job(&self) -> JobKey {
        self.job
    }

    /// When the job was accepted.
    pub fn pushed(&self) -> Instant {
        self.pushed
    }
}

impl Future for Ticket {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        let reply = std::task::ready!(Pin::new(&mut self.reply).poll(context));
        self.queue = None;
        Poll::Ready(reply.unwrap_or_else(|_| {
            Err(InferError::Internal("the queue lost the request before it was answered".into()))
        }))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            queue.cancel(self.job);
        }
    }
}
