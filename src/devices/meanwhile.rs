//! Does something at regular intervals while something else goes on, however long that takes.

use std::{
    convert::Infallible,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

/// Runs `act`, and calls `also` at this interval until `act` ends.
pub(super) fn meanwhile<T>(every: Duration, also: impl Fn() + Send, act: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (_acts, ended) = mpsc::channel::<Infallible>();
        let turns = move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(every) {
                also();
            }
        };
        // If there is no thread for it, `act` runs all the same.
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
        // The thread has ended, and its end of the channel with it.
        heard.1.iter().for_each(drop);
    }
}
