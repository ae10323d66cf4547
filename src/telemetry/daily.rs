//! Daily log files: `NAME.DAY`, and the link `NAME` to the current one.
//!
//! One thread creates, writes, removes and closes them. A disk that hangs blocks only that thread.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
};

/// Daily files that are kept.
const FILES_MAX: usize = 14;

/// The files of one name.
#[derive(Debug)]
pub(super) struct Daily {
    folder: PathBuf,
    name: String,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    day: String,
    /// Whether the last line was written only in part.
    torn: bool,
}

impl Daily {
    /// The files behind this link. Creates none yet.
    pub(super) fn new(link: &Path) -> Daily {
        let name = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Daily { folder: link.parent().unwrap_or(Path::new("")).to_owned(), name, open: None }
    }

    /// Writes lines, possibly none, to the file of `day` (`YYYY-MM-DD`). If the file is missing, removed or moved, it is created
    /// again, with its folder if need be, and the oldest files are removed. `Ok(Some(error))` means that the lines were written, but
    /// to an earlier day's or a moved file, or that the link could not be set; the error is the reason.
    ///
    /// # Errors
    /// If the lines were not written, or only in part.
    pub(super) fn write(&mut self, lines: &str, day: &str, kept: &mut Kept) -> io::Result<Option<io::Error>> {
        let mut amiss = None;
        if !self.open.as_ref().is_some_and(|open| open.day == day && self.is_led_to(open)) {
            match self.make(day) {
                Ok(open) => {
                    self.open = Some(open);
                    kept.remove_oldest(&self.folder, &self.name, day);
                    amiss = self.link(day).err();
                }
                Err(error) => {
                    // Nobody reads what is written to a deleted file.
                    self.open = self.open.take().filter(Open::has_a_name);
                    amiss = Some(error);
                }
            }
        }
        let Some(open) = &mut self.open else { return amiss.map_or(Ok(None), Err) };
        append(&mut open.file, &mut open.torn, lines)?;
        Ok(amiss)
    }

    /// Whether the link leads to the open file.
    fn is_led_to(&self, open: &Open) -> bool {
        fs::metadata(self.folder.join(&self.name)).is_ok_and(|there| identity(&there) == open.identity)
    }

    fn make(&self, day: &str) -> io::Result<Open> {
        let path = self.folder.join(format!("{}.{day}", self.name));
        let open = || OpenOptions::new().append(true).create(true).open(&path);
        let file = open().or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => fs::create_dir_all(&self.folder).and_then(|()| open()),
            _ => Err(error),
        })?;
        Ok(Open { identity: identity(&file.metadata()?), file, day: day.to_owned(), torn: false })
    }

    fn link(&self, day: &str) -> io::Result<()> {
        // A relative link: the folder may be moved, or have another path for readers.
        let (to, link) = (format!("{}.{day}", self.name), self.folder.join(&self.name));
        if fs::read_link(&link).is_ok_and(|now| now == Path::new(&to)) {
            return Ok(());
        }
        let beside = self.folder.join(format!(".{}.link", self.name));
        // A leftover, if the process once ended in the middle of this.
        let _ = fs::remove_file(&beside);
        symlink(&to, &beside)?;
        // Renamed atomically, so that readers always find a link.
        fs::rename(&beside, &link).inspect_err(|_| _ = fs::remove_file(&beside))
    }
}

impl Open {
    fn has_a_name(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Writes lines. If an earlier write was cut short, begins a new line first.
fn append(to: &mut impl Write, torn: &mut bool, lines: &str) -> io::Result<()> {
    if *torn {
        to.write_all(b"\n")?;
        *torn = false;
    }
    let mut left = lines.as_bytes();
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

/// The days with files in a folder, by the files' name. The folder is read once a day: once per model would take minutes with
/// thousands of models.
#[derive(Debug, Default)]
pub(super) struct Kept {
    read_on: String,
    days: HashMap<String, Vec<String>>,
}

impl Kept {
    /// Removes the oldest files of a name beyond those that are kept. Age is the day in the file's name, not the file's time. Runs
    /// once a day per name.
    fn remove_oldest(&mut self, folder: &Path, name: &str, today: &str) {
        if self.read_on != today {
            *self = Kept { read_on: today.to_owned(), days: days(folder) };
        }
        let mut days = self.days.remove(name).unwrap_or_default();
        days.retain(|day| day != today);
        days.sort_unstable_by(|a, b| b.cmp(a));
        for day in days.iter().skip(FILES_MAX - 1) {
            let file = folder.join(format!("{name}.{day}"));
            // Somebody else may have removed it since the folder was read.
            if let Err(error) = fs::remove_file(&file)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(file = %file.display(), %error, "an old log file cannot be removed");
            }
        }
    }
}

fn days(folder: &Path) -> HashMap<String, Vec<String>> {
    let mut days: HashMap<String, Vec<String>> = HashMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name();
        if let Some((name, day)) = file.to_str().and_then(|file| file.rsplit_once('.'))
            && is_day(day)
        {
            days.entry(name.to_owned()).or_default().push(day.to_owned());
        }
    }
    days
}

/// Whether this is `YYYY-MM-DD`.
fn is_day(text: &str) -> bool {
    let is_part =
        |(at, byte): (usize, u8)| if [4, 7].contains(&at) { byte == b'-' } else { byte.is_ascii_digit() };
    text.len() == 10 && text.bytes().enumerate().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::testing::logged;

    /// A folder, and the files of `m.log` there.
    struct Logs {
        folder: tempfile::TempDir,
        daily: Daily,
        kept: Kept,
    }

    impl Logs {
        fn new() -> Logs {
            let folder = tempfile::tempdir().expect("a folder");
            let daily = Daily::new(&folder.path().join("m.log"));
            Logs { folder, daily, kept: Kept::default() }
        }

        fn write(&mut self, line: &str, day: &str) -> io::Result<Option<io::Error>> {
            self.daily.write(line, day, &mut self.kept)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        fn text(&self, name: &str) -> String {
            fs::read_to_string(self.path(name)).expect(name)
        }

        fn names(&self) -> Vec<String> {
            let name = |entry: io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
            let entries = fs::read_dir(self.folder.path()).expect("a folder");
            let mut names: Vec<_> = entries.map(|entry| name(entry).into_string().expect("text")).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn each_day_has_its_file_whichever_way_the_clock_goes_and_the_link_leads_there() {
        let mut logs = Logs::new();
        for (line, day) in [
            ("1\n", "2026-11-27"),
            ("2\n", "2026-11-28"),
            ("3\n", "2099-01-01"),
            ("4\n", "2026-11-29"),
            ("5\n", "2026-11-28"),
        ] {
            assert!(matches!(logs.write(line, day), Ok(None)));
            assert_eq!(
                fs::read_link(logs.path("m.log")).expect("a link"),
                Path::new(&format!("m.log.{day}"))
            );
        }
        let days = ["2026-11-27", "2026-11-28", "2026-11-29", "2099-01-01"];
        assert_eq!(days.map(|day| logs.text(&format!("m.log.{day}"))), ["1\n", "2\n5\n", "4\n", "3\n"]);
        assert_eq!(logs.names().len(), 5, "nothing is left beside: {:?}", logs.names());
    }

    #[test]
    fn the_last_fourteen_days_are_kept_and_what_others_have_there() {
        let mut logs = Logs::new();
        let others = ["m.log.2026-01-01.gz", "m.log.old", "n.log.2025-01-01", "mm.log.2025-01-01"];
        for name in others {
            fs::write(logs.path(name), "").expect("a file");
        }
        for day in 1..=16 {
            fs::write(logs.path(&format!("m.log.2026-11-{day:02}")), "").expect("a file");
        }
        // A second time on a day that has a file removes no kept file.
        for _ in 0..2 {
            logs.write("line\n", "2026-11-16").expect("written");
            logs.daily.open = None;
            logs.kept = Kept::default();
        }
        let mut expected: Vec<_> = (3..=16).map(|day| format!("m.log.2026-11-{day:02}")).collect();
        expected.extend(others.map(str::to_owned));
        expected.push("m.log".to_owned());
        expected.sort();
        assert_eq!(logs.names(), expected);
        logs.write("line\n", "2026-11-17").expect("written");
        assert!(!logs.path("m.log.2026-11-03").exists() && logs.path("m.log.2026-11-04").exists());
    }

    #[test]
    fn where_a_days_file_cannot_be_made_lines_go_to_the_one_before_until_it_can() {
        let mut logs = Logs::new();
        logs.write("1\n", "2026-11-27").expect("written");
        fs::create_dir(logs.path("m.log.2026-11-28")).expect("a folder");
        assert!(matches!(logs.write("2\n", "2026-11-28"), Ok(Some(_))));
        assert_eq!(logs.text("m.log"), "1\n2\n");
        fs::remove_dir(logs.path("m.log.2026-11-28")).expect("removed");
        assert!(matches!(logs.write("3\n", "2026-11-28"), Ok(None)));
        assert_eq!([logs.text("m.log.2026-11-27"), logs.text("m.log")], ["1\n2\n", "3\n"]);
    }

    #[test]
    fn where_there_can_be_no_link_lines_are_written_and_without_a_file_they_are_an_error() {
        let mut logs = Logs::new();
        let day = "2026-11-27";
        fs::create_dir(logs.path("m.log")).expect("a folder");
        assert!(matches!(logs.write("1\n", day), Ok(Some(_))));
        assert_eq!((logs.text("m.log.2026-11-27"), logs.names().len()), ("1\n".to_owned(), 2));
        fs::remove_dir(logs.path("m.log")).expect("removed");
        assert!(matches!(logs.write("2\n", day), Ok(None)));
        assert_eq!(logs.text("m.log"), "1\n2\n");
        let mut nowhere = Daily::new(&logs.path("m.log.2026-11-27/nowhere/m.log"));
        nowhere
            .write("1\n", day, &mut Kept::default())
            .expect_err("there is a file where the folder is to be");
    }

    #[test]
    fn a_folder_that_was_removed_is_made_again_and_where_it_cannot_be_no_line_goes_to_what_is_gone() {
        let mut logs = Logs::new();
        let (day, folder) = ("2026-11-27", logs.folder.path().to_owned());
        assert!(matches!(logs.write("1\n", day), Ok(None)));
        fs::remove_dir_all(&folder).expect("removed");
        assert!(matches!(logs.write("2\n", day), Ok(None)));
        assert_eq!(logs.text("m.log"), "2\n");
        fs::remove_dir_all(&folder).expect("removed");
        fs::write(&folder, "").expect("a file in its place");
        logs.write("3\n", day).expect_err("nobody would find it");
        fs::remove_file(&folder).expect("removed");
        assert!(matches!(logs.write("4\n", day), Ok(None)));
        assert_eq!(logs.text("m.log"), "4\n");
    }

    #[test]
    fn an_old_file_that_somebody_else_removed_is_no_news() {
        let folder = tempfile::tempdir().expect("a folder");
        let days = (1..=16).map(|day| format!("2026-11-{day:02}")).collect();
        let mut kept = Kept { read_on: "2026-11-27".to_owned(), days: [("m.log".to_owned(), days)].into() };
        assert_eq!(logged(|| kept.remove_oldest(folder.path(), "m.log", "2026-11-27")), "");
    }

    #[test]
    fn no_line_goes_to_a_file_that_was_removed_or_moved() {
        let mut logs = Logs::new();
        let day = "2026-11-27";
        let write = |logs: &mut Logs, line| assert!(matches!(logs.write(line, day), Ok(None)));
        write(&mut logs, "1\n");
        fs::remove_file(logs.path("m.log.2026-11-27")).expect("removed");
        write(&mut logs, "2\n");
        assert_eq!(logs.text("m.log"), "2\n");
        fs::rename(logs.path("m.log.2026-11-27"), logs.path("moved")).expect("moved");
        write(&mut logs, "3\n");
        fs::remove_file(logs.path("m.log")).expect("removed");
        write(&mut logs, "4\n");
        assert_eq!([logs.text("moved"), logs.text("m.log")], ["2\n", "3\n4\n"]);
    }

    #[test]
    fn a_line_behind_one_that_was_written_in_part_begins_anew() {
        /// A disk with room for this many bytes.
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
    fn days_are_told_by_their_form() {
        assert!(is_day("2026-11-27"));
        for other in ["2026-11-2", "2026-11-277", "2026.11.27", "20x6-11-27", "", "2026-11-2é"] {
            assert!(!is_day(other), "{other}");
        }
    }
}
