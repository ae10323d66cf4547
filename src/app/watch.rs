//! The watcher of the model folder (`repository_mode = "watch"`): once a change has come to rest, what is new or different
//! is loaded, and what is gone is unloaded.
//!
//! The system tells of changes, but not of all: not of those that another machine makes on a shared volume, nor of a folder or a
//! link that another has taken the place of. So the folder is looked at every few seconds as well, and watched anew where it is
//! another.

use super::{AppError, failed};
use crate::models::{
    Command, Control, Overrides,
    changes::{Change, Look},
};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use parking_lot::Mutex;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{
        Arc, Weak,
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

/// A change has come to rest when nothing has happened for so long,
const REST: Duration = Duration::from_millis(500);
/// or when things have been happening for so long.
const UNREST_MAX: Duration = Duration::from_secs(10);
/// How long changes may go unseen of which the system does not tell.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The running watcher; it ends when this is dropped.
pub(super) struct Watch {
    _watcher: Arc<Mutex<RecommendedWatcher>>,
}

impl Watch {
    /// Watches the folder of `control` from now on. `first` is how it looked when its models were last read.
    pub(super) fn start(control: Arc<Control>, first: Look) -> Result<Watch, AppError> {
        let (happened, happens) = mpsc::channel();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading the folder, as we do, changes nothing.
            if event.is_ok_and(|event| event.kind.is_access()) {
                return;
            }
            // The other end is gone with the server.
            let _ = happened.send(());
        })
        .map_err(failed("cannot watch the model folder"))?;
        let folder = control.folder().to_owned();
        let which = identity(&folder);
        watcher
            .watch(&folder, RecursiveMode::Recursive)
            .map_err(failed(format!("cannot watch {}", folder.display())))?;
        let watcher = Arc::new(Mutex::new(watcher));
        let follower = Follower {
            control,
            happens,
            seen: first,
            unread: false,
            watcher: Arc::downgrade(&watcher),
            which,
        };
        std::thread::Builder::new()
            .name("ocelli-watch".into())
            .spawn(move || follower.follow())
            .map_err(failed("cannot start the watching thread"))?;
        Ok(Watch { _watcher: watcher })
    }
}

struct Follower {
    control: Arc<Control>,
    happens: mpsc::Receiver<()>,
    seen: Look,
    /// The folder could not be read when it was last looked at.
    unread: bool,
    watcher: Weak<Mutex<RecommendedWatcher>>,
    /// Which folder is watched, or was tried to be.
    which: Option<(u64, u64)>,
}

impl Follower {
    /// Until the watcher is gone.
    fn follow(mut self) {
        // What happened between the first look and the watcher's start would be missed.
        self.say(Look::at(self.control.folder()));
        loop {
            match self.happens.recv_timeout(LOOK_EVERY) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) if self.is_other() => {}
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = self.settled();
            self.say(now);
        }
    }

    /// Whether there is anything to do of which the system has told nothing.
    fn is_other(&mut self) -> bool {
        let folder = self.control.folder();
        let which = identity(folder);
        if which.is_some()
            && which != self.which
            && let Some(watcher) = self.watcher.upgrade()
        {
            let mut watcher = watcher.lock();
            // What is gone may be watched no more already.
            let _ = watcher.unwatch(folder);
            if let Err(error) = watcher.watch(folder, RecursiveMode::Recursive) {
                let folder = folder.display();
                tracing::warn!(%folder, %error, "the model folder cannot be watched: it is looked at");
            }
            // Tried and told once for each folder: looking finds what changes in any.
            self.which = which;
        }
        let now = Look::at(folder);
        (now.unread().is_some() && !self.unread) || !self.seen.changes(&now).is_empty()
    }

    /// The folder when nothing happens any more, by what the system tells and by what it looks like.
    fn settled(&self) -> Look {
        let began = Instant::now();
        let mut last = Look::at(self.control.folder());
        loop {
            let quiet = self.happens.recv_timeout(REST).is_err();
            let now = Look::at(self.control.folder());
            if quiet && now == last || began.elapsed() >= UNREST_MAX {
                return now;
            }
            last = now;
            self.happens.try_iter().for_each(drop);
        }
    }

    /// Says what changed.
    fn say(&mut self, now: Look) {
        let folder = self.control.folder().display();
        if let Some(error) = now.unread().filter(|_| !self.unread) {
            tracing::warn!(%folder, error, "the model folder cannot be read: what is served stays");
        }
        self.unread = now.unread().is_some();
        for change in self.seen.changes(&now) {
            tracing::info!(?change, "the model folder changed");
            self.control.say(match change {
                Change::Load(name) => {
                    Command::Load { name, overrides: Box::new(Overrides::default()), reply: None }
                }
                Change::Unload(name) => Command::Unload { name, reply: None },
            });
        }
        self.seen = now.filled_from(std::mem::take(&mut self.seen));
    }
}

/// Which folder this is: another may have its name by now.
fn identity(folder: &Path) -> Option<(u64, u64)> {
    fs::metadata(folder).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}
