//! What a model takes and gives: names, types and shapes of its tensors.

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

/// A shape as people write it, `?` for what is free.
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

/// What a model takes and gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// What runs it, as `/v2` metadata names it, such as `onnxruntime_onnx`.
    pub platform: String,
    /// Inputs, in the model's order.
    pub inputs: Vec<TensorSpec>,
    /// Outputs, in the model's order.
    pub outputs: Vec<TensorSpec>,
    /// Names of what the model has a value for and would take another: none of its inputs here.
    pub defaulted: Vec<String>,
    /// Names of inputs and outputs of which the file does not say how many axes they have; here they have none.
    pub unshaped: Vec<String>,
}

impl Signature {
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
