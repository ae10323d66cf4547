//! The bounded CPU pool that turns posted bytes into staged images, away from the async threads.
//!
//! The pool's threads bound its work, and the budget bounds its memory: a decode waits until the pixels that its header announces fit
//! beside those of the decodes that run. It waits on its thread. So whoever holds a share must give it back without waiting for anything,
//! neither for the pool nor for a client that reads.

mod budget;
mod on_gpu;
mod policy;
mod waiting;

use super::admission::{Permit, charged};
use crate::{
    engine::{
        Tensor,
        cuda::jpeg::{self, JpegOnGpu},
    },
    error::InferError,
    image::{self, Frame, Header, Limits, Placement, Scratch},
    models::{Form, ImageInput, Model},
};
pub use budget::Share;
use budget::{Budget, DECODING};
use bytes::Bytes;
use crossbeam_channel::Sender;
use policy::files_of_request;
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
pub(crate) use waiting::Turns;
use waiting::{Counted, Waiting};

/// One frame as the model takes it.
#[derive(Debug)]
pub struct Staged {
    /// The model's inputs for one item. The first is mostly pixels, in a staging slot.
    pub inputs: Vec<Tensor>,
    /// How model pixels map to the posted image's.
    pub placement: Placement,
}

/// The frames of one posted file, and how long they took.
#[derive(Debug)]
pub struct Decoded {
    /// In file order. A multi-page file has several, and each page may have an error of its own.
    pub frames: Vec<Result<Staged, InferError>>,
    /// Decode and resize.
    pub took: Duration,
    /// The memory of the frames until a queue accounts for it: to be dropped once they are queued.
    pub share: Share,
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that decode, and the memory they may use together.
pub struct DecodePool {
    /// Done in order of arrival. A request waits for each. Admission bounds the number of requests, [`Turns`] that of their files here.
    jobs: Sender<Job>,
    threads: usize,
    /// Files of several frames take long: a quarter of the threads, at least one where there are several, is left to others.
    several: Arc<Semaphore>,
    limits: Limits,
    budget: Arc<Budget>,
    /// Jobs that wait or run.
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
        let (jobs, to_do) = crossbeam_channel::unbounded::<Job>();
        for index in 0..threads {
            let to_do = to_do.clone();
            // They end when the pool is dropped, and nothing is left to do.
            let work = move || to_do.into_iter().for_each(|job| job());
            thread::Builder::new().name(format!("ocelli-decode-{index}")).spawn(work)?;
        }
        let (budget, in_pool) = (Arc::new(Budget::new(bytes_max)), Arc::default());
        let several = Arc::new(Semaphore::new((threads - threads.div_ceil(4)).max(1)));
        let gpu_jpegs = AtomicU64::new(0);
        Ok(DecodePool { jobs, threads, several, limits, budget, in_pool, jpeg: None, gpu_jpegs })
    }

    /// The same, with a GPU for JPEGs that the threads have no time for.
    #[must_use]
    pub fn with_gpu(self, jpeg: Option<JpegOnGpu>) -> DecodePool {
        DecodePool { jpeg, ..self }
    }

    /// How large an image may be.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// For the files of one request, which are decoded a few at a time.
    pub(crate) fn turns(&self) -> Turns {
        Turns::new(files_of_request(self.threads, self.jpeg.as_ref().map(|_| jpeg::BATCH)))
    }

    /// JPEGs that a GPU has decoded.
    pub fn gpu_jpegs(&self) -> u64 {
        self.gpu_jpegs.load(Ordering::Relaxed)
    }

    /// Bytes of pixels being decoded now, and of masks and pictures being written.
    pub fn bytes(&self) -> u64 {
        self.budget.used()
    }

    /// Jobs that wait for a thread or run.
    pub fn jobs(&self) -> usize {
        self.in_pool.load(Ordering::Relaxed)
    }

    /// Runs `work` on the pool. If the future is dropped before a thread has taken the work, the work is dropped with all that it owns.
    /// Work that has begun is done to its end, and keeps what it owns until then.
    ///
    /// # Errors
    /// If the work panicked: our bug, answered as such.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, InferError> {
        let (reply, answer) = oneshot::channel();
        let (_waiting, take) = Waiting::new((work, Counted::among(&self.in_pool)));
        let job = move || {
            let Some((work, _counted)) = take() else { return };
            // A panic unwinds to here and drops `reply`.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            if let Ok(result) = result {
                let _ = reply.send(result);
            }
        };
        // There are threads as long as there is the pool. Without them, the job would be dropped with `reply`.
        let _ = self.jobs.send(Box::new(job));
        answer.await.map_err(|_| InferError::Internal("a worker of the decode pool panicked".into()))
    }

    /// The same for work that takes `bytes` of memory, once they are free; `what` names their use in the error if they never can be.
    ///
    /// # Errors
    /// As [`DecodePool::run`], and 413 for more than the whole budget.
    pub async fn run_within<T: Send + 'static>(
        &self,
        bytes: u64,
        what: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, InferError> {
        let budget = Arc::clone(&self.budget);
        self.run(move || {
            let _share = Budget::take(&budget, bytes, what)?;
            Ok(work())
        })
        .await?
    }

    /// Decodes one file and stages each of its frames for a model. `permit` is that of the request that brought the file.
    ///
    /// # Errors
    /// The file is malformed or over a limit.
    pub async fn stage(
        &self,
        bytes: Bytes,
        model: Arc<Model>,
        permit: Option<&Arc<Permit>>,
    ) -> Result<Decoded, InferError> {
        if let Some(decoded) = self.on_gpu(&bytes, &model).await {
            return Ok(decoded);
        }
        match self.stage_single(bytes.clone(), Arc::clone(&model), permit).await? {
            Some(decoded) => Ok(decoded),
            None => self.stage_several(bytes, model, permit).await,
        }
    }

    /// The same for a file of several frames.
    ///
    /// # Errors
    /// As [`DecodePool::stage`].
    pub async fn stage_several(
        &self,
        bytes: Bytes,
        model: Arc<Model>,
        permit: Option<&Arc<Permit>>,
    ) -> Result<Decoded, InferError> {
        // It is never closed. Work that has begun keeps it, even if nobody waits for it any more.
        let one_of_few = Arc::clone(&self.several).acquire_owned().await;
        let (limits, budget) = (self.limits, Arc::clone(&self.budget));
        let work = move || {
            let _one_of_few = one_of_few;
            let header = image::header(&bytes, &limits)?;
            stage(&bytes, &header, &limits, &budget, &model)
        };
        self.run(charged(permit, work)).await?
    }

    /// The same for a file of one frame; `None` for a file of several, of which no pixel is decoded.
    ///
    /// # Errors
    /// As [`DecodePool::stage`].
    pub async fn stage_only(
        &self,
        bytes: Bytes,
        model: Arc<Model>,
        permit: Option<&Arc<Permit>>,
    ) -> Result<Option<Decoded>, InferError> {
        if let Some(decoded) = self.on_gpu(&bytes, &model).await {
            return Ok(Some(decoded));
        }
        self.stage_single(bytes, model, permit).await
    }

    async fn stage_single(
        &self,
        bytes: Bytes,
        model: Arc<Model>,
        permit: Option<&Arc<Permit>>,
    ) -> Result<Option<Decoded>, InferError> {
        let (limits, budget) = (self.limits, Arc::clone(&self.budget));
        let work = move || {
            let header = image::header(&bytes, &limits)?;
            header.is_single().then(|| stage(&bytes, &header, &limits, &budget, &model)).transpose()
        };
        self.run(charged(permit, work)).await?
    }
}

fn stage(
    bytes: &[u8],
    header: &Header,
    limits: &Limits,
    budget: &Arc<Budget>,
    model: &Model,
) -> Result<Decoded, InferError> {
    let started = Instant::now();
    let input = model.image.as_ref().ok_or_else(|| {
        InferError::Internal(format!("an image came to the decoder for {:?}, which takes none", model.name))
    })?;
    let enough = |width, height| input.preprocess_for(width, height).enough(width, height);
    // The staged form exists beside the frames until they are queued.
    let form = |(width, height, bits)| input.form(usize::from(bits / 8_u8), width, height);
    let staged = header.frames().map(|frame| form(frame).bytes as u64);
    let share = Budget::take(budget, header.decoded_bytes_for(&enough) + staged.sum::<u64>(), DECODING)?;
    let frames = image::decode_each(bytes, limits, &enough)?;
    let frames: Vec<_> = frames.into_iter().map(|frame| stage_frame(&frame?, input)).collect();
    // The error of an only frame is that of the file.
    if let [Err(error)] = &frames[..] {
        return Err(error.clone());
    }
    Ok(Decoded { frames, took: started.elapsed(), share })
}

/// Writes a frame into the memory of the batch that it will be part of; a frame that keeps its own size has no batch
/// to share memory with.
fn stage_frame(frame: &Frame, input: &ImageInput) -> Result<Staged, InferError> {
    let (width, height) = frame.source;
    let preprocess = input.preprocess_for(width, height);
    let Form { datatype, shape, bytes, staging } = input.form(frame.samples.bytes_each(), width, height);
    let write = |out: &mut [u8]| {
        let placed = SCRATCH.with_borrow_mut(|scratch| match &input.pixels {
            Some(_) => preprocess.place(frame, scratch, out),
            None => preprocess.apply(frame, scratch, out),
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
    use crate::{
        batch::ModelKey,
        engine::{DataType, staging::Memory},
        models::testing::source,
        tasks::testing::{signature, spec},
    };

    /// Pages of different sizes and depths, as they are for a model that takes images in their own size.
    #[test]
    fn each_page_is_accounted_for_by_its_own_size_and_depth() {
        let mut file = io::Cursor::new(Vec::new());
        let mut writer = tiff::encoder::TiffEncoder::new(&mut file).expect("memory");
        let small = writer.write_image::<tiff::encoder::colortype::Gray8>(4, 3, &[7; 4 * 3]);
        small.expect("a page");
        let large = writer.write_image::<tiff::encoder::colortype::Gray16>(300, 200, &[7; 300 * 200]);
        large.expect("another");
        let file = file.into_inner();

        let mut signature = signature(&[("out", &[-1, 4, -1, -1])]);
        signature.inputs = vec![spec("image", DataType::Fp32, &[-1, 3, -1, -1])];
        let source = source("m", "1", "task = \"segment\"\n[input]\nresize = \"none\"\n");
        let (key, time) = (ModelKey(1), Duration::from_secs(60));
        let model = Model::resolve(key, &source, signature, time, &Memory::Plain).expect("a model");
        let limits = Limits { side_max: 300, pixels_max: 1 << 20, frames_max: 2 };
        let header = image::header(&file, &limits).expect("a TIFF");
        let budget = Arc::new(Budget::new(1 << 30));
        let decoded = stage(&file, &header, &limits, &budget, &model).expect("two pages");
        let staged: Vec<_> =
            decoded.frames.iter().flatten().map(|frame| frame.inputs[0].data.len() as u64).collect();
        assert_eq!(staged, [4 * 3 * 3, 300 * 200 * 3 * 2]);
        assert_eq!(decoded.share.bytes, header.decoded_bytes() + staged.iter().sum::<u64>());
    }

    #[tokio::test]
    async fn work_that_takes_memory_has_its_share_while_it_runs() {
        let limits = Limits { side_max: 8, pixels_max: 64, frames_max: 1 };
        let pool = Arc::new(DecodePool::new(1, 100, limits).expect("one thread"));
        let within = Arc::clone(&pool);
        assert_eq!(pool.run_within(60, "a mask in bytes", move || within.bytes()).await, Ok(60));
        assert_eq!(pool.bytes(), 0);
        let error = pool.run_within(101, "a mask in bytes", || ()).await.expect_err("refused").to_string();
        assert_eq!(
            error,
            "a mask in bytes is 101, more than the limit of 100; raise it with decode_bytes_max"
        );
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_begun() {
        let limits = Limits { side_max: 8, pixels_max: 64, frames_max: 1 };
        let pool = DecodePool::new(1, 100, limits).expect("one thread");
        let (release, released) = std::sync::mpsc::channel::<()>();
        let mut first = Box::pin(pool.run(move || released.recv().is_ok()));
        assert!(futures_util::poll!(&mut first).is_pending());
        let begun = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&begun);
        let mut second = Box::pin(pool.run(move || count.fetch_add(1, Ordering::SeqCst)));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(second);
        release.send(()).expect("it waits");
        assert_eq!(first.await, Ok(true));
        // Behind both, on the one thread that there is.
        assert_eq!(pool.run(|| 7).await, Ok(7));
        assert_eq!(begun.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_file_of_several_frames_waits_while_enough_threads_have_such_files_and_others_do_not() {
        let limits = Limits { side_max: 8, pixels_max: 64, frames_max: 4 };
        let pool = DecodePool::new(4, 1 << 20, limits).expect("threads");
        let model = crate::http::testing::model(Duration::from_secs(60));
        let three = Arc::clone(&pool.several).acquire_many_owned(3).await.expect("it is open");
        assert_eq!(pool.several.available_permits(), 0);
        let text = format!("{:<117}\n", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 1, 1, 1), }");
        let two: Bytes = [b"\x93NUMPY\x01\0\x76\0", text.as_bytes(), &[1, 2]].concat().into();
        let mut waits = Box::pin(pool.stage(two, Arc::clone(&model), None));
        assert!(futures_util::poll!(&mut waits).is_pending());
        let other = pool.stage("no image".into(), model, None).await.expect_err("no image");
        assert!(matches!(other, InferError::Decode(_)), "{other}");
        while pool.jobs() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(futures_util::poll!(&mut waits).is_pending());
        drop(three);
        // The model takes no images, which is found out once it is its turn.
        assert!(matches!(waits.await, Err(InferError::Internal(_))));
        assert_eq!(pool.several.available_permits(), 3);
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_the_pool_goes_on() {
        let limits = Limits { side_max: 8, pixels_max: 64, frames_max: 1 };
        let pool = DecodePool::new(1, 100, limits).expect("one thread");
        assert!(matches!(pool.run(|| panic!("planted")).await, Err::<(), _>(InferError::Internal(_))));
        assert_eq!(pool.run(|| 7).await.expect("still runs"), 7);
    }
}
