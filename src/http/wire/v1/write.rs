//! Writes a reply: values as nested lists, or answers for images.

use super::{
    super::{
        binary,
        not_finite::NotFinite,
        reply::{self, numbers_of, single, string},
    },
    Form,
};
use crate::{
    engine::{Tensor, TensorSpec},
    error::InferError,
};
use std::borrow::Cow;

/// The reply for images, of their answers.
pub fn answers(form: Form, answers: &[Vec<u8>]) -> Vec<u8> {
    [&begin(form), &b"["[..], &answers.join(&b','), b"]}"].concat()
}

/// The most bytes that these outputs take as text: each element may be a list of its own.
pub fn text_bytes_max(outputs: &[Tensor]) -> u64 {
    outputs.iter().map(|output| reply::text_bytes_max(output) + 3 * output.elements() as u64).sum()
}

/// The reply for tensors: a value for each row, or for each output if `rows` is `None`. With several outputs, values are objects.
///
/// # Errors
/// [`InferError::Internal`] for an output of strings whose lengths do not add up.
pub fn outputs(
    rows: Option<usize>,
    form: Form,
    specs: &[TensorSpec],
    outputs: &[Tensor],
) -> Result<Vec<u8>, InferError> {
    let mut json = begin(form);
    reply::room(&mut json, text_bytes_max(outputs))?;
    let names = || specs.iter().map(|spec| spec.name.as_str());
    let outputs: Vec<Cow<'_, Tensor>> = outputs.iter().map(single).collect();
    match rows {
        None => value(&mut json, &names().zip(outputs.into_iter().map(Cow::into_owned)).collect::<Vec<_>>())?,
        Some(rows) => {
            let mut parts: Vec<_> = outputs.iter().map(|output| inner(output)).collect();
            json.push(b'[');
            for row in 0..rows {
                if row > 0 {
                    json.push(b',');
                }
                let row = parts.iter_mut().map_while(Iterator::next);
                value(&mut json, &names().zip(row).collect::<Vec<_>>())?;
            }
            json.push(b']');
        }
    }
    json.push(b'}');
    Ok(json)
}

fn begin(form: Form) -> Vec<u8> {
    match form {
        Form::Rows => b"{\"predictions\":".to_vec(),
        Form::Columns => b"{\"outputs\":".to_vec(),
    }
}

/// All outputs, or one row of each.
fn value(json: &mut Vec<u8>, named: &[(&str, Tensor)]) -> Result<(), InferError> {
    if let [(name, tensor)] = named {
        return nested(json, name, tensor);
    }
    for (index, (name, tensor)) in named.iter().enumerate() {
        json.push(if index > 0 { b',' } else { b'{' });
        string(json, name);
        json.push(b':');
        nested(json, name, tensor)?;
    }
    json.push(b'}');
    Ok(())
}

/// The values at each position of the first axis, without that axis. In one pass, because the start of a text follows from those before it.
fn inner(tensor: &Tensor) -> impl Iterator<Item = Tensor> {
    let shape = tensor.shape[1..].to_vec();
    let (each, mut data) = (shape.iter().product(), tensor.data.clone());
    (0..tensor.shape[0]).map(move |_| {
        let bytes = match tensor.datatype.size() {
            Some(size) => each * size,
            None => binary::length_of(&data, each),
        };
        Tensor { datatype: tensor.datatype, shape: shape.clone(), data: data.split_to(bytes) }
    })
}

/// Writes a tensor as nested lists.
fn nested(json: &mut Vec<u8>, name: &str, tensor: &Tensor) -> Result<(), InferError> {
    match tensor.shape.len() {
        0 => numbers_of(json, name, tensor, NotFinite::Null),
        1 => {
            json.push(b'[');
            numbers_of(json, name, tensor, NotFinite::Null)?;
            json.push(b']');
            Ok(())
        }
        _ => {
            json.push(b'[');
            for (row, inner) in inner(tensor).enumerate() {
                if row > 0 {
                    json.push(b',');
                }
                nested(json, name, &inner)?;
            }
            json.push(b']');
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic
    use super::*;
    use crate::engine::{DataType, Dim::Free};

    fn spec_of(name: &str, datatype: DataType) -> TensorSpec {
        TensorSpec { name: name.to_owned(), datatype, shape: vec![Free] }
    }

    #[test]
    fn replies_are_nested_like_their_shapes() {
        let data: Vec<u8> = [1.0f32, 2.0, 3.0, 4.5].iter().flat_map(|n| n.to_le_bytes()).collect();
        let y = Tensor { datatype: DataType::Fp32, shape: vec![2, 1, 2], data: data.into() };
        let specs = [spec_of("y", DataType::Fp32), spec_of("z", DataType::Fp32)];
        let text = |rows, form, count: usize| {
            let all = [y.clone(), y.clone()];
            String::from_utf8(outputs(rows, form, &specs[..count], &all[..count]).unwrap()).unwrap()
        };
        assert_eq!(text(Some(2), Form::Rows, 1), r#"{"predictions":[[[1.0,2.0]],[[3.0,4.5]]]}"#);
        assert_eq!(text(None, Form::Columns, 1), r#"{"outputs":[[[1.0,2.0]],[[3.0,4.5]]]}"#);
        let two = r#"{"predictions":[{"y":[[1.0,2.0]],"z":[[1.0,2.0]]},{"y":[[3.0,4.5]],"z":[[3.0,4.5]]}]}"#;
        assert_eq!(text(Some(2), Form::Rows, 2), two);
    }

    #[test]
    fn a_great_many_texts_take_no_more_time_than_their_bytes() {
        // Searching each text from the first one takes minutes: a quadratic algorithm shows in this test's duration.
        let count = 200_000;
        let data: Vec<u8> = [1, 0, 0, 0, b'a'].repeat(count);
        for shape in [vec![count], vec![count, 1], vec![1, count, 1]] {
            let (rows, brackets) = (shape[0], shape.len() - 1);
            let y = Tensor { datatype: DataType::Bytes, shape, data: data.clone().into() };
            let json = outputs(Some(rows), Form::Rows, &[spec_of("y", DataType::Bytes)], &[y]).unwrap();
            let read: serde_json::Value = serde_json::from_slice(&json).unwrap();
            let mut last = &read["predictions"];
            for _ in 0..=brackets {
                last = last.as_array().unwrap().last().unwrap();
            }
            assert_eq!(
                (last.as_str(), json.iter().filter(|byte| **byte == b'a').count()),
                (Some("a"), count)
            );
        }
    }
}
