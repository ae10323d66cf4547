//! The sizes of a model's batches, and what its author is told of them.

use crate::{
    batch::{Padding, Rules},
    engine::{Batching, DataType, Dim, Signature, TensorSpec, show},
    models::{Engine, ImageInput, Manifest, Source, manifest},
};

/// The number of items in each batch of a model that takes images, if its file fixes it at more than one.
pub(super) fn fixed_batch(source: &Source, signature: &Signature) -> Option<usize> {
    let manifest = &source.manifest;
    let items = signature.fixed_first().filter(|items| (2..=manifest::ITEMS_MAX).contains(items))?;
    // The first axis of an image may be its height, or its channels.
    let has_batches = signature.inputs.iter().any(|input| input.shape.len() == 4);
    let takes = manifest.input.is_some() && manifest.declared.is_none();
    (takes && has_batches && manifest.batch.no_axis != Some(true)).then_some(items)
}

/// Batches of always so many items, filled up where fewer wait.
pub(super) fn fixed_rules(source: &Source, batching: Batching, items: usize) -> Result<Rules, String> {
    let (manifest, batch) = (&source.manifest, &source.manifest.batch);
    let to_do =
        "export it with a free batch axis (with torch: dynamic_shapes=({0: \"batch\"},)), or one of 1";
    if batching != Batching::Dynamic {
        return Err(format!(
            "the file has its batch axis fixed at {items}, and each request is to be a run of its own: {to_do}"
        ));
    }
    let asked = batch.sizes.clone().or(batch.items_max.map(|items| vec![items]));
    if asked.as_ref().is_some_and(|asked| *asked != [items]) {
        return Err(format!(
            "[batch] asks for batches of {}, but the file has its batch axis fixed at {items}: leave items_max and sizes out, or {to_do}",
            batch.largest()
        ));
    }
    tracing::info!(
        model = source.name,
        version = source.version,
        "the file has its batch axis fixed at {items}: up to {items} images share a pass, and one takes as long as {items} ({to_do})"
    );
    Ok(Rules {
        sizes: vec![items],
        padding: Padding::Everywhere,
        whole: false,
        wait_max: batch.wait_max,
        weight: batch.weight,
        queue: manifest.queue.policies.clone(),
    })
}

/// Batch sizes as set, or powers of two up to the largest; only 1 for a model that does not batch.
pub(super) fn rules(
    manifest: &Manifest,
    batching: Batching,
    alone_max: Option<usize>,
    signature: &Signature,
) -> Result<Rules, String> {
    let asked = &manifest.batch;
    let largest = match &asked.sizes {
        // The declared size limits requests here, and such a model takes requests unbatched.
        _ if manifest.declared.is_some() && (alone_max.is_some() || has_strings(signature)) => None,
        Some(sizes) => sizes.last().copied(),
        None => asked.items_max,
    };
    if batching != Batching::Dynamic && largest.is_some_and(|largest| largest > 1) {
        let what = match batching {
            _ if has_strings(signature) => "takes or gives strings, which are run request by request",
            _ if asked.no_axis == Some(true) => "has a first axis that does not count items",
            Batching::One => "has its batch axis fixed at 1",
            _ => "has no batch axis that is free in all inputs and outputs",
        };
        let (asked, or) = match manifest.declared {
            Some(_) => ("max_batch_size", "set max_batch_size to 0"),
            None => ("[batch]", "leave items_max and sizes out"),
        };
        return Err(format!(
            "{asked} asks for up to {} items, but the model {what}{}: export it with a dynamic batch axis (with torch: \
             dynamic_shapes=({}{{0: \"batch\"}},)), or {or}",
            largest.unwrap_or(1),
            first_fixed(signature),
            "{0: \"batch\"}, ".repeat(signature.inputs.len().saturating_sub(1))
        ));
    }
    let sizes = match (&asked.sizes, batching) {
        (_, Batching::One | Batching::Whole) => vec![1],
        (Some(sizes), Batching::Dynamic) => sizes.clone(),
        (None, Batching::Dynamic) => powers_of_two(asked.items_max.unwrap_or(manifest::BATCH_ITEMS_MAX)),
    };
    Ok(Rules {
        sizes,
        padding: match (&manifest.engine, &asked.sizes) {
            (Engine::GaussMle(_), _) => Padding::Never,
            (Engine::Onnx, None) => Padding::OnGpus,
            (Engine::Onnx, Some(_)) => Padding::Everywhere,
        },
        whole: batching == Batching::Whole,
        wait_max: asked.wait_max,
        weight: asked.weight,
        queue: manifest.queue.policies.clone(),
    })
}

/// Names a tensor whose first axis is not free, to show where the export has to change.
fn first_fixed(signature: &Signature) -> String {
    signature
        .inputs
        .iter()
        .chain(&signature.outputs)
        .find_map(|spec| match spec.shape.first() {
            Some(Dim::Fixed(n)) => Some(format!(" ({:?} begins with {n})", spec.name)),
            Some(Dim::Free) => None,
            None => Some(format!(" ({:?} has no axis)", spec.name)),
        })
        .unwrap_or_default()
}

/// 1, 2, 4 and so on, and `largest` itself.
pub(in crate::models) fn powers_of_two(largest: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = std::iter::successors(Some(1), |size: &usize| size.checked_mul(2))
        .take_while(|size| *size < largest)
        .collect();
    sizes.push(largest.max(1));
    sizes
}

/// Whether waiting for company makes sense.
pub(super) fn check_wait(source: &Source, rules: &Rules) -> Result<(), String> {
    if rules.sizes != [1] || rules.wait_max.is_zero() {
        return Ok(());
    }
    if source.manifest.declared.is_none() {
        return Err(
            "batch.wait_ms_max waits for company, and the model takes one item at a time: leave it out"
                .to_owned(),
        );
    }
    tracing::warn!(
        model = source.name,
        "dynamic_batching.max_queue_delay_microseconds: nothing is waited for, since the model takes one item at a time"
    );
    Ok(())
}

/// Why images run one at a time although their input has a free batch axis: other inputs have none.
pub(super) fn unbatched(source: &Source, signature: &Signature, image: &ImageInput) -> Option<String> {
    let has_axis = |spec: &TensorSpec| spec.shape.first() == Some(&Dim::Free);
    let (first, others) = signature.inputs.split_first()?;
    let without: Vec<_> = others.iter().filter(|other| !has_axis(other)).collect();
    let could = image.batch_axis && has_axis(first) && source.manifest.batch.no_axis != Some(true);
    (could && !without.is_empty()).then(|| {
        let each = without.iter().map(|spec| format!("{:?} of shape {}", spec.name, show(&spec.shape)));
        format!(
            "images run one at a time, since input {} has no free batch axis: export it with one (its first axis as free as that of {:?}) \
             to have them share passes",
            each.collect::<Vec<_>>().join(", input "),
            first.name
        )
    })
}

/// Whether the model has inputs or outputs of strings. Their rows differ in length, so such a model runs request by request.
pub(super) fn has_strings(signature: &Signature) -> bool {
    signature.inputs.iter().chain(&signature.outputs).any(|spec| spec.datatype == DataType::Bytes)
}
