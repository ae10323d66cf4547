//! Host memory that a device copies from and to by itself.
//!
//! It is ours, and only registered with the driver: whoever still reads it when a context has gone (a reply that is
//! being sent) reads memory that is still there. That leaves out write-combined memory, which the driver must allocate
//! itself, and which is slow to read where a batch runs on the CPU or is padded.
//!
//! A thread of its own makes these calls, and no lock is held over one: images are decoded into such memory, and replies give it
//! back, on threads that serve everybody. Where the driver hangs, that thread hangs alone, and memory is plain until the driver is back.
#![allow(unsafe_code)]

use super::{Context, CudaError, Fault, context::enter, numa::Near};
use crate::engine::staging::{Pin, Pinner, Release};
use cudarc::driver::{CudaContext, result, sys, sys::CUresult as Code};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{collections::BTreeMap, ffi::c_void, fmt, ptr::NonNull, sync::Arc, time::Duration};

/// A call that takes longer is waited for by nobody, beyond a second for each GiB.
const PATIENCE: Duration = Duration::from_secs(5);

/// Registers host memory with a device's driver, while this process has the device. Memory that is taken when it has not is
/// registered when it has; when the context goes, all is unregistered, so that nobody who still reads it keeps the context, and
/// registered again with the next one.
#[derive(Clone, Default)]
pub struct HostMemory(Arc<Owner>);

/// Whose end is that of the thread.
#[derive(Default)]
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.pins.lock().ended = true;
        self.0.changed.notify_all();
    }
}

/// What the thread and those for whom it works have in common.
#[derive(Default)]
struct Shared {
    pins: Mutex<Pins>,
    changed: Condvar,
}

#[derive(Default)]
struct Pins {
    /// Of the device, while it is ours.
    cuda: Option<Arc<CudaContext>>,
    /// The processors near it, where there is a choice.
    near: Option<Near>,
    /// That which goes, and whether one does.
    closing: Option<Arc<CudaContext>>,
    closes: bool,
    /// Memory that is there, by where it begins.
    memory: BTreeMap<usize, Known>,
    /// The thread is there, or nobody is left for whom it would work.
    started: bool,
    ended: bool,
    /// Calls that have come back, and whether one has not for long.
    calls: u64,
    hangs: bool,
}

/// Memory that the driver is to know.
struct Known {
    bytes: usize,
    state: State,
    /// The memory itself, when nobody has it any more: it goes when the driver does not know it.
    left: Option<Box<dyn Send>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The driver does not know it, and is to.
    New,
    /// It is just told so, or that it goes.
    Called,
    Registered,
    Refused,
    /// It may know it until the context has gone, and so it stays where it is.
    Kept,
}

/// One call of the driver.
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
    /// For copies from and to this device (and any other).
    pub fn of(context: &Context) -> HostMemory {
        context.host.clone()
    }

    /// Registers everything: the device is ours from now on. What is registered already is so by a hold on the same context that
    /// has not ended yet, and stays so.
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

    /// Unregisters everything: this context goes. Where the driver hangs, it goes when the driver is back.
    pub(super) fn close(&self, cuda: &Arc<CudaContext>) {
        let shared = self.shared();
        let mut pins = shared.pins.lock();
        if pins.cuda.as_ref().is_some_and(|open| Arc::ptr_eq(open, cuda)) {
            (pins.closing, pins.closes) = (pins.cuda.take(), true);
            let pins = shared.call(pins);
            drop(shared.wait(pins, |pins| !pins.closes));
        }
    }

    /// The GPU's context is gone, and with it all that the driver could know of this memory.
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
    /// Has the thread look what there is to do.
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

    /// Waits for that, as long as the driver answers.
    fn wait<'a>(
        &'a self,
        mut pins: MutexGuard<'a, Pins>,
        done: impl Fn(&Pins) -> bool,
    ) -> MutexGuard<'a, Pins> {
        while !done(&pins) && !pins.hangs && pins.started {
            let (calls, patience) = (pins.calls, pins.patience());
            let goes_on = |pins: &mut Pins| !done(pins) && !pins.hangs && pins.calls == calls;
            let waited = self.changed.wait_while_for(&mut pins, goes_on, patience);
            // It may have come back as the time was over.
            if waited.timed_out() && !done(&pins) && !pins.hangs && pins.calls == calls {
                pins.hangs = true;
                self.changed.notify_all();
                tracing::warn!("the driver hangs where memory is pinned: copies will wait for each other");
            }
        }
        pins
    }

    /// Calls the driver, one thing after the other, until nobody is left who could have memory.
    fn work(&self) {
        let mut pins = self.pins.lock();
        loop {
            if let Some(call) = pins.next() {
                drop(pins);
                let (start, register) = (call.start, call.register);
                // Drops its hold on the context as well: whoever closes that is to have the last one.
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
                // Before it is told: whoever closes it has the last hold on it, unless it has waited for too long.
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
    /// How long the call may take that is under way, or the next: pages are locked one by one.
    fn patience(&self) -> Duration {
        let called = |known: &&Known| known.is_under_way() || known.left.is_some() || self.closing.is_some();
        let largest = self.memory.values().filter(called).map(|known| known.bytes).max().unwrap_or(0);
        PATIENCE + Duration::from_secs((largest >> 30) as u64)
    }

    /// What the driver is told next.
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

    /// A call has come back. Gives memory that nobody has any more and the driver does not know.
    fn called(&mut self, start: usize, register: bool, came: Came) -> Option<Known> {
        let known = self.memory.get_mut(&start)?;
        known.state = match (register, came) {
            (true, Came::Done) => State::Registered,
            (true, _) => State::Refused,
            (false, Came::Kept) => State::Kept,
            (false, _) => State::New,
        };
        let gone = known.left.is_some() && !matches!(known.state, State::Registered | State::Kept);
        if gone { self.memory.remove(&start) } else { None }
    }

    /// No context knows any of what was kept. Gives what of it nobody has any more.
    fn forgotten(&mut self) -> Vec<Known> {
        let nobodys = |_: &usize, known: &mut Known| known.state == State::Kept && known.left.is_some();
        let left = self.memory.extract_if(.., nobodys).map(|(_, known)| known).collect();
        for known in self.memory.values_mut().filter(|known| known.state == State::Kept) {
            known.state = State::New;
        }
        left
    }

    /// Nobody has this memory any more: it goes now, or when the driver does not know it.
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

/// Whether every call of a context fails by now.
fn is_broken(cuda: &CudaContext) -> bool {
    let answers = enter(cuda).and_then(|()| result::mem_get_info());
    answers.is_err_and(|error| CudaError::when("cannot read memory")(error).fault() == Fault::Sticky)
}

/// Has the driver forget memory of a broken context, in which no call does what it says.
fn forget(start: *mut c_void) -> Came {
    // SAFETY: no context is one, too.
    let outside = unsafe { result::ctx::set_current(std::ptr::null_mut()) };
    // SAFETY: as of `Call::make`: it is registered, as far as we know, and there until this has come back.
    let asked = outside.and_then(|()| unsafe { sys::cuMemHostUnregister(start) }.result());
    match asked {
        Ok(()) => Came::Done,
        Err(error) if error.0 == Code::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => Came::Done,
        Err(error) => {
            // Freed, it would be somebody else's while other GPUs take it for pinned, and copy from where it was.
            tracing::debug!(?error, "memory is kept until the broken context that knows it has gone");
            Came::Kept
        }
    }
}

/// What came of a call.
enum Came {
    Done,
    Refused,
    /// The driver may know memory that it should not know any more.
    Kept,
}

impl Call {
    fn make(self) -> Came {
        let Call { start, bytes, cuda, near, register } = self;
        let call = || {
            enter(&cuda)?;
            let start = std::ptr::with_exposed_provenance_mut(start);
            if register {
                // SAFETY: the memory is there while it is noted, and it is noted until this has come back (`Pins::leave`).
                unsafe { sys::cuMemHostRegister_v2(start, bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) }.result()
            } else {
                // SAFETY: it is registered, and not unregistered since, as the notes say; it is there as above.
                unsafe { sys::cuMemHostUnregister(start) }.result()
            }
        };
        let called = match near.filter(|_| register) {
            Some(near) => near.within(call),
            None => call(),
        };
        match called {
            Ok(()) => Came::Done,
            Err(error) if register => {
                let error = CudaError::when(format!("cannot pin {bytes} bytes"))(error);
                // Of a context that is broken, whoever takes the GPU out tells more.
                if is_broken(&cuda) {
                    tracing::debug!(%error, "memory stays as it is");
                } else {
                    tracing::warn!(%error, "copies of this memory will wait for each other");
                }
                Came::Refused
            }
            Err(error) if error.0 == Code::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => Came::Done,
            Err(_) if is_broken(&cuda) => forget(std::ptr::with_exposed_provenance_mut(start)),
            Err(error) => {
                let error = CudaError::when(format!("cannot unpin {bytes} bytes"))(error);
                tracing::error!(%error, "the driver may copy from where this memory was: what is ours of it is never used again");
                Came::Kept
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
        // What is there without a device is registered when it is.
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

/// Memory that the driver knows while there is one.
struct Pinned {
    /// Until it is released.
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
    /// Where the memory is somebody else's: waits until the driver does not know it.
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
