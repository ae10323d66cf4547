//! The command queue for loading and unloading models while the server runs. Callers and the watcher of the model folder send;
//! the loading thread receives.

use super::{Given, Overrides, Repository};
use crate::error::{InferError, RETRY_AFTER};
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        mpsc::{self, RecvError, RecvTimeoutError},
    },
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Callers' commands that have not begun, at most. Each is a waiting request, or the small remainder of one whose caller has
/// gone.
const WAITING_MAX: usize = 1000;

/// Where the result of a [`Command`] goes.
pub type Reply = oneshot::Sender<Result<(), InferError>>;

/// A command to the loading thread.
#[derive(Debug)]
pub enum Command {
    /// Load all versions of a model.
    Load {
        /// Its name.
        name: String,
        /// Which model.
        change: Change,
        /// Who waits; `None` if a change in the folder caused the load.
        reply: Option<Reply>,
    },
    /// Stop serving a model.
    Unload {
        /// Its name.
        name: String,
        /// Who waits.
        reply: Option<Reply>,
    },
    /// End.
    Stop,
}

/// The kinds of load.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The model as it lies in the folder now. If that is what serves, nothing happens, and changes of an earlier load stay.
    Folder,
    /// The model as it lies in the folder now, with changes to its manifest.
    Overrides(Box<Overrides>),
    /// A model sent with the load, in place of the folder's.
    Given(Given),
}

/// The sending end of the command queue. The loading thread ends on [`Command::Stop`], or when this is dropped.
#[derive(Debug)]
pub struct Control {
    sender: Mutex<mpsc::Sender<Queued>>,
    places: Arc<Semaphore>,
    repository: Repository,
}

/// The receiving end: commands in order. Commands whose callers have given up are skipped.
#[derive(Debug)]
pub struct Commands(mpsc::Receiver<Queued>);

/// A command until it begins; `None` afterwards, or once its caller has given up.
type Waiting = Arc<Mutex<Option<Command>>>;

/// A queued command. Dropping this drops the command, whoever still waits for it.
#[derive(Debug)]
struct Queued {
    command: Waiting,
    _place: Option<OwnedSemaphorePermit>,
}

impl Queued {
    fn take(&self) -> Option<Command> {
        self.command.lock().take()
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// A command that nobody waits for.
#[derive(Debug)]
pub struct Said(Waiting);

impl Said {
    /// Whether the command has begun, or never will.
    pub fn is_over(&self) -> bool {
        self.0.lock().is_none()
    }
}

/// A caller's wait for a command. Dropping it drops the command unless that has begun, because a model that was sent takes
/// memory.
struct Waits(Waiting);

impl Drop for Waits {
    fn drop(&mut self) {
        let left = self.0.lock().take();
        // Dropped outside the lock: removing files may take a while.
        drop(left);
    }
}

impl Commands {
    /// The next command.
    ///
    /// # Errors
    /// If no command can come any more.
    pub fn recv(&self) -> Result<Command, RecvError> {
        loop {
            if let Some(command) = self.0.recv()?.take() {
                return Ok(command);
            }
        }
    }

    /// The next command, if one comes within `timeout`.
    ///
    /// # Errors
    /// If none comes in time, or none can come any more.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Command, RecvTimeoutError> {
        loop {
            if let Some(command) = self.0.recv_timeout(timeout)?.take() {
                return Ok(command);
            }
        }
    }
}

impl Command {
    /// The sender for its result, if somebody waits.
    pub fn into_reply(self) -> Option<Reply> {
        match self {
            Command::Load { reply, .. } | Command::Unload { reply, .. } => reply,
            Command::Stop => None,
        }
    }
}

impl Control {
    /// Both ends of the queue.
    pub fn new(repository: Repository) -> (Control, Commands) {
        let (sender, commands) = mpsc::channel();
        let places = Arc::new(Semaphore::new(WAITING_MAX));
        (Control { sender: Mutex::new(sender), places, repository }, Commands(commands))
    }

    /// Queues a command and does not wait for its result. There is no bound here: callers limit themselves by [`Said::is_over`].
    pub fn say(&self, command: Command) -> Said {
        Said(self.queue(command, None))
    }

    fn queue(&self, command: Command, place: Option<OwnedSemaphorePermit>) -> Waiting {
        let command = Arc::new(Mutex::new(Some(command)));
        let queued = Queued { command: Arc::clone(&command), _place: place };
        // If the thread has ended, nothing is loaded; a caller sees that its reply is gone.
        let _ = self.sender.lock().send(queued);
        command
    }

    /// Loads a model. Dropping the future cancels it unless it has begun.
    ///
    /// # Errors
    /// [`InferError::UnknownModel`], [`InferError::LoadFailed`], [`InferError::Draining`], [`InferError::Full`].
    pub async fn load(&self, name: &str, change: Change) -> Result<(), InferError> {
        let name = name.to_owned();
        self.ask(|reply| Command::Load { name, change, reply: Some(reply) }).await
    }

    /// Stops serving a model; requests that have begun are still answered. Dropping the future cancels it unless it has begun.
    ///
    /// # Errors
    /// [`InferError::UnknownModel`], [`InferError::Draining`], [`InferError::Full`].
    pub async fn unload(&self, name: &str) -> Result<(), InferError> {
        let name = name.to_owned();
        self.ask(|reply| Command::Unload { name, reply: Some(reply) }).await
    }

    async fn ask(&self, command: impl FnOnce(Reply) -> Command) -> Result<(), InferError> {
        let full = |_| InferError::Full {
            what: "the queue of loads and unloads",
            limit: WAITING_MAX as u64,
            retry_after: RETRY_AFTER,
        };
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(full)?;
        let (reply, answer) = oneshot::channel();
        let _waits = Waits(self.queue(command(reply), Some(place)));
        let draining = InferError::Draining;
        answer.await.unwrap_or(Err(draining))
    }

    /// Where the models lie.
    pub fn repository(&self) -> &Repository {
        &self.repository
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[tokio::test]
    async fn whoever_asks_a_thread_that_is_gone_is_told() {
        let (control, commands) = Control::new(Repository::new(PathBuf::new(), None));
        drop(commands);
        assert!(matches!(control.unload("m").await, Err(InferError::Draining)));
    }

    #[tokio::test]
    async fn what_waits_goes_with_whoever_waits_for_it_and_is_passed_over() {
        let (control, commands) = Control::new(Repository::new(PathBuf::new(), None));
        let file = Arc::new([7]);
        let bring = |name: &'static str| {
            struct Held(Arc<[u8; 1]>);
            impl AsRef<[u8]> for Held {
                fn as_ref(&self) -> &[u8] {
                    &*self.0
                }
            }
            let bytes = bytes::Bytes::from_owner(Held(Arc::clone(&file)));
            let given = Given::new("{}".to_owned(), vec![("1/model.onnx".to_owned(), bytes)]).expect("fine");
            Box::pin(control.load(name, Change::Given(given)))
        };
        let (mut first, mut second) = (bring("first"), bring("second"));
        let mut third = Box::pin(control.unload("third"));
        assert!(
            futures_util::poll!(&mut first).is_pending() && futures_util::poll!(&mut second).is_pending()
        );
        assert!(futures_util::poll!(&mut third).is_pending());
        let begun = commands.recv().expect("the first");
        assert!(matches!(&begun, Command::Load { name, .. } if name == "first"), "{begun:?}");
        assert_eq!(Arc::strong_count(&file), 3);
        drop((first, second));
        assert_eq!(Arc::strong_count(&file), 2, "what has begun goes on");
        drop(begun);
        let next = commands.recv_timeout(Duration::ZERO).expect("the third");
        assert!(matches!(&next, Command::Unload { name, .. } if name == "third"), "{next:?}");
        let _ = next.into_reply().expect("it waits").send(Ok(()));
        assert_eq!(third.await, Ok(()));
        // Also if the thread ends meanwhile.
        let mut last = bring("last");
        assert!(futures_util::poll!(&mut last).is_pending());
        drop(commands);
        assert_eq!(last.await, Err(InferError::Draining));
        assert_eq!(Arc::strong_count(&file), 1);
    }

    #[tokio::test]
    async fn loads_that_wait_have_a_bound_and_the_watcher_and_the_end_are_always_heard() {
        let (control, commands) = Control::new(Repository::new(PathBuf::new(), None));
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(control.unload("m"))).collect();
        for unload in &mut waiting {
            assert!(futures_util::poll!(unload).is_pending());
        }
        let full = control.load("m", Change::Folder).await.expect_err("it is full");
        assert_eq!(full.to_string(), "the queue of loads and unloads is full (1000); retry after 5 s");
        control.say(Command::Stop);
        drop(commands.recv().expect("the first"));
        let mut next = Box::pin(control.unload("m"));
        assert!(futures_util::poll!(&mut next).is_pending(), "there is a place again");
        drop((waiting, next));
        assert!(matches!(commands.recv(), Ok(Command::Stop)));
    }
}
