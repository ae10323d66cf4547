//! Xid errors as they happen.
//!
//! They are awaited on a thread of their own, since an NVML event set belongs to one thread. If several errors of one GPU are pending,
//! NVML reports only the last.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nvml_wrapper::{
    Nvml, bitmasks::event::EventTypes, enums::event::XidError, error::NvmlError, event::EventSet,
};

use super::{
    GpuId,
    nvml::{self, Unavailable},
};
use crate::error::panic_words;

/// What happened to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Happening {
    /// An error, by its Xid number in NVIDIA's catalogue.
    Xid(u64),
    /// An error whose number the driver does not give.
    UnknownXid,
    /// It no longer answers.
    Lost,
}

/// Why errors cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// There is no NVML.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// No thread can be started.
    #[error("cannot start the thread that waits for GPU errors")]
    Thread(#[from] io::Error),
}

/// The length of one wait: how soon the end is noticed.
const WAIT_MS: u32 = 500;
/// The pause between tries while waiting fails.
const PAUSE: Duration = Duration::from_secs(1);
/// After this many waits, lost GPUs are looked for again.
const WAITS_BETWEEN_SEARCHES: u32 = 60;

/// Watches for errors until it is dropped.
pub struct Watch {
    ended: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Watch {
    /// Calls `tell` for what happens to any GPU, on the watching thread. GPUs without such events are left out.
    ///
    /// # Errors
    ///
    /// [`WatchError`] where there is no NVML, or no thread.
    pub fn start(
        library: Option<&Path>,
        tell: impl Fn(&GpuId, Happening) + Send + 'static,
    ) -> Result<Watch, WatchError> {
        let nvml = nvml::open(library)?;
        let ended = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&ended);
        let spawned = thread::Builder::new().name("gpu-events".to_owned()).spawn(move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| watch(&nvml, &theirs, &tell))) {
                let reason = panic_words(&panic);
                tracing::error!(
                    reason,
                    "the thread that waits for GPU errors (Xid) panicked: they are not heard any more"
                );
            }
        })?;
        Ok(Watch { ended, thread: spawned })
    }

    /// Ends it, and waits for its thread, but no longer than two of its waits: it may hang in the driver.
    pub fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        let until = Instant::now() + 2 * Duration::from_millis(WAIT_MS.into());
        while !self.thread.is_finished() && Instant::now() < until {
            self.thread.thread().unpark();
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Watch {
    /// Does not wait for the thread: it may hang in the driver, and ends within half a second if not.
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
    }
}

/// What is known of a GPU that is watched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Watched {
    /// It does not answer.
    lost: bool,
    /// It tells no errors as they happen.
    silent: bool,
}

impl Watched {
    /// Takes in whether it is gone. True if that is news. One that has come back is listened to again: it may have been on its way out
    /// when it told nothing.
    fn asked(&mut self, gone: bool) -> bool {
        let was_lost = std::mem::replace(&mut self.lost, gone);
        self.silent &= gone || !was_lost;
        gone && !was_lost
    }
}

fn watch(nvml: &Nvml, ended: &AtomicBool, tell: &impl Fn(&GpuId, Happening)) {
    let mut gpus: Vec<(GpuId, Watched)> =
        nvml::gpus(nvml).into_iter().map(|gpu| (gpu, Watched::default())).collect();
    while !ended.load(Ordering::Relaxed) {
        // An event set with a lost GPU reports only that loss, so it contains only GPUs that answer.
        let Some(set) = listening(nvml, &mut gpus) else {
            thread::park_timeout(PAUSE);
            find_lost(nvml, &mut gpus, tell);
            continue;
        };
        for _ in 0..WAITS_BETWEEN_SEARCHES {
            if ended.load(Ordering::Relaxed) {
                return;
            }
            match set.wait(WAIT_MS) {
                Ok(event) => {
                    let uuid = event.device.uuid().ok();
                    let gpu = gpus.iter().find(|(gpu, _)| uuid.as_ref() == Some(&gpu.uuid));
                    // A GPU that is lost by now does not say which it is. Its loss is reported instead.
                    let Some((gpu, _)) = gpu else { break };
                    tell(
                        gpu,
                        match event.event_data {
                            Some(XidError::Value(code)) => Happening::Xid(code),
                            _ => Happening::UnknownXid,
                        },
                    );
                }
                Err(NvmlError::Timeout) => (),
                Err(NvmlError::GpuLost) => {
                    find_lost(nvml, &mut gpus, tell);
                    thread::park_timeout(PAUSE);
                    break;
                }
                Err(why) => {
                    tracing::warn!(error = %why, "cannot wait for GPU errors; trying again");
                    thread::park_timeout(PAUSE);
                    break;
                }
            }
        }
        find_lost(nvml, &mut gpus, tell);
    }
}

/// An event set for all GPUs that are not lost; `None` if that leaves none. GPUs without such events are marked.
fn listening<'a>(nvml: &'a Nvml, gpus: &mut [(GpuId, Watched)]) -> Option<EventSet<'a>> {
    'anew: loop {
        let mut set = nvml.create_event_set().ok()?;
        let mut any = false;
        for (gpu, watched) in gpus.iter_mut().filter(|(_, watched)| *watched == Watched::default()) {
            let Ok(device) = nvml::device(nvml, gpu) else { continue };
            match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
                Ok(with) => (set, any) = (with, true),
                Err(error) => {
                    tracing::debug!(gpu = gpu.uuid, error = %error.error, "this GPU tells no errors as they happen");
                    watched.silent = true;
                    // The error has used up the set.
                    continue 'anew;
                }
            }
        }
        return any.then_some(set);
    }
}

/// Asks every GPU whether it answers, and reports those that no longer do.
fn find_lost(nvml: &Nvml, gpus: &mut [(GpuId, Watched)], tell: &impl Fn(&GpuId, Happening)) {
    for (gpu, watched) in gpus {
        let answer = nvml::device(nvml, gpu).and_then(|device| device.pci_info());
        if watched.asked(answer.is_err_and(|why| nvml::is_gone(&why))) {
            tell(gpu, Happening::Lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_comes_back_is_listened_to_again_and_one_without_events_is_not() {
        let mut gpu = Watched { lost: false, silent: true };
        assert_eq!((gpu.asked(false), gpu.silent), (false, true));
        assert_eq!([true, true].map(|gone| gpu.asked(gone)), [true, false], "it is told once");
        assert!(gpu.silent);
        assert_eq!((gpu.asked(false), gpu), (false, Watched::default()));
    }
}
