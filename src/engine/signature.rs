//! A model's inputs and outputs: names, types and shapes of its tensors.

use super::tensor::DataType;
use serde::{Deserialize, Serialize};

/// One extent of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dim {
    /// Always this many.
    Fixed(usize),
    /// Chosen by the caller (or by the model, for outputs).
    Free,
}

/// A shape as text, with `?` for a free extent.
pub fn show(shape: &[Dim]) -> String {
    let extents: Vec<String> = shape
        .iter()
        .map(|dim| match dim {
            Dim::Fixed(n) => n.to_string(),
            Dim::Free => "?".to_owned(),
        })
        .collect();
    format!("[{}]", extents.join(", "))
}

impl Dim {
    /// Whether an extent of `n` fits.
    pub fn takes(self, n: usize) -> bool {
        match self {
            Dim::Fixed(fixed) => fixed == n,
            Dim::Free => true,
        }
    }

    /// The protocol's number: -1 when free.
    pub fn number(self) -> i64 {
        match self {
            Dim::Fixed(n) => n as i64,
            Dim::Free => -1,
        }
    }
}

/// One input or output. `shape` includes the batch axis, if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// The name in the model file.
    pub name: String,
    /// Element type.
    pub datatype: DataType,
    /// Extents, outermost first.
    pub shape: Vec<Dim>,
}

impl TensorSpec {
    /// Whether a shape fits.
    pub fn takes(&self, shape: &[usize]) -> bool {
        self.shape.len() == shape.len() && self.shape.iter().zip(shape).all(|(dim, n)| dim.takes(*n))
    }
}

/// How a model treats its first axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batching {
    /// Free in all inputs and outputs: any number of items in one run.
    Dynamic,
    /// Fixed at one in all inputs: items run one by one.
    One,
    /// Not a batch axis: a request is one run, whole.
    Whole,
}

/// A model's inputs and outputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The platform that runs it, as `/v2` metadata names it, such as `onnxruntime_onnx`.
    pub platform: String,
    /// Inputs, in the model's order.
    pub inputs: Vec<TensorSpec>,
    /// Outputs, in the model's order.
    pub outputs: Vec<TensorSpec>,
    /// Names of inputs for which the model file has a default value. They are not among `inputs`.
    pub defaulted: Vec<String>,
    /// Names of inputs and outputs whose number of axes the file does not state. Their `shape` is empty.
    pub unshaped: Vec<String>,
    /// Names of outputs that are no tensors, or that nobody asks for. They are not among `outputs`, and are not computed.
    pub left_out: Vec<String>,
}

impl Signature {
    /// Whether all inputs have fixed sizes. With `counts`, the first axis may be free: it counts items.
    pub fn is_fixed(&self, counts: bool) -> bool {
        let fixed = |dim: &Dim| matches!(dim, Dim::Fixed(_));
        let is_fixed = |input: &TensorSpec| {
            input.datatype != DataType::Bytes && input.shape.iter().skip(usize::from(counts)).all(fixed)
        };
        self.unshaped.is_empty() && self.inputs.iter().all(is_fixed)
    }

    /// An input of which callers choose more than how many items there are, if there is one.
    pub fn chosen_input(&self) -> Option<&TensorSpec> {
        let free = |dim: &Dim| *dim == Dim::Free;
        let chosen =
            |input: &&TensorSpec| self.unshaped.contains(&input.name) || input.shape.iter().skip(1).any(free);
        self.inputs.iter().find(chosen)
    }

    /// Moves the input of this name before the others, which keep their order. Returns where it was; `None` if there is no such input.
    pub fn put_first(&mut self, name: &str) -> Option<usize> {
        let at = self.inputs.iter().position(|input| input.name == name)?;
        self.inputs[..=at].rotate_right(1);
        Some(at)
    }

    /// Leaves out the outputs of these names. Returns for each that there was whether it stays.
    pub fn leave_out(&mut self, names: &[String]) -> Vec<bool> {
        let stays = |name: &String| !names.contains(name);
        let which = self.outputs.iter().map(|output| stays(&output.name)).collect();
        self.left_out
            .extend(self.outputs.extract_if(.., |output| !stays(&output.name)).map(|output| output.name));
        self.unshaped.retain(stays);
        which
    }

    /// The number at which the first axes of all inputs and outputs are fixed, if it is the same.
    pub fn fixed_first(&self) -> Option<usize> {
        let mut all = self.inputs.iter().chain(&self.outputs).map(|spec| spec.shape.first().copied());
        let first = all.next()??;
        let Dim::Fixed(n) = first else { return None };
        all.all(|other| other == Some(first)).then_some(n)
    }

    /// The same with free first axes.
    #[must_use]
    pub fn with_free_first(mut self) -> Signature {
        let specs = self.inputs.iter_mut().chain(&mut self.outputs);
        specs.filter_map(|spec| spec.shape.first_mut()).for_each(|first| *first = Dim::Free);
        self
    }

    /// How the model treats its first axis, from its shapes.
    pub fn batching(&self) -> Batching {
        let first = |specs: &[TensorSpec], dim| {
            !specs.is_empty() && specs.iter().all(|s| s.shape.first() == Some(&dim))
        };
        if first(&self.inputs, Dim::Free) && first(&self.outputs, Dim::Free) {
            Batching::Dynamic
        } else if first(&self.inputs, Dim::Fixed(1)) && first(&self.outputs, Dim::Fixed(1)) {
            Batching::One
        } else {
            Batching::Whole
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Dim::{Fixed, Free},
        *,
    };

    #[test]
    fn inputs_of_one_shape_are_fixed_and_strings_are_of_any_length() {
        let of = |datatype, shape: &[Dim]| {
            let input =
                |datatype, shape: &[Dim]| TensorSpec { name: "x".into(), datatype, shape: shape.to_vec() };
            let inputs = vec![input(DataType::Bool, &[Free, Fixed(2)]), input(datatype, shape)];
            let (platform, outputs) = ("onnxruntime_onnx".into(), Vec::new());
            Signature {
                platform,
                inputs,
                outputs,
                defaulted: Vec::new(),
                unshaped: Vec::new(),
                left_out: Vec::new(),
            }
        };
        let fixed = of(DataType::Fp32, &[Free, Fixed(3), Fixed(4)]);
        assert_eq!([true, false].map(|counts| fixed.is_fixed(counts)), [true, false]);
        assert!(!of(DataType::Fp32, &[Free, Fixed(3), Free]).is_fixed(true));
        assert!(!of(DataType::Bytes, &[Free, Fixed(3)]).is_fixed(true));
        assert!(!Signature { unshaped: vec!["x".into()], ..fixed }.is_fixed(true));
    }
}
