//! Rows of tensors along the batch axis: checking, cutting and joining. Pure.

use crate::engine::{DataType, Tensor};
use bytes::BytesMut;
use std::ops::Range;

/// Checks that a tensor's first axis has this length.
///
/// # Errors
/// What differs, in words.
pub fn check_rows(tensor: &Tensor, rows: usize) -> Result<(), String> {
    match tensor.shape.first() == Some(&rows) {
        true => Ok(()),
        false => Err(format!("shape {:?} instead of {rows} rows", tensor.shape)),
    }
}

/// Checks that a tensor's bytes match its shape and type. Takes long for many byte strings, which are read one after the other.
///
/// # Errors
/// What differs, in words.
pub fn check(tensor: &Tensor) -> Result<(), String> {
    let shape = &tensor.shape;
    let elements = shape.iter().try_fold(1_usize, |product, &extent| product.checked_mul(extent));
    let fits = match (elements, tensor.datatype.size()) {
        (Some(elements), Some(size)) => elements.checked_mul(size) == Some(tensor.data.len()),
        (Some(elements), None) => skip_strings(&tensor.data, elements) == Some(tensor.data.len()),
        (None, _) => false,
    };
    if fits {
        Ok(())
    } else {
        let (datatype, bytes) = (tensor.datatype, tensor.data.len());
        Err(format!("{bytes} bytes for {datatype} of shape {shape:?}"))
    }
}

/// Where the last [`cut`] of a tensor ended, so that the next one need not count its strings from the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark {
    row: usize,
    offset: usize,
}

/// These rows of a tensor that passed [`check`], sharing its memory. `mark` is one of the same tensor, or new.
pub fn cut(tensor: &Tensor, rows: Range<usize>, mark: &mut Mark) -> Tensor {
    if tensor.datatype != DataType::Bytes {
        return tensor.rows(rows.start, rows.end);
    }
    let per_row: usize = tensor.shape[1..].iter().product();
    let offset = |from: Mark, row: usize| {
        let strings = skip_strings(&tensor.data[from.offset..], (row - from.row) * per_row);
        from.offset + strings.expect("strings were counted by `check`")
    };
    let from = if mark.row <= rows.start { *mark } else { Mark::default() };
    let start = Mark { row: rows.start, offset: offset(from, rows.start) };
    *mark = Mark { row: rows.end, offset: offset(start, rows.end) };
    let mut shape = tensor.shape.clone();
    shape[0] = rows.len();
    Tensor { datatype: tensor.datatype, shape, data: tensor.data.slice(start.offset..mark.offset) }
}

/// Puts tensors together along the first axis, in the order given.
///
/// # Errors
/// If there are no parts, or if they differ in type or in another axis: the model's output shape depends on its input.
pub fn join(parts: &[&Tensor]) -> Result<Tensor, String> {
    let Some((first, rest)) = parts.split_first() else {
        return Err("nothing to put together".into());
    };
    let alike =
        |t: &Tensor| t.datatype == first.datatype && !t.shape.is_empty() && t.shape[1..] == first.shape[1..];
    if first.shape.is_empty() || !rest.iter().all(|tensor| alike(tensor)) {
        let shapes: Vec<_> = parts.iter().map(|tensor| &tensor.shape).collect();
        return Err(format!("shapes {shapes:?} do not fit together; send fewer items in one request"));
    }
    if rest.is_empty() {
        return Ok((*first).clone());
    }
    let mut data = BytesMut::with_capacity(parts.iter().map(|tensor| tensor.data.len()).sum());
    for tensor in parts {
        data.extend_from_slice(&tensor.data);
    }
    let mut shape = first.shape.clone();
    shape[0] = parts.iter().map(|tensor| tensor.shape[0]).sum();
    Ok(Tensor { datatype: first.datatype, shape, data: data.freeze() })
}

/// The offset after `count` length-prefixed strings; `None` if there are fewer.
fn skip_strings(data: &[u8], count: usize) -> Option<usize> {
    let mut offset = 0_usize;
    for _ in 0..count {
        let prefix = data.get(offset..)?.first_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*prefix)).ok()?;
        offset = offset.checked_add(4)?.checked_add(length)?;
        if offset > data.len() {
            return None;
        }
    }
    Some(offset)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may panic

    use super::*;

    fn strings(rows: &[&[&str]]) -> Tensor {
        let mut data = BytesMut::new();
        for string in rows.iter().copied().flatten() {
            data.extend_from_slice(&(string.len() as u32).to_le_bytes());
            data.extend_from_slice(string.as_bytes());
        }
        Tensor { datatype: DataType::Bytes, shape: vec![rows.len(), rows[0].len()], data: data.freeze() }
    }

    fn numbers(shape: &[usize], bytes: usize) -> Tensor {
        Tensor {
            datatype: DataType::Uint16,
            shape: shape.to_vec(),
            data: (0..bytes as u8).collect::<Vec<_>>().into(),
        }
    }

    #[test]
    fn rows_that_were_cut_and_joined_are_the_same_again() {
        for tensor in
            [numbers(&[3, 2], 12), numbers(&[3, 0], 0), strings(&[&["a", "bc"], &["", "d"], &["efg", "h"]])]
        {
            assert_eq!(check(&tensor).and(check_rows(&tensor, 3)), Ok(()));
            let mut mark = Mark::default();
            // Not in their order, as when a batch failed and runs once more.
            let (tail, head) = (cut(&tensor, 1..3, &mut mark), cut(&tensor, 0..1, &mut mark));
            assert_eq!(check(&head).and(check_rows(&head, 1)), Ok(()));
            assert_eq!(check(&tail).and(check_rows(&tail, 2)), Ok(()));
            let again = join(&[&head, &tail]).unwrap();
            assert_eq!((again.shape, again.data), (tensor.shape, tensor.data));
        }
    }

    #[test]
    fn strings_before_a_mark_are_not_looked_at_again() {
        let tensor = strings(&[&["a"], &["bc"], &["d"]]);
        let mut mark = Mark::default();
        assert_eq!(cut(&tensor, 0..1, &mut mark).data[..], *b"\x01\0\0\0a");
        // Whoever counts from the first again goes astray by its length.
        let mut data = tensor.data.to_vec();
        data[0] = 200;
        let astray = Tensor { data: data.into(), ..tensor };
        assert_eq!(cut(&astray, 1..2, &mut mark).data[..], *b"\x02\0\0\0bc");
        assert_eq!(cut(&astray, 2..3, &mut mark).data[..], *b"\x01\0\0\0d");
    }

    #[test]
    fn bytes_that_do_not_fill_the_shape_are_refused() {
        assert!(check(&numbers(&[3, 2], 11)).is_err());
        assert!(check_rows(&numbers(&[3, 2], 12), 2).is_err());
        assert!(check(&numbers(&[usize::MAX, 4], 12)).is_err());
        let mut cut_off = strings(&[&["abc"]]);
        cut_off.data = cut_off.data.slice(..6);
        assert!(check(&cut_off).is_err());
    }

    #[test]
    fn outputs_whose_other_axes_differ_are_not_joined() {
        let error = join(&[&numbers(&[1, 2], 4), &numbers(&[1, 3], 6)]).unwrap_err();
        assert!(error.contains("[[1, 2], [1, 3]]"), "{error}");
        assert!(join(&[]).is_err());
    }
}
