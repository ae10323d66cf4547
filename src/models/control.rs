//! Asking for models to be loaded and unloaded while the server runs: what callers and the watcher of the folder say, and
//! what the thread that loads models hears.

use super::{Given, Manifest, manifest::Waiting};
use crate::error::InferError;
use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError, mpsc},
    time::Duration,
};
use tokio::sync::oneshot;

/// The end of a [`Command`].
pub type Reply = oneshot::Sender<Result<(), InferError>>;

/// What the loading thread is told.
#[derive(Debug)]
pub enum Command {
    /// Load all versions of a model anew, as they lie in the folder now.
    Load {
        /// Its name.
        name: String,
        /// What to change in its manifest.
        overrides: Box<Overrides>,
        /// Who waits; nobody where the folder changed by itself.
        reply: Option<Reply>,
    },
    /// Load a model from what a caller sent, in the place of what lies in the folder.
    Bring {
        /// Its name.
        name: String,
        /// Its files and configuration.
        given: Box<Given>,
        /// Who waits.
        reply: Reply,
    },
    /// Serve a model no more.
    Unload {
        /// Its name.
        name: String,
        /// Who waits.
        reply: Option<Reply>,
    },
    /// End.
    Stop,
}

/// What a caller may change in a manifest for as long as the model stays loaded. What is open stays as the manifest says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overrides {
    /// Items of the largest batch, 1 to 1024.
    pub items_max: Option<usize>,
    /// Sizes that batches are padded to, ascending.
    pub sizes: Option<Vec<usize>>,
    /// How long a batch may wait for company, at most 10 s.
    pub wait_max: Option<Duration>,
    /// Instances per device, 1 to 64.
    pub instances: Option<usize>,
    /// Priority of requests that do not say, from 0.
    pub priority: Option<u8>,
    /// How requests wait.
    pub queue: Option<Waiting>,
}

/// What a load asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The folder's model, with changes.
    Overrides(Overrides),
    /// A model that came with it.
    Given(Given),
}

impl Overrides {
    /// Changes a manifest.
    pub fn apply(&self, manifest: &mut Manifest) {
        let Overrides { items_max, sizes, wait_max, instances, priority, queue } = self;
        if let Some(largest) = items_max {
            manifest.batch.items_max = Some(*largest);
            manifest.batch.sizes = None;
        }
        if let Some(sizes) = sizes {
            let mut sizes = sizes.clone();
            sizes.extend(items_max.filter(|largest| sizes.last() < Some(largest)));
            manifest.batch.sizes = Some(sizes);
        }
        manifest.batch.wait_max = wait_max.unwrap_or(manifest.batch.wait_max);
        manifest.placement.instances = instances.unwrap_or(manifest.placement.instances);
        if let Some(queue) = queue {
            manifest.queue = queue.clone();
        }
        manifest.priority = priority.unwrap_or(manifest.priority);
    }
}

/// A way to the loading thread. It ends when told to, or when all of these are gone.
#[derive(Debug)]
pub struct Control {
    sender: Mutex<mpsc::Sender<Command>>,
    folder: PathBuf,
}

impl Control {
    /// A way, and its end. `folder` is where the models lie.
    pub fn new(folder: PathBuf) -> (Control, mpsc::Receiver<Command>) {
        let (sender, commands) = mpsc::channel();
        (Control { sender: Mutex::new(sender), folder }, commands)
    }

    /// Says something and does not wait.
    pub fn say(&self, command: Command) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that has ended loads nothing; whoever waits for a reply is told by its absence.
        let _ = sender.send(command);
    }

    /// Loads a model as it is asked for. Dropping the future does not stop it.
    ///
    /// # Errors
    /// As [`load`](Control::load).
    pub async fn change(&self, name: &str, change: Change) -> Result<(), InferError> {
        match change {
            Change::Overrides(overrides) => self.load(name, overrides).await,
            Change::Given(given) => {
                let (given, name) = (Box::new(given), name.to_owned());
                self.ask(|reply| Command::Bring { name, given, reply }).await
            }
        }
    }

    /// Loads a model anew. Dropping the future does not stop it.
    ///
    /// # Errors
    /// [`InferError::UnknownModel`], [`InferError::LoadFailed`], [`InferError::Draining`].
    pub async fn load(&self, name: &str, overrides: Overrides) -> Result<(), InferError> {
        let (overrides, name) = (Box::new(overrides), name.to_owned());
        self.ask(|reply| Command::Load { name, overrides, reply: Some(reply) }).await
    }

    /// Serves a model no more; requests that have begun are still answered.
    ///
    /// # Errors
    /// [`InferError::UnknownModel`], [`InferError::Draining`].
    pub async fn unload(&self, name: &str) -> Result<(), InferError> {
        let name = name.to_owned();
        self.ask(|reply| Command::Unload { name, reply: Some(reply) }).await
    }

    async fn ask(&self, command: impl FnOnce(Reply) -> Command) -> Result<(), InferError> {
        let (reply, answer) = oneshot::channel();
        self.say(command(reply));
        let draining = InferError::Draining { retry_after: Duration::from_secs(1) };
        answer.await.unwrap_or(Err(draining))
    }

    /// What lies in the folder.
    pub fn folder(&self) -> &std::path::Path {
        &self.folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_change_what_they_name_and_leave_the_rest() {
        let manifest =
            || Manifest::parse("priority = 3\n[batch]\nsizes = [1, 4]\nwait_ms_max = 7").expect("fine");
        let changed = |overrides: Overrides| {
            let mut manifest = manifest();
            overrides.apply(&mut manifest);
            manifest
        };
        assert_eq!(changed(Overrides::default()), manifest());
        let larger = changed(Overrides { items_max: Some(12), ..Overrides::default() });
        assert_eq!((larger.batch.items_max, larger.batch.sizes), (Some(12), None));
        assert_eq!((larger.priority, larger.batch.wait_max), (3, Duration::from_millis(7)));
        let sizes = Some(vec![2, 8]);
        let both =
            changed(Overrides { items_max: Some(16), sizes, instances: Some(2), ..Overrides::default() });
        assert_eq!((both.batch.sizes, both.placement.instances), (Some(vec![2, 8, 16]), 2));
    }

    #[tokio::test]
    async fn whoever_asks_a_thread_that_is_gone_is_told() {
        let (control, commands) = Control::new(PathBuf::new());
        drop(commands);
        assert!(matches!(control.unload("m").await, Err(InferError::Draining { .. })));
    }
}
