//! The watcher of the model folder (`repository_mode = "watch"`): once the files of a model have settled, it is loaded if it is new or
//! changed, and unloaded if it is gone.
//!
//! The system reports most changes, but not all: not those made by another machine on a shared volume, nor a folder or a link replaced by
//! another; nor any once its watches are used up. So the folder is also scanned every few seconds, and watched anew if it has been
//! replaced.

use super::{AppError, allowed_threads::not_started};
use crate::models::{
    Change, Command, Control, Repository,
    changes::{Difference, Snapshot},
    control::Said,
    settling::{REST, Settling},
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

/// How long changes that the system does not report may go unseen.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// After a scan, there is none for this many times as long as it took: with thousands of models, a file that is written to without end,
/// as logs are, must not occupy a core.
const LOOK_REST: u32 = 20;
/// There is a scan after this long all the same.
const LOOK_REST_MAX: Duration = Duration::from_secs(10);

/// The running watcher; it ends when this is dropped.
pub(super) struct Watch {
    /// `None` where the system provides none.
    _watcher: Option<Arc<Mutex<RecommendedWatcher>>>,
    /// Keeps the follower running if there is no watcher.
    _happened: mpsc::SyncSender<()>,
}

impl Watch {
    /// Watches the folder of `control` from now on. `first`: the folder as its models were last read.
    pub(super) fn start(control: Arc<Control>, first: Snapshot) -> Result<Watch, AppError> {
        Watch::start_with(control, first, Snapshot::at, |happened| {
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                // Reading the folder, as we do, changes nothing.
                if event.is_ok_and(|event| event.kind.is_access()) {
                    return;
                }
                // If the channel is full, the pending message says as much; if it is closed, the server is gone.
                let _ = happened.try_send(());
            })
        })
    }

    fn start_with(
        control: Arc<Control>,
        first: Snapshot,
        look_at: fn(&Repository) -> Snapshot,
        watcher: impl FnOnce(mpsc::SyncSender<()>) -> notify::Result<RecommendedWatcher>,
    ) -> Result<Watch, AppError> {
        let (happened, happens) = mpsc::sync_channel(1);
        let folder = control.repository().folder();
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
            settling: Settling::default(),
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

/// Logs that the system does not report changes there, or not all, and the limits that usually cause this.
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
    /// The folder, as far as its changes have counted.
    seen: Snapshot,
    settling: Settling,
    /// The last command for each model that has not begun: at most one per model, however slow the loader is.
    said: HashMap<String, Said>,
    /// The folder could not be read at the last scan.
    unread: bool,
    watcher: Weak<Mutex<RecommendedWatcher>>,
    /// The identity of the folder that is watched, or that could not be watched.
    which: Option<(u64, u64)>,
    look_at: fn(&Repository) -> Snapshot,
    /// How long there is no scan after the last one.
    rest: Duration,
    /// When the last scan ended.
    looked: Instant,
}

impl Follower {
    /// Runs until the watcher is gone.
    fn follow(mut self) {
        loop {
            self.watch_what_is_there();
            let now = self.look();
            self.say(now, Instant::now());
            if !self.pause() {
                return;
            }
        }
    }

    /// Waits until it is time to look again; false once the watcher is gone. While files change, what else happens does not matter.
    fn pause(&self) -> bool {
        if self.settling.is_settled() {
            return self.happens.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Disconnected);
        }
        let end = Instant::now() + REST;
        loop {
            match self.happens.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// Watches the folder that has the name by now, if it is another one.
    fn watch_what_is_there(&mut self) {
        let folder = self.control.repository().folder();
        let which = identity(folder);
        if which.is_some()
            && which != self.which
            && let Some(watcher) = self.watcher.upgrade()
        {
            let mut watcher = watcher.lock();
            // The old folder may be unwatched already.
            let _ = watcher.unwatch(folder);
            if let Err(error) = watcher.watch(folder, RecursiveMode::Recursive) {
                not_watched(folder, &error);
            }
            // Tried and logged once for each folder: scans find the changes in any case.
            self.which = which;
        }
    }

    /// The folder now, or once the pause after the last scan has passed; reports until then are covered by this scan.
    fn look(&mut self) -> Snapshot {
        let rested = self.looked + self.rest;
        // There is nothing to report once the watcher is gone.
        while self.happens.recv_timeout(rested.saturating_duration_since(Instant::now())).is_ok() {}
        let began = Instant::now();
        let now = (self.look_at)(self.control.repository()).after(&self.seen);
        self.looked = Instant::now();
        self.rest = ((self.looked - began) * LOOK_REST).min(LOOK_REST_MAX);
        now
    }

    /// Sends commands for the changes to this look that count.
    fn say(&mut self, mut now: Snapshot, at: Instant) {
        let folder = self.control.repository().folder().display();
        if let Some(error) = now.unread().filter(|_| !self.unread) {
            tracing::warn!(%folder, error, "the model folder cannot be read: what is served stays");
        }
        self.unread = now.unread().is_some();
        self.said.retain(|_, said| !said.is_over());
        let (counted, others) = self.settling.sort(&self.seen, &now, at);
        for change in others {
            now = now.with_one_from(change.name(), &self.seen);
        }
        for change in counted {
            let name = change.name();
            if self.said.contains_key(name) {
                now = now.with_one_from(name, &self.seen);
                continue;
            }
            tracing::info!(?change, "the model folder changed");
            let name = name.to_owned();
            let said = self.control.say(match &change {
                Difference::Load(_) => {
                    Command::Load { name: name.clone(), change: Change::Folder, reply: None }
                }
                Difference::Unload(_) => Command::Unload { name: name.clone(), reply: None },
            });
            self.said.insert(name, said);
        }
        self.seen = now.filled_from(std::mem::take(&mut self.seen));
    }
}

/// The identity of a folder: another folder may have its name by now.
fn identity(folder: &Path) -> Option<(u64, u64)> {
    fs::metadata(folder).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::settling::REST_OF_COPIES;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn where_the_system_can_watch_nothing_the_folder_is_looked_at() {
        let folder = tempfile::tempdir().expect("a folder");
        let (control, commands) = Control::new(folder.path().into());
        let first = Snapshot::at(&folder.path().into());
        let used_up = || notify::Error::new(notify::ErrorKind::MaxFilesWatch);
        let watch =
            Watch::start_with(Arc::new(control), first, Snapshot::at, |_| Err(used_up())).expect("it looks");
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
        let (control, commands) = Control::new(folder.path().into());
        let mut follower = Follower {
            control: Arc::new(control),
            happens: mpsc::sync_channel(1).1,
            seen: Snapshot::at(&folder.path().into()),
            settling: Settling::default(),
            said: HashMap::new(),
            unread: false,
            watcher: Weak::new(),
            which: None,
            look_at: Snapshot::at,
            rest: Duration::ZERO,
            looked: Instant::now(),
        };
        let mut now = Instant::now();
        let mut say = || {
            for _ in 0..2 {
                now += REST_OF_COPIES;
                follower.say(Snapshot::at(&folder.path().into()), now);
            }
        };
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
        fn slow(folder: &Repository) -> Snapshot {
            LOOKS.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(TAKES);
            Snapshot::at(folder)
        }
        let folder = tempfile::tempdir().expect("a folder");
        let (control, commands) = Control::new(folder.path().into());
        let mut happens = None;
        let watch =
            Watch::start_with(Arc::new(control), Snapshot::at(&folder.path().into()), slow, |happened| {
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
