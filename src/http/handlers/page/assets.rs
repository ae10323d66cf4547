//! The files of the page, as they are part of the binary.

use super::manuals::manuals;
use crate::{
    error::InferError,
    http::{accepted, reject::Problem},
};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Response, header},
    response::IntoResponse,
};
use bytes::Bytes;
use flate2::read::GzDecoder;
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hasher},
    io::{self, Read},
    sync::OnceLock,
};

/// The files in `assets`, by the names under which they are served.
macro_rules! files {
    ($( $name:literal $(from $path:literal)? ),* $(,)?) => {
        &[$( ($name, files!(@bytes $name $($path)?)) ),*]
    };
    (@bytes $name:literal) => { include_bytes!(concat!("assets/", $name)) };
    (@bytes $name:literal $path:literal) => { include_bytes!($path) };
}

/// Files of our own, and examples to try.
const FILES: &[(&str, &[u8])] = files![
    "index.html",
    "docs.html",
    "style.css",
    "docs.css",
    "manual.css",
    "icon.svg",
    "answers.js",
    "api.js",
    "app.js",
    "chart.js",
    "devices.js",
    "docs.js",
    "dom.js",
    "examples.js",
    "kept.js",
    "live.js",
    "localize.js",
    "models.js",
    "orient.js",
    "picture.js",
    "png.js",
    "prometheus.js",
    "redraw.js",
    "snippets.js",
    "stack.js",
    "tiff.js",
    "timing.js",
    "token.js",
    "try.js",
    "digit-3.png" from "../../../../examples/images/digits/3-0.png",
    "digit-7.png" from "../../../../examples/images/digits/7-0.png",
    "digits-1.png" from "../../../../examples/images/digits-detector/1.png",
    "digits-3.png" from "../../../../examples/images/digits-detector/3.png",
];

/// Files that others made, as they published them but packed: see `vendor/README.md`.
const PACKED: &[(&str, &[u8])] = &[
    ("swagger-ui.css", include_bytes!("vendor/swagger-ui.css.gz")),
    ("swagger-ui-bundle.js", include_bytes!("vendor/swagger-ui-bundle.js.gz")),
];

/// All files and all manuals, by name.
pub(crate) struct Assets {
    files: BTreeMap<&'static str, Asset>,
    manuals: BTreeMap<&'static str, Asset>,
}

/// A file.
pub(super) struct Asset {
    media: &'static str,
    bytes: Bytes,
    /// Whether `bytes` are packed with gzip.
    packed: bool,
    /// The unpacked bytes, once a client has asked for them.
    plain: OnceLock<Bytes>,
    tag: HeaderValue,
}

impl Assets {
    pub(super) fn new() -> Assets {
        let ours = FILES.iter().map(|file| (file, false));
        let theirs = PACKED.iter().map(|file| (file, true));
        let asset = |(&(name, bytes), packed)| (name, Asset::new(name, Bytes::from_static(bytes), packed));
        let manual = |(name, text): (_, String)| (name, Asset::new("manual.html", text.into(), false));
        Assets {
            files: ours.chain(theirs).map(asset).collect(),
            manuals: manuals().into_iter().map(manual).collect(),
        }
    }

    /// A file below `/page`.
    pub(super) fn get(&self, name: &str) -> Option<&Asset> {
        self.files.get(name)
    }

    /// A manual below `/docs`.
    pub(super) fn manual(&self, name: &str) -> Option<&Asset> {
        self.manuals.get(name)
    }
}

impl Asset {
    fn new(name: &str, bytes: Bytes, packed: bool) -> Asset {
        let media = match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("svg") => "image/svg+xml",
            Some("png") => "image/png",
            other => unreachable!("no media type for {other:?}: add it here"),
        };
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        // Weak: the same file may go out packed in several ways.
        let tag = format!("W/\"{:016x}\"", hasher.finish());
        let tag = HeaderValue::from_str(&tag).expect("hexadecimal digits");
        Asset { media, bytes, packed, plain: OnceLock::new(), tag }
    }

    pub(super) fn is_document(&self) -> bool {
        self.media.starts_with("text/html")
    }

    pub(super) fn tag(&self) -> HeaderValue {
        self.tag.clone()
    }

    /// Whether the client says that it has this version of the file (RFC 9110, 13.1.2).
    pub(super) fn is_known_to(&self, headers: &HeaderMap) -> bool {
        let ours = self.tag.as_bytes();
        let known = |value: &HeaderValue| {
            value.as_bytes().split(|byte| *byte == b',').any(|tag| tag.trim_ascii() == ours)
        };
        !self.is_document() && headers.get_all(header::IF_NONE_MATCH).iter().any(known)
    }

    /// The file in a coding that the client can read.
    pub(super) fn body(&self, headers: &HeaderMap) -> Result<Response<Body>, Problem> {
        let media = [(header::CONTENT_TYPE, self.media)];
        if !self.packed {
            return Ok((media, self.bytes.clone()).into_response());
        }
        let vary = [(header::VARY, "accept-encoding")];
        if takes_gzip(headers) {
            let coding = [(header::CONTENT_ENCODING, "gzip")];
            return Ok((media, vary, coding, self.bytes.clone()).into_response());
        }
        match self.unpacked() {
            Ok(plain) => Ok((media, vary, plain).into_response()),
            Err(error) => {
                Err(Problem::from(&InferError::Internal(format!("a file does not unpack: {error}"))))
            }
        }
    }

    /// Unpacked once for all clients: it has megabytes, and HTTP/2 lets a client ask for hundreds at once.
    fn unpacked(&self) -> io::Result<Bytes> {
        if let Some(plain) = self.plain.get() {
            return Ok(plain.clone());
        }
        let mut plain = Vec::new();
        GzDecoder::new(&*self.bytes).read_to_end(&mut plain)?;
        Ok(self.plain.get_or_init(|| plain.into()).clone())
    }
}

/// Whether `Accept-Encoding` names gzip, with a weight above 0.
fn takes_gzip(headers: &HeaderMap) -> bool {
    accepted::weighted(headers, header::ACCEPT_ENCODING)
        .any(|(coding, weight)| accepted::is(coding, "gzip") && weight > 0.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::http::handlers::page::manuals::TEMPLATE as MANUAL;
    use std::collections::BTreeSet;

    /// What the page may weigh, without the examples and the vendored viewer.
    const PAGE_BYTES_MAX: usize = 150_000;

    fn text(name: &str) -> &'static str {
        let (_, bytes) = FILES.iter().find(|(file, _)| *file == name).unwrap();
        std::str::from_utf8(bytes).unwrap()
    }

    /// What stands between quotes after `before` in a text.
    fn quoted<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(before).skip(1).filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn the_page_is_small() {
        let ours = FILES.iter().filter(|(name, _)| !name.ends_with(".png"));
        let bytes: usize = ours.map(|(_, bytes)| bytes.len()).sum();
        assert!(bytes <= PAGE_BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn every_part_that_a_file_names_is_there_and_every_file_is_named() {
        let assets = Assets::new();
        let mut named = BTreeSet::from(["index.html", "docs.html"]);
        let ours = FILES.iter().filter(|(name, _)| !name.ends_with(".png"));
        let ours = ours.map(|(name, _)| (*name, text(name)));
        for (name, text) in ours.chain([("manual.html", MANUAL)]) {
            let marks: &[&str] = match name.rsplit_once('.').unwrap().1 {
                "html" => &["src=\"page/", "href=\"page/", "src=\"../page/", "href=\"../page/"],
                "js" => &["from \"./", "import \"./", "\"page/"],
                _ => &[],
            };
            for part in marks.iter().flat_map(|mark| quoted(text, mark)) {
                assert!(assets.get(part).is_some(), "{name} names {part}, which is not there");
                named.insert(part);
            }
        }
        let all: BTreeSet<&str> = assets.files.keys().copied().collect();
        assert_eq!(named, all, "named, there");
    }

    #[test]
    fn nothing_is_written_into_documents_that_the_policy_forbids() {
        let manuals = manuals();
        let manuals = manuals.iter().map(|(name, text)| (*name, text.as_str()));
        let documents = ["index.html", "docs.html"].map(|name| (name, text(name)));
        for (name, text) in documents.into_iter().chain(manuals) {
            for wrong in ["<style", " style=", " onclick", "javascript:", "=\"http://", "=\"https://"] {
                assert!(!text.contains(wrong), "{name} has {wrong}");
            }
            assert_eq!(
                text.matches("<script").count(),
                text.matches("<script src=\"page/").count()
                    + text.matches("<script type=\"module\" src=\"page/").count(),
                "{name}"
            );
        }
        for (name, _) in FILES.iter().filter(|(name, _)| name.ends_with(".js")) {
            for wrong in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!text(name).contains(wrong), "{name} has {wrong}: text goes through textContent");
            }
        }
    }

    #[test]
    fn a_packed_file_goes_as_it_is_to_those_who_can_unpack_it() {
        let assets = Assets::new();
        let asset = assets.get("swagger-ui.css").unwrap();
        for (accept, packed) in
            [("gzip", true), ("br, gzip;q=0.5", true), ("br", false), ("gzip;q=0", false), ("", false)]
        {
            let accepts = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(accept))]);
            let reply = asset.body(&accepts).unwrap();
            assert_eq!(reply.headers().contains_key(header::CONTENT_ENCODING), packed, "{accept}");
            assert_eq!(reply.headers()[header::VARY], "accept-encoding");
        }
    }

    #[test]
    fn a_copy_is_good_as_long_as_its_tag_is() {
        let assets = Assets::new();
        let asset = assets.get("app.js").unwrap();
        let with = |tags: &str| {
            HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_str(tags).unwrap())])
        };
        let tag = asset.tag();
        let tag = tag.to_str().unwrap();
        assert!(asset.is_known_to(&with(tag)));
        assert!(asset.is_known_to(&with(&format!("\"other\", {tag}"))));
        assert!(!asset.is_known_to(&with("\"other\"")));
        assert!(!asset.is_known_to(&HeaderMap::new()));
        assert!(!assets.get("index.html").unwrap().is_known_to(&with(tag)), "documents are fetched");
    }
}
