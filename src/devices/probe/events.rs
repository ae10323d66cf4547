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

fn watch(nvml: &Nvml, ended: &AtomicBool, tell: &impl Fn(&GpuId, Happening)) {
    let gpus = nvml::gpus(nvml);
    let mut lost: Vec<bool> = vec![false; gpus.len()];
    let mut deaf: Vec<bool> = vec![false; gpus.len()];
    while !ended.load(Ordering::Relaxed) {
        // An event set with a lost GPU reports only that loss, so it contains only GPUs that answer.
        let Some(set) = listening(nvml, &gpus, &lost, &mut deaf) else {
            thread::park_timeout(PAUSE);
            find_lost(nvml, &gpus, &mut lost, tell);
            continue;
        };
        for _ in 0..WAITS_BETWEEN_SEARCHES {
            if ended.load(Ordering::Relaxed) {
                return;
            }
            match set.wait(WAIT_MS) {
                Ok(event) => {
                    let uuid = event.device.uuid().ok();
                    let gpu = gpus.iter().find(|gpu| uuid.as_ref() == Some(&gpu.uuid));
                    // A GPU that is lost by now does not say which it is. Its loss is reported instead.
                    let Some(gpu) = gpu else { break };
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
                    find_lost(nvml, &gpus, &mut lost, tell);
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
        find_lost(nvml, &gpus, &mut lost, tell);
    }
}

/// An event set for all GPUs that are not lost; `None` if that leaves none. GPUs without such events are marked deaf.
fn listening<'a>(nvml: &'a Nvml, gpus: &[GpuId], lost: &[bool], deaf: &mut [bool]) -> Option<EventSet<'a>> {
    'anew: loop {
        let mut set = nvml.create_event_set().ok()?;
        let mut any = false;
        for (at, gpu) in gpus.iter().enumerate().filter(|(at, _)| !lost[*at]) {
            let Some(device) = nvml::device(nvml, gpu).ok().filter(|_| !deaf[at]) else {
                continue;
            };
            match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
                Ok(with) => (set, any) = (with, true),
                Err(error) => {
                    tracing::debug!(gpu = gpu.uuid, error = %error.error, "this GPU tells no errors as they happen");
                    deaf[at] = true;
                    // The error has used up the set.
                    continue 'anew;
                }
            }
        }
        return any.then_some(set);
    }
}

/// Asks every GPU whether it answers, and reports those that no longer do.
fn find_lost(nvml: &Nvml, gpus: &[GpuId], lost: &mut [bool], tell: &impl Fn(&GpuId, Happening)) {
    for (gpu, lost) in gpus.iter().zip(lost) {
        let answer = nvml::device(nvml, gpu).and_then(|device| device.pci_info());
        let gone = answer.is_err_and(|why| nvml::is_gone(&why));
        if gone && !*lost {
            tell(gpu, Happening::Lost);
        }
        *lost = gone;
    }
}
