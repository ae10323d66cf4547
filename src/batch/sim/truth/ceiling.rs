//! How large a batch of a model may be on a device, restated: the largest that its memory did not refuse, and from time to time one size
//! more.

use super::{Truth, half};
use crate::batch::{
    Batch, ModelKey,
    ceiling::{GOOD_MIN, RISE_AFTER, RISE_AFTER_MAX},
};
use std::{sync::Arc, time::Instant};

/// The size limit since memory was too small for a larger batch.
#[derive(Debug)]
pub(super) struct Ceiling {
    items: usize,
    /// When it reached this size, and how many batches have worked since.
    at: Instant,
    good: u32,
    /// Whether it rose to this size, and how often it fell again from a size that it had risen to.
    rose: bool,
    relapses: u32,
}

impl Truth {
    /// The sizes that batches of a model may have on a device now.
    pub(super) fn sizes(&self, device: &Arc<str>, model: ModelKey) -> Vec<usize> {
        let mut sizes = self.models[&model].sizes.clone();
        if let Some(ceiling) = self.ceilings.get(&(Arc::clone(device), model)) {
            sizes.retain(|size| *size <= ceiling.items);
            if sizes.is_empty() {
                sizes.push(ceiling.items);
            }
        }
        sizes
    }

    /// Memory was too small for a batch: returns the new limit, if it has fallen.
    pub(super) fn falls(&mut self, batch: &Batch, device: &Arc<str>, now: Instant) -> Option<usize> {
        let items = half(&self.models[&batch.model], device, batch.size);
        let place = (Arc::clone(device), batch.model);
        let before = self.ceilings.get(&place);
        // A batch that was started before it fell says nothing new.
        if before.is_some_and(|before| before.items <= items) {
            return None;
        }
        let relapse = before.is_some_and(|before| before.rose);
        let relapses = before.map_or(0, |before| before.relapses) + u32::from(relapse);
        self.ceilings.insert(place, Ceiling { items, at: now, good: 0, rose: false, relapses });
        self.tally.relapsed += usize::from(relapse);
        Some(items)
    }

    /// A batch worked: returns the new limit, if it has risen.
    pub(super) fn rises(&mut self, model: ModelKey, device: &Arc<str>, now: Instant) -> Option<usize> {
        let sizes = &self.models[&model].sizes;
        let place = (Arc::clone(device), model);
        let ceiling = self.ceilings.get_mut(&place)?;
        ceiling.good += 1;
        let pause = (RISE_AFTER * 2_u32.pow(ceiling.relapses.min(10))).min(RISE_AFTER_MAX);
        let next = sizes.iter().copied().find(|size| *size > ceiling.items);
        match next {
            Some(items) if ceiling.good >= GOOD_MIN && now >= ceiling.at + pause => {
                *ceiling = Ceiling { items, at: now, good: 0, rose: true, relapses: ceiling.relapses };
                self.tally.rose += 1;
                Some(items)
            }
            Some(_) => None,
            // The largest size has worked for so long that the limit is forgotten.
            None => {
                if now >= ceiling.at + RISE_AFTER_MAX {
                    self.ceilings.remove(&place);
                    self.tally.forgotten += 1;
                }
                None
            }
        }
    }
}
