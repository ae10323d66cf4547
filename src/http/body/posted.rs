//! What a prediction request posts: one file as the raw body, files in a multipart form, or base64 in JSON. A body that begins as an image
//! does is one, whatever its type says. For clients of TorchServe there are further forms ([`Taken::torchserve`]).

use super::multipart::{self, Part};
use crate::{
    error::InferError,
    http::{
        Front,
        admission::{Beside, Permit, keeping},
        body,
        decode::{INLINE_BYTES_MAX, LONG_FILES, Step},
        reject::IMAGE_BODIES,
        wire::{Parameters, base64_text, predict},
    },
    image,
    models::Model,
    words::clipped,
};
use axum::{
    extract::Request,
    http::{HeaderMap, header},
};
use bytes::Bytes;
use std::{str, sync::Arc};

/// The files of one request.
pub(in crate::http) struct Posted {
    /// In the order sent. One that cannot be read is an error of its own.
    pub(in crate::http) files: Vec<Result<Bytes, InferError>>,
    /// The body was the file itself.
    pub(in crate::http) raw: bool,
    /// They came as a list.
    pub(in crate::http) listed: bool,
    /// What a JSON body says beside its images.
    pub(in crate::http) parameters: Parameters,
}

/// Whether the body is the file itself.
///
/// # Errors
/// A type of body that is not taken.
pub(in crate::http) fn is_raw(headers: &HeaderMap) -> Result<bool, InferError> {
    Ok(matches!(Form::of(headers, false)?, Form::Raw))
}

/// What of TorchServe's ways a request has.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::http) struct AsTorchServe {
    /// What only TorchServe takes is taken.
    pub(in crate::http) takes: bool,
    /// The answer has TorchServe's form.
    pub(in crate::http) answers: bool,
}

/// What is taken.
#[derive(Debug, Clone, Copy)]
struct Taken {
    /// How many files.
    parts_max: usize,
    /// Whether also what only TorchServe takes: base64 as a lone JSON string or as `text/plain`, a file in `data` or `body` of a form that
    /// is urlencoded, and parts of a form that are no files, which are passed over.
    torchserve: bool,
    /// Whether of a form only the files are taken that TorchServe's handlers look for, if there are any.
    named: bool,
}

/// Reads the body, within its limits, and finds the files in it.
pub(in crate::http) async fn read(
    request: Request,
    front: &Front,
    step: Step,
    as_torchserve: AsTorchServe,
) -> Result<Posted, InferError> {
    let limits = &front.limits;
    let AsTorchServe { takes: torchserve, answers: named } = as_torchserve;
    let form = Form::of(request.headers(), torchserve);
    let mut charged = Charged::to(request.extensions().get::<Arc<Permit>>().cloned());
    let body = body::of(request, limits.body).await?;
    let form = if is_image(&body) { Form::Raw } else { form? };
    if body.is_empty() {
        return Err(InferError::BadRequest("the body is empty, expected an image".into()));
    }
    let taken = Taken { parts_max: limits.parts_max, torchserve, named };
    match form {
        Form::Raw => Ok(Posted::one(Ok(body))),
        // Finding parts and reading base64 takes a millisecond per megabyte: not on the async threads.
        form if body.len() >= INLINE_BYTES_MAX => {
            let long = body.len() >= LONG_FILES;
            front.decode.run_slow(step, long, move || find(&form, &body, taken, &mut charged)).await?
        }
        form => find(&form, &body, taken, &mut charged),
    }
}

/// Whether the first bytes are those of an image.
fn is_image(body: &[u8]) -> bool {
    image::Format::sniff(body).is_some()
}

/// Refuses a file or a form of files where JSON is expected, if the model takes files elsewhere.
///
/// # Errors
/// 400 that tells where.
pub(in crate::http) fn is_no_file(body: &[u8], model: &Model) -> Result<(), InferError> {
    let what = match model.image.is_some() || model.fit.is_some() {
        true if is_image(body) => "an image",
        // JSON begins otherwise.
        true if body.starts_with(b"--") => "a form",
        _ => return Ok(()),
    };
    Err(InferError::BadRequest(format!(
        "the body is {what}, expected JSON: post it to /predictions/{}, or images in base64 within the JSON",
        model.name
    )))
}

fn find(form: &Form, body: &Bytes, taken: Taken, charged: &mut Charged) -> Result<Posted, InferError> {
    let mut one = |file| charged.unpacked(vec![file]).map(|mut files| Posted::one(files.remove(0)));
    match form {
        Form::Raw => Ok(Posted::one(Ok(body.clone()))),
        Form::Text => one(File { bytes: body.clone(), written: Written::Base64 }),
        Form::Urlencoded => one(urlencoded(body)),
        Form::Multipart(boundary) => {
            let files = files(multipart::parts(body, boundary, taken.parts_max)?, taken)?;
            let files = charged.unpacked(files)?;
            Ok(Posted { files, raw: false, listed: false, parameters: Parameters::new() })
        }
        Form::Json if taken.torchserve && body.trim_ascii_start().starts_with(b"\"") => {
            let image = predict::lone(body, &mut |bytes| charged.room(bytes))?;
            Ok(Posted::one(charged.files(vec![image.map(Bytes::from)]).remove(0)))
        }
        Form::Json => {
            let instances = predict::instances(body, taken.parts_max, &mut |bytes| charged.room(bytes))?;
            let files = instances.images.into_iter().map(|image| image.map(Bytes::from)).collect();
            let (files, parameters) = (charged.files(files), instances.parameters);
            Ok(Posted { files, raw: false, listed: true, parameters })
        }
    }
}

impl Posted {
    /// A body that is one file, however it is written.
    fn one(file: Result<Bytes, InferError>) -> Posted {
        Posted { files: vec![file], raw: true, listed: false, parameters: Parameters::new() }
    }
}

/// A file as it was sent.
struct File {
    bytes: Bytes,
    written: Written,
}

/// How a file is written.
#[derive(Clone, Copy)]
enum Written {
    Plain,
    Base64,
    Percent,
}

impl File {
    /// Bytes that it takes beside the request, once it is read.
    fn bytes(&self) -> u64 {
        match self.written {
            Written::Plain => 0,
            Written::Base64 => base64::decoded_len_estimate(self.bytes.len()) as u64,
            Written::Percent => self.bytes.len() as u64,
        }
    }

    fn read(self) -> Result<Bytes, InferError> {
        let bad = |told: String| InferError::BadRequest(format!("the text is not base64: {told}"));
        match self.written {
            Written::Plain => Ok(self.bytes),
            Written::Base64 => {
                let text = str::from_utf8(&self.bytes).map_err(|error| bad(error.to_string()))?;
                base64_text::decode(text).map(Bytes::from).map_err(|error| bad(error.to_string()))
            }
            Written::Percent => {
                let mut bytes = Vec::with_capacity(self.bytes.len());
                for (index, piece) in self.bytes.split(|byte| *byte == b'+').enumerate() {
                    bytes.extend((index > 0).then_some(b' '));
                    bytes.extend(percent_encoding::percent_decode(piece));
                }
                Ok(bytes.into())
            }
        }
    }
}

/// The file that a form holds which is urlencoded. `curl` sends any body as such a form if nothing else is said.
fn urlencoded(body: &Bytes) -> File {
    let mut pairs = body.split(|byte| *byte == b'&');
    let held = pairs.find_map(|pair| pair.strip_prefix(b"data=").or(pair.strip_prefix(b"body=")));
    match held {
        Some(held) => File { bytes: body.slice_ref(held), written: Written::Percent },
        None => File { bytes: body.clone(), written: Written::Plain },
    }
}

/// Files decoded from a body, charged beside it until the last is dropped.
pub(in crate::http) struct Charged {
    permit: Option<Arc<Permit>>,
    held: Option<Arc<Beside>>,
}

impl Charged {
    pub(in crate::http) fn to(permit: Option<Arc<Permit>>) -> Charged {
        Charged { permit, held: None }
    }

    /// Sets `bytes` aside for files that are about to be decoded.
    pub(in crate::http) fn room(&mut self, bytes: u64) -> Result<(), InferError> {
        let permit = self.permit.as_ref();
        self.held = permit.map(|permit| permit.beside(bytes)).transpose()?.map(Arc::new);
        Ok(())
    }

    /// Files by what they hold, once there is room for those that are written otherwise. One that cannot be read is an error of its own.
    fn unpacked(&mut self, files: Vec<File>) -> Result<Vec<Result<Bytes, InferError>>, InferError> {
        match files.iter().map(File::bytes).sum() {
            0 => {}
            bytes => self.room(bytes)?,
        }
        Ok(self.files(files.into_iter().map(File::read).collect()))
    }

    /// The files, each of which holds what was set aside.
    pub(in crate::http) fn files(
        &self,
        files: Vec<Result<Bytes, InferError>>,
    ) -> Vec<Result<Bytes, InferError>> {
        let hold = |bytes| match &self.held {
            Some(held) => keeping(bytes, held),
            None => bytes,
        };
        files.into_iter().map(|file| file.map(hold)).collect()
    }
}

enum Form {
    Raw,
    Multipart(String),
    Json,
    /// Base64.
    Text,
    Urlencoded,
}

impl Form {
    /// A body without a type is a file: `curl -T` sends none.
    fn of(headers: &HeaderMap, torchserve: bool) -> Result<Form, InferError> {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(Form::Raw) };
        let unsupported = || InferError::UnsupportedMedia {
            got: clipped(&String::from_utf8_lossy(value.as_bytes())).to_owned(),
            accepted: IMAGE_BODIES,
        };
        let text = value.to_str().map_err(|_| unsupported())?;
        if let Some(boundary) = multipart::boundary(text)? {
            return Ok(Form::Multipart(boundary));
        }
        let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "application/json" => Ok(Form::Json),
            "text/plain" if torchserve => Ok(Form::Text),
            "application/x-www-form-urlencoded" if torchserve => Ok(Form::Urlencoded),
            // The second is curl's own type for --data-binary.
            "application/octet-stream" | "application/x-www-form-urlencoded" => Ok(Form::Raw),
            "application/x-npy" => Ok(Form::Raw),
            // S3's type for files, and SageMaker's for images.
            "binary/octet-stream" | "application/x-image" => Ok(Form::Raw),
            image if image.starts_with("image/") => Ok(Form::Raw),
            _ => Err(unsupported()),
        }
    }
}

/// Names under which clients send files without saying that they are files.
const FILE_FIELDS: [&str; 4] = ["data", "image", "file", "body"];

/// Those of them that TorchServe's handlers look for: the first that is there.
const HANDLED_FIELDS: [&str; 2] = ["data", "body"];

fn files(mut parts: Vec<Part>, taken: Taken) -> Result<Vec<File>, InferError> {
    let Taken { torchserve, named, .. } = taken;
    if parts.is_empty() {
        return Err(InferError::BadRequest("the multipart body has no parts, expected files".into()));
    }
    let is_file = |part: &Part| part.file_name.is_some() || FILE_FIELDS.contains(&part.name.as_str());
    if torchserve && parts.iter().any(is_file) {
        parts.retain(is_file);
    }
    if let Some(part) = parts.iter().find(|part| !is_file(part)) {
        return Err(InferError::BadRequest(format!(
            "part {:?} is not a file: give it a file name, or call it one of {}; options go into the query",
            part.name,
            FILE_FIELDS.join(", ")
        )));
    }
    let looked_for = HANDLED_FIELDS.into_iter().find(|field| parts.iter().any(|part| part.name == *field));
    if let Some(field) = looked_for.filter(|_| named) {
        parts.retain(|part| part.name == field);
    }
    let read = |Part { bytes, content_type, .. }: Part| {
        let said = content_type.unwrap_or_default();
        let text = said.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/plain");
        let written = if torchserve && text && !is_image(&bytes) { Written::Base64 } else { Written::Plain };
        File { bytes, written }
    };
    Ok(parts.into_iter().map(read).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use axum::http::HeaderValue;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n+ %&=";

    fn found(content_type: &str, body: &[u8], torchserve: bool) -> Result<Posted, InferError> {
        let taken = Taken { parts_max: 4, torchserve, named: false };
        found_as(content_type, body, taken)
    }

    fn found_as(content_type: &str, body: &[u8], taken: Taken) -> Result<Posted, InferError> {
        let value = HeaderValue::from_str(content_type).unwrap();
        let form = Form::of(&HeaderMap::from_iter([(header::CONTENT_TYPE, value)]), taken.torchserve)?;
        let body = Bytes::copy_from_slice(body);
        find(&form, &body, taken, &mut Charged::to(None))
    }

    fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
        let part = |(head, content): &(&str, &[u8])| {
            [format!("--B\r\nContent-Disposition: form-data; {head}\r\n\r\n").as_bytes(), content, b"\r\n"]
                .concat()
        };
        [parts.iter().flat_map(part).collect(), b"--B--".to_vec()].concat()
    }

    #[test]
    fn what_torchserve_takes_is_taken_where_its_answers_are_given() {
        let base64 = b"iVBORw0KGgor\r\nICUmPQ==\n";
        let string = [b" \"".as_slice(), &base64[..12], b"\\n", &base64[14..22], b"\""].concat();
        let percent = b"key=1&data=%89PNG%0D%0A%1a%0A%2B+%25%26%3D&x";
        for (kind, body) in [
            ("text/plain; charset=utf-8", &base64[..]),
            ("application/json", &string),
            ("application/x-www-form-urlencoded", percent),
            ("application/x-www-form-urlencoded", &[b"body=", &percent[11..42]].concat()),
            ("application/x-www-form-urlencoded", PNG),
        ] {
            let Posted { files, raw, listed, .. } = found(kind, body, true).unwrap();
            assert_eq!(
                (&files[..], raw, listed),
                (&[Ok(Bytes::from_static(PNG))][..], true, false),
                "{kind}"
            );
            if body != PNG {
                let without = found(kind, body, false).map(|posted| posted.files);
                assert!(
                    !matches!(&without, Ok(files) if files[0].as_ref().is_ok_and(|file| file == PNG)),
                    "{kind}"
                );
            }
        }
        let parts = form(&[
            ("name=\"note\"", b"any"),
            ("name=\"data\"; filename=\"a.txt\"\r\nContent-Type: text/plain", base64),
            ("name=\"x\"; filename=\"b.txt\"\r\nContent-Type: text/plain", PNG),
        ]);
        let posted = found("multipart/form-data; boundary=B", &parts, true).unwrap();
        assert_eq!(posted.files, [Ok(Bytes::from_static(PNG)), Ok(Bytes::from_static(PNG))]);
        let error = found("multipart/form-data; boundary=B", &parts, false).err().unwrap().to_string();
        assert!(error.contains("part \"note\" is not a file"), "{error}");
    }

    #[test]
    fn of_a_form_in_torchserves_way_the_files_of_the_first_name_that_it_looks_for_are_taken() {
        let check = |names: &[&str], named: bool, expected: &[&str]| {
            let heads: Vec<String> =
                names.iter().map(|name| format!("name=\"{name}\"; filename=\"a\"")).collect();
            let parts: Vec<(&str, &[u8])> =
                heads.iter().zip(names).map(|(head, name)| (&**head, name.as_bytes())).collect();
            let taken = Taken { parts_max: 4, torchserve: false, named };
            let posted = found_as("multipart/form-data; boundary=B", &form(&parts), taken).unwrap();
            let files: Vec<Bytes> = posted.files.into_iter().map(Result::unwrap).collect();
            assert_eq!(files, expected, "{names:?}");
        };
        check(&["image", "body", "data"], true, &["data"]);
        check(&["image", "body", "a"], true, &["body"]);
        check(&["data", "data", "body"], true, &["data", "data"]);
        check(&["image", "a"], true, &["image", "a"]);
        check(&["image", "body", "data"], false, &["image", "body", "data"]);
    }

    #[test]
    fn text_that_is_no_image_is_refused_with_what_is_wrong() {
        for (kind, body, told) in [
            ("text/plain", &b"YW!I"[..], "the text is not base64: invalid symbol 33"),
            ("text/plain", b"\xff\xfe", "the text is not base64: invalid utf-8"),
            ("application/json", b"\"YW!I\"", "is not base64"),
            ("application/json", b"\"YWI=", "the JSON body"),
            ("multipart/form-data; boundary=B", &form(&[("name=\"note\"", b"any")]), "is not a file"),
        ] {
            let error = match found(kind, body, true) {
                Ok(posted) => posted.files.into_iter().next().unwrap().unwrap_err(),
                Err(error) => error,
            };
            assert!(error.to_string().contains(told), "{kind}: {error}");
        }
        assert!(matches!(found("text/plain", b"", false), Err(InferError::UnsupportedMedia { .. })));
        assert!(matches!(found("text/html", b"", true), Err(InferError::UnsupportedMedia { .. })));
    }
}
