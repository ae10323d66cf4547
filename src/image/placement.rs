//! Where a posted image lies in a model's input. Boxes and masks are mapped back with it.

/// Maps coordinates in a model's input to the pixels of the posted image (upright) and back.
///
/// Coordinates are continuous in both: the top left corner of the top left pixel is (0, 0), its centre is (0.5, 0.5).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placement {
    /// Width and height of the posted image in pixels, after orientation.
    pub source: (u32, u32),
    /// Width and height of the resized image in input pixels, including any part that is cropped away.
    pub(super) resized: (u32, u32),
    /// Where the top left corner of the resized image lies in the input: positive behind padding, negative where it is cropped.
    pub(super) offset: (i64, i64),
    /// Width and height of the input.
    pub input: (u32, u32),
    /// Whether the image has its own size in the input, in the top left corner, and its mirror image fills up the rest.
    pub(super) mirrored: bool,
}

impl Placement {
    /// Maps a point of the model's input to a point of the posted image, clamped to the image. A NaN from a model stays a NaN.
    pub fn to_source(&self, x: f32, y: f32) -> (f32, f32) {
        let (x, y) = self.to_source_open(x, y);
        (x.clamp(0.0, self.source.0 as f32), y.clamp(0.0, self.source.1 as f32))
    }

    /// Like [`to_source`](Placement::to_source), but not clamped: the point may lie outside the image.
    pub fn to_source_open(&self, x: f32, y: f32) -> (f32, f32) {
        let axis = |at: f32, offset: i64, resized: u32, source: u32| {
            let inside = (f64::from(at) - offset as f64) / f64::from(resized);
            (inside * f64::from(source)) as f32
        };
        (
            axis(x, self.offset.0, self.resized.0, self.source.0),
            axis(y, self.offset.1, self.resized.1, self.source.1),
        )
    }

    /// Maps a point of the posted image to a point of the model's input, which lies outside the input where the image was cropped.
    pub fn from_source(&self, x: f32, y: f32) -> (f32, f32) {
        let axis = |at: f32, offset: i64, resized: u32, source: u32| {
            (f64::from(at) / f64::from(source) * f64::from(resized) + offset as f64) as f32
        };
        (
            axis(x, self.offset.0, self.resized.0, self.source.0),
            axis(y, self.offset.1, self.resized.1, self.source.1),
        )
    }

    /// This placement as numbers along x and y: the size of the posted image, its size in the input, and where its top left corner lies
    /// there. For code that maps boxes elsewhere, as [`to_source`](Placement::to_source) does: `(at - offset) / resized * source`.
    pub fn numbers(&self) -> ([f64; 2], [f64; 2], [f64; 2]) {
        let pair = |(x, y): (u32, u32)| [f64::from(x), f64::from(y)];
        (pair(self.source), pair(self.resized), [self.offset.0 as f64, self.offset.1 as f64])
    }

    /// Whether its mirror image fills the input up.
    pub fn is_filled_up(&self) -> bool {
        self.mirrored && self.input != self.source
    }

    /// Input pixels per pixel of the posted image, along x and y.
    pub fn scale(&self) -> (f32, f32) {
        let axis = |resized: u32, source: u32| (f64::from(resized) / f64::from(source)) as f32;
        (axis(self.resized.0, self.source.0), axis(self.resized.1, self.source.1))
    }
}
