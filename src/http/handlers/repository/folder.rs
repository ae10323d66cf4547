//! Lists the model folder by name, for clients that ask which models there are. It is read on a thread of its own, once at a time and for
//! all that wait: anybody may ask, and a folder on another machine may not answer for long, or ever.

use crate::models::scan::{self, Repository};
use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// How long the folder has to answer. Requests that come later than that do not wait at all while it has not.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// A result is used again for so many times as long as reading it took, so that asking costs no more than a twentieth of a core,
const KEPT: u32 = 20;
/// and for so long at most.
const KEPT_MAX: Duration = Duration::from_secs(1);

/// The names that may be models there, or why it cannot be read.
type Names = Result<BTreeSet<String>, String>;

/// The function that reads the folder.
type Read = Arc<dyn Fn(&Repository) -> Names + Send + Sync>;

/// The folder.
pub(crate) struct Folder {
    repository: Repository,
    read: Read,
    last: Mutex<Option<Reading>>,
}

/// One reading of the folder, under way or done.
#[derive(Clone)]
struct Reading {
    began: Instant,
    /// The result, once there is one. The other end is with the thread that reads.
    done: watch::Receiver<Option<Done>>,
    /// Whether it was logged already that it takes too long.
    told: Arc<AtomicBool>,
}

#[derive(Clone)]
struct Done {
    names: Arc<BTreeSet<String>>,
    /// From then on, nobody gets this result.
    until: Instant,
}

impl Folder {
    pub(crate) fn new(repository: &Repository) -> Folder {
        Folder::read_by(repository, Arc::new(scan::names))
    }

    fn read_by(repository: &Repository, read: Read) -> Folder {
        Folder { repository: repository.clone(), read, last: Mutex::default() }
    }

    /// The names of what may be models there. Empty if the folder cannot be read, or not soon: what is loaded is listed all the same.
    pub(super) async fn names(&self) -> Arc<BTreeSet<String>> {
        let Reading { began, mut done, told } = self.reading();
        let due = tokio::time::Instant::from_std(began + ANSWERS_WITHIN);
        let done = tokio::time::timeout_at(due, done.wait_for(Option::is_some)).await;
        if done.is_err() && !told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                folder = %self.repository.folder().display(),
                "the model folder has not answered for {ANSWERS_WITHIN:?}: until it does, the repository's index has only what is loaded"
            );
        }
        done.ok()
            .and_then(Result::ok)
            .and_then(|done| done.clone())
            .map(|done| done.names)
            .unwrap_or_default()
    }

    /// The reading that is under way or that was just done, or a new one.
    fn reading(&self) -> Reading {
        let mut last = self.last.lock();
        match &*last {
            Some(reading) if reading.is_current() => reading.clone(),
            _ => last.insert(self.begin()).clone(),
        }
    }

    fn begin(&self) -> Reading {
        let (tell, done) = watch::channel(None);
        let (repository, read, began) = (self.repository.clone(), Arc::clone(&self.read), Instant::now());
        let work = move || {
            let names = read(&repository).unwrap_or_else(|error| {
                tracing::debug!(error, "the repository's index has only what is loaded");
                BTreeSet::new()
            });
            let until = Instant::now() + (began.elapsed() * KEPT).min(KEPT_MAX);
            // Nobody may be waiting any more.
            let _ = tell.send(Some(Done { names: names.into(), until }));
        };
        // If the system refuses a thread, the sender is dropped with the work.
        if let Err(error) = std::thread::Builder::new().name("ocelli-folder".into()).spawn(work) {
            tracing::warn!(%error, "no thread to read the model folder");
        }
        Reading { began, done, told: Arc::default() }
    }
}

impl Reading {
    /// Whether it is under way, or its result may still be used.
    fn is_current(&self) -> bool {
        match &*self.done.borrow() {
            Some(done) => Instant::now() < done.until,
            None => self.done.has_changed().is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use std::{fs, path::Path, sync::atomic::AtomicUsize};

    /// A folder that does not answer, since opening a pipe waits for its writer; and how often it was read.
    fn hanging(place: &Path) -> (Folder, Arc<AtomicUsize>) {
        let path = place.join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let read = move |folder: &Repository| {
            counted.fetch_add(1, Ordering::Relaxed);
            let text = fs::read_to_string(folder.folder()).unwrap();
            Ok(text.split_whitespace().map(str::to_owned).collect())
        };
        (Folder::read_by(&path.as_path().into(), Arc::new(read)), count)
    }

    #[tokio::test]
    async fn the_names_are_those_of_what_lies_there_now() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(&place.path().into());
        let names = async || {
            // What was kept is over.
            *folder.last.lock() = None;
            folder.names().await.iter().cloned().collect::<Vec<_>>()
        };
        assert_eq!(names().await, [""; 0]);
        fs::write(place.path().join("one.onnx"), "").unwrap();
        fs::write(place.path().join("README.md"), "").unwrap();
        assert_eq!(names().await, ["one"]);
        drop(place);
        assert_eq!(names().await, [""; 0], "a folder that is gone has none");
    }

    #[tokio::test]
    async fn all_who_ask_meanwhile_wait_for_one_reading_and_what_it_found_is_kept_for_a_while() {
        let place = tempfile::tempdir().unwrap();
        let (folder, read) = hanging(place.path());
        let names = async || folder.names().await.len();
        let mut asked = std::pin::pin!(futures_util::future::join_all((0..20).map(|_| names())));
        assert!(futures_util::poll!(&mut asked).is_pending());
        let path = folder.repository.folder().to_owned();
        let writes = std::thread::spawn(move || fs::write(path, "one two").unwrap());
        assert_eq!(asked.await, [2; 20]);
        writes.join().unwrap();
        assert_eq!(read.load(Ordering::Relaxed), 1);
        // As if it had just taken long.
        let last = folder.last.lock().clone().unwrap();
        let kept = |until| {
            let done = Done { until, ..last.done.borrow().clone().unwrap() };
            let done = watch::channel(Some(done)).1;
            *folder.last.lock() = Some(Reading { done, ..last.clone() });
        };
        kept(Instant::now() + Duration::from_secs(600));
        assert_eq!(names().await, 2, "nobody writes there now");
        assert_eq!(read.load(Ordering::Relaxed), 1);
        kept(Instant::now());
        let mut again = std::pin::pin!(names());
        assert!(futures_util::poll!(&mut again).is_pending());
        fs::write(folder.repository.folder(), "one").unwrap();
        assert_eq!((again.await, read.load(Ordering::Relaxed)), (1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_folder_that_does_not_answer_is_waited_for_once_and_by_one_thread() {
        let place = tempfile::tempdir().unwrap();
        let (folder, read) = hanging(place.path());
        let began = tokio::time::Instant::now();
        assert!(folder.names().await.is_empty());
        let waited = began.elapsed();
        assert!(waited <= ANSWERS_WITHIN + Duration::from_millis(10), "{waited:?}");
        for _ in 0..10 {
            assert!(folder.names().await.is_empty());
        }
        assert_eq!(began.elapsed(), waited, "nobody waits for it again");
        // Once it does answer, its names are listed.
        let mut done = folder.last.lock().clone().unwrap().done;
        fs::write(folder.repository.folder(), "one two").unwrap();
        let done = done.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        assert_eq!((done.names.len(), read.load(Ordering::Relaxed)), (2, 1));
    }
}
