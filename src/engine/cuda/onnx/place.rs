//! The device resources of a batch in flight: memory for its size, and the events that order its steps.

use super::{
    super::{Context, CudaError, Event},
    bucket::Bucket,
};
use std::sync::Arc;

/// Shapes that a place keeps memory for. Beyond that, the least recently used are evicted.
pub(super) const BUCKETS_MAX: usize = 16;

/// The device resources of a batch.
pub(super) struct Place {
    pub(super) buckets: Vec<Bucket>,
    pub(super) uploaded: Event,
    pub(super) computed: Event,
    pub(super) landed: Arc<Event>,
}

impl Place {
    pub(super) fn new(context: &Context) -> Result<Place, CudaError> {
        Ok(Place {
            buckets: Vec::new(),
            uploaded: context.mark()?,
            computed: context.mark()?,
            landed: Arc::new(context.event()?),
        })
    }

    /// The index of the bucket for these shapes. A bucket that binds outputs is dropped if outputs are not to be bound.
    pub(super) fn position(&mut self, shapes: &[Vec<usize>], bind_outputs: bool) -> Option<usize> {
        let at = self.buckets.iter().position(|bucket| bucket.shapes == shapes)?;
        if !bind_outputs && self.buckets[at].binds_outputs() {
            self.buckets.swap_remove(at);
            return None;
        }
        Some(at)
    }

    /// Evicts the least recently used shapes.
    pub(super) fn make_room(&mut self) {
        while self.buckets.len() >= BUCKETS_MAX {
            let oldest = self.buckets.iter().enumerate().min_by_key(|(_, bucket)| bucket.used);
            let oldest = oldest.map_or(0, |(index, _)| index);
            self.buckets.swap_remove(oldest);
        }
    }
}
