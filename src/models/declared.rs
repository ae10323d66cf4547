//! The inputs and outputs that an author declares, checked against the model file. If the author gives requests other shapes
//! than the model has inside, this also converts between the two.

use crate::{
    engine::{DataType, Dim, Signature, Tensor, TensorSpec},
    image::Layout,
};

/// The inputs and outputs that an author declares. An empty list declares nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Declared {
    /// Items in the largest batch; `None` for a model without a batch axis. Declared shapes leave the batch axis out.
    pub items_max: Option<usize>,
    /// All inputs.
    pub inputs: Vec<DeclaredTensor>,
    /// The outputs that requests may ask for; others are not shown.
    pub outputs: Vec<DeclaredTensor>,
}

/// A declared input or output.
#[derive(Debug, Clone, PartialEq)]
pub struct DeclaredTensor {
    /// As in the model file.
    pub name: String,
    /// Element type.
    pub datatype: DataType,
    /// The shape that requests use.
    pub dims: Vec<Dim>,
    /// The model's own shape, if it differs.
    pub reshape: Option<Vec<Dim>>,
    /// The axis order of an image, for clients that prepare one; it has no effect here.
    pub format: Option<Layout>,
    /// The file in the model's folder with the labels of an output's classes.
    pub labels: Option<String>,
    /// A request may leave it out.
    pub optional: bool,
}

impl DeclaredTensor {
    /// The model's own shape, without the batch axis.
    fn inside(&self) -> &[Dim] {
        self.reshape.as_deref().unwrap_or(&self.dims)
    }
}

/// Checks that the file gives every input a number of axes.
///
/// # Errors
/// The first input without one.
pub(super) fn shaped(file: &Signature) -> Result<(), String> {
    let unshaped = file.inputs.iter().find(|input| file.unshaped.contains(&input.name));
    unshaped.map_or(Ok(()), |input| {
        Err(format!(
            "input {:?} has no shape in the file, so that nobody knows how many axes it takes: export it with one, in which \
             extents may be free (a name or -1), or say its dims in a config.pbtxt",
            input.name
        ))
    })
}

/// A model as requests see it: the names, types and shapes that they use, and their conversion to the model's own.
#[derive(Debug, Clone, PartialEq)]
pub struct Interface {
    /// The inputs and outputs of requests.
    pub signature: Signature,
    /// For each input of the model, its index in the interface.
    inputs: Vec<usize>,
    /// For each output of the interface, its index in the model.
    outputs: Vec<usize>,
    /// The model's own shapes.
    inside: Signature,
}

impl Interface {
    /// An interface that shows the model as it is.
    pub fn plain(signature: &Signature) -> Interface {
        Interface {
            inputs: (0..signature.inputs.len()).collect(),
            outputs: (0..signature.outputs.len()).collect(),
            signature: signature.clone(),
            inside: signature.clone(),
        }
    }

    /// Converts a request's inputs to the model's. `given` has one tensor per input of the interface, in its shape.
    pub fn inward(&self, given: &[Tensor]) -> Vec<Tensor> {
        let own = self.inputs.iter().zip(&self.inside.inputs);
        own.map(|(at, spec)| reshape(&given[*at], &self.signature.inputs[*at].shape, &spec.shape)).collect()
    }

    /// Converts the model's outputs to the interface's.
    pub fn outward(&self, outputs: &[Tensor]) -> Vec<Tensor> {
        let shown = self.outputs.iter().zip(&self.signature.outputs);
        shown.map(|(at, spec)| reshape(&outputs[*at], &self.inside.outputs[*at].shape, &spec.shape)).collect()
    }
}

/// The same elements under another shape; free extents keep their order.
fn reshape(tensor: &Tensor, from: &[Dim], to: &[Dim]) -> Tensor {
    let mut tensor = tensor.clone();
    if from != to {
        let mut free =
            from.iter().zip(&tensor.shape).filter(|(dim, _)| **dim == Dim::Free).map(|(_, extent)| *extent);
        let shape: Vec<usize> = to
            .iter()
            .map(|dim| if let Dim::Fixed(n) = dim { *n } else { free.next().unwrap_or(1) })
            .collect();
        // If a model's output contradicts its file, it is returned in the shape that it has.
        if shape.iter().product::<usize>() == tensor.elements() {
            tensor.shape = shape;
        }
    }
    tensor
}

impl Declared {
    /// Checks the declaration against the file. Returns the model's own signature, with the extents that the author fixed,
    /// and the interface that requests see.
    ///
    /// # Errors
    /// Every input and output that differs, as declared and as in the file.
    pub fn hold(&self, file: &Signature) -> Result<(Signature, Interface), String> {
        let mut wrong = Vec::new();
        let mut inside = file.clone();
        self.shape(&mut inside);
        let left_out = |own: &&DeclaredTensor| self.left_out(file).all(|name| name != own.name);
        let inputs: Vec<_> = self.inputs.iter().filter(left_out).collect();
        let inputs = self.side("input", &inputs, &mut inside.inputs, &mut wrong);
        let outputs: Vec<_> = self.outputs.iter().collect();
        let outputs = self.side("output", &outputs, &mut inside.outputs, &mut wrong);
        if self.inputs.is_empty() {
            wrong.extend(shaped(file).err());
        } else {
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
            signature: Signature { inputs, outputs, ..file.clone() },
            inside: inside.clone(),
        };
        Ok((inside, interface))
    }

    /// Outputs of the file for which nobody can ask, since others are declared. None if a declared one is not in the file: that is told
    /// together with those that are.
    pub fn unasked(&self, file: &Signature) -> Vec<String> {
        let (own, there): (Vec<_>, Vec<_>) = (
            self.outputs.iter().map(|own| &own.name).collect(),
            file.outputs.iter().map(|spec| &spec.name).collect(),
        );
        if own.is_empty() || !own.iter().all(|name| there.contains(name)) {
            return Vec::new();
        }
        there.into_iter().filter(|name| !own.contains(name)).cloned().collect()
    }

    /// Optional inputs for which the file has a default value. The interface leaves them out.
    pub fn left_out<'a>(&'a self, file: &'a Signature) -> impl Iterator<Item = &'a str> {
        let names = self.inputs.iter().filter(|own| own.optional).map(|own| own.name.as_str());
        names.filter(|name| file.defaulted.iter().any(|of| of == name))
    }

    /// Gives tensors that have no shape in the file as many free axes as are declared, except those that may be a single
    /// number.
    fn shape(&self, file: &mut Signature) {
        let declared = self.inputs.iter().chain(&self.outputs);
        for spec in file.inputs.iter_mut().chain(&mut file.outputs) {
            if let Some(own) = declared.clone().find(|own| own.name == spec.name)
                && file.unshaped.contains(&spec.name)
                && !self.may_be_single(own)
            {
                let axes = usize::from(self.items_max.is_some()) + own.inside().len();
                spec.shape = vec![Dim::Free; axes];
            }
        }
    }

    /// Triton cannot express a shape without axes, so a single number in the file is declared with axes of extent 1.
    fn may_be_single(&self, own: &DeclaredTensor) -> bool {
        self.items_max.is_none() && own.inside().iter().all(|dim| *dim == Dim::Fixed(1))
    }

    /// Checks the inputs or the outputs: narrows what the file leaves open, and returns what requests see.
    fn side(
        &self,
        what: &str,
        declared: &[&DeclaredTensor],
        file: &mut [TensorSpec],
        wrong: &mut Vec<String>,
    ) -> Vec<TensorSpec> {
        if declared.is_empty() {
            // Triton's backend completes a configuration in this order.
            let mut by_name = file.to_vec();
            by_name.sort_by(|a, b| a.name.cmp(&b.name));
            return by_name;
        }
        let there = file.iter().map(shown).collect::<Vec<_>>().join(", ");
        let mut seen = Vec::with_capacity(declared.len());
        for own in declared {
            let with_batch = |dims: &[Dim]| {
                let batch = self.items_max.map(|_| Dim::Free);
                batch.into_iter().chain(dims.iter().copied()).collect::<Vec<_>>()
            };
            let is_single = |spec: &TensorSpec| spec.name == own.name && spec.shape.is_empty();
            let single = self.may_be_single(own) && file.iter().any(is_single);
            let inner = if single { Vec::new() } else { with_batch(own.inside()) };
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
                    // A batch axis fixed at 1 takes batches of 1.
                    *file == Dim::Free || file == declared || (batch && one && *file == Dim::Fixed(1))
                });
            if !fits {
                let inner = TensorSpec { shape: inner, ..said };
                let batch = if self.items_max.is_some() { ", whose first axis is the batch's" } else { "" };
                let batched =
                    self.items_max.is_some() && !(one && spec.shape.first() == Some(&Dim::Fixed(1)));
                let to_do = match spec.shape.first() {
                    Some(Dim::Fixed(items)) if batched && spec.shape.len() == inner.shape.len() => {
                        format!(
                            ": its batch is fixed at {items}; export it with a free batch axis, or set max_batch_size to 0 and \
                             have dims begin with {items}"
                        )
                    }
                    _ => String::new(),
                };
                wrong.push(format!(
                    "{what} is declared as {}{batch}; the file has {}{to_do}",
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
            optional: false,
        }
    }

    fn file(input: &[i64], output: &[i64]) -> Signature {
        Signature {
            platform: "test".into(),
            inputs: vec![spec("x", DataType::Fp32, input)],
            outputs: vec![spec("y", DataType::Fp32, output)],
            defaulted: Vec::new(),
            unshaped: Vec::new(),
            left_out: Vec::new(),
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
    fn outputs_beside_those_that_are_declared_are_asked_for_by_nobody() {
        let mut two = file(&[-1, 2], &[-1, 2]);
        two.outputs.push(spec("loss", DataType::Fp32, &[]));
        let of = |outputs: &[&str]| Declared {
            outputs: outputs.iter().map(|name| own(name, &[Fixed(2)], None)).collect(),
            ..Declared::default()
        };
        for (declared, unasked) in [
            (&["y"][..], &["loss"][..]),
            (&["loss"], &["y"]),
            (&["y", "loss"], &[]),
            (&[], &[]),
            (&["y", "z"], &[]),
        ] {
            assert_eq!(of(declared).unasked(&two), unasked, "{declared:?}");
        }
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
            &of("x", &[Fixed(4)]),
            &[1, 4],
            "(FP32 [1, 4]): its batch is fixed at 1; export it with a free batch axis, or set max_batch_size to 0 and have \
             dims begin with 1",
        );
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
        let told = one.hold(&file(&[1, 5], &[1, 2])).unwrap_err();
        assert!(told.ends_with("(FP32 [1, 5])"), "a batch of one is not what is wrong: {told}");
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
        // An output that contradicts the file is returned as it is.
        assert_eq!(interface.outward(&[tensor(&[2, 10])])[0].shape, [2, 10]);
    }

    #[test]
    fn a_single_number_of_the_file_has_the_axes_of_one_that_are_declared() {
        let declared = |items_max, dims: &[Dim]| Declared {
            items_max,
            inputs: vec![own("x", dims, None)],
            outputs: vec![own("y", &[Fixed(1)], None)],
        };
        for dims in [&[Fixed(1)][..], &[Fixed(1), Fixed(1)]] {
            let (inside, interface) = declared(None, dims).hold(&file(&[], &[])).unwrap();
            assert_eq!(inside, file(&[], &[]));
            assert_eq!(interface.signature.inputs[0].shape, dims);
            assert!(interface.inward(&[tensor(&vec![1; dims.len()])])[0].shape.is_empty());
            assert_eq!(interface.outward(&[tensor(&[])])[0].shape, [1]);
        }
        for (items_max, dims) in [(None, Fixed(2)), (None, Free), (Some(8), Fixed(1))] {
            let told = declared(items_max, &[dims]).hold(&file(&[], &[])).unwrap_err();
            assert!(told.contains("the file has \"x\" (FP32 [])"), "{told}");
        }
    }

    #[test]
    fn what_the_file_has_without_a_shape_has_the_one_that_is_declared() {
        let unshaped = Signature { unshaped: vec!["x".to_owned(), "y".to_owned()], ..file(&[], &[]) };
        let held = |items_max, dims: &[Dim]| {
            let (inputs, outputs) = (vec![own("x", dims, None)], vec![own("y", &[Fixed(2)], None)]);
            Declared { items_max, inputs, outputs }.hold(&unshaped).unwrap().0
        };
        let shapes = |of: &Signature| [of.inputs[0].shape.clone(), of.outputs[0].shape.clone()];
        assert_eq!(shapes(&held(None, &[Free, Fixed(4)])), [vec![Free, Fixed(4)], vec![Fixed(2)]]);
        assert_eq!(shapes(&held(Some(8), &[Fixed(1)])), [vec![Free, Fixed(1)], vec![Free, Fixed(2)]]);
        // Triton passes such a model a single number.
        assert_eq!(shapes(&held(None, &[Fixed(1), Fixed(1)]))[0], []);
        for told in [shaped(&unshaped), Declared::default().hold(&unshaped).map(|_| ())] {
            assert!(told.unwrap_err().starts_with("input \"x\" has no shape in the file"));
        }
        let only_output = Signature { unshaped: vec!["y".to_owned()], ..file(&[4], &[]) };
        assert_eq!(shaped(&only_output), Ok(()));
    }

    #[test]
    fn an_optional_input_that_the_file_has_a_value_for_is_left_out() {
        let optional = DeclaredTensor { optional: true, ..own("w", &[Fixed(1)], None) };
        let inputs = vec![own("x", &[Fixed(4)], None), optional.clone()];
        let declared = Declared { items_max: None, inputs, outputs: Vec::new() };
        let file = Signature { defaulted: vec!["w".to_owned()], ..file(&[4], &[2]) };
        let (inside, interface) = declared.hold(&file).unwrap();
        assert_eq!((&inside, &interface.signature), (&file, &file));
        assert_eq!(declared.left_out(&file).collect::<Vec<_>>(), ["w"]);
        // Inputs that the file does not have, and required inputs, are never left out.
        let none = Signature { defaulted: Vec::new(), ..file.clone() };
        let told = declared.hold(&none).unwrap_err();
        assert!(told.contains("input \"w\" (FP32 [1]) is declared, but the file has \"x\""), "{told}");
        let required = DeclaredTensor { optional: false, ..optional };
        let declared = Declared { inputs: vec![own("x", &[Fixed(4)], None), required], ..declared };
        assert!(declared.hold(&file).unwrap_err().contains("input \"w\""));
    }

    #[test]
    fn requests_have_the_order_of_the_declaration_and_only_the_outputs_in_it() {
        let two = |a: &str, b: &str| vec![spec(a, DataType::Fp32, &[2]), spec(b, DataType::Fp32, &[3])];
        let file = Signature {
            platform: "test".into(),
            inputs: two("a", "b"),
            outputs: two("y", "z"),
            defaulted: Vec::new(),
            unshaped: Vec::new(),
            left_out: Vec::new(),
        };
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
