//! Finds out, from a network's file without loading it, what the whole numbers of a quantized output stand for: the scale and the zero point
//! that its last operator rounds by, if they are constants of the file.

use super::outline::Outline;

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

impl Outline {
    /// What the numbers of an output stand for, and the operator that says so. `is_signed`: whether they are INT8, not UINT8. `None` if
    /// another operator gives them, or one whose scale or zero point is computed or differs between numbers.
    pub(crate) fn quantized(&self, output: &str, is_signed: bool) -> Option<(&'static str, Quantized)> {
        let node = self.behind(output).find(|node| !PASSING.contains(&&*node.operator))?;
        let (operator, at) = QUANTIZING.into_iter().find(|(operator, _)| *operator == node.operator)?;
        let scale = node.inputs.get(at).and_then(|name| self.constant(name))?.float()?;
        let zero = match node.inputs.get(at + 1).filter(|name| !name.is_empty()) {
            Some(name) => self.constant(name)?.byte(is_signed)?,
            None => 0.0,
        };
        let holds = scale.is_finite() && scale > 0.0;
        holds.then_some((operator, Quantized { scale, zero }))
    }
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

    fn found(file: &[u8], is_signed: bool) -> Option<(&'static str, f32, f32)> {
        Outline::of_bytes(file)?.quantized("y", is_signed).map(|(operator, by)| (operator, by.scale, by.zero))
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
}
