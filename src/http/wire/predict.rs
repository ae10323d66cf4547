//! Images in JSON, in the forms that clients of TorchServe, TensorFlow Serving and KServe send:
//!
//! ```json
//! {"instances": [{"b64": "…"}, {"data": "…"}, {"body": "…"}, {"image_bytes": {"b64": "…"}, "key": "1"}, {"image": {"b64": "…"}}, "…"]}
//! ```
//!
//! Unknown members, such as `key`, are ignored; `parameters` may stand beside `instances`.

use super::{
    Parameters, bad_json, base64_text, list,
    members::{FEW_MAX, Str, members_or_absent},
    object,
};
use crate::error::InferError;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, Expected, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt};

/// Called with the number of bytes that are needed beside the request's own, before they are written. If it refuses, nothing is decoded.
pub type Room<'a> = &'a mut dyn FnMut(u64) -> Result<(), InferError>;

/// Images in JSON, decoded from base64.
#[derive(Debug, Clone, PartialEq)]
pub struct Instances {
    /// One per instance, in order. An instance that is not base64 has an error of its own and does not affect the others.
    pub images: Vec<Result<Vec<u8>, InferError>>,
    /// `parameters`, if any.
    pub parameters: Parameters,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Wire<'a> {
    #[serde(borrow)]
    instances: &'a RawValue,
    #[serde(default, deserialize_with = "members_or_absent::<FEW_MAX, _, _>")]
    parameters: Parameters,
}

/// An image as base64 text: bare, or in an object whose other members are skipped.
pub(super) struct Instance<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Instance<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Instance<'a>, D::Error> {
        Wrapped { within: &WITHIN }.deserialize(deserializer).map(|Text { text, .. }| Instance(text))
    }
}

impl<'a> Instance<'a> {
    /// The same, but an object may also hold the image under the name of the model's input.
    pub(super) fn named(json: &'a str, name: &str) -> serde_json::Result<Instance<'a>> {
        let [data, body, image_bytes, image] = WITHIN;
        let within = &[name, data, body, image_bytes, image];
        let mut deserializer = serde_json::Deserializer::from_str(json);
        Wrapped { within }.deserialize(&mut deserializer).map(|Text { text, .. }| Instance(text))
    }
}

/// The members that hold an image in the examples of TorchServe, TensorFlow Serving and KServe. If there are several, the first in this
/// list counts: an `image` beside another one may be the name of its file.
const WITHIN: [&str; 4] = ["data", "body", "image_bytes", "image"];

/// A text, or an object that holds it as `b64`.
pub(super) struct Text<'a> {
    pub(super) text: Cow<'a, str>,
    /// Whether the text was in an object.
    pub(super) wrapped: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<'a>, D::Error> {
        Wrapped { within: &[] }.deserialize(deserializer)
    }
}

/// Reads a text, or an object that holds one.
#[derive(Clone, Copy)]
struct Wrapped<'n> {
    /// The members that may hold the text beside `b64`; the first one in this list that is present counts. Its value may again be such an
    /// object.
    within: &'n [&'n str],
}

impl<'de> DeserializeSeed<'de> for Wrapped<'_> {
    type Value = Text<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Text<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Wrapped<'_> {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.within {
            [] => "a string or an object with b64",
            _ => "a base64 string or an object with b64, data, body, image_bytes or image",
        })
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text { text: Cow::Borrowed(text), wrapped: false })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text { text: Cow::Owned(text.to_owned()), wrapped: false })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text<'de>, A::Error> {
        let (mut bare, mut within) = (None, None);
        while let Some(Str(key)) = map.next_key()? {
            if key == "b64" {
                bare = Some(map.next_value::<Str<'de>>()?.0);
            } else if let Some(rank) = self.within.iter().position(|name| *name == key)
                && within.is_none_or(|(before, _)| rank <= before)
            {
                within = Some((rank, map.next_value::<&'de RawValue>()?));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        let within =
            || within.map(|(_, value)| serde_json::from_str(value.get()).map(|Text { text, .. }| text));
        let expected: &dyn Expected = &self;
        let text = bare.map(Ok).or_else(within).transpose().map_err(A::Error::custom)?;
        let text = text
            .ok_or_else(|| A::Error::custom(format!("an object without its image, expected {expected}")))?;
        Ok(Text { text, wrapped: true })
    }
}

impl Instance<'_> {
    fn base64(&self) -> &Cow<'_, str> {
        &self.0
    }

    /// Bytes that the image takes beside the request, once it is decoded.
    fn bytes(&self) -> u64 {
        let text = self.base64();
        // Only text with escapes exists twice.
        let copied = if matches!(text, Cow::Owned(_)) { text.len() } else { 0 };
        (base64::decoded_len_estimate(text.len()) + copied) as u64
    }
}

/// Reads `{"instances": […]}` with 1 to `parts_max` instances.
///
/// # Errors
/// 400 for JSON of another form, 413 naming `parts_max`, and the error of `room`.
pub fn instances(body: &[u8], parts_max: usize, room: Room<'_>) -> Result<Instances, InferError> {
    let wire: Wire<'_> =
        object(body).map_err(|error| bad_json("the JSON body {\"instances\": […]}", &error))?;
    let mut kept = Vec::new();
    let count = list::each(wire.instances.get(), "the list of instances", |index, instance| {
        if index < parts_max {
            let read = serde_json::from_str(instance.get());
            kept.push(read.map_err(|error| bad_json(&format!("instance {index}"), &error))?);
        }
        Ok(())
    })?;
    Ok(Instances { images: decoded(kept, count, parts_max, room)?, parameters: wire.parameters })
}

/// Reads a JSON string: an image in base64.
///
/// # Errors
/// 400 for other JSON, and the error of `room`.
pub fn lone(body: &[u8], room: Room<'_>) -> Result<Result<Vec<u8>, InferError>, InferError> {
    let text = serde_json::from_slice(body).map_err(|error| bad_json("the JSON body", &error))?;
    Ok(decoded(vec![text], 1, 1, room)?.remove(0))
}

/// The bytes of 1 to `parts_max` instances. There are `count` instances; `kept` may have fewer if `count` exceeds the limit.
pub(super) fn decoded(
    kept: Vec<Instance<'_>>,
    count: usize,
    parts_max: usize,
    room: Room<'_>,
) -> Result<Vec<Result<Vec<u8>, InferError>>, InferError> {
    if count == 0 {
        return Err(InferError::BadRequest("instances is empty, expected 1 or more".to_owned()));
    }
    if count > parts_max {
        return Err(InferError::TooLarge {
            what: "the number of instances".into(),
            got: count as u64,
            limit: parts_max as u64,
            option: "parts_max",
        });
    }
    room(kept.iter().map(Instance::bytes).sum())?;
    let decode = |(index, instance): (usize, Instance<'_>)| decode_base64(index, instance.base64());
    Ok(kept.into_iter().enumerate().map(decode).collect())
}

/// Decodes one instance.
pub(super) fn decode_base64(index: usize, text: &str) -> Result<Vec<u8>, InferError> {
    base64_text::decode(text)
        .map_err(|error| InferError::BadRequest(format!("instance {index} is not base64: {error}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;

    /// The same with unlimited room.
    fn instances(body: &[u8], parts_max: usize) -> Result<Instances, InferError> {
        super::instances(body, parts_max, &mut |_| Ok(()))
    }

    #[test]
    fn room_is_asked_for_before_anything_is_decoded() {
        let asked = |body: &[u8], most: u64| {
            let mut told = 0;
            let read = super::instances(body, 4, &mut |bytes| {
                told = bytes;
                if bytes > most { Err(InferError::BadRequest("no room".into())) } else { Ok(()) }
            });
            (read.is_ok(), told)
        };
        assert_eq!(asked(br#"{"instances":["YWJj",{"b64":"YWJjYWJj"}]}"#, 9), (true, 9));
        assert_eq!(asked(br#"{"instances":["YWJj",{"b64":"YWJjYWJj"}]}"#, 8), (false, 9));
        // Text with escapes is copied first.
        assert_eq!(asked(br#"{"instances":["YW\u004Aj"]}"#, 7), (true, 7));
    }

    fn check(body: &str, expected: &[&str]) {
        let got = instances(body.as_bytes(), 4).unwrap();
        let got: Vec<_> = got.images.into_iter().map(|image| image.unwrap()).collect();
        let expected: Vec<_> = expected.iter().map(|image| image.as_bytes().to_vec()).collect();
        assert_eq!(got, expected, "{body}");
    }

    fn refuses(body: &str, told: &str) {
        let error = instances(body.as_bytes(), 4).unwrap_err().to_string();
        assert!(error.contains(told), "{error} lacks {told}");
    }

    #[test]
    fn the_forms_of_all_families_are_read() {
        check(r#"{"instances":[{"b64":"YWI="}]}"#, &["ab"]);
        check(r#"{"instances":[{"data":"YWI="},{"data":{"b64":"Yw"}}]}"#, &["ab", "c"]);
        check(
            r#"{"signature_name":"x","instances":[{"image_bytes":{"b64":"YWI"},"key":"1"},"Yw=="]}"#,
            &["ab", "c"],
        );
        check(r#"{"instances":[{"image":{"b64":"YWI="}},{"image":"Yw"}]}"#, &["ab", "c"]);
        check(r#"{"instances":["YW\u0049="]}"#, &["ab"]);
        check(r#"{"instances":["YWI="],"parameters":null}"#, &["ab"]);
    }

    #[test]
    fn of_several_members_the_one_that_says_most_of_an_image_is_read() {
        for instance in [
            r#"{"image":"a.png","b64":"YWI="}"#,
            r#"{"image":{"width":3},"data":"YWI="}"#,
            r#"{"image_bytes":{"b64":"YWI="},"image":7}"#,
        ] {
            check(&format!("{{\"instances\":[{instance}]}}"), &["ab"]);
        }
        let named = |json| Instance::named(json, "x").map(|Instance(text)| text.into_owned());
        for json in
            [r#"{"image":"a.png","x":"YWI"}"#, r#"{"x":{"b64":"YWI"},"data":7}"#, r#"{"image":"YWI"}"#]
        {
            assert_eq!(named(json).unwrap(), "YWI", "{json}");
        }
        let error = named(r#"{"image":[1]}"#).err().unwrap().to_string();
        assert!(error.contains("expected a string or an object with b64"), "{error}");
    }

    #[test]
    fn base64_may_have_line_breaks_in_every_form() {
        check(r#"{"instances":["YW\nI=\n",{"b64":"Y\r\nw=="}]}"#, &["ab", "c"]);
        check(r#"{"instances":[{"data":"Y W I"},{"image_bytes":{"b64":"Yw\t==\n"}}]}"#, &["ab", "c"]);
        check(
            r#"{"instances":[{"image":"?","body":"YWI="},{"body":{"b64":"Yw"}},{"body":"?","data":"Yw"}]}"#,
            &["ab", "c", "c"],
        );
    }

    #[test]
    fn one_instance_that_is_not_base64_leaves_the_others() {
        let got = instances(br#"{"instances":["YW!I=","Yw"]}"#, 4).unwrap();
        assert!(got.images[0].as_ref().unwrap_err().to_string().contains("instance 0 is not base64"));
        assert_eq!(got.images[1], Ok(b"c".to_vec()));
    }

    #[test]
    fn other_json_is_refused_with_what_is_expected() {
        refuses("{", "EOF");
        refuses("[]", "expected");
        refuses(r#" [["YWI="]]"#, "a list, expected an object");
        refuses(r#"{"instances":[]}"#, "1 or more");
        refuses(r#"{"instances":[1]}"#, "expected a base64 string or an object with b64");
        refuses(
            r#"{"instances":[{"key":"1"}]}"#,
            "an object without its image, expected a base64 string or an object",
        );
        refuses(r#"{"inputs":[]}"#, "missing field `instances`");
        refuses(r#"{"instances":["","","","",""]}"#, "instances is 5, more than the limit of 4");
    }
}
