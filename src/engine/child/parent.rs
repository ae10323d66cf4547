//! A child as its parent sees it: what is asked of it, who waits for the answers, and what they get when it is gone.
//!
//! One thread per child starts the process, reads its answers and sees its end. The system ends a process with the thread that
//! started it, so that thread lives as long.

mod ending;

use super::{
    link::{Kind, Link, Message},
    process::{Program, Running},
    region::{Part, Region, Traffic},
    ticket::{Reply, Ticket},
    wire::{Answer, Ask, Copies, Open, Place, Words, build},
};
use crate::{
    engine::{
        EngineError, Tensor,
        cuda::MemoryInfo,
        staging::{Blocks, Memory},
    },
    error::panic_words,
};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    fmt,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

/// How long a child has to give everything back when it is not needed any more.
const GRACE: Duration = Duration::from_secs(10);

/// What a child is to be.
#[derive(Debug, Clone)]
pub struct Post {
    /// What its device is called in words.
    pub device: String,
    /// The UUID of its GPU; the CPU otherwise.
    pub gpu: Option<String>,
    /// What to run.
    pub program: Program,
    /// The memory that is shared with it.
    pub region: Region,
    /// Where ONNX Runtime is.
    pub onnx_runtime: Option<PathBuf>,
    /// How long it may take to take its device; one that takes longer is ended. None: for ever.
    pub patience: Option<Duration>,
}

/// A running child. When the last hold on it is dropped, it gives its device back and ends.
#[derive(Debug)]
pub struct Child {
    pub(super) asks: Arc<Asks>,
    /// And what is told when it has nothing more to tell: whether the process has ended.
    thread: Mutex<Option<(JoinHandle<()>, mpsc::Receiver<bool>)>>,
}

impl Child {
    /// Starts it, and has it take its device.
    ///
    /// # Errors
    /// Why the process or the device cannot be had.
    pub fn start(post: Post) -> Result<Arc<Child>, EngineError> {
        let (started, starting) = mpsc::channel();
        let (gone, end) = mpsc::channel();
        let (region, onnx_runtime, gpu) = (post.region.clone(), post.onnx_runtime.clone(), post.gpu.clone());
        let patience = post.patience;
        let thread = std::thread::Builder::new().name("ocelli-child".into()).spawn(move || {
            let Some(asks) = begin(&post, &started) else { return };
            // Whoever waits for an answer is told that none comes, whatever becomes of this.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| asks.read())) {
                let words = panic_words(&panic);
                asks.book
                    .lock()
                    .fault
                    .get_or_insert_with(|| format!("whoever reads its answers panicked: {words}"));
                asks.process.lock().kill();
            }
            let outlasts = asks.settle(asks.end());
            // Nobody may be waiting for it.
            let _ = gone.send(outlasts.is_none());
            if let Some(outlasts) = outlasts {
                asks.wait_for_the_end(outlasts);
            }
        });
        let failed = |what: &str, error: std::io::Error| EngineError::Device(format!("{what}: {error}"));
        let thread = thread.map_err(|error| failed("no thread for a child", error))?;
        let asks = starting.recv().map_err(|_| EngineError::Device("the thread of a child ended".into()))?;
        let asks = asks.map_err(|error| failed("cannot start a process", error))?;
        let child = Child { asks: Arc::clone(&asks), thread: Mutex::new(Some((thread, end))) };
        let traffic = asks.traffic().map_err(EngineError::Device)?;
        let (results, landing) = (traffic.results.clone(), traffic.landing.clone());
        let pinned = traffic.pinned();
        drop(traffic);
        let open = Open { build: build(), results, landing, pinned, gpu, onnx_runtime };
        let mut opened = asks.send(&Ask::Open(open), &Copies::default(), Held::default(), Some(&region))?;
        if let Some(patience) = patience
            && !opened.comes_within(patience)
        {
            // Nobody else has it yet who could end it.
            child.kill(&format!("it has not taken its device within {} ms", patience.as_millis()));
        }
        opened.wait()?;
        Ok(Arc::new(child))
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.asks.id
    }

    /// Bytes of results that the device wrote where this process reads them, and of those that the child copied there first.
    pub fn results_bytes(&self) -> [u64; 2] {
        [&self.asks.landed_bytes, &self.asks.copied_bytes].map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// Why it is gone, once it is.
    pub fn ended(&self) -> Option<String> {
        self.asks.book.lock().ended.clone()
    }

    /// Ends the process at once: for one that hangs. Whoever waits gets an error with this reason.
    pub fn kill(&self, reason: &str) {
        let mut book = self.asks.book.lock();
        if book.ended.is_some() {
            return;
        }
        book.fault.get_or_insert_with(|| reason.to_owned());
        book.killed = true;
        drop(book);
        self.asks.process.lock().kill();
    }

    /// What of the device's memory is free.
    ///
    /// # Errors
    /// Where the child is gone, or its context is broken.
    pub fn memory(&self) -> Result<MemoryInfo, EngineError> {
        let reply = self.asks.ask(&Ask::Memory, &Copies::default(), Held::default())?.wait()?;
        match reply.answer {
            Answer::Memory { free, total } => Ok(MemoryInfo { free, total }),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether the device answers as it should.
    ///
    /// # Errors
    /// What it did instead.
    pub fn canary(&self) -> Result<(), EngineError> {
        self.asks.ask(&Ask::Canary, &Copies::default(), Held::default())?.wait().map(drop)
    }

    /// Gives memory back to the system that nothing holds.
    ///
    /// # Errors
    /// Where the child is gone, or its context is broken.
    pub fn trim(&self) -> Result<(), EngineError> {
        self.asks.ask(&Ask::Trim, &Copies::default(), Held::default())?.wait().map(drop)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let thread = self.thread.get_mut();
        let Some((thread, end)) = thread.take() else { return };
        self.asks.book.lock().leaving = true;
        self.asks.link.shut();
        let mut ended = end.recv_timeout(GRACE);
        if ended.is_err() {
            tracing::warn!(
                device = self.asks.device,
                "the device's process takes too long to end, and is killed"
            );
            self.asks.process.lock().kill();
            ended = end.recv_timeout(GRACE);
        }
        if matches!(ended, Ok(false) | Err(mpsc::RecvTimeoutError::Timeout)) {
            tracing::error!(device = self.asks.device, "the device's process cannot be ended");
            return;
        }
        if thread.join().is_err() {
            tracing::error!("the thread of a child panicked");
        }
    }
}

/// Starts the process, and tells whoever waits for it.
fn begin(post: &Post, started: &mpsc::Sender<std::io::Result<Arc<Asks>>>) -> Option<Arc<Asks>> {
    let traffic = match post.region.traffic(&post.device) {
        Ok(traffic) => Arc::new(traffic),
        Err(why) => {
            // Whoever started this waits for it.
            let _ = started.send(Err(std::io::Error::other(why)));
            return None;
        }
    };
    let (result, asks) = match Running::start(&post.program, &post.device, post.gpu.as_deref()) {
        Ok((process, link)) => {
            let asks = Arc::new(Asks {
                device: post.device.clone(),
                id: process.id(),
                link,
                region: post.region.clone(),
                process: Mutex::new(process),
                traffic: Mutex::new(Some(traffic)),
                book: Mutex::default(),
                results: Blocks::new(Memory::Plain),
                landed_bytes: AtomicU64::new(0),
                copied_bytes: AtomicU64::new(0),
                numbers: AtomicU64::new(1),
            });
            (Ok(Arc::clone(&asks)), Some(asks))
        }
        Err(error) => (Err(error), None),
    };
    // Whoever started this waits for it.
    let _ = started.send(result);
    asks
}

/// What is asked of a child, and by whom.
pub(super) struct Asks {
    device: String,
    /// The process's number.
    id: u32,
    link: Link,
    pub(super) region: Region,
    process: Mutex<Running>,
    /// Until the child is gone.
    traffic: Mutex<Option<Arc<Traffic>>>,
    book: Mutex<Book>,
    /// What outputs are copied into.
    results: Blocks,
    /// Bytes of outputs that lay in the region already, and of those that the child copied there.
    landed_bytes: AtomicU64,
    copied_bytes: AtomicU64,
    numbers: AtomicU64,
}

impl fmt::Debug for Asks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asks").field("device", &self.device).finish_non_exhaustive()
    }
}

/// Who waits for what.
#[derive(Default)]
struct Book {
    next: u64,
    waiting: HashMap<u64, Waiting>,
    /// What the child, or whoever killed it, told of a fault.
    fault: Option<String>,
    /// It is asked to end.
    leaving: bool,
    /// It is told to end at once.
    killed: bool,
    /// Why it is gone.
    ended: Option<String>,
}

/// Something that was asked for, with all that the child reads until it has answered.
struct Waiting {
    tell: mpsc::Sender<Result<Reply, EngineError>>,
    _part: Part,
    _held: Held,
}

/// What is kept until the child has answered.
#[derive(Default)]
#[expect(dead_code, reason = "held, and not read here")]
pub(super) struct Held {
    /// What it reads where it lies.
    pub(super) inputs: Vec<Tensor>,
    /// Whatever else ends with the answer.
    pub(super) seat: Option<super::engine::Seat>,
}

impl Asks {
    fn traffic(&self) -> Result<Arc<Traffic>, String> {
        // Of one that does not end it is kept, and of no use.
        match &self.book.lock().ended {
            Some(reason) => Err(reason.clone()),
            None => self.traffic.lock().clone().ok_or_else(|| "the device's process is gone".to_owned()),
        }
    }

    /// A number that nothing in the child has.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks for something. Waits where the memory for it is still full of what was asked for before.
    pub(super) fn ask(&self, ask: &Ask, copies: &Copies<'_>, held: Held) -> Result<Ticket, EngineError> {
        self.send(ask, copies, held, None)
    }

    fn send(
        &self,
        ask: &Ask,
        copies: &Copies<'_>,
        held: Held,
        region: Option<&Region>,
    ) -> Result<Ticket, EngineError> {
        let words = serde_json::to_vec(ask)
            .map_err(|error| EngineError::Input(format!("cannot say it in JSON: {error}")))?;
        let traffic = self.traffic().map_err(EngineError::Device)?;
        let bytes = copies.bytes() + words.len();
        let (mut part, sheet) = Region::or_sheet(traffic.lend_waiting(bytes), bytes).map_err(|error| {
            let device = &self.device;
            EngineError::OutOfMemory(format!(
                "cannot share {bytes} bytes with the process of {device}: {error}"
            ))
        })?;
        copies.write(&words, &mut part);
        let (offset, bytes) = ((part.offset() + copies.bytes()) as u64, words.len() as u64);
        let (tell, told) = mpsc::channel();
        let mut book = self.book.lock();
        if let Some(reason) = &book.ended {
            return Err(EngineError::Device(reason.clone()));
        }
        let id = book.next;
        book.next += 1;
        book.waiting.insert(id, Waiting { tell, _part: part, _held: held });
        drop(book);
        let message = Message { kind: Kind::Ask, id, offset, bytes };
        if let Err(error) = self.link.send_with(&message, region.or(sheet.as_ref()).map(Region::file)) {
            // The thread that reads sees the same end, and says so.
            tracing::debug!(%error, "a child does not listen any more");
        }
        Ok(Ticket::of(told))
    }

    /// Hands answers on, until the child is gone.
    fn read(&self) {
        loop {
            match self.link.receive() {
                Ok(Some((message, sheet))) if message.kind == Kind::Answer => self.hand_on(&message, sheet),
                Ok(Some((message, _))) => tracing::error!(?message, "a child said what only parents say"),
                Ok(None) => return,
                Err(error) => {
                    self.book
                        .lock()
                        .fault
                        .get_or_insert_with(|| format!("its answers cannot be read: {error}"));
                    return self.process.lock().kill();
                }
            }
        }
    }

    /// What is in shared memory is copied, so that the child has it back whoever still reads the outputs, and nothing that a
    /// broken child writes later is seen.
    fn hand_on(&self, message: &Message, sheet: Option<OwnedFd>) {
        let reply = self.reply(message, sheet);
        if let Err(error) = self.link.send(&Message { kind: Kind::Taken, ..*message }) {
            tracing::debug!(%error, "a child does not listen any more");
        }
        let mut book = self.book.lock();
        if let Err(EngineError::Device(text)) = &reply {
            book.fault.get_or_insert_with(|| text.clone());
        }
        let waiting = book.waiting.remove(&message.id);
        drop(book);
        if let Some(Waiting { tell, _part, _held }) = waiting {
            // First, so that whoever is told finds the memory and the place free.
            drop((_part, _held));
            // Whoever asked may not care.
            let _ = tell.send(reply);
        }
    }

    fn reply(&self, message: &Message, sheet: Option<OwnedFd>) -> Result<Reply, EngineError> {
        let wrong =
            |text: String| EngineError::Device(format!("the device's process answered nonsense: {text}"));
        let words = Words::of(message, sheet, &self.region).map_err(|error| wrong(error.to_string()))?;
        let answer: Result<Answer, EngineError> = serde_json::from_slice(&words.read().map_err(wrong)?)
            .map_err(|error| wrong(error.to_string()))?;
        let answer = answer?;
        let outputs = match &answer {
            Answer::Landed { outputs, .. } => {
                let output = |at: &super::wire::TensorAt| {
                    let (region, place) = words.find(at.place, &self.region)?;
                    let count = match at.place {
                        Place::At(_) => &self.landed_bytes,
                        Place::Before(_) => &self.copied_bytes,
                    };
                    count.fetch_add(at.bytes as u64, Ordering::Relaxed);
                    // Before memory is taken for it.
                    region.checked(place, at.bytes)?;
                    let mut data = self.results.lend(at.bytes);
                    region.copy(place, &mut data)?;
                    Ok(Tensor { datatype: at.datatype, shape: at.shape.clone(), data: data.freeze() })
                };
                outputs.iter().map(output).collect::<Result<_, String>>().map_err(wrong)?
            }
            Answer::Done | Answer::Rested(_) | Answer::Loaded { .. } | Answer::Memory { .. } => Vec::new(),
        };
        Ok(Reply { answer, outputs })
    }
}

/// For an answer to something else.
pub(super) fn unexpected(answer: &Answer) -> EngineError {
    EngineError::Device(format!("the device's process answered something else: {answer:?}"))
}
