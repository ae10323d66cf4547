//! Bytes to frames to model input.

mod placement;
pub mod preprocess;

pub use placement::Placement;
pub use preprocess::{Color, Filter, Layout, Preprocess, Resize};
