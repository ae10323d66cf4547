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

/// Whether the channels of a map with these extents come after its rows and columns, or before them; `None` if both are possible. The
/// layout setting decides first, then the number of labels, then the input's size.
pub(super) fn channels_last(
    [a, b, c]: [Dim; 3],
    layout: Option<Layout>,
    labels: usize,
    input: Option<[u32; 2]>,
) -> Option<bool> {
    if let Some(layout) = layout {
        return Some(layout == Layout::Nhwc);
    }
    let has_labels = |channels| labels > 0 && channels == Dim::Fixed(labels) && a != c;
    let of_image = |height, width| input.is_some_and(|input| is_of_image(input, height, width));
    Some(match (a, c) {
        _ if has_labels(a) => false,
        _ if has_labels(c) => true,
        (Dim::Fixed(1), _) => false,
        (_, Dim::Fixed(1)) => true,
        _ if of_image(b, c) != of_image(a, b) => of_image(a, b),
        // If the size of the image does not decide: a square beside a different extent is the image.
        _ if b == c && a != b => false,
        _ if a == b && b != c => true,
        (Dim::Fixed(_), Dim::Free) => false,
        (Dim::Free, Dim::Fixed(_)) => true,
        _ => return None,
    })
}

/// Whether a map with these extents can show an image of this width and height: it has the same proportions, or is a whole number of times
/// smaller with both sides rounded alike.
fn is_of_image([width, height]: [u32; 2], rows: Dim, columns: Dim) -> bool {
    let (Dim::Fixed(rows), Dim::Fixed(columns)) = (rows, columns) else { return false };
    let [width, height] = [width as usize, height as usize];
    let smaller = |n: usize| {
        [(height / n, width / n), (height.div_ceil(n), width.div_ceil(n))].contains(&(rows, columns))
    };
    rows.checked_mul(width) == columns.checked_mul(height) || (1..=width.min(height)).any(smaller)
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
