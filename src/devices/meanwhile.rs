//! Has something done every so often while something else goes on, however long that takes.

use std::{
    convert::Infallible,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

/// Acts, and does something else as well every so often until that ends.
pub(super) fn meanwhile<T>(every: Duration, also: impl Fn() + Send, act: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (_acts, ended) = mpsc::channel::<Infallible>();
        let turns = move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(every) {
                also();
            }
        };
        // Without a thread it acts all the same.
        let _ = thread::Builder::new().name("ocelli-turns".into()).spawn_scoped(scope, turns);
        act()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_done_again_and_again_until_the_other_ends() {
        let (told, tells) = mpsc::channel();
        let tell = move || told.send(()).unwrap_or_default();
        let heard = meanwhile(Duration::from_millis(1), tell, || {
            let heard = [tells.recv(), tells.recv()];
            (heard, tells)
        });
        assert_eq!(heard.0, [Ok(()), Ok(())]);
        // The thread has ended, and what it has to tell with.
        assert!(heard.1.iter().all(|()| true));
    }
}
