//! Numbers that another process of this build is to have as they are, for serde's `with`: their bytes. JSON has no word for NaN nor
//! for infinities.

use bytemuck::{AnyBitPattern, NoUninit};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Says the bytes.
pub(crate) fn serialize<T: NoUninit, S: Serializer>(numbers: &T, to: S) -> Result<S::Ok, S::Error> {
    bytemuck::bytes_of(numbers).serialize(to)
}

/// Reads them; an error if they are not as many.
pub(crate) fn deserialize<'de, T: AnyBitPattern, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let bytes = Vec::<u8>::deserialize(from)?;
    bytemuck::try_pod_read_unaligned(&bytes)
        .map_err(|_| Error::invalid_length(bytes.len(), &&*format!("{} bytes", size_of::<T>())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Has(#[serde(with = "super")] [f32; 2]);

    #[test]
    fn all_bits_come_back_and_other_lengths_are_errors() {
        for bits in [0x7f80_0001_u32, 0xffc1_2345, 0x7f80_0000, 0x8000_0000, 1] {
            let words = serde_json::to_string(&Has([f32::from_bits(bits), 0.1])).expect("JSON");
            let Has([strange, plain]) = serde_json::from_str(&words).expect("numbers");
            assert_eq!((strange.to_bits(), plain), (bits, 0.1));
        }
        let error = serde_json::from_str::<Has>("[1,2,3]").map(|_| ()).expect_err("three bytes");
        assert!(error.to_string().contains("invalid length 3, expected 8 bytes"), "{error}");
    }
}
