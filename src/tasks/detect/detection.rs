//! The parts of a detection in an answer.

use crate::tasks::quad::Quad;
use std::sync::Arc;

/// One box of an answer, in pixels of the posted image.
#[derive(Debug, Clone, PartialEq)]
pub struct Detection {
    /// Left edge.
    pub x0: f32,
    /// Top edge.
    pub y0: f32,
    /// Right edge, more than `x0`.
    pub x1: f32,
    /// Bottom edge, more than `y0`.
    pub y1: f32,
    /// The position of the class among the labels.
    pub index: usize,
    /// Its name, if the model has labels.
    pub label: Option<Arc<str>>,
    /// The model's confidence.
    pub score: f32,
    /// The corners of a rotated box; they may lie outside the image. The edges are those of the upright box around it.
    pub corners: Option<Quad>,
    /// Points, in the model's order.
    pub keypoints: Vec<Keypoint>,
    /// The pixels of the detected thing.
    pub mask: Option<Instance>,
}

/// A point of a detection, in pixels of the posted image; it may lie outside the image.
#[derive(Debug, Clone, PartialEq)]
pub struct Keypoint {
    /// From the left.
    pub x: f32,
    /// From the top.
    pub y: f32,
    /// The model's confidence, if it gives one.
    pub score: Option<f32>,
    /// Its name, if the model's author gave it one.
    pub label: Option<Arc<str>>,
}

/// The pixels of one thing as run lengths, in the uncompressed form of COCO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Pixels per row of the posted image.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// How many pixels are in the mask.
    pub pixels: u64,
    /// Column by column: pixels outside the mask, pixels in it, and so on. They sum to all pixels.
    pub counts: Vec<u32>,
}
