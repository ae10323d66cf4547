//! Predictions by KServe's first protocol: rows (`{"instances": […]}`, answered by `predictions`) or columns
//! (`{"inputs": …}`, answered by `outputs`), of numbers, of text, or of images as `{"b64": "…"}`.
//!
//! The bare words `NaN`, `Infinity` and `-Infinity` are accepted, as in TensorFlow Serving, and written as `null`, as in KServe. The
//! nesting of lists states their shape. Nothing states the type of numbers: it is the input's own, unless they are nested as only 8-bit
//! pixels are. With several inputs, a row is an object with a member for each, and so are the columns.

mod read;
mod write;

pub use read::{Asked, Taken, read};
pub use write::{answers, outputs, text_bytes_max};

/// The layout of a request, which its reply shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `instances`, answered by `predictions`.
    Rows,
    /// `inputs`, answered by `outputs`.
    Columns,
}
