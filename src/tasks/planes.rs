//! Where rows, columns and channels lie in an output that is a map of the image.

use super::is_one;
use crate::{
    engine::{Batching, Dim, Signature, TensorSpec, show},
    image::Layout,
};

/// What the axes of an output are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Planes {
    pub(super) layout: Layout,
    pub(super) channels: Dim,
    pub(super) height: Dim,
    pub(super) width: Dim,
}

impl Planes {
    /// Three axes, read so.
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

    /// The only channel of an output `[N, H, W]`: beside a batch, three axes leave none for channels. None where the output is not so.
    ///
    /// # Errors
    /// A first axis that may be the batch or a height, unless `layout` tells; `key` is the setting that does.
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

/// The axes of one item, without that of the batch.
pub(super) fn of_item(shape: &[Dim]) -> Option<[Dim; 3]> {
    match *shape {
        [batch, a, b, c] if is_one(batch) => Some([a, b, c]),
        [a, b, c] => Some([a, b, c]),
        _ => None,
    }
}

/// The mistake of an output that nothing tells how to read; `key` is the setting that does.
pub(super) fn both_ways(name: &str, shape: &[Dim], key: &str) -> String {
    format!("output {name:?} of shape {} can be read both ways: set {key}", show(shape))
}

/// An extent of a tensor that is there.
pub(super) fn extent(dim: Dim) -> usize {
    match dim {
        Dim::Fixed(n) => n,
        Dim::Free => 0,
    }
}
