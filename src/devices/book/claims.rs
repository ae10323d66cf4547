//! GPUs that models have to themselves (`placement.exclusive`). Pure.

use crate::models::Source;
use std::collections::BTreeMap;

/// The devices that each model has to itself, by the model's name; each device has at most one owner.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<String, Vec<usize>>);

impl Claims {
    /// Claims the devices that a model is placed on, if its manifest says so. The CPU has no owner, and nobody asks for one.
    pub(super) fn set(&mut self, source: &Source, on: &[usize]) {
        if source.manifest.placement.exclusive {
            self.0.insert(source.name.clone(), on.to_vec());
        } else {
            self.0.remove(&source.name);
        }
    }

    /// Ends a model's claim.
    pub(super) fn end(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The other model that has a device to itself, if any.
    pub(super) fn owner(&self, index: usize, except: &str) -> Option<&str> {
        let mut owners = self.0.iter().filter(|(name, on)| *name != except && on.contains(&index));
        owners.next().map(|(name, _)| name.as_str())
    }

    /// Whether a model has a device to itself.
    pub(super) fn has(&self, index: usize, name: &str) -> bool {
        self.0.get(name).is_some_and(|on| on.contains(&index))
    }
}
