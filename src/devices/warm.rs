//! Default inputs for forward passes: their shapes, and zeros in them.

use crate::{
    engine::{DataType, Dim, Tensor, TensorSpec},
    models::{ImageInput, Model},
};

/// Input types and shapes for a forward pass: an image's pixels, and [`GUESS`] for free extents.
pub(super) fn warm_shapes(model: &Model, size: usize) -> Vec<(DataType, Vec<usize>)> {
    model
        .signature
        .inputs
        .iter()
        .enumerate()
        .map(|(index, input)| {
            let mut datatype = input.datatype;
            let fixed = |dim: &Dim| if let Dim::Fixed(n) = dim { *n } else { GUESS };
            let mut shape: Vec<usize> = input.shape.iter().map(fixed).collect();
            match (index, &model.image) {
                (0, Some(image)) => {
                    // As requests bring it: as pixels, where the engine converts them itself.
                    let form = image.form(1, GUESS as u32, GUESS as u32);
                    (datatype, shape) = (form.datatype, form.shape);
                }
                (_, Some(image)) => shape = behind(image).nth(index - 1).map_or(shape, |tensor| tensor.shape),
                _ => {}
            }
            if let (0, Some(fit)) = (index, &model.fit) {
                shape = vec![1, fit.box_px(), fit.box_px()];
            }
            if !model.rules.whole {
                shape[0] = size;
            } else if let (None, None, Some(Dim::Free)) =
                (&model.image, &model.manifest.declared, input.shape.first())
            {
                // A free first axis that is no batch axis gets an extent of 1, whatever it counts.
                shape[0] = 1;
            }
            (datatype, shape)
        })
        .collect()
}

/// Zeros of these shapes. Inputs that accompany an image have their usual values: networks divide and resize by them, and may refuse 0.
pub(super) fn zeros(shapes: Vec<(DataType, Vec<usize>)>, model: &Model) -> Vec<Tensor> {
    let behind: Vec<Tensor> = model.image.iter().flat_map(behind).collect();
    let zeros = shapes.into_iter().enumerate().map(|(index, (datatype, shape))| {
        match index.checked_sub(1).and_then(|index| behind.get(index)) {
            Some(one) => {
                let items = shape.iter().product::<usize>() / one.shape.iter().product::<usize>().max(1);
                Tensor { datatype, shape, data: one.data.repeat(items).into() }
            }
            None => Tensor::zeros(datatype, &shape),
        }
    });
    zeros.collect()
}

/// The inputs that accompany an image of a guessed size.
fn behind(image: &ImageInput) -> impl Iterator<Item = Tensor> {
    image.behind(GUESS as u32, GUESS as u32)
}

/// An extent that most networks with free extents accept.
pub(super) const GUESS: usize = 64;

/// Whether [`warm_shapes`] had to guess an extent, or the content of strings: empty ones are no numbers where numbers are meant.
pub(super) fn guessed(model: &Model) -> bool {
    if model.fit.is_some() {
        return false;
    }
    if let Some(image) = &model.image {
        return image.size().is_none();
    }
    let first = usize::from(!model.rules.whole);
    let is_guess = |input: &TensorSpec| {
        input.datatype == DataType::Bytes || input.shape.iter().skip(first).any(|dim| *dim == Dim::Free)
    };
    model.signature.inputs.iter().any(is_guess)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        models::testing::{model_of, source},
        tasks::testing::{signature, spec},
    };

    #[test]
    fn a_side_that_the_file_fixes_is_not_guessed_beside_one_that_it_leaves_open() {
        let shapes = |datatype, shape: &[i64]| {
            let source = source("m", "1", "task = \"embed\"\n[input]\nresize = \"none\"");
            let mut signature = signature(&[("y", &[-1, 10])]);
            signature.inputs = vec![spec("x", datatype, shape)];
            let model = model_of(&source, signature).unwrap();
            warm_shapes(&model, 2)
        };
        for datatype in [DataType::Fp32, DataType::Uint8] {
            assert_eq!(shapes(datatype, &[-1, 48, -1, 3]), [(DataType::Uint8, vec![2, 48, GUESS, 3])]);
            assert_eq!(shapes(datatype, &[-1, -1, 96, 3]), [(DataType::Uint8, vec![2, GUESS, 96, 3])]);
        }
    }

    #[test]
    fn what_stands_behind_an_image_is_there_in_every_row_of_a_forward_pass() {
        let manifest = "task = \"detect\"\n[input]\nconstants = { factor = 2 }\n[detect]\nsize_input = \"sizes\"\n\
                        boxes = \"boxes\"\nscores = \"scores\"\nclasses = \"classes\"";
        let source = source("m", "1", manifest);
        let mut signature = signature(&[("boxes", &[-1, 9, 4]), ("scores", &[-1, 9]), ("classes", &[-1, 9])]);
        signature.inputs = vec![
            spec("images", DataType::Fp32, &[-1, 3, 48, 96]),
            spec("factor", DataType::Fp32, &[-1, 1]),
            spec("sizes", DataType::Int64, &[-1, 2]),
        ];
        let model = model_of(&source, signature).unwrap();
        let numbers = zeros(warm_shapes(&model, 2), &model);
        let numbers: Vec<_> = numbers.iter().map(|tensor| tensor.to_f32().unwrap()).collect();
        assert!(numbers[0].iter().all(|number| *number == 0.0));
        assert_eq!(numbers[1..], [vec![2.0, 2.0], vec![96.0, 48.0, 96.0, 48.0]]);
    }
}
