//! The child's side: one thread reads what the parent asks for, and each engine has one of its own that makes it, begins its
//! batches and drops it. The process ends with the socket.
//!
//! After a fault of the device nothing is given back: the process leaves at once, past every destructor, because calls into
//! a broken context may hang or crash. The system takes all that it had.
#![allow(unsafe_code)]

use super::{
    desk::Desk,
    link::{Kind, Link},
    recipe::Place,
    region::Region,
    seat::Seated,
    wire::{Answer, Ask, Open, build},
};
use crate::engine::{
    EngineError,
    cuda::{self, Context, HostMemory},
    onnx::Runtime,
    staging::{Memory, Pinner},
};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};
use std::{collections::HashMap, os::fd::OwnedFd, sync::Arc};

/// The exit code after a fault of the device or of an engine.
pub const FAULT: i32 = 86;

/// Serves the parent at the other end of this socket, until it is gone or wants no more.
///
/// # Errors
/// Where what it says makes no sense, or the system refuses something: words for the log.
pub fn serve(socket: OwnedFd) -> Result<(), String> {
    alone().map_err(|error| format!("cannot become a child: {error}"))?;
    let link = Link::from(socket);
    let first = link.receive().map_err(|error| format!("cannot hear the parent: {error}"))?;
    let Some((message, file)) = first else { return Ok(()) };
    let file = file.ok_or("the parent shares no memory")?;
    let region = Region::open(file).map_err(|error| format!("cannot map the shared memory: {error}"))?;
    let words = region.read(message.offset as usize, message.bytes as usize)?;
    let Ok(Ask::Open(open)) = serde_json::from_slice(&words) else {
        return Err("the parent did not say what to open: it is of another build".to_owned());
    };
    let desk = Arc::new(Desk::new(link, region.clone(), open.results.clone()));
    let place = match take(&open, &region) {
        Ok(place) => place,
        Err(error) => {
            desk.answer(message.id, Err(error));
            // The parent reads that, and goes.
            while let Ok(Some(_)) = desk.link().receive() {}
            return Ok(());
        }
    };
    desk.answer(message.id, Ok(Answer::Done { device_bytes: 0 }));
    let served = attend(&desk, &place.place);
    // What pins the region goes before it, and the context last.
    drop(place);
    served
}

/// Has this process end with its parent, and not before it.
fn alone() -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Writing the memory of a process with a GPU to a file takes seconds, in which its parent does not know that it is gone. 1
    // is what turns it off for files and for programs that collect them. The maximum stays as it is: where it was lowered, few may
    // raise it again.
    let maximum = getrlimit(Resource::Core).maximum;
    let current = Some(maximum.map_or(1, |maximum| maximum.min(1)));
    if let Err(error) = setrlimit(Resource::Core, Rlimit { current, maximum }) {
        tracing::warn!(%error, "the memory of a child that crashes may be written to a file, which takes seconds");
    }
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGXFSZ] {
        // SAFETY: ignoring a signal runs no code of ours. Service managers and terminals send these to all processes of a service; the
        // parent drains first, and then ends this one. The last comes with an error to whoever writes.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    Ok(())
}

/// What was taken, in the order in which it is given back.
struct Taken {
    place: Place,
    _pin: Option<crate::engine::staging::Pin>,
}

fn take(open: &Open, region: &Region) -> Result<Taken, EngineError> {
    let refused = EngineError::Input;
    if open.build != build() {
        return Err(refused(format!(
            "the parent is build {:?}, its child {:?}: start the server anew",
            open.build,
            build()
        )));
    }
    let none = || Err("ONNX Runtime is not loaded".to_owned());
    let runtime = open.onnx_runtime.as_deref().map_or_else(none, Runtime::load);
    let Some(id) = &open.gpu else {
        return Ok(Taken { place: Place::Cpu(runtime), _pin: None });
    };
    let driver = cuda::probe().map_err(|error| refused(error.to_string()))?;
    let gpu = driver.gpus.iter().find(|gpu| gpu.id == *id);
    let gpu = gpu.ok_or_else(|| refused(format!("the driver does not show {id} to a process of its own")))?;
    let context = Context::open(gpu)?;
    let landing = region.lending(open.landing.clone()).map_err(refused)?;
    context.land_in(Memory::Landing(landing, Arc::new(HostMemory::of(&context))));
    let (start, bytes) = region.memory();
    // SAFETY: the caller holds the region for longer than this.
    let pin = unsafe { HostMemory::of(&context).pin(start, bytes) };
    Ok(Taken { place: Place::Gpu(context, runtime), _pin: pin })
}

/// Does what is asked until the parent wants no more. Engines are gone when it returns.
fn attend(desk: &Arc<Desk>, place: &Place) -> Result<(), String> {
    let mut engines: HashMap<u64, Seated> = HashMap::new();
    loop {
        let Some((message, _)) =
            desk.link().receive().map_err(|error| format!("cannot hear the parent: {error}"))?
        else {
            return Ok(());
        };
        let id = message.id;
        match message.kind {
            Kind::Taken => desk.taken(id),
            Kind::Answer => return Err("the parent answered, and was not asked".to_owned()),
            Kind::Ask => {
                let words_at = message.offset as usize;
                let words = desk.region().read(words_at, message.bytes as usize)?;
                let ask =
                    serde_json::from_slice(&words).map_err(|error| format!("cannot read an ask: {error}"))?;
                match ask {
                    Ask::Open(_) => return Err("the parent opens twice".to_owned()),
                    Ask::Load { engine, recipe } => {
                        // Those that could not be made: nobody unloads them, and the stack of a thread goes when it is joined.
                        engines.retain(|_, seated| !seated.is_gone());
                        match Seated::load(desk, place, recipe, id) {
                            Ok(seated) => drop(engines.insert(engine, seated)),
                            Err(error) => {
                                let none = format!("no thread for an engine: {error}");
                                desk.answer(id, Err(EngineError::Input(none)));
                            }
                        }
                    }
                    Ask::Memory => desk.answer(id, memory(place)),
                    Ask::Trim => desk.answer(id, trim(place)),
                    Ask::Canary => desk.answer(id, canary(place)),
                    Ask::Unload { engine } => {
                        if let Some(seated) = engines.remove(&engine) {
                            seated.leave(id);
                        } else {
                            desk.answer(id, Ok(Answer::Done { device_bytes: 0 }));
                        }
                    }
                    Ask::Equip { engine, .. }
                    | Ask::Camera { engine, .. }
                    | Ask::Start { engine, .. }
                    | Ask::Rest { engine } => {
                        let told = engines.get(&engine).map(|seated| seated.tell(id, words_at, ask));
                        if told != Some(true) {
                            let none = format!("there is no engine {engine}");
                            desk.answer(id, Err(EngineError::Input(none)));
                        }
                    }
                }
            }
        }
    }
}

fn memory(place: &Place) -> Result<Answer, EngineError> {
    match place {
        Place::Cpu(_) => Ok(Answer::Memory { free: 0, total: 0 }),
        Place::Gpu(context, _) => {
            let memory = context.memory()?;
            Ok(Answer::Memory { free: memory.free, total: memory.total })
        }
    }
}

fn trim(place: &Place) -> Result<Answer, EngineError> {
    match place {
        Place::Cpu(_) => {}
        Place::Gpu(context, _) => context.trim()?,
    }
    Ok(Answer::Done { device_bytes: 0 })
}

fn canary(place: &Place) -> Result<Answer, EngineError> {
    match place {
        Place::Cpu(_) => {}
        Place::Gpu(context, _) => cuda::canary(context)?,
    }
    Ok(Answer::Done { device_bytes: 0 })
}

/// Ends this process now, without giving anything back.
pub(super) fn leave() -> ! {
    // SAFETY: no destructor runs, which is the point; the system closes and frees everything.
    unsafe { libc::_exit(FAULT) }
}
