//! Where rows, columns and channels lie in an output that is a map of the image.

use super::is_one;
use crate::{
    engine::{Batching, Dim, Signature, TensorSpec, show},
    image::Layout,
};

/// The meaning of an output's axes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Planes {
    pub(super) layout: Layout,
    pub(super) channels: Dim,
    pub(super) height: Dim,
    pub(super) width: Dim,
}

impl Planes {
    /// Three axes in the given layout.
    pub(super) fn of([a, b, c]: [Dim; 3], layout: Layout) -> Planes {
        let (channels, height, width) = match layout {
            Layout::Nchw => (a, b, c),
            Layout::Nhwc => (c, a, b),
        };
        Planes { layout, channels, height, width }
    }

    /// A single channel without an axis of its own.
    pub(super) fn only(height: Dim, width: Dim) -> Planes {
        Planes { layout: Layout::Nchw, channels: Dim::Fixed(1), height, width }
    }

    /// The planes of an output `[N, H, W]` with a single channel: with a batch axis, three axes leave none for channels. `None` for any
    /// other output.
    ///
    /// # Errors
    /// A first axis that may be either the batch or the height, unless `layout` is set; `key` is the setting for it.
    pub(super) fn only_beside_a_batch(
        output: &TensorSpec,
        signature: &Signature,
        batch_axis: bool,
        (key, layout): (&str, Option<Layout>),
    ) -> Result<Option<Planes>, String> {
        let [n, height, width] = output.shape[..] else { return Ok(None) };
        if !batch_axis || !is_one(n) {
            return Ok(None);
        }
        if signature.batching() != Batching::Whole {
            return Ok(Some(Planes::only(height, width)));
        }
        if n == Dim::Free && layout.is_none() {
            return Err(format!(
                "output {:?} of shape {} begins with an open axis, which may be the batch or a height: add a channel axis, or \
                 set {key}",
                output.name,
                show(&output.shape)
            ));
        }
        Ok(None)
    }
}

/// The axes of one item, without the batch axis.
pub(super) fn of_item(shape: &[Dim]) -> Option<[Dim; 3]> {
    match *shape {
        [batch, a, b, c] if is_one(batch) => Some([a, b, c]),
        [a, b, c] => Some([a, b, c]),
        _ => None,
    }
}

/// The error for an output that can be read in two ways; `key` is the setting that decides.
pub(super) fn both_ways(name: &str, shape: &[Dim], key: &str) -> String {
    format!("output {name:?} of shape {} can be read both ways: set {key}", show(shape))
}

/// An extent of an actual tensor.
pub(super) fn extent(dim: Dim) -> usize {
    match dim {
        Dim::Fixed(n) => n,
        Dim::Free => 0,
    }
}
