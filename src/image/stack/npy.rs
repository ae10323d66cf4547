//! The header of a `.npy` file, versions 1 to 3: type, order and shape of the array that follows.

use super::samples::{Order, SampleType};
use crate::words::clipped;

/// The first bytes of every `.npy` file.
pub(super) const MAGIC: &[u8] = b"\x93NUMPY";

/// The longest header that is read, in bytes; no array of numbers has a longer one.
const HEADER_BYTES_MAX: u64 = 64 << 10;

/// What the header says about an array.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::image) struct Header {
    /// The type of the samples, or the name of a type that we do not read.
    pub(in crate::image) sample: Result<SampleType, String>,
    pub(in crate::image) order: Order,
    pub(in crate::image) shape: Vec<u64>,
    /// Whether the first index runs fastest.
    pub(in crate::image) fortran_order: bool,
}

/// The length of everything before the array, as soon as the first bytes tell; `Err` for an unknown version or a header that is too long.
pub(super) fn header_bytes(begin: &[u8]) -> Result<Option<u64>, String> {
    let Some([major, minor]) = begin.get(6..8) else { return Ok(None) };
    let (prefix, len) = match (major, minor) {
        (1, 0) => match begin.get(8..10) {
            Some(len) => (10, u64::from(len[0]) | u64::from(len[1]) << 8),
            None => return Ok(None),
        },
        (2 | 3, 0) => match begin.get(8..12) {
            Some(len) => (12, len.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))),
            None => return Ok(None),
        },
        _ => return Err(format!("version {major}.{minor} is not one of 1.0, 2.0 and 3.0")),
    };
    if len > HEADER_BYTES_MAX {
        return Err(format!("its header has {len} bytes, more than {HEADER_BYTES_MAX}"));
    }
    Ok(Some(prefix + len))
}

/// Parses a header of the length that [`header_bytes`] returned. `Err` says why it does not describe an array of numbers.
pub(super) fn header(bytes: &[u8]) -> Result<Header, String> {
    let start = if bytes.get(6) == Some(&1) { 10 } else { 12 };
    let text = bytes.get(start..).and_then(|text| std::str::from_utf8(text).ok());
    let text = text.ok_or("its header is not text")?.trim();
    let member = |name: &str| -> Result<&str, String> {
        let missing = || format!("its header {text:?} has no {name:?}");
        let (_, rest) = text
            .split_once(&format!("'{name}'"))
            .or_else(|| text.split_once(&format!("\"{name}\"")))
            .ok_or_else(missing)?;
        Ok(rest.trim_start().strip_prefix(':').ok_or_else(missing)?.trim_start())
    };

    let descr = member("descr")?;
    let quote = descr.chars().next().filter(|quote| matches!(quote, '\'' | '"'));
    let descr = quote.and_then(|quote| descr[1..].split_once(quote)).map(|(descr, _)| descr);
    let (sample, order) = descr.map_or((None, Order::Little), sample);
    let other = || match descr {
        Some(descr) => format!("dtype {:?}", clipped(descr)),
        None => "records (a structured dtype)".to_owned(),
    };
    let sample = sample.ok_or_else(other);

    let fortran = member("fortran_order")?;
    let fortran_order = match (fortran.starts_with("True"), fortran.starts_with("False")) {
        (true, _) => true,
        (_, true) => false,
        _ => return Err("its fortran_order is neither True nor False".to_owned()),
    };

    let shape = member("shape")?.strip_prefix('(').and_then(|rest| rest.split_once(')'));
    let (shape, _) = shape.ok_or("its shape is not a tuple")?;
    let sides =
        shape.split(',').map(|side| side.trim().trim_end_matches('L')).filter(|side| !side.is_empty());
    let sides: Result<Vec<u64>, _> = sides.map(str::parse).collect();
    let shape = sides.map_err(|_| format!("its shape ({}) is not a tuple of numbers", clipped(shape)))?;
    Ok(Header { sample, order, shape, fortran_order })
}

/// The header of a whole file, and what is behind it.
pub(in crate::image) fn parts(file: &[u8]) -> Result<(Header, &[u8]), String> {
    let begins = header_bytes(file)?.filter(|begins| *begins <= file.len() as u64);
    let (head, numbers) = file.split_at(begins.ok_or("it ends within its header")? as usize);
    Ok((header(head)?, numbers))
}

/// Checks that there are as many bytes of numbers as the shape says.
pub(in crate::image) fn check_bytes(shape: &[u64], sample: SampleType, got: usize) -> Result<(), String> {
    let items = shape.iter().try_fold(1_u64, |product, side| product.checked_mul(*side));
    let expected = items.and_then(|items| items.checked_mul(sample.bytes() as u64));
    match expected == Some(got as u64) {
        true => Ok(()),
        false => Err(format!("its shape {shape:?} does not fit its {got} bytes of numbers")),
    }
}

/// A whole file that can be taken as a tensor: in C order, and with little-endian numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Type of the numbers.
    pub sample: SampleType,
    /// Extents, outermost first.
    pub shape: Vec<u64>,
    /// Bytes before the numbers.
    pub begins: usize,
}

impl Array {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// A malformed file, or a kind of array that NumPy writes and we do not read.
    pub fn of(file: &[u8]) -> Result<Array, String> {
        if !file.starts_with(MAGIC) {
            return Err("it does not begin as .npy files do".to_owned());
        }
        let (Header { sample, order, shape, fortran_order }, numbers) = parts(file)?;
        let sample = sample
            .map_err(|what| format!("it is of {what}, expected integers or floats of up to 8 bytes"))?;
        if fortran_order && shape.len() > 1 {
            return Err("it is in Fortran order: save numpy.ascontiguousarray(...) of it".to_owned());
        }
        if order == Order::Big && sample.bytes() > 1 {
            return Err(
                "its numbers are big-endian: save .astype(array.dtype.newbyteorder('<')) of it".to_owned()
            );
        }
        check_bytes(&shape, sample, numbers.len())?;
        Ok(Array { sample, shape, begins: file.len() - numbers.len() })
    }
}

/// The type that a `descr` such as `<u2` names.
fn sample(descr: &str) -> (Option<SampleType>, Order) {
    let (order, kind) = match descr.as_bytes() {
        [b'<' | b'|' | b'=', kind @ ..] => (Order::Little, kind),
        [b'>', kind @ ..] => (Order::Big, kind),
        _ => (Order::Little, descr.as_bytes()),
    };
    let sample = match kind {
        b"u1" => SampleType::U8,
        b"i1" => SampleType::I8,
        b"u2" => SampleType::U16,
        b"i2" => SampleType::I16,
        b"u4" => SampleType::U32,
        b"i4" => SampleType::I32,
        b"u8" => SampleType::U64,
        b"i8" => SampleType::I64,
        b"f2" => SampleType::F16,
        b"f4" => SampleType::F32,
        b"f8" => SampleType::F64,
        _ => return (None, order),
    };
    (Some(sample), order)
}
