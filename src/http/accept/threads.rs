//! The threads of the data path, each with a runtime of its own: a connection stays on one core from its first byte to its
//! last.
//!
//! Why not one runtime of several threads: hyper wakes a connection's task once per piece of a body, and every such wake offers
//! the task to a thread that sleeps. A request of 602 kB went back and forth between two cores, with a system call for
//! each move; kept on one, a small request takes 15 to 20 % less time.

use std::{
    io,
    sync::mpsc,
    thread::{self, JoinHandle},
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::oneshot,
};

/// How many turns tasks have before sockets are looked at, if there is always one that can go on. hyper answers up to 16 pipelined requests
/// in a turn, so with tokio's default of 61, those who have just sent something would wait for a thousand of them.
const TURNS: u32 = 8;

/// Running threads. They end, with whatever they still serve, when this is dropped; nobody waits for them, since a handler
/// that is stuck would hold up the exit for ever.
#[derive(Debug)]
pub struct Threads {
    handles: Vec<Handle>,
    _ends: Vec<oneshot::Sender<()>>,
}

impl Threads {
    /// Starts `count` threads, at least one.
    ///
    /// # Errors
    /// If the system refuses one.
    pub fn start(count: usize) -> io::Result<Threads> {
        let (mut handles, mut ends) = (Vec::new(), Vec::new());
        for index in 0..count.max(1) {
            let (end, ended) = oneshot::channel();
            let (handle, _) = start(format!("ocelli-http-{index}"), move |runtime| {
                // An error is the sender's drop: the end.
                let _ = runtime.block_on(ended);
                runtime.shutdown_background();
            })?;
            handles.push(handle);
            ends.push(end);
        }
        Ok(Threads { handles, _ends: ends })
    }

    /// What runs tasks on each of them.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Resolves when each thread has run a task since the call: none of them is stuck.
    pub async fn pulse(handles: &[Handle]) {
        for task in handles.iter().map(|handle| handle.spawn(async {})).collect::<Vec<_>>() {
            // An error is the end of the process.
            let _ = task.await;
        }
    }
}

/// Starts a thread with a runtime of its own, which is made on it. So if the system refuses the thread, no runtime has to be dropped within
/// another's task, which would be a panic.
///
/// # Errors
/// If the system refuses the thread, or what a runtime needs.
pub fn start(
    name: String,
    run: impl FnOnce(Runtime) + Send + 'static,
) -> io::Result<(Handle, JoinHandle<()>)> {
    let (tell, told) = mpsc::channel();
    let thread = thread::Builder::new().name(name).spawn(move || {
        match Builder::new_current_thread().enable_all().event_interval(TURNS).build() {
            Ok(runtime) => {
                // Whoever starts it waits for this.
                let _ = tell.send(Ok(runtime.handle().clone()));
                run(runtime);
            }
            Err(error) => drop(tell.send(Err(error))),
        }
    })?;
    Ok((told.recv().map_err(io::Error::other)??, thread))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_task_stays_on_the_thread_it_was_given_to() {
        let threads = Threads::start(2).unwrap();
        for (index, handle) in threads.handles().iter().enumerate() {
            let names = handle.spawn(async {
                let mut names = Vec::new();
                for _ in 0..100 {
                    names.push(thread::current().name().map(str::to_owned));
                    tokio::task::yield_now().await;
                }
                names
            });
            let expected = Some(format!("ocelli-http-{index}"));
            assert!(names.await.unwrap().iter().all(|name| *name == expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_no_pulse_while_one_thread_is_stuck() {
        let threads = Threads::start(2).unwrap();
        Threads::pulse(threads.handles()).await;
        let (go, wait) = mpsc::channel::<()>();
        let (tell, stuck) = oneshot::channel();
        threads.handles()[1].spawn(async move {
            let _ = tell.send(());
            let _ = wait.recv();
        });
        stuck.await.unwrap();
        let pulse = Threads::pulse(threads.handles());
        tokio::pin!(pulse);
        assert!(tokio::time::timeout(Duration::from_secs(3600), &mut pulse).await.is_err());
        drop(go);
        pulse.await;
    }
}
