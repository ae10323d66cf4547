//! A session's inputs and outputs, and which output shapes follow from those of the inputs.
//!
//! An ONNX file names its free extents (`batch`, `height`). If an input has the same name, an output extent is known before a run,
//! and its memory can be allocated once. ONNX Runtime does not enforce such names: a model that halves an image and doubles it again
//! may use one name for both extents, which is only true for even ones. ONNX Runtime then refuses that memory.
#![allow(unsafe_code)]

use super::{placement::checked, value};
use crate::engine::{Dim, Signature, TensorSpec};
use ort::{AsPointer, session::Session, value::ValueType};
use std::ptr;

/// An extent of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Fixed(usize),
    /// The same as an input's: its index and axis.
    Of(usize, usize),
}

/// The shapes of a model's outputs. `None` for an output whose shape is only known after a run; for one that is an input itself, which
/// ONNX Runtime returns as it is, without writing to the memory bound for it; and, on a GPU, for one that the CPU produces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct OutputShapes(Vec<Option<Vec<Extent>>>);

impl OutputShapes {
    /// The shape of each output for inputs of these shapes; `None` if it is only known after a run.
    pub(in crate::engine) fn for_inputs(&self, inputs: &[Vec<usize>]) -> Vec<Option<Vec<usize>>> {
        let extent = |extent: &Extent| match extent {
            Extent::Fixed(n) => Some(*n),
            Extent::Of(input, axis) => inputs.get(*input)?.get(*axis).copied(),
        };
        self.0.iter().map(|extents| extents.as_ref()?.iter().map(extent).collect()).collect()
    }

    /// Treats the shapes of the flagged outputs as known only after a run.
    pub(super) fn leave_open(&mut self, which: &[bool]) {
        self.0.iter_mut().zip(which).filter(|(_, open)| **open).for_each(|(extents, _)| *extents = None);
    }

    /// Keeps those that are flagged.
    pub(super) fn keep(&mut self, which: &[bool]) {
        let mut which = which.iter();
        self.0.retain(|_| which.next() != Some(&false));
    }

    /// Follows an input from this index to the front; those before it move back.
    pub(super) fn put_first(&mut self, from: usize) {
        for extent in self.0.iter_mut().flatten().flatten() {
            if let Extent::Of(input, _) = extent
                && *input <= from
            {
                *input = if *input == from { 0 } else { *input + 1 };
            }
        }
    }

    /// Whether all are known before a run.
    pub(in crate::engine) fn all_known(&self) -> bool {
        self.0.iter().all(Option::is_some)
    }

    /// Whether any is known before a run.
    pub(in crate::engine) fn any_known(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }
}

/// A tensor and the names of its free extents; empty for an extent without one.
struct Described {
    spec: TensorSpec,
    symbols: Vec<String>,
}

/// A session's inputs and outputs.
///
/// # Errors
/// If an input or all outputs are not tensors, or any has a type that we do not carry or is listed twice. The text is for the model's
/// author.
pub(super) fn of(session: &Session) -> Result<(Signature, OutputShapes), String> {
    let inputs = session.inputs().iter().map(|i| described("input", i.name(), i.dtype()));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let all = session.outputs().iter().enumerate();
    let (mut tensors, mut others): (Vec<_>, Vec<_>) =
        all.partition(|(_, output)| matches!(output.dtype(), ValueType::Tensor { .. }));
    if tensors.is_empty() {
        // They are then told as what is wrong.
        std::mem::swap(&mut tensors, &mut others);
    }
    let outputs = tensors.iter().map(|(_, o)| described("output", o.name(), o.dtype()));
    let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
    let twice = outputs
        .iter()
        .enumerate()
        .find(|(index, output)| outputs[..*index].iter().any(|other| other.spec.name == output.spec.name));
    if let Some((_, output)) = twice {
        return Err(format!("the file lists output {:?} twice: list it once", output.spec.name));
    }
    let mut unshaped = Vec::new();
    let places = inputs.iter().enumerate().map(|(index, input)| (End::Input, index, input));
    let of_outputs = tensors.iter().zip(&outputs).map(|((index, _), output)| (End::Output, *index, output));
    for (end, index, Described { spec, .. }) in places.chain(of_outputs) {
        if spec.shape.is_empty() && !has_shape(session, end, index)? {
            unshaped.push(spec.name.clone());
        }
    }
    let shapes = output_shapes(&inputs, &outputs);
    let specs = |all: Vec<Described>| all.into_iter().map(|described| described.spec).collect();
    let defaulted = session.overridable_initializers().iter().map(|of| of.name().to_owned()).collect();
    let signature = Signature {
        platform: "onnxruntime_onnx".into(),
        inputs: specs(inputs),
        outputs: specs(outputs),
        defaulted,
        unshaped,
        left_out: others.iter().map(|(_, output)| output.name().to_owned()).collect(),
    };
    Ok((signature, shapes))
}

/// Inputs or outputs.
#[derive(Clone, Copy)]
pub(super) enum End {
    Input,
    Output,
}

/// Whether the file states a shape for an input or output. A shape without axes is that of a scalar.
fn has_shape(session: &Session, end: End, index: usize) -> Result<bool, String> {
    let api = ort::api();
    let of = match end {
        End::Input => api.SessionGetInputTypeInfo,
        End::Output => api.SessionGetOutputTypeInfo,
    };
    let (mut info, mut tensor) = (ptr::null_mut(), ptr::null());
    // SAFETY: the session has such an input or output; the result is ours to release.
    checked(unsafe { of(session.ptr(), index, &raw mut info) })?;
    // SAFETY: `info` is valid; the tensor information belongs to it.
    let has = checked(unsafe { (api.CastTypeInfoToTensorInfo)(info, &raw mut tensor) }).map(|()| {
        // SAFETY: it was just obtained for a tensor, and `info` is still alive.
        !tensor.is_null() && unsafe { (api.TensorTypeAndShape_HasShape)(tensor) }
    });
    // SAFETY: obtained above, and not used from here on.
    unsafe { (api.ReleaseTypeInfo)(info) };
    has
}

fn described(kind: &str, name: &str, dtype: &ValueType) -> Result<Described, String> {
    match dtype {
        ValueType::Tensor { ty, shape, dimension_symbols } => Ok(Described {
            spec: TensorSpec {
                name: name.to_owned(),
                datatype: value::datatype(*ty).ok_or_else(|| {
                    format!("{kind} {name:?} has element type {ty}, which is not supported")
                })?,
                shape: shape.iter().map(|&n| usize::try_from(n).map_or(Dim::Free, Dim::Fixed)).collect(),
            },
            symbols: dimension_symbols.to_vec(),
        }),
        other => Err(format!(
            "{kind} {name:?} is {other}; only tensors are supported (export without sequences, maps and optionals)"
        )),
    }
}

fn output_shapes(inputs: &[Described], outputs: &[Described]) -> OutputShapes {
    let of_input = |symbol: &str| {
        inputs.iter().enumerate().find_map(|(input, described)| {
            let axis = described.symbols.iter().position(|other| other == symbol)?;
            Some(Extent::Of(input, axis))
        })
    };
    let extent = |(axis, dim): (usize, &Dim), symbols: &[String]| match dim {
        Dim::Fixed(n) => Some(Extent::Fixed(*n)),
        Dim::Free => of_input(symbols.get(axis).filter(|symbol| !symbol.is_empty())?),
    };
    let extents = |output: &Described| {
        let is_input = inputs.iter().any(|input| input.spec.name == output.spec.name);
        let dims = output.spec.shape.iter().enumerate();
        if is_input { None } else { dims.map(|dim| extent(dim, &output.symbols)).collect() }
    };
    OutputShapes(outputs.iter().map(extents).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::DataType;

    fn tensor(name: &str, dims: &[(Dim, &str)]) -> Described {
        Described {
            spec: TensorSpec {
                name: name.into(),
                datatype: DataType::Fp32,
                shape: dims.iter().map(|(dim, _)| *dim).collect(),
            },
            symbols: dims.iter().map(|(_, symbol)| (*symbol).to_owned()).collect(),
        }
    }

    #[test]
    fn an_extent_is_known_when_an_input_has_its_name() {
        let inputs = [tensor("x", &[(Dim::Free, "batch"), (Dim::Fixed(3), ""), (Dim::Free, "height")])];
        let outputs = [
            tensor("y", &[(Dim::Free, "batch"), (Dim::Fixed(10), "")]),
            tensor("y", &[(Dim::Free, "height"), (Dim::Free, "batch")]),
            tensor("y", &[(Dim::Free, "batch"), (Dim::Free, "boxes")]),
            tensor("y", &[(Dim::Free, "")]),
        ];
        let shapes = output_shapes(&inputs, &outputs);
        assert_eq!(shapes.for_inputs(&[vec![4, 3, 64]]), [Some(vec![4, 10]), Some(vec![64, 4]), None, None]);
        assert!(shapes.any_known() && !output_shapes(&inputs, &outputs[2..]).any_known());
        assert!(!shapes.all_known() && output_shapes(&inputs, &outputs[..2]).all_known());
    }

    #[test]
    fn extents_of_an_input_follow_it_to_the_front() {
        let input = |name, symbol| tensor(name, &[(Dim::Free, symbol)]);
        let inputs = [input("a", "a"), input("b", "b"), input("c", "c")];
        let outputs = [tensor("y", &[(Dim::Free, "a"), (Dim::Free, "b"), (Dim::Free, "c")])];
        let mut shapes = output_shapes(&inputs, &outputs);
        shapes.put_first(1);
        // b, a, c
        assert_eq!(shapes.for_inputs(&[vec![20], vec![10], vec![30]]), [Some(vec![10, 20, 30])]);
    }

    #[test]
    fn memory_is_made_for_no_output_that_is_an_input() {
        let [input, output] = ["x", "y"].map(|name| tensor(name, &[(Dim::Fixed(2), "")]));
        let shapes = output_shapes(&[input], &[tensor("x", &[(Dim::Fixed(2), "")]), output]);
        assert_eq!(shapes.for_inputs(&[vec![2]]), [None, Some(vec![2])]);
    }
}
