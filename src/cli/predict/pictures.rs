//! Answers that are pictures, written as files: masks, and the output of networks that return images.

use super::{
    Exit, FILES_BAR, Streams, Wanted,
    arguments::by_extension,
    ask::{Asking, Reply},
    bar, cannot_write,
    destinations::{self, Place},
};
use crate::cli::output;
use futures_util::{StreamExt, stream};
use serde_json::Value;
use std::{
    io,
    path::{Path, PathBuf},
};

/// A format of pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Picture {
    /// With 8 or 16 bits.
    Png,
    /// With the values as they are: classes, or 32-bit floating point numbers; a page for each posted one.
    Tiff,
}

/// Names and file extensions of these formats.
const NAMES: [(&str, Picture); 3] = [("png", Picture::Png), ("tiff", Picture::Tiff), ("tif", Picture::Tiff)];

impl Picture {
    /// The picture format that the user asks for, by name or by the output file's extension; `None` if answers are to be text.
    ///
    /// # Errors
    /// A message, if the task has no pictures in that format.
    pub(super) fn of(
        task: &str,
        format: Option<&str>,
        output: Option<&Path>,
    ) -> Result<Option<Picture>, String> {
        let named = match format {
            Some(format) => NAMES.iter().find(|(name, _)| *name == format).map(|(_, picture)| *picture),
            None => output.and_then(|output| by_extension(output, &NAMES, &[]).ok()),
        };
        match (named, task) {
            (None, _) | (_, "image" | "segment") => Ok(named),
            (Some(Picture::Tiff), _) => Err(format!("models of the task {task} answer no pictures")),
            // Only localizations are drawn as a PNG. For other tasks, the caller reports the possible forms.
            (Some(Picture::Png), _) => Ok(None),
        }
    }

    /// The names of the formats that a task has.
    pub(super) fn names(task: &str) -> &'static [&'static str] {
        match task {
            "image" | "segment" => &["png", "tiff"],
            _ => &[],
        }
    }

    fn extension(self) -> &'static str {
        match self {
            Picture::Png => "png",
            Picture::Tiff => "tiff",
        }
    }

    /// What is wrong with a query that asks for another form of masks.
    fn contradiction(self, set: &[(String, String)]) -> Option<String> {
        let asks = set.iter().any(|(key, value)| (&**key, &**value) == ("mask", "rle"));
        asks.then(|| {
            format!(
                "--set mask=rle is a form within JSON, and {} is another form of a mask: leave out one of the two",
                self.extension()
            )
        })
    }

    fn media(self) -> &'static str {
        match self {
            Picture::Png => "image/png",
            Picture::Tiff => "image/tiff",
        }
    }
}

impl Streams<'_> {
    /// Writes the picture in the answer for each file.
    pub(super) async fn pictures(
        &mut self,
        asking: &Asking,
        found: Vec<PathBuf>,
        picture: Picture,
        wanted: &Wanted,
    ) -> Exit {
        if let Some(told) = picture.contradiction(&wanted.set) {
            return self.complain(&told, Exit::Usage);
        }
        let files = match into(&found, picture, wanted) {
            Ok(files) => files,
            Err(reason) => return self.complain(&reason, Exit::Usage),
        };
        let bar = bar(found.len() as u64, FILES_BAR);
        let asked = found.into_iter().enumerate().map(|(index, path)| async move {
            let reply = asking.file(&path, Some(picture.media())).await;
            (index, path, reply)
        });
        let mut asked = std::pin::pin!(stream::iter(asked).buffered(wanted.concurrency));
        let mut exit = Exit::Ok;
        while let Some((index, path, reply)) = asked.next().await {
            let file = files.as_ref().map(|files| &*files[index]);
            let written = match reply {
                Ok(Reply { ok: true, body }) => self.picture(&path, file, &body, wanted),
                Ok(Reply { ok: false, body }) => Err(refusal(&body)),
                Err(why) => Err(why),
            };
            bar.inc(1);
            if let Err(why) = written {
                let told = format!("{}: {why}", path.display());
                exit = bar.suspend(|| self.complain(&told, Exit::Failure));
            }
        }
        bar.finish_and_clear();
        exit
    }

    /// Writes a picture to its file, and prints a line that says so; or writes it to standard output.
    fn picture(
        &mut self,
        path: &Path,
        file: Option<&Path>,
        body: &[u8],
        wanted: &Wanted,
    ) -> Result<(), String> {
        let written = match file {
            Some(file) => {
                output::write(file, body)
                    .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
                writeln!(self.out, "{}: written to {}, {} bytes", path.display(), file.display(), body.len())
            }
            None => self.out.write_all(body).and_then(|()| self.out.flush()),
        };
        match written {
            // A reader that has closed the pipe (`| head`) is no failure.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(cannot_write(wanted, &error)),
            _ => Ok(()),
        }
    }
}

/// Why there is no picture. The server's own message on several images is meant for programs, and names other ways to get them.
fn refusal(body: &[u8]) -> String {
    let problem = serde_json::from_slice::<Value>(body).unwrap_or_default();
    if problem["status"] != 406 {
        return Reply::refusal(body);
    }
    "it has several pages, and one picture is written as png; --format tiff writes a page for each, and json answers a picture for each"
        .to_owned()
}

/// The file of each picture; `None` for standard output.
fn into(found: &[PathBuf], picture: Picture, wanted: &Wanted) -> Result<Option<Vec<PathBuf>>, String> {
    let Some(output) = &wanted.output else {
        return match found.len() {
            1 => Ok(None),
            count => Err(format!("{count} pictures do not go to one output: name a folder with -o")),
        };
    };
    let says_form = by_extension(output, &NAMES, &[]).is_ok();
    match destinations::place(found.len(), output, says_form, "pictures")? {
        Place::File => Ok(Some(vec![output.clone()])),
        Place::Folder { is_new } => {
            let files = destinations::within(output, found, picture.extension(), "pictures")?;
            if is_new {
                destinations::make(output)?;
            }
            Ok(Some(files))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_asked_for_by_name_or_by_the_file_that_it_is_written_to() {
        let of = |task, format, output: Option<&str>| Picture::of(task, format, output.map(Path::new));
        assert_eq!(of("segment", None, Some("a.PNG")), Ok(Some(Picture::Png)));
        assert_eq!(of("image", None, Some("a.tif")), Ok(Some(Picture::Tiff)));
        assert_eq!(of("image", Some("tiff"), Some("folder")), Ok(Some(Picture::Tiff)));
        assert_eq!(of("segment", Some("csv"), Some("a.png")), Ok(None), "what is named counts");
        for (task, format, output) in
            [("image", None, None), ("classify", Some("png"), None), ("image", None, Some("a"))]
        {
            assert_eq!(of(task, format, output), Ok(None), "{task} {format:?} {output:?}");
        }
        assert_eq!(of("segment", Some("tiff"), None), Ok(Some(Picture::Tiff)));
        assert!(of("classify", Some("tiff"), None).is_err_and(|told| told.contains("no pictures")));
        let runs = [("mask".to_owned(), "rle".to_owned())];
        for (picture, name) in [(Picture::Png, "and png is"), (Picture::Tiff, "and tiff is")] {
            assert!(picture.contradiction(&runs).is_some_and(|told| told.contains(name)), "{name}");
            assert_eq!(picture.contradiction(&[]), None);
        }
    }
}
