//! GPUs that models have for themselves (`placement.exclusive`). Pure.

use crate::models::Source;
use std::collections::BTreeMap;

/// Devices by the names of the models that have them for themselves; each has at most one owner.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<String, Vec<usize>>);

impl Claims {
    /// As a model's manifest has it, for the devices that it is placed on; the CPU has no owner, and nobody asks for one.
    pub(super) fn set(&mut self, source: &Source, on: &[usize]) {
        if source.manifest.placement.exclusive {
            self.0.insert(source.name.clone(), on.to_vec());
        } else {
            self.0.remove(&source.name);
        }
    }

    /// A model claims nothing more.
    pub(super) fn end(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Which other model has a device for itself.
    pub(super) fn owner(&self, index: usize, except: &str) -> Option<&str> {
        let mut owners = self.0.iter().filter(|(name, on)| *name != except && on.contains(&index));
        owners.next().map(|(name, _)| name.as_str())
    }

    /// Whether a model has a device for itself.
    pub(super) fn has(&self, index: usize, name: &str) -> bool {
        self.0.get(name).is_some_and(|on| on.contains(&index))
    }
}
