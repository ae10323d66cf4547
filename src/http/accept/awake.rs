//! Keeps a thread awake while a connection's next request should come at any moment. To wake a thread that sleeps takes tens of
//! microseconds, and more on a virtual machine; a caller that asks again as soon as it has its answer pays that with each request.
//!
//! Whether a request is expected, [`Watch`] says. The thread polls its sockets meanwhile, and lets anything else run first that wants its
//! core.

use super::Watch;
use std::{
    convert::Infallible,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    thread,
    time::Instant,
};
use tokio::task::yield_now;

/// What listeners share whose connections keep threads awake: only one does at a time, so all of them together take one core at most.
#[derive(Debug, Clone, Default)]
pub struct Awake(Arc<AtomicBool>);

/// A connection's view of it.
pub(super) struct Lookout<'a> {
    /// `None` where threads sleep at once.
    awake: Option<&'a Awake>,
    /// Whether this is the connection that keeps a thread awake.
    holds: bool,
}

impl<'a> Lookout<'a> {
    pub(super) fn new(awake: Option<&'a Awake>) -> Lookout<'a> {
        Lookout { awake, holds: false }
    }

    /// Has the connection's task polled again at once as long as its next request is expected, unless another connection keeps a thread
    /// awake. Never ready: the request itself, or the end of its time, is seen when the task is polled.
    pub(super) fn poll(&mut self, watch: &Watch, context: &mut Context<'_>) -> Poll<Infallible> {
        let Some(Awake(taken)) = self.awake else { return Poll::Pending };
        if !watch.is_expecting(Instant::now()) {
            self.rest();
        } else if self.holds || !taken.swap(true, Ordering::Relaxed) {
            self.holds = true;
            thread::yield_now();
            // The runtime looks at its sockets before it polls this task again.
            let _ = pin!(yield_now()).poll(context);
        }
        Poll::Pending
    }

    /// Lets another connection do so.
    fn rest(&mut self) {
        if let (Some(Awake(taken)), true) = (self.awake, std::mem::take(&mut self.holds)) {
            taken.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for Lookout<'_> {
    fn drop(&mut self) {
        self.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::AtomicUsize,
        task::{Wake, Waker},
        time::Duration,
    };

    /// Counts how often a task is to be polled again.
    #[derive(Default)]
    struct Again(AtomicUsize);

    impl Wake for Again {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A connection whose caller has asked again at once.
    fn in_a_loop() -> Watch {
        let now = Instant::now();
        let watch = Watch::new(now);
        for _ in 0..5 {
            watch.read(b"POST / HTTP/1.1\r\n\r\n", now);
            watch.request_ends(watch.request_begins(), now);
        }
        watch
    }

    #[test]
    fn one_connection_at_a_time_is_polled_again_at_once_and_only_while_it_expects_a_request() {
        let (awake, again) = (Awake::default(), Arc::new(Again::default()));
        let waker = Waker::from(Arc::clone(&again));
        // Whether a poll asks for the next.
        let polls = |lookout: &mut Lookout<'_>, watch: &Watch| {
            let before = again.0.load(Ordering::Relaxed);
            assert!(lookout.poll(watch, &mut Context::from_waker(&waker)).is_pending());
            again.0.load(Ordering::Relaxed) > before
        };
        // Far from now, so that its time does not end during the test.
        let (quick, idle) = (in_a_loop(), Watch::new(Instant::now()));
        quick.request_ends(quick.request_begins(), Instant::now() + Duration::from_secs(3600));
        let [mut first, mut second] = [(); 2].map(|()| Lookout::new(Some(&awake)));
        assert!(!polls(&mut first, &idle));
        assert!(polls(&mut first, &quick) && polls(&mut first, &quick));
        assert!(!polls(&mut second, &quick), "another does");
        assert!(!polls(&mut first, &idle));
        assert!(polls(&mut second, &quick), "none does any more");
        drop(second);
        assert!(polls(&mut first, &quick), "the other is gone");
        assert!(!polls(&mut Lookout::new(None), &quick), "threads sleep at once");
    }
}
