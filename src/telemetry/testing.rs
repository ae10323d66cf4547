//! What the log says, for tests.

use std::fs;

/// The lines that this thread logs meanwhile, as people read them.
pub(crate) fn logged(what: impl FnOnce()) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let lines = file.reopen().expect("the file");
    let log = tracing_subscriber::fmt().with_ansi(false);
    let log = log.with_writer(move || lines.try_clone().expect("the file")).finish();
    tracing::subscriber::with_default(log, what);
    fs::read_to_string(file.path()).expect("the file")
}
