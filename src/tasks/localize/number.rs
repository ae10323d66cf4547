//! Numbers as text: the shortest decimals that parse to the same `f32`.

/// Appends an integer.
pub(super) fn whole(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends a number, or `otherwise` if it is infinite or NaN. A trailing `.0` is omitted.
pub(super) fn real(out: &mut Vec<u8>, value: f32, otherwise: &str) {
    if value.is_finite() {
        let mut buffer = zmij::Buffer::new();
        let text = buffer.format_finite(value);
        out.extend_from_slice(text.strip_suffix(".0").unwrap_or(text).as_bytes());
    } else {
        out.extend_from_slice(otherwise.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(value: f32) -> String {
        let mut out = Vec::new();
        real(&mut out, value, "NaN");
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn numbers_are_short_and_odd_ones_replaced() {
        for (value, expected) in
            [(0.1, "0.1"), (-3.0, "-3"), (0.0, "0"), (f32::NAN, "NaN"), (f32::NEG_INFINITY, "NaN")]
        {
            assert_eq!(text(value), expected);
        }
    }

    proptest! {
        #[test]
        fn finite_numbers_come_back(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            prop_assume!(value.is_finite());
            prop_assert_eq!(text(value).parse::<f32>().unwrap().to_bits(), bits);
        }
    }
}
