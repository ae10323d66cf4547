//! From a checked table to a [`Manifest`]: each key with its range and its default.

use super::{
    BatchLimits, COMPANY_WAIT_MAX, Engine, Fallback, INSTANCES_MAX, ITEMS_MAX, Input, Kept, Manifest,
    Placing, ResizeRule, Versions, file_name, queue,
};
use crate::{
    engine::onnx::{
        OnGpu,
        gpu::{ConvSearch, CudaGraph, Provider},
    },
    image::{Color, Filter, Layout, Pages},
    models::strict::Table,
    tasks::{
        Activation, Background, BoxFormat, Classify, Columns, Detect, Embed, Enlarge, Image, Keypoints,
        Labels, MaskArea, Orientation, Pool, Segment, SizeOrder, Task, detect,
        image::{Range, Size},
        landmarks::{Form, Landmarks, Order, POINTS_MAX, Third, Unit},
    },
};
use std::time::Duration;

const LAYOUTS: &[(&str, Layout)] = &[("nchw", Layout::Nchw), ("nhwc", Layout::Nhwc)];

const ACTIVATIONS: &[(&str, Activation)] =
    &[("softmax", Activation::Softmax), ("sigmoid", Activation::Sigmoid), ("none", Activation::None)];

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Classify,
    Detect,
    Segment,
    Image,
    Landmarks,
    Embed,
    Tensors,
}

pub(super) const TASKS: &[(&str, Kind)] = &[
    ("classify", Kind::Classify),
    ("detect", Kind::Detect),
    ("segment", Kind::Segment),
    ("image", Kind::Image),
    ("landmarks", Kind::Landmarks),
    ("embed", Kind::Embed),
    ("tensors", Kind::Tensors),
];

pub(super) fn manifest(root: &Table<'_, '_>) -> Manifest {
    for table in ["fit", "camera"] {
        let table = root.table(table);
        if table.is_given() {
            table.mistake("[fit] and [camera] are only read with engine = \"gauss-mle\"");
        }
    }
    let kind = match root.is("task", "localize") {
        true => {
            root.mistake_at("task", "= \"localize\" is a fitter's: say engine = \"gauss-mle\" above it");
            None
        }
        false => root.choice("task", TASKS),
    };
    let kind = kind.unwrap_or(Kind::Tensors);
    let labels = root.string("labels");
    if let Some(Err(why)) = labels.as_deref().map(file_name) {
        root.mistake_at("labels", why);
    }
    let queue = queue::read(&root.table("queue"));
    let (priority, timeout) = urgency(root, queue.priorities);

    let input = root.table("input");
    let takes_images = kind != Kind::Tensors || input.is_given();
    let input = takes_images.then(|| read_input(&input));
    let tables = [
        (Kind::Classify, root.table("classify")),
        (Kind::Detect, root.table("detect")),
        (Kind::Segment, root.table("segment")),
        (Kind::Image, root.table("image")),
        (Kind::Landmarks, root.table("landmarks")),
        (Kind::Embed, root.table("embed")),
    ];
    for (of, table) in &tables {
        let name = TASKS.iter().find(|(_, k)| k == of).map_or("", |(name, _)| name);
        if *of != kind && table.is_given() {
            table.mistake(format_args!("[{name}] is only read with task = {name:?} above all tables"));
        }
    }
    let [(_, classify), (_, detect), (_, segment), (_, image), (_, landmarks), (_, embed)] = &tables;
    let task = match kind {
        Kind::Classify => Task::Classify(read_classify(classify)),
        Kind::Detect => Task::Detect(Box::new(read_detect(detect))),
        Kind::Segment => Task::Segment(read_segment(segment)),
        Kind::Image => Task::Image(read_image(image, input.as_ref())),
        Kind::Landmarks => Task::Landmarks(read_landmarks(landmarks)),
        Kind::Embed => Task::Embed(Embed {
            output: embed.string("output"),
            pool: embed.choice("pool", &Pool::ALL),
            normalize: embed.flag("normalize").unwrap_or(false),
        }),
        Kind::Tensors => Task::Tensors,
    };
    for (of, table) in &tables {
        if *of == kind {
            table.finish();
        }
    }
    let manifest = Manifest {
        engine: Engine::Onnx,
        task,
        versions: Versions::All,
        file: None,
        labels,
        priority,
        timeout,
        input,
        batch: batch(&root.table("batch"), ITEMS_MAX),
        queue,
        placement: placement(&root.table("placement")),
        gpu: gpu(&root.table("gpu")),
        declared: None,
        by_name: false,
        warmups: Vec::new(),
        kept: Kept::default(),
    };
    root.finish();
    manifest
}

/// The defaults for requests: a priority, below `priorities`, and a deadline.
pub(super) fn urgency(root: &Table<'_, '_>, priorities: u8) -> (u8, Option<Duration>) {
    let least = priorities - 1;
    let priority = root.integer("priority", 0..=least).unwrap_or(least.min(1));
    let timeout_ms = root.integer("timeout_ms", 1..=3_600_000_u64);
    (priority, timeout_ms.map(Duration::from_millis))
}

/// The longest side of an input.
pub(in crate::models) const SIDE_MAX: u32 = 16_384;

/// The largest multiple of pixels that the sides of an input may have to be of.
const MULTIPLE_MAX: u32 = 1024;

fn read_input(table: &Table<'_, '_>) -> Input {
    let pixels = 1..=SIDE_MAX;
    let pages = table.choice("pages", &Pages::ALL);
    let each = (pages != Some(Pages::Channels)).then_some(3);
    let input = Input {
        name: table.string("name"),
        pages,
        resize: table.choice(
            "resize",
            &[
                ("shorter", ResizeRule::Shorter),
                ("stretch", ResizeRule::Stretch),
                ("letterbox", ResizeRule::Letterbox),
                ("height", ResizeRule::Height),
                ("none", ResizeRule::None),
            ],
        ),
        size: table.integer("size", pixels.clone()),
        multiple: table.integer("multiple", 2..=MULTIPLE_MAX),
        width: table.integer("width", pixels.clone()),
        height: table.integer("height", pixels),
        filter: table.choice("filter", &Filter::ALL),
        color: table.choice("color", &Color::ALL),
        layout: table.choice("layout", LAYOUTS),
        scale: table.number("scale", 1e-9..=1e9).map(|n| n as f32),
        mean: table.channels("mean", -1e6..=1e6, each),
        std: table.channels("std", 1e-6..=1e6, each),
        pad: table.integer("pad", 0..=255),
        background: table
            .channels("background", 0.0..=255.0, Some(3))
            .map(|values| std::array::from_fn(|i| *values.get(i).unwrap_or(&values[0]) as u8)),
        constants: table.numbers("constants", -1e9..=1e9).unwrap_or_default(),
    };
    table.finish();
    input
}

fn read_classify(table: &Table<'_, '_>) -> Classify {
    let default = Classify::default();
    Classify {
        output: table.string("output"),
        activation: table.choice("activation", ACTIVATIONS),
        top_k: table.integer("top_k", 1..=1000).unwrap_or(default.top_k),
        quantized: None,
    }
}

/// A face with all its contours has 478 points.
pub(in crate::models) const KEYPOINTS_MAX: usize = 1000;

fn read_detect(table: &Table<'_, '_>) -> Detect {
    let default = Detect::default();
    let format = table.choice("format", &detect::Format::ALL);
    let columns = table.words("columns", Columns::ALLOWED, Columns::is_one);
    let columns = columns.and_then(|words| {
        let columns = Columns::of(&words);
        if columns.is_none() {
            table.mistake_at("columns", format_args!("is {words:?}, allowed: {}", Columns::ALLOWED));
        }
        columns
    });
    Detect {
        format,
        output: table.string("output"),
        boxes: table.string("boxes"),
        scores: table.string("scores"),
        classes: table.string("classes"),
        count: table.string("count"),
        size_input: table.string("size_input"),
        size_order: table.choice("size_order", &SizeOrder::ALL),
        box_format: table.choice(
            "box_format",
            &[
                ("xyxy", BoxFormat::Xyxy),
                ("yxyx", BoxFormat::Yxyx),
                ("cxcywh", BoxFormat::Cxcywh),
                ("xywh", BoxFormat::Xywh),
            ],
        ),
        normalized: table.flag("normalized"),
        orientation: table.choice(
            "orientation",
            &[("channels_first", Orientation::ChannelsFirst), ("channels_last", Orientation::ChannelsLast)],
        ),
        objectness: table.flag("objectness"),
        columns,
        activation: table.choice("activation", ACTIVATIONS),
        background: table.choice("background", &[("first", Background::First), ("last", Background::Last)]),
        first_class: table.integer("first_class", 0..=65_535),
        keypoints: table
            .count_or_names("keypoints", 1..=KEYPOINTS_MAX)
            .map(|(count, names)| Keypoints { count, names: Labels::of(names) }),
        masks: table.string("masks"),
        mask_area: table.choice("mask_area", &[("input", MaskArea::Input), ("box", MaskArea::Box)]),
        mask_threshold: table.number("mask_threshold", -1e6..=1e6).map(|n| n as f32),
        angle: table.flag("angle"),
        prototypes: None,
        multi_label: table.flag("multi_label").unwrap_or(default.multi_label),
        score_min: table.number("score_min", 0.0..=1.0).map_or(default.score_min, |n| n as f32),
        iou_max: table.number("iou_max", 0.0..=1.0).map(|n| n as f32),
        detections_max: table.integer("detections_max", 1..=1000).unwrap_or(default.detections_max),
        input: None,
    }
}

fn read_segment(table: &Table<'_, '_>) -> Segment {
    Segment {
        output: table.string("output"),
        layout: table.choice("layout", LAYOUTS),
        threshold: table.number("threshold", -1e6..=1e6).map(|n| n as f32),
        enlarge: table.choice("enlarge", &Enlarge::ALL),
        ..Segment::default()
    }
}

fn read_landmarks(table: &Table<'_, '_>) -> Landmarks {
    Landmarks {
        output: table.string("output"),
        x: table.string("x"),
        y: table.string("y"),
        form: table.choice("form", &Form::ALL),
        points: table.integer("points", 1..=POINTS_MAX),
        unit: table.choice("unit", &Unit::ALL),
        order: table.choice("order", &Order::ALL),
        third: table.choice("third", &Third::ALL),
        layout: table.choice("layout", LAYOUTS),
        refine: table.flag("refine"),
        input: None,
    }
}

/// `[image]`, for a model whose input images are prepared so.
fn read_image(table: &Table<'_, '_>, input: Option<&Input>) -> Image {
    let depth = table.integer("depth", 8..=16);
    if let Some(other) = depth.filter(|depth| ![8, 16].contains(depth)) {
        table.mistake_at("depth", format_args!("is {other}, allowed: 8, 16"));
    }
    // If a network takes images at their own size, callers mostly want its output at the network's size.
    let usual = match input {
        Some(Input { resize: Some(ResizeRule::None), .. }) => Size::Output,
        _ => Size::Source,
    };
    let range = table.word_or_pair("range", "auto", -1e30..=1e30);
    Image {
        output: table.string("output"),
        layout: table.choice("layout", LAYOUTS),
        range: range.map(|range| range.map_or(Range::Auto, Range::Of)),
        bgr: table.choice("color", &[("rgb", false), ("bgr", true)]).unwrap_or(false),
        depth: depth.unwrap_or(8),
        size: table.choice("size", &[("source", Size::Source), ("output", Size::Output)]).unwrap_or(usual),
        input: None,
    }
}

/// `[batch]`, with at most `items_max` items.
pub(super) fn batch(table: &Table<'_, '_>, items_max: usize) -> BatchLimits {
    let no_axis = table.choice("axis", &[("items", false), ("none", true)]);
    let range = 1..=items_max;
    let items_max = table.integer("items_max", range.clone());
    let mut sizes = table.integers("sizes", range);
    if let Some(sizes) = &mut sizes {
        if !sizes.is_sorted_by(|a, b| a < b) {
            table.mistake_at("sizes", format_args!("is {sizes:?}, allowed: rising sizes"));
        }
        if let (Some(items_max), Some(largest)) = (items_max, sizes.last())
            && items_max != *largest
        {
            table.mistake_at(
                "items_max",
                format_args!(
                    "is {items_max}, but the largest of batch.sizes is {largest}: give one of the two"
                ),
            );
        }
    }
    if let (Some(true), Some(largest)) =
        (no_axis, sizes.as_ref().and_then(|sizes| sizes.last()).or(items_max.as_ref()))
    {
        table.mistake_at(
            "axis",
            format_args!("is \"none\", but batches are of up to {largest} items: give one of the two"),
        );
    }
    let limits = BatchLimits {
        items_max,
        sizes,
        no_axis,
        wait_max: Duration::from_secs_f64(
            table.number("wait_ms_max", 0.0..=COMPANY_WAIT_MAX.as_secs_f64() * 1000.0).unwrap_or(0.0)
                / 1000.0,
        ),
        weight: table.number("weight", 0.01..=100.0).unwrap_or(1.0),
        merges: true,
    };
    table.finish();
    limits
}

pub(super) fn placement(table: &Table<'_, '_>) -> Placing {
    let device = |word: &str| {
        let number = word.strip_prefix("gpu:").unwrap_or(word);
        let number = (1..=3).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
        let uuid = ["GPU-", "MIG-"].iter().any(|kind| word.len() > kind.len() && word.starts_with(kind));
        matches!(word, "all" | "cpu" | "gpu") || number || uuid || word.contains('*')
    };
    let allowed = "\"all\", or \"cpu\", \"gpu\", a GPU's number (\"0\" or \"gpu:0\"), its UUID (\"GPU-...\"), a pattern of its \
                   name (with *), or a list of these";
    let mut devices = table.words("devices", allowed, device).unwrap_or_default();
    if devices.iter().any(|device| device == "all") {
        devices.clear();
    }
    let placing = Placing {
        devices,
        instances: table.integer("instances", 1..=INSTANCES_MAX).unwrap_or(1),
        memory_bytes_max: table.integer("memory_bytes_max", 1..=1_u64 << 50),
        fallback: table.choice("fallback", &Fallback::ALL),
        exclusive: table.flag("exclusive").unwrap_or(false),
    };
    table.finish();
    placing
}

fn gpu(table: &Table<'_, '_>) -> OnGpu {
    let tensorrt = table.choice("provider", &[("cuda", false), ("tensorrt", true)]).unwrap_or(false);
    let fp16 = table.flag("fp16");
    if fp16.is_some() && !tensorrt {
        table.mistake_at("fp16", "is only read with provider = \"tensorrt\"; for cuda, export the model so");
    }
    let search = [("heuristic", ConvSearch::Heuristic), ("exhaustive", ConvSearch::Exhaustive)];
    let graphs = [CudaGraph::Never, CudaGraph::Always];
    let on_gpu = OnGpu {
        provider: if tensorrt { Provider::TensorRt { fp16: fp16.unwrap_or(false) } } else { Provider::Cuda },
        cuda_graph: table.word_or_flag("cuda_graph", ("auto", CudaGraph::Auto), graphs).unwrap_or_default(),
        tf32: table.flag("tf32").unwrap_or(false),
        conv_search: table.choice("conv_search", &search).unwrap_or_default(),
        channels_last: table.flag("channels_last").unwrap_or(false),
    };
    table.finish();
    on_gpu
}
