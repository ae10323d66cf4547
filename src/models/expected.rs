//! A condition that the caller of a load sets on the model. It can be checked only once the model is loaded, which may
//! be much later.

use super::Model;
use std::{fmt, sync::Arc};

type Look = dyn Fn(&Model) -> Result<(), String> + Send + Sync;

/// A condition on a model; the default accepts any.
#[derive(Clone, Default)]
pub struct Expected(Option<Arc<Look>>);

impl Expected {
    /// The condition that `look` checks; its error is the reason why a model does not meet it.
    pub fn by(look: impl Fn(&Model) -> Result<(), String> + Send + Sync + 'static) -> Expected {
        Expected(Some(Arc::new(look)))
    }

    /// Checks a model.
    ///
    /// # Errors
    /// Why the model does not meet the condition.
    pub fn check(&self, model: &Model) -> Result<(), String> {
        self.0.as_ref().map_or(Ok(()), |look| look(model))
    }
}

impl fmt::Debug for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Expected(something)" } else { "Expected(anything)" })
    }
}
