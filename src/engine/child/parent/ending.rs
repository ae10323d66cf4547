//! How the parent handles a child's end: it makes sure that the process ends, tells all who wait, and keeps waiting if the process
//! hangs.

use super::{super::process::End, Asks, GRACE, Waiting};
use crate::engine::{EngineError, staging::region::Outlasts};
use std::time::{Duration, Instant};

/// How long a process may take to end after its socket has closed.
const LEAVING: Duration = Duration::from_millis(200);
/// Within this time a process mostly ends.
const SOON: Duration = Duration::from_millis(10);
/// Interval between checks of a process that does not end.
const OUTLASTS: Duration = Duration::from_secs(1);

impl Asks {
    /// Waits for the process to end, and kills it if it does not.
    pub(super) fn end(&self) -> End {
        match self.end_within(LEAVING) {
            End::Hangs => {
                self.process.lock().kill();
                self.end_within(GRACE)
            }
            end => end,
        }
    }

    /// Waits up to `patience` for the process to end. Others may kill it meanwhile.
    fn end_within(&self, patience: Duration) -> End {
        let began = Instant::now();
        loop {
            if let Some(end) = self.process.lock().ended() {
                return end;
            }
            let waited = began.elapsed();
            if waited >= patience {
                return End::Hangs;
            }
            std::thread::sleep(if waited < SOON { SOON / 100 } else { SOON / 2 });
        }
    }

    /// Tells all who wait that the process has ended, and why. Its share of the region is then free for the next child. A process that
    /// hangs may still write there, so its share is kept.
    pub(super) fn settle(&self, end: End) -> Option<Outlasts> {
        let last_words = self.process.lock().last_words();
        let mut book = self.book.lock();
        let words = match (&book.fault, book.killed) {
            (Some(why), true) if end.is_kill() => format!("was ended by the server: {why}"),
            (fault, _) => end.words(fault.as_deref(), last_words.as_deref()),
        };
        let reason = format!("the process of {} ({}) {words}", self.device, self.id);
        if !(book.leaving && end == End::Done) {
            tracing::error!(device = self.device, "{reason}");
        }
        book.ended = Some(reason.clone());
        let waiting = std::mem::take(&mut book.waiting);
        drop(book);
        let outlasts = (end == End::Hangs).then(|| self.region.outlasts(&self.device));
        if outlasts.is_none() {
            self.give_place();
        }
        for (_, Waiting { tell, _part, _held }) in waiting {
            drop((_part, _held));
            // An error: the asker no longer waits.
            let _ = tell.send(Err(EngineError::Device(reason.clone())));
        }
        outlasts
    }

    /// Frees its share of the region for the next child, once its parts are back.
    fn give_place(&self) {
        let traffic = self.traffic.lock().take();
        drop(traffic);
    }

    /// Waits until a process that hung has ended after all, and frees its share.
    pub(super) fn wait_for_the_end(&self, outlasts: Outlasts) {
        while matches!(self.process.lock().ended(), None | Some(End::Hangs)) {
            std::thread::sleep(OUTLASTS);
        }
        self.give_place();
        drop(outlasts);
        tracing::info!(device = self.device, "the device's process, which could not be ended, has ended");
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Post, begin},
        *,
    };
    use crate::engine::{child::Program, staging::Region};
    use std::sync::mpsc;

    #[test]
    fn what_a_process_may_write_to_that_does_not_end_is_no_others_until_it_has_ended() {
        let region = Region::new(1 << 16, 1).expect("memory");
        let arguments = ["-c", "exec sleep 1000"].map(Into::into).to_vec();
        let program = Program { path: "/bin/sh".into(), arguments, environment: Vec::new() };
        let post = Post {
            device: "cpu".into(),
            gpu: None,
            program,
            region: region.clone(),
            onnx_runtime: None,
            patience: None,
        };
        let (started, _starting) = mpsc::channel();
        let asks = begin(&post, &started).expect("a process");
        let outlasts = asks.settle(End::Hangs).expect("it does not end");
        assert!(asks.traffic().is_err(), "it is of no use");
        assert!(region.traffic("cpu").is_err(), "and no other's");
        asks.process.lock().kill();
        asks.wait_for_the_end(outlasts);
        assert!(region.traffic("cpu").is_ok());
    }
}
