//! Finds the operators of a network in its file without loading it, including those in branches, loops and functions.

use super::skeleton::{self, Message};
use std::{
    collections::BTreeSet,
    io::{Read, Seek},
    path::Path,
};

/// A longer name cannot be an operator's.
const NAME_BYTES_MAX: u64 = 256;

/// The names of a network's operators.
pub(crate) type Operators = BTreeSet<String>;

/// All operators in a model file. `None` for a file that cannot be read: loading it reports why.
pub(crate) fn of(path: &Path) -> Option<Operators> {
    let (file, bytes) = skeleton::open(path).ok()?;
    names(file, bytes).ok()
}

/// Whether a network removes overlapping boxes itself.
pub(crate) fn suppresses(operators: &Operators) -> bool {
    operators.contains("NonMaxSuppression")
}

/// Operators that determine a quantization scale at run time, mostly one for all rows, or that take numbers quantized in this way.
const QUANTIZE: [&str; 6] = [
    "ConvInteger",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
];

/// Whether a network quantizes at run time.
pub(crate) fn quantizes(operators: &Operators) -> bool {
    QUANTIZE.iter().any(|name| operators.contains(*name))
}

/// Operators whose work depends only on the shapes of their inputs, not on the values. Others loop or branch, produce an amount that
/// a value determines, or are not known here.
#[rustfmt::skip]
const EVEN: &[&str] = &[
    "Abs", "Add", "And", "ArgMax", "ArgMin", "AveragePool", "BatchNormalization", "Cast", "Ceil", "Clip", "Concat", "Constant", "Conv",
    "ConvInteger", "ConvTranspose", "Cos", "DequantizeLinear", "Div", "Dropout", "DynamicQuantizeLinear", "Elu", "Equal", "Erf", "Exp",
    "Flatten", "Floor", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "GroupNormalization",
    "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LRN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual",
    "Log", "LogSoftmax", "LpNormalization", "MatMul", "MatMulInteger", "Max", "MaxPool", "Mean", "Min", "Mish", "Mul", "Neg", "Not", "Or",
    "PRelu", "Pow", "QLinearConv", "QLinearMatMul", "QuantizeLinear", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSumExp",
    "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round", "Selu", "Shape",
    "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Transpose",
    "Unsqueeze", "Where", "Xor",
];

/// Whether the run time of a network depends only on the shapes of its inputs. False for a file that cannot be read.
pub(super) fn is_even(path: &Path) -> bool {
    of(path).is_some_and(|operators| operators.iter().all(|name| EVEN.contains(&name.as_str())))
}

fn names(reader: impl Read + Seek, bytes: u64) -> Result<BTreeSet<String>, String> {
    let mut found = BTreeSet::new();
    skeleton::walk(reader, bytes, |fields, field, bytes| match field {
        (Message::Node, 4) => {
            if bytes > NAME_BYTES_MAX {
                return Err(fields.broken());
            }
            let name = String::from_utf8(fields.read(bytes)?).map_err(|_| fields.broken())?;
            found.insert(name);
            Ok(true)
        }
        _ => Ok(false),
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{ending::testing::model, external::testing::field},
        *,
    };
    use proptest::prelude::*;
    use std::io::Cursor;

    fn of_file(bytes: &[u8]) -> Option<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        std::fs::write(&path, bytes).unwrap();
        of(&path).map(|names| names.into_iter().collect())
    }

    #[test]
    fn operators_are_found_wherever_one_can_be() {
        let flat = model(&[["Conv", "x", "a"], ["Relu", "a", "b"], ["Conv", "b", "y"]]);
        assert_eq!(of_file(&flat).unwrap(), ["Conv", "Relu"]);
        let node =
            |operator: &str, more: &[u8]| field(1, &[field(4, operator.as_bytes()), more.to_vec()].concat());
        let branch = node("If", &field(5, &field(6, &node("NonMaxSuppression", &[]))));
        assert_eq!(of_file(&field(7, &branch)).unwrap(), ["If", "NonMaxSuppression"]);
        let function = field(25, &field(7, &field(4, b"NonZero")));
        assert_eq!(of_file(&[field(7, &node("Mine", &[])), function].concat()).unwrap(), ["Mine", "NonZero"]);
        assert_eq!((of_file(b"<html>"), of(Path::new("/nowhere/model.onnx"))), (None, None));
    }

    #[test]
    fn a_network_that_loops_or_makes_what_a_number_says_is_not_even_nor_is_one_that_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let even = |bytes: &[u8]| {
            let path = folder.path().join("model.onnx");
            std::fs::write(&path, bytes).unwrap();
            is_even(&path)
        };
        assert!(even(&model(&[["Conv", "x", "a"], ["Identity", "a", "y"]])));
        for operator in ["If", "Loop", "NonMaxSuppression", "Resize", "RoiAlign", "Tile", "SomethingNew"] {
            assert!(!even(&model(&[["Conv", "x", "a"], [operator, "a", "y"]])), "{operator}");
        }
        assert!(!even(b"<html>") && !is_even(Path::new("/nowhere/model.onnx")));
    }

    #[test]
    fn a_network_quantizes_as_it_runs_where_an_operator_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        for (operator, told) in
            [("DynamicQuantizeLinear", true), ("ConvInteger", true), ("QLinearConv", false)]
        {
            std::fs::write(&path, model(&[[operator, "x", "a"], ["Relu", "a", "y"]])).unwrap();
            assert_eq!(of(&path).map(|operators| quantizes(&operators)), Some(told), "{operator}");
        }
        assert_eq!(of(Path::new("/nowhere/model.onnx")), None);
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = names(Cursor::new(&bytes), bytes.len() as u64);
        }
    }
}
