//! What a prediction request posts: one file as the raw body, files in a multipart form, or base64 in JSON.

use super::{
    Front,
    admission::{Beside, Permit, keeping},
    body,
    infer::INLINE_BYTES_MAX,
    multipart::{self, Part},
    wire::{Parameters, predict},
};
use crate::{error::InferError, words::clipped};
use axum::{
    extract::Request,
    http::{HeaderMap, header},
};
use bytes::Bytes;
use std::sync::Arc;

/// What the routes of images take, for messages.
pub(super) const ACCEPTED: &str = "an image/* type or application/octet-stream for one image, multipart/form-data for files, or \
                        application/json for base64";

/// The files of one request.
pub(super) struct Posted {
    /// In the order sent. One that cannot be read is an error of its own.
    pub(super) files: Vec<Result<Bytes, InferError>>,
    /// The body was the file itself.
    pub(super) raw: bool,
    /// They came as a list.
    pub(super) listed: bool,
    /// What a JSON body says beside its images.
    pub(super) parameters: Parameters,
}

/// Whether the body is the file itself.
///
/// # Errors
/// A type of body that is not taken.
pub(super) fn is_raw(headers: &HeaderMap) -> Result<bool, InferError> {
    Ok(matches!(Form::of(headers)?, Form::Raw))
}

/// Reads the body, within its limits, and finds the files in it.
pub(super) async fn read(request: Request, front: &Front) -> Result<Posted, InferError> {
    let limits = &front.limits;
    let form = Form::of(request.headers())?;
    let mut charged = Charged::to(request.extensions().get::<Arc<Permit>>().cloned());
    let body = body::of(request, limits.body).await?;
    if body.is_empty() {
        return Err(InferError::BadRequest("the body is empty, expected an image".into()));
    }
    let parts_max = limits.parts_max;
    match form {
        Form::Raw => {
            Ok(Posted { files: vec![Ok(body)], raw: true, listed: false, parameters: Parameters::new() })
        }
        // Finding parts and reading base64 takes a millisecond per megabyte: not on the async threads.
        form if body.len() >= INLINE_BYTES_MAX => {
            front.decode.run(move || find(&form, &body, parts_max, &mut charged)).await?
        }
        form => find(&form, &body, parts_max, &mut charged),
    }
}

fn find(form: &Form, body: &Bytes, parts_max: usize, charged: &mut Charged) -> Result<Posted, InferError> {
    let (files, parameters) = match form {
        Form::Raw => (vec![Ok(body.clone())], Parameters::new()),
        Form::Multipart(boundary) => {
            (files(multipart::parts(body, boundary, parts_max)?)?, Parameters::new())
        }
        Form::Json => {
            let instances = predict::instances(body, parts_max, &mut |bytes| charged.room(bytes))?;
            let files = instances.images.into_iter().map(|image| image.map(Bytes::from)).collect();
            (charged.files(files), instances.parameters)
        }
    };
    let (raw, listed) = (matches!(form, Form::Raw), matches!(form, Form::Json));
    Ok(Posted { files, raw, listed, parameters })
}

/// Files decoded from a body, charged beside it until the last is dropped.
pub(super) struct Charged {
    permit: Option<Arc<Permit>>,
    held: Option<Arc<Beside>>,
}

impl Charged {
    pub(super) fn to(permit: Option<Arc<Permit>>) -> Charged {
        Charged { permit, held: None }
    }

    /// Sets `bytes` aside for files that are about to be decoded.
    pub(super) fn room(&mut self, bytes: u64) -> Result<(), InferError> {
        let permit = self.permit.as_ref();
        self.held = permit.map(|permit| permit.beside(bytes)).transpose()?.map(Arc::new);
        Ok(())
    }

    /// The files, each of which holds what was set aside.
    pub(super) fn files(&self, files: Vec<Result<Bytes, InferError>>) -> Vec<Result<Bytes, InferError>> {
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
}

impl Form {
    /// A body without a type is a file: `curl -T` sends none.
    fn of(headers: &HeaderMap) -> Result<Form, InferError> {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(Form::Raw) };
        let unsupported = || InferError::UnsupportedMedia {
            got: clipped(&String::from_utf8_lossy(value.as_bytes())).to_owned(),
            accepted: ACCEPTED,
        };
        let text = value.to_str().map_err(|_| unsupported())?;
        if let Some(boundary) = multipart::boundary(text)? {
            return Ok(Form::Multipart(boundary));
        }
        let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "application/json" => Ok(Form::Json),
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

fn files(parts: Vec<Part>) -> Result<Vec<Result<Bytes, InferError>>, InferError> {
    if parts.is_empty() {
        return Err(InferError::BadRequest("the multipart body has no parts, expected files".into()));
    }
    parts
        .into_iter()
        .map(|part| {
            if part.file_name.is_some() || FILE_FIELDS.contains(&part.name.as_str()) {
                Ok(Ok(part.bytes))
            } else {
                Err(InferError::BadRequest(format!(
                    "part {:?} is not a file: give it a file name, or call it one of {}; options go into the query",
                    part.name,
                    FILE_FIELDS.join(", ")
                )))
            }
        })
        .collect()
}
