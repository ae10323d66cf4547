//! What a model is given where nobody says what: the shapes of its forward passes.

use crate::{
    engine::{DataType, Dim, Signature, TensorSpec},
    models::Model,
};

/// Input types and shapes for a forward pass: the pixels of an image, [`GUESS`] for extents that nobody fixed.
pub(super) fn warm_shapes(signature: &Signature, model: &Model, size: usize) -> Vec<(DataType, Vec<usize>)> {
    signature
        .inputs
        .iter()
        .enumerate()
        .map(|(index, input)| {
            let mut datatype = input.datatype;
            let fixed = |dim: &Dim| if let Dim::Fixed(n) = dim { *n } else { GUESS };
            let mut shape: Vec<usize> = input.shape.iter().map(fixed).collect();
            match (index, &model.image) {
                (0, Some(image)) => {
                    let [width, height] = image.size().unwrap_or([GUESS as u32; 2]);
                    shape = image.item_shape(width, height);
                    if let Some(pixels) = &image.pixels {
                        (datatype, shape) = (DataType::Uint8, pixels.shape(width, height));
                    }
                }
                (_, Some(image)) => shape = image.size_shape(),
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

/// An extent that most networks which take any extent will take.
pub(super) const GUESS: usize = 64;

/// Whether [`warm_shapes`] had to guess an extent, or what strings say: empty ones are no numbers where those are meant.
pub(super) fn guessed(signature: &Signature, model: &Model) -> bool {
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
    signature.inputs.iter().any(is_guess)
}
