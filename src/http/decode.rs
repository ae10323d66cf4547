//! The bounded CPU pool that turns posted bytes into staged images, away from the async threads.
//!
//! The pool's threads bound its work, and the budget bounds its memory: a decode waits until the pixels that its header announces fit
//! beside those of the decodes that run. It does not wait on a thread, so whoever has a share may wait for the pool; but for nothing else,
//! such as a client that reads.

mod budget;
mod on_gpu;
mod pages;
mod planes;
mod policy;
mod queue;
mod slow;
mod waiting;

use super::admission::{Permit, charged};
use crate::{
    engine::{
        Tensor,
        cuda::jpeg::{self, JpegOnGpu},
    },
    error::InferError,
    image::{self, Format, Frame, Header, Image, Limits, Placement, Scratch},
    models::{Form, ImageInput, Model},
};
pub use budget::Share;
use budget::{Budget, DECODING};
use bytes::Bytes;
use policy::{files_of_request, slow_at_once, steps_at_once};
use queue::Queue;
pub use queue::Step;
pub(crate) use slow::{LONG_FILES, LONG_NUMBERS};
use slow::{SlowTurns, Turn};
use std::{
    cell::RefCell,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::sync::{Semaphore, oneshot};
use waiting::Counted;
pub use waiting::Turns;

/// Less than this is read from JSON or the like, taken apart and written in place: a hand-over to the pool would take longer.
pub(crate) const INLINE_BYTES_MAX: usize = 4096;

/// One frame as the model takes it.
#[derive(Debug)]
pub struct Staged {
    /// The model's inputs for one item. The first is mostly pixels, in a staging slot.
    pub inputs: Vec<Tensor>,
    /// How model pixels map to the posted image's.
    pub placement: Placement,
}

/// The frames of a file in their order. Each page may have an error of its own.
pub type Frames = Vec<Result<Staged, InferError>>;

/// The only frame of a posted file, or its [`Frames`], and how long they took.
#[derive(Debug)]
pub struct Decoded<T> {
    /// The frame, or the frames.
    pub staged: T,
    /// Decode and resize.
    pub took: Duration,
    /// The memory of what is staged until a queue accounts for it: to be dropped once that is queued.
    pub share: Share,
}

impl From<Decoded<Staged>> for Decoded<Frames> {
    fn from(Decoded { staged, took, share }: Decoded<Staged>) -> Decoded<Frames> {
        Decoded { staged: vec![Ok(staged)], took, share }
    }
}

/// A file that was opened.
pub enum Opened {
    /// It has one frame, which was decoded.
    Only(Decoded<Staged>),
    /// It has several, for [`DecodePool::stage_several`].
    Several(Image<Bytes>),
}

/// The only frame of the file at `index` of a request, where `place` has room for no more.
///
/// # Errors
/// That of opening it, which says what it is about; and 400 for several frames.
pub(super) fn only(
    opened: Result<Opened, InferError>,
    index: usize,
    place: &str,
    model: &Model,
) -> Result<Decoded<Staged>, InferError> {
    match opened {
        Ok(Opened::Only(decoded)) => Ok(decoded),
        Ok(Opened::Several(_)) => Err(InferError::BadRequest(format!(
            "image {index} has several frames, which {place} has no place for; post it to /predictions/{}",
            model.name
        ))),
        Err(error) => Err(about(&format!("image {index}"), error)),
    }
}

/// An error with the image that it is about, where that is to blame.
pub(super) fn about(image: &str, error: InferError) -> InferError {
    match error {
        InferError::TooLarge { what, got, limit, option } => {
            InferError::TooLarge { what: format!("{image}: {what}").into(), got, limit, option }
        }
        InferError::Decode(what) => InferError::Decode(format!("{image}: {what}")),
        InferError::BadRequest(what) => InferError::BadRequest(format!("{image}: {what}")),
        other => other,
    }
}

/// Threads that decode, and the memory they may use together.
pub struct DecodePool {
    /// A request waits for each of its jobs. Admission bounds the number of requests, [`Turns`] that of their files here.
    queue: Arc<Queue>,
    threads: usize,
    /// For the steps of files of several frames, whose frames may be large: a quarter of the threads, at least one where there are several,
    /// is left to others.
    steps: Arc<Semaphore>,
    /// For what may keep a thread for long: files of [slow](Format::is_slow) formats, images that are large when decoded, and long texts.
    slow: Arc<SlowTurns>,
    limits: Limits,
    budget: Arc<Budget>,
    /// Jobs that wait for a thread or for memory, or run.
    in_pool: Arc<AtomicUsize>,
    /// A GPU that helps the threads.
    jpeg: Option<JpegOnGpu>,
    gpu_jpegs: AtomicU64,
}

thread_local! {
    /// Resizer state and buffers, kept by each thread of the pool between images.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl DecodePool {
    /// `threads` threads, `bytes_max` bytes of decoded pixels at once.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn new(threads: usize, bytes_max: u64, limits: Limits) -> io::Result<DecodePool> {
        let queue = Arc::new(Queue::default());
        for index in 0..threads {
            let queue = Arc::clone(&queue);
            // They end when the pool is dropped, and nothing is left to do.
            let work = move || std::iter::from_fn(|| queue.take()).for_each(|(job, age)| job(age));
            thread::Builder::new().name(format!("ocelli-decode-{index}")).spawn(work)?;
        }
        let (budget, in_pool) = (Arc::new(Budget::new(bytes_max)), Arc::default());
        let steps = Arc::new(Semaphore::new(steps_at_once(threads)));
        let (slow, gpu_jpegs) = (Arc::new(SlowTurns::new(slow_at_once(threads))), AtomicU64::new(0));
        Ok(DecodePool { queue, threads, steps, slow, limits, budget, in_pool, jpeg: None, gpu_jpegs })
    }

    /// The same, with a GPU for JPEGs that the threads have no time for.
    #[must_use]
    pub fn with_gpu(mut self, jpeg: Option<JpegOnGpu>) -> DecodePool {
        self.jpeg = jpeg;
        self
    }

    /// How large an image may be.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// For the files of one request, which are decoded a few at a time.
    pub(crate) fn turns(&self) -> Turns {
        let files = files_of_request(self.threads, self.jpeg.as_ref().map(|_| jpeg::BATCH));
        Turns::new(files, steps_at_once(self.threads))
    }

    /// JPEGs that a GPU has decoded.
    pub fn gpu_jpegs(&self) -> u64 {
        self.gpu_jpegs.load(Ordering::Relaxed)
    }

    /// Jobs that were done for nobody: their callers left while they ran.
    pub fn in_vain(&self) -> u64 {
        self.queue.in_vain()
    }

    /// Bytes of pixels being decoded now, and of masks and pictures being written.
    pub fn bytes(&self) -> u64 {
        self.budget.used()
    }

    /// Jobs that wait for a thread or for memory, or run.
    pub fn jobs(&self) -> usize {
        self.in_pool.load(Ordering::Relaxed)
    }

    /// Runs `work` on the pool, as the request's `step`. If the future is dropped before a thread has taken the work, the work is dropped
    /// with all that it owns. Work that has begun is done to its end, and keeps what it owns until then.
    ///
    /// # Errors
    /// If the work panicked: our bug, answered as such.
    pub async fn run<T: Send + 'static>(
        &self,
        step: Step,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, InferError> {
        let (reply, answer) = oneshot::channel();
        let (counted, queue) = (Counted::among(&self.in_pool), Arc::clone(&self.queue));
        let job = move |age| {
            // A panic unwinds to here and drops `reply`.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            drop(counted);
            if let Ok(result) = result
                && reply.send(result).is_err()
            {
                queue.was_in_vain(step, age);
            }
        };
        // There are threads as long as there is the pool.
        let _waiting = self.queue.push(step, Box::new(job));
        answer.await.map_err(|_| InferError::Internal("a worker of the decode pool panicked".into()))
    }

    /// The same for work that takes a turn first, if it may keep a thread for long.
    ///
    /// # Errors
    /// As [`DecodePool::run`].
    pub(crate) async fn run_slow<T: Send + 'static>(
        &self,
        step: Step,
        is_slow: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, InferError> {
        let turn = if is_slow { Some(self.slow_turn(step).await) } else { None };
        let work = move || {
            let _turn = turn;
            work()
        };
        self.run(step, work).await
    }

    /// As [`DecodePool::run`] for the writing of an answer that takes `bytes` of memory, once they are free; `what` names their use in the
    /// error if they never can be.
    ///
    /// # Errors
    /// As [`DecodePool::run`], and 413 for more than the whole budget.
    pub async fn run_within<T: Send + 'static>(
        &self,
        bytes: u64,
        what: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, InferError> {
        let share = self.share(bytes, what).await?;
        let work = move || {
            let _share = share;
            work()
        };
        self.run(Step::Answer, work).await
    }

    /// Decodes one file and stages each of its frames for a model. `step` and `permit` are those of the request that brought the file, and
    /// `turns` are those of its files.
    ///
    /// # Errors
    /// The file is malformed or over a limit.
    pub async fn stage(
        &self,
        step: Step,
        bytes: Bytes,
        model: Arc<Model>,
        permit: Option<&Arc<Permit>>,
        turns: &Turns,
    ) -> Result<Decoded<Frames>, InferError> {
        match self.stage_only(step, bytes, Arc::clone(&model), permit).await? {
            Opened::Only(decoded) => Ok(decoded.into()),
            Opened::Several(image) => self.stage_several(step, image, model, permit, turns).await,
        }
    }

    /// The same for a file of one frame. A file of several is only opened.
    ///
    /// # Errors
    /// As [`DecodePool::stage`].
    pub async fn stage_only(
        &self,
        step: Step,
        bytes: Bytes,
        model: Arc<Model>,
        permit: Option<&Arc<Permit>>,
    ) -> Result<Opened, InferError> {
        if let Some(decoded) = self.on_gpu(&bytes, &model).await {
            return Ok(Opened::Only(decoded));
        }
        let is_slow = Format::sniff(&bytes).is_some_and(Format::is_slow);
        let turn = if is_slow { Some(self.slow_turn(step).await) } else { None };
        let (limits, budget, of) = (self.limits, Arc::clone(&self.budget), Arc::clone(&model));
        let open = move || {
            let input = image_input(&of)?;
            let image = image::open_pages(bytes, &limits, input.pages())?;
            match &input.planes {
                Some(planes) => planes::check_count(&image, planes.len())?,
                None if !image.header().is_single() => return Ok(Begun::Ended(Opened::Several(image))),
                None => {}
            }
            let needed = bytes_of(image.header(), input);
            budget.check(needed, DECODING)?;
            let share = if budget.is_large(needed) { None } else { budget.try_take(needed) };
            match share {
                Some(share) => stage(&image, &of, share).map(|decoded| Begun::Ended(Opened::Only(decoded))),
                None => Ok(Begun::Waits(image, needed, turn)),
            }
        };
        let (image, needed, mut turn) = match self.run(step, charged(permit, open)).await?? {
            Begun::Ended(opened) => return Ok(opened),
            Begun::Waits(image, needed, turn) => (image, needed, turn),
        };
        // Before it has memory: whoever has some needs nothing but a thread.
        if turn.is_none() && self.budget.is_large(needed) {
            turn = Some(self.slow_turn(step).await);
        }
        let share = self.share(needed, DECODING).await?;
        let work = move || {
            let _turn = turn;
            stage(&image, &model, share)
        };
        self.run(step, charged(permit, work)).await?.map(Opened::Only)
    }

    /// Waits until work that may keep a thread for long may be begun. The work is to keep the turn: it goes on when its caller has left.
    async fn slow_turn(&self, step: Step) -> Turn {
        let _counted = Counted::among(&self.in_pool);
        self.slow.take(step).await
    }

    /// Waits for memory.
    async fn share(&self, bytes: u64, what: &'static str) -> Result<Share, InferError> {
        let _counted = Counted::among(&self.in_pool);
        self.budget.take(bytes, what).await
    }
}

impl Drop for DecodePool {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// What a thread has done with a file of one frame that it opened.
enum Begun {
    Ended(Opened),
    /// The image that has no room yet, the bytes that it needs, and its turn if its format is slow.
    Waits(Image<Bytes>, u64, Option<Turn>),
}

fn image_input(model: &Model) -> Result<&ImageInput, InferError> {
    model.image.as_ref().ok_or_else(|| {
        InferError::Internal(format!("an image came to the decoder for {:?}, which takes none", model.name))
    })
}

/// The size that is enough for a model.
fn enough(input: &ImageInput) -> impl Fn(u32, u32) -> Option<(u32, u32)> {
    |width, height| input.preprocess_for(width, height).enough(width, height)
}

/// The memory that an only frame takes, or pages that are taken one by one: the staged form exists beside the frame until it is queued.
fn bytes_of(header: &Header, input: &ImageInput) -> u64 {
    let staged = input.form(usize::from(header.bits / 8_u8), header.width, header.height).bytes;
    let decoded = match &input.planes {
        None => header.decoded_bytes_for(&enough(input)),
        Some(_) => header.decoding_bytes(1, &enough(input)) + planes::work_bytes(header, input, staged),
    };
    decoded + staged as u64
}

/// Decodes and stages the only frame of an image.
fn stage(image: &Image<Bytes>, model: &Model, share: Share) -> Result<Decoded<Staged>, InferError> {
    let (started, input) = (Instant::now(), image_input(model)?);
    let staged = match &input.planes {
        None => stage_frame(&image.frame(0, &enough(input))?, input)?,
        Some(planes) => planes::stage(image, input, planes)?,
    };
    Ok(Decoded { staged, took: started.elapsed(), share })
}

/// Writes a frame into the memory of the batch that it will be part of; a frame that keeps its own size has no batch
/// to share memory with.
fn stage_frame(frame: &Frame, input: &ImageInput) -> Result<Staged, InferError> {
    let (width, height) = frame.source;
    let preprocess = input.preprocess_for(width, height);
    let Form { datatype, shape, bytes, is_pixels, staging } =
        input.form(frame.samples.bytes_each(), width, height);
    let write = |out: &mut [u8]| {
        let placed = SCRATCH.with_borrow_mut(|scratch| match is_pixels {
            true => preprocess.place(frame, scratch, out),
            false => preprocess.apply(frame, scratch, out),
        });
        placed.map_err(|error| InferError::BadRequest(error.to_string()))
    };
    let (placement, data) = match staging {
        Some(staging) => {
            let mut slot = staging.slot();
            (write(&mut slot)?, slot.freeze())
        }
        None => {
            let mut own = vec![0; bytes];
            (write(&mut own)?, own.into())
        }
    };
    let inputs = input.inputs(Tensor { datatype, shape, data }, frame.source);
    Ok(Staged { inputs, placement })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::testing::image_model;
    use std::{pin::Pin, sync::mpsc};

    /// What a request of usual priority has the pool do.
    pub(super) const READ: Step = Step::Request(1);

    type Busy<'a> = Pin<Box<dyn Future<Output = Result<bool, InferError>> + 'a>>;

    /// Work that keeps the only thread of a pool until something is sent, and the sender.
    pub(super) async fn busy(pool: &DecodePool) -> (mpsc::Sender<()>, Busy<'_>) {
        let (release, released) = mpsc::channel();
        let mut work: Busy<'_> = Box::pin(pool.run(READ, move || released.recv().is_ok()));
        assert!(futures_util::poll!(&mut work).is_pending());
        (release, work)
    }

    #[tokio::test]
    async fn work_that_takes_memory_has_its_share_while_it_runs() {
        let limits = Limits { side_max: 8, pixels_max: 64, frames_max: 1 };
        let pool = Arc::new(DecodePool::new(1, 100, limits).expect("one thread"));
        let within = Arc::clone(&pool);
        assert_eq!(pool.run_within(60, "a mask in bytes", move || within.bytes()).await, Ok(4096));
        assert_eq!(pool.bytes(), 0);
        let error = pool.run_within(101, "a mask in bytes", || ()).await.expect_err("refused").to_string();
        assert_eq!(
            error,
            "a mask in bytes is 101, more than the limit of 100; raise it with decode_bytes_max"
        );
    }

    #[tokio::test]
    async fn whoever_waits_for_memory_keeps_no_thread_from_others() {
        let limits = Limits { side_max: 8, pixels_max: 64, frames_max: 1 };
        let pool = DecodePool::new(1, 1 << 20, limits).expect("one thread");
        let all = pool.budget.try_take(1 << 20).expect("nobody has any");
        let mut waits = Box::pin(pool.stage_only(READ, "P5 3 2 255 123456".into(), image_model(), None));
        assert!(futures_util::poll!(&mut waits).is_pending());
        // Behind it on the only thread, which then is free again.
        assert_eq!(pool.run(READ, || 7).await, Ok(7));
        assert!(futures_util::poll!(&mut waits).is_pending());
        assert_eq!((pool.run(READ, || 7).await, pool.jobs()), (Ok(7), 1));
        assert!(futures_util::poll!(&mut waits).is_pending());
        drop(all);
        assert!(matches!(waits.await, Ok(Opened::Only(_))));
        assert_eq!((pool.jobs(), pool.bytes()), (0, 0));
    }

    #[tokio::test]
    async fn an_image_has_a_share_of_the_memory_for_its_frame_and_for_its_staged_form() {
        let limits = Limits { side_max: 100, pixels_max: 10_000, frames_max: 1 };
        let pool = DecodePool::new(1, 1 << 20, limits).expect("one thread");
        let grey = [&b"P5 100 100 255 "[..], &[7; 10_000]].concat();
        let opened = pool.stage_only(READ, grey.into(), image_model(), None).await;
        let Ok(Opened::Only(decoded)) = opened else { panic!("it is one image") };
        // A byte for each pixel, and three channels of bytes for the device to turn into numbers, in whole pages.
        assert_eq!(pool.bytes(), (10_000 + 3 * 10_000_u64).next_multiple_of(4096));
        drop(decoded);
        assert_eq!(pool.bytes(), 0);
    }

    #[tokio::test]
    async fn files_of_slow_formats_wait_for_each_other_and_others_do_not_wait_for_them() {
        let limits = Limits { side_max: 8, pixels_max: 64, frames_max: 1 };
        let pool = DecodePool::new(2, 1 << 20, limits).expect("two threads");
        let stage = |bytes: &'static [u8]| pool.stage_only(READ, bytes.into(), image_model(), None);
        let other_one = pool.slow.take(READ).await;
        let mut waits = Box::pin(stage(b"\xff\x0a"));
        assert!(futures_util::poll!(&mut waits).is_pending());
        assert!(matches!(stage(b"P5 3 2 255 123456").await, Ok(Opened::Only(_))));
        assert!(futures_util::poll!(&mut waits).is_pending());
        assert_eq!(pool.jobs(), 1);
        drop(other_one);
        assert!(matches!(waits.await, Err(InferError::Decode(_))));
        assert_eq!(pool.jobs(), 0);
    }

    /// A file that whoever drops it has to wait with.
    struct Held(mpsc::Sender<()>, mpsc::Receiver<()>);

    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            b"\xff\x0a"
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.send(()).expect("the test waits");
            self.1.recv().expect("the test says when");
        }
    }

    #[tokio::test]
    async fn the_turn_of_a_slow_file_is_kept_by_its_work_when_its_caller_has_left() {
        let limits = Limits { side_max: 32, pixels_max: 1024, frames_max: 1 };
        let pool = DecodePool::new(1, 1 << 20, limits).expect("one thread");
        let ((begins, begun), (release, released)) = (mpsc::channel(), mpsc::channel());
        let file = Bytes::from_owner(Held(begins, released));
        let mut caller = Box::pin(pool.stage_only(READ, file, image_model(), None));
        assert!(futures_util::poll!(&mut caller).is_pending());
        begun.recv().expect("the thread refuses it");
        drop(caller);
        assert_eq!(pool.slow.free(), 0);
        release.send(()).expect("it waits");
        // Behind it on the only thread.
        assert_eq!(pool.run(READ, || 7).await, Ok(7));
        assert_eq!(pool.slow.free(), 1);
    }

    #[tokio::test]
    async fn a_slow_file_waits_for_memory_with_its_turn() {
        let limits = Limits { side_max: 32, pixels_max: 1024, frames_max: 1 };
        let pool = DecodePool::new(1, 16 << 20, limits).expect("one thread");
        let file = include_bytes!("../../tests/fixtures/images/jxl_rgb.jxl");
        let all = pool.budget.try_take(16 << 20).expect("nobody has any");
        let mut waits = Box::pin(pool.stage_only(READ, file.as_slice().into(), image_model(), None));
        assert!(futures_util::poll!(&mut waits).is_pending());
        // Behind it on the only thread: by then it is open.
        assert_eq!(pool.run(READ, || 7).await, Ok(7));
        assert!(futures_util::poll!(&mut waits).is_pending());
        assert_eq!(pool.slow.free(), 0);
        drop(all);
        assert!(matches!(waits.await, Ok(Opened::Only(_))));
        assert_eq!(pool.slow.free(), 1);
    }

    /// A grey image whose share is large for a budget of 1 MiB.
    fn large() -> Bytes {
        [&b"P5 300 300 255 "[..], &[7; 90_000]].concat().into()
    }

    #[tokio::test]
    async fn an_image_that_is_large_when_decoded_takes_a_turn_before_it_takes_memory() {
        let limits = Limits { side_max: 300, pixels_max: 90_000, frames_max: 1 };
        let pool = DecodePool::new(2, 1 << 20, limits).expect("two threads");
        let stage = |bytes: Bytes| Box::pin(pool.stage_only(READ, bytes, image_model(), None));
        let (other_one, (release, busy)) = (pool.slow.take(READ).await, busy(&pool).await);
        let mut waits = [stage(large()), stage(large())];
        for large in &mut waits {
            assert!(futures_util::poll!(large).is_pending());
        }
        // Behind both on the other thread: they have been opened.
        assert!(matches!(stage("P5 3 2 255 123456".into()).await, Ok(Opened::Only(_))));
        for large in &mut waits {
            assert!(futures_util::poll!(large).is_pending());
        }
        assert_eq!((pool.jobs(), pool.bytes()), (3, 0));
        // One has the turn; the other is not even among those that wait for memory.
        drop(other_one);
        let all = pool.budget.try_take(1 << 20).expect("nobody has any");
        for large in &mut waits {
            assert!(futures_util::poll!(large).is_pending());
        }
        drop(all);
        let [first, second] = waits;
        assert!(matches!(first.await, Ok(Opened::Only(_))));
        assert!(matches!(second.await, Ok(Opened::Only(_))));
        release.send(()).expect("it waits");
        assert_eq!((busy.await, pool.slow.free(), pool.bytes()), (Ok(true), 1, 0));
    }

    #[tokio::test]
    async fn what_needs_more_than_all_memory_is_refused_without_a_turn() {
        let limits = Limits { side_max: 300, pixels_max: 90_000, frames_max: 1 };
        let pool = DecodePool::new(2, 1 << 18, limits).expect("two threads");
        let _other_one = pool.slow.take(READ).await;
        let refused = pool.stage_only(READ, large(), image_model(), None).await;
        assert!(matches!(refused, Err(InferError::TooLarge { option: "decode_bytes_max", .. })));
    }

    #[tokio::test]
    async fn work_that_may_take_long_leaves_a_thread_to_others() {
        let limits = Limits { side_max: 8, pixels_max: 64, frames_max: 1 };
        let pool = DecodePool::new(2, 100, limits).expect("two threads");
        let (release, released) = mpsc::channel();
        let long = move || released.recv().is_ok();
        let mut long = Box::pin(pool.run_slow(READ, true, long));
        assert!(futures_util::poll!(&mut long).is_pending());
        let mut waits = Box::pin(pool.run_slow(READ, true, || 7));
        let mut leaves = Box::pin(pool.run_slow(READ, true, || 7));
        assert!(
            futures_util::poll!(&mut waits).is_pending() && futures_util::poll!(&mut leaves).is_pending()
        );
        assert_eq!(pool.run_slow(READ, false, || 8).await, Ok(8));
        assert!(futures_util::poll!(&mut waits).is_pending());
        assert_eq!(pool.jobs(), 3);
        drop(leaves);
        assert_eq!(pool.jobs(), 2);
        release.send(()).expect("it waits");
        assert_eq!((long.await, waits.await), (Ok(true), Ok(7)));
        assert_eq!((pool.jobs(), pool.slow.free()), (0, 1));
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_the_pool_goes_on() {
        let limits = Limits { side_max: 8, pixels_max: 64, frames_max: 1 };
        let pool = DecodePool::new(1, 100, limits).expect("one thread");
        assert!(matches!(pool.run(READ, || panic!("planted")).await, Err::<(), _>(InferError::Internal(_))));
        assert_eq!(pool.run(READ, || 7).await.expect("still runs"), 7);
    }
}
