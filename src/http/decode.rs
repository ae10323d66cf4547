//! The bounded CPU pool that turns posted bytes into staged model input, away from the async threads.
//!
//! The pool's threads are its bound in work, the budget its bound in memory: a decode waits until the pixels that its
//! header announces fit beside those of the decodes that run.

use crate::{
    engine::{self, Tensor},
    error::InferError,
    image::{self, Frame, Limits, Placement, Scratch},
    models::{ImageInput, Model},
};
use bytes::Bytes;
use std::{
    cell::RefCell,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// One frame as the model takes it.
#[derive(Debug)]
pub struct Staged {
    /// The input tensor of one item, in a staging slot.
    pub tensor: Tensor,
    /// How model pixels map to the posted image's.
    pub placement: Placement,
}

/// The frames of one posted file, and how long they took.
#[derive(Debug)]
pub struct Decoded {
    /// In file order; more than one for multi-page files.
    pub frames: Vec<Staged>,
    /// Decode, resize and normalise.
    pub took: Duration,
}

/// Threads that decode, and the memory they may use together.
pub struct DecodePool {
    pool: rayon::ThreadPool,
    limits: Limits,
    budget: Arc<Budget>,
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
    pub fn new(
        threads: usize,
        bytes_max: u64,
        limits: Limits,
    ) -> Result<DecodePool, rayon::ThreadPoolBuildError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("ocelli-decode-{index}"))
            .build()?;
        Ok(DecodePool { pool, limits, budget: Arc::new(Budget::new(bytes_max)) })
    }

    /// Bytes of pixels being decoded now.
    pub fn bytes(&self) -> u64 {
        self.budget.used()
    }

    /// Runs `work` on the pool. Dropping the future before a thread took it skips the work.
    ///
    /// # Errors
    /// If the work panicked: our bug, answered as such.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, InferError> {
        let (reply, answer) = oneshot::channel();
        self.pool.spawn_fifo(move || {
            if !reply.is_closed() {
                // A panic unwinds to here and drops `reply`.
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                if let Ok(result) = result {
                    let _ = reply.send(result);
                }
            }
        });
        answer.await.map_err(|_| InferError::Internal("a worker of the decode pool panicked".into()))
    }

    /// Decodes one file and stages each of its frames for a model.
    ///
    /// # Errors
    /// What is wrong with the file, or that it is over a limit.
    pub async fn stage(&self, bytes: Bytes, model: Arc<Model>) -> Result<Decoded, InferError> {
        let (limits, budget) = (self.limits, Arc::clone(&self.budget));
        self.run(move || stage(&bytes, &limits, &budget, &model)).await?
    }
}

fn stage(bytes: &[u8], limits: &Limits, budget: &Budget, model: &Model) -> Result<Decoded, InferError> {
    let started = Instant::now();
    let input = model.image.as_ref().ok_or_else(|| {
        InferError::Internal(format!("an image came to the decoder for {:?}, which takes none", model.name))
    })?;
    let header = image::header(bytes, limits)?;
    let enough = |width, height| input.preprocess_for(width, height).enough(width, height);
    let _share = budget.take(header.decoded_bytes_for(&enough))?;
    let frames = image::decode(bytes, limits, &enough)?;
    let frames = frames.iter().map(|frame| stage_frame(frame, input)).collect::<Result<_, _>>()?;
    Ok(Decoded { frames, took: started.elapsed() })
}

/// Writes a frame into the memory of the batch that it will be part of; a frame that keeps its own size has no batch
/// to share memory with.
fn stage_frame(frame: &Frame, input: &ImageInput) -> Result<Staged, InferError> {
    let (width, height) = frame.source;
    let preprocess = input.preprocess_for(width, height);
    let write = |out: &mut [u8]| {
        SCRATCH
            .with_borrow_mut(|scratch| preprocess.apply(frame, scratch, out))
            .map_err(|error| InferError::BadRequest(error.to_string()))
    };
    let (placement, data) = match &input.staging {
        Some(staging) => {
            let mut slot = staging.slot();
            (write(&mut slot)?, slot.freeze())
        }
        None => {
            let mut own = vec![0; preprocess.out_bytes()];
            (write(&mut own)?, own.into())
        }
    };
    let datatype = engine::DataType::from_name(preprocess.datatype.name())
        .expect("both name types as the Open Inference Protocol does");
    Ok(Staged { tensor: Tensor { datatype, shape: input.item_shape(width, height), data }, placement })
}

/// A bound on bytes that are in use at once. Whoever does not fit yet waits on its own (pool) thread.
struct Budget {
    limit: u64,
    used: Mutex<u64>,
    freed: Condvar,
}

impl Budget {
    fn new(limit: u64) -> Budget {
        Budget { limit, used: Mutex::new(0), freed: Condvar::new() }
    }

    fn used(&self) -> u64 {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: u64) -> Result<Share<'_>, InferError> {
        if bytes > self.limit {
            return Err(InferError::TooLarge {
                what: "decoded image in bytes",
                got: bytes,
                limit: self.limit,
                option: "decode_bytes_max",
            });
        }
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |used: &mut u64| *used + bytes > self.limit;
        *self.freed.wait_while(used, fits).unwrap_or_else(PoisonError::into_inner) += bytes;
        Ok(Share { budget: self, bytes })
    }
}

struct Share<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        *self.budget.used.lock().unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.budget.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_larger_than_the_whole_budget_is_refused_and_names_the_option() {
        let budget = Budget::new(100);
        let error = budget.take(101).err().expect("refused");
        assert!(error.to_string().contains("decode_bytes_max"), "{error}");
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_decode_waits_for_its_share_and_gives_it_back() {
        let budget = Budget::new(100);
        let first = budget.take(80).expect("fits");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| budget.take(80).map(|share| share.bytes));
            drop(first);
            assert_eq!(second.join().expect("no panic").expect("fits now"), 80);
        });
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_the_pool_goes_on() {
        let limits = Limits { side_max: 8, pixels_max: 64, frames_max: 1 };
        let pool = DecodePool::new(1, 100, limits).expect("one thread");
        assert!(matches!(pool.run(|| panic!("planted")).await, Err::<(), _>(InferError::Internal(_))));
        assert_eq!(pool.run(|| 7).await.expect("still runs"), 7);
    }
}
