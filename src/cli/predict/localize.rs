//! Where localizations go: a file for each stack, standard output for a single one, or only their counts.

use super::{
    BYTES_BAR, Exit, PIPE_BAR, Streams, Wanted,
    arguments::by_extension,
    ask::Asking,
    bar, cannot_write,
    destinations::{self, Place},
    stacks::{Broken, Ended, unpack},
};
use crate::{
    cli::{
        client::seconds,
        output::{self, Output},
        table::table,
    },
    tasks::localize::{Format, OVER_SPOTS_MAX, Status},
};
use futures_util::{StreamExt, stream};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Instant,
};

/// The chosen destination.
enum Into {
    /// Only the counts.
    Nothing,
    /// The standard output.
    Output(Format),
    /// A file for each stack.
    Files(Vec<PathBuf>, Format),
}

impl Streams<'_> {
    /// Finds and fits the spots of stacks.
    pub(super) async fn localize(&mut self, asking: &Asking, found: &[PathBuf], wanted: &Wanted) -> Exit {
        let into = match into(found, wanted) {
            Ok(into) => into,
            Err(reason) => return self.complain(&reason, Exit::Usage),
        };
        let bytes =
            found.iter().filter_map(|path| fs::metadata(path).ok()).map(|metadata| metadata.len()).sum();
        let bar = bar(bytes, if bytes == 0 { PIPE_BAR } else { BYTES_BAR });
        if let Into::Output(format) = into {
            let ended = asking.stack(&found[0], format, &wanted.raw, self.out, &bar).await;
            bar.finish_and_clear();
            return match ended {
                Ok(_) => match self.out.flush() {
                    Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                        self.complain(&cannot_write(wanted, &error), Exit::Failure)
                    }
                    _ => Exit::Ok,
                },
                // A reader that has closed the pipe (`| head`) is no failure.
                Err(Broken::Unwritten(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Ok,
                Err(Broken::Unwritten(error)) => self.complain(&cannot_write(wanted, &error), Exit::Failure),
                Err(broken) => {
                    self.complain(&format!("{}: {}", found[0].display(), broken.why()), Exit::Failure)
                }
            };
        }
        let each = found.iter().enumerate().map(|(index, path)| {
            let (into, bar) = (&into, &bar);
            async move {
                let began = Instant::now();
                let ended = match into {
                    Into::Files(files, format) => {
                        to_file(asking, path, &files[index], *format, wanted, bar).await
                    }
                    Into::Nothing | Into::Output(_) => counted(asking, path, wanted, bar).await,
                };
                (index, ended, seconds(began))
            }
        });
        let mut each = std::pin::pin!(stream::iter(each).buffered(wanted.concurrency));
        let (mut lines, mut exit) = (vec![header()], Exit::Ok);
        while let Some((index, ended, took)) = each.next().await {
            let name = found[index].display().to_string();
            let told = match (&into, ended) {
                (_, Err(why)) => {
                    exit = bar.suspend(|| self.complain(&format!("{name}: {why}"), Exit::Failure));
                    continue;
                }
                (Into::Files(files, _), Ok(ended)) => summary(&ended, &files[index], took),
                (_, Ok(ended)) => {
                    lines.push(row(&name, &ended));
                    continue;
                }
            };
            if let Err(stop) = bar.suspend(|| self.write(&mut None, &told, wanted)) {
                return stop;
            }
        }
        bar.finish_and_clear();
        if lines.len() > 1 && self.print(&table(&lines)) != Exit::Ok {
            return Exit::Failure;
        }
        exit
    }
}

fn into(found: &[PathBuf], wanted: &Wanted) -> Result<Into, String> {
    already_said(wanted)?;
    let format = match wanted.format.as_deref() {
        None | Some("table") => None,
        Some("json") => Some(Format::Ndjson),
        Some(name) => Some(Format::from_name(name).ok_or_else(|| {
            let known = Format::ALL.map(Format::name).join(", ");
            format!("--format is {name:?}, expected table, json, {known}")
        })?),
    };
    let Some(output) = &wanted.output else {
        return match format {
            None => Ok(Into::Nothing),
            Some(format) if found.len() == 1 => Ok(Into::Output(format)),
            Some(_) => Err(format!("{} stacks do not go to one output: name a folder with -o", found.len())),
        };
    };
    if wanted.format.as_deref() == Some("table") {
        return Err("--format table has no localizations to write to a file: leave out one of the two".into());
    }
    let says_form = by_extension(output, &extensions(), &[]).is_ok();
    let is_new = match destinations::place(found.len(), output, says_form, "stacks")? {
        Place::File => {
            let format = format.map_or_else(|| by_extension(output, &extensions(), &[]), Ok)?;
            yaml_is_ours(output, format)?;
            return Ok(Into::Files(vec![output.clone()], format));
        }
        Place::Folder { is_new } => is_new,
    };
    let format = format.ok_or("a folder does not say what to write: give --format")?;
    let files = destinations::within(output, found, format.file_extension(), "stacks")?;
    files.iter().try_for_each(|file| yaml_is_ours(file, format))?;
    if is_new {
        destinations::make(output)?;
    }
    Ok(Into::Files(files, format))
}

/// Refuses keys of the query that this command sets itself: the server would refuse a duplicate.
fn already_said(wanted: &Wanted) -> Result<(), String> {
    for (key, value) in &wanted.set {
        if key == "format" {
            return Err(format!(
                "--set {key}={value}: --format or the extension of -o decides the format: give --format {value}"
            ));
        }
        if wanted.raw.iter().any(|(said, _)| said == key) {
            return Err(format!("--set {key}={value}: --raw says it already: leave out one of the two"));
        }
    }
    Ok(())
}

/// Checks that the YAML file that Picasso needs beside its HDF5 does not replace an unrelated file: raw movies have a YAML file of
/// the same name with their acquisition settings.
fn yaml_is_ours(file: &Path, format: Format) -> Result<(), String> {
    if format != Format::Hdf5 || is_special(file) {
        return Ok(());
    }
    if file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("yaml")) {
        let told = "a file of YAML is written beside the HDF5 by its name: name one that ends in .hdf5";
        return Err(format!("-o {}: {told}", file.display()));
    }
    let yaml = file.with_extension("yaml");
    // A dangling link counts as an existing file.
    if fs::symlink_metadata(&yaml).is_ok() && !file.exists() {
        return Err(format!(
            "{} would be written over, and is of something else, since there is no {}: move it, or name another \
             file or folder",
            yaml.display(),
            file.display()
        ));
    }
    Ok(())
}

/// Whether a path is a pipe or a device.
fn is_special(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|there| !there.is_file())
}

/// The file extensions of each format.
fn extensions() -> Vec<(&'static str, Format)> {
    // ThunderSTORM's files are CSV as well.
    let own = Format::ALL.into_iter().filter(|format| *format != Format::ThunderStorm);
    let own = own.map(|format| (format.file_extension(), format));
    // Not `.arrow`, by which readers of Arrow's files know those: this is Arrow's stream.
    let others = [("jsonl", Format::Ndjson), ("json", Format::Ndjson), ("h5", Format::Hdf5)];
    own.chain(others).collect()
}

/// Writes a stack's localizations to a file. If the reply ends with a mistake in the stack, the file still gets its name, because
/// the results before it are valid. If the reply breaks off because the server has gone, it does not.
async fn to_file(
    asking: &Asking,
    path: &Path,
    file: &Path,
    format: Format,
    wanted: &Wanted,
    bar: &indicatif::ProgressBar,
) -> Result<Ended, String> {
    let cannot = |error: io::Error| format!("cannot write {}: {error}", file.display());
    if format == Format::Hdf5 && !is_special(file) {
        // Picasso needs a YAML file beside its HDF5; the server sends both in one archive.
        let mut archive = Vec::new();
        let ended = asking.stack(path, Format::Picasso, &wanted.raw, &mut archive, bar).await;
        let ended = ended.map_err(Broken::why)?;
        for (name, content) in unpack(&archive)? {
            let yaml = name.ends_with(".yaml");
            let beside = if yaml { file.with_extension("yaml") } else { file.to_owned() };
            output::write(&beside, content).map_err(cannot)?;
        }
        return Ok(ended);
    }
    let mut out = Output::create(file).map_err(cannot)?;
    match asking.stack(path, format, &wanted.raw, &mut out, bar).await {
        Ok(ended) => {
            out.finish().map_err(cannot)?;
            Ok(ended)
        }
        Err(Broken::Midway(why)) => {
            out.finish().map_err(cannot)?;
            Err(why)
        }
        Err(Broken::Off(why)) if format.streams() => Err(match out.leave() {
            Some(left) => format!("{why}; what came before is in {}", left.display()),
            None => why,
        }),
        Err(Broken::Unwritten(error)) => Err(cannot(error)),
        Err(broken) => Err(broken.why()),
    }
}

async fn counted(
    asking: &Asking,
    path: &Path,
    wanted: &Wanted,
    bar: &indicatif::ProgressBar,
) -> Result<Ended, String> {
    let ended = asking.stack(path, Format::Ndjson, &wanted.raw, &mut io::sink(), bar).await;
    ended.map_err(Broken::why)
}

fn header() -> Vec<String> {
    ["file"].into_iter().chain(counted_names()).map(str::to_uppercase).collect()
}

fn counted_names() -> impl Iterator<Item = &'static str> {
    ["frames", "localizations"].into_iter().chain(Status::ALL.map(Status::name)).chain([OVER_SPOTS_MAX])
}

fn row(name: &str, ended: &Ended) -> Vec<String> {
    let counts = counted_names().map(|name| ended.counts.get(name).copied().unwrap_or(0).to_string());
    [name.to_owned()].into_iter().chain(counts).collect()
}

/// The result of a stack, in one line.
fn summary(ended: &Ended, file: &Path, took: f64) -> String {
    let count = |name: &str| ended.counts.get(name).copied();
    let mut text = match (count("localizations"), count("frames")) {
        (Some(spots), Some(frames)) => {
            let written = count("written").unwrap_or(spots);
            format!(
                "{spots} spots in {frames} frames, {written} written to {}, in {took:.2} s",
                file.display()
            )
        }
        // Some proxies drop trailers, so there may be no counts.
        _ => format!("written to {}, in {took:.2} s", file.display()),
    };
    for name in Status::ALL.map(Status::name).into_iter().chain([OVER_SPOTS_MAX]) {
        if let Some(count) = count(name).filter(|count| *count > 0) {
            text.push_str(&format!("; {name} {count}"));
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_says_the_format() {
        let of = |name: &str| by_extension(Path::new(name), &extensions(), &[]);
        for (name, format) in [
            ("a.H5", Format::Hdf5),
            ("a.zip", Format::Picasso),
            ("a.csv", Format::Csv),
            ("a.json", Format::Ndjson),
        ] {
            assert_eq!(of(name), Ok(format), "{name}");
        }
        assert!(of("a").is_err_and(|told| told.contains("known are csv, ndjson, zip, hdf5, ")));
    }

    #[test]
    fn what_the_command_says_itself_in_the_query_is_refused_by_what_says_it() {
        let told = |given: &[&str]| {
            let given = ["predict", "spots", "movie.tif"].iter().chain(given);
            let command = clap::Command::new("predict").args(super::super::arguments());
            let matches = command.try_get_matches_from(given).expect("arguments");
            let wanted = super::super::arguments::wanted(&matches).expect("sound");
            into(&["movie.tif".into()], &wanted).map(drop)
        };
        let of_format = told(&["--set", "format=csv", "-o", "x.csv"]).expect_err("it is said by -o");
        assert!(
            of_format.starts_with("--set format=csv: --format or the extension of -o decides"),
            "{of_format}"
        );
        let of_shape = told(&["--set", "shape=1,2,2", "--raw", "2x2"]).expect_err("it is said by --raw");
        assert!(of_shape.starts_with("--set shape=1,2,2: --raw says it already"), "{of_shape}");
        assert_eq!(told(&["--set", "shape=1,2,2", "--set", "dtype=u16"]), Ok(()));
    }

    #[test]
    fn a_folder_that_is_not_there_is_made_for_several_stacks_or_where_it_is_written_like_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let told = |stacks: &[&str], output: &str, format: &[&str]| {
            let output = format!("{}/{output}", folder.path().display());
            let to = ["-o", output.as_str()];
            let given = ["predict", "spots"].iter().chain(stacks).chain(&to).chain(format);
            let command = clap::Command::new("predict").args(super::super::arguments());
            let matches = command.try_get_matches_from(given).expect("arguments");
            let wanted = super::super::arguments::wanted(&matches).expect("sound");
            let stacks: Vec<PathBuf> = stacks.iter().map(PathBuf::from).collect();
            into(&stacks, &wanted).map(|into| match into {
                Into::Files(files, _) => files.len(),
                _ => 0,
            })
        };
        let is_there = |name: &str| folder.path().join(name).is_dir();
        let no_format = "a folder does not say what to write: give --format".to_owned();
        assert_eq!(told(&["a.tif", "b.tif"], "two", &[]), Err(no_format));
        assert!(!is_there("two"), "nothing is to be written");
        assert_eq!(told(&["a.tif", "b.tif"], "two", &["--format", "csv"]), Ok(2));
        assert_eq!(told(&["a.tif"], "one/", &["--format", "csv"]), Ok(1));
        assert_eq!(told(&["a.tif"], "file.csv", &[]), Ok(1));
        for format in [&[][..], &["--format", "csv"]] {
            let two = told(&["a.tif", "b.tif"], "both.csv", format).expect_err("one file");
            assert!(
                two.starts_with("2 stacks do not go to one file, ") && two.contains("name a folder"),
                "{two}"
            );
            assert!(!is_there("both.csv"));
        }
        assert_eq!(told(&["a.tif", "b.tif"], "both.csv/", &["--format", "csv"]), Ok(2));
        assert_eq!(["two", "one", "file.csv"].map(is_there), [true, true, false]);
        let nested = told(&["a.tif"], "no/such/", &["--format", "csv"]).expect_err("nothing to make it in");
        assert!(nested.starts_with("cannot make the folder") && nested.contains("No such file"), "{nested}");
        fs::write(folder.path().join("file"), "").expect("written");
        let file = told(&["a.tif", "b.tif"], "file", &["--format", "csv"]).expect_err("no folder");
        assert!(file.starts_with("2 stacks need a folder, and "), "{file}");
    }

    #[test]
    fn a_summary_says_what_is_known() {
        let counts = [("frames", 160), ("localizations", 1466), ("written", 1466), ("converged", 1466)];
        let over = [("over_spots_max", 7)];
        let [counts, full] = [counts.to_vec(), [&counts[..], &over].concat()].map(|counts| {
            let counts = counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
            summary(&Ended { counts }, Path::new("a.csv"), 0.031)
        });
        let line = "1466 spots in 160 frames, 1466 written to a.csv, in 0.03 s; converged 1466";
        assert_eq!(counts, format!("{line}\n"));
        assert_eq!(full, format!("{line}; over_spots_max 7\n"), "frames with more are told");
        assert_eq!(summary(&Ended::default(), Path::new("a.csv"), 0.5), "written to a.csv, in 0.50 s\n");
    }

    fn yaml_beside(there: &[&str], output: &str, expected: Result<(), &str>) {
        let folder = tempfile::tempdir().expect("a folder");
        for name in there {
            fs::write(folder.path().join(name), "").expect("a file");
        }
        let root = format!("{}/", folder.path().display());
        let told =
            yaml_is_ours(&folder.path().join(output), Format::Hdf5).map_err(|why| why.replace(&root, ""));
        assert_eq!(told, expected.map_err(str::to_owned), "{there:?} {output}");
    }

    #[test]
    fn the_yaml_of_hdf5_takes_no_other_files_place() {
        yaml_beside(&[], "movie.hdf5", Ok(()));
        yaml_beside(&["movie.hdf5", "movie.yaml"], "movie.hdf5", Ok(()));
        yaml_beside(
            &["movie.raw", "movie.yaml"],
            "movie.hdf5",
            Err(
                "movie.yaml would be written over, and is of something else, since there is no movie.hdf5: move it, \
                 or name another file or folder",
            ),
        );
        yaml_beside(
            &[],
            "out.yaml",
            Err(
                "-o out.yaml: a file of YAML is written beside the HDF5 by its name: name one that ends in .hdf5",
            ),
        );
        assert_eq!(yaml_is_ours(Path::new("/dev/null"), Format::Hdf5), Ok(()));
        assert_eq!(yaml_is_ours(Path::new("out.yaml"), Format::Csv), Ok(()));
    }
}
