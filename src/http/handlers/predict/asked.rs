//! What a prediction request asks for, by its query and its parameters, checked against the model's task.

use crate::{
    error::InferError,
    http::{
        query,
        wire::{self, Parameters, answer::MaskForm},
    },
    models::Model,
    tasks::Task,
    words::clipped,
};

/// What the query of a request may say.
#[derive(Debug, Default)]
pub(in crate::http) struct Options {
    /// Classes to return, instead of the model's own setting.
    top_k: Option<String>,
    /// `png` or `rle`.
    mask: Option<String>,
    /// `ocelli` or `torchserve`.
    format: Option<String>,
}

impl Options {
    /// An unknown key is refused, unless it is ignored as TorchServe does.
    pub(super) fn of(query: &str, as_torchserve: bool) -> Result<Options, String> {
        let mut options = Options::default();
        let pairs =
            if as_torchserve { query::pairs_of(query, &query::OPTIONS)? } else { query::pairs(query)? };
        for (key, value) in pairs {
            let option = match key.as_ref() {
                "top_k" => &mut options.top_k,
                "mask" => &mut options.mask,
                "format" => &mut options.format,
                key => return Err(query::unknown(key, query::OPTIONS)),
            };
            *option = Some(value.into_owned());
        }
        Ok(options)
    }

    /// The same where the body says all but the form.
    pub(in crate::http) fn of_form(query: &str) -> Result<Options, String> {
        let format = query::pairs_of(query, &[query::FORMAT])?.pop().map(|(_, value)| value.into_owned());
        Ok(Options { format, ..Options::default() })
    }

    /// Whether a form is asked for.
    pub(in crate::http) fn has_form(&self) -> bool {
        self.format.is_some()
    }

    /// Whether it is TorchServe's.
    pub(super) fn are_for_torchserves_form(&self) -> bool {
        self.format.as_deref() == Some("torchserve")
    }

    /// Selects TorchServe's form if the task has it and the query asks for no other.
    pub(in crate::http) fn in_torchserves_form(mut self, task: &Task) -> Options {
        if torchserve_has(task) {
            self.format.get_or_insert_with(|| "torchserve".to_owned());
        }
        self
    }
}

/// Whether there is a form of TorchServe's for the answers of a task. That of its `image_segmenter`, a class and a probability for each
/// pixel as nested lists, is not given.
pub(super) fn torchserve_has(task: &Task) -> bool {
    matches!(task, Task::Classify(_) | Task::Detect(_))
}

/// How many classes TorchServe's classifiers return.
const TORCHSERVE_CLASSES: usize = 5;

/// The formats of masks and pictures as a file of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum PictureForm {
    /// One mask or picture.
    Png,
    /// The values as they are, in a page for each posted image.
    Tiff,
}

impl PictureForm {
    pub(super) fn media(self) -> &'static str {
        match self {
            PictureForm::Png => "image/png",
            PictureForm::Tiff => "image/tiff",
        }
    }

    /// The formats that a task's answer has, the usual one first.
    pub(super) fn of(task: &Task) -> &'static [PictureForm] {
        match task {
            Task::Segment(_) | Task::Image(_) => &[PictureForm::Png, PictureForm::Tiff],
            _ => &[],
        }
    }
}

/// What a request wants of the answer.
pub(in crate::http) struct Asked {
    pub(super) task: Task,
    pub(super) mask: MaskForm,
    /// The mask or the picture as a file of its own.
    pub(super) picture: Option<PictureForm>,
    /// As TorchServe's handlers answer.
    pub(in crate::http) torchserve: bool,
    /// Whether all pages of a file are answered; else a file of several is refused.
    pub(super) pages: bool,
}

impl Asked {
    pub(super) fn of(options: Options, parameters: &Parameters, model: &Model) -> Result<Asked, InferError> {
        let bad = |name: &str, got: &str, expected: &str| {
            InferError::BadRequest(format!("{name} is {:?}, expected {expected}", clipped(got)))
        };
        let top_k = match options.top_k {
            Some(text) => {
                Some(text.parse().map_err(|_| bad("top_k", &text, "a whole number of at least 1"))?)
            }
            None => wire::count(parameters, "top_k")?,
        };
        let mut task = model.task.clone();
        match (top_k, &mut task) {
            (None, _) => {}
            (Some(top_k), Task::Classify(classify)) => {
                let top_k = usize::try_from(top_k).ok().filter(|k| *k > 0);
                classify.top_k = top_k.ok_or_else(|| bad("top_k", "0", "a whole number of at least 1"))?;
            }
            (Some(top_k), _) => {
                return Err(bad("top_k", &top_k.to_string(), "a model with the task classify for it"));
            }
        }
        let mask = match (options.mask.as_deref(), &task) {
            (None, _) => MaskForm::Png,
            (Some(form @ ("png" | "rle")), task) if !matches!(task, Task::Segment(_)) => {
                return Err(bad("mask", form, "a model with the task segment for it"));
            }
            (Some("png"), _) => MaskForm::Png,
            (Some("rle"), _) => MaskForm::Rle,
            (Some(other), _) => return Err(bad("mask", other, "png or rle")),
        };
        if let (Some("torchserve"), None, Task::Classify(classify)) =
            (options.format.as_deref(), top_k, &mut task)
        {
            classify.top_k = TORCHSERVE_CLASSES;
        }
        let torchserve = match (options.format.as_deref(), &task) {
            (None | Some("ocelli"), _) => false,
            (Some("torchserve"), task) if torchserve_has(task) => true,
            (Some("torchserve"), _) => {
                return Err(bad("format", "torchserve", "a model with the task classify or detect for it"));
            }
            (Some(other), _) => return Err(bad("format", other, "ocelli or torchserve")),
        };
        Ok(Asked { task, mask, picture: None, torchserve, pages: true })
    }

    /// For a request with room for only one answer per file.
    pub(in crate::http) fn in_rows(
        options: Options,
        parameters: &Parameters,
        model: &Model,
    ) -> Result<Asked, InferError> {
        Ok(Asked { pages: false, ..Asked::of(options, parameters, model)? })
    }
}
