//! Pinned host memory: a device copies from and to it by itself.
//!
//! The memory is our own, and only registered with the driver. So it stays valid for whoever still reads it when a context is gone,
//! such as a reply that is being sent. This excludes write-combined memory, which the driver must allocate itself, and which is slow
//! to read where a batch runs on the CPU or is padded.
//!
//! A dedicated thread makes these driver calls, and no lock is held during one: the threads that decode images into such memory, and
//! those whose replies release it, serve all requests. If the driver hangs, only that thread hangs, and memory is plain until it is back.
#![allow(unsafe_code)]

use super::{Context, CudaError, Fault, context::enter, numa::Near};
use crate::engine::staging::{Pin, Pinner, Release};
use cudarc::driver::{CudaContext, result, sys, sys::CUresult as Code};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{collections::BTreeMap, ffi::c_void, fmt, ptr::NonNull, sync::Arc, time::Duration};

/// The longest that anybody waits for a call, plus a second for each GiB.
const PATIENCE: Duration = Duration::from_secs(5);

/// Registers host memory with a device's driver, while this process has the device. Memory that is allocated while it does not is
/// registered once it does. When the context is closed, all memory is unregistered, so that nobody who still reads it keeps the
/// context alive; it is registered again with the next one.
#[derive(Clone, Default)]
pub struct HostMemory(Arc<Owner>);

/// Dropping it ends the thread.
#[derive(Default)]
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.pins.lock().ended = true;
        self.0.changed.notify_all();
    }
}

/// The state that the thread shares with its callers.
#[derive(Default)]
struct Shared {
    pins: Mutex<Pins>,
    changed: Condvar,
}

#[derive(Default)]
struct Pins {
    /// The device's context, while this process has the device.
    cuda: Option<Arc<CudaContext>>,
    /// The processors near it, if there is a choice.
    near: Option<Near>,
    /// The context that is being closed, and whether one is.
    closing: Option<Arc<CudaContext>>,
    closes: bool,
    /// All pinned memory, by address.
    memory: BTreeMap<usize, Known>,
    /// Whether the thread has been started, and whether it is to end since nobody is left.
    started: bool,
    ended: bool,
    /// The number of calls that have returned, and whether one has not for long.
    calls: u64,
    hangs: bool,
}

/// Memory that is to be registered.
struct Known {
    bytes: usize,
    state: State,
    /// The memory itself, once nobody uses it any more: it is freed when it is no longer registered.
    left: Option<Box<dyn Send>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not registered yet, but to be.
    New,
    /// A call that registers or unregisters it is under way.
    Called,
    Registered,
    Refused,
    /// The driver may know it until the context is gone, so it is not freed before.
    Kept,
}

/// One call to the driver.
struct Call {
    start: usize,
    bytes: usize,
    cuda: Arc<CudaContext>,
    near: Option<Near>,
    register: bool,
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory").finish_non_exhaustive()
    }
}

impl HostMemory {
    /// The host memory for copies from and to this device (and any other).
    pub fn of(context: &Context) -> HostMemory {
        context.host.clone()
    }

    /// Registers all memory: this process has the device from now on. Memory that is registered already, through another reference to
    /// the same context that has not been dropped yet, stays so.
    pub(super) fn open(&self, cuda: &Arc<CudaContext>, near: Option<&Near>) {
        let shared = self.shared();
        let mut pins = shared.pins.lock();
        pins.cuda = Some(Arc::clone(cuda));
        pins.near = near.cloned();
        for known in pins.memory.values_mut().filter(|known| known.state == State::Refused) {
            known.state = State::New;
        }
        let pins = shared.call(pins);
        drop(
            shared.wait(pins, |pins| !pins.closes && pins.memory.values().all(|known| !known.is_under_way())),
        );
    }

    /// Unregisters all memory, since this context is being closed. If the driver hangs, the context is closed when the driver is back.
    pub(super) fn close(&self, cuda: &Arc<CudaContext>) {
        let shared = self.shared();
        let mut pins = shared.pins.lock();
        if pins.cuda.as_ref().is_some_and(|open| Arc::ptr_eq(open, cuda)) {
            (pins.closing, pins.closes) = (pins.cuda.take(), true);
            let pins = shared.call(pins);
            drop(shared.wait(pins, |pins| !pins.closes));
        }
    }

    /// The GPU's context is gone, and with it all registrations: frees memory that was kept for them.
    pub(super) fn forgotten(&self) {
        let left = self.shared().pins.lock().forgotten();
        self.shared().changed.notify_all();
        drop(left);
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.0
    }
}

impl Shared {
    /// Wakes the thread, and starts it if necessary.
    fn call<'a>(self: &'a Arc<Shared>, mut pins: MutexGuard<'a, Pins>) -> MutexGuard<'a, Pins> {
        if !pins.started {
            let shared = Arc::clone(self);
            let thread = std::thread::Builder::new().name("ocelli-pins".into());
            match thread.spawn(move || shared.work()) {
                Ok(_) => pins.started = true,
                Err(error) => {
                    tracing::warn!(%error, "no thread to pin memory on: copies will wait for each other");
                }
            }
        }
        self.changed.notify_all();
        pins
    }

    /// Waits until `done`, or until the driver hangs.
    fn wait<'a>(
        &'a self,
        mut pins: MutexGuard<'a, Pins>,
        done: impl Fn(&Pins) -> bool,
    ) -> MutexGuard<'a, Pins> {
        while !done(&pins) && !pins.hangs && pins.started {
            let (calls, patience) = (pins.calls, pins.patience());
            let goes_on = |pins: &mut Pins| !done(pins) && !pins.hangs && pins.calls == calls;
            let waited = self.changed.wait_while_for(&mut pins, goes_on, patience);
            // The call may have returned just when the time was up.
            if waited.timed_out() && !done(&pins) && !pins.hangs && pins.calls == calls {
                pins.hangs = true;
                self.changed.notify_all();
                tracing::warn!("the driver hangs where memory is pinned: copies will wait for each other");
            }
        }
        pins
    }

    /// Makes the driver calls one by one, until nobody is left who could have memory.
    fn work(&self) {
        let mut pins = self.pins.lock();
        loop {
            if let Some(call) = pins.next() {
                drop(pins);
                let (start, register) = (call.start, call.register);
                // Also drops its reference to the context: whoever closes the context is to have the last one.
                let came = call.make();
                pins = self.pins.lock();
                (pins.calls, pins.hangs) = (pins.calls + 1, false);
                let left = pins.called(start, register, came);
                self.changed.notify_all();
                drop(pins);
                drop(left);
                pins = self.pins.lock();
            } else if pins.closes {
                let closed = pins.closing.take();
                drop(pins);
                // Dropped before the closer is told, so that the closer has the last reference, unless it has given up waiting.
                drop(closed);
                pins = self.pins.lock();
                pins.closes = pins.closing.is_some();
                self.changed.notify_all();
            } else if pins.ended {
                return;
            } else {
                self.changed.wait(&mut pins);
            }
        }
    }
}

impl Known {
    fn is_under_way(&self) -> bool {
        matches!(self.state, State::New | State::Called)
    }
}

impl Pins {
    /// How long the current or next call may take: it depends on the size, since pages are locked one by one.
    fn patience(&self) -> Duration {
        let called = |known: &&Known| known.is_under_way() || known.left.is_some() || self.closing.is_some();
        let largest = self.memory.values().filter(called).map(|known| known.bytes).max().unwrap_or(0);
        PATIENCE + Duration::from_secs((largest >> 30) as u64)
    }

    /// The next call to make.
    fn next(&mut self) -> Option<Call> {
        let goes = |known: &Known| self.closing.is_some() || known.left.is_some();
        let cuda = self.closing.as_ref().or(self.cuda.as_ref())?;
        let mut memory = self.memory.iter();
        let (start, register) = memory.find_map(|(start, known)| match known.state {
            State::Registered if goes(known) => Some((*start, false)),
            State::New if self.closing.is_none() => Some((*start, true)),
            _ => None,
        })?;
        let (cuda, near) = (Arc::clone(cuda), self.near.clone());
        let known = self.memory.get_mut(&start)?;
        known.state = State::Called;
        Some(Call { start, bytes: known.bytes, cuda, near, register })
    }

    /// A call has returned. Returns memory to free, if nobody uses it any more and it is not registered.
    fn called(&mut self, start: usize, register: bool, came: CallResult) -> Option<Known> {
        let known = self.memory.get_mut(&start)?;
        known.state = match (register, came) {
            (true, CallResult::Done) => State::Registered,
            (true, _) => State::Refused,
            (false, CallResult::Kept) => State::Kept,
            (false, _) => State::New,
        };
        let gone = known.left.is_some() && !matches!(known.state, State::Registered | State::Kept);
        if gone { self.memory.remove(&start) } else { None }
    }

    /// No context knows any kept memory any more. Returns what nobody uses any more, to be freed.
    fn forgotten(&mut self) -> Vec<Known> {
        let nobodys = |_: &usize, known: &mut Known| known.state == State::Kept && known.left.is_some();
        let left = self.memory.extract_if(.., nobodys).map(|(_, known)| known).collect();
        for known in self.memory.values_mut().filter(|known| known.state == State::Kept) {
            known.state = State::New;
        }
        left
    }

    /// Nobody uses this memory any more. Returns it to be freed now, or keeps it until it is unregistered.
    fn leave(&mut self, start: usize, memory: Box<dyn Send>) -> Option<Box<dyn Send>> {
        match self.memory.get_mut(&start) {
            Some(known) if matches!(known.state, State::Called | State::Registered | State::Kept) => {
                known.left = Some(memory);
                None
            }
            _ => {
                self.memory.remove(&start);
                Some(memory)
            }
        }
    }
}

/// Whether a context is broken, so that every call in it fails.
fn is_broken(cuda: &CudaContext) -> bool {
    let answers = enter(cuda).and_then(|()| result::mem_get_info());
    answers.is_err_and(|error| CudaError::when("cannot read memory")(error).fault() == Fault::Sticky)
}

/// Unregisters memory from outside a broken context, since no call inside it works.
fn forget(start: *mut c_void) -> CallResult {
    // SAFETY: a null context is valid here: it means none.
    let outside = unsafe { result::ctx::set_current(std::ptr::null_mut()) };
    // SAFETY: as in `Call::make`: it is registered, as far as we know, and stays allocated until this has returned.
    let asked = outside.and_then(|()| unsafe { sys::cuMemHostUnregister(start) }.result());
    match asked {
        Ok(()) => CallResult::Done,
        Err(error) if error.0 == Code::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => CallResult::Done,
        Err(error) => {
            // If it were freed, it would be reused while other GPUs take it for pinned, and they would copy from its old pages.
            tracing::debug!(?error, "memory is kept until the broken context that knows it has gone");
            CallResult::Kept
        }
    }
}

/// The result of a call.
enum CallResult {
    Done,
    Refused,
    /// The memory could not be unregistered, so the driver may still know it.
    Kept,
}

impl Call {
    fn make(self) -> CallResult {
        let Call { start, bytes, cuda, near, register } = self;
        let call = || {
            enter(&cuda)?;
            let start = std::ptr::with_exposed_provenance_mut(start);
            if register {
                // SAFETY: memory stays allocated while it is in `Pins::memory`, and it stays there until this has returned (`Pins::leave`).
                unsafe { sys::cuMemHostRegister_v2(start, bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) }.result()
            } else {
                // SAFETY: its state says that it is registered, and not unregistered since; it stays allocated as above.
                unsafe { sys::cuMemHostUnregister(start) }.result()
            }
        };
        let called = match near.filter(|_| register) {
            Some(near) => near.within(call),
            None => call(),
        };
        match called {
            Ok(()) => CallResult::Done,
            Err(error) if register => {
                let error = CudaError::when(format!("cannot pin {bytes} bytes"))(error);
                // If the context is broken, whoever takes the GPU out of service reports more.
                if is_broken(&cuda) {
                    tracing::debug!(%error, "memory stays as it is");
                } else {
                    tracing::warn!(%error, "copies of this memory will wait for each other");
                }
                CallResult::Refused
            }
            Err(error) if error.0 == Code::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => CallResult::Done,
            Err(_) if is_broken(&cuda) => forget(std::ptr::with_exposed_provenance_mut(start)),
            Err(error) => {
                let error = CudaError::when(format!("cannot unpin {bytes} bytes"))(error);
                tracing::error!(%error, "the driver may copy from where this memory was: what is ours of it is never used again");
                CallResult::Kept
            }
        }
    }
}

impl Pinner for HostMemory {
    unsafe fn pin(&self, start: NonNull<u8>, bytes: usize) -> Option<Pin> {
        let start = start.as_ptr().expose_provenance();
        let shared = self.shared();
        let mut pins = shared.pins.lock();
        pins.memory.insert(start, Known { bytes, state: State::New, left: None });
        // Without a device, the memory is registered once there is one.
        if pins.cuda.is_some() {
            let under_way = |pins: &Pins| pins.memory.get(&start).is_some_and(Known::is_under_way);
            pins = shared.wait(shared.call(pins), |pins| pins.cuda.is_none() || !under_way(pins));
            if pins.memory.get(&start).is_some_and(|known| known.state == State::Refused) {
                pins.memory.remove(&start);
                return None;
            }
        }
        Some(Box::new(Pinned { start: Some(start), host: self.clone() }))
    }

    fn is_known(&self) -> bool {
        self.shared().pins.lock().cuda.is_some()
    }

    fn owner(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

/// Memory that is registered while this process has the device.
struct Pinned {
    /// Its address, until it is released.
    start: Option<usize>,
    host: HostMemory,
}

impl Release for Pinned {
    fn release(mut self: Box<Self>, memory: Box<dyn Send>) {
        let Some(start) = self.start.take() else { return };
        let shared = self.host.shared();
        let left = shared.pins.lock().leave(start, memory);
        shared.changed.notify_all();
        drop(left);
    }
}

impl Drop for Pinned {
    /// The memory belongs to somebody else: waits until it is no longer registered.
    fn drop(&mut self) {
        let Some(start) = self.start.take() else { return };
        let shared = self.host.shared();
        let mut pins = shared.pins.lock();
        let _ = pins.leave(start, Box::new(()));
        shared.changed.notify_all();
        let is_there =
            |pins: &mut Pins| pins.memory.get(&start).is_some_and(|known| known.state != State::Kept);
        shared.changed.wait_while(&mut pins, is_there);
    }
}
