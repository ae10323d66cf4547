//! What an inference request asks for, however it came: its inputs and outputs, and whether these fit the model. `json` reads it
//! from the Open Inference Protocol's JSON.

mod json;

use super::{
    Parameters, binary, clipped, count, data, flag,
    shared_memory::{self, Place},
};
use crate::{
    engine::{DataType, Dim, Tensor, TensorSpec},
    error::{InferError, bad},
};
use axum::body::Bytes;
pub use json::{json_length, read};
use std::{collections::HashSet, time::Duration};

/// A request for inference, checked in itself; whether it fits the model is for whoever knows the model.
#[derive(Debug, Clone)]
pub struct InferRequest {
    /// Repeated in the reply.
    pub id: Option<String>,
    /// `timeout`, `priority` and what is meant for the model.
    pub parameters: Parameters,
    /// In the order sent. Names are unique.
    pub inputs: Vec<Input>,
    /// What is asked for; empty means all.
    pub outputs: Vec<Requested>,
    /// Whether outputs that do not say so come back binary: `binary_data_output`, or a raw request.
    pub binary_default: bool,
}

/// One input.
#[derive(Debug, Clone)]
pub struct Input {
    /// Its name; empty in a raw request.
    pub name: String,
    /// Its type, shape and elements; binary data lies in the memory of the body.
    pub tensor: Tensor,
    /// Where the elements are, if they did not come with the request and have not been fetched: the tensor has none then.
    pub place: Option<Place>,
}

impl Input {
    /// One whose elements are there.
    pub fn whole(name: String, tensor: Tensor) -> Input {
        Input { name, tensor, place: None }
    }

    /// One whose elements are in shared memory.
    ///
    /// # Errors
    /// 400 if they are not as many bytes as such a tensor has.
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

/// One output that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Requested {
    /// Its name.
    pub name: String,
    /// Whether it comes back binary.
    pub binary: bool,
    /// The best classes instead of the values, and how many.
    pub classification: Option<u64>,
    /// Where it is put instead of into the reply.
    pub place: Option<Place>,
}

impl Requested {
    /// The outputs of these names and parameters. One that is named twice comes once, as Triton has it.
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

    /// By its parameters; `binary_default` is what the request asks for where they do not.
    ///
    /// # Errors
    /// 400 for a parameter that is not what it must be, and for shared memory together with another form.
    pub(crate) fn of(
        name: String,
        mut parameters: Parameters,
        binary_default: bool,
    ) -> Result<Requested, InferError> {
        let binary = flag(&parameters, "binary_data")?;
        let classification = count(&parameters, "classification")?;
        let place = shared_memory::place(format_args!("output {name:?}"), &mut parameters)?;
        // Clients say that they want neither.
        if place.is_some() && (binary == Some(true) || classification.is_some_and(|classes| classes > 0)) {
            return Err(bad(format!(
                "output {name:?} is asked for in shared memory, and as binary_data or classification: ask for one"
            )));
        }
        Ok(Requested { binary: binary.unwrap_or(binary_default), classification, place, name })
    }
}

impl InferRequest {
    /// The parameter `timeout`, which is in microseconds; 0 is none.
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

/// Bytes of an input's name, which errors repeat: far more than any model has.
const NAME_BYTES_MAX: usize = 4096;

/// The datatype of an input by what is said before its data, all of which is checked: in itself, since errors repeat it, and against
/// the inputs that the model has, where they are known.
///
/// # Errors
/// 400 with the limit, or saying expected and got.
pub(crate) fn datatype_of(
    name: &str,
    datatype: &str,
    shape: &[usize],
    specs: &[TensorSpec],
) -> Result<DataType, InferError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(bad(format!(
            "an input has a name of {} bytes, more than the limit of {NAME_BYTES_MAX}: it begins with {:?}",
            name.len(),
            clipped(name)
        )));
    }
    data::elements(name, shape)?;
    let Some(datatype) = DataType::from_name(datatype) else {
        let names: Vec<_> = DataType::ALL.iter().map(|datatype| datatype.name()).collect();
        return Err(bad(format!(
            "input {name:?} has datatype {:?}, expected one of {}",
            clipped(datatype),
            names.join(", ")
        )));
    };
    // Before the data: that it is not of the type which was said is the smaller mistake.
    // What BYTES are is for whoever knows whether the model takes encoded images.
    let encoded = |spec: &TensorSpec| {
        spec.name == name && datatype == DataType::Bytes && spec.datatype != DataType::Bytes
    };
    if !specs.iter().any(encoded) {
        fits(specs, name, datatype, shape)?;
    }
    Ok(datatype)
}

/// Whether an input is of a type and shape that the model takes; `specs` has all of its inputs, some in several forms. One that
/// is not among them is another's to refuse.
///
/// # Errors
/// 400 saying expected and got.
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
    if shape.contains(&0) {
        return Err(bad(format!("input {name:?} has shape {shape:?}: it has no elements")));
    }
    Ok(())
}
