//! The watcher of the model folder (`repository_mode = "watch"`): once a change has come to rest, what is new or different
//! is loaded, and what is gone is unloaded.

use super::{AppError, failed};
use crate::models::{
    Command, Control, Overrides,
    changes::{Change, Look},
};
use notify::{RecursiveMode, Watcher as _};
use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

/// A change has come to rest when nothing has happened for so long,
const REST: Duration = Duration::from_millis(500);
/// or when things have been happening for so long.
const UNREST_MAX: Duration = Duration::from_secs(10);

/// The running watcher; it ends when this is dropped.
pub(super) struct Watch {
    _watcher: notify::RecommendedWatcher,
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
        watcher
            .watch(&folder, RecursiveMode::Recursive)
            .map_err(failed(format!("cannot watch {}", folder.display())))?;
        std::thread::Builder::new()
            .name("ocelli-watch".into())
            .spawn(move || {
                let mut seen = first;
                // What happened between the first look and the watcher's start would be missed.
                look(&control, &mut seen);
                while happens.recv().is_ok() {
                    rest(&happens);
                    look(&control, &mut seen);
                }
            })
            .map_err(failed("cannot start the watching thread"))?;
        Ok(Watch { _watcher: watcher })
    }
}

/// Waits until nothing happens any more.
fn rest(happens: &mpsc::Receiver<()>) {
    let began = Instant::now();
    while began.elapsed() < UNREST_MAX && happens.recv_timeout(REST).is_ok() {}
}

/// Says what changed.
fn look(control: &Control, seen: &mut Look) {
    let now = Look::at(control.folder());
    for change in seen.changes(&now) {
        tracing::info!(?change, "the model folder changed");
        control.say(match change {
            Change::Load(name) => {
                Command::Load { name, overrides: Box::new(Overrides::default()), reply: None }
            }
            Change::Unload(name) => Command::Unload { name, reply: None },
        });
    }
    *seen = now.filled_from(std::mem::take(seen));
}
