//! A thread that samples regularly.
//!
//! A call into the driver may hang for as long as half a minute. Callers get the last samples and their age, at once.

use parking_lot::{Condvar, Mutex};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{Probe, Sample};
use crate::{error::panic_words, random::Random};

/// All GPUs at one time.
#[derive(Debug, Clone)]
pub struct Look {
    /// When it began: it shows nothing of what came later.
    pub began: Instant,
    /// When it was finished.
    pub at: Instant,
    /// One for each GPU, always in the same order.
    pub samples: Arc<[Sample]>,
}

#[derive(Default)]
struct State {
    last: Option<Look>,
    looks: u64,
    looking: bool,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Samples until it is dropped.
pub struct Sampler {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Sampler {
    /// Looks now, and then every `period`, varied by up to a tenth: servers on one machine must not look in step.
    ///
    /// # Errors
    ///
    /// Where no thread can be started.
    pub fn start(mut probe: Box<dyn Probe>, period: Duration) -> std::io::Result<Sampler> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name("gpu-sampler".to_owned()).spawn(move || {
            let mut panics = false;
            let mut state = theirs.state.lock();
            while !state.ended {
                state.looking = true;
                drop(state);
                let began = Instant::now();
                let samples = catch_unwind(AssertUnwindSafe(|| probe.look()));
                state = theirs.state.lock();
                state.looking = false;
                match samples {
                    // The last one is kept, and grows old.
                    Ok(None) => panics = false,
                    Ok(Some(samples)) => {
                        (panics, state.looks) = (false, state.looks + 1);
                        state.last = Some(Look { began, at: Instant::now(), samples: samples.into() });
                        theirs.changed.notify_all();
                    }
                    // Logged once: it may panic again with every look.
                    Err(_) if panics => {}
                    Err(panic) => {
                        let reason = panic_words(&panic);
                        tracing::error!(reason, "the thread that looks at GPUs panicked; it looks again");
                        panics = true;
                    }
                }
                let pause = period.mul_f64(0.9 + 0.2 * Random::anew().unit());
                theirs.changed.wait_while_for(&mut state, |state| !state.ended, pause);
            }
        })?;
        Ok(Sampler { shared, thread: Some(thread) })
    }

    /// The last look; `None` before the first has finished.
    pub fn last(&self) -> Option<Look> {
        self.shared.state.lock().last.clone()
    }

    /// Waits for a look that finishes after this call, for at most `patience`.
    pub fn fresh(&self, patience: Duration) -> Option<Look> {
        let mut state = self.shared.state.lock();
        let seen = state.looks;
        self.shared.changed.wait_while_for(&mut state, |state| state.looks == seen, patience);
        if state.looks > seen { state.last.clone() } else { None }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let looking = {
            let mut state = self.shared.state.lock();
            state.ended = true;
            state.looking
        };
        self.shared.changed.notify_all();
        // A look that hangs is left to end by itself.
        if let Some(thread) = self.thread.take().filter(|_| !looking) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::GpuId, *};
    use std::sync::mpsc;

    fn sample(free: u64) -> Sample {
        let gpu = GpuId { uuid: "GPU-1".to_owned(), pci: String::new() };
        let memory = Some(super::super::Memory { total: 100, free, reserved: 0 });
        Sample { memory, ..Sample::of(gpu) }
    }

    #[test]
    fn the_last_look_is_kept_with_its_time() {
        struct Two(u64);
        impl Probe for Two {
            fn look(&mut self) -> Option<Vec<Sample>> {
                self.0 = 2.min(self.0 + 1);
                Some(vec![sample(self.0)])
            }
        }
        let sampler = Sampler::start(Box::new(Two(0)), Duration::from_millis(1)).unwrap();
        let free = |look: &Look| look.samples[0].memory.unwrap().free;
        // The first may be the sampler's second.
        let [first, look] = [(); 2].map(|()| sampler.fresh(Duration::from_secs(60)).unwrap());
        assert!(first.at <= look.began && look.began <= look.at && free(&look) == 2);
        assert!(sampler.last().unwrap().at >= look.at);
    }

    #[test]
    fn a_look_that_panics_is_followed_by_others() {
        struct Panicking(usize);
        impl Probe for Panicking {
            fn look(&mut self) -> Option<Vec<Sample>> {
                self.0 += 1;
                assert!(self.0 > 3, "the driver said nonsense");
                Some(vec![sample(1)])
            }
        }
        let sampler = Sampler::start(Box::new(Panicking(0)), Duration::from_millis(1)).unwrap();
        assert!(sampler.fresh(Duration::from_secs(60)).is_some() || sampler.last().is_some());
    }

    #[test]
    fn a_look_that_hangs_holds_up_nobody() {
        struct Hanging(mpsc::Sender<()>, mpsc::Receiver<()>);
        impl Probe for Hanging {
            fn look(&mut self) -> Option<Vec<Sample>> {
                let _ = self.0.send(());
                let _ = self.1.recv();
                None
            }
        }
        let ((looks, looking), (release, hang)) = (mpsc::channel(), mpsc::channel());
        let sampler = Sampler::start(Box::new(Hanging(looks, hang)), Duration::from_millis(1)).unwrap();
        let patience = Duration::from_secs(60);
        looking.recv_timeout(patience).unwrap();
        // On a thread of its own: a test that waits for it would hang as well.
        let (done, ended) = mpsc::channel();
        thread::spawn(move || {
            let last = sampler.last().is_none();
            drop(sampler);
            done.send(last)
        });
        let none = ended.recv_timeout(patience);
        drop(release);
        assert_eq!(none, Ok(true));
    }
}
