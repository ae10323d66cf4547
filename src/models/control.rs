//! The command queue for loading and unloading models while the server runs. Callers and the watcher of the model folder send;
//! the loading thread receives.

use super::{
    Given, Manifest,
    manifest::Versions,
    powers_of_two,
    triton::{self, Queueing},
};
use crate::{
    engine::onnx::gpu::CudaGraph,
    error::{InferError, RETRY_AFTER},
};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::{
    collections::BTreeSet,
    fmt,
    path::PathBuf,
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
    /// Load all versions of a model again, as they lie in the folder now.
    Load {
        /// Its name.
        name: String,
        /// What to change in its manifest.
        overrides: Box<Overrides>,
        /// Who waits; `None` if a change in the folder caused the load.
        reply: Option<Reply>,
    },
    /// Load a model that a caller sent, in place of the folder's.
    Bring {
        /// Its name.
        name: String,
        /// Its files and configuration.
        given: Box<Given>,
        /// Who waits.
        reply: Reply,
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

/// What a caller may change in a manifest while the model stays loaded. A `None` or an empty field leaves what the manifest says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overrides {
    /// Items in the largest batch, 1 to 1024.
    pub items_max: Option<usize>,
    /// Preferred batch sizes, in place of those preferred until now. Batches are padded to these and to the usual sizes.
    pub sizes: Option<Vec<usize>>,
    /// Whether the caller asks for dynamic batching.
    pub merges: bool,
    /// How long a batch may wait for further requests, at most 10 s.
    pub wait_max: Option<Duration>,
    /// Instances per device, 1 to 64.
    pub instances: Option<usize>,
    /// How requests wait.
    pub queue: Option<Queueing>,
    /// Which versions are served.
    pub versions: Option<Versions>,
    /// The members of `optimization`, in the form in which the configuration is reported.
    pub optimization: Map<String, Value>,
    /// Members that have no effect here, by name, for the log.
    pub notes: Vec<String>,
    /// The kind of its devices (`KIND_…`). A caller can repeat it, not change it.
    pub kind: Option<String>,
    /// The numbers of its GPUs. These, too, can only be repeated.
    pub gpus: Option<BTreeSet<i32>>,
    /// Other members, by their names in configurations, for a model that is not being served. They can only be repeated too;
    /// [`check_repeated`](Overrides::check_repeated) compares them once the model is loaded.
    pub repeated: Map<String, Value>,
}

/// The two kinds of load.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The model in the folder, with changes to its manifest.
    Overrides(Box<Overrides>),
    /// A model sent with the load.
    Given(Given),
}

impl Overrides {
    /// Applies the changes to a manifest as it lies in the folder. Repeating what the manifest says changes nothing.
    /// `may_use_gpu` is the model's [field](super::Model::may_use_gpu).
    ///
    /// # Errors
    /// The member that contradicts the rest of the manifest, by its name in configurations. Part of the manifest may have been
    /// changed by then.
    pub fn apply(&self, manifest: &mut Manifest, may_use_gpu: bool) -> Result<(), String> {
        // Not here: `repeated`, which the manifest alone cannot confirm, and `versions`, which the scan that read this manifest
        // has applied.
        let Overrides { items_max, sizes, wait_max, instances, queue, kind, gpus, optimization, .. } = self;
        let batch = &mut manifest.batch;
        batch.merges |= self.merges;
        if let Some(largest) = items_max.filter(|largest| *largest != batch.largest()) {
            batch.items_max = Some(largest);
            batch.sizes = None;
        }
        // In Protocol Buffers' JSON, an empty list means that no size is preferred.
        if manifest.declared.is_some() && sizes.as_ref().is_some_and(Vec::is_empty) {
            batch.sizes = None;
        }
        if let Some(preferred) = sizes.as_ref().filter(|preferred| !preferred.is_empty()) {
            let largest = batch.largest();
            let now = batch.sizes.clone().unwrap_or_else(|| powers_of_two(largest));
            // A Triton configuration has the usual sizes and the preferred ones, no others.
            let usual = if manifest.declared.is_some() { powers_of_two(largest) } else { now.clone() };
            let sizes = triton::preferring(usual, preferred, largest)?;
            // A caller that sends a reported configuration back names all current sizes.
            if *preferred != now {
                batch.sizes = Some(sizes);
            }
        }
        batch.wait_max = wait_max.unwrap_or(batch.wait_max);
        let placement = &mut manifest.placement;
        let differs = |member: &str, said: &dyn fmt::Debug, now: &str| {
            format!(
                "instance_group.{member} is {said:?}, and cannot be changed while the server runs: it is {now}"
            )
        };
        let kinds = triton::kinds(placement, may_use_gpu);
        if let Some(kind) = kind.as_deref().filter(|kind| !kinds.contains(kind)) {
            let now: Vec<String> = kinds.iter().map(|kind| format!("{kind:?}")).collect();
            return Err(differs("kind", &kind, &now.join(" or ")));
        }
        // A caller may repeat the GPUs as reported, or as the folder has them.
        let (told, now) = (triton::told_placement(placement, may_use_gpu).1, triton::gpus(placement));
        let other = |gpus: &&BTreeSet<i32>| {
            [&told, &now].into_iter().all(|same| **gpus != same.iter().copied().collect())
        };
        if let Some(gpus) = gpus.as_ref().filter(other) {
            return Err(differs("gpus", &gpus.iter().collect::<Vec<_>>(), &format!("{told:?}")));
        }
        placement.instances = instances.unwrap_or(placement.instances);
        if let Some(queue) = queue {
            (manifest.queue, manifest.priority) = queue.over(&manifest.queue, manifest.priority)?;
        }
        manifest.kept.optimization.extend(optimization.clone());
        // A `model.toml` can ask for more (`Always`) than this configuration can express; keep that.
        let cuda_graph = &mut manifest.gpu.cuda_graph;
        match triton::cuda_graph(optimization) {
            Some(CudaGraph::Auto) if *cuda_graph == CudaGraph::Always => {}
            said => *cuda_graph = said.unwrap_or(*cuda_graph),
        }
        Ok(())
    }

    /// Checks that members which can only be repeated agree with `config`, the configuration of the model that was loaded.
    ///
    /// # Errors
    /// The first member that differs, by name.
    pub fn check_repeated(&self, config: &Value) -> Result<(), String> {
        let other = |(member, said): &(&String, &Value)| !triton::says_as(member, said, &config[*member]);
        let Some((member, _)) = self.repeated.iter().find(other) else { return Ok(()) };
        if member == "max_batch_size" {
            return Err(format!(
                "config: {member:?} is 0, as of a model that does not batch, and this one does: leave it out"
            ));
        }
        Err(format!(
            "config: {member:?} is not as the model has it, and cannot be changed: load it without, and see what GET \
             /v2/models/{}/config says",
            config["name"].as_str().unwrap_or_default()
        ))
    }
}

/// The sending end of the command queue. The loading thread ends on [`Command::Stop`], or when this is dropped.
#[derive(Debug)]
pub struct Control {
    sender: Mutex<mpsc::Sender<Queued>>,
    places: Arc<Semaphore>,
    folder: PathBuf,
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
            Command::Bring { reply, .. } => Some(reply),
            Command::Stop => None,
        }
    }
}

impl Control {
    /// Both ends of the queue. `folder` is the model folder.
    pub fn new(folder: PathBuf) -> (Control, Commands) {
        let (sender, commands) = mpsc::channel();
        let places = Arc::new(Semaphore::new(WAITING_MAX));
        (Control { sender: Mutex::new(sender), places, folder }, Commands(commands))
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

    /// Applies a change to a model. Dropping the future cancels it unless it has begun.
    ///
    /// # Errors
    /// As [`load`](Control::load).
    pub async fn change(&self, name: &str, change: Change) -> Result<(), InferError> {
        match change {
            Change::Overrides(overrides) => self.load(name, *overrides).await,
            Change::Given(given) => {
                let (given, name) = (Box::new(given), name.to_owned());
                self.ask(|reply| Command::Bring { name, given, reply }).await
            }
        }
    }

    /// Loads a model again. Dropping the future cancels it unless it has begun.
    ///
    /// # Errors
    /// [`InferError::UnknownModel`], [`InferError::LoadFailed`], [`InferError::Draining`], [`InferError::Full`].
    pub async fn load(&self, name: &str, overrides: Overrides) -> Result<(), InferError> {
        let (overrides, name) = (Box::new(overrides), name.to_owned());
        self.ask(|reply| Command::Load { name, overrides, reply: Some(reply) }).await
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

    /// The model folder.
    pub fn folder(&self) -> &std::path::Path {
        &self.folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_graphs_are_those_of_the_load_where_it_says_something_of_them() {
        let after = |folder: &str, said: Value| {
            let mut manifest = Manifest::parse(folder).expect("fine");
            let config = Map::from_iter([(triton::OPTIMIZATION.to_owned(), said)]);
            let overrides = triton::overrides(config, "m", None).expect("a member of configurations");
            overrides.apply(&mut manifest, false).expect("fine");
            manifest.gpu.cuda_graph
        };
        let graphs = |graphs: bool| serde_json::json!({ "cuda": { "graphs": graphs } });
        let always = "[gpu]\ncuda_graph = true";
        let auto = "[gpu]\ncuda_graph = \"auto\"";
        assert_eq!(after("", graphs(true)), CudaGraph::Auto);
        assert_eq!(after(auto, graphs(false)), CudaGraph::Never);
        assert_eq!(after(always, graphs(true)), CudaGraph::Always);
        assert_eq!(after(always, serde_json::json!({ "eager_batching": true })), CudaGraph::Always);
    }

    #[test]
    fn overrides_change_what_they_name_and_leave_the_rest() {
        let manifest =
            || Manifest::parse("priority = 3\n[batch]\nsizes = [1, 4]\nwait_ms_max = 7").expect("fine");
        let changed = |overrides: Overrides| {
            let mut manifest = manifest();
            overrides.apply(&mut manifest, false).map(|()| manifest)
        };
        assert_eq!(changed(Overrides::default()), Ok(manifest()));
        // No sizes are preferred.
        let mut none = Manifest::parse("[batch]\nitems_max = 4").expect("fine");
        Overrides { sizes: Some(Vec::new()), ..Overrides::default() }.apply(&mut none, false).expect("fine");
        assert_eq!(none.batch.sizes, None);
        let larger = changed(Overrides { items_max: Some(12), ..Overrides::default() }).expect("fine");
        assert_eq!((larger.batch.items_max, larger.batch.sizes), (Some(12), None));
        assert_eq!((larger.priority, larger.batch.wait_max), (3, Duration::from_millis(7)));
        let sizes = Some(vec![2, 8]);
        let both =
            changed(Overrides { items_max: Some(16), sizes, instances: Some(2), ..Overrides::default() })
                .expect("fine");
        assert_eq!((both.batch.sizes, both.placement.instances), (Some(vec![1, 2, 4, 8, 16]), 2));
    }

    #[test]
    fn preferred_sizes_are_beside_those_that_there_are_and_never_above_the_largest() {
        let changed = |text: &str, items_max: Option<usize>, sizes: &[usize]| {
            let mut manifest = Manifest::parse(text).expect("fine");
            let sizes = Some(sizes.to_vec());
            Overrides { items_max, sizes, ..Overrides::default() }.apply(&mut manifest, false)?;
            Ok::<_, String>(manifest.batch.sizes)
        };
        // In a Triton configuration, a list that is given replaces its own.
        let described = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 3, 6 ] }";
        let mut manifest = triton::read(described, "m").expect("fine").manifest;
        Overrides { sizes: Some(vec![5]), ..Overrides::default() }.apply(&mut manifest, false).expect("fine");
        assert_eq!(manifest.batch.sizes, Some(vec![1, 2, 4, 5, 8]));
        assert_eq!(changed("", None, &[3]), Ok(Some(vec![1, 2, 3, 4, 8, 16])));
        assert_eq!(changed("", None, &[1, 2, 4, 8, 16]), Ok(None), "they are what it has");
        assert_eq!(changed("[batch]\nsizes = [3, 7]", None, &[5]), Ok(Some(vec![3, 5, 7])));
        assert_eq!(changed("[batch]\nsizes = [3, 7]", Some(4), &[3]), Ok(Some(vec![1, 2, 3, 4])));
        for (items_max, size) in [(Some(4), 1024), (None, 17)] {
            let told = changed("", items_max, &[size]).expect_err("too large");
            assert!(told.contains(&format!("preferred_batch_size holds {size}, allowed: 1 to")), "{told}");
        }
    }

    #[test]
    fn devices_can_be_repeated_and_not_changed() {
        let check_on = |may_use_gpu: bool, text: &str, kind: Option<&str>, gpus: Option<&[i32]>| {
            let (kind, gpus) = (kind.map(str::to_owned), gpus.map(|gpus| gpus.iter().copied().collect()));
            let mut manifest = Manifest::parse(text).expect("fine");
            Overrides { kind, gpus, ..Overrides::default() }.apply(&mut manifest, may_use_gpu)
        };
        let check = |text: &str, kind: Option<&str>, gpus: Option<&[i32]>| check_on(true, text, kind, gpus);
        let two = "[placement]\ndevices = [\"gpu:0\", \"gpu:10\", \"gpu:2\"]";
        assert_eq!(check("", Some("KIND_AUTO"), Some(&[])), Ok(()));
        assert_eq!(check(two, Some("KIND_GPU"), Some(&[10, 2, 0])), Ok(()));
        assert_eq!(check("[placement]\ndevices = \"cpu\"", Some("KIND_CPU"), None), Ok(()));
        // For an automatic placement, what it resolves to.
        assert_eq!(check("", Some("KIND_GPU"), Some(&[])), Ok(()));
        assert_eq!(check_on(false, "", Some("KIND_CPU"), Some(&[])), Ok(()));
        assert_eq!(check_on(false, "", Some("KIND_AUTO"), None), Ok(()));
        let refused = check_on(false, "", Some("KIND_GPU"), None).expect_err("there is no GPU");
        assert!(refused.ends_with("it is \"KIND_CPU\" or \"KIND_AUTO\""), "{refused}");
        let both = "[placement]\ndevices = [\"cpu\", \"gpu:1\"]";
        assert_eq!(check(both, Some("KIND_GPU"), Some(&[1])), Ok(()));
        assert_eq!(check_on(false, both, Some("KIND_CPU"), Some(&[])), Ok(()));
        assert_eq!(check_on(false, both, Some("KIND_AUTO"), Some(&[1])), Ok(()));
        for (text, kind, gpus, told) in [
            ("", Some("KIND_CPU"), None, "instance_group.kind is \"KIND_CPU\""),
            ("", Some("KIND_MODEL"), None, "it is \"KIND_GPU\" or \"KIND_AUTO\""),
            ("", None, Some(&[0][..]), "instance_group.gpus is [0], and cannot be changed"),
            (two, Some("KIND_AUTO"), None, "it is \"KIND_GPU\""),
            (two, Some("KIND_GPU"), Some(&[]), "it is [0, 10, 2]"),
            (both, Some("KIND_GPU"), Some(&[]), "it is [1]"),
        ] {
            let why = check(text, kind, gpus).expect_err("another device");
            assert!(why.contains(told), "{why} lacks {told}");
        }
    }

    #[tokio::test]
    async fn whoever_asks_a_thread_that_is_gone_is_told() {
        let (control, commands) = Control::new(PathBuf::new());
        drop(commands);
        assert!(matches!(control.unload("m").await, Err(InferError::Draining)));
    }

    #[tokio::test]
    async fn what_waits_goes_with_whoever_waits_for_it_and_is_passed_over() {
        let (control, commands) = Control::new(PathBuf::new());
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
            Box::pin(control.change(name, Change::Given(given)))
        };
        let (mut first, mut second) = (bring("first"), bring("second"));
        let mut third = Box::pin(control.unload("third"));
        assert!(
            futures_util::poll!(&mut first).is_pending() && futures_util::poll!(&mut second).is_pending()
        );
        assert!(futures_util::poll!(&mut third).is_pending());
        let begun = commands.recv().expect("the first");
        assert!(matches!(&begun, Command::Bring { name, .. } if name == "first"), "{begun:?}");
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
        let (control, commands) = Control::new(PathBuf::new());
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(control.unload("m"))).collect();
        for unload in &mut waiting {
            assert!(futures_util::poll!(unload).is_pending());
        }
        let full = control.load("m", Overrides::default()).await.expect_err("it is full");
        assert_eq!(full.to_string(), "the queue of loads and unloads is full (1000); retry after 5 s");
        control.say(Command::Stop);
        drop(commands.recv().expect("the first"));
        let mut next = Box::pin(control.unload("m"));
        assert!(futures_util::poll!(&mut next).is_pending(), "there is a place again");
        drop((waiting, next));
        assert!(matches!(commands.recv(), Ok(Command::Stop)));
    }
}
