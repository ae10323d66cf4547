//! A session in a GPU's context, and how it ends there.
#![allow(unsafe_code)]

use super::super::{Context, Streams};
use crate::engine::onnx::{
    Runtime,
    session::{Session, Target},
};
use std::{
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    path::Path,
    sync::Arc,
};

/// A session, which may be dropped at any time, as every error of a load does: if its context is broken by then, what is ONNX
/// Runtime's is leaked. Destroying it there throws an exception that nobody catches, which ends the process.
pub(super) struct Kept {
    session: ManuallyDrop<Session>,
    context: Arc<Context>,
    /// Those that the session works on.
    streams: Arc<Streams>,
}

impl Kept {
    /// Loads a model, for work on these streams.
    ///
    /// # Errors
    /// As [`Session::load`].
    pub(super) fn load(
        runtime: &Runtime,
        path: &Path,
        target: Target<'_>,
        (context, streams): (&Arc<Context>, &Arc<Streams>),
    ) -> Result<Kept, String> {
        let session = ManuallyDrop::new(Session::load(runtime, path, target)?);
        Ok(Kept { session, context: Arc::clone(context), streams: Arc::clone(streams) })
    }
}

impl Deref for Kept {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A session that ends while its stream is recorded ends the process, too.
        self.streams.end_recording();
        if let Some(error) = self.context.broken() {
            // This process can no longer use the context in any case.
            let gpu = self.context.gpu().id.as_str();
            tracing::warn!(gpu, %error, "what ONNX Runtime has on a GPU that failed is left there");
            return;
        }
        // SAFETY: nobody uses it any more, and it is dropped nowhere else.
        unsafe { ManuallyDrop::drop(&mut self.session) };
    }
}
