//! Conversion of tensors from and to messages. Raw contents stay in the memory in which they arrived.

use crate::{
    engine::{
        DataType, Tensor, TensorSpec,
        tensor::{bytes_of, push_element},
    },
    error::{InferError, bad},
    http::decode::INLINE_BYTES_MAX,
    http::wire::{
        BINARY_OUTPUT, Parameter, Parameters, binary, check_length, data, flag,
        reply::{InferReply, Output},
        request::{InferRequest, Input, Requested, datatype_of},
        shared_memory::{self, REGION},
    },
    protocol::inference::{
        InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse,
        infer_parameter::ParameterChoice, model_infer_request::InferInputTensor,
        model_infer_response::InferOutputTensor,
    },
    words::clipped,
};
use bytes::Bytes;
use std::collections::BTreeMap;

/// A parameter that clients of streams set. They get what it asks for in any case, and it is not a parameter of the model.
const EMPTY_FINAL: &str = "triton_enable_empty_final_response";

/// Whether reading a request takes longer than handing it to another thread. Raw numbers are taken as they are; typed ones are converted
/// one by one, and texts are counted.
pub(super) fn is_long(message: &ModelInferRequest) -> bool {
    let typed = |contents: &InferTensorContents| {
        let texts: usize = contents.bytes_contents.iter().map(|text| 4 + text.len()).sum();
        let narrow =
            contents.bool_contents.len() + contents.int_contents.len() + contents.uint_contents.len();
        let wide =
            contents.int64_contents.len() + contents.uint64_contents.len() + contents.fp64_contents.len();
        texts + 4 * (narrow + contents.fp32_contents.len()) + 8 * wide
    };
    let typed: usize = message.inputs.iter().filter_map(|input| input.contents.as_ref()).map(typed).sum();
    let texts = message.inputs.iter().any(|input| input.datatype == DataType::Bytes.name());
    let raw: usize = if texts { message.raw_input_contents.iter().map(Bytes::len).sum() } else { 0 };
    typed + raw >= INLINE_BYTES_MAX
}

/// The request in the form that `http` uses, whatever encoding it arrived in. `specs` are the model's inputs, if they are known.
pub(super) fn request(message: ModelInferRequest, specs: &[TensorSpec]) -> Result<InferRequest, InferError> {
    check_length("the request", &message.id).map_err(bad)?;
    let mut parameters = parameters("the request", message.parameters)?;
    parameters.remove(EMPTY_FINAL);
    if let Some(name) = parameters.keys().find(|name| name.starts_with("triton_")) {
        let name = clipped(name);
        return Err(bad(format!("parameter {name:?} is reserved: names must not begin with triton_")));
    }
    let raw = message.raw_input_contents;
    let inputs = message.inputs.iter().filter(|input| !input.parameters.contains_key(REGION)).count();
    if !raw.is_empty() && raw.len() != inputs {
        return Err(bad(format!(
            "raw_input_contents has {} entries for {inputs} inputs: send one for each that is not in shared memory, in \
             their order",
            raw.len(),
        )));
    }
    let mut raw = raw.into_iter();
    let mut inputs: Vec<Input> = Vec::with_capacity(message.inputs.len());
    for tensor in message.inputs {
        inputs.push(input(tensor, &mut raw, specs)?);
    }
    let binary_default = flag(&parameters, BINARY_OUTPUT)?.unwrap_or(true);
    let outputs = message.outputs.into_iter().map(|output| {
        let parameters = self::parameters(&output.name, output.parameters)?;
        Ok((output.name, parameters))
    });
    let outputs = outputs.collect::<Result<Vec<_>, InferError>>()?;
    let outputs = Requested::all(outputs.into_iter(), binary_default)?;
    let id = (!message.id.is_empty()).then_some(message.id);
    Ok(InferRequest { id, parameters, inputs, outputs, binary_default })
}

/// One input. It takes the next of the raw contents, unless it lies in shared memory.
fn input(
    tensor: InferInputTensor,
    raw: &mut impl Iterator<Item = Bytes>,
    specs: &[TensorSpec],
) -> Result<Input, InferError> {
    let InferInputTensor { name, datatype, shape, parameters, contents } = tensor;
    let extent = |extent: &i64| {
        usize::try_from(*extent).map_err(|_| {
            let name = clipped(&name);
            bad(format!("input {name:?} has an extent of {extent}: extents are 0 or more"))
        })
    };
    let shape = shape.iter().map(extent).collect::<Result<Vec<usize>, _>>()?;
    let datatype = datatype_of(&name, &datatype, &shape, specs)?;
    let mut parameters = self::parameters(&name, parameters)?;
    if let Some(place) = shared_memory::place(format_args!("input {name:?}"), &mut parameters)? {
        if contents.is_some_and(|contents| contents != InferTensorContents::default()) {
            return Err(bad(format!("input {name:?} has both contents and {REGION}; send one")));
        }
        return Input::placed(name, datatype, shape, place);
    }
    let data = match (raw.next(), contents) {
        (Some(_), Some(contents)) if contents != InferTensorContents::default() => {
            return Err(bad(format!("input {name:?} has both contents and raw_input_contents; send one")));
        }
        (Some(raw), _) => raw,
        (None, Some(contents)) => bytes(&name, datatype, contents)?,
        // Contents without a value may be left out.
        (None, None) if shape.contains(&0) => Bytes::new(),
        (None, None) => {
            return Err(bad(format!("input {name:?} has neither contents nor raw_input_contents; send one")));
        }
    };
    let elements = data::elements(&name, &shape)?;
    let tensor = Tensor { datatype, shape, data };
    if let Some(size) = datatype.size().filter(|size| tensor.data.len() != elements.saturating_mul(*size)) {
        return Err(bad(format!(
            "input {name:?} has {} elements ({} bytes), expected {elements} for {datatype} of shape {:?}",
            tensor.data.len() / size,
            tensor.data.len(),
            tensor.shape
        )));
    }
    let tensor = binary::checked(&name, tensor)?;
    Ok(Input::whole(name, tensor))
}

/// The field of typed contents for a type's values; FP16 and BF16 have none.
fn field_of(datatype: DataType) -> Option<&'static str> {
    Some(match datatype {
        DataType::Bool => "bool_contents",
        DataType::Int8 | DataType::Int16 | DataType::Int32 => "int_contents",
        DataType::Int64 => "int64_contents",
        DataType::Uint8 | DataType::Uint16 | DataType::Uint32 => "uint_contents",
        DataType::Uint64 => "uint64_contents",
        DataType::Fp32 => "fp32_contents",
        DataType::Fp64 => "fp64_contents",
        DataType::Bytes => "bytes_contents",
        DataType::Fp16 | DataType::Bf16 => return None,
    })
}

/// Refuses values in a field for another type, which would be ignored.
fn in_place(name: &str, datatype: DataType, contents: &InferTensorContents) -> Result<(), InferError> {
    let Some(own) = field_of(datatype) else { return Ok(()) };
    let there = [
        ("bool_contents", contents.bool_contents.len()),
        ("int_contents", contents.int_contents.len()),
        ("int64_contents", contents.int64_contents.len()),
        ("uint_contents", contents.uint_contents.len()),
        ("uint64_contents", contents.uint64_contents.len()),
        ("fp32_contents", contents.fp32_contents.len()),
        ("fp64_contents", contents.fp64_contents.len()),
        ("bytes_contents", contents.bytes_contents.len()),
    ];
    match there.iter().find(|(field, values)| *values > 0 && *field != own) {
        Some((field, values)) => Err(bad(format!(
            "input {name:?} has {values} values in {field}, but it is {datatype}: put them in {own}, or in raw_input_contents"
        ))),
        None => Ok(()),
    }
}

/// Converts typed contents to a tensor's bytes.
fn bytes(name: &str, datatype: DataType, contents: InferTensorContents) -> Result<Bytes, InferError> {
    in_place(name, datatype, &contents)?;
    let InferTensorContents {
        bool_contents,
        int_contents,
        int64_contents,
        uint_contents,
        uint64_contents,
        fp32_contents,
        fp64_contents,
        bytes_contents,
    } = contents;
    let outside =
        |value: &dyn std::fmt::Display| bad(format!("input {name:?} holds {value}, which is no {datatype}"));
    macro_rules! narrow {
        ($type:ty, $values:expr) => {
            bytes_of(
                $values
                    .iter()
                    .map(|value| <$type>::try_from(*value).map_err(|_| outside(value)))
                    .collect::<Result<Vec<$type>, _>>()?,
            )
        };
    }
    Ok(match datatype {
        DataType::Bool => bytes_of(bool_contents.into_iter().map(u8::from).collect()),
        DataType::Int8 => narrow!(i8, int_contents),
        DataType::Int16 => narrow!(i16, int_contents),
        DataType::Int32 => bytes_of(int_contents),
        DataType::Int64 => bytes_of(int64_contents),
        DataType::Uint8 => narrow!(u8, uint_contents),
        DataType::Uint16 => narrow!(u16, uint_contents),
        DataType::Uint32 => bytes_of(uint_contents),
        DataType::Uint64 => bytes_of(uint64_contents),
        DataType::Fp32 => bytes_of(fp32_contents),
        DataType::Fp64 => bytes_of(fp64_contents),
        DataType::Fp16 | DataType::Bf16 => {
            return Err(bad(format!("input {name:?} is {datatype}, which only raw_input_contents carries")));
        }
        DataType::Bytes => {
            let mut joined = Vec::with_capacity(bytes_contents.iter().map(|element| element.len() + 4).sum());
            for element in &bytes_contents {
                push_element(&mut joined, element)
                    .ok_or_else(|| bad(format!("input {name:?} has an element of over 4 GiB")))?;
            }
            joined.into()
        }
    })
}

/// The parameters of a request, an input or an output.
fn parameters(of: &str, given: BTreeMap<String, InferParameter>) -> Result<Parameters, InferError> {
    let value = |(name, parameter): (String, InferParameter)| {
        check_length("a parameter", &name).map_err(bad)?;
        let value = match parameter.parameter_choice {
            Some(ParameterChoice::BoolParam(value)) => Parameter::Bool(value),
            Some(ParameterChoice::Int64Param(value)) => Parameter::Integer(value),
            Some(ParameterChoice::StringParam(value)) => Parameter::Text(value),
            Some(ParameterChoice::DoubleParam(value)) => Parameter::from(value),
            Some(ParameterChoice::Uint64Param(value)) => Parameter::from(value),
            None => return Err(bad(format!("parameter {name:?} of {} has no value", clipped(of)))),
        };
        Ok((name, value))
    };
    given.into_iter().map(value).collect()
}

/// Whether a request has its numbers in typed contents.
pub(super) fn is_typed(message: &ModelInferRequest) -> bool {
    message.raw_input_contents.is_empty() && message.inputs.iter().any(|input| input.contents.is_some())
}

/// The reply to a request: raw contents, or typed ones if no output was requested as binary or in shared memory. A client that sends typed
/// contents gets both: servers of the Open Inference Protocol answer such a request with typed contents, Triton with raw ones.
pub(super) fn reply(
    InferReply { id, model_name, model_version, parameters, outputs }: InferReply,
    typed: bool,
) -> Result<ModelInferResponse, InferError> {
    let raw = outputs.iter().any(|output| output.binary || output.place.is_some());
    let mut reply = ModelInferResponse {
        model_name: model_name.to_string(),
        model_version: model_version.to_string(),
        id: id.unwrap_or_default(),
        ..ModelInferResponse::default()
    };
    for (name, number) in parameters {
        let number = ParameterChoice::Int64Param(i64::try_from(number).unwrap_or(i64::MAX));
        reply.parameters.insert(name.to_owned(), InferParameter { parameter_choice: Some(number) });
    }
    for Output { name, tensor, place, .. } in outputs {
        reply.outputs.push(InferOutputTensor {
            datatype: tensor.datatype.name().to_owned(),
            shape: tensor.shape.iter().map(|extent| *extent as i64).collect(),
            parameters: BTreeMap::new(),
            contents: match (raw, &place) {
                (true, None) if typed && field_of(tensor.datatype).is_some() => {
                    Some(contents(&name, &tensor)?)
                }
                (true, _) => None,
                (false, _) => Some(contents(&name, &tensor)?),
            },
            name,
        });
        if raw {
            // One for each output, because clients count them; an empty one for an output that was put into shared memory.
            reply.raw_output_contents.push(if place.is_some() { Bytes::new() } else { tensor.data });
        }
    }
    Ok(reply)
}

/// Converts a tensor's bytes to typed contents.
fn contents(name: &str, tensor: &Tensor) -> Result<InferTensorContents, InferError> {
    fn each<const SIZE: usize, T>(data: &[u8], one: impl Fn([u8; SIZE]) -> T) -> Vec<T> {
        data.as_chunks::<SIZE>().0.iter().map(|chunk| one(*chunk)).collect()
    }
    let data = &tensor.data[..];
    let mut typed = InferTensorContents::default();
    match tensor.datatype {
        DataType::Bool => typed.bool_contents = each(data, |[byte]| byte != 0),
        DataType::Int8 => typed.int_contents = each(data, |b| i8::from_le_bytes(b).into()),
        DataType::Int16 => typed.int_contents = each(data, |b| i16::from_le_bytes(b).into()),
        DataType::Int32 => typed.int_contents = each(data, i32::from_le_bytes),
        DataType::Int64 => typed.int64_contents = each(data, i64::from_le_bytes),
        DataType::Uint8 => typed.uint_contents = each(data, |b| u8::from_le_bytes(b).into()),
        DataType::Uint16 => typed.uint_contents = each(data, |b| u16::from_le_bytes(b).into()),
        DataType::Uint32 => typed.uint_contents = each(data, u32::from_le_bytes),
        DataType::Uint64 => typed.uint64_contents = each(data, u64::from_le_bytes),
        DataType::Fp32 => typed.fp32_contents = each(data, f32::from_le_bytes),
        DataType::Fp64 => typed.fp64_contents = each(data, f64::from_le_bytes),
        DataType::Fp16 | DataType::Bf16 => {
            return Err(bad(format!(
                "output {name:?} is {}, which only raw_output_contents carries: leave out binary_data = false",
                tensor.datatype
            )));
        }
        DataType::Bytes => {
            typed.bytes_contents = binary::strings(&tensor.data).ok_or_else(|| {
                InferError::Internal(format!("output {name:?} has lengths that do not add up"))
            })?;
        }
    }
    Ok(typed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::inference::model_infer_request::InferRequestedOutputTensor;
    use proptest::prelude::*;
    use prost::Message;

    fn message(raw: &[u8]) -> ModelInferRequest {
        let input = InferInputTensor {
            name: "x".into(),
            datatype: "UINT8".into(),
            shape: vec![raw.len() as i64],
            ..InferInputTensor::default()
        };
        ModelInferRequest {
            inputs: vec![input],
            raw_input_contents: vec![Bytes::copy_from_slice(raw)],
            ..ModelInferRequest::default()
        }
    }

    #[test]
    fn raw_contents_lie_in_the_memory_of_the_message() {
        let wire = Bytes::from(message(&[7; 1000]).encode_to_vec());
        let request = request(ModelInferRequest::decode(wire.clone()).unwrap(), &[]).unwrap();
        let data = &request.inputs[0].tensor.data;
        assert_eq!(data.len(), 1000);
        assert!(wire.as_ptr_range().contains(&data.as_ptr()));
        assert!(request.binary_default && request.id.is_none());
    }

    #[test]
    fn contents_without_a_value_may_be_left_out() {
        let read = |shape: &[i64]| {
            let mut sent = message(&[]);
            (sent.inputs[0].shape, sent.raw_input_contents) = (shape.to_vec(), Vec::new());
            request(sent, &[]).map(|read| read.inputs[0].tensor.shape.clone())
        };
        assert_eq!(read(&[1, 0, 2]), Ok(vec![1, 0, 2]));
        assert!(read(&[1]).is_err_and(|why| why.to_string().contains("neither contents nor")));
    }

    #[test]
    fn what_is_converted_or_counted_is_long_and_what_is_taken_as_it_is_is_not() {
        assert!(!is_long(&message(&[7; 1 << 20])));
        let mut texts = message(&[0; 1 << 20]);
        texts.inputs[0].datatype = "BYTES".into();
        assert!(is_long(&texts));
        let typed = |contents| {
            let mut sent = message(&[]);
            sent.inputs[0].contents = Some(contents);
            is_long(&sent)
        };
        for (count, expected) in [(100, false), (10_000, true)] {
            let all = [
                InferTensorContents { bool_contents: vec![true; count], ..Default::default() },
                InferTensorContents { int_contents: vec![1; count], ..Default::default() },
                InferTensorContents { int64_contents: vec![1; count], ..Default::default() },
                InferTensorContents { uint_contents: vec![1; count], ..Default::default() },
                InferTensorContents { uint64_contents: vec![1; count], ..Default::default() },
                InferTensorContents { fp32_contents: vec![1.0; count], ..Default::default() },
                InferTensorContents { fp64_contents: vec![1.0; count], ..Default::default() },
                InferTensorContents { bytes_contents: vec![Bytes::from("a"); count], ..Default::default() },
            ];
            assert!(all.into_iter().all(|contents| typed(contents) == expected), "{count}");
        }
    }

    #[test]
    fn every_type_comes_back_from_its_own_contents() {
        for datatype in DataType::ALL {
            let data = match datatype.size() {
                // Bytes that are numbers of any type: 0 and 1.
                Some(size) => Bytes::from([vec![0; size], [vec![1], vec![0; size - 1]].concat()].concat()),
                None => Bytes::from_static(b"\x01\0\0\0a\0\0\0\0"),
            };
            let tensor = Tensor { datatype, shape: vec![2], data };
            match contents("y", &tensor) {
                Ok(typed) => assert_eq!(bytes("x", datatype, typed).unwrap(), tensor.data, "{datatype}"),
                Err(error) => {
                    assert!(matches!(datatype, DataType::Fp16 | DataType::Bf16), "{error}");
                    assert!(bytes("x", datatype, InferTensorContents::default()).is_err());
                }
            }
        }
    }

    #[test]
    fn values_in_the_field_of_another_type_are_refused_with_the_field_that_is_theirs() {
        let sent = |datatype: DataType, contents| {
            let mut sent = message(&[]);
            sent.raw_input_contents.clear();
            sent.inputs[0].datatype = datatype.name().into();
            sent.inputs[0].shape = vec![2];
            sent.inputs[0].contents = Some(contents);
            request(sent, &[]).map(|read| read.inputs[0].tensor.data.len())
        };
        let doubles = InferTensorContents { fp64_contents: vec![1.0, 2.0], ..Default::default() };
        let told = sent(DataType::Fp32, doubles.clone()).unwrap_err().to_string();
        assert!(
            told.contains("2 values in fp64_contents") && told.contains("put them in fp32_contents"),
            "{told}"
        );
        // The same beside values in the right field: they would be ignored.
        let both = InferTensorContents { fp32_contents: vec![1.0, 2.0], ..doubles };
        assert!(sent(DataType::Fp32, both).unwrap_err().to_string().contains("fp64_contents"));
        for datatype in DataType::ALL {
            // Typed contents are written to the field from which they are read.
            let zeros = contents("x", &Tensor::zeros(datatype, &[2]));
            match datatype.size() {
                Some(size) if field_of(datatype).is_some() => {
                    assert_eq!(sent(datatype, zeros.unwrap()), Ok(2 * size));
                }
                Some(_) => assert!(zeros.is_err(), "{datatype} has no field"),
                None => assert_eq!(sent(datatype, zeros.unwrap()), Ok(8)),
            }
        }
    }

    #[test]
    fn what_clients_of_streams_ask_for_is_no_reserved_parameter() {
        let flag = |value| InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(value)) };
        let mut asked = message(&[1]);
        asked.parameters.insert(EMPTY_FINAL.into(), flag(true));
        asked.parameters.insert("binary_data_output".into(), flag(false));
        let read = request(asked.clone(), &[]).unwrap();
        assert!(!read.parameters.contains_key(EMPTY_FINAL) && !read.binary_default);
        asked.parameters.insert("triton_other".into(), flag(true));
        assert!(request(asked, &[]).unwrap_err().to_string().contains("triton_other"));
    }

    #[test]
    fn a_great_many_outputs_take_no_more_time_than_their_bytes() {
        // Comparing each with each takes minutes: a quadratic algorithm shows in this test's duration.
        let output = |name: String| InferRequestedOutputTensor { name, ..Default::default() };
        let mut asked = message(&[1]);
        asked.outputs = (0..100_000).map(|i| output(format!("output{i:09}"))).collect();
        assert_eq!(request(asked.clone(), &[]).unwrap().outputs.len(), 100_000);
        asked.outputs.push(asked.outputs[0].clone());
        assert_eq!(request(asked, &[]).unwrap().outputs.len(), 100_000, "once, though asked for twice");
    }

    #[test]
    fn what_is_refused_is_not_repeated_at_any_length() {
        for (name, shape) in
            [("n".repeat(1 << 20), vec![1]), ("x".into(), vec![-1; 1 << 20]), ("x".into(), vec![1; 1 << 20])]
        {
            let mut sent = message(&[1]);
            (sent.inputs[0].name, sent.inputs[0].shape) = (name, shape);
            let told = request(sent, &[]).unwrap_err().to_string();
            assert!(told.len() < 300, "{}", told.len());
        }
    }

    proptest! {
        #[test]
        fn any_message_is_read_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            shape in prop::collection::vec(any::<i64>(), 0..4),
            raw in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
            datatype in prop::sample::select(DataType::ALL.to_vec()),
        ) {
            if let Ok(message) = ModelInferRequest::decode(&bytes[..]) {
                let _ = request(message, &[]);
            }
            let mut message = message(&raw.clone().unwrap_or_default());
            message.inputs[0].shape = shape;
            message.inputs[0].datatype = datatype.name().into();
            if raw.is_none() {
                message.raw_input_contents.clear();
                message.inputs[0].contents = Some(InferTensorContents { int_contents: vec![1, 2], ..Default::default() });
            }
            if let Ok(read) = request(message, &[]) {
                let tensor = &read.inputs[0].tensor;
                if let Some(size) = tensor.datatype.size() {
                    prop_assert_eq!(tensor.data.len(), tensor.elements() * size);
                }
            }
        }
    }
}
