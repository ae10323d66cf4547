//! Files of several frames: some threads of the pool decode their frames, in short steps, so that other files come between.

use super::{
    Budget, DECODING, DecodePool, Decoded, Frames, Share, Staged, Step, Turns, enough, image_input,
    policy::steps_at_once, stage_frame,
};
use crate::{
    error::InferError,
    http::admission::{Permit, charged},
    image::Image,
    models::Model,
};
use bytes::Bytes;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a step takes at least, if there are enough frames: small ones are not worth a hand-over each. In tests a step is one frame.
const STEP: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_millis(5) };

/// A file whose frames are being decoded.
struct Pages {
    image: Image<Bytes>,
    model: Arc<Model>,
    share: Share,
    /// The frame that is begun next.
    next: AtomicUsize,
    done: Mutex<Done>,
}

struct Done {
    staged: Vec<Option<Result<Staged, InferError>>>,
    took: Duration,
}

impl DecodePool {
    /// Decodes a file of several frames and stages each for a model. `step` and `permit` are those of the request that brought the file;
    /// the pieces of work of all its files take `turns`.
    ///
    /// # Errors
    /// The file needs more memory than there is.
    pub async fn stage_several(
        &self,
        step: Step,
        image: Image<Bytes>,
        model: Arc<Model>,
        permit: Option<&Arc<Permit>>,
        turns: &Turns,
    ) -> Result<Decoded<Frames>, InferError> {
        let count = image.frame_count();
        let (at_once, bytes) = at_once(&image, &model, steps_at_once(self.threads).min(count), &self.budget)?;
        let share = self.share(bytes, DECODING).await?;
        let staged = (0..count).map(|_| None).collect();
        let done = Mutex::new(Done { staged, took: Duration::ZERO });
        let pages = Arc::new(Pages { image, model, share, next: AtomicUsize::new(0), done });
        let worker = async || {
            loop {
                let of = Arc::clone(&pages);
                let work = async {
                    // It is never closed. A step that has begun keeps it, even if nobody waits for it any more.
                    let one_of_few = Arc::clone(&self.steps).acquire_owned().await;
                    let work = move || {
                        let _one_of_few = one_of_few;
                        of.step()
                    };
                    self.run(step, charged(permit, work)).await
                };
                if !turns.step(work).await? {
                    return Ok::<_, InferError>(());
                }
            }
        };
        try_join_all((0..at_once).map(|_| worker())).await?;
        // The last step has ended, and nobody else holds them.
        let pages = Arc::into_inner(pages);
        let Pages { share, done, .. } =
            pages.ok_or_else(|| InferError::Internal("a step of a file goes on after its end".into()))?;
        let Done { staged, took } = done.into_inner();
        Ok(Decoded { staged: staged.into_iter().flatten().collect(), took, share })
    }
}

impl Pages {
    /// Does the next frames. Returns whether there may be more.
    fn step(&self) -> bool {
        let began = Instant::now();
        let more = loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.image.frame_count() {
                break false;
            }
            let frame = image_input(&self.model).and_then(|input| {
                let frame = self.image.frame(index, &enough(input))?;
                stage_frame(&frame, input)
            });
            self.done.lock().staged[index] = Some(frame);
            if began.elapsed() >= STEP {
                break true;
            }
        };
        self.done.lock().took += began.elapsed();
        more
    }
}

/// How many frames are decoded at once, at most `most`, and the memory that this and what is staged take: as many as the budget has room
/// for.
fn at_once(
    image: &Image<Bytes>,
    model: &Model,
    most: usize,
    budget: &Budget,
) -> Result<(usize, u64), InferError> {
    let (header, input) = (image.header(), image_input(model)?);
    // The staged form of all exists until they are queued.
    let staged = header
        .frames()
        .map(|(width, height, bits)| input.form(usize::from(bits / 8_u8), width, height).bytes as u64);
    let staged: u64 = staged.sum();
    let with = |frames: usize| (frames, staged + header.decoding_bytes(frames, &enough(input)));
    let fits = (1..=most).rev().map(with).find(|(_, bytes)| *bytes <= budget.limit());
    // What does not fit is refused with the least that it would take.
    Ok(fits.unwrap_or_else(|| with(1)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::{
        super::tests::{READ, busy},
        *,
    };
    use crate::{
        http::testing::image_model,
        image::{self, Limits, corpus},
    };
    use futures_util::poll;
    use std::{io::Cursor, sync::mpsc};
    use tiff::encoder::{TiffEncoder, colortype};

    const LIMITS: Limits = Limits { side_max: 300, pixels_max: 1 << 20, frames_max: 8 };

    /// As many small grey images.
    fn array(count: u8) -> Image<Bytes> {
        let samples: Vec<u8> = (0..count).flat_map(|image| [image; 6]).collect();
        let file = corpus::npy("|u1", &format!("({count}, 2, 3, 1)"), &samples);
        image::open(file.into(), &LIMITS).unwrap()
    }

    fn pool(threads: usize, bytes_max: u64) -> (DecodePool, Turns) {
        let pool = DecodePool::new(threads, bytes_max, LIMITS).unwrap();
        let turns = pool.turns();
        (pool, turns)
    }

    fn first_bytes(decoded: &Decoded<Frames>) -> Vec<u8> {
        decoded.staged.iter().map(|frame| frame.as_ref().unwrap().inputs[0].data[0]).collect()
    }

    #[tokio::test]
    async fn all_frames_are_staged_in_order_however_many_threads_do_them() {
        for threads in [1, 3] {
            let (pool, turns) = pool(threads, 1 << 20);
            let decoded = pool.stage_several(READ, array(7), image_model(), None, &turns).await.unwrap();
            assert_eq!(first_bytes(&decoded), [0, 1, 2, 3, 4, 5, 6]);
            drop(decoded);
            assert_eq!((pool.jobs(), pool.bytes()), (0, 0));
        }
    }

    #[tokio::test]
    async fn the_work_of_others_comes_between_the_frames_of_a_file() {
        let (pool, turns) = pool(1, 1 << 20);
        let mut file = Box::pin(pool.stage_several(READ, array(3), image_model(), None, &turns));
        for _frame in 0..3 {
            let (release, first) = busy(&pool).await;
            // Its next frame waits behind that, and other work behind the frame.
            assert!(poll!(&mut file).is_pending());
            let mut other = Box::pin(pool.run(READ, || 7));
            assert!(poll!(&mut other).is_pending());
            release.send(()).unwrap();
            assert_eq!((first.await, other.await), (Ok(true), Ok(7)));
        }
        assert_eq!(first_bytes(&file.await.unwrap()), [0, 1, 2]);
    }

    #[tokio::test]
    async fn files_of_several_frames_leave_threads_to_others() {
        let (pool, turns) = pool(4, 1 << 20);
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let busy = || {
            let released = Arc::clone(&released);
            Box::pin(pool.run(READ, move || released.lock().recv().is_err()))
        };
        // Also if they are those of several requests.
        let other_turns = pool.turns();
        let file = |turns| Box::pin(pool.stage_several(READ, array(8), image_model(), None, turns));
        let (mut busy, mut files) = ([busy(), busy(), busy(), busy()], [file(&turns), file(&other_turns)]);
        for work in &mut busy {
            assert!(poll!(work).is_pending());
        }
        for file in &mut files {
            assert!(poll!(file).is_pending());
        }
        assert_eq!(pool.jobs(), busy.len() + 3);
        drop(release);
        for file in try_join_all(files).await.unwrap() {
            assert_eq!(file.staged.len(), 8);
        }
    }

    #[tokio::test]
    async fn frames_that_nobody_waits_for_any_more_are_not_decoded() {
        let (pool, turns) = pool(1, 1 << 20);
        let (release, first) = busy(&pool).await;
        let mut file = Box::pin(pool.stage_several(READ, array(8), image_model(), None, &turns));
        assert!(poll!(&mut file).is_pending());
        drop(file);
        // Of what the pool has to do, only the other's work is left.
        assert_eq!(pool.jobs(), 1);
        release.send(()).unwrap();
        assert_eq!(first.await, Ok(true));
        assert_eq!(pool.run(READ, || 7).await, Ok(7));
        assert_eq!((pool.jobs(), pool.bytes()), (0, 0));
    }

    /// Pages of different sizes and depths, as they are for a model that takes images in their own size.
    fn two_pages() -> Image<Bytes> {
        let mut file = Cursor::new(Vec::new());
        let mut writer = TiffEncoder::new(&mut file).unwrap();
        writer.write_image::<colortype::Gray8>(4, 3, &[7; 4 * 3]).unwrap();
        writer.write_image::<colortype::Gray16>(300, 200, &[7; 300 * 200]).unwrap();
        image::open(file.into_inner().into(), &LIMITS).unwrap()
    }

    #[tokio::test]
    async fn each_page_is_accounted_for_by_its_own_size_and_depth() {
        let model = image_model();
        let (pool, turns) = pool(2, 1 << 30);
        let decoded = pool.stage_several(READ, two_pages(), Arc::clone(&model), None, &turns).await.unwrap();
        let staged: Vec<_> =
            decoded.staged.iter().flatten().map(|frame| frame.inputs[0].data.len() as u64).collect();
        assert_eq!(staged, [4 * 3 * 3, 300 * 200 * 3 * 2]);
        // Of each page what the file has and what comes out of it.
        let (small, large, staged) = (2 * 4 * 3, 2 * 300 * 200 * 2, staged.iter().sum::<u64>());
        let fits = |limit| at_once(&two_pages(), &model, 2, &Budget::new(limit)).unwrap();
        assert_eq!(fits(1 << 30), (2, staged + small + large));
        assert_eq!(fits(staged + small + large), (2, staged + small + large));
        // With less memory there is one after the other.
        assert_eq!(fits(staged + small + large - 1), (1, staged + large));
        assert_eq!(fits(staged + large - 1), (1, staged + large));
    }

    #[tokio::test]
    async fn a_file_with_too_large_a_frame_is_refused_and_names_the_option() {
        let (pool, turns) = pool(2, 500_000);
        let error = pool.stage_several(READ, two_pages(), image_model(), None, &turns).await.unwrap_err();
        let InferError::TooLarge { got, limit: 500_000, option: "decode_bytes_max", .. } = error else {
            panic!("{error}")
        };
        assert_eq!(got, 4 * 3 * 3 + 300 * 200 * 3 * 2 + 2 * 300 * 200 * 2);
    }
}
