//! The formats of requests and replies: from bytes to typed values, and back. Pure functions.
//!
//! - [`predict`]: images in JSON.
//! - [`answer`]: the reply to a prediction; `detection`: a box in it, with what the model gives beside.
//! - [`request`]: an inference request of the Open Inference Protocol, JSON with or without binary tensors behind it.
//! - [`raw`]: an inference request whose body is only the data of its input.
//! - [`binary`]: tensors as bytes; `base64_text`: bytes as text.
//! - `depth`: limits how deep JSON may be nested. [`data`]: parses the numbers of a JSON tensor straight into its bytes; `not_finite`:
//!   those that JSON lacks; `list`: lists of JSON, element by element; `members`: objects and lists with a limited number of entries.
//! - [`reply`]: the reply to an inference request; [`classification`]: an output's best classes instead of its values.
//! - [`repository`]: the bodies of repository control.
//! - [`v1`]: predictions by KServe's first protocol.
//! - [`shared_memory`]: the place of tensors that are not in the request.
//! - [`statistics`], [`model_config`]: what Triton's clients ask about a model.
//! - [`devices`]: the state of each device; `logging`: which lines the log has.

pub mod answer;
pub(super) mod base64_text;
pub mod binary;
pub mod classification;
pub mod data;
mod depth;
mod detection;
pub mod devices;
mod list;
pub(crate) mod logging;
mod members;
pub mod model_config;
mod not_finite;
pub mod predict;
pub mod raw;
pub mod reply;
pub mod repository;
pub mod request;
pub mod shared_memory;
pub mod statistics;
pub mod v1;

use crate::{error::InferError, words::clipped};
use axum::http::HeaderName;
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::value::RawValue;
use std::{collections::BTreeMap, fmt};

/// The length of the JSON in front of binary tensors, in requests and replies.
pub const HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// The parameter of a request that asks for all outputs as binary data.
pub(crate) const BINARY_OUTPUT: &str = "binary_data_output";

/// One value of `parameters`.
#[derive(Debug, Clone, PartialEq)]
pub enum Parameter {
    /// `true` or `false`.
    Bool(bool),
    /// A signed 64-bit integer.
    Integer(i64),
    /// Any other number as it was written. Parameters that are not ours, such as an id, may have any size.
    Number(String),
    /// A string.
    Text(String),
    /// A short list of numbers as they were written, separated by commas: some settings have one for x and one for y.
    Numbers(String),
    /// A value that none of our parameters has, described in words. Clients of other servers send such parameters, and nobody reads them.
    Other(&'static str),
}

impl From<u64> for Parameter {
    fn from(value: u64) -> Parameter {
        i64::try_from(value).map_or_else(|_| Parameter::Number(value.to_string()), Parameter::Integer)
    }
}

impl From<f64> for Parameter {
    fn from(value: f64) -> Parameter {
        Parameter::Number(format!("{value:?}"))
    }
}

impl<'de> Deserialize<'de> for Parameter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Parameter, D::Error> {
        // The text itself: a parsed number has other digits if it had too many.
        let json = <&RawValue>::deserialize(deserializer)?.get();
        match json.as_bytes() {
            [b't', ..] => Ok(Parameter::Bool(true)),
            [b'f', ..] => Ok(Parameter::Bool(false)),
            [b'"', ..] => match serde_json::from_str(json) {
                Ok(text) => Ok(Parameter::Text(text)),
                // The parser's own message would give a position within the string.
                Err(_) => Err(D::Error::custom("a string has an escape that stands for no character")),
            },
            [b'[', ..] => Ok(numbers(json).map_or(Parameter::Other("a list"), Parameter::Numbers)),
            [b'{', ..] => Ok(Parameter::Other("an object")),
            [b'n', ..] => Ok(Parameter::Other("null")),
            _ => Ok(json.parse().map_or_else(|_| Parameter::Number(json.to_owned()), Parameter::Integer)),
        }
    }
}

/// Bytes of the longest list that a setting can have. Others may be of any length, and are not kept.
const LIST_BYTES_MAX: usize = 256;

/// The items of a short list, if they are numbers.
fn numbers(json: &str) -> Option<String> {
    let items: Vec<&RawValue> =
        (json.len() <= LIST_BYTES_MAX).then(|| serde_json::from_str(json).ok()).flatten()?;
    let items: Vec<&str> = items.into_iter().map(RawValue::get).collect();
    let is_number = |item: &&str| item.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    (!items.is_empty() && items.iter().all(is_number)).then(|| items.join(","))
}

/// A whole number of 64 bits. Errors repeat any other value as it was written.
#[derive(Clone, Copy)]
struct Whole(u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Whole, D::Error> {
        let json = <&RawValue>::deserialize(deserializer)?.get();
        json.parse().map(Whole).map_err(|_| {
            D::Error::custom(format!("{} where an integer from 0 to {} is expected", clipped(json), u64::MAX))
        })
    }
}

/// `parameters` of a request, an input or an output.
pub type Parameters = BTreeMap<String, Parameter>;

/// The count in the parameter `name`, if there is one.
///
/// # Errors
/// 400 if it is not an integer of 0 or more.
pub fn count(parameters: &Parameters, name: &str) -> Result<Option<u64>, InferError> {
    match parameters.get(name) {
        None => Ok(None),
        Some(Parameter::Integer(n)) if *n >= 0 => Ok(Some(n.unsigned_abs())),
        Some(other) => Err(InferError::BadRequest(format!(
            "parameter {name:?} is {other}, expected an integer of 0 or more, at most {}",
            i64::MAX
        ))),
    }
}

/// The flag in the parameter `name`, if there is one.
///
/// # Errors
/// 400 if it is not a boolean.
pub fn flag(parameters: &Parameters, name: &str) -> Result<Option<bool>, InferError> {
    match parameters.get(name) {
        None => Ok(None),
        Some(Parameter::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => {
            Err(InferError::BadRequest(format!("parameter {name:?} is {other}, expected true or false")))
        }
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Parameter::Bool(value) => write!(f, "{value}"),
            Parameter::Integer(value) => write!(f, "{value}"),
            Parameter::Number(written) => f.write_str(clipped(written)),
            Parameter::Text(value) => write!(f, "{:?}", clipped(value)),
            Parameter::Numbers(written) => write!(f, "[{}]", clipped(written)),
            Parameter::Other(what) => f.write_str(what),
        }
    }
}

/// The longest name or id in a request, in bytes: far longer than in any model. Errors and replies repeat them, with escapes.
const NAME_BYTES_MAX: usize = 4096;

/// Checks the length of a name or an id, which is that of `whose`.
///
/// # Errors
/// What it is, with the limit.
pub(crate) fn check_length(whose: &str, name: &str) -> Result<(), String> {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let (bytes, begins) = (name.len(), clipped(name));
    Err(format!(
        "{whose} has a name or id of {bytes} bytes, more than the limit of {NAME_BYTES_MAX}: it begins with {begins:?}"
    ))
}

/// Characters of a parser's message, which may repeat an unexpected text of any length.
const WORDS_MAX: usize = 300;

/// Reads an object, as all JSON of a request is one. A list of its members' values, which serde accepts for an object, is refused.
fn object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> serde_json::Result<T> {
    if !depth::is_bounded(json) {
        return Err(Error::custom(format!(
            "lists and objects are within each other more than {} deep",
            depth::DEPTH_MAX
        )));
    }
    match json.trim_ascii_start().first() {
        Some(b'[') => Err(Error::custom("it is a list, expected an object")),
        // As text, its strings are not examined one by one.
        _ => str::from_utf8(json).map_or_else(|_| serde_json::from_slice(json), serde_json::from_str),
    }
}

/// Reads a body that may be left out, as an object.
fn optional_object<'de, T: Default + Deserialize<'de>>(body: &'de [u8]) -> Result<T, InferError> {
    if body.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    object(body).map_err(|error| bad_json("the body", &error))
}

/// A 400 for JSON that cannot be read. It says where, and repeats little of the content.
fn bad_json(what: &str, error: &serde_json::Error) -> InferError {
    let words = error.to_string();
    InferError::BadRequest(match words.char_indices().nth(WORDS_MAX) {
        None => format!("{what} cannot be read: {words}"),
        Some((end, _)) => {
            let (line, column) = (error.line(), error.column());
            format!("{what} cannot be read: {}… at line {line} column {column}", &words[..end])
        }
    })
}

#[cfg(test)]
mod tests {
    use super::Parameter;
    use axum::body::Bytes;
    use proptest::prelude::*;

    #[test]
    fn a_parameter_is_a_flag_a_number_or_a_string_and_what_is_none_is_told_where_it_is_read() {
        for (text, expected) in [
            ("true", Parameter::Bool(true)),
            ("-9223372036854775808", Parameter::Integer(i64::MIN)),
            ("9223372036854775807", Parameter::Integer(i64::MAX)),
            ("9223372036854775808", Parameter::Number("9223372036854775808".to_owned())),
            ("1.0", Parameter::Number("1.0".to_owned())),
            ("\"\"", Parameter::Text(String::new())),
            ("\"a\\nb\"", Parameter::Text("a\nb".to_owned())),
        ] {
            assert_eq!(serde_json::from_str::<Parameter>(text).ok(), Some(expected), "{text}");
        }
        let long = format!("[{}1]", "1,".repeat(128));
        for (text, what) in [
            ("null", "null"),
            ("[1.50, -2]", "[1.50,-2]"),
            ("[]", "a list"),
            ("[1, \"a\"]", "a list"),
            ("[[1]]", "a list"),
            (&long, "a list"),
            ("{\"a\":[]}", "an object"),
        ] {
            let parameter: Parameter = serde_json::from_str(text).expect(text);
            let parameters = super::Parameters::from([("k".to_owned(), parameter)]);
            let error = super::flag(&parameters, "k").expect_err(text).to_string();
            assert!(error.contains(&format!("is {what}, expected true or false")), "{error}");
        }
    }

    #[test]
    fn a_number_of_any_size_is_told_as_it_was_written() {
        let count = |value: &str| {
            let parameters = serde_json::from_str(&format!("{{\"k\":{value}}}")).expect("parameters");
            super::count(&parameters, "k").map_err(|error| error.to_string())
        };
        for value in ["9007199254740993", "9223372036854775807"] {
            assert_eq!(
                count(value).map(|count| count.map(|count| count.to_string())),
                Ok(Some(value.into()))
            );
        }
        for value in [
            "9223372036854775808",
            "18446744073709551616",
            "-9223372036854775809",
            "1e400",
            "0.10000000000000000001",
        ] {
            let expected = format!(
                "parameter \"k\" is {value}, expected an integer of 0 or more, at most 9223372036854775807"
            );
            assert_eq!(count(value), Err(expected));
        }
        // A value that came over gRPC.
        assert_eq!(Parameter::from(u64::MAX).to_string(), "18446744073709551615");
        assert_eq!(Parameter::from(0.1).to_string(), "0.1");
        let error =
            serde_json::from_str::<Parameter>(r#""\ud800""#).expect_err("half a character").to_string();
        assert!(error.starts_with("a string has an escape that stands for no character"), "{error}");
    }

    #[test]
    fn json_that_is_too_deep_is_refused_by_the_same_words_wherever_it_is_so() {
        let within = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let infer = |body: &str| super::request::read(&Bytes::from(body.to_owned()), None, &[]).map(drop);
        let predict = |body: &str| super::predict::instances(body.as_bytes(), 4, &mut |_| Ok(())).map(drop);
        let taken = super::v1::Taken { inputs: &[], pixels: &[], images: true };
        let v1 = |body: &str| super::v1::read(body.as_bytes(), taken, 4, &mut |_| Ok(())).map(drop);
        let index = |body: &str| super::repository::only_ready(body.as_bytes()).map(drop);
        let unload = |body: &str| super::repository::unload(body.as_bytes());
        let load = |body: &str| super::repository::Load::of_body(body.as_bytes()).map(drop);
        let config = |config: &str| {
            let mut load = super::repository::Load::default();
            load.config("config", Some(config.to_owned()))?;
            load.change("m", None).map(drop)
        };
        let given = |config: &str| {
            let mut load = super::repository::Load::default();
            load.config("config", Some(config.to_owned()))?;
            load.file("file:1/model.onnx", Bytes::new())?;
            load.change("m", None).map(drop)
        };
        let region = |body: &str| super::shared_memory::registration(body.as_bytes()).map(drop);
        let input = |member: &str| {
            format!(r#"{{"inputs":[{{"name":"a","shape":[1],"datatype":"FP32","data":[1],{member}}}]}}"#)
        };
        type Read<'a> = &'a dyn Fn(&str) -> Result<(), crate::error::InferError>;
        type Body<'a> = &'a dyn Fn(&str) -> String;
        let bodies: [(Read<'_>, Body<'_>, bool); 14] = [
            (&infer, &|deep| format!(r#"{{"inputs":[],"x":{deep}}}"#), true),
            (&infer, &|deep| format!(r#"{{"inputs":[],"parameters":{{"x":{deep}}}}}"#), true),
            (&infer, &|deep| input(&format!(r#""x":{deep}"#)), true),
            (&infer, &|deep| input(&format!(r#""parameters":{{"x":{deep}}}"#)), true),
            (&infer, &|deep| input("\"x\":1").replace("[1],\"x\"", &format!("{deep},\"x\"")), false),
            (&predict, &|deep| format!(r#"{{"instances":["YQ=="],"x":{deep}}}"#), true),
            (&predict, &|deep| format!(r#"{{"instances":[{{"b64":"YQ==","x":{deep}}}]}}"#), true),
            (&v1, &|deep| format!(r#"{{"instances":[{{"b64":"YQ=="}}],"x":{deep}}}"#), true),
            (&index, &|deep| format!(r#"{{"ready":true,"x":{deep}}}"#), false),
            (&unload, &|deep| format!(r#"{{"parameters":{{"x":{deep}}}}}"#), false),
            (&load, &|deep| format!(r#"{{"parameters":{{"x":{deep}}}}}"#), false),
            (&config, &|deep| format!(r#"{{"parameters":{{"x":{deep}}}}}"#), false),
            (&given, &|deep| format!(r#"{{"parameters":{{"x":{deep}}}}}"#), true),
            (&region, &|deep| format!(r#"{{"key":"/a","byte_size":1,"x":{deep}}}"#), false),
        ];
        // Whether a body of the allowed depth is accepted, or is refused for another reason.
        let told = "lists and objects are within each other more than 120 deep";
        for (read, body, passes) in bodies {
            let marked = body("…");
            let before = marked.split('…').next().unwrap_or_default();
            let outside = before.matches(['[', '{']).count() - before.matches([']', '}']).count();
            let most = super::depth::DEPTH_MAX - outside;
            let fits = read(&body(&within(most)));
            assert!(!passes || fits.is_ok(), "{marked}: {fits:?}");
            assert!(fits.is_ok() || !fits.unwrap_err().to_string().contains(told), "{marked}");
            for depth in [most + 1, 100_000] {
                let error = read(&body(&within(depth))).unwrap_err().to_string();
                assert!(error.ends_with(told), "{marked}: {error}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn whatever_json_is_sent_as_data_is_read_or_refused(
            picks in prop::collection::vec(prop::sample::select(vec!["[1,2]", "1", "\"a\"", "[[]]", "{}", "null", "-0.0"]), 0..6),
            shape in prop::collection::vec(0..4usize, 0..4),
            datatype in prop::sample::select(crate::engine::DataType::ALL.to_vec()),
        ) {
            let text = format!("[{}]", picks.join(","));
            let data: &serde_json::value::RawValue = serde_json::from_str(&text).expect("the pieces are JSON");
            if let Ok(tensor) = super::data::tensor("x", datatype, shape.clone(), data) {
                prop_assert_eq!(tensor.elements(), shape.iter().product::<usize>());
                if let Some(size) = datatype.size() {
                    prop_assert_eq!(tensor.data.len(), tensor.elements() * size);
                }
            }
        }
    }
}
