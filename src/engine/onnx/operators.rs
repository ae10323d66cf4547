//! What the operators of a network say about how it runs.

use std::collections::BTreeSet;

/// The names of a network's operators.
pub(crate) type Operators = BTreeSet<String>;

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

/// Operators whose work depends only on the shapes of their inputs, and that only enqueue it on a GPU. ONNX Runtime leaves a Dropout in a
/// network only if it draws numbers, which is found when the model is loaded.
#[rustfmt::skip]
const PLAIN: &[&str] = &[
    "Abs", "Add", "And", "ArgMax", "ArgMin", "AveragePool", "BatchNormalization", "Cast", "Ceil", "Clip", "Concat", "Constant", "Conv",
    "ConvTranspose", "Cos", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Flatten", "Floor", "Gelu", "Gemm", "GlobalAveragePool",
    "GlobalMaxPool", "Greater", "GreaterOrEqual", "GroupNormalization", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization",
    "LRN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "MatMul", "Max", "MaxPool", "Min", "Mish", "Mul",
    "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round", "Selu", "Shape", "Sigmoid", "Sign", "Sin", "Softmax",
    "Softplus", "Softsign", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Transpose", "Unsqueeze", "Where", "Xor",
];

/// Further operators whose work depends only on the shapes of their inputs, not on the values. Others loop or branch, produce an amount
/// that a value determines, or are not known here.
#[rustfmt::skip]
const ALSO_EVEN: &[&str] = &[
    "ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "LpNormalization", "MatMulInteger", "Mean", "QLinearConv", "QLinearMatMul",
    "QuantizeLinear",
];

/// Further operators that only enqueue work on a GPU, from what the host knows from shapes alone: they neither wait for the GPU nor read
/// there what to do next. A network with other operators is only recorded with `cuda_graph = "always"`: a check on an H200 that recorded
/// networks with NonZero and RandomNormalLike had not finished after two minutes.
#[rustfmt::skip]
const ALSO_RECORDABLE: &[&str] = &[
    "Celu", "ConstantOfShape", "DepthToSpace", "Expand", "FusedConv", "FusedMatMul", "Gather", "Pad", "QuickGelu", "Resize",
    "SkipLayerNormalization", "Slice", "SpaceToDepth", "ThresholdedRelu", "Tile", "Upsample",
];

/// Whether the run time of a network depends only on the shapes of its inputs.
pub(super) fn are_even(operators: &Operators) -> bool {
    let mut names = operators.iter().map(String::as_str);
    names.all(|name| PLAIN.contains(&name) || ALSO_EVEN.contains(&name))
}

/// The operators of a network that are not known to be fit for being recorded as a CUDA graph.
pub(crate) fn unrecordable(operators: &Operators) -> Vec<&str> {
    let names = operators.iter().map(String::as_str);
    names.filter(|name| !PLAIN.contains(name) && !ALSO_RECORDABLE.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{ending::testing::model, external::testing::field, outline::Outline},
        *,
    };

    fn of_file(bytes: &[u8]) -> Option<Operators> {
        Outline::of_bytes(bytes).map(|outline| outline.operators)
    }

    #[test]
    fn operators_are_found_wherever_one_can_be() {
        let flat = model(&[["Conv", "x", "a"], ["Relu", "a", "b"], ["Conv", "b", "y"]]);
        let check = |bytes: &[u8], expected: [&str; 2]| {
            assert_eq!(of_file(bytes), Some(expected.map(str::to_owned).into()));
        };
        check(&flat, ["Conv", "Relu"]);
        let node =
            |operator: &str, more: &[u8]| field(1, &[field(4, operator.as_bytes()), more.to_vec()].concat());
        let branch = node("If", &field(5, &field(6, &node("NonMaxSuppression", &[]))));
        check(&field(7, &branch), ["If", "NonMaxSuppression"]);
        let function = field(25, &field(7, &field(4, b"NonZero")));
        check(&[field(7, &node("Mine", &[])), function].concat(), ["Mine", "NonZero"]);
        assert_eq!(of_file(b"<html>"), None);
    }

    #[test]
    fn a_network_that_loops_or_makes_what_a_number_says_is_not_even_nor_is_one_that_cannot_be_read() {
        let even = |bytes: &[u8]| of_file(bytes).is_some_and(|operators| are_even(&operators));
        assert!(even(&model(&[["Conv", "x", "a"], ["Identity", "a", "y"]])));
        for operator in ["If", "Loop", "NonMaxSuppression", "Resize", "RoiAlign", "Tile", "SomethingNew"] {
            assert!(!even(&model(&[["Conv", "x", "a"], [operator, "a", "y"]])), "{operator}");
        }
        assert!(!even(b"<html>"));
    }

    #[test]
    fn an_operator_is_named_in_one_list() {
        let all = [PLAIN, ALSO_EVEN, ALSO_RECORDABLE].concat();
        let twice = all.iter().find(|name| all.iter().filter(|other| other == name).count() > 1);
        assert_eq!(twice, None);
    }

    #[test]
    fn a_network_quantizes_as_it_runs_where_an_operator_says_so() {
        for (operator, told) in
            [("DynamicQuantizeLinear", true), ("ConvInteger", true), ("QLinearConv", false)]
        {
            let operators = of_file(&model(&[[operator, "x", "a"], ["Relu", "a", "y"]]));
            assert_eq!(operators.map(|operators| quantizes(&operators)), Some(told), "{operator}");
        }
    }
}
