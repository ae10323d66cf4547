//! The types that samples are stored as, and their conversion to the two types that frames have.

use half::f16;

/// The type that a stack stores its samples as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleType {
    /// 8 bits, unsigned.
    U8,
    /// 8 bits, signed.
    I8,
    /// 16 bits, unsigned.
    U16,
    /// 16 bits, signed.
    I16,
    /// Signed samples of 16 bits, which ImageJ stores with 32768 added; reading subtracts it again.
    I16Raised,
    /// 32 bits, unsigned.
    U32,
    /// 32 bits, signed.
    I32,
    /// 64 bits, unsigned.
    U64,
    /// 64 bits, signed.
    I64,
    /// Floating point of 16 bits.
    F16,
    /// Floating point of 32 bits.
    F32,
    /// Floating point of 64 bits.
    F64,
}

/// The samples of one or more frames, row-major.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Samples<'a> {
    /// 0 to 65535, from unsigned samples of 8 or 16 bits.
    U16(&'a [u16]),
    /// From samples of all other types. Exact for types of up to 16 bits and for `f32`; rounded to the nearest for integers beyond 2²⁴ and
    /// for `f64`. NaN and infinities are kept.
    F32(&'a [f32]),
}

/// [`Samples`] that own their memory.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// As [`Samples::U16`].
    U16(Vec<u16>),
    /// As [`Samples::F32`].
    F32(Vec<f32>),
}

impl Samples<'_> {
    /// An empty vector of the same type, with capacity for `count` samples.
    pub fn room(self, count: usize) -> Values {
        match self {
            Samples::U16(_) => Values::U16(Vec::with_capacity(count)),
            Samples::F32(_) => Values::F32(Vec::with_capacity(count)),
        }
    }
}

impl Values {
    /// Appends samples of the same type.
    ///
    /// # Panics
    /// If they are of the other type: all samples of a stack have the same one.
    pub fn extend(&mut self, samples: Samples<'_>) {
        match (self, samples) {
            (Values::U16(values), Samples::U16(more)) => values.extend_from_slice(more),
            (Values::F32(values), Samples::F32(more)) => values.extend_from_slice(more),
            _ => unreachable!("all frames of a stack are of one type"),
        }
    }

    /// A view of all samples.
    pub fn samples(&self) -> Samples<'_> {
        match self {
            Values::U16(values) => Samples::U16(values),
            Values::F32(values) => Samples::F32(values),
        }
    }
}

impl Default for Values {
    fn default() -> Values {
        Values::U16(Vec::new())
    }
}

/// The byte order of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::image) enum Order {
    #[default]
    Little,
    Big,
}

/// Converts stored samples of type `$from`, in native byte order, to frame samples.
macro_rules! convert {
    ($from:ty, $bytes:expr, $into:expr, $convert:expr) => {
        for (value, into) in $bytes.chunks_exact(size_of::<$from>()).zip($into) {
            // Every chunk has this size.
            let mut raw = [0; size_of::<$from>()];
            raw.copy_from_slice(value);
            *into = $convert(<$from>::from_ne_bytes(raw));
        }
    };
}

impl SampleType {
    /// Bytes of one sample.
    pub fn bytes(self) -> usize {
        match self {
            SampleType::U8 | SampleType::I8 => 1,
            SampleType::U16 | SampleType::I16 | SampleType::I16Raised | SampleType::F16 => 2,
            SampleType::U32 | SampleType::I32 | SampleType::F32 => 4,
            SampleType::U64 | SampleType::I64 | SampleType::F64 => 8,
        }
    }

    /// The name of the type, such as `u16`.
    pub fn name(self) -> &'static str {
        match self {
            SampleType::U8 => "u8",
            SampleType::I8 => "i8",
            SampleType::U16 => "u16",
            SampleType::I16 => "i16",
            SampleType::I16Raised => "i16 (stored with 32768 added)",
            SampleType::U32 => "u32",
            SampleType::I32 => "i32",
            SampleType::U64 => "u64",
            SampleType::I64 => "i64",
            SampleType::F16 => "f16",
            SampleType::F32 => "f32",
            SampleType::F64 => "f64",
        }
    }

    /// The type of samples that ImageJ's description says are signed but stored unsigned.
    pub(super) fn raised(self) -> SampleType {
        if self == SampleType::U16 { SampleType::I16Raised } else { self }
    }

    /// Whether frames have such samples as [`Samples::U16`].
    pub fn is_u16(self) -> bool {
        matches!(self, SampleType::U8 | SampleType::U16)
    }

    /// Whether they are floating-point.
    pub(in crate::image) fn is_float(self) -> bool {
        matches!(self, SampleType::F16 | SampleType::F32 | SampleType::F64)
    }

    /// Whether frames have such samples unchanged.
    pub(super) fn is_as_stored(self) -> bool {
        matches!(self, SampleType::U16 | SampleType::F32)
    }

    /// Converts samples of types that become `u16`; `bytes` are in native byte order.
    pub(super) fn to_u16(self, bytes: &[u8], into: &mut [u16]) {
        match self {
            SampleType::U8 => {
                for (value, into) in bytes.iter().zip(into) {
                    *into = u16::from(*value);
                }
            }
            _ => convert!(u16, bytes, into, |value| value),
        }
    }

    /// Converts samples of types that become `f32`; `bytes` are in native byte order.
    pub(in crate::image) fn to_f32(self, bytes: &[u8], into: &mut [f32]) {
        match self {
            SampleType::U8 => convert!(u8, bytes, into, f32::from),
            SampleType::I8 => convert!(i8, bytes, into, f32::from),
            SampleType::U16 => convert!(u16, bytes, into, f32::from),
            SampleType::I16 => convert!(i16, bytes, into, f32::from),
            SampleType::I16Raised => convert!(u16, bytes, into, |value| f32::from(value) - 32768.0),
            SampleType::U32 => convert!(u32, bytes, into, |value| value as f32),
            SampleType::I32 => convert!(i32, bytes, into, |value| value as f32),
            SampleType::U64 => convert!(u64, bytes, into, |value| value as f32),
            SampleType::I64 => convert!(i64, bytes, into, |value| value as f32),
            SampleType::F16 => convert!(f16, bytes, into, f16::to_f32),
            SampleType::F32 => convert!(f32, bytes, into, |value| value),
            SampleType::F64 => convert!(f64, bytes, into, |value| value as f32),
        }
    }
}

/// Converts samples of `size` bytes from `order` to native byte order.
pub(in crate::image) fn to_native(order: Order, size: usize, bytes: &mut [u8]) {
    let native = if cfg!(target_endian = "little") { Order::Little } else { Order::Big };
    if order == native {
        return;
    }
    match size {
        2 => swap::<2>(bytes),
        4 => swap::<4>(bytes),
        8 => swap::<8>(bytes),
        _ => {}
    }
}

fn swap<const N: usize>(bytes: &mut [u8]) {
    let (values, _) = bytes.as_chunks_mut::<N>();
    for value in values {
        value.reverse();
    }
}
