//! Whose turn it is to take a GPU, among the servers of one machine that wait for it.
//!
//! Each server that waits has a ticket: a file in a shared folder, named after the GPU and the time at which waiting began, and locked by
//! its owner (flock). The ticket of a process that died is therefore not locked, and does not count. The oldest ticket is next. It is
//! kept while the GPU is taken and models are loaded, those of the start included, and removed when they serve. So only one process at a
//! time takes a GPU. The next one goes by a look that began after that, and so sees what is left. Without such a folder, every server may
//! go at once.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// The folder of tickets.
#[derive(Debug, Clone)]
pub struct Turns {
    folder: Option<PathBuf>,
    /// Whether the log says already that there is no folder: tickets are asked for again and again.
    refused: Arc<AtomicBool>,
}

/// A place in the queue, until it is dropped.
#[derive(Debug)]
pub struct Ticket {
    /// Holds the lock.
    _file: File,
    path: PathBuf,
    gpu: String,
    /// Others have been before it.
    waited: bool,
    /// Since when nobody else takes the GPU.
    since: Option<Instant>,
    /// Locked while the GPU is being taken.
    taking: Option<File>,
    /// When another server last ended to take it.
    left: Option<SystemTime>,
}

/// What the first in the queue may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Take the GPU.
    Ours,
    /// Look at it again.
    Look,
    /// Wait for another server, which takes it just now.
    Taken,
}

impl Turns {
    /// Tickets in `folder`, which is made if needed. Where it cannot be used there are no tickets, and the log says so
    /// once.
    pub fn new(folder: Option<&Path>) -> Turns {
        let made = folder.map(|folder| make(folder).map(|()| folder.to_owned()));
        let folder = made.and_then(|made| {
            made.inspect_err(|error| {
                tracing::warn!(folder = ?folder, %error, "servers on this machine cannot queue for its GPUs: no shared folder");
            })
            .ok()
        });
        Turns { folder, refused: Arc::default() }
    }

    /// A ticket for a server that has waited since then. `None` without a folder.
    pub fn ticket(&self, gpu: &str, since: SystemTime) -> Option<Ticket> {
        let folder = self.folder.as_ref()?;
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = folder.join(format!("{gpu}.{since:020}.{}", std::process::id()));
        // A folder in which nobody waits may be removed, for instance by the clean-up of /tmp.
        let file = locked(&path).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => make(folder).and_then(|()| locked(&path)),
            _ => Err(error),
        });
        let refused = self.refused.swap(file.is_err(), Ordering::Relaxed);
        match file {
            Ok(file) => {
                let gpu = gpu.to_owned();
                Some(Ticket { _file: file, path, gpu, waited: false, since: None, taking: None, left: None })
            }
            Err(error) => {
                if !refused {
                    let path = path.display();
                    tracing::warn!(%path, %error, "no place in the queue for a GPU: it is taken without");
                }
                None
            }
        }
    }

    /// How many tickets are before this one. None once it takes the GPU: a server that has waited for longer may come back to the queue.
    pub fn ahead(&self, ticket: &mut Ticket) -> usize {
        if ticket.since.is_some() {
            return 0;
        }
        let ahead = self.before(ticket);
        ticket.waited |= ahead > 0;
        ahead
    }

    fn before(&self, ticket: &Ticket) -> usize {
        let Some(entries) = self.folder.as_ref().and_then(|folder| fs::read_dir(folder).ok()) else {
            return 0;
        };
        let of_gpu = format!("{}.", ticket.gpu);
        let before = entries.flatten().map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with(&of_gpu)
                && !name.ends_with(NEW)
                && !name.ends_with(TAKING)
                && *path < ticket.path
        });
        before.filter(|path| is_alive(path)).count()
    }
}

impl Ticket {
    /// Starts to take the GPU, unless another server does. `looked`: when the last look at it began; `None` where it cannot be looked at.
    /// Others are kept off until the ticket is dropped. If they were before us, what they took shows only in a look that begins now.
    pub fn enter(&mut self, looked: Option<Instant>) -> Turn {
        if !self.lock() {
            self.waited = true;
            return Turn::Taken;
        }
        // Somebody may have come and gone between our look and our ticket.
        let looked_at = looked.and_then(|looked| SystemTime::now().checked_sub(looked.elapsed()));
        self.waited |= self.left.zip(looked_at).is_some_and(|(left, looked)| left > looked);
        let since = *self.since.get_or_insert_with(Instant::now);
        match looked {
            Some(looked) if self.waited && looked < since => Turn::Look,
            _ => Turn::Ours,
        }
    }

    /// Whether nobody else takes the GPU until this ticket is dropped.
    fn lock(&mut self) -> bool {
        if self.taking.is_some() {
            return true;
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let path = folder.join(format!("{}{TAKING}", self.gpu));
        // Another user's file may be read-only; that is enough to lock it.
        let made = OpenOptions::new().create_new(true).write(true).open(&path);
        let is_new = made.is_ok();
        let made = made.and_then(|file| for_all(&file).map(|()| file)).or_else(|_| open(&path));
        let locked = made.and_then(|file| match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        });
        match locked {
            Ok(file) => {
                self.left =
                    file.as_ref().filter(|_| !is_new).and_then(|file| file.metadata().ok()?.modified().ok());
                self.taking = file;
                self.taking.is_some()
            }
            // A file system without locks: no server waits.
            Err(_) => true,
        }
    }
}

/// Suffix of the file that is locked while a GPU is taken.
const TAKING: &str = ".taking";

/// Suffix of a ticket that is not locked yet.
const NEW: &str = ".new";

fn make(folder: &Path) -> io::Result<()> {
    if !folder.is_dir() {
        fs::create_dir_all(folder)?;
        // For servers of all users; each may remove only its own files.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o1777))?;
    }
    // Tries to make and lock a file there: not every file system has locks. Servers in containers may have the same process id, and one
    // that is killed here leaves its file, so the name contains the time.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let probe = folder.join(format!("probe.{}.{now}{NEW}", std::process::id()));
    let made = OpenOptions::new().write(true).create_new(true).open(&probe);
    let locked = made.and_then(|file| file.try_lock().map_err(io::Error::from));
    let removed = fs::remove_file(probe);
    locked.and(removed)
}

/// Lets servers of all users see it, whatever this one's umask is: a server that cannot open a file cannot see that it is locked.
fn for_all(file: &File) -> io::Result<()> {
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

/// A file that is already locked when others first see it.
fn locked(path: &Path) -> io::Result<File> {
    let mut new = path.as_os_str().to_owned();
    new.push(NEW);
    let file = OpenOptions::new().write(true).create_new(true).open(&new)?;
    let locked = for_all(&file).and_then(|()| file.try_lock().map_err(io::Error::from));
    let placed = locked.and_then(|()| fs::rename(&new, path));
    if placed.is_err() {
        // It would stay for ever.
        let _ = fs::remove_file(&new);
    }
    placed.map(|()| file)
}

/// Opens a file that anybody may have put there: follows no link, and does not block on a pipe.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Whether its owner lives. Tickets of dead processes are removed where permitted.
fn is_alive(path: &Path) -> bool {
    let Ok(file) = open(path) else { return false };
    match file.try_lock() {
        Ok(()) => {
            let _ = fs::remove_file(path);
            false
        }
        Err(TryLockError::WouldBlock) => true,
        // A file system without locks: no server waits.
        Err(TryLockError::Error(_)) => false,
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Tells when that was. Another user's file cannot be changed: then it is as if nobody had been there.
        if let Some(taking) = &self.taking {
            let _ = taking.set_modified(SystemTime::now());
        }
        // If that fails, closing the file unlocks it all the same, and a server that finds it removes it.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + std::time::Duration::from_secs(seconds)
    }

    #[test]
    fn the_first_to_wait_is_the_first_to_take_and_the_dead_hold_up_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let turns = Turns::new(Some(&folder.path().join("queue")));
        let mut second = turns.ticket("GPU-1", at(2000)).unwrap();
        let mut first = turns.ticket("GPU-1", at(1000)).unwrap();
        let mut other = turns.ticket("GPU-10", at(3000)).unwrap();
        assert_eq!([&mut first, &mut second, &mut other].map(|ticket| turns.ahead(ticket)), [0, 1, 0]);
        drop(first);
        assert_eq!(turns.ahead(&mut second), 0);
        // As a killed process leaves it: present, and not locked.
        let dead = folder.path().join("queue").join(format!("GPU-1.{:020}.7", 1));
        File::create(&dead).unwrap();
        assert_eq!(turns.ahead(&mut second), 0);
        assert!(!dead.exists());
    }

    #[test]
    fn a_folder_that_has_gone_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let queue = folder.path().join("queue");
        let turns = Turns::new(Some(&queue));
        fs::remove_dir(&queue).unwrap();
        let mut first = turns.ticket("GPU-1", at(1)).unwrap();
        let mut second = turns.ticket("GPU-1", at(2)).unwrap();
        assert_eq!([&mut first, &mut second].map(|ticket| turns.ahead(ticket)), [0, 1]);
        assert_eq!(
            fs::metadata(&queue).unwrap().permissions().mode() & 0o7777,
            0o1777,
            "for servers of all users"
        );
    }

    #[test]
    fn one_at_a_time_takes_a_gpu() {
        let folder = tempfile::tempdir().unwrap();
        let turns = Turns::new(Some(folder.path()));
        let mut first = turns.ticket("GPU-1", at(1)).unwrap();
        let mut second = turns.ticket("GPU-1", at(2)).unwrap();
        assert_eq!([first.enter(None), first.enter(None)], [Turn::Ours; 2]);
        assert_eq!(second.enter(None), Turn::Taken);
        drop(first);
        assert_eq!(second.enter(None), Turn::Ours);
        assert_eq!(turns.ticket("GPU-2", at(3)).unwrap().enter(None), Turn::Ours, "another GPU");
    }

    #[test]
    fn who_had_to_wait_for_others_looks_at_what_they_left() {
        let folder = tempfile::tempdir().unwrap();
        let turns = Turns::new(Some(folder.path()));
        let before = Some(Instant::now());
        let mut first = turns.ticket("GPU-1", at(1)).unwrap();
        assert_eq!(
            (turns.ahead(&mut first), first.enter(before)),
            (0, Turn::Ours),
            "it was free all the time"
        );
        let [mut second, mut third] = [2, 3].map(|since| turns.ticket("GPU-1", at(since)).unwrap());
        assert_eq!(turns.ahead(&mut second), 1);
        drop(first);
        assert_eq!((turns.ahead(&mut second), second.enter(before)), (0, Turn::Look));
        let mut back = turns.ticket("GPU-1", at(1)).unwrap();
        assert_eq!([&mut third, &mut back].map(|other| other.enter(before)), [Turn::Taken; 2]);
        assert_eq!(turns.ahead(&mut second), 0, "nobody else takes it meanwhile, and it waits for nobody");
        let after = Some(Instant::now());
        assert_eq!([before, after].map(|looked| second.enter(looked)), [Turn::Look, Turn::Ours]);
        drop(second);
        assert_eq!([after, None].map(|looked| third.enter(looked)), [Turn::Look, Turn::Ours]);
    }

    #[test]
    fn who_looked_before_another_came_and_went_looks_again() {
        let folder = tempfile::tempdir().unwrap();
        let turns = Turns::new(Some(folder.path()));
        let before = Some(Instant::now());
        let mut first = turns.ticket("GPU-1", at(1)).unwrap();
        assert_eq!(first.enter(before), Turn::Ours);
        drop(first);
        let after = Some(Instant::now());
        let mut second = turns.ticket("GPU-1", at(2)).unwrap();
        assert_eq!((turns.ahead(&mut second), second.enter(before)), (0, Turn::Look));
        let now = Some(Instant::now());
        assert_eq!(
            [after, now].map(|looked| second.enter(looked)),
            [Turn::Look, Turn::Ours],
            "it keeps others off"
        );
        drop(second);
        let late = Some(Instant::now());
        assert_eq!(
            turns.ticket("GPU-1", at(3)).unwrap().enter(late),
            Turn::Ours,
            "it has seen what they left"
        );
    }

    #[test]
    fn servers_of_all_users_can_see_each_others_places() {
        let folder = tempfile::tempdir().unwrap();
        let turns = Turns::new(Some(folder.path()));
        let mut ticket = turns.ticket("GPU-1", at(1)).unwrap();
        assert_eq!(ticket.enter(None), Turn::Ours);
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(files.len(), 2, "{files:?}");
        for file in files {
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644, "{file:?}");
        }
    }

    #[test]
    fn what_a_server_of_the_same_number_has_there_is_no_word_on_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let theirs = File::create(folder.path().join(format!("probe.{}{NEW}", std::process::id()))).unwrap();
        theirs.lock().unwrap();
        assert!(Turns::new(Some(folder.path())).ticket("GPU-1", at(1)).is_some());
    }

    #[test]
    fn without_a_folder_it_is_everybodys_turn() {
        assert!(Turns::new(None).ticket("GPU-1", at(1)).is_none());
        assert!(Turns::new(Some(Path::new("/proc/no/such"))).ticket("GPU-1", at(1)).is_none());
    }
}
