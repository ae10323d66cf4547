//! The written form of a detection: its box and class, and what the model gives beside: the corners of a rotated box, keypoints, a mask.

use crate::tasks::{Detection, Instance, Keypoint};
use serde::Serialize;

/// The members of a detection.
#[derive(Serialize)]
pub(super) struct Written<'a> {
    r#box: [f32; 4],
    label: Option<&'a str>,
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    corners: Option<[[f32; 2]; 4]>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    keypoints: Vec<Point<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mask: Option<Rle<'a>>,
}

/// A keypoint of a detection, or a landmark.
#[derive(Serialize)]
pub(super) struct Point<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    x: f32,
    y: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f32>,
}

#[derive(Serialize)]
struct Rle<'a> {
    width: u32,
    height: u32,
    pixels: u64,
    counts: &'a [u32],
}

impl<'a> Written<'a> {
    pub(super) fn of(found: &'a Detection) -> Written<'a> {
        Written {
            r#box: [found.x0, found.y0, found.x1, found.y1],
            label: found.label.as_deref(),
            index: found.index,
            score: found.score,
            corners: found.corners,
            keypoints: found.keypoints.iter().map(Point::of).collect(),
            mask: found.mask.as_ref().map(Rle::of),
        }
    }
}

impl<'a> Point<'a> {
    pub(super) fn of(Keypoint { x, y, score, label }: &'a Keypoint) -> Point<'a> {
        Point { label: label.as_deref(), x: *x, y: *y, score: *score }
    }
}

impl<'a> Rle<'a> {
    fn of(Instance { width, height, pixels, counts }: &'a Instance) -> Rle<'a> {
        Rle { width: *width, height: *height, pixels: *pixels, counts }
    }
}
