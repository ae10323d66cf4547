//! Parses the `data` of a JSON tensor straight into the tensor's bytes. There is no tree of values in between, and each number is rounded
//! once, to its own type (those of half precision by way of FP64).
//!
//! `data` has its elements in row-major order, flat or in nested lists. The shape alone says which elements they are, not the nesting, as
//! in Triton. NaN and the infinities come as strings ([`not_finite`]), NaN also as `null`. FP16 and BF16 cannot be sent as JSON in the Open
//! Inference Protocol; in rows ([`nested`]) they can.

use super::{clipped, members::Str, not_finite};
use crate::{
    engine::{DataType, Tensor, tensor::push_element},
    error::InferError,
};
use serde_json::value::RawValue;
use std::{fmt::Display, str::FromStr};

/// How many extents a shape may have.
const RANK_MAX: usize = 16;
/// How many elements the other extents of a shape with an extent of 0 may span: the bytes of the request do not bound them, and what a
/// model computes may have them all, as a sum over the empty axis does.
const BESIDE_EMPTY_MAX: usize = 1 << 24;

/// The number of elements of a shape.
///
/// # Errors
/// 400 for more than 16 extents, for more elements than can be counted, and for an empty shape with extents that would be as large.
pub fn elements(name: &str, shape: &[usize]) -> Result<usize, InferError> {
    if shape.len() > RANK_MAX {
        return Err(InferError::BadRequest(format!(
            "input {name:?} has {} extents, more than the limit of {RANK_MAX}",
            shape.len()
        )));
    }
    let is_empty = shape.contains(&0);
    let mut others = shape.iter().filter(|extent| **extent > 0);
    let spanned = others.try_fold(1usize, |product, extent| product.checked_mul(*extent));
    let most = if is_empty { BESIDE_EMPTY_MAX } else { isize::MAX as usize / 8 };
    match spanned.filter(|elements| *elements <= most) {
        Some(_) if is_empty => Ok(0),
        Some(elements) => Ok(elements),
        None if is_empty => Err(InferError::BadRequest(format!(
            "input {name:?} of shape {shape:?} has extents too large for one without elements: all but those of 0 may span {most}"
        ))),
        None => {
            Err(InferError::BadRequest(format!("input {name:?} of shape {shape:?} has too many elements")))
        }
    }
}

/// Reads `data` as a tensor of this type and shape.
///
/// # Errors
/// 400 saying which element of which input is wrong, what was expected and what came.
pub fn tensor(
    name: &str,
    datatype: DataType,
    shape: Vec<usize>,
    data: &RawValue,
) -> Result<Tensor, InferError> {
    read(name, datatype, shape, data, false)
}

/// The same, for a shape that was derived from the nesting of `data`: all lists must have the lengths of the first ones.
///
/// # Errors
/// As [`tensor`].
pub fn nested(
    name: &str,
    datatype: DataType,
    shape: Vec<usize>,
    data: &RawValue,
) -> Result<Tensor, InferError> {
    read(name, datatype, shape, data, true)
}

fn read(
    name: &str,
    datatype: DataType,
    shape: Vec<usize>,
    data: &RawValue,
    nested: bool,
) -> Result<Tensor, InferError> {
    // The protocol demands this; the protocol with rows has no other form.
    if !nested && matches!(datatype, DataType::Fp16 | DataType::Bf16) {
        return Err(InferError::BadRequest(format!(
            "input {name:?} is {datatype}, which JSON does not carry; send it as a binary tensor (binary_data_size)"
        )));
    }
    let expected = elements(name, &shape)?;
    let text = data.get();
    // A number takes at least two characters of JSON ("1,"). So a false shape cannot make us reserve more memory than was sent.
    let room = expected.min(text.len() / 2 + 1) * datatype.size().unwrap_or(5);
    let lists = nested.then_some(&shape[..]);
    let (at, count, bytes) = (0, 0, Vec::with_capacity(room));
    let mut scan = Scan { name, datatype, shape: &shape, lists, expected, text, at, count, bytes };
    scan.list(0)?;
    if scan.count != expected {
        return Err(scan.miscounted(&scan.count.to_string()));
    }
    let bytes = scan.bytes;
    Ok(Tensor { datatype, shape, data: bytes.into() })
}

/// A walk over JSON text that is known to be valid.
struct Scan<'a> {
    name: &'a str,
    datatype: DataType,
    shape: &'a [usize],
    /// The required length of lists at each depth, if nesting matters.
    lists: Option<&'a [usize]>,
    /// How many elements the shape has. More are not read: they may be as many as the body has room for.
    expected: usize,
    text: &'a str,
    at: usize,
    count: usize,
    bytes: Vec<u8>,
}

impl<'a> Scan<'a> {
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|b| b.is_ascii_whitespace()).count();
        self.text.as_bytes().get(self.at).copied()
    }

    /// Parses a list at this depth, with everything in it. [`super::depth`] limits the depth of a request's JSON.
    fn list(&mut self, depth: usize) -> Result<(), InferError> {
        if self.peek() != Some(b'[') {
            return Err(self.error("data is not a list"));
        }
        self.at += 1;
        let mut members = 0;
        loop {
            match self.peek() {
                Some(b']') => break,
                Some(b',') => self.at += 1,
                Some(b'[') => {
                    self.member(depth, &mut members)?;
                    self.list(depth + 1)?;
                }
                Some(_) => {
                    self.member(depth, &mut members)?;
                    if self.lists.is_some_and(|lists| depth + 1 != lists.len()) {
                        return Err(self.error("data mixes lists and elements"));
                    }
                    if self.count == self.expected {
                        return Err(self.miscounted(&format!("more than {}", self.expected)));
                    }
                    let element = self.token()?;
                    self.push(element)?;
                }
                None => return Err(self.error("data ends inside a list")),
            }
        }
        self.at += 1;
        match self.lists.map(|lists| lists.get(depth)) {
            None => Ok(()),
            Some(Some(expected)) if *expected == members => Ok(()),
            Some(Some(expected)) => Err(self.error(&format!(
                "a list at depth {depth} has {members} members where the first of its kind has {expected}"
            ))),
            Some(None) => Err(self.error("data mixes lists and elements")),
        }
    }

    /// Counts one more member of a list at this depth. Those that are too many are not read to the end.
    fn member(&self, depth: usize, members: &mut usize) -> Result<(), InferError> {
        *members += 1;
        match self.lists.and_then(|lists| lists.get(depth)) {
            Some(expected) if *members > *expected => Err(self.error(&format!(
                "a list at depth {depth} has more members than the {expected} that the first of its kind has"
            ))),
            _ => Ok(()),
        }
    }

    /// The next number, word or string, as it is written in the text.
    fn token(&mut self) -> Result<&'a str, InferError> {
        let text = self.text;
        let rest = &text.as_bytes()[self.at..];
        let length = if rest.first() == Some(&b'"') {
            let mut escaped = false;
            let end = rest[1..].iter().position(|b| {
                let ends = *b == b'"' && !escaped;
                escaped = *b == b'\\' && !escaped;
                ends
            });
            end.map(|end| end + 2)
        } else {
            let ends = |b: &u8| matches!(b, b',' | b']' | b'[' | b'{' | b'}') || b.is_ascii_whitespace();
            rest.iter().position(ends).filter(|length| *length > 0)
        };
        let Some(length) = length else {
            return Err(self.error("data holds something that is neither a list nor an element"));
        };
        let token = &text[self.at..self.at + length];
        self.at += length;
        Ok(token)
    }

    fn push(&mut self, token: &str) -> Result<(), InferError> {
        match self.datatype {
            DataType::Bool => match token {
                "true" | "1" => self.bytes.push(1),
                "false" | "0" => self.bytes.push(0),
                _ => return Err(self.mismatch(token, "true or false")),
            },
            DataType::Uint8 => self.integer(token, u8::to_le_bytes, u8::MIN, u8::MAX)?,
            DataType::Uint16 => self.integer(token, u16::to_le_bytes, u16::MIN, u16::MAX)?,
            DataType::Uint32 => self.integer(token, u32::to_le_bytes, u32::MIN, u32::MAX)?,
            DataType::Uint64 => self.integer(token, u64::to_le_bytes, u64::MIN, u64::MAX)?,
            DataType::Int8 => self.integer(token, i8::to_le_bytes, i8::MIN, i8::MAX)?,
            DataType::Int16 => self.integer(token, i16::to_le_bytes, i16::MIN, i16::MAX)?,
            DataType::Int32 => self.integer(token, i32::to_le_bytes, i32::MIN, i32::MAX)?,
            DataType::Int64 => self.integer(token, i64::to_le_bytes, i64::MIN, i64::MAX)?,
            // The words that Rust parses as numbers ("inf", "nan") are not JSON and cannot occur here, except those that were quoted.
            DataType::Fp32 => {
                let number = token.parse::<f32>().ok().filter(|number| number.is_finite());
                let number = number.or_else(|| not_finite::number(token).map(|number| number as f32));
                let number = number.ok_or_else(|| self.mismatch(token, "a number within ±3.4e38"))?;
                self.bytes.extend_from_slice(&number.to_le_bytes());
            }
            DataType::Fp64 => {
                let number = token.parse::<f64>().ok().filter(|number| number.is_finite());
                let number = number.or_else(|| not_finite::number(token));
                let number = number.ok_or_else(|| self.mismatch(token, "a number within ±1.8e308"))?;
                self.bytes.extend_from_slice(&number.to_le_bytes());
            }
            DataType::Bytes => {
                let Ok(text) = serde_json::from_str::<Str<'_>>(token) else {
                    return Err(self.mismatch(token, "a string"));
                };
                push_element(&mut self.bytes, text.0.as_bytes())
                    .ok_or_else(|| self.error("an element is longer than 4 GiB"))?;
            }
            DataType::Fp16 => {
                let number = self.half(token, half::f16::from_f64, half::f16::is_finite, "±65504")?;
                self.bytes.extend_from_slice(&number.to_le_bytes());
            }
            DataType::Bf16 => {
                let number = self.half(token, half::bf16::from_f64, half::bf16::is_finite, "±3.39e38")?;
                self.bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        self.count += 1;
        Ok(())
    }

    fn integer<N: FromStr + Display + Copy, const SIZE: usize>(
        &mut self,
        token: &str,
        to_bytes: fn(N) -> [u8; SIZE],
        min: N,
        max: N,
    ) -> Result<(), InferError> {
        // Clients that keep integers as floats write 7.0.
        let whole = || {
            token.split_once('.').filter(|(_, part)| part.bytes().all(|byte| byte == b'0'))?.0.parse().ok()
        };
        match token.parse().ok().or_else(whole) {
            Some(number) => self.bytes.extend_from_slice(&to_bytes(number)),
            None => return Err(self.mismatch(token, &format!("an integer from {min} to {max}"))),
        }
        Ok(())
    }

    fn half<N: Copy>(
        &self,
        token: &str,
        round: fn(f64) -> N,
        is_finite: fn(N) -> bool,
        range: &str,
    ) -> Result<N, InferError> {
        let number = token.parse::<f64>().ok().map(round).filter(|number| is_finite(*number));
        let number = number.or_else(|| not_finite::number(token).map(round));
        number.ok_or_else(|| self.mismatch(token, &format!("a number within {range}")))
    }

    fn miscounted(&self, elements: &str) -> InferError {
        let Scan { name, shape, expected, .. } = self;
        InferError::BadRequest(format!(
            "input {name:?} has {elements} elements, expected {expected} for shape {shape:?}"
        ))
    }

    fn mismatch(&self, token: &str, expected: &str) -> InferError {
        let (count, datatype, token) = (self.count, self.datatype, clipped(token));
        self.error(&format!("element {count} is {token}, expected {datatype}: {expected}"))
    }

    fn error(&self, what: &str) -> InferError {
        InferError::BadRequest(format!("input {:?}: {what}", self.name))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use proptest::prelude::*;

    fn bytes(datatype: DataType, shape: &[usize], data: &str, nested: bool) -> Result<Vec<u8>, InferError> {
        let data: &RawValue = serde_json::from_str(data).unwrap();
        super::read("x", datatype, shape.to_vec(), data, nested).map(|tensor| tensor.data.to_vec())
    }

    fn read(datatype: DataType, shape: &[usize], data: &str) -> Result<Vec<u8>, InferError> {
        bytes(datatype, shape, data, false)
    }

    fn refuses(datatype: DataType, shape: &[usize], data: &str, told: &str) {
        let error = read(datatype, shape, data).unwrap_err().to_string();
        assert!(error.contains(told), "{error} lacks {told}");
    }

    #[test]
    fn flat_and_nested_data_give_the_same_bytes() {
        let expected: Vec<u8> = [1f32, 2.5, -3.0, 4e-3].iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(read(DataType::Fp32, &[2, 0, 1 << 23], "[]").unwrap(), Vec::<u8>::new());
        for data in ["[1, 2.5,-3.0 ,4e-3]", "[[1,2.5],[-3,0.004]]", " [ [1,2.5]\n,[ -3 , 0.004 ] ] "] {
            assert_eq!(read(DataType::Fp32, &[2, 2], data).unwrap(), expected, "{data}");
        }
        // As in Triton, the shape says what the elements are, however they are nested.
        for shape in [&[2, 2, 1][..], &[4], &[1, 4], &[1, 2, 2, 1]] {
            for data in ["[[[1],[2.5]],[[-3],[0.004]]]", "[[[1,2.5,-3,0.004]]]", "[[1],[2.5,-3],[0.004]]"] {
                assert_eq!(read(DataType::Fp32, shape, data).unwrap(), expected, "{shape:?} {data}");
            }
        }
        assert_eq!(read(DataType::Int8, &[0, 3], "[]").unwrap(), [0u8; 0]);
        assert_eq!(read(DataType::Int8, &[2, 0], "[[],[]]").unwrap(), [0u8; 0]);
    }

    #[test]
    fn lists_that_say_a_shape_are_all_as_the_first_of_their_kind() {
        let read = |shape: &[usize], data| bytes(DataType::Int8, shape, data, true);
        assert_eq!(read(&[2, 2], "[[1,2],[3,4]]").unwrap(), [1, 2, 3, 4]);
        assert_eq!(read(&[2, 0], "[[],[]]").unwrap(), [0u8; 0]);
        for (shape, data) in [
            (&[3, 2][..], "[[1,2],[3,4,5],[6]]"),
            (&[2, 2], "[[1,2],[3]]"),
            (&[2, 1], "[[1],2]"),
            (&[2], "[1,[2]]"),
            (&[2], "[[1],[2]]"),
            (&[2, 0], "[[],[1]]"),
        ] {
            let error = read(shape, data).unwrap_err().to_string();
            assert!(error.contains("first of its kind") || error.contains("mixes lists"), "{data}: {error}");
        }
    }

    #[test]
    fn elements_that_are_too_many_are_not_read() {
        // What is behind the first of them is no number.
        refuses(
            DataType::Fp32,
            &[1, 2],
            "[1,2,\"x\",\"y\"]",
            "has more than 2 elements, expected 2 for shape [1, 2]",
        );
        refuses(DataType::Fp32, &[1, 2], "[[1],[2],[3,\"x\"]]", "has more than 2 elements");
        let error = bytes(DataType::Int8, &[2, 1], "[[1],[2,\"x\"]]", true).unwrap_err().to_string();
        assert_eq!(
            error,
            "input \"x\": a list at depth 1 has more members than the 1 that the first of its kind has"
        );
    }

    #[test]
    fn rows_have_half_precision_as_numbers() {
        let read = |datatype, data| bytes(datatype, &[3], data, true);
        let half = [0.1, -65504.0, f64::INFINITY].map(half::f16::from_f64);
        let expected: Vec<u8> = half.iter().flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!(read(DataType::Fp16, r#"[0.1, -65504, "Infinity"]"#).unwrap(), expected);
        let brain = [0.1, 3e38, 1.0].map(half::bf16::from_f64);
        let expected: Vec<u8> = brain.iter().flat_map(|number| number.to_le_bytes()).collect();
        assert_eq!(read(DataType::Bf16, "[0.1, 3e38, 1]").unwrap(), expected);
        let nan = half::f16::NAN.to_le_bytes().repeat(3);
        assert_eq!(read(DataType::Fp16, r#"[null, "NaN", null]"#).unwrap(), nan);
        assert!(read(DataType::Fp16, "[0, 1e5, 0]").unwrap_err().to_string().contains("within ±65504"));
    }

    #[test]
    fn what_is_no_number_comes_as_a_string() {
        let got = read(DataType::Fp32, &[3], r#"["NaN", "Infinity", "-Infinity"]"#).unwrap();
        let got: Vec<f32> = got.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert!(got[0].is_nan() && got[1..] == [f32::INFINITY, f32::NEG_INFINITY], "{got:?}");
        let got = read(DataType::Fp32, &[2], "[null, [1.5]]").unwrap();
        assert!(
            f32::from_le_bytes(got[..4].try_into().unwrap()).is_nan() && got[4..] == 1.5f32.to_le_bytes()
        );
        assert_eq!(read(DataType::Fp64, &[1], "[null]").unwrap(), f64::NAN.to_le_bytes());
        assert_eq!(read(DataType::Fp64, &[1], r#"["-Infinity"]"#).unwrap(), f64::NEG_INFINITY.to_le_bytes());
        for (datatype, data) in
            [(DataType::Fp32, r#"["nan"]"#), (DataType::Fp64, r#"["1"]"#), (DataType::Int32, r#"["NaN"]"#)]
        {
            refuses(datatype, &[1], data, "element 0 is \"");
        }
    }

    #[test]
    fn strings_get_their_length_in_front() {
        let got = read(DataType::Bytes, &[3], r#"["ab", "c\"]\u00e9", ""]"#).unwrap();
        assert_eq!(got, b"\x02\0\0\0ab\x05\0\0\0c\"]\xc3\xa9\0\0\0\0");
    }

    #[test]
    fn integers_keep_all_their_bits_and_their_range() {
        macro_rules! extremes {
            ($($name:ident $type:ty),*) => {$(
                let (min, max) = (<$type>::MIN, <$type>::MAX);
                let bytes = [min.to_le_bytes(), max.to_le_bytes()].concat();
                assert_eq!(read(DataType::$name, &[2], &format!("[{min},{max}]")).unwrap(), bytes);
                for beyond in [i128::from(min) - 1, i128::from(max) + 1] {
                    refuses(DataType::$name, &[1], &format!("[{beyond}]"), &format!("element 0 is {beyond}"));
                }
            )*};
        }
        extremes!(Uint8 u8, Uint16 u16, Uint32 u32, Uint64 u64, Int8 i8, Int16 i16, Int32 i32, Int64 i64);
        refuses(
            DataType::Uint8,
            &[2],
            "[255,256]",
            "element 1 is 256, expected UINT8: an integer from 0 to 255",
        );
        refuses(DataType::Uint8, &[1], "[-1]", "element 0 is -1");
        refuses(DataType::Int32, &[1], "[1.5]", "element 0 is 1.5, expected INT32");
        refuses(DataType::Uint8, &[1], "[256.0]", "element 0 is 256.0, expected UINT8");
        assert_eq!(
            read(DataType::Int8, &[2], "[-7.0, 3.000]").unwrap(),
            (-7_i8).to_le_bytes().into_iter().chain([3]).collect::<Vec<_>>()
        );
        refuses(DataType::Int64, &[1], "[\"1\"]", "element 0 is \"1\"");
        assert_eq!(read(DataType::Bool, &[4], "[true,false,1,0]").unwrap(), [1, 0, 1, 0]);
        refuses(DataType::Bool, &[1], "[2]", "true or false");
    }

    #[test]
    fn what_does_not_fit_says_expected_and_got() {
        refuses(DataType::Fp32, &[2], "[1,2,3]", "has more than 2 elements, expected 2 for shape [2]");
        refuses(DataType::Fp32, &[2, 2], "[[1,2],[3]]", "has 3 elements, expected 4 for shape [2, 2]");
        refuses(DataType::Fp32, &[1], "3", "data is not a list");
        refuses(DataType::Fp32, &[1], "[{\"a\":1}]", "neither a list nor an element");
        refuses(DataType::Int32, &[1], "[null]", "element 0 is null");
        refuses(DataType::Bool, &[1], "[null]", "element 0 is null");
        refuses(DataType::Bytes, &[1], "[null]", "element 0 is null");
        refuses(DataType::Fp32, &[2], "null", "data is not a list");
        refuses(DataType::Fp32, &[1], "[1e39]", "within ±3.4e38");
        refuses(DataType::Fp16, &[1], "[1]", "binary_data_size");
        refuses(DataType::Fp32, &[usize::MAX, 2], "[1]", "too many elements");
        refuses(DataType::Fp32, &[1, 0, 4], "[1]", "has more than 0 elements, expected 0");
        // A model may give what the others span.
        refuses(DataType::Fp32, &[0, (1 << 24) + 1], "[]", "may span 16777216");
        refuses(DataType::Fp32, &[0, usize::MAX, usize::MAX], "[]", "may span 16777216");
        refuses(DataType::Fp32, &[1; 17], "[1]", "17 extents");
    }

    #[test]
    fn a_large_shape_with_little_data_sets_little_aside() {
        refuses(DataType::Fp64, &[1 << 50], "[1]", "has 1 elements");
    }

    proptest! {
        #[test]
        fn numbers_come_back_bit_for_bit(numbers in prop::collection::vec(prop::num::f64::NORMAL | prop::num::f64::ZERO, 0..50)) {
            let text = serde_json::to_string(&numbers).unwrap();
            let got = read(DataType::Fp64, &[numbers.len()], &text).unwrap();
            let expected: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
            prop_assert_eq!(got, expected);
        }
    }
}
