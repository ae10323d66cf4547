//! Which of a model's inputs an image becomes, and what the others are given.

use super::Axes;
use crate::{
    engine::{DataType, Dim, Signature, Tensor, TensorSpec, onnx::outline::Outline, show},
    image,
    models::{images::size_bytes, manifest::Input},
    tasks::{SizeOrder, Task},
};

/// The index of the input that an image becomes: the one that the author names, else the only one that has the form of an image and is
/// given nothing else. If none has, the first of those that are given nothing: why it takes no image is told later.
///
/// # Errors
/// A name that no input has, and several inputs that could be it.
pub(in crate::models) fn of_image(
    input: &Input,
    task: &Task,
    signature: &Signature,
    outline: &Outline,
) -> Result<usize, String> {
    let inputs = &signature.inputs;
    if let Some(name) = &input.name {
        return inputs.iter().position(|spec| spec.name == *name).ok_or_else(|| {
            format!("input.name is {name:?}, expected that of an input; the model has {}", names(signature))
        });
    }
    let size = size_input(task);
    let open = |spec: &TensorSpec| {
        !input.constants.contains_key(&spec.name) && size.is_none_or(|size| size != spec.name)
    };
    let open: Vec<usize> = (0..inputs.len()).filter(|index| open(&inputs[*index])).collect();
    let of_image = |spec: &TensorSpec| {
        is_convertible(spec) && Axes::find(spec, signature.batching(), input, outline).is_ok()
    };
    let found: Vec<usize> = open.iter().copied().filter(|index| of_image(&inputs[*index])).collect();
    match found[..] {
        [only] => Ok(only),
        [first, _, ..] => {
            let of = |index: usize| format!("{:?}", inputs[index].name);
            Err(format!(
                "an image can become each of {}: say which by input.name = {}, and what the others hold by input.constants; if each \
                 request brings several, {AS_TENSORS}",
                found.iter().copied().map(of).collect::<Vec<_>>().join(", "),
                of(first)
            ))
        }
        [] => Ok(open.first().copied().unwrap_or(0)),
    }
}

/// What is left where images cannot become an input.
pub(super) const AS_TENSORS: &str = "serve it with task = \"tensors\" and no [input]";

/// Whether images can become the type of an input.
pub(super) fn is_convertible(spec: &TensorSpec) -> bool {
    image::DataType::from_name(spec.datatype.name()).is_some()
}

/// The input for the size in whose pixels boxes are to come, if the author names one.
fn size_input(task: &Task) -> Option<&str> {
    match task {
        Task::Detect(detect) => detect.size_input.as_deref(),
        _ => None,
    }
}

/// The order in which that input takes the size.
pub(super) fn size_order(task: &Task) -> SizeOrder {
    said_order(task).unwrap_or(SizeOrder::Wh)
}

fn said_order(task: &Task) -> Option<SizeOrder> {
    match task {
        Task::Detect(detect) => detect.size_order,
        _ => None,
    }
}

fn names(signature: &Signature) -> String {
    let names = signature.inputs.iter().map(|input| format!("{:?}", input.name));
    names.collect::<Vec<_>>().join(", ")
}

/// The input that an image becomes, which comes first, and those after it: constants, and the one for the size in whose pixels boxes are
/// to come.
pub(super) fn inputs<'a>(
    input: &Input,
    task: &Task,
    signature: &'a Signature,
) -> Result<(&'a TensorSpec, &'a [TensorSpec]), String> {
    let (image, others) = signature.inputs.split_first().ok_or("the model has no inputs")?;
    let has = |name: &str| others.iter().any(|other| other.name == name);
    if let Some(name) = input.constants.keys().find(|name| !has(name)) {
        return Err(format!(
            "input.constants has {name:?}, expected inputs beside that of the image ({:?}); the model has {}",
            image.name,
            names(signature)
        ));
    }
    let mut rest = others.iter().filter(|other| !input.constants.contains_key(&other.name));
    match (size_input(task), rest.next(), rest.next()) {
        (None, None, _) => Ok((image, others)),
        (Some(name), Some(size), None) if size.name == name && is_factor(name) => Err(format!(
            "detect.size_input: input {name:?} seems to take the factor by which an image was resized, which is no width and height: \
             for boxes in pixels of the input set input.constants = {{ {name:?} = 1 }}"
        )),
        (Some(name), Some(size), None)
            if size.name == name && is_shape(name) && said_order(task).is_none() =>
        {
            Err(format!(
                "detect.size_input: input {name:?} seems to take the height before the width: set detect.size_order = \"hw\" if it does, \
             \"wh\" if it does not"
            ))
        }
        (Some(name), Some(size), None) if size.name == name => Ok((image, others)),
        (Some(name), ..) => Err(format!(
            "detect.size_input is {name:?}, expected the one input beside that of the image and input.constants; the model has {}",
            names(signature)
        )),
        (None, ..) => Err(format!(
            "the model has {} inputs ({}); an image becomes one only, and of a detector detect.size_input may name a second \
             that takes the image's width and height; input.constants = {{ NAME = 1 }} fills those that are always the same (masks of \
             pixels that count, factors): else {AS_TENSORS}",
            signature.inputs.len(),
            names(signature)
        )),
    }
}

/// The shape for one image of an input that is always the same. Axes that the file leaves open have the extents of `settled` ones of their
/// name; `names` are those of its own axes. `None` if others are open than these and the batch.
pub(super) fn filled(
    spec: &TensorSpec,
    batch_axis: bool,
    names: &[String],
    settled: &[(&str, usize)],
) -> Option<Vec<usize>> {
    let extents = spec.shape.iter().enumerate().map(|(axis, extent)| match extent {
        Dim::Fixed(extent) => Some(*extent),
        Dim::Free if axis == 0 && batch_axis => Some(1),
        Dim::Free => {
            let name = names.get(axis)?;
            settled.iter().find(|(settled, _)| settled == name).map(|(_, extent)| *extent)
        }
    });
    extents.collect()
}

/// A tensor of this shape for an input that holds the same number everywhere.
pub(super) fn constant(spec: &TensorSpec, shape: Option<Vec<usize>>, number: f64) -> Result<Tensor, String> {
    let element = match spec.datatype {
        DataType::Fp32 => Some((number as f32).to_le_bytes().to_vec()),
        DataType::Fp16 => Some(half::f16::from_f64(number))
            .filter(|number| number.is_finite())
            .map(|number| number.to_le_bytes().to_vec()),
        _ if number.fract() != 0.0 => None,
        DataType::Int64 => Some((number as i64).to_le_bytes().to_vec()),
        DataType::Int32 => Some((number as i32).to_le_bytes().to_vec()),
        DataType::Uint8 if (0.0..=255.0).contains(&number) => Some(vec![number as u8]),
        DataType::Bool if number == 0.0 || number == 1.0 => Some(vec![number as u8]),
        _ => None,
    };
    match (shape, element) {
        (Some(shape), Some(element)) => {
            let data = element.repeat(shape.iter().product()).into();
            Ok(Tensor { datatype: spec.datatype, shape, data })
        }
        _ => Err(format!(
            "input.constants: input {:?} is {} of shape {}, and {number} can fill FP32, up to ±65504 also FP16, a whole number also INT64 \
             and INT32, 0 to 255 UINT8, and 0 or 1 BOOL, of which nothing but the batch and axes that the file names as those of the image are \
             open (the image's sides are width and height in [input])",
            spec.name,
            spec.datatype,
            show(&spec.shape)
        )),
    }
}

/// Whether an input of this name takes the factor by which an image was resized, as in PaddleDetection's models. With a factor of 1,
/// boxes come in pixels of the input.
fn is_factor(name: &str) -> bool {
    name.to_ascii_lowercase().contains("scale")
}

/// Whether an input of this name is told a shape, whose height comes first, as in PaddleDetection's models and a YOLOv3 of Keras.
fn is_shape(name: &str) -> bool {
    name.to_ascii_lowercase().contains("shape")
}

/// The type of an input for sizes.
pub(super) fn size_type(size: &TensorSpec, batch_axis: bool) -> Result<DataType, String> {
    let shape: Vec<usize> = batch_axis.then_some(1).into_iter().chain([2]).collect();
    if size.takes(&shape) && size_bytes(size.datatype, [0; 2]).is_some() {
        return Ok(size.datatype);
    }
    Err(format!(
        "detect.size_input: input {:?} is {} of shape {}, expected a width and a height, {shape:?}, of INT64, INT32 or FP32",
        size.name,
        size.datatype,
        show(&size.shape)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        models::manifest::Manifest,
        tasks::testing::{signature, spec},
    };

    fn chosen(manifest: &str, inputs: &[TensorSpec]) -> Result<String, String> {
        let manifest = Manifest::parse(manifest).unwrap();
        let mut signature = signature(&[("out", &[-1, 10])]);
        signature.inputs = inputs.to_vec();
        let at = of_image(&manifest.input.unwrap(), &manifest.task, &signature, &Outline::default())?;
        Ok(signature.inputs[at].name.clone())
    }

    #[test]
    fn a_constant_is_one_that_its_type_can_hold() {
        for (datatype, number, expected) in [
            (DataType::Uint8, 255.0, Some(255)),
            (DataType::Uint8, 256.0, None),
            (DataType::Uint8, -1.0, None),
            (DataType::Bool, 1.0, Some(1)),
            (DataType::Bool, 2.0, None),
            (DataType::Int32, -2.0, Some(254)),
            (DataType::Int32, 0.5, None),
            (DataType::Fp16, 65505.0, Some(0xff)),
            (DataType::Fp16, 65520.0, None),
            (DataType::Bf16, 1.0, None),
        ] {
            let spec = spec("mask", datatype, &[-1, 2]);
            let filled = constant(&spec, filled(&spec, true, &[], &[]), number);
            assert_eq!(filled.as_ref().ok().map(|tensor| tensor.data[0]), expected, "{datatype} {filled:?}");
        }
        let threshold = spec("threshold", DataType::Fp16, &[]);
        let half = constant(&threshold, filled(&threshold, true, &[], &[]), 0.1).unwrap();
        assert_eq!((half.shape.len(), half.to_f32().unwrap()), (0, vec![half::f16::from_f64(0.1).to_f32()]));
    }

    #[test]
    fn an_image_becomes_the_only_input_of_its_form_wherever_that_is() {
        let shape = spec("im_shape", DataType::Fp32, &[-1, 2]);
        let image = spec("image", DataType::Fp32, &[-1, 3, 64, 96]);
        let mask = spec("mask", DataType::Fp32, &[-1, 64, 96]);
        let ids = spec("ids", DataType::Int64, &[-1, 3, 8, 8]);
        let is = |manifest: &str, inputs: &[&TensorSpec]| {
            let inputs: Vec<_> = inputs.iter().map(|input| (*input).clone()).collect();
            chosen(&format!("task = \"detect\"\n{manifest}"), &inputs)
        };
        let image_is = |name: &str| Ok(name.to_owned());
        assert_eq!(is("", &[&shape, &image]), image_is("image"));
        assert_eq!(is("", &[&image, &shape]), image_is("image"));
        assert_eq!(is("", &[&ids, &image]), image_is("image"), "no image becomes INT64");
        assert_eq!(is("[input]\nconstants = { mask = 1 }", &[&mask, &image]), image_is("image"));
        assert_eq!(is("[input]\nname = \"mask\"", &[&image, &mask]), image_is("mask"));
        let both = is("", &[&shape, &mask, &image]).unwrap_err();
        assert!(
            both.starts_with(
                "an image can become each of \"mask\", \"image\": say which by input.name = \"mask\""
            ),
            "{both}"
        );
        assert!(
            both.ends_with("if each request brings several, serve it with task = \"tensors\" and no [input]"),
            "{both}"
        );
        let wrong = is("[input]\nname = \"pixels\"", &[&shape, &image]).unwrap_err();
        assert_eq!(
            wrong,
            "input.name is \"pixels\", expected that of an input; the model has \"im_shape\", \"image\""
        );
        // Why it takes no image is told later.
        assert_eq!(is("[input]\nconstants = { im_shape = 1 }", &[&shape, &ids]), image_is("ids"));
        assert_eq!(is("[input]\nconstants = { im_shape = 1 }", &[&shape]), image_is("im_shape"));
    }
}
