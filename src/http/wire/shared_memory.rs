//! Triton's system shared memory extension: where in a region an input lies or an output is to be put, and the registration of regions.

use super::{Parameter, Parameters, Whole, bad_json, clipped, count, object};
use crate::error::{InferError, bad};
use serde::{Deserialize, Deserializer};
use std::fmt;

/// The region that a tensor lies in, or is to be put in.
pub(crate) const REGION: &str = "shared_memory_region";
/// Bytes of the region in front of the tensor; 0 if absent.
const OFFSET: &str = "shared_memory_offset";
/// Bytes of an input; the most bytes that an output may have.
const BYTE_SIZE: &str = "shared_memory_byte_size";

/// A range of bytes in a region. Whether the region has them is checked elsewhere, where the region is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The region's name.
    pub region: String,
    /// Bytes of the region in front of the range.
    pub offset: u64,
    /// Length of the range; at least 1.
    pub bytes: u64,
}

/// The place that the parameters of an input or an output (`of`) state. The parameters are removed.
///
/// # Errors
/// 400 for a region without a size, a size without a region, and an invalid name or count.
pub fn place(of: fmt::Arguments<'_>, parameters: &mut Parameters) -> Result<Option<Place>, InferError> {
    if ![REGION, OFFSET, BYTE_SIZE].iter().any(|name| parameters.contains_key(*name)) {
        return Ok(None);
    }
    let (offset, bytes) = (count(parameters, OFFSET)?, count(parameters, BYTE_SIZE)?);
    parameters.remove(OFFSET);
    parameters.remove(BYTE_SIZE);
    match (parameters.remove(REGION), bytes) {
        (None, _) => Err(bad(format!("{of} has a place in shared memory, but no {REGION}"))),
        (Some(Parameter::Text(region)), Some(bytes)) if bytes > 0 => {
            Ok(Some(Place { region, offset: offset.unwrap_or(0), bytes }))
        }
        (Some(Parameter::Text(_)), Some(_)) => {
            Err(bad(format!("{of} has {BYTE_SIZE} 0, expected 1 or more")))
        }
        (Some(Parameter::Text(_)), None) => Err(bad(format!("{of} has {REGION} without {BYTE_SIZE}"))),
        (Some(other), _) => Err(bad(format!("{REGION} of {of} is {other}, expected the name of a region"))),
    }
}

/// The registration of a region.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub struct Registration {
    /// The name by which processes open the shared memory object.
    pub key: String,
    /// Bytes of the object in front of the region.
    #[serde(default, deserialize_with = "or_none")]
    pub offset: u64,
    /// Bytes of the region.
    #[serde(deserialize_with = "whole")]
    pub byte_size: u64,
}

fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Whole::deserialize(from).map(|Whole(count)| count)
}

/// A count that may be absent, or null.
fn or_none<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Option::deserialize(from).map(|count| count.map_or(0, |Whole(count)| count))
}

/// Reads a registration.
///
/// # Errors
/// 400 saying which member is missing or invalid.
pub fn registration(body: &[u8]) -> Result<Registration, InferError> {
    object(body).map_err(|error| bad_json("the registration", &error))
}

/// The longest name of a region, in bytes: clients choose it, and it is repeated to others.
const NAME_BYTES_MAX: usize = 256;

/// Checks a region's name.
///
/// # Errors
/// 400 for an empty or too long name, and for one with a slash or a control character.
pub fn check_name(name: &str) -> Result<(), InferError> {
    match name.len() {
        0 => Err(bad("the region has no name")),
        bytes if bytes > NAME_BYTES_MAX => Err(bad(format!(
            "the region's name {:?}… has {bytes} bytes, more than the limit of {NAME_BYTES_MAX}",
            clipped(name)
        ))),
        // A proxy may take such a name for more of a path than it is.
        _ if name.contains(['/', '\\']) || name.contains(char::is_control) => {
            Err(bad(format!("the region's name {:?} has a slash or a control character", clipped(name))))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parameters: &str) -> Result<(Option<Place>, Parameters), String> {
        let mut parameters: Parameters = serde_json::from_str(parameters).unwrap();
        let place = place(format_args!("input \"x\""), &mut parameters).map_err(|error| error.to_string())?;
        Ok((place, parameters))
    }

    #[test]
    fn a_regions_name_is_no_path() {
        for name in ["../../x", "a/b", "a\\b", "a\nb", ""] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        assert_eq!(check_name("region 1 of a_client-2.0"), Ok(()));
    }

    #[test]
    fn a_place_is_taken_out_of_the_parameters_and_the_rest_stays() {
        let text =
            r#"{"shared_memory_region":"r","shared_memory_offset":8,"shared_memory_byte_size":4,"knob":1}"#;
        let (place, rest) = read(text).unwrap();
        assert_eq!(place, Some(Place { region: "r".to_owned(), offset: 8, bytes: 4 }));
        assert_eq!(rest.keys().collect::<Vec<_>>(), ["knob"]);
        let (place, _) = read(r#"{"shared_memory_region":"r","shared_memory_byte_size":4}"#).unwrap();
        assert_eq!(place.map(|place| place.offset), Some(0));
        assert_eq!(read(r#"{"knob":1}"#).unwrap().0, None);
    }

    #[test]
    fn half_a_place_is_refused_with_what_is_missing() {
        let check = |text: &str, told: &str| {
            let error = read(text).unwrap_err();
            assert!(error.contains(told), "{error} lacks {told}");
        };
        check(r#"{"shared_memory_region":"r"}"#, "without shared_memory_byte_size");
        check(r#"{"shared_memory_byte_size":4}"#, "no shared_memory_region");
        check(r#"{"shared_memory_offset":0}"#, "no shared_memory_region");
        check(r#"{"shared_memory_region":7,"shared_memory_byte_size":4}"#, "is 7, expected the name");
        check(r#"{"shared_memory_region":"r","shared_memory_byte_size":0}"#, "expected 1 or more");
        check(r#"{"shared_memory_region":"r","shared_memory_byte_size":-4}"#, "integer of 0 or more");
        check(
            r#"{"shared_memory_region":"r","shared_memory_byte_size":4,"shared_memory_offset":1.5}"#,
            "integer of 0 or more",
        );
    }

    #[test]
    fn a_registration_has_a_key_and_a_size() {
        let read = |text: &str| registration(text.as_bytes());
        let expected = Registration { key: "/k".to_owned(), offset: 0, byte_size: 9 };
        assert_eq!(read(r#"{"key":"/k","byte_size":9}"#), Ok(expected.clone()));
        assert_eq!(read(r#"{"key":"/k","byte_size":9,"offset":null}"#), Ok(expected));
        let told =
            read(r#"{"key":"/k","byte_size":9,"offset":18446744073709551616}"#).unwrap_err().to_string();
        assert!(
            told.contains("18446744073709551616 where an integer from 0 to 18446744073709551615"),
            "{told}"
        );
        for text in [
            "",
            "{}",
            r#"{"key":"k"}"#,
            r#"{"byte_size":9}"#,
            r#"{"key":"k","byte_size":-1}"#,
            r#"{"key":1}"#,
            r#"["/k", 0, 9]"#,
            r#"{"key":"/k","byte_size":9,"ofset":100}"#,
        ] {
            assert!(matches!(read(text), Err(InferError::BadRequest(_))), "{text}");
        }
    }

    #[test]
    fn names_are_neither_empty_nor_long() {
        assert!(check_name("").is_err() && check_name(&"x".repeat(257)).is_err());
        assert_eq!(check_name(&"x".repeat(256)), Ok(()));
    }
}
