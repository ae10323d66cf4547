//! `model.toml`: what a model's author says about it. Every key has a default, so an empty file is a manifest.
//!
//! ```toml
//! engine = "onnx"              # what runs the model: onnx | gauss-mle (a fitter, with its own tables: see below)
//! task = "tensors"             # classify | detect | segment | image | landmarks | embed | tensors
//! labels = "labels.txt"        # class names, one per line, a file in the model's folder; default: none
//! priority = 1                 # default of its requests: 0 (most urgent) to 9
//! timeout_ms = 30000           # default deadline of its requests: 1 to 3600000
//!
//! [input]                      # how an image becomes the input; with task = "tensors", images are taken only if this is there
//! name = "images"              # of several inputs, the one that an image becomes; default: the only one that has the form of an image
//! pages = "pictures"           # what the pages of a file are: pictures | channels (of one picture: of a TIFF, of an array c, h, w); default: pictures
//! resize = "shorter"           # shorter (then the centre is cut out) | stretch | letterbox | height (the width follows) | none (images keep their size, which must be the input's where that is fixed)
//!                              # default: shorter for classify, embed, tensors; letterbox for detect; stretch for segment, image, landmarks
//! # multiple = 16              # none: images are filled up to such sides with their mirror image, which answers are without: 2 to 1024
//! size = 256                   # shorter: pixels of the shorter side; default: the input's longer side * 256 / 224. stretch: pixels of both, before the centre is cut out; default: the input's
//! width = 224                  # of the input, if the model leaves it open; likewise height
//! height = 224
//! filter = "bilinear"          # nearest | box | bilinear | bicubic | lanczos3, all antialiased
//! color = "rgb"                # rgb | bgr | gray; default: rgb for 3 channels, gray for 1
//! layout = "nchw"              # nchw | nhwc; default: the axis with extent 1 or 3 is the channel axis; pages = "channels": the fixed or smaller one
//! scale = 0.00392156862745098  # value = (pixel * scale - mean) / std; default: 1/255; 1 for UINT8 inputs, which take neither
//! mean = [0.485, 0.456, 0.406] # one number or three (pages = "channels": one or one for each); default: ImageNet's, but 0 for gray, detect, image and tensors
//! std = [0.229, 0.224, 0.225]  # likewise; default 1 where mean is 0
//! pad = 114                    # letterbox: value of the padding, 0 to 255
//! background = [255, 255, 255] # behind transparent pixels: one number or red, green, blue
//! constants = { pixel_mask = 1 }  # further inputs that are the same for each image: names and the number that fills each; default: none
//!
//! [classify]
//! output = "logits"            # default: the only output
//! activation = "softmax"       # softmax | sigmoid | none (the model gives probabilities); default: by the file and a pass at load, see docs/models.md
//! top_k = 5                    # 1 to 1000
//!
//! [detect]
//! format = "yolo"              # yolo | boxes | end2end; default: yolo for a model of one output, or where output names one (of [N, K, 6] with K open or up to 1000, none, but end2end if an Ultralytics file says so), else boxes
//! output = "output0"           # yolo, end2end; default: the only output
//! orientation = "channels_first"  # yolo: channels_first ([1, 4 + C, A]) | channels_last; default: found from the labels
//! objectness = false           # yolo: whether the fifth channel is an objectness; default: found from the labels if channels are last
//! columns = ["box", "score", "class"]  # end2end: the order of a row: box (four), score, class; image (the picture's number), skip (one that is not read), at the end rest; default: these three
//! boxes = "boxes"              # boxes: names of the outputs; default: torchvision's or TensorFlow's names
//! scores = "scores"            # the same as boxes: the fifth number of each box
//! classes = "labels"           # an output of class numbers; without one scores are [1, N, C], or [1, N] of one class
//! count = "num_detections"
//! size_input = "orig_target_sizes"  # a further input, if it takes the width and height in whose pixels boxes come; default: none
//! size_order = "wh"            # of that input: wh | hw (the height first); default: wh, but to be said of an input that is called a shape
//! activation = "none"          # boxes: softmax | sigmoid | none (outputs are scores); default: none; must be set for outputs named logits
//! background = "first"         # boxes, scores [N, K, C]: column that is no class, first | last; labels count the others; default: none
//! first_class = 0              # boxes, end2end: class number of the first label; default: 1 for an output named detection_classes, else 0
//! box_format = "xyxy"          # xyxy | yxyx | cxcywh | xywh; default: cxcywh for yolo, yxyx for detection_boxes, else xyxy
//! normalized = false           # coordinates are fractions of the input's size; default: only for detection_boxes
//! keypoints = 17               # how many follow each box, or a list of their names; boxes: in an output named keypoints; default: none
//! masks = "output1"            # the output with masks: a mask for each box (boxes), or prototypes whose factors follow each box
//! mask_area = "box"            # boxes: input | box, what a mask covers; default: input if masks have its size; otherwise it must be set
//! mask_threshold = 0.5         # a pixel is in a mask above it; default: 0 for prototypes, whose sums are logits, else 0.5
//! angle = false                # yolo, end2end: an angle in radians follows each box and turns it (OBB)
//! multi_label = false          # whether each class of a box that reaches score_min is a detection, not only its best
//! score_min = 0.25             # 0 to 1
//! iou_max = 0.5                # 0 to 1; 1 turns suppression off, which is the default for end2end
//! detections_max = 300         # 1 to 1000
//!
//! [segment]
//! output = "out"               # default: the only output
//! layout = "nchw"              # nchw | nhwc; default: found from the labels, or from the extents of the input
//! threshold = 0.5              # for models of one channel: 0.5 is for probabilities, for logits say 0
//! enlarge = "nearest"          # nearest (by the class of the output's pixel) | bilinear (by the scores between pixels); default: bilinear for scores of fewer pixels than the input
//!
//! [image]
//! output = "out"               # default: the only output
//! layout = "nchw"              # nchw | nhwc; default: the axis with extent 1, 3 or 4 is the channel axis
//! color = "rgb"                # rgb | bgr: the order of the network's channels
//! range = [0.0, 1.0]           # the values that become black and white, or "auto": the least and the greatest of each picture;
//!                              # default: 0 and 1 for floating point, 255 for UINT8, 65535 for UINT16
//! depth = 8                    # bits of a channel in PNG: 8 | 16
//! size = "source"              # source (the posted image's size and place) | output (the network's); default: output with resize = "none", else source
//!
//! [landmarks]
//! output = "out"               # default: the only output
//! form = "coordinates"         # coordinates ([N, 2 K], [N, K, 2], [N, K, 3]) | heatmaps ([N, K, H, W]) | simcc (two outputs [N, K, bins]); default: simcc of outputs simcc_x and simcc_y, else found from the shape
//! # x = "simcc_x"              # simcc: the output with the bins across, in place of output; likewise y, with those down
//! points = 68                  # 1 to 10000; default: as many as labels, else found from the shape
//! unit = "pixels"              # coordinates: pixels (of the input) | parts (0 to 1 of its sides) | centred (-1 to 1); must be set
//! order = "xy"                 # coordinates: xy | yx
//! third = "score"              # coordinates: what a third number of a point is, score | skip
//! # layout = "nchw"            # heatmaps: nchw | nhwc; default: found from the number of points, or from the extents of the input
//! # refine = true              # heatmaps: whether a point is moved by a quarter towards the higher neighbours
//!
//! [embed]
//! output = "features"          # default: the only output
//! pool = "none"                # none | first (of tokens [N, T, F]) | mean (of tokens, or of maps [N, F, H, W]); default: all numbers are the vector
//! normalize = false            # divide by the Euclidean norm
//!
//! [batch]
//! axis = "items"               # what the first axis counts if it is free: items | none (each request is one run)
//! items_max = 16               # 1 to 1024; always 1 for models without a free batch axis; default: 16, on the CPU as far as is tried at load
//! sizes = [1, 2, 4, 8, 16]     # batches are padded to these; default: on GPUs, to powers of two up to items_max
//! wait_ms_max = 0              # how long a batch waits for further requests while a device is idle: 0 to 10000
//! weight = 1.0                 # share of device time against other models: 0.01 to 100
//!
//! [queue]                      # how its requests wait
//! priorities = 10              # number of levels, 1 to 255: 0 is the most urgent; a request for any other gets the model's priority
//! requests_max = 100           # waiting at once, per priority: 1 to 1000000; default: no bound but that of the whole queue
//! wait_ms_max = 250            # how long a request may wait to be started: 0.001 to 3600000; default: until its deadline
//! late = "refuse"              # what happens to it then: refuse | delay (it goes behind all others of its priority)
//! shorten = true               # whether a request's parameter timeout is honoured
//!
//! [queue.priority.0]           # the same keys, except priorities, for one priority; what is left out is as in [queue]
//! requests_max = 10
//!
//! [placement]
//! devices = "all"              # all, cpu, gpu, a GPU's number ("0" or "gpu:0") or UUID ("GPU-8f2c..."), a pattern of its name ("*A100*"), or a list of these
//! instances = 1                # per device: 1 to 64
//! memory_bytes_max = 2000000000   # default: no limit
//! fallback = "cpu"             # what serves while none of these devices is available: cpu | other-gpu | never
//! exclusive = false            # whether no other model may be on its GPUs
//!
//! [gpu]                        # how a model runs on GPUs
//! provider = "cuda"            # cuda | tensorrt (if its libraries are installed), which may use half precision: fp16 = true
//! cuda_graph = "auto"          # record each batch size once, and replay it: false | auto (where that is known to work) | true
//! tf32 = false                 # multiply single precision with 10 bits of mantissa
//! conv_search = "heuristic"    # heuristic | exhaustive (slow to load)
//! channels_last = false        # run convolutions in the layout that tensor cores read
//! ```
//!
//! A fitter of Gaussian spots needs no model file. These are its tables; requests may change every key in them:
//!
//! ```fit
//! engine = "gauss-mle"
//! task = "localize"            # the only one
//!
//! [fit]
//! psf = "xynb"                 # what is fitted: xynb (x, y, photons, background) | xynbs (and a width) | xynbsxsy (and two) | xyznb (and z)
//! sigma_px = 1.3               # width of a spot: given for xynb and xyznb (in focus), where the fit begins for the others; one number, or x and y
//! gamma_um = 0.25              # xyznb: sigma(z)^2 = sigma^2 (1 + t^2 + a t^3 + b t^4), t = (z - gamma) / depth for x, (z + gamma) / depth for y
//! depth_um = 0.4
//! a = 0.0                      # one number, or x and y
//! b = 0.0
//! z_um = [-1.0, 1.0]           # where z may be
//! # box_px = 7                 # side of the boxes that are cut out around spots: odd, 3 to 21; default: 7, for xyznb 13
//! iterations_max = 30          # evaluations of the model before a fit is given up: 1 to 100
//! preset = "none"              # none | gaussmle: columns, units and conventions of replies as GaussMLE.jl has them
//!
//! [camera]                     # photo-electrons = (value - offset) * gain
//! pixel_nm = 100               # default: what the file says, else unknown, and positions are in pixels; one number, or x and y
//! offset = 0                   # a number, or a .npy file in the model's folder with one number per pixel of the sensor
//! gain = 1.0                   # photo-electrons per count; likewise
//! read_noise = 0.0             # photo-electrons rms; likewise
//! excess_noise = 1.0           # by how much multiplication raises the variance of photo-electrons (F^2): 2 of an EMCCD; 1 to 4
//! # corner_px = [0, 0]         # column and row of the maps where frames of a part of the sensor begin; default: frames are all of it
//!
//! [detect]                     # which spots of a frame are cut out and fitted
//! method = "contrast"          # contrast (difference of Gaussians) | net-gradient (Picasso's)
//! noise_min = 5.0              # contrast: threshold in multiples of the contrast's noise where there is no spot; or instead
//! # photons_min = 300          # contrast: threshold as the contrast of a spot of this many photons
//! # gradient_min = 400         # net-gradient: threshold in photo-electrons
//! radius_px = 2                # contrast: a spot is the highest pixel within this many rows and columns: 1 to 16
//! border = "shift"             # boxes that would leave the frame: shift (are moved inwards) | drop; net-gradient finds no spot whose box, with one pixel around it, would
//! # spots_max = 10000          # per frame; of more, the strongest are kept: 1 to 65536; default: by the frame's area, at least 10000
//! ```

mod fit;
mod input;
pub(super) mod queue;
mod read;

pub use fit::Fit;
pub use input::{Input, ResizeRule};
pub use queue::Waiting;
pub(super) use read::{KEYPOINTS_MAX, SIDE_MAX};

use super::{
    Declared, Warmup,
    strict::{Mistakes, Table},
};
use crate::{engine::onnx::OnGpu, tasks::Task};
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};
use toml::de::DeTable;

/// A model's manifest, checked as far as that is possible without the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// What runs the model.
    pub engine: Engine,
    /// What the outputs mean; names and shapes are still open.
    pub task: Task,
    /// Which of the versions in its folder are served.
    pub versions: Versions,
    /// The model file's name in each version's folder; `None` for the usual one.
    pub file: Option<String>,
    /// File name of the labels in the model's folder.
    pub labels: Option<String>,
    /// Default priority of requests: 0 is the most urgent, `queue.priorities - 1` the least.
    pub priority: u8,
    /// Default deadline of requests.
    pub timeout: Option<Duration>,
    /// How images become the input; `None` if images are not taken.
    pub input: Option<Input>,
    /// How items are batched.
    pub batch: BatchLimits,
    /// How requests wait.
    pub queue: Waiting,
    /// Where instances run.
    pub placement: Placing,
    /// How ONNX Runtime runs it on GPUs.
    pub gpu: OnGpu,
    /// Declared inputs and outputs; a `model.toml` declares none.
    pub declared: Option<Declared>,
    /// Whether replies and undeclared inputs and outputs are ordered by name, as in Triton's ONNX backend. True for a `config.pbtxt`.
    pub by_name: bool,
    /// Further warm-up runs, beside those that every model gets; a `model.toml` asks for none.
    pub warmups: Vec<Warmup>,
    /// Settings that only have to be reported again; a `model.toml` has none.
    pub kept: Kept,
}

/// Settings that are kept only so that the reported configuration includes them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Parameters of the backend in Triton.
    pub parameters: BTreeMap<String, String>,
    /// Labels of Triton's metrics.
    pub metric_tags: BTreeMap<String, String>,
    /// How the model is optimised, in Triton and on GPUs here; empty if the configuration does not say.
    pub optimization: Map<String, Value>,
}

/// Which versions are served; a `model.toml` cannot choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Versions {
    /// This many of the highest.
    Latest(usize),
    /// All versions.
    All,
    /// These.
    Specific(BTreeSet<String>),
}

/// What runs a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Engine {
    /// ONNX Runtime.
    Onnx,
    /// Our fitter of Gaussian spots.
    GaussMle(Box<Fit>),
}

/// `[batch]`.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchLimits {
    /// Items of the largest batch, if set.
    pub items_max: Option<usize>,
    /// Ascending, if set.
    pub sizes: Option<Vec<usize>>,
    /// `Some(true)` if the first axis, although free, counts no items, so that each request is one run; `None` if the author has not said.
    pub no_axis: Option<bool>,
    /// How long a batch may wait for further requests while a device is idle.
    pub wait_max: Duration,
    /// Share of device time.
    pub weight: f64,
    /// Whether sizes are those of batches made from several requests. Those of a `config.pbtxt` without `dynamic_batching` are not: Triton
    /// then runs each request alone.
    pub merges: bool,
}

impl BatchLimits {
    /// Whether the author says anything about batching requests together.
    pub fn is_said(&self) -> bool {
        self.no_axis.is_some() || (self.merges && self.has_sizes())
    }

    /// Whether the author says how many items a request may have, but nothing about batching requests together.
    pub fn is_of_requests(&self) -> bool {
        !self.merges && self.has_sizes()
    }

    /// Whether the author asks for batches of several requests.
    pub fn asks_for_batches(&self) -> bool {
        let waits = !self.wait_max.is_zero();
        self.no_axis != Some(true) && self.largest() > 1 && (self.is_said() || waits)
    }

    fn has_sizes(&self) -> bool {
        self.items_max.is_some() || self.sizes.is_some()
    }

    /// Items in the largest batch, for models that take any number.
    pub fn largest(&self) -> usize {
        let listed = self.sizes.as_ref().and_then(|sizes| sizes.last().copied());
        listed.or(self.items_max).unwrap_or(BATCH_ITEMS_MAX)
    }
}

/// `[placement]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Placing {
    /// `cpu`, `gpu`, numbers, UUIDs or patterns of names; empty for all.
    pub devices: Vec<String>,
    /// Instances per device.
    pub instances: usize,
    /// Memory of one instance.
    pub memory_bytes_max: Option<u64>,
    /// What serves while none of the devices is available, if set.
    pub fallback: Option<Fallback>,
    /// Whether no other model may be on the GPUs among its devices.
    pub exclusive: bool,
}

impl Placing {
    /// Whether the model must not run on the CPU.
    pub fn forbids_cpu(&self) -> bool {
        self.fallback == Some(Fallback::Never)
    }
}

/// `placement.fallback`: what serves a model while none of its devices is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// The machine's own processors.
    Cpu,
    /// A GPU that is not one of the model's devices.
    OtherGpu,
    /// Nothing.
    Never,
}

impl Fallback {
    /// All variants, with their names in manifests.
    pub const ALL: [(&str, Fallback); 3] =
        [("cpu", Fallback::Cpu), ("other-gpu", Fallback::OtherGpu), ("never", Fallback::Never)];
}

/// Every mistake of a manifest, each with its line, its key and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError(pub Vec<String>);

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for ManifestError {}

/// Items in the largest batch if the manifest does not say.
pub const BATCH_ITEMS_MAX: usize = 16;
/// The largest number of items in a batch that a manifest may set.
pub const ITEMS_MAX: usize = 1024;
/// Instances per device, at most.
pub const INSTANCES_MAX: usize = 64;
/// The longest time that a batch may wait for further requests.
pub const COMPANY_WAIT_MAX: Duration = Duration::from_secs(10);
/// The least urgent priority of a model that does not set the number of priorities.
pub const PRIORITY_MAX: u8 = 9;
impl Default for Manifest {
    fn default() -> Manifest {
        Manifest::parse("").expect("every key has a default")
    }
}

/// Reads the manifest of one kind of engine.
type Reader = fn(&Table<'_, '_>) -> Manifest;

const ENGINES: &[(&str, Reader)] = &[("onnx", read::manifest), ("gauss-mle", fit::manifest)];

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// All mistakes together: syntax, unknown keys (with the nearest known one), values outside their range, tables
    /// of a task that is not chosen.
    pub fn parse(text: &str) -> Result<Manifest, ManifestError> {
        let mistakes = Mistakes::new(text);
        let (root, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            mistakes.note_syntax(error);
        }
        if !errors.is_empty() {
            // After a syntax error, the recovered part may lack keys; the author must not be blamed for that.
            return Err(ManifestError(mistakes.into_messages()));
        }
        let root = Table::root(&root, &mistakes);
        let read = root.choice("engine", ENGINES).unwrap_or(read::manifest);
        let manifest = read(&root);
        let messages = mistakes.into_messages();
        if messages.is_empty() { Ok(manifest) } else { Err(ManifestError(messages)) }
    }
}

/// Checks that a name is that of a file in the model's folder.
pub(super) fn file_name(name: &str) -> Result<(), String> {
    if name.contains(['/', '\\', '\0', ':']) || matches!(name, "." | "..") {
        return Err(format!(
            "is {name:?}, allowed: the name of a file in the model's folder, without a path"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{read::TASKS, *};
    use crate::{
        engine::onnx::gpu::{CudaGraph, Provider},
        tasks::image::{Range, Size},
    };

    /// A manifest's mistakes.
    fn check(text: &str, expected: &[&str]) {
        let got = Manifest::parse(text).map(|_| ()).map_err(|error| error.0);
        assert_eq!(got.err().unwrap_or_default(), expected, "{text}");
    }

    #[test]
    fn an_empty_manifest_has_the_documented_defaults() {
        let manifest = Manifest::parse("").unwrap();
        assert_eq!(manifest.task, Task::Tensors);
        assert_eq!((manifest.priority, manifest.timeout), (1, None));
        assert_eq!(manifest.input, None);
        assert_eq!(manifest.batch.wait_max, Duration::ZERO);
        assert_eq!(manifest.placement.instances, 1);
        // Image tasks take images without an [input] table; tensors only with one.
        assert_eq!(Manifest::parse("task = \"embed\"").unwrap().input, Some(Input::default()));
        assert_eq!(Manifest::parse("[input]").unwrap().input, Some(Input::default()));
    }

    #[test]
    fn a_picture_is_the_networks_own_where_images_are_taken_as_they_are() {
        let size = |text: &str| match Manifest::parse(&format!("task = \"image\"\n{text}")).unwrap().task {
            Task::Image(image) => image.size,
            other => panic!("{other:?}"),
        };
        let none = "[input]\nresize = \"none\"\n";
        assert_eq!(size(""), Size::Source);
        assert_eq!(size("[input]\nresize = \"letterbox\"\n"), Size::Source);
        assert_eq!(size(none), Size::Output);
        assert_eq!(size(&format!("{none}[image]\nsize = \"source\"\n")), Size::Source);
        assert_eq!(size("[image]\nsize = \"output\"\n"), Size::Output);
    }

    #[test]
    fn constants_are_numbers_with_names_of_inputs() {
        let constants = |text: &str| Manifest::parse(text).unwrap().input.unwrap().constants;
        let expected = BTreeMap::from([("mask".to_owned(), 1.0), ("s:0".to_owned(), 0.5)]);
        assert_eq!(constants("[input]\nconstants = { mask = true, \"s:0\" = 0.5 }"), expected);
        assert_eq!(constants("[input]\nconstants = { mask = false }")["mask"], 0.0);
        assert_eq!(constants("[input]\nconstants = { mask = 1, \"s:0\" = 0.5 }"), expected);
        assert_eq!(constants("[input.constants]\nmask = 1\n\"s:0\" = 0.5"), expected);
        let wrong = |value: &str, told: &str| {
            let error = format!(
                "line 2: input.constants is {told}, allowed: names with numbers from -1000000000 to 1000000000, true or false"
            );
            check(&format!("[input]\nconstants = {value}"), &[&error]);
        };
        wrong("{ mask = \"true\" }", "a table");
        wrong("1", "1");
    }

    #[test]
    fn black_and_white_are_two_values_or_found() {
        let range =
            |text: &str| match Manifest::parse(&format!("task = \"image\"\n[image]\n{text}")).unwrap().task {
                Task::Image(image) => image.range,
                other => panic!("{other:?}"),
            };
        assert_eq!(range(""), None);
        assert_eq!(range("range = \"auto\""), Some(Range::Auto));
        assert_eq!(range("range = [1, -1.5]"), Some(Range::Of([1.0, -1.5])));
        let allowed = "allowed: auto, or two numbers that differ, from";
        for wrong in ["[1, 1]", "[0, 1, 2]", "0.5", "\"all\"", "[0, 1e39]"] {
            let mistakes =
                Manifest::parse(&format!("task = \"image\"\n[image]\nrange = {wrong}")).unwrap_err().0;
            assert!(mistakes.len() == 1 && mistakes[0].contains(allowed), "{wrong}: {mistakes:?}");
        }
        check("task = \"image\"\n[image]\ndepth = 12", &["line 3: image.depth is 12, allowed: 8, 16"]);
        check(
            "task = \"embed\"\n[image]\n",
            &["line 2: [image] is only read with task = \"image\" above all tables"],
        );
    }

    #[test]
    fn an_axis_that_counts_no_items_has_no_batches() {
        check(
            "[batch]\naxis = \"none\"\nsizes = [1, 4]",
            &["line 2: batch.axis is \"none\", but batches are of up to 4 items: give one of the two"],
        );
        check(
            "engine = \"gauss-mle\"\n[fit]\nsigma_px = 1.3\n[batch]\naxis = \"none\"",
            &["line 5: batch.axis is \"none\", but a fitter's first axis counts ROIs"],
        );
    }

    /// The lines of this file's own description.
    fn described(kind: &str) -> String {
        include_str!("manifest.rs")
            .lines()
            .skip_while(|line| *line != format!("//! ```{kind}"))
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| line.trim_start_matches("//!").trim_start())
            .fold(String::new(), |text, line| text + line + "\n")
    }

    #[test]
    fn the_description_above_is_itself_a_manifest_apart_from_its_choice_of_tasks() {
        let text = described("toml");
        assert!(text.contains("[placement]"), "{text}");
        for (task, _) in TASKS {
            let text = text.replace("task = \"tensors\"", &format!("task = {task:?}"));
            let others: Vec<String> = ["classify", "detect", "segment", "image", "landmarks", "embed"]
                .iter()
                .filter(|name| *name != task)
                .map(|name| format!("[{name}] is only read with task = {name:?} above all tables"))
                .collect();
            let mistakes = Manifest::parse(&text).unwrap_err().0;
            assert_eq!(mistakes.len(), others.len(), "{mistakes:#?}");
            for (mistake, other) in mistakes.iter().zip(others) {
                assert!(mistake.ends_with(&other), "{mistake}");
            }
        }
    }

    #[test]
    fn all_mistakes_are_reported_together_with_line_key_and_what_is_allowed() {
        check(
            "engine = \"onnxx\"\ntask = \"clasify\"\npriority = 10\ntimeout_ms = \"soon\"\n[input]\nresise = 1\nmean = [1, 2]\n\
             [batch]\nsizes = [4, 2]\nwait_ms_max = -1\n",
            &[
                "line 1: engine is \"onnxx\", allowed: onnx, gauss-mle; nearest: onnx",
                "line 2: task is \"clasify\", allowed: classify, detect, segment, image, landmarks, embed, tensors; nearest: classify",
                "line 3: priority is 10, allowed: whole numbers from 0 to 9",
                "line 4: timeout_ms is \"soon\", allowed: whole numbers from 1 to 3600000",
                "line 6: unknown key \"input.resise\"; nearest: resize",
                "line 7: input.mean is [1, 2], allowed: one number, or three in the order of input.color, from -1000000 to 1000000",
                "line 9: batch.sizes is [4, 2], allowed: rising sizes",
                "line 10: batch.wait_ms_max is -1, allowed: 0 to 10000",
            ],
        );
    }

    #[test]
    fn the_task_of_a_fitter_without_its_engine_is_one_mistake_that_names_the_engine() {
        let told = "line 1: task = \"localize\" is a fitter's: say engine = \"gauss-mle\" above it";
        check("task = \"localize\"", &[told]);
    }

    #[test]
    fn integers_may_be_written_with_any_radix_and_what_is_allowed_is_told_of_what_is_not() {
        let manifest =
            Manifest::parse("priority = 0o7\ntimeout_ms = 0x3E_8\n[input]\nscale = 0b10\n").unwrap();
        assert_eq!((manifest.priority, manifest.timeout), (7, Some(Duration::from_secs(1))));
        check("priority = 0xA", &["line 1: priority is 0xA, allowed: whole numbers from 0 to 9"]);
        check("labels = \"\"", &["line 1: labels is \"\", allowed: text that is not empty"]);
        let fitter = "engine = \"gauss-mle\"\n[fit]\nsigma_px = 1.3\n[camera]\noffset = nan\n";
        check(
            fitter,
            &["line 5: camera.offset is nan, allowed: text, a finite number, or a list of such numbers"],
        );
    }

    #[test]
    fn unknown_keys_and_tables_are_errors() {
        check("tsak = \"embed\"", &["line 1: unknown key \"tsak\"; nearest: task"]);
        check("\n\n[wings]\n", &["line 3: unknown key \"wings\""]);
        // Keys in the wrong table, also if the right one is read later.
        let top = "resize = \"stretch\"\n[input]\nlabels = \"labels.txt\"\ndevices = [0]\nscore_min = 1\noutput = \"y\"\n";
        check(
            &format!("task = \"detect\"\n{top}"),
            &[
                "line 2: unknown key \"resize\"; it stands in [input]",
                "line 4: unknown key \"input.labels\"; it stands above all tables",
                "line 5: unknown key \"input.devices\"; it stands in [placement]",
                "line 6: unknown key \"input.score_min\"; it stands in [detect]",
                "line 7: unknown key \"input.output\"; it stands in [detect]",
            ],
        );
        check(
            "[classify]\ntask = \"classify\"\n",
            &["line 1: [classify] is only read with task = \"classify\" above all tables"],
        );
        check("task = \"detect\"\n[detect]\niou = 0.5\n", &["line 3: unknown key \"detect.iou\""]);
        check("batch = 4", &["line 1: batch is 4, allowed: a table"]);
    }

    #[test]
    fn boxes_that_a_model_has_sorted_out_are_not_sorted_out_again_by_default() {
        let iou_max = |detect: &str| {
            let manifest = Manifest::parse(&format!("task = \"detect\"\n[detect]\n{detect}")).unwrap();
            let Task::Detect(detect) = manifest.task else { panic!("expected a detector") };
            detect.iou_max()
        };
        assert_eq!(iou_max("format = \"end2end\""), 1.0);
        assert_eq!(iou_max("format = \"end2end\"\niou_max = 0.7"), 0.7);
        assert_eq!(iou_max("columns = [\"box\", \"score\", \"class\"]"), 1.0);
        assert_eq!(iou_max("format = \"boxes\""), 0.5);
    }

    #[test]
    fn keypoints_are_a_number_or_as_many_names() {
        let keypoints = |told: &str| {
            let manifest =
                Manifest::parse(&format!("task = \"detect\"\n[detect]\nkeypoints = {told}\n")).unwrap();
            let Task::Detect(detect) = manifest.task else { panic!("expected a detector") };
            let keypoints = detect.keypoints.unwrap();
            (keypoints.count, keypoints.names.get(1).map(|name| name.to_string()))
        };
        assert_eq!(keypoints("17"), (17, None));
        assert_eq!(keypoints(r#"["nose", "tail"]"#), (2, Some("tail".to_owned())));
        for wrong in ["0", "1001", "[]", r#"["nose", ""]"#] {
            let mistake = format!(
                "line 3: detect.keypoints is {wrong}, allowed: a whole number from 1 to 1000, or a list of as many names"
            );
            check(&format!("task = \"detect\"\n[detect]\nkeypoints = {wrong}\n"), &[&mistake]);
        }
    }

    #[test]
    fn columns_of_a_row_that_are_no_order_are_told_with_all_that_may_be() {
        for columns in [r#"["box", "score"]"#, r#"["box", "label", "score"]"#] {
            let mistake = format!(
                "line 3: detect.columns is {columns}, allowed: a list of \"box\", \"score\" and \"class\" in the order of a row, each of \
                 them once, with \"image\", \"skip\" and at the end \"rest\""
            );
            check(&format!("task = \"detect\"\n[detect]\ncolumns = {columns}\n"), &[&mistake]);
        }
    }

    #[test]
    fn a_table_of_another_task_is_an_error() {
        check(
            "task = \"detect\"\n[classify]\ntop_k = 3\n",
            &["line 2: [classify] is only read with task = \"classify\" above all tables"],
        );
    }

    #[test]
    fn the_description_of_a_fitter_is_its_defaults() {
        let text = described("fit");
        let manifest = Manifest::parse(&text).unwrap();
        let Engine::GaussMle(fit) = manifest.engine else { panic!("expected a fitter") };
        let mut defaults = crate::tasks::localize::settings::Settings::default();
        defaults.suggest_pixel_nm([100.0; 2]);
        assert_eq!(fit.settings, defaults);
        for (_, key) in crate::tasks::localize::settings::KEYS {
            assert!(text.contains(&format!("{key} = ")), "{key} is not described");
        }
    }

    #[test]
    fn the_tables_of_a_fitter_are_not_for_other_engines() {
        let only = "[fit] and [camera] are only read with engine = \"gauss-mle\"";
        check("[camera]\ngain = 1\n", &[&format!("line 1: {only}")]);
    }

    #[test]
    fn how_a_network_runs_on_gpus_can_be_said() {
        let manifest =
            Manifest::parse("[gpu]\nprovider = \"tensorrt\"\nfp16 = true\ncuda_graph = true\n").unwrap();
        assert_eq!(manifest.gpu.provider, Provider::TensorRt { fp16: true });
        assert!(manifest.gpu.cuda_graph == CudaGraph::Always && !manifest.gpu.tf32);
        assert!(manifest.gpu.records());
        let records = |table: &str| Manifest::parse(&format!("[gpu]\n{table}")).unwrap().gpu.records();
        assert!(records("") && records("cuda_graph = \"auto\"") && !records("cuda_graph = false"));
        assert!(
            !records("provider = \"tensorrt\"\ncuda_graph = \"auto\""),
            "nobody has seen what they are good for there"
        );
        check(
            "[gpu]\nfp16 = true\ncuda_graph = \"yes\"\nconv_search = \"exaustive\"\n",
            &[
                "line 2: gpu.fp16 is only read with provider = \"tensorrt\"; for cuda, export the model so",
                "line 3: gpu.cuda_graph is \"yes\", allowed: auto, true, false",
                "line 4: gpu.conv_search is \"exaustive\", allowed: heuristic, exhaustive; nearest: exhaustive",
            ],
        );
        check("engine = \"gauss-mle\"\n[gpu]\n", &["line 2: unknown key \"gpu\""]);
    }

    #[test]
    fn labels_cannot_be_a_path() {
        for name in ["../labels.txt", "/etc/passwd", "a/b.txt", "..", "a\\\\b", "C:x"] {
            let mistakes = Manifest::parse(&format!("labels = \"{name}\"")).unwrap_err().0;
            assert!(mistakes[0].contains("without a path"), "{mistakes:?}");
        }
        assert!(Manifest::parse("labels = \"labels.txt\"").is_ok());
    }

    #[test]
    fn ranges_are_enforced() {
        let check = |text: &str, key: &str| {
            let mistakes = Manifest::parse(text).unwrap_err().0;
            assert!(mistakes.len() == 1 && mistakes[0].contains(key), "{text}: {mistakes:?}");
        };
        check("timeout_ms = 0", "timeout_ms is 0");
        check("[batch]\nitems_max = 0", "batch.items_max is 0");
        check("[batch]\nitems_max = 8\nsizes = [1, 4]", "largest of batch.sizes is 4");
        check("[batch]\nsizes = []", "batch.sizes is []");
        check("[batch]\nweight = nan", "batch.weight is nan");
        check("[input]\nstd = 0", "input.std is 0");
        check("[input]\npad = 256", "input.pad is 256");
        check("[input]\nbackground = [0, 0, 300]", "input.background is");
        check("[placement]\ninstances = 65", "placement.instances is 65");
        check("[placement]\ndevices = [\"gpu:x\"]", "placement.devices is");
        check("[placement]\ndevices = \"A100\"", "placement.devices is");
        check("[placement]\nexclusive = 1", "placement.exclusive is 1");
        check("[placement]\nfallback = true", "placement.fallback is true, allowed: cpu, other-gpu, never");
        check("task = \"classify\"\n[classify]\ntop_k = 0", "classify.top_k is 0");
        check("task = \"detect\"\n[detect]\nscore_min = 1.5", "detect.score_min is 1.5");
        check("labels = \"\"", "labels is \"\"");
    }

    #[test]
    fn syntax_errors_carry_their_line() {
        let mistakes = Manifest::parse("task = \"embed\"\nlabels = \n").unwrap_err().0;
        assert!(mistakes[0].starts_with("line 2: "), "{mistakes:?}");
        check("task = \"embed\"\ntask = \"embed\"\n", &["line 2: duplicate key \"task\""]);
        check("[gpu]\n[gpu]\n", &["line 2: duplicate key \"gpu\""]);
    }
}
