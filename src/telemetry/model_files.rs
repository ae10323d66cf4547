//! One log file per model: events that carry a `model` field, or happen in a span that does, go to that model's file
//! as JSON lines, beside the log of all.
//!
//! Only models that were added have a file: a name that a caller made up and that got into an event opens nothing. One thread
//! writes all files: a disk that is slow for one of them is so for the others.

use super::lines::{JsonFields, json_line};
use parking_lot::{Mutex, RwLock};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, Sender, SyncSender},
    },
    time::{Duration, Instant},
};
use tracing::{Event, Subscriber};
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

/// Days that are kept, a file each.
const FILES_MAX: usize = 14;
/// Lines of all files that may wait to be written: those beyond them are lost, and counted.
const LINES_MAX: usize = 8192;
/// How long the end waits for what is left to be written: a disk that hangs does not hold it up.
const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Between two warnings that lines cannot be written.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// How often it is looked whether a file that is written to is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A file, open for as long as its model is known or a line for it waits.
#[derive(Debug)]
struct ModelFile {
    /// The link to the current day's.
    path: PathBuf,
    days: Mutex<Days>,
}

#[derive(Debug)]
struct Days {
    appender: RollingFileAppender,
    /// The last line is there in part only.
    torn: bool,
    /// When it was looked whether the current day's is still there.
    looked: Instant,
}

impl ModelFile {
    fn open(path: PathBuf) -> io::Result<ModelFile> {
        let days = Days { appender: appender(&path)?, torn: false, looked: Instant::now() };
        Ok(ModelFile { path, days: Mutex::new(days) })
    }

    fn write(&self, line: &str, now: Instant) -> io::Result<()> {
        let days = &mut *self.days.lock();
        if now.saturating_duration_since(days.looked) >= LOOK_EVERY {
            days.looked = now;
            // Whoever removed or moved it would have all that follows go nowhere.
            if !self.path.exists() {
                (days.appender, days.torn) = (appender(&self.path)?, false);
            }
        }
        append(&mut days.appender, &mut days.torn, line)
    }
}

/// What writes to the files of the days that such a link leads to.
fn appender(path: &Path) -> io::Result<RollingFileAppender> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    RollingFileAppender::builder()
        .rotation(Rotation::DAILY)
        .filename_prefix(&*name)
        .latest_symlink(&*name)
        .max_log_files(FILES_MAX)
        .build(path.parent().unwrap_or(path))
        .map_err(io::Error::other)
}

/// Writes a line; on a line of its own also where only a part of the one before it could be written.
fn append(to: &mut impl Write, torn: &mut bool, line: &str) -> io::Result<()> {
    if *torn {
        to.write_all(b"\n")?;
        *torn = false;
    }
    let mut left = line.as_bytes();
    while !left.is_empty() {
        match to.write(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => left = &left[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        *torn = !left.is_empty();
    }
    Ok(())
}

/// A line, and where it belongs.
type Line = (Arc<ModelFile>, String);

#[derive(Debug)]
struct Open {
    /// By model. Two names that differ only in what a file name cannot hold share a file.
    files: BTreeMap<String, Arc<ModelFile>>,
    /// Until the end.
    lines: Option<SyncSender<Line>>,
}

/// The files of the models that were added.
#[derive(Debug)]
pub(super) struct ModelFiles {
    folder: PathBuf,
    open: RwLock<Open>,
    lost: Arc<AtomicU64>,
    /// Disconnected when the last line has been written.
    written: Mutex<Receiver<Infallible>>,
}

impl ModelFiles {
    pub(super) fn new(folder: &Path) -> io::Result<ModelFiles> {
        std::fs::create_dir_all(folder)?;
        let (lines, to_write) = mpsc::sync_channel(LINES_MAX);
        let (end, written) = mpsc::channel();
        let lost = Arc::default();
        let counts = Arc::clone(&lost);
        std::thread::Builder::new()
            .name("ocelli-logs".into())
            .spawn(move || write(&to_write, &counts, end))?;
        Ok(ModelFiles {
            // Links to the current day's file hold its path: a relative one would lead nowhere.
            folder: folder.canonicalize()?,
            open: RwLock::new(Open { files: BTreeMap::new(), lines: Some(lines) }),
            lost,
            written: Mutex::new(written),
        })
    }

    /// Opens a model's file, unless it is open already.
    pub(super) fn add(&self, model: &str) -> io::Result<()> {
        let mut open = self.open.write();
        let path = self.path(model);
        let file = match open.files.values().find(|file| file.path == path) {
            Some(file) => Arc::clone(file),
            None => Arc::new(ModelFile::open(path)?),
        };
        open.files.insert(model.into(), file);
        Ok(())
    }

    /// Closes the files of models that are not known any more.
    pub(super) fn keep(&self, known: &dyn Fn(&str) -> bool) {
        // Asked without the lock, which whoever logs wants, whatever else they hold.
        let mut gone: Vec<String> = self.open.read().files.keys().cloned().collect();
        gone.retain(|model| !known(model));
        if !gone.is_empty() {
            self.open.write().files.retain(|model, _| !gone.contains(model));
        }
    }

    /// Where a model's file is.
    pub(super) fn path(&self, model: &str) -> PathBuf {
        self.folder.join(file_name(model))
    }

    /// Lines that were lost because a disk was slower than the log, full or gone.
    pub(super) fn lines_lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Hands a line to the thread that writes.
    fn send(&self, file: Arc<ModelFile>, line: String) {
        let open = self.open.read();
        if let Some(lines) = &open.lines
            && lines.try_send((file, line)).is_err()
        {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes what is left and closes the files.
    pub(super) fn close(&self) {
        let mut open = self.open.write();
        open.files.clear();
        open.lines = None;
        drop(open);
        let _ = self.written.lock().recv_timeout(CLOSE_WAIT);
    }
}

/// Writes lines until there are no more, and then drops `_end`.
fn write(lines: &Receiver<Line>, lost: &AtomicU64, _end: Sender<Infallible>) {
    let mut warned: Option<Instant> = None;
    for (file, line) in lines {
        let Err(error) = file.write(&line, Instant::now()) else { continue };
        lost.fetch_add(1, Ordering::Relaxed);
        if warned.is_none_or(|warned| warned.elapsed() >= WARN_EVERY) {
            warned = Some(Instant::now());
            // It names no model: it would go to the file that cannot be written.
            tracing::warn!(file = %file.path.display(), %error, "a model's log file cannot be written: lines are lost");
        }
    }
}

/// `MODEL.log`, with everything but `A-Z a-z 0-9 _ -` and single inner dots as `_`. A name is never `..` and never
/// begins another's: days are told apart behind `.log.`, so `.log` is not allowed within.
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
            // The innermost span that names one.
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
    use std::fs;

    #[test]
    fn a_model_that_is_not_known_any_more_gives_its_file_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = ModelFiles::new(folder.path()).expect("a folder");
        for model in ["stays", "goes"] {
            files.add(model).expect("a file");
        }
        let file = |model: &str| Arc::downgrade(&files.open.read().files[model]);
        let (stays, goes) = (file("stays"), file("goes"));
        files.keep(&|model| model == "stays");
        assert!(goes.upgrade().is_none() && stays.upgrade().is_some());
        assert_eq!(files.open.read().files.keys().collect::<Vec<_>>(), ["stays"]);
    }

    #[test]
    fn lines_of_a_file_that_cannot_be_written_are_counted_and_told_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = ModelFiles::new(folder.path()).expect("a folder");
        files.add("m").expect("a file");
        let today = fs::read_link(folder.path().join("m.log")).expect("a link");
        files.keep(&|_| false);
        // A disk that is full.
        fs::remove_file(&today).expect("the file");
        std::os::unix::fs::symlink("/dev/full", &today).expect("a link");
        files.add("m").expect("a file");
        let file = Arc::clone(&files.open.read().files["m"]);
        let ((lines, to_write), (end, _)) = (mpsc::sync_channel(2), mpsc::channel());
        for _ in 0..2 {
            lines.send((Arc::clone(&file), "line\n".to_owned())).expect("room");
        }
        drop(lines);
        let console = tempfile::NamedTempFile::new().expect("a file");
        let shown = console.reopen().expect("the file");
        let log =
            tracing_subscriber::fmt().with_writer(move || shown.try_clone().expect("the file")).finish();
        let lost = AtomicU64::new(0);
        tracing::subscriber::with_default(log, || write(&to_write, &lost, end));
        assert_eq!(lost.load(Ordering::Relaxed), 2);
        let told = fs::read_to_string(console.path()).expect("the file");
        assert_eq!(told.lines().count(), 1, "{told}");
        assert!(told.contains("WARN") && told.contains("m.log") && told.contains("No space left"), "{told}");
    }

    #[test]
    fn a_line_behind_one_that_was_written_in_part_begins_anew() {
        /// A disk with room for so many bytes.
        struct Disk(Vec<u8>, usize);
        impl Write for Disk {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let count = bytes.len().min(self.1 - self.0.len());
                self.0.extend_from_slice(&bytes[..count]);
                if count == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(count) }
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (mut disk, mut torn) = (Disk(Vec::new(), 7), false);
        let mut tried = |room: usize, line: &str| {
            disk.1 += room;
            let written = append(&mut disk, &mut torn, line).is_ok();
            (written, String::from_utf8_lossy(&disk.0).into_owned())
        };
        assert_eq!(tried(0, "one\n"), (true, "one\n".into()));
        assert_eq!(tried(0, "second\n"), (false, "one\nsec".into()));
        assert_eq!(tried(0, "third\n"), (false, "one\nsec".into()));
        assert_eq!(tried(7, "fourth\n"), (false, "one\nsec\nfourth".into()));
        assert_eq!(tried(9, "fifth\n"), (true, "one\nsec\nfourth\nfifth\n".into()));
        assert_eq!(tried(9, "6\n"), (true, "one\nsec\nfourth\nfifth\n6\n".into()));
    }

    #[test]
    fn a_file_that_was_removed_is_made_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let link = folder.path().join("m.log");
        let file = ModelFile::open(link.clone()).expect("a file");
        let now = Instant::now();
        file.write("one\n", now).expect("written");
        fs::remove_file(fs::read_link(&link).expect("a link")).expect("removed");
        for line in ["two\n", "three\n"] {
            file.write(line, now + LOOK_EVERY).expect("written");
        }
        assert_eq!(fs::read_to_string(&link).expect("a file"), "two\nthree\n");
    }

    #[test]
    fn no_more_lines_wait_than_may_and_those_beyond_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = ModelFiles::new(folder.path()).expect("a folder");
        files.add("m").expect("a file");
        let file = Arc::clone(&files.open.read().files["m"]);
        // The thread that writes stands still.
        let held = file.days.lock();
        // One may be in its hands.
        for _ in 0..LINES_MAX + 11 {
            files.send(Arc::clone(&file), "line\n".to_owned());
        }
        let lost = files.lines_lost();
        assert!((10..=11).contains(&lost), "{lost}");
        drop(held);
        files.close();
    }

    #[test]
    fn links_lead_to_their_files_from_a_relative_folder_too() {
        let files = ModelFiles::new(".".as_ref()).expect("the current folder");
        assert!(files.folder.is_absolute(), "{files:?}");
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
