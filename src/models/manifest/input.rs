//! `[input]`: how an image becomes the model's input.

use crate::image::{Color, Filter, Layout, Pages};
use std::collections::BTreeMap;

/// `[input]`: what is `None` is filled in from the task and the model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Input {
    /// The input that an image becomes.
    pub name: Option<String>,
    /// What the pages of a file are.
    pub pages: Option<Pages>,
    /// How the size is reached.
    pub resize: Option<ResizeRule>,
    /// Pixels of the shorter side.
    pub size: Option<u32>,
    /// What sides are filled up to a multiple of.
    pub multiple: Option<u32>,
    /// Of the model's input.
    pub width: Option<u32>,
    /// Of the model's input.
    pub height: Option<u32>,
    /// Resampling kernel.
    pub filter: Option<Filter>,
    /// Channels.
    pub color: Option<Color>,
    /// Where the channel axis is.
    pub layout: Option<Layout>,
    /// Factor on 8-bit values.
    pub scale: Option<f32>,
    /// One number, or one for each channel.
    pub mean: Option<Vec<f32>>,
    /// One number, or one for each channel.
    pub std: Option<Vec<f32>>,
    /// Value of letterbox padding.
    pub pad: Option<u8>,
    /// The colour behind transparent pixels.
    pub background: Option<[u8; 3]>,
    /// What fills inputs that are the same for each image, by their names.
    pub constants: BTreeMap<String, f64>,
}

/// `input.resize`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResizeRule {
    /// The shorter side, then the centre.
    Shorter,
    /// Both sides.
    Stretch,
    /// As large as fits, padded.
    Letterbox,
    /// To the input's height; the width follows.
    Height,
    /// Not at all: if the input's size is fixed, images of another size are refused.
    None,
}
