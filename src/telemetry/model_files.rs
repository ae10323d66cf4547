//! One log file per model: events that carry a `model` field, or happen in a span that does, go to that model's file as JSON lines, in
//! addition to the common log.
//!
//! Only models that were added have a file: a name that a caller made up does not open one, even if it gets into an event. One thread
//! writes all files, because a disk that is slow for one of them is slow for the others.

use super::{
    daily::{Daily, Kept},
    lines::{JsonFields, json_line, timestamp},
};
use parking_lot::{Mutex, RwLock};
use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    io, mem,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, Sender, SyncSender},
    },
    time::{Duration, Instant},
};
use tracing::{Event, Subscriber};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

/// Lines that may wait to be written, over all files. Further lines are lost and counted.
const LINES_MAX: usize = 8192;
/// How long shutdown waits for the remaining lines to be written: a disk that hangs must not block it.
const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Time between two warnings that lines cannot be written.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// An order to the writing thread.
enum Order {
    /// Write a line to the file behind this path, the link to the current day's file. An empty line only creates it.
    Line(Arc<Path>, String),
    /// Close the files whose paths nobody else holds any more.
    Close,
}

/// Locked only for moments: every thread that logs needs it, possibly while it holds other locks.
#[derive(Debug, Default)]
struct Open {
    /// Paths by model. Two names that differ only in characters that a file name cannot contain share a file.
    files: BTreeMap<String, Arc<Path>>,
    /// `None` after the log has been closed.
    orders: Option<SyncSender<Order>>,
}

/// The files of the models that were added.
#[derive(Debug)]
pub(super) struct ModelFiles {
    folder: PathBuf,
    open: RwLock<Open>,
    lost: Arc<AtomicU64>,
    /// Disconnected once the last line has been written.
    written: Mutex<Receiver<Infallible>>,
}

impl ModelFiles {
    /// Creates the folder, and checks that files can be created there.
    pub(super) fn new(folder: &Path) -> io::Result<ModelFiles> {
        std::fs::create_dir_all(folder)?;
        tempfile::tempfile_in(folder)?;
        let (orders, to_do) = mpsc::sync_channel(LINES_MAX);
        let (end, written) = mpsc::channel();
        let lost = Arc::default();
        let counts = Arc::clone(&lost);
        std::thread::Builder::new().name("ocelli-logs".into()).spawn(move || write(&to_do, &counts, end))?;
        Ok(ModelFiles {
            folder: folder.to_owned(),
            open: RwLock::new(Open { files: BTreeMap::new(), orders: Some(orders) }),
            lost,
            written: Mutex::new(written),
        })
    }

    /// Gives a model a file from now on. The writing thread creates it soon.
    pub(super) fn add(&self, model: &str) {
        let path = self.folder.join(file_name(model));
        let mut open = self.open.write();
        let file = match open.files.values().find(|file| ***file == *path) {
            Some(file) => Arc::clone(file),
            None => path.into(),
        };
        open.files.insert(model.into(), Arc::clone(&file));
        // May fail if the queue is full: the first line creates the file as well.
        open.order(Order::Line(file, String::new()));
    }

    /// Orders the files of models that are no longer known to be closed.
    pub(super) fn keep(&self, known: &dyn Fn(&str) -> bool) {
        // `known` is called without the lock.
        let mut gone: Vec<String> = self.open.read().files.keys().cloned().collect();
        gone.retain(|model| !known(model));
        if gone.is_empty() {
            return;
        }
        let mut open = self.open.write();
        for model in gone {
            open.files.remove(&model);
        }
        // If the queue is full, they are closed with the next order of this kind.
        open.order(Order::Close);
    }

    /// Lines that were lost because a disk was slower than the log, full or gone.
    pub(super) fn lines_lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Hands a line to the writing thread.
    fn send(&self, file: Arc<Path>, line: String) {
        if !self.open.read().order(Order::Line(file, line)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes the remaining lines and closes the files.
    pub(super) fn close(&self) {
        mem::take(&mut *self.open.write());
        // If the disk hangs, the end of the process closes the files.
        let _ = self.written.lock().recv_timeout(CLOSE_WAIT);
    }
}

impl Open {
    /// False if the queue is full. After the end, orders are ignored and this is true.
    fn order(&self, order: Order) -> bool {
        self.orders.as_ref().is_none_or(|orders| orders.try_send(order).is_ok())
    }
}

/// The writing thread. It runs until the orders end. It drops `_end` only after the files, because closing a file may take as long as
/// writing it.
fn write(orders: &Receiver<Order>, lost: &AtomicU64, _end: Sender<Infallible>) {
    let mut files: HashMap<Arc<Path>, Daily> = HashMap::new();
    let mut kept = Kept::default();
    let mut warned: Option<Instant> = None;
    for order in orders {
        let (path, line) = match order {
            Order::Line(path, line) => (path, line),
            Order::Close => {
                files.retain(|path, _| Arc::strong_count(path) > 1);
                continue;
            }
        };
        let mut now = timestamp();
        now.truncate("YYYY-MM-DD".len());
        let file = files.entry(Arc::clone(&path)).or_insert_with(|| Daily::new(&path));
        let error = match file.write(&line, &now, &mut kept) {
            Ok(None) => continue,
            Ok(Some(error)) => error,
            Err(error) => {
                lost.fetch_add((!line.is_empty()).into(), Ordering::Relaxed);
                error
            }
        };
        if warned.is_none_or(|warned| warned.elapsed() >= WARN_EVERY) {
            warned = Some(Instant::now());
            // No field `model`: the event would go to the very file that cannot be written.
            tracing::warn!(
                file = %path.display(),
                %error,
                "a model's log file, or the link to it, cannot be written: lines are lost, or in another file"
            );
        }
    }
}

/// `MODEL.log`, with everything but `A-Z a-z 0-9 _ -` and single inner dots as `_`. A name is never `..` and never begins another's:
/// the day follows after `.log.`, so `.log` is not allowed within a name.
fn file_name(model: &str) -> String {
    let safe: String = model
        .chars()
        .map(|c| match c {
            'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '-' | '.' => c,
            _ => '_',
        })
        .take(128)
        .collect();
    let safe = safe.replace("..", "__").replace(".log", "_log");
    let safe = match safe.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None => safe,
    };
    format!("{safe}.log")
}

/// The layer: decides which file an event goes to.
pub(super) struct ToModelFiles(pub(super) Arc<ModelFiles>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for ToModelFiles {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = JsonFields::default();
        event.record(&mut fields);
        let model = match fields.text("model") {
            Some(model) => Some(model.to_string()),
            // The innermost span that names a model.
            None => context.event_scope(event).and_then(|mut scope| {
                scope.find_map(|span| {
                    let extensions = span.extensions();
                    let fields = extensions.get::<JsonFields>()?;
                    fields.text("model").map(String::from)
                })
            }),
        };
        let Some(model) = model else { return };
        let Some(file) = self.0.open.read().files.get(&model).cloned() else { return };
        self.0.send(file, json_line(event, fields, &context));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::testing::logged;
    use std::fs;

    fn file(files: &ModelFiles, model: &str) -> Arc<Path> {
        Arc::clone(&files.open.read().files[model])
    }

    /// Makes opening this model's file of today block until the returned reader runs.
    fn hanging(folder: &Path, model: &str) -> impl FnOnce() + use<> {
        let pipe = folder.join(format!("{model}.log.{}", &timestamp()[..10]));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .expect("a pipe");
        move || drop(fs::File::open(pipe).expect("the pipe"))
    }

    /// Files without a writing thread, and the orders that it would get.
    fn told_only(folder: &Path) -> (ModelFiles, Receiver<Order>) {
        let files = ModelFiles::new(folder).expect("a folder");
        let (orders, to_do) = mpsc::sync_channel(LINES_MAX);
        files.open.write().orders = Some(orders);
        (files, to_do)
    }

    /// Only by that thread: closing a file may take as long as writing it.
    #[test]
    fn the_file_of_a_model_that_is_not_known_any_more_is_closed_by_the_thread_that_writes() {
        let folder = tempfile::tempdir().expect("a folder");
        let (files, to_do) = told_only(folder.path());
        for model in ["stays", "goes"] {
            files.add(model);
        }
        files.keep(&|model| model == "stays");
        assert_eq!(files.open.read().files.keys().collect::<Vec<_>>(), ["stays"]);
        let at_last = hanging(folder.path(), "last");
        files.add("last");
        let thread = std::thread::spawn(move || write(&to_do, &AtomicU64::new(0), mpsc::channel().0));
        at_last();
        let open = |name: &str| {
            let link = fs::canonicalize(folder.path().join(name)).expect("made");
            let there = fs::read_dir("/proc/self/fd").expect("open files").flatten();
            there.filter(|entry| fs::read_link(entry.path()).is_ok_and(|file| file == link)).count()
        };
        assert_eq!((open("stays.log"), open("goes.log")), (1, 0));
        files.close();
        thread.join().expect("no panic");
        assert_eq!(open("stays.log"), 0);
    }

    /// The warning, and the number of lost lines, when `count` lines are written to a file.
    fn told_and_lost(files: &ModelFiles, model: &str, count: usize) -> (String, u64) {
        let ((orders, to_do), (end, _)) = (mpsc::sync_channel(count), mpsc::channel());
        for _ in 0..count {
            orders.send(Order::Line(file(files, model), "line\n".to_owned())).expect("room");
        }
        drop(orders);
        let lost = AtomicU64::new(0);
        (logged(|| write(&to_do, &lost, end)), lost.into_inner())
    }

    #[test]
    fn lines_of_a_file_that_cannot_be_written_are_counted_and_told_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = ModelFiles::new(folder.path()).expect("a folder");
        let link = folder.path().join("m.log");
        files.add("m");
        files.close();
        let today = folder.path().join(fs::read_link(&link).expect("a link"));
        // A full disk.
        fs::remove_file(&today).expect("the file");
        std::os::unix::fs::symlink("/dev/full", &today).expect("a link");
        let (files, _to_do) = told_only(folder.path());
        files.add("m");
        let (told, lost) = told_and_lost(&files, "m", 2);
        assert_eq!((lost, told.lines().count()), (2, 1), "{told}");
        assert!(told.contains("WARN") && told.contains("m.log") && told.contains("No space left"), "{told}");
    }

    #[test]
    fn a_models_file_whose_link_cannot_be_made_is_named_and_loses_no_line() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("digits.log")).expect("a folder");
        let (files, _to_do) = told_only(folder.path());
        files.add("digits");
        let (told, lost) = told_and_lost(&files, "digits", 2);
        assert_eq!((lost, told.lines().count()), (0, 1), "{told}");
        assert!(told.contains("/digits.log") && told.contains("Is a directory"), "{told}");
    }

    #[test]
    fn whoever_logs_and_the_end_do_not_wait_for_a_disk_that_hangs() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = ModelFiles::new(folder.path()).expect("a folder");
        let release = hanging(folder.path(), "hangs");
        files.add("hangs");
        files.add("another");
        files.send(file(&files, "hangs"), "line\n".to_owned());
        files.send(file(&files, "another"), "line\n".to_owned());
        files.keep(&|model| model == "another");
        files.close();
        assert_eq!(files.lines_lost(), 0);
        assert!(!folder.path().join("another.log").exists(), "it hangs");
        release();
    }

    #[test]
    fn no_more_lines_wait_than_may_and_those_beyond_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = ModelFiles::new(folder.path()).expect("a folder");
        // The writing thread is blocked.
        let release = hanging(folder.path(), "m");
        files.add("m");
        // The order that creates the file may already be taken, or still be waiting.
        for _ in 0..LINES_MAX + 10 {
            files.send(file(&files, "m"), "line\n".to_owned());
        }
        let lost = files.lines_lost();
        assert!((10..=11).contains(&lost), "{lost}");
        release();
        files.close();
    }

    #[test]
    fn file_names_stay_in_their_folder_and_apart() {
        assert_eq!(file_name("digits"), "digits.log");
        assert_eq!(file_name("yolo-v8.1_x"), "yolo-v8.1_x.log");
        for (name, expected) in [
            ("../../etc/passwd", "______etc_passwd.log"),
            ("a/b", "a_b.log"),
            ("a\0\n", "a__.log"),
            ("..", "__.log"),
            (".hidden", "_hidden.log"),
            ("a.log", "a_log.log"),
            ("", ".log"),
            ("é", "_.log"),
        ] {
            assert_eq!(file_name(name), expected, "{name:?}");
        }
        assert_eq!(file_name(&"x".repeat(500)).len(), 132);
    }
}
