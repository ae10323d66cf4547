//! Whether a JPEG is decoded by the pool or on a GPU, and how many files of a request are decoded at once. Pure.

/// How busy both are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    /// Threads of the pool.
    pub(super) threads: usize,
    /// Jobs that wait for them or run on them.
    pub(super) in_pool: usize,
    /// Files that wait for the GPU or are being decoded there; `None` without a GPU for this.
    pub(super) on_gpu: Option<usize>,
    /// Files that it decodes at once.
    pub(super) batch: usize,
}

/// Batches that may wait for the GPU: one that is decoded and one that gathers meanwhile.
const BATCHES_WAITING_MAX: usize = 2;

/// The pool is the bottleneck when each of its threads has another image waiting behind its current one: a newcomer would wait for longer
/// than an image takes. Then the GPU takes it, unless the GPU is full as well.
pub(super) fn is_for_gpu(load: &Load) -> bool {
    let waits = load.in_pool >= 2 * load.threads;
    waits && load.on_gpu.is_some_and(|waiting| waiting < BATCHES_WAITING_MAX * load.batch)
}

/// The most files of one request that may be decoded at once or wait for that: all threads are busy with it, and have another file each
/// behind the current one; with a GPU, that is full as well. More would only have the files of other requests wait for longer.
pub(super) fn files_of_request(threads: usize, gpu_batch: Option<usize>) -> usize {
    2 * threads + gpu_batch.map_or(0, |batch| BATCHES_WAITING_MAX * batch)
}

/// The most steps of files of several frames that the threads do at once.
pub(super) fn steps_at_once(threads: usize) -> usize {
    (threads - threads.div_ceil(4)).max(1)
}

/// The most files of slow formats that are decoded at once: half of the threads are left to others, at least one where there are several.
pub(super) fn slow_at_once(threads: usize) -> usize {
    (threads / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(in_pool: usize, on_gpu: Option<usize>) -> bool {
        is_for_gpu(&Load { threads: 4, in_pool, on_gpu, batch: 8 })
    }

    #[test]
    fn a_pool_that_keeps_up_decodes_everything() {
        for in_pool in 0..8 {
            assert!(!check(in_pool, Some(0)), "{in_pool}");
        }
    }

    #[test]
    fn the_gpu_helps_a_pool_that_has_more_to_do_than_its_threads_are_at() {
        assert!(check(8, Some(0)));
        assert!(check(1000, Some(15)));
    }

    #[test]
    fn a_gpu_with_its_hands_full_gets_no_more() {
        assert!(!check(1000, Some(16)));
    }

    #[test]
    fn one_request_can_fill_the_pool_and_the_gpu() {
        assert_eq!(files_of_request(4, None), 8);
        let waiting = files_of_request(4, Some(8)) - 8;
        assert!(check(8, Some(waiting - 1)));
        assert!(!check(8, Some(waiting)));
    }

    #[test]
    fn files_of_several_frames_leave_a_quarter_of_the_threads_to_others() {
        let left = [1, 2, 3, 4, 8, 9, 16].map(|threads| threads - steps_at_once(threads));
        assert_eq!(left, [0, 1, 1, 1, 2, 3, 4]);
    }

    #[test]
    fn files_of_slow_formats_leave_half_of_the_threads_to_others() {
        let left = [1, 2, 3, 4, 9].map(|threads| threads - slow_at_once(threads));
        assert_eq!(left, [0, 1, 2, 2, 5]);
    }

    #[test]
    fn without_a_gpu_the_pool_does_it_all() {
        assert!(!check(1000, None));
    }
}
