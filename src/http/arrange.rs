//! Tensors of a request in the order and the form that its model takes.

use super::{
    admission::{Permit, texts},
    wire::request::{Input, fits},
};
use crate::{
    engine::{Tensor, TensorSpec},
    error::{InferError, bad},
    models::Model,
    words::clipped,
};

/// Puts a request's tensors into the model's order and form, and checks each against its specification. Also counts the items, and sets
/// aside memory for texts.
pub(super) fn arrange(
    model: &Model,
    given: Vec<Input>,
    permit: Option<&Permit>,
) -> Result<(Vec<Tensor>, usize), InferError> {
    let specs = &model.interface.signature.inputs;
    let mut slots: Vec<Option<Tensor>> = specs.iter().map(|_| None).collect();
    for Input { name, tensor, .. } in given {
        // A raw request has no name for its only input.
        let named = |spec: &TensorSpec| spec.name == name || (name.is_empty() && specs.len() == 1);
        let index = specs.iter().position(named).ok_or_else(|| {
            let name = clipped(&name);
            bad(format!("model {:?} has no input {name:?}; it has {}", model.name, names(specs)))
        })?;
        fits(&model.takes, &specs[index].name, tensor.datatype, &tensor.shape)?;
        if slots[index].replace(tensor).is_some() {
            return Err(bad(format!("input {name:?} is given twice")));
        }
    }
    let inputs = slots
        .into_iter()
        .zip(specs)
        .map(|(slot, spec)| {
            slot.ok_or_else(|| bad(format!("input {:?} is missing; expected {}", spec.name, names(specs))))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let counts_items = !model.rules.whole || model.alone_max.is_some();
    // Other axes may be empty, such as the past of a decoder that begins.
    let has_none = |input: &Tensor| match model.is_pixels(input) {
        true => input.elements() == 0,
        false => counts_items && input.shape.first() == Some(&0),
    };
    if let Some((spec, input)) = specs.iter().zip(&inputs).find(|(_, input)| has_none(input)) {
        return Err(bad(format!("input {:?} has shape {:?}: it has no elements", spec.name, input.shape)));
    }
    texts::cover(permit, &inputs)?;
    // Pixels are left to the engine.
    let inward = |inputs: Vec<Tensor>| match &inputs[..] {
        [only] if model.is_pixels(only) => inputs,
        _ => model.interface.inward(&inputs),
    };
    if model.rules.whole {
        return Ok((inward(inputs), 1));
    }
    let items = inputs[0].shape[0];
    if let Some(index) = inputs.iter().position(|input| input.shape[0] != items) {
        return Err(bad(format!(
            "input {:?} has {} items and input {:?} has {items}: the batch axis must be the same (where their first axes count different \
             things, batch.axis = \"none\" in the model's model.toml says so)",
            specs[index].name, inputs[index].shape[0], specs[0].name
        )));
    }
    Ok((inward(inputs), items))
}

fn names(specs: &[TensorSpec]) -> String {
    specs.iter().map(|spec| format!("{:?} ({})", spec.name, spec.datatype)).collect::<Vec<_>>().join(", ")
}
