//! Sets up the log: lines on standard error, for people or as JSON, and one file per model.
//!
//! A separate thread writes the lines, so that a slow terminal, pipe or disk never holds up a request. Lines that it cannot write, or
//! not fast enough, are dropped and counted ([`LinesLost`]).

use super::{
    console::{Console, Counts, End},
    filter::{Changeable, LogFilter},
    lines::{HumanFields, JsonLines, KeepFields},
    model_files::{ModelFiles, ToModelFiles},
    traces::{Traces, is_request},
};
use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};
use tracing::Subscriber;
use tracing_subscriber::{
    Layer,
    filter::{FilterExt, LevelFilter, filter_fn},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Human {
        /// Whether with colours.
        colour: bool,
    },
    /// One JSON object a line.
    Json,
}

impl Format {
    /// What suits standard error: for people, with colours, on a terminal; JSON elsewhere.
    pub fn auto() -> Format {
        match io::stderr().is_terminal() {
            true => Format::human(),
            false => Format::Json,
        }
    }

    /// For people; with colours if standard error is a terminal that supports and wants them.
    pub fn human() -> Format {
        Format::Human { colour: io::stderr().is_terminal() && colours(|name| std::env::var_os(name)) }
    }
}

/// Whether to send colours to a terminal: not if `NO_COLOR` is set and not empty, nor if `TERM` says that the terminal has none.
pub fn colours(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && variable("TERM").is_none_or(|term| term != "dumb")
}

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is invalid.
    #[error("log_filter {filter:?} is not a log filter: {reason}")]
    Filter {
        /// What was given.
        filter: String,
        /// Why not.
        reason: String,
    },
    /// The folder for the models' files cannot be written.
    #[error("log_dir {}: {error}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// The system refuses the thread that writes the lines.
    #[error("the thread that writes the log cannot be started: {0}")]
    Thread(#[source] io::Error),
    /// The log is already set up.
    #[error("the log is set up already")]
    Twice,
}

/// Guard of the log. Dropping it writes the remaining lines: keep it until the end of `main`, and end the process by returning.
#[derive(Debug)]
pub struct Logging {
    files: Option<Arc<ModelFiles>>,
    traces: Option<Arc<Traces>>,
    filter: LogFilter,
    console: Counts,
    _end: End,
}

impl Logging {
    /// A handle that tells and changes which lines the log has.
    pub fn filter(&self) -> LogFilter {
        self.filter.clone()
    }

    /// A handle that adds files for models while the log exists.
    pub fn models(&self) -> ModelLogs {
        ModelLogs { files: self.files.as_ref().map(Arc::downgrade) }
    }

    /// The traces that the log was set up with.
    pub fn traces(&self) -> Option<Arc<Traces>> {
        self.traces.clone()
    }

    /// A handle that counts lost lines, also after the log has ended.
    pub fn lines_lost(&self) -> LinesLost {
        LinesLost { console: Some(self.console.clone()), files: self.files.as_ref().map(Arc::downgrade) }
    }
}

/// Adds log files for models. It does not keep the log open; the default belongs to no log.
#[derive(Debug, Clone, Default)]
pub struct ModelLogs {
    files: Option<Weak<ModelFiles>>,
}

impl ModelLogs {
    /// Gives a model a log file from now on, if there is a folder for them. Events with a field `model` of that name, or within a span
    /// that has one, go there as well. Does not wait for the disk.
    pub fn add_model(&self, name: &str) {
        if let Some(files) = self.files.as_ref().and_then(Weak::upgrade) {
            files.add(name);
        }
    }

    /// Closes the files of models that are no longer known.
    pub fn keep(&self, known: &dyn Fn(&str) -> bool) {
        if let Some(files) = self.files.as_ref().and_then(Weak::upgrade) {
            files.keep(known);
        }
    }
}

/// The logs for which lost lines are counted: standard error, and the models' files.
pub const LOGS: [&str; 2] = ["stderr", "files"];

/// Counts the lines that were dropped because their reader or disk was too slow, full or gone. It does not keep the log open. The
/// default belongs to no log and stays at 0.
#[derive(Debug, Clone, Default)]
pub struct LinesLost {
    console: Option<Counts>,
    files: Option<Weak<ModelFiles>>,
}

impl LinesLost {
    /// The counts so far, for each of the [`LOGS`].
    pub fn counts(&self) -> [u64; 2] {
        let console = self.console.as_ref().map_or(0, Counts::lost);
        let files = self.files.as_ref().and_then(Weak::upgrade).map_or(0, |files| files.lines_lost());
        [console, files]
    }

    /// Bytes of lines that wait for whoever reads standard error.
    pub fn waiting_bytes(&self) -> u64 {
        self.console.as_ref().map_or(0, Counts::waiting_bytes)
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        if let Some(files) = &self.files {
            files.close();
        }
    }
}

/// Sets up the process's log on standard error. `filter` has the syntax of `EnvFilter`; `folder` is for the models' files. With
/// traces, requests are also sent to their collector, whatever the filter says.
///
/// # Errors
/// The filter is invalid, the folder cannot be created, or there is a log already.
pub fn init(
    format: Format,
    filter: &str,
    folder: Option<&Path>,
    traces: Option<Arc<Traces>>,
) -> Result<Logging, LogError> {
    let (subscriber, logging) = subscriber(format, filter, folder, traces, io::stderr())?;
    subscriber.try_init().map_err(|_| LogError::Twice)?;
    Ok(logging)
}

fn subscriber(
    format: Format,
    filter: &str,
    folder: Option<&Path>,
    traces: Option<Arc<Traces>>,
    console: impl Write + Send + 'static,
) -> Result<(impl Subscriber + Send + Sync, Logging), LogError> {
    let (shown, filter) =
        Changeable::new(filter).map_err(|reason| LogError::Filter { filter: filter.into(), reason })?;
    let shown = shown.or(filter_fn(is_request).with_max_level_hint(LevelFilter::ERROR));
    let files = match folder {
        Some(folder) => {
            let files =
                ModelFiles::new(folder).map_err(|error| LogError::Folder { folder: folder.into(), error })?;
            Some(Arc::new(files))
        }
        None => None,
    };
    let (writer, counts, end) = Console::start(console).map_err(LogError::Thread)?;
    let console = match format {
        Format::Human { colour } => tracing_subscriber::fmt::layer()
            .fmt_fields(HumanFields)
            .with_ansi(colour)
            .with_writer(writer)
            .boxed(),
        Format::Json => JsonLines(writer).boxed(),
    };
    // The layer that keeps fields must precede those that read them. It is left out if none does.
    let keep = (format == Format::Json || files.is_some()).then_some(KeepFields);
    let lines = Layer::and_then(keep, console).and_then(files.clone().map(ToModelFiles)).with_filter(shown);
    let subscriber =
        tracing_subscriber::registry().with(traces.as_ref().map(|traces| traces.layer())).with(lines);
    Ok((subscriber, Logging { files, traces, filter, console: counts, _end: end }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{filter::Now, request::RequestId, testing::with_log, traces::Begun};
    use parking_lot::Mutex;
    use serde_json::Value;
    use std::{collections::BTreeSet, fs};
    use tracing::{debug, info, info_span, warn};
    use tracing_subscriber::EnvFilter;

    #[derive(Clone, Default)]
    struct Console(Arc<Mutex<Vec<u8>>>);

    impl Write for Console {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What the console shows for the events of `act`.
    fn log(format: Format, filter: &str, folder: Option<&Path>, act: impl FnOnce(&Logging)) -> String {
        let console = Console::default();
        let (subscriber, logging) = subscriber(format, filter, folder, None, console.clone()).expect("a log");
        with_log(subscriber, || act(&logging));
        drop(logging);
        let bytes = console.0.lock().clone();
        String::from_utf8(bytes).expect("UTF-8")
    }

    const PLAIN: Format = Format::Human { colour: false };

    #[test]
    fn colours_are_for_terminals_that_have_them_and_people_who_want_them() {
        for (no_color, term, expected) in [
            (None, None, true),
            (Some(""), Some("xterm"), true),
            (Some("1"), Some("xterm"), false),
            (None, Some("dumb"), false),
        ] {
            let variable = |name: &str| if name == "NO_COLOR" { no_color } else { term }.map(OsString::from);
            assert_eq!(colours(variable), expected, "{no_color:?} {term:?}");
        }
    }
    const HOSTILE: &str = "x\r\n2026-01-01T00:00:00Z ERROR forged\u{1b}[2J\u{9b}31m\u{202e}\u{2028}\u{7f}";

    fn hostile_events() {
        let span = info_span!("request", id = HOSTILE, path = %HOSTILE);
        let _in = span.enter();
        let error = io::Error::other(HOSTILE);
        info!(name = HOSTILE, shown = %HOSTILE, seen = ?HOSTILE, "{HOSTILE}");
        warn!(error = &error as &(dyn std::error::Error + 'static), "failed");
    }

    #[test]
    fn values_from_outside_end_no_line_and_drive_no_terminal() {
        for format in [PLAIN, Format::Human { colour: true }, Format::Json] {
            let text = log(format, "info", None, |_| hostile_events());
            assert_eq!(text.lines().count(), 2, "{text:?}");
            for bad in ["\r", "\u{1b}[2J", "\u{9b}", "\u{202e}", "\u{2028}", "\u{7f}"] {
                assert!(!text.contains(bad), "{bad:?} is in {text:?}");
            }
            if format == PLAIN {
                assert!(!text.contains('\u{1b}'), "no colours, no escapes: {text:?}");
            }
            assert!(text.contains("forged"), "the text itself is kept");
        }
    }

    #[test]
    fn lines_for_people_show_level_target_spans_message_and_fields() {
        let text = log(PLAIN, "info", None, |_| {
            info_span!("request", id = "r1").in_scope(|| warn!(items = 3, full = true, "queue"));
        });
        let (_, rest) = text.split_once(' ').expect("a time first");
        assert_eq!(
            rest.trim(),
            "WARN request{id=\"r1\"}: ocelli::telemetry::logging::tests: queue items=3 full=true"
        );
    }

    #[test]
    fn json_lines_keep_types_and_spans() {
        let text = log(Format::Json, "info", None, |_| {
            let span = info_span!("request", id = "r1", status = tracing::field::Empty);
            span.record("status", 200);
            span.in_scope(|| {
                info_span!("decode")
                    .in_scope(|| info!(n = 3, ok = true, x = 0.5, nan = f64::NAN, "done \"x\""));
            });
        });
        let line: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "done \"x\"");
        assert_eq!(line["fields"], serde_json::json!({"n": 3, "ok": true, "x": 0.5, "nan": "NaN"}));
        assert_eq!(
            line["spans"],
            serde_json::json!([
                {"name": "request", "fields": {"id": "r1", "status": 200}},
                {"name": "decode"}
            ])
        );
        assert!(line["timestamp"].as_str().expect("text").ends_with('Z'));
    }

    #[test]
    fn an_error_is_logged_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot load")]
        struct Outer(#[source] io::Error);
        let error = Outer(io::Error::other("disk is gone"));
        for format in [PLAIN, Format::Json] {
            let text = log(format, "info", None, |_| {
                warn!(error = &error as &(dyn std::error::Error + 'static), "model");
            });
            assert!(text.contains("cannot load: disk is gone"), "{text}");
        }
    }

    #[test]
    fn the_filter_decides_what_is_written() {
        let text = log(PLAIN, "warn,ocelli::telemetry=debug", None, |_| {
            debug!("ours");
            info!(target: "hyper", "theirs");
        });
        assert!(text.contains("ours") && !text.contains("theirs"), "{text}");
        let text = log(PLAIN, "warn,[ours]=debug", None, |_| {
            debug!("outside");
            info_span!("ours").in_scope(|| debug!("inside"));
        });
        assert!(text.contains("inside") && !text.contains("outside"), "{text}");
        let watched = |filter| {
            log(PLAIN, filter, None, |_| {
                info!(target: "notify::inotify", "unable to remove watch descriptor");
            })
        };
        assert_eq!((watched("info"), watched("debug")), (String::new(), String::new()));
        assert!(watched("info,notify=info").contains("unable to remove watch descriptor"));
        let failed = |filter| {
            log(PLAIN, filter, None, |_| {
                tracing::error!(target: "notify::inotify", "broken");
            })
        };
        assert_eq!((failed("off"), failed("ocelli=info")), (String::new(), String::new()));
        assert!(failed("info").contains("broken"));
        let refused = subscriber(PLAIN, "ocelli=loud", None, None, io::sink());
        let error = refused.err().expect("not a filter").to_string();
        assert!(error.starts_with("log_filter \"ocelli=loud\" is not"), "{error}");
    }

    #[test]
    fn another_filter_holds_from_the_next_line_on_also_for_places_that_were_passed_before() {
        let told = log(PLAIN, "info", None, |logging| {
            let filter = logging.filter();
            let say = |after: &str| {
                info!(after, "ours");
                debug!(after, "ours, in detail");
                info_span!("inner").in_scope(|| debug!(after, "inside"));
            };
            say("nothing");
            assert_eq!(filter.now().level, LevelFilter::INFO);
            for (text, level) in [
                ("info,ocelli=debug", LevelFilter::DEBUG),
                ("off,[inner]=debug", LevelFilter::DEBUG),
                ("warn", LevelFilter::WARN),
                ("info", LevelFilter::INFO),
            ] {
                filter.set(text).expect("a filter");
                assert_eq!(filter.now(), Now { text: text.into(), level });
                say(text);
            }
            let refused = filter.set("ocelli=loud").expect_err("not a filter");
            assert!(refused.contains("level"), "{refused}");
            assert_eq!(filter.now().text, "info");
            say("a mistake");
        });
        let of = |after: &str| {
            let lines = told.lines().filter(|line| line.contains(&format!("after={after:?}")));
            lines.filter_map(|line| line.rsplit_once(": ")?.1.split(" after").next()).collect::<Vec<_>>()
        };
        assert_eq!(of("nothing"), ["ours"], "{told}");
        assert_eq!(of("info,ocelli=debug"), ["ours", "ours, in detail", "inside"], "{told}");
        assert_eq!(of("off,[inner]=debug"), ["inside"], "{told}");
        assert_eq!(of("warn"), [""; 0], "{told}");
        assert_eq!(of("info"), ["ours"], "{told}");
        assert_eq!(of("a mistake"), ["ours"], "{told}");
        // Those that were in force when another came.
        assert_eq!(told.matches("another log filter").count(), 2, "{told}");
    }

    /// `EnvFilter` is the reference.
    #[test]
    fn a_filter_of_targets_alone_is_read_as_one_with_spans_is() {
        macro_rules! events {
            ($($target:literal),*) => {$(
                tracing::error!(target: $target, "1");
                warn!(target: $target, "2");
                info!(target: $target, "3");
                debug!(target: $target, "4");
                tracing::trace!(target: $target, "5");
            )*};
        }
        let events = || {
            events!("ocelli", "ocelli::http::body", "ocellish", "hyper", "hyper::proto", "ort");
        };
        let mut told = BTreeSet::new();
        for filter in [
            "info",
            "WARN",
            "off",
            "4",
            "ocelli",
            "ocelli=debug",
            "ocelli=4,ocelli::http=off",
            "ocelli::http=trace,info",
            " warn , hyper=debug ",
            ",info,,",
            "ort=off,hyper=Warn,hyper=trace",
            "hyper::proto,hyper=error,debug",
            "a[b]=debug,warn,ort=trace",
        ] {
            let console = Console::default();
            let to = console.clone();
            let trimmed: Vec<_> = filter.split(',').map(str::trim).collect();
            let expected = EnvFilter::builder().parse(trimmed.join(",")).expect("a filter");
            let layer = tracing_subscriber::fmt::layer()
                .with_ansi(false)
                .without_time()
                .with_writer(move || to.clone())
                .with_filter(expected);
            with_log(tracing_subscriber::registry().with(layer), events);
            let expected = String::from_utf8(console.0.lock().clone()).expect("UTF-8");
            let got = log(PLAIN, filter, None, |_| events());
            // Without the time.
            let got: String = got.lines().map(|line| format!("{}\n", line.split_at(28).1)).collect();
            assert_eq!(got, expected, "{filter:?}");
            told.insert(got);
        }
        assert!(told.len() > 9, "they differ: {}", told.len());
    }

    #[test]
    fn lines_have_their_request_and_model_whatever_the_filter_shows() {
        let id = RequestId::new();
        let logged = |filter: &str| {
            let folder = tempfile::tempdir().expect("a folder");
            let text = log(PLAIN, filter, Some(folder.path()), |logging| {
                logging.models().add_model("digits");
                let begun = Begun::new(None, &id, &http::HeaderMap::new());
                begun.span.record("model", "digits");
                begun.span.in_scope(|| warn!(target: "ocelli::http::observe", "answered"));
            });
            (text, fs::read_to_string(folder.path().join("digits.log")).expect("a file"))
        };
        for filter in
            ["info", "warn", "off,ocelli=warn", "ocelli::http::observe=warn", "hyper=info,ocelli::http=warn"]
        {
            let (text, of_model) = logged(filter);
            assert_eq!(
                (text.lines().count(), of_model.lines().count()),
                (1, 1),
                "{filter}: {text}{of_model}"
            );
            assert!(text.contains("model=\"digits\"") && text.contains(" trace="), "{filter}: {text}");
            for told in [&text, &of_model] {
                assert!(told.contains(id.as_str()), "{filter}: {told}");
            }
        }
        for filter in ["off", "error", "ocelli::grpc=warn"] {
            assert_eq!(logged(filter), Default::default(), "{filter}");
        }
    }

    #[test]
    fn events_of_a_model_go_to_its_file_as_well() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = log(Format::Json, "info", Some(folder.path()), |logging| {
            logging.models().add_model("digits");
            logging.models().add_model("boxes");
            logging.models().add_model("digits");
            info!(model = "digits", "by field");
            info!(model = %"digits", "shown");
            info_span!("request", model = "digits").in_scope(|| {
                info!("by span");
                info_span!("inner").in_scope(|| info!("by outer span"));
                info!(model = "boxes", "event wins");
            });
            let late = info_span!("request", model = tracing::field::Empty);
            late.record("model", "boxes");
            late.in_scope(|| info!("named later"));
            info!("nobody's");
        });
        assert_eq!(text.lines().count(), 7, "the log of all has everything");
        let messages = |name: &str| -> Vec<String> {
            let text = fs::read_to_string(folder.path().join(name)).expect(name);
            let lines = text.lines().map(|line| {
                let line: Value = serde_json::from_str(line).expect("JSON");
                line["message"].as_str().expect("text").to_string()
            });
            lines.collect()
        };
        assert_eq!(messages("digits.log"), ["by field", "shown", "by span", "by outer span"]);
        assert_eq!(messages("boxes.log"), ["event wins", "named later"]);
    }

    /// A full disk.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let (subscriber, logging) = subscriber(Format::Json, "info", None, None, Full).expect("a log");
        let lost = logging.lines_lost();
        with_log(subscriber, || {
            info!("one");
            info!("another");
        });
        // This ends the writing thread.
        drop(logging);
        assert_eq!(lost.counts(), [2, 0]);
    }

    #[test]
    fn a_name_that_is_in_no_catalog_opens_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        log(PLAIN, "info", Some(folder.path()), |_| {
            info!(model = "../invented", "unknown model");
            info!(model = "invented", "unknown model");
        });
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_said_at_the_start() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let refused = subscriber(PLAIN, "info", Some(file.path()), None, io::sink());
        let error = refused.err().expect("not a folder").to_string();
        assert!(error.starts_with("log_dir /"), "{error}");
    }
}
