//! Why a stack, or the rest of one, could not be decoded into frames, worded for the client that posted it.

use super::Format;
use crate::{
    error::{InferError, raise_with},
    image::{
        error::{SHOWN_BYTES, begins},
        signature::{self, Kind, Signature},
    },
};
use std::{io, sync::Arc, time::Duration};

/// Why a stack, or the rest of one, could not be decoded into frames. Earlier frames stay good. Frames count from 0.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StackError {
    /// Neither a TIFF nor a `.npy`.
    #[error("not a stack: it {}", unknown(first))]
    Unknown {
        /// The first bytes, at most twelve; empty for an empty body.
        first: Vec<u8>,
    },
    /// Another kind of file.
    #[error("not a stack: the body is {what}; {instead}")]
    Foreign {
        /// What it is.
        what: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// A file where the caller states that there are raw samples.
    #[error("the body is {what}, but by its shape it would be raw samples; {instead}")]
    NotSamples {
        /// What it is.
        what: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// A kind of stack that we know but do not read.
    #[error("{format} with {what} is not supported; {instead}")]
    Unsupported {
        /// Its format.
        format: &'static str,
        /// What is special about it.
        what: String,
        /// What to do.
        instead: &'static str,
    },
    /// The file contradicts itself or its format.
    #[error("the {format} is corrupt at frame {frame}: {reason} (frames count from 0)")]
    Corrupt {
        /// Its format.
        format: &'static str,
        /// The frame that cannot be read, from 0.
        frame: u64,
        /// What is wrong.
        reason: String,
    },
    /// The bytes end inside a frame, or before one that was announced.
    #[error("the {format} is truncated: frame {frame} is incomplete, {}{missing} bytes of it are missing (frames count from 0)", if *.at_least { "at least " } else { "" })]
    Truncated {
        /// Its format.
        format: &'static str,
        /// The first frame that is not whole, from 0; as many frames as this number are complete.
        frame: u64,
        /// How many bytes are missing to read it.
        missing: u64,
        /// Whether more may be missing: only the lost part would say how much.
        at_least: bool,
    },
    /// A frame differs from the first one in size or type.
    #[error(
        "frame {frame} is {found}, but the first frame is {first} (frames count from 0); a stack has frames of one size and type"
    )]
    Mismatch {
        /// The frame, from 0.
        frame: u64,
        /// Its size and type.
        found: String,
        /// Size and type of the first frame.
        first: String,
    },
    /// A stack of no frames, or of frames without a pixel.
    #[error("the {format} holds no pixels: {what}")]
    Empty {
        /// Its format.
        format: &'static str,
        /// What shows that it is empty.
        what: String,
    },
    /// Over a limit.
    #[error("{what} is {got}, more than the limit of {limit}{}", raise_with(option))]
    TooLarge {
        /// What was measured, with its unit.
        what: &'static str,
        /// Its value.
        got: u64,
        /// The limit.
        limit: u64,
        /// The option that raises the limit; empty where none does.
        option: &'static str,
    },
    /// The temporary file for bytes that do not fit into memory failed. This is not the client's fault.
    #[error("cannot keep {bytes} bytes of the stack in a temporary file")]
    Spill {
        /// How many bytes it would have held.
        bytes: u64,
        /// Why it does not hold them.
        #[source]
        cause: Arc<io::Error>,
    },
    /// There was no memory for the frames.
    #[error("{0}")]
    NoRoom(InferError),
    /// The temporary files of other stacks leave no room. This is not the client's fault, and it passes.
    #[error("the temporary files of all stacks hold {limit} bytes, which is all that they may")]
    SpillFull {
        /// How many bytes they may hold together.
        limit: u64,
    },
}

/// When another stack may have ended: stacks take seconds to minutes.
const SPILL_RETRY_AFTER: Duration = Duration::from_secs(10);

impl StackError {
    /// The error for a stack that begins with these bytes, which are of no format that is read.
    pub(super) fn unknown(bytes: &[u8]) -> StackError {
        match signature::find(bytes) {
            Some(Signature { what, kind, .. }) => StackError::Foreign { what, instead: instead(*kind) },
            None => StackError::Unknown { first: bytes.iter().take(SHOWN_BYTES).copied().collect() },
        }
    }

    /// The error for samples that begin with these bytes, if a file does that and samples do not.
    pub(super) fn not_samples(bytes: &[u8]) -> Option<StackError> {
        let Signature { what, kind, .. } = signature::find_in_samples(bytes)?;
        Some(StackError::NotSamples { what, instead: instead(*kind) })
    }

    pub(super) fn unsupported(format: Format, what: impl Into<String>, instead: &'static str) -> StackError {
        StackError::Unsupported { format: format.name(), what: what.into(), instead }
    }

    pub(super) fn too_many(frames: u64, limit: u64) -> StackError {
        StackError::TooLarge {
            what: "number of frames in the stack",
            got: frames,
            limit,
            option: "stack_frames_max",
        }
    }

    pub(super) fn corrupt(format: Format, frame: u64, reason: impl Into<String>) -> StackError {
        StackError::Corrupt { format: format.name(), frame, reason: reason.into() }
    }
}

/// What to do with a file of this kind.
fn instead(kind: Kind) -> &'static str {
    match kind {
        Kind::Picture | Kind::Recording => "export it as OME-TIFF, such as with Fiji or Bio-Formats",
        Kind::Stack => "leave shape and dtype out (ocelli predict: --raw), since the file says them itself",
        Kind::Pdf => "send a TIFF or .npy file, or raw samples with their shape and type stated",
        Kind::Zip => "unpack it, and send the stack that is in it",
        Kind::Gzip => "unpack it, or send it with the header Content-Encoding: gzip",
    }
}

/// What is wrong with a stack in an unknown format, and what the client should do.
fn unknown(first: &[u8]) -> String {
    let begins = begins(first);
    if first.is_empty() {
        format!(
            "{begins}; send the bytes of a TIFF or .npy file, or raw samples with their shape and type stated"
        )
    } else {
        format!(
            "{begins}, and neither TIFF nor .npy does; other files must be exported as OME-TIFF, and raw samples, which have no header, need \
             their shape and type stated: ?shape=frames,height,width&dtype=u16 (ocelli predict: --raw WIDTHxHEIGHT:u16)"
        )
    }
}

impl From<StackError> for InferError {
    fn from(error: StackError) -> InferError {
        match error {
            StackError::TooLarge { what, got, limit, option } => {
                InferError::TooLarge { what: what.into(), got, limit, option }
            }
            StackError::NoRoom(refusal) => refusal,
            // The client sees only the kind of error: the system's message names a folder of the server.
            StackError::Spill { ref cause, .. } => InferError::NoStorage(format!(
                "{error}: {}; the server's option stack_spill_folder names the folder, and its log has more",
                cause.kind()
            )),
            StackError::SpillFull { limit } => InferError::Full {
                what: "the space for temporary files of stacks (stack_spill_total_bytes_max)",
                limit,
                retry_after: SPILL_RETRY_AFTER,
            },
            other => InferError::Decode(other.to_string()),
        }
    }
}
