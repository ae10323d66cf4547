//! Makes a [`Model`] from a manifest and the signature of its file. Fills in what the author leaves open, and refuses what does not
//! fit, with advice on what to change.

mod sizes;

pub(super) use sizes::powers_of_two;

use super::{
    Declared, Engine, ImageInput, Interface, Manifest, Model, Source, activation, declared, images::Slabs,
    input, ultralytics,
};
use crate::{
    batch::ModelKey,
    engine::{
        Batching, Ends, Signature,
        gauss_mle::frames::FrameMemory,
        onnx::{
            operators::{self, Operators},
            outline::Outline,
        },
        staging::{Memory, Staging},
    },
    tasks::{Labels, Task, localize::Settings},
    telemetry::statistics::Statistics,
};
use sizes::{check_wait, fixed_batch, fixed_rules, has_strings, rules, unbatched};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

impl Model {
    /// Checks a manifest against the model's signature, and fills in what it leaves open. Images are decoded into memory of the kind
    /// `memory`, which suits the model's engines.
    ///
    /// # Errors
    /// Why the model cannot be served with this manifest, and what to change.
    pub fn resolve(
        key: ModelKey,
        source: &Source,
        mut signature: Signature,
        timeout: Duration,
        memory: &Memory,
    ) -> Result<Model, String> {
        let manifest = &source.manifest;
        let but = no_tensors(source, &signature).map(|told| format!("; {told}")).unwrap_or_default();
        let but = |why: String| why + &but;
        let unasked = unasked(source, &signature);
        signature.leave_out(&unasked);
        let fixed = fixed_batch(source, &signature);
        let signature = if fixed.is_some() { signature.with_free_first() } else { signature };
        // A fitter has no such file.
        let outline = Outline::of(&source.path).unwrap_or_default();
        let (signature, first) = image_first(source, signature, &outline)?;
        let (signature, interface) = interface(source, signature).map_err(but)?;
        let mut image = match &manifest.input {
            None => None,
            Some(input) => Some(input::resolve(input, &manifest.task, &signature, &outline)?),
        };
        let (mut task, labels) = ultralytics::complete(source, &signature, &outline)?;
        activation::dequantize(&mut task, source, &signature, &outline);
        let mut task = resolved(&task, &signature, &labels, image.as_ref()).map_err(but)?;
        refuse_chosen(&task, &outline)?;
        let activation_by = activation::settle(&mut task, source, &outline);
        tell(source, &signature, &task, image.as_ref(), &outline);
        let operators = &outline.operators;
        let (batching, alone_max) = batching(source, &signature, &task, image.as_ref(), operators);
        let rules = match fixed {
            Some(items) => fixed_rules(source, batching, items)?,
            None => rules(manifest, batching, alone_max, &signature)?,
        };
        check_wait(source, &rules)?;
        if let Some(image) = &mut image
            && image.size().is_some()
            && image.planes.is_none()
        {
            image.staging = Some(slabs(image, rules.largest(), memory)?);
        }
        let mut takes = interface.signature.inputs.clone();
        if let (Some(image), [only]) = (&image, &interface.signature.inputs[..]) {
            takes.extend(image.pixel_specs(only));
        }
        let ends = Ends {
            pixels: image.as_ref().and_then(|image| image.pixels.clone()),
            reduction: task.reduction(&signature),
            first,
            left_out: unasked,
        };
        let for_frames = manifest.engine != Engine::Onnx && memory.is_pinned();
        let frames = for_frames.then(|| FrameMemory::new(memory.clone())).transpose()?;
        let fit = fit(manifest)?;
        Ok(Model {
            key,
            name: Arc::from(source.name.as_str()),
            version: Arc::from(source.version.as_str()),
            signature,
            interface,
            takes,
            ends,
            batching,
            alone_max,
            task,
            activation_by,
            labels,
            output_labels: source.output_labels.clone(),
            image,
            fit,
            frames,
            quantizes: operators::quantizes(operators),
            rules,
            priority: manifest.priority,
            priorities: manifest.queue.priorities,
            timeout: manifest.timeout.unwrap_or(timeout),
            instances: manifest.placement.instances,
            may_use_gpu: false,
            manifest: manifest.clone(),
            statistics: Statistics::default(),
            nameless: AtomicBool::default(),
            looks: AtomicUsize::default(),
        })
    }
}

/// The signature with the input that images become before the others, and the name of that input if it is not the file's first.
fn image_first(
    source: &Source,
    mut signature: Signature,
    outline: &Outline,
) -> Result<(Signature, Option<String>), String> {
    let Some(input) = &source.manifest.input else { return Ok((signature, None)) };
    let at = input::of_image(input, &source.manifest.task, &signature, outline)?;
    let first = (at > 0).then(|| signature.inputs[at].name.clone());
    if let Some(name) = &first {
        signature.put_first(name);
    }
    Ok((signature, first))
}

/// The model's signature as its author declares it, and as requests see it.
fn interface(source: &Source, signature: Signature) -> Result<(Signature, Interface), String> {
    let manifest = &source.manifest;
    match &manifest.declared {
        None if manifest.by_name => Declared::default().hold(&signature),
        None => {
            declared::shaped(&signature)?;
            let interface = Interface::plain(&signature);
            Ok((signature, interface))
        }
        Some(declared) => {
            for input in declared.left_out(&signature) {
                tracing::warn!(
                    model = source.name,
                    version = source.version,
                    input,
                    "the file has a value for this optional input, which no request can replace"
                );
            }
            declared.hold(&signature)
        }
    }
}

/// Logs what there is to say of outputs that are no tensors, and returns it.
fn no_tensors(source: &Source, signature: &Signature) -> Option<String> {
    (!signature.left_out.is_empty()).then(|| {
        let told = format!(
            "outputs that are no tensors are left out: {} (to have them, export them as tensors; of scikit-learn with zipmap=False)",
            quoted(&signature.left_out)
        );
        tracing::info!(model = source.name, version = source.version, "{told}");
        told
    })
}

/// The outputs that nobody can ask for, since the author declares others. Logs which these are.
fn unasked(source: &Source, signature: &Signature) -> Vec<String> {
    let declared = source.manifest.declared.as_ref();
    let unasked = declared.map_or_else(Vec::new, |declared| declared.unasked(signature));
    if !unasked.is_empty() {
        tracing::info!(
            model = source.name,
            version = source.version,
            "outputs that are not declared are not computed: {}",
            quoted(&unasked)
        );
    }
    unasked
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// Logs how pictures become the input, and what its author should know of the outputs.
fn tell(source: &Source, signature: &Signature, task: &Task, image: Option<&ImageInput>, outline: &Outline) {
    for told in task.unread(signature).into_iter().chain(unsaid_threshold(task, signature, outline)) {
        tracing::warn!(model = source.name, version = source.version, "{told}");
    }
    if let (Some(image), Some(input)) = (image, &source.manifest.input) {
        let by = image.told(input);
        let by_file = ultralytics::usual(task, outline).keys();
        let by_default = image.by_default(input).into_iter().filter(|key| !by_file.contains(key));
        let by_default = by_default.collect::<Vec<_>>().join(", ");
        tracing::info!(
            model = source.name,
            version = source.version,
            by_default,
            "a picture becomes its input by: {by}"
        );
        if let Some(mean) = image.mean_beyond_pixels() {
            tracing::warn!(
                model = source.name,
                version = source.version,
                mean,
                "input.mean is more than any pixel of 8 bits has with this input.scale: right for measured values alone; counts of 16-bit \
                 pixels need scale = 257"
            );
        }
        if let Some(told) = unbatched(source, signature, image) {
            tracing::info!(model = source.name, version = source.version, "{told}");
        }
    }
}

/// The task, resolved for a model with this image input, if any.
pub(super) fn resolved(
    task: &Task,
    signature: &Signature,
    labels: &Labels,
    image: Option<&ImageInput>,
) -> Result<Task, String> {
    let batch_axis = image.is_some_and(|image| image.batch_axis);
    task.clone().resolve(signature, labels, image.and_then(ImageInput::size), batch_axis)
}

/// Refuses scores of a classifier that its network has already chosen and put in order: their places are not those of classes.
fn refuse_chosen(task: &Task, outline: &Outline) -> Result<(), String> {
    let Task::Classify(classify) = task else { return Ok(()) };
    let output = classify.output.as_deref().unwrap_or_default();
    match outline.chosen_by(output) {
        None => Ok(()),
        Some(operator) => Err(format!(
            "output {output:?} comes from {operator}, by which the network has chosen among its scores, so that no place in it is that of a \
             class: name the output with the scores before {operator} by classify.output, leave {operator} out at export, or serve it with \
             task = \"tensors\""
        )),
    }
}

/// The warning for a segmenter of one channel that is compared with 0.5 only by default, although nothing shows that it gives
/// probabilities.
fn unsaid_threshold(task: &Task, signature: &Signature, outline: &Outline) -> Option<String> {
    let Task::Segment(segment) = task else { return None };
    let output = segment.compared_unsaid(signature)?;
    outline.ending(output).is_none().then(|| {
        format!(
            "output {output:?} has one channel, which is compared with 0.5, and its network ends in neither Sigmoid nor Softmax: set \
             segment.threshold = 0 if it gives logits, or 0.5 if it gives probabilities; class numbers are to be exported as integers"
        )
    })
}

/// Whether a network suppresses boxes itself while its author says nothing about batching. Many exports suppress only for as many
/// pictures as they were traced with and return nothing for the others; forward passes with zeros do not reveal that.
fn sorts_out_boxes(source: &Source, operators: &Operators) -> bool {
    let Source { name, version, .. } = source;
    let found = !source.manifest.batch.is_said() && operators::suppresses(operators);
    if found {
        tracing::warn!(
            model = name,
            version,
            "the network sorts out boxes itself (NonMaxSuppression), which many exports do for the first picture alone: each request \
             is a run of its own; batch.axis = \"items\" (in a config.pbtxt dynamic_batching) says that it does so for each"
        );
    }
    found
}

/// Whether a network computes quantization scales over all rows of a batch, while its author does not ask for batches of several requests.
fn quantizes_requests(source: &Source, operators: &Operators) -> bool {
    let Source { name, version, manifest, .. } = source;
    // With one item a run, nothing is mixed.
    if manifest.batch.largest() == 1 || !operators::quantizes(operators) {
        return false;
    }
    if manifest.batch.asks_for_batches() {
        tracing::warn!(
            model = name,
            version,
            "the network is quantized as it runs, by what all rows hold, and its author asks for batches of several requests: answers \
             change with what other callers send (without [batch], or dynamic_batching in a config.pbtxt, each request is a run of its own)"
        );
        return false;
    }
    tracing::info!(
        model = name,
        version,
        "the network is quantized as it runs, by what all rows hold: each request is a run of its own (batch.axis = \"items\", or \
         dynamic_batching in a config.pbtxt, has requests put together all the same)"
    );
    true
}

/// Why each request of a network with a free first axis is a run of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Alone {
    /// Nobody knows what the axis counts, or it counts something other than items.
    Uncounted,
    /// It counts items, which influence each other.
    Mixed,
}

/// Whether and why each request is a run of its own, as the author or the network's operators say. Logs what the operators say.
/// `can_batch`: whether the outputs that the task reads can have a batch axis.
fn alone(source: &Source, operators: Option<&Operators>, can_batch: bool) -> Option<Alone> {
    let of_requests = source.manifest.batch.is_of_requests();
    let uncounted = if of_requests { Alone::Mixed } else { Alone::Uncounted };
    match (source.manifest.batch.no_axis, operators) {
        (Some(true), _) => Some(uncounted),
        (None, Some(operators)) if sorts_out_boxes(source, operators) => Some(uncounted),
        (_, Some(operators)) if can_batch && quantizes_requests(source, operators) => Some(Alone::Mixed),
        _ => None,
    }
}

/// How the model treats its first axis. If it takes requests whole although that axis counts items (because of strings, or because each
/// request is a run of its own), also the most rows of a request.
fn batching(
    source: &Source,
    signature: &Signature,
    task: &Task,
    image: Option<&ImageInput>,
    operators: &Operators,
) -> (Batching, Option<usize>) {
    let manifest = &source.manifest;
    // The first axis may be a side or the channels of an image.
    let side = image.is_some_and(|image| !image.batch_axis);
    let whole = side || manifest.declared.as_ref().is_some_and(|declared| declared.items_max.is_none());
    let free = !whole && signature.batching() == Batching::Dynamic;
    let alone = alone(source, free.then_some(operators), task.can_batch(signature)).filter(|_| !whole);
    // In that case the first axis still counts the items of a request.
    let as_requests = alone == Some(Alone::Mixed);
    let has_axis = !whole && alone != Some(Alone::Uncounted);
    let own = if has_axis && task.can_batch(signature) { signature.batching() } else { Batching::Whole };
    if own != Batching::Dynamic || !(as_requests || has_strings(signature)) {
        return (own, None);
    }
    let items_max = manifest.declared.as_ref().and_then(|declared| declared.items_max);
    (Batching::Whole, Some(items_max.unwrap_or_else(|| manifest.batch.largest())))
}

/// The memory that images are decoded into, with `slots` images side by side.
fn slabs(image: &ImageInput, slots: usize, memory: &Memory) -> Result<Slabs, String> {
    let low = match &image.pixels {
        Some(_) => image.preprocess.pixels_shape().into_iter().product(),
        None => image.preprocess.out_bytes(),
    };
    let slab = |bytes| Staging::new(bytes, slots, memory.clone());
    Ok(Slabs { low: slab(low)?, high: slab(2 * low)? })
}

/// A fitter's defaults for requests.
fn fit(manifest: &Manifest) -> Result<Option<Settings>, String> {
    let Engine::GaussMle(fit) = &manifest.engine else { return Ok(None) };
    let mut settings = fit.settings.clone();
    // Builds the camera once; all requests that do not change it share it.
    settings.setting()?;
    Ok(Some(settings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::Padding,
        engine::{
            DataType, Dim, Reduction, kernels::postprocess::ScoreActivation,
            onnx::ending::testing::model as onnx,
        },
        models::{
            Catalog,
            manifest::Input,
            testing::{model_of, source},
        },
        tasks::{
            Activation,
            testing::{signature, spec},
        },
    };

    fn resolve(manifest: &str, input: &[i64], output: &[i64]) -> Result<Model, String> {
        let mut signature = signature(&[("logits", output)]);
        signature.inputs = vec![spec("image", DataType::Fp32, input)];
        model_of(&source("m", "1", manifest), signature)
    }

    #[test]
    fn a_model_that_batches_gets_powers_of_two_and_staging_for_the_largest() {
        let model = resolve("task = \"classify\"", &[-1, 3, 8, 8], &[-1, 10]).unwrap();
        assert_eq!(model.rules.sizes, [1, 2, 4, 8, 16]);
        let image = model.image.unwrap();
        assert_eq!(image.item_shape(500, 400), [1, 3, 8, 8]);
        let (low, high) = (image.form(1, 500, 400), image.form(2, 500, 400));
        assert_eq!((low.datatype, &low.shape[..], low.bytes), (DataType::Uint8, &[1, 8, 8, 3][..], 192));
        assert_eq!((high.datatype, &high.shape[..], high.bytes), (DataType::Uint16, &[1, 8, 8, 3][..], 384));
        assert_eq!(low.staging.unwrap().slot_bytes(), 192);
        assert_eq!(high.staging.unwrap().slot_bytes(), 384);
        let Task::Classify(classify) = model.task else { panic!("expected a classifier") };
        assert_eq!(classify.output.as_deref(), Some("logits"));
    }

    #[test]
    fn probabilities_that_the_network_makes_are_answered_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let activation = |operator: &str, manifest: &str, output: &[i64]| {
            let mut source = source("m", "1", &format!("task = \"classify\"\n{manifest}"));
            source.path = folder.path().join("model.onnx");
            std::fs::write(&source.path, onnx(&[["Gemm", "x", "l"], [operator, "l", "y"]])).unwrap();
            let signature = signature(&[("y", output)]);
            let model = model_of(&source, signature).unwrap();
            let Task::Classify(classify) = model.task else { panic!("expected a classifier") };
            (classify.activation, model.ends.reduction)
        };
        let none = Some(Activation::None);
        let (found, Some(Reduction::Classify(best))) = activation("Softmax", "", &[-1, 1000]) else {
            panic!("expected the best classes to be all that leaves a device");
        };
        assert_eq!((found, best.activation), (none, ScoreActivation::None));
        assert_eq!(activation("Sigmoid", "", &[-1, 1]).0, none);
        assert_eq!(activation("Relu", "", &[-1, 10]).0, None);
        // The manifest takes precedence.
        let softmax = "[classify]\nactivation = \"softmax\"";
        assert_eq!(activation("Softmax", softmax, &[-1, 10]).0, Some(Activation::Softmax));
    }

    #[test]
    fn scores_that_the_network_has_put_in_order_are_refused_and_those_before_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |output: &str| {
            let mut source =
                source("m", "1", &format!("task = \"classify\"\n[classify]\noutput = {output:?}"));
            source.path = folder.path().join("model.onnx");
            let nodes = [
                ["Gemm", "x", "l"],
                ["TopK", "l k", "values indices"],
                ["Squeeze", "values", "y"],
                ["Softmax", "l", "all"],
            ];
            std::fs::write(&source.path, onnx(&nodes)).unwrap();
            let signature = signature(&[("values", &[-1, 5]), ("y", &[-1, 5]), ("all", &[-1, 9])]);
            model_of(&source, signature).err().unwrap_or_default()
        };
        for output in ["values", "y"] {
            let error = refused(output);
            assert!(error.starts_with(&format!("output {output:?} comes from TopK, ")), "{error}");
            assert!(error.contains("by classify.output, leave TopK out at export"), "{error}");
        }
        assert_eq!(refused("all"), "");
    }

    #[test]
    fn batch_sizes_follow_the_manifest() {
        let sizes = |batch: &str| {
            let text = format!("[batch]\n{batch}\n");
            resolve(&text, &[-1, 4], &[-1, 10]).unwrap().rules.sizes
        };
        assert_eq!(sizes("items_max = 12"), [1, 2, 4, 8, 12]);
        assert_eq!(sizes("items_max = 1"), [1]);
        assert_eq!(sizes("sizes = [3, 6]"), [3, 6]);
        let alone = resolve("[batch]\naxis = \"none\"", &[-1, 4], &[-1, 10]).unwrap();
        assert_eq!(
            (alone.batching, alone.rules.whole, &alone.rules.sizes[..]),
            (Batching::Whole, true, &[1][..])
        );
    }

    #[test]
    fn a_network_that_quantizes_as_it_runs_takes_requests_one_by_one_unless_its_author_asks_for_batches() {
        let folder = tempfile::tempdir().unwrap();
        let of = |manifest: &str, operator: &str, input: &[i64]| {
            let mut source = source("m", "1", manifest);
            source.path = folder.path().join("model.onnx");
            std::fs::write(&source.path, onnx(&[[operator, "x", "q"], ["Relu", "q", "y"]])).unwrap();
            let mut signature = signature(&[("y", &[input[0], 10])]);
            signature.inputs = vec![spec("x", DataType::Fp32, input)];
            let model = model_of(&source, signature).unwrap();
            (model.rules.whole, model.rules.largest(), model.alone_max)
        };
        let quantized = "DynamicQuantizeLinear";
        // One request may still have several rows.
        assert_eq!(of("", quantized, &[-1, 4]), (true, 1, Some(16)));
        assert_eq!(of("[batch]\nweight = 2", quantized, &[-1, 4]), (true, 1, Some(16)));
        assert_eq!(of("", "QLinearConv", &[-1, 4]), (false, 16, None));
        for (said, largest) in [("axis = \"items\"", 16), ("items_max = 4", 4), ("wait_ms_max = 5", 16)] {
            assert_eq!(
                of(&format!("[batch]\n{said}"), quantized, &[-1, 4]),
                (false, largest, None),
                "{said}"
            );
        }
        assert_eq!(of("[batch]\naxis = \"none\"", quantized, &[-1, 4]), (true, 1, None));
        // Nothing is mixed in batches of one.
        assert_eq!(of("[batch]\nitems_max = 1", quantized, &[-1, 4]), (false, 1, None));
        assert_eq!(of("", quantized, &[1, 4]), (false, 1, None));
    }

    #[test]
    fn batches_of_fits_are_padded_nowhere() {
        let source = source("spots", "1", "engine = \"gauss-mle\"\n");
        let signature = crate::engine::gauss_mle::signature();
        let model = model_of(&source, signature).unwrap();
        assert_eq!(model.rules.padding, Padding::Never);
    }

    #[test]
    fn a_model_that_cannot_batch_refuses_to_and_says_how_it_could() {
        let one = resolve("[batch]\nitems_max = 4", &[1, 4], &[1, 10]).err().unwrap();
        assert_eq!(
            one,
            "[batch] asks for up to 4 items, but the model has its batch axis fixed at 1 (\"image\" begins with 1): \
             export it with a dynamic batch axis (with torch: dynamic_shapes=({0: \"batch\"},)), or leave \
             items_max and sizes out"
        );
        let whole = resolve("[batch]\nsizes = [1, 2]", &[-1, 4], &[10]).err().unwrap();
        assert!(whole.contains("\"logits\" begins with 10"), "{whole}");
        for (said, input) in [("", 1), ("items_max = 1\n", -1), ("axis = \"none\"\n", -1)] {
            let waits =
                resolve(&format!("[batch]\n{said}wait_ms_max = 5"), &[input, 4], &[input, 10]).err().unwrap();
            assert!(waits.starts_with("batch.wait_ms_max waits for company"), "{waits}");
        }
        assert_eq!(resolve("", &[1, 4], &[1, 10]).unwrap().rules.sizes, [1]);
        assert_eq!(resolve("[batch]\nsizes = [1]", &[1, 4], &[1, 10]).unwrap().rules.sizes, [1]);
    }

    #[test]
    fn a_free_first_axis_that_counts_boxes_is_not_a_batch_axis() {
        let mut signature = signature(&[("boxes", &[-1, 4]), ("labels", &[-1]), ("scores", &[-1])]);
        signature.inputs = vec![spec("image", DataType::Fp32, &[-1, 3, 8, 8])];
        assert_eq!(signature.batching(), Batching::Dynamic);
        let source = source("m", "1", "task = \"detect\"");
        let model = model_of(&source, signature).unwrap();
        assert_eq!(model.batching, Batching::Whole);
        assert_eq!((model.rules.sizes, model.rules.whole), (vec![1], true));
        assert_eq!(model.image.unwrap().item_shape(8, 8), [1, 3, 8, 8]);
    }

    #[test]
    fn a_free_first_axis_that_is_the_height_of_the_image_is_not_a_batch_axis() {
        let model =
            resolve("task = \"segment\"\n[input]\nresize = \"none\"\n", &[-1, -1, 3], &[-1, -1, 5]).unwrap();
        assert_eq!((model.batching, &model.rules.sizes[..]), (Batching::Whole, &[1][..]));
        assert_eq!(model.image.unwrap().item_shape(33, 20), [20, 33, 3]);
    }

    #[test]
    fn outputs_are_checked_again_once_their_shapes_were_seen() {
        let check = |task: &str, labels: &str, file: &[i64], seen: &[usize]| {
            let mut source = source("m", "1", &format!("task = {task:?}"));
            source.labels = Arc::new(Labels::parse(labels).unwrap());
            let signature = signature(&[("y", file)]);
            let model = model_of(&source, signature).unwrap();
            model.check_outputs(&[seen.to_vec()]).err().unwrap_or_default()
        };
        let (open, yolo) = (&[-1, -1, -1][..], "has shape [?, 85, 8400], expected 6 channels for 2 labels");
        assert!(check("detect", "a\nb", open, &[1, 85, 8400]).contains(yolo));
        assert_eq!(check("detect", "a\nb", open, &[3, 6, 8400]), "");
        assert!(check("detect", "a\nb", &[], &[1, 10]).contains("has shape [1, 10], expected 6 channels"));
        let labels = "the labels file has 2 labels, output \"y\" has 10 classes";
        assert_eq!(check("classify", "a\nb", &[-1, -1], &[2, 10]), labels);
        assert_eq!(check("segment", "a\nb", &[-1, -1, 8, 8], &[1, 10, 8, 8]), labels);
        // If a single channel has no axis of its own, the first axis is the batch.
        assert_eq!(check("segment", "a\nb", &[-1, -1, -1], &[1, 4, 4]), "");
        // An output without elements shows nothing.
        assert_eq!(check("classify", "a\nb", &[-1, -1], &[1, 0]), "");
    }

    #[test]
    fn a_threshold_is_asked_for_where_nothing_tells_that_a_channel_is_of_probabilities() {
        let folder = tempfile::tempdir().unwrap();
        let told = |manifest: &str, last: &str, output: &[i64]| {
            let mut source = source("m", "1", &format!("task = \"segment\"\n{manifest}"));
            source.path = folder.path().join("model.onnx");
            std::fs::write(&source.path, onnx(&[["Conv", "x", "l"], [last, "l", "y"]])).unwrap();
            let signature = signature(&[("y", output)]);
            let model = model_of(&source, signature).unwrap();
            unsaid_threshold(&model.task, &model.signature, &Outline::of(&source.path).unwrap())
        };
        for one in [&[-1, 1, 8, 8][..], &[-1, 8, 8, 1], &[-1, 8, 8]] {
            let asked = told("", "Conv", one).unwrap();
            assert!(asked.contains("set segment.threshold = 0 if it gives logits"), "{asked}");
            assert_eq!(told("", "Sigmoid", one), None);
            for said in [0.0, 0.5] {
                assert_eq!(told(&format!("[segment]\nthreshold = {said:.1}"), "Conv", one), None);
            }
        }
        assert_eq!(told("", "Conv", &[-1, 3, 8, 8]), None);
    }

    #[test]
    fn how_a_picture_becomes_the_input_is_told_in_the_words_of_a_manifest() {
        let told = |manifest, shape: &[i64]| {
            resolve(manifest, shape, &[-1, 10]).unwrap().image.unwrap().told(&Input::default())
        };
        assert_eq!(
            told("task = \"classify\"", &[-1, 3, 224, 224]),
            "input = { resize = \"shorter\", size = 256, width = 224, height = 224, filter = \"bilinear\", color = \"rgb\", \
             layout = \"nchw\", scale = 0.003921569, mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225], \
             background = [255, 255, 255] }"
        );
        let chosen = |manifest: &str| {
            let image = resolve(manifest, &[-1, 3, 8, 8], &[-1, 10]).unwrap().image.unwrap();
            image.by_default(&Manifest::parse(manifest).unwrap().input.unwrap())
        };
        assert_eq!(chosen("task = \"embed\""), ["resize", "color", "scale", "mean", "std"]);
        let said = "task = \"embed\"\n[input]\nresize = \"stretch\"\ncolor = \"rgb\"\nmean = 0\nstd = 1";
        assert_eq!(chosen(said), ["scale"]);
        let own = "task = \"embed\"\n[input]\nresize = \"none\"\ncolor = \"bgr\"\nscale = 1\nmean = 127.5\nstd = 128";
        let beyond = |numbers| {
            let manifest = format!("task = \"embed\"\n[input]\nscale = 1\nmean = {numbers}");
            resolve(&manifest, &[-1, 3, 8, 8], &[-1, 10]).unwrap().image.unwrap().mean_beyond_pixels()
        };
        assert_eq!([beyond("255"), beyond("[1, 2, 1000]")], [None, Some(1000.0)]);
        assert_eq!(
            told(own, &[-1, 3, 48, -1]),
            "input = { resize = \"none\", height = 48, color = \"bgr\", layout = \"nchw\", scale = 1, mean = [127.5, 127.5, 127.5], \
             std = [128.0, 128.0, 128.0], background = [255, 255, 255] }"
        );
    }

    #[test]
    fn a_constant_without_a_batch_axis_is_told_as_why_images_run_alone() {
        let told = |manifest: &str, constant: &[i64]| {
            let source =
                source("m", "1", &format!("task = \"embed\"\n[input]\nconstants = {{ t = 1 }}\n{manifest}"));
            let mut signature = signature(&[("y", &[-1, 10])]);
            signature.inputs =
                vec![spec("x", DataType::Fp32, &[-1, 3, 8, 8]), spec("t", DataType::Fp32, constant)];
            let model = model_of(&source, signature).unwrap();
            let alone = unbatched(&source, &model.signature, model.image.as_ref().unwrap());
            assert_eq!(alone.is_none(), model.rules.largest() > 1 || !manifest.is_empty(), "{alone:?}");
            alone
        };
        for shape in [&[][..], &[1], &[1, 2]] {
            let told = told("", shape).unwrap();
            assert!(told.contains("since input \"t\" of shape ["), "{told}");
        }
        assert_eq!(told("", &[-1, 2]), None);
        assert_eq!(told("[batch]\naxis = \"none\"", &[1]), None);
    }

    #[test]
    fn a_batch_axis_that_is_fixed_is_filled_up() {
        let run = |manifest: &str, input: &[i64], output: &[i64]| {
            let model = resolve(manifest, input, output)?;
            Ok::<_, String>((model.batching, model.rules, model.signature.inputs[0].shape[0]))
        };
        let (image, scores) = (&[4, 3, 8, 8], &[4, 10]);
        for said in ["", "[batch]\nitems_max = 4", "[batch]\nsizes = [4]\nwait_ms_max = 5"] {
            let (batching, rules, first) =
                run(&format!("task = \"classify\"\n{said}"), image, scores).unwrap();
            assert_eq!((batching, first), (Batching::Dynamic, Dim::Free), "{said}");
            assert_eq!(
                (&rules.sizes[..], rules.padding, rules.whole),
                (&[4][..], Padding::Everywhere, false)
            );
        }
        let wrong = |manifest: &str, input: &[i64], output: &[i64], expected: &str| {
            let why =
                run(&format!("task = \"classify\"\n{manifest}"), input, output).map(|_| ()).unwrap_err();
            assert!(why.contains(expected), "{why}");
        };
        wrong("[batch]\nitems_max = 8", image, scores, "[batch] asks for batches of 8, but the file has");
        wrong("[batch]\naxis = \"none\"", image, scores, "or the same number in all inputs and outputs");
        wrong("", image, &[2, 10], "or the same number in all inputs and outputs");
        wrong("", &[2000, 3, 8, 8], &[2000, 10], "or the same number in all inputs and outputs");
        // Without images, requests are run as they come.
        assert_eq!(run("", image, scores).unwrap().0, Batching::Whole);
        // Three channels are no batch.
        assert_eq!(run("task = \"segment\"", &[3, 8, 9], &[3, 8, 9]).unwrap().0, Batching::Whole);
    }

    #[test]
    fn the_input_that_images_become_comes_first() {
        let source = source("m", "1", "task = \"classify\"\n[input]\nconstants = { t = 2, u = 3 }");
        let mut signature = signature(&[("y", &[-1, 10])]);
        let scalar = |name| spec(name, DataType::Fp32, &[-1, 1]);
        signature.inputs = vec![scalar("t"), spec("x", DataType::Fp32, &[-1, 3, 8, 8]), scalar("u")];
        let model = model_of(&source, signature).unwrap();
        assert_eq!(model.ends.first.as_deref(), Some("x"));
        for signature in [&model.signature, &model.interface.signature] {
            let names: Vec<_> = signature.inputs.iter().map(|input| input.name.as_str()).collect();
            assert_eq!(names, ["x", "t", "u"]);
        }
        let behind: Vec<_> = model.image.unwrap().behind(8, 8).map(|one| one.to_f32().unwrap()).collect();
        assert_eq!(behind, [[2.0], [3.0]]);
    }

    #[test]
    fn images_of_any_size_have_no_staging() {
        let manifest = "task = \"segment\"\n[input]\nresize = \"none\"\n";
        let model = resolve(manifest, &[-1, 3, -1, -1], &[-1, 4, -1, -1]).unwrap();
        assert!(model.image.unwrap().staging.is_none());
    }

    #[test]
    fn models_go_from_thread_to_thread() {
        fn check<T: Send + Sync>() {}
        check::<Model>();
        check::<Catalog>();
    }

    #[test]
    fn tensors_without_an_input_table_take_no_images() {
        assert!(resolve("", &[-1, 3, 8, 8], &[-1, 10]).unwrap().image.is_none());
        let with = resolve("[input]", &[-1, 3, 8, 8], &[-1, 10]).unwrap();
        assert!(with.image.is_some() && with.task == Task::Tensors);
    }

    #[test]
    fn what_is_declared_decides_whether_the_first_axis_is_a_batch() {
        let run = |items_max, datatype| {
            let mut source = source("m", "1", "");
            source.manifest.declared = Some(Declared { items_max, ..Declared::default() });
            source.manifest.batch.items_max = items_max;
            let mut signature = signature(&[("y", &[-1, 10])]);
            signature.inputs = vec![spec("x", datatype, &[-1, 4])];
            let model = model_of(&source, signature).unwrap();
            (model.rules.sizes, model.rules.whole)
        };
        assert_eq!(run(None, DataType::Fp32), (vec![1], true));
        assert_eq!(run(Some(6), DataType::Fp32), (vec![1, 2, 4, 6], false));
        // Requests with strings run one by one, however many items one may hold.
        assert_eq!(run(Some(6), DataType::Bytes), (vec![1], true));
    }

    #[test]
    fn a_batch_size_that_the_model_cannot_have_is_told_in_the_words_of_its_file() {
        let mut source = source("m", "1", "");
        source.manifest.declared = Some(Declared { items_max: Some(1), ..Declared::default() });
        source.manifest.batch.wait_max = Duration::from_millis(1);
        let mut one = signature(&[("y", &[1, 10])]);
        one.inputs = vec![spec("x", DataType::Fp32, &[1, 4])];
        let alone = model_of(&source, one);
        assert!(alone.is_ok(), "Triton takes a delay that delays nothing");
        source.manifest.declared = Some(Declared { items_max: Some(6), ..Declared::default() });
        source.manifest.batch.items_max = Some(6);
        let signature = signature(&[("y", &[10])]);
        let error = model_of(&source, signature).err().unwrap();
        assert!(error.starts_with("max_batch_size asks for up to 6 items"), "{error}");
        assert!(error.ends_with("or set max_batch_size to 0"), "{error}");
    }

    #[test]
    fn a_task_needs_an_image_input() {
        let error = resolve("task = \"embed\"", &[-1, 10], &[-1, 10]).err().unwrap();
        assert!(error.contains("an image needs"), "{error}");
    }
}
