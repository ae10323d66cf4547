//! Decodes JPEGs on a GPU that the server has taken anyway, when the CPU has too many of them.
//!
//! The decoder has a thread of its own. Whoever holds a GPU offers its context ([`JpegOnGpu::offer`]), and takes it back by dropping
//! the [`Offer`], which waits until nothing of the decoder is left in it. So a GPU is released as if there were no decoder. A file
//! that the decoder cannot decode, or has no time for, is answered with `None`: the CPU then decodes it, and reports what is wrong.
//!
//! - `library`: nvJPEG, found at run time. `decoder`: a batch of files.

mod decoder;
mod library;

use super::{Context, Version};
use crate::image::{PlainJpeg, Preprocess};
use bytes::Bytes;
use decoder::{Decoder, Failed, File, PIXEL_BYTES_MAX, pixel_bytes};
use library::Library;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Files that are decoded at once.
pub const BATCH: usize = 32;

/// A decoder frees its buffers after this long without work.
const IDLE: Duration = Duration::from_secs(5);

/// A batch that takes longer counts as hung.
pub const HUNG: Duration = Duration::from_secs(10);

/// As many files may be refused within so long. Beyond that, all go to the CPU for a while: the library's decoder is made anew after each,
/// which may have everything on the GPU wait, and callers choose the files.
const REFUSED_MAX: usize = 8;
const REFUSED_IN: Duration = Duration::from_secs(60);

/// How long ending the decoder waits for one that has hung.
const LEAVE: Duration = Duration::from_secs(2);

/// A file to be decoded and resized.
pub struct Job {
    /// Its content.
    pub bytes: Bytes,
    /// Its parsed header.
    pub jpeg: PlainJpeg,
    /// The item to make of it: one of bytes.
    pub to: Preprocess,
    /// Called with the item, or with `None` if the CPU is to decode the file.
    pub answer: Box<dyn FnOnce(Option<Vec<u8>>) + Send>,
}

/// A handle to the decoder, for those who have files and those who have GPUs. The decoder ends when the last handle is dropped.
#[derive(Clone)]
pub struct JpegOnGpu(Arc<Owner>);

/// Dropping it ends the thread.
struct Owner {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Contexts with the number of their offer.
    offered: Vec<(u64, Arc<Context>)>,
    /// Offers in whose context the decoder cannot be trusted any more.
    fenced: Vec<u64>,
    /// The offer whose context the decoder uses.
    in_use: Option<u64>,
    next: u64,
    /// When the last [`REFUSED_MAX`] files were refused, the newest first.
    refused: VecDeque<Instant>,
    jobs: VecDeque<Job>,
    /// The number of files that are being decoded, and since when.
    running: Option<(usize, Instant)>,
    /// Whether the current batch has hung, and that was logged.
    told: bool,
    /// Whether the thread is to end, and whether it has.
    ended: bool,
    gone: bool,
}

impl State {
    /// The context to use.
    fn usable(&self) -> Option<&(u64, Arc<Context>)> {
        let rests = self.ended || self.rests(Instant::now());
        self.offered.iter().find(|(number, _)| !rests && !self.fenced.contains(number))
    }

    /// Whether too many files were refused of late.
    fn rests(&self, now: Instant) -> bool {
        self.refused.len() == REFUSED_MAX
            && self.refused.back().is_some_and(|first| now.saturating_duration_since(*first) < REFUSED_IN)
    }

    /// A file was refused. Returns whether that is too many.
    fn has_refused(&mut self, now: Instant) -> bool {
        self.refused.push_front(now);
        self.refused.truncate(REFUSED_MAX);
        self.rests(now)
    }

    /// Whether the current batch has hung. If so, returns the waiting jobs, for the CPU.
    fn has_hung(&mut self, now: Instant) -> Option<VecDeque<Job>> {
        let (_, began) = self.running?;
        let running_for = now.saturating_duration_since(began);
        if running_for < HUNG {
            return None;
        }
        if !std::mem::replace(&mut self.told, true) {
            tracing::warn!(
                ?running_for,
                "the decoder of JPEGs on a GPU hangs: the CPU decodes them meanwhile"
            );
        }
        Some(std::mem::take(&mut self.jobs))
    }
}

impl Shared {
    /// The decoder has ended: waiting files go to the CPU, and no context is in use.
    fn end(&self) {
        let mut state = self.state.lock();
        (state.ended, state.gone, state.in_use, state.running) = (true, true, None, None);
        let jobs = std::mem::take(&mut state.jobs);
        drop(state);
        self.changed.notify_all();
        give_up(jobs);
    }
}

/// Lets the decoder use a GPU's context. Dropping it waits until nothing of the decoder is left there, unless the decoder hangs.
#[must_use = "the context is taken back when this is dropped"]
pub struct Offer {
    number: u64,
    shared: Arc<Shared>,
}

impl JpegOnGpu {
    /// Looks for a version of nvJPEG that a driver of this CUDA version can run, and starts the thread.
    ///
    /// # Errors
    /// Why JPEGs are only decoded on the CPU, in one line.
    pub fn start(driver: Version) -> Result<JpegOnGpu, String> {
        let library = Library::find(driver)?;
        let owner = Owner::start(|shared| Worker { library, shared, decoder: None, announced: None }.work());
        let owner = owner.map_err(|error| format!("no thread to decode JPEGs on a GPU: {error}"))?;
        Ok(JpegOnGpu(Arc::new(owner)))
    }

    /// Offers a context. If several are offered, the first is used.
    pub fn offer(&self, context: &Arc<Context>) -> Offer {
        let shared = &self.0.shared;
        let mut state = shared.state.lock();
        state.next += 1;
        let number = state.next;
        state.offered.push((number, Arc::clone(context)));
        shared.changed.notify_all();
        Offer { number, shared: Arc::clone(shared) }
    }

    /// Bytes of a GPU that the decoder may take.
    pub fn device_bytes(&self) -> u64 {
        decoder::DEVICE_BYTES
    }

    /// Number of files that wait or are being decoded; `None` if no GPU can decode.
    pub fn waiting(&self) -> Option<usize> {
        let mut state = self.0.shared.state.lock();
        if let Some(jobs) = state.has_hung(Instant::now()) {
            drop(state);
            give_up(jobs);
            return None;
        }
        state.usable().map(|_| state.jobs.len() + state.running.map_or(0, |(files, _)| files))
    }

    /// Queues a file.
    pub fn decode(&self, job: Job) {
        let mut state = self.0.shared.state.lock();
        if state.ended {
            drop(state);
            return give_up([job]);
        }
        state.jobs.push_back(job);
        self.0.shared.changed.notify_all();
    }
}

impl Offer {
    /// Takes the context back without waiting. Returns whether nothing of the decoder is left there.
    pub fn has_left(&self) -> bool {
        let mut state = self.take_back();
        let hung = state.has_hung(Instant::now());
        let left = !self.is_in_use(&state);
        drop(state);
        give_up(hung.into_iter().flatten());
        left
    }

    fn take_back(&self) -> MutexGuard<'_, State> {
        let mut state = self.shared.state.lock();
        state.offered.retain(|(number, _)| *number != self.number);
        state.fenced.retain(|number| *number != self.number);
        self.shared.changed.notify_all();
        state
    }

    fn is_in_use(&self, state: &State) -> bool {
        state.in_use == Some(self.number) && !state.gone
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let mut state = self.take_back();
        let changed = &self.shared.changed;
        changed.wait_while_for(&mut state, |state| self.is_in_use(state), LEAVE);
        if self.is_in_use(&state) {
            tracing::warn!("the decoder of JPEGs hangs on a GPU that is given back: not waited for");
        }
    }
}

impl Owner {
    /// Starts the thread, which runs `work` until it is told to end.
    fn start(work: impl FnOnce(Arc<Shared>) + Send + 'static) -> io::Result<Owner> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("ocelli-jpeg".into()).spawn(move || {
            if catch_unwind(AssertUnwindSafe(|| work(Arc::clone(&theirs)))).is_err() {
                tracing::error!(
                    "the thread that decodes JPEGs on a GPU panicked: the CPU decodes them from now on"
                );
                theirs.end();
            }
        })?;
        Ok(Owner { shared, thread: Mutex::new(Some(thread)) })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.ended = true;
        self.shared.changed.notify_all();
        self.shared.changed.wait_while_for(&mut state, |state| !state.gone, LEAVE);
        let gone = state.gone;
        drop(state);
        // A hung thread is left running until the process ends.
        if gone {
            let thread = self.thread.get_mut().take();
            // The thread catches its panics.
            let _ = thread.map(JoinHandle::join);
        }
    }
}

/// The state of the thread.
struct Worker {
    library: Arc<Library>,
    shared: Arc<Shared>,
    decoder: Option<Decoder>,
    /// The offer whose use was logged last.
    announced: Option<u64>,
}

/// The next thing to do.
enum Next {
    Decode(u64, Arc<Context>, Vec<Job>),
    /// No GPU can decode these: they go to the CPU.
    GiveUp(Vec<Job>),
    /// The context in use was taken back.
    Leave,
    Rest,
    End,
}

impl Worker {
    fn work(mut self) {
        let mut rested = true;
        loop {
            match self.next(rested) {
                Next::Decode(number, context, jobs) => {
                    self.decode(number, &context, jobs);
                    let mut state = self.shared.state.lock();
                    (state.running, state.told) = (None, false);
                    drop(state);
                    rested = false;
                }
                Next::GiveUp(jobs) => give_up(jobs),
                Next::Leave => self.leave(),
                Next::Rest => {
                    if let Some(decoder) = &mut self.decoder {
                        decoder.rest();
                    }
                    rested = true;
                }
                Next::End => {
                    self.leave();
                    return self.shared.end();
                }
            }
        }
    }

    fn next(&self, rested: bool) -> Next {
        let mut state = self.shared.state.lock();
        loop {
            if state.ended {
                return Next::End;
            }
            // No context is held while this waits: it may be given back meanwhile, and the last who holds it waits for the device.
            let usable = state.usable().map(|(number, _)| *number);
            if state.in_use.is_some() && state.in_use != usable {
                return Next::Leave;
            }
            if !state.jobs.is_empty() {
                let Some((number, context)) = state.usable().cloned() else {
                    return Next::GiveUp(state.jobs.drain(..).collect());
                };
                let count = in_one_batch(state.jobs.iter().map(|job| pixel_bytes(&job.jpeg)));
                state.running = Some((count, Instant::now()));
                state.in_use = Some(number);
                return Next::Decode(number, context, state.jobs.drain(..count).collect());
            }
            let changed = &self.shared.changed;
            if rested || self.decoder.is_none() {
                changed.wait(&mut state);
                continue;
            }
            if changed.wait_for(&mut state, IDLE).timed_out() {
                return Next::Rest;
            }
        }
    }

    /// Releases the context in use.
    fn leave(&mut self) {
        self.decoder = None;
        self.shared.state.lock().in_use = None;
        self.shared.changed.notify_all();
    }

    fn decode(&mut self, number: u64, context: &Arc<Context>, jobs: Vec<Job>) {
        // Checked on this thread, since it reads every byte: threads that serve requests should not.
        let (jobs, cut): (Vec<Job>, Vec<Job>) =
            jobs.into_iter().partition(|job| job.jpeg.is_whole(&job.bytes));
        give_up(cut);
        if jobs.is_empty() {
            return;
        }
        let all: Vec<&Job> = jobs.iter().collect();
        let results = match self.run(number, context, &all) {
            Ok(items) => items.into_iter().map(Some).collect(),
            // One bad file fails its whole batch: decode each alone, as long as the GPU can be trusted.
            Err(Failed::File(_)) if jobs.len() > 1 => {
                let alone = |job: &Job| match self.run(number, context, &[job]) {
                    Ok(mut items) => items.pop(),
                    Err(failed) => {
                        self.judge(number, context, &failed);
                        None
                    }
                };
                jobs.iter().map(alone).collect()
            }
            Err(failed) => {
                self.judge(number, context, &failed);
                vec![None; jobs.len()]
            }
        };
        for (job, item) in jobs.into_iter().zip(results) {
            (job.answer)(item);
        }
    }

    fn run(&mut self, number: u64, context: &Arc<Context>, jobs: &[&Job]) -> Result<Vec<Vec<u8>>, Failed> {
        if self.shared.state.lock().fenced.contains(&number) {
            return Err(Failed::Memory("there is no decoder any more".to_owned()));
        }
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            none => none.insert(Decoder::new(&self.library, context)?),
        };
        if self.announced.replace(number) != Some(number) {
            let (gpu, hardware) = (context.gpu().id.as_str(), decoder.hardware());
            tracing::info!(
                gpu,
                library = self.library.name(),
                hardware,
                "JPEGs are decoded on a GPU while the CPU is busy"
            );
        }
        let files: Vec<File<'_>> =
            jobs.iter().map(|job| File { bytes: &job.bytes, jpeg: job.jpeg, to: &job.to }).collect();
        decoder.decode(&files)
    }

    /// Reacts to a failure: with nothing, by freeing buffers, or by using no decoder on this GPU until it is offered again.
    fn judge(&mut self, number: u64, context: &Arc<Context>, failed: &Failed) {
        let gpu = context.gpu().id.as_str();
        match failed {
            Failed::File(reason) => {
                tracing::debug!(gpu, reason, "a JPEG is left to the CPU");
                if self.shared.state.lock().has_refused(Instant::now()) {
                    tracing::info!(gpu, pause = ?REFUSED_IN, "JPEGs are left to the CPU for a while: too many are refused");
                }
            }
            Failed::Memory(reason) => {
                tracing::debug!(gpu, reason, "JPEGs are left to the CPU");
                if let Some(decoder) = &mut self.decoder {
                    decoder.rest();
                }
            }
            Failed::Broken(reason) => {
                tracing::warn!(gpu, reason, "JPEGs are decoded on the CPU until this GPU is taken anew");
                // The decoder is dropped first: the context is left when nothing here holds it any more.
                self.decoder = None;
                self.shared.state.lock().fenced.push(number);
            }
        }
    }
}

/// How many of the waiting files are decoded at once. `bytes` are the sizes of their pixels.
fn in_one_batch(bytes: impl Iterator<Item = usize>) -> usize {
    let mut sum = 0;
    let fitting = bytes.take(BATCH).take_while(|bytes| {
        sum += bytes;
        sum <= PIXEL_BYTES_MAX
    });
    fitting.count().max(1)
}

fn give_up(jobs: impl IntoIterator<Item = Job>) {
    for job in jobs {
        (job.answer)(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::plain_jpeg;

    /// A file of the most common kind, reduced to its segments.
    const FILE: [u8; 39] = [
        0xff, 0xd8, 0xff, 0xc0, 0, 17, 8, 0, 20, 0, 33, 3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1, 0xff, 0xda, 0,
        12, 3, 1, 0, 2, 0x11, 3, 0x11, 0, 63, 0, 7, 8, 0xff, 0xd9,
    ];

    #[test]
    fn where_the_thread_has_panicked_files_that_wait_and_that_come_are_the_cpus() {
        let (tell, told) = std::sync::mpsc::channel();
        let job = |number: u32| Job {
            bytes: Bytes::from_static(&FILE),
            jpeg: plain_jpeg(&FILE).expect("one of the commonest kind"),
            to: Preprocess::new(8, 8),
            answer: {
                let tell = tell.clone();
                Box::new(move |item| tell.send((number, item)).expect("somebody listens"))
            },
        };
        let (breaks, broken) = std::sync::mpsc::channel::<()>();
        let owner = Owner::start(move |_| {
            let _ = broken.recv();
            panic!("in the decoder");
        });
        let decoder = JpegOnGpu(Arc::new(owner.expect("a thread")));
        decoder.decode(job(1));
        drop(breaks);
        // A limit in case the test would hang.
        let patience = Duration::from_secs(60);
        assert_eq!(told.recv_timeout(patience), Ok((1, None)));
        decoder.decode(job(2));
        assert_eq!(told.recv_timeout(patience), Ok((2, None)));
        assert_eq!(decoder.waiting(), None);
    }

    #[test]
    fn a_decoder_that_hangs_holds_up_nobody_who_ends_and_what_waits_for_it_is_the_cpus() {
        let (release, hangs) = std::sync::mpsc::channel::<()>();
        let owner = Owner::start(move |_| {
            let _ = hangs.recv();
        });
        let owner = owner.expect("a thread");
        let (tell, told) = std::sync::mpsc::channel();
        // As if it were in the middle of a batch there.
        let offer = Offer { number: 1, shared: Arc::clone(&owner.shared) };
        let began = Instant::now();
        let mut state = owner.shared.state.lock();
        (state.in_use, state.running) = (Some(1), Some((1, began)));
        state.jobs.push_back(Job {
            bytes: Bytes::from_static(&FILE),
            jpeg: plain_jpeg(&FILE).expect("one of the commonest kind"),
            to: Preprocess::new(8, 8),
            answer: Box::new(move |item| tell.send(item).expect("somebody listens")),
        });
        assert!(state.has_hung(began + HUNG - Duration::from_millis(1)).is_none());
        give_up(state.has_hung(began + HUNG).expect("it has"));
        drop(state);
        assert_eq!(told.try_recv(), Ok(None));
        assert!(!offer.has_left());
        // Both drops return while the decoder still hangs.
        drop(offer);
        drop(owner);
        drop(release);
    }

    #[test]
    fn after_too_many_refusals_within_a_minute_there_is_a_pause() {
        let (mut state, start) = (State::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!((0..7).all(|second| !state.has_refused(at(second))));
        assert!(!state.rests(at(7)) && state.has_refused(at(7)));
        assert!(state.rests(at(59)) && !state.rests(at(60)), "until the first is a minute ago");
        assert!(state.has_refused(at(60)) && !state.rests(at(61)), "and so on: eight in any minute");
        assert!((0..9).all(|minutes| !state.has_refused(at(200 + 60 * minutes))));
    }

    #[test]
    fn a_batch_is_bounded_in_files_and_bytes_and_takes_one_file_of_any_size() {
        let check = |bytes: &[usize]| in_one_batch(bytes.iter().copied());
        assert_eq!(check(&[1; 100]), BATCH);
        assert_eq!(check(&[PIXEL_BYTES_MAX / 2; 3]), 2);
        assert_eq!(check(&[2 * PIXEL_BYTES_MAX, 1]), 1);
        assert_eq!(check(&[1]), 1);
    }
}
