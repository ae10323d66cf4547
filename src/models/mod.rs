//! The model folder: what can be served, and what a request needs to know of a model.
//!
//! - [`manifest`]: `model.toml`, read by `strict`.
//! - [`scan`]: from a folder to [`Source`]s; one bad model never hides the others.
//! - [`catalog`]: the models that are being served, by name and version.
//! - [`triton`]: `config.pbtxt`, which stands for a manifest in repositories made for Triton.
//! - [`declared`]: what an author says of inputs and outputs, held against the file; what requests see of a model.
//! - [`warmup`]: runs that an author asks for before the first request.
//! - [`given`]: a model that a caller sends.
//! - [`control`]: asking for models to be loaded and unloaded while the server runs; [`changes`]: what changed in the folder.
//! - `expected`: what whoever asks for a load says of the model.
//! - [`files`]: the files of a model as they were when it was loaded.
//! - `input`: from manifest and signature to how an image becomes the model's input; `images`: what that is.
//! - `resolve`: from manifest and signature to a [`Model`].
//! - `answer`: answers of a model, and what its author should know of them.
//! - `map`: what a camera's pixels differ in, from a file.
//!
//! A [`Source`] is what lies on disk; a [`Model`] is what it became once an engine had told its signature. Loading
//! itself is the caller's.

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
mod map;
mod resolve;
pub mod scan;
mod strict;
pub mod triton;
pub mod warmup;

pub use catalog::{Catalog, Entry, State};
pub use control::{Change, Command, Commands, Control, Overrides};
pub use declared::{Declared, DeclaredTensor, Interface};
pub use expected::Expected;
pub use files::Files;
pub use given::Given;
pub use images::{Form, ImageInput};
pub use input::may_be_image;
pub use manifest::{Engine, Manifest, ManifestError};
pub use scan::{Found, check_name, scan, scan_one};
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
    /// Those of each output whose author says a file for it.
    pub output_labels: BTreeMap<String, Arc<Labels>>,
    /// Size of the model file and of the external data that it names.
    pub bytes: u64,
    /// What its author asks for and does not get, for the log.
    pub notes: Vec<String>,
    /// The folder, where it is one of ours that goes with the last who holds this.
    pub kept: Option<Arc<Kept>>,
    /// What whoever asked for the load says of the model, which is seen once it is loaded, however late that is.
    pub expected: Expected,
}

/// One loaded version of one model: what requests and workers need to know of it.
pub struct Model {
    /// How queue and workers call it.
    pub key: ModelKey,
    /// Its name.
    pub name: Arc<str>,
    /// Its version.
    pub version: Arc<str>,
    /// What it takes and gives: what engines see of it.
    pub signature: Signature,
    /// What requests see of it.
    pub interface: Interface,
    /// Every form in which a request may bring its inputs: the interface's own, and pixels for an image.
    pub takes: Vec<TensorSpec>,
    /// How it treats its first axis: what the signature says, and `Whole` where the task or the image knows better (a
    /// detector whose free first axis counts boxes, a free height).
    pub batching: Batching,
    /// Of a model that runs request by request though its first axis counts items (one of strings; one of a `config.pbtxt` without
    /// `dynamic_batching` whose items do not run each for itself): how many a request should have, for clients that ask.
    pub alone_max: Option<usize>,
    /// What its engines do beside running its network.
    pub ends: Ends,
    /// What its outputs mean.
    pub task: Task,
    /// Class names.
    pub labels: Arc<Labels>,
    /// Those of single outputs, where the author says which output has which: ask [`labels_of`](Model::labels_of).
    output_labels: BTreeMap<String, Arc<Labels>>,
    /// How an image becomes its input; `None` if it does not take images.
    pub image: Option<ImageInput>,
    /// What a fitter does for requests that do not say; `None` for other engines.
    pub fit: Option<Settings>,
    /// Where a fitter's frames are gathered for devices that copy by themselves.
    pub frames: Option<FrameMemory>,
    /// How its items are put together.
    pub rules: Rules,
    /// Whether its network finds scales for whole numbers as it runs, which are those of all rows; not looked for where its author has
    /// said how it may be batched.
    pub quantizes: bool,
    /// Of requests that do not say.
    pub priority: u8,
    /// Levels of priority that requests may ask for.
    pub priorities: u8,
    /// Deadline of requests that do not say.
    pub timeout: Duration,
    /// Instances per device.
    pub instances: usize,
    /// Whether the server has a GPU that can run it and that its placement allows, be it there now or not. Whoever loads it knows.
    pub may_use_gpu: bool,
    /// What its author says about it, with what a load changed.
    pub manifest: Manifest,
    /// What became of its requests.
    pub statistics: Statistics,
    /// Whether the log has said of a class that it has no label.
    nameless: AtomicBool,
    /// How often the log has looked whether boxes may be parts of the input's size.
    looks: AtomicUsize,
}

impl Model {
    /// Checks that the task can read outputs of these shapes, as a forward pass gave them: where the file leaves some open, that is
    /// known only then.
    ///
    /// # Errors
    /// As [`Model::resolve`], of outputs.
    pub fn check_outputs(&self, shapes: &[Vec<usize>]) -> Result<(), String> {
        let mut seen = self.signature.clone();
        for (spec, shape) in seen.outputs.iter_mut().zip(shapes) {
            // A shape without elements, such as that of no boxes, need not be like that of some.
            if shape.contains(&0) {
                continue;
            }
            let items = spec.shape.first().copied().filter(|_| !self.rules.whole);
            spec.shape = shape.iter().copied().map(Dim::Fixed).collect();
            if let (Some(first), Some(items)) = (spec.shape.first_mut(), items) {
                *first = items;
            }
            if let (Task::Classify(_), [_], false) = (&self.task, &spec.shape[..], self.rules.whole) {
                // A number for each item: not one for each class.
                spec.shape.push(Dim::Fixed(1));
            }
        }
        resolved(&self.task, &seen, &self.labels, self.image.as_ref()).map(|_| ())
    }

    /// The memory in which first inputs of a type lie as batches are read, if they were put there.
    pub fn staging(&self, datatype: DataType) -> Option<&Staging> {
        let images = self.image.as_ref().and_then(|image| image.staging(datatype));
        images.or_else(|| self.frames.as_ref()?.of(datatype))
    }

    /// Takes the memory that images of 8 bits and frames of 16 are put in, where devices must know it: requests are not to wait for
    /// that. What comes in another form has its own when the first of it comes.
    pub fn ready(&self) {
        let frames = self.frames.as_ref().and_then(|frames| frames.of(DataType::Uint16));
        let staging = self.staging(DataType::Uint8).into_iter().chain(frames);
        staging.for_each(|staging| staging.ready(SLABS_READY));
    }

    /// Gives back the memory that images and frames are put in, where nobody uses it, but for what was taken at first.
    pub fn rest(&self) {
        let staging = PixelInput::DATATYPES.into_iter().chain([DataType::Fp32]);
        staging.filter_map(|datatype| self.staging(datatype)).for_each(|staging| staging.clear(SLABS_READY));
    }

    /// The names of an output's classes: its own where the author says it output by output, however many they are, else the
    /// model's, if they are as many as its classes: they are not for each output.
    pub fn labels_of(&self, output: &str, classes: Option<usize>) -> Option<&Labels> {
        match self.manifest.declared {
            Some(_) => self.output_labels.get(output).map(|labels| &**labels),
            None => Some(&*self.labels).filter(|labels| classes == Some(labels.len())),
        }
    }

    /// Whether a tensor that a request brought is of pixels, which the engine makes numbers of.
    pub fn is_pixels(&self, tensor: &Tensor) -> bool {
        self.ends.pixels.is_some() && PixelInput::DATATYPES.contains(&tensor.datatype)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Models for tests.

    use super::*;

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
