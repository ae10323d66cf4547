//! A tensor of one number in a model's file.

use super::fields::Fields;
use std::io::{Read, Seek};

/// A longer tensor holds more than one number.
pub(super) const TENSOR_BYTES_MAX: u64 = 4096;

/// The one number of a tensor, in each of the ways in which a file may hold it.
#[derive(Clone, Default)]
pub(super) struct Number {
    /// Bytes as they are in memory.
    raw: Option<Vec<u8>>,
    float: Option<f32>,
    whole: Option<i64>,
}

impl Number {
    pub(super) fn float(&self) -> Option<f32> {
        let raw = || Some(f32::from_le_bytes(self.raw.as_deref()?.try_into().ok()?));
        self.float.or_else(raw)
    }

    pub(super) fn byte(&self, is_signed: bool) -> Option<f32> {
        match (self.raw.as_deref(), self.whole) {
            (Some([byte]), _) if is_signed => Some(f32::from(byte.cast_signed())),
            (Some([byte]), _) => Some(f32::from(*byte)),
            (None, Some(whole)) if is_signed => i8::try_from(whole).ok().map(f32::from),
            (None, Some(whole)) => u8::try_from(whole).ok().map(f32::from),
            _ => None,
        }
    }
}

/// A tensor's name and its number; without one if it has several, or they are elsewhere.
pub(super) fn read(fields: &mut Fields<impl Read + Seek>, bytes: u64) -> Result<(String, Number), String> {
    let end = fields.at() + bytes;
    let (mut name, mut found) = (String::new(), Number::default());
    while let Some((number, bytes)) = fields.next_until(end)? {
        match (number, bytes) {
            (4, 4) => found.float = fields.read(bytes)?.try_into().ok().map(f32::from_le_bytes),
            (5, 1..=10) => found.whole = varint(&fields.read(bytes)?),
            (8, _) => name = fields.name_or_none(bytes)?,
            (9, 1..=4) => found.raw = Some(fields.read(bytes)?),
            _ => fields.skip(bytes)?,
        }
    }
    Ok((name, found))
}

/// The one varint in these bytes; negative numbers take ten.
fn varint(bytes: &[u8]) -> Option<i64> {
    let (last, before) = bytes.split_last()?;
    let is_one = *last < 0x80 && before.iter().all(|byte| *byte >= 0x80) && bytes.len() <= 10;
    let shifted = |(at, byte): (usize, &u8)| u64::from(byte & 0x7f).checked_shl(7 * at as u32);
    let value = bytes.iter().enumerate().filter_map(shifted).fold(0, |value, part| value | part);
    is_one.then_some(value.cast_signed())
}
