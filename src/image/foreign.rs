//! Recognises bodies that are posted as images but are not in a supported format: images of other formats, documents, archives, and images
//! in base64. They are recognised by their first bytes, and only to word the error.

use super::{
    error::{DecodeError, SHOWN_BYTES},
    format::Format,
    signature::{self, Kind, Signature},
};
use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};

/// Brands of ISO base media files that are images. `mif1` and `msf1` say no more than that, so they come last.
const BRANDS: [(&[&[u8; 4]], &str); 3] = [
    (&[b"avif", b"avis"], "an AVIF image"),
    (&[b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"], "a HEIC image"),
    (&[b"mif1", b"msf1"], "a HEIF image"),
];

/// How a PNG begins once a client has dropped its line breaks, as `curl -d @FILE` does.
const PNG_WITHOUT_BREAKS: &[u8] = b"\x89PNG\x1a";

/// How many bytes are searched for the `<svg` element, which other text may precede.
const SVG_BYTES: usize = 1024;

/// How many bytes are searched for the comma of a data URL.
const URL_BYTES: usize = 128;

/// How many base64 symbols are decoded to recognise a file: whole groups of four.
const BASE64_SYMBOLS: usize = 32;

/// The error for bytes that are in none of the supported formats.
pub(super) fn of_no_image(bytes: &[u8]) -> DecodeError {
    let unknown = || DecodeError::Unknown { first: bytes[..bytes.len().min(SHOWN_BYTES)].to_vec() };
    known(bytes).unwrap_or_else(unknown)
}

/// The same, if they are something else that we know.
fn known(bytes: &[u8]) -> Option<DecodeError> {
    let (what, instead) = if let Some(Signature { what, kind, .. }) = signature::find(bytes) {
        let instead = match kind {
            Kind::Picture | Kind::Recording | Kind::Stack => format!("convert it to {}", formats()),
            Kind::Pdf => "post its pages as images, such as PNG or JPEG".to_owned(),
            Kind::Zip => "post the files in it, each by itself or several as multipart/form-data".to_owned(),
            Kind::Gzip => "unpack it, or send it with the header Content-Encoding: gzip".to_owned(),
        };
        ((*what).to_owned(), instead)
    } else if let Some(what) = brand(bytes) {
        (what.to_owned(), format!("convert it to {}", formats()))
    } else if is_svg(bytes) {
        ("an SVG drawing".to_owned(), "render it as an image, such as PNG".to_owned())
    } else if bytes.starts_with(PNG_WITHOUT_BREAKS) {
        let instead = "send the file as it is: with curl by -T or --data-binary, not by -d";
        ("a PNG without its line breaks".to_owned(), instead.to_owned())
    } else if is_data_url(bytes) {
        let instead = "post the bytes that it stands for, or in JSON what follows its comma, as {\"b64\": …}";
        ("a data URL in base64".to_owned(), instead.to_owned())
    } else {
        let instead =
            "post the bytes that it stands for, or in JSON this text, encoded once, as {\"b64\": …}";
        (format!("a {} in base64", in_base64(bytes)?), instead.to_owned())
    };
    Some(DecodeError::Foreign { what, instead })
}

/// The formats to convert to, in words.
fn formats() -> String {
    let [before @ .., last] = Format::ALL.map(Format::name);
    format!("{} or {last}", before.join(", "))
}

/// The image in an ISO base media file.
fn brand(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [l3, l2, l1, l0, b'f', b't', b'y', b'p', brands @ ..] => {
            let length = u32::from_be_bytes([*l3, *l2, *l1, *l0]) as usize;
            of_brands(&brands[..brands.len().min(length.saturating_sub(8))])
        }
        _ => None,
    }
}

/// The kind of image by the main brand, or by one of the compatible brands after it.
fn of_brands(brands: &[u8]) -> Option<&'static str> {
    let (brands, _) = brands.as_chunks::<4>();
    let of_kind = |kind: &[&[u8; 4]]| brands.iter().any(|brand| kind.contains(&brand));
    BRANDS.into_iter().find(|(kind, _)| of_kind(kind)).map(|(_, what)| what)
}

fn is_svg(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(SVG_BYTES)];
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    // An `<svg` element may stand anywhere in HTML.
    let begins =
        [&b"<svg"[..], b"<?xml", b"<!--", b"<!DOCTYPE svg"].into_iter().any(|tag| text.starts_with(tag));
    begins && !text.windows(5).any(|tag| tag == b"<html") && text.windows(4).any(|tag| tag == b"<svg")
}

fn is_data_url(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    let head = &text[..text.len().min(URL_BYTES)];
    head.starts_with(b"data:") && head.windows(8).any(|end| end == b";base64,")
}

/// The format of an image that was posted in base64.
fn in_base64(bytes: &[u8]) -> Option<Format> {
    let symbols = bytes.iter().copied().filter(|byte| !byte.is_ascii_whitespace());
    let symbols: Vec<u8> = symbols.take(BASE64_SYMBOLS).collect();
    Format::sniff(&BASE64_STANDARD_NO_PAD.decode(symbols).ok()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::image::corpus::{self, LIMITS, whole};
    use base64::prelude::BASE64_STANDARD;

    fn check(bytes: &[u8], what: &str, instead: &str) {
        let error = crate::image::decode(bytes, &LIMITS, &whole).unwrap_err();
        assert_eq!(crate::image::header(bytes, &LIMITS).unwrap_err(), error);
        let error = error.to_string();
        let told = error.strip_prefix(&format!("not a supported image: the body is {what}; "));
        assert!(told.is_some_and(|told| told.contains(instead)), "{error}");
    }

    fn unknown(bytes: &[u8]) {
        let error = crate::image::decode(bytes, &LIMITS, &whole).unwrap_err();
        assert!(matches!(error, DecodeError::Unknown { .. }), "{bytes:?}: {error}");
    }

    #[test]
    fn images_of_other_formats_are_named_with_those_to_convert_to() {
        let dicom = [&[0; 128][..], b"DICM\x02\0\0\0"].concat();
        for (bytes, what) in [
            (&b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"[..], "a HEIC image"),
            (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", "a HEIC image"),
            (b"\0\0\0\x18ftypmif1\0\0\0\0mif1miaf", "a HEIF image"),
            (b"\0\0\0\x1cftypavif\0\0\0\0mif1avifmiaf", "an AVIF image"),
            (b"8BPS\0\x01", "a Photoshop document"),
            (b"\x76\x2f\x31\x01\x02\0\0\0", "an OpenEXR image"),
            (&dicom, "a DICOM file"),
            (b"ZISRAWFILE\0\0\0\0\0\0", "a CZI file (Zeiss)"),
        ] {
            check(
                bytes,
                what,
                "convert it to JPEG, PNG, WebP, BMP, GIF, TIFF, JPEG XL, JPEG 2000, PNM or NPY",
            );
        }
        // Nothing is said about brands in another box, nor about the words of a sentence.
        unknown(b"\0\0\0\x10ftypisom\0\0\0\0....heic");
        unknown(b"P1 is the first of them");
    }

    #[test]
    fn what_is_no_image_is_named_with_what_to_do() {
        check(b"%PDF-1.7 etc", "a PDF document", "post its pages");
        check(b"\x89PNG\x1a\0\0\0IHDR", "a PNG without its line breaks", "--data-binary");
        check(b"PK\x03\x04\x14\0", "a ZIP archive", "multipart/form-data");
        check(b"\x1f\x8b\x08\0", "packed by gzip", "Content-Encoding: gzip");
        check(b"<svg xmlns=\"http://www.w3.org/2000/svg\">", "an SVG drawing", "render it");
        check(b"\xef\xbb\xbf<?xml version=\"1.0\"?>\n<svg>", "an SVG drawing", "render it");
        unknown(b"<!-- a page --><html><svg>");
        unknown(b"<?xml version=\"1.0\"?><note>");
    }

    #[test]
    fn an_image_in_base64_is_told_how_to_send_it() {
        for (name, format, bytes) in corpus::every_kind() {
            let text = BASE64_STANDARD.encode(&bytes);
            println!("{name}");
            check(text.as_bytes(), &format!("a {format} in base64"), "{\"b64\": …}");
            check(
                format!("\n{}\n{}", &text[..10], &text[10..]).as_bytes(),
                &format!("a {format} in base64"),
                "once",
            );
            let url = format!("data:{};base64,{text}", format.media_type());
            check(url.as_bytes(), "a data URL in base64", "what follows its comma");
        }
        unknown(BASE64_STANDARD.encode("a text that is no image at all").as_bytes());
        unknown(b"Qk0 is how base64 of BM begins");
        unknown(b"data: and nothing else");
    }
}
