//! The content of an inference request, however it arrived: its inputs and outputs, and checks against the model. `json` reads it from the
//! Open Inference Protocol's JSON.

mod json;

use super::{
    Parameters, binary, check_length, clipped, count, data, flag,
    shared_memory::{self, Place},
};
use crate::{
    engine::{DataType, Dim, Tensor, TensorSpec},
    error::{InferError, bad},
};
use axum::body::Bytes;
pub use json::{json_length, read};
use std::{collections::HashSet, time::Duration};

/// A request for inference, checked by itself. Whether it fits the model is checked elsewhere, where the model is known.
#[derive(Debug, Clone)]
pub struct InferRequest {
    /// The id, which is repeated in the reply.
    pub id: Option<String>,
    /// `timeout`, `priority` and parameters for the model.
    pub parameters: Parameters,
    /// In the order sent. Names are unique.
    pub inputs: Vec<Input>,
    /// The requested outputs; empty means all.
    pub outputs: Vec<Requested>,
    /// Whether outputs without a setting of their own are sent as binary data: `binary_data_output`, or a raw request.
    pub binary_default: bool,
}

/// One input.
#[derive(Debug, Clone)]
pub struct Input {
    /// Its name; empty in a raw request.
    pub name: String,
    /// Its type, shape and elements; binary data stays in the memory of the body.
    pub tensor: Tensor,
    /// Where the elements are, if they are not in the request and have not been fetched yet. The tensor is then empty.
    pub place: Option<Place>,
}

impl Input {
    /// An input whose elements are present.
    pub fn whole(name: String, tensor: Tensor) -> Input {
        Input { name, tensor, place: None }
    }

    /// An input whose elements are in shared memory.
    ///
    /// # Errors
    /// 400 if the place does not have as many bytes as the tensor.
    pub(crate) fn placed(
        name: String,
        datatype: DataType,
        shape: Vec<usize>,
        place: Place,
    ) -> Result<Input, InferError> {
        binary::check_size(&name, datatype, &shape, place.bytes)?;
        let tensor = Tensor { datatype, shape, data: Bytes::new() };
        Ok(Input { name, tensor, place: Some(place) })
    }
}

/// One requested output.
#[derive(Debug, Clone, PartialEq)]
pub struct Requested {
    /// Its name.
    pub name: String,
    /// Whether it is sent as binary data.
    pub binary: bool,
    /// The number of best classes to send instead of the values.
    pub classification: Option<u64>,
    /// Where it is put instead of into the reply.
    pub place: Option<Place>,
}

impl Requested {
    /// The outputs with these names and parameters. An output that is named twice is sent once, as in Triton.
    ///
    /// # Errors
    /// As [`Requested::of`].
    pub(crate) fn all(
        named: impl Iterator<Item = (String, Parameters)>,
        binary_default: bool,
    ) -> Result<Vec<Requested>, InferError> {
        let mut seen = HashSet::new();
        let mut outputs = Vec::new();
        for (name, parameters) in named {
            let output = Requested::of(name, parameters, binary_default)?;
            if seen.insert(output.name.clone()) {
                outputs.push(output);
            }
        }
        Ok(outputs)
    }

    /// One output with its parameters; `binary_default` applies if they do not say whether it is binary.
    ///
    /// # Errors
    /// 400 for an invalid parameter, and for shared memory together with another form.
    pub(crate) fn of(
        name: String,
        mut parameters: Parameters,
        binary_default: bool,
    ) -> Result<Requested, InferError> {
        check_length("an output", &name).map_err(bad)?;
        let binary = flag(&parameters, "binary_data")?;
        let classification = count(&parameters, "classification")?;
        let place = shared_memory::place(format_args!("output {name:?}"), &mut parameters)?;
        // Clients may say explicitly that they want neither.
        if place.is_some() && (binary == Some(true) || classification.is_some_and(|classes| classes > 0)) {
            return Err(bad(format!(
                "output {name:?} is asked for in shared memory, and as binary_data or classification: ask for one"
            )));
        }
        Ok(Requested { binary: binary.unwrap_or(binary_default), classification, place, name })
    }
}

impl InferRequest {
    /// The parameter `timeout`, in microseconds; 0 means none.
    ///
    /// # Errors
    /// 400 if it is not a count.
    pub fn timeout(&self) -> Result<Option<Duration>, InferError> {
        let timeout = count(&self.parameters, "timeout")?;
        Ok(timeout.filter(|us| *us > 0).map(Duration::from_micros))
    }

    /// The parameter `priority`; 0 is the default, 1 the most urgent.
    ///
    /// # Errors
    /// 400 if it is not a count.
    pub fn priority(&self) -> Result<Option<u64>, InferError> {
        count(&self.parameters, "priority")
    }
}

/// The datatype of an input. Checks everything that is stated before the data: by itself, because errors repeat it, and against the model's
/// inputs, if they are known.
///
/// # Errors
/// 400 with the limit, or with what was expected and what came.
pub(crate) fn datatype_of(
    name: &str,
    datatype: &str,
    shape: &[usize],
    specs: &[TensorSpec],
) -> Result<DataType, InferError> {
    check_length("an input", name).map_err(bad)?;
    data::elements(name, shape)?;
    let Some(datatype) = DataType::from_name(datatype) else {
        let names: Vec<_> = DataType::ALL.iter().map(|datatype| datatype.name()).collect();
        return Err(bad(format!(
            "input {name:?} has datatype {:?}, expected one of {}",
            clipped(datatype),
            names.join(", ")
        )));
    };
    // Checked before the data, because data of a type other than the stated one is the smaller mistake. BYTES are left to code that knows
    // whether the model takes encoded images.
    let encoded = |spec: &TensorSpec| {
        spec.name == name && datatype == DataType::Bytes && spec.datatype != DataType::Bytes
    };
    if !specs.iter().any(encoded) {
        fits(specs, name, datatype, shape)?;
    }
    Ok(datatype)
}

/// Checks that the model takes an input of this type and shape. `specs` holds all inputs, some of them in several forms. An input that is
/// not among them is refused elsewhere.
///
/// # Errors
/// 400 with what was expected and what came.
pub fn fits(specs: &[TensorSpec], name: &str, datatype: DataType, shape: &[usize]) -> Result<(), InferError> {
    let forms = specs.iter().filter(|spec| spec.name == name);
    let Some(spec) = forms.clone().find(|spec| spec.datatype == datatype) else {
        let types: Vec<&str> = forms.map(|spec| spec.datatype.name()).collect();
        return match &types[..] {
            [] => Ok(()),
            types => Err(bad(format!("input {name:?} is {datatype}, expected {}", types.join(", ")))),
        };
    };
    if !spec.takes(shape) {
        let expected: Vec<i64> = spec.shape.iter().copied().map(Dim::number).collect();
        return Err(bad(format!(
            "input {name:?} has shape {shape:?}, expected {expected:?} (-1 is any){}",
            if forms.count() > 1 { format!(" for {datatype}") } else { String::new() }
        )));
    }
    Ok(())
}
