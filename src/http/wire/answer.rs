//! Replies to `POST /predictions`: a model's answer for one image, or for several.
//!
//! One image: `{"model", "version", "task", <answer>, "image": {"width", "height"}}`. Several images:
//! `{"model", "version", "task", "predictions": [{<answer>, "image"} | <problem>, …]}`, with `"file"` and `"page"` first in each entry
//! that is one of several pages of a file.
//!
//! By task, `<answer>` is `"classes": [{"label", "index", "score"}]`; `"detections": [{"box": [x0, y0, x1, y1], …}]` in pixels of the
//! posted image, with `"corners"`, `"keypoints"` or a `"mask"` if the model gives them; `"mask": {…}`; `"picture": {…}`;
//! `"landmarks": [{"label", "x", "y", "score"}]`; `"vector": […]`;
//! or `"outputs": [{"name", "datatype", "shape", "data"}]`.

use super::{
    detection::{Point, Written},
    not_finite::NotFinite,
    reply::{numbers_of, single, string},
};
use crate::{
    engine::Signature,
    error::InferError,
    http::reject::Problem,
    tasks::{Answer, Class, Detection, Mask, Picture},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use std::{borrow::Cow, collections::HashSet, io::Write};

/// The form of a mask in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaskForm {
    /// A PNG whose palette indices are the classes, in base64.
    #[default]
    Png,
    /// Run lengths per class, column by column, as in COCO.
    Rle,
}

impl MaskForm {
    /// The most memory that a mask and its written form take, in bytes per pixel of the mask: that of a mask whose every pixel differs from
    /// the one before.
    pub fn bytes_per_pixel(self) -> u64 {
        match self {
            // The classes, a copy for the encoder, the filtered and the compressed data, and twice the size of base64.
            MaskForm::Png => 8,
            // The classes, two counts of four bytes in a buffer that has grown, and both as text.
            MaskForm::Rle => 24,
        }
    }
}

/// The model that answered.
#[derive(Debug, Clone, Copy)]
pub struct Of<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Its version.
    pub version: &'a str,
    /// Its task's name.
    pub task: &'a str,
}

/// The members for a model's answer to one image, without braces around them. `size` is the width and height of the posted image, upright.
///
/// # Errors
/// [`InferError::BadRequest`] for raw outputs that hold NaN or infinity, [`InferError::Internal`] for what cannot be written.
pub fn members(
    answer: &Answer,
    signature: &Signature,
    size: (u32, u32),
    form: MaskForm,
) -> Result<Vec<u8>, InferError> {
    let mut json = Vec::with_capacity(256);
    match answer {
        Answer::Classes(classes) => {
            json.extend_from_slice(b"\"classes\":[");
            for (index, class) in classes.iter().enumerate() {
                json.extend_from_slice(if index > 0 { b",{" } else { b"{" });
                scored(&mut json, class.label.as_deref(), class.index, class.score);
            }
            json.push(b']');
        }
        Answer::Detections(detections) => {
            json.extend_from_slice(b"\"detections\":");
            write(&mut json, &detections.iter().map(Written::of).collect::<Vec<_>>());
        }
        Answer::Mask(mask) => {
            json.extend_from_slice(b"\"mask\":");
            write_mask(&mut json, mask, form)?;
        }
        Answer::Picture(picture) => {
            json.extend_from_slice(b"\"picture\":");
            write_picture(&mut json, picture)?;
        }
        Answer::Landmarks(points) => {
            json.extend_from_slice(b"\"landmarks\":");
            write(&mut json, &points.iter().map(Point::of).collect::<Vec<_>>());
        }
        Answer::Vector(vector) => {
            json.extend_from_slice(b"\"vector\":");
            write(&mut json, vector);
        }
        Answer::Tensors(tensors) => {
            json.extend_from_slice(b"\"outputs\":[");
            for (index, (tensor, spec)) in tensors.iter().zip(&signature.outputs).enumerate() {
                json.extend_from_slice(if index > 0 { b",{\"name\":" } else { b"{\"name\":" });
                string(&mut json, &spec.name);
                let tensor = single(tensor);
                let (datatype, shape) = (tensor.datatype, &tensor.shape);
                write!(json, ",\"datatype\":\"{datatype}\",\"shape\":{shape:?},\"data\":[")
                    .expect("memory takes all");
                numbers_of(&mut json, &spec.name, &tensor, NotFinite::Refused)?;
                json.extend_from_slice(b"]}");
            }
            json.push(b']');
        }
    }
    write!(json, ",\"image\":{{\"width\":{},\"height\":{}}}", size.0, size.1).expect("memory takes all");
    Ok(json)
}

/// The reply for one image.
pub fn one(of: Of<'_>, members: &[u8]) -> Vec<u8> {
    let mut json = head(of);
    json.push(b',');
    json.extend_from_slice(members);
    json.push(b'}');
    json
}

/// The part of a reply for one of several images.
#[derive(Debug)]
pub struct Entry {
    /// The file of the request that the image is from, counted from 0.
    pub file: usize,
    /// The page of that file, counted from 0, if it has several.
    pub page: Option<usize>,
    /// The members of the answer's object; in TorchServe's form the whole value.
    pub answer: Result<Vec<u8>, InferError>,
}

impl Entry {
    /// The members for the origin of the image if its file has several pages, each followed by a comma.
    pub fn place(&self) -> Vec<u8> {
        let place = self.page.map(|page| format!("\"file\":{},\"page\":{page},", self.file));
        place.unwrap_or_default().into_bytes()
    }
}

/// The reply for several images, in order; a failed one is replaced by its problem.
pub fn several(of: Of<'_>, entries: &[Entry]) -> Vec<u8> {
    let mut json = head(of);
    json.extend_from_slice(b",\"predictions\":[");
    for (index, entry) in entries.iter().enumerate() {
        json.extend_from_slice(if index > 0 { b",{" } else { b"{" });
        json.extend_from_slice(&entry.place());
        match &entry.answer {
            Ok(members) => json.extend_from_slice(members),
            Err(error) => json.extend_from_slice(&problem(&Problem::from(error))),
        }
        json.push(b'}');
    }
    json.extend_from_slice(b"]}");
    json
}

/// An answer as TorchServe's handler for the task gives it, if there is one. It is a whole value.
pub fn of_torchserve(answer: &Answer) -> Option<Vec<u8>> {
    match answer {
        Answer::Classes(classes) => Some(probabilities(classes)),
        Answer::Detections(detections) => Some(boxes(detections)),
        _ => None,
    }
}

/// An object from label to probability, as TorchServe's `image_classifier` answers. If several classes have the same label, only the first
/// is written, which is the best: readers keep the last of repeated names.
fn probabilities(classes: &[Class]) -> Vec<u8> {
    let mut json = vec![b'{'];
    let mut written = HashSet::with_capacity(classes.len());
    for class in classes {
        let name = name(class.label.as_deref(), class.index);
        if !written.insert(name.clone()) {
            continue;
        }
        if written.len() > 1 {
            json.push(b',');
        }
        string(&mut json, &name);
        json.push(b':');
        write(&mut json, &class.score);
    }
    json.push(b'}');
    json
}

/// Detections that score less are not among the answers of TorchServe's `object_detector`.
const TORCHSERVE_SCORE_MIN: f32 = 0.5;

/// A list of objects with the box under the label, and the score, as that handler answers.
fn boxes(detections: &[Detection]) -> Vec<u8> {
    let mut json = vec![b'['];
    for found in detections.iter().filter(|found| found.score >= TORCHSERVE_SCORE_MIN) {
        json.extend_from_slice(if json.len() > 1 { b",{" } else { b"{" });
        string(&mut json, &name(found.label.as_deref(), found.index));
        json.push(b':');
        write(&mut json, &[found.x0, found.y0, found.x1, found.y1]);
        json.extend_from_slice(b",\"score\":");
        write(&mut json, &found.score);
        json.push(b'}');
    }
    json.push(b']');
    json
}

/// A class without a label is named by its index.
fn name(label: Option<&str>, index: usize) -> Cow<'_, str> {
    label.map_or_else(|| index.to_string().into(), Cow::Borrowed)
}

/// The answers as TorchServe gives them: itself for one, otherwise a list; to those in the envelope of `instances`, `predictions`.
pub fn bare(entries: &[Entry], in_envelope: bool) -> Vec<u8> {
    let mut json = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            json.push(b',');
        }
        match &entry.answer {
            Ok(value) => json.extend_from_slice(value),
            Err(error) => json.extend_from_slice(&object(&problem(&Problem::from(error)))),
        }
    }
    match entries.len() {
        _ if in_envelope => [b"{\"predictions\":[", &json[..], b"]}"].concat(),
        1 => json,
        _ => [b"[", &json[..], b"]"].concat(),
    }
}

/// An object of these members.
pub fn object(members: &[u8]) -> Vec<u8> {
    [b"{", members, b"}"].concat()
}

/// The members for an error, without braces around them.
pub fn problem(problem: &Problem) -> Vec<u8> {
    let json = problem.to_json(None).to_string();
    json.as_bytes()[1..json.len() - 1].to_vec()
}

fn head(of: Of<'_>) -> Vec<u8> {
    let mut json = Vec::with_capacity(256);
    for (begin, text) in [("{\"model\":", of.model), (",\"version\":", of.version), (",\"task\":", of.task)] {
        json.extend_from_slice(begin.as_bytes());
        string(&mut json, text);
    }
    json
}

fn scored(json: &mut Vec<u8>, label: Option<&str>, index: usize, score: f32) {
    json.extend_from_slice(b"\"label\":");
    write(json, &label);
    json.extend_from_slice(b",\"index\":");
    write(json, &index);
    json.extend_from_slice(b",\"score\":");
    write(json, &score);
    json.push(b'}');
}

fn write_mask(json: &mut Vec<u8>, mask: &Mask, form: MaskForm) -> Result<(), InferError> {
    let classes: Vec<Value> = mask
        .present
        .iter()
        .map(|class| json!({ "index": class.index, "label": class.label.as_deref(), "pixels": class.pixels }))
        .collect();
    let mut value = json!({ "width": mask.width, "height": mask.height, "classes": classes });
    match form {
        MaskForm::Png => {
            let png = mask.to_png_palette().map_err(InferError::Internal)?;
            value["png"] = BASE64_STANDARD.encode(png).into();
            write(json, &value);
        }
        MaskForm::Rle => {
            write(json, &value);
            // Written as text directly: there may be as many counts as pixels.
            json.pop();
            json.extend_from_slice(b",\"rle\":[");
            for (index, run) in mask.runs().into_iter().enumerate() {
                let begin = if index > 0 { ",{" } else { "{" };
                write!(json, "{begin}\"index\":{},\"counts\":", run.index).expect("memory takes all");
                write(json, &run.counts);
                json.push(b'}');
            }
            json.extend_from_slice(b"]}");
        }
    }
    Ok(())
}

fn write_picture(json: &mut Vec<u8>, picture: &Picture) -> Result<(), InferError> {
    let Picture { width, height, channels, depth, range, .. } = picture;
    let png = picture.to_png().map_err(InferError::Internal)?;
    let begin = format!(
        "{{\"width\":{width},\"height\":{height},\"channels\":{channels},\"depth\":{depth},\"range\":"
    );
    json.extend_from_slice(begin.as_bytes());
    write(json, range);
    json.extend_from_slice(b",\"png\":\"");
    json.extend_from_slice(BASE64_STANDARD.encode(png).as_bytes());
    json.extend_from_slice(b"\"}");
    Ok(())
}

fn write(json: &mut Vec<u8>, value: &impl serde::Serialize) {
    serde_json::to_writer(json, value).expect("plain values can be written to memory");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{DataType, Tensor},
        tasks::testing::{signature, spec},
    };

    #[test]
    fn outputs_in_half_precision_are_told_as_the_numbers_that_they_are() {
        let half = |bits: [u16; 2], datatype| {
            let data = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<u8>>().into();
            let mut signature = signature(&[]);
            signature.outputs = vec![spec("y", datatype, &[-1, 2])];
            let answer = Answer::Tensors(vec![Tensor { datatype, shape: vec![1, 2], data }]);
            members(&answer, &signature, (4, 3), MaskForm::Png)
                .map(|json| String::from_utf8(json).expect("text"))
        };
        let expected = concat!(
            r#""outputs":[{"name":"y","datatype":"FP32","shape":[1, 2],"data":[1.5,-0.25]}],"#,
            r#""image":{"width":4,"height":3}"#
        );
        assert_eq!(half([0x3e00, 0xb400], DataType::Fp16).as_deref(), Ok(expected));
        assert_eq!(half([0x3fc0, 0xbe80], DataType::Bf16).as_deref(), Ok(expected));
        let error = half([0x3e00, 0x7e00], DataType::Fp16).expect_err("NaN").to_string();
        assert!(error.contains("output \"y\" is not a finite number at element 1"), "{error}");
    }

    #[test]
    fn images_of_a_file_of_several_pages_say_which_they_are_also_where_they_failed() {
        let entry = |file, page, answer| Entry { file, page, answer };
        let entries = [
            entry(0, None, Ok(b"\"a\":1".to_vec())),
            entry(1, Some(0), Ok(b"\"a\":2".to_vec())),
            entry(1, Some(1), Err(InferError::Decode("no".into()))),
        ];
        let json: Value =
            serde_json::from_slice(&several(Of { model: "m", version: "1", task: "t" }, &entries))
                .expect("JSON");
        let of = &json["predictions"];
        assert_eq!(of[0], json!({ "a": 1 }));
        assert_eq!(of[1], json!({ "file": 1, "page": 0, "a": 2 }));
        assert_eq!((&of[2]["file"], &of[2]["page"], &of[2]["error"]), (&json!(1), &json!(1), &json!("no")));
        let bare = |entries: &[Entry], listed| String::from_utf8(bare(entries, listed)).expect("text");
        let entries = [
            entry(0, None, Ok(b"{\"a\":1}".to_vec())),
            entry(1, Some(0), Ok(b"[2]".to_vec())),
            entry(1, Some(1), Err(InferError::Decode("no".into()))),
        ];
        let text = bare(&entries, false);
        assert!(
            text.starts_with("[{\"a\":1},[2],{\"") && text.ends_with("}]") && !text.contains("page"),
            "{text}"
        );
        assert_eq!(bare(&entries[..1], false), "{\"a\":1}");
        assert_eq!(bare(&entries[..1], true), "{\"predictions\":[{\"a\":1}]}");
    }

    #[test]
    fn detections_are_told_as_torchserves_detector_tells_them_from_half_a_score_on() {
        let found = |label: Option<&str>, score| Detection {
            x0: 1.0,
            y0: 2.5,
            x1: 3.0,
            y1: 4.0,
            index: 7,
            label: label.map(Into::into),
            score,
            corners: None,
            keypoints: Vec::new(),
            mask: None,
        };
        let told = |detections: Vec<Detection>| {
            String::from_utf8(of_torchserve(&Answer::Detections(detections)).expect("there is a form"))
        };
        let three = vec![found(Some("a \"dog\""), 0.75), found(None, 0.5), found(Some("cat"), 0.499)];
        let expected =
            r#"[{"a \"dog\"":[1.0,2.5,3.0,4.0],"score":0.75},{"7":[1.0,2.5,3.0,4.0],"score":0.5}]"#;
        assert_eq!(told(three).as_deref(), Ok(expected));
        assert_eq!(told(Vec::new()).as_deref(), Ok("[]"));
        assert_eq!(of_torchserve(&Answer::Vector(vec![1.0])), None);
    }

    #[test]
    fn of_classes_with_one_label_the_best_is_told() {
        let class = |label: Option<&str>, index, score| Class { label: label.map(Into::into), index, score };
        let classes = [
            class(Some("crane"), 134, 0.5),
            class(Some("crane"), 517, 0.25),
            class(None, 7, 0.125),
            class(Some("7"), 8, 0.0625),
        ];
        let json = String::from_utf8(probabilities(&classes));
        assert_eq!(json.as_deref(), Ok(r#"{"crane":0.5,"7":0.125}"#));
    }
}
