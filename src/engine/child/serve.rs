//! The child's side. One thread reads the parent's messages and never blocks on anything else, since other threads wait for what
//! these messages free. Each engine has a thread of its own that creates it, starts its batches and drops it. One more thread handles
//! asks to the device. The process ends with the socket.
//!
//! After a fault of the device nothing is released: the process exits at once without running destructors, because calls into
//! a broken context may hang or crash. The system reclaims all that it had.
#![allow(unsafe_code)]

use super::{
    desk::Desk,
    link::{Kind, Link},
    process::leave,
    recipe::Place,
    seat::Seated,
    wire::{Answer, Ask, Open, Words, build},
};
use crate::engine::{
    EngineError,
    cuda::{self, Canary, Context, HostMemory},
    onnx::Runtime,
    staging::{Memory, Pin, Pinner, Region},
};
use rustix::{
    process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit},
    thread::set_name,
};
use std::{
    collections::HashMap,
    ops::Range,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
};

/// Serves the parent at the other end of this socket, until the parent is gone or closes it.
///
/// # Errors
/// If a message makes no sense, or the system refuses something: a text for the log.
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
            // The parent reads the error and closes the socket.
            while let Ok(Some(_)) = desk.link().receive() {}
            return Ok(());
        }
    };
    desk.answer(message.id, Ok(Answer::Done));
    let served = attend(&desk, &place.place);
    // The pins are dropped before the region that they pin, and the context last.
    drop(place);
    served
}

/// Has this process end with its parent, and ignore signals that would end it earlier.
fn alone() -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It was started as /proc/self/exe; without this, process lists would show it as `exe`.
    set_name(c"ocelli-worker")?;
    // A core dump of a process with a GPU takes seconds, in which its parent does not know that it is gone. A limit of 1 disables
    // dumps to files as well as to programs that collect them. The hard limit stays as it is: once lowered, few processes may raise
    // it again.
    let maximum = getrlimit(Resource::Core).maximum;
    let current = Some(maximum.map_or(1, |maximum| maximum.min(1)));
    if let Err(error) = setrlimit(Resource::Core, Rlimit { current, maximum }) {
        tracing::warn!(%error, "the memory of a child that crashes may be written to a file, which takes seconds");
    }
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGXFSZ] {
        // SAFETY: ignoring a signal runs no code of ours. Service managers and terminals send these to all processes of a service, but
        // the parent drains first and then ends this process. The last one, SIGXFSZ, also shows as an error to whoever writes.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    Ok(())
}

/// What the child has taken, in the order in which it is dropped.
struct Taken {
    place: Place,
    _pins: Vec<Option<Pin>>,
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
    let runtime = open.onnx_runtime.as_deref().map_or_else(none, |path| Runtime::load(path, u64::MAX));
    let Some(id) = &open.gpu else {
        return Ok(Taken { place: Place::Cpu(runtime), _pins: Vec::new() });
    };
    let driver = cuda::probe().map_err(|error| refused(error.to_string()))?;
    let gpu = driver.gpus.iter().find(|gpu| gpu.id == *id);
    let gpu = gpu.ok_or_else(|| refused(format!("the driver does not show {id} to a process of its own")))?;
    let context = Context::open(gpu).map_err(|error| error.of_taking())?;
    let landing = region.lending(open.landing.clone()).map_err(refused)?;
    context.land_in(Memory::Landing(landing, Arc::new(HostMemory::of(&context))));
    let pin = |part: &Range<usize>| {
        let start = region.memory(part).map_err(refused)?;
        // SAFETY: the caller holds the region for longer than this.
        Ok(unsafe { HostMemory::of(&context).pin(start, part.len()) })
    };
    let pins = open.pinned.iter().map(pin).collect::<Result<Vec<_>, EngineError>>()?;
    Ok(Taken { place: Place::Gpu(context, runtime), _pins: pins })
}

/// An ask that is not for an engine. It may take long, or wait for room for its answer.
type Errand<'a> = Box<dyn FnOnce() -> Result<Answer, EngineError> + Send + 'a>;

/// Handles asks until the parent closes the socket. Engines are gone when it returns.
fn attend(desk: &Arc<Desk>, place: &Place) -> Result<(), String> {
    let canary = Canary::default();
    let (errands, to_do) = mpsc::channel::<(u64, Errand<'_>)>();
    let canary = &canary;
    std::thread::scope(move |scope| {
        let clerk =
            std::thread::Builder::new().name("ocelli-errands".into()).spawn_scoped(scope, move || {
                for (id, errand) in to_do {
                    // As after the panic of an engine: the state left behind is unknown.
                    let done = catch_unwind(AssertUnwindSafe(errand)).unwrap_or_else(|_| leave());
                    desk.answer(id, done);
                }
            });
        clerk.map_err(|error| format!("no thread for errands: {error}"))?;
        listen(desk, (place, canary), &|id, errand| {
            // Cannot fail: the receiving thread ends after this function.
            let _ = errands.send((id, errand));
        })
    })
}

/// Reads asks, and passes each to the engine or thread that handles it.
fn listen<'a>(
    desk: &Arc<Desk>,
    (place, canary): (&'a Place, &'a Canary),
    send: &dyn Fn(u64, Errand<'a>),
) -> Result<(), String> {
    let refuse = |id, why: String| send(id, Box::new(move || Err(EngineError::Input(why))));
    let mut engines: HashMap<u64, Seated> = HashMap::new();
    loop {
        let Some((message, sheet)) =
            desk.link().receive().map_err(|error| format!("cannot hear the parent: {error}"))?
        else {
            return Ok(());
        };
        let id = message.id;
        match message.kind {
            Kind::Taken => desk.taken(id),
            Kind::Answer => return Err("the parent answered, and was not asked".to_owned()),
            Kind::Ask => {
                let words = Words::of(&message, sheet, desk.region());
                let words = words.map_err(|error| format!("cannot map what came with an ask: {error}"))?;
                let ask = serde_json::from_slice(&words.read()?);
                let ask = ask.map_err(|error| format!("cannot read an ask: {error}"))?;
                match ask {
                    Ask::Open(_) => return Err("the parent opens twice".to_owned()),
                    Ask::Load { engine, recipe } => {
                        // Removes engines that could not be created: nobody unloads them, and a thread's stack is freed when it is joined.
                        engines.retain(|_, seated| !seated.is_gone());
                        match Seated::load(desk, place, recipe, id) {
                            Ok(seated) => drop(engines.insert(engine, seated)),
                            Err(error) => {
                                refuse(id, format!("no thread for an engine: {error}"));
                            }
                        }
                    }
                    Ask::Memory => send(id, Box::new(|| memory(place))),
                    Ask::Trim => send(id, Box::new(|| trim(place))),
                    Ask::Canary => send(id, Box::new(|| check(place, canary))),
                    Ask::Unload { engine } => {
                        if let Some(seated) = engines.remove(&engine) {
                            seated.leave(id, words, ask);
                        } else {
                            send(id, Box::new(|| Ok(Answer::Done)));
                        }
                    }
                    Ask::Equip { engine, .. }
                    | Ask::Camera { engine, .. }
                    | Ask::Start { engine, .. }
                    | Ask::Rest { engine, .. } => {
                        let told = engines.get(&engine).map(|seated| seated.tell(id, words, ask));
                        if told != Some(true) {
                            refuse(id, format!("there is no engine {engine}"));
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
        Place::Gpu(context, _) => {
            context.bind()?;
            context.trim()?;
        }
    }
    Ok(Answer::Done)
}

fn check(place: &Place, canary: &Canary) -> Result<Answer, EngineError> {
    match place {
        Place::Cpu(_) => {}
        Place::Gpu(context, _) => {
            context.bind()?;
            canary.check(context)?;
        }
    }
    Ok(Answer::Done)
}

#[cfg(test)]
mod tests {
    use super::{super::link::Message, *};
    use crate::engine::staging::arena::ALIGN;
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use std::time::Duration;

    #[test]
    fn an_answer_that_waits_for_room_keeps_nobody_from_hearing_that_there_is_room() {
        let region = Region::new(1 << 16, 1).expect("memory");
        let traffic = region.traffic("gpu").expect("a share");
        let (theirs, ours) = Link::pair().expect("sockets");
        // If no message comes, the test fails instead of hanging.
        set_socket_timeout(&ours, Timeout::Recv, Some(Duration::from_secs(60))).expect("a limit");
        let ours = Link::from(ours);
        let room_for_one = traffic.results.start..traffic.results.start + ALIGN;
        let desk = Arc::new(Desk::new(theirs, region.clone(), room_for_one));
        let child = std::thread::spawn(move || attend(&desk, &Place::Cpu(Err("none".into()))));
        let words = serde_json::to_vec(&Ask::Memory).expect("JSON");
        let mut part = traffic.lend_waiting(words.len()).expect("room");
        part[..words.len()].copy_from_slice(&words);
        let say = |kind, id| {
            let (offset, bytes) = (part.offset() as u64, words.len() as u64);
            ours.send(&Message { kind, id, offset, bytes }).expect("sent");
        };
        let heard = || ours.receive().expect("in time").expect("a message").0.id;
        say(Kind::Ask, 0);
        say(Kind::Ask, 1);
        assert_eq!(heard(), 0);
        say(Kind::Taken, 0);
        assert_eq!(heard(), 1);
        say(Kind::Taken, 1);
        ours.shut();
        assert_eq!(child.join().expect("no panic"), Ok(()));
    }
}
