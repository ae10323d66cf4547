//! Localizes stacks: a file is sent while it is read, and the reply is written as it arrives.

use super::{
    super::client::{query, retry_after, told},
    ask::Asking,
};
use crate::{
    tasks::localize::{Format, OVER_SPOTS_MAX, Status},
    words::causes,
};
use axum::{
    body::Body,
    http::{Request, Response, header},
};
use bytes::Bytes;
use futures_util::{Stream, stream};
use http_body_util::{BodyExt, Collected};
use indicatif::ProgressBar;
use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Write},
    path::Path,
};

/// Bytes read from a file at once, at most.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes kept from a reply's end, to see whether it ends with an error.
const TAIL_BYTES: usize = 4096;

/// The result of a stack.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Counts by name: frames, localizations, and localizations of each status.
    pub(super) counts: BTreeMap<String, u64>,
}

/// Why localizations are missing, all or some.
pub(super) enum Broken {
    /// Nothing was written.
    Refused(String),
    /// The output ends with the error.
    Midway(String),
    /// The output is cut off.
    Off(String),
    /// Writing the output failed.
    Unwritten(std::io::Error),
}

impl Broken {
    /// The error in words.
    pub(super) fn why(self) -> String {
        match self {
            Broken::Refused(why) | Broken::Midway(why) | Broken::Off(why) => why,
            Broken::Unwritten(error) => format!("cannot be written: {error}"),
        }
    }
}

impl Asking {
    /// Posts a stack and writes its localizations to `out`. Nothing is written before a successful reply begins.
    pub(super) async fn stack(
        &self,
        path: &Path,
        format: Format,
        raw: &[(String, String)],
        out: &mut dyn Write,
        bar: &ProgressBar,
    ) -> Result<Ended, Broken> {
        let reply = self.begun(path, format, raw, bar).await.map_err(Broken::Refused)?;
        let mut body = reply.into_body();
        let (mut tail, mut counts) = (Vec::new(), BTreeMap::new());
        while let Some(frame) = body.frame().await {
            let frame =
                frame.map_err(|error| Broken::Off(format!("the reply broke off: {}", causes(&error))))?;
            match frame.into_data() {
                Ok(piece) => {
                    out.write_all(&piece).map_err(Broken::Unwritten)?;
                    tail.extend_from_slice(&piece[piece.len().saturating_sub(TAIL_BYTES)..]);
                    tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
                }
                Err(frame) => {
                    let told = frame.into_trailers().ok();
                    let told = told.as_ref().and_then(|told| told.get("ocelli-counts")?.to_str().ok());
                    counts = told.map(parse).unwrap_or_default();
                }
            }
        }
        if let Some(why) = mistake(format, &tail) {
            return Err(Broken::Midway(why));
        }
        if counts.is_empty() && format == Format::Ndjson {
            // A proxy may have dropped the trailers.
            counts = of_tail(last_line(&tail));
        }
        Ok(Ended { counts })
    }

    /// Posts a stack, with retries, until a successful reply begins.
    async fn begun(
        &self,
        path: &Path,
        format: Format,
        raw: &[(String, String)],
        bar: &ProgressBar,
    ) -> Result<Response<Body>, String> {
        let pairs = self.set.iter().chain(raw).map(|(key, value)| (&**key, &**value));
        let address = self.model.path("/predictions") + &query(pairs.chain([("format", format.name())]));
        let failed = |error: std::io::Error| format!("cannot be read: {error}");
        let mut tried = 0;
        loop {
            let file = File::open(path).map_err(failed)?;
            let metadata = file.metadata().map_err(failed)?;
            let mut request = Request::post(&address)
                .header(header::CONTENT_TYPE, "application/octet-stream")
                // Asks for the counts as trailers.
                .header(header::TE, "trailers");
            // The length of a pipe is unknown until its end.
            if metadata.is_file() {
                request = request.header(header::CONTENT_LENGTH, metadata.len());
            }
            let request = request
                .body(Body::from_stream(pieces(file, bar.clone())))
                .map_err(|error| error.to_string())?;
            let (status, after, why) = match self.server.send(request).await {
                Ok(reply) if reply.status().is_success() => return Ok(reply),
                Ok(reply) => {
                    let (status, after) = (reply.status(), retry_after(&reply));
                    let body = reply.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
                    (Some(status.as_u16()), after, told(&body).unwrap_or_else(|| format!("status {status}")))
                }
                Err(why) => (None, None, why),
            };
            match self.patience.wait(tried, status, after) {
                Some(_) if !metadata.is_file() => {
                    return Err(format!("{why}; a pipe cannot be read again, so it is not asked again"));
                }
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(self.patience.given_up(&why, after)),
            }
            tried += 1;
        }
    }
}

/// The pieces of a file, read on a blocking thread rather than on those that send.
fn pieces(file: File, bar: ProgressBar) -> impl Stream<Item = std::io::Result<Bytes>> {
    stream::try_unfold((file, bar), |(mut file, bar)| async move {
        let read = tokio::task::spawn_blocking(move || {
            // From a pipe, a read returns what is available.
            let mut piece = vec![0; PIECE_BYTES];
            let length = file.read(&mut piece)?;
            piece.truncate(length);
            Ok::<_, std::io::Error>((piece, file))
        });
        let (piece, file) = read.await.map_err(std::io::Error::other)??;
        bar.inc(piece.len() as u64);
        Ok((!piece.is_empty()).then(|| (piece.into(), (file, bar))))
    })
}

fn last_line(tail: &[u8]) -> &[u8] {
    tail.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default()
}

/// The end of an Arrow stream: a message of length 0.
const ARROW_END: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// The error at the end of a reply that broke off.
fn mistake(format: Format, tail: &[u8]) -> Option<String> {
    match format {
        Format::Ndjson => told(last_line(tail)),
        Format::Csv | Format::ThunderStorm => {
            let why = last_line(tail).strip_prefix(b"# error: ")?;
            Some(String::from_utf8_lossy(why).into_owned())
        }
        Format::Arrow if tail.ends_with(ARROW_END) => None,
        // A message is announced but missing; the error text is in its place.
        Format::Arrow => {
            let announced = tail.windows(4).rposition(|bytes| bytes == &ARROW_END[..4]);
            let words = announced.and_then(|at| std::str::from_utf8(tail.get(at + 8..)?).ok());
            Some(words.unwrap_or("the reply has no end").to_owned())
        }
        // These formats are sent only once they are complete.
        Format::Picasso | Format::Hdf5 | Format::Npy | Format::Png => None,
    }
}

/// Parses `name=number` pairs separated by commas.
fn parse(text: &str) -> BTreeMap<String, u64> {
    let pairs = text.split(',').filter_map(|pair| pair.trim().split_once('='));
    pairs.filter_map(|(name, number)| Some((name.to_owned(), number.parse().ok()?))).collect()
}

/// The same counts from the last line of NDJSON.
fn of_tail(last: &[u8]) -> BTreeMap<String, u64> {
    let value: serde_json::Value = serde_json::from_slice(last).unwrap_or_default();
    let names = ["frames", "localizations", OVER_SPOTS_MAX].map(|name| (name, &value[name]));
    let statuses = Status::ALL.map(|status| (status.name(), &value["status"][status.name()]));
    let all = names.into_iter().chain(statuses);
    all.filter_map(|(name, number)| Some((name.to_owned(), number.as_u64()?))).collect()
}

/// The names and contents of the files in an uncompressed ZIP archive, the form of the Picasso reply.
///
/// # Errors
/// If it is another kind of archive.
pub(super) fn unpack(archive: &[u8]) -> Result<Vec<(String, &[u8])>, String> {
    let broken = || "the archive of HDF5 and YAML is not one".to_owned();
    let mut files = Vec::new();
    let mut rest = archive;
    // PKWARE's APPNOTE, 4.3.7: the header of each file has its size; the files are stored uncompressed.
    while let Some(head) = rest.strip_prefix(b"PK\x03\x04") {
        let number = |at: usize, bytes: usize| {
            let field = head.get(at..at + bytes).ok_or_else(broken)?;
            Ok::<_, String>(field.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
        };
        let (method, size) = (number(4, 2)?, number(18, 4)?);
        let begins = 26 + number(22, 2)? + number(24, 2)?;
        if method != 0 {
            return Err(broken());
        }
        let name = head.get(26..26 + number(22, 2)?).ok_or_else(broken)?;
        let content = head.get(begins..begins + size).ok_or_else(broken)?;
        files.push((String::from_utf8_lossy(name).into_owned(), content));
        rest = &head[begins + size..];
    }
    if files.is_empty() { Err(broken()) } else { Ok(files) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_trailers_and_from_the_last_line() {
        let expected = BTreeMap::from([
            ("frames".to_owned(), 160),
            ("localizations".into(), 1466),
            ("converged".into(), 9),
        ]);
        assert_eq!(parse("frames=160, localizations=1466, converged=9"), expected);
        let tail = br#"{"end":true,"frames":160,"localizations":1466,"status":{"converged":9}}"#;
        assert_eq!(of_tail(tail), expected);
        assert_eq!(
            of_tail(br#"{"end":true,"over_spots_max":12}"#),
            [("over_spots_max".to_owned(), 12)].into()
        );
    }

    #[test]
    fn a_reply_that_broke_off_says_why_in_its_last_line() {
        let why = Some("page 3 is cut short".to_owned());
        assert_eq!(mistake(Format::Ndjson, br#"{"error":"page 3 is cut short","frames":2}"#), why);
        assert_eq!(mistake(Format::Csv, b"# error: page 3 is cut short"), why);
        assert_eq!(mistake(Format::Csv, b"1,2,3"), None);
        assert_eq!(mistake(Format::Ndjson, br#"{"end":true}"#), None);
        assert_eq!(mistake(Format::Ndjson, b"{\"a\":1}\n{\"error\":\"page 3 is cut short\"}\n"), why);
        assert_eq!(mistake(Format::Arrow, b"a message\xff\xff\xff\xff\0\0\0\0"), None);
        let broken = b"a message\xff\xff\xff\xff\x18\0\0\0page 3 is cut short";
        assert_eq!(mistake(Format::Arrow, broken), why);
        assert!(mistake(Format::Arrow, b"a message\0\0\0\0").is_some());
    }

    #[test]
    fn stored_files_come_out_of_an_archive_and_others_do_not() {
        let mut archive = b"PK\x03\x04\x14\0\0\0\0\0\0\0\x21\0".to_vec();
        archive.extend([0; 4]);
        archive.extend(3_u32.to_le_bytes());
        archive.extend(3_u32.to_le_bytes());
        archive.extend([1, 0, 0, 0]);
        archive.extend(b"aabcPK\x01\x02");
        assert_eq!(unpack(&archive), Ok(vec![("a".to_owned(), &b"abc"[..])]));
        archive[8] = 8;
        assert!(unpack(&archive).is_err());
        assert!(unpack(b"\x89HDF").is_err());
    }
}
