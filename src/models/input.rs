//! Resolves how an image becomes the model's input, from `[input]`, the task and the signature.

mod planes;
mod which;

pub(super) use which::of_image;

use super::{
    ImageInput,
    images::{Other, layout_word},
    manifest::{Input, ResizeRule},
    ultralytics::{self, Usual},
};
use crate::{
    engine::{Batching, Dim, PixelInput, Signature, TensorSpec, onnx::outline::Outline, show},
    image::{self, Color, Filter, Layout, Pages, Preprocess, Resize},
    tasks::Task,
};
use which::{AS_TENSORS, constant, filled, inputs, is_convertible, size_order, size_type};

/// ImageNet's mean and standard deviation of red, green and blue, for values from 0 to 1.
const IMAGENET: [[f32; 3]; 2] = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]];

/// Resolves how an image becomes the model's first input; [`of_image`] says which is to be the first. The caller, which knows the largest
/// batch, adds the staging memory. What the extents leave open may follow from the names of axes in the model's file.
///
/// # Errors
/// A model that takes more than one image, and settings that contradict its input.
pub(super) fn resolve(
    input: &Input,
    task: &Task,
    signature: &Signature,
    outline: &Outline,
) -> Result<ImageInput, String> {
    let (spec, others) = inputs(input, task, signature)?;
    let usual = ultralytics::usual(task, outline);
    let datatype = image::DataType::from_name(spec.datatype.name()).ok_or_else(|| {
        format!(
            "input {:?} is {}; images can become FP32, FP16 or UINT8: export it so, or {AS_TENSORS}",
            spec.name, spec.datatype
        )
    })?;
    let axes = Axes::find(spec, signature.batching(), input, outline)?;
    let channels = channels(spec, &axes, input, task, usual.size)?;
    let sides =
        [side(spec, "width", axes.width, input.width)?, side(spec, "height", axes.height, input.height)?];
    let settled = axes.settled(outline.axis_names(&spec.name), channels, sides);
    let other = |spec: &TensorSpec| match input.constants.get(&spec.name) {
        Some(number) => {
            let shape = filled(spec, axes.batch_axis, outline.axis_names(&spec.name), &settled);
            constant(spec, shape, *number).map(Other::Constant)
        }
        None => size_type(spec, axes.batch_axis).map(|datatype| Other::Size(datatype, size_order(task))),
    };
    if let (Some(ResizeRule::Height), Some(width)) = (input.resize, sides[0]) {
        return Err(format!(
            "input.resize = \"height\" makes an image as wide as its proportions say, and input {:?} of shape {} is always {width} wide: \
             set \"letterbox\" or \"stretch\"",
            spec.name,
            show(&spec.shape)
        ));
    }
    // A side that each image sets itself is 1 until there is an image.
    let [width, height] = sides.map(|side| side.unwrap_or(1));
    let planes = planes::of(input, channels)?;
    let color = match (input.color, channels) {
        _ if planes.is_some() => Color::Gray,
        (Some(color), channels) if color.channels() == channels => color,
        (None, 1) => Color::Gray,
        (None, _) => Color::Rgb,
        (Some(color), _) => {
            return Err(format!(
                "input.color has {} channels, input {:?} of shape {} has {channels}",
                color.channels(),
                spec.name,
                show(&spec.shape)
            ));
        }
    };
    let plain = datatype == image::DataType::Uint8
        || color == Color::Gray
        || usual.is_letterboxed
        || matches!(task, Task::Detect(_) | Task::Image(_) | Task::Tensors);
    let [mean, std] = if plain { [[0.0; 3], [1.0; 3]] } else { imagenet(color) };
    let preprocess = Preprocess {
        width,
        height,
        resize: resize(input, task, &usual, [width, height])?,
        filter: input.filter.unwrap_or(Filter::Bilinear),
        color,
        background: input.background.unwrap_or([255; 3]),
        pad: input.pad.unwrap_or(114),
        scale: input.scale.unwrap_or(match datatype {
            image::DataType::Uint8 => 1.0,
            _ => 1.0 / 255.0,
        }),
        mean: per_channel("mean", input.mean.as_deref().filter(|_| planes.is_none()), mean, channels)?,
        std: per_channel("std", input.std.as_deref().filter(|_| planes.is_none()), std, channels)?,
        layout: axes.layout,
        datatype,
    };
    let mut each = vec![preprocess.clone()];
    each.extend(planes.iter().flatten().map(|plane| preprocess.clone().of_channel(*plane)));
    each.iter().try_for_each(Preprocess::check).map_err(|mistake| format!("[input]: {mistake}"))?;
    let others = others.iter().map(other).collect::<Result<_, _>>()?;
    let image = ImageInput {
        pixels: match planes {
            None => PixelInput::new(&preprocess, axes.batch_axis, axes.channel_axis),
            Some(_) => None,
        },
        planes,
        preprocess,
        staging: None,
        own_width: sides[0].is_none(),
        own_height: sides[1].is_none(),
        batch_axis: axes.batch_axis,
        channel_axis: axes.channel_axis,
        others,
    };
    let scale = image.preprocess.scale;
    match image.mean_beyond_pixels() {
        // Levels have been scaled down, and the mean has not.
        Some(mean) if scale < 1.0 => Err(format!(
            "input.mean holds {mean}, which is more than any pixel has with input.scale = {scale}: where mean and std are those of \
             measured values, which are not scaled, or of pixels from 0 to 255, set input.scale = 1"
        )),
        _ => Ok(image),
    }
}

/// Whether an image could become one of the inputs, with further settings if need be.
pub fn may_be_image(signature: &Signature) -> bool {
    signature.inputs.iter().any(|spec| {
        let axes = || Axes::find(spec, signature.batching(), &Input::default(), &Outline::default());
        is_convertible(spec) && axes().is_ok()
    })
}

/// The meaning of an input's axes.
struct Axes {
    batch_axis: bool,
    channel_axis: bool,
    layout: Layout,
    /// Whether something determines the layout; otherwise `layout` is one of the possible ones.
    told: bool,
    channels: Option<usize>,
    /// Whether the file names the channel axis.
    named: bool,
    width: Dim,
    height: Dim,
}

impl Axes {
    fn find(spec: &TensorSpec, batching: Batching, input: &Input, outline: &Outline) -> Result<Axes, String> {
        let wrong = || {
            format!(
                "input {:?} has shape {}; an image needs [N, C, H, W], [N, H, W, C], [C, H, W] or [H, W, C] with 1 or 3 \
                 channels (with input.pages = \"channels\" any number), and N free, 1, or the same number in all inputs and outputs, or of \
                 grey [N, H, W] with N free; if it takes anything else, {AS_TENSORS}",
                spec.name,
                show(&spec.shape)
            )
        };
        let batches = batching != Batching::Whole;
        let is_image = |dim| matches!(dim, Dim::Fixed(1 | 3));
        let (batch_axis, [a, b, c]) = match *spec.shape {
            [n, a, b, c] if n.takes(1) => (true, [a, b, c]),
            // Grey images in a batch, without a channel axis. If the last extent is 1 or 3, or the manifest sets a layout, there is a
            // channel axis instead, and the first axis is a side.
            [n, height, width] if n == Dim::Free && batches && input.layout.is_none() && !is_image(width) => {
                return Ok(Axes {
                    batch_axis: true,
                    channel_axis: false,
                    layout: Layout::Nchw,
                    told: true,
                    channels: Some(1),
                    named: false,
                    width,
                    height,
                });
            }
            [a, b, c] => (false, [a, b, c]),
            _ => return Err(wrong()),
        };
        // Only open axes have names.
        let axis = if [a, c].contains(&Dim::Free) { outline.channel_axis(&spec.name) } else { None };
        let named = match axis.and_then(|axis| axis.checked_sub(usize::from(batch_axis))) {
            Some(0) => Some(Layout::Nchw),
            Some(2) => Some(Layout::Nhwc),
            _ => None,
        };
        let any = input.pages == Some(Pages::Channels);
        let told = match (is_image(a), is_image(c)) {
            _ if input.layout.is_some() => input.layout,
            _ if any => named.or_else(|| planes::layout(a, c)),
            (true, false) => Some(Layout::Nchw),
            (false, true) => Some(Layout::Nhwc),
            (false, false) if a != Dim::Free && c != Dim::Free => return Err(wrong()),
            _ => named,
        };
        let first = is_image(a) || a == Dim::Free || any;
        let layout = told.unwrap_or(if first { Layout::Nchw } else { Layout::Nhwc });
        let (channels, height, width) = match layout {
            Layout::Nchw => (a, b, c),
            Layout::Nhwc => (c, a, b),
        };
        let channels = match channels {
            Dim::Fixed(n) if any || is_image(Dim::Fixed(n)) => Some(n),
            Dim::Free if any => {
                return Err(format!(
                    "input.pages = \"channels\" is for networks of a fixed number of channels, and input {:?} of shape {} leaves it open: \
                     export it with that number",
                    spec.name,
                    show(&spec.shape)
                ));
            }
            Dim::Fixed(n) if input.layout.is_some() => {
                return Err(format!(
                    "input.layout is {:?}, by which input {:?} of shape {} has {n} channels; an image needs 1 or 3: leave input.layout out",
                    layout_word(layout),
                    spec.name,
                    show(&spec.shape)
                ));
            }
            Dim::Fixed(_) => return Err(wrong()),
            Dim::Free => None,
        };
        let (told, named) = (told.is_some(), named == Some(layout));
        Ok(Axes { batch_axis, channel_axis: true, layout, told, channels, named, width, height })
    }

    /// The axes of an image that have names in the file and extents that are known, with both.
    fn settled<'a>(
        &self,
        names: &'a [String],
        channels: usize,
        sides: [Option<u32>; 2],
    ) -> Vec<(&'a str, usize)> {
        let [width, height] = sides.map(|side| side.map(|side| side as usize));
        let channel = self.channel_axis.then_some(Some(channels));
        let (first, last) = match self.layout {
            Layout::Nchw => (channel, None),
            Layout::Nhwc => (None, channel),
        };
        let batch = self.batch_axis.then_some(Some(1));
        let extents = batch.into_iter().chain(first).chain([height, width]).chain(last);
        let named = names.iter().zip(extents).filter(|(name, _)| !name.is_empty());
        named.filter_map(|(name, extent)| Some((name.as_str(), extent?))).collect()
    }
}

/// The number of channels, if nothing else is left open either. `size` is the width and height that the file proposes.
///
/// # Errors
/// Everything that is left open, in one message with an example.
fn channels(
    spec: &TensorSpec,
    axes: &Axes,
    input: &Input,
    task: &Task,
    size: Option<[u32; 2]>,
) -> Result<usize, String> {
    // A network with an open channel axis was exported with all axes open, not made for any number of channels.
    let usual = axes.named.then_some(3);
    let channels = axes.channels.or(input.color.map(Color::channels)).or(usual);
    let any_size = input.resize == Some(ResizeRule::None);
    let open = |dim, set: Option<u32>| dim == Dim::Free && set.is_none() && !any_size;
    let follows = input.resize == Some(ResizeRule::Height);
    let pixels = if matches!(task, Task::Detect(_)) { 640 } else { 224 };
    let [width, height] = size.unwrap_or([pixels; 2]);
    let sides = [
        ("width", !follows && open(axes.width, input.width), width),
        ("height", open(axes.height, input.height), height),
    ];
    let layout = layout_word(axes.layout);
    let keys =
        [("layout", !axes.told, format!("{layout:?}")), ("color", channels.is_none(), "\"rgb\"".into())]
            .into_iter()
            .chain(sides.map(|(key, open, side)| (key, open, side.to_string())));
    let (names, lines): (Vec<_>, Vec<_>) =
        keys.filter(|(_, open, _)| *open).map(|(key, _, value)| (key, format!("{key} = {value}"))).unzip();
    match channels {
        Some(channels) if names.is_empty() => return Ok(channels),
        _ => {}
    }
    let lines = lines.join(", ");
    let add = match *input == Input::default() {
        true => format!("add the line input = {{ {lines} }} to model.toml, above its tables"),
        false => format!("add to [input] {lines}"),
    };
    let own = match sides.iter().any(|(_, open, _)| *open) {
        true => " (or resize = \"none\" in place of a size, to take images at their own)",
        false => "",
    };
    Err(format!(
        "input {:?} of shape {} leaves open {}: {add}, with what the model was made for{own}",
        spec.name,
        show(&spec.shape),
        names.join(", ")
    ))
}

/// Width or height: the model's, or the manifest's if the model leaves it open; `None` if each image keeps its own.
fn side(spec: &TensorSpec, key: &str, dim: Dim, set: Option<u32>) -> Result<Option<u32>, String> {
    match (dim, set) {
        (Dim::Fixed(n), None) => {
            u32::try_from(n).map(Some).map_err(|_| format!("input {:?} has a {key} of {n}", spec.name))
        }
        (Dim::Fixed(n), Some(set)) if n as u64 != u64::from(set) => Err(format!(
            "input.{key} is {set}, but input {:?} of shape {} has {n}: leave input.{key} out",
            spec.name,
            show(&spec.shape)
        )),
        (_, Some(set)) => Ok(Some(set)),
        (Dim::Free, None) => Ok(None),
    }
}

fn resize(input: &Input, task: &Task, usual: &Usual, size: [u32; 2]) -> Result<Resize, String> {
    let [width, height] = size;
    let rule = input.resize.unwrap_or(match task {
        _ if usual.is_letterboxed => ResizeRule::Letterbox,
        Task::Classify(_) | Task::Embed(_) | Task::Tensors | Task::Localize => ResizeRule::Shorter,
        Task::Detect(_) => ResizeRule::Letterbox,
        Task::Segment(_) | Task::Image(_) | Task::Landmarks(_) => ResizeRule::Stretch,
    });
    if !matches!(rule, ResizeRule::Shorter | ResizeRule::Stretch)
        && let Some(size) = input.size
    {
        return Err(format!(
            "input.size = {size} is only read with input.resize = \"shorter\" or \"stretch\""
        ));
    }
    if rule != ResizeRule::Letterbox
        && let Some(pad) = input.pad
    {
        return Err(format!("input.pad = {pad} is only read with input.resize = \"letterbox\""));
    }
    if rule != ResizeRule::None
        && let Some(multiple) = input.multiple
    {
        return Err(format!("input.multiple = {multiple} is only read with input.resize = \"none\""));
    }
    if rule == ResizeRule::None && input.filter.is_some() {
        return Err("input.filter is not read with input.resize = \"none\"".to_owned());
    }
    let cut = match (rule, input.size) {
        (ResizeRule::Shorter, _) => Some("input.resize = \"shorter\""),
        (_, Some(_)) => Some("input.size"),
        _ => None,
    };
    if let (Some(cut), Task::Segment(_)) = (cut, task) {
        return Err(format!(
            "{cut} cuts away what is not in the centre, of which a segmenter has to give the class, too: set \"stretch\" \
             without a size, or \"letterbox\""
        ));
    }
    let longer = width.max(height);
    // The usual margin around the centre: 256 for an input of 224.
    let with_margin = (f64::from(longer) * 256.0 / 224.0).round() as u32;
    if let Some(size) = input.size.filter(|size| *size < longer) {
        return Err(format!(
            "input.size is {size}, less than the input of {width} x {height}: give {longer} or more"
        ));
    }
    Ok(match rule {
        ResizeRule::Shorter => Resize::Shorter(input.size.unwrap_or(with_margin)),
        ResizeRule::Stretch => input.size.map_or(Resize::Stretch, Resize::Square),
        ResizeRule::Letterbox => Resize::Letterbox,
        ResizeRule::Height => Resize::Height,
        ResizeRule::None => input.multiple.map_or(Resize::Exact, Resize::Multiple),
    })
}

/// ImageNet's mean and standard deviation in the order of the channels.
fn imagenet(color: Color) -> [[f32; 3]; 2] {
    let mut both = IMAGENET;
    if color == Color::Bgr {
        both.iter_mut().for_each(|values| values.reverse());
    }
    both
}

/// The values that the manifest sets, one for all channels or one for each; `usual` if it sets none.
fn per_channel(key: &str, set: Option<&[f32]>, usual: [f32; 3], channels: usize) -> Result<[f32; 3], String> {
    match set {
        None => Ok(usual),
        Some([all]) => Ok([*all; 3]),
        Some([a, b, c]) if channels == 3 => Ok([*a, *b, *c]),
        Some(values) => Err(format!(
            "input.{key} has {} numbers, the model's input has {channels} channel: give one",
            values.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{
            DataType, Tensor,
            onnx::{
                axes::testing::{model as onnx, named_inputs},
                metadata::testing::model as saying,
            },
        },
        models::manifest::Manifest,
        tasks::testing::{signature, spec},
    };

    fn run(manifest: &str, datatype: DataType, shape: &[i64]) -> Result<(Preprocess, Vec<usize>), String> {
        let manifest = Manifest::parse(manifest).unwrap();
        let mut signature = signature(&[("out", &[-1, 10])]);
        signature.inputs = vec![spec("image", datatype, shape)];
        let input = resolve(&manifest.input.unwrap(), &manifest.task, &signature, &Outline::default())?;
        let [width, height] = [input.preprocess.width, input.preprocess.height];
        let shape = input.item_shape(width, height);
        Ok((input.preprocess, shape))
    }

    #[test]
    fn a_classifier_gets_the_usual_pipeline() {
        let (got, shape) = run("task = \"classify\"", DataType::Fp32, &[-1, 3, 224, 224]).unwrap();
        let expected = Preprocess {
            resize: Resize::Shorter(256),
            background: [255; 3],
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
            ..Preprocess::new(224, 224)
        };
        assert_eq!(got, expected);
        assert_eq!(shape, [1, 3, 224, 224]);
    }

    #[test]
    fn defaults_follow_the_task() {
        let check = |task: &str, resize, mean: f32| {
            let text = format!("task = {task:?}\n[input]\n");
            let (got, _) = run(&text, DataType::Fp32, &[1, 3, 64, 96]).unwrap();
            assert_eq!((got.resize, got.mean[0]), (resize, mean), "{task}");
            assert_eq!((got.width, got.height, got.pad), (96, 64, 114));
        };
        check("detect", Resize::Letterbox, 0.0);
        check("segment", Resize::Stretch, 0.485);
        check("image", Resize::Stretch, 0.0);
        check("embed", Resize::Shorter(110), 0.485);
        check("tensors", Resize::Shorter(110), 0.0);
    }

    #[test]
    fn gray_bgr_and_uint8_inputs_are_told_from_the_model_and_the_manifest() {
        let (gray, shape) = run("task = \"classify\"", DataType::Fp32, &[-1, 28, 28, 1]).unwrap();
        assert_eq!((gray.color, gray.layout, gray.mean), (Color::Gray, Layout::Nhwc, [0.0; 3]));
        assert_eq!(shape, [1, 28, 28, 1]);
        let (_, shape) = run("task = \"classify\"", DataType::Fp32, &[-1, 8, 8]).unwrap();
        assert_eq!(shape, [1, 8, 8]);
        let (_, shape) = run("task = \"classify\"", DataType::Fp32, &[3, 8, 9]).unwrap();
        assert_eq!(shape, [3, 8, 9]);
        let bgr = "task = \"embed\"\n[input]\ncolor = \"bgr\"\n";
        assert_eq!(run(bgr, DataType::Fp16, &[-1, 3, 8, 8]).unwrap().0.mean, [0.406, 0.456, 0.485]);
        let bytes = "task = \"detect\"\n[input]\nwidth = 320\nheight = 240\n";
        let (bytes, shape) = run(bytes, DataType::Uint8, &[1, -1, -1, 3]).unwrap();
        assert_eq!((bytes.scale, bytes.datatype), (1.0, image::DataType::Uint8));
        assert_eq!(shape, [1, 240, 320, 3]);
    }

    #[test]
    fn what_is_told_of_an_input_says_the_same_in_its_manifest() {
        let check = |task: &str, keys: &str, datatype, shape: &[i64], others: &[TensorSpec]| {
            let mut signature = signature(&[("out", &[-1, 10])]);
            signature.inputs = vec![spec("image", datatype, shape)];
            signature.inputs.extend_from_slice(others);
            let read = |line: &str| {
                let manifest = Manifest::parse(&format!("task = {task:?}\n{line}")).unwrap();
                let input = manifest.input.unwrap();
                let resolved = resolve(&input, &manifest.task, &signature, &Outline::default()).unwrap();
                (resolved.told(&input), resolved)
            };
            let (told, first) = read(&format!("[input]\n{keys}"));
            let (again, second) = read(&told);
            assert_eq!((&told, &first.preprocess), (&again, &second.preprocess));
            assert_eq!(first.item_shape(8, 9), second.item_shape(8, 9), "{told}");
            assert_eq!((first.own_width, first.own_height), (second.own_width, second.own_height), "{told}");
            let behind =
                |input: &ImageInput| input.behind(8, 9).map(|t| (t.shape, t.data)).collect::<Vec<_>>();
            assert_eq!(behind(&first), behind(&second), "{told}");
            told
        };
        let fp32 = DataType::Fp32;
        let gray = check("classify", "", fp32, &[-1, 1, 28, 28], &[]);
        assert_eq!(
            gray,
            "input = { resize = \"shorter\", size = 32, width = 28, height = 28, filter = \"bilinear\", color = \"gray\", \
             layout = \"nchw\", scale = 0.003921569, mean = 0.0, std = 1.0, background = [255, 255, 255] }"
        );
        check("classify", "", fp32, &[-1, 28, 28], &[]);
        check("classify", "", fp32, &[3, 8, 9], &[]);
        check("embed", "resize = \"stretch\"\nsize = 10", fp32, &[-1, 3, 8, 9], &[]);
        check("embed", "color = \"bgr\"\nfilter = \"box\"", DataType::Fp16, &[-1, 8, 8, 3], &[]);
        check("image", "resize = \"none\"\nbackground = [1, 2, 3]", fp32, &[-1, 3, -1, 8], &[]);
        check("image", "resize = \"none\"\nmultiple = 16", fp32, &[-1, 3, -1, -1], &[]);
        check("detect", "pad = 0\nwidth = 32\nheight = 16", DataType::Uint8, &[1, -1, -1, 3], &[]);
        let open = "layout = \"nhwc\"\ncolor = \"rgb\"\nwidth = 8\nheight = 9";
        check("classify", open, fp32, &[-1, -1, -1, -1], &[]);
        let mask = spec("a \"mask\"", DataType::Int64, &[-1, 2, 2]);
        check("detect", "constants = { \"a \\\"mask\\\"\" = 1 }", fp32, &[-1, 3, 8, 8], &[mask]);
    }

    #[test]
    fn images_are_filled_up_to_multiples_where_nothing_resizes() {
        let text = "task = \"segment\"\n[input]\nresize = \"none\"\nmultiple = 16\n";
        let (preprocess, _) = run(text, DataType::Fp32, &[-1, 3, -1, -1]).unwrap();
        assert_eq!(preprocess.resize, Resize::Multiple(16));
        let manifest = Manifest::parse(text).unwrap();
        let mut signature = signature(&[("out", &[-1, 4, -1, -1])]);
        signature.inputs = vec![spec("image", DataType::Fp32, &[-1, 3, -1, -1])];
        let input = resolve(&manifest.input.unwrap(), &manifest.task, &signature, &Outline::default());
        let input = input.unwrap();
        assert_eq!([input.item_shape(33, 16), input.item_shape(1, 48)], [[1, 3, 16, 48], [1, 3, 48, 16]]);
        let scaled = text.replace("none", "letterbox") + "width = 32\nheight = 32";
        let told = run(&scaled, DataType::Fp32, &[-1, 3, -1, -1]).unwrap_err();
        assert!(told.contains("input.multiple = 16 is only read with input.resize = \"none\""), "{told}");
    }

    #[test]
    fn images_keep_their_size_where_the_model_leaves_it_open_and_nothing_resizes() {
        let manifest = Manifest::parse("task = \"segment\"\n[input]\nresize = \"none\"\n").unwrap();
        let mut signature = signature(&[("out", &[-1, 4, -1, -1])]);
        let mut run = |shape: &[i64]| {
            signature.inputs = vec![spec("image", DataType::Fp32, shape)];
            let input = manifest.input.as_ref().unwrap();
            resolve(input, &manifest.task, &signature, &Outline::default()).unwrap()
        };
        let any = run(&[-1, 3, -1, -1]);
        assert_eq!(any.size(), None);
        let preprocess = any.preprocess_for(33, 20);
        assert_eq!((preprocess.width, preprocess.height), (33, 20));
        assert_eq!(preprocess.resize, Resize::Exact);
        assert_eq!(any.item_shape(33, 20), [1, 3, 20, 33]);
        // Without a batch axis, the first is a side, which may be open like any.
        let own = run(&[-1, -1, 3]);
        assert_eq!((own.preprocess.layout, own.preprocess.color), (Layout::Nhwc, Color::Rgb));
        assert_eq!(own.item_shape(33, 20), [20, 33, 3]);
        // One side open: the other is the model's, and is checked against the image later.
        let half = run(&[-1, 64, -1, 3]);
        assert_eq!(half.preprocess_for(33, 20).height, 64);
        assert_eq!(half.item_shape(33, 20), [1, 64, 33, 3]);
        let fixed = run(&[-1, 3, 8, 9]);
        assert_eq!(fixed.size(), Some([9, 8]));
    }

    #[test]
    fn the_width_follows_where_images_are_brought_to_a_height() {
        let run = |shape: &[i64], more: &str| {
            let text = format!("task = \"embed\"\n[input]\nresize = \"height\"\n{more}");
            let manifest = Manifest::parse(&text).unwrap();
            let mut signature = signature(&[("out", &[-1, -1, 37])]);
            signature.inputs = vec![spec("image", DataType::Fp32, shape)];
            resolve(&manifest.input.unwrap(), &manifest.task, &signature, &Outline::default())
        };
        let open = run(&[-1, 1, 32, -1], "").unwrap();
        assert_eq!((open.size(), open.own_width, open.own_height), (None, true, false));
        assert_eq!(open.item_shape(100, 64), [1, 1, 32, 50]);
        assert_eq!(open.item_shape(1, 1000), [1, 1, 32, 1]);
        let placement = open.preprocess_for(100, 64).placement(100, 64);
        assert_eq!(placement.scale(), (0.5, 0.5));
        // Whatever is posted, the width is bounded.
        assert_eq!(open.item_shape(u32::MAX, 1), [1, 1, 32, (1 << 14) + 1]);
        let wide = |width| open.preprocess_for(width, 2).takes((width, 2)).map_err(|error| error.to_string());
        assert_eq!(wide(1 << 10), Ok(()));
        assert!(wide((1 << 10) + 1).unwrap_err().contains("wider than 16384"), "{:?}", wide(1025));
        assert_eq!(run(&[-1, 1, -1, -1], "height = 48").unwrap().item_shape(96, 96), [1, 1, 48, 48]);
        let wrong = |shape: &[i64], more: &str, expected: &str| {
            let why = run(shape, more).map(|_| ()).unwrap_err();
            assert!(why.contains(expected), "{why}");
        };
        wrong(&[-1, 1, 32, 100], "", "is always 100 wide: set \"letterbox\" or \"stretch\"");
        wrong(&[-1, 1, 32, -1], "width = 320", "is always 320 wide");
        wrong(&[-1, 1, -1, -1], "", "leaves open height: ");
    }

    #[test]
    fn a_second_input_of_a_detector_is_told_the_size_of_the_first() {
        let run = |manifest: &str, second: (&str, DataType, &[i64])| {
            let manifest = Manifest::parse(&format!("task = \"detect\"\n{manifest}")).unwrap();
            let mut signature = signature(&[("out", &[-1, 10])]);
            let image = spec("images", DataType::Fp32, &[second.2[0], 3, 64, 96]);
            signature.inputs = vec![image, spec(second.0, second.1, second.2)];
            let input =
                resolve(&manifest.input.clone().unwrap(), &manifest.task, &signature, &Outline::default())?;
            let staged = Tensor::zeros(DataType::Uint8, &[1, 64, 96, 3]);
            let inputs = input.inputs(staged, (1000, 500));
            assert_eq!((inputs.len(), &inputs[0].shape[..]), (2, &[1, 64, 96, 3][..]));
            assert_eq!(inputs[1].datatype, second.1);
            Ok::<_, String>((inputs[1].shape.clone(), inputs[1].to_f32().unwrap()))
        };
        let key = "[detect]\nsize_input = \"sizes\"";
        for (datatype, shape) in
            [(DataType::Int64, [-1, 2]), (DataType::Int32, [1, 2]), (DataType::Fp32, [-1, -1])]
        {
            assert_eq!(run(key, ("sizes", datatype, &shape)).unwrap(), (vec![1, 2], vec![96.0, 64.0]));
        }
        let check = |manifest, second, expected: &str| {
            let error = run(manifest, second).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check(
            "",
            ("sizes", DataType::Int64, &[-1, 2]),
            "the model has 2 inputs (\"images\", \"sizes\"); an image becomes one",
        );
        check("", ("sizes", DataType::Int64, &[-1, 2]), "detect.size_input may name a second");
        check(
            key,
            ("scale", DataType::Int64, &[-1, 2]),
            "detect.size_input is \"sizes\", expected the one input beside that of the image",
        );
        check(
            key,
            ("sizes", DataType::Int64, &[-1, 3]),
            "\"sizes\" is INT64 of shape [?, 3], expected a width and a height, [1, 2]",
        );
        check(key, ("sizes", DataType::Bool, &[-1, 2]), "is BOOL of shape");
        // The same the other way round, which must be said of an input that is called a shape.
        let ordered = |order: &str| format!("{key}\nsize_order = {order:?}");
        let sizes = ("sizes", DataType::Fp32, &[-1, 2][..]);
        assert_eq!(run(&ordered("hw"), sizes).unwrap(), (vec![1, 2], vec![64.0, 96.0]));
        assert_eq!(run(&ordered("wh"), sizes).unwrap(), (vec![1, 2], vec![96.0, 64.0]));
        let shape = ("im_shape", DataType::Fp32, &[-1, 2][..]);
        let of_shape = "[detect]\nsize_input = \"im_shape\"";
        check(
            of_shape,
            shape,
            "\"im_shape\" seems to take the height before the width: set detect.size_order = \"hw\"",
        );
        assert_eq!(run(&format!("{of_shape}\nsize_order = \"hw\""), shape).unwrap().1, [64.0, 96.0]);
        check(
            "[detect]\nsize_input = \"scale_factor\"",
            ("scale_factor", DataType::Fp32, &[-1, 2]),
            "input \"scale_factor\" seems to take the factor by which an image was resized",
        );
    }

    #[test]
    fn inputs_that_are_always_the_same_are_filled_for_each_image() {
        let run = |manifest: &str, others: &[TensorSpec]| {
            let manifest = Manifest::parse(&format!("task = \"detect\"\n{manifest}")).unwrap();
            let mut signature = signature(&[("out", &[-1, 10])]);
            signature.inputs = vec![spec("images", DataType::Fp32, &[-1, 3, 64, 96])];
            signature.inputs.extend_from_slice(others);
            let input =
                resolve(&manifest.input.clone().unwrap(), &manifest.task, &signature, &Outline::default())?;
            let inputs = input.inputs(Tensor::zeros(DataType::Uint8, &[1, 64, 96, 3]), (1000, 500));
            Ok::<_, String>(
                inputs[1..].iter().map(|i| (i.shape.clone(), i.to_f32().unwrap())).collect::<Vec<_>>(),
            )
        };
        let mask = spec("pixel_mask", DataType::Int64, &[-1, 2, 2]);
        let size = spec("sizes", DataType::Int64, &[-1, 2]);
        let factor = spec("scale_factor", DataType::Fp32, &[1, 2]);
        let filled = |shape: &[usize], numbers: &[f32]| (shape.to_vec(), numbers.to_vec());
        let ones = filled(&[1, 2, 2], &[1.0; 4]);
        let one = "[input]\nconstants = { pixel_mask = 1 }\n";
        assert_eq!(run(one, std::slice::from_ref(&mask)).unwrap(), vec![ones.clone()]);
        let two = "[input.constants]\npixel_mask = 1\nscale_factor = 0.5\n[detect]\nsize_input = \"sizes\"";
        let all = [mask.clone(), size.clone(), factor.clone()];
        let sizes = filled(&[1, 2], &[96.0, 64.0]);
        assert_eq!(run(two, &all).unwrap(), [ones, sizes, filled(&[1, 2], &[0.5; 2])]);
        let check = |manifest, others: &[TensorSpec], expected: &str| {
            let error = run(manifest, others).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        check(
            one,
            std::slice::from_ref(&factor),
            "input.constants has \"pixel_mask\", expected inputs beside that of the image (\"images\")",
        );
        check("[input.constants]\nimages = 1", &[], "input.constants has \"images\"");
        check(one, &[mask.clone(), size], "fills those that are always the same");
        check("", &[factor], "input.constants = { NAME = 1 }");
        check(
            one,
            &[spec("pixel_mask", DataType::Int64, &[-1, -1, -1])],
            "nothing but the batch and axes that",
        );
        check("[input.constants]\npixel_mask = 0.5", &[mask], "a whole number also");
    }

    #[test]
    fn a_constant_has_the_extents_of_the_axes_that_the_file_names_as_it_names_the_images() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.onnx");
        let run = |keys: &str, image: &[&str], mask: &[&str]| {
            std::fs::write(&file, named_inputs(&[("pixels", image), ("mask", mask)])).unwrap();
            let text = format!("task = \"detect\"\n[input]\nconstants = {{ mask = 1 }}\n{keys}");
            let manifest = Manifest::parse(&text).unwrap();
            let shape = |axes: &[&str]| {
                axes.iter().map(|name| if name.is_empty() { 3 } else { -1 }).collect::<Vec<_>>()
            };
            let mut signature = signature(&[("out", &[-1, 10])]);
            signature.inputs = vec![
                spec("pixels", DataType::Fp32, &shape(image)),
                spec("mask", DataType::Int64, &shape(mask)),
            ];
            let outline = Outline::of(&file).unwrap();
            let input = resolve(&manifest.input.unwrap(), &manifest.task, &signature, &outline)?;
            Ok::<_, String>(input.behind(1000, 500).map(|tensor| tensor.shape).collect::<Vec<_>>())
        };
        let size = "width = 96\nheight = 64\n";
        let detr = ["batch", "", "height", "width"];
        assert_eq!(run(size, &detr, &["batch", "height", "width"]).unwrap(), [[1, 64, 96]]);
        assert_eq!(run(size, &["b", "h", "w", ""], &["b", "w", "h"]).unwrap(), [[1, 96, 64]]);
        let open = "nothing but the batch and axes that the file names as those of the image are open";
        for (keys, mask) in
            [(size, ["batch", "rows", "width"]), ("resize = \"none\"\n", ["batch", "height", "width"])]
        {
            let error = run(keys, &detr, &mask).unwrap_err();
            assert!(error.contains(open), "{error}");
        }
    }

    #[test]
    fn all_that_is_left_open_is_told_at_once_with_lines_that_settle_it() {
        let check = |manifest: &str, shape: &[i64], expected: &str| {
            let error = run(manifest, DataType::Fp32, shape).unwrap_err();
            assert!(error.contains(expected), "{error}");
            // Adding the lines that the message names is enough.
            let lines = expected.rsplit_once(": add ").unwrap().1;
            let settled = match lines.strip_prefix("the line ") {
                Some(line) => format!("{}\n{manifest}", line.split_once(" to model.toml").unwrap().0),
                None => {
                    let lines = lines.strip_prefix("to [input] ").unwrap();
                    format!("{manifest}\n{}", lines.split_once(", with").unwrap().0.replace(", ", "\n"))
                }
            };
            run(&settled, DataType::Fp32, shape).unwrap();
        };
        let [classify, detect] = ["task = \"classify\"", "task = \"detect\""];
        check(
            classify,
            &[-1, -1, -1, -1],
            "input \"image\" of shape [?, ?, ?, ?] leaves open layout, color, width, height: add the line input = { layout = \
             \"nchw\", color = \"rgb\", width = 224, height = 224 } to model.toml, above its tables, with what",
        );
        check(
            detect,
            &[-1, 3, -1, -1],
            "leaves open width, height: add the line input = { width = 640, height = 640 } to model.toml",
        );
        check(
            &format!("{classify}\n[input]\nlayout = \"nhwc\"\nwidth = 96"),
            &[-1, -1, -1, -1],
            "leaves open color, height: add to [input] color = \"rgb\", height = 224, with what",
        );
        check(
            classify,
            &[-1, 3, 8, 3],
            "leaves open layout: add the line input = { layout = \"nchw\" } to model.toml",
        );
        check(
            &format!("{classify}\n[input]\nresize = \"none\""),
            &[-1, 8, -1, -1],
            "leaves open layout, color: add to [input] layout = \"nhwc\", color = \"rgb\", with what",
        );
    }

    #[test]
    fn a_size_that_is_left_open_is_proposed_as_an_ultralytics_file_was_exported() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.onnx");
        let names = ("names", &b"{0: 'road'}"[..]);
        for (task, text) in [(&b"detect"[..], "task = \"detect\""), (b"classify", "task = \"classify\"")] {
            std::fs::write(&file, saying(&[("task", task), names, ("imgsz", b"[96, 160]")])).unwrap();
            let manifest = Manifest::parse(text).unwrap();
            let mut signature = signature(&[("output0", &[-1, 10])]);
            signature.inputs = vec![spec("images", DataType::Fp32, &[-1, 3, -1, -1])];
            let outline = Outline::of(&file).unwrap();
            let error = resolve(&manifest.input.unwrap(), &manifest.task, &signature, &outline).map(|_| ());
            let error = error.unwrap_err();
            assert!(
                error.contains("add the line input = { width = 160, height = 96 } to model.toml"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_open_axis_that_is_named_for_the_channels_tells_the_layout_and_that_there_are_three() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.onnx");
        let run = |manifest: &str, axes: &[&str]| {
            std::fs::write(&file, onnx("image", axes)).unwrap();
            let manifest = Manifest::parse(&format!("task = \"classify\"\n[input]\n{manifest}")).unwrap();
            let mut signature = signature(&[("out", &[-1, 10])]);
            signature.inputs = vec![spec("image", DataType::Fp32, &[-1, -1, -1, -1])];
            resolve(
                &manifest.input.unwrap(),
                &manifest.task,
                &signature,
                &Outline::of(&file).unwrap_or_default(),
            )
        };
        let optimum = ["batch_size", "num_channels", "height", "width"];
        let error = run("", &optimum).map(|_| ()).unwrap_err();
        assert!(error.contains("leaves open width, height: "), "{error}");
        let sides = "width = 32\nheight = 24\n";
        let shape = |manifest: &str, axes| {
            let input = run(&format!("{sides}{manifest}"), axes).unwrap();
            (input.preprocess.color, input.item_shape(32, 24))
        };
        assert_eq!(shape("", &optimum), (Color::Rgb, vec![1, 3, 24, 32]));
        assert_eq!(shape("", &["batch", "height", "width", "channels"]), (Color::Rgb, vec![1, 24, 32, 3]));
        // The manifest takes precedence.
        assert_eq!(shape("color = \"gray\"", &optimum), (Color::Gray, vec![1, 1, 24, 32]));
        let other = run(&format!("{sides}layout = \"nhwc\""), &optimum).map(|_| ()).unwrap_err();
        assert!(other.contains("leaves open color: "), "{other}");
    }

    #[test]
    fn an_input_is_letterboxed_and_has_no_mean_where_an_ultralytics_file_is_for_classes_of_pixels() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.onnx");
        std::fs::write(&file, saying(&[("task", &b"semantic"[..]), ("names", b"{0: 'road'}")])).unwrap();
        let run = |text: &str| {
            let manifest = Manifest::parse(text).unwrap();
            let mut signature = signature(&[("output0", &[1, 64, 96])]);
            signature.inputs = vec![spec("images", DataType::Fp32, &[1, 3, 64, 96])];
            let outline = Outline::of(&file).unwrap();
            resolve(&manifest.input.unwrap(), &manifest.task, &signature, &outline).unwrap().preprocess
        };
        let taken = run("task = \"segment\"");
        assert_eq!(
            (taken.resize, taken.pad, taken.mean, taken.std),
            (Resize::Letterbox, 114, [0.0; 3], [1.0; 3])
        );
        let set = run("task = \"segment\"\n[input]\nresize = \"stretch\"\nmean = 0.5\nstd = 0.25");
        assert_eq!((set.resize, set.mean, set.std), (Resize::Stretch, [0.5; 3], [0.25; 3]));
    }

    #[test]
    fn contradictions_are_errors_that_say_what_to_do() {
        let check = |manifest: &str, datatype, shape: &[i64], expected: &str| {
            let text = format!("task = \"classify\"\n[input]\n{manifest}");
            let error = run(&text, datatype, shape).unwrap_err();
            assert!(error.contains(expected), "{error}");
        };
        let fp32 = DataType::Fp32;
        check(
            "width = 9",
            fp32,
            &[-1, 3, 8, 8],
            "input.width is 9, but input \"image\" of shape [?, 3, 8, 8] has 8",
        );
        check("", DataType::Int64, &[-1, 3, 8, 8], "is INT64; images can become FP32, FP16 or UINT8");
        check("", fp32, &[-1, 4, 8, 8], "has shape [?, 4, 8, 8]; an image needs");
        check("", fp32, &[8, 3, 8, 8], "has shape [8, 3, 8, 8]; an image needs");
        check("", fp32, &[-1, 10], "has shape [?, 10]; an image needs");
        let tensors = "serve it with task = \"tensors\" and no [input]";
        for shape in [&[-1, 2, 8, 8][..], &[-1, 4, 8, 8], &[-1, 13, 8, 8], &[-1, 3, 16, 8, 8], &[-1, 784]] {
            check("", fp32, shape, tensors);
        }
        check("", DataType::Int64, &[-1, 3, 8, 8], tensors);
        check("layout = \"nhwc\"", fp32, &[-1, 8, 8], "an image needs");
        check("color = \"gray\"", fp32, &[-1, 3, 8, 8], "input.color has 1 channels");
        check(
            "layout = \"nhwc\"",
            fp32,
            &[-1, 3, 64, 64],
            "input.layout is \"nhwc\", by which input \"image\" of shape [?, 3, 64, 64] has 64 channels",
        );
        check("mean = [1, 2, 3]", fp32, &[-1, 1, 8, 8], "input.mean has 3 numbers");
        check("mean = 0.5", DataType::Uint8, &[-1, 3, 8, 8], "[input]: UINT8");
        check("mean = [123.675, 116.28, 103.53]", fp32, &[-1, 3, 8, 8], "from 0 to 255, set input.scale = 1");
        check(
            "mean = 1000",
            fp32,
            &[-1, 1, 8, 8],
            "those of measured values, which are not scaled, or of pixels from 0",
        );
        for numbers in ["mean = 127.5\nstd = 128", "mean = 1000\nstd = 300"] {
            let text = format!("[input]\nscale = 1\n{numbers}");
            assert!(run(&text, fp32, &[-1, 3, 8, 8]).is_ok(), "{numbers}");
        }
        check("size = 7", fp32, &[-1, 3, 8, 8], "input.size is 7, less than the input of 8 x 8");
        check(
            "resize = \"stretch\"\nsize = 7",
            fp32,
            &[-1, 3, 8, 8],
            "input.size is 7, less than the input of 8 x 8",
        );
        check("resize = \"letterbox\"\nsize = 9", fp32, &[-1, 3, 8, 8], "input.size = 9 is only read with");
        check("pad = 9", fp32, &[-1, 3, 8, 8], "input.pad = 9 is only read with");
        for (keys, what) in
            [("resize = \"shorter\"", "input.resize = \"shorter\" "), ("size = 9", "input.size ")]
        {
            let text = format!("task = \"segment\"\n[input]\n{keys}");
            let cut = run(&text, fp32, &[-1, 3, 8, 8]).unwrap_err();
            assert!(cut.starts_with(what) && cut.contains("a segmenter has to give the class, too"), "{cut}");
            assert!(cut.ends_with("set \"stretch\" without a size, or \"letterbox\""), "{cut}");
        }
        check("resize = \"none\"\nfilter = \"box\"", fp32, &[-1, 3, 8, 8], "input.filter is not read with");
    }
}
