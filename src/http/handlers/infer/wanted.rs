//! Which of a model's outputs a request asks for, and in which form.

use crate::{
    engine::Tensor,
    error::{InferError, bad},
    http::wire::{classification, model_config, reply::Output, request::Requested, shared_memory::Place},
    models::Model,
    words::clipped,
};

/// An output that is asked for.
#[derive(Clone)]
pub(super) struct Wanted {
    /// Its index among the model's outputs.
    pub(super) index: usize,
    pub(super) binary: bool,
    /// How many of its best classes to return instead of its values.
    pub(super) classes: Option<u64>,
    /// Where it goes instead of into the reply.
    pub(super) place: Option<Place>,
}

/// An output as it was asked for.
pub(super) fn output(
    model: &Model,
    there: &[(String, Tensor)],
    wanted: &Wanted,
) -> Result<Output, InferError> {
    let (name, tensor) = &there[wanted.index];
    let tensor = match wanted.classes {
        None => tensor.clone(),
        Some(k) => {
            // As the configuration says it (`max_batch_size` above 0).
            let batched = model_config::has_batch_axis(model);
            classification::best(name, tensor, batched, k, |classes| model.labels_of(name, Some(classes)))?
        }
    };
    Ok(Output { name: name.clone(), tensor, binary: wanted.binary, place: wanted.place.clone() })
}

/// The outputs that are asked for; all of them if none is named.
pub(super) fn wanted(
    model: &Model,
    (outputs, binary_default): &(Vec<Requested>, bool),
    there: &[&str],
) -> Result<Vec<Wanted>, InferError> {
    // Triton orders its answers by name, whatever order was asked for.
    let in_order = |mut wanted: Vec<Wanted>| {
        if model.manifest.by_name {
            wanted.sort_by_key(|wanted| there[wanted.index]);
        }
        wanted
    };
    if outputs.is_empty() {
        let plain = |index| Wanted { index, binary: *binary_default, classes: None, place: None };
        return Ok(in_order((0..there.len()).map(plain).collect()));
    }
    let wanted = outputs
        .iter()
        .map(|asked| {
            let index = there.iter().position(|name| *name == asked.name).ok_or_else(|| {
                let (name, there) = (clipped(&asked.name), there.join(", "));
                bad(format!("model {:?} has no output {name:?}; it has {there}", model.name))
            })?;
            // Clients that want no classes send 0.
            let classes = asked.classification.filter(|k| *k > 0);
            Ok(Wanted { index, binary: asked.binary, classes, place: asked.place.clone() })
        })
        .collect::<Result<_, InferError>>()?;
    Ok(in_order(wanted))
}

/// The outputs that requests may ask for.
pub(super) fn shown(model: &Model) -> Vec<&str> {
    model.interface.signature.outputs.iter().map(|spec| spec.name.as_str()).collect()
}
