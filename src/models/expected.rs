//! What whoever asks for a load says of the model: it can be seen only once that is loaded, which may be much later.

use super::Model;
use std::{fmt, sync::Arc};

type Look = dyn Fn(&Model) -> Result<(), String> + Send + Sync;

/// How a model is to be; anyhow, by default.
#[derive(Clone, Default)]
pub struct Expected(Option<Arc<Look>>);

impl Expected {
    /// As this says, which gives the reason where it is not.
    pub fn by(look: impl Fn(&Model) -> Result<(), String> + Send + Sync + 'static) -> Expected {
        Expected(Some(Arc::new(look)))
    }

    /// Whether a model is so.
    ///
    /// # Errors
    /// What is not.
    pub fn check(&self, model: &Model) -> Result<(), String> {
        self.0.as_ref().map_or(Ok(()), |look| look(model))
    }
}

impl fmt::Debug for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Expected(something)" } else { "Expected(anything)" })
    }
}
