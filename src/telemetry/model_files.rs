//! One log file per model: events that carry a `model` field, or happen in a span that does, go to that model's file
//! as JSON lines, beside the log of all.
//!
//! Only models that were added have a file: a name that a caller made up and that got into an event opens nothing.

use super::{
    lines::{JsonFields, json_line},
    logging::Failed,
};
use parking_lot::{Mutex, RwLock};
use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};
use tracing::{Event, Subscriber};
use tracing_appender::{
    non_blocking::{NonBlocking, WorkerGuard},
    rolling::{RollingFileAppender, Rotation},
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

/// Days that are kept, a file each.
const FILES_MAX: usize = 14;

/// The files of the models that were added.
#[derive(Debug)]
pub(super) struct ModelFiles {
    folder: PathBuf,
    writers: RwLock<BTreeMap<String, NonBlocking>>,
    /// By file name, so that two names that differ only in what a file name cannot hold share a writer.
    opened: Mutex<BTreeMap<String, (NonBlocking, WorkerGuard)>>,
    /// Of all files.
    failed: Failed,
}

impl ModelFiles {
    pub(super) fn new(folder: &Path) -> io::Result<ModelFiles> {
        std::fs::create_dir_all(folder)?;
        Ok(ModelFiles {
            // Links to the current day's file hold its path: a relative one would lead nowhere.
            folder: folder.canonicalize()?,
            writers: RwLock::default(),
            opened: Mutex::default(),
            failed: Failed::default(),
        })
    }

    /// Opens a model's file, unless it is open already.
    pub(super) fn add(&self, model: &str) -> io::Result<()> {
        let mut opened = self.opened.lock();
        let name = file_name(model);
        let writer = match opened.get(&name) {
            Some((writer, _)) => writer.clone(),
            None => {
                // Where the system refuses a thread, its writer would panic.
                std::thread::Builder::new().spawn(|| ())?;
                let file = RollingFileAppender::builder()
                    .rotation(Rotation::DAILY)
                    .filename_prefix(&name)
                    .latest_symlink(&name)
                    .max_log_files(FILES_MAX)
                    .build(&self.folder)
                    .map_err(io::Error::other)?;
                let (writer, guard) = tracing_appender::non_blocking(self.failed.counting(file));
                opened.insert(name, (writer.clone(), guard));
                writer
            }
        };
        let mut writers = self.writers.write();
        writers.insert(model.into(), writer);
        Ok(())
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Lines that were lost because a disk was slower than the log, full or gone.
    pub(super) fn lines_lost(&self) -> usize {
        let opened = self.opened.lock();
        let lost = |(writer, _): &(NonBlocking, _)| writer.error_counter().dropped_lines();
        opened.values().map(lost).sum::<usize>() + self.failed.count()
    }

    /// Writes what is left and closes the files.
    pub(super) fn close(&self) {
        let mut writers = self.writers.write();
        writers.clear();
        drop(writers);
        let mut opened = self.opened.lock();
        opened.clear();
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
        let writers = self.0.writers.read();
        let Some(mut writer) = writers.get(&model).cloned() else {
            return;
        };
        drop(writers);
        let line = json_line(event, fields, &context);
        // It hands the line to a thread; a full buffer is counted there.
        let _ = writer.write_all(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::{ModelFiles, file_name};

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
