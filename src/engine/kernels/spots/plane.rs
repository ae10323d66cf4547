//! Memory with one value per pixel, as the kernels take it.

use std::ptr;

/// Columns of memory before and after each row of a plane: more than any reach, and a whole number of vectors.
const MARGIN_COLUMNS: usize = 48;

/// Rows of memory above and below a plane: as many as a window reaches.
const MARGIN_ROWS: usize = 16;

/// One value per pixel with a margin around them; rows begin at cache lines. It may be empty.
#[derive(Debug)]
pub(super) struct Plane {
    values: Vec<f32>,
    /// Index of the first pixel.
    first: usize,
    pitch: usize,
}

impl Plane {
    pub(super) fn none() -> Plane {
        Plane { values: Vec::new(), first: 0, pitch: 0 }
    }

    /// A plane filled with `value`, including the margin.
    pub(super) fn new(width: usize, height: usize, value: f32) -> Plane {
        const LINE: usize = 16;
        let layout = PlaneLayout::new(width, height);
        let values = vec![value; layout.values + 2 * LINE];
        let to_line = values.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        Plane { values, first: to_line + layout.first, pitch: pitch(width) }
    }

    /// Values that are not pixels: without a margin.
    pub(super) fn plain(values: Vec<f32>) -> Plane {
        let pitch = values.len();
        Plane { values, first: 0, pitch }
    }

    /// All values, including the margin.
    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Bytes from the first value to the first pixel.
    pub(super) fn first_byte(&self) -> usize {
        self.first * size_of::<f32>()
    }

    /// A plane with the values of `pixels`, row-major.
    pub(super) fn of(pixels: &[f32], width: usize) -> Plane {
        let mut plane = Plane::new(width, pixels.len() / width, 0.0);
        let rows = plane.values[plane.first..].chunks_mut(plane.pitch);
        for (row, from) in rows.zip(pixels.chunks_exact(width)) {
            row[..width].copy_from_slice(from);
        }
        plane
    }

    /// The values without the margin, row-major.
    pub(super) fn pixels(&self, width: usize, height: usize) -> Vec<f32> {
        if self.values.is_empty() {
            return Vec::new();
        }
        let rows = self.values[self.first..].chunks(self.pitch).take(height);
        rows.flat_map(|row| row[..width].iter().copied()).collect()
    }

    /// Address of the first pixel; null if there is none.
    pub(super) fn as_ptr(&self) -> *const f32 {
        match self.values.is_empty() {
            true => ptr::null(),
            false => self.values.as_ptr().wrapping_add(self.first),
        }
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut f32 {
        match self.values.is_empty() {
            true => ptr::null_mut(),
            false => self.values.as_mut_ptr().wrapping_add(self.first),
        }
    }
}

/// The layout of a plane in memory that begins at a cache line.
pub(super) struct PlaneLayout {
    /// Number of values, including the margin.
    pub(super) values: usize,
    /// Index of the first pixel.
    pub(super) first: usize,
}

impl PlaneLayout {
    pub(super) fn new(width: usize, height: usize) -> PlaneLayout {
        let pitch = pitch(width);
        PlaneLayout {
            values: pitch * (height + 2 * MARGIN_ROWS),
            first: pitch * MARGIN_ROWS + MARGIN_COLUMNS,
        }
    }
}

/// From one row of a plane to the next, in values.
pub(super) fn pitch(width: usize) -> usize {
    width.next_multiple_of(16) + 2 * MARGIN_COLUMNS
}
