//! The caller's side: a future that yields the answer, and cancels the job when it is dropped.

use super::{Queue, Reply};
use crate::{
    batch::{JobKey, ModelKey},
    error::InferError,
};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};
use tokio::{sync::oneshot, time::Sleep};

/// A pending answer. Dropping it removes the job from the queue: rows that still wait never run.
#[derive(Debug)]
#[must_use = "dropping a ticket cancels its job"]
pub struct Ticket {
    pub(super) job: JobKey,
    pub(super) pushed: Instant,
    /// When it runs out of patience, if it is refused then.
    pub(super) patience: Option<Patience>,
    pub(super) reply: oneshot::Receiver<Reply>,
    /// `Some` until the answer has come.
    pub(super) queue: Option<Arc<Queue>>,
}

/// When a job that has not started is refused. Its caller's future watches the time: no worker may be free to, or there at all.
#[derive(Debug)]
pub(super) struct Patience {
    pub(super) model: ModelKey,
    pub(super) until: Instant,
    /// Set at the first poll.
    pub(super) timer: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    /// Whether it has just ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let until = self.until;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until.into())));
        timer.as_mut().poll(context)
    }
}

impl Ticket {
    /// When the job was accepted.
    pub fn pushed(&self) -> Instant {
        self.pushed
    }
}

impl Future for Ticket {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        let mut reply = Pin::new(&mut self.reply).poll(context);
        if reply.is_pending()
            && let Some(mut patience) = self.patience.take()
        {
            if patience.poll(context).is_pending() {
                self.patience = Some(patience);
            } else if let Some(queue) = &self.queue {
                queue.expire(patience.model);
                reply = Pin::new(&mut self.reply).poll(context);
            }
        }
        let reply = std::task::ready!(reply);
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
