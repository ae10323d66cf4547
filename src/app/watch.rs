//! The watcher of the model folder (`repository_mode = "watch"`): once a change has come to rest, what is new or different
//! is loaded, and what is gone is unloaded.
//!
//! The system tells of changes, but not of all: not of those that another machine makes on a shared volume, nor of a folder or a
//! link that another has taken the place of; nor of any where its means are used up. So the folder is looked at every few seconds as
//! well, and watched anew where it is another.

use super::{AppError, allowed_threads::not_started};
use crate::models::{
    Command, Control,
    changes::{Change, Look},
    control::Said,
};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
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
/// After a look nothing is looked at for so many times as long as it took: a file that is written to without end, as logs are, must not
/// cost a core where there are thousands of models.
const LOOK_REST: u32 = 20;

/// The running watcher; it ends when this is dropped.
pub(super) struct Watch {
    /// None where the system has none to give.
    _watcher: Option<Arc<Mutex<RecommendedWatcher>>>,
    /// Keeps it looking without one.
    _happened: mpsc::SyncSender<()>,
}

impl Watch {
    /// Watches the folder of `control` from now on. `first` is how it looked when its models were last read.
    pub(super) fn start(control: Arc<Control>, first: Look) -> Result<Watch, AppError> {
        Watch::start_with(control, first, Look::at, |happened| {
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                // Reading the folder, as we do, changes nothing.
                if event.is_ok_and(|event| event.kind.is_access()) {
                    return;
                }
                // One that has not been heard yet says as much; and the other end is gone with the server.
                let _ = happened.try_send(());
            })
        })
    }

    fn start_with(
        control: Arc<Control>,
        first: Look,
        look_at: fn(&Path) -> Look,
        watcher: impl FnOnce(mpsc::SyncSender<()>) -> notify::Result<RecommendedWatcher>,
    ) -> Result<Watch, AppError> {
        let (happened, happens) = mpsc::sync_channel(1);
        let folder = control.folder();
        let which = identity(folder);
        let watcher = match watcher(happened.clone()) {
            Ok(mut watcher) => {
                if let Err(error) = watcher.watch(folder, RecursiveMode::Recursive) {
                    not_watched(folder, &error);
                }
                Some(Arc::new(Mutex::new(watcher)))
            }
            Err(error) => {
                not_watched(folder, &error);
                None
            }
        };
        let follower = Follower {
            control,
            happens,
            seen: first,
            said: HashMap::new(),
            unread: false,
            watcher: watcher.as_ref().map_or_else(Weak::new, Arc::downgrade),
            which,
            look_at,
            rest: Duration::ZERO,
            looked: Instant::now(),
        };
        std::thread::Builder::new()
            .name("ocelli-watch".into())
            .spawn(move || follower.follow())
            .map_err(not_started("the watching thread"))?;
        Ok(Watch { _watcher: watcher, _happened: happened })
    }
}

/// The system tells of nothing there, or not of all: what its limits are called by which that is mostly so.
fn not_watched(folder: &Path, error: &notify::Error) {
    let (folder, every) = (folder.display(), LOOK_EVERY);
    tracing::warn!(
        %folder,
        %error,
        "the model folder cannot be watched: it is looked at every {every:?}; the limits are fs.inotify.max_user_instances and \
         fs.inotify.max_user_watches"
    );
}

struct Follower {
    control: Arc<Control>,
    happens: mpsc::Receiver<()>,
    seen: Look,
    /// What was said of each model, as long as it has not begun: there is one of each at most, however long the loader takes.
    said: HashMap<String, Said>,
    /// The folder could not be read when it was last looked at.
    unread: bool,
    watcher: Weak<Mutex<RecommendedWatcher>>,
    /// Which folder is watched, or was tried to be.
    which: Option<(u64, u64)>,
    look_at: fn(&Path) -> Look,
    /// How long nothing is looked at after the last look.
    rest: Duration,
    /// When that ended.
    looked: Instant,
}

impl Follower {
    /// Until the watcher is gone.
    fn follow(mut self) {
        // What happened between the first look and the watcher's start would be missed.
        let now = self.look();
        self.say(now);
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
                not_watched(folder, &error);
            }
            // Tried and told once for each folder: looking finds what changes in any.
            self.which = which;
        }
        let now = self.look();
        (now.unread().is_some() && !self.unread) || !self.seen.changes(&now).is_empty()
    }

    /// The folder when nothing happens any more, by what the system tells and by what it looks like.
    fn settled(&mut self) -> Look {
        let began = Instant::now();
        let mut last = self.look();
        loop {
            let quiet = self.happens.recv_timeout(REST.max(self.rest)).is_err();
            let now = self.look();
            if quiet && now == last || began.elapsed() >= UNREST_MAX {
                return now;
            }
            last = now;
        }
    }

    /// The folder now, or once the last look has been rested from: what happens until then is seen with it.
    fn look(&mut self) -> Look {
        let rested = self.looked + self.rest;
        // Nothing is left to be told once the watcher is gone.
        while self.happens.recv_timeout(rested.saturating_duration_since(Instant::now())).is_ok() {}
        let began = Instant::now();
        let now = (self.look_at)(self.control.folder()).after(&self.seen);
        self.looked = Instant::now();
        self.rest = ((self.looked - began) * LOOK_REST).min(UNREST_MAX);
        now
    }

    /// Says what changed.
    fn say(&mut self, mut now: Look) {
        let folder = self.control.folder().display();
        if let Some(error) = now.unread().filter(|_| !self.unread) {
            tracing::warn!(%folder, error, "the model folder cannot be read: what is served stays");
        }
        self.unread = now.unread().is_some();
        self.said.retain(|_, said| !said.is_over());
        for change in self.seen.changes(&now) {
            let name = change.name();
            if self.said.contains_key(name) {
                now = now.with_one_from(name, &self.seen);
                continue;
            }
            tracing::info!(?change, "the model folder changed");
            let name = name.to_owned();
            let said = self.control.say(match &change {
                Change::Load(_) => {
                    Command::Load { name: name.clone(), overrides: Box::default(), reply: None }
                }
                Change::Unload(_) => Command::Unload { name: name.clone(), reply: None },
            });
            self.said.insert(name, said);
        }
        self.seen = now.filled_from(std::mem::take(&mut self.seen));
    }
}

/// Which folder this is: another may have its name by now.
fn identity(folder: &Path) -> Option<(u64, u64)> {
    fs::metadata(folder).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn where_the_system_can_watch_nothing_the_folder_is_looked_at() {
        let folder = tempfile::tempdir().expect("a folder");
        let (control, commands) = Control::new(folder.path().to_owned());
        let first = Look::at(folder.path());
        let used_up = || notify::Error::new(notify::ErrorKind::MaxFilesWatch);
        let watch =
            Watch::start_with(Arc::new(control), first, Look::at, |_| Err(used_up())).expect("it looks");
        fs::create_dir(folder.path().join("m")).expect("a folder");
        fs::write(folder.path().join("m/model.onnx"), "a model").expect("a file");
        let told = commands.recv_timeout(Duration::from_secs(60));
        assert!(matches!(&told, Ok(Command::Load { name, .. }) if name == "m"), "{told:?}");
        // And that it is gone again, for which the first look was too early.
        fs::remove_dir_all(folder.path().join("m")).expect("the folder");
        let told = commands.recv_timeout(Duration::from_secs(60));
        assert!(matches!(&told, Ok(Command::Unload { name, .. }) if name == "m"), "{told:?}");
        drop(watch);
        assert_eq!(
            commands.recv().expect_err("its thread ends").to_string(),
            "receiving on a closed channel"
        );
    }

    #[test]
    fn a_model_that_waits_to_be_loaded_is_told_of_once_and_again_once_that_has_begun() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
        let (control, commands) = Control::new(folder.path().to_owned());
        let mut follower = Follower {
            control: Arc::new(control),
            happens: mpsc::sync_channel(1).1,
            seen: Look::at(folder.path()),
            said: HashMap::new(),
            unread: false,
            watcher: Weak::new(),
            which: None,
            look_at: Look::at,
            rest: Duration::ZERO,
            looked: Instant::now(),
        };
        let mut say = || follower.say(Look::at(folder.path()));
        let next = || match commands.recv_timeout(Duration::ZERO) {
            Ok(Command::Load { name, .. }) => format!("load {name}"),
            Ok(Command::Unload { name, .. }) => format!("unload {name}"),
            other => format!("{other:?}"),
        };
        write("a.onnx", "1");
        say();
        write("a.onnx", "12");
        write("b.onnx", "1");
        say();
        fs::remove_file(folder.path().join("a.onnx")).expect("a file");
        say();
        assert_eq!([next(), next(), next()], ["load a", "load b", "Err(Timeout)"]);
        say();
        say();
        assert_eq!([next(), next()], ["unload a", "Err(Timeout)"]);
    }

    #[test]
    fn a_folder_in_which_something_happens_all_the_time_is_looked_at_seldom_if_that_takes_long() {
        static LOOKS: AtomicU32 = AtomicU32::new(0);
        const TAKES: Duration = Duration::from_millis(10);
        fn slow(folder: &Path) -> Look {
            LOOKS.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(TAKES);
            Look::at(folder)
        }
        let folder = tempfile::tempdir().expect("a folder");
        let (control, commands) = Control::new(folder.path().to_owned());
        let mut happens = None;
        let watch = Watch::start_with(Arc::new(control), Look::at(folder.path()), slow, |happened| {
            happens = Some(happened);
            Err(notify::Error::new(notify::ErrorKind::MaxFilesWatch))
        });
        let (watch, happens) = (watch.expect("it looks"), happens.expect("asked for a watcher"));
        let began = Instant::now();
        while began.elapsed() < 100 * TAKES {
            let _ = happens.try_send(());
            std::thread::sleep(TAKES / 10);
        }
        let (looks, most) =
            (LOOKS.load(Ordering::Relaxed), began.elapsed().div_duration_f32(TAKES * (LOOK_REST + 1)));
        assert!((2..=most as u32 + 2).contains(&looks), "{looks} looks, at most {most} are due");
        // And once all is quiet, a change is found.
        fs::write(folder.path().join("m.onnx"), "a model").expect("a file");
        let _ = happens.try_send(());
        let told = commands.recv_timeout(Duration::from_secs(60));
        assert!(matches!(&told, Ok(Command::Load { name, .. }) if name == "m"), "{told:?}");
        drop((watch, happens));
        assert!(commands.recv().is_err(), "its thread ends");
    }
}
