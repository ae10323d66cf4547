//! A session in a GPU's context, and how it ends there.
#![allow(unsafe_code)]

use super::super::{Context, CudaError, Streams};
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
    /// Those that the session works on.
    streams: Arc<Streams>,
    /// Whether the CPU runs it in place of an emulated GPU.
    stands_in: bool,
    /// Declared last, so that it is dropped last.
    context: Arc<Context>,
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
        let _unrecorded = context.no_recording();
        let kept = Kept {
            session: ManuallyDrop::new(Session::load(runtime, path, target)?),
            context: Arc::clone(context),
            streams: Arc::clone(streams),
            stands_in: matches!(target, Target::Cpu(_)),
        };
        kept.wait_as_a_gpus().map_err(|error| error.to_string())?;
        Ok(kept)
    }

    /// Waits for the whole device where a session on a GPU does: ONNX Runtime's provider for CUDA when it is made, and its libraries
    /// when they end.
    fn wait_as_a_gpus(&self) -> Result<(), CudaError> {
        if self.stands_in { self.context.synchronize() } else { Ok(()) }
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
        let _unrecorded = self.context.no_recording();
        // SAFETY: nobody uses it any more, and it is dropped nowhere else.
        unsafe { ManuallyDrop::drop(&mut self.session) };
        if let Err(error) = self.wait_as_a_gpus() {
            tracing::debug!(%error, "a session that stands in for one on a GPU ended badly");
        }
    }
}
