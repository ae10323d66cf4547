//! The model folder: what can be served, and what a request needs to know of a model.
//!
//! - [`manifest`]: `model.toml`, read by `strict`.
//! - [`mod@scan`]: reads a folder into [`Source`]s; one bad model never hides the others.
//! - [`catalog`]: the models that are being served, by name and version.
//! - [`triton`]: `config.pbtxt`, which replaces the manifest in repositories made for Triton.
//! - [`declared`]: inputs and outputs that an author declares, checked against the file; a model as requests see it.
//! - [`warmup`]: runs that an author configures before the first request.
//! - [`given`]: a model that a caller sends.
//! - [`control`]: commands to load and unload models while the server runs; [`changes`]: changes in the folder; [`settling`]: when they
//!   count.
//! - `overrides`: what a caller of a load may change in the manifest.
//! - `expected`: a condition that the caller of a load sets on the model.
//! - [`files`]: the files of a model as they were when it was loaded.
//! - `input`: resolves how an image becomes the model's input; `images`: the result.
//! - `resolve`: makes a [`Model`] from manifest and signature.
//! - `activation`: what makes a classifier's scores.
//! - `ultralytics`: what a YOLO's file says of itself.
//! - `answer`: answers of a model, and warnings about them for its author.
//! - `map`: a property of a camera per pixel, from a file.
//!
//! A [`Source`] is a model on disk. It becomes a [`Model`] once an engine has reported its signature. The caller does the loading.

mod activation;
mod answer;
pub mod catalog;
pub mod changes;
pub mod control;
pub mod declared;
mod expected;
pub mod files;
pub mod given;
mod images;
mod input;
pub mod manifest;
mod overrides;
mod resolve;
pub mod scan;
pub mod settling;
mod strict;
pub mod triton;
mod ultralytics;
pub mod warmup;

pub use activation::ActivationBy;
pub use catalog::{Catalog, Entry, State, by_version};
pub use control::{Change, Command, Commands, Control};
pub use declared::{Declared, DeclaredTensor, Interface};
pub use expected::Expected;
pub use files::Files;
pub use given::Given;
pub use images::{Form, ImageInput};
pub use input::may_be_image;
pub use manifest::{Engine, Manifest, ManifestError};
pub use overrides::Overrides;
pub use scan::{Found, Repository, check_name, scan, scan_one};
pub use warmup::{Fill, Warmup, WarmupInput, chance};

use crate::{
    batch::{ModelKey, Rules},
    engine::{
        Batching, DataType, Dim, Ends, PixelInput, Signature, Tensor, TensorSpec,
        gauss_mle::frames::FrameMemory, staging::Staging,
    },
    tasks::{Labels, Task, localize::Settings},
    telemetry::statistics::Statistics,
};
use given::Kept;
use images::SLABS_READY;
use resolve::{powers_of_two, resolved};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

/// One version of one model, as it lies on disk.
#[derive(Debug, Clone)]
pub struct Source {
    /// The folder's name, or the stem of a bare file.
    pub name: String,
    /// Digits, without leading zeros.
    pub version: String,
    /// The model file.
    pub path: PathBuf,
    /// The folder that the manifest and the labels are in.
    pub folder: PathBuf,
    /// What the author says; the defaults if there is no `model.toml`.
    pub manifest: Manifest,
    /// Class names; empty if the manifest names no file.
    pub labels: Arc<Labels>,
    /// Class names of each output for which the author names a file.
    pub output_labels: BTreeMap<String, Arc<Labels>>,
    /// Size of the model file together with the external data that it names.
    pub bytes: u64,
    /// Settings that have no effect here, and other remarks, for the log.
    pub notes: Vec<String>,
    /// The server's own folder, if a caller sent the files. It is removed with the last owner of this.
    pub kept: Option<Arc<Kept>>,
    /// The condition that the caller of the load set. It is checked once the model is loaded, however late that is.
    pub expected: Expected,
}

/// One loaded version of one model: what requests and workers need to know of it.
pub struct Model {
    /// Its key in the queue and in workers.
    pub key: ModelKey,
    /// Its name.
    pub name: Arc<str>,
    /// Its version.
    pub version: Arc<str>,
    /// Inputs and outputs as engines see them.
    pub signature: Signature,
    /// Inputs and outputs as requests see them.
    pub interface: Interface,
    /// Every form in which a request may send its inputs: the interface's own, and pixels for an image.
    pub takes: Vec<TensorSpec>,
    /// How it treats its first axis: as the signature says, or `Whole` if the task or the image shows otherwise (a free first axis may
    /// count a detector's boxes, or be a height).
    pub batching: Batching,
    /// The most items that a request should have, for clients that ask. Set for a model that runs request by request although its
    /// first axis counts items: one with strings, one that is quantized as it runs, or one with a `config.pbtxt` without
    /// `dynamic_batching` whose items influence each other.
    pub alone_max: Option<usize>,
    /// What its engines do before and after running its network.
    pub ends: Ends,
    /// What its outputs mean.
    pub task: Task,
    /// How a classifier's activation was found; `None` for other tasks.
    pub activation_by: Option<ActivationBy>,
    /// Class names.
    pub labels: Arc<Labels>,
    /// Class names of single outputs, if the author names them per output: use [`labels_of`](Model::labels_of).
    output_labels: BTreeMap<String, Arc<Labels>>,
    /// How an image becomes its input; `None` if it does not take images.
    pub image: Option<ImageInput>,
    /// A fitter's defaults for requests; `None` for other engines.
    pub fit: Option<Settings>,
    /// Where a fitter's frames are gathered, in pinned memory, for devices that copy by themselves.
    pub frames: Option<FrameMemory>,
    /// How its items are batched.
    pub rules: Rules,
    /// Whether its network is quantized dynamically, with scales taken over all rows of a batch.
    pub quantizes: bool,
    /// Default priority of its requests.
    pub priority: u8,
    /// Number of priority levels.
    pub priorities: u8,
    /// Default deadline of its requests.
    pub timeout: Duration,
    /// Instances per device.
    pub instances: usize,
    /// Whether the server has a GPU that can run it and that its placement allows, whether or not that GPU is available now. The
    /// loader sets this.
    pub may_use_gpu: bool,
    /// Its manifest, with the changes of a load.
    pub manifest: Manifest,
    /// Statistics of its requests.
    pub statistics: Statistics,
    /// Whether the log has reported a class without a label.
    nameless: AtomicBool,
    /// How often answers were checked for boxes that may be fractions of the input's size.
    looks: AtomicUsize,
}

impl Model {
    /// Checks that the task can read outputs of these shapes, which come from a forward pass: the file may leave extents open.
    ///
    /// # Errors
    /// As [`Model::resolve`] for outputs.
    pub fn check_outputs(&self, shapes: &[Vec<usize>]) -> Result<(), String> {
        let mut seen = self.signature.clone();
        for (spec, shape) in seen.outputs.iter_mut().zip(shapes) {
            // A shape without elements, such as for no boxes, need not resemble that for some boxes.
            if shape.contains(&0) {
                continue;
            }
            let items = spec.shape.first().copied().filter(|_| !self.rules.whole);
            spec.shape = shape.iter().copied().map(Dim::Fixed).collect();
            if let (Some(first), Some(items)) = (spec.shape.first_mut(), items) {
                *first = items;
            }
            if let (Task::Classify(_), [_], false) = (&self.task, &spec.shape[..], self.rules.whole) {
                // One number per item, not one per class.
                spec.shape.push(Dim::Fixed(1));
            }
        }
        resolved(&self.task, &seen, &self.labels, self.image.as_ref()).map(|_| ())
    }

    /// The staging memory of first inputs of this type, if there is any. Batches are read from there.
    pub fn staging(&self, datatype: DataType) -> Option<&Staging> {
        let images = self.image.as_ref().and_then(|image| image.staging(datatype));
        images.or_else(|| self.frames.as_ref()?.of(datatype))
    }

    /// Allocates the memory for 8-bit images and 16-bit frames if devices must register it, so that no request waits for that. Memory
    /// for other forms is allocated with the first of their kind.
    pub fn ready(&self) {
        let frames = self.frames.as_ref().and_then(|frames| frames.of(DataType::Uint16));
        let staging = self.staging(DataType::Uint8).into_iter().chain(frames);
        staging.for_each(|staging| staging.ready(SLABS_READY));
    }

    /// Frees unused memory for images and frames, except for what [`ready`](Model::ready) allocated.
    pub fn rest(&self) {
        let staging = PixelInput::DATATYPES.into_iter().chain([DataType::Fp32]);
        staging.filter_map(|datatype| self.staging(datatype)).for_each(|staging| staging.clear(SLABS_READY));
    }

    /// The class names of an output. If the author names labels per output, these are the output's own, however many there are.
    /// Otherwise they are the model's, but only if their number is that of the output's classes: the model's labels do not belong to
    /// every output.
    pub fn labels_of(&self, output: &str, classes: Option<usize>) -> Option<&Labels> {
        match self.manifest.declared {
            Some(_) => self.output_labels.get(output).map(|labels| &**labels),
            None => Some(&*self.labels).filter(|labels| classes == Some(labels.len())),
        }
    }

    /// Whether a request's tensor holds pixels, which the engine converts to numbers.
    pub fn is_pixels(&self, tensor: &Tensor) -> bool {
        self.ends.pixels.is_some() && PixelInput::DATATYPES.contains(&tensor.datatype)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Models for tests.

    use super::*;
    use crate::engine::staging::Memory;

    /// The model of a source, loaded first, whose file has this signature.
    pub(crate) fn model_of(source: &Source, signature: Signature) -> Result<Model, String> {
        Model::resolve(ModelKey(1), source, signature, Duration::from_secs(60), &Memory::Plain)
    }

    /// A source without files.
    pub(crate) fn source(name: &str, version: &str, manifest: &str) -> Source {
        Source {
            name: name.to_owned(),
            version: version.to_owned(),
            path: PathBuf::new(),
            folder: PathBuf::new(),
            manifest: Manifest::parse(manifest).unwrap(),
            labels: Arc::default(),
            output_labels: BTreeMap::new(),
            bytes: 0,
            notes: Vec::new(),
            kept: None,
            expected: Expected::default(),
        }
    }
}
