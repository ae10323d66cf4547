//! Predictions by KServe's first protocol: rows (`{"instances": […]}`, answered by `predictions`) or columns
//! (`{"inputs": …}`, answered by `outputs`), of numbers, of text, or of images as `{"b64": "…"}`.
//!
//! `NaN`, `Infinity` and `-Infinity` are taken bare, as TensorFlow Serving takes them, and given as `null`, as KServe gives them. Lists say their shape by how they are
//! nested, and nothing says the type of numbers: it is the input's own, unless they are nested as only pixels of 8 bits are. With
//! several inputs a row is an object with a member for each, and so are the columns.

mod read;
mod write;

pub use read::{Asked, Taken, read};
pub use write::{answers, outputs, text_bytes_max};

/// How a request is laid out, and so its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `instances`, answered by `predictions`.
    Rows,
    /// `inputs`, answered by `outputs`.
    Columns,
}
