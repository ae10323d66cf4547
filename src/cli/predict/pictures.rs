//! Pictures that a model answers, as files of their own: masks, and what networks of pictures give.

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

/// A form of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Picture {
    /// Of 8 or 16 bits.
    Png,
    /// Of 32-bit floating point numbers.
    Tiff,
}

/// Their names, and what files of them end with.
const NAMES: [(&str, Picture); 3] = [("png", Picture::Png), ("tiff", Picture::Tiff), ("tif", Picture::Tiff)];

impl Picture {
    /// The form that is asked for of a model of a task, by its name, or by what the file that is written to ends in; none where answers are
    /// to be text.
    ///
    /// # Errors
    /// Words, if the task has no pictures of that form.
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
            (None, _) | (_, "image") | (Some(Picture::Png), "segment") => Ok(named),
            (Some(Picture::Tiff), "segment") => Err("masks are written as png, and not as tiff".to_owned()),
            (Some(Picture::Tiff), _) => Err(format!("models of the task {task} answer no pictures")),
            // Localizations alone are drawn as one; what others can be written as is told.
            (Some(Picture::Png), _) => Ok(None),
        }
    }

    /// The forms that a task has, by name.
    pub(super) fn names(task: &str) -> &'static [&'static str] {
        match task {
            "image" => &["png", "tiff"],
            "segment" => &["png"],
            _ => &[],
        }
    }

    fn extension(self) -> &'static str {
        match self {
            Picture::Png => "png",
            Picture::Tiff => "tiff",
        }
    }

    fn media(self) -> &'static str {
        match self {
            Picture::Png => "image/png",
            Picture::Tiff => "image/tiff",
        }
    }
}

impl Streams<'_> {
    /// Writes the picture that is answered for each file.
    pub(super) async fn pictures(
        &mut self,
        asking: &Asking,
        found: Vec<PathBuf>,
        picture: Picture,
        wanted: &Wanted,
    ) -> Exit {
        if wanted.set.iter().any(|(key, value)| (&**key, &**value) == ("mask", "rle")) {
            let told = "--set mask=rle is a form within JSON, and png is another form of a mask: leave out one of the two";
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
                Ok(Reply { ok: false, body }) => Err(refusal(&body, picture)),
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

    /// Writes one, to its file or to the standard output; to a file, with a line that says so.
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
            // A reader that has gone (`| head`) is no failure of ours.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(cannot_write(wanted, &error)),
            _ => Ok(()),
        }
    }
}

/// Why there is no picture. To a program the server says that it can answer several images otherwise.
fn refusal(body: &[u8], picture: Picture) -> String {
    let problem = serde_json::from_slice::<Value>(body).unwrap_or_default();
    if problem["status"] != 406 {
        return Reply::refusal(body);
    }
    let form = picture.extension();
    format!(
        "it has several pages, and one picture is written as {form}; --format json answers a picture for each page"
    )
}

/// The file of each picture; none for the standard output.
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
        assert!(of("segment", Some("tiff"), None).is_err_and(|told| told.contains("as png")));
        assert!(of("classify", Some("tiff"), None).is_err_and(|told| told.contains("no pictures")));
    }
}
