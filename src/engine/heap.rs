//! The heap of the C library, in which lies what is not mapped on its own: what was freed of it goes back to the system only when
//! that is asked for.

/// Gives the pages back on which nothing lies any more. Whoever allocates or frees meanwhile waits. Does nothing with a C library
/// other than glibc.
#[allow(unsafe_code, reason = "a call of the C library")]
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: any thread may call it at any time; it takes how many bytes to keep at the end of the heap.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;
    use crate::telemetry::host::resident_bytes;
    use std::time::Instant;

    #[test]
    fn what_a_burst_has_freed_goes_back_to_the_system() {
        const BURST_BYTES: usize = 512 << 20;
        const PIECE_BYTES: usize = 4 << 10;
        let pieces: Vec<Vec<u8>> = (0..BURST_BYTES / PIECE_BYTES).map(|_| vec![1; PIECE_BYTES]).collect();
        // What is left here and there keeps the heap from shrinking at its end.
        let left: Vec<Vec<u8>> = pieces.into_iter().step_by(256).collect();
        let before = resident_bytes().expect("Linux tells it");
        let began = Instant::now();
        give_back();
        let took = began.elapsed();
        let after = resident_bytes().expect("Linux tells it");
        println!("{before} bytes before, {after} after {took:?}");
        // Other tests allocate meanwhile, by far less.
        assert!(before - after > BURST_BYTES as u64 / 2, "{before} bytes before, {after} after");
        assert!(left.iter().all(|piece| piece[PIECE_BYTES - 1] == 1));
    }
}
