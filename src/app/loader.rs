//! The thread that loads models: first those of the start one after the other, then by commands.

use super::again::{Again, Next, refused};
use crate::{
    devices::{Devices, NotReloaded},
    error::InferError,
    http::handlers::catalog,
    models::{
        self, Change, Command, Commands, Expected, Found, Given, Overrides, Repository, changes::Snapshot,
        control::Reply,
    },
    telemetry::logging::ModelLogs,
};
use std::{
    io, mem,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// How often the models that are leaving are checked, while there are some.
const LEAVING_PAUSE: Duration = Duration::from_millis(50);

/// Where models are read, and what is known of them there.
pub(super) struct Reads {
    pub(super) repository: Repository,
    /// The files of the models as they were before these were last loaded from there.
    pub(super) loaded: Snapshot,
    pub(super) logs: ModelLogs,
    /// The models whose files could not be used when the server loaded them by itself.
    pub(super) again: Again,
}

impl Reads {
    /// A model's files now. Taken before any of them is read: what is written from then on is not what serves.
    fn look(&self, name: &str) -> Snapshot {
        Snapshot::of_one(&self.repository, name)
    }

    /// Takes down the files of a model that serves as `look` has them. Those of a model that serves no longer, or is not from there, are
    /// forgotten by an empty one.
    fn keep(&mut self, name: &str, look: &Snapshot) {
        self.loaded = mem::take(&mut self.loaded).with_one_from(name, look);
    }
}

/// The running thread. It also waits for the devices' threads, since at the end the system may refuse a new thread for that.
pub(super) struct Loading {
    stop: CancellationToken,
    end: mpsc::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl Loading {
    /// Starts it.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn start(
        devices: Arc<Devices>,
        found: Vec<Found>,
        commands: Commands,
        mut reads: Reads,
    ) -> io::Result<Loading> {
        let (stop, (end, to_end), (tell, ended)) =
            (CancellationToken::new(), mpsc::channel(), oneshot::channel());
        let stopped = stop.clone();
        thread::Builder::new().name("ocelli-load".into()).spawn(move || {
            run(&devices, &found, &commands, &mut reads, &|| stopped.is_cancelled());
            // If a server is dropped without [`Loading::end`], its devices last until the process ends.
            if to_end.recv().is_ok() {
                devices.join();
            }
            let _ = tell.send(());
        })?;
        Ok(Loading { stop, end, ended })
    }

    /// Makes it load no more of the models of the start.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// Waits until it has ended, and the devices' threads with it. It must have been told to stop, and the queue must be closed.
    pub(super) async fn end(self) {
        // The thread is gone if it has panicked.
        let _ = self.end.send(());
        if self.ended.await.is_err() {
            tracing::error!("the thread that loads models panicked: devices end with the process");
        }
    }
}

/// Loads models, then follows commands until it is told to stop.
fn run(devices: &Devices, found: &[Found], commands: &Commands, reads: &mut Reads, stop: &dyn Fn() -> bool) {
    models::given::remove_left_behind();
    devices.load_all(found, stop);
    for of_one in found.chunk_by(|one, next| one.name == next.name) {
        keep_refused(reads, &of_one[0].name, None, of_one);
    }
    let mut leaving = false;
    loop {
        let pause = [leaving.then_some(LEAVING_PAUSE), reads.again.pause(Instant::now())];
        let command = match pause.into_iter().flatten().min() {
            Some(pause) => commands.recv_timeout(pause),
            None => commands.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
        };
        match command {
            Ok(Command::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Err(mpsc::RecvTimeoutError::Timeout) if stop() => reads.again = Again::default(),
            Err(mpsc::RecvTimeoutError::Timeout) => load_again(devices, reads, Instant::now()),
            // Commands that have waited until now are refused, not carried out.
            Ok(command) if stop() => answer(command.into_reply(), Err(InferError::Draining)),
            Ok(Command::Load { name, change, reply }) => {
                let loaded = match change {
                    Change::Folder => load_other(devices, reads, &name),
                    Change::Overrides(overrides) => {
                        let look = reads.look(&name);
                        load(devices, reads, &name, &look, &overrides)
                    }
                    Change::Given(given) => bring(devices, reads, &name, given),
                };
                forget_beside(devices, &reads.repository, &name);
                // Whoever asked for it knows that it failed, and why.
                if reply.is_some() {
                    reads.again.forget(&name);
                }
                answer(reply, loaded);
            }
            Ok(Command::Unload { name, reply }) => {
                let unloaded = unload(devices, reads, &name);
                forget_beside(devices, &reads.repository, &name);
                answer(reply, unloaded);
            }
        }
        leaving = devices.let_go();
        reads.logs.keep(&|name| devices.knows(name));
    }
}

/// Has a model read again later if files of it were refused. `look`: its files then; otherwise they are as they were last loaded.
fn keep_refused(reads: &mut Reads, name: &str, look: Option<&Snapshot>, found: &[Found]) {
    let refused = refused(found);
    if refused.is_empty() {
        reads.again.forget(name);
    } else {
        let look = look.unwrap_or(&reads.loaded);
        reads.again.failed(name, look, refused, Instant::now());
    }
}

/// Reads the files of a model that is due again, and loads it if they could not be read before.
fn load_again(devices: &Devices, reads: &mut Reads, now: Instant) {
    let Some(name) = reads.again.due(now) else { return };
    let look = reads.look(&name);
    let found = models::scan_one(&reads.repository, &name, None);
    match reads.again.decide(&name, &look, &found, Instant::now()) {
        Next::Load => {
            tracing::info!(
                model = name,
                "files that could not be read are read now: the model is loaded again"
            );
            // The result is in the catalog and in the log.
            let _ = load(devices, reads, &name, &look, &Overrides::default());
        }
        Next::Wait => tracing::debug!(model = name, "its files are refused as before: they are read again"),
        Next::Forget => {}
    }
}

/// A file `NAME.onnx` beside the folder `NAME` stays listed until one of the two is gone.
fn forget_beside(devices: &Devices, repository: &Repository, name: &str) {
    let beside = format!("{name}.onnx");
    let is_gone = || models::scan_one(repository, &beside, None).is_ok_and(|found| found.is_empty());
    if devices.lists_none_that_serves(&beside) && is_gone() {
        devices.unload(&beside);
    }
}

fn answer(reply: Option<Reply>, result: Result<(), InferError>) {
    if let Some(reply) = reply {
        // The caller may have gone.
        let _ = reply.send(result);
    }
}

/// Loads a model unless it serves with the files that lie in the folder now. As in Triton, it then goes on with all that it has, also
/// its statistics and what an earlier load changed: several workers may each see to it that a model is loaded.
fn load_other(devices: &Devices, reads: &mut Reads, name: &str) -> Result<(), InferError> {
    let look = reads.look(name);
    if reads.loaded.has_same(name, &look) && devices.serves_all(name) {
        tracing::info!(model = name, "the model is loaded already, and its files are as they were");
        return Ok(());
    }
    load(devices, reads, name, &look, &Overrides::default())
}

/// Loads a model from the folder, where its files are as `look` has them, or newer.
fn load(
    devices: &Devices,
    reads: &mut Reads,
    name: &str,
    look: &Snapshot,
    overrides: &Overrides,
) -> Result<(), InferError> {
    let failed = |reason| load_failed(name, reason);
    let found = models::scan_one(&reads.repository, name, overrides.versions.as_ref());
    let mut found = found.map_err(|reason| {
        let refused = vec![(String::new(), reason.clone())];
        reads.again.failed(name, look, refused, Instant::now());
        failed(reason)
    })?;
    keep_refused(reads, name, Some(look), &found);
    if found.is_empty() {
        return Err(failed("nothing lies in the model folder under this name".to_owned()));
    }
    for note in &overrides.notes {
        tracing::warn!(model = name, "{note}");
    }
    for found in &mut found {
        if let Ok(source) = &mut found.source {
            let may_use_gpu = devices.may_use_gpu(&source.manifest);
            let applied = overrides.apply(&mut source.manifest, may_use_gpu);
            applied.map_err(|why| failed(format!("config: {why}")))?;
        }
    }
    // A configuration without a version applies to the highest. That version comes first: if it is refused, the others stay as they are.
    let highest = found.iter().rposition(|found| found.source.is_ok());
    if let Some(highest) = highest {
        found[..=highest].rotate_right(1);
        if let Ok(source) = &mut found[0].source {
            let overrides = overrides.clone();
            source.expected = Expected::by(move |model| overrides.check_repeated(&catalog::config_of(model)));
        }
    }
    reload(devices, reads, name, &found)?;
    reads.keep(name, look);
    Ok(())
}

/// Loads a model from files that a caller sent.
fn bring(devices: &Devices, reads: &mut Reads, name: &str, given: Given) -> Result<(), InferError> {
    // A name that no model can have is not listed either.
    models::check_name(name).map_err(|reason| load_failed(name, reason))?;
    reload(devices, reads, name, &given.lay_out(name))
}

fn reload(devices: &Devices, reads: &mut Reads, name: &str, found: &[Found]) -> Result<(), InferError> {
    reads.logs.add_model(name);
    reads.keep(name, &Snapshot::default());
    let loaded = devices.reload(name, found);
    loaded.map_err(|NotReloaded { reason, for_now }| match devices.ends() {
        // This says nothing of the model.
        true => InferError::Draining,
        false => InferError::LoadFailed { name: name.to_owned(), reason, for_now },
    })
}

/// What is wrong with the model itself.
fn load_failed(name: &str, reason: String) -> InferError {
    InferError::LoadFailed { name: name.to_owned(), reason, for_now: false }
}

fn unload(devices: &Devices, reads: &mut Reads, name: &str) -> Result<(), InferError> {
    reads.again.forget(name);
    reads.keep(name, &Snapshot::default());
    match devices.unload(name) {
        true => Ok(()),
        false => Err(InferError::UnknownModel { name: name.to_owned(), nearest: Vec::new() }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::{
        app::{
            base::{self, Core},
            gpus::Gpus,
        },
        config::Config,
        models::Control,
    };
    use std::{cell::RefCell, fs};
    use tempfile::TempDir;

    const FITTER: &str = "engine = \"gauss-mle\"\n";

    /// A loader on a folder with a fitter, and beside it a file that is no model's.
    struct Loader {
        core: Core,
        folder: TempDir,
        reads: RefCell<Reads>,
    }

    impl Loader {
        fn new() -> Loader {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("spots")).unwrap();
            fs::write(folder.path().join("spots/model.toml"), FITTER).unwrap();
            fs::write(folder.path().join("spots.onnx"), "").unwrap();
            let repository = Repository::from(folder.path());
            let loaded = Snapshot::at(&repository);
            let reads = RefCell::new(Reads {
                repository,
                loaded,
                logs: ModelLogs::default(),
                again: Again::default(),
            });
            let found = models::scan(&folder.path().into()).unwrap();
            let core =
                base::start(&Config::default(), Gpus::default(), Err("there is none here".into()), found)
                    .unwrap();
            core.devices.announce(&core.found);
            core.devices.load_all(&core.found, &|| false);
            Loader { core, folder, reads }
        }

        /// What comes of a command.
        fn told(&self, command: impl FnOnce(Reply) -> Command, stop: bool) -> Result<(), InferError> {
            let (control, commands) = Control::new(self.folder.path().into());
            let (reply, mut answer) = oneshot::channel();
            control.say(command(reply));
            control.say(Command::Stop);
            run(&self.core.devices, &[], &commands, &mut self.reads.borrow_mut(), &|| stop);
            answer.try_recv().unwrap()
        }

        fn end(&self) {
            self.core.queue.close();
            self.core.devices.join();
        }
    }

    fn load(name: &str) -> impl FnOnce(Reply) -> Command {
        let name = name.to_owned();
        |reply| Command::Load { name, change: Change::Folder, reply: Some(reply) }
    }

    fn unload(reply: Reply) -> Command {
        Command::Unload { name: "spots".to_owned(), reply: Some(reply) }
    }

    #[test]
    fn a_load_of_what_serves_changes_nothing_until_its_files_change() {
        let loader = Loader::new();
        let told = |change| {
            let load = |reply| Command::Load { name: "spots".to_owned(), change, reply: Some(reply) };
            // Each load has a key of its own.
            loader.told(load, false).map(|()| loader.core.catalog.get("spots", None).unwrap().key)
        };
        let manifest = loader.folder.path().join("spots/model.toml");
        let write = |text: String| fs::write(&manifest, text).unwrap();
        let first = loader.core.catalog.get("spots", None).unwrap().key;
        assert_eq!(told(Change::Folder), Ok(first), "also of what was loaded at the start");
        let two = || Box::new(Overrides { instances: Some(2), ..Overrides::default() });
        let other = told(Change::Overrides(two())).unwrap();
        assert_ne!(other, first);
        assert_eq!(told(Change::Folder), Ok(other), "with what an earlier load changed");
        assert_ne!(told(Change::Overrides(two())), Ok(other), "a load with a configuration is always one");
        write(format!("{FITTER}# a remark\n"));
        let third = told(Change::Folder).unwrap();
        assert_ne!(third, other);
        assert_eq!(told(Change::Folder), Ok(third));
        // A load that failed is tried again, also with the files that served before.
        write("engine".to_owned());
        told(Change::Folder).unwrap_err();
        told(Change::Folder).unwrap_err();
        write(FITTER.to_owned());
        let fourth = told(Change::Folder).unwrap();
        assert_ne!(fourth, third);
        assert_eq!(loader.told(unload, false), Ok(()));
        assert_ne!(told(Change::Folder), Ok(fourth), "as is one that was unloaded");
        loader.end();
    }

    #[test]
    fn files_that_could_not_be_read_are_loaded_once_they_can_be_unless_somebody_else_says_what_serves() {
        let loader = Loader::new();
        let key = || loader.core.catalog.get("spots", None).unwrap().key;
        let (first, now) = (key(), Instant::now());
        let fail = |reads: &mut Reads| {
            let look = reads.look("spots");
            let unread = vec![("1".to_owned(), "cannot read it".to_owned())];
            reads.again.failed("spots", &look, unread, now);
        };
        let mut reads = loader.reads.borrow_mut();
        fail(&mut reads);
        load_again(&loader.core.devices, &mut reads, now);
        assert_eq!(key(), first, "it is not due");
        load_again(&loader.core.devices, &mut reads, now + Duration::from_secs(5));
        assert_ne!(key(), first);
        assert_eq!(reads.again.pause(now), None);
        drop(reads);
        fail(&mut loader.reads.borrow_mut());
        assert_eq!(loader.told(load("spots"), false), Ok(()));
        assert_eq!(loader.reads.borrow().again.pause(now), None);
        fail(&mut loader.reads.borrow_mut());
        assert_eq!(loader.told(unload, false), Ok(()));
        assert_eq!(loader.reads.borrow().again.pause(now), None);
        loader.end();
    }

    #[test]
    fn a_file_beside_a_model_s_folder_is_listed_until_one_of_them_is_gone() {
        let loader = Loader::new();
        let listed = || ["spots", "spots.onnx"].map(|name| loader.core.devices.lists(name));
        let file = loader.folder.path().join("spots.onnx");
        assert_eq!((loader.told(load("spots"), false), listed()), (Ok(()), [true, true]));
        fs::remove_file(&file).unwrap();
        assert_eq!((loader.told(load("spots"), false), listed()), (Ok(()), [true, false]));
        loader.end();

        let loader = Loader::new();
        let listed = || ["spots", "spots.onnx"].map(|name| loader.core.devices.lists(name));
        fs::remove_dir_all(loader.folder.path().join("spots")).unwrap();
        assert_eq!((loader.told(unload, false), listed()), (Ok(()), [false, false]));
        loader.end();
    }

    #[test]
    fn who_waits_for_a_load_as_the_server_ends_is_told_that_it_does() {
        let loader = Loader::new();
        let failed = loader.told(load("spots.onnx"), false);
        assert!(matches!(failed, Err(InferError::LoadFailed { .. })), "{failed:?}");
        assert_eq!(loader.told(load("spots"), true), Err(InferError::Draining));
        assert_eq!(loader.told(unload, true), Err(InferError::Draining));
        assert!(loader.core.devices.lists("spots"), "nothing is done any more");
        loader.core.status.begin_drain();
        assert_eq!(loader.told(load("spots.onnx"), false), Err(InferError::Draining));
        loader.end();
    }
}
