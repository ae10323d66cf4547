//! The parent's side of a child: its asks, who waits for the answers, and what they get when the child is gone.
//!
//! One thread per child starts the process, reads its answers and handles its end. The system kills a child process when the thread
//! that started it ends, so that thread lives as long as the child.

mod ending;

use super::{
    link::{Kind, Link, Message},
    process::{Program, Running},
    ticket::{Reply, Seat, Ticket},
    wire::{Answer, Ask, Copies, Open, Place, Words, build},
};
use crate::{
    engine::{
        EngineError, Tensor,
        cuda::MemoryInfo,
        staging::{
            Blocks, Memory,
            region::{Part, Region, Traffic},
        },
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

/// How long a child may take to release everything when it is no longer needed.
const GRACE: Duration = Duration::from_secs(10);

/// What a child is started with.
#[derive(Debug, Clone)]
pub struct Post {
    /// The device's name in messages.
    pub device: String,
    /// The UUID of its GPU; none for the CPU.
    pub gpu: Option<String>,
    /// What to run.
    pub program: Program,
    /// The memory that is shared with it.
    pub region: Region,
    /// The path of ONNX Runtime.
    pub onnx_runtime: Option<PathBuf>,
    /// How long it may take to take its device; a child that takes longer is killed. `None`: without a limit.
    pub patience: Option<Duration>,
}

/// A running child. When the last reference to it is dropped, it releases its device and ends.
#[derive(Debug)]
pub struct Child {
    pub(super) asks: Arc<Asks>,
    /// The thread that reads its answers, and a channel for its last message: whether the process has ended.
    thread: Mutex<Option<(JoinHandle<()>, mpsc::Receiver<bool>)>>,
}

impl Child {
    /// Starts a child, and has it take its device.
    ///
    /// # Errors
    /// Why the process cannot be started, or the device cannot be taken.
    pub fn start(post: Post) -> Result<Arc<Child>, EngineError> {
        let (started, starting) = mpsc::channel();
        let (gone, end) = mpsc::channel();
        let (region, onnx_runtime, gpu) = (post.region.clone(), post.onnx_runtime.clone(), post.gpu.clone());
        let patience = post.patience;
        let thread = std::thread::Builder::new().name("ocelli-child".into()).spawn(move || {
            let Some(asks) = begin(&post, &started) else { return };
            // Even after a panic here, all who wait for an answer are told that none comes.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| asks.read())) {
                let words = panic_words(&panic);
                asks.book
                    .lock()
                    .fault
                    .get_or_insert_with(|| format!("whoever reads its answers panicked: {words}"));
                asks.process.lock().kill();
            }
            let outlasts = asks.settle(asks.end());
            // An error: nobody waits for it.
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
            // Nobody else holds the child yet, so nobody else could kill it.
            child.kill(&format!("it has not taken its device within {} ms", patience.as_millis()));
        }
        opened.wait()?;
        Ok(Arc::new(child))
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.asks.id
    }

    /// Bytes of results that the device wrote to shared memory itself, and bytes that the child copied there first.
    pub fn results_bytes(&self) -> [u64; 2] {
        [&self.asks.landed_bytes, &self.asks.copied_bytes].map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// Why the child is gone, once it is.
    pub fn ended(&self) -> Option<String> {
        self.asks.book.lock().ended.clone()
    }

    /// Kills the process at once, for one that hangs. All who wait for answers get an error with this reason.
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

    /// The device's free memory.
    ///
    /// # Errors
    /// If the child is gone, or its context is broken.
    pub fn memory(&self) -> Result<MemoryInfo, EngineError> {
        let reply = self.asks.ask(&Ask::Memory, &Copies::default(), Held::default())?.wait()?;
        match reply.answer {
            Answer::Memory { free, total } => Ok(MemoryInfo { free, total }),
            other => Err(unexpected(&other)),
        }
    }

    /// Checks that the device computes correctly.
    ///
    /// # Errors
    /// What it did instead.
    pub fn canary(&self) -> Result<(), EngineError> {
        self.asks.ask(&Ask::Canary, &Copies::default(), Held::default())?.wait().map(drop)
    }

    /// Gives unused memory back to the system.
    ///
    /// # Errors
    /// If the child is gone, or its context is broken.
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

/// Starts the process, and sends the outcome to `started`.
fn begin(post: &Post, started: &mpsc::Sender<std::io::Result<Arc<Asks>>>) -> Option<Arc<Asks>> {
    let traffic = match post.region.traffic(&post.device) {
        Ok(traffic) => Arc::new(traffic),
        Err(why) => {
            // Cannot fail: `Child::start` waits for it.
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
    // Cannot fail: `Child::start` waits for it.
    let _ = started.send(result);
    asks
}

/// The asks to a child, and who waits for their answers.
pub(super) struct Asks {
    device: String,
    /// The process id.
    id: u32,
    link: Link,
    pub(super) region: Region,
    process: Mutex<Running>,
    /// The child's share of the region, until the child is gone.
    traffic: Mutex<Option<Arc<Traffic>>>,
    book: Mutex<Book>,
    /// Memory into which outputs are copied.
    results: Blocks,
    /// Bytes of outputs that lay in the region already, and bytes that the child copied there.
    landed_bytes: AtomicU64,
    copied_bytes: AtomicU64,
    numbers: AtomicU64,
}

impl fmt::Debug for Asks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asks").field("device", &self.device).finish_non_exhaustive()
    }
}

/// Pending asks, and how the child ends.
#[derive(Default)]
struct Book {
    next: u64,
    waiting: HashMap<u64, Waiting>,
    /// A fault, as reported by the child or by whoever killed it.
    fault: Option<String>,
    /// The child has been asked to end.
    leaving: bool,
    /// The child has been killed by the server.
    killed: bool,
    /// Why the child is gone.
    ended: Option<String>,
}

/// A pending ask, with all memory that the child reads until it has answered.
struct Waiting {
    tell: mpsc::Sender<Result<Reply, EngineError>>,
    _part: Part,
    _held: Held,
}

/// Kept until the child has answered.
#[derive(Default)]
#[expect(dead_code, reason = "held, and not read here")]
pub(super) struct Held {
    /// Inputs that the child may read in place.
    pub(super) inputs: Vec<Tensor>,
    /// Room for the batch, which the answer frees.
    pub(super) seat: Option<Seat>,
}

impl Asks {
    fn traffic(&self) -> Result<Arc<Traffic>, String> {
        // A killed child that does not end keeps its share, but nothing more can be sent to it.
        match &self.book.lock().ended {
            Some(reason) => Err(reason.clone()),
            None => self.traffic.lock().clone().ok_or_else(|| "the device's process is gone".to_owned()),
        }
    }

    /// A number that nothing in the child has yet.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends an ask. Waits while the memory for it is full of earlier asks.
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
            // The reading thread sees the same end, and reports it to all who wait.
            tracing::debug!(%error, "a child does not listen any more");
        }
        Ok(Ticket::of(told))
    }

    /// Passes answers on to those who wait for them, until the child is gone.
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

    /// Outputs are copied out of shared memory. So the child gets its memory back however long they are read, and whatever a broken
    /// child writes later is not seen.
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
            // Dropped first, so that whoever gets the answer finds the memory and the seat free.
            drop((_part, _held));
            // An error: the asker no longer waits.
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
                    // Checked before memory is allocated for it.
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

/// The error for an answer that does not fit its ask.
pub(super) fn unexpected(answer: &Answer) -> EngineError {
    EngineError::Device(format!("the device's process answered something else: {answer:?}"))
}
