//! Finds out, from a network's file without loading it, what the whole numbers of a quantized output stand for: the scale and the zero point
//! that its last operator rounds by, if they are constants of the file.

use super::{
    fields::Fields,
    skeleton::{self, Message},
};
use std::{
    collections::HashMap,
    io::{Read, Seek},
    path::Path,
};

/// What the whole numbers of an output stand for: `(number - zero) * scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantized {
    /// The step between two numbers.
    pub scale: f32,
    /// The number that stands for 0.
    pub zero: f32,
}

impl Quantized {
    /// The value that a number stands for, as `DequantizeLinear` has it.
    pub fn value(self, number: f32) -> f32 {
        (number - self.zero) * self.scale
    }
}

/// Operators that give quantized numbers, and which of their inputs is the scale of these; the next is the zero point.
const QUANTIZING: [(&str, usize); 13] = [
    ("QuantizeLinear", 1),
    ("QLinearMatMul", 6),
    ("QLinearConv", 6),
    ("QLinearAdd", 6),
    ("QLinearMul", 6),
    ("QGemm", 7),
    ("QLinearSoftmax", 3),
    ("QLinearSigmoid", 3),
    ("QLinearLeakyRelu", 3),
    ("QLinearAveragePool", 3),
    ("QLinearGlobalAveragePool", 3),
    ("QLinearReduceMean", 3),
    ("QLinearConcat", 0),
];

/// Operators that give the numbers of their first input in another shape.
const PASSING: [&str; 6] = ["Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"];

/// A longer tensor holds more than one number.
const TENSOR_BYTES_MAX: u64 = 4096;
/// No operator above has more.
const INPUTS_MAX: usize = 16;

/// What the numbers of an output stand for, and the operator that says so. `is_signed`: whether they are INT8, not UINT8. `None` if another
/// operator gives them, or one whose scale or zero point is computed or differs between numbers, and for a file that cannot be read.
pub(crate) fn quantized(path: &Path, output: &str, is_signed: bool) -> Option<(&'static str, Quantized)> {
    let (file, bytes) = skeleton::open(path).ok()?;
    Graph::read(file, bytes).ok()?.quantized(output, is_signed)
}

/// What the outermost graph has.
#[derive(Default)]
struct Graph {
    /// By each output.
    nodes: HashMap<String, Node>,
    /// Tensors of one number, by name.
    constants: HashMap<String, Number>,
}

#[derive(Clone, Default)]
struct Node {
    operator: String,
    domain: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    /// What a `Constant` gives.
    value: Option<Number>,
}

/// The one number of a tensor, in each of the ways in which a file may hold it.
#[derive(Clone, Default)]
struct Number {
    /// Bytes as they are in memory.
    raw: Option<Vec<u8>>,
    float: Option<f32>,
    whole: Option<i64>,
}

impl Number {
    fn float(&self) -> Option<f32> {
        let raw = || Some(f32::from_le_bytes(self.raw.as_deref()?.try_into().ok()?));
        self.float.or_else(raw)
    }

    fn byte(&self, is_signed: bool) -> Option<f32> {
        match (self.raw.as_deref(), self.whole) {
            (Some([byte]), _) if is_signed => Some(f32::from(byte.cast_signed())),
            (Some([byte]), _) => Some(f32::from(*byte)),
            (None, Some(whole)) if is_signed => i8::try_from(whole).ok().map(f32::from),
            (None, Some(whole)) => u8::try_from(whole).ok().map(f32::from),
            _ => None,
        }
    }
}

impl Graph {
    fn read(file: impl Read + Seek, bytes: u64) -> Result<Graph, String> {
        let mut graph = Graph::default();
        skeleton::walk(file, bytes, |fields, field, bytes| {
            match field {
                (Message::Graph, 1) => graph.add(&node(fields, bytes)?),
                (Message::Graph, 5) if bytes <= TENSOR_BYTES_MAX => {
                    let (name, number) = tensor(fields, bytes)?;
                    graph.constants.insert(name, number);
                }
                (Message::Model, 7) => return Ok(false),
                _ => fields.skip(bytes)?,
            }
            Ok(true)
        })?;
        Ok(graph)
    }

    fn add(&mut self, node: &Node) {
        if !matches!(&*node.domain, "" | "ai.onnx" | "com.microsoft") {
            return;
        }
        if let (Some(value), Some(name)) = (&node.value, node.outputs.first()) {
            self.constants.insert(name.clone(), value.clone());
        }
        for output in &node.outputs {
            self.nodes.insert(output.clone(), node.clone());
        }
    }

    fn quantized(&self, output: &str, is_signed: bool) -> Option<(&'static str, Quantized)> {
        let mut name = output;
        // Each node at most once: a damaged file may contain cycles.
        for _ in 0..=self.nodes.len() {
            let node = self.nodes.get(name)?;
            if PASSING.contains(&&*node.operator) {
                name = node.inputs.first()?;
                continue;
            }
            let (operator, at) = QUANTIZING.into_iter().find(|(operator, _)| *operator == node.operator)?;
            let constant = |name: &String| self.constants.get(name);
            let scale = node.inputs.get(at).and_then(constant)?.float()?;
            let zero = match node.inputs.get(at + 1).filter(|name| !name.is_empty()) {
                Some(name) => constant(name)?.byte(is_signed)?,
                None => 0.0,
            };
            let holds = scale.is_finite() && scale > 0.0;
            return holds.then_some((operator, Quantized { scale, zero }));
        }
        None
    }
}

fn node(fields: &mut Fields<impl Read + Seek>, bytes: u64) -> Result<Node, String> {
    let end = fields.at() + bytes;
    let mut node = Node::default();
    while let Some((number, bytes)) = fields.next_until(end)? {
        match number {
            // An input that is left out has no name, but its place.
            1 if node.inputs.len() < INPUTS_MAX => node.inputs.push(fields.name(bytes)?),
            2 if node.outputs.len() < INPUTS_MAX => node.outputs.push(fields.name(bytes)?),
            4 => node.operator = fields.name(bytes)?,
            5 if bytes <= TENSOR_BYTES_MAX => {
                let end = fields.at() + bytes;
                while let Some((number, bytes)) = fields.next_until(end)? {
                    match number {
                        5 => node.value = Some(tensor(fields, bytes)?.1),
                        _ => fields.skip(bytes)?,
                    }
                }
            }
            7 => node.domain = fields.name(bytes)?,
            _ => fields.skip(bytes)?,
        }
    }
    if node.operator != "Constant" {
        node.value = None;
    }
    Ok(node)
}

/// A tensor's name and its number; without one if it has several, or they are elsewhere.
fn tensor(fields: &mut Fields<impl Read + Seek>, bytes: u64) -> Result<(String, Number), String> {
    let end = fields.at() + bytes;
    let (mut name, mut found) = (String::new(), Number::default());
    while let Some((number, bytes)) = fields.next_until(end)? {
        match (number, bytes) {
            (4, 4) => found.float = fields.read(bytes)?.try_into().ok().map(f32::from_le_bytes),
            (5, 1..=10) => found.whole = varint(&fields.read(bytes)?),
            (8, _) => name = fields.name(bytes)?,
            (9, 1..=4) => found.raw = Some(fields.read(bytes)?),
            _ => fields.skip(bytes)?,
        }
    }
    Ok((name, found))
}

/// The one varint in these bytes; negative numbers take ten.
fn varint(bytes: &[u8]) -> Option<i64> {
    let (last, before) = bytes.split_last()?;
    let is_one = *last < 0x80 && before.iter().all(|byte| *byte >= 0x80) && bytes.len() <= 10;
    let shifted = |(at, byte): (usize, &u8)| u64::from(byte & 0x7f).checked_shl(7 * at as u32);
    let value = bytes.iter().enumerate().filter_map(shifted).fold(0, |value, part| value | part);
    is_one.then_some(value.cast_signed())
}

#[cfg(test)]
pub(crate) mod testing {
    //! ONNX files for tests, reduced to their nodes and to constants of one number.

    use crate::engine::onnx::external::testing::field;

    /// A node of this operator with its inputs, and its output.
    pub(crate) fn node(operator: &str, inputs: &[&str], output: &str) -> Vec<u8> {
        let inputs: Vec<u8> = inputs.iter().flat_map(|input| field(1, input.as_bytes())).collect();
        field(1, &[inputs, field(2, output.as_bytes()), field(4, operator.as_bytes())].concat())
    }

    /// A tensor that has this name, and these bytes under this number.
    pub(crate) fn tensor(name: &str, number: u8, bytes: &[u8]) -> Vec<u8> {
        [field(8, name.as_bytes()), field(number, bytes)].concat()
    }

    /// A model of these nodes and tensors.
    pub(crate) fn model(nodes: &[Vec<u8>], tensors: &[Vec<u8>]) -> Vec<u8> {
        let tensors: Vec<u8> = tensors.iter().flat_map(|tensor| field(5, tensor)).collect();
        [vec![0x08, 8], field(7, &[nodes.concat(), tensors].concat())].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        testing::{model, node, tensor},
        *,
    };
    use crate::engine::onnx::external::testing::field;
    use proptest::prelude::*;
    use std::io::Cursor;

    fn found(file: &[u8], is_signed: bool) -> Option<(&'static str, f32, f32)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, file).unwrap();
        quantized(&path, "y", is_signed).map(|(operator, by)| (operator, by.scale, by.zero))
    }

    fn scale(value: f32) -> Vec<u8> {
        tensor("s", 9, &value.to_le_bytes())
    }

    #[test]
    fn scale_and_zero_point_are_those_of_the_operator_that_gives_the_numbers() {
        let quantize = node("QuantizeLinear", &["x", "s", "z"], "y");
        let check = |nodes: &[Vec<u8>], tensors: &[Vec<u8>], is_signed: bool, expected| {
            assert_eq!(found(&model(nodes, tensors), is_signed), expected);
        };
        let raw = |byte: u8| tensor("z", 9, &[byte]);
        let one = std::slice::from_ref(&quantize);
        check(one, &[scale(0.25), raw(200)], false, Some(("QuantizeLinear", 0.25, 200.0)));
        check(one, &[scale(0.25), raw(200)], true, Some(("QuantizeLinear", 0.25, -56.0)));
        // As lists of numbers instead of bytes; -56 as a varint takes ten.
        let listed = tensor("s", 4, &0.25_f32.to_le_bytes());
        let minus = tensor("z", 5, &[0xc8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
        check(one, &[listed.clone(), minus], true, Some(("QuantizeLinear", 0.25, -56.0)));
        let plus = tensor("z", 5, &[0xc8, 1]);
        check(one, &[listed, plus.clone()], false, Some(("QuantizeLinear", 0.25, 200.0)));
        check(one, &[scale(0.25), plus], true, None);
        // Behind what only shapes them, and by operators with other places for them.
        let inputs = ["a", "as", "az", "b", "bs", "bz", "s", "z"];
        let shaped = [node("QLinearMatMul", &inputs, "m"), node("Reshape", &["m", "shape"], "y")];
        check(&shaped, &[scale(2.0), raw(7)], false, Some(("QLinearMatMul", 2.0, 7.0)));
        let softmax = [node("QLinearSoftmax", &["x", "xs", "xz", "s", "z"], "y")];
        check(&softmax, &[scale(0.5), raw(0)], false, Some(("QLinearSoftmax", 0.5, 0.0)));
        // A zero point that is left out is 0.
        for inputs in [&["x", "s"][..], &["x", "s", ""]] {
            check(
                &[node("QuantizeLinear", inputs, "y")],
                &[scale(3.0)],
                false,
                Some(("QuantizeLinear", 3.0, 0.0)),
            );
        }
        // A constant that a node gives.
        let value = field(5, &field(5, &tensor("", 9, &0.5_f32.to_le_bytes())));
        let constant = field(1, &[field(2, b"s"), field(4, b"Constant"), value].concat());
        check(&[constant, quantize.clone()], &[raw(1)], false, Some(("QuantizeLinear", 0.5, 1.0)));
    }

    #[test]
    fn numbers_whose_scale_is_not_a_constant_of_the_file_stand_for_nothing_known() {
        let quantize = [node("QuantizeLinear", &["x", "s", "z"], "y")];
        let zero = tensor("z", 9, &[0]);
        let none = |nodes: &[Vec<u8>], tensors: &[Vec<u8>]| {
            assert_eq!(found(&model(nodes, tensors), false), None);
        };
        none(&quantize, &[]);
        none(&quantize, &[scale(1.0)]);
        none(&quantize, std::slice::from_ref(&zero));
        for wrong in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            none(&quantize, &[scale(wrong), zero.clone()]);
        }
        // A scale for each number, and one that is computed.
        none(&quantize, &[tensor("s", 9, &[0, 0, 128, 63, 0, 0, 128, 63]), zero.clone()]);
        none(&[node("Mul", &["a", "b"], "s"), quantize[0].clone()], std::slice::from_ref(&zero));
        none(&[node("DynamicQuantizeLinear", &["x"], "y")], &[scale(1.0), zero.clone()]);
        none(&[node("Cast", &["x"], "y")], &[scale(1.0), zero]);
        // A cycle, another output, not an ONNX file.
        none(&[node("Identity", &["q"], "y"), node("Reshape", &["y"], "q")], &[]);
        none(&[node("QuantizeLinear", &["x", "s"], "other")], &[scale(1.0)]);
        assert_eq!(found(b"<html>", false), None);
    }

    #[test]
    fn a_number_stands_for_its_distance_from_zero_in_steps() {
        let by = Quantized { scale: 0.5, zero: 200.0 };
        assert_eq!([by.value(200.0), by.value(202.0), by.value(0.0)], [0.0, 1.0, -100.0]);
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Graph::read(Cursor::new(&bytes), bytes.len() as u64).map(|graph| graph.quantized("y", true));
        }
    }
}
