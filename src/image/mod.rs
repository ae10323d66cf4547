//! Bytes to frames to model input.

mod placement;
pub mod preprocess;

pub use placement::Placement;
pub use preprocess::{Color, DataType, Filter, Layout, Preprocess, Resize};
