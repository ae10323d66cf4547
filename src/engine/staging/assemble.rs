//! Joins the parts of a batch into contiguous tensors for an engine.

use super::{Blocks, Staging};
use crate::engine::tensor::Tensor;

impl Blocks {
    /// The parts of one input as one tensor, aligned for its type and padded to `size` rows.
    ///
    /// Nothing is copied if the parts fill the batch and are adjacent slots of `staging`. For a device, these must be pinned for that
    /// device, and it must be available. A single part is not copied either, if the engine reads any memory. Padding repeats the last
    /// row: zeros may be outside the range that a model was trained on.
    ///
    /// With `whole`, there is one part, which has no batch axis.
    pub fn assemble(&self, parts: &[&Tensor], size: usize, whole: bool, staging: Option<&Staging>) -> Tensor {
        let first = parts[0];
        let bytes: usize = parts.iter().map(|part| part.data.len()).sum();
        let mut shape = first.shape.clone();
        let items: usize = if whole { size } else { parts.iter().map(|part| part.shape[0]).sum() };
        if !whole {
            shape[0] = size;
        }
        let tensor = |data| Tensor { datatype: first.datatype, shape, data };
        if items == size {
            let any = !self.memory().is_pinned();
            let fits = |staging: &&Staging| any || staging.is_known_to(self.memory());
            if let Some(data) = staging.filter(fits).and_then(|staging| staging.side_by_side(parts)) {
                return tensor(data);
            }
            let aligned = first.data.as_ptr().addr().is_multiple_of(first.datatype.size().unwrap_or(1));
            if let ([only], true, true) = (parts, aligned, any) {
                return tensor(only.data.clone());
            }
        }
        let last = parts[parts.len() - 1];
        let row = if whole { 0 } else { last.data.len() / last.shape[0].max(1) };
        let mut data = self.lend(bytes + row * (size - items));
        let mut at = 0;
        for part in parts {
            data[at..at + part.data.len()].copy_from_slice(&part.data);
            at += part.data.len();
        }
        for _ in items..size {
            data[at..at + row].copy_from_slice(&last.data[last.data.len() - row..]);
            at += row;
        }
        tensor(data.freeze())
    }
}
