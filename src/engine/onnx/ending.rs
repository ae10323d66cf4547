//! Finds out, from a network's file without loading it, what an output comes from. Scores of a network that ends in softmax or sigmoid are
//! probabilities. What has gone through ArgMax or TopK has no place for each class.

use super::outline::{Node, Outline};

/// The operator that turns scores into probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FinalActivation {
    /// For classes that exclude each other.
    Softmax,
    /// For each class by itself.
    Sigmoid,
}

impl FinalActivation {
    /// The operator's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            FinalActivation::Softmax => "Softmax",
            FinalActivation::Sigmoid => "Sigmoid",
        }
    }
}

/// Operators that do not change the numbers, except by rounding.
const PASSING: [&str; 9] = [
    "Identity",
    "Cast",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "QuantizeLinear",
    "DequantizeLinear",
];

/// Operators that choose among scores. What they give is in the order of the scores, or numbers of classes.
const CHOOSING: [&str; 3] = ["ArgMax", "ArgMin", "TopK"];

impl Outline {
    /// The last operator before an output, if it makes probabilities.
    pub(crate) fn ending(&self, output: &str) -> Option<FinalActivation> {
        let node = self.behind(output).find(|node| !PASSING.contains(&&*node.operator))?;
        match &*node.operator {
            "Softmax" | "QLinearSoftmax" => Some(FinalActivation::Softmax),
            "Sigmoid" | "HardSigmoid" | "QLinearSigmoid" => Some(FinalActivation::Sigmoid),
            "Div" if self.is_share(node) => Some(FinalActivation::Softmax),
            _ => None,
        }
    }

    /// The operator by which the network itself has chosen what an output gives, if it has; what follows may also make probabilities of
    /// it.
    pub(crate) fn chosen_by(&self, output: &str) -> Option<&'static str> {
        let passes = |operator: &str| {
            PASSING.contains(&operator) || matches!(operator, "Softmax" | "LogSoftmax" | "Sigmoid")
        };
        let node = self.behind(output).find(|node| !passes(&node.operator))?;
        CHOOSING.into_iter().find(|choosing| *choosing == node.operator)
    }

    /// Whether a division is the last step of a softmax that is written out: exponentials over their sum.
    fn is_share(&self, Node { inputs, .. }: &Node) -> bool {
        let of = |operator: &str, name: &str| self.node(name).filter(|node| node.operator == operator);
        let [input, divisor] = &inputs[..] else { return false };
        let Some(sum) = of("ReduceSum", divisor) else { return false };
        // The exponentials in the sum may be computed by a node of their own.
        let also = sum.inputs.first().and_then(|summed| of("Exp", summed));
        of("Exp", input).zip(also).is_some_and(|(one, other)| one.inputs.first() == other.inputs.first())
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! ONNX files for tests, reduced to their nodes.

    use crate::engine::onnx::external::testing::field;

    /// A model of these nodes, each an operator, its input and its output (or two, separated by a space).
    pub(crate) fn model(nodes: &[[&str; 3]]) -> Vec<u8> {
        let node = |[operator, inputs, outputs]: &[&str; 3]| {
            let domain = if operator.starts_with("QLinear") { "com.microsoft" } else { "" };
            let (input, other) = inputs.split_once(' ').unwrap_or((*inputs, "other"));
            let mut fields = vec![(1, input), (1, other), (3, "name"), (4, *operator), (7, domain)];
            fields.extend(outputs.split(' ').map(|output| (2, output)));
            let fields = fields.into_iter().flat_map(|(number, text)| field(number, text.as_bytes()));
            field(1, &fields.collect::<Vec<u8>>())
        };
        // The nodes are followed by weights and outputs.
        let graph =
            [nodes.iter().map(node).collect::<Vec<_>>().concat(), field(5, &field(9, &[0xff; 300]))].concat();
        [vec![0x08, 8], field(7, &graph)].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(model: &[u8], expected: Option<FinalActivation>) {
        assert_eq!(Outline::of_bytes(model).and_then(|outline| outline.ending("y")), expected);
    }

    #[test]
    fn what_makes_probabilities_is_found_behind_what_only_shapes_them() {
        let model = testing::model;
        check(&model(&[["Gemm", "x", "l"], ["Softmax", "l", "y"]]), Some(FinalActivation::Softmax));
        check(&model(&[["Gemm", "x", "l"], ["Sigmoid", "l", "y"]]), Some(FinalActivation::Sigmoid));
        let shaped = [["Softmax", "l", "p"], ["Cast", "p", "q"], ["Flatten", "q", "y"]];
        check(&model(&shaped), Some(FinalActivation::Softmax));
        // As older exporters write softmax over channels.
        let turned = [["Transpose", "l", "t"], ["Softmax", "t", "p"], ["Transpose", "p", "y"]];
        check(&model(&turned), Some(FinalActivation::Softmax));
        check(
            &model(&[["QLinearSoftmax", "l", "p"], ["DequantizeLinear", "p", "y"]]),
            Some(FinalActivation::Softmax),
        );
        check(&model(&[["HardSigmoid", "l", "y"]]), Some(FinalActivation::Sigmoid));
        check(&model(&[["Softmax", "l", "p"], ["Gemm", "p", "y"]]), None);
        check(&model(&[["Softmax", "l", "attention"], ["Gemm", "x", "y"]]), None);
        check(&model(&[["LogSoftmax", "l", "y"]]), None);
        let written = [["Exp", "l", "e"], ["ReduceSum", "e axes", "s"], ["Div", "e s", "y"]];
        check(&model(&written), Some(FinalActivation::Softmax));
        let twice = [["Exp", "l", "d"], ["Exp", "l", "e"], ["ReduceSum", "d", "s"], ["Div", "e s", "y"]];
        check(&model(&twice), Some(FinalActivation::Softmax));
        let others = [["Exp", "k", "d"], ["Exp", "l", "e"], ["ReduceSum", "d", "s"], ["Div", "e s", "y"]];
        check(&model(&others), None);
        check(&model(&[["ReduceSum", "l", "s"], ["Div", "l s", "y"]]), None);
        check(&model(&[["Exp", "l", "e"], ["ReduceSum", "e", "s"], ["Div", "s e", "y"]]), None);
        // No such output, a cycle, not an ONNX file.
        check(&model(&[["Softmax", "l", "other"]]), None);
        check(&model(&[["Identity", "q", "y"], ["Cast", "y", "q"]]), None);
        check(b"<html>", None);
    }

    #[test]
    fn what_the_network_has_chosen_itself_is_found_behind_either_output_and_what_only_shapes_it() {
        let check = |nodes: &[[&str; 3]], output: &str, expected: Option<&str>| {
            let outline = Outline::of_bytes(&testing::model(nodes)).unwrap();
            assert_eq!(outline.chosen_by(output), expected, "{nodes:?}");
        };
        let top = ["TopK", "l k", "values indices"];
        check(&[top], "values", Some("TopK"));
        check(&[top], "indices", Some("TopK"));
        check(&[top, ["Cast", "indices", "c"], ["Squeeze", "c", "y"]], "y", Some("TopK"));
        check(&[top, ["Softmax", "values", "y"]], "y", Some("TopK"));
        check(&[["ArgMax", "l", "a"], ["Cast", "a", "y"]], "y", Some("ArgMax"));
        check(&[["Softmax", "l", "y"], ["TopK", "y k", "values indices"]], "y", None);
        check(&[top, ["Gemm", "values", "y"]], "y", None);
        check(&[["Split", "l", "a b"]], "b", None);
        check(&[["Identity", "q", "y"], ["Cast", "y", "q"]], "y", None);
    }
}
