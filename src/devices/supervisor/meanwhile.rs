//! Has something told while something else goes on, however long that takes.

use std::{
    convert::Infallible,
    sync::mpsc::{self, RecvTimeoutError},
    time::Duration,
};

/// Acts, and tells every so often that it still does.
pub(super) fn meanwhile<T>(every: Duration, tell: impl Fn() + Send + 'static, act: impl FnOnce() -> T) -> T {
    let (_acts, ended) = mpsc::channel::<Infallible>();
    let telling = move || {
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(every) {
            tell();
        }
    };
    // Without a thread it is not told, and done all the same.
    let _ = std::thread::Builder::new().name("ocelli-tell".into()).spawn(telling);
    act()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_told_again_and_again_until_it_ends() {
        let (told, tells) = mpsc::channel();
        let tell = move || told.send(()).unwrap_or_default();
        let heard = meanwhile(Duration::from_millis(1), tell, || {
            let heard = [tells.recv(), tells.recv()];
            (heard, tells)
        });
        assert_eq!(heard.0, [Ok(()), Ok(())]);
        // The thread ends, and what it has to tell with.
        assert!(heard.1.iter().all(|()| true));
    }
}
