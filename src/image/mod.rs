//! Bytes to frames to model input.

pub mod preprocess;

pub use preprocess::{Color, Filter, Layout, Placement, Preprocess, Resize};
