//! The classification extension: instead of an output's values, its best classes as text, `value:index` or
//! `value:index:label`.
//!
//! The extension's text says that the type of such an output is STRING; clients expect BYTES.

use crate::{
    engine::{DataType, Tensor},
    error::InferError,
    tasks::Labels,
};
use std::cmp::Ordering;

/// The `k` best classes of each item, best first; equal values in the order of their index. With `batched`, the first axis counts items and
/// is kept. `labels` is called with the number of classes; classes that have a label are written with it.
///
/// # Errors
/// 400 for an output without numbers, or with NaN, which is neither better nor worse than anything.
pub fn best<'a>(
    name: &str,
    tensor: &Tensor,
    batched: bool,
    k: u64,
    labels: impl FnOnce(usize) -> Option<&'a Labels>,
) -> Result<Tensor, InferError> {
    let elements = tensor.elements();
    let items = if batched { tensor.shape.first().copied().unwrap_or(1) } else { 1 };
    let classes = elements.checked_div(items).unwrap_or(0);
    let k = usize::try_from(k).unwrap_or(usize::MAX).min(classes);
    let data = &tensor.data[..];
    if let Some(index) = tensor.to_f32().and_then(|all| all.iter().position(|number| number.is_nan())) {
        return Err(InferError::BadRequest(format!(
            "output {name:?} is not a number (NaN) at element {index}, which has no place among the best classes: ask for it as \
             binary data, without its parameter classification"
        )));
    }
    let asked = Asked { classes, k, labels: labels(classes) };
    let text = match tensor.datatype {
        DataType::Bool | DataType::Uint8 => asked.of(data, |[b]: [u8; 1]| b),
        DataType::Uint16 => asked.of(data, u16::from_le_bytes),
        DataType::Uint32 => asked.of(data, u32::from_le_bytes),
        DataType::Uint64 => asked.of(data, u64::from_le_bytes),
        DataType::Int8 => asked.of(data, i8::from_le_bytes),
        DataType::Int16 => asked.of(data, i16::from_le_bytes),
        DataType::Int32 => asked.of(data, i32::from_le_bytes),
        DataType::Int64 => asked.of(data, i64::from_le_bytes),
        DataType::Fp16 => asked.of(data, |b| half::f16::from_le_bytes(b).to_f64()),
        DataType::Bf16 => asked.of(data, |b| half::bf16::from_le_bytes(b).to_f64()),
        DataType::Fp32 => asked.of(data, f32::from_le_bytes),
        DataType::Fp64 => asked.of(data, f64::from_le_bytes),
        DataType::Bytes => {
            return Err(InferError::BadRequest(format!(
                "output {name:?} is BYTES, which has no best classes: leave out its parameter classification"
            )));
        }
    };
    let shape = if batched { vec![items, k] } else { vec![k] };
    Ok(Tensor { datatype: DataType::Bytes, shape, data: text.into() })
}

/// What to write for each item.
struct Asked<'a> {
    classes: usize,
    k: usize,
    labels: Option<&'a Labels>,
}

impl Asked<'_> {
    /// Writes the elements of a BYTES tensor.
    fn of<const SIZE: usize, N: Value>(&self, data: &[u8], number: impl Fn([u8; SIZE]) -> N) -> Vec<u8> {
        let values: Vec<N> = data.as_chunks::<SIZE>().0.iter().map(|chunk| number(*chunk)).collect();
        let mut out = Vec::new();
        for item in values.chunks(self.classes.max(1)) {
            let better = |a: &usize, b: &usize| item[*b].order(&item[*a]).then(a.cmp(b));
            let mut order: Vec<usize> = (0..item.len()).collect();
            if self.k < order.len() {
                order.select_nth_unstable_by(self.k, better);
                order.truncate(self.k);
            }
            order.sort_unstable_by(better);
            for index in order {
                let mut text = format!("{}:{index}", item[index].text());
                if let Some(label) = self.labels.and_then(|labels| labels.get(index)) {
                    text.push(':');
                    text.push_str(&label);
                }
                out.extend_from_slice(&(text.len() as u32).to_le_bytes());
                out.extend_from_slice(text.as_bytes());
            }
        }
        out
    }
}

/// A number that can be ordered and written; it is never NaN.
trait Value {
    fn order(&self, other: &Self) -> Ordering;
    fn text(&self) -> String;
}

macro_rules! values {
    (whole $($whole:ty)*) => { $( impl Value for $whole {
        fn order(&self, other: &Self) -> Ordering { self.cmp(other) }
        fn text(&self) -> String { self.to_string() }
    } )* };
    (real $($real:ty)*) => { $( impl Value for $real {
        // Zeros are equal, whatever their signs.
        fn order(&self, other: &Self) -> Ordering { self.partial_cmp(other).unwrap_or(Ordering::Equal) }
        // Six decimals, as in C's output.
        fn text(&self) -> String { format!("{self:.6}") }
    } )* };
}

values!(whole u8 u16 u32 u64 i8 i16 i32 i64);
values!(real f32 f64);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::super::binary::strings;
    use super::*;

    fn floats(shape: &[usize], values: &[f32]) -> Tensor {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { datatype: DataType::Fp32, shape: shape.to_vec(), data: data.into() }
    }

    fn check(tensor: &Tensor, batched: bool, k: u64, labels: &str, shape: &[usize], expected: &[&str]) {
        let labels = Labels::parse(labels).ok();
        let got = best("y", tensor, batched, k, |_| labels.as_ref()).unwrap();
        let texts = strings(&got.data).unwrap();
        let texts: Vec<&str> = texts.iter().map(|text| std::str::from_utf8(text).unwrap()).collect();
        assert_eq!((got.datatype, &got.shape[..]), (DataType::Bytes, shape));
        assert_eq!(texts, expected);
    }

    #[test]
    fn the_best_come_first_with_six_decimals_and_their_labels() {
        let y = floats(&[2, 3], &[0.1, 0.7, 0.2, 5.0, 5.0, -1.5]);
        let best = ["0.700000:1:b", "0.200000:2:c", "5.000000:0:a", "5.000000:1:b"];
        check(&y, true, 2, "a\nb\nc", &[2, 2], &best);
        check(&y, true, 1, "", &[2, 1], &["0.700000:1", "5.000000:0"]);
    }

    #[test]
    fn more_than_there_are_is_all_and_classes_beyond_the_labels_have_none() {
        let y = floats(&[3], &[1.0, f32::NEG_INFINITY, 2.0]);
        check(&y, false, 9, "a\nb", &[3], &["2.000000:2", "1.000000:0:a", "-inf:1:b"]);
        check(&y, false, 1, "a\nb\nc\nd", &[1], &["2.000000:2:c"]);
    }

    #[test]
    fn what_is_no_number_has_no_best_classes() {
        let error = best("y", &floats(&[3], &[1.0, f32::NAN, 2.0]), false, 1, |_| None).unwrap_err();
        assert!(error.to_string().contains("output \"y\" is not a number (NaN) at element 1"), "{error}");
    }

    #[test]
    fn whole_numbers_are_told_whole_however_large() {
        let data: Vec<u8> = [u64::MAX - 1, u64::MAX].iter().flat_map(|n| n.to_le_bytes()).collect();
        let y = Tensor { datatype: DataType::Uint64, shape: vec![1, 2], data: data.into() };
        check(&y, true, 1, "", &[1, 1], &["18446744073709551615:1"]);
    }

    #[test]
    fn text_has_no_best_classes() {
        let y = Tensor { datatype: DataType::Bytes, shape: vec![1], data: vec![0; 4].into() };
        assert!(best("y", &y, true, 1, |_| None).is_err());
    }
}
