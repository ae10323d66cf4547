//! What an author says that a model takes and gives, held against what its file says; and the shapes that requests have where
//! the author gave them another form than the model has inside.

use crate::{
    engine::{DataType, Dim, Signature, Tensor, TensorSpec},
    image::Layout,
};

/// An author's word on inputs and outputs. A list that is empty says nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Declared {
    /// Items of the largest batch; `None` for a model without a batch axis, whose shapes are whole. Shapes of a model that
    /// has one leave it out.
    pub items_max: Option<usize>,
    /// All inputs.
    pub inputs: Vec<DeclaredTensor>,
    /// The outputs that requests may have; others stay inside.
    pub outputs: Vec<DeclaredTensor>,
}

/// One input or output of them.
#[derive(Debug, Clone, PartialEq)]
pub struct DeclaredTensor {
    /// As in the model file.
    pub name: String,
    /// Element type.
    pub datatype: DataType,
    /// As requests have it.
    pub dims: Vec<Dim>,
    /// As the model has it, where that differs.
    pub reshape: Option<Vec<Dim>>,
    /// The order of an image's axes, for clients that make one; it changes nothing here.
    pub format: Option<Layout>,
    /// The file in the model's folder that has the labels of an output's classes.
    pub labels: Option<String>,
}

/// What requests see of a model: the names, types and shapes that they use, and how these become the model's own.
#[derive(Debug, Clone, PartialEq)]
pub struct Interface {
    /// What requests bring and get.
    pub signature: Signature,
    /// For each input of the model: which of the interface's it is.
    inputs: Vec<usize>,
    /// For each output of the interface: which of the model's it is.
    outputs: Vec<usize>,
    /// The model's own shapes.
    inside: Signature,
}

impl Interface {
    /// Requests see the model as it is.
    pub fn plain(signature: &Signature) -> Interface {
        Interface {
            inputs: (0..signature.inputs.len()).collect(),
            outputs: (0..signature.outputs.len()).collect(),
            signature: signature.clone(),
            inside: signature.clone(),
        }
    }

    /// From a request's inputs, one for each of the interface's and of its shape, to the model's.
    pub fn inward(&self, given: &[Tensor]) -> Vec<Tensor> {
        let own = self.inputs.iter().zip(&self.inside.inputs);
        own.map(|(at, spec)| reshape(&given[*at], &self.signature.inputs[*at].shape, &spec.shape)).collect()
    }

    /// From the model's outputs to the interface's.
    pub fn outward(&self, outputs: &[Tensor]) -> Vec<Tensor> {
        let shown = self.outputs.iter().zip(&self.signature.outputs);
        shown.map(|(at, spec)| reshape(&outputs[*at], &self.inside.outputs[*at].shape, &spec.shape)).collect()
    }
}

/// The same elements under another shape: extents that are free keep their order.
fn reshape(tensor: &Tensor, from: &[Dim], to: &[Dim]) -> Tensor {
    let mut tensor = tensor.clone();
    if from != to {
        let mut free =
            from.iter().zip(&tensor.shape).filter(|(dim, _)| **dim == Dim::Free).map(|(_, extent)| *extent);
        let shape: Vec<usize> = to
            .iter()
            .map(|dim| if let Dim::Fixed(n) = dim { *n } else { free.next().unwrap_or(1) })
            .collect();
        // A model whose output is not what its file says is told as it is.
        if shape.iter().product::<usize>() == tensor.elements() {
            tensor.shape = shape;
        }
    }
    tensor
}

impl Declared {
    /// Holds it against what the file says: what the model is inside, with extents that the author fixed, and what requests
    /// see of it.
    ///
    /// # Errors
    /// Every input and output that differs, as declared and as it is.
    pub fn hold(&self, file: &Signature) -> Result<(Signature, Interface), String> {
        let mut wrong = Vec::new();
        let mut inside = file.clone();
        let inputs = self.side("input", &self.inputs, &mut inside.inputs, &mut wrong);
        let outputs = self.side("output", &self.outputs, &mut inside.outputs, &mut wrong);
        if !self.inputs.is_empty() {
            let missing =
                file.inputs.iter().filter(|spec| self.inputs.iter().all(|own| own.name != spec.name));
            wrong.extend(missing.map(|spec| format!("input {} of the file is not declared", shown(spec))));
        }
        if !wrong.is_empty() {
            return Err(wrong.join("; "));
        }
        let place = |spec: &TensorSpec| inputs.iter().position(|own| own.name == spec.name);
        let interface = Interface {
            inputs: inside.inputs.iter().filter_map(place).collect(),
            outputs: outputs
                .iter()
                .filter_map(|own| inside.outputs.iter().position(|spec| spec.name == own.name))
                .collect(),
            signature: Signature { platform: file.platform, inputs, outputs },
            inside: inside.clone(),
        };
        Ok((inside, interface))
    }

    /// One of the two lists: narrows what the file leaves open, and gives what requests see.
    fn side(
        &self,
        what: &str,
        declared: &[DeclaredTensor],
        file: &mut [TensorSpec],
        wrong: &mut Vec<String>,
    ) -> Vec<TensorSpec> {
        if declared.is_empty() {
            return file.to_vec();
        }
        let there = file.iter().map(shown).collect::<Vec<_>>().join(", ");
        let mut seen = Vec::with_capacity(declared.len());
        for own in declared {
            let with_batch = |dims: &[Dim]| {
                let batch = self.items_max.map(|_| Dim::Free);
                batch.into_iter().chain(dims.iter().copied()).collect::<Vec<_>>()
            };
            let inner = with_batch(own.reshape.as_deref().unwrap_or(&own.dims));
            let said =
                TensorSpec { name: own.name.clone(), datatype: own.datatype, shape: with_batch(&own.dims) };
            let Some(spec) = file.iter_mut().find(|spec| spec.name == own.name) else {
                wrong.push(format!("{what} {} is declared, but the file has {there}", shown(&said)));
                continue;
            };
            let one = self.items_max == Some(1);
            let fits = spec.datatype == own.datatype
                && spec.shape.len() == inner.len()
                && spec.shape.iter().zip(&inner).enumerate().all(|(axis, (file, declared))| {
                    let batch = axis == 0 && self.items_max.is_some();
                    // A batch axis that is fixed at one takes batches of one.
                    *file == Dim::Free || file == declared || (batch && one && *file == Dim::Fixed(1))
                });
            if !fits {
                let inner = TensorSpec { shape: inner, ..said };
                let batch = if self.items_max.is_some() { ", whose first axis is the batch's" } else { "" };
                wrong.push(format!(
                    "{what} is declared as {}{batch}; the file has {}",
                    shown(&inner),
                    shown(spec)
                ));
                continue;
            }
            for (file, declared) in spec.shape.iter_mut().zip(inner) {
                if let Dim::Fixed(_) = declared {
                    *file = declared;
                }
            }
            let mut said = said;
            if self.items_max.is_some() {
                said.shape[0] = spec.shape[0];
            }
            seen.push(said);
        }
        seen
    }
}

fn shown(spec: &TensorSpec) -> String {
    let shape: Vec<i64> = spec.shape.iter().copied().map(Dim::number).collect();
    format!("{:?} ({} {shape:?})", spec.name, spec.datatype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::spec;
    use Dim::{Fixed, Free};
    use bytes::Bytes;

    fn own(name: &str, dims: &[Dim], reshape: Option<&[Dim]>) -> DeclaredTensor {
        DeclaredTensor {
            name: name.to_owned(),
            datatype: DataType::Fp32,
            dims: dims.to_vec(),
            reshape: reshape.map(<[Dim]>::to_vec),
            format: None,
            labels: None,
        }
    }

    fn file(input: &[i64], output: &[i64]) -> Signature {
        Signature {
            platform: "test",
            inputs: vec![spec("x", DataType::Fp32, input)],
            outputs: vec![spec("y", DataType::Fp32, output)],
        }
    }

    fn batched(input: DeclaredTensor, output: DeclaredTensor) -> Declared {
        Declared { items_max: Some(8), inputs: vec![input], outputs: vec![output] }
    }

    fn tensor(shape: &[usize]) -> Tensor {
        let bytes = 4 * shape.iter().product::<usize>();
        Tensor { datatype: DataType::Fp32, shape: shape.to_vec(), data: Bytes::from(vec![0; bytes]) }
    }

    #[test]
    fn what_the_file_leaves_open_is_narrowed_to_what_is_declared() {
        let declared = batched(own("x", &[Fixed(3), Fixed(8)], None), own("y", &[Free], None));
        let (inside, interface) = declared.hold(&file(&[-1, -1, 8], &[-1, -1])).unwrap();
        assert_eq!(inside.inputs[0].shape, [Free, Fixed(3), Fixed(8)]);
        assert_eq!(interface.signature, inside);
        let silent = Declared { items_max: Some(4), ..Declared::default() };
        let (inside, interface) = silent.hold(&file(&[-1, 8], &[-1, 2])).unwrap();
        assert_eq!((&inside, &interface), (&file(&[-1, 8], &[-1, 2]), &Interface::plain(&inside)));
    }

    #[test]
    fn a_difference_is_told_with_both_sides() {
        let check = |declared: &Declared, input: &[i64], expected: &str| {
            let error = declared.hold(&file(input, &[-1, 2])).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        let of = |name, dims: &[Dim]| batched(own(name, dims, None), own("y", &[Fixed(2)], None));
        check(
            &of("x", &[Fixed(3)]),
            &[-1, 4],
            "input is declared as \"x\" (FP32 [-1, 3]), whose first axis is the batch's; the file has \"x\" (FP32 [-1, 4])",
        );
        check(&of("x", &[Free]), &[-1, 4], "the file has \"x\" (FP32 [-1, 4])");
        check(&of("x", &[Fixed(4)]), &[1, 4], "the file has \"x\" (FP32 [1, 4])");
        check(
            &of("z", &[Fixed(4)]),
            &[-1, 4],
            "input \"z\" (FP32 [-1, 4]) is declared, but the file has \"x\"",
        );
        check(&of("z", &[Fixed(4)]), &[-1, 4], "input \"x\" (FP32 [-1, 4]) of the file is not declared");
        let mut other = of("x", &[Fixed(4)]);
        other.inputs[0].datatype = DataType::Int32;
        check(&other, &[-1, 4], "\"x\" (INT32 [-1, 4])");
        let whole = Declared { items_max: None, ..of("x", &[Fixed(4)]) };
        check(&whole, &[-1, 4], "declared as \"x\" (FP32 [4]); the file has");
        let one = Declared { items_max: Some(1), inputs: of("x", &[Fixed(4)]).inputs, outputs: Vec::new() };
        assert!(one.hold(&file(&[1, 4], &[1, 2])).is_ok());
    }

    #[test]
    fn shapes_are_changed_on_the_way_in_and_back_on_the_way_out() {
        let declared = batched(own("x", &[Fixed(1), Free], Some(&[Free])), own("y", &[Fixed(1)], Some(&[])));
        let (inside, interface) = declared.hold(&file(&[-1, -1], &[-1])).unwrap();
        assert_eq!(inside.inputs[0].shape, [Free, Free]);
        assert_eq!(interface.signature.inputs[0].shape, [Free, Fixed(1), Free]);
        assert_eq!(interface.inward(&[tensor(&[5, 1, 7])])[0].shape, [5, 7]);
        assert_eq!(interface.outward(&[tensor(&[5])])[0].shape, [5, 1]);
    }

    #[test]
    fn an_axis_that_is_always_one_may_be_left_out_of_requests() {
        let one = |name, dims: &[usize]| {
            let dims: Vec<Dim> = dims.iter().copied().map(Fixed).collect();
            let inside: Vec<Dim> = [Fixed(1)].into_iter().chain(dims.iter().copied()).collect();
            own(name, &dims, Some(&inside))
        };
        let declared =
            Declared { items_max: None, inputs: vec![one("x", &[3, 8])], outputs: vec![one("y", &[10])] };
        let (inside, interface) = declared.hold(&file(&[1, 3, 8], &[1, 10])).unwrap();
        assert_eq!(inside, file(&[1, 3, 8], &[1, 10]));
        assert_eq!(interface.signature, file(&[3, 8], &[10]));
        assert_eq!(interface.inward(&[tensor(&[3, 8])])[0].shape, [1, 3, 8]);
        assert_eq!(interface.outward(&[tensor(&[1, 10])])[0].shape, [10]);
        // What a model gives against its own file is told as it is.
        assert_eq!(interface.outward(&[tensor(&[2, 10])])[0].shape, [2, 10]);
    }

    #[test]
    fn requests_have_the_order_of_the_declaration_and_only_the_outputs_in_it() {
        let two = |a: &str, b: &str| vec![spec(a, DataType::Fp32, &[2]), spec(b, DataType::Fp32, &[3])];
        let file = Signature { platform: "test", inputs: two("a", "b"), outputs: two("y", "z") };
        let declared = Declared {
            items_max: None,
            inputs: vec![own("b", &[Fixed(3)], None), own("a", &[Fixed(2)], None)],
            outputs: vec![own("z", &[Fixed(3)], None)],
        };
        let (_, interface) = declared.hold(&file).unwrap();
        let inward: Vec<_> =
            interface.inward(&[tensor(&[3]), tensor(&[2])]).into_iter().map(|t| t.shape).collect();
        assert_eq!(inward, [[2], [3]]);
        let outward = interface.outward(&[tensor(&[2]), tensor(&[3])]);
        assert_eq!(outward.iter().map(|t| t.shape.as_slice()).collect::<Vec<_>>(), [[3]]);
    }
}
